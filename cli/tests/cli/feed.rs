//! `scan`, `keys` and `watch`, as a shell uses them.

use crate::command::oneread;
use crate::served::{Served, expect, json, run, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// All keys, those that match, with values, as text and as JSON.
#[test]
fn scan_and_keys() {
    let served = Served::start(&["--anonymous"]);
    for n in 0..10 {
        expect(served.run(&["put", &format!("user:{n}"), &format!("value {n}")]), 0);
    }
    expect(served.run(&["put", "--hex", "00ff", "0a"]), 0);
    let set = |out: &str| out.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let all = stdout(&expect(served.run(&["keys"]), 0));
    assert_eq!((set(&all).len(), all.lines().count()), (11, 11));
    assert_eq!(all, stdout(&expect(served.run(&["scan"]), 0)));
    assert!(all.contains(r"\x00\xff"), "{all}");
    let some = stdout(&expect(served.run(&["keys", "user:[1-3]"]), 0));
    assert_eq!(set(&some), ["user:1", "user:2", "user:3"].map(str::to_owned).into());
    let some = stdout(&expect(served.run(&["scan", "--match", "*:2", "--values"]), 0));
    assert_eq!(some, "user:2\tvalue 2\n");
    let out = expect(served.run(&["scan", "--json", "--values"]), 0);
    let values: Vec<Value> = stdout(&out).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(values.len(), 11);
    assert!(values.iter().any(|it| it["key_hex"] == "00ff" && it["value"] == "\n"), "{values:?}");
    assert!(values.iter().any(|it| it["key"] == "user:5" && it["value"] == "value 5"), "{values:?}");
    assert_eq!(
        json(&expect(served.run(&["keys", "--json", "user:7"]), 0)),
        serde_json::json!({"key": "user:7"})
    );
    assert!(stderr(&expect(served.run(&["keys", "a["]), 1)).contains("without a ]"));
    let long = "x".repeat(300);
    assert!(stderr(&expect(served.run(&["keys", &long]), 1)).contains("a prefix of 300 bytes"));
    assert!(stderr(&expect(run(&["keys", "--at", "shm:/nowhere/s"]), 1)).contains("no server"));
}

/// Changes come as they are made; then from a number on; and first all keys.
#[test]
fn watch() {
    let served = Served::start(&["--anonymous"]);
    expect(served.run(&["put", "user:0", "early"]), 0);
    let start = |options: &[&str]| {
        let mut command = oneread();
        command.args(["watch", "--at", &served.at, "--json"]).args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()))
    };
    let (mut keys, mut lines) = start(&["--keys", "user:", "--values"]);
    assert_eq!(
        lines.next().unwrap(),
        serde_json::json!({"change": "key", "key": "user:0", "value": "early"})
    );
    assert_eq!(lines.next().unwrap(), serde_json::json!({"change": "joined"}));
    expect(served.run(&["put", "user:1", "a"]), 0);
    expect(served.run(&["put", "other", "a"]), 0);
    expect(served.run(&["put", "user:1", "b"]), 0);
    expect(served.run(&["del", "user:1"]), 0);
    let right = [
        serde_json::json!({"number": 1, "change": "came", "key": "user:1", "value": "a"}),
        serde_json::json!({"number": 3, "change": "replaced", "key": "user:1", "value": "b"}),
        serde_json::json!({"number": 4, "change": "left", "cause": "removed", "key": "user:1"}),
    ];
    right.iter().for_each(|right| assert_eq!(lines.next().unwrap(), *right));
    let (mut from, mut lines) = start(&["--from", "3"]);
    assert_eq!(lines.next().unwrap()["change"], "replaced");
    assert_eq!(lines.next().unwrap(), right[2]);
    for child in [&mut keys, &mut from] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let out = expect(served.run(&["watch", "--from", "99"]), 1);
    assert!(stderr(&out).contains("there is no change 99 yet"), "{out:?}");
    let none = Served::start(&["--anonymous", "--feed-max", "0"]);
    assert!(stderr(&expect(none.run(&["watch"]), 1)).contains("no feed of changes"));
}
