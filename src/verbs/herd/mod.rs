//! HERD's way to ask a server (Kalia, Kaminsky, Andersen, "Using RDMA efficiently for key-value services",
//! SIGCOMM'14): the two-sided rival that one-sided GETs are measured against.
//!
//! A client WRITEs a request into its slot in the server's memory; a worker of the server, which polls that
//! memory and never sleeps, does what is asked and SENDs the reply as a datagram. One round trip, no READ,
//! and the server's CPU on every GET.
//!
//! ```text
//! client                                          server
//! lane 0..W ── WRITE (UC, or RC) ──► its area, slot [worker][lane] ◄── polled by that worker
//!          ◄── datagram (UD) ───────────────────── reply
//! ```
//!
//! The worker is chosen by the key's hash. [`WINDOW`] requests may be unanswered, one for each lane.
//!
//! # A slot
//!
//! ```text
//! 0..8     sequence number, never 0, rising from request to request of a client
//! 8..12    attempt
//! 12..16   length of the frame
//! 16..20   CRC-32 of head (with 0 here) and frame
//! 20..24   0
//! 24..     the request's frame (wire.rs), numbered with the sequence number
//! ```
//!
//! # Rules
//!
//! * **H1.** HERD polls a request's last byte, because its NICs wrote in address order. Nothing promises that
//!   order: a slot is copied into private memory, and taken only if sequence number, length and CRC of the
//!   copy fit each other. Else it is looked at again.
//! * **H2.** A datagram may be lost, and over UC a WRITE, too. A client that waits in vain WRITEs the same
//!   request, with the same sequence number and the next attempt.
//! * **H3.** For each slot the worker remembers the last sequence number and its reply. The same number in
//!   another attempt gets the same reply: a PUT is done once. A lower number is old and gets none.
//! * **H4.** A lane's next request is WRITTEN only when the lane's last one has been answered or given up: no
//!   slot holds more than one request that anybody waits for. Requests for the same key wait for each other,
//!   since lanes are not served in order.
//! * **H5.** A reply counts only if it comes from one of the workers' queue pairs and names a request that
//!   waits.
//!
//! # Otherwise than in the paper
//!
//! * Each client has a registered area of its own, not a part of one for all: nobody can WRITE into another's
//!   requests, and what a client left behind cannot be written any more.
//! * Frames are those of every other path (16 bytes of head), not packed into HERD's few bytes.
//! * Where a device has no UC (iWARP, EFA), RC carries the WRITEs: the server says what it takes, and a client
//!   whose own device cannot do that falls back to RC. More packets (acknowledgements), same rules.

pub(super) mod client;
pub(super) mod server;

use super::bootstrap::Descriptor;
use super::device::{Endpoint, Transport};
use crate::layout::geometry::Geometry;
use crate::wire::{self, Request};
use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Version of slots and datagrams.
pub(super) const VERSION: u32 = 1;
/// W: requests of one client that may be unanswered. HERD's 4 (section 4.2).
pub(super) const WINDOW: usize = 4;
/// What comes before a datagram's bytes in the receiver's memory.
pub(super) const GRH: usize = 40;

/// Which queue pairs carry the WRITEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Carrier {
    Uc,
    Rc,
}

impl Carrier {
    pub fn transport(self) -> Transport {
        match self {
            Carrier::Uc => Transport::Uc,
            Carrier::Rc => Transport::Rc,
        }
    }
}

/// In the challenge: this server takes requests this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub version: u32,
    /// The best that the server's device can do; RC is always possible.
    pub carrier: Carrier,
}

/// In the client's answer: it will ask this way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Join {
    pub carrier: Carrier,
    /// What WRITEs requests.
    pub requests: Endpoint,
    /// Where datagrams are to go.
    pub replies: Endpoint,
}

/// In the welcome: where requests go, and where replies come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seated {
    /// What receives the WRITEs.
    pub requests: Endpoint,
    /// The client's area: [`WINDOW`] slots for each worker.
    pub area: Descriptor,
    pub slot_bytes: u32,
    /// Numbers of the queue pairs that send replies, one for each worker.
    pub workers: Vec<u32>,
}

/// Bytes of a slot for a table of this geometry.
fn slot_bytes(geometry: &Geometry) -> usize {
    (HEAD + wire::request_bytes_max(geometry)).next_multiple_of(crate::layout::LINE)
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    sequence: u64,
    attempt: u32,
    length: u32,
    crc: u32,
    reserved: u32,
}

const HEAD: usize = size_of::<Head>();
const HEAD_WORDS: usize = HEAD / size_of::<u64>();

/// Which attempt at which request a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    sequence: u64,
    attempt: u32,
}

fn crc(head: Head, frame: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(bytemuck::bytes_of(&Head { crc: 0, ..head }));
    crc.update(frame);
    crc.finalize()
}

/// Lays a request out as it goes into a slot. [`seal`] completes it.
fn lay_out(slot: &mut Vec<u8>, sequence: u64, request: &Request<'_>) {
    slot.clear();
    slot.resize(HEAD, 0);
    request.encode(sequence, slot);
}

/// Writes the head of a slot that holds a frame.
fn seal(slot: &mut [u8], mark: Mark) {
    let (head, frame) = slot.split_at_mut(HEAD);
    let Mark { sequence, attempt } = mark;
    let open = Head { sequence, attempt, length: frame.len() as u32, crc: 0, reserved: 0 };
    head.copy_from_slice(bytemuck::bytes_of(&Head { crc: crc(open, frame), ..open }));
}

/// What a slot seems to hold: worth a closer look if it is not what was there last. A hint; [`open`] decides.
#[inline]
fn glance(slot: &[AtomicU64]) -> Mark {
    let attempt = slot[1].load(Ordering::Relaxed) as u32;
    Mark { sequence: slot[0].load(Ordering::Relaxed), attempt }
}

/// The frame in a slot that a NIC may be writing, if all of it is there (H1). Copies it into `copy` first.
fn open<'a>(slot: &[AtomicU64], copy: &'a mut Vec<u64>) -> Option<(Mark, &'a [u8])> {
    copy.clear();
    copy.extend(slot[..HEAD_WORDS].iter().map(|word| word.load(Ordering::Relaxed)));
    let length = bytemuck::pod_read_unaligned::<Head>(bytemuck::cast_slice(copy)).length as usize;
    let end = HEAD.checked_add(length).filter(|end| *end <= size_of_val(slot))?;
    let body = &slot[HEAD_WORDS..end.div_ceil(size_of::<u64>())];
    copy.extend(body.iter().map(|word| word.load(Ordering::Relaxed)));
    // What is done for the request comes after it was seen.
    fence(Ordering::Acquire);
    let bytes: &[u8] = bytemuck::cast_slice(copy);
    let head: Head = bytemuck::pod_read_unaligned(&bytes[..HEAD]);
    let frame = &bytes[HEAD..end];
    let sound = head.sequence != 0 && head.reserved == 0 && head.crc == crc(head, frame);
    sound.then_some((Mark { sequence: head.sequence, attempt: head.attempt }, frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(mark: Mark, key: &[u8]) -> Vec<u8> {
        let mut slot = Vec::new();
        lay_out(&mut slot, mark.sequence, &Request::Get { key });
        seal(&mut slot, mark);
        slot
    }

    /// Memory as a worker sees it, with these bytes at its beginning.
    fn memory(bytes: &[u8]) -> Vec<AtomicU64> {
        let mut padded = bytes.to_vec();
        padded.resize(256, 0);
        let words = padded.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.map(AtomicU64::new).collect()
    }

    #[test]
    fn what_was_sealed_opens() {
        let mark = Mark { sequence: 7, attempt: 2 };
        let slot = memory(&sealed(mark, b"a key"));
        let mut copy = Vec::new();
        let (opened, frame) = open(&slot, &mut copy).unwrap();
        assert_eq!((opened, glance(&slot)), (mark, mark));
        let frame = wire::decode(frame).unwrap().unwrap();
        assert_eq!((frame.id, Request::decode(&frame).unwrap()), (7, Request::Get { key: b"a key" }));
        assert!(open(&memory(&[]), &mut copy).is_none(), "nothing was ever written");
    }

    proptest! {
        /// One request is written over another, its bytes in any order: none of the states in between opens as
        /// anything but one of the two.
        #[test]
        fn half_landed(order in Just((0..72usize).collect::<Vec<_>>()).prop_shuffle(), attempt in 0u32..2) {
            let old = sealed(Mark { sequence: 5, attempt: 0 }, b"one of the keys, long");
            let new = sealed(Mark { sequence: 5 + u64::from(attempt == 0), attempt }, b"another key");
            let mut bytes = old.clone();
            bytes.resize(72, 0);
            let mut target = bytes.clone();
            target[..new.len()].copy_from_slice(&new);
            let mut copy = Vec::new();
            for at in order {
                bytes[at] = target[at];
                if let Some((mark, frame)) = open(&memory(&bytes), &mut copy) {
                    let whole = if mark.sequence == 5 && mark.attempt == 0 { &old } else { &new };
                    prop_assert_eq!(frame, &whole[HEAD..]);
                }
            }
            prop_assert_eq!(open(&memory(&bytes), &mut copy).unwrap().1, &new[HEAD..]);
        }

        /// Any bit that flips is noticed.
        #[test]
        fn flipped(bit in 0usize..8 * 45) {
            let mut bytes = sealed(Mark { sequence: 1, attempt: 0 }, b"keyed");
            assert_eq!(bytes.len(), 45);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&memory(&bytes), &mut Vec::new()).is_none());
        }
    }
}
