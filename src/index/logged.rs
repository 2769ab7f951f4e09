//! A table whose changes a log has (K).

use super::extents::Extents;
use super::face::Index;
use super::feed::LeftCause;
use super::seams::{Awaited, Changed, DecidedChange, Decision, KeyChange, KeyPlace, Seams, SlotValue};
use super::segment::Which;
use crate::faults::{Rule, broken};
use crate::layout::geometry::Geometry;
use crate::layout::life::TICK_NS;
use crate::layout::owners::NOT_COMMITTED;
use crate::log::{InBatch, Log, LogFailed, LogRecord, Logged, LoggedTable, WaitsForDisk};
use crate::outcome::PutError;
use crate::snapshot::{Saved, SnapshotEntry};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Takes the record of each change, and has the change wait for the disk.
#[derive(Debug)]
struct LogSeams {
    log: Arc<Log>,
    geometry: Geometry,
    extents: Option<Arc<Extents>>,
}

/// A change that waits for the disk.
#[derive(Debug)]
struct OnDisk {
    log: Arc<Log>,
    logged: Result<Logged, LogFailed>,
}

impl Awaited for OnDisk {
    fn then(self: Box<Self>, change: DecidedChange) {
        match self.logged {
            Ok(logged) => self.log.when_there(logged, Box::new(Later(change))),
            Err(LogFailed { .. }) => drop(change),
        }
    }
}

/// A change that the log's thread makes.
#[derive(Debug)]
struct Later(DecidedChange);

impl WaitsForDisk for Later {
    fn is_there(self: Box<Self>, at: InBatch) {
        match at {
            InBatch::Last => self.0.make(),
            InBatch::Before => self.0.make_quietly(),
        }
    }
}

impl LogSeams {
    fn hash(&self, key: &[u8]) -> u64 {
        self.geometry.hashed(key).first().0
    }

    /// Takes the record of a change that leaves this value.
    fn take(&self, change: &KeyChange<'_>, value: SlotValue<'_>) -> Result<Logged, LogFailed> {
        let mut long = Vec::new();
        let value = match value {
            SlotValue::Inline(value) => value,
            SlotValue::Extent(reference) => {
                let read = self.extents.as_ref().is_some_and(|of| of.read(&reference, change.key, &mut long));
                debug_assert!(read, "the value was written before (X2)");
                &long
            }
        };
        let (owner, expiry) = if broken(Rule::LogLife) { (0, 0) } else { (change.owner, change.expiry) };
        self.log.take(self.hash(change.key), LogRecord::Put { key: change.key, value, owner, expiry })
    }
}

impl Seams for LogSeams {
    fn decided(&self, change: &KeyChange<'_>, cause: LeftCause) -> Decision {
        let logged = match change.value {
            // It is not there before it is committed.
            Some(_) if change.owner == NOT_COMMITTED => return Decision::Now,
            Some(value) => self.take(change, value),
            None => match cause {
                // The record of its owner says it (K8).
                LeftCause::OwnerGone => return Decision::Now,
                LeftCause::Removed | LeftCause::Expired | LeftCause::Evicted | LeftCause::Other(_) => {
                    self.log.take(self.hash(change.key), LogRecord::Remove { key: change.key })
                }
            },
        };
        // What nobody asked to leave may come back after a power cut: it is not waited for.
        let leaves_by_itself = match cause {
            LeftCause::Removed | LeftCause::Other(_) => false,
            LeftCause::Expired | LeftCause::Evicted | LeftCause::OwnerGone => change.what == Changed::Left,
        };
        match logged {
            Ok(_) if leaves_by_itself || !self.log.must_wait() => Decision::Now,
            logged => Decision::After(Box::new(OnDisk { log: self.log.clone(), logged })),
        }
    }

    fn has_room(&self) -> bool {
        self.log.has_room()
    }

    fn done(&self, change: &KeyChange<'_>, _: KeyPlace) {
        self.log.is_visible(self.hash(change.key));
    }
}

impl Index {
    /// The table. From now on a log has its changes.
    pub(crate) fn with_log(self, log: Log) -> Index {
        let log = Arc::new(log);
        self.table().observers().set_log(log.clone());
        let (geometry, extents) = (self.geometry().clone(), self.table().extents().cloned());
        self.with_seams(Arc::new(LogSeams { log, geometry, extents }))
    }

    /// The table's log, if it has one.
    pub(crate) fn log(&self) -> Option<&Arc<Log>> {
        self.table().observers().log()
    }

    /// Makes a change again that a log has, of this table or of one before. Nobody reads the table meanwhile.
    ///
    /// # Errors
    /// [`PutError`].
    pub(crate) fn replay_record(&self, record: LogRecord<'_>, of: &LoggedTable) -> Result<(), PutError> {
        match record {
            LogRecord::Put { key, value, owner, expiry } => {
                let end = Duration::from_nanos(u64::from(expiry) * TICK_NS + of.made_ns);
                let end = (expiry != 0).then(|| UNIX_EPOCH + end);
                let entry = SnapshotEntry { key, value, end, owner };
                let now = SystemTime::now();
                if entry.has_ended(now) {
                    return self.remove_by(key, Which::Any).map(drop);
                }
                self.restore_one(&entry, entry.ttl(now)).map(drop)
            }
            LogRecord::Remove { key } => self.remove_by(key, Which::Any).map(drop),
            LogRecord::OwnerGone { owner } => {
                if let Some(owners) = self.owners() {
                    let remove = |key: &[u8]| self.remove_by(key, Which::Any).is_ok();
                    owners.remove_entries(self.table(), owner, |key, _| remove(key));
                }
                Ok(())
            }
        }
    }
}

impl Index {
    /// When the table was made, if its entries have lives.
    pub(crate) fn made(&self) -> Option<SystemTime> {
        self.lives().map(|lives| lives.made())
    }

    /// Has the log forget all that it may, whether a snapshot has it or not. For a test that breaks K6.
    pub(crate) fn forget_log(&self) {
        if let Some(log) = self.log() {
            let _ = log.forget_below(log.applied(), 0);
        }
    }

    /// Has the log forget what a snapshot has, which is on the disk (K6).
    pub(crate) fn forget_log_below(&self, saved: &Saved) {
        if let (Some(log), Some(position)) = (self.log(), saved.log)
            && let Err(error) = log.forget_below(position.from, saved.bytes)
        {
            tracing::warn!(%error, "files of the log that a snapshot has were not removed; they are tried again with the next one");
        }
    }
}
