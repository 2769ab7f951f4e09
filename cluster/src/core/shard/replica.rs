//! A node's part in one shard, and how etcd changes it.

use super::base::Base;
use super::primary::Primary;
use crate::core::context::Context;
use crate::core::etcd::{At, EtcdAnswer};
use crate::core::ids::{NodeId, ShardIx, Time};
use crate::core::message::{ChannelId, Entry, Item, Life, NotDone, Peer, Request};
use crate::core::state::ShardState;
use crate::core::table::{Stock, Table};
use crate::faults::{Rule, broken};
use serde::{Deserialize, Serialize};

/// A node's role for a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// It has no copy, or is a newcomer.
    None,
    /// It has a copy in sync.
    Standby,
    /// It serves the shard.
    Primary,
    /// It is named primary, but has started again, and asks for a new epoch (CL10).
    Again,
}

/// A node's part in one shard.
#[derive(Debug)]
pub enum Replica<T: Table> {
    /// It has no copy, or is a newcomer.
    Away(Base<T::Cursor>),
    /// It has a copy in sync.
    Standby(Base<T::Cursor>),
    /// It serves the shard.
    Primary(Box<Primary<T>>),
    /// It is named primary, but has started again (CL10).
    Again(Base<T::Cursor>),
}

impl<T: Table> Replica<T> {
    /// A node that starts again, with its table's stock of the shard.
    pub(in crate::core) fn new(cx: &mut Context<T>, shard: ShardIx, stock: Stock) -> Replica<T> {
        let mut base = Base::new(shard);
        (base.used, base.is_stale) = (stock.bytes, stock.entries > 0);
        for key in stock.owners {
            if let Some(value) = cx.memory.table.get(&key) {
                cx.memory.owners.see(&(key, Some(Entry { value, life: Life::Lasting })));
            }
        }
        base.set_room(cx, base.used);
        // Whatever its role was, leases of clients may last.
        base.keeps_until = Time::MAX;
        Replica::Away(base)
    }

    fn base(&self) -> &Base<T::Cursor> {
        match self {
            Replica::Away(base) | Replica::Standby(base) | Replica::Again(base) => base,
            Replica::Primary(primary) => &primary.base,
        }
    }

    fn base_mut(&mut self) -> &mut Base<T::Cursor> {
        match self {
            Replica::Away(base) | Replica::Standby(base) | Replica::Again(base) => base,
            Replica::Primary(primary) => &mut primary.base,
        }
    }

    /// The part of a primary.
    pub(in crate::core) fn primary(&self) -> Option<&Primary<T>> {
        match self {
            Replica::Primary(primary) => Some(primary),
            Replica::Away(_) | Replica::Standby(_) | Replica::Again(_) => None,
        }
    }

    /// The part of a primary.
    pub(in crate::core) fn primary_mut(&mut self) -> Option<&mut Primary<T>> {
        match self {
            Replica::Primary(primary) => Some(primary),
            Replica::Away(_) | Replica::Standby(_) | Replica::Again(_) => None,
        }
    }

    /// The shard.
    pub fn shard(&self) -> ShardIx {
        self.base().shard
    }

    /// The node's role for the shard.
    pub fn role(&self) -> Role {
        match self {
            Replica::Away(_) => Role::None,
            // CL21: whoever goes by it is to wait.
            Replica::Standby(base) if !base.is_confirmed() => Role::None,
            Replica::Standby(_) => Role::Standby,
            Replica::Primary(_) => Role::Primary,
            Replica::Again(_) => Role::Again,
        }
    }

    /// The shard's state, as etcd last had it.
    pub fn state(&self) -> &ShardState {
        &self.base().map
    }

    /// The room that its entries take, in bytes.
    pub fn used(&self) -> u64 {
        self.base().used
    }

    /// The room that is set aside for it, in bytes.
    pub fn room(&self) -> u64 {
        self.base().room
    }

    /// The number of changes under way.
    pub fn under_way(&self) -> usize {
        self.primary().map_or(0, |primary| primary.busy.len())
    }

    /// The nodes to which it has a channel.
    pub fn channels(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.primary().into_iter().flat_map(|primary| &primary.channels).map(|channel| channel.to)
    }

    /// Whether a call of etcd has no answer yet.
    pub fn has_asked(&self) -> bool {
        self.base().transaction.is_some()
    }

    // ---- what etcd says ----

    pub(in crate::core) fn answered(&mut self, answer: &EtcdAnswer) {
        self.base_mut().transaction.take_if(|transaction| answer.is_of(transaction.call));
    }

    /// CL10: takes the role that etcd names after the new life has begun.
    pub(in crate::core) fn resume(&mut self, cx: &mut Context<T>) {
        if let Replica::Primary(primary) = self {
            primary.resume(cx);
        }
    }

    pub(in crate::core) fn learn(&mut self, cx: &mut Context<T>, state: &ShardState, at: At) {
        let base = self.base_mut();
        // A role can be taken only when the word says so. If that fails, it is tried again with the next answer.
        let was_open = cx.memory.page.words[usize::from(base.shard)].is_open;
        let is_new_epoch = state.epoch != base.map.epoch;
        if state.revision <= base.map.revision || is_new_epoch && was_open && !base.set_word(cx, false) {
            return;
        }
        let old = std::mem::replace(&mut base.map, state.clone());
        (base.at, base.transaction) = (at, None);
        cx.memory.note(base.shard, state);
        if is_new_epoch {
            let was = std::mem::replace(self, Replica::Away(Base::new(0)));
            *self = was.take_role(cx);
            if let Replica::Primary(primary) = self {
                primary.progress(cx);
            }
        } else if let Replica::Primary(primary) = self {
            primary.learns(cx, &old);
        } else if let Replica::Standby(_) | Replica::Away(_) = self {
            let was_in = matches!(self, Replica::Standby(_));
            *self = Replica::copy(std::mem::replace(self.base_mut(), Base::new(0)), cx.me);
            if let (true, Replica::Away(base)) = (was_in, self) {
                base.leaves(cx);
            }
        }
    }

    /// A new epoch. The word is closed.
    fn take_role(self, cx: &mut Context<T>) -> Replica<T> {
        let mut base = match self {
            Replica::Away(base) | Replica::Standby(base) | Replica::Again(base) => base,
            Replica::Primary(primary) => primary.ends(cx),
        };
        cx.memory.owners.begin_anew(base.shard);
        if base.map.primary != Some(cx.me) {
            // A primary that the node has forgotten may be about to name it (CL12). If nobody serves the shard, nobody
            // names it.
            if std::mem::take(&mut base.started_again) && base.is_stale && base.map.primary.is_some() {
                base.joined = Some(base.map.epoch);
            }
            base.leaves(cx);
            base.set_word(cx, false);
            return Replica::copy(base, cx.me);
        }
        if base.started_again && !broken(Rule::OldEpochAtStart) {
            // Changes under way are not known any more: it asks for a new epoch, alone.
            base.set_word(cx, false);
            return Replica::Again(base);
        }
        let waits = base.map.waits && !broken(Rule::NoWaitAfterHandOver);
        let first = if waits { cx.now + cx.timing.wait() } else { 0 };
        (base.started_again, base.is_stale) = (false, true);
        cx.feed.leads(base.shard, base.map.epoch);
        base.set_word(cx, true);
        let mut primary = Box::new(Primary::new(base, first));
        primary.begin_channels(cx);
        Replica::Primary(primary)
    }

    /// A copy, in sync or not, as etcd says.
    fn copy(base: Base<T::Cursor>, me: NodeId) -> Replica<T> {
        if base.map.in_sync.has(me) { Replica::Standby(base) } else { Replica::Away(base) }
    }

    // ---- what comes, and what is due ----

    pub(in crate::core) fn request_comes(&mut self, cx: &mut Context<T>, peer: Peer, request: Request) {
        match self {
            Replica::Primary(primary) if cx.is_good() => primary.request_comes(cx, peer, request),
            _ => cx.outbox.not_done(peer, &request, NotDone::NotServed),
        }
    }

    /// CL6: an item has come over a channel. Takes it if it is the next one, and the primary's.
    pub(in crate::core) fn item_comes(
        &mut self,
        cx: &mut Context<T>,
        from: NodeId,
        channel: ChannelId,
        number: u64,
        item: Item,
    ) {
        let base = self.base();
        let is_primarys = channel.epoch == base.map.epoch && base.map.primary == Some(from);
        if !is_primarys || !cx.is_good() {
            return;
        }
        let share = cx.room.share;
        match self {
            // A new copy may be as large as the others. A present one grows up to its share.
            Replica::Away(base) => base.item_comes(cx, u64::MAX, channel, number, item),
            Replica::Standby(base) => base.item_comes(cx, share, channel, number, item),
            Replica::Primary(_) | Replica::Again(_) => {}
        }
    }

    /// Answers the items that have come.
    pub(in crate::core) fn answer(&mut self, cx: &mut Context<T>) {
        self.base_mut().answer(cx);
    }

    pub(in crate::core) fn given_up(&mut self, channel: ChannelId) {
        self.base_mut().given_up(channel);
    }

    pub(in crate::core) fn tick(&mut self, cx: &mut Context<T>) {
        if !cx.is_good() {
            return;
        }
        // The answer was lost. The node learns the result from the next answer of etcd.
        self.base_mut().transaction.take_if(|pending| cx.now >= pending.since + cx.timing.call);
        match self {
            Replica::Primary(primary) => primary.tick(cx),
            Replica::Standby(base) => base.take_over(cx),
            Replica::Away(base) => base.free_copy(cx),
            // CL10: asks for a new epoch, alone. The transaction's answer is taken as any other.
            Replica::Again(base) if base.transaction.is_none() => {
                base.started_again = false;
                base.lead_alone(cx, None, base.map.waits);
            }
            Replica::Again(_) => {}
        }
    }

    /// Becomes primary of a shard of which no node has a copy: no node ever served it, or it begins again. The rest of
    /// an old copy is removed first.
    pub(in crate::core) fn claim(&mut self, cx: &mut Context<T>) -> bool {
        let base = self.base_mut();
        let is_free = base.map.primary.is_none() && base.at != 0 && !base.has_stale();
        let may = is_free && cx.is_good() && base.transaction.is_none();
        if may {
            base.lead_alone(cx, None, base.map.waits);
        }
        may
    }
}
