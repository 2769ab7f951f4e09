//! Entries of a node's shards that leave at their end (CL13), or with their owner (CL19).

use crate::core::context::Context;
use crate::core::ids::Time;
use crate::core::message::Effect;
use crate::core::shard::Replica;
use crate::core::table::{OwnedKey, Table};

/// The most ended entries that one turn looks at.
const EXPIRED_AT_ONCE: usize = 4_096;

/// Passes over the table that look for entries of owners that leave.
#[derive(Debug)]
pub(super) struct Leaving<C> {
    pass: Option<Pass<C>>,
    /// The number of passes that have begun.
    passes: u64,
    /// When it last looked for absent owners.
    looked: Option<Time>,
}

/// A pass over the whole table, with the place where it continues.
#[derive(Debug)]
struct Pass<C> {
    from: Option<C>,
}

impl<C> Leaving<C> {
    pub fn new() -> Leaving<C> {
        Leaving { pass: None, passes: 0, looked: None }
    }

    /// Does what is due.
    pub fn tick<T: Table<Cursor = C>>(&mut self, cx: &mut Context<T>, replicas: &mut [Replica<T>]) {
        // Even if it is primary of nothing: the table then forgets the ends of entries that have left.
        for (shard, key) in cx.memory.table.ended(EXPIRED_AT_ONCE) {
            if let Some(primary) = replicas.get_mut(usize::from(shard)).and_then(Replica::primary_mut) {
                primary.expire(cx, key, Effect::Expired);
            }
        }
        self.remove_owned(cx, replicas);
        if cx.is_good() && cx.is_due(self.looked, cx.timing.beat) {
            self.looked = Some(cx.now);
            let primaries = replicas.iter_mut().filter_map(Replica::primary_mut);
            primaries.for_each(|primary| primary.look_for_absent(cx));
        }
    }

    /// Removes some entries of owners that leave, and those owners of which a whole pass has found none. Returns
    /// whether there is more to do now.
    pub fn remove_owned<T>(&mut self, cx: &mut Context<T>, replicas: &mut [Replica<T>]) -> bool
    where
        T: Table<Cursor = C>,
    {
        if self.pass.is_none() {
            if !cx.memory.owners.any_leaves() {
                return false;
            }
            self.passes += 1;
            for primary in replicas.iter().filter_map(Replica::primary) {
                if !primary.may_change(cx) {
                    continue;
                }
                for (_, known) in cx.memory.owners.of_mut(primary.shard()) {
                    if known.owner.leaves {
                        known.pass = Some((self.passes, false));
                        self.pass = Some(Pass { from: None });
                    }
                }
            }
        }
        let Some(Pass { from }) = &mut self.pass else { return false };
        let (keys, next) = cx.memory.table.walk_owned(from.take());
        for OwnedKey { shard, key, owner } in keys {
            if !cx.memory.owners.leaves(shard, owner) {
                continue;
            }
            cx.memory.owners.found(shard, owner);
            if let Some(primary) = replicas.get_mut(usize::from(shard)).and_then(Replica::primary_mut) {
                primary.expire(cx, key, Effect::OwnerGone);
            }
        }
        if next.is_some() {
            *from = next;
            return true;
        }
        self.pass = None;
        for primary in replicas.iter_mut().filter_map(Replica::primary_mut) {
            primary.remove_owners(cx, self.passes);
        }
        false
    }
}
