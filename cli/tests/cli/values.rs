//! Keys and values come out as they went in: one by one, from files, encrypted.

use crate::command::oneread;
use crate::served::{Served, expect, json, lines_of, region_in, run, run_with_input, stderr, stdout};
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// Values that fit no slot: from stdin to stdout, over a stop of the server, and what `stat` says of them.
#[test]
fn long_values() {
    let value: Vec<u8> = (0..700_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let sized = &["--capacity", "1000", "--value-max", "1MiB", "--heap", "64MiB", "--inline-max", "40"][..];
    for options in [sized, &["--max-memory", "1GiB", "--value-max", "1MiB"]] {
        let dir = tempfile::tempdir().unwrap();
        let region = dir.path().join("region").display().to_string();
        let options = [options, &["--region", &region]].concat();
        let mut served = Served::start_in(dir, &options);
        assert_eq!(served.ready["value_max"], 1 << 20);
        assert!(served.ready["heap_bytes"].as_u64().unwrap() >= 60 << 20, "{}", served.ready);
        let at = ["--at", &served.at];
        let out = run_with_input(&["put", "long", "-", at[0], at[1]], &value);
        assert_eq!(stdout(&expect(out, 0)), "inserted\n");
        assert!(expect(served.run(&["get", "-n", "long"]), 0).stdout == value);
        let out = run_with_input(&["put", "longer", "-", at[0], at[1]], &vec![0; (1 << 20) + 1]);
        assert!(stderr(&expect(out, 1)).contains("1048577 bytes long"));
        let heap = json(&expect(served.run(&["stat", "--json"]), 0))["heap"].clone();
        assert_eq!((&heap["values"], &heap["live_bytes"]), (&1.into(), &700_032.into()), "{heap}");
        assert_eq!(heap["heap_bytes"], served.ready["heap_bytes"]);
        let shown = stdout(&expect(served.run(&["stat"]), 0));
        assert!(shown.contains("values in it"), "{shown}");
        served.signal(rustix::process::Signal::TERM);
        assert_eq!(served.child.wait().unwrap().code(), Some(0));
        let dir = std::mem::replace(&mut served.dir, tempfile::tempdir().unwrap());
        let served = Served::start_in(dir, &options);
        assert!(expect(served.run(&["get", "-n", "long"]), 0).stdout == value);
    }
    // Another heap than the one that is there is not served in silence.
    let dir = tempfile::tempdir().unwrap();
    let (region, unused) = (region_in(dir.path()), dir.path().join("unused").display().to_string());
    let options = [sized, &["--region", &region]].concat();
    drop(Served::start(&options));
    let more: Vec<_> =
        options.iter().map(|&option| if option == "64MiB" { "128MiB" } else { option }).collect();
    let out = expect(run(&[&["serve", "--at", &unused], &more[..]].concat()), 1);
    assert!(stderr(&out).contains("it has heap ") && stderr(&out).contains("--fresh"), "{out:?}");
    let served =
        Served::start(&["--anonymous", "--capacity", "1000", "--key-max", "16", "--value-max", "78"]);
    assert_eq!(json(&expect(served.run(&["stat", "--json"]), 0))["heap"], Value::Null);
}

#[test]
fn add_append_or_clear() {
    let served = Served::start(&["--anonymous", "--capacity", "1000"]);
    let says = |arguments: &[&str], status| stdout(&expect(served.run(arguments), status));
    assert_eq!(says(&["add", "n", "--update"], 1), "missing\n");
    assert_eq!(says(&["add", "n"], 0), "1\n");
    assert_eq!(says(&["add", "n", "41"], 0), "42\n");
    assert_eq!(says(&["add", "n", "-2"], 0), "40\n");
    assert_eq!(says(&["add", "m", "-3", "--initial", "9"], 0), "6\n");
    assert_eq!(json(&expect(served.run(&["add", "n", "--json"]), 0))["value"], 41);
    assert_eq!(says(&["get", "--hex", "6e"], 0), "2900000000000000\n");
    let out = expect(served.run(&["add", "n", "-42"]), 1);
    assert!(stderr(&out).contains("the counter is 41, and -42"), "{out:?}");
    expect(served.run(&["add", "n", "--update", "--initial", "1"]), 2);

    assert_eq!(says(&["incr", "t", "--update"], 1), "missing\n");
    assert_eq!(says(&["put", "t", "41"], 0), "inserted\n");
    assert_eq!(says(&["incr", "t"], 0), "42\n");
    assert_eq!(says(&["incr", "t", "-50"], 0), "-8\n");
    assert_eq!(says(&["get", "t"], 0), "-8\n");
    assert_eq!(json(&expect(served.run(&["incr", "u", "--initial", "-9", "--json"]), 0))["value"], -8);
    let out = expect(served.run(&["incr", "n"]), 1);
    assert!(stderr(&out).contains("`oneread add` is for counters of 8 bytes"), "{out:?}");
    let out = expect(served.run(&["incr", "t", "9223372036854775807"]), 0);
    assert_eq!(stdout(&out), "9223372036854775799\n");
    let out = expect(served.run(&["incr", "t", "9"]), 1);
    assert!(stderr(&out).contains("the number is 9223372036854775799, and +9"), "{out:?}");
    let out = expect(served.run(&["touch", "t", "--ttl", "10s"]), 1);
    assert!(stderr(&out).contains("--life"), "{out:?}");

    assert_eq!(says(&["append", "log", "ab"], 0), "inserted\n");
    assert_eq!(says(&["append", "--max", "4", "log", "cd"], 0), "updated\n");
    let out = expect(served.run(&["append", "--max", "4", "log", "e"]), 1);
    assert!(stderr(&out).contains("would be 5 bytes long, and the bound"), "{out:?}");
    assert_eq!(
        stdout(&expect(run_with_input(&["append", "log", "-", "--at", &served.at], b"ef"), 0)),
        "updated\n"
    );
    assert_eq!(says(&["get", "log"], 0), "abcdef\n");
    let out = expect(served.run(&["add", "log"]), 1);
    assert!(stderr(&out).contains("6 bytes long, and a counter has 8"), "{out:?}");

    assert_eq!(says(&["and-not", "seen", "01"], 1), "missing\n");
    assert_eq!(says(&["or", "seen", "0180"], 0), "inserted\n");
    assert_eq!(says(&["or", "seen", "01"], 0), "unchanged\n");
    assert_eq!(json(&expect(served.run(&["and-not", "--json", "seen", "0080"]), 0))["outcome"], "updated");
    assert_eq!(says(&["get", "--hex", "7365656e"], 0), "0100\n");

    let out = expect(served.run(&["clear"]), 1);
    assert!(stderr(&out).contains("say --yes"), "{out:?}");
    assert_eq!(says(&["clear", "--yes"], 0), "removed 6\n");
    assert_eq!(json(&expect(served.run(&["clear", "--yes", "--json"]), 0))["removed"], 0);
}

#[test]
fn put_get_del() {
    let served = Served::start(&["--anonymous", "--capacity", "1000", "--key-max", "86"]);
    assert_eq!(stdout(&expect(served.run(&["put", "k", "v"]), 0)), "inserted\n");
    assert_eq!(stdout(&expect(served.run(&["put", "k", "w"]), 0)), "updated\n");
    assert_eq!(stdout(&expect(served.run(&["put", "--insert", "k", "x"]), 1)), "exists\n");
    assert_eq!(stdout(&expect(served.run(&["put", "--update", "other", "x"]), 1)), "missing\n");
    assert_eq!(stdout(&expect(served.run(&["get", "k"]), 0)), "w\n");
    assert_eq!(stdout(&expect(served.run(&["get", "-n", "k"]), 0)), "w");

    // One of two keys is absent: the other is printed, and the message names the absent one.
    let out = expect(served.run(&["get", "k", "nope"]), 1);
    assert_eq!(stdout(&out), "w\n");
    assert!(stderr(&out).contains("no key \"nope\""), "{out:?}");
    let out = expect(served.run(&["get", "--json", "nope"]), 1);
    assert_eq!(json(&out), serde_json::json!({ "key": "nope", "found": false }));

    expect(served.run(&["put", "--hex", "00ff", "fe00"]), 0);
    assert_eq!(stdout(&expect(served.run(&["get", "--hex", "00ff"]), 0)), "fe00\n");
    for (expected, value, outcome, status) in [
        ("x", "y", "differs", 1),
        ("w", "w", "updated", 0),
        ("w", "z", "updated", 0),
        ("w", "w", "differs", 1),
    ] {
        let put = ["put", "--if-value", expected, "k", value];
        assert_eq!(stdout(&expect(served.run(&put), status)), format!("{outcome}\n"));
    }
    assert_eq!(stdout(&expect(served.run(&["put", "--if-value", "", "other", "x"]), 1)), "missing\n");
    let put = ["put", "--json", "--hex", "--if-value", "7a", "6b", "77"];
    assert_eq!(json(&expect(served.run(&put), 0))["outcome"], "updated");
    expect(served.run(&["put", "--if-value", "w", "--insert", "k", "x"]), 2);

    // A key that the table cannot hold fails no other one.
    let long = "l".repeat(87);
    let out = expect(served.run(&["get", &long, "k", ""]), 1);
    assert_eq!(stdout(&out), "w\n");
    assert!(stderr(&out).contains("87 bytes long") && stderr(&out).contains("0 bytes long"), "{out:?}");
    let out = expect(served.run(&["del", "--json", &long, "nope"]), 1);
    assert_eq!(json(&out), serde_json::json!({ "removed": 0, "absent": 1, "refused": 1 }));
    assert!(stderr(&out).contains("87 bytes long"), "{out:?}");

    let out = run_with_input(&["put", "piped", "-", "--at", &served.at], b"two\nlines\n");
    expect(out, 0);
    assert_eq!(stdout(&expect(served.run(&["get", "-n", "piped"]), 0)), "two\nlines\n");

    let out = expect(served.run(&["del", "k", "nope"]), 1);
    assert_eq!(stdout(&out), "removed 1\n");
    assert!(stderr(&out).contains("no key \"nope\""));
    let stat = json(&expect(served.run(&["stat", "--json"]), 0));
    assert_eq!((&stat["server"]["keys"], &stat["server"]["removes"]), (&2.into(), &1.into()), "{stat}");
    assert!(stdout(&expect(served.run(&["stat"]), 0)).contains("windowed:8"));
    // What is too long is said with the option that allows it.
    let key = stderr(&expect(served.run(&["put", &"k".repeat(87), "v"]), 1));
    assert!(key.contains("87 bytes long") && key.contains("`serve --key-max` of at least 87"), "{key}");
    let key = stderr(&expect(served.run(&["get", &"k".repeat(256)]), 1));
    assert!(key.contains("no table takes more than 255"), "{key}");
    let long = served.file("long", &format!("k\t{}\nshort\tv\n", "v".repeat((1 << 20) + 1)));
    let value = stderr(&expect(served.run(&["load", &long]), 1));
    let mend = "1048577 bytes long, this table takes 0 to 1048576; longer ones need a new table, with a `serve --value-max` of at least 1048577";
    assert!(value.contains("line 1") && value.contains(mend), "{value}");
    assert_eq!(stdout(&expect(served.run(&["get", "-n", "short"]), 0)), "v");
}

/// A dump loads again. Bad lines are named, and the others load.
#[test]
fn load_and_dump() {
    let served = Served::start(&["--anonymous", "--capacity", "1000", "--key-max", "8"]);
    let text = "a\t1\nb\ttab\\there\n\nno tab here\nkey too long\tx\nc\t\\xff\\x00\na\t2\n";
    let out = expect(served.run(&["load", "--json", &served.file("in.tsv", text)]), 1);
    let complaints = stderr(&out);
    assert!(complaints.contains("line 4: no tab"), "{complaints}");
    assert!(complaints.contains("line 5: the key is 12 bytes long"), "{complaints}");
    let sum = json(&out);
    let n = |name: &str| sum[name].as_u64().unwrap();
    assert_eq!((n("lines"), n("inserted"), n("updated"), n("failed")), (6, 3, 1, 2), "{sum}");

    let [by_format, by_flag] = [&["dump", "--format", "jsonl"][..], &["dump", "--json"]];
    assert_eq!(stdout(&expect(served.run(by_format), 0)), stdout(&expect(served.run(by_flag), 0)));
    for format in ["tsv", "csv", "jsonl"] {
        let dumped = expect(served.run(&["dump", "--format", format]), 0);
        let other = Served::start(&["--anonymous", "--capacity", "1000", "--key-max", "8"]);
        let loaded =
            expect(run_with_input(&["load", "-", "--format", format, "--at", &other.at], &dumped.stdout), 0);
        assert!(stdout(&loaded).contains("3 inserted, 0 updated, 0 failed"), "{loaded:?}");
        assert_eq!(stdout(&expect(other.run(&["get", "-n", "a"]), 0)), "2");
        assert_eq!(stdout(&expect(other.run(&["get", "-n", "b"]), 0)), "tab\there");
        assert_eq!(stdout(&expect(other.run(&["get", "--hex", "63"]), 0)), "ff00\n");
    }

    // What `get --json` prints loads, too, but for keys that it has not found.
    let found = expect(served.run(&["get", "--json", "a", "b", "c", "nope"]), 1);
    let other = Served::start(&["--anonymous", "--capacity", "1000"]);
    let load = ["load", "--format", "jsonl", "-", "--at", &other.at];
    let out = expect(run_with_input(&load, &found.stdout), 1);
    assert_eq!(stderr(&out), "oneread: line 4: `get` did not find this key, so there is no value to put\n");
    let [one, other] = [&served, &other].map(|served| {
        let dumped = stdout(&expect(served.run(&["dump"]), 0));
        dumped.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(one, other);

    let modes = served.file("modes.tsv", "a\t3\nnew\t4\n");
    let sum = json(&expect(served.run(&["load", "--json", "--insert", &modes]), 0));
    assert_eq!((&sum["inserted"], &sum["updated"], &sum["skipped"]), (&1.into(), &0.into(), &1.into()));
    expect(served.run(&["del", "new"]), 0);
    let out = expect(served.run(&["load", "--update", &modes]), 0);
    assert!(stdout(&out).ends_with("0 inserted, 1 updated, 1 skipped, 0 failed\n"), "{out:?}");
    let one = expect(served.run(&["load", &served.file("one", "a\t3\n")]), 0);
    assert!(stdout(&one).starts_with("1 line in"), "{one:?}");

    // Errors beyond a limit are counted and not listed.
    let bad = "no tab\n".repeat(30);
    let out = expect(served.run(&["load", &served.file("bad", &bad)]), 1);
    let told = stderr(&out);
    assert_eq!(told.lines().count(), 22, "{out:?}");
    assert!(told.contains("30 bad lines in all:\n  30, first line 1: no tab"), "{told}");
    // Of different kinds, each is counted, whatever its numbers are.
    let long = |n: usize| format!("{}\tv\n", "k".repeat(256 + n));
    let kinds = [bad, (0..10).map(long).collect(), "k\\q\tv\n".repeat(5)].concat();
    let told = stderr(&expect(served.run(&["load", &served.file("kinds", &kinds)]), 1)).to_owned();
    let (_, kinds) = told.split_once("45 bad lines in all:\n").unwrap_or_else(|| panic!("{told}"));
    let firsts = [
        "  30, first line 1: no tab",
        "  10, first line 31: the key is 256 bytes",
        "  5, first line 41: a backslash",
    ];
    let lines: Vec<_> = kinds.lines().collect();
    assert!(
        lines.len() == 3 && lines.iter().zip(firsts).all(|(line, first)| line.starts_with(first)),
        "{told}"
    );

    // A file that is of another format than its name says: nothing is put. Who names the format gets the few.
    let csv = "a,1\n".repeat(950) + &"few\tt\n".repeat(500);
    let file = served.file("csv", &csv);
    let told = stderr(&expect(served.run(&["load", &file]), 1)).to_owned();
    assert!(
        told.contains("950 of the first 1,000 lines are bad, and nothing was put; --format names"),
        "{told}"
    );
    expect(served.run(&["get", "few"]), 1);
    expect(served.run(&["get", "few"]), 1);
    expect(served.run(&["load", "--format", "tsv", &file]), 1);
    expect(served.run(&["get", "few"]), 0);

    // Bad lines behind good ones say nothing of the format.
    let late: String = (0..1_100).map(|n| format!("late{n}\tv\n")).collect::<String>() + &"a,1\n".repeat(950);
    let out = expect(served.run(&["load", &served.file("late", &(late + &"late0\tv\n".repeat(100)))]), 1);
    assert!(stdout(&out).ends_with("1,100 inserted, 100 updated, 950 failed\n"), "{out:?}");

    // What is compressed is named with the format that its name says.
    let zipped = served.file("x.csv.gz", "");
    std::fs::write(&zipped, [0x1f, 0x8b, 8, 0]).unwrap();
    let told = stderr(&expect(served.run(&["load", &zipped]), 1)).to_owned();
    assert!(told.contains("oneread load --format csv -"), "{told}");
    let told = run_with_input(&["load", "-"], &[0x1f, 0x8b, 8, 0]);
    assert!(stderr(&expect(told, 1)).contains("put zcat before this in the pipe"));

    // A quote that nothing closes takes other lines with it, and is told with where it is.
    for (csv, wrong) in [
        (
            "k1,v\nk2,\"open\nk3,v\n",
            "line 2: a quoted field does not end; is a quote missing, or one too many, in lines 2 to 3?",
        ),
        ("k1,\"one\" more\n", "line 1: something follows the quote that ends a field"),
        (
            "\n\nk1,\"a\nb\"\nk2,\"x\ny\"z\n",
            "line 5: something follows the quote that ends a field; is a quote missing, or one too many, in lines 5 to 6?",
        ),
    ] {
        let out = expect(served.run(&["load", &served.file("quotes.csv", csv)]), 1);
        assert!(stderr(&out).contains(wrong), "{out:?}");
    }
    let fine = "q1,\"a \"\"b\"\"\"\r\nq2,5\" pipe\nq3,\"\"\n";
    expect(served.run(&["load", &served.file("fine.csv", fine)]), 0);
    assert_eq!(stdout(&expect(served.run(&["get", "q1"]), 0)), "a \"b\"\n");
}

/// When the table is full, each refused line is named, and the table keeps what it has.
#[test]
fn load_until_full() {
    let served = Served::start(&["--anonymous", "--slots", "64", "--grace", "100us"]);
    let text: String = (0..100).map(|n| format!("k{n}\tv{n}\n")).collect();
    let out = expect(served.run(&["load", "--json", &served.file("in.tsv", &text)]), 1);
    let sum = json(&out);
    let (inserted, failed) = (sum["inserted"].as_u64().unwrap(), sum["failed"].as_u64().unwrap());
    assert!(inserted > 55 && inserted + failed == 100, "{sum}");
    assert!(stderr(&out).contains("the table is full"), "{out:?}");
    assert_eq!(stdout(&expect(served.run(&["dump"]), 0)).lines().count() as u64, inserted);
}

/// At Ctrl-C, `load` says what it has loaded. So it does when the server is gone, beside the lines of which it
/// knows nothing.
#[test]
fn load_says_what_it_has_loaded() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::time::{Duration, Instant};
    let served = Served::start(&["--anonymous", "--slots", "65536"]);
    let rounds = [(Signal::INT, false), (Signal::TERM, false), (Signal::INT, true)];
    for (round, (signal, server_too)) in (1..).zip(rounds) {
        let mut load = oneread();
        load.args(["load", "--json", "-", "--at", &served.at, "--deadline", "60s"]);
        let mut load =
            load.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = load.stdin.take().unwrap();
        // A batch, and more lines that are read and not yet sent.
        input.write_all(lines_of(0..1_100).as_bytes()).unwrap();
        input.flush().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let has_loaded = || {
            let server = &json(&expect(served.run(&["stat", "--json"]), 0))["server"];
            server["inserts"].as_u64().unwrap() + server["updates"].as_u64().unwrap() == 1_024 * round
        };
        while !has_loaded() {
            assert!(Instant::now() < until, "nothing is loaded");
        }
        let ends = if server_too {
            served.signal(Signal::KILL);
            drop(input);
            None
        } else {
            kill_process(Pid::from_child(&load), signal).unwrap();
            Some(input)
        };
        let out = load.wait_with_output().unwrap();
        drop(ends);
        let sum: Value = serde_json::from_str(&stdout(&out)).unwrap_or_else(|e| panic!("{out:?}: {e}"));
        assert_eq!((&sum["lines"], &sum["failed"]), (&1_024.into(), &0.into()), "{out:?}");
        if server_too {
            assert!(stderr(&out).contains("loading lines 1025 to 1100"), "{out:?}");
            assert_eq!(out.status.code(), Some(1), "{out:?}");
        } else {
            assert_eq!(out.status.code(), Some(128 + signal.as_raw()), "{out:?}");
        }
    }
}

/// A dump of a table with a damaged slot has the other keys. It says that it left something out, and so does its
/// exit status.
#[test]
fn a_dump_tells_what_it_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let mut served = Served::start(&["--region", &region, "--slots", "64"]);
    for (key, value) in [("one", "value of one"), ("two", "value of two"), ("three", "value of three")] {
        expect(served.run(&["put", key, value]), 0);
    }
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    expect(run(&["dump", "--region", &region]), 0);
    let mut bytes = std::fs::read(&region).unwrap();
    let at = bytes.windows(12).position(|bytes| bytes == b"value of two").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&region, &bytes).unwrap();
    let out = expect(run(&["dump", "--region", &region]), 1);
    let shown = stdout(&out);
    assert!(shown.contains("one\t") && shown.contains("three\t") && !shown.contains("two\t"), "{shown}");
    assert!(stderr(&out).contains("1 slot being written or damaged"), "{out:?}");
}

/// A file with a secret key, for its owner only.
fn key_file(served: &Served, name: &str, digit: char) -> String {
    let path = served.file(name, &digit.to_string().repeat(64));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// Values are encrypted and decrypted with a key file, and the table holds ciphertext. Another key file
/// or namespace decrypts nothing.
#[test]
fn values_are_encrypted() {
    let served = Served::start(&["--anonymous", "--capacity", "1000", "--value-max", "78"]);
    let key = key_file(&served, "key", 'a');
    let with =
        |arguments: &[&str]| served.run(&[arguments, &["--key-file", &key, "--namespace", "n"]].concat());
    let outcome = |arguments: &[&str], status| stdout(&expect(with(arguments), status));
    assert_eq!(outcome(&["put", "greeting", "hello"], 0), "inserted\n");
    assert_eq!(outcome(&["get", "greeting"], 0), "hello\n");
    assert_eq!(outcome(&["put", "--if-value", "other", "greeting", "no"], 1), "differs\n");
    assert_eq!(outcome(&["put", "--if-value", "hello", "greeting", "hi"], 0), "updated\n");
    assert_eq!(outcome(&["put", "--insert", "greeting", "no"], 1), "exists\n");
    assert_eq!(outcome(&["get", "-n", "greeting"], 0), "hi");
    let stored = stdout(&expect(served.run(&["get", "--json", "greeting"]), 0));
    assert!(stored.contains("value_hex\":\"01") && !stored.contains("hi\""), "{stored}");
    expect(served.run(&["put", "plain", "text"]), 0);
    let out = expect(with(&["get", "plain"]), 1);
    assert!(
        stderr(&out).contains("key \"plain\": the value was put without encryption, or by a later"),
        "{out:?}"
    );
    expect(served.run(&["del", "plain"]), 0);
    let other = key_file(&served, "other", 'b');
    for wrong in [vec!["--key-file", &other, "--namespace", "n"], vec!["--key-file", &key]] {
        let out = expect(served.run(&[&["get", "greeting", "absent"], &wrong[..]].concat()), 1);
        assert!(stderr(&out).contains("key \"greeting\": the value does not decrypt: "), "{out:?}");
        assert!(stderr(&out).contains("no key \"absent\"") && stdout(&out).is_empty(), "{out:?}");
        let swap = [&["put", "--if-value", "hi", "greeting", "no"], &wrong[..]].concat();
        assert!(stderr(&expect(served.run(&swap), 1)).contains("error: the value does not decrypt: "));
    }
    let long = "x".repeat(38);
    let out = expect(with(&["put", "long", &long]), 1);
    assert!(
        stderr(&out).contains("38 bytes long, 79 when encrypted, and this table takes 0 to 78; "),
        "{out:?}"
    );
    assert_eq!(outcome(&["put", "long", &long[1..]], 0), "inserted\n");
    expect(served.run(&["del", "long"]), 0);

    // As ciphertext, and decrypted: both dumps load into another table.
    expect(with(&["load", &served.file("in.tsv", "a\t1\nb\ttab\\there\n")]), 0);
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let plain = ["a\t1", "b\ttab\\there", "greeting\thi"].map(str::to_owned).into();
    assert_eq!(sorted(&outcome(&["dump"], 0)), plain);
    let raw = expect(served.run(&["dump"]), 0);
    assert!(!raw.stdout.windows(3).any(|part| part == b"tab"), "plain bytes in {raw:?}");
    let other = Served::start(&["--anonymous", "--capacity", "1000"]);
    expect(run_with_input(&["load", "-", "--at", &other.at], &raw.stdout), 0);
    let with_key = ["--key-file", &key, "--namespace", "n", "--at", &other.at];
    assert_eq!(sorted(&stdout(&expect(run(&[&["dump"], &with_key[..]].concat()), 0))), plain);
    expect(run(&["put", "plain", "text", "--at", &other.at]), 0);
    let out = expect(run(&[&["dump"], &with_key[..]].concat()), 1);
    assert_eq!(sorted(&stdout(&out)), plain);
    assert!(stderr(&out).contains("key \"plain\" is left out: the value was put without encryption, or by a later oneread: it begins with byte 116, "), "{out:?}");
    let many: String = (0..30).map(|n| format!("plain {n}\ttext\n")).collect();
    expect(run_with_input(&["load", "-", "--at", &other.at], many.as_bytes()), 0);
    let out = expect(run(&[&["dump", "--json"], &with_key[..]].concat()), 1);
    assert_eq!((stdout(&out).lines().count(), stderr(&out).lines().count()), (3, 21));
    assert!(stderr(&out).ends_with("and 11 more keys whose values do not decrypt\n"), "{out:?}");
}

/// A key file that others may read or change, or that holds no key, is refused before anything else
/// happens. No message shows what it holds.
#[test]
fn key_files_are_checked() {
    let served = Served::start(&["--anonymous", "--capacity", "10"]);
    let path = key_file(&served, "key", 'c');
    let permit = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    for (mode, said) in [(0o644, "may be read by other users (mode 644); chmod go= "), (0o620, "chmod go-w ")]
    {
        permit(mode);
        for command in [vec!["put", "k", "v"], vec!["get", "k"], vec!["dump"], vec!["load", "/dev/null"]] {
            let out = expect(served.run(&[&command[..], &["--key-file", &path]].concat()), 1);
            assert!(stderr(&out).contains(said), "{out:?}");
        }
    }
    permit(0o600);
    std::fs::write(&path, "my password").unwrap();
    let out = expect(served.run(&["put", "k", "v", "--key-file", &path]), 1);
    assert!(
        stderr(&out).contains("holds text of 11 characters; ") && !stderr(&out).contains("password"),
        "{out:?}"
    );
    let missing = format!("{path}.none");
    let out = expect(served.run(&["get", "k", "--key-file", &missing]), 1);
    assert!(stderr(&out).contains("(umask 077; openssl rand -hex 32 > "), "{out:?}");
    let out = expect(served.run(&["get", "k"]), 1);
    assert!(stderr(&out).contains("no key \"k\""), "nothing was put: {out:?}");
    expect(served.run(&["get", "k", "--namespace", "n"]), 2);
}

/// Keys in hex are the same keys to every command. What is no hex is named.
#[test]
fn keys_are_given_in_hex() {
    let served = Served::start(&["--anonymous", "--capacity", "1000"]);
    expect(served.run(&["put", "kk", "v"]), 0);
    expect(served.run(&["put", "--hex", "00ff", "fe"]), 0);
    let lines = stdout(&expect(served.run(&["get", "--json", "--hex", "6b6b", "00ff"]), 0));
    let found: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found[0], serde_json::json!({ "key": "kk", "found": true, "value": "v" }));
    assert_eq!(found[1], serde_json::json!({ "key_hex": "00ff", "found": true, "value_hex": "fe" }));
    let looked = json(&expect(served.run(&["inspect", "--json", "--quick", "--hex", "--key", "6b6b"]), 0));
    assert_eq!((&looked["key"]["key"], &looked["key"]["reads"]), (&"kk".into(), &1.into()), "{looked}");
    assert_eq!(looked["occupancy"], Value::Null, "the table was not read");
    assert!(json(&expect(served.run(&["inspect", "--json"]), 0))["occupancy"].is_object());
    let out = expect(served.run(&["inspect", "--key", &"k".repeat(256)]), 1);
    assert!(stderr(&out).contains("256 bytes long, this table takes 1 to 255"), "{out:?}");
    // One that does not fit its slot.
    let long = "k".repeat(255);
    expect(served.run(&["put", &long, "v"]), 0);
    assert_eq!(stdout(&expect(served.run(&["get", "-n", &long]), 0)), "v");
    let looked = json(&expect(served.run(&["inspect", "--json", "--quick", "--key", &long]), 0));
    assert_eq!(looked["key"]["key"], long.as_str(), "{looked}");
    expect(served.run(&["del", &long]), 0);
    expect(served.run(&["inspect", "--hex"]), 2);
    for command in [&["get", "--hex", "0"][..], &["del", "--hex", "0g"], &["put", "--hex", "6b6b", "1"]] {
        assert!(stderr(&expect(served.run(command), 1)).contains("is no hex"), "{command:?}");
    }
    let out = json(&expect(served.run(&["del", "--json", "--hex", "6b6b", "00ff"]), 0));
    assert_eq!(out, serde_json::json!({ "removed": 2, "absent": 0, "refused": 0 }));
    expect(served.run(&["get", "kk"]), 1);
}

/// The format is that of the file's name, unless --format says another. A first line that names the columns is
/// left out, and lines are counted with it.
#[test]
fn files_are_loaded_by_their_names() {
    let served = Served::start(&["--anonymous", "--capacity", "1000"]);
    let load = |arguments: &[&str], status| expect(served.run(&[&["load"], arguments].concat()), status);
    let get = |key: &str| stdout(&expect(served.run(&["get", "-n", key]), 0));
    load(&[&served.file("a.csv", "csv,\"a,b\"\n")], 0);
    load(&[&served.file("a.jsonl", "{\"key\": \"jsonl\", \"value\": \"c\"}\n")], 0);
    load(&[&served.file("a.txt", "tsv\td\n")], 0);
    load(&["--format", "tsv", &served.file("b.csv", "other\te,f\n")], 0);
    assert_eq!(["csv", "jsonl", "tsv", "other"].map(get), ["a,b", "c", "d", "e,f"]);
    for (name, text) in [("c.tsv", "name\tprice\nx\t1\nbad\n"), ("c.csv", "name,price\ny,2\nbad\n")] {
        let out = load(&["--header", "--json", &served.file(name, text)], 1);
        assert!(stderr(&out).contains("line 3: "), "{name}: {out:?}");
        let sum = json(&out);
        let counts = ["lines", "inserted", "failed"].map(|count| sum[count].as_u64().unwrap());
        assert_eq!(counts, [2, 1, 1], "{name}: {sum}");
    }
    expect(served.run(&["get", "name"]), 1);
    assert_eq!(["x", "y"].map(get), ["1", "2"]);
    let folder = served.dir.path().display().to_string();
    assert!(stderr(&load(&[&folder], 1)).contains("is a folder; name a file"));
    let none = format!("{folder}/none");
    assert!(stderr(&load(&[&none], 1)).contains(&format!("opening {none}")));
}

/// What is no table of keys and values is named before anything of it is put, or with it.
#[test]
fn files_that_are_no_lines_are_named() {
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    let path = served.file("words.tsv.gz", "");
    std::fs::write(&path, b"\x1f\x8b\x08\x00 and so on\n").unwrap();
    let refused = stderr(&expect(served.run(&["load", &path]), 1));
    assert!(refused.contains(&format!("is compressed; zcat {path} | oneread load -")), "{refused}");
    let path = served.file("names.csv", "Key,Value\na,1\n");
    let loaded = expect(served.run(&["load", &path]), 0);
    assert!(stderr(&loaded).contains("--header skips it"), "{loaded:?}");
    let skipped = expect(served.run(&["load", "--header", &path]), 0);
    assert_eq!(stderr(&skipped), "");
}
