//! Which segments give memory to values (`giving.rs`).

/// Who gives.
#[derive(Debug, Default)]
pub(super) struct Givers {
    /// The keys of the two segments, as those of their parent.
    pub chosen: Option<ChosenPair>,
    /// The number of the memory at which the next choice begins.
    pub hand: u32,
    /// Whose entries leave next.
    pub part: u32,
    /// Choices one after the other of which no entry could leave.
    pub vain: u32,
}

/// Two segments that are to be one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChosenPair {
    /// What the hashes of both have in common.
    pub prefix: u32,
    /// The depth of the two.
    pub depth: u32,
    /// They are merged below this many hundredths.
    pub at: u64,
    /// Their merge has begun.
    pub is_merging: bool,
}
