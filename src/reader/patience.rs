//! How long a GET goes on looking again, and how it rests in between.

use crate::base::clock::Clock;
use crate::get::Retry;
use crate::outcome::ReadError;
use std::time::Duration;

/// Bounds of one GET. The first one reached ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Passes that may be inconclusive. Then a [`Client`](crate::Client)'s GET ends in
    /// [`GetError::Contended`](crate::GetError::Contended), a [`Reader`](crate::embedded::Reader)'s in
    /// [`ReadError::Contended`].
    pub retries_max: u32,
    /// Time that a GET may take once it has to look again. Then a [`Client`](crate::Client)'s GET
    /// ends in [`GetError::Inconclusive`](crate::GetError::Inconclusive), a [`Reader`](crate::embedded::Reader)'s in
    /// [`ReadError::Deadline`].
    ///
    /// A batch ends so when one of its keys has been looked for again for this long. It also ends
    /// when it gets nowhere: while some key has to be looked for again, the time of each round of
    /// READs that brings no key further is added up, and the time of each round that answers a key
    /// is taken off. The bound is on that sum. So a large batch may take longer than this in all.
    /// The time that the caller's callback takes does not count.
    pub deadline: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new()
    }
}

impl Limits {
    /// 100,000 retries, one second.
    pub const fn new() -> Limits {
        Limits { retries_max: 100_000, deadline: Duration::from_secs(1) }
    }

    /// These limits with another `retries_max`.
    #[must_use]
    pub const fn retries_max(self, retries_max: u32) -> Limits {
        Limits { retries_max, ..self }
    }

    /// These limits with another `deadline`.
    #[must_use]
    pub const fn deadline(self, deadline: Duration) -> Limits {
        Limits { deadline, ..self }
    }
}

/// How long one GET goes on looking again, and how it rests in between.
#[derive(Default)]
pub(super) struct RetryBudget {
    retries: u32,
    since_ns: u64,
}

/// What a GET does before it looks again, shortest first: it spins, because a slot is rewritten in some 20 ns;
/// then it lets others run, because the writer may have been preempted; then it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rest {
    Spin,
    Yield,
    Sleep,
}

/// Retries that spin, retries after which it sleeps, and for how long.
const SPINS: u32 = 8;
pub(super) const YIELDS: u32 = 64;
pub(super) const SLEEP_NS: u64 = 50_000;

impl RetryBudget {
    /// Whether the GET has looked again.
    pub fn has_begun(&self) -> bool {
        self.retries > 0
    }

    /// A look was inconclusive; what to do before the next one.
    #[cold]
    pub fn again(&mut self, last: Retry, now_ns: u64, limits: &Limits) -> Result<Rest, ReadError> {
        self.retries += 1;
        if self.retries >= limits.retries_max {
            return Err(ReadError::Contended { retries: self.retries, last });
        }
        if self.retries == 1 {
            self.since_ns = now_ns;
        }
        if Duration::from_nanos(now_ns - self.since_ns) >= limits.deadline {
            return Err(ReadError::Deadline { deadline: limits.deadline, retries: self.retries, last });
        }
        Ok(if self.retries <= SPINS {
            Rest::Spin
        } else if self.retries <= YIELDS {
            Rest::Yield
        } else {
            Rest::Sleep
        })
    }
}

impl Rest {
    pub fn take(self, clock: &Clock) {
        match (self, clock) {
            (Rest::Spin, _) | (Rest::Yield, Clock::Manual(_)) => std::hint::spin_loop(),
            (Rest::Yield, Clock::System) => std::thread::yield_now(),
            (Rest::Sleep, clock) => clock.sleep_until(clock.now_ns() + SLEEP_NS),
        }
    }
}

/// What one round of a batch brought: all that one poll gave.
#[derive(Default)]
pub(super) struct Round {
    answered: bool,
    /// Has a GET that has not looked again read a window, and goes on to the next one?
    went_on: bool,
    /// When the last GET that has to look again was judged, its retries, and why.
    again: Option<(u64, u32, Retry)>,
    /// The shortest rest before a READ of this round; `None` when another GET goes on.
    rest: Option<Rest>,
}

impl Round {
    /// A round that has brought nothing yet. Is any READ under way?
    pub fn new(is_under_way: bool) -> Round {
        Round { rest: (!is_under_way).then_some(Rest::Sleep), ..Round::default() }
    }

    /// A GET goes on to its next window.
    pub fn goes_on(&mut self, patience: &RetryBudget) {
        self.rest = None;
        self.went_on |= !patience.has_begun();
    }

    /// A GET that was judged now has to look again, after this rest.
    pub fn looks_again(&mut self, now_ns: u64, patience: &RetryBudget, why: Retry, rest: Rest) {
        self.again = Some((now_ns, patience.retries, why));
        self.rest = self.rest.map(|shortest| shortest.min(rest));
    }

    /// A GET has its answer.
    pub fn answers(&mut self) {
        self.answered = true;
    }

    /// Rests before the next READs, if all GETs that go on do, and not for so long that they sleep.
    pub fn take_rest(&self, clock: &Clock) {
        if !self.answered
            && let Some(short @ (Rest::Spin | Rest::Yield)) = self.rest
        {
            short.take(clock);
        }
    }
}

/// How far a batch has fallen behind, while GETs of it look again: rounds that brought no GET on add their
/// time, rounds that answered keys take it off. Nothing is measured, and no clock read, while none looks again.
#[derive(Default)]
pub(super) struct Lag {
    behind_ns: u64,
    /// When the last round ended; `None` while nothing is measured.
    since_ns: Option<u64>,
    /// Time spent in the caller's code, which does not count.
    elsewhere_ns: u64,
}

impl Lag {
    /// The time on `clock`, without what was spent elsewhere.
    pub fn now_ns(&self, clock: &Clock) -> u64 {
        clock.now_ns() - self.elsewhere_ns
    }

    pub fn sleep_until(&self, until_ns: Option<u64>, clock: &Clock) {
        clock.sleep_until(until_ns.unwrap_or(0) + self.elsewhere_ns);
    }

    /// A round has ended. Does any GET look again?
    pub fn add(
        &mut self,
        round: &Round,
        looks_again: bool,
        clock: &Clock,
        limits: &Limits,
    ) -> Result<(), ReadError> {
        if self.since_ns.is_none() && !looks_again {
            return Ok(());
        }
        let now_ns = round.again.map_or_else(|| self.now_ns(clock), |(now_ns, ..)| now_ns);
        let took_ns = self.since_ns.map_or(0, |since_ns| now_ns - since_ns);
        self.behind_ns = match round {
            Round { answered: true, .. } => self.behind_ns.saturating_sub(took_ns),
            Round { went_on: true, .. } => self.behind_ns,
            _ => self.behind_ns + took_ns,
        };
        self.since_ns = (self.behind_ns > 0 || looks_again).then_some(now_ns);
        match round.again {
            Some((_, retries, last)) if Duration::from_nanos(self.behind_ns) >= limits.deadline => {
                Err(ReadError::Deadline { deadline: limits.deadline, retries, last })
            }
            _ => Ok(()),
        }
    }

    /// Runs the caller's code.
    pub fn pause<R>(&mut self, clock: &Clock, each: impl FnOnce() -> R) -> R {
        let begun_ns = self.since_ns.map(|_| clock.now_ns());
        let result = each();
        self.elsewhere_ns += begun_ns.map_or(0, |begun_ns| clock.now_ns() - begun_ns);
        result
    }
}
