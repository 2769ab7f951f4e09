//! `cluster watch`: prints changes of all shards as they come.

use super::{ClusterArgs, Tables};
use crate::records::{Format, Pair};
use crate::watch::{Line, Place, left, room};
use anyhow::Result;
use clap::Args;
use oneread_cluster::client::{ClusterError, ClusterFeedItem, ClusterFeedOptions, FeedAt};
use oneread_cluster::core::state::ShardIx;
use oneread_cluster::etcd::ClusterName;
use oneread_kit::{advice, show};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread cluster watch demo            every change from now on
  oneread cluster watch demo user: --values    of keys that begin with user:
  oneread cluster watch demo --keys     first all keys, then their changes
  oneread cluster watch demo --json | jq .key

A line has the shard, the epoch and the number of the change, what became of
the key (came, replaced, left), the key and, with --values, its value, which is
cut on a terminal where it is long. With
--keys, lines with `key` come first, then `joined`; a change that is printed
later may be from before: the last line of a key is right. With --json it is
{\"shard\": 3, \"epoch\": 1, \"number\": 17, \"change\": \"came\", \"key\": ...}.

Changes of a shard come in order, also when another node serves it from then
on. Nodes keep the last changes in memory and wait for nobody: what was missed
is a line with `gap`. With --keys, all keys of that shard come again then, and
`joined` with its number: who keeps a copy forgets its keys at the gap.")]
pub struct Watch {
    /// The cluster
    name: ClusterName,
    /// Only keys that begin with this
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    /// Print values, too
    #[arg(long)]
    values: bool,
    /// Print all keys first, and those of a shard again after each gap
    #[arg(long)]
    keys: bool,
    /// Print one JSON object for each change
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tables: Tables,
}

/// Longest wait for a change. What is there to be written is written before it.
const REST: Duration = Duration::from_secs(3600);

impl Watch {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let client = reach.client(&self.name, &self.tables)?;
        let options = ClusterFeedOptions::new().prefix(self.prefix.unwrap_or_default());
        let mut feed = client.changes(options.values(self.values).keys(self.keys))?;
        let mut out = show::out(Format::of_lines(self.json).shown_as());
        let (mut within, room) = (Duration::ZERO, room());
        loop {
            let item = match feed.next(within) {
                Ok(item) => item,
                // Keys of a shard that nobody serves.
                Err(error @ ClusterError::Unavailable { .. }) => {
                    out.flush()?;
                    show::complain(format_args!("oneread: {}; going on", advice::told(&error.into())));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let Some(item) = item else {
                out.flush()?;
                within = REST;
                continue;
            };
            within = Duration::ZERO;
            line(&item).print(&mut out, self.json, room)?;
            if let (ClusterFeedItem::Gap { shard, .. }, true) = (&item, self.keys) {
                feed.resync(Some(*shard));
            }
        }
    }
}

fn line(item: &ClusterFeedItem) -> Line<'_> {
    let place = |shard: &ShardIx, epoch| Some(Place { shard: *shard, epoch });
    let at = |shard: &ShardIx, at: &FeedAt| (place(shard, Some(at.epoch)), Some(at.number));
    let nowhere = (None, None);
    let ((place, number), change, key, value) = match item {
        ClusterFeedItem::Key { shard, key, value } => {
            ((place(shard, None), None), "key", Some(key), value.as_ref())
        }
        ClusterFeedItem::Joined { shard } => {
            ((shard.as_ref().and_then(|shard| place(shard, None)), None), "joined", None, None)
        }
        ClusterFeedItem::Came { shard, at: place, key, value } => {
            (at(shard, place), "came", Some(key), value.as_ref())
        }
        ClusterFeedItem::Replaced { shard, at: place, key, value } => {
            (at(shard, place), "replaced", Some(key), value.as_ref())
        }
        ClusterFeedItem::Left { shard, at: place, key, .. } => (at(shard, place), "left", Some(key), None),
        ClusterFeedItem::Gap { shard, to, .. } => (at(shard, to), "gap", None, None),
        _ => (nowhere, "unknown", None, None),
    };
    let cause = match item {
        ClusterFeedItem::Left { cause, .. } => Some(left(*cause)),
        _ => None,
    };
    let (key, value) = (key.map(|key| &key[..]), value.map(|value| &value[..]));
    let pair = key.map(|key| Pair::new(key, value));
    Line { place, number, change, cause, pair, key, value, ..Line::default() }
}
