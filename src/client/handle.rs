//! One thread's path to a server, which each fabric implements.

use super::error::{AskError, GetError, LinkError};
use super::stats::ClientStats;
use super::tries::{ATTEMPT_MAX, Failed, RETRY_FIRST, Repeatable, Tries};
use crate::base::process::Process;
use crate::base::times::TimeCounts;
use crate::layout::geometry::Geometry;
use crate::reader::Answers;
use crate::wire::{Reply, Request};
use std::error::Error;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// One thread's path to a server. Each fabric implements it for a [`Client`](crate::Client), whose methods state the
/// guarantees. A clone is for another thread. It shares what can be shared, and has no connection yet.
pub(super) trait Handle: Clone {
    /// The process that made the client.
    fn process(&self) -> Process;

    /// The geometry of the table being read.
    fn geometry(&self) -> &Geometry;

    /// Times that it switched to a new region, or reconnected.
    fn reattached(&self) -> u64;

    /// How long its GETs of one key took, if it takes the time.
    fn times(&self) -> Option<&TimeCounts>;

    /// Bytes of memory that its hints take.
    fn hint_bytes(&self) -> u64 {
        0
    }

    /// Notes that a GET has found a key, by another way than [`Handle::get_many`].
    fn note(&mut self, _key: &[u8]) {}

    /// Hands each key's outcome to `answers`, in any order, until it breaks off.
    /// Adds its counts to `stats`.
    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        answers: &mut impl Answers,
        stats: &mut ClientStats,
    ) -> Result<ControlFlow<()>, GetError>;

    /// Sends requests and appends their replies to `replies`, in order, including those that came before an error.
    /// Connects if there is no connection. A connection that failed is not used again. Adds its counts to `stats`.
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

/// Until when a client waits for the server. Each answer renews it, so it bounds the time without progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub at: Instant,
    pub allowed: Duration,
    /// How long the server may have a request wait for memory, so that its reply comes in time.
    pub patience: Duration,
}

impl Deadline {
    /// A deadline this long from now.
    pub fn within(allowed: Duration) -> Deadline {
        Deadline { at: Instant::now() + allowed, allowed, patience: allowed / 2 }
    }

    /// A deadline at this time, of requests that do not wait for memory. After each answer they have so long again.
    pub fn until(at: Instant, allowed: Duration) -> Deadline {
        Deadline { at, allowed, patience: Duration::ZERO }
    }

    /// Renews the deadline after an answer: it is as long again, but no less than was left.
    pub fn renew(&mut self) {
        self.at = self.at.max(Instant::now() + self.allowed);
    }
}

/// Connects, with attempts until the deadline, if the next one may end in another way.
pub(super) fn connected<T, E: Error + 'static>(
    deadline: Instant,
    may_pass: impl Fn(&E) -> bool,
    mut attempt: impl FnMut(Duration) -> Result<T, E>,
) -> Result<T, E> {
    let tell = |error: &E| tracing::debug!(error = error as &dyn Error, "not yet");
    let connected = Tries::of_connecting(deadline).run(tell, |tries| {
        attempt(tries.left().clamp(RETRY_FIRST, ATTEMPT_MAX)).map_err(|error| match may_pass(&error) {
            true => Failed::ForNow(error, Repeatable::READ),
            false => Failed::ForGood(error),
        })
    });
    connected.map_err(|failed| failed.or(|error| error))
}

/// How a conversation over a link failed.
pub(super) fn broke_off<E>(
    has_sent: bool,
    error: LinkError,
    lost: impl FnOnce(LinkError) -> E,
) -> Failed<LinkError, E> {
    match error {
        LinkError::HungUp => hung_up(has_sent, error, lost),
        error => Failed::ForGood(lost(error)),
    }
}

/// How a conversation failed that the server has ended. If nothing was sent, another server may take the requests.
/// Otherwise they may have been done: `lost` is the error.
pub(super) fn hung_up<C, E>(has_sent: bool, cause: C, lost: impl FnOnce(C) -> E) -> Failed<C, E> {
    match Repeatable::unsent(has_sent) {
        Some(proof) => Failed::ForNow(cause, proof),
        None => Failed::ForGood(lost(cause)),
    }
}
