//! How an operator continues with an etcd that was restored from a backup (CL17).

use crate::core::state::{Adoption, NodeIds, Notes, ShardIx, ShardState};
use crate::faults::{Rule, broken};

/// The adoption of the restored etcd, whose cluster id is `etcd`. `backup` is the adoption in the backup, `known` are
/// the notes of *all* nodes, and `seconds` is the time since 1970.
pub fn adoption<'n>(
    backup: Adoption,
    etcd: u64,
    seconds: u64,
    known: impl IntoIterator<Item = &'n Notes>,
) -> Adoption {
    // The backup may be from before an adoption of which no node has heard yet. The time is above the number of that
    // adoption, too, unless clocks went back.
    let last = known.into_iter().map(|notes| notes.adoption.number).chain([backup.number]).max();
    Adoption { number: seconds.max(last.unwrap_or(0) + 1), etcd }
}

/// A shard's state after the adoption. The primary of the newest state that any node has noted begins a new epoch,
/// alone.
///
/// The restored etcd's own state counts only if no node knows anything. It may be old, or a transaction from before may
/// have reached it. A state that no node has noted was never acted on.
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
        // A shard that nobody ever served stays so.
        epoch: epoch + u64::from(epoch > 0),
        primary: named.primary,
        in_sync: named.primary.map(NodeIds::of).unwrap_or_default(),
        // Leases may still cover a copy that was handed over.
        waits: true,
    }
}
