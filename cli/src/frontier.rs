//! Draws `layouts --hints`: bytes per hit against client memory per key, with READs per hit beside
//! each point, and published designs among them.

use super::measure::{Phase, Row};
use super::plot::{Area, BLUE, FAINT, INK, Painted, RED, text, to_file};
use anyhow::{Result, ensure};
use plotters::element::PathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use std::path::Path;

const SIZE: (u32, u32) = (1100, 700);
const LEFT: i32 = 90;
const RIGHT: i32 = 1040;
const TOP: i32 = 110;
const BOTTOM: i32 = 600;
/// The scale of bytes per hit, as powers of two, and the highest client memory per key.
const POWERS: (i32, i32) = (5, 11);
const MEMORY_MAX: f64 = 2.5;

/// A design: bytes per hit, client bytes per key, and how it reads.
struct Point {
    name: String,
    bytes: f64,
    memory: f64,
    reads: String,
    color: RGBColor,
}

/// Published designs whose bytes per hit follow from their papers or code, for slots of 64 bytes or
/// values of 32 where they do not say; docs/LAYOUTS.md has the derivations. RCuckoo (ATC'25) has none:
/// what a READ fetches depends on the length of its rows, which its abstract does not tell.
const DESIGNS: [(&str, f64, f64, &str); 5] = [
    // Two combined buckets of two times 64, and the block.
    ("RACE (ATC'21)", 320.0, 0.0, "3 READs"),
    ("CHIME (SOSP'24), neighbourhood", 162.0, 1.75, "1 READ"),
    ("CHIME, hot entries", 64.0, 1.75, "1 READ"),
    ("CuckooDuo", 64.0, 2.15, "1 READ"),
    // A reply of 8 bytes and the value.
    ("Outback (VLDB'24)", 40.0, 0.5, "0 READs, an RPC"),
];

/// Draws the rows at the load nearest to 90 %, steady ones if there are any.
pub fn draw(path: &Path, rows: &[Row]) -> Result<()> {
    let steady = rows.iter().any(|row| row.phase == Phase::Steady);
    let mut points: Vec<Point> = Vec::new();
    let is_drawn = |row: &&Row| {
        (row.phase == Phase::Steady) == steady
            && row.load_asked.is_some_and(|load| (load - 0.9).abs() < 1e-9)
            && ["windowed:8", "windowed:16", "farm", "cluster", "pilaf"].contains(&&*row.preset)
    };
    for row in rows.iter().filter(is_drawn) {
        let Some(hinted) = row.hinted else { continue };
        let point = |name: String, bytes, memory, reads: f64| Point {
            name,
            bytes,
            memory,
            reads: format!("{reads:.3} READs"),
            color: RED,
        };
        points.push(point(row.preset.clone(), row.bytes_hit, 0.0, row.reads_hit));
        points.push(point(
            format!("{}, hints", row.preset),
            hinted.bytes,
            hinted.client_bytes_per_key,
            hinted.reads,
        ));
    }
    ensure!(!points.is_empty(), "there is nothing to draw: no table was measured at 90 % load");
    points.extend(DESIGNS.map(|(name, bytes, memory, reads)| Point {
        name: name.into(),
        bytes,
        memory,
        reads: reads.into(),
        color: BLUE,
    }));
    to_file(path, SIZE, |area| paint(area, &points))
}

fn x(bytes: f64) -> i32 {
    let part = (bytes.log2() - f64::from(POWERS.0)) / f64::from(POWERS.1 - POWERS.0);
    LEFT + (part * f64::from(RIGHT - LEFT)).round() as i32
}

fn y(memory: f64) -> i32 {
    BOTTOM - (memory / MEMORY_MAX * f64::from(BOTTOM - TOP)).round() as i32
}

fn paint<'a>(area: &Area<'a>, points: &[Point]) -> Painted<'a> {
    text(area, "What a hit costs: bytes over the wire and client memory", (40, 36), 24, INK, HPos::Left)?;
    let about = "red: counted here at 90 % of the main slots; blue: published; slots of 64 bytes";
    text(area, about, (40, 66), 15, INK, HPos::Left)?;
    for power in POWERS.0..=POWERS.1 {
        let at = x(f64::from(1 << power));
        area.draw(&PathElement::new(vec![(at, TOP), (at, BOTTOM)], FAINT.stroke_width(1)))?;
        text(area, &(1 << power).to_string(), (at, BOTTOM + 20), 13, INK, HPos::Center)?;
    }
    for half in 0..=5 {
        let memory = f64::from(half) / 2.0;
        area.draw(&PathElement::new(vec![(LEFT, y(memory)), (RIGHT, y(memory))], FAINT.stroke_width(1)))?;
        text(area, &format!("{memory:.1}"), (LEFT - 8, y(memory)), 13, INK, HPos::Right)?;
    }
    text(area, "bytes per hit", ((LEFT + RIGHT) / 2, BOTTOM + 46), 14, INK, HPos::Center)?;
    text(area, "client bytes per key", (40, TOP - 18), 14, INK, HPos::Left)?;
    let dot = |point: &Point| (x(point.bytes) - 6, x(point.bytes) + 6, y(point.memory));
    let mut taken: Vec<(i32, i32, i32)> = points.iter().map(dot).collect();
    for point in points {
        let at = (x(point.bytes), y(point.memory));
        area.draw(&Circle::new(at, 6, point.color.filled()))?;
        let label = format!("{}: {}", point.name, point.reads);
        let width = 7 * label.len() as i32;
        // Each label takes the first free place above or beside its dot.
        let spot = (0..24)
            .map(|step| (at.0 + 11, at.1 - 15 * step))
            .find(|&(left, up)| {
                taken.iter().all(|&(l, r, ty)| left + width < l || left > r || (up - ty).abs() >= 14)
            })
            .unwrap_or((at.0 + 11, at.1));
        taken.push((spot.0, spot.0 + width, spot.1));
        let line = vec![at, (spot.0 - 3, spot.1)];
        area.draw(&PathElement::new(line, point.color.mix(0.3).stroke_width(1)))?;
        text(area, &label, spot, 13, point.color, HPos::Left)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::layouts::tests::row;
    use super::super::measure::HintedHits;
    use super::*;

    /// A table's point, and that with hints, are where their bytes and memory are on the scales.
    #[test]
    fn points_are_where_they_were_measured() {
        let hinted = HintedHits { reads: 1.0, bytes: 64.0, trips: 1.0, client_bytes_per_key: 1.25 };
        let row = Row { load_asked: Some(0.9), bytes_hit: 128.0, ..row(Some(hinted)) };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hints.svg");
        draw(&path, &[row]).unwrap();
        let drawn = std::fs::read_to_string(path).unwrap();
        // Of the powers 5 to 11, 64 is one sixth from the left, and 128 two; 1.25 is half way up.
        let (one, two) = (LEFT + (RIGHT - LEFT) / 6, LEFT + (RIGHT - LEFT) / 3 + 1);
        for at in [(one, (TOP + BOTTOM) / 2), (two, BOTTOM)] {
            let circle = format!("<circle cx=\"{}\" cy=\"{}\"", at.0, at.1);
            assert!(drawn.contains(&circle), "{circle} is not in {drawn}");
        }
    }
}
