//! `stat` counts under the right names, once or again and again.

use crate::command::oneread;
use crate::served::{
    Served, begin_on_a_terminal, begin_on_a_terminal_with, expect, json, region_in, stdout, without_escapes,
};
use rustix::termios::LocalModes;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// `stat --watch` goes on until somebody ends it.
#[test]
fn stat_is_watched() {
    let served = Served::start(&["--anonymous", "--max-memory", "16MiB"]);
    let mut command = oneread();
    command.args(["stat", "--json", "--watch", "20ms", "--at", &served.at]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!(
        (&first["server"]["keys"], &first["watch"]["per_second"]["inserts"]),
        (&0.into(), &Value::Null)
    );
    served.load(0..1_000);
    let mut most = 0.0f64;
    assert!((0..10_000).any(|_| {
        let about = next();
        most = most.max(about["watch"]["per_second"]["inserts"].as_f64().unwrap());
        about["server"]["keys"] == 1_000
    }));
    assert!(most > 0.0);
    watch.kill().unwrap();
    watch.wait().unwrap();
    // Without JSON, a line each time.
    let mut command = oneread();
    command.args(["stat", "--watch", "20ms", "--at", &served.at]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for rate in ["changes - (", "changes 0"] {
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains("1,000 keys, ") && line.contains(rate), "{line}");
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// On a terminal, `stat --watch` writes over what it wrote before, follows the terminal's size, and gives it
/// back as it was.
#[test]
fn a_watched_terminal_is_given_back() {
    use std::io::Read;
    let served = Served::start(&["--anonymous", "--max-memory", "16MiB"]);
    let (mut child, mut terminal) =
        begin_on_a_terminal(&["stat", "--watch", "20ms", "--deadline", "60s", "--at", &served.at]);
    let mut shown = String::new();
    // Whole frames of so many columns and lines, until one has, or has not, what is wide.
    let mut frame = |terminal: &mut std::fs::File, (width, height): (usize, usize), is_wide: bool| loop {
        let mut bytes = [0; 4096];
        let read = terminal.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {shown}"));
        shown += std::str::from_utf8(&bytes[..read]).unwrap();
        let whole = shown.split("\x1b[H").skip(1).filter_map(|frame| Some(frame.split_once("\x1b[J")?.0));
        let found = whole.map(without_escapes).find(|frame| frame.contains("since watching") == is_wide);
        let Some(found) = found else { continue };
        let lines: Vec<_> = found.lines().map(|line| line.trim_end_matches('\r')).collect();
        assert!(lines.len() <= height, "{found}");
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{found}");
        for part in ["keys", "GETs", "q ends this."] {
            assert!(found.contains(part), "{found}");
        }
        return shown.clone();
    };
    let begun = frame(&mut terminal, (80, 24), true);
    assert!(begun.starts_with("\x1b[?1049h\x1b[?25l\x1b[2J"), "{begun:?}");
    assert_eq!(begun.matches("\x1b[2J").count(), 1, "it blinks");
    let small = rustix::termios::Winsize { ws_row: 12, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, small).unwrap();
    frame(&mut terminal, (60, 12), false);
    terminal.write_all(b"\x03").unwrap();
    let mut rest = Vec::new();
    let _ = terminal.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.ends_with("\x1b[?25h\x1b[?1049l"), "{rest:?}");
    assert!(!child.wait().unwrap().success());
}

/// The key `q` ends what stays on the screen, and the terminal is as it was. On a dumb terminal nothing stays: no escape
/// sequence is written.
#[test]
fn a_key_ends_what_is_watched() {
    use std::io::Read;
    let served = Served::start(&["--anonymous", "--max-memory", "16MiB"]);
    for command in [&["top", "--every", "1h"][..], &["stat", "--watch", "1h"]] {
        let (mut child, mut terminal) =
            begin_on_a_terminal(&[command, &["--deadline", "60s", "--at", &served.at]].concat());
        let mut shown = String::new();
        while !shown.contains("\x1b[J") {
            let mut bytes = [0; 4096];
            let read = terminal.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {shown}"));
            shown += &String::from_utf8_lossy(&bytes[..read]);
        }
        // Other keys do nothing.
        terminal.write_all(b"xq").unwrap();
        let mut rest = Vec::new();
        let _ = terminal.read_to_end(&mut rest);
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.ends_with("\x1b[?25h\x1b[?1049l") && !rest.contains('q'), "{rest:?}");
        assert!(child.wait().unwrap().success(), "{command:?}");
        let modes = rustix::termios::tcgetattr(&terminal).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "{modes:?}");
    }
    let words = ["top", "--every", "10ms", "--deadline", "60s", "--at", &served.at];
    let (mut child, mut terminal) = begin_on_a_terminal_with(&words, &[("TERM", "dumb")]);
    let mut shown = Vec::new();
    let _ = terminal.read_to_end(&mut shown);
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("keys") && !shown.contains('\x1b'), "{shown:?}");
    assert!(child.wait().unwrap().success());
}

/// What `stat` counts, it counts under the right name.
#[test]
fn stat_counts_each_change() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let lengths = ["--key-max", "16", "--value-max", "78"];
    let flags = [&["--region", &*region, "--slots", "1000", "--grace", "700us"][..], &lengths].concat();
    let mut served = Served::start_in(dir, &flags);
    served.load(0..6);
    served.load(0..4);
    expect(served.run(&["del", "key0"]), 0);
    let stat = served.stat();
    let server = &stat["server"];
    let counts = ["keys", "inserts", "updates", "removes", "incarnation", "clients", "slots"];
    assert_eq!(counts.map(|name| server[name].as_u64().unwrap()), [5, 6, 4, 1, 1, 1, 1000], "{stat}");
    assert_eq!((&server["pid"], &server["load"]), (&served.child.id().into(), &0.005.into()), "{stat}");
    assert!(stat["region"]["phase"] == "serving" && stat["address"] == *served.at, "{stat}");
    let looked = json(&expect(served.run(&["inspect", "--json"]), 0));
    let facts = [
        ("main_slots", 1000),
        ("slots", 1000),
        ("slot_bytes", 128),
        ("window_slots", 8),
        ("window_bytes", 1024),
        ("key_max", 16),
        ("value_max", 78),
        ("grace_us", 700),
        ("segments_max", 0),
        ("heap_bytes", 0),
    ];
    for (name, expected) in facts {
        assert_eq!(
            (&stat["geometry"][name], &looked["superblock"][name]),
            (&expected.into(), &expected.into())
        );
    }
    for name in ["main_slots", "slots", "slot_bytes", "key_max", "value_max", "grace_us", "region_bytes"] {
        assert_eq!(stat["geometry"][name], served.ready[name], "{name}");
    }
    let shown = stdout(&expect(served.run(&["stat"]), 0));
    for (name, expected) in [("inserts since", "6"), ("updates", "4"), ("removes", "1"), ("load", "0.5 %")] {
        let line = shown.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{shown}"));
        assert!(
            line.split_whitespace().rev().nth(1) == expected.split(' ').next() || line.contains(expected)
        );
    }
    let dir = served.kill();
    let served = Served::start_in(dir, &flags);
    assert_eq!(served.stat()["server"]["incarnation"], 2);
}
