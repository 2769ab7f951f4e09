//! What decided GETs: so that a run which tests nothing is seen to test nothing.

use std::collections::BTreeMap;
use std::fmt;

/// What a GET's answer may rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Memory could show it more than one thing.
    Choice,
    /// A slot that was being written sent it round again.
    Torn,
    /// A pass took too long by the clock, and found nothing of a key that was there all the while.
    Late,
    /// A pass saw a new ghost, and found nothing of a key that was there all the while.
    NewGhost,
    /// It answered Absent in spite of a ghost, which the pass before had seen.
    OldGhost,
    /// A counter of begun moves went up during a pass that found nothing of a key that was there all the while.
    Counter,
    /// The home's filter sent it beyond the primary window, in vain.
    Filter,
    /// It found the key beyond the primary window.
    DisplacedHit,
    /// It found the key in an overflow block.
    BlockHit,
    /// It read an overflow block that another home was using by then.
    BlockReused,
    /// It began before a server had taken the region over, and ended after the one before was killed.
    Takeover,
    /// A pass began after the next one's server had done something else: the client had lost its processor.
    Slept,
    /// By the real shm fabric, beside server threads that were at work.
    Shm,
    /// Not a GET: two server threads changed keys of one chain at a time.
    TwoInChain,
}

/// Counts of answered GETs, and of what decided them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// GETs that had an answer.
    pub gets: u64,
    by: BTreeMap<By, u64>,
}

impl Decided {
    /// How many were decided so.
    pub fn by(&self, what: By) -> u64 {
        self.by.get(&what).copied().unwrap_or(0)
    }

    /// One more, if it is so.
    pub(super) fn count(&mut self, what: By, is_so: bool) {
        *self.by.entry(what).or_default() += u64::from(is_so);
    }
}

impl std::ops::AddAssign for Decided {
    fn add_assign(&mut self, other: Decided) {
        self.gets += other.gets;
        other.by.into_iter().for_each(|(what, more)| *self.by.entry(what).or_default() += more);
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GETs:", self.gets)?;
        self.by.iter().try_for_each(|(what, count)| write!(f, " {what:?} {count}"))
    }
}
