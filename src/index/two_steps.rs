//! Puts in two steps (P), by an embedder or a server.

use super::decide::{Becomes, Decides, Swap};
use super::face::Index;
use super::feed::LeftCause;
use super::owners::OwnerSession;
use super::segment::{Which, check_lengths};
use super::slots::Owned;
use super::started::{StartSession, StartedPut, StartedPuts};
use crate::faults::{Rule, broken};
use crate::layout::extent::Expected;
use crate::layout::life::Life;
use crate::layout::long::SlotReference;
use crate::layout::owners::NOT_COMMITTED;
use crate::layout::slot::Stored;
use crate::outcome::{PutError, PutMode, PutOptions, PutOutcome, SwapOutcome};
use std::time::Duration;

/// Keys of the last server's that are looked at in one tidying.
const LEFT_OVER_AT_ONCE: usize = 100;

/// A key that is started leaves, if its entry is such a one, and is told for that cause (P1).
struct Vacate {
    which: Which,
    hidden: Life,
    has_left: bool,
}

impl Decides for Vacate {
    fn decide(&mut self, there: Option<&Owned>, _: bool) -> Result<Becomes<'_>, PutError> {
        let (has_left, cause) = match (there, self.which) {
            (Some(_), Which::Any) => (true, LeftCause::Removed),
            (Some(there), Which::Ended(now)) => {
                (there.life.is_some_and(|life| life.has_ended(now)), LeftCause::Expired)
            }
            // It is hidden, with its owner.
            (None, Which::Of(_)) => (true, LeftCause::OwnerGone),
            (Some(_), Which::Of(_) | Which::Unpinned | Which::Noted) | (None, _) => {
                (false, LeftCause::Removed)
            }
        };
        self.has_left = has_left;
        Ok(if has_left { Becomes::Hides(self.hidden, cause) } else { Becomes::Stays })
    }
}

impl Index {
    /// Begins a session for puts in two steps. What it has started is given up when it is dropped.
    ///
    /// # Errors
    /// [`PutError::NoOwners`]: such puts need [`Config::owners`](crate::Config::owners).
    pub fn start_session(&self) -> Result<StartSession, PutError> {
        Ok(self.all_started()?.session())
    }

    /// Starts a put: holds all the room that `key` with a value of `len` bytes needs, for so long. Until it is committed,
    /// everybody sees what was there before, also nothing. Returns its ticket.
    ///
    /// # Errors
    /// [`PutError::AlreadyStarted`]; and as [`Index::put`], if there is no room.
    pub fn put_start(
        &self,
        session: &StartSession,
        key: &[u8],
        len: usize,
        within: Duration,
    ) -> Result<u64, PutError> {
        let started = self.all_started()?;
        let upload = self.upload(key, len)?;
        // Of a key that does not fit its slot, what keeps the slot names an extent, too.
        let mut kept = if self.geometry().is_long(key) { self.draft_at_once(key, 0)? } else { None };
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = self.table().clock().now_ns();
        let ends_ns = now_ns.saturating_add(within_ns);
        // P1: who removes the key comes before, or finds it started.
        let mut state = started.lock();
        // P2: one that has ended is given up, whether a tidying has come by or not.
        if state.take_if_ended(key, now_ns) {
            self.give_up(key);
        }
        if state.all.contains_key(key) && !broken(Rule::StartOnce) {
            return Err(PutError::AlreadyStarted);
        }
        let (ticket, life) = (state.ticket(), self.not_committed()?);
        let named = kept.as_mut().map(|draft| self.geometry().slot_reference(key, draft.finish()));
        let hidden = named.as_ref().map_or(Stored::from(&[]), SlotReference::stored).with_life(Some(&life));
        let put = self.put_told(key, hidden, PutMode::Insert);
        match kept {
            Some(draft) => draft.after(put)?,
            None => put?,
        };
        let put = StartedPut { ticket, session: session.id(), len, bytes: Vec::new(), upload, ends_ns };
        state.all.insert(key.into(), put);
        started.set_next(&state);
        Ok(ticket)
    }

    /// Takes the next bytes of the value.
    ///
    /// # Errors
    /// [`PutError::NotStarted`], [`PutError::StartedLength`] if these are more than it has.
    pub fn put_piece(
        &self,
        session: &StartSession,
        key: &[u8],
        ticket: u64,
        bytes: &[u8],
    ) -> Result<(), PutError> {
        let mut state = self.all_started()?.lock();
        let put = state.of(key, ticket, session.id()).ok_or(PutError::NotStarted)?;
        let given = put.given() + bytes.len();
        let fits = match &put.upload {
            Some(upload) => upload.write(bytes),
            None if given > put.len => false,
            None => {
                put.bytes.extend_from_slice(bytes);
                true
            }
        };
        if fits { Ok(()) } else { Err(PutError::StartedLength { given, stated: put.len }) }
    }

    /// Commits the put: from the return on, everybody sees the value, all of which must have come. It needs no room that
    /// it does not have.
    ///
    /// # Errors
    /// [`PutError::NotStarted`], if its time is over, or it is another session's; [`PutError::StartedLength`], and it may
    /// go on; [`PutError::OwnerGone`].
    pub fn put_commit(
        &self,
        session: &StartSession,
        key: &[u8],
        ticket: u64,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        let started = self.all_started()?;
        let mut state = started.lock();
        let put = state.of(key, ticket, session.id()).ok_or(PutError::NotStarted)?;
        let (given, stated) = (put.given(), put.len);
        if given != stated {
            return Err(PutError::StartedLength { given, stated });
        }
        let Some(put) = state.all.remove(key) else { return Err(PutError::NotStarted) };
        let outcome = match put.upload {
            None => self.put_living(key, (&put.bytes).into(), PutOptions::new(), owner),
            Some(upload) => match upload.whole() {
                None => Err(PutError::StartedLength { given, stated }),
                Some(mut draft) => {
                    let named = self.geometry().slot_reference(key, draft.finish());
                    let put = self.put_living(key, named.stored(), PutOptions::new(), owner);
                    draft.after(put)
                }
            },
        };
        if outcome.is_err() {
            self.give_up(key);
        }
        started.set_next(&state);
        outcome
    }

    /// Gives the put up: its room is free again. Returns whether it was started.
    ///
    /// # Errors
    /// [`PutError::NoOwners`]
    pub fn put_abort(&self, session: &StartSession, key: &[u8], ticket: u64) -> Result<bool, PutError> {
        let started = self.all_started()?;
        let mut state = started.lock();
        if state.of(key, ticket, session.id()).is_none() {
            return Ok(false);
        }
        state.all.remove(key);
        self.give_up(key);
        started.set_next(&state);
        Ok(true)
    }

    /// The key is not started any more.
    fn give_up(&self, key: &[u8]) {
        // It has one if nothing else was there.
        let _ = self.remove_plainly(key, Which::Of(NOT_COMMITTED));
    }

    /// Gives puts up whose time is over. Returns how long until there is more to do.
    pub(super) fn tidy_started(&self, started: &StartedPuts) -> Option<Duration> {
        let now_ns = self.table().clock().now_ns();
        if started.next_ns() <= now_ns {
            let mut state = started.lock();
            state.take_ended(now_ns).iter().for_each(|key| self.give_up(key));
            for _ in 0..LEFT_OVER_AT_ONCE {
                let Some(hash) = state.left_over.pop() else { break };
                let Some(lives) = self.table().lives_of(hash) else {
                    state.left_over.push(hash);
                    break;
                };
                let mine = lives.iter().filter(|(_, life)| life.owner == NOT_COMMITTED);
                mine.filter(|(key, _)| !state.all.contains_key(&key[..]))
                    .for_each(|(key, _)| self.give_up(key));
            }
            started.set_next(&state);
        }
        let next_ns = started.next_ns();
        (next_ns != u64::MAX).then(|| Duration::from_nanos(next_ns.saturating_sub(now_ns)))
    }

    /// Removes a key. One that is started keeps its slot, with a hidden entry (P1).
    pub(super) fn remove_unless_started(
        &self,
        started: &StartedPuts,
        key: &[u8],
        which: Which,
    ) -> Result<bool, PutError> {
        // What makes room may be asked for by a thread that has the lock.
        let state = if which == Which::Unpinned { started.try_lock() } else { Some(started.lock()) };
        let Some(state) = state else { return Ok(false) };
        if !state.all.contains_key(key) || broken(Rule::StartKeeps) {
            return self.remove_plainly(key, which);
        }
        check_lengths(self.geometry(), key, &[])?;
        let mut vacate = Vacate { which, hidden: self.not_committed()?, has_left: false };
        self.changed_told(key, &mut vacate)?;
        Ok(vacate.has_left)
    }

    /// The same, if the key has the expected value.
    pub(super) fn remove_expected_unless_started(
        &self,
        started: &StartedPuts,
        key: &[u8],
        expected: Expected<'_>,
    ) -> Result<SwapOutcome, PutError> {
        let state = started.lock();
        if !state.all.contains_key(key) {
            return self.swap_stored(key, expected, Becomes::Leaves);
        }
        check_lengths(self.geometry(), key, expected.bytes())?;
        let hidden = Becomes::Hides(self.not_committed()?, LeftCause::Removed);
        let mut swap = Swap::new(key, expected, hidden, self.table().extents().map(|extents| &**extents));
        self.changed_told(key, &mut swap)?;
        Ok(swap.outcome())
    }

    /// The life of an entry that is hidden until a put is committed.
    fn not_committed(&self) -> Result<Life, PutError> {
        self.lives().ok_or(PutError::NoLife)?.life(self.region(), None, NOT_COMMITTED)
    }

    fn all_started(&self) -> Result<&StartedPuts, PutError> {
        self.started().ok_or(PutError::NoOwners)
    }
}
