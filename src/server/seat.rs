//! One client's slots on shm ([`crate::mailbox::area`]): the server's end.

use super::ServerState;
use crate::layout::geometry::Geometry;
use crate::mailbox::area::{Mailbox, WINDOW};
use crate::mailbox::{self, CellMark, Once, SpinTime};
use crate::region::RegionError;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A client's slots are looked at for so long after its last request, if it then often makes another; else for a
/// shorter time. To be woken takes some microseconds.
const LINGER_MIN: Duration = Duration::from_micros(4);
const LINGER_MAX: Duration = Duration::from_micros(50);

/// A client's slots. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct ServerMailbox {
    area: Mailbox,
    once: Once,
    copy: Vec<u64>,
    is_awake: bool,
    /// Since it was woken.
    has_asked: bool,
    patience: SpinTime,
    /// When something was last found.
    last: Instant,
    /// The announcement of the client's for which it was woken last.
    rung: u64,
}

impl Drop for ServerMailbox {
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

impl ServerMailbox {
    /// New slots, and what the client is handed.
    pub fn new(geometry: &Geometry) -> Result<(ServerMailbox, OwnedFd), RegionError> {
        let (area, fd) = Mailbox::make(geometry)?;
        // Until it is awake.
        area.server().announce(1);
        let seat = ServerMailbox {
            area,
            once: Once::default(),
            copy: Vec::new(),
            is_awake: false,
            has_asked: false,
            patience: SpinTime::new(LINGER_MIN, LINGER_MAX),
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
        self.rests_unless(now, ServerMailbox::is_next_there)
    }

    /// As [`rests`](Self::rests). `is_next_there` is the last look: it comes after the announcement.
    fn rests_unless(&mut self, now: Instant, is_next_there: impl FnOnce(&ServerMailbox) -> bool) -> bool {
        if now.saturating_duration_since(self.last) < self.patience.time() {
            return false;
        }
        self.area.server().announce(1);
        if is_next_there(self) {
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
    pub fn visit(&mut self, shared: &ServerState, turn_ends: Instant) -> Result<Visit, String> {
        if self.is_next_there() { self.answer_all(shared, turn_ends) } else { Ok(Visit::default()) }
    }

    fn answer_all(&mut self, shared: &ServerState, turn_ends: Instant) -> Result<Visit, String> {
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

    fn answer(&mut self, shared: &ServerState) -> Result<(), String> {
        let ServerMailbox { area, once, copy, .. } = self;
        let sequence = once.taken().sequence.wrapping_add(1);
        // What another CPU has stored takes its time to come: of a batch, the next comes meanwhile.
        area.prefetch_request(sequence.wrapping_add(1));
        let frame = mailbox::load(area.request(sequence), sequence, copy);
        let frame = frame.ok_or("a request slot that makes no sense")?;
        if !once.take(CellMark { sequence, attempt: 0 }, frame, |request| shared.answer(request)) {
            return Err("a request slot without a request".into());
        }
        if !mailbox::store(area.reply(sequence), sequence, once.reply()) {
            return Err("a reply that fits no slot".into());
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
impl ServerMailbox {
    /// As if it had asked lately, for an hour.
    pub fn never_rests(&mut self) {
        self.last = Instant::now() + Duration::from_secs(3600);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::shared;
    use super::*;
    use crate::mailbox::{glance, store};
    use crate::wire::{self, Reply, Request};

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// A seat that looks, the client's end of its slots, and what answers.
    fn seat() -> (ServerMailbox, Mailbox, ServerState) {
        let shared = shared();
        let (mut seat, memory) = ServerMailbox::new(shared.index.geometry()).unwrap();
        let area = Mailbox::map(memory, shared.index.geometry()).unwrap();
        assert_eq!(area.server().heard(), 1, "it sleeps until it is rung for");
        assert!(seat.wakes());
        (seat, area, shared)
    }

    fn ask(area: &Mailbox, sequence: u64) {
        let mut frame = Vec::new();
        Request::Get { key: b"key" }.encode(sequence, &mut frame);
        assert!(store(area.request(sequence), sequence, &frame));
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    /// A request that comes between the announcement and the last look is found by that look. Before the
    /// announcement its client would not ring, and after the look nobody would see it.
    #[test]
    fn the_last_look_comes_after_the_announcement() {
        let (mut seat, area, shared) = seat();
        assert_eq!(area.server().heard(), 0, "it looks");
        assert!(!seat.wakes(), "it was awake");
        let mut looks = 0;
        let rests = seat.rests_unless(later(), |seat| {
            looks += 1;
            assert_eq!(area.server().heard(), 1, "a look before the announcement");
            assert!(!seat.is_next_there());
            ask(&area, 1);
            seat.is_next_there()
        });
        assert_eq!((rests, looks), (false, 1));
        assert_eq!(area.server().heard(), 0, "it looks on, and nobody needs to ring");
        assert!(!seat.wakes(), "it is awake still");
        assert_eq!(seat.visit(&shared, later()).unwrap().answered, 1);
        // Nothing comes.
        assert!(seat.rests(later()));
        assert_eq!(area.server().heard(), 1);
        assert!(seat.wakes());
        assert_eq!(area.server().heard(), 0);
    }

    /// It looks for some time after the last request: shorter when nothing came in that time, longer again
    /// when something did. What it was rung for does not count.
    #[test]
    fn how_long_it_looks() {
        let (mut seat, area, shared) = seat();
        let mut asked = 0;
        let mut ask_one = |seat: &mut ServerMailbox| {
            asked += 1;
            ask(&area, asked);
            let before = Instant::now();
            assert_eq!(seat.visit(&shared, later()).unwrap().answered, 1);
            assert!(seat.last >= before, "it looks for so long from now on");
        };
        let rests_after = |seat: &mut ServerMailbox, time: Duration| {
            assert!(!seat.rests(seat.last + time - Duration::from_nanos(1)), "before {time:?}");
            assert!(seat.rests(seat.last + time), "after {time:?}");
            let before = Instant::now();
            assert!(seat.wakes() && seat.last >= before);
        };
        rests_after(&mut seat, MICROSECOND * 50);
        ask_one(&mut seat);
        rests_after(&mut seat, MICROSECOND * 25);
        (0..2).for_each(|_| ask_one(&mut seat));
        rests_after(&mut seat, MICROSECOND * 25);
        for time in [MICROSECOND * 25 / 2, MICROSECOND * 25 / 4, MICROSECOND * 4, MICROSECOND * 4] {
            rests_after(&mut seat, time);
        }
        (0..3).for_each(|_| ask_one(&mut seat));
        rests_after(&mut seat, MICROSECOND * 16);
        (0..100).for_each(|_| ask_one(&mut seat));
        rests_after(&mut seat, MICROSECOND * 50);
    }

    /// A visit answers all that is there, each request in its slot; when the turn is over, one.
    #[test]
    fn how_much_a_visit_answers() {
        let (mut seat, area, shared) = seat();
        let over = Instant::now();
        let mut next = 1;
        for (asked, turn_ends, answered) in
            [(0, later(), 0), (WINDOW, over, 1), (0, over, 1), (0, later(), WINDOW - 2), (3, later(), 3)]
        {
            (next..next + asked).for_each(|sequence| ask(&area, sequence));
            next += asked;
            assert_eq!(seat.visit(&shared, turn_ends).unwrap().answered, answered);
        }
        assert_eq!(seat.visit(&shared, later()).unwrap().answered, 0);
        for sequence in next - WINDOW..next {
            let mut copy = Vec::new();
            let frame = mailbox::load(area.reply(sequence), sequence, &mut copy).expect("its reply");
            assert_eq!(wire::replies(frame, sequence), Ok(vec![Reply::Value(None)]));
        }
        assert_eq!(glance(area.reply(next)).sequence, next - WINDOW, "nothing was asked");
        // Another number in the slot that is due is nothing.
        for sequence in [next + WINDOW, next - WINDOW, u64::MAX, 0] {
            assert!(store(area.request(next), sequence, b"nonsense"));
            assert_eq!(seat.visit(&shared, later()).unwrap().answered, 0, "{sequence}");
        }
        assert!(store(area.request(next), next, b"nonsense"));
        assert_eq!(seat.visit(&shared, later()).unwrap_err(), "a request slot without a request");
    }

    /// A client that sleeps until a certain reply is there is rung for when it is there, once.
    #[test]
    fn when_it_rings() {
        let (mut seat, area, shared) = seat();
        let mut visit = |asked: std::ops::RangeInclusive<u64>| {
            asked.for_each(|sequence| ask(&area, sequence));
            seat.visit(&shared, later()).unwrap().has_rung
        };
        assert!(!visit(1..=1), "it does not sleep");
        area.client().announce(3);
        assert!(!visit(2..=2), "not yet");
        assert!(visit(3..=3));
        assert!(!visit(4..=4), "it was rung for");
        area.client().announce(6);
        assert!(visit(5..=8), "and more is there");
        area.client().withdraw();
        assert!(!visit(9..=9));
        area.client().announce(10);
        assert!(visit(10..=10));
    }
}
