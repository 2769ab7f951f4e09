//! A change of several entries takes several stores. A node that is killed between two of them must not leave the
//! change half made. So it stores its intent first, and completes it when it starts again (CL15).

use crate::core::message::{Entry, Key, Life, Store, Value};
use rapidhash::v3::rapidhash_v3;
use serde::{Deserialize, Serialize};

/// A checksum that stands for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sum {
    len: u64,
    hash: u64,
}

impl Sum {
    fn of(value: &Value) -> Sum {
        Sum { len: value.len() as u64, hash: rapidhash_v3(value) }
    }
}

/// A change that is being made, with its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The key that changes.
    pub key: Key,
    /// The key's new value. `None`: the key leaves.
    value: Option<Sum>,
    life: Life,
    /// The last beat before it. After a later beat, the change has ended long ago.
    pub beat: u64,
    outcome: Store,
}

impl Intent {
    /// The intent of a change after this beat. `None`: the change is a single store, which is made or not.
    pub fn of(beat: u64, stores: &[Store]) -> Option<Intent> {
        let [(key, entry), outcome] = stores else { return None };
        Some(Intent {
            key: key.clone(),
            value: entry.as_ref().map(|entry| Sum::of(&entry.value)),
            life: entry.as_ref().map(|entry| entry.life).unwrap_or_default(),
            beat,
            outcome: outcome.clone(),
        })
    }

    /// The stores that are left, if the key has this value. None, if the key's own store was not made: then no reader
    /// has seen anything of the change.
    ///
    /// If the key had the same value before, the change is completed. That is as good.
    pub fn rest(&self, now: Option<Value>) -> Vec<Store> {
        if self.value != now.as_ref().map(Sum::of) {
            return Vec::new();
        }
        // The life may be the former one.
        let entry = now.map(|value| (self.key.clone(), Some(Entry { value, life: self.life })));
        entry.into_iter().chain([self.outcome.clone()]).collect()
    }
}
