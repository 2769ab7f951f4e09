//! `bench trace`: a trace of requests, engines with bounded caches, and a router over one index.

mod engines;
mod requests;

use crate::measure::{machine, quantile};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use comfy_table::Cell;
use engines::{Blocks, Engine, Prompt, Unit, prompt_of};
use hdrhistogram::Histogram;
use oneread::{Address, Client, Config, PutOptions, Server, ServerConfig, TableSize};
use oneread_kit::folder::Folder;
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_prefix::{
    Digests, Found, Holder, HolderPrefix, Location, LocationIndex, PlacementIndex, PlacementTable,
};
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Lookups are for no more engines than there are.
const HOLDERS: usize = 256;

/// Route a trace's requests by an index of who has which blocks
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench trace conversation_trace.jsonl.gz
  oneread bench trace trace.jsonl --split 32 --requests 2000 --engines 2 --json

A trace has a line of JSON a request, as Mooncake publishes them: `hash_ids` are
its blocks; equal numbers are equal prompts up to that block. A router on shm
asks an index in a server of this process, sends the request to the engine with
the longest prefix, and tells the index what the engine has stored and dropped.
  placement   who has each block; an entry a block
  grouped     the same; an entry for eight neighbours
  locations   where each block is; asked for the prefix that is anywhere
  READs       READs a block that was looked at: up to the first that is missing
  ns          time a block, of those
  p50, p99    time a request
  hits        blocks that the chosen engine had; that any had, with locations
  longest     requests for which no engine had a longer prefix than was found
  wrong       requests for which the index told other than the engines have
  load        the part of the slots that is taken, at the end
  changes     blocks told to the index a second

With --split, each block of the trace is so many: 32 makes blocks of 16 tokens.
Prompts then part inside blocks of the trace.")]
pub struct TraceBench {
    /// The trace; .gz wants gzip
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    trace: PathBuf,
    /// Engines, 1 to 4
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=4))]
    engines: u16,
    /// What part of the trace's blocks an engine has room for
    #[arg(long, value_name = "PART", default_value_t = 0.1)]
    part: f64,
    /// Blocks made of each block of the trace, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    split: u16,
    /// Only the first requests
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// What came of an index. The names are those of the JSON output.
#[derive(Debug, Serialize)]
struct TraceRow {
    machine: String,
    trace: String,
    engines: u16,
    split: u16,
    index: &'static str,
    requests: usize,
    blocks: u64,
    /// Blocks that lookups went through, the first one that is missing included.
    looked_up: u64,
    lookups_per_second: f64,
    reads_per_block: f64,
    ns_per_block: f64,
    request_p50_us: f64,
    request_p99_us: f64,
    hit_ratio: f64,
    routed_to_longest: f64,
    wrong: u64,
    load: f64,
    bytes_per_block: f64,
    changes_per_second: f64,
}

/// An index that is asked by the router, and told by engines.
enum Asked {
    Placement { index: Box<PlacementIndex>, holders: Vec<Holder>, found: Vec<HolderPrefix> },
    Locations { index: Box<LocationIndex>, found: Vec<Found> },
}

/// The engine that a router chose, and the length that it was told.
type Chosen = (usize, usize);

impl Asked {
    fn new(name: &str, engines: u16, client: Client) -> Result<Asked> {
        let Some(table) = placements(name)? else {
            let index = Box::new(LocationIndex::new(client)?);
            return Ok(Asked::Locations { index, found: Vec::new() });
        };
        let mut index = Box::new(PlacementIndex::create(client, table)?);
        let holders =
            (0..engines).map(|n| index.holder(&format!("engine {n}"))).collect::<Result<Vec<_>, _>>()?;
        Ok(Asked::Placement { index, holders, found: Vec::new() })
    }

    /// Which engine has the longest prefix; the one whose turn it is, where none has any.
    fn route(&mut self, prompt: &Prompt, turn: usize) -> Result<Chosen> {
        let digests = Digests::from(&prompt.keys[..]);
        match self {
            Asked::Placement { index, holders, found } => {
                let longest = index.match_prefix(&digests, found)?;
                let best = found.first().map(|best| &best.holder);
                let chosen = holders.iter().position(|holder| Some(holder) == best);
                Ok((chosen.unwrap_or(turn % holders.len()), longest))
            }
            Asked::Locations { index, found } => {
                found.resize(digests.len(), Found::default());
                let there = index.locate_prefix(&digests, found)?;
                let last = there.checked_sub(1).and_then(|last| found[last].location());
                Ok((last.map_or(turn, |location| usize::from(location.tier)), there))
            }
        }
    }

    /// At which engine the blocks are that were located, unit by unit.
    fn engines_of(&self, units: &[Unit], located: usize) -> Option<Vec<usize>> {
        let Asked::Locations { found, .. } = self else { return None };
        let there = units.iter().filter(|unit| unit.blocks.start < located);
        let engine = |unit: &Unit| found[unit.blocks.start].location().map(|at| usize::from(at.tier));
        there.map(engine).collect()
    }

    fn tell(&mut self, engine: usize, left: &[Blocks], came: &[Blocks]) -> Result<()> {
        match self {
            Asked::Placement { index, holders, .. } => {
                for (keys, blocks) in left {
                    index.remove(&holders[engine], &Digests::from(&keys[..blocks.end]), blocks.start)?;
                }
                for (keys, blocks) in came {
                    index.add(&holders[engine], &Digests::from(&keys[..blocks.end]), blocks.start)?;
                }
            }
            Asked::Locations { index, .. } => {
                let at = |blocks: usize| {
                    let tier = engine as u8;
                    vec![Location { endpoint: 1, tier, address: 0, length: 65_536 }; blocks]
                };
                for (keys, blocks) in left {
                    index.remove(&Digests::from(&keys[blocks.clone()]), &at(blocks.len()))?;
                }
                for (keys, blocks) in came {
                    let digests = Digests::from(&keys[blocks.clone()]);
                    let puts = index.put(&digests, &at(blocks.len()), PutOptions::new())?;
                    puts.into_iter().try_for_each(|put| put.map(|_| ()))?;
                }
            }
        }
        Ok(())
    }

    fn reads(&self) -> u64 {
        match self {
            Asked::Placement { index, .. } => index.stats().read.reads,
            Asked::Locations { index, .. } => index.stats().read.reads,
        }
    }
}

impl TraceBench {
    pub fn run(self) -> Result<ExitCode> {
        ensure!((0.0001..=1.0).contains(&self.part), "--part is {}, and goes from 0.0001 to 1", self.part);
        let mut requests = requests::read(&self.trace)?;
        requests.truncate(self.requests.unwrap_or(usize::MAX));
        let prompts: Vec<Prompt> =
            requests.iter().map(|request| prompt_of(request, self.split.into())).collect();
        let units = prompts.iter().flat_map(|prompt| &prompt.units);
        let distinct: FxHashSet<(u64, usize)> = units.map(|unit| (unit.id, unit.blocks.len())).collect();
        let distinct: usize = distinct.iter().map(|(_, blocks)| blocks).sum();
        ensure!(distinct > 0, "the first {} requests name no block; ask for more", prompts.len());
        let folder = Folder::new()?;
        let progress = Progress::of(3 * prompts.len() as u64, "requests", "requests");
        let mut rows = Vec::new();
        for name in ["placement", "grouped", "locations"] {
            rows.push(self.ask(name, &prompts, distinct, folder.path(), &progress)?);
        }
        progress.finish();
        show::outcome(self.json, &rows, || show::lay_out(table(&rows)))?;
        Ok(show::status(rows.iter().all(|row| row.wrong == 0)))
    }

    /// Has an index route all prompts.
    fn ask(
        &self,
        name: &'static str,
        prompts: &[Prompt],
        distinct: usize,
        folder: &Path,
        progress: &Progress,
    ) -> Result<TraceRow> {
        let room = ((distinct as f64 * self.part) as usize).max(1);
        let most = (room * usize::from(self.engines)).min(distinct) as u64;
        let table = self.table(name, most)?;
        let address = Address::Shm(folder.join(name));
        let served = Server::start(ServerConfig::new(address.clone(), table).workers(1))?;
        let mut asked = Asked::new(name, self.engines, Client::connect(&address)?)?;
        let mut engines: Vec<Engine> = (0..self.engines).map(|_| Engine::new(room)).collect();
        let (mut times, mut hits, mut longest, mut wrong) = (Histogram::<u64>::new(3)?, 0, 0u64, 0);
        let (mut reads, mut looked_up, mut changed, mut ns, mut change_ns) = (0, 0u64, 0, 0u64, 0u64);
        for (turn, prompt) in prompts.iter().enumerate() {
            let before = asked.reads();
            let begun = Instant::now();
            let (chosen, told) = asked.route(prompt, turn % engines.len())?;
            let took = begun.elapsed().as_nanos() as u64;
            times.record(took)?;
            ns += took;
            reads += asked.reads() - before;
            looked_up += (told + 1).min(prompt.keys.len()) as u64;
            let has: Vec<usize> = engines.iter().map(|engine| engine.has(prompt)).collect();
            let best = has.iter().max().copied().unwrap_or(0);
            match asked.engines_of(&prompt.units, told) {
                None => {
                    hits += has[chosen] as u64;
                    longest += u64::from(has[chosen] == best);
                    wrong += u64::from(told != best);
                }
                Some(of) => {
                    hits += told as u64;
                    longest += u64::from(told >= best);
                    let mut located = prompt.units.iter().zip(of);
                    wrong += u64::from(!located.all(|(unit, engine)| engines[engine].holds(unit)));
                }
            }
            let (left, came) = engines[chosen].serve(prompt);
            let begun = Instant::now();
            asked.tell(chosen, &left, &came)?;
            change_ns += begun.elapsed().as_nanos() as u64;
            changed += left.iter().chain(&came).map(|(_, blocks)| blocks.len() as u64).sum::<u64>();
            progress.inc(1);
        }
        let blocks: u64 = prompts.iter().map(|prompt| prompt.keys.len() as u64).sum();
        let counts = served.stats();
        let entries = served.index().len();
        let slots = counts.slots.max(1);
        let slot_bytes = table.geometry()?.shape().bytes() as f64;
        let kept = engines.iter().map(Engine::blocks).sum::<usize>().max(1);
        let quantile_us = |of| quantile(&times, of).map_or(0.0, |ns| ns as f64 / 1e3);
        let trace = self.trace.file_name().context("the trace has no name")?;
        Ok(TraceRow {
            machine: machine(),
            trace: trace.to_string_lossy().into_owned(),
            engines: self.engines,
            split: self.split,
            index: name,
            requests: prompts.len(),
            blocks,
            looked_up,
            lookups_per_second: looked_up as f64 / (ns.max(1) as f64 / 1e9),
            reads_per_block: reads as f64 / looked_up.max(1) as f64,
            ns_per_block: ns as f64 / looked_up.max(1) as f64,
            request_p50_us: quantile_us(0.5),
            request_p99_us: quantile_us(0.99),
            hit_ratio: hits as f64 / blocks.max(1) as f64,
            routed_to_longest: longest as f64 / prompts.len() as f64,
            wrong,
            load: entries as f64 / slots as f64,
            bytes_per_block: entries as f64 * slot_bytes / kept as f64,
            changes_per_second: changed as f64 / (change_ns.max(1) as f64 / 1e9),
        })
    }

    /// A table with room for so many blocks.
    fn table(&self, name: &str, blocks: u64) -> Result<Config> {
        const BESIDE: u64 = 1_000;
        let keys = |blocks: u64| TableSize::Keys(blocks + blocks / 8 + BESIDE);
        Ok(match placements(name)? {
            // Ends of prompts and branches leave entries that are not full.
            Some(table) if table.is_grouped() => table.config(keys(blocks * 2 / 3)),
            Some(table) => table.config(keys(blocks)),
            None => LocationIndex::config(keys(blocks)),
        })
    }
}

/// The table of an index of holders; `None` of locations.
fn placements(name: &str) -> Result<Option<PlacementTable>> {
    Ok(match name {
        "placement" => Some(PlacementTable::single(HOLDERS)?),
        "grouped" => Some(PlacementTable::grouped(HOLDERS)?),
        "locations" => None,
        _ => bail!("there is no index {name}"),
    })
}

fn table(rows: &[TraceRow]) -> comfy_table::Table {
    let heads = [
        "index",
        "READs",
        "ns",
        "p50",
        "p99",
        "hits",
        "longest",
        "wrong",
        "load",
        "bytes",
        "changes\na second",
    ];
    show::rows(heads, rows, |row| {
        [
            Cell::new(row.index),
            show::number(format_args!("{:.3}", row.reads_per_block)),
            show::number(format_args!("{:.1}", row.ns_per_block)),
            show::number(format_args!("{:.1} us", row.request_p50_us)),
            show::number(format_args!("{:.1} us", row.request_p99_us)),
            show::number(format_args!("{:.3}", row.hit_ratio)),
            show::number(format_args!("{:.3}", row.routed_to_longest)),
            show::number(row.wrong),
            show::number(format_args!("{:.2}", row.load)),
            show::number(format_args!("{:.0}", row.bytes_per_block)),
            show::number(show::count(row.changes_per_second as u64)),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small trace of the published shape, whose prompts part inside blocks, through caches that overflow: no answer is
    /// wrong, every request goes to an engine with the longest prefix, and groups save READs.
    #[test]
    fn a_small_trace_is_routed() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("small.jsonl");
        let (mut text, mut chats, mut next) = (String::new(), vec![Vec::new(); 12], 100u64);
        for n in 0..150usize {
            let chat: &mut Vec<u64> = &mut chats[n * 7 % 12];
            if chat.is_empty() {
                chat.extend((0..3).map(|block| n as u64 % 2 * 3 + block));
            }
            chat.extend([next, next + 1]);
            next += 2;
            let line = format!(
                "\"input_length\": {}, \"output_length\": 9, \"hash_ids\": {chat:?}",
                chat.len() * 512
            );
            text += &format!("{{\"timestamp\": {}, {line}}}\n", n * 100);
        }
        std::fs::write(&trace, text).unwrap();
        let bench = TraceBench { trace, engines: 4, part: 0.2, split: 16, requests: None, json: true };
        let requests = requests::read(&bench.trace).unwrap();
        let prompts: Vec<Prompt> = requests.iter().map(|request| prompt_of(request, 16)).collect();
        let row = |name| bench.ask(name, &prompts, 306 * 16, folder.path(), &Progress::hidden()).unwrap();
        let rows = ["placement", "grouped", "locations"].map(row);
        for row in &rows {
            assert_eq!((row.requests, row.wrong, row.routed_to_longest), (150, 0, 1.0), "{row:?}");
            assert!((0.3..1.0).contains(&row.hit_ratio), "{row:?}");
        }
        let [single, grouped, _] = rows;
        assert!((1.0..1.3).contains(&single.reads_per_block), "{single:?}");
        assert!((0.125..0.25).contains(&grouped.reads_per_block), "{grouped:?}");
    }
}
