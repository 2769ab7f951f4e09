//! Why a key left.

/// Why a key left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeftCause {
    /// Somebody removed it.
    Removed,
    /// Its entry came to its end ([`PutOptions::ttl`](crate::PutOptions::ttl)).
    Expired,
    /// Its owner was removed, or was away for too long. One change tells this of all entries of the owner.
    OwnerGone,
    /// It was evicted ([`ServerConfig::evict`](crate::ServerConfig::evict)).
    Evicted,
    /// A cause that a newer server knows.
    Other(u8),
}

impl LeftCause {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            LeftCause::Removed => 0,
            LeftCause::Expired => 1,
            LeftCause::OwnerGone => 3,
            LeftCause::Evicted => 2,
            LeftCause::Other(byte) => byte,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> LeftCause {
        match byte {
            0 => LeftCause::Removed,
            1 => LeftCause::Expired,
            3 => LeftCause::OwnerGone,
            2 => LeftCause::Evicted,
            byte => LeftCause::Other(byte),
        }
    }
}
