//! Trying again: after which pauses, until when, and why a repeated request does no harm. Clients of a server and
//! clients of a cluster use it.

use std::time::{Duration, Instant};

/// The first pause between attempts to reconnect. Each further one is twice as long.
pub const RETRY_FIRST: Duration = Duration::from_millis(1);
/// The longest pause between attempts to reconnect.
pub const RETRY_MAX: Duration = Duration::from_millis(100);
/// An attempt to reconnect that gets no answer ends after this time. Another one follows.
pub const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// The most connections that one GET, or one batch, may lose.
const FAILURES_MAX: u32 = 8;

/// A pause that doubles, from the first to the longest.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses from the first to the longest.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, next: first, longest }
    }

    /// The pauses between attempts to reconnect.
    pub const fn of_connecting() -> Backoff {
        Backoff::new(RETRY_FIRST, RETRY_MAX)
    }

    /// Takes the next pause. The one after it is twice as long.
    pub fn take(&mut self) -> Duration {
        let now = self.next;
        self.next = (2 * now).min(self.longest);
        now
    }

    /// The next pause, which is not taken.
    pub fn peek(&self) -> Duration {
        self.next
    }

    /// Begins with the first pause again, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Proof that a request may be made again.
#[derive(Debug)]
pub struct Repeatable(());

impl Repeatable {
    /// The request only reads, or only opens a connection.
    pub const READ: Repeatable = Repeatable(());

    /// No part of the request was sent. `None` if a part was: the request may have been done.
    pub fn unsent(has_sent: bool) -> Option<Repeatable> {
        (!has_sent).then_some(Repeatable(()))
    }
}

/// How a try failed.
#[derive(Debug)]
pub enum Failed<C, E> {
    /// Another try would fail, too, or could do harm.
    ForGood(E),
    /// Another try may succeed, and does no harm.
    ForNow(C, Repeatable),
}

impl<C, E> Failed<C, E> {
    /// The error of a call whose last try failed so.
    pub fn or(self, last: impl FnOnce(C) -> E) -> E {
        match self {
            Failed::ForGood(error) => error,
            Failed::ForNow(cause, _) => last(cause),
        }
    }
}

/// The tries of one call.
#[derive(Debug)]
pub struct Tries {
    within: Duration,
    /// Until when there is another try. `None`: the time begins with the first failure, because a batch may take longer.
    ends: Option<Instant>,
    failures: u32,
    failures_max: u32,
    /// Whether there is no pause after the first failure.
    is_at_once: bool,
    backoff: Backoff,
}

impl Tries {
    /// Tries within this time after the first failure. The second one is made at once.
    pub fn within(within: Duration, backoff: Backoff) -> Tries {
        Tries { within, ends: None, failures: 0, failures_max: u32::MAX, is_at_once: true, backoff }
    }

    /// Tries until this time.
    fn until(ends: Instant, backoff: Backoff) -> Tries {
        Tries { ends: Some(ends), is_at_once: false, ..Tries::within(Duration::ZERO, backoff) }
    }

    /// Tries to connect, until this time.
    pub fn of_connecting(ends: Instant) -> Tries {
        Tries::until(ends, Backoff::of_connecting())
    }

    /// Tries to send requests, until this time. Without pauses: the next try connects again.
    pub fn of_requests(ends: Instant) -> Tries {
        Tries::until(ends, Backoff::new(Duration::ZERO, Duration::ZERO))
    }

    /// Tries of GETs whose connections fail. A server that is there, but cannot be read, is tried only a few times.
    pub fn of_gets(within: Duration) -> Tries {
        let backoff = Backoff::new(4 * RETRY_FIRST, RETRY_MAX);
        Tries { failures_max: FAILURES_MAX, ..Tries::within(within, backoff) }
    }

    /// The tries after one that has failed elsewhere: their time begins now.
    #[must_use]
    pub fn begun(self) -> Tries {
        Tries { ends: Some(Instant::now() + self.within), is_at_once: false, ..self }
    }

    /// Until when the present try may take.
    pub fn ends(&self) -> Instant {
        self.ends.unwrap_or_else(|| Instant::now() + self.within)
    }

    /// The time that is left.
    pub fn left(&self) -> Duration {
        self.ends().saturating_duration_since(Instant::now())
    }

    /// The time since the first failure, or since the tries were [`begun`](Tries::begun).
    pub fn waited(&self) -> Duration {
        self.ends
            .map_or(Duration::ZERO, |ends| (Instant::now() + self.within).saturating_duration_since(ends))
    }

    /// Whether the time runs.
    pub fn has_begun(&self) -> bool {
        self.ends.is_some()
    }

    /// Tries until one succeeds, one fails for good, or no further pause fits the time. Calls `tell` before each pause.
    ///
    /// # Errors
    /// The failure of the last try.
    pub fn run<T, C, E>(
        &mut self,
        tell: impl Fn(&C),
        attempt: impl FnMut(&Tries) -> Result<T, Failed<C, E>>,
    ) -> Result<T, Failed<C, E>> {
        let rest = |cause: &C, pause: Duration, left| {
            // The time left after a pause may be too short for another try.
            let fits = pause.is_zero() || pause + RETRY_FIRST <= left;
            if fits {
                tell(cause);
                std::thread::sleep(pause);
            }
            fits
        };
        self.run_by(rest, attempt)
    }

    /// As [`run`](Tries::run), with `rest` in place of a pause. It gets the cause, the pause, and the time that is left. It
    /// returns whether there is another try.
    ///
    /// # Errors
    /// The failure of the last try.
    pub fn run_by<T, C, E>(
        &mut self,
        mut rest: impl FnMut(&C, Duration, Duration) -> bool,
        mut attempt: impl FnMut(&Tries) -> Result<T, Failed<C, E>>,
    ) -> Result<T, Failed<C, E>> {
        loop {
            let (cause, proof) = match attempt(self) {
                Err(Failed::ForNow(cause, proof)) => (cause, proof),
                ended => return ended,
            };
            self.failures += 1;
            self.ends = Some(self.ends());
            let left = self.left();
            let is_at_once = self.is_at_once && self.failures == 1;
            let pause = if is_at_once { Duration::ZERO } else { self.backoff.take() };
            let may_go_on = self.failures <= self.failures_max && !left.is_zero();
            if !(may_go_on && rest(&cause, pause, left)) {
                return Err(Failed::ForNow(cause, proof));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// The pauses and the bound are those that the documentation names.
    #[test]
    fn pauses_are_as_documented() {
        assert_eq!([RETRY_FIRST, RETRY_MAX, ATTEMPT_MAX], [1, 100, 2000].map(Duration::from_millis));
        let mut backoff = Backoff::of_connecting();
        let pauses: Vec<_> = (0..9).map(|_| backoff.take().as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        backoff.reset();
        assert_eq!(backoff.peek(), RETRY_FIRST);
    }

    /// Runs tries that all fail for now. Returns the pauses before them.
    fn pauses(mut tries: Tries) -> Vec<Duration> {
        let mut pauses = Vec::new();
        let rest = |_: &u32, pause, _| {
            pauses.push(pause);
            pauses.len() < 20
        };
        let mut tried = 0;
        let ended = tries.run_by(rest, |_| {
            tried += 1;
            Err::<(), _>(Failed::<u32, ()>::ForNow(tried, Repeatable::READ))
        });
        assert!(matches!(ended, Err(Failed::ForNow(last, _)) if last == tried));
        pauses
    }

    /// A GET whose connections all fail is tried at once, and then after pauses, eight times again. Connecting, and sending,
    /// have no bound but time.
    #[test]
    fn tries_have_bounds() {
        let millis = |pauses: Vec<Duration>| pauses.iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!(millis(pauses(Tries::of_gets(HOUR))), [0, 4, 8, 16, 32, 64, 100, 100]);
        let far = Instant::now() + HOUR;
        assert_eq!(millis(pauses(Tries::of_connecting(far)))[..4], [1, 2, 4, 8]);
        assert_eq!(pauses(Tries::of_connecting(far)).len(), 20);
        assert_eq!(pauses(Tries::of_requests(far)), [Duration::ZERO; 20]);
        assert!(pauses(Tries::of_requests(Instant::now())).is_empty(), "the time is over");
    }

    /// What a try ends with ends the call: a success, and a failure for good. A request of which a part was sent is not
    /// repeated.
    #[test]
    fn a_try_may_be_the_last() {
        let far = || Tries::of_requests(Instant::now() + HOUR);
        let mut told = 0;
        let done = far().run_by(
            |cause, _, _| {
                told += *cause;
                true
            },
            |tries| match tries.failures {
                0 => Err(Failed::<u32, ()>::ForNow(7, Repeatable::READ)),
                again => Ok(again),
            },
        );
        assert!(matches!(done, Ok(1)) && told == 7);
        let mut tried = 0;
        let failed = far().run(
            |_: &()| unreachable!("nothing follows"),
            |_| {
                tried += 1;
                Err::<(), _>(Failed::ForGood("refused"))
            },
        );
        assert_eq!((failed.unwrap_err().or(|()| "lost"), tried), ("refused", 1));
        assert!(Repeatable::unsent(true).is_none() && Repeatable::unsent(false).is_some());
    }

    /// The time of a GET begins with its first failure, unless it was begun before. A pause that does not fit ends it.
    #[test]
    fn the_time_begins_with_the_first_failure() {
        let tries = Tries::of_gets(HOUR);
        assert!(!tries.has_begun());
        let tries = tries.begun();
        assert!(tries.has_begun());
        let millis = pauses(tries).into_iter().map(|pause| pause.as_millis());
        assert_eq!(
            millis.collect::<Vec<_>>(),
            [4, 8, 16, 32, 64, 100, 100, 100],
            "the first has failed elsewhere"
        );
        let mut tries = Tries::of_connecting(Instant::now() + HOUR);
        tries.backoff = Backoff::new(2 * HOUR, 2 * HOUR);
        let failed = tries.run(
            |_: &()| unreachable!("no pause fits"),
            |_| Err::<(), _>(Failed::ForNow::<_, ()>((), Repeatable::READ)),
        );
        assert!(failed.is_err() && tries.failures == 1);
    }
}
