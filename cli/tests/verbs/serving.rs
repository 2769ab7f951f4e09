//! The command over verbs: a bench on a real device, and where it cannot serve: without a device,
//! without the library, or without permission to lock memory. Without a device and without the
//! library use tests/fake_ibverbs.c, the others a real device.

use crate::command::alone;
use crate::common::is_there_a_device;
use crate::fake_ibverbs::{folder, is_guest};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the program with this library path and these variables in its environment.
fn oneread(library_path: &Path, env: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = crate::command::oneread();
    command.env("LD_LIBRARY_PATH", library_path).envs(env.iter().copied());
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn cannot_serve(library_path: &Path, env: &[(&str, &str)], expected: &[&str]) {
    let arguments =
        ["serve", "--anonymous", "--capacity", "100", "--no-token", "--at", "verbs://127.0.0.1:0"];
    let output = oneread(library_path, env, &arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    for expected in expected {
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    }
}

#[test]
fn no_device() {
    if is_guest("no_device") {
        return;
    }
    let none = ["this machine has no RDMA device; ", "modprobe rdma_rxe", "oneread doctor"];
    cannot_serve(folder(), &[("FAKE_DEVICES", "0")], &none);
    let no_module = ["no RDMA device (the kernel module ib_uverbs is not loaded)", "modprobe rdma_rxe"];
    cannot_serve(folder(), &[("FAKE_DEVICES", "-ENOSYS")], &no_module);
    cannot_serve(
        folder(),
        &[("FAKE_DEVICES", "-13")],
        &["ibv_get_device_list: ", "error 13", "oneread doctor"],
    );
}

/// Without the library, verbs gives an error that says so, and shared memory works.
#[test]
fn no_library() {
    if is_guest("no_library") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("libibverbs.so.1"), "this hides the system's").unwrap();
    let mend = ["libibverbs.so.1 cannot be loaded", "apt-get install libibverbs1 ibverbs-providers"];
    cannot_serve(dir.path(), &[], &mend);

    let at = format!("shm:{}", dir.path().join("sock").display());
    let mut server = crate::command::oneread()
        .env("LD_LIBRARY_PATH", dir.path())
        .args(["serve", "--anonymous", "--capacity", "100", "--json", "--at", &at])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let put = oneread(dir.path(), &[], &["put", "--at", &at, "key", "value"]);
    let get = oneread(dir.path(), &[], &["get", "-n", "--at", &at, "key"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(put.status.success() && get.status.success(), "{ready}{put:?}, {get:?}");
    assert_eq!(get.stdout, b"value");
}

/// A region that may not be locked into memory gives an error that names the limit.
#[test]
fn locked_memory_limit() {
    if !is_there_a_device("locked_memory_limit") {
        return;
    }
    let program = env!("CARGO_BIN_EXE_oneread");
    let output = alone(Command::new("setpriv"))
        .args([
            "--bounding-set",
            "-ipc_lock",
            "--inh-caps",
            "-ipc_lock",
            "prlimit",
            "--memlock=1048576",
            program,
        ])
        .args(["serve", "--anonymous", "--capacity", "100000", "--no-token", "--at", "verbs://127.0.0.1:0"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("ulimit -l"), "{error}");
    assert!(error.contains("lock only 1 MiB"), "it names the limit: {error}");
}

/// The limit is looked at before any memory is taken, whatever size is asked for.
#[test]
fn locked_memory_is_checked_first() {
    if is_guest("locked_memory_is_checked_first") {
        return;
    }
    let serve = |size: &[&str]| {
        let limited =
            ["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "prlimit", "--memlock=1048576"];
        let mut command = alone(Command::new("setpriv"));
        command.args(limited).arg(env!("CARGO_BIN_EXE_oneread")).env("LD_LIBRARY_PATH", folder());
        command.env("FAKE_DEVICES", "0");
        let serve = ["serve", "--anonymous", "--no-token", "--at", "verbs://127.0.0.1:0"];
        // Nothing beside the slots.
        let serve = [&serve[..], &["--key-max", "32", "--value-max", "78"]].concat();
        let output = command.args(serve).args(size).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let only = "may lock only 1 MiB";
    for (size, parts) in [
        (&["--max-memory", "1GiB"][..], ["up to 1.00 GiB", only, "--max-memory"]),
        (&["--capacity", "1000000"], ["up to 136 MiB", only, "--capacity"]),
        (&[], ["nine tenths of what this process may lock", "is 922 KiB", "oneread doctor"]),
    ] {
        let error = serve(size);
        for part in parts.into_iter().chain(["ulimit -l"]) {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
    }
    let error = serve(&["--capacity", "100"]);
    assert!(error.contains("no RDMA device"), "{error}");
}

/// `bench get` measures both ways to GET, each with its own READs.
#[test]
fn bench_get_has_both_ways() {
    if !is_there_a_device("bench_get_has_both_ways") {
        return;
    }
    let bench = |arguments: &[&str]| {
        let usual = ["bench", "get", "--fabric", "verbs", "--keys", "1000", "--rounds", "1"];
        let output = crate::command::oneread().args(usual).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let found: serde_json::Value = serde_json::from_str(&bench(&["--json"])).unwrap();
    let [windows, hinted] = &found["ways"].as_array().unwrap()[..] else { panic!("{found}") };
    let number = |way: &serde_json::Value, name: &str| way[name].as_f64().unwrap();
    assert!(number(windows, "bytes_per_get") >= 512.0, "{found}");
    assert!((64.0..80.0).contains(&number(hinted, "bytes_per_get")), "{found}");
    for way in [windows, hinted] {
        let positive = ["get_ns_mean", "get_ns_p50", "get_ns_p99", "get_many_keys_per_s"];
        assert!(positive.iter().all(|name| number(way, name) > 0.0), "{found}");
        assert!((1.0..1.2).contains(&number(way, "reads_per_get")), "{found}");
        assert!(number(&way["get_many_of_1000"], "reads") >= 1000.0, "{found}");
    }
    // A layout in which hints save nothing has one way.
    let told = bench(&["--layout", "list"]);
    assert!(told.contains("windows") && !told.contains("hinted slots"), "{told}");
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
}
