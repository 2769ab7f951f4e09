//! As standby or newcomer: items of a channel, and old copies.

use super::base::{Base, Position};
use crate::core::context::{Context, Standing};
use crate::core::ids::NodeId;
use crate::core::message::{ChannelId, Item, Message, Store, value_len};
use crate::core::table::Table;
use crate::faults::{Rule, broken};

/// The result of taking an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Yes,
    /// It is refused. Only if a test breaks a rule.
    Refused,
    /// There is no answer, for now or at all.
    No,
}

impl<C> Base<C> {
    /// CL8: takes the shard over if its primary was silent for long enough.
    pub(super) fn take_over<T: Table<Cursor = C>>(&mut self, cx: &mut Context<T>) {
        let Some(primary) = self.map.primary.filter(|_| self.transaction.is_none()) else { return };
        let waits = self.map.waits && !broken(Rule::WaitForgotten);
        if broken(Rule::TakenWhileItBeats) {
            self.lead_alone(cx, None, waits);
        } else if self.is_silent(cx, primary) {
            self.lead_alone(cx, Some(primary), waits);
        }
    }

    /// Whether a node's key is dead, or has not changed for the TTL.
    fn is_silent<T>(&self, cx: &Context<T>, node: NodeId) -> bool {
        let ttl = if broken(Rule::NoTtl) { 0 } else { cx.timing.ttl };
        cx.seen.get(&node).is_some_and(|seen| !seen.key.alive || cx.now >= seen.since + ttl)
    }

    /// CL6: an item has come over a channel of the primary. Takes it if it is the next one. The copy has room up to
    /// `most`.
    pub(super) fn item_comes<T: Table<Cursor = C>>(
        &mut self,
        cx: &mut Context<T>,
        most: u64,
        channel: ChannelId,
        number: u64,
        item: Item,
    ) {
        let is_first = number == 1 && self.position.is_none_or(|position| position.channel < channel);
        let is_next = self.position.is_some_and(|position| {
            let has_gap = broken(Rule::ChannelWithGaps) && number > position.number;
            position.channel == channel && position.is_whole && (number == position.number + 1 || has_gap)
        });
        if is_first || is_next {
            let taken = self.apply(cx, most, item);
            if taken == Taken::No {
                return;
            }
            let is_refused = taken == Taken::Refused;
            let position = Position { channel, number, is_whole: true, is_due: true, is_refused };
            (self.position, self.joined) = (Some(position), Some(channel.epoch));
            if is_refused {
                self.answer(cx);
            }
        } else if let Some(position) = &mut self.position
            && position.channel == channel
        {
            position.is_due = position.is_whole;
        }
    }

    /// Answers the items that have come.
    pub(super) fn answer<T>(&mut self, cx: &mut Context<T>) {
        let (shard, room) = (self.shard, self.room);
        let Some(position) = &mut self.position else { return };
        if !std::mem::take(&mut position.is_due) || cx.standing != Standing::Good {
            return;
        }
        let Position { channel, number, is_refused, .. } = *position;
        position.is_refused = false;
        if let Some(primary) = self.map.primary {
            cx.outbox.tell(primary, Message::Answer { shard, channel, number, room, is_refused });
        }
    }

    fn apply<T: Table<Cursor = C>>(&mut self, cx: &mut Context<T>, most: u64, item: Item) -> Taken {
        match item {
            Item::Begin { after } => cx.feed.goes_on(self.shard, after),
            Item::Join { room, after } => {
                // Leases on an old copy may last (CL9). The primary repeats this item.
                if self.is_stale && !broken(Rule::OldCopyKept) {
                    self.free_stale(cx);
                    if self.is_stale {
                        return Taken::No;
                    }
                }
                let room = room + cx.room.growth_of(room);
                self.set_room(cx, room.min(most));
                cx.feed.goes_on(self.shard, after);
            }
            Item::Room(room) => self.set_room(cx, room.min(most)),
            Item::Change(effect, stores) => {
                let taken = self.apply_stores(cx, &stores);
                if let Some(store) = stores.first().filter(|_| taken == Taken::Yes) {
                    cx.feed.push(self.shard, self.map.epoch, effect, store);
                }
                return taken;
            }
            Item::Walked(key, entry) => return self.apply_stores(cx, &[(key, Some(entry))]),
        }
        Taken::Yes
    }

    fn apply_stores<T: Table<Cursor = C>>(&mut self, cx: &mut Context<T>, stores: &[Store]) -> Taken {
        let mut used = self.used;
        for store in stores {
            used = used - cx.memory.cost_now(&store.0) + cx.memory.cost(&store.0, value_len(store));
        }
        if used > self.room && used > self.used {
            return match () {
                () if broken(Rule::NoRoomHeld) => Taken::Yes,
                () if broken(Rule::RefusedLate) => Taken::Refused,
                () => Taken::No,
            };
        }
        if cx.memory.store_all(stores).is_err() {
            // There is no answer, so the primary leaves it out. Some of the change may be stored, and no follower would
            // be told (CL18).
            cx.feed.forget(self.shard);
            if let Some(position) = &mut self.position {
                position.is_whole = false;
            }
            // Half of it may be stored. A later process with this memory has to complete it first (CL15).
            if stores.len() > 1 {
                cx.fails(self.shard);
            }
            return Taken::No;
        }
        self.used = used;
        self.is_stale |= !stores.is_empty();
        Taken::Yes
    }

    pub(super) fn given_up(&mut self, channel: ChannelId) {
        if let Some(position) = &mut self.position
            && position.channel == channel
        {
            (position.is_whole, position.is_due) = (false, false);
            self.joined = None;
        }
    }

    /// CL9 and CL12: gives up a copy that is not in sync any more, when it may. Each walk looks at the whole table, so
    /// copies go one by one.
    pub(super) fn free_copy<T: Table<Cursor = C>>(&mut self, cx: &mut Context<T>) {
        let is_asked_for = self.joined == Some(self.map.epoch) && !broken(Rule::CopyGivenUp);
        if !is_asked_for && self.has_stale() && cx.frees_left > 0 {
            cx.frees_left -= 1;
            self.free_stale(cx);
        }
    }

    /// Removes some of an old copy, if no lease on it can last.
    fn free_stale<T: Table<Cursor = C>>(&mut self, cx: &mut Context<T>) {
        if cx.now < self.keeps_until {
            return;
        }
        if let Some(position) = &mut self.position {
            position.is_whole = false;
        }
        for _ in 0..T::WALKS_AT_ONCE {
            let (keys, next) = cx.memory.table.walk(self.shard, self.freed_to.take());
            for key in keys {
                let cost = cx.memory.cost_now(&key);
                if cx.memory.store(&(key, None)).is_err() {
                    // The next walk starts from the beginning.
                    return;
                }
                self.used -= cost;
            }
            self.freed_to = next;
            if self.freed_to.is_none() {
                cx.room.left += self.room;
                (self.room, self.is_stale) = (0, false);
                cx.feed.forget(self.shard);
                return;
            }
        }
    }

    /// A copy that is not in sync any more stays unchanged until all leases on it are over (CL9).
    pub(super) fn leaves<T>(&mut self, cx: &Context<T>) {
        let is_freed = broken(Rule::FrozenCopyFreed);
        self.keeps_until = if is_freed { 0 } else { cx.now + cx.timing.wait() };
    }
}
