//! Draws what `plan` found into one HTML page: bottlenecks, throughput against clients, latency
//! against load. Every line is named where it ends.

use super::plot::{Area, BLUE, FAINT, GREEN, INK, Painted, RED, text};
use anyhow::{Result, anyhow};
use oneread::plan::{Design, Measured, Prediction, System};
use plotters::element::PathElement;
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
const WIDTH: u32 = 960;

/// The heads of the page's table.
const COLUMNS: [&str; 6] =
    ["design", "READs or requests of a GET", "bytes of a GET", "binds", "GETs/s of a server", "source"];

/// The page. The rows are those of its table, one for each design.
pub fn page(
    system: &System,
    rows: Vec<[String; 6]>,
    drawn: &[Drawn<'_>],
    reasons: &[String],
    heads: &str,
) -> Result<String> {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut body = format!("<h1>oneread plan</h1>\n<p>{}</p>\n", escaped(heads).replace('\n', "<br>"));
    for reason in reasons {
        body += &format!("<p>{}</p>\n", escaped(reason));
    }
    let line = |tag: &str, cells: [String; 6]| {
        let cells = cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(&cell))).concat();
        format!("<tr>{cells}</tr>\n")
    };
    body += "<h2>All designs</h2>\n<table>\n";
    body += &line("th", COLUMNS.map(String::from));
    body.extend(rows.into_iter().map(|cells| line("td", cells)));
    body += "</table>\n<p>A resource binds if it is the first to be always busy. (M): from memory, not looked up. \
             The best of each kind are drawn below.</p>\n";
    body += "<h2>Which resource binds</h2>\n<p>Operations a second at which each resource would always be busy. \
             The shortest bar is the design's limit. Bars are logarithmic.</p>\n";
    for (drawn, color) in drawn.iter().zip(COLORS) {
        let height = 60 + 30 * drawn.prediction.bounds.len() as u32;
        body += &svg(height, |area| staircase(area, drawn, color))?;
    }
    body += "<h2>Throughput against clients</h2>\n<p>Lines: computed from the bounds. Dots: simulated.</p>\n";
    body += &svg(440, |area| throughput(area, drawn, system.workload.clients))?;
    body += "<h2>Latency against load</h2>\n<p>How long simulated GETs take when they come at random, up to \
             95 % of what the design can do.</p>\n";
    for (drawn, color) in drawn.iter().zip(COLORS) {
        body += &svg(340, |area| latency(area, drawn, color))?;
    }
    let style = "body{font-family:sans-serif;max-width:960px;margin:2em auto;color:#282828;line-height:1.4}\
                 svg{max-width:100%;height:auto}table{border-collapse:collapse;font-size:14px}\
                 th,td{text-align:left;vertical-align:top;padding:3px 10px 3px 0;border-bottom:1px solid #e0e0e0}\
                 td:nth-child(4){white-space:nowrap}";
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>oneread plan</title>\
         <style>{style}</style></head>\n<body>\n{body}</body></html>\n"
    ))
}

fn svg(height: u32, paint: impl FnOnce(&Area<'_>) -> Painted<'static>) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(|e| anyhow!("{e}"))?;
        paint(&area).map_err(|e| anyhow!("{e}"))?;
        area.present().map_err(|e| anyhow!("{e}"))?;
    }
    Ok(text)
}

/// One side of a picture: values to pixels, linear or by their logarithm.
#[derive(Clone, Copy)]
pub struct Axis {
    pub low: f64,
    pub high: f64,
    /// Pixels.
    pub from: i32,
    pub to: i32,
    /// By its logarithm.
    pub log: bool,
}

impl Axis {
    pub fn at(&self, value: f64) -> i32 {
        let of = |v: f64| if self.log { v.max(1e-12).log10() } else { v };
        let share = (of(value) - of(self.low)) / (of(self.high) - of(self.low)).max(1e-12);
        self.from + (share.clamp(0.0, 1.0) * f64::from(self.to - self.from)).round() as i32
    }

    /// Round values, some five of them.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (low, high) = (self.low.log10().ceil() as i32, self.high.log10().floor() as i32);
            return (low..=high).map(|power| 10f64.powi(power)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let unit = 10f64.powf(rough.max(1e-12).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= rough).unwrap_or(unit);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|v| *v <= self.high * 1.0001).collect()
    }
}

pub(super) fn line<'a>(area: &Area<'a>, points: Vec<(i32, i32)>, color: RGBColor, width: u32) -> Painted<'a> {
    area.draw(&PathElement::new(points, color.stroke_width(width)))
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

fn staircase<'a>(area: &Area<'a>, drawn: &Drawn<'_>, color: RGBColor) -> Painted<'a> {
    let bounds = &drawn.prediction.bounds;
    text(area, &drawn.design.name, (20, 24), 18, color, HPos::Left)?;
    let low = bounds.first().map_or(1.0, |bound| bound.ops_per_s) / 2.0;
    let high = bounds.last().map_or(10.0, |bound| bound.ops_per_s);
    let axis = Axis { low, high, from: 190, to: 800, log: true };
    for (i, bound) in bounds.iter().enumerate() {
        let y = 52 + 30 * i as i32;
        // What two resources of one name stand for.
        let side = match bound.resource {
            oneread::plan::Resource::ServerIn => " in",
            oneread::plan::Resource::ServerOut => " out",
            oneread::plan::Resource::ClientIn => " in",
            oneread::plan::Resource::ClientOut => " out",
            oneread::plan::Resource::Waiting => " (clients wait)",
            _ => "",
        };
        let (fill, ink) = if i == 0 { (color.mix(0.9), color) } else { (color.mix(0.3), INK) };
        text(area, &format!("{}{side}", bound.resource.name()), (180, y), 14, ink, HPos::Right)?;
        let right = axis.at(bound.ops_per_s).max(axis.from + 4);
        area.draw(&Rectangle::new([(axis.from, y - 10), (right, y + 10)], fill.filled()))?;
        let told = format!("{}{}", rate(bound.ops_per_s), if i == 0 { "  binds" } else { "" });
        text(area, &told, (right + 8, y), 14, ink, HPos::Left)?;
    }
    Ok(())
}

/// Lines for the ticks of both axes, and their values.
pub(super) fn frame<'a>(
    area: &Area<'a>,
    x: Axis,
    y: Axis,
    names: [&str; 2],
    x_text: impl Fn(f64) -> String,
    y_text: impl Fn(f64) -> String,
) -> Painted<'a> {
    for tick in y.ticks() {
        line(area, vec![(x.from, y.at(tick)), (x.to, y.at(tick))], FAINT, 1)?;
        text(area, &y_text(tick), (x.from - 8, y.at(tick)), 13, INK, HPos::Right)?;
    }
    for tick in x.ticks() {
        line(area, vec![(x.at(tick), y.from), (x.at(tick), y.to)], FAINT, 1)?;
        text(area, &x_text(tick), (x.at(tick), y.from + 16), 13, INK, HPos::Center)?;
    }
    text(area, names[0], ((x.from + x.to) / 2, y.from + 38), 14, INK, HPos::Center)?;
    text(area, names[1], (x.from - 70, y.to - 18), 14, INK, HPos::Left)
}

/// Writes labels at the right, each near its line's end, none over another.
pub(super) fn labels<'a>(area: &Area<'a>, x: i32, mut ends: Vec<(i32, String, RGBColor)>) -> Painted<'a> {
    ends.sort_by_key(|end| end.0);
    let mut free = i32::MIN;
    for (y, label, color) in ends {
        let y = y.max(free);
        text(area, &label, (x + 8, y), 14, color, HPos::Left)?;
        free = y + 18;
    }
    Ok(())
}

/// The same where no label is below the lowest pixel: those that begin low take the place above.
pub(super) fn labels_above<'a>(
    area: &Area<'a>,
    x: i32,
    lowest: i32,
    mut ends: Vec<(i32, String, RGBColor)>,
) -> Painted<'a> {
    ends.sort_by_key(|end| end.0);
    for (above, end) in ends.iter_mut().rev().enumerate() {
        end.0 = end.0.min(lowest - 18 * above as i32);
    }
    labels(area, x, ends)
}

fn throughput<'a>(area: &Area<'a>, drawn: &[Drawn<'_>], asked: u32) -> Painted<'a> {
    let most = drawn
        .iter()
        .flat_map(|d| &d.by_clients)
        .map(|point| point.1.max(point.2.unwrap_or(0.0)))
        .fold(1.0, f64::max);
    let last = drawn.iter().flat_map(|d| &d.by_clients).map(|point| point.0).max().unwrap_or(10);
    let x = Axis { low: 1.0, high: last.max(10).into(), from: 100, to: 780, log: true };
    let y = Axis { low: 0.0, high: 1.05 * most, from: 380, to: 40, log: false };
    frame(area, x, y, ["clients", "operations a second"], trimmed, rate)?;
    let at = x.at(asked.into());
    line(area, vec![(at, y.from), (at, y.to)], RGBColor(150, 150, 150), 2)?;
    text(area, "asked for", (at + 6, y.to + 8), 13, INK, HPos::Left)?;
    let mut ends = Vec::new();
    for (drawn, color) in drawn.iter().zip(COLORS) {
        let points: Vec<_> =
            drawn.by_clients.iter().map(|point| (x.at(point.0.into()), y.at(point.1))).collect();
        ends.extend(points.last().map(|end| (end.1, drawn.design.name.clone(), color)));
        line(area, points, color, 2)?;
        for (clients, _, measured) in &drawn.by_clients {
            if let Some(measured) = measured {
                area.draw(&Circle::new((x.at((*clients).into()), y.at(*measured)), 4, color.filled()))?;
            }
        }
    }
    labels(area, x.to, ends)
}

fn latency<'a>(area: &Area<'a>, drawn: &Drawn<'_>, color: RGBColor) -> Painted<'a> {
    text(area, &drawn.design.name, (20, 18), 18, color, HPos::Left)?;
    let most = drawn.by_load.iter().map(|point| point.1.p999_s).fold(1e-9, f64::max);
    let end = drawn.by_load.last().map_or(1.0, |point| point.0);
    let x = Axis { low: 0.0, high: end, from: 100, to: 780, log: false };
    let y = Axis { low: 0.0, high: 1.1 * most, from: 280, to: 60, log: false };
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
        ends.extend(points.last().map(|end| (end.1, format!("{name}: {}", time(value)), INK)));
        line(area, points, tone, 2)?;
    }
    labels(area, x.to, ends)
}
