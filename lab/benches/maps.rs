//! Tables of one size and tables that grow, beside maps of one process: DashMap, papaya, scc, with FxHash.
//! Compare the figures of one run with each other.
//!
//! ```sh
//! cargo bench -p oneread-lab --bench maps                                # both, some minutes
//! cargo bench -p oneread-lab --bench maps -- mixes --log2 22 --rounds 9
//! cargo bench -p oneread-lab --bench maps -- fill --keys 10000000
//! ```
//!
//! * `mixes`: operations of the crate `bustle`, which checks the answers. `uniform` is its own; the others are those
//!   by which `conc-map-bench` compares maps with it. Keys and values have 8 bytes. All but `rapid-grow` begin
//!   with three quarters of the keys for which maps and the table of one size are made.
//! * `fill`: one thread puts new keys of 16 bytes with values of 32. Only the table of one size is told how many.
//!   Beside the time stands the thread's own CPU time, which other programs disturb less.
//!
//! oneread's tables have a server of one worker, which has nothing to do but what a table leaves to idle time.
//! Changes go to its index, and GETs through clients, one for each thread.
//!
//! Without `--bench`, as `cargo test` runs it, all is small, and figures mean nothing.

use anyhow::{Result, ensure};
use bustle::{Collection, CollectionHandle, Mix, Workload};
use clap::{Parser, ValueEnum};
use comfy_table::Cell;
use dashmap::DashMap;
use oneread::internals::layout::hash::mix;
use oneread::{Address, Client, Config, PutMode, PutOutcome, Server, ServerConfig, TableSize};
use oneread_kit::show;
use oneread_kit::threads::cpu_time;
use rustc_hash::FxBuildHasher;
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;

/// Beside maps of one process
#[derive(Parser)]
struct Arguments {
    /// Only this [default: both]
    which: Option<Which>,
    /// The logarithm of the number of keys for which a mix's maps are made
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u8).range(8..29))]
    log2: u8,
    /// Keys of a fill
    #[arg(long, default_value = "10000000", value_parser = clap::value_parser!(u64).range(1_000..1_000_000_000))]
    keys: u64,
    /// Rounds in which all take turns
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Cargo says that figures are wanted
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Which {
    Mixes,
    Fill,
}

fn main() -> Result<()> {
    let mut asked = Arguments::parse();
    if !asked.bench {
        asked = Arguments { which: None, log2: 9, keys: 4_000, rounds: 1, bench: false };
    }
    if asked.which != Some(Which::Fill) {
        mixes(&asked)?;
    }
    if asked.which != Some(Which::Mixes) {
        fill(&asked)?;
    }
    Ok(())
}

// ---- the mixes -------------------------------------------------------------------------------------

/// A mix by its name, and the part of its keys that is there before.
type NamedMix = (&'static str, fn() -> Mix, f64);
/// A map by its name, and what runs a mix on it.
type NamedMap = (&'static str, fn(&Workload) -> f64);

const MIXES: [NamedMix; 4] = [
    ("read-heavy", || Mix { read: 98, insert: 1, remove: 1, update: 0, upsert: 0 }, 0.75),
    ("exchange", || Mix { read: 10, insert: 40, remove: 40, update: 10, upsert: 0 }, 0.75),
    ("uniform", Mix::uniform, 0.75),
    ("rapid-grow", || Mix { read: 5, insert: 80, remove: 5, update: 10, upsert: 0 }, 0.0),
];

/// Those that take turns, with the ways to run a mix over them.
const RIVALS: [NamedMap; 5] = [
    ("DashMap", throughput::<Dash>),
    ("papaya", throughput::<Papaya>),
    ("scc", throughput::<Scc>),
    ("one size", throughput::<Table<false>>),
    ("growing", throughput::<Table<true>>),
];

/// Operations a second.
fn throughput<T: Collection<Handle: CollectionHandle<Key = u64>>>(workload: &Workload) -> f64 {
    workload.run_silently::<T>().throughput
}

fn mixes(asked: &Arguments) -> Result<()> {
    let mut table = show::narrow_table([
        "operations/s",
        "threads",
        "DashMap",
        "papaya",
        "scc",
        "one size",
        "growing",
        "to one size",
        "to DashMap",
    ]);
    for (name, mix, prefilled) in MIXES {
        for threads in [1, 2] {
            let mut rounds = vec![Vec::new(); RIVALS.len()];
            for round in 0..asked.rounds {
                let mut workload = Workload::new(threads, mix());
                workload.initial_capacity_log2(asked.log2).prefill_fraction(prefilled);
                // All rivals get these keys, in this order.
                workload.seed([round; 32]);
                for (rates, (_, run)) in rounds.iter_mut().zip(RIVALS) {
                    rates.push(run(&workload));
                }
            }
            let [dash, _, _, one, growing] = &rounds[..] else { unreachable!("five take turns") };
            let mut row = vec![Cell::new(name), show::number(threads)];
            row.extend(rounds.iter().map(|rates| show::number(show::rate(median(rates)))));
            row.extend([one, dash].map(|other| show::number(format_args!("{:.2}", ratio(growing, other)))));
            table.add_row(row);
        }
    }
    Ok(show::say(format_args!("made for {} keys\n{table}", show::count(1 << asked.log2)))?)
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The median over the rounds.
fn ratio(some: &[f64], others: &[f64]) -> f64 {
    median(&some.iter().zip(others).map(|(one, other)| one / other).collect::<Vec<_>>())
}

/// A map of this process, by how it does the four operations.
macro_rules! rival {
    ($name:ident, $map:ty, $made:expr, get: $get:expr, insert: $insert:expr, remove: $remove:expr, update: $update:expr) => {
        #[derive(Clone)]
        struct $name(Arc<$map>);

        impl Collection for $name {
            type Handle = $name;

            fn with_capacity(capacity: usize) -> $name {
                let made: fn(usize) -> $map = $made;
                $name(Arc::new(made(capacity)))
            }

            fn pin(&self) -> $name {
                self.clone()
            }
        }

        impl CollectionHandle for $name {
            type Key = u64;

            fn get(&mut self, key: &u64) -> bool {
                let get: fn(&$map, &u64) -> bool = $get;
                get(&self.0, key)
            }

            fn insert(&mut self, key: &u64) -> bool {
                let insert: fn(&$map, u64) -> bool = $insert;
                insert(&self.0, *key)
            }

            fn remove(&mut self, key: &u64) -> bool {
                let remove: fn(&$map, &u64) -> bool = $remove;
                remove(&self.0, key)
            }

            fn update(&mut self, key: &u64) -> bool {
                let update: fn(&$map, &u64) -> bool = $update;
                update(&self.0, key)
            }
        }
    };
}

rival! {
    Dash, DashMap<u64, u64, FxBuildHasher>,
    |capacity| DashMap::with_capacity_and_hasher(capacity, FxBuildHasher),
    get: |map, key| map.get(key).is_some(),
    insert: |map, key| map.insert(key, 0).is_none(),
    remove: |map, key| map.remove(key).is_some(),
    update: |map, key| map.get_mut(key).map(|mut value| *value += 1).is_some()
}

rival! {
    Papaya, papaya::HashMap<u64, u64, FxBuildHasher>,
    |capacity| papaya::HashMap::with_capacity_and_hasher(capacity, FxBuildHasher),
    get: |map, key| map.pin().get(key).is_some(),
    insert: |map, key| map.pin().insert(key, 0).is_none(),
    remove: |map, key| map.pin().remove(key).is_some(),
    update: |map, key| map.pin().update(*key, |value| value + 1).is_some()
}

rival! {
    Scc, scc::HashMap<u64, u64, FxBuildHasher>,
    |capacity| scc::HashMap::with_capacity_and_hasher(capacity, FxBuildHasher),
    get: |map, key| map.read_sync(key, |_, _| ()).is_some(),
    insert: |map, key| map.upsert_sync(key, 0).is_none(),
    remove: |map, key| map.remove_sync(key).is_some(),
    update: |map, key| map.update_sync(key, |_, value| *value += 1).is_some()
}

/// A table of one size, or one that grows.
struct Table<const GROWS: bool>(Arc<Served>);

/// One thread's way to a table.
struct Handle {
    served: Arc<Served>,
    client: Client,
    got: Vec<u8>,
}

impl<const GROWS: bool> Collection for Table<GROWS> {
    type Handle = Handle;

    fn with_capacity(capacity: usize) -> Table<GROWS> {
        let keys = capacity as u64;
        let size = if GROWS { TableSize::up_to(bytes_max(keys)) } else { TableSize::Keys(keys) };
        Table(Arc::new(Served::new(Config::new().key_max(8).value_max(8).size(size)).expect("a server")))
    }

    fn pin(&self) -> Handle {
        Handle::of(&self.0)
    }
}

impl Handle {
    fn of(served: &Arc<Served>) -> Handle {
        let mut client = Client::connect(served.server.address()).expect("the server");
        // Every page of the client's mapping is touched before anything is timed, as those of the maps are.
        for key in 0..served.server.index().len() / 4 {
            client.contains(&mix(!key).to_le_bytes()).expect("an answer");
        }
        Handle { served: Arc::clone(served), client, got: Vec::new() }
    }

    fn put(&self, key: &u64, mode: PutMode) -> PutOutcome {
        self.served.server.index().put(&key.to_le_bytes(), &[0; 8], mode).expect("room")
    }
}

impl CollectionHandle for Handle {
    type Key = u64;

    fn get(&mut self, key: &u64) -> bool {
        self.client.get_into(&key.to_le_bytes(), &mut self.got).expect("an answer")
    }

    fn insert(&mut self, key: &u64) -> bool {
        self.put(key, PutMode::Upsert) == PutOutcome::Inserted
    }

    fn remove(&mut self, key: &u64) -> bool {
        self.served.server.index().remove(&key.to_le_bytes()).expect("a key of 8 bytes")
    }

    fn update(&mut self, key: &u64) -> bool {
        self.put(key, PutMode::Update) == PutOutcome::Updated
    }
}

/// A table with a server in this process.
struct Served {
    server: Server,
    _folder: TempDir,
}

impl Served {
    fn new(table: Config) -> Result<Served> {
        let folder = tempfile::tempdir()?;
        let address = Address::Shm(folder.path().join("table"));
        let server = Server::start(ServerConfig::new(address, table).workers(1))?;
        Ok(Served { server, _folder: folder })
    }
}

/// More than a table with this number of short keys ever takes.
fn bytes_max(keys: u64) -> u64 {
    4 * 64 * keys + (64 << 20)
}

// ---- the fill --------------------------------------------------------------------------------------

fn fill(asked: &Arguments) -> Result<()> {
    let keys = asked.keys;
    // Of each, its times on the wall and of the CPU.
    let mut rounds = vec![[Vec::new(), Vec::new()]; 4];
    let note = |rounds: &mut [Vec<f64>; 2], took: [f64; 2]| {
        rounds.iter_mut().zip(took).for_each(|(times, ns)| times.push(ns));
    };
    for _ in 0..asked.rounds {
        let map: DashMap<[u8; 16], [u8; 32], FxBuildHasher> = DashMap::default();
        note(&mut rounds[0], each_ns(keys, || {}, |key, value| map.insert(key, value).is_none())?);
        drop(map);
        let grows = TableSize::up_to(bytes_max(keys));
        for (n, size) in [TableSize::Keys(keys), grows, grows].into_iter().enumerate() {
            let served = Served::new(Config::new().key_max(16).value_max(32).size(size))?;
            let index = served.server.index();
            let put = |key: [u8; 16], value: [u8; 32]| {
                index.put(&key, &value, PutMode::Insert) == Ok(PutOutcome::Inserted)
            };
            let foresee = || {
                if n == 2 {
                    index.grow_for(keys);
                }
            };
            note(&mut rounds[n + 1], each_ns(keys, foresee, put)?);
        }
    }
    let mut table = show::narrow_table(["a fill", "a put", "to DashMap", "CPU time", "to DashMap"]);
    let names = ["DashMap, no capacity reserved", "one size", "growing", "growing, its keys foreseen"];
    for (name, all) in names.into_iter().zip(&rounds) {
        let mut row = vec![Cell::new(name)];
        for (times, of_dash) in all.iter().zip(&rounds[0]) {
            row.push(show::number(show::nanos(median(times))));
            row.push(show::number(format_args!("{:.2}", ratio(times, of_dash))));
        }
        table.add_row(row);
    }
    Ok(show::say(format_args!("to {} keys\n{table}", show::count(keys)))?)
}

/// The time of one put, on average, with what comes before them all: on the wall, and of this thread's CPU. Each
/// must say that the key is new.
fn each_ns(
    keys: u64,
    before: impl FnOnce(),
    mut put: impl FnMut([u8; 16], [u8; 32]) -> bool,
) -> Result<[f64; 2]> {
    let (begun, cpu_begun) = (Instant::now(), cpu_time());
    before();
    let mut new = 0;
    for n in 0..keys {
        let (mut key, mut value) = ([0; 16], [0; 32]);
        key[..8].copy_from_slice(&mix(n).to_le_bytes());
        key[8..].copy_from_slice(&n.to_le_bytes());
        value[..8].copy_from_slice(&mix(!n).to_le_bytes());
        new += u64::from(put(key, value));
    }
    let took = [begun.elapsed(), cpu_time() - cpu_begun];
    ensure!(new == keys, "of {keys} new keys, {new} went in");
    Ok(took.map(|took| took.as_nanos() as f64 / keys as f64))
}
