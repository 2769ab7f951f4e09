//! A table that one process drives, and that clients only read.
//!
//! A node of a cluster has such a table. It is one of several copies, and all of them are to lose an entry together. So
//! nothing leaves it by itself: its driver is told what has come to its end, and which keys were read, and removes entries.
//!
//! [`DrivenServer`] serves the table, and [`DrivenServer::table`] is what its driver does with it. The index of another
//! program has nothing of that:
//!
//! ```compile_fail,E0599
//! fn ended(index: &oneread::embedded::Index) -> usize {
//!     index.see_ended(10, |_| {})
//! }
//! ```

pub use crate::index::DrivenTable;
pub use crate::server::DrivenServer;
