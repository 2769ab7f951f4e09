//! `bench long`: GETs of long values, beside `memcpy` of as many bytes and Redis over a Unix socket.

use super::loops::timed;
use super::redis::{self, Over, Redis};
use super::runner::{Timed, Turn, fill, pick, serve, take_turns};
use crate::measure::{key, machine, median};
use anyhow::{Context, Result};
use clap::Args;
use comfy_table::Cell;
use oneread::Client;
use oneread::internals::layout::hash::mix;
use oneread_kit::child::Fabric;
use oneread_kit::show;
use serde::Serialize;
use std::hint::black_box;
use std::process::ExitCode;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// Of a way's rounds, and of those of memcpy.
    fn of_rounds(timed: Timed<Way>, len: u64, (values, cached): (u64, bool), base: &[f64]) -> Line {
        let ratio = median(timed.ratios(base));
        let ns_per_op = median(timed.rounds);
        let bytes_per_s = len as f64 / ns_per_op * 1e9;
        Line { value_bytes: len, values, cached, way: timed.way, ns_per_op, bytes_per_s, ratio }
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
        show::outcome(self.json, &outcome, || outcome.show())?;
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
        let heap = format!("--heap={}", heap + (16 << 20));
        let server = serve(Fabric::Shm, all, longest as usize, &[heap])?;
        let mut contest =
            Contest { client: server.connect()?, redis: Redis::start(&server, Over::UnixSocket)?, first: 0 };
        let redis = contest.redis.as_ref().map(|redis| redis.version.clone());
        let mut lines = Vec::new();
        for len in lengths() {
            let values = self.values(len);
            let memory = contest.fill(len, values)?;
            let cached = (CACHED_BYTES / len).clamp(1, values);
            let kinds = [(values, false), (cached, true)];
            for kind in kinds.into_iter().take(if cached < values { 2 } else { 1 }) {
                let ops = (ROUND_BYTES / len).clamp(1, ROUND_VALUES);
                let timed = take_turns(self.rounds, ops, "timing", contest.turns(len, kind.0, ops, &memory))?;
                let base = timed[0].rounds.clone();
                lines.extend(timed.into_iter().map(|timed| Line::of_rounds(timed, len, kind, &base)));
            }
            contest.first += values;
        }
        Ok(Outcome { machine: machine(), rounds: self.rounds, redis, lines })
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
        let (first, redis) = (self.first, &mut self.redis);
        let pair = |n| (key(first + n), value(n, len));
        fill(&mut self.client, values, (BYTES / len).clamp(1, VALUES), pair, |pairs| {
            redis.as_mut().map(|redis| redis.set(pairs)).transpose()?;
            pairs.iter().for_each(|(_, value)| memory.extend_from_slice(value));
            Ok(())
        })?;
        // The first access to a page maps it into this process. Those to its own memory have done so.
        let mut out = Vec::new();
        timed(values, |n| Ok(self.client.get_into(&key(first + n), &mut out)? && is_value(&out, n, len)))?;
        Ok(memory)
    }

    /// A round brings so many of these values, at random, into memory that is used again.
    fn turns<'a>(&'a mut self, len: u64, values: u64, ops: u64, memory: &'a [u8]) -> Vec<Turn<'a, Way>> {
        let Contest { client, redis, first } = self;
        let first = *first;
        let copy = move |n: u64, out: &mut Vec<u8>| {
            out.clear();
            out.extend_from_slice(&memory[(n * len) as usize..((n + 1) * len) as usize]);
            Ok(true)
        };
        let get = move |n: u64, out: &mut Vec<u8>| Ok(client.get_into(&key(first + n), out)?);
        let ask = redis
            .as_mut()
            .map(|redis| move |n: u64, out: &mut Vec<u8>| redis.get(&key(first + n), out).map(|()| true));
        let mut turns = vec![bringing(Way::Memcpy, len, values, ops, copy)];
        turns.push(bringing(Way::Oneread, len, values, ops, get));
        turns.extend(ask.map(|ask| bringing(Way::Redis, len, values, ops, ask)));
        turns
    }
}

/// A turn in which `bring` brings values into memory that is used again, if they are there.
fn bringing<'a>(
    way: Way,
    len: u64,
    values: u64,
    ops: u64,
    mut bring: impl FnMut(u64, &mut Vec<u8>) -> Result<bool> + 'a,
) -> Turn<'a, Way> {
    let mut out = Vec::new();
    Turn::of(way, move |round| {
        timed(ops, |i| {
            let n = pick(round, i, values);
            Ok(bring(n, &mut out)? && is_value(black_box(&out), n, len))
        })
    })
}

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
        Ok(show::lay_out(self.table())?)
    }

    fn table(&self) -> comfy_table::Table {
        show::rows(["bytes", "values", "from", "", "each", "bytes/s", "ratio"], &self.lines, |line| {
            [
                show::number(show::bytes(line.value_bytes)),
                show::number(show::count(line.values)),
                Cell::new(if line.cached { "cache" } else { "memory" }),
                show::head(line.way.name()),
                show::number(show::nanos(line.ns_per_op)),
                show::number(show::bytes(line.bytes_per_s as u64)),
                show::number(format_args!("{:.2}", line.ratio)),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line has the median time, the rate that it gives, and the median of the rounds' ratios.
    #[test]
    fn lines_are_of_the_median_round() {
        let base = [100.0, 200.0, 100.0];
        let timed = |way, rounds: &[f64]| Timed {
            way,
            rounds: rounds.into(),
            server: Vec::new(),
            requests: hdrhistogram::Histogram::new(3).unwrap(),
        };
        let get = Line::of_rounds(timed(Way::Oneread, &base), 64, (4_000, true), &base);
        assert_eq!((get.ns_per_op, get.ratio), (100.0, 1.0));
        let redis = timed(Way::Redis, &[1000.0, 4000.0, 300.0]);
        let redis = Line::of_rounds(redis, 4096, (0, false), &base);
        assert_eq!((redis.value_bytes, redis.ns_per_op, redis.ratio), (4096, 1000.0, 10.0));
        assert_eq!(redis.bytes_per_s, 4.096e9);
        let outcome = Outcome { machine: String::new(), rounds: 3, redis: None, lines: vec![redis, get] };
        let shown = show::cells(&outcome.table());
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
