//! Switches that break one rule of the index each, to show that its tests notice.
//!
//! Without the feature `faults`, `broken` is `false` at compile time and costs nothing. With it, a test breaks a rule on
//! its own thread.

/// A rule of docs/KV-CACHE.md that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// H1: holders that may have any blocks are jumped over.
    JumpClosed,
    /// H2: a stretch whose ends differ is not halved.
    HalveStretch,
    /// H3: no lookup is made block by block.
    WalkSome,
    /// H3: a difference at the first look is enough.
    LookTwice,
    /// H4: a holder of whom events are missing is jumped over.
    GapStops,
    /// H5: nobody looks who is not present any more.
    AbsentGoes,
    /// H6: a holder is live before it is present.
    PresenceFirst,
    /// H7: blocks are added for a holder that is gone.
    AbsentAdds,
}

#[cfg(feature = "faults")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
#[cfg(feature = "faults")]
pub fn breaks(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Whether this rule is broken on this thread.
#[inline(always)]
pub(crate) fn broken(rule: Rule) -> bool {
    #[cfg(feature = "faults")]
    return BROKEN.get() == Some(rule);
    #[cfg(not(feature = "faults"))]
    {
        let _ = rule;
        false
    }
}
