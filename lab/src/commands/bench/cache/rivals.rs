//! Caches that see every request: the library's own policies, the exact ones of textbooks, and two libraries.

use oneread::Evict;
use oneread::internals::index::{Policy, Sight, policy};
use oneread::internals::layout::hash::First;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// The part of these requests that a cache of so many entries answers.
pub fn hit_ratio(keys: &[u64], mut asks: impl FnMut(usize, u64) -> bool) -> f64 {
    let hits = keys.iter().enumerate().filter(|&(nth, &key)| asks(nth, key)).count();
    hits as f64 / keys.len().max(1) as f64
}

/// The same of a policy of the library, which sees each read, or none.
pub fn by_policy(which: Evict, sees: bool, entries: usize, keys: &[u64]) -> f64 {
    let mut policy: Box<dyn Policy> = policy(which);
    let (mut there, mut read) = (FxHashSet::default(), FxHashSet::default());
    hit_ratio(keys, |_, key| {
        if there.contains(&key) {
            if sees {
                read.insert(key);
            }
            return true;
        }
        if there.len() >= entries {
            let look = &mut |hash: First| if read.remove(&hash.0) { Sight::Read } else { Sight::Unread };
            let gone = policy.victim(look).expect("nothing is pinned");
            there.remove(&gone.0);
        }
        there.insert(key);
        policy.came(First(key));
        false
    })
}

/// Exact LRU; or FIFO, which does not see reads.
pub fn by_age(sees: bool, entries: usize, keys: &[u64]) -> f64 {
    let (mut used, mut order) = (FxHashMap::default(), BTreeSet::new());
    hit_ratio(keys, |now, key| {
        let before = used.get(&key).copied();
        if let Some(before) = before {
            if sees {
                order.remove(&(before, key));
                order.insert((now, key));
                used.insert(key, now);
            }
            return true;
        }
        if used.len() >= entries
            && let Some((_, oldest)) = order.pop_first()
        {
            used.remove(&oldest);
        }
        used.insert(key, now);
        order.insert((now, key));
        false
    })
}

/// Belady's: what is asked for last of all leaves. It may be the newcomer.
pub fn by_the_future(entries: usize, keys: &[u64]) -> f64 {
    let mut next = vec![usize::MAX; keys.len()];
    let mut seen = FxHashMap::default();
    for (nth, key) in keys.iter().enumerate().rev() {
        next[nth] = seen.insert(*key, nth).unwrap_or(usize::MAX);
    }
    let (mut due, mut order) = (FxHashMap::default(), BTreeSet::new());
    hit_ratio(keys, |now, key| {
        let before = due.insert(key, next[now]);
        if let Some(before) = before {
            order.remove(&(before, key));
        }
        order.insert((next[now], key));
        if order.len() > entries
            && let Some((_, last)) = order.pop_last()
        {
            due.remove(&last);
        }
        before.is_some()
    })
}

/// The crate `quick_cache`.
pub fn by_quick_cache(entries: usize, keys: &[u64]) -> f64 {
    let cache = quick_cache::sync::Cache::new(entries);
    hit_ratio(keys, |_, key| {
        let is_there = cache.get(&key).is_some();
        if !is_there {
            cache.insert(key, ());
        }
        is_there
    })
}

/// The crate `moka`.
pub fn by_moka(entries: usize, keys: &[u64]) -> f64 {
    let cache = moka::sync::Cache::new(entries as u64);
    hit_ratio(keys, |_, key| {
        let is_there = cache.get(&key).is_some();
        if !is_there {
            cache.insert(key, ());
        }
        is_there
    })
}
