//! Outcomes of requests with an id, kept as entries beside the keys they are of (CL15): what is replicated, walked and
//! as durable as a key's value is so for them, too.

use crate::core::message::{Key, Outcome, Value};
use crate::core::state::{ShardIx, Time};
use bytes::Bytes;

/// Keys of the cluster's own in a node's table begin so.
pub const OWN: &[u8] = b"\0oneread\0";

/// The key of a lane's last outcome.
#[derive(Clone, Debug)]
pub struct ResultKey(pub Key);

const TAG: u8 = b'r';
const KEY_LEN: usize = OWN.len() + 1 + 2 + 8;
/// Bytes of an outcome.
pub const LEN: usize = 9;
/// How long an outcome is kept, where entries have ends: a day, in microseconds. No copy of a request comes as late.
pub const KEPT: Time = 86_400_000_000;

impl ResultKey {
    /// Of a lane, in a shard.
    pub fn new(shard: ShardIx, lane: u64) -> ResultKey {
        let mut key = Vec::with_capacity(KEY_LEN);
        key.extend_from_slice(OWN);
        key.push(TAG);
        key.extend_from_slice(&shard.to_be_bytes());
        key.extend_from_slice(&lane.to_be_bytes());
        ResultKey(Bytes::from(key))
    }
}

/// Whether a key is that of an outcome.
pub fn is_result(key: &[u8]) -> bool {
    shard_of(key).is_some()
}

/// The shard of an outcome's key. `None`: it is another key.
#[inline]
pub fn shard_of(key: &[u8]) -> Option<ShardIx> {
    let rest = key.strip_prefix(OWN).filter(|_| key.len() == KEY_LEN)?;
    (rest[0] == TAG).then(|| ShardIx::from_be_bytes([rest[1], rest[2]]))
}

/// An outcome, as it is kept.
pub fn encode(number: u64, outcome: Outcome) -> Value {
    let mut value = [0; LEN];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8] = match outcome {
        Outcome::Done => 0,
        Outcome::Absent => 1,
        Outcome::Exists => 2,
        Outcome::Differs => 3,
        Outcome::Full => 4,
    };
    Bytes::copy_from_slice(&value)
}

/// An outcome and its request's number. `None`: these are other bytes.
pub fn decode(value: &[u8]) -> Option<(u64, Outcome)> {
    let (number, outcome) = value.split_at_checked(8)?;
    let outcome = match outcome {
        [0] => Outcome::Done,
        [1] => Outcome::Absent,
        [2] => Outcome::Exists,
        [3] => Outcome::Differs,
        [4] => Outcome::Full,
        _ => return None,
    };
    Some((u64::from_le_bytes(number.try_into().ok()?), outcome))
}
