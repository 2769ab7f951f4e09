//! Counts what decided GETs. A run that tests nothing shows in these counts.

use std::collections::BTreeMap;
use std::fmt;

/// What a GET's answer may rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Memory could show the GET more than one thing.
    Choice,
    /// A slot that was being written made the GET look again.
    Torn,
    /// A pass took too long by the clock, and found nothing of a key that was there all the time.
    Late,
    /// A pass saw a new ghost, and found nothing of a key that was there all the time.
    NewGhost,
    /// The GET answered Absent despite a ghost, because the previous pass had seen it.
    OldGhost,
    /// A counter of begun moves went up during a pass that found nothing of a key that was there
    /// all the time.
    Counter,
    /// The home's filter sent the GET beyond the primary window, and the key was not there.
    Filter,
    /// The GET found the key beyond the primary window.
    DisplacedHit,
    /// The GET found the key in an overflow block.
    BlockHit,
    /// The GET read an overflow block that another home was using by then.
    BlockReused,
    /// The GET began before a takeover was complete, and ended after the old server was killed.
    Takeover,
    /// The server did something else between two passes, because the client had lost its processor.
    Slept,
    /// A hint named the slot in which the GET found the key.
    Hint,
    /// Hints named only slots in which the GET did not find the key.
    WrongHint,
    /// A GET by the real shm fabric, beside server threads at work.
    Shm,
    /// Not a GET: two server threads changed keys of one chain at the same time.
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
    /// How many GETs `what` decided.
    pub fn by(&self, what: By) -> u64 {
        self.by.get(&what).copied().unwrap_or(0)
    }

    /// Counts `what` once if `is_so`.
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
