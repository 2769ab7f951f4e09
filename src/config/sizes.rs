//! From choices to a geometry: how long slots are, how many there are, where the heap is.

use super::choices::{Config, TWO_LINES, TableSize};
use super::error::ConfigError;
use crate::base::random;
use crate::faults::{Rule, by_rule};
use crate::layout::digest::LONG_KEY_BYTES;
use crate::layout::extent::{HEAP_BYTES_MAX, REFERENCE_BYTES, VALUE_MAX, block_bytes, extent_bytes};
use crate::layout::geometry::{
    GRACE_MAX, Geometry, HOMES_MAX, Layout, Numbers, OVERFLOW_BLOCKS_MAX, SEGMENT_HOMES_MAX, SEGMENTS_MAX,
};
use crate::layout::hash::{Seeds, mix};
use crate::layout::life::LIFE_BYTES;
use crate::layout::slot::{KEY_MAX, SLOT_BYTES_MAX, SlotShape};

impl Config {
    /// The largest size whose table, otherwise like this one, takes at most `bytes` bytes, as `of` counts them.
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

    /// Computes the geometry of a new table. Draws the table's number ([`Geometry::generation`]), and random seeds if
    /// there are none; all else is always the same. One geometry is for one table: of each other one, ask again.
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
        if self.owners && !self.life {
            return Err(ConfigError::Owners);
        }
        let (shape, key_inline, has_heap) = self.shape()?;
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
        let no_random = |source| ConfigError::Random { source };
        let seeds = self.seeds.map_or_else(Seeds::random, Ok).map_err(no_random)?;
        let generation = random::number().map_err(no_random)?;
        let geometry = Geometry::from(Numbers {
            layout,
            shape,
            key_max: self.key_max,
            key_inline,
            value_max: self.value_max,
            has_life: self.life,
            has_owners: self.owners,
            homes,
            overflow_blocks,
            grace: self.grace,
            // I1: so slots of another table do not validate in this one either.
            generation: by_rule(Rule::TableNumber, generation, mix(seeds.shard[3])),
            seeds,
        });
        let heap_need = 2 * block_bytes(0, extent_bytes(geometry.extent_max()));
        let (geometry, heap_bytes) = match self.size {
            TableSize::Growing { bytes_max, .. } => {
                let least = if has_heap && self.heap_bytes.is_none() { heap_need } else { 0 };
                (growing_to(geometry, bytes_max, least)?, bytes_max)
            }
            _ => {
                let slots = geometry.main_slots() * geometry.shape().bytes() as u64;
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

    /// The shape of slots, the longest key that stands in one, and whether keys or values may be too long for them.
    fn shape(&self) -> Result<(SlotShape, usize, bool), ConfigError> {
        let Config { key_max, value_max, .. } = *self;
        if value_max > VALUE_MAX {
            return Err(ConfigError::LongestValue { given: value_max });
        }
        let life_bytes = if self.life { LIFE_BYTES } else { 0 };
        let key_inline = self.key_inline.unwrap_or(TWO_LINES - REFERENCE_BYTES - life_bytes).min(key_max);
        let for_lengths = |value_max| SlotShape::for_lengths(key_inline, value_max + life_bytes);
        let has_long_keys = key_inline < key_max;
        let has_long_values = self.heap_bytes.is_some()
            || self.inline_max.map_or(for_lengths(value_max).is_none(), |max| max < value_max);
        let inline_max = match self.inline_max {
            Some(inline_max) => inline_max.min(value_max),
            None if has_long_values => value_max.min(TWO_LINES.saturating_sub(key_inline + life_bytes)),
            None => value_max,
        };
        // A slot has room for a reference beside each key that stands in it, and for what there is of a longer one.
        let least = match (has_long_keys, has_long_values) {
            (true, _) => LONG_KEY_BYTES.saturating_sub(key_inline).max(REFERENCE_BYTES),
            (false, true) => REFERENCE_BYTES,
            (false, false) => 0,
        };
        let inline_max = inline_max.max(least);
        let room = SlotShape::from_bytes(SLOT_BYTES_MAX).map_or(0, SlotShape::payload_max) - life_bytes;
        // Without a heap, slots can hold the longest value.
        let error = ConfigError::InlineMax { key_inline, inline_max, room };
        let shape = for_lengths(inline_max).ok_or(error)?;
        Ok((shape, key_inline, has_long_keys || has_long_values))
    }
}

/// Main slots of a segment by default: about 1 MiB.
fn segment_slots_for(shape: SlotShape) -> u64 {
    ((1 << 20) / shape.bytes() as u64).clamp(1 << 10, 1 << 14)
}

/// The geometry of a table of as many such segments as fit into `bytes_max` bytes, its directory included. It
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
