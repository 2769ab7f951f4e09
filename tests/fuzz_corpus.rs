//! The fuzz targets over their committed corpus, on stable Rust. `fuzz/README.md` explains how to
//! fuzz.
#![cfg(feature = "faults")]

#[path = "../fuzz/bodies.rs"]
mod bodies;

use oneread::internals::sim::{Adversary, Random};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// The inputs of a target, by name.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = std::fs::read_dir(corpus(target)).expect("a corpus");
    let mut inputs: Vec<_> = folder
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read(&path).expect("an input"))
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "no inputs for {target}");
    inputs
}

/// Runs every input of a target, and names the inputs that fail.
fn all_pass(target: &str, body: impl Fn(&[u8])) {
    let failed: Vec<_> = inputs(target)
        .into_iter()
        .filter(|(_, data)| catch_unwind(AssertUnwindSafe(|| body(data))).is_err())
        .map(|(name, _)| name)
        .collect();
    assert!(failed.is_empty(), "{target}: {failed:?}");
}

#[test]
fn slot_bytes() {
    all_pass("slot_bytes", bodies::slot_bytes);
}

#[test]
fn directory_bytes() {
    all_pass("directory_bytes", |data| {
        bodies::directory_bytes(data);
    });
}

/// Inputs at random, in each test run: what a reader follows in a table that grows.
#[test]
fn directories_at_random() {
    let tries = if std::env::var_os("ONEREAD_LONG").is_some() { 200_000 } else { 1_500 };
    let (mut random, mut sum) = (Random::new(5), [0; 4]);
    for nth in 0..tries {
        let data: Vec<u8> = (0..random.pick(300)).map(|_| random.pick(256) as u8).collect();
        let ended = catch_unwind(AssertUnwindSafe(|| bodies::directory_bytes(&data)));
        let ends = ended.unwrap_or_else(|_| panic!("input {nth}: {data:?}"));
        sum.iter_mut().zip(ends).for_each(|(sum, more)| *sum += more);
    }
    println!("hits, misses, errors, regions refused: {sum:?}");
    assert!(sum.iter().all(|&n| n > 300), "{sum:?}");
}

#[test]
fn reference_bytes() {
    all_pass("reference_bytes", |data| {
        bodies::reference_bytes(data);
    });
}

/// Inputs at random, in each test run: what a reader follows to a value that does not fit its slot.
#[test]
fn references_at_random() {
    let tries = if std::env::var_os("ONEREAD_LONG").is_some() { 50_000 } else { 200 };
    let (mut random, mut sum) = (Random::new(6), [0; 3]);
    for nth in 0..tries {
        let data: Vec<u8> = (0..random.pick(300)).map(|_| random.pick(256) as u8).collect();
        let ended = catch_unwind(AssertUnwindSafe(|| bodies::reference_bytes(&data)));
        let ends = ended.unwrap_or_else(|_| panic!("input {nth}: {data:?}"));
        sum.iter_mut().zip(ends).for_each(|(sum, more)| *sum += more);
    }
    println!("hits, misses, errors: {sum:?}");
    assert!(sum.iter().all(|&n| n > 100), "{sum:?}");
}

#[test]
fn superblock_bytes() {
    all_pass("superblock_bytes", bodies::superblock_bytes);
}

#[test]
fn snapshot_bytes() {
    all_pass("snapshot_bytes", |data| {
        bodies::snapshot_bytes(data);
    });
}

/// Inputs at random, in each test run: forged snapshots cost little. Many are whole, and many are not.
#[test]
fn snapshots_at_random() {
    let mut random = Random::new(4);
    let mut whole = 0;
    for _ in 0..3_000 {
        let data: Vec<u8> = (0..random.pick(400)).map(|_| random.pick(256) as u8).collect();
        whole += u32::from(bodies::snapshot_bytes(&data));
    }
    assert!((100..2_900).contains(&whole), "{whole} are whole");
}

#[test]
fn frame_bytes() {
    all_pass("frame_bytes", bodies::frame_bytes);
}

#[test]
fn gets_bytes() {
    all_pass("gets_bytes", |data| {
        bodies::gets_bytes(data);
    });
}

/// Inputs at random, in each test run: many are entries, and many are keys.
#[test]
fn gets_at_random() {
    let tries = if std::env::var_os("ONEREAD_LONG").is_some() { 2_000_000 } else { 20_000 };
    let (mut random, mut sum) = (Random::new(7), [0; 2]);
    for nth in 0..tries {
        // Small numbers are lengths, kinds and flags more often.
        let few = [256, 8][random.pick(2)];
        let mut data: Vec<u8> = (0..random.pick(200)).map(|_| random.pick(few) as u8).collect();
        if random.pick(2) == 0 {
            // A request: what is wanted of a reply, what it wants itself, and keys.
            data.truncate(17);
            data.resize(21, 0);
            data[9..13].copy_from_slice(&[random.pick(5) as u8, 0, 0, 0]);
            for _ in 0..random.pick(10) {
                let len = random.pick(20);
                data.extend((len as u16).to_le_bytes());
                data.extend(std::iter::repeat_n(7, len));
            }
        }
        let ended = catch_unwind(AssertUnwindSafe(|| bodies::gets_bytes(&data)));
        let ends = ended.unwrap_or_else(|_| panic!("input {nth}: {data:?}"));
        sum.iter_mut().zip(ends).for_each(|(sum, more)| *sum += more);
    }
    println!("entries, keys: {sum:?}");
    assert!(sum.iter().all(|&n| n > 1_000), "{sum:?}");
}

#[cfg(feature = "encryption")]
#[test]
fn stored_bytes() {
    all_pass("stored_bytes", bodies::stored_bytes);
}

#[test]
fn ops() {
    all_pass("ops", bodies::ops);
}

#[test]
fn crash() {
    all_pass("crash", bodies::crash);
}

#[test]
fn schedule() {
    all_pass("schedule", |data| {
        if let Err(violation) = bodies::schedule(data) {
            panic!("{violation}");
        }
    });
}

/// Every input finds the broken rules that it names. It finds nothing when no rule is broken.
#[test]
fn canary() {
    for (name, data) in inputs("canary") {
        let (rules, found) = bodies::canary(&data);
        let Err(violation) = found else { panic!("case lost: {rules:?} broken, {name} shows nothing") };
        println!("{rules:?} broken: {violation}");
        let rest = data.get(1..).unwrap_or_default();
        assert_eq!(bodies::schedule(rest), Ok(()), "{name}, no rule broken");
    }
}

/// Searches at random for inputs that show each broken rule, and writes the shortest into the
/// corpus.
#[test]
#[ignore = "writes into fuzz/corpus/canary"]
fn search_for_canaries() {
    const TRIES: u64 = 1_000_000;
    let found = |data: &[u8]| bodies::canary(data).1.is_err();
    for (n, rules) in bodies::CANARIES.iter().enumerate() {
        let mut random = Random::new(n as u64);
        let input = (0..TRIES)
            .map(|_| {
                let mut data: Vec<u8> = (0..64 + random.pick(192)).map(|_| random.pick(256) as u8).collect();
                data[0] = n as u8;
                data
            })
            .find(|data| found(data));
        let Some(mut input) = input else {
            println!("{rules:?}: not found in {TRIES} inputs");
            continue;
        };
        // First shorter, then with as many zeros as possible.
        while input.len() > 1 && found(&input[..input.len() - 1]) {
            input.pop();
        }
        for at in 1..input.len() {
            let before = std::mem::replace(&mut input[at], 0);
            if !found(&input) {
                input[at] = before;
            }
        }
        let name = rules.iter().map(|rule| format!("{rule:?}")).collect::<Vec<_>>().join("-");
        std::fs::create_dir_all(corpus("canary")).expect("the corpus");
        std::fs::write(corpus("canary").join(&name), &input).expect("room");
        println!("{name}: {} bytes", input.len());
    }
}
