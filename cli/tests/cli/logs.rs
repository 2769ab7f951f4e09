//! A log outlives its server and its server's memory.

use crate::served::{Served, expect, run, stderr, stdout};
use oneread::{Address, Client};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Clients put while the server is killed, and its memory is gone. Whatever was answered is there when the next one begins with
/// the log, in whatever state its snapshots are.
#[test]
fn what_was_answered_is_there_after_a_kill() {
    const WRITERS: u64 = 4;
    let mut dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log").display().to_string();
    let snapshot = dir.path().join("snapshot").display().to_string();
    let mut last = [0; WRITERS as usize];
    for round in 0..6 {
        let mut flags = vec!["--anonymous", "--log", &log, "--max-memory", "64MiB"];
        if round % 2 == 1 {
            flags.extend(["--fsync", "always"]);
        }
        // Of the first rounds the log has all.
        if round >= 2 {
            flags.extend(["--snapshot", &snapshot, "--snapshot-every", "20ms"]);
        }
        if round == 2 {
            std::fs::rename(Path::new(&log).join("snapshot"), &snapshot).ok();
        }
        let mut served = Served::start_in(dir, &flags);
        let address: Address = served.at.parse().unwrap();
        let mut client = Client::connect(&address).unwrap();
        for (writer, last) in (0..WRITERS).zip(&last) {
            let value = client.get(&writer.to_le_bytes()).unwrap();
            let found = value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()));
            assert!(
                found == *last || found == last + 1,
                "round {round}, writer {writer}: {found}, not {last}"
            );
        }
        let answered: [AtomicU64; WRITERS as usize] =
            std::array::from_fn(|writer| AtomicU64::new(last[writer]));
        let is_killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (writer, answered) in (0..WRITERS).zip(&answered) {
                let mut client = client.clone();
                let is_killed = &is_killed;
                scope.spawn(move || {
                    let value = client.get(&writer.to_le_bytes()).unwrap_or_default();
                    let mut next =
                        value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()));
                    answered.store(next, Ordering::SeqCst);
                    while !is_killed.load(Ordering::SeqCst) {
                        next += 1;
                        let mut value = next.to_le_bytes().to_vec();
                        value.resize(8 + (next % 2_000) as usize, 7);
                        match client.put(&writer.to_le_bytes(), &value) {
                            Ok(_) => answered.store(next, Ordering::SeqCst),
                            Err(_) => return,
                        }
                    }
                });
            }
            while answered.iter().any(|answered| answered.load(Ordering::SeqCst) < 20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            served.signal(Signal::KILL);
            is_killed.store(true, Ordering::SeqCst);
        });
        last = answered.map(AtomicU64::into_inner);
        dir = served.kill();
    }
}

/// A region file and a log: who takes the table over makes again what was answered, and refuses a table that was served
/// without the log.
#[test]
fn a_region_and_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let region = dir.path().join("region").display().to_string();
    let log = dir.path().join("log").display().to_string();
    let with_log = ["--region", &region, "--slots", "64", "--log", &log];
    let mut served = Served::start_in(dir, &with_log);
    expect(served.run(&["put", "a", "1"]), 0);
    let mut served = Served::start_in(served.kill(), &with_log);
    assert_eq!(stdout(&expect(served.run(&["get", "a"]), 0)), "1\n");
    expect(served.run(&["put", "b", "2"]), 0);
    let mut served = Served::start_in(served.kill(), &with_log[..4]);
    expect(served.run(&["put", "c", "3"]), 0);
    let dir = served.kill();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let refused = stderr(&expect(run(&[&["serve", "--at", &at][..], &with_log].concat()), 1));
    assert!(refused.contains("served without this log"), "{refused}");
    // Another log begins with what is there.
    std::fs::rename(&log, dir.path().join("old")).unwrap();
    let mut served = Served::start_in(dir, &with_log);
    assert_eq!(stdout(&expect(served.run(&["get", "c"]), 0)), "3\n");
    let dir = served.kill();
    std::fs::remove_file(&region).unwrap();
    let served = Served::start_in(dir, &with_log);
    assert_eq!(stdout(&expect(served.run(&["get", "c"]), 0)), "3\n");
}

/// What `stat` and `top` say of a log, and that its disk has failed: then no change is made, and GETs go on. A server without
/// one has none.
#[test]
fn a_log_and_its_disk_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log").display().to_string();
    let served = Served::start_in(dir, &["--anonymous", "--slots", "64", "--log", &log]);
    expect(served.run(&["put", "a", "1"]), 0);
    expect(served.run(&["put", "b", "2"]), 0);
    expect(served.run(&["delete", "b"]), 0);
    let told = &served.stat()["log"];
    for (name, value) in [("records", 3), ("records_written", 3), ("records_durable", 3)] {
        assert_eq!(told[name], value, "{told}");
    }
    assert_eq!(told["has_failed"], false, "{told}");
    assert!((1..=3).contains(&told["syncs"].as_u64().unwrap()), "{told}");
    let text = stdout(&expect(served.run(&["stat"]), 0));
    assert!(text.contains("changes that it has taken") && !text.contains("has failed"), "{text}");
    let top = stdout(&expect(served.run(&["top", "--once", "--every", "1ms"]), 0));
    assert!(top.contains("syncs of the log"), "{top}");
    let address: Address = served.at.parse().unwrap();
    let mut client = Client::connect(&address).unwrap();
    assert_eq!(client.log().unwrap().unwrap().next, 4);

    // A disk that refuses.
    let limit = Rlimit { current: Some(1), maximum: None };
    prlimit(Some(Pid::from_child(&served.child)), Resource::Fsize, limit).unwrap();
    let refused = served.run(&["put", "c", "3"]);
    assert!(!refused.status.success(), "{refused:?}");
    let told = &served.stat()["log"];
    assert_eq!(told["has_failed"], true, "{told}");
    assert_eq!(told["records_durable"], 3, "{told}");
    let text = stdout(&expect(served.run(&["stat"]), 0));
    assert!(text.contains("has failed: no change is made"), "{text}");
    let top = stdout(&expect(served.run(&["top", "--once", "--every", "1ms"]), 0));
    assert!(top.contains("log has FAILED"), "{top}");
    assert_eq!(stdout(&expect(served.run(&["get", "a"]), 0)), "1\n");

    let without = Served::start(&["--anonymous", "--slots", "64"]);
    assert!(without.stat()["log"].is_null());
    assert_eq!(Client::connect(&without.at.parse().unwrap()).unwrap().log().unwrap(), None);
}
