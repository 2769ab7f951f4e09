//! Which nodes should have a copy of a shard.
//!
//! There is no central decision: each primary uses the same list, and asks etcd for the missing copies. Nodes are
//! ranked for each shard by a hash of both (rendezvous hashing: Thaler and Ravishankar, 1998). When a node comes or
//! goes, only those shards move for which it is, or was, among the first.

use crate::core::ids::{NodeId, NodeIds, ShardIx};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The operator's wishes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wishes {
    /// Nodes that should have no copy.
    pub drained: NodeIds,
    /// Shards, and the nodes that should be their primaries.
    pub pinned: BTreeMap<ShardIx, NodeId>,
}

/// A shard's nodes, the primary first. As many as copies are wanted, or as there are nodes.
pub fn wanted(
    shard: ShardIx,
    replicas: u8,
    nodes: impl IntoIterator<Item = NodeId>,
    wishes: &Wishes,
) -> SmallVec<[NodeId; 3]> {
    let pinned = wishes.pinned.get(&shard);
    let mut ranked: SmallVec<[(bool, u64, NodeId); 8]> = nodes
        .into_iter()
        .filter(|node| !wishes.drained.has(*node))
        .map(|node| (pinned == Some(&node), rank(node, shard), node))
        .collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    ranked.into_iter().take(usize::from(replicas)).map(|(.., node)| node).collect()
}

fn rank(node: NodeId, shard: ShardIx) -> u64 {
    // The finalizer of SplitMix64, over the one and then the other.
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    mix(mix(node.0.wrapping_add(0x9e37_79b9_7f4a_7c15))
        ^ u64::from(shard).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(n: u64) -> Vec<NodeId> {
        (1..=n).map(|id| NodeId(id.wrapping_mul(0x1234_5678_9abc_def1))).collect()
    }

    /// A node that comes takes its part, and moves nothing between others.
    #[test]
    fn few_shards_move() {
        let wishes = Wishes::default();
        let (four, five) = (nodes(4), nodes(5));
        let mut moved = 0;
        for shard in 0..1_000 {
            let before = wanted(shard, 2, four.iter().copied(), &wishes);
            let after = wanted(shard, 2, five.iter().copied(), &wishes);
            assert_eq!(before.len(), 2);
            let strangers = after.iter().filter(|node| !before.contains(node));
            assert!(strangers.clone().all(|node| *node == five[4]), "{before:?} {after:?}");
            moved += strangers.count();
        }
        // Two fifths of the shards' copies are those of a fifth node of five.
        assert!((300..500).contains(&moved), "{moved}");
    }

    #[test]
    fn wishes_are_kept() {
        let all = nodes(4);
        for shard in 0..100 {
            let first = wanted(shard, 2, all.iter().copied(), &Wishes::default());
            let drained = Wishes { drained: NodeIds::of(first[0]), ..Wishes::default() };
            let others = wanted(shard, 2, all.iter().copied(), &drained);
            assert_eq!(others[0], first[1]);
            let last = all.iter().copied().find(|node| !first.contains(node)).unwrap();
            let pinned = Wishes { pinned: BTreeMap::from([(shard, last)]), ..Wishes::default() };
            assert_eq!(wanted(shard, 2, all.iter().copied(), &pinned)[..], [last, first[0]]);
        }
    }

    #[test]
    fn shards_are_spread() {
        let all = nodes(4);
        let mut primaries = [0; 4];
        for shard in 0..4_000 {
            let first = wanted(shard, 2, all.iter().copied(), &Wishes::default())[0];
            primaries[all.iter().position(|node| *node == first).unwrap()] += 1;
        }
        assert!(primaries.iter().all(|shards| (850..1_150).contains(shards)), "{primaries:?}");
    }
}
