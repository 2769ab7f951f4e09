//! The last changes of shards, for followers (CL18).

use crate::core::ids::ShardIx;
pub use crate::core::message::FeedAt;
use crate::core::message::{Effect, Key, Store, Value};
use crate::faults::{Rule, broken};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Bytes that a change takes beside its key and value, with what the system's allocator takes.
const OVERHEAD: usize = 192;

/// A change, as followers are told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Its place.
    pub at: FeedAt,
    /// What it did.
    pub effect: Effect,
    /// The key.
    pub key: Key,
    /// The key's new value. `None`: the key left, or values are not wanted.
    pub value: Option<Value>,
}

impl Told {
    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        OVERHEAD + self.key.len() + self.value.as_ref().map_or(0, Value::len)
    }
}

/// Some changes of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedPart {
    /// The place behind which they begin. If the follower asked for an earlier place, changes are missing before them.
    pub from: FeedAt,
    /// The changes, in order.
    pub changes: Vec<Told>,
}

/// The kept changes of a shard.
#[derive(Debug, Default)]
struct Kept {
    /// The place behind which they begin. `None`: the place of the shard's changes is not known.
    from: Option<FeedAt>,
    changes: VecDeque<Told>,
}

impl Kept {
    fn last(&self) -> Option<FeedAt> {
        self.changes.back().map_or(self.from, |told| Some(told.at))
    }

    /// Releases memory of a shard that had many changes.
    fn shrink(&mut self) {
        let len = self.changes.len();
        if self.changes.capacity() > 4 * len + 64 {
            self.changes.shrink_to(2 * len);
        }
    }

    /// The number of changes up to this place. `None`: there is no such place.
    fn up_to(&self, at: FeedAt) -> Option<usize> {
        let count = usize::try_from(at.number.checked_sub(self.from?.number)?).ok()?;
        let there = match count.checked_sub(1) {
            None => self.from?,
            Some(index) => self.changes.get(index)?.at,
        };
        (there == at || broken(Rule::FeedByNumber) && there.number == at.number).then_some(count)
    }
}

/// The last changes of a node's shards.
#[derive(Debug)]
pub(in crate::core) struct Feed {
    shards: Vec<Kept>,
    /// The shards of all changes, the oldest first.
    order: VecDeque<ShardIx>,
    bytes: usize,
    bytes_max: usize,
    /// The number of changes so far.
    pushed: u64,
}

impl Feed {
    pub fn new(shards: ShardIx, bytes_max: usize) -> Feed {
        let shards = (0..shards).map(|_| Kept::default()).collect();
        Feed { shards, order: VecDeque::new(), bytes: 0, bytes_max, pushed: 0 }
    }

    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.shorten();
    }

    /// Goes up with each change of any shard.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The place of the last change. `None`: it is not known.
    pub fn last(&self, shard: ShardIx) -> Option<FeedAt> {
        self.shards[usize::from(shard)].last()
    }

    /// A primary serves the shard. If the place of its changes is not known, they begin with this epoch.
    pub fn leads(&mut self, shard: ShardIx, epoch: u64) {
        self.shards[usize::from(shard)].from.get_or_insert(FeedAt { epoch, number: 0 });
    }

    /// Adds a change that was made in this epoch.
    pub fn push(&mut self, shard: ShardIx, epoch: u64, effect: Effect, (key, entry): &Store) {
        let Some(last) = self.last(shard).filter(|_| effect != Effect::Nothing) else { return };
        let at = FeedAt { epoch, number: last.number + 1 };
        let value = entry.as_ref().map(|entry| entry.value.clone());
        let told = Told { at, effect, key: key.clone(), value };
        self.bytes += told.bytes();
        self.pushed += 1;
        self.shards[usize::from(shard)].changes.push_back(told);
        self.order.push_back(shard);
        self.shorten();
    }

    fn shorten(&mut self) {
        // The last change stays, however long it is, so that a follower that keeps up misses nothing.
        while self.bytes > self.bytes_max
            && self.order.len() > 1
            && let Some(shard) = self.order.pop_front()
        {
            let kept = &mut self.shards[usize::from(shard)];
            if let Some(told) = kept.changes.pop_front() {
                self.bytes -= told.bytes();
                kept.from = Some(told.at);
                kept.shrink();
            }
        }
    }

    /// A primary's items follow this place. Changes beyond it came from another primary, and were never visible. If the
    /// place is not known here, there are no changes.
    pub fn goes_on(&mut self, shard: ShardIx, at: FeedAt) {
        let kept = &mut self.shards[usize::from(shard)];
        let left = match kept.up_to(at) {
            Some(count) => kept.changes.drain(count..).map(|told| told.bytes()).sum(),
            None => {
                kept.from = Some(at);
                kept.changes.drain(..).map(|told| told.bytes()).sum()
            }
        };
        self.left(shard, left);
    }

    /// The copy is gone.
    pub fn forget(&mut self, shard: ShardIx) {
        let kept = std::mem::take(&mut self.shards[usize::from(shard)]);
        self.left(shard, kept.changes.iter().map(Told::bytes).sum());
    }

    fn left(&mut self, shard: ShardIx, bytes: usize) {
        if bytes > 0 {
            self.bytes -= bytes;
            self.shards[usize::from(shard)].shrink();
            let (mut seen, kept) = (0, self.shards[usize::from(shard)].changes.len());
            self.order.retain(|other| {
                seen += usize::from(*other == shard);
                *other != shard || seen <= kept
            });
        }
    }

    /// Changes after this place, or from the next one on: about this many bytes, and at least one change.
    pub fn read(&self, shard: ShardIx, after: Option<FeedAt>, bytes: usize) -> Option<FeedPart> {
        let kept = &self.shards[usize::from(shard)];
        let Some(after) = after else {
            return Some(FeedPart { from: kept.last()?, changes: Vec::new() });
        };
        let (from, passed) = match kept.up_to(after) {
            Some(passed) => (after, passed),
            // The follower has heard of all changes of earlier epochs, or was told of a gap.
            None => {
                let passed = kept.changes.iter().take_while(|told| told.at.epoch < after.epoch).count();
                let last = passed.checked_sub(1).map(|last| kept.changes[last].at);
                (last.or(kept.from)?, passed)
            }
        };
        let mut taken = 0;
        let changes = kept.changes.iter().skip(passed).take_while(|told| {
            let is_first = taken == 0;
            taken += told.bytes();
            is_first || taken <= bytes
        });
        Some(FeedPart { from, changes: changes.cloned().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::message::{Entry, Life};

    const A: ShardIx = 0;
    const B: ShardIx = 1;

    fn at(epoch: u64, number: u64) -> FeedAt {
        FeedAt { epoch, number }
    }

    fn push(feed: &mut Feed, shard: ShardIx, epoch: u64) {
        let entry = Entry { value: Value::from_static(b"12345"), life: Life::Lasting };
        feed.push(shard, epoch, Effect::Came, &(Key::from_static(b"key"), Some(entry)));
    }

    /// The numbers that are told, and from where.
    fn read(feed: &Feed, shard: ShardIx, after: FeedAt) -> (FeedAt, Vec<FeedAt>) {
        let part = feed.read(shard, Some(after), usize::MAX).unwrap();
        (part.from, part.changes.iter().map(|told| told.at).collect())
    }

    #[test]
    fn a_follower_goes_on_where_its_change_is_known() {
        let mut feed = Feed::new(2, 1 << 20);
        assert_eq!(feed.read(A, None, 1), None);
        push(&mut feed, A, 7);
        assert_eq!(feed.last(A), None, "where it stands is not known");
        feed.leads(A, 7);
        (0..3).for_each(|_| push(&mut feed, A, 7));
        feed.leads(A, 9);
        push(&mut feed, A, 9);
        assert_eq!(read(&feed, A, at(7, 2)), (at(7, 2), vec![at(7, 3), at(9, 4)]));
        assert_eq!(read(&feed, A, at(9, 4)), (at(9, 4), vec![]));
        // Another change had this number.
        let all = vec![at(7, 1), at(7, 2), at(7, 3), at(9, 4)];
        assert_eq!(read(&feed, A, at(7, 9)), (at(7, 0), all));
        assert_eq!(read(&feed, A, at(8, 2)), (at(7, 3), vec![at(9, 4)]), "none from before its epoch");
        assert_eq!(read(&feed, A, at(10, 5)), (at(9, 4), vec![]));
        assert_eq!(feed.read(A, None, 1).unwrap(), FeedPart { from: at(9, 4), changes: vec![] });
        assert_eq!(feed.read(A, Some(at(7, 0)), 1).unwrap().changes.len(), 1, "one at least");
    }

    #[test]
    fn what_was_never_visible_is_forgotten() {
        let mut feed = Feed::new(2, 1 << 20);
        feed.goes_on(A, at(3, 10));
        (0..3).for_each(|_| push(&mut feed, A, 4));
        push(&mut feed, B, 1);
        feed.goes_on(A, at(4, 12));
        push(&mut feed, A, 5);
        assert_eq!(read(&feed, A, at(3, 10)).1, [at(4, 11), at(4, 12), at(5, 13)]);
        // It has missed some.
        feed.goes_on(A, at(6, 20));
        assert_eq!(read(&feed, A, at(5, 13)), (at(6, 20), vec![]));
        assert_eq!((feed.bytes, feed.order.len()), (0, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let each = OVERHEAD + 8;
        let mut feed = Feed::new(2, 4 * each);
        feed.leads(A, 1);
        feed.leads(B, 1);
        for shard in [A, B, A, B, A, A] {
            push(&mut feed, shard, 1);
        }
        assert_eq!(feed.bytes, 4 * each);
        assert_eq!(read(&feed, A, at(1, 0)), (at(1, 1), vec![at(1, 2), at(1, 3), at(1, 4)]));
        assert_eq!(read(&feed, B, at(1, 1)), (at(1, 1), vec![at(1, 2)]));
        feed.forget(A);
        assert_eq!((feed.last(A), feed.bytes, feed.order.len()), (None, each, 1));
        feed.set_bytes_max(0);
        assert_eq!(read(&feed, B, at(1, 1)), (at(1, 1), vec![at(1, 2)]), "the last one stays");
        push(&mut feed, B, 2);
        assert_eq!((read(&feed, B, at(1, 2)), feed.bytes), ((at(1, 2), vec![at(2, 3)]), each));
        // Who was many does not keep the memory for that.
        feed.set_bytes_max(1_000 * each);
        (0..1_000).for_each(|_| push(&mut feed, B, 2));
        assert!(feed.shards[1].changes.capacity() >= 1_000);
        feed.set_bytes_max(10 * each);
        assert!(feed.shards[1].changes.capacity() < 200);
    }
}
