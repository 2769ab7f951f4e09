//! How quickly the copies that died with a node are made again, and what GETs see of it.

use super::load::Load;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use oneread_cluster::client::ClusterClient;
use oneread_cluster::core::state::{NodeId, ShardIx};
use oneread_kit::cluster::{Cluster, Seen};
use oneread_kit::threads::at_once_beside;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// GETs are timed for so long before the node is killed.
const QUIET: Duration = Duration::from_secs(2);
/// Copies of a million keys are made within this time, on a machine that is slow.
const LONGEST: Duration = Duration::from_secs(600);
/// Between two GETs. The rest of the CPU is the nodes'.
const REST: Duration = Duration::from_micros(200);

/// What it came to.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Keys whose second copy was made.
    pub keys: u64,
    /// From when the first shard was without the node until all had their copies.
    pub took: Duration,
    /// A GET before, and meanwhile.
    pub get_us_p99: [f64; 2],
}

impl Copied {
    pub fn keys_per_s(&self) -> f64 {
        self.keys as f64 / self.took.as_secs_f64()
    }
}

/// When GETs are made.
#[repr(u8)]
enum Phase {
    Quiet,
    Killed,
    Copying,
}

/// Kills a node, waits until the others have all copies again, and starts it again. Nothing is put meanwhile.
pub fn copy_again(cluster: &mut Cluster, load: &Load) -> Result<Copied> {
    let copies = usize::from(cluster.config.replicas);
    ensure!(cluster.nodes.len() > copies, "a copy that dies is made again only where a node is left for it");
    let victim = cluster.nodes[0].id;
    let had = cluster.look()?;
    let of_victim: Vec<ShardIx> = (0..)
        .zip(&had.shards)
        .filter(|(_, state)| state.in_sync.has(victim))
        .map(|(shard, _)| shard)
        .collect();
    let keys = load.keys_of(of_victim.iter().copied()).len() as u64;
    let (phase, is_over) = (AtomicU8::new(Phase::Quiet as u8), AtomicBool::new(false));
    let reader = cluster.client()?;
    let (copied, gets) = at_once_beside(
        [reader],
        |client| time_gets(client, load, &phase, &is_over),
        || {
            std::thread::sleep(QUIET);
            let copied = kill_and_wait(cluster, victim, &of_victim, copies, &phase);
            is_over.store(true, Ordering::Relaxed);
            copied
        },
    )?;
    let took = copied?;
    cluster.nodes[0].process.restart()?;
    cluster.until_settled(|| Ok(()))?;
    let gets = gets.into_iter().next().context("there was one thread")?;
    let p99 = |phase: Phase| gets[phase as usize].value_at_quantile(0.99) as f64 / 1e3;
    Ok(Copied { keys, took, get_us_p99: [p99(Phase::Quiet), p99(Phase::Copying)] })
}

fn kill_and_wait(
    cluster: &mut Cluster,
    victim: NodeId,
    shards: &[ShardIx],
    copies: usize,
    phase: &AtomicU8,
) -> Result<Duration> {
    cluster.nodes[0].process.kill()?;
    phase.store(Phase::Killed as u8, Ordering::Relaxed);
    let states = |seen: &Seen| -> Vec<(bool, usize)> {
        let of = shards.iter().filter_map(|shard| seen.shards.get(usize::from(*shard)));
        of.map(|state| (state.in_sync.has(victim), state.in_sync.len())).collect()
    };
    let is_without = |seen: &Seen| states(seen).iter().any(|(has, _)| !has);
    cluster.until(LONGEST, is_without, |_| "a killed node was not given up".into())?;
    let begun = Instant::now();
    phase.store(Phase::Copying as u8, Ordering::Relaxed);
    let are_whole = |seen: &Seen| states(seen).iter().all(|(has, len)| !has && *len >= copies);
    cluster.until(LONGEST, are_whole, |seen| {
        let missing = states(seen).iter().filter(|(has, len)| *has || *len < copies).count();
        format!("{missing} shards lack a copy")
    })?;
    Ok(begun.elapsed())
}

/// Times of GETs in nanoseconds, by phase. GETs while nobody has a lease on the dead node's shards do not count.
fn time_gets(
    mut client: ClusterClient,
    load: &Load,
    phase: &AtomicU8,
    is_over: &AtomicBool,
) -> Result<[Histogram<u64>; 3]> {
    let mut times = [Histogram::new(3)?, Histogram::new(3)?, Histogram::new(3)?];
    let mut value = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let key = load.any_key().bytes();
        let at = phase.load(Ordering::Relaxed);
        let begun = Instant::now();
        let got = client.get_into(&key, &mut value);
        let took = begun.elapsed();
        match got {
            Ok(is_there) => ensure!(is_there, "a key that was put is not there"),
            Err(error) => ensure!(at == Phase::Killed as u8, "a GET while copies are made: {error}"),
        }
        times[usize::from(at)].record(took.as_nanos() as u64)?;
        std::thread::sleep(REST);
    }
    Ok(times)
}
