//! Which segment has a key; and changes, in the segment that has it.

use super::Growth;
use super::directory::entry_word;
use super::pace::TRIES_MAX;
use crate::base::sync::{lock, yield_now};
use crate::faults::{Rule, broken};
use crate::index::change::{Made, What};
use crate::index::homes::REAP_MAX;
use crate::index::seams::{Between, Changed, Nobody};
use crate::index::segment::{Segment, Stop};
use crate::index::share::{KeyShare, PairRole};
use crate::index::waits::ChangeWaits;
use crate::layout::hash::{First, Hashed};
use crate::layout::segment::{self};
use crate::layout::slot::Stored;
use crate::outcome::PutError;
use crossbeam_epoch::{self as epoch, Guard};
use std::time::Duration;

impl Growth {
    /// The segment with this directory hash and its share. Of a pair, the parent with its share, and the child.
    pub fn pair_at<'g>(
        &'g self,
        directory: u32,
        guard: &'g Guard,
    ) -> (&'g Segment, KeyShare, Option<&'g Segment>) {
        // Shares and entries change under this lock.
        let pairs = lock(&self.pairs);
        let has = |segment: &&Segment| {
            let share = segment.share().get();
            share.role != PairRole::Gone && share.covers(directory)
        };
        let named = segment::memory(entry_word(&self.region, &self.geometry, directory));
        let named = self.live.get(named, guard).filter(has);
        // The region may be damaged.
        let segment = named.or_else(|| self.live.all(guard).find(has)).expect("some segment has each key");
        let pair = pairs.of(segment.memory()).map(|pair| [pair.parent, pair.child]);
        match pair.map(|both| both.map(|memory| self.live.get(memory, guard))) {
            Some([Some(parent), Some(child)]) => (parent, parent.share().get(), Some(child)),
            _ => (segment, segment.share().get(), None),
        }
    }

    /// The segment that has a key now. It may have left when the segment is locked.
    #[inline(always)]
    pub(super) fn find<'g>(&'g self, key: &Hashed<'_>, guard: &'g Guard) -> Option<&'g Segment> {
        let entry = entry_word(&self.region, &self.geometry, key.first().directory());
        // (An entry that is stored too early names no pair, and the server must go on.)
        if segment::is_paired(entry) || broken(Rule::DirectoryLast) {
            return self.find_in_pair(entry, key, guard);
        }
        self.live.get(segment::memory(entry), guard)
    }

    /// The segment of a pair that has a key now, by an entry of that pair.
    #[inline(never)]
    fn find_in_pair<'g>(&'g self, entry: u64, key: &Hashed<'_>, guard: &'g Guard) -> Option<&'g Segment> {
        let has = |segment: &&Segment| segment.share().has(key.first().directory(), key.home());
        let of = |memory| self.live.get(memory, guard).filter(has);
        of(segment::memory(entry)).or_else(|| of(segment::other_memory(entry)))
    }

    /// Acts in the segment that has the key, wherever the key goes meanwhile. `done` is told which segment that was.
    #[inline(always)]
    fn in_segment<B: Between, R>(
        &self,
        key: &Hashed<'_>,
        (between, waits): (B, &ChangeWaits),
        mut act: impl FnMut(&Segment) -> Result<R, Stop>,
        done: impl Fn(&Segment, &R, &Guard),
    ) -> Result<R, PutError> {
        // Mostly the first try is the last one.
        let guard = epoch::pin();
        let first = match self.find(key, &guard) {
            None => Stop::Elsewhere,
            Some(segment) => match act(segment) {
                Err(stop) => stop,
                Ok(result) => {
                    done(segment, &result, &guard);
                    return Ok(result);
                }
            },
        };
        drop(guard);
        self.in_segment_again(key, (between, waits), first, act, done)
    }

    /// Acts after a failed first try, until the change is done, or refused, or has to wait.
    #[cold]
    #[inline(never)]
    fn in_segment_again<B: Between, R>(
        &self,
        key: &Hashed<'_>,
        (between, waits): (B, &ChangeWaits),
        first: Stop,
        mut act: impl FnMut(&Segment) -> Result<R, Stop>,
        done: impl Fn(&Segment, &R, &Guard),
    ) -> Result<R, PutError> {
        let mut first = Some(first);
        let mut refused = None;
        let mut tried = 0;
        // A change that was decided and has waited is made, however long that takes.
        while tried < TRIES_MAX || between.was_decided() {
            give_way(tried);
            tried += 1;
            let guard = epoch::pin();
            let Some(segment) = self.find(key, &guard) else { continue };
            match first.take().map_or_else(|| act(segment), Err) {
                Ok(result) => {
                    done(segment, &result, &guard);
                    return Ok(result);
                }
                Err(Stop::Elsewhere) => {}
                Err(Stop::Refused(error)) => return Err(refused.unwrap_or(error)),
                Err(Stop::NoRoom) => {
                    if let Some(error) = refused {
                        return Err(error);
                    }
                    let Some(no_split) = self.make_room(segment, &guard) else { continue };
                    let step = waits.with(|state| {
                        self.finds_no_room(&mut state.room, segment, *key, &no_split);
                        self.wait_for_room(no_split, &mut state.room)
                    });
                    drop(guard);
                    match step {
                        Ok(wait) => {
                            waits.begin(wait);
                            return Err(PutError::Busy { rounds: tried });
                        }
                        Err(error) if broken(Rule::LastLook) => return Err(error),
                        // L6: the put looks a last time before it is refused.
                        Err(error) => (refused, tried) = (Some(error), 0),
                    }
                }
            }
        }
        Err(refused.unwrap_or(PutError::Busy { rounds: TRIES_MAX }))
    }

    /// Makes a change, in the segment that has the key.
    pub fn change<W: What, B: Between>(
        &self,
        key: &[u8],
        what: W,
        new: Stored<'_>,
        between: B,
        waits: &ChangeWaits,
    ) -> Made<W, PutError> {
        what.check(&self.geometry, key, &new)?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        self.in_segment(
            &key,
            (between, waits),
            |segment| what.make(segment, &key, &new, between),
            |segment, outcome, guard| match W::changed(outcome) {
                Some(Changed::Came) => self.after_insert(segment, guard, waits),
                Some(Changed::Left) => self.after_remove(segment, guard),
                Some(Changed::Replaced) | None => {}
            },
        )
    }

    /// Looks at the keys with this hash, in the segment that has them. `None` if they go from segment to segment too
    /// often.
    pub fn look_at<R>(&self, hash: First, look: impl FnMut(&Segment) -> Result<R, Stop>) -> Option<R> {
        let any = self.geometry.hashed_to(&[], hash);
        self.in_segment(&any, (Nobody, &ChangeWaits::default()), look, |_, _, _| {}).ok()
    }

    /// Acts in the segment that has the keys with this hash, or in both segments of a pair.
    pub fn with_segment_of<R>(&self, hash: First, act: impl Fn(&Segment) -> Option<R>) -> Option<R> {
        let guard = epoch::pin();
        let (segment, _, child) = self.pair_at(hash.directory(), &guard);
        act(segment).or_else(|| child.and_then(&act))
    }
}

/// Lets another thread go on that may have been stopped in the middle of a split or merge. The keys of that home are
/// not to be found meanwhile. The pauses get longer: some 10 s for all of [`TRIES_MAX`].
#[inline]
pub(super) fn give_way(tried: u32) {
    /// The model checker would try every number of tries.
    const AT_ONCE: u32 = if cfg!(loom) { 1 } else { 16 };
    match tried {
        0..AT_ONCE => {}
        AT_ONCE..1_000 => yield_now(),
        _ => std::thread::sleep(Duration::from_millis(1)),
    }
}
