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
