//! `bench kill`: what is left of acknowledged changes when servers are killed.
//!
//! Threads change keys of their own, each with a client. They note every change before they ask for
//! it, and again when it is acknowledged. The server is killed at a random instant, another takes the
//! region over, and the table is held against the notes.

use crate::measure::{key, machine};
use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use oneread::internals::inspect::{Inspector, SlotReport};
use oneread::internals::layout::hash::mix;
use oneread::{Client, layout::Layout};
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::progress::Progress;
use oneread_kit::{names, show};
use rand::RngExt;
use serde::Serialize;
use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Kill servers under load and count what is lost
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench kill
  oneread bench kill --kills 50 --value-bytes 32 --json

Several threads put, update and remove keys, until the server is killed
(SIGKILL) at a random instant. Then another server takes the region over, and
every key is read. Each key must have its last acknowledged value, or that of a
change that was under way. Every second kill waits for an instant that leaves a
slot half written: only such a kill puts the undo lines to the test. `torn`
counts them all, also those that came by chance.
After every fourth kill, the next server is told to stop (SIGTERM) under the
same load; it must hand its table over. The exit status is 1 if anything is not
as it must be.")]
pub struct Kill {
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,
    /// Number of threads that change keys, each by a client of its own
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Number of the server's threads that make changes. Of many, some have lost their processor in
    /// the middle of a slot when they are killed
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Keys of each thread
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// Length of the values in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 3900, value_parser = clap::value_parser!(u64).range(8..=3900))]
    value_bytes: u64,
    /// The table's layout
    #[arg(long, value_name = "NAME", default_value = "windowed:8", value_parser = names::layout(), hide_possible_values = true)]
    layout: Layout,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What came of it. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    machine: String,
    layout: String,
    value_bytes: u64,
    kills: u64,
    /// Kills that left a slot half written.
    torn: u64,
    /// Servers that were told to stop, and those that handed their table over.
    stops: u64,
    handed_over: u64,
    keys: u64,
    /// Acknowledged changes.
    acknowledged: u64,
    /// Keys that were gone.
    lost: u64,
    /// Keys that had a value other than the last ones asked for.
    wrong: u64,
    /// Keys that stood in two slots after a takeover.
    doubled: u64,
    /// Slots that were taken after a takeover, but by no key that a GET finds.
    leaked: u64,
    /// From the start of the process until it serves.
    takeover_ms_p50: f64,
    takeover_ms_max: f64,
}

/// What one thread knows of its keys. A version is a value's number, or 0 if the key is absent.
struct Ledger {
    first: u64,
    keys: Vec<Note>,
    version: u64,
    acknowledged: u64,
}

#[derive(Clone, Copy, Default)]
struct Note {
    acknowledged: u64,
    /// The version asked for and not acknowledged.
    under_way: Option<u64>,
}

impl Outcome {
    fn is_well(&self) -> bool {
        self.lost + self.wrong + self.doubled + self.leaked == 0 && self.stops == self.handed_over
    }

    /// Compares a key with its note. What is there is the acknowledged state from now on.
    fn compare(&mut self, note: &mut Note, found: bool, is: impl Fn(u64) -> bool) {
        let versions = [Some(note.acknowledged), note.under_way.take()];
        match versions
            .into_iter()
            .flatten()
            .find(|&version| if version == 0 { !found } else { found && is(version) })
        {
            Some(version) => note.acknowledged = version,
            None if found => self.wrong += 1,
            None => {
                self.lost += 1;
                note.acknowledged = 0;
            }
        }
    }

    /// Counts the slots that should not be as they are.
    fn look_through(&mut self, slots: impl Iterator<Item = SlotReport>, present: &HashSet<Vec<u8>>) {
        let mut seen = HashSet::new();
        for report in slots {
            if report.verdict.is_err() || !report.header.is_free() && !present.contains(&report.key) {
                self.leaked += 1;
            } else if !report.header.is_free() && !seen.insert(report.key) {
                self.doubled += 1;
            }
        }
    }
}

impl Kill {
    pub fn run(self) -> Result<ExitCode> {
        let outcome = self.measure()?;
        show::outcome(self.json, &outcome, || self.show(&outcome))?;
        Ok(oneread_kit::status(outcome.is_well()))
    }

    fn show(&self, it: &Outcome) -> Result<()> {
        show::say(format_args!(
            "{}, {}, values of {} bytes, layout {}\n{}",
            show::counted(it.kills, "kill"),
            show::counted(self.threads, "thread"),
            it.value_bytes,
            it.layout,
            show::machine(&it.machine)
        ))?;
        let mut table = show::facts();
        for (name, count) in [
            ("kills that left a slot half written", it.torn),
            ("servers told to stop", it.stops),
            ("tables handed over", it.handed_over),
            ("keys", it.keys),
            ("changes acknowledged", it.acknowledged),
            ("keys lost", it.lost),
            ("keys with a wrong value", it.wrong),
            ("keys in two slots", it.doubled),
            ("slots leaked", it.leaked),
        ] {
            table.add_row([name.to_owned(), show::count(count)]);
        }
        let times = format!("{:.0} ms, at most {:.0} ms", it.takeover_ms_p50, it.takeover_ms_max);
        table.add_row(["takeover, with the start of the process".to_owned(), times]);
        Ok(show::lay_out(table)?)
    }

    fn measure(&self) -> Result<Outcome> {
        let keys = self.keys * self.threads;
        // Nearly full at times, so that keys are moved.
        let slots = keys + keys / 20 + 8;
        let mut server = ServerChild::spawn_on_file(
            Fabric::Shm,
            &[
                format!("--layout={}", self.layout),
                format!("--slots={slots}"),
                format!("--workers={}", self.workers),
                "--key-max=32".into(),
                format!("--value-max={}", self.value_bytes),
            ],
        )?;
        let mut outcome = Outcome {
            machine: machine(),
            layout: self.layout.to_string(),
            value_bytes: self.value_bytes,
            kills: self.kills,
            keys,
            ..Outcome::default()
        };
        let notes = vec![Note::default(); self.keys as usize];
        let ledger =
            |thread| Ledger { first: thread * self.keys, keys: notes.clone(), version: 0, acknowledged: 0 };
        let mut ledgers: Vec<Ledger> = (0..self.threads).map(ledger).collect();
        let mut times = Histogram::<u64>::new(3)?;
        let bar = Progress::of(self.kills, "killing", "kills");
        for kill in 0..self.kills {
            if kill % 4 == 3 {
                self.change_until(ServerChild::end, &mut server, &mut ledgers)?;
                outcome.stops += 1;
                let ready = server.restart()?;
                outcome.handed_over += u64::from(ready["recovered"]["handed_over"] == true);
                self.check(&server, &mut ledgers, &mut outcome)?;
            }
            let end = if kill % 2 == 0 { kill_in_a_write } else { ServerChild::kill };
            self.change_until(end, &mut server, &mut ledgers)?;
            let begun = Instant::now();
            let ready = server.restart()?;
            times.record(begun.elapsed().as_micros() as u64)?;
            let torn = ready["recovered"]["torn"].as_u64().context("the new server took nothing over: its region file is gone; let nobody remove files below /dev/shm meanwhile, and run the bench again")?;
            outcome.torn += u64::from(torn > 0);
            self.check(&server, &mut ledgers, &mut outcome)?;
            bar.inc(1);
        }
        bar.finish();
        outcome.acknowledged = ledgers.iter().map(|ledger| ledger.acknowledged).sum();
        outcome.takeover_ms_p50 = times.value_at_quantile(0.5) as f64 / 1e3;
        outcome.takeover_ms_max = times.max() as f64 / 1e3;
        Ok(outcome)
    }

    /// Lets every thread change its keys, and kills or stops the server when all have been answered for
    /// some time.
    fn change_until(
        &self,
        end: fn(&mut ServerChild) -> Result<()>,
        server: &mut ServerChild,
        ledgers: &mut [Ledger],
    ) -> Result<()> {
        let clients = ledgers.iter().map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
        let answered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = ledgers
                .iter_mut()
                .zip(clients)
                .map(|(ledger, mut client)| {
                    let answered = &answered;
                    scope
                        .spawn(move || is_answered(|| ledger.change(&mut client, self.value_bytes), answered))
                })
                .collect();
            while answered.load(Ordering::Relaxed) < threads.len() && !threads.iter().any(|t| t.is_finished())
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..20_000)));
            end(server)?;
            let all = threads.into_iter().all(|thread| thread.join().unwrap_or(false));
            ensure!(
                all,
                "the server refused a change, or its connection ended, before it was killed; RUST_LOG=debug says which: run the bench again with it, and with fewer --keys if there is no memory"
            );
            Ok(())
        })
    }

    /// Holds the table against the notes. What is there is the acknowledged state from now on.
    fn check(&self, server: &ServerChild, ledgers: &mut [Ledger], outcome: &mut Outcome) -> Result<()> {
        let mut client = server.connect()?;
        let mut present = HashSet::new();
        let mut got = Vec::new();
        for ledger in ledgers {
            for (number, note) in (ledger.first..).zip(&mut ledger.keys) {
                let key = key(number);
                let found = client.get_into(&key, &mut got)?;
                outcome.compare(note, found, |version| got == value(number, version, self.value_bytes));
                if found {
                    present.insert(key.to_vec());
                }
            }
        }
        let region = server.map_region()?;
        let (geometry, _) = Inspector::superblock(&region)?;
        outcome.look_through(Inspector::new(&region, &geometry).slots(), &present);
        Ok(())
    }
}

/// Makes changes until one fails. Returns whether one was answered before, which `answered` counts at once.
fn is_answered(mut change: impl FnMut() -> Result<()>, answered: &AtomicUsize) -> bool {
    let mut is_first = true;
    while change().is_ok() {
        answered.fetch_add(usize::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
    }
    !is_first
}

/// Kills the server at an instant that leaves a slot half written. It is stopped at random instants
/// until there is such a slot.
fn kill_in_a_write(server: &mut ServerChild) -> Result<()> {
    let region = server.map_region()?;
    let (geometry, _) = Inspector::superblock(&region)?;
    let inspector = Inspector::new(&region, &geometry);
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        server.stop()?;
        if inspector.slots().any(|slot| slot.verdict.is_err()) {
            return server.kill();
        }
        ensure!(
            Instant::now() < patience,
            "within a minute the server was never stopped in the middle of a store: the machine is too busy; run the bench again, or with larger --value-bytes"
        );
        server.resume()?;
        std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..2_000)));
    }
}

impl Ledger {
    /// Asks for some changes: mostly a batch of puts, now and then removes.
    fn change(&mut self, client: &mut Client, value_bytes: u64) -> Result<()> {
        const BATCH: u64 = 64;
        let mut random = rand::rng();
        let start = random.random_range(0..self.keys.len());
        let len = self.keys.len().min(BATCH as usize);
        let some: Vec<usize> = (start..start + len).map(|n| n % self.keys.len()).collect();
        if random.random_range(0..8) == 0 {
            for n in some.into_iter().take(4) {
                self.ask(n, 0);
                client.remove(&key(self.first + n as u64))?;
                self.acknowledge(n);
            }
            return Ok(());
        }
        let mut pairs = Vec::with_capacity(some.len());
        for &n in &some {
            self.version += 1;
            self.ask(n, self.version);
            let number = self.first + n as u64;
            pairs.push((key(number), value(number, self.version, value_bytes)));
        }
        for (n, answer) in some.into_iter().zip(client.put_many(&pairs)?) {
            match answer {
                Ok(_) => self.acknowledge(n),
                // The table is full: nothing was changed.
                Err(_) => self.keys[n].under_way = None,
            }
        }
        Ok(())
    }

    fn ask(&mut self, n: usize, version: u64) {
        self.keys[n].under_way = Some(version);
    }

    fn acknowledge(&mut self, n: usize) {
        let note = &mut self.keys[n];
        note.acknowledged = note.under_way.take().expect("it was asked for");
        self.acknowledged += 1;
    }
}

/// A value that shows of which key and version it is, in every word.
fn value(number: u64, version: u64, bytes: u64) -> Vec<u8> {
    let mut value = mix(number << 32 ^ version).to_le_bytes().repeat(bytes.div_ceil(8) as usize);
    value.truncate(bytes as usize);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key has the acknowledged version or the one under way. Anything else is counted.
    #[test]
    fn keys_are_compared_with_their_notes() {
        // The version there, 0 for none; those noted; then what is noted, and whether it is lost or wrong.
        for (there, acknowledged, under_way, after, lost, wrong) in [
            (3, 3, None, 3, 0, 0),
            (3, 3, Some(4), 3, 0, 0),
            (4, 3, Some(4), 4, 0, 0),
            (0, 3, Some(0), 0, 0, 0),
            (0, 0, Some(4), 0, 0, 0),
            (0, 3, None, 0, 1, 0),
            (0, 3, Some(4), 0, 1, 0),
            (2, 3, Some(4), 3, 0, 1),
            (4, 0, None, 0, 0, 1),
        ] {
            let mut outcome = Outcome::default();
            let mut note = Note { acknowledged, under_way };
            outcome.compare(&mut note, there != 0, |version| version == there);
            assert_eq!(
                (note.acknowledged, note.under_way),
                (after, None),
                "{there} {acknowledged} {under_way:?}"
            );
            assert_eq!((outcome.lost, outcome.wrong), (lost, wrong), "{there} {acknowledged} {under_way:?}");
            assert_eq!(outcome.is_well(), lost + wrong == 0);
        }
    }

    /// A thread counts once however many changes were answered, and not at all if the first one was refused.
    #[test]
    fn threads_that_were_refused_are_not_answered() {
        let answered = AtomicUsize::new(0);
        for (changes, expected) in [(0, (false, 0)), (1, (true, 1)), (3, (true, 2))] {
            let mut left = changes;
            let change = || {
                ensure!(left > 0, "refused");
                left -= 1;
                Ok(())
            };
            let found = is_answered(change, &answered);
            assert_eq!((found, answered.load(Ordering::Relaxed)), expected, "{changes} changes");
        }
    }

    /// Keys that stand twice, slots of no key, and slots that no reader accepts are counted, free ones not.
    #[test]
    fn slots_are_looked_through() {
        let config = oneread::Config::new().size(oneread::TableSize::Slots(64));
        let geometry = config.geometry().unwrap();
        let region = oneread::embedded::Region::private(geometry.region_bytes());
        let index =
            oneread::embedded::Index::create(region, geometry.clone(), oneread::embedded::Clock::System)
                .unwrap();
        for key in [b"one", b"two"] {
            index.put(key, b"value", oneread::PutMode::Upsert).unwrap();
        }
        let inspector = Inspector::new(index.region(), &geometry);
        let counts = |times: usize, present: &[&[u8]], torn: bool| {
            let mut outcome = Outcome::default();
            let present = present.iter().map(|key| key.to_vec()).collect();
            let slots =
                (0..times).flat_map(|_| inspector.slots()).map(|slot| match torn && slot.key == b"two" {
                    true => SlotReport { verdict: Err(oneread::internals::layout::slot::Torn::Crc), ..slot },
                    false => slot,
                });
            outcome.look_through(slots, &present);
            assert_eq!(outcome.is_well(), outcome.leaked + outcome.doubled == 0);
            (outcome.leaked, outcome.doubled)
        };
        assert_eq!(counts(1, &[b"one", b"two"], false), (0, 0));
        assert_eq!(counts(1, &[b"one"], false), (1, 0));
        assert_eq!(counts(2, &[b"one", b"two"], false), (0, 2));
        assert_eq!(counts(1, &[b"one", b"two"], true), (1, 0));
        let outcome = Outcome { stops: 2, handed_over: 1, ..Outcome::default() };
        assert!(!outcome.is_well());
    }
}
