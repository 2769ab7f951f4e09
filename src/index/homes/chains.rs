//! Overflow chains: the room of last resort, for layouts that have them.
//!
//! The lock of the home's stripe guards the home's chain, with all slots in it. Blocks follow
//! B1, B2 and B3.

use super::Homes;
use super::counters::count;
use super::grace::Trace;
use crate::base::sync::{Ordering, fence};
use crate::faults::{Rule, disobey, in_order, kept, obey};
use crate::index::slots::{DisplacedAt, Filling, HeldRoom, Locked, Note, SlotWritten, has_room_for_ghost};
use crate::layout::chain::{self, Block, CHAIN_MAX};
use crate::layout::control::move_counter_word;
use crate::layout::geometry::{SlotIx, Window};
use crate::layout::hash::Hashed;
use crate::layout::slot::{Content, Stored};
use crate::placement::families;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Room for a key in its home's chain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChainRoom {
    /// This slot of this block is free.
    Free { block: Block, slot: SlotIx },
    /// A new block, to be linked to this head.
    New { block: Block, tail: SlotIx },
}

impl Homes {
    /// Overflow blocks used now or before.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn blocks_ever_used(&self) -> u64 {
        self.blocks.ever_used()
    }

    /// The blocks that any home may take.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub fn free_blocks(&self) -> Vec<Block> {
        self.blocks.free()
    }

    /// The heads of a home's chain: its home slot, then the first slot of each block.
    pub fn chain_heads(&self, home_slot: SlotIx) -> impl Iterator<Item = SlotIx> {
        let next = |&head: &SlotIx| {
            chain::next(self.geometry(), self.slots.header(head).aux).map(|block| block.first)
        };
        std::iter::successors(Some(home_slot), next).take(CHAIN_MAX as usize)
    }

    /// Looks for room in the chain of a key's home, whose lock is held. If it takes a block, that block is not linked
    /// yet. `None` when the layout has no chains, or no block is left.
    pub fn room_in_chain(&self, home: u64) -> Option<ChainRoom> {
        let heads: SmallVec<[SlotIx; 4]> = self.chain_heads(self.geometry().window(home).first).collect();
        let block_at = |head| chain::block_of(self.geometry(), head);
        let mut blocks = heads.iter().filter_map(|&head| block_at(head));
        let free = blocks.find_map(|b| Some((b, self.slots.free_slot(chain::window(self.geometry(), b))?)));
        if let Some((block, slot)) = free {
            return Some(ChainRoom::Free { block, slot });
        }
        if heads.len() >= CHAIN_MAX as usize {
            return None;
        }
        let block = self.blocks.take(self.region(), self.geometry())?;
        self.slots.set_owner(block, Some(home));
        Some(ChainRoom::New { block, tail: *heads.last().expect("the home is a head") })
    }

    /// Puts a key into the room that was found in its home's chain. The lock was held since then.
    pub fn place_in_chain(
        &self,
        locked: &mut Locked<'_>,
        room: ChainRoom,
        key: Hashed<'_>,
        value: Stored<'_>,
    ) -> SlotWritten {
        match room {
            ChainRoom::Free { block, slot } => {
                self.stripe(locked, key.home()).forget_empty(block);
                self.place(locked, slot, &key, &value)
            }
            ChainRoom::New { block, tail } => {
                let window = self.clean(locked, block);
                let mut written = None;
                in_order(
                    Rule::LinkFirst,
                    locked,
                    |locked| self.link(locked, tail, Some(block)),
                    |locked| written = Some(self.place(locked, window.first, &key, &value)),
                );
                written.expect("in either order, it is written")
            }
        }
    }

    /// The slot of this room.
    pub fn slot_in_chain(&self, room: ChainRoom) -> SlotIx {
        match room {
            ChainRoom::Free { slot, .. } => slot,
            ChainRoom::New { block, .. } => chain::window(self.geometry(), block).first,
        }
    }

    /// Prepares the room that was found in a home's chain, so that its slot may be held. The lock was held since then.
    pub fn open_in_chain(&self, locked: &mut Locked<'_>, room: ChainRoom, home: u64) -> SlotIx {
        match room {
            ChainRoom::Free { block, slot } => {
                self.stripe(locked, home).forget_empty(block);
                slot
            }
            ChainRoom::New { block, tail } => {
                let window = self.clean(locked, block);
                self.link(locked, tail, Some(block));
                window.first
            }
        }
    }

    /// Frees all slots of a block that is about to be linked. The block may be new, or have a link of its last use.
    fn clean(&self, locked: &Locked<'_>, block: Block) -> Window {
        let window = chain::window(self.geometry(), block);
        window.iter().for_each(|slot| self.slots.write(locked, slot, &Content::default()));
        window
    }

    /// Lets a slot go that was held for a key which has not come.
    pub fn let_go(&self, room: &HeldRoom) {
        let mut locked = self.slots.lock_held(room);
        self.slots.let_go(&locked, room);
        if let Some(block) = chain::block_of(self.geometry(), room.slot) {
            self.note_if_empty(&mut locked, room.home, block);
        }
        // A search that failed meanwhile might find this room.
        count(&self.counters.mine().reaped);
    }

    /// Takes over the chains of a server that is gone: the blocks in use, with their homes, among the first
    /// `ever_used`.
    pub fn take_chains(&self, ever_used: u64, in_use: &[(Block, u64)]) {
        let in_use: FxHashMap<Block, u64> = in_use.iter().copied().collect();
        let free = (0..ever_used as u32).map(Block).filter(|block| !in_use.contains_key(block)).collect();
        self.blocks.take_over(ever_used, free);
        in_use.into_iter().for_each(|(block, home)| self.slots.set_owner(block, Some(home)));
    }

    /// Makes `head` link to block `to`, or to none.
    pub fn link(&self, locked: &Locked<'_>, head: SlotIx, to: Option<Block>) {
        self.slots.set_aux(locked, head, chain::with_link(self.geometry(), self.slots.header(head).aux, to));
    }

    /// A key of `home` has left `slot`. If that is a chain slot, moves the chain's last key into
    /// the hole, and notes a block that is now empty.
    #[inline(always)]
    pub fn left_slot_of_home(&self, locked: &mut Locked<'_>, slot: SlotIx, home: u64) {
        if let Some(block) = chain::block_of(self.geometry(), slot) {
            self.left_slot_of_chain(locked, (slot, block), home);
        }
    }

    #[inline(never)]
    fn left_slot_of_chain(&self, locked: &mut Locked<'_>, (slot, block): (SlotIx, Block), home: u64) {
        let home_slot = self.geometry().window(home).first;
        let last = self.last_in_chain(home_slot).filter(|&(last_block, _)| last_block != block);
        // Only a key from a later block: then the chain gets shorter.
        let from_later = last.filter(|&(later, _)| self.comes_before(home_slot, block, later));
        let emptied = match from_later {
            Some((later, from)) if self.move_within_chain(locked, home, from, slot) => later,
            _ => block,
        };
        self.note_if_empty(locked, home, emptied);
    }

    fn last_in_chain(&self, home_slot: SlotIx) -> Option<(Block, SlotIx)> {
        let blocks = self.chain_heads(home_slot).filter_map(|head| chain::block_of(self.geometry(), head));
        let occupied = |b: Block| {
            let slots = chain::window(self.geometry(), b).iter();
            slots.rev().find(|&s| !self.slots.header(s).is_free()).map(|s| (b, s))
        };
        blocks.filter_map(occupied).last()
    }

    fn comes_before(&self, home_slot: SlotIx, block: Block, other: Block) -> bool {
        let mut blocks =
            self.chain_heads(home_slot).filter_map(|head| chain::block_of(self.geometry(), head));
        blocks.find(|&b| b == block || b == other) == Some(block)
    }

    /// Moves a key of `home` from one slot of its chain to a free slot of it. `false` if the key
    /// may not be moved now.
    fn move_within_chain(&self, locked: &mut Locked<'_>, home: u64, from: SlotIx, to: SlotIx) -> bool {
        let (header, occupant) = self.slots.occupant(from);
        if !has_room_for_ghost(header.ghost) {
            return false;
        }
        let mover = self.geometry().hashed(&occupant);
        self.overwrite(locked, to, None, Filling::Copy(self.slots.words(from)), Note::Unknown);
        let bit = families::filter_bit(self.geometry(), mover);
        self.stripe(locked, home).change(home, bit, from, DisplacedAt::At(to));
        self.vacate(locked, from, mover);
        count(&self.counters.mine().moves);
        true
    }

    pub fn note_if_empty(&self, locked: &mut Locked<'_>, home: u64, block: Block) {
        let mut slots = chain::window(self.geometry(), block).iter();
        // L11: the holder of a slot is about to use the block.
        if slots.all(|slot| self.slots.may_take(slot)) {
            let due_ns = self.grace.due_ns(Rule::BlockGrace);
            self.stripe(locked, home).note_empty(block, due_ns);
            self.push_trace(due_ns, Trace::Unlink { home, block });
        }
    }

    /// Takes a block out of its chain, if it has been empty since `due_ns` was noted.
    pub fn unlink(&self, home: u64, block: Block, due_ns: u64) {
        let home_slot = self.geometry().window(home).first;
        let mut locked = self.slots.lock_home(home);
        if !self.stripe(&mut locked, home).is_empty_since(block, due_ns) {
            return; // Used again meanwhile. A later note may be about the block.
        }
        let window = chain::window(self.geometry(), block);
        let is_bare = window.iter().all(|slot| self.slots.header(slot).ghost == 0);
        if !kept(Rule::BlockGhost, || is_bare) {
            // The thread that is about to take that ghost away relies on this home's lock.
            return self.note_if_empty(&mut locked, home, block);
        }
        self.stripe(&mut locked, home).forget_empty(block);
        let before = self
            .chain_heads(home_slot)
            .find(|&head| chain::link(self.geometry(), self.slots.header(head).aux) == Some(block));
        let Some(before) = before else { return };
        self.link(&locked, before, chain::link(self.geometry(), self.slots.header(window.first).aux));
        disobey(Rule::BlockLink, || self.link(&locked, window.first, None));
        self.push_trace(self.grace.due_ns(Rule::ReuseGrace), Trace::Reuse { home, block });
    }

    /// Counts the reuse of the blocks unlinked so far as moves of keys of these homes (B3). `rule`
    /// is the switch that leaves it out.
    pub fn count_homes(&self, homes: impl IntoIterator<Item = u64>, rule: Rule) {
        // A reader that loaded the counter before this sees it go up: what it reads in the block is
        // written after. A reader that loads it later sees the new link.
        fence(Ordering::Release);
        obey(rule, || homes.into_iter().for_each(|home| self.region().add(move_counter_word(home))));
        fence(Ordering::Release);
    }

    /// Gives an unlinked block back for use by any home (B3).
    pub fn reuse(&self, home: u64, block: Block) {
        in_order(
            Rule::BlockCountFirst,
            self,
            |homes| homes.count_homes([home], Rule::BlockCount),
            |homes| {
                homes.slots.set_owner(block, None);
                homes.blocks.give_back(block);
            },
        );
    }
}
