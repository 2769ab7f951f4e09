//! Taking a region over from a server that is gone.
//!
//! What may be in it: slots left odd by a writer that died, a key in two slots (a move between M1 and the
//! overwriting of the original), filter bits and ghosts whose time nobody keeps any more. Readers may be
//! reading all the while.

use super::Index;
use super::stripes::{Displaced, DisplacedAt};
use super::writer::Owned;
use crate::clock::Clock;
use crate::families;
use crate::faults::Rule;
use crate::layout::chain::{self, Block};
use crate::layout::control::{BLOCKS_WORD, MOVE_COUNTERS, Phase, STATE_WORD, State};
use crate::layout::geometry::SlotIx;
use crate::layout::hash::Hashed;
use crate::layout::superblock::{Superblock, SuperblockError};
use crate::region::Region;
use crate::sync::Ordering;

/// Why a region could not be taken over.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoverError {
    /// The superblock is not usable.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The server that made it died before it was ready.
    #[error(
        "the server that was making this region died before it was ready; remove the file and serve again"
    )]
    Unfinished,
}

/// What was found in a region that was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Keys there.
    pub keys: u64,
    /// Slots that a writer left half written: the key that was in one is lost, unless it was being moved and
    /// stands elsewhere.
    pub torn: u64,
    /// Keys that stood in two slots; one copy was freed.
    pub doubled: u64,
    /// Keys that stood where no GET looks for them; their slots were freed. Only in a damaged region.
    pub misplaced: u64,
    /// Links that led nowhere, or into another chain. Only in a damaged region.
    pub cut: u64,
}

/// The overflow blocks that are in use.
struct Chains {
    /// For each block ever used: does a chain lead to it?
    linked: Vec<bool>,
    /// The linked blocks and their homes.
    blocks: Vec<(Block, u64)>,
}

impl Index {
    /// Takes over the table in `region`: waits for twice the grace time, frees half-written slots and second
    /// copies, takes away what ghosts and filter bits are left, and rebuilds the register of displaced keys.
    /// Takes time in proportion to the table. Clients that have the region mapped go on reading.
    ///
    /// # Errors
    /// [`RecoverError`]; the region is then unchanged.
    pub fn open(region: Region, clock: Clock) -> Result<(Index, Recovered), RecoverError> {
        let (geometry, _) = Superblock::open(region.bytes(), |word| region.load(word))?;
        if State::from_word(region.load(STATE_WORD)).phase == Phase::Starting {
            return Err(RecoverError::Unfinished);
        }
        let incarnation = State::from_word(region.load(STATE_WORD)).incarnation + 1;
        let index = Index::over(region, geometry, clock, incarnation);
        // GETs under way may rest on traces of the server before this one: let them end. No others do.
        index.grace.clock().sleep_until(index.grace.due_ns(Rule::TakeoverGrace));
        index.publish_state(Phase::Serving);
        let mut found = Recovered::default();
        for slot in (0..index.geometry.main_slots()).map(SlotIx) {
            index.mend(slot, &mut found);
        }
        let chains = index.recover_chains(&mut found);
        for slot in (0..index.geometry.main_slots()).map(SlotIx) {
            index.recover_slot(slot, slot, &mut found);
        }
        for &(block, home) in &chains.blocks {
            let guard = index.geometry.window(home).first;
            for slot in chain::window(&index.geometry, block).iter() {
                index.recover_slot(slot, guard, &mut found);
            }
        }
        for home in 0..index.geometry.homes() {
            index.set_filter(&mut index.lock_home(home), home);
        }
        for (block, home) in chains.blocks {
            index.note_if_empty(&mut index.lock_home(home), home, block);
        }
        // B3: blocks that the server before this one had unlinked may be used again from here on.
        index.count_homes(0..MOVE_COUNTERS, Rule::TakeoverCount);
        index.counters.keys.store(found.keys, Ordering::Relaxed);
        Ok((index, found))
    }

    /// T2: mends a slot whose writer died, and takes away its ghost. Before the writer had stored a byte, the old
    /// content is still whole; otherwise the key in it is lost, but not what the slot says about others: `aux`
    /// stands in one word, which is old or new, and right either way.
    ///
    /// The stamp is then the one that the torn write would have had: in a slot of several lines, a line of that
    /// write may pass for one of this. It is of a slot that is free now, and shows no key.
    fn mend(&self, slot: SlotIx, found: &mut Recovered) {
        let header = self.slots().header(slot);
        let whole = if self.slots().is_valid(slot) {
            if header.ghost == 0 {
                return;
            }
            Some(self.slots().read(slot))
        } else {
            self.slots().before_the_write(slot)
        };
        let lost = Owned { aux: header.aux, ..Owned::default() };
        found.torn += u64::from(whole.is_none());
        let mended = Owned { ghost: 0, ..whole.unwrap_or(lost) };
        self.write(&self.stripes.alone(), slot, &mended.content());
    }

    /// T3: follows every chain; cuts it where it leads out of the table or into another chain. Blocks with keys
    /// that no chain leads to are linked again: no killed server leaves any (B1), a damaged region may.
    fn recover_chains(&self, found: &mut Recovered) -> Chains {
        let ever_used = self.region.load(BLOCKS_WORD).min(self.geometry.overflow_blocks());
        let mut chains = Chains { linked: vec![false; ever_used as usize], blocks: Vec::new() };
        let homes = if self.geometry.overflow_blocks() == 0 { 0 } else { self.geometry.homes() };
        for home in 0..homes {
            self.follow_chain(home, self.geometry.window(home).first, &mut chains, found);
        }
        for block in (0..ever_used as u32).map(Block) {
            if chains.linked[block.0 as usize] {
                continue;
            }
            let window = chain::window(&self.geometry, block);
            // Who reads looks into no such block: a key torn here was never there, and is not lost.
            window.iter().for_each(|slot| self.mend(slot, &mut Recovered::default()));
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

    /// Takes note of the blocks that follow `head`.
    fn follow_chain(&self, home: u64, mut head: SlotIx, chains: &mut Chains, found: &mut Recovered) {
        while let Some(block) = chain::link(self.slots().header(head).aux) {
            let Some(seen @ false) = chains.linked.get_mut(block.0 as usize) else {
                found.cut += 1;
                return self.link(&self.stripes.alone(), head, None);
            };
            *seen = true;
            chains.blocks.push((block, home));
            let window = chain::window(&self.geometry, block);
            window.iter().for_each(|slot| self.mend(slot, found));
            head = window.first;
        }
    }

    /// T4: frees a second copy, and takes note of what stands in a slot, which the stripe of `guard` guards.
    fn recover_slot(&self, slot: SlotIx, guard: SlotIx, found: &mut Recovered) {
        let content = self.slots().read(slot);
        if content.key.is_empty() {
            return;
        }
        let key = self.geometry.hashed(&content.key);
        if !self.may_be_at(key, slot, guard) {
            self.rewrite(&self.stripes.alone(), slot, self.slots().header(slot), &[], &[]);
            found.misplaced += 1;
            return;
        }
        if self.find_all(key).into_iter().any(|other| other != slot) {
            // A move interrupted between M1 and the overwriting of the original. Both copies are equal: an
            // update waits for the move to end.
            self.vacate(&self.stripes.alone(), slot);
            found.doubled += 1;
            return;
        }
        found.keys += 1;
        if !self.geometry.primary(key).contains(slot) {
            let (home, bit) = (key.home(), families::filter_bit(&self.geometry, key));
            let mut locked = self.lock_home(home);
            self.stripe(&mut locked, home).add(home, Displaced { bit, place: DisplacedAt::At(slot) });
        }
    }

    /// May a GET find the key in this slot, which the stripe of `guard` guards?
    fn may_be_at(&self, key: Hashed<'_>, slot: SlotIx, guard: SlotIx) -> bool {
        if slot.0 >= self.geometry.main_slots() {
            return self.home_slot(key) == guard;
        }
        let windows = families::destinations(&self.geometry, key, None);
        windows.iter().any(|destination| destination.window.contains(slot))
    }

    /// Every slot that holds `key`, in any of its windows and its home's chain.
    fn find_all(&self, key: Hashed<'_>) -> Vec<SlotIx> {
        let windows = families::destinations(&self.geometry, key, None).into_iter();
        let blocks = self.chain_heads(self.home_slot(key)).filter_map(|h| chain::block_of(&self.geometry, h));
        windows
            .map(|destination| destination.window)
            .chain(blocks.map(|block| chain::window(&self.geometry, block)))
            .flat_map(|window| window.iter())
            .filter(|&slot| self.slots().holds(slot, key.key()))
            .collect()
    }
}
