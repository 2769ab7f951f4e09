//! Frames: a head, and the bytes of a body.

use bytemuck::{Pod, Zeroable};
use std::time::Duration;

/// Version of the control protocol.
pub const PROTOCOL_VERSION: u32 = 2;
/// The *level* of requests that this version knows beyond the first ones of its protocol
/// ([`Request::level`](super::Request::level)). A server's welcome has its level; a server that knows none has 0.
pub const LEVEL: u16 = 8;

/// Longest body, in bytes: longer than any key and value with their lengths.
pub const BODY_MAX: usize = 1 << 16;
/// Longest piece of a value that is uploaded over a socket. Elsewhere it is [`FRAME_VALUE_MAX`](super::FRAME_VALUE_MAX).
pub(crate) const SOCKET_PIECE_MAX: usize = 60 << 10;
/// Bytes of a head.
pub(super) const HEAD: usize = size_of::<FrameHead>();

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FrameHead {
    body_len: u32,
    op: u16,
    /// Of a reply. Of a request: its client's patience, in milliseconds ([`Frame::patience`]).
    status: u16,
    id: u64,
}

/// Why bytes are not a valid frame. The connection that they came from is of no further use.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// The announced body is longer than any frame's.
    #[error("a frame of {given} bytes was announced, the longest is {BODY_MAX}")]
    TooLong {
        /// Length announced.
        given: u32,
    },
    /// An operation or status this version does not know.
    #[error("unknown operation {op} with status {status}")]
    Unknown {
        /// The operation.
        op: u16,
        /// The status.
        status: u16,
    },
    /// A body that does not fit its operation.
    #[error("operation {op} with an unfitting body of {len} bytes")]
    Body {
        /// The operation.
        op: u16,
        /// Length of the body.
        len: usize,
    },
    /// A message that ends within a frame.
    #[error("half a frame")]
    Half,
    /// A reply to another request than the one that is due.
    #[error("a reply to request {given} instead of {due}")]
    Order {
        /// The number of the request that was answered.
        given: u64,
        /// The number of the request whose reply is due.
        due: u64,
    },
}

/// A decoded frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    op: u16,
    status: u16,
    /// Number of the request.
    pub id: u64,
    body: &'a [u8],
    /// Bytes that the frame takes in the buffer.
    pub length: usize,
}

impl<'a> Frame<'a> {
    /// How long the client of a request lets it wait for memory of a long value. Zero: it does not say, as clients of
    /// earlier versions; then it is not to wait.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.status.into())
    }

    pub(super) fn op(&self) -> u16 {
        self.op
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn body(&self) -> &'a [u8] {
        self.body
    }
}

/// Decodes the first frame in `bytes`. `None` when more bytes are needed.
///
/// # Errors
/// [`WireError::TooLong`].
pub fn decode(bytes: &[u8]) -> Result<Option<Frame<'_>>, WireError> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return Ok(None) };
    let head: FrameHead = bytemuck::pod_read_unaligned(head);
    let length = head.body_len as usize;
    if length > BODY_MAX {
        return Err(WireError::TooLong { given: head.body_len });
    }
    Ok(rest.get(..length).map(|body| Frame {
        op: head.op,
        status: head.status,
        id: head.id,
        body,
        length: HEAD + length,
    }))
}

/// Appends a frame with the parts of its body.
pub(super) fn encode(out: &mut Vec<u8>, op: u16, status: u16, id: u64, body: &[&[u8]]) {
    let body_len = body.iter().map(|part| part.len()).sum::<usize>();
    debug_assert!(body_len <= BODY_MAX);
    out.extend_from_slice(bytemuck::bytes_of(&FrameHead { body_len: body_len as u32, op, status, id }));
    body.iter().for_each(|part| out.extend_from_slice(part));
}

/// Notes this patience in the frame of a request at `start`.
pub(super) fn set_patience(out: &mut [u8], start: usize, patience: Duration) {
    let milliseconds = u16::try_from(patience.as_millis()).unwrap_or(u16::MAX);
    let at = start + std::mem::offset_of!(FrameHead, status);
    out[at..at + size_of::<u16>()].copy_from_slice(&milliseconds.to_le_bytes());
}

/// Appends the head of a frame whose body is appended afterwards. Returns where the frame begins.
pub(super) fn begin(out: &mut Vec<u8>, op: u16, status: u16, id: u64) -> usize {
    let start = out.len();
    encode(out, op, status, id, &[]);
    start
}

/// Writes the length of the body into the head of the frame at `start`. The body ends with `out`.
pub(super) fn end(out: &mut [u8], start: usize) {
    let body_len = out.len() - start - HEAD;
    debug_assert!(body_len <= BODY_MAX);
    out[start..start + size_of::<u32>()].copy_from_slice(&(body_len as u32).to_le_bytes());
}
