//! TLS beneath the frames over TCP, by the library rustls.
//!
//! TLS stands between frames and socket and changes neither: the token is asked for inside it, as without. It hides
//! from whoever carries the bytes what they are, and each side can show a certificate for who it is
//! (docs/SECURITY.md).
//!
//! The cargo feature `tls` brings it (`session.rs`). Without it nobody can make a [`ClientTls`] or a [`ServerTls`]
//! (`absent.rs`), and the compiler leaves out what a side would do with one. All other code is the same with and
//! without the feature.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod error;
#[cfg(feature = "tls")]
mod failed;
#[cfg(feature = "tls")]
mod lifetime;
#[cfg(feature = "tls")]
mod session;

#[cfg(not(feature = "tls"))]
pub use absent::{ClientTls, ServerTls};
#[cfg(not(feature = "tls"))]
pub(crate) use absent::{TlsSession, is_of_tls, mend};
#[cfg(feature = "tls")]
pub use error::TlsError;
#[cfg(feature = "tls")]
pub(crate) use failed::{is_of_tls, mend};
#[cfg(feature = "tls")]
pub(crate) use session::TlsSession;
#[cfg(feature = "tls")]
pub use session::{ClientTls, ServerTls};

/// Whether these are the first bytes of a peer that speaks TLS: a record of its handshake, or an alert.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    const MAJOR: u8 = 3;
    matches!(bytes, [ALERT | HANDSHAKE, MAJOR, ..])
}
