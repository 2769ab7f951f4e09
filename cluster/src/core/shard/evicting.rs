//! As primary: eviction (CL13).
//!
//! ```text
//! a request finds no room    it waits, and so do later ones that take room
//! the turn is over           some entries are removed, by changes like all others: enough for those that wait, and some more
//! they are gone everywhere   the first that waits is decided again
//! ```
//!
//! Only entries of the same shard are evicted. They go in the order of the table, from the last one on, which is the
//! order of a hash. An entry that was read since the last round stays for another one, if the table knows that (CLOCK).
//! Outcomes of requests (CL15) and owners (CL19) stay.
//!
//! Entries that have ended, or whose owner leaves, are removed by changes, too, whether the room is needed or not.

use super::change::Change;
use super::channel::Channel;
use super::primary::{Fits, Primary};
use crate::core::context::Context;
use crate::core::message::{Effect, Key, Kind, Outcome, Peer, Reply};
use crate::core::table::Table;
use crate::core::{own, results};
use crate::faults::{Rule, broken};

/// The most entries that one turn begins to evict.
const EVICTED_AT_ONCE: usize = 256;
/// Walks of one turn, and of all shards of a node between two ticks. Each walk looks at keys of other shards, too.
const WALKS_AT_ONCE: usize = 4;
pub(in crate::core) const WALKS_A_TICK: u32 = 64;
/// The part of a shard's room that is freed ahead.
const AHEAD: u64 = 16;
/// The most entries that are passed over, because they were read, for each that is evicted.
const PASSED_OVER: usize = 16;

/// The most room that a shard takes of a node's memory, which should have copies of `mine` shards. As much is left free
/// as a lost node would leave to each of the others, if they take over its copies. Otherwise shards that grow first
/// would evict the others' entries.
pub(in crate::core) fn share(memory: u64, mine: usize, nodes: usize, copies: u8) -> u64 {
    let kept = if nodes > usize::from(copies) { memory / nodes as u64 } else { 0 };
    ((memory - kept) / mine.max(1) as u64).max(1)
}

impl<T: Table> Primary<T> {
    /// Room for a request that takes this much more, and this much in all if its key is gone meanwhile. It waits for an
    /// answer, or until others were evicted, for at most a TTL in which no request finds room.
    pub(super) fn room_for(&mut self, cx: &mut Context<T>, takes: u64, in_all: u64) -> Fits {
        // A later request waits behind these, or a large one would wait for ever.
        if self.eviction.asked == 0 {
            let has_room = self.has_room(cx, self.base.used + takes);
            self.eviction.is_asking |= has_room == Fits::NotYet;
            if !cx.room.evicts || has_room != Fits::No {
                return has_room;
            }
        }
        let is_over = self.eviction.since.is_some_and(|since| cx.now >= since + cx.timing.ttl);
        // It never fits, whatever is evicted.
        let most = cx.room.share.min(self.base.room + cx.room.left);
        let is_too_large = self.limit(cx.me).is_some_and(|limit| in_all > limit.max(most));
        if is_over || is_too_large || self.eviction.is_dry {
            return Fits::No;
        }
        (self.eviction.asked, self.eviction.waiting) =
            (self.eviction.asked + takes, self.eviction.waiting + 1);
        Fits::NotYet
    }

    /// The turn is over: evicts entries, if requests wait for room. `true`: nothing can be evicted, and the waiting
    /// requests have to be decided again now.
    pub(super) fn evict(&mut self, cx: &mut Context<T>) -> bool {
        let asked = std::mem::take(&mut self.eviction.asked);
        (self.eviction.waiting, self.eviction.is_dry) = (0, false);
        let is_asking = std::mem::take(&mut self.eviction.is_asking);
        if asked == 0 {
            self.eviction.since.take_if(|_| !is_asking);
            return false;
        }
        self.eviction.since.get_or_insert(cx.now);
        let Some(limit) = self.limit(cx.me) else { return false };
        // Twice as much as is asked for, so that the next requests need not wait, but only a small part of the shard.
        let ahead = asked.min(limit.div_ceil(AHEAD));
        let leaving: u64 = self.busy.iter().map(|change| change.frees).sum();
        let mut short = (self.base.used + asked + ahead).saturating_sub(limit + leaving);
        let mut walks = WALKS_AT_ONCE;
        for _ in 0..EVICTED_AT_ONCE {
            let is_full = self.channels.iter().any(Channel::is_full);
            if short == 0 || is_full {
                break;
            }
            let Some(key) = self.next_victim(cx, &mut walks) else { break };
            let frees = cx.memory.cost_now(&key);
            short = short.saturating_sub(frees);
            self.begin_leaving(cx, key, Effect::Evicted, frees);
        }
        self.eviction.is_dry
    }

    /// The next entry that may be evicted. `None`: none was found so far in this round, or in this turn.
    fn next_victim(&mut self, cx: &mut Context<T>, walks: &mut usize) -> Option<Key> {
        let mut passed_over = 0;
        loop {
            while let Some(key) = self.eviction.keys.pop_front() {
                // An entry that is being changed may be evicted in the next round.
                let is_busy = self.behind.contains_key(&key);
                let is_there = is_busy || cx.memory.table.value_len(&key).is_some();
                self.eviction.has_found |= is_there;
                if is_busy || !is_there {
                    continue;
                }
                if passed_over < PASSED_OVER && cx.memory.table.was_read(&key) {
                    passed_over += 1;
                    continue;
                }
                return Some(key);
            }
            if self.eviction.has_begun && self.eviction.from.is_none() {
                self.eviction.has_begun = false;
                if !std::mem::take(&mut self.eviction.has_found) {
                    self.eviction.is_dry = self.busy.is_empty();
                    return None;
                }
            }
            if *walks == 0 || cx.walks_left == 0 {
                return None;
            }
            (*walks, cx.walks_left) = (*walks - 1, cx.walks_left - 1);
            let (keys, next) = cx.memory.table.walk(self.base.shard, self.eviction.from.take());
            let stays = |key: &Key| own::shard_of(key).is_some() && !broken(Rule::ResultsEvicted);
            self.eviction.keys.extend(keys.into_iter().filter(|key| !stays(key)));
            (self.eviction.from, self.eviction.has_begun) = (next, true);
        }
    }

    /// Removes an entry that has ended, or whose owner leaves, unless a change of its key is under way: that may give
    /// it another life.
    pub(in crate::core) fn expire(&mut self, cx: &mut Context<T>, key: Key, why: Effect) {
        let is_busy = self.behind.contains_key(&key);
        if !self.may_change(cx) || is_busy && !broken(Rule::EndedMeanwhile) {
            return;
        }
        let frees = if is_busy { 0 } else { cx.memory.cost_now(&key) };
        let effect = if results::is_result(&key) { Effect::Nothing } else { why };
        self.begin_leaving(cx, key, effect, frees);
    }

    /// Begins to remove an entry.
    fn begin_leaving(&mut self, cx: &mut Context<T>, key: Key, effect: Effect, frees: u64) {
        let copy = cx.outbox.removes(key.clone(), effect);
        if broken(Rule::EvictsAlone) {
            if cx.memory.table.remove(&key).is_ok() {
                self.base.used -= frees;
            }
            return cx.outbox.reply(Peer::SELF, Reply { copy, ended: Ok(Outcome::Done) });
        }
        self.begin(cx, Change::own(self.base.shard, copy, Kind::Remove, (key, None), effect, frees));
    }
}
