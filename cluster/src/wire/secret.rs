//! The secret that nodes and clients of a cluster share, and proofs of knowing it.

use hmac::{Hmac, KeyInit, Mac};
use oneread::Token;
use oneread::internals::proof::significant;
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The longest secret, in bytes.
pub const SECRET_MAX: usize = 256;

/// A cluster's secret: up to 256 bytes. It never travels over connections between nodes and clients. With the empty
/// secret, anybody who reaches a node may change everything: then nodes listen only at addresses of this host.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

/// A secret is too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cluster's secret has at most {SECRET_MAX} bytes, and this one has {0}")]
pub struct SecretError(usize);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Secret(empty)" } else { "Secret(..)" })
    }
}

impl Secret {
    /// A secret of these bytes. Zero bytes at the end of a secret of at most 64 bytes do not count, so a secret of zero
    /// bytes is the empty one.
    ///
    /// # Errors
    /// [`SecretError`], if there are too many.
    pub fn new(bytes: &[u8]) -> Result<Secret, SecretError> {
        match bytes.len() {
            ..=SECRET_MAX => Ok(Secret(Arc::new(Zeroizing::new(significant(bytes).to_vec())))),
            len => Err(SecretError(len)),
        }
    }

    /// Whether the secret is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The token of clients of nodes' tables (`oneread`'s token). It follows from the secret, but the secret does not
    /// follow from it.
    pub fn token(&self) -> Token {
        if self.is_empty() {
            return Token::default();
        }
        let hex = self
            .proof(&[b"oneread cluster table"])
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        Token::new(hex)
    }

    /// A proof of knowing the secret, over these parts. Their boundaries count.
    pub fn proof(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether this is a proof of these parts. The time that this takes does not depend on what is wrong.
    pub fn proves(&self, parts: &[&[u8]], proof: &[u8; 32]) -> bool {
        self.mac(parts).verify_slice(proof).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length is a key");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}
