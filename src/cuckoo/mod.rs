//! Cuckoo placement: a key is in one of `d` windows. Each window is found by hashing.
//!
//! # The layouts
//!
//! * `pilaf`: three choices, one slot each (Mitchell, Geng, Li, ATC'13, section 4.1: "3-way Cuckoo
//!   hashing"). One READ per choice tried.
//! * `bucketized:4`, `bucketized:8`: two choices, buckets of 4 or 8 slots (Dietzfelbinger and
//!   Weidling, 2007; libcuckoo, EuroSys'14). One READ per bucket.
//! * `windowed:8`, `windowed:16`: two choices of *overlapping* windows of 8 or 16 slots (Lehman and
//!   Panigrahy, ESA'09, show what overlapping gains). Inside its primary window a key makes room as
//!   in hopscotch hashing (Herlihy, Shavit, Tzafrir, DISC'08). Only when that fails, the key or a
//!   cheaper neighbour goes to its second window. Deletes bring displaced keys home. This layout is
//!   our own, and the default.
//!
//! Its invariants are C1, C2, C3 and C4 of docs/PROTOCOL.md.
//!
//! # Costs
//!
//! A hit in the primary window, and a miss whose filter bit is clear, take 1 READ of one window.
//! Each further window takes 1 READ and 1 round trip more. `oneread layouts` measures how often.

pub mod mutation;
pub mod placement;

use crate::layout::geometry::{Family, Layout};
use crate::placement::Preset;

const fn layout(choices: u32, bucket_slots: u32, window_buckets: u32) -> Layout {
    Layout { family: Family::Cuckoo, choices, bucket_slots, window_buckets, block_slots: 0 }
}

/// Two overlapping windows of 8 slots.
pub const WINDOWED_8: Layout = layout(2, 1, 8);
/// Two overlapping windows of 16 slots.
pub const WINDOWED_16: Layout = layout(2, 1, 16);

/// The presets, the default first. Design loads leave some room below the load thresholds of
/// d-choice, l-slot cuckoo hashing: (3,1) 0.918, (2,4) 0.980, (2,8) 0.998.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "windowed:8",
        layout: WINDOWED_8,
        design_load: 90,
        summary: "two overlapping windows of 8 slots, hopscotch inside the first, homing deletes",
    },
    Preset {
        name: "windowed:16",
        layout: WINDOWED_16,
        design_load: 92,
        summary: "the same with windows of 16 slots: fewer READs, twice the bytes",
    },
    Preset {
        name: "bucketized:8",
        layout: layout(2, 8, 1),
        design_load: 90,
        summary: "two buckets of 8 slots, homing deletes",
    },
    Preset {
        name: "bucketized:4",
        layout: layout(2, 4, 1),
        design_load: 85,
        summary: "two buckets of 4 slots, homing deletes",
    },
    Preset {
        name: "pilaf",
        layout: layout(3, 1, 1),
        design_load: 75,
        summary: "three single slots (Pilaf, ATC'13): fewest bytes, most READs",
    },
];
