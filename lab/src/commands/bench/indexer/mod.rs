//! `bench kv-indexer`: an indexer of LLM engines' caches, beside another one if there is one.

mod asking;
mod child;
mod engines;
mod outcome;
mod round;

use crate::measure::machine;
use anyhow::{Result, ensure};
use clap::Args;
use engines::BLOCK_TOKENS;
use oneread_kit::show;
use outcome::{IndexerRow, OWN, Outcome, table};
use round::{Aim, Round};
use std::process::ExitCode;

/// Have `kv-indexer` hear engines' events and answer prompts, beside another indexer
#[derive(Debug, Args)]
#[command(
    name = "kv-indexer",
    after_help = "EXAMPLES
  oneread bench kv-indexer
  oneread bench kv-indexer --workers 8 --blocks 170000 --prompts 10000 \\
      --longest 1000
  python -m dynamo.indexer --port 8091 --block-size 16 &
  oneread bench kv-indexer --beside http://127.0.0.1:8091 --beside-pid $!

An indexer in a process of its own, whose table is in /dev/shm. This process is
the engines: each has sockets of its own, holds the beginnings of prompts that
part from each other, and publishes what it stores and drops, 16 blocks of 16
tokens an event. What is to be answered is known here, so each answer is
checked. The same events and prompts go to the indexer that --beside names,
which takes the requests of Dynamo's; the two are asked in turns.
  events      events a second that are heard and found, when all engines store
              blocks as fast as they can
  p50, p99    time of a query over HTTP, while nothing changes
  loaded      the same while blocks come at --rate, and as many go
  behind      from the last event of these until all are found
  bytes       memory a block that an engine has: what the process has more than
              before the first event
  wrong       answers that are not what the engines have
  differ      prompts for which the two tell other lengths
  answers, right
      after SIGKILL, from then on: the first answer, and the last of those that
      were to become right, where each engine told something meanwhile

The exit status is 1 if an answer of oneread's indexer was wrong."
)]
pub struct IndexerBench {
    /// Engines, each of these numbers after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4,64,256", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    workers: Vec<u16>,
    /// Blocks that all engines have together
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    blocks: u64,
    /// Prompts to ask for
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    prompts: u64,
    /// The most blocks of a prompt
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    longest: u32,
    /// Blocks a second that come while prompts are asked for
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// For so many seconds
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    seconds: f64,
    /// Each engine calls blocks by hashes of its own, as vLLM's xxhash ones are without PYTHONHASHSEED
    #[arg(long)]
    own_hashes: bool,
    /// Another indexer, which hears and answers the same
    #[arg(long, value_name = "URL")]
    beside: Option<String>,
    /// The number of its process, whose memory is to be told
    #[arg(long, value_name = "PID", requires = "beside", value_parser = clap::value_parser!(i32).range(1..))]
    beside_pid: Option<i32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl IndexerBench {
    pub fn run(self) -> Result<ExitCode> {
        ensure!(
            self.seconds.is_finite() && self.seconds > 0.0,
            "--seconds is {}; give a number above 0",
            self.seconds
        );
        super::runner::more_descriptors();
        let mut rows = Vec::new();
        for &workers in &self.workers {
            rows.extend(Round::begin(self.aim(), workers)?.run()?);
        }
        let outcome = Outcome {
            machine: machine(),
            block_tokens: BLOCK_TOKENS,
            prompts: self.prompts,
            longest: self.longest,
            rate: self.rate,
            own_hashes: self.own_hashes,
            rows,
        };
        show::outcome(self.json, &outcome, || {
            show::lay_out(table(&outcome.rows))?;
            show::lay_out(show::machine(&outcome.machine))
        })?;
        let is_wrong = |row: &IndexerRow| row.indexer == OWN && row.wrong > 0;
        Ok(show::status(!outcome.rows.iter().any(is_wrong)))
    }

    fn aim(&self) -> Aim<'_> {
        Aim {
            blocks: self.blocks,
            prompts: self.prompts,
            longest: self.longest,
            rate: self.rate,
            seconds: self.seconds,
            own_hashes: self.own_hashes,
            beside: self.beside.as_deref(),
            beside_pid: self.beside_pid,
        }
    }
}
