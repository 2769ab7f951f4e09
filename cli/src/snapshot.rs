//! `snapshot`, `restore`: all keys of a table in one file, and back.

use crate::connect::Server;
use crate::entries::{Became, Entry, EntryPuts};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use oneread::internals::layout::extent::REFERENCE_BYTES;
use oneread::internals::layout::slot::SlotShape;
use oneread::layout::LIFE_BYTES;
use oneread::{
    Client, Config, PutMode, PutOutcome, TableSize,
    error::{PutError, SnapshotError},
    snapshot::{Snapshot, SnapshotContent, SnapshotTerms},
    stats::SnapshotStatus,
};
use oneread_kit::progress::Progress;
use oneread_kit::{show, status};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Have the server write a snapshot of its table, and wait until the disk has it
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread serve --snapshot /var/lib/oneread/table.snap &
  oneread snapshot
  oneread snapshot && cp /var/lib/oneread/table.snap /backup/
  oneread snapshot --no-wait      return at once; see `oneread stat`

The server writes the file that it was started with (`serve --snapshot FILE`),
and goes on serving. The file has every change acknowledged before this
command. It takes the place of the old one when it is whole; if it fails (a
full disk), the old one stays, and the exit status is 1.

`oneread restore` puts the keys of a snapshot into a running server; `serve
--restore` begins with them.")]
pub struct Take {
    /// Do not wait until it is made
    #[arg(long)]
    no_wait: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// Time between looks at how far the server is.
const LOOK: Duration = Duration::from_millis(20);

impl Take {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect()?;
        let asked = client.ask_for_snapshot()?;
        let mut about = asked;
        ensure!(
            about.is_on(),
            "the server at {} makes no snapshots; start it with `oneread serve --snapshot FILE`",
            client.address()
        );
        let number = asked.asked;
        if !self.no_wait {
            let bar = Progress::of(100, "the server writes a snapshot", "%").on_signal(|| {
                show::complain(
                    "oneread: interrupted; the server goes on with the snapshot, and `oneread stat` says what comes of it",
                );
                true
            });
            loop {
                match about.has_ended(&asked) {
                    Some(true) => break,
                    Some(false) => {}
                    None => bail!(
                        "another server has taken this one's place, and knows nothing of the snapshot; run this again"
                    ),
                }
                std::thread::sleep(LOOK);
                about = client.snapshot_status().context("the snapshot may still be made")?;
                bar.set_position(if about.begun < number { 0 } else { about.progress_ppm / 10_000 });
            }
            bar.finish();
        }
        let is_made = about.saved >= number;
        show::outcome(self.json, &json(&about), || match (self.no_wait, is_made) {
            (true, _) => show::say("the server writes a snapshot; `oneread stat` shows what comes of it"),
            (false, true) => show::say(format_args!(
                "snapshot of {}: {} in {}",
                show::counted(about.keys, "key"),
                show::bytes(about.bytes),
                show::time(Duration::from_micros(about.took_us))
            )),
            (false, false) => Ok(()),
        })?;
        if self.no_wait || is_made {
            return Ok(ExitCode::SUCCESS);
        }
        match about.failure() {
            Some((step, error)) => bail!(
                "the server could not make the snapshot: {step}: {error}; a snapshot that was made before is still there; the server's log says more"
            ),
            None => bail!("the server is stopping; it makes a last snapshot then"),
        }
    }
}

/// What became of a server's snapshots, in JSON. `null` if it makes none.
pub fn json(about: &SnapshotStatus) -> serde_json::Value {
    if !about.is_on() {
        return serde_json::Value::Null;
    }
    let failure = about.failure().map(|(step, error)| {
        serde_json::json!({ "at_ms": about.failed_ms, "step": step.to_string(), "error": error.to_string() })
    });
    let last = (about.saved_ms != 0).then(|| {
        serde_json::json!({
            "began_ms": about.saved_ms,
            "took_us": about.took_us,
            "keys": about.keys,
            "bytes": about.bytes,
        })
    });
    serde_json::json!({
        "every_ms": about.every().map(|every| every.as_millis() as u64),
        "asked": about.asked,
        "begun": about.begun,
        "finished": about.finished,
        "saved": about.saved,
        "under_way": about.begun > about.finished,
        "progress": about.progress_ppm as f64 / 1e6,
        "last": last,
        "last_failure": failure,
    })
}

/// The rows of the status for people.
pub fn rows(about: &SnapshotStatus) -> Vec<(&'static str, String)> {
    if !about.is_on() {
        return vec![("snapshots", "none (serve --snapshot)".into())];
    }
    let mut rows = vec![(
        "snapshots",
        about
            .every()
            .map_or("on request and at the end".into(), |every| format!("every {}", show::time(every))),
    )];
    rows.push(match about.saved_ms {
        0 => ("last snapshot", "none yet".into()),
        at => ("last snapshot has all up to", ago(at)),
    });
    if about.saved_ms != 0 {
        rows.push((
            "  keys, bytes, time",
            format!(
                "{}, {}, {}",
                show::count(about.keys),
                show::bytes(about.bytes),
                show::time(Duration::from_micros(about.took_us))
            ),
        ));
    }
    if about.begun > about.finished {
        rows.push(("  one is being made", format!("{:.0} %", about.progress_ppm as f64 / 1e4)));
    }
    if let Some((step, error)) = about.failure() {
        // Only the last one matters, if none was made since.
        let is_now = about.finished > about.saved;
        let what = if is_now { "  THE LAST ONE FAILED" } else { "  one failed before" };
        rows.push((what, format!("{}: {step}: {error}", ago(about.failed_ms))));
    }
    rows
}

/// How long ago a time in milliseconds since 1970 was.
fn ago(ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    format!("{} ago", show::time(Duration::from_millis(now.saturating_sub(ms))))
}

/// Put the keys of a snapshot into a running server
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread restore table.snap
  oneread restore table.snap --insert   keys that are there keep their values
  oneread restore table.snap --check    only read the file and check it
  oneread restore bad.snap --damaged    what is whole of a damaged file

The file is checked first, to its last byte: a damaged one is refused, and
nothing is put. The server may have another layout or size than the one that
made it. An entry that ends by itself does so at the same time of day, and one
that has ended by now is not put. An entry that has an owner is put as that
owner: if the owner does not come back within a minute, it goes. A new server
begins with a snapshot by itself: `oneread serve --restore table.snap`,
which is faster.

Exit status 1 if the table refused a key, or something of a damaged file was
left out. Keys that --insert leaves alone, and entries that have ended, are no
errors.")]
pub struct Restore {
    /// The snapshot
    file: PathBuf,
    /// Put only keys that are absent
    #[arg(long)]
    insert: bool,
    /// Check the file and say what is in it; needs no server
    #[arg(long, conflicts_with_all = ["insert", "damaged"])]
    check: bool,
    /// Put what is whole of a damaged file, and say what is left out
    #[arg(long)]
    damaged: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Default, serde::Serialize)]
struct Summary {
    keys: u64,
    inserted: u64,
    updated: u64,
    /// Keys that --insert left alone.
    skipped: u64,
    /// Entries that have come to their end since.
    ended: u64,
    failed: u64,
    /// Bytes of the file that were left out.
    left_out_bytes: u64,
    seconds: f64,
}

/// Keys put in one batch.
const BATCH: usize = 1024;
/// Keys that were not put and are reported one by one. The rest are counted.
const COMPLAINTS_MAX: u64 = 20;

impl Restore {
    pub fn run(self) -> Result<ExitCode> {
        if self.check {
            let snapshot = Snapshot::open(&self.file)?;
            let checked = Checked::of(&snapshot)?;
            return self.show(&snapshot, &checked);
        }
        let begun = Instant::now();
        let open = if self.damaged { Snapshot::open_head } else { Snapshot::open };
        let snapshot = open(&self.file)?;
        let client = self.server.connect()?;
        if !self.damaged {
            self.fits(&Checked::of(&snapshot)?, &client)?;
        }
        let mut puts = EntryPuts::new(client, if self.insert { PutMode::Insert } else { PutMode::Upsert });
        let mut summary = Summary::default();
        let done = Arc::new(AtomicU64::new(0));
        let bar = Progress::of_bytes(snapshot.bytes(), "restoring").on_signal({
            let done = done.clone();
            move || {
                let done = show::counted(done.load(Ordering::Relaxed), "key");
                show::complain(format_args!("oneread: interrupted; {done} of the snapshot are in the table"));
                true
            }
        });
        let mut blocks = snapshot.blocks();
        loop {
            match blocks.next() {
                Ok(Some(block)) => {
                    let mut entries: Vec<Entry<'_>> = block.entries().map(Entry::from).collect();
                    // Each key is there once, so their order is free, and neighbours are put together.
                    entries.sort_by_key(|entry| entry.owner);
                    for batch in entries.chunks(BATCH) {
                        put(&mut puts, batch, &mut summary, &bar).with_context(|| {
                            format!("after {} of the snapshot", show::counted(summary.keys, "key"))
                        })?;
                        done.store(summary.inserted + summary.updated, Ordering::Relaxed);
                    }
                    bar.set_position(blocks.at());
                }
                Ok(None) => break,
                Err(error) if self.damaged && !matches!(error, SnapshotError::Read { .. }) => {
                    let from = blocks.at();
                    let gap = blocks.resume()?.unwrap_or(from..snapshot.bytes());
                    summary.left_out_bytes += gap.end - gap.start;
                    bar.suspend(|| {
                        show::complain(format_args!(
                            "oneread: {error}; bytes {} to {} are left out",
                            gap.start,
                            gap.end.saturating_sub(1)
                        ));
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
        bar.finish();
        summary.seconds = begun.elapsed().as_secs_f64();
        let is_all = summary.failed == 0 && summary.left_out_bytes == 0;
        if summary.failed > COMPLAINTS_MAX {
            let more = show::counted(summary.failed - COMPLAINTS_MAX, "more key");
            show::complain(format_args!("oneread: and {more}"));
        }
        let ended = match summary.ended {
            0 => String::new(),
            ended => format!("{} had ended, ", show::count(ended)),
        };
        show::outcome(self.json, &summary, || {
            show::say(format_args!(
                "{} in {:.2} s ({}): {} inserted, {} updated, {} skipped, {ended}{} failed",
                show::counted(summary.keys, "key"),
                summary.seconds,
                show::rate(summary.keys as f64 / summary.seconds),
                show::count(summary.inserted),
                show::count(summary.updated),
                show::count(summary.skipped),
                show::count(summary.failed),
            ))
        })?;
        Ok(status(is_all))
    }

    /// Refuses a snapshot that the server's table cannot take, before anything is put.
    fn fits(&self, checked: &Checked, client: &Client) -> Result<()> {
        let (geometry, content) = (client.geometry(), checked.content);
        for (what, given, max) in [
            ("key", content.longest_key, geometry.key_max()),
            ("value", content.longest_value, geometry.value_max()),
        ] {
            ensure!(
                given <= max,
                "{} has a {what} of {given} bytes, the table at {} takes {max}; nothing was put; serve one with --{what}-max {given}",
                self.file.display(),
                client.address()
            );
        }
        for (entries, what, can, option) in [
            (checked.ending, "an end", geometry.has_life(), "life"),
            (checked.owned, "an owner", geometry.has_owners(), "owners"),
        ] {
            ensure!(
                entries == 0 || can,
                "{} has {} with {what}, which the table at {} cannot hold; nothing was put; serve one with --{option}",
                self.file.display(),
                show::counted(entries, "key"),
                client.address()
            );
        }
        // A table that grows has so many in each segment.
        let slots = geometry.slots() * geometry.segments_max().max(1);
        ensure!(
            content.keys <= slots,
            "{} has {}, the table at {} has {}; nothing was put; serve one with --capacity {}",
            self.file.display(),
            show::counted(content.keys, "key"),
            client.address(),
            show::counted(slots, "slot"),
            content.keys
        );
        Ok(())
    }

    fn show(&self, snapshot: &Snapshot, checked: &Checked) -> Result<ExitCode> {
        let (terms, content) = (snapshot.terms(), checked.content);
        let ms = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
        let told = serde_json::json!({
            "bytes": snapshot.bytes(),
            "keys": content.keys,
            "longest_key": content.longest_key,
            "longest_value": content.longest_value,
            "ending": checked.ending,
            "ended": checked.ended,
            "owned": checked.owned,
            "damaged_slots": content.damaged,
            "began_ms": ms(terms.began),
            "ended_ms": ms(content.ended),
            "layout": terms.layout.to_string(),
            "main_slots": terms.main_slots,
            "key_max": terms.key_max,
            "value_max": terms.value_max,
            "grace_us": terms.grace.as_micros() as u64,
        });
        show::outcome(self.json, &told, || {
            let mut table = show::facts();
            table.add_rows([
                show::fact("snapshot", self.file.display()),
                show::fact("checked", format_args!("{}, all whole", show::bytes(snapshot.bytes()))),
                show::fact("keys", show::count(content.keys)),
                show::fact("has all up to", ago(ms(terms.began))),
                show::fact(
                    "longest key, longest value",
                    format_args!("{}, {}", content.longest_key, content.longest_value),
                ),
                show::fact("of a table of layout", terms.layout),
                show::fact("  main slots", show::count(terms.main_slots)),
                show::fact(
                    "  longest key, longest value",
                    format_args!("{}, {}", terms.key_max, terms.value_max),
                ),
            ]);
            let counts = [
                ("entries that end by themselves", checked.ending),
                ("entries that have ended since", checked.ended),
                ("entries that have owners", checked.owned),
                ("slots damaged in that table, left out", content.damaged),
            ];
            let some = counts.into_iter().filter(|(_, count)| *count > 0);
            table.add_rows(some.map(|(name, count)| show::fact(name, show::count(count))));
            show::lay_out(table)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn put(puts: &mut EntryPuts, batch: &[Entry<'_>], summary: &mut Summary, bar: &Progress) -> Result<()> {
    let mut full = None;
    puts.put(batch, |nth, became| {
        summary.keys += 1;
        match &became {
            Became::Put(PutOutcome::Inserted) => summary.inserted += 1,
            Became::Put(PutOutcome::Updated) => summary.updated += 1,
            Became::Put(PutOutcome::Exists | PutOutcome::Missing) => summary.skipped += 1,
            Became::Ended => summary.ended += 1,
            Became::Refused(_) | Became::NoOwner(_) => summary.failed += 1,
        }
        if let Some(reason) = became.reason().filter(|_| summary.failed <= COMPLAINTS_MAX) {
            let key = show::text(batch[nth].key, 40);
            bar.suspend(|| show::complain(format_args!("oneread: key \"{key}\": {reason}")));
        }
        if let Became::Refused(error @ PutError::Full { .. }) = became {
            full.get_or_insert(error);
        }
    })?;
    // Each further key would look for room for long.
    full.map_or(Ok(()), |error| Err(error.into()))
}

/// What is in a snapshot of which every byte was checked.
struct Checked {
    content: SnapshotContent,
    /// Entries that will end by themselves, those that have ended by now, and those that have an owner and have not ended.
    ending: u64,
    ended: u64,
    owned: u64,
}

impl Checked {
    /// Checks every byte, and shows how far it is.
    fn of(snapshot: &Snapshot) -> Result<Checked> {
        let bar = Progress::of_bytes(snapshot.bytes(), "checking");
        let now = SystemTime::now();
        let (mut ending, mut ended, mut owned) = (0, 0, 0);
        let mut blocks = snapshot.blocks();
        while let Some(block) = blocks.next()? {
            for entry in block.entries() {
                if entry.has_ended(now) {
                    ended += 1;
                } else {
                    ending += u64::from(entry.end.is_some());
                    owned += u64::from(entry.owner != 0);
                }
            }
            bar.set_position(blocks.at());
        }
        bar.finish();
        Ok(Checked { content: snapshot.content(), ending, ended, owned })
    }
}

/// The table that a snapshot is of, with room for its keys. `layout` is the one that the user wants.
pub fn config_for(path: &Path, layout: Option<oneread::layout::Layout>) -> Result<Config> {
    let snapshot = Snapshot::open(path)?;
    let SnapshotTerms { main_slots, bytes_max, key_max, value_max, slot_bytes, heap_bytes, grace, .. } =
        snapshot.terms();
    let own = snapshot.terms().layout;
    let mut config =
        Config::new().layout(layout.unwrap_or(own)).key_max(key_max).value_max(value_max).grace(grace);
    let has_life = snapshot.terms().made.is_some();
    config = config.life(has_life).owners(snapshot.terms().has_owners);
    if heap_bytes == 0 {
        config = config.key_inline(key_max);
    } else {
        let shape =
            SlotShape::from_bytes(slot_bytes).context("the snapshot's slots have an impossible size")?;
        // What stood in slots stands in slots again.
        let room = shape.payload_max().saturating_sub(if has_life { LIFE_BYTES } else { 0 });
        let key_inline = key_max.min(room.saturating_sub(REFERENCE_BYTES));
        config = config.key_inline(key_inline).inline_max(room - key_inline);
        if bytes_max.is_none() {
            config = config.heap_bytes(heap_bytes);
        }
    }
    if let Some(bytes_max) = bytes_max {
        return Ok(config.size(TableSize::up_to(bytes_max)));
    }
    let keys = snapshot.content().keys.max(1);
    if layout.is_some_and(|layout| layout != own) {
        return Ok(config.size(TableSize::Keys(keys.max(main_slots))));
    }
    // At a very high load, the keys might find no room in another order.
    let needed = config.size(TableSize::Keys(keys)).geometry()?.main_slots();
    Ok(config.size(TableSize::Slots(main_slots.max(needed))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What there is to say of snapshots is said, and nothing else.
    #[test]
    fn snapshots_are_told() {
        let told = |about: SnapshotStatus| {
            let rows = rows(&about);
            move |name: &str| rows.iter().find(|row| row.0.trim() == name).map(|row| row.1.clone())
        };
        let mut about = SnapshotStatus::default();
        assert_eq!(told(about)("snapshots").as_deref(), Some("none (serve --snapshot)"));
        about.every_ms = u64::MAX;
        let fresh = told(about);
        assert_eq!(fresh("snapshots").as_deref(), Some("on request and at the end"));
        assert_eq!(fresh("last snapshot").as_deref(), Some("none yet"));
        let others = ["keys, bytes, time", "one is being made", "THE LAST ONE FAILED", "one failed before"];
        assert_eq!(others.map(fresh), [const { None }; 4]);
        about.every_ms = 60_000;
        (about.saved_ms, about.keys, about.bytes, about.took_us) = (1, 2_000, 3 << 20, 4_500);
        (about.begun, about.finished, about.saved, about.progress_ppm) = (5, 4, 4, 250_000);
        let made = told(about);
        assert_eq!(made("snapshots").as_deref(), Some("every 60 s"));
        assert_eq!(made("keys, bytes, time").as_deref(), Some("2,000, 3 MiB, 4.50 ms"));
        assert_eq!(made("one is being made").as_deref(), Some("25 %"));
        about.failed_ms = 1;
        assert!(told(about)("one failed before").is_some() && told(about)("THE LAST ONE FAILED").is_none());
        about.saved = 3;
        assert!(told(about)("one failed before").is_none() && told(about)("THE LAST ONE FAILED").is_some());
    }

    /// A snapshot of a table that grows is served as one that may grow as far.
    #[test]
    fn a_table_that_grows_is_restored_as_one() {
        let path = std::env::temp_dir().join(format!("oneread-grows-{}.snap", std::process::id()));
        for size in [TableSize::up_to(64 << 20), TableSize::Slots(5_000)] {
            let geometry = Config::new().size(size).value_max(20).geometry().unwrap();
            let region = oneread::embedded::Region::private(geometry.region_bytes());
            let index =
                oneread::embedded::Index::create(region, geometry.clone(), oneread::embedded::Clock::System)
                    .unwrap();
            index.put(b"key", b"value", PutMode::Upsert).unwrap();
            index.save(&path, &mut |_, _| true).unwrap();
            let again = config_for(&path, None).unwrap().geometry().unwrap();
            assert_eq!(
                (again.segments_max(), again.key_max(), again.value_max()),
                (geometry.segments_max(), 255, 20)
            );
            // The heap may take what whole segments take: up to one less.
            let [now, before] = [&again, &geometry].map(|it| it.region_bytes());
            assert!((before - (1 << 20)..=before).contains(&now), "{now} of {before}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
