//! Chained placement: a key is in its bucket, or in the bucket's chain of overflow buckets.
//!
//! # The layouts
//!
//! * `list`: buckets of one slot, the textbook chain (Knuth, TAOCP vol. 3, section 6.4) and the worst case
//!   for one-sided access: one READ for each link.
//! * `cluster`: buckets of 8 slots, DrTM's "cluster chaining" (Wei, Shi, Chen, Chen, Chen, SOSP'15,
//!   section 5.2).
//!
//! # Invariants
//!
//! * **K1** A key is in at most one slot, but for the instant of a move, when it is in two; both then hold
//!   the same value.
//! * **K2** That slot lies in the key's bucket, or in a block of the bucket's chain.
//! * **K3** While a key is in the chain, and for twice the grace time after, its bit is set in the filter in
//!   the header of its home slot (low 8 bits of `aux`).
//! * **K4** For twice the grace time after a key was moved out of a slot, the slot's `ghost` is the key's
//!   tag.
//! * **K5** A block is linked before a key is written into it; it is unlinked no earlier than twice the grace time after
//!   its last key left, when no slot of it has a ghost, and reused no earlier than twice the grace time after that.
//!
//! # Costs
//!
//! A hit in the bucket and a miss whose filter bit is clear take 1 READ of one bucket; each overflow bucket
//! 1 READ and 1 round trip more. No key is ever moved to make room: inserts are the cheapest of all
//! layouts.

pub mod mutation;
pub mod placement;

use crate::layout::geometry::{Family, Layout};
use crate::placement::Preset;

const fn layout(bucket_slots: u32) -> Layout {
    Layout { family: Family::Chained, choices: 1, bucket_slots, window_buckets: 1, block_slots: bucket_slots }
}

/// The presets, the default first.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "cluster",
        layout: layout(8),
        design_load: 80,
        summary: "buckets of 8 slots with linked overflow buckets (DrTM, SOSP'15)",
    },
    Preset {
        name: "list",
        layout: layout(1),
        design_load: 75,
        summary: "buckets of one slot: the textbook chain, one READ per link",
    },
];
