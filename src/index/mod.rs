//! The server's side of the index: every change to the table.
//!
//! An [`Index`] is one segment, or several with a directory, if the table grows. The layers of it, each
//! over the one before:
//!
//! | layer | what it decides |
//! |---|---|
//! | `slots` | who may look at a slot and write it: locks, undo lines, notes (L1, L2, W, U) |
//! | `homes` | which keys of a home are displaced, what readers are told, what stays for them (M2, M4, M5, B) |
//! | `moves` | how keys make room for others, and come home (M1, M3, M6) |
//! | `segment` | puts, removes and changes that depend on the value (`decide`), of one segment |
//! | `growth` | a table of many segments: which has a key, how they are split and merged (E) |
//! | `whole` | how a table is made, taken over, handed over, walked over and saved (T, D) |
//! | `making` | one change of a key: memory, room, life, turn, table; changes that are `wanted`, that have to wait (`waits`, `news`), and entries that leave by themselves |
//! | `change` | the kinds of change, and which of these steps each needs |
//! | `face`, `parts`, `clear` | [`Index`]: its methods, parts of values |
//!
//! Beside them:
//!
//! * `feed` tells followers of all changes (J), and `bells` wake threads that sleep until something happens. `seams` hears of each change before and after it is made, and may delay
//!   it (L10 to L13).
//! * `share` says which keys a segment has. `refusals` saves searches that would fail.
//! * `evict` chooses entries to evict, and `evicting` evicts them (Z). `tidying` does what is due.
//! * `lives` numbers entries, and removes them when their time has come, or leaves that to the driver of a table
//!   (`driven`). `ends` notes when that is. `numbers` draws numbers that are never given twice.
//! * `owners` knows the owner of each entry, and removes all entries of an owner at once. `entries` is what `lives` and
//!   `owners` ask of a segment. `started` has the puts in two steps that are not committed, which `two_steps` makes.
//! * `extents` has the values that are too long for their slots, `heap` has their memory, and `budget` counts the
//!   memory that segments and extents have together. `publish` tells all clients the state of the table.
//!
//! Comments cite rules by id (M4). docs/PROTOCOL.md has all rules and their proofs. `src/faults.rs`
//! has one line for each rule that a test can break. Its switches (`kept`, `obey`, `disobey`,
//! `by_rule`, `in_order`) are constants in a real build, which keeps every rule.

mod bells;
mod budget;
mod change;
mod clear;
mod decide;
mod driven;
mod ends;
mod entries;
mod evict;
mod evicting;
mod extents;
mod face;
mod feed;
#[cfg(feature = "sim")]
mod for_sim;
mod growing;
pub(crate) mod growth;
mod heap;
mod home_set;
mod homes;
mod later;
mod lives;
mod logged;
#[cfg(all(test, loom))]
pub(crate) mod loom_access;
mod making;
mod moves;
mod news;
mod numbers;
mod observers;
mod owners;
mod parts;
mod publish;
mod recovered;
mod refusals;
mod saved;
mod seams;
mod segment;
mod share;
mod shifts;
mod slots;
pub(crate) mod start;
mod started;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
mod tidying;
mod two_steps;
mod waits;
mod wanted;
mod whole;

pub(crate) use bells::ThreadBell;
#[cfg(feature = "verbs")]
pub(crate) use budget::Registrar;
pub(crate) use clear::ClearPlace;
pub use clear::Cleared;
pub use driven::{DrivenTable, drive, driven};
pub use evict::KeyPin;
#[doc(hidden)]
pub use evict::{Policy, Rank, Sight, policy};
pub(crate) use extents::{ExtentDraft, Upload};
pub use face::Index;
pub use feed::LeftCause;
pub(crate) use feed::{ChangeRecord, RecordValue};
#[cfg(feature = "sim")]
pub(crate) use for_sim::waits_max;
#[cfg(feature = "sim")]
pub(crate) use growth::handover_end;
pub(crate) use owners::OwnerClaim;
pub use owners::OwnerSession;
pub use recovered::{RecoverError, Recovered};
pub use seams::{Awaited, Changed, DecidedChange, Decision, KeyChange, KeyPlace, Seams, SlotValue};
pub use started::StartSession;
pub(crate) use waits::{ChangeWait, ChangeWaits};
pub(crate) use wanted::Patience;
pub(crate) use whole::ScanPoint;
pub use whole::{KeyCursor, RestoreError, Restored};
