//! Single calls of a cluster, for people and scripts.

use super::{ClusterArgs, Tables};
use crate::data::put_mode;
use crate::scan::Printed;
use anyhow::{Result, anyhow};
use clap::Args;
use oneread::{PutMode, PutOptions};
use oneread_cluster::client::ClusterError;
use oneread_cluster::etcd::ClusterName;
use oneread_kit::escape::Form;
use oneread_kit::units::Period;
use oneread_kit::{show, status};
use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub struct Get {
    /// The cluster
    name: ClusterName,
    /// The key
    key: String,
    /// Read any whole copy, perhaps an old one: needs no primary and no lease
    #[arg(long)]
    advisory: bool,
    #[command(flatten)]
    tables: Tables,
}

#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread cluster put demo greeting hello
  oneread cluster put demo lock me --insert --ttl 10s     gone after ten seconds

Prints what became of it: put, inserted (--insert), updated (--update), exists
or missing. Exit status 1 if the key was not put: it exists (--insert), or is
missing (--update).")]
pub struct Put {
    /// The cluster
    name: ClusterName,
    /// The key
    key: String,
    /// The value
    value: String,
    /// Only if there is no such key
    #[arg(long, conflicts_with = "update")]
    insert: bool,
    /// Only if there is such a key
    #[arg(long)]
    update: bool,
    /// The entry ends after this time, as in 500ms, 10s, 1h (where nodes were started with --life)
    #[arg(long, value_name = "TIME")]
    ttl: Option<Period>,
    #[command(flatten)]
    tables: Tables,
}

#[derive(Debug, Args)]
pub struct Del {
    /// The cluster
    name: ClusterName,
    /// The key
    key: String,
    #[command(flatten)]
    tables: Tables,
}

#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread cluster remove-owner demo 7

Programs put as an owner (ClusterClient::owner, in Python owner()); the entries
go with it. This has them leave now, and waits until the last one is gone. The
owner's program is refused from then on; then its number may be given again.")]
pub struct RemoveOwner {
    /// The cluster
    name: ClusterName,
    /// The owner's number, 1 to 65534
    owner: u16,
    #[command(flatten)]
    tables: Tables,
}

#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread cluster scan demo             all keys, a line each
  oneread cluster scan demo --prefix user: --limit 10
  oneread cluster scan demo --match 'user:*:name'     as `oneread scan` has it
  oneread cluster scan demo --values > all.tsv
  oneread cluster scan demo --json | jq .key

A key that is there throughout is printed: once, and perhaps again each time
that its shard moves or its primary fails meanwhile. One that comes or goes
meanwhile may be printed or not. Keys are in no order.")]
pub struct Scan {
    /// The cluster
    name: ClusterName,
    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT", conflicts_with = "glob")]
    prefix: Option<String>,
    /// Print so many keys at most
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    tables: Tables,
}

impl Get {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let mut client = reach.client(&self.name, &self.tables)?;
        let value = match self.advisory {
            true => client.get_advisory(self.key.as_bytes())?,
            false => client.get(self.key.as_bytes())?,
        };
        let Some(value) = value else {
            show::complain(format_args!("oneread: there is no key \"{}\"", show::name(&self.key)));
            return Ok(ExitCode::FAILURE);
        };
        let mut out = show::out(Form::Bytes);
        out.write_all(&value)?;
        out.write_all(b"\n")?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Put {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let mut client = reach.client(&self.name, &self.tables)?.exactly_once(false);
        let mode = put_mode(self.insert, self.update);
        let options = PutOptions::from(mode).ttl(self.ttl.map(|Period(ttl)| ttl));
        let is_put = client.put_with(self.key.as_bytes(), self.value.as_bytes(), options)?;
        show::say(match (mode, is_put) {
            // A cluster does not tell whether the key is new.
            (PutMode::Upsert, _) => "put",
            (PutMode::Insert, true) => "inserted",
            (PutMode::Insert, false) => "exists",
            (PutMode::Update, true) => "updated",
            (PutMode::Update, false) => "missing",
        })?;
        Ok(status(is_put))
    }
}

impl Del {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let was_there = reach.client(&self.name, &self.tables)?.remove(self.key.as_bytes())?;
        if !was_there {
            show::complain(format_args!("oneread: there is no key \"{}\"", show::name(&self.key)));
        }
        show::say(format_args!("removed {}", u8::from(was_there)))?;
        Ok(status(was_there))
    }
}

impl RemoveOwner {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let mut client = reach.client(&self.name, &self.tables)?;
        let mut was_there = false;
        loop {
            match client.remove_owner(self.owner) {
                Err(ClusterError::OwnerLeaves { shards, .. }) => {
                    was_there = true;
                    show::complain(format_args!("oneread: entries are leaving still, at {shards} shards"));
                }
                ended => {
                    was_there |= ended?;
                    break;
                }
            }
        }
        show::say(if was_there { "removed" } else { "absent" })?;
        Ok(status(was_there))
    }
}

impl Scan {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let Scan { name, prefix, limit, printed, tables } = self;
        let mut client = reach.client(&name, &tables)?;
        printed.print(limit, |of_glob, values| {
            let prefix = prefix.as_deref().map_or(of_glob, str::as_bytes);
            client.scan().prefix(prefix).values(values).map(|found| {
                found.map_err(|error| {
                    anyhow!("{error}; not all keys were printed; `oneread cluster status {name}` shows who serves what")
                })
            })
        })
    }
}
