//! Changes of one key take turns (L10), in a table with a listener.

use crate::base::sync::{Condvar, Mutex, lock, wait_until};
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Parts of the map of turns, so that threads seldom wait for one.
const PARTS: usize = 16;

/// The turn of each key that is being changed. Keys are told apart by their hashes. Two keys with the same hash wait for
/// each other, which does no harm.
#[derive(Debug, Default)]
pub(super) struct KeyTurns {
    parts: [TurnPart; PARTS],
}

#[derive(Debug, Default)]
struct TurnPart {
    queues: Mutex<FxHashMap<u64, TurnQueue>>,
    /// Told when a turn ends for which somebody waits.
    ended: Condvar,
}

/// Who has the turn of a key, and who comes next.
#[derive(Debug, Default)]
struct TurnQueue {
    /// The number of the turn that is under way.
    now: u64,
    /// The number of the next one who comes.
    next: u64,
}

/// The turn of a key. It ends when dropped, also by a panic. Whoever has it may be another thread than the one that took
/// it.
#[derive(Debug)]
pub(super) struct KeyTurn {
    turns: Arc<KeyTurns>,
    /// `None`: a test breaks L10.
    hash: Option<u64>,
}

impl KeyTurns {
    fn part(&self, hash: u64) -> &TurnPart {
        &self.parts[hash as usize % PARTS]
    }

    /// Waits for the turn of the key with this hash. Threads come in the order in which they asked. The holder of a turn
    /// asks for no other one, so none wait in a circle.
    pub fn take(self: &Arc<KeyTurns>, hash: u64) -> KeyTurn {
        if broken(Rule::KeyTurn) {
            return KeyTurn { turns: Arc::clone(self), hash: None };
        }
        let part = self.part(hash);
        let mut queues = lock(&part.queues);
        let queue = queues.entry(hash).or_default();
        let mine = queue.next;
        queue.next += 1;
        drop(wait_until((&part.queues, &part.ended), queues, |queues| {
            queues.get(&hash).is_some_and(|queue| queue.now == mine)
        }));
        KeyTurn { turns: Arc::clone(self), hash: Some(hash) }
    }

    /// Takes the turn of the key with this hash, if nobody has it, or waits for it.
    pub fn try_take(self: &Arc<KeyTurns>, hash: u64) -> Option<KeyTurn> {
        if broken(Rule::KeyTurn) {
            return Some(KeyTurn { turns: Arc::clone(self), hash: None });
        }
        let mut queues = lock(&self.part(hash).queues);
        if queues.contains_key(&hash) {
            return None;
        }
        queues.insert(hash, TurnQueue { now: 0, next: 1 });
        Some(KeyTurn { turns: Arc::clone(self), hash: Some(hash) })
    }

    /// How many keys are being changed.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| lock(&part.queues).len()).sum()
    }
}

impl Drop for KeyTurn {
    fn drop(&mut self) {
        let Some(hash) = self.hash else { return };
        let part = self.turns.part(hash);
        let mut queues = lock(&part.queues);
        let Some(queue) = queues.get_mut(&hash) else { return };
        queue.now += 1;
        if queue.now == queue.next {
            queues.remove(&hash);
        } else {
            part.ended.notify_all();
        }
    }
}
