//! A primary makes sure that its shards have their copies, at the right nodes.

use crate::core::context::{Context, Seen};
use crate::core::etcd::{EtcdAnswer, EtcdValue};
use crate::core::ids::{NodeId, NodeIds, Time};
use crate::core::message::{HELLO_SINCE, Message};
use crate::core::placement::{self, Wishes};
use crate::core::shard::{Primary, Replica, Role, share};
use crate::core::table::Table;
use crate::faults::{Rule, broken};

/// Most shards that are copied to newcomers at once.
const JOINS_MAX: usize = 4;

/// The nodes that should have copies, and when that was last checked.
#[derive(Debug, Default)]
pub(super) struct Placing {
    copies: u8,
    wishes: Wishes,
    placed: Option<Time>,
    /// How many were copied to newcomers then.
    joins: usize,
    /// The shard with which the next check begins. Otherwise shards that find no room elsewhere would be tried for
    /// ever, and the rest never.
    from: usize,
    /// Nodes that live and were not reached at the last look; and those of which that was told.
    unreached: NodeIds,
    told: NodeIds,
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
        if place == 0 || !cx.is_good() {
            return;
        }
        let joins: usize = replicas.iter().filter_map(Replica::primary).map(Primary::newcomers).sum();
        // When one has its copy, the next one begins.
        if !cx.is_due(self.placed, place) && joins >= self.joins {
            return;
        }
        self.placed = Some(cx.now);
        let lives = |seen: &Seen| seen.key.alive && cx.now < seen.since + cx.timing.ttl;
        let others = cx.seen.iter().filter(|(id, seen)| **id != cx.me && lives(seen)).map(|(id, _)| *id);
        let others: NodeIds = others.collect();
        for node in others.iter() {
            if cx.is_of_version(node, HELLO_SINCE) {
                cx.outbox.tell(node, Message::Hello { asks: true });
            }
        }
        let is_reached = |node: &NodeId| cx.reaches(*node) || broken(Rule::UnreachedJoined);
        let nodes: NodeIds = others.iter().filter(is_reached).chain([cx.me]).collect();
        self.tell_of(others.iter().filter(|node| !nodes.has(*node)).collect());
        // CL20
        let may_claim = nodes.len() > 1 || others.is_empty() || broken(Rule::ClaimsUnheard);
        let leaving = cx.seen.iter().filter(|(_, seen)| seen.key.about.leaves).map(|(id, _)| *id);
        let leaving: NodeIds = leaving.chain(leaves.then_some(cx.me)).collect();
        // Who leaves keeps its copy, for when it starts again, and serves nothing.
        let stays = |node: &NodeId| !leaving.has(*node);
        let rank = |replica: &Replica<T>| {
            let gets_on = |node: &NodeId| replica.primary().is_none_or(|primary| primary.gets_on(cx, *node));
            placement::wanted(replica.shard(), self.copies, nodes.iter().filter(gets_on), &self.wishes)
        };
        let ranked: Vec<_> = replicas.iter().map(rank).collect();
        if cx.room.evicts {
            let mine = ranked.iter().filter(|wanted| wanted.contains(&cx.me)).count();
            cx.room.share = share(cx.memory.table.memory(), mine, nodes.len(), self.copies);
        }
        let mut joins_left = JOINS_MAX.saturating_sub(joins);
        self.from = (self.from + 1) % replicas.len().max(1);
        let (before, from) = replicas.split_at_mut(self.from);
        self.joins = 0;
        for replica in from.iter_mut().chain(before) {
            let shard = replica.shard();
            let wanted = &ranked[usize::from(shard)];
            let first = wanted.iter().copied().find(stays);
            if replica.role() == Role::None && first == Some(cx.me) && may_claim {
                replica.claim(cx);
            }
            let Some(primary) = replica.primary_mut() else { continue };
            let in_sync = primary.state().in_sync.clone();
            let others = || in_sync.iter().filter(|node| *node != cx.me);
            let dead: NodeIds = others().filter(|node| cx.may_be_left_out(*node)).collect();
            let may_join = |node: &NodeId| !in_sync.has(*node) && stays(node) && primary.may_have(cx, *node);
            let all = || placement::wanted(shard, u8::MAX, nodes.iter(), &self.wishes);
            let again = || all().into_iter().filter(may_join).min_by_key(|node| primary.stalled_until(*node));
            // Where there are no others, who did not get on is tried again.
            let is_short = wanted.len() < self.copies.into();
            let missing = wanted.iter().copied().find(may_join).or_else(|| again().filter(|_| is_short));
            // Who is in sync, and not reached for a while, stays until another one is there.
            let is_spare = |node: &NodeId| in_sync.len() > self.copies.into() || nodes.has(*node);
            let needless = others().find(|node| !wanted.contains(node) && is_spare(node));
            let next = if leaves { others().find(|node| stays(node) && nodes.has(*node)) } else { first };
            if !dead.is_empty() {
                primary.leave_out_silent(cx, dead);
            } else if let Some(next) = next.filter(|_| leaves) {
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
            self.joins += primary.newcomers();
        }
    }
    /// Warns of nodes that are not reached for two looks, once.
    fn tell_of(&mut self, unreached: NodeIds) {
        let told = unreached.iter().filter(|node| self.unreached.has(*node)).collect::<NodeIds>();
        for node in told.iter().filter(|node| !self.told.has(*node)) {
            tracing::warn!(
                %node,
                "a node beats in etcd, and does not answer this one: it gets no copies of its shards; see to it that both have the \
                 same secret, and reach each other's addresses"
            );
        }
        (self.unreached, self.told) = (unreached, told);
    }
}
