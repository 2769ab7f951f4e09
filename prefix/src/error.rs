//! What goes wrong, and what to do about it.

use oneread::error::{ConnectError, FeedError, GetError, MutateError, PutError};

/// What was given as digests is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// No digest has this width.
    #[error(
        "a digest has 8, 16, 32 or 36 bytes, and {given} were given; give numbers 64 bits, and take `Digests::texts` for other lengths"
    )]
    Width {
        /// The width given.
        given: usize,
    },
    /// There are bytes behind the last digest.
    #[error("{bytes} bytes are no whole number of digests of {width}; was the buffer cut?")]
    Length {
        /// Bytes given.
        bytes: usize,
        /// The width given.
        width: usize,
    },
    /// Digests of several widths.
    #[error(
        "digest {number} has {given} bytes and the first one {width}; give each width in a call of its own"
    )]
    Mixed {
        /// Its number, from 0.
        number: usize,
        /// Its width.
        given: usize,
        /// The first one's.
        width: usize,
    },
}

/// No hashes of blocks were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// A block has no tokens.
    #[error("blocks have 0 tokens each; give the engine's block size")]
    BlockSize,
}

/// Why an index did not answer, or did not change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// What was given as digests is none. Nothing was done.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// As many results, locations or numbers are needed as there are digests. Nothing was done.
    #[error("{digests} digests and {given} of what belongs to them were given; give one for each")]
    Count {
        /// Digests given.
        digests: usize,
        /// Of the others.
        given: usize,
    },
    /// The table was not made for this index.
    #[error("the table at {address} {why}; make one with `{make}`")]
    Table {
        /// The table's address.
        address: Box<oneread::Address>,
        /// What it lacks.
        why: &'static str,
        /// What makes one.
        make: &'static str,
    },
    /// A name is empty or too long. Nothing was done.
    #[error("a name has 1 to {max} bytes, and {given} were given; shorten it")]
    Name {
        /// Bytes given.
        given: usize,
        /// Most.
        max: usize,
    },
    /// No table is for so many holders. Nothing was done.
    #[error("a table has 1 to {max} holders, and {given} were asked for; give a number in between")]
    HolderCount {
        /// Asked for.
        given: usize,
        /// Most.
        max: usize,
    },
    /// The table has as many live holders as it can have.
    #[error(
        "the table has its {max} holders; drop those that are gone (`PlacementIndex::drop_holder`), or make a wider table"
    )]
    Holders {
        /// As many as it can have.
        max: usize,
    },
    /// The holder was dropped or cleared since it was registered, or its table is another one. What was added for it
    /// does not count.
    #[error(
        "the holder {name} was dropped or cleared, or the table is another one; register it again with `PlacementIndex::holder`"
    )]
    HolderGone {
        /// Its name.
        name: String,
    },
    /// Others changed the same entry each time.
    #[error("others changed the same entry {rounds} times in between; try again")]
    Busy {
        /// Attempts made.
        rounds: u32,
    },
    /// Events name blocks without their place in a prompt.
    #[error(
        "events tell no place in a prompt, and this table has groups; make one with `PlacementTable::single`"
    )]
    Grouped,
    /// A lookup failed.
    #[error(transparent)]
    Get(#[from] GetError),
    /// A change failed. It may have happened, as the error says.
    #[error(transparent)]
    Change(Box<MutateError>),
    /// A change of one key was refused, after those before it.
    #[error(transparent)]
    Refused(#[from] PutError),
    /// A handle could not be connected.
    #[error(transparent)]
    Connect(Box<ConnectError>),
    /// The keys could not be walked over.
    #[error(transparent)]
    Scan(Box<FeedError>),
}

impl From<MutateError> for PrefixError {
    fn from(error: MutateError) -> PrefixError {
        PrefixError::Change(Box::new(error))
    }
}

impl From<ConnectError> for PrefixError {
    fn from(error: ConnectError) -> PrefixError {
        PrefixError::Connect(Box::new(error))
    }
}

impl From<FeedError> for PrefixError {
    fn from(error: FeedError) -> PrefixError {
        PrefixError::Scan(Box::new(error))
    }
}

/// Refuses lists of different lengths.
pub(crate) fn one_each(digests: usize, given: usize) -> Result<(), PrefixError> {
    if digests == given { Ok(()) } else { Err(PrefixError::Count { digests, given }) }
}
