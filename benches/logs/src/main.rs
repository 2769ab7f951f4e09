//! Puts that survive a power cut, and what they cost: oneread with its log beside Redis with its file of appended commands, LMDB
//! and redb, each synced before every answer and not, on one disk.
//!
//! Each put is awaited before the next one of its writer. Each system is started alone, filled, and asked; rounds take turns
//! over all systems, and figures are medians of the rounds' own. oneread and Redis are servers, in processes of their own; LMDB
//! and redb are in this one, and each put is a transaction.

mod systems;

use clap::Parser;
use oneread::Address;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use systems::{KEY_BYTES, Outcome, Product, Running, System, VALUE_BYTES, mix};

const WRITERS: [usize; 3] = [1, 8, 64];
/// What the system calls a file system in memory.
const TMPFS: i64 = 0x0102_1994;

/// Measures puts that survive a power cut, in each system, in one run
#[derive(Parser)]
struct Arguments {
    /// Where files are: a folder on the disk that is measured
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Keys, of which random ones are put and got
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Rounds over all systems
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long each number of writers puts, in seconds; GETs are looked at for as long
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
    /// Only these
    #[arg(long, value_delimiter = ',')]
    only: Vec<Product>,
    /// For its own child: serves oneread
    #[arg(long, hide = true, requires = "at")]
    serve: Option<String>,
    #[arg(long, hide = true)]
    at: Option<Address>,
}

/// How long calls took, in nanoseconds, the shortest first.
struct Times(Vec<u32>);

impl Times {
    fn new(mut all: Vec<u32>) -> Times {
        all.sort_unstable();
        Times(all)
    }

    fn quantile(&self, part: f64) -> f64 {
        let at = (part * self.0.len() as f64) as usize;
        self.0.get(at.min(self.0.len().saturating_sub(1))).map_or(f64::NAN, |ns| f64::from(*ns))
    }
}

/// What so many writers did.
#[derive(Clone, Copy)]
struct Puts {
    per_second: f64,
    p50: f64,
    p99: f64,
    /// Bytes written to the disk, by anybody, for each byte of the keys and values that were put.
    written: f64,
}

/// The p99 of GETs of one thread: while nobody puts, and while one writer does.
#[derive(Clone, Copy)]
struct Gets {
    quiet: f64,
    beside: f64,
}

/// Calls it again and again until this is set.
fn repeat(mut call: impl FnMut(u64), keys: u64, seed: u64, is_over: &AtomicBool) -> Vec<u32> {
    let mut times = Vec::with_capacity(1 << 20);
    let mut n = mix(seed);
    while !is_over.load(Ordering::Relaxed) {
        n = mix(n + 1);
        let at = ((u128::from(n) * u128::from(keys)) >> 64) as u64;
        let begun = Instant::now();
        call(at);
        times.push(u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    times
}

/// Bytes that the disk of a folder was told to write since the machine began, by anybody. What is only in memory goes to it
/// first. NaN where the system does not tell: then there is no such figure.
fn written(folder: &Path) -> Outcome<f64> {
    const SECTOR: u64 = 512;
    let folder = File::open(folder)?;
    rustix::fs::syncfs(&folder)?;
    let of = rustix::fs::fstat(&folder)?.st_dev;
    let about = format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(of), rustix::fs::minor(of));
    let Ok(told) = std::fs::read_to_string(about) else { return Ok(f64::NAN) };
    let sectors: u64 = told.split_whitespace().nth(6).ok_or("no sectors written")?.parse()?;
    Ok((sectors * SECTOR) as f64)
}

fn puts(running: &dyn Running, writers: usize, folder: &Path, keys: u64, time: Duration) -> Outcome<Puts> {
    let calls = (0..writers).map(|_| running.writer()).collect::<Outcome<Vec<_>>>()?;
    let (is_over, begin) = (AtomicBool::new(false), Barrier::new(writers + 1));
    let (mut all, mut seconds, before) = (Vec::new(), 0.0, written(folder)?);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(calls)
            .map(|(nth, call)| {
                let (is_over, begin) = (&is_over, &begin);
                scope.spawn(move || {
                    begin.wait();
                    repeat(call, keys, nth, is_over)
                })
            })
            .collect();
        begin.wait();
        let begun = Instant::now();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        all.extend(threads.into_iter().flat_map(|thread| thread.join().expect("puts")));
        seconds = begun.elapsed().as_secs_f64();
    });
    let given = (all.len() * (KEY_BYTES + VALUE_BYTES)) as f64;
    let (count, times) = (all.len() as f64, Times::new(all));
    let written = (written(folder)? - before) / given;
    Ok(Puts { per_second: count / seconds, p50: times.quantile(0.5), p99: times.quantile(0.99), written })
}

fn gets(running: &dyn Running, keys: u64, time: Duration) -> Outcome<Gets> {
    let p99 = |writer: Option<systems::Call>| {
        let (is_over, reader) = (AtomicBool::new(false), running.reader()?);
        Outcome::Ok(std::thread::scope(|scope| {
            let is_over = &is_over;
            let reader = scope.spawn(move || repeat(reader, keys, 1_000, is_over));
            let writer = writer.map(|call| scope.spawn(move || repeat(call, keys, 0, is_over)));
            std::thread::sleep(time);
            is_over.store(true, Ordering::Relaxed);
            drop(writer.map(|writer| writer.join().expect("puts")));
            Times::new(reader.join().expect("GETs")).quantile(0.99)
        }))
    };
    Ok(Gets { quiet: p99(None)?, beside: p99(Some(running.writer()?))? })
}

/// A record appended to a file and synced, and nothing else: what the disk takes.
fn disk(folder: &Path, time: Duration) -> Outcome<Times> {
    let mut file = File::create(folder.join("alone"))?;
    let (mut times, end) = (Vec::new(), Instant::now() + time);
    while Instant::now() < end {
        let begun = Instant::now();
        file.write_all(&[7; KEY_BYTES + VALUE_BYTES])?;
        file.sync_data()?;
        times.push(u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    Ok(Times::new(times))
}

/// What was measured of a system in one round.
struct Measured {
    puts: [Puts; WRITERS.len()],
    gets: Gets,
}

fn measure(system: System, folder: &Path, keys: u64, time: Duration) -> Outcome<Measured> {
    let own = tempfile::Builder::new().prefix("oneread-logs").tempdir_in(folder)?;
    let running = system.start(own.path(), keys)?;
    let gets = gets(&*running, keys, time)?;
    let puts = WRITERS.map(|writers| puts(&*running, writers, own.path(), keys, time));
    let [one, few, many] = puts;
    Ok(Measured { puts: [one?, few?, many?], gets })
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = figures.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Three digits, and a unit.
fn time(ns: f64) -> String {
    let (unit, by) = match ns {
        ns if ns < 1e3 => ("ns", 1.0),
        ns if ns < 1e6 => ("us", 1e3),
        _ => ("ms", 1e6),
    };
    let n = ns / by;
    format!(
        "{n:.*} {unit}",
        if n < 10.0 {
            2
        } else if n < 100.0 {
            1
        } else {
            0
        }
    )
}

fn count(n: f64) -> String {
    let digits = format!("{n:.0}");
    let mut told = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            told.push(',');
        }
        told.push(digit);
    }
    told
}

fn row(system: System, rounds: &[Measured]) -> String {
    let each = |figure: fn(&Puts) -> f64, told: fn(f64) -> String| {
        let all =
            (0..WRITERS.len()).map(|at| told(median(rounds.iter().map(|round| figure(&round.puts[at])))));
        all.collect::<Vec<_>>().join(", ")
    };
    let gets = |figure: fn(&Gets) -> f64| median(rounds.iter().map(|round| figure(&round.gets)));
    let (quiet, beside) = (gets(|gets| gets.quiet), gets(|gets| gets.beside));
    format!(
        "| {} | {} | {} | {} | {}, {} ({:.2}) | {} |",
        system.name(),
        each(|puts| puts.per_second, count),
        each(|puts| puts.p50, time),
        each(|puts| puts.p99, time),
        time(quiet),
        time(beside),
        beside / quiet,
        each(|puts| puts.written, |bytes| if bytes.is_nan() { "-".into() } else { format!("{bytes:.1}") }),
    )
}

fn main() -> Outcome<()> {
    let given = Arguments::parse();
    if let (Some(fsync), Some(at)) = (given.serve, given.at) {
        return systems::serve(&fsync, at, &given.folder, given.keys);
    }
    if rustix::fs::statfs(&given.folder)?.f_type as i64 == TMPFS {
        return Err(
            format!("{} is in memory; name a folder on a disk by --folder", given.folder.display()).into()
        );
    }
    let time = Duration::try_from_secs_f64(given.seconds)?;
    let is_asked = |system: &System| given.only.is_empty() || given.only.contains(&system.product());
    let mut all: Vec<(System, Vec<Measured>)> =
        System::ALL.into_iter().filter(is_asked).map(|system| (system, Vec::new())).collect();
    let mut alone = Vec::new();
    for round in 1..=given.rounds {
        let own = tempfile::Builder::new().prefix("oneread-logs").tempdir_in(&given.folder)?;
        alone.push(disk(own.path(), time)?);
        all.retain_mut(|(system, rounds)| {
            eprintln!("round {round}: {}", system.name());
            match measure(*system, &given.folder, given.keys, time) {
                Ok(measured) => rounds.push(measured),
                Err(error) => eprintln!("left out: {}: {error}", system.name()),
            }
            rounds.len() == round
        });
    }
    let mut table = format!(
        "{} keys of {KEY_BYTES} bytes with values of {VALUE_BYTES}; medians of {} rounds; figures are of 1, 8 and 64 writers\n\n",
        given.keys, given.rounds
    );
    table += "| | puts a second | p50 | p99 | p99 of GETs: quiet, beside one writer | bytes on the disk a byte put |\n";
    table += "|---|---:|---:|---:|---:|---:|\n";
    let of_disk = |part| median(alone.iter().map(|times| times.quantile(part)));
    let per_second = median(alone.iter().map(|times| times.0.len() as f64 / given.seconds));
    let (p50, p99) = (self::time(of_disk(0.5)), self::time(of_disk(0.99)));
    writeln!(table, "| one file, appended and synced | {} | {p50} | {p99} | | |", count(per_second))?;
    for (system, rounds) in &all {
        table += &row(*system, rounds);
        table.push('\n');
    }
    println!("{table}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each system has what was put, and a put that returned is there for a reader of its own. Redis only where it is installed.
    #[test]
    fn each_has_what_it_was_given() {
        let mut found = 0;
        for system in System::ALL {
            if system.product() == Product::Oneread {
                // It is a child of the program, which this is not.
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let running = match system.start(folder.path(), 100) {
                Ok(running) => running,
                Err(why) if system.product() == Product::Redis => {
                    eprintln!("left out: {}: {why}", system.name());
                    continue;
                }
                Err(why) => panic!("{}: {why}", system.name()),
            };
            let (mut put, mut get) = (running.writer().unwrap(), running.reader().unwrap());
            for n in (0..100).chain(100..110) {
                put(n);
                get(n);
            }
            found += 1;
        }
        assert!(found >= 4, "LMDB and redb, both ways");
    }

    /// Figures are told with three digits, and quantiles are of what was measured.
    #[test]
    fn figures_are_told() {
        let times = Times::new((1..=100).rev().collect());
        assert_eq!((times.quantile(0.5), times.quantile(0.99)), (51.0, 100.0));
        assert!(Times::new(Vec::new()).quantile(0.5).is_nan());
        assert_eq!([time(7.0), time(12_340.0), time(123_456_789.0)], ["7.00 ns", "12.3 us", "123 ms"]);
        assert_eq!([count(7.0), count(1_234.0), count(1_234_567.0)], ["7", "1,234", "1,234,567"]);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
    }
}
