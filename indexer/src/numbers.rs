//! The numbers of a publisher's batches: which one is next, what a gap is, when it began again.
//!
//! A publisher numbers its batches from 0, and begins again when it is started again. Nothing says so but the numbers,
//! so a batch is known again by number *and* a hash of its bytes, which have a time in them.

use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_64;

/// Batches that are known again.
const RECENT: usize = 256;

/// A batch: its number, and a hash of its bytes.
pub type Known = (u64, u64);

/// The hash of a batch's bytes.
pub fn digest(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// What a batch is, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The next one, or the first that is heard.
    Next,
    /// It was taken in before.
    Late,
    /// So many before it were not heard.
    Gap(u64),
    /// The publisher has begun again.
    Restarted,
}

/// What is known of a publisher's numbers.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    last: Option<Known>,
    recent: VecDeque<Known>,
    /// Up to where batches were sent again over this connection: they may be heard once more.
    replayed_to: Option<u64>,
    /// The last one that was heard over this connection: they have an order there.
    heard: Option<u64>,
}

impl Numbers {
    /// After this batch was taken in.
    pub fn after(last: Option<Known>) -> Numbers {
        Numbers { last, recent: last.into_iter().collect(), replayed_to: None, heard: None }
    }

    /// The last batch that was taken in.
    pub fn last(&self) -> Option<Known> {
        self.last
    }

    /// A connection begins.
    pub fn connected(&mut self) {
        (self.replayed_to, self.heard) = (None, None);
    }

    /// What a batch that was published is.
    pub fn hear(&mut self, number: u64, digest: u64) -> Heard {
        let is_lower = self.heard.is_some_and(|heard| number <= heard);
        self.heard = self.heard.max(Some(number));
        self.judge(number, digest, is_lower)
    }

    /// What the batch that was heard last is by now, behind others that were sent again.
    pub fn hear_again(&self, number: u64, digest: u64) -> Heard {
        self.judge(number, digest, false)
    }

    /// What a batch is. `is_lower`: one with its number, or a higher one, was heard before it over this connection.
    fn judge(&self, number: u64, digest: u64, is_lower: bool) -> Heard {
        let Some((last, _)) = self.last else { return Heard::Next };
        if number > last {
            return match number - last {
                1 => Heard::Next,
                more => Heard::Gap(more - 1),
            };
        }
        let is_known = self.recent.contains(&(number, digest));
        let was_replayed = !is_lower && self.replayed_to.is_some_and(|to| number <= to);
        if is_known || was_replayed { Heard::Late } else { Heard::Restarted }
    }

    /// A batch was taken in.
    pub fn took(&mut self, number: u64, digest: u64) {
        self.last = Some((number, digest));
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((number, digest));
    }

    /// All batches up to the last one were sent again over this connection.
    pub fn replayed(&mut self) {
        self.replayed_to = self.last.map(|(number, _)| number).max(self.replayed_to);
    }

    /// The publisher has begun again: nothing that it told before is known again.
    pub fn restarted(&mut self) {
        self.last = None;
        self.recent.clear();
        (self.replayed_to, self.heard) = (None, None);
    }

    /// The hash of a batch that was taken in not long ago.
    pub fn recent(&self, number: u64) -> Option<Known> {
        self.recent.iter().rev().find(|(known, _)| *known == number).copied()
    }
}

/// What the first batch that was sent again tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// It is the last known one: what comes next goes on from there.
    Same,
    /// The publisher has forgotten the last known one, and so many behind it.
    Lost(u64),
    /// The publisher has begun again.
    Restarted,
}

/// What the first batch that was sent again tells. `None`: there was none.
pub fn resumed((last, digest): Known, first: Option<Known>) -> Resumed {
    match first {
        Some(first) if first == (last, digest) => Resumed::Same,
        Some((number, _)) if number > last => Resumed::Lost(number - last - 1),
        Some(_) | None => Resumed::Restarted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(numbers: &mut Numbers, all: impl IntoIterator<Item = u64>) {
        for number in all {
            numbers.took(number, number * 10);
        }
    }

    /// The first may have any number; then each is next, repeated, behind a gap, or of a publisher that began again.
    #[test]
    fn numbers_tell_what_a_batch_is() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.hear(5, 50), Heard::Next);
        took(&mut numbers, [5]);
        assert_eq!(numbers.hear(6, 60), Heard::Next);
        took(&mut numbers, [6]);
        assert_eq!(numbers.hear(9, 90), Heard::Gap(2));
        took(&mut numbers, [7, 8, 9]);
        for repeated in [5, 8, 9] {
            assert_eq!(numbers.hear(repeated, repeated * 10), Heard::Late);
            assert_eq!(numbers.hear(repeated, 1), Heard::Restarted, "{repeated}: other bytes");
        }
        assert_eq!(numbers.hear(u64::MAX, 0), Heard::Gap(u64::MAX - 10));
        numbers.restarted();
        assert_eq!(numbers.hear(0, 0), Heard::Next);
    }

    /// What waited in the connection while it was sent again over another is late; behind it a lower one is not.
    #[test]
    fn what_was_sent_again_is_late() {
        let mut numbers = Numbers::after(Some((99, 990)));
        numbers.connected();
        took(&mut numbers, 100..400);
        numbers.replayed();
        assert_eq!(numbers.hear(101, 1010), Heard::Late, "it is not known any more, but was sent again");
        assert_eq!(numbers.hear(102, 1020), Heard::Late);
        assert_eq!(numbers.hear_again(102, 1020), Heard::Late);
        assert_eq!(numbers.hear(101, 1), Heard::Restarted);
        numbers.connected();
        assert_eq!(numbers.hear(102, 1), Heard::Restarted, "over another connection");
        assert_eq!(numbers.recent(399), Some((399, 3990)));
        assert_eq!(numbers.recent(100), None);
    }

    /// Who sends the last known batch first goes on; who has other bytes, another number, or none, does not.
    #[test]
    fn a_publisher_goes_on_if_it_has_the_last_batch() {
        assert_eq!(resumed((7, 70), Some((7, 70))), Resumed::Same);
        assert_eq!(resumed((7, 70), Some((8, 80))), Resumed::Lost(0));
        assert_eq!(resumed((7, 70), Some((12, 80))), Resumed::Lost(4));
        for first in [Some((7, 71)), Some((6, 70)), None] {
            assert_eq!(resumed((7, 70), first), Resumed::Restarted);
        }
    }
}
