//! `bench grow`: a table that grows and shrinks while other processes read it.
//!
//! This process has two servers: of a table that grows, and of a fixed one that is large enough.
//! Two other processes read. Part by part, the same keys are put into both tables, or removed from
//! both, and the readers read the one that changes.

mod plot;
pub mod reader;

use crate::arguments::whole;
use crate::measure::{KEY_BYTES, VALUE_BYTES, key, machine, quantile, told, told_ns, value};
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{Attribute, Cell};
use hdrhistogram::Histogram;
use oneread::layout::geometry::Geometry;
use oneread::{
    Address, Backing, Config, Family, Index, Layout, PutMode, PutOutcome, Server, ServerConfig, TableSize,
};
use oneread_kit::folder::{Folder, bytes_behind};
use oneread_kit::progress::Progress;
use oneread_kit::{names, show};
use reader::{NO_STEP, Page, StepReport, Told, latencies, pin};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Let a table grow and shrink while other processes read it
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench grow
  oneread bench grow --keys 8388608 --plot grow.svg   2^23 keys, some minutes
  oneread bench grow --segment-slots 1024 --json

Keys are put, one after the other, and then removed again. Two other processes
GET random keys meanwhile, often those put last or to be removed next, and now
and then one that was removed or never put. Each answer is checked. The exit
status is 1 if one was not as it must be:
  failed  GETs that ended in an error
  wrong   another key's value, or a value for a key that is not there
  missed  keys put, and not yet being removed, that were not found
Part by part, the same changes are made to a fixed table, made for all the keys.
Its GETs meanwhile are what those of the growing table are compared with. The
readers run on other CPUs than the servers, where there are two or more.

A GET counts READs of windows, and of directory entries when it needs one whole.
On this host it also loads one word of the directory each time.")]
pub struct Grow {
    /// Most keys
    #[arg(long, value_name = "N", default_value = "524288", value_parser = keys)]
    keys: u64,
    /// Fewest keys: so many are put before the readers begin, and so many stay
    #[arg(long, value_name = "N", default_value = "65536", value_parser = keys)]
    from: u64,
    /// The layout of both tables
    #[arg(long, value_name = "NAME", default_value = "windowed:8", value_parser = names::layout(), hide_possible_values = true)]
    layout: Layout,
    /// Main slots of a segment [default: those of about 1 MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    segment_slots: Option<u64>,
    /// Draw what happened into this SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = crate::plot::svg_file, value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses 1000000 and 1e6.
fn keys(text: &str) -> Result<u64, String> {
    let n = whole(text).ok().filter(|n| (1_000..=1_000_000_000).contains(n));
    n.ok_or_else(|| "a whole number from 1000 to 1e9, as in 1000000 or 1e6".into())
}

/// Processes that read.
const READERS: usize = 2;
/// Parts in which the number of keys doubles.
const PARTS: u32 = 16;
/// Times in each part that the load is looked at.
const LOOKS: u64 = 16;
/// Changes after which the readers are told whether a split or merge is under way.
const TELL_EVERY: u64 = 512;
/// A reader answers within this time when a step ends.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// What is under way after the last remove has so long to end.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// What came of it. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    machine: String,
    layout: String,
    /// Where servers and readers ran.
    cpus: String,
    from: u64,
    keys: u64,
    splits: u64,
    merges: u64,
    /// Merges that were given up.
    given_up: u64,
    /// GETs of the growing table.
    gets: u64,
    failed: u64,
    wrong: u64,
    missed: u64,
    /// GETs of the growing table that had to look again, for each million.
    retries_per_million: f64,
    /// Page faults of the readers during inserts, for each million of GETs.
    faults_per_million: f64,
    fixed_faults_per_million: f64,
    /// GETs while a split is under way, to those of the fixed table during the same inserts. Null
    /// without a split.
    p99_ratio: Option<f64>,
    p999_ratio: Option<f64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    fixed_p99_ns: Option<u64>,
    fixed_p999_ns: Option<u64>,
    /// The same during removes, while a merge is under way.
    merging_p99_ratio: Option<f64>,
    merging_p999_ratio: Option<f64>,
    /// Insert latencies.
    put_max_ms: f64,
    put_p50_ns: Option<u64>,
    put_p99_ns: Option<u64>,
    put_p9999_ns: Option<u64>,
    fixed_put_max_ms: f64,
    fixed_put_p50_ns: Option<u64>,
    fixed_put_p99_ns: Option<u64>,
    fixed_put_p9999_ns: Option<u64>,
    remove_max_ms: f64,
    fixed_remove_max_ms: f64,
    /// The longest insert or remove by the CPU time that it took: other threads do not count.
    change_cpu_max_ms: f64,
    fixed_change_cpu_max_ms: f64,
    /// Keys moved for each insert, within segments and from one to another; of these the latter.
    moves_per_insert: f64,
    split_moves_per_insert: f64,
    fixed_moves_per_insert: f64,
    /// Keys to all slots, over the inserts.
    load_min: f64,
    load_mean: f64,
    fixed_load_end: f64,
    /// Over the removes.
    shrinking_load_min: f64,
    shrinking_load_mean: f64,
    /// Hits of the growing table, over the inserts; directory READs are part of the READs. Null where
    /// windows differ in length.
    reads_per_get: Option<f64>,
    reads_per_get_max: Option<f64>,
    directory_reads_per_get: Option<f64>,
    directory_reads_per_get_max: Option<f64>,
    fixed_reads_per_get: Option<f64>,
    shrinking_reads_per_get: Option<f64>,
    /// Memory behind the region, by st_blocks: the most, at the end, and the difference.
    bytes_max: u64,
    bytes_end: u64,
    bytes_returned: u64,
    segments_max: u64,
    segments_end: u64,
    seconds: f64,
    /// Inserts, by doublings of the keys.
    doublings: Vec<Doubling>,
    /// All parts in the order in which they were.
    parts: Vec<Part>,
}

/// The inserts by which the keys doubled.
#[derive(Debug, Serialize)]
struct Doubling {
    /// So many keys there were then.
    keys: u64,
    load: f64,
    reads_per_get: Option<f64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    p99_ratio: Option<f64>,
    p999_ratio: Option<f64>,
    put_max_ms: f64,
}

/// One part: some inserts, or some removes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Part {
    /// Seconds of changes to the growing table, and keys in it, at the end of the part.
    seconds: f64,
    keys: u64,
    /// Keys are removed.
    shrinks: bool,
    load_min: f64,
    load_mean: f64,
    bytes: u64,
    segments: u64,
    reads_per_get: Option<f64>,
    directory_reads_per_get: Option<f64>,
    fixed_reads_per_get: Option<f64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    fixed_p50_ns: Option<u64>,
    fixed_p99_ns: Option<u64>,
    fixed_p999_ns: Option<u64>,
    /// The longest change, by CPU time.
    change_cpu_max_ms: f64,
    fixed_change_cpu_max_ms: f64,
}

/// The two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Growing,
    Fixed,
}

impl Which {
    const BOTH: [Which; 2] = [Which::Growing, Which::Fixed];
}

/// What readers saw, added up.
struct Seen {
    busy: Histogram<u64>,
    all: Histogram<u64>,
    gets: u64,
    hits: u64,
    reads: u64,
    bytes: u64,
    retries: u64,
    faults: u64,
}

/// What was seen of one table: while keys were put, and while they were removed.
struct Side {
    puts: Histogram<u64>,
    removes: Histogram<u64>,
    /// The longest change by this thread's own CPU time.
    cpu_max_ns: u64,
    inserting: Seen,
    removing: Seen,
}

/// Loads looked at.
#[derive(Clone, Copy, Debug)]
struct Loads {
    min: f64,
    sum: f64,
    looks: u64,
}

impl Default for Loads {
    fn default() -> Loads {
        Loads { min: f64::MAX, sum: 0.0, looks: 0 }
    }
}

impl Loads {
    fn look(&mut self, index: &Index) {
        let load = index.load_true();
        *self = Loads { min: self.min.min(load), sum: self.sum + load, looks: self.looks + 1 };
    }

    fn add(&mut self, more: &Loads) {
        *self =
            Loads { min: self.min.min(more.min), sum: self.sum + more.sum, looks: self.looks + more.looks };
    }

    fn mean(&self) -> f64 {
        self.sum / self.looks.max(1) as f64
    }
}

impl Grow {
    pub fn run(self) -> Result<ExitCode> {
        ensure!(
            self.from < self.keys,
            "--from {} is not less than --keys {}; the table has to grow between them, so give more --keys",
            self.from,
            self.keys
        );
        let outcome = self.measure()?;
        if self.json {
            show::say(serde_json::to_string(&outcome)?)?;
        } else {
            outcome.show()?;
        }
        if let Some(path) = &self.plot {
            crate::plot::write(path, plot::draw(&outcome))?;
        }
        Ok(oneread_kit::status(outcome.failed + outcome.wrong + outcome.missed == 0))
    }

    fn measure(&self) -> Result<Outcome> {
        let (machine, cpus) = (machine(), Cpus::chosen()?);
        // Before the servers' threads begin.
        cpus.server.as_deref().map(pin).transpose()?;
        let folder = Folder::new()?;
        let growing = self.serve(&folder, Which::Growing)?;
        let fixed = self.serve(&folder, Which::Fixed)?;
        let begun = Instant::now();
        let bar = Progress::of(2 * (2 * self.keys - self.from), "growing", "changes");
        let mut run = Run { page: Page::new()?, tables: [growing, fixed], readers: None, step: 0, bar };
        for which in Which::BOTH {
            run.put(which, 0..self.from, &mut Side::new()?, None)?;
        }
        run.readers = Some(Readers::start(&run.page, &run.tables, &cpus)?);
        let mut outcome = Outcome {
            machine,
            layout: self.layout.to_string(),
            cpus: cpus.to_string(),
            from: self.from,
            keys: self.keys,
            ..Outcome::default()
        };
        let mut sides = [Side::new()?, Side::new()?];
        let before = [0, 1].map(|n| run.tables[n].index().counts());
        let moved_before = run.tables[0].index().growth().moved;
        self.inserts(&mut run, &mut sides, &mut outcome)?;
        let after = [0, 1].map(|n| run.tables[n].index().counts());
        let growth = run.tables[0].index().growth();
        outcome.segments_max = growth.segments;
        outcome.fixed_load_end = run.tables[1].index().load_true();
        let inserts = (self.keys - self.from) as f64;
        let moves = [0, 1].map(|n| (after[n].moves - before[n].moves) as f64 / inserts);
        outcome.split_moves_per_insert = (growth.moved - moved_before) as f64 / inserts;
        outcome.moves_per_insert = moves[0] + outcome.split_moves_per_insert;
        outcome.fixed_moves_per_insert = moves[1];
        self.removes(&mut run, &mut sides, &mut outcome)?;
        run.bar.finish();
        outcome.seconds = begun.elapsed().as_secs_f64();
        let growth = run.tables[0].index().growth();
        (outcome.splits, outcome.merges, outcome.given_up) = (growth.splits, growth.merges, growth.given_up);
        outcome.segments_end = growth.segments;
        outcome.bytes_end = bytes_behind(&run.tables[0])?;
        outcome.bytes_returned = outcome.bytes_max.saturating_sub(outcome.bytes_end);
        run.readers.take().map(|readers| readers.end(&run.page)).transpose()?;
        outcome.judge(&sides, run.tables[0].index().geometry());
        Ok(outcome)
    }

    fn serve(&self, folder: &Folder, which: Which) -> Result<Server> {
        let config = Config::new().layout(self.layout).key_max(KEY_BYTES).value_max(VALUE_BYTES);
        let (name, size) = match which {
            // A table is never so empty that it would need more.
            Which::Growing => {
                let slot = config.geometry()?.shape().bytes() as u64;
                let bytes_max = 4 * self.keys * slot + (64 << 20);
                ("growing", TableSize::Growing { bytes_max, segment_slots: self.segment_slots })
            }
            Which::Fixed => ("fixed", TableSize::Keys(self.keys)),
        };
        let address = Address::Shm(folder.join(name));
        let how = ServerConfig::new(address, config.size(size)).backing(Backing::Anonymous).workers(1);
        Ok(Server::start(how)?)
    }

    /// The bounds of the parts: as many for each doubling of the keys.
    fn parts(&self) -> Vec<Range<u64>> {
        let doublings = (self.keys as f64 / self.from as f64).log2();
        let parts = (doublings * f64::from(PARTS)).ceil().max(1.0);
        let bound = |n: f64| (self.from as f64 * (doublings * n / parts).exp2()).round() as u64;
        let bounds: Vec<u64> = (0..=parts as u64).map(|n| bound(n as f64)).collect();
        bounds.windows(2).map(|pair| pair[0]..pair[1]).filter(|part| !part.is_empty()).collect()
    }

    fn inserts(&self, run: &mut Run, sides: &mut [Side; 2], outcome: &mut Outcome) -> Result<()> {
        let mut all = Loads::default();
        let mut doubling = [Side::new()?, Side::new()?];
        let mut doubling_loads = Loads::default();
        for (number, range) in self.parts().into_iter().enumerate() {
            let mut part = Part { keys: range.end, ..Part::default() };
            let mut loads = Loads::default();
            // Neither is always the first.
            for which in [0, 1].map(|n| Which::BOTH[(n + number) % 2]) {
                let mut side = Side::new()?;
                let growing = which == Which::Growing;
                run.page.tell(Told::Low, 0);
                run.page.tell(Told::Removed, 0);
                run.page.tell(Told::High, range.start);
                run.begin(which)?;
                let begun = Instant::now();
                run.put(which, range.clone(), &mut side, growing.then_some(&mut loads))?;
                if growing {
                    part.seconds = begun.elapsed().as_secs_f64();
                }
                run.end(&mut side.inserting, outcome, growing)?;
                part.note(which, &side.inserting, side.cpu_max_ns, run.tables[0].index().geometry());
                sides[which as usize].add(&side)?;
                doubling[which as usize].add(&side)?;
            }
            all.add(&loads);
            doubling_loads.add(&loads);
            self.end_part(part, &loads, run, outcome)?;
            if (number + 1).is_multiple_of(PARTS as usize) || range.end == self.keys {
                outcome.doublings.push(Doubling::of(range.end, &doubling, &doubling_loads));
                doubling = [Side::new()?, Side::new()?];
                doubling_loads = Loads::default();
            }
        }
        (outcome.load_min, outcome.load_mean) = (all.min, all.mean());
        Ok(())
    }

    fn removes(&self, run: &mut Run, sides: &mut [Side; 2], outcome: &mut Outcome) -> Result<()> {
        let mut all = Loads::default();
        for (number, range) in self.parts().into_iter().rev().enumerate() {
            // Those put first go first.
            let gone = self.keys - range.end..self.keys - range.start;
            let mut part = Part { keys: range.start, shrinks: true, ..Part::default() };
            let mut loads = Loads::default();
            for which in [0, 1].map(|n| Which::BOTH[(n + number) % 2]) {
                let mut side = Side::new()?;
                let growing = which == Which::Growing;
                run.page.tell(Told::Low, gone.start);
                run.page.tell(Told::Removed, gone.start);
                run.page.tell(Told::High, self.keys);
                run.begin(which)?;
                let begun = Instant::now();
                run.remove(which, gone.clone(), &mut side, growing.then_some(&mut loads))?;
                if growing {
                    part.seconds = begun.elapsed().as_secs_f64();
                }
                run.end(&mut side.removing, outcome, growing)?;
                part.note(which, &side.removing, side.cpu_max_ns, run.tables[0].index().geometry());
                sides[which as usize].add(&side)?;
            }
            all.add(&loads);
            self.end_part(part, &loads, run, outcome)?;
        }
        (outcome.shrinking_load_min, outcome.shrinking_load_mean) = (all.min, all.mean());
        // What can be merged on request is merged, while the readers go on.
        let mut side = Side::new()?;
        run.begin(Which::Growing)?;
        let patience = Instant::now() + SETTLE_MAX;
        let index = run.tables[0].index();
        loop {
            let begun = index.shrink();
            let growth = index.growth();
            if begun + growth.merging + growth.splitting == 0 || Instant::now() > patience {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Memory comes back after the grace time of the last merge.
        std::thread::sleep(Duration::from_millis(200));
        run.end(&mut side.removing, outcome, true)?;
        sides[0].add(&side)
    }

    fn end_part(&self, mut part: Part, loads: &Loads, run: &Run, outcome: &mut Outcome) -> Result<()> {
        let growing = &run.tables[0];
        (part.load_min, part.load_mean) = (loads.min, loads.mean());
        part.bytes = bytes_behind(growing)?;
        part.segments = growing.index().growth().segments;
        part.seconds += outcome.parts.last().map_or(0.0, |last| last.seconds);
        outcome.bytes_max = outcome.bytes_max.max(part.bytes);
        outcome.parts.push(part);
        Ok(())
    }
}

/// A run under way.
struct Run {
    page: Page,
    tables: [Server; 2],
    readers: Option<Readers>,
    step: u64,
    bar: Progress,
}

impl Run {
    fn put(
        &self,
        which: Which,
        numbers: Range<u64>,
        side: &mut Side,
        mut loads: Option<&mut Loads>,
    ) -> Result<()> {
        let index = self.tables[which as usize].index();
        let apart = ((numbers.end - numbers.start) / LOOKS).max(1);
        let mut cpu_ns = cpu_now_ns();
        for (done, number) in numbers.enumerate() {
            if self.look(done as u64, apart, index, loads.as_deref_mut()) {
                cpu_ns = cpu_now_ns();
            }
            let (key, value) = (key(number), value(number));
            let begun = Instant::now();
            let outcome = index.put(&key, &value, PutMode::Insert);
            let took = begun.elapsed().as_nanos() as u64;
            let before_ns = std::mem::replace(&mut cpu_ns, cpu_now_ns());
            let outcome = outcome.with_context(|| format!("inserting key number {number}"))?;
            ensure!(
                outcome == PutOutcome::Inserted,
                "key number {number} was there before it was put: this is an error of the table; please report it with the command that you ran"
            );
            self.page.tell(Told::High, number + 1);
            side.puts.saturating_record(took);
            side.cpu_max_ns = side.cpu_max_ns.max(cpu_ns - before_ns);
        }
        Ok(())
    }

    fn remove(
        &self,
        which: Which,
        numbers: Range<u64>,
        side: &mut Side,
        mut loads: Option<&mut Loads>,
    ) -> Result<()> {
        let index = self.tables[which as usize].index();
        let apart = ((numbers.end - numbers.start) / LOOKS).max(1);
        let mut cpu_ns = cpu_now_ns();
        for (done, number) in numbers.enumerate() {
            if self.look(done as u64, apart, index, loads.as_deref_mut()) {
                cpu_ns = cpu_now_ns();
            }
            self.page.tell(Told::Low, number + 1);
            let key = key(number);
            let begun = Instant::now();
            let was_there = index.remove(&key);
            side.removes.saturating_record(begun.elapsed().as_nanos() as u64);
            let before_ns = std::mem::replace(&mut cpu_ns, cpu_now_ns());
            side.cpu_max_ns = side.cpu_max_ns.max(cpu_ns - before_ns);
            let was_there = was_there.with_context(|| format!("removing key number {number}"))?;
            ensure!(
                was_there,
                "key number {number}, which had been put, was not there to be removed: this is an error of the table; please report it with the command that you ran"
            );
            self.page.tell(Told::Removed, number + 1);
        }
        Ok(())
    }

    /// Now and then, tells the readers what is under way, and looks at the load. Returns whether it did.
    fn look(&self, done: u64, apart: u64, index: &Index, loads: Option<&mut Loads>) -> bool {
        let (tells, looks) = (done.is_multiple_of(TELL_EVERY), done.is_multiple_of(apart));
        if tells {
            let growth = index.growth();
            self.page.tell(Told::Busy, growth.splitting + growth.merging);
            self.bar.inc(TELL_EVERY.min(done));
        }
        if let Some(loads) = loads.filter(|_| looks) {
            loads.look(index);
        }
        tells || looks
    }

    /// Lets the readers read a table.
    fn begin(&mut self, which: Which) -> Result<()> {
        self.step += 1;
        self.page.tell(Told::Table, which as u64);
        self.page.tell(Told::Step, self.step);
        Ok(())
    }

    /// Ends the readers' step.
    fn end(&mut self, seen: &mut Seen, outcome: &mut Outcome, growing: bool) -> Result<()> {
        self.page.tell(Told::Ended, self.step);
        let readers = self.readers.as_mut().context("nobody reads")?;
        for _ in 0..READERS {
            let report = readers.report()?;
            ensure!(
                report.step == self.step,
                "a reading process is at step {} in place of {}: it was stopped, or answered late; run the bench again",
                report.step,
                self.step
            );
            if let Some(error) = &report.error {
                show::complain(format_args!("oneread: a GET has failed: {error}"));
            }
            outcome.gets += if growing { report.gets } else { 0 };
            outcome.failed += report.failed;
            outcome.wrong += report.wrong;
            outcome.missed += report.missed;
            seen.add_report(&report)?;
        }
        Ok(())
    }
}

/// The processes that read. They end with their guard, or with this process.
struct Readers {
    children: Vec<Child>,
    reports: mpsc::Receiver<Result<StepReport>>,
}

impl Readers {
    /// Returns when all have connected.
    fn start(page: &Page, tables: &[Server; 2], cpus: &Cpus) -> Result<Readers> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let (sender, reports) = mpsc::channel();
        let mut readers = Readers { children: Vec::new(), reports };
        for number in 0..READERS {
            let mut command = Command::new(&program);
            command.args(["bench", "grow-reader"]);
            command.arg(format!("--growing={}", tables[0].address()));
            command.arg(format!("--fixed={}", tables[1].address()));
            command.arg(format!("--number={number}"));
            if let Some(cpus) = cpus.readers.get(number) {
                command.arg(format!("--cpus={cpus}"));
            }
            let command = command.stdin(page.to_hand_over()?).stdout(Stdio::piped());
            let mut child = command.spawn().context("starting a reader")?;
            let lines = BufReader::new(child.stdout.take().context("a reader's output")?).lines();
            readers.children.push(child);
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in lines {
                    let report = line.map_err(anyhow::Error::from);
                    let report = report.and_then(|line| Ok(serde_json::from_str(&line)?));
                    if sender.send(report).is_err() {
                        return;
                    }
                }
                let _ = sender.send(Err(anyhow::anyhow!("a reader has ended; it says why above")));
            });
        }
        for _ in 0..READERS {
            readers.report()?;
        }
        Ok(readers)
    }

    fn report(&self) -> Result<StepReport> {
        self.reports.recv_timeout(ANSWER_MAX).context("waiting for a reader")?
    }

    fn end(mut self, page: &Page) -> Result<()> {
        page.tell(Told::Step, NO_STEP);
        for child in &mut self.children {
            let status = child.wait().context("waiting for a reader")?;
            ensure!(
                status.success(),
                "a reading process ended by {status}; run the bench again, with more memory if the system killed it"
            );
        }
        Ok(())
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// On which CPUs servers and readers run.
struct Cpus {
    server: Option<Vec<usize>>,
    /// Those of each reader.
    readers: Vec<usize>,
}

impl Cpus {
    /// Each reader has one of its own, if there are enough; of two, the readers share one.
    fn chosen() -> Result<Cpus> {
        let allowed = sched_getaffinity(None).context("asking for this process's CPUs")?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        Ok(Cpus::of(&all))
    }

    fn of(all: &[usize]) -> Cpus {
        match *all {
            [] | [_] => Cpus { server: None, readers: Vec::new() },
            [one, other] => Cpus { server: Some(vec![one]), readers: vec![other; READERS] },
            _ => {
                let (server, readers) = all.split_at(all.len() - READERS);
                Cpus { server: Some(server.to_vec()), readers: readers.to_vec() }
            }
        }
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.server, &self.readers[..]) {
            (Some(server), [one, other]) if one == other => {
                write!(f, "servers on CPU {}, both readers on CPU {one}: there are two", server[0])
            }
            (Some(server), [one, other]) => {
                let server: Vec<_> = server.iter().map(usize::to_string).collect();
                write!(f, "servers on CPU {}, readers on CPUs {one} and {other}", server.join(", "))
            }
            _ => write!(f, "servers and readers share the one CPU: latencies mean little"),
        }
    }
}

impl Seen {
    fn new() -> Result<Seen> {
        let [busy, all] = [latencies()?, latencies()?];
        Ok(Seen { busy, all, gets: 0, hits: 0, reads: 0, bytes: 0, retries: 0, faults: 0 })
    }

    fn add_report(&mut self, report: &StepReport) -> Result<()> {
        for &(ns, count) in &report.busy {
            self.busy.record_n(ns, count)?;
        }
        for &(ns, count) in report.busy.iter().chain(&report.quiet) {
            self.all.record_n(ns, count)?;
        }
        self.gets += report.gets;
        self.hits += report.hits;
        self.reads += report.reads;
        self.bytes += report.bytes;
        self.retries += report.retries;
        self.faults += report.faults;
        Ok(())
    }

    fn add(&mut self, more: &Seen) -> Result<()> {
        self.busy.add(&more.busy)?;
        self.all.add(&more.all)?;
        self.gets += more.gets;
        self.hits += more.hits;
        self.reads += more.reads;
        self.bytes += more.bytes;
        self.retries += more.retries;
        self.faults += more.faults;
        Ok(())
    }

    fn reads_per_get(&self) -> Option<f64> {
        (self.hits > 0).then(|| self.reads as f64 / self.hits as f64)
    }

    /// READs of whole directory entries. All other READs are as long as a window.
    fn directory_reads_per_get(&self, geometry: &Geometry) -> Option<f64> {
        if geometry.layout().family != Family::Cuckoo || self.hits == 0 {
            return None;
        }
        let (window, slot) = (geometry.window_bytes(geometry.window(0)), geometry.shape().bytes() as u64);
        let directory = (self.reads * window).checked_sub(self.bytes)? / window.checked_sub(slot)?.max(1);
        Some(directory as f64 / self.hits as f64)
    }
}

impl Side {
    fn new() -> Result<Side> {
        let [puts, removes] = [latencies()?, latencies()?];
        Ok(Side { puts, removes, cpu_max_ns: 0, inserting: Seen::new()?, removing: Seen::new()? })
    }

    fn add(&mut self, more: &Side) -> Result<()> {
        self.cpu_max_ns = self.cpu_max_ns.max(more.cpu_max_ns);
        self.puts.add(&more.puts)?;
        self.removes.add(&more.removes)?;
        self.inserting.add(&more.inserting)?;
        self.removing.add(&more.removing)
    }
}

/// The quantile of GETs while splits or merges were under way, to that of the fixed table.
fn ratio(growing: &Seen, fixed: &Seen, part: f64) -> Option<f64> {
    let ns = |all| Some(quantile(all, part)? as f64);
    Some(ns(&growing.busy)? / ns(&fixed.all)?)
}

/// The CPU time of this thread.
fn cpu_now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

impl Part {
    fn note(&mut self, which: Which, seen: &Seen, cpu_max_ns: u64, geometry: &Geometry) {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| quantile(&seen.all, part));
        match which {
            Which::Growing => {
                (self.p50_ns, self.p99_ns, self.p999_ns) = (p50, p99, p999);
                self.reads_per_get = seen.reads_per_get();
                self.directory_reads_per_get = seen.directory_reads_per_get(geometry);
                self.change_cpu_max_ms = ms(cpu_max_ns);
            }
            Which::Fixed => {
                (self.fixed_p50_ns, self.fixed_p99_ns, self.fixed_p999_ns) = (p50, p99, p999);
                self.fixed_reads_per_get = seen.reads_per_get();
                self.fixed_change_cpu_max_ms = ms(cpu_max_ns);
            }
        }
    }
}

impl Doubling {
    fn of(keys: u64, [growing, fixed]: &[Side; 2], loads: &Loads) -> Doubling {
        let busy = |part| quantile(&growing.inserting.busy, part);
        let ratio = |part| ratio(&growing.inserting, &fixed.inserting, part);
        Doubling {
            keys,
            load: loads.mean(),
            reads_per_get: growing.inserting.reads_per_get(),
            p99_ns: busy(0.99),
            p999_ns: busy(0.999),
            p99_ratio: ratio(0.99),
            p999_ratio: ratio(0.999),
            put_max_ms: ms(growing.puts.max()),
        }
    }
}

impl Outcome {
    /// Fills in what follows from the sums.
    fn judge(&mut self, [growing, fixed]: &[Side; 2], geometry: &Geometry) {
        let (up, fixed_up) = (&growing.inserting, &fixed.inserting);
        let (down, fixed_down) = (&growing.removing, &fixed.removing);
        (self.p99_ratio, self.p999_ratio) = (ratio(up, fixed_up, 0.99), ratio(up, fixed_up, 0.999));
        self.merging_p99_ratio = ratio(down, fixed_down, 0.99);
        self.merging_p999_ratio = ratio(down, fixed_down, 0.999);
        (self.p99_ns, self.p999_ns) = (quantile(&up.busy, 0.99), quantile(&up.busy, 0.999));
        self.fixed_p99_ns = quantile(&fixed_up.all, 0.99);
        self.fixed_p999_ns = quantile(&fixed_up.all, 0.999);
        self.retries_per_million = (up.retries + down.retries) as f64 * 1e6 / self.gets.max(1) as f64;
        let faults = |seen: &Seen| seen.faults as f64 * 1e6 / seen.gets.max(1) as f64;
        (self.faults_per_million, self.fixed_faults_per_million) = (faults(up), faults(fixed_up));
        let of = |puts: &Histogram<u64>| [0.5, 0.99, 0.9999].map(|part| quantile(puts, part));
        [self.put_p50_ns, self.put_p99_ns, self.put_p9999_ns] = of(&growing.puts);
        [self.fixed_put_p50_ns, self.fixed_put_p99_ns, self.fixed_put_p9999_ns] = of(&fixed.puts);
        (self.put_max_ms, self.fixed_put_max_ms) = (ms(growing.puts.max()), ms(fixed.puts.max()));
        (self.remove_max_ms, self.fixed_remove_max_ms) = (ms(growing.removes.max()), ms(fixed.removes.max()));
        self.change_cpu_max_ms = ms(growing.cpu_max_ns);
        self.fixed_change_cpu_max_ms = ms(fixed.cpu_max_ns);
        self.reads_per_get = up.reads_per_get();
        self.directory_reads_per_get = up.directory_reads_per_get(geometry);
        self.fixed_reads_per_get = fixed_up.reads_per_get();
        self.shrinking_reads_per_get = down.reads_per_get();
        let grown = || self.parts.iter().filter(|part| !part.shrinks);
        self.reads_per_get_max = grown().filter_map(|part| part.reads_per_get).reduce(f64::max);
        self.directory_reads_per_get_max =
            grown().map(|part| part.directory_reads_per_get).reduce(|a, b| Some(a?.max(b?))).flatten();
    }

    fn show(&self) -> Result<()> {
        show::say(format_args!(
            "{} to {} and back, layout {}\n{}\n{}",
            show::count(self.from),
            show::counted(self.keys, "key"),
            self.layout,
            show::machine(&self.machine),
            self.cpus
        ))?;
        let mut table =
            show::narrow_table(["keys", "load", "READs", "p99", "ratio", "p99.9", "ratio", "longest put"]);
        let ratio = |ratio| told(ratio, |ratio: f64| format!("{ratio:.2}"));
        let reads = |reads| told(reads, |reads: f64| format!("{reads:.3}"));
        for at in &self.doublings {
            table.add_row(vec![
                Cell::new(show::count(at.keys)).add_attribute(Attribute::Bold),
                show::number(format_args!("{:.0} %", 100.0 * at.load)),
                show::number(reads(at.reads_per_get)),
                show::number(told_ns(at.p99_ns)),
                show::number(ratio(at.p99_ratio)),
                show::number(told_ns(at.p999_ns)),
                show::number(ratio(at.p999_ratio)),
                show::number(show::nanos(1e6 * at.put_max_ms)),
            ]);
        }
        show::say(table)?;
        let mut facts = show::facts();
        let both = |ms: f64, fixed_ms: f64| {
            format!("{}, fixed {}", show::nanos(1e6 * ms), show::nanos(1e6 * fixed_ms))
        };
        let percent = |min: f64, mean: f64| format!("{:.0} %, mean {:.0} %", 100.0 * min, 100.0 * mean);
        for (name, told) in [
            ("GETs of the growing table", show::count(self.gets)),
            (
                "failed, wrong, missed",
                [self.failed, self.wrong, self.missed].map(|n| n.to_string()).join(", "),
            ),
            (
                "while splitting, to the fixed table's",
                format!("p99 {}, p99.9 {}", ratio(self.p99_ratio), ratio(self.p999_ratio)),
            ),
            (
                "while merging",
                format!("p99 {}, p99.9 {}", ratio(self.merging_p99_ratio), ratio(self.merging_p999_ratio)),
            ),
            ("longest put", both(self.put_max_ms, self.fixed_put_max_ms)),
            ("longest change, by CPU time", both(self.change_cpu_max_ms, self.fixed_change_cpu_max_ms)),
            (
                "keys moved per insert",
                format!("{:.2}, fixed {:.2}", self.moves_per_insert, self.fixed_moves_per_insert),
            ),
            ("lowest load, growing", percent(self.load_min, self.load_mean)),
            ("lowest load, shrinking", percent(self.shrinking_load_min, self.shrinking_load_mean)),
            (
                "READs per GET",
                format!("{}, at worst {}", reads(self.reads_per_get), reads(self.reads_per_get_max)),
            ),
            (
                "splits, merges, given up",
                [self.splits, self.merges, self.given_up].map(show::count).join(", "),
            ),
            (
                "memory",
                format!(
                    "{}, returned {}, left {}",
                    show::bytes(self.bytes_max),
                    show::bytes(self.bytes_returned),
                    show::bytes(self.bytes_end)
                ),
            ),
        ] {
            facts.add_row([name.to_owned(), told]);
        }
        Ok(show::say(facts)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers and readers disturb each other as little as there are CPUs, and that is told.
    #[test]
    fn cpus_are_shared_out() {
        let told = |all: &[usize]| {
            let cpus = Cpus::of(all);
            (cpus.server.clone(), cpus.readers.clone(), cpus.to_string())
        };
        let few = "servers and readers share the one CPU: latencies mean little";
        assert_eq!(told(&[5]), (None, vec![], few.into()));
        let two = "servers on CPU 3, both readers on CPU 5: there are two";
        assert_eq!(told(&[3, 5]), (Some(vec![3]), vec![5, 5], two.into()));
        let many = "servers on CPU 1, 3, 5, readers on CPUs 7 and 9";
        assert_eq!(told(&[1, 3, 5, 7, 9]), (Some(vec![1, 3, 5]), vec![7, 9], many.into()));
    }
}
