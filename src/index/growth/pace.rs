//! When segments are split and merged, and how much of that one change does.

/// Waits of a put whose segment is being split, in grace times. Others may drive the pair on, and be
/// stopped by the system meanwhile.
pub(in crate::index) const SPLIT_WAITS_MAX: u32 = if cfg!(feature = "sim") { 50 } else { 1_000 };

/// Homes by which an insert, a remove, and one call of [`Growth::tidy`] take a pair on.
/// The simulator's segments are small.
pub(super) const HOMES_PER_INSERT: u32 = if cfg!(feature = "sim") { 1 } else { 32 };

pub(super) const HOMES_PER_REMOVE: u32 = if cfg!(feature = "sim") { 2 } else { 32 };

pub(super) const HOMES_PER_TIDY: u32 = if cfg!(feature = "sim") { 3 } else { 512 };

/// Changes of a thread after which it looks at the load of its segment.
pub(super) const LOOK_EVERY: u64 = 16;

/// A segment is split when so many hundredths of its layout's design load are used. Segments fill
/// nearly together, so they begin at loads that are spread over this range. While all segments pass
/// through it, each gets some 1,500 inserts, and the inserts of all take 512 for each split: so splits
/// do not pile up. A wider range costs load.
pub(super) const SPLIT_AT: std::ops::Range<u64> = 86..96;

/// Of so many hundredths on, inserts drive the split of their own segment.
pub(super) const HURRY_AT: u64 = 98;

/// Of so many hundredths on, an insert ends the split of its segment before it returns.
pub(super) const PRESS_ON_AT: u64 = 104;

/// Two segments are merged when the keys of both are fewer than so many hundredths of that for one.
pub(super) const MERGE_AT: std::ops::Range<u64> = 52..62;

/// A pair all of whose homes wait is left alone for twice as many looks each time, up to so many.
pub(super) const LOOKS_SPARED_MAX: u32 = if cfg!(feature = "sim") { 0 } else { 64 };

/// Pairs that a change looks at to find one that it can take on.
pub(super) const PAIRS_LOOKED_AT: u64 = 4;

/// On request, two segments are merged if both together have at most so many hundredths.
pub(super) const SHRINK_TO: u64 = 85;

/// A merge is given up when the parent has so many hundredths.
pub(super) const GIVE_UP_AT: u64 = 95;

/// Rounds of a put that finds its key elsewhere, or its segment without room, before it gives up.
pub(super) const TRIES_MAX: u32 = 10_000;
