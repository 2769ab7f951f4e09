//! Chained placement: a key is in its bucket, or in the bucket's chain of overflow buckets.
//!
//! # The layouts
//!
//! * `list`: buckets of one slot. This is the textbook chain (Knuth, TAOCP vol. 3, section 6.4) and
//!   the worst case for one-sided access: one READ for each link.
//! * `cluster`: buckets of 8 slots. This is DrTM's "cluster chaining" (Wei, Shi, Chen, Chen, Chen,
//!   SOSP'15, section 5.2).
//!
//! Its invariants are K1, K2, K3, K4 and K5 of docs/PROTOCOL.md.
//!
//! # Costs
//!
//! A hit in the bucket, and a miss whose filter bit is clear, take 1 READ of one bucket. Each
//! overflow bucket takes 1 READ and 1 round trip more. No key is moved to make room, so inserts are
//! the cheapest of all layouts.

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
