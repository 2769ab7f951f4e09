//! Draws `bench grow`: load, memory, READs and latencies while a table grows and shrinks.

use super::{Outcome, Part};
use crate::page::{Axis, frame, labels_above, line};
use crate::plot::{Area, BLUE, FAINT, INK, ORANGE, Painted, RED, TEAL, text, to_file};
use crate::show;
use anyhow::{Result, ensure};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use std::path::Path;

const SIZE: (u32, u32) = (1100, 1240);
const LEFT: i32 = 110;
const RIGHT: i32 = 900;
/// Of each panel, and from one to the next.
const HEIGHT: i32 = 180;
const APART: i32 = 280;

const GROWING: RGBColor = RED;
const PALE: RGBColor = ORANGE;
const FIXED: RGBColor = BLUE;
const FIXED_PALE: RGBColor = TEAL;

/// One line of a panel: its name, colour, and the value at a part, if there is one.
type Drawn = (&'static str, RGBColor, fn(&Part) -> Option<f64>);

/// Draws all panels into an SVG file.
pub fn draw(path: &Path, outcome: &Outcome) -> Result<()> {
    ensure!(outcome.parts.len() > 1, "there is nothing to draw");
    to_file(path, SIZE, |area| paint(area, outcome))
}

fn paint<'a>(area: &Area<'a>, outcome: &Outcome) -> Painted<'a> {
    text(area, "A table that grows and shrinks while it is read", (40, 36), 24, INK, HPos::Left)?;
    let about = format!(
        "{} to {} and back, one after the other, in {} segments at most; {}",
        show::count(outcome.from),
        show::counted(outcome.keys, "key"),
        show::count(outcome.segments_max),
        outcome.layout
    );
    text(area, &about, (40, 64), 14, INK, HPos::Left)?;
    text(area, &format!("{}; {}", outcome.machine, outcome.cpus), (40, 84), 14, INK, HPos::Left)?;
    let percent = |v: f64| format!("{:.0} %", 100.0 * v);
    let high = |drawn: &[Drawn]| {
        let all = outcome.parts.iter().flat_map(|part| drawn.iter().filter_map(|(_, _, of)| of(part)));
        all.fold(0.0, f64::max)
    };
    let loads: [Drawn; 2] =
        [("mean", GROWING, |part| Some(part.load_mean)), ("lowest", PALE, |part| Some(part.load_min))];
    panel(area, outcome, 0, ("true load", 0.0, 1.0, false), &loads, percent)?;
    let reads: [Drawn; 3] = [
        ("growing", GROWING, |part| Some(part.reads_per_get)),
        ("fixed", FIXED, |part| Some(part.fixed_reads_per_get)),
        ("1 + directory READs", PALE, |part| part.directory_reads_per_get.map(|reads| 1.0 + reads)),
    ];
    let most = (high(&reads) - 1.0).max(0.05).mul_add(1.1, 1.0);
    panel(area, outcome, 1, ("READs per GET of a key that is there", 1.0, most, false), &reads, |v| {
        format!("{v:.2}")
    })?;
    let latencies: [Drawn; 4] = [
        ("p99.9, growing", GROWING, |part| Some(part.p999_ns as f64)),
        ("p99, growing", PALE, |part| Some(part.p99_ns as f64)),
        ("p99.9, fixed", FIXED, |part| Some(part.fixed_p999_ns as f64)),
        ("p99, fixed", FIXED_PALE, |part| Some(part.fixed_p99_ns as f64)),
    ];
    let top = high(&latencies).log10().ceil().max(4.0);
    panel(area, outcome, 2, ("one GET", 100.0, 10f64.powf(top), true), &latencies, show::nanos)?;
    let changes: [Drawn; 2] = [
        ("growing", GROWING, |part| Some(part.change_cpu_max_ms)),
        ("fixed", FIXED, |part| Some(part.fixed_change_cpu_max_ms)),
    ];
    let top = high(&changes).log10().ceil().max(1.0);
    panel(
        area,
        outcome,
        3,
        ("longest insert or remove, by CPU time", 0.001, 10f64.powf(top), true),
        &changes,
        |v| show::nanos(v * 1e6),
    )
}

/// A panel: its number from the top; title, ends and kind of its scale; the lines; and how a value is
/// written.
fn panel<'a>(
    area: &Area<'a>,
    outcome: &Outcome,
    number: i32,
    (title, low, high, log): (&str, f64, f64, bool),
    drawn: &[Drawn],
    told: impl Fn(f64) -> String,
) -> Painted<'a> {
    let top = 140 + number * APART;
    // Parts are as far apart as their keys are by the logarithm.
    let parts = &outcome.parts;
    let x = Axis { low: 0.0, high: parts.len() as f64, from: LEFT, to: RIGHT, log: false };
    let y = Axis { low, high, from: top + HEIGHT, to: top, log };
    let none = Axis { low: 0.0, high: -1.0, ..x };
    frame(area, none, y, ["", title], |_| String::new(), told)?;
    let at = |n: usize| x.at(n as f64 + 1.0);
    let mut ticks = vec![(x.at(0.0), outcome.from)];
    let grown = parts.iter().filter(|part| !part.shrinks).count();
    // Counted from the most keys, and none near the ends, which have ticks of their own.
    let every = super::PARTS as usize * grown.div_ceil(super::PARTS as usize * 3).max(1);
    let is_tick = |n: usize| n.abs_diff(grown).is_multiple_of(every) && n.min(parts.len() - n) >= every / 2;
    let inner = (1..parts.len()).filter(|&n| is_tick(n));
    ticks.extend(inner.chain([parts.len()]).map(|n| (at(n - 1), parts[n - 1].keys)));
    for (x, keys) in ticks {
        area.draw(&PathElement::new(vec![(x, y.from), (x, y.to)], FAINT.stroke_width(1)))?;
        text(area, &show::count(keys), (x, y.from + 16), 13, INK, HPos::Center)?;
    }
    let about = "keys: first they are put, then removed";
    text(area, about, ((LEFT + RIGHT) / 2, y.from + 38), 14, INK, HPos::Center)?;
    let mut ends = Vec::new();
    for &(name, color, of) in drawn {
        let points: Vec<_> = parts
            .iter()
            .enumerate()
            .filter_map(|(n, part)| Some((at(n), y.at(of(part).filter(|v| *v > 0.0)?))))
            .collect();
        ends.extend(points.last().map(|end| (end.1, name.to_owned(), color)));
        line(area, points, color, 2)?;
    }
    labels_above(area, RIGHT, y.from, ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each figure has a line of its own: one that changes moves lines of its colour, and no others.
    #[test]
    fn each_figure_has_its_line() {
        let high = Part {
            keys: 1_000,
            load_min: 0.8,
            load_mean: 0.9,
            reads_per_get: 3.0,
            directory_reads_per_get: Some(1.5),
            fixed_reads_per_get: 2.0,
            p99_ns: 500_000,
            p999_ns: 900_000,
            fixed_p99_ns: 100_000,
            fixed_p999_ns: 300_000,
            change_cpu_max_ms: 9.0,
            fixed_change_cpu_max_ms: 5.0,
            ..Part::default()
        };
        let low = Part {
            load_min: 0.2,
            load_mean: 0.6,
            reads_per_get: 2.5,
            directory_reads_per_get: Some(0.2),
            fixed_reads_per_get: 1.8,
            p99_ns: 10_000,
            p999_ns: 200_000,
            fixed_p99_ns: 1_000,
            fixed_p999_ns: 50_000,
            change_cpu_max_ms: 4.0,
            fixed_change_cpu_max_ms: 0.1,
            ..high
        };
        let dir = tempfile::tempdir().unwrap();
        let lines = |last: Part| -> Vec<String> {
            let path = dir.path().join("grow.svg");
            let outcome = Outcome { parts: vec![high, last], ..Outcome::default() };
            draw(&path, &outcome).unwrap();
            let drawn = std::fs::read_to_string(path).unwrap();
            drawn.lines().filter(|line| line.starts_with("<polyline")).map(str::to_owned).collect()
        };
        let before = lines(low);
        for (name, changed, color) in [
            ("load_mean", Part { load_mean: 0.55, ..low }, GROWING),
            ("load_min", Part { load_min: 0.25, ..low }, PALE),
            ("reads_per_get", Part { reads_per_get: 2.6, ..low }, GROWING),
            ("fixed_reads_per_get", Part { fixed_reads_per_get: 1.7, ..low }, FIXED),
            ("directory_reads_per_get", Part { directory_reads_per_get: Some(0.3), ..low }, PALE),
            ("p999_ns", Part { p999_ns: 220_000, ..low }, GROWING),
            ("p99_ns", Part { p99_ns: 11_000, ..low }, PALE),
            ("fixed_p999_ns", Part { fixed_p999_ns: 45_000, ..low }, FIXED),
            ("fixed_p99_ns", Part { fixed_p99_ns: 1_100, ..low }, FIXED_PALE),
            ("change_cpu_max_ms", Part { change_cpu_max_ms: 4.5, ..low }, GROWING),
            ("fixed_change_cpu_max_ms", Part { fixed_change_cpu_max_ms: 0.2, ..low }, FIXED),
        ] {
            let color = format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2);
            let after = lines(changed);
            let moved: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
            assert!(!moved.is_empty(), "{name} is not drawn");
            assert!(moved.iter().all(|line| line.contains(&color)), "{name}, {color}: {moved:?}");
        }
    }
}
