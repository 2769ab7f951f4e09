//! Puts in two steps (P), by an embedder or a server.

use super::change::HoldSlot;
use super::face::Index;
use super::owners::OwnerSession;
use super::seams::TurnTaken;
use super::segment::{Which, check_lengths};
use super::started::{StartAsked, StartSession, StartedPuts, StartedValue};
use super::waits::ChangeWaits;
use super::wanted::{Patience, WantedChange};
use crate::config::StartLimits;
use crate::layout::extent::extent_bytes;
use crate::layout::life::Life;
use crate::layout::owners::NOT_COMMITTED;
use crate::outcome::{PutError, PutOptions, PutOutcome, StartCounts};
use std::time::Duration;

/// Keys whose puts one tidying gives up, and hashes of the last server at which it looks.
const AT_ONCE: usize = 100;

impl Index {
    /// The table, with these limits of puts in two steps from now on.
    pub fn with_starts(self, limits: StartLimits) -> Index {
        if let Some(started) = self.started() {
            started.limit(limits);
        }
        self
    }

    /// What puts in two steps that are not committed hold, and may hold. All zero in a table without owners.
    pub fn starts(&self) -> StartCounts {
        self.started().map_or_else(StartCounts::default, StartedPuts::counts)
    }

    /// Begins a session for puts in two steps. When it is dropped, its puts are given up.
    ///
    /// # Errors
    /// [`PutError::NoOwners`]: such puts need [`Config::owners`](crate::Config::owners).
    pub fn start_session(&self) -> Result<StartSession, PutError> {
        Ok(self.all_started()?.session())
    }

    /// Starts a put. Holds all the room that `key` with a value of `len` bytes needs, for the time `within`. Until the
    /// put is committed, readers see the old value. Evicts entries for it as for a put (P5). Returns its ticket.
    ///
    /// # Errors
    /// [`PutError::AlreadyStarted`]; [`PutError::StartBound`]: all starts together hold as much as they may, or `within`
    /// is too long ([`Index::with_starts`]); and as [`Index::put`], if there is no room.
    pub fn put_start(
        &self,
        session: &StartSession,
        key: &[u8],
        len: usize,
        within: Duration,
    ) -> Result<u64, PutError> {
        self.put_start_by(session, key, (len, within), Patience::Sleeps)
    }

    /// As [`Index::put_start`], for a thread that has others to serve ([`Index::try_put`]). While it waits, nothing is
    /// started.
    pub(crate) fn try_put_start(
        &self,
        session: &StartSession,
        key: &[u8],
        (len, within): (usize, Duration),
        waits: &ChangeWaits,
    ) -> Result<u64, PutError> {
        self.put_start_by(session, key, (len, within), Patience::Tries(waits))
    }

    fn put_start_by(
        &self,
        session: &StartSession,
        key: &[u8],
        (len, within): (usize, Duration),
        patience: Patience<'_>,
    ) -> Result<u64, PutError> {
        let (started, geometry) = (self.all_started()?, self.geometry());
        check_lengths(geometry, key, &[])?;
        // Checked before the share of the heap, which is another error.
        if len > geometry.value_max() {
            return Err(PutError::ValueLength { given: len, max: geometry.value_max() });
        }
        let of_key = if geometry.is_long(key) { extent_bytes(key.len()) } else { 0 };
        let of_value = geometry.extent_bytes(key, len);
        let (heap_bytes, now_ns) = (of_key + of_value, self.table().clock().now_ns());
        let hidden = self.not_committed()?;
        // P2: an ended put of the key is given up, even if no tidying has come by.
        if started.take_if_ended(key, now_ns) {
            self.give_up(key);
        }
        // Before memory is taken.
        let taken = TurnTaken::default();
        let patience = self.take_turn(key, patience, &taken)?;
        // P1: from here on, a remove leaves the key its slot.
        let ticket = started.begin(key, session.id(), StartAsked { heap_bytes, within, now_ns, hidden })?;
        match self.hold_room(key, len, hidden, patience) {
            Ok(value) => {
                started.give_back(key, value);
                Ok(ticket)
            }
            Err(error) => {
                started.end(key);
                drop(taken.take());
                self.give_up(key);
                Err(error)
            }
        }
    }

    /// Takes memory for the value, and a slot for the key if it has none.
    fn hold_room(
        &self,
        key: &[u8],
        len: usize,
        hidden: Life,
        patience: Patience<'_>,
    ) -> Result<StartedValue, PutError> {
        // No thread sleeps until there is memory: others may wait for this start to end.
        let for_memory = ChangeWaits::default();
        let waits = match patience {
            Patience::Sleeps => &for_memory,
            Patience::Tries(waits) | Patience::HasTurn(waits, _) => waits,
        };
        let value = StartedValue::new(len, self.try_upload(key, len, waits)?);
        // The entry of a key that does not fit its slot names an extent, too.
        let kept = if self.geometry().is_long(key) { self.try_draft(key, 0, waits)? } else { None };
        let hold = WantedChange::new(key, HoldSlot(hidden)).patience(patience);
        match kept {
            Some(mut draft) => {
                self.until_made(patience, |waits| self.make_named(hold, &mut draft, waits))?;
            }
            None => {
                self.make(hold)?;
            }
        }
        Ok(value)
    }

    /// Takes the next bytes of the value.
    ///
    /// # Errors
    /// [`PutError::NotStarted`], also if its time is over; [`PutError::StartedLength`] if these are more than it has.
    pub fn put_piece(
        &self,
        session: &StartSession,
        key: &[u8],
        ticket: u64,
        bytes: &[u8],
    ) -> Result<(), PutError> {
        let (started, now_ns) = (self.all_started()?, self.table().clock().now_ns());
        let mut value = started.take(key, ticket, session, now_ns).ok_or(PutError::NotStarted)?;
        let (given, stated) = (value.given() + bytes.len(), value.len);
        let fits = value.take(bytes);
        started.give_back(key, value);
        if fits { Ok(()) } else { Err(PutError::StartedLength { given, stated }) }
    }

    /// Commits the put. When this returns, every reader sees the value, all of which must have come. The put has all
    /// the room that it needs.
    ///
    /// # Errors
    /// [`PutError::NotStarted`] if its time is over, if it is another session's, or if another thread works at it.
    /// [`PutError::StartedLength`]: then it may go on. [`PutError::OwnerGone`].
    pub fn put_commit(
        &self,
        session: &StartSession,
        key: &[u8],
        ticket: u64,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        self.put_commit_by(session, key, ticket, owner, Patience::Sleeps)
    }

    /// As [`Index::put_commit`], for a thread that has others to serve. A commit has its room. So it is made at once, and
    /// waits at most before it is answered ([`Index::go_on`]).
    pub(crate) fn try_put_commit(
        &self,
        session: &StartSession,
        key: &[u8],
        ticket: u64,
        owner: Option<&OwnerSession>,
        waits: &ChangeWaits,
    ) -> Result<PutOutcome, PutError> {
        self.put_commit_by(session, key, ticket, owner, Patience::Tries(waits))
    }

    fn put_commit_by(
        &self,
        session: &StartSession,
        key: &[u8],
        ticket: u64,
        owner: Option<&OwnerSession>,
        patience: Patience<'_>,
    ) -> Result<PutOutcome, PutError> {
        let (started, now_ns) = (self.all_started()?, self.table().clock().now_ns());
        // Before the value is taken: a commit that is tried is made.
        let taken = TurnTaken::default();
        let patience = self.take_turn(key, patience, &taken)?;
        let value = started.take(key, ticket, session, now_ns).ok_or(PutError::NotStarted)?;
        let (given, stated) = (value.given(), value.len);
        if given != stated {
            started.give_back(key, value);
            return Err(PutError::StartedLength { given, stated });
        }
        let options = PutOptions::new();
        let put = WantedChange::put(key, options).by(owner).patience(patience);
        let outcome = match value.upload {
            None => self.make(put.value(&value.bytes)),
            Some(upload) => match upload.whole() {
                None => Err(PutError::StartedLength { given, stated }),
                Some(mut draft) => self.until_made(patience, |waits| self.make_named(put, &mut draft, waits)),
            },
        };
        drop(taken.take());
        // P1: only now may others have the slot again. If the key was removed meanwhile, an entry was left.
        if started.end(key) || outcome.is_err() {
            self.give_up(key);
        }
        outcome
    }

    /// Gives the put up, and frees its room. Returns whether it was started.
    ///
    /// # Errors
    /// [`PutError::NoOwners`]
    pub fn put_abort(&self, session: &StartSession, key: &[u8], ticket: u64) -> Result<bool, PutError> {
        let (started, now_ns) = (self.all_started()?, self.table().clock().now_ns());
        if started.take(key, ticket, session, now_ns).is_none() {
            return Ok(false);
        }
        started.end(key);
        self.give_up(key);
        Ok(true)
    }

    /// P2: gives the room of a key back whose put is over. If another put of the key is started by now, its entry
    /// stays.
    fn give_up(&self, key: &[u8]) {
        // If the key was absent, it has an entry of the put.
        if self.remove_if_free(key, Which::Of(NOT_COMMITTED)).is_err()
            && let Some(started) = self.started()
        {
            started.leave_for_later(self.geometry().hashed(key).first());
        }
    }

    /// Gives some puts up whose time is over. Returns how long until there is more to do.
    pub(super) fn tidy_started(&self, started: &StartedPuts) -> Option<Duration> {
        let now_ns = self.table().clock().now_ns();
        if started.next_ns() <= now_ns {
            started.begin_again();
            let ended = std::iter::from_fn(|| started.take_ended(now_ns));
            ended.take(AT_ONCE).for_each(|key| self.give_up(&key));
            for hash in std::iter::from_fn(|| started.take_left_over()).take(AT_ONCE) {
                let Some(lives) = self.table().look_at(hash, |at| at.lives_of(hash)) else {
                    started.leave_for_later(hash);
                    continue;
                };
                let mine = lives.iter().filter(|(_, life)| life.owner == NOT_COMMITTED);
                mine.for_each(|(key, _)| self.give_up(key));
            }
            started.set_next(now_ns);
        }
        let next_ns = started.next_ns();
        (next_ns != u64::MAX).then(|| Duration::from_nanos(next_ns.saturating_sub(now_ns)))
    }

    /// The life of an entry that is hidden until a put is committed.
    fn not_committed(&self) -> Result<Life, PutError> {
        let life = self.lives().ok_or(PutError::NoLife)?.life(self.region(), None, NOT_COMMITTED)?;
        // The entry ends with its put. It does not have the time of entries that are put without one.
        Ok(Life { expiry: 0, ..life })
    }

    fn all_started(&self) -> Result<&StartedPuts, PutError> {
        self.started().ok_or(PutError::NoOwners)
    }
}
