//! Draws the results of `layouts`: READs per GET against load, and against bytes per GET.
//!
//! The READs beyond the first are drawn on a logarithmic scale. It shows whether one GET in ten
//! needs another round trip, or one in a thousand.

use super::measure::{Keys, Phase, Row};
use anyhow::{Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::element::PathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) const SIZE: (u32, u32) = (1500, 860);
pub(super) const INK: RGBColor = RGBColor(40, 40, 40);
pub(super) const FAINT: RGBColor = RGBColor(225, 225, 225);
pub(super) const RED: RGBColor = RGBColor(214, 39, 40);
pub(super) const ORANGE: RGBColor = RGBColor(240, 120, 20);
pub(super) const BLUE: RGBColor = RGBColor(20, 90, 180);
pub(super) const TEAL: RGBColor = RGBColor(0, 150, 170);
pub(super) const GREEN: RGBColor = RGBColor(30, 140, 60);
pub(super) const TOP: i32 = 130;
pub(super) const BOTTOM: i32 = 780;
/// Pixels between the baselines of two labels.
const LABEL_GAP: f64 = 16.0;
/// The lower end of the scale of READs beyond the first. Smaller values are drawn there.
const EXCESS_MIN: f64 = 1e-4;

/// One layout's rows, ordered by load.
struct Curve<'a> {
    name: String,
    color: RGBColor,
    rows: Vec<&'a Row>,
}

/// Draws the steady rows, or the fresh ones if there are no others, into an SVG file.
pub fn draw(path: &Path, rows: &[Row]) -> Result<()> {
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
    ensure!(!curves.is_empty(), "there is nothing to draw");
    to_file(path, SIZE, |area| paint(area, &curves, phase, keys))
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

pub(super) type Painted<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// Paints a picture on white into an SVG file.
pub(super) fn to_file<'a>(
    path: &'a Path,
    size: (u32, u32),
    paint: impl FnOnce(&Area<'a>) -> Painted<'a>,
) -> Result<()> {
    let area = SVGBackend::new(path, size).into_drawing_area();
    let painted = area.fill(&WHITE).and_then(|()| paint(&area)).and_then(|()| area.present());
    painted.map_err(|e| anyhow!("{e}"))
}

fn paint<'a>(area: &Area<'a>, curves: &[Curve<'_>], phase: Phase, keys: Keys) -> Painted<'a> {
    let phase = match phase {
        Phase::Fresh => "tables filled by inserts alone",
        Phase::Steady => "after two deletes and two inserts for each key",
    };
    let keys = match keys {
        Keys::Uniform => "every key asked for equally often",
        Keys::Zipf => "keys asked for by Zipf's law (0.99)",
    };
    let slots = curves.iter().flat_map(|c| &c.rows).map(|r| r.main_slots).max().unwrap_or(0);
    let about = format!(
        "Counted READs of one-sided GETs; {} slots of 64 bytes; {phase}; {keys}",
        super::show::count(slots)
    );
    text(area, "What a GET costs, layout by layout", (40, 40), 24, INK, HPos::Left)?;
    text(area, &about, (40, 68), 15, INK, HPos::Left)?;
    by_load(area, curves)?;
    by_bytes(area, curves)
}

// ---- left: READs against load ------------------------------------------------------------------------

fn by_load<'a>(area: &Area<'a>, curves: &[Curve<'_>]) -> Painted<'a> {
    let loads = || curves.iter().flat_map(|c| &c.rows).map(|row| row.load_true);
    let low = loads().fold(1.0, f64::min);
    let high = loads().fold(0.0, f64::max);
    let low = ((low - 0.02).max(0.0) * 10.0).floor() / 10.0;
    let high = if high > 0.9 { 1.0 } else { ((high + 0.02) * 10.0).ceil() / 10.0 };
    let scale = Scale { left: 90, right: 560, low, high, reads_max: reads_max(curves) };
    text(
        area,
        "READs per GET by true load: solid a hit, dashed a miss",
        (90, TOP - 18),
        16,
        INK,
        HPos::Left,
    )?;
    scale.read_lines(area)?;
    let steps = ((high - low) * 10.0).round() as i32;
    for step in 0..=steps {
        let load = low + f64::from(step) / 10.0;
        scale.tick(area, load, &format!("{:.0} %", 100.0 * load))?;
    }
    text(area, "keys / all slots in use, overflow included", (325, BOTTOM + 48), 14, INK, HPos::Center)?;

    let mut labels = Vec::new();
    for curve in curves {
        for miss in [false, true] {
            let reads = |row: &Row| if miss { row.reads_miss } else { row.reads_hit };
            let points: Vec<_> =
                curve.rows.iter().map(|row| (scale.x(row.load_true), scale.y(reads(row)))).collect();
            if miss {
                dashed(area, &points, curve.color)?;
            } else {
                area.draw(&PathElement::new(points.clone(), curve.color.stroke_width(2)))?;
            }
            for &point in &points {
                area.draw(&Circle::new(point, if miss { 2 } else { 3 }, curve.color.filled()))?;
            }
            let Some(&end) = points.last() else { continue };
            let name = if miss { format!("{} miss", curve.name) } else { curve.name.clone() };
            labels.push(Label { text: name, color: curve.color, end, y: f64::from(end.1) });
        }
    }
    name_ends(area, scale.right, labels)
}

/// Names curves to the right of a panel that ends at `right`, each with a line from its end.
pub(super) fn name_ends<'a>(area: &Area<'a>, right: i32, mut labels: Vec<Label>) -> Painted<'a> {
    spread(&mut labels);
    for label in &labels {
        let at = (right + 34, label.y.round() as i32);
        let line = vec![label.end, (right + 14, at.1), (at.0 - 4, at.1)];
        area.draw(&PathElement::new(line, label.color.mix(0.35).stroke_width(1)))?;
        text(area, &label.text, at, 13, label.color, HPos::Left)?;
    }
    Ok(())
}

pub(super) struct Label {
    pub text: String,
    pub color: RGBColor,
    /// Where the curve ends.
    pub end: (i32, i32),
    /// Where the label is.
    pub y: f64,
}

/// Moves labels apart, each as little as possible, and keeps the order of the curves' ends.
fn spread(labels: &mut [Label]) {
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
            let low = f64::from(TOP) + LABEL_GAP * n as f64;
            let high = f64::from(BOTTOM) + 8.0 - LABEL_GAP * (last - n) as f64;
            label.y = label.y.clamp(low.min(high), high);
        }
        if !moved {
            break;
        }
    }
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

// ---- right: READs against bytes ----------------------------------------------------------------------

fn by_bytes<'a>(area: &Area<'a>, curves: &[Curve<'_>]) -> Painted<'a> {
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
    let scale = Scale { left: 860, right: 1450, low, high, reads_max: reads_max(curves) };
    let title = if load > 0.0 {
        format!("READs by bytes per GET at {:.0} % of the main slots: dot a hit, ring a miss", 100.0 * load)
    } else {
        "READs by bytes per GET at the highest load: dot a hit, ring a miss".into()
    };
    text(area, &title, (860, TOP - 18), 16, INK, HPos::Left)?;
    scale.read_lines(area)?;
    for power in (low.ceil() as i32)..=(high.floor() as i32) {
        scale.tick(area, f64::from(power), &format!("{}", 1u64 << power))?;
    }
    text(area, "bytes per GET", (1155, BOTTOM + 48), 14, INK, HPos::Center)?;

    frontier(area, &points, &scale)?;
    let mut taken: Vec<(i32, i32, i32)> = Vec::new();
    let spots: Vec<_> = points
        .iter()
        .map(|(_, row)| {
            let hit = (scale.x(row.bytes_hit.log2()), scale.y(row.reads_hit));
            (hit, (scale.x(row.bytes_miss.log2()), scale.y(row.reads_miss)))
        })
        .collect();
    for ((curve, _), &(hit, miss)) in points.iter().zip(&spots) {
        area.draw(&PathElement::new(vec![hit, miss], curve.color.mix(0.5).stroke_width(1)))?;
        area.draw(&Circle::new(hit, 6, curve.color.filled()))?;
        area.draw(&Circle::new(miss, 5, WHITE.filled()))?;
        area.draw(&Circle::new(miss, 5, curve.color.stroke_width(2)))?;
        taken.extend([(hit.0 - 6, hit.0 + 6, hit.1), (miss.0 - 6, miss.0 + 6, miss.1)]);
    }
    // Each label takes the first free place around its dot.
    for ((curve, _), &(hit, _)) in points.iter().zip(&spots) {
        let width = 7 * curve.name.len() as i32;
        let places = [0, -14, 14, -28, 28, -42, 42, -56, 56]
            .into_iter()
            .flat_map(|dy| [(hit.0 + 11, hit.1 + dy), (hit.0 - 11 - width, hit.1 + dy)]);
        let is_free = |&(x, y): &(i32, i32)| {
            let inside = x > scale.left && x + width < scale.right + 40 && y > TOP && y < BOTTOM + 8;
            inside && taken.iter().all(|&(l, r, ty)| x + width < l || x > r || (y - ty).abs() >= 13)
        };
        let at = places.clone().find(is_free).unwrap_or((hit.0 + 11, hit.1));
        taken.push((at.0, at.0 + width, at.1));
        text(area, &curve.name, at, 13, curve.color, HPos::Left)?;
    }
    Ok(())
}

/// A line through the layouts that no other beats in both READs and bytes of a hit.
fn frontier<'a>(area: &Area<'a>, points: &[(&Curve<'_>, &Row)], scale: &Scale) -> Painted<'a> {
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
    let line: Vec<_> =
        best.iter().map(|row| (scale.x(row.bytes_hit.log2()), scale.y(row.reads_hit))).collect();
    if line.len() > 1 {
        area.draw(&PathElement::new(line, RGBColor(200, 200, 200).stroke_width(7)))?;
    }
    text(
        area,
        "grey band: hits that no other layout beats in both",
        (scale.right, TOP + 16),
        13,
        INK,
        HPos::Right,
    )
}

// ---- scales ------------------------------------------------------------------------------------------

/// Maps numbers to pixels in one panel.
struct Scale {
    left: i32,
    right: i32,
    low: f64,
    high: f64,
    reads_max: f64,
}

fn reads_max(curves: &[Curve<'_>]) -> f64 {
    curves.iter().flat_map(|c| &c.rows).map(|r| r.reads_hit.max(r.reads_miss)).fold(2.0, f64::max)
}

impl Scale {
    fn x(&self, value: f64) -> i32 {
        let part = (value - self.low) / (self.high - self.low);
        self.left + (part * f64::from(self.right - self.left)).round() as i32
    }

    fn y(&self, reads: f64) -> i32 {
        let low = EXCESS_MIN.log10();
        let high = (self.reads_max - 1.0).log10() + 0.1;
        let part = ((reads - 1.0).max(EXCESS_MIN).log10() - low) / (high - low);
        BOTTOM - (part * f64::from(BOTTOM - TOP)).round() as i32
    }

    /// The horizontal lines, labelled in READs.
    fn read_lines<'a>(&self, area: &Area<'a>) -> Painted<'a> {
        let lines = [
            (1.0001, "1.0001 or less"),
            (1.001, "1.001"),
            (1.01, "1.01"),
            (1.1, "1.1"),
            (1.3, "1.3"),
            (2.0, "2"),
            (3.0, "3"),
            (5.0, "5"),
            (10.0, "10"),
        ];
        for (reads, name) in lines.into_iter().filter(|(reads, _)| *reads <= self.reads_max * 1.02) {
            let y = self.y(reads);
            area.draw(&PathElement::new(vec![(self.left, y), (self.right, y)], FAINT.stroke_width(1)))?;
            if reads == 1.0001 {
                text(area, "1.0001", (self.left - 8, y - 7), 13, INK, HPos::Right)?;
                text(area, "or less", (self.left - 8, y + 8), 13, INK, HPos::Right)?;
            } else {
                text(area, name, (self.left - 8, y), 13, INK, HPos::Right)?;
            }
        }
        Ok(())
    }

    fn tick<'a>(&self, area: &Area<'a>, value: f64, name: &str) -> Painted<'a> {
        let x = self.x(value);
        area.draw(&PathElement::new(vec![(x, TOP), (x, BOTTOM)], FAINT.stroke_width(1)))?;
        text(area, name, (x, BOTTOM + 22), 13, INK, HPos::Center)
    }
}

pub(super) fn text<'a>(
    area: &Area<'a>,
    what: &str,
    at: (i32, i32),
    size: i32,
    color: RGBColor,
    side: HPos,
) -> Painted<'a> {
    let style =
        TextStyle::from(("sans-serif", size).into_font()).color(&color).pos(Pos::new(side, VPos::Center));
    area.draw_text(what, &style, at)
}

#[cfg(test)]
mod tests {
    use super::super::layouts::tests::row;
    use super::*;

    fn drawn(rows: &[Row]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reads.svg");
        draw(&path, rows).unwrap();
        std::fs::read_to_string(path).unwrap()
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
        let highest = "READs by bytes per GET at the highest load";
        let (percent, mut all_rows) = ("READs by bytes per GET at 75 % of the main slots", Vec::new());
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
        let label = |y: i32| Label { text: String::new(), color: INK, end: (0, y), y: f64::from(y) };
        let mut labels: Vec<_> = [BOTTOM, 300, 301, TOP, BOTTOM, 302].map(label).into();
        spread(&mut labels);
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
