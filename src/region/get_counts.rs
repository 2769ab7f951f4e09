//! How many GETs clients on this host have made: counters in memory that the server and its clients map.
//!
//! ```text
//! client    every 64 GETs, and with each request: adds what it has counted since to a cell
//! server    sums the cells when it is asked
//! ```
//!
//! A cell is two cache lines that the handles of a host share out: each adds to the cell of its number. So no cell has to be
//! given back, and what a client has added stays when it goes. Whoever may read the table may store anything here. It changes
//! no answer.

use super::{Region, RegionError};
use crate::layout::WORD;
use crate::outcome::GetCounts;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Bytes in front of the cells. A client of before takes this memory for a [`TouchMap`](super::TouchMap), and stores into
/// its first bytes, as many as the highest power of two in its length.
const UNUSED: usize = 16 << 10;
const CELLS: usize = 64;
const CELL_WORDS: usize = 16;
/// No power of two, unlike that of a map of reads.
const BYTES: usize = UNUSED + CELLS * CELL_WORDS * WORD;

/// The counters, as one of them has them mapped.
#[derive(Debug)]
pub(crate) struct GetCountMap {
    memory: Region,
    /// What clients are handed, on the server's side.
    handed: Option<OwnedFd>,
}

impl GetCountMap {
    /// Counters of a new server.
    ///
    /// # Errors
    /// [`RegionError`] when there is no memory for them.
    pub fn make() -> Result<GetCountMap, RegionError> {
        let (memory, fd) = Region::exchange(BYTES as u64)?;
        Ok(GetCountMap { memory, handed: Some(fd) })
    }

    /// Whether memory that a server has handed over has counters. Otherwise it is a map of reads.
    pub fn are_in(memory: &Region) -> bool {
        memory.bytes() == BYTES as u64
    }

    /// Those in such memory.
    pub fn in_memory(memory: Region) -> GetCountMap {
        GetCountMap { memory, handed: None }
    }

    /// What clients are handed.
    pub fn handed(&self) -> Option<&OwnedFd> {
        self.handed.as_ref()
    }

    fn first_word(cell: usize) -> usize {
        UNUSED / WORD + cell % CELLS * CELL_WORDS
    }

    /// Adds to the cell of a handle with this number.
    pub fn add(&self, handle: usize, counts: GetCounts) {
        let cell = self.memory.words(GetCountMap::first_word(handle), 2);
        // Relaxed: statistics.
        cell[0].fetch_add(counts.gets, Ordering::Relaxed);
        cell[1].fetch_add(counts.hits, Ordering::Relaxed);
    }

    /// All that was added.
    pub fn sum(&self) -> GetCounts {
        let mut sum = GetCounts::default();
        for cell in 0..CELLS {
            let words = self.memory.words(GetCountMap::first_word(cell), 2);
            sum.gets = sum.gets.wrapping_add(words[0].load(Ordering::Relaxed));
            sum.hits = sum.hits.wrapping_add(words[1].load(Ordering::Relaxed));
        }
        sum
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::TouchMap;
    use super::*;
    use crate::layout::hash::First;

    fn mapped(server: &GetCountMap) -> Region {
        Region::map_exchange(server.handed().unwrap().try_clone().unwrap()).unwrap()
    }

    /// Handles of any number add to what the server sums, each count by itself.
    #[test]
    fn what_handles_add_is_summed() {
        let server = GetCountMap::make().unwrap();
        let client = GetCountMap::in_memory(mapped(&server));
        for handle in [0, 1, 63, 64, usize::MAX] {
            client.add(handle, GetCounts { gets: 10, hits: 3 });
        }
        server.add(7, GetCounts { gets: 1, hits: 1 });
        assert_eq!((server.sum(), client.sum()), (GetCounts { gets: 51, hits: 16 }, server.sum()));
        assert_eq!(server.sum().misses(), 35);
    }

    /// A client of before, which takes the memory for a map of reads, stores into no counter. This one takes a map of reads
    /// for no counters.
    #[test]
    fn clients_of_before_spoil_no_count() {
        let server = GetCountMap::make().unwrap();
        let old = TouchMap::map(server.handed().unwrap().try_clone().unwrap()).unwrap();
        // Every byte that it knows of.
        (0..UNUSED as u64).for_each(|n| old.note(First(n << 50 | 7)));
        assert_eq!(server.sum(), GetCounts::default());
        let touches = TouchMap::make(100_000).unwrap();
        let memory = Region::map_exchange(touches.handed().unwrap().try_clone().unwrap()).unwrap();
        assert!(!GetCountMap::are_in(&memory) && GetCountMap::are_in(&mapped(&server)));
    }
}
