//! Switches that break one rule of links each, to show that the tests notice (docs/KV-CACHE.md, "Links").

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// H8: who stores a block changes the stamp of its common link.
    StampStays,
    /// H9: a link counts for those who have its block.
    HasByLink,
    /// H10: who means something else has an own link.
    OneMeaning,
    /// H11: who takes the common link has no own one.
    OwnStays,
    /// H12: a link is taken if nobody has its block.
    TakeUsed,
    /// H13: what the old holder has lost is not copied.
    CopyBlind,
    /// H14: own links are copied before blocks.
    BlocksFirst,
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or none.
#[cfg(test)]
pub fn breaks(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Whether this rule is broken on this thread.
#[inline(always)]
pub fn broken(rule: Rule) -> bool {
    #[cfg(test)]
    return BROKEN.get() == Some(rule);
    #[cfg(not(test))]
    {
        let _ = rule;
        false
    }
}
