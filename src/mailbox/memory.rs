//! Memory that one client and its server both write (shm only): request cells, reply cells, two
//! bells.
//!
//! ```text
//! 0..8       the server's bell: 0 while it polls the cells, 1 while it sleeps
//! 64..72     the client's bell: 0 while it polls, else the number of the reply that it sleeps for
//! 128..      WINDOW request cells, then WINDOW reply cells; number n of either kind is in cell n % WINDOW
//! ```
//!
//! The server makes a mailbox for each connection that asks for one, while it has room for another,
//! and hands it over on the socket. The event loop of that socket answers the requests in it. So
//! requests are handled in the order of their numbers, as over the socket. A client that uses both
//! ways waits for all replies of one before it uses the other.
//!
//! Rules A1 (numbers without gaps, at most WINDOW unanswered), A2 (only copies are judged) and A3 (no
//! ring is missed, see [`Bell`]) hold beside Q1 and Q3.

use super::cell_bytes;
use crate::base::sync::{AtomicU64, Ordering, fence};
use crate::faults::{Rule, broken};
use crate::layout::geometry::Geometry;
use crate::layout::{LINE, WORD};
use crate::region::{Region, RegionError};
use crate::wire;
use std::io;
use std::os::fd::OwnedFd;

/// Version of the mailbox.
pub(crate) const VERSION: u32 = 4;
/// Most unanswered requests of one client.
pub(crate) const WINDOW: u64 = 64;

const SERVER_BELL: usize = 0;
const CLIENT_BELL: usize = LINE / WORD;
const CELLS: usize = 2 * LINE / WORD;

/// A mapped mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    memory: Region,
    request_words: usize,
    reply_words: usize,
}

impl Mailbox {
    /// Makes a mailbox for a table of this geometry. Returns it, and the descriptor for the client.
    pub fn make(geometry: &Geometry) -> Result<(Mailbox, OwnedFd), RegionError> {
        let (memory, fd) = Region::exchange(bytes(geometry))?;
        Ok((Mailbox::of(memory, geometry), fd))
    }

    /// Maps a mailbox that a server handed over, for a table of this geometry.
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

    /// Frees the memory for both sides, as far as the system can. It reads as zero from then on.
    pub fn discard(&self) {
        self.memory.discard();
    }

    /// The cell of the request with this number.
    #[inline]
    pub fn request(&self, sequence: u64) -> &[AtomicU64] {
        self.memory.words(CELLS + (sequence % WINDOW) as usize * self.request_words, self.request_words)
    }

    /// Prefetches the cell of the request that is read next.
    #[inline]
    pub fn prefetch_request(&self, sequence: u64) {
        let first = CELLS + (sequence % WINDOW) as usize * self.request_words;
        self.memory.prefetch_bytes((first * WORD) as u64, (self.request_words * WORD) as u64);
    }

    /// The cell of the reply with this number.
    #[inline]
    pub fn reply(&self, sequence: u64) -> &[AtomicU64] {
        let replies = CELLS + WINDOW as usize * self.request_words;
        self.memory.words(replies + (sequence % WINDOW) as usize * self.reply_words, self.reply_words)
    }

    /// The server's bell.
    pub fn server(&self) -> Bell<'_> {
        Bell(&self.memory.words(SERVER_BELL, 1)[0])
    }

    /// The client's bell.
    pub fn client(&self) -> Bell<'_> {
        Bell(&self.memory.words(CLIENT_BELL, 1)[0])
    }
}

/// Bytes of a request cell and of a reply cell.
fn cells_of(geometry: &Geometry) -> (usize, usize) {
    let (request, reply) = wire::cell_frames_max(geometry);
    (cell_bytes(request), cell_bytes(reply))
}

/// Bytes of a mailbox for a table of this geometry.
pub(crate) fn bytes(geometry: &Geometry) -> u64 {
    let (request, reply) = cells_of(geometry);
    (CELLS * WORD) as u64 + WINDOW * (request + reply) as u64
}

/// A word in which its owner announces that it sleeps, and for what.
///
/// No ring is ever lost. The owner stores the announcement, fences, and checks the cell a last
/// time. The other side stores into the cell, fences, and checks the announcement. Both fences are
/// `SeqCst`, so they have one order. If the owner's fence comes first, the other side's check sees
/// the announcement, and it rings. If the other side's fence comes first, the owner's last check
/// sees the cell, and it does not sleep. (`loom_bell` tries all orders. Without the fences, which
/// [`Rule::BellFence`] removes, both checks may come too early.)
///
/// If both checks succeed, the ring is superfluous. It costs one check of the cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell<'a>(pub &'a AtomicU64);

impl Bell<'_> {
    /// Called by the owner: it will sleep `until` something (not 0). It must check for that once
    /// more first.
    pub fn announce(self, until: u64) {
        self.0.store(until, Ordering::Relaxed);
        between();
    }

    /// Called by the owner: it polls the cells again.
    pub fn withdraw(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Called by the other side after a store. Returns what the owner sleeps for. 0: it does not
    /// sleep.
    pub fn heard(self) -> u64 {
        between();
        self.0.load(Ordering::Relaxed)
    }
}

/// The fence between a store and the check of the other side's word.
fn between() {
    if !broken(Rule::BellFence) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::outcome::with_causes;

    fn geometry(key_max: usize, value_max: usize) -> Geometry {
        let (size, key_inline) = (TableSize::Keys(10), Some(key_max));
        Config { size, key_max, key_inline, value_max, ..Config::default() }.geometry().unwrap()
    }

    /// Client and server may be of different builds, so the places of bells and cells are part of
    /// the version.
    #[test]
    fn bells_and_cells_are_where_documented() {
        assert_eq!((VERSION, WINDOW), (4, 64));
        // Bytes of a request cell and of a reply cell, with heads of 24 bytes, in whole lines.
        for (key_max, value_max, request, reply) in [
            (16, 32, 128, 192),
            (1, 0, 64, 192),
            (8, 6, 64, 192),
            (8, 7, 128, 192),
            (255, 3699, 7744, 3776),
            // Tables whose values do not all stand in their slots.
            (86, 1 << 20, 384, 192),
            (16, 64 << 20, 320, 192),
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

    /// Memory of another length than the table's cells need is refused, and the error names both
    /// lengths. So is memory that its maker could still shorten.
    #[test]
    fn what_is_handed_over_is_checked() {
        let (small, large) = (geometry(16, 32), geometry(16, 300));
        for (made, expected) in [(&small, &large), (&large, &small)] {
            let (_, fd) = Mailbox::make(made).unwrap();
            let error = with_causes(&Mailbox::map(fd, expected).unwrap_err());
            let lengths = format!("has {} bytes instead of {}", bytes(made), bytes(expected));
            assert!(error.contains(&lengths), "{error}");
        }
        for length in [bytes(&small) - 64, bytes(&small) + 64] {
            let (_, fd) = Region::exchange(length).unwrap();
            assert!(Mailbox::map(fd, &small).is_err(), "{length}");
        }
        let (area, fd) = Mailbox::make(&small).unwrap();
        let client = Mailbox::map(fd, &small).unwrap();
        // Both sides have the same memory. It is freed when the server discards it.
        area.reply(3)[0].store(9, Ordering::Relaxed);
        assert_eq!(client.reply(3)[0].load(Ordering::Relaxed), 9);
        area.discard();
        assert_eq!(client.reply(3)[0].load(Ordering::Relaxed), 0);
    }
}
