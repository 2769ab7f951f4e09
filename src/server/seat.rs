//! One client's slots on shm ([`crate::mailbox::area`]): the server's end.

use super::Shared;
use crate::layout::geometry::Geometry;
use crate::mailbox::area::{Area, WINDOW};
use crate::mailbox::{self, Mark, Once, Patience};
use crate::region::RegionError;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A client's slots are looked at for so long after its last request, if it then often makes another; else for a
/// shorter time. To be woken takes some microseconds.
const LINGER_MIN: Duration = Duration::from_micros(4);
const LINGER_MAX: Duration = Duration::from_micros(50);

/// A client's slots. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    area: Area,
    once: Once,
    copy: Vec<u64>,
    is_awake: bool,
    /// Since it was woken.
    has_asked: bool,
    patience: Patience,
    /// When something was last found.
    last: Instant,
    /// The announcement of the client's for which it was woken last.
    rung: u64,
}

impl Drop for Seat {
    /// A client that keeps its mapping does not keep the server's memory.
    fn drop(&mut self) {
        self.area.discard();
    }
}

/// What came of a look at the slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visit {
    pub answered: u64,
    /// Is the client to be woken?
    pub has_rung: bool,
}

impl Seat {
    /// New slots, and what the client is handed.
    pub fn new(geometry: &Geometry) -> Result<(Seat, OwnedFd), RegionError> {
        let (area, fd) = Area::make(geometry)?;
        // Until it is awake.
        area.server().announce(1);
        let seat = Seat {
            area,
            once: Once::default(),
            copy: Vec::new(),
            is_awake: false,
            has_asked: false,
            patience: Patience::new(LINGER_MIN, LINGER_MAX),
            last: Instant::now(),
            rung: 0,
        };
        Ok((seat, fd))
    }

    /// The client has rung: its slots are looked at again. Were they not?
    pub fn wakes(&mut self) -> bool {
        if self.is_awake {
            return false;
        }
        self.area.server().withdraw();
        self.last = Instant::now();
        self.has_asked = false;
        self.is_awake = true;
        true
    }

    /// If the client has been quiet for some time, its slots are no longer looked at until it rings (A3). So?
    pub fn rests(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.last) < self.patience.time() {
            return false;
        }
        self.area.server().announce(1);
        if self.is_next_there() {
            self.area.server().withdraw();
            return false;
        }
        self.is_awake = false;
        self.patience.exhausted();
        true
    }

    fn is_next_there(&self) -> bool {
        let next = self.once.taken().sequence.wrapping_add(1);
        mailbox::glance(self.area.request(next)).sequence == next
    }

    /// Answers what is there, at most as much as there are slots, and after `turn_ends` only one. An error ends the
    /// conversation: no client of oneread's stores such a thing.
    #[inline]
    pub fn visit(&mut self, shared: &Shared, turn_ends: Instant) -> Result<Visit, String> {
        if self.is_next_there() { self.answer_all(shared, turn_ends) } else { Ok(Visit::default()) }
    }

    fn answer_all(&mut self, shared: &Shared, turn_ends: Instant) -> Result<Visit, String> {
        // What a ring has told of does not count.
        if std::mem::replace(&mut self.has_asked, true) {
            self.patience.rewarded();
        }
        let mut answered = 0;
        while answered < WINDOW && self.is_next_there() {
            self.answer(shared)?;
            answered += 1;
            self.last = Instant::now();
            if self.last >= turn_ends {
                break;
            }
        }
        let until = self.area.client().heard();
        let has_rung = until != 0 && until <= self.once.taken().sequence && until != self.rung;
        if has_rung {
            self.rung = until;
        }
        Ok(Visit { answered, has_rung })
    }

    fn answer(&mut self, shared: &Shared) -> Result<(), String> {
        let Seat { area, once, copy, .. } = self;
        let sequence = once.taken().sequence.wrapping_add(1);
        // What another CPU has stored takes its time to come: of a batch, the next comes meanwhile.
        area.prefetch_request(sequence.wrapping_add(1));
        let frame = mailbox::load(area.request(sequence), sequence, copy);
        let frame = frame.ok_or("a request slot that makes no sense")?;
        if !once.take(Mark { sequence, attempt: 0 }, frame, |request| shared.answer(request)) {
            return Err("a request slot without a request".into());
        }
        if !mailbox::store(area.reply(sequence), sequence, once.reply()) {
            return Err("a reply that fits no slot".into());
        }
        Ok(())
    }
}
