//! Outcomes of requests with an id, stored as entries (CL15).

use crate::core::ids::{ShardIx, Time};
use crate::core::message::{Key, Outcome, Value};
use crate::core::own::{self, RESULT};
use bytes::Bytes;

/// The key of a lane's last outcome.
#[derive(Clone, Debug)]
pub struct ResultKey(pub Key);

/// Bytes of an outcome.
pub const LEN: usize = 9;
/// How long an outcome is kept, if entries have ends: a day, in microseconds. No copy of a request comes that late.
pub const KEPT: Time = 86_400_000_000;

impl ResultKey {
    /// The key of a lane, in a shard.
    pub fn new(shard: ShardIx, lane: u64) -> ResultKey {
        ResultKey(own::key(RESULT, shard, &lane.to_be_bytes()))
    }
}

/// Whether a key is that of an outcome.
pub fn is_result(key: &[u8]) -> bool {
    own::parts(RESULT, key).is_some()
}

/// The stored form of an outcome.
pub fn encode(number: u64, outcome: Outcome) -> Value {
    let mut value = [0; LEN];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8] = match outcome {
        Outcome::Done => 0,
        Outcome::Absent => 1,
        Outcome::Exists => 2,
        Outcome::Differs => 3,
        Outcome::Full => 4,
        // No request with an id has this outcome.
        Outcome::Is(_) => 5,
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
