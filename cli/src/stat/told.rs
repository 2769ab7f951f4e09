//! What a server says of itself, as a table and as JSON.

use super::figures::{add_geometry, geometry_json, phase, unbroken};
use crate::pages::Pages;
use crate::snapshot;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::geometry::Geometry;
use oneread::{
    Client,
    stats::{
        EvictCounts, GetCounts, GrowthCounts, HeapCounts, HeldCounts, LogStatus, NoteCounts, ServerStats,
        SnapshotStatus,
    },
};
use oneread_kit::show;
use serde_json::json;

/// What a server says of itself.
#[derive(Clone, Default)]
pub struct Told {
    pub stats: ServerStats,
    pub growth: GrowthCounts,
    pub heap: HeapCounts,
    /// `None`: the server is too old to say.
    pub notes: Option<NoteCounts>,
    /// Of a server that tells it.
    pub evictions: Option<EvictCounts>,
    /// Of a server that tells it.
    pub held: Option<HeldCounts>,
    /// Of a server that tells it.
    pub gets: Option<GetCounts>,
    pub snapshots: SnapshotStatus,
    /// Of a server that has one.
    pub log: Option<LogStatus>,
    pub pages: Option<Pages>,
}

impl Told {
    /// Asks the server.
    pub fn of(client: &mut Client) -> anyhow::Result<Told> {
        Ok(Told {
            stats: client.server_stats()?,
            growth: client.growth()?,
            heap: client.heap()?,
            notes: client.notes()?,
            evictions: client.evictions()?,
            held: client.held()?,
            gets: client.get_counts()?,
            snapshots: client.snapshot_status()?,
            log: client.log()?,
            pages: None,
        })
    }

    /// Entries that have left to make room.
    pub fn evicted(&self) -> u64 {
        self.evictions.map_or(0, |counts| counts.evicted())
    }

    /// Keys to slots.
    pub fn load(&self) -> f64 {
        self.stats.keys as f64 / self.stats.slots as f64
    }

    pub fn json(&self, client: &Client) -> serde_json::Value {
        let Told { stats, growth, heap, notes, evictions, held, gets, snapshots, log, pages } = self;
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
            "notes": notes.map(|notes| json!({
                "ends": notes.ends,
                "owners": notes.owned,
                "eviction": notes.records,
            })),
            "evictions": evictions.map(|evicted| json!({
                "ahead": evicted.ahead,
                "at_put": evicted.at_put,
                "for_heap": evicted.for_heap,
                "refused": evicted.refused,
                "pinned": evicted.pinned,
            })),
            "gets": gets.map(|gets| json!({ "gets": gets.gets, "hits": gets.hits, "misses": gets.misses() })),
            "held": held.as_ref().map(held_json),
            "snapshots": snapshot::json(snapshots),
            "log": log.as_ref().map(log_json),
            "huge_pages": pages.as_ref().map(Pages::json),
            "geometry": geometry_json(geometry),
            "region": inspector.map(|inspector| {
                json!({ "phase": phase(inspector.state().phase), "moves_begun": inspector.moves_begun() })
            }),
        })
    }

    pub fn table(&self, geometry: &Geometry) -> comfy_table::Table {
        let Told { stats, growth, heap, notes, evictions, held, gets, snapshots, log, pages } = self;
        let mut table = show::facts();
        let count = |name: &str, n: u64| show::fact(name, show::count(n));
        let bytes = |name: &str, n: u64| show::fact(name, show::bytes(n));
        let of = |part: u64, all: u64| format!("{} of up to {}", show::bytes(part), show::bytes(all));
        let percent = |load: f64| format!("{:.1} %", 100.0 * load);
        table.add_rows([
            show::fact("process", stats.pid),
            count("servers of this table so far", stats.incarnation),
            count("connections", stats.clients),
            [show::head("keys"), show::number(show::count(stats.keys))],
            show::fact("load", percent(self.load())),
            count("inserts since it started", stats.inserts),
            count("updates", stats.updates),
            count("removes", stats.removes),
            count("keys moved", stats.moves),
            count("  of these, brought home", stats.homings),
            count("puts that waited for a grace period", stats.waits),
        ]);
        if let Some(gets) = gets {
            table.add_row(count("GETs on this host, and over TCP", gets.gets));
            table.add_row(count("  of these, misses", gets.misses()));
        }
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
            let loads = format!("{}, {}", ppm(growth.load_min_ppm), ppm(growth.load_max_ppm));
            table.add_rows([
                show::fact(
                    "segments",
                    format_args!("{segments} of up to {}", show::count(growth.segments_max)),
                ),
                show::fact("  load, lowest and highest", loads),
                show::fact("  depth", growth.depth),
                show::fact("  splits since it started", splits),
                show::fact("  merges", merges),
                count("  keys moved between them", growth.moved),
                [show::head("memory"), show::number(of(growth.bytes_backed, growth.bytes_max))],
                bytes("  given back", growth.bytes_returned),
            ]);
            if growth.refused > 0 {
                let times = format!("{}; its log says why", show::counted(growth.refused, "time"));
                table.add_row(show::fact("  refused by the system", times));
            }
        }
        if heap.heap_bytes > 0 {
            table.add_rows([
                [show::head("heap"), show::number(of(heap.live_bytes, heap.heap_bytes))],
                count("  values in it", heap.values),
                bytes("  removed, replaced or moved a moment ago", heap.waiting_bytes),
                bytes("  gaps between values", heap.gap_bytes),
                bytes("  moved to close gaps", heap.moved_bytes),
                bytes("  given back", heap.returned_bytes),
            ]);
        }
        let (notes, evictions) = (notes.unwrap_or_default(), evictions.unwrap_or_default());
        let noted = [
            ("ends of entries noted", notes.ends),
            ("entries noted for their owners", notes.owned),
            ("entries noted for eviction", notes.records),
            ("entries that made room for others", evictions.evicted()),
            ("  ahead of puts", evictions.ahead),
            ("  at a put", evictions.at_put),
            ("  for memory of long values", evictions.for_heap),
            ("puts refused, as all was pinned", evictions.refused),
            ("keys pinned", evictions.pinned),
        ];
        table.add_rows(noted.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| count(name, n)));
        let held = held.as_ref().map(held_rows).unwrap_or_default();
        let pages = pages.as_ref().map(|pages| ("memory in huge pages", pages.told()));
        let log = log.as_ref().map(log_rows).unwrap_or_default();
        let others = held.into_iter().chain(pages).chain(snapshot::rows(snapshots)).chain(log);
        table.add_rows(others.map(|(name, value)| show::fact(name, value)));
        add_geometry(&mut table, geometry);
        unbroken(table)
    }
}

/// What is held for clients. A table without owners has no puts in two steps.
fn held_rows(held: &HeldCounts) -> Vec<(&'static str, String)> {
    let of = |part: String, all: String| format!("{part} of up to {all}");
    let bytes = |part, all| of(show::bytes(part), show::bytes(all));
    let mut rows = Vec::new();
    if held.started_max > 0 {
        let started = of(show::count(held.started), show::count(held.started_max));
        rows.push(("puts started and not committed", started));
        rows.push(("  memory for their values", bytes(held.started_heap_bytes, held.started_heap_bytes_max)));
        rows.push(("  given up, their time was over", show::count(held.started_late)));
        rows.push(("  not started, for these bounds", show::count(held.started_refused)));
    }
    rows.push(("memory of connections", bytes(held.client_bytes, held.client_bytes_max)));
    rows.push(("  connections ended for it", show::count(held.clients_ended)));
    rows.push(("requests that wait", of(show::count(held.parked), show::count(held.parked_max))));
    rows
}

pub fn held_json(held: &HeldCounts) -> serde_json::Value {
    json!({
        "puts_started": held.started,
        "puts_started_max": held.started_max,
        "puts_started_heap_bytes": held.started_heap_bytes,
        "puts_started_heap_bytes_max": held.started_heap_bytes_max,
        "puts_started_late": held.started_late,
        "puts_started_refused": held.started_refused,
        "client_bytes": held.client_bytes,
        "client_bytes_max": held.client_bytes_max,
        "clients_ended": held.clients_ended,
        "requests_parked": held.parked,
        "requests_parked_max": held.parked_max,
    })
}

/// How far the log is. What its disk does not have is told apart from what waits to be written: with `--fsync 1s` and
/// `never` the disk may be behind.
fn log_rows(log: &LogStatus) -> Vec<(&'static str, String)> {
    let behind = |reached: u64| show::count(log.next.saturating_sub(reached));
    let mut rows = vec![
        ("log", show::bytes(log.bytes)),
        ("  changes that it has taken", show::count(log.next.saturating_sub(1))),
        ("  of these, not written yet", behind(log.written)),
        ("  of these, not on the disk yet", behind(log.durable)),
        ("  syncs since it started", show::count(log.syncs)),
    ];
    if log.has_failed {
        rows.push(("  its disk", "has failed: no change is made; restart the server when it is good".into()));
    }
    rows
}

fn log_json(log: &LogStatus) -> serde_json::Value {
    json!({
        "records": log.next.saturating_sub(1),
        "records_written": log.written.saturating_sub(1),
        "records_durable": log.durable.saturating_sub(1),
        "bytes": log.bytes,
        "syncs": log.syncs,
        "has_failed": log.has_failed,
    })
}

pub fn heap_json(heap: &HeapCounts) -> serde_json::Value {
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

#[cfg(test)]
mod tests {
    use super::*;

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

    /// What the server notes is told where it notes anything.
    #[test]
    fn notes_are_told() {
        let geometry = oneread::Config::new().geometry().unwrap();
        let mut notes = NoteCounts::default();
        (notes.ends, notes.owned) = (5_000, 6);
        let mut evicted = EvictCounts::default();
        (evicted.ahead, evicted.for_heap) = (2_000, 7);
        let told = Told { notes: Some(notes), evictions: Some(evicted), ..Told::default() };
        let rows = show::cells(&told.table(&geometry));
        let row = |name: &str| rows.iter().find(|row| row[0].trim() == name).map(|row| row[1].clone());
        assert_eq!(row("ends of entries noted").as_deref(), Some("5,000"));
        assert_eq!(row("entries noted for their owners").as_deref(), Some("6"));
        assert_eq!(row("entries noted for eviction"), None);
        assert_eq!(row("entries that made room for others").as_deref(), Some("2,007"));
        assert_eq!(row("ahead of puts").as_deref(), Some("2,000"));
        assert_eq!((row("at a put"), row("keys pinned")), (None, None));
    }

    /// What is held has its own names and rows; a table without puts in two steps has no row of them.
    #[test]
    fn what_is_held_is_told() {
        let mut held = HeldCounts::default();
        (held.client_bytes, held.client_bytes_max, held.clients_ended) = (1 << 20, 256 << 20, 9);
        let rows =
            |held: &HeldCounts| held_rows(held).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        (held.parked, held.parked_max) = (12, 16_384);
        assert_eq!(rows(&held), ["1 MiB of up to 256 MiB", "9", "12 of up to 16,384"]);
        (held.started, held.started_max, held.started_late, held.started_refused) = (1_000, 2_000, 5, 6);
        (held.started_heap_bytes, held.started_heap_bytes_max) = (3 << 10, 4 << 10);
        let starts = ["1,000 of up to 2,000", "3 KiB of up to 4 KiB", "5", "6"];
        assert_eq!(rows(&held)[..4], starts);
        let expected = json!({
            "puts_started": 1_000, "puts_started_max": 2_000, "puts_started_heap_bytes": 3 << 10,
            "puts_started_heap_bytes_max": 4 << 10, "puts_started_late": 5, "puts_started_refused": 6,
            "client_bytes": 1 << 20, "client_bytes_max": 256 << 20, "clients_ended": 9,
            "requests_parked": 12, "requests_parked_max": 16_384,
        });
        assert_eq!(held_json(&held), expected);
    }

    /// A log has rows and names of its own; a server without one has none. A disk that failed is told.
    #[test]
    fn a_log_is_told() {
        let mut log = LogStatus::default();
        (log.next, log.written, log.durable, log.bytes, log.syncs) = (1_001, 999, 801, 3 << 20, 7);
        let rows = |log: &LogStatus| log_rows(log).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(rows(&log), ["3 MiB", "1,000", "2", "200", "7"]);
        let expected = json!({
            "records": 1_000, "records_written": 998, "records_durable": 800, "bytes": 3 << 20, "syncs": 7,
            "has_failed": false,
        });
        assert_eq!(log_json(&log), expected);
        log.has_failed = true;
        assert!(rows(&log)[5].contains("has failed"), "{:?}", rows(&log));
        assert_eq!(log_json(&log)["has_failed"], true);
        let geometry = oneread::Config::new().geometry().unwrap();
        let has_row = |log: Option<LogStatus>| {
            let rows = show::cells(&Told { log, ..Told::default() }.table(&geometry));
            rows.iter().any(|row| row[0].trim() == "log")
        };
        assert!(has_row(Some(log)) && !has_row(None));
    }

    /// What goes on in a table that grows is told where it goes on, and left out where it does not.
    #[test]
    fn growth_is_told() {
        let geometry = oneread::Config::new().size(oneread::TableSize::up_to(64 << 20)).geometry().unwrap();
        let told = |growth: GrowthCounts| {
            let (stats, heap) = (ServerStats::default(), HeapCounts::default());
            let told = Told { stats, growth, heap, ..Told::default() };
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
        assert_eq!(quiet("ends of entries noted"), None);
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
