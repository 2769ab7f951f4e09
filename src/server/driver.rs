//! Who changes a server's table.

use super::error::ServeError;
use crate::index::{Index, drive};

/// Who changes a server's table, and has its entries leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableDriver {
    /// Its clients, as far as their rights go, and the server itself.
    Clients,
    /// Only this process. Nothing leaves by itself.
    Other {
        /// Whether clients note what they read.
        notes_reads: bool,
    },
}

impl TableDriver {
    /// The index, which this one drives from now on.
    pub(super) fn take(self, index: Index) -> Result<Index, ServeError> {
        match self {
            TableDriver::Clients => Ok(index),
            TableDriver::Other { notes_reads } => {
                if notes_reads {
                    index.begin_noting()?;
                }
                Ok(drive(index))
            }
        }
    }
}
