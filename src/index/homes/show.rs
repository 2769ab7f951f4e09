//! Shows the keys of neighbouring homes, while they change and move (D1, D2).
//!
//! ```text
//! step: the homes of 64 slots ── locks ──► keys in their primary windows
//!                                     └──► the register ──► their displaced keys ── unlocks
//! ```

use super::Homes;
use crate::base::sync::{Ordering, fence};
use crate::faults::{Rule, disobey, kept};
use crate::index::home_set::HomeSet;
use crate::index::slots::{DisplacedAt, Locked, StripeSet};
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
use crate::layout::life::Life;
use crate::layout::slot::{Image, View, check};
use crate::layout::words;
use std::ops::Range;

/// Slots whose homes a step of a walk visits: those of one stripe, side by side.
const STEP_SLOTS: u64 = 64;

/// The content of a slot besides its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotShown<'v> {
    /// The value, or the reference to it.
    pub value: &'v [u8],
    /// The reference, if the value is one.
    pub reference: Option<Reference>,
    pub life: Option<Life>,
}

/// Takes a key, and what its slot has besides.
pub(crate) type SeeKey<'s> = dyn FnMut(Hashed<'_>, SlotShown<'_>) + 's;

/// The steps of a walk over a segment.
pub(crate) fn steps(geometry: &Geometry) -> u64 {
    (geometry.homes() * u64::from(geometry.layout().bucket_slots)).div_ceil(STEP_SLOTS)
}

/// The homes of a step.
pub(crate) fn homes_of_step(geometry: &Geometry, step: u64) -> Range<u64> {
    let bucket_slots = u64::from(geometry.layout().bucket_slots);
    let from = |step: u64| (step * STEP_SLOTS).div_ceil(bucket_slots).min(geometry.homes());
    from(step)..from(step + 1)
}

/// The step of a home.
pub(crate) fn step_of(geometry: &Geometry, home: u64) -> u64 {
    home * u64::from(geometry.layout().bucket_slots) / STEP_SLOTS
}

/// The home behind the last one of the step that has this home.
pub(crate) fn end_of_step(geometry: &Geometry, home: u64) -> u64 {
    homes_of_step(geometry, step_of(geometry, home)).end
}

impl Homes {
    /// Locks the homes of a step, and their windows.
    pub fn lock_step(&self, homes: &Range<u64>) -> Locked<'_> {
        let slots = self.slots_of_step(homes);
        // The homes' own slots share a stripe. Their windows end at most 63 slots further on.
        self.slots.lock_ends(SlotIx(slots.start), SlotIx(slots.end - 1))
    }

    /// The slots of the windows of neighbouring homes.
    pub(super) fn slots_of_step(&self, homes: &Range<u64>) -> Range<u64> {
        let (first, last) = (self.geometry().window(homes.start), self.geometry().window(homes.end - 1));
        first.first.0..last.end()
    }

    /// Shows the keys of these homes, which are locked. `damaged` goes up for each slot that does not
    /// pass a remote reader's checks.
    pub fn show(&self, locked: &mut Locked<'_>, homes: Range<u64>, damaged: &mut u64, see: &mut SeeKey<'_>) {
        let mut value = Vec::new();
        // D1: no key of these homes changes or moves until the locks are gone (L2).
        for slot in self.slots_of_step(&homes).map(SlotIx) {
            if self.slots.header(slot).is_free() {
                continue;
            }
            let image = words::image(self.slots.words(slot));
            let Some(view) = self.sound(slot, &image, damaged) else { continue };
            let key = self.slots.reader().key_of(&view);
            let hashed = self.geometry().hashed(&key);
            // A key of another home is shown with that home. A displaced key is shown by the register.
            if homes.contains(&hashed.home()) && self.geometry().primary(hashed).contains(slot) {
                view.value_into(&mut value);
                see(hashed, SlotShown { value: &value, reference: view.reference(), life: view.life() });
            }
        }
        disobey(Rule::WalkLock, || {
            let slots = self.slots_of_step(&homes);
            let again = [slots.start, slots.end - 1].map(|slot| self.slots.stripe_of(SlotIx(slot)));
            locked.lock(StripeSet::from_slice(&again));
        });
        for home in self.slots.with_displaced_locked(locked, HomeSet::of(homes)).iter() {
            let displaced = self.stripe(locked, home).displaced(home).iter();
            for entry in displaced {
                let DisplacedAt::At(slot) = entry.place else { continue };
                let image = self.at_rest(slot);
                let Some(view) = self.sound(slot, &image, damaged) else { continue };
                view.value_into(&mut value);
                let shown = SlotShown { value: &value, reference: view.reference(), life: view.life() };
                see(self.geometry().hashed(&self.slots.reader().key_of(&view)), shown);
            }
        }
    }

    /// The words of a slot whose key stands still, but whose own lock is not held: read between two writes of other
    /// threads, which take its ghost or set its filter (D2). Each of these writes ends, because it waits for no lock.
    fn at_rest(&self, slot: SlotIx) -> Image {
        let words = self.slots.words(slot);
        loop {
            let stamp = words[0].load(Ordering::Relaxed);
            // Fences as in the shm reader: R1 and R2.
            fence(Ordering::Acquire);
            let image = words::image(self.slots.words(slot));
            fence(Ordering::Acquire);
            let is_settled = || stamp & 1 == 0 && words[0].load(Ordering::Relaxed) == stamp;
            if kept(Rule::WalkSettled, is_settled) {
                return image;
            }
            std::hint::spin_loop();
        }
    }

    /// A slot's key and value, if it passes a remote reader's checks.
    fn sound<'i>(&self, slot: SlotIx, image: &'i Image, damaged: &mut u64) -> Option<View<'i>> {
        let checked = check(self.geometry().shape(), self.geometry().identity(slot), image);
        *damaged += u64::from(checked.is_err());
        checked.ok()
    }
}
