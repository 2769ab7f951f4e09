//! Keys that do not fit their slots (F).
//!
//! Such a key stands in an extent, in front of its value. The slot has the key's length, a *digest* of it, and the
//! reference to the extent:
//!
//! ```text
//! 0..8     first    u64  first hash of the key: it decides where the key is, as of any key
//! 8..16    check    u64  another hash of the key, with seeds of its own
//! 16..40   reference     of the extent: the whole key, then the value (`extent.rs`)
//! ```
//!
//! Two keys may have one digest. So whoever finds a digest compares the whole key (F1).

use super::digest::{DIGEST_BYTES, LONG_KEY_BYTES, LongKey};
use super::extent::Reference;
use super::geometry::Geometry;
use super::hash::Hashed;
use super::slot::Stored;
use crate::faults::{Rule, broken};

impl LongKey {
    /// Whether this may be the key, by its digest. The length is compared elsewhere.
    pub fn may_be(&self, geometry: &Geometry, key: Hashed<'_>) -> bool {
        // The other hash takes longer.
        self.digest[0] == key.first().0 && self.digest == geometry.digest(key)
    }
}

/// Where an extent is, as the slot of its key has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotReference {
    bytes: [u8; LONG_KEY_BYTES],
    /// Where it begins: the digest is of a key that does not fit its slot.
    from: usize,
}

impl SlotReference {
    /// What the slot has.
    pub fn stored(&self) -> Stored<'_> {
        Stored::in_heap(&self.bytes[self.from..])
    }
}

impl Geometry {
    /// The digest of a key.
    fn digest(&self, key: Hashed<'_>) -> [u64; 2] {
        let check = if broken(Rule::WideDigest) { 0 } else { self.seeds().check(key.key()) };
        [key.first().0, check]
    }

    /// What the slot of this key has, to name this extent.
    pub(crate) fn slot_reference(&self, key: &[u8], reference: Reference) -> SlotReference {
        let mut bytes = [0; LONG_KEY_BYTES];
        bytes[DIGEST_BYTES..].copy_from_slice(&reference.to_bytes());
        if !self.is_long(key) {
            return SlotReference { bytes, from: DIGEST_BYTES };
        }
        bytes[..DIGEST_BYTES].copy_from_slice(bytemuck::bytes_of(&self.digest(self.hashed(key))));
        SlotReference { bytes, from: 0 }
    }

    /// Bytes of the key that its slot has.
    pub(crate) fn slot_key_bytes(&self, key: &[u8]) -> usize {
        if self.is_long(key) { 0 } else { key.len() }
    }

    /// Bytes of the key in front of the value, in an extent of this key.
    #[inline(always)]
    pub(crate) fn bytes_before_value(&self, key: &[u8]) -> usize {
        if self.is_long(key) { key.len() } else { 0 }
    }
}

/// A key that a GET looks for.
#[derive(Clone, Copy, Debug)]
pub struct SoughtKey<'a> {
    /// The key.
    pub key: Hashed<'a>,
    /// Extents that have the same digest, and are other keys' (F2): their numbers.
    pub others: &'a [u64],
}

impl SoughtKey<'_> {
    /// Whether a slot with this may be the key's. The length is compared elsewhere.
    pub(crate) fn may_be(&self, geometry: &Geometry, long: &LongKey) -> bool {
        geometry.is_long(self.key.key())
            && long.may_be(geometry, self.key)
            && !self.others.contains(&long.reference.number)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::hash::Seeds;
    use crate::layout::slot::{Content, Identity, check, encode};

    /// These bytes are part of the format: a digest, and a reference behind it, where the key would stand. The slot has
    /// the key's own length.
    #[test]
    fn bytes_of_a_long_key() {
        let config =
            Config { size: TableSize::Slots(8), seeds: Some(Seeds::from_number(1)), ..Config::new() };
        let geometry = config.key_inline(24).inline_max(24).geometry().unwrap();
        let key = [b'k'; 100];
        assert!(geometry.is_long(&key) && !geometry.is_long(&key[..24]) && geometry.is_long(&key[..25]));
        let reference = Reference { number: 0x0102, offset: 0x0304, len: 105, crc: 0x0506 };
        let named = geometry.slot_reference(&key, reference);
        let identity = Identity { generation: 3, index: 77 };
        let content = Content { key: &key, value: named.stored(), ghost: 5, aux: 6 };
        let image = encode(geometry.shape(), identity, 2, &content);
        let view = check(geometry.shape(), identity, &image).unwrap();
        let (first, second) = (geometry.hashed(&key).first(), geometry.seeds().check(&key));
        assert_eq!(
            &image[1..],
            [100 | 5 << 8 | 0x8028 << 16 | 6 << 32, first.0, second, 0x0102, 0x0304, 105 | 0x0506 << 32, 0]
        );
        let long = view.long_key().unwrap();
        assert_eq!((long.reference, long.first(), view.reference()), (reference, first, Some(reference)));
        assert!(view.key().is_empty() && !view.holds(&key) && view.header().key_bytes() == 0);
        // Keys that differ in one byte have another digest in both of its halves.
        assert!(long.may_be(&geometry, geometry.hashed(&key)));
        for at in 0..key.len() {
            let mut other = key;
            other[at] ^= 1;
            let hashed = geometry.hashed(&other);
            assert!(hashed.first() != first && geometry.seeds().check(&other) != second, "{at}");
            assert!(!long.may_be(&geometry, hashed));
        }
        // A key that stands in its slot is never one with this digest, whatever its bytes are.
        let others = [reference.number];
        let wanted = |key, others| SoughtKey { key: geometry.hashed(key), others };
        assert!(
            wanted(&key, &[]).may_be(&geometry, &long) && !wanted(&key, &others).may_be(&geometry, &long)
        );
        assert!(!wanted(&key[..24], &[]).may_be(&geometry, &long));
    }
}
