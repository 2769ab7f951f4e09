//! `bench hints`: what hints save while a table churns, splits and merges under them, counted.

use crate::arguments::whole;
use crate::plan::{Course, GetCosts, GrowthCourse, GrowthPart, GrowthRun};
use crate::plot::{
    self, Area, Axis, BLUE, INK, Label, ORANGE, Painted, RED, SMALL, TEAL, frame, heading, line, name_ends,
    panel, svg, text,
};
use anyhow::{Result, ensure};
use clap::Args;
use comfy_table::Cell;
use oneread::layout::Layout;
use oneread_kit::progress::Progress;
use oneread_kit::{names, show, units};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Count what hints save while a table churns, grows and shrinks under them
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench hints
  oneread bench hints --keys 1e6 --from 1e5 --plot hints.svg   some minutes
  oneread bench hints --gets 1 --replaced 0 --json

Two clients, one of them with hints, ask a table that grows for the same random
keys. It churns, grows from --from to --keys, churns, shrinks back, and churns
again. A step inserts a key, removes one, or replaces one. READs are copied and
judged as over a network, so they include those of directory entries. Nothing is
timed: the same arguments give the same numbers. Each answer is checked.
  READs, bytes    of a GET, with hints and without
  by hints        GETs of present keys that a hint answered
  client memory   for hints of all slots seen so far, a key")]
pub struct HintsBench {
    /// Fewest keys
    #[arg(long, value_name = "N", default_value = "16384", value_parser = whole)]
    from: u64,
    /// Most keys
    #[arg(long, value_name = "N", default_value = "65536", value_parser = whole)]
    keys: u64,
    /// GETs of each client after each step
    #[arg(long, value_name = "N", default_value_t = 16.0)]
    gets: f64,
    /// Keys replaced beside each that is inserted or removed
    #[arg(long, value_name = "N", default_value_t = 1)]
    replaced: u32,
    /// How uneven the keys' popularity is: 0 for all alike
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.0)]
    zipf: f64,
    /// Main slots of a segment
    #[arg(long, value_name = "N", default_value = "1024", value_parser = whole)]
    segment_slots: u64,
    /// The table's layout
    #[arg(long, value_name = "NAME", default_value = "windowed:8", value_parser = names::layout(), hide_possible_values = true)]
    layout: Layout,
    /// The most memory for hints, in bytes
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = units::length)]
    hint_memory: usize,
    /// Parts in which each course is told
    #[arg(long, value_name = "N", default_value_t = 24)]
    parts: u32,
    /// Draw the curves into this SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = plot::svg_file, value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What came of it, as JSON.
#[derive(Serialize)]
struct HintsOutcome<'a> {
    run: &'a GrowthRun,
    #[serde(flatten)]
    found: &'a GrowthCourse,
}

impl HintsBench {
    pub fn run(self) -> Result<ExitCode> {
        let run = GrowthRun {
            layout: self.layout,
            segment_slots: self.segment_slots,
            from: self.from,
            keys: self.keys,
            shrinks: true,
            replaced: self.replaced,
            gets: self.gets,
            zipf: self.zipf,
            hint_bytes: self.hint_memory,
            parts: self.parts,
        };
        let bar = Progress::of(5 * u64::from(self.parts), "counting", "parts");
        let found = run.count(|_| bar.inc(1))?;
        bar.finish();
        ensure!(
            found.has_hints,
            "hints save nothing in {}: its READs are of one slot already; take a layout with windows, as --layout windowed:8",
            self.layout
        );
        show::outcome(self.json, &HintsOutcome { run: &run, found: &found }, || {
            show::lay_out(table(&found.parts))?;
            let late = format!(
                "A client that knew the table before it grew READs {:.2} directory entries for each split.",
                found.late_directory_reads
            );
            show::say(show::paragraph("", &late))
        })?;
        plot::write(self.plot.as_deref(), || draw(&run, &found.parts))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn course_name(course: Course) -> &'static str {
    match course {
        Course::Churn => "churns",
        Course::Grow => "grows",
        Course::Shrink => "shrinks",
    }
}

/// The parts of each course, one course after the other.
fn courses(parts: &[GrowthPart]) -> impl Iterator<Item = &[GrowthPart]> {
    parts.chunk_by(|a, b| a.course == b.course)
}

/// The means of a course, and its worst part.
fn table(parts: &[GrowthPart]) -> comfy_table::Table {
    let heads = [
        "table",
        "keys at\nits end",
        "seg-\nments",
        "by\nhints",
        "READs\nhit",
        "bytes\nhit",
        "in the\nworst",
        "without\nhints",
        "bytes\nmiss",
        "memory\na key",
    ];
    let ended = courses(parts).filter_map(|course| Some((course, course.last()?)));
    show::rows(heads, ended, |(course, last)| {
        let mean = |of: fn(&GrowthPart) -> f64| course.iter().map(of).sum::<f64>() / course.len() as f64;
        let worst = |of: fn(&GrowthPart) -> f64| course.iter().map(of).fold(0.0, f64::max);
        [
            Cell::new(course_name(last.course)),
            show::number(last.keys),
            show::number(last.segments),
            show::number(format_args!("{:.1} %", 100.0 * mean(|part| part.hinted))),
            show::number(format_args!("{:.3}", mean(|part| part.gets.hinted_hit.reads))),
            show::number(format_args!("{:.0}", mean(|part| part.gets.hinted_hit.bytes))),
            show::number(format_args!("{:.0}", worst(|part| part.gets.hinted_hit.bytes))),
            show::number(format_args!("{:.0}", mean(|part| part.gets.hit.bytes))),
            show::number(format_args!("{:.0}", mean(|part| part.gets.hinted_miss.bytes))),
            show::number(format_args!("{:.2}", last.client_bytes_per_key)),
        ]
    })
}

// ---- the picture ---------------------------------------------------------------------------------

const SIZE: u32 = 990;
const LEFT: i32 = 70;
const RIGHT: i32 = 680;
/// Of each panel, and from one to the next.
const HEIGHT: i32 = 190;
const APART: i32 = 290;

/// Curves of GETs: a name, a colour, and which GETs.
type DrawnGets = (&'static str, RGBColor, fn(&GrowthPart) -> GetCosts);

const GETS: [DrawnGets; 4] = [
    ("hit, hints", RED, |part| part.gets.hinted_hit),
    ("miss, hints", ORANGE, |part| part.gets.hinted_miss),
    ("hit, without", BLUE, |part| part.gets.hit),
    ("miss, without", TEAL, |part| part.gets.miss),
];

fn draw(run: &GrowthRun, parts: &[GrowthPart]) -> Result<String> {
    ensure!(parts.len() > 1, "one part makes no curve; ask for more with --parts");
    svg(SIZE, |area| paint(area, run, parts))
}

fn paint(area: &Area<'_>, run: &GrowthRun, parts: &[GrowthPart]) -> Painted<'static> {
    let about = format!(
        "{} to {} and back, {}, segments of {} slots; {} GETs a step, {} replaced beside each key put or removed",
        show::count(run.from),
        show::counted(run.keys, "key"),
        run.layout,
        show::count(run.segment_slots),
        run.gets,
        run.replaced,
    );
    heading(area, "Hints under which a table churns, splits and merges", &about)?;
    let all = |of: fn(GetCosts) -> f64| {
        let each = parts.iter().flat_map(move |part| GETS.map(|(_, _, gets)| of(gets(part))));
        each.filter(|value| *value > 0.0)
    };
    let curves = |of: fn(GetCosts) -> f64| {
        GETS.map(|(name, color, gets)| (name, color, parts.iter().map(|part| of(gets(part))).collect()))
    };
    let most = all(|gets| gets.reads).fold(1.1, f64::max);
    let axis = ("READs of a GET, directory entries included", 1.0, 1.02 * most);
    curves_in(area, parts, 0, axis, &curves(|gets| gets.reads))?;
    let most = all(|gets| gets.bytes).fold(1.0, f64::max);
    curves_in(area, parts, 1, ("bytes of a GET", 0.0, 1.05 * most), &curves(|gets| gets.bytes))?;
    let memory: Vec<f64> = parts.iter().map(|part| part.client_bytes_per_key).collect();
    let most = memory.iter().copied().fold(1.0, f64::max);
    let axis = ("client memory for hints, in bytes a key", 0.0, 1.05 * most);
    curves_in(area, parts, 2, axis, &[("hints", RED, memory)])
}

/// A panel: its number from the top, title and ends of its scale, and its curves.
fn curves_in(
    area: &Area<'_>,
    parts: &[GrowthPart],
    number: i32,
    (title, low, high): (&str, f64, f64),
    curves: &[(&str, RGBColor, Vec<f64>)],
) -> Painted<'static> {
    let top = 140 + number * APART;
    let last = parts.last().map_or(1, |part| part.steps);
    let x = Axis { low: 0.0, high: last as f64, from: LEFT, to: RIGHT, log: false };
    let y = Axis { low, high, from: top + HEIGHT, to: top, log: false };
    let digits = if high - low < 1.0 { 2 } else { usize::from(high - low < 5.0) };
    let told = |v: f64| format!("{v:.digits$}");
    frame(area, x, y, ["steps", title], |steps| show::count(steps as u64), told)?;
    let mut begun = 0;
    for course in courses(parts) {
        let Some(end) = course.last() else { continue };
        let at = x.at(end.steps as f64);
        line(area, vec![(at, y.from), (at, y.to)], RGBColor(150, 150, 150), 1)?;
        let middle = (x.at(begun as f64) + at) / 2;
        let told = match end.course {
            Course::Churn => "churns".into(),
            Course::Grow => format!("grows to {} segments", end.segments),
            Course::Shrink => format!("shrinks to {} segments", end.segments),
        };
        text(area, &told, (middle, y.to - 6), SMALL, INK, HPos::Center)?;
        begun = end.steps;
    }
    let mut ends = Vec::new();
    for (name, color, values) in curves {
        let points = parts.iter().zip(values).map(|(part, value)| (x.at(part.steps as f64), y.at(*value)));
        let points: Vec<_> = points.collect();
        ends.extend(points.last().map(|&end| Label::new(*name, *color, end)));
        line(area, points, *color, 2)?;
    }
    name_ends(area, panel(x, y), ends)
}
