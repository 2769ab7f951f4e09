//! The directory entries that a client remembers, in a table that grows: where its GETs begin.

use crate::get::Get;
use crate::hints::{Hinted, Hints};
use crate::layout::geometry::Geometry;
use crate::layout::hash::Hashed;
use crate::layout::segment::{self, DirectoryEntry, KnownEntry, low};

/// The most entries that a client remembers.
const REMEMBERED_MAX: usize = 1 << 20;

/// The directory entries that a client remembers, as old as they may be. A reader of a table of one size
/// has none, which costs nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownEntries(Option<Box<Remembered>>);

#[derive(Clone, Debug, Default)]
struct Remembered {
    /// By prefix, with a bit above it.
    entries: rustc_hash::FxHashMap<u32, KnownEntry>,
    /// The depths of these entries, a bit for each.
    depths: u32,
    /// Which table they are of.
    generation: u64,
}

impl KnownEntries {
    /// The deepest entry known of a key.
    pub fn of(&self, directory: u32) -> Option<KnownEntry> {
        let Remembered { entries, depths, .. } = &**self.0.as_ref()?;
        let mut depths = *depths;
        while depths != 0 {
            let depth = depths.ilog2();
            depths &= !(1 << depth);
            if let Some(&entry) = entries.get(&name(directory, depth)) {
                return Some(entry);
            }
        }
        None
    }

    /// So many bits the directory uses at least.
    pub fn bits(&self) -> u32 {
        self.0.as_ref().and_then(|remembered| remembered.depths.checked_ilog2()).unwrap_or(0)
    }

    /// Forgets all entries but those of this table.
    #[inline]
    pub fn keep(&mut self, geometry: &Geometry) {
        if self.0.as_ref().is_some_and(|remembered| remembered.generation != geometry.generation()) {
            self.0 = None;
        }
    }

    /// The single slots to READ first.
    #[inline]
    pub fn hinted(&self, hints: &Hints, geometry: &Geometry, key: Hashed<'_>) -> Hinted {
        if !geometry.grows() {
            return hints.of(geometry, key, None);
        }
        match self.of(key.first().directory()) {
            Some(KnownEntry { entry, .. }) => hints.of(geometry, key, Some(entry)),
            None => Hinted::new(),
        }
    }

    /// The machine that looks for a key.
    #[inline]
    pub fn machine<'a>(&self, geometry: &'a Geometry, key: &'a [u8], by_counter: bool) -> Get<'a> {
        if geometry.grows() {
            self.machine_by_directory(geometry, key, by_counter)
        } else {
            Get::new(geometry, key)
        }
    }

    #[cold]
    fn machine_by_directory<'a>(&self, geometry: &'a Geometry, key: &'a [u8], by_counter: bool) -> Get<'a> {
        let known = self.of(geometry.hashed(key).first().directory());
        Get::by_directory(geometry, key, known, self.bits(), by_counter)
    }

    /// Remembers what a GET has seen that has ended: the entry that it has READ, and on which side of a pair it has found
    /// its key, if it has.
    #[inline]
    pub fn learn(&mut self, get: &Get<'_>, has_found: bool) {
        if let Some((directory, entry)) = get.learned() {
            self.remember(get.geometry(), directory, entry);
        }
        if let Some((depth, ahead)) = get.found_ahead().filter(|_| has_found) {
            self.remember_side(get.key().first().directory(), depth, ahead);
        }
    }

    #[cold]
    fn remember_side(&mut self, directory: u32, depth: u32, keys_have_gone: bool) {
        let remembered = self.0.as_mut().and_then(|all| all.entries.get_mut(&name(directory, depth)));
        remembered.into_iter().for_each(|known| known.keys_have_gone = keys_have_gone);
    }

    fn remember(&mut self, geometry: &Geometry, directory: u32, entry: DirectoryEntry) {
        let Remembered { entries, depths, generation } = &mut **self.0.get_or_insert_default();
        *generation = geometry.generation();
        if entries.len() >= REMEMBERED_MAX {
            entries.clear();
        }
        // What was deeper has been merged.
        for depth in entry.depth + 1..=segment::DEPTH_MAX {
            entries.remove(&name(directory, depth));
        }
        let known = entries.entry(name(directory, entry.depth)).or_insert(entry.into());
        if known.entry != entry {
            *known = entry.into();
        }
        *depths |= 1 << entry.depth;
    }
}

fn name(directory: u32, depth: u32) -> u32 {
    directory & low(depth) | 1 << depth
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::segment::{Named, Pending};

    fn entry(depth: u32) -> DirectoryEntry {
        let segment = Named { memory: 0, incarnation: 0 };
        DirectoryEntry { segment, depth, pending: Pending::Nothing }
    }

    /// However many entries a region tells, a client remembers no more than its bound, and goes on remembering.
    #[test]
    fn remembered_entries_are_bounded() {
        let config = Config { size: TableSize::up_to(64 << 20), ..Config::short() };
        let geometry = config.geometry().unwrap();
        let mut known = KnownEntries::default();
        let entry = entry(segment::DEPTH_MAX);
        let most = REMEMBERED_MAX as u32;
        for directory in 0..most + 1 {
            known.remember(&geometry, directory, entry);
            assert_eq!(known.of(directory), Some(entry.into()));
        }
        assert!(known.0.unwrap().entries.len() <= REMEMBERED_MAX);
    }

    /// Entries are of one table: those of another one lead into memory that is not this one's.
    #[test]
    fn entries_of_another_table_are_forgotten() {
        let config = Config { size: TableSize::up_to(64 << 20), ..Config::short() };
        let [one, other] = [(); 2].map(|()| config.geometry().unwrap());
        let mut known = KnownEntries::default();
        known.remember(&one, 5, entry(3));
        known.keep(&one);
        assert_eq!((known.of(5), known.bits()), (Some(entry(3).into()), 3));
        known.keep(&other);
        assert_eq!((known.of(5), known.bits()), (None, 0));
    }
}
