//! Where extents lie: the server's allocator of memory for values that do not fit their slots.
//!
//! It keeps books and touches no memory of the heap. An extent is a range of bytes, counted from
//! the heap's start. The rules X3 and X5 (when memory may be used again) are in
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
//! * Whoever tidies calls [`Heap::next_move`] for an extent that should move. It reads the header
//!   there and looks whether the key's slot names this extent. If so, [`Heap::begin_move`] gives
//!   memory, it copies without the lock, names the copy, and calls [`Heap::end_move`]. If not, the
//!   extent is not named yet, or not any more; one that gets its name later comes up again in the
//!   next round.
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

use crate::layout::extent::{BLOCK_BYTES_MAX, GRANULE, LONGEST_PART};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Pieces whose time has come that one call takes in before it does what it is for.
const SETTLE_MAX: usize = 64;
/// Gaps of leaving blocks that one call hides from puts.
const HIDE_MAX: usize = 64;
/// Pieces that wait for which there is memory even when none waits.
const KEPT: usize = 4096;
/// Granules of the longest block. Twice as many are still a `u32`.
const BLOCK_LEN_MAX: u64 = BLOCK_BYTES_MAX / GRANULE;
/// Bits of a word.
const BITS: u32 = u64::BITS;

/// The lengths of a heap, its blocks and its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapShape {
    blocks: u32,
    /// Granules of a block, and of the longest extent.
    block_len: u32,
    longest: u32,
}

/// These lengths make no heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeapShapeError {
    /// The blocks are no multiple of a granule, or too long.
    #[error("blocks of {block_bytes} bytes: it must be a multiple of {GRANULE}, up to 64 GiB")]
    Block {
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// An extent could have more than a quarter of a block.
    #[error(
        "extents of {longest_bytes} bytes in blocks of {block_bytes}: a block must be {LONGEST_PART} times as \
         long"
    )]
    Longest {
        /// Bytes of a block.
        block_bytes: u64,
        /// Bytes of the longest extent.
        longest_bytes: u64,
    },
    /// One block is the reserve (Y1), so there must be two.
    #[error("a heap of {heap_bytes} bytes has fewer than two blocks of {block_bytes}, or more than 2^31")]
    Heap {
        /// Bytes of the heap.
        heap_bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
}

impl HeapShape {
    /// Extents of up to `longest_bytes` in blocks of `block_bytes`. What is behind the last whole
    /// block is not used.
    ///
    /// # Errors
    /// [`HeapShapeError`] where these lengths make no heap.
    pub fn new(heap_bytes: u64, block_bytes: u64, longest_bytes: u64) -> Result<HeapShape, HeapShapeError> {
        let block_len = block_bytes / GRANULE;
        if !block_bytes.is_multiple_of(GRANULE) || !(1..=BLOCK_LEN_MAX).contains(&block_len) {
            return Err(HeapShapeError::Block { block_bytes });
        }
        let longest = longest_bytes.div_ceil(GRANULE);
        if longest == 0 || longest > block_len / LONGEST_PART {
            return Err(HeapShapeError::Longest { block_bytes, longest_bytes });
        }
        let blocks = heap_bytes / block_bytes;
        if !(2..=1 << 31).contains(&blocks) {
            return Err(HeapShapeError::Heap { heap_bytes, block_bytes });
        }
        Ok(HeapShape { blocks: blocks as u32, block_len: block_len as u32, longest: longest as u32 })
    }

    /// Bytes that blocks have, all together.
    pub fn capacity_bytes(&self) -> u64 {
        bytes(u64::from(self.blocks) * u64::from(self.block_len))
    }

    /// Granules of an extent of so many bytes. `None` if it is empty or too long.
    fn granules(&self, extent_bytes: u64) -> Option<u32> {
        let len = extent_bytes.div_ceil(GRANULE);
        (1..=u64::from(self.longest)).contains(&len).then_some(len as u32)
    }

    /// The place of the extent at byte `offset`, if it lies in one block.
    fn spot(&self, offset: u64, len: u32) -> Option<Spot> {
        let (granule, block_len) = (offset / GRANULE, u64::from(self.block_len));
        let block = u32::try_from(granule / block_len).ok().filter(|&block| block < self.blocks)?;
        let at = (granule % block_len) as u32;
        let is_good = offset.is_multiple_of(GRANULE) && u64::from(at) + u64::from(len) <= block_len;
        is_good.then_some(Spot { block, at })
    }

    fn offset(&self, spot: Spot) -> u64 {
        bytes(u64::from(spot.block) * u64::from(self.block_len) + u64::from(spot.at))
    }
}

/// So many granules in bytes.
fn bytes(granules: u64) -> u64 {
    granules * GRANULE
}

/// A place in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    block: u32,
    /// Granules from where the block begins.
    at: u32,
}

/// An empty block that the heap does not use until [`Heap::end_loan`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loan(Range<u64>);

/// What a loan was for is done. It does not end before: puts may then use the block.
#[must_use]
pub(super) struct GivenBack(Option<u64>);

impl Loan {
    /// Where the block begins in the heap.
    pub fn start(&self) -> u64 {
        self.0.start
    }

    /// Gives the memory of the block back to the machine, by `give`, which says how many bytes that were.
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
    /// Every block that may leave has too much in use, also when all that waits has waited. So it
    /// is until something is retired or given back.
    Full,
    /// Memory that waits will do. To be tried again after `wait`: by then the waiting that stands
    /// in the way is over. `wait` is zero while extents of a leaving block have to move, or a block
    /// is lent: what is missing then is work, by [`Heap::next_move`] or another thread.
    Busy {
        /// How long nothing will change, but by other extents.
        wait: Duration,
    },
}

/// Why a range cannot be an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MarkError {
    /// It is not aligned, its length is wrong, or it is not inside one block.
    #[error("{extent_bytes} bytes at byte {offset} of the heap can be no extent")]
    Bounds {
        /// Where it begins in the heap.
        offset: u64,
        /// Its length.
        extent_bytes: u64,
    },
    /// Another one has bytes of it.
    #[error("the extent of {extent_bytes} bytes at byte {offset} of the heap overlaps another one")]
    Overlap {
        /// Where it begins in the heap.
        offset: u64,
        /// Its length.
        extent_bytes: u64,
    },
}

/// What a heap's memory is used for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeapUsage {
    /// Of all blocks.
    pub capacity_bytes: u64,
    /// Extents, also those that have no name yet.
    pub live_bytes: u64,
    /// Retired, or taken over with extents around it, and not to be used yet.
    pub waiting_bytes: u64,
    /// Gaps between extents.
    pub gap_bytes: u64,
    /// The longest gap that an extent may have. Empty blocks do not count.
    pub largest_gap_bytes: u64,
    /// Of one block.
    pub block_bytes: u64,
    /// All of them, those that are not empty, and of these those whose extents move out.
    pub blocks: u64,
    pub open_blocks: u64,
    pub leaving_blocks: u64,
    /// Extents moved since this server has the heap.
    pub moved_bytes: u64,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockUse {
    Empty,
    Open,
    /// No new extents. Those that are there move out.
    Leaving,
    /// Empty, while its memory is given back to the machine.
    Lent,
}

#[derive(Debug)]
struct HeapBlock {
    used_for: BlockUse,
    /// Granules of extents, and of what waits.
    used: u32,
    waiting: u32,
    /// When all that waits here has waited.
    due_ns: u64,
    /// Where gaps begin, and their lengths.
    gaps: BTreeMap<u32, u32>,
    /// A bit for each granule where an extent begins. Of no length until the block is first open.
    begins: Box<[u64]>,
    memory: BlockMemory,
}

/// What is behind a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockMemory {
    Nothing,
    /// Memory, also if the block is empty.
    There,
    /// Memory that the machine did not take back when the block was empty last.
    Kept,
}

impl HeapBlock {
    fn new(used_for: BlockUse) -> HeapBlock {
        HeapBlock {
            used_for,
            used: 0,
            waiting: 0,
            due_ns: 0,
            gaps: BTreeMap::new(),
            begins: Box::default(),
            memory: BlockMemory::Nothing,
        }
    }

    fn has_extent(&self, at: u32) -> bool {
        self.begins.get((at / BITS) as usize).is_some_and(|word| word >> (at % BITS) & 1 != 0)
    }

    fn set_extent(&mut self, at: u32, len: u32, block_len: u32) {
        if self.begins.is_empty() {
            self.begins = bits(block_len);
        }
        self.begins[(at / BITS) as usize] |= 1 << (at % BITS);
        self.used += len;
    }

    fn clear_extent(&mut self, at: u32, len: u32) {
        self.begins[(at / BITS) as usize] &= !(1 << (at % BITS));
        self.used -= len;
    }

    /// The first extent that begins in this range of granules.
    fn extent_in(&self, range: Range<u32>) -> Option<u32> {
        if self.used == 0 { None } else { first_bit(&self.begins, range, true) }
    }
}

/// Words for a bit for each granule of a block. Memory that nobody has touched.
fn bits(block_len: u32) -> Box<[u64]> {
    bytemuck::zeroed_slice_box(block_len.div_ceil(BITS) as usize)
}

/// The first bit of this range that is set, or that is not.
fn first_bit(words: &[u64], range: Range<u32>, is_set: bool) -> Option<u32> {
    let first = (range.start / BITS) as usize;
    let words = words.get(first..range.end.div_ceil(BITS) as usize)?.iter().enumerate();
    let found = |n, word: u64| {
        let word = if is_set { word } else { !word };
        if n == 0 { word & (!0 << (range.start % BITS)) } else { word }
    };
    let (n, word) = words.map(|(n, &word)| (n, found(n, word))).find(|&(_, word)| word != 0)?;
    Some((first + n) as u32 * BITS + word.trailing_zeros()).filter(|at| range.contains(at))
}

/// Sets the bits of this range.
fn set_bits(words: &mut [u64], range: Range<u32>) {
    let mut at = range.start;
    while at < range.end {
        let len = (BITS - at % BITS).min(range.end - at);
        words[(at / BITS) as usize] |= (!0 >> (BITS - len)) << (at % BITS);
        at += len;
    }
}

/// A gap. They are taken in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GapByLength {
    len: u32,
    spot: Spot,
}

/// Memory that waits. The first one is due first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitingPiece {
    ready_ns: u64,
    spot: Spot,
    len: u32,
}

/// The block whose extents move out now.
#[derive(Clone, Copy, Debug)]
struct LeavingBlock {
    block: u32,
    /// The reserve, if it was opened for this (Y1).
    into: Option<u32>,
    /// It leaves for a put, so all of it goes into the reserve (Y2).
    is_demanded: bool,
    /// Extents before this granule have come up in this round.
    next: u32,
}

/// An extent that moves.
#[derive(Clone, Copy, Debug)]
struct ExtentMove {
    from: Spot,
    to: Spot,
    len: u32,
}

/// What slots name, while a takeover collects it (X5).
#[derive(Debug)]
pub(super) struct HeapMarks {
    shape: HeapShape,
    blocks: Vec<HeapBlock>,
    /// A bit for each granule of an extent. Of no length where nothing is marked.
    taken: Vec<Box<[u64]>>,
}

impl HeapMarks {
    /// Nothing is marked.
    pub fn new(shape: HeapShape) -> HeapMarks {
        HeapMarks {
            shape,
            blocks: (0..shape.blocks).map(|_| HeapBlock::new(BlockUse::Empty)).collect(),
            taken: (0..shape.blocks).map(|_| Box::default()).collect(),
        }
    }

    /// A slot names the extent at byte `offset`.
    ///
    /// # Errors
    /// [`MarkError`] if it can be none. Nothing is marked then.
    pub fn mark(&mut self, offset: u64, extent_bytes: u64) -> Result<(), MarkError> {
        let len = self.shape.granules(extent_bytes);
        let place = len.and_then(|len| Some((self.shape.spot(offset, len)?, len)));
        let (Spot { block, at }, len) = place.ok_or(MarkError::Bounds { offset, extent_bytes })?;
        let taken = &mut self.taken[block as usize];
        if taken.is_empty() {
            *taken = bits(self.shape.block_len);
        }
        if first_bit(taken, at..at + len, true).is_some() {
            return Err(MarkError::Overlap { offset, extent_bytes });
        }
        set_bits(taken, at..at + len);
        self.blocks[block as usize].set_extent(at, len, self.shape.block_len);
        Ok(())
    }

    /// The blocks in which nothing is marked, side by side where they are. Nothing is taken to be behind them.
    pub fn unused(&self) -> impl Iterator<Item = Range<u64>> {
        let (block_bytes, mut end) = (bytes(u64::from(self.shape.block_len)), 0);
        let alike = self.blocks.chunk_by(|a, b| (a.used == 0) == (b.used == 0));
        alike.filter_map(move |blocks| {
            let start = end;
            end += blocks.len() as u64 * block_bytes;
            (blocks[0].used == 0).then_some(start..end)
        })
    }

    /// The heap with these extents. All else is free, but is used no earlier than `ready_ns`.
    pub fn open_after(self, ready_ns: u64) -> Heap {
        let mut heap = Heap { blocks: self.blocks, opens_ns: ready_ns, ..Heap::without_blocks(self.shape) };
        let block_len = heap.shape.block_len;
        let mut by_length = Vec::new();
        for ((block, taken), number) in heap.blocks.iter_mut().zip(self.taken).zip(0..) {
            if block.used == 0 {
                heap.empty.insert(number);
                continue;
            }
            (block.used_for, block.memory) = (BlockUse::Open, BlockMemory::There);
            heap.open += 1;
            heap.used += u64::from(block.used);
            heap.public += u64::from(block_len - block.used);
            let mut from = 0;
            while let Some(at) = first_bit(&taken, from..block_len, false) {
                let end = first_bit(&taken, at..block_len, true).unwrap_or(block_len);
                block.gaps.insert(at, end - at);
                by_length.push(GapByLength { len: end - at, spot: Spot { block: number, at } });
                from = end;
            }
        }
        heap.by_length = by_length.into_iter().collect();
        heap.gaps = heap.public;
        if heap.empty.is_empty() {
            heap.make_reserve();
        }
        heap
    }
}

/// All blocks of a heap, and what is in them.
#[derive(Debug)]
pub(super) struct Heap {
    shape: HeapShape,
    blocks: Vec<HeapBlock>,
    /// The gaps of open blocks, and those of leaving blocks that are not hidden yet. Puts may have
    /// those of open blocks, but not of a reserve that is filled now: those are public.
    by_length: BTreeSet<GapByLength>,
    /// Where the gaps of leaving blocks begin that are not hidden yet.
    to_hide: VecDeque<Spot>,
    waiting: BinaryHeap<Reverse<WaitingPiece>>,
    empty: BTreeSet<u32>,
    /// The one that is lent.
    lent: Option<u32>,
    /// How many blocks are open, and how many leave.
    open: u32,
    leaving_blocks: u32,
    /// Granules of extents, of what waits, of all gaps, and of public gaps.
    used: u64,
    in_wait: u64,
    gaps: u64,
    public: u64,
    leaving: Option<LeavingBlock>,
    moving: Option<ExtentMove>,
    /// The block that was the reserve last.
    filled: Option<u32>,
    /// Puts wait until a block is empty: the last server was killed while one left (Y5).
    needs_reserve: bool,
    /// Nothing is used before (X5).
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

    /// Memory for an extent of so many bytes. Returns where it begins.
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

    /// Takes in memory that has waited, a bounded part, and returns where an extent begins that
    /// should move. `None` if there is none, if one moves already, or when all of a block have come
    /// up: the next call begins with the first one again.
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

    /// Memory for the extent at `offset`, which a slot names: it moves there. [`Heap::end_move`]
    /// must follow. `None` if it cannot move now, or has ended meanwhile.
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
                // Its last gap has room for all that is to come, one behind the other (Y1).
                let last = self.blocks[into as usize].gaps.last_key_value();
                let (&at, &its) = last.filter(|&(_, &its)| its >= len)?;
                self.take_front(GapByLength { len: its, spot: Spot { block: into, at } }, len)
            }
        };
        self.moving = Some(ExtentMove { from, to, len });
        Some(self.shape.offset(to))
    }

    /// Ends a move. If a slot names the copy, the old memory waits until the given time (X3).
    /// If none does, the copy is dropped.
    pub fn end_move(&mut self, named_until: Option<u64>) {
        let Some(ExtentMove { from, to, len }) = self.moving.take() else { return };
        let (from, to, len) = (self.shape.offset(from), self.shape.offset(to), bytes(u64::from(len)));
        match named_until {
            Some(ready_ns) => {
                self.moved += len;
                self.retire(from, len, ready_ns);
            }
            None => self.give_back(to, len),
        }
    }

    /// Whether a block has extents that should move.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some_and(|leaving| self.blocks[leaving.block as usize].used > 0)
    }

    /// When [`Heap::next_move`] has something to do, if nothing else happens: zero if it has now.
    /// `None` while nothing waits and nothing is to move.
    pub fn next_due_ns(&self) -> Option<u64> {
        let first = self.waiting.peek().map(|Reverse(piece)| piece.ready_ns);
        let due = if self.is_leaving() || self.is_sparse() { Some(0) } else { first };
        due.map(|due_ns| due_ns.max(self.opens_ns))
    }

    /// An empty block with memory behind it, to give that back to the machine: once after each use. The
    /// heap does not use it until [`Heap::end_loan`]. One at a time; it is the reserve meanwhile, and one
    /// more is empty (Y1).
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

    /// The block that was lent has no memory behind it any more, unless the machine did not take it.
    pub fn end_loan(&mut self, GivenBack(returned): GivenBack) {
        let Some(number) = self.lent.take() else { return };
        let block = &mut self.blocks[number as usize];
        block.used_for = BlockUse::Empty;
        block.memory = if returned.is_some() { BlockMemory::Nothing } else { BlockMemory::Kept };
        self.empty.insert(number);
    }

    /// What the memory is used for.
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

    /// The public gap that is the first one of at least this length.
    fn smallest_gap(&self, len: u32) -> Option<GapByLength> {
        let mut from = GapByLength { len, spot: Spot { block: 0, at: 0 } };
        loop {
            let gap = *self.by_length.range(from..).next()?;
            if self.is_public(gap.spot.block) {
                return Some(gap);
            }
            // The gaps of this length in this block lie side by side in the order.
            from = GapByLength { len: gap.len, spot: Spot { block: gap.spot.block + 1, at: 0 } };
        }
    }

    fn largest_gap(&self) -> Option<GapByLength> {
        let mut gaps = self.by_length.range(..);
        loop {
            let gap = *gaps.next_back()?;
            if self.is_public(gap.spot.block) {
                return Some(gap);
            }
            let first = GapByLength { len: gap.len, spot: Spot { block: gap.spot.block, at: 0 } };
            gaps = self.by_length.range(..first);
        }
    }

    /// Memory where no gap is long enough: an empty block, or the end of the reserve (Y2).
    fn take_from_block(&mut self, len: u32, now_ns: u64) -> Result<Spot, HeapError> {
        if self.needs_reserve {
            return Err(self.busy(now_ns));
        }
        // Y1: one stays. A block that is lent is one.
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
            // Without a reserve nothing moves: it is lent, or a takeover found none
            // (`make_reserve`).
            return Err(if self.lent.is_some() { self.busy(now_ns) } else { HeapError::Full });
        }
        self.begin_leaving(block, true);
        let into = self.open_reserve().expect("an empty block");
        // At its end, so that the rest is one gap.
        let gap = GapByLength { len: self.shape.block_len, spot: Spot { block: into, at: 0 } };
        Ok(self.take_back(gap, len))
    }

    /// What a put waits for.
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

    /// The open block with the least in use.
    fn least_used(&self, but: Option<u32>) -> Option<u32> {
        let open = self.blocks.iter().zip(0..).filter(|(block, _)| block.used_for == BlockUse::Open);
        let open = open.filter(|&(_, number)| Some(number) != but);
        open.min_by_key(|(block, _)| block.used).map(|(_, number)| number)
    }

    /// More than a quarter of the open blocks, and one block, are gaps (Y3).
    fn is_sparse(&self) -> bool {
        let (open, block_len) = (u64::from(self.open), u64::from(self.shape.block_len));
        self.leaving.is_none() && self.public > open * block_len / 4 + block_len && !self.empty.is_empty()
    }

    /// Y3
    fn leave_if_sparse(&mut self) {
        if self.is_sparse()
            && let Some(block) = self.least_used(self.filled)
        {
            self.begin_leaving(block, false);
            self.end_if_unused(block);
        }
    }

    /// Y5: no block is empty, so one leaves whose extents fit into one gap. There is one, unless
    /// the table was damaged. Then gaps are used up without a reserve.
    fn make_reserve(&mut self) {
        let largest =
            |(block, number): (&HeapBlock, u32)| (block.gaps.values().copied().max().unwrap_or(0), number);
        let mut gaps: Vec<(u32, u32)> = self.blocks.iter().zip(0..).map(largest).collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        let fits = |number: u32, used: u32| {
            gaps.iter().find(|&&(_, other)| other != number).is_some_and(|&(len, _)| len >= used)
        };
        let blocks = self.blocks.iter().zip(0..).map(|(block, number)| (block.used, number));
        let least = blocks.filter(|&(used, number)| fits(number, used)).min();
        if let Some((_, block)) = least {
            self.needs_reserve = true;
            self.begin_leaving(block, false);
        }
    }

    fn begin_leaving(&mut self, block: u32, is_demanded: bool) {
        self.public -= self.gaps_of(block);
        self.open -= 1;
        self.leaving_blocks += 1;
        self.blocks[block as usize].used_for = BlockUse::Leaving;
        self.leaving = Some(LeavingBlock { block, into: None, is_demanded, next: 0 });
        self.to_hide.push_back(Spot { block, at: 0 });
    }

    /// Takes gaps of leaving blocks out of the order by length, a bounded part: a block may have
    /// millions. All others are passed over until then.
    fn hide_gaps(&mut self) {
        let mut left = HIDE_MAX;
        while left > 0
            && let Some(Spot { block: number, at }) = self.to_hide.front_mut()
        {
            let block = &self.blocks[*number as usize];
            if block.used_for == BlockUse::Leaving
                && let Some((&gap, &len)) = block.gaps.range(*at..).next()
            {
                self.by_length.remove(&GapByLength { len, spot: Spot { block: *number, at: gap } });
                *at = gap + 1;
                left -= 1;
            } else {
                self.to_hide.pop_front();
            }
        }
    }

    /// Opens the reserve, for the extents of the leaving block alone (Y1).
    fn open_reserve(&mut self) -> Option<u32> {
        let reserve = self.next_empty()?;
        self.leaving.as_mut()?.into = Some(reserve);
        self.open_block(reserve);
        Some(reserve)
    }

    /// The empty block to be opened next: the first one with memory behind it, so that no more is taken than
    /// must be.
    fn next_empty(&self) -> Option<u32> {
        let has_memory = |number: &&u32| self.blocks[**number as usize].memory != BlockMemory::Nothing;
        self.empty.iter().find(has_memory).or_else(|| self.empty.first()).copied()
    }

    fn open_block(&mut self, number: u32) {
        self.empty.remove(&number);
        self.open += 1;
        let block = &mut self.blocks[number as usize];
        (block.used_for, block.memory) = (BlockUse::Open, BlockMemory::There);
        self.add_gap(Spot { block: number, at: 0 }, self.shape.block_len);
    }

    /// What is left of the reserve is for all (Y4).
    fn end_leaving(&mut self) {
        let Some(LeavingBlock { into, .. }) = self.leaving.take() else { return };
        let Some(into) = into else { return };
        self.filled = Some(into);
        self.public += self.gaps_of(into);
        self.end_if_unused(into);
    }

    /// Granules of all gaps of a block that is not empty.
    fn gaps_of(&self, number: u32) -> u64 {
        let block = &self.blocks[number as usize];
        u64::from(self.shape.block_len - block.used - block.waiting)
    }

    /// Goes on where the last extent or the last waiting piece of a block has gone (Y4).
    fn end_if_unused(&mut self, number: u32) {
        let block = &self.blocks[number as usize];
        let is_leaving = self.leaving.is_some_and(|leaving| leaving.block == number);
        if block.used > 0 {
            return;
        }
        if block.waiting > 0 {
            if is_leaving && self.leaving.is_some_and(|leaving| leaving.into.is_none()) {
                self.end_leaving();
            }
            return;
        }
        if self.leaving.is_some_and(|leaving| leaving.into == Some(number)) {
            return;
        }
        // It is one gap.
        let len = self.shape.block_len;
        self.take_gap(GapByLength { len, spot: Spot { block: number, at: 0 } });
        let block = &mut self.blocks[number as usize];
        match std::mem::replace(&mut block.used_for, BlockUse::Empty) {
            BlockUse::Leaving => self.leaving_blocks -= 1,
            _ => self.open -= 1,
        }
        self.empty.insert(number);
        self.needs_reserve = false;
        if is_leaving {
            self.end_leaving();
        }
    }

    /// Makes gaps of pieces whose time has come. Returns how many.
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

    /// Forgets an extent. What is there is neither gap nor waits. A mistake of the caller costs
    /// memory, which is better than to use it twice.
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

    /// Puts may use the gaps of this block.
    fn is_public(&self, block: u32) -> bool {
        self.blocks[block as usize].used_for == BlockUse::Open
            && self.leaving.is_none_or(|leaving| leaving.into != Some(block))
    }

    /// An extent at the beginning of a gap.
    fn take_front(&mut self, gap: GapByLength, len: u32) -> Spot {
        self.take_gap(gap);
        let Spot { block, at } = gap.spot;
        if gap.len > len {
            self.insert_gap(Spot { block, at: at + len }, gap.len - len);
        }
        self.begin_extent(gap.spot, len)
    }

    /// An extent at the end of a gap.
    fn take_back(&mut self, gap: GapByLength, len: u32) -> Spot {
        self.take_gap(gap);
        if gap.len > len {
            self.insert_gap(gap.spot, gap.len - len);
        }
        let Spot { block, at } = gap.spot;
        self.begin_extent(Spot { block, at: at + gap.len - len }, len)
    }

    fn begin_extent(&mut self, spot: Spot, len: u32) -> Spot {
        self.blocks[spot.block as usize].set_extent(spot.at, len, self.shape.block_len);
        self.used += u64::from(len);
        spot
    }

    /// A gap where no extent is any more, joined with those beside it.
    fn add_gap(&mut self, spot: Spot, len: u32) {
        let gaps = &self.blocks[spot.block as usize].gaps;
        let before = gaps.range(..spot.at).next_back().map(|(&at, &its)| (at, its));
        let before = before.filter(|&(at, its)| at + its == spot.at);
        let behind = gaps.get(&(spot.at + len)).map(|&its| (spot.at + len, its));
        let (mut at, mut all) = (spot.at, len);
        for (beside, its) in before.into_iter().chain(behind) {
            self.take_gap(GapByLength { len: its, spot: Spot { block: spot.block, at: beside } });
            at = at.min(beside);
            all += its;
        }
        self.insert_gap(Spot { block: spot.block, at }, all);
    }

    fn insert_gap(&mut self, spot: Spot, len: u32) {
        self.blocks[spot.block as usize].gaps.insert(spot.at, len);
        if self.blocks[spot.block as usize].used_for == BlockUse::Open {
            self.by_length.insert(GapByLength { len, spot });
        }
        self.gaps += u64::from(len);
        if self.is_public(spot.block) {
            self.public += u64::from(len);
        }
    }

    fn take_gap(&mut self, gap: GapByLength) {
        self.blocks[gap.spot.block as usize].gaps.remove(&gap.spot.at);
        self.by_length.remove(&gap);
        self.gaps -= u64::from(gap.len);
        if self.is_public(gap.spot.block) {
            self.public -= u64::from(gap.len);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
