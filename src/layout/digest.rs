//! What the slot of a key that does not fit it has (`long.rs`).

use super::WORD;
use super::extent::{REFERENCE_BYTES, Reference};
use super::hash::First;

/// Bytes of a digest.
pub(super) const DIGEST_BYTES: usize = 2 * WORD;
/// Bytes that a slot has for such a key, and for its value.
pub(crate) const LONG_KEY_BYTES: usize = DIGEST_BYTES + REFERENCE_BYTES;

/// What a slot has of a key that does not fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongKey {
    /// Two hashes of the key.
    pub(super) digest: [u64; 2],
    /// Where the key is, and its value.
    pub reference: Reference,
}

impl LongKey {
    /// What these bytes of a slot say. They may say anything.
    pub fn from_bytes(bytes: &[u8; LONG_KEY_BYTES]) -> LongKey {
        let (digest, reference) = bytes.split_at(DIGEST_BYTES);
        LongKey {
            digest: bytemuck::pod_read_unaligned(digest),
            reference: bytemuck::pod_read_unaligned(reference),
        }
    }

    /// The key's first hash.
    pub fn first(&self) -> First {
        First(self.digest[0])
    }
}
