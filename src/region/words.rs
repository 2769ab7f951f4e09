//! The region, word by word.

#![allow(unsafe_code)]

use super::file::OwnFile;
#[cfg(not(loom))]
use super::mapping::HarmlessAdvice;
use super::mapping::Mapping;
use super::processor::{load_bytes, prefetch};
use crate::base::observe::{Observed, ObservedBy};
use crate::base::sync::{AtomicU64, Ordering};
use crate::layout::words::{EIGHT_LINES, LINE_WORDS};
use crate::layout::{LINE, WORD};
use crate::sink::Sink;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};

/// A mapped region. `Send + Sync`: it is only touched word by word.
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    /// A line may begin at words below the first of these, eight lines at words below the second.
    line_end: usize,
    eight_lines_end: usize,
    writable: bool,
    /// Keeps `base..base + words` where they are.
    memory: Arc<Memory>,
    /// What clients are handed: cannot be mapped writable. Private memory is not shared.
    share: Option<Arc<OwnedFd>>,
    /// The memory as a file, open for writing by the one server.
    file: Option<Arc<File>>,
    /// That file with its lock. An alias has none.
    own: Option<OwnFile>,
    /// A device has its memory pinned: what is given back would be lost to its READs.
    pinned: Arc<AtomicBool>,
    observed: Observed,
}

#[allow(dead_code, reason = "held for the memory, which is reached through `base`")]
enum Memory {
    Mapped(Mapping),
    #[cfg(loom)]
    OfTheModelChecker(Box<[AtomicU64]>),
}

// SAFETY: `base` points into `memory`, which lives as long as the region and is never unmapped or moved
// before; all access to it goes through atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).field("writable", &self.writable).finish()
    }
}

impl Region {
    /// A region in mapped memory. `handed` is what clients are handed, `own` the file that is its server's.
    pub(super) fn mapped(
        map: Mapping,
        writable: bool,
        handed: Option<OwnedFd>,
        own: Option<OwnFile>,
    ) -> Region {
        let (base, words) = (map.start().cast(), map.len() / WORD);
        let region = Region::of(base, words, writable, Memory::Mapped(map));
        Region {
            share: handed.map(Arc::new),
            file: own.as_ref().map(|own| Arc::clone(own.file())),
            own,
            ..region
        }
    }

    /// A region of `bytes` zero bytes in this process's own memory, which no other can map. In huge pages where the
    /// system's settings allow them to who asks.
    ///
    /// # Panics
    /// When this process cannot have this number of bytes.
    pub fn private(bytes: u64) -> Region {
        Region::try_private(bytes).expect("memory for a private region")
    }

    /// Like `private`.
    ///
    /// # Errors
    /// When this process cannot have this number of bytes.
    #[cfg(not(loom))]
    pub(crate) fn try_private(bytes: u64) -> std::io::Result<Region> {
        let map = Mapping::private(bytes)?;
        // Best effort.
        let _ = map.advise(0..bytes, HarmlessAdvice::HugePages);
        Ok(Region::mapped(map, true, None, None))
    }

    /// Like `try_private`, for the model checker, whose words are longer.
    #[cfg(loom)]
    pub(crate) fn try_private(bytes: u64) -> std::io::Result<Region> {
        let words = bytes as usize / WORD;
        let memory: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Region::of(NonNull::from(&*memory).cast(), words, true, Memory::OfTheModelChecker(memory)))
    }

    /// `base..base + words` lie in `memory`.
    fn of(base: NonNull<AtomicU64>, words: usize, writable: bool, memory: Memory) -> Region {
        Region {
            base,
            words,
            line_end: (words + 1).saturating_sub(LINE_WORDS),
            eight_lines_end: (words + 1).saturating_sub(EIGHT_LINES),
            writable,
            memory: Arc::new(memory),
            share: None,
            file: None,
            own: None,
            pinned: Arc::default(),
            observed: Observed::default(),
        }
    }

    /// The region under another name, for one more owner of a part of it. The file's lock goes
    /// with the first.
    pub(crate) fn alias(&self) -> Region {
        Region {
            memory: Arc::clone(&self.memory),
            share: self.share.clone(),
            file: self.file.clone(),
            own: None,
            pinned: Arc::clone(&self.pinned),
            observed: self.observed.clone(),
            ..*self
        }
    }

    /// The region, observed from now on.
    #[cfg(feature = "sim")]
    pub(crate) fn observed(self, observer: Arc<dyn crate::base::observe::Observer>) -> Region {
        Region { observed: Observed::by(observer), ..self }
    }

    /// Length in bytes. A last word that is not whole cannot be touched.
    pub fn bytes(&self) -> u64 {
        match &*self.memory {
            Memory::Mapped(map) => map.len() as u64,
            #[cfg(loom)]
            Memory::OfTheModelChecker(words) => (words.len() * WORD) as u64,
        }
    }

    /// Where it is mapped: what a NIC is told to read. Nothing in this process goes through this pointer.
    #[cfg(feature = "verbs")]
    pub(crate) fn start(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }

    /// Its first byte, for who touches it by bytes alone and asks for none outside.
    pub(super) fn first_byte(&self) -> NonNull<AtomicU8> {
        self.base.cast()
    }

    /// The address of its first byte.
    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The mapping. The model checker has none.
    pub(super) fn map(&self) -> Option<&Mapping> {
        match &*self.memory {
            Memory::Mapped(map) => Some(map),
            #[cfg(loom)]
            Memory::OfTheModelChecker(_) => None,
        }
    }

    /// The memory as a file, open for writing. `None` where this process is not its server.
    pub(super) fn file(&self) -> Option<&Arc<File>> {
        self.file.as_ref()
    }

    /// That file with its lock. An alias has none.
    pub(super) fn own(&self) -> Option<&OwnFile> {
        self.own.as_ref()
    }

    /// What clients are handed.
    pub(super) fn handed(&self) -> Option<&OwnedFd> {
        self.share.as_deref()
    }

    /// Whether a device has its memory pinned, whichever name of the region it was told.
    pub(super) fn pinned(&self) -> &AtomicBool {
        &self.pinned
    }

    /// May this process store into it?
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// `len` words from word `first` on.
    ///
    /// # Panics
    /// When they do not lie inside the region: a bug, since a [`Geometry`](crate::layout::geometry::Geometry)
    /// names only slots inside.
    #[inline]
    pub(crate) fn words(&self, first: usize, len: usize) -> &[AtomicU64] {
        self.observed.access();
        self.slice(first, len)
    }

    /// Like `words`, and no access: whoever looks at these words says when.
    #[inline(always)]
    pub(super) fn slice(&self, first: usize, len: usize) -> &[AtomicU64] {
        self.slice_within(first, len).unwrap_or_else(|| outside(first, len, self.words))
    }

    /// Like `slice`, `None` when they do not lie inside the region.
    #[inline(always)]
    pub(super) fn slice_within(&self, first: usize, len: usize) -> Option<&[AtomicU64]> {
        let is_inside = match len {
            // One comparison, where others have two.
            LINE_WORDS => first < self.line_end,
            _ => first.checked_add(len).is_some_and(|end| end <= self.words),
        };
        if !is_inside {
            return None;
        }
        // SAFETY:
        // * the range lies inside `memory` (checked; `line_end` says it of a line), which lives as long as `self`;
        // * it is aligned: a mapping begins on a page, and AtomicU64 has alignment 8;
        // * any bits are a valid AtomicU64;
        // * this process touches the memory only as AtomicU64;
        // * a read-only mapping is only loaded from, `Relaxed` and word-sized, which std::sync::atomic
        //   allows for read-only memory (`store` and `add` refuse read-only regions).
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(first), len) })
    }

    /// Loads a word, and no access. Relaxed. `None` when it lies outside the region.
    #[inline(always)]
    pub(super) fn word_at(&self, word: usize) -> Option<u64> {
        if word >= self.words {
            return None;
        }
        // SAFETY: as in `slice`; the word lies inside the memory.
        Some(unsafe { &*self.base.as_ptr().add(word) }.load(Ordering::Relaxed))
    }

    /// Eight lines from word `first` on, and no access. One comparison, where `slice` has two. `None` when they
    /// do not lie inside the region.
    #[inline(always)]
    pub(super) fn eight_lines_from(&self, first: usize) -> Option<&[AtomicU64]> {
        if first >= self.eight_lines_end {
            return None;
        }
        // SAFETY: as in `slice`; the range lies inside the memory, by the definition of `eight_lines_end`.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(first), EIGHT_LINES) })
    }

    /// Asks the CPU to fetch four lines from word `first` on. No effect but on time, wherever that is.
    #[inline(always)]
    pub(super) fn prefetch_four(&self, first: usize) {
        let lines = self.base.as_ptr().wrapping_add(first);
        (0..4).for_each(|line| prefetch(lines.wrapping_add(line * LINE_WORDS)));
    }

    /// Who sees what is done to it.
    #[inline(always)]
    pub(super) fn observer(&self) -> ObservedBy<'_> {
        (&self.observed).into()
    }

    /// Reports an access.
    #[inline(always)]
    pub(super) fn accessed(&self) {
        self.observed.access();
    }

    /// Loads a word. Relaxed: pair it with a fence.
    ///
    /// # Panics
    /// When it lies outside the region.
    #[inline]
    pub fn load(&self, word: usize) -> u64 {
        self.observed.access();
        if word >= self.words {
            outside(word, 1, self.words);
        }
        // SAFETY: as in `slice`; the word lies inside the memory.
        unsafe { &*self.base.as_ptr().add(word) }.load(Ordering::Relaxed)
    }

    /// Stores a word. Relaxed: pair it with a fence. Everything a remote reader ever sees comes through
    /// here or through `Region::add`.
    ///
    /// # Panics
    /// When it lies outside the region, or the region is read-only.
    #[inline]
    pub fn store(&self, word: usize, value: u64) {
        assert!(self.writable, "a store into a read-only region");
        self.before_store();
        self.words(word, 1)[0].store(value, Ordering::Relaxed);
        self.observed.stored(word, value);
    }

    /// `len` words from word `first` on, to be stored into one by one. Bounds are checked here, once.
    #[inline(always)]
    pub(crate) fn stores(&self, first: usize, len: usize) -> StoreWords<'_> {
        assert!(self.writable, "a store into a read-only region");
        StoreWords { region: self, first, words: self.words(first, len) }
    }

    /// Lets a test kill this process here.
    #[inline(always)]
    fn before_store(&self) {
        #[cfg(feature = "faults")]
        if self.file.is_some() {
            crate::faults::before_store();
        }
    }

    /// Stores the words `from`, one after the other, from word `first` on. Relaxed, as
    /// [`Region::store`].
    pub(crate) fn copy(&self, from: &[AtomicU64], first: usize) {
        self.stores(first, from.len()).copy(0, from);
    }

    /// Puts `len` bytes from byte `offset` on, loaded by words or in longer pieces, in no order.
    pub(crate) fn append_bytes(&self, offset: u64, len: usize, out: &mut impl Sink) {
        let (first, skip) = (offset as usize / WORD, offset as usize % WORD);
        let mut words = self.words(first, (skip + len).div_ceil(WORD));
        let mut left = len;
        let part = |word: &AtomicU64| word.load(Ordering::Relaxed).to_le_bytes();
        if let (1.., Some((word, others))) = (skip, words.split_first()) {
            let end = WORD.min(skip + left);
            out.put(&part(word)[skip..end]);
            (words, left) = (others, left - (end - skip));
        }
        let (whole, rest) = words.split_at(left / WORD);
        if !whole.is_empty() {
            out.put_with(whole.len() * WORD, |at, to| load_bytes(&whole[at / WORD..][..to.len() / WORD], to));
        }
        if let Some(word) = rest.first() {
            out.put(&part(word)[..left % WORD]);
        }
    }

    /// Adds 1 to a word that several server threads count in.
    #[inline]
    pub(crate) fn add(&self, word: usize) {
        assert!(self.writable, "a store into a read-only region");
        self.before_store();
        let before = self.words(word, 1)[0].fetch_add(1, Ordering::Relaxed);
        self.observed.stored(word, before.wrapping_add(1));
    }

    /// Asks the CPU to fetch the lines of these bytes, but no more than it can fetch side by side. No effect
    /// but on time.
    #[inline]
    pub(crate) fn prefetch_bytes(&self, offset: u64, bytes: u64) {
        /// Line-fill buffers of a core, or a little less.
        const LINES_MAX: usize = 8;
        let begin = self.base.as_ptr().wrapping_byte_add(offset as usize);
        let ask = |lines: Range<usize>| lines.for_each(|line| prefetch(begin.wrapping_byte_add(line * LINE)));
        // In halves: a branch for each line costs more than a line too many.
        ask(0..LINES_MAX / 2);
        if bytes > (LINES_MAX / 2 * LINE) as u64 {
            ask(LINES_MAX / 2..LINES_MAX);
        }
    }
}

/// Some words of a region that this process may store into.
#[derive(Clone, Copy)]
pub(crate) struct StoreWords<'a> {
    region: &'a Region,
    first: usize,
    words: &'a [AtomicU64],
}

impl<'a> StoreWords<'a> {
    /// The words themselves, to be loaded from.
    #[inline(always)]
    pub fn words(&self) -> &'a [AtomicU64] {
        self.words
    }

    /// As [`Region::load`], of the word with this number among these.
    #[inline(always)]
    pub fn load(&self, word: usize) -> u64 {
        self.region.observed.access();
        self.words[word].load(Ordering::Relaxed)
    }

    /// As [`Region::store`], into the word with this number among these.
    #[inline(always)]
    pub fn store(&self, word: usize, value: u64) {
        self.region.observed.access();
        self.region.before_store();
        self.words[word].store(value, Ordering::Relaxed);
        self.region.observed.stored(self.first + word, value);
    }

    /// Stores words one after the other, from the word with this number on.
    #[inline(always)]
    pub fn store_all(&self, first: usize, values: &[u64]) {
        for (n, (to, &value)) in (first..).zip(self.words[first..].iter().zip(values)) {
            self.region.observed.access();
            self.region.before_store();
            to.store(value, Ordering::Relaxed);
            self.region.observed.stored(self.first + n, value);
        }
    }

    /// Stores the words `from`, one after the other, from the word with this number on.
    #[inline(always)]
    pub fn copy(&self, first: usize, from: &[AtomicU64]) {
        let to = &self.words[first..first + from.len()];
        let copy = |n: usize, to: &AtomicU64, from: &AtomicU64| {
            self.region.observed.access();
            self.region.before_store();
            let value = from.load(Ordering::Relaxed);
            to.store(value, Ordering::Relaxed);
            self.region.observed.stored(self.first + first + n, value);
        };
        // Line by line: the loop over a line's words costs nothing.
        let ((lines, rest), (to_lines, to_rest)) =
            (from.as_chunks::<LINE_WORDS>(), to.as_chunks::<LINE_WORDS>());
        for (line, (to, from)) in to_lines.iter().zip(lines).enumerate() {
            for n in 0..LINE_WORDS {
                copy(LINE_WORDS * line + n, &to[n], &from[n]);
            }
        }
        for (n, (to, from)) in (LINE_WORDS * lines.len()..).zip(to_rest.iter().zip(rest)) {
            copy(n, to, from);
        }
    }
}

/// Ends in a panic. Apart, so that what leads here costs the others nothing.
#[cold]
fn outside(first: usize, len: usize, words: usize) -> ! {
    panic!("words {first}+{len} of {words}");
}
