//! Server threads that take turns, for the adversary ([`crate::sim`]).
//!
//! One of them runs at a time. A seed decides, before each lock and each access to recorded memory
//! (one word stored, or one slot loaded), which thread goes on. So the accesses of several threads
//! come in any order that the locks allow. The same seed gives the same order.

use super::choices::{Adversary, Random};
use crate::faults;
use crate::observe::{self, Scheduler};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;

#[derive(Debug)]
struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug)]
struct TurnState {
    random: Random,
    /// The number of orders of length that turns have.
    lengths: usize,
    /// How many more times the thread whose turn it is may go on before another does.
    left: usize,
    /// Threads that have not ended.
    going: Vec<usize>,
    whose: usize,
    /// Turns given away in a row because a lock was held.
    in_vain: usize,
}

/// Orders of length, in powers of two. The shortest turn is hardly longer than an access, so that
/// threads alternate. The longest lets a thread overtake all that another does.
const LENGTHS: std::ops::RangeInclusive<usize> = 2..=10;

/// After this many turns given away in a row, no thread ever goes on.
const IN_VAIN_MAX: usize = 1_000;

/// Runs each of `works` on a thread of its own, in turns. The rules broken on this thread are
/// broken on each.
///
/// # Panics
/// When one of them panics, or when each waits for a lock that another holds.
pub(crate) fn run<T: Send>(seed: u64, works: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    let mut random = Random::new(seed);
    let whose = random.pick(works.len());
    let lengths = LENGTHS.start() + random.pick(LENGTHS.end() - LENGTHS.start() + 1);
    let mut state =
        TurnState { random, lengths, left: 0, going: (0..works.len()).collect(), whose, in_vain: 0 };
    state.choose();
    let turns = Arc::new(Turns { state: Mutex::new(state), changed: Condvar::new() });
    let rules = faults::all_broken();
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(works.len());
        for (me, work) in works.into_iter().enumerate() {
            let turns = turns.clone();
            threads.push(scope.spawn(move || {
                faults::break_all(rules);
                let _membership = Membership::take(turns, me);
                work()
            }));
        }
        let end = |thread: ScopedJoinHandle<'_, T>| thread.join().unwrap_or_else(|e| resume_unwind(e));
        threads.into_iter().map(end).collect()
    })
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, me: usize, must: bool) {
        let mut state = self.lock();
        state.in_vain = if must { state.in_vain + 1 } else { 0 };
        assert!(state.in_vain < IN_VAIN_MAX, "every server thread waits for a lock that another holds");
        match state.left.checked_sub(1).filter(|_| !must) {
            Some(left) => state.left = left,
            None => {
                state.choose();
                self.wait(state, me);
            }
        }
    }

    fn wait(&self, mut state: MutexGuard<'_, TurnState>, me: usize) {
        self.changed.notify_all();
        while state.whose != me {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl TurnState {
    fn choose(&mut self) {
        let n = self.random.pick(self.going.len());
        self.whose = self.going[n];
        let length = self.random.pick(self.lengths);
        self.left = self.random.pick(1 << length);
    }
}

/// A thread among those that take turns.
#[derive(Clone)]
struct Member {
    turns: Arc<Turns>,
    me: usize,
}

impl Scheduler for Member {
    fn may_pass(&self) {
        self.turns.pass(self.me, false);
    }

    /// Lets other threads go on until `is_free` returns `true`.
    fn wait_until(&self, is_free: &dyn Fn() -> bool) {
        while !is_free() {
            self.turns.pass(self.me, true);
        }
    }
}

/// A thread's membership. It ends when dropped, also by a panic; the other threads go on.
struct Membership(Member);

impl Membership {
    /// Returns when it is this thread's turn.
    fn take(turns: Arc<Turns>, me: usize) -> Membership {
        turns.wait(turns.lock(), me);
        let member = Member { turns, me };
        observe::schedule(Some(Rc::new(member.clone())));
        Membership(member)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        observe::schedule(None);
        let Member { turns, me } = &self.0;
        let mut state = turns.lock();
        state.going.retain(|other| other != me);
        if !state.going.is_empty() {
            state.choose();
        }
        turns.changed.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{Mutex, lock};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The order in which threads went on, as `seed` decides.
    fn order(seed: u64) -> Vec<usize> {
        let order = Mutex::new(Vec::new());
        let work = |me| {
            let order = &order;
            move || {
                for _ in 0..50 {
                    lock(order).push(me);
                }
            }
        };
        run(seed, (0..3).map(work).collect());
        std::mem::take(&mut lock(&order))
    }

    #[test]
    fn a_seed_decides() {
        let mut orders: Vec<_> = (0..20).map(order).collect();
        assert_eq!(orders, (0..20).map(order).collect::<Vec<_>>());
        let turns = |order: &Vec<usize>| order.windows(2).filter(|two| two[0] != two[1]).count();
        let turns: Vec<_> = orders.iter().map(turns).collect();
        assert!(turns.iter().any(|&n| n > 30) && turns.iter().any(|&n| n < 10), "{turns:?}");
        orders.sort();
        orders.dedup();
        assert!(orders.len() > 10, "{}", orders.len());
    }

    /// Two threads take two locks in opposite order. With some seeds neither goes on. This is
    /// reported.
    #[test]
    fn a_deadlock_is_reported() {
        let ends = |crosswise: bool, seed| {
            let locks = [Mutex::new(()), Mutex::new(())];
            let work = |me: usize| {
                let locks = &locks;
                move || {
                    let first = if crosswise { me } else { 0 };
                    let _first = lock(&locks[first]);
                    let _second = lock(&locks[1 - first]);
                }
            };
            catch_unwind(AssertUnwindSafe(|| run(seed, (0..2).map(work).collect()))).is_ok()
        };
        assert!((0..50).all(|seed| ends(false, seed)));
        let told = (0..50).filter(|&seed| !ends(true, seed)).count();
        assert!((1..50).contains(&told), "{told}");
    }
}
