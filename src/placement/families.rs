//! The three families of layouts. All code that differs by family is called from here.
//!
//! | question | asked by | answered in |
//! | --- | --- | --- |
//! | the presets | configuration | `*/mod.rs` |
//! | the windows where a key can be | GETs | `*/placement.rs` |
//! | the windows where a key may go to make room | puts and deletes | `*/mutation.rs` |

use crate::layout::geometry::{Family, Geometry, SlotIx, Window};
use crate::layout::hash::Hashed;
use crate::placement::Preset;
use crate::placement::{Destination, GivesWay};
use crate::{chained, cuckoo, hopscotch};
use smallvec::SmallVec;

/// Every preset of every family.
pub fn presets() -> impl Iterator<Item = &'static Preset> {
    cuckoo::PRESETS.iter().chain(hopscotch::PRESETS).chain(chained::PRESETS)
}

// ---- where a key can be -------------------------------------------------------------------------

/// The number of bits in the filter of displaced keys, in a home's header.
#[inline]
pub fn filter_bits(geometry: &Geometry) -> u32 {
    geometry.filter_bits()
}

/// The key's bit in its home's `aux`.
#[inline]
pub fn filter_bit(geometry: &Geometry, key: Hashed<'_>) -> u32 {
    key.first().filter_bit(filter_bits(geometry))
}

/// The bits of a home's `aux` that form its filter.
#[inline]
pub(crate) fn filter_mask(geometry: &Geometry) -> u32 {
    u32::MAX >> (32 - filter_bits(geometry))
}

/// Whether the home's filter has a bit of any displaced key.
#[inline]
pub fn names_displaced(geometry: &Geometry, home_aux: u32) -> bool {
    home_aux & filter_mask(geometry) != 0
}

/// Whether the home's filter allows that the key is displaced. True for every displaced key.
#[inline]
pub fn may_be_displaced(geometry: &Geometry, key: Hashed<'_>, home_aux: u32) -> bool {
    home_aux & filter_bit(geometry, key) != 0
}

/// The window to READ when `read` windows (at least 1) did not show the key. `head_aux` is the
/// `aux` of the first slot of the last window. `None` after the last.
#[inline]
pub fn after(geometry: &Geometry, key: Hashed<'_>, read: u32, head_aux: u32) -> Option<Window> {
    match geometry.layout().family {
        Family::Cuckoo => cuckoo::placement::after(geometry, key, read),
        Family::Hopscotch => hopscotch::placement::after(geometry, head_aux),
        Family::Chained => chained::placement::after(geometry, head_aux),
    }
}

/// The windows that are known to be the key's before anything is READ: all of them in cuckoo
/// layouts, otherwise the primary one. They consist of main slots.
#[inline]
pub(crate) fn known_windows(geometry: &Geometry, key: Hashed<'_>) -> impl Iterator<Item = Window> {
    let known = match geometry.layout().family {
        Family::Cuckoo => geometry.layout().choices,
        Family::Hopscotch | Family::Chained => 1,
    };
    (0..known).map(move |n| cuckoo::placement::choice(geometry, key, n))
}

// ---- making room --------------------------------------------------------------------------------

/// Where a key may go by moves alone. It is at `at`, or is a newcomer if that is `None`.
pub(crate) fn destinations(
    geometry: &Geometry,
    key: Hashed<'_>,
    at: Option<SlotIx>,
) -> SmallVec<[Destination; 3]> {
    match geometry.layout().family {
        Family::Cuckoo => cuckoo::mutation::destinations(geometry, key, at),
        Family::Hopscotch => hopscotch::mutation::destinations(geometry, key),
        Family::Chained => chained::mutation::destinations(geometry, key, at),
    }
}

/// Whether a key in its primary window may give way within it, and whether into another window. The
/// same as [`destinations`] says, for whoever knows the key's window and not the key.
pub(crate) fn gives_way(geometry: &Geometry) -> GivesWay {
    match geometry.layout().family {
        Family::Cuckoo => GivesWay { at_home: true, displaced: true },
        Family::Hopscotch => GivesWay { at_home: true, displaced: false },
        Family::Chained => GivesWay { at_home: false, displaced: false },
    }
}

/// Whether a key may move from one slot to another: one of its [`destinations`] has that.
pub(crate) fn may_move(geometry: &Geometry, key: Hashed<'_>, from: SlotIx, to: SlotIx) -> bool {
    let primary = geometry.primary(key);
    // A key may come home, and where it may move within its primary window the others need not be found.
    primary.contains(to) && (!primary.contains(from) || gives_way(geometry).at_home)
        || destinations(geometry, key, Some(from)).iter().any(|d| d.window.contains(to))
}

/// What decides where room is looked for: the key itself, or only its home.
pub(crate) fn looks_for_room_from(geometry: &Geometry, key: Hashed<'_>) -> u64 {
    match geometry.layout().family {
        Family::Cuckoo => key.first().0,
        Family::Hopscotch | Family::Chained => key.home(),
    }
}

/// Whether paths are searched by random walks. Otherwise the search is breadth first.
pub(crate) fn walks(geometry: &Geometry) -> bool {
    match geometry.layout().family {
        Family::Cuckoo => cuckoo::mutation::walks(geometry),
        Family::Hopscotch | Family::Chained => false,
    }
}

/// Whether a delete brings a displaced key home into the slot that it frees.
pub(crate) fn homes_on_delete(geometry: &Geometry) -> bool {
    match geometry.layout().family {
        Family::Cuckoo => cuckoo::mutation::homes_on_delete(geometry),
        Family::Hopscotch | Family::Chained => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::chain::{Block, with_link};

    /// Whether a key may move from slot to slot is what its destinations say, in each layout.
    #[test]
    fn a_key_may_move_to_its_destinations() {
        for preset in presets() {
            let config = Config { layout: preset.layout, size: TableSize::Slots(64), ..Config::short() };
            let geometry = config.geometry().unwrap();
            for number in 0..50u32 {
                let name = number.to_le_bytes();
                let key = geometry.hashed(&name);
                let windows: Vec<_> = known_windows(&geometry, key).collect();
                let beside = SlotIx((geometry.primary(key).end() + 20) % geometry.main_slots());
                let slots = || windows.iter().flat_map(Window::iter).chain([beside]);
                for (from, to) in slots().flat_map(|from| slots().map(move |to| (from, to))) {
                    let may = destinations(&geometry, key, Some(from)).iter().any(|d| d.window.contains(to));
                    assert_eq!(may_move(&geometry, key, from, to), may, "{}: {from:?} {to:?}", preset.name);
                }
            }
        }
    }

    /// A link to a block is not part of the filter, and a filter is not part of a link.
    #[test]
    fn a_link_names_nobody() {
        for preset in presets() {
            let config = Config { layout: preset.layout, size: TableSize::Slots(64), ..Config::short() };
            let geometry = config.geometry().unwrap();
            assert!(!names_displaced(&geometry, 0), "{}", preset.name);
            let bits = filter_bits(&geometry);
            assert_eq!(bits, if preset.layout.block_slots == 0 { 32 } else { 8 });
            assert!((0..bits).all(|bit| names_displaced(&geometry, 1 << bit)), "{}", preset.name);
            if preset.layout.block_slots > 0 {
                assert!((8..32).all(|bit| !names_displaced(&geometry, 1 << bit)), "{}", preset.name);
                assert!(!names_displaced(&geometry, with_link(&geometry, 0, Some(Block(3)))));
            }
        }
    }
}
