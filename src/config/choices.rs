//! The choices that a table is made from.

use crate::base::setters::setters;
use crate::cuckoo;
use crate::layout::LINE;
use crate::layout::geometry::{Geometry, Layout};
use crate::layout::hash::Seeds;
use crate::layout::slot::{FURTHER, HEADER, KEY_MAX};
use std::fmt;
use std::time::Duration;

/// Payload of a slot of two lines, in bytes.
pub(super) const TWO_LINES: usize = LINE - HEADER + FURTHER;

/// How large a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableSize {
    /// Room for this many keys at the preset's design load.
    Keys(u64),
    /// This many main slots.
    Slots(u64),
    /// As large as its keys need: it grows and shrinks by segments while it is read.
    ///
    /// Over verbs memory is registered as it is taken, and stays with the server.
    Growing {
        /// The most memory it may take, in bytes, its directory included. So much address space is
        /// reserved; memory is taken as segments are.
        bytes_max: u64,
        /// Main slots of a segment; `None` for what suits most: a segment of about 1 MiB. Larger ones
        /// take a little fewer READs per GET, and more memory at once. With a few dozen slots, a split
        /// can once in a long while not end, because too many keys go to one side, and puts there are
        /// refused: have 256 or more.
        segment_slots: Option<u64>,
    },
}

impl TableSize {
    /// A table that grows and shrinks with its keys, and takes at most `bytes_max` bytes.
    pub const fn up_to(bytes_max: u64) -> TableSize {
        TableSize::Growing { bytes_max, segment_slots: None }
    }
}

impl fmt::Display for TableSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableSize::Keys(n) => write!(f, "{n} keys"),
            TableSize::Slots(n) => write!(f, "{n} main slots"),
            TableSize::Growing { bytes_max, .. } => write!(f, "up to {bytes_max} bytes"),
        }
    }
}

/// What a table is made from. All lengths are in bytes.
///
/// ```
/// use oneread::{Config, TableSize};
/// let config = Config::new().size(TableSize::Keys(10_000));
/// let geometry = config.geometry().unwrap();
/// assert_eq!(geometry.shape().bytes(), 128); // 16 header + 110 key and value + stamps, in whole lines
///
/// // Short keys and values take less.
/// let geometry = config.key_max(16).value_max(32).geometry().unwrap();
/// assert_eq!(geometry.shape().bytes(), 64);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Where a key may be stored, and what one READ fetches.
    pub layout: Layout,
    /// Number of keys or slots.
    pub size: TableSize,
    /// Longest key: 1 to 255 bytes.
    pub key_max: usize,
    /// Longest key that stands in its slot, so that a GET is 1 READ. A longer one is in an *extent* with its value,
    /// whatever that is: a GET of it takes one READ more. This sets the size of slots, with `inline_max`. `None`:
    /// `key_max`, and no more than what two lines (128 bytes) have room for: 86 bytes, 74 with a life. With 0, no key
    /// stands in its slot.
    pub key_inline: Option<usize>,
    /// Longest value, at most 64 MiB. A value that does not fit its slot beside the key is an *extent* of
    /// its own: a GET of it takes one READ more.
    pub value_max: usize,
    /// Longest value that stands in its slot, beside the longest key that does. This sets the size of slots. `None`:
    /// `value_max` where a slot can hold that, otherwise what two lines (128 bytes) have room for.
    /// Beside a shorter key a longer value stands in the slot, too.
    pub inline_max: Option<usize>,
    /// The most memory for extents, in bytes. It is taken block by block as values need it; in huge pages, and
    /// over verbs in a table of one size, all of it at the start.
    ///
    /// `None`: a table whose keys and values all stand in their slots has none. That is so where slots can hold
    /// `value_max` (about 4 KiB less `key_max`), and `key_inline` and `inline_max` ask for no less. Another table of one size
    /// has as much as its main slots, and at least what its longest values need: two blocks, each with room
    /// for four. One that grows takes what extents need from its `bytes_max`.
    pub heap_bytes: Option<u64>,
    /// Whether entries have a [`Life`](crate::layout::Life): a number that tells whether it is still the same
    /// entry, and a time when it ends. It takes 12 bytes of each slot. Without it, a time to live is refused.
    pub life: bool,
    /// Whether entries may have owners ([`Client::owner`](crate::Client::owner)): an owner's entries go with it, all at
    /// once. Only with [`life`](Config::life). It takes 584 KiB. A GET that finds an entry with an owner loads a word
    /// more, over verbs by one more READ.
    pub owners: bool,
    /// The grace time T, at most 60 s. A pass over a network that finds nothing is trusted only if
    /// it took less than T; otherwise the GET looks again. The traces of a moved key stay for 2T.
    /// Zero is safe only if every reader is on this host: no pass over a network takes less.
    pub grace: Duration,
    /// Seeds of the hash functions. `None` means random seeds.
    pub seeds: Option<Seeds>,
}

setters!(Config {
    layout: Layout,
    size: TableSize,
    key_max: usize,
    key_inline: impl Into<Option<usize>>,
    value_max: usize,
    inline_max: impl Into<Option<usize>>,
    heap_bytes: impl Into<Option<u64>>,
    life: bool,
    owners: bool,
    grace: Duration,
    seeds: impl Into<Option<Seeds>>,
});

impl Default for Config {
    /// `windowed:8` for one million keys of at most 255 bytes, with values of at most 1 MiB, and a grace
    /// time of 2 ms. Slots have two lines (128 bytes): key and value stand in one if they have 110 bytes
    /// together, and a GET is 1 READ. Longer values, and keys of more than 86 bytes, are in extents, and 1 READ more.
    fn default() -> Config {
        Config {
            layout: cuckoo::WINDOWED_8,
            size: TableSize::Keys(1_000_000),
            key_max: KEY_MAX,
            key_inline: None,
            value_max: 1 << 20,
            inline_max: None,
            heap_bytes: None,
            life: false,
            owners: false,
            grace: Duration::from_millis(2),
            seeds: None,
        }
    }
}

impl From<&Geometry> for Config {
    /// The choices that make such a table again: [`Config::geometry`] gives a geometry that is equal but for the
    /// table's number. With one of them replaced by what the table was made from it still does.
    fn from(it: &Geometry) -> Config {
        let heap_bytes = it.heap().bytes;
        Config {
            layout: it.layout(),
            size: if it.grows() {
                let segment_slots = Some(it.main_slots());
                TableSize::Growing { bytes_max: it.slots_end(), segment_slots }
            } else {
                TableSize::Slots(it.main_slots())
            },
            key_max: it.key_max(),
            key_inline: Some(it.key_inline()),
            value_max: it.value_max(),
            inline_max: it.has_heap().then(|| it.beside_key_inline()),
            heap_bytes: it.has_heap().then_some(heap_bytes),
            life: it.has_life(),
            owners: it.has_owners(),
            grace: it.grace(),
            seeds: Some(*it.seeds()),
        }
    }
}

impl Config {
    /// As [`Config::default`].
    pub fn new() -> Config {
        Config::default()
    }

    /// What tests count with: keys of at most 32 bytes, and values of at most 78, which all stand in slots
    /// of 128 bytes.
    #[cfg(test)]
    pub(crate) fn short() -> Config {
        Config::default().key_max(32).value_max(78)
    }
}
