//! `bench get` and `bench insert`: beside bare memory and maps in one process, or over verbs.

use super::loops::{bare, get_many, get_many_into, spread, timed};
use super::runner::{Timed, Turn, fill, pick, serve, take_turns};
use crate::measure::{KEY_BYTES, VALUE_BYTES, key, latencies, machine, median, value};
#[cfg(feature = "verbs")]
use anyhow::ensure;
use anyhow::{Context, Result};
use clap::Args;
use dashmap::DashMap;
use oneread::internals::layout::hash::mix;
use oneread::internals::region::{Backing, Region};
use oneread::internals::verbs::VerbsOptions;
use oneread::{
    Client, ClientOptions, Config, PutMode, TableSize,
    embedded::{Clock, Index},
    layout::Layout,
    stats::ClientStats,
};
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::progress::Progress;
use oneread_kit::{names, show};
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Debug, Args)]
pub struct Timing {
    /// Number of keys
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    keys: u64,
    /// Number of rounds; the result is their median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The table's layout
    #[arg(long, value_name = "NAME", default_value = "windowed:8", value_parser = names::layout(), hide_possible_values = true)]
    layout: Layout,
    /// What carries the READs of `get`
    #[arg(long, value_enum, default_value = "shm")]
    fabric: Fabric,
    /// READs in flight at once, for get_many (verbs only)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    credits: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A map in this process, with a fast hash function.
type Dash = DashMap<[u8; KEY_BYTES], [u8; VALUE_BYTES], FxBuildHasher>;

/// One contestant's times. The names are those of the JSON output.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    threads: u32,
    /// Median over the rounds, in nanoseconds per operation (wall clock of all threads together).
    ns_per_op: f64,
    ops_per_s: f64,
    /// The ratio to the first line's time.
    ratio: f64,
    /// Fastest and slowest round.
    ns_min: f64,
    ns_max: f64,
}

#[derive(Debug, Serialize)]
struct Outcome {
    what: &'static str,
    machine: String,
    layout: String,
    keys: u64,
    rounds: u32,
    region_bytes: u64,
    lines: Vec<Line>,
}

impl Line {
    /// `times` are those of the rounds, in nanoseconds per operation.
    fn new(name: &str, threads: u32, mut times: Vec<f64>, first: Option<&Line>) -> Line {
        times.sort_by(f64::total_cmp);
        let ns_per_op = times[times.len() / 2];
        Line {
            name: name.into(),
            threads,
            ns_per_op,
            ops_per_s: 1e9 / ns_per_op,
            ratio: first.map_or(1.0, |first| ns_per_op / first.ns_per_op),
            ns_min: times[0],
            ns_max: times[times.len() - 1],
        }
    }
}

/// A contestant's name, and its number of threads.
type Named = (&'static str, u32);

impl Timing {
    pub fn run_get(&self) -> Result<ExitCode> {
        match self.fabric {
            Fabric::Shm => self.get(),
            Fabric::Verbs => self.get_over_verbs(),
            Fabric::Tcp => unreachable!("no argument names it: `bench tcp` does"),
        }
    }

    /// Prints what rounds came to.
    fn show(
        &self,
        what: &'static str,
        region_bytes: u64,
        keys: u64,
        timed: Vec<Timed<Named>>,
    ) -> Result<ExitCode> {
        let mut lines: Vec<Line> = Vec::new();
        for Timed { way: (name, threads), rounds, .. } in timed {
            lines.push(Line::new(name, threads, rounds, lines.first()));
        }
        let (machine, layout, rounds) = (machine(), self.layout.to_string(), self.rounds);
        let outcome = Outcome { what, machine, layout, keys, rounds, region_bytes, lines };
        show::outcome(self.json, &outcome, || {
            show::say(format_args!(
                "{}, layout {}, region of {}, median of {}\n{}",
                show::counted(keys, what),
                self.layout,
                show::bytes(region_bytes),
                show::counted(rounds.into(), "round"),
                show::machine(&outcome.machine)
            ))?;
            show::lay_out(table(&outcome.lines))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn get(&self) -> Result<ExitCode> {
        let n = self.keys;
        let server = self.serve(Fabric::Shm)?;
        let mut client = server.connect()?;
        let region_bytes = client.geometry().region_bytes();
        let dash: Dash = DashMap::with_capacity_and_hasher(n as usize, FxBuildHasher);
        let papa = papaya::HashMap::with_capacity_and_hasher(n as usize, FxBuildHasher);
        let scc = scc::HashMap::with_capacity_and_hasher(n as usize, FxBuildHasher);
        fill(
            &mut client,
            n,
            1024,
            |i| (key(i), value(i)),
            |pairs| {
                let papa = papa.pin();
                for &(key, value) in pairs {
                    dash.insert(key, value);
                    papa.insert(key, value);
                    let _ = scc.insert_sync(key, value);
                }
                Ok(())
            },
        )?;
        let mut map = memmap2::MmapMut::map_anon(region_bytes as usize)?;
        // Asks for huge pages, as for the region. A refusal is ignored, as there.
        let _ = map.advise(memmap2::Advice::HugePage);
        let memory: &mut [[u64; 8]] = bytemuck::cast_slice_mut(&mut map[..]);
        memory.iter_mut().zip(0..).for_each(|(line, number)| *line = [mix(number); 8]);
        let memory = &*memory;

        let pick = |round: u32, i: u64| pick(round, i, n);
        let mut out = Vec::new();
        let [mut client_many, mut client_into, mut client_miss] = [(); 3].map(|()| client.clone());
        let turns: Vec<Turn<'_, Named>> = vec![
            Turn::of(("bare, one after the other", 1), |round| Ok(bare(memory, n, round, true))),
            Turn::of(("bare, all at once", 1), |round| Ok(bare(memory, n, round, false))),
            Turn::of(("oneread get", 1), |round| {
                timed(n, |i| Ok(client.get_into(&key(pick(round, i)), &mut out)? && out.len() == VALUE_BYTES))
            }),
            Turn::of(("oneread get_many", 1), |round| get_many(&mut client_many, n, |i| pick(round, i))),
            Turn::of(("oneread get_many_into", 1), |round| {
                get_many_into(&mut client_into, n, |i| pick(round, i))
            }),
            Turn::of(("oneread miss", 1), |round| {
                timed(n, |i| Ok(!client_miss.contains(&key(u64::MAX - pick(round, i)))?))
            }),
            Turn::of(("dashmap", 1), |round| {
                timed(n, |i| Ok(dash.get(&key(pick(round, i))).is_some_and(|v| black_box(*v)[0] == v[0])))
            }),
            Turn::of(("papaya", 1), |round| {
                let papa = papa.pin();
                timed(n, |i| Ok(papa.get(&key(pick(round, i))).is_some_and(|v| black_box(*v)[0] == v[0])))
            }),
            Turn::of(("scc", 1), |round| {
                timed(n, |i| {
                    let same = scc.read_sync(&key(pick(round, i)), |_, v| black_box(*v)[0] == v[0]);
                    Ok(same == Some(true))
                })
            }),
        ];
        self.show("get", region_bytes, n, take_turns(self.rounds, n, "timing", turns)?)
    }

    /// Measures only what crosses the device. For the device's own limits, use perftest
    /// (docs/BENCHMARKS.md).
    fn get_over_verbs(&self) -> Result<ExitCode> {
        let server = self.serve(Fabric::Verbs)?;
        let connect = |hint_bytes| {
            let verbs = VerbsOptions::new().credits(self.credits.into());
            server.connect_with(ClientOptions::new().verbs(verbs).hint_bytes(hint_bytes))
        };
        let (mut plain, hinted) = (connect(0)?, connect(usize::MAX)?);
        let n = self.keys;
        fill(&mut plain, n, 1024, |i| (key(i), value(i)), |_| Ok(()))?;
        let mut clients = vec![("windows", plain)];
        if hinted.hint_bytes() > 0 {
            clients.push(("hinted slots", hinted));
        }
        // Both do it, so that both are as warm.
        let bar = Progress::of(clients.len() as u64 * u64::from(LEARNING), "learning", "rounds");
        let mut ways = Vec::new();
        for (reads, mut client) in clients {
            for round in 0..LEARNING {
                if round.is_multiple_of(2) {
                    timed(n, |i| Ok(client.contains(&key(i))?))?;
                } else {
                    get_many(&mut client, n, |i| i)?;
                }
                bar.inc(1);
            }
            ways.push(Way::new(reads, client)?);
        }
        bar.finish();
        for round in 0..self.rounds {
            for way in &mut ways {
                let cpu = server.cpu_time()?;
                way.run(n, |i| pick(round, i, n))?;
                way.server_cpu_ms += server.cpu_time()?.ms_since(cpu);
            }
        }
        let found = ways.iter_mut().map(|way| way.found(|i| pick(0, i, n))).collect::<Result<Vec<_>>>()?;
        let json = serde_json::json!({
            "what": "get", "fabric": "verbs", "machine": machine(), "layout": self.layout.to_string(),
            "keys": n, "rounds": self.rounds, "credits": self.credits, "ways": found,
        });
        show::outcome(self.json, &json, || {
            show::say(format_args!(
                "{} over verbs, layout {}, median of {}\n{} READs in flight in get_many\n{}",
                show::counted(n, "key"),
                self.layout,
                show::counted(self.rounds.into(), "round"),
                self.credits,
                show::machine(&machine())
            ))?;
            show::lay_out(ways_table(&found))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn serve(&self, fabric: Fabric) -> Result<ServerChild> {
        serve(fabric, self.keys, VALUE_BYTES, &[format!("--layout={}", self.layout)])
    }

    pub fn run_insert(&self) -> Result<ExitCode> {
        let config = Config::new()
            .layout(self.layout)
            .size(TableSize::Slots(self.keys * 100 / 90))
            .key_max(KEY_BYTES)
            .value_max(VALUE_BYTES);
        let geometry = config.geometry()?;
        let n = (0.9 * geometry.main_slots() as f64) as u64;
        let region_bytes = geometry.region_bytes();
        let oneread = |threads: u32| {
            let region = Region::create(&Backing::Anonymous, region_bytes)?;
            let index = Index::create(region, geometry.clone(), Clock::System)?;
            spread(n, threads, |i| {
                index.put(&key(i), &value(i), PutMode::Insert).context("filling to 90 %")?;
                Ok(())
            })
        };
        let dash = |threads: u32| {
            let map: Dash = DashMap::with_capacity_and_hasher(n as usize, FxBuildHasher);
            spread(n, threads, |i| {
                map.insert(key(i), value(i));
                Ok(())
            })
        };
        let turns: Vec<Turn<'_, Named>> = vec![
            Turn::of(("oneread put", 1), |_| oneread(1)),
            Turn::of(("oneread put", 2), |_| oneread(2)),
            Turn::of(("dashmap", 1), |_| dash(1)),
            Turn::of(("dashmap", 2), |_| dash(2)),
        ];
        self.show("insert", region_bytes, n, take_turns(self.rounds, n, "timing", turns)?)
    }
}

/// GETs of each key by which hints learn where it is, one by one and in batches.
const LEARNING: u32 = 6;

/// A client that GETs over verbs in one way, and its times.
struct Way {
    reads: &'static str,
    client: Client,
    times: hdrhistogram::Histogram<u64>,
    one_by_one: Vec<f64>,
    batched: Vec<f64>,
    before: ClientStats,
    server_cpu_ms: f64,
}

/// What was found of a way. The names are those of the JSON output.
#[derive(Debug, Serialize)]
struct WayFound {
    /// What a GET READs first.
    reads: &'static str,
    reads_per_get: f64,
    bytes_per_get: f64,
    /// One GET after the other: the mean of the median round, and quantiles over all.
    get_ns_mean: f64,
    get_ns_p50: u64,
    get_ns_p99: u64,
    /// The median round of batches of 256.
    get_many_ns_per_key: f64,
    get_many_keys_per_s: f64,
    server_cpu_ms_per_million_gets: f64,
    get_many_of_1000: serde_json::Value,
}

impl Way {
    fn new(reads: &'static str, client: Client) -> Result<Way> {
        let times = latencies()?;
        let before = client.stats();
        let (one_by_one, batched) = (Vec::new(), Vec::new());
        Ok(Way { reads, client, times, one_by_one, batched, before, server_cpu_ms: 0.0 })
    }

    /// A round of `n` GETs one after the other, and of as many in batches.
    fn run(&mut self, n: u64, pick: impl Fn(u64) -> u64) -> Result<()> {
        let mut out = Vec::new();
        let one_by_one = timed(n, |i| {
            let begun = Instant::now();
            let found = self.client.get_into(&key(pick(i)), &mut out)?;
            self.times.saturating_record(begun.elapsed().as_nanos() as u64);
            Ok(found && out.len() == VALUE_BYTES)
        })?;
        self.one_by_one.push(one_by_one as f64 / n as f64);
        self.batched.push(get_many(&mut self.client, n, pick)? as f64 / n as f64);
        Ok(())
    }

    fn found(&mut self, pick: impl Fn(u64) -> u64) -> Result<WayFound> {
        let now = self.client.stats();
        let get_many_of_1000 = thousand(&mut self.client, pick)?;
        Ok(self.counted(&now, get_many_of_1000))
    }

    /// What times and counters tell.
    fn counted(&self, now: &ClientStats, get_many_of_1000: serde_json::Value) -> WayFound {
        let gets = (now.get.gets - self.before.get.gets).max(1) as f64;
        let get_many_ns_per_key = median(self.batched.clone());
        WayFound {
            reads: self.reads,
            reads_per_get: (now.read.reads - self.before.read.reads) as f64 / gets,
            bytes_per_get: (now.read.bytes - self.before.read.bytes) as f64 / gets,
            get_ns_mean: median(self.one_by_one.clone()),
            get_ns_p50: self.times.value_at_quantile(0.5),
            get_ns_p99: self.times.value_at_quantile(0.99),
            get_many_ns_per_key,
            get_many_keys_per_s: 1e9 / get_many_ns_per_key,
            server_cpu_ms_per_million_gets: self.server_cpu_ms * 1e6 / gets,
            get_many_of_1000,
        }
    }
}

fn ways_table(found: &[WayFound]) -> comfy_table::Table {
    show::rows(["a GET READs", "READs", "bytes", "get", "p50", "p99", "get_many"], found, |way| {
        [
            show::head(way.reads),
            show::number(format_args!("{:.3}", way.reads_per_get)),
            show::number(format_args!("{:.1}", way.bytes_per_get)),
            show::number(show::nanos(way.get_ns_mean)),
            show::number(show::nanos(way.get_ns_p50 as f64)),
            show::number(show::nanos(way.get_ns_p99 as f64)),
            show::number(show::rate(way.get_many_keys_per_s)),
        ]
    })
}

/// The queue operations and the time that a batch of 1,000 keys takes.
#[cfg(feature = "verbs")]
fn thousand(client: &mut Client, pick: impl Fn(u64) -> u64) -> Result<serde_json::Value> {
    let keys: Vec<_> = (0..1000).map(|i| key(pick(i))).collect();
    let before = client.queue_counts().context("a verbs client counts")?;
    let begun = Instant::now();
    let found = client.get_many(&keys)?;
    let spent = begun.elapsed();
    ensure!(
        found.iter().all(|value| matches!(value, Ok(Some(_)))),
        "keys of a batch that were put were not found: this is an error of oneread; please report the command that you ran"
    );
    let after = client.queue_counts().context("a verbs client counts")?;
    Ok(serde_json::json!({
        "doorbells": after.doorbells - before.doorbells,
        "reads": after.reads - before.reads,
        "completions": after.completions - before.completions,
        "us": spent.as_micros() as u64,
    }))
}

#[cfg(not(feature = "verbs"))]
fn thousand(_: &mut Client, _: impl Fn(u64) -> u64) -> Result<serde_json::Value> {
    anyhow::bail!("this build of oneread has no verbs fabric; build it with `--features verbs`")
}

fn table(lines: &[Line]) -> comfy_table::Table {
    show::rows(["", "threads", "each", "in all", "ratio", "from", "to"], lines, |line| {
        [
            show::head(&line.name),
            show::number(line.threads),
            show::number(show::nanos(line.ns_per_op)),
            show::number(show::rate(line.ops_per_s)),
            show::number(format_args!("{:.2}", line.ratio)),
            show::number(show::nanos(line.ns_min)),
            show::number(show::nanos(line.ns_max)),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contestant's time is its median round. The ratio is to the first one.
    #[test]
    fn lines_are_medians_and_ratios() {
        let first = Line::new("bare", 1, vec![30.0, 10.0, 20.0], None);
        assert_eq!((first.ns_per_op, first.ns_min, first.ns_max, first.ratio), (20.0, 10.0, 30.0, 1.0));
        let second = Line::new("get", 2, vec![50.0], Some(&first));
        assert_eq!((second.threads, second.ops_per_s, second.ratio), (2, 2e7, 2.5));
        let shown = show::cells(&table(&[first, second]));
        assert_eq!(shown[0], ["bare", "1", "20 ns", "50.00 M/s", "1.00", "10 ns", "30 ns"]);
        assert_eq!(shown[1], ["get", "2", "50 ns", "20.00 M/s", "2.50", "50 ns", "50 ns"]);
    }

    /// One operation that fails fails the round, and is counted.
    #[test]
    fn keys_that_are_not_found_end_a_round() {
        assert!(timed(10, |i| Ok(i < 10)).is_ok());
        let error = timed(10, |i| Ok(i != 3 && i != 5)).unwrap_err();
        assert!(error.to_string().starts_with("2 of 10 keys that were put were not found"), "{error}");
    }

    /// The threads share the operations: each is done once.
    #[test]
    fn threads_share_operations() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let (sum, count) = (AtomicU64::new(0), AtomicU64::new(0));
        spread(101, 3, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!((sum.into_inner(), count.into_inner()), (5050, 101));
        assert!(
            spread(101, 3, |i| if i == 100 { Err(anyhow::anyhow!("the last")) } else { Ok(()) }).is_err()
        );
    }

    /// What is counted before the first round is not told of a way over verbs.
    #[test]
    fn ways_are_told_per_get() {
        let dir = tempfile::tempdir().unwrap();
        let at = oneread::Address::Shm(dir.path().join("sock"));
        let config = Config::new().size(TableSize::Keys(100));
        let server = oneread::Server::start(oneread::ServerConfig::new(at.clone(), config)).unwrap();
        let mut client = Client::connect(&at).unwrap();
        client.put(b"key", b"value").unwrap();
        client.get(b"key").unwrap();
        let mut way = Way::new("windows", client).unwrap();
        (way.one_by_one, way.batched, way.server_cpu_ms) = (vec![900.0, 100.0, 300.0], vec![250.0], 2.0);
        for ns in 1..=100 {
            way.times.record(ns).unwrap();
        }
        let mut now = way.before;
        now.get.gets += 4;
        now.read.reads += 6;
        now.read.bytes += 1000;
        let found = way.counted(&now, serde_json::Value::Null);
        assert_eq!((found.reads_per_get, found.bytes_per_get), (1.5, 250.0));
        assert_eq!((found.get_ns_mean, found.get_ns_p50, found.get_ns_p99), (300.0, 50, 99));
        assert_eq!((found.get_many_ns_per_key, found.get_many_keys_per_s), (250.0, 4e6));
        assert_eq!(found.server_cpu_ms_per_million_gets, 500_000.0);
        let shown = show::cells(&ways_table(&[found]));
        assert_eq!(shown[0], ["windows", "1.500", "250.0", "300 ns", "50 ns", "99 ns", "4.00 M/s"]);
        server.stop();
    }
}
