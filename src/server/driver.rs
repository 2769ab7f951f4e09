//! Who changes a server's table.

use super::error::ServeError;
use crate::index::{Index, drive};

/// Who changes a server's table, and removes entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableDriver {
    /// Its clients, within their rights, and the server itself.
    Clients,
    /// Only this process. No entry leaves by itself.
    Other {
        /// Whether clients note what they read.
        notes_reads: bool,
    },
}

impl TableDriver {
    /// The index, which this driver drives from now on.
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
