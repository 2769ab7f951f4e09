//! Keys by number.

use crate::layout::WORD;

/// The number of a key. The key's bytes follow from it.
pub type KeyNumber = u32;

/// Keys from this number on have two words. Keys below have one.
const TWO_WORDS: KeyNumber = 1 << 31;

/// The longest key, in bytes, below [`TWO_WORDS`] and from there on.
pub(super) const KEY_BYTES: [usize; 2] = [WORD, 2 * WORD];

/// The word that tells nothing of the key.
const FILLING: [u8; WORD] = [0xa7; WORD];

/// The number of the `n`th key, if every other key has two words. They all share the first one, or the
/// second, half of them each.
pub fn mixed(n: KeyNumber) -> KeyNumber {
    if n.is_multiple_of(2) { n } else { n | TWO_WORDS }
}

/// The bytes of a key.
pub fn key(number: KeyNumber) -> Vec<u8> {
    let word = (u64::from(number) << 32 | 0xabcd_ef01).to_le_bytes();
    match number {
        0..TWO_WORDS => word.to_vec(),
        _ if number & 2 == 0 => [FILLING, word].concat(),
        _ => [word, FILLING].concat(),
    }
}

pub(super) fn number_of(bytes: &[u8]) -> KeyNumber {
    let (words, _) = bytes.as_chunks();
    let word = words.iter().find(|word| **word != FILLING).expect("a key of this module's");
    (u64::from_le_bytes(*word) >> 32) as KeyNumber
}
