//! A scan: a walk that stops behind any key. Its caller continues it with the cursor that it returned (D6).
//!
//! ```text
//! each part of the directory ── each step ── each segment, or pair, of that part ── each key, by place and bytes
//! ```
//!
//! Part, step and place of a key follow from its bytes (`walk.rs`). A look shows its keys in the order of place and
//! bytes. So it is certain of each key, wherever it is, whether a scan has passed it.

use super::table::Table;
use super::walk::{StepKeys, look_at};
use crate::faults::{Rule, kept, obey};
use crate::index::homes::{homes_of_step, step_of};
use crate::index::share::{KeyShare, PLACES, places, reversed};
use crate::layout::geometry::Geometry;
use crossbeam_epoch as epoch;
use std::ops::Range;

/// Bytes of a cursor in front of the key.
const HEAD_BYTES: usize = 20;
/// Its last bytes: a checksum of the rest.
const CRC_BYTES: usize = 4;

/// Takes a key, its value if that is in its slot, and its owner. Returns whether there is room for more.
pub(crate) type TakeKey<'s> = dyn FnMut(&[u8], Option<&[u8]>, u16) -> bool + 's;

/// How far a scan has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPoint {
    /// The places of the present part.
    part: Range<u32>,
    step: u64,
    /// The scan continues at this place in the step ...
    at: u32,
    /// ... behind this key.
    after: Vec<u8>,
}

/// How far a scan by [`Index::scan_keys`](crate::embedded::Index::scan_keys) has come. The default is the beginning.
#[derive(Clone, Debug, Default)]
pub struct KeyCursor(pub(crate) ScanPoint);

impl ScanPoint {
    /// Whether the scan has passed all keys.
    pub fn is_at_end(&self) -> bool {
        self.part == (PLACES..PLACES)
    }

    /// Whether the scan has passed a key. A key that it has passed was shown if it was there when its place was looked
    /// at. The scan does not show what becomes of it later.
    pub fn has_passed(&self, geometry: &Geometry, key: &[u8]) -> bool {
        let (place, step) = position(geometry, key);
        if !self.part.contains(&place) {
            return place < self.part.start;
        }
        (step, place, key) <= (self.step, self.at, &self.after[..])
    }

    /// The bytes of a cursor, which a client keeps.
    pub fn to_bytes(&self, geometry: &Geometry) -> Vec<u8> {
        let ScanPoint { part, step, at, after } = self;
        let [start, end, at] = [part.start, part.end, *at].map(u32::to_le_bytes);
        let mut bytes = [&start[..], &end, &at, &step.to_le_bytes(), after].concat();
        let crc = crc(geometry, &bytes);
        bytes.extend(crc);
        bytes
    }

    /// Decodes a cursor that a client has kept, or any other bytes. `Err` says what is wrong with it.
    pub fn from_bytes(bytes: &[u8], geometry: &Geometry) -> Result<ScanPoint, &'static str> {
        if bytes.is_empty() {
            return Ok(ScanPoint::default());
        }
        let (body, crc_given) = bytes.split_last_chunk::<CRC_BYTES>().ok_or("it is too short")?;
        let (head, after) = body.split_first_chunk::<HEAD_BYTES>().ok_or("it is too short")?;
        if *crc_given != crc(geometry, body) {
            return Err("its checksum does not fit: it is damaged, or no cursor of this table");
        }
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let step = u64::from(word(12)) | u64::from(word(16)) << 32;
        let (part, at) = (word(0)..word(4), word(8));
        let is_between_parts = part.is_empty() && part.end <= PLACES && at == part.end && step == 0;
        let is_in_part = part.contains(&at) && part.end <= PLACES && !homes_of(geometry, step).is_empty();
        let is_behind_key = after.is_empty()
            || is_in_part && after.len() <= geometry.key_max() && position(geometry, after) == (at, step);
        if !(is_between_parts || is_in_part) || !is_behind_key {
            return Err("its numbers cannot be so");
        }
        Ok(ScanPoint { part, step, at, after: after.to_vec() })
    }

    /// Continues behind a key of this step.
    fn go_behind(&mut self, place: u32, key: &[u8]) {
        self.at = place;
        self.after.clear();
        self.after.extend_from_slice(key);
    }

    /// Continues at a place of this step, or behind the step.
    fn go_to(&mut self, geometry: &Geometry, place: u32) {
        self.after.clear();
        self.at = place;
        if place >= self.part.end {
            (self.step, self.at) = (self.step + 1, self.part.start);
            if homes_of(geometry, self.step).is_empty() {
                let end = self.part.end;
                (self.part, self.step, self.at) = (end..end, 0, end);
            }
        }
    }
}

fn crc(geometry: &Geometry, bytes: &[u8]) -> [u8; CRC_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&geometry.generation().to_le_bytes());
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// The homes of a step. Empty for a step that does not exist.
fn homes_of(geometry: &Geometry, step: u64) -> Range<u64> {
    // Steps have 64 slots.
    if step > geometry.slots() { 0..0 } else { homes_of_step(geometry, step) }
}

/// The place of a key, and its step.
fn position(geometry: &Geometry, key: &[u8]) -> (u32, u64) {
    let hashed = geometry.hashed(key);
    (reversed(hashed.first().directory()), step_of(geometry, hashed.home()))
}

impl Table {
    /// Looks at the next keys of a scan, of one step in one segment or pair. Shows the keys behind the point in order,
    /// with their values if these are in their slots, until `take` returns `false`: that key, and those behind it, are
    /// for the next look. Holds no lock when it shows keys. Returns the number that the feed's next change had under
    /// their locks (J3), or `None` if no key is left.
    pub fn scan(&self, point: &mut ScanPoint, take: &mut TakeKey<'_>) -> Option<u64> {
        if point.part.is_empty() {
            if point.is_at_end() {
                return None;
            }
            point.part = self.part_at(point.part.end);
        }
        let (geometry, left) = (self.geometry(), point.at..point.part.end);
        let (homes, mut seen) = (homes_of_step(geometry, point.step), StepKeys::default());
        // This loop ends as a walk's does: each time that a key of a pair is changed between the looks at its two
        // segments, another thread has made progress.
        let end = loop {
            seen.clear();
            let Some(end) = look_at(self, left.clone(), &homes, &mut seen) else { continue };
            if kept(Rule::FeedPair, || !self.was_told(&seen, left.start..end, point.step)) {
                break end;
            }
        };
        let placed = seen.all().map(|(key, value, owner)| (position(geometry, key).0, key, value, owner));
        let mut keys: Vec<_> = placed.collect();
        obey(Rule::ScanOrder, || keys.sort_unstable());
        for &(place, key, value, owner) in &keys {
            if (place, key) <= (point.at, &point.after[..]) {
                continue;
            }
            if !take(key, value, owner) {
                return Some(seen.numbers().start);
            }
            point.go_behind(place, key);
        }
        point.go_to(geometry, end);
        Some(seen.numbers().start)
    }

    /// J4: whether a key with one of these places, of this step, was changed between the looks at the two segments of a
    /// pair.
    fn was_told(&self, seen: &StepKeys, places: Range<u32>, step: u64) -> bool {
        self.observers().feed().was_told(seen.numbers(), |key| {
            let (place, step_of_key) = position(self.geometry(), key);
            places.contains(&place) && step_of_key == step
        })
    }

    /// The part that begins at this place.
    fn part_at(&self, first: u32) -> Range<u32> {
        let share = match self {
            Table::One(_) => KeyShare::ALL,
            Table::Many(growth) => growth.pair_at(reversed(first), &epoch::pin()).1,
        };
        first..places(share).end
    }
}
