//! The room in a node's table, and the room of an entry. Pure arithmetic, for nodes, and for plans.

use crate::core::state::ClusterConfig;
use oneread::Config;
use oneread::layout::Geometry;

/// The key of a node's notes.
pub(crate) const NOTES_KEY: &[u8] = b"\0oneread\0notes";
/// The longest key of the cluster's own, in bytes.
const OWN_KEY_MAX: usize = 32;
/// The most bytes of a page, or of notes: for each shard, and for the rest.
const SHARD_BYTES_MAX: usize = 96 + 24 * 16;
const HEAD_BYTES_MAX: usize = 4_096;
/// The most bytes of an intent, without its key.
const INTENT_BYTES_MAX: usize = 128;

/// Connections that a node's port takes at a time by default: of clients for requests, and of nodes.
pub const CONNECTIONS_MAX: usize = 4_096;

/// A table's choices, with the lengths that a cluster needs.
pub fn with_lengths(table: Config, cluster: &ClusterConfig) -> Config {
    let (key, value) = lengths(cluster);
    table.key_max(key).value_max(value)
}

/// The longest key and the longest value that a node's table must hold, in bytes.
pub(crate) fn lengths(cluster: &ClusterConfig) -> (usize, usize) {
    (OWN_KEY_MAX.max(cluster.key_max.into()), own_bytes_max(cluster).max(cluster.value_max as usize))
}

/// Bytes of the longest page, or notes.
fn own_bytes_max(cluster: &ClusterConfig) -> usize {
    HEAD_BYTES_MAX + SHARD_BYTES_MAX * usize::from(cluster.shards)
}

/// The bytes that a node sets aside for an entry. They are equal in all tables of a cluster with the same slots,
/// because nodes compare their room (CL12).
///
/// A slot costs more than its bytes, because segments that were just split, or are about to be merged, are mostly
/// empty: such a segment has some 42 % of its slots in use. An extent costs more than its bytes, because of the gaps
/// between extents: blocks are 75 % full before a put is refused (`models/heap.rs`).
pub fn entry_bytes(geometry: &Geometry, key: &[u8], value_len: usize) -> u64 {
    let slot = geometry.shape().bytes() as u64;
    slot * 5 / 2 + geometry.extent_bytes(key, value_len) * 4 / 3
}

/// The room for entries of all shards in a node's table, in bytes: its memory, less what no entry of a shard can have.
///
/// That is the page, the notes and the intent, and the extent of a value that is being replaced. Then four blocks: one
/// and a third that may be less full than others, one that is empty, so that extents can move there (`models/heap.rs`),
/// and one that a put opens before they have moved. In a table that grows, also the part in front of its segments; two
/// segments that it keeps unused, and up to four that it makes ahead (`index/growth/stock.rs`), none of which it gives
/// to extents; and two that are not full yet. A table of one size has separate memory for slots and for extents: each
/// must be enough for all.
pub fn table_room(geometry: &Geometry, cluster: &ClusterConfig) -> u64 {
    let (slot, block) = (geometry.shape().bytes() as u64, geometry.heap().block_bytes);
    let extent = |len| geometry.extent_bytes(NOTES_KEY, len) * 4 / 3;
    let intent = 2 * extent(INTENT_BYTES_MAX + usize::from(cluster.key_max));
    let own = 3 * extent(own_bytes_max(cluster)) + intent + extent(geometry.value_max()) + 4 * block;
    if geometry.grows() {
        let front = geometry.slot_offset(geometry.segment_first(0));
        let segment = geometry.slots() * slot;
        let spare = 4 + (1 + geometry.segments_max() / 8).min(4);
        return geometry.bytes_max().saturating_sub(front + spare * segment + own);
    }
    // Three slots in four are in use, in every layout, and each of them costs as much as five halves.
    let of_slots = geometry.slots() * slot * 3 / 4 * 5 / 2;
    of_slots.min(geometry.heap().bytes.saturating_sub(own))
}
