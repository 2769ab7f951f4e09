//! Which process this is, known without a system call.
//!
//! A child made by `fork` has all of its parent's memory and none of its threads. What works only with
//! them, or with what only one of two processes may use, belongs to the process that made it: clients,
//! servers, locks. So each remembers a [`Process`], and looks whether it is still there.
//!
//! A word says so. The kernel keeps it from every copy of the memory (`MADV_WIPEONFORK`): there it
//! reads as zero, however the copy was made, by `fork` or by `clone`. The child then gets a number of
//! its own. Not noticed are processes that *share* their memory (`vfork`, `clone` with `CLONE_VM`), and
//! copies on systems that do not know this advice (Linux before 4.14).
//!
//! ```text
//! bits 40..64   the number of the process, from 1 on
//! bits 0..40    how often one of its clients has lost a server, or found one
//! ```
//!
//! GETs on shm compare the whole word with what it was when all was well, so they notice both with one
//! load.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits that count news.
const NEWS_BITS: u32 = 40;

/// The number of the newest process that this one descends from, or is. Copied by `fork`.
static NEWEST: AtomicU64 = AtomicU64::new(0);

/// The word of this process. 0 until it has a number.
#[cfg(not(loom))]
pub(crate) fn word() -> &'static AtomicU64 {
    use std::sync::OnceLock;
    static WORD: OnceLock<&AtomicU64> = OnceLock::new();
    WORD.get_or_init(|| {
        wiped_on_fork().unwrap_or_else(|why| {
            tracing::warn!(%why, "a child made by `fork` will not notice that it is one");
            Box::leak(Box::default())
        })
    })
}

/// A word of memory that is zero again in a copy of this process.
#[cfg(not(loom))]
fn wiped_on_fork() -> std::io::Result<&'static AtomicU64> {
    const BYTES: usize = 4096;
    let map = memmap2::MmapRaw::from(memmap2::MmapOptions::new().len(BYTES).map_anon()?);
    // SAFETY: the advice changes what a child process sees, and nothing in this one.
    unsafe { rustix::mm::madvise(map.as_mut_ptr().cast(), BYTES, rustix::mm::Advice::LinuxWipeOnFork)? };
    let map: &'static memmap2::MmapRaw = Box::leak(Box::new(map));
    // SAFETY:
    // * the mapping stays as long as the process, begins on a page, and is longer than a word;
    // * it is touched as this atomic only, and any bits are a valid one.
    Ok(unsafe { AtomicU64::from_ptr(map.as_mut_ptr().cast()) })
}

/// The model checker makes no processes.
#[cfg(loom)]
pub(crate) fn word() -> &'static AtomicU64 {
    static WORD: AtomicU64 = AtomicU64::new(0);
    &WORD
}

/// To be called after one of this process's clients has lost a server, or found one: every handle looks
/// again.
pub(crate) fn tell_news() {
    Process::this();
    // Pairs with the acquiring load of who looks again: it sees what was stored before.
    word().fetch_add(1, Ordering::Release);
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// The one that calls.
    pub fn this() -> Process {
        // Relaxed: only numbers are communicated.
        let word = word();
        if word.load(Ordering::Relaxed) == 0 {
            let number = NEWEST.fetch_add(1, Ordering::Relaxed) + 1;
            let _ = word.compare_exchange(0, number << NEWS_BITS, Ordering::Relaxed, Ordering::Relaxed);
        }
        Process(word.load(Ordering::Relaxed) >> NEWS_BITS)
    }

    /// Whether it is the one that calls.
    #[inline]
    pub fn is_this(self) -> bool {
        word().load(Ordering::Relaxed) >> NEWS_BITS == self.0
    }
}
