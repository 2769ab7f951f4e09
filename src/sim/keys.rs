//! Keys by number.

/// The number of a key. The key's bytes follow from it.
pub type KeyNumber = u32;

/// Length of every key, in bytes.
pub const KEY_BYTES: usize = 8;

/// The bytes of a key.
pub fn key(number: KeyNumber) -> [u8; KEY_BYTES] {
    (u64::from(number) << 32 | 0xabcd_ef01).to_le_bytes()
}

pub(super) fn number_of(bytes: &[u8]) -> KeyNumber {
    let bytes = bytes.try_into().expect("a key of this module's");
    (u64::from_le_bytes(bytes) >> 32) as KeyNumber
}
