//! A whole table, of one size or one that grows: making it, taking it over, handing it over, walking over it, and
//! saving it as a snapshot.
//!
//! * `one` is a table of one size.
//! * `table` is either, from its making to its handover.
//! * `walk` shows all keys, while they change. `scan` shows some of them at a time. `snapshot` makes a file of them,
//!   and puts them back.

mod one;
mod scan;
mod snapshot;
mod table;
mod walk;

#[cfg(all(test, not(loom)))]
pub(super) use one::OneSize;
pub use scan::KeyCursor;
pub(crate) use scan::{ScanPoint, TakeKey};
pub use snapshot::{RestoreError, Restored};
pub(super) use snapshot::{begin, restore, save};
pub(super) use table::Table;
pub(super) use walk::Walk;

#[cfg(all(test, not(loom)))]
mod walk_tests;
