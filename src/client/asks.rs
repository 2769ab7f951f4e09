//! Requests about the server itself.

use super::Client;
use super::error::AskError;
use crate::log::LogStatus;
use crate::outcome::{EvictCounts, GetCounts, GrowthCounts, HeapCounts, NoteCounts, PutError};
use crate::wire::{HeldCounts, Reply, Request, ServerStats, ServerTimes, SnapshotStatus};
use std::time::Instant;

impl Client {
    /// Returns the server's counters.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn server_stats(&mut self) -> Result<ServerStats, AskError> {
        self.ask_for(&Request::Stat, |reply| match reply {
            Reply::Stat(stats) => Some(stats),
            _ => None,
        })
    }

    /// Returns what became of the server's snapshots.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn snapshot_status(&mut self) -> Result<SnapshotStatus, AskError> {
        self.ask_for(&Request::Snapshot { begin: false }, snapshot_status)
    }

    /// Asks the server for a snapshot with every change acknowledged so far, and does not wait for it. It has ended
    /// when [`SnapshotStatus::has_ended`] of a later [`Client::snapshot_status`] says so for this answer. The server
    /// writes the file with which it was started ([`ServerConfig::snapshots`](crate::ServerConfig::snapshots)). If it
    /// makes no snapshots, nothing happens, and [`SnapshotStatus::is_on`] is `false`.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer, or this client may only read.
    pub fn ask_for_snapshot(&mut self) -> Result<SnapshotStatus, AskError> {
        self.ask_for(&Request::Snapshot { begin: true }, snapshot_status)
    }

    /// Returns the counts of a table that grows: its segments, and its splits and merges so far. All zero for a table
    /// of one size.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn growth(&mut self) -> Result<GrowthCounts, AskError> {
        self.ask_for(&Request::Growth { shrink: false }, growth)
    }

    /// Has the server begin every merge of two segments whose result has at most 85 % of a segment's design load, and
    /// does not wait: [`GrowthCounts::merging`] of the answer are under way. When they have ended, more may be
    /// possible. A table of one size stays as it is.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer, or this client may only read.
    pub fn shrink(&mut self) -> Result<GrowthCounts, AskError> {
        self.ask_for(&Request::Growth { shrink: true }, growth)
    }

    /// Has the server grow a table for this many keys in all, and does not wait. A thread of the server does it, ahead
    /// of the puts that follow. If the keys do not come, the table stays larger than it need be; [`Client::shrink`]
    /// mends that. A table of one size stays as it is.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer, or this client may only read. A server that does not know this
    /// request yet ends the connection; the next call makes another one.
    pub fn grow_for(&mut self, keys: u64) -> Result<GrowthCounts, AskError> {
        self.ask_for(&Request::GrowFor { keys }, growth)
    }

    /// Returns counts of the memory of the server's long values. All zero for a table whose values all fit their slots.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn heap(&mut self) -> Result<HeapCounts, AskError> {
        self.ask_for(&Request::Heap, |reply| match reply {
            Reply::Heap(counts) => Some(counts),
            _ => None,
        })
    }

    /// Returns counts of the server's notes on entries, in memory of its own. `None` from a server that does not know
    /// this request yet.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn notes(&mut self) -> Result<Option<NoteCounts>, AskError> {
        self.ask_for(&Request::Notes, |reply| match reply {
            Reply::Notes(counts) => Some(Some(counts)),
            Reply::Put(Err(PutError::OldServer)) => Some(None),
            _ => None,
        })
    }

    /// Returns counts of entries that were evicted since the server started. All zero for a table that does not evict.
    /// `None` from a server that does not know this request yet.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn evictions(&mut self) -> Result<Option<EvictCounts>, AskError> {
        self.ask_for(&Request::Evictions, |reply| match reply {
            Reply::Evictions(counts) => Some(Some(counts)),
            Reply::Put(Err(PutError::OldServer)) => Some(None),
            _ => None,
        })
    }

    /// Returns how long the server's puts take, and further counts. `None` from a server that does not know this
    /// request yet.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn server_times(&mut self) -> Result<Option<ServerTimes>, AskError> {
        self.ask_for(&Request::Times, |reply| match reply {
            Reply::Times(times) => Some(Some(*times)),
            Reply::Put(Err(PutError::OldServer)) => Some(None),
            _ => None,
        })
    }

    /// Returns counts of what clients hold: puts that were started, and their connections' share of the server's
    /// memory. `None` from a server that does not know this request yet.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn held(&mut self) -> Result<Option<HeldCounts>, AskError> {
        self.ask_for(&Request::Held, |reply| match reply {
            Reply::Held(counts) => Some(Some(counts)),
            Reply::Put(Err(PutError::OldServer)) => Some(None),
            _ => None,
        })
    }

    /// Returns how many GETs clients on the server's host have made since it started, and clients over TCP, and how many of
    /// these found their key. `None` from a server that does not know this request yet.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn get_counts(&mut self) -> Result<Option<GetCounts>, AskError> {
        self.publish();
        self.ask_for(&Request::GetCounts, |reply| match reply {
            Reply::GetCounts(counts) => Some(Some(counts)),
            Reply::Put(Err(PutError::OldServer)) => Some(None),
            _ => None,
        })
    }

    /// Returns how far the server's log of changes is ([`ServerConfig::log`](crate::ServerConfig::log)). `None` from a server
    /// that has none, or that does not know this request yet.
    ///
    /// # Errors
    /// [`AskError`] when the server does not answer.
    pub fn log(&mut self) -> Result<Option<LogStatus>, AskError> {
        self.ask_for(&Request::Log, |reply| match reply {
            Reply::Log(log) => Some(log),
            Reply::Put(Err(PutError::OldServer)) => Some(None),
            _ => None,
        })
    }

    /// Makes a request. `answer` is `None` for a reply that does not belong to it.
    fn ask_for<T>(
        &mut self,
        request: &Request<'_>,
        answer: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, AskError> {
        let reply = self.ask(request, Instant::now() + self.options.deadline)?;
        answer(reply).ok_or_else(|| self.unexpected())
    }
}

fn snapshot_status(reply: Reply) -> Option<SnapshotStatus> {
    match reply {
        Reply::Snapshot(status) => Some(status),
        _ => None,
    }
}

fn growth(reply: Reply) -> Option<GrowthCounts> {
    match reply {
        Reply::Growth(counts) => Some(counts),
        _ => None,
    }
}
