//! `layouts`: the cost of a GET in each layout, counted as the READs that real GETs issue.

use super::frontier;
use crate::measure::{HintedHits, Keys, Phase, Row, on_all_cpus};
use crate::plan::SampleTable;
use crate::plot;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use comfy_table::Cell;
use oneread::internals::families::presets;
use oneread::internals::placement::Preset;
use oneread::layout::Layout;
use oneread_kit::progress::Progress;
use oneread_kit::{names, show};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// Measure the cost of a GET in each layout
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread layouts --list         names and descriptions
  oneread layouts                everything, in tables of 65,536 slots
  oneread layouts --slots 1048576       as in the documents; takes minutes
  oneread layouts --preset windowed:8 --load 90 --phase steady
  oneread layouts --load 50,75,90,max --plot layouts.svg
  oneread layouts --load 90 --phase steady --hints --plot hints.svg
  oneread layouts --json > layouts.json

Keys have 16 bytes and values 32, so slots have 64. All numbers are counted,
none is computed: the READs are those of the client's own GETs, one for each key
in the table and as many for absent keys. `fresh` tables are filled by inserts
alone. `steady` ones then see two deletes and two inserts for each key. Load is
keys / all slots in use, overflow included; --load asks for keys / main slots.")]
pub struct Layouts {
    /// Main slots of each table
    #[arg(long, default_value_t = 1 << 16, value_parser = clap::value_parser!(u64).range(64..=1 << 32))]
    slots: u64,
    /// Measure only this layout (repeatable)
    #[arg(long, value_name = "NAME", value_parser = names::layout(), hide_possible_values = true)]
    preset: Vec<Layout>,
    /// Loads in percent of the main slots, or `max` for the highest that inserts reach
    #[arg(long, value_delimiter = ',', default_value = "50,75,90,95")]
    load: Vec<Load>,
    /// Tables filled by inserts alone, or tables after many deletes and inserts
    #[arg(long, default_value = "both")]
    phase: PhaseChoice,
    /// Which keys are asked for
    #[arg(long, default_value = "uniform")]
    keys: KeysChoice,
    /// Print the rows as a JSON array
    #[arg(long)]
    json: bool,
    /// Name and describe the layouts, and measure nothing
    #[arg(long)]
    list: bool,
    /// Count hits once more with hints: a byte of client memory for each main slot
    #[arg(long)]
    hints: bool,
    /// Draw the results into this SVG file: READs by bytes and by load; with --hints bytes, READs and
    /// client memory of hits, beside published designs
    #[arg(long, value_name = "FILE.svg", value_parser = plot::svg_file, value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    Percent(f64),
    Max,
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Load, String> {
        match text.trim().trim_end_matches('%').parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Load::Percent(percent)),
            _ if text.trim() == "max" => Ok(Load::Max),
            _ => Err("a load is a percentage above 0 and up to 100, or `max`".into()),
        }
    }
}

impl Load {
    fn asked(self) -> Option<f64> {
        match self {
            Load::Percent(percent) => Some(percent / 100.0),
            Load::Max => None,
        }
    }

    /// The number of keys to insert into a table with this many main slots.
    fn target(self, main_slots: u64) -> u64 {
        self.asked().map_or(u64::MAX, |load| (load * main_slots as f64).round() as u64)
    }

    /// An estimate of the number of keys for the progress bar. What `max` will be is not known yet.
    fn estimate(self, slots: u64) -> u64 {
        self.target(slots).min(slots)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum PhaseChoice {
    Fresh,
    Steady,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum KeysChoice {
    Uniform,
    Zipf,
    Both,
}

impl KeysChoice {
    fn list(self) -> &'static [Keys] {
        match self {
            KeysChoice::Uniform => &[Keys::Uniform],
            KeysChoice::Zipf => &[Keys::Zipf],
            KeysChoice::Both => &[Keys::Uniform, Keys::Zipf],
        }
    }
}

/// The seed of all tables. The same seed gives the same table and the same numbers.
const SEED: u64 = 1;

/// One table to fill: a thread's unit of work.
#[derive(Clone, Copy)]
struct Job {
    layout: Layout,
    /// For a steady table, its load. A fresh table is measured at every load while it fills.
    steady: Option<Load>,
}

impl Layouts {
    pub fn run(mut self) -> Result<ExitCode> {
        // Ascending, `max` last: a fresh table reaches them in this order.
        self.load.sort_by(|a, b| a.asked().unwrap_or(2.0).total_cmp(&b.asked().unwrap_or(2.0)));
        self.load.dedup();
        let chosen: Vec<&Preset> =
            presets().filter(|p| self.preset.is_empty() || self.preset.contains(&p.layout)).collect();
        if self.list {
            show::lay_out(list(&chosen, self.json))?;
            return Ok(ExitCode::SUCCESS);
        }
        let jobs = self.jobs(&chosen);
        let bar = Progress::of(jobs.iter().map(|job| self.work(job)).sum(), "measuring", "operations");
        let rows = self.run_jobs(&jobs, &bar)?;
        bar.finish();
        show::pretty(self.json, &rows, || {
            show::say(format_args!("tables of {} main slots", show::count(self.slots)))?;
            show::lay_out(table(&chosen, &rows))?;
            if self.hints { show::lay_out(hinted_table(&rows)) } else { Ok(()) }
        })?;
        let draw = if self.hints { frontier::draw } else { plot::draw };
        plot::write(self.plot.as_deref(), || draw(&rows))?;
        Ok(ExitCode::SUCCESS)
    }

    fn jobs(&self, chosen: &[&Preset]) -> Vec<Job> {
        let mut jobs = Vec::new();
        for preset in chosen {
            let layout = preset.layout;
            if self.phase != PhaseChoice::Steady {
                jobs.push(Job { layout, steady: None });
            }
            if self.phase != PhaseChoice::Fresh {
                for &load in &self.load {
                    jobs.push(Job { layout, steady: Some(load) });
                }
            }
        }
        jobs
    }

    /// The number of operations of a job: inserts, pairs, and GETs.
    fn work(&self, job: &Job) -> u64 {
        let gets = 2 * self.keys.list().len() as u64;
        match job.steady {
            None => {
                let highest = self.load.last().map_or(0, |load| load.estimate(self.slots));
                highest + gets * self.load.iter().map(|load| load.estimate(self.slots)).sum::<u64>()
            }
            Some(load) => (1 + 2 + gets) * load.estimate(self.slots),
        }
    }

    /// Time is simulated and seeds are fixed, so the numbers do not depend on the threads.
    fn run_jobs(&self, jobs: &[Job], bar: &Progress) -> Result<Vec<Row>> {
        let rows = on_all_cpus(jobs, |job| {
            let rows = match job.steady {
                None => self.fresh(job.layout, bar),
                Some(load) => self.steady(job.layout, load, bar),
            };
            rows.with_context(|| format!("measuring {}", job.layout))
        })?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Fills one table once, and measures it at each load.
    fn fresh(&self, layout: Layout, bar: &Progress) -> Result<Vec<Row>> {
        let mut table = SampleTable::new(layout, self.slots, SEED)?;
        let mut rows = Vec::new();
        for &load in &self.load {
            let full = self.fill(&mut table, load, bar)?;
            let counts = table.counts();
            let moves = counts.moves as f64 / counts.inserts.max(1) as f64;
            self.rows(&mut table, Phase::Fresh, load, moves, bar, &mut rows)?;
            if full {
                note_unreached(layout, Phase::Fresh, load, &rows, bar);
                break;
            }
        }
        Ok(rows)
    }

    /// Fills a new table and then churns it: two pairs of a delete and an insert for each key.
    fn steady(&self, layout: Layout, load: Load, bar: &Progress) -> Result<Vec<Row>> {
        let mut table = SampleTable::new(layout, self.slots, SEED)?;
        let mut rows = Vec::new();
        let full = self.fill(&mut table, load, bar)?;
        let before = table.counts();
        let pairs = 2 * table.keys();
        let mut refused = 0;
        for pair in 1..=pairs {
            // Where there is no room, the table has one key less from here on. At the limit, the load
            // settles just below it.
            refused += u64::from(!table.churn()?);
            if pair.is_multiple_of(STEP) {
                bar.inc(STEP);
            }
        }
        let moves = (table.counts().moves - before.moves) as f64 / pairs.max(1) as f64;
        self.rows(&mut table, Phase::Steady, load, moves, bar, &mut rows)?;
        if full {
            note_unreached(layout, Phase::Steady, load, &rows, bar);
        } else if refused > 0 {
            let reached = rows.last().map_or(0.0, |row| 100.0 * row.load_main);
            note(
                bar,
                &format!(
                    "{layout}: {refused} of {pairs} steady inserts found no room; the row is for the {reached:.1} % that remained"
                ),
            );
        }
        Ok(rows)
    }

    /// Inserts up to `load`. Returns whether the table was full before that.
    fn fill(&self, table: &mut SampleTable, load: Load, bar: &Progress) -> Result<bool> {
        let target = load.target(table.counts().main_slots);
        while table.keys() < target {
            if !table.insert()? {
                return Ok(true);
            }
            if table.keys().is_multiple_of(STEP) {
                bar.inc(STEP);
            }
        }
        Ok(false)
    }

    fn rows(
        &self,
        table: &mut SampleTable,
        phase: Phase,
        load: Load,
        moves: f64,
        bar: &Progress,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        ensure!(
            table.keys() > 0,
            "a table of {} slots takes no key at this load; ask for more with --slots or --load",
            self.slots
        );
        for &keys in self.keys.list() {
            let mut row = Row::of(table, phase, keys, load.asked(), moves)?;
            if self.hints && keys == Keys::Uniform {
                row.hinted = HintedHits::of(table)?;
            }
            rows.push(row);
            bar.inc(2 * table.keys());
        }
        Ok(())
    }
}

/// The bar is updated after this many operations.
const STEP: u64 = 1024;

fn note(bar: &Progress, text: &str) {
    bar.suspend(|| show::complain(format_args!("oneread: {text}")));
}

fn note_unreached(layout: Layout, phase: Phase, load: Load, rows: &[Row], bar: &Progress) {
    let (Some(asked), Some(row)) = (load.asked(), rows.last()) else { return };
    note(bar, &unreached(layout, phase, asked, row.load_main));
}

fn unreached(layout: Layout, phase: Phase, asked: f64, reached: f64) -> String {
    format!(
        "{layout}, {}: load {:.0} % was not reached; the row is for {:.1} %, where the table was full",
        phase_name(phase),
        100.0 * asked,
        100.0 * reached
    )
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Fresh => "fresh",
        Phase::Steady => "steady",
    }
}

fn list(chosen: &[&Preset], json: bool) -> String {
    if json {
        let list: Vec<_> = chosen
            .iter()
            .map(|p| serde_json::json!({ "layout": p.layout.to_string(), "summary": p.summary, "design_load": p.design_load }))
            .collect();
        return serde_json::Value::from(list).to_string();
    }
    let mut table = show::table(["layout", "what it is", "sized for"]);
    for preset in chosen {
        table.add_row(vec![
            show::head(preset.layout),
            Cell::new(preset.summary),
            show::number(format_args!("{} % load", preset.design_load)),
        ]);
    }
    table.to_string()
}

fn hinted_table(rows: &[Row]) -> comfy_table::Table {
    let heads = [
        "layout",
        "phase",
        "load\n%",
        "READs\nhit",
        "with\nhints",
        "bytes\nhit",
        "with\nhints",
        "memory\na key",
    ];
    show::rows(heads, rows.iter().filter_map(|row| Some((row, row.hinted?))), |(row, hinted)| {
        [
            show::head(&row.preset),
            Cell::new(phase_name(row.phase)),
            show::number(format_args!("{:.0}", 100.0 * row.load_main)),
            show::number(format_args!("{:.4}", row.reads_hit)),
            show::number(format_args!("{:.4}", hinted.reads)),
            show::number(format_args!("{:.0}", row.bytes_hit)),
            show::number(format_args!("{:.1}", hinted.bytes)),
            show::number(format_args!("{:.2}", hinted.client_bytes_per_key)),
        ]
    })
}

fn table(chosen: &[&Preset], rows: &[Row]) -> comfy_table::Table {
    let heads = [
        "layout",
        "phase,\nkeys",
        "load\n%",
        "true\n%",
        "READs\nhit",
        "READs\nmiss",
        "bytes\nhit",
        "bytes\nmiss",
        "moves/\ninsert",
    ];
    let of_preset = |preset: &Preset| {
        let family = preset.layout.family.name();
        let ours = rows.iter().filter(|row| row.family == family && row.preset == preset.name);
        // Only the first one has its name.
        let names = std::iter::once(preset.layout.to_string()).chain(std::iter::repeat(String::new()));
        names.zip(ours).collect::<Vec<_>>()
    };
    show::rows(heads, chosen.iter().flat_map(|preset| of_preset(preset)), |(name, row)| {
        let max = if row.load_asked.is_none() { "max " } else { "" };
        let zipf = if row.keys == Keys::Uniform { "" } else { " zipf" };
        [
            show::head(name),
            Cell::new(format_args!("{}{zipf}", phase_name(row.phase))),
            show::number(format_args!("{max}{:.0}", 100.0 * row.load_main)),
            show::number(format_args!("{:.1}", 100.0 * row.load_true)),
            show::number(format_args!("{:.4}", row.reads_hit)),
            show::number(format_args!("{:.4}", row.reads_miss)),
            show::number(format_args!("{:.0}", row.bytes_hit)),
            show::number(format_args!("{:.0}", row.bytes_miss)),
            show::number(format_args!("{:.3}", row.moves_per_insert)),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::tests::row;

    /// Each column has its own figure, in its unit. Rows without hints are not in the table of hints.
    #[test]
    fn columns_have_their_figures() {
        let hinted = HintedHits { reads: 1.0625, bytes: 64.5, trips: 1.0, client_bytes_per_key: 1.125 };
        let shown = show::cells(&hinted_table(&[row(None), row(Some(hinted))]));
        assert_eq!(shown, [["pilaf", "steady", "91", "1.2500", "1.0625", "100", "64.5", "1.12"]]);
        let layout: Layout = "cuckoo:pilaf".parse().unwrap();
        let presets: Vec<_> = presets().filter(|preset| preset.layout == layout).collect();
        let fresh = Row { phase: Phase::Fresh, keys: Keys::Uniform, load_asked: Some(0.9), ..row(None) };
        let other = Row { preset: "another".into(), ..row(None) };
        let shown = show::cells(&table(&presets, &[row(None), other, fresh]));
        let figures = ["81.2", "1.2500", "2.5000", "100", "200", "0.500"];
        assert_eq!(shown.len(), 2);
        assert_eq!(shown[0], [&["cuckoo:pilaf", "steady zipf", "max 91"][..], &figures].concat());
        assert_eq!(shown[1], [&["", "fresh", "91"][..], &figures].concat());
    }

    /// A load that was not reached is told beside the one that was.
    #[test]
    fn unreached_loads_are_told() {
        let told = unreached("cuckoo:pilaf".parse().unwrap(), Phase::Fresh, 0.95, 0.87654);
        let expected =
            "cuckoo:pilaf, fresh: load 95 % was not reached; the row is for 87.7 %, where the table was full";
        assert_eq!(told, expected);
        let load = |text: &str| text.parse::<Load>().ok();
        assert_eq!(load("90%").and_then(Load::asked), Some(0.9));
        assert_eq!(
            (load("max"), load("100"), load("0"), load("101")),
            (Some(Load::Max), Some(Load::Percent(100.0)), None, None)
        );
    }
}
