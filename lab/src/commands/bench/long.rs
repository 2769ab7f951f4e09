//! `bench long`: GETs of long values, beside `memcpy` of as many bytes and Redis over a Unix socket.

use super::redis::{self, Over, Redis};
use crate::measure::{KEY_BYTES, key, machine, median};
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{Attribute, Cell};
use oneread::Client;
use oneread::internals::layout::hash::{mix, reduce};
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use serde::Serialize;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

/// Time GETs of long values, beside memcpy and Redis
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench long
  oneread bench long --sizes 65536 --rounds 201 --json

One thread reads present values, at random, into memory that it uses again:
  memcpy       from memory of this process
  oneread get  from a server in another process
  redis GET    over a Unix socket, if there is a `redis-server` (PATH); it is
               started for this, without persistence, and stopped again
Of each length there are so many values that they are out of the CPU's caches,
and so few that they are in them (`cached`). Rounds alternate; `ratio` is the
median of the rounds' ratios to memcpy. Each value's length, beginning and end
are checked. All values have been read once before, which maps their pages.

Neither memory is in huge pages, if the line about the machine says that shared
memory is in none.")]
pub struct Long {
    /// Lengths of values in bytes
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "64,4096,65536,1048576", value_parser = clap::value_parser!(u32).range(16..=64 << 20))]
    sizes: Vec<u32>,
    /// Bytes of the values of a length that are out of the caches, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    mib: u32,
    /// Number of rounds; the result is their median
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Bytes of values that are in the caches: of the second level, on most machines.
const CACHED_BYTES: u64 = 256 << 10;
/// Most values of a length. Out of the caches they are with their slots.
const VALUES_MAX: u64 = 1 << 20;
/// Bytes that a round brings, and values that it brings at most: short, because other programs interrupt
/// long ones.
const ROUND_BYTES: u64 = 8 << 20;
const ROUND_VALUES: u64 = 2_000;

/// What is timed. The names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Memcpy,
    Oneread,
    Redis,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Memcpy => "memcpy",
            Way::Oneread => "oneread get",
            Way::Redis => "redis GET",
        }
    }
}

#[derive(Debug, Serialize)]
struct Line {
    value_bytes: u64,
    /// How many there are, and whether that is few enough for the caches.
    values: u64,
    cached: bool,
    way: Way,
    /// The median round.
    ns_per_op: f64,
    bytes_per_s: f64,
    /// The median of the rounds' ratios to memcpy.
    ratio: f64,
}

impl Line {
    /// Of the rounds' times, and of those of memcpy.
    fn of_rounds(way: Way, len: u64, times: Vec<f64>, base: &[f64]) -> Line {
        let ratios = times.iter().zip(base).map(|(ns, base)| ns / base).collect();
        let (ns_per_op, ratio) = (median(times), median(ratios));
        let bytes_per_s = len as f64 / ns_per_op * 1e9;
        Line { value_bytes: len, values: 0, cached: false, way, ns_per_op, bytes_per_s, ratio }
    }
}

#[derive(Debug, Serialize)]
struct Outcome {
    machine: String,
    rounds: u32,
    /// Null if there is none.
    redis: Option<String>,
    lines: Vec<Line>,
}

impl Long {
    pub fn run(self) -> Result<ExitCode> {
        let outcome = self.measure()?;
        if self.json {
            show::say(serde_json::to_string(&outcome)?)?;
        } else {
            outcome.show()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// How many values there are of a length.
    fn values(&self, len: u64) -> u64 {
        ((u64::from(self.mib) << 20) / len).clamp(1, VALUES_MAX)
    }

    fn measure(&self) -> Result<Outcome> {
        let lengths = || self.sizes.iter().copied().map(u64::from);
        let all = lengths().map(|len| self.values(len)).sum::<u64>();
        let longest = lengths().max().context("--sizes names no length")?;
        // With what extents take besides, and room for blocks of four of the longest, one of them free.
        let heap = lengths().map(|len| 2 * self.values(len) * (len + 64)).sum::<u64>() + 16 * longest;
        let server = ServerChild::spawn(
            Fabric::Shm,
            &[
                format!("--capacity={all}"),
                format!("--key-max={KEY_BYTES}"),
                format!("--value-max={longest}"),
                format!("--heap={}", heap + (16 << 20)),
            ],
        )?;
        let mut contest =
            Contest { client: server.connect()?, redis: Redis::start(&server, Over::UnixSocket)?, first: 0 };
        let redis = contest.redis.as_ref().map(|redis| redis.version.clone());
        let mut lines = Vec::new();
        for len in lengths() {
            let values = self.values(len);
            let memory = contest.fill(len, values)?;
            let cached = (CACHED_BYTES / len).clamp(1, values);
            let kinds = [(values, false), (cached, true)];
            for (values, cached) in kinds.into_iter().take(if cached < values { 2 } else { 1 }) {
                let times = self.alternate(len, values, &memory, &mut contest)?;
                let base = times[0].1.clone();
                lines.extend(times.into_iter().map(|(way, times)| Line {
                    values,
                    cached,
                    ..Line::of_rounds(way, len, times, &base)
                }));
            }
            contest.first += values;
        }
        Ok(Outcome { machine: machine(), rounds: self.rounds, redis, lines })
    }

    /// The times of all rounds, in nanoseconds for each value.
    fn alternate(
        &self,
        len: u64,
        values: u64,
        memory: &[u8],
        contest: &mut Contest,
    ) -> Result<Vec<(Way, Vec<f64>)>> {
        let Contest { client, redis, first } = contest;
        let first = *first;
        let ops = (ROUND_BYTES / len).clamp(1, ROUND_VALUES);
        let mut out = Vec::new();
        let mut copy = |n: u64, out: &mut Vec<u8>| {
            out.clear();
            out.extend_from_slice(&memory[(n * len) as usize..((n + 1) * len) as usize]);
            Ok(())
        };
        let mut get = |n: u64, out: &mut Vec<u8>| {
            let found = client.get_into(&key(first + n), out)?;
            ensure!(
                found,
                "value number {n}, which was put, was not found: this is an error of oneread; please report the command that you ran"
            );
            Ok(())
        };
        let mut ask = redis.as_mut().map(|redis| move |n, out: &mut Vec<u8>| redis.get(&key(first + n), out));
        let mut ways: Vec<(Way, &mut Bring<'_>)> = vec![(Way::Memcpy, &mut copy), (Way::Oneread, &mut get)];
        ways.extend(ask.as_mut().map(|ask| (Way::Redis, ask as &mut Bring<'_>)));
        let mut times: Vec<_> = ways.iter().map(|(way, _)| (*way, Vec::new())).collect();
        let bar = Progress::of(u64::from(self.rounds), "timing", "rounds");
        // One round more, which warms up.
        for round in 0..=self.rounds {
            // None is always the one behind the same other one.
            ways.reverse();
            times.reverse();
            for ((_, bring), (_, times)) in ways.iter_mut().zip(&mut times) {
                let begun = Instant::now();
                for i in 0..ops {
                    let n = reduce(mix(i ^ u64::from(round) << 40), values);
                    bring(n, &mut out)?;
                    ensure!(
                        is_value(black_box(&out), n, len),
                        "value number {n} is another than was put: this is an error of oneread; please report the command that you ran"
                    );
                }
                if round > 0 {
                    times.push(begun.elapsed().as_nanos() as f64 / ops as f64);
                }
            }
            bar.inc(1);
        }
        bar.finish();
        times.sort_by_key(|(way, _)| *way);
        Ok(times)
    }
}

/// Who holds the values.
struct Contest {
    client: Client,
    redis: Option<Redis>,
    /// The key of the first value of this length.
    first: u64,
}

impl Contest {
    /// Puts so many values of a length. Returns them, one behind the other.
    fn fill(&mut self, len: u64, values: u64) -> Result<Vec<u8>> {
        /// Bytes that are put at a time, and values at most.
        const BYTES: u64 = 1 << 20;
        const VALUES: u64 = 256;
        let mut memory = Vec::with_capacity((values * len) as usize);
        let bar = Progress::of(values, "filling", "values");
        let batch = (BYTES / len).clamp(1, VALUES);
        for begin in (0..values).step_by(batch as usize) {
            let numbers = begin..(begin + batch).min(values);
            let pairs: Vec<_> = numbers.map(|n| (key(self.first + n), value(n, len))).collect();
            for answer in self.client.put_many(&pairs).context("putting values")? {
                answer?;
            }
            self.redis.as_mut().map(|redis| redis.set(&pairs)).transpose()?;
            pairs.iter().for_each(|(_, value)| memory.extend_from_slice(value));
            bar.inc(pairs.len() as u64);
        }
        // The first access to a page maps it into this process. Those to its own memory have done so.
        let mut out = Vec::new();
        for n in 0..values {
            let is_there = self.client.get_into(&key(self.first + n), &mut out)?;
            ensure!(
                is_there && is_value(&out, n, len),
                "value number {n} is another than was put: this is an error of oneread; please report the command that you ran"
            );
        }
        bar.finish();
        Ok(memory)
    }
}

/// Brings a value into memory that is used again.
type Bring<'a> = dyn FnMut(u64, &mut Vec<u8>) -> Result<()> + 'a;

/// The value of a key: its number, at the beginning and at the end.
fn value(n: u64, len: u64) -> Vec<u8> {
    let mut value = vec![n as u8; len as usize];
    let (first, last) = (n.to_le_bytes(), mix(n).to_le_bytes());
    value[..8].copy_from_slice(&first);
    value[len as usize - 8..].copy_from_slice(&last);
    value
}

/// Whether the length, the beginning and the end are the value's.
fn is_value(bytes: &[u8], n: u64, len: u64) -> bool {
    bytes.len() as u64 == len && bytes.starts_with(&n.to_le_bytes()) && bytes.ends_with(&mix(n).to_le_bytes())
}

impl Outcome {
    fn show(&self) -> Result<()> {
        let rounds = show::counted(self.rounds.into(), "round");
        show::say(format_args!("GETs by one thread, median of {rounds}\n{}", show::machine(&self.machine)))?;
        redis::say_which(self.redis.as_deref())?;
        Ok(show::say(self.table())?)
    }

    fn table(&self) -> comfy_table::Table {
        let mut table = show::narrow_table(["bytes", "values", "from", "", "each", "bytes/s", "ratio"]);
        for line in &self.lines {
            table.add_row(vec![
                show::number(show::bytes(line.value_bytes)),
                show::number(show::count(line.values)),
                Cell::new(if line.cached { "cache" } else { "memory" }),
                Cell::new(line.way.name()).add_attribute(Attribute::Bold),
                show::number(show::nanos(line.ns_per_op)),
                show::number(show::bytes(line.bytes_per_s as u64)),
                show::number(format_args!("{:.2}", line.ratio)),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line has the median time, the rate that it gives, and the median of the rounds' ratios.
    #[test]
    fn lines_are_of_the_median_round() {
        let base = [100.0, 200.0, 100.0];
        let memcpy = Line::of_rounds(Way::Memcpy, 64, base.into(), &base);
        assert_eq!((memcpy.ns_per_op, memcpy.ratio), (100.0, 1.0));
        let redis = Line::of_rounds(Way::Redis, 4096, vec![1000.0, 4000.0, 300.0], &base);
        assert_eq!((redis.value_bytes, redis.ns_per_op, redis.ratio), (4096, 1000.0, 10.0));
        assert_eq!(redis.bytes_per_s, 4.096e9);
        let get = Line {
            cached: true,
            values: 4_000,
            way: Way::Oneread,
            ..Line::of_rounds(Way::Memcpy, 64, base.into(), &base)
        };
        let shown =
            Outcome { machine: String::new(), rounds: 3, redis: None, lines: vec![redis, get] }.table();
        let shown = show::cells(&shown);
        assert_eq!(shown[0], ["4 KiB", "0", "memory", "redis GET", "1 µs", "3.81 GiB", "10.00"]);
        assert_eq!(shown[1], ["64 B", "4,000", "cache", "oneread get", "100 ns", "610 MiB", "1.00"]);
    }

    /// A value is known by its length, its beginning and its end.
    #[test]
    fn values_are_told_apart() {
        let (n, len) = (0x0102_0304, 40);
        assert!(is_value(&value(n, len), n, len));
        assert!(!is_value(&value(n, len), n + 1, len) && !is_value(&value(n, len + 1), n, len));
        for at in [0, len as usize - 1] {
            let mut other = value(n, len);
            other[at] ^= 1;
            assert!(!is_value(&other, n, len), "{at}");
        }
    }
}
