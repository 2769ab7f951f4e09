//! Snapshots: a file of all keys, while they change and move, and restoring a table from it. `walk` shows the keys. The
//! disk is waited for between its steps, when nothing is locked.

use super::table::Table;
use super::walk::Walk;
use crate::base::cores::Cores;
use crate::base::sync::{Ordering, lock_std};
use crate::index::growth::Ahead;
use crate::outcome::{PutError, PutOutcome};
use crate::snapshot::{
    LogPosition, SaveError, Saved, Snapshot, SnapshotBlock, SnapshotEntry, SnapshotError, SnapshotPath,
    SnapshotTerms, SnapshotWriter,
};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, SystemTime};

/// Why the keys of a snapshot were not put into a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The snapshot cannot be read. The table is unchanged, unless the file changed while it was read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A key or value of the snapshot is longer than the table takes. The table is unchanged.
    #[error(
        "the snapshot has a {what} of {given} bytes, this table takes {max}; make a table with a larger `Config::{what}_max`"
    )]
    TooLong {
        /// Key or value.
        what: &'static str,
        /// The longest in the snapshot.
        given: usize,
        /// The longest that the table takes.
        max: usize,
    },
    /// The snapshot has more keys than the table has slots, or can get. The table is unchanged.
    #[error("the snapshot has {keys} keys, this table has {slots} slots at most; make a larger table")]
    TooMany {
        /// Keys in the snapshot.
        keys: u64,
        /// Slots of the table, at most.
        slots: u64,
    },
    /// The snapshot's entries have lives, and the table's have none. The table is unchanged.
    #[error(
        "entries of the snapshot may have times at which they end, those of this table have none; make it with `Config::life`"
    )]
    Life,
    /// The snapshot's entries may have owners, and the table's have none, so that they would never go. The table is
    /// unchanged.
    #[error(
        "entries of the snapshot may have owners, with whom they go, those of this table have none; make it with `Config::owners`"
    )]
    Owners,
    /// The start of the server was cancelled ([`ServerConfig::cancel`](crate::ServerConfig::cancel)).
    #[error("restoring was cancelled")]
    Cancelled,
    /// The table was full before all keys were in it.
    #[error("the table was full after {restored} of {keys} keys; make a larger table")]
    Full {
        /// Keys put.
        restored: u64,
        /// Keys in the snapshot.
        keys: u64,
        /// The answer to the first key that found no room.
        source: PutError,
    },
}

/// What was put into a table from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Keys put.
    pub keys: u64,
    /// When the snapshot began. Changes acknowledged later may be missing.
    pub began: SystemTime,
    /// How long it took, the check of the snapshot included.
    pub took: Duration,
}

/// Begins a snapshot of a table. `made` is when the table was made, if its entries have lives; `log`, where its log will go
/// on, if it has none yet.
pub(crate) fn begin<'p>(
    table: &Table,
    made: Option<SystemTime>,
    log: Option<LogPosition>,
    place: &'p SnapshotPath,
) -> Result<SnapshotWriter<'p>, SaveError> {
    let began = SystemTime::now();
    let terms = SnapshotTerms {
        main_slots: table.counts().main_slots,
        made,
        // K3: before the walk begins.
        log: table.observers().log().map_or(log, |log| Some(log.position())),
        ..SnapshotTerms::of(table.geometry(), table.incarnation(), began)
    };
    SnapshotWriter::new(place, terms)
}

/// Writes a snapshot that has begun. `progress` gets the number of finished parts and of all parts, and ends the
/// snapshot by returning `false`.
pub(crate) fn save(
    table: &Table,
    mut writer: SnapshotWriter<'_>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Saved, SaveError> {
    let mut walk = Walk::default();
    let mut flushed = Ok(false);
    loop {
        let had_some = table.walk(&mut walk, &mut |key, value, life| {
            writer.take((key, value, life));
            // Under no lock: the value is not from a slot.
            if !table.geometry().is_inline(key, value.len()) && flushed.is_ok() {
                flushed = writer.flush();
            }
        });
        if !had_some {
            break;
        }
        if std::mem::replace(&mut flushed, Ok(false))? | writer.flush()? {
            let (done, total) = table.walked(&walk);
            if !progress(done, total) {
                return Err(SaveError::BrokenOff);
            }
        }
    }
    let damaged = walk.damaged;
    let saved = writer.finish(damaged)?;
    if damaged > 0 {
        tracing::error!(damaged, "slots of the table are damaged; what stood there is not in the snapshot");
    }
    Ok(saved)
}

/// Puts every key of a snapshot into a table, with `put`. All cores work at it. `progress` gets the number of bytes
/// read and of all bytes, and ends it early by returning `false`.
pub(crate) fn restore(
    table: &Table,
    put: impl Fn(&SnapshotEntry<'_>, Option<Duration>) -> Result<PutOutcome, PutError> + Sync,
    snapshot: &Snapshot,
    cores: Cores,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Restored, RestoreError> {
    let begun = std::time::Instant::now();
    let bytes = snapshot.bytes();
    let content = snapshot.check_while(&mut |at| progress(at, 2 * bytes))?;
    let content = content.ok_or(RestoreError::Cancelled)?;
    for (what, given, max) in [
        ("key", content.longest_key, table.geometry().key_max()),
        ("value", content.longest_value, table.geometry().value_max()),
    ] {
        if given > max {
            return Err(RestoreError::TooLong { what, given, max });
        }
    }
    if snapshot.terms().made.is_some() && !table.geometry().has_life() {
        return Err(RestoreError::Life);
    }
    if snapshot.terms().has_owners && !table.geometry().has_owners() {
        return Err(RestoreError::Owners);
    }
    let slots = table.geometry().slots() * table.geometry().segments_max().max(1);
    if content.keys > slots {
        return Err(RestoreError::TooMany { keys: content.keys, slots });
    }
    if let Table::Many(growth) = table {
        growth.foresee(content.keys);
        while growth.grow_as_foreseen() == Ahead::On {
            if !progress(bytes, 2 * bytes) {
                return Err(RestoreError::Cancelled);
            }
        }
    }
    let keys = AtomicU64::new(0);
    let full = std::sync::Mutex::new(None);
    let is_over = AtomicBool::new(false);
    let (send, blocks) = std::sync::mpsc::sync_channel::<SnapshotBlock>(2 * cores.0);
    let blocks = std::sync::Mutex::new(blocks);
    let put_all = |block: SnapshotBlock| {
        for entry in block.entries() {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let now = SystemTime::now();
            if entry.has_ended(now) {
                continue;
            }
            match put(&entry, entry.ttl(now)) {
                // The entry's owner is being removed.
                Ok(PutOutcome::Missing) => {}
                Ok(_) => drop(keys.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    is_over.store(true, Ordering::Relaxed);
                    lock_std(&full).get_or_insert(error);
                }
            }
        }
    };
    let next = || lock_std(&blocks).recv().ok();
    let help = || std::iter::from_fn(next).for_each(put_all);
    std::thread::scope(|scope| -> Result<(), RestoreError> {
        let spawn = |_: &usize| std::thread::Builder::new().spawn_scoped(scope, help).is_ok();
        let helpers = (0..cores.0).take_while(spawn).count();
        // Dropped at the end of this closure, so that the helpers end, too.
        let send = send;
        let mut source = snapshot.blocks();
        while let Some(block) = source.next()? {
            if !progress(bytes + source.at(), 2 * bytes) {
                is_over.store(true, Ordering::Relaxed);
                return Err(RestoreError::Cancelled);
            }
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            if helpers == 0 {
                put_all(block);
            } else if send.send(block).is_err() {
                break;
            }
        }
        Ok(())
    })?;
    let restored = keys.into_inner();
    if let Some(source) = full.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(RestoreError::Full { restored, keys: content.keys, source });
    }
    Ok(Restored { keys: restored, began: snapshot.terms().began, took: begun.elapsed() })
}
