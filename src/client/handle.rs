//! One thread's path to a server, as each fabric makes it.

use super::error::{AskError, GetError};
use super::stats::ClientStats;
use crate::base::process::Process;
use crate::base::times::TimeCounts;
use crate::layout::geometry::Geometry;
use crate::reader::Answers;
use crate::wire::{Reply, Request};
use std::error::Error;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// The pause between attempts to reconnect: it doubles from the first to the last.
pub(crate) const RETRY_FIRST: Duration = Duration::from_millis(1);
pub(crate) const RETRY_MAX: Duration = Duration::from_millis(100);
/// An attempt to reconnect that gets no answer ends after this time. Another one follows.
pub(crate) const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// One thread's path to a server: what each fabric implements for a [`Client`](crate::Client), whose methods
/// state the guarantees. A clone is for another thread. It shares what can be shared and has no connection
/// yet.
pub(super) trait Handle: Clone {
    /// The process that made the client.
    fn process(&self) -> Process;

    /// The geometry of the table being read.
    fn geometry(&self) -> &Geometry;

    /// Times it switched to a new region, or reconnected.
    fn reattached(&self) -> u64;

    /// How long its GETs of one key took, if it takes the time.
    fn times(&self) -> Option<&TimeCounts>;

    /// Bytes of memory that its hints take.
    fn hint_bytes(&self) -> u64 {
        0
    }

    /// A GET has found a key, by another way than [`Handle::get_many`].
    fn note(&mut self, _key: &[u8]) {}

    /// Hands each key's outcome to `answers`, in any order, until it breaks off.
    /// Adds its counts to `stats`.
    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        answers: &mut impl Answers,
        stats: &mut ClientStats,
    ) -> Result<ControlFlow<()>, GetError>;

    /// Sends requests and appends their replies to `replies`, in order, also those that came before an
    /// error. Connects if there is no connection. A connection that failed is not used again. Adds its
    /// counts to `stats`.
    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), AskError>;

    /// Sends a request whose reply may be long in coming, and does not wait for that. Whatever else is asked for before
    /// the reply is there gives it up.
    fn post(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
        stats: &mut ClientStats,
    ) -> Result<Posted, AskError>;

    /// The reply to the request that was posted, if it comes until then. The thread sleeps meanwhile.
    fn late_reply(&mut self, until: Instant) -> Result<Option<Reply>, AskError>;

    /// Has the server answer the posted request at once.
    fn hurry(&mut self, deadline: Instant) -> Result<(), AskError>;

    /// Drops the connection for changes. The next change opens another one.
    fn disconnect(&mut self);
}

/// What became of a request that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Sent,
    /// The server is of a version that does not know it. Nothing was sent.
    OldServer,
}

/// Until when a client waits for the server. Each answer renews it: it bounds the time without
/// progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub at: Instant,
    pub allowed: Duration,
}

impl Deadline {
    /// So long from now.
    pub fn within(allowed: Duration) -> Deadline {
        Deadline { at: Instant::now() + allowed, allowed }
    }

    /// After an answer: as long again, but no less than was left.
    pub fn renew(&mut self) {
        self.at = self.at.max(Instant::now() + self.allowed);
    }
}

/// Repeats an attempt until the deadline, with pauses, if the next one may end in another way.
pub(super) fn retried<T, E: Error + 'static>(
    deadline: Instant,
    may_pass: impl Fn(&E) -> bool,
    mut attempt: impl FnMut(Duration) -> Result<T, E>,
) -> Result<T, E> {
    let mut pause = RETRY_FIRST;
    let left = || deadline.saturating_duration_since(Instant::now());
    loop {
        match attempt(left().clamp(RETRY_FIRST, ATTEMPT_MAX)) {
            Err(error) if may_pass(&error) && pause < left() => {
                tracing::debug!(error = &error as &dyn Error, "not yet");
                std::thread::sleep(pause);
                pause = (2 * pause).min(RETRY_MAX);
                // The time left after a sleep may be too short for another attempt.
                if left() < RETRY_FIRST {
                    return Err(error);
                }
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses and the bound are those that the documentation names.
    #[test]
    fn pauses_are_as_documented() {
        assert_eq!([RETRY_FIRST, RETRY_MAX, ATTEMPT_MAX], [1, 100, 2000].map(Duration::from_millis));
    }
}
