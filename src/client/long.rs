//! Waiting for memory of long values, and comparing a long value in the client.

use super::error::{AskError, GetError, MutateError};
use super::stats::is_busy;
use super::tries::Backoff;
use super::{Client, ServerPath, on_path};
use crate::client::breaking::sleeps_until;
use crate::layout::extent::{Expected, Reference};
use crate::outcome::{PutError, SwapOutcome};
use crate::wire::{Reply, Request};
use std::time::{Duration, Instant};

/// The pause before a request is repeated whose memory still waits for readers. It doubles from the first to the last.
const HEAP_PAUSE_FIRST: Duration = Duration::from_micros(100);
const HEAP_PAUSE_MAX: Duration = Duration::from_millis(10);
/// The most attempts of a compare-and-swap. Each attempt that fails was overtaken by a change that succeeded, or by a
/// move of the value.
pub(super) const SWAP_ROUNDS_MAX: u32 = 1000;
/// Waits for memory of long values, until a deadline.
#[derive(Debug)]
pub(super) struct HeapWait {
    begun: Instant,
    backoff: Backoff,
    deadline: Instant,
}

impl HeapWait {
    pub fn new(deadline: Instant) -> HeapWait {
        let backoff = Backoff::new(HEAP_PAUSE_FIRST, HEAP_PAUSE_MAX);
        HeapWait { begun: Instant::now(), backoff, deadline }
    }

    /// Sleeps for a while. Returns `false`, and does not sleep, if the deadline comes first.
    pub fn again(&mut self) -> bool {
        if Instant::now() + self.backoff.peek() >= self.deadline || sleeps_until(self.deadline).is_none() {
            return false;
        }
        std::thread::sleep(self.backoff.take());
        true
    }

    /// Renews the deadline after progress: it is this long from now.
    pub fn renew(&mut self, within: Duration) {
        self.deadline = Instant::now() + within;
    }

    /// The error with the time that the client has waited.
    pub fn in_all(&self, error: PutError) -> PutError {
        match error {
            PutError::HeapBusy { given, .. } => PutError::HeapBusy { given, waited: self.begun.elapsed() },
            error => error,
        }
    }
}

impl Client {
    /// Makes a request, and repeats it while memory for its value waits for readers.
    pub(super) fn ask_until_free(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<Reply, AskError> {
        let mut wait = HeapWait::new(deadline);
        let mut patience = deadline.saturating_duration_since(wait.begun) / 2;
        loop {
            let reply = self.ask_patiently(request, deadline, patience)?;
            if !is_busy(&reply) {
                return Ok(reply);
            }
            if wait.again() {
                patience = deadline.saturating_duration_since(Instant::now()) / 2;
                continue;
            }
            self.stats.changes.count_final(request, &reply);
            self.publish();
            return Ok(match reply {
                Reply::Put(Err(error)) => Reply::Put(Err(wait.in_all(error))),
                reply => reply,
            });
        }
    }

    /// A compare-and-swap with an expected value that does not fit a frame (X7). The client reads the value and
    /// compares it, and the server swaps if the slot still names that extent. If another change, or a move of the
    /// value, came between, it begins again.
    pub(super) fn swap_seen(
        &mut self,
        key: &[u8],
        expected: &[u8],
        value: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<SwapOutcome, MutateError> {
        // Whatever the look finds is of the table of a server that is there.
        match self.ask(&Request::UploadDrop, deadline)? {
            Reply::Taken => {}
            _ => return Err(self.unexpected().into()),
        }
        let max = self.geometry().value_max();
        if let Some(given) =
            [value.map_or(0, <[u8]>::len), expected.len()].into_iter().find(|given| *given > max)
        {
            return Err(MutateError::ValueLength { given, max });
        }
        let mut rounds = 0;
        loop {
            let Some((seen, extent)) = self.look(key)? else { return Ok(SwapOutcome::Absent) };
            if seen != expected {
                return Ok(SwapOutcome::Differs);
            }
            // A value of this length fits no slot.
            let Some(extent) = extent else { return Err(self.unexpected().into()) };
            match self.swap_stored(key, Expected::Extent(extent), value, deadline)? {
                SwapOutcome::Differs => rounds += 1,
                outcome => return Ok(outcome),
            }
            if rounds == SWAP_ROUNDS_MAX || Instant::now() >= deadline {
                return Err(MutateError::Busy { rounds });
            }
        }
    }

    /// The value as it is stored, and its extent, if it is not in its slot. By READs.
    #[expect(clippy::type_complexity, reason = "absent, or a value and its place")]
    pub(super) fn look(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Option<Reference>)>, MutateError> {
        let mut value = Vec::new();
        let found = on_path!(&mut self.path, handle => {
            handle.read(&mut self.stats, |reader| reader.get_with_extent(key, &mut value))
        });
        match found {
            Ok(found) => {
                // The look may end the change.
                self.publish();
                Ok(found.map(|extent| (value, extent)))
            }
            Err(error) => Err(not_seen(self.count_failed_get(error))),
        }
    }
}

/// The error of a change whose look failed.
fn not_seen(error: GetError) -> MutateError {
    match error {
        GetError::KeyLength { given, max } => MutateError::KeyLength { given, max },
        GetError::LongValue { given, max } => MutateError::ValueLength { given, max },
        GetError::Contended { retries: rounds, .. }
        | GetError::Inconclusive { retries: rounds, .. }
        | GetError::Replaced { times: rounds, .. } => MutateError::Busy { rounds },
        GetError::Damaged { what } => {
            tracing::error!(what, "the memory of a value is damaged");
            MutateError::Busy { rounds: 0 }
        }
        GetError::Deadline { address, deadline } => MutateError::Deadline { address, deadline },
        GetError::ServerGone { address, source } => MutateError::ServerGone { address, source },
        GetError::Connect(error) => MutateError::Connect(error),
        GetError::Decrypt(error) => MutateError::Decrypt(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::client::error::{ConnectError, LinkError};
    use crate::get::Retry;

    /// The pauses of a client that waits for memory double up to a bound. None passes the deadline.
    #[test]
    fn pauses_for_memory_are_bounded() {
        let far = Instant::now() + Duration::from_secs(3600);
        let mut wait = HeapWait::new(far);
        for exponent in 0..9 {
            assert_eq!(wait.backoff.peek(), HEAP_PAUSE_MAX.min(HEAP_PAUSE_FIRST * (1 << exponent)));
            assert!(wait.again());
        }
        assert_eq!(wait.backoff.peek(), Duration::from_millis(10));
        let soon = Instant::now() + Duration::from_secs(1800);
        let backoff = |pause| Backoff::new(pause, pause);
        let hour = backoff(Duration::from_secs(3600));
        let mut wait = HeapWait { begun: Instant::now(), backoff: hour, deadline: soon };
        assert!(!wait.again());
        wait.deadline = Instant::now();
        wait.backoff = backoff(Duration::ZERO);
        assert!(!wait.again());
        let PutError::HeapBusy { given: 5, waited } =
            wait.in_all(PutError::HeapBusy { given: 5, waited: Duration::from_secs(3600) })
        else {
            panic!("another error")
        };
        assert!(waited < Duration::from_secs(3600), "it is the client's time");
        assert_eq!(wait.in_all(PutError::HeapMemory { given: 5 }), PutError::HeapMemory { given: 5 });
    }

    /// A change that could not look says why, as a change: what was in the way, and whether it may be tried
    /// again.
    #[test]
    fn looks_that_fail_are_told_as_changes() {
        let (within, last) = (Duration::from_millis(9), Retry::Moved);
        let address = || Address::Shm("/nowhere".into());
        let refused = || ConnectError::Refused { address: address(), theirs: 7 };
        for (error, expected) in [
            (GetError::KeyLength { given: 3, max: 2 }, MutateError::KeyLength { given: 3, max: 2 }),
            (GetError::Contended { retries: 4, last }, MutateError::Busy { rounds: 4 }),
            (GetError::Inconclusive { within, retries: 5, last }, MutateError::Busy { rounds: 5 }),
            (GetError::Replaced { len: 9, times: 6 }, MutateError::Busy { rounds: 6 }),
            (GetError::Damaged { what: "it" }, MutateError::Busy { rounds: 0 }),
            (
                GetError::Deadline { address: address(), deadline: within },
                MutateError::Deadline { address: address(), deadline: within },
            ),
            (
                GetError::ServerGone { address: address(), source: LinkError::Retired },
                MutateError::ServerGone { address: address(), source: LinkError::Retired },
            ),
            (GetError::Connect(refused()), MutateError::Connect(refused())),
        ] {
            assert_eq!(format!("{:?}", not_seen(error)), format!("{expected:?}"));
        }
    }
}
