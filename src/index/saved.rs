//! Snapshots of a table, and their way back into one.

use super::face::Index;
use super::whole::{self, RestoreError, Restored};
use crate::base::cores::Cores;
use crate::snapshot::{LogPosition, SaveError, Saved, Snapshot, SnapshotEntry, SnapshotPath, SnapshotWriter};
use std::path::Path;

impl Index {
    /// Writes a snapshot of the table while it is served. It has each key that was there when it began and did not
    /// change. A key that is changed meanwhile is in it with one of its values of that time, or not at all if it was
    /// absent at an instant.
    ///
    /// The file is written under another name (`PATH.partial`), and takes its place when the disk has it. `PATH.lock`
    /// keeps others from the same path. Changes go on: a put waits for some microseconds at most. Takes one thread,
    /// memory for some blocks of 256 KiB, and as much of the disk as it gives. `progress` gets the number of finished
    /// parts and of all parts, and ends the snapshot by returning `false`.
    ///
    /// # Errors
    /// [`SaveError`]. The file that was there before is still there.
    pub fn save(&self, path: &Path, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Saved, SaveError> {
        self.save_at(&SnapshotPath::claim(path)?, progress)
    }

    pub(crate) fn save_at(
        &self,
        place: &SnapshotPath,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Saved, SaveError> {
        self.save_by(self.begin_snapshot(place, None)?, progress)
    }

    /// Begins [`Index::save_at`]. `log`: where the table's log will go on, if it has none yet.
    pub(crate) fn begin_snapshot<'p>(
        &self,
        place: &'p SnapshotPath,
        log: Option<LogPosition>,
    ) -> Result<SnapshotWriter<'p>, SaveError> {
        whole::begin(self.table(), self.made(), log, place)
    }

    /// Continues [`Index::save_at`], with a writer that has begun.
    pub(crate) fn save_by(
        &self,
        writer: SnapshotWriter<'_>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Saved, SaveError> {
        whole::save(self.table(), writer, progress)
    }

    /// Puts every key of a snapshot into the table, over what is there. All cores work at it. The whole snapshot is
    /// checked first: one that is damaged, or that does not fit, changes nothing. `progress` gets the number of bytes
    /// read and of all bytes; each byte is read twice.
    ///
    /// # Errors
    /// [`RestoreError`], which says whether the table was changed.
    pub fn restore_from(
        &self,
        snapshot: &Snapshot,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Restored, RestoreError> {
        self.restore_from_by(snapshot, Cores::all(), &mut |at, of| {
            progress(at, of);
            true
        })
    }

    /// Restores a snapshot. Ends early when `progress` returns `false`.
    pub(crate) fn restore_from_by(
        &self,
        snapshot: &Snapshot,
        cores: Cores,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Restored, RestoreError> {
        let put = |entry: &SnapshotEntry<'_>, ttl| self.restore_one(entry, ttl);
        whole::restore(self.table(), put, snapshot, cores, progress)
    }
}
