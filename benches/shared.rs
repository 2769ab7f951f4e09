//! Many threads over few queue pairs, compared with one pair for each thread: GETs per second of
//! all threads together, the time of one call, and the work of the queues.
//!
//! Needs an RDMA device, or one in software (`tests/soft-roce-guest`, `tests/fake_ibverbs.c`). The
//! server is in this process. Compare the lines of one run with each other: their rounds alternate,
//! and medians of rounds are shown. ONEREAD_THREADS (8) and ONEREAD_ROUNDS (5) set the number of
//! threads and rounds, ONEREAD_MILLIS (1000) the length of a round.

use oneread::internals::server::ServerConfig;
use oneread::internals::verbs::{DeviceChoice, QueueCounts, VerbsOptions, Wait};
use oneread::{Address, BatchAnswer, Client, ClientOptions, Config, Server, TableSize, VerbsAddress};
use std::ops::ControlFlow;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const KEYS: u64 = 10_000;

/// The result of one round of one contestant.
struct Round {
    gets_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    doorbells_per_read: f64,
    completions_per_read: f64,
    /// Fewest GETs of a thread, divided by the most.
    share: f64,
}

fn key(number: u64) -> [u8; 8] {
    oneread::internals::layout::hash::mix(number).to_le_bytes()
}

fn round(client: &Client, threads: usize, batch: usize, length: Duration) -> Round {
    let start = Barrier::new(threads);
    let outcomes: Vec<(u64, Vec<u32>, QueueCounts)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as u64)
            .map(|thread| {
                let (mut client, start) = (client.clone(), &start);
                scope.spawn(move || {
                    let (mut gets, mut times, mut value) = (0u64, Vec::new(), Vec::new());
                    let mut keys = vec![[0; 8]; batch];
                    // Connects before the clock starts.
                    assert!(client.get_into(&key(thread), &mut value).expect("an answer"));
                    let before = client.queue_counts().unwrap_or_default();
                    start.wait();
                    let begun = Instant::now();
                    let mut now = begun;
                    while now - begun < length {
                        for key_of_batch in &mut keys {
                            gets += 1;
                            *key_of_batch = key((gets * 7919 + thread * 1000) % KEYS);
                        }
                        let mut found = 0;
                        if batch == 1 {
                            found += u32::from(client.get_into(&keys[0], &mut value).expect("an answer"));
                        } else {
                            let each = |_, value: BatchAnswer<'_>| {
                                found += u32::from(matches!(value, Ok(Some(_))));
                                ControlFlow::<()>::Continue(())
                            };
                            let _ = client.get_many_with(&keys, each).expect("answers");
                        }
                        assert_eq!(found as usize, batch, "a key that is there was not found");
                        let then = std::mem::replace(&mut now, Instant::now());
                        times.push((now - then).as_nanos().min(u32::MAX.into()) as u32);
                    }
                    let after = client.queue_counts().unwrap_or_default();
                    let mut counts = QueueCounts::default();
                    counts.doorbells = after.doorbells - before.doorbells;
                    counts.reads = after.reads - before.reads;
                    counts.completions = after.completions - before.completions;
                    (gets, times, counts)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread without panics")).collect()
    });
    let mut times: Vec<u32> = outcomes.iter().flat_map(|(_, times, _)| times.iter().copied()).collect();
    times.sort_unstable();
    let gets = || outcomes.iter().map(|(gets, ..)| *gets);
    let mut counts = QueueCounts::default();
    outcomes.iter().for_each(|(.., each)| counts += *each);
    Round {
        gets_per_s: gets().sum::<u64>() as f64 / length.as_secs_f64(),
        p50_us: f64::from(times[times.len() / 2]) / 1e3,
        p99_us: f64::from(times[times.len() * 99 / 100]) / 1e3,
        doorbells_per_read: counts.doorbells as f64 / counts.reads as f64,
        completions_per_read: counts.completions as f64 / counts.reads as f64,
        share: gets().min().unwrap_or(0) as f64 / gets().max().unwrap_or(1) as f64,
    }
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let set = |name: &str, usual: u64| {
        std::env::var(name).ok().map_or(usual, |text| text.parse().expect("a number"))
    };
    // `cargo test` runs benches, too: one short round, to see that they work.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let threads = set("ONEREAD_THREADS", 8) as usize;
    let rounds = if is_bench { set("ONEREAD_ROUNDS", 5) } else { 1 };
    let length = Duration::from_millis(if is_bench { set("ONEREAD_MILLIS", 1000) } else { 20 });

    let place = VerbsAddress::new("127.0.0.1", 0, DeviceChoice::default());
    let config = Config::new().size(TableSize::Keys(2 * KEYS)).key_max(8).value_max(32);
    let server = match Server::start(ServerConfig::new(Address::Verbs(place), config)) {
        Ok(server) => server,
        Err(error) => return println!("not measured: {error}"),
    };
    let connect = |pairs, wait| {
        let verbs = VerbsOptions::new().pairs(pairs).wait(wait);
        let options = ClientOptions::new().verbs(verbs).deadline(Duration::from_secs(30));
        Client::connect_with(server.address(), options).expect("the server is there")
    };
    let mut filler = connect(None, Wait::Block);
    let pairs: Vec<_> = (0..KEYS).map(|number| (key(number), [7; 32])).collect();
    filler.put_many(&pairs).expect("the server is there").into_iter().for_each(|put| {
        put.expect("there is room");
    });
    drop(filler);

    println!(
        "{threads} threads, medians of {rounds} rounds of {length:?}; a call is a get, or a get_many of 16"
    );
    println!(
        "{:<24} {:>5} {:>11} {:>10} {:>10} {:>15} {:>17} {:>9}",
        "", "keys", "GETs/s", "p50 us", "p99 us", "doorbells/READ", "completions/READ", "least/most"
    );
    for batch in [1, 16] {
        for wait in [Wait::Poll, Wait::Block] {
            let contestants = [None, Some(1), Some(2), Some(4)];
            let clients = contestants.map(|pairs| connect(pairs, wait));
            let mut all: [Vec<Round>; 4] = Default::default();
            for _ in 0..rounds {
                for (client, all) in clients.iter().zip(&mut all) {
                    all.push(round(client, threads, batch, length));
                }
            }
            for (pairs, all) in contestants.iter().zip(&all) {
                let name = pairs.map_or("a pair each".into(), |pairs| format!("{pairs} shared"));
                println!(
                    "{:<24} {:>5} {:>11.0} {:>10.1} {:>10.1} {:>15.2} {:>17.2} {:>9.2}",
                    format!("{name}, {wait:?}"),
                    batch,
                    median(all, |round| round.gets_per_s),
                    median(all, |round| round.p50_us),
                    median(all, |round| round.p99_us),
                    median(all, |round| round.doorbells_per_read),
                    median(all, |round| round.completions_per_read),
                    median(all, |round| round.share),
                );
            }
        }
    }
}
