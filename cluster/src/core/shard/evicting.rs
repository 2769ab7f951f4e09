//! As primary: entries leave so that others find room (CL13).
//!
//! ```text
//! a request finds no room    it waits, and those behind it that take room, too
//! the turn is over           some entries are removed, by changes like all others: as much room as is waited for, and some more
//! they are gone everywhere   the first that waits is decided again
//! ```
//!
//! Only entries of the same shard leave. They leave in the order of the table, from where the last one left, which is
//! that of a hash; who was read since the last round stays for another one, where the table knows that (CLOCK).
//! Outcomes of requests (CL15) and owners (CL19) stay.
//!
//! Entries that have come to their end, or whose owner leaves, do so by changes, too, whether others need the room or not.

use super::changes::Change;
use super::{ITEMS_MAX, Replica};
use crate::core::message::{Effect, Key, Kind, Outcome, Output, Peer, Reply, Request, Wanted};
use crate::core::node::Shared;
use crate::core::state::{NodeId, Time};
use crate::core::table::Table;
use crate::core::{own, results};
use crate::faults::{Rule, broken};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Most entries that begin to leave in one turn.
const EVICTED_AT_ONCE: usize = 256;
/// Requests that wait for room, behind which no further one is looked at in the same turn.
const LOOKED_AT: usize = 64;
/// Walks of a turn, and of all shards of a node between two ticks: each looks at keys of other shards, too.
const WALKS_AT_ONCE: usize = 4;
pub(in crate::core) const WALKS_A_TICK: u32 = 64;
/// The part of a shard's room that is made free before it is asked for.
const AHEAD: u64 = 16;
/// Entries that were read and are passed over for one that leaves.
const PASSED_OVER: usize = 16;
/// Copies of requests of the node's own have numbers from here on.
const COPIES: u64 = 1 << 63;

/// Room that each shard takes at most of a node's memory, which is to have copies of `mine` of them. As much is left as a
/// node that is lost leaves to each of the others, if these are to have its copies. Else shards that grow first would
/// have the others' entries leave.
pub(in crate::core) fn share(memory: u64, mine: usize, nodes: usize, copies: u8) -> u64 {
    let kept = if nodes > usize::from(copies) { memory / nodes as u64 } else { 0 };
    ((memory - kept) / mine.max(1) as u64).max(1)
}

/// What a primary knows of entries that may leave.
#[derive(Debug)]
pub(super) struct Evicting<C> {
    /// Keys that a walk has seen, and that may be gone by now.
    keys: VecDeque<Key>,
    /// Where the walk goes on, if it has begun; whether anything was found that may leave, now or soon.
    from: Option<C>,
    has_begun: bool,
    has_found: bool,
    /// What requests need that wait for room, in this turn; and how many they are.
    asked: u64,
    waiting: usize,
    /// Since when none of them has found any.
    since: Option<Time>,
    /// One of them waits for an answer: it may find some.
    is_asking: bool,
    /// A round has found nothing that may leave.
    is_dry: bool,
}

impl<C> Evicting<C> {
    pub(super) fn new() -> Evicting<C> {
        Evicting {
            keys: VecDeque::new(),
            from: None,
            has_begun: false,
            has_found: false,
            asked: 0,
            waiting: 0,
            since: None,
            is_asking: false,
            is_dry: false,
        }
    }

    /// A request has found so much room.
    pub(super) fn found_room(&mut self, room: u64) {
        self.since.take_if(|_| room > 0);
    }

    /// The node has stood still: nobody has waited for long.
    pub(super) fn forgive(&mut self) {
        self.since = None;
    }

    /// Whether requests that were not looked at in this turn are to wait for the next one.
    pub(super) fn is_enough(&self) -> bool {
        self.waiting >= LOOKED_AT
    }
}

impl<C> Replica<C> {
    /// Room for a request that takes so much more, and so much in all if its key is gone meanwhile. `None`: it waits,
    /// for an answer, or until others have left. It does so for a TTL at most in which nobody finds room.
    pub(super) fn room_for<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        takes: u64,
        in_all: u64,
    ) -> Option<bool> {
        // Who comes later is behind those that wait, else a large one would wait for ever.
        if self.evicting.asked == 0 {
            let has_room = self.has_room(shared, now, self.used + takes);
            self.evicting.is_asking |= has_room.is_none();
            if !shared.evicts || has_room != Some(false) {
                return has_room;
            }
        }
        let is_over = self.evicting.since.is_some_and(|since| now >= since + shared.timing.ttl);
        // It never fits, whoever leaves.
        let most = shared.share.min(self.room + shared.room_left);
        let is_too_large = self.limit(shared.id).is_some_and(|limit| in_all > limit.max(most));
        if is_over || is_too_large || self.evicting.is_dry {
            return Some(false);
        }
        (self.evicting.asked, self.evicting.waiting) =
            (self.evicting.asked + takes, self.evicting.waiting + 1);
        None
    }

    /// The room that the shard's entries may take, here and at all replicas that count. `None`: it is not known yet.
    fn limit(&self, me: NodeId) -> Option<u64> {
        let mut limit = self.room;
        for node in self.map.in_sync.iter().chain(self.growing.iter()).filter(|node| self.counts(me, *node)) {
            limit = limit.min(self.channels.iter().find(|channel| channel.to == node)?.room?);
        }
        Some(limit)
    }

    /// The turn is over: has entries leave, if requests wait for room. True: nothing can leave, and these are to be
    /// decided again, now.
    pub(super) fn evict<T: Table<Cursor = C>>(&mut self, shared: &mut Shared<T>, now: Time) -> bool {
        let asked = std::mem::take(&mut self.evicting.asked);
        (self.evicting.waiting, self.evicting.is_dry) = (0, false);
        let is_asking = std::mem::take(&mut self.evicting.is_asking);
        if asked == 0 {
            self.evicting.since.take_if(|_| !is_asking);
            return false;
        }
        self.evicting.since.get_or_insert(now);
        let Some(limit) = self.limit(shared.id) else { return false };
        // Twice as much as is asked for, so that the next ones need not wait; but not much of the shard.
        let ahead = asked.min(limit.div_ceil(AHEAD));
        let leaving: u64 = self.busy.iter().map(|change| change.frees).sum();
        let mut short = (self.used + asked + ahead).saturating_sub(limit + leaving);
        let mut walks = WALKS_AT_ONCE;
        for _ in 0..EVICTED_AT_ONCE {
            let is_full = self.channels.iter().any(|channel| channel.log.len() >= ITEMS_MAX);
            if short == 0 || is_full {
                break;
            }
            let Some(key) = self.next_victim(shared, &mut walks) else { break };
            let frees = shared.cost_now(&key);
            short = short.saturating_sub(frees);
            self.begin_leaving(shared, now, key, Effect::Evicted, frees);
        }
        self.evicting.is_dry
    }

    /// The next entry that may leave. `None`: there is none so far in this round, or in this turn.
    fn next_victim<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        walks: &mut usize,
    ) -> Option<Key> {
        let mut passed_over = 0;
        loop {
            while let Some(key) = self.evicting.keys.pop_front() {
                // One that is being changed may leave in the next round.
                let is_busy = self.behind.contains_key(&key);
                let is_there = is_busy || shared.table.value_len(&key).is_some();
                self.evicting.has_found |= is_there;
                if is_busy || !is_there {
                    continue;
                }
                if passed_over < PASSED_OVER && shared.table.was_read(&key) {
                    passed_over += 1;
                    continue;
                }
                return Some(key);
            }
            if self.evicting.has_begun && self.evicting.from.is_none() {
                self.evicting.has_begun = false;
                if !std::mem::take(&mut self.evicting.has_found) {
                    self.evicting.is_dry = self.busy.is_empty();
                    return None;
                }
            }
            if *walks == 0 || shared.walks_left == 0 {
                return None;
            }
            (*walks, shared.walks_left) = (*walks - 1, shared.walks_left - 1);
            let (keys, next) = shared.table.walk(self.shard, self.evicting.from.take());
            let stays = |key: &Key| own::shard_of(key).is_some() && !broken(Rule::ResultsEvicted);
            self.evicting.keys.extend(keys.into_iter().filter(|key| !stays(key)));
            (self.evicting.from, self.evicting.has_begun) = (next, true);
        }
    }

    /// An entry that has come to its end, or whose owner leaves, does so, unless a change of its key is under way: that may
    /// give it another life.
    pub(in crate::core) fn expire<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        key: Key,
        why: Effect,
    ) {
        let is_busy = self.behind.contains_key(&key);
        if !self.may_change(shared, now) || is_busy && !broken(Rule::EndedMeanwhile) {
            return;
        }
        let frees = if is_busy { 0 } else { shared.cost_now(&key) };
        let effect = if results::is_result(&key) { Effect::Nothing } else { why };
        self.begin_leaving(shared, now, key, effect, frees);
    }

    /// An entry begins to leave.
    fn begin_leaving<T: Table<Cursor = C>>(
        &mut self,
        shared: &mut Shared<T>,
        now: Time,
        key: Key,
        effect: Effect,
        frees: u64,
    ) {
        shared.last_own += 1;
        let copy = COPIES | shared.last_own;
        shared.outputs.push(Output::Removes { copy, key: key.clone(), effect });
        if broken(Rule::EvictsAlone) {
            if shared.table.remove(&key).is_ok() {
                self.used -= frees;
            }
            return shared.reply(Peer::SELF, Reply { copy, ended: Ok(Outcome::Done) });
        }
        let stores = std::iter::once((key.clone(), None)).collect();
        let (kind, wanted) = (Kind::Remove, Wanted::Usual);
        let request = Request { copy, id: None, shard: self.shard, key, kind, wanted };
        let (outcome, numbers) = (Outcome::Done, SmallVec::new());
        let change = Change { peer: Peer::SELF, request, stores, outcome, effect, frees, numbers };
        self.begin(shared, now, change);
    }
}
