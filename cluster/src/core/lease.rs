//! Leases that clients READ (CL2 to CL4).
//!
//! A client READs a node's page now and then. Two pages make a lease: the first is a *mark*, whose `asked` is one
//! number; if a later one shows a higher `held` of the same life, then a beat was sent after the first READ was
//! issued, and etcd has written it. So nobody takes over from the node before the TTL is over, counted from then.
//! Which shards that is about the newest page says: whoever hands one over closes its word first, and the next primary
//! changes nothing before leases of until then are over.

use crate::core::state::{Lived, NodeId, Page, ShardIx, Time, Timing, Word};
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A client's knowledge of nodes, from READs of their pages.
#[derive(Debug)]
pub struct Leases {
    timing: Timing,
    nodes: FxHashMap<NodeId, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// In the order in which their READs were issued.
    marks: VecDeque<Mark>,
    lease: Option<Lease>,
}

#[derive(Debug)]
struct Mark {
    issued: Time,
    landed: Time,
    asked: Lived,
    held: Lived,
}

#[derive(Debug)]
struct Lease {
    until: Time,
    /// When the mark had landed, and the node's life in it.
    landed: Time,
    life: u64,
    /// The epochs of the shards that are open, as the newest page says that was READ after the mark.
    open: Vec<Option<u64>>,
}

/// The most marks of a node that are kept. One is enough; two let a lease be prolonged while it lasts.
const MARKS_MAX: usize = 4;

impl Leases {
    /// Leases of a client that has none yet.
    pub fn new(timing: Timing) -> Leases {
        Leases { timing, nodes: FxHashMap::default() }
    }

    /// Notes that a READ of a node's page has landed.
    ///
    /// `issued` is the client's time before the READ was issued, `now` its time after it landed.
    pub fn page_landed(&mut self, node: NodeId, issued: Time, now: Time, page: &Page) {
        let length = if broken(Rule::LeaseTooLong) { 2 * self.timing.ttl } else { self.timing.lease() };
        let known = self.nodes.entry(node).or_default();
        // A lease from an old mark would be over.
        if !broken(Rule::LeaseFromSecondRead) {
            known.marks.retain(|mark| now < mark.issued + length);
        }
        let is_proof = |mark: &Mark| {
            let same_life = page.held.life == mark.asked.life || broken(Rule::LivesMixed);
            let above = if broken(Rule::AnyNewAnswer) { mark.held } else { mark.asked };
            same_life && page.held.number > above.number
        };
        // The newest mark with a proof gives the longest lease. A mark of another life never proves anything.
        if let Some(index) = known.marks.iter().rposition(is_proof) {
            let Mark { issued, landed, asked, .. } = known.marks[index];
            let since = if broken(Rule::LeaseFromSecondRead) { now } else { issued };
            let open = known.lease.take().map(|lease| lease.open).unwrap_or_default();
            known.lease = Some(Lease { until: since + length, landed, life: asked.life, open });
            known.marks.drain(..=index);
        }
        if let Some(lease) = &mut known.lease {
            let is_of_life = page.held.life == lease.life || broken(Rule::LivesMixed);
            let is_after = is_of_life && issued >= lease.landed || broken(Rule::WordBeforeMark);
            let epoch = |word: &Word| word.is_open.then_some(word.epoch).filter(|_| is_after);
            lease.open.clear();
            lease.open.extend(page.words.iter().map(epoch));
        }
        if !broken(Rule::LivesMixed) {
            known.marks.retain(|mark| mark.asked.life == page.asked.life);
        }
        if known.marks.len() < MARKS_MAX {
            known.marks.push_back(Mark { issued, landed: now, asked: page.asked, held: page.held });
        }
    }

    /// Notes that a READ has failed. Only a lease that lasts counts then.
    pub fn read_failed(&mut self, node: NodeId) {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.marks.clear();
        }
    }

    /// Whether a lease covers this shard at this time, if the node is its primary in this epoch.
    ///
    /// A value counts if this is `true` after it has landed (CL4).
    #[inline]
    pub fn covers(&self, node: NodeId, shard: ShardIx, epoch: u64, now: Time) -> bool {
        self.nodes.get(&node).and_then(|known| known.lease.as_ref()).is_some_and(|lease| {
            let is_open = |open: &Option<u64>| *open == Some(epoch);
            now < lease.until
                && (lease.open.get(usize::from(shard)).is_some_and(is_open)
                    || broken(Rule::NoWord)
                    || broken(Rule::WordOfOtherShard) && lease.open.iter().any(Option::is_some))
        })
    }

    /// A lease on a node: its end, and its shards, by their epochs. `None`: there is none.
    pub fn of(&self, node: NodeId) -> Option<(Time, &[Option<u64>])> {
        self.nodes.get(&node)?.lease.as_ref().map(|lease| (lease.until, &lease.open[..]))
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    /// CL3: two READs overlap. The one that was issued before the mark had landed may have seen a word that was open before
    /// the mark was issued, and the shard may have moved since: nothing it shows is covered, unless that rule is broken.
    #[test]
    fn words_count_that_were_read_after_the_mark() {
        let covers_after = |issued: Time| {
            let mut leases = Leases::new(Timing::default());
            let page = |beat, is_open| Page {
                asked: Lived { life: 1, number: beat },
                held: Lived { life: 1, number: beat },
                words: vec![Word { epoch: 3, is_open }],
            };
            leases.page_landed(NODE, 100, 200, &page(1, false));
            leases.page_landed(NODE, issued, 300, &page(2, true));
            leases.covers(NODE, 0, 3, 300)
        };
        assert!(covers_after(200));
        assert!(!covers_after(150) && !covers_after(199));
        #[cfg(feature = "faults")]
        {
            crate::faults::breaks(Some(Rule::WordBeforeMark));
            assert!(covers_after(150));
            crate::faults::breaks(None);
        }
    }
}
