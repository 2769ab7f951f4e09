//! Who follows changes, and waits for some (CL18).

use crate::core::feed::FeedAt;
use crate::core::message::Peer;
use crate::core::node::Node;
use crate::core::state::ShardIx;
use crate::core::table::Table;
use crate::wire::{Bounds, Changes, Follow, Replies, Said};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Longest time until an answer without changes: what else a follower must hear, it hears then.
const ANSWERED_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Waiting {
    follow: Follow,
    until: Instant,
    is_new: bool,
}

/// Those who wait: one ask a connection.
#[derive(Debug, Default)]
pub(super) struct Followers {
    waiting: FxHashMap<Peer, Waiting>,
    /// So many changes had been made at the last look.
    seen: u64,
}

impl Followers {
    /// Asks for changes, in place of what the same connection has asked for before.
    pub fn come(&mut self, peer: Peer, mut follow: Follow, shards: ShardIx) {
        follow.shards.truncate(shards.into());
        let until = Instant::now() + ANSWERED_AFTER;
        self.waiting.insert(peer, Waiting { follow, until, is_new: true });
    }

    /// Answers those for whom there is something. `is_due`: also looks for what is no change.
    pub fn tell<T: Table>(&mut self, node: &Node<T>, replies: &Replies, bounds: Bounds, is_due: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let made = node.changes_made();
        let is_due = std::mem::replace(&mut self.seen, made) != made || is_due;
        let now = Instant::now();
        self.waiting.retain(|peer, Waiting { follow, until, is_new }| {
            if !std::mem::take(is_new) && !is_due && now < *until {
                return true;
            }
            let has_changes = |(shard, after): &(ShardIx, Option<FeedAt>)| node.has_changes(*shard, *after);
            let waits = now < *until && !follow.shards.iter().any(has_changes);
            if !waits {
                replies.send(*peer, &Said::Changes(changes(node, follow, bounds.enough())));
            }
            waits
        });
    }
}

/// Changes of so many bytes, or a little more.
fn changes<T: Table>(node: &Node<T>, follow: &Follow, enough: usize) -> Changes {
    let (mut shards, mut left) = (Vec::new(), enough);
    for &(shard, after) in &follow.shards {
        if left == 0 {
            break;
        }
        let mut part = node.changes(shard, after, left);
        for told in part.iter_mut().flat_map(|part| &mut part.changes) {
            left = left.saturating_sub(told.bytes());
            if !follow.values {
                told.value = None;
            }
        }
        if part.as_ref().is_none_or(|part| Some(part.from) != after || !part.changes.is_empty()) {
            shards.push((shard, part));
        }
    }
    Changes { ask: follow.ask, shards }
}
