//! Changes of one key take turns (L10), in a table with a listener.

use crate::base::sync::{Mutex, MutexGuard, lock, unlock_fair};
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Parts of the map of turns, so that threads seldom wait for one.
const PARTS: usize = if cfg!(loom) { 1 } else { 16 };

/// The turn of each key that is being changed: at most as many as there are threads that change keys. Keys are told
/// apart by their hashes. Two keys with the same hash wait for each other, which does no harm.
#[derive(Debug, Default)]
pub(super) struct KeyTurns {
    parts: [Mutex<FxHashMap<u64, Arc<Mutex<()>>>>; PARTS],
}

impl KeyTurns {
    /// Acts when it is this thread's turn with a key. Threads come in the order in which they asked. The holder of a
    /// turn asks for no other one, so none wait in a circle.
    pub fn in_turn<R>(&self, hash: u64, act: impl FnOnce() -> R) -> R {
        if broken(Rule::KeyTurn) {
            return act();
        }
        let part = &self.parts[hash as usize % PARTS];
        let turn = Arc::clone(lock(part).entry(hash).or_default());
        let taken = TakenTurn { held: Some(lock(&turn)), part, hash, turn: &turn };
        let result = act();
        drop(taken);
        result
    }

    /// How many keys are being changed.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| lock(part).len()).sum()
    }
}

/// A turn. It ends when dropped, also by a panic.
struct TakenTurn<'t> {
    held: Option<MutexGuard<'t, ()>>,
    part: &'t Mutex<FxHashMap<u64, Arc<Mutex<()>>>>,
    hash: u64,
    turn: &'t Arc<Mutex<()>>,
}

impl Drop for TakenTurn<'_> {
    fn drop(&mut self) {
        self.held.take().into_iter().for_each(unlock_fair);
        let mut part = lock(self.part);
        // This thread has one reference, the table another. A thread that comes takes one under the lock of the table.
        if Arc::strong_count(self.turn) == 2 {
            part.remove(&self.hash);
        }
    }
}
