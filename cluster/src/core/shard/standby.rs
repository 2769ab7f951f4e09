//! As standby or newcomer: what comes over a channel, and what becomes of copies.

use super::{Replica, Role};
use crate::core::message::{ChannelId, Item, Message, Store, value_len};
use crate::core::node::{Shared, Standing};
use crate::core::state::{NodeId, NodeIds, ShardState, Time};
use crate::core::table::Table;
use crate::faults::{Rule, broken};

/// As standby or newcomer: what has come over the last channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) channel: ChannelId,
    pub(super) number: u64,
    /// Without a gap, and not given up.
    pub(super) is_whole: bool,
    /// Somebody waits for an answer.
    pub(super) is_due: bool,
    pub(super) is_refused: bool,
}

impl<C> Replica<C> {
    /// CL8: takes the shard over if its primary has been silent for long enough.
    pub(super) fn take_over<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let Some(primary) = self.map.primary.filter(|_| self.transaction.is_none()) else { return };
        let mut gone = None;
        if !broken(Rule::TakenWhileItBeats) {
            let Some(seen) = shared.seen.get(&primary) else { return };
            let ttl = if broken(Rule::NoTtl) { 0 } else { shared.timing.ttl };
            if seen.key.alive && now < seen.since + ttl {
                return;
            }
            gone = Some(primary);
        }
        let waits = self.map.waits && !broken(Rule::WaitForgotten);
        let in_sync = NodeIds::of(shared.id);
        let new =
            ShardState { epoch: self.map.epoch + 1, primary: Some(shared.id), in_sync, waits, revision: 0 };
        self.transact(shared, now, new, gone);
    }

    /// CL6: an item has come over a channel. Takes it if it is next, and the primary's.
    pub(in crate::core) fn item_comes<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        from: NodeId,
        channel: ChannelId,
        number: u64,
        item: Item,
    ) {
        let is_primarys = channel.epoch == self.map.epoch && self.map.primary == Some(from);
        let is_standby = matches!(self.role, Role::Standby | Role::None);
        if !is_primarys || !is_standby || shared.standing != Standing::Good {
            return;
        }
        let is_first = number == 1 && self.position.is_none_or(|position| position.channel < channel);
        let is_next = self.position.is_some_and(|position| {
            let has_gap = broken(Rule::ChannelWithGaps) && number > position.number;
            position.channel == channel && position.is_whole && (number == position.number + 1 || has_gap)
        });
        let mut is_refused = false;
        if is_first || is_next {
            match self.apply(shared, now, item) {
                None => return,
                Some(is_taken) => is_refused = !is_taken,
            }
            let position = Position { channel, number, is_whole: true, is_due: true, is_refused };
            (self.position, self.joined) = (Some(position), Some(channel.epoch));
        } else if let Some(position) = &mut self.position
            && position.channel == channel
        {
            position.is_due = position.is_whole;
        }
        if is_refused {
            self.answer(shared);
        }
    }

    /// Answers what has come.
    pub(in crate::core) fn answer<T>(&mut self, shared: &mut Shared<T>)
    where
        T: Table<Cursor = C>,
    {
        let (shard, room) = (self.shard, self.room);
        let Some(position) = &mut self.position else { return };
        if !std::mem::take(&mut position.is_due) || shared.standing != Standing::Good {
            return;
        }
        let Position { channel, number, is_refused, .. } = *position;
        position.is_refused = false;
        if let Some(primary) = self.map.primary {
            shared.tell(primary, Message::Answer { shard, channel, number, room, is_refused });
        }
    }

    /// Whether the item was taken. `None`: there is no answer, for now or at all.
    pub(super) fn apply<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        item: Item,
    ) -> Option<bool> {
        match item {
            Item::Begin { after } => shared.feed.goes_on(self.shard, after),
            Item::Join { room, after } => {
                // Leases on an old copy may last (CL9). The primary sends this again.
                if self.is_stale && !broken(Rule::OldCopyKept) {
                    self.free_stale(shared, now);
                    if self.is_stale {
                        return None;
                    }
                }
                self.set_room(shared, room + shared.growth_of(room));
                shared.feed.goes_on(self.shard, after);
            }
            Item::Room(room) => self.set_room(shared, room),
            Item::Change(effect, stores) => {
                let is_taken = self.apply_stores(shared, &stores)?;
                if let Some(store) = stores.first().filter(|_| is_taken) {
                    shared.feed.push(self.shard, self.map.epoch, effect, store);
                }
                return Some(is_taken);
            }
            Item::Walked(key, entry) => return self.apply_stores(shared, &[(key, Some(entry))]),
        }
        Some(true)
    }

    pub(super) fn apply_stores<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        stores: &[Store],
    ) -> Option<bool> {
        let mut used = self.used;
        for store in stores {
            used = used - shared.cost_now(&store.0) + shared.cost(&store.0, value_len(store));
        }
        if used > self.room && used > self.used {
            return match () {
                () if broken(Rule::NoRoomHeld) => Some(true),
                () if broken(Rule::RefusedLate) => Some(false),
                () => None,
            };
        }
        if shared.store_all(stores).is_err() {
            // Not answered: the primary leaves it out. Some of it may be stored, and nobody would be told (CL18).
            shared.feed.forget(self.shard);
            if let Some(position) = &mut self.position {
                position.is_whole = false;
            }
            // Half of it may be: whoever begins again with this memory is to finish it first (CL15).
            if stores.len() > 1 {
                shared.fails(self.shard);
            }
            return None;
        }
        self.used = used;
        self.is_stale |= !stores.is_empty();
        Some(true)
    }

    pub(in crate::core) fn given_up(&mut self, channel: ChannelId) {
        if let Some(position) = &mut self.position
            && position.channel == channel
        {
            (position.is_whole, position.is_due) = (false, false);
            self.joined = None;
        }
    }

    /// CL9 and CL12: when a copy that is out may be given up. Each walk looks at the whole table, so they go one by one.
    pub(super) fn free_copy<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        let is_asked_for = self.joined == Some(self.map.epoch) && !broken(Rule::CopyGivenUp);
        if !is_asked_for && self.has_stale() && shared.frees_left > 0 {
            shared.frees_left -= 1;
            self.free_stale(shared, now);
        }
    }

    /// Whether there is anything of an old copy, room for it included.
    pub(super) fn has_stale(&self) -> bool {
        self.is_stale || self.room > 0
    }

    /// Removes some of an old copy, if no lease on it can last.
    pub(super) fn free_stale<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) {
        if now < self.keeps_until {
            return;
        }
        if let Some(position) = &mut self.position {
            position.is_whole = false;
        }
        for _ in 0..T::WALKS_AT_ONCE {
            let (keys, next) = shared.table.walk(self.shard, self.freed_to.take());
            for key in keys {
                let cost = shared.cost_now(&key);
                if shared.store(&(key, None)).is_err() {
                    // From the beginning, next time.
                    return;
                }
                self.used -= cost;
            }
            self.freed_to = next;
            if self.freed_to.is_none() {
                shared.room_left += self.room;
                (self.room, self.is_stale) = (0, false);
                shared.feed.forget(self.shard);
                return;
            }
        }
    }

    /// A copy that is out stays as it is until all leases on it are over (CL9).
    pub(super) fn leaves<T>(&mut self, shared: &Shared<T>, now: Time) {
        let is_freed = broken(Rule::FrozenCopyFreed);
        self.keeps_until = if is_freed { 0 } else { now + shared.timing.wait() };
    }
}
