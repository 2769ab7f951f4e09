//! The server's end of a client's mailbox on shm ([`crate::mailbox::memory`]).

use super::caller::Caller;
use super::held_replies::HeldReplies;
use super::mailboxes::{MailboxMemory, MailboxShare};
use super::park_room::RequestAt;
use super::parking::{ParkAnswer, ParkLook, Parked};
use super::shared::ServerState;
use crate::layout::geometry::Geometry;
use crate::mailbox::memory::{self, Mailbox, WINDOW};
use crate::mailbox::{self, CellMark, HasReply, Once, SpinTime, TakenRequest};
use crate::region::RegionError;
use crate::wire::{Frame, Request};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time that a client's cells are polled after its last request: the longest if the client then
/// often makes another request, less or none otherwise. A wake-up takes some microseconds.
const LINGER_MIN: Duration = Duration::from_micros(4);
const LINGER_MAX: Duration = Duration::from_micros(50);

/// The server's end of a mailbox. Its memory is freed when dropped.
#[derive(Debug)]
pub(super) struct ServerMailbox {
    mailbox: Mailbox,
    _share: MailboxShare,
    once: Once,
    copy: Vec<u64>,
    is_awake: bool,
    /// Whether a request has been found since the client woke it.
    has_asked: bool,
    patience: SpinTime,
    /// When the last request was found.
    last: Instant,
    /// The client's last announcement that was answered by a ring.
    rung: u64,
    /// The last request whose reply is stored.
    stored: u64,
}

impl Drop for ServerMailbox {
    /// Frees the memory even if the client keeps its mapping.
    fn drop(&mut self) {
        self.mailbox.discard();
    }
}

/// The result of polling a mailbox.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visit {
    pub answered: u64,
    /// Whether the client must be woken.
    pub has_rung: bool,
    /// Whether polling on is worth the time, as far as is known.
    pub lingers: bool,
}

impl ServerMailbox {
    /// Makes a mailbox. Returns the server's end, and the descriptor for the client. `None` if not
    /// enough memory is left.
    pub fn new(
        room: &MailboxMemory,
        geometry: &Geometry,
    ) -> Result<Option<(ServerMailbox, OwnedFd)>, RegionError> {
        let Some(share) = room.take(memory::bytes(geometry)) else { return Ok(None) };
        let (mailbox, fd) = Mailbox::make(geometry)?;
        // Announced until the first wake-up.
        mailbox.server().announce(1);
        let end = ServerMailbox {
            mailbox,
            _share: share,
            once: Once::default(),
            copy: Vec::new(),
            is_awake: false,
            has_asked: false,
            patience: SpinTime::new(LINGER_MIN, LINGER_MAX),
            last: Instant::now(),
            rung: 0,
            stored: 0,
        };
        Ok(Some((end, fd)))
    }

    /// Bytes beside the two cells' memory: copies of a request and of a reply.
    pub fn private_bytes(&self) -> usize {
        self.copy.capacity() * size_of::<u64>() + self.once.reply_bytes()
    }

    /// Called when the client has rung: its cells are polled again. Returns whether they were not
    /// polled before.
    pub fn wakes(&mut self) -> bool {
        if self.is_awake {
            return false;
        }
        self.mailbox.server().withdraw();
        self.last = Instant::now();
        self.has_asked = false;
        self.is_awake = true;
        true
    }

    /// Whether its cells are polled.
    pub fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// Stops polling the cells if the client has been quiet for some time, until it rings (A3).
    /// Returns whether it did.
    pub fn rests(&mut self, now: Instant) -> bool {
        self.rests_unless(now, ServerMailbox::is_next_there)
    }

    /// As [`rests`](Self::rests). `is_next_there` is the last check, made after the announcement.
    fn rests_unless(&mut self, now: Instant, is_next_there: impl FnOnce(&ServerMailbox) -> bool) -> bool {
        if now.saturating_duration_since(self.last) < self.patience.time() {
            return false;
        }
        self.mailbox.server().announce(1);
        if is_next_there(self) {
            self.mailbox.server().withdraw();
            return false;
        }
        self.is_awake = false;
        self.patience.exhausted();
        true
    }

    fn is_next_there(&self) -> bool {
        let next = self.once.taken().sequence.wrapping_add(1);
        mailbox::glance(self.mailbox.request(next)).sequence == next
    }

    /// Answers the requests that are there, at most one window of them, and only one if `turn_ends`
    /// has passed. An error ends the conversation: no oneread client stores such a cell.
    #[inline]
    pub fn visit(
        &mut self,
        shared: &ServerState,
        caller: &mut Caller,
        turn_ends: Instant,
        parked: (&mut MailboxParked<'_>, ParkLook),
    ) -> Result<Visit, String> {
        let visit = match self.is_next_there() {
            true => self.answer_all(shared, caller, turn_ends, parked)?,
            false if parked.0.waits() => return Err("it took back a request that waits".into()),
            false => Visit::default(),
        };
        Ok(Visit { lingers: !self.patience.time().is_zero(), ..visit })
    }

    /// Stores replies that wait no longer. Returns whether all are stored, and whether the client must be woken.
    pub fn send_held(
        &mut self,
        shared: &ServerState,
        held: &mut HeldReplies,
    ) -> Result<(bool, Visit), String> {
        let ServerMailbox { mailbox, once, stored, .. } = self;
        let mut fits = true;
        let are_all = held.send(shared, |sequence, reply| {
            fits &= mailbox::store(mailbox.reply(sequence), sequence, once.later(sequence, &reply));
            *stored = sequence;
        });
        if !fits {
            return Err("a reply that fits no cell".into());
        }
        let until = self.mailbox.client().heard();
        Ok((are_all, Visit { has_rung: self.is_to_ring(until), ..Visit::default() }))
    }

    /// Whether the client must be woken, which sleeps until it has this reply.
    fn is_to_ring(&mut self, until: u64) -> bool {
        let is_to_ring = until != 0 && until <= self.stored && until != self.rung;
        if is_to_ring {
            self.rung = until;
        }
        is_to_ring
    }

    fn answer_all(
        &mut self,
        shared: &ServerState,
        caller: &mut Caller,
        turn_ends: Instant,
        (parked, look): (&mut MailboxParked<'_>, ParkLook),
    ) -> Result<Visit, String> {
        // The request that a ring announced does not count: it was not found by polling.
        if std::mem::replace(&mut self.has_asked, true) {
            self.patience.rewarded();
        }
        let mut answered = 0;
        while answered < WINDOW && self.is_next_there() {
            if !self.answer(shared, caller, (parked, look))? {
                break;
            }
            answered += 1;
            self.last = Instant::now();
            if self.last >= turn_ends {
                break;
            }
        }
        let until = self.mailbox.client().heard();
        // A client that still looks for its reply has a CPU of its own, and may ask for more at once.
        if answered > 0 && until == 0 {
            self.patience.rewarded();
        }
        Ok(Visit { answered, has_rung: self.is_to_ring(until), lingers: true })
    }

    /// Answers the next request. Returns `false` if it has to wait: then it stays the next one (Q13).
    fn answer(
        &mut self,
        shared: &ServerState,
        caller: &mut Caller,
        (MailboxParked { parked, replies }, look): (&mut MailboxParked<'_>, ParkLook),
    ) -> Result<bool, String> {
        let ServerMailbox { mailbox, once, copy, stored, .. } = self;
        let sequence = once.taken().sequence.wrapping_add(1);
        // Fetching what another CPU stored takes time. The next request of a batch is fetched
        // during this one.
        mailbox.prefetch_request(sequence.wrapping_add(1));
        let frame = mailbox::load(mailbox.request(sequence), sequence, copy);
        let frame = frame.ok_or("a request cell that makes no sense")?;
        let held = Parked::take_from(parked, RequestAt::Mailbox);
        let is_gone = look == ParkLook::Last;
        // A connection has one parked request.
        let look = if parked.is_some() { ParkLook::Last } else { look };
        let answer = |frame: &Frame<'_>, request: Request<'_>| {
            let asked = (frame.id, frame.patience(), request);
            match shared.answer_or_park(caller, asked, held, (RequestAt::Mailbox, look), replies) {
                ParkAnswer::Refused(_) if is_gone => Err(MailboxWait::Gone),
                ParkAnswer::Now(reply) | ParkAnswer::Refused(reply) => Ok(TakenRequest::Answered(reply)),
                ParkAnswer::Held => Ok(TakenRequest::Later),
                ParkAnswer::NotHere => Ok(TakenRequest::Unanswered),
                ParkAnswer::Behind => Err(MailboxWait::Behind),
                ParkAnswer::Taken(waits) | ParkAnswer::Stays(waits) => Err(MailboxWait::Parked(waits)),
            }
        };
        match once.try_take(CellMark { sequence, attempt: 0 }, frame, answer) {
            Ok(HasReply::Now) => {}
            Ok(HasReply::Later) => return Ok(true),
            Ok(HasReply::Never) => return Err("a request cell without a request".into()),
            Err(MailboxWait::Behind) => return Ok(false),
            Err(MailboxWait::Parked(waits)) => {
                **parked = Some(waits);
                return Ok(false);
            }
            // Q13: what is behind it is not made.
            Err(MailboxWait::Gone) => {
                return Err("it is gone, and the next of its requests has to wait".into());
            }
        }
        if !mailbox::store(mailbox.reply(sequence), sequence, once.reply()) {
            return Err("a reply that fits no cell".into());
        }
        *stored = sequence;
        Ok(true)
    }
}

/// Why a request in a mailbox has no reply.
enum MailboxWait {
    /// It waits until the replies before it are stored.
    Behind,
    /// It waits.
    Parked(Parked),
    /// It would have to, and its client is gone.
    Gone,
}

/// What waits of a connection with a mailbox.
pub(super) struct MailboxParked<'p> {
    /// A request, in the mailbox or elsewhere.
    pub parked: &'p mut Option<Parked>,
    /// Replies to requests in the mailbox.
    pub replies: Option<HeldReplies>,
}

impl MailboxParked<'_> {
    /// Whether the next request waits.
    fn waits(&self) -> bool {
        self.parked.as_ref().is_some_and(|parked| parked.is_change_of(RequestAt::Mailbox))
    }
}

#[cfg(all(test, not(loom)))]
impl ServerMailbox {
    /// Pretends that the client makes a request one hour from now.
    pub fn never_rests(&mut self) {
        self.last = Instant::now() + Duration::from_secs(3600);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::caller::Role;
    use super::super::held::ClientMemory;
    use super::super::tests::shared;
    use super::*;
    use crate::mailbox::{glance, store};
    use crate::wire::{self, Reply};

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// The awake server's end of a mailbox, the client's end, and the state to answer from.
    fn end() -> (ServerMailbox, Mailbox, ServerState) {
        let shared = shared();
        let (room, geometry) = (&shared.mailbox_memory, shared.index.geometry());
        let (mut end, memory) = ServerMailbox::new(room, geometry).unwrap().unwrap();
        let mailbox = Mailbox::map(memory, geometry).unwrap();
        assert_eq!(mailbox.server().heard(), 1, "it sleeps until it is rung for");
        assert!(end.wakes());
        (end, mailbox, shared)
    }

    fn ask(mailbox: &Mailbox, sequence: u64) {
        let mut frame = Vec::new();
        Request::Get { key: b"key" }.encode(sequence, &mut frame);
        assert!(store(mailbox.request(sequence), sequence, &frame));
    }

    /// Visits a mailbox of which nothing waits.
    fn visit(end: &mut ServerMailbox, shared: &ServerState, turn_ends: Instant) -> Result<Visit, String> {
        let mut nothing = MailboxParked { parked: &mut None, replies: None };
        end.visit(shared, &mut Caller::new(Role::Change), turn_ends, (&mut nothing, ParkLook::Again))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    /// The mailboxes of all clients together take no more memory than allowed, to the byte. One that
    /// goes leaves room for the next.
    #[test]
    fn all_mailboxes_share_a_bound() {
        let shared = shared();
        let geometry = shared.index.geometry();
        let bytes = memory::bytes(geometry);
        for (most, fits) in [(0, 0), (bytes - 1, 0), (bytes, 1), (3 * bytes, 3), (4 * bytes - 1, 3)] {
            let room = MailboxMemory::new(most, &ClientMemory::new(u64::MAX));
            assert_eq!(room.has_any(geometry), fits > 0, "{most}");
            let make = || ServerMailbox::new(&room, geometry).unwrap();
            let mut made: Vec<_> = std::iter::from_fn(make).take(10).collect();
            assert_eq!((made.len(), room.taken()), (fits, fits as u64 * bytes), "{most}");
            if made.pop().is_some() {
                assert_eq!(room.taken(), (fits as u64 - 1) * bytes);
                assert!(make().is_some(), "there is room again");
            }
            drop(made);
            assert_eq!(room.taken(), 0);
        }
        let room = MailboxMemory::new(u64::MAX, &ClientMemory::new(u64::MAX));
        let all = room.take(i64::MAX as u64);
        assert!(all.is_some() && room.take(1).is_none(), "nobody counts as far");
        assert!(room.take(u64::MAX).is_none(), "the sum is no number");
    }

    /// The memory of a mailbox is freed with the server's end, whether its cells are polled or not.
    #[test]
    fn a_dropped_mailbox_keeps_no_memory() {
        for is_awake in [true, false] {
            let (mut end, mailbox, _shared) = end();
            if !is_awake {
                assert!(end.rests(later()));
            }
            ask(&mailbox, 1);
            drop(end);
            assert_eq!(glance(mailbox.request(1)).sequence, 0, "awake: {is_awake}");
        }
    }

    /// The last check finds a request that comes between the announcement and that check. Before
    /// the announcement its client would not ring, and after the check the server would not see it.
    #[test]
    fn the_last_look_comes_after_the_announcement() {
        let (mut end, mailbox, shared) = end();
        assert_eq!(mailbox.server().heard(), 0, "it looks");
        assert!(!end.wakes(), "it was awake");
        let mut looks = 0;
        let rests = end.rests_unless(later(), |end| {
            looks += 1;
            assert_eq!(mailbox.server().heard(), 1, "a look before the announcement");
            assert!(!end.is_next_there());
            ask(&mailbox, 1);
            end.is_next_there()
        });
        assert_eq!((rests, looks), (false, 1));
        assert_eq!(mailbox.server().heard(), 0, "it looks on, and nobody needs to ring");
        assert!(!end.wakes(), "it is awake still");
        assert_eq!(visit(&mut end, &shared, later()).unwrap().answered, 1);
        // Nothing comes: it rests.
        assert!(end.rests(later()));
        assert_eq!(mailbox.server().heard(), 1);
        assert!(end.wakes());
        assert_eq!(mailbox.server().heard(), 0);
    }

    /// The cells are polled for some time after the last request. The time shrinks if no request
    /// came in it, and grows if one did. The request that a ring announced does not count.
    #[test]
    fn the_time_to_poll_adapts() {
        let (mut end, mailbox, shared) = end();
        mailbox.client().announce(u64::MAX);
        let mut asked = 0;
        let mut ask_one = |end: &mut ServerMailbox| {
            asked += 1;
            ask(&mailbox, asked);
            let before = Instant::now();
            assert_eq!(visit(end, &shared, later()).unwrap().answered, 1);
            assert!(end.last >= before, "it looks for so long from now on");
        };
        let rests_after = |end: &mut ServerMailbox, time: Duration| {
            assert!(!end.rests(end.last + time - Duration::from_nanos(1)), "before {time:?}");
            assert!(end.rests(end.last + time), "after {time:?}");
            let before = Instant::now();
            assert!(end.wakes() && end.last >= before);
        };
        rests_after(&mut end, MICROSECOND * 50);
        ask_one(&mut end);
        rests_after(&mut end, MICROSECOND * 25);
        (0..2).for_each(|_| ask_one(&mut end));
        rests_after(&mut end, MICROSECOND * 25);
        for time in [MICROSECOND * 25 / 2, MICROSECOND * 25 / 4] {
            rests_after(&mut end, time);
        }
        for _ in 0..3 {
            assert!(end.rests(end.last), "at once");
            assert!(end.wakes());
        }
        (0..2).for_each(|_| ask_one(&mut end));
        rests_after(&mut end, MICROSECOND * 50);
        (0..100).for_each(|_| ask_one(&mut end));
        rests_after(&mut end, MICROSECOND * 50);
        // However often nothing came while it looked: a client that does not sleep is looked for.
        for _ in 0..100 {
            assert!(end.rests(end.last + MICROSECOND * 50) && end.wakes());
        }
        mailbox.client().withdraw();
        ask_one(&mut end);
        rests_after(&mut end, MICROSECOND * 50);
    }

    /// A visit answers all requests that are there, each in its cell. After the end of the turn it
    /// answers one.
    #[test]
    fn a_visit_answers_until_its_turn_ends() {
        let (mut end, mailbox, shared) = end();
        let over = Instant::now();
        let mut next = 1;
        for (asked, turn_ends, answered) in
            [(0, later(), 0), (WINDOW, over, 1), (0, over, 1), (0, later(), WINDOW - 2), (3, later(), 3)]
        {
            (next..next + asked).for_each(|sequence| ask(&mailbox, sequence));
            next += asked;
            assert_eq!(visit(&mut end, &shared, turn_ends).unwrap().answered, answered);
        }
        assert_eq!(visit(&mut end, &shared, later()).unwrap().answered, 0);
        for sequence in next - WINDOW..next {
            let mut copy = Vec::new();
            let frame = mailbox::load(mailbox.reply(sequence), sequence, &mut copy).expect("its reply");
            assert_eq!(wire::replies(frame, sequence), Ok(vec![Reply::Value(None)]));
        }
        assert_eq!(glance(mailbox.reply(next)).sequence, next - WINDOW, "nothing was asked");
        // A cell with a number other than the next one is ignored.
        for sequence in [next + WINDOW, next - WINDOW, u64::MAX, 0] {
            assert!(store(mailbox.request(next), sequence, b"nonsense"));
            assert_eq!(visit(&mut end, &shared, later()).unwrap().answered, 0, "{sequence}");
        }
        assert!(store(mailbox.request(next), next, b"nonsense"));
        assert_eq!(visit(&mut end, &shared, later()).unwrap_err(), "a request cell without a request");
    }

    /// A client that sleeps for a reply is rung once, when that reply is there.
    #[test]
    fn a_sleeping_client_is_rung_once() {
        let (mut end, mailbox, shared) = end();
        let mut visit = |asked: std::ops::RangeInclusive<u64>| {
            asked.for_each(|sequence| ask(&mailbox, sequence));
            visit(&mut end, &shared, later()).unwrap().has_rung
        };
        assert!(!visit(1..=1), "it does not sleep");
        mailbox.client().announce(3);
        assert!(!visit(2..=2), "not yet");
        assert!(visit(3..=3));
        assert!(!visit(4..=4), "it was rung for");
        mailbox.client().announce(6);
        assert!(visit(5..=8), "and more is there");
        mailbox.client().withdraw();
        assert!(!visit(9..=9));
        mailbox.client().announce(10);
        assert!(visit(10..=10));
    }
}
