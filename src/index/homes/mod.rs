//! The homes of a segment, over its slots: which keys of a home are displaced, what readers are told of
//! that, and what must stay for readers under way (M2, M4, M5, B).
//!
//! The *register* names a home's displaced keys. It lies in the stripe that guards the home ([`Stripe`]). The home's
//! filter tells readers what they need of it. A key leaves a *trace* behind, which waits in [`Grace`].
//!
//! * `keys` puts a key where there is room, and frees its slot; `group` does so with all keys of neighbouring homes.
//! * `chains` links and unlinks overflow blocks, and `blocks` has those that any home may take.
//! * `headers` says in a home's header which of its keys are here, in a table that grows.
//! * `traces` takes away what is due.
//! * `survey` looks at all homes after a server that was killed, `handover` hands them over, and `show`
//!   shows their keys.

mod blocks;
mod chains;
mod counters;
mod grace;
mod group;
mod handover;
mod headers;
mod keys;
mod show;
mod survey;
mod traces;

pub(super) use chains::ChainRoom;
pub(super) use counters::{Counters, count};
pub(super) use grace::{Grace, Trace, WaitingTrace};
pub(super) use group::KeyAt;
#[cfg(feature = "sim")]
pub(super) use handover::handover_words_max;
pub(super) use handover::{
    HEAD, Handover, NotHandedOver, handover_offset, has_no_undo, sum, traces_stay, write_down,
};
pub(super) use show::{SlotShown, end_of_step, homes_of_step, step_of, steps};
pub(super) use traces::REAP_MAX;

use super::share::{KeyShare, SharedKeyShare};
use super::slots::{
    Displaced, DisplacedAt, Filling, GhostAfter, Locked, Note, SlotWritten, Slots, Stripe, UndoLines,
};
use crate::base::clock::Clock;
use crate::base::sync::{Ordering, fence};
use crate::faults::{Rule, in_order};
use crate::layout::control::move_counter_word;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
use crate::outcome::IndexCounts;
use crate::placement::families;
use crate::region::Region;
use blocks::Blocks;
use std::sync::atomic::AtomicU64;

/// The homes of one segment.
#[derive(Debug)]
pub(crate) struct Homes {
    slots: Slots,
    grace: Grace,
    blocks: Blocks,
    counters: Counters,
    /// Which keys are in this segment. All, in a table of one segment.
    share: SharedKeyShare,
    /// The number of homes whose headers are still those of a merge.
    unsettled: AtomicU64,
    /// The number of the segment's memory; 0 in a table of one segment.
    memory: u32,
}

impl Homes {
    /// The homes of a table of one segment.
    pub fn whole(region: Region, geometry: Geometry, clock: Clock) -> Homes {
        let (grace, blocks) = (Grace::new(clock, geometry.grace()), Blocks::new(geometry.overflow_blocks()));
        let share = SharedKeyShare::new(KeyShare::ALL, 0);
        Homes::over(Slots::whole(region, geometry), grace, blocks, share, 0)
    }

    /// The homes of one segment of many. Its memory has this number, and it has these keys.
    pub fn part(
        region: Region,
        geometry: Geometry,
        grace: Grace,
        undo: UndoLines,
        memory: u32,
        share: KeyShare,
    ) -> Homes {
        let blocks = Blocks::all_free(geometry.overflow_blocks());
        let share = SharedKeyShare::new(share, geometry.homes());
        Homes::over(Slots::part(region, geometry, undo), grace, blocks, share, memory)
    }

    fn over(slots: Slots, grace: Grace, blocks: Blocks, share: SharedKeyShare, memory: u32) -> Homes {
        let (counters, unsettled) = (Counters::default(), AtomicU64::new(0));
        Homes { slots, grace, blocks, counters, share, unsettled, memory }
    }

    #[inline(always)]
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    #[inline(always)]
    pub fn geometry(&self) -> &Geometry {
        self.slots.geometry()
    }

    #[inline(always)]
    pub fn region(&self) -> &Region {
        self.slots.region()
    }

    #[inline(always)]
    pub fn grace(&self) -> &Grace {
        &self.grace
    }

    #[inline(always)]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline(always)]
    pub fn share(&self) -> &SharedKeyShare {
        &self.share
    }

    /// The number of the segment's memory; 0 in a table of one segment.
    #[inline(always)]
    pub fn memory(&self) -> u32 {
        self.memory
    }

    // ---- counts ---------------------------------------------------------------------------------

    /// Counts of operations so far. Each counter is exact, but they may be read at different instants.
    pub fn counts(&self) -> IndexCounts {
        let c = &self.counters;
        IndexCounts {
            keys: c.keys(),
            inserts: c.inserted(),
            updates: c.sum(|part| &part.updates),
            removes: c.sum(|part| &part.removes),
            moves: c.sum(|part| &part.moves),
            homings: c.sum(|part| &part.homings),
            waits: c.waited(),
            slots: self.slots_allocated(),
            main_slots: self.geometry().main_slots(),
        }
    }

    /// Main slots, and overflow slots ever used.
    pub fn slots_allocated(&self) -> u64 {
        let block_slots = u64::from(self.geometry().layout().block_slots);
        let overflow = if block_slots == 0 { 0 } else { self.blocks.ever_used() * block_slots };
        self.geometry().main_slots() + overflow
    }

    /// The number of displaced keys. Locks every stripe in turn.
    pub fn displaced(&self) -> usize {
        self.slots.each_stripe(|_, stripe| stripe.displaced_count()).into_iter().sum()
    }

    /// Whether the layout has chains.
    #[inline]
    pub fn has_chains(&self) -> bool {
        self.geometry().overflow_blocks() > 0
    }

    /// Whether a key stands in every slot. `false` in layouts with chains.
    pub fn has_no_free_slot(&self) -> bool {
        !self.has_chains() && self.counters.keys() >= self.geometry().main_slots()
    }

    // ---- the register ---------------------------------------------------------------------------

    /// What the lock of a home guards besides slots (L2).
    pub fn stripe<'l>(&self, locked: &'l mut Locked<'_>, home: u64) -> &'l mut Stripe {
        let stripe = locked.stripe(self.geometry().window(home).first);
        stripe.read_left(self.region());
        stripe
    }

    /// Names a key in the register and in its home's filter, if the key is to be put into a slot outside its primary
    /// window. `note` tells whether it is.
    #[inline(always)]
    pub fn name_displaced(&self, locked: &mut Locked<'_>, note: Note, slot: SlotIx, key: &Hashed<'_>) {
        debug_assert!(self.slots.may_change(locked, *key), "L2");
        if note == Note::Displaced {
            self.name(locked, slot, key);
        }
    }

    #[inline(never)]
    fn name(&self, locked: &mut Locked<'_>, slot: SlotIx, key: &Hashed<'_>) {
        let (home, bit) = (key.home(), families::filter_bit(self.geometry(), *key));
        self.stripe(locked, home).add(home, Displaced { bit, place: DisplacedAt::At(slot) });
        self.set_filter(locked, home);
    }

    /// Sets the filter of a home to what its register says. Writes only if that changes it.
    pub fn set_filter(&self, locked: &mut Locked<'_>, home: u64) {
        let filter = self.stripe(locked, home).filter(home);
        self.slots.set_filter(locked, home, filter);
    }

    /// The displaced key of `home` with this filter bit has left `slot`. Its bit lingers (M5).
    pub fn linger(&self, locked: &mut Locked<'_>, home: u64, bit: u32, slot: SlotIx) {
        let until_ns = self.grace.due_ns(Rule::FilterGrace);
        self.stripe(locked, home).change(home, bit, slot, DisplacedAt::Lingers { until_ns });
        self.push_trace(until_ns, Trace::Filter { home });
    }

    /// Queues a trace until it is due.
    fn push_trace(&self, due_ns: u64, trace: Trace) {
        let guard = match trace {
            Trace::Ghost { guard, .. } => guard,
            Trace::Ghosts { first, .. } => first,
            Trace::Filter { home } | Trace::Unlink { home, .. } | Trace::Reuse { home, .. } => {
                self.geometry().window(home).first
            }
            Trace::Settle { homes } => {
                self.geometry().window(homes.ends().map_or(0, |(first, _)| first)).first
            }
        };
        self.grace.push(
            self.slots.stripe_of(guard),
            due_ns,
            WaitingTrace { memory: self.memory, incarnation: self.geometry().incarnation(), trace },
        );
    }

    // ---- over keys that were copied away --------------------------------------------------------

    /// Frees a slot whose occupant `moved` was copied away.
    pub fn vacate(&self, locked: &Locked<'_>, slot: SlotIx, moved: Hashed<'_>) {
        self.overwrite(locked, slot, Some(moved), Filling::Nothing, Note::Free);
    }

    /// Writes a key and its value, or nothing, over `moved`, which has been copied elsewhere and leaves its
    /// ghost behind; or into a free slot.
    pub fn overwrite(
        &self,
        locked: &Locked<'_>,
        slot: SlotIx,
        moved: Option<Hashed<'_>>,
        filling: Filling<'_>,
        note: Note,
    ) -> SlotWritten {
        let Some(moved) = moved.filter(|_| !self.slots.header(slot).is_free()) else {
            return self.slots.fill(locked, slot, (filling, GhostAfter::Stays), note);
        };
        let with_ghost = (filling, GhostAfter::Of(moved.ghost()));
        let mut written = None;
        // M4
        let begun = |homes: &mut &Homes| homes.count_moves([moved.home()]);
        in_order(Rule::CountBeforeErase, self, begun, |homes| {
            written = Some(homes.slots.fill(locked, slot, with_ghost, note));
        });
        let guard = self.slots.guard_of(slot, moved);
        self.push_trace(self.grace.due_ns(Rule::GhostGrace), Trace::Ghost { slot, guard });
        written.expect("in either order, it is written")
    }

    /// Counts that moves of keys of these homes have begun (M4).
    fn count_moves(&self, homes: impl IntoIterator<Item = u64>) {
        homes.into_iter().for_each(|home| self.region().add(move_counter_word(home)));
        // Pairs with R4: a reader that sees a slot overwritten sees the count. A reader that sees the
        // count by R3 sees the copy, or its slot being written: the fence before W3 of the copy came
        // earlier. So it does with a header that was written before the count (E3, E4).
        fence(Ordering::Release);
    }
}
