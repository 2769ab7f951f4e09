//! The control protocol: frames for everything that is not a one-sided GET.
//!
//! ```text
//! 0..4    length of the body, bytes (at most 64 KiB)
//! 4..6    operation (request) or reply
//! 6..8    status of a reply, 0 in a request
//! 8..16   number of the request, repeated in its reply
//! 16..    body
//! ```
//!
//! The first request is `Hello`, with magic and protocol version. Its reply, `Welcome`, carries a descriptor of the
//! region that can only be mapped for reading, and the level of requests that this server knows ([`LEVEL`]): a client
//! sends it no others. After that, requests may be pipelined. Replies come in the order of the requests.
//!
//! A client may ask for a [mailbox](crate::server::ServerConfig::mailbox_bytes_max) with the request `Mailbox`. Its
//! reply carries the descriptor of memory that both sides may write. From then on each request goes through that memory
//! or, as before, over the socket. Either side may send a frame `Wake`, which has no reply. It wakes the other side:
//! something is in the memory.
//!
//! A value of more than [`FRAME_VALUE_MAX`] bytes, or of more than the table's longest, does not travel in one frame.
//! It is *uploaded*: `UploadBegin` has its key and length, `UploadPiece`s bring its bytes in order, and `UploadPut` or
//! `UploadSwap` puts it. Each has a reply, and they may be pipelined with each other and with other requests. A
//! connection has one upload at a time. `UploadDrop`, another `UploadBegin`, and the end of the connection drop it.
//! When an upload was refused, its further requests are answered `Unfit`, and so are requests that belong to no upload.
//!
//! Over TCP only bytes travel, and the hello alone lets no client in. Its reply is a `Challenge`, with a number that is
//! used once. The client answers with `Join`: a number of its own, and the proof that it knows the server's token
//! ([`proof`](crate::wire::proof)). The reply to that is `Table`: the server's proof, its level, and the words of the
//! superblock. GETs go as `Gets`, with many keys each ([`gets`]).
//!
//! The decoder accepts any bytes. It returns a frame, asks for more bytes, or says what is wrong.

mod counts;
mod feed;
mod frame;
mod gets;
mod lengths;
pub(crate) mod proof;
mod refusal;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use counts::{HeldCounts, ServerStats, ServerTimes, SlowPut, SnapshotStatus};
pub(crate) use counts::{SLOW_KEY_MAX, SLOW_PUTS};
pub use feed::FeedRefusal;
pub(crate) use feed::{
    ChangedBody, ChangedWriter, FeedReply, FeedRequest, ScannedBody, ScannedWriter, SentKey, SentValue,
    feed_room,
};
pub(crate) use frame::SOCKET_PIECE_MAX;
pub use frame::{BODY_MAX, Frame, LEVEL, PROTOCOL_VERSION, WireError, decode};
pub use gets::{Found, GetsRequest, GotReply, KeysWriter, Wants, split_entry};
pub(crate) use gets::{GotWriter, encode_bits};
#[cfg(feature = "verbs")]
pub(crate) use lengths::reply_bytes_max_to;
pub use lengths::{FRAME_VALUE_MAX, frame_value_max, reply_bytes_max, request_bytes_max};
pub(crate) use lengths::{cell_frames_max, fits_cells};
pub use refusal::Refusal;
pub use reply::{Reply, TableBytes, replies};
#[cfg(all(test, not(loom)))]
pub(crate) use request::ROWS;
pub(crate) use request::{HELLO_BYTES, JOIN_BYTES};
pub use request::{Request, RequestRow, Right};
