//! What a change may do, what it did, and why it or a GET failed: what the index, the readers and the
//! fabrics decide, frames carry, and clients return.

use crate::base::units::time;
use crate::encryption::DecryptError;
use crate::get::Retry;
use crate::layout::extent::VALUE_MAX;
use crate::layout::owners::OWNER_MAX;
use crate::layout::slot::KEY_MAX;
use crate::part::PartError;
use std::time::Duration;

/// What a put found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The key was absent and is now present.
    Inserted,
    /// The key was present and has the new value.
    Updated,
    /// The key was present and keeps its value ([`PutMode::Insert`]).
    Exists,
    /// The key was absent and stays absent ([`PutMode::Update`]).
    Missing,
}

/// What a compare-and-swap found and did ([`Client::compare_and_swap`](crate::Client::compare_and_swap)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The key had the expected value and has the new one.
    Swapped,
    /// The key has another value and keeps it.
    Differs,
    /// The key is absent and stays absent.
    Absent,
}

/// What a put may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Insert or update.
    Upsert,
    /// Only insert.
    Insert,
    /// Only update.
    Update,
}

/// What a put may do, and how long the entry lives.
///
/// ```
/// use oneread::{PutMode, PutOptions};
/// use std::time::Duration;
///
/// let lock = PutOptions::new().mode(PutMode::Insert).ttl(Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutOptions {
    /// Whether the key may, or must, be there.
    pub mode: PutMode,
    /// How long the entry lives from now on, rounded up to an eighth of a second; `None`: until it is removed or
    /// put again. Only in a table whose entries have a life ([`Config::life`](crate::Config::life)).
    pub ttl: Option<Duration>,
    /// Whose the entry is, where somebody else knows the owners; 0: nobody's.
    pub(crate) owner: u16,
}

crate::base::setters::setters!(PutOptions {
    mode: PutMode,
    ttl: impl Into<Option<Duration>>,
});

impl PutOptions {
    /// An upsert, of an entry that does not end by itself.
    pub fn new() -> PutOptions {
        PutOptions { mode: PutMode::Upsert, ttl: None, owner: 0 }
    }
}

impl Default for PutOptions {
    /// As [`PutOptions::new`].
    fn default() -> PutOptions {
        PutOptions::new()
    }
}

impl From<PutMode> for PutOptions {
    fn from(mode: PutMode) -> PutOptions {
        PutOptions { mode, ..PutOptions::new() }
    }
}

/// What left to make room for others ([`ServerConfig::evict`](crate::ServerConfig::evict)). All zero where nothing does.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[non_exhaustive]
pub struct EvictCounts {
    /// Entries that left to keep room free for keys.
    pub ahead: u64,
    /// Entries that left because a put found no room for its key.
    pub at_put: u64,
    /// Entries that left for memory of values that do not fit their slots.
    pub for_heap: u64,
    /// Puts that were refused, because all that could make room for them was pinned.
    pub refused: u64,
    /// Entries that the policy knows, at present.
    pub records: u64,
    /// Keys that are pinned, at present.
    pub pinned: u64,
}

impl EvictCounts {
    /// All entries that left to make room.
    pub fn evicted(&self) -> u64 {
        self.ahead + self.at_put + self.for_heap
    }
}

/// GETs that were answered: of clients on the server's host, which look by themselves and tell what they have counted every 64
/// GETs, and of those that ask the server, over TCP. READs over RDMA are not among them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[non_exhaustive]
pub struct GetCounts {
    /// GETs that were answered.
    pub gets: u64,
    /// Of these, those that found their key.
    pub hits: u64,
}

impl GetCounts {
    /// GETs that found no key.
    pub fn misses(&self) -> u64 {
        self.gets.saturating_sub(self.hits)
    }

    /// What was counted since an earlier count. A hit that was taken back counts less than none.
    pub(crate) fn since(self, earlier: GetCounts) -> GetCounts {
        GetCounts { gets: self.gets.wrapping_sub(earlier.gets), hits: self.hits.wrapping_sub(earlier.hits) }
    }
}

/// What a server notes of entries in memory of its own ([`Index::notes`](crate::embedded::Index::notes)): so many at
/// present, each some dozen bytes. None is kept of entries that have gone, but for those of `records` that say so.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[non_exhaustive]
pub struct NoteCounts {
    /// When entries end: one for each that has an end.
    pub ends: u64,
    /// Entries that have owners.
    pub owned: u64,
    /// What the policy that makes room knows: an entry each, and at most as many that have gone.
    pub records: u64,
}

/// Why a key could not be put.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum PutError {
    /// The table must grow for this key, and the system has refused the memory.
    #[error(
        "the table cannot grow: the system has refused {bytes} bytes of memory for the next segment ({keys} keys so far); free memory, or raise the limits of the server: those of its control group, of its file system (/dev/shm), and of its address space"
    )]
    NoMemory {
        /// Keys in the table.
        keys: u64,
        /// Bytes of a segment.
        bytes: u64,
    },
    /// The key's length is out of range.
    #[error(
        "the key is {given} bytes long, this table takes 1 to {max}{}", mend(*given, *max, "key", KEY_MAX)
    )]
    KeyLength {
        /// Length given.
        given: usize,
        /// Longest allowed.
        max: usize,
    },
    /// The value is too long.
    #[error(
        "the value is {given} bytes long, this table takes 0 to {max}{}", mend(*given, *max, "value", VALUE_MAX)
    )]
    ValueLength {
        /// Length given.
        given: usize,
        /// Longest allowed.
        max: usize,
    },
    /// The value is too long once it is encrypted.
    #[error(
        "the value is {given} bytes long, {stored} when encrypted, and this table takes 0 to {stored_max}; longer ones need a new table, with a `Config::value_max` of at least {stored}"
    )]
    EncryptedLength {
        /// Length given.
        given: usize,
        /// Length as it would be stored.
        stored: usize,
        /// Longest that the table stores.
        stored_max: usize,
    },
    /// No room was found. Where the table would have to grow, and has all the memory that it may take,
    /// `bytes_max` says how much that is.
    #[error(
        "the table is full: {keys} keys in {slots} slots (load {:.1} %), and {}",
        100.0 * *keys as f64 / *slots as f64,
        why_full(*bytes_max, *heap_bytes)
    )]
    Full {
        /// Keys in the table.
        keys: u64,
        /// Slots allocated: main slots, and overflow slots ever used.
        slots: u64,
        /// Bytes that the table may take, if it has them all. 0 if that is not why it is full.
        bytes_max: u64,
        /// Of these, bytes that values have which do not fit their slots.
        heap_bytes: u64,
    },
    /// No memory is left for a value that does not fit its slot. Nothing was changed.
    #[error(
        "no memory is left for so long a value: {}; remove keys, or serve a table with more memory (`Config::heap_bytes`, or the size of one that grows)",
        why_heap_full(*live_bytes, *heap_bytes)
    )]
    HeapFull {
        /// Bytes in use by values, their headers included.
        live_bytes: u64,
        /// Length of the heap; where a table grows and has all the memory that it may take, the part of it that is for
        /// values, which is 0 if keys have it all.
        heap_bytes: u64,
    },
    /// Memory for a value that does not fit its slot did not become free in time. Nothing was changed.
    #[error(
        "memory for a value of {given} bytes was not free within {}: what was removed or replaced may still be read for so long; try again",
        time(*waited)
    )]
    HeapBusy {
        /// Length of the value.
        given: usize,
        /// How long the put waited.
        waited: Duration,
    },
    /// The system has refused memory for a value that does not fit its slot. Nothing was changed.
    #[error(
        "the system has refused memory for a value of {given} bytes; free memory, or raise the limits of the server: those of its control group, of its file system (/dev/shm), and of its address space"
    )]
    HeapMemory {
        /// Length of the value.
        given: usize,
    },
    /// A change of a part does not fit the value that is there. Nothing was changed.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The server is of a version that does not know this kind of change. Nothing was sent.
    #[error(
        "the server is of a version that does not know this kind of change; nothing was changed; use the same version of oneread on both sides"
    )]
    OldServer,
    /// What the change had to wait for, before it is visible, has refused it. Nothing was changed.
    #[error("the change was withdrawn before it was made; nothing was changed")]
    Withdrawn,
    /// The time to live is none that an entry can have. Nothing was changed.
    #[error(
        "the entry is to live for {}, which is none, or ends later than this table can say (17 years after it was made); give another time, or none", time(*given)
    )]
    TimeToLive {
        /// The time given.
        given: Duration,
    },
    /// A time to live was given, and entries of this table have none. Nothing was changed.
    #[error(
        "entries of this table live until they are removed; for a time to live, make it with `Config::life`"
    )]
    NoLife,
    /// All numbers of entries were given. Nothing was changed.
    #[error("this table has given every number that an entry can have; make a new one")]
    EntryNumbers,
    /// The number is none that an owner can have. Nothing was changed.
    #[error("{given} is no number of an owner; give one of 1 to {OWNER_MAX}")]
    OwnerNumber {
        /// The number given.
        given: u16,
    },
    /// The owner was removed, or was away for longer than it may. Nothing was changed.
    #[error(
        "owner {owner} was removed, or was away for longer than it said, and its entries go; connect again as this owner (`Client::owner`) when they are gone"
    )]
    OwnerGone {
        /// The owner.
        owner: u16,
    },
    /// Entries of this table have no owners. Nothing was changed.
    #[error("entries of this table have no owners; make it with `Config::owners`")]
    NoOwners,
    /// Another put of the key was started, and is neither committed nor given up. Nothing was changed.
    #[error("a put of this key was started already; wait until it is committed or given up")]
    AlreadyStarted,
    /// No such put was started by this client, or its time is over. Nothing was changed.
    #[error("no such put was started by this client, or its time is over; start it again")]
    NotStarted,
    /// Not all bytes of a started put have come, or more. Nothing was changed.
    #[error("{given} bytes of a put that was started with {stated}; give as many as were stated")]
    StartedLength {
        /// Bytes given.
        given: usize,
        /// Bytes stated when it was started.
        stated: usize,
    },
    /// Puts that were started hold all that they may, or one was to hold its room for too long. Nothing was started.
    #[error(transparent)]
    StartBound(#[from] StartBound),
    /// All that could make room for the key, or its value, is pinned ([`Client::pin`](crate::Client::pin)), or held by
    /// puts that were started. Nothing was changed.
    #[error(
        "all that could make room is pinned, or held by puts that were started; unpin keys, or serve a larger table"
    )]
    Pinned,
    /// This connection has all the pins that it may have, or the server's connections have all the memory that they may. Nothing
    /// was pinned.
    #[error(
        "this connection has {max} pins, as many as it may have now; unpin keys, or give connections more memory (`ServerConfig::client_bytes_max`)"
    )]
    Pins {
        /// As many as it may have.
        max: u32,
    },
    /// Other changes interfered each time.
    #[error("other changes came in between, {rounds} times in a row; try again")]
    Busy {
        /// Attempts made.
        rounds: u32,
    },
}

/// Which bound of puts in two steps a start has reached ([`StartLimits`](crate::StartLimits)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartBound {
    /// The slots of all starts together.
    #[error(
        "{held} puts are started, and all of them together may hold {max} slots; commit some or give them up, or serve with a larger share (`StartLimits::percent`)"
    )]
    Slots {
        /// Puts that are started.
        held: u64,
        /// Slots that they may hold.
        max: u64,
    },
    /// The memory of their values, where these do not fit their slots.
    #[error(
        "puts that are started hold {held} bytes for their values, and may hold {max}; commit some or give them up, or serve with a larger share (`StartLimits::percent`)"
    )]
    HeapBytes {
        /// Bytes that they hold.
        held: u64,
        /// Bytes that they may hold.
        max: u64,
    },
    /// The longest time of one.
    #[error(
        "a put was started that holds its room for {}, and none may for more than {}; say a shorter time, or serve with a longer one (`StartLimits::within_max`)",
        time(*given), time(*max)
    )]
    Time {
        /// The time given.
        given: Duration,
        /// The longest that is allowed.
        max: Duration,
    },
}

impl StartBound {
    /// In numbers: which, what was given or is held, and what is allowed. Times are in nanoseconds.
    pub(crate) fn to_parts(self) -> [u64; 3] {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match self {
            StartBound::Slots { held, max } => [0, held, max],
            StartBound::HeapBytes { held, max } => [1, held, max],
            StartBound::Time { given, max } => [2, ns(given), ns(max)],
        }
    }

    /// The bound in such numbers.
    pub(crate) fn from_parts([which, held, max]: [u64; 3]) -> Option<StartBound> {
        Some(match which {
            0 => StartBound::Slots { held, max },
            1 => StartBound::HeapBytes { held, max },
            2 => StartBound::Time { given: Duration::from_nanos(held), max: Duration::from_nanos(max) },
            _ => return None,
        })
    }
}

fn why_full(bytes_max: u64, heap_bytes: u64) -> String {
    if bytes_max == 0 {
        return "no path of moves makes room; remove keys, or serve a larger table".into();
    }
    let heap = match heap_bytes {
        0 => String::new(),
        bytes => format!(", {bytes} of them for values that do not fit their slots"),
    };
    format!(
        "for more slots it has no memory: it takes all of the {bytes_max} bytes that it may{heap}; remove keys, or serve a table that may take more (`TableSize::up_to`)"
    )
}

fn why_heap_full(live_bytes: u64, heap_bytes: u64) -> String {
    match heap_bytes {
        0 => "keys have all the memory that the table may take".into(),
        _ => format!("others have {live_bytes} of {heap_bytes} bytes"),
    }
}

fn mend(given: usize, max: usize, what: &str, most: usize) -> String {
    if given <= max {
        // An empty key.
        return "; give one that is not empty".into();
    }
    if given > most {
        return format!("; no table takes more than {most}: shorten it");
    }
    format!("; longer ones need a new table, with a `Config::{what}_max` of at least {given}")
}

/// A key of a batch that the table cannot hold: empty, or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", ReadError::from(*self))]
pub struct KeyLengthError {
    /// Length given.
    pub given: usize,
    /// Longest allowed.
    pub max: usize,
}

impl From<KeyLengthError> for ReadError {
    fn from(KeyLengthError { given, max }: KeyLengthError) -> ReadError {
        ReadError::KeyLength { given, max }
    }
}

/// Why a key of a batch has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The table cannot hold the key.
    #[error(transparent)]
    Length(#[from] KeyLengthError),
    /// The key's value does not decrypt.
    #[error(transparent)]
    Decrypt(#[from] DecryptError),
}

/// Why a GET gave no answer, whatever the fabric. What a fabric can fail with besides is its own
/// ([`Fabric::Error`](crate::fabric::Fabric::Error)).
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The key's length is out of range.
    #[error(
        "the key is {given} bytes long, this table takes 1 to {max}{}", mend(*given, *max, "key", KEY_MAX)
    )]
    KeyLength {
        /// Length given.
        given: usize,
        /// Longest allowed.
        max: usize,
    },
    /// The bound on retries was reached.
    #[error(
        "{retries} looks in a row were inconclusive (last cause: {last:?}); the slot is rewritten without pause, or the server was suspended or killed in the middle of writing it; try again, or let the server go on"
    )]
    Contended {
        /// Passes made.
        retries: u32,
        /// Why the last one was inconclusive.
        last: Retry,
    },
    /// The key's value was replaced each time, faster than it could be read.
    #[error(
        "the value, of {len} bytes, was replaced {times} times while it was read; read it in a quieter moment, or put it less often"
    )]
    Replaced {
        /// Length of the last value.
        len: usize,
        /// How often it was begun.
        times: u32,
    },
    /// What a slot says of a long value cannot be so, or the value's bytes are not what was put.
    #[error("the memory of the value is damaged: {what}; put the value again")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
    /// The deadline was reached.
    #[error(
        "no conclusive look within {} ({retries} retries, last cause: {last:?}); the server may have been suspended or killed in the middle of writing the slot; let it go on, or start it again",
        time(*deadline)
    )]
    Deadline {
        /// The bound.
        deadline: Duration,
        /// Passes made.
        retries: u32,
        /// Why the last one was inconclusive.
        last: Retry,
    },
}

/// An error and its causes in one line, for a log or a frame.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

/// Counts of what the server did. See [`Index::counts`](crate::embedded::Index::counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexCounts {
    /// Keys in the table. What is not committed is none ([`StartCounts`]).
    pub keys: u64,
    /// Keys inserted since the server started.
    pub inserts: u64,
    /// Keys updated.
    pub updates: u64,
    /// Keys removed.
    pub removes: u64,
    /// Keys moved from one slot to another.
    pub moves: u64,
    /// Moves by which deletes brought displaced keys back into their primary windows.
    pub homings: u64,
    /// Waits of puts for grace periods to end.
    pub waits: u64,
    /// Slots allocated: main slots, and overflow slots ever used.
    pub slots: u64,
    /// Main slots.
    pub main_slots: u64,
}

/// What puts hold that were started and not committed. See [`Index::starts`](crate::embedded::Index::starts). All zero
/// in a table without owners. These are no keys: [`IndexCounts::keys`] leaves them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartCounts {
    /// Puts that are started. Each holds a slot.
    pub started: u64,
    /// Slots that they may hold.
    pub slots_max: u64,
    /// Bytes that they hold for values that do not fit their slots.
    pub heap_bytes: u64,
    /// Bytes that they may hold for these.
    pub heap_bytes_max: u64,
    /// Puts given up since the server started, because their time was over.
    pub late: u64,
    /// Starts refused since then, because of a bound ([`StartBound`]).
    pub refused: u64,
}

/// What the memory of values is used for that do not fit their slots. See
/// [`Index::heap`](crate::embedded::Index::heap). All zero where all of them fit. A reply carries it as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[non_exhaustive]
pub struct HeapCounts {
    /// Values in the heap.
    pub values: u64,
    /// Bytes in use, headers and the rounding to 32 bytes included.
    pub live_bytes: u64,
    /// Bytes that readers may still read, of values that were removed, replaced or moved.
    pub waiting_bytes: u64,
    /// Bytes free in blocks that have values.
    pub gap_bytes: u64,
    /// The longest gap in such a block.
    pub largest_gap_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks of the heap.
    pub blocks: u64,
    /// Blocks that have values.
    pub open_blocks: u64,
    /// Length of the heap.
    pub heap_bytes: u64,
    /// Bytes moved since the server started, so that blocks become free.
    pub moved_bytes: u64,
    /// Bytes given back to the system since then.
    pub returned_bytes: u64,
}

/// What a table that grows is made of, and what it did to grow and shrink. See
/// [`Index::growth`](crate::embedded::Index::growth).
///
/// Loads are in parts of a million: keys divided by slots allocated, as in [`IndexCounts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrowthCounts {
    /// Segments that have keys, those of splits and merges under way included.
    pub segments: u64,
    /// The most segments that there may be.
    pub segments_max: u64,
    /// Bits of the directory hash that all keys of the deepest segment have in common.
    pub depth: u64,
    /// The lowest load of a segment. Those in a split or merge do not count, if there are others.
    pub load_min_ppm: u64,
    /// The highest load of a segment, counted likewise.
    pub load_max_ppm: u64,
    /// Splits that are under way.
    pub splitting: u64,
    /// Merges that are under way.
    pub merging: u64,
    /// Splits that are complete.
    pub splits: u64,
    /// Merges that are complete.
    pub merges: u64,
    /// Merges that were given up, because keys came back meanwhile.
    pub given_up: u64,
    /// Keys moved from one segment to another.
    pub moved: u64,
    /// Times that the system refused memory for a segment ([`PutError::NoMemory`]).
    pub refused: u64,
    /// Bytes of the region with memory behind them, as the system says.
    pub bytes_backed: u64,
    /// The most bytes that the table may take.
    pub bytes_max: u64,
    /// Bytes given back to the system.
    pub bytes_returned: u64,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each number stands where the sentence wants it.
    #[test]
    fn errors_tell_their_numbers() {
        let of = Duration::from_millis(20);
        let full = PutError::Full { keys: 30, slots: 40, bytes_max: 0, heap_bytes: 0 };
        let bound =
            |heap_bytes| PutError::Full { keys: 30, slots: 40, bytes_max: 50, heap_bytes }.to_string();
        let told: [(String, &str); 17] = [
            (full.to_string(), "no path of moves makes room"),
            (bound(0), "no memory: it takes all of the 50 bytes that it may; remove"),
            (bound(6), "the 50 bytes that it may, 6 of them for values"),
            (PutError::NoMemory { keys: 7, bytes: 64 }.to_string(), "refused 64 bytes"),
            (PutError::NoMemory { keys: 7, bytes: 64 }.to_string(), "(7 keys so far)"),
            (
                PutError::KeyLength { given: 9, max: 8 }.to_string(),
                "is 9 bytes long, this table takes 1 to 8",
            ),
            (
                PutError::ValueLength { given: 9, max: 8 }.to_string(),
                "is 9 bytes long, this table takes 0 to 8",
            ),
            (
                PutError::KeyLength { given: 9, max: 8 }.to_string(),
                "longer ones need a new table, with a `Config::key_max` of at least 9",
            ),
            (
                PutError::KeyLength { given: 256, max: 8 }.to_string(),
                "no table takes more than 255: shorten it",
            ),
            (
                PutError::ValueLength { given: 9, max: 8 }.to_string(),
                "longer ones need a new table, with a `Config::value_max` of at least 9",
            ),
            (
                PutError::ValueLength { given: VALUE_MAX + 1, max: 8 }.to_string(),
                "no table takes more than 67108864: shorten it",
            ),
            (full.to_string(), "30 keys in 40 slots (load 75.0 %)"),
            (PutError::HeapFull { live_bytes: 3, heap_bytes: 5 }.to_string(), "others have 3 of 5 bytes"),
            (
                PutError::HeapFull { live_bytes: 0, heap_bytes: 0 }.to_string(),
                "keys have all the memory that the table may take",
            ),
            (
                PutError::HeapBusy { given: 9, waited: of }.to_string(),
                "a value of 9 bytes was not free within 20 ms",
            ),
            (
                crate::index::RestoreError::TooMany { keys: 9, slots: 4 }.to_string(),
                "has 9 keys, this table has 4 slots",
            ),
            (
                crate::index::RestoreError::Full { restored: 2, keys: 9, source: full }.to_string(),
                "full after 2 of 9 keys",
            ),
        ];
        for (text, part) in told {
            assert!(text.contains(part), "{text:?} should say {part:?}");
        }
    }
}
