//! What the bench tells.

use crate::measure::{told, told_ns};
use comfy_table::{Cell, Table};
use oneread_kit::show;
use serde::Serialize;

/// What the indexer of oneread is called.
pub const OWN: &str = "oneread";
/// What the other one is called.
pub const BESIDE: &str = "beside";

/// What came of it. The names are those of the JSON output.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub machine: String,
    pub block_tokens: u32,
    pub prompts: u64,
    pub longest: u32,
    /// Blocks a second that were to come under load.
    pub rate: u64,
    /// Engines called blocks by hashes of their own.
    pub own_hashes: bool,
    pub rows: Vec<IndexerRow>,
}

/// The figures of one indexer, with so many engines.
#[derive(Debug, Serialize)]
pub struct IndexerRow {
    pub workers: u16,
    /// [`OWN`], or [`BESIDE`].
    pub indexer: &'static str,
    /// Blocks that engines had, after they had stored all.
    pub blocks: u64,
    pub events_per_second: f64,
    pub blocks_per_second: f64,
    pub query_p50_ns: u64,
    pub query_p99_ns: u64,
    pub loaded_p50_ns: Option<u64>,
    pub loaded_p99_ns: Option<u64>,
    /// Blocks a second that came under load.
    pub loaded_blocks_per_second: f64,
    pub behind_ms: f64,
    pub memory_bytes: Option<u64>,
    pub bytes_per_block: Option<f64>,
    /// Answers that were checked.
    pub checked: u64,
    pub wrong: u64,
    /// Prompts for which both tell other lengths, of those asked while nothing changes.
    pub differing: Option<u64>,
    pub answers_after_ms: Option<f64>,
    pub right_after_ms: Option<f64>,
}

/// A row for each indexer and number of engines.
pub fn table(rows: &[IndexerRow]) -> Table {
    let heads = [
        "engines", "indexer", "events", "p50", "p99", "loaded", "p99", "behind", "bytes", "wrong", "differ",
        "answers", "right",
    ];
    let ms = |ms: f64| format!("{ms:.0} ms");
    show::rows(heads, rows, |row| {
        [
            show::number(row.workers),
            Cell::new(row.indexer),
            show::number(show::rate(row.events_per_second)),
            show::number(told_ns(Some(row.query_p50_ns))),
            show::number(told_ns(Some(row.query_p99_ns))),
            show::number(told_ns(row.loaded_p50_ns)),
            show::number(told_ns(row.loaded_p99_ns)),
            show::number(ms(row.behind_ms)),
            show::number(told(row.bytes_per_block, |bytes| format!("{bytes:.0}"))),
            show::number(show::count(row.wrong)),
            show::number(told(row.differing, show::count)),
            show::number(told(row.answers_after_ms, ms)),
            show::number(told(row.right_after_ms, ms)),
        ]
    })
}
