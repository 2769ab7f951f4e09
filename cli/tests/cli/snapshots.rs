//! A snapshot brings a table back, whole or with what it lacks told.

use crate::command::alone;
use crate::served::{Served, expect, json, region_in, run, run_with_input, stderr, stdout, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

/// A server with snapshots, from the command line: on request, at the end, and after the region is
/// gone. `restore` puts them into any server; a damaged one puts nothing.
#[test]
fn snapshots_are_made_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (snap, copy) = (path("table.snap"), path("copy.snap"));
    let flags = ["--region", &*region, "--slots", "4096", "--snapshot", &snap, "--snapshot-every", "1h"];
    let served_dir = tempfile::tempdir().unwrap();
    let mut served = Served::start_in(served_dir, &flags);
    let words: String = (0..500).map(|n| format!("key{n}\tvalue{n}\n")).collect();
    expect(served.run(&["load", &served.file("words.tsv", &words)]), 0);
    let out = expect(served.run(&["snapshot"]), 0);
    assert!(stdout(&out).contains("snapshot of 500 keys"), "{out:?}");
    let stat = json(&expect(served.run(&["stat", "--json"]), 0));
    let last = &stat["snapshots"]["last"];
    assert_eq!((&last["keys"], &stat["snapshots"]["every_ms"]), (&500.into(), &3_600_000.into()), "{stat}");
    let shown = stdout(&expect(served.run(&["stat"]), 0));
    assert!(shown.contains("every 60 min") && shown.contains("last snapshot"), "{shown}");
    std::fs::copy(&snap, &copy).unwrap();
    let about = json(&expect(run(&["restore", &copy, "--check", "--json"]), 0));
    assert_eq!(
        (&about["keys"], &about["main_slots"], &about["longest_value"]),
        (&500.into(), &4096.into(), &8.into())
    );
    assert!(stdout(&expect(run(&["restore", &copy, "--check"]), 0)).contains("all whole"));

    // At the end, one more. Then the region is thrown away, as by a crash of the machine.
    expect(served.run(&["put", "late", "one"]), 0);
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    std::fs::remove_file(&region).unwrap();
    let flags = ["--region", &*region, "--snapshot", &snap];
    let served = Served::start(&flags);
    assert_eq!(served.ready["restored"]["keys"], 501, "{}", served.ready);
    assert_eq!(served.ready["main_slots"], 4096, "of the snapshot's size");
    assert_eq!(stdout(&expect(served.run(&["get", "late"]), 0)), "one\n");

    // Into a running server, of another layout; over its keys, or beside them.
    let other = Served::start(&["--anonymous", "--layout", "cluster", "--capacity", "1000"]);
    expect(other.run(&["put", "key7", "mine"]), 0);
    let none = expect(other.run(&["snapshot"]), 1);
    assert!(stderr(&none).contains("--snapshot FILE"), "{none:?}");
    let out = json(&expect(other.run(&["restore", &copy, "--insert", "--json"]), 0));
    assert_eq!((&out["inserted"], &out["skipped"]), (&499.into(), &1.into()), "{out}");
    let out = json(&expect(other.run(&["restore", &copy, "--json"]), 0));
    assert_eq!((&out["inserted"], &out["updated"]), (&0.into(), &500.into()), "{out}");
    assert_eq!(stdout(&expect(other.run(&["get", "key7"]), 0)), "value7\n");

    // A damaged one: as a whole nothing, in parts what is whole.
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes[200] ^= 1;
    let bad = path("bad.snap");
    std::fs::write(&bad, &bytes).unwrap();
    let empty = Served::start(&["--anonymous", "--capacity", "1000"]);
    for arguments in [&["restore", &bad][..], &["restore", &bad, "--check"]] {
        let out = expect(empty.run(arguments), 1);
        assert!(
            stderr(&out).contains("damaged at byte 176") && stderr(&out).contains("--damaged"),
            "{out:?}"
        );
    }
    assert_eq!(json(&expect(empty.run(&["stat", "--json"]), 0))["server"]["keys"], 0);
    let out = expect(empty.run(&["restore", &bad, "--damaged"]), 1);
    assert!(stderr(&out).contains("left out"), "{out:?}");
    let unused = path("unused");
    let out = expect(run(&["serve", "--anonymous", "--at", &unused, "--restore", &bad]), 1);
    assert!(stderr(&out).contains("damaged at byte 176"), "{out:?}");
    // A table with keys of its own is not replaced.
    let out = expect(run(&["serve", "--at", &unused, "--region", &region, "--restore", &copy]), 1);
    assert!(stderr(&out).contains("`oneread restore`"), "{out:?}");
    // Longer values than the table takes: nothing is put.
    let short = Served::start(&["--anonymous", "--value-max", "5"]);
    let out = expect(short.run(&["restore", &copy]), 1);
    assert!(stderr(&out).contains("--value-max 8") && stderr(&out).contains("nothing was put"), "{out:?}");
    let out = expect(run(&["restore", &path("none")]), 1);
    assert!(stderr(&out).contains("opening the snapshot"), "{out:?}");
}

/// `restore` puts entries with their ends and their owners, into a new server and over what is there; one that has ended
/// is not put. A table that cannot have them takes nothing. `dump --json` and `load` do the same.
#[test]
fn restored_entries_end_and_have_their_owners() {
    let size = ["--anonymous", "--slots", "1024"];
    let with = |more: &[&str]| Served::start(&[&size[..], more].concat());
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (snap, dumped) = (path("table.snap"), path("dumped.jsonl"));
    let served = with(&["--owners", "--snapshot", &snap]);
    for put in [
        &["put", "long", "v", "--ttl", "1h"][..],
        &["put", "short", "v", "--ttl", "10s"],
        &["put", "ever", "v"],
        &["put", "owned", "v", "--owner", "7", "--absent-for", "1h"],
    ] {
        expect(served.run(put), 0);
    }
    expect(served.run(&["snapshot"]), 0);
    std::fs::write(&dumped, expect(served.run(&["dump", "--json"]), 0).stdout).unwrap();
    let plain = expect(served.run(&["dump"]), 0);
    assert!(stderr(&plain).contains("that end by themselves or have owners"), "{plain:?}");
    let about = || json(&expect(run(&["restore", &snap, "--check", "--json"]), 0));
    wait_for("one has ended", || (about()["ended"] == 1).then_some(()));
    let counts = about();
    assert_eq!([&counts["keys"], &counts["ending"], &counts["owned"]], [4, 1, 1], "{counts}");
    // Tables that cannot have such entries.
    for (more, option) in [(&[][..], "--life"), (&["--life"], "--owners")] {
        let other = with(more);
        let refused = expect(other.run(&["restore", &snap]), 1);
        let told = stderr(&refused);
        assert!(told.contains("nothing was put") && told.contains(option), "{told}");
        expect(other.run(&["get", "ever"]), 1);
    }
    let left = |served: &Served, key: &str| {
        let dump = stdout(&expect(served.run(&["dump", "--json"]), 0));
        let lines = dump.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.into_iter().find(|line| line["key"] == key)
    };
    let first = left(&served, "long").unwrap()["ends_ms"].as_u64().unwrap();
    let is_whole = |served: &Served| {
        let ends = left(served, "long").unwrap()["ends_ms"].as_u64().unwrap();
        // In eighths of a second, and later by as long as the put was under way.
        assert!((first - 200..first + 60_000).contains(&ends), "{ends} after {first}");
        assert_eq!(left(served, "ever").unwrap()["ends_ms"], Value::Null);
        assert_eq!(left(served, "short"), None);
        assert_eq!(left(served, "owned").unwrap()["owner"], 7);
        // Nobody has a session of it any more: it goes with its owner.
        expect(served.run(&["owner", "remove", "7"]), 0);
        expect(served.run(&["get", "owned"]), 1);
        assert_eq!(left(served, "owned"), None, "what no reader finds is not dumped");
    };
    for how in [&["restore", &snap][..], &["load", &dumped]] {
        let other = with(&["--owners"]);
        // Over what is there: an end is not taken away, nor an owner.
        expect(other.run(&["put", "long", "other"]), 0);
        expect(other.run(&["put", "ever", "other", "--ttl", "1h"]), 0);
        let out = json(&expect(other.run(&[how, &["--json"]].concat()), 0));
        let counted = ["inserted", "updated", "ended", "failed"].map(|name| out[name].as_u64().unwrap());
        assert_eq!(counted, [1, 2, 1, 0], "{out}");
        is_whole(&other);
    }
    // A server that begins with it makes a table that can have them.
    is_whole(&Served::start(&["--anonymous", "--restore", &snap]));
    // An owner that goes makes the last snapshot old.
    expect(served.run(&["owner", "remove", "7"]), 0);
    let mut served = served;
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    assert_eq!(about()["owned"], 0, "{}", about());
}

/// A table that grows begins with one segment, and takes a snapshot of more keys than that holds. One that has
/// no room for all of them is left as it is.
#[test]
fn a_table_that_grows_takes_a_snapshot_of_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let snap = dir.path().join("table.snap").display().to_string();
    let served = Served::start(&["--anonymous", "--max-memory", "64MiB", "--snapshot", &snap]);
    let words: String = (0..20_000).map(|n| format!("key{n}\tvalue{n}\n")).collect();
    expect(served.run(&["load", &served.file("words.tsv", &words)]), 0);
    expect(served.run(&["snapshot"]), 0);
    let other = Served::start(&["--anonymous", "--max-memory", "64MiB"]);
    assert!(other.ready["slots"].as_u64().unwrap() < 20_000, "in one segment: {}", other.ready);
    let out = json(&expect(other.run(&["restore", &snap, "--json"]), 0));
    assert_eq!((&out["inserted"], &out["failed"]), (&20_000.into(), &0.into()), "{out}");
    let small = Served::start(&["--anonymous", "--slots", "16384"]);
    let out = expect(small.run(&["restore", &snap]), 1);
    assert!(stderr(&out).contains("16,384 slots; nothing was put"), "{out:?}");
    assert_eq!(json(&expect(small.run(&["stat", "--json"]), 0))["server"]["keys"], 0);
}

/// On a full disk, the old snapshot stays, the table is served on, and `stat` says what is wrong.
#[test]
fn a_full_disk_costs_no_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=256k none \"$1\" || exit 77; shift; exec \"$@\"";
    // In a mount namespace of its own, so that the disk goes with the server.
    let in_namespace = |arguments: &[&str]| {
        let mut command = alone(Command::new("unshare"));
        command.args(["-rm", "sh", "-c", script, "sh"]).arg(&disk).args(arguments);
        command
    };
    if !in_namespace(&["true"]).output().is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no namespaces here");
        eprintln!("skipped: no disk can be made small here (unshare, mount)");
        return;
    }
    let at = format!("shm:{}", dir.path().join("sock").display());
    let snap = disk.join("table.snap").display().to_string();
    let mut command = in_namespace(&[env!("CARGO_BIN_EXE_oneread"), "serve", "--json", "--at", &at]);
    command.args(["--anonymous", "--capacity", "10000", "--snapshot", &snap]);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    let load = |keys: u32| {
        let words: String = (0..keys).map(|n| format!("key{n}\tvalue{n:060}\n")).collect();
        expect(run_with_input(&["load", "-", "--at", &at], words.as_bytes()), 0);
    };
    load(500);
    assert!(stdout(&expect(run(&["snapshot", "--at", &at]), 0)).contains("500 keys"));
    load(5000);
    let out = expect(run(&["snapshot", "--at", &at]), 1);
    let message = stderr(&out);
    assert!(message.contains("No space left") && message.contains("still there"), "{message}");
    let stat = json(&expect(run(&["stat", "--json", "--at", &at]), 0));
    let snapshots = &stat["snapshots"];
    assert_eq!((&snapshots["saved"], &snapshots["finished"]), (&1.into(), &2.into()), "{stat}");
    assert!(snapshots["last_failure"]["error"].as_str().unwrap().contains("No space left"), "{stat}");
    assert_eq!(snapshots["last"]["keys"], 500);
    assert!(stdout(&expect(run(&["stat", "--at", &at]), 0)).contains("THE LAST ONE FAILED"));
    // The table is served, and is smaller now: there is room for it, beside the old one.
    let gone: Vec<String> = (400..5000).map(|n| format!("key{n}")).collect();
    for some in gone.chunks(1000) {
        let mut all = vec!["del", "--at", &*at];
        all.extend(some.iter().map(|key| &**key));
        expect(run(&all), 0);
    }
    assert!(stdout(&expect(run(&["snapshot", "--at", &at]), 0)).contains("400 keys"));
    // And at the end on a full disk the exit status says so.
    load(5000);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let out = server.wait_with_output().unwrap();
    assert!(!out.status.success() && stderr(&out).contains("the last snapshot was not made"), "{out:?}");
}

/// A server that was killed while it began a table with the keys of a snapshot leaves a table that nobody has
/// been served from. The next one begins anew.
#[test]
fn a_table_that_was_half_restored_is_begun_again() {
    use oneread::internals::layout::control::{Phase, STATE_WORD, State};
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let snap = dir.path().join("table.snap").display().to_string();
    let flags = ["--region", &*region, "--slots", "64"];
    let saving = [&flags[..], &["--snapshot", &*snap]].concat();
    let served = Served::start(&saving);
    served.load(0..10);
    expect(served.run(&["snapshot"]), 0);
    expect(served.run(&["del", "key3"]), 0);
    drop(served);
    let begin = |phase| {
        let mut bytes = std::fs::read(&region).unwrap();
        let word = State { incarnation: 1, phase }.to_word();
        bytes[8 * STATE_WORD..][..8].copy_from_slice(&word.to_le_bytes());
        std::fs::write(&region, bytes).unwrap();
    };
    begin(Phase::Serving);
    assert_eq!(Served::start(&saving).ready["recovered"]["keys"], 9);
    let restoring = [&flags[..], &["--restore", &*snap]].concat();
    for flags in [&restoring, &saving] {
        begin(Phase::Starting);
        let ready = Served::start(flags).ready.clone();
        assert_eq!((&ready["restored"]["keys"], &ready["recovered"]), (&10.into(), &Value::Null), "{ready}");
    }
}

/// What is whole of a damaged snapshot is put, and what is not is counted to the byte. Keys that the table does
/// not take are counted, too. The exit status tells of both.
#[test]
fn what_a_restore_leaves_out_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (whole, damaged) = (path("whole.snap"), path("damaged.snap"));
    let served = Served::start(&["--anonymous", "--capacity", "20000", "--snapshot", &whole]);
    // Four blocks of 256 KiB.
    let lines: String = (0..10_000).map(|n| format!("key{n:07}\t{n:078}\n")).collect();
    expect(run_with_input(&["load", "-", "--at", &served.at], lines.as_bytes()), 0);
    expect(served.run(&["put", &"k".repeat(32), ""]), 0);
    expect(served.run(&["snapshot"]), 0);
    let mut bytes = std::fs::read(&whole).unwrap();
    let second = bytes.windows(4).enumerate().filter(|(_, bytes)| bytes == b"BLCK").nth(1).unwrap().0;
    let third = bytes.windows(4).enumerate().filter(|(_, bytes)| bytes == b"BLCK").nth(2).unwrap().0;
    bytes[second + 1000] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let restore = |into: &Served, file: &str, more: &[&str], status| {
        expect(into.run(&[&["restore", file, "--json"], more].concat()), status)
    };
    let counts = |out: &Output| {
        let sum = json(out);
        ["keys", "inserted", "updated", "skipped", "failed", "left_out_bytes"]
            .map(|n| sum[n].as_u64().unwrap())
    };
    let other = Served::start(&["--anonymous", "--capacity", "20000"]);
    let out = restore(&other, &damaged, &["--damaged"], 1);
    let [keys, inserted, updated, skipped, failed, left_out] = counts(&out);
    assert_eq!((updated, skipped, failed, left_out), (0, 0, 0, (third - second) as u64));
    assert!(keys == inserted && (6_000..9_000).contains(&keys), "{keys}");
    assert!(stderr(&out).contains(&format!("bytes {second} to {} are left out", third - 1)), "{out:?}");
    assert_eq!(other.stat()["server"]["keys"], keys);
    // All is whole now: what was there is left, or put again.
    let out = restore(&other, &whole, &["--damaged", "--insert"], 0);
    assert_eq!(counts(&out), [10_001, 10_001 - keys, 0, keys, 0, 0]);
    assert_eq!(counts(&restore(&other, &whole, &["--damaged"], 0)), [10_001, 0, 10_001, 0, 0, 0]);
    // One key is too long.
    let narrow = Served::start(&["--anonymous", "--capacity", "20000", "--key-max", "16"]);
    let out = restore(&narrow, &whole, &["--damaged"], 1);
    assert_eq!(counts(&out), [10_001, 10_000, 0, 0, 1, 0]);
    assert!(stderr(&out).contains("32 bytes long"), "{out:?}");
    let refused = stderr(&restore(&narrow, &whole, &[], 1));
    assert!(refused.contains("has a key of 32 bytes") && refused.contains("--key-max 32"), "{refused}");
    // A table that is full ends it.
    let small = Served::start(&["--anonymous", "--slots", "64", "--grace", "100us"]);
    let out = restore(&small, &whole, &["--damaged"], 1);
    assert!(
        stderr(&out).contains("the table is full") && stderr(&out).contains("of the snapshot"),
        "{out:?}"
    );
}

/// A snapshot, and a table that shrinks, need not be waited for. Each says so, and `--json` tells how far it is.
#[test]
fn who_asks_need_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let snap = dir.path().join("table.snap").display().to_string();
    let served = Served::start(&["--anonymous", "--max-memory", "64MiB", "--snapshot", &snap]);
    served.load(0..100);
    let made = json(&expect(served.run(&["snapshot", "--json"]), 0));
    assert_eq!(["asked", "begun", "finished", "saved"].map(|name| made[name].as_u64().unwrap()), [1; 4]);
    assert_eq!((&made["last"]["keys"], &made["last_failure"]), (&100.into(), &Value::Null), "{made}");
    assert_eq!(made["last"]["bytes"], std::fs::metadata(&snap).unwrap().len());
    assert_eq!((&made["every_ms"], &made["under_way"]), (&Value::Null, &false.into()), "{made}");
    let told = stdout(&expect(served.run(&["snapshot", "--no-wait"]), 0));
    assert_eq!(told, "the server writes a snapshot; `oneread stat` shows what comes of it\n");
    wait_for("a snapshot", || (served.stat()["snapshots"]["saved"] == 2).then_some(()));
    let told = stdout(&expect(served.run(&["shrink", "--no-wait"]), 0));
    assert_eq!(told, "0 merges under way; `oneread stat` shows what comes of it\n");
    let told = json(&expect(served.run(&["shrink", "--no-wait", "--json"]), 0));
    assert_eq!((&told["segments_before"], &told["segments"]), (&1.into(), &1.into()), "{told}");
}
