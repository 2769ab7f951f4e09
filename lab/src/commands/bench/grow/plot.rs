//! Draws `bench grow`: load, memory, READs and latencies while a table grows and shrinks.

use super::outcome::{Outcome, PARTS, Part};
use crate::plot::{
    Area, Axis, BLUE, GREEN, INK, Label, ORANGE, Painted, RED, SMALL, TEAL, heading, line, name_ends, panel,
    svg, text,
};
use anyhow::{Result, ensure};
use oneread_kit::show;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const HEIGHT: u32 = 1220;
const LEFT: i32 = 80;
const RIGHT: i32 = 660;
/// The height of each panel, and from the top of one to the next.
const TALL: i32 = 180;
const APART: i32 = 270;
/// Behind the second half, in which the table is emptied.
const SHADE: RGBColor = RGBColor(238, 243, 250);

const GROWING: RGBColor = RED;
const PALE: RGBColor = ORANGE;
const FIXED: RGBColor = BLUE;
const FIXED_PALE: RGBColor = TEAL;
const QUIET: RGBColor = GREEN;

/// One line of a panel: its name, colour, and the value at a part, if there is one.
type Drawn = (&'static str, RGBColor, fn(&Part) -> Option<f64>);

/// Draws all panels.
pub fn draw(outcome: &Outcome) -> Result<String> {
    ensure!(outcome.parts.len() > 1, "one part makes no curve; ask for more keys with --keys");
    svg(HEIGHT, |area| paint(area, outcome))
}

fn paint(area: &Area<'_>, outcome: &Outcome) -> Painted<'static> {
    let about = format!(
        "{} to {} and back, one after the other, in {} segments at most; {}; {}; {}",
        show::count(outcome.from),
        show::counted(outcome.keys, "key"),
        show::count(outcome.segments_max),
        outcome.layout,
        outcome.machine,
        outcome.cpus
    );
    heading(area, "A table that is filled, then emptied, while it is read", &about)?;
    let percent = |v: f64| format!("{:.0} %", 100.0 * v);
    let high = |drawn: &[Drawn]| {
        let all = outcome.parts.iter().flat_map(|part| drawn.iter().filter_map(|(_, _, of)| of(part)));
        all.fold(0.0, f64::max)
    };
    let loads: [Drawn; 2] =
        [("mean", GROWING, |part| Some(part.load_mean)), ("lowest", PALE, |part| Some(part.load_min))];
    part_by_part(area, outcome, 0, ("true load", 0.0, 1.0, false), &loads, percent)?;
    let reads: [Drawn; 3] = [
        ("growing", GROWING, |part| part.reads_per_get),
        ("fixed", FIXED, |part| part.fixed_reads_per_get),
        ("1 + directory READs", PALE, |part| part.directory_reads_per_get.map(|reads| 1.0 + reads)),
    ];
    let most = (high(&reads) - 1.0).max(0.05).mul_add(1.1, 1.0);
    part_by_part(
        area,
        outcome,
        1,
        ("READs per GET of a key that is there", 1.0, most, false),
        &reads,
        |v| format!("{v:.2}"),
    )?;
    let latencies: [Drawn; 5] = [
        ("p99.9, growing", GROWING, |part| part.p999_ns.map(|ns| ns as f64)),
        ("p99.9, quiet", QUIET, |part| part.p999_quiet_ns.map(|ns| ns as f64)),
        ("p99, growing", PALE, |part| part.p99_ns.map(|ns| ns as f64)),
        ("p99.9, fixed", FIXED, |part| part.fixed_p999_ns.map(|ns| ns as f64)),
        ("p99, fixed", FIXED_PALE, |part| part.fixed_p99_ns.map(|ns| ns as f64)),
    ];
    let top = high(&latencies).log10().ceil().max(4.0);
    part_by_part(area, outcome, 2, ("one GET", 100.0, 10f64.powf(top), true), &latencies, show::nanos)?;
    let changes: [Drawn; 2] = [
        ("growing", GROWING, |part| Some(part.change_cpu_max_ms)),
        ("fixed", FIXED, |part| Some(part.fixed_change_cpu_max_ms)),
    ];
    let top = high(&changes).log10().ceil().max(1.0);
    part_by_part(
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
fn part_by_part(
    area: &Area<'_>,
    outcome: &Outcome,
    number: i32,
    (title, low, high, log): (&str, f64, f64, bool),
    drawn: &[Drawn],
    told: impl Fn(f64) -> String,
) -> Painted<'static> {
    let top = 160 + number * APART;
    // Parts are as far apart as their keys are by the logarithm.
    let parts = &outcome.parts;
    let x = Axis { low: 0.0, high: parts.len() as f64, from: LEFT, to: RIGHT, log: false };
    let y = Axis { low, high, from: top + TALL, to: top, log };
    let panel = panel(x, y);
    let at = |n: usize| x.at(n as f64 + 1.0);
    let grown = parts.iter().filter(|part| !part.shrinks).count();
    let middle = x.at(grown as f64);
    area.draw(&Rectangle::new([(middle, y.to), (RIGHT, y.from)], SHADE.filled()))?;
    for (phase, from, to) in [("filling", LEFT, middle), ("emptying", middle, RIGHT)] {
        text(area, phase, ((from + to) / 2, y.to - 9), SMALL, INK, HPos::Center)?;
    }
    y.ticks().into_iter().try_for_each(|tick| panel.across(area, y.at(tick), &told(tick)))?;
    let mut ticks = vec![(LEFT, outcome.from)];
    // Counted from the most keys, and none near the ends, which have ticks of their own.
    let every = PARTS as usize * grown.div_ceil(PARTS as usize * 3).max(1);
    let is_tick = |n: usize| n.abs_diff(grown).is_multiple_of(every) && n.min(parts.len() - n) >= every / 2;
    let inner = (1..parts.len()).filter(|&n| is_tick(n));
    ticks.extend(inner.chain([parts.len()]).map(|n| (at(n - 1), parts[n - 1].keys)));
    ticks.into_iter().try_for_each(|(x, keys)| panel.upwards(area, x, &show::count(keys)))?;
    panel.title(area, title)?;
    panel.below(area, "keys")?;
    let mut ends = Vec::new();
    for &(name, color, of) in drawn {
        let points: Vec<_> = parts
            .iter()
            .enumerate()
            .filter_map(|(n, part)| Some((at(n), y.at(of(part).filter(|v| *v > 0.0)?))))
            .collect();
        ends.extend(points.last().map(|&end| Label::new(name, color, end)));
        line(area, points, color, 2)?;
    }
    name_ends(area, panel, ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::tests::check;

    /// Each figure has a line of its own: one that changes moves lines of its colour, and no others.
    #[test]
    fn each_figure_has_its_line() {
        let high = Part {
            keys: 1_000,
            load_min: 0.8,
            load_mean: 0.9,
            reads_per_get: Some(3.0),
            directory_reads_per_get: Some(1.5),
            fixed_reads_per_get: Some(2.0),
            p99_ns: Some(500_000),
            p999_ns: Some(900_000),
            p999_quiet_ns: Some(700_000),
            fixed_p99_ns: Some(100_000),
            fixed_p999_ns: Some(300_000),
            change_cpu_max_ms: 9.0,
            fixed_change_cpu_max_ms: 5.0,
            ..Part::default()
        };
        let low = Part {
            load_min: 0.2,
            load_mean: 0.6,
            reads_per_get: Some(2.5),
            directory_reads_per_get: Some(0.2),
            fixed_reads_per_get: Some(1.8),
            p99_ns: Some(10_000),
            p999_ns: Some(200_000),
            p999_quiet_ns: Some(22_000),
            fixed_p99_ns: Some(1_000),
            fixed_p999_ns: Some(50_000),
            change_cpu_max_ms: 4.0,
            fixed_change_cpu_max_ms: 0.1,
            ..high
        };
        let lines = |last: Part| -> Vec<String> {
            let outcome = Outcome { parts: vec![high, last], ..Outcome::default() };
            let drawn = draw(&outcome).unwrap();
            check(&drawn);
            // The thinner ones lead to names, which make room for each other.
            let is_figure =
                |line: &&str| line.starts_with("<polyline") && line.contains("stroke-width=\"2\"");
            drawn.lines().filter(is_figure).map(str::to_owned).collect()
        };
        let before = lines(low);
        for (name, changed, color) in [
            ("load_mean", Part { load_mean: 0.55, ..low }, GROWING),
            ("load_min", Part { load_min: 0.25, ..low }, PALE),
            ("reads_per_get", Part { reads_per_get: Some(2.6), ..low }, GROWING),
            ("fixed_reads_per_get", Part { fixed_reads_per_get: Some(1.7), ..low }, FIXED),
            ("directory_reads_per_get", Part { directory_reads_per_get: Some(0.3), ..low }, PALE),
            ("p999_ns", Part { p999_ns: Some(220_000), ..low }, GROWING),
            ("p999_quiet_ns", Part { p999_quiet_ns: Some(24_000), ..low }, QUIET),
            ("p99_ns", Part { p99_ns: Some(11_000), ..low }, PALE),
            ("fixed_p999_ns", Part { fixed_p999_ns: Some(45_000), ..low }, FIXED),
            ("fixed_p99_ns", Part { fixed_p99_ns: Some(1_100), ..low }, FIXED_PALE),
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
