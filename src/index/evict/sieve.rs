//! SIEVE (Zhang et al., "SIEVE is simpler than LRU", NSDI'24): one queue, in which no entry moves. A hand goes from the
//! oldest entry to the newest, passes over those that were read, and takes the first that was not.
//!
//! Take it where some keys stay popular, as names and pages of the Web do. Do not take it where all keys are popular for a
//! time and then never again, or where a scan reads keys twice: new entries wait behind the hand, however often they are
//! read, and old ones that were read once stay for a round.

use super::policy::{LOOKS_MAX, Policy, Rank, Sight};
use super::records::{EntryRecords, RecordAt};
use crate::layout::hash::First;

#[derive(Debug, Default)]
pub(super) struct SievePolicy {
    queue: EntryRecords<1>,
    /// The next one to look at; `None`: the oldest.
    hand: Option<RecordAt>,
}

impl SievePolicy {
    fn remove(&mut self, at: RecordAt) {
        if self.hand == Some(at) {
            self.hand = self.queue.before(at);
        }
        self.queue.remove(at);
    }
}

impl Policy for SievePolicy {
    fn came(&mut self, hash: First) {
        if self.queue.find(hash).is_none() {
            self.queue.insert(hash, 0);
        }
    }

    fn left(&mut self, hash: First) {
        if let Some(at) = self.queue.find(hash) {
            self.remove(at);
        }
    }

    fn victim(&mut self, look: &mut dyn FnMut(First) -> Sight) -> Option<First> {
        let mut spare = None;
        for _ in 0..self.queue.len(0).min(LOOKS_MAX) {
            let at = self.hand.or_else(|| self.queue.back(0))?;
            self.hand = self.queue.before(at);
            match look(self.queue.hash(at)) {
                Sight::Unread => {
                    spare = Some(at);
                    break;
                }
                Sight::Read => spare = spare.or(Some(at)),
                Sight::Pinned => {}
            }
        }
        let hash = self.queue.hash(spare?);
        self.remove(spare?);
        Some(hash)
    }

    fn rank(&self, hash: First) -> Rank {
        if self.queue.find(hash).is_some() { Rank::Kept } else { Rank::Unknown }
    }

    fn entries(&self) -> usize {
        self.queue.len(0)
    }
}
