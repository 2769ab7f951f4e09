//! Why a server turns a client away.

/// Reasons to turn a client away.
mod reason {
    pub const USER: u64 = 1;
    pub const SERVER_FULL: u64 = 2;
    pub const PEER_FULL: u64 = 3;
    pub const DESCRIPTORS: u64 = 4;
    pub const STOPPING: u64 = 5;
    pub const TOKEN: u64 = 6;
}

fn allowing(uid: u32) -> &'static str {
    if uid == crate::files::UNMAPPED {
        ", who is nobody, or anybody without a number in the server's user namespace: a container must map the client's user to one"
    } else {
        "; the server's user can allow that in `ServerConfig::allow_uids` or `allow_read_uids`"
    }
}

/// Why a server turns a client away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The server does not serve this user.
    #[error("it does not serve user {uid}{}", allowing(*.uid))]
    User {
        /// The client's user, as the server sees it.
        uid: u32,
    },
    /// The server has as many connections as it takes.
    #[error(
        "it has {max} connections, its limit; raise it (`ServerConfig::clients_max`), or use fewer clients"
    )]
    ServerFull {
        /// The limit.
        max: u64,
    },
    /// This peer has as many connections as a peer may have.
    #[error(
        "this peer has {max} connections, the limit for each; raise it (`ServerConfig::clients_per_peer`), or use fewer clients"
    )]
    PeerFull {
        /// The limit.
        max: u64,
    },
    /// The server's process can open no more connections.
    #[error("it is out of file descriptors; raise its limit (RLIMIT_NOFILE)")]
    Descriptors,
    /// The server is stopping.
    #[error("it is stopping; try again when it is back")]
    Stopping,
    /// Over TCP: the client does not know the server's token.
    #[error("its token is another one; give the client the one that the server has (`ClientOptions::token`)")]
    Token,
    /// This version does not know the reason.
    #[error(
        "for a reason that this version does not know ({code}); use the same version of oneread on both sides"
    )]
    Other {
        /// The reason's number.
        code: u64,
    },
}

impl Refusal {
    /// The reason's number, and the other number of the error.
    pub(super) fn to_parts(self) -> (u64, u64) {
        match self {
            Refusal::User { uid } => (reason::USER, uid.into()),
            Refusal::ServerFull { max } => (reason::SERVER_FULL, max),
            Refusal::PeerFull { max } => (reason::PEER_FULL, max),
            Refusal::Descriptors => (reason::DESCRIPTORS, 0),
            Refusal::Stopping => (reason::STOPPING, 0),
            Refusal::Token => (reason::TOKEN, 0),
            Refusal::Other { code } => (code, 0),
        }
    }

    pub(super) fn from_parts((code, about): (u64, u64)) -> Refusal {
        match code {
            reason::USER => Refusal::User { uid: about as u32 },
            reason::SERVER_FULL => Refusal::ServerFull { max: about },
            reason::PEER_FULL => Refusal::PeerFull { max: about },
            reason::DESCRIPTORS => Refusal::Descriptors,
            reason::STOPPING => Refusal::Stopping,
            reason::TOKEN => Refusal::Token,
            code => Refusal::Other { code },
        }
    }
}
