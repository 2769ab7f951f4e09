//! `bench lookups`: how long a prefix has each worker, block by block and by jumps, in one run.

use crate::measure::machine;
use anyhow::{Result, ensure};
use clap::Args;
use comfy_table::Cell;
use oneread::{Address, Client, Server, ServerConfig, TableSize};
use oneread_kit::folder::Folder;
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_prefix::{Digests, HOLDERS_MAX, HolderPrefix, Keeps, Key, PlacementIndex, PlacementTable};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Workers that share a prompt, each to some depth.
const SHARED: usize = 8;

/// Look for the longest prefixes of long prompts, block by block and by jumps
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench lookups
  oneread bench lookups --blocks 64,1000 --workers 4 --prompts 2 --json

Each prompt is shared by eight workers, or by all where there are fewer, each to
some depth. One handle looks at each block, another one jumps; their rounds take
turns over the same prompts, and both are told the same lengths.
  placement   an entry a block
  grouped     an entry for eight neighbours
  READs       a lookup, block by block and by jumps
  us          a lookup, medians
  less time   how many times less the jumps take, in this run")]
pub struct LookupsBench {
    /// Blocks of a prompt
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [64, 128, 1_000, 10_000])]
    blocks: Vec<usize>,
    /// Workers of a table
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [4, 64, 1_024])]
    workers: Vec<usize>,
    /// Prompts of each length
    #[arg(long, value_name = "N", default_value_t = 16)]
    prompts: usize,
    /// Times that each prompt is looked for, each way
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// What lookups took. The names are those of the JSON output.
#[derive(Debug, Serialize)]
struct LookupRow {
    machine: String,
    index: &'static str,
    workers: usize,
    blocks: usize,
    reads_walked: f64,
    reads_jumped: f64,
    us_walked: f64,
    us_jumped: f64,
    /// The median of the ratios of a prompt's two lookups, one behind the other.
    times_less: f64,
}

/// A prompt, and who has how many of its blocks.
struct Shared {
    keys: Vec<Key>,
    depths: Vec<(usize, usize)>,
}

impl Shared {
    fn new(random: &mut SmallRng, blocks: usize, workers: usize) -> Shared {
        let keys = (0..blocks).map(|_| random.random()).collect();
        let mut depths: Vec<(usize, usize)> = Vec::new();
        while depths.len() < SHARED.min(workers) {
            let worker = random.random_range(0..workers);
            if depths.iter().all(|(other, _)| *other != worker) {
                depths.push((worker, random.random_range(1..=blocks)));
            }
        }
        Shared { keys, depths }
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

impl LookupsBench {
    pub fn run(self) -> Result<ExitCode> {
        ensure!(self.prompts > 0 && self.rounds > 0, "--prompts and --rounds are 1 at least");
        ensure!(self.blocks.iter().all(|blocks| *blocks > 0), "a prompt has a block at least; mend --blocks");
        let is_one = |workers: &usize| (1..=HOLDERS_MAX).contains(workers);
        ensure!(self.workers.iter().all(is_one), "a table is for 1 to {HOLDERS_MAX} workers; mend --workers");
        let folder = Folder::new()?;
        let progress = Progress::of(2 * self.workers.len() as u64, "tables", "tables");
        let mut rows = Vec::new();
        for &workers in &self.workers {
            for (name, table) in [
                ("placement", PlacementTable::single(workers)?),
                ("grouped", PlacementTable::grouped(workers)?),
            ] {
                self.ask((name, table), workers, folder.path(), &mut rows)?;
                progress.inc(1);
            }
        }
        progress.finish();
        show::outcome(self.json, &rows, || show::lay_out(table(&rows)))?;
        Ok(ExitCode::SUCCESS)
    }

    fn ask(
        &self,
        (name, table): (&'static str, PlacementTable),
        workers: usize,
        folder: &Path,
        rows: &mut Vec<LookupRow>,
    ) -> Result<()> {
        let all = self.blocks.iter().sum::<usize>() * self.prompts;
        let entries = if table.is_grouped() { all / 8 + all / 64 } else { all };
        let address = Address::Shm(folder.join(format!("{name}-{workers}")));
        let size = TableSize::Keys((entries + entries / 8 + 5_000) as u64);
        let server = Server::start(ServerConfig::new(address.clone(), table.config(size)).workers(1))?;
        table.mark(&server)?;
        let connect = || anyhow::Ok(PlacementIndex::new(Client::connect(&address)?)?);
        let (mut index, mut jumps, mut walks) = (connect()?, connect()?, connect()?);
        walks.look_at_all();
        let holders = (0..workers)
            .map(|n| index.holder_with(&format!("worker {n}"), Keeps::PrefixClosed))
            .collect::<Result<Vec<_>, _>>()?;
        let mut random = SmallRng::seed_from_u64(workers as u64);
        for &blocks in &self.blocks {
            let prompts: Vec<Shared> =
                (0..self.prompts).map(|_| Shared::new(&mut random, blocks, workers)).collect();
            for prompt in &prompts {
                for (worker, depth) in &prompt.depths {
                    index.add(&holders[*worker], &Digests::from(&prompt.keys[..*depth]), 0)?;
                }
            }
            rows.push(self.measure((name, workers, blocks), &prompts, &mut walks, &mut jumps)?);
        }
        Ok(())
    }

    fn measure(
        &self,
        (index, workers, blocks): (&'static str, usize, usize),
        prompts: &[Shared],
        walks: &mut PlacementIndex,
        jumps: &mut PlacementIndex,
    ) -> Result<LookupRow> {
        let (mut walked, mut jumped, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut reads = [0; 2];
        let handles = [walks, jumps];
        let mut found: [Vec<HolderPrefix>; 2] = Default::default();
        // The first round is for the copies of who has which bit.
        for round in 0..=self.rounds {
            for prompt in prompts {
                let digests = Digests::from(&prompt.keys[..]);
                let mut took = [0.0; 2];
                // Neither always finds what the other one has brought into the caches.
                for nth in [round % 2, 1 - round % 2] {
                    let handle = &mut *handles[nth];
                    let before = handle.stats().read.reads;
                    let begun = Instant::now();
                    handle.match_prefix(&digests, &mut found[nth])?;
                    took[nth] = begun.elapsed().as_nanos() as f64 / 1e3;
                    if round > 0 {
                        reads[nth] += handle.stats().read.reads - before;
                    }
                }
                let longest = prompt.depths.iter().map(|(_, depth)| *depth).max();
                ensure!(
                    found[0] == found[1] && found[0].first().map(|first| first.blocks) == longest,
                    "{index}, {workers} workers, {blocks} blocks: the lookups told other lengths than there are"
                );
                if round > 0 {
                    walked.push(took[0]);
                    jumped.push(took[1]);
                    ratios.push(took[0] / took[1]);
                }
            }
        }
        let lookups = walked.len() as f64;
        Ok(LookupRow {
            machine: machine(),
            index,
            workers,
            blocks,
            reads_walked: reads[0] as f64 / lookups,
            reads_jumped: reads[1] as f64 / lookups,
            us_walked: median(walked),
            us_jumped: median(jumped),
            times_less: median(ratios),
        })
    }
}

fn table(rows: &[LookupRow]) -> comfy_table::Table {
    let heads = ["index", "workers", "blocks", "READs", "by jumps", "us", "by jumps", "less time"];
    show::rows(heads, rows, |row| {
        [
            Cell::new(row.index),
            show::number(row.workers),
            show::number(row.blocks),
            show::number(format_args!("{:.0}", row.reads_walked)),
            show::number(format_args!("{:.0}", row.reads_jumped)),
            show::number(format_args!("{:.1}", row.us_walked)),
            show::number(format_args!("{:.1}", row.us_jumped)),
            show::number(format_args!("{:.1}", row.times_less)),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways tell the lengths that there are, and jumps take fewer READs of a long prompt.
    #[test]
    fn jumps_take_fewer_reads() {
        let bench =
            LookupsBench { blocks: vec![64, 900], workers: vec![4, 300], prompts: 2, rounds: 2, json: true };
        let folder = Folder::new().unwrap();
        let mut rows = Vec::new();
        for (name, table) in
            [("placement", PlacementTable::single(300)), ("grouped", PlacementTable::grouped(300))]
        {
            bench.ask((name, table.unwrap()), 300, folder.path(), &mut rows).unwrap();
        }
        assert_eq!(rows.len(), 4);
        for row in rows {
            let is_fewer = row.reads_jumped < row.reads_walked;
            assert!(
                if row.blocks == 64 { row.reads_jumped == row.reads_walked } else { is_fewer },
                "{row:?}"
            );
        }
    }
}
