//! The keys of some homes go to the other segment of a pair.

use crate::faults::{Rule, by_rule, in_order};
use crate::index::home_set::HomeSet;
use crate::index::segment::Segment;
use crate::index::slots::{Locked, has_room_for_ghost};
use crate::layout::hash::Hashed;

/// The result of carrying the keys of some homes into another segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    /// The homes whose keys have gone, and how many keys these were.
    pub gone: HomeSet,
    pub keys: u64,
    /// Homes with a key that found no room; none of their keys has gone. For every other key, a slot has it beside a
    /// ghost (M3), or is held for it (L12).
    pub no_room: HomeSet,
}

/// Carries the keys of homes that `goes` names from one segment into another: copies all, lets `first`
/// write the header of each home, overwrites the originals, and lets `then` say which homes have gone. `rule` is
/// the switch that takes the second step last.
pub(super) fn carry(
    from: &Segment,
    to: &Segment,
    homes: HomeSet,
    goes: impl Fn(Hashed<'_>) -> bool,
    rule: Rule,
    first: impl Fn(&mut Locked<'_>, u64),
    then: impl FnOnce(HomeSet),
) -> Carried {
    let slots = from.slots();
    let mut locked = slots.none();
    let mut going = from.homes().lock_keys_of(&mut locked, homes, goes);
    let mut stuck = by_rule(Rule::HeldHome, slots.held_among(homes), homes.cleared());
    let haunted = going.iter().filter(|at| !has_room_for_ghost(slots.header(at.slot).ghost));
    haunted.for_each(|at| stuck.add(at.home()));
    going.retain(|at| !stuck.contains(at.home()));
    let no_room = to.put_copies(from, homes, &going);
    going.retain(|at| !no_room.contains(at.home()));
    let gone = homes.without(stuck).without(no_room);
    in_order(
        rule,
        &mut locked,
        |locked| gone.iter().for_each(|home| first(locked, home)),
        |locked| from.homes().vacate_all(locked, &going),
    );
    then(gone);
    drop(locked);
    from.moves().bring_all_home(going.iter().map(|at| at.slot));
    Carried { gone, keys: going.len() as u64, no_room }
}

/// Notes that the keys of these homes have come to `to`. The locks of the homes in `from` are held.
pub(super) fn has_come(to: &Segment, from: &Segment, homes: HomeSet) {
    to.share().set_away(homes, false);
    from.share().set_away(homes, true);
}
