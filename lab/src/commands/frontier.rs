//! Draws `layouts --hints`: bytes per hit against client memory per key, with READs per hit beside
//! each point, and published designs among them.

use crate::measure::{Phase, Row};
use crate::plot::{Area, Axis, BLUE, Painted, Panel, RED, Spot, heading, name_spots, svg};
use anyhow::{Result, ensure};
use plotters::prelude::*;

const HEIGHT: u32 = 600;
const PANEL: Panel = Panel { left: 60, right: 800, top: 120, bottom: 540 };
/// The scales of bytes per hit, from 2^5 to 2^11, and of client memory per key.
const X: Axis = Axis { low: 32.0, high: 2048.0, from: PANEL.left, to: PANEL.right, log: true };
const Y: Axis = Axis { low: 0.0, high: 2.5, from: PANEL.bottom, to: PANEL.top, log: false };

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
pub fn draw(rows: &[Row]) -> Result<String> {
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
    ensure!(
        !points.is_empty(),
        "no layout in which hints save something was measured at 90 % load; ask for it with --load 90"
    );
    points.extend(DESIGNS.map(|(name, bytes, memory, reads)| Point {
        name: name.into(),
        bytes,
        memory,
        reads: reads.into(),
        color: BLUE,
    }));
    svg(HEIGHT, |area| paint(area, &points))
}

fn paint(area: &Area<'_>, points: &[Point]) -> Painted<'static> {
    let about = "red: counted here at 90 % of the main slots; blue: published; slots of 64 bytes";
    heading(area, "What a hit costs: bytes over the wire and client memory", about)?;
    for bytes in (5..=11).map(|power| 1 << power) {
        PANEL.upwards(area, X.at(bytes.into()), &bytes.to_string())?;
    }
    Y.ticks().into_iter().try_for_each(|memory| PANEL.across(area, Y.at(memory), &format!("{memory:.1}")))?;
    PANEL.below(area, "bytes of a hit")?;
    PANEL.title(area, "client bytes per key")?;
    let spots: Vec<_> = points
        .iter()
        .map(|point| Spot {
            at: (X.at(point.bytes), Y.at(point.memory)),
            text: format!("{}: {}", point.name, point.reads),
            color: point.color,
        })
        .collect();
    for spot in &spots {
        area.draw(&Circle::new(spot.at, 6, spot.color.filled()))?;
    }
    name_spots(area, [(PANEL.left, PANEL.top), (PANEL.right, PANEL.bottom)], &spots, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::HintedHits;
    use crate::measure::tests::row;
    use crate::plot::tests::check;

    /// A table's point, and that with hints, are where their bytes and memory are on the scales.
    #[test]
    fn points_are_where_they_were_measured() {
        let hinted = HintedHits { reads: 1.0, bytes: 64.0, trips: 1.0, client_bytes_per_key: 1.25 };
        let row = Row { load_asked: Some(0.9), bytes_hit: 128.0, ..row(Some(hinted)) };
        let drawn = draw(&[row]).unwrap();
        check(&drawn);
        // Of the powers 5 to 11, 64 is one sixth from the left, and 128 two; 1.25 is half way up.
        let Panel { left, right, top, bottom } = PANEL;
        let part = |n: f64| left + (f64::from(right - left) * n).round() as i32;
        for at in [(part(1.0 / 6.0), (top + bottom) / 2), (part(1.0 / 3.0), bottom)] {
            let circle = format!("<circle cx=\"{}\" cy=\"{}\"", at.0, at.1);
            assert!(drawn.contains(&circle), "{circle} is not in {drawn}");
        }
    }
}
