//! Overflow chains: the room of last resort, for layouts that have them.
//!
//! The lock of the home's stripe guards the home's chain, with all slots in it. Blocks follow
//! B1, B2 and B3.
//!
//! Overflow memory is address space until a block is first used. Then memory is put behind the
//! block, and its slots are written. So a table's chains cost only the memory that they used.

use super::counters::count;
use super::grace::Trace;
use super::moves::has_room_for_ghost;
use super::notes::Note;
use super::segment::Segment;
use super::stripes::{DisplacedAt, Locked};
use crate::families;
use crate::faults::{Rule, disobey, in_order, kept, obey};
use crate::layout::chain::{self, Block, CHAIN_MAX};
use crate::layout::control::{BLOCKS_WORD, move_counter_word};
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::hash::Hashed;
use crate::layout::slot::{Content, Stored};
use crate::outcome::{PutMode, PutOutcome};
use crate::region::Region;
use crate::sync::{Mutex, Ordering, fence, lock};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Which overflow blocks are in use.
#[derive(Debug)]
pub(super) struct Blocks {
    reserved: u64,
    pool: Mutex<Pool>,
    owners: Owners,
}

/// The home whose lock guards each block, from when it takes the block until it gives it back.
/// Kept only for assertions (L1), apart from the code that writes.
#[derive(Debug, Default)]
struct Owners {
    // Neither the adversary nor the model checker sees this lock. It must not change what they try.
    #[cfg(debug_assertions)]
    homes: std::sync::Mutex<FxHashMap<Block, u64>>,
}

impl Owners {
    fn set(&self, block: Block, home: Option<u64>) {
        #[cfg(debug_assertions)]
        {
            let mut homes = self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let before = match home {
                Some(home) => homes.insert(block, home),
                None => homes.remove(&block),
            };
            assert_eq!(before.is_some(), home.is_none(), "{block:?} is taken, or given back, twice");
        }
        #[cfg(not(debug_assertions))]
        let _ = (block, home);
    }

    fn home(&self, block: Block) -> Option<u64> {
        #[cfg(debug_assertions)]
        return self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(&block).copied();
        #[cfg(not(debug_assertions))]
        {
            let _ = block;
            None
        }
    }
}

#[derive(Debug, Default)]
struct Pool {
    /// Blocks that were given back.
    free: Vec<Block>,
    /// The number of blocks ever used. Their numbers are below this one.
    ever_used: u64,
    /// The number of blocks that have memory behind them.
    backed: u64,
}

/// Memory is put behind overflow blocks in steps of this many bytes.
const BACKING_STEP: u64 = 1 << 20;

impl Blocks {
    pub fn new(reserved: u64) -> Blocks {
        Blocks { reserved, pool: Mutex::default(), owners: Owners::default() }
    }

    /// All blocks have memory behind them, and any home may take them.
    pub fn all_free(reserved: u64) -> Blocks {
        let free = (0..reserved as u32).rev().map(Block).collect();
        let pool = Pool { free, ever_used: reserved, backed: reserved };
        Blocks { reserved, pool: Mutex::new(pool), owners: Owners::default() }
    }

    /// Takes an unused block for a home. `None` when there is none, or no memory for it.
    fn take(&self, region: &Region, geometry: &Geometry, home: u64) -> Option<Block> {
        let block = self.take_any(region, geometry)?;
        self.owners.set(block, Some(home));
        Some(block)
    }

    fn take_any(&self, region: &Region, geometry: &Geometry) -> Option<Block> {
        let pool = &mut *lock(&self.pool);
        if let Some(block) = pool.free.pop() {
            return Some(block);
        }
        if pool.ever_used == self.reserved {
            return None;
        }
        if pool.ever_used == pool.backed {
            let block_bytes = geometry.shape().bytes() as u64 * u64::from(geometry.layout().block_slots);
            // `back` cuts the last step off where the region ends.
            let more = BACKING_STEP.div_ceil(block_bytes);
            let start = geometry.slot_offset(chain::window(geometry, Block(pool.backed as u32)).first);
            if let Err(error) = region.back_more(start..start + more * block_bytes) {
                tracing::error!(error = &error as &dyn std::error::Error, "no memory for overflow blocks");
                return None;
            }
            pool.backed += more;
        }
        pool.ever_used += 1;
        region.store(BLOCKS_WORD, pool.ever_used);
        Some(Block(pool.ever_used as u32 - 1))
    }

    /// Lets any home take the block.
    pub fn give_back(&self, block: Block) {
        self.owners.set(block, None);
        lock(&self.pool).free.push(block);
    }

    /// The home whose lock guards a block in use. `None` in builds without assertions.
    pub fn owner(&self, block: Block) -> Option<u64> {
        self.owners.home(block)
    }

    /// The blocks that any home may take.
    pub fn free(&self) -> Vec<Block> {
        lock(&self.pool).free.clone()
    }

    /// The number of blocks used now or before. They have memory behind them.
    pub fn ever_used(&self) -> u64 {
        lock(&self.pool).ever_used
    }

    /// Takes over the state of an earlier server: `in_use` lists the blocks in use, with their
    /// homes, among the first `ever_used`.
    pub fn restore(&self, ever_used: u64, in_use: &[(Block, u64)]) {
        let pool = &mut *lock(&self.pool);
        pool.ever_used = ever_used;
        pool.backed = ever_used;
        let in_use: FxHashMap<Block, u64> = in_use.iter().copied().collect();
        pool.free = (0..ever_used as u32).map(Block).filter(|b| !in_use.contains_key(b)).collect();
        in_use.into_iter().for_each(|(block, home)| self.owners.set(block, Some(home)));
    }
}

impl Blocks {
    /// Takes over the state of a server that stopped: the blocks that any home may take, among the
    /// first `ever_used`.
    pub fn take_over(&self, ever_used: u64, free: Vec<Block>) {
        *lock(&self.pool) = Pool { free, ever_used, backed: ever_used };
    }

    /// Notes, for assertions, the home of a block that is in use.
    pub fn owned(&self, block: Block, home: u64) {
        if self.owners.home(block).is_none() {
            self.owners.set(block, Some(home));
        }
    }
}

impl Segment {
    /// The heads of a home's chain: its home slot, then the first slot of each block.
    pub(super) fn chain_heads(&self, home_slot: SlotIx) -> impl Iterator<Item = SlotIx> {
        let next = |&head: &SlotIx| {
            chain::next(&self.geometry, self.slots().header(head).aux).map(|block| block.first)
        };
        std::iter::successors(Some(home_slot), next).take(CHAIN_MAX as usize)
    }

    /// Puts a key into its home's chain, into a free slot or a new block. A copy is of a key that is
    /// still elsewhere (E3). `None` when the layout
    /// has no chains, or no block is left.
    pub(super) fn put_into_chain(
        &self,
        key: Hashed<'_>,
        value: Stored<'_>,
        mode: PutMode,
        is_copy: bool,
    ) -> Option<PutOutcome> {
        if self.geometry.overflow_blocks() == 0 {
            return None;
        }
        let (home, home_slot) = (key.home(), self.home_slot(key));
        let mut locked = self.stripes.lock(self.stripes_of_key(key));
        if !is_copy && self.is_elsewhere(key) {
            return None;
        }
        // L5: another thread may have put the same key meanwhile.
        let answer = obey(Rule::LookAgain, || self.put_present(&mut locked, key, value, mode));
        if answer.is_some() {
            return answer;
        }
        let heads: SmallVec<[SlotIx; 4]> = self.chain_heads(home_slot).collect();
        let block_at = |head| chain::block_of(&self.geometry, head);
        let mut blocks = heads.iter().filter_map(|&head| block_at(head));
        let free = blocks.find_map(|b| Some((b, self.free_slot(chain::window(&self.geometry, b))?)));
        if let Some((block, slot)) = free {
            self.stripe(&mut locked, home).empty_blocks.remove(&block);
            self.place(&mut locked, slot, key, value);
            return Some(PutOutcome::Inserted);
        }
        if heads.len() >= CHAIN_MAX as usize {
            return None;
        }
        let block = self.blocks.take(&self.region, &self.geometry, home)?;
        let window = chain::window(&self.geometry, block);
        let (slot, tail) = (window.first, *heads.last().expect("the home is a head"));
        // The block may be new, or have a link left from its last use.
        window.iter().for_each(|slot| self.write(&locked, slot, &Content::default()));
        in_order(
            Rule::LinkFirst,
            &mut locked,
            |locked| self.link(locked, tail, Some(block)),
            |locked| self.place(locked, slot, key, value),
        );
        Some(PutOutcome::Inserted)
    }

    /// Makes `head` link to block `to`, or to none.
    pub(super) fn link(&self, locked: &Locked<'_>, head: SlotIx, to: Option<Block>) {
        self.set_aux(locked, head, chain::with_link(&self.geometry, self.slots().header(head).aux, to));
    }

    /// A key of `home` has left `slot`. If that is a chain slot, moves the chain's last key into
    /// the hole, and notes a block that is now empty.
    pub(super) fn left_slot_of_home(&self, locked: &mut Locked<'_>, slot: SlotIx, home: u64) {
        let Some(block) = chain::block_of(&self.geometry, slot) else { return };
        let home_slot = self.geometry.window(home).first;
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
        let blocks = self.chain_heads(home_slot).filter_map(|head| chain::block_of(&self.geometry, head));
        let occupied = |b: Block| {
            let slots = chain::window(&self.geometry, b).iter();
            slots.rev().find(|&s| !self.slots().header(s).is_free()).map(|s| (b, s))
        };
        blocks.filter_map(occupied).last()
    }

    fn comes_before(&self, home_slot: SlotIx, block: Block, other: Block) -> bool {
        let mut blocks = self.chain_heads(home_slot).filter_map(|head| chain::block_of(&self.geometry, head));
        blocks.find(|&b| b == block || b == other) == Some(block)
    }

    /// Moves a key of `home` from one slot of its chain to a free slot of it. `false` if the key
    /// may not be moved now.
    fn move_within_chain(&self, locked: &mut Locked<'_>, home: u64, from: SlotIx, to: SlotIx) -> bool {
        let (header, occupant) = self.slots().occupant(from);
        if !has_room_for_ghost(header.ghost) {
            return false;
        }
        let mover = self.geometry.hashed(&occupant);
        self.overwrite(locked, to, None, &mut self.slots().image(from), Note::Unknown);
        let bit = families::filter_bit(&self.geometry, mover);
        self.stripe(locked, home).change(home, bit, from, DisplacedAt::At(to));
        self.vacate(locked, from, mover);
        count(&self.counters.mine().moves);
        true
    }

    pub(super) fn note_if_empty(&self, locked: &mut Locked<'_>, home: u64, block: Block) {
        let mut slots = chain::window(&self.geometry, block).iter();
        if slots.all(|slot| self.slots().header(slot).is_free()) {
            let due_ns = self.grace.due_ns(Rule::BlockGrace);
            self.stripe(locked, home).empty_blocks.insert(block, due_ns);
            self.push_trace(due_ns, Trace::Unlink { home, block });
        }
    }

    /// Takes a block out of its chain, if it has been empty since `due_ns` was noted.
    pub(super) fn unlink(&self, home: u64, block: Block, due_ns: u64) {
        let home_slot = self.geometry.window(home).first;
        let mut locked = self.lock_home(home);
        if self.stripe(&mut locked, home).empty_blocks.get(&block) != Some(&due_ns) {
            return; // Used again meanwhile. A later note may be about the block.
        }
        let window = chain::window(&self.geometry, block);
        let is_bare = window.iter().all(|slot| self.slots().header(slot).ghost == 0);
        if !kept(Rule::BlockGhost, || is_bare) {
            // The thread that is about to take that ghost away relies on this home's lock.
            return self.note_if_empty(&mut locked, home, block);
        }
        self.stripe(&mut locked, home).empty_blocks.remove(&block);
        let before = self
            .chain_heads(home_slot)
            .find(|&head| chain::link(&self.geometry, self.slots().header(head).aux) == Some(block));
        let Some(before) = before else { return };
        self.link(&locked, before, chain::link(&self.geometry, self.slots().header(window.first).aux));
        disobey(Rule::BlockLink, || self.link(&locked, window.first, None));
        self.push_trace(self.grace.due_ns(Rule::ReuseGrace), Trace::Reuse { home, block });
    }

    /// Counts the reuse of the blocks unlinked so far as moves of keys of these homes (B3). `rule`
    /// is the switch that leaves it out.
    pub(super) fn count_homes(&self, homes: impl IntoIterator<Item = u64>, rule: Rule) {
        // A reader that loaded the counter before this sees it go up: what it reads in the block is
        // written after. A reader that loads it later sees the new link.
        fence(Ordering::Release);
        obey(rule, || homes.into_iter().for_each(|home| self.region.add(move_counter_word(home))));
        fence(Ordering::Release);
    }

    /// Gives an unlinked block back for use by any home (B3).
    pub(super) fn reuse(&self, home: u64, block: Block) {
        in_order(
            Rule::BlockCountFirst,
            self,
            |index| index.count_homes([home], Rule::BlockCount),
            |index| index.blocks.give_back(block),
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::region::Backing;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    /// A table of large blocks, its region, and the file that tells how much memory is behind it.
    fn sparse() -> (Geometry, Region, File) {
        let config = Config {
            layout: "cluster".parse().unwrap(),
            size: TableSize::Slots(2000),
            value_max: 3900,
            ..Config::short()
        };
        let geometry = config.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let memory = File::from(region.share().unwrap());
        (geometry, region, memory)
    }

    /// A block has memory behind it when it is handed out, and little more has been taken. When all
    /// blocks are in use, there is none until one is given back.
    #[test]
    fn memory_is_put_behind_blocks_in_steps() {
        let (geometry, region, memory) = sparse();
        let blocks = Blocks::new(geometry.overflow_blocks());
        let block_bytes = geometry.window_bytes(chain::window(&geometry, Block(0)));
        assert!(geometry.overflow_blocks() * block_bytes > 3 * BACKING_STEP, "several steps");
        for n in 0..geometry.overflow_blocks() {
            assert_eq!(blocks.take(&region, &geometry, n), Some(Block(n as u32)));
            assert_eq!((blocks.ever_used(), region.load(BLOCKS_WORD)), (n + 1, n + 1));
            let backed = memory.metadata().unwrap().blocks() * 512;
            assert!(backed >= (n + 1) * block_bytes, "{backed} bytes for {} blocks", n + 1);
            // A huge page more where the system has them.
            assert!(
                backed <= (n + 1) * block_bytes + BACKING_STEP + (2 << 20),
                "{backed} bytes for {n} blocks"
            );
        }
        assert_eq!(blocks.take(&region, &geometry, 0), None);
        blocks.give_back(Block(7));
        assert_eq!(blocks.take(&region, &geometry, 0), Some(Block(7)));
        assert_eq!(blocks.take(&region, &geometry, 0), None);
    }

    /// Blocks used by an earlier server have memory behind them. The first new block gets its own
    /// at once.
    #[test]
    fn memory_is_put_behind_blocks_beyond_those_taken_over() {
        let (geometry, region, memory) = sparse();
        region.store(BLOCKS_WORD, 3);
        let before = memory.metadata().unwrap().blocks();
        let backed = || (memory.metadata().unwrap().blocks() - before) * 512;
        let blocks = Blocks::new(geometry.overflow_blocks());
        blocks.restore(3, &[(Block(1), 7)]);
        assert_eq!((blocks.ever_used(), blocks.owner(Block(1))), (3, cfg!(debug_assertions).then_some(7)));
        let taken: std::collections::BTreeSet<_> =
            (0..2).map(|home| blocks.take(&region, &geometry, home).unwrap().0).collect();
        assert!(taken.iter().eq(&[0, 2]) && backed() == 0, "{taken:?}, {} bytes", backed());
        assert_eq!(blocks.take(&region, &geometry, 0), Some(Block(3)));
        assert_eq!((blocks.ever_used(), region.load(BLOCKS_WORD)), (4, 4));
        assert!(backed() >= geometry.window_bytes(chain::window(&geometry, Block(3))), "{} bytes", backed());
    }
}
