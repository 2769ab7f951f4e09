//! Which segments give memory to values (`giving.rs`).

/// The state of the search for segments that give memory.
#[derive(Debug, Default)]
pub(super) struct Givers {
    /// The two chosen segments.
    pub chosen: Option<ChosenPair>,
    /// The number of the memory at which the next search begins.
    pub hand: u32,
    /// The part of the policies whose entries leave next.
    pub part: u32,
    /// The number of consecutive choices of which no entry could leave.
    pub vain: u32,
}

/// Two segments that are to be merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChosenPair {
    /// The common prefix of their keys' hashes.
    pub prefix: u32,
    /// The depth of the two.
    pub depth: u32,
    /// They are merged below this many hundredths of the design load.
    pub at: u64,
    /// Their merge has begun.
    pub is_merging: bool,
}
