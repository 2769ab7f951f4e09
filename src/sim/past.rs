//! What a server did, for clients to be run against, and the GETs that they make.

use super::history::{History, Instant};
use super::keys::KeyNumber;
use super::stores::{Incident, IncidentKind};
use std::collections::BTreeMap;

/// What a server did, for clients to be run against.
#[derive(Clone, Debug)]
pub struct Past {
    /// Every store.
    pub history: History,
    /// What happened to keys, in the order in which it began. Empty for clients that look
    /// everywhere.
    pub incidents: Vec<Incident>,
    /// For each key, the instants at which something begins to happen to it.
    leaps: BTreeMap<KeyNumber, Vec<Instant>>,
}

impl Past {
    pub(super) fn new(history: History, incidents: Vec<Incident>) -> Past {
        let mut leaps: BTreeMap<KeyNumber, Vec<Instant>> = BTreeMap::new();
        let is_leap = |incident: &&Incident| {
            !matches!(
                incident.kind,
                IncidentKind::GhostGone
                    | IncidentKind::Filter
                    | IncidentKind::Link
                    | IncidentKind::Return
                    | IncidentKind::Overlaid
            )
        };
        for incident in incidents.iter().filter(is_leap) {
            leaps.entry(incident.key).or_default().push(incident.from);
        }
        leaps.values_mut().for_each(|leaps| leaps.dedup());
        Past { history, incidents, leaps }
    }

    /// The past of a server that stops for ever at `instant`.
    pub fn until(&self, instant: Instant) -> Past {
        Past { history: self.history.clone().until(instant), ..self.clone() }
    }

    /// The instants at which something begins to happen to the key.
    pub(super) fn leaps(&self, number: KeyNumber) -> &[Instant] {
        self.leaps.get(&number).map_or(&[], |leaps| leaps)
    }

    /// Lets a client that looks this key up sleep, between two passes, until any of these instants.
    pub fn may_sleep(&mut self, number: KeyNumber, until: Vec<Instant>) {
        self.leaps.insert(number, until);
    }
}

/// Names the next GET of a client, given when its previous one ended. `None` when it is done.
pub type PlannedGets<'a> = dyn FnMut(Instant) -> Option<PlannedGet> + 'a;

/// A GET that a client is to make.
#[derive(Clone, Copy, Debug)]
pub struct PlannedGet {
    /// The key to look up.
    pub key: KeyNumber,
    /// The earliest start.
    pub from: Instant,
    /// The most stores during one of its READs, if fewer than the hardware allows.
    pub read_stores_max: Option<usize>,
}

impl PlannedGet {
    /// GETs of these keys, one right after the other.
    pub fn all(from: Instant, numbers: &[KeyNumber]) -> impl FnMut(Instant) -> Option<PlannedGet> {
        let mut numbers = numbers.iter();
        move |_| numbers.next().map(|&key| PlannedGet { key, from, read_stores_max: None })
    }
}
