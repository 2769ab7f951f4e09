//! The handover of one segment: what the next server needs to know of it, after a server that stops (T6, T7). So the
//! next server need not look at every slot. `docs/FORMAT.md` has its bytes.
//!
//! A register is read when its stripe is first used.
//!
//! A table that grows leaves such a *part* for each segment. Before the parts stands what only such a table has.

use super::Homes;
use super::grace::Grace;
use crate::base::cores::Cores;
use crate::faults::{Rule, in_order, kept};
#[cfg(feature = "sim")]
use crate::index::slots::Stripes;
use crate::index::slots::{Displaced, DisplacedAt, ENTRY_WORDS, entries_in};
use crate::layout::control::BLOCKS_WORD;
use crate::layout::geometry::{Geometry, SlotIx};
use crate::layout::undo::{UNDO_LINES, line_word};
use crate::layout::{PAGE, WORD, chain, crc};
use crate::region::{Region, RegionError};
use std::ops::Range;
use std::time::Duration;

/// Words before the lists.
pub(crate) const HEAD: u64 = 5;
/// Stripes that a thread checks before it takes the next ones.
const PIECE: u64 = 64;

/// The byte behind the table at which a handover begins.
pub(crate) fn handover_offset(geometry: &Geometry) -> u64 {
    geometry.region_bytes().next_multiple_of(PAGE as u64)
}

/// Words of the longest handover of a segment.
#[cfg(feature = "sim")]
pub(crate) fn handover_words_max(geometry: &Geometry) -> u64 {
    let stripes = Stripes::new(geometry.main_slots()).len() as u64;
    HEAD + geometry.overflow_blocks() + stripes + ENTRY_WORDS as u64 * geometry.slots()
}

/// What a stopped server left of a table at rest, or of one segment.
#[derive(Debug)]
pub(crate) struct Handover {
    keys: u64,
    free: Vec<chain::Block>,
    /// Where in the region the register of each stripe is.
    registers: Vec<Range<usize>>,
}

/// CRC-32C of words.
pub(crate) fn sum(words: impl IntoIterator<Item = u64>) -> u32 {
    words.into_iter().fold(0, |sum, word| crc::append(sum, &word.to_le_bytes()))
}

/// Takes all traces away, each when it is due. Returns whether some stay longer than `within`.
pub(crate) fn traces_stay(grace: &Grace, reap: impl Fn(), within: Duration) -> bool {
    let clock = grace.clock();
    let give_up_ns = clock.now_ns() + within.as_nanos() as u64;
    loop {
        reap();
        let Some(wait) = grace.until_next() else { return false };
        let due_ns = clock.now_ns() + wait.as_nanos() as u64;
        if due_ns > give_up_ns {
            return true;
        }
        clock.sleep_until(due_ns);
    }
}

/// Writes a handover. `publish` then says that the server has stopped.
pub(crate) fn write_down(
    region: &Region,
    geometry: &Geometry,
    words: &[u64],
    publish: impl Fn(),
) -> Result<(), NotHandedOver> {
    let memory = region.behind(handover_offset(geometry), words.len() as u64 * WORD as u64)?;
    let write = |_: &mut ()| (0..).zip(words).for_each(|(n, &word)| memory.store(n, word));
    // A killed server's stores end where its program did. So no fence of the CPU is needed.
    in_order(Rule::StopLast, (), write, |_| publish());
    Ok(())
}

/// Whether no undo line names a slot.
pub(crate) fn has_no_undo(region: &Region, geometry: &Geometry) -> bool {
    (0..UNDO_LINES).all(|line| region.load(line_word(geometry.shape(), line)) == 0)
}

impl Homes {
    /// The words of a handover. `of` is the server's incarnation, or the number of a segment's memory.
    pub fn handover(&self, of: u64) -> Vec<u64> {
        let blocks = self.blocks.free();
        let registers = self.slots.each_stripe(|_, stripe| {
            stripe.read_left(self.region());
            let all = stripe.all_displaced().into_iter();
            all.flat_map(|(home, bit, slot)| [slot.0, home << 8 | u64::from(bit.trailing_zeros())])
                .collect::<Vec<_>>()
        });
        let head = [of, self.counters.keys(), registers.len() as u64, blocks.len() as u64];
        let lists = blocks.iter().map(|block| u64::from(block.0)).chain(registers.iter().map(|register| {
            (register.len() as u64 / ENTRY_WORDS as u64) << 32 | u64::from(sum(register.iter().copied()))
        }));
        let lists: Vec<u64> = lists.collect();
        let covered = std::iter::once(self.geometry().generation()).chain(head).chain(lists.iter().copied());
        let all = head.into_iter().chain([sum(covered).into()]).chain(lists.iter().copied());
        all.chain(registers.into_iter().flatten()).collect()
    }

    /// Finds the handover `of` this, if it is whole, from this word of the region on.
    pub fn find_handover(&self, first: u64, of: u64, cores: Cores) -> Option<Handover> {
        let words = self.region().bytes() / WORD as u64;
        let load = |word: u64| self.region().load((first + word) as usize);
        let room = words.checked_sub(first).filter(|&room| room > HEAD)?;
        let [is_of, keys, stripes, blocks] = std::array::from_fn(|n| load(n as u64));
        let lists = HEAD.checked_add(blocks)?.checked_add(stripes)?;
        if is_of != of || stripes != self.slots.stripe_count() as u64 || lists > room {
            return None;
        }
        let covered = (0..HEAD - 1).chain(HEAD..lists).map(load);
        let is_whole =
            || sum(std::iter::once(self.geometry().generation()).chain(covered)) == load(HEAD - 1) as u32;
        let ever_used = self.blocks_left();
        let free: Vec<_> = (HEAD..HEAD + blocks).map(load).collect();
        let are_used = ever_used <= self.geometry().overflow_blocks() && free.iter().all(|&n| n < ever_used);
        if !kept(Rule::HandoverCheck, || are_used && is_whole()) {
            return None;
        }
        let mut at = lists;
        let mut sums = Vec::with_capacity(stripes as usize);
        for stripe in HEAD + blocks..lists {
            let (entries, sum) = (load(stripe) >> 32, load(stripe) as u32);
            let end = at + entries * ENTRY_WORDS as u64;
            sums.push(((first + at) as usize..(first + end) as usize, sum));
            at = end;
        }
        if at > room {
            return None;
        }
        let check = |mut stripes: Range<u64>| {
            stripes.all(|number| {
                let (register, sum) = &sums[number as usize];
                kept(Rule::HandoverCheck, || self.is_register(number as usize, register.clone(), *sum))
            })
        };
        let are_whole = cores.split(0..stripes, PIECE, check, |_| {});
        are_whole.into_iter().all(|is_whole| is_whole).then(|| Handover {
            keys,
            free: free.into_iter().map(|number| chain::Block(number as u32)).collect(),
            registers: sums.into_iter().map(|(register, _)| register).collect(),
        })
    }

    /// How many blocks have been used: those with lower numbers. In a table that grows, all have memory behind them.
    fn blocks_left(&self) -> u64 {
        if self.geometry().grows() {
            self.geometry().overflow_blocks()
        } else {
            self.region().load(BLOCKS_WORD)
        }
    }

    /// Whether these words are the register of this stripe.
    fn is_register(&self, stripe: usize, words: Range<usize>, expected: u32) -> bool {
        let is_good = |home: u64, displaced: Displaced| {
            let in_table = |slot: SlotIx| slot.0 < self.geometry().slots();
            home < self.geometry().homes()
                && self.slots.stripe_of(self.geometry().window(home).first) == stripe
                && matches!(displaced.place, DisplacedAt::At(slot) if in_table(slot))
        };
        sum(words.clone().map(|word| self.region().load(word))) == expected
            && entries_in(self.region(), words).all(|(home, displaced)| is_good(home, displaced))
    }

    /// Starts with what another server has handed over.
    pub fn take_handover(&self, handover: Handover) -> u64 {
        let Handover { keys, free, registers } = handover;
        let mut registers = registers.into_iter();
        self.slots.each_stripe(|_, stripe| stripe.leave_unread(registers.next().unwrap_or_default()));
        self.blocks.take_over(self.blocks_left(), free);
        if cfg!(debug_assertions) && self.geometry().overflow_blocks() > 0 {
            for home in 0..self.geometry().homes() {
                let heads = self.chain_heads(self.geometry().window(home).first).skip(1);
                heads
                    .filter_map(|head| chain::block_of(self.geometry(), head))
                    .for_each(|block| self.own(block, home));
            }
        }
        self.counters.found(keys);
        keys
    }

    /// Notes, for assertions, the home of a block that is in use.
    fn own(&self, block: chain::Block, home: u64) {
        if self.slots.owner(block).is_none() {
            self.slots.set_owner(block, Some(home));
        }
    }
}

/// Why a server that stopped has handed nothing over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHandedOver {
    #[error("traces for readers under way stay longer than {0:?}")]
    Traces(Duration),
    #[error("there is no memory for it")]
    NoMemory(#[from] RegionError),
}
