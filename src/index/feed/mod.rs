//! The feed: the changes of a table, in order, for followers (J1 to J8).
//!
//! Without a follower there is no ring, and a change looks at one flag. The first request starts the feed. The feed
//! ends by itself when the ring has gone round and nobody has asked meanwhile. Then every follower has missed a change
//! anyway, and is told so at its next request.

mod cause;
mod ring;

pub use cause::LeftCause;
pub(crate) use ring::{ChangeRecord, RecordValue};

use crate::base::sync::{Mutex, MutexGuard, Ordering, fence, lock};
use crate::faults::{Rule, broken, in_order};
use crate::index::bells::{Bells, ThreadBell};
use crate::index::seams::KeyChange;
use crate::layout::owners::NOT_COMMITTED;
use ring::ChangeRing;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

/// The feed of a table.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// Whether changes are told. Read under the key's lock (J1).
    is_on: AtomicBool,
    ring: OnceLock<ChangeRing>,
    /// Held while the feed starts, and while an owner's entries become hidden (J8).
    starting: Mutex<()>,
    /// Who sleeps until something is told.
    bells: Bells,
}

impl Feed {
    /// Whether changes are told. Relaxed: the key's lock orders it (J1).
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Tells a change that is visible. Its key's lock is held. The change has replaced or removed an entry of the owner
    /// `before`. `hides` says whether the entries of an owner are hidden now.
    #[cold]
    #[inline(never)]
    pub fn tell(&self, change: KeyChange<'_>, cause: LeftCause, before: u16, hides: impl Fn(u16) -> bool) {
        if change.owner == NOT_COMMITTED {
            return;
        }
        // Pairs with the release in `start`: who saw the flag sees the ring.
        fence(Ordering::Acquire);
        let Some(ring) = self.ring.get() else { return };
        let mut turn = ring.turn();
        // J8: an owner may have gone, and been told as gone, since the change looked.
        let change = match broken(Rule::OwnerTurn) {
            true => Some(change),
            false => change.among_shown(hides(before), hides(change.owner)),
        };
        if let Some(change) = change {
            self.push(ring, &mut turn, &change, cause);
        }
        self.end_turn(turn);
    }

    /// Ends a turn in which something may have been told (Q9). Who is woken runs when the turn has ended.
    fn end_turn(&self, turn: MutexGuard<'_, u64>) {
        let has_sleepers = self.bells.has_sleepers() && !broken(Rule::ParkBell);
        drop(turn);
        if has_sleepers {
            self.bells.ring();
        }
    }

    /// Hides the entries of an owner by `hide`, and tells that. Between these steps no change is told, and no feed
    /// starts (J8).
    pub fn tell_owner(&self, owner: u16, hide: impl FnOnce()) {
        let _starting = lock(&self.starting);
        let ring = self.ring.get().filter(|_| self.is_on());
        let mut turn = ring.map(|ring| (ring, ring.turn()));
        in_order(
            Rule::OwnerFirst,
            &mut turn,
            |_| hide(),
            |turn| {
                if let Some((ring, turn)) = turn {
                    self.push(ring, turn, &KeyChange::owner_gone(owner), LeftCause::OwnerGone);
                }
            },
        );
        if let Some((_, turn)) = turn {
            self.end_turn(turn);
        }
    }

    fn push(
        &self,
        ring: &ChangeRing,
        turn: &mut MutexGuard<'_, u64>,
        change: &KeyChange<'_>,
        cause: LeftCause,
    ) {
        // Another thread may have ended the feed while this one waited for its turn.
        if self.is_on() && !ring.push(turn, change, cause) {
            self.is_on.store(false, Relaxed);
        }
    }

    /// Starts the feed if it is off (J2). `bytes` is the memory for records, at the first start. Returns the number of
    /// the next change. Takes some microseconds.
    ///
    /// # Errors
    /// When the system has no memory for the ring.
    pub fn start(&self, bytes: u64) -> io::Result<u64> {
        let ring = match self.ring.get() {
            Some(ring) => ring,
            None => {
                let made = ChangeRing::new(bytes)?;
                // If two threads start it, the ring of the first counts.
                self.ring.get_or_init(|| made)
            }
        };
        ring.ask();
        if self.is_on() {
            return Ok(ring.next());
        }
        // J8: never between an owner's bit and the record of it.
        let _starting = (!broken(Rule::OwnerStart)).then(|| lock(&self.starting));
        let turn = ring.turn();
        if self.is_on() {
            return Ok(ring.next());
        }
        if ring.next() > 1 {
            // J6: the feed was on before.
            ring.skip(&turn);
        }
        // Pairs with the fence in `tell`.
        self.is_on.store(true, Ordering::Release);
        Ok(ring.next())
    }

    /// The bell of a thread that may sleep until something is told. It wakes by this.
    pub fn bell(&self, waker: Waker) -> ThreadBell {
        self.bells.bell(waker)
    }

    /// A thread is about to sleep until there is a change beyond those before `seen`. Returns whether it may: if something
    /// has come, it may not, and is not asleep. It says when it [wakes](Feed::wakes).
    pub fn may_sleep(&self, bell: &ThreadBell, seen: u64) -> bool {
        // Who waits for a change has started the feed.
        let Some(ring) = self.ring.get() else { return true };
        let turn = ring.turn();
        self.bells.sleeps(bell);
        let next = ring.next();
        drop(turn);
        // Q9
        let may_sleep = next == seen || broken(Rule::ParkLook);
        if !may_sleep {
            self.bells.wakes(bell);
        }
        may_sleep
    }

    /// A thread does not sleep any more.
    pub fn wakes(&self, bell: &ThreadBell) {
        self.bells.wakes(bell);
    }

    /// Whether a thread sleeps until something is told.
    #[cfg(all(test, not(loom)))]
    pub fn has_sleepers(&self) -> bool {
        self.bells.has_sleepers()
    }

    /// The number of the next change, 0 before the first start. The holder of a key's lock, while the feed is on, knows
    /// that earlier changes of the key have lower numbers than this, and later ones do not (J3).
    pub fn next(&self) -> u64 {
        self.ring.get().map_or(0, ChangeRing::next)
    }

    /// Shows changes with these numbers, as [`ChangeRing::read`].
    pub fn read(&self, range: Range<u64>, see: &mut dyn FnMut(u64, &ChangeRecord<'_>) -> bool) -> Range<u64> {
        let Some(ring) = self.ring.get() else { return range.start..range.start };
        ring.ask();
        ring.read(range, see)
    }

    /// Whether a change with a number in this range, and with a key that `is_such`, was told. Also `true` where that is
    /// unknown.
    pub fn was_told(&self, range: Range<u64>, is_such: impl Fn(&[u8]) -> bool) -> bool {
        if range.is_empty() {
            return false;
        }
        let mut was_told = false;
        let read = self.ring.get().map(|ring| {
            ring.read(range.clone(), &mut |_, record| {
                // The record of an owner that has gone is no change of one key.
                was_told |= !record.key.is_empty() && is_such(record.key);
                !was_told
            })
        });
        was_told || read != Some(range)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::base::sync::model;
    use crate::index::bells::Rung;
    use crate::index::seams::Changed;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    /// A change is told while a thread falls asleep that has seen all before it: it does not sleep, or it is rung for.
    fn change_against_sleeper() {
        let feed = Arc::new(Feed::default());
        let (seen, rung) = (feed.start(0).expect("private memory"), Arc::new(Rung::default()));
        let bell = feed.bell(Waker::from(Arc::clone(&rung)));
        let other = {
            let feed = Arc::clone(&feed);
            loom::thread::spawn(move || {
                let change = KeyChange { what: Changed::Left, key: b"key", value: None, owner: 0, expiry: 0 };
                feed.tell(change, LeftCause::Removed, 0, |_| false);
            })
        };
        let sleeps = feed.may_sleep(&bell, seen);
        other.join().expect("the change ends");
        assert!(!sleeps || rung.0.load(SeqCst), "it sleeps for ever");
        feed.wakes(&bell);
        assert!(!feed.bells.has_sleepers());
    }

    #[test]
    fn loom_change_against_sleeper() {
        model(4, change_against_sleeper);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn loom_rules_of_bells() {
        for rule in [Rule::ParkBell, Rule::ParkLook] {
            crate::faults::must_be_caught(rule, 4, change_against_sleeper);
        }
    }
}
