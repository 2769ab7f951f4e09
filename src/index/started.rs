//! The state of puts in two steps that were started and not committed (P).
//!
//! ```text
//! start    the put is noted ── memory for the value ── a hidden entry without an owner, if the key is absent
//! remove   of a started key: under the key's lock its entry becomes a hidden one
//! commit   the value replaces the entry ── the put is forgotten
//! ```
//!
//! While the lock of this state is held, the thread waits for nothing, frees no memory, and takes no key's lock. A
//! thread that removes a key looks here under the key's lock, as for a pin (Z2).

use crate::base::sync::{Mutex, MutexGuard, lock};
use crate::config::StartLimits;
use crate::faults::{Rule, broken, kept};
use crate::layout::geometry::Geometry;
use crate::layout::hash::First;
use crate::layout::life::Life;
use crate::layout::owners::{NOT_COMMITTED, bit};
use crate::outcome::{PutError, StartBound, StartCounts};
use crate::region::Region;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::extents::Upload;

/// How long until tidying looks again at a put whose time is over while a thread works at it, and at a put that could
/// not be given up.
const AT_WORK_NS: u64 = 1_000_000;

/// The puts of a table that were started.
#[derive(Debug)]
pub(super) struct StartedPuts {
    common: Arc<StartsInCommon>,
    slots: u64,
    heap_bytes: u64,
    /// The least that they may hold of the heap: the longest value.
    longest: u64,
}

#[derive(Debug)]
struct StartsInCommon {
    state: Mutex<StartsState>,
    /// The number of started keys. Stored under the lock. Relaxed: a thread that starts a key has stored it before it
    /// takes the key's lock, and a thread that removes the key loads it under that lock.
    keys: AtomicU64,
    /// The number of entries that are not committed. Relaxed, as the next two: only the numbers are communicated.
    uncommitted: AtomicU64,
    refused: AtomicU64,
    sessions: AtomicU64,
    /// When tidying has something to do; `u64::MAX`: nothing is due by time. Relaxed: a hint.
    next_ns: AtomicU64,
}

/// The started puts, under their lock.
#[derive(Debug, Default)]
struct StartsState {
    limits: StartLimits,
    all: FxHashMap<Arc<[u8]>, StartedPut>,
    /// Their keys, by end and ticket.
    by_end: BTreeMap<(u64, u64), Arc<[u8]>>,
    /// Their keys, by session and ticket.
    by_session: BTreeMap<(u64, u64), Arc<[u8]>>,
    /// Bytes of the heap that they hold.
    heap_bytes: u64,
    /// The number of puts whose time was over.
    late: u64,
    /// The ticket of the next put.
    next: u64,
    /// Sessions that have ended.
    ended: Vec<u64>,
    /// Hashes of keys that the last server had started.
    left_over: Vec<First>,
    /// Hashes of keys whose entries could not be seen, or removed: they are tried again a little later (P2).
    again: Vec<First>,
}

/// A put that was started.
#[derive(Debug)]
struct StartedPut {
    ticket: u64,
    session: u64,
    heap_bytes: u64,
    ends_ns: u64,
    /// The life of the hidden entry that a remove leaves in the key's slot. Every entry with it is hidden, so two of
    /// them are equal.
    hidden: Life,
    /// Whether a remove has left such an entry since the start.
    was_removed: bool,
    /// `None` while a thread works at the put: starts it, brings bytes, or commits it.
    value: Option<StartedValue>,
}

/// The part of a put's value that has come.
#[derive(Debug)]
pub(super) struct StartedValue {
    /// Bytes of the whole value.
    pub len: usize,
    /// The bytes that have come, if they do not go to memory of their own.
    pub bytes: Vec<u8>,
    pub upload: Option<Upload>,
}

/// The arguments of a start.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartAsked {
    pub heap_bytes: u64,
    pub within: Duration,
    pub now_ns: u64,
    pub hidden: Life,
}

/// A session of puts in two steps. When it is dropped, its puts are given up.
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
    /// Whether the put's time is over, and no thread works at it.
    fn is_late(&self, now_ns: u64) -> bool {
        self.ends_ns <= now_ns && self.value.is_some()
    }
}

impl StartedValue {
    /// A value of which nothing has come yet.
    pub fn new(len: usize, upload: Option<Upload>) -> StartedValue {
        StartedValue { len, bytes: Vec::new(), upload }
    }

    /// Bytes that have come.
    pub fn given(&self) -> usize {
        self.upload.as_ref().map_or(self.bytes.len(), |upload| self.len.saturating_sub(upload.left()))
    }

    /// Takes the next bytes. `false` if they are more than are missing: then none is taken.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        match &self.upload {
            Some(upload) => upload.write(bytes),
            None if self.bytes.len() + bytes.len() > self.len => false,
            None => {
                self.bytes.extend_from_slice(bytes);
                true
            }
        }
    }
}

impl StartsState {
    /// Forgets a put.
    fn forget(&mut self, key: &[u8]) -> Option<StartedPut> {
        let put = self.all.remove(key)?;
        self.by_end.remove(&(put.ends_ns, put.ticket));
        self.by_session.remove(&(put.session, put.ticket));
        self.heap_bytes -= put.heap_bytes;
        Some(put)
    }

    /// The next key of a put whose time or session is over.
    fn next_ended(&mut self, now_ns: u64) -> Option<Arc<[u8]>> {
        while let Some(&session) = self.ended.last() {
            // No thread works at the puts of an ended session.
            let its = self.by_session.range((session, 0)..=(session, u64::MAX)).next();
            if let Some((_, key)) = its {
                return Some(Arc::clone(key));
            }
            self.ended.pop();
        }
        let mut over = self.by_end.range(..=(now_ns, u64::MAX)).map(|(_, key)| key);
        let key = over.find(|key| self.all.get(&***key).is_some_and(|put| put.is_late(now_ns)))?;
        let key = Arc::clone(key);
        self.late += 1;
        Some(key)
    }

    /// Whether the time or the session of this key's put is over.
    fn has_ended(&mut self, key: &[u8], now_ns: u64) -> bool {
        let Some(put) = self.all.get(key) else { return false };
        let is_late = put.is_late(now_ns);
        self.late += u64::from(is_late);
        is_late || self.ended.contains(&put.session)
    }

    /// When tidying has something to do.
    fn next_ns(&self, now_ns: u64) -> u64 {
        if !self.left_over.is_empty() || !self.ended.is_empty() {
            return 0;
        }
        let soon_ns = now_ns + AT_WORK_NS;
        let first = self.by_end.first_key_value().map(|(&(ends_ns, _), _)| ends_ns);
        let ends_ns = first.map_or(u64::MAX, |ends_ns| if ends_ns > now_ns { ends_ns } else { soon_ns });
        if self.again.is_empty() { ends_ns } else { ends_ns.min(soon_ns) }
    }
}

/// Frees what a put holds, after the lock is released: freeing waits for a thread that copies the value to other memory
/// (X10). Returns whether there was a put.
fn free(state: MutexGuard<'_, StartsState>, put: Option<StartedPut>) -> bool {
    drop(state);
    put.is_some()
}

impl StartedPuts {
    /// The started puts of a new table, or of one that another server had. That server had started keys with the hashes
    /// `left_over`. Tickets are counted from the server's number on, so they differ from those of other servers (I3).
    pub fn new(region: &Region, geometry: &Geometry, launch: u64, left_over: Vec<First>) -> StartedPuts {
        // For ever: an entry that is not committed is hidden.
        let word = geometry.owner_word(NOT_COMMITTED);
        region.store(word, region.load(word) | bit(NOT_COMMITTED));
        let common = StartsInCommon {
            keys: AtomicU64::new(0),
            uncommitted: AtomicU64::new(left_over.len() as u64),
            refused: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            next_ns: AtomicU64::new(if left_over.is_empty() { u64::MAX } else { 0 }),
            state: Mutex::new(StartsState { next: launch, left_over, ..StartsState::default() }),
        };
        StartedPuts {
            common: Arc::new(common),
            slots: geometry.main_slots() * geometry.segments_max().max(1),
            heap_bytes: geometry.heap().bytes,
            longest: crate::layout::extent::extent_bytes(geometry.extent_max()),
        }
    }

    pub fn session(&self) -> StartSession {
        let id = self.common.sessions.fetch_add(1, Relaxed);
        StartSession { common: Arc::clone(&self.common), id }
    }

    pub fn limit(&self, limits: StartLimits) {
        lock(&self.common.state).limits = limits;
    }

    /// The slots, and the bytes of the heap, that all puts together may hold.
    fn shares(&self, limits: &StartLimits) -> (u64, u64) {
        let least = u64::from(limits.percent > 0);
        let heap_bytes = match self.heap_bytes {
            0 => 0,
            bytes => limits.share(bytes).max(least * self.longest),
        };
        (limits.share(self.slots).max(least), heap_bytes)
    }

    /// What the puts hold, and may hold.
    pub fn counts(&self) -> StartCounts {
        let state = lock(&self.common.state);
        let (slots_max, heap_bytes_max) = self.shares(&state.limits);
        StartCounts {
            started: state.all.len() as u64,
            slots_max,
            heap_bytes: state.heap_bytes,
            heap_bytes_max,
            late: state.late,
            refused: self.common.refused.load(Relaxed),
        }
    }

    /// P1, P3, P4: notes that this thread starts a key. Returns the ticket.
    ///
    /// # Errors
    /// [`PutError::AlreadyStarted`], [`PutError::StartBound`].
    pub fn begin(&self, key: &[u8], session: u64, asked: StartAsked) -> Result<u64, PutError> {
        let StartAsked { heap_bytes, within, now_ns, hidden } = asked;
        let mut state = lock(&self.common.state);
        let limits = state.limits;
        let bound = |bound| {
            self.common.refused.fetch_add(1, Relaxed);
            Err(PutError::StartBound(bound))
        };
        if within > limits.within_max {
            return bound(StartBound::Time { given: within, max: limits.within_max });
        }
        if state.all.contains_key(key) && !broken(Rule::StartOnce) {
            return Err(PutError::AlreadyStarted);
        }
        let (slots_max, bytes_max) = self.shares(&limits);
        let (slots, bytes) = (state.all.len() as u64, state.heap_bytes);
        if !kept(Rule::StartShare, || slots < slots_max) {
            return bound(StartBound::Slots { held: slots, max: slots_max });
        }
        if heap_bytes > 0 && !kept(Rule::StartShare, || bytes.saturating_add(heap_bytes) <= bytes_max) {
            return bound(StartBound::HeapBytes { held: bytes, max: bytes_max });
        }
        state.forget(key);
        state.next = state.next.wrapping_add(1);
        let (ticket, key) = (state.next, Arc::<[u8]>::from(key));
        let ends_ns = now_ns.saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX));
        let put =
            StartedPut { ticket, session, heap_bytes, ends_ns, hidden, was_removed: false, value: None };
        state.heap_bytes += heap_bytes;
        state.by_end.insert((ends_ns, ticket), Arc::clone(&key));
        state.by_session.insert((session, ticket), Arc::clone(&key));
        state.all.insert(key, put);
        self.common.keys.store(state.all.len() as u64, Relaxed);
        self.common.next_ns.fetch_min(ends_ns, Relaxed);
        Ok(ticket)
    }

    /// Takes the value of a put that may go on. Until it is [given back](Self::give_back) or [ended](Self::end), only
    /// this thread works at it. P4: `None` if the put's time is over.
    pub fn take(&self, key: &[u8], ticket: u64, session: &StartSession, now_ns: u64) -> Option<StartedValue> {
        let mut state = lock(&self.common.state);
        let put = state.all.get_mut(key)?;
        let is_its = put.ticket == ticket && put.session == session.id();
        if is_its && kept(Rule::StartTime, || put.ends_ns > now_ns) { put.value.take() } else { None }
    }

    /// Gives the value back: this thread does not work at the put any more.
    pub fn give_back(&self, key: &[u8], value: StartedValue) {
        if let Some(put) = lock(&self.common.state).all.get_mut(key) {
            put.value = Some(value);
        }
    }

    /// Ends a put. Returns whether a remove has left an entry of it.
    pub fn end(&self, key: &[u8]) -> bool {
        let mut state = lock(&self.common.state);
        let put = state.forget(key);
        self.common.keys.store(state.all.len() as u64, Relaxed);
        // The first end, even one that is over by now.
        self.common.next_ns.store(state.next_ns(0), Relaxed);
        let was_removed = put.as_ref().is_some_and(|put| put.was_removed);
        free(state, put);
        was_removed
    }

    /// Takes out a key whose put's time or session is over.
    pub fn take_ended(&self, now_ns: u64) -> Option<Arc<[u8]>> {
        let mut state = lock(&self.common.state);
        let key = state.next_ended(now_ns)?;
        let put = state.forget(&key);
        self.common.keys.store(state.all.len() as u64, Relaxed);
        free(state, put);
        Some(key)
    }

    /// Takes this key out, if its put's time or session is over. Returns whether it was there.
    pub fn take_if_ended(&self, key: &[u8], now_ns: u64) -> bool {
        let mut state = lock(&self.common.state);
        let put = if state.has_ended(key, now_ns) { state.forget(key) } else { None };
        self.common.keys.store(state.all.len() as u64, Relaxed);
        free(state, put)
    }

    /// From now on, tidying looks at what was left for later.
    pub fn begin_again(&self) {
        let state = &mut *lock(&self.common.state);
        state.left_over.append(&mut state.again);
    }

    /// Takes out a hash of keys that the last server had started, or that was left for later.
    pub fn take_left_over(&self) -> Option<First> {
        lock(&self.common.state).left_over.pop()
    }

    /// P2: notes a put that has ended, whose entry could not be seen, or removed.
    #[cold]
    pub fn leave_for_later(&self, hash: First) {
        lock(&self.common.state).again.push(hash);
        self.common.next_ns.store(0, Relaxed);
    }

    pub fn next_ns(&self) -> u64 {
        self.common.next_ns.load(Relaxed)
    }

    /// Sets the time at which tidying has something to do.
    pub fn set_next(&self, now_ns: u64) {
        let state = lock(&self.common.state);
        self.common.next_ns.store(state.next_ns(now_ns), Relaxed);
    }

    // ---- for entries, under their keys' locks ---------------------------------------------------

    /// P1: the life of the hidden entry that replaces this key's entry, which leaves. `None` if the key is not started.
    #[inline]
    pub fn stands_in(&self, key: &[u8]) -> Option<Life> {
        if self.common.keys.load(Relaxed) == 0 || broken(Rule::StartKeeps) {
            return None;
        }
        let mut state = lock(&self.common.state);
        let put = state.all.get_mut(key)?;
        put.was_removed = true;
        Some(put.hidden)
    }

    /// Whether the key is started.
    #[inline]
    pub fn is_started(&self, key: &[u8]) -> bool {
        self.common.keys.load(Relaxed) != 0 && lock(&self.common.state).all.contains_key(key)
    }

    /// Counts that an entry of the owner `before` was replaced by one of the owner `after`. `None`: there is no entry.
    #[inline]
    pub fn count(&self, before: Option<u16>, after: Option<u16>) {
        match (before == Some(NOT_COMMITTED), after == Some(NOT_COMMITTED)) {
            (false, true) => drop(self.common.uncommitted.fetch_add(1, Relaxed)),
            (true, false) => drop(self.common.uncommitted.fetch_sub(1, Relaxed)),
            (true, true) | (false, false) => {}
        }
    }

    /// The number of entries that are not committed. They are not keys.
    pub fn uncommitted(&self) -> u64 {
        self.common.uncommitted.load(Relaxed)
    }
}
