//! A split or merge, from the first entry of the directory that it writes to the last.

use super::Growth;
use super::carry::{Carried, carry, has_come};
use super::directory::{Directory, entry_word};
use super::live::UnusedMemory;
use super::pace::{GIVE_UP_AT, MERGE_AT, SHRINK_TO, SPLIT_AT};
use super::pairs::{Driven, NoSplit, Pair, PairState, Pairs, RoundEnd, Toward};
use crate::base::sync::{lock, try_lock};
use crate::faults::{Rule, disobey, kept, obey};
use crate::index::home_set::HomeSet;
use crate::index::segment::{Segment, design_percents};
use crate::index::share::{KeyShare, PairRole};
use crate::index::slots::Locked;
use crate::layout::segment::{self, DirectoryEntry, HomeState, Named, Pending, directory_bits_max};
use crossbeam_epoch::{self as epoch, Guard};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Growth {
    pub(super) fn pair_of(&self, segment: &Segment) -> Option<Arc<Pair>> {
        lock(&self.pairs).of(segment.memory()).cloned()
    }

    /// This many hundredths of a segment's design load, in keys.
    pub(super) fn share_of_design(&self, hundredths: u64) -> u64 {
        design_percents(&self.geometry) * hundredths / 10_000
    }

    /// The number of keys at which a segment is split.
    pub(super) fn split_at(&self, share: KeyShare) -> u64 {
        self.spread(SPLIT_AT, share.prefix, share.depth)
    }

    /// The number of keys, of both, below which two segments of this depth are merged.
    pub(super) fn merge_at(&self, share: KeyShare) -> u64 {
        self.spread(MERGE_AT, share.prefix & segment::low(share.depth - 1), share.depth - 1)
    }

    /// A number of keys out of a range, which is in hundredths of the design load. A higher prefix gives a higher
    /// number.
    fn spread(&self, range: std::ops::Range<u64>, prefix: u32, depth: u32) -> u64 {
        let (low, high) = (self.share_of_design(range.start), self.share_of_design(range.end));
        low + (((high - low) * u64::from(prefix)) >> depth)
    }

    /// Begins to split a segment.
    pub(super) fn begin_split(&self, parent: &Segment) -> Result<(), NoSplit> {
        let share = parent.share().get();
        if share.role != PairRole::Whole || !parent.homes().are_settled() {
            return Err(NoSplit::Busy);
        }
        if share.depth >= directory_bits_max(&self.geometry) {
            return Err(NoSplit::Limit);
        }
        let of_child = KeyShare {
            prefix: share.prefix | 1 << share.depth,
            depth: share.depth + 1,
            role: PairRole::Child,
        };
        let child = self.child_for(parent, share, of_child)?;
        child.share().begin(of_child, true);
        let named = child.named();
        let unused = |child, no_split| {
            lock(&self.memory).keep(UnusedMemory::of(child));
            Err(no_split)
        };
        let mut pairs = lock(&self.pairs);
        // Another thread may have been quicker.
        if parent.share().get() != share
            || pairs.of(parent.memory()).is_some()
            || !parent.homes().are_settled()
        {
            return unused(child, NoSplit::Busy);
        }
        let mut directory = lock(&self.directory);
        // E1
        match directory.deepen(share.depth + 1) {
            Ok(true) => {}
            Ok(false) => return unused(child, NoSplit::Limit),
            Err(why) => return unused(child, self.refused(why)),
        }
        self.live.insert(child);
        parent.share().begin(KeyShare { role: PairRole::Parent, ..share }, false);
        // E2: every entry names the child before a key goes there.
        let pending = Pending::Child(named);
        directory.set(
            share.prefix,
            share.depth,
            DirectoryEntry { segment: parent.named(), depth: share.depth, pending },
        );
        self.insert_pair(&mut pairs, parent.memory(), named.memory, Toward::Child);
        disobey(Rule::DirectoryLast, || self.name_both(&mut directory, parent, named, share));
        Ok(())
    }

    /// A segment for the child of a split: one that was made ahead, or a new one.
    fn child_for(&self, parent: &Segment, share: KeyShare, of_child: KeyShare) -> Result<Segment, NoSplit> {
        if let Some(made) = self.stock.take(of_child.depth) {
            return Ok(made);
        }
        let Some(making) = try_lock(&self.making) else { return Err(NoSplit::Making) };
        let made = self.make_child(parent, share, of_child);
        drop(making);
        // Another failure is no news: who waits would try at once, fail, and tell it again.
        made.inspect(|_| self.news().tell())
    }

    /// Makes a segment for the child of a split. This thread is the one that makes segments.
    fn make_child(&self, parent: &Segment, share: KeyShare, of_child: KeyShare) -> Result<Segment, NoSplit> {
        if parent.share().get() != share {
            return Err(NoSplit::Busy);
        }
        if let Some(made) = self.stock.take(of_child.depth) {
            return Ok(made);
        }
        let (has_any, is_coming) = {
            let memory = lock(&self.memory);
            (memory.has_any(self.geometry.segments_max()), memory.coming > 0)
        };
        if !has_any {
            // A segment of another depth has memory for this one.
            let Some(other) = self.stock.take_any() else {
                if !is_coming {
                    return Err(NoSplit::Bound);
                }
                epoch::pin().flush();
                return Err(NoSplit::Coming);
            };
            lock(&self.memory).keep(UnusedMemory::of(other));
        }
        self.make(of_child).map_err(|why| self.refused(why))
    }

    /// Begins to merge a segment and its sibling, if both have fewer keys than this together.
    pub(super) fn begin_merge(&self, one: &Segment, guard: &Guard, keys_max: u64) -> bool {
        let share = one.share().get();
        let Some(depth) = share.depth.checked_sub(1) else { return false };
        let sibling = share.prefix ^ 1 << depth;
        let entry = entry_word(&self.region, &self.geometry, sibling);
        let Some(other) = self.live.get(segment::memory(entry), guard) else { return false };
        let (parent, child) = if share.prefix >> depth & 1 == 0 { (one, other) } else { (other, one) };
        let mut pairs = lock(&self.pairs);
        let are_whole = [(one, share.prefix), (other, sibling)].into_iter().all(|(segment, prefix)| {
            segment.share().get() == KeyShare { prefix, depth: share.depth, role: PairRole::Whole }
                && segment.homes().are_settled()
                && pairs.of(segment.memory()).is_none()
        });
        if !are_whole || one.len() + other.len() >= keys_max {
            return false;
        }
        child.share().begin(KeyShare { role: PairRole::Child, ..child.share().get() }, false);
        parent.share().begin(KeyShare { depth, role: PairRole::Parent, ..parent.share().get() }, true);
        let pending = Pending::Parent(parent.named());
        let entry = DirectoryEntry { segment: child.named(), depth: share.depth, pending };
        lock(&self.directory).set(child.share().get().prefix, share.depth, entry);
        self.insert_pair(&mut pairs, parent.memory(), child.memory(), Toward::Parent);
        true
    }

    /// Gives up a merge, because no key fits into its parent any more.
    pub(super) fn give_up_merge(&self, pair: &Pair, full: &Segment) {
        if full.memory() == pair.parent {
            self.turn_back(&mut pair.state());
        }
    }

    pub(super) fn turn_back(&self, state: &mut PairState) {
        if state.toward() == Toward::Parent && !state.has_ended() {
            state.restart(Toward::Back);
            self.done.given_up.fetch_add(1, Relaxed);
        }
    }

    /// Begins every merge that leaves a segment with at most [`SHRINK_TO`]. Returns how many.
    pub fn shrink(&self) -> u64 {
        let guard = epoch::pin();
        let keys_max = self.share_of_design(SHRINK_TO);
        self.live.all(&guard).filter(|segment| self.begin_merge(segment, &guard, keys_max)).count() as u64
    }

    /// Drives a pair by up to this number of homes.
    pub(super) fn drive(&self, pair: &Pair, homes: u32, guard: &Guard) -> Driven {
        let Some(mut state) = pair.try_state() else { return Driven::Taken };
        // L9: the segments may be in another pair by now.
        if !kept(Rule::PairEnds, || !state.has_ended()) {
            return Driven::Ended;
        }
        let [Some(parent), Some(child)] =
            [pair.parent, pair.child].map(|memory| self.live.get(memory, guard))
        else {
            return Driven::Ended;
        };
        if pair.rests_until_ns() > 0 {
            if self.grace.clock().now_ns() < pair.rests_until_ns() {
                return Driven::Waits;
            }
            pair.rest_until(0);
        }
        let mut left = homes;
        while left > 0 {
            if state.toward() == Toward::Parent && parent.len() > self.share_of_design(GIVE_UP_AT) {
                self.turn_back(&mut state);
            }
            let to_child = state.toward() != Toward::Parent;
            let still_here = |homes| {
                let away = child.share().away_among(homes);
                if to_child { away } else { homes.without(away) }
            };
            let Some(homes) = state.next_homes(&self.geometry, left, still_here) else {
                match state.end_of_round() {
                    RoundEnd::AllGone => return self.finish(parent, child, &mut state, guard),
                    RoundEnd::SomeWent if !self.pace.waits_for_ghosts => continue,
                    RoundEnd::NoneWent if !self.pace.waits_for_ghosts => {}
                    RoundEnd::SomeWent | RoundEnd::NoneWent => {
                        pair.rest_until(self.grace.due_ns(Rule::GhostGrace));
                    }
                }
                return Driven::Waits;
            };
            left = left.saturating_sub(homes.len());
            let carried = match state.toward() {
                Toward::Child => self.split_homes(parent, child, homes, false),
                Toward::Parent => self.merge_homes(parent, child, homes),
                Toward::Back => self.split_homes(parent, child, homes, true),
            };
            self.done.moved.fetch_add(carried.keys, Relaxed);
            if !carried.gone.is_empty() {
                state.went();
            }
            if state.toward() == Toward::Parent && !carried.no_room.is_empty() {
                self.turn_back(&mut state);
            } else {
                state.failed(homes.without(carried.gone));
            }
        }
        Driven::On
    }

    /// E3: the keys of homes that belong to the child go there. E6: `back`, if they had been merged.
    fn split_homes(&self, parent: &Segment, child: &Segment, homes: HomeSet, back: bool) -> Carried {
        let depth = parent.share().get().depth;
        let raised = HomeState { depth: depth + 1, merged: false };
        let raise = |locked: &mut Locked<'_>, home| parent.homes().set_header(locked, home, raised);
        carry(
            parent,
            child,
            homes,
            |key| key.first().directory() >> depth & 1 == 1,
            Rule::DepthFirst,
            |locked, home| {
                if !back {
                    return raise(locked, home);
                }
                parent.homes().settled(locked, home);
                obey(Rule::DepthBack, || raise(locked, home));
            },
            |gone| {
                has_come(child, parent, gone);
                if back {
                    child.homes().settle_later(gone, Rule::MarkStays);
                }
            },
        )
    }

    /// E4: the keys of homes go into the parent.
    fn merge_homes(&self, parent: &Segment, child: &Segment, homes: HomeSet) -> Carried {
        let marked = HomeState { depth: child.share().get().depth, merged: true };
        carry(
            child,
            parent,
            homes,
            |_| true,
            Rule::MarkFirst,
            |locked, home| child.homes().set_header(locked, home, marked),
            |gone| {
                has_come(parent, child, gone);
                // E5
                parent.homes().settle_later(gone, Rule::DepthStays);
            },
        )
    }

    /// Ends a split or merge: writes the final entries of the directory.
    fn finish(&self, parent: &Segment, child: &Segment, state: &mut PairState, guard: &Guard) -> Driven {
        let toward = state.toward();
        // E6: until then a client may see a home marked whose keys have gone back.
        if toward == Toward::Back && !child.homes().are_settled() {
            return Driven::Waits;
        }
        // E2: every home has gone.
        let (homes, is_merge) = (self.geometry.homes(), toward == Toward::Parent);
        if child.share().homes_away() != if is_merge { homes } else { 0 } {
            state.restart(toward);
            return Driven::On;
        }
        let (share, named) = (parent.share().get(), child.named());
        let mut pairs = lock(&self.pairs);
        let mut directory = lock(&self.directory);
        if toward == Toward::Parent {
            // E2
            let entry =
                DirectoryEntry { segment: parent.named(), depth: share.depth, pending: Pending::Nothing };
            directory.set(share.prefix, share.depth, entry);
            child.share().set(KeyShare { role: PairRole::Gone, ..child.share().get() });
            parent.share().set(KeyShare { role: PairRole::Whole, ..share });
            self.done.merges.fetch_add(1, Relaxed);
        } else {
            // E2
            self.name_both(&mut directory, parent, named, share);
            child.share().set(KeyShare { role: PairRole::Whole, ..child.share().get() });
            parent.share().set(KeyShare { depth: share.depth + 1, role: PairRole::Whole, ..share });
            self.done.splits.fetch_add(u64::from(toward == Toward::Child), Relaxed);
        }
        pairs.remove(parent.memory(), child.memory());
        state.end();
        self.under_way.store(pairs.len(), Relaxed);
        drop((pairs, directory));
        if toward == Toward::Parent {
            self.retire(child, guard);
        }
        self.news().tell();
        Driven::Ended
    }

    pub(super) fn insert_pair(&self, pairs: &mut Pairs, parent: u32, child: u32, toward: Toward) {
        pairs.add(parent, child, toward);
        self.all_rest_until_ns.store(0, Relaxed);
        self.under_way.store(pairs.len(), Relaxed);
    }

    /// Writes entries that name parent and child for their keys. `share` is the parent's.
    fn name_both(&self, directory: &mut Directory, parent: &Segment, child: Named, share: KeyShare) {
        for (prefix, segment) in [(share.prefix | 1 << share.depth, child), (share.prefix, parent.named())] {
            let depth = share.depth + 1;
            directory.set(prefix, depth, DirectoryEntry { segment, depth, pending: Pending::Nothing });
        }
    }
}
