//! Draws what `plan` found into one HTML page: bottlenecks, throughput against clients, latency
//! against load. Every line is named where it ends.

use crate::plan::{Design, Measured, Prediction, System};
use crate::plot::{
    Area, Axis, BLUE, GREEN, INK, Label, Painted, RED, SMALL, frame, line, name_ends, panel, svg, text,
};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// A design with what was computed and simulated of it.
pub struct Drawn<'a> {
    pub design: &'a Design,
    pub prediction: &'a Prediction,
    /// Clients, what the laws say, and what a run measured.
    pub by_clients: Vec<(u32, f64, Option<f64>)>,
    /// Operations a second that come, and what a run measured.
    pub by_load: Vec<(f64, Measured)>,
}

const COLORS: [RGBColor; 4] = [BLUE, RED, GREEN, RGBColor(150, 80, 190)];

/// The heads of the page's table.
const COLUMNS: [&str; 6] =
    ["design", "READs or requests of a GET", "bytes of a GET", "binds", "GETs/s of a server", "source"];

/// The page. The rows are those of its table, one for each design; the chosen one is marked, and is the first
/// that is drawn.
pub fn page(
    system: &System,
    rows: Vec<[String; 6]>,
    chosen: Option<usize>,
    drawn: &[Drawn<'_>],
    reasons: &[String],
    heads: &str,
) -> Result<String> {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut body = format!("<h1>oneread plan</h1>\n<p>{}</p>\n", escaped(heads).replace('\n', "<br>"));
    for reason in reasons {
        body += &format!("<p>{}</p>\n", escaped(reason));
    }
    let line = |class: &str, tag: &str, cells: [String; 6]| {
        let cells = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(&cell))).concat();
        format!("<tr{class}>{cells}</tr>\n")
    };
    body += "<h2>All designs</h2>\n<table>\n";
    body += &line("", "th", COLUMNS.map(String::from));
    for (n, mut cells) in rows.into_iter().enumerate() {
        let is_chosen = chosen == Some(n);
        if is_chosen {
            cells[0] += " (chosen)";
        }
        body += &line(if is_chosen { " class=\"chosen\"" } else { "" }, "td", cells);
    }
    body += "</table>\n<p>A resource binds if it is the first to be always busy. (M): from memory, not looked up. \
             The best of each kind are drawn below.</p>\n";
    body += "<h2>Which resource binds</h2>\n<p>Operations a second at which each resource would always be busy. \
             The shortest bar is the design's limit. All bars are on one linear scale; what goes beyond it ends in an \
             arrow.</p>\n";
    // Far enough for each design's limit, and for what is a little above it.
    let most =
        drawn.iter().filter_map(|d| d.prediction.bounds.first()).map(|b| b.ops_per_s).fold(1.0, f64::max);
    let scale = Axis { low: 0.0, high: 2.0 * most, from: 170, to: 650, log: false };
    for (n, (drawn, color)) in drawn.iter().zip(COLORS).enumerate() {
        let height = 60 + 26 * drawn.prediction.bounds.len() as u32;
        let is_chosen = chosen.is_some() && n == 0;
        body += &svg(height, |area| staircase(area, drawn, color, scale, is_chosen))?;
    }
    body += "<h2>Throughput against clients</h2>\n<p>Lines: computed from the bounds. Dots: simulated.</p>\n";
    body += &svg(440, |area| throughput(area, drawn, system.workload.clients))?;
    body += "<h2>Latency against load</h2>\n<p>How long simulated GETs take when they come at random, up to \
             95 % of what the design can do.</p>\n";
    for (drawn, color) in drawn.iter().zip(COLORS) {
        body += &svg(340, |area| latency(area, drawn, color))?;
    }
    let style = ":root{color-scheme:light dark}\
                 body{font-family:sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#282828;\
                 background:#fff;line-height:1.4}svg{max-width:100%;height:auto}table{border-collapse:collapse;font-size:14px}\
                 th,td{text-align:left;vertical-align:top;padding:3px 10px 3px 0;border-bottom:1px solid #e0e0e0}\
                 td:nth-child(4){white-space:nowrap}.chosen td{font-weight:bold;background:#e8f0fa}\
                 @media (prefers-color-scheme: dark){body{background:#0d1117;color:#c9c9c9}\
                 th,td{border-color:#333}.chosen td{background:#1c2c44}}";
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>oneread plan</title>\
         <style>{style}</style></head>\n<body>\n{body}</body></html>\n"
    ))
}

fn rate(per_s: f64) -> String {
    match per_s {
        r if r >= 1e6 => format!("{} M/s", trimmed(r / 1e6)),
        r if r >= 1e3 => format!("{} k/s", trimmed(r / 1e3)),
        r => format!("{} /s", trimmed(r)),
    }
}

fn time(s: f64) -> String {
    match s * 1e6 {
        us if us >= 1e3 => format!("{} ms", trimmed(us / 1e3)),
        us if us >= 1.0 => format!("{} us", trimmed(us)),
        us => format!("{} ns", trimmed(1e3 * us)),
    }
}

/// At most three significant digits.
fn trimmed(n: f64) -> String {
    let digits = if n >= 100.0 {
        0
    } else if n >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{n:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// A bar for each resource, the one that binds on top.
fn staircase(
    area: &Area<'_>,
    drawn: &Drawn<'_>,
    color: RGBColor,
    scale: Axis,
    is_chosen: bool,
) -> Painted<'static> {
    let chosen = if is_chosen { " (chosen)" } else { "" };
    text(area, &format!("{}{chosen}", drawn.design.name), (20, 22), 17, color, HPos::Left)?;
    for (i, bound) in drawn.prediction.bounds.iter().enumerate() {
        let y = 50 + 26 * i as i32;
        // What two resources of one name stand for.
        let side = match bound.resource {
            crate::plan::Resource::ServerIn => " in",
            crate::plan::Resource::ServerOut => " out",
            crate::plan::Resource::ClientIn => " in",
            crate::plan::Resource::ClientOut => " out",
            crate::plan::Resource::Waiting => " (clients wait)",
            _ => "",
        };
        let (fill, ink) = if i == 0 { (color.mix(0.9), color) } else { (color.mix(0.3), INK) };
        text(
            area,
            &format!("{}{side}", bound.resource.name()),
            (scale.from - 10, y),
            SMALL,
            ink,
            HPos::Right,
        )?;
        let right = scale.at(bound.ops_per_s).max(scale.from + 2);
        area.draw(&Rectangle::new([(scale.from, y - 9), (right, y + 9)], fill.filled()))?;
        if bound.ops_per_s > scale.high {
            area.draw(&Polygon::new([(right, y - 9), (right + 10, y), (right, y + 9)], fill))?;
        }
        let told = format!("{}{}", rate(bound.ops_per_s), if i == 0 { ": binds" } else { "" });
        text(area, &told, (right + 16, y), SMALL, ink, HPos::Left)?;
    }
    Ok(())
}

fn throughput(area: &Area<'_>, drawn: &[Drawn<'_>], asked: u32) -> Painted<'static> {
    let most = drawn
        .iter()
        .flat_map(|d| &d.by_clients)
        .map(|point| point.1.max(point.2.unwrap_or(0.0)))
        .fold(1.0, f64::max);
    let last = drawn.iter().flat_map(|d| &d.by_clients).map(|point| point.0).max().unwrap_or(10);
    let x = Axis { low: 1.0, high: last.max(10).into(), from: 80, to: 600, log: true };
    let y = Axis { low: 0.0, high: 1.05 * most, from: 380, to: 50, log: false };
    frame(area, x, y, ["clients", "operations a second"], trimmed, rate)?;
    let at = x.at(asked.into());
    line(area, vec![(at, y.from), (at, y.to)], RGBColor(150, 150, 150), 2)?;
    text(area, "asked for", (at + 6, y.to - 8), SMALL, INK, HPos::Left)?;
    let mut ends = Vec::new();
    for (drawn, color) in drawn.iter().zip(COLORS) {
        let points: Vec<_> =
            drawn.by_clients.iter().map(|point| (x.at(point.0.into()), y.at(point.1))).collect();
        ends.extend(points.last().map(|&end| Label::new(&drawn.design.name, color, end)));
        line(area, points, color, 2)?;
        for (clients, _, measured) in &drawn.by_clients {
            if let Some(measured) = measured {
                area.draw(&Circle::new((x.at((*clients).into()), y.at(*measured)), 4, color.filled()))?;
            }
        }
    }
    name_ends(area, panel(x, y), ends)
}

fn latency(area: &Area<'_>, drawn: &Drawn<'_>, color: RGBColor) -> Painted<'static> {
    text(area, &drawn.design.name, (20, 20), 17, color, HPos::Left)?;
    let most = drawn.by_load.iter().map(|point| point.1.p999_s).fold(1e-9, f64::max);
    let end = drawn.by_load.last().map_or(1.0, |point| point.0);
    let x = Axis { low: 0.0, high: end, from: 80, to: 680, log: false };
    let y = Axis { low: 0.0, high: 1.1 * most, from: 280, to: 76, log: false };
    frame(area, x, y, ["operations a second that come", "one GET"], rate, time)?;
    let mut ends = Vec::new();
    for (name, strength, of) in [
        ("p99.9", 1.0, (|m: &Measured| m.p999_s) as fn(&Measured) -> f64),
        ("p99", 0.65, |m| m.p99_s),
        ("p50", 0.45, |m| m.p50_s),
    ] {
        // Paler towards white, so that a line is as clear as its label.
        let pale = |c: u8| (255.0 - strength * (255.0 - f64::from(c))) as u8;
        let tone = RGBColor(pale(color.0), pale(color.1), pale(color.2));
        let points: Vec<_> = drawn.by_load.iter().map(|point| (x.at(point.0), y.at(of(&point.1)))).collect();
        let value = drawn.by_load.last().map_or(0.0, |point| of(&point.1));
        ends.extend(points.last().map(|&end| Label::new(format!("{name}: {}", time(value)), INK, end)));
        line(area, points, tone, 2)?;
    }
    name_ends(area, panel(x, y), ends)
}
