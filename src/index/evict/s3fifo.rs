//! `s3-fifo` (Yang et al., "FIFO queues are all you need for cache eviction", SOSP'23): a small queue for entries that come,
//! a main one for those that were read in the small one, and the hashes of those that left the small one unread.
//!
//! Take it unless you know better: a key that is read once leaves soon. Do not take it where a key comes back only after as
//! many others as a tenth of the table holds, as the blocks of prompts do: it has left the small queue by then, and has to
//! be put a second time to come into the main one.
//!
//! The paper counts up to three reads of each entry. Here one bit tells whether it was read since the hand was there,
//! because readers leave no more: so an entry goes to the main queue if it was read at all, and stays there as
//! long as it is read in each round.

use super::policy::{LOOKS_MAX, Policy, Rank, Sight};
use super::records::EntryRecords;
use crate::layout::hash::First;

const SMALL: u8 = 0;
const MAIN: u8 = 1;
/// The list of hashes of entries that have left. It has no entries.
const GHOSTS: u8 = 2;

/// The small queue has one entry in this number.
const SMALL_ONE_OF: usize = 10;

#[derive(Debug, Default)]
pub(super) struct S3FifoPolicy {
    queues: EntryRecords<3>,
}

impl Policy for S3FifoPolicy {
    fn came(&mut self, hash: First) {
        match self.queues.find(hash) {
            None => self.queues.insert(hash, SMALL),
            Some(at) if self.queues.list(at) == GHOSTS => self.queues.put_first(at, MAIN),
            Some(_) => {}
        }
    }

    fn left(&mut self, hash: First) {
        if let Some(at) = self.queues.find(hash).filter(|&at| self.queues.list(at) != GHOSTS) {
            self.queues.remove(at);
        }
    }

    fn victim(&mut self, look: &mut dyn FnMut(First) -> Sight) -> Option<First> {
        let mut spare = None;
        for _ in 0..self.entries().min(LOOKS_MAX) {
            let is_from_small = self.queues.len(SMALL) * SMALL_ONE_OF >= self.entries();
            let (from, other) = if is_from_small { (SMALL, MAIN) } else { (MAIN, SMALL) };
            let at = self.queues.back(from).or_else(|| self.queues.back(other))?;
            match look(self.queues.hash(at)) {
                Sight::Unread => {
                    spare = Some(at);
                    break;
                }
                Sight::Read => spare = spare.or(Some(at)),
                Sight::Pinned => {}
            }
            self.queues.put_first(at, MAIN);
        }
        let at = spare?;
        let hash = self.queues.hash(at);
        if self.queues.list(at) == SMALL {
            self.queues.put_first(at, GHOSTS);
        } else {
            self.queues.remove(at);
        }
        while self.queues.len(GHOSTS) > self.entries() {
            let oldest = self.queues.back(GHOSTS)?;
            self.queues.remove(oldest);
        }
        Some(hash)
    }

    fn rank(&self, hash: First) -> Rank {
        match self.queues.find(hash).map(|at| self.queues.list(at)) {
            Some(MAIN) => Rank::Kept,
            Some(SMALL) => Rank::New,
            _ => Rank::Unknown,
        }
    }

    fn entries(&self) -> usize {
        self.queues.len(SMALL) + self.queues.len(MAIN)
    }

    fn records(&self) -> usize {
        self.entries() + self.queues.len(GHOSTS)
    }
}
