//! What measures and predicts comes to its end, with figures that belong together.

use crate::command::oneread;
use crate::served::{Served, expect, json, run, stderr, stdout, wait_for};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;

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
            "--plot",
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

/// Small benches come to an end, with every time that they promise.
#[test]
fn benches_are_whole() {
    let times = |what: &[&str]| {
        let found = json(&expect(run(&[&["bench"], what, &["--rounds", "1", "--json"]].concat()), 0));
        let lines = found["lines"].as_array().unwrap().clone();
        assert!(lines.iter().all(|line| line["ns_per_op"].as_f64().unwrap() > 0.0), "{found}");
        // The figures belong together.
        let first = lines[0]["ns_per_op"].as_f64().unwrap();
        for line in &lines {
            let number = |name: &str| line[name].as_f64().unwrap();
            let is_near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            assert!(is_near(number("ns_per_op") * number("ops_per_s"), 1e9), "{line}");
            assert!(is_near(number("ratio"), number("ns_per_op") / first), "{line}");
            assert_eq!([number("ns_min"), number("ns_max")], [number("ns_per_op"); 2], "{line}");
        }
        assert_eq!((&found["what"], &found["rounds"]), (&what[0].into(), &1.into()), "{found}");
        lines.iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let gets = times(&["get", "--keys", "2000"]);
    for name in ["bare, all at once", "oneread get", "oneread miss", "dashmap", "papaya", "scc"] {
        assert!(gets.iter().any(|there| there == name), "{name}: {gets:?}");
    }
    assert_eq!(times(&["insert", "--keys", "2000"]).len(), 4);
}

/// The figures of `bench rpc` belong together, and are drawn. A server that somebody else has started may lack
/// mailboxes; then the other paths are measured.
#[test]
fn rpc_figures_belong_together() {
    let served = Served::start(&["--capacity", "3000", "--mailbox-max", "0", "--anonymous"]);
    expect(served.run(&["put", "mine", "stays"]), 0);
    let svg = served.file("rpc.svg", "");
    let small = ["--connections", "1,2", "--keys", "2000", "--rounds", "1", "--seconds", "0.05", "--json"];
    let bench = [&["bench", "rpc", "--plot", &svg], &small[..]].concat();
    for paths in [7, 4] {
        let out = expect(if paths == 7 { run(&bench) } else { served.run(&bench) }, 0);
        let found = json(&out);
        assert_eq!(
            (&found["fabric"], &found["keys"], &found["seconds"]),
            (&"shm".into(), &2000.into(), &0.05.into())
        );
        let lines = found["lines"].as_array().unwrap();
        assert_eq!(lines.len(), 2 * paths, "{found}");
        for (n, line) in lines.iter().enumerate() {
            let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
            let is_near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            let (first, rate) = (&lines[n / paths * paths], number("ops_per_s"));
            assert_eq!(number("connections") as usize, 1 + n / paths, "{line}");
            // On a busy machine, there may be rounds in which nothing was answered.
            if rate == 0.0 {
                assert!(
                    ["p50_ns", "p99_ns", "reads_per_op"].iter().all(|name| line[*name].is_null()),
                    "{line}"
                );
                continue;
            }
            assert_eq!(
                (&first["operation"], &first["path"]),
                (&"get".into(), &"one-sided".into()),
                "{found}"
            );
            assert!(is_near(number("ratio"), rate / first["ops_per_s"].as_f64().unwrap()), "{line}");
            let same = |other: &&Value| {
                [&other["connections"], &other["operation"]] == [&line["connections"], &line["operation"]]
            };
            let by_message = lines.iter().filter(same).find(|other| other["path"] == "message").unwrap();
            match by_message["ops_per_s"].as_f64().unwrap() {
                0.0 => assert!(line["of_message"].is_null(), "{found}"),
                message => assert!(is_near(number("of_message"), rate / message), "{found}"),
            }
            assert!(number("p50_ns") > 0.0 && number("p50_ns") <= number("p99_ns"), "{line}");
            // A GET by READ takes one at least, and a request to the server none.
            let reads = number("reads_per_op");
            assert!(if line["path"] == "one-sided" { reads >= 1.0 } else { reads == 0.0 }, "{line}");
            assert_eq!(line["server_cpu_ms"].is_null(), paths == 4, "{line}");
        }
        assert_eq!(stderr(&out).contains("oneread: without mailbox: "), paths == 4, "{out:?}");
        assert!(stderr(&out).contains(&format!("oneread: wrote {svg}")), "{out:?}");
        assert!(std::fs::read_to_string(&svg).unwrap().contains("operations per second"));
        std::fs::remove_file(&svg).unwrap();
    }
    // Its keys are gone, and nobody else's.
    let keys = || json(&expect(served.run(&["stat", "--json"]), 0))["server"]["keys"].as_u64().unwrap();
    assert_eq!(keys(), 1);
    let mut command = oneread();
    command.args([
        "bench",
        "rpc",
        "--keys",
        "2000",
        "--seconds",
        "3600",
        "--rounds",
        "1",
        "--at",
        &served.at,
    ]);
    let bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("its keys", || (keys() == 2001).then_some(()));
    rustix::process::kill_process(rustix::process::Pid::from_child(&bench), rustix::process::Signal::INT)
        .unwrap();
    let ended = expect(bench.wait_with_output().unwrap(), 1);
    assert!(stderr(&ended).contains("a signal has ended the bench"), "{ended:?}");
    assert_eq!((keys(), stdout(&expect(served.run(&["get", "mine"]), 0)).trim_end()), (1, "stays"));
    // An error in the middle of it leaves none, either: the table takes no 2^20 keys.
    expect(served.run(&["bench", "rpc", "--keys", "1048576", "--connections", "1"]), 1);
    assert_eq!(keys(), 1);
}

/// The figures of `bench long` belong together: rates are bytes by times, and memcpy is what others are compared
/// with.
#[test]
fn long_figures_belong_together() {
    let small = ["--sizes", "64,65536", "--mib", "1", "--rounds", "1", "--json"];
    let found = json(&expect(run(&[&["bench", "long"], &small[..]].concat()), 0));
    let ways = if found["redis"].is_null() { 2 } else { 3 };
    let lines = found["lines"].as_array().unwrap();
    let kinds: Vec<_> = lines.iter().step_by(ways).collect();
    let [bytes, values] =
        ["value_bytes", "values"].map(|name| kinds.iter().map(move |line| line[name].as_u64().unwrap()));
    assert_eq!(bytes.collect::<Vec<_>>(), [64, 64, 65536, 65536], "{found}");
    assert_eq!(values.collect::<Vec<_>>(), [1 << 14, 1 << 12, 16, 4], "{found}");
    for (n, line) in lines.iter().enumerate() {
        let number = |name: &str| line[name].as_f64().unwrap();
        let first = &lines[n / ways * ways];
        assert_eq!(
            (&first["way"], &line["cached"]),
            (&"memcpy".into(), &(n / ways % 2 == 1).into()),
            "{found}"
        );
        let ratio = number("ns_per_op") / first["ns_per_op"].as_f64().unwrap();
        let bytes_per_s = number("value_bytes") / number("ns_per_op") * 1e9;
        assert!((number("ratio") / ratio - 1.0).abs() < 1e-9, "{line}");
        assert!((number("bytes_per_s") / bytes_per_s - 1.0).abs() < 1e-9, "{line}");
    }
}

/// What hints save under a table that grows and shrinks is counted, drawn, and the same in every run.
#[test]
fn hints_are_counted_while_a_table_grows() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("hints.svg");
    let svg = svg.to_str().unwrap();
    let sizes = ["--from", "1e3", "--keys", "4e3", "--segment-slots", "256", "--parts", "3"];
    let count = || expect(run(&[&["bench", "hints", "--json", "--plot", svg], &sizes[..]].concat()), 0);
    let found = json(&count());
    let parts = found["parts"].as_array().unwrap();
    assert_eq!((parts.len(), &parts[3]["course"], &parts[3]["keys"]), (15, &"grow".into(), &2_000.into()));
    let bytes = |of: &str| parts.iter().map(|part| part[of]["bytes"].as_f64().unwrap()).sum::<f64>();
    assert!(bytes("hinted_hit") < 0.4 * bytes("hit") && parts[14]["merges"].as_u64() > Some(3), "{found}");
    assert_eq!((json(&count()), &found["run"]["layout"]), (found.clone(), &"cuckoo:windowed:8".into()));
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("bytes of a GET") && drawn.contains("hit, without") && !drawn.contains("NaN"));
    // Without replacements, and with little memory.
    let other =
        ["--gets", "2", "--replaced", "0", "--zipf", "0.5", "--hint-memory", "512", "--layout", "farm"];
    let other = json(&expect(run(&[&["bench", "hints", "--json"], &sizes[..], &other].concat()), 0));
    let given =
        [("gets", 2.0), ("replaced", 0.0), ("zipf", 0.5), ("hint_bytes", 512.0), ("segment_slots", 256.0)];
    for (name, number) in given {
        assert_eq!(other["run"][name].as_f64(), Some(number), "{}", other["run"]);
    }
    assert_eq!(other["run"]["layout"], "hopscotch:farm");
    let refused = |arguments: &[&str]| stderr(&expect(run(&[&["bench", "hints"], arguments].concat()), 1));
    assert!(refused(&["--from", "5e3", "--keys", "4e3"]).contains("keys: 4000 is not within 5001"));
    assert!(refused(&["--gets", "0"]).contains("GETs of a step: 0"));
    assert!(refused(&[&["--layout", "list"], &sizes[..]].concat()).contains("hints save nothing"));
}

/// A table grows and shrinks under the eyes of two processes. No answer is wrong, memory comes back, and
/// all that was promised is told and drawn.
#[test]
fn a_table_grows_and_shrinks_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("grow.svg");
    let svg = svg.to_str().unwrap();
    for layout in ["windowed:8", "hopscotch:farm", "chained:cluster"] {
        let sizes = ["--from", "4e3", "--keys", "6e4", "--segment-slots", "1024"];
        let all = [&["bench", "grow", "--json", "--layout", layout, "--plot", svg], &sizes[..]].concat();
        let found = json(&expect(run(&all), 0));
        let number_if = |name: &str| found[name].as_f64();
        let number = |name: &str| number_if(name).unwrap_or_else(|| panic!("no {name} in {found}"));
        assert_eq!(["failed", "wrong", "missed"].map(number), [0.0; 3], "{found}");
        assert_eq!((number("keys"), found["parts"].as_array().unwrap().len()), (60_000.0, 126));
        // 60,000 keys need at least 58 segments, 4,000 of them not many.
        assert!(number("splits") > 55.0 && number("merges") > 40.0, "{found}");
        assert!(number("segments_max") > 58.0 && number("segments_end") < 20.0, "{found}");
        assert!(number("gets") > 10_000.0, "{found}");
        // Where no ghost holds a split up, all may be over before a reader looks.
        let has_ratios = number_if("p99_ratio").is_some_and(|ratio| ratio > 0.0);
        assert!(has_ratios || (layout == "chained:cluster" && number_if("p99_ratio").is_none()), "{found}");
        assert_eq!(number_if("p999_ratio").is_some(), has_ratios, "{found}");
        assert!(number("reads_per_get") >= 1.0 && number("put_max_ms") > 0.0, "{found}");
        // Each split moves half of the keys of a segment.
        assert!((0.3..5.0).contains(&number("moves_per_insert")), "{found}");
        let (low, mean) = (number("load_min"), number("load_mean"));
        assert!(0.2 < low && low < mean && mean < 1.0, "{found}");
        // 4,000 keys double three times, and nearly once more.
        let doublings = found["doublings"].as_array().unwrap();
        let shrinking = doublings.iter().filter(|at| at["shrinks"] == true).count();
        assert_eq!((doublings.len(), shrinking), (8, 4), "{found}");
        for at in doublings {
            let (cpu, wall) =
                (at["change_cpu_max_ms"].as_f64().unwrap(), at["change_max_ms"].as_f64().unwrap());
            // The clocks of the CPU and of the wall are not the same, and the former is read outside.
            assert!(0.0 < cpu && cpu < 2.0 * wall + 1.0, "{at}");
            assert!((0.05..1.0).contains(&at["load"].as_f64().unwrap()), "{at}");
            assert!(at["memory_load"].as_f64().unwrap() < 1.0, "{at}");
        }
        let drawn = std::fs::read_to_string(svg).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("true load") && drawn.contains("p99.9, fixed"));
    }
    let refused = stderr(&expect(run(&["bench", "grow", "--from", "5e3", "--keys", "4e3"]), 1));
    assert!(refused.contains("--from 5000 is not less than --keys 4000"), "{refused}");
    expect(run(&["bench", "grow", "--keys", "12"]), 2);
    let sizes = ["--keys", "1e4", "--from", "1e3", "--segment-slots", "1000000000"];
    let refused = stderr(&expect(run(&[&["bench", "grow"], &sizes[..]].concat()), 1));
    assert!(refused.contains("slots of a segment are more than"), "{refused}");
    // The readers' command is for this bench alone.
    let at = "shm:/nowhere";
    let refused = stderr(&expect(run(&["bench", "grow-reader", "--growing", at, "--fixed", at]), 1));
    assert!(refused.contains("this command is for `bench grow` alone"), "{refused}");
}

/// The storage contest's workload at a tiny scale, with values in slots and all in the heap: every operation is
/// made and answered rightly. A workload that does not fit is refused, with a scale that fits.
#[test]
fn the_tiered_workload_is_whole() {
    for (inline_max, seed) in [("128", "1"), ("0", "2")] {
        let tiny =
            ["bench", "tiered", "--scale", "2e-5", "--json", "--inline-max", inline_max, "--seed", seed];
        let found = json(&expect(run(&tiny), 0));
        let phases = found.as_array().unwrap();
        let told: Vec<_> = phases
            .iter()
            .map(|phase| {
                let count = |name: &str| phase[name].as_u64().unwrap_or_else(|| panic!("no {name}: {found}"));
                assert!(phase["seconds"].as_f64().unwrap() > 0.0 && count("memory_bytes") > 0, "{found}");
                assert!(phase["returned_bytes"].is_u64() && phase.as_object().unwrap().len() == 6, "{found}");
                (phase["phase"].as_str().unwrap(), count("ops"), count("wrong"))
            })
            .collect();
        let expected =
            [("insert", 3_840, 0), ("remove", 3_200, 0), ("insert-again", 3_200, 0), ("mixed", 1_280, 0)];
        assert_eq!(told, expected, "{found}");
    }
    let refused = stderr(&expect(run(&["bench", "tiered", "--max-memory", "96MiB"]), 1));
    let fitting = refused.split("take a --scale of ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(refused.contains("1,920,000 keys at scale 0.01 take up to"), "{refused}");
    assert!(refused.contains("the table may take 96 MiB, by --max-memory"), "{refused}");
    expect(run(&["bench", "tiered", "--max-memory", "96MiB", "--scale", fitting]), 0);
    let refused = stderr(&expect(run(&["bench", "tiered", "--max-memory", "1MiB"]), 1));
    assert!(refused.ends_with("allow more by --max-memory\n") && !refused.contains("take a"), "{refused}");
    for bad in ["0", "1.1", "-1", "much", "nan"] {
        expect(run(&["bench", "tiered", &format!("--scale={bad}")]), 2);
    }
}

/// GETs of long values beside memcpy, and beside Redis where there is one. Without, the bench says so.
#[test]
fn long_values_are_timed() {
    let small = ["bench", "long", "--sizes", "64,4096,65536", "--mib", "1", "--rounds", "1"];
    let found = json(&expect(run(&[&small[..], &["--json"]].concat()), 0));
    let ways = if found["redis"].is_null() { 2 } else { 3 };
    let lines = found["lines"].as_array().unwrap();
    // Each length out of the caches, and in them.
    assert_eq!(lines.len(), 3 * 2 * ways, "{found}");
    for (line, nth) in lines.iter().zip(0..) {
        assert_eq!(line["way"], ["memcpy", "oneread", "redis"][nth % ways], "{found}");
        assert_eq!(line["cached"], nth / ways % 2 == 1, "{found}");
        assert!(line["ns_per_op"].as_f64().unwrap() > 0.0 && line["ratio"].as_f64().unwrap() > 0.0);
    }
    assert_eq!([0, 2 * ways, 4 * ways].map(|n| lines[n]["values"].as_u64().unwrap()), [16_384, 256, 16]);

    let nowhere = expect(oneread().args(small).env("PATH", "/nowhere").output().unwrap(), 0);
    let told = stdout(&nowhere);
    assert!(told.contains("Redis was not measured") && !told.contains("redis GET"), "{told}");
    expect(run(&["bench", "long", "--sizes", "8"]), 2);
}

/// Servers are killed at random instants under load, and others take over. Everything acknowledged
/// is there, once.
#[test]
fn kills_lose_nothing() {
    let kills = if std::env::var_os("ONEREAD_LONG").is_some() { 1000 } else { 50 };
    let found = json(&expect(run(&["bench", "kill", "--json", "--kills", &kills.to_string()]), 0));
    println!("{found}");
    let count = |name: &str| found[name].as_u64().unwrap();
    assert_eq!(["lost", "wrong", "doubled", "leaked"].map(count), [0; 4], "{found}");
    assert!(count("kills") == kills && count("acknowledged") > kills, "{found}");
    assert!(count("stops") == kills / 4 && count("handed_over") == kills / 4, "{found}");
    // Kills that leave no slot half written show nothing.
    assert!(count("torn") >= kills / 2, "{found}");
    assert!(found["takeover_ms_p50"].as_f64().unwrap() <= found["takeover_ms_max"].as_f64().unwrap());
}

/// What is asked for is measured, and nothing else: phases, keys, hints, and one layout as often as it is named.
#[test]
fn layouts_are_measured_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("frontier.svg");
    let svg = svg.to_str().unwrap();
    let small = ["layouts", "--slots", "1024", "--preset", "windowed:8", "--load", "90", "--json"];
    let rows =
        |more: &[&str]| json(&expect(run(&[&small[..], more].concat()), 0)).as_array().unwrap().clone();
    let told = |more: &[&str]| {
        let of = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        rows(more).iter().map(|row| (of(row, "phase"), of(row, "keys"))).collect::<Vec<_>>()
    };
    let pair = |phase: &str, keys: &str| (phase.to_owned(), keys.to_owned());
    assert_eq!(told(&["--phase", "fresh"]), [pair("fresh", "uniform")]);
    assert_eq!(told(&["--phase", "steady", "--keys", "zipf"]), [pair("steady", "zipf")]);
    assert_eq!(told(&["--phase", "both"]), [pair("fresh", "uniform"), pair("steady", "uniform")]);
    let rows = rows(&["--phase", "steady", "--hints", "--plot", svg]);
    assert!(rows[0]["hinted"].is_object(), "{rows:?}");
    assert!(std::fs::read_to_string(svg).unwrap().contains("RACE"));
    let refused = stderr(&expect(run(&["layouts", "--plot", "l.png"]), 2));
    assert!(refused.contains("name a file that ends in .svg"), "{refused}");
    let listed = stdout(&expect(run(&["layouts", "--list"]), 0));
    assert!(listed.contains("windowed:8") && listed.contains("slotwise"), "{listed}");
    for bad in ["0", "101", "most"] {
        expect(run(&["layouts", "--load", bad]), 2);
    }
}

/// Requests over TCP are timed with TLS and without, in one run, and the run leaves no folder.
#[test]
fn requests_over_tcp_are_timed() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = oneread();
    command.args(["bench", "tcp", "--keys", "1000", "--rounds", "1", "--json"]).env("TMPDIR", dir.path());
    let out = json(&expect(command.output().unwrap(), 0));
    let lines = out["lines"].as_array().unwrap();
    for what in ["get", "get64", "put64", "get1000", "get-long"] {
        for way in ["oneread", "tls"] {
            let line = lines.iter().find(|line| line["what"] == what && line["way"] == way);
            let line = line.unwrap_or_else(|| panic!("no {what} by {way}: {out}"));
            assert!(line["ns_per_op"].as_f64().unwrap() > 0.0 && line["server_ns_per_op"].is_f64(), "{line}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A bench or demo that is ended from outside leaves no server and no folder, and says by its status what ended
/// it. So does one that comes to its end.
#[test]
fn a_bench_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let bench = |kills: &str| {
        let small = ["bench", "kill", "--json", "--threads", "3", "--keys", "20", "--value-bytes", "3000"];
        let mut command = oneread();
        command.args(small).args(["--layout", "pilaf", "--kills", kills]).env("TMPDIR", dir.path());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let found = json(&expect(bench("1").wait_with_output().unwrap(), 0));
    let numbers = ["kills", "keys", "value_bytes"].map(|name| found[name].as_u64().unwrap());
    assert_eq!((numbers, &found["layout"], files()), ([1, 60, 3000], &"cuckoo:pilaf".into(), 0), "{found}");
    for (signal, status) in [(rustix::process::Signal::TERM, 143), (rustix::process::Signal::INT, 130)] {
        let mut child = bench("100000");
        let pid = rustix::process::Pid::from_child(&child);
        let socket = dir.path().join(format!("oneread-run-{pid}/sock"));
        wait_for("a server", || socket.exists().then_some(()));
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(status));
        let is_gone = |server: &str| !Path::new("/proc").join(server).join("exe").exists();
        wait_for("the server to be gone", || children.split_whitespace().all(is_gone).then_some(()));
        assert!(files() == 0, "{children}: {} files are left", files());
    }
}

/// Ctrl-C in the middle says how far the command came, in one line, and the status tells of it.
#[test]
fn who_is_interrupted_is_told() {
    let mut child = oneread()
        .args(["layouts", "--slots", "1048576", "--preset", "windowed:8", "--load", "50"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Until the thread is there that waits for the signal.
    let caught = || std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let catches = |status: String| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        (u64::from_str_radix(&mask, 16).unwrap() & 1 << 1 != 0).then_some(())
    };
    wait_for("the handler", || catches(caught()));
    wait_for("threads", || {
        (std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() > 2).then_some(())
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let mut told = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(told.starts_with("oneread: interrupted; measuring: ") && told.lines().count() == 1, "{told}");
    assert!(told.trim_end().ends_with(" operations"), "{told}");
}
