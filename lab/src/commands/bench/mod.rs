//! `bench`: the time of a GET and of an insert, compared with bare memory and with maps in one
//! process. `bench rpc` compares GETs by READ with GETs that the server does. `bench kill` kills
//! servers. `bench grow` lets a table grow and shrink. `bench hints` counts what hints save meanwhile.
//! `bench tiered` runs a storage contest's workload. `bench long` times GETs of long values. `bench tcp` times requests
//! over TCP. `bench trace` routes a trace's requests by an index. `bench lookups` compares two ways in which
//! indexes look. `bench failover` kills and stops nodes of a cluster, and moves what they serve. `bench kv-indexer` has
//! an indexer of LLM engines' caches hear events and answer, beside another one.
//!
//! On one machine, the comparison is fair as far as it can be: rounds of all contestants alternate,
//! and medians are reported. The in-process maps do less: their readers share a process with their
//! writers.

#[cfg(feature = "cluster")]
mod failover;
mod followers;
mod grow;
mod hinted;
#[cfg(feature = "kv-indexer")]
mod indexer;
mod kill;
mod long;
mod lookups;
mod loops;
mod redis;
mod rpc;
mod runner;
mod tcp;
mod tiered;
mod timing;
mod trace;

use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;
use timing::Timing;

/// Time GETs or inserts, compared with bare memory, in-process maps, or GETs by the server
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench get
  oneread bench insert --layout windowed:16
  oneread bench get --keys 100000 --json
  oneread bench rpc --connections 1,4,16
  oneread bench kill
  oneread bench grow
  oneread bench hints
  oneread bench tiered
  oneread bench long
  oneread bench tcp
  oneread bench trace FILE
  oneread bench followers
  oneread bench lookups
  oneread bench kv-indexer

`get`: one thread reads present keys of 16 bytes with values of 32, at random.
  bare, one after the other
      8 words of a random 64-byte line; each address depends on the line before
  bare, all at once
      the same, with addresses known beforehand: the limit of the memory
  oneread get       from a server in another process
  oneread get_many  the same, 256 keys at a time, each value to a callback
  oneread get_many_into
      the same, the values copied into one buffer
  oneread miss      a GET of a key that is not there
  dashmap, papaya, scc
      maps in this process; they cannot be read from another

With --fabric verbs, twice: GETs that READ windows, and GETs that READ slots
which hints name, after six GETs of each key.

`insert`: fills a new table to 90 % load, in this process, without a socket.

The bare reads use anonymous memory of this process, as large as the region; the
region is shared memory. Both ask for huge pages. The line about the machine
tells whether the system grants them.")]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// GETs of present keys
    Get(Timing),
    /// Fill a table
    Insert(Timing),
    Rpc(rpc::Rpc),
    Kill(kill::Kill),
    Grow(grow::Grow),
    Hints(hinted::HintsBench),
    Tiered(tiered::Tiered),
    Long(long::Long),
    Tcp(tcp::Tcp),
    Trace(trace::TraceBench),
    Followers(followers::FollowersBench),
    Lookups(lookups::LookupsBench),
    #[cfg(feature = "kv-indexer")]
    KvIndexer(indexer::IndexerBench),
    #[cfg(feature = "cluster")]
    Failover(failover::Failover),
    GrowReader(grow::reader::GrowReader),
}

impl Bench {
    pub fn run(self) -> Result<ExitCode> {
        match self.what {
            What::Get(timing) => timing.run_get(),
            What::Insert(timing) => timing.run_insert(),
            What::Rpc(rpc) => rpc.run(),
            What::Kill(kill) => kill.run(),
            What::Grow(grow) => grow.run(),
            What::Hints(hints) => hints.run(),
            What::Tiered(tiered) => tiered.run(),
            What::Long(long) => long.run(),
            What::Tcp(tcp) => tcp.run(),
            What::Trace(trace) => trace.run(),
            What::Followers(followers) => followers.run(),
            What::Lookups(lookups) => lookups.run(),
            #[cfg(feature = "kv-indexer")]
            What::KvIndexer(indexer) => indexer.run(),
            #[cfg(feature = "cluster")]
            What::Failover(failover) => failover.run(),
            What::GrowReader(reader) => reader.run(),
        }
    }
}
