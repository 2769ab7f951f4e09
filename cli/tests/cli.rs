//! Tests of the `oneread` command from outside, as a shell or a script uses it.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

fn oneread() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oneread"));
    command.env_remove("ONEREAD_AT").env_remove("RUST_LOG");
    command
}

#[track_caller]
fn run(arguments: &[&str]) -> Output {
    oneread().args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = oneread()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[track_caller]
fn expect(output: Output, status: i32) -> Output {
    assert_eq!(output.status.code(), Some(status), "stdout {}\nstderr {}", stdout(&output), stderr(&output));
    output
}

/// A server in a folder of its own.
struct Served {
    child: Child,
    ready: Value,
    at: String,
    dir: TempDir,
}

impl Served {
    fn start(more: &[&str]) -> Served {
        Served::start_in(tempfile::tempdir().unwrap(), more)
    }

    fn start_in(dir: TempDir, more: &[&str]) -> Served {
        let at = format!("shm:{}", dir.path().join("sock").display());
        let mut child = oneread()
            .args(["serve", "--json", "--at", &at])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not ready: {line:?}: {e}"));
        Served { child, ready, at, dir }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--at", &self.at]);
        run(&all)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn region_in(dir: &Path) -> String {
    dir.join("table.region").display().to_string()
}

/// A short run of the demo.
#[test]
fn demo_reads_a_stopped_server() {
    let out = json(&expect(run(&["demo", "--json", "--rounds", "2", "--seconds", "0.3"]), 0));
    let n = |name: &str| out[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {out}"));
    assert!(n("keys") > 30_000.0);
    assert_eq!(n("found"), 2.0 * n("keys"));
    assert_eq!((n("missed"), n("wrong"), n("server_cpu_ms")), (0.0, 0.0, 0.0), "{out}");
    assert!((1.0..1.1).contains(&n("reads_per_get")), "{out}");
    assert!(n("bytes_per_get") >= 1024.0 && n("gets_per_s") > 0.0 && n("torn_retries") >= 0.0);
    assert!(n("p50_ns") > 0.0 && n("p50_ns") <= n("p99_ns") && n("p99_ns") <= n("p999_ns"));
    assert!(out["put_while_stopped"].as_str().unwrap().starts_with("no answer within "));
    assert!(n("updates") > 0.0 && n("gets_while_updating") > 0.0);
}

#[test]
fn put_get_del() {
    let served = Served::start(&["--anonymous", "--capacity", "1000"]);
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
    let out = run_with_input(&["put", "piped", "-", "--at", &served.at], b"two\nlines\n");
    expect(out, 0);
    assert_eq!(stdout(&expect(served.run(&["get", "-n", "piped"]), 0)), "two\nlines\n");

    let out = expect(served.run(&["del", "k", "nope"]), 1);
    assert_eq!(stdout(&out), "removed 1\n");
    assert!(stderr(&out).contains("no key \"nope\""));
    let stat = json(&expect(served.run(&["stat", "--json"]), 0));
    assert_eq!((&stat["server"]["keys"], &stat["server"]["removes"]), (&2.into(), &1.into()), "{stat}");
    assert!(stdout(&expect(served.run(&["stat"]), 0)).contains("windowed:8"));
    assert!(stderr(&expect(served.run(&["put", "k", &"v".repeat(79)]), 1)).contains("79 bytes long"));
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

    // Errors beyond a limit are counted and not listed.
    let bad = "no tab\n".repeat(30);
    let out = expect(served.run(&["load", &served.file("bad", &bad)]), 1);
    assert_eq!(stderr(&out).lines().count(), 21, "{out:?}");
    assert!(stderr(&out).contains("and 10 more"));
}

/// When the table is full, each refused line is named, and the table keeps what it has.
#[test]
fn load_until_full() {
    let served = Served::start(&["--anonymous", "--slots", "64", "--grace-us", "100"]);
    let text: String = (0..100).map(|n| format!("k{n}\tv{n}\n")).collect();
    let out = expect(served.run(&["load", "--json", &served.file("in.tsv", &text)]), 1);
    let sum = json(&out);
    let (inserted, failed) = (sum["inserted"].as_u64().unwrap(), sum["failed"].as_u64().unwrap());
    assert!(inserted > 55 && inserted + failed == 100, "{sum}");
    assert!(stderr(&out).contains("the table is full"), "{out:?}");
    assert_eq!(stdout(&expect(served.run(&["dump"]), 0)).lines().count() as u64, inserted);
}

/// The table outlives its server. A server that is asked for another table says what is there.
#[test]
fn region_file_survives() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let flags = ["--region", &region, "--slots", "1024"];
    let mut served = Served::start_in(dir, &flags);
    assert_eq!(served.ready["recovered"], Value::Null);
    expect(served.run(&["put", "k", "v"]), 0);

    // The region of a stopped server can be inspected; a running server locks out others.
    let again = expect(run(&["serve", "--region", &region, "--fresh", "--at", "shm:/tmp/unused"]), 1);
    assert!(stderr(&again).contains("in use by another server"), "{again:?}");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    assert!(!served.dir.path().join("sock").exists(), "the socket stays behind");
    let out = json(&expect(run(&["inspect", "--region", &region, "--key", "k", "--json"]), 0));
    assert_eq!((&out["key"]["found_in_window"], &out["key"]["reads"]), (&0.into(), &1.into()), "{out}");
    assert_eq!(out["occupancy"]["live_main"], 1);
    assert!(stdout(&expect(run(&["inspect", "--region", &region, "--key", "k"]), 0)).contains("match"));
    assert_eq!(stdout(&expect(run(&["dump", "--region", &region]), 0)), "k\tv\n");

    let at = served.at.clone();
    let out = expect(
        run(&["serve", "--at", &at, "--region", &region, "--layout", "pilaf", "--value-max", "40"]),
        1,
    );
    let message = stderr(&out);
    for part in ["layout cuckoo:windowed:8", "asked for was cuckoo:pilaf", "value-max 78", "--fresh"] {
        assert!(message.contains(part), "{part:?} is missing in {message}");
    }

    let dir = std::mem::replace(&mut served.dir, tempfile::tempdir().unwrap());
    let served = Served::start_in(dir, &flags);
    assert_eq!(served.ready["recovered"]["keys"], 1);
    assert_eq!(stdout(&expect(served.run(&["get", "k"]), 0)), "v\n");
}

#[test]
fn not_a_region() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("letter.txt");
    let text = "dear reader, ".repeat(1000);
    std::fs::write(&path, &text).unwrap();
    let name = path.display().to_string();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for command in [
        vec!["inspect", "--region", &name],
        vec!["dump", "--region", &name],
        vec!["serve", "--at", &at, "--region", &name],
        vec!["serve", "--at", &at, "--region", &name, "--fresh"],
    ] {
        let out = expect(run(&command), 1);
        assert!(stderr(&out).contains("this is no oneread region"), "{command:?}: {out:?}");
        assert!(stderr(&out).contains(&name), "{command:?}: {out:?}");
    }
    // A file that is no region is not removed, not even with --fresh.
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn errors_of_use() {
    let out = expect(run(&["serve", "--layout", "nonsense"]), 2);
    for name in ["unknown layout \"nonsense\"", "windowed:8", "pilaf", "hopscotch:farm", "chained:cluster"] {
        assert!(stderr(&out).contains(name), "{name} is missing in {out:?}");
    }
    assert!(stderr(&expect(run(&["get", "k", "--at", "nowhere"]), 2)).contains("shm:PATH"));
    expect(run(&["serve", "--capacity", "1", "--slots", "1"]), 2);
    expect(run(&["frobnicate"]), 2);
    for command in [
        "serve", "get", "put", "del", "load", "dump", "stat", "inspect", "layouts", "bench", "demo", "doctor",
    ] {
        let help = stdout(&expect(run(&[command, "--help"]), 0));
        assert!(help.contains("EXAMPLES") && help.contains(&format!("oneread {command}")), "{help}");
    }
}

#[test]
fn no_server() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for command in [vec!["get", "k"], vec!["put", "k", "v"], vec!["stat"], vec!["inspect"], vec!["dump"]] {
        let mut command = command.clone();
        command.extend(["--at", &at]);
        let out = expect(run(&command), 1);
        let message = stderr(&out);
        assert!(message.starts_with(&format!("oneread: error: no server at {at}: ")), "{message}");
        assert!(message.contains(&format!("oneread serve --at {at}")), "{message}");
        assert_eq!(message.matches("No such file").count(), 1, "a cause told twice: {message}");
    }
}

/// The default address is in the user's runtime folder. If there is none, its name contains the
/// user's number.
#[test]
fn default_address() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let uid = rustix::process::getuid().as_raw();
    let run_user = PathBuf::from(format!("/run/user/{uid}"));
    let elsewhere = match run_user.is_dir() {
        true => run_user.join("oneread.sock"),
        false => format!("/tmp/oneread-{uid}.sock").into(),
    };
    let own = dir.path().join("oneread.sock");
    for (runtime, expected) in [
        (dir.path(), &own),
        (&dir.path().join("none"), &elsewhere),
        (&file, &elsewhere),
        (Path::new(""), &elsewhere),
    ] {
        // (A server may be running there.)
        if !expected.exists() {
            let out = oneread().args(["get", "k"]).env("XDG_RUNTIME_DIR", runtime).output().unwrap();
            let message = stderr(&expect(out, 1));
            let begins = format!("oneread: error: no server at shm:{}: ", expected.display());
            assert!(message.starts_with(&begins), "{message}");
        }
    }
}

/// `oneread dump | head -1` ends without an error message.
#[test]
fn broken_pipe_is_quiet() {
    let served = Served::start(&["--anonymous", "--capacity", "20000"]);
    let text: String = (0..20000).map(|n| format!("key {n}\t{}\n", "v".repeat(70))).collect();
    expect(served.run(&["load", &served.file("in.tsv", &text)]), 0);
    let mut child = oneread()
        .args(["dump", "--at", &served.at])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("key "), "{line}");
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(0), ""));
}

/// The numbers by which layouts are chosen, on a table small enough for a test.
#[test]
fn layouts_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let svg: PathBuf = dir.path().join("l.svg");
    let out = expect(
        run(&[
            "layouts",
            "--slots",
            "16384",
            "--load",
            "50,90",
            "--json",
            "--svg",
            svg.to_str().unwrap(),
            "--preset",
            "windowed:16",
            "--preset",
            "windowed:8",
            "--preset",
            "pilaf",
            "--preset",
            "farm",
        ]),
        0,
    );
    let rows = json(&out);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 4 * 2 * 2);
    for row in rows {
        for name in [
            "family",
            "preset",
            "phase",
            "keys",
            "load_asked",
            "load_true",
            "load_main",
            "reads_hit",
            "reads_miss",
            "bytes_hit",
            "bytes_miss",
            "trips_hit",
            "trips_miss",
            "moves_per_insert",
            "displaced",
            "window_bytes",
            "live_keys",
            "main_slots",
            "all_slots",
        ] {
            assert!(!row[name].is_null(), "{name} is missing in {row}");
        }
        let n = |name: &str| row[name].as_f64().unwrap();
        assert!(n("reads_hit") >= 1.0 && n("reads_miss") >= 1.0 && n("trips_hit") >= 1.0, "{row}");
        assert!(n("load_true") <= n("load_main") + 1e-9, "{row}");
        assert!(n("bytes_hit") >= n("window_bytes") - 1e-9, "{row}");
    }
    let hit = |preset: &str, phase: &str, load: f64| {
        let row =
            rows.iter().find(|r| r["preset"] == preset && r["phase"] == phase && r["load_asked"] == load);
        row.unwrap_or_else(|| panic!("no row for {preset} {phase} {load}"))["reads_hit"].as_f64().unwrap()
    };
    assert!(hit("windowed:16", "steady", 0.9) <= 1.02);
    assert!(hit("windowed:8", "steady", 0.9) <= 1.06);
    assert!(hit("windowed:8", "fresh", 0.5) <= 1.002);
    assert!((1.5..2.5).contains(&hit("pilaf", "fresh", 0.9)));
    assert!(hit("farm", "fresh", 0.9) <= 1.1);
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("windowed:16"));
}
