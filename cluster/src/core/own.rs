//! The cluster's own keys in nodes' tables. Those of a shard are entries beside the keys that they are about. So they
//! are replicated, walked and as durable as a key's value.

use crate::core::ids::ShardIx;
use crate::core::message::Key;
use bytes::Bytes;

/// The prefix of all of them.
pub const OWN: &[u8] = b"\0oneread\0";

/// The length of the head of a shard's own key: the prefix, a byte for the kind, and two for the shard. A number
/// follows.
const HEAD: usize = OWN.len() + 1 + 2;

/// Kinds, and bytes of their numbers.
pub(super) const RESULT: (u8, usize) = (b'r', 8);
pub(super) const OWNER: (u8, usize) = (b'o', 2);

/// The key of this kind with this number.
pub(super) fn key(kind: (u8, usize), shard: ShardIx, number: &[u8]) -> Key {
    let mut key = Vec::with_capacity(HEAD + number.len());
    key.extend_from_slice(OWN);
    key.push(kind.0);
    key.extend_from_slice(&shard.to_be_bytes());
    key.extend_from_slice(number);
    Bytes::from(key)
}

/// The shard and the number in a key of this kind. `None`: it is another key.
#[inline]
pub(super) fn parts(kind: (u8, usize), key: &[u8]) -> Option<(ShardIx, &[u8])> {
    let rest = key.strip_prefix(OWN).filter(|_| key.len() == HEAD + kind.1)?;
    (rest[0] == kind.0).then(|| (ShardIx::from_be_bytes([rest[1], rest[2]]), &rest[3..]))
}

/// The shard of one of the cluster's own keys. `None`: it is another key, or a node's own.
#[inline]
pub fn shard_of(key: &[u8]) -> Option<ShardIx> {
    if key.starts_with(OWN) { named(key) } else { None }
}

/// The shard that a key names. Clients' keys do not come here.
#[cold]
fn named(key: &[u8]) -> Option<ShardIx> {
    let shard = |kind| parts(kind, key).map(|(shard, _)| shard);
    shard(RESULT).or_else(|| shard(OWNER))
}
