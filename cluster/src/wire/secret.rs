//! What nodes and clients of a cluster must know, and how they prove that they do.

use hmac::{Hmac, KeyInit, Mac};
use oneread::Token;
use oneread::internals::proof::significant;
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The longest secret, in bytes.
pub const SECRET_MAX: usize = 256;

/// A cluster's secret: up to 256 bytes. It never travels over connections between nodes and clients. With the empty one,
/// whoever reaches a node may change everything: then only addresses of this host are listened at.
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
    /// These bytes. Zero bytes at the end of one of at most 64 bytes do not count, so one of only such bytes is the empty
    /// one.
    ///
    /// # Errors
    /// [`SecretError`], if there are too many.
    pub fn new(bytes: &[u8]) -> Result<Secret, SecretError> {
        match bytes.len() {
            ..=SECRET_MAX => Ok(Secret(Arc::new(Zeroizing::new(significant(bytes).to_vec())))),
            len => Err(SecretError(len)),
        }
    }

    /// Whether it is the empty one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What clients of nodes' tables show (`oneread`'s token): it follows from the secret, which does not follow from it.
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

    /// A proof that the secret is known, of these parts. Each is told from the next.
    pub fn proof(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether somebody else has proven it. Takes as long for each wrong one.
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
