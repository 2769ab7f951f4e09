//! Where this user's servers keep sockets and region files by default, and who else could change
//! what is there.
//!
//! Whoever owns a region file, or may write to it, can read and change every value, and can make it
//! shorter, which ends server and clients by SIGBUS. Whoever may write to a folder can put a file
//! there first. So a file is opened without following a link at its end, and then checked; and the
//! folders of default places are this user's own.

mod defaults;
mod lock;
#[cfg(all(test, not(loom)))]
mod tests;
mod trust;

pub use defaults::{prepare, regions, socket};
pub use lock::LockFile;
pub(crate) use lock::{fixed, stands_at};
pub use trust::{FileError, UNMAPPED, open_file, open_secret, open_to_read, read, read_secret};
pub(crate) use trust::{appointed, is_trusted, own_uid, set_mode};
