//! What came of `bench grow`.

use super::seen::{Loads, Seen, Side, Which, ratio};
use crate::measure::{quantile, told, told_ns};
use anyhow::Result;
use comfy_table::{Attribute, Cell};
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
    /// GETs while a split is under way, to those of the fixed table during the same inserts. Null
    /// without a split.
    pub p99_ratio: Option<f64>,
    pub p999_ratio: Option<f64>,
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
    pub fixed_p99_ns: Option<u64>,
    pub fixed_p999_ns: Option<u64>,
    /// The same during removes, while a merge is under way.
    pub merging_p99_ratio: Option<f64>,
    pub merging_p999_ratio: Option<f64>,
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
    /// Keys moved for each insert, within segments and from one to another; of these the latter.
    pub moves_per_insert: f64,
    pub split_moves_per_insert: f64,
    pub fixed_moves_per_insert: f64,
    /// Keys to all slots, over the inserts.
    pub load_min: f64,
    pub load_mean: f64,
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
    /// Inserts, by doublings of the keys.
    pub doublings: Vec<Doubling>,
    /// All parts in the order in which they were.
    pub parts: Vec<Part>,
}

/// The inserts by which the keys doubled.
#[derive(Debug, Serialize)]
pub struct Doubling {
    /// So many keys there were then.
    pub keys: u64,
    pub load: f64,
    pub reads_per_get: Option<f64>,
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
    pub p99_ratio: Option<f64>,
    pub p999_ratio: Option<f64>,
    pub put_max_ms: f64,
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
    pub segments: u64,
    pub reads_per_get: Option<f64>,
    pub directory_reads_per_get: Option<f64>,
    pub fixed_reads_per_get: Option<f64>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
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

impl Part {
    pub fn note(&mut self, which: Which, seen: &Seen, cpu_max_ns: u64, geometry: &Geometry) {
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
    pub fn of(keys: u64, [growing, fixed]: &[Side; 2], loads: &Loads) -> Doubling {
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
    pub fn judge(&mut self, [growing, fixed]: &[Side; 2], geometry: &Geometry) {
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

    pub fn show(&self) -> Result<()> {
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
