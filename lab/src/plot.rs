//! Draws the results of `layouts`: READs per GET against load, and against bytes per GET.
//!
//! The READs beyond the first are drawn on a logarithmic scale. It shows whether one GET in ten
//! needs another round trip, or one in a thousand.

use crate::measure::{Keys, Phase, Row};
use anyhow::{Context, Result, anyhow, ensure};
use oneread_kit::show;
use plotters::coord::Shift;
use plotters::element::PathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The width of every picture, in pixels: a page of a code forge shows it as it is.
pub(super) const WIDTH: u32 = 830;
pub(super) const INK: RGBColor = RGBColor(40, 40, 40);
pub(super) const FAINT: RGBColor = RGBColor(225, 225, 225);
pub(super) const RED: RGBColor = RGBColor(214, 39, 40);
pub(super) const ORANGE: RGBColor = RGBColor(240, 120, 20);
pub(super) const BLUE: RGBColor = RGBColor(20, 90, 180);
pub(super) const TEAL: RGBColor = RGBColor(0, 150, 170);
pub(super) const GREEN: RGBColor = RGBColor(30, 140, 60);
/// The sizes of text, in pixels.
pub(super) const TITLE: i32 = 22;
pub(super) const BODY: i32 = 14;
pub(super) const SMALL: i32 = 12;
/// Pixels between the baselines of two labels.
const LABEL_GAP: f64 = 16.0;
/// The lower end of the scale of READs beyond the first. Smaller values are drawn there.
const EXCESS_MIN: f64 = 1e-4;

// ---- files -------------------------------------------------------------------------------------------

/// Parses the name of the file that a command draws into.
pub fn svg_file(name: &str) -> Result<PathBuf, String> {
    file_of(name, "svg", "a picture, in SVG")
}

/// As [`svg_file`], for a command that makes a page.
pub fn html_file(name: &str) -> Result<PathBuf, String> {
    file_of(name, "html", "a page, in HTML")
}

fn file_of(name: &str, ending: &str, what: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension() {
        Some(found) if found.eq_ignore_ascii_case(ending) => Ok(path),
        _ => Err(format!("this command makes {what}: name a file that ends in .{ending}")),
    }
}

/// Writes a picture or a page, if a file for it was named, and says so.
pub fn write(path: Option<&Path>, make: impl FnOnce() -> Result<String>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let told = show::path(path);
    make().and_then(|text| Ok(std::fs::write(path, text)?)).with_context(|| format!("writing {told}"))?;
    show::complain(format_args!("oneread: wrote {told}"));
    Ok(())
}

pub(super) type Painted<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// A picture of this height, as SVG. It follows the reader's choice of a light or dark page.
pub(super) fn svg(height: u32, paint: impl FnOnce(&Area<'_>) -> Painted<'static>) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        let painted = area.fill(&WHITE).and_then(|()| paint(&area)).and_then(|()| area.present());
        painted.map_err(|e| anyhow!("{e}"))?;
    }
    let inside = text.find('>').map_or(0, |end| end + 1);
    let style = format!("\n<style>{}</style>", dark_style(&text));
    text.insert_str(inside, &style);
    Ok(text)
}

/// Rules for a dark page: one for each colour in a picture.
fn dark_style(svg: &str) -> String {
    let colors = ["fill", "stroke"].into_iter().flat_map(|what| {
        let begin = format!("{what}=\"#");
        svg.split(&begin)
            .skip(1)
            .filter_map(|rest| rest.get(..6))
            .map(move |hex| (what, hex))
            .collect::<Vec<_>>()
    });
    let rules = colors.collect::<BTreeSet<_>>().into_iter().filter_map(|(what, hex)| {
        let [_, red, green, blue] = u32::from_str_radix(hex, 16).ok()?.to_be_bytes();
        let RGBColor(red, green, blue) = dark(RGBColor(red, green, blue));
        Some(format!("[{what}=\"#{hex}\"]{{{what}:#{red:02x}{green:02x}{blue:02x}}}"))
    });
    format!("@media (prefers-color-scheme: dark){{{}}}", rules.collect::<String>())
}

/// The colour that is to a dark page what this one is to white: the same hue, as far from the background.
fn dark(color: RGBColor) -> RGBColor {
    const BACKGROUND: RGBColor = RGBColor(13, 17, 23);
    let [red, green, blue] = [color.0, color.1, color.2].map(f64::from);
    let (low, high) = (red.min(green).min(blue), red.max(green).max(blue));
    let light = (low + high) / 2.0;
    if color == WHITE {
        return BACKGROUND;
    }
    // Of grey and of pale tones the lightness is turned round. Colours that are read become lighter.
    let is_color = high - low > 60.0 && light < 170.0;
    let wanted = if is_color { (255.0 - light).max(155.0) } else { 235.0 - 0.86 * light };
    // Between black or white and the hue, so that nothing leaves the scale.
    let room = |light: f64| light.min(255.0 - light).max(1.0);
    let part = (room(wanted) / room(light)).min(1.0);
    let turned = |c: f64| ((c - light) * part + wanted).clamp(0.0, 255.0).round() as u8;
    RGBColor(turned(red), turned(green), turned(blue))
}

// ---- what all pictures have --------------------------------------------------------------------------

/// A picture's title, and what it is of in lines below.
pub(super) fn heading<'a>(area: &Area<'a>, title: &str, about: &str) -> Painted<'a> {
    /// Characters in a line.
    const LINE: usize = 105;
    text(area, title, (20, 30), TITLE, INK, HPos::Left)?;
    let mut lines = vec![String::new()];
    for word in about.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < LINE => line.extend([" ", word]),
            _ => lines.push(word.into()),
        }
    }
    lines.iter().zip(0..).try_for_each(|(line, n)| text(area, line, (20, 56 + 18 * n), BODY, INK, HPos::Left))
}

pub(super) fn text<'a>(
    area: &Area<'a>,
    what: &str,
    at: (i32, i32),
    size: i32,
    color: RGBColor,
    side: HPos,
) -> Painted<'a> {
    // The backend takes sizes in a unit of its own.
    let font = ("sans-serif", f64::from(size) * 1.24).into_font();
    area.draw_text(what, &TextStyle::from(font).color(&color).pos(Pos::new(side, VPos::Center)), at)
}

pub(super) fn line<'a>(area: &Area<'a>, points: Vec<(i32, i32)>, color: RGBColor, width: u32) -> Painted<'a> {
    area.draw(&PathElement::new(points, color.stroke_width(width)))
}

/// The width of a label at most, in pixels.
fn width_of(text: &str) -> i32 {
    // Of the letters of usual fonts, the mean is a little more than half as wide as high.
    text.chars().count() as i32 * SMALL * 6 / 10
}

/// A point with a name.
pub(super) struct Spot {
    pub at: (i32, i32),
    pub text: String,
    pub color: RGBColor,
}

/// Names points, each at the nearest place beside it where there is no other name, no point, and none of
/// `taken`. Names stay within the box of two corners. A line leads to each that is not beside its point.
pub(super) fn name_spots<'a>(
    area: &Area<'a>,
    [(left, top), (right, bottom)]: [(i32, i32); 2],
    spots: &[Spot],
    taken: &[(i32, i32)],
) -> Painted<'a> {
    const STEP: i32 = 15;
    /// From the middle of a point to its name.
    const ASIDE: i32 = 11;
    let dots = spots.iter().map(|spot| spot.at).chain(taken.iter().copied());
    let mut boxes: Vec<_> = dots.map(|(x, y)| (x - 7, x + 7, y)).collect();
    for spot in spots {
        let (x, y) = spot.at;
        let width = width_of(&spot.text);
        let places = (0..=(bottom - top) / STEP)
            .flat_map(|n| [-n, n])
            .flat_map(|n| [x + ASIDE, x - ASIDE - width].map(|left| (left, y + STEP * n)));
        let is_free = |&(x, y): &(i32, i32)| {
            let is_inside = x >= left && x + width <= right && y >= top && y <= bottom;
            is_inside && boxes.iter().all(|&(l, r, at)| x + width < l || x > r || (y - at).abs() >= STEP)
        };
        let at = places.clone().find(is_free).unwrap_or((x + ASIDE, y));
        if at.1 != y {
            let end = if at.0 > x { at.0 - 2 } else { at.0 + width + 2 };
            area.draw(&PathElement::new(vec![(x, y), (end, at.1)], spot.color.mix(0.5).stroke_width(1)))?;
        }
        boxes.push((at.0, at.0 + width, at.1));
        text(area, &spot.text, at, SMALL, spot.color, HPos::Left)?;
    }
    Ok(())
}

/// The end of a curve, with its name.
pub(super) struct Label {
    pub text: String,
    pub color: RGBColor,
    /// Where the curve ends.
    pub end: (i32, i32),
    /// Where the label is.
    pub y: f64,
}

impl Label {
    pub fn new(text: impl Into<String>, color: RGBColor, end: (i32, i32)) -> Label {
        Label { text: text.into(), color, end, y: f64::from(end.1) }
    }
}

/// Names curves to the right of a panel, from its top to its bottom, each with a line from its end.
pub(super) fn name_ends<'a>(area: &Area<'a>, panel: Panel, mut labels: Vec<Label>) -> Painted<'a> {
    spread(&mut labels, panel);
    for label in &labels {
        let at = (panel.right + 30, label.y.round() as i32);
        let line = vec![label.end, (panel.right + 12, at.1), (at.0 - 4, at.1)];
        area.draw(&PathElement::new(line, label.color.mix(0.5).stroke_width(1)))?;
        text(area, &label.text, at, SMALL, label.color, HPos::Left)?;
    }
    Ok(())
}

/// Moves labels apart, each as little as possible, and keeps the order of the curves' ends.
fn spread(labels: &mut [Label], panel: Panel) {
    labels.sort_by_key(|label| label.end.1);
    for _ in 0..1000 {
        let mut moved = false;
        for n in 1..labels.len() {
            let lack = LABEL_GAP - (labels[n].y - labels[n - 1].y);
            if lack > 0.01 {
                labels[n - 1].y -= lack / 2.0;
                labels[n].y += lack / 2.0;
                moved = true;
            }
        }
        // Labels that were pushed out come back in, and push the others.
        let last = labels.len().saturating_sub(1);
        for (n, label) in labels.iter_mut().enumerate() {
            let low = f64::from(panel.top) + LABEL_GAP * n as f64;
            let high = f64::from(panel.bottom) + 8.0 - LABEL_GAP * (last - n) as f64;
            label.y = label.y.clamp(low.min(high), high);
        }
        if !moved {
            break;
        }
    }
}

/// Where a panel is in a picture, in pixels.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub left: i32,
    pub right: i32,
    pub top: i32,
    pub bottom: i32,
}

impl Panel {
    pub fn title<'a>(&self, area: &Area<'a>, title: &str) -> Painted<'a> {
        text(area, title, (20, self.top - 28), BODY, INK, HPos::Left)
    }

    /// What is below the panel, under the ticks.
    pub fn below<'a>(&self, area: &Area<'a>, what: &str) -> Painted<'a> {
        text(area, what, ((self.left + self.right) / 2, self.bottom + 40), BODY, INK, HPos::Center)
    }

    /// A line across, and its name.
    pub fn across<'a>(&self, area: &Area<'a>, y: i32, name: &str) -> Painted<'a> {
        line(area, vec![(self.left, y), (self.right, y)], FAINT, 1)?;
        text(area, name, (self.left - 8, y), SMALL, INK, HPos::Right)
    }

    /// A line upwards, and its name.
    pub fn upwards<'a>(&self, area: &Area<'a>, x: i32, name: &str) -> Painted<'a> {
        line(area, vec![(x, self.top), (x, self.bottom)], FAINT, 1)?;
        text(area, name, (x, self.bottom + 18), SMALL, INK, HPos::Center)
    }
}

/// One side of a picture: values to pixels, linear or by their logarithm.
#[derive(Clone, Copy)]
pub(super) struct Axis {
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
    pub fn ticks(&self) -> Vec<f64> {
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

/// Lines for the ticks of both axes, and their values.
pub(super) fn frame<'a>(
    area: &Area<'a>,
    x: Axis,
    y: Axis,
    names: [&str; 2],
    x_text: impl Fn(f64) -> String,
    y_text: impl Fn(f64) -> String,
) -> Painted<'a> {
    let panel = panel(x, y);
    y.ticks().into_iter().try_for_each(|tick| panel.across(area, y.at(tick), &y_text(tick)))?;
    x.ticks().into_iter().try_for_each(|tick| panel.upwards(area, x.at(tick), &x_text(tick)))?;
    panel.below(area, names[0])?;
    panel.title(area, names[1])
}

/// The panel of two axes.
pub(super) fn panel(x: Axis, y: Axis) -> Panel {
    Panel { left: x.from, right: x.to, top: y.to, bottom: y.from }
}

pub(super) fn dashed<'a>(area: &Area<'a>, points: &[(i32, i32)], color: RGBColor) -> Painted<'a> {
    for pair in points.windows(2) {
        for dash in dashes(pair[0], pair[1]) {
            area.draw(&PathElement::new(dash, color.stroke_width(1)))?;
        }
    }
    Ok(())
}

/// Both ends of each dash of a line. The last one ends where the line does.
fn dashes(from: (i32, i32), to: (i32, i32)) -> Vec<[(i32, i32); 2]> {
    const DASH: f64 = 6.0;
    let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
    let length = dx.hypot(dy).max(1.0);
    let at = |d: f64| {
        let part = (d / length).min(1.0);
        (from.0 + (dx * part).round() as i32, from.1 + (dy * part).round() as i32)
    };
    let mut dashes = Vec::new();
    let mut begin = 0.0;
    while begin < length {
        dashes.push([at(begin), at(begin + DASH)]);
        begin += 2.0 * DASH;
    }
    dashes
}

// ---- the picture of layouts --------------------------------------------------------------------------

/// Where the three panels are, from the top.
const BY_BYTES: Panel = Panel { left: 78, right: 810, top: 148, bottom: 500 };
const HITS: Panel = Panel { left: 78, right: 630, top: 608, bottom: 868 };
const MISSES: Panel = Panel { left: 78, right: 630, top: 976, bottom: 1236 };
const HEIGHT: u32 = 1290;

/// One layout's rows, ordered by load.
struct Curve<'a> {
    name: String,
    color: RGBColor,
    rows: Vec<&'a Row>,
}

/// Draws the steady rows, or the fresh ones if there are no others.
pub fn draw(rows: &[Row]) -> Result<String> {
    let phase = match rows.iter().any(|row| row.phase == Phase::Steady) {
        true => Phase::Steady,
        false => Phase::Fresh,
    };
    let keys = match rows.iter().any(|row| row.keys == Keys::Uniform) {
        true => Keys::Uniform,
        false => Keys::Zipf,
    };
    // Loads above 1 depend only on how much was reserved for overflow chains. They are not drawn.
    let drawn = |row: &&Row| row.phase == phase && row.keys == keys && row.load_main <= 1.0;
    let curves = curves(rows.iter().filter(drawn));
    ensure!(!curves.is_empty(), "no table was measured at a load up to 100 %; ask for one with --load");
    svg(HEIGHT, |area| paint(area, &curves, phase, keys))
}

fn curves<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Curve<'a>> {
    let mut curves: Vec<Curve<'a>> = Vec::new();
    for row in rows {
        let name = format!("{}:{}", row.family, row.preset).replace("cuckoo:", "");
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.rows.push(row),
            None => {
                let color = COLORS[curves.len() % COLORS.len()];
                curves.push(Curve { name, color, rows: vec![row] });
            }
        }
    }
    // Sorted in the order in which a table fills. As overflow blocks come in, its true load may
    // even fall.
    curves.iter_mut().for_each(|curve| curve.rows.sort_by_key(|row| row.live_keys));
    curves
}

/// Cuckoo layouts have warm colours, hopscotch blue and green, chained grey. Neighbours in a family
/// differ in tone.
const COLORS: [RGBColor; 11] = [
    RED,
    RGBColor(140, 20, 60),
    ORANGE,
    RGBColor(190, 140, 0),
    RGBColor(150, 80, 190),
    BLUE,
    TEAL,
    GREEN,
    RGBColor(90, 160, 30),
    RGBColor(110, 110, 110),
    RGBColor(150, 110, 80),
];

fn paint(area: &Area<'_>, curves: &[Curve<'_>], phase: Phase, keys: Keys) -> Painted<'static> {
    let phase = match phase {
        Phase::Fresh => "tables filled by inserts alone",
        Phase::Steady => "after two deletes and two inserts for each key",
    };
    let keys = match keys {
        Keys::Uniform => "every key asked for equally often",
        Keys::Zipf => "keys asked for by Zipf's law (0.99)",
    };
    let slots = curves.iter().flat_map(|c| &c.rows).map(|r| r.main_slots).max().unwrap_or(0);
    let about =
        format!("Counted READs of one-sided GETs; {} slots of 64 bytes; {phase}; {keys}", show::count(slots));
    heading(area, "What a GET costs, layout by layout", &about)?;
    by_bytes(area, curves)?;
    by_load(area, curves, HITS, "READs of a hit, by load", |row| row.reads_hit)?;
    by_load(area, curves, MISSES, "READs of a miss, by load", |row| row.reads_miss)
}

// ---- READs against bytes -----------------------------------------------------------------------------

fn by_bytes(area: &Area<'_>, curves: &[Curve<'_>]) -> Painted<'static> {
    // One load for all layouts: 90 % where it was measured, else the highest.
    let asked = curves.iter().flat_map(|c| &c.rows).filter_map(|r| r.load_asked);
    let load = match asked.clone().find(|load| (load - 0.9).abs() < 1e-9) {
        Some(load) => load,
        None => asked.fold(0.0, f64::max),
    };
    let points: Vec<(&Curve<'_>, &Row)> = curves
        .iter()
        .filter_map(|curve| {
            let near = |row: &&&Row| ((row.load_asked.unwrap_or(row.load_main) - load).abs() * 1e6) as u64;
            Some((curve, *curve.rows.iter().min_by_key(near)?))
        })
        .collect();
    let bytes = || points.iter().map(|(_, row)| row.bytes_hit.max(row.bytes_miss));
    let low = bytes().fold(f64::MAX, f64::min).log2().floor().min(6.0);
    let high = bytes().fold(1.0, f64::max).log2().ceil() + 0.2;
    let scale = Scale::new(BY_BYTES, (low.exp2(), high.exp2()), true, reads_max(curves));
    let title = if load > 0.0 {
        format!("READs by bytes of a GET, at {:.0} % of the main slots", 100.0 * load)
    } else {
        "READs by bytes of a GET, at the highest load".into()
    };
    let told = "dot: a hit; ring: a miss; grey band: hits that no other layout beats in both";
    text(area, &title, (20, BY_BYTES.top - 38), BODY, INK, HPos::Left)?;
    text(area, told, (20, BY_BYTES.top - 18), SMALL, INK, HPos::Left)?;
    scale.read_lines(area)?;
    for power in (low.ceil() as i32)..=(high.floor() as i32) {
        let bytes = 1u64 << power;
        BY_BYTES.upwards(area, scale.x.at(bytes as f64), &bytes.to_string())?;
    }
    BY_BYTES.below(area, "bytes of a GET")?;

    frontier(area, &points, &scale)?;
    let (mut spots, mut rings) = (Vec::new(), Vec::new());
    for (curve, row) in &points {
        let hit = (scale.x.at(row.bytes_hit), scale.y(row.reads_hit));
        let miss = (scale.x.at(row.bytes_miss), scale.y(row.reads_miss));
        area.draw(&PathElement::new(vec![hit, miss], curve.color.mix(0.5).stroke_width(1)))?;
        area.draw(&Circle::new(hit, 6, curve.color.filled()))?;
        area.draw(&Circle::new(miss, 5, WHITE.filled()))?;
        area.draw(&Circle::new(miss, 5, curve.color.stroke_width(2)))?;
        spots.push(Spot { at: hit, text: curve.name.clone(), color: curve.color });
        rings.push(miss);
    }
    let corners = [(BY_BYTES.left, BY_BYTES.top), (BY_BYTES.right, BY_BYTES.bottom)];
    name_spots(area, corners, &spots, &rings)
}

/// A line through the layouts that no other beats in both READs and bytes of a hit.
fn frontier(area: &Area<'_>, points: &[(&Curve<'_>, &Row)], scale: &Scale) -> Painted<'static> {
    let mut best: Vec<&Row> = points
        .iter()
        .map(|(_, row)| *row)
        .filter(|row| {
            !points.iter().any(|(_, other)| {
                other.bytes_hit <= row.bytes_hit
                    && other.reads_hit <= row.reads_hit
                    && (other.bytes_hit < row.bytes_hit || other.reads_hit < row.reads_hit)
            })
        })
        .collect();
    best.sort_by(|a, b| a.bytes_hit.total_cmp(&b.bytes_hit));
    let points: Vec<_> = best.iter().map(|row| (scale.x.at(row.bytes_hit), scale.y(row.reads_hit))).collect();
    if points.len() > 1 { line(area, points, RGBColor(200, 200, 200), 7) } else { Ok(()) }
}

// ---- READs against load ------------------------------------------------------------------------------

fn by_load(
    area: &Area<'_>,
    curves: &[Curve<'_>],
    panel: Panel,
    title: &str,
    reads: impl Fn(&Row) -> f64,
) -> Painted<'static> {
    let loads = || curves.iter().flat_map(|c| &c.rows).map(|row| row.load_true);
    let low = loads().fold(1.0, f64::min);
    let high = loads().fold(0.0, f64::max);
    let low = ((low - 0.02).max(0.0) * 10.0).floor() / 10.0;
    let high = if high > 0.9 { 1.0 } else { ((high + 0.02) * 10.0).ceil() / 10.0 };
    let scale = Scale::new(panel, (low, high), false, reads_max(curves));
    panel.title(area, title)?;
    scale.read_lines(area)?;
    let steps = ((high - low) * 10.0).round() as i32;
    for step in 0..=steps {
        let load = low + f64::from(step) / 10.0;
        panel.upwards(area, scale.x.at(load), &format!("{:.0} %", 100.0 * load))?;
    }
    panel.below(area, "keys / all slots in use, overflow included")?;
    let mut labels = Vec::new();
    for curve in curves {
        let at = |row: &&Row| (scale.x.at(row.load_true), scale.y(reads(row)));
        let points: Vec<_> = curve.rows.iter().map(at).collect();
        line(area, points.clone(), curve.color, 2)?;
        for &point in &points {
            area.draw(&Circle::new(point, 3, curve.color.filled()))?;
        }
        labels.extend(points.last().map(|&end| Label::new(&curve.name, curve.color, end)));
    }
    name_ends(area, panel, labels)
}

// ---- scales ------------------------------------------------------------------------------------------

/// The axes of one panel. READs are drawn by what is beyond the first.
struct Scale {
    panel: Panel,
    x: Axis,
    y: Axis,
    reads_max: f64,
}

fn reads_max(curves: &[Curve<'_>]) -> f64 {
    curves.iter().flat_map(|c| &c.rows).map(|r| r.reads_hit.max(r.reads_miss)).fold(2.0, f64::max)
}

impl Scale {
    /// From the least to the most of what is drawn to the right.
    fn new(panel: Panel, (low, high): (f64, f64), log: bool, reads_max: f64) -> Scale {
        let x = Axis { low, high, from: panel.left, to: panel.right, log };
        // A tenth of a power of ten above the most.
        let high = (reads_max - 1.0) * 10f64.powf(0.1);
        let y = Axis { low: EXCESS_MIN, high, from: panel.bottom, to: panel.top, log: true };
        Scale { panel, x, y, reads_max }
    }

    fn y(&self, reads: f64) -> i32 {
        self.y.at(reads - 1.0)
    }

    /// The horizontal lines, labelled in READs.
    fn read_lines(&self, area: &Area<'_>) -> Painted<'static> {
        let lines = [
            (1.0001, "≤ 1.0001"),
            (1.001, "1.001"),
            (1.01, "1.01"),
            (1.1, "1.1"),
            (1.3, "1.3"),
            (2.0, "2"),
            (3.0, "3"),
            (5.0, "5"),
            (10.0, "10"),
        ];
        let lines = lines.into_iter().filter(|(reads, _)| *reads <= self.reads_max * 1.02);
        lines.into_iter().try_for_each(|(reads, name)| self.panel.across(area, self.y(reads), name))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::measure::tests::row;

    /// A picture is well-formed, as wide as all, has colours for a dark page, and no text of it covers
    /// another or leaves it.
    pub fn check(svg: &str) {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        let root = document.root_element();
        let number = |node: &roxmltree::Node<'_, '_>, name| -> f64 {
            node.attribute(name).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{name} of {node:?}"))
        };
        let (width, height) = (number(&root, "width"), number(&root, "height"));
        assert_eq!(width, f64::from(WIDTH));
        let style = root.children().find(|node| node.has_tag_name("style")).and_then(|node| node.text());
        let style = style.unwrap_or_default();
        assert!(style.contains("@media (prefers-color-scheme: dark)"), "{style}");
        for node in root.descendants() {
            for what in ["fill", "stroke"] {
                let color = node.attribute(what).filter(|color| *color != "none");
                assert!(
                    color.is_none_or(|color| style.contains(&format!("[{what}=\"{color}\"]"))),
                    "{node:?}"
                );
            }
        }
        let texts: Vec<_> = root.descendants().filter(|node| node.has_tag_name("text")).collect();
        assert!(!texts.is_empty());
        let boxes: Vec<_> = texts
            .iter()
            .map(|node| {
                // Sizes of a drawing by hand are in its style.
                let size = match node.attribute("class") {
                    None if node.has_attribute("font-size") => number(node, "font-size"),
                    None => 15.0,
                    Some("big") => 18.0,
                    Some(_) => 13.5,
                };
                let (x, y) = (number(node, "x"), number(node, "y"));
                let said: String = node
                    .descendants()
                    .filter(roxmltree::Node::is_text)
                    .filter_map(|part| part.text())
                    .collect();
                let said = said.trim().to_owned();
                let wide = 0.55 * size * said.chars().count() as f64;
                let left = match node.attribute("text-anchor") {
                    Some("end") => x - wide,
                    Some("middle") => x - wide / 2.0,
                    _ => x,
                };
                (said, left, left + wide, y - 0.45 * size, y + 0.45 * size)
            })
            .collect();
        for (n, (said, left, right, top, bottom)) in boxes.iter().enumerate() {
            assert!(*left >= 0.0 && *right <= width && *top >= 0.0 && *bottom <= height, "{said} leaves");
            for (other, l, r, t, b) in &boxes[..n] {
                let is_beside = right <= l || r <= left || bottom <= t || b <= top;
                assert!(is_beside, "{said:?} covers {other:?}");
            }
        }
    }

    /// A dark page turns round what is dark and light, and leaves each colour its hue.
    #[test]
    fn colours_have_dark_counterparts() {
        let sum =
            |RGBColor(red, green, blue): RGBColor| [red, green, blue].map(u32::from).iter().sum::<u32>();
        let background = sum(dark(WHITE));
        assert!(background < 90);
        assert!(sum(dark(INK)) > 3 * 180);
        assert!((background + 30..3 * 90).contains(&sum(dark(FAINT))));
        for color in COLORS {
            let RGBColor(red, green, blue) = dark(color);
            assert!(sum(dark(color)) > 3 * 100, "{color:?}: {:?}", dark(color));
            let order = |all: [u8; 3]| (all[0] > all[1], all[1] > all[2], all[0] > all[2]);
            assert_eq!(order([red, green, blue]), order([color.0, color.1, color.2]), "{color:?}");
        }
    }

    /// The pictures of the documents follow the same rules.
    #[test]
    fn pictures_of_documents_are_legible() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let files = |folder: &Path| {
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        let all = [files(&docs), files(&docs.join("img"))].concat();
        let pictures: Vec<_> =
            all.iter().filter(|path| path.extension().is_some_and(|e| e == "svg")).collect();
        assert!(pictures.len() > 5);
        for path in pictures {
            println!("{}", path.display());
            check(&std::fs::read_to_string(path).unwrap());
        }
    }

    /// A file's ending says what is in it; another one is an error that says which to take.
    #[test]
    fn files_of_pictures_have_their_ending() {
        assert_eq!(svg_file("a/b.svg"), Ok(PathBuf::from("a/b.svg")));
        assert_eq!(html_file("p.HTML"), Ok(PathBuf::from("p.HTML")));
        for bad in ["a.png", "svg", "a.html", ""] {
            let error = svg_file(bad).unwrap_err();
            assert!(error.ends_with("name a file that ends in .svg"), "{error}");
        }
        assert!(html_file("a.svg").is_err());
    }

    /// Points that lie on one another have names that do not, each nearest to its own.
    #[test]
    fn names_of_crowded_points_stay_apart() {
        let spot =
            |n: i32| Spot { at: (400 + n % 3, 300), text: format!("a layout with number {n}"), color: INK };
        let spots: Vec<_> = (0..16).map(spot).collect();
        let drawn = svg(600, |area| name_spots(area, [(0, 0), (830, 600)], &spots, &[(405, 315)])).unwrap();
        check(&drawn);
        assert_eq!(drawn.matches("<text").count(), 16);
    }

    fn drawn(rows: &[Row]) -> String {
        let drawn = draw(rows).unwrap();
        check(&drawn);
        // What it says, also where a sentence goes on in the next line.
        let document = roxmltree::Document::parse(&drawn).unwrap();
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.filter_map(|node| node.text()).map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// The picture says of which tables, keys and load it is.
    #[test]
    fn pictures_say_what_they_are_of() {
        let all = |phase, keys, load_asked| {
            [0.5, 0.8].map(|load_true| Row { phase, keys, load_asked, load_true, ..row(None) })
        };
        let [steady, fresh] =
            ["after two deletes and two inserts for each key", "tables filled by inserts alone"];
        let [uniform, zipf] = ["every key asked for equally often", "law (0.99)"];
        let highest = "READs by bytes of a GET, at the highest load";
        let (percent, mut all_rows) = ("READs by bytes of a GET, at 75 % of the main slots", Vec::new());
        for (phase, keys, load, said) in [
            (Phase::Fresh, Keys::Zipf, None, [fresh, zipf, highest]),
            (Phase::Fresh, Keys::Uniform, Some(0.75), [fresh, uniform, percent]),
            (Phase::Steady, Keys::Uniform, None, [steady, uniform, highest]),
        ] {
            let rows = all(phase, keys, load);
            let drawn = drawn(&rows);
            for text in [steady, fresh, uniform, zipf, highest, percent] {
                assert_eq!(drawn.contains(text), said.contains(&text), "{phase:?} {keys:?} {load:?}: {text}");
            }
            all_rows.extend(rows);
        }
        // Of several, the steady ones, and the keys that are asked for equally often.
        let both = drawn(&all_rows);
        assert!(both.contains(steady) && both.contains(uniform));
    }

    /// Dashes are as long as the gaps between them, and none goes on beyond the line's end.
    #[test]
    fn dashes_end_with_their_line() {
        assert_eq!(dashes((10, 5), (28, 5)), [[(10, 5), (16, 5)], [(22, 5), (28, 5)]]);
        assert_eq!(dashes((10, 5), (24, 5)), [[(10, 5), (16, 5)], [(22, 5), (24, 5)]]);
        assert_eq!(dashes((0, 9), (0, 0)), [[(0, 9), (0, 3)]]);
        assert_eq!(dashes((0, 0), (3, -4)), [[(0, 0), (3, -4)]]);
    }

    /// Labels keep their order and their distance, and stay beside the panel.
    #[test]
    fn labels_do_not_cover_each_other() {
        const TOP: i32 = 130;
        const BOTTOM: i32 = 780;
        let label = |y: i32| Label::new("", INK, (0, y));
        let mut labels: Vec<_> = [BOTTOM, 300, 301, TOP, BOTTOM, 302].map(label).into();
        spread(&mut labels, Panel { left: 0, right: 100, top: TOP, bottom: BOTTOM });
        let ends: Vec<_> = labels.iter().map(|label| label.end.1).collect();
        assert_eq!(ends, [TOP, 300, 301, 302, BOTTOM, BOTTOM]);
        for pair in labels.windows(2) {
            assert!(pair[1].y - pair[0].y > LABEL_GAP - 0.1, "{} {}", pair[0].y, pair[1].y);
        }
        assert!(labels[0].y >= f64::from(TOP) && labels[5].y <= f64::from(BOTTOM) + 8.0);
        // Those in the middle moved as little as they had to.
        assert!((labels[2].y - 301.0).abs() < 1.0, "{}", labels[2].y);
    }
}
