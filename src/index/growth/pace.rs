//! When segments are split and merged, and how much of that one change does.
//!
//! The loads at which a split or merge begins are the same everywhere. How fast it then goes is a [`Pace`]: a
//! segment of a product has thousands of homes, one of the simulator has ten.

use std::ops::Range;

/// How fast splits and merges go on, and how long puts wait for them. A server's is [`Pace::shipped`].
///
/// A pace changes no rule of the protocol. Any pace is safe: it decides which thread does how much, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Homes that an insert carries over while a split or merge is under way.
    pub homes_per_insert: u32,
    /// Homes that a remove carries over.
    pub homes_per_remove: u32,
    /// Homes that a server carries over in an idle moment, and that a put carries over when it finds no room in its
    /// segment.
    pub homes_per_tidy: u32,
    /// Homes that ghosts hold up are tried again when these ghosts have gone. Otherwise the next change tries them.
    pub waits_for_ghosts: bool,
    /// Grace times that a put waits while its segment is split, before the table counts as full. Other threads may
    /// have the split in hand, and be stopped by the system meanwhile.
    pub split_waits_max: u32,
    /// Naps of 50 us of such a put when there is no grace time to wait for, because another thread is at work. That
    /// thread may be waiting for the disk of a region file, or for the CPU.
    pub naps_max: u32,
    /// While another thread makes a segment, a put that needs it waits for as long as that takes: the thread may be
    /// registering memory, or waiting for a disk. Where threads run in turns, such a put naps instead.
    pub waits_for_memory: bool,
    /// Numbers of long values that are taken from the region's counter at a time. A takeover leaves out the rest.
    pub value_numbers: u64,
}

impl Pace {
    /// The pace of a server.
    pub const fn shipped() -> Pace {
        Pace {
            homes_per_insert: 64,
            homes_per_remove: 64,
            homes_per_tidy: 512,
            waits_for_ghosts: true,
            split_waits_max: 1_000,
            naps_max: TRIES_MAX,
            waits_for_memory: true,
            value_numbers: 1 << 16,
        }
    }

    /// A pace for segments of a few homes: a split takes many changes, so that readers, other changes and kills
    /// come between.
    #[cfg(feature = "sim")]
    pub const fn small() -> Pace {
        Pace {
            homes_per_insert: 1,
            homes_per_remove: 2,
            homes_per_tidy: 3,
            waits_for_ghosts: false,
            split_waits_max: 50,
            naps_max: 50,
            waits_for_memory: false,
            value_numbers: 4,
        }
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::shipped()
    }
}

/// A thread looks at the load of its segment after this many changes.
pub(super) const LOOK_EVERY: u64 = 16;

/// A segment is split when it has this many hundredths of its layout's design load. Segments fill
/// nearly together, so they begin at loads that are spread over this range. While all segments pass
/// through it, each gets some 1,500 inserts, and the inserts of all take 512 for each split: so splits
/// do not pile up. A wider range costs load.
pub(super) const SPLIT_AT: Range<u64> = 86..96;

/// From this many hundredths of the design load on, an insert drives the split of its own segment.
pub(super) const HURRY_AT: u64 = 98;

/// From this many hundredths on, an insert ends the split of its segment before it returns.
pub(super) const PRESS_ON_AT: u64 = 104;

/// Two segments are merged when both together have fewer keys than this many hundredths of the design load of one.
pub(super) const MERGE_AT: Range<u64> = 52..62;

/// Pairs that a change looks at to find one that it can take on.
pub(super) const PAIRS_LOOKED_AT: u64 = 4;

/// On request, two segments are merged if both together have at most this many hundredths.
pub(super) const SHRINK_TO: u64 = 85;

/// A merge is given up when the parent has more than this many hundredths.
pub(super) const GIVE_UP_AT: u64 = 95;

/// Rounds of a put that finds its key elsewhere, or its segment without room, before it gives up.
pub(super) const TRIES_MAX: u32 = 10_000;
