//! The server's side of the directory, which tells readers where each segment is.

use crate::base::sync::{Ordering, fence};
use crate::index::slots::{SlotWriter, UndoLines, before_the_write};
#[cfg(feature = "verbs")]
use crate::layout::chunk;
use crate::layout::control::DIRECTORY_WORD;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::segment::{self, DirectoryEntry, directory_bits_max};
use crate::layout::slot::{Content, Image, check, encode};
use crate::layout::{PAGE, words};
use crate::region::{Region, RegionError};

/// The directory of a table that grows. Only the thread that has its lock writes entries (L1).
#[derive(Debug)]
pub(super) struct Directory {
    region: Region,
    geometry: Geometry,
    undo: UndoLines,
    /// Bits of a key's directory hash that number the entries.
    bits: u32,
    /// Entries written: those in use, and some of the next half.
    filled: u32,
    /// Bytes of the region that have memory behind them, from its beginning on.
    backed: u64,
}

/// Entries that one step copies into the next half.
const FILL: u32 = 64;

impl Directory {
    /// A directory without entries.
    pub fn new(region: &Region, geometry: &Geometry, undo: &UndoLines) -> Directory {
        let (region, geometry, undo) = (region.alias(), geometry.clone(), undo.clone());
        Directory { region, geometry, undo, bits: 0, filled: 0, backed: 0 }
    }

    /// The directory that another server has left.
    pub fn left(region: &Region, geometry: &Geometry, undo: &UndoLines) -> Directory {
        let found = region.load(DIRECTORY_WORD);
        let bits = found.min(directory_bits_max(geometry).into()) as u32;
        if u64::from(bits) != found {
            // The region is damaged. `entry_word` trusts this word.
            region.store(DIRECTORY_WORD, bits.into());
        }
        let mut directory = Directory::new(region, geometry, undo);
        (directory.bits, directory.filled) = (bits, 1 << bits);
        directory.backed = directory.end();
        directory
    }

    /// The byte behind the last entry written.
    fn end(&self) -> u64 {
        self.geometry.slot_offset(SlotIx(self.filled.into()))
    }

    /// As `Slots::restore`, for an entry (U4).
    pub fn restore(&self, slot: SlotIx, line: usize) -> bool {
        let before = before_the_write(&self.region, &self.geometry, slot, line);
        if let Some(before) = &before {
            self.writer().write(slot, &before.content());
        }
        before.is_some()
    }

    fn writer(&self) -> SlotWriter<'_> {
        SlotWriter::new(&self.region, &self.geometry)
    }

    /// The entry with this number. `None` in a damaged region.
    pub fn entry(&self, number: u32) -> Option<DirectoryEntry> {
        let slot = SlotIx(number.into());
        let words = self.region.words(self.geometry.slot_word(slot), self.geometry.shape().words());
        let image: Image = words::image(words);
        let view = check(self.geometry.shape(), self.geometry.identity(slot), &image).ok()?;
        DirectoryEntry::from_slot(&self.geometry, &view.key(), &view.value())
    }

    /// Sets every entry of a segment's keys to this one.
    pub fn set(&mut self, prefix: u32, depth: u32, entry: DirectoryEntry) {
        let all = (prefix..self.filled).step_by(1 << depth);
        all.filter(|&number| self.entry(number) != Some(entry)).for_each(|number| self.write(number, entry));
    }

    fn write(&self, number: u32, entry: DirectoryEntry) {
        entry.as_content(|content| self.write_slot(SlotIx(number.into()), content));
    }

    fn write_slot(&self, slot: SlotIx, content: &Content<'_>) {
        if self.region.load(self.geometry.slot_word(slot)) == 0 {
            // No reader looks there yet.
            let image = encode(self.geometry.shape(), self.geometry.identity(slot), 2, content);
            let base = self.geometry.slot_word(slot);
            return (base..).zip(image).for_each(|(word, bits)| self.region.store(word, bits));
        }
        let undo = self.undo.keep(&self.region, &self.geometry, slot);
        self.writer().write(slot, content);
        if let Some(undo) = undo {
            undo.free();
        }
    }

    /// Tells clients over a network the remote key of a chunk (E0).
    #[cfg(feature = "verbs")]
    pub fn tell_key(&self, chunk: u32, remote_key: u32) -> Result<(), RegionError> {
        let slot = chunk::chunk_slot(&self.geometry, chunk);
        let start = self.geometry.slot_offset(slot);
        self.region.back_more(start..start + self.geometry.shape().bytes() as u64)?;
        chunk::as_content(chunk, remote_key, |content| self.write_slot(slot, content));
        Ok(())
    }

    /// Tells clients that no chunk is registered.
    #[cfg(feature = "verbs")]
    pub fn tell_no_keys(&self) {
        let slots = (0..chunk::CHUNKS).map(|number| chunk::chunk_slot(&self.geometry, number));
        let told = slots.filter(|&slot| self.region.load(self.geometry.slot_word(slot)) != 0);
        told.for_each(|slot| self.write_slot(slot, &Content::default()));
    }

    /// Copies some entries into the next half of the directory. Returns whether that half is complete.
    pub fn fill(&mut self) -> Result<bool, RegionError> {
        let whole = 2u32 << self.bits;
        if self.bits == directory_bits_max(&self.geometry) || self.filled == whole {
            return Ok(true);
        }
        let until = whole.min(self.filled + FILL);
        self.back(until)?;
        for number in self.filled..until {
            if let Some(entry) = self.entry(number - (1 << self.bits)) {
                self.write(number, entry);
            }
            self.filled = number + 1;
        }
        Ok(self.filled == whole)
    }

    /// Puts memory behind the first entries.
    fn back(&mut self, entries: u32) -> Result<(), RegionError> {
        let end = self.geometry.slot_offset(SlotIx(entries.into()));
        if end > self.backed {
            let end = (end + (64 << 10)).next_multiple_of(PAGE as u64);
            let end = end.min(self.geometry.slot_offset(self.geometry.segment_first(0)));
            self.region.back_more(self.backed..end)?;
            self.backed = end;
        }
        Ok(())
    }

    /// Makes the directory deep enough for segments of this depth (E1). `false` if that is not possible.
    pub fn deepen(&mut self, depth: u32) -> Result<bool, RegionError> {
        while self.bits < depth {
            if self.bits == directory_bits_max(&self.geometry) {
                return Ok(false);
            }
            while !self.fill()? {}
            self.bits += 1;
            // The entries are complete before a reader looks at them. Pairs with the acquire fence of a reader that has
            // loaded the word.
            fence(Ordering::Release);
            self.region.store(DIRECTORY_WORD, self.bits.into());
        }
        Ok(true)
    }

    /// Writes the first entry.
    pub fn begin(&mut self, entry: DirectoryEntry) -> Result<(), RegionError> {
        self.back(1)?;
        self.write(0, entry);
        self.filled = 1;
        Ok(())
    }

    /// All entries in use.
    pub fn entries(&self) -> impl Iterator<Item = (u32, Option<DirectoryEntry>)> {
        (0..1 << self.bits).map(|number| (number, self.entry(number)))
    }
}

/// The first word of a key's entry. For the server, which has written it.
#[inline]
pub(super) fn entry_word(region: &Region, geometry: &Geometry, directory: u32) -> u64 {
    let bits = region.load(DIRECTORY_WORD) as u32;
    // Pairs with the release fence in `deepen`.
    fence(Ordering::Acquire);
    region.load(segment::segment_word(geometry, directory & segment::low(bits)))
}
