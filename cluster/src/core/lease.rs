//! Leases that clients READ (CL2 to CL4).
//!
//! A client READs a node's page now and then. Two pages make a lease: the first is a *mark*, whose `asked` is one
//! number; if a later one shows a higher `held` of the same life, then a beat was sent after the first READ was
//! issued, and etcd has written it. So nobody takes over from the node before the TTL is over, counted from then.

use crate::core::state::{Lived, NodeId, Page, ShardIx, Time, Timing, Word};
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// What a client has learned of nodes by READs of their pages.
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
    asked: Lived,
    held: Lived,
    words: Vec<Word>,
}

#[derive(Debug)]
struct Lease {
    until: Time,
    /// The epochs of the shards that were open in both READs.
    open: Vec<Option<u64>>,
}

/// Most marks of a node that are kept: one is enough, and two let a lease be prolonged while it lasts.
const MARKS_MAX: usize = 4;

impl Leases {
    /// None yet.
    pub fn new(timing: Timing) -> Leases {
        Leases { timing, nodes: FxHashMap::default() }
    }

    /// A READ of a node's page has landed.
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
        // The newest that is proven lasts longest. One of another life proves nothing ever.
        if let Some(index) = known.marks.iter().rposition(is_proof) {
            let mark = &known.marks[index];
            let open = mark.words.iter().zip(&page.words);
            let open = open.map(|(was, is)| (was.is_open && was == is).then_some(is.epoch)).collect();
            let since = if broken(Rule::LeaseFromSecondRead) { now } else { mark.issued };
            known.lease = Some(Lease { until: since + length, open });
            known.marks.drain(..=index);
        }
        if !broken(Rule::LivesMixed) {
            known.marks.retain(|mark| mark.asked.life == page.asked.life);
        }
        if known.marks.len() < MARKS_MAX {
            let words = page.words.clone();
            known.marks.push_back(Mark { issued, asked: page.asked, held: page.held, words });
        }
    }

    /// A READ has failed: nothing is known but what a lease says.
    pub fn read_failed(&mut self, node: NodeId) {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.marks.clear();
        }
    }

    /// Whether a lease covers a shard, of which this node is the primary of this epoch, at this time.
    ///
    /// A value counts if that is so after it has landed (CL4).
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

    /// A lease on a node: until when it lasts, and for which shards, by their epochs. `None`: there is none.
    pub fn of(&self, node: NodeId) -> Option<(Time, &[Option<u64>])> {
        self.nodes.get(&node)?.lease.as_ref().map(|lease| (lease.until, &lease.open[..]))
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }
}
