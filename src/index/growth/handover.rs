//! The handover of a table that grows: a list of its segments, and of the splits and merges under way, with which the
//! next server goes on (T6, T7). The part of each segment follows. `docs/FORMAT.md` has the bytes.

use super::Growth;
use super::pairs::{LeftPair, Toward};
use crate::base::cores::Cores;
use crate::faults::{Rule, kept, obey};
use crate::index::homes::{
    HEAD, Handover, NotHandedOver, handover_offset, has_no_undo, sum, traces_stay, write_down,
};
use crate::index::segment::Segment;
use crate::index::share::KeyShare;
use crate::layout::WORD;
use crate::layout::control::Phase;
use crate::layout::geometry::Geometry;
use crate::layout::segment::Named;
use std::ops::Range;
use std::time::Duration;

/// Words of a segment in the list of segments.
const SEGMENT: u64 = 4;

/// Words of a pair in the list of pairs.
fn pair_words(geometry: &Geometry) -> u64 {
    2 + geometry.homes().div_ceil(64)
}

/// The byte behind the longest handover of a table, of one size or one that grows.
#[cfg(feature = "sim")]
pub(crate) fn handover_end(geometry: &Geometry) -> u64 {
    let part = crate::index::homes::handover_words_max(geometry);
    let each = if geometry.grows() { part + SEGMENT + pair_words(geometry) } else { part };
    let words = HEAD + geometry.segments_max().max(1) * each;
    handover_offset(geometry) + words * WORD as u64
}

/// What a stopped server has left of a table that grows.
pub(super) struct GrowthHandover {
    pub keys: u64,
    /// The segments, each with its part.
    pub segments: Vec<(Segment, Handover)>,
    /// The pairs, each with a bit for every home that is away from the parent.
    pub pairs: Vec<(LeftPair, Vec<u64>)>,
}

impl Growth {
    /// As [`Table::hand_over`](crate::index::whole::Table::hand_over). Splits and merges stay as they are.
    pub fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        let reap = || self.reap(usize::MAX);
        if obey(Rule::StopAtRest, || traces_stay(&self.grace, reap, within)) {
            return Err(NotHandedOver::Traces(within));
        }
        let guard = crossbeam_epoch::pin();
        let segments: Vec<&Segment> = self.live.all(&guard).collect();
        let parts: Vec<Vec<u64>> = segments.iter().map(|s| s.homes().handover(s.memory().into())).collect();
        let mut pairs = Vec::new();
        let left = self.pairs_left();
        for &LeftPair { parent, child, toward } in &left {
            let Some(parent_segment) = self.live.get(parent, &guard) else { continue };
            pairs.extend([u64::from(parent) | u64::from(child) << 32, toward as u64]);
            pairs.extend(parent_segment.share().away_words());
        }
        let keys = segments.iter().map(|segment| segment.len()).sum();
        let head = [self.incarnation, keys, segments.len() as u64, left.len() as u64];
        let mut at = HEAD + segments.len() as u64 * SEGMENT + pairs.len() as u64;
        let mut lists = Vec::new();
        for (segment, part) in segments.iter().zip(&parts) {
            let Named { memory, incarnation } = segment.named();
            let is_of = u64::from(memory) | u64::from(incarnation) << 32;
            lists.extend([is_of, segment.share().get().to_word(), at, part[HEAD as usize - 1]]);
            at += part.len() as u64;
        }
        lists.extend(pairs);
        let covered = std::iter::once(self.geometry.generation()).chain(head).chain(lists.iter().copied());
        let sum = u64::from(sum(covered));
        let all = head.into_iter().chain([sum]).chain(lists).chain(parts.into_iter().flatten());
        let all: Vec<u64> = all.collect();
        write_down(&self.region, &self.geometry, &all, || self.publish_state(Phase::Stopped))
    }

    /// Finds the handover of the server that had the region before, if it is whole (T7). All cores work
    /// at it.
    pub(super) fn handed_over(&self, cores: Cores) -> Option<GrowthHandover> {
        if !kept(Rule::HandoverCheck, || has_no_undo(&self.region, &self.geometry)) {
            return None;
        }
        let first = handover_offset(&self.geometry) / WORD as u64;
        let load = |word: u64| self.region.load((first + word) as usize);
        let room = (self.region.bytes() / WORD as u64).checked_sub(first).filter(|&room| room > HEAD)?;
        let [incarnation, keys, segments, pairs] = std::array::from_fn(|n| load(n as u64));
        let most = self.geometry.segments_max();
        if incarnation.wrapping_add(1) != self.incarnation || segments.max(pairs) > most {
            return None;
        }
        let first_pair = HEAD + segments * SEGMENT;
        let lists = first_pair + pairs * pair_words(&self.geometry);
        let covered = || (0..HEAD - 1).chain(HEAD..lists).map(load);
        let is_whole =
            || sum(std::iter::once(self.geometry.generation()).chain(covered())) == load(HEAD - 1) as u32;
        if lists > room || !kept(Rule::HandoverCheck, is_whole) {
            return None;
        }
        let pairs = (0..pairs).map(|pair| first_pair + pair * pair_words(&self.geometry)).map(|at| {
            let (both, away) = (load(at), (at + 2..at + pair_words(&self.geometry)).map(load));
            let toward = Toward::from_number(load(at + 1))?;
            Some((LeftPair { parent: both as u32, child: (both >> 32) as u32, toward }, away.collect()))
        });
        let pairs: Vec<(LeftPair, Vec<u64>)> = pairs.collect::<Option<_>>()?;
        let listed = (0..segments).map(|segment| HEAD + segment * SEGMENT);
        let shares: Vec<(u32, KeyShare)> =
            listed.map(|at| (load(at) as u32, KeyShare::from_word(load(at + 1)))).collect();
        let left: Vec<LeftPair> = pairs.iter().map(|(pair, _)| *pair).collect();
        if self.not_all_keys(&shares, &left).is_some() {
            return None;
        }
        let look = |segments: Range<u64>| -> Option<Vec<_>> {
            let mut found = Vec::new();
            for at in segments.map(|segment| HEAD + segment * SEGMENT) {
                let [is_of, share, part, part_sum] = std::array::from_fn(|n| load(at + n as u64));
                let named = Named { memory: is_of as u32, incarnation: (is_of >> 32) as u32 };
                let in_room = part.checked_add(HEAD).is_some_and(|end| end <= room);
                if !in_room || !kept(Rule::HandoverCheck, || load(part + HEAD - 1) == part_sum) {
                    return None;
                }
                let segment = self.part(named, KeyShare::from_word(share));
                let handover = segment.homes().find_handover(first + part, named.memory.into(), Cores(1))?;
                found.push((segment, handover));
            }
            Some(found)
        };
        let parts = cores.split(0..segments, 1, look, |_| {});
        let segments: Vec<_> = parts.into_iter().collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
        Some(GrowthHandover { keys, segments, pairs })
    }
}
