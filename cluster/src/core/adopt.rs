//! How an operator goes on with an etcd that was restored from a backup (CL17).

use crate::core::state::{Adoption, NodeIds, Notes, ShardIx, ShardState};
use crate::faults::{Rule, broken};

/// For which etcd the keys are good from then on: the one with this id. `backup` is what it says; `known` what *all*
/// nodes have noted; `seconds` what time it is, since 1970.
pub fn adoption<'n>(
    backup: Adoption,
    etcd: u64,
    seconds: u64,
    known: impl IntoIterator<Item = &'n Notes>,
) -> Adoption {
    // The backup may be from before an adoption, of which no node has heard yet. The time is above that one's number,
    // too, unless clocks went back.
    let last = known.into_iter().map(|notes| notes.adoption.number).chain([backup.number]).max();
    Adoption { number: seconds.max(last.unwrap_or(0) + 1), etcd }
}

/// A shard's state from then on: the primary of the newest that any node has noted begins a new epoch, alone.
///
/// What the restored etcd says counts only where no node knows anything. It may be old, or a transaction from before
/// may have come to it. What nobody has noted, nobody has acted on.
pub fn shard<'n>(
    backup: &'n ShardState,
    shard: ShardIx,
    known: impl IntoIterator<Item = &'n Notes>,
) -> ShardState {
    let known = known.into_iter().filter_map(|notes| notes.newest.get(usize::from(shard)));
    let newest = known.max_by_key(|state| (state.epoch, state.revision)).filter(|state| state.epoch > 0);
    let newest = newest.unwrap_or(backup);
    let named = if broken(Rule::BackupBelieved) { backup } else { newest };
    let epoch = newest.epoch.max(backup.epoch);
    ShardState {
        revision: newest.revision.max(backup.revision) + 1,
        // Whom nobody ever served stays so.
        epoch: epoch + u64::from(epoch > 0),
        primary: named.primary,
        in_sync: named.primary.map(NodeIds::of).unwrap_or_default(),
        // A copy that was handed over may still be under leases.
        waits: true,
    }
}
