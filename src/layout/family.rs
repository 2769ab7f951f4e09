//! A layout in numbers: its family, choices, buckets, windows and blocks.

use std::ops::RangeInclusive;

/// The three ways to place keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Family {
    /// A key is in one of several windows.
    Cuckoo = 1,
    /// A key is in its neighbourhood or its home's overflow chain.
    Hopscotch = 2,
    /// A key is in its bucket or the bucket's overflow chain.
    Chained = 3,
}

impl Family {
    pub(crate) const ALL: [(Family, &'static str); 3] =
        [(Family::Cuckoo, "cuckoo"), (Family::Hopscotch, "hopscotch"), (Family::Chained, "chained")];

    pub(crate) fn from_number(n: u32) -> Option<Family> {
        Family::ALL.iter().map(|f| f.0).find(|&f| f as u32 == n)
    }

    /// The family's name.
    pub fn name(self) -> &'static str {
        Family::ALL.iter().find(|f| f.0 == self).map_or("?", |f| f.1)
    }

    pub(crate) fn list() -> String {
        let names: Vec<_> = Family::ALL.iter().map(|f| format!("{} ({})", f.1, f.0 as u32)).collect();
        names.join(", ")
    }
}

/// A layout: a family and its numbers.
///
/// Parse one from the name of a preset, as in `"windowed:16".parse::<Layout>()`, or choose your own
/// numbers. [`Config::geometry`](crate::Config::geometry) refuses impossible ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How keys are placed.
    pub family: Family,
    /// Windows that a key may be in: 2 or 3 in cuckoo layouts, 1 in those with overflow chains.
    pub choices: u32,
    /// Slots per bucket, the unit of placement: at least 1.
    pub bucket_slots: u32,
    /// Buckets per window, the unit of a READ: at least 1, and 1 in chained layouts. A window has
    /// at most 64 slots.
    pub window_buckets: u32,
    /// Slots per overflow block: 1 to 64. Cuckoo layouts have no blocks, and 0 here.
    pub block_slots: u32,
}

/// Bits of `aux` that are the filter of displaced keys where a link is beside it.
pub(super) const FILTER_BITS_BESIDE_LINK: u32 = 8;

impl Layout {
    /// Bits of `aux` that are the filter of displaced keys: a power of two. Without links, all that the state of
    /// a home leaves.
    pub(super) fn filter_bits(self, grows: bool) -> u32 {
        match self.block_slots {
            0 => 32 >> u32::from(grows),
            _ => FILTER_BITS_BESIDE_LINK,
        }
    }

    /// Slots per window.
    #[inline]
    pub fn window_slots(self) -> u32 {
        self.bucket_slots * self.window_buckets
    }

    /// Checks that each number is one that the family can have. Computes in 64 bits, because the
    /// numbers may be anything.
    pub(crate) fn check(self) -> Result<(), OutOfRange> {
        let (choices, window_buckets, block_slots) = match self.family {
            Family::Cuckoo => (2..=3, 1..=64, 0..=0),
            Family::Hopscotch => (1..=1, 1..=64, 1..=64),
            Family::Chained => (1..=1, 1..=1, 1..=64),
        };
        let window = u64::from(self.bucket_slots) * u64::from(self.window_buckets);
        within("choices", self.choices.into(), choices)?;
        within("bucket_slots", self.bucket_slots.into(), 1..=64)?;
        within("window_buckets", self.window_buckets.into(), window_buckets)?;
        within("bucket_slots * window_buckets", window, 1..=64)?;
        within("block_slots", self.block_slots.into(), block_slots)
    }
}

/// An impossible number in a geometry.
pub(crate) struct OutOfRange {
    pub field: &'static str,
    pub value: u64,
    pub allowed: RangeInclusive<u64>,
}

impl OutOfRange {
    /// The allowed range in words.
    pub fn allowed(&self) -> String {
        match (self.allowed.start(), self.allowed.end()) {
            (only, last) if only == last => only.to_string(),
            (first, last) => format!("{first} to {last}"),
        }
    }
}

pub(crate) fn within(
    field: &'static str,
    value: u64,
    allowed: RangeInclusive<u64>,
) -> Result<(), OutOfRange> {
    if allowed.contains(&value) { Ok(()) } else { Err(OutOfRange { field, value, allowed }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_by_number_and_name() {
        let found = [0, 1, 2, 3, 4].map(|n| Family::from_number(n).map(Family::name));
        assert_eq!(found, [None, Some("cuckoo"), Some("hopscotch"), Some("chained"), None]);
        assert_eq!(Family::list(), "cuckoo (1), hopscotch (2), chained (3)");
    }
}
