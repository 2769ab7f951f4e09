//! Whether a file holds a table that was never finished.

use super::error::{RegionError, os};
use crate::layout::PAGE;
use crate::layout::control::{Phase, STATE_WORD, State};
use crate::layout::superblock::{FORMAT_VERSION, SUPERBLOCK_WORDS, Superblock, SuperblockError};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Looks whether the file's table was ever finished.
///
/// # Errors
/// [`RegionError::Unfinished`] of a file whose table was never finished.
pub(super) fn check_finished(path: &Path, file: &File) -> Result<(), RegionError> {
    match is_unfinished(file).map_err(os("reading", path.display().to_string()))? {
        true => Err(RegionError::Unfinished { path: path.into() }),
        false => Ok(()),
    }
}

/// Whether a file holds a table that no server has finished: it has the state of the first one, which is at
/// it, or nothing at all yet. Nobody was ever served from it.
///
/// Reads it and does not map it: to touch a page that is not there takes memory, or ends in SIGBUS.
pub(super) fn is_unfinished(file: &File) -> io::Result<bool> {
    const HEAD: usize = 2 * PAGE;
    let have = file.metadata()?.len();
    if have < HEAD as u64 {
        return Ok(have == 0);
    }
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0)?;
    let mut words: Vec<u64> = head.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let state = std::mem::take(&mut words[STATE_WORD]);
    let is_first = state == State { incarnation: 1, phase: Phase::Starting }.to_word();
    let superblock = Superblock::from_words(std::array::from_fn(|word| words[word]));
    match superblock.geometry(have) {
        Ok(_) => Ok(is_first),
        // The first word is written last, and the slots later.
        Err(SuperblockError::Magic { found: 0 }) => {
            let is_ours = matches!(superblock.version, 0 | FORMAT_VERSION) && (state == 0 || is_first);
            let is_empty = words[SUPERBLOCK_WORDS..].iter().all(|&word| word == 0);
            Ok(is_ours && is_empty && is_zero_from(file, HEAD as u64)?)
        }
        Err(_) => Ok(false),
    }
}

/// Whether a file has nothing but zeros from this byte on. Holes are not read.
fn is_zero_from(file: &File, mut at: u64) -> io::Result<bool> {
    let mut piece = vec![0; 64 << 10];
    loop {
        at = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => return Ok(true),
            data => data.unwrap_or(at),
        };
        let read = file.read_at(&mut piece, at)?;
        if read == 0 || piece[..read].iter().any(|&byte| byte != 0) {
            return Ok(read == 0);
        }
        at += read as u64;
    }
}
