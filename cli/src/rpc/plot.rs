//! Draws the results of `bench rpc`: throughput and latency by the number of connections.

use super::{Line, Operation, Outcome, Path};
use crate::plot::{
    Area, BLUE, BOTTOM, FAINT, GREEN, INK, Label, Painted, RED, SIZE, TOP, dashed, name_ends, text, to_file,
};
use crate::show;
use anyhow::{Result, ensure};
use plotters::element::PathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Draws all results into an SVG file.
pub fn draw(path: &std::path::Path, outcome: &Outcome) -> Result<()> {
    ensure!(!outcome.lines.is_empty(), "there is nothing to draw");
    to_file(path, SIZE, |area| paint(area, outcome))
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

fn paint<'a>(area: &Area<'a>, outcome: &Outcome) -> Painted<'a> {
    text(area, "GETs by READ, and GETs that the server does", (40, 40), 24, INK, HPos::Left)?;
    text(area, &outcome.about(), (40, 68), 15, INK, HPos::Left)?;
    let curves = curves(&outcome.lines);
    let rate = |line: &Line| line.ops_per_s;
    panel(area, &curves, 90, "operations per second", &[(rate, false)], show::rate)?;
    let (p50, p99): (Measure, Measure) = (|line| line.p50_ns as f64, |line| line.p99_ns as f64);
    let title = "latency: solid the median, dashed the 99th percentile";
    panel(area, &curves, 860, title, &[(p50, false), (p99, true)], show::nanos)
}

/// The quantity that a panel draws.
type Measure = fn(&Line) -> f64;

/// Draws one panel, with both axes logarithmic.
fn panel<'a>(
    area: &Area<'a>,
    curves: &[Vec<&Line>],
    left: i32,
    title: &str,
    measures: &[(Measure, bool)],
    unit: impl Fn(f64) -> String,
) -> Painted<'a> {
    let right = left + 450;
    let lines = || curves.iter().flatten();
    let values = || lines().flat_map(|line| measures.iter().map(|(measure, _)| measure(line).max(1.0)));
    let low = values().fold(f64::MAX, f64::min).log10().floor();
    let high = values().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let most = lines().map(|line| line.connections).max().unwrap_or(1).max(2);
    let x = |connections: u32| {
        left + (f64::from(right - left) * f64::from(connections).log2() / f64::from(most).log2()) as i32
    };
    let y = |value: f64| {
        let part = (value.max(1.0).log10() - low) / (high - low);
        BOTTOM - (part * f64::from(BOTTOM - TOP)).round() as i32
    };
    text(area, title, (left, TOP - 18), 16, INK, HPos::Left)?;
    for power in low as i32..=high as i32 {
        let value = 10f64.powi(power);
        area.draw(&PathElement::new(vec![(left, y(value)), (right, y(value))], FAINT.stroke_width(1)))?;
        text(area, &unit(value), (left - 8, y(value)), 13, INK, HPos::Right)?;
    }
    let mut ticks: Vec<u32> = lines().map(|line| line.connections).collect();
    ticks.sort_unstable();
    ticks.dedup();
    for connections in ticks {
        let at = x(connections);
        area.draw(&PathElement::new(vec![(at, TOP), (at, BOTTOM)], FAINT.stroke_width(1)))?;
        text(area, &connections.to_string(), (at, BOTTOM + 22), 13, INK, HPos::Center)?;
    }
    text(area, "connections", ((left + right) / 2, BOTTOM + 48), 14, INK, HPos::Center)?;

    let mut labels = Vec::new();
    for curve in curves {
        let color = color(curve[0]);
        for (measure, is_dashed) in measures {
            let points: Vec<_> = curve.iter().map(|line| (x(line.connections), y(measure(line)))).collect();
            if *is_dashed {
                dashed(area, &points, color)?;
            } else {
                area.draw(&PathElement::new(points.clone(), color.stroke_width(2)))?;
                let Some(&end) = points.last() else { continue };
                labels.push(Label { text: name(curve[0]), color, end, y: f64::from(end.1) });
            }
            for &point in &points {
                area.draw(&Circle::new(point, if *is_dashed { 2 } else { 3 }, color.filled()))?;
            }
        }
    }
    name_ends(area, right, labels)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{line, outcome};
    use super::*;

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
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rpc.svg");
        assert!(draw(&path, &outcome(Vec::new())).is_err());
        let lines = [1, 4, 16].map(|n| line(Operation::Get, Path::OneSided, n));
        draw(&path, &outcome(lines.into())).unwrap();
        let drawn = std::fs::read_to_string(&path).unwrap();
        // A rate of 2,000, and latencies of 1 us and 2 ms, stand between these powers of ten.
        for text in ["operations per second", "dashed the 99th", "1 k/s", "10 k/s", "1.00 us", "10.00 ms"] {
            assert!(drawn.contains(text), "{text}");
        }
        let has = |text: &str| drawn.matches(&format!(">\n{text}\n<")).count();
        assert_eq!(["100 /s", "100 k/s", "100 ns", "100.00 ms"].map(has), [0; 4]);
        assert_eq!(["1", "4", "16", "connections", "GET one-sided"].map(has), [2; 5]);
        // Left, middle and right of the left panel; 2,000 is 0.301 of a power of ten above its lower end.
        let y = BOTTOM - (f64::from(BOTTOM - TOP) * 2f64.log10()).round() as i32;
        for x in [90, 315, 540] {
            assert!(drawn.contains(&format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"3\"")), "{x}, {y}: {drawn}");
        }
        assert_eq!((drawn.matches("r=\"3\"").count(), drawn.matches("r=\"2\"").count()), (6, 3));
    }
}
