//! All errors of this crate, and what a caller does about each kind of them.
//!
//! Every error says in one sentence what failed, on what, and what to do about it. Its variants have the numbers. A
//! program that only has to decide what to do next matches [`ErrorKind`], which each error's `kind()` returns:
//!
//! ```
//! # use oneread::{Address, Client};
//! use oneread::ErrorKind;
//!
//! let error = Client::connect(&Address::Shm("/nowhere/s".into())).unwrap_err();
//! let is_tried_again = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Busy);
//! assert!(is_tried_again, "{error}");
//! ```
//!
//! | kind | what happened | what to do |
//! |---|---|---|
//! | [`Invalid`] | the call asks for what cannot be: a length, an option, an address | change the call; the same one fails again |
//! | [`Unreachable`] | no server is there, or it went away | start it, and try again later; a change whose connection ended may have happened |
//! | [`TimedOut`] | no answer, or no conclusive look, in the time that the call allows | try again later, or allow more time; a change may still happen |
//! | [`Busy`] | others were in the way, each time | try again at once, or in a quieter moment |
//! | [`Full`] | the table has no room | remove keys, or serve a larger table |
//! | [`Refused`] | this user, or whoever has this token, may not do that; or a file is open to others | give the permission, or be another user |
//! | [`Incompatible`] | the other side, a file or this build has another version, or lacks what is asked for | use the same version of oneread everywhere, and the cargo features that the call needs |
//! | [`Corrupt`] | bytes are not what was written | put the value again, or restore a snapshot |
//! | [`Undecrypted`] | a value does not decrypt | give the secret key and namespace that it was put with |
//! | [`System`] | the operating system or a device refused: memory, descriptors, a disk, a port | give it what the message names; then the same call may succeed |
//! | [`Cancelled`] | the caller broke it off | nothing |

pub(crate) mod mend;
pub(crate) mod words;

pub use crate::address::AddressError;
pub use crate::client::{AskError, ConnectError, FeedError, GetError, LinkError, MutateError};
pub use crate::config::ConfigError;
pub use crate::encryption::{DecryptError, EncryptError};
pub use crate::files::FileError;
pub use crate::get::Retry;
pub use crate::index::{RecoverError, RestoreError};
pub use crate::layout::superblock::SuperblockError;
pub use crate::log::LogError;
pub use crate::outcome::{KeyError, KeyLengthError, PutError, ReadError, StartBound};
pub use crate::part::PartError;
pub use crate::region::RegionError;
pub use crate::server::ServeError;
pub use crate::snapshot::{SaveError, SnapshotError};
#[cfg(feature = "tls")]
pub use crate::tls::TlsError;
#[cfg(feature = "verbs")]
pub use crate::verbs::gid::{GidError, GidMismatch};
#[cfg(feature = "verbs")]
pub use crate::verbs::{SetupError, VerbsError};
pub use crate::wire::{FeedRefusal, Refusal, WireError};

use std::io;

/// What a caller does about an error ([the table](crate::error)). Each error has one: its `kind()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call asks for what cannot be: change it.
    Invalid,
    /// No server is there, or it went away: start it, and try again later.
    Unreachable,
    /// No answer in time: try again later. A change may still happen.
    TimedOut,
    /// Others were in the way: try again.
    Busy,
    /// The table has no room: remove keys, or serve a larger one.
    Full,
    /// It is not allowed.
    Refused,
    /// Another version, or something that is not there in this build or on this path.
    Incompatible,
    /// Bytes are not what was written.
    Corrupt,
    /// A value does not decrypt: another secret key, or no encrypted value.
    Undecrypted,
    /// The operating system, or a device, refused.
    System,
    /// The caller broke it off.
    Cancelled,
}

use ErrorKind::{
    Busy, Cancelled, Corrupt, Full, Incompatible, Invalid, Refused, System, TimedOut, Undecrypted,
    Unreachable,
};

/// Gives an error its `kind()`: `kind!(SomeError, error => ...)`.
macro_rules! kind {
    ($error:ident, $this:ident => $kind:expr) => {
        impl $error {
            /// What to do about it, without the numbers ([the table](crate::error)).
            pub fn kind(&self) -> ErrorKind {
                let $this = self;
                $kind
            }
        }
    };
}

// ---- clients ------------------------------------------------------------------------------------

kind!(ConnectError, error => match error {
    ConnectError::Address(error) => error.kind(),
    ConnectError::NotThere { .. } | ConnectError::NoTable { .. } => Unreachable,
    ConnectError::NoAccess { .. } | ConnectError::Stranger { .. } | ConnectError::Token { .. } => Refused,
    ConnectError::Tls { .. } | ConnectError::WantsTls { .. } => Refused,
    ConnectError::TurnedAway { source, .. } => source.kind(),
    ConnectError::Forked { .. } | ConnectError::ExactExpiry { .. } => Invalid,
    ConnectError::Descriptors { .. } => System,
    ConnectError::Refused { .. } | ConnectError::RequestPath { .. } | ConnectError::NotBuilt { .. } => Incompatible,
    ConnectError::Link { source, .. } => source.kind(),
    ConnectError::Region(error) => error.kind(),
    #[cfg(feature = "verbs")]
    ConnectError::Verbs(error) => error.kind(),
    ConnectError::Superblock { source, .. } => source.kind(),
    ConnectError::Owner { source, .. } => source.kind(),
    ConnectError::ReadOnly { .. } => Refused,
});

kind!(LinkError, error => match error {
    LinkError::Deadline(_) => TimedOut,
    LinkError::HungUp | LinkError::LeaseEnded(_) | LinkError::Retired => Unreachable,
    LinkError::Wire(_) | LinkError::Unexpected => Incompatible,
    LinkError::Os(_) => System,
    #[cfg(feature = "verbs")]
    LinkError::Verbs(error) => error.kind(),
});

/// Of a connection that ended: whatever ended it, what counts is whether another one would help.
fn of_ended(source: &LinkError) -> ErrorKind {
    match source.kind() {
        Incompatible => Incompatible,
        _ => Unreachable,
    }
}

kind!(GetError, error => match error {
    GetError::KeyLength { .. } | GetError::LongValue { .. } => Invalid,
    GetError::Contended { .. } | GetError::Replaced { .. } => Busy,
    GetError::Inconclusive { .. } | GetError::Deadline { .. } => TimedOut,
    GetError::Damaged { .. } => Corrupt,
    GetError::ServerGone { source, .. } => of_ended(source),
    GetError::Connect(error) => error.kind(),
    GetError::Decrypt(error) => error.kind(),
});

kind!(MutateError, error => match error {
    MutateError::KeyLength { .. } | MutateError::ValueLength { .. } | MutateError::EncryptedLength { .. } => Invalid,
    MutateError::TimeToLive { .. } | MutateError::NoLife => Invalid,
    MutateError::OwnerNumber { .. } | MutateError::NoOwners => Invalid,
    MutateError::OwnerGone { .. } => Refused,
    MutateError::AlreadyStarted => Busy,
    MutateError::NotStarted | MutateError::StartedLength { .. } => Invalid,
    MutateError::Full { .. } | MutateError::HeapFull { .. } | MutateError::EntryNumbers => Full,
    MutateError::StartBound(StartBound::Time { .. }) => Invalid,
    MutateError::StartBound(StartBound::Slots { .. } | StartBound::HeapBytes { .. }) => Full,
    MutateError::Pinned | MutateError::Pins { .. } => Full,
    MutateError::HeapBusy { .. } | MutateError::Withdrawn | MutateError::Busy { .. } => Busy,
    MutateError::NoMemory { .. } | MutateError::HeapMemory { .. } => System,
    MutateError::Part(error) => error.kind(),
    MutateError::Encrypted => Invalid,
    MutateError::OldServer => Incompatible,
    MutateError::ReadOnly { .. } => Refused,
    MutateError::Deadline { .. } => TimedOut,
    MutateError::ServerGone { source, .. } => of_ended(source),
    MutateError::Connect(error) => error.kind(),
    MutateError::Encrypt(error) => error.kind(),
    MutateError::Decrypt(error) => error.kind(),
});

kind!(AskError, error => match error {
    AskError::ReadOnly { .. } => Refused,
    AskError::Deadline { .. } => TimedOut,
    AskError::ServerGone { source, .. } => of_ended(source),
    AskError::Connect(error) => error.kind(),
});

kind!(FeedError, error => match error {
    FeedError::Refused { why, .. } => why.kind(),
    FeedError::PrefixLength { .. } | FeedError::Cursor { .. } => Invalid,
    FeedError::Unsupported { .. } => Incompatible,
    FeedError::Get(error) => error.kind(),
    FeedError::Ask(error) => error.kind(),
});

kind!(FeedRefusal, refusal => match refusal {
    FeedRefusal::OtherTable { .. }
    | FeedRefusal::Future { .. }
    | FeedRefusal::Cursor
    | FeedRefusal::Prefix { .. } => Invalid,
    FeedRefusal::Off => Refused,
    FeedRefusal::Memory { .. } => System,
    FeedRefusal::Room | FeedRefusal::Other { .. } => Incompatible,
});

kind!(Refusal, refusal => match refusal {
    Refusal::User { .. } | Refusal::Token => Refused,
    Refusal::ServerFull { .. } | Refusal::PeerFull { .. } | Refusal::Descriptors => Busy,
    Refusal::Stopping => Unreachable,
    Refusal::Other { .. } => Incompatible,
});

kind!(WireError, _error => Incompatible);

#[cfg(feature = "tls")]
kind!(TlsError, _error => Invalid);

// ---- keys and values ----------------------------------------------------------------------------

kind!(PutError, error => match error {
    PutError::KeyLength { .. } | PutError::ValueLength { .. } | PutError::EncryptedLength { .. } => Invalid,
    PutError::TimeToLive { .. } | PutError::NoLife => Invalid,
    PutError::Full { .. } | PutError::HeapFull { .. } | PutError::EntryNumbers => Full,
    PutError::StartBound(StartBound::Time { .. }) => Invalid,
    PutError::StartBound(StartBound::Slots { .. } | StartBound::HeapBytes { .. }) => Full,
    PutError::Pinned | PutError::Pins { .. } => Full,
    PutError::HeapBusy { .. } | PutError::Withdrawn | PutError::Busy { .. } => Busy,
    PutError::NoMemory { .. } | PutError::HeapMemory { .. } => System,
    PutError::OwnerNumber { .. } | PutError::NoOwners => Invalid,
    PutError::OwnerGone { .. } => Refused,
    PutError::AlreadyStarted => Busy,
    PutError::NotStarted | PutError::StartedLength { .. } => Invalid,
    PutError::Part(error) => error.kind(),
    PutError::OldServer => Incompatible,
});

kind!(PartError, error => match error {
    PartError::Other { .. } => Incompatible,
    _ => Invalid,
});

kind!(ReadError, error => match error {
    ReadError::KeyLength { .. } => Invalid,
    ReadError::Contended { .. } | ReadError::Replaced { .. } => Busy,
    ReadError::Damaged { .. } => Corrupt,
    ReadError::Deadline { .. } => TimedOut,
});

kind!(KeyError, error => match error {
    KeyError::Length(error) => error.kind(),
    KeyError::Decrypt(error) => error.kind(),
});

kind!(KeyLengthError, _error => Invalid);

kind!(EncryptError, error => match error {
    EncryptError::Nonce { .. } => System,
    EncryptError::Length { .. } => Invalid,
});

kind!(DecryptError, _error => Undecrypted);

// ---- servers and regions ------------------------------------------------------------------------

kind!(ServeError, error => match error {
    ServeError::Address(error) => error.kind(),
    ServeError::Config(error) => error.kind(),
    ServeError::Region(error) | ServeError::NoRoom { source: error, .. } => error.kind(),
    ServeError::File(error) => error.kind(),
    ServeError::Recover { source, .. } => source.kind(),
    ServeError::Restore { source, .. } => source.kind(),
    ServeError::Log { source, .. } => source.kind(),
    ServeError::Replay { source, .. } => source.kind(),
    ServeError::Snapshots(error) => error.kind(),
    ServeError::Cancelled => Cancelled,
    ServeError::NothingToOpen
    | ServeError::NoToken { .. }
    | ServeError::TwoPorts
    | ServeError::Elsewhere { .. }
    | ServeError::ReadToken
    | ServeError::Workers { .. }
    | ServeError::TimeToLive(_)
    | ServeError::NoSocket { .. }
    | ServeError::NoFolder { .. } => Invalid,
    ServeError::AddressInUse { .. } => Busy,
    ServeError::Listen { source, .. } | ServeError::ListenTcp { source, .. } => of_io(source),
    ServeError::NotBuilt { .. } => Incompatible,
    #[cfg(feature = "verbs")]
    ServeError::Verbs(error) => error.kind(),
    ServeError::Threads(_) | ServeError::Descriptors { .. } => System,
});

kind!(LogError, error => match error {
    LogError::Os { source, .. } => of_io(source),
    LogError::Locked { .. } => Busy,
    LogError::File(error) => error.kind(),
    LogError::Version { .. } | LogError::Kind { .. } => Incompatible,
    LogError::Damaged { .. } | LogError::Hole { .. } => Corrupt,
    LogError::OtherLog { .. } | LogError::OtherSnapshot { .. } | LogError::OtherTable | LogError::OtherBoot => Invalid,
});

kind!(AddressError, _error => Invalid);

kind!(ConfigError, error => match error {
    ConfigError::Random { .. } => System,
    _ => Invalid,
});

kind!(RecoverError, error => match error {
    RecoverError::Superblock(error) => error.kind(),
    RecoverError::Unfinished | RecoverError::Directory { .. } => Corrupt,
    RecoverError::Cancelled => Cancelled,
});

kind!(SuperblockError, error => match error {
    SuperblockError::Version { .. } | SuperblockError::Layout { .. } => Incompatible,
    _ => Corrupt,
});

kind!(RegionError, error => match error {
    RegionError::Os { source, .. } => of_io(source),
    RegionError::AddressSpace { .. }
    | RegionError::HugePages { .. }
    | RegionError::Unregistered { .. }
    | RegionError::NoRoom { .. } => System,
    RegionError::File(error) => error.kind(),
    RegionError::Unsealed | RegionError::SeveralNames { .. } => Refused,
    RegionError::Unfinished { .. } | RegionError::Length { .. } => Corrupt,
    RegionError::Cancelled => Cancelled,
    RegionError::Missing { .. } => Invalid,
    RegionError::InUse { .. } => Busy,
});

kind!(FileError, error => match error {
    FileError::Kind { .. } => Invalid,
    FileError::Owner { .. } | FileError::Squatted { .. } | FileError::Writable { .. } | FileError::Readable { .. } => Refused,
    FileError::Os { source, .. } => of_io(source),
});

// ---- snapshots ----------------------------------------------------------------------------------

kind!(SaveError, error => match error {
    SaveError::Os { source, .. } => of_io(source),
    SaveError::File(error) => error.kind(),
    SaveError::Busy { .. } => Busy,
    SaveError::BrokenOff => Cancelled,
});

kind!(SnapshotError, error => match error {
    SnapshotError::Open { source, .. } | SnapshotError::Read { source, .. } => of_io(source),
    SnapshotError::File { source } => source.kind(),
    SnapshotError::Kind { .. } | SnapshotError::Foreign { .. } => Invalid,
    SnapshotError::Version { .. } => Incompatible,
    SnapshotError::Cut { .. } | SnapshotError::Damaged { .. } => Corrupt,
});

kind!(RestoreError, error => match error {
    RestoreError::Snapshot(error) => error.kind(),
    RestoreError::TooLong { .. } | RestoreError::Life | RestoreError::Owners => Invalid,
    RestoreError::TooMany { .. } => Full,
    RestoreError::Cancelled => Cancelled,
    RestoreError::Full { source, .. } => source.kind(),
});

// ---- verbs --------------------------------------------------------------------------------------

#[cfg(feature = "verbs")]
kind!(SetupError, error => match error {
    SetupError::UnknownDevice { .. } | SetupError::UnknownPort { .. } | SetupError::Mtu { .. } => Invalid,
    SetupError::Backing { source } => source.kind(),
    SetupError::NotThere { .. } | SetupError::Handshake { .. } | SetupError::Mismatch { .. } => Unreachable,
    SetupError::Listen { source, .. } => of_io(source),
    SetupError::Connecting => Busy,
    SetupError::Refused { .. } | SetupError::Token { .. } | SetupError::Owner { .. } => Refused,
    SetupError::Version { .. } | SetupError::Extension { .. } => Incompatible,
    SetupError::Table { .. } => Corrupt,
    _ => System,
});

#[cfg(feature = "verbs")]
kind!(GidError, _error => System);

#[cfg(feature = "verbs")]
kind!(VerbsError, error => match error {
    VerbsError::Completion { .. } | VerbsError::Closed => Unreachable,
    VerbsError::Post { .. } => System,
    VerbsError::Late { .. } => TimedOut,
    VerbsError::Garbage { .. } | VerbsError::Wire(_) => Incompatible,
    VerbsError::Setup(error) => error.kind(),
});

/// Of what the operating system says.
fn of_io(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Refused,
        _ => System,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::Address;
    use std::time::Duration;

    /// An error that stands for another one has its kind. One whose connection ended says that the server is out
    /// of reach, unless it speaks something else.
    #[test]
    fn kinds_are_those_of_causes() {
        let address = || Address::Shm("/nowhere".into());
        let turned_away = |source| ConnectError::TurnedAway { address: address(), source };
        for (refusal, expected) in [
            (Refusal::User { uid: 1 }, Refused),
            (Refusal::ServerFull { max: 1 }, Busy),
            (Refusal::Stopping, Unreachable),
            (Refusal::Other { code: 9 }, Incompatible),
        ] {
            assert_eq!(turned_away(refusal).kind(), expected);
        }
        for (source, expected) in [
            (LinkError::HungUp, Unreachable),
            (LinkError::Retired, Unreachable),
            (LinkError::Os(io::ErrorKind::OutOfMemory.into()), Unreachable),
            (LinkError::Unexpected, Incompatible),
        ] {
            let ask = AskError::ServerGone { address: address(), source };
            assert_eq!(ask.kind(), expected);
            assert_eq!(MutateError::from(ask).kind(), expected);
        }
        let late = || AskError::Deadline { address: address(), deadline: Duration::ZERO };
        assert_eq!((GetError::from(late()).kind(), MutateError::from(late()).kind()), (TimedOut, TimedOut));
        let read_only = || AskError::ReadOnly { address: address() };
        assert_eq!(MutateError::from(read_only()).kind(), Refused);
        assert_eq!(GetError::from(read_only()).kind(), Incompatible, "every client may read");
        for denied in [io::ErrorKind::PermissionDenied, io::ErrorKind::NotFound] {
            let os = FileError::Os { doing: "opening", path: "f".into(), source: denied.into() };
            let expected = if denied == io::ErrorKind::PermissionDenied { Refused } else { System };
            assert_eq!(ServeError::File(os).kind(), expected);
        }
    }

    /// A rejection has the same kind from the table to the caller.
    #[test]
    fn rejections_have_one_kind() {
        let waited = Duration::ZERO;
        for (error, expected) in [
            (PutError::NoMemory { keys: 1, bytes: 2 }, System),
            (PutError::KeyLength { given: 3, max: 4 }, Invalid),
            (PutError::ValueLength { given: 5, max: 6 }, Invalid),
            (PutError::EncryptedLength { given: 7, stored: 8, stored_max: 9 }, Invalid),
            (PutError::Full { keys: 10, slots: 11, bytes_max: 17, heap_bytes: 18 }, Full),
            (PutError::HeapFull { live_bytes: 12, heap_bytes: 13 }, Full),
            (PutError::HeapBusy { given: 14, waited }, Busy),
            (PutError::HeapMemory { given: 15 }, System),
            (PutError::Busy { rounds: 16 }, Busy),
            (PutError::Part(PartError::CounterLength { given: 7 }), Invalid),
            (PutError::OldServer, Incompatible),
        ] {
            assert_eq!((error.kind(), MutateError::from(error).kind()), (expected, expected));
        }
        let read = ReadError::KeyLength { given: 3, max: 4 };
        assert_eq!((read.kind(), GetError::from(read).kind()), (Invalid, Invalid));
        let damaged = ReadError::Damaged { what: "it" };
        assert_eq!((damaged.kind(), GetError::from(damaged).kind()), (Corrupt, Corrupt));
    }
}
