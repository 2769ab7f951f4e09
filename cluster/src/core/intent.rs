//! A change of several entries is made by several stores. A node that is killed between two of them leaves none half made:
//! it says before what it is about to do, and goes on with that when it begins again (CL15).

use crate::core::message::{Entry, Key, Life, Store, Value};
use rapidhash::v3::rapidhash_v3;
use serde::{Deserialize, Serialize};

/// What tells a value, without the value.
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
    /// Whose entry changes.
    pub key: Key,
    /// The value that it gets. `None`: it goes.
    value: Option<Sum>,
    life: Life,
    /// The beat before it: with another one it is long over.
    pub beat: u64,
    outcome: Store,
}

impl Intent {
    /// Of a change after this beat. `None`: it is one store, which is made or not.
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

    /// What is left to be stored, if the key has this value. Nothing, if its own store was not made: then nobody has seen
    /// anything of the change.
    ///
    /// A value that the key had before may be the same. Then the change is made: that is as well.
    pub fn rest(&self, now: Option<Value>) -> Vec<Store> {
        if self.value != now.as_ref().map(Sum::of) {
            return Vec::new();
        }
        // The life may be that of before.
        let entry = now.map(|value| (self.key.clone(), Some(Entry { value, life: self.life })));
        entry.into_iter().chain([self.outcome.clone()]).collect()
    }
}
