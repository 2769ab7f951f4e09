//! READs of many threads over one queue pair, without a lock that any thread waits for.
//!
//! Each thread has a [`Lane`]: a ring of READ requests, memory for them to land in, and two
//! counters that only grow. One counts the READs submitted, the other those of them that have
//! completed. A reliable queue pair completes in order, and each lane is served in order, so the
//! second counter says all there is to know about completions.
//!
//! A thread that waits tries to become the *pump*, with one compare-exchange ([`Mutex::try_lock`];
//! no thread ever blocks on that mutex). The pump takes completions, deals the free places of the
//! queue pair to the lanes, one READ to each in turn, and posts them with one doorbell. A thread
//! that does not become the pump reads its own counter. The pump does not touch landed bytes: each
//! thread checks its own.
//!
//! # Fairness and back pressure
//!
//! Dealing resumes where the last round ended. So among lanes that have READs to post, none is ever
//! more than one READ ahead of another in a round, and a lane with many READs cannot keep another
//! from its turn. A READ without a place stays in its lane's ring. A ring has room for all READs
//! that its lane may have in flight, so nothing overflows.
//!
//! A round reads one counter of each lane, so its cost grows with the number of lanes. A link is
//! made for dozens of lanes, not thousands.
//!
//! # Progress
//!
//! Every thread that waits pumps if no other thread does, for itself and the others. A pump that
//! the scheduler stops delays the others for that time, but not past their deadlines: a lane that
//! is late declares the link failed, and its thread continues over a new one. A thread stops
//! pumping once its own READ has come, so it never works for others longer than it would have
//! waited anyway.
//!
//! # Memory
//!
//! A lane's landing memory belongs to its owner and to the pump's seat for the lane. The seat lets
//! go only when no READ of the lane is in flight. A thread may end, panic or drop its lane at any
//! time.
//!
//! A READ of a long value lands in memory that the lane's owner puts beside the slots, and exchanges only
//! while none of its READs is in flight.
//!
//! # Orderings
//!
//! | store | load | guarantees that |
//! |---|---|---|
//! | `submitted`, Release (owner) | Acquire (pump) | the pump sees the ring's entries; the NIC writes to a slot only after its owner has read what was there |
//! | `completed`, Release (pump) | Acquire (owner) | the owner sees what landed before the completion was polled; it writes to a ring entry only after the pump has read it |
//! | `left`, Release (owner) | Acquire (pump) | the owner's last look at its memory comes before the pump lets go of it |
//! | `joined`, Release (newcomer) | Acquire (pump) | a newcomer that submits after this is seated by the round that serves it |
//! | the pump's mutex, unlock | try_lock | each pump sees all that the last one did |

#![allow(unsafe_code)]
#![cfg_attr(loom, allow(dead_code, reason = "the model waits and fails in no more ways than one"))]

use crate::base::sync::{AtomicU64, Mutex, Ordering, lock, try_lock};
use crate::fabric::ReadId;
use crate::layout::geometry::{SlotIx, Window};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::AddAssign;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// One queue pair as the pump uses it. READs complete in the order in which they were posted.
pub(crate) trait ReadQueue: Debug {
    /// Memory of one lane for READs to land in.
    type Landing: Debug;
    /// What a thread sleeps on until something completes. Used without the pump's mutex.
    type Bell: Debug;
    /// Counts of operations on the queue pair.
    type Counts: Default + AddAssign + Debug;
    /// What can go wrong.
    type Error: Clone + Debug;

    /// Number of READs that may be posted now.
    fn room(&self) -> usize;

    /// Posts READs with one doorbell: at least one, at most [`room`](ReadQueue::room).
    ///
    /// # Errors
    /// The queue pair is then of no further use.
    ///
    /// # Safety
    /// Until a READ has completed, or the queue pair is dropped, its landing memory must stay where
    /// it is, and its slot must be neither borrowed nor posted again.
    unsafe fn post<'a>(
        &mut self,
        reads: impl Iterator<Item = Posting<'a, Self::Landing>>,
    ) -> Result<(), Self::Error>
    where
        Self::Landing: 'a;

    /// Takes completions without waiting. Calls `done` with the seat of each completed READ, oldest
    /// first.
    ///
    /// # Errors
    /// When a READ failed. The queue pair is then of no further use.
    fn poll(&mut self, done: impl FnMut(u32)) -> Result<(), Self::Error>;

    /// Makes the next completion ring the bell. The bell keeps ringing until the next call. Earlier
    /// completions may not ring it, so poll again after this call.
    ///
    /// # Errors
    /// The queue pair is then of no further use.
    fn arm(&mut self) -> Result<(), Self::Error>;

    /// Sleeps until the bell rings, for at most this time. May return early.
    fn sleep(bell: &Self::Bell, at_most: Duration);

    /// Checks that the other side is still there. Called after milliseconds without a completion.
    ///
    /// # Errors
    /// When the other side is gone.
    fn check(&mut self) -> Result<(), Self::Error>;

    /// The error for a READ that has not completed in this time.
    fn late(within: Duration) -> Self::Error;

    /// Counts since the last call.
    fn take_counts(&mut self) -> Self::Counts;
}

/// What a READ brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadWanted {
    /// A window, into a slot of the landing memory.
    Window(Window),
    /// `len` bytes from byte `offset` of the region on, into memory for long values: from its byte `at` on.
    Bytes { offset: u64, len: u32, at: u32 },
}

/// A READ on its way to the NIC.
#[derive(Debug)]
pub(crate) struct Posting<'a, L> {
    /// The seat that the READ belongs to.
    pub seat: u32,
    pub wanted: ReadWanted,
    pub landing: &'a L,
    /// The slot of the landing memory.
    pub slot: usize,
    /// Whether its completion is reported.
    pub signalled: bool,
}

/// Within one doorbell, the completion of every 16th READ is reported. That of a lane's last READ
/// always is.
const SIGNAL_EVERY: usize = 16;
/// Polls of a pump without a result, or looks at the thread's own counter, before the next attempt.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 16 };
/// Attempts before the thread yields or sleeps.
const ATTEMPTS: u32 = 16;
/// Yields before the thread sleeps for [`DOZE`], even where waiting threads should stay awake. With
/// more threads than cores, some kernels put a thread that yields repeatedly behind all others for
/// a long time.
const YIELDS: u32 = 32;
const DOZE: Duration = Duration::from_micros(50);
/// Longest sleep on the bell. A completion that another thread published just before the sleep does
/// not end it.
const NAP: Duration = Duration::from_millis(1);
/// Time between checks of the queue pair while nothing completes.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Marks requests for bytes. No window begins at such a slot.
const BYTES: u64 = 1 << 63;

/// Puts two lines between values that different threads write, because lines are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

// ---- a lane's ring ------------------------------------------------------------------------------

/// Memory shared by a lane's owner and the pump. READ number `n` uses entry and slot `n % entries`.
#[derive(Debug)]
struct Ring<L> {
    /// For each requested window, its first slot and the number of slots. For other READs, see [`ReadWanted::Bytes`].
    entries: Box<[(AtomicU64, AtomicU64)]>,
    landing: L,
    submitted: Apart<AtomicU64>,
    completed: Apart<AtomicU64>,
    left: AtomicU64,
}

impl<L> Ring<L> {
    fn entry(&self, number: u64) -> &(AtomicU64, AtomicU64) {
        &self.entries[self.slot(number)]
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.entries.len() as u64) as usize
    }

    /// Called by the owner. Entry and slot belonged to READ `number - entries`, which the owner has
    /// read.
    fn write(&self, number: u64, wanted: ReadWanted) {
        let (begin, extent) = match wanted {
            ReadWanted::Window(Window { first, slots, incarnation }) => (first.0, [slots, incarnation]),
            ReadWanted::Bytes { offset, len, at } => (BYTES | offset, [len, at]),
        };
        let (first, slots) = self.entry(number);
        first.store(begin, Ordering::Relaxed);
        slots.store(u64::from(extent[1]) << 32 | u64::from(extent[0]), Ordering::Relaxed);
    }

    /// Called by the pump after it has seen that `submitted` is more than `number`.
    fn read(&self, number: u64) -> ReadWanted {
        let (first, slots) = self.entry(number);
        let (first, slots) = (first.load(Ordering::Relaxed), slots.load(Ordering::Relaxed));
        let [low, high] = [slots as u32, (slots >> 32) as u32];
        match first & BYTES {
            0 => ReadWanted::Window(Window { first: SlotIx(first), slots: low, incarnation: high }),
            _ => ReadWanted::Bytes { offset: first & !BYTES, len: low, at: high },
        }
    }
}

// ---- the pump -----------------------------------------------------------------------------------

/// A lane as the pump sees it.
#[derive(Debug)]
struct PumpedLane<L> {
    ring: Arc<Ring<L>>,
    /// READs that may be posted: the last value seen of `submitted`.
    submitted: u64,
    posted: u64,
    completed: u64,
}

/// A READ of the next doorbell.
#[derive(Clone, Copy, Debug)]
struct Dealt {
    seat: u32,
    number: u64,
    wanted: ReadWanted,
}

/// The state that only the pump touches.
#[derive(Debug)]
struct Pump<C: ReadQueue> {
    // Dropped before the landing memory that the NIC may still write to.
    queue: Option<C>,
    seats: Vec<Option<PumpedLane<C::Landing>>>,
    in_flight: usize,
    /// The seat that had the last place.
    next: usize,
    dealt: Vec<Dealt>,
}

impl<C: ReadQueue> Pump<C> {
    /// Takes completions, seats newcomers, posts READs. Returns whether anything completed or was
    /// posted.
    fn round(&mut self, link: &Mux<C>) -> Result<bool, C::Error> {
        let Pump { queue, seats, in_flight, next, dealt } = self;
        let Some(queue) = queue else { return link.failure() };
        if link.joined.load(Ordering::Acquire) != 0 {
            link.seat_newcomers(seats);
        }
        let before = *in_flight;
        let mut left = false;
        queue.poll(|seat| {
            let Some(Some(seat)) = seats.get_mut(seat as usize) else { return };
            *in_flight -= 1;
            seat.completed += 1;
            seat.ring.completed.0.store(seat.completed, Ordering::Release);
        })?;
        let mut progress = *in_flight < before;

        for seat in seats.iter_mut().flatten() {
            if seat.ring.left.load(Ordering::Acquire) != 0 {
                // READs not posted yet are dropped: no thread waits for them.
                seat.submitted = seat.posted;
                left = true;
            } else {
                seat.submitted = seat.ring.submitted.0.load(Ordering::Acquire);
            }
        }
        if left {
            for seat in seats.iter_mut() {
                let done = |seat: &PumpedLane<_>| {
                    seat.ring.left.load(Ordering::Relaxed) != 0 && seat.completed == seat.posted
                };
                seat.take_if(|seat| done(seat));
            }
        }

        dealt.clear();
        let (mut room, mut passed) = (queue.room(), 0);
        while room > 0 && passed < seats.len() {
            *next = if *next + 1 < seats.len() { *next + 1 } else { 0 };
            passed += 1;
            let Some(seat) = &mut seats[*next] else { continue };
            if seat.posted < seat.submitted {
                let (number, wanted) = (seat.posted, seat.ring.read(seat.posted));
                dealt.push(Dealt { seat: *next as u32, number, wanted });
                seat.posted += 1;
                room -= 1;
                passed = 0;
            }
        }
        if !dealt.is_empty() {
            *in_flight += dealt.len();
            let postings = dealt.iter().enumerate().filter_map(|(i, &Dealt { seat, number, wanted })| {
                let PumpedLane { ring, posted, .. } = seats[seat as usize].as_ref()?;
                let signalled = number + 1 == *posted || i % SIGNAL_EVERY == SIGNAL_EVERY - 1;
                Some(Posting { seat, wanted, landing: &ring.landing, slot: ring.slot(number), signalled })
            });
            // SAFETY: a seat keeps its ring, and so its landing memory, until none of its READs is
            // in flight or the queue pair is gone (`Pump`'s fields, `Mux::pump`). The READ that
            // used the slot before has completed, and its owner no longer uses the slot, as
            // `submitted` says (`Lane::submit`).
            unsafe { queue.post(postings) }?;
            progress = true;
        }
        Ok(progress)
    }
}

// ---- the link -----------------------------------------------------------------------------------

/// A queue pair that lanes share. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct Mux<C: ReadQueue> {
    /// Only ever tried, never waited for.
    pump: Mutex<Pump<C>>,
    /// What threads sleep on. Without it, threads that wait stay awake.
    bell: Option<C::Bell>,
    newcomers: Mutex<Vec<Arc<Ring<C::Landing>>>>,
    /// Number of newcomers.
    joined: AtomicU64,
    failed: OnceLock<C::Error>,
}

/// How an attempt to pump ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pumped {
    /// Another thread is the pump.
    Busy,
    Yes,
}

impl<C: ReadQueue> Mux<C> {
    /// Makes a link over `queue`. Threads that wait sleep on the bell, if there is one.
    pub fn new(queue: C, bell: Option<C::Bell>) -> Arc<Mux<C>> {
        let pump = Pump { queue: Some(queue), seats: Vec::new(), in_flight: 0, next: 0, dealt: Vec::new() };
        Arc::new(Mux {
            pump: Mutex::new(pump),
            bell,
            newcomers: Mutex::new(Vec::new()),
            joined: AtomicU64::new(0),
            failed: OnceLock::new(),
        })
    }

    /// Whether the link has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    fn failure<T>(&self) -> Result<T, C::Error> {
        Err(self.failed.get().expect("a link without a queue pair has failed").clone())
    }

    fn check(&self) -> Result<(), C::Error> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Adds a lane that may have as many READs in flight as `landing` has slots.
    pub fn join(self: &Arc<Self>, landing: C::Landing, slots: usize) -> Lane<C> {
        let ring = Arc::new(Ring {
            entries: (0..slots.max(1)).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect(),
            landing,
            submitted: Apart(AtomicU64::new(0)),
            completed: Apart(AtomicU64::new(0)),
            left: AtomicU64::new(0),
        });
        let mut newcomers = lock(&self.newcomers);
        newcomers.push(ring.clone());
        // Partner: the load in `Pump::round`. This lane submits only later.
        self.joined.store(newcomers.len() as u64, Ordering::Release);
        drop(newcomers);
        Lane { link: self.clone(), ring, asked: VecDeque::with_capacity(slots), handed_out: 0 }
    }

    /// Called by the pump. Does not wait: a lane that joins at this moment gets its seat in the
    /// next round.
    fn seat_newcomers(&self, seats: &mut Vec<Option<PumpedLane<C::Landing>>>) {
        let Some(mut newcomers) = try_lock(&self.newcomers) else { return };
        self.joined.store(0, Ordering::Relaxed);
        for ring in newcomers.drain(..) {
            let seat = Some(PumpedLane { ring, submitted: 0, posted: 0, completed: 0 });
            match seats.iter_mut().find(|seat| seat.is_none()) {
                Some(free) => *free = seat,
                None => seats.push(seat),
            }
        }
    }

    /// Becomes the pump, unless another thread is. Stays it until `enough`, or until nothing more
    /// happens.
    fn pump(
        &self,
        check: bool,
        counts: &mut C::Counts,
        enough: impl Fn() -> bool,
    ) -> Result<Pumped, C::Error> {
        let Some(mut pump) = try_lock(&self.pump) else { return Ok(Pumped::Busy) };
        // A late lane may have declared the link failed meanwhile.
        let result = self.pump_with(&mut pump, check, enough).and_then(|()| self.check());
        if let Some(queue) = &mut pump.queue {
            *counts += queue.take_counts();
        }
        if let Err(error) = &result {
            let _ = self.failed.set(error.clone());
            // After the queue pair is gone, nothing writes to the landing memory.
            drop(pump.queue.take());
            pump.seats.clear();
        }
        result.map(|()| Pumped::Yes)
    }

    fn pump_with(&self, pump: &mut Pump<C>, check: bool, enough: impl Fn() -> bool) -> Result<(), C::Error> {
        // A late lane may have declared the link failed.
        self.check()?;
        if check && let Some(queue) = &mut pump.queue {
            queue.check()?;
        }
        let mut looks = 0;
        while looks < LOOKS && !enough() {
            looks = if pump.round(self)? { 0 } else { looks + 1 };
        }
        // Whenever READs are in flight and there is no pump, the bell is armed or rings.
        if self.bell.is_some() && pump.in_flight > 0 {
            loop {
                if let Some(queue) = &mut pump.queue {
                    queue.arm()?;
                }
                if !pump.round(self)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

// ---- the lane -----------------------------------------------------------------------------------

/// One thread's access to a link. Dropping it leaves READs in flight to the pump.
#[derive(Debug)]
pub(crate) struct Lane<C: ReadQueue> {
    link: Arc<Mux<C>>,
    ring: Arc<Ring<C::Landing>>,
    /// READs submitted and not yet handed out, oldest first.
    asked: VecDeque<(ReadId, ReadWanted)>,
    handed_out: u64,
}

impl<C: ReadQueue> Lane<C> {
    /// Number of READs that may be in flight.
    pub fn credits(&self) -> usize {
        self.ring.entries.len()
    }

    /// Number of READs submitted and not yet handed out.
    pub fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// Its memory.
    pub fn landing(&self) -> &C::Landing {
        &self.ring.landing
    }

    /// Whether the link has failed. This lane is then of no further use.
    pub fn has_failed(&self) -> bool {
        self.link.has_failed()
    }

    /// Submits READs. They are posted when a thread waits ([`Lane::wait`]). Lock-free, with one
    /// store for all READs.
    ///
    /// # Panics
    /// If there are more READs than [`credits`](Lane::credits) minus
    /// [`in_flight`](Lane::in_flight).
    pub fn submit(&mut self, reads: impl ExactSizeIterator<Item = (ReadId, ReadWanted)>) {
        assert!(self.asked.len() + reads.len() <= self.credits(), "more READs than credits");
        let first = self.handed_out + self.asked.len() as u64;
        for (number, (token, wanted)) in (first..).zip(reads) {
            self.ring.write(number, wanted);
            self.asked.push_back((token, wanted));
        }
        let submitted = self.handed_out + self.asked.len() as u64;
        // Partner: the load in `Pump::round`. Reused entries and slots are those of READs already
        // handed out.
        self.ring.submitted.0.store(submitted, Ordering::Release);
    }

    /// Declares the link failed for all its lanes.
    pub fn fail(&self, why: C::Error, counts: &mut C::Counts) {
        let _ = self.link.failed.set(why);
        // Closes the queue pair, unless another thread is the pump and so closes it.
        let _ = self.link.pump(false, counts, || true);
    }

    #[inline]
    fn is_ready(&self) -> bool {
        // Partner: the store in `Pump::round`.
        self.ring.completed.0.load(Ordering::Acquire) > self.handed_out
    }

    /// Hands out the READs that have completed, oldest first: token, what was wanted, landing memory
    /// and slot.
    pub fn hand_out(&mut self, mut sink: impl FnMut(ReadId, ReadWanted, &C::Landing, usize)) {
        // Partner: the store in `Pump::round`.
        let completed = self.ring.completed.0.load(Ordering::Acquire);
        while self.handed_out < completed {
            let Some((token, wanted)) = self.asked.pop_front() else { break };
            let slot = self.ring.slot(self.handed_out);
            self.handed_out += 1;
            sink(token, wanted, &self.ring.landing, slot);
        }
    }

    /// Waits until a READ has completed, if any is in flight. Pumps for all lanes meanwhile if no
    /// other thread does, and adds its operations on the queue pair to `counts`.
    ///
    /// # Errors
    /// When the link has failed. It also fails when no READ has completed `within` this time.
    pub fn wait(&self, within: Duration, counts: &mut C::Counts) -> Result<(), C::Error> {
        let (mut attempts, mut yields) = (0, 0);
        // The deadline, and the time of the next check.
        let mut times: Option<(Instant, Instant)> = None;
        while !self.is_ready() && !self.asked.is_empty() {
            self.link.check()?;
            let now = (attempts >= ATTEMPTS).then(Instant::now);
            let check = match (now, &mut times) {
                (Some(now), None) => {
                    times = Some((now + within, now + CHECK_EVERY));
                    false
                }
                (Some(now), Some((_, next))) if now >= *next => {
                    *next = now + CHECK_EVERY;
                    true
                }
                _ => false,
            };
            let pumped = self.link.pump(check, counts, || self.is_ready())?;
            attempts += 1;
            if pumped == Pumped::Busy {
                for _ in 0..LOOKS {
                    if self.is_ready() {
                        return Ok(());
                    }
                    crate::base::sync::spin_loop();
                }
            }
            let Some(now) = now else { continue };
            if times.is_some_and(|(deadline, _)| now >= deadline) && !self.is_ready() {
                self.fail(C::late(within), counts);
                return self.link.failure();
            }
            match &self.link.bell {
                // Only a thread that was the pump may sleep: it has posted its READs.
                Some(bell) if pumped == Pumped::Yes => {
                    if !self.is_ready() {
                        C::sleep(bell, NAP);
                    }
                }
                _ if yields < YIELDS => {
                    (attempts, yields) = (ATTEMPTS / 2, yields + 1);
                    crate::base::sync::yield_now();
                }
                _ => std::thread::sleep(DOZE),
            }
        }
        Ok(())
    }
}

impl<C: ReadQueue> Drop for Lane<C> {
    fn drop(&mut self) {
        // Partner: the load in `Pump::round`.
        self.ring.left.store(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
