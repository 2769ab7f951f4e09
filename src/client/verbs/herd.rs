//! Requests of a connection HERD's way ([`crate::herd`]).

use super::Deadline;
use super::connection::Connection;
use crate::verbs::VerbsError;
use crate::wire::{Reply, Request};
use std::time::Instant;

impl Connection {
    /// Asks HERD's workers, [`WINDOW`](crate::herd::WINDOW) requests at a time. Appends the replies in the order of
    /// the requests; after an error, those of the first requests that were answered.
    pub fn call(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), VerbsError> {
        let mut answers = vec![None; requests.len()];
        let called = self.call_all(requests, deadline, &mut answers);
        replies.extend(answers.into_iter().map_while(|reply| reply));
        if let (Err(_), Some(herd)) = (&called, &mut self.herd) {
            herd.give_up();
        }
        called
    }

    fn call_all(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut [Option<Reply>],
    ) -> Result<(), VerbsError> {
        let geometry = self.geometry().clone();
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
            let until = repeat_at.min(deadline.at);
            let waited = self.wait_until(until.saturating_duration_since(now), |this| {
                let Some(herd) = &this.herd else { return true };
                herd.has_arrived() || begun < requests.len() && herd.lane_for(requests, begun).is_some()
            });
            match waited {
                Ok(()) => {}
                Err(VerbsError::Late { .. }) if Instant::now() < deadline.at => {}
                Err(error) => return Err(error),
            }
            let Some(herd) = &mut self.herd else { return Err(VerbsError::Closed) };
            while let Some((request, reply)) = herd.next_reply()? {
                replies[request] = Some(reply);
                answered += 1;
                deadline.renew();
            }
        }
        Ok(())
    }
}
