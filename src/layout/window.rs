//! Slots by their numbers, and windows: consecutive slots.

/// The number of a slot in its table. Main slots come first, then overflow slots.
///
/// In a table that grows, slots of all segments are numbered through: those of the directory come
/// first. The server also numbers the slots of one segment by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIx(pub u64);

/// Consecutive slots, fetched by one READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first slot.
    pub first: SlotIx,
    /// The number of slots.
    pub slots: u32,
    /// The use of the segment's memory that the slots are valid in; 0 where nothing is used again.
    pub incarnation: u32,
}

impl Window {
    /// Whether `slot` is in this window.
    #[inline]
    pub fn contains(&self, slot: SlotIx) -> bool {
        slot.0.wrapping_sub(self.first.0) < u64::from(self.slots)
    }

    /// The number of the slot behind the last.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.first.0 + u64::from(self.slots)
    }

    /// The slot with this number among them, from 0 on.
    #[inline]
    pub(crate) fn slot(&self, number: u32) -> SlotIx {
        SlotIx(self.first.0 + u64::from(number))
    }

    /// This window in the segment that begins at this slot.
    #[inline]
    pub(crate) fn of_segment(self, first: SlotIx, incarnation: u32) -> Window {
        Window { first: SlotIx(first.0 + self.first.0), slots: self.slots, incarnation }
    }

    /// The slots, in order.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = SlotIx> + use<> {
        (self.first.0..self.end()).map(SlotIx)
    }
}
