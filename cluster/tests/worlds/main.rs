//! The core of a cluster in random worlds. Nodes and clients are the real code; the network, etcd, memory, clocks and
//! whatever goes wrong are here.
//!
//! Three machines, up to two shards of two keys, three clients, one etcd. Every process has a clock of its own rate and
//! stops at any step for as long as it likes; the memory of a stopped node can still be READ. Messages are late or
//! lost, links break one way or both, processes are killed, also between two stores, and start again, memory is lost or too small, and
//! etcd goes back to a backup. A READ samples each word at an instant of its own, long after it was issued if it
//! likes. At the end all is mended, and each copy in sync is made primary in turn.
//!
//! What clients saw of a key must have an order (linearizability): GETs by READ and by request, puts, inserts, swaps,
//! removes, each with its outcome; and what a primary removes by itself: at random, to make room, at their end, or with their
//! owner. At the end every shard must be served.
//!
//! Followers of each shard's changes keep a copy of what they have heard of since their last gap. It fits each change,
//! and is what the node has when they have heard of all.
//!
//! Whoever was told that an owner is gone from a shard finds none of its entries there.
//!
//! The rules show nothing wrong. Each switch breaks one and is found, in the same worlds. What a world is like is
//! drawn from its seed: much is left out of most worlds, and some follow a plot.

mod clients;
mod followers;
#[path = "../common/history.rs"]
mod history;
mod machine;
mod owning;
mod two_nodes;
mod world;

use oneread_cluster::faults::{self, Rule};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{Counts, KEYS, NOT_SERVED, SHARDS, World};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// Nothing.
    Nothing,
    /// A rule of the code.
    Rule(Rule),
    /// CL15: results end with the process.
    ResultsInProcess,
    /// CL19: what begins a session is sent twice.
    OwnersAskedTwice,
    /// CL16: a node whose memory is lost keeps its name.
    NameKept,
    /// CL17: the operator does not wait for all nodes.
    SomeNodesAsked,
}

/// Runs one world: whether there is an order that explains what its clients saw, and what happened.
fn run(seed: u64, broken: Broken) -> (bool, Counts) {
    faults::breaks(match broken {
        Broken::Rule(rule) => Some(rule),
        _ => None,
    });
    let mut world = World::new(seed, broken);
    world.run();
    let keys = (0..SHARDS).flat_map(|shard| (0..KEYS).map(move |key| (shard, key)));
    let is_right =
        keys.into_iter().all(|(shard, key)| history::is_linearizable(&world.history, shard as u16, key));
    if world.traces {
        println!("{:?} from {}", world.plot, world.plot_at);
        world.history.iter().for_each(|event| println!("{event:?}"));
    }
    let wrong = world.followers.wrong.or(world.wrong);
    if let Some(why) = wrong.as_ref().filter(|_| broken == Broken::Nothing) {
        println!("world {seed}: {why}");
    }
    (is_right && wrong.is_none(), world.counts)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn threads() -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    number("ONEREAD_THREADS").unwrap_or(cores).max(1)
}

/// `ONEREAD_TRACE=1` prints what happens. `ONEREAD_SEED` is the first world, `ONEREAD_WORLDS` how many there are, on `ONEREAD_THREADS` threads.
#[test]
fn nothing_is_wrong() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let first = number("ONEREAD_SEED").unwrap_or(0);
    let worlds = number("ONEREAD_WORLDS").unwrap_or(if is_long { 1_000_000 } else { 2_000 });
    let threads = threads();
    let done = AtomicU64::new(0);
    let sums = Mutex::new(Counts::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (done, sums) = (&done, &sums);
            scope.spawn(move || {
                for seed in (first + thread..first + worlds).step_by(threads as usize) {
                    let (is_right, counts) = run(seed, Broken::Nothing);
                    assert!(is_right, "world {seed}: {counts:?}");
                    assert!(
                        !counts.contains_key(NOT_SERVED),
                        "world {seed}: nobody serves a shard: {counts:?}"
                    );
                    let mut sums = sums.lock().unwrap();
                    counts.into_iter().for_each(|(what, n)| *sums.entry(what).or_default() += n);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if done % (worlds / 20).max(1) == 0 {
                        println!("{done} of {worlds} worlds from {first} on: nothing");
                    }
                }
            });
        }
    });
    let sums = sums.into_inner().unwrap();
    println!("{sums:#?}");
    // All that the rules are about has happened.
    if worlds >= 2_000 {
        assert_eq!(sums.len(), 31, "{sums:?}");
        // Who follows misses some at times, and goes on mostly.
        assert!(0 < sums["gaps"] && 4 * sums["gaps"] < sums["told"], "{sums:?}");
    }
}

const RULES: [Rule; 58] = [
    Rule::AskedAfterwards,
    Rule::BeatAfterDeposed,
    Rule::LeaseFromSecondRead,
    Rule::AnyNewAnswer,
    Rule::LivesMixed,
    Rule::LeaseTooLong,
    Rule::NoWord,
    Rule::WordOfOtherShard,
    Rule::ClockBeforeRead,
    Rule::ReplyWithoutLease,
    Rule::VisibleFirst,
    Rule::AnsweredFirst,
    Rule::ChannelWithGaps,
    Rule::AnswerOfOldChannel,
    Rule::LeftOutWithoutEtcd,
    Rule::TakenWhileItBeats,
    Rule::NoTtl,
    Rule::NoWaitAfterHandOver,
    Rule::WaitForgotten,
    Rule::NextIsOut,
    Rule::FrozenCopyFreed,
    Rule::OpenAtStart,
    Rule::OpenWhenRefused,
    Rule::OldEpochAtStart,
    Rule::WalkBesideLock,
    Rule::CountsLate,
    Rule::NewcomerForgotten,
    Rule::WalkIsEnough,
    Rule::NoRoomHeld,
    Rule::RefusedLate,
    Rule::CopyGivenUp,
    Rule::OldCopyKept,
    Rule::EvictsAlone,
    Rule::EndedMeanwhile,
    Rule::EndsNotWalked,
    Rule::OwnersNotWalked,
    Rule::AnyonePuts,
    Rule::PutBesideOwner,
    Rule::OnePass,
    Rule::ResultsEvicted,
    Rule::FailureAtOnce,
    Rule::ResultsAlone,
    Rule::ResultsNotWalked,
    Rule::RefusalsForgotten,
    Rule::HalfDone,
    Rule::RepeatedWithoutId,
    Rule::OneCopyForAll,
    Rule::AnyEtcd,
    Rule::RevisionOnly,
    Rule::BackupBelieved,
    Rule::UnreachedJoined,
    Rule::ClaimsUnheard,
    Rule::CountsAtStart,
    Rule::ForgottenAtStart,
    Rule::OldCopyBelieved,
    Rule::FeedByNumber,
    Rule::ToldFirst,
    Rule::UnderWayUncounted,
];

fn all() -> Vec<Broken> {
    let of_world =
        [Broken::ResultsInProcess, Broken::OwnersAskedTwice, Broken::NameKept, Broken::SomeNodesAsked];
    RULES.into_iter().map(Broken::Rule).chain(of_world).collect()
}

/// The worlds find each broken rule. `ONEREAD_WORLDS` is how many are tried of each.
#[test]
fn every_broken_rule_is_found() {
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let first = number("ONEREAD_SEED").unwrap_or(0);
    let worlds = number("ONEREAD_WORLDS").unwrap_or(if is_long { 50_000 } else { 10_000 });
    let only = std::env::var("ONEREAD_RULE").unwrap_or_default();
    let meant: Vec<Broken> =
        all().into_iter().filter(|broken| format!("{broken:?}").contains(&only)).collect();
    let (next, missed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let search = || {
        while let Some(&broken) = meant.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            match (first..first + worlds).find(|&seed| !run(seed, broken).0) {
                Some(seed) => println!("{broken:?}: found in world {seed}, the {}th", seed - first + 1),
                None => {
                    println!("{broken:?}: nothing in {worlds} worlds from {first} on");
                    missed.lock().unwrap().push(broken);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..threads()).for_each(|_| drop(scope.spawn(search))));
    let missed = missed.into_inner().unwrap();
    assert_eq!(missed, [], "not found in {worlds} worlds");
}
