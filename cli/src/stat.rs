//! `stat` and `inspect`: the server's counters, and the content of the region.

use super::columns::{Column, Columns};
use super::snapshot;
use super::{At, Server, Waiting, serve, watch};
use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{Attribute, Cell, ColumnConstraint};
use oneread::inspect::{Inspector, KeyReport, Occupancy, SlotReport};
use oneread::layout::control::Phase;
use oneread::layout::geometry::Geometry;
use oneread::layout::slot::Torn;
use oneread::layout::superblock::Superblock;
use oneread::region::Region;
use oneread::{Client, ClientOptions, ConnectError, GrowthCounts, HeapCounts, ServerStats, SnapshotStatus};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::units::Period;
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Print the server's counters and the shape of its table
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread stat
  oneread stat --watch            again every second, with rates, until Ctrl-C
  oneread stat --json | jq .server.keys
  oneread stat --json | jq .growth           segments, loads, splits, memory
  oneread stat --json | jq .heap             memory of values outside slots
  oneread stat --json | jq .snapshots.last   when the last snapshot was made
  oneread stat --json --watch 10s > log      one object a line

The server answers this command. `oneread inspect` looks into the table without
the server. GETs do not ask the server, so it counts none.")]
pub struct Stat {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Ask again every so often, as in 500ms, 1s, 5m
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", value_parser = super::units::some_time)]
    watch: Option<Period>,
    #[command(flatten)]
    server: Server,
}

/// What a server says of itself.
#[derive(Clone, Default)]
pub struct Told {
    pub stats: ServerStats,
    pub growth: GrowthCounts,
    pub heap: HeapCounts,
    pub snapshots: SnapshotStatus,
}

impl Stat {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect()?;
        let address = client.address().to_string();
        let mut ask = || -> Result<(Told, serde_json::Value)> {
            let told = Told {
                stats: client.server_stats()?,
                growth: client.growth()?,
                heap: client.heap()?,
                snapshots: client.snapshot_status()?,
            };
            let json = told.json(&client);
            Ok((told, json))
        };
        if let Some(Period(every)) = self.watch {
            match watch::watch(every, &address, ask, self.json)? {}
        }
        let (told, json) = ask()?;
        if self.json {
            show::say(json)?;
        } else {
            show::say(format_args!("server at {}", show::text(address.as_bytes(), usize::MAX)))?;
            show::say(told.table(client.geometry()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Told {
    /// Keys to slots.
    pub fn load(&self) -> f64 {
        self.stats.keys as f64 / self.stats.slots as f64
    }

    fn json(&self, client: &Client) -> serde_json::Value {
        let Told { stats, growth, heap, snapshots } = self;
        let geometry = client.geometry();
        let inspector = client.region().map(|region| Inspector::new(region, geometry));
        json!({
            "address": client.address().to_string(),
            "server": {
                "pid": stats.pid,
                "incarnation": stats.incarnation,
                "clients": stats.clients,
                "keys": stats.keys,
                "load": self.load(),
                "inserts": stats.inserts,
                "updates": stats.updates,
                "removes": stats.removes,
                "moves": stats.moves,
                "homings": stats.homings,
                "waits": stats.waits,
                "slots": stats.slots,
            },
            "growth": (growth.segments > 0).then(|| json!({
                "segments": growth.segments,
                "segments_max": growth.segments_max,
                "depth": growth.depth,
                "load_min": growth.load_min_ppm as f64 / 1e6,
                "load_mean": self.load(),
                "load_max": growth.load_max_ppm as f64 / 1e6,
                "splitting": growth.splitting,
                "merging": growth.merging,
                "splits": growth.splits,
                "merges": growth.merges,
                "merges_given_up": growth.given_up,
                "keys_moved": growth.moved,
                "memory_refused": growth.refused,
                "bytes_backed": growth.bytes_backed,
                "bytes_max": growth.bytes_max,
                "bytes_returned": growth.bytes_returned,
            })),
            "heap": (heap.heap_bytes > 0).then(|| heap_json(heap)),
            "snapshots": snapshot::json(snapshots),
            "geometry": geometry_json(geometry),
            "region": inspector.map(|inspector| {
                json!({ "phase": phase(inspector.state().phase), "moves_begun": inspector.moves_begun() })
            }),
        })
    }

    fn table(&self, geometry: &Geometry) -> comfy_table::Table {
        let Told { stats, growth, heap, snapshots } = self;
        let mut table = show::facts();
        let n = |n: u64| show::number(show::count(n));
        let percent = |load: f64| format!("{:.1} %", 100.0 * load);
        table.add_row(vec![Cell::new("process"), show::number(stats.pid)]);
        table.add_row(vec![Cell::new("servers of this table so far"), n(stats.incarnation)]);
        table.add_row(vec![Cell::new("connections"), n(stats.clients)]);
        table.add_row(vec![Cell::new("keys").add_attribute(Attribute::Bold), n(stats.keys)]);
        table.add_row(vec![Cell::new("load"), show::number(percent(self.load()))]);
        table.add_row(vec![Cell::new("inserts since it started"), n(stats.inserts)]);
        table.add_row(vec![Cell::new("updates"), n(stats.updates)]);
        table.add_row(vec![Cell::new("removes"), n(stats.removes)]);
        table.add_row(vec![Cell::new("keys moved"), n(stats.moves)]);
        table.add_row(vec![Cell::new("  of these, brought home"), n(stats.homings)]);
        table.add_row(vec![Cell::new("puts that waited for a grace period"), n(stats.waits)]);
        if growth.segments > 0 {
            let ppm = |ppm: u64| percent(ppm as f64 / 1e6);
            let splits = match growth.splitting {
                0 => show::count(growth.splits),
                now => format!("{}, {} under way", show::count(growth.splits), show::count(now)),
            };
            let mut merges = show::count(growth.merges);
            for (count, what) in [(growth.merging, "under way"), (growth.given_up, "given up")] {
                if count > 0 {
                    merges += &format!(", {} {what}", show::count(count));
                }
            }
            let segments = show::count(growth.segments);
            for (name, value) in [
                ("segments", format!("{segments} of up to {}", show::count(growth.segments_max))),
                (
                    "  load, lowest and highest",
                    format!("{}, {}", ppm(growth.load_min_ppm), ppm(growth.load_max_ppm)),
                ),
                ("  depth", growth.depth.to_string()),
                ("  splits since it started", splits),
                ("  merges", merges),
                ("  keys moved between them", show::count(growth.moved)),
            ] {
                table.add_row(vec![Cell::new(name), show::number(value)]);
            }
            let memory =
                format!("{} of up to {}", show::bytes(growth.bytes_backed), show::bytes(growth.bytes_max));
            table.add_row(vec![Cell::new("memory").add_attribute(Attribute::Bold), show::number(memory)]);
            table.add_row(vec![Cell::new("  given back"), show::number(show::bytes(growth.bytes_returned))]);
            if growth.refused > 0 {
                let times = format!("{}; its log says why", show::counted(growth.refused, "time"));
                table.add_row(vec![Cell::new("  refused by the system"), show::number(times)]);
            }
        }
        if heap.heap_bytes > 0 {
            let used = format!("{} of up to {}", show::bytes(heap.live_bytes), show::bytes(heap.heap_bytes));
            let name = Cell::new("heap").add_attribute(Attribute::Bold);
            table.add_row(vec![name, show::number(used)]);
            for (name, value) in [
                ("  values in it", show::count(heap.values)),
                ("  removed, replaced or moved a moment ago", show::bytes(heap.waiting_bytes)),
                ("  gaps between values", show::bytes(heap.gap_bytes)),
                ("  moved to close gaps", show::bytes(heap.moved_bytes)),
                ("  given back", show::bytes(heap.returned_bytes)),
            ] {
                table.add_row(vec![Cell::new(name), show::number(value)]);
            }
        }
        for (name, value) in snapshot::rows(snapshots) {
            table.add_row(vec![Cell::new(name), show::number(value)]);
        }
        add_geometry(&mut table, geometry);
        unbroken(table)
    }
}

/// No value is broken over lines: where there is little room, names are.
fn unbroken(mut table: comfy_table::Table) -> comfy_table::Table {
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_constraint(ColumnConstraint::ContentWidth);
    });
    table
}

/// The source of a region: a server or a file.
#[derive(Debug, Args)]
pub struct Source {
    #[command(flatten)]
    at: At,
    #[command(flatten)]
    waiting: Waiting,
    /// Take the region from this file and ask no server; overrides --at
    #[arg(long, value_name = "FILE")]
    region: Option<PathBuf>,
}

/// An open region.
pub enum Opened {
    Served(Box<Client>),
    File { region: Region, geometry: Box<Geometry>, name: String },
}

impl Source {
    /// Opens the region: from the file if one is named, else from the server. If no server answers,
    /// opens the file that a server at this address would have left.
    pub fn open(&self) -> Result<Opened> {
        if let Some(path) = &self.region {
            return open_file(path);
        }
        /// A running server hands its region over in much less time.
        const DEADLINE: Duration = Duration::from_secs(1);
        let address = self.at.address();
        let options = ClientOptions::new().deadline(DEADLINE);
        let error = match self.waiting.connect(|| Client::connect_with(&address, options.clone())) {
            Ok(client) if client.region().is_some() => return Ok(Opened::Served(Box::new(client))),
            Ok(_) => bail!(
                "the region of {address} is in the server's memory, which over verbs is not mapped here; look into it on the server's host, with --region FILE"
            ),
            Err(error) => error,
        };
        let left = serve::region_file(&address);
        match error.downcast_ref() {
            Some(ConnectError::NotThere { .. } | ConnectError::Link { .. }) if left.exists() => {
                show::complain(format_args!(
                    "oneread: no server answers at {address}; reading the file {}",
                    left.display()
                ));
                open_file(&left)
            }
            _ => Err(error),
        }
    }
}

fn open_file(path: &Path) -> Result<Opened> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("opening {name}"))?;
    anyhow::ensure!(file.metadata()?.is_file(), "{name} is no file; name a file that `oneread serve` made");
    anyhow::ensure!(file.metadata()?.len() > 0, "{name} is empty; name a file that `oneread serve` made");
    let region = Region::map_file(path, file)?;
    let (geometry, _) = Inspector::superblock(&region).with_context(|| name.clone())?;
    Ok(Opened::File { region, geometry: Box::new(geometry), name })
}

impl Opened {
    pub fn region(&self) -> &Region {
        match self {
            Opened::Served(client) => client.region().expect("checked when it was opened"),
            Opened::File { region, .. } => region,
        }
    }

    pub fn geometry(&self) -> &Geometry {
        match self {
            Opened::Served(client) => client.geometry(),
            Opened::File { geometry, .. } => geometry,
        }
    }

    pub fn inspector(&self) -> Inspector<'_> {
        Inspector::new(self.region(), self.geometry())
    }

    fn name(&self) -> String {
        match self {
            Opened::Served(client) => client.address().to_string(),
            Opened::File { name, .. } => name.clone(),
        }
    }
}

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
struct KeyView {
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
            Some(text) if self.hex => Some(super::records::from_hex(text).map_err(anyhow::Error::msg)?),
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
        if self.json {
            show::say(json!({
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
            }))?;
        } else {
            // What is asked for comes first.
            if let Some(key) = &key {
                show::say(key_story(key))?;
                show::say(key_table(key).text())?;
                show::say("")?;
            }
            show::say(format_args!("table at {}", show::text(opened.name().as_bytes(), usize::MAX)))?;
            if let Some(found) = occupancy {
                show::say(occupancy_table(&found, &geometry, inspector.segments_named()))?;
            }
            let huge = opened.region().huge_bytes();
            show::say(superblock_table(&superblock, &geometry, &inspector, huge))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Retired => "retired",
        Phase::Stopped => "stopped",
    }
}

fn verdict(slot: &SlotReport) -> &'static str {
    match slot.verdict {
        Ok(()) if slot.key.is_empty() => "free",
        Ok(()) => "ok",
        Err(Torn::Writing) => "being written",
        Err(Torn::Stamps) => "torn: stamps differ",
        Err(Torn::Lengths) => "torn: lengths",
        Err(Torn::Crc) => "torn: checksum",
    }
}

fn heap_json(heap: &HeapCounts) -> serde_json::Value {
    json!({
        "values": heap.values,
        "live_bytes": heap.live_bytes,
        "waiting_bytes": heap.waiting_bytes,
        "gap_bytes": heap.gap_bytes,
        "largest_gap_bytes": heap.largest_gap_bytes,
        "block_bytes": heap.block_bytes,
        "blocks": heap.blocks,
        "open_blocks": heap.open_blocks,
        "heap_bytes": heap.heap_bytes,
        "moved_bytes": heap.moved_bytes,
        "returned_bytes": heap.returned_bytes,
    })
}

fn geometry_json(geometry: &Geometry) -> serde_json::Value {
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

fn add_geometry(table: &mut comfy_table::Table, geometry: &Geometry) {
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
    for (name, value) in rows {
        table.add_row(vec![Cell::new(name), show::number(value)]);
    }
}

fn superblock_json(superblock: &Superblock, geometry: &Geometry) -> serde_json::Value {
    let mut out = geometry_json(geometry);
    out["version"] = json!(superblock.version);
    out["generation"] = json!(superblock.generation);
    out["homes"] = json!(superblock.homes);
    out["table_offset"] = json!(superblock.table_offset);
    out["created"] = json!(superblock.created);
    out["crc"] = json!(superblock.crc);
    out
}

fn superblock_table(
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
    table.add_row(vec![Cell::new("state"), show::number(state)]);
    table.add_row(vec![Cell::new("format"), show::number(format_args!("version {}", superblock.version))]);
    table.add_row(vec![Cell::new("made"), show::number(ago(superblock.created))]);
    table.add_row(vec![Cell::new("moves begun"), show::number(show::count(inspector.moves_begun()))]);
    if geometry.grows() {
        let segments = inspector.segments_named();
        let of = format!("{} of up to {}", show::count(segments), show::count(geometry.segments_max()));
        table.add_row(vec![Cell::new("segments"), show::number(of)]);
    }
    add_geometry(&mut table, geometry);
    // Of what was read: pages are mapped when they are touched.
    table.add_row(vec![Cell::new("of it read in huge pages"), show::number(show::bytes(huge))]);
    unbroken(table)
}

fn ago(created: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    age(now.saturating_sub(created))
}

fn age(seconds: u64) -> String {
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

fn occupancy_table(found: &Occupancy, geometry: &Geometry, segments: u64) -> comfy_table::Table {
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

fn key_story(key: &KeyView) -> String {
    let name = show::text(&key.key, 40);
    let reads = show::counted(key.reads() as u64, "READ");
    match key.found_in() {
        Some(0) => format!("key {name:?}: found in its first window, {reads}"),
        Some(n) => format!("key {name:?}: found in window {n}, where the filter sends a GET; {reads}"),
        None if key.filter => format!(
            "key {name:?}: absent, {reads}: the filter names a displaced key with the same bit, so a GET looks on"
        ),
        None => {
            format!("key {name:?}: absent, {reads}: the filter says that no key was displaced to elsewhere")
        }
    }
}

fn key_table(key: &KeyView) -> Columns<8> {
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
fn value_text(slot: &SlotReport) -> String {
    match slot.reference() {
        None => show::text(&slot.value, 24),
        Some(extent) => format!("{} at {}", show::counted(extent.len.into(), "byte"), extent.offset),
    }
}

fn key_json(key: &KeyView) -> serde_json::Value {
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
                        "value_hex": super::records::to_hex(&slot.value),
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

    /// A GET of an absent key READs its further windows if the filter has its bit, and else the first one alone.
    #[test]
    fn reads_of_an_absent_key() {
        let reads = |filter| KeyView { key: vec![1], windows: vec![vec![], vec![], vec![]], filter }.reads();
        assert_eq!((reads(true), reads(false)), (3, 1));
    }

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

    fn slot(key: &[u8], verdict: Result<(), Torn>) -> SlotReport {
        let config = oneread::Config::new().size(oneread::TableSize::Slots(64)).key_max(16);
        let geometry = config.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let index = oneread::Index::create(region, geometry.clone(), oneread::Clock::System).unwrap();
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

    /// A script finds each figure of the heap by its own name.
    #[test]
    fn figures_of_the_heap_have_their_names() {
        let mut heap = HeapCounts::default();
        (heap.values, heap.live_bytes, heap.waiting_bytes) = (1, 2, 3);
        (heap.gap_bytes, heap.largest_gap_bytes) = (4, 5);
        (heap.block_bytes, heap.blocks, heap.open_blocks) = (6, 7, 8);
        (heap.heap_bytes, heap.moved_bytes, heap.returned_bytes) = (9, 10, 11);
        let expected = json!({
            "values": 1, "live_bytes": 2, "waiting_bytes": 3, "gap_bytes": 4, "largest_gap_bytes": 5,
            "block_bytes": 6, "blocks": 7, "open_blocks": 8, "heap_bytes": 9, "moved_bytes": 10,
            "returned_bytes": 11,
        });
        assert_eq!(heap_json(&heap), expected);
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

    /// A region file that was named and is not there is an error, and no server is asked instead.
    #[test]
    fn a_named_file_is_opened_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("region");
        let address = oneread::Address::Shm(dir.path().join("socket"));
        let source = Source {
            at: At { at: Some(address) },
            waiting: Waiting { wait: None },
            region: Some(missing.clone()),
        };
        let error = source.open().err().unwrap();
        assert_eq!(error.to_string(), format!("opening {}", missing.display()));
    }

    /// What goes on in a table that grows is told where it goes on, and left out where it does not.
    #[test]
    fn growth_is_told() {
        let geometry = oneread::Config::new().size(oneread::TableSize::up_to(64 << 20)).geometry().unwrap();
        let told = |growth: GrowthCounts| {
            let (stats, heap) = (ServerStats::default(), HeapCounts::default());
            let told = Told { stats, growth, heap, snapshots: SnapshotStatus::default() };
            let rows = show::cells(&told.table(&geometry));
            move |name: &str| rows.iter().find(|row| row[0].trim() == name).map(|row| row[1].clone())
        };
        let mut growth = GrowthCounts::default();
        (growth.segments, growth.segments_max, growth.splits, growth.merges) = (3, 2_000, 7, 8);
        (growth.load_min_ppm, growth.load_max_ppm) = (123_400, 900_000);
        (growth.bytes_backed, growth.bytes_max, growth.bytes_returned) = (1 << 20, 1 << 30, 2 << 10);
        let quiet = told(growth);
        for (name, value) in [
            ("segments", "3 of up to 2,000"),
            ("load, lowest and highest", "12.3 %, 90.0 %"),
            ("splits since it started", "7"),
            ("merges", "8"),
            ("memory", "1 MiB of up to 1 GiB"),
            ("given back", "2 KiB"),
        ] {
            assert_eq!(quiet(name).as_deref(), Some(value), "{name}");
        }
        assert_eq!((quiet("refused by the system"), quiet("heap")), (None, None));
        (growth.splitting, growth.merging, growth.given_up, growth.refused) = (1, 2, 4, 1);
        let busy = told(growth);
        for (name, value) in [
            ("splits since it started", "7, 1 under way"),
            ("merges", "8, 2 under way, 4 given up"),
            ("refused by the system", "1 time; its log says why"),
        ] {
            assert_eq!(busy(name).as_deref(), Some(value), "{name}");
        }
    }
}
