//! Striped locks (L3). They keep server threads apart. Readers take
//! none and wait for none.
//!
//! Overflow slots have no stripe of their own: the home of the chain guards them.

use super::stripe::Stripe;
use crate::base::sync::{Mutex, MutexGuard, lock};
use crate::faults::{Rule, broken, by_rule};
use crate::layout::geometry::SlotIx;
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// Neighbouring slots share a stripe. A group of 64 is large enough that a window of 16 mostly lies
/// in one stripe. Under the model checker each slot has its own stripe, so that a tiny table has
/// several.
const GROUP_SHIFT: u32 = if cfg!(loom) { 0 } else { 6 };
/// More stripes bring nothing, because server threads are few.
const STRIPES_MAX: u64 = 1 << 12;

/// All stripes of a table.
#[derive(Debug)]
pub(crate) struct Stripes {
    all: Box<[Mutex<Stripe>]>,
}

/// A set of stripes to lock, by number.
pub(crate) type StripeSet = SmallVec<[usize; 8]>;

/// Adds a stripe to a set. The sets are small, and neighbours share stripes.
#[inline]
pub(crate) fn add_stripe(set: &mut StripeSet, number: usize) {
    if !set.contains(&number) {
        set.push(number);
    }
}

impl Stripes {
    pub fn new(main_slots: u64) -> Stripes {
        let count = main_slots.div_ceil(1 << GROUP_SHIFT).next_power_of_two().min(STRIPES_MAX);
        Stripes { all: (0..count).map(|_| Mutex::default()).collect() }
    }

    /// The stripes of one of many segments, which needs fewer.
    pub fn of_segment(main_slots: u64) -> Stripes {
        const MOST: u64 = 64;
        let count = main_slots.div_ceil(1 << GROUP_SHIFT).next_power_of_two().min(MOST);
        Stripes { all: (0..count).map(|_| Mutex::default()).collect() }
    }

    /// The stripe of a main slot.
    #[inline]
    pub fn of(&self, slot: SlotIx) -> usize {
        (slot.0 >> GROUP_SHIFT) as usize & (self.all.len() - 1)
    }

    /// The stripes of neighbouring main slots.
    pub fn of_all(&self, slots: Range<u64>) -> StripeSet {
        let mut set = StripeSet::new();
        let groups = slots.start >> GROUP_SHIFT..=slots.end.saturating_sub(1) >> GROUP_SHIFT;
        groups.for_each(|group| add_stripe(&mut set, self.of(SlotIx(group << GROUP_SHIFT))));
        set
    }

    /// The first of the neighbours that share a stripe with this slot.
    pub fn first_of_group(slot: SlotIx) -> SlotIx {
        SlotIx(slot.0 >> GROUP_SHIFT << GROUP_SHIFT)
    }

    /// Locks a set of stripes (L3).
    pub fn lock(&self, set: StripeSet) -> Locked<'_> {
        let mut locked = self.none();
        locked.lock(set);
        locked
    }

    /// Locks two stripes, or one named twice (L3): mostly one. (All fields are named: what `..none()` leaves over would be
    /// dropped.)
    #[inline(always)]
    pub fn lock_two(&self, [a, b]: [usize; 2]) -> Locked<'_> {
        if a != b {
            return self.lock_both(a, b);
        }
        let held = [Some((a, lock(&self.all[a]))), None];
        Locked { held, others: None, stripes: self, is_alone: false }
    }

    /// (Not inlined: a window seldom lies in two stripes.)
    #[inline(never)]
    fn lock_both(&self, a: usize, b: usize) -> Locked<'_> {
        let lock = |number: usize| Some((number, lock(&self.all[number])));
        let [first, second] = by_rule(Rule::LockOrder, [a.min(b), a.max(b)], [a, b]);
        Locked { held: [lock(first), lock(second)], others: None, stripes: self, is_alone: false }
    }

    /// Locks nothing yet.
    #[inline(always)]
    pub fn none(&self) -> Locked<'_> {
        Locked { held: [None, None], others: None, stripes: self, is_alone: false }
    }

    /// Locks nothing, but may write slots. For the threads that make a table or take one over, each
    /// its own slots, before any other server thread has the table. Readers may have it. What a
    /// home's lock guards besides slots still needs that lock.
    pub fn alone(&self) -> Locked<'_> {
        Locked { is_alone: true, ..self.none() }
    }

    /// The number of stripes.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Looks at each stripe under its lock, one after the other.
    pub fn each<R>(&self, mut look: impl FnMut(usize, &mut Stripe) -> R) -> Vec<R> {
        self.all.iter().enumerate().map(|(number, stripe)| look(number, &mut lock(stripe))).collect()
    }
}

/// Each stripe of the set once, in increasing order.
fn increasing(mut set: StripeSet) -> StripeSet {
    set.sort_unstable();
    set.dedup();
    set
}

/// Each stripe of the set once, in the order of naming. This breaks L3.
fn as_named(mut set: StripeSet) -> StripeSet {
    let mut seen = StripeSet::new();
    set.retain(|number| {
        let is_new = !seen.contains(number);
        seen.extend(is_new.then_some(*number));
        is_new
    });
    set
}

/// Locked stripes. Dropping this unlocks them.
pub(crate) struct Locked<'a> {
    /// The first two. Most operations need no more.
    held: [Option<LockedStripe<'a>>; 2],
    /// An `Rc` that is never shared: it keeps the code that drops it out of line.
    others: Option<Rc<[LockedStripe<'a>]>>,
    stripes: &'a Stripes,
    is_alone: bool,
}

/// A locked stripe and its number.
type LockedStripe<'a> = (usize, MutexGuard<'a, Stripe>);

impl<'a> Locked<'a> {
    /// Unlocks what is locked. Then locks a set of stripes (L3).
    pub fn lock(&mut self, set: StripeSet) {
        self.held = [None, None];
        self.others = None;
        let set = if broken(Rule::LockOrder) { as_named(set) } else { increasing(set) };
        let mut held = set.iter().map(|&n| (n, lock(&self.stripes.all[n])));
        self.held[0] = held.next();
        self.held[1] = held.next();
        if held.len() > 0 {
            self.others = Some(held.collect());
        }
    }

    fn all_held(&self) -> impl Iterator<Item = &LockedStripe<'a>> {
        self.held.iter().flatten().chain(self.others.iter().flat_map(|others| &others[..]))
    }

    /// Whether the stripe of this main slot is locked.
    pub fn covers(&self, slot: SlotIx) -> bool {
        let number = self.stripes.of(slot);
        self.all_held().any(|(n, _)| *n == number)
    }

    /// Whether no other server thread has the table yet.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// The data that the lock of this home slot guards.
    ///
    /// # Panics
    /// When the slot's stripe is not locked, which breaks L2.
    pub fn stripe(&mut self, home_slot: SlotIx) -> &mut Stripe {
        let number = self.stripes.of(home_slot);
        let others = self.others.iter_mut().filter_map(Rc::get_mut).flatten();
        let mut all = self.held.iter_mut().flatten().chain(others);
        let held = all.find(|(n, _)| *n == number);
        &mut held.expect("L2: the home's stripe is locked").1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::stripe::{Displaced, DisplacedAt};
    use super::*;

    #[test]
    fn neighbours_share_a_stripe() {
        for (main_slots, count) in [(1, 1), (64, 1), (65, 2), (129, 4), (1 << 18, 4096), (1 << 30, 4096)] {
            assert_eq!(Stripes::new(main_slots).all.len(), count, "{main_slots} slots");
        }
        let stripes = Stripes::new(1000);
        let of = [0, 63, 64, 1023, 1024, 1090].map(|slot| stripes.of(SlotIx(slot)));
        assert_eq!(of, [0, 0, 1, 15, 0, 1]);
    }

    #[test]
    fn a_stripe_named_twice_is_locked_once() {
        let stripes = Stripes::new(1000);
        let mut locked = stripes.lock(StripeSet::from_slice(&[2, 0, 2]));
        let covered = [0, 64, 128, 192].map(|slot| locked.covers(SlotIx(slot)));
        assert_eq!(covered, [true, false, true, false]);
        let place = DisplacedAt::At(SlotIx(5));
        locked.stripe(SlotIx(128)).add(128, Displaced { bit: 1, place });
        locked.stripe(SlotIx(0)).add(0, Displaced { bit: 1, place });
        locked.stripe(SlotIx(0)).add(1, Displaced { bit: 1, place: DisplacedAt::Lingers { until_ns: 9 } });
        drop(locked);
        let displaced: usize = stripes.each(|_, stripe| stripe.census().sum::<usize>()).into_iter().sum();
        assert_eq!(displaced, 2, "what lingers is not displaced");
        let all = stripes.each(|_, stripe| stripe.all_displaced());
        let five = SlotIx(5);
        assert_eq!((&all[0][..], &all[2][..]), (&[(0, 1, five)][..], &[(128, 1, five)][..]));
    }
}
