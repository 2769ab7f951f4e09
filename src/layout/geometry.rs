//! Where everything is: parsed once from a configuration or a superblock, trusted ever after.

use super::hash::{First, Seeds, reduce};
use super::slot::{Identity, KEY_MAX, SlotShape};
use super::{PAGE, WORD};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Number of a slot in its table: main slots first, then overflow slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIx(pub u64);

/// Consecutive slots, fetched by one READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first slot.
    pub first: SlotIx,
    /// How many.
    pub slots: u32,
}

impl Window {
    /// Is `slot` in this window?
    #[inline]
    pub fn contains(&self, slot: SlotIx) -> bool {
        slot.0.wrapping_sub(self.first.0) < u64::from(self.slots)
    }

    /// The slots, in order.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = SlotIx> + use<> {
        (self.first.0..self.first.0 + u64::from(self.slots)).map(SlotIx)
    }
}

/// The three ways to place keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Family {
    /// A key is in one of several windows ([`crate::cuckoo`]).
    Cuckoo = 1,
    /// A key is in its neighbourhood or its home's overflow chain ([`crate::hopscotch`]).
    Hopscotch = 2,
    /// A key is in its bucket or the bucket's overflow chain ([`crate::chained`]).
    Chained = 3,
}

impl Family {
    const ALL: [(Family, &'static str); 3] =
        [(Family::Cuckoo, "cuckoo"), (Family::Hopscotch, "hopscotch"), (Family::Chained, "chained")];

    pub(crate) fn from_number(n: u32) -> Option<Family> {
        Family::ALL.iter().map(|f| f.0).find(|&f| f as u32 == n)
    }

    /// The family's name.
    pub fn name(self) -> &'static str {
        Family::ALL.iter().find(|f| f.0 == self).map_or("?", |f| f.1)
    }

    pub(crate) fn list() -> String {
        let names: Vec<_> = Family::ALL.iter().map(|f| format!("{} ({})", f.1, f.0 as u32)).collect();
        names.join(", ")
    }
}

/// A layout: a family and its numbers. Parse one from a preset's name, as in
/// `"windowed:16".parse::<Layout>()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How keys are placed.
    pub family: Family,
    /// Number of windows a key may be in; 1 for layouts with overflow chains.
    pub choices: u32,
    /// Slots per bucket, the unit of placement.
    pub bucket_slots: u32,
    /// Buckets per window, the unit of a READ.
    pub window_buckets: u32,
    /// Slots per overflow block; 0 when there are none.
    pub block_slots: u32,
}

/// A layout with a name, as published or as recommended.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name, as the command line takes it.
    pub name: &'static str,
    /// The layout.
    pub layout: Layout,
    /// Load, in percent of the main slots, for which a table of this preset is sized when a capacity in
    /// keys is asked for: inserts are still quick there, and READs per GET near their best.
    pub design_load: u32,
    /// What it is, in one line.
    pub summary: &'static str,
}

/// Every preset of every family.
pub fn presets() -> impl Iterator<Item = &'static Preset> {
    crate::cuckoo::PRESETS.iter().chain(crate::hopscotch::PRESETS).chain(crate::chained::PRESETS)
}

impl Layout {
    /// Slots per window.
    #[inline]
    pub fn window_slots(self) -> u32 {
        self.bucket_slots * self.window_buckets
    }

    /// The preset with exactly this layout, if any.
    pub fn preset(self) -> Option<&'static Preset> {
        presets().find(|p| p.layout == self)
    }

    /// Do the numbers fit the family?
    pub(crate) fn is_sound(self) -> bool {
        match self.family {
            Family::Cuckoo => self.choices >= 2 && self.block_slots == 0,
            Family::Hopscotch => self.choices == 1 && self.block_slots > 0,
            Family::Chained => self.choices == 1 && self.block_slots > 0 && self.window_buckets == 1,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.preset() {
            Some(preset) => write!(f, "{}:{}", self.family.name(), preset.name),
            None => write!(
                f,
                "{}:d={},b={},w={}",
                self.family.name(),
                self.choices,
                self.bucket_slots,
                self.window_buckets
            ),
        }
    }
}

impl FromStr for Layout {
    type Err = ConfigError;

    /// Takes `preset`, `preset:n`, `family:preset` and `family:preset:n`; a family alone means its first
    /// preset, a preset without its number the first of that name.
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
            .ok_or_else(|| ConfigError::UnknownLayout { given: text.into() })
    }
}

/// The allowed range of each number in a superblock.
pub(crate) struct Limits {
    pub choices: RangeInclusive<u64>,
    pub bucket_slots: RangeInclusive<u64>,
    pub window_buckets: RangeInclusive<u64>,
    pub window_slots: RangeInclusive<u64>,
    pub block_slots: RangeInclusive<u64>,
    pub homes: RangeInclusive<u64>,
    pub overflow_blocks: RangeInclusive<u64>,
    pub grace_ns: RangeInclusive<u64>,
    pub key_max: RangeInclusive<u64>,
}

/// Every size computed from numbers within these limits fits into 63 bits:
/// (2^40 + 64) * 64 slots + 2^24 * 64 slots, times 4096 bytes, is below 2^59.
pub(crate) const GEOMETRY_LIMITS: Limits = Limits {
    choices: 1..=3,
    bucket_slots: 1..=64,
    window_buckets: 1..=64,
    window_slots: 1..=64,
    block_slots: 0..=64,
    homes: 1..=1 << 40,
    overflow_blocks: 0..=(1 << 24) - 1,
    grace_ns: 0..=60_000_000_000,
    key_max: 1..=KEY_MAX as u64,
};

/// How large a table shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Room for this many keys at the preset's design load.
    Keys(u64),
    /// This many main slots.
    Slots(u64),
}

/// What to make a table from. All lengths in bytes.
///
/// ```
/// use oneread::{Config, Size};
/// let config = Config { size: Size::Keys(10_000), value_max: 100, ..Config::default() };
/// let geometry = config.geometry().unwrap();
/// assert_eq!(geometry.shape().bytes(), 192); // 16 header + 32 key + 100 value + stamps, in whole lines
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How keys are placed.
    pub layout: Layout,
    /// How many keys or slots.
    pub size: Size,
    /// Longest key, 1 to 255.
    pub key_max: usize,
    /// Longest inline value.
    pub value_max: usize,
    /// The grace time T: how long a GET over a network may take and still be trusted when it found
    /// nothing. Twice as long a moved key's traces stay. Zero only where every reader is on this host.
    pub grace: Duration,
    /// Seeds of the hashes; random when `None`.
    pub seeds: Option<Seeds>,
}

impl Default for Config {
    /// `windowed:8`, one million keys of at most 32 bytes with values of at most 78 bytes (two lines a
    /// slot), grace time 2 ms.
    fn default() -> Config {
        Config {
            layout: crate::cuckoo::WINDOWED_8,
            size: Size::Keys(1_000_000),
            key_max: 32,
            value_max: 78,
            grace: Duration::from_millis(2),
            seeds: None,
        }
    }
}

/// Why a table cannot be made from a [`Config`].
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// No preset of that name.
    #[error("unknown layout {given:?}; there are: {}", preset_names())]
    UnknownLayout {
        /// What was asked for.
        given: String,
    },
    /// A capacity of nothing.
    #[error("a table for 0 {unit} cannot hold anything; ask for 1 or more")]
    ZeroCapacity {
        /// "keys" or "slots".
        unit: &'static str,
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
    #[error("key_max is {given} bytes, allowed is 1 to {KEY_MAX}")]
    KeyMax {
        /// What was asked for.
        given: usize,
    },
    /// Key and value do not fit into the largest slot.
    #[error("a key of {key_max} and a value of {value_max} bytes do not fit into the largest slot, which holds {room}; lower value_max to {}", room - key_max)]
    ValueMax {
        /// Longest key asked for.
        key_max: usize,
        /// Longest value asked for.
        value_max: usize,
        /// Bytes of payload in the largest slot.
        room: usize,
    },
    /// A grace time out of range.
    #[error("the grace time is {given:?}, allowed is 0 to 60 s")]
    Grace {
        /// What was asked for.
        given: Duration,
    },
    /// The layout's numbers contradict each other.
    #[error("impossible layout {given:?}; there are: {}", preset_names())]
    Impossible {
        /// What was asked for.
        given: Layout,
    },
    /// No random seeds to be had.
    #[error("no random bytes for the hash seeds: {reason}; give seeds of your own")]
    Seeds {
        /// The operating system's reason.
        reason: String,
    },
}

fn preset_names() -> String {
    presets().map(|p| format!("{}:{}", p.layout.family.name(), p.name)).collect::<Vec<_>>().join(", ")
}

impl Config {
    /// The geometry that follows.
    ///
    /// # Errors
    /// [`ConfigError`] says what was given and what is allowed.
    pub fn geometry(&self) -> Result<Geometry, ConfigError> {
        let layout = self.layout;
        let limits = &GEOMETRY_LIMITS;
        if !layout.is_sound()
            || !limits.window_slots.contains(&u64::from(layout.window_slots()))
            || !limits.choices.contains(&u64::from(layout.choices))
        {
            return Err(ConfigError::Impossible { given: layout });
        }
        if !limits.key_max.contains(&(self.key_max as u64)) {
            return Err(ConfigError::KeyMax { given: self.key_max });
        }
        let shape = SlotShape::for_lengths(self.key_max, self.value_max).ok_or(ConfigError::ValueMax {
            key_max: self.key_max,
            value_max: self.value_max,
            room: SlotShape::from_bytes(super::slot::SLOT_BYTES_MAX).map_or(0, SlotShape::payload_max),
        })?;
        if self.grace.as_nanos() > u128::from(*limits.grace_ns.end()) {
            return Err(ConfigError::Grace { given: self.grace });
        }
        let (b, w) = (u64::from(layout.bucket_slots), u64::from(layout.window_buckets));
        let max = *limits.homes.end();
        let (given, unit) = match self.size {
            Size::Keys(n) => (n, "keys"),
            Size::Slots(n) => (n, "slots"),
        };
        if given == 0 {
            return Err(ConfigError::ZeroCapacity { unit });
        }
        let design = layout.preset().map_or(75, |p| p.design_load);
        let slots = match self.size {
            Size::Keys(n) => (u128::from(n) * 100).div_ceil(u128::from(design)) + u128::from((w - 1) * b),
            Size::Slots(n) => u128::from(n),
        };
        let max = max.min(layout.main_slots_max());
        if slots > u128::from(max) {
            return Err(ConfigError::TooLarge { given, unit, max });
        }
        // A size in keys is rounded up to whole buckets, a size in slots down; one window at least.
        let buckets = match self.size {
            Size::Keys(_) => (slots as u64).div_ceil(b),
            Size::Slots(n) => n / b,
        };
        let homes = buckets.max(w) - (w - 1);
        let overflow_blocks = layout.overflow_blocks(homes * b);
        let seeds = match self.seeds {
            Some(seeds) => seeds,
            None => Seeds::random().map_err(|e| ConfigError::Seeds { reason: e.to_string() })?,
        };
        Ok(Geometry::assemble(
            layout,
            shape,
            self.key_max,
            self.value_max,
            homes,
            overflow_blocks,
            self.grace,
            // Random like the seeds, so that no other table's slots validate in this one.
            super::hash::mix(seeds.0[2][3]),
            seeds,
        ))
    }
}

impl Layout {
    /// Overflow blocks to reserve beside `main` slots: half as many slots again, more than any preset uses
    /// at 95 % load.
    fn overflow_blocks(self, main: u64) -> u64 {
        match u64::from(self.block_slots) {
            0 => 0,
            b => main.div_ceil(2 * b).max(4),
        }
    }

    /// Most main slots whose overflow blocks a link can still number.
    fn main_slots_max(self) -> u64 {
        match u64::from(self.block_slots) {
            0 => u64::MAX,
            b => GEOMETRY_LIMITS.overflow_blocks.end() * 2 * b,
        }
    }
}

/// A table's geometry. Every slot it names lies inside its region; nothing needs checking twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    layout: Layout,
    shape: SlotShape,
    key_max: usize,
    value_max: usize,
    homes: u64,
    overflow_blocks: u64,
    grace: Duration,
    generation: u64,
    seeds: Seeds,
}

impl Geometry {
    #[expect(clippy::too_many_arguments, reason = "private to layout/: the fields of a superblock, in order")]
    pub(super) fn assemble(
        layout: Layout,
        shape: SlotShape,
        key_max: usize,
        value_max: usize,
        homes: u64,
        overflow_blocks: u64,
        grace: Duration,
        generation: u64,
        seeds: Seeds,
    ) -> Geometry {
        Geometry { layout, shape, key_max, value_max, homes, overflow_blocks, grace, generation, seeds }
    }

    /// The layout.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }
    /// The shape of every slot.
    #[inline]
    pub fn shape(&self) -> SlotShape {
        self.shape
    }
    /// Longest key, in bytes.
    pub fn key_max(&self) -> usize {
        self.key_max
    }
    /// Longest inline value, in bytes.
    pub fn value_max(&self) -> usize {
        self.value_max
    }
    /// Number of homes.
    pub fn homes(&self) -> u64 {
        self.homes
    }
    /// Overflow blocks reserved.
    pub fn overflow_blocks(&self) -> u64 {
        self.overflow_blocks
    }
    /// The grace time T.
    pub fn grace(&self) -> Duration {
        self.grace
    }
    /// Number of the table.
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// Seeds of the hashes.
    #[inline]
    pub fn seeds(&self) -> &Seeds {
        &self.seeds
    }

    /// Number of main slots.
    #[inline]
    pub fn main_slots(&self) -> u64 {
        (self.homes + u64::from(self.layout.window_buckets) - 1) * u64::from(self.layout.bucket_slots)
    }
    /// Number of slots, overflow included.
    pub fn slots(&self) -> u64 {
        self.main_slots() + self.overflow_blocks * u64::from(self.layout.block_slots)
    }
    /// Byte offset of slot 0 in the region.
    #[inline]
    pub fn table_offset(&self) -> u64 {
        2 * PAGE as u64
    }
    /// Length of the region in bytes.
    pub fn region_bytes(&self) -> u64 {
        self.table_offset() + self.slots() * self.shape.bytes() as u64
    }
    /// Byte offset of `slot` in the region.
    #[inline]
    pub fn slot_offset(&self, slot: SlotIx) -> u64 {
        self.table_offset() + slot.0 * self.shape.bytes() as u64
    }
    /// Number, in the region, of the first word of `slot`.
    #[inline]
    pub(crate) fn slot_word(&self, slot: SlotIx) -> usize {
        self.slot_offset(slot) as usize / WORD
    }
    /// Bytes that a READ of `window` moves.
    #[inline]
    pub fn window_bytes(&self, window: Window) -> u64 {
        u64::from(window.slots) * self.shape.bytes() as u64
    }
    /// What the CRC of `slot` is bound to.
    #[inline]
    pub(crate) fn identity(&self, slot: SlotIx) -> Identity {
        Identity { generation: self.generation, index: slot.0 }
    }

    /// The home a hash falls on.
    #[inline]
    pub fn home(&self, hash: u64) -> u64 {
        reduce(hash, self.homes)
    }
    /// The window that begins at a home.
    #[inline]
    pub fn window(&self, home: u64) -> Window {
        Window {
            first: SlotIx(home * u64::from(self.layout.bucket_slots)),
            slots: self.layout.window_slots(),
        }
    }
    /// A key's primary window. Its first slot is the key's home slot, whose header names displaced keys.
    #[inline]
    pub fn primary(&self, first: First) -> Window {
        self.window(self.home(first.0))
    }
    /// The window whose first slot is `home_slot` (a home's).
    pub(crate) fn home_of_slot(&self, slot: SlotIx) -> u64 {
        slot.0 / u64::from(self.layout.bucket_slots)
    }
}
