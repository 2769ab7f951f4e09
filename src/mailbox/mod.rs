//! Mailboxes on shm: memory that one client and its server share. Requests and replies pass through
//! it without system calls. After HERD (Kalia, Kaminsky, Andersen, "Using RDMA efficiently for
//! key-value services", SIGCOMM'14).
//!
//! The client stores a request into a *cell*. A worker of the server finds it there, handles it,
//! and stores the reply into a reply cell ([`memory`]). Both sides poll for a short time and then
//! sleep until a bell wakes them.
//!
//! What is said of cells here also holds over verbs, where a NIC writes them (`herd/`).
//!
//! # A cell
//!
//! ```text
//! 0..8     sequence number, never 0, grows from request to request
//! 8..12    attempt
//! 12..16   length of the frame
//! 16..20   if a NIC writes: CRC-32C of head (with 0 here) and frame; else 0
//! 20..24   0
//! 24..     the frame (`wire/`), numbered with the sequence number
//! ```
//!
//! # Rules
//!
//! Q1 and Q3 are kept here and in `herd/`: a cell is copied and judged as a copy, and a request is
//! handled once ([`Once`]). On shm a CPU stores the sequence number last ([`store`]), and a reader
//! that sees it sees the rest, so no CRC is needed. [`memory`] keeps A1 to A3.

pub(crate) mod memory;
mod once;
mod patience;

pub(crate) use once::{HasReply, Once, TakenRequest};
pub(crate) use patience::SpinTime;

use crate::base::sync::{AtomicU64, Ordering, fence};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct CellHead {
    pub sequence: u64,
    pub attempt: u32,
    pub length: u32,
    pub crc: u32,
    pub reserved: u32,
}

pub(crate) const HEAD: usize = size_of::<CellHead>();
const HEAD_WORDS: usize = HEAD / size_of::<u64>();

/// Identifies an attempt at a request in a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellMark {
    pub sequence: u64,
    pub attempt: u32,
}

/// Size in bytes of a cell for frames of at most `frame_max` bytes.
pub(crate) fn cell_bytes(frame_max: usize) -> usize {
    (HEAD + frame_max).next_multiple_of(crate::layout::LINE)
}

/// Reads what a cell seems to hold. A hint: if it differs from the last mark, the cell is worth
/// copying.
#[inline]
pub(crate) fn glance(cell: &[AtomicU64]) -> CellMark {
    // Acquire pairs with the Release in `store`: a reader that sees the number sees all of the
    // cell.
    let sequence = cell[0].load(Ordering::Acquire);
    CellMark { sequence, attempt: cell[1].load(Ordering::Relaxed) as u32 }
}

/// Stores a frame into a cell that another process reads, the sequence number last. Returns
/// `false`, and stores nothing, if the frame does not fit.
pub(crate) fn store(cell: &[AtomicU64], sequence: u64, frame: &[u8]) -> bool {
    if HEAD + frame.len() > size_of_val(cell) {
        return false;
    }
    let head = CellHead { sequence, attempt: 0, length: frame.len() as u32, crc: 0, reserved: 0 };
    let head: [u64; HEAD_WORDS] = bytemuck::cast(head);
    for (to, word) in cell.iter().zip(head).skip(1) {
        to.store(word, Ordering::Relaxed);
    }
    for (to, bytes) in cell[HEAD_WORDS..].iter().zip(frame.chunks(size_of::<u64>())) {
        let mut word = [0; size_of::<u64>()];
        word[..bytes.len()].copy_from_slice(bytes);
        to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
    // Release pairs with the Acquire in `glance`.
    cell[0].store(head[0], Ordering::Release);
    true
}

/// Copies the frame stored into a cell under this number into `copy`. [`glance`] has seen the
/// number there. `None` if the cell has been written again or is not valid.
pub(crate) fn load<'a>(cell: &[AtomicU64], sequence: u64, copy: &'a mut Vec<u64>) -> Option<&'a [u8]> {
    let (head, frame) = copied(cell, copy)?;
    (head.sequence == sequence).then_some(frame)
}

/// Copies head and frame of a cell that others may be writing. `None` if its length does not fit
/// the cell.
pub(crate) fn copied<'a>(cell: &[AtomicU64], copy: &'a mut Vec<u64>) -> Option<(CellHead, &'a [u8])> {
    copy.clear();
    copy.extend(cell[..HEAD_WORDS].iter().map(|word| word.load(Ordering::Relaxed)));
    let length = bytemuck::pod_read_unaligned::<CellHead>(bytemuck::cast_slice(copy)).length as usize;
    let end = HEAD.checked_add(length).filter(|end| *end <= size_of_val(cell))?;
    let body = &cell[HEAD_WORDS..end.div_ceil(size_of::<u64>())];
    copy.extend(body.iter().map(|word| word.load(Ordering::Relaxed)));
    // Handling the request comes after reading it.
    fence(Ordering::Acquire);
    let bytes: &[u8] = bytemuck::cast_slice(copy);
    Some((bytemuck::pod_read_unaligned(&bytes[..HEAD]), &bytes[HEAD..end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_stored_is_loaded() {
        let cell: Vec<AtomicU64> = (0..32).map(|_| AtomicU64::new(0)).collect();
        let mut copy = Vec::new();
        for (sequence, length) in [(1, 0), (2, 1), (3, 8), (4, 100), (5, 256 - HEAD)] {
            let frame: Vec<u8> = (1..).take(length).collect();
            assert!(store(&cell, sequence, &frame));
            assert_eq!(glance(&cell), CellMark { sequence, attempt: 0 });
            assert_eq!(load(&cell, sequence, &mut copy), Some(&frame[..]));
            assert_eq!(load(&cell, sequence + 1, &mut copy), None, "another request's");
        }
        let words = || cell.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = words();
        assert!(!store(&cell, 6, &[7; 256 - HEAD + 1]));
        assert_eq!(words(), before, "too long: nothing done");
    }

    /// The bytes of a cell as in the picture above, and the sizes of cells.
    #[test]
    fn cells_have_the_documented_bytes() {
        let cell: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(u64::MAX)).collect();
        assert!(store(&cell, 0x0102_0304_0506_0708, b"nine byte"));
        let bytes: Vec<u8> =
            cell.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[8..24], [0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..40], *b"nine byte\0\0\0\0\0\0\0");
        assert_eq!(bytes[40..], [0xff; 24], "no more than the frame is written");
        let lengths = [0, 1, 39, 40, 41, 104, 105].map(cell_bytes);
        assert_eq!(lengths, [64, 64, 64, 64, 128, 128, 192]);
    }

    /// A frame may be as long as the cell allows. A longer one is refused, whatever length it
    /// claims.
    #[test]
    fn frames_longer_than_the_cell_are_refused() {
        let cell: Vec<AtomicU64> = (0..8).map(AtomicU64::new).collect();
        let mut copy = Vec::new();
        for (length, is_there) in [(39u32, true), (40, true), (41, false), (64, false), (u32::MAX, false)] {
            cell[1].store(u64::from(length) << 32 | 3, Ordering::Relaxed);
            assert_eq!(glance(&cell), CellMark { sequence: 0, attempt: 3 });
            let frame = load(&cell, 0, &mut copy);
            assert_eq!(frame.map(<[u8]>::len), is_there.then_some(length as usize));
            let there: Vec<u8> = (3..8).flat_map(u64::to_le_bytes).collect();
            assert!(frame.is_none_or(|frame| *frame == there[..length as usize]));
        }
    }

    proptest! {
        /// Any words give a frame inside the cell, or none.
        #[test]
        fn any_words(words in proptest::collection::vec(any::<u64>(), 8), length in 0u32..100, sensible: bool) {
            let cell: Vec<AtomicU64> = words.iter().map(|word| AtomicU64::new(*word)).collect();
            if sensible {
                cell[1].store(u64::from(length) << 32, Ordering::Relaxed);
            }
            let mut copy = Vec::new();
            if let Some(frame) = load(&cell, glance(&cell).sequence, &mut copy) {
                prop_assert!(frame.len() <= 64 - HEAD);
            }
        }
    }
}
