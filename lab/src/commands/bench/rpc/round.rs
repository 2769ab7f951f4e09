//! The table that `bench rpc` measures, and the rounds in which all connections ask at once.

use super::outcome::{Operation, Path, Tally};
use crate::commands::bench::runner::fill;
use crate::measure::{KEY_BYTES, VALUE_BYTES, key, value};
use anyhow::{Context, Result, ensure};
use oneread::internals::layout::hash::{mix, reduce};
use oneread::{Client, PutOutcome};
use oneread_kit::child::ServerChild;
use oneread_kit::progress::Progress;
use oneread_kit::show;
use oneread_kit::threads::at_once_beside;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The value number `version` of key number `n`. It contains its version.
pub fn stamped(n: u64, version: u64) -> [u8; VALUE_BYTES] {
    let mut out = value(n ^ version << 32);
    out[..8].copy_from_slice(&version.to_le_bytes());
    out
}

/// Whether these bytes are a value that was put for this key, up to this version.
pub fn is_value_of(n: u64, bytes: &[u8], version: u64) -> bool {
    let Some((stamp, _)) = bytes.split_first_chunk::<8>() else { return false };
    let stamp = u64::from_le_bytes(*stamp);
    stamp <= version && bytes == stamped(n, stamp)
}

/// The table that is measured, and how to reach it.
pub struct Table {
    /// The number of the first key.
    pub first: u64,
    pub keys: u64,
    pub batch: u32,
    pub client: Client,
    /// The client whose requests the server polls for, and its path.
    pub polled: Option<(Path, Client)>,
    /// A signal has come.
    pub stop: Arc<AtomicBool>,
}

impl Table {
    pub fn key(&self, n: u64) -> [u8; KEY_BYTES] {
        key(self.first.wrapping_add(n))
    }

    /// The numbers of all keys, some at a time.
    pub fn batches(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let keys = self.keys;
        (0..keys).step_by(256).map(move |first| first..(first + 256).min(keys))
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn ensure_goes_on(&self) -> Result<()> {
        ensure!(!self.is_stopped(), "a signal has ended the bench");
        Ok(())
    }

    /// No key is there that this bench would write over.
    pub fn check_absent(&self, client: &mut Client) -> Result<()> {
        for numbers in self.batches() {
            let keys: Vec<_> = numbers.map(|n| self.key(n)).collect();
            for found in client.get_many(&keys)? {
                ensure!(
                    found?.is_none(),
                    "the table has a key that this bench was about to put; run it again, which takes other keys"
                );
            }
        }
        Ok(())
    }

    pub fn fill(&self, client: &mut Client) -> Result<()> {
        fill(client, self.keys, 256, |n| (self.key(n), stamped(n, 0)), |_| self.ensure_goes_on())
    }

    /// Removes all keys, also those of a batch that was put in part.
    pub fn clear(&self, client: &mut Client) -> Result<()> {
        let mut removed = 0;
        let mut remove = || -> Result<()> {
            let bar = Progress::of(self.keys, "removing", "keys");
            for numbers in self.batches() {
                let keys: Vec<_> = numbers.map(|n| self.key(n)).collect();
                for was_there in client.remove_many(&keys)? {
                    removed += u64::from(was_there?);
                }
                bar.inc(keys.len() as u64);
            }
            bar.finish();
            Ok(())
        };
        let done = remove();
        if let Err(error) = &done {
            show::complain(format_args!(
                "oneread: up to {} of this bench stay in the table: {error:#}",
                show::counted(self.keys - removed, "key")
            ));
        }
        done.context("removing the bench's keys")
    }

    /// A client for this path, if the server offers it.
    pub fn client_for(&self, path: Path) -> Option<Client> {
        match path {
            Path::OneSided | Path::Message => Some(self.client.clone()),
            Path::Mailbox | Path::Herd => {
                self.polled.as_ref().filter(|(polled, _)| *polled == path).map(|(_, client)| client.clone())
            }
        }
    }
}

/// The pause between connecting and asking.
pub const SETTLE: Duration = Duration::from_millis(100);

/// A signal is noticed within this time.
pub const SIGNAL: Duration = Duration::from_millis(50);

/// One round: all connections do the same for some time.
pub struct Round<'a> {
    pub table: &'a Table,
    pub operation: Operation,
    pub path: Path,
    pub connections: u32,
    pub version: u64,
}

impl Round<'_> {
    pub fn run(&self, time: Duration, server: Option<&ServerChild>) -> Result<Tally> {
        let (ready, stop) = (Barrier::new(self.connections as usize + 1), AtomicBool::new(false));
        let cpu = || server.map(ServerChild::cpu_time).transpose();
        let connections = 0..self.connections;
        let ((before, begun), tallies) = at_once_beside(
            connections,
            |n| self.ask(n, &ready, &stop),
            || {
                ready.wait();
                // The server's remaining work for a new connection does not count.
                std::thread::sleep(SETTLE);
                ready.wait();
                let (before, begun) = (cpu(), Instant::now());
                while begun.elapsed() < time && !self.table.is_stopped() {
                    std::thread::sleep(time.saturating_sub(begun.elapsed()).min(SIGNAL));
                }
                stop.store(true, Ordering::Relaxed);
                (before, begun)
            },
        )?;
        // The time ends with the last answer: all counted operations happened in it.
        let seconds = begun.elapsed().as_secs_f64();
        let mut all = Tally::new()?;
        tallies.iter().try_for_each(|tally| all.add(tally))?;
        all.rates = vec![all.operations as f64 / seconds];
        all.cpu_ms = before?.zip(cpu()?).map(|(before, after)| after.ms_since(before));
        Ok(all)
    }

    /// One connection: asks until it is told to stop.
    pub fn ask(&self, number: u32, ready: &Barrier, stop: &AtomicBool) -> Result<Tally> {
        let mut client = self.table.client_for(self.path).context("a path that is no contestant")?;
        let mut tally = Tally::new()?;
        let mut buffer = Vec::new();
        let stream = mix(u64::from(number) << 32 ^ self.version << 2 ^ self.path as u64);
        let mut operation = |i: u64, client: &mut Client| match self.operation {
            Operation::PutMany => {
                let batch = u64::from(self.table.batch);
                let numbers = i * batch..(i + 1) * batch;
                let numbers = numbers.map(|i| reduce(mix(stream ^ i), self.table.keys));
                let pairs: Vec<_> = numbers.map(|n| (self.table.key(n), stamped(n, self.version))).collect();
                let answers = client.put_many(&pairs)?;
                ensure!(
                    answers.iter().all(|answer| *answer == Ok(PutOutcome::Updated)),
                    "a key of this bench is gone, or was never put: somebody else removed it; let nobody remove keys meanwhile"
                );
                Ok(batch)
            }
            _ => self.once(client, reduce(mix(stream ^ i), self.table.keys), &mut buffer).map(|()| 1),
        };
        // Connecting and the first answers are not timed. An error here is reported later, for all.
        let warm = (0..8).try_for_each(|i| operation(i, &mut client).map(drop));
        ready.wait();
        ready.wait();
        warm?;
        let reads = client.stats().read.reads;
        let repeats = repeats(&client);
        for i in 8.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            let done = operation(i, &mut client)?;
            tally.latencies.saturating_record(begun.elapsed().as_nanos() as u64);
            tally.operations += done;
        }
        tally.reads = client.stats().read.reads - reads;
        tally.repeats = self::repeats(&client) - repeats;
        Ok(tally)
    }

    pub fn once(&self, client: &mut Client, n: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let is_right = match (self.operation, self.path) {
            (Operation::Get, Path::OneSided) => {
                client.get_into(&self.table.key(n), buffer)? && is_value_of(n, buffer, self.version)
            }
            (Operation::Get, _) => client
                .get_two_sided(&self.table.key(n))?
                .is_some_and(|value| is_value_of(n, &value, self.version)),
            (Operation::Put | Operation::PutMany, _) => {
                client.put(&self.table.key(n), &stamped(n, self.version))? == PutOutcome::Updated
            }
        };
        ensure!(
            is_right,
            "key number {n} of this bench is gone, or has another value than was put: somebody else changed it, or the table was emptied; let nobody change it meanwhile"
        );
        Ok(())
    }
}

pub fn repeats(client: &Client) -> u64 {
    #[cfg(feature = "verbs")]
    return client.queue_counts().map_or(0, |counts| counts.repeats);
    #[cfg(not(feature = "verbs"))]
    return {
        let _ = client;
        0
    };
}
