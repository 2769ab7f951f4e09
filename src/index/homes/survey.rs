//! The look at all homes of a segment whose server is gone (T2 to T5).
//!
//! The region may have slots left odd by a dead writer, a key in two slots (a move cut off
//! between M1 and the overwriting of the original), and filter bits and ghosts whose times are
//! lost. Readers may be reading all the while.
//!
//! All cores look at the slots once. Only displaced and doubled keys, chains, and homes with filter
//! bits get a second look.

use super::Homes;
use super::counters::count;
use crate::faults::{Rule, in_order};
use crate::index::recovered::Recovered;
use crate::index::slots::{Displaced, DisplacedAt, Mended, restore_all};
use crate::index::start::Start;
use crate::layout::chain::{self, Block};
use crate::layout::control::{BLOCKS_WORD, MOVE_COUNTERS};
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::slot::Key;
use crate::placement::families;
use std::ops::Range;

/// The overflow blocks that are in use.
struct Chains {
    /// For each block ever used, whether a chain leads to it.
    linked: Vec<bool>,
    /// The linked blocks and their homes.
    blocks: Vec<(Block, u64)>,
}

/// What the first look at some slots showed, and what needs a second look.
#[derive(Default)]
struct Surveyed {
    found: Recovered,
    /// Keys outside their primary windows.
    displaced: Vec<SlotIx>,
    /// Slots whose keys may stand in a second slot.
    doubled: Vec<SlotIx>,
    /// Homes with a filter bit or a link, and homes of displaced keys.
    homes: Vec<u64>,
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
pub(crate) const PIECE: u64 = 1 << 13;

impl Homes {
    /// Frees the slot of a key whose value is nowhere. Only in a damaged region.
    pub fn drop_misplaced(&self, key: &[u8], found: &mut Recovered) {
        let key = self.geometry().hashed(key);
        let mut locked = self.slots.lock_primary(&key);
        let may_be_displaced = self.slots.lock_displaced(&mut locked, &key);
        let Some(slot) = self.slots.seek(&key, may_be_displaced).at() else { return };
        self.erase(&mut locked, slot, &key);
        count(&self.counters.mine().removes);
        found.misplaced += 1;
        found.keys = found.keys.saturating_sub(1);
    }

    /// T2 to T5. `done` is told how many bytes of the main slots have been looked at. `None` if the start is cancelled.
    pub fn survey(&self, start: &Start, done: &mut dyn FnMut(u64)) -> Option<Recovered> {
        let (cores, mut is_whole) = (start.cores, true);
        let bytes = self.geometry().shape().bytes() as u64;
        let mut seen = Surveyed::default();
        let add =
            |seen: &mut Surveyed, parts: Vec<Surveyed>| parts.into_iter().for_each(|part| seen.add(part));
        in_order(
            Rule::RestoreFirst,
            &mut seen,
            |seen| {
                if self.geometry().grows() {
                    return; // `Growth` does it, before it knows the segments.
                }
                let restore = |slot, line| Some(self.slots.restore(slot, line));
                seen.found.torn += restore_all(self.region(), self.geometry(), restore);
            },
            |seen| {
                let look = |slots: Range<u64>| self.look_at_main(slots);
                let main = 0..self.geometry().main_slots();
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
        // Bits that the register does not have go at once. Bits that lingered have done so for 2T by now (T1). The bit
        // of a second copy is not needed: GETs find the other copy in the primary window, or by its own bit (M5).
        let Surveyed { found, mut homes, .. } = seen;
        homes.sort_unstable();
        homes.dedup();
        let set = |part| {
            homes[all(part)].iter().for_each(|&home| self.set_filter(&mut self.slots.lock_home(home), home));
        };
        cores.split(0..homes.len() as u64, PIECE, set, |_| {});
        for (block, home) in chains.blocks {
            self.note_if_empty(&mut self.slots.lock_home(home), home, block);
        }
        if !self.geometry().grows() {
            // T5, B3: blocks that the old server had unlinked may be used again from here on.
            self.count_homes(0..MOVE_COUNTERS, Rule::TakeoverCount);
        }
        self.counters.found(found.keys);
        Some(found)
    }

    /// The first look at some main slots.
    fn look_at_main(&self, slots: Range<u64>) -> Surveyed {
        let bucket_slots = u64::from(self.geometry().layout().bucket_slots);
        let mut seen = Surveyed::default();
        for slot in slots {
            let (key, aux) = self.mend(SlotIx(slot), &mut seen.found);
            self.sort(SlotIx(slot), SlotIx(slot), &key, &mut seen);
            if aux != 0 && slot % bucket_slots == 0 && slot / bucket_slots < self.geometry().homes() {
                seen.homes.push(slot / bucket_slots);
            }
        }
        seen
    }

    /// The first look at blocks whose slots are mended.
    fn look_at_blocks(&self, blocks: &[(Block, u64)]) -> Surveyed {
        let mut seen = Surveyed::default();
        for &(block, home) in blocks {
            let guard = self.geometry().window(home).first;
            for slot in chain::window(self.geometry(), block).iter() {
                self.sort(slot, guard, &self.slots.read(slot).key, &mut seen);
            }
        }
        seen
    }

    /// T2: restores a slot, or frees it. Returns the key that it has then.
    fn mend(&self, slot: SlotIx, found: &mut Recovered) -> (Key, u32) {
        let Mended { key, aux, was_torn } = self.slots.mend(slot);
        found.torn += u64::from(was_torn);
        (key, aux)
    }

    /// T3: follows every chain, and cuts it where it leads out of the table or into another chain.
    /// Links blocks with keys that no chain leads to. Only a damaged region has them (B1).
    fn recover_chains(&self, seen: &mut Surveyed) -> Chains {
        let ever_used = if self.geometry().grows() { u64::MAX } else { self.region().load(BLOCKS_WORD) };
        let ever_used = ever_used.min(self.geometry().overflow_blocks());
        let mut chains = Chains { linked: vec![false; ever_used as usize], blocks: Vec::new() };
        let Surveyed { found, homes, .. } = seen;
        for &home in homes.iter().filter(|_| self.has_chains()) {
            self.follow_chain(home, self.geometry().window(home).first, &mut chains, found);
        }
        for block in (0..ever_used as u32).map(Block) {
            if chains.linked[block.0 as usize] {
                continue;
            }
            let window = chain::window(self.geometry(), block);
            // No GET looks into such a block, so a key torn here does not count as lost.
            window.iter().for_each(|slot| drop(self.mend(slot, &mut Recovered::default())));
            let keys = window.iter().map(|slot| self.slots.read(slot).key);
            let Some(key) = keys.into_iter().find(|key| !key.is_empty()) else { continue };
            let key = self.geometry().hashed(&key);
            let tail = self.chain_heads(self.slots.home_slot(key)).last().expect("the home is a head");
            self.link(&self.slots.alone(), tail, Some(block));
            self.follow_chain(key.home(), tail, &mut chains, found);
        }
        self.take_chains(ever_used, &chains.blocks);
        chains
    }

    /// Notes the blocks that follow `head`.
    fn follow_chain(&self, home: u64, mut head: SlotIx, chains: &mut Chains, found: &mut Recovered) {
        while let Some(block) = chain::link(self.geometry(), self.slots.header(head).aux) {
            let Some(seen @ false) = chains.linked.get_mut(block.0 as usize) else {
                found.cut += 1;
                return self.link(&self.slots.alone(), head, None);
            };
            *seen = true;
            chains.blocks.push((block, home));
            let window = chain::window(self.geometry(), block);
            window.iter().for_each(|slot| drop(self.mend(slot, found)));
            head = window.first;
        }
    }

    /// Notes the key in a slot that the stripe of `guard` guards.
    fn sort(&self, slot: SlotIx, guard: SlotIx, key: &[u8], seen: &mut Surveyed) {
        if key.is_empty() {
            return;
        }
        // The digest of a long key is in its extent.
        let is_whole = self.slots.holds(slot, key);
        let key = self.geometry().hashed(key);
        let primary = self.geometry().primary(key);
        let is_ours = is_whole && self.share.get().covers(key.first().directory());
        if is_ours && primary.contains(slot) {
            seen.found.keys += 1;
            let later = slot.0 + 1..primary.end();
            for other in later.map(SlotIx).filter(|&other| self.slots.holds(other, key.key())) {
                seen.doubled.extend([slot, other]);
            }
        } else if is_ours && self.may_be_at(key, slot, guard) {
            seen.displaced.push(slot);
        } else {
            self.slots.free(&self.slots.alone(), slot);
            seen.found.misplaced += 1;
        }
    }

    /// T4: registers displaced keys that stand in one slot only.
    fn look_again(&self, slots: &[SlotIx]) -> Surveyed {
        let mut seen = Surveyed::default();
        for &slot in slots {
            let content = self.slots.read(slot);
            let key = self.geometry().hashed(&content.key);
            if self.copies(key).any(|other| other != slot) {
                seen.doubled.push(slot);
            } else {
                self.register(key, slot, &mut seen);
            }
        }
        seen
    }

    fn register(&self, key: Hashed<'_>, slot: SlotIx, seen: &mut Surveyed) {
        let (home, bit) = (key.home(), families::filter_bit(self.geometry(), key));
        let mut locked = self.slots.lock_home(home);
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
            let content = self.slots.read(slot);
            if content.key.is_empty() {
                continue;
            }
            let key = self.geometry().hashed(&content.key);
            let is_primary = self.geometry().primary(key).contains(slot);
            if self.copies(key).next() != Some(slot) {
                self.vacate(&self.slots.alone(), slot, key);
                seen.found.doubled += 1;
                seen.found.keys -= u64::from(is_primary);
            } else if !is_primary {
                self.register(key, slot, seen);
            }
        }
    }

    /// Whether a GET may find the key in this slot, which the stripe of `guard` guards.
    fn may_be_at(&self, key: Hashed<'_>, slot: SlotIx, guard: SlotIx) -> bool {
        if slot.0 >= self.geometry().main_slots() {
            return self.slots.home_slot(key) == guard;
        }
        let windows = families::destinations(self.geometry(), key, None);
        windows.iter().any(|destination| destination.window.contains(slot))
    }

    /// Every slot that holds `key`, in the order in which a GET comes to them.
    fn copies(&self, key: Hashed<'_>) -> impl Iterator<Item = SlotIx> {
        let windows = families::destinations(self.geometry(), key, None).into_iter();
        let blocks =
            self.chain_heads(self.slots.home_slot(key)).filter_map(|h| chain::block_of(self.geometry(), h));
        windows
            .map(|destination| destination.window)
            .chain(blocks.map(|block| chain::window(self.geometry(), block)))
            .flat_map(|window| window.iter())
            .filter(move |&slot| self.slots.holds(slot, key.key()))
    }
}

#[cfg(all(test, feature = "sim", not(loom)))]
mod tests {
    use super::*;
    use crate::base::clock::Clock;
    use crate::base::cores::Cores;
    use crate::config::{Config, TableSize};
    use crate::index::whole::OneSize;
    use crate::layout::slot::Content;
    use crate::outcome::PutMode;
    use crate::region::Region;
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
        let index = OneSize::create(region, geometry, clock.clone()).unwrap();
        let slots = index.geometry().main_slots();
        let put = |n: u64| index.put(&n.to_le_bytes(), b"", PutMode::Upsert).is_ok();
        (1..slots)
            .take_while(|&n| put(n) && index.counts().keys as f64 / (index.counts().slots as f64) < 0.95)
            .for_each(drop);
        let gone = (1..slots).step_by(7).filter(|n| index.remove(&n.to_le_bytes()).unwrap()).count();
        assert!(index.homes().displaced() > 100 && gone > 1000, "{layout}: {}", index.homes().displaced());
        let mut doubled = 0;
        for n in (2..slots).step_by(101) {
            let key = n.to_le_bytes();
            let key = index.geometry().hashed(&key);
            let there = index.homes().copies(key).next();
            let free = index.slots().free_slot(index.geometry().primary(key));
            if let (Some(_), Some(to)) = (there, free) {
                let aux = index.slots().header(to).aux;
                let copy = Content { key: key.key(), aux, ..Content::default() };
                index.slots().write(&index.slots().alone(), to, &copy);
                doubled += 1;
            }
        }
        assert!(doubled > 10, "{layout}: {doubled}");
        for slot in (0..slots).step_by(1009) {
            let word = index.geometry().slot_word(SlotIx(slot));
            index.region().store(word, index.region().load(word) | 1);
        }
        index.region().alias()
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
                OneSize::open(region, Clock::manual(), &start).unwrap()
            };
            let (one, found) = taken_over(1);
            assert!(found.torn > 10 && found.doubled > 10, "{layout}: {found:?}");
            for threads in [2, 5] {
                let (other, also_found) = taken_over(threads);
                assert_eq!(also_found, found, "{layout}");
                assert_eq!(
                    (other.homes().displaced(), other.len()),
                    (one.homes().displaced(), one.len()),
                    "{layout}"
                );
                // In front of the table are undo lines, and what stands in a free one means nothing.
                let table = one.geometry().slot_word(SlotIx(0))..left.bytes() as usize / crate::layout::WORD;
                let differ =
                    table.into_iter().find(|&word| one.region().load(word) != other.region().load(word));
                assert_eq!(differ, None, "{layout}, {threads} threads");
                for home in 0..one.geometry().homes() {
                    let register = |index: &OneSize| {
                        let mut locked = index.slots().lock_home(home);
                        let mut all = index.homes().stripe(&mut locked, home).displaced(home).to_vec();
                        all.sort_by_key(|entry| format!("{entry:?}"));
                        all
                    };
                    assert_eq!(register(&other), register(&one), "{layout}, home {home}");
                }
            }
        }
    }
}
