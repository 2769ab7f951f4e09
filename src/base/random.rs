//! Random numbers from the operating system.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// So many random words.
///
/// # Errors
/// The operating system's error when it has no random bytes to give.
pub(crate) fn words<const N: usize>() -> io::Result<[u64; N]> {
    let mut words = [0u64; N];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(words)
}

/// A random number that is not 0, by which one thing is told from all others of its kind.
///
/// # Errors
/// As [`words`].
pub(crate) fn number() -> io::Result<u64> {
    let [number] = words()?;
    Ok(number.max(1))
}

/// Such a number, where there is no way without.
///
/// # Panics
/// When the system has no random bytes, as the maps of the standard library do then.
pub(crate) fn needed() -> u64 {
    number().expect("the operating system has random bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ() {
        let words: [u64; 8] = words().unwrap();
        assert!(words.iter().all(|word| word.count_ones() > 4), "all bytes are filled: {words:x?}");
        assert_ne!(number().unwrap(), number().unwrap());
    }
}
