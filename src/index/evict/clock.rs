//! CLOCK (Corbató, "A paging experiment with the Multics system", 1968): one queue. An entry that was read since the hand
//! was there goes to the front; one that was not leaves.
//!
//! Take it where a key that was read is read again soon or never, as the blocks of prompts are: there it finds more than
//! the others (docs/BENCHMARKS.md). Do not take it where many keys are read once, as by a scan: each of them stays for a
//! whole round, and pushes out one that is read more often.

use super::policy::{LOOKS_MAX, Policy, Rank, Sight};
use super::records::EntryRecords;
use crate::layout::hash::First;

#[derive(Debug, Default)]
pub(super) struct ClockPolicy {
    queue: EntryRecords<1>,
}

impl Policy for ClockPolicy {
    fn came(&mut self, hash: First) {
        if self.queue.find(hash).is_none() {
            self.queue.insert(hash, 0);
        }
    }

    fn left(&mut self, hash: First) {
        if let Some(at) = self.queue.find(hash) {
            self.queue.remove(at);
        }
    }

    fn victim(&mut self, look: &mut dyn FnMut(First) -> Sight) -> Option<First> {
        let mut spare = None;
        for _ in 0..self.queue.len(0).min(LOOKS_MAX) {
            let at = self.queue.back(0)?;
            match look(self.queue.hash(at)) {
                Sight::Unread => {
                    spare = Some(at);
                    break;
                }
                Sight::Read => spare = spare.or(Some(at)),
                Sight::Pinned => {}
            }
            self.queue.put_first(at, 0);
        }
        let hash = self.queue.hash(spare?);
        self.queue.remove(spare?);
        Some(hash)
    }

    fn rank(&self, hash: First) -> Rank {
        if self.queue.find(hash).is_some() { Rank::Kept } else { Rank::Unknown }
    }

    fn entries(&self) -> usize {
        self.queue.len(0)
    }
}
