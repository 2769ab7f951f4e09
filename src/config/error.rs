//! Why a table cannot be made from a configuration.

use super::evict::Evict;
use crate::base::units::{bytes, time};
use crate::layout::extent::{HEAP_BYTES_MAX, VALUE_MAX};
use crate::layout::geometry::GRACE_MAX;
use crate::layout::slot::KEY_MAX;
use crate::placement::families::presets;
use std::io;
use std::time::Duration;

/// Why a table cannot be made from a [`Config`](crate::Config).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No preset of that name.
    #[error("unknown layout {given:?}; there are: {}", preset_names())]
    UnknownLayout {
        /// What was asked for.
        given: String,
    },
    /// No policy of that name.
    #[error("unknown policy {given:?}; there are: {}", policy_names())]
    UnknownPolicy {
        /// What was asked for.
        given: String,
    },
    /// A log is not synced so.
    #[error("a log is not synced {given:?}; there are: always, 1s, never")]
    UnknownFsync {
        /// What was asked for.
        given: String,
    },
    /// A capacity of zero.
    #[error("a table for 0 {unit} cannot hold anything; ask for 1 or more")]
    ZeroCapacity {
        /// "keys" or "slots".
        unit: &'static str,
    },
    /// Less memory than a table that grows begins with.
    #[error(
        "{} are too few for a table that grows, with such keys and values: a segment, or two of the longest values, need {need} bytes ({}); allow that much, or lower `Config::value_max`",
        bytes(*given),
        bytes(*need)
    )]
    TooSmall {
        /// What was allowed, in bytes.
        given: u64,
        /// What one segment and its directory take, or two blocks of values that do not fit their slots.
        need: u64,
    },
    /// More slots than the layout can address.
    #[error(
        "{given} {unit} are more than a table of this layout can have, at most {max} slots; split the keys over several tables"
    )]
    TooLarge {
        /// What was asked for.
        given: u64,
        /// "keys" or "slots".
        unit: &'static str,
        /// Most main slots possible.
        max: u64,
    },
    /// A key length out of range.
    #[error(
        "`Config::key_max` is {given} bytes, allowed is 1 to {KEY_MAX}; shorten the keys, as by hashing them"
    )]
    KeyMax {
        /// What was asked for.
        given: usize,
    },
    /// Key and value together do not fit into the largest slot. Longer values need not.
    #[error("a key of {key_inline} and a value of {inline_max} bytes do not fit into the largest slot, which holds {room}; lower `Config::inline_max` to {}, or leave it out", room - key_inline)]
    InlineMax {
        /// Longest key asked for that stands in its slot.
        key_inline: usize,
        /// Longest value asked for that stands in its slot.
        inline_max: usize,
        /// Bytes of payload in the largest slot.
        room: usize,
    },
    /// Values may be longer than any table takes.
    #[error(
        "`Config::value_max` is {given} bytes, allowed is 0 to {VALUE_MAX}; store longer values in parts"
    )]
    LongestValue {
        /// Longest value asked for.
        given: usize,
    },
    /// Too little memory, or too much, for values that do not fit their slots.
    #[error(
        "`Config::heap_bytes` is {given}; values of up to {value_max} bytes that do not fit their slots need {need} to {HEAP_BYTES_MAX}; set it to one of these"
    )]
    HeapBytes {
        /// Longest value asked for.
        value_max: usize,
        /// What was asked for.
        given: u64,
        /// The least that is of use.
        need: u64,
    },
    /// A grace time out of range.
    #[error("`Config::grace` is {}, allowed is 0 to {}; 2 ms suit most networks", time(*given), time(GRACE_MAX))]
    Grace {
        /// What was asked for.
        given: Duration,
    },
    /// Entries are to have owners, and no life that would say whose they are.
    #[error("`Config::owners` needs `Config::life`; ask for both, or for neither")]
    Owners,
    /// A number that is impossible for a layout of this family.
    #[error(
        "a {family} layout with {field} = {value} is impossible, allowed is {allowed}; there are: {}",
        preset_names()
    )]
    Impossible {
        /// Name of the family.
        family: &'static str,
        /// Name of the number.
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// The operating system gave no random bytes for the table's number and the seeds.
    #[error(
        "no random bytes for the table's number and its hash seeds; see what the system's random source lacks"
    )]
    Random {
        /// The operating system's answer.
        source: io::Error,
    },
}

fn policy_names() -> String {
    Evict::ALL.map(|(_, name)| name).join(", ")
}

pub(super) fn preset_names() -> String {
    presets().map(|p| format!("{}:{}", p.layout.family.name(), p.name)).collect::<Vec<_>>().join(", ")
}
