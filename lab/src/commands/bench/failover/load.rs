//! The load: keys with one writer each, what is known of each key, and what became of each operation.
//!
//! A key's values count up. Who writes it stores `asked` before a put, and `newest` after the answer; who reads it raises
//! `newest` to what it has read. So a GET must not return less than `newest` was before it began: what was acknowledged, or
//! read by anybody, stays. A put of unknown outcome may yet be made. Its key is put no more, so that each GET of it
//! still knows what it may find.

use crate::measure::{KEY_BYTES, VALUE_BYTES, key};
use anyhow::{Context, Result, bail, ensure};
use oneread_cluster::client::{ClusterClient, ClusterError};
use oneread_cluster::core::state::{ClusterConfig, ShardIx};
use rand::RngExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Keys of a shard that are put, one after the other.
const ACTIVE: usize = 8;
/// Between two GETs of a thread. The rest of the CPU is the nodes'.
const GET_REST: Duration = Duration::from_millis(1);
/// Between two puts of a shard.
const PUT_REST: Duration = Duration::from_millis(20);

/// A key, and what is known of it. Versions are 0 as long as there is none.
#[derive(Debug)]
pub struct Key {
    number: u64,
    /// The last version that was put.
    asked: AtomicU64,
    /// The last one that was acknowledged.
    acknowledged: AtomicU64,
    /// One that may have been put, or may yet be.
    unknown: AtomicU64,
    /// The newest one that was acknowledged or read.
    newest: AtomicU64,
}

/// What became of a put.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    pub begun: Instant,
    pub ended: Instant,
    pub is_acknowledged: bool,
}

/// What one thread's GETs found.
#[derive(Debug, Default)]
pub struct Gets {
    /// When each of those ended that found something.
    pub ended: Vec<Instant>,
    pub failed: u64,
    pub stale: u64,
}

/// All keys, by shard, and what the threads share.
#[derive(Debug)]
pub struct Load {
    shards: Vec<Vec<Key>>,
    /// The key that was acknowledged last: readers look for that one often.
    last: (AtomicUsize, AtomicUsize),
    acknowledged: AtomicU64,
    /// Puts of each shard that were acknowledged to its writer.
    written: Vec<AtomicU64>,
    is_over: AtomicBool,
}

impl Key {
    pub fn bytes(&self) -> [u8; KEY_BYTES] {
        key(self.number)
    }

    /// A new version, to be put.
    fn next(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn is_acknowledged(&self, version: u64) {
        self.acknowledged.store(version, Ordering::Release);
        self.newest.fetch_max(version, Ordering::AcqRel);
    }

    fn value(&self, version: u64) -> [u8; VALUE_BYTES] {
        let mut value = [0; VALUE_BYTES];
        for (at, word) in value.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&if at % 2 == 0 { version } else { self.number }.to_le_bytes());
        }
        value
    }

    /// The version that a value is of.
    fn version(&self, value: Option<&[u8]>) -> Result<u64> {
        let Some(value) = value else { return Ok(0) };
        let version = value.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        let asked = self.asked.load(Ordering::Acquire);
        ensure!(
            value == self.value(version) && (1..=asked).contains(&version),
            "a GET returned a value that was never put under its key: {}",
            value.escape_ascii()
        );
        Ok(version)
    }

    /// Whether the version that is there in the end is too old. One of unknown outcome is newer than what was
    /// acknowledged: behind it nothing is put.
    fn is_lost(&self, there: u64) -> Result<bool> {
        let (acknowledged, unknown) =
            (self.acknowledged.load(Ordering::Acquire), self.unknown.load(Ordering::Acquire));
        ensure!(
            there <= acknowledged || there == unknown,
            "a key has a value of which the client had said that it was certainly not put"
        );
        Ok(there < acknowledged)
    }
}

impl Load {
    /// So many keys, the same number in each shard, and enough that `spare` of a shard may be given up.
    pub fn new(config: &ClusterConfig, keys: usize, spare: usize) -> Load {
        let each = keys.div_ceil(config.shards.into()).max(ACTIVE + spare);
        let mut shards: Vec<Vec<Key>> = (0..config.shards).map(|_| Vec::with_capacity(each)).collect();
        let (mut number, mut missing) = (0, each * shards.len());
        while missing > 0 {
            let shard = &mut shards[usize::from(config.shard_of(&key(number)))];
            if shard.len() < each {
                let none = || AtomicU64::new(0);
                shard.push(Key {
                    number,
                    asked: none(),
                    acknowledged: none(),
                    unknown: none(),
                    newest: none(),
                });
                missing -= 1;
            }
            number += 1;
        }
        let written = shards.iter().map(|_| AtomicU64::new(0)).collect();
        Load {
            shards,
            last: Default::default(),
            acknowledged: AtomicU64::new(0),
            written,
            is_over: AtomicBool::new(false),
        }
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.shards.iter().flatten()
    }

    /// Keys of these shards.
    pub fn keys_of(&self, shards: impl Iterator<Item = ShardIx>) -> Vec<&Key> {
        shards.filter_map(|shard| self.shards.get(usize::from(shard))).flatten().collect()
    }

    /// One at random.
    pub fn any_key(&self) -> &Key {
        let mut random = rand::rng();
        let shard = &self.shards[random.random_range(0..self.shards.len())];
        &shard[random.random_range(0..shard.len())]
    }

    /// How many puts were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// How many puts of each shard were acknowledged to its writer.
    pub fn written(&self) -> Vec<u64> {
        self.written.iter().map(|written| written.load(Ordering::Relaxed)).collect()
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Has all threads end.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Puts a new version of each of these, which are different ones, while nothing else is put.
    pub fn put_many(&self, client: &mut ClusterClient, keys: &[&Key]) -> Result<Duration> {
        let versions: Vec<u64> = keys.iter().map(|key| key.next()).collect();
        let entries: Vec<_> =
            keys.iter().zip(&versions).map(|(key, version)| (key.bytes(), key.value(*version))).collect();
        let begun = Instant::now();
        let ended = client.put_many(&entries);
        let took = begun.elapsed();
        for ((key, version), ended) in keys.iter().zip(versions).zip(ended) {
            ended.context("putting before anything was killed")?;
            key.is_acknowledged(version);
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(took)
    }

    /// Puts a new version of one key, by a put of its own.
    pub fn put_one(&self, client: &mut ClusterClient, key: &Key) -> Result<Duration> {
        let version = key.next();
        let (bytes, value) = (key.bytes(), key.value(version));
        let begun = Instant::now();
        client.put(&bytes, &value).context("putting before anything was killed")?;
        let took = begun.elapsed();
        key.is_acknowledged(version);
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        Ok(took)
    }

    /// Puts keys of one shard until the load is over.
    pub fn write(&self, mut client: ClusterClient, shard: usize) -> Result<Vec<Put>> {
        let done = self.write_on(&mut client, shard);
        if done.is_err() {
            self.end();
        }
        done
    }

    fn write_on(&self, client: &mut ClusterClient, shard: usize) -> Result<Vec<Put>> {
        let keys = &self.shards[shard];
        let mut active: Vec<usize> = (0..ACTIVE).collect();
        let mut spare = ACTIVE..keys.len();
        let mut puts = Vec::new();
        for turn in (0..ACTIVE).cycle() {
            if self.is_over() {
                break;
            }
            let at = active[turn];
            let key = &keys[at];
            let version = key.next();
            let begun = Instant::now();
            let ended = client.put(&key.bytes(), &key.value(version));
            puts.push(Put { begun, ended: Instant::now(), is_acknowledged: ended.is_ok() });
            match ended {
                Ok(()) => {
                    key.is_acknowledged(version);
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    self.written[shard].fetch_add(1, Ordering::Relaxed);
                    self.last.0.store(shard, Ordering::Relaxed);
                    self.last.1.store(at, Ordering::Relaxed);
                }
                Err(ClusterError::NotDone { .. }) => {}
                Err(ClusterError::Unknown { .. }) => {
                    key.unknown.store(version, Ordering::Release);
                    active[turn] = spare.next().context(
                        "so many puts have no known outcome that no keys are left; run the bench with more --keys",
                    )?;
                }
                Err(error) => bail!(error),
            }
            std::thread::sleep(PUT_REST);
        }
        Ok(puts)
    }

    /// GETs keys of all shards until the load is over.
    pub fn read(&self, mut client: ClusterClient) -> Result<Gets> {
        let done = self.read_on(&mut client);
        if done.is_err() {
            self.end();
        }
        done
    }

    fn read_on(&self, client: &mut ClusterClient) -> Result<Gets> {
        let (mut gets, mut value, mut random) = (Gets::default(), Vec::new(), rand::rng());
        while !self.is_over() {
            // Both halves of `last` may be of different puts. Any key will do.
            let last = (self.last.0.load(Ordering::Relaxed), self.last.1.load(Ordering::Relaxed));
            let key = match random.random_range(0..2) {
                0 => &self.shards[last.0][last.1],
                _ => self.any_key(),
            };
            let newest = key.newest.load(Ordering::Acquire);
            match client.get_into(&key.bytes(), &mut value) {
                Ok(is_there) => {
                    gets.ended.push(Instant::now());
                    let version = key.version(is_there.then_some(&value))?;
                    gets.stale += u64::from(version < newest);
                    key.newest.fetch_max(version, Ordering::AcqRel);
                }
                Err(ClusterError::Unavailable { .. }) => gets.failed += 1,
                Err(error) => bail!(error),
            }
            std::thread::sleep(GET_REST);
        }
        Ok(gets)
    }

    /// Holds each key against what is known of it, when all threads have ended. Returns how many have lost a put.
    pub fn check(&self, client: &mut ClusterClient) -> Result<u64> {
        let keys: Vec<&Key> = self.keys().collect();
        let mut lost = 0;
        for some in keys.chunks(256) {
            let bytes: Vec<_> = some.iter().map(|key| key.bytes()).collect();
            let values = client.get_many(&bytes).context("reading all keys in the end")?;
            for (key, value) in some.iter().zip(values) {
                lost += u64::from(key.is_lost(key.version(value.as_deref())?)?);
            }
        }
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_key(asked: u64, acknowledged: u64, unknown: u64) -> Key {
        let [asked, acknowledged, unknown] = [asked, acknowledged, unknown].map(AtomicU64::new);
        Key { number: 7, asked, acknowledged, unknown, newest: AtomicU64::new(0) }
    }

    /// A key may have its last acknowledged version, or one of unknown outcome. Anything older is lost, anything
    /// newer a mistake.
    #[test]
    fn keys_are_compared_with_what_is_known() {
        for (there, acknowledged, unknown, expected) in [
            (3, 3, 0, Some(false)),
            (2, 3, 0, Some(true)),
            (0, 3, 0, Some(true)),
            (0, 0, 0, Some(false)),
            (3, 3, 4, Some(false)),
            (4, 3, 4, Some(false)),
            (2, 3, 4, Some(true)),
            (4, 3, 0, None),
            (4, 3, 5, None),
        ] {
            let key = a_key(5, acknowledged, unknown);
            assert_eq!(key.is_lost(there).ok(), expected, "{there} {acknowledged} {unknown}");
        }
    }

    /// A value tells its version, and is refused if it is another key's, torn, or was never asked for.
    #[test]
    fn values_tell_their_version() {
        let key = a_key(5, 0, 0);
        let version = |value: &[u8]| key.version(Some(value)).ok();
        assert_eq!(key.version(None).ok(), Some(0));
        assert_eq!(
            (version(&key.value(5)), version(&key.value(6)), version(&key.value(0))),
            (Some(5), None, None)
        );
        let other = Key { number: 8, ..a_key(5, 0, 0) };
        assert_eq!(version(&other.value(5)), None);
        let mut torn = key.value(5);
        torn[16] ^= 1;
        assert_eq!((version(&torn), version(b"short")), (None, None));
    }
}
