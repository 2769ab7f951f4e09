//! `watch`: prints changes as they come.

use crate::columns;
use crate::connect::Server;
use crate::records::{self, Format, Pair};
use crate::secret::SecretArgs;
use anyhow::Result;
use clap::Args;
use oneread::{ChangeFeed, ErrorKind, FeedFrom, FeedItem, FeedOptions, GapCause, LeftCause};
use oneread_kit::{advice, show};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Print changes as they come: which keys came, were replaced, and left
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread watch                         every change from now on
  oneread watch user: --values          of keys that begin with user:
  oneread watch --keys                  first all keys, then their changes
  oneread watch --json | jq .key
  oneread watch --from 4711             from this change of this server on

A line has the number of the change, what became of the key (came, replaced,
left), the key and, with --values, its value, with tabs between. With --keys,
lines with `key` and no number come first, then `joined`. On a terminal a long
value is cut, and its length follows; a pipe gets all of it. With --json it is
{\"number\": 4711, \"change\": \"came\", \"key\": ..., \"value\": ...}; left has a cause.

The server keeps the last changes in memory and waits for nobody. What was
missed is a line with `gap`: from which number to which, and why. With --keys,
all keys come again then. If the server goes away, this waits until it is back.")]
pub struct Watch {
    /// Only keys that begin with this
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    /// Print values, too
    #[arg(long)]
    values: bool,
    /// Print all keys first, and again after each gap
    #[arg(long, conflicts_with = "from")]
    keys: bool,
    /// Begin with the change of this number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    from: Option<u64>,
    /// Print one JSON object for each change
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    server: Server,
}

/// Longest wait for a change. What is there to be written is written before it.
const REST: Duration = Duration::from_secs(3600);
/// Time between attempts to reach a server that has gone.
const AGAIN: Duration = Duration::from_millis(100);

impl Watch {
    pub fn run(self) -> Result<ExitCode> {
        let client = self.server.connect_with(self.secret.encryption()?)?;
        let from = match self.from {
            Some(number) => FeedFrom::Number(number),
            None if self.keys => FeedFrom::Keys,
            None => FeedFrom::Now,
        };
        let prefix = self.prefix.clone().unwrap_or_default();
        let mut changes = client.changes(FeedOptions::new().from(from).prefix(prefix).values(self.values))?;
        let mut out = show::out(Format::of_lines(self.json).shown_as());
        let room = room();
        let mut is_gone = false;
        loop {
            match self.print_some(&mut changes, &mut out, room) {
                Ok(()) => is_gone = false,
                Err(error) => {
                    let kind = error.downcast_ref::<oneread::FeedError>().map(oneread::FeedError::kind);
                    if !matches!(kind, Some(ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Busy)) {
                        return Err(error);
                    }
                    out.flush()?;
                    if !is_gone {
                        show::complain(format_args!("oneread: {}; waiting for it", advice::told(&error)));
                    }
                    is_gone = true;
                    std::thread::sleep(AGAIN);
                }
            }
        }
    }

    /// Prints what is there, and waits for more.
    fn print_some(&self, changes: &mut ChangeFeed, out: &mut show::Out, room: Option<usize>) -> Result<()> {
        while let Some(item) = changes.next(Duration::ZERO)? {
            Line::of(&item).print(out, self.json, room)?;
            self.resync_after(changes, &item)?;
        }
        out.flush()?;
        if let Some(item) = changes.next(REST)? {
            Line::of(&item).print(out, self.json, room)?;
            self.resync_after(changes, &item)?;
        }
        Ok(())
    }

    fn resync_after(&self, changes: &mut ChangeFeed, item: &FeedItem) -> Result<()> {
        match item {
            FeedItem::Gap { .. } if self.keys => Ok(changes.resync()?),
            _ => Ok(()),
        }
    }
}

/// Most bytes of a value that are shown of a change on a terminal. A pipe gets all.
pub fn room() -> Option<usize> {
    const LINES: usize = 2;
    columns::width().map(|width| LINES * width)
}

/// A shard, and an epoch of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Place {
    pub shard: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

/// What is printed of a change.
#[derive(Debug, Default, Serialize)]
pub struct Line<'i> {
    /// In a cluster: where the change was made.
    #[serde(flatten)]
    pub place: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    pub change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<u16>,
    #[serde(flatten)]
    pub pair: Option<Pair>,
    #[serde(skip)]
    pub key: Option<&'i [u8]>,
    #[serde(skip)]
    pub value: Option<&'i [u8]>,
}

/// Why a key left.
pub fn left(cause: LeftCause) -> &'static str {
    match cause {
        LeftCause::Removed => "removed",
        LeftCause::Expired => "expired",
        LeftCause::Evicted => "evicted",
        LeftCause::OwnerGone => "owner gone",
        _ => "unknown",
    }
}

impl Line<'_> {
    /// Prints it. `room`: most bytes of a value.
    pub fn print(&self, out: &mut impl Write, json: bool, room: Option<usize>) -> Result<()> {
        if json {
            writeln!(out, "{}", serde_json::to_string(self)?)?;
            return Ok(());
        }
        if let Some(Place { shard, epoch }) = self.place {
            let epoch = epoch.map_or_else(|| "-".into(), |epoch| epoch.to_string());
            write!(out, "{shard}/{epoch}/")?;
        }
        let number = self.number.map_or_else(|| "-".into(), |number| number.to_string());
        write!(out, "{number}\t{}", self.change)?;
        if let Some(to) = self.to {
            write!(out, "\t{to}")?;
        }
        if let (Some(owner), None) = (self.owner, self.key) {
            write!(out, "\t{owner}")?;
        }
        if let Some(cause) = self.cause {
            write!(out, "\t{cause}")?;
        }
        match (self.key, self.value) {
            (Some(key), Some(value)) => {
                write!(out, "\t")?;
                match room.filter(|&room| value.len() > room) {
                    Some(room) => {
                        let mut cut = Vec::new();
                        records::write(&mut cut, Format::Tsv, key, &value[..room])?;
                        out.write_all(cut.strip_suffix(b"\n").unwrap_or(&cut))?;
                        writeln!(out, "… ({} in all)", show::bytes(value.len() as u64))?;
                    }
                    None => records::write(out, Format::Tsv, key, value)?,
                }
            }
            (Some(key), None) => {
                write!(out, "\t")?;
                records::write_key(out, key)?;
            }
            (None, _) => writeln!(out)?,
        }
        Ok(())
    }
}

impl<'i> Line<'i> {
    fn of(item: &'i FeedItem) -> Line<'i> {
        let (number, change, key, value) = match item {
            FeedItem::Key { key, value, .. } => (None, "key", Some(key), value.as_ref()),
            FeedItem::Came { number, key, value, .. } => (Some(*number), "came", Some(key), value.as_ref()),
            FeedItem::Replaced { number, key, value, .. } => {
                (Some(*number), "replaced", Some(key), value.as_ref())
            }
            FeedItem::Left { number, key, .. } => (Some(*number), "left", Some(key), None),
            FeedItem::OwnerGone { number, .. } => (Some(*number), "owner gone", None, None),
            FeedItem::Gap { from, .. } => (Some(from.number), "gap", None, None),
            FeedItem::Joined => (None, "joined", None, None),
            _ => (None, "unknown", None, None),
        };
        let to = match item {
            FeedItem::Gap { to, .. } => Some(to.number),
            _ => None,
        };
        let cause = match item {
            FeedItem::Gap { cause: GapCause::TooSlow, .. } => Some("too slow"),
            FeedItem::Gap { cause: GapCause::OtherServer, .. } => Some("another server"),
            FeedItem::Gap { cause: GapCause::OtherTable, .. } => Some("another table"),
            FeedItem::Left { cause, .. } => Some(left(*cause)),
            FeedItem::Gap { .. } => Some("unknown"),
            _ => None,
        };
        let (key, value) = (key.map(Vec::as_slice), value.map(Vec::as_slice));
        let pair = key.map(|key| Pair::new(key, value));
        let owner = match item {
            FeedItem::Key { owner, .. }
            | FeedItem::Came { owner, .. }
            | FeedItem::Replaced { owner, .. }
            | FeedItem::OwnerGone { owner, .. } => Some(*owner).filter(|&owner| owner != 0),
            _ => None,
        };
        Line { number, change, to, cause, owner, pair, key, value, ..Line::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a terminal a long value is cut, and says how long it is. A pipe gets all of it, and so does JSON.
    #[test]
    fn long_values_are_cut_on_a_terminal() {
        let printed = |len: usize, json, room| {
            let item =
                FeedItem::Came { number: 7, key: b"key".into(), value: Some(vec![b'v'; len]), owner: 0 };
            let mut out = Vec::new();
            Line::of(&item).print(&mut out, json, room).unwrap();
            String::from_utf8(out).unwrap()
        };
        let (short, long) = ("v".repeat(160), "v".repeat(4096));
        assert_eq!(printed(160, false, Some(160)), format!("7\tcame\tkey\t{short}\n"));
        assert_eq!(printed(4096, false, Some(160)), format!("7\tcame\tkey\t{short}… (4 KiB in all)\n"));
        assert_eq!(printed(4096, false, None), format!("7\tcame\tkey\t{long}\n"));
        assert!(printed(4096, true, Some(160)).contains(&long));
    }
}
