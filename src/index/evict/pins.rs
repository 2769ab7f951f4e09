//! Entries that are pinned: they are not evicted.

use crate::base::sync::{Mutex, lock};
use crate::layout::hash::First;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// How often each hash is pinned. Two keys with one hash are pinned together.
#[derive(Debug, Default)]
pub(in crate::index) struct Pins(Mutex<FxHashMap<First, u32>>);

impl Pins {
    pub fn has(&self, hash: First) -> bool {
        lock(&self.0).contains_key(&hash)
    }

    /// Pins a hash once more.
    pub fn pin(self: &Arc<Pins>, hash: First) -> KeyPin {
        *lock(&self.0).entry(hash).or_default() += 1;
        KeyPin { pins: Arc::clone(self), hash }
    }

    /// How many hashes are pinned.
    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

/// A key is not evicted until this is dropped ([`Index::pin`](crate::embedded::Index::pin)). It may still be removed,
/// or end at its time, and is not pinned when it comes again.
#[derive(Debug)]
pub struct KeyPin {
    pins: Arc<Pins>,
    hash: First,
}

impl KeyPin {
    /// The hash of the key.
    pub(crate) fn hash(&self) -> First {
        self.hash
    }
}

impl Drop for KeyPin {
    fn drop(&mut self) {
        let mut pins = lock(&self.pins.0);
        if let Some(times) = pins.get_mut(&self.hash) {
            *times -= 1;
            if *times == 0 {
                pins.remove(&self.hash);
            }
        }
    }
}
