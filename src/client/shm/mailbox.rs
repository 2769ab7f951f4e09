//! The client's end of a mailbox: cells in memory shared with the server
//! ([`crate::mailbox::memory`]).

use crate::client::error::LinkError;
use crate::client::handle::Deadline;
use crate::mailbox::memory::{Mailbox, WINDOW};
use crate::mailbox::{SpinTime, glance, load, store};
use crate::wire::{self, Reply, Request};
use std::time::{Duration, Instant};

/// Time that a client polls for a reply before it sleeps: the longest while replies mostly come in
/// that time, less or none otherwise. A server that is awake and not busy answers within one or two
/// microseconds.
const LOOK_MIN: Duration = Duration::from_micros(1);
const LOOK_MAX: Duration = Duration::from_micros(20);
/// As `LOOK_MAX`, if the server had to be woken: as long as that may take. Otherwise each side would find the other
/// asleep again and again: the side that was woken for one message would be asleep again before the other is awake and
/// sends the next.
const LOOK_WOKEN: Duration = Duration::from_micros(200);
/// Polls between reads of the clock.
const LOOKS: u32 = 8;

/// The socket between a client with a mailbox and its server, which only wakes either side.
pub(super) trait BellSocket {
    /// Wakes the server.
    fn ring(&mut self, deadline: Instant) -> Result<(), LinkError>;
    /// Sleeps until the server rings. Fails when the server hangs up or the deadline comes.
    fn sleep(&mut self, deadline: Instant) -> Result<(), LinkError>;
}

/// The client's end of a mailbox.
#[derive(Debug)]
pub(super) struct ClientMailbox {
    mailbox: Mailbox,
    /// Number of the last request.
    asked: u64,
    /// Number of the last reply.
    answered: u64,
    frame: Vec<u8>,
    copy: Vec<u64>,
    patience: SpinTime,
}

impl ClientMailbox {
    /// Takes over a mailbox that has not been used yet.
    pub fn new(mailbox: Mailbox) -> ClientMailbox {
        let patience = SpinTime::new(LOOK_MIN, LOOK_MAX);
        ClientMailbox { mailbox, asked: 0, answered: 0, frame: Vec::new(), copy: Vec::new(), patience }
    }

    /// Stores requests that the server's table takes, and waits for their replies. The replies are
    /// in the order of the requests. After an error the mailbox is of no further use.
    pub fn converse(
        &mut self,
        socket: &mut impl BellSocket,
        mut requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
    ) -> Result<(), LinkError> {
        while !requests.is_empty() || self.answered < self.asked {
            let room = (WINDOW - (self.asked - self.answered)) as usize;
            let (now, later) = requests.split_at(room.min(requests.len()));
            requests = later;
            for request in now {
                self.ask(request, deadline.patience)?;
            }
            let is_woken = !now.is_empty() && self.mailbox.server().heard() != 0;
            if is_woken {
                socket.ring(deadline.at)?;
            }
            self.wait(socket, requests.is_empty(), is_woken, deadline.at)?;
            // Replies are stored in order. A later reply without this one is a protocol error.
            replies.push(self.take()?);
            while self.has(self.answered + 1) {
                replies.push(self.take()?);
            }
            deadline.renew();
        }
        Ok(())
    }

    fn ask(&mut self, request: &Request<'_>, patience: Duration) -> Result<(), LinkError> {
        self.asked += 1;
        self.frame.clear();
        request.encode_patient(self.asked, patience, &mut self.frame);
        // It fits: its lengths were checked, and cells have room for the longest request.
        store(self.mailbox.request(self.asked), self.asked, &self.frame)
            .then_some(())
            .ok_or(LinkError::Unexpected)
    }

    /// Whether the reply with this number is there. Only for the next [`WINDOW`] replies.
    #[inline]
    fn has(&self, sequence: u64) -> bool {
        sequence <= self.asked && glance(self.mailbox.reply(sequence)).sequence == sequence
    }

    /// Waits until the next reply is there, or a later one. `is_all`: no further requests will be
    /// stored. `is_woken`: the server was asleep.
    fn wait(
        &mut self,
        socket: &mut impl BellSocket,
        is_all: bool,
        is_woken: bool,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let next = self.answered + 1;
        // Waits for all replies of a batch, or for enough of them to free half of the cells.
        // Polling each reply as it is stored slows the server down, and being woken for each costs
        // more than it saves.
        let until = if is_all { self.asked } else { self.asked.min(self.answered + WINDOW / 2) };
        let (begun, looks) = (Instant::now(), self.patience.time());
        let looks = if is_woken && !looks.is_zero() { LOOK_WOKEN } else { looks };
        while begun.elapsed() < looks {
            for _ in 0..LOOKS {
                std::hint::spin_loop();
                if self.has(until) {
                    self.patience.rewarded();
                    return Ok(());
                }
            }
        }
        if self.has(next) {
            self.patience.rewarded();
            return Ok(());
        }
        self.patience.exhausted();
        let slept = loop {
            self.mailbox.client().announce(until);
            if self.has(until) {
                break Ok(());
            }
            match socket.sleep(deadline) {
                Ok(()) => {}
                // Replies count if the server stored them before it ended, or if they came in time.
                Err(LinkError::HungUp | LinkError::Deadline(_)) if self.has(next) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.mailbox.client().withdraw();
        slept
    }

    /// Takes the next reply, which must be there.
    fn take(&mut self) -> Result<Reply, LinkError> {
        self.answered += 1;
        let frame = load(self.mailbox.reply(self.answered), self.answered, &mut self.copy);
        let frame = wire::decode(frame.ok_or(LinkError::Unexpected)?)?;
        let frame = frame.filter(|frame| frame.id == self.answered).ok_or(LinkError::Unexpected)?;
        Ok(Reply::decode(&frame)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::outcome::PutOutcome;

    /// A server at the other end of the mailbox. It acts when the client rings or sleeps.
    struct AnsweringServer<'a> {
        mailbox: &'a Mailbox,
        /// Replies to store, with their numbers, when the client sleeps.
        replies: Vec<(u64, Vec<u8>)>,
        /// Whether it hangs up then.
        hangs_up: bool,
    }

    impl BellSocket for AnsweringServer<'_> {
        fn ring(&mut self, _: Instant) -> Result<(), LinkError> {
            Ok(())
        }

        fn sleep(&mut self, _: Instant) -> Result<(), LinkError> {
            if self.replies.is_empty() {
                return Err(LinkError::HungUp);
            }
            for (sequence, frame) in self.replies.drain(..) {
                assert!(store(self.mailbox.reply(sequence), sequence, &frame));
            }
            if self.hangs_up { Err(LinkError::HungUp) } else { Ok(()) }
        }
    }

    /// A slow server: each time the client sleeps, it stores some replies.
    struct SlowServer<'a> {
        mailbox: &'a Mailbox,
        /// Number of replies for each sleep. When none are left, the client's deadline has come.
        steps: Vec<u64>,
        answered: u64,
        /// For each sleep: the number of the last request stored, and the reply that the client
        /// announces to wait for.
        slept: Vec<(u64, u64)>,
        /// For each ring: the number of the last request stored.
        rung: Vec<u64>,
        deadline: Instant,
    }

    impl SlowServer<'_> {
        /// The number of the last request stored.
        fn asked(&self) -> u64 {
            (0..WINDOW).map(|cell| glance(self.mailbox.request(cell)).sequence).max().unwrap()
        }
    }

    impl BellSocket for SlowServer<'_> {
        fn ring(&mut self, deadline: Instant) -> Result<(), LinkError> {
            assert_eq!((deadline, self.mailbox.client().heard()), (self.deadline, 0));
            self.rung.push(self.asked());
            Ok(())
        }

        fn sleep(&mut self, deadline: Instant) -> Result<(), LinkError> {
            assert_eq!(deadline, self.deadline);
            let asked = self.asked();
            self.slept.push((asked, self.mailbox.client().heard()));
            if self.steps.is_empty() {
                return Err(LinkError::Deadline(Duration::ZERO));
            }
            for _ in 0..self.steps.remove(0) {
                self.answered += 1;
                assert!(self.answered <= asked, "nobody asked for it");
                // Request n is still in its cell, with its number.
                let mut copy = Vec::new();
                let frame = load(self.mailbox.request(self.answered), self.answered, &mut copy).unwrap();
                let frame = wire::decode(frame).unwrap().unwrap();
                assert_eq!(frame.id, self.answered);
                let Request::Get { key } = Request::decode(&frame).unwrap() else { panic!("a get") };
                let mut out = Vec::new();
                Reply::Value(Some(key.to_vec())).encode(frame.id, &mut out);
                assert!(store(self.mailbox.reply(self.answered), self.answered, &out));
            }
            Ok(())
        }
    }

    /// Until this instant, however many answers come.
    fn until(at: Instant) -> Deadline {
        Deadline::until(at, Duration::ZERO)
    }

    /// In a batch longer than the window, a request overwrites only a request whose reply was seen.
    /// The client announces the reply that it waits for, the last one or one that frees half of the
    /// cells, and withdraws the announcement when it is awake. It rings once for all requests
    /// stored, and only if the server sleeps.
    #[test]
    fn batches_may_be_longer_than_the_window() {
        let geometry = Config { size: TableSize::Keys(10), ..Config::short() }.geometry().unwrap();
        for sleeps in [true, false] {
            let (mailbox, fd) = Mailbox::make(&geometry).unwrap();
            if sleeps {
                mailbox.server().announce(1);
            }
            let mut cells = ClientMailbox::new(Mailbox::map(fd, &geometry).unwrap());
            let deadline = Instant::now() + Duration::from_secs(60);
            let keys: Vec<_> = (0..150u32).map(u32::to_le_bytes).collect();
            let requests: Vec<_> = keys.iter().map(|key| Request::Get { key }).collect();
            let steps = vec![10, 22, 40, 24, 40, 10, 4, 1];
            let mut server =
                SlowServer { mailbox: &mailbox, steps, answered: 0, slept: vec![], rung: vec![], deadline };
            let mut ask = |server: &mut SlowServer<'_>, requests: &[_]| {
                let mut replies = Vec::new();
                cells.converse(server, requests, &mut until(deadline), &mut replies).map(|()| replies)
            };
            let replies = ask(&mut server, &requests).unwrap();
            let values: Vec<_> = keys.iter().map(|key| Reply::Value(Some(key.to_vec()))).collect();
            assert_eq!(replies, values);
            assert_eq!(mailbox.client().heard(), 0);
            // The next conversation continues the numbers.
            let replies = ask(&mut server, &requests[..1]).unwrap();
            assert_eq!(replies, values[..1]);
            // Woken too early, it sleeps again. 32, 72, 136, 150 and 151 replies are there when it
            // continues.
            let early = [(64, 32), (64, 32), (96, 64), (136, 104), (136, 104)];
            assert_eq!(server.slept, [&early[..], &[(150, 150), (150, 150), (151, 151)]].concat());
            assert_eq!(server.rung, if sleeps { vec![64, 96, 136, 150, 151] } else { vec![] });
            // No answer comes: the announcement is withdrawn.
            let error = ask(&mut server, &requests[..1]).unwrap_err();
            assert!(matches!(error, LinkError::Deadline(_)), "{error}");
            assert_eq!(mailbox.client().heard(), 0);
        }
    }

    /// Each answer renews the deadline.
    #[test]
    fn answers_renew_the_deadline() {
        let geometry = Config { size: TableSize::Keys(10), ..Config::short() }.geometry().unwrap();
        let (mailbox, fd) = Mailbox::make(&geometry).unwrap();
        let mut cells = ClientMailbox::new(Mailbox::map(fd, &geometry).unwrap());
        /// Stores a reply each time the client sleeps.
        struct PromptServer<'a>(&'a Mailbox, Vec<Instant>);
        impl BellSocket for PromptServer<'_> {
            fn ring(&mut self, _: Instant) -> Result<(), LinkError> {
                Ok(())
            }
            fn sleep(&mut self, deadline: Instant) -> Result<(), LinkError> {
                self.1.push(deadline);
                let next = self.1.len() as u64;
                assert!(store(self.0.reply(next), next, &reply(next)));
                Err(LinkError::Deadline(Duration::ZERO))
            }
        }
        let (begun, mut server) = (Instant::now(), PromptServer(&mailbox, Vec::new()));
        let mut deadline = Deadline::until(begun, Duration::from_secs(60));
        let requests = [Request::Get { key: b"key" }; 3];
        let mut replies = Vec::new();
        cells.converse(&mut server, &requests, &mut deadline, &mut replies).unwrap();
        assert_eq!((replies.len(), server.1.len(), server.1[0]), (3, 3, begun));
        assert!(server.1[1] > begun && server.1[1..].is_sorted(), "{:?}", server.1);
    }

    fn reply(id: u64) -> Vec<u8> {
        let mut frame = Vec::new();
        Reply::Put(Ok(PutOutcome::Inserted)).encode(id, &mut frame);
        frame
    }

    fn converse(replies: Vec<(u64, Vec<u8>)>) -> Result<Vec<Reply>, LinkError> {
        converse_with(replies, false)
    }

    fn converse_with(replies: Vec<(u64, Vec<u8>)>, hangs_up: bool) -> Result<Vec<Reply>, LinkError> {
        let geometry = Config { size: TableSize::Keys(10), ..Config::short() }.geometry().unwrap();
        let (mailbox, fd) = Mailbox::make(&geometry).unwrap();
        let mut cells = ClientMailbox::new(Mailbox::map(fd, &geometry).unwrap());
        let requests = [Request::Get { key: b"one" }, Request::Get { key: b"two" }];
        let mut deadline = until(Instant::now() + Duration::from_secs(5));
        let mut server = AnsweringServer { mailbox: &mailbox, replies, hangs_up };
        let mut replies = Vec::new();
        cells.converse(&mut server, &requests, &mut deadline, &mut replies).map(|()| replies)
    }

    /// Complete replies are taken. Missing or malformed ones are errors.
    #[test]
    fn malformed_replies_are_errors() {
        assert_eq!(converse(vec![(1, reply(1)), (2, reply(2))]).unwrap().len(), 2);
        assert!(matches!(converse(vec![]), Err(LinkError::HungUp)));
        assert!(matches!(converse(vec![(1, reply(1))]), Err(LinkError::HungUp)), "half of them");
        // Replies stored before the server went count.
        assert_eq!(converse_with(vec![(1, reply(1)), (2, reply(2))], true).unwrap().len(), 2);
        assert!(matches!(converse_with(vec![(1, reply(1))], true), Err(LinkError::HungUp)), "half of them");
        for wrong in [
            vec![(2, reply(2))],
            vec![(1, reply(2)), (2, reply(2))],
            vec![(1, b"nonsense".to_vec()), (2, reply(2))],
            vec![(1, Vec::new()), (2, reply(2))],
        ] {
            let error = converse(wrong.clone()).unwrap_err();
            assert!(matches!(error, LinkError::Unexpected | LinkError::Wire(_)), "{wrong:?}: {error}");
        }
    }
}
