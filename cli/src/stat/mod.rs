//! `stat`: the server's counters and the shape of its table.

pub mod figures;
pub mod inspect;
pub mod told;
pub mod watch;

use crate::connect::Server;
use crate::pages::Pages;
use anyhow::Result;
use clap::Args;
use oneread_kit::show;
use oneread_kit::units::{Period, some_time};
use std::process::ExitCode;
use told::Told;

/// Print the server's counters and the shape of its table
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread stat
  oneread stat --watch            again every second, with rates, until Ctrl-C
  oneread stat --json | jq .server.keys
  oneread stat --json | jq .growth           segments, loads, splits, memory
  oneread stat --json | jq .heap             memory of values outside slots
  oneread stat --json | jq .huge_pages       how much of the table is in them
  oneread stat --json | jq .snapshots.last   when the last snapshot was made
  oneread stat --json | jq .log              how far the log is, and its disk
  oneread stat --json --watch 10s > log      one object a line

The server answers this command. `oneread inspect` looks into the table without
the server. GETs are those of clients on its host, which tell it every 64, and
over TCP.")]
pub struct Stat {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Ask again every so often, as in 500ms, 1s, 5m
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", value_parser = some_time)]
    watch: Option<Period>,
    #[command(flatten)]
    server: Server,
}

impl Stat {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect()?;
        let address = client.address().to_string();
        let is_watched = self.watch.is_some();
        let mut ask = || -> Result<(Told, serde_json::Value)> {
            let mut told = Told::of(&mut client)?;
            // To look takes a while in a large table.
            let region = client.region().filter(|_| !is_watched);
            told.pages = region.map(|region| Pages::of(region, told.stats.pid));
            let json = told.json(&client);
            Ok((told, json))
        };
        if let Some(Period(every)) = self.watch {
            watch::watch(every, &address, ask, self.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        let (told, json) = ask()?;
        show::outcome(self.json, &json, || {
            show::say(format_args!("server at {}", show::name(&address)))?;
            show::lay_out(told.table(client.geometry()))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
