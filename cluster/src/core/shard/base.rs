//! A node's state of a shard, whatever its part in it: what it last heard from etcd, and a copy, or the rest of one.

use crate::core::context::{Context, Pending};
use crate::core::etcd::{At, EtcdKey, EtcdValue};
use crate::core::ids::{NodeId, NodeIds, ShardIx, Time};
use crate::core::message::ChannelId;
use crate::core::state::{ShardState, Word};
use crate::core::table::Table;
use crate::faults::{Rule, broken};

/// The last channel, and how far it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub channel: ChannelId,
    pub number: u64,
    /// Whether it came without a gap, and was not given up.
    pub is_whole: bool,
    /// Whether an answer is due.
    pub is_due: bool,
    pub is_refused: bool,
}

/// The shard, and the node's copy of it.
#[derive(Debug)]
pub struct Base<C> {
    pub(super) shard: ShardIx,
    pub(super) map: ShardState,
    pub(super) at: At,
    pub(super) transaction: Option<Pending>,
    /// Room that its entries take, including changes under way; and room that is set aside.
    pub(super) used: u64,
    pub(super) room: u64,
    /// Whether a part of an old copy may be left.
    pub(super) is_stale: bool,
    /// The place up to which an old copy was removed.
    pub(super) freed_to: Option<C>,
    /// Until then, clients may READ a copy that is not in sync any more (CL9).
    pub(super) keeps_until: Time,
    pub(super) position: Option<Position>,
    /// Epoch of the last channel that sent an item, until its sender gives it up (CL12).
    pub(super) joined: Option<u64>,
    pub(super) started_again: bool,
}

impl<C> Base<C> {
    pub(super) fn new(shard: ShardIx) -> Base<C> {
        Base {
            shard,
            map: ShardState::default(),
            at: 0,
            transaction: None,
            used: 0,
            room: 0,
            is_stale: false,
            freed_to: None,
            keeps_until: 0,
            position: None,
            joined: None,
            started_again: true,
        }
    }

    pub(super) fn set_word<T: Table>(&self, cx: &mut Context<T>, is_open: bool) -> bool {
        let (shard, epoch) = (usize::from(self.shard), self.map.epoch);
        cx.memory.change_page(|page| page.words[shard] = Word { epoch, is_open })
    }

    /// Sets room aside up to `wanted`, as far as there is any.
    pub(super) fn set_room<T>(&mut self, cx: &mut Context<T>, wanted: u64) {
        let more = wanted.saturating_sub(self.room).min(cx.room.left);
        (self.room, cx.room.left) = (self.room + more, cx.room.left - more);
    }

    /// CL21: whether the copy counts: its primary has sent something since this process began.
    pub(super) fn is_confirmed(&self) -> bool {
        self.position.is_some_and(|position| position.is_whole) || broken(Rule::CountsAtStart)
    }

    /// Whether anything of an old copy is left, including room for it.
    pub(super) fn has_stale(&self) -> bool {
        self.is_stale || self.room > 0
    }

    /// Asks etcd for a new state of the shard, if its present state is the one that this node knows. The node `gone`,
    /// if given, is dead from then on.
    pub(super) fn transact<T>(&mut self, cx: &mut Context<T>, new: ShardState, gone: Option<NodeId>) {
        let (mut compare, mut put) = (Vec::new(), Vec::new());
        if let Some((gone, seen)) = gone.and_then(|gone| cx.seen.get(&gone).map(|seen| (gone, seen))) {
            compare.push((EtcdKey::Node(gone), seen.at));
            let mut key = seen.key.clone();
            key.alive = false;
            put.push((EtcdKey::Node(gone), EtcdValue::Node(key)));
        }
        self.ask(cx, new, compare, put);
    }

    /// Asks etcd for a state of the shard, if it is as this node knows it, and these nodes' keys are, too: none has beaten.
    pub(super) fn transact_if_silent<T>(&mut self, cx: &mut Context<T>, new: ShardState, silent: &NodeIds) {
        let seen = silent.iter().filter_map(|node| Some((EtcdKey::Node(node), cx.seen.get(&node)?.at)));
        let compare = seen.collect();
        self.ask(cx, new, compare, Vec::new());
    }

    fn ask<T>(
        &mut self,
        cx: &mut Context<T>,
        new: ShardState,
        mut compare: Vec<(EtcdKey, At)>,
        mut put: Vec<(EtcdKey, EtcdValue)>,
    ) {
        let name = EtcdKey::Shard(self.shard);
        let new = ShardState { revision: self.map.revision + 1, ..new };
        compare.insert(0, (name, self.at));
        put.insert(0, (name, EtcdValue::Shard(new)));
        let call = cx.transact(compare, put);
        self.transaction = Some(Pending { call, since: cx.now });
    }

    /// Asks etcd for a new epoch, with this node as primary, alone.
    pub(super) fn lead_alone<T>(&mut self, cx: &mut Context<T>, gone: Option<NodeId>, waits: bool) {
        let (epoch, in_sync) = (self.map.epoch + 1, NodeIds::of(cx.me));
        self.transact(cx, ShardState { epoch, primary: Some(cx.me), in_sync, waits, revision: 0 }, gone);
    }
}
