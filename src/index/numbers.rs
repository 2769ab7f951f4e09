//! Numbers that are never given twice, also by the next server (X1).

use crate::faults::{Rule, obey};
use crate::region::Region;
use std::ops::Range;

/// Numbers of one kind. The caller has a lock.
#[derive(Debug)]
pub(super) struct NumberSource {
    /// The word of the region that no given number has reached.
    word: usize,
    /// Numbers that are taken from the word at a time. A takeover leaves out the rest of them.
    at_a_time: u64,
    /// Numbers that are taken and not yet given.
    taken: Range<u64>,
}

impl NumberSource {
    /// Numbers from the one on that this word of the region has.
    pub fn from(region: &Region, word: usize, at_a_time: u64) -> NumberSource {
        let first = region.load(word);
        NumberSource { word, at_a_time, taken: first..first }
    }

    /// X1: gives a number that was never given.
    pub fn next(&mut self, region: &Region) -> u64 {
        if self.taken.is_empty() {
            let end = self.taken.end + self.at_a_time;
            // The word goes up first. A killed server's stores end where its program did.
            obey(Rule::NumberFirst, || region.store(self.word, end));
            self.taken.end = end;
        }
        self.taken.start += 1;
        self.taken.start - 1
    }
}
