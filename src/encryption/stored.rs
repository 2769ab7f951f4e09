//! The bytes of a stored value, and what can be wrong with them.

use std::io;

/// The first byte of a stored value: how the rest is to be read.
pub(super) const VERSION: u8 = 1;
pub(super) const NONCE_BYTES: usize = 24;
pub(super) const TAG_BYTES: usize = 16;
/// What stands before the ciphertext.
pub(super) const HEAD_BYTES: usize = 1 + NONCE_BYTES;

/// How many bytes longer a value is encrypted.
pub(super) const OVERHEAD: usize = HEAD_BYTES + TAG_BYTES;

/// Why a value could not be encrypted. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncryptError {
    /// The system has no random bytes for a nonce.
    #[error(
        "the system has no random bytes to encrypt a value with; try again when it has started up (getrandom(2))"
    )]
    Nonce {
        /// The operating system's answer.
        source: io::Error,
    },
    /// No table takes such a value, nor does the cipher.
    #[error("a value of {given} bytes is too long to be encrypted; store it in parts")]
    Length {
        /// Length given.
        given: usize,
    },
}

/// Why a stored value could not be decrypted. Nothing of it was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecryptError {
    /// It is shorter than any encrypted value.
    #[error(
        "the value is {given} bytes long, an encrypted one at least {}: it was put without encryption, or cut; read it without a secret key, or put it again",
        OVERHEAD
    )]
    Length {
        /// Its length.
        given: usize,
    },
    /// It begins with another version than this library's.
    #[error(
        "the value was put without encryption, or by a later oneread: it begins with byte {version}, an encrypted one with {VERSION}; read it without a secret key, or with the oneread that put it"
    )]
    Version {
        /// Its first byte.
        version: u8,
    },
    /// It does not authenticate.
    #[error(
        "the value does not decrypt: it was put with another secret key, in another namespace, under another key of the table, or without encryption; or it was altered; give the secret key and namespace that it was put with"
    )]
    Altered,
}
