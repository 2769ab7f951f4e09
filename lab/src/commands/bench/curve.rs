//! `bench curve`: what a GET takes while the table grows out of the caches.

use super::loops::{bare, spread, timed};
use crate::arguments::whole;
use crate::measure::{KEY_BYTES, VALUE_BYTES, key, machine, median, value};
use crate::plot::{
    self, Area, BLUE, Label, ORANGE, Painted, Panel, RED, TEAL, heading, line, name_ends, svg,
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use dashmap::DashMap;
use oneread::internals::layout::hash::{mix, reduce};
use oneread::{
    Backing, Config, PutMode, TableSize,
    embedded::{Clock, Index, Region},
    layout::Layout,
};
use oneread_kit::progress::Progress;
use oneread_kit::{names, show};
use plotters::prelude::*;
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Time GETs of tables of many sizes
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench curve
  oneread bench curve --to 1e8 --plot curve.svg   16 GB, ten minutes
  oneread bench curve --json > curve.json

Three sizes for each power of ten. At each, one thread GETs random keys of 16
bytes with values of 32 from a table in this process, filled to 90 %:
  hit, miss          one after the other
  get_many           present keys, 256 at a time
  dashmap hit, miss  the same from a DashMap with FxHash
  bare, dependent    8 words of a random line; its number depends on the last
  bare, independent  the same, with numbers known beforehand
Bare reads come first, of other memory in pages of the same size. Rounds of the
others alternate. The result is the median of the rounds, in nanoseconds.")]
pub struct CurveOfSizes {
    /// Fewest keys
    #[arg(long, value_name = "N", default_value = "1e4", value_parser = keys)]
    from: u64,
    /// Most keys
    #[arg(long, value_name = "N", default_value = "1e7", value_parser = keys)]
    to: u64,
    /// Number of rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The table's layout
    #[arg(long, value_name = "NAME", default_value = "windowed:8", value_parser = names::layout(), hide_possible_values = true)]
    layout: Layout,
    /// Draw the times into this SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = plot::svg_file, value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses 1000000 and 1e6.
fn keys(text: &str) -> Result<u64, String> {
    let n = whole(text).ok().filter(|n| (1_000..=10_000_000_000).contains(n));
    n.ok_or_else(|| "a whole number from 1000 to 1e10, as in 1000000 or 1e6".into())
}

/// Times of one size, in nanoseconds for each key. The names are those of the JSON output.
#[derive(Clone, Debug, Default, Serialize)]
struct AtSize {
    keys: u64,
    region_bytes: u64,
    /// Bytes of the region that are mapped in huge pages.
    huge_page_bytes: u64,
    hit_ns: f64,
    miss_ns: f64,
    get_many_ns: f64,
    dashmap_hit_ns: f64,
    dashmap_miss_ns: f64,
    bare_dependent_ns: f64,
    bare_independent_ns: f64,
}

#[derive(Debug, Serialize)]
struct Measured {
    machine: String,
    layout: String,
    rounds: u32,
    sizes: Vec<AtSize>,
}

/// Operations of a round: enough to be timed.
const OPS: u64 = 1_000_000;

type Dash = DashMap<[u8; KEY_BYTES], [u8; VALUE_BYTES], FxBuildHasher>;

impl CurveOfSizes {
    pub fn run(self) -> Result<ExitCode> {
        ensure!(self.from <= self.to, "--from {} is more than --to {}", self.from, self.to);
        let mut measured = Measured {
            machine: machine(),
            layout: self.layout.to_string(),
            rounds: self.rounds,
            sizes: Vec::new(),
        };
        for n in self.sizes() {
            // The table, and the lines for bare reads, or a DashMap: up to two and a half times its pairs.
            let need = n * 64 * 10 / 9 + n * 120;
            match memory_left() {
                Some(left) if left < need => {
                    show::complain(format_args!(
                        "oneread: {} keys need some {}, {} are free: left out",
                        show::count(n),
                        show::bytes(need),
                        show::bytes(left)
                    ));
                    break;
                }
                _ => measured.sizes.push(self.at(n)?),
            }
        }
        show::say(match self.json {
            true => serde_json::to_string(&measured)?,
            false => format!(
                "nanoseconds a key, layout {}\n{}\n{}",
                measured.layout,
                show::machine(&measured.machine),
                table(&measured.sizes)
            ),
        })?;
        if let Some(path) = &self.plot {
            plot::write(path, draw(&measured))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// 1, 2 and 5 times each power of ten, and the bounds themselves.
    fn sizes(&self) -> Vec<u64> {
        let steps = (3..=10).flat_map(|power| [1, 2, 5].map(|first| first * 10u64.pow(power)));
        let mut sizes: Vec<u64> = steps.filter(|n| (self.from..=self.to).contains(n)).collect();
        sizes.extend([self.from, self.to]);
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn at(&self, n: u64) -> Result<AtSize> {
        let size = TableSize::Slots(n * 100 / 90 + 1);
        let config = Config::new().layout(self.layout).size(size).key_max(KEY_BYTES).value_max(VALUE_BYTES);
        let geometry = config.geometry()?;
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes())?;
        let index = Index::create(region, geometry, Clock::System)?;
        let ops = OPS;
        let rounds = u64::from(self.rounds);
        let is_huge = index.region().huge_bytes() > 0;
        let [bare_dependent_ns, bare_independent_ns] =
            bare_times(index.region().bytes(), is_huge, ops, rounds)?;
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()) as u32;
        let bar = Progress::of(n, "filling", "keys");
        let dash: Dash = DashMap::with_capacity_and_hasher(n as usize, FxBuildHasher);
        spread(n, threads, |i| {
            index.put(&key(i), &value(i), PutMode::Insert).context("filling to 90 %")?;
            dash.insert(key(i), value(i));
            if i % 4096 == 0 {
                bar.inc(4096);
            }
            Ok(())
        })?;
        bar.finish();
        let pick = |round: u64, i: u64| reduce(mix(i ^ round << 40), n);
        let absent = |round: u64, i: u64| key(u64::MAX - pick(round, i));
        let mut reader = index.reader();
        let mut out = Vec::new();
        let mut times: [Vec<f64>; 5] = Default::default();
        let bar = Progress::of(rounds * times.len() as u64, "timing", "runs");
        for round in 0..rounds {
            let mut each = times.iter_mut();
            let mut note = |ns: u64| {
                if let Some(times) = each.next() {
                    times.push(ns as f64 / ops as f64);
                }
                bar.inc(1);
            };
            note(timed(ops, |i| {
                Ok(reader.get_into(&key(pick(round, i)), &mut out)? && out.len() == VALUE_BYTES)
            })?);
            note(timed(ops, |i| Ok(!reader.get_into(&absent(round, i), &mut out)?))?);
            let begun = Instant::now();
            let mut found = 0;
            let mut keys = Vec::with_capacity(256);
            for first in (0..ops).step_by(256) {
                keys.clear();
                keys.extend((first..(first + 256).min(ops)).map(|i| key(pick(round, i))));
                reader.get_many(&keys, |_, value| {
                    found += u64::from(value.is_some_and(|value| value.len() == VALUE_BYTES));
                })?;
            }
            let spent = begun.elapsed().as_nanos() as u64;
            ensure!(found == ops, "{} of {ops} keys were not found", ops - found);
            note(spent);
            note(timed(ops, |i| {
                Ok(dash.get(&key(pick(round, i))).is_some_and(|v| black_box(*v)[0] == v[0]))
            })?);
            note(timed(ops, |i| Ok(dash.get(&absent(round, i)).is_none()))?);
        }
        bar.finish();
        let [hit, miss, many, dash_hit, dash_miss] = times.map(median);
        Ok(AtSize {
            keys: n,
            region_bytes: index.region().bytes(),
            huge_page_bytes: index.region().huge_bytes(),
            hit_ns: hit,
            miss_ns: miss,
            get_many_ns: many,
            dashmap_hit_ns: dash_hit,
            dashmap_miss_ns: dash_miss,
            bare_dependent_ns,
            bare_independent_ns,
        })
    }
}

/// Median times of bare reads, dependent and independent, of memory as large as a region and in pages
/// of the same size.
fn bare_times(bytes: u64, is_huge: bool, ops: u64, rounds: u64) -> Result<[f64; 2]> {
    let mut map = memmap2::MmapMut::map_anon(bytes as usize)?;
    map.advise(if is_huge { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage })?;
    let memory: &mut [[u64; 8]] = bytemuck::cast_slice_mut(&mut map[..bytes as usize / 64 * 64]);
    memory.iter_mut().zip(0..).for_each(|(line, number)| *line = [mix(number); 8]);
    Ok([true, false].map(|chain| {
        median((0..rounds as u32).map(|round| bare(memory, ops, round, chain) as f64 / ops as f64).collect())
    }))
}

/// The memory that is free without swapping.
fn memory_left() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// The lines of table and picture: name, colour, and the time.
type Drawn = (&'static str, RGBColor, fn(&AtSize) -> f64);
const DRAWN: [Drawn; 7] = [
    ("hit", RED, |at| at.hit_ns),
    ("miss", ORANGE, |at| at.miss_ns),
    ("get_many", RGBColor(140, 20, 60), |at| at.get_many_ns),
    ("dashmap hit", BLUE, |at| at.dashmap_hit_ns),
    ("dashmap miss", TEAL, |at| at.dashmap_miss_ns),
    ("bare, dependent", RGBColor(110, 110, 110), |at| at.bare_dependent_ns),
    ("bare, independent", RGBColor(170, 170, 170), |at| at.bare_independent_ns),
];

fn table(sizes: &[AtSize]) -> comfy_table::Table {
    let mut table =
        show::table(["keys", "hit", "miss", "many", "dash hit", "dash miss", "bare dep.", "indep."]);
    for at in sizes {
        let times = DRAWN.iter().map(|(_, _, ns)| show::number(format_args!("{:.0}", ns(at))));
        table.add_row(std::iter::once(show::number(show::count(at.keys))).chain(times));
    }
    table
}

const HEIGHT: u32 = 640;
const PANEL: Panel = Panel { left: 78, right: 660, top: 120, bottom: 580 };

fn draw(measured: &Measured) -> Result<String> {
    ensure!(measured.sizes.len() > 1, "one size makes no curve: ask for more with --from and --to");
    svg(HEIGHT, |area| paint(area, measured))
}

fn paint(area: &Area<'_>, measured: &Measured) -> Painted<'static> {
    let about = format!(
        "Nanoseconds a key; {}, 16 + 32 bytes, 90 % load; one thread; {}",
        measured.layout, measured.machine
    );
    heading(area, "What a GET takes, by the number of keys", &about)?;
    let all = || measured.sizes.iter().flat_map(|at| DRAWN.iter().map(move |(_, _, ns)| ns(at)));
    let high = all().fold(1.0, f64::max).log10().mul_add(3.0, 0.3).ceil() / 3.0;
    let low = all().fold(f64::MAX, f64::min).max(0.1).log10().mul_add(3.0, 0.0).floor() / 3.0;
    let first = measured.sizes.first().map_or(1.0, |at| at.keys as f64).log10();
    let last = measured.sizes.last().map_or(1.0, |at| at.keys as f64).log10();
    let x = |keys: f64| {
        let part = (keys.log10() - first) / (last - first);
        PANEL.left + (part * f64::from(PANEL.right - PANEL.left)).round() as i32
    };
    let y = |ns: f64| {
        let part = (ns.max(0.1).log10() - low) / (high - low);
        PANEL.bottom - (part * f64::from(PANEL.bottom - PANEL.top)).round() as i32
    };
    for ns in [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0f64] {
        if (low..=high).contains(&ns.log10()) {
            PANEL.across(area, y(ns), &format!("{ns} ns"))?;
        }
    }
    for power in 3..=10 {
        let keys = 10f64.powi(power);
        if (first..=last).contains(&keys.log10()) {
            PANEL.upwards(area, x(keys), &show::count(keys as u64))?;
        }
    }
    PANEL.below(area, "keys")?;
    let mut labels = Vec::new();
    for (name, color, ns) in DRAWN {
        let points: Vec<_> = measured.sizes.iter().map(|at| (x(at.keys as f64), y(ns(at)))).collect();
        line(area, points.clone(), color, 2)?;
        for &point in &points {
            area.draw(&Circle::new(point, 3, color.filled()))?;
        }
        labels.extend(points.last().map(|&end| Label::new(name, color, end)));
    }
    name_ends(area, PANEL, labels)
}
