//! The life of an entry: which entry it is, whose, and when it ends. Tables that ask for it carry it behind
//! each value.
//!
//! ```text
//! 0..6    number   u48  of this value of this key; never given twice
//! 6..8    owner    u16  0: nobody's
//! 8..12   expiry   u32  the tick with which the entry ends; 0: never
//! ```
//!
//! A *tick* is an eighth of a second, counted from when the table was made.

use std::time::Duration;

/// Bytes of an entry's life.
pub const LIFE_BYTES: usize = 12;
/// Nanoseconds of a tick.
pub(crate) const TICK_NS: u64 = 125_000_000;
/// Numbers of entries are below this.
pub(crate) const ENTRY_NUMBERS_END: u64 = 1 << 48;

/// The life of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// The entry's number: another one with each value that the key is given. Below 2^48.
    pub number: u64,
    /// Whose the entry is; 0: nobody's.
    pub owner: u16,
    /// The tick with which the entry ends; 0: it does not end by itself.
    pub expiry: u32,
}

impl Life {
    /// As it stands behind a value.
    #[inline]
    pub fn to_bytes(self) -> [u8; LIFE_BYTES] {
        debug_assert!(self.number < ENTRY_NUMBERS_END);
        let mut bytes = [0; LIFE_BYTES];
        bytes[..8].copy_from_slice(&(self.number | u64::from(self.owner) << 48).to_le_bytes());
        bytes[8..].copy_from_slice(&self.expiry.to_le_bytes());
        bytes
    }

    /// The life in these bytes. Any bytes are one.
    #[inline]
    pub fn from_bytes(bytes: [u8; LIFE_BYTES]) -> Life {
        let [a, b, c, d, e, f, g, h, expiry @ ..] = bytes;
        let word = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Life {
            number: word & (ENTRY_NUMBERS_END - 1),
            owner: (word >> 48) as u16,
            expiry: u32::from_le_bytes(expiry),
        }
    }

    /// How old the table is when the entry ends; zero: it does not end by itself.
    pub(crate) fn end(&self) -> Duration {
        Duration::from_nanos(u64::from(self.expiry) * TICK_NS)
    }

    /// Whether the entry has ended by this tick.
    #[inline]
    pub fn has_ended(&self, now: u64) -> bool {
        self.expiry != 0 && u64::from(self.expiry) <= now
    }
}

/// The tick of a table at this time since it was made.
#[inline]
pub(crate) fn tick_at(since_made_ns: u64) -> u64 {
    since_made_ns / TICK_NS
}

/// The tick with which an entry ends that is to live so long from now on: no sooner, and at most a tick later.
/// `None` if that is beyond what a life can say.
pub(crate) fn expiry_after(since_made_ns: u64, ttl: Duration) -> Option<u32> {
    let end_ns = u128::from(since_made_ns) + ttl.as_nanos();
    u32::try_from(end_ns.div_ceil(TICK_NS.into()).max(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These bytes are part of the format.
    #[test]
    fn bytes_of_a_life() {
        let life = Life { number: 0x0605_0403_0201, owner: 0x0807, expiry: 0x0c0b_0a09 };
        assert_eq!(life.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(Life::from_bytes(life.to_bytes()), life);
        let last = Life { number: ENTRY_NUMBERS_END - 1, owner: u16::MAX, expiry: u32::MAX };
        assert_eq!(Life::from_bytes([0xff; LIFE_BYTES]), last);
    }

    #[test]
    fn when_it_ends() {
        let ends = |expiry| Life { expiry, ..Life::default() };
        assert!(!ends(0).has_ended(u64::MAX), "never");
        assert!(!ends(7).has_ended(6) && ends(7).has_ended(7));
        let tick = Duration::from_nanos(TICK_NS);
        assert_eq!(expiry_after(0, Duration::ZERO), Some(1), "0 would be never");
        assert_eq!(expiry_after(TICK_NS, Duration::from_nanos(1)), Some(2), "not too soon");
        assert_eq!(expiry_after(0, tick * u32::MAX), Some(u32::MAX));
        assert_eq!(expiry_after(1, tick * u32::MAX), None);
        assert_eq!(expiry_after(u64::MAX, Duration::MAX), None);
        assert_eq!([tick_at(TICK_NS - 1), tick_at(TICK_NS)], [0, 1]);
    }
}
