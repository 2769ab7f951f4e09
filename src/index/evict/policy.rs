//! What a policy is asked.

use crate::layout::hash::First;
use std::fmt;

/// Entries that a policy looks at before it takes one that was read: it never goes through all (Z4).
pub(super) const LOOKS_MAX: usize = 64;

/// What is seen of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nobody has read it since it was looked at last.
    Unread,
    /// Somebody has.
    Read,
    /// It must stay.
    Pinned,
}

/// How much there is for keeping an entry, if it was not read. The least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The policy has no record of it.
    Unknown,
    /// It came a short time ago, and may be one that is never read.
    New,
    /// It has been here for longer.
    Kept,
}

/// Which entry goes next. It knows entries by their keys' hashes; two keys with one hash are one to it.
pub trait Policy: fmt::Debug + Send {
    /// An entry with this hash came.
    fn came(&mut self, hash: First);

    /// It left, whyever.
    fn left(&mut self, hash: First);

    /// Takes the record of the entry that goes next out. `look` tells what is seen of an entry, of at most
    /// 64 of them. `None`: none of these may go.
    fn victim(&mut self, look: &mut dyn FnMut(First) -> Sight) -> Option<First>;

    /// How much there is for keeping an entry.
    fn rank(&self, hash: First) -> Rank;

    /// How many entries it has records of.
    fn entries(&self) -> usize;

    /// How many records it has, also of entries that have left.
    fn records(&self) -> usize {
        self.entries()
    }
}
