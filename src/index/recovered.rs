//! What a takeover found, or why there was none.

use crate::layout::superblock::SuperblockError;

/// Why a region could not be taken over.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoverError {
    /// The superblock is not usable.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The server that made the region died before the table was ready.
    #[error(
        "the server that was making this region died before it was ready; remove the file and serve again"
    )]
    Unfinished,
    /// The start was cancelled ([`ServerConfig::cancel`](crate::ServerConfig::cancel)). The next server takes
    /// the region over as from one that was killed.
    #[error("the takeover was cancelled; the next start takes the table over")]
    Cancelled,
    /// An entry of the directory of a table that grows is damaged, so some keys cannot be found.
    #[error(
        "entry {number} of the table's directory is damaged; remove the file, serve again, and load what was dumped or stored elsewhere"
    )]
    Directory {
        /// The number of the entry.
        number: u32,
    },
}

/// What was found in a region that was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Keys in the table.
    pub keys: u64,
    /// Slots that a writer left half written. Each has the content again that it had before. In a
    /// damaged region a slot may be freed instead.
    pub torn: u64,
    /// Keys that stood in two slots. One copy was freed.
    pub doubled: u64,
    /// Keys that stood where no GET looks for them, or whose values were nowhere. Their slots were freed.
    /// Only in a damaged region.
    pub misplaced: u64,
    /// Links that led nowhere, or into another chain. They were cut. Only in a damaged region.
    pub cut: u64,
    /// Whether the last server had stopped and handed the table over. Then nothing was searched.
    pub handed_over: bool,
}

impl Recovered {
    pub(crate) fn add(&mut self, more: Recovered) {
        let Recovered { keys, torn, doubled, misplaced, cut, .. } = more;
        self.keys += keys;
        self.torn += torn;
        self.doubled += doubled;
        self.misplaced += misplaced;
        self.cut += cut;
    }
}
