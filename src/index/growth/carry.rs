//! The keys of one home go to the other segment of a pair.

use crate::faults::{Rule, broken, in_order};
use crate::index::segment::Segment;
use crate::index::slots::{Locked, has_room_for_ghost};
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::slot::Key;

/// What came of carrying the keys of a home into another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum Carried {
    /// This number of keys has gone.
    All(u64),
    /// One did not fit. None has gone.
    NoRoom,
    /// One stands in a slot with a ghost (M3), or a slot is held for one (L12). None has gone.
    Stuck,
}

/// Carries the keys of a home that `goes` names from one segment into another: copies all, lets `first`
/// write the header, overwrites the originals, and lets `then` say that they have gone. `rule` is
/// the switch that takes the second step last.
pub(super) fn carry(
    from: &Segment,
    to: &Segment,
    home: u64,
    goes: impl Fn(Hashed<'_>) -> bool,
    rule: Rule,
    first: impl FnOnce(&mut Locked<'_>),
    then: impl FnOnce(&mut Locked<'_>),
) -> Carried {
    let (slots, geometry) = (from.slots(), from.geometry());
    let mut locked = slots.none();
    let all = from.homes().lock_keys_of(&mut locked, home);
    let going: Vec<(SlotIx, Key)> = all.into_iter().filter(|(_, key)| goes(geometry.hashed(key))).collect();
    let is_held = || slots.is_held_for(home) && !broken(Rule::HeldHome);
    if !going.iter().all(|&(slot, _)| has_room_for_ghost(slots.header(slot).ghost)) || is_held() {
        return Carried::Stuck;
    }
    for (n, (slot, key)) in going.iter().enumerate() {
        if !to.put_copy(geometry.hashed(key), slots.read(*slot).stored()) {
            going[..n].iter().for_each(|(_, key)| to.take_copy_away(geometry.hashed(key)));
            return Carried::NoRoom;
        }
    }
    in_order(
        rule,
        &mut locked,
        |locked| first(locked),
        |locked| from.homes().vacate_all(locked, home, &going),
    );
    then(&mut locked);
    drop(locked);
    going.iter().for_each(|&(slot, _)| from.moves().bring_home(slot));
    Carried::All(going.len() as u64)
}

/// The keys of a home have come to `to`, under the lock of the home in `from`.
pub(super) fn has_come(to: &Segment, from: &Segment, home: u64) {
    to.share().set_away(home, false);
    from.share().set_away(home, true);
}
