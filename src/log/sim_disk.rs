//! A disk that loses what was not synced: any of it, in any order, torn; whose calls fail; and whose folder forgets names
//! that were not synced.

use super::disk::{Disk, DiskFile};
use crate::base::sync::lock_std;
use crate::sim::{Adversary, Random};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// Bytes that the disk writes whole, or not.
const SECTOR: usize = 64;

/// A file: what the disk has, and what the system has.
#[derive(Clone, Debug, Default)]
struct SimFile {
    on_disk: Vec<u8>,
    /// Begins with `on_disk`, but for bytes that the system has forgotten to write.
    cached: Vec<u8>,
    /// Bytes of `cached` that a failed sync has dropped: no later one writes them.
    forgotten: Vec<std::ops::Range<usize>>,
    has_name: bool,
}

#[derive(Debug, Default)]
struct SimState {
    files: BTreeMap<String, SimFile>,
    /// Files that were removed, and whose names the disk still has.
    removed: BTreeMap<String, SimFile>,
    /// Calls until one fails. `None`: none does.
    fails_in: Option<u64>,
    syncs: u64,
    /// Syncs wait.
    is_held: bool,
}

impl SimFile {
    /// A file that the disk has whole.
    fn synced(bytes: Vec<u8>) -> SimFile {
        SimFile { on_disk: bytes.clone(), cached: bytes, forgotten: Vec::new(), has_name: true }
    }
}

impl SimState {
    fn may_fail(&mut self) -> io::Result<()> {
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                Err(io::Error::other("a fault of this test's disk"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A disk of a test.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimDisk(Arc<Mutex<SimState>>);

#[derive(Debug)]
struct Open {
    disk: SimDisk,
    name: String,
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl SimDisk {
    /// The call behind so many others fails, once.
    pub fn fail_in(&self, calls: u64) {
        lock_std(&self.0).fails_in = Some(calls);
    }

    /// From now on syncs wait, or no longer.
    pub fn hold(&self, is_held: bool) {
        lock_std(&self.0).is_held = is_held;
    }

    /// How often a file was synced.
    pub fn syncs(&self) -> u64 {
        lock_std(&self.0).syncs
    }

    /// The disk after a power cut at this moment.
    pub fn cut_power(&self, random: &mut Random) -> SimDisk {
        let state = lock_std(&self.0);
        let mut files = BTreeMap::new();
        for (name, file) in &state.files {
            if file.has_name || random.pick(2) > 0 {
                files.insert(name.clone(), SimFile::synced(kept(file, random)));
            }
        }
        for (name, file) in &state.removed {
            if random.pick(2) == 0 && !files.contains_key(name) {
                files.insert(name.clone(), SimFile::synced(file.on_disk.clone()));
            }
        }
        SimDisk(Arc::new(Mutex::new(SimState { files, ..SimState::default() })))
    }

    /// A copy of the disk when all was synced.
    pub fn copy(&self) -> SimDisk {
        let state = lock_std(&self.0);
        SimDisk(Arc::new(Mutex::new(SimState { files: state.files.clone(), ..SimState::default() })))
    }

    /// Changes the bytes of a file, as a disk that rots does.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = lock_std(&self.0);
        let file = state.files.get_mut(name).unwrap();
        change(&mut file.cached);
        file.on_disk = file.cached.clone();
    }
}

/// What a power cut leaves of a file: a length between what was synced and all, and of the bytes that were not synced any
/// sectors. What is missing is zero.
fn kept(file: &SimFile, random: &mut Random) -> Vec<u8> {
    let synced = file.on_disk.len();
    let len = match random.pick(4) {
        0 => synced,
        1 => file.cached.len(),
        _ => synced + random.pick(file.cached.len() - synced + 1),
    };
    let mut kept = file.on_disk.clone();
    kept.resize(len, 0);
    let all = random.pick(3) == 0;
    let mut at = synced;
    while at < len {
        let end = len.min((at / SECTOR + 1) * SECTOR);
        if all || random.pick(3) > 0 {
            kept[at..end].copy_from_slice(&file.cached[at..end]);
        }
        at = end;
    }
    for range in &file.forgotten {
        let range = range.start.min(len)..range.end.min(len);
        kept[range].fill(0);
    }
    kept
}

impl Disk for SimDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(lock_std(&self.0).files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = lock_std(&self.0);
        state.may_fail()?;
        if state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.removed.remove(name);
        state.files.insert(name.to_owned(), SimFile::default());
        Ok(Box::new(Open { disk: self.clone(), name: name.to_owned() }))
    }

    fn read(&self, name: &str, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = lock_std(&self.0);
        let file = state.files.get(name).ok_or_else(not_found)?;
        let from = file.cached.get(at as usize..).unwrap_or_default();
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        let state = lock_std(&self.0);
        Ok(state.files.get(name).ok_or_else(not_found)?.cached.len() as u64)
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let mut state = lock_std(&self.0);
        let file = state.files.get_mut(name).ok_or_else(not_found)?;
        file.cached.truncate(len as usize);
        file.on_disk = file.cached.clone();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = lock_std(&self.0);
        let file = state.files.remove(name).ok_or_else(not_found)?;
        if file.has_name {
            state.removed.insert(name.to_owned(), file);
        }
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = lock_std(&self.0);
        state.may_fail()?;
        state.removed.clear();
        state.files.values_mut().for_each(|file| file.has_name = true);
        Ok(())
    }
}

impl DiskFile for Open {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = lock_std(&self.disk.0);
        state.may_fail()?;
        state.files.get_mut(&self.name).ok_or_else(not_found)?.cached.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        while lock_std(&self.disk.0).is_held {
            std::thread::yield_now();
        }
        let mut state = lock_std(&self.disk.0);
        let failed = state.may_fail();
        state.syncs += 1;
        let file = state.files.get_mut(&self.name).ok_or_else(not_found)?;
        if failed.is_err() {
            // As Linux does: the pages count as clean from now on.
            file.forgotten.push(file.on_disk.len()..file.cached.len());
        }
        let mut on_disk = file.cached.clone();
        for range in &file.forgotten {
            on_disk[range.clone()].fill(0);
        }
        file.on_disk = on_disk;
        failed
    }
}
