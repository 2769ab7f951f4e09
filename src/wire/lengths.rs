//! The longest requests and replies. They determine the sizes of buffers, messages and cells.

#[cfg(feature = "verbs")]
use super::counts::ServerTimes;
use super::counts::{ServerStats, SnapshotStatus};
use super::frame::HEAD;
use super::request::Request;
use crate::layout::geometry::Geometry;
use crate::part::{PartChange, Tell};

/// The longest value that travels in one frame, in bytes. For a table with shorter values, it is the table's longest. A
/// reply with it is 4 KiB long, so it fits a datagram, too.
pub const FRAME_VALUE_MAX: usize = 4096 - HEAD;

/// Longest body of a reply without a value.
const COUNTS_BYTES: usize = {
    let (stats, status) = (size_of::<ServerStats>(), size_of::<SnapshotStatus>());
    if stats > status { stats } else { status }
};

/// Bytes of a change of a part before its key: its head, and a bound. A change of a counter has as many bytes more as
/// its value.
const PART_BYTES: usize = 8;

/// Bytes of an addition to a number before its key: the head, what is added, what an absent key counts as, its time.
const INCREMENT_BYTES: usize = 28;

/// Bytes of a put with a time to live before its key: mode, time, length of the key.
const PUT_FOR_BYTES: usize = 12;

/// Longest value that travels in one frame to or from a table of this geometry, in bytes.
pub fn frame_value_max(geometry: &Geometry) -> usize {
    FRAME_VALUE_MAX.min(geometry.value_max())
}

/// Longest request for a table of this geometry, in bytes. (Over a socket, pieces of uploads may be longer.)
pub fn request_bytes_max(geometry: &Geometry) -> usize {
    // A compare-and-swap: two lengths, a key, two values. If values are short, an append, or a put with a time to live.
    let value_max = frame_value_max(geometry);
    let one_value = if geometry.has_life() { PUT_FOR_BYTES } else { PART_BYTES };
    let two_values = 2 * size_of::<u16>() + 2 * value_max;
    HEAD + geometry.key_max() + two_values.max(one_value + value_max).max(INCREMENT_BYTES)
}

/// Longest reply for a table of this geometry, in bytes.
pub fn reply_bytes_max(geometry: &Geometry) -> usize {
    HEAD + COUNTS_BYTES.max(frame_value_max(geometry))
}

/// Longest reply to this request, in bytes.
#[cfg(feature = "verbs")]
pub(crate) fn reply_bytes_max_to(request: &Request<'_>, geometry: &Geometry) -> usize {
    match request {
        Request::Times => HEAD + size_of::<ServerTimes>(),
        request if tells_value(request) => reply_bytes_max(geometry),
        _ => HEAD + COUNTS_BYTES,
    }
}

/// Whether the reply may have a value as long as a frame takes.
fn tells_value(request: &Request<'_>) -> bool {
    match request {
        Request::Get { .. } => true,
        Request::Part { part: PartChange::Add { .. } | PartChange::Increment { .. }, .. }
        | Request::Part { tell: Tell::Nothing, .. } => false,
        Request::Part { .. } => true,
        _ => false,
    }
}

/// The longest value in a request or reply through a mailbox, in bytes: one that fits its slot. Requests with longer
/// ones go as messages, so that a mailbox does not grow with the table's longest value.
fn cell_value_max(geometry: &Geometry) -> usize {
    frame_value_max(geometry).min(geometry.shape().payload_max())
}

/// Longest request, and longest reply, that go through a mailbox, in bytes.
pub(crate) fn cell_frames_max(geometry: &Geometry) -> (usize, usize) {
    let value_max = cell_value_max(geometry);
    (HEAD + 2 * size_of::<u16>() + geometry.key_max() + 2 * value_max, HEAD + COUNTS_BYTES.max(value_max))
}

/// Whether a request that the table takes fits a cell of a mailbox, and so does its reply.
pub(crate) fn fits_cells(request: &Request<'_>, geometry: &Geometry) -> bool {
    let longest = match request {
        // Cells have room for two values.
        Request::Put { value, options, .. } if options.ttl.is_some() => value.len().max(PUT_FOR_BYTES - 4),
        Request::Put { value, .. } | Request::SwapExtent { value, .. } => value.len(),
        Request::Swap { expected, value, .. } => expected.len().max(value.len()),
        // Their replies are as long as a message.
        Request::Feed(_) | Request::Times => return false,
        request if tells_value(request) => frame_value_max(geometry),
        Request::RemoveIf { expected, .. } => expected.bytes().len(),
        Request::Part { part: PartChange::Increment { .. }, .. } => INCREMENT_BYTES.div_ceil(2) - 2,
        Request::Touch { .. } => 8,
        Request::Part { part, .. } => part.bytes().len().max(PART_BYTES / 2),
        Request::PutPiece { bytes, .. } => bytes.len().max(16),
        Request::PutStart { .. } | Request::PutCommit { .. } | Request::PutAbort { .. } => 8,
        _ => 0,
    };
    longest <= cell_value_max(geometry)
}
