//! Puts in two steps that were started and not committed (P): what the server keeps of them.
//!
//! ```text
//! start    memory for the value ─ an entry of nobody's that is hidden, if the key is absent
//! remove   of such a key: its entry becomes a hidden one
//! commit   the value takes the place of what is there
//! ```

use crate::layout::geometry::Geometry;
use crate::layout::hash::First;
use crate::layout::owners::{NOT_COMMITTED, bit};
use crate::region::Region;
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::extents::Upload;

/// The puts of a table that were started.
#[derive(Debug)]
pub(super) struct StartedPuts(Arc<StartsInCommon>);

#[derive(Debug)]
struct StartsInCommon {
    /// Who removes a key has this lock meanwhile, so that none is removed that is just being started.
    state: Mutex<StartsState>,
    sessions: AtomicU64,
    /// When tidying has something to do; `u64::MAX`: not by itself. Relaxed: a hint.
    next_ns: AtomicU64,
}

/// What is started, under its lock.
#[derive(Debug, Default)]
pub(super) struct StartsState {
    pub all: FxHashMap<Box<[u8]>, StartedPut>,
    /// The number of the next one.
    next: u64,
    /// Sessions that have ended.
    ended: Vec<u64>,
    /// Hashes of keys that the last server had started.
    pub left_over: Vec<First>,
}

/// A put that was started.
#[derive(Debug)]
pub(super) struct StartedPut {
    pub ticket: u64,
    pub session: u64,
    /// Bytes of the value.
    pub len: usize,
    /// The bytes that have come, where they do not go to memory of their own.
    pub bytes: Vec<u8>,
    pub upload: Option<Upload>,
    pub ends_ns: u64,
}

/// Whose puts in two steps are given up when it is dropped.
#[derive(Debug)]
pub struct StartSession {
    common: Arc<StartsInCommon>,
    id: u64,
}

impl StartSession {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for StartSession {
    fn drop(&mut self) {
        lock(&self.common.state).ended.push(self.id);
        self.common.next_ns.store(0, Relaxed);
    }
}

impl StartedPut {
    /// Whether its time is over by now, or its session is: it is one of these.
    fn is_over(&self, now_ns: u64, ended: &[u64]) -> bool {
        self.ends_ns <= now_ns || ended.contains(&self.session)
    }

    /// Bytes that have come.
    pub fn given(&self) -> usize {
        self.upload.as_ref().map_or(self.bytes.len(), |upload| self.len.saturating_sub(upload.left()))
    }
}

impl StartsState {
    /// The number of another one.
    pub fn ticket(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// The put of this key, if this is its ticket, and this its session.
    pub fn of(&mut self, key: &[u8], ticket: u64, session: u64) -> Option<&mut StartedPut> {
        self.all.get_mut(key).filter(|put| put.ticket == ticket && put.session == session)
    }

    /// Takes those out whose time is over by now, or whose session is.
    pub fn take_ended(&mut self, now_ns: u64) -> Vec<Box<[u8]>> {
        let ended = std::mem::take(&mut self.ended);
        self.all.extract_if(|_, put| put.is_over(now_ns, &ended)).map(|(key, _)| key).collect()
    }

    /// Takes the put of this key out, if its time is over by now, or its session is. Returns whether it was there.
    pub fn take_if_ended(&mut self, key: &[u8], now_ns: u64) -> bool {
        let has_ended = self.all.get(key).is_some_and(|put| put.is_over(now_ns, &self.ended));
        has_ended && self.all.remove(key).is_some()
    }
}

impl StartedPuts {
    /// Those of a table that begins, or of one that another server had, which had started keys with these hashes. Tickets are
    /// counted from the server's number on: nobody has one of another server (I3).
    pub fn new(region: &Region, geometry: &Geometry, launch: u64, left_over: Vec<First>) -> StartedPuts {
        // For good: an entry of nobody's that is not committed is hidden.
        let word = geometry.owner_word(NOT_COMMITTED);
        region.store(word, region.load(word) | bit(NOT_COMMITTED));
        let next_ns = AtomicU64::new(if left_over.is_empty() { u64::MAX } else { 0 });
        let state = Mutex::new(StartsState { next: launch, left_over, ..StartsState::default() });
        StartedPuts(Arc::new(StartsInCommon { state, sessions: AtomicU64::new(0), next_ns }))
    }

    pub fn session(&self) -> StartSession {
        let id = self.0.sessions.fetch_add(1, Relaxed);
        StartSession { common: Arc::clone(&self.0), id }
    }

    pub fn lock(&self) -> MutexGuard<'_, StartsState> {
        lock(&self.0.state)
    }

    /// The same, if nobody has it: not even this thread, which has an entry leave to make room.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, StartsState>> {
        try_lock(&self.0.state)
    }

    pub fn next_ns(&self) -> u64 {
        self.0.next_ns.load(Relaxed)
    }

    /// Says when tidying has something to do.
    pub fn set_next(&self, state: &StartsState) {
        let next = match state.left_over.is_empty() && state.ended.is_empty() {
            true => state.all.values().map(|put| put.ends_ns).min().unwrap_or(u64::MAX),
            false => 0,
        };
        self.0.next_ns.store(next, Relaxed);
    }
}
