//! Requests of a connection HERD's way ([`crate::herd`]).

use super::connection::Connection;
use crate::verbs::VerbsError;
use crate::wire::{Reply, Request};
use std::time::Instant;

impl Connection {
    /// Asks HERD's workers, [`WINDOW`](crate::herd::WINDOW) requests at a time. Returns the replies in the order of the
    /// requests.
    pub fn call(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, VerbsError> {
        let called = self.call_all(requests, deadline);
        if let (Err(_), Some(herd)) = (&called, &mut self.herd) {
            herd.give_up();
        }
        called
    }

    fn call_all(&mut self, requests: &[Request<'_>], deadline: Instant) -> Result<Vec<Reply>, VerbsError> {
        let geometry = self.geometry().clone();
        let mut replies = vec![None; requests.len()];
        let (mut begun, mut answered) = (0, 0);
        while answered < requests.len() {
            let Some(herd) = &mut self.herd else { return Err(VerbsError::Closed) };
            while let Some(request) = requests.get(begun)
                && let Some(lane) = herd.lane_for(requests, begun)
            {
                herd.begin(lane, begun, request, &geometry)?;
                begun += 1;
            }
            let now = Instant::now();
            let repeat_at = herd.repeat_due(now)?;
            let until = repeat_at.min(deadline);
            let waited = self.wait_until(until.saturating_duration_since(now), |this| {
                let Some(herd) = &this.herd else { return true };
                herd.has_arrived() || begun < requests.len() && herd.lane_for(requests, begun).is_some()
            });
            match waited {
                Ok(()) => {}
                Err(VerbsError::Late { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
            let Some(herd) = &mut self.herd else { return Err(VerbsError::Closed) };
            while let Some((request, reply)) = herd.next_reply()? {
                replies[request] = Some(reply);
                answered += 1;
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }
}
