//! `bench cache`: a table whose entries make room for others, beside caches that see every request.

mod rivals;
mod traces;

use crate::measure::{key, machine, quantile, value};
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::Cell;
use hdrhistogram::Histogram;
use oneread::{Address, Client, Config, Evict, OwnerOptions, Server, ServerConfig, TableSize};
use oneread_kit::folder::Folder;
use oneread_kit::progress::Progress;
use oneread_kit::{show, units};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use traces::Trace;

/// Count what a table finds whose entries make room for others, beside exact caches
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench cache
  oneread bench cache --trace conversation_trace.jsonl.gz --part 0.1
  oneread bench cache --requests 200000 --json

A client on shm asks a server in this process for each key of a trace, and puts
what is not there. The server sees no GET: it goes by what the client notes.
  hit ratio     GETs that found their key
  exact         the same policy, with as many entries, that sees every GET
  not sampled   the same policy, to which nobody tells what was read
  lru, fifo, belady, moka, quick_cache
      caches of as many entries that see every request
Then, for each policy, a reader's p99.9 and a writer's p99 at 10,000 evictions a
second, to those of a table with room. Last, how long it takes until all entries
of an owner are hidden: from the request to its answer.
The defaults take about a minute. For sharper figures: --requests 1000000
--keys 100000, about ten times as long.")]
pub struct CacheBench {
    /// A trace: a line of JSON a request, with its blocks in `hash_ids`; .gz wants gzip
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    trace: Option<PathBuf>,
    /// Requests of each generated trace
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    requests: usize,
    /// Keys of each generated trace
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    keys: u64,
    /// Exponents of Zipf's law, for generated traces
    #[arg(long, value_name = "EXPONENT,...", value_delimiter = ',', default_value = "0.7,0.9,1.0,1.2")]
    zipf: Vec<f64>,
    /// How many of the different keys the cache has room for
    #[arg(long, value_name = "PART", default_value_t = 0.1)]
    part: f64,
    /// How long each latency is measured
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::some_time)]
    time: units::Period,
    /// Entries of the owner that goes
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    owned: u64,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// What came of a policy. The names are those of the JSON output.
#[derive(Debug, Serialize)]
struct CacheRow {
    machine: String,
    trace: String,
    entries: usize,
    policy: String,
    /// The part of GETs that the policy is told of. Null for a cache that does them itself.
    sampled: Option<f64>,
    hit_ratio: f64,
    hit_ratio_exact: Option<f64>,
    evictions: Option<u64>,
    get_p999_ratio: Option<f64>,
    put_p99_ratio: Option<f64>,
    owner_hidden_ms: Option<f64>,
    wrong: Option<u64>,
}

impl CacheBench {
    pub fn run(self) -> Result<ExitCode> {
        ensure!((0.0001..=1.0).contains(&self.part), "--part is {}, and goes from 0.0001 to 1", self.part);
        let mut traces = Vec::new();
        traces.extend(self.trace.as_deref().map(Trace::read).transpose()?);
        for &exponent in &self.zipf {
            traces.push(Trace::zipf(exponent, self.keys, self.requests)?);
        }
        let folder = Folder::new()?;
        let mut rows = Vec::new();
        let parts = (traces.len() + 1) * Evict::ALL.len() + traces.len() + 1;
        let bar = Progress::of(parts as u64, "measuring", "parts");
        for trace in &traces {
            self.ask(trace, folder.path(), &mut rows, &bar)?;
        }
        for (policy, name) in Evict::ALL {
            let [get_p999_ratio, put_p99_ratio] = self.beside(policy, folder.path())?;
            let of_it = rows.iter_mut().filter(|row| row.policy == name && row.sampled == Some(1.0));
            of_it.for_each(|row| (row.get_p999_ratio, row.put_p99_ratio) = (get_p999_ratio, put_p99_ratio));
            bar.inc(1);
        }
        let owner_hidden_ms = Some(self.until_hidden(folder.path())?);
        let of_table = rows.iter_mut().filter(|row| row.sampled == Some(1.0));
        of_table.for_each(|row| row.owner_hidden_ms = owner_hidden_ms);
        bar.inc(1);
        bar.finish();
        if self.json {
            show::say(serde_json::to_string(&rows)?)?;
        } else {
            show::say(table(&rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Has each policy, and each rival, answer a trace.
    fn ask(&self, trace: &Trace, folder: &Path, rows: &mut Vec<CacheRow>, bar: &Progress) -> Result<()> {
        let asked = ((trace.distinct as f64 * self.part) as u64).max(64);
        let mut entries = 0;
        let of = |policy: &str, hit_ratio: f64, entries: usize| CacheRow {
            machine: machine(),
            trace: trace.name.clone(),
            entries,
            policy: policy.into(),
            sampled: None,
            hit_ratio,
            hit_ratio_exact: None,
            evictions: None,
            get_p999_ratio: None,
            put_p99_ratio: None,
            owner_hidden_ms: None,
            wrong: None,
        };
        for (policy, name) in Evict::ALL {
            let served = serve(folder, policy, TableSize::Keys(asked))?;
            let mut client = Client::connect(served.address())?;
            let (mut hits, mut wrong, mut got) = (0, 0, Vec::new());
            for &asked in &trace.keys {
                if client.get_into(&key(asked), &mut got)? {
                    hits += 1u64;
                    wrong += u64::from(got != value(asked));
                } else {
                    client.put(&key(asked), &value(asked))?;
                }
            }
            entries = served.index().len() as usize;
            let exact = rivals::by_policy(policy, true, entries, &trace.keys);
            rows.push(CacheRow {
                sampled: Some(1.0),
                hit_ratio_exact: Some(exact),
                evictions: Some(served.index().evictions().evicted()),
                wrong: Some(wrong),
                ..of(name, hits as f64 / trace.keys.len() as f64, entries)
            });
            rows.push(CacheRow {
                sampled: Some(0.0),
                hit_ratio_exact: Some(exact),
                ..of(name, rivals::by_policy(policy, false, entries, &trace.keys), entries)
            });
            bar.inc(1);
        }
        for (name, hit_ratio) in [
            ("lru", rivals::by_age(true, entries, &trace.keys)),
            ("fifo", rivals::by_age(false, entries, &trace.keys)),
            ("belady", rivals::by_the_future(entries, &trace.keys)),
            ("moka", rivals::by_moka(entries, &trace.keys)),
            ("quick_cache", rivals::by_quick_cache(entries, &trace.keys)),
        ] {
            rows.push(of(name, hit_ratio, entries));
        }
        bar.inc(1);
        Ok(())
    }

    /// How long it takes, in milliseconds, until all entries of an owner are hidden: from the request on to the first
    /// GETs that find none.
    fn until_hidden(&self, folder: &Path) -> Result<f64> {
        const OWNER: u16 = 1;
        const LOOKS: u64 = 100;
        let address = Address::Shm(folder.join("owned"));
        let table =
            Config::new().size(TableSize::Keys(self.owned)).key_max(16).value_max(32).life(true).owners(true);
        let served = Server::start(ServerConfig::new(address, table).workers(1))?;
        let mut other = Client::connect(served.address())?;
        let mut owner = other.owner(OwnerOptions::new(OWNER))?;
        for n in 0..self.owned {
            owner.put(&key(n), &value(n))?;
        }
        let begun = Instant::now();
        ensure!(other.remove_owner(OWNER)?, "the owner has entries");
        let hidden = begun.elapsed();
        for n in (0..self.owned).step_by((self.owned / LOOKS).max(1) as usize) {
            ensure!(!other.contains(&key(n))?, "an entry of an owner that has gone is found");
        }
        Ok(hidden.as_secs_f64() * 1e3)
    }

    /// Times a reader and a writer, first while there is room, then while each put has an entry go. Returns p99.9 of
    /// the reader's GETs and p99 of the writer's puts, to those of the first.
    fn beside(&self, policy: Evict, folder: &Path) -> Result<[Option<f64>; 2]> {
        const KEYS: u64 = 100_000;
        const PUTS_PER_SECOND: f64 = 10_000.0;
        let puts = (self.time.0.as_secs_f64() * PUTS_PER_SECOND) as u64;
        let mut measured = Vec::new();
        for room in [KEYS + 2 * puts, KEYS] {
            let served = serve(folder, policy, TableSize::Keys(room))?;
            let mut client = Client::connect(served.address())?;
            for n in 0..KEYS {
                client.put(&key(n), &value(n))?;
            }
            let (stop, address) = (AtomicBool::new(false), served.address());
            let timed = std::thread::scope(|scope| -> Result<_> {
                let reader = scope.spawn(|| -> Result<Histogram<u64>> {
                    let (mut client, mut times) = (Client::connect(address)?, Histogram::new(3)?);
                    let (mut got, mut n) = (Vec::new(), 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        n = (n + 7_919) % KEYS;
                        let begun = Instant::now();
                        client.get_into(&key(n), &mut got)?;
                        times.record(begun.elapsed().as_nanos() as u64)?;
                    }
                    Ok(times)
                });
                let (mut times, begun) = (Histogram::<u64>::new(3)?, Instant::now());
                for n in 0..puts {
                    let due = begun + Duration::from_secs_f64(n as f64 / PUTS_PER_SECOND);
                    while Instant::now() < due {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    let begun = Instant::now();
                    client.put(&key(KEYS + n), &value(KEYS + n))?;
                    times.record(begun.elapsed().as_nanos() as u64)?;
                }
                stop.store(true, Ordering::Relaxed);
                Ok((reader.join().ok().context("the reader has panicked")??, times))
            })?;
            measured.push(timed);
        }
        let ratio = |of: fn(&GetAndPutTimes) -> Option<u64>| {
            let [quiet, busy] = [0, 1].map(|nth| measured.get(nth).and_then(of));
            Some(busy? as f64 / quiet?.max(1) as f64)
        };
        Ok([ratio(|(gets, _)| quantile(gets, 0.999)), ratio(|(_, puts)| quantile(puts, 0.99))])
    }
}

/// In nanoseconds.
type GetAndPutTimes = (Histogram<u64>, Histogram<u64>);

/// A server of this process, whose table has room for so many keys.
fn serve(folder: &Path, policy: Evict, size: TableSize) -> Result<Server> {
    let address = Address::Shm(folder.join("cache"));
    let table = Config::new().size(size).key_max(16).value_max(32);
    Ok(Server::start(ServerConfig::new(address, table).evict(policy).workers(1))?)
}

fn table(rows: &[CacheRow]) -> comfy_table::Table {
    let mut table = show::narrow_table([
        "trace",
        "entries",
        "policy",
        "told",
        "hit\nratio",
        "exact",
        "evictions",
        "GET\np99.9",
        "put\np99",
        "hidden\n(ms)",
        "wrong",
    ]);
    let told = |ratio: Option<f64>| show::number(ratio.map_or("-".into(), |ratio| format!("{ratio:.3}")));
    for row in rows {
        table.add_row(vec![
            Cell::new(&row.trace),
            show::number(row.entries),
            Cell::new(&row.policy),
            Cell::new(match row.sampled {
                Some(part) if part > 0.0 => "all",
                Some(_) => "nothing",
                None => "-",
            }),
            told(Some(row.hit_ratio)),
            told(row.hit_ratio_exact),
            show::number(row.evictions.map_or("-".into(), |n| n.to_string())),
            told(row.get_p999_ratio),
            told(row.put_p99_ratio),
            told(row.owner_hidden_ms),
            show::number(row.wrong.map_or("-".into(), |n| n.to_string())),
        ]);
    }
    table
}
