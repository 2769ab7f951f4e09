//! Where extents lie: the server's allocator of memory for values that do not fit their slots.
//!
//! It keeps books, and touches no memory of the heap. An extent is a range of bytes, counted from the heap's start. The
//! rules X3 and X5 (when memory may be used again) are in
//! `models/extents.rs`. Y1 to Y5 (which gap, which block leaves) and the proofs of both bounds
//! are in `models/heap.rs`. They need blocks that are at least four times as long as the
//! longest extent.
//!
//! ```text
//!             allocate                retire            at its time
//! a gap ───────────────► an extent ──────────► waits ──────────────► a gap
//!                            └────────── give_back ─────────────────►
//!
//!   empty ──► open ──► leaving ──► empty ──► lent ──► empty
//!               no new extents; those that are there move (X6);
//!               then what waits has waited
//! ```
//!
//! # How to use it
//!
//! A [`Heap`] belongs behind a leaf lock: no function here calls out. Times are nanoseconds on the
//! server's clock.
//!
//! * A put [allocates](Heap::allocate), writes, and names the extent. If it gives up before that,
//!   it [gives it back](Heap::give_back). When a name has ended, the extent is
//!   [retired](Heap::retire).
//! * A tidying thread calls [`Heap::next_move`] for an extent that should move. It reads the header there, and looks
//!   whether the key's slot names this extent. If so, it takes memory by [`Heap::begin_move`], copies without the lock,
//!   names the copy, and calls [`Heap::end_move`]. If not, the extent has no name yet, or has none any more; one that
//!   gets its name later is tried again in the next round.
//! * A takeover [marks](HeapMarks::mark) what slots name, and opens the heap after a time (X5).
//! * [`Heap::lend_block`] names an empty block whose memory may go back to the machine.
//!
//! # What it costs
//!
//! An operation takes O(log n) for n gaps and pieces that wait, but for these:
//!
//! * It takes in up to [`SETTLE_MAX`] pieces whose time has come, and more only if it finds no gap
//!   otherwise.
//! * Where no gap and no empty block is left, it looks at each block. There are at most some 1,024,
//!   if blocks are as long as `layout/extent.rs` says.
//! * When a block begins to leave, [`HIDE_MAX`] of its gaps are hidden at a time. Until that is
//!   done, the look for a gap takes O(log n) for each length that these have.
//! * [`HeapMarks::open_after`] looks at all gaps.
//!
//! There is no record of an extent but one bit where it begins. A block's bits are 1/256 of it, and
//! are there from when it is first open. A gap takes some 40 bytes, a piece that waits 24.

mod blocks;
mod gaps;
mod leaving;
mod marks;
mod shape;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use marks::HeapMarks;
pub(super) use shape::HeapShape;

use blocks::{BlockMemory, BlockUse, GapByLength, HeapBlock, LeavingBlock};
use shape::{Spot, bytes};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Due pieces that one call takes in before its own work.
const SETTLE_MAX: usize = 64;

/// Waiting pieces for which memory is kept even when none waits.
const KEPT: usize = 4096;

/// An empty block that the heap does not use until [`Heap::end_loan`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loan(Range<u64>);

/// Proof that a loan's work is done. A loan does not end before: puts may then use the block.
#[must_use]
pub(super) struct GivenBack(Option<u64>);

impl Loan {
    /// Where the block begins in the heap.
    pub fn start(&self) -> u64 {
        self.0.start
    }

    /// Gives the memory of the block back to the machine. `give` does so, and returns how many bytes the machine has
    /// taken.
    pub fn give_back(self, give: impl FnOnce(Range<u64>) -> Option<u64>) -> GivenBack {
        GivenBack(give(self.0))
    }
}

impl GivenBack {
    /// How many bytes the machine has taken. `None` if it keeps the memory for the table.
    pub fn bytes(&self) -> Option<u64> {
        self.0
    }
}

/// Why there is no memory for an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeapError {
    /// The extent is empty, or longer than the longest.
    Length,
    /// Every block that may leave has too much in use, even without the waiting pieces. That stays so until an extent
    /// is retired or given back.
    Full,
    /// Memory that waits will do. To be tried again after `wait`: by then the piece that is needed has waited. `wait`
    /// is zero while extents of a leaving block have to move, or a block is lent: then work is missing, by
    /// [`Heap::next_move`] or by another thread.
    Busy {
        /// How long nothing changes, unless other extents end.
        wait: Duration,
    },
}

/// What a heap's memory is used for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeapUsage {
    /// Bytes of all blocks.
    pub capacity_bytes: u64,
    /// Bytes of extents, including those that have no name yet.
    pub live_bytes: u64,
    /// Bytes that were retired, or taken over between extents, and may not be used yet.
    pub waiting_bytes: u64,
    /// Gaps between extents.
    pub gap_bytes: u64,
    /// The longest gap that an extent may have. Empty blocks do not count.
    pub largest_gap_bytes: u64,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// The number of all blocks, of those that are not empty, and of those whose extents move out.
    pub blocks: u64,
    pub open_blocks: u64,
    pub leaving_blocks: u64,
    /// Bytes of extents that were moved since this server has the heap.
    pub moved_bytes: u64,
}

/// A waiting piece of memory. The first one is due first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitingPiece {
    ready_ns: u64,
    spot: Spot,
    len: u32,
}

/// How a move of an extent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveEnd {
    /// A slot names the copy. The old memory is used again no earlier than this (X3).
    Named { ready_ns: u64 },
    /// No slot names the copy, which is dropped.
    Unnamed,
    /// Nothing was copied: the block for the copy gets no memory.
    NoMemory,
}

/// An extent that moves.
#[derive(Clone, Copy, Debug)]
struct ExtentMove {
    from: Spot,
    to: Spot,
    len: u32,
}

/// All blocks of a heap, and what is in them.
#[derive(Debug)]
pub(super) struct Heap {
    shape: HeapShape,
    blocks: Vec<HeapBlock>,
    /// The gaps of open blocks, and those of leaving blocks that are not hidden yet. Puts may use gaps of open blocks,
    /// except of a reserve that is being filled: those are public.
    by_length: BTreeSet<GapByLength>,
    /// Where the gaps of leaving blocks begin that are not hidden yet.
    to_hide: VecDeque<Spot>,
    waiting: BinaryHeap<Reverse<WaitingPiece>>,
    empty: BTreeSet<u32>,
    /// The block that is lent.
    lent: Option<u32>,
    /// The number of open blocks, and of leaving ones.
    open: u32,
    leaving_blocks: u32,
    /// Granules of extents, of waiting pieces, of all gaps, and of public gaps.
    used: u64,
    in_wait: u64,
    gaps: u64,
    public: u64,
    leaving: Option<LeavingBlock>,
    moving: Option<ExtentMove>,
    /// The block that was the last reserve.
    filled: Option<u32>,
    /// Puts wait until a block is empty, because the last server was killed while one left (Y5).
    needs_reserve: bool,
    /// No memory is used before this time (X5).
    opens_ns: u64,
    moved: u64,
}

impl Heap {
    /// A heap in memory that nobody has used.
    pub fn new(shape: HeapShape) -> Heap {
        let blocks = (0..shape.blocks).map(|_| HeapBlock::new(BlockUse::Empty)).collect();
        Heap { blocks, empty: (0..shape.blocks).collect(), ..Heap::without_blocks(shape) }
    }

    fn without_blocks(shape: HeapShape) -> Heap {
        Heap {
            shape,
            blocks: Vec::new(),
            by_length: BTreeSet::new(),
            to_hide: VecDeque::new(),
            waiting: BinaryHeap::new(),
            empty: BTreeSet::new(),
            lent: None,
            open: 0,
            leaving_blocks: 0,
            used: 0,
            in_wait: 0,
            gaps: 0,
            public: 0,
            leaving: None,
            moving: None,
            filled: None,
            needs_reserve: false,
            opens_ns: 0,
            moved: 0,
        }
    }

    /// Allocates memory for an extent of this length. Returns where it begins.
    ///
    /// # Errors
    /// [`HeapError`] when there is none.
    pub fn allocate(&mut self, extent_bytes: u64, now_ns: u64) -> Result<u64, HeapError> {
        let len = self.shape.granules(extent_bytes).ok_or(HeapError::Length)?;
        if now_ns < self.opens_ns {
            return Err(HeapError::Busy { wait: Duration::from_nanos(self.opens_ns - now_ns) });
        }
        self.hide_gaps();
        let mut settled = self.settle(now_ns);
        let gap = loop {
            let gap = self.smallest_gap(len).filter(|_| !self.needs_reserve);
            if gap.is_some() || settled < SETTLE_MAX {
                break gap;
            }
            settled = self.settle(now_ns);
        };
        let spot = match gap {
            Some(gap) => self.take_front(gap, len),
            None => self.take_from_block(len, now_ns)?,
        };
        Ok(self.shape.offset(spot))
    }

    /// Gives back an extent that no slot ever named: its memory is free at once (X3).
    pub fn give_back(&mut self, offset: u64, extent_bytes: u64) {
        let Some((spot, len)) = self.end_extent(offset, extent_bytes) else { return };
        self.add_gap(spot, len);
        self.end_if_unused(spot.block);
    }

    /// Gives back an extent that no slot ever named, because its block has no memory, and gets none now. If nothing
    /// else is in the block, it is empty again. Moving extents go to another block, which has memory.
    pub fn give_back_without_memory(&mut self, offset: u64, extent_bytes: u64) {
        let Some((spot, len)) = self.end_extent(offset, extent_bytes) else { return };
        self.add_gap(spot, len);
        let block = &mut self.blocks[spot.block as usize];
        if block.used == 0 {
            block.memory = BlockMemory::Nothing;
            if let Some(leaving) = self.leaving.as_mut().filter(|leaving| leaving.into == Some(spot.block)) {
                leaving.into = None;
                self.public += self.gaps_of(spot.block);
            }
        }
        self.end_if_unused(spot.block);
    }

    /// Ends an extent that a slot has named. Its memory is used again no earlier than `ready_ns`
    /// (X3).
    pub fn retire(&mut self, offset: u64, extent_bytes: u64, ready_ns: u64) {
        let Some((spot, len)) = self.end_extent(offset, extent_bytes) else { return };
        let block = &mut self.blocks[spot.block as usize];
        block.waiting += len;
        block.due_ns = block.due_ns.max(ready_ns);
        self.in_wait += u64::from(len);
        self.waiting.push(Reverse(WaitingPiece { ready_ns, spot, len }));
        self.end_if_unused(spot.block);
    }

    /// Takes in memory that has waited, a bounded part, and returns where an extent begins that should move. `None` if
    /// there is none, if an extent moves already, or when every extent of a block was tried: the next call begins with
    /// the first again.
    pub fn next_move(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.opens_ns {
            return None;
        }
        self.hide_gaps();
        self.settle(now_ns);
        self.leave_if_sparse();
        let LeavingBlock { block, next, .. } = self.leaving.filter(|_| self.moving.is_none())?;
        let found = self.blocks[block as usize].extent_in(next..self.shape.block_len);
        if let Some(leaving) = &mut self.leaving {
            leaving.next = found.map_or(0, |at| at + 1);
        }
        found.map(|at| self.shape.offset(Spot { block, at }))
    }

    /// Allocates memory to which the extent at `offset` moves. A slot names that extent. [`Heap::end_move`] must
    /// follow. `None` if the extent cannot move now, or has ended meanwhile.
    pub fn begin_move(&mut self, offset: u64, extent_bytes: u64) -> Option<u64> {
        let len = self.shape.granules(extent_bytes)?;
        let from = self.shape.spot(offset, len)?;
        let LeavingBlock { block, into, is_demanded, .. } =
            self.leaving.filter(|leaving| leaving.block == from.block && self.moving.is_none())?;
        if !self.blocks[block as usize].has_extent(from.at) {
            return None;
        }
        let to = match self.smallest_gap(len).filter(|_| !is_demanded) {
            Some(gap) => self.take_front(gap, len),
            None => {
                let into = into.or_else(|| self.open_reserve())?;
                // The last gap of the block has room for all that come, one behind the other (Y1).
                let last = self.blocks[into as usize].gaps.last_key_value();
                let (&at, &its) = last.filter(|&(_, &its)| its >= len)?;
                self.take_front(GapByLength { len: its, spot: Spot { block: into, at } }, len)
            }
        };
        self.moving = Some(ExtentMove { from, to, len });
        Some(self.shape.offset(to))
    }

    /// Ends a move.
    pub fn end_move(&mut self, end: MoveEnd) {
        let Some(ExtentMove { from, to, len }) = self.moving.take() else { return };
        let (from, to, len) = (self.shape.offset(from), self.shape.offset(to), bytes(u64::from(len)));
        match end {
            MoveEnd::Named { ready_ns } => {
                self.moved += len;
                self.retire(from, len, ready_ns);
            }
            MoveEnd::Unnamed => self.give_back(to, len),
            MoveEnd::NoMemory => self.give_back_without_memory(to, len),
        }
    }

    /// Whether a block has extents that should move.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some_and(|leaving| self.blocks[leaving.block as usize].used > 0)
    }

    /// Where the next extent of an open block with memory begins, from this byte on. Continues at the heap's start.
    pub fn extent_from(&self, offset: u64, is_backed: impl Fn(usize) -> bool) -> Option<u64> {
        let in_block = |block: u32, at: u32| {
            let its = self.blocks.get(block as usize).filter(|its| its.used_for == BlockUse::Open)?;
            if !is_backed(block as usize) {
                return None;
            }
            let found = its.extent_in(at.min(self.shape.block_len)..self.shape.block_len)?;
            Some(self.shape.offset(Spot { block, at: found }))
        };
        let Spot { block, at } = self.shape.spot_behind(offset);
        let blocks = self.blocks.len() as u32;
        let others = || (1..=blocks).map(|n| (block + n) % blocks);
        in_block(block, at).or_else(|| others().find_map(|block| in_block(block, 0)))
    }

    /// Bytes of extents, and of the blocks that they may use. One block stays empty.
    pub fn filled(&self) -> (u64, u64) {
        let blocks = self.shape.capacity_bytes() - bytes(u64::from(self.shape.block_len));
        (bytes(self.used), blocks)
    }

    /// When [`Heap::next_move`] has something to do, if nothing else happens: zero if it has now. `None` while nothing
    /// waits, and nothing should move.
    pub fn next_due_ns(&self) -> Option<u64> {
        let first = self.waiting.peek().map(|Reverse(piece)| piece.ready_ns);
        let due = if self.is_leaving() || self.is_sparse() { Some(0) } else { first };
        due.map(|due_ns| due_ns.max(self.opens_ns))
    }

    /// An empty block with memory behind it, whose memory is to go back to the machine, once after each use. The heap
    /// does not use the block until [`Heap::end_loan`]. Only one block is lent at a time; it is the reserve meanwhile,
    /// and another one is empty (Y1).
    pub fn lend_block(&mut self, now_ns: u64) -> Option<Loan> {
        if now_ns < self.opens_ns || self.lent.is_some() || self.empty.len() < 2 {
            return None;
        }
        // Puts open the first one.
        let backed = |number: &&u32| self.blocks[**number as usize].memory == BlockMemory::There;
        let &number = self.empty.iter().rev().find(backed)?;
        self.empty.remove(&number);
        self.lent = Some(number);
        let block = &mut self.blocks[number as usize];
        block.used_for = BlockUse::Lent;
        block.begins = Box::default();
        let start = self.shape.offset(Spot { block: number, at: 0 });
        Some(Loan(start..start + bytes(u64::from(self.shape.block_len))))
    }

    /// Ends a loan. The block has no memory behind it any more, unless the machine did not take it.
    pub fn end_loan(&mut self, GivenBack(returned): GivenBack) {
        let Some(number) = self.lent.take() else { return };
        let block = &mut self.blocks[number as usize];
        block.used_for = BlockUse::Empty;
        block.memory = if returned.is_some() { BlockMemory::Nothing } else { BlockMemory::Kept };
        self.empty.insert(number);
    }

    /// How the memory is used.
    pub fn usage(&self, now_ns: u64) -> HeapUsage {
        let block_len = u64::from(self.shape.block_len);
        let blocks = u64::from(self.shape.blocks);
        let open = u64::from(self.open + self.leaving_blocks);
        let is_closed = now_ns < self.opens_ns;
        let unused = if is_closed { self.gaps + (blocks - open) * block_len } else { 0 };
        let gaps = if is_closed { 0 } else { self.gaps };
        let largest = self.largest_gap().filter(|_| !is_closed);
        HeapUsage {
            capacity_bytes: self.shape.capacity_bytes(),
            live_bytes: bytes(self.used),
            waiting_bytes: bytes(self.in_wait + unused),
            gap_bytes: bytes(gaps),
            largest_gap_bytes: largest.map_or(0, |gap| bytes(u64::from(gap.len))),
            block_bytes: bytes(block_len),
            blocks,
            open_blocks: open,
            leaving_blocks: u64::from(self.leaving_blocks),
            moved_bytes: self.moved,
        }
    }

    /// Takes memory where no gap is long enough: an empty block, or the end of the reserve (Y2).
    fn take_from_block(&mut self, len: u32, now_ns: u64) -> Result<Spot, HeapError> {
        if self.needs_reserve {
            return Err(self.busy(now_ns));
        }
        // Y1: one block stays empty. A lent block counts as empty.
        let empty = self.empty.len() + usize::from(self.lent.is_some());
        if let Some(block) = self.next_empty().filter(|_| empty > 1) {
            self.open_block(block);
            let gap = GapByLength { len: self.shape.block_len, spot: Spot { block, at: 0 } };
            return Ok(self.take_front(gap, len));
        }
        if self.leaving.is_some() {
            return Err(self.busy(now_ns));
        }
        let least = self.least_used(None);
        let Some(block) =
            least.filter(|&block| self.blocks[block as usize].used + len <= self.shape.block_len)
        else {
            let is_full = self.leaving_blocks == 0 && self.lent.is_none();
            return Err(if is_full { HeapError::Full } else { self.busy(now_ns) });
        };
        if self.empty.is_empty() {
            // Without a reserve nothing moves. The reserve is lent, or a takeover found none (`make_reserve`).
            return Err(if self.lent.is_some() { self.busy(now_ns) } else { HeapError::Full });
        }
        self.begin_leaving(block, true);
        let into = self.open_reserve().expect("an empty block");
        // At the end of the block, so that the rest is one gap.
        let gap = GapByLength { len: self.shape.block_len, spot: Spot { block: into, at: 0 } };
        Ok(self.take_back(gap, len))
    }

    /// What a put has to wait for.
    fn busy(&self, now_ns: u64) -> HeapError {
        let due_ns = match self.leaving {
            Some(leaving) if self.blocks[leaving.block as usize].used > 0 => None,
            Some(leaving) => Some(self.blocks[leaving.block as usize].due_ns),
            None => {
                let leaving = self.blocks.iter().filter(|block| block.used_for == BlockUse::Leaving);
                leaving.map(|block| block.due_ns).min()
            }
        };
        HeapError::Busy { wait: Duration::from_nanos(due_ns.unwrap_or(0).saturating_sub(now_ns)) }
    }

    /// Makes gaps of pieces that are due. Returns how many.
    fn settle(&mut self, now_ns: u64) -> usize {
        for settled in 0..SETTLE_MAX {
            let due = self.waiting.peek().filter(|Reverse(piece)| piece.ready_ns <= now_ns);
            let Some(&Reverse(WaitingPiece { spot, len, .. })) = due else { return settled };
            self.waiting.pop();
            if self.waiting.is_empty() {
                self.waiting.shrink_to(KEPT);
            }
            self.blocks[spot.block as usize].waiting -= len;
            self.in_wait -= u64::from(len);
            self.add_gap(spot, len);
            self.end_if_unused(spot.block);
        }
        SETTLE_MAX
    }

    /// Forgets an extent. Its bytes are neither a gap nor waiting. A mistake of the caller costs memory, which is
    /// better than to use it twice.
    fn end_extent(&mut self, offset: u64, extent_bytes: u64) -> Option<(Spot, u32)> {
        let len = self.shape.granules(extent_bytes);
        let place = len.and_then(|len| Some((self.shape.spot(offset, len)?, len)));
        let is_extent = |&(spot, len): &(Spot, u32)| {
            let (block, end) = (&self.blocks[spot.block as usize], spot.at + len);
            block.has_extent(spot.at)
                && block.used >= len
                && block.extent_in(spot.at + 1..end).is_none()
                && block.gaps.range(spot.at..end).next().is_none()
        };
        let place = place.filter(is_extent);
        debug_assert!(place.is_some(), "no extent of {extent_bytes} bytes at {offset}");
        let (spot, len) = place?;
        self.blocks[spot.block as usize].clear_extent(spot.at, len);
        self.used -= u64::from(len);
        Some((spot, len))
    }
}
