//! The choices a table is made from: layout, size, longest key, longest value, grace time.
//!
//! [`crate::layout::geometry`] derives the bytes of a table from them.

use crate::families::presets;
use crate::layout::LINE;
use crate::layout::extent::{HEAP_BYTES_MAX, HeapSpace, VALUE_MAX, block_bytes, extent_bytes};
use crate::layout::geometry::{
    Derived, Family, GRACE_MAX, Geometry, HOMES_MAX, Layout, OVERFLOW_BLOCKS_MAX, SEGMENT_HOMES_MAX,
    SEGMENTS_MAX,
};
use crate::layout::hash::{Seeds, mix};
use crate::layout::slot::{FURTHER, HEADER, KEY_MAX, REFERENCE_BYTES, SLOT_BYTES_MAX, SlotShape};
use crate::placement::Preset;
use crate::setters::setters;
use crate::units::{bytes, time};
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

impl Layout {
    /// The preset with exactly this layout, if any.
    pub fn preset(self) -> Option<&'static Preset> {
        presets().find(|p| p.layout == self)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.preset() {
            Some(preset) => write!(f, "{}:{}", self.family.name(), preset.name),
            None => {
                let Layout { family, choices, bucket_slots, window_buckets, block_slots } = self;
                write!(f, "{}:d={choices},b={bucket_slots},w={window_buckets}", family.name())?;
                if *block_slots > 0 { write!(f, ",o={block_slots}") } else { Ok(()) }
            }
        }
    }
}

impl FromStr for Layout {
    type Err = ConfigError;

    /// Parses `preset`, `preset:n`, `family:preset` or `family:preset:n`. A family alone means its
    /// first preset. A preset without its number means the first preset of that name.
    ///
    /// `family:d=2,b=3,w=4,o=5` gives the numbers themselves: choices, slots per bucket, buckets
    /// per window, slots per overflow block. `o` is omitted where there are no overflow blocks.
    /// Numbers are not checked here: [`Config::geometry`] refuses impossible ones.
    fn from_str(text: &str) -> Result<Layout, ConfigError> {
        let (family, rest) = match text.split_once(':') {
            Some((f, rest)) if Family::ALL.iter().any(|x| x.1 == f) => (Some(f), rest),
            None if Family::ALL.iter().any(|x| x.1 == text) => (Some(text), ""),
            _ => (None, text),
        };
        presets()
            .filter(|p| family.is_none_or(|f| p.layout.family.name() == f))
            .find(|p| rest.is_empty() || p.name == rest || p.name.split(':').next() == Some(rest))
            .filter(|_| !text.is_empty())
            .map(|p| p.layout)
            .or_else(|| by_numbers(family?, rest))
            .ok_or_else(|| ConfigError::UnknownLayout { given: text.into() })
    }
}

/// The layout of a family with the numbers in `text`.
fn by_numbers(family: &str, text: &str) -> Option<Layout> {
    let family = Family::ALL.iter().find(|x| x.1 == family)?.0;
    let mut parts = text.split(',');
    let mut number = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    let (choices, bucket_slots, window_buckets) = (number("d")?, number("b")?, number("w")?);
    let block_slots = if text.contains(",o=") { number("o")? } else { 0 };
    let layout = Layout { family, choices, bucket_slots, window_buckets, block_slots };
    parts.next().is_none().then_some(layout)
}

/// Payload of a slot of two lines, in bytes.
const TWO_LINES: usize = LINE - HEADER + FURTHER;

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
    /// A table that grows and shrinks with its keys, and takes at most so many bytes.
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
    /// Longest value, at most 64 MiB. A value that does not fit its slot beside the key is an *extent* of
    /// its own: a GET of it takes one READ more.
    pub value_max: usize,
    /// Longest value that stands in its slot, beside the longest key. This sets the size of slots. `None`:
    /// `value_max` where a slot can hold that, otherwise what two lines (128 bytes) have room for. Beside a
    /// shorter key a longer value stands in the slot, too.
    pub inline_max: Option<usize>,
    /// The most memory for extents, in bytes. It is taken block by block as values need it; in huge pages, and
    /// over verbs in a table of one size, all of it at the start.
    ///
    /// `None`: a table whose values all stand in their slots has none. That is so where slots can hold
    /// `value_max` (about 4 KiB less `key_max`), and `inline_max` asks for no less. Another table of one size
    /// has as much as its main slots, and at least what its longest values need: two blocks, each with room
    /// for four. One that grows takes what extents need from its `bytes_max`.
    pub heap_bytes: Option<u64>,
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
    value_max: usize,
    inline_max: impl Into<Option<usize>>,
    heap_bytes: impl Into<Option<u64>>,
    grace: Duration,
    seeds: impl Into<Option<Seeds>>,
});

impl Default for Config {
    /// `windowed:8` for one million keys of at most 86 bytes, with values of at most 1 MiB, and a grace
    /// time of 2 ms. Slots have two lines (128 bytes): key and value stand in one if they have 110 bytes
    /// together, and a GET is 1 READ. Longer values are extents, and 1 READ more.
    fn default() -> Config {
        Config {
            layout: crate::cuckoo::WINDOWED_8,
            size: TableSize::Keys(1_000_000),
            // As long as a slot of two lines can have beside a reference.
            key_max: TWO_LINES - REFERENCE_BYTES,
            value_max: 1 << 20,
            inline_max: None,
            heap_bytes: None,
            grace: Duration::from_millis(2),
            seeds: None,
        }
    }
}

impl From<&Geometry> for Config {
    /// The choices that make this table again: [`Config::geometry`] gives an equal geometry. With one of them
    /// replaced by what the table was made from it still does.
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
            value_max: it.value_max(),
            inline_max: it.has_heap().then(|| it.shape().payload_max().saturating_sub(it.key_max())),
            heap_bytes: it.has_heap().then_some(heap_bytes),
            grace: it.grace(),
            seeds: Some(*it.seeds()),
        }
    }
}

/// Why a table cannot be made from a [`Config`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No preset of that name.
    #[error("unknown layout {given:?}; there are: {}", preset_names())]
    UnknownLayout {
        /// What was asked for.
        given: String,
    },
    /// A capacity of zero.
    #[error("a table for 0 {unit} cannot hold anything; ask for 1 or more")]
    ZeroCapacity {
        /// "keys" or "slots".
        unit: &'static str,
    },
    /// Less memory than a table that grows begins with.
    #[error(
        "{} are too few for a table that grows, with such keys and values: it needs {}; allow that much, or lower `Config::value_max`",
        bytes(*given),
        bytes(*need)
    )]
    TooSmall {
        /// What was allowed, in bytes.
        given: u64,
        /// What one segment and its directory take, or two blocks of values that do not fit their slots.
        need: u64,
    },
    /// More slots than the layout can address.
    #[error(
        "{given} {unit} are more than a table of this layout can have, at most {max} slots; split the keys over several tables"
    )]
    TooLarge {
        /// What was asked for.
        given: u64,
        /// "keys" or "slots".
        unit: &'static str,
        /// Most main slots possible.
        max: u64,
    },
    /// A key length out of range.
    #[error(
        "`Config::key_max` is {given} bytes, allowed is 1 to {KEY_MAX}; shorten the keys, as by hashing them"
    )]
    KeyMax {
        /// What was asked for.
        given: usize,
    },
    /// Key and value together do not fit into the largest slot. Longer values need not.
    #[error("a key of {key_max} and a value of {inline_max} bytes do not fit into the largest slot, which holds {room}; lower `Config::inline_max` to {}, or leave it out", room - key_max)]
    InlineMax {
        /// Longest key asked for.
        key_max: usize,
        /// Longest value asked for that stands in its slot.
        inline_max: usize,
        /// Bytes of payload in the largest slot.
        room: usize,
    },
    /// Values may be longer than any table takes.
    #[error(
        "`Config::value_max` is {given} bytes, allowed is 0 to {VALUE_MAX}; store longer values in parts"
    )]
    LongestValue {
        /// Longest value asked for.
        given: usize,
    },
    /// Too little memory, or too much, for values that do not fit their slots.
    #[error(
        "`Config::heap_bytes` is {given}; values of up to {value_max} bytes that do not fit their slots need {need} to {HEAP_BYTES_MAX}; set it to one of these"
    )]
    HeapBytes {
        /// Longest value asked for.
        value_max: usize,
        /// What was asked for.
        given: u64,
        /// The least that is of use.
        need: u64,
    },
    /// A grace time out of range.
    #[error("`Config::grace` is {}, allowed is 0 to {}; 2 ms suit most networks", time(*given), time(GRACE_MAX))]
    Grace {
        /// What was asked for.
        given: Duration,
    },
    /// A number that is impossible for a layout of this family.
    #[error(
        "a {family} layout with {field} = {value} is impossible, allowed is {allowed}; there are: {}",
        preset_names()
    )]
    Impossible {
        /// Name of the family.
        family: &'static str,
        /// Name of the number.
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// The operating system gave no random bytes for the seeds.
    #[error("no random bytes for the hash seeds; give seeds of your own")]
    Seeds {
        /// The operating system's answer.
        source: io::Error,
    },
}

fn preset_names() -> String {
    presets().map(|p| format!("{}:{}", p.layout.family.name(), p.name)).collect::<Vec<_>>().join(", ")
}

impl Config {
    /// The same as [`Config::default`].
    pub fn new() -> Config {
        Config::default()
    }

    /// What tests count with: keys of at most 32 bytes, and values of at most 78, which all stand in slots
    /// of 128 bytes.
    #[cfg(test)]
    pub(crate) fn short() -> Config {
        Config::default().key_max(32).value_max(78)
    }

    /// The largest size whose table, otherwise like this one, takes at most so many bytes, as `of` counts them.
    /// `None` if there is none.
    pub(crate) fn fitting(&self, bytes: u64, of: fn(&Geometry) -> u64) -> Option<TableSize> {
        let most = match self.size {
            TableSize::Keys(n) | TableSize::Slots(n) | TableSize::Growing { bytes_max: n, .. } => n,
        };
        let sized = |n| match self.size {
            TableSize::Keys(_) => TableSize::Keys(n),
            TableSize::Slots(_) => TableSize::Slots(n),
            TableSize::Growing { segment_slots, .. } => TableSize::Growing { bytes_max: n, segment_slots },
        };
        let seeds = self.seeds.unwrap_or(Seeds::from_number(0));
        let fits = |n| {
            let config = Config { size: sized(n), seeds: Some(seeds), ..*self };
            config.geometry().is_ok_and(|geometry| of(&geometry) <= bytes)
        };
        let (mut fit, mut beyond) = (0, most.saturating_add(1));
        while beyond - fit > 1 {
            let middle = fit + (beyond - fit) / 2;
            if fits(middle) { fit = middle } else { beyond = middle }
        }
        // What a table that grows may take is rounded down to whole segments.
        let fit = if matches!(self.size, TableSize::Growing { .. }) { fit.min(bytes) } else { fit };
        (fit > 0).then(|| sized(fit))
    }

    /// Computes the geometry of the table. Draws random seeds if there are none; otherwise the
    /// result is always the same.
    ///
    /// # Errors
    /// [`ConfigError`] says what was given and what is allowed.
    pub fn geometry(&self) -> Result<Geometry, ConfigError> {
        let layout = self.layout;
        layout.check().map_err(|number| ConfigError::Impossible {
            family: layout.family.name(),
            field: number.field,
            value: number.value,
            allowed: number.allowed(),
        })?;
        if !(1..=KEY_MAX).contains(&self.key_max) {
            return Err(ConfigError::KeyMax { given: self.key_max });
        }
        let (shape, has_heap) = self.shape()?;
        if self.grace > GRACE_MAX {
            return Err(ConfigError::Grace { given: self.grace });
        }
        let (b, w) = (u64::from(layout.bucket_slots), u64::from(layout.window_buckets));
        let (given, unit) = match self.size {
            TableSize::Keys(n) => (n, "keys"),
            TableSize::Slots(n) => (n, "slots"),
            TableSize::Growing { segment_slots, .. } => {
                (segment_slots.unwrap_or(segment_slots_for(shape)), "slots of a segment")
            }
        };
        if given == 0 {
            return Err(ConfigError::ZeroCapacity { unit });
        }
        let design = u64::from(layout.preset().map_or(75, |p| p.design_load));
        // Keys are rounded up to whole buckets, slots down. A table has at least one window.
        let buckets = match self.size {
            TableSize::Keys(n) => (u128::from(n) * 100).div_ceil(u128::from(design * b)) + u128::from(w - 1),
            TableSize::Slots(_) | TableSize::Growing { .. } => u128::from(given / b),
        };
        let buckets = buckets.max(w.into());
        let max = layout.main_slots_max();
        if buckets * u128::from(b) > max.into() {
            return Err(ConfigError::TooLarge { given, unit, max });
        }
        let homes = buckets as u64 - (w - 1);
        if matches!(self.size, TableSize::Growing { .. }) && homes > SEGMENT_HOMES_MAX {
            return Err(ConfigError::TooLarge { given, unit, max: SEGMENT_HOMES_MAX * b });
        }
        let overflow_blocks = layout.overflow_blocks(homes * b);
        let seeds = match self.seeds {
            Some(seeds) => seeds,
            None => Seeds::random().map_err(|source| ConfigError::Seeds { source })?,
        };
        let geometry = Geometry {
            layout,
            shape,
            key_max: self.key_max,
            value_max: self.value_max,
            homes,
            overflow_blocks,
            segments_max: 0,
            heap: HeapSpace::default(),
            grace: self.grace,
            // Random like the seeds, so that slots of another table do not validate in this one.
            generation: mix(seeds.shard[3]),
            seeds,
            derived: Derived::of(layout, shape, self.key_max, &seeds),
        };
        let heap_need = 2 * block_bytes(0, extent_bytes(self.value_max));
        let (geometry, heap_bytes) = match self.size {
            TableSize::Growing { bytes_max, .. } => {
                let least = if has_heap && self.heap_bytes.is_none() { heap_need } else { 0 };
                (growing_to(geometry, bytes_max, least)?, bytes_max)
            }
            _ => {
                let slots = geometry.main_slots() * geometry.shape.bytes() as u64;
                (geometry, slots.max(heap_need))
            }
        };
        if !has_heap {
            return Ok(geometry);
        }
        let given = self.heap_bytes.unwrap_or(heap_bytes.min(HEAP_BYTES_MAX));
        let geometry = if given <= HEAP_BYTES_MAX { geometry.with_heap(given) } else { None };
        geometry.ok_or(ConfigError::HeapBytes { value_max: self.value_max, given, need: heap_need })
    }

    /// The shape of slots, and whether values may be too long for them.
    fn shape(&self) -> Result<(SlotShape, bool), ConfigError> {
        let Config { key_max, value_max, .. } = *self;
        if value_max > VALUE_MAX {
            return Err(ConfigError::LongestValue { given: value_max });
        }
        let for_lengths = |value_max| SlotShape::for_lengths(key_max, value_max);
        let wants_heap = self.heap_bytes.is_some()
            || self.inline_max.map_or(for_lengths(value_max).is_none(), |max| max < value_max);
        let inline_max = match self.inline_max {
            Some(inline_max) => inline_max.min(value_max),
            None if wants_heap => value_max.min(TWO_LINES.saturating_sub(key_max)),
            None => value_max,
        };
        let inline_max = if wants_heap { inline_max.max(REFERENCE_BYTES) } else { value_max };
        let room = SlotShape::from_bytes(SLOT_BYTES_MAX).map_or(0, SlotShape::payload_max);
        // Without a heap, slots can hold the longest value.
        let shape = for_lengths(inline_max).ok_or(ConfigError::InlineMax { key_max, inline_max, room })?;
        Ok((shape, wants_heap))
    }
}

/// Main slots of a segment by default: about 1 MiB.
fn segment_slots_for(shape: SlotShape) -> u64 {
    ((1 << 20) / shape.bytes() as u64).clamp(1 << 10, 1 << 14)
}

/// The geometry of a table of as many such segments as fit into so many bytes, its directory included. It
/// needs `least` bytes for something else.
fn growing_to(segment: Geometry, bytes_max: u64, least: u64) -> Result<Geometry, ConfigError> {
    let of = |segments_max| segment.clone().growing(segments_max);
    let need = of(1).region_bytes().max(least);
    if need > bytes_max {
        return Err(ConfigError::TooSmall { given: bytes_max, need });
    }
    let (mut fit, mut beyond) = (1, SEGMENTS_MAX + 1);
    while beyond - fit > 1 {
        let middle = fit + (beyond - fit) / 2;
        if of(middle).region_bytes() <= bytes_max { fit = middle } else { beyond = middle }
    }
    Ok(of(fit))
}

impl Layout {
    /// Overflow blocks to reserve beside `main` slots: half as many slots as `main`. That is more
    /// than any preset uses at 95 % load.
    fn overflow_blocks(self, main: u64) -> u64 {
        match u64::from(self.block_slots) {
            0 => 0,
            b => main.div_ceil(2 * b).max(4),
        }
    }

    /// Most main slots: bounded by the number of homes, or by the blocks that a link can number.
    fn main_slots_max(self) -> u64 {
        match u64::from(self.block_slots) {
            0 => HOMES_MAX,
            b => OVERFLOW_BLOCKS_MAX * 2 * b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest};

    /// Two errors are the same if they show the same: an [`io::Error`] cannot be compared.
    impl PartialEq for ConfigError {
        fn eq(&self, other: &ConfigError) -> bool {
            format!("{self:?}") == format!("{other:?}")
        }
    }

    fn parsed(text: &str) -> Layout {
        text.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    fn made(layout: Layout, size: TableSize) -> Result<Geometry, ConfigError> {
        Config { layout, size, seeds: Some(Seeds::from_number(1)), ..Config::short() }.geometry()
    }

    /// A table that grows is made of as many bytes as its refusal asks for, and of not one less.
    #[test]
    fn a_growing_table_needs_what_it_says() {
        for layout in ["windowed:8", "farm", "list"] {
            let of = |bytes_max| {
                made(parsed(layout), TableSize::Growing { bytes_max, segment_slots: Some(1 << 10) })
            };
            let Err(ConfigError::TooSmall { given: 4096, need }) = of(4096) else { panic!("{layout}") };
            assert_eq!(of(need).unwrap().segments_max(), 1, "{layout}");
            assert_eq!(of(need - 1), Err(ConfigError::TooSmall { given: need - 1, need }), "{layout}");
        }
    }

    /// A size that a refusal asks for is taken, and not one byte less: with values that need a heap of their
    /// own, too, in one budget or with one that was asked for.
    #[test]
    fn what_a_refusal_asks_for_is_taken() {
        let growing = |bytes_max| TableSize::Growing { bytes_max, segment_slots: None };
        for value_max in [78, 5_000, 10_000, 1 << 20, VALUE_MAX] {
            let of = |bytes_max| Config { size: growing(bytes_max), value_max, ..Config::short() }.geometry();
            let Err(ConfigError::TooSmall { given: 4096, need }) = of(4096) else { panic!("{value_max}") };
            assert!(of(need).is_ok(), "{value_max}: {need}");
            assert_eq!(of(need - 1), Err(ConfigError::TooSmall { given: need - 1, need }), "{value_max}");
            let of = |heap_bytes| {
                let config = Config { value_max, heap_bytes: Some(heap_bytes), ..Config::short() };
                config.geometry()
            };
            let Err(ConfigError::HeapBytes { need, .. }) = of(1) else { panic!("{value_max}") };
            assert!(of(need).is_ok() && of(need - 1).is_err(), "{value_max}: {need}");
        }
        // More than a heap may have: the slots have the rest.
        let most = Config { size: growing(2 * HEAP_BYTES_MAX), value_max: 10_000, ..Config::short() };
        assert!(most.geometry().unwrap().heap().bytes <= HEAP_BYTES_MAX);
        // What is too long is named: here values that are to stand in their slots.
        let inline = Config { inline_max: Some(5_000), ..most }.geometry().unwrap_err();
        let ConfigError::InlineMax { key_max: 32, inline_max: 5_000, room } = inline else {
            panic!("{inline}")
        };
        assert!(Config { inline_max: Some(room - 32), ..most }.geometry().is_ok());
    }

    /// What is said of long values is done: how much memory they have, and which of them stand in slots.
    #[test]
    fn long_values_have_the_memory_that_was_asked_for() {
        let slots = TableSize::Slots(1 << 10);
        let growing = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(256) };
        let config = |size| Config { size, value_max: 10_000, ..Config::short() };
        for size in [slots, growing] {
            let given = Config { heap_bytes: Some(8 << 20), ..config(size) };
            let geometry = given.geometry().unwrap();
            // Less what its books take.
            assert!((7 << 20..=8 << 20).contains(&geometry.heap().bytes), "{size:?}: {:?}", geometry.heap());
            assert_eq!(geometry.value_max(), 10_000);
        }
        // A table that grows has one budget for slots and values.
        assert!(config(growing).geometry().unwrap().heap().bytes > 60 << 20);
        // No slot has room for longer values than there are.
        let shape = |value_max, inline_max| {
            let config = Config { value_max, inline_max: Some(inline_max), ..config(growing) };
            config.geometry().unwrap().shape()
        };
        assert_eq!(shape(100, 100_000), shape(100, 100));
        assert!(shape(10_000, 500).bytes() > shape(10_000, 100).bytes());
    }

    /// The table of any configuration is made again from what it is, and from any part of what it was made from
    /// beside that.
    #[test]
    fn every_table_is_made_again() {
        // Of all lengths as many short ones as long ones.
        let up_to = |bits: u32| (0..bits, any::<u64>()).prop_map(|(bits, n)| n & ((2 << bits) - 1));
        let layouts: Vec<Layout> = presets().map(|preset| preset.layout).collect();
        let own = Layout { bucket_slots: 3, window_buckets: 4, ..parsed("pilaf") };
        let layout = proptest::sample::select([layouts, vec![own]].concat());
        let segment_slots = proptest::option::of(up_to(16).prop_map(|n| n.max(8)));
        let growing = (up_to(44), segment_slots)
            .prop_map(|(bytes_max, segment_slots)| TableSize::Growing { bytes_max, segment_slots });
        let size = prop_oneof![
            up_to(36).prop_map(TableSize::Keys),
            up_to(36).prop_map(TableSize::Slots),
            growing.clone(),
            growing
        ];
        let length = |bits| up_to(bits).prop_map(|n| n as usize);
        let lengths = (1..=KEY_MAX, length(26), proptest::option::of(length(13)));
        let heap_bytes = proptest::option::of(up_to(44));
        let made = [const { std::cell::Cell::new(0u32) }; 4];
        let given = (layout, size, lengths, heap_bytes, any::<u64>(), 0..1_000_000u64);
        proptest!(ProptestConfig::with_cases(2_048), |((layout, size, (key_max, value_max, inline_max), heap_bytes, seed, ns) in given)| {
            let grace = Duration::from_nanos(ns);
            let seeds = Some(Seeds::from_number(seed));
            let asked =
                Config { layout, size, key_max, value_max, inline_max, heap_bytes, grace, seeds };
            let Ok(table) = asked.geometry() else { return Ok(()) };
            let kind = &made[usize::from(table.grows()) + 2 * usize::from(table.has_heap())];
            kind.set(kind.get() + 1);
            let as_it_is = Config::from(&table);
            for parts in 0..8 {
                let is_given = |part: u32| parts >> part & 1 == 1;
                let again = Config {
                    size: if is_given(0) { size } else { as_it_is.size },
                    inline_max: inline_max.filter(|_| is_given(1)).or(as_it_is.inline_max),
                    heap_bytes: heap_bytes.filter(|_| is_given(2)).or(as_it_is.heap_bytes),
                    ..as_it_is
                };
                prop_assert_eq!(again.geometry(), Ok(table.clone()), "{:?}", again);
            }
        });
        let made = made.map(std::cell::Cell::into_inner);
        assert!(
            made.iter().all(|&tables| tables >= 10),
            "of one size, growing, and each with a heap: {made:?}"
        );
    }

    /// Without a word about lengths, keys of up to 86 bytes and values of up to 1 MiB fit. Slots have two lines,
    /// and no more than a slot's memory is set aside for long values beside it.
    #[test]
    fn the_default_takes_ordinary_data() {
        let sized = |size| Config::new().size(size).geometry().unwrap();
        for keys in [1, 100, 1_000_000] {
            let it = sized(TableSize::Keys(keys));
            assert_eq!((it.key_max(), it.value_max(), it.shape().bytes()), (86, 1 << 20, 128));
            let slots = it.main_slots() * 128;
            let need = 2 * block_bytes(0, extent_bytes(1 << 20));
            let heap = it.heap();
            assert!(heap.bytes <= slots.max(need) && heap.bytes + 2 * heap.block_bytes > slots, "{heap:?}");
            assert!(heap.bytes >= 2 * heap.block_bytes, "{heap:?}");
            // The empty table takes memory for its slots alone.
            assert!(it.bytes_at_first() < slots + (64 << 10));
        }
        let growing = sized(TableSize::up_to(1 << 30));
        assert_eq!((growing.key_max(), growing.value_max(), growing.shape().bytes()), (86, 1 << 20, 128));
        assert!(growing.has_heap() && growing.bytes_max() <= 1 << 30);
        // With what is inline, and what is not.
        let it = sized(TableSize::Keys(100));
        for (key, value, inline) in
            [(1, 109, true), (86, 24, true), (32, 78, true), (86, 25, false), (1, 110, false)]
        {
            assert_eq!(it.is_inline(&vec![0; key], value), inline, "{key}, {value}");
        }
    }

    /// What is said of lengths means the same for a table of one size and for one that grows: values that slots
    /// can hold stand in slots, all others have a heap.
    #[test]
    fn lengths_mean_the_same_in_both_sizes() {
        for size in [TableSize::Slots(1 << 10), TableSize::up_to(64 << 20)] {
            let of = |config: Config| {
                let geometry = config.size(size).geometry().unwrap();
                (geometry.shape().bytes(), geometry.has_heap())
            };
            let it = Config::short();
            assert_eq!(of(it), (128, false));
            assert_eq!(of(it.value_max(200)), (256, false));
            assert_eq!(of(it.value_max(3_900)), (4_096, false));
            assert_eq!(of(it.value_max(4_000)), (128, true));
            assert_eq!(of(it.value_max(200).inline_max(200)), (256, false));
            assert_eq!(of(it.value_max(200).inline_max(100)), (192, true));
            assert_eq!(of(it.value_max(200).heap_bytes(1 << 20)), (128, true));
            assert_eq!(of(Config::new()), (128, true));
            assert_eq!(of(Config::new().key_max(255)), (320, true));
            assert_eq!(of(Config::new().inline_max(200)), (320, true));
            assert_eq!(of(Config::new().inline_max(0)), (128, true));
            assert_eq!(of(Config::new().key_max(16).inline_max(24)), (64, true));
            assert_eq!(of(Config::new().value_max(32)), (192, false));
        }
    }

    /// A heap is shorter than what was asked for by less than two of its blocks. Asked for with its own length, it
    /// is the same.
    #[test]
    fn heaps_are_rounded_down_a_little() {
        for longest in [100, 5_000, 1 << 20, VALUE_MAX] {
            let more = |bits: u32| [0, 1, 4_096, 1 << (bits - 1), (1 << (bits - 8)) - 1];
            for given in (16..46).flat_map(|bits| more(bits).map(|more| (1u64 << bits) + more)) {
                let Some(heap) = HeapSpace::behind(0, given, longest) else { continue };
                let (lost, part) = (given - heap.bytes, heap.bytes / heap.block_bytes);
                assert!(lost < 2 * heap.block_bytes, "{lost} of {given}, {longest}");
                assert!(part > 500 || heap.block_bytes < 4 * extent_bytes(longest) + 4_096, "{part}");
                assert_eq!(HeapSpace::behind(0, heap.bytes, longest), Some(heap), "{given}");
            }
        }
    }

    #[test]
    fn layouts_are_found_by_name() {
        let names: Vec<_> = presets().map(|p| p.layout.to_string()).collect();
        assert_eq!(names.len(), 11);
        assert_eq!(preset_names(), names.join(", "));
        for preset in presets() {
            assert_eq!(preset.layout.preset().map(|p| p.name), Some(preset.name));
            assert_eq!(parsed(preset.name), preset.layout);
            assert_eq!(parsed(&preset.layout.to_string()), preset.layout);
        }
        for (short, long) in [
            ("cuckoo", "cuckoo:windowed:8"),
            ("hopscotch", "hopscotch:farm"),
            ("chained", "chained:cluster"),
            ("windowed", "windowed:8"),
            ("hopscotch:slotwise", "slotwise:8"),
        ] {
            assert_eq!(parsed(short), parsed(long), "{short}");
        }
        for given in
            ["", ":", "windowed:9", "windowed:", "Pilaf", "cuckoo:farm", "farm:cuckoo", "windowed:8:1"]
        {
            let unknown = ConfigError::UnknownLayout { given: given.into() };
            assert!(unknown.to_string().ends_with(&preset_names()));
            assert_eq!(given.parse::<Layout>(), Err(unknown));
        }
        let own = Layout { bucket_slots: 3, ..parsed("bucketized:4") };
        assert_eq!((own.preset().map(|p| p.name), own.to_string()), (None, "cuckoo:d=2,b=3,w=1".into()));
    }

    /// Every layout is parsed back from its displayed form.
    #[test]
    fn layouts_are_parsed_as_they_are_displayed() {
        let family = prop_oneof![Just(Family::Cuckoo), Just(Family::Hopscotch), Just(Family::Chained)];
        let numbers = (0..4u32, any::<u32>(), 0..70u32, prop_oneof![Just(0), Just(4), any::<u32>()]);
        proptest!(|((choices, bucket_slots, window_buckets, block_slots) in numbers, family in family)| {
            let layout = Layout { family, choices, bucket_slots, window_buckets, block_slots };
            prop_assert_eq!(layout.to_string().parse(), Ok(layout));
        });
        for given in [
            "cuckoo:d=2,b=3",
            "cuckoo:d=2,b=3,w=4,o=",
            "cuckoo:d=2,b=3,w=4,",
            "d=2,b=3,w=4",
            "cuckoo:b=3,d=2,w=4",
            "cuckoo:d=2,b=3,w=4,o=1,x=1",
            "cuckoo:d=-2,b=3,w=4",
            "cuckoo:d=2,b=99999999999,w=4",
        ] {
            assert!(given.parse::<Layout>().is_err(), "{given}");
        }
    }

    /// Each row: layout, size, then homes, main slots, overflow blocks and all slots.
    #[test]
    fn sizes_are_rounded_to_whole_buckets() {
        let own = Layout { bucket_slots: 3, window_buckets: 4, ..parsed("pilaf") };
        for (layout, size, expected) in [
            (parsed("windowed:8"), TableSize::Keys(1_000_000), [1_111_112, 1_111_119, 0, 1_111_119]),
            (parsed("windowed:8"), TableSize::Slots(1_000), [993, 1_000, 0, 1_000]),
            (parsed("windowed:8"), TableSize::Slots(1), [1, 8, 0, 8]),
            (parsed("windowed:8"), TableSize::Keys(1), [2, 9, 0, 9]),
            (parsed("bucketized:4"), TableSize::Slots(1_003), [250, 1_000, 0, 1_000]),
            (parsed("bucketized:4"), TableSize::Keys(850), [250, 1_000, 0, 1_000]),
            (parsed("bucketized:4"), TableSize::Keys(851), [251, 1_004, 0, 1_004]),
            (parsed("pilaf"), TableSize::Slots(2), [2, 2, 0, 2]),
            // Two buckets of 4 per window, blocks of 4: half as many overflow slots as main slots.
            (parsed("farm"), TableSize::Slots(1_000), [249, 1_000, 125, 1_500]),
            (parsed("farm"), TableSize::Slots(8), [1, 8, 4, 24]),
            (parsed("cluster"), TableSize::Keys(8_001), [1_251, 10_008, 626, 15_016]),
            (parsed("list"), TableSize::Slots(9), [9, 9, 5, 14]),
            // A layout without a preset is sized for a load of 75 %.
            (own, TableSize::Keys(900), [400, 1_209, 0, 1_209]),
        ] {
            let it = made(layout, size).unwrap();
            let found = [it.homes(), it.main_slots(), it.overflow_blocks(), it.slots()];
            assert_eq!(found, expected, "{layout} {size:?}");
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        let most_links = (1 << 25) - 2;
        for (name, max) in [
            ("windowed:8", 1 << 40),
            ("pilaf", 1 << 40),
            ("farm", 4 * most_links),
            ("list", most_links),
            ("cluster", 8 * most_links),
        ] {
            let layout = parsed(name);
            assert_eq!(made(layout, TableSize::Slots(max)).unwrap().main_slots(), max);
            let bucket = u64::from(layout.bucket_slots);
            for (given, unit, size) in [
                (max + bucket, "slots", TableSize::Slots(max + bucket)),
                (max, "keys", TableSize::Keys(max)),
                (u64::MAX, "slots", TableSize::Slots(u64::MAX)),
                (u64::MAX, "keys", TableSize::Keys(u64::MAX)),
            ] {
                assert_eq!(made(layout, size), Err(ConfigError::TooLarge { given, unit, max }), "{name}");
            }
            for (unit, size) in [("slots", TableSize::Slots(0)), ("keys", TableSize::Keys(0))] {
                assert_eq!(made(layout, size), Err(ConfigError::ZeroCapacity { unit }), "{name}");
            }
            // The largest table with nearly the largest slots: no size overflows, and a link
            // can number each block.
            let config = Config { size: TableSize::Slots(max), layout, value_max: 3_000, ..Config::short() };
            let it = config.geometry().unwrap();
            assert!(
                it.region_bytes() == it.table_offset() + it.slots() * it.shape().bytes() as u64
                    && it.overflow_blocks() < 1 << 24
            );
        }
    }

    #[test]
    fn lengths_and_times_out_of_range_are_refused() {
        let made = |key_max, value_max, grace| {
            let config =
                Config { key_max, value_max, grace, seeds: Some(Seeds::from_number(1)), ..Config::default() };
            config.geometry().map(|it| it.shape().bytes())
        };
        // The room of the largest slot, as docs/FORMAT.md counts it.
        let room = 48 + 63 * 62;
        let ms = Duration::from_millis(1);
        assert_eq!(made(1, 0, ms), Ok(32));
        assert_eq!(made(255, room - 255, ms), Ok(4096));
        assert_eq!(made(8, 8, Duration::ZERO), Ok(32));
        assert_eq!(made(8, 8, Duration::from_secs(60)), Ok(32));
        for given in [0, 256, usize::MAX] {
            assert_eq!(made(given, 8, ms), Err(ConfigError::KeyMax { given }));
        }
        // Longer values have a heap, and slots of their own size no more.
        assert_eq!(made(255, room - 254, ms), Ok(320));
        assert_eq!(made(86, VALUE_MAX, ms), Ok(128));
        for given in [VALUE_MAX + 1, usize::MAX] {
            assert_eq!(made(255, given, ms), Err(ConfigError::LongestValue { given }));
        }
        let given = Duration::from_nanos(60_000_000_001);
        assert_eq!(made(8, 8, given), Err(ConfigError::Grace { given }));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let (cuckoo, hopscotch, chained) = (parsed("cuckoo"), parsed("hopscotch"), parsed("chained"));
        let numbers = |layout, choices, bucket_slots, window_buckets, block_slots| Layout {
            choices,
            bucket_slots,
            window_buckets,
            block_slots,
            ..layout
        };
        for layout in [
            numbers(cuckoo, 2, 1, 1, 0),
            numbers(cuckoo, 3, 64, 1, 0),
            numbers(cuckoo, 3, 1, 64, 0),
            numbers(hopscotch, 1, 1, 64, 64),
            numbers(hopscotch, 1, 8, 8, 1),
            numbers(chained, 1, 64, 1, 64),
        ] {
            assert!(made(layout, TableSize::Slots(1_000)).is_ok(), "{layout:?}");
        }
        let window = "bucket_slots * window_buckets";
        for (layout, field, value, allowed) in [
            (numbers(cuckoo, 1, 4, 2, 0), "choices", 1, "2 to 3"),
            (numbers(cuckoo, 4, 4, 2, 0), "choices", 4, "2 to 3"),
            (numbers(hopscotch, 2, 4, 2, 4), "choices", 2, "1"),
            (numbers(chained, 0, 4, 1, 4), "choices", 0, "1"),
            (numbers(cuckoo, 2, 0, 2, 0), "bucket_slots", 0, "1 to 64"),
            (numbers(chained, 1, 65, 1, 4), "bucket_slots", 65, "1 to 64"),
            (numbers(cuckoo, 2, 4, 0, 0), "window_buckets", 0, "1 to 64"),
            // This times 3 is 1 in 32 bits.
            (numbers(cuckoo, 2, 3, 0xaaaa_aaab, 0), "window_buckets", 0xaaaa_aaab, "1 to 64"),
            (numbers(chained, 1, 4, 2, 4), "window_buckets", 2, "1"),
            (numbers(cuckoo, 2, 13, 5, 0), window, 65, "1 to 64"),
            (numbers(cuckoo, 2, 4, 2, 4), "block_slots", 4, "0"),
            (numbers(hopscotch, 1, 4, 2, 0), "block_slots", 0, "1 to 64"),
            (numbers(chained, 1, 4, 1, 65), "block_slots", 65, "1 to 64"),
        ] {
            let (family, allowed) = (layout.family.name(), allowed.to_string());
            let refused = ConfigError::Impossible { family, field, value, allowed };
            assert_eq!(made(layout, TableSize::Slots(1_000)), Err(refused));
        }
    }

    /// Segments have a largest size, at which the numbers of their homes fit what a superblock may say.
    #[test]
    fn segments_have_a_largest_size() {
        let of = |segment_slots| {
            let size = TableSize::Growing { bytes_max: 1 << 40, segment_slots: Some(segment_slots) };
            Config { size, seeds: Some(Seeds::from_number(1)), ..Config::short() }.geometry()
        };
        // Seven slots more than homes: the last windows reach over them.
        assert_eq!(of(SEGMENT_HOMES_MAX + 7).unwrap().homes(), SEGMENT_HOMES_MAX);
        let error = of(SEGMENT_HOMES_MAX + 8).unwrap_err();
        assert!(matches!(error, ConfigError::TooLarge { max: SEGMENT_HOMES_MAX, .. }), "{error}");
    }
}
