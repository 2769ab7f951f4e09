//! A cluster under failures, with two nodes that are READ over RDMA: a device of its own serves each node's table.
//!
//! The device answers READs of a node that is stopped, as a NIC does: a deposed primary is readable for as long as its
//! process exists, and nothing but a lease tells a client what it may believe. Copies and requests go over TCP.
//!
//! It takes devices at the two addresses below. A guest has them (`tests/soft-roce-guest`), with Soft-RoCE, and computes slowly:
//! all times are `ONEREAD_PACE` times as long as elsewhere, the TTL, too. It is a long run:
//!
//! ```sh
//! W="cargo test --profile checked -p oneread-cluster --features net,faults,oneread/verbs --test killed"
//! export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/tests/soft-roce-guest
//! export SOFT_ROCE_TIMEOUT=7200 SOFT_ROCE_MEM=2048
//! ONEREAD_LONG=1 ONEREAD_SECONDS=1800 $W histories_have_an_order_over_verbs -- --nocapture
//! ```

use super::*;
use oneread::{DeviceChoice, VerbsAddress, VerbsOptions, Wait};

const HOSTS: [&str; 2] = ["192.168.78.1", "192.168.78.2"];
/// At the ends of one cable. Each serves one node's table, and READs the other's.
const DEVICES: [&str; 2] = ["rxe1", "rxe2"];
const PORT: u16 = 7471;
const PACE: u32 = 10;

/// Beside those of one host.
const FAULTS_OVER_VERBS: [Fault; 2] = [Fault::MoveShard, Fault::DrainNode];

/// How a client READs tables. Over verbs the first one polls, with a queue pair for each handle; the others sleep until
/// the device wakes them, and their handles share one. Elsewhere that is ignored.
pub fn options(tables: ClientOptions, client: u64) -> ClientOptions {
    let verbs = VerbsOptions::new();
    tables.verbs(if client == 0 { verbs } else { verbs.wait(Wait::Block).pairs(1) })
}

/// How clients call a table that is served over verbs: they READ it by the other device, so that packets cross the cable.
pub fn as_others_say(table: &Address) -> Option<Address> {
    let Address::Verbs(at) = table else { return None };
    let other = DEVICES.into_iter().find(|device| at.device().device.as_deref() != Some(device))?;
    Some(Address::Verbs(VerbsAddress::new(
        at.host(),
        at.port(),
        DeviceChoice::new().device(other.to_owned()),
    )))
}

/// Whether this is to run, and can.
fn is_wanted() -> bool {
    let has_devices = DEVICES.iter().all(|device| Path::new("/sys/class/infiniband").join(device).exists());
    let is_there = has_devices && HOSTS.iter().all(|host| TcpListener::bind((*host, 0)).is_ok());
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    assert!(
        is_there || !is_long || std::env::var_os("ONEREAD_REQUIRE_VERBS").is_none(),
        "the devices {DEVICES:?} at {HOSTS:?} were required"
    );
    if !is_long {
        eprintln!("not run: this is a long run (ONEREAD_LONG=1)");
    } else if !is_there {
        eprintln!("not run: this machine has no devices {DEVICES:?} (tests/soft-roce-guest has them)");
    }
    is_long && is_there && has_etcd()
}

impl Cluster {
    fn start_over_verbs(seed: u64, rule: Option<String>) -> Cluster {
        take_pace(PACE);
        // Region files are registered with the device: they must be in memory.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = |(host, device)| format!("verbs://{host}:{PORT}?dev={device}").parse().unwrap();
        let tables = HOSTS.iter().zip(DEVICES).map(at);
        Cluster::start_here(folder, tables.collect(), seed, rule)
    }
}

/// As `histories_have_an_order`, over verbs.
#[test]
fn histories_have_an_order_over_verbs() {
    if !is_wanted() {
        return;
    }
    let _one = one_at_a_time();
    let time = Duration::from_secs(given("ONEREAD_SECONDS").unwrap_or(600));
    let seed = given("ONEREAD_SEED").unwrap_or_else(now);
    println!("ONEREAD_SEED={seed}");
    let faults = [&FAULTS[..], &FAULTS_OVER_VERBS].concat();
    Cluster::start_over_verbs(seed, given("ONEREAD_RULE")).run(time, &faults, true);
}

/// A broken rule is noticed, over verbs, too.
#[cfg(feature = "faults")]
#[test]
fn a_broken_rule_is_found_over_verbs() {
    if !is_wanted() {
        return;
    }
    let _one = one_at_a_time();
    let (seed, rule) = broken_rule();
    let mut cluster = Cluster::start_over_verbs(seed, Some(rule));
    cluster.run_until_wrong(&[Fault::StopNodeAndCutClient], paced(common::SOON));
}
