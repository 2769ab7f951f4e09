//! What a GET costs more in a cluster than on its node's table alone, in instructions, counted by callgrind, with limits.
//! With etcd, valgrind and gungraun-runner installed:
//!
//! ```sh
//! cargo bench -p oneread-lab --features cluster --bench count_cluster
//! ```
//!
//! What is counted is the calling thread's. The thread that READs the page, and the node, are beside. The look at the clock is
//! counted as the call that it is: valgrind has no vDSO, in which it takes 89 instructions more (single steps, Linux 6, TSC).
//! Each bench GETs 100 keys; what is known as `table` does so on the node's table, by a client of its own. `two` are keys at two
//! nodes.

#![allow(missing_docs, reason = "gungraun's macros make public items")]

#[path = "../../cluster/tests/common/mod.rs"]
mod common;

use common::{Etcd, config, has_etcd, name, node, until};
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group};
use oneread::Client;
use oneread_cluster::client::{ClusterClient, ClusterOptions};
use oneread_cluster::etcd::EtcdStore;
use oneread_cluster::node::ClusterNode;
use std::collections::HashSet;
use std::hint::black_box;
use std::time::Duration;

/// GETs of a bench.
const GETS: u32 = 100;
/// So long that no lease ends, however slow valgrind makes what is beside.
const TTL: Duration = Duration::from_secs(30);

/// A cluster, with handles of it, and of the table of its first node.
struct Served {
    client: ClusterClient,
    table: Client,
    keys: Vec<[u8; 16]>,
    value: Vec<u8>,
    nodes: Vec<ClusterNode>,
    _etcd: Etcd,
    _folder: tempfile::TempDir,
}

fn served(nodes: usize) -> Box<Served> {
    assert!(has_etcd(), "GETs in a cluster are counted with an etcd");
    let folder = tempfile::tempdir().expect("a folder");
    let etcd = Etcd::start(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = EtcdStore::connect(name(), etcd.options()).await.expect("etcd");
        store.init(&config(64, 1, TTL)).await.expect("a new cluster");
    });
    let start = |number| ClusterNode::start(node(folder.path(), number, etcd.options())).expect("a node");
    let nodes: Vec<ClusterNode> = (0..nodes).map(start).collect();
    let mut options = ClusterOptions::default();
    options.deadline = Duration::from_secs(60);
    let mut client = ClusterClient::connect(name(), etcd.options(), options).expect("a client");
    let table = Client::connect(nodes[0].server().address()).expect("its table");
    let keys: Vec<[u8; 16]> = (0..GETS).map(|key| u128::from(key).to_be_bytes()).collect();
    let primaries = |client: &ClusterClient| -> HashSet<_> {
        keys.iter().filter_map(|key| client.primary(client.shard_of(key))).collect()
    };
    until("each node serves some of the keys", || primaries(&client).len() == nodes.len());
    for key in &keys {
        client.put(key, &[7; 32]).expect("a put");
    }
    // Shards that are being moved have none for a while.
    until("all have a lease", || keys.iter().all(|key| client.get(key).is_ok() && client.has_lease(key)));
    let mut served = Served { client, table, keys, value: Vec::new(), nodes, _etcd: etcd, _folder: folder };
    // What the first ones prepare is prepared.
    gets_in_cluster(&mut served);
    if served.nodes.len() == 1 {
        gets_of_table(&mut served);
    }
    Box::new(served)
}

fn gets_in_cluster(served: &mut Served) {
    let Served { client, keys, value, .. } = served;
    assert!(keys.iter().all(|key| client.get_into(key, value).is_ok_and(|is_there| is_there)));
    assert!(client.get_many(keys).is_ok_and(|values| values.iter().all(Option::is_some)));
}

fn gets_of_table(served: &mut Served) {
    let Served { table, keys, value, .. } = served;
    assert!(keys.iter().all(|key| table.get_into(key, value).is_ok_and(|is_there| is_there)));
    assert!(table.get_many(keys).is_ok_and(|values| values.iter().all(|value| matches!(value, Ok(Some(_))))));
}

fn at_most(each: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, each * u64::from(GETS))]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

#[library_benchmark]
#[bench::table(args = (served(1)), config = at_most(655))]
fn get_of_table(mut served: Box<Served>) -> Box<Served> {
    let Served { table, keys, value, .. } = &mut *served;
    assert!(keys.iter().all(|key| table.get_into(black_box(key), value).is_ok_and(|is_there| is_there)));
    served
}

#[library_benchmark]
#[bench::cluster(args = (served(1)), config = at_most(797))]
fn get_in_cluster(mut served: Box<Served>) -> Box<Served> {
    let Served { client, keys, value, .. } = &mut *served;
    assert!(keys.iter().all(|key| client.get_into(black_box(key), value).is_ok_and(|is_there| is_there)));
    served
}

#[library_benchmark]
#[bench::table(args = (served(1)), config = at_most(901))]
fn batch_of_table(mut served: Box<Served>) -> Box<Served> {
    let Served { table, keys, .. } = &mut *served;
    assert!(table.get_many(black_box(keys)).is_ok());
    served
}

#[library_benchmark]
#[bench::cluster(args = (served(1)), config = at_most(945))]
#[bench::two(args = (served(2)), config = at_most(1087))]
fn batch_in_cluster(mut served: Box<Served>) -> Box<Served> {
    let Served { client, keys, .. } = &mut *served;
    assert!(client.get_many(black_box(keys)).is_ok());
    served
}

library_benchmark_group!(
    name = counts,
    benchmarks = [get_of_table, get_in_cluster, batch_of_table, batch_in_cluster]
);
/// What gungraun makes of the benches.
mod harness {
    use super::*;

    use gungraun::main;

    main!(
        // etcd is a process of its own, and is not counted.
        config = LibraryBenchmarkConfig::default()
            .pass_through_env("PATH")
            .tool(Callgrind::with_args(["--trace-children=no"])),
        library_benchmark_groups = [counts]
    );

    pub fn run() {
        main();
    }
}

fn main() {
    // `cargo test` builds benches, and runs them without this.
    if std::env::args().any(|argument| argument == "--bench" || argument == "--gungraun-run") {
        harness::run();
    }
}
