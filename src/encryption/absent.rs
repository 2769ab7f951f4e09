//! What stands for the cipher in a build without the feature `encryption`.

use super::stored::{DecryptError, EncryptError, OVERHEAD};
use std::convert::Infallible;

/// Encrypts values, and decrypts them. This build has no cipher, so there is no such thing to be had: the cargo
/// feature `encryption` adds `Encryption::new`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption(Infallible);

impl Encryption {
    /// How many bytes longer a value is encrypted: version, nonce and tag. A table whose `value_max`
    /// is `n` takes values of up to `n - OVERHEAD` bytes.
    pub const OVERHEAD: usize = OVERHEAD;

    pub(crate) fn encrypt(&self, _: &[u8], _: &[u8]) -> Result<Vec<u8>, EncryptError> {
        match self.0 {}
    }

    pub(crate) fn encrypt_onto(&self, _: &[u8], _: &[u8], _: &mut Vec<u8>) -> Result<(), EncryptError> {
        match self.0 {}
    }

    pub(crate) fn decrypt_in_place(&self, _: &[u8], _: &mut Vec<u8>) -> Result<(), DecryptError> {
        match self.0 {}
    }
}
