//! Batches whose connection is replaced at any point: each key has one answer in the end.

use super::*;

/// What a server of the test does with the next request.
struct BatchRun {
    seed: u64,
}

impl BatchRun {
    fn below(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % n
    }
}

/// Requests are answered in part, connections are replaced by those to servers with other lengths of keys: each key has its
/// answer once, by a reply or because the last server does not take it.
#[test]
fn each_key_of_a_batch_has_one_answer() {
    for seed in 0..2_000 {
        let mut run = BatchRun { seed };
        let keys: Vec<Vec<u8>> = (0..run.below(40)).map(|_| vec![7; run.below(12)]).collect();
        let (mut batch, mut request) = (Batch::new(keys.len()), KeysWriter::default());
        let (mut answers, mut key_max) = (vec![0; keys.len()], 4 + run.below(8));
        let mut failures = run.below(6);
        batch.begin_again();
        loop {
            if failures > 0 && run.below(4) == 0 {
                failures -= 1;
                key_max = 4 + run.below(8);
                batch.begin_again();
            }
            while batch.under_way.len() < 2 && batch.collect(&keys, &mut request, true, key_max) {}
            let Some(places) = batch.under_way.pop_front() else {
                // Before keys are refused it is seen that the server is still there.
                if failures == 0 {
                    break;
                }
                continue;
            };
            assert!(!places.is_empty() && places.len() <= KEYS_MAX, "{seed}");
            // A reply has room for some.
            for place in places.clone().filter(|_| run.below(3) > 0).collect::<Vec<_>>() {
                let number = batch.answer(place).expect("it had no answer");
                assert!(check(&keys[number], key_max).is_ok(), "{seed}: it was asked for");
                assert_eq!(batch.answer(place), None, "{seed}: twice");
                answers[number] += 1;
            }
            batch.ask_again_for(places);
        }
        for (number, error) in batch.wrong.drain(..) {
            let given = keys[number as usize].len();
            assert_eq!(error, KeyLengthError { given, max: key_max }, "{seed}");
            answers[number as usize] += 1;
        }
        assert!(answers.iter().all(|&answers| answers == 1), "{seed}: {answers:?}");
    }
}
