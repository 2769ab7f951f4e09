use super::gaps::HIDE_MAX;
use super::marks::MarkError;
use super::shape::HeapShapeError;
use super::*;
use crate::layout::extent::{GRANULE, block_bytes};
use std::collections::BTreeMap;

/// Granules of a block and of the longest extent of the small heaps here.
const BLOCK: u64 = 256;
const LONGEST: u64 = BLOCK / 4;
/// How long an extent of `len` granules waits.
fn wait_ns(len: u64) -> u64 {
    20 + len / 8
}

fn small(blocks: u64) -> HeapShape {
    HeapShape::new(bytes(blocks * BLOCK), bytes(BLOCK), bytes(LONGEST)).unwrap()
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What the oracle knows of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granule {
    Free,
    Live,
    /// Not to be used before this time.
    Until(u64),
    /// Of a block that is lent.
    Lent,
}

/// An extent, by where it begins in granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    len: u64,
    number: u64,
    /// A slot names it.
    is_named: bool,
}

/// What happened, so that a test that is too easy fails.
#[derive(Debug, Default)]
struct Tally {
    puts: u64,
    busy: u64,
    full: u64,
    moves: u64,
    dropped: u64,
    loans: u64,
    takeovers: u64,
    /// Of these, those that found no empty block.
    held: u64,
}

/// A heap, and what must be so.
struct HeapWorld {
    heap: Heap,
    shape: HeapShape,
    now: u64,
    granules: Vec<Granule>,
    extents: BTreeMap<u64, Held>,
    /// Numbers given to extents (X1).
    numbers: u64,
    /// The extent that moves now, its number, and its copy.
    moving: Option<(u64, u64, u64)>,
    lent: Option<Range<u64>>,
    tally: Tally,
}

impl HeapWorld {
    fn new(shape: HeapShape) -> HeapWorld {
        HeapWorld {
            heap: Heap::new(shape),
            shape,
            now: 0,
            granules: vec![Granule::Free; (shape.capacity_bytes() / GRANULE) as usize],
            extents: BTreeMap::new(),
            numbers: 0,
            moving: None,
            lent: None,
            tally: Tally::default(),
        }
    }

    fn at(&mut self, from: u64, len: u64) -> &mut [Granule] {
        &mut self.granules[from as usize..(from + len) as usize]
    }

    fn used(&self) -> u64 {
        self.extents.values().map(|extent| extent.len).sum()
    }

    /// An extent is at `offset` from now on: nothing else is, and what was has waited.
    fn is_taken(&mut self, offset: u64, len: u64, is_named: bool) -> u64 {
        assert!(offset.is_multiple_of(GRANULE));
        let (place, now, block) = (offset / GRANULE, self.now, u64::from(self.shape.block_len));
        assert_eq!(place / block, (place + len - 1) / block, "in one block");
        for granule in self.at(place, len) {
            let is_free = match *granule {
                Granule::Free => true,
                Granule::Until(ready_ns) => ready_ns <= now,
                Granule::Live | Granule::Lent => false,
            };
            assert!(is_free, "{granule:?} at {now}");
            *granule = Granule::Live;
        }
        self.numbers += 1;
        assert_eq!(self.extents.insert(place, Held { len, number: self.numbers, is_named }), None);
        place
    }

    fn put(&mut self, len: u64, is_named: bool) -> Result<u64, HeapError> {
        self.tally.puts += 1;
        // Any length that is rounded up to these granules.
        let offset = self.heap.allocate(bytes(len) - self.now % GRANULE, self.now);
        match offset {
            Ok(offset) => Ok(self.is_taken(offset, len, is_named)),
            Err(why) => {
                match why {
                    HeapError::Full => {
                        self.tally.full += 1;
                        self.is_full(len);
                    }
                    HeapError::Busy { .. } => self.tally.busy += 1,
                    HeapError::Length => panic!("{len} granules"),
                }
                Err(why)
            }
        }
    }

    /// Y2: the heap may say that it is full only if no open block has room for the extent, were all
    /// its extents in one piece, and none but the reserve is empty.
    fn is_full(&self, len: u64) {
        let mut without = 0;
        for number in 0..u64::from(self.shape.blocks) {
            let block = u64::from(self.shape.block_len);
            let of_block = self.extents.range(number * block..(number + 1) * block);
            let used: u64 = of_block.map(|(_, extent)| extent.len).sum();
            if used == 0 {
                without += 1;
            } else {
                assert!(used + len > block, "full for {len}, with {used} used in block {number}");
            }
        }
        assert!(without <= 1, "full, with {without} blocks of no extent");
    }

    /// Ends an extent that has a name.
    fn remove(&mut self, place: u64) {
        let Held { len, is_named, .. } = self.extents.remove(&place).unwrap();
        assert!(is_named);
        let ready_ns = self.now + wait_ns(len);
        self.at(place, len).fill(Granule::Until(ready_ns));
        self.heap.retire(bytes(place), bytes(len), ready_ns);
    }

    /// Ends one that has none.
    fn give_back(&mut self, place: u64) {
        let Held { len, is_named, .. } = self.extents.remove(&place).unwrap();
        assert!(!is_named);
        self.at(place, len).fill(Granule::Free);
        self.heap.give_back(bytes(place), bytes(len));
    }

    /// What a server does in passing. Returns whether there was an extent to look at.
    fn begin_move(&mut self) -> bool {
        let Some(offset) = self.heap.next_move(self.now) else { return false };
        let from = offset / GRANULE;
        let held = self.extents[&from];
        let begun = if held.is_named { self.heap.begin_move(offset, bytes(held.len)) } else { None };
        assert!(begun.is_some() || !held.is_named || self.lent.is_some(), "no room for all (Y1)");
        if let Some(to) = begun {
            let to = self.is_taken(to, held.len, false);
            assert_eq!(self.moving.replace((from, held.number, to)), None, "one at a time");
        }
        true
    }

    fn end_move(&mut self) {
        let Some((from, number, to)) = self.moving.take() else { return };
        let len = self.extents[&to].len;
        // X6: it may have ended meanwhile, and another one may be there.
        match self.extents.get(&from).filter(|held| held.number == number) {
            Some(_) => {
                let ready_ns = self.now + wait_ns(len);
                self.heap.end_move(MoveEnd::Named { ready_ns });
                self.extents.remove(&from);
                self.at(from, len).fill(Granule::Until(ready_ns));
                self.extents.get_mut(&to).unwrap().is_named = true;
                self.tally.moves += 1;
            }
            None => {
                self.heap.end_move(MoveEnd::Unnamed);
                self.extents.remove(&to);
                self.at(to, len).fill(Granule::Free);
                self.tally.dropped += 1;
            }
        }
    }

    fn tidy(&mut self) -> bool {
        let found = self.begin_move();
        self.end_move();
        found
    }

    fn lend(&mut self) {
        let Some(Loan(lent)) = self.heap.lend_block(self.now) else { return };
        let (start, len) = (lent.start / GRANULE, (lent.end - lent.start) / GRANULE);
        let now = self.now;
        for granule in self.at(start, len) {
            let is_unused = match *granule {
                Granule::Free => true,
                Granule::Until(ready_ns) => ready_ns <= now,
                Granule::Live | Granule::Lent => false,
            };
            assert!(is_unused, "{granule:?} at {now}");
            *granule = Granule::Lent;
        }
        assert_eq!(self.lent.replace(lent), None);
        self.tally.loans += 1;
    }

    fn end_loan(&mut self) {
        if let Some(lent) = self.lent.take() {
            let (start, len) = (lent.start / GRANULE, (lent.end - lent.start) / GRANULE);
            self.at(start, len).fill(Granule::Free);
            self.heap.end_loan(GivenBack(Some(0)));
        }
    }

    /// The next server: extents without a name are gone.
    fn take_over(&mut self, dice: &mut Dice) {
        let ready_ns = self.now + wait_ns(LONGEST);
        (self.moving, self.lent) = (None, None);
        self.extents.retain(|_, extent| extent.is_named);
        self.granules.fill(Granule::Until(ready_ns));
        let mut order: Vec<(u64, u64)> = self.extents.iter().map(|(&place, it)| (place, it.len)).collect();
        let mut marks = HeapMarks::new(self.shape);
        while !order.is_empty() {
            let (place, len) = order.swap_remove(dice.below(order.len() as u64) as usize);
            marks.mark(bytes(place), bytes(len)).unwrap();
            self.at(place, len).fill(Granule::Live);
        }
        self.heap = marks.open_after(ready_ns);
        self.tally.takeovers += 1;
        self.tally.held += u64::from(self.heap.needs_reserve);
        assert!(self.heap.needs_reserve || !self.heap.empty.is_empty(), "no block can leave");
    }

    /// Time passes until nothing waits and nothing moves.
    fn rest(&mut self) {
        self.end_move();
        self.end_loan();
        self.now = self.now.max(self.heap.opens_ns);
        let mut steps = 0;
        while let Some(due_ns) = self.heap.next_due_ns() {
            self.now = self.now.max(due_ns);
            self.tidy();
            steps += 1;
            assert!(steps < 100_000, "no end: {:?}", self.heap);
        }
        self.check();
    }

    /// The books are right: each granule is in an extent, waits, or is in one gap or an empty
    /// block.
    fn check(&self) {
        let heap = &self.heap;
        let block_len = u64::from(self.shape.block_len);
        let (mut used, mut waiting, mut gaps, mut public) = (0, 0, BTreeSet::new(), BTreeSet::new());
        for (block, number) in heap.blocks.iter().zip(0..self.shape.blocks) {
            let start = u64::from(number) * block_len;
            let here = || self.extents.range(start..start + block_len);
            let begins: Vec<u64> = here().map(|(&place, _)| place - start).collect();
            let bits = (0..self.shape.block_len).filter(|&at| block.has_extent(at)).map(u64::from);
            assert!(bits.eq(begins), "block {number}");
            let of_block: u64 = here().map(|(_, extent)| extent.len).sum();
            assert_eq!(u64::from(block.used), of_block);
            used += of_block;
            waiting += u64::from(block.waiting);
            let is_unused = matches!(block.used_for, BlockUse::Empty | BlockUse::Lent);
            assert_eq!(is_unused, block.used == 0 && block.waiting == 0 && !is_target(heap, number));
            assert_eq!(heap.empty.contains(&number), block.used_for == BlockUse::Empty);
            let mut in_gaps = 0;
            let mut last_end = None;
            for (&at, &len) in &block.gaps {
                assert!(last_end < Some(at), "two gaps side by side");
                last_end = Some(at + len);
                in_gaps += len;
                let range = (start + u64::from(at)) as usize..(start + u64::from(at + len)) as usize;
                let is_free = |granule: &Granule| match *granule {
                    Granule::Free => true,
                    Granule::Until(ready_ns) => ready_ns <= self.now || self.now < heap.opens_ns,
                    Granule::Live | Granule::Lent => false,
                };
                assert!(self.granules[range].iter().all(is_free));
                let gap = GapByLength { len, spot: Spot { block: number, at } };
                gaps.insert(gap);
                if block.used_for == BlockUse::Open && !is_target(heap, number) {
                    public.insert(gap);
                }
            }
            let all = block.used + block.waiting + in_gaps;
            assert_eq!(all, if is_unused { 0 } else { self.shape.block_len }, "block {number}");
        }
        let sum = |gaps: &BTreeSet<GapByLength>| gaps.iter().map(|gap| u64::from(gap.len)).sum::<u64>();
        assert_eq!((heap.used, heap.in_wait), (used, waiting));
        assert_eq!((heap.gaps, heap.public), (sum(&gaps), sum(&public)));
        // No gap of a leaving block is left there, but for those that are still to be hidden.
        let is_shown =
            |gap: &&GapByLength| heap.to_hide.iter().any(|to_hide| to_hide.block == gap.spot.block);
        let of_open = |gap: &&GapByLength| heap.blocks[gap.spot.block as usize].used_for == BlockUse::Open;
        assert!(gaps.iter().filter(of_open).eq(heap.by_length.iter().filter(of_open)));
        assert!(heap.by_length.iter().all(|gap| gaps.contains(gap) && (of_open(&gap) || is_shown(&gap))));
        assert_eq!(heap.largest_gap(), public.last().copied());
        for len in 1..=self.shape.longest {
            let smallest = public.iter().find(|gap| gap.len >= len).copied();
            assert_eq!(heap.smallest_gap(len), smallest, "for {len}");
        }
        let count = |used_for| heap.blocks.iter().filter(|block| block.used_for == used_for).count();
        assert_eq!(heap.open as usize, count(BlockUse::Open));
        assert_eq!(heap.leaving_blocks as usize, count(BlockUse::Leaving));
        let usage = heap.usage(self.now);
        assert_eq!(usage.live_bytes, bytes(used));
        let empty = (usage.blocks - usage.open_blocks) * usage.block_bytes;
        let is_closed = self.now < heap.opens_ns;
        let all = usage.live_bytes + usage.waiting_bytes + usage.gap_bytes;
        assert_eq!(all + if is_closed { 0 } else { empty }, usage.capacity_bytes);
    }

    /// The second bound: at rest the open blocks have at most 4/3 of what is used, and 4/3 of a
    /// block.
    fn is_dense(&self) {
        let usage = self.heap.usage(self.now);
        assert_eq!((usage.waiting_bytes, usage.leaving_blocks), (0, 0));
        assert!(
            3 * usage.open_blocks * usage.block_bytes <= 4 * (usage.live_bytes + usage.block_bytes),
            "{usage:?}"
        );
        assert!(usage.open_blocks < usage.blocks, "no reserve");
    }
}

fn is_target(heap: &Heap, block: u32) -> bool {
    heap.leaving.is_some_and(|leaving| leaving.into == Some(block))
}

/// One heap and its history.
fn history(seed: u64) -> Tally {
    let dice = &mut Dice(seed);
    // Blocks that are no multiple of a word of bits, too.
    let (blocks, block_len) = (2 + dice.below(12), BLOCK + dice.below(2) * dice.below(70));
    let shape = HeapShape::new(bytes(blocks * block_len), bytes(block_len), bytes(LONGEST));
    let mut world = HeapWorld::new(shape.unwrap());
    for _phase in 0..3 + dice.below(4) {
        // Lengths of a phase, and how full it may get.
        let longest = 1 + dice.below(LONGEST);
        let shortest = 1 + dice.below(longest);
        let target = (blocks - 1) * block_len * (10 + dice.below(101)).min(100) / 100;
        let churns = dice.one_in(2);
        let mut refused = 0;
        let mut tries = 2_000;
        while world.used() < target && refused < 3 && tries > 0 {
            tries -= 1;
            world.now += dice.below(3);
            match dice.below(4) {
                0 => world.tidy(),
                1 => world.moving.is_none() && world.begin_move(),
                2 => {
                    world.end_move();
                    false
                }
                _ => false,
            };
            let len = shortest + dice.below(longest - shortest + 1);
            match world.put(len, !dice.one_in(8)) {
                Ok(_) => refused = 0,
                Err(HeapError::Full) => refused += 1,
                Err(_) => world.now += 1,
            }
            if churns && dice.one_in(2) {
                end_one(&mut world, dice);
            }
            if dice.one_in(200) {
                world.lend();
            }
            if dice.one_in(20) {
                world.end_loan();
            }
            if dice.one_in(2_000) || world.heap.leaving.is_some() && dice.one_in(100) {
                world.take_over(dice);
            }
            if dice.one_in(100) {
                world.check();
            }
        }
        assert!(tries > 0 || world.tally.puts > 1_000);
        // Some go: at random, in the order of their places but for every so many, or nearly all.
        let all: Vec<u64> = world.extents.keys().copied().collect();
        let (how, every) = (dice.below(3), 2 + dice.below(30));
        for (nth, place) in all.into_iter().enumerate() {
            let goes = match how {
                0 => dice.one_in(2),
                1 => !(nth as u64).is_multiple_of(every),
                _ => !dice.one_in(every),
            };
            if goes && world.extents.get(&place).is_some_and(|held| held.is_named) {
                world.remove(place);
                world.now += dice.below(2);
                world.tidy();
            }
        }
        if dice.one_in(4) {
            world.take_over(dice);
        }
        world.end_move();
        world.extents.values_mut().for_each(|extent| extent.is_named = true);
        world.rest();
        world.is_dense();
    }
    // Nothing is lost.
    world.extents.keys().copied().collect::<Vec<_>>().into_iter().for_each(|place| world.remove(place));
    world.rest();
    let usage = world.heap.usage(world.now);
    assert_eq!((usage.open_blocks, usage.gap_bytes, usage.live_bytes), (0, 0, 0));
    world.tally
}

/// An extent is removed, given back, or gets its name.
fn end_one(world: &mut HeapWorld, dice: &mut Dice) {
    let from = dice.below(world.granules.len() as u64);
    let copy = world.moving.map(|(_, _, to)| to);
    let found = world.extents.range(from..).find(|&(&place, _)| Some(place) != copy);
    let Some((&place, &held)) = found else { return };
    match (held.is_named, dice.one_in(2)) {
        (true, _) => world.remove(place),
        (false, true) => world.give_back(place),
        (false, false) => world.extents.get_mut(&place).unwrap().is_named = true,
    }
}

/// Random histories: no two extents overlap, nothing is used before its time, both bounds hold, and
/// nothing is lost.
#[test]
fn histories_keep_the_rules() {
    let seeds = if std::env::var_os("ONEREAD_LONG").is_some() { 100_000 } else { 500 };
    let mut all = Tally::default();
    for seed in 0..seeds {
        let tally = match std::panic::catch_unwind(|| history(seed)) {
            Ok(tally) => tally,
            Err(why) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(why)
            }
        };
        all.puts += tally.puts;
        all.busy += tally.busy;
        all.full += tally.full;
        all.moves += tally.moves;
        all.dropped += tally.dropped;
        all.loans += tally.loans;
        all.takeovers += tally.takeovers;
        all.held += tally.held;
    }
    println!("{all:?}");
    let least = [all.full, all.busy, all.moves, all.dropped, all.loans, all.takeovers, 20 * all.held];
    assert!(least.iter().all(|&count| count > seeds / 2), "{all:?}");
}

const BUSY: Result<u64, HeapError> = Err(HeapError::Busy { wait: Duration::ZERO });

/// `count` extents of `len` granules, which find memory at once. Returns their places.
fn puts(world: &mut HeapWorld, count: u64, len: u64) -> Vec<u64> {
    (0..count).map(|_| world.put(len, true).unwrap()).collect()
}

#[test]
fn lengths_that_make_no_heap() {
    let block_error = |block_bytes| Err(HeapShapeError::Block { block_bytes });
    assert_eq!(HeapShape::new(1 << 20, 4096 + 8, 32), block_error(4104));
    assert_eq!(HeapShape::new(1 << 20, 0, 32), block_error(0));
    assert_eq!(HeapShape::new(1 << 50, 1 << 37, 32), block_error(1 << 37));
    let longest_error = |longest_bytes| Err(HeapShapeError::Longest { block_bytes: 4096, longest_bytes });
    assert_eq!(HeapShape::new(1 << 20, 4096, 1025), longest_error(1025));
    assert_eq!(HeapShape::new(1 << 20, 4096, 0), longest_error(0));
    for heap_bytes in [8191, 1 << 62] {
        let heap_error = HeapShapeError::Heap { heap_bytes, block_bytes: 4096 };
        assert_eq!(HeapShape::new(heap_bytes, 4096, 1024), Err(heap_error));
    }
    let shape = HeapShape::new(3 * 4096 - 1, 4096, 1023).unwrap();
    assert_eq!((shape.blocks, shape.block_len, shape.longest), (2, 128, 32));
    assert_eq!(shape.capacity_bytes(), 8192);

    // Blocks are a small part of the heap, and fit the longest extent.
    assert_eq!(block_bytes(1 << 30, 100), 1 << 20);
    assert_eq!(block_bytes((1 << 30) + 1024, 100), (1 << 20) + 4096);
    assert_eq!(block_bytes(1 << 30, (64 << 20) + 24), (256 << 20) + 4096);
    assert_eq!(block_bytes(0, 1), 4096);
    for (heap_bytes, longest_bytes) in [(1 << 30, 100), (2 << 30, (64 << 20) + 24), (10_000, 1)] {
        let block_bytes = block_bytes(heap_bytes, longest_bytes);
        assert!(HeapShape::new(heap_bytes, block_bytes, longest_bytes).is_ok());
    }
}

/// Memory that no slot named is free at once. What a slot has named waits for its own time,
/// whatever was retired before or after (X3).
#[test]
fn memory_waits_for_its_time() {
    let mut heap = Heap::new(small(2));
    assert_eq!(heap.allocate(0, 0), Err(HeapError::Length));
    assert_eq!(heap.allocate(bytes(LONGEST) + 1, 0), Err(HeapError::Length));
    let places: Vec<u64> = (0..4).map(|_| heap.allocate(bytes(LONGEST), 0).unwrap()).collect();
    assert_eq!(places, [0, 1, 2, 3].map(|n| bytes(n * LONGEST)));
    assert_eq!(heap.allocate(1, 0), Err(HeapError::Full));
    heap.give_back(places[1], bytes(LONGEST));
    assert_eq!(heap.allocate(bytes(LONGEST) - 31, 0), Ok(places[1]));

    heap.retire(places[2], bytes(LONGEST), 90);
    heap.retire(places[0], bytes(LONGEST), 70);
    assert_eq!((heap.usage(0).waiting_bytes, heap.usage(0).gap_bytes), (bytes(2 * LONGEST), 0));
    assert_eq!(heap.next_due_ns(), Some(70));
    assert_eq!((heap.next_move(69), heap.usage(69).gap_bytes), (None, 0));
    assert_eq!(heap.next_move(70), None);
    assert_eq!((heap.usage(70).waiting_bytes, heap.usage(70).gap_bytes), (bytes(LONGEST), bytes(LONGEST)));
    assert_eq!(heap.allocate(1, 70), Ok(places[0]));
    assert_eq!(heap.next_due_ns(), Some(90));
    assert_eq!(heap.allocate(bytes(LONGEST), 90), Ok(places[2]));
    assert_eq!(heap.next_due_ns(), None);
}

/// However much is due, an allocation takes in what it needs. Here gaps of two granules come last.
#[test]
fn all_that_is_due_is_taken_in_for_a_put() {
    let mut world = HeapWorld::new(small(2));
    let places = puts(&mut world, BLOCK, 1);
    places.iter().step_by(2).for_each(|&place| world.remove(place));
    world.now += 1;
    places.iter().skip(1).step_by(2).for_each(|&place| world.remove(place));
    world.now += wait_ns(1);
    assert!(BLOCK >= 4 * SETTLE_MAX as u64);
    world.tidy();
    assert_eq!(world.heap.waiting.len(), BLOCK as usize - SETTLE_MAX, "a bounded part");
    assert_eq!(world.put(2, true), Ok(0));
    assert_eq!(world.heap.waiting.len(), BLOCK as usize - 3 * SETTLE_MAX, "and no more than it needs");
    world.check();
}

/// The smallest gap that is long enough, and of these the first.
#[test]
fn the_smallest_gap_is_taken() {
    let mut world = HeapWorld::new(small(2));
    let lens = [9, 1, 5, 1, 7, 1, 5, 1];
    let places: Vec<u64> = lens.iter().map(|&len| world.put(len, false).unwrap()).collect();
    [0, 2, 4, 6].into_iter().for_each(|n| world.give_back(places[n]));
    world.check();
    let places = |n: usize| Ok(places[n]);
    assert_eq!(world.put(6, true), places(4));
    assert_eq!(world.put(5, true), places(2));
    assert_eq!(world.put(5, true), places(6));
    assert_eq!(world.put(5, true), places(0));
    assert_eq!(world.put(1, true), Ok(22), "what is left of the gap of 7");
    assert_eq!(world.put(5, true), Ok(30), "behind all");
    world.check();
}

/// Y1: puts leave one block empty, also when that is the only room. Then the heap is full.
#[test]
fn the_reserve_is_not_for_puts() {
    let mut world = HeapWorld::new(small(3));
    puts(&mut world, 8, LONGEST);
    assert_eq!(world.put(1, true), Err(HeapError::Full));
    assert_eq!(world.heap.empty.len(), 1);
    // Nothing waits for it.
    assert_eq!(world.heap.next_due_ns(), None);
    world.remove(0);
    assert_eq!(world.put(LONGEST, true), Ok(2 * BLOCK + BLOCK - LONGEST), "at the end of the reserve");
}

/// Y2: gaps that are too short make the block with the least in use leave. The put has the end of
/// the reserve, and all else of the block goes there.
#[test]
fn a_block_leaves_for_a_put() {
    let mut world = HeapWorld::new(small(3));
    let places = puts(&mut world, 2 * BLOCK / 16, 16);
    // Every second extent of block 0, and two more of block 1.
    (0..16).step_by(2).for_each(|n| world.remove(places[n]));
    (16..32).step_by(2).for_each(|n| world.remove(places[n]));
    [17, 19].into_iter().for_each(|n| world.remove(places[n]));
    world.now = 100;
    world.tidy();
    assert_eq!(world.heap.leaving.map(|leaving| leaving.block), None);
    assert_eq!(world.put(49, true), Ok(16 * 16), "a gap of five extents, in block 1");
    assert_eq!(world.put(49, true), Ok(3 * BLOCK - 49));
    assert_eq!(world.heap.leaving.map(|leaving| leaving.block), Some(0), "it has 8 extents of 16");
    // What is short finds a gap all the same, in block 1.
    assert_eq!(world.put(16, true), Ok(16 * 22));
    assert_eq!(world.put(49, true), BUSY, "extents have to move");
    for n in 0..8 {
        assert!(world.tidy());
        assert_eq!(world.extents[&(2 * BLOCK + n * 16)].len, 16);
    }
    assert!(!world.tidy());
    let wait = Duration::from_nanos(wait_ns(16));
    assert_eq!(world.put(49, true), Err(HeapError::Busy { wait }), "until the last extent has waited");
    assert_eq!(world.put(16, true), Ok(16 * 24));
    world.now += wait_ns(16) - 1;
    assert_eq!(world.put(49, true), Err(HeapError::Busy { wait: Duration::from_nanos(1) }));
    world.now += 1;
    assert_eq!(world.put(49, true), Ok(2 * BLOCK + 8 * 16), "what is left of the reserve");
    assert_eq!((world.heap.empty.first(), world.heap.filled), (Some(&0), Some(2)));
    world.check();
}

/// Y3: as long as too much of the open blocks is gaps, the one with the least in use leaves, into
/// gaps of others, and then into the reserve. That one does not leave next.
#[test]
fn sparse_blocks_leave() {
    let mut world = HeapWorld::new(small(6));
    let places = puts(&mut world, 5 * 4, LONGEST);
    // Block 3 keeps one extent, the others two each: 5 blocks, with gaps of 2 3/4 together.
    let keeps = |n: usize| n.is_multiple_of(4) || n % 4 == 2 && n / 4 != 3;
    (0..20).filter(|&n| !keeps(n)).for_each(|n| world.remove(places[n]));
    assert!(!world.tidy(), "all waits");
    world.now = 100;
    assert_eq!(world.heap.next_due_ns(), Some(wait_ns(LONGEST)));
    assert!(world.tidy());
    assert_eq!((world.heap.leaving_blocks, world.heap.blocks[3].used_for), (1, BlockUse::Leaving));
    assert_eq!(world.heap.usage(100).moved_bytes, bytes(LONGEST));
    assert!(world.extents.contains_key(&LONGEST), "into the first gap");
    // It leaves behind 4 blocks with gaps of 1 3/4: less than a quarter and a block.
    assert!(!world.tidy());
    assert_eq!(world.heap.next_due_ns(), Some(100 + wait_ns(LONGEST)));
    world.rest();
    assert_eq!((world.heap.open, world.heap.empty.len()), (4, 2));
    assert_eq!(world.heap.next_due_ns(), None);
    world.is_dense();
}

/// Y3: extents that fit into no gap go into the reserve. Then that has the least in use, and does
/// not leave next: another block fills it up.
#[test]
fn the_last_reserve_does_not_leave_next() {
    let mut world = HeapWorld::new(small(8));
    for block in 0..7 {
        let places = [63, 64, 63, 64].map(|len| world.put(len, true).unwrap());
        assert_eq!(places, [0, 63, 127, 190].map(|at| block * BLOCK + at));
    }
    // Gaps of 63 between extents of 64. Block 3 has one, the others have two.
    for block in 0..7 {
        [0, 127].into_iter().for_each(|at| world.remove(block * BLOCK + at));
    }
    world.remove(3 * BLOCK + 190);
    world.now = 100;
    assert!(world.tidy());
    assert!(world.extents.contains_key(&(7 * BLOCK)), "from block 3");
    world.rest();
    // The extents of blocks 3, 0, 1 and 2, each of them once: they fill block 7, and then the next
    // one.
    assert_eq!(world.tally.moves, 7);
    assert_eq!((world.heap.open, world.heap.blocks[7].used), (5, 4 * 64));
    world.is_dense();
}

/// Y4: one block leaves at a time, and one extent moves at a time. An extent without a name stays
/// until it has one; then it comes up again. A copy that nobody names is dropped.
#[test]
fn extents_move_one_by_one() {
    let mut world = HeapWorld::new(small(6));
    let places = puts(&mut world, 5 * 4, LONGEST);
    (0..20).filter(|n| n % 4 != 0).for_each(|n| world.remove(places[n]));
    world.extents.get_mut(&0).unwrap().is_named = false;
    world.now = 100;
    assert!(world.begin_move(), "the extent without a name");
    assert_eq!((world.moving, world.heap.leaving_blocks), (None, 1));
    assert!(!world.begin_move(), "all have come up");
    assert_eq!(world.heap.next_due_ns(), Some(0), "it is still there");
    world.extents.get_mut(&0).unwrap().is_named = true;
    assert!(world.begin_move());
    assert_eq!(world.moving, Some((0, 1, BLOCK + LONGEST)));
    assert_eq!([world.heap.next_move(100), world.heap.next_move(100)], [None; 2], "one moves");
    assert_eq!(world.heap.begin_move(0, bytes(LONGEST)), None);
    world.remove(0);
    assert_eq!(world.heap.leaving_blocks, 1);
    world.check();
    world.end_move();
    assert_eq!((world.tally.dropped, world.heap.usage(100).moved_bytes), (1, 0));
    world.check();
    // Nothing is left in block 0, so the next one may begin.
    assert!(world.begin_move());
    assert_eq!((world.moving.map(|it| it.2), world.heap.leaving_blocks), (Some(2 * BLOCK + LONGEST), 2));
    // An extent of another block, one that is no extent, and one that has ended.
    world.end_move();
    for place in [2 * BLOCK, BLOCK + 1, BLOCK, 6 * BLOCK] {
        assert_eq!(world.heap.begin_move(bytes(place), bytes(LONGEST)), None);
    }
    world.rest();
    world.is_dense();
}

/// An extent that ended after it came up does not move, also if others of its block do.
#[test]
fn an_extent_that_ended_does_not_move() {
    let mut world = HeapWorld::new(small(6));
    puts(&mut world, 2, LONGEST / 2);
    let places = puts(&mut world, 5 * 4 - 1, LONGEST);
    (0..19).filter(|n| n % 4 != 3).for_each(|n| world.remove(places[n]));
    world.now = 100;
    assert_eq!(world.heap.next_move(100), Some(0));
    world.remove(0);
    assert_eq!(world.heap.begin_move(0, bytes(LONGEST / 2)), None);
    assert_eq!(world.heap.next_move(100), Some(bytes(LONGEST / 2)));
    assert!(world.heap.begin_move(bytes(LONGEST / 2), bytes(LONGEST / 2)).is_some());
}

/// The reserve gets no memory, since the table has all that it may have. It is empty again, and the extents of the
/// leaving block go where there is memory, as soon as there is some.
#[test]
fn a_reserve_without_memory_is_given_up() {
    let mut world = HeapWorld::new(small(3));
    let places = puts(&mut world, 2 * 4, LONGEST);
    let retire = |heap: &mut Heap, some: &[u64], ready_ns| {
        some.iter().for_each(|place| heap.retire(bytes(*place), bytes(LONGEST), ready_ns));
    };
    let heap = &mut world.heap;
    retire(heap, &places[5..], 20);
    let last = heap.allocate(bytes(LONGEST), 0).unwrap();
    assert_eq!(last, bytes(3 * BLOCK - LONGEST), "block 1 leaves, and this is in the reserve");
    heap.give_back_without_memory(last, bytes(LONGEST));
    for _ in 0..2 {
        assert_eq!(heap.next_move(0), Some(bytes(BLOCK)));
        assert_eq!(heap.begin_move(bytes(BLOCK), bytes(LONGEST)), Some(bytes(2 * BLOCK)), "the reserve");
        heap.end_move(MoveEnd::NoMemory);
        assert_eq!((heap.leaving.and_then(|it| it.into), heap.empty.contains(&2)), (None, true));
        assert_eq!(heap.next_move(0), None, "all have come up");
        assert!(matches!(heap.allocate(bytes(LONGEST), 0), Err(HeapError::Busy { .. })));
    }
    retire(heap, &places[..4], 30);
    assert_eq!(heap.next_move(30), Some(bytes(BLOCK)));
    assert_eq!(heap.begin_move(bytes(BLOCK), bytes(LONGEST)), Some(0), "block 0 has memory");
    heap.end_move(MoveEnd::Named { ready_ns: 40 });
    assert_eq!(heap.allocate(bytes(LONGEST), 40), Ok(bytes(LONGEST)));
    // As nothing else is there, the counts of gaps are those of all that is open.
    let usage = heap.usage(40);
    assert_eq!((usage.live_bytes, usage.gap_bytes), (bytes(2 * LONGEST), bytes(BLOCK - 2 * LONGEST)));
}

/// A put finds a block without memory: it is opened after those that have some.
#[test]
fn a_block_without_memory_is_opened_last() {
    let mut heap = Heap::new(small(4));
    let first = heap.allocate(bytes(LONGEST), 0).unwrap();
    heap.give_back_without_memory(first, bytes(LONGEST));
    assert_eq!(heap.allocate(bytes(LONGEST), 0), Ok(first), "none has memory");
    heap.retire(first, bytes(LONGEST), 0);
    assert_eq!(heap.allocate(bytes(LONGEST), 1), Ok(first), "this one had some");
}

/// What a put waits for is the last piece of a block, not the piece that was retired last.
#[test]
fn a_put_waits_until_a_block_is_empty() {
    let mut world = HeapWorld::new(small(2));
    let places = puts(&mut world, 5, 48);
    for (place, ready_ns) in places.into_iter().zip([90, 30, 80, 40, 20]) {
        assert_eq!(world.heap.allocate(bytes(LONGEST), 0), Err(HeapError::Full));
        world.heap.retire(bytes(place), bytes(48), ready_ns);
        world.extents.remove(&place);
        if world.used() + LONGEST <= BLOCK {
            break;
        }
    }
    assert_eq!(world.heap.allocate(bytes(LONGEST), 0), Ok(bytes(2 * BLOCK - LONGEST)));
    // The four that are left move, and wait for times of their own.
    for ready_ns in [70, 50, 60, 20] {
        let from = world.heap.next_move(0).unwrap();
        assert!(world.heap.begin_move(from, bytes(48)).is_some());
        world.heap.end_move(MoveEnd::Named { ready_ns });
    }
    let busy = |ns| Err(HeapError::Busy { wait: Duration::from_nanos(ns) });
    assert_eq!(world.heap.allocate(bytes(LONGEST), 0), busy(90), "the first one");
    assert_eq!(world.heap.allocate(bytes(LONGEST), 89), busy(1));
    assert_eq!(world.heap.allocate(bytes(LONGEST), 90), Err(HeapError::Full), "the reserve is full");
    assert_eq!(world.heap.empty.first(), Some(&0));
    assert_eq!(world.heap.lend_block(90), None, "no other one is empty");
}

/// Y4: a block in which everything waits has left at once, and the next one may.
#[test]
fn a_block_without_extents_has_left() {
    let mut world = HeapWorld::new(small(6));
    let places = puts(&mut world, 5 * 4, LONGEST);
    (0..20).filter(|&n| n % 4 != 0 && n / 4 != 3).for_each(|n| world.remove(places[n]));
    world.now = 100;
    (12..16).for_each(|n| world.remove(places[n]));
    assert_eq!(world.heap.next_move(100), None);
    assert_eq!((world.heap.leaving_blocks, world.heap.blocks[3].used_for), (1, BlockUse::Leaving));
    assert_eq!(world.heap.next_due_ns(), Some(0), "too much is gaps still");
    assert_eq!((world.heap.next_move(100), world.heap.leaving_blocks), (Some(0), 2));
    world.rest();
    world.is_dense();
}

/// The gaps of a block that begins to leave are hidden from puts bit by bit. No put has one of
/// them.
#[test]
fn gaps_of_leaving_blocks_are_hidden() {
    let mut world = HeapWorld::new(small(4));
    let places = puts(&mut world, 2 * BLOCK, 1);
    // Block 0 keeps every second granule, block 1 two of three.
    let goes = |n: usize| n % 2 == 1 && n < BLOCK as usize || n.is_multiple_of(3) && n >= BLOCK as usize;
    (0..places.len()).filter(|&n| goes(n)).for_each(|n| world.remove(places[n]));
    let gaps = puts(&mut world, 4, LONGEST);
    gaps.into_iter().for_each(|place| world.remove(place));
    world.now = 100;
    (0..8).for_each(|_| assert!(!world.tidy()));
    assert_eq!(world.heap.by_length.len(), 128 + 85);
    world.put(2, true).unwrap();
    assert_eq!(world.heap.leaving.map(|leaving| leaving.block), None);
    world.heap.begin_leaving(0, false);
    world.check();
    for left in [2 * HIDE_MAX, HIDE_MAX, 0, 0] {
        let of_block = world.heap.by_length.iter().filter(|gap| gap.spot.block == 0).count();
        assert_eq!(of_block, left);
        assert_eq!(world.put(1, true).unwrap() / BLOCK, 1);
        world.check();
    }
    assert!(world.heap.to_hide.is_empty());
}

/// A block that is open again keeps its gaps, though some were still to be hidden when it left.
#[test]
fn gaps_of_a_block_that_is_open_again_are_not_hidden() {
    let mut world = HeapWorld::new(small(4));
    puts(&mut world, BLOCK, 1);
    let places: Vec<u64> = (0..BLOCK).map(|_| world.put(1, false).unwrap()).collect();
    (0..BLOCK).step_by(2).for_each(|place| world.remove(place));
    world.now = 100;
    (0..3).for_each(|_| assert!(!world.tidy()));
    // Block 0 leaves, with more gaps than two calls hide, and then block 1, which is empty at once.
    world.heap.begin_leaving(0, false);
    (1..BLOCK).step_by(2).for_each(|place| world.remove(place));
    assert_eq!(world.heap.leaving_blocks, 1);
    world.heap.begin_leaving(1, false);
    places.into_iter().for_each(|place| world.give_back(place));
    for at in 0..4 {
        assert_eq!(world.put(1, true), Ok(BLOCK + at));
        world.check();
    }
    assert!(world.heap.to_hide.is_empty());
}

/// X5: what slots name is kept, all else waits for the given time.
#[test]
fn a_takeover_keeps_what_is_marked() {
    let shape = small(3);
    let mut marks = HeapMarks::new(shape);
    let bounds = |offset, extent_bytes| Err(MarkError::Bounds { offset, extent_bytes });
    for (offset, extent_bytes) in [
        (8, 32),
        (0, 0),
        (0, bytes(LONGEST) + 1),
        (bytes(BLOCK - 1), 33),
        (bytes(3 * BLOCK), 32),
        (bytes(1 << 50), 32),
        (u64::MAX - 31, 32),
        (0, u64::MAX),
    ] {
        assert_eq!(marks.mark(offset, extent_bytes), bounds(offset, extent_bytes));
    }
    assert_eq!(marks.mark(bytes(10), bytes(10)), Ok(()));
    for (at, len) in [(10, 10), (10, 1), (19, 1), (9, 2), (19, 5), (12, 3), (5, 30)] {
        let overlap = MarkError::Overlap { offset: bytes(at), extent_bytes: bytes(len) };
        assert_eq!(marks.mark(bytes(at), bytes(len)), Err(overlap), "{at}, {len}");
    }
    for (at, len) in [(9, 1), (20, 1), (BLOCK - 1, 1), (0, 9)] {
        assert_eq!(marks.mark(bytes(at), bytes(len) - 31), Ok(()));
    }
    assert!(marks.unused().eq(std::iter::once(bytes(BLOCK)..bytes(3 * BLOCK))));
    let mut heap = marks.open_after(500);
    let usage = heap.usage(499);
    assert_eq!((usage.live_bytes, usage.waiting_bytes), (bytes(22), bytes(3 * BLOCK - 22)));
    assert_eq!((usage.gap_bytes, usage.largest_gap_bytes, usage.open_blocks), (0, 0, 1));
    let wait = Duration::from_nanos(1);
    assert_eq!(heap.allocate(1, 499), Err(HeapError::Busy { wait }));
    assert_eq!((heap.lend_block(499), heap.next_move(499)), (None, None));
    // What ends meanwhile waits for its own time.
    heap.retire(bytes(20), 32, 600);
    heap.give_back(bytes(9), 32);
    assert_eq!(heap.usage(500).gap_bytes, bytes(BLOCK - 21));
    assert_eq!(heap.allocate(1, 500), Ok(bytes(9)));
    assert_eq!(heap.allocate(1, 599), Ok(bytes(21)));
    assert_eq!(heap.allocate(1, 600), Ok(bytes(20)));
    assert_eq!(heap.lend_block(600), None, "nothing is behind the empty ones");
}

/// Y5: a server was killed while a block left for the reserve. The next one lets it leave first,
/// and puts wait for that.
#[test]
fn a_takeover_ends_what_was_leaving() {
    let mut world = HeapWorld::new(small(3));
    puts(&mut world, 16, 16);
    let places = puts(&mut world, 16, 16);
    (0..16).step_by(2).for_each(|n| world.remove(places[n]));
    world.now = 100;
    assert_eq!(world.put(LONGEST, true), Ok(3 * BLOCK - LONGEST));
    assert!(world.tidy() && world.tidy());
    world.take_over(&mut Dice(0));
    let opens_in = Duration::from_nanos(wait_ns(LONGEST));
    assert_eq!(world.put(1, true), Err(HeapError::Busy { wait: opens_in }));
    assert_eq!(world.heap.next_due_ns(), Some(100 + wait_ns(LONGEST)));
    world.now += wait_ns(LONGEST);
    assert_eq!(world.heap.leaving.map(|leaving| leaving.block), Some(1));
    assert_eq!(world.put(1, true), BUSY);
    while world.tidy() {}
    let wait = Duration::from_nanos(wait_ns(16));
    assert_eq!(world.put(1, true), Err(HeapError::Busy { wait }));
    world.now += wait_ns(16);
    assert_eq!(world.put(1, true), Ok(2 * BLOCK + 8 * 16));
    assert_eq!(world.heap.empty.first(), Some(&1));
    world.check();
}

/// A table that was damaged may name extents such that no block can leave. Its heap serves what
/// gaps it has, and is whole again when a block is empty.
#[test]
fn a_heap_without_a_reserve_serves_its_gaps() {
    let mut marks = HeapMarks::new(small(2));
    for at in (0..2 * BLOCK).step_by(64) {
        marks.mark(bytes(at), bytes(60)).unwrap();
    }
    let mut heap = marks.open_after(7);
    assert!(!heap.needs_reserve && heap.next_move(7).is_none());
    let gaps: Vec<u64> = (0..8).map(|_| heap.allocate(bytes(4), 7).unwrap()).collect();
    assert_eq!(gaps, (0..8).map(|n| bytes(n * 64 + 60)).collect::<Vec<_>>());
    assert_eq!(heap.allocate(1, 7), Err(HeapError::Full));
    heap.retire(0, bytes(60), 9);
    assert_eq!(heap.allocate(bytes(61), 9), Err(HeapError::Full), "one gap of 60");
    (0..4).for_each(|n| heap.give_back(gaps[n], bytes(4)));
    (1..4).for_each(|n| heap.retire(bytes(n * 64), bytes(60), 20));
    assert_eq!(heap.allocate(bytes(61), 20), Err(HeapError::Full), "all of block 0 is the reserve");
    assert_eq!((heap.empty.len(), heap.open), (1, 1));
}

/// An empty block is lent once after each use, and not used meanwhile. One more stays empty.
#[test]
fn empty_blocks_are_lent() {
    let mut world = HeapWorld::new(small(4));
    assert_eq!(world.heap.lend_block(0), None, "no memory was used");
    let places = puts(&mut world, 12, LONGEST);
    assert_eq!(world.heap.lend_block(0), None, "one is empty");
    places.iter().for_each(|&place| world.remove(place));
    world.now = 100;
    world.tidy();
    world.lend();
    let lent = bytes(2 * BLOCK)..bytes(3 * BLOCK);
    assert_eq!(world.lent, Some(lent), "the last one that was used");
    assert_eq!(world.heap.lend_block(100), None, "one at a time");
    world.check();
    // The lent one is the reserve: all others may be opened.
    let places = puts(&mut world, 12, LONGEST);
    assert!(world.heap.empty.is_empty());
    assert_eq!(world.put(1, true), BUSY);
    world.remove(places[0]);
    assert_eq!(world.put(LONGEST, true), BUSY, "no block leaves without a reserve");
    world.end_loan();
    world.check();
    assert_eq!(world.put(LONGEST, true), Ok(3 * BLOCK - LONGEST));
    world.rest();
    world.extents.keys().copied().collect::<Vec<_>>().into_iter().for_each(|place| world.remove(place));
    world.rest();
    let lent = std::iter::from_fn(|| {
        world.lend();
        let lent = world.lent.clone();
        world.end_loan();
        lent
    });
    let lent: Vec<u64> = lent.take(9).map(|lent| lent.start / bytes(BLOCK)).collect();
    assert_eq!(lent, [3, 2, 1, 0], "each of them once");
}

/// A block whose memory the machine keeps is lent once, and opened before one that has none: also where the
/// next server finds it behind one that was never used.
#[test]
fn memory_that_is_kept_is_used_first() {
    let mut marks = HeapMarks::new(small(5));
    (0..4).for_each(|n| marks.mark(bytes(3 * BLOCK + n * LONGEST), bytes(LONGEST)).unwrap());
    assert!(marks.unused().eq([0..bytes(3 * BLOCK), bytes(4 * BLOCK)..bytes(5 * BLOCK)]));
    let mut heap = marks.open_after(0);
    let places: Vec<u64> = (0..4).map(|n| bytes(3 * BLOCK + n * LONGEST)).collect();
    for is_kept in [false, true] {
        places.iter().for_each(|&place| heap.retire(place, bytes(LONGEST), 0));
        heap.next_move(0);
        assert_eq!(heap.lend_block(0), Some(Loan(bytes(3 * BLOCK)..bytes(4 * BLOCK))));
        heap.end_loan(GivenBack((!is_kept).then_some(0)));
        assert_eq!(heap.lend_block(0), None, "once");
        let first = if is_kept { bytes(3 * BLOCK) } else { 0 };
        assert_eq!(heap.allocate(bytes(LONGEST), 0), Ok(first));
        if !is_kept {
            heap.give_back(first, bytes(LONGEST));
            assert_eq!(heap.lend_block(0), Some(Loan(0..bytes(BLOCK))));
            heap.end_loan(GivenBack(Some(0)));
            heap.blocks[3].memory = BlockMemory::There;
            let again: Vec<u64> = (0..4).map(|_| heap.allocate(bytes(LONGEST), 0).unwrap()).collect();
            assert_eq!(again, places);
        }
    }
}

/// What no extent is cannot end: that is a bug of the caller. Without assertions nothing happens.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "no extent of 64 bytes at 0"))]
fn an_extent_ends_once() {
    let mut heap = Heap::new(small(2));
    assert_eq!(heap.allocate(64, 0), Ok(0));
    heap.give_back(0, 64);
    heap.give_back(0, 64);
    assert_eq!(heap.allocate(bytes(LONGEST), 0), Ok(0));
    for (offset, extent_bytes) in [(32, 32), (0, bytes(LONGEST) + 32), (bytes(BLOCK), 32), (u64::MAX, 1)] {
        heap.retire(offset, extent_bytes, 0);
        assert_eq!(heap.usage(0).live_bytes, bytes(LONGEST));
    }
    // Longer than it is: over a gap, and over the next extent.
    assert_eq!(heap.allocate(32, 0), Ok(bytes(LONGEST)));
    heap.give_back(bytes(LONGEST), 64);
    heap.give_back(0, bytes(LONGEST));
    assert_eq!(heap.allocate(32, 0), Ok(0));
    heap.give_back(0, 64);
    assert_eq!(heap.usage(0).live_bytes, 64);
}

/// Whoever asks for memory knows which extents there are, and how the heap places them. First all
/// extents are short, then some stay in each place where a longer one could be, and so on. The heap
/// is full only when it may be (`HeapWorld::is_full`), and dense at rest.
#[test]
fn extents_that_spoil_longer_gaps() {
    let mut world = HeapWorld::new(small(20));
    for len in [1, 2, 4, 8, 16, 32, LONGEST] {
        let mut tries = 0;
        loop {
            match world.put(len, true) {
                Ok(_) => tries = 0,
                Err(HeapError::Full) => break,
                Err(_) if tries > 10_000 => panic!("busy for {len}"),
                Err(_) => {
                    tries += 1;
                    world.now += 1;
                    world.tidy();
                }
            }
        }
        let last = world.extents.last_key_value().unwrap().0 + 1;
        world.check();
        // One extent stays for each longer one that could be there, but for a third of the memory.
        let mut kept = 0;
        for place in (0..last).step_by(2 * len as usize) {
            let here = world.extents.range(place..place + 2 * len);
            let here: Vec<u64> = here.map(|(&place, _)| place).collect();
            let keeps = usize::from(kept * len < 12 * BLOCK);
            kept += keeps as u64;
            here.into_iter().skip(keeps).for_each(|place| world.remove(place));
        }
        world.rest();
        world.is_dense();
    }
    assert!(world.tally.full == 7 && world.tally.moves > 1_000, "{:?}", world.tally);
}

/// Values of up to 64 MiB. A heap must have two blocks for them, and more to be of use.
#[test]
fn extents_of_64_mib() {
    let longest = (64 << 20) + 24;
    let block_bytes = block_bytes(256 << 20, longest);
    let too_small = HeapShapeError::Heap { heap_bytes: 256 << 20, block_bytes };
    assert_eq!(HeapShape::new(256 << 20, block_bytes, longest), Err(too_small));

    for blocks in [2, 5] {
        let shape = HeapShape::new(blocks * block_bytes, block_bytes, longest).unwrap();
        let mut heap = Heap::new(shape);
        let mut now = 0;
        let mut extents: Vec<(u64, u64)> = Vec::new();
        let dice = &mut Dice(blocks);
        let (mut full, mut moved) = (0, 0);
        for _ in 0..6_000 {
            now += 1;
            // All lengths, but mostly the longest.
            let len = if dice.one_in(3) { 1 + dice.below(longest) } else { longest };
            match heap.allocate(len, now) {
                Ok(offset) => {
                    let overlaps = |&(other, its): &(u64, u64)| offset < other + its && other < offset + len;
                    assert!(!extents.iter().any(overlaps) && offset + len <= shape.capacity_bytes());
                    extents.push((offset, len));
                }
                Err(HeapError::Full) => {
                    full += 1;
                    let used: u64 = extents.iter().map(|it| it.1.next_multiple_of(GRANULE)).sum();
                    let least = (blocks - 1) * (block_bytes - longest.next_multiple_of(GRANULE));
                    assert!(used > least, "{used} of {}", shape.capacity_bytes());
                    for _ in 0..1 + dice.below(extents.len() as u64) {
                        let (offset, len) = extents.swap_remove(dice.below(extents.len() as u64) as usize);
                        heap.retire(offset, len, now + 30);
                    }
                }
                Err(HeapError::Busy { wait }) => now += wait.as_nanos() as u64,
                Err(HeapError::Length) => panic!("{len}"),
            }
            if let Some(from) = heap.next_move(now) {
                let at = extents.iter().position(|&(offset, _)| offset == from).unwrap();
                extents[at].0 = heap.begin_move(from, extents[at].1).unwrap();
                heap.end_move(MoveEnd::Named { ready_ns: now + 30 });
                moved += 1;
            }
        }
        assert!(full > 100 && moved > 100, "{full}, {moved}");
    }
}

/// Many short extents in large blocks, with removes that leave few of them anywhere.
#[test]
fn many_short_extents() {
    let shape = HeapShape::new(8 << 20, block_bytes(8 << 20, 4000), 4000).unwrap();
    assert_eq!((shape.blocks, shape.block_len), (512, 512));
    let mut world = HeapWorld::new(shape);
    let dice = &mut Dice(1);
    let mut places = Vec::new();
    while let Ok(place) = world.put(1 + dice.below(4), true) {
        places.push(place);
    }
    assert_eq!(world.tally.full, 1);
    assert!(places.len() > 90_000, "{}", places.len());
    assert!(world.heap.usage(0).gap_bytes < 4 * bytes(512));
    places.into_iter().filter(|_| !dice.one_in(40)).for_each(|place| world.remove(place));
    assert!(world.heap.waiting.len() > 80_000);
    world.rest();
    world.is_dense();
    assert!(world.heap.open < 20 && world.heap.waiting.capacity() == KEPT);
}
