//! Leases that clients READ (CL2 to CL4).
//!
//! A client READs a node's page now and then. Two pages make a lease. The first is a *mark*, with the number `asked`.
//! If a later page of the same life shows a higher `held`, then a beat was sent after the first READ was issued, and
//! etcd has written it. So no other node takes over before the TTL, counted from that READ, is over.

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
