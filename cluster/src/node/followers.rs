//! Clients that follow changes, and wait for some (CL18).

use crate::core::feed::FeedAt;
use crate::core::message::{Effect, Peer};
use crate::core::node::Node;
use crate::core::owners;
use crate::core::state::ShardIx;
use crate::core::table::Table;
use crate::wire::{Bounds, Changes, Follow, Replies, Said};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Longest time until an answer without changes. A follower that must hear something else hears it at once, and signs of
/// life say that the node is there.
const ANSWERED_AFTER: Duration = Duration::from_secs(30);

/// Bytes of changes that one turn sends, and one answer more.
const TOLD_AT_ONCE: usize = 4 << 20;
/// The time between two looks at all waiting followers, as a multiple of the time that a look takes.
const LOOKS_APART: u32 = 8;

#[derive(Debug)]
struct Waiting {
    follow: Follow,
    /// The version of the follower's connection.
    version: u32,
    until: Instant,
    is_new: bool,
}

/// The waiting followers: one question for each connection.
#[derive(Debug, Default)]
pub(super) struct Followers {
    waiting: FxHashMap<Peer, Waiting>,
    /// The number of changes at the last look at all of them.
    seen: u64,
    /// The time of the next look at all of them. A look at thousands takes some milliseconds, and beats must go on.
    next: Option<Instant>,
}

impl Followers {
    /// Takes a question for changes. It replaces the last one of the same connection.
    pub fn come(&mut self, peer: Peer, mut follow: Follow, version: u32, shards: ShardIx) {
        follow.shards.truncate(shards.into());
        follow.shards.shrink_to_fit();
        let until = Instant::now() + ANSWERED_AFTER;
        self.waiting.insert(peer, Waiting { follow, version, until, is_new: true });
    }

    /// Answers the followers that have changes. `is_due`: also looks for other news.
    pub fn tell<T: Table>(&mut self, node: &Node<T>, replies: &Replies, bounds: Bounds, is_due: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let (now, made) = (Instant::now(), node.changes_made());
        let looks = (is_due || made != self.seen) && self.next.is_none_or(|next| now >= next);
        if looks {
            self.seen = made;
        }
        let mut sent = 0;
        self.waiting.retain(|peer, Waiting { follow, version, until, is_new }| {
            if !*is_new && !looks && now < *until {
                return true;
            }
            // They have the next turn.
            *is_new = sent >= TOLD_AT_ONCE;
            if *is_new {
                return true;
            }
            let has_changes = |(shard, after): &(ShardIx, Option<FeedAt>)| node.has_changes(*shard, *after);
            let waits = now < *until && !follow.shards.iter().any(has_changes);
            if !waits {
                let (changes, bytes) = changes(node, follow, *version, bounds.enough());
                replies.send(*peer, &Said::Changes(changes));
                sent += bytes;
            }
            waits
        });
        if looks {
            self.next = Some(now + LOOKS_APART * now.elapsed());
        }
    }
}

/// About this many bytes of changes, and their number.
fn changes<T: Table>(node: &Node<T>, follow: &Follow, version: u32, enough: usize) -> (Changes, usize) {
    let (mut shards, mut left, mut taken) = (Vec::new(), enough, 0);
    for &(shard, after) in &follow.shards {
        if left == 0 {
            break;
        }
        let mut part = node.changes(shard, after, left);
        for told in part.iter_mut().flat_map(|part| &mut part.changes) {
            taken += told.bytes();
            left = enough.saturating_sub(taken);
            if !follow.values {
                told.value = None;
            }
            if told.effect == Effect::OwnerGone && version < owners::SINCE_VERSION {
                told.effect = Effect::Removed;
            }
        }
        if part.as_ref().is_none_or(|part| Some(part.from) != after || !part.changes.is_empty()) {
            shards.push((shard, part));
        }
    }
    (Changes { ask: follow.ask, shards }, taken)
}
