//! Single calls of a cluster, for people and scripts.

use super::{ClusterArgs, Tables};
use anyhow::Result;
use clap::Args;
use oneread_cluster::etcd::ClusterName;
use oneread_kit::show;
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
pub struct Put {
    /// The cluster
    name: ClusterName,
    /// The key
    key: String,
    /// The value
    value: String,
    /// Only if there is no such key
    #[arg(long)]
    insert: bool,
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

impl Get {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let mut client = reach.client(&self.name, &self.tables)?;
        let value = match self.advisory {
            true => client.get_advisory(self.key.as_bytes())?,
            false => client.get(self.key.as_bytes())?,
        };
        let Some(value) = value else {
            show::complain(format_args!("oneread: there is no key {:?}", self.key));
            return Ok(ExitCode::FAILURE);
        };
        let mut out = show::out();
        out.write_all(&value)?;
        out.write_all(b"\n")?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Put {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        let mut client = reach.client(&self.name, &self.tables)?.exactly_once(false);
        if !self.insert {
            client.put(self.key.as_bytes(), self.value.as_bytes())?;
        } else if !client.insert(self.key.as_bytes(), self.value.as_bytes())? {
            show::complain(format_args!("oneread: there is a key {:?} already", self.key));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Del {
    pub fn run(self, reach: &ClusterArgs) -> Result<ExitCode> {
        if reach.client(&self.name, &self.tables)?.remove(self.key.as_bytes())? {
            return Ok(ExitCode::SUCCESS);
        }
        show::complain(format_args!("oneread: there is no key {:?}", self.key));
        Ok(ExitCode::FAILURE)
    }
}
