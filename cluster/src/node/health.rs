//! A node's health with etcd and other nodes. Its core does not need it, but an operator does.

use crate::core::etcd::{At, EtcdAnswer, EtcdKey, EtcdValue};
use crate::core::state::{Lived, NodeId, Time};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Why etcd has refused the last call, or did not answer it: for calls that change something, and for others. Reads may
/// succeed while etcd takes no change.
#[derive(Clone, Debug, Default)]
pub struct EtcdTrouble(Arc<Mutex<[Option<&'static str>; 2]>>);

impl EtcdTrouble {
    /// Notes the end of a call: `None` for success.
    pub fn note(&self, changes: bool, why: Option<&'static str>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(changes)] = why;
    }

    fn why(&self) -> Option<&'static str> {
        let [of_reads, of_changes] = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        of_changes.or(of_reads)
    }
}

/// The revision of a node key's last change, since when it is known, and whether this process has seen it change.
#[derive(Clone, Copy, Debug)]
struct SeenKey {
    at: At,
    since: Time,
    changes: bool,
}

/// A node's health, as far as it is known.
#[derive(Debug)]
pub struct Health {
    trouble: EtcdTrouble,
    /// The last beat that etcd has taken, and since when this is known.
    beat: Option<(Lived, Time)>,
    /// Keys of nodes that may beat.
    nodes: FxHashMap<NodeId, SeenKey>,
}

impl Health {
    /// Health without any information yet.
    pub fn new(trouble: EtcdTrouble) -> Health {
        Health { trouble, beat: None, nodes: FxHashMap::default() }
    }

    /// Notes the last beat that etcd has taken. A beat of an earlier process does not count.
    pub fn see_beat(&mut self, now: Time, held: Lived) {
        match &mut self.beat {
            Some((before, _)) if *before == held => {}
            Some((before, since)) => (*before, *since) = (held, now),
            // The beat that its table had at its start. It counts as old.
            None => self.beat = Some((held, 0)),
        }
    }

    /// Notes the nodes' keys in an answer of etcd.
    pub fn see_nodes(&mut self, now: Time, answer: &EtcdAnswer) {
        for entry in &answer.entries {
            let EtcdKey::Node(id) = entry.key else { continue };
            match &entry.value {
                Some(EtcdValue::Node(key)) if key.alive => {
                    let new = SeenKey { at: entry.at, since: now, changes: false };
                    let known = self.nodes.entry(id).or_insert(new);
                    if known.at != entry.at {
                        *known = SeenKey { changes: true, ..new };
                    }
                }
                _ => drop(self.nodes.remove(&id)),
            }
        }
    }

    /// Microseconds since it learned that etcd has taken a beat. `None`: of none yet.
    pub fn beat_age(&self, now: Time) -> Option<Time> {
        self.beat.filter(|(_, since)| *since > 0).map(|(_, since)| now.saturating_sub(since))
    }

    /// Why etcd takes no beat, in a few words. Empty: it takes them.
    pub fn etcd(&self) -> &'static str {
        self.trouble.why().unwrap_or_default()
    }

    /// Whether a node may have beaten within this time. Unknown for a node that was just heard of for the first time.
    pub fn lives(&self, now: Time, ttl: Time, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|seen| now < seen.since + ttl)
    }

    /// Nodes for which that is unknown: they were first heard of within this time, and have not been seen to beat.
    pub fn unknown(&self, now: Time, ttl: Time) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().filter(move |(_, seen)| !seen.changes && now < seen.since + ttl).map(|(id, _)| *id)
    }

    /// Nodes that have beaten within this time.
    pub fn living(&self, now: Time, ttl: Time) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().filter(move |(_, seen)| seen.changes && now < seen.since + ttl).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::etcd::Entry;
    use crate::core::state::{NodeAbout, NodeKey};

    /// The beat that an earlier process has left is not this one's, and a beat is as old as the news of it.
    #[test]
    fn a_beat_has_an_age() {
        let mut health = Health::new(EtcdTrouble::default());
        let beat = |number| Lived { life: 1, number };
        assert_eq!(health.beat_age(10), None);
        health.see_beat(100, beat(7));
        assert_eq!(health.beat_age(100), None, "it was there before");
        health.see_beat(200, beat(8));
        health.see_beat(300, beat(8));
        assert_eq!(health.beat_age(300), Some(100));
    }

    /// Changes that etcd refuses are trouble, though it can be read; the last word on each counts.
    #[test]
    fn etcd_may_be_read_and_take_nothing() {
        let trouble = EtcdTrouble::default();
        let health = Health::new(trouble.clone());
        trouble.note(true, Some("no space"));
        trouble.note(false, None);
        assert_eq!(health.etcd(), "no space");
        trouble.note(false, Some("no answer"));
        trouble.note(true, None);
        assert_eq!(health.etcd(), "no answer");
        trouble.note(false, None);
        assert_eq!(health.etcd(), "");
    }

    /// A node lives for a TTL after its key was seen to change, and not if it may not beat.
    #[test]
    fn a_node_lives_while_its_key_changes() {
        let mut health = Health::new(EtcdTrouble::default());
        let answer = |at, alive| {
            let key = NodeKey { life: 1, number: 1, alive, about: NodeAbout::default() };
            let entries =
                vec![Entry { key: EtcdKey::Node(NodeId(1)), value: Some(EtcdValue::Node(key)), at }];
            EtcdAnswer { call: 1, is_watched: false, etcd: 1, revision: at, is_done: true, entries }
        };
        health.see_nodes(100, &answer(5, true));
        health.see_nodes(150, &answer(5, true));
        assert!(health.lives(199, 100, NodeId(1)) && !health.lives(200, 100, NodeId(1)));
        assert!(health.living(199, 100).next().is_none(), "it may have died long ago");
        let unknown = |health: &Health, now| health.unknown(now, 100).collect::<Vec<_>>();
        assert_eq!([199, 200].map(|now| unknown(&health, now)), [vec![NodeId(1)], vec![]]);
        health.see_nodes(200, &answer(6, true));
        assert_eq!(health.living(299, 100).collect::<Vec<_>>(), [NodeId(1)]);
        assert_eq!(unknown(&health, 299), []);
        health.see_nodes(250, &answer(7, false));
        assert!(!health.lives(250, 100, NodeId(1)) && health.living(250, 100).next().is_none());
    }
}
