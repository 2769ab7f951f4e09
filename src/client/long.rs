//! Long values on their way to the server: uploads in place of requests that do not fit a frame, and what
//! a client does that waits for memory, or compares a long value itself.

use super::{BATCH, Client, GetError, MutateError, ServerPath, on_path};
use crate::layout::extent::{Expected, Reference};
use crate::layout::geometry::Geometry;
use crate::outcome::{PutError, SwapOutcome};
use crate::wire::{self, Reply, Request};
use std::time::{Duration, Instant};

/// The pause before a request is repeated that found the memory waiting for readers: it doubles from the
/// first to the last.
const HEAP_PAUSE_FIRST: Duration = Duration::from_micros(100);
const HEAP_PAUSE_MAX: Duration = Duration::from_millis(10);
/// Most attempts of a compare-and-swap. Each one that fails was overtaken by a change that succeeded, or by
/// a move of the value.
pub(super) const SWAP_ROUNDS_MAX: u32 = 1000;
/// Bytes of values that are sent ahead of their replies.
const AHEAD_MAX: usize = 1 << 20;

/// The longest pieces of an upload on a way to the server. `None`: values of more than a frame cannot go
/// that way.
pub(super) type PieceMax = Option<usize>;

/// The value that a request puts.
pub(super) fn value_of<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match request {
        Request::Put { value, .. } | Request::Swap { value, .. } | Request::SwapExtent { value, .. } => {
            Some(value)
        }
        _ => None,
    }
}

/// Sends requests that the table takes, and uploads the values that fit no frame. Appends one reply for each
/// request to `replies`; after an error, of those that were answered by then.
pub(super) fn send_uploading<E>(
    requests: &[Request<'_>],
    geometry: &Geometry,
    piece_max: PieceMax,
    replies: &mut Vec<Reply>,
    mut send: impl FnMut(&[Request<'_>], &mut Vec<Reply>) -> Result<(), E>,
) -> Result<(), E> {
    let frame_max = wire::frame_value_max(geometry);
    let is_long = |request: &Request<'_>| value_of(request).is_some_and(|value| value.len() > frame_max);
    let Some(piece_max) = piece_max.filter(|_| requests.iter().any(is_long)) else {
        return send(requests, replies);
    };
    let mut sending = Uploading { send, replies: vec![None; requests.len()], frames: Vec::new(), bytes: 0 };
    let result = upload(requests, frame_max, piece_max, &mut sending);
    // A request without a reply: the server does not speak the protocol, and the caller sees that. Of an upload
    // that was cut off, nothing was answered.
    let is_answer = |reply: &Reply| result.is_ok() || *reply != Reply::Taken;
    replies.extend(sending.replies.into_iter().map_while(|reply| reply.filter(is_answer)));
    result
}

fn upload<'a, E, S: FnMut(&[Request<'_>], &mut Vec<Reply>) -> Result<(), E>>(
    requests: &[Request<'a>],
    frame_max: usize,
    piece_max: usize,
    sending: &mut Uploading<'a, S>,
) -> Result<(), E> {
    for (nth, request) in requests.iter().enumerate() {
        let (key, value, last) = match *request {
            Request::Put { mode, key, value } if value.len() > frame_max => {
                (key, value, Request::LongPut { mode, key })
            }
            Request::Swap { key, expected, value } if value.len() > frame_max => {
                (key, value, Request::LongSwap { key, expected: Expected::Value(expected) })
            }
            Request::SwapExtent { key, expected, value } if value.len() > frame_max => {
                (key, value, Request::LongSwap { key, expected: Expected::Extent(expected) })
            }
            short => {
                sending.push(nth, short)?;
                continue;
            }
        };
        sending.push(nth, Request::LongBegin { key, len: value.len() as u32 })?;
        for bytes in value.chunks(piece_max) {
            if sending.is_refused(nth) {
                break;
            }
            sending.push(nth, Request::LongPiece { bytes })?;
        }
        if !sending.is_refused(nth) {
            sending.push(nth, last)?;
        }
    }
    sending.flush()
}

/// Frames on their way, and what they were answered.
struct Uploading<'a, S> {
    send: S,
    /// The reply to each request: the first that is not [`Reply::Taken`], or so far that.
    replies: Vec<Option<Reply>>,
    /// Frames to be sent, each with the number of its request.
    frames: Vec<(usize, Request<'a>)>,
    /// Bytes of values in them.
    bytes: usize,
}

impl<'a, E, S: FnMut(&[Request<'_>], &mut Vec<Reply>) -> Result<(), E>> Uploading<'a, S> {
    fn push(&mut self, nth: usize, frame: Request<'a>) -> Result<(), E> {
        self.bytes += match frame {
            Request::LongPiece { bytes } => bytes.len(),
            _ => value_of(&frame).map_or(0, <[u8]>::len),
        };
        self.frames.push((nth, frame));
        if self.bytes >= AHEAD_MAX || self.frames.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    /// Whether the server has answered that it does not take the upload of this request.
    fn is_refused(&self, nth: usize) -> bool {
        self.replies[nth].as_ref().is_some_and(|reply| *reply != Reply::Taken)
    }

    fn flush(&mut self) -> Result<(), E> {
        let frames = std::mem::take(&mut self.frames);
        self.bytes = 0;
        if frames.is_empty() {
            return Ok(());
        }
        let requests: Vec<_> = frames.iter().map(|(_, request)| *request).collect();
        let mut replies = Vec::with_capacity(requests.len());
        let result = (self.send)(&requests, &mut replies);
        if result.is_ok() && replies.len() != frames.len() {
            return Ok(());
        }
        for ((nth, _), reply) in frames.into_iter().zip(replies) {
            let so_far = &mut self.replies[nth];
            if so_far.as_ref().is_none_or(|so_far| *so_far == Reply::Taken) {
                *so_far = Some(reply);
            }
        }
        result
    }
}

/// Waits for memory of long values, until a deadline.
#[derive(Debug)]
pub(super) struct HeapWait {
    begun: Instant,
    pause: Duration,
    deadline: Instant,
}

impl HeapWait {
    pub fn new(deadline: Instant) -> HeapWait {
        HeapWait { begun: Instant::now(), pause: HEAP_PAUSE_FIRST, deadline }
    }

    /// Sleeps for a while. Returns `false`, and does not sleep, if the deadline comes before.
    pub fn again(&mut self) -> bool {
        if Instant::now() + self.pause >= self.deadline {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (2 * self.pause).min(HEAP_PAUSE_MAX);
        true
    }

    /// After progress: it waits so long from now.
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

/// Whether a reply says that there will be memory later.
pub(super) fn is_busy(reply: &Reply) -> bool {
    let (Reply::Put(Err(error)) | Reply::Swapped(Err(error))) = reply else { return false };
    matches!(error, PutError::HeapBusy { .. })
}

impl Client {
    /// Makes a request, again and again while memory for its value waits for readers.
    pub(super) fn ask_until_free(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<Reply, MutateError> {
        let mut wait = HeapWait::new(deadline);
        loop {
            let reply = self.ask(request, deadline)?;
            if !is_busy(&reply) {
                return Ok(reply);
            }
            if wait.again() {
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

    /// A compare-and-swap with an expected value that does not fit a frame (X7): the client reads the value
    /// and compares it, and the server swaps if the slot still names that extent. Where another change, or a
    /// move of the value, came between, it begins again.
    pub(super) fn swap_seen(
        &mut self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
        deadline: Instant,
    ) -> Result<SwapOutcome, MutateError> {
        // Whatever the look finds, it is the table of a server that is there.
        match self.ask(&Request::LongDrop, deadline)? {
            Reply::Taken => {}
            _ => return Err(self.unexpected()),
        }
        let max = self.geometry().value_max();
        if let Some(given) = [value.len(), expected.len()].into_iter().find(|given| *given > max) {
            return Err(MutateError::ValueLength { given, max });
        }
        let mut rounds = 0;
        loop {
            let Some((seen, extent)) = self.look(key)? else { return Ok(SwapOutcome::Absent) };
            if seen != expected {
                return Ok(SwapOutcome::Differs);
            }
            // A value of this length fits no slot.
            let Some(extent) = extent else { return Err(self.unexpected()) };
            match self.swap_stored(key, Expected::Extent(extent), value, deadline)? {
                SwapOutcome::Differs => rounds += 1,
                outcome => return Ok(outcome),
            }
            if rounds == SWAP_ROUNDS_MAX || Instant::now() >= deadline {
                return Err(MutateError::Busy { rounds });
            }
        }
    }

    /// The value as it is stored, and the extent in which it is, if it is not in its slot. By READs.
    #[expect(clippy::type_complexity, reason = "absent, or a value and its place")]
    pub(super) fn look(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Option<Reference>)>, MutateError> {
        let mut value = Vec::new();
        let found = on_path!(&mut self.path, handle => {
            handle.read(&mut self.stats, |reader| reader.get_with_extent(key, &mut value))
        });
        match found {
            Ok(found) => {
                // The change may end with it.
                self.publish();
                Ok(found.map(|extent| (value, extent)))
            }
            Err(error) => Err(not_seen(self.count_failed_get(error))),
        }
    }
}

/// Why a change did not happen that could not look.
fn not_seen(error: GetError) -> MutateError {
    match error {
        GetError::KeyLength { given, max } => MutateError::KeyLength { given, max },
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
        #[cfg(feature = "encryption")]
        GetError::Decrypt(error) => MutateError::Decrypt(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::client::{ConnectError, LinkError};
    use crate::get::Retry;

    /// The pauses of a client that waits for memory double up to a bound. None passes the deadline.
    #[test]
    fn pauses_for_memory_are_bounded() {
        let far = Instant::now() + Duration::from_secs(3600);
        let mut wait = HeapWait::new(far);
        for exponent in 0..9 {
            assert_eq!(wait.pause, HEAP_PAUSE_MAX.min(HEAP_PAUSE_FIRST * (1 << exponent)));
            assert!(wait.again());
        }
        assert_eq!(wait.pause, Duration::from_millis(10));
        let soon = Instant::now() + Duration::from_secs(1800);
        let mut wait = HeapWait { begun: Instant::now(), pause: Duration::from_secs(3600), deadline: soon };
        assert!(!wait.again());
        wait.deadline = Instant::now();
        wait.pause = Duration::ZERO;
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
