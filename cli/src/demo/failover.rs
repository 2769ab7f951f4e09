//! The act of the demo in which one of three nodes of a cluster is killed.

use super::growth::{COLUMNS, bars};
use super::names::{Named, Tell, Versioned};
use anyhow::{Context, Result, bail, ensure};
use oneread_cluster::client::{ClusterClient, ClusterError};
use oneread_cluster::core::state::ShardIx;
use oneread_kit::cluster::{Cluster, Size};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::threads::at_once_beside;
use rand::RngExt;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a node may be silent. Shorter than by default: the demo waits for it.
const TTL: Duration = Duration::from_secs(1);
const SHARDS: ShardIx = 64;
const NODES: usize = 3;
/// One name in so many is a key.
const ONE_IN: usize = 8;
/// Between two puts of a shard, and between some GETs: a host may have two cores, and the nodes need them, too.
const PUT_REST: Duration = Duration::from_millis(20);
const GET_REST: Duration = Duration::from_micros(200);
const GETS: u32 = 32;
/// How long all goes on before the kill, and behind the takeover.
const CALM: Duration = Duration::from_millis(500);
/// The longest time until puts of the dead node's shards go on.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of it. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
pub struct FailoverOutcome {
    pub nodes: usize,
    pub shards: ShardIx,
    pub keys: usize,
    pub ttl_ms: u64,
    /// Shards of which the killed node was the primary.
    pub shards_killed: usize,
    /// Puts.
    pub acknowledged: u64,
    /// Puts of which nobody knows whether they were made.
    pub unknown: u64,
    /// Keys whose last acknowledged put is gone.
    pub lost: u64,
    pub gets: u64,
    pub failed: u64,
    /// GETs that did not find their key, which was there.
    pub missed: u64,
    /// GETs that returned less than had been acknowledged, or read, before.
    pub stale: u64,
    pub wrong: u64,
    /// Longest time for which a shard of the killed node's took no put.
    pub put_pause_ms: f64,
    /// Longest time for which another shard took no put.
    pub other_put_pause_ms: f64,
    /// Longest time between two GETs that found something.
    pub get_gap_ms: f64,
    #[serde(skip)]
    picture: String,
}

/// A key, which one thread puts, and what is known of it.
struct Key<'a> {
    key: &'a [u8],
    name: &'a str,
    /// The last version that was put.
    asked: AtomicU16,
    acknowledged: AtomicU16,
    /// The newest one that was acknowledged or read.
    newest: AtomicU16,
}

/// When operations ended, and how many.
type Ended = Vec<(Instant, u32)>;

impl<'a> Key<'a> {
    fn new((key, name): &'a Named) -> Key<'a> {
        let none = || AtomicU16::new(0);
        Key { key, name, asked: none(), acknowledged: none(), newest: none() }
    }

    /// A new version, to be put. `None`: there were so many.
    fn next(&self) -> Option<(u16, String)> {
        let version = self.asked.load(Ordering::Acquire).checked_add(1)?;
        self.asked.store(version, Ordering::Release);
        Some((version, Versioned::value(self.name, version)))
    }

    fn is_acknowledged(&self, version: u16) {
        self.acknowledged.store(version, Ordering::Release);
        self.newest.fetch_max(version, Ordering::AcqRel);
    }

    /// The version of a value that was put under this key.
    fn version(&self, value: &[u8]) -> Option<u16> {
        let version = Versioned::parse(value, self.name)?;
        (1..=self.asked.load(Ordering::Acquire)).contains(&version).then_some(version)
    }
}

/// What the threads share.
struct Load<'a> {
    keys: Vec<Key<'a>>,
    acknowledged: AtomicU64,
    unknown: AtomicU64,
    /// Puts of each shard that were acknowledged to its writer.
    written: Vec<AtomicU64>,
    is_over: AtomicBool,
}

impl Load<'_> {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Ends all threads, if this one has met an error.
    fn ended<R>(&self, outcome: Result<R>) -> Result<R> {
        if outcome.is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Puts each key for the first time.
    fn begin(&self, client: &mut ClusterClient) -> Result<()> {
        let bar = Progress::of(self.keys.len() as u64, "  loading", "keys");
        for some in self.keys.chunks(256) {
            let entries: Vec<_> = some.iter().filter_map(|key| Some((key.key, key.next()?.1))).collect();
            for (key, ended) in some.iter().zip(client.put_many(&entries)) {
                ended.context("loading keys into the cluster")?;
                key.is_acknowledged(1);
            }
            self.acknowledged.fetch_add(some.len() as u64, Ordering::Relaxed);
            bar.inc(some.len() as u64);
        }
        bar.finish();
        Ok(())
    }

    /// Puts a shard's keys, one after the other, until it is over.
    fn write(
        &self,
        mut client: ClusterClient,
        shard: usize,
        mut mine: Vec<&Key<'_>>,
        bar: &Progress,
    ) -> Result<Ended> {
        let mut ended = Vec::new();
        let mut at = 0;
        while self.goes_on() && !mine.is_empty() {
            at = (at + 1) % mine.len();
            let key = mine[at];
            let Some((version, value)) = key.next() else { break };
            match client.put(key.key, value.as_bytes()) {
                Ok(()) => {
                    key.is_acknowledged(version);
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    ended.push((Instant::now(), 1));
                    self.written[shard].fetch_add(1, Ordering::Relaxed);
                    bar.inc(1);
                }
                Err(ClusterError::NotDone { .. }) => {}
                Err(ClusterError::Unknown { .. }) => {
                    // It may yet be made, so nothing else is put there.
                    self.unknown.fetch_add(1, Ordering::Relaxed);
                    mine.swap_remove(at);
                }
                Err(error) => bail!(error),
            }
            std::thread::sleep(PUT_REST);
        }
        Ok(ended)
    }

    /// Reads keys at random until it is over.
    fn read(&self, mut client: ClusterClient) -> Result<(FailoverOutcome, Ended)> {
        let (mut seen, mut ended) = (FailoverOutcome::default(), Vec::new());
        let (mut value, mut random) = (Vec::new(), rand::rng());
        let mut last = Instant::now();
        while self.goes_on() {
            for _ in 0..GETS {
                let key = &self.keys[random.random_range(0..self.keys.len())];
                let newest = key.newest.load(Ordering::Acquire);
                let found = client.get_into(key.key, &mut value);
                seen.gets += 1;
                match found {
                    Ok(true) => match key.version(&value) {
                        Some(version) => {
                            seen.stale += u64::from(version < newest);
                            key.newest.fetch_max(version, Ordering::AcqRel);
                        }
                        None => seen.wrong += 1,
                    },
                    Ok(false) => seen.missed += 1,
                    Err(ClusterError::Unavailable { .. }) => {
                        seen.failed += 1;
                        continue;
                    }
                    Err(error) => bail!(error),
                }
                let now = Instant::now();
                seen.get_gap_ms = seen.get_gap_ms.max(ms(now - last));
                last = now;
            }
            ended.push((last, GETS));
            std::thread::sleep(GET_REST);
        }
        Ok((seen, ended))
    }

    /// Keys that have less in the end than was acknowledged, or nothing, or what was never put.
    fn lost(&self, client: &mut ClusterClient) -> Result<u64> {
        let mut lost = 0;
        for some in self.keys.chunks(256) {
            let keys: Vec<_> = some.iter().map(|key| key.key).collect();
            let values = client.get_many(&keys).context("reading all keys in the end")?;
            for (key, value) in some.iter().zip(values) {
                let version = value.and_then(|value| key.version(&value)).unwrap_or(0);
                lost += u64::from(version < key.acknowledged.load(Ordering::Acquire));
            }
        }
        Ok(lost)
    }
}

/// Starts a cluster, and kills a node while keys are put and read.
pub fn run(names: &[Named], tell: &Tell<'_>) -> Result<FailoverOutcome> {
    tell(&show::bold("Three nodes share keys, each key at two of them. etcd says who serves what."))?;
    let bar = Progress::of(NODES as u64, "  starting", "nodes");
    let size = Size { name: "demo", nodes: NODES, shards: SHARDS, copies: 2, ttl: TTL };
    let mut cluster = Cluster::start(size, || bar.inc(1))?;
    bar.finish();
    let load = Load {
        keys: names.iter().step_by(ONE_IN).map(Key::new).collect(),
        acknowledged: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        written: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
        is_over: AtomicBool::new(false),
    };
    let client = cluster.client()?.exactly_once(true);
    load.begin(&mut client.clone())?;
    // Has leases on all nodes from then on.
    let lost = load.lost(&mut client.clone())?;
    let seen = cluster.look()?;
    let served = |node: usize| seen.served_by(cluster.nodes[node].id);
    let victim = (0..NODES).max_by_key(|node| served(*node).len()).unwrap_or(0);
    let served = served(victim);
    ensure!(!served.is_empty(), "no node serves anything: please report this");
    tell(&format!(
        "  {} keys are there. A thread for each shard puts them, and one reads all.",
        show::count(load.keys.len() as u64)
    ))?;
    tell(&show::bold(&format!(
        "Now the node that serves most is killed (SIGKILL): {} of {SHARDS} shards.",
        served.len()
    )))?;

    let mut by_shard: Vec<Vec<&Key<'_>>> = vec![Vec::new(); SHARDS.into()];
    for key in &load.keys {
        by_shard[usize::from(cluster.config.shard_of(key.key))].push(key);
    }
    let bar = Progress::of_unknown("  putting and reading", "puts");
    let begun = Instant::now();
    let writers: Vec<_> =
        by_shard.into_iter().enumerate().map(|(shard, mine)| (client.clone(), shard, mine)).collect();
    // What a thread has met comes first: it ends the others, too.
    let write = |(client, shard, mine)| load.ended(load.write(client, shard, mine, &bar));
    let (read, puts) = at_once_beside(writers, write, || {
        at_once_beside(
            [client.clone()],
            |client| load.ended(load.read(client)),
            || {
                let done = kill(&mut cluster, victim, &served, &load);
                load.is_over.store(true, Ordering::Relaxed);
                done
            },
        )
    })?;
    let (done, mut readers) = read?;
    let (killed, taken_over) = done?;
    let (mut outcome, gets) = readers.pop().context("a reader")?;
    let over = Instant::now();
    bar.finish();
    let is_its = |shard: usize| served.iter().any(|(of, _)| usize::from(*of) == shard);
    let (its, others): (Vec<_>, Vec<_>) = puts.into_iter().enumerate().partition(|(shard, _)| is_its(*shard));
    let longest = |puts: &[(usize, Ended)]| {
        let of_shards = puts.iter().map(|(_, ended)| pause(ended, killed, taken_over));
        ms(of_shards.max().unwrap_or_default())
    };
    (outcome.put_pause_ms, outcome.other_put_pause_ms) = (longest(&its), longest(&others));
    let all = |puts: Vec<(usize, Ended)>| puts.into_iter().flat_map(|(_, ended)| ended).collect::<Ended>();
    let (its, others) = (all(its), all(others));
    outcome.picture = [("puts to these", &its), ("other puts", &others), ("GETs", &gets)]
        .map(|(name, ended)| format!("  {name:<14} {}", bars(&binned(ended, begun, over))))
        .join("\n");
    outcome.lost = lost + load.lost(&mut cluster.client()?)?;
    (outcome.nodes, outcome.shards, outcome.keys) = (NODES, SHARDS, load.keys.len());
    outcome.ttl_ms = TTL.as_millis() as u64;
    outcome.shards_killed = served.len();
    outcome.acknowledged = load.acknowledged.into_inner();
    outcome.unknown = load.unknown.into_inner();
    Ok(outcome)
}

/// Kills a node when all has gone on for a while. Returns when that was, and when others had taken its shards over and
/// took puts of them.
fn kill(
    cluster: &mut Cluster,
    victim: usize,
    served: &[(ShardIx, u64)],
    load: &Load<'_>,
) -> Result<(Instant, Instant)> {
    std::thread::sleep(CALM);
    let killed = Instant::now();
    cluster.nodes[victim].process.kill()?;
    cluster.until(
        PATIENCE,
        |seen| seen.are_taken_over(served),
        |_| "shards of the killed node have no other primary".into(),
    )?;
    let written = |shard: ShardIx| load.written[usize::from(shard)].load(Ordering::Relaxed);
    let before: Vec<(ShardIx, u64)> = served.iter().map(|(shard, _)| (*shard, written(*shard))).collect();
    let begun = Instant::now();
    while before.iter().any(|(shard, before)| written(*shard) <= *before) && load.goes_on() {
        ensure!(
            begun.elapsed() < PATIENCE,
            "the standbys took no put within {}; RUST_LOG=debug makes nodes say why",
            show::time(PATIENCE)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let taken_over = Instant::now();
    std::thread::sleep(CALM);
    Ok((killed, taken_over))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The longest time between two that ended, of which a part lies between these instants.
fn pause(ended: &Ended, from: Instant, until: Instant) -> Duration {
    let gaps = ended.windows(2).map(|two| (two[0].0, two[1].0));
    let within = gaps.filter(|(begin, end)| *begin <= until && *end >= from);
    within.map(|(begin, end)| end - begin).max().unwrap_or_default()
}

/// How many ended in each of some parts of a time, which are equally long.
fn binned(ended: &Ended, from: Instant, until: Instant) -> Vec<f64> {
    let part = (until - from) / COLUMNS as u32;
    let mut bins = vec![0.0; COLUMNS];
    for (at, count) in ended {
        let bin = at.saturating_duration_since(from).as_nanos() / part.as_nanos().max(1);
        bins[(bin as usize).min(COLUMNS - 1)] += f64::from(*count);
    }
    bins
}

impl FailoverOutcome {
    pub fn is_well(&self) -> bool {
        self.lost + self.missed + self.stale + self.wrong + self.failed == 0
    }

    /// Puts and GETs over time, and what became of them.
    pub fn story(&self) -> String {
        let time = |ms: f64| show::time(Duration::from_millis(ms as u64));
        format!(
            "{}\n  Puts to its shards waited up to {}: a TTL of {}.\n  \
             Others: up to {}, until its copies were left out; the reader {}.\n  \
             {} acknowledged: {} lost. {}: {} missed, {} stale, {} failed.\n",
            self.picture,
            time(self.put_pause_ms),
            time(self.ttl_ms as f64),
            time(self.other_put_pause_ms),
            time(self.get_gap_ms.max(1.0)),
            show::counted(self.acknowledged, "put"),
            self.lost,
            show::counted(self.gets, "GET"),
            self.missed,
            self.stale,
            self.failed,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times are counted where they are, and the last instant is within the last part.
    #[test]
    fn pauses_and_parts() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ended: Ended = [0, 10, 500, 510, 520, 900].map(|ms| (at(ms), 1)).into();
        assert_eq!(pause(&ended, at(100), at(505)).as_millis(), 490);
        assert_eq!(pause(&ended, at(505), at(515)).as_millis(), 10);
        assert_eq!(pause(&ended, at(950), at(960)), Duration::ZERO);
        let bins = binned(&ended, at(0), at(400 + 500));
        assert_eq!((bins.len(), bins.iter().sum::<f64>()), (COLUMNS, 6.0));
        assert_eq!((bins[0], bins[COLUMNS - 1]), (2.0, 1.0));
    }

    /// A key knows which values were put under it.
    #[test]
    fn versions_are_told() {
        let named = (b"U+0041".to_vec(), "LETTER A".to_owned());
        let key = Key::new(&named);
        let (first, value) = key.next().unwrap();
        assert_eq!((first, key.version(value.as_bytes())), (1, Some(1)));
        assert_eq!(key.version(Versioned::value("LETTER A", 2).as_bytes()), None, "it was never put");
        assert_eq!((key.version(b"LETTER A"), key.version(b"")), (None, None));
        key.is_acknowledged(1);
        assert_eq!(key.newest.load(Ordering::Relaxed), 1);
        assert!(FailoverOutcome { unknown: 1, ..FailoverOutcome::default() }.is_well());
        assert!(!FailoverOutcome { stale: 1, ..FailoverOutcome::default() }.is_well());
        assert!(!FailoverOutcome { lost: 1, ..FailoverOutcome::default() }.is_well());
    }
}
