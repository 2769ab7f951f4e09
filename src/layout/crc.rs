//! Checksums: CRC-32C (Castagnoli) of slots and heads, CRC-32 (ISO-HDLC) of long bytes.
//!
//! A slot's CRC-32C covers some ten words, by the processor's instruction where it has one. A call of a
//! crate would cost three times as much. Of long bytes, `crc32fast` sums up to 120 GB/s where the processor
//! multiplies polynomials in wide registers, the CRC-32C instruction 31 (`benches/functions.rs`).

#![allow(unsafe_code)]

use crate::base::sync::{AtomicU64, Ordering};

/// The CRC of `bytes` behind bytes whose CRC is `before`: 0 if there are none.
#[inline]
pub(crate) fn append(before: u32, bytes: &[u8]) -> u32 {
    append_both(before, [], bytes)
}

/// The CRC-32 of `bytes` behind bytes whose CRC-32 is `before`: of long values, and of a snapshot's records.
pub(crate) fn append_long(before: u32, bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new_with_initial(before);
    sum.update(bytes);
    sum.finalize()
}

/// As [`append_both`], of these words and of a line's words but for its first: of a full slot of one line, as
/// most often. Summed in place: a call would pass all of them through memory.
#[inline(always)]
pub(crate) fn of_line(first: [u64; 3], line: &[u64; 8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        let ([a, b, c], mut crc) = (first, u64::from(u32::MAX));
        // SAFETY: the processor has the instructions. They load seven of the line's eight words, and store
        // nothing.
        unsafe {
            std::arch::asm!(
                "crc32 {crc}, {a}",
                "crc32 {crc}, {b}",
                "crc32 {crc}, {c}",
                "crc32 {crc}, qword ptr [{line} + 8]",
                "crc32 {crc}, qword ptr [{line} + 16]",
                "crc32 {crc}, qword ptr [{line} + 24]",
                "crc32 {crc}, qword ptr [{line} + 32]",
                "crc32 {crc}, qword ptr [{line} + 40]",
                "crc32 {crc}, qword ptr [{line} + 48]",
                "crc32 {crc}, qword ptr [{line} + 56]",
                crc = inout(reg) crc,
                a = in(reg) a,
                b = in(reg) b,
                c = in(reg) c,
                line = in(reg) line.as_ptr(),
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        return !(crc as u32);
    }
    of_line_without(first, line)
}

/// As [`of_line`], of these words and of a payload that fills a line, where it stands. Whoever calls this has the lock
/// of its slot.
#[inline(always)]
pub(crate) fn of_payload(first: [u64; 4], payload: &[AtomicU64; 6]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        let ([a, b, c, d], mut crc) = (first, u64::from(u32::MAX));
        // SAFETY: the processor has the instructions. They load these six words, each at once, and store nothing.
        unsafe {
            std::arch::asm!(
                "crc32 {crc}, {a}",
                "crc32 {crc}, {b}",
                "crc32 {crc}, {c}",
                "crc32 {crc}, {d}",
                "crc32 {crc}, qword ptr [{payload}]",
                "crc32 {crc}, qword ptr [{payload} + 8]",
                "crc32 {crc}, qword ptr [{payload} + 16]",
                "crc32 {crc}, qword ptr [{payload} + 24]",
                "crc32 {crc}, qword ptr [{payload} + 32]",
                "crc32 {crc}, qword ptr [{payload} + 40]",
                crc = inout(reg) crc,
                a = in(reg) a,
                b = in(reg) b,
                c = in(reg) c,
                d = in(reg) d,
                payload = in(reg) payload.as_ptr(),
                // Not `pure`: others may have stored before.
                options(readonly, nostack, preserves_flags),
            );
        }
        return !(crc as u32);
    }
    let payload: [u64; 6] = std::array::from_fn(|n| payload[n].load(Ordering::Relaxed));
    append_both(0, first, bytemuck::bytes_of(&payload))
}

/// As [`append_both`], of these words alone: of a free slot, which has no payload.
#[inline(always)]
pub(crate) fn of_words(words: [u64; 4]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        let ([a, b, c, d], mut crc) = (words, u64::from(u32::MAX));
        // SAFETY: the processor has the instructions. They touch no memory.
        unsafe {
            std::arch::asm!(
                "crc32 {crc}, {a}",
                "crc32 {crc}, {b}",
                "crc32 {crc}, {c}",
                "crc32 {crc}, {d}",
                crc = inout(reg) crc,
                a = in(reg) a,
                b = in(reg) b,
                c = in(reg) c,
                d = in(reg) d,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        return !(crc as u32);
    }
    append_both(0, words, &[])
}

/// Like `of_line`, where the processor has no instruction for it.
#[cold]
#[inline(never)]
fn of_line_without(first: [u64; 3], line: &[u64; 8]) -> u32 {
    append_both(0, first, bytemuck::cast_slice(&line[1..]))
}

/// As [`append`], of `words` and, behind them, `bytes`.
#[inline(always)]
pub(crate) fn append_both<const N: usize>(before: u32, words: [u64; N], bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { with_instruction(before, words, bytes) };
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("crc") {
        // SAFETY: the processor has the instructions.
        return unsafe { with_instruction(before, words, bytes) };
    }
    without_instruction(without_instruction(before, bytemuck::cast_slice(&words)), bytes)
}

/// Like `append_both`, by a table of the sums of single bytes: slow, for processors of before 2008.
#[cold]
#[inline(never)]
fn without_instruction(before: u32, bytes: &[u8]) -> u32 {
    const SUMS: [u32; 256] = {
        let mut sums = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut sum, mut bit) = (byte as u32, 0);
            while bit < 8 {
                sum = (sum >> 1) ^ ((sum & 1) * 0x82f6_3b78);
                bit += 1;
            }
            sums[byte] = sum;
            byte += 1;
        }
        sums
    };
    !bytes.iter().fold(!before, |crc, &byte| SUMS[(crc as u8 ^ byte) as usize] ^ (crc >> 8))
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "sse4.2"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "crc"))]
fn with_instruction<const N: usize>(before: u32, first: [u64; N], bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "aarch64")]
    use std::arch::aarch64::{__crc32cb as of_byte, __crc32cd as of_word};
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::_mm_crc32_u8 as of_byte;
    #[cfg(target_arch = "x86_64")]
    let of_word = |crc, word| std::arch::x86_64::_mm_crc32_u64(u64::from(crc), word) as u32;
    let mut crc = !before;
    for word in first {
        crc = of_word(crc, word.to_le());
    }
    // Two at a time: the loop costs as much as the sum.
    let (pairs, rest) = bytes.as_chunks();
    for [a, b] in pairs.iter().map(bytemuck::cast_ref::<[u8; 16], [[u8; 8]; 2]>) {
        crc = of_word(of_word(crc, u64::from_le_bytes(*a)), u64::from_le_bytes(*b));
    }
    let (words, rest) = rest.as_chunks();
    for word in words {
        crc = of_word(crc, u64::from_le_bytes(*word));
    }
    for &byte in rest {
        crc = of_byte(crc, byte);
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the catalogue of CRCs, and the same sum in every two parts.
    #[test]
    fn of_long_bytes() {
        let bytes = b"123456789";
        for split in 0..=bytes.len() {
            let (first, second) = bytes.split_at(split);
            assert_eq!(append_long(append_long(0, first), second), 0xcbf4_3926, "{split}");
        }
    }

    /// The sum of a line in place is the crate's of the same words.
    #[test]
    fn of_a_line() {
        let words: [u64; 11] = std::array::from_fn(|n| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ([a, b, c, line @ ..], mut summed) = (words, words.to_vec());
        // The line's first word does not count.
        summed.remove(3);
        assert_eq!(of_line([a, b, c], &line), crc32c::crc32c(bytemuck::cast_slice(&summed)));
        assert_eq!(of_words([a, b, c, line[1]]), crc32c::crc32c(bytemuck::cast_slice(&summed[..4])));
    }

    /// The sum of a payload where it stands is that of the line.
    #[cfg(not(loom))]
    #[test]
    fn of_a_payload() {
        let line: [u64; 8] = std::array::from_fn(|n| (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let payload = std::array::from_fn(|n| AtomicU64::new(line[2 + n]));
        assert_eq!(of_payload([1, 2, 3, line[1]], &payload), of_line([1, 2, 3], &line));
        payload[5].store(7, Ordering::Relaxed);
        assert_ne!(of_payload([1, 2, 3, line[1]], &payload), of_line([1, 2, 3], &line));
    }

    /// The check value of the catalogue of CRCs, and the crate's answers for every length and split.
    #[test]
    fn the_same_as_the_crate() {
        assert_eq!(append(0, b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..100).map(|n: u8| n.wrapping_mul(37)).collect();
        for len in 0..bytes.len() {
            for split in 0..=len {
                let (first, second) = bytes[..len].split_at(split);
                let sum = crc32c::crc32c(&bytes[..len]);
                assert_eq!(append(append(0, first), second), sum, "{split} of {len}");
                assert_eq!(
                    without_instruction(without_instruction(0, first), second),
                    sum,
                    "{split} of {len}"
                );
                if let Some(([a, b], rest)) = second
                    .split_first_chunk()
                    .map(|(words, rest)| (bytemuck::cast::<[u8; 16], [u64; 2]>(*words), rest))
                {
                    assert_eq!(append_both(append(0, first), [a, b], rest), crc32c::crc32c(&bytes[..len]));
                }
            }
        }
    }
}
