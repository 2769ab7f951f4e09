//! Takes a region over from a server that is gone.
//!
//! The region may have slots left odd by a dead writer (`undo`), a key in two slots (a move cut off
//! between M1 and the overwriting of the original), and filter bits and ghosts whose times are
//! lost. Readers may be reading all the while.
//!
//! All cores look at the slots once. Only displaced and doubled keys, chains, and homes with filter
//! bits get a second look.

use super::stripes::{Displaced, DisplacedAt};
use super::writer::{Owned, SlotWriter};
use super::{Segment, count};
use crate::clock::Clock;
use crate::cores::Cores;
use crate::families;
use crate::faults::{Rule, disobey, in_order, kept, obey};
use crate::layout::chain::{self, Block};
use crate::layout::control::{BLOCKS_WORD, MOVE_COUNTERS, Phase, STATE_WORD, State};
use crate::layout::extent::Reference;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
use crate::layout::slot::{Header, Image, Key, Stored};
use crate::layout::superblock::{Superblock, SuperblockError};
use crate::layout::undo::{self, UNDO_LINES, line_word};
use crate::layout::{slot, words};
use crate::region::Region;
use crate::start::{Start, StartStep};
use crate::sync::Ordering;
use std::ops::Range;
use std::sync::atomic::compiler_fence;

/// Why a region could not be taken over.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoverError {
    /// The superblock is not usable.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The server that made the region died before the table was ready.
    #[error(
        "the server that was making this region died before it was ready; remove the file and serve again"
    )]
    Unfinished,
    /// The start was cancelled ([`ServerConfig::cancel`](crate::ServerConfig::cancel)). The next server takes
    /// the region over as from one that was killed.
    #[error("the takeover was cancelled; the next start takes the table over")]
    Cancelled,
    /// An entry of the directory of a table that grows is damaged, so some keys cannot be found.
    #[error(
        "entry {number} of the table's directory is damaged; remove the file, serve again, and load what was dumped or stored elsewhere"
    )]
    Directory {
        /// The number of the entry.
        number: u32,
    },
}

/// What was found in a region that was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// Keys in the table.
    pub keys: u64,
    /// Slots that a writer left half written. Each has the content again that it had before. In a
    /// damaged region a slot may be freed instead.
    pub torn: u64,
    /// Keys that stood in two slots. One copy was freed.
    pub doubled: u64,
    /// Keys that stood where no GET looks for them, or whose values were nowhere. Their slots were freed.
    /// Only in a damaged region.
    pub misplaced: u64,
    /// Links that led nowhere, or into another chain. They were cut. Only in a damaged region.
    pub cut: u64,
    /// Whether the last server had stopped and handed the table over. Then nothing was searched.
    pub handed_over: bool,
}

/// The overflow blocks that are in use.
struct Chains {
    /// For each block ever used, whether a chain leads to it.
    linked: Vec<bool>,
    /// The linked blocks and their homes.
    blocks: Vec<(Block, u64)>,
}

/// What one look at some slots showed, and what needs another look.
#[derive(Default)]
struct Surveyed {
    found: Recovered,
    /// Keys outside their primary windows.
    displaced: Vec<SlotIx>,
    /// Slots whose keys may stand in another slot, too.
    doubled: Vec<SlotIx>,
    /// Homes with a filter bit or a link, and homes of displaced keys.
    homes: Vec<u64>,
}

impl Recovered {
    pub(super) fn add(&mut self, more: Recovered) {
        let Recovered { keys, torn, doubled, misplaced, cut, .. } = more;
        self.keys += keys;
        self.torn += torn;
        self.doubled += doubled;
        self.misplaced += misplaced;
        self.cut += cut;
    }
}

impl Surveyed {
    fn add(&mut self, more: Surveyed) {
        self.found.add(more.found);
        self.displaced.extend(more.displaced);
        self.doubled.extend(more.doubled);
        self.homes.extend(more.homes);
    }
}

/// Slots, or homes, that a thread looks at before it takes the next ones.
const PIECE: u64 = 1 << 13;

impl Segment {
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn open(region: Region, clock: Clock) -> Result<(Segment, Recovered), RecoverError> {
        Segment::open_by(region, clock, &Start::default())
    }

    pub(crate) fn open_by(
        region: Region,
        clock: Clock,
        start: &Start,
    ) -> Result<(Segment, Recovered), RecoverError> {
        let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))?;
        let State { incarnation, phase } = State::from_word(region.load(STATE_WORD));
        if phase == Phase::Starting {
            return Err(RecoverError::Unfinished);
        }
        let index = Segment::over(region, geometry, clock, incarnation + 1);
        if phase == Phase::Stopped {
            if let Some(handover) = index.handed_over(start.cores) {
                // T7: if this server is killed from here on, nobody takes this handover again.
                obey(Rule::HandoverOnce, || index.publish_state(Phase::Serving));
                let keys = index.take_handover(handover);
                let mut found = Recovered { keys, handed_over: true, ..Recovered::default() };
                index.take_extents(start.cores, &mut found);
                return Ok((index, found));
            }
            tracing::warn!("what the last server handed over is damaged; every slot is looked at");
        }
        // T1: after this wait no GET over a network rests on the old server's traces. A pass that
        // began before it has taken T or longer by its clock, so the GET looks again (G4, G7). GETs
        // on shm do not go by time: they look again if their counter goes up (M4, T5).
        index.grace.clock().sleep_until(index.grace.due_ns(Rule::TakeoverGrace));
        // Clients that have the region mapped read while it is mended, so it stays in service. With
        // `Starting`, a server killed from here on would leave a region that the next one refuses.
        // The incarnation is counted first, so that a takeover cut off has a number of its own. New
        // clients come later: the server binds its socket when this is done (`server/mod.rs`).
        index.publish_state(Phase::Serving);
        let bytes = index.geometry.main_slots() * index.geometry.shape().bytes() as u64;
        let found = start.step(StartStep::Survey, bytes, |done| index.survey(start, done));
        let mut found = found.ok_or(RecoverError::Cancelled)?;
        index.take_extents(start.cores, &mut found);
        Ok((index, found))
    }

    /// X5, when every slot is restored and mended.
    fn take_extents(&self, cores: Cores, found: &mut Recovered) {
        let Some(extents) = &self.extents else { return };
        let named = self.all_references(cores);
        let mut bad = Vec::new();
        let references = named.iter().map(|&(_, reference)| reference);
        extents.take_over(references, |nth| bad.push(nth));
        // First: when one goes, another of its chain may come into its slot.
        let bad: Vec<Key> = bad.into_iter().map(|nth| self.key_in(named[nth].0)).collect();
        bad.iter().for_each(|key| self.drop_misplaced(key, found));
    }

    /// The references of all slots. For a thread that is alone.
    pub(super) fn all_references(&self, cores: Cores) -> Vec<(SlotIx, Reference)> {
        let of = |slots: Range<u64>| {
            let names = |slot| Some((slot, self.slots().read(slot).reference?));
            let is_reference = |slot: &SlotIx| self.slots().header(*slot).is_reference();
            slots.map(SlotIx).filter(is_reference).filter_map(names).collect::<Vec<_>>()
        };
        let overflow = self.slots_allocated() - self.geometry.main_slots();
        let all = 0..self.geometry.main_slots() + overflow;
        cores.split(all, PIECE, of, |_| {}).into_iter().flatten().collect()
    }

    /// The key in a slot. For a thread that is alone.
    pub(super) fn key_in(&self, slot: SlotIx) -> Key {
        self.slots().read(slot).key
    }

    /// Frees the slot of a key whose value is nowhere. Only in a damaged region.
    pub(super) fn drop_misplaced(&self, key: &[u8], found: &mut Recovered) {
        let key = self.geometry.hashed(key);
        let mut locked = self.stripes.none();
        let may_be_displaced = self.lock_key(&mut locked, key);
        let Some(slot) = self.seek(key, may_be_displaced).at() else { return };
        self.erase(&mut locked, slot, key);
        count(&self.counters.mine().removes);
        found.misplaced += 1;
        found.keys = found.keys.saturating_sub(1);
    }

    /// T2 to T5. `done` hears how many bytes of the main slots have been looked at. `None` if the start is
    /// cancelled.
    pub(super) fn survey(&self, start: &Start, done: &mut dyn FnMut(u64)) -> Option<Recovered> {
        let (cores, mut is_whole) = (start.cores, true);
        let bytes = self.geometry.shape().bytes() as u64;
        let mut seen = Surveyed::default();
        let add =
            |seen: &mut Surveyed, parts: Vec<Surveyed>| parts.into_iter().for_each(|part| seen.add(part));
        in_order(
            Rule::RestoreFirst,
            &mut seen,
            |seen| {
                if self.geometry.grows() {
                    return; // `Growth` does it, before it knows the segments.
                }
                seen.found.torn +=
                    restore_all(&self.region, &self.geometry, |slot, line| Some(self.restore(slot, line)));
            },
            |seen| {
                let look = |slots: Range<u64>| self.look_at_main(slots);
                let main = 0..self.geometry.main_slots();
                match start.split(main, PIECE, look, |slots| done(slots * bytes)) {
                    Some(parts) => add(seen, parts),
                    None => is_whole = false,
                }
            },
        );
        if !is_whole {
            return None;
        }
        let chains = self.recover_chains(&mut seen);
        let all = |parts: Range<u64>| parts.start as usize..parts.end as usize;
        let look = |part| self.look_at_blocks(&chains.blocks[all(part)]);
        add(&mut seen, cores.split(0..chains.blocks.len() as u64, PIECE, look, |_| {}));
        let displaced = std::mem::take(&mut seen.displaced);
        let look = |part| self.look_again(&displaced[all(part)]);
        add(&mut seen, cores.split(0..displaced.len() as u64, PIECE, look, |_| {}));
        self.keep_one(&mut seen);
        // Bits that the register does not have go at once. Bits that lingered have done so for 2T
        // by now (T1). The bit of a second copy is not needed: all the while, GETs find the other
        // copy in the primary window, or by its own bit (M5).
        let Surveyed { found, mut homes, .. } = seen;
        homes.sort_unstable();
        homes.dedup();
        let set = |part| {
            homes[all(part)].iter().for_each(|&home| self.set_filter(&mut self.lock_home(home), home));
        };
        cores.split(0..homes.len() as u64, PIECE, set, |_| {});
        for (block, home) in chains.blocks {
            self.note_if_empty(&mut self.lock_home(home), home, block);
        }
        if !self.geometry.grows() {
            // T5, B3: blocks that the old server had unlinked may be used again from here on.
            self.count_homes(0..MOVE_COUNTERS, Rule::TakeoverCount);
        }
        self.counters.found.store(found.keys, Ordering::Relaxed);
        Some(found)
    }

    /// The first look at some main slots.
    fn look_at_main(&self, slots: Range<u64>) -> Surveyed {
        let bucket_slots = u64::from(self.geometry.layout().bucket_slots);
        let mut seen = Surveyed::default();
        for slot in slots {
            let (key, aux) = self.mend(SlotIx(slot), &mut seen.found);
            self.sort(SlotIx(slot), SlotIx(slot), &key, &mut seen);
            if aux != 0 && slot % bucket_slots == 0 && slot / bucket_slots < self.geometry.homes() {
                seen.homes.push(slot / bucket_slots);
            }
        }
        seen
    }

    /// The first look at blocks whose slots are mended.
    fn look_at_blocks(&self, blocks: &[(Block, u64)]) -> Surveyed {
        let mut seen = Surveyed::default();
        for &(block, home) in blocks {
            let guard = self.geometry.window(home).first;
            for slot in chain::window(&self.geometry, block).iter() {
                self.sort(slot, guard, &self.slots().read(slot).key, &mut seen);
            }
        }
        seen
    }

    /// U4: gives a slot that a dead writer was writing over the content that it had before, if the undo
    /// line that begins with this word keeps it.
    pub(super) fn restore(&self, slot: SlotIx, line: usize) -> bool {
        let before = before_the_write(self.slots(), slot, line);
        disobey(Rule::RestoreStays, || self.region.store(line, 0));
        if let Some(before) = &before {
            // Until it ends, this write leaves the slot's stamp as it is. If this server is
            // killed meanwhile, the next one restores the slot.
            self.write(&self.stripes.alone(), slot, &before.content());
        }
        before.is_some()
    }

    /// T2: mends a slot, and takes its ghost away. A slot that is odd by now was free before the
    /// torn write, since no undo line has its image (U1, U4): it is freed, and keeps `aux`. Returns
    /// the slot's key and `aux`.
    fn mend(&self, slot: SlotIx, found: &mut Recovered) -> (Key, u32) {
        let image: Image = words::image(self.slots().words(slot));
        let header = Header::from_words([image[0], image[1]]);
        let view = slot::check(self.geometry.shape(), self.geometry.identity(slot), &image);
        if let Ok(view) = view
            && header.ghost == 0
        {
            return (view.key(), header.aux);
        }
        found.torn += u64::from(view.is_err());
        let content = view.map_or_else(|_| Owned::default(), |_| self.slots().read(slot));
        let mut mended = content;
        (mended.ghost, mended.aux) = (0, header.aux);
        self.write(&self.stripes.alone(), slot, &mended.content());
        (mended.key, header.aux)
    }

    /// T3: follows every chain, and cuts it where it leads out of the table or into another chain.
    /// Links blocks with keys that no chain leads to. Only a damaged region has them (B1).
    fn recover_chains(&self, seen: &mut Surveyed) -> Chains {
        let ever_used = if self.geometry.grows() { u64::MAX } else { self.region.load(BLOCKS_WORD) };
        let ever_used = ever_used.min(self.geometry.overflow_blocks());
        let mut chains = Chains { linked: vec![false; ever_used as usize], blocks: Vec::new() };
        let Surveyed { found, homes, .. } = seen;
        let has_chains = self.geometry.overflow_blocks() > 0;
        for &home in homes.iter().filter(|_| has_chains) {
            self.follow_chain(home, self.geometry.window(home).first, &mut chains, found);
        }
        for block in (0..ever_used as u32).map(Block) {
            if chains.linked[block.0 as usize] {
                continue;
            }
            let window = chain::window(&self.geometry, block);
            // No GET looks into such a block, so a key torn here does not count as lost.
            window.iter().for_each(|slot| drop(self.mend(slot, &mut Recovered::default())));
            let keys = window.iter().map(|slot| self.slots().read(slot).key);
            let Some(key) = keys.into_iter().find(|key| !key.is_empty()) else { continue };
            let key = self.geometry.hashed(&key);
            let tail = self.chain_heads(self.home_slot(key)).last().expect("the home is a head");
            self.link(&self.stripes.alone(), tail, Some(block));
            self.follow_chain(key.home(), tail, &mut chains, found);
        }
        self.blocks.restore(ever_used, &chains.blocks);
        chains
    }

    /// Notes the blocks that follow `head`.
    fn follow_chain(&self, home: u64, mut head: SlotIx, chains: &mut Chains, found: &mut Recovered) {
        while let Some(block) = chain::link(&self.geometry, self.slots().header(head).aux) {
            let Some(seen @ false) = chains.linked.get_mut(block.0 as usize) else {
                found.cut += 1;
                return self.link(&self.stripes.alone(), head, None);
            };
            *seen = true;
            chains.blocks.push((block, home));
            let window = chain::window(&self.geometry, block);
            window.iter().for_each(|slot| drop(self.mend(slot, found)));
            head = window.first;
        }
    }

    /// Notes the key in a slot that the stripe of `guard` guards.
    fn sort(&self, slot: SlotIx, guard: SlotIx, key: &[u8], seen: &mut Surveyed) {
        if key.is_empty() {
            return;
        }
        let key = self.geometry.hashed(key);
        let primary = self.geometry.primary(key);
        let is_ours = self.share.get().covers(key.first().directory());
        if is_ours && primary.contains(slot) {
            seen.found.keys += 1;
            let later = slot.0 + 1..primary.end();
            for other in later.map(SlotIx).filter(|&other| self.slots().holds(other, key.key())) {
                seen.doubled.extend([slot, other]);
            }
        } else if is_ours && self.may_be_at(key, slot, guard) {
            seen.displaced.push(slot);
        } else {
            self.rewrite(&self.stripes.alone(), slot, None, Stored::default());
            seen.found.misplaced += 1;
        }
    }

    /// T4: registers displaced keys that stand in one slot only.
    fn look_again(&self, slots: &[SlotIx]) -> Surveyed {
        let mut seen = Surveyed::default();
        for &slot in slots {
            let content = self.slots().read(slot);
            let key = self.geometry.hashed(&content.key);
            if self.copies(key).any(|other| other != slot) {
                seen.doubled.push(slot);
            } else {
                self.register(key, slot, &mut seen);
            }
        }
        seen
    }

    fn register(&self, key: Hashed<'_>, slot: SlotIx, seen: &mut Surveyed) {
        let (home, bit) = (key.home(), families::filter_bit(&self.geometry, key));
        let mut locked = self.lock_home(home);
        self.stripe(&mut locked, home).add(home, Displaced { bit, place: DisplacedAt::At(slot) });
        seen.found.keys += 1;
        seen.homes.push(home);
    }

    /// T4: of a key in two slots, keeps the copy that a GET comes to first. A move was cut off between
    /// M1 and the overwriting of the original. Both copies are equal, because updates wait for the
    /// move to end.
    fn keep_one(&self, seen: &mut Surveyed) {
        let mut doubled = std::mem::take(&mut seen.doubled);
        doubled.sort_unstable();
        doubled.dedup();
        for slot in doubled {
            let content = self.slots().read(slot);
            if content.key.is_empty() {
                continue;
            }
            let key = self.geometry.hashed(&content.key);
            let is_primary = self.geometry.primary(key).contains(slot);
            if self.copies(key).next() != Some(slot) {
                self.vacate(&self.stripes.alone(), slot, key);
                seen.found.doubled += 1;
                seen.found.keys -= u64::from(is_primary);
            } else if !is_primary {
                self.register(key, slot, seen);
            }
        }
    }

    /// Whether a GET may find the key in this slot, which the stripe of `guard` guards.
    fn may_be_at(&self, key: Hashed<'_>, slot: SlotIx, guard: SlotIx) -> bool {
        if slot.0 >= self.geometry.main_slots() {
            return self.home_slot(key) == guard;
        }
        let windows = families::destinations(&self.geometry, key, None);
        windows.iter().any(|destination| destination.window.contains(slot))
    }

    /// Every slot that holds `key`, in the order in which a GET comes to them.
    fn copies(&self, key: Hashed<'_>) -> impl Iterator<Item = SlotIx> {
        let windows = families::destinations(&self.geometry, key, None).into_iter();
        let blocks = self.chain_heads(self.home_slot(key)).filter_map(|h| chain::block_of(&self.geometry, h));
        windows
            .map(|destination| destination.window)
            .chain(blocks.map(|block| chain::window(&self.geometry, block)))
            .flat_map(|window| window.iter())
            .filter(move |&slot| self.slots().holds(slot, key.key()))
    }
}

/// What the undo line that begins with this word keeps of the slot. `None` unless a writer died
/// between W1 and W3 of the write that it was kept for.
pub(super) fn before_the_write(slots: SlotWriter<'_>, slot: SlotIx, line: usize) -> Option<Owned> {
    let shape = slots.geometry.shape();
    let image = words::image(slots.region.words(line + 1, shape.words()));
    let view = slot::check(shape, slots.geometry.identity(slot), &image).ok()?;
    let (header, stamp) = (view.header(), slots.header(slot).stamp);
    let is_torn = kept(Rule::RestoreStamp, || stamp == header.stamp.wrapping_add(1));
    is_torn.then(|| Owned::of(view))
}

/// U4 for each undo line whose slot `restore` has, and says whether it was torn. Returns how many were.
pub(super) fn restore_all(
    region: &Region,
    geometry: &Geometry,
    mut restore: impl FnMut(SlotIx, usize) -> Option<bool>,
) -> u64 {
    let mut torn = 0;
    for line in (0..UNDO_LINES).map(|line| line_word(geometry.shape(), line)) {
        let name = region.load(line);
        if name == 0 {
            continue;
        }
        let restored = undo::named(geometry, name).map_or(Some(false), |slot| restore(slot, line));
        if let Some(was_torn) = restored {
            torn += u64::from(was_torn);
            compiler_fence(Ordering::Release);
            region.store(line, 0);
        }
    }
    torn
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::layout::slot::Content;
    use crate::outcome::PutMode;
    use std::time::Duration;

    /// A table of several pieces whose server is gone: with ghosts and lingering bits, with keys in
    /// two slots, and with slots left odd.
    fn left_behind(layout: &str) -> Region {
        let size = TableSize::Slots(4 * PIECE + 100);
        let layout = layout.parse().unwrap();
        let config = Config {
            layout,
            size,
            key_max: 8,
            value_max: 8,
            grace: Duration::from_micros(1),
            seeds: None,
            ..Config::default()
        };
        let geometry = config.geometry().unwrap();
        let region = Region::private(geometry.region_bytes());
        let clock = Clock::manual();
        let index = Segment::create(region, geometry, clock.clone()).unwrap();
        let slots = index.geometry.main_slots();
        let put = |n: u64| index.put(&n.to_le_bytes(), b"", PutMode::Upsert).is_ok();
        (1..slots)
            .take_while(|&n| put(n) && index.counts().keys as f64 / (index.counts().slots as f64) < 0.95)
            .for_each(drop);
        let gone = (1..slots).step_by(7).filter(|n| index.remove(&n.to_le_bytes()).unwrap()).count();
        assert!(index.displaced() > 100 && gone > 1000, "{layout}: {}", index.displaced());
        let mut doubled = 0;
        for n in (2..slots).step_by(101) {
            let key = n.to_le_bytes();
            let key = index.geometry.hashed(&key);
            let there = index.copies(key).next();
            let free = index.free_slot(index.geometry.primary(key));
            if let (Some(_), Some(to)) = (there, free) {
                let aux = index.slots().header(to).aux;
                let copy = Content { key: key.key(), aux, ..Content::default() };
                index.write(&index.stripes.alone(), to, &copy);
                doubled += 1;
            }
        }
        assert!(doubled > 10, "{layout}: {doubled}");
        for slot in (0..slots).step_by(1009) {
            let word = index.geometry.slot_word(SlotIx(slot));
            index.region.store(word, index.region.load(word) | 1);
        }
        let Segment { region, .. } = index;
        region
    }

    /// What a takeover makes of a table does not depend on how many threads work at it.
    #[test]
    fn any_number_of_threads_takes_over_alike() {
        for layout in ["windowed:8", "pilaf", "farm", "cluster"] {
            let left = left_behind(layout);
            let taken_over = |threads| {
                let region = Region::private(left.bytes());
                let words = left.bytes() as usize / crate::layout::WORD;
                (0..words).for_each(|word| region.store(word, left.load(word)));
                let start = Start { cores: Cores(threads), ..Start::default() };
                Segment::open_by(region, Clock::manual(), &start).unwrap()
            };
            let (one, found) = taken_over(1);
            assert!(found.torn > 10 && found.doubled > 10, "{layout}: {found:?}");
            for threads in [2, 5] {
                let (other, also_found) = taken_over(threads);
                assert_eq!(also_found, found, "{layout}");
                assert_eq!((other.displaced(), other.len()), (one.displaced(), one.len()), "{layout}");
                // In front of the table are undo lines, and what stands in a free one means nothing.
                let table = one.geometry.slot_word(SlotIx(0))..left.bytes() as usize / crate::layout::WORD;
                let differ = table.into_iter().find(|&word| one.region.load(word) != other.region.load(word));
                assert_eq!(differ, None, "{layout}, {threads} threads");
                for home in 0..one.geometry.homes() {
                    let register = |index: &Segment| {
                        let mut locked = index.lock_home(home);
                        let mut all = index.stripe(&mut locked, home).displaced(home).to_vec();
                        all.sort_by_key(|entry| format!("{entry:?}"));
                        all
                    };
                    assert_eq!(register(&other), register(&one), "{layout}, home {home}");
                }
            }
        }
    }
}
