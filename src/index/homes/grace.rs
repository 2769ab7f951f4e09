//! Traces that stay until no remote reader can depend on them any more.
//!
//! Remote readers hold nothing, so the server cannot know when they have ended. It waits 2T. A client trusts a pass of
//! less than T, the grace time. The factor is for the clocks: a client's clock may run at half the rate of the
//! server's, and then shows T when 2T have passed (G4). Queues hold the traces and their times. Every mutation, and the
//! server's idle loop, takes out what is due. There are several queues, so that threads seldom wait for one.
//!
//! Each entry belongs to exactly one trace in the region. A ghost is placed only in a slot that has
//! none, so the slot has one entry (M3). A lingering filter bit is an entry of its own in the
//! home's register, with its own time.

use crate::base::clock::Clock;
use crate::base::sync::{AtomicU64, Mutex, Ordering, fence, lock};
use crate::faults::{Rule, wait_ns};
use crate::index::home_set::HomeSet;
use crate::layout::chain::Block;
use crate::layout::geometry::SlotIx;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A trace to take away when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// The ghost in a slot. The stripe of `guard` guards the slot.
    Ghost { slot: SlotIx, guard: SlotIx },
    /// The ghosts in some main slots of one stripe: a bit for each slot from the first on.
    Ghosts { first: SlotIx, slots: u64 },
    /// Lingering bits in the filter of a home.
    Filter { home: u64 },
    /// An empty block to take out of its home's chain.
    Unlink { home: u64, block: Block },
    /// An unlinked block to use again. `home` is the home whose chain it left.
    Reuse { home: u64, block: Block },
    /// The headers of homes after a merge.
    Settle { homes: HomeSet },
}

/// A trace, and its segment by the number of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingTrace {
    pub memory: u32,
    /// Which use of that memory.
    pub incarnation: u32,
    pub trace: Trace,
}

/// Under the model checker there is one, which has fewer interleavings.
const QUEUES: usize = if cfg!(loom) { 1 } else { 8 };

/// Some traces in the order in which they are due. In lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Queue {
    traces: Mutex<VecDeque<(u64, WaitingTrace)>>,
    /// When the first is due; `u64::MAX` when there is none. Saves mutations the lock and the clock.
    next_due_ns: AtomicU64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { traces: Mutex::default(), next_due_ns: AtomicU64::new(u64::MAX) }
    }
}

impl Queue {
    /// Relaxed: a hint. The queue is checked under its lock.
    fn next_due_ns(&self) -> u64 {
        self.next_due_ns.load(Ordering::Relaxed)
    }
}

/// The queues, and when the first trace of all is due.
#[derive(Debug, Default)]
struct Queues {
    /// Like a queue's, over all: never later than the first trace of any. Mutations look at this line alone.
    first: Hint,
    all: [Queue; QUEUES],
}

/// A time in a line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Hint {
    due_ns: AtomicU64,
}

impl Default for Hint {
    fn default() -> Hint {
        Hint { due_ns: AtomicU64::new(u64::MAX) }
    }
}

impl Queues {
    /// Notes that a trace with this time has come into a queue.
    fn came(&self, due_ns: u64) {
        // Pairs with the fence in `look_again`. A thread that does not see the new look at all queues has its trace
        // seen by that look.
        fence(Ordering::SeqCst);
        if due_ns < self.first.due_ns.load(Ordering::Relaxed) {
            self.first.due_ns.fetch_min(due_ns, Ordering::Relaxed);
        }
    }

    /// Finds the time of the first trace again.
    fn look_again(&self) {
        self.first.due_ns.store(u64::MAX, Ordering::Relaxed);
        // Pairs with the fence in `came`.
        fence(Ordering::SeqCst);
        let next = self.all.iter().map(Queue::next_due_ns).min().unwrap_or(u64::MAX);
        self.first.due_ns.fetch_min(next, Ordering::Relaxed);
    }
}

/// All traces. All segments of a table share them.
#[derive(Clone, Debug)]
pub(crate) struct Grace {
    clock: Clock,
    wait_ns: u64,
    queues: Arc<Queues>,
}

impl Grace {
    pub fn new(clock: Clock, grace: Duration) -> Grace {
        Grace { clock, wait_ns: 2 * grace.as_nanos() as u64, queues: Arc::default() }
    }

    /// When the trace of something that happened just now may be taken away.
    pub fn due_ns(&self, rule: Rule) -> u64 {
        self.clock.now_ns() + wait_ns(rule, self.wait_ns)
    }

    /// Puts a trace into a queue. Traces that one stripe guards come out in the order in which they
    /// came, if they are due at the same time: a block's ghosts before the block.
    pub fn push(&self, stripe: usize, due_ns: u64, trace: WaitingTrace) {
        let queue = &self.queues.all[stripe % QUEUES];
        let mut traces = lock(&queue.traces);
        // Threads read the clock before they lock, so they may come out of order.
        if traces.back().is_none_or(|&(due, _)| due <= due_ns) {
            traces.push_back((due_ns, trace));
        } else {
            let at = traces.iter().rposition(|&(due, _)| due <= due_ns).map_or(0, |i| i + 1);
            traces.insert(at, (due_ns, trace));
        }
        queue.next_due_ns.store(traces[0].0, Ordering::Relaxed);
        self.queues.came(due_ns);
    }

    /// Takes out the first trace if it is due. Returns it with its time.
    #[inline]
    pub fn pop_due(&self) -> Option<(u64, WaitingTrace)> {
        let next = self.next_due_ns();
        if next == u64::MAX {
            return None;
        }
        let now = self.clock.now_ns();
        if now < next { None } else { self.pop_due_by(now) }
    }

    /// When the first trace is due; `u64::MAX` when there is none. Relaxed: a hint.
    #[inline(always)]
    fn next_due_ns(&self) -> u64 {
        self.queues.first.due_ns.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn pop_due_by(&self, now: u64) -> Option<(u64, WaitingTrace)> {
        let first = self.queues.all.iter().min_by_key(|queue| queue.next_due_ns())?;
        let mut traces = lock(&first.traces);
        let is_due = traces.front().is_some_and(|(due, _)| *due <= now);
        let due = if is_due { traces.pop_front() } else { None };
        let next = traces.front().map_or(u64::MAX, |(due, _)| *due);
        first.next_due_ns.store(next, Ordering::Relaxed);
        drop(traces);
        // While the queue has more that is due, what is told of the first trace of all stays true.
        if next > now {
            self.queues.look_again();
        }
        due
    }

    /// When everything that is in the queues now will be due. `None` when they are empty.
    pub fn last_due_ns(&self) -> Option<u64> {
        self.queues.all.iter().filter_map(|queue| lock(&queue.traces).back().map(|(due, _)| *due)).max()
    }

    /// How long until the first trace is due; `None` when there is none.
    pub fn until_next(&self) -> Option<Duration> {
        match self.next_due_ns() {
            u64::MAX => None,
            due => Some(Duration::from_nanos(due.saturating_sub(self.clock.now_ns()))),
        }
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Everything in the queues, in the order in which it will be taken out, with the time when it is
    /// due.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn traces(&self) -> Vec<(u64, Trace)> {
        let all: Vec<_> = self.queues.all.iter().flat_map(|queue| lock(&queue.traces).clone()).collect();
        let mut all: Vec<_> = all.into_iter().map(|(due_ns, waiting)| (due_ns, waiting.trace)).collect();
        all.sort_by_key(|&(due_ns, _)| due_ns);
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn traces_come_out_in_order_and_not_before_their_time() {
        let clock = Clock::manual();
        let grace = Grace::new(clock.clone(), Duration::from_nanos(50));
        clock.advance(Duration::from_nanos(7));
        assert_eq!(grace.clock().now_ns(), 7);
        assert_eq!(grace.due_ns(Rule::GhostGrace), 107, "twice the grace time from now");
        assert_eq!((grace.pop_due(), grace.last_due_ns(), grace.until_next()), (None, None, None));

        let trace = |home| WaitingTrace { memory: 0, incarnation: 0, trace: Trace::Filter { home } };
        for (due_ns, home) in [(120, 0), (110, 1), (120, 2), (115, 3), (110, 4)] {
            grace.push(home as usize, due_ns, trace(home));
        }
        assert_eq!(grace.last_due_ns(), Some(120));
        assert_eq!(grace.until_next(), Some(Duration::from_nanos(103)));
        clock.advance(Duration::from_nanos(102));
        assert_eq!(grace.pop_due(), None, "one nanosecond before");
        clock.advance(Duration::from_nanos(1));
        assert_eq!(grace.pop_due(), Some((110, trace(1))));
        assert_eq!(grace.pop_due(), Some((110, trace(4))), "in the order in which they came");
        assert_eq!(grace.pop_due(), None);
        assert_eq!(grace.until_next(), Some(Duration::from_nanos(5)));
        clock.advance(Duration::from_nanos(100));
        assert_eq!(grace.until_next(), Some(Duration::ZERO));
        let left: Vec<_> = std::iter::from_fn(|| grace.pop_due()).collect();
        assert_eq!(left, [(115, trace(3)), (120, trace(0)), (120, trace(2))]);
        assert_eq!((grace.last_due_ns(), grace.until_next()), (None, None));
    }

    /// Whichever queue they are in, and in whichever order threads put them there.
    #[test]
    fn traces_come_out_by_their_times() {
        let clock = Clock::manual();
        let grace = Grace::new(clock.clone(), Duration::from_nanos(50));
        let trace = |home| WaitingTrace { memory: 0, incarnation: 0, trace: Trace::Filter { home } };
        for (due_ns, stripe) in [(30, 1), (20, 1), (40, 2), (10, 0)] {
            grace.push(stripe, due_ns, trace(due_ns));
        }
        assert_eq!(grace.last_due_ns(), Some(40));
        clock.advance(Duration::from_nanos(35));
        // While more is due, that is told at once. Then the time of the next one is.
        for (due_ns, until_next) in [(10, 0), (20, 0), (30, 5)] {
            assert_eq!(grace.pop_due(), Some((due_ns, trace(due_ns))));
            assert_eq!(grace.until_next(), Some(Duration::from_nanos(until_next)));
        }
        assert_eq!(grace.pop_due(), None);
        clock.advance(Duration::from_nanos(5));
        let all: Vec<_> = std::iter::from_fn(|| grace.pop_due()).collect();
        assert_eq!(all, [(40, trace(40))]);
        assert_eq!(grace.until_next(), None);
    }

    /// Two threads take away what is due, but only one trace is. The other trace stays.
    #[cfg(feature = "sim")]
    #[test]
    fn two_threads_take_only_what_is_due() {
        for seed in 0..200 {
            let clock = Clock::manual();
            let grace = Grace::new(clock.clone(), Duration::from_nanos(50));
            let trace = |home| WaitingTrace { memory: 0, incarnation: 0, trace: Trace::Filter { home } };
            grace.push(1, 10, trace(1));
            grace.push(1, 90, trace(2));
            clock.advance(Duration::from_nanos(10));
            let grace = &grace;
            let took = crate::sim::turns::run(seed, [(); 2].map(|()| move || grace.pop_due()).into());
            let took: Vec<_> = took.into_iter().flatten().collect();
            assert_eq!(took, [(10, trace(1))], "seed {seed}");
        }
    }
}

#[cfg(all(test, loom))]
mod checked {
    use super::*;
    use crate::base::sync::model;

    fn trace(home: u64) -> WaitingTrace {
        WaitingTrace { memory: 0, incarnation: 0, trace: Trace::Filter { home } }
    }

    /// A trace comes while another thread takes the first one away, and looks which one is the first then:
    /// it is not forgotten, whether it is due before the first one or after it.
    #[test]
    fn loom_trace_that_comes_while_another_goes() {
        for comes_ns in [1, 5] {
            model(3, move || {
                let clock = Clock::manual();
                let grace = Grace::new(clock.clone(), Duration::ZERO);
                grace.push(0, 3, trace(3));
                clock.advance(Duration::from_nanos(3));
                let other = {
                    let grace = grace.clone();
                    loom::thread::spawn(move || grace.pop_due())
                };
                grace.push(0, comes_ns, trace(comes_ns));
                let first = other.join().expect("the other thread ends");
                clock.advance(Duration::from_nanos(2));
                let mut all: Vec<_> =
                    first.into_iter().chain(std::iter::from_fn(|| grace.pop_due())).collect();
                all.sort_by_key(|&(due_ns, _)| due_ns);
                let mut both = [3, comes_ns];
                both.sort_unstable();
                assert_eq!(all, both.map(|due_ns| (due_ns, trace(due_ns))));
                assert_eq!(grace.until_next(), None);
            });
        }
    }
}
