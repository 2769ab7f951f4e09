//! Digests of blocks, as keys of a table.

use crate::error::DigestError;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::borrow::Cow;
use std::hash::Hasher;

/// Bytes of a key: every digest becomes one of these.
pub const KEY_BYTES: usize = 16;

/// A digest as a key.
pub type Key = [u8; KEY_BYTES];

/// The widths that digests may have.
pub const WIDTHS: [usize; 4] = [8, 16, 32, 36];

/// Digests of blocks, in the order of the prompt.
///
/// | given | key | two of n blocks have the same key |
/// |---|---|---|
/// | 16 bytes | the bytes themselves; a buffer of them is not copied | as their hash function has it |
/// | 8 bytes | the bytes, then zeros | with n²/2⁶⁵: of 100 million, 1 in 3,700 |
/// | 32 or 36 bytes | SipHash-1-3 of 128 bits | with n²/2¹²⁹ |
/// | text of any length | the same, with a secret of the caller's | the same |
///
/// Two digests with one key are one block to an index. So data that matters should tell its own digest. Who can
/// choose texts freely can look for collisions, unless he does not know the secret. All clients of a table need the
/// same one.
#[derive(Clone, Debug)]
pub struct Digests<'a>(Cow<'a, [Key]>);

impl<'a> Digests<'a> {
    /// Digests of `width` bytes, one behind the other. Those of 16 bytes are used where they are; others are copied.
    ///
    /// # Errors
    /// [`DigestError`] for another width, and for bytes behind the last digest.
    pub fn packed(bytes: &'a [u8], width: usize) -> Result<Digests<'a>, DigestError> {
        if !WIDTHS.contains(&width) {
            return Err(DigestError::Width { given: width });
        }
        if !bytes.len().is_multiple_of(width) {
            return Err(DigestError::Length { bytes: bytes.len(), width });
        }
        if width == KEY_BYTES {
            return Ok(Digests(Cow::Borrowed(bytes.as_chunks().0)));
        }
        Ok(Digests(bytes.chunks_exact(width).map(of_digest).collect()))
    }

    /// Digests of one width, each in a slice of its own.
    ///
    /// # Errors
    /// [`DigestError`] for a width that is none, or another one than the first digest has.
    pub fn slices<D: AsRef<[u8]>>(digests: &[D]) -> Result<Digests<'a>, DigestError> {
        let width = digests.first().map_or(KEY_BYTES, |first| first.as_ref().len());
        if !WIDTHS.contains(&width) {
            return Err(DigestError::Width { given: width });
        }
        let key = |(number, digest): (usize, &D)| match digest.as_ref() {
            digest if digest.len() == width => Ok(of_digest(digest)),
            other => Err(DigestError::Mixed { number, given: other.len(), width }),
        };
        Ok(Digests(digests.iter().enumerate().map(key).collect::<Result<_, _>>()?))
    }

    /// Numbers of 64 bits, as digests of 8 bytes.
    pub fn numbers(numbers: &[u64]) -> Digests<'a> {
        Digests(numbers.iter().map(|number| of_digest(&number.to_ne_bytes())).collect())
    }

    /// Texts of any length. `secret` is the same for all clients of a table.
    pub fn texts<T: AsRef<[u8]>>(texts: &[T], secret: &[u8; 16]) -> Digests<'a> {
        Digests(texts.iter().map(|text| hashed(text.as_ref(), secret)).collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys.
    pub fn keys(&self) -> &[Key] {
        &self.0
    }
}

/// Digests of 16 bytes, used where they are.
impl<'a> From<&'a [Key]> for Digests<'a> {
    fn from(keys: &'a [Key]) -> Digests<'a> {
        Digests(Cow::Borrowed(keys))
    }
}

/// The key of a digest of one of the widths.
fn of_digest(digest: &[u8]) -> Key {
    match digest.len() {
        length @ ..=KEY_BYTES => {
            let mut key = [0; KEY_BYTES];
            key[..length].copy_from_slice(digest);
            key
        }
        _ => hashed(digest, &[0; 16]),
    }
}

/// The key of bytes of any length.
pub(crate) fn hashed(bytes: &[u8], secret: &[u8; 16]) -> Key {
    let mut hasher = SipHasher13::new_with_key(secret);
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each form of the same digests gives the same keys; those of 16 bytes are not copied.
    #[test]
    fn forms_agree() {
        for width in WIDTHS {
            let bytes: Vec<u8> = (0..3 * width).map(|n| n as u8).collect();
            let packed = Digests::packed(&bytes, width).unwrap();
            let slices: Vec<&[u8]> = bytes.chunks(width).collect();
            assert_eq!(packed.keys(), Digests::slices(&slices).unwrap().keys(), "{width}");
            assert_eq!(packed.len(), 3);
            assert_eq!(matches!(packed.0, Cow::Borrowed(_)), width == KEY_BYTES);
            let different: std::collections::HashSet<_> = packed.keys().iter().collect();
            assert_eq!(different.len(), 3, "{width}");
        }
        let (one, other) = ([1; 16], [2; 16]);
        assert_eq!(Digests::texts(&["model/a"], &one).keys(), Digests::texts(&[b"model/a"], &one).keys());
        assert_ne!(Digests::texts(&["model/a"], &one).keys(), Digests::texts(&["model/a"], &other).keys());
        assert!(Digests::slices::<&[u8]>(&[]).unwrap().is_empty());
    }

    /// A hash that clients of all versions must agree on.
    #[test]
    fn hashes_stay_as_they_are() {
        let key = Digests::packed(&[7; 32], 32).unwrap().keys()[0];
        assert_eq!(u128::from_le_bytes(key), HASH_OF_SEVENS);
    }

    const HASH_OF_SEVENS: u128 = 31_287_573_427_854_900_102_814_026_956_297_011_757;

    /// What is no digest is refused by name.
    #[test]
    fn wrong_widths_are_refused() {
        assert_eq!(Digests::packed(&[0; 24], 12).unwrap_err(), DigestError::Width { given: 12 });
        assert_eq!(Digests::packed(&[0; 24], 0).unwrap_err(), DigestError::Width { given: 0 });
        assert_eq!(Digests::packed(&[0; 24], 16).unwrap_err(), DigestError::Length { bytes: 24, width: 16 });
        assert_eq!(Digests::slices(&[[0u8; 9]]).unwrap_err(), DigestError::Width { given: 9 });
        let mixed: [&[u8]; 2] = [&[0; 8], &[0; 16]];
        let error = DigestError::Mixed { number: 1, given: 16, width: 8 };
        assert_eq!(Digests::slices(&mixed).unwrap_err(), error);
    }
}
