//! Server threads that take turns, for the adversary ([`crate::sim`]).
//!
//! One of them runs at a time. A seed decides, before each lock and each access to recorded memory
//! (one word stored, or one slot loaded), which thread goes on. So the accesses of several threads
//! come in any order that the locks allow. The same seed gives the same order.
//!
//! Or one thread is [stopped](interrupt) at a given place, and another one goes on as far as it can.

use super::choices::{Adversary, Random};
use super::history::{Instant, Recorder};
use crate::base::observe::{self, Scheduler};
use crate::faults;
use std::cell::Cell;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

#[derive(Debug)]
struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
    /// How long all may wait for locks.
    patience: Duration,
}

#[derive(Debug)]
struct TurnState {
    order: Order,
    /// How many more times the thread whose turn it is may go on before another does.
    left: usize,
    /// Threads that have not ended.
    going: Vec<usize>,
    whose: usize,
    /// Turns given away in a row because a lock was held.
    in_vain: usize,
    /// When they had become many.
    in_vain_since: Option<std::time::Instant>,
}

/// Which thread goes on, and for how long.
#[derive(Debug)]
enum Order {
    /// Any, for a turn whose length has one of this many orders.
    Random(Random, usize),
    /// The other one, for as long as it gets on.
    Other,
}

/// Where [`interrupt`] stops a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAt {
    /// After the store that makes this instant the current one.
    Store(Instant),
    /// Before a lock or an access to recorded memory, after this many of them.
    Access(usize),
}

/// Orders of length, in powers of two. The shortest turn is hardly longer than an access, so that
/// threads alternate. The longest lets a thread overtake all that another does.
const LENGTHS: std::ops::RangeInclusive<usize> = 2..=10;

/// After this many turns given away in a row, the lock is held by a thread that takes no turns: what one table has
/// deferred, a thread of any other may do.
const IN_VAIN_MAX: usize = 1_000;
/// If that lasts so long, no thread ever goes on.
const STUCK: Duration = Duration::from_secs(60);

/// A thread that goes on for a number of accesses while another one is stopped waits for that one, without
/// a lock.
const ALONE_MAX: usize = 50_000;

/// Runs each of `works` on a thread of its own, in turns. The rules broken on this thread are
/// broken on each.
///
/// # Panics
/// When one of them panics, or when each waits for a lock that another holds.
pub fn run<T: Send>(seed: u64, works: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    run_for(seed, STUCK, works)
}

/// Like `run`, with this patience.
fn run_for<T: Send>(seed: u64, patience: Duration, works: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    let mut random = Random::new(seed);
    let whose = random.pick(works.len());
    let lengths = LENGTHS.start() + random.pick(LENGTHS.end() - LENGTHS.start() + 1);
    let order = Order::Random(random, lengths);
    let mut state = TurnState {
        order,
        left: 0,
        going: (0..works.len()).collect(),
        whose,
        in_vain: 0,
        in_vain_since: None,
    };
    state.choose();
    run_all(Arc::new(Turns { state: Mutex::new(state), changed: Condvar::new(), patience }), works)
}

/// Runs the first work until `stop`, the second until it has ended or waits for the first, and then the
/// first to its end. Each has a thread. Rules are broken as in [`run`].
///
/// # Panics
/// As [`run`].
pub fn interrupt<'w, T: Send>(
    recorder: &Recorder,
    stop: StopAt,
    first: impl FnOnce() -> T + Send + 'w,
    second: impl FnOnce() -> T + Send + 'w,
) -> [T; 2] {
    let left = match stop {
        StopAt::Store(_) => usize::MAX,
        StopAt::Access(accesses) => accesses,
    };
    let state =
        TurnState { order: Order::Other, left, going: vec![0, 1], whose: 0, in_vain: 0, in_vain_since: None };
    let turns = Arc::new(Turns { state: Mutex::new(state), changed: Condvar::new(), patience: STUCK });
    if let StopAt::Store(at) = stop {
        let turns = turns.clone();
        recorder.meanwhile(at, move || turns.give_way(0));
    }
    let works: Vec<Box<dyn FnOnce() -> T + Send + 'w>> = vec![Box::new(first), Box::new(second)];
    let done: Result<[T; 2], _> = run_all(turns, works).try_into();
    done.unwrap_or_else(|_| unreachable!("two threads"))
}

/// How many locks and accesses to recorded memory this takes.
pub fn accesses_of(act: impl FnOnce()) -> usize {
    struct Count(Cell<usize>);
    impl Scheduler for Count {
        fn may_pass(&self) {
            self.0.set(self.0.get() + 1);
        }
        fn wait_until(&self, _: &dyn Fn() -> bool) {}
    }
    let count = Rc::new(Count(Cell::new(0)));
    observe::schedule(Some(count.clone()));
    act();
    observe::schedule(None);
    count.0.get()
}

fn run_all<T: Send>(turns: Arc<Turns>, works: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
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
        if state.in_vain < IN_VAIN_MAX {
            state.in_vain_since = None;
        } else {
            let since = *state.in_vain_since.get_or_insert_with(std::time::Instant::now);
            assert!(
                since.elapsed() < self.patience,
                "every server thread waits for a lock that another holds"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        match state.left.checked_sub(1).filter(|_| !must) {
            Some(left) => state.left = left,
            None => {
                state.choose();
                self.wait(state, me);
            }
        }
    }

    /// Lets the other threads go on, if any are left. Does nothing on another thread than this one.
    fn give_way(&self, me: usize) {
        let mut state = self.lock();
        if state.whose == me {
            state.choose();
            self.wait(state, me);
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
        match &mut self.order {
            Order::Random(random, lengths) => {
                self.whose = self.going[random.pick(self.going.len())];
                let length = random.pick(*lengths);
                self.left = random.pick(1 << length);
            }
            Order::Other => {
                let other = self.going.iter().find(|&&other| other != self.whose);
                (self.whose, self.left) = (*other.unwrap_or(&self.going[0]), ALONE_MAX);
            }
        }
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
    use crate::base::sync::{Mutex, lock};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

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

    /// A thread is stopped after each store, or before each access. The other one goes on meanwhile, up to a
    /// lock that the first one holds.
    #[test]
    fn one_thread_is_stopped_anywhere() {
        for locks in [false, true] {
            let orders = |stop: &dyn Fn(usize) -> StopAt| -> Vec<Vec<u64>> {
                let order = |n| -> Vec<u64> {
                    let recorder =
                        Arc::new(Recorder::new(crate::base::clock::Clock::manual(), Duration::ZERO));
                    let (region, mutex) = (recorder.region(64), Mutex::new(()));
                    let work = |thread: u64| {
                        let (region, mutex) = (&region, &mutex);
                        move || {
                            let _locked = locks.then(|| lock(mutex));
                            (0..3).for_each(|nth| region.store(0, thread + nth));
                        }
                    };
                    interrupt(&recorder, stop(n), work(10), work(20));
                    let stores = recorder.history(64).stores(0..1, Instant(0), Instant(6));
                    stores.into_iter().map(|(.., value)| value).collect::<Vec<u64>>()
                };
                // A stop that the first does not come to is none.
                assert_eq!(order(5)[3..], [20, 21, 22]);
                (1..3).map(order).collect()
            };
            let right = match locks {
                false => [[10, 20, 21, 22, 11, 12], [10, 11, 20, 21, 22, 12]],
                true => [[10, 11, 12, 20, 21, 22]; 2],
            };
            assert_eq!(orders(&|n| StopAt::Store(Instant(n))), right);
            // The lock is one access.
            assert_eq!(orders(&|n| StopAt::Access(n + usize::from(locks))), right);
        }
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
            let works = (0..2).map(work).collect();
            // Nobody else has these locks.
            let run = || run_for(seed, Duration::from_millis(100), works);
            catch_unwind(AssertUnwindSafe(run)).is_ok()
        };
        assert!((0..50).all(|seed| ends(false, seed)));
        let told = (0..50).filter(|&seed| !ends(true, seed)).count();
        assert!((1..50).contains(&told), "{told}");
    }
}
