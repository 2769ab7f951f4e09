//! Owners of entries (CL19): which session may put as an owner, and whose entries leave. Each shard has its owners as
//! entries of its own. A node also keeps them in memory, in a form that is quick to read.

use crate::core::ids::{ShardIx, Time};
use crate::core::message::{Key, Session, Store, Value};
use crate::core::own::{self, OWNER};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The first version of the protocol between nodes that knows owners.
pub const SINCE_VERSION: u32 = 3;

/// An owner in a shard, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The session that may put as this owner.
    pub session: u64,
    /// How long it may be away, in microseconds.
    pub absent_for: Time,
    /// Whether it puts no more, and its entries leave.
    pub leaves: bool,
}

const LEN: usize = 17;

impl Owner {
    /// The stored form.
    pub fn encode(self) -> Value {
        let mut value = [0; LEN];
        value[..8].copy_from_slice(&self.session.to_le_bytes());
        value[8..16].copy_from_slice(&self.absent_for.to_le_bytes());
        value[16] = self.leaves.into();
        Bytes::copy_from_slice(&value)
    }

    fn decode(value: &[u8]) -> Option<Owner> {
        let value: [u8; LEN] = value.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| value[at + i]));
        Some(Owner { session: number(0), absent_for: number(8), leaves: value[16] != 0 })
    }
}

/// The key of an owner in a shard.
pub fn key(shard: ShardIx, owner: u16) -> Key {
    own::key(OWNER, shard, &owner.to_be_bytes())
}

/// The shard and the number of an owner's key. `None`: it is another key.
pub fn parts(key: &[u8]) -> Option<(ShardIx, u16)> {
    let (shard, number) = own::parts(OWNER, key)?;
    Some((shard, u16::from_be_bytes(number.try_into().ok()?)))
}

/// An owner, as a node keeps it in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub owner: Owner,
    /// When a primary last heard from it. `None`: its time has not begun here.
    pub heard: Option<Time>,
    /// The pass over the table that looks for its entries, and whether it has found any.
    pub pass: Option<(u64, bool)>,
    /// Whether a whole pass has found none.
    pub is_empty: bool,
}

impl Known {
    /// The change of the owner that is due now, if any. `Some(None)`: the owner is to be removed.
    pub fn due(&self, now: Time) -> Option<Option<Owner>> {
        match self.owner {
            Owner { leaves: true, .. } => self.is_empty.then_some(None),
            owner => {
                let is_absent = self.heard.is_some_and(|heard| now.saturating_sub(heard) >= owner.absent_for);
                is_absent.then_some(Some(Owner { leaves: true, ..owner }))
            }
        }
    }
}

/// The owners of all shards of a node, as its table has them.
#[derive(Debug)]
pub(super) struct Owners {
    shards: Vec<BTreeMap<u16, Known>>,
    /// The number of owners that leave.
    leaving: usize,
}

impl Owners {
    pub fn new(shards: ShardIx) -> Owners {
        Owners { shards: (0..shards).map(|_| BTreeMap::new()).collect(), leaving: 0 }
    }

    /// Takes a store into account.
    pub fn see(&mut self, (key, entry): &Store) {
        let Some((shard, number)) = parts(key) else { return };
        let Some(owners) = self.shards.get_mut(usize::from(shard)) else { return };
        let leaves = |known: &Known| usize::from(known.owner.leaves);
        self.leaving -= owners.get(&number).map_or(0, leaves);
        match entry.as_ref().and_then(|entry| Owner::decode(&entry.value)) {
            // A new session's time begins now.
            Some(owner) => match owners.get_mut(&number) {
                Some(known) if known.owner.session == owner.session => known.owner = owner,
                _ => drop(owners.insert(number, Known { owner, heard: None, pass: None, is_empty: false })),
            },
            None => drop(owners.remove(&number)),
        }
        self.leaving += owners.get(&number).map_or(0, leaves);
    }

    /// Whether any owner leaves.
    pub fn any_leaves(&self) -> bool {
        self.leaving > 0
    }

    pub fn of(&self, shard: ShardIx) -> impl Iterator<Item = (u16, &Known)> {
        self.shards[usize::from(shard)].iter().map(|(number, known)| (*number, known))
    }

    pub fn of_mut(&mut self, shard: ShardIx) -> impl Iterator<Item = (u16, &mut Known)> {
        self.shards[usize::from(shard)].iter_mut().map(|(number, known)| (*number, known))
    }

    pub fn known(&self, shard: ShardIx, owner: u16) -> Option<&Known> {
        self.shards[usize::from(shard)].get(&owner)
    }

    pub fn get(&self, shard: ShardIx, owner: u16) -> Option<Owner> {
        self.known(shard, owner).map(|known| known.owner)
    }

    pub fn has_any(&self, shard: ShardIx) -> bool {
        !self.shards[usize::from(shard)].is_empty()
    }

    /// Whether this session may put.
    pub fn may_put(&self, shard: ShardIx, session: Session) -> bool {
        let owner = self.get(shard, session.owner);
        owner.is_some_and(|owner| owner.session == session.number && !owner.leaves)
    }

    /// Whether the entries of this owner leave.
    pub fn leaves(&self, shard: ShardIx, owner: u16) -> bool {
        self.get(shard, owner).is_some_and(|owner| owner.leaves)
    }

    /// Notes that a session was heard from.
    pub fn hear(&mut self, shard: ShardIx, owner: u16, now: Time) {
        if let Some(known) = self.shards[usize::from(shard)].get_mut(&owner) {
            known.heard = Some(now);
        }
    }

    /// Restarts all times of a shard, and its passes.
    pub fn begin_anew(&mut self, shard: ShardIx) {
        self.of_mut(shard).for_each(|(_, known)| {
            (known.heard, known.pass, known.is_empty) = (None, None, false);
        });
    }

    /// The node stood still for this long, and could hear nobody: that time does not count. Some owners may have been
    /// heard from since.
    pub fn forgive(&mut self, now: Time, stood_still: Time) {
        let heard =
            self.shards.iter_mut().flat_map(|owners| owners.values_mut()).flat_map(|known| &mut known.heard);
        heard.for_each(|heard| *heard = now.min(*heard + stood_still));
    }

    /// Notes that a pass has seen an entry of this owner.
    pub fn found(&mut self, shard: ShardIx, owner: u16) {
        let known = self.shards[usize::from(shard)].get_mut(&owner);
        if let Some((_, has_found)) = known.and_then(|known| known.pass.as_mut()) {
            *has_found = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::message::{Entry, Life};

    fn entry(owner: Option<Owner>) -> Store {
        (key(0, 7), owner.map(|owner| Entry { value: owner.encode(), life: Life::Lasting }))
    }

    /// What is stored of an owner is what a node has in mind; and time in which it stood still is nobody's absence.
    #[test]
    fn owners_are_seen_as_they_are_stored() {
        let (mut owners, session) = (Owners::new(1), |number| Session { owner: 7, number });
        let heard = |owners: &Owners| owners.of(0).next().and_then(|(_, known)| known.heard);
        owners.see(&(Bytes::from_static(b"a client's"), None));
        let owner = Owner { session: 1, absent_for: 10, leaves: false };
        owners.see(&entry(Some(owner)));
        assert!(owners.may_put(0, session(1)) && !owners.may_put(0, session(2)) && !owners.leaves(0, 7));
        owners.hear(0, 7, 100);
        owners.forgive(160, 50);
        assert_eq!(heard(&owners), Some(150));
        // Heard after it stood still.
        owners.hear(0, 7, 200);
        owners.forgive(201, 50);
        assert_eq!(heard(&owners), Some(201));
        // A store of this session; of another one; of none.
        owners.see(&entry(Some(Owner { leaves: true, ..owner })));
        assert!(owners.leaves(0, 7) && !owners.may_put(0, session(1)));
        assert_eq!(heard(&owners), Some(201));
        owners.see(&entry(Some(Owner { session: 2, ..owner })));
        assert!(owners.may_put(0, session(2)) && heard(&owners).is_none());
        owners.see(&entry(None));
        assert!(!owners.has_any(0) && owners.get(0, 7).is_none());
        assert_eq!(parts(&key(3, 65_534)), Some((3, 65_534)));
        assert_eq!(parts(&own::key(own::RESULT, 3, &[0; 8])), None);
    }
}
