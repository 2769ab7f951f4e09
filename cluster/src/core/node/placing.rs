//! A primary makes sure that its shards have their copies, at the right nodes.

use crate::core::context::{Context, Seen};
use crate::core::etcd::{EtcdAnswer, EtcdValue};
use crate::core::ids::{NodeId, NodeIds, Time};
use crate::core::placement::{Wishes, wanted};
use crate::core::shard::{Primary, Replica, Role, share};
use crate::core::table::Table;

/// Most shards that are copied to newcomers at once.
const JOINS_MAX: usize = 4;

/// The nodes that should have copies, and when that was last checked.
#[derive(Debug, Default)]
pub(super) struct Placing {
    copies: u8,
    wishes: Wishes,
    placed: Option<Time>,
    /// The shard with which the next check begins. Otherwise shards that find no room elsewhere would be tried for
    /// ever, and the rest never.
    from: usize,
}

impl Placing {
    /// Takes the operator's wishes, if the answer has them.
    pub fn learn(&mut self, answer: &EtcdAnswer) {
        for entry in &answer.entries {
            match &entry.value {
                Some(EtcdValue::Config(config)) => self.copies = config.replicas,
                Some(EtcdValue::Wishes(wishes)) => self.wishes = wishes.clone(),
                Some(EtcdValue::Adoption(_) | EtcdValue::Node(_) | EtcdValue::Shard(_)) | None => {}
            }
        }
    }

    /// Asks for missing copies, when that is due. `leaves`: the node is about to stop.
    pub fn tick<T: Table>(&mut self, cx: &mut Context<T>, replicas: &mut [Replica<T>], leaves: bool) {
        let place = cx.timing.place;
        if place == 0 || !cx.is_good() || !cx.is_due(self.placed, place) {
            return;
        }
        self.placed = Some(cx.now);
        let ttl = cx.timing.ttl;
        let lives = |seen: &Seen| seen.key.alive && cx.now < seen.since + ttl;
        let nodes = cx.seen.iter().filter(|(id, seen)| **id == cx.me || lives(seen));
        let nodes: Vec<NodeId> = nodes.map(|(id, _)| *id).collect();
        let leaving = cx.seen.iter().filter(|(_, seen)| seen.key.about.leaves).map(|(id, _)| *id);
        let leaving: NodeIds = leaving.chain(leaves.then_some(cx.me)).collect();
        let wanted =
            |replica: &Replica<T>| wanted(replica.shard(), self.copies, nodes.iter().copied(), &self.wishes);
        let ranked: Vec<_> = replicas.iter().map(wanted).collect();
        if cx.room.evicts {
            let mine = ranked.iter().filter(|wanted| wanted.contains(&cx.me)).count();
            cx.room.share = share(cx.memory.table.memory(), mine, nodes.len(), self.copies);
        }
        let joins = replicas.iter().filter_map(Replica::primary).map(Primary::newcomers).sum();
        let mut joins_left = JOINS_MAX.saturating_sub(joins);
        self.from = (self.from + 1) % replicas.len().max(1);
        let (before, from) = replicas.split_at_mut(self.from);
        for replica in from.iter_mut().chain(before) {
            let wanted = &ranked[usize::from(replica.shard())];
            // A node that leaves keeps its copy for its next start, and serves nothing.
            let stays = |node: &NodeId| !leaving.has(*node);
            let first = wanted.iter().copied().find(stays);
            if replica.role() == Role::None && first == Some(cx.me) {
                replica.claim(cx);
            }
            let Some(primary) = replica.primary_mut() else { continue };
            let in_sync = primary.state().in_sync.clone();
            let may_join = |node: &NodeId| !in_sync.has(*node) && primary.may_have(cx, *node);
            let missing = wanted.iter().copied().find(|node| may_join(node) && stays(node));
            let needless = in_sync.iter().find(|node| *node != cx.me && !wanted.contains(node));
            let next = if leaves { in_sync.iter().find(stays) } else { first };
            if let Some(next) = next.filter(|_| leaves) {
                primary.hand_over(cx, next);
            } else if let Some(newcomer) = missing {
                if joins_left > 0 && primary.begin_join(cx, newcomer) {
                    joins_left -= 1;
                }
            } else if let Some(standby) = needless {
                primary.leave_out(cx, NodeIds::of(standby));
            } else if let Some(next) = next.filter(|next| *next != cx.me) {
                primary.hand_over(cx, next);
            }
        }
    }
}
