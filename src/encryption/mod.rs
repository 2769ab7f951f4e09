//! Values that only clients with a key can read. They are encrypted before they are sent and
//! decrypted after they were read: the server, and whoever reads the region, sees ciphertext.
//!
//! docs/FORMAT.md has the bytes of a stored value, docs/SECURITY.md says what this protects. The
//! cipher is XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03): its nonces are long enough to be drawn
//! at random by clients that know nothing of each other. (2^80 values under one key: a repeated nonce
//! with probability 2^-33.)
//!
//! The cargo feature of this name brings the cipher (`xchacha.rs`). Without it nobody can make an
//! [`Encryption`] (`absent.rs`): an `Option` of it takes no memory, and the compiler leaves out what a client
//! would do with one. All other code is the same with and without the feature.

#[cfg(not(feature = "encryption"))]
mod absent;
mod stored;
#[cfg(feature = "encryption")]
mod xchacha;

#[cfg(not(feature = "encryption"))]
pub use absent::Encryption;
pub use stored::{DecryptError, EncryptError};
#[cfg(feature = "encryption")]
pub use xchacha::Encryption;
