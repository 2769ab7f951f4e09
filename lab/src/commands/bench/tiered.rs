//! `bench tiered`: a storage contest's workload, scaled. Sixteen clients insert values of 80 to 1,024
//! bytes, remove most of them, insert others, and then GET and PUT popular keys.
//!
//! The server is in this process, so that it can be seen when the table has come to rest. Its memory is
//! what the system says.

use crate::measure::machine;
use anyhow::{Context, Result, ensure};
use clap::Args;
use oneread::internals::layout::extent::extent_bytes;
use oneread::internals::layout::hash::{mix, reduce};
use oneread::internals::layout::slot::SlotShape;
use oneread::internals::reader::Limits;
use oneread::{Address, Backing, Client, ClientOptions, Config, PutOutcome, Server, ServerConfig, TableSize};
use oneread_kit::folder::{Folder, bytes_behind};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::threads::at_once;
use oneread_kit::units::{ByteSize, some_bytes};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::Serialize;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Run a storage contest's workload: values of 80 to 1,024 bytes come and go
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench tiered                   1.9 million keys, about a minute
  oneread bench tiered --scale 0.1 --max-memory 12GiB --json
  oneread bench tiered --inline-max 24   all values in the heap

Keys have 16 bytes. At scale 1, each of 16 clients, a thread each,
  1. insert        inserts 12 million values: 70 % of 80 to 128 bytes, 20 % of
                   129 to 256, 10 % of 257 to 1,024
  2. remove        removes 10 million of its keys, from everywhere
  3. insert again  inserts 10 million other keys with 80 to 256 bytes
  4. mixed         makes 4 million operations, 64 in all: 75 % GETs, 25 % PUTs
                   of 80 to 128 bytes, of keys by Zipf's law (0.99)

The table grows and shrinks. Values up to --inline-max stand in their slots, the
others in its heap. A phase takes until the table has come to rest: nothing is
left to merge, to move, or to give back. `memory` is what the system says that
is behind the table then, and `returned` what it got back during the phase,
pages of the table that were taken and given back again included.

Every answer is checked, in the mixed phase against what was put before the GET
began and what had been begun when it ended. After each phase, which is not
timed, every key is read: those that are there, and those that were removed. The
exit status is 1 if one answer was wrong.

With --json: an array of phase, ops, seconds, wrong, memory_bytes, and
returned_bytes.")]
pub struct Tiered {
    /// The part of the workload's operations that is made, from 0.000001 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.01, value_parser = scale)]
    scale: f64,
    /// Longest value that stands in its slot, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u16).range(0..=1024))]
    inline_max: u16,
    /// The most memory that the table may take, as in 512MiB, 8GiB [default: half of this machine's, or
    /// less where limits or what is free say so]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    max_memory: Option<ByteSize>,
    /// The server's threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Which keys and values there are, and in which order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok().filter(|scale| (SCALE_MIN..=1.0).contains(scale));
    scale.ok_or_else(|| "a number from 0.000001 to 1, as in 0.01".into())
}

const SCALE_MIN: f64 = 1e-6;
const KEY_BYTES: usize = 16;
const THREADS: u64 = 16;
const VALUE_MAX: usize = 1_024;
/// Bytes of a value that say whose it is: the key's number, and the version.
const NAME_BYTES: usize = 12;
/// A table takes so much at least.
const LEAST: u64 = 64 << 20;
/// Keys to slots when a table that grows has just split its segments, which is when it takes most.
const LOAD_MIN: f64 = 0.4;
/// How much of the heap is values at least (Y3).
const HEAP_LOAD_MIN: f64 = 0.75;
/// A table at rest has nothing to do for so long.
const REST: Duration = Duration::from_millis(20);
/// The table comes to rest within this time.
const REST_MAX: Duration = Duration::from_secs(600);
/// Operations after which the bar moves on.
const TELL_EVERY: u64 = 512;
/// Keys of a batch that is read to check.
const BATCH: u64 = 256;

/// One phase. The names are those of the JSON output.
#[derive(Debug, Serialize)]
struct Line {
    phase: Phase,
    ops: u64,
    /// Until the table had come to rest.
    seconds: f64,
    wrong: u64,
    memory_bytes: u64,
    /// During this phase.
    returned_bytes: u64,
    /// The part of the time that was without clients.
    #[serde(skip)]
    resting: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
    Insert,
    Remove,
    InsertAgain,
    Mixed,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Insert, Phase::Remove, Phase::InsertAgain, Phase::Mixed];

    fn name(self) -> &'static str {
        match self {
            Phase::Insert => "insert",
            Phase::Remove => "remove",
            Phase::InsertAgain => "insert again",
            Phase::Mixed => "mixed",
        }
    }
}

/// How many operations a client makes, and of which keys. A client's keys are numbered from 0.
#[derive(Debug)]
struct Workload {
    seed: u64,
    inserts: u64,
    removes: u64,
    again: u64,
    mixed: u64,
    /// The order in which the first keys are removed.
    removing: Order,
    /// Which of the keys that are left in the end are how popular.
    popular: Order,
}

/// Numbers below `n`, each once, far from the one before.
#[derive(Debug)]
struct Order {
    n: u64,
    step: u64,
    first: u64,
}

impl Order {
    fn new(n: u64, seed: u64) -> Order {
        let gcd = |mut a: u64, mut b: u64| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        // About the golden section of them.
        let step = (n / 8 * 5 + 1..).find(|&step| gcd(step, n) == 1).expect("a prime is among them");
        Order { n, step, first: reduce(mix(seed), n) }
    }

    fn at(&self, nth: u64) -> u64 {
        ((u128::from(nth) * u128::from(self.step) + u128::from(self.first)) % u128::from(self.n)) as u64
    }
}

impl Workload {
    fn new(scale: f64, seed: u64) -> Workload {
        let of = |whole: f64| (whole * scale).round().max(1.0) as u64;
        let (inserts, removes, again) = (of(12e6), of(10e6), of(10e6));
        let left = inserts - removes + again;
        Workload {
            seed,
            inserts,
            removes,
            again,
            mixed: of(4e6),
            removing: Order::new(inserts, seed),
            popular: Order::new(left, !seed),
        }
    }

    /// Operations of each client.
    fn ops(&self, phase: Phase) -> u64 {
        match phase {
            Phase::Insert => self.inserts,
            Phase::Remove => self.removes,
            Phase::InsertAgain => self.again,
            Phase::Mixed => self.mixed,
        }
    }

    /// Keys of a client that are there in the end.
    fn left(&self) -> u64 {
        self.inserts - self.removes + self.again
    }

    /// The key with this place among those.
    fn left_at(&self, place: u64) -> u64 {
        let old = self.inserts - self.removes;
        if place < old { self.removing.at(self.removes + place) } else { self.inserts + place - old }
    }

    /// The number that no other key has.
    fn number(&self, client: u64, nth: u64) -> u64 {
        client * (self.inserts + self.again) + nth
    }

    fn key(&self, client: u64, nth: u64) -> [u8; KEY_BYTES] {
        let first = mix(mix(self.seed).wrapping_add(self.number(client, nth)));
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&first.to_le_bytes());
        key[8..].copy_from_slice(&mix(!first).to_le_bytes());
        key
    }

    /// The length of a version of a key's value, and where its bytes begin. Version 0 is inserted, the
    /// others are put later.
    fn drawn(&self, client: u64, nth: u64, version: u32) -> (usize, u64) {
        let number = self.number(client, nth);
        let random = mix(mix(!self.seed).wrapping_add(number) ^ u64::from(version) << 40);
        let of = |from: u64, to: u64| (from + reduce(mix(random), to - from + 1)) as usize;
        let len = match random % 100 {
            _ if version > 0 => of(80, 128),
            _ if nth >= self.inserts => of(80, 256),
            0..70 => of(80, 128),
            70..90 => of(129, 256),
            _ => of(257, VALUE_MAX as u64),
        };
        (len, random)
    }

    fn value_into(&self, client: u64, nth: u64, version: u32, value: &mut Vec<u8>) {
        let (len, mut word) = self.drawn(client, nth, version);
        value.clear();
        value.extend_from_slice(&self.number(client, nth).to_le_bytes());
        value.extend_from_slice(&version.to_le_bytes());
        while value.len() < len {
            word = word.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29);
            value.extend_from_slice(&word.to_le_bytes());
        }
        value.truncate(len);
    }

    /// Which version of the key's value this is, if it is one.
    fn version(&self, client: u64, nth: u64, value: &[u8], own: &mut Vec<u8>) -> Option<u32> {
        let version = u32::from_le_bytes(value.get(8..NAME_BYTES)?.try_into().ok()?);
        self.value_into(client, nth, version, own);
        (own == value).then_some(version)
    }

    /// The memory that the table takes when it takes most, and this process for what it remembers.
    fn bytes_max(&self, shape: SlotShape) -> u64 {
        const SAMPLE: u64 = 1_000;
        let inline_max = shape.payload_max() - KEY_BYTES;
        // The first phase has the longer values.
        let lengths = (0..SAMPLE).map(|n| self.drawn(n, n * 997 % self.inserts, 0).0);
        let in_heap: u64 = lengths.filter(|&len| len > inline_max).map(extent_bytes).sum();
        let keys = (THREADS * self.inserts.max(self.left())) as f64;
        let of_heap = in_heap as f64 / SAMPLE as f64 / HEAP_LOAD_MIN;
        let of_key = shape.bytes() as f64 / LOAD_MIN + of_heap + size_of::<AtomicU32>() as f64;
        (keys * of_key) as u64 + LEAST
    }
}

impl Tiered {
    pub fn run(self) -> Result<ExitCode> {
        let lines = self.measure()?;
        show::outcome(self.json, &lines, || self.show(&lines))?;
        Ok(oneread_kit::status(lines.iter().all(|line| line.wrong == 0)))
    }

    fn config(&self, bytes_max: u64) -> Config {
        let config = Config::new().size(TableSize::up_to(bytes_max));
        config.key_max(KEY_BYTES).value_max(VALUE_MAX).inline_max(Some(self.inline_max.into()))
    }

    /// The server, which has its table in memory alone.
    fn server(&self, address: Address, bytes_max: u64) -> ServerConfig {
        let how = ServerConfig::new(address, self.config(bytes_max)).backing(Backing::Anonymous);
        how.workers(self.workers.into())
    }

    /// The shape of slots, whatever the table's size.
    fn shape(&self) -> Result<SlotShape> {
        Ok(self.config(1 << 40).geometry()?.shape())
    }

    /// How much the table may take: enough for the workload, or an error.
    fn bytes_max(&self, workload: &Workload) -> Result<u64> {
        let (there, of) = match self.max_memory {
            Some(ByteSize(bytes)) => (bytes, "by --max-memory".to_owned()),
            None => {
                let share = Backing::Anonymous.default_share();
                let share = share.context(
                    "the system does not say how much memory there is; say how much the table may take, by --max-memory",
                )?;
                (share.bytes, share.part)
            }
        };
        let need = workload.bytes_max(self.shape()?);
        let fitting = 0.95 * self.scale * there.saturating_sub(LEAST) as f64 / (need - LEAST) as f64;
        let smaller = match two_digits(fitting) {
            scale if scale >= SCALE_MIN => format!("take a --scale of {scale} or less, or "),
            _ => String::new(),
        };
        ensure!(
            need <= there,
            "{} at scale {} take up to {}, and the table may take {}, {of}; {smaller}allow more by --max-memory",
            show::counted(THREADS * workload.inserts, "key"),
            self.scale,
            show::bytes(need),
            show::bytes(there),
        );
        Ok(there)
    }

    fn measure(&self) -> Result<Vec<Line>> {
        let workload = Workload::new(self.scale, self.seed);
        let bytes_max = self.bytes_max(&workload)?;
        let folder = Folder::new()?;
        let address = Address::Shm(folder.join("socket"));
        let server = Server::start(self.server(address.clone(), bytes_max))?;
        let clients = (0..THREADS).map(|number| Contestant::new(number, &address, &workload));
        let mut clients = clients.collect::<Result<Vec<_>>>()?;
        let puts: Vec<_> = (0..THREADS * workload.left()).map(|_| AtomicU32::new(0)).collect();
        let mut run = Run { workload, puts, bar: Progress::hidden() };
        let mut lines = Vec::new();
        for phase in Phase::ALL {
            let ops = THREADS * run.workload.ops(phase);
            let returned_before = returned(&server);
            run.bar = Progress::of(ops, phase.name(), "operations");
            let begun = Instant::now();
            let mut wrong = run.all(&mut clients, |run, client| client.make(phase, run))?;
            let ended = Instant::now();
            come_to_rest(&server)?;
            let (seconds, resting) = (begun.elapsed().as_secs_f64(), ended.elapsed().as_secs_f64());
            run.bar.finish();
            let memory_bytes = bytes_behind(&server)?;
            let returned_bytes = returned(&server) - returned_before;
            let all = THREADS
                * (run.workload.inserts + if phase >= Phase::InsertAgain { run.workload.again } else { 0 });
            run.bar = Progress::of(all, "checking", "keys");
            wrong += run.all(&mut clients, |run, client| client.check(phase, run))?;
            run.bar.finish();
            lines.push(Line { phase, ops, seconds, wrong, memory_bytes, returned_bytes, resting });
        }
        Ok(lines)
    }

    fn show(&self, lines: &[Line]) -> Result<()> {
        let slot = self.shape()?;
        show::say(format_args!(
            "{THREADS} clients, {}; keys of {KEY_BYTES} bytes, scale {}\nslots of {} bytes: values over {} are in the heap\n{}",
            show::counted(self.workers.into(), "server thread"),
            self.scale,
            slot.bytes(),
            slot.payload_max() - KEY_BYTES,
            show::machine(&machine())
        ))?;
        let heads = ["phase", "ops", "seconds", "at rest", "each", "wrong", "memory", "returned"];
        Ok(show::lay_out(show::rows(heads, lines, |line| {
            [
                show::head(line.phase.name()),
                show::number(show::count(line.ops)),
                show::number(format_args!("{:.2}", line.seconds)),
                show::number(format_args!("{:.2}", line.resting)),
                show::number(show::rate(line.ops as f64 / line.seconds)),
                show::number(show::count(line.wrong)),
                show::number(show::bytes(line.memory_bytes)),
                show::number(show::bytes(line.returned_bytes)),
            ]
        }))?)
    }
}

/// Rounded down to two digits.
fn two_digits(n: f64) -> f64 {
    let unit = 10f64.powf(n.log10().floor() - 1.0);
    let text = format!("{:.9}", (n / unit).floor() * unit);
    text.parse().unwrap_or(n)
}

/// Bytes given back to the system since the server began.
fn returned(server: &Server) -> u64 {
    server.index().growth().bytes_returned + server.index().heap().returned_bytes
}

/// Returns when nothing is left to merge, to move or to give back.
fn come_to_rest(server: &Server) -> Result<()> {
    let patience = Instant::now() + REST_MAX;
    while let Some(next) = server.index().tidy() {
        ensure!(
            Instant::now() < patience,
            "the table still moved values after {REST_MAX:?}: the machine is too busy; run the bench again, or with a smaller --scale"
        );
        // The server's threads tidy, too.
        std::thread::sleep(next.min(REST));
    }
    Ok(())
}

/// What all clients share.
struct Run {
    workload: Workload,
    /// For each key that is left in the end, twice the version that was put last, and one more while the
    /// next one is under way. One client puts a key, all GET it.
    puts: Vec<AtomicU32>,
    bar: Progress,
}

impl Run {
    /// Runs all clients at once. Returns how many answers were wrong.
    fn all(
        &self,
        clients: &mut [Contestant],
        make: impl Fn(&Run, &mut Contestant) -> Result<u64> + Sync,
    ) -> Result<u64> {
        Ok(at_once(clients, |client| make(self, client))?.into_iter().sum())
    }

    /// What was put of a key, by its place among a client's.
    fn put(&self, client: u64, place: u64) -> &AtomicU32 {
        &self.puts[(client * self.workload.left() + place) as usize]
    }
}

/// A client, and what its thread needs.
struct Contestant {
    number: u64,
    client: Client,
    random: SmallRng,
    popular: Zipf<f64>,
    value: Vec<u8>,
    got: Vec<u8>,
}

impl Contestant {
    fn new(number: u64, address: &Address, workload: &Workload) -> Result<Contestant> {
        /// The server is there: with many threads on few cores a late answer is no failure.
        const PATIENT: Duration = Duration::from_secs(60);
        let limits = Limits::new().deadline(PATIENT);
        let options = ClientOptions::new().limits(limits).deadline(PATIENT);
        Ok(Contestant {
            number,
            client: Client::connect_with(address, options)?,
            random: SmallRng::seed_from_u64(mix(workload.seed) ^ number),
            popular: Zipf::new((THREADS * workload.left()) as f64, 0.99)?,
            value: Vec::new(),
            got: Vec::new(),
        })
    }

    /// Makes this client's operations of a phase. Returns how many were answered wrongly.
    fn make(&mut self, phase: Phase, run: &Run) -> Result<u64> {
        let ops = run.workload.ops(phase);
        let mut wrong = 0;
        for nth in 0..ops {
            let is_right = match phase {
                Phase::Insert => self.insert(nth, run)?,
                Phase::Remove => self.remove(run.workload.removing.at(nth), run)?,
                Phase::InsertAgain => self.insert(run.workload.inserts + nth, run)?,
                Phase::Mixed if self.random.random_ratio(1, 4) => self.put(run)?,
                Phase::Mixed => self.get(run)?,
            };
            wrong += u64::from(!is_right);
            if (nth + 1).is_multiple_of(TELL_EVERY) {
                run.bar.inc(TELL_EVERY);
            }
        }
        Ok(wrong)
    }

    fn insert(&mut self, nth: u64, run: &Run) -> Result<bool> {
        run.workload.value_into(self.number, nth, 0, &mut self.value);
        let outcome = self.client.insert(&run.workload.key(self.number, nth), &self.value);
        Ok(outcome.context("inserting a key")? == PutOutcome::Inserted)
    }

    fn remove(&mut self, nth: u64, run: &Run) -> Result<bool> {
        self.client.remove(&run.workload.key(self.number, nth)).context("removing a key")
    }

    /// A key by its popularity, as a client and a place.
    fn pick(&mut self, run: &Run) -> (u64, u64) {
        let rank = (self.popular.sample(&mut self.random) as u64).saturating_sub(1);
        let place = (rank / THREADS).min(run.workload.left() - 1);
        (rank % THREADS, run.workload.popular.at(place))
    }

    /// Puts the next version of a key of this client's.
    fn put(&mut self, run: &Run) -> Result<bool> {
        let (_, place) = self.pick(run);
        let nth = run.workload.left_at(place);
        let put = run.put(self.number, place);
        // Whoever finds the value in the table finds that it was begun: the server answers in between.
        let before = put.fetch_add(1, Ordering::SeqCst);
        run.workload.value_into(self.number, nth, before / 2 + 1, &mut self.value);
        let outcome = self.client.put(&run.workload.key(self.number, nth), &self.value);
        put.store(before + 2, Ordering::SeqCst);
        Ok(outcome.context("putting a value")? == PutOutcome::Updated)
    }

    /// GETs a key of any client's.
    fn get(&mut self, run: &Run) -> Result<bool> {
        let (client, place) = self.pick(run);
        let nth = run.workload.left_at(place);
        let put = run.put(client, place);
        let oldest = put.load(Ordering::SeqCst) / 2;
        let found = self.client.get_into(&run.workload.key(client, nth), &mut self.got);
        let found = found.context("getting a value")?;
        let newest = put.load(Ordering::SeqCst).div_ceil(2);
        let version = run.workload.version(client, nth, &self.got, &mut self.value);
        Ok(found && version.is_some_and(|version| (oldest..=newest).contains(&version)))
    }

    /// Reads all keys of this client's, also those that were removed. Returns how many were not as
    /// they are after this phase.
    fn check(&mut self, phase: Phase, run: &Run) -> Result<u64> {
        let workload = &run.workload;
        let is_removed = |nth: u64| phase >= Phase::Remove && nth < workload.removes;
        let again = if phase >= Phase::InsertAgain { workload.again } else { 0 };
        let mut wrong = 0;
        for first in (0..workload.inserts + again).step_by(BATCH as usize) {
            // In the order of removal, those that were removed are the first ones.
            let places = first..(first + BATCH).min(workload.inserts + again);
            let nth = |place: u64| if place < workload.inserts { workload.removing.at(place) } else { place };
            let keys: Vec<_> = places.clone().map(|place| workload.key(self.number, nth(place))).collect();
            let Contestant { client, value: own, number, .. } = self;
            let _ = client.get_many_with(&keys, |at, answer| {
                let place = first + at as u64;
                let put = place.checked_sub(workload.removes).map(|place| run.put(*number, place));
                let version = put.map_or(0, |put| put.load(Ordering::SeqCst) / 2);
                let is_right = match answer {
                    Ok(Some(value)) => {
                        !is_removed(place)
                            && workload.version(*number, nth(place), value, own) == Some(version)
                    }
                    Ok(None) => is_removed(place),
                    Err(_) => false,
                };
                wrong += u64::from(!is_right);
                ControlFlow::<()>::Continue(())
            })?;
            run.bar.inc(keys.len() as u64);
        }
        Ok(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server has as many threads as asked for, and a table in memory alone.
    #[test]
    fn servers_are_as_asked_for() {
        let tiered =
            Tiered { scale: 0.01, inline_max: 128, max_memory: None, workers: 5, seed: 1, json: false };
        let how = tiered.server(Address::Shm("socket".into()), 1 << 30);
        assert_eq!(how.workers, 5);
        assert!(matches!(how.backing, Backing::Anonymous));
    }
}
