//! A model of the memory of extents (`models/extents.rs`): where they lie, which of them are moved,
//! and how much memory that takes. The rules are checked here before the code has them.
//!
//! The *heap* is made of *blocks* of W granules. An extent lies in one block and has at most W / 4
//! granules. It takes the smallest gap that is long enough. Only memory that was named waits, before it
//! is a gap again (X3).
//!
//! ```text
//! empty ──► open ──► leaving ──► empty
//!             no new extents; those that are there move;
//!             then what waits has waited
//! ```
//!
//! * **Y1** One empty block is the *reserve*: nothing but a block that is leaving opens it. So every
//!   block can leave: all its extents fit into the reserve, one behind the other.
//! * **Y2** A put that finds no gap opens an empty block, but for the reserve. If there is none, the open
//!   block with the least in use leaves for the reserve, if both it and the new extent have room there.
//!   The new extent goes to the end of the reserve at once.
//! * **Y3** While more than a quarter of the open blocks, and one block, are gaps, the one with the least in
//!   use leaves, but for the block that was the reserve last. Its extents go into gaps of others, those that
//!   find none into the reserve.
//! * **Y4** One block leaves at a time. The next one begins when all extents of the last one have moved, or,
//!   if that has opened the reserve, when it is empty. A put that finds no gap meanwhile is to be tried
//!   again. If none leaves, and none can, the heap is full.
//! * **Y5** A takeover makes blocks and gaps from the extents that slots name. All else waits (X5). If
//!   every block has an extent, the last server was killed while one left. Then a block leaves that fits
//!   into one gap of another: the one that was leaving does. Puts wait for that.
//!
//! **Claim: a put of n granules finds the heap full only if every block but the reserve has more than
//! W - n in use.** Else Y2 would serve it. So all but the reserve is 75 % full for the longest extents, and
//! fuller for shorter ones.
//!
//! **Claim: at rest the open blocks have at most 4/3 of the granules in use, and 4/3 of a block.** That is
//! what Y3 stops at. It gets there: call a block dense if all its gaps together are less than W / 4. When Y3
//! is due, the blocks but the last reserve have more than a quarter of gaps. So the one with the least in use
//! is not dense, and no dense block leaves. If it leaves without the reserve, there is an open block less. If
//! it needs the reserve, what is left of that is one gap. The next block that leaves fills this gap before it
//! needs a reserve again, and then the block is dense: what did not fit has at most W / 4. So two blocks that
//! leave make an open block less, or a dense one more.
//!
//! An extent's length is rounded up to a granule, and nothing else is lost inside.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Y1: a put opens the reserve, too.
    Reserve,
    /// Y2: no block leaves for a put.
    Demand,
    /// Y3: no block leaves by itself.
    Background,
    /// Y2, Y3: the block with the most in use leaves.
    Least,
    /// Y3: the block that was the reserve last leaves, too.
    SameAgain,
}

/// Granules of a block, and of the longest extent.
const W: usize = 256;
const LONGEST: usize = W / 4;
/// How long memory waits.
const WAIT: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    Open,
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    state: State,
    /// Granules in use, and waiting.
    used: usize,
    waiting: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Put {
    At(usize),
    /// To be tried again.
    Later,
    Full,
}

/// A block that leaves, and the reserve that it has opened.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    block: usize,
    into: Option<usize>,
    /// It leaves for a put: all of it goes into the reserve.
    is_demanded: bool,
}

struct Heap {
    broken: Broken,
    blocks: Vec<Block>,
    /// Gaps of open and leaving blocks: place, length.
    gaps: BTreeMap<usize, usize>,
    /// Those that puts may take: length, place.
    by_length: BTreeSet<(usize, usize)>,
    /// Extents: place, length and whose.
    extents: BTreeMap<usize, (usize, u64)>,
    /// When due, place, length.
    waiting: VecDeque<(u64, usize, usize)>,
    /// Puts wait until a block is empty: the last server was killed while one left.
    needs_reserve: bool,
    leaving: Option<Leaving>,
    /// The block that was the reserve last.
    filled: Option<usize>,
    time: u64,
    moved: usize,
}

impl Heap {
    fn new(blocks: usize, broken: Broken) -> Heap {
        Heap {
            broken,
            blocks: vec![Block { state: State::Empty, used: 0, waiting: 0 }; blocks],
            gaps: BTreeMap::new(),
            by_length: BTreeSet::new(),
            extents: BTreeMap::new(),
            waiting: VecDeque::new(),
            needs_reserve: false,
            leaving: None,
            filled: None,
            time: 0,
            moved: 0,
        }
    }

    /// Y5
    fn rebuilt(&self) -> Heap {
        let mut heap = Heap::new(self.blocks.len(), self.broken);
        heap.time = self.time;
        for (&place, &(len, whose)) in &self.extents {
            heap.extents.insert(place, (len, whose));
            heap.blocks[place / W].used += len;
        }
        for number in 0..heap.blocks.len() {
            let mut at = number * W;
            let mut rest = Vec::new();
            for (&place, &(len, _)) in heap.extents.range(number * W..(number + 1) * W) {
                rest.extend((place > at).then_some((at, place - at)));
                at = place + len;
            }
            rest.extend(((number + 1) * W > at).then_some((at, (number + 1) * W - at)));
            heap.blocks[number].state = State::Open;
            heap.blocks[number].waiting = W - heap.blocks[number].used;
            heap.waiting.extend(rest.into_iter().map(|(place, len)| (heap.time + WAIT, place, len)));
        }
        heap.needs_reserve = heap.blocks.iter().all(|block| block.used > 0);
        heap
    }

    fn count(&self, state: State) -> usize {
        self.blocks.iter().filter(|block| block.state == state).count()
    }

    fn used(&self) -> usize {
        self.blocks.iter().map(|block| block.used).sum()
    }

    /// Whether puts may use the gaps of a block.
    fn is_public(&self, block: usize) -> bool {
        self.blocks[block].state == State::Open
            && self.leaving.is_none_or(|leaving| leaving.into != Some(block))
    }

    fn add_gap(&mut self, mut place: usize, mut len: usize) {
        let block = place / W;
        if let Some((&before, &its)) = self.gaps.range(block * W..place).next_back()
            && before + its == place
        {
            self.take_gap(before);
            (place, len) = (before, len + its);
        }
        if (place + len) / W == block && self.gaps.contains_key(&(place + len)) {
            len += self.take_gap(place + len);
        }
        self.gaps.insert(place, len);
        if self.is_public(block) {
            self.by_length.insert((len, place));
        }
    }

    fn take_gap(&mut self, place: usize) -> usize {
        let len = self.gaps.remove(&place).expect("a gap");
        self.by_length.remove(&(len, place));
        len
    }

    fn take(&mut self, gap: usize, len: usize, whose: u64) -> usize {
        let has = self.take_gap(gap);
        self.extents.insert(gap, (len, whose));
        self.blocks[gap / W].used += len;
        if has > len {
            self.add_gap(gap + len, has - len);
        }
        gap
    }

    fn open(&mut self, block: usize) {
        self.blocks[block].state = State::Open;
        self.add_gap(block * W, W);
    }

    fn empty_block(&self, but: usize) -> Option<usize> {
        let empty = |number: &usize| self.blocks[*number].state == State::Empty;
        (0..self.blocks.len())
            .filter(empty)
            .nth(but)
            .map(|_| (0..self.blocks.len()).find(empty).expect("one"))
    }

    fn smallest_gap(&self, len: usize) -> Option<usize> {
        self.by_length.range((len, 0)..).next().map(|gap| gap.1)
    }

    /// The open block with the least in use.
    fn least(&self, but: Option<usize>) -> Option<usize> {
        let open = (0..self.blocks.len()).filter(|&number| self.blocks[number].state == State::Open);
        let open = open.filter(|&number| Some(number) != but || self.broken == Broken::SameAgain);
        match self.broken {
            Broken::Least => open.max_by_key(|&number| self.blocks[number].used),
            _ => open.min_by_key(|&number| self.blocks[number].used),
        }
    }

    fn leave(&mut self, block: usize, is_demanded: bool) {
        self.blocks[block].state = State::Leaving;
        let gaps: Vec<_> = self.gaps.range(block * W..(block + 1) * W).map(|(&p, &l)| (l, p)).collect();
        self.by_length.retain(|gap| !gaps.contains(gap));
        self.leaving = Some(Leaving { block, into: None, is_demanded });
    }

    /// Opens the reserve for what is leaving alone.
    fn open_reserve(&mut self) -> Option<usize> {
        let reserve = self.empty_block(0)?;
        self.leaving.as_mut().expect("a block leaves").into = Some(reserve);
        self.open(reserve);
        Some(reserve)
    }

    /// Whether all that is in a block fits into one gap of another one.
    fn fits_one_gap(&self, block: usize) -> bool {
        let long_enough = self.by_length.range((self.blocks[block].used, 0)..);
        long_enough.clone().any(|gap| gap.1 / W != block)
    }

    fn put(&mut self, len: usize, whose: u64) -> Put {
        if self.needs_reserve {
            return Put::Later;
        }
        if let Some(gap) = self.smallest_gap(len) {
            return Put::At(self.take(gap, len, whose));
        }
        let reserved = usize::from(self.broken != Broken::Reserve);
        if let Some(block) = self.empty_block(reserved) {
            self.open(block);
            return Put::At(self.take(block * W, len, whose));
        }
        if self.leaving.is_some() {
            return Put::Later;
        }
        let least = self.least(None).filter(|_| self.broken != Broken::Demand);
        let Some(block) = least.filter(|&block| self.blocks[block].used + len <= W) else {
            return if self.count(State::Leaving) == 0 { Put::Full } else { Put::Later };
        };
        // After a takeover no block is empty before memory has waited.
        if self.empty_block(0).is_none() {
            return Put::Later;
        }
        self.leave(block, true);
        let reserve = self.open_reserve().expect("there is one");
        // At its end, so that the rest is one gap.
        self.take_gap(reserve * W);
        let place = (reserve + 1) * W - len;
        self.extents.insert(place, (len, whose));
        self.blocks[reserve].used += len;
        self.add_gap(reserve * W, W - len);
        Put::At(place)
    }

    /// The extent is not named any more.
    fn release(&mut self, place: usize) {
        let (len, _) = self.extents.remove(&place).expect("an extent");
        self.blocks[place / W].used -= len;
        self.blocks[place / W].waiting += len;
        self.waiting.push_back((self.time + WAIT, place, len));
    }

    /// What a server does in passing: gaps from what has waited, one extent moved. Returns the move.
    fn tidy(&mut self) -> Option<(u64, usize)> {
        while self.waiting.front().is_some_and(|waiting| waiting.0 <= self.time) {
            let (_, place, len) = self.waiting.pop_front().expect("it is there");
            self.blocks[place / W].waiting -= len;
            self.add_gap(place, len);
        }
        for number in 0..self.blocks.len() {
            let Block { state, used, waiting } = self.blocks[number];
            let is_target = self.leaving.is_some_and(|leaving| leaving.into == Some(number));
            if state != State::Empty && used + waiting == 0 && !is_target {
                let gaps: Vec<usize> =
                    self.gaps.range(number * W..(number + 1) * W).map(|gap| *gap.0).collect();
                for gap in gaps {
                    self.take_gap(gap);
                }
                self.blocks[number].state = State::Empty;
                if self.leaving.is_some_and(|leaving| leaving.block == number) {
                    self.end_leaving();
                }
            }
        }
        self.needs_reserve &= self.empty_block(0).is_none();
        let Some(Leaving { block, into, is_demanded }) = self.leaving else {
            if self.needs_reserve && self.waiting.is_empty() {
                let fits = (0..self.blocks.len()).filter(|&block| self.fits_one_gap(block));
                let least = fits.min_by_key(|&block| self.blocks[block].used);
                self.leave(least.expect("the one that was leaving fits"), false);
                return None;
            }
            let open = self.count(State::Open) * W;
            let gaps = self.by_length.iter().map(|gap| gap.0).sum::<usize>();
            if gaps > open / 4 + W && self.empty_block(0).is_some() && self.broken != Broken::Background {
                let least = self.least(self.filled)?;
                self.leave(least, false);
            }
            return None;
        };
        // The longest first.
        let of_block = self.extents.range(block * W..(block + 1) * W);
        let Some((&from, &(len, whose))) = of_block.max_by_key(|extent| extent.1.0) else {
            if into.is_none() {
                self.end_leaving();
            }
            return None;
        };
        let gap = match self.smallest_gap(len).filter(|_| !is_demanded) {
            Some(gap) => gap,
            None => {
                let into = into.or_else(|| self.open_reserve())?;
                let mut gaps = self.gaps.range(into * W..(into + 1) * W);
                *gaps.find(|gap| *gap.1 >= len).expect("the reserve has room for all (Y1)").0
            }
        };
        let to = self.take(gap, len, whose);
        self.release(from);
        self.moved += len;
        Some((whose, to))
    }

    /// What is left of the reserve is for all.
    fn end_leaving(&mut self) {
        let Leaving { into, .. } = self.leaving.take().expect("a block leaves");
        let Some(into) = into else { return };
        self.filled = Some(into);
        let gaps: Vec<_> = self.gaps.range(into * W..(into + 1) * W).map(|(&p, &l)| (l, p)).collect();
        self.by_length.extend(gaps);
    }

    /// Extents and gaps lie side by side and fill their blocks, with what waits.
    fn check(&self) {
        for (number, block) in self.blocks.iter().enumerate() {
            let here = number * W..(number + 1) * W;
            let extents = self.extents.range(here.clone()).map(|(&place, &(len, _))| (place, len));
            let gaps = self.gaps.range(here.clone()).map(|(&place, &len)| (place, len));
            let waiting = self.waiting.iter().map(|it| (it.1, it.2)).filter(|it| here.contains(&it.0));
            let used: usize = extents.clone().map(|it| it.1).sum();
            assert_eq!(used, block.used);
            assert_eq!(waiting.clone().map(|it| it.1).sum::<usize>(), block.waiting);
            let mut all: Vec<_> = extents.chain(waiting).chain(gaps.clone()).collect();
            all.sort_unstable();
            if block.state == State::Empty {
                assert!(all.is_empty(), "an empty block: {all:?}");
                continue;
            }
            let end = all.iter().try_fold(here.start, |at, &(place, len)| (at == place).then_some(at + len));
            assert_eq!(end, Some(here.end), "{all:?}");
            let public: Vec<_> =
                gaps.filter(|&(place, len)| self.by_length.contains(&(len, place))).collect();
            assert!(public.is_empty() || self.is_public(number));
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % n as u64) as usize
    }
}

/// Who has which extent.
type Owners = BTreeMap<u64, usize>;

#[derive(Debug, Default)]
struct Counts {
    puts: u64,
    later: u64,
    full: u64,
    put_granules: usize,
    moved: usize,
    rebuilt: u64,
    /// Of these, those that had no empty block.
    held: u64,
}

fn take_over(heap: &mut Heap, counts: &mut Counts) {
    counts.moved += heap.moved;
    *heap = heap.rebuilt();
    heap.check();
    counts.rebuilt += 1;
    counts.held += u64::from(heap.needs_reserve);
}

/// One heap and its history. `Err` says which claim does not hold.
fn history(broken: Broken, seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut random = Random(seed);
    let blocks = 3 + random.below(12);
    let mut heap = Heap::new(blocks, broken);
    let (mut owners, mut next) = (Owners::new(), 0);
    let tidy = |heap: &mut Heap, owners: &mut Owners| {
        if let Some((whose, to)) = heap.tidy() {
            owners.insert(whose, to);
        }
    };
    for _phase in 0..4 + random.below(4) {
        // Lengths of a phase, and how full it may get.
        let longest = 1 + random.below(LONGEST);
        let shortest = 1 + random.below(longest);
        let target = (blocks - 1) * W * (10 + random.below(101)).min(100) / 100;
        let churns = random.below(2) == 0;
        let (mut refused, mut left) = (0, 3_000);
        let until = heap.time + 1_000_000;
        while heap.used() < target && refused < 200 && left > 0 {
            left -= 1;
            if heap.time > until {
                return Err("no end".into());
            }
            heap.time += random.below(3) as u64;
            tidy(&mut heap, &mut owners);
            let len = shortest + random.below(longest - shortest + 1);
            counts.puts += 1;
            match heap.put(len, next) {
                Put::At(place) => {
                    owners.insert(next, place);
                    counts.put_granules += len;
                    refused = 0;
                }
                Put::Later => {
                    heap.time += 1;
                    counts.later += 1;
                }
                Put::Full => {
                    counts.full += 1;
                    refused += 100;
                    let least = heap.blocks.iter().filter(|it| it.state == State::Open).map(|it| it.used);
                    if least.min().is_none_or(|least| least + len <= W) || heap.count(State::Empty) > 1 {
                        return Err(format!("full for {len}: {:?}", heap.blocks));
                    }
                }
            }
            if churns && random.below(2) == 0 {
                let from = random.below(next as usize + 1) as u64;
                if let Some((&whose, &place)) = owners.range(from..).next() {
                    owners.remove(&whose);
                    heap.release(place);
                }
            }
            next += 1;
            if random.below(2_000) == 0 || heap.leaving.is_some() && random.below(100) == 0 {
                take_over(&mut heap, counts);
            }
            if random.below(50) == 0 {
                heap.check();
            }
        }
        // Some go: at random, in the order of their places but for every so many, or nearly all.
        let all: Vec<u64> = owners.keys().copied().collect();
        let (how, every) = (random.below(3), 2 + random.below(30));
        for (nth, whose) in all.into_iter().enumerate() {
            let goes = match how {
                0 => random.below(2) == 0,
                1 => nth % every != 0,
                _ => random.below(every) != 0,
            };
            if goes {
                let place = owners.remove(&whose).expect("it is there");
                heap.release(place);
                heap.time += random.below(2) as u64;
                tidy(&mut heap, &mut owners);
            }
        }
        heap.check();
        if random.below(4) == 0 {
            take_over(&mut heap, counts);
        }
        // At rest.
        let mut quiet = 0;
        for _ in 0..200_000 {
            let before = heap.moved;
            heap.time += 1;
            tidy(&mut heap, &mut owners);
            let is_busy = heap.moved > before || heap.leaving.is_some() || !heap.waiting.is_empty();
            quiet = if is_busy { 0 } else { quiet + 1 };
            if quiet > 3 {
                break;
            }
        }
        heap.check();
        let (open, used) = (heap.count(State::Open) * W, heap.used());
        if quiet <= 3 || 3 * open > 4 * (used + W) || heap.count(State::Empty) == 0 {
            return Err(format!("{open} open, {used} in use, quiet {quiet}"));
        }
        let listed: BTreeMap<u64, usize> = heap.extents.iter().map(|(&place, it)| (it.1, place)).collect();
        assert_eq!(listed, owners, "seed {seed}");
    }
    counts.moved += heap.moved;
    Ok(())
}

#[test]
fn memory_is_bounded() {
    let seeds = if std::env::var_os("ONEREAD_LONG").is_some() { 300_000 } else { 1_500 };
    let mut counts = Counts::default();
    for seed in 0..seeds {
        assert_eq!(history(Broken::Nothing, seed, &mut counts), Ok(()), "seed {seed}");
    }
    println!("{counts:?}");
    assert!(
        counts.full > seeds / 10
            && counts.later > seeds / 10
            && counts.rebuilt > seeds
            && counts.held > seeds / 100,
        "{counts:?}"
    );
}

#[test]
fn every_broken_rule_is_found() {
    for broken in [Broken::Reserve, Broken::Demand, Broken::Background, Broken::Least, Broken::SameAgain] {
        let found =
            (0..1_000).find_map(|seed| Some((seed, history(broken, seed, &mut Counts::default()).err()?)));
        println!("{broken:?}: {found:?}");
        assert!(found.is_some(), "{broken:?}");
    }
}
