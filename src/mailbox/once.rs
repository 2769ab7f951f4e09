//! Handles each request in a cell once.

use super::CellMark;
use crate::wire;

/// What becomes of a request that was taken.
#[derive(Debug)]
pub(crate) enum TakenRequest {
    /// It has this reply.
    Answered(wire::Reply),
    /// Its reply comes later.
    Later,
    /// It has none.
    Unanswered,
}

/// The last attempt taken from a cell, and the reply to it (Q3).
#[derive(Debug, Default)]
pub(crate) struct Once {
    taken: CellMark,
    reply: Vec<u8>,
}

impl Once {
    /// The last attempt taken.
    pub fn taken(&self) -> CellMark {
        self.taken
    }

    /// The reply to the last request: a frame, or nothing if the cell held no valid request.
    pub fn reply(&self) -> &[u8] {
        &self.reply
    }

    /// Bytes that it keeps for replies.
    pub fn reply_bytes(&self) -> usize {
        self.reply.capacity()
    }

    /// Handles a request, unless it was handled before (Q3). Returns whether there is a reply to
    /// send.
    #[cfg(any(feature = "herd", test))]
    pub fn take(
        &mut self,
        mark: CellMark,
        frame: &[u8],
        answer: impl FnOnce(wire::Request<'_>) -> Option<wire::Reply>,
    ) -> bool {
        let answer = |_: &wire::Frame<'_>, request: wire::Request<'_>| {
            Ok(answer(request).map_or(TakenRequest::Unanswered, TakenRequest::Answered))
        };
        let taken: Result<_, std::convert::Infallible> = self.try_take(mark, frame, answer);
        match taken {
            Ok(taken) => taken == HasReply::Now,
            Err(never) => match never {},
        }
    }

    /// Handles a request, likewise, unless it has to wait: then it is not taken, and is handled again.
    ///
    /// # Errors
    /// The request has to wait.
    pub fn try_take<W>(
        &mut self,
        mark: CellMark,
        frame: &[u8],
        answer: impl FnOnce(&wire::Frame<'_>, wire::Request<'_>) -> Result<TakenRequest, W>,
    ) -> Result<HasReply, W> {
        if mark.sequence < self.taken.sequence {
            return Ok(HasReply::Never);
        }
        if mark.sequence > self.taken.sequence {
            let frame = wire::decode(frame).ok().flatten().filter(|frame| frame.id == mark.sequence);
            let request = frame.and_then(|frame| Some((frame, wire::Request::decode(&frame).ok()?)));
            let taken = match request {
                Some((frame, request)) => answer(&frame, request)?,
                None => TakenRequest::Unanswered,
            };
            self.reply.clear();
            match taken {
                TakenRequest::Answered(reply) => reply.encode(mark.sequence, &mut self.reply),
                TakenRequest::Later => {
                    self.taken = mark;
                    return Ok(HasReply::Later);
                }
                // No oneread client sends this. Its sender gets no reply.
                TakenRequest::Unanswered => tracing::debug!("a sealed cell that is no request"),
            }
        }
        self.taken = mark;
        Ok(if self.reply.is_empty() { HasReply::Never } else { HasReply::Now })
    }

    /// The frame of a reply that comes later.
    pub fn later(&mut self, sequence: u64, reply: &wire::Reply) -> &[u8] {
        self.reply.clear();
        reply.encode(sequence, &mut self.reply);
        &self.reply
    }
}

/// Whether there is a reply to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HasReply {
    Now,
    Later,
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{PutMode, PutOutcome};
    use crate::wire::{Reply, Request};

    /// Q3: a repeated request gets the same reply and is not handled again. An old one gets no
    /// reply.
    #[test]
    fn requests_are_handled_once() {
        let mut lane = Once::default();
        let mut done = 0;
        let mut take = |sequence, attempt| {
            let mut frame = Vec::new();
            Request::Put { options: PutMode::Insert.into(), key: b"k", value: b"v" }
                .encode(sequence, &mut frame);
            let is_answered = lane.take(CellMark { sequence, attempt }, &frame, |_| {
                done += 1;
                Some(Reply::Put(Ok(if done == 1 { PutOutcome::Inserted } else { PutOutcome::Exists })))
            });
            let reply = is_answered.then(|| wire::replies(&lane.reply, sequence).unwrap().remove(0));
            (reply, done)
        };
        let (inserted, exists) =
            (Some(Reply::Put(Ok(PutOutcome::Inserted))), Some(Reply::Put(Ok(PutOutcome::Exists))));
        assert_eq!(take(3, 0), (inserted.clone(), 1));
        assert_eq!(take(3, 1), (inserted, 1), "the first reply was lost");
        assert_eq!(take(2, 5), (None, 1), "nobody waits for it any more");
        assert_eq!(take(4, 0), (exists, 2));
    }

    /// A sealed cell without a valid request gets no reply.
    #[test]
    fn invalid_requests_get_no_reply() {
        let mut lane = Once::default();
        let refuse = |_: Request<'_>| -> Option<Reply> { panic!("there is nothing to answer") };
        assert!(!lane.take(CellMark { sequence: 1, attempt: 0 }, b"nonsense", refuse));
        let mut frame = Vec::new();
        Request::Get { key: b"k" }.encode(9, &mut frame);
        assert!(!lane.take(CellMark { sequence: 2, attempt: 0 }, &frame, refuse));
        assert_eq!(lane.taken(), CellMark { sequence: 2, attempt: 0 });
        // After a valid request, an invalid one does not get that request's reply, however often it
        // is repeated.
        assert!(lane.take(CellMark { sequence: 9, attempt: 4 }, &frame, |_| Some(Reply::Value(None))));
        assert_eq!(lane.taken(), CellMark { sequence: 9, attempt: 4 });
        assert_eq!(wire::replies(lane.reply(), 9), Ok(vec![Reply::Value(None)]));
        for attempt in 0..2 {
            let mark = CellMark { sequence: 10, attempt };
            assert!(!lane.take(mark, b"nonsense", refuse));
            assert_eq!((lane.taken(), lane.reply()), (mark, &b""[..]));
        }
        // A request without a reply is done once, too.
        let mut frame = Vec::new();
        Request::Get { key: b"k" }.encode(11, &mut frame);
        assert!(!lane.take(CellMark { sequence: 11, attempt: 0 }, &frame, |_| None));
        assert!(!lane.take(CellMark { sequence: 11, attempt: 1 }, &frame, refuse), "done once");
        // An old request is still not handled, and does not replace the last one.
        assert!(!lane.take(CellMark { sequence: 9, attempt: 5 }, &frame, refuse));
        assert_eq!(lane.taken(), CellMark { sequence: 11, attempt: 1 });
    }
}
