//! What the calls of libibverbs return.

use super::super::error::{SetupError, VerbsError};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// The C library's `errno`, which verbs calls that return pointers set.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub(crate) fn object<T>(call: &'static str, pointer: *mut T) -> Result<NonNull<T>, SetupError> {
    NonNull::new(pointer).ok_or_else(|| SetupError::Call { call, errno: last_errno() })
}

/// The result of a call that returns 0 or the error's number. Some return -1 and set `errno`.
pub(crate) fn done(call: &'static str, result: c_int) -> Result<(), SetupError> {
    match result {
        0 => Ok(()),
        -1 => Err(SetupError::Call { call, errno: last_errno() }),
        errno => Err(SetupError::Call { call, errno: errno.abs() }),
    }
}

/// Makes the descriptor non-blocking: events are taken until there are none.
pub(crate) fn never_block(events: BorrowedFd<'_>) -> Result<(), SetupError> {
    rustix::io::ioctl_fionbio(events, true)
        .map_err(|e| SetupError::Call { call: "ioctl(FIONBIO)", errno: e.raw_os_error() })
}

/// Checks a destroy call. It fails only when something made from the object is left, and the `Arc`s
/// rule that out.
pub(crate) fn destroyed(call: &'static str, result: c_int) {
    if result != 0 {
        tracing::error!(call, result, "a verbs object could not be destroyed");
    }
}

/// The result of a post call: 0 or the error's number. Some negate it, or return -1 and set
/// `errno`.
pub(crate) fn posted(result: c_int) -> Result<(), VerbsError> {
    match result {
        0 => Ok(()),
        -1 => Err(VerbsError::Post { errno: last_errno() }),
        errno => Err(VerbsError::Post { errno: errno.abs() }),
    }
}
