//! `bench failover`: what clients of a cluster see while its nodes are killed, stopped, and relieved of shards.
//!
//! etcd and the nodes are processes of this host. Each shard has a thread that puts its keys, so that each pause is
//! seen; each client has a thread that GETs keys of all.

mod copying;
mod load;
mod outcome;

use crate::arguments::whole;
use crate::measure::{KEY_BYTES, machine};
use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use load::{Key, Load, Put};
use oneread_cluster::client::ClusterClient;
use oneread_cluster::core::state::{NodeId, ShardIx};
use oneread_kit::cluster::{self, Cluster, Size};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::threads::at_once_beside;
use oneread_kit::units::{Period, some_time};
use outcome::{Fault, Outcome, What, faults_table, get_gaps, ms};
use rand::RngExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Shards, and copies of each: what `oneread cluster init` makes.
const SHARDS: ShardIx = 64;
const COPIES: u8 = 2;
/// Shards that are moved at a time.
const MOVED: usize = 4;
/// Entries of a batch.
const BATCH: usize = 64;

/// Kill, stop and relieve nodes of a cluster, and count what is lost
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench failover
  oneread bench failover --rounds 10 --ttl 1s --json

Starts an etcd (the program must be installed) and nodes on this host, all in
processes of their own, with 64 shards of 2 copies each in memory. Each shard
has a thread that puts its keys every 20 ms, exactly once unless --without-ids.
Each client has a thread that GETs keys of all shards, every millisecond. Each
round
  moves   a few shards to other nodes, and back
  kills   a node (SIGKILL), and starts another process with its region file: in
          odd rounds when others have taken over, in even ones at once
  stops   a node (SIGSTOP) for 1.5 TTL: then it goes on, deposed
and waits behind each until all shards have all copies where they should be.

Each key has one writer, and its values count up.
  lost    keys that have an older value in the end than the last acknowledged
  stale   GETs that returned an older value than had been acknowledged to its
          writer, or read by anybody, before the GET began
The exit status is 1 if there is any of either.

A shard takes no put while its primary is dead and not given up, and after a
move until leases on the old primary are over: about a TTL in both cases. On
this host the memory of a dead primary can still be read, so GETs go on until
the lease ends, which is shortly before others take over. Before all that, GETs
by a client of the cluster are compared with those by a client of the same
table, on a node that does nothing else: the difference is the check of the
lease. With three nodes or more one is killed then while nothing is put, and
the time is taken until the others have all copies again.")]
pub struct Failover {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9))]
    nodes: u8,
    /// Number of clients, each with leases of its own
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: u8,
    /// How often shards are moved, a node is killed, and one is stopped
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Least number of keys
    #[arg(long, value_name = "N", default_value = "16384", value_parser = keys)]
    keys: u64,
    /// How long a node may be silent until others take over
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "2s")]
    ttl: Period,
    /// Puts have no ids: while a primary hangs, those that it may have begun wait for it, and may end without a
    /// known outcome
    #[arg(long)]
    without_ids: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses 1000000 and 1e6.
fn keys(text: &str) -> Result<u64, String> {
    let n = whole(text).ok().filter(|n| (1_000..=2_000_000).contains(n));
    n.ok_or_else(|| "a whole number from 1000 to 2000000, as in 16384 or 1e6".into())
}

/// What was seen while things were done to the cluster.
struct Seen {
    faults: Vec<Fault>,
    /// By shard.
    puts: Vec<Vec<Put>>,
    /// By client: when GETs ended.
    gets: Vec<Vec<Instant>>,
}

impl Failover {
    pub fn run(self) -> Result<ExitCode> {
        let (outcome, seen) = self.measure()?;
        show::outcome(self.json, &outcome, || self.show(&outcome, &seen))?;
        Ok(oneread_kit::status(outcome.is_well()))
    }

    fn show(&self, it: &Outcome, seen: &Seen) -> Result<()> {
        show::say(format_args!(
            "{}, {SHARDS} shards of {COPIES} copies, TTL {}, {}\n{}",
            show::counted(it.nodes, "node"),
            show::time(self.ttl.0),
            show::counted(self.clients.into(), "client"),
            show::machine(&machine())
        ))?;
        show::lay_out(faults_table(&seen.faults, &seen.puts, &seen.gets))?;
        let mut table = show::facts();
        let (ms, us) = (|ms: f64| format!("{ms:.0} ms"), |us: f64| format!("{us:.2} µs"));
        for (name, figure) in [
            ("longest pause of a shard's puts, kills and stops", ms(it.unavailable_ms_max)),
            ("the same, moves", ms(it.handover_ms_max)),
            ("between two GETs of a client, 99.9 %", format!("{:.1} ms", it.get_gap_ms_p999)),
            ("the same, longest", ms(it.get_gap_ms_max)),
            ("GETs that failed", show::count(it.failed_gets)),
            ("GET by a client of the cluster", us(it.get_us_p50)),
            ("GET by a client of the table", us(it.table_get_us_p50)),
            ("put, 2 copies", us(it.put_us_p50)),
            ("put_many of 64 keys", us(it.put_many_64_us_p50)),
            ("keys copied again when their node has died", show::count(it.keys_copied)),
            ("the same, a second", show::count(it.keys_copied_per_s as u64)),
            ("GET, 99 %, before", us(it.get_us_p99)),
            ("GET, 99 %, while copies are made", us(it.get_copying_us_p99)),
        ] {
            table.add_row([name.to_owned(), figure]);
        }
        show::lay_out(table)?;
        show::say(format_args!(
            "Killed {} and stopped {}, and moved {}, under {}.",
            show::counted(it.kills, "node"),
            it.stops,
            show::counted(it.moves, "shard"),
            show::counted(it.acknowledged, "acknowledged put"),
        ))?;
        show::say(format_args!(
            "{} lost, and {} returned an old value.",
            show::counted(it.lost, "put"),
            show::counted(it.stale, "GET")
        ))?;
        Ok(())
    }

    fn measure(&self) -> Result<(Outcome, Seen)> {
        let size =
            Size { name: "bench", nodes: self.nodes.into(), shards: SHARDS, copies: COPIES, ttl: self.ttl.0 };
        let mut cluster = Cluster::start(size, || {})?;
        // A kill and a stop of each round may leave one put of a shard without a known outcome, or a few more.
        let load = Load::new(&cluster.config, self.keys as usize, 6 * usize::from(self.rounds));
        let mut outcome = Outcome { nodes: self.nodes.into(), ..Outcome::default() };
        self.time(&cluster, &load, &mut outcome)?;
        if cluster.nodes.len() > usize::from(COPIES) {
            let copied = copying::copy_again(&mut cluster, &load)?;
            outcome.keys_copied = copied.keys;
            outcome.keys_copied_per_s = copied.keys_per_s();
            [outcome.get_us_p99, outcome.get_copying_us_p99] = copied.get_us_p99;
        }
        let seen = self.under_load(&mut cluster, &load, &mut outcome)?;
        outcome.lost = load.check(&mut cluster.client()?)?;
        outcome.acknowledged = load.acknowledged();
        for fault in &seen.faults {
            let pause = ms(fault.pause(&seen.puts));
            let max = match fault.what {
                What::Moved => &mut outcome.handover_ms_max,
                _ => &mut outcome.unavailable_ms_max,
            };
            *max = max.max(pause);
        }
        let gaps = get_gaps(&seen.gets)?;
        outcome.get_gap_ms_p999 = gaps.value_at_quantile(0.999) as f64 / 1e3;
        outcome.get_gap_ms_max = gaps.max() as f64 / 1e3;
        Ok((outcome, seen))
    }

    /// Puts each key, and takes the times of calls while nothing else goes on.
    fn time(&self, cluster: &Cluster, load: &Load, outcome: &mut Outcome) -> Result<()> {
        let mut client = cluster.client()?;
        let all: Vec<&Key> = load.keys().collect();
        for batch in all.chunks(BATCH) {
            load.put_many(&mut client, batch)?;
        }
        let mut times = Histogram::<u64>::new(3)?;
        for _ in 0..2_000 {
            times.record(load.put_one(&mut client, load.any_key())?.as_nanos() as u64)?;
        }
        outcome.put_us_p50 = times.value_at_quantile(0.5) as f64 / 1e3;
        times.reset();
        // Keys that are not beside each other: of all shards.
        let stride = all.len() / BATCH;
        for first in (0..stride).cycle().take(300) {
            let batch: Vec<&Key> = all.iter().skip(first).step_by(stride).take(BATCH).copied().collect();
            times.record(load.put_many(&mut client, &batch)?.as_nanos() as u64)?;
        }
        outcome.put_many_64_us_p50 = times.value_at_quantile(0.5) as f64 / 1e3;
        (outcome.get_us_p50, outcome.table_get_us_p50) = time_gets(cluster, &mut client, load)?;
        Ok(())
    }

    /// Has all threads put and GET while things are done to the cluster.
    fn under_load(&self, cluster: &mut Cluster, load: &Load, outcome: &mut Outcome) -> Result<Seen> {
        let clients = (0..self.clients).map(|_| cluster.client()).collect::<Result<Vec<_>>>()?;
        // With ids a put is sent again to the next primary: its time is the shard's, not the old one's.
        let writer = |shard: usize| clients[shard % clients.len()].clone().exactly_once(!self.without_ids);
        let writers: Vec<_> = (0..usize::from(SHARDS)).map(|shard| (writer(shard), shard)).collect();
        // What a thread has met comes first: it ends the faults, too.
        let write = |(client, shard)| load.write(client, shard);
        let (read, puts) = at_once_beside(writers, write, || {
            at_once_beside(
                clients.clone(),
                |client| load.read(client),
                || {
                    let faults = self.faults(cluster, load, outcome);
                    load.end();
                    faults
                },
            )
        })?;
        let (faults, gets) = read?;
        outcome.failed_gets = gets.iter().map(|gets| gets.failed).sum();
        outcome.stale = gets.iter().map(|gets| gets.stale).sum();
        Ok(Seen { faults: faults?, puts, gets: gets.into_iter().map(|gets| gets.ended).collect() })
    }

    fn faults(&self, cluster: &mut Cluster, load: &Load, outcome: &mut Outcome) -> Result<Vec<Fault>> {
        let bar = Progress::of(3 * u64::from(self.rounds), "failing over", "faults");
        let mut faults = Vec::new();
        std::thread::sleep(cluster.ttl() / 2);
        for round in 0..self.rounds {
            for fault in move_some(cluster, load)? {
                outcome.moves += fault.shards.len() as u64;
                faults.push(fault);
            }
            bar.inc(1);
            let victim = rand::rng().random_range(0..cluster.nodes.len());
            let what = if round % 2 == 0 { What::Killed } else { What::Restarted };
            faults.push(fail(cluster, victim, what, load)?);
            outcome.kills += 1;
            bar.inc(1);
            let victim = rand::rng().random_range(0..cluster.nodes.len());
            faults.push(fail(cluster, victim, What::Stopped, load)?);
            outcome.stops += 1;
            bar.inc(1);
        }
        bar.finish();
        Ok(faults)
    }
}

/// Medians of a GET in microseconds, by a client of the cluster and by one of the table where they are.
fn time_gets(cluster: &Cluster, client: &mut ClusterClient, load: &Load) -> Result<(f64, f64)> {
    const ROUNDS: usize = 40;
    let seen = cluster.look()?;
    let served = |node: NodeId| seen.served_by(node).into_iter().map(|(shard, _)| shard).collect::<Vec<_>>();
    let node = cluster.nodes.iter().map(|node| node.id).max_by_key(|node| served(*node).len());
    let node = node.context("there is no node")?;
    let keys = load.keys_of(served(node).into_iter());
    ensure!(!keys.is_empty(), "node {node} serves nothing; run the bench again");
    let keys: Vec<_> = keys.into_iter().map(Key::bytes).collect();
    let mut table = cluster.table(node)?;
    let (mut ours, mut tables) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    for _ in 0..ROUNDS {
        time_blocks(&keys, &mut ours, |key, value| Ok(client.get_into(key, value)?))?;
        time_blocks(&keys, &mut tables, |key, value| Ok(table.get_into(key, value)?))?;
    }
    let median = |times: Histogram<u64>| times.value_at_quantile(0.5) as f64 / 1e4;
    Ok((median(ours), median(tables)))
}

/// Records times of a GET, in tenths of nanoseconds.
fn time_blocks(
    keys: &[[u8; KEY_BYTES]],
    times: &mut Histogram<u64>,
    mut get: impl FnMut(&[u8], &mut Vec<u8>) -> Result<bool>,
) -> Result<()> {
    /// GETs between two looks at the clock, which takes a part of a GET's time.
    const BLOCK: usize = 32;
    const BLOCKS: usize = 50;
    let (mut value, mut random) = (Vec::new(), rand::rng());
    for _ in 0..BLOCKS {
        let some: [_; BLOCK] = std::array::from_fn(|_| &keys[random.random_range(0..keys.len())]);
        let begun = Instant::now();
        for key in some {
            ensure!(get(key, &mut value)?, "a key that was put is not there");
        }
        times.record(begun.elapsed().as_nanos() as u64 * 10 / BLOCK as u64)?;
    }
    Ok(())
}

/// Waits until all shards are where they should be, and behind that until each has taken a put. Returns since when both
/// were so.
fn until_rest(cluster: &Cluster, load: &Load) -> Result<(Instant, Instant)> {
    let longest = Duration::from_secs(60) + 10 * cluster.ttl();
    let going_on = || {
        ensure!(!load.is_over(), "the load has ended");
        Ok(())
    };
    let settled = cluster.until_settled(going_on)?;
    let (begun, before) = (Instant::now(), load.written());
    while load.written().iter().zip(&before).any(|(now, before)| now <= before) {
        going_on()?;
        ensure!(
            begun.elapsed() < longest,
            "a shard took no put within {} though its copies were where they should be; RUST_LOG=debug makes the nodes say why",
            show::time(longest)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((settled, Instant::now()))
}

/// Moves some shards to other nodes, and back.
fn move_some(cluster: &Cluster, load: &Load) -> Result<[Fault; 2]> {
    let seen = cluster.look()?;
    let first = rand::rng().random_range(0..seen.shards.len());
    let moved: Vec<ShardIx> = (0..MOVED).map(|n| ((first + n) % seen.shards.len()) as ShardIx).collect();
    // To a node that is not the primary: in turn one that has a copy, and one that has none.
    let targets: Vec<(ShardIx, NodeId)> = moved
        .iter()
        .enumerate()
        .filter_map(|(n, shard)| {
            let state = &seen.shards[usize::from(*shard)];
            let mut others: Vec<NodeId> = cluster
                .nodes
                .iter()
                .map(|node| node.id)
                .filter(|node| state.primary != Some(*node))
                .collect();
            others.sort_by_key(|node| state.in_sync.has(*node) != (n % 2 == 0));
            Some((*shard, *others.first()?))
        })
        .collect();
    let settled = |begun: Instant| -> Result<Fault> {
        let (over, rest) = until_rest(cluster, load)?;
        Ok(Fault { what: What::Moved, begun, over, rest, shards: moved.clone() })
    };
    let begun = Instant::now();
    cluster.wish(|wishes| wishes.pinned.extend(targets.iter().copied()))?;
    let there = settled(begun)?;
    let begun = Instant::now();
    cluster.wish(|wishes| *wishes = Default::default())?;
    Ok([there, settled(begun)?])
}

/// Kills a node and starts it again, or stops it for longer than the TTL.
fn fail(cluster: &mut Cluster, victim: usize, what: What, load: &Load) -> Result<Fault> {
    let (ttl, id) = (cluster.ttl(), cluster.nodes[victim].id);
    let before = cluster.look()?;
    let served = before.served_by(id);
    let life = before.nodes.get(&id).map(|key| key.life);
    let begun = Instant::now();
    let taken_over = |cluster: &Cluster| {
        let longest = Duration::from_secs(60) + 10 * ttl;
        let is_so = |seen: &cluster::Seen| seen.are_taken_over(&served);
        cluster.until(longest, is_so, |_| "shards of a node that failed have no other primary".into())?;
        Ok::<_, anyhow::Error>(Instant::now())
    };
    let over = match what {
        What::Stopped => {
            cluster.nodes[victim].process.stop()?;
            // Longer than a TTL: others take over while it is stopped.
            std::thread::sleep((ttl * 3 / 2).saturating_sub(begun.elapsed()));
            cluster.nodes[victim].process.resume()?;
            taken_over(cluster)?
        }
        What::Restarted => {
            cluster.nodes[victim].process.kill()?;
            cluster.nodes[victim].process.restart()?;
            taken_over(cluster)?
        }
        _ => {
            cluster.nodes[victim].process.kill()?;
            let over = taken_over(cluster)?;
            cluster.nodes[victim].process.restart()?;
            over
        }
    };
    let lives_again =
        |seen: &cluster::Seen| seen.nodes.get(&id).is_some_and(|key| key.alive && Some(key.life) != life);
    cluster.until(Duration::from_secs(60) + 10 * ttl, lives_again, |_| {
        "a node that failed did not come back".into()
    })?;
    let (_, rest) = until_rest(cluster, load)?;
    Ok(Fault { what, begun, over, rest, shards: served.into_iter().map(|(shard, _)| shard).collect() })
}
