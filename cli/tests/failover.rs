//! `oneread bench failover`: a cluster of real processes, killed, stopped and relieved of shards under load.

mod command;
#[path = "../../cluster/tests/common/installed.rs"]
mod installed;

use command::oneread;
use installed::has_etcd;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

/// Nothing that was acknowledged or read is lost, every figure is there, and nothing is left behind.
#[test]
fn failovers_lose_nothing() {
    if !has_etcd() {
        return;
    }
    let arguments = ["bench", "failover", "--rounds", "1", "--ttl", "1s", "--json"];
    let child = oneread().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let folder = format!("oneread-run-{}", child.id());
    let out = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{} {stderr}", String::from_utf8_lossy(&out.stdout));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let keys: BTreeSet<&str> = found.as_object().unwrap().keys().map(String::as_str).collect();
    let times = [
        "get_copying_us_p99",
        "get_gap_ms_max",
        "get_gap_ms_p999",
        "get_us_p50",
        "get_us_p99",
        "handover_ms_max",
        "keys_copied_per_s",
        "put_many_64_us_p50",
        "put_us_p50",
        "table_get_us_p50",
        "unavailable_ms_max",
    ];
    let counts =
        ["acknowledged", "failed_gets", "keys_copied", "kills", "lost", "moves", "nodes", "stale", "stops"];
    assert_eq!(keys, times.into_iter().chain(counts).collect(), "{found}");
    for name in times {
        assert!(found[name].as_f64().unwrap() > 0.0, "{name}: {found}");
    }
    let count = |name: &str| found[name].as_u64().unwrap();
    assert_eq!(["nodes", "kills", "stops", "moves"].map(count), [3, 1, 1, 8], "{found}");
    assert_eq!(["lost", "stale"].map(count), [0, 0], "{found}");
    // A node has copies of some shards, and not of all.
    assert!((1..16_384).contains(&count("keys_copied")), "{found}");
    // Each key was put once before anything was killed.
    assert!(count("acknowledged") > 16_384, "{found}");
    // A dead primary is missed for a TTL, less the time since its last beat.
    assert!(found["unavailable_ms_max"].as_f64().unwrap() > 500.0, "{found}");
    let is_left = |name: &str| name == folder || name.starts_with(&format!("{folder}-"));
    let left: Vec<_> =
        Path::new("/dev/shm").read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| is_left(&name.to_string_lossy())), "{left:?}");
}

/// Without an etcd the error says what to install.
#[test]
fn a_missing_etcd_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let out = oneread().args(["bench", "failover"]).env("PATH", folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && stderr.contains("apt-get install etcd-server"), "{stderr}");
}
