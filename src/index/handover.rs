//! The handover: a server that stops leaves behind the table what the next one needs to know of it
//! (T6, T7). So the next one need not look at every slot. `docs/FORMAT.md` has its bytes.
//!
//! A register is read when its stripe is first used.

use super::*;
use crate::cores::Cores;
use crate::layout::control::BLOCKS_WORD;
use crate::layout::crc;
use crate::layout::undo::{UNDO_LINES, line_word};
use crate::layout::{PAGE, WORD};
use std::ops::Range;
use std::time::Duration;

/// Words before the list of blocks.
const HEAD: u64 = 5;
/// Words of a displaced key.
const ENTRY: u64 = 2;
/// Stripes that a thread checks before it takes the next ones.
const PIECE: u64 = 64;

/// The byte behind the table at which a handover begins.
fn offset(geometry: &Geometry) -> u64 {
    geometry.region_bytes().next_multiple_of(PAGE as u64)
}

/// The byte behind the longest handover of a table.
#[cfg(feature = "sim")]
pub(crate) fn end(geometry: &Geometry) -> u64 {
    let stripes = Stripes::new(geometry.main_slots()).len() as u64;
    let words = HEAD + geometry.overflow_blocks() + stripes + ENTRY * geometry.slots();
    offset(geometry) + words * WORD as u64
}

/// What a stopped server left of a table at rest.
#[derive(Debug)]
pub(super) struct Handover {
    keys: u64,
    free: Vec<chain::Block>,
    /// Where in the region the register of each stripe is.
    registers: Vec<Range<usize>>,
}

/// CRC-32C of words.
fn sum(words: impl IntoIterator<Item = u64>) -> u32 {
    words.into_iter().fold(0, |sum, word| crc::append(sum, &word.to_le_bytes()))
}

impl Segment {
    /// T6: waits until no trace is left, writes down what the next server needs to know, and says in
    /// the state word that this server has stopped. Returns whether it did: not if traces stay longer
    /// than `within`, or there is no memory for it. Then the next server looks at every slot.
    ///
    /// Nobody may change the table meanwhile or later.
    pub(crate) fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        if obey(Rule::StopAtRest, || self.traces_stay(within)) {
            return Err(NotHandedOver::Traces(within));
        }
        let blocks = self.blocks.free();
        let registers = self.stripes.each(|_, stripe| {
            self.read_register(stripe);
            let all = stripe.all_displaced().into_iter();
            all.flat_map(|(home, bit, slot)| [slot.0, home << 8 | u64::from(bit.trailing_zeros())])
                .collect::<Vec<_>>()
        });
        let head = [self.incarnation, self.len(), registers.len() as u64, blocks.len() as u64];
        let lists = blocks.iter().map(|block| u64::from(block.0)).chain(registers.iter().map(|register| {
            (register.len() as u64 / ENTRY) << 32 | u64::from(sum(register.iter().copied()))
        }));
        let lists: Vec<u64> = lists.collect();
        let covered = std::iter::once(self.geometry.generation()).chain(head).chain(lists.iter().copied());
        let all = head.into_iter().chain([sum(covered).into()]).chain(lists.iter().copied());
        let all: Vec<u64> = all.chain(registers.into_iter().flatten()).collect();
        let memory = self.region.behind(offset(&self.geometry), all.len() as u64 * WORD as u64)?;
        let write = |_: &mut &Segment| (0..).zip(&all).for_each(|(n, &word)| memory.store(n, word));
        // A killed server's stores end where its program did. So no fence of the CPU is needed.
        in_order(Rule::StopLast, self, write, |index| index.publish_state(Phase::Stopped));
        Ok(())
    }

    /// Takes all traces away, each when it is due. Returns whether some stay longer than this.
    fn traces_stay(&self, within: Duration) -> bool {
        let clock = self.grace.clock();
        let give_up_ns = clock.now_ns() + within.as_nanos() as u64;
        while let Some(wait) = self.tidy() {
            let due_ns = clock.now_ns() + wait.as_nanos() as u64;
            if due_ns > give_up_ns {
                return true;
            }
            clock.sleep_until(due_ns);
        }
        false
    }

    /// Finds the handover of the server that had the region before, if it is whole (T7).
    pub(super) fn handed_over(&self, cores: Cores) -> Option<Handover> {
        let mut lines = (0..UNDO_LINES).map(|line| line_word(self.geometry.shape(), line));
        if !kept(Rule::HandoverCheck, || lines.all(|line| self.region.load(line) == 0)) {
            return None;
        }
        let words = self.region.bytes() / WORD as u64;
        let first = offset(&self.geometry) / WORD as u64;
        let load = |word: u64| self.region.load((first + word) as usize);
        let room = words.checked_sub(first).filter(|&room| room > HEAD)?;
        let [incarnation, keys, stripes, blocks] = std::array::from_fn(|n| load(n as u64));
        let lists = HEAD.checked_add(blocks)?.checked_add(stripes)?;
        if incarnation.wrapping_add(1) != self.incarnation
            || stripes != self.stripes.len() as u64
            || lists > room
        {
            return None;
        }
        let covered = (0..HEAD - 1).chain(HEAD..lists).map(load);
        let is_whole =
            || sum(std::iter::once(self.geometry.generation()).chain(covered)) == load(HEAD - 1) as u32;
        let ever_used = self.region.load(BLOCKS_WORD);
        let free: Vec<_> = (HEAD..HEAD + blocks).map(load).collect();
        let are_used = ever_used <= self.geometry.overflow_blocks() && free.iter().all(|&n| n < ever_used);
        if !kept(Rule::HandoverCheck, || are_used && is_whole()) {
            return None;
        }
        let mut at = lists;
        let mut sums = Vec::with_capacity(stripes as usize);
        for stripe in HEAD + blocks..lists {
            let (entries, sum) = (load(stripe) >> 32, load(stripe) as u32);
            let end = at + entries * ENTRY;
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

    /// Whether these words are the register of this stripe.
    fn is_register(&self, stripe: usize, words: Range<usize>, expected: u32) -> bool {
        let is_good = |home: u64, displaced: Displaced| {
            let in_table = |slot: SlotIx| slot.0 < self.geometry.slots();
            home < self.geometry.homes()
                && self.stripes.of(self.geometry.window(home).first) == stripe
                && matches!(displaced.place, DisplacedAt::At(slot) if in_table(slot))
        };
        sum(words.clone().map(|word| self.region.load(word))) == expected
            && self.entries(words).all(|(home, displaced)| is_good(home, displaced))
    }

    /// The displaced keys in these words, with their homes.
    fn entries(&self, words: Range<usize>) -> impl Iterator<Item = (u64, Displaced)> {
        words.step_by(ENTRY as usize).map(|word| {
            let (slot, home) = (self.region.load(word), self.region.load(word + 1));
            (home >> 8, Displaced { bit: 1 << (home & 31), place: DisplacedAt::At(SlotIx(slot)) })
        })
    }

    /// Starts with what another server has handed over.
    pub(super) fn take_handover(&self, handover: Handover) -> u64 {
        let Handover { keys, free, registers } = handover;
        let mut registers = registers.into_iter();
        self.stripes.each(|_, stripe| stripe.unread = registers.next().unwrap_or_default());
        self.blocks.take_over(self.region.load(BLOCKS_WORD), free);
        if cfg!(debug_assertions) && self.geometry.overflow_blocks() > 0 {
            for home in 0..self.geometry.homes() {
                let heads = self.chain_heads(self.geometry.window(home).first).skip(1);
                heads
                    .filter_map(|head| chain::block_of(&self.geometry, head))
                    .for_each(|block| self.blocks.owned(block, home));
            }
        }
        self.counters.found.store(keys, Ordering::Relaxed);
        keys
    }

    /// The number of displaced keys in a stripe.
    pub(super) fn displaced_in(&self, stripe: &Stripe) -> usize {
        stripe.census().sum::<usize>() + stripe.unread.len() / ENTRY as usize
    }

    /// Reads what another server has left of a stripe's register, when the stripe is first used.
    #[cold]
    pub(super) fn read_register(&self, stripe: &mut Stripe) {
        let unread = std::mem::take(&mut stripe.unread);
        obey(Rule::HandoverRead, || {
            self.entries(unread).for_each(|(home, displaced)| stripe.add(home, displaced))
        });
    }
}

/// Why a server that stopped has handed nothing over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHandedOver {
    #[error("traces for readers under way stay longer than {0:?}")]
    Traces(Duration),
    #[error("a table that grows is not handed over")]
    Growing,
    #[error("there is no memory for it")]
    NoMemory(#[from] RegionError),
}
