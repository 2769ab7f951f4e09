//! What a client asks the server about itself.

use super::Client;
use super::error::MutateError;
use crate::outcome::{GrowthCounts, HeapCounts};
use crate::wire::{Reply, Request, ServerStats, SnapshotStatus};
use std::time::Instant;

impl Client {
    /// Returns the server's counters.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn server_stats(&mut self) -> Result<ServerStats, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Stat, deadline)? {
            Reply::Stat(stats) => Ok(stats),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns what became of the server's snapshots.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn snapshot_status(&mut self) -> Result<SnapshotStatus, MutateError> {
        self.ask_about_snapshots(false)
    }

    /// Asks the server for a snapshot with every change acknowledged so far, and does not wait for it:
    /// it is made when [`SnapshotStatus::finished`] has reached the [`SnapshotStatus::asked`] of the
    /// answer. The server writes the file that it was started with
    /// ([`ServerConfig::snapshots`](crate::ServerConfig::snapshots)). If it makes none, nothing
    /// happens, and [`SnapshotStatus::is_on`] is `false`.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer, or this client may only read.
    pub fn ask_for_snapshot(&mut self) -> Result<SnapshotStatus, MutateError> {
        self.ask_about_snapshots(true)
    }

    fn ask_about_snapshots(&mut self, begin: bool) -> Result<SnapshotStatus, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Snapshot { begin }, deadline)? {
            Reply::Snapshot(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns what the server's table is made of, and what it did to grow and shrink; all zero for a
    /// table of one size.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn growth(&mut self) -> Result<GrowthCounts, MutateError> {
        self.ask_about_growth(false)
    }

    /// Has the server begin every merge of two segments that leaves at most 85 % of what a segment is
    /// meant for, and does not wait: [`GrowthCounts::merging`] of the answer are under way. When they
    /// have ended, more may be possible. A table of one size stays as it is.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer, or this client may only read.
    pub fn shrink(&mut self) -> Result<GrowthCounts, MutateError> {
        self.ask_about_growth(true)
    }

    fn ask_about_growth(&mut self, shrink: bool) -> Result<GrowthCounts, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Growth { shrink }, deadline)? {
            Reply::Growth(counts) => Ok(counts),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns what the memory of the server's long values is used for; all zero for a table whose values all
    /// fit their slots.
    ///
    /// # Errors
    /// [`MutateError`] when the server does not answer.
    pub fn heap(&mut self) -> Result<HeapCounts, MutateError> {
        let deadline = Instant::now() + self.options.deadline;
        match self.ask(&Request::Heap, deadline)? {
            Reply::Heap(counts) => Ok(counts),
            _ => Err(self.unexpected()),
        }
    }
}
