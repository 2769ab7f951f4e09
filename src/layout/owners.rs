//! What hides all entries of an owner at once: behind the undo lines, in tables that ask for it.
//!
//! ```text
//! mask      8 KiB     bit n: the entries of owner n are hidden (O1)
//! times     64 KiB    byte n: how long owner n may be away; for the next server
//! tenures   512 KiB   word n: which owner has the number n; for the next server (I4)
//! ```
//!
//! Readers load words of the mask. The rest is the server's own.

use super::WORD;
use std::time::Duration;

/// The number of owners that there can be, and of bits in the mask.
const OWNERS: usize = 1 << 16;
/// The highest number of an owner.
pub const OWNER_MAX: u16 = u16::MAX - 1;
/// Whose entries are not committed: always hidden.
pub(crate) const NOT_COMMITTED: u16 = u16::MAX;
/// Bytes of the mask.
const MASK_BYTES: usize = OWNERS / 8;
/// Bytes of mask, times and tenures.
pub(crate) const OWNERS_BYTES: u64 = (MASK_BYTES + OWNERS + OWNERS * WORD) as u64;
/// Words of the mask.
pub(crate) const MASK_WORDS: usize = MASK_BYTES / WORD;

/// The word of the mask that has the owner's bit.
#[inline]
pub(super) fn mask_word(owner: u16) -> usize {
    usize::from(owner) / u64::BITS as usize
}

/// The owner's bit in that word.
#[inline]
pub(crate) fn bit(owner: u16) -> u64 {
    1 << (u32::from(owner) % u64::BITS)
}

/// The word, from the mask's first on, that has the owner's time.
pub(super) fn time_word(owner: u16) -> usize {
    MASK_WORDS + usize::from(owner) / WORD
}

/// The word, from the mask's first on, that has the owner's tenure; 0: nobody has the number.
pub(super) fn tenure_word(owner: u16) -> usize {
    MASK_WORDS + OWNERS / WORD + usize::from(owner)
}

/// The word with this time. It is kept as a power of two of milliseconds, and comes back no shorter.
pub(crate) fn with_time(word: u64, owner: u16, time: Option<Duration>) -> u64 {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX >> 1).saturating_add(1);
    let byte = time.map_or(0, |time| 1 + millis(time).next_power_of_two().ilog2());
    word & !(0xff << shift(owner)) | u64::from(byte) << shift(owner)
}

/// The time that the word says. `None` if it says none.
pub(crate) fn time_in(word: u64, owner: u16) -> Option<Duration> {
    let byte = word >> shift(owner) & 0xff;
    byte.checked_sub(1).map(|power| Duration::from_millis(1 << power.min(62)))
}

fn shift(owner: u16) -> u32 {
    8 * (u32::from(owner) % WORD as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These positions are part of the format.
    #[test]
    fn bits_and_times_have_fixed_places() {
        assert_eq!(OWNERS_BYTES, (18 + 128) * 4096);
        assert_eq!([0, 63, 64, OWNER_MAX].map(mask_word), [0, 0, 1, 1023]);
        assert_eq!([0, 63, 64].map(bit), [1, 1 << 63, 1]);
        assert_eq!([0, 7, 8, OWNER_MAX].map(time_word), [1024, 1024, 1025, 1024 + 8191]);
        assert_eq!([0, 1, OWNER_MAX].map(tenure_word), [9216, 9217, 9216 + 65_534]);
    }

    /// A time comes back no shorter, at most twice as long and a millisecond, and changes no other owner's.
    #[test]
    fn times_come_back() {
        for millis in [0, 1, 2, 3, 1_000, 1_024, 86_400_000] {
            let time = Duration::from_millis(millis);
            for owner in [8, 11, 15] {
                let word = with_time(u64::MAX, owner, Some(time));
                let back = time_in(word, owner).unwrap();
                assert!(back >= time && back <= 2 * time + Duration::from_millis(1), "{time:?} {back:?}");
                assert_eq!(word | 0xff << shift(owner), u64::MAX);
                assert_eq!(time_in(with_time(word, owner, None), owner), None);
            }
        }
        assert!(time_in(with_time(0, 3, Some(Duration::MAX)), 3).unwrap() > Duration::from_secs(1 << 50));
    }
}
