//! Memory that one client and its server both write (fabric `shm`): request cells, reply cells, two bells.
//!
//! ```text
//! 0..8       the server's bell: 0 while it looks at the cells, 1 while it sleeps
//! 64..72     the client's bell: 0 while it looks, else it sleeps until the reply with this number is there
//! 128..      WINDOW request cells, then WINDOW reply cells; number n of either kind is in cell n % WINDOW
//! ```
//!
//! The server makes a mailbox for each client that asks for one, and hands it over on the client's socket. One of its
//! event loops, that of the socket, answers what is in it; so requests are done in the order of their numbers, as
//! they would be over the socket.
//!
//! Beside Q1 and Q3 hold:
//!
//! * **A1.** Requests are numbered from 1 on without gaps, and so are replies. Request n + WINDOW is stored only after
//!   reply n was seen: no cell is stored over that anybody still has to read. Nothing is lost on the way, so nothing
//!   is ever repeated.
//! * **A2.** Either side reads the other's words one by one into memory of its own, and judges that copy. A cell with
//!   the number that is due but no sense ends the conversation; any other number is nothing.
//! * **A3.** Who finds nothing for some time announces that it sleeps, looks a last time, and only then sleeps, in
//!   its wait for the socket. Who stored something looks for an announcement afterwards, and if there is one rings:
//!   a few bytes over the socket. See [`Bell`].

use super::cell_bytes;
use crate::faults::{Rule, broken};
use crate::layout::geometry::Geometry;
use crate::layout::{LINE, WORD};
use crate::region::{Region, RegionError};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::wire;
use std::io;
use std::os::fd::OwnedFd;

/// Version of the mailbox.
pub(crate) const VERSION: u32 = 1;
/// Requests of one client that may be unanswered.
pub(crate) const WINDOW: u64 = 64;

const SERVER_BELL: usize = 0;
const CLIENT_BELL: usize = LINE / WORD;
const CELLS: usize = 2 * LINE / WORD;

/// A mailbox, mapped.
#[derive(Debug)]
pub(crate) struct Mailbox {
    memory: Region,
    request_words: usize,
    reply_words: usize,
}

impl Mailbox {
    /// A new one for a table of this geometry, and what its client is handed.
    pub fn make(geometry: &Geometry) -> Result<(Mailbox, OwnedFd), RegionError> {
        let (memory, fd) = Region::exchange(bytes(geometry))?;
        Ok((Mailbox::of(memory, geometry), fd))
    }

    /// One that a server has handed over, for a table of this geometry.
    pub fn map(fd: OwnedFd, geometry: &Geometry) -> Result<Mailbox, RegionError> {
        let memory = Region::map_exchange(fd)?;
        let (have, need) = (memory.bytes(), bytes(geometry));
        if have != need {
            let source = io::Error::other(format!("it has {have} bytes instead of {need}"));
            let what = "the mailbox the server handed over".into();
            return Err(RegionError::Os { doing: "checking", what, source });
        }
        Ok(Mailbox::of(memory, geometry))
    }

    fn of(memory: Region, geometry: &Geometry) -> Mailbox {
        let (request, reply) = cells_of(geometry);
        Mailbox { memory, request_words: request / WORD, reply_words: reply / WORD }
    }

    /// Takes the memory away from both sides, as far as the system can: what is there reads as zero from now on.
    pub fn discard(&self) {
        self.memory.discard();
    }

    /// The cell of a request.
    #[inline]
    pub fn request(&self, sequence: u64) -> &[AtomicU64] {
        self.memory.words(CELLS + (sequence % WINDOW) as usize * self.request_words, self.request_words)
    }

    /// The request with this number will be looked at next. No effect but on time.
    #[inline]
    pub fn prefetch_request(&self, sequence: u64) {
        let first = CELLS + (sequence % WINDOW) as usize * self.request_words;
        self.memory.prefetch_bytes((first * WORD) as u64, (self.request_words * WORD) as u64);
    }

    /// The cell of a reply.
    #[inline]
    pub fn reply(&self, sequence: u64) -> &[AtomicU64] {
        let replies = CELLS + WINDOW as usize * self.request_words;
        self.memory.words(replies + (sequence % WINDOW) as usize * self.reply_words, self.reply_words)
    }

    /// The bell at the server's side.
    pub fn server(&self) -> Bell<'_> {
        Bell(&self.memory.words(SERVER_BELL, 1)[0])
    }

    /// The bell at the client's side.
    pub fn client(&self) -> Bell<'_> {
        Bell(&self.memory.words(CLIENT_BELL, 1)[0])
    }
}

/// Bytes of a request cell and of a reply cell.
fn cells_of(geometry: &Geometry) -> (usize, usize) {
    (cell_bytes(wire::request_bytes_max(geometry)), cell_bytes(wire::reply_bytes_max(geometry)))
}

fn bytes(geometry: &Geometry) -> u64 {
    let (request, reply) = cells_of(geometry);
    (CELLS * WORD) as u64 + WINDOW * (request + reply) as u64
}

/// A word by which its owner says that it sleeps, and for what.
///
/// No ring is ever missing. The owner stores the announcement, fences, and looks at the cell a last time; the
/// other side stores into the cell, fences, and looks at the announcement. Both fences are `SeqCst`, and all of
/// these have one order. If the owner's comes first, the other side's look, after its own fence, sees the
/// announcement: it rings. If the other side's comes first, the owner's last look sees the cell: it does not sleep.
/// (`loom_bell` tries all orders; without the fences, which [`Rule::BellFence`] takes away, both may look too early.)
///
/// A ring may be one too many, where both looks succeed. It costs a look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell<'a>(pub &'a AtomicU64);

impl Bell<'_> {
    /// The owner will sleep `until` something (not 0), unless it now finds what it waits for.
    pub fn announce(self, until: u64) {
        self.0.store(until, Ordering::Relaxed);
        between();
    }

    /// The owner looks at the cells again.
    pub fn withdraw(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// For the other side, after it has stored: until what does the owner sleep? 0: it does not.
    pub fn heard(self) -> u64 {
        between();
        self.0.load(Ordering::Relaxed)
    }
}

/// Between a store and the look at the other side's.
fn between() {
    if !broken(Rule::BellFence) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};

    fn geometry(key_max: usize, value_max: usize) -> Geometry {
        Config { size: TableSize::Keys(10), key_max, value_max, ..Config::default() }.geometry().unwrap()
    }

    /// Client and server may be of different builds: where bells and cells stand is part of the version.
    #[test]
    fn words_of_an_area() {
        assert_eq!((VERSION, WINDOW), (1, 64));
        // Bytes of a request cell and of a reply cell: their heads of 24 bytes each, in whole lines.
        for (key_max, value_max, request, reply) in [
            (16, 32, 128, 192),
            (1, 0, 64, 192),
            (8, 14, 64, 192),
            (8, 15, 128, 192),
            (255, 3699, 4032, 3776),
        ] {
            let geometry = geometry(key_max, value_max);
            let (area, _) = Mailbox::make(&geometry).unwrap();
            let cells = 128 + 64 * request;
            assert_eq!(area.memory.bytes(), (cells + 64 * reply) as u64, "{key_max}, {value_max}");
            area.server().announce(5);
            area.client().announce(7);
            let found = |word| area.memory.load(word);
            assert_eq!((found(0), found(8)), (5, 7));
            assert_eq!((area.server().heard(), area.client().heard()), (5, 7));
            area.server().withdraw();
            assert_eq!((found(0), found(8)), (0, 7));
            area.client().withdraw();
            assert_eq!((found(0), found(8)), (0, 0));
            for sequence in [1, 2, 63, 64, 65, 127, 128, u64::MAX] {
                let nth = (sequence % 64) as usize;
                for (cell, at, bytes) in [
                    (area.request(sequence), 128 + nth * request, request),
                    (area.reply(sequence), cells + nth * reply, reply),
                ] {
                    let there = area.memory.words(at / 8, bytes / 8).as_ptr_range();
                    assert_eq!(cell.as_ptr_range(), there, "{sequence} of {key_max}, {value_max}");
                }
            }
        }
    }

    /// Memory of another length than the table's cells need is refused, with both lengths; memory that its maker could
    /// make shorter, too.
    #[test]
    fn what_is_handed_over_is_checked() {
        let (small, large) = (geometry(16, 32), geometry(16, 300));
        for (made, expected) in [(&small, &large), (&large, &small)] {
            let (_, fd) = Mailbox::make(made).unwrap();
            let error = Mailbox::map(fd, expected).unwrap_err().to_string();
            let lengths = format!("has {} bytes instead of {}", bytes(made), bytes(expected));
            assert!(error.contains(&lengths), "{error}");
        }
        for length in [bytes(&small) - 64, bytes(&small) + 64] {
            let (_, fd) = Region::exchange(length).unwrap();
            assert!(Mailbox::map(fd, &small).is_err(), "{length}");
        }
        let (area, fd) = Mailbox::make(&small).unwrap();
        let client = Mailbox::map(fd, &small).unwrap();
        // Both have the same memory, and it goes when the server says so.
        area.reply(3)[0].store(9, Ordering::Relaxed);
        assert_eq!(client.reply(3)[0].load(Ordering::Relaxed), 9);
        area.discard();
        assert_eq!(client.reply(3)[0].load(Ordering::Relaxed), 0);
    }
}
