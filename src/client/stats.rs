//! A client's counts.

use super::error::{AskError, GetError};
use crate::outcome::PutError;
use crate::reader::{GetStats, HintCounts, ReadCounts};
use crate::wire::{Reply, Request};

/// A client's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// GETs, hits, and retries by cause.
    pub get: GetStats,
    /// READs, the bytes they requested, and doorbells (round trips).
    pub read: ReadCounts,
    /// Counts of hints ([`ClientOptions::hint_bytes`](crate::ClientOptions::hint_bytes)).
    pub hints: HintCounts,
    /// Requests sent, by path.
    pub requests: RequestCounts,
    /// Changes that the server answered, by kind.
    pub changes: ChangeCounts,
    /// Calls that failed, by cause.
    pub failures: FailureCounts,
    /// Times this handle switched to a new region, or over verbs or TCP reconnected.
    pub reattached: u64,
}

/// Adds up the counts of several handles.
impl std::ops::AddAssign for ClientStats {
    fn add_assign(&mut self, other: ClientStats) {
        let (mut other, mut others) = (other, smallvec::SmallVec::<[u64; 32]>::new());
        other.for_each(|count| others.push(*count));
        let mut others = others.into_iter();
        self.for_each(|count| *count += others.next().unwrap_or(0));
    }
}

impl ClientStats {
    /// Calls `each` with every count, in the same order each time.
    pub(super) fn for_each(&mut self, each: impl FnMut(&mut u64)) {
        let ClientStats { get, read, hints, requests, changes, failures, reattached } = self;
        let GetStats {
            gets,
            hits,
            retries_torn,
            retries_moved,
            retries_late,
            retries_chain,
            retries_replaced,
            retries_other_key,
        } = get;
        let ReadCounts { reads, bytes, doorbells } = read;
        let ChangeCounts { puts, swaps, removes, parts, rejected } = changes;
        let FailureCounts { deadlines, contended, gone, refused, undecrypted } = failures;
        [gets, hits, retries_torn, retries_moved, retries_late, retries_chain, reads, bytes, doorbells]
            .into_iter()
            .chain([retries_replaced, retries_other_key])
            .chain([&mut hints.hinted, &mut hints.hits, &mut hints.reads])
            .chain([&mut requests.message, &mut requests.mailbox, &mut requests.gets])
            .chain([
                puts,
                swaps,
                removes,
                parts,
                rejected,
                deadlines,
                contended,
                gone,
                refused,
                reattached,
                undecrypted,
                #[cfg(feature = "verbs")]
                &mut requests.extension,
            ])
            .for_each(each);
    }
}

/// Changes that the server answered. Each of a batch counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeCounts {
    /// Puts, inserts and updates.
    pub puts: u64,
    /// Compare-and-swaps, those to absence included.
    pub swaps: u64,
    /// Removes.
    pub removes: u64,
    /// Changes of a part of a value ([`Client::change_part`](crate::Client::change_part)), and of an end
    /// ([`Client::touch`](crate::Client::touch)).
    pub parts: u64,
    /// Changes of all these kinds that were rejected: lengths, a full table, interference.
    pub rejected: u64,
}

/// Calls that failed. A batch counts once, except in `undecrypted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureCounts {
    /// No answer in time, or no conclusive look ([`Limits::deadline`](crate::Limits::deadline),
    /// [`ClientOptions::deadline`](crate::ClientOptions::deadline)).
    pub deadlines: u64,
    /// GETs that reached [`Limits::retries_max`](crate::Limits::retries_max).
    pub contended: u64,
    /// The server was gone, or could not be connected to. A GET whose value is damaged counts here, too.
    pub gone: u64,
    /// Changes by a client that may only read, and GETs of keys with wrong lengths.
    pub refused: u64,
    /// Values that did not decrypt ([`ClientOptions::encryption`](crate::ClientOptions::encryption)). Each of
    /// a batch counts.
    pub undecrypted: u64,
}

impl ChangeCounts {
    pub(super) fn count(&mut self, request: &Request<'_>, reply: &Reply) {
        // The client repeats such a request.
        if !is_busy(reply) {
            self.count_final(request, reply);
        }
    }

    pub(super) fn count_final(&mut self, request: &Request<'_>, reply: &Reply) {
        *match request {
            Request::Put { .. } => &mut self.puts,
            Request::Swap { .. } | Request::SwapExtent { .. } | Request::RemoveIf { .. } => &mut self.swaps,
            Request::Part { .. } | Request::Touch { .. } => &mut self.parts,
            Request::Remove { .. } => &mut self.removes,
            _ => return,
        } += 1;
        let is_rejected = matches!(
            reply,
            Reply::Put(Err(_)) | Reply::Swapped(Err(_)) | Reply::Removed(Err(_)) | Reply::Part(Err(_))
        );
        self.rejected += u64::from(is_rejected);
    }
}

impl FailureCounts {
    #[cold]
    pub(super) fn count_get(&mut self, error: &GetError) {
        *match error {
            GetError::KeyLength { .. } | GetError::LongValue { .. } => &mut self.refused,
            GetError::Contended { .. } | GetError::Replaced { .. } => &mut self.contended,
            GetError::Inconclusive { .. } | GetError::Deadline { .. } => &mut self.deadlines,
            GetError::ServerGone { .. } | GetError::Connect(_) | GetError::Damaged { .. } => &mut self.gone,
            GetError::Decrypt(_) => &mut self.undecrypted,
        } += 1;
    }

    #[cold]
    pub(super) fn count_ask(&mut self, error: &AskError) {
        *match error {
            AskError::Deadline { .. } => &mut self.deadlines,
            AskError::ServerGone { .. } | AskError::Connect(_) => &mut self.gone,
            AskError::ReadOnly { .. } => &mut self.refused,
        } += 1;
    }
}

/// Counts of the requests that a client sent, by path ([`RequestPath`](crate::RequestPath)). Each request of a batch
/// counts, and each piece of a long value. Requests that the client rejected itself do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Requests as messages.
    pub message: u64,
    /// Requests through a mailbox.
    pub mailbox: u64,
    /// Over TCP: keys that the server has looked up. Each GET there is a request, and no READ. Many of a batch go as
    /// one message.
    pub gets: u64,
    /// Requests by an extension ([`RequestPath::Extension`](crate::RequestPath::Extension)).
    #[cfg(feature = "verbs")]
    pub extension: u64,
}

impl std::ops::AddAssign for RequestCounts {
    fn add_assign(&mut self, other: RequestCounts) {
        self.message += other.message;
        self.mailbox += other.mailbox;
        self.gets += other.gets;
        #[cfg(feature = "verbs")]
        {
            self.extension += other.extension;
        }
    }
}

/// Whether a reply says that there will be memory later.
pub(super) fn is_busy(reply: &Reply) -> bool {
    let (Reply::Put(Err(error)) | Reply::Swapped(Err(error)) | Reply::Part(Err(error))) = reply else {
        return false;
    };
    matches!(error, PutError::HeapBusy { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::client::error::{ConnectError, LinkError};
    use crate::get::Retry;
    use crate::layout::extent::Expected;
    use crate::outcome::{PutMode, PutOutcome, SwapOutcome};
    use crate::part::{PartChange, Tell};
    use std::time::Duration;

    #[test]
    fn failures_and_changes_are_counted_by_kind() {
        let address = || Address::Shm("/nowhere".into());
        let (within, last) = (Duration::from_millis(9), Retry::Moved);
        let refused = || ConnectError::Refused { address: address(), theirs: 1 };
        let hung_up = || LinkError::HungUp;
        let kinds = |counts: FailureCounts| [counts.deadlines, counts.contended, counts.gone, counts.refused];
        // Deadlines, contended, gone, refused.
        for (error, expected) in [
            (GetError::KeyLength { given: 0, max: 1 }, [0, 0, 0, 1]),
            (GetError::Contended { retries: 1, last }, [0, 1, 0, 0]),
            (GetError::Replaced { len: 1, times: 2 }, [0, 1, 0, 0]),
            (GetError::Inconclusive { within, retries: 1, last }, [1, 0, 0, 0]),
            (GetError::Deadline { address: address(), deadline: within }, [1, 0, 0, 0]),
            (GetError::Damaged { what: "it" }, [0, 0, 1, 0]),
            (GetError::ServerGone { address: address(), source: hung_up() }, [0, 0, 1, 0]),
            (GetError::Connect(refused()), [0, 0, 1, 0]),
        ] {
            let mut counts = FailureCounts::default();
            counts.count_get(&error);
            assert_eq!(kinds(counts), expected, "{error}");
        }
        for (error, expected) in [
            (AskError::Deadline { address: address(), deadline: within }, [1, 0, 0, 0]),
            (AskError::ServerGone { address: address(), source: hung_up() }, [0, 0, 1, 0]),
            (AskError::Connect(refused()), [0, 0, 1, 0]),
            (AskError::ReadOnly { address: address() }, [0, 0, 0, 1]),
        ] {
            let mut counts = FailureCounts::default();
            counts.count_ask(&error);
            assert_eq!(kinds(counts), expected, "{error}");
        }
        let (key, value, mode) = (&b"key"[..], &b"value"[..], PutMode::Upsert);
        let extent = crate::layout::extent::Reference { number: 1, offset: 2, len: 3, crc: 4 };
        let busy = || PutError::HeapBusy { given: 1, waited: within };
        let full = || PutError::Full { keys: 1, slots: 1, bytes_max: 0, heap_bytes: 0 };
        // Puts, swaps, removes, parts, rejected.
        let (part, tell) = (PartChange::Or { bits: value }, Tell::Nothing);
        for (request, reply, expected) in [
            (
                Request::Put { options: mode.into(), key, value },
                Reply::Put(Ok(PutOutcome::Exists)),
                [1, 0, 0, 0, 0],
            ),
            (Request::Put { options: mode.into(), key, value }, Reply::Put(Err(full())), [1, 0, 0, 0, 1]),
            (Request::Put { options: mode.into(), key, value }, Reply::Put(Err(busy())), [0; 5]),
            (
                Request::Swap { key, expected: value, value },
                Reply::Swapped(Ok(SwapOutcome::Absent)),
                [0, 1, 0, 0, 0],
            ),
            (Request::Swap { key, expected: value, value }, Reply::Put(Err(full())), [0, 1, 0, 0, 1]),
            (Request::Swap { key, expected: value, value }, Reply::Swapped(Err(full())), [0, 1, 0, 0, 1]),
            (Request::Swap { key, expected: value, value }, Reply::Swapped(Err(busy())), [0; 5]),
            (
                Request::SwapExtent { key, expected: extent, value },
                Reply::Swapped(Ok(SwapOutcome::Differs)),
                [0, 1, 0, 0, 0],
            ),
            (Request::Remove { key }, Reply::Removed(Ok(false)), [0, 0, 1, 0, 0]),
            (Request::Remove { key }, Reply::Removed(Err(full())), [0, 0, 1, 0, 1]),
            (
                Request::RemoveIf { key, expected: Expected::Extent(extent) },
                Reply::Put(Err(full())),
                [0, 1, 0, 0, 1],
            ),
            (Request::Part { key, part, tell }, Reply::Put(Err(busy())), [0; 5]),
            (Request::Part { key, part, tell }, Reply::Put(Err(full())), [0, 0, 0, 1, 1]),
            (Request::Get { key }, Reply::Value(None), [0; 5]),
            (Request::Get { key }, Reply::Put(Err(full())), [0; 5]),
            (Request::UploadDrop, Reply::Taken, [0; 5]),
        ] {
            let mut counts = ChangeCounts::default();
            counts.count(&request, &reply);
            let counted = [counts.puts, counts.swaps, counts.removes, counts.parts, counts.rejected];
            assert_eq!(counted, expected, "{request:?}, {reply:?}");
        }
    }
}
