//! Draws the results of `bench rpc`: throughput and latency by the number of connections.

use super::outcome::{Line, Operation, Outcome, Path};
use crate::plot::{
    Area, Axis, BLUE, GREEN, Label, Painted, Panel, RED, dashed, heading, line, name_ends, svg,
};
use anyhow::{Result, ensure};
use oneread_kit::show;
use plotters::prelude::*;

const HEIGHT: u32 = 960;
const RATES: Panel = Panel { left: 90, right: 660, top: 140, bottom: 460 };
const LATENCIES: Panel = Panel { left: 90, right: 660, top: 570, bottom: 890 };

/// Draws all results.
pub fn draw(outcome: &Outcome) -> Result<String> {
    ensure!(!outcome.lines.is_empty(), "nothing was measured; ask for a number with --connections");
    svg(HEIGHT, |area| paint(area, outcome))
}

fn color(line: &Line) -> RGBColor {
    match (line.operation, line.path) {
        (Operation::Get, Path::OneSided) => RED,
        (Operation::Get, Path::Message) => BLUE,
        (Operation::Get, Path::Mailbox | Path::Herd) => GREEN,
        (Operation::Put, Path::Mailbox | Path::Herd) => RGBColor(190, 140, 0),
        (Operation::PutMany, Path::Mailbox | Path::Herd) => RGBColor(150, 60, 160),
        (Operation::Put, _) => RGBColor(110, 110, 110),
        (Operation::PutMany, _) => RGBColor(60, 60, 60),
    }
}

fn name(line: &Line) -> String {
    format!("{} {}", line.operation.name(), line.path.name())
}

/// The results of each path, by connections.
fn curves(lines: &[Line]) -> Vec<Vec<&Line>> {
    let mut curves: Vec<Vec<&Line>> = Vec::new();
    for line in lines {
        match curves.iter_mut().find(|curve| name(curve[0]) == name(line)) {
            Some(curve) => curve.push(line),
            None => curves.push(vec![line]),
        }
    }
    curves.iter_mut().for_each(|curve| curve.sort_by_key(|line| line.connections));
    curves
}

fn paint(area: &Area<'_>, outcome: &Outcome) -> Painted<'static> {
    heading(area, "GETs by READ, and GETs that the server does", &outcome.about())?;
    let curves = curves(&outcome.lines);
    let rate: Measure = |line| Some(line.ops_per_s);
    draw_panel(area, &curves, RATES, "operations per second", &[(rate, false)], show::rate)?;
    let (p50, p99): (Measure, Measure) = (|line| Some(line.p50_ns? as f64), |line| Some(line.p99_ns? as f64));
    let title = "latency: solid the median, dashed the 99th percentile";
    draw_panel(area, &curves, LATENCIES, title, &[(p50, false), (p99, true)], show::nanos)
}

/// The quantity that a panel draws.
type Measure = fn(&Line) -> Option<f64>;

/// Draws one panel, with both axes logarithmic.
fn draw_panel(
    area: &Area<'_>,
    curves: &[Vec<&Line>],
    panel: Panel,
    title: &str,
    measures: &[(Measure, bool)],
    unit: impl Fn(f64) -> String,
) -> Painted<'static> {
    let lines = || curves.iter().flatten();
    let values =
        || lines().flat_map(|line| measures.iter().filter_map(|(measure, _)| Some(measure(line)?.max(1.0))));
    let low = values().reduce(f64::min).unwrap_or(1.0).log10().floor();
    let high = values().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let most = lines().map(|line| line.connections).max().unwrap_or(1).max(2);
    let across = Axis { low: 1.0, high: most.into(), from: panel.left, to: panel.right, log: true };
    let (low, high) = (10f64.powf(low), 10f64.powf(high));
    let upwards = Axis { low, high, from: panel.bottom, to: panel.top, log: true };
    let (x, y) = (|connections: u32| across.at(connections.into()), |value: f64| upwards.at(value.max(1.0)));
    panel.title(area, title)?;
    upwards.ticks().into_iter().try_for_each(|value| panel.across(area, y(value), &unit(value)))?;
    let mut ticks: Vec<u32> = lines().map(|line| line.connections).collect();
    ticks.sort_unstable();
    ticks.dedup();
    ticks.into_iter().try_for_each(|n| panel.upwards(area, x(n), &n.to_string()))?;
    panel.below(area, "connections")?;

    let mut labels = Vec::new();
    for curve in curves {
        let color = color(curve[0]);
        for (measure, is_dashed) in measures {
            let points: Vec<_> =
                curve.iter().filter_map(|line| Some((x(line.connections), y(measure(line)?)))).collect();
            if *is_dashed {
                dashed(area, &points, color)?;
            } else {
                line(area, points.clone(), color, 2)?;
                labels.extend(points.last().map(|&end| Label::new(name(curve[0]), color, end)));
            }
            for &point in &points {
                area.draw(&Circle::new(point, if *is_dashed { 2 } else { 3 }, color.filled()))?;
            }
        }
    }
    name_ends(area, panel, labels)
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::{line, outcome};
    use super::*;
    use crate::plot::tests::check;

    /// Each path is a curve, from left to right, with a name and a colour of its own.
    #[test]
    fn each_path_is_a_curve() {
        let paths = |path| [Operation::Get, Operation::Put, Operation::PutMany].map(|what| (what, path));
        // A fabric has a mailbox, or HERD.
        for polled in [Path::Mailbox, Path::Herd] {
            let all =
                [&[(Operation::Get, Path::OneSided)][..], &paths(Path::Message), &paths(polled)].concat();
            let lines: Vec<_> =
                [4, 1].iter().flat_map(|n| all.iter().map(|(what, path)| line(*what, *path, *n))).collect();
            let curves = curves(&lines);
            assert_eq!(curves.len(), 7);
            for (n, curve) in curves.iter().enumerate() {
                assert_eq!(curve.iter().map(|line| line.connections).collect::<Vec<_>>(), [1, 4]);
                assert!(
                    curves[..n].iter().all(|other| color(other[0]) != color(curve[0])),
                    "{}",
                    name(curve[0])
                );
            }
        }
        assert_eq!(name(&line(Operation::PutMany, Path::Herd, 1)), "PUTs HERD");
    }

    /// Both panels have their titles, units and numbers of connections, and a point for each result.
    #[test]
    fn results_are_drawn() {
        assert!(draw(&outcome(Vec::new())).is_err());
        let lines = [1, 4, 16].map(|n| line(Operation::Get, Path::OneSided, n));
        let drawn = draw(&outcome(lines.into())).unwrap();
        check(&drawn);
        // A rate of 2,000, and latencies of 1 us and 2 ms, stand between these powers of ten.
        for text in ["operations per second", "dashed the 99th", "1 k/s", "10 k/s", "1 µs", "10 ms"] {
            assert!(drawn.contains(text), "{text}");
        }
        let has = |text: &str| drawn.matches(&format!(">\n{text}\n<")).count();
        assert_eq!(["100 /s", "100 k/s", "100 ns", "100 ms"].map(has), [0; 4]);
        assert_eq!(["1", "4", "16", "connections", "GET one-sided"].map(has), [2; 5]);
        // Left, middle and right of the panel; 2,000 is 0.301 of a power of ten above its lower end.
        let Panel { left, right, top, bottom } = RATES;
        let y = bottom - (f64::from(bottom - top) * 2f64.log10()).round() as i32;
        for x in [left, (left + right) / 2, right] {
            assert!(drawn.contains(&format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"3\"")), "{x}, {y}: {drawn}");
        }
        assert_eq!((drawn.matches("r=\"3\"").count(), drawn.matches("r=\"2\"").count()), (6, 3));
    }
}
