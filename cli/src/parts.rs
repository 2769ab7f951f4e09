//! `incr`, `add`, `append`, `or`, `and-not`: change a part of a value; `touch`: set an end; `clear`: remove all keys.

use crate::data::{ChangeOptions, decode, given_value};
use anyhow::{Result, ensure};
use clap::Args;
use oneread::{Client, NewNumber, PartChange, PartEffect, PartOutcome, Tell};
use oneread_kit::progress::Progress;
use oneread_kit::units::Period;
use oneread_kit::{show, status};
use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;

/// Add to a number, which is decimal text, and print what it is then
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread incr visits                   adds 1
  oneread incr visits -5                takes 5 away
  oneread incr tickets --initial 1000   an absent key counts as 1000
  oneread incr hits --ttl 60s           a key that comes is gone after a minute
  oneread incr visits --update          only if it is present

A number is decimal text from -9223372036854775808 to 9223372036854775807, so
`oneread put` and `oneread get` put and print it. A sum out of that range, and a
value that is no such text, are errors, and change nothing. No other change
comes between. Do not repeat it if no answer came: it may have been done.
(`oneread add` is for counters of 8 bytes.) --ttl takes a table that was made
with `oneread serve --life`.

Prints the sum, or missing if the key was not there; with --json as
{\"outcome\": \"updated\", \"value\": 42}. Exit status 1 if nothing was added.")]
pub struct Incr {
    /// The key
    key: String,
    /// What to add
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    delta: i64,
    /// What an absent key counts as
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        allow_negative_numbers = true,
        conflicts_with = "update"
    )]
    initial: i64,
    /// How long a key lives that comes; one that is there keeps its end
    #[arg(long, value_name = "TIME", conflicts_with = "update")]
    ttl: Option<Period>,
    /// Add only if the key is present
    #[arg(long)]
    update: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Incr {
    pub fn run(self) -> Result<ExitCode> {
        let key = decode(&self.key, self.options.hex)?;
        let absent = NewNumber { value: self.initial, ttl: self.ttl.map(|Period(ttl)| ttl) };
        let mut client = self.options.server.connect()?;
        let sum = client.incr(&key, self.delta, (!self.update).then_some(absent))?;
        self.options.say_sum(sum)
    }
}

/// Set when a key ends, and keep its value
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread touch session --ttl 30m       gone half an hour from now
  oneread touch session                 as one that is put without --ttl

The table has ends if it was made with `oneread serve --life`.

Prints updated, or missing if the key was not there; with --json as
{\"outcome\": \"updated\"}. Exit status 1 if it was not there.")]
pub struct Touch {
    /// The key
    key: String,
    /// How long it lives from now on
    #[arg(long, value_name = "TIME")]
    ttl: Option<Period>,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Touch {
    pub fn run(self) -> Result<ExitCode> {
        let key = decode(&self.key, self.options.hex)?;
        let is_there = self.options.server.connect()?.touch(&key, self.ttl.map(|Period(ttl)| ttl))?;
        self.options.say_outcome(if is_there { "updated" } else { "missing" })?;
        Ok(status(is_there))
    }
}

/// Add to a counter of 8 bytes, and print what it is then
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread add visits                    adds 1
  oneread add visits -5                 takes 5 away
  oneread add tickets --initial 1000    an absent key counts as 1000
  oneread add visits --update           only if it is present

A counter is a value of 8 bytes: a number from 0 to 18446744073709551615, the
lowest byte first (`oneread incr` is for numbers that are text). A sum out of
that range is an error, and changes nothing. No other change comes between. Do
not repeat it if no answer came: it may have been done.

Prints the sum, or missing if the key was not there; with --json as
{\"outcome\": \"updated\", \"value\": 42}. Exit status 1 if nothing was added.")]
pub struct Add {
    /// The key
    key: String,
    /// What to add
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    delta: i64,
    /// What an absent key counts as
    #[arg(long, value_name = "NUMBER", default_value_t = 0, conflicts_with = "update")]
    initial: u64,
    /// Add only if the key is present
    #[arg(long)]
    update: bool,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Add {
    pub fn run(self) -> Result<ExitCode> {
        let key = decode(&self.key, self.options.hex)?;
        let initial = (!self.update).then_some(self.initial);
        let mut client = self.options.server.connect()?;
        self.options.say_sum(client.add(&key, self.delta, initial)?)
    }
}

/// Append to a value
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread append log 'one more line'
  oneread append --max 4096 log more    only if the value then has 4096 bytes
                                        at the most
  oneread append log - < lines          what to append from stdin

An absent key counts as one with an empty value. No other change comes between.
Do not repeat it if no answer came: it may have been done.

Prints the outcome: inserted or updated, or unchanged if there was nothing to
append; with --json as {\"outcome\": \"updated\"}.")]
pub struct Append {
    /// The key
    key: String,
    /// What to append; `-` reads it from stdin
    value: String,
    /// The longest value that may come of it, in bytes [default: the table's longest]
    #[arg(long, value_name = "BYTES")]
    max: Option<usize>,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Append {
    pub fn run(self) -> Result<ExitCode> {
        let (key, bytes) =
            (decode(&self.key, self.options.hex)?, given_value(&self.value, self.options.hex)?);
        let part = PartChange::Append { bytes: &bytes, len_max: self.max.unwrap_or(usize::MAX) };
        self.options.change(&key, part)
    }
}

/// Set bits of a value
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread or seen 01                    the lowest bit of the first byte
  oneread or seen 000080                the highest bit of the third byte

The bits are in hex, for the first bytes of the value. An absent key gets them
as its value; more bytes than the value has are an error. No other change comes
between.

Prints the outcome: inserted or updated, or unchanged if all were set; with
--json as {\"outcome\": \"updated\"}.")]
pub struct Or {
    /// The key
    key: String,
    /// The bits to set, in hex
    bits: String,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Or {
    pub fn run(self) -> Result<ExitCode> {
        let (key, bits) = (decode(&self.key, self.options.hex)?, decode(&self.bits, true)?);
        self.options.change(&key, PartChange::Or { bits: &bits })
    }
}

/// Clear bits of a value
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread and-not seen 01               the lowest bit of the first byte

The bits are in hex, as for `oneread or`. No other change comes between.

Prints the outcome: updated, unchanged if all were clear, or missing; with
--json as {\"outcome\": \"updated\"}. Exit status 1 if the key was not there.")]
pub struct AndNot {
    /// The key
    key: String,
    /// The bits to clear, in hex
    bits: String,
    #[command(flatten)]
    options: ChangeOptions,
}

impl AndNot {
    pub fn run(self) -> Result<ExitCode> {
        let (key, bits) = (decode(&self.key, self.options.hex)?, decode(&self.bits, true)?);
        self.options.change(&key, PartChange::AndNot { bits: &bits })
    }
}

impl ChangeOptions {
    /// Prints what a number or a counter is now, or that it is absent.
    fn say_sum(&self, sum: Option<impl Display + Serialize>) -> Result<ExitCode> {
        let status = status(sum.is_some());
        match (sum, self.json) {
            (Some(sum), false) => show::say(sum)?,
            (None, false) => show::say("missing")?,
            (sum, true) => {
                let outcome = if sum.is_some() { "updated" } else { "missing" };
                show::say(serde_json::json!({ "outcome": outcome, "value": sum }))?;
            }
        }
        Ok(status)
    }

    /// Changes a part of a value, and prints what became of it.
    fn change(&self, key: &[u8], part: PartChange<'_>) -> Result<ExitCode> {
        let mut client: Client = self.server.connect()?;
        let PartOutcome { effect, .. } = client.change_part(key, part, Tell::Nothing)?;
        let name = match effect {
            PartEffect::Inserted => "inserted",
            PartEffect::Updated => "updated",
            PartEffect::Unchanged => "unchanged",
            PartEffect::Absent => "missing",
        };
        self.say_outcome(name)?;
        Ok(status(effect != PartEffect::Absent))
    }
}

/// Remove all keys
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread clear --yes

The server removes each key by itself, in steps of a millisecond, and serves
others in between. A key that somebody puts meanwhile may stay. It may be
repeated. A table that grows gives its memory back as after other deletes
(`oneread shrink`).

Prints how many keys went; with --json as {\"removed\": 42}.")]
pub struct Clear {
    /// Yes, all of them
    #[arg(long)]
    yes: bool,
    /// Print the outcome as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: crate::connect::Server,
}

impl Clear {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect()?;
        ensure!(self.yes, "this removes every key at {}; say --yes if that is right", client.address());
        let bar = Progress::of_unknown("removing", "keys removed");
        let removed = client.clear_with(|step| {
            bar.set_position(step.removed);
            true
        })?;
        bar.finish();
        show::outcome(self.json, &serde_json::json!({ "removed": removed }), || {
            show::say(format_args!("removed {}", show::count(removed)))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
