//! Counts in replies.

use crate::base::times::TimeCounts;
use crate::log::LogStatus;
use crate::outcome::{GrowthCounts, IndexCounts, StartCounts};
use crate::server::ClientMemoryCounts;
use crate::snapshot::SaveStep;
use bytemuck::{Pod, Zeroable};
use std::time::Duration;

/// The server's counters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct ServerStats {
    /// Keys in the table.
    pub keys: u64,
    /// Keys inserted since the server started.
    pub inserts: u64,
    /// Keys updated since the server started.
    pub updates: u64,
    /// Keys removed since the server started.
    pub removes: u64,
    /// Keys moved since the server started.
    pub moves: u64,
    /// Displaced keys brought home; part of `moves`.
    pub homings: u64,
    /// Puts that waited for a grace period.
    pub waits: u64,
    /// Slots allocated, overflow included.
    pub slots: u64,
    /// Main slots.
    pub main_slots: u64,
    /// Connections, counted as by [`ServerConfig::clients_max`](crate::ServerConfig::clients_max).
    pub clients: u64,
    /// The server's process id.
    pub pid: u64,
    /// The number of this server process among all that served this region.
    pub incarnation: u64,
    /// The number of this server process, among all servers of all tables: a random number, drawn at each start.
    /// Everything that a server counts since its start is of that process.
    pub launch: u64,
}

impl ServerStats {
    pub(crate) fn new(counts: IndexCounts, clients: u64, incarnation: u64, launch: u64) -> ServerStats {
        let IndexCounts { keys, inserts, updates, removes, moves, homings, waits, slots, main_slots } =
            counts;
        let pid = u64::from(std::process::id());
        ServerStats {
            keys,
            inserts,
            updates,
            removes,
            moves,
            homings,
            waits,
            slots,
            main_slots,
            clients,
            pid,
            incarnation,
            launch,
        }
    }
}

/// [`GrowthCounts`] in a reply. It is no longer than [`ServerStats`].
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct GrowthBody {
    segments: u32,
    segments_max: u32,
    splitting: u32,
    merging: u32,
    depth: u32,
    reserved: u32,
    load_min_ppm: u32,
    load_max_ppm: u32,
    splits: u64,
    merges: u64,
    given_up: u64,
    moved: u64,
    refused: u64,
    bytes_backed: u64,
    bytes_max: u64,
    bytes_returned: u64,
}

const _: () = assert!(size_of::<GrowthBody>() == 96 && size_of::<GrowthBody>() <= size_of::<ServerStats>());

impl From<GrowthCounts> for GrowthBody {
    fn from(counts: GrowthCounts) -> GrowthBody {
        let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        GrowthBody {
            segments: short(counts.segments),
            segments_max: short(counts.segments_max),
            splitting: short(counts.splitting),
            merging: short(counts.merging),
            depth: short(counts.depth),
            reserved: 0,
            load_min_ppm: short(counts.load_min_ppm),
            load_max_ppm: short(counts.load_max_ppm),
            splits: counts.splits,
            merges: counts.merges,
            given_up: counts.given_up,
            moved: counts.moved,
            refused: counts.refused,
            bytes_backed: counts.bytes_backed,
            bytes_max: counts.bytes_max,
            bytes_returned: counts.bytes_returned,
        }
    }
}

impl From<GrowthBody> for GrowthCounts {
    fn from(body: GrowthBody) -> GrowthCounts {
        GrowthCounts {
            segments: body.segments.into(),
            segments_max: body.segments_max.into(),
            depth: body.depth.into(),
            load_min_ppm: body.load_min_ppm.into(),
            load_max_ppm: body.load_max_ppm.into(),
            splitting: body.splitting.into(),
            merging: body.merging.into(),
            splits: body.splits,
            merges: body.merges,
            given_up: body.given_up,
            moved: body.moved,
            refused: body.refused,
            bytes_backed: body.bytes_backed,
            bytes_max: body.bytes_max,
            bytes_returned: body.bytes_returned,
        }
    }
}

/// [`LogStatus`] in a reply.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct LogBody {
    next: u64,
    written: u64,
    durable: u64,
    bytes: u64,
    syncs: u64,
    has_failed: u64,
}

/// The bytes are no [`LogBody`] that a server writes.
pub(super) struct NoLogBody;

impl From<LogStatus> for LogBody {
    fn from(log: LogStatus) -> LogBody {
        let LogStatus { next, written, durable, bytes, syncs, has_failed } = log;
        LogBody { next, written, durable, bytes, syncs, has_failed: has_failed.into() }
    }
}

impl TryFrom<LogBody> for LogStatus {
    type Error = NoLogBody;

    fn try_from(body: LogBody) -> Result<LogStatus, NoLogBody> {
        let LogBody { next, written, durable, bytes, syncs, has_failed } = body;
        let has_failed = match has_failed {
            0 => false,
            1 => true,
            2.. => return Err(NoLogBody),
        };
        Ok(LogStatus { next, written, durable, bytes, syncs, has_failed })
    }
}

/// Slow puts that a server remembers.
pub const SLOW_PUTS: usize = 5;
/// Bytes that the server remembers of such a put's key.
pub const SLOW_KEY_MAX: usize = 31;

/// A put that took long.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct SlowPut {
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    key_len: u8,
    key: [u8; SLOW_KEY_MAX],
}

impl Default for SlowPut {
    fn default() -> SlowPut {
        SlowPut::zeroed()
    }
}

impl SlowPut {
    pub(crate) fn new(key: &[u8], took_ns: u64) -> SlowPut {
        let len = key.len().min(SLOW_KEY_MAX);
        let mut slow = SlowPut { took_ns, key_len: len as u8, ..SlowPut::default() };
        slow.key[..len].copy_from_slice(&key[..len]);
        slow
    }

    /// The key, or the beginning of a long one.
    pub fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.key_len).min(SLOW_KEY_MAX)]
    }
}

/// The server's further counts and times, beside [`ServerStats`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct ServerTimes {
    /// Entries that came to their end and were removed, since the server began.
    pub expired: u64,
    /// How long the first of the entries that have ended and are still there has been due, in nanoseconds.
    pub expiry_lag_ns: u64,
    /// Requests for changes that were refused, for any cause.
    pub refused: u64,
    /// Changes that the follower who asked last had not seen yet.
    pub feed_lag: u64,
    /// Times that a follower was told of a gap.
    pub feed_gaps: u64,
    /// 1: the server takes the times of puts ([`ServerConfig::timed`](crate::ServerConfig::timed)). 0: the next fields
    /// are zeros.
    pub is_timed: u64,
    /// How long puts took.
    pub puts: TimeCounts,
    /// The slowest of the last ten seconds, the slowest first; the rest are zeros.
    pub slowest: [SlowPut; SLOW_PUTS],
}

/// What clients hold, or what is held for them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct HeldCounts {
    /// Puts that were started and not committed ([`StartCounts`]), each with a slot. They are no keys.
    pub started: u64,
    /// Slots that they may hold.
    pub started_max: u64,
    /// Bytes that they hold for values that do not fit their slots.
    pub started_heap_bytes: u64,
    /// Bytes that they may hold for such values.
    pub started_heap_bytes_max: u64,
    /// Puts that were given up since the server started, because their time was over.
    pub started_late: u64,
    /// Starts that were refused since then, because of a bound.
    pub started_refused: u64,
    /// Bytes of the server's memory that connections hold ([`ClientMemoryCounts`]).
    pub client_bytes: u64,
    /// Bytes that they may hold.
    pub client_bytes_max: u64,
    /// Connections that were ended because they held most when all together held too much.
    pub clients_ended: u64,
    /// Requests that wait at the server, each of another connection.
    pub parked: u64,
    /// Requests that may wait there.
    pub parked_max: u64,
}

impl HeldCounts {
    pub(crate) fn new(
        starts: StartCounts,
        clients: ClientMemoryCounts,
        [parked, parked_max]: [u64; 2],
    ) -> HeldCounts {
        let StartCounts { started, slots_max, heap_bytes, heap_bytes_max, late, refused } = starts;
        let ClientMemoryCounts { bytes, bytes_max, ended } = clients;
        HeldCounts {
            started,
            started_max: slots_max,
            started_heap_bytes: heap_bytes,
            started_heap_bytes_max: heap_bytes_max,
            started_late: late,
            started_refused: refused,
            client_bytes: bytes,
            client_bytes_max: bytes_max,
            clients_ended: ended,
            parked,
            parked_max,
        }
    }
}

/// The state of a server's snapshots. Times are in milliseconds since 1970.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[non_exhaustive]
pub struct SnapshotStatus {
    /// Time between snapshots in milliseconds. 0: the server makes none. `u64::MAX`: only on request,
    /// and when it stops.
    pub every_ms: u64,
    /// The server's number ([`ServerStats::launch`]): another server counts its own.
    pub launch: u64,
    /// Number of the last snapshot that was asked for. They are counted from 1 since the server started.
    pub asked: u64,
    /// Number of the last snapshot that was begun.
    pub begun: u64,
    /// Number of the last snapshot that has ended, made or not.
    pub finished: u64,
    /// Number of the last snapshot that was made. If it is below `finished`, the last one failed.
    pub saved: u64,
    /// Finished parts of a million of the present snapshot.
    pub progress_ppm: u64,
    /// Time up to which the last snapshot has every acknowledged change. 0: none was made yet.
    pub saved_ms: u64,
    /// How long the last snapshot took, in microseconds.
    pub took_us: u64,
    /// Keys in the last snapshot.
    pub keys: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// Time of the last failure. 0: none has failed yet.
    pub failed_ms: u64,
    /// [`SnapshotStatus::failure`] in numbers.
    pub failure: u64,
}

impl SnapshotStatus {
    /// Whether the server makes snapshots.
    pub fn is_on(&self) -> bool {
        self.every_ms != 0
    }

    /// Whether the snapshot has ended, made or not, for which `asked` is the answer to
    /// [`Client::ask_for_snapshot`](crate::Client::ask_for_snapshot). `None`: this status is of another server, which
    /// does not know that snapshot (I3). Ask again then.
    pub fn has_ended(&self, asked: &SnapshotStatus) -> Option<bool> {
        (self.launch == asked.launch).then_some(self.finished >= asked.asked)
    }

    /// The time between snapshots. `None`: only on request, and when the server stops; or not at all.
    pub fn every(&self) -> Option<Duration> {
        (self.is_on() && self.every_ms != u64::MAX).then(|| Duration::from_millis(self.every_ms))
    }

    /// The last failure: the step, and the error of the operating system.
    pub fn failure(&self) -> Option<(SaveStep, std::io::Error)> {
        let error = std::io::Error::from_raw_os_error(self.failure as u32 as i32);
        (self.failed_ms != 0).then(|| (SaveStep::from_number((self.failure >> 32) as u32), error))
    }
}
