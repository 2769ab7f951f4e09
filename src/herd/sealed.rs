//! Cells that a NIC writes in any order. A CRC tells whether all of a request has landed (Q1).

use crate::base::sync::AtomicU64;
use crate::layout::crc::append;
use crate::mailbox::{CellHead, CellMark, HEAD, copied};

fn crc(head: CellHead, frame: &[u8]) -> u32 {
    append(append(0, bytemuck::bytes_of(&CellHead { crc: 0, ..head })), frame)
}

/// Lays out a cell; `encode` appends the frame. [`seal`] completes it.
pub(crate) fn lay_out(cell: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) {
    cell.clear();
    cell.resize(HEAD, 0);
    encode(cell);
}

/// Writes the head of a cell that holds a frame.
pub(crate) fn seal(cell: &mut [u8], mark: CellMark) {
    let (head, frame) = cell.split_at_mut(HEAD);
    let CellMark { sequence, attempt } = mark;
    let open = CellHead { sequence, attempt, length: frame.len() as u32, crc: 0, reserved: 0 };
    head.copy_from_slice(bytemuck::bytes_of(&CellHead { crc: crc(open, frame), ..open }));
}

/// The frame in a cell, if all of it has landed. Copies the cell into `copy` first.
pub(crate) fn open<'a>(cell: &[AtomicU64], copy: &'a mut Vec<u64>) -> Option<(CellMark, &'a [u8])> {
    let (head, frame) = copied(cell, copy)?;
    let sound = head.sequence != 0 && head.reserved == 0 && head.crc == crc(head, frame);
    sound.then_some((CellMark { sequence: head.sequence, attempt: head.attempt }, frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::glance;
    use crate::wire::{self, Request};
    use proptest::prelude::*;

    fn sealed(mark: CellMark, key: &[u8]) -> Vec<u8> {
        let mut cell = Vec::new();
        lay_out(&mut cell, |out| Request::Get { key }.encode(mark.sequence, out));
        seal(&mut cell, mark);
        cell
    }

    /// Memory as a worker sees it, with these bytes at its start.
    fn memory(bytes: &[u8]) -> Vec<AtomicU64> {
        let mut padded = bytes.to_vec();
        padded.resize(256, 0);
        let words = padded.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.map(AtomicU64::new).collect()
    }

    #[test]
    fn sealed_cells_open() {
        let mark = CellMark { sequence: 7, attempt: 2 };
        let cell = memory(&sealed(mark, b"a key"));
        let mut copy = Vec::new();
        let (opened, frame) = open(&cell, &mut copy).unwrap();
        assert_eq!((opened, glance(&cell)), (mark, mark));
        let frame = wire::decode(frame).unwrap().unwrap();
        assert_eq!((frame.id, Request::decode(&frame).unwrap()), (7, Request::Get { key: b"a key" }));
        assert!(open(&memory(&[]), &mut copy).is_none(), "nothing was ever written");
    }

    /// A valid seal is not enough: number 0 is not used, and reserved bits are 0.
    #[test]
    fn number_zero_and_reserved_bits_are_refused() {
        let zero = memory(&sealed(CellMark { sequence: 0, attempt: 0 }, b"a key"));
        assert!(open(&zero, &mut Vec::new()).is_none());
        for (reserved, opens) in [(0, true), (1, false), (1 << 31, false)] {
            let mut cell = sealed(CellMark { sequence: 1, attempt: 0 }, b"a key");
            let (head, frame) = cell.split_at_mut(HEAD);
            let unsealed = CellHead { crc: 0, reserved, ..bytemuck::pod_read_unaligned(head) };
            let crc = crc(unsealed, frame);
            head.copy_from_slice(bytemuck::bytes_of(&CellHead { crc, ..unsealed }));
            assert_eq!(open(&memory(&cell), &mut Vec::new()).is_some(), opens, "{reserved}");
        }
    }

    /// The buffer's old content is not part of the cell.
    #[test]
    fn old_content_is_overwritten() {
        let mut cell = vec![7; 100];
        lay_out(&mut cell, |out| out.extend([1, 2, 3]));
        assert_eq!(cell, [&[0; 24][..], &[1, 2, 3]].concat());
    }

    proptest! {
        /// One request is written over another, its bytes in any order. Each state in between opens
        /// as one of the two requests or not at all.
        #[test]
        fn half_landed_requests_do_not_open(order in Just((0..72usize).collect::<Vec<_>>()).prop_shuffle(), attempt in 0u32..2) {
            let old = sealed(CellMark { sequence: 5, attempt: 0 }, b"one of the keys, long");
            let new = sealed(CellMark { sequence: 5 + u64::from(attempt == 0), attempt }, b"another key");
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

        /// Every flipped bit is detected.
        #[test]
        fn flipped_bits_are_detected(bit in 0usize..8 * 45) {
            let mut bytes = sealed(CellMark { sequence: 1, attempt: 0 }, b"keyed");
            assert_eq!(bytes.len(), 45);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&memory(&bytes), &mut Vec::new()).is_none());
        }
    }
}
