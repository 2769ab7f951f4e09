//! What hints save and what they cost, counted: READs and bytes of a hit, client memory a key.
//!
//! Counts are of one seed each, and the same in every run.

use crate::churned::*;
use oneread::internals::hints::Hints;
use oneread::internals::layout::hash::mix;
use oneread::{
    layout::Layout,
    presets,
    stats::{HintCounts, ReadCounts},
};

fn windowed() -> Layout {
    "windowed:8".parse().unwrap()
}

/// At 90 % after 2N replacements, with hints that know the keys: a hit in the default layout takes at
/// most 1.01 READs and 80 bytes, at no more than 1.2 bytes of client memory a key. In every layout
/// hints save bytes.
#[test]
fn a_hit_takes_one_slot() {
    println!("{:<14} {:>23} {:>31}", "", "without hints", "with");
    for preset in presets() {
        let percent = u64::from(preset.design_load.min(90));
        let table = Table::new(preset.layout, 1 << 15, percent);
        let plain = hits(&mut table.reader(None), &table.live);
        let Some(hints) = table.learned(6) else {
            assert_eq!(preset.name, "list", "a key has one slot to be looked for in");
            continue;
        };
        let hinted = hits(&mut table.reader(Some(&hints)), &table.live);
        let per_key = hints.bytes() as f64 / table.live.len() as f64;
        println!(
            "{:<14} {:>6.4} READs {:>7.2} bytes {:>6.4} READs {:>7.2} bytes {:>6.4} trips {per_key:.3} bytes a key",
            preset.name,
            plain.reads(),
            plain.bytes(),
            hinted.reads(),
            hinted.bytes(),
            hinted.trips()
        );
        assert!(hinted.bytes() <= plain.bytes(), "{}", preset.name);
        if preset.layout == windowed() {
            assert!(hinted.reads() <= 1.01 && hinted.bytes() <= 80.0 && per_key <= 1.2, "{hinted:?}");
            assert_eq!([hinted.reads.reads, hinted.reads.bytes, hints.bytes()], [29_710, 1_908_608, 32_768]);
        }
    }
}

/// From when on hits take one slot: after the first GET of each key, the second, and so on. And what
/// a miss takes then: its window as ever, and now and then a slot in vain.
#[test]
fn hints_are_learned_and_corrected() {
    let table = Table::new(windowed(), 1 << 15, 90);
    let hints = Hints::new(table.index.geometry(), usize::MAX).unwrap();
    let mut before = f64::MAX;
    for (round, at_most) in [180.0, 75.0, 67.0, 67.0, 67.0, 67.0].into_iter().enumerate() {
        let took = hits(&mut table.reader(Some(&hints)), &table.live);
        println!("round {round}: {:.4} READs, {:.2} bytes", took.reads(), took.bytes());
        assert!(took.bytes() <= at_most, "{took:?}");
        before = took.bytes();
    }
    let mut misses = [None, Some(&hints)].map(|hints| table.reader(hints));
    let mut value = Vec::new();
    for n in 0..20_000 {
        assert!(misses.iter_mut().all(|reader| !reader.get_into(&key(u64::MAX - n), &mut value).unwrap()));
    }
    let [plain, hinted] = misses.map(|reader| reader.read_counts());
    println!("a miss: {} and {} READs of 20,000", plain.reads, hinted.reads);
    assert!(hinted.reads - plain.reads < 20_000 * 15 / 100);
    // Absent keys change no tag that is right.
    let after = hits(&mut table.reader(Some(&hints)), &table.live);
    assert!(after.bytes() <= before + 0.5, "{after:?}");
}

/// A number below `n`, Zipf-distributed with 0.99: `sums` has the running sums of the weights.
fn zipf(sums: &[f64], random: u64) -> usize {
    let at = random as f64 / u64::MAX as f64 * sums.last().unwrap();
    sums.partition_point(|&sum| sum < at).min(sums.len() - 1)
}

/// Zipfian keys, and memory for some percent of the slots only.
#[test]
fn a_small_cache_of_hints() {
    let table = Table::new(windowed(), 1 << 15, 90);
    let n = table.live.len();
    let sums: Vec<f64> = (1..=n)
        .scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-0.99);
            Some(*sum)
        })
        .collect();
    let asked = |from: u64| -> Vec<u64> {
        (from..from + 200_000).map(|nth| table.live[zipf(&sums, mix(nth))]).collect()
    };
    let mut before = 0.0;
    for percent in [0, 1, 2, 5, 10, 20, 50, 100] {
        let bytes = (table.index.geometry().main_slots() * percent / 100) as usize;
        let took = match Hints::new(table.index.geometry(), bytes + 8 * usize::from(percent == 100)) {
            None => hits(&mut table.reader(None), &asked(1 << 40)),
            Some(hints) => {
                hits(&mut table.reader(Some(&hints)), &asked(1));
                hits(&mut table.reader(Some(&hints)), &asked(1 << 40))
            }
        };
        println!(
            "{percent:>3} % of the slots: {:.1} % of the hits hinted, {:.4} READs, {:.1} bytes",
            took.hit_rate(),
            took.reads(),
            took.bytes()
        );
        assert!(percent == 0 || took.hit_rate() > before, "{took:?}");
        before = took.hit_rate();
    }
}

/// The table changes under a client's hints: so many keys are replaced for each GET.
#[test]
fn hints_while_the_table_churns() {
    let mut before = 0.0;
    for per_thousand in [0, 1, 10, 100, 1_000] {
        let mut table = Table::new(windowed(), 1 << 14, 90);
        let hints = table.learned(6).unwrap();
        let (mut gets, mut reads, mut hinted) = (0, ReadCounts::default(), HintCounts::default());
        // Until each key has been asked for four times on average.
        while gets < 4 * table.live.len() {
            (0..per_thousand).for_each(|_| table.replace());
            let asked: Vec<u64> = (0..1_000)
                .map(|_| {
                    let at = table.below(table.live.len() as u64);
                    table.live[at as usize]
                })
                .collect();
            let mut reader = table.reader(Some(&hints));
            let took = hits(&mut reader, &asked);
            gets += asked.len();
            reads += took.reads;
            hinted += took.hints;
        }
        let took = Took { gets: gets as f64, reads, hints: hinted };
        println!(
            "{per_thousand:>5} replaced per 1,000 GETs: {:.2} % hinted, {:.4} READs, {:.1} bytes",
            took.hit_rate(),
            took.reads(),
            took.bytes()
        );
        assert!(took.bytes() >= before, "{took:?}");
        before = took.bytes();
    }
}

/// The counts over the simulated NIC, whose bytes land in private memory, are those on shm.
#[cfg(feature = "sim")]
#[test]
fn the_same_over_the_simulated_nic() {
    use oneread::internals::sim::{Hardware, Random, Recorder, Sim, Unit, Witness};
    use oneread::{
        Limits,
        embedded::{Clock, Reader},
    };
    use std::sync::Arc;
    use std::time::Duration;
    let geometry = geometry(windowed(), 1 << 12);
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let bytes = geometry.region_bytes();
    let table = Table::churned(recorder.region(bytes), geometry, clock, 90);
    let (history, geometry) = (recorder.history(bytes), table.index.geometry());
    let hardware = Hardware {
        unit: Unit::Line,
        witness: Witness::Clock,
        read_stores_max: 0,
        error_one_in: 0,
        client_ns: 1,
        passes_max: usize::MAX,
        hints: true,
    };
    let [near, far] = [(), ()].map(|()| Hints::new(geometry, usize::MAX).unwrap());
    let mut random = Random::new(1);
    let mut last = None;
    for _ in 0..6 {
        let nic = Sim::new(&history, geometry, hardware, &mut random, history.end());
        let mut over_nic = Reader::new(nic, geometry, Clock::manual(), Limits::default()).with_hints(&far);
        let landed = hits(&mut over_nic, &table.live);
        let loaded = hits(&mut table.reader(Some(&near)), &table.live);
        assert_eq!((landed.reads, landed.hints), (loaded.reads, loaded.hints));
        last = Some(landed);
    }
    let last = last.unwrap();
    println!("{:.4} READs, {:.2} bytes", last.reads(), last.bytes());
    assert!(last.reads() <= 1.01 && last.bytes() <= 80.0);
}
