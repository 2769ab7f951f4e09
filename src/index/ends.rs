//! When entries end: a note for each entry that has an end now, and for no other (V3).
//!
//! ```text
//! an entry that has an end   comes: its time is noted      leaves: its note goes
//!                            is replaced: the note goes to its next time, if that is sooner
//! a time has come            under the key's lock the note goes to the next time of what is there
//! ```
//!
//! All of that happens under the key's lock, behind the slot write. So there are as many notes as entries that have an
//! end, whatever was put, replaced, evicted or removed before. The lock of the notes is a leaf.
//!
//! Keys of one hash share a note, which has the soonest of their times.

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;

use crate::base::sync::{Mutex, lock};
use crate::faults::{Rule, obey};
use crate::layout::hash::First;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hashes that are taken at a time. Their slots are prefetched before the first is looked at: most of them are not in
/// the processor's caches. With 32, a key takes a fifth less time.
pub(super) const DUE_AT_A_TIME: usize = 32;
/// Hashes whose times have come.
pub(super) type DueHashes = SmallVec<[First; DUE_AT_A_TIME]>;

/// Notes for which memory is kept when there are fewer.
const KEPT: usize = 1 << 10;

/// The notes of a table.
#[derive(Debug)]
pub(super) struct EndNotes {
    times: Mutex<EndTimes>,
    /// The soonest of the times, in ticks; `u64::MAX`: none. Relaxed: a hint, stored under the lock.
    soonest: AtomicU64,
}

/// What is noted, under the lock.
#[derive(Debug, Default)]
struct EndTimes {
    /// The hashes of keys by ticks.
    due: BTreeMap<u32, Vec<First>>,
    /// Where each hash stands there.
    of: FxHashMap<First, EndNote>,
    /// Hashes that several keys with ends have: how many more than one.
    more: FxHashMap<First, u32>,
}

/// Where a hash stands among those of its tick.
#[derive(Clone, Copy, Debug)]
struct EndNote {
    tick: u32,
    at: u32,
}

impl Default for EndNotes {
    fn default() -> EndNotes {
        EndNotes { times: Mutex::default(), soonest: AtomicU64::new(u64::MAX) }
    }
}

impl EndNotes {
    /// Notes that an entry with this hash came, and that it ends with this tick. Its key's lock is held.
    #[cold]
    pub fn came(&self, hash: First, tick: u32) {
        self.change(|times| times.came(hash, tick));
    }

    /// Notes that an entry with this hash left, which had an end. Its key's lock is held.
    #[cold]
    pub fn left(&self, hash: First) {
        obey(Rule::EndForgotten, || self.change(|times| times.left(hash)));
    }

    /// Notes that an entry was replaced: it ended with the tick `before`, and ends with the tick `now`. 0: it has no
    /// end. Its key's lock is held.
    #[cold]
    pub fn replaced(&self, hash: First, before: u32, now: u32) {
        match (before, now) {
            (0, 0) => {}
            (0, tick) => self.came(hash, tick),
            (_, 0) => self.left(hash),
            (_, tick) => self.change(|times| times.sooner(hash, tick)),
        }
    }

    /// Notes that the first of the entries with this hash ends with this tick. Their keys' lock is held.
    pub fn set(&self, hash: First, tick: u32) {
        self.change(|times| times.set(hash, tick));
    }

    /// Takes up to `most` hashes whose times have come by `now`. They are taken again at `again`, unless another time
    /// is noted for them first.
    pub fn take_due(&self, now: u64, again: u32, most: usize) -> DueHashes {
        if self.soonest() > now {
            return DueHashes::new();
        }
        self.change(|times| {
            let mut taken = DueHashes::new();
            while taken.len() < most
                && let Some((&tick, hashes)) = times.due.first_key_value()
                && u64::from(tick) <= now
            {
                let hash = *hashes.last().expect("a tick has a hash");
                times.set(hash, again);
                taken.push(hash);
            }
            taken
        })
    }

    /// The soonest time, in ticks; `u64::MAX`: none. It may change at any moment.
    pub fn soonest(&self) -> u64 {
        self.soonest.load(Ordering::Relaxed)
    }

    /// The number of notes.
    pub fn len(&self) -> u64 {
        lock(&self.times).of.len() as u64
    }

    fn change<R>(&self, change: impl FnOnce(&mut EndTimes) -> R) -> R {
        let mut times = lock(&self.times);
        let changed = change(&mut times);
        let soonest = times.due.first_key_value().map_or(u64::MAX, |(&tick, _)| tick.into());
        self.soonest.store(soonest, Ordering::Relaxed);
        changed
    }
}

/// Adds a hash to those of a tick.
fn come_to_tick(due: &mut BTreeMap<u32, Vec<First>>, hash: First, tick: u32) -> EndNote {
    let hashes = due.entry(tick).or_default();
    hashes.push(hash);
    EndNote { tick, at: hashes.len() as u32 - 1 }
}

impl EndTimes {
    fn came(&mut self, hash: First, tick: u32) {
        if let Entry::Vacant(vacant) = self.of.entry(hash) {
            vacant.insert(come_to_tick(&mut self.due, hash, tick));
            return;
        }
        *self.more.entry(hash).or_default() += 1;
        self.sooner(hash, tick);
    }

    fn left(&mut self, hash: First) {
        if let Some(more) = self.more.get_mut(&hash) {
            *more -= 1;
            if *more == 0 {
                self.more.remove(&hash);
            }
            return;
        }
        self.take(hash);
        if self.of.capacity() > KEPT && self.of.len() < self.of.capacity() / 8 {
            self.of.shrink_to(2 * self.of.len());
        }
    }

    fn sooner(&mut self, hash: First, tick: u32) {
        match self.of.get(&hash) {
            Some(note) if note.tick <= tick => {}
            Some(_) => self.set(hash, tick),
            // The region was damaged.
            None => self.came(hash, tick),
        }
    }

    fn set(&mut self, hash: First, tick: u32) {
        let Some(&EndNote { tick: before, at }) = self.of.get(&hash) else { return };
        if before != tick {
            self.leave_tick(before, at);
            self.of.insert(hash, come_to_tick(&mut self.due, hash, tick));
        }
    }

    /// Takes the hash at this place from those of a tick.
    fn leave_tick(&mut self, tick: u32, at: u32) {
        let hashes = self.due.get_mut(&tick).expect("a hash stands at its tick");
        hashes.swap_remove(at as usize);
        if let Some(last) = hashes.get(at as usize) {
            self.of.get_mut(last).expect("a hash has its note").at = at;
        }
        if hashes.is_empty() {
            self.due.remove(&tick);
        } else if hashes.capacity() > KEPT && hashes.len() < hashes.capacity() / 8 {
            hashes.shrink_to(2 * hashes.len());
        }
    }

    /// Takes a note out.
    fn take(&mut self, hash: First) {
        if let Some(EndNote { tick, at }) = self.of.remove(&hash) {
            self.leave_tick(tick, at);
        }
    }
}
