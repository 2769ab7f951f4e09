//! When a request may be repeated (CL15).

use crate::core::message::{NotDone, Outcome, Reply};
use crate::faults::{Rule, broken};

/// A request under way, for its client: all its copies.
#[derive(Debug)]
pub struct Sending {
    has_id: bool,
    /// Copies that may have been done.
    open: Vec<u64>,
    last: Option<NotDone>,
}

impl Sending {
    /// A request that was not sent yet. `has_id`: its outcome is stored.
    pub fn new(has_id: bool) -> Sending {
        Sending { has_id, open: Vec::new(), last: None }
    }

    /// Notes that a copy is about to be sent.
    pub fn sends(&mut self, copy: u64) {
        self.open.push(copy);
    }

    /// Whether one more copy may be sent.
    pub fn may_send(&self) -> bool {
        self.has_id || self.open.is_empty() || broken(Rule::RepeatedWithoutId)
    }

    /// Takes a reply to one of its copies. `Some`: the request has ended with this outcome.
    pub fn replied(&mut self, reply: Reply) -> Option<Outcome> {
        if !self.open.contains(&reply.copy) {
            return None;
        }
        match reply.ended {
            Ok(outcome) => Some(outcome),
            Err(why) => {
                self.last = Some(why);
                self.open.retain(|copy| *copy != reply.copy && !broken(Rule::OneCopyForAll));
                None
            }
        }
    }

    /// Whether a reply to this copy is waited for.
    pub fn waits_for(&self, copy: u64) -> bool {
        self.open.contains(&copy)
    }

    /// Whether it was certainly not done.
    pub fn is_not_done(&self) -> bool {
        self.open.is_empty()
    }

    /// Why the last copy was not done, among those that were certainly not.
    pub fn why(&self) -> Option<NotDone> {
        self.last
    }
}
