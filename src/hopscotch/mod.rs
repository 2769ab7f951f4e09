//! Hopscotch placement: a key is in one neighbourhood of its home, or in the home's overflow chain.
//!
//! # The layouts
//!
//! * `farm`: FaRM's "chained associative hopscotch hashing" (Dragojević, Narayanan, Hodson, Castro,
//!   NSDI'14, section 5.1). It has buckets of 4 slots, and a neighbourhood of two buckets (H = 8)
//!   read by one READ. When displacement fails, the bucket gets an overflow chain instead of a
//!   resize.
//! * `slotwise:8`, `:16`, `:32`: the same with buckets of one slot, as in the original hopscotch
//!   hashing (Herlihy, Shavit, Tzafrir, DISC'08). A neighbourhood begins at every slot.
//!
//! Its invariants are N1, N2, N3, N4 and N5 of docs/PROTOCOL.md.
//!
//! # Costs
//!
//! A hit in the neighbourhood, and a miss whose filter bit is clear, take 1 READ of one window.
//! Each block of the chain takes 1 READ of a block and 1 round trip more.

pub mod mutation;
pub mod placement;

use crate::layout::geometry::{Family, Layout};
use crate::placement::Preset;

const fn layout(bucket_slots: u32, window_buckets: u32, block_slots: u32) -> Layout {
    Layout { family: Family::Hopscotch, choices: 1, bucket_slots, window_buckets, block_slots }
}

/// The presets, the default first.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "farm",
        layout: layout(4, 2, 4),
        design_load: 85,
        summary: "two buckets of 4 slots, overflow chain (FaRM, NSDI'14)",
    },
    Preset {
        name: "slotwise:8",
        layout: layout(1, 8, 4),
        design_load: 85,
        summary: "neighbourhoods of 8 slots from every slot, overflow chain",
    },
    Preset {
        name: "slotwise:16",
        layout: layout(1, 16, 4),
        design_load: 90,
        summary: "the same with neighbourhoods of 16 slots",
    },
    Preset {
        name: "slotwise:32",
        layout: layout(1, 32, 4),
        design_load: 90,
        summary: "the same with neighbourhoods of 32 slots",
    },
];
