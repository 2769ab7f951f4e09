//! `inspect`: the content of the region.

use super::figures::{add_geometry, age, geometry_json, phase, unbroken};
use crate::columns::{Column, Columns};
use crate::source::Source;
use anyhow::{Context, Result};
use clap::Args;
use comfy_table::Cell;
use oneread::internals::inspect::{Inspector, KeyReport, Occupancy, SlotReport};
use oneread::internals::layout::control::Phase;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::layout::slot::Torn;
use oneread::internals::layout::superblock::Superblock;
use oneread_kit::progress::Progress;
use oneread_kit::show;
use serde_json::json;
use std::process::ExitCode;

/// Look into a table: superblock, slots in use, the windows of a key
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread inspect  superblock, and slots counted by what they hold
  oneread inspect --key greeting --quick
      where a GET of this key looks, slot by slot
  oneread inspect --region /dev/shm/t.region
      a file, whether or not a server has it open

Asks the server only for the region. With --region it asks no server.")]
pub struct Inspect {
    #[command(flatten)]
    source: Source,
    /// Show this key's windows slot by slot
    #[arg(long)]
    key: Option<String>,
    /// The key is in hex
    #[arg(long, requires = "key")]
    hex: bool,
    /// Do not read and count the whole table
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a GET of one key finds.
pub struct KeyView {
    key: Vec<u8>,
    /// The slots of each window.
    windows: Vec<Vec<SlotReport>>,
    /// Whether the home's filter sends a GET beyond the first window.
    filter: bool,
}

impl KeyView {
    fn read(inspector: &Inspector<'_>, key: Vec<u8>) -> KeyView {
        let KeyReport { windows, filter } = inspector.key(&key);
        KeyView { key, windows, filter }
    }

    fn is_match(&self, slot: &SlotReport) -> bool {
        slot.verdict.is_ok() && slot.key == self.key
    }

    fn found_in(&self) -> Option<usize> {
        self.windows.iter().position(|slots| slots.iter().any(|slot| self.is_match(slot)))
    }

    /// READs of a GET that no change disturbs.
    fn reads(&self) -> usize {
        match self.found_in() {
            Some(window) => window + 1,
            None if self.filter => self.windows.len(),
            None => 1,
        }
    }
}

impl Inspect {
    pub fn run(self) -> Result<ExitCode> {
        let opened = self.source.open()?;
        let inspector = opened.inspector();
        let (geometry, superblock) = Inspector::superblock(opened.region()).with_context(|| opened.name())?;
        let key = match &self.key {
            Some(text) if self.hex => Some(crate::records::from_hex(text).map_err(anyhow::Error::msg)?),
            Some(text) => Some(text.clone().into_bytes()),
            None => None,
        };
        if let Some(key) = &key {
            let max = geometry.key_max();
            anyhow::ensure!(
                !key.is_empty() && key.len() <= max,
                "the key is {} bytes long, this table takes 1 to {max}",
                key.len()
            );
        }
        let occupancy = (!self.quick).then(|| {
            let bar = Progress::of(inspector.slots_used(), "reading the table", "slots");
            let found = inspector.occupancy(|slot| {
                if slot.is_multiple_of(4096) {
                    bar.set_position(slot);
                }
            });
            bar.finish();
            found
        });
        let key = key.map(|key| KeyView::read(&inspector, key));
        let told = json!({
            "source": opened.name(),
            "segments": inspector.segments_named(),
            "superblock": superblock_json(&superblock, &geometry),
            "phase": phase(inspector.state().phase),
            "moves_begun": inspector.moves_begun(),
            "huge_page_bytes": opened.region().huge_bytes(),
            "occupancy": occupancy.map(|found| json!({
                "live_main": found.live_main,
                "live_overflow": found.live_overflow,
                "displaced": found.displaced,
                "ghosts": found.ghosts,
                "filters": found.filters,
                "torn": found.torn,
            })),
            "key": key.as_ref().map(key_json),
        });
        show::outcome(self.json, &told, || {
            // What is asked for comes first.
            if let Some(key) = &key {
                show::say(key_story(key))?;
                show::lay_out(key_table(key).text())?;
                show::say("")?;
            }
            show::say(format_args!("table at {}", show::name(opened.name())))?;
            if let Some(found) = occupancy {
                show::lay_out(occupancy_table(&found, &geometry, inspector.segments_named()))?;
            }
            let huge = opened.region().huge_bytes();
            show::lay_out(superblock_table(&superblock, &geometry, &inspector, huge))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

pub fn verdict(slot: &SlotReport) -> &'static str {
    match slot.verdict {
        Ok(()) if slot.key.is_empty() => "free",
        Ok(()) => "ok",
        Err(Torn::Writing) => "being written",
        Err(Torn::Stamps) => "torn: stamps differ",
        Err(Torn::Lengths) => "torn: lengths",
        Err(Torn::Crc) => "torn: checksum",
    }
}

pub fn superblock_json(superblock: &Superblock, geometry: &Geometry) -> serde_json::Value {
    let mut out = geometry_json(geometry);
    out["version"] = json!(superblock.version);
    out["generation"] = json!(superblock.generation);
    out["homes"] = json!(superblock.homes);
    out["table_offset"] = json!(superblock.table_offset);
    out["created"] = json!(superblock.created);
    out["crc"] = json!(superblock.crc);
    out
}

pub fn superblock_table(
    superblock: &Superblock,
    geometry: &Geometry,
    inspector: &Inspector<'_>,
    huge: u64,
) -> comfy_table::Table {
    let mut table = show::facts();
    let state = inspector.state();
    let state = match state.phase {
        Phase::Serving => format!("in service, or left so by server {}", state.incarnation),
        other => format!("{} (server {})", phase(other), state.incarnation),
    };
    table.add_rows([
        show::fact("state", state),
        show::fact("format", format_args!("version {}", superblock.version)),
        show::fact("made", ago(superblock.created)),
        show::fact("moves begun", show::count(inspector.moves_begun())),
    ]);
    if geometry.grows() {
        let segments = show::count(inspector.segments_named());
        let most = show::count(geometry.segments_max());
        table.add_row(show::fact("segments", format_args!("{segments} of up to {most}")));
    }
    add_geometry(&mut table, geometry);
    // Of what was read: pages are mapped when they are touched.
    table.add_row(show::fact("of it read in huge pages", show::bytes(huge)));
    unbroken(table)
}

pub fn ago(created: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    age(now.saturating_sub(created))
}

pub fn occupancy_table(found: &Occupancy, geometry: &Geometry, segments: u64) -> comfy_table::Table {
    let mut table = show::table(["slots", "count", "of main slots"]);
    let main = (geometry.main_slots() * segments) as f64;
    let mut row = |what: &str, n: u64| {
        table.add_row(vec![
            Cell::new(what),
            show::number(show::count(n)),
            show::number(format_args!("{:.2} %", 100.0 * n as f64 / main)),
        ]);
    };
    row("with a key", found.live_main);
    if geometry.layout().block_slots > 0 {
        row("overflow slots with a key", found.live_overflow);
    }
    row("keys outside their first window", found.displaced);
    row("homes whose filter names one", found.filters);
    row("with a ghost of a moved key", found.ghosts);
    row("not acceptable to a reader", found.torn);
    unbroken(table)
}

pub fn key_story(key: &KeyView) -> String {
    let name = show::text(&key.key, 40);
    let reads = show::counted(key.reads() as u64, "READ");
    match key.found_in() {
        Some(0) => format!("key \"{name}\": found in its first window, {reads}"),
        Some(n) => format!("key \"{name}\": found in window {n}, where the filter sends a GET; {reads}"),
        None if key.filter => format!(
            "key \"{name}\": absent, {reads}: the filter names a displaced key with the same bit, so a GET looks on"
        ),
        None => {
            format!("key \"{name}\": absent, {reads}: the filter says that no key was displaced to elsewhere")
        }
    }
}

pub fn key_table(key: &KeyView) -> Columns<8> {
    let mut table = Columns::new([
        Column::number("window"),
        Column::number("slot"),
        Column::text("verdict"),
        Column::text("key").least(8),
        Column::text("value").least(8),
        Column::number("stamp").rank(1),
        Column::text("ghost").rank(2),
        Column::text("filter/link").rank(3),
    ]);
    for (number, slots) in key.windows.iter().enumerate() {
        for (at, slot) in slots.iter().enumerate() {
            let header = &slot.header;
            let row = [
                if at == 0 { number.to_string() } else { String::new() },
                slot.slot.0.to_string(),
                if key.is_match(slot) { "match" } else { verdict(slot) }.into(),
                show::text(&slot.key, 32),
                value_text(slot),
                header.stamp.to_string(),
                if header.ghost == 0 { String::new() } else { format!("{:02x}", header.ghost) },
                if header.aux == 0 { String::new() } else { format!("{:08x}", header.aux) },
            ];
            // Green and bold, or red.
            let style =
                if key.is_match(slot) { "1;32" } else { ["31", ""][usize::from(slot.verdict.is_ok())] };
            table.styled(row, style);
        }
    }
    table
}

/// The beginning of the value, or where it is.
pub fn value_text(slot: &SlotReport) -> String {
    match slot.reference() {
        None => show::text(&slot.value, 24),
        Some(extent) => format!("{} at {}", show::counted(extent.len.into(), "byte"), extent.offset),
    }
}

pub fn key_json(key: &KeyView) -> serde_json::Value {
    let windows: Vec<_> = key
        .windows
        .iter()
        .map(|slots| {
            let slots: Vec<_> = slots
                .iter()
                .map(|slot| {
                    json!({
                        "slot": slot.slot.0,
                        "stamp": slot.header.stamp,
                        "key": String::from_utf8_lossy(&slot.key),
                        "value_hex": crate::records::to_hex(&slot.value),
                        "extent": slot.reference().map(|extent| {
                            json!({"number": extent.number, "offset": extent.offset, "len": extent.len})
                        }),
                        "ghost": slot.header.ghost,
                        "aux": slot.header.aux,
                        "verdict": verdict(slot),
                        "match": key.is_match(slot),
                    })
                })
                .collect();
            json!(slots)
        })
        .collect();
    json!({
        "key": String::from_utf8_lossy(&key.key),
        "found_in_window": key.found_in(),
        "filter_names_displaced": key.filter,
        "reads": key.reads(),
        "windows": windows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread::internals::region::Region;

    /// A GET of an absent key READs its further windows if the filter has its bit, and else the first one alone.
    #[test]
    fn reads_of_an_absent_key() {
        let reads = |filter| KeyView { key: vec![1], windows: vec![vec![], vec![], vec![]], filter }.reads();
        assert_eq!((reads(true), reads(false)), (3, 1));
    }

    fn slot(key: &[u8], verdict: Result<(), Torn>) -> SlotReport {
        let config = oneread::Config::new().size(oneread::TableSize::Slots(64)).key_max(16);
        let geometry = config.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index =
            oneread::embedded::Index::create(region, geometry.clone(), oneread::embedded::Clock::System)
                .unwrap();
        index.put(b"other", b"value", oneread::PutMode::Upsert).unwrap();
        let windows = Inspector::new(index.region(), &geometry).key(b"other").windows;
        let found = windows.into_iter().flatten().find(|slot| slot.key == b"other").unwrap();
        SlotReport { key: key.into(), verdict, ..found }
    }

    /// A GET's course is told by where the key is, and by what the filter says of it.
    #[test]
    fn stories_of_keys_are_told() {
        let told = |windows: &[&[u8]], filter| {
            let windows = windows.iter().map(|key| vec![slot(key, Ok(()))]).collect();
            key_story(&KeyView { key: b"key".into(), windows, filter })
        };
        assert_eq!(told(&[b"key", b""], true), "key \"key\": found in its first window, 1 READ");
        let second = "key \"key\": found in window 1, where the filter sends a GET; 2 READs";
        assert_eq!(told(&[b"other", b"key"], true), second);
        let looks = "key \"key\": absent, 2 READs: the filter names a displaced key";
        assert!(told(&[b"other", b""], true).starts_with(looks));
        let none = "key \"key\": absent, 1 READ: the filter says that no key was displaced";
        assert!(told(&[b"other", b""], false).starts_with(none));
    }

    /// Each slot of a key's windows has the verdict that a reader would come to.
    #[test]
    fn verdicts_are_told() {
        let all = [
            (&b""[..], Ok(()), "free"),
            (b"a", Ok(()), "ok"),
            (b"key", Ok(()), "match"),
            (b"", Err(Torn::Writing), "being written"),
            (b"", Err(Torn::Stamps), "torn: stamps differ"),
            (b"", Err(Torn::Lengths), "torn: lengths"),
            (b"", Err(Torn::Crc), "torn: checksum"),
        ];
        let slots = all.iter().map(|(key, verdict, _)| slot(key, *verdict)).collect();
        let view = KeyView { key: b"key".into(), windows: vec![Vec::new(), slots], filter: true };
        let shown = key_table(&view).lines(None);
        assert_eq!(shown.len(), 1 + all.len());
        for (n, (row, (key, verdict, said))) in shown[1..].iter().zip(all).enumerate() {
            let (before, after) = row.split_at(row.find(said).unwrap());
            // The window's number is told once.
            assert_eq!(before.split_whitespace().count(), if n == 0 { 2 } else { 1 }, "{row}");
            let key = std::str::from_utf8(key).unwrap();
            assert!(key.is_empty() || after[said.len()..].trim().starts_with(key), "{row}");
            // In JSON the verdict stands without the match.
            let json = &key_json(&view)["windows"][1][n];
            assert_eq!(
                (&json["match"], json["verdict"] == "ok"),
                (&json!(said == "match"), verdict.is_ok() && !key.is_empty())
            );
        }
        let phases = [Phase::Starting, Phase::Serving, Phase::Retired, Phase::Stopped].map(phase);
        assert_eq!(phases, ["starting", "serving", "retired", "stopped"]);
    }
}
