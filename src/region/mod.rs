//! Region memory: the one place where memory that others read or write is touched.
//!
//! A region is an array of words. The server stores into it through `Region::store` and counts in
//! it through `Region::add`. Every byte reaches a reader through one of these. Readers load words,
//! or have a NIC copy them.
//!
//! Nobody ever holds `&[u8]` or `&mut` to it: words are `AtomicU64`s, loaded and stored `Relaxed`, and
//! ordered by explicit fences in the protocols above. A mapping that another process can write is, to
//! Rust's memory model, memory shared with a thread that uses atomics of the same size; that is as far as
//! the language speaks of it.
//!
//! | file | what it has |
//! |---|---|
//! | `words.rs` | the region, and loads and stores of its words |
//! | `processor.rs` | what words are loaded by: longer loads, the copy loop, the prefetch |
//! | `look.rs` | the region as a reader looks at it: windows of slots |
//! | `backing.rs`, `source.rs` | where memory comes from: made, opened, handed over |
//! | `file.rs`, `unfinished.rs` | the file behind it, its lock; whether its table was ever finished |
//! | `mapping.rs` | memory mapped into this process, where huge pages may begin |
//! | `memory.rs` | memory behind its bytes: taken, added, given back |
//! | `huge.rs` | which of it is in huge pages |
//! | `room.rs` | how much memory is left, and a table's default share |

mod backing;
mod error;
mod file;
mod get_counts;
mod huge;
mod look;
mod mapping;
mod memory;
mod processor;
pub(crate) mod room;
mod source;
pub(crate) mod table_clock;
#[cfg(test)]
pub(crate) mod tests;
mod touches;
mod unfinished;
mod words;

pub use backing::Backing;
pub use error::RegionError;
pub(crate) use get_counts::GetCountMap;
pub use room::MemoryShare;
pub(crate) use touches::TouchMap;
pub use words::Region;
pub(crate) use words::StoreWords;
