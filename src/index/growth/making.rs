//! Makes segments, and gives their memory back.

use super::Growth;
use super::pairs::NoSplit;
use super::totals::{Refused, add_counts};
use crate::base::sync::lock;
use crate::faults::{Rule, broken, by_rule, disobey};
#[cfg(feature = "verbs")]
use crate::index::budget::Registrar;
use crate::index::segment::Segment;
use crate::index::share::KeyShare;
use crate::layout::control::INCARNATIONS_WORD;
use crate::layout::segment::{HomeState, Named};
use crate::region::RegionError;
use crossbeam_epoch::Guard;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::Thread;

impl Growth {
    /// From now on, this registrar registers memory before it is used.
    #[cfg(feature = "verbs")]
    pub fn register_with(&self, registrar: Weak<dyn Registrar>) {
        lock(&self.directory).tell_no_keys();
        if let Some(extents) = &self.extents {
            extents.register_with(registrar.clone());
        }
        self.registrar.set(registrar).expect("a server starts once");
    }

    /// The blocks of the heap that have been used.
    #[cfg(feature = "verbs")]
    pub fn blocks_used(&self) -> Vec<u64> {
        self.extents.as_ref().map_or_else(Vec::new, |extents| extents.blocks_used())
    }

    /// Tells clients the remote key of a chunk.
    #[cfg(feature = "verbs")]
    pub fn tell_key(&self, chunk: u32, remote_key: u32) -> Result<(), RegionError> {
        lock(&self.directory).tell_key(chunk, remote_key)
    }

    /// Takes memory and makes an empty segment in it, which nobody reads yet.
    pub(super) fn make(&self, share: KeyShare) -> Result<Segment, RegionError> {
        let memory = lock(&self.memory).take(self.geometry.segments_max()).ok_or(RegionError::NoRoom {
            need: self.segment_bytes(),
            left: 0,
            of: "the most memory that this table may take".into(),
        })?;
        self.make_in(memory, share).inspect_err(|_| lock(&self.memory).put_bare(memory))
    }

    fn make_in(&self, memory: u32, share: KeyShare) -> Result<Segment, RegionError> {
        self.make_huge(self.bytes_of(memory));
        if let Some(registrar) = self.registrar.get().and_then(Weak::upgrade) {
            // E0
            registrar.before_use(memory)?;
        }
        // E7: the CRC of every slot covers which use of the memory this is.
        self.region.add(INCARNATIONS_WORD);
        let incarnation = by_rule(Rule::SegmentUse, self.region.load(INCARNATIONS_WORD) as u32, 1);
        let segment = self.part(Named { memory, incarnation }, share);
        let header = HomeState { depth: share.depth, merged: false };
        segment.slots().make_again(header.in_aux(0))?;
        Ok(segment)
    }

    pub(super) fn bytes_of(&self, memory: u32) -> Range<u64> {
        let first = self.geometry.slot_offset(self.geometry.segment_first(memory));
        first..first + self.segment_bytes()
    }

    /// Counts that the system has refused memory. Logs it at most every ten seconds.
    #[cold]
    pub(super) fn refused(&self, why: RegionError) -> NoSplit {
        const APART_NS: u64 = 10_000_000_000;
        let Refused { times, last_ns, told_ns } = &self.done.refused;
        let now_ns = self.grace.clock().now_ns().max(1);
        times.fetch_add(1, Relaxed);
        last_ns.store(now_ns, Relaxed);
        let told = told_ns.load(Relaxed);
        if (told == 0 || now_ns.saturating_sub(told) >= APART_NS)
            && told_ns.compare_exchange(told, now_ns, Relaxed, Relaxed).is_ok()
        {
            let times = times.load(Relaxed);
            tracing::error!(%why, times, "the table cannot grow: no memory for another segment");
        }
        NoSplit::Memory
    }

    /// Whether memory was refused a moment ago. To ask the system again would take each put a millisecond.
    pub(super) fn was_refused(&self) -> bool {
        const AGAIN_NS: u64 = 10_000_000;
        let last_ns = self.done.refused.last_ns.load(Relaxed);
        last_ns != 0 && self.grace.clock().now_ns().saturating_sub(last_ns) < AGAIN_NS
    }

    pub fn part(&self, named: Named, share: KeyShare) -> Segment {
        let geometry = self.geometry.segment(named.memory, named.incarnation);
        let (region, grace, undo) = (self.region.alias(), self.grace.clone(), self.undo.clone());
        Segment::part(region, geometry, grace, undo, named.memory, share, self.extents.clone())
            .with_observers(&self.observers)
    }

    /// Takes a segment out that was merged away. Its memory may be used again when no thread of this server uses the
    /// segment any more (E7).
    pub(super) fn retire(&self, segment: &Segment, guard: &Guard) {
        let memory = segment.memory();
        let (pieces, maker) = (Arc::clone(&self.memory), self.stock.maker());
        let news = Arc::clone(self.budget.news());
        lock(&pieces).coming += 1;
        // D9: whoever sums the counts has them once: either of the segment, or of the gone ones.
        let mut gone = lock(&self.done.gone);
        add_counts(&mut gone, &segment.counts());
        let gone = (!broken(Rule::CountedOnce)).then_some(gone);
        // Other threads may go on.
        disobey(Rule::CountedOnce, || {
            self.region.load(0);
        });
        // Threads that still use the segment may be about to take a trace away in it.
        self.live.remove(memory, guard, move |memory| {
            lock(&pieces).come_back(memory);
            maker.inspect(Thread::unpark);
            news.tell();
        });
        drop(gone);
        guard.flush();
    }

    /// Gives memory that no segment needs soon back to the system. That takes long, so no change does it. Returns
    /// whether there was any.
    pub(super) fn give_surplus_back(&self) -> bool {
        let Some(memory) = lock(&self.memory).take_surplus() else { return false };
        let bytes = self.region.give_back(self.bytes_of(memory));
        lock(&self.memory).returned(memory, bytes);
        bytes.is_some()
    }

    /// The numbers of the memories that no segment has.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub(super) fn memory_left(&self) -> Vec<u32> {
        let memory = lock(&self.memory);
        let never = memory.used..self.geometry.segments_max() as u32;
        memory.free.iter().chain(&memory.bare).copied().chain(never).collect()
    }
}
