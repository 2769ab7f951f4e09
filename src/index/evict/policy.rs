//! The interface of an eviction policy.

use crate::layout::hash::First;
use std::fmt;

/// Entries that a policy looks at before it takes one that was read. It never looks at all of them (Z4).
pub(super) const LOOKS_MAX: usize = 64;

/// What the table says of an entry to a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nobody has read it since the last look.
    Unread,
    /// Somebody has read it since.
    Read,
    /// It must stay.
    Pinned,
}

/// How much speaks for keeping an entry that was not read. The entry of the lowest rank goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The policy has no record of it.
    Unknown,
    /// It came a short time ago, and may be one that is never read.
    New,
    /// It has been here for longer.
    Kept,
}

/// Chooses the entry that is evicted next. It knows entries by their keys' hashes; two keys with one hash are one to
/// it.
pub trait Policy: fmt::Debug + Send {
    /// An entry with this hash came.
    fn came(&mut self, hash: First);

    /// An entry with this hash left, for whatever reason.
    fn left(&mut self, hash: First);

    /// Takes out the record of the entry that is evicted next. `look` tells whether an entry was read, or is pinned; it
    /// is called for at most 64 of them. `None`: none of these may go.
    fn victim(&mut self, look: &mut dyn FnMut(First) -> Sight) -> Option<First>;

    /// How much speaks for keeping an entry.
    fn rank(&self, hash: First) -> Rank;

    /// How many entries it has records of.
    fn entries(&self) -> usize;

    /// How many records it has, including those of entries that have left.
    fn records(&self) -> usize {
        self.entries()
    }
}
