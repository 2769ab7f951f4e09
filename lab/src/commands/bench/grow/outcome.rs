//! What came of `bench grow`.

use super::seen::{Course, CpuTimes, LONG_NS, Loads, Seen, Side, Which, ratio};
use crate::measure::{quantile, told, told_ns};
use anyhow::Result;
use hdrhistogram::Histogram;
use oneread::internals::layout::geometry::Geometry;
use oneread_kit::show;
use serde::Serialize;

/// Parts in which the number of keys doubles.
pub const PARTS: u32 = 16;

/// What came of it. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    pub machine: String,
    pub layout: String,
    /// Where servers and readers ran.
    pub cpus: String,
    pub from: u64,
    pub keys: u64,
    pub splits: u64,
    pub merges: u64,
    /// Merges that were given up.
    pub given_up: u64,
    /// GETs of the growing table.
    pub gets: u64,
    pub failed: u64,
    pub wrong: u64,
    pub missed: u64,
    /// GETs of the growing table that had to look again, for each million.
    pub retries_per_million: f64,
    /// Page faults of the readers during inserts, for each million of GETs.
    pub faults_per_million: f64,
    pub fixed_faults_per_million: f64,
    /// GETs while a split is under way, to those of the fixed table during the same inserts, and to
    /// those of the growing one while none is. Null without a split.
    pub p99_ratio: Option<f64>,
    pub p999_ratio: Option<f64>,
    pub p999_quiet_ratio: Option<f64>,
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
    pub fixed_p99_ns: Option<u64>,
    pub fixed_p999_ns: Option<u64>,
    /// GETs during removes, while a merge is under way: as `p99_ratio` and the next two.
    pub merging_p99_ratio: Option<f64>,
    pub merging_p999_ratio: Option<f64>,
    pub merging_p999_quiet_ratio: Option<f64>,
    /// Insert latencies.
    pub put_max_ms: f64,
    pub put_p50_ns: Option<u64>,
    pub put_p99_ns: Option<u64>,
    pub put_p9999_ns: Option<u64>,
    pub fixed_put_max_ms: f64,
    pub fixed_put_p50_ns: Option<u64>,
    pub fixed_put_p99_ns: Option<u64>,
    pub fixed_put_p9999_ns: Option<u64>,
    pub remove_max_ms: f64,
    pub fixed_remove_max_ms: f64,
    /// The longest insert or remove by the CPU time that it took: other threads do not count.
    pub change_cpu_max_ms: f64,
    pub fixed_change_cpu_max_ms: f64,
    /// Those that took more than 0.5 ms.
    pub changes_long: u64,
    pub fixed_changes_long: u64,
    /// Keys moved for each insert, within segments and from one to another; of these the latter.
    pub moves_per_insert: f64,
    pub split_moves_per_insert: f64,
    pub fixed_moves_per_insert: f64,
    /// Keys to all slots, over the inserts; the mean is one over the logarithm of the keys.
    pub load_min: f64,
    pub load_mean: f64,
    /// Slots of keys to all memory, also that which stands ready for segments to come.
    pub memory_load_mean: f64,
    pub fixed_load_end: f64,
    /// Over the removes.
    pub shrinking_load_min: f64,
    pub shrinking_load_mean: f64,
    /// Hits of the growing table, over the inserts; directory READs are part of the READs. Null where
    /// windows differ in length.
    pub reads_per_get: Option<f64>,
    pub reads_per_get_max: Option<f64>,
    pub directory_reads_per_get: Option<f64>,
    pub directory_reads_per_get_max: Option<f64>,
    pub fixed_reads_per_get: Option<f64>,
    pub shrinking_reads_per_get: Option<f64>,
    /// Memory behind the region, by st_blocks: the most, at the end, and the difference.
    pub bytes_max: u64,
    pub bytes_end: u64,
    pub bytes_returned: u64,
    pub segments_max: u64,
    pub segments_end: u64,
    pub seconds: f64,
    /// Inserts, by doublings of the keys, then removes, by halvings.
    pub doublings: Vec<Doubling>,
    /// All parts in the order in which they were.
    pub parts: Vec<Part>,
}

/// The inserts by which the keys doubled, or the removes by which they halved.
#[derive(Debug, Serialize)]
pub struct Doubling {
    /// So many keys there were then.
    pub keys: u64,
    /// Keys were removed.
    pub shrinks: bool,
    pub load: f64,
    pub memory_load: f64,
    pub reads_per_get: Option<f64>,
    /// GETs while a split or merge was under way, to those of the fixed table, and to those of the
    /// growing one while none was.
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
    pub p99_ratio: Option<f64>,
    pub p999_ratio: Option<f64>,
    pub p999_quiet_ns: Option<u64>,
    pub p999_quiet_ratio: Option<f64>,
    /// The longest change by wall time and by CPU time, and those that took more than 0.5 ms of the latter.
    pub change_max_ms: f64,
    pub change_cpu_max_ms: f64,
    pub changes_long: u64,
    pub fixed_change_cpu_max_ms: f64,
    pub fixed_changes_long: u64,
}

/// What is seen of both tables until the keys have doubled, or halved.
pub struct DoublingSeen {
    course: Course,
    pub sides: [Side; 2],
    loads: Loads,
    memory_loads: Vec<f64>,
}

/// One part: some inserts, or some removes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Part {
    /// Seconds of changes to the growing table, and keys in it, at the end of the part.
    pub seconds: f64,
    pub keys: u64,
    /// Keys are removed.
    pub shrinks: bool,
    pub load_min: f64,
    pub load_mean: f64,
    pub bytes: u64,
    pub memory_load: f64,
    pub segments: u64,
    pub reads_per_get: Option<f64>,
    pub directory_reads_per_get: Option<f64>,
    pub fixed_reads_per_get: Option<f64>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
    /// While no split or merge was under way.
    pub p999_quiet_ns: Option<u64>,
    pub fixed_p50_ns: Option<u64>,
    pub fixed_p99_ns: Option<u64>,
    pub fixed_p999_ns: Option<u64>,
    /// The longest change, by CPU time.
    pub change_cpu_max_ms: f64,
    pub fixed_change_cpu_max_ms: f64,
}

pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The mean; 0 of nothing.
pub fn mean_of(all: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = all.len().max(1) as f64;
    all.sum::<f64>() / count
}

impl Part {
    pub fn note(&mut self, which: Which, seen: &Seen, cpu: CpuTimes, geometry: &Geometry) {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| quantile(&seen.all, part));
        match which {
            Which::Growing => {
                (self.p50_ns, self.p99_ns, self.p999_ns) = (p50, p99, p999);
                self.p999_quiet_ns = quantile(&seen.quiet, 0.999);
                self.reads_per_get = seen.reads_per_get();
                self.directory_reads_per_get = seen.directory_reads_per_get(geometry);
                self.change_cpu_max_ms = ms(cpu.max_ns);
            }
            Which::Fixed => {
                (self.fixed_p50_ns, self.fixed_p99_ns, self.fixed_p999_ns) = (p50, p99, p999);
                self.fixed_reads_per_get = seen.reads_per_get();
                self.fixed_change_cpu_max_ms = ms(cpu.max_ns);
            }
        }
    }
}

impl DoublingSeen {
    pub fn new(course: Course) -> Result<DoublingSeen> {
        let sides = [Side::new()?, Side::new()?];
        Ok(DoublingSeen { course, sides, loads: Loads::default(), memory_loads: Vec::new() })
    }

    /// A part has ended. So has the doubling, if it was its last one.
    pub fn end_part(
        &mut self,
        part: &Part,
        loads: &Loads,
        is_last: bool,
        outcome: &mut Outcome,
    ) -> Result<()> {
        self.loads.add(loads);
        self.memory_loads.push(part.memory_load);
        if is_last || self.memory_loads.len() == PARTS as usize {
            outcome.doublings.push(self.doubling(part.keys));
            *self = DoublingSeen::new(self.course)?;
        }
        Ok(())
    }

    fn doubling(&self, keys: u64) -> Doubling {
        let [growing, fixed] = &self.sides;
        let course = self.course as usize;
        let (seen, fixed_seen, changes) =
            (&growing.seen[course], &fixed.seen[course], &growing.changes[course]);
        Doubling {
            keys,
            shrinks: self.course == Course::Emptying,
            load: self.loads.mean(),
            memory_load: mean_of(self.memory_loads.iter().copied()),
            reads_per_get: seen.reads_per_get(),
            p99_ns: quantile(&seen.busy, 0.99),
            p999_ns: quantile(&seen.busy, 0.999),
            p99_ratio: ratio(&seen.busy, &fixed_seen.all, 0.99),
            p999_ratio: ratio(&seen.busy, &fixed_seen.all, 0.999),
            p999_quiet_ns: quantile(&seen.quiet, 0.999),
            p999_quiet_ratio: ratio(&seen.busy, &seen.quiet, 0.999),
            change_max_ms: ms(changes.max()),
            change_cpu_max_ms: ms(growing.cpu.max_ns),
            changes_long: growing.cpu.long,
            fixed_change_cpu_max_ms: ms(fixed.cpu.max_ns),
            fixed_changes_long: fixed.cpu.long,
        }
    }
}

impl Outcome {
    /// Fills in what follows from the sums.
    pub fn judge(&mut self, [growing, fixed]: &[Side; 2], geometry: &Geometry) {
        let ([up, down], [fixed_up, fixed_down]) = (&growing.seen, &fixed.seen);
        let ([puts, removes], [fixed_puts, fixed_removes]) = (&growing.changes, &fixed.changes);
        let ratios =
            |seen: &Seen, fixed: &Seen| [0.99, 0.999].map(|part| ratio(&seen.busy, &fixed.all, part));
        [self.p99_ratio, self.p999_ratio] = ratios(up, fixed_up);
        [self.merging_p99_ratio, self.merging_p999_ratio] = ratios(down, fixed_down);
        self.p999_quiet_ratio = ratio(&up.busy, &up.quiet, 0.999);
        self.merging_p999_quiet_ratio = ratio(&down.busy, &down.quiet, 0.999);
        (self.p99_ns, self.p999_ns) = (quantile(&up.busy, 0.99), quantile(&up.busy, 0.999));
        self.fixed_p99_ns = quantile(&fixed_up.all, 0.99);
        self.fixed_p999_ns = quantile(&fixed_up.all, 0.999);
        self.retries_per_million =
            (up.counts.retries + down.counts.retries) as f64 * 1e6 / self.gets.max(1) as f64;
        let faults = |seen: &Seen| seen.counts.faults as f64 * 1e6 / seen.counts.gets.max(1) as f64;
        (self.faults_per_million, self.fixed_faults_per_million) = (faults(up), faults(fixed_up));
        let of = |puts: &Histogram<u64>| [0.5, 0.99, 0.9999].map(|part| quantile(puts, part));
        [self.put_p50_ns, self.put_p99_ns, self.put_p9999_ns] = of(puts);
        [self.fixed_put_p50_ns, self.fixed_put_p99_ns, self.fixed_put_p9999_ns] = of(fixed_puts);
        (self.put_max_ms, self.fixed_put_max_ms) = (ms(puts.max()), ms(fixed_puts.max()));
        (self.remove_max_ms, self.fixed_remove_max_ms) = (ms(removes.max()), ms(fixed_removes.max()));
        self.change_cpu_max_ms = ms(growing.cpu.max_ns);
        self.fixed_change_cpu_max_ms = ms(fixed.cpu.max_ns);
        (self.changes_long, self.fixed_changes_long) = (growing.cpu.long, fixed.cpu.long);
        self.reads_per_get = up.reads_per_get();
        self.directory_reads_per_get = up.directory_reads_per_get(geometry);
        self.fixed_reads_per_get = fixed_up.reads_per_get();
        self.shrinking_reads_per_get = down.reads_per_get();
        let grown = || self.parts.iter().filter(|part| !part.shrinks);
        self.reads_per_get_max = grown().filter_map(|part| part.reads_per_get).reduce(f64::max);
        self.directory_reads_per_get_max =
            grown().map(|part| part.directory_reads_per_get).reduce(|a, b| Some(a?.max(b?))).flatten();
    }

    pub fn show(&self) -> Result<()> {
        show::say(format_args!(
            "{} to {} and back, layout {}\n{}\n{}",
            show::count(self.from),
            show::counted(self.keys, "key"),
            self.layout,
            show::machine(&self.machine),
            self.cpus
        ))?;
        let ratio = |ratio| told(ratio, |ratio: f64| format!("{ratio:.2}"));
        let reads = |reads| told(reads, |reads: f64| format!("{reads:.3}"));
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        for (name, shrinks) in [("filled to", false), ("emptied to", true)] {
            let heads =
                [name, "load", "READs", "p99", "x fixed", "p99.9", "x fixed", "x quiet", "longest", "CPU"];
            show::lay_out(show::rows(
                heads,
                self.doublings.iter().filter(|at| at.shrinks == shrinks),
                |at| {
                    [
                        show::head(show::count(at.keys)),
                        show::number(percent(at.load)),
                        show::number(reads(at.reads_per_get)),
                        show::number(told_ns(at.p99_ns)),
                        show::number(ratio(at.p99_ratio)),
                        show::number(told_ns(at.p999_ns)),
                        show::number(ratio(at.p999_ratio)),
                        show::number(ratio(at.p999_quiet_ratio)),
                        show::number(show::nanos(1e6 * at.change_max_ms)),
                        show::number(show::nanos(1e6 * at.change_cpu_max_ms)),
                    ]
                },
            ))?;
        }
        let mut facts = show::facts();
        let both = |ms: f64, fixed_ms: f64| {
            format!("{}, fixed {}", show::nanos(1e6 * ms), show::nanos(1e6 * fixed_ms))
        };
        let loads = |min, mean| format!("{}, mean {}", percent(min), percent(mean));
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
            (
                "p99.9 to that of quiet times",
                format!(
                    "splitting {}, merging {}",
                    ratio(self.p999_quiet_ratio),
                    ratio(self.merging_p999_quiet_ratio)
                ),
            ),
            ("longest put", both(self.put_max_ms, self.fixed_put_max_ms)),
            ("longest change, by CPU time", both(self.change_cpu_max_ms, self.fixed_change_cpu_max_ms)),
            (
                &format!("changes of more than {} of it", show::nanos(LONG_NS as f64)),
                format!("{}, fixed {}", show::count(self.changes_long), show::count(self.fixed_changes_long)),
            ),
            (
                "keys moved per insert",
                format!("{:.2}, fixed {:.2}", self.moves_per_insert, self.fixed_moves_per_insert),
            ),
            ("lowest load, growing", loads(self.load_min, self.load_mean)),
            ("mean load of all memory, growing", percent(self.memory_load_mean)),
            ("lowest load, shrinking", loads(self.shrinking_load_min, self.shrinking_load_mean)),
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
        Ok(show::lay_out(facts)?)
    }
}
