//! A change under way.

use crate::core::context::Context;
use crate::core::ids::ShardIx;
use crate::core::message::{
    ChannelId, Effect, Key, Kind, Outcome, Peer, Reply, Request, Store, Wanted, value_len,
};
use crate::core::table::Table;
use smallvec::SmallVec;

/// A change, or an outcome without one, that waits for the counted replicas.
#[derive(Debug)]
pub(super) struct Change {
    pub peer: Peer,
    pub request: Request,
    pub stores: SmallVec<[Store; 2]>,
    pub outcome: Outcome,
    pub effect: Effect,
    /// Bytes of room that it frees when it is done.
    pub frees: u64,
    /// Its number in each channel.
    pub numbers: SmallVec<[(ChannelId, u64); 2]>,
}

impl Change {
    /// A change by the node itself, for whose end nobody waits.
    pub fn own(shard: ShardIx, copy: u64, kind: Kind, store: Store, effect: Effect, frees: u64) -> Change {
        let request = Request { copy, id: None, shard, key: store.0.clone(), kind, wanted: Wanted::Usual };
        Change {
            peer: Peer::SELF,
            request,
            stores: std::iter::once(store).collect(),
            outcome: Outcome::Done,
            effect,
            frees,
            numbers: SmallVec::new(),
        }
    }

    /// The keys that this change holds: no other change of them begins before it has ended. A change with no effect
    /// holds its key, too: its outcome is right only as long as the key stays.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.stores.iter().map(|store| &store.0).chain([&self.request.key])
    }

    /// The room that was held for it.
    pub fn taken<T: Table>(&self, cx: &mut Context<T>) -> u64 {
        self.stores.iter().fold(0, |taken, store| {
            let was = cx.memory.cost_now(&store.0);
            taken + cx.memory.cost(&store.0, value_len(store)).saturating_sub(was)
        })
    }

    pub fn reply(&self, outcome: Outcome) -> Reply {
        Reply { copy: self.request.copy, ended: Ok(outcome) }
    }
}
