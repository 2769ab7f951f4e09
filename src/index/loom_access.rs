//! Access to single parts of the index, for the model checker.

use super::Index;
use super::moves::MovePath;
use super::seams::Nobody;
use super::segment::{Put, Segment};
use super::slots::SlotWriter;
pub(crate) use super::slots::{StripeSet, Stripes};
use super::whole::Table;
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::slot::Content;
use crate::outcome::{PutMode, PutOutcome};
use crate::placement::families;
use crate::region::Region;

pub fn write_slot(region: &Region, geometry: &Geometry, slot: SlotIx, key: &[u8], value: &[u8]) {
    SlotWriter::new(region, geometry).write(slot, &Content { key, value: value.into(), ghost: 0, aux: 0 });
}

/// The path that a put of `key` would take now.
pub fn path(index: &Index, key: &[u8]) -> Option<MovePath> {
    let index = only(index);
    index.moves().find_path(index.geometry().hashed(key))
}

/// Two paths for a put of `key`, in a layout with two choices of one slot. Each is one move, and
/// the paths share no slot.
pub fn paths_by_two_slots(index: &Index, key: &[u8]) -> Option<[MovePath; 2]> {
    let index = only(index);
    let path = |window: Window| -> Option<MovePath> {
        let from = window.first;
        let occupant = index.slots().read(from).key;
        let to = families::destinations(index.geometry(), index.geometry().hashed(&occupant), Some(from));
        let free = to.iter().find_map(|destination| index.slots().free_slot(destination.window));
        Some([from, free.filter(|_| !occupant.is_empty())?].into_iter().collect())
    };
    let mut choices = crate::cuckoo::placement::choices(index.geometry(), index.geometry().hashed(key));
    let paths = [path(choices.next()?)?, path(choices.next()?)?];
    paths[0].iter().all(|slot| !paths[1].contains(slot)).then_some(paths)
}

/// Puts `key` along a path found before. The key's bytes are also its value.
pub fn put_along(index: &Index, path: &MovePath, key: &[u8]) -> Option<PutOutcome> {
    let index = only(index);
    let how = (PutMode::Upsert, Nobody);
    index.put_along(path, &index.geometry().hashed(key), &key.into(), how, Put::New)
}

/// The number of main slots that hold `key`.
pub fn copies(index: &Index, key: &[u8]) -> usize {
    let index = only(index);
    (0..index.geometry().main_slots()).filter(|&slot| index.slots().holds(SlotIx(slot), key)).count()
}

/// The number of slots that hold `key`, in all segments of a table that grows.
pub fn copies_in_all(index: &Index, key: &[u8]) -> usize {
    let Table::Many(growth) = index.table() else { unreachable!("the table grows") };
    let guard = crossbeam_epoch::pin();
    let in_one = |segment: &Segment| {
        let slots = 0..segment.geometry().slots();
        slots.filter(|&slot| segment.slots().holds(SlotIx(slot), key)).count()
    };
    growth.live.all(&guard).map(in_one).sum()
}

/// The segment of a table of one size.
fn only(index: &Index) -> &Segment {
    match index.table() {
        Table::One(one) => one.segment(),
        Table::Many(_) => unreachable!("the table has one size"),
    }
}
