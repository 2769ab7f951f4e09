//! Takes a region over from a server that is gone.
//!
//! The region may have slots left odd by a dead writer, a key in two slots (a move cut off
//! between M1 and the overwriting of the original), and filter bits and ghosts whose times are
//! lost. Readers may be reading all the while.

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
    /// The server that made the region died before the table was ready.
    #[error(
        "the server that was making this region died before it was ready; remove the file and serve again"
    )]
    Unfinished,
}

/// What was found in a region that was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Keys in the table.
    pub keys: u64,
    /// Slots that a writer left half written. The key in such a slot is lost, unless it was being
    /// moved and stands elsewhere. It may be a key that nobody was changing: to set a filter bit,
    /// or to take a ghost away, the slot is rewritten with the key in it.
    pub torn: u64,
    /// Keys that stood in two slots. One copy was freed.
    pub doubled: u64,
    /// Keys that stood where no GET looks for them. Their slots were freed. Only in a damaged
    /// region.
    pub misplaced: u64,
    /// Links that led nowhere, or into another chain. They were cut. Only in a damaged region.
    pub cut: u64,
}

/// The overflow blocks that are in use.
struct Chains {
    /// For each block ever used, whether a chain leads to it.
    linked: Vec<bool>,
    /// The linked blocks and their homes.
    blocks: Vec<(Block, u64)>,
}

impl Index {
    /// Takes over the table in `region`. Waits for twice the grace time, frees half-written slots
    /// and second copies, takes leftover ghosts and filter bits away, and rebuilds the register of
    /// displaced keys. The time grows with the size of the table. Clients that have the region
    /// mapped go on reading.
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
        // T1: after this wait no GET over a network rests on the old server's traces. A pass that
        // began before it has taken T or longer by its clock, so the GET looks again (G4, G7). GETs
        // on shm do not go by time: they look again if their counter goes up (M4, T5).
        index.grace.clock().sleep_until(index.grace.due_ns(Rule::TakeoverGrace));
        // Clients that have the region mapped read while it is mended, so it stays in service. With
        // `Starting`, a server killed from here on would leave a region that the next one refuses.
        // The incarnation is counted first, so that a takeover cut off has a number of its own. New
        // clients come later: the server binds its socket when this is done (`server/mod.rs`).
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
        // Bits that the register does not have go at once. Bits that lingered have done so for 2T
        // by now (T1). The bit of a second copy is not needed: all the while, GETs find the other
        // copy in the primary window, or by its own bit (M5).
        for home in 0..index.geometry.homes() {
            index.set_filter(&mut index.lock_home(home), home);
        }
        for (block, home) in chains.blocks {
            index.note_if_empty(&mut index.lock_home(home), home, block);
        }
        // T5, B3: blocks that the old server had unlinked may be used again from here on.
        index.count_homes(0..MOVE_COUNTERS, Rule::TakeoverCount);
        index.counters.keys.store(found.keys, Ordering::Relaxed);
        Ok((index, found))
    }

    /// T2: mends a slot whose writer died, and takes its ghost away. A slot whose writer stored no
    /// byte yet keeps its old content. Another slot loses its key, but keeps `aux`.
    ///
    /// The stamp is then the one that the torn write would have had. Say that the slot was at rest
    /// under n. The torn write left the first line at n + 1, and perhaps further lines at n + 2.
    /// This write makes all of them n + 2. So to a READ, a further line of the torn write may pass
    /// for one of this write. That is harmless: by its first line the slot is free.
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

    /// T3: follows every chain, and cuts it where it leads out of the table or into another chain.
    /// Links blocks with keys that no chain leads to. Only a damaged region has them (B1).
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
            // No GET looks into such a block, so a key torn here does not count as lost.
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

    /// Notes the blocks that follow `head`.
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

    /// T4: frees a second copy, and notes the key in a slot that the stripe of `guard` guards.
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
            // A move was cut off between M1 and the overwriting of the original. Both copies are
            // equal, because updates wait for the move to end.
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

    /// Whether a GET may find the key in this slot, which the stripe of `guard` guards.
    fn may_be_at(&self, key: Hashed<'_>, slot: SlotIx, guard: SlotIx) -> bool {
        if slot.0 >= self.geometry.main_slots() {
            return self.home_slot(key) == guard;
        }
        let windows = families::destinations(&self.geometry, key, None);
        windows.iter().any(|destination| destination.window.contains(slot))
    }

    /// Every slot that holds `key`, in its windows and in its home's chain.
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
