//! What a node's table has room for, and what an entry takes of that. Arithmetic alone: for nodes, and for plans.

use crate::core::state::ClusterConfig;
use oneread::Config;
use oneread::layout::Geometry;

/// The key of a node's notes.
pub(crate) const NOTES_KEY: &[u8] = b"\0oneread\0notes";
/// The longest key of the cluster's own, in bytes.
const OWN_KEY_MAX: usize = 32;
/// Bytes that a page, or notes, take at most: for each shard, and besides.
const SHARD_BYTES_MAX: usize = 96 + 24 * 16;
const HEAD_BYTES_MAX: usize = 4_096;
/// The same of what a node is doing, beside the key.
const INTENT_BYTES_MAX: usize = 128;

/// Connections that a node's port takes at a time, unless it is told otherwise: of clients for requests, and of nodes.
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

/// What a node sets aside for an entry, in bytes. The same in all tables of a cluster, if their slots are alike: nodes
/// compare what they have set aside (CL12).
///
/// A slot, and as much as segments that have just been split, or are about to be merged, are empty: such a one has
/// some 42 % of the slots in use. An extent, and what lies between extents: blocks are 75 % full before a put is
/// refused (`models/heap.rs`).
pub fn entry_bytes(geometry: &Geometry, key: &[u8], value_len: usize) -> u64 {
    let slot = geometry.shape().bytes() as u64;
    slot * 5 / 2 + geometry.extent_bytes(key, value_len) * 4 / 3
}

/// The room for entries of all shards in a node's table, in bytes: what is left of its memory beside what no entry of a
/// shard can have.
///
/// That is the page, the notes and the intent, and the extent of whatever is being replaced. Then four blocks: one and a third
/// that may be less full than others, one that is empty, so that extents can move there (`models/heap.rs`), and one
/// that a put opens before they have moved. In a table that grows also what is in front of its segments; two segments
/// that it keeps without a use, and up to four that it makes before they are needed (`index/growth/stock.rs`), none of
/// which it gives to extents; and two that are not full yet. A table of one size has its memory for slots and that
/// for extents apart: of each there must be enough for all.
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
    // Three slots in four are in use, whatever the layout, and each of them costs as much as five halves.
    let of_slots = geometry.slots() * slot * 3 / 4 * 5 / 2;
    of_slots.min(geometry.heap().bytes.saturating_sub(own))
}
