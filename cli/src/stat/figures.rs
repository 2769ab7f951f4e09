//! Figures of a table that several commands tell.

use comfy_table::ColumnConstraint;
use oneread::internals::layout::control::Phase;
use oneread::internals::layout::geometry::Geometry;
use oneread_kit::show;
use serde_json::json;

/// No value is broken over lines: where there is little room, names are.
pub fn unbroken(mut table: comfy_table::Table) -> comfy_table::Table {
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_constraint(ColumnConstraint::ContentWidth);
    });
    table
}

pub fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Retired => "retired",
        Phase::Stopped => "stopped",
    }
}

pub fn geometry_json(geometry: &Geometry) -> serde_json::Value {
    json!({
        "layout": geometry.layout().to_string(),
        "main_slots": geometry.main_slots(),
        "slots": geometry.slots(),
        "slot_bytes": geometry.shape().bytes(),
        "window_slots": geometry.layout().window_slots(),
        "window_bytes": geometry.window_bytes(geometry.window(0)),
        "overflow_blocks": geometry.overflow_blocks(),
        "key_max": geometry.key_max(),
        "value_max": geometry.value_max(),
        "heap_bytes": geometry.heap().bytes,
        "grace_us": geometry.grace().as_micros() as u64,
        "segments_max": geometry.segments_max(),
        "region_bytes": geometry.region_bytes(),
    })
}

pub fn add_geometry(table: &mut comfy_table::Table, geometry: &Geometry) {
    let layout = geometry.layout();
    let window = geometry.window_bytes(geometry.window(0));
    let main = show::count(geometry.main_slots());
    let over = geometry.overflow_blocks() * u64::from(layout.block_slots);
    let slots = if over == 0 { main } else { format!("{main} and {} overflow", show::count(over)) };
    let (slots_of, region) = match geometry.grows() {
        true => ("slots of a segment", "region, all that it may take"),
        false => ("slots", "region"),
    };
    let rows = [
        ("layout", layout.to_string()),
        (slots_of, slots),
        ("one slot", format!("{} bytes", geometry.shape().bytes())),
        (
            "one READ",
            format!("{}, {} bytes", show::counted(layout.window_slots().into(), "slot"), show::count(window)),
        ),
        ("longest key", show::counted(geometry.key_max() as u64, "byte")),
        ("longest value", show::counted(geometry.value_max() as u64, "byte")),
        ("grace time", format!("{:?}", geometry.grace())),
        (region, show::bytes(geometry.region_bytes())),
    ];
    table.add_rows(rows.map(|(name, value)| show::fact(name, value)));
}

pub fn age(seconds: u64) -> String {
    format!("{} ago", span(seconds))
}

/// A time in the unit that leaves at least two of it.
pub fn span(seconds: u64) -> String {
    match seconds {
        s if s < 120 => show::counted(s, "second"),
        s if s < 7200 => format!("{} minutes", s / 60),
        s if s < 172_800 => format!("{} hours", s / 3600),
        s => format!("{} days", s / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An age is told in the unit that leaves at least two of it.
    #[test]
    fn ages_have_units() {
        for (seconds, told) in [
            (1, "1 second ago"),
            (119, "119 seconds ago"),
            (120, "2 minutes ago"),
            (7_199, "119 minutes ago"),
            (7_200, "2 hours ago"),
            (172_799, "47 hours ago"),
            (172_800, "2 days ago"),
        ] {
            assert_eq!(age(seconds), told);
        }
    }

    /// Overflow slots are told beside the main slots, and are not among them.
    #[test]
    fn overflow_slots_are_told_apart() {
        let slots = |layout: &str| {
            let config = oneread::Config::new().size(oneread::TableSize::Slots(8_000));
            let geometry = config.layout(layout.parse().unwrap()).geometry().unwrap();
            let mut table = show::facts();
            add_geometry(&mut table, &geometry);
            let rows = show::cells(&table);
            let told = rows.iter().find(|row| row[0] == "slots").map(|row| row[1].clone()).unwrap();
            (told, geometry.main_slots(), geometry.slots() - geometry.main_slots())
        };
        let (told, main, overflow) = slots("chained:cluster");
        assert!(overflow > 0);
        assert_eq!(told, format!("{} and {} overflow", show::count(main), show::count(overflow)));
        let (told, main, overflow) = slots("windowed:8");
        assert_eq!((told, overflow), (show::count(main), 0));
    }
}
