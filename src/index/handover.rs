//! The handover: a server that stops leaves behind the table what the next one needs to know of it
//! (T6, T7). So the next one need not look at every slot. `docs/FORMAT.md` has its bytes.
//!
//! A register is read when its stripe is first used.
//!
//! A table that grows leaves one such *part* for each segment, and before them a list of the segments
//! and of the splits and merges under way, which the next server goes on with.

use super::grace::Grace;
use super::growth::{Growth, LeftPair, Toward};
use super::segment::Segment;
use super::share::KeyShare;
use super::stripes::{Displaced, DisplacedAt, Stripe};
use super::{Index, Table};
use crate::cores::Cores;
use crate::faults::{Rule, in_order, kept, obey};
use crate::layout::control::{BLOCKS_WORD, Phase};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::segment::Named;
use crate::layout::undo::{UNDO_LINES, line_word};
use crate::layout::{PAGE, WORD, chain, crc};
use crate::region::{Region, RegionError};
use crate::sync::Ordering;
use std::ops::Range;
use std::time::Duration;

/// Words before the lists.
const HEAD: u64 = 5;
/// Words of a segment in the list of segments.
const SEGMENT: u64 = 4;
/// Words of a displaced key.
const ENTRY: u64 = 2;
/// Stripes that a thread checks before it takes the next ones.
const PIECE: u64 = 64;

/// The byte behind the table at which a handover begins.
fn offset(geometry: &Geometry) -> u64 {
    geometry.region_bytes().next_multiple_of(PAGE as u64)
}

/// The byte behind the longest handover of a table.
#[cfg(feature = "sim")]
pub(crate) fn end(geometry: &Geometry) -> u64 {
    let stripes = super::stripes::Stripes::new(geometry.main_slots()).len() as u64;
    let part = HEAD + geometry.overflow_blocks() + stripes + ENTRY * geometry.slots();
    let each = if geometry.grows() { part + SEGMENT + pair_words(geometry) } else { part };
    let words = HEAD + geometry.segments_max().max(1) * each;
    offset(geometry) + words * WORD as u64
}

/// Words of a pair in the list of pairs.
fn pair_words(geometry: &Geometry) -> u64 {
    2 + geometry.homes().div_ceil(64)
}

/// What a stopped server left of a table at rest, or of one segment.
#[derive(Debug)]
pub(super) struct Handover {
    keys: u64,
    free: Vec<chain::Block>,
    /// Where in the region the register of each stripe is.
    registers: Vec<Range<usize>>,
}

/// CRC-32C of words.
fn sum(words: impl IntoIterator<Item = u64>) -> u32 {
    words.into_iter().fold(0, |sum, word| crc::append(sum, &word.to_le_bytes()))
}

impl Index {
    /// T6: waits until no trace is left, writes down what the next server needs to know, and says in
    /// the state word that this server has stopped. Does not if traces stay longer than `within`, or
    /// there is no memory for it. Then the next server looks at every slot.
    ///
    /// Nobody may change the table meanwhile or later.
    pub(crate) fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        match &self.table {
            Table::One(segment) => segment.hand_over(within),
            Table::Many(growth) => growth.hand_over(within),
        }
    }
}

/// Takes all traces away, each when it is due. Returns whether some stay longer than this.
fn traces_stay(grace: &Grace, reap: impl Fn(), within: Duration) -> bool {
    let clock = grace.clock();
    let give_up_ns = clock.now_ns() + within.as_nanos() as u64;
    loop {
        reap();
        let Some(wait) = grace.until_next() else { return false };
        let due_ns = clock.now_ns() + wait.as_nanos() as u64;
        if due_ns > give_up_ns {
            return true;
        }
        clock.sleep_until(due_ns);
    }
}

/// Writes a handover. `publish` says that the server has stopped.
fn write_down(
    region: &Region,
    geometry: &Geometry,
    words: &[u64],
    publish: impl Fn(),
) -> Result<(), NotHandedOver> {
    let memory = region.behind(offset(geometry), words.len() as u64 * WORD as u64)?;
    let write = |_: &mut ()| (0..).zip(words).for_each(|(n, &word)| memory.store(n, word));
    // A killed server's stores end where its program did. So no fence of the CPU is needed.
    in_order(Rule::StopLast, (), write, |_| publish());
    Ok(())
}

/// Whether no undo line names a slot.
fn has_no_undo(region: &Region, geometry: &Geometry) -> bool {
    (0..UNDO_LINES).all(|line| region.load(line_word(geometry.shape(), line)) == 0)
}

impl Segment {
    /// As [`Index::hand_over`].
    pub(crate) fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        let reap = || self.reap(usize::MAX);
        if obey(Rule::StopAtRest, || traces_stay(&self.grace, reap, within)) {
            return Err(NotHandedOver::Traces(within));
        }
        let words = self.handover(self.incarnation);
        write_down(&self.region, &self.geometry, &words, || self.publish_state(Phase::Stopped))
    }

    /// The words of a handover. `of` is the server's incarnation, or the memory of a segment of many.
    fn handover(&self, of: u64) -> Vec<u64> {
        let blocks = self.blocks.free();
        let registers = self.stripes.each(|_, stripe| {
            self.read_register(stripe);
            let all = stripe.all_displaced().into_iter();
            all.flat_map(|(home, bit, slot)| [slot.0, home << 8 | u64::from(bit.trailing_zeros())])
                .collect::<Vec<_>>()
        });
        let head = [of, self.len(), registers.len() as u64, blocks.len() as u64];
        let lists = blocks.iter().map(|block| u64::from(block.0)).chain(registers.iter().map(|register| {
            (register.len() as u64 / ENTRY) << 32 | u64::from(sum(register.iter().copied()))
        }));
        let lists: Vec<u64> = lists.collect();
        let covered = std::iter::once(self.geometry.generation()).chain(head).chain(lists.iter().copied());
        let all = head.into_iter().chain([sum(covered).into()]).chain(lists.iter().copied());
        all.chain(registers.into_iter().flatten()).collect()
    }

    /// Finds the handover of the server that had the region before, if it is whole (T7).
    pub(super) fn handed_over(&self, cores: Cores) -> Option<Handover> {
        if !kept(Rule::HandoverCheck, || has_no_undo(&self.region, &self.geometry)) {
            return None;
        }
        self.find_handover(offset(&self.geometry) / WORD as u64, self.incarnation.wrapping_sub(1), cores)
    }

    /// Finds the handover `of` this, if it is whole, from this word of the region on.
    fn find_handover(&self, first: u64, of: u64, cores: Cores) -> Option<Handover> {
        let words = self.region.bytes() / WORD as u64;
        let load = |word: u64| self.region.load((first + word) as usize);
        let room = words.checked_sub(first).filter(|&room| room > HEAD)?;
        let [is_of, keys, stripes, blocks] = std::array::from_fn(|n| load(n as u64));
        let lists = HEAD.checked_add(blocks)?.checked_add(stripes)?;
        if is_of != of || stripes != self.stripes.len() as u64 || lists > room {
            return None;
        }
        let covered = (0..HEAD - 1).chain(HEAD..lists).map(load);
        let is_whole =
            || sum(std::iter::once(self.geometry.generation()).chain(covered)) == load(HEAD - 1) as u32;
        let ever_used = self.blocks_ever_used();
        let free: Vec<_> = (HEAD..HEAD + blocks).map(load).collect();
        let are_used = ever_used <= self.geometry.overflow_blocks() && free.iter().all(|&n| n < ever_used);
        if !kept(Rule::HandoverCheck, || are_used && is_whole()) {
            return None;
        }
        let mut at = lists;
        let mut sums = Vec::with_capacity(stripes as usize);
        for stripe in HEAD + blocks..lists {
            let (entries, sum) = (load(stripe) >> 32, load(stripe) as u32);
            let end = at + entries * ENTRY;
            sums.push(((first + at) as usize..(first + end) as usize, sum));
            at = end;
        }
        if at > room {
            return None;
        }
        let check = |mut stripes: Range<u64>| {
            stripes.all(|number| {
                let (register, sum) = &sums[number as usize];
                kept(Rule::HandoverCheck, || self.is_register(number as usize, register.clone(), *sum))
            })
        };
        let are_whole = cores.split(0..stripes, PIECE, check, |_| {});
        are_whole.into_iter().all(|is_whole| is_whole).then(|| Handover {
            keys,
            free: free.into_iter().map(|number| chain::Block(number as u32)).collect(),
            registers: sums.into_iter().map(|(register, _)| register).collect(),
        })
    }

    /// The first so many blocks have been used. In a table that grows, all have memory behind them.
    fn blocks_ever_used(&self) -> u64 {
        if self.geometry.grows() { self.geometry.overflow_blocks() } else { self.region.load(BLOCKS_WORD) }
    }

    /// Whether these words are the register of this stripe.
    fn is_register(&self, stripe: usize, words: Range<usize>, expected: u32) -> bool {
        let is_good = |home: u64, displaced: Displaced| {
            let in_table = |slot: SlotIx| slot.0 < self.geometry.slots();
            home < self.geometry.homes()
                && self.stripes.of(self.geometry.window(home).first) == stripe
                && matches!(displaced.place, DisplacedAt::At(slot) if in_table(slot))
        };
        sum(words.clone().map(|word| self.region.load(word))) == expected
            && self.entries(words).all(|(home, displaced)| is_good(home, displaced))
    }

    /// The displaced keys in these words, with their homes.
    fn entries(&self, words: Range<usize>) -> impl Iterator<Item = (u64, Displaced)> {
        words.step_by(ENTRY as usize).map(|word| {
            let (slot, home) = (self.region.load(word), self.region.load(word + 1));
            (home >> 8, Displaced { bit: 1 << (home & 31), place: DisplacedAt::At(SlotIx(slot)) })
        })
    }

    /// Starts with what another server has handed over.
    pub(super) fn take_handover(&self, handover: Handover) -> u64 {
        let Handover { keys, free, registers } = handover;
        let mut registers = registers.into_iter();
        self.stripes.each(|_, stripe| stripe.unread = registers.next().unwrap_or_default());
        self.blocks.take_over(self.blocks_ever_used(), free);
        if cfg!(debug_assertions) && self.geometry.overflow_blocks() > 0 {
            for home in 0..self.geometry.homes() {
                let heads = self.chain_heads(self.geometry.window(home).first).skip(1);
                heads
                    .filter_map(|head| chain::block_of(&self.geometry, head))
                    .for_each(|block| self.blocks.owned(block, home));
            }
        }
        self.counters.found.store(keys, Ordering::Relaxed);
        keys
    }

    /// The number of displaced keys in a stripe.
    pub(super) fn displaced_in(&self, stripe: &Stripe) -> usize {
        stripe.census().sum::<usize>() + stripe.unread.len() / ENTRY as usize
    }

    /// Reads what another server has left of a stripe's register, when the stripe is first used.
    #[cold]
    pub(super) fn read_register(&self, stripe: &mut Stripe) {
        let unread = std::mem::take(&mut stripe.unread);
        obey(Rule::HandoverRead, || {
            self.entries(unread).for_each(|(home, displaced)| stripe.add(home, displaced))
        });
    }
}

/// What a stopped server left of a table that grows.
pub(super) struct GrowthHandover {
    pub keys: u64,
    /// The segments, each with its part.
    pub segments: Vec<(Segment, Handover)>,
    /// The pairs, each with the homes that are away from the parent: a bit for each.
    pub pairs: Vec<(LeftPair, Vec<u64>)>,
}

impl Growth {
    /// As [`Index::hand_over`]. Splits and merges stay as they are.
    fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        let reap = || self.reap(usize::MAX);
        if obey(Rule::StopAtRest, || traces_stay(&self.grace, reap, within)) {
            return Err(NotHandedOver::Traces(within));
        }
        let guard = crossbeam_epoch::pin();
        let segments: Vec<&Segment> = self.live.all(&guard).collect();
        let parts: Vec<Vec<u64>> = segments.iter().map(|s| s.handover(s.memory.into())).collect();
        let mut pairs = Vec::new();
        let left = self.pairs_left();
        for &LeftPair { parent, child, toward } in &left {
            let Some(parent_segment) = self.live.get(parent, &guard) else { continue };
            pairs.extend([u64::from(parent) | u64::from(child) << 32, toward as u64]);
            pairs.extend(parent_segment.share.away_words());
        }
        let keys = segments.iter().map(|segment| segment.len()).sum();
        let head = [self.incarnation, keys, segments.len() as u64, left.len() as u64];
        let mut at = HEAD + segments.len() as u64 * SEGMENT + pairs.len() as u64;
        let mut lists = Vec::new();
        for (segment, part) in segments.iter().zip(&parts) {
            let Named { memory, incarnation } = segment.named();
            let is_of = u64::from(memory) | u64::from(incarnation) << 32;
            lists.extend([is_of, segment.share.get().to_word(), at, part[HEAD as usize - 1]]);
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
        let first = offset(&self.geometry) / WORD as u64;
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
                let handover = segment.find_handover(first + part, named.memory.into(), Cores(1))?;
                found.push((segment, handover));
            }
            Some(found)
        };
        let parts = cores.split(0..segments, 1, look, |_| {});
        let segments: Vec<_> = parts.into_iter().collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
        Some(GrowthHandover { keys, segments, pairs })
    }
}

/// Why a server that stopped has handed nothing over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHandedOver {
    #[error("traces for readers under way stay longer than {0:?}")]
    Traces(Duration),
    #[error("there is no memory for it")]
    NoMemory(#[from] RegionError),
}
