//! `owner`: sessions of owners, and their end.

use crate::connect::Server;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use oneread::OwnerOptions;
use oneread_kit::show;
use oneread_kit::units::Period;
use std::io::Read;
use std::process::ExitCode;

/// Keep the entries of an owner, or have all of them go at once
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread serve --owners                      entries may have owners
  oneread put --owner 7 worker:7 busy         an entry of owner 7
  oneread owner keep 7                        until this ends, and 10 s more
  oneread owner remove 7                      all its entries are gone

A put makes an entry its owner's, if it names one. An owner is there as long as
a client has a session of it. When the last one has ended, and no other has
begun for --absent-for, no reader finds any of its entries any more.")]
pub struct Owner {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Have a session of an owner until standard input ends
    Keep {
        /// Its number, 1 to 65534
        owner: u16,
        /// How long it may be without a session, as in 500ms, 10s
        #[arg(long, value_name = "TIME", default_value = "10s")]
        absent_for: Period,
        #[command(flatten)]
        server: Server,
    },
    /// Have all entries of an owner go at once; status 1 if there was no such owner
    Remove {
        /// Its number, 1 to 65534
        owner: u16,
        #[command(flatten)]
        server: Server,
    },
}

/// The options of a session of this owner.
pub fn options(owner: u16, absent_for: Option<Period>) -> OwnerOptions {
    let options = OwnerOptions::new(owner);
    absent_for.map_or(options, |Period(time)| options.absent_for(time))
}

impl Owner {
    pub fn run(self) -> Result<ExitCode> {
        match self.what {
            What::Keep { owner, absent_for, server } => {
                let client = server.connect()?.owner(options(owner, Some(absent_for)))?;
                show::say(format_args!("owner {owner} is there"))?;
                let mut rest = std::io::stdin().lock();
                while rest.read(&mut [0; 4096]).context("standard input")? > 0 {}
                drop(client);
                Ok(ExitCode::SUCCESS)
            }
            What::Remove { owner, server } => {
                let is_gone = server.connect()?.remove_owner(owner)?;
                show::say(if is_gone { "removed" } else { "absent" })?;
                Ok(if is_gone { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
        }
    }
}
