//! A table without a size grows with its keys, survives kills, and lives with the memory that it gets.

use crate::command::{alone, oneread};
use crate::served::{
    Served, expect, feed, json, lines_of, region_in, run, run_with_input, stderr, stdout, wait_for,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A server needs no size: its table begins small, grows with its keys, and gives memory back when it
/// is told to. Another process reads it meanwhile, and `stat` shows it from outside.
#[test]
fn a_table_without_a_size_grows_and_shrinks() {
    // A disk's file system may keep blocks beside a hole.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = region_in(dir.path());
    let served = Served::start_in(dir, &["--region", &region]);
    let n = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    let ready = &served.ready;
    assert!(n(&ready["segments_max"]) > 8 && n(&ready["bytes_backed"]) < 4 << 20, "{ready}");
    let part = served.ready["max_memory_is"].as_str().unwrap();
    assert!(part.starts_with("half of") || part.starts_with("nine tenths of"), "{part}");
    served.load(0..60_000);
    let out = expect(served.run(&["get", "key0", "key30000", "key59999"]), 0);
    assert_eq!(stdout(&out), "value0\nvalue30000\nvalue59999\n");
    // What is under way ends by itself: nobody asks the server for a change.
    let stat = wait_for("the splits", || {
        let stat = served.stat();
        (stat["growth"]["splitting"] == 0 && stat["growth"]["merging"] == 0).then_some(stat)
    });
    let full = stat["growth"].clone();
    assert_eq!(stat["server"]["keys"], 60_000);
    assert!(n(&full["segments"]) > 8 && n(&full["depth"]) > 2 && n(&full["splits"]) >= 8, "{full}");
    assert!(n(&full["bytes_backed"]) > n(&full["segments"]) << 20 && n(&full["keys_moved"]) > 10_000);
    let load = |name: &str| full[name].as_f64().unwrap();
    assert!(load("load_min") > 0.1 && load("load_min") <= load("load_mean"), "{full}");
    assert!(load("load_mean") <= load("load_max") && load("load_max") <= 1.0, "{full}");
    let shown = stdout(&expect(served.run(&["stat"]), 0));
    for part in ["segments", "load, lowest and highest", "splits since it started", "memory"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    // The key is where a GET looks for it, also for who reads the file alone.
    let key = json(&expect(run(&["inspect", "--region", &region, "--key", "key77", "--json"]), 0));
    assert_eq!(key["segments"], full["segments"]);
    assert!(key["key"]["found_in_window"].is_u64() && key["occupancy"]["live_main"] == 60_000, "{key}");

    let gone: Vec<String> = (0..58_000).map(|n| format!("key{n}")).collect();
    for some in gone.chunks(5_000) {
        let mut all = vec!["del"];
        all.extend(some.iter().map(|key| &**key));
        expect(served.run(&all), 0);
    }
    let shrunk = json(&expect(served.run(&["shrink", "--json"]), 0));
    assert_eq!((n(&shrunk["segments"]), n(&shrunk["merging"])), (1, 0), "{shrunk}");
    assert!(n(&shrunk["bytes_backed"]) < 6 << 20, "{shrunk}");
    let growth = served.stat()["growth"].clone();
    assert!(n(&growth["bytes_returned"]) > 4 << 20 && n(&growth["merges"]) >= 8, "{growth}");
    assert_eq!(stdout(&expect(served.run(&["get", "key58000"]), 0)), "value58000\n");
    expect(served.run(&["get", "key57999"]), 1);
    assert!(stdout(&expect(served.run(&["shrink"]), 0)).starts_with("1 segment now, 1 before"));

    let fixed = Served::start(&["--anonymous", "--slots", "1024"]);
    assert!(stderr(&expect(fixed.run(&["shrink"]), 1)).contains("has one size"));
    assert_eq!(fixed.stat()["growth"], Value::Null);
}

/// Servers that are killed while the table grows lose nothing that they acknowledged, and the next one
/// goes on.
#[test]
fn a_growing_table_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let flags = ["--region", &region, "--max-memory", "64MiB", "--grace", "500us"];
    let mut served = Served::start_in(dir, &flags);
    let mut loaded = 0;
    for (life, keys) in [3_000, 9_000, 25_000, 60_000].into_iter().enumerate() {
        served.load(loaded..keys);
        loaded = keys;
        // More keys are on their way when it dies.
        let input = lines_of(100_000..130_000);
        let at = served.at.clone();
        let loader = std::thread::spawn(move || {
            let mut load = oneread();
            load.args(["load", "-", "--at", &at, "--deadline", "500ms"]).stdin(Stdio::piped());
            let mut load = load.stderr(Stdio::null()).spawn().unwrap();
            // It gives up when the server is gone.
            feed(&mut load, input.as_bytes());
            load.wait()
        });
        std::thread::sleep(Duration::from_millis(3 + 5 * life as u64));
        let dir = served.kill();
        loader.join().unwrap().unwrap();
        // Nothing else is asked of a table that is there.
        let flags: &[&str] = if life % 2 == 0 { &["--region", &region] } else { &flags };
        served = Served::start_in(dir, flags);
        assert!(served.ready["recovered"]["keys"].as_u64().unwrap() >= u64::from(keys), "{}", served.ready);
        // While splits go on, a dump may name a key twice. A GET finds it once.
        let numbers: Vec<u32> = (0..keys).collect();
        for some in numbers.chunks(4_000) {
            let names: Vec<String> = some.iter().map(|n| format!("key{n}")).collect();
            let mut all = vec!["get"];
            all.extend(names.iter().map(|name| &**name));
            let found = stdout(&expect(served.run(&all), 0));
            let expected: String = some.iter().map(|n| format!("value{n}\n")).collect();
            assert!(found == expected, "after {life} kills");
        }
    }
    assert!(served.stat()["growth"]["segments"].as_u64().unwrap() > 8);
    served.load(0..60_000);
}

/// A flag that makes no sense, or not with another one, or not for the table that is there: what is
/// wrong, and what to do.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    for with in [["--capacity", "10"], ["--slots", "64"]] {
        let out = expect(run(&[&["serve", "--max-memory", "8GiB"][..], &with].concat()), 2);
        assert!(stderr(&out).contains("cannot be used with"), "{out:?}");
    }
    for bad in ["", "0", "8 giga", "many", "1.5", "99999999999TiB"] {
        let out = expect(run(&["serve", "--max-memory", bad]), 2);
        assert!(stderr(&out).contains("as in 512MiB"), "{bad}: {out:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let region = region_in(dir.path());
    let serve = |more: &[&str]| {
        stderr(&expect(run(&[&["serve", "--at", &at, "--region", &region][..], more].concat()), 1))
    };
    let small = serve(&["--max-memory", "100KiB"]);
    assert!(small.contains("too few for a table that grows") && small.contains("allow that much"), "{small}");

    let dir = Served::start_in(dir, &["--region", &region, "--max-memory", "16MiB"]).kill();
    for (asked, named) in [
        (["--max-memory", "32MiB"], "asked for was up to 3"),
        (["--capacity", "1000"], "main slots"),
        (["--slots", "1024"], "asked for was 1024 main slots"),
    ] {
        let refused = serve(&asked);
        assert!(refused.contains("it has size up to 1") && refused.contains(named), "{refused}");
        assert!(refused.contains("--fresh"), "{refused}");
    }
    let dir = Served::start_in(dir, &["--region", &region, "--max-memory", "16MiB"]).kill();
    // A table of one size keeps it.
    let dir = Served::start_in(dir, &["--region", &region, "--fresh", "--slots", "1024"]).kill();
    let refused = serve(&["--max-memory", "16MiB"]);
    assert!(refused.contains("it has size 1024 main slots, asked for was up to"), "{refused}");
    let again = Served::start_in(dir, &["--region", &region]);
    assert_eq!((&again.ready["main_slots"], &again.ready["segments_max"]), (&1024.into(), &0.into()));
}

/// Where the system has no more memory, puts that need some fail with an error that says so. All else
/// goes on, and the table grows again when there is room.
#[test]
fn memory_that_is_refused_costs_puts_only() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let region = disk.join("region").display().to_string();
    let at = format!("shm:{}", dir.path().join("sock").display());
    // More room is made when a line comes.
    let script = "mount -t tmpfs -o size=6m none \"$1\" || exit 77; disk=$1; shift; \"$@\" & pid=$!
        read line; mount -o remount,size=64m \"$disk\"; read line; kill $pid; wait $pid";
    let in_namespace = |arguments: &[&str]| {
        let mut command = alone(Command::new("unshare"));
        command.args(["-rm", "sh", "-c", script, "sh"]).arg(&disk).args(arguments);
        command
    };
    let probe = in_namespace(&["true"]).stdin(Stdio::null()).output();
    if !probe.is_ok_and(|out| out.status.code() != Some(77)) {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no namespaces here");
        eprintln!("skipped: no disk can be made small here (unshare, mount)");
        return;
    }
    let program = env!("CARGO_BIN_EXE_oneread");
    let mut command = in_namespace(&[program, "serve", "--json", "--at", &at, "--region", &region]);
    command
        .args(["--max-memory", "1GiB"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    let stat = || json(&expect(run(&["stat", "--json", "--at", &at]), 0));
    let load = |keys, status| {
        let out = run_with_input(&["load", "-", "--at", &at], lines_of(keys).as_bytes());
        expect(out, status)
    };
    // More than there are slots of 128 bytes in 6 MiB.
    let out = load(0..50_000, 1);
    assert!(stderr(&out).contains("the system has refused"), "{out:?}");
    let full = stat();
    let (keys, refused) = (full["server"]["keys"].as_u64().unwrap(), &full["growth"]["memory_refused"]);
    assert!(keys > 20_000 && refused.as_u64().unwrap() > 0, "{full}");
    assert!(full["growth"]["bytes_backed"].as_u64().unwrap() <= 6 << 20, "{full}");
    assert_eq!(stdout(&expect(run(&["dump", "--at", &at]), 0)).lines().count() as u64, keys);
    assert_eq!(stdout(&expect(run(&["put", "key7", "new", "--at", &at]), 0)), "updated\n");
    assert_eq!(stdout(&expect(run(&["get", "key7", "--at", &at]), 0)), "new\n");
    expect(run(&["del", "key7", "--at", &at]), 0);

    let mut stdin = server.stdin.take().unwrap();
    stdin.write_all(b"more\n").unwrap();
    // What was refused is asked for again a moment later.
    wait_for("the table to grow", || {
        let out = run_with_input(&["load", "-", "--at", &at], lines_of(0..50_000).as_bytes());
        out.status.success().then_some(())
    });
    assert_eq!(stat()["server"]["keys"], 50_000);
    stdin.write_all(b"end\n").unwrap();
    let out = server.wait_with_output().unwrap();
    assert!(stderr(&out).contains("no memory for another segment"), "{out:?}");
}
