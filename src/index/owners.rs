//! Owners of entries: which entries each has, and how all entries of one go at once (O).
//!
//! ```text
//! put      the owner is there ─ slot ─ its hash is noted                    puts are counted meanwhile
//! gone     no more puts ─ those under way end ─ its bit is set ─ it is told
//! tidy     hashes that were noted ─ its entries are removed ─ 2T ─ counters go up ─ its bit is cleared
//! ```
//!
//! A note of an entry is a hint, as its time is (`lives.rs`). The owner in its slot, under the key's lock, decides.
//! Notes of entries that have left go when the owner puts, and when the table is tidied. Of many notes, no more than
//! half are of such entries.
//!
//! Locks are taken in one order (L16): a key's lock, the turn of the feed, the lock of all owners, the lock of one
//! owner. The holder of a lock takes none that stands before it.

mod left;
mod sessions;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod tidy_tests;

pub(super) use left::LeftByOwner;

use super::whole::Table;
use crate::base::clock::Clock;
use crate::base::random;
use crate::base::sync::{Condvar, Mutex, MutexGuard, lock, try_lock, wait_until};
use crate::faults::{Rule, broken, by_rule, kept, obey, wait_ns};
use crate::layout::geometry::Geometry;
use crate::layout::hash::First;
use crate::layout::life::Life;
use crate::layout::owners::{MASK_WORDS, NOT_COMMITTED, OWNER_MAX, bit, time_in, with_time};
use crate::layout::slot::Key;
use crate::log::{InBatch, WaitsForDisk};
use crate::outcome::PutError;
use crate::region::Region;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long an owner of a snapshot may be away, because no session has said how long.
const ABSENT_FOR: Duration = Duration::from_secs(60);
/// Owners that one tidying works on.
const OWNERS_AT_ONCE: usize = 64;
/// With more hashes than this, an owner's old hashes are looked at when one is noted.
const HASHES_LOOKED_AT: usize = 1 << 10;
/// Old hashes that are looked at for each new one. So no more than half are of entries that have gone.
const LOOKS: usize = 2;
/// Time between two looks for owners that were away too long, while one is away.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The longest time between two looks that counts as awake.
const STEP_MAX: Duration = Duration::from_millis(200);

/// The owners of a table.
#[derive(Debug)]
pub(super) struct Owners(Arc<OwnersInCommon>);

#[derive(Debug)]
struct OwnersInCommon {
    /// The owners by number. The lock also guards the words of the region about owners.
    all: Mutex<FxHashMap<u16, Arc<OneOwner>>>,
    /// Owners that are away, or hidden.
    going: Mutex<VecDeque<Arc<OneOwner>>>,
    /// The length of `going`. Relaxed: a hint.
    going_count: AtomicU64,
    /// Held while a thread tidies owners.
    tidying: Mutex<()>,
    awake: AwakeTime,
    /// How often an owner's entries were hidden. Relaxed: a number, counted after each of these changes.
    hides: AtomicU64,
    /// The server ends. From now on no owner is removed for being away.
    is_over: AtomicBool,
}

/// The time for which the server was awake to see its owners. It does not advance while the server is stopped (O6).
#[derive(Debug)]
struct AwakeTime {
    clock: Clock,
    /// The time of the last look, and how long the server had been awake then.
    last_and_awake_ns: Mutex<(u64, u64)>,
}

impl AwakeTime {
    fn now_ns(&self) -> u64 {
        let (last_ns, awake_ns) = &mut *lock(&self.last_and_awake_ns);
        let now_ns = self.clock.now_ns();
        let step_ns = now_ns.saturating_sub(*last_ns);
        *awake_ns += by_rule(Rule::OwnerAwake, step_ns.min(STEP_MAX.as_nanos() as u64), step_ns);
        *last_ns = now_ns;
        *awake_ns
    }
}

#[derive(Debug)]
struct OneOwner {
    number: u16,
    /// Tells the owner from others that had the number before, or will have it (I4).
    tenure: u64,
    state: Mutex<OwnerState>,
    /// Told when the owner's puts under way have ended, and when it is at another stage.
    changed: Condvar,
}

/// The owner that a session asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerClaim {
    /// The present owner with the number, or a new one.
    Any,
    /// Only the owner of this tenure (I4).
    Tenure(u64),
}

impl OwnerClaim {
    /// Decodes the word of a request.
    pub fn from_word(word: u64) -> OwnerClaim {
        if word == 0 { OwnerClaim::Any } else { OwnerClaim::Tenure(word) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The owner may put.
    Here,
    /// The owner may not put any more. Its puts under way end.
    Closing,
    /// Somebody has the right to hide the owner's entries ([`HidesOwner`]).
    Going,
    /// The owner's entries are hidden.
    Hidden {
        /// When the owner's bit may be cleared. `None` while it still has entries.
        clear_at_ns: Option<u64>,
    },
}

#[derive(Debug)]
struct OwnerState {
    stage: Stage,
    /// Whether the owner is in [`OwnersInCommon::going`].
    is_going: bool,
    sessions: u64,
    /// The number of puts under way.
    puts: u64,
    /// How long the owner may be away.
    absent_for: Duration,
    /// Since when the owner is away, in time for which the server was awake.
    absent_since_ns: u64,
    hashes: OwnedHashes,
}

/// The hashes of the keys that an owner has, and of some that it had.
#[derive(Debug, Default)]
struct OwnedHashes {
    all: FxHashSet<First>,
    /// All hashes, the one that was not looked at for longest first.
    order: VecDeque<First>,
}

impl OwnedHashes {
    /// Notes a hash. If there are many, also takes out some old ones. The caller [keeps](Self::keep) those whose
    /// entries are there.
    fn note(&mut self, hash: First) -> SmallVec<[First; LOOKS]> {
        if self.keep(hash) { self.oldest(LOOKS) } else { SmallVec::new() }
    }

    /// Takes out up to `looks` of the oldest hashes, if there are many.
    fn oldest(&mut self, looks: usize) -> SmallVec<[First; LOOKS]> {
        let looks = looks.min(self.order.len().saturating_sub(HASHES_LOOKED_AT));
        let oldest: SmallVec<_> = self.order.drain(..looks).collect();
        oldest.iter().for_each(|old| {
            self.all.remove(old);
        });
        oldest
    }

    /// Notes a hash, if it is not noted yet. Returns whether it was new.
    fn keep(&mut self, hash: First) -> bool {
        let is_new = self.all.insert(hash);
        if is_new {
            self.order.push_back(hash);
        }
        is_new
    }

    fn take(&mut self) -> Option<First> {
        let hash = self.order.pop_front()?;
        self.all.remove(&hash);
        Some(hash)
    }
}

/// A session of an owner. When an owner's last session was dropped, and none has begun for as long as it said, the
/// owner's entries go.
#[derive(Debug)]
pub struct OwnerSession {
    shared: Arc<OwnersInCommon>,
    owner: Arc<OneOwner>,
    absent_for: Duration,
}

impl OwnerSession {
    /// The owner.
    pub fn owner(&self) -> u16 {
        self.owner.number
    }

    /// The tenure: a random number, never 0, which tells this owner from others that had its number before, or will
    /// have it. A claim may name it (I4).
    pub fn tenure(&self) -> u64 {
        self.owner.tenure
    }

    /// Begins a put of the owner.
    ///
    /// # Errors
    /// [`PutError::OwnerGone`]
    pub(super) fn begin_put(&self) -> Result<OwnerPut<'_>, PutError> {
        self.owner.begin_put()
    }
}

impl Drop for OwnerSession {
    fn drop(&mut self) {
        let awake_ns = self.shared.awake.now_ns();
        let mut state = lock(&self.owner.state);
        state.sessions -= 1;
        if state.sessions == 0 && state.stage == Stage::Here {
            (state.absent_since_ns, state.absent_for) = (awake_ns, self.absent_for);
            drop(state);
            self.shared.goes(&self.owner);
        }
    }
}

/// A put of an owner that is under way.
#[derive(Debug)]
pub(super) struct OwnerPut<'s>(&'s Arc<OneOwner>);

impl OwnerPut<'_> {
    /// Notes the entry of a key with this hash, which is visible. No thread takes hashes of the owner out meanwhile,
    /// because the hiding of its entries waits for this put (O1).
    pub fn note(&self, hash: First, table: &Table) {
        self.0.note(hash, table);
    }

    /// The put, which is under way until it is made later.
    pub fn hand_over(self) -> LaterOwnerPut {
        let later = LaterOwnerPut(Arc::clone(self.0));
        // It is counted once.
        std::mem::forget(self);
        later
    }
}

impl Drop for OwnerPut<'_> {
    fn drop(&mut self) {
        self.0.ends_put();
    }
}

/// A put of an owner that was decided, and is made later.
#[derive(Debug)]
pub(super) struct LaterOwnerPut(Arc<OneOwner>);

impl LaterOwnerPut {
    /// As [`OwnerPut::note`].
    pub fn note(&self, hash: First, table: &Table) {
        self.0.note(hash, table);
    }
}

impl Drop for LaterOwnerPut {
    fn drop(&mut self) {
        self.0.ends_put();
    }
}

/// What a put of the owner that is under way may do.
impl OneOwner {
    fn note(&self, hash: First, table: &Table) {
        let mut state = lock(&self.state);
        let old = state.hashes.note(hash);
        self.keep_those_there(old, state, table);
    }

    /// Forgets some old hashes of entries that have left.
    fn forget(&self, looks: usize, table: &Table) {
        let mut state = lock(&self.state);
        let old = state.hashes.oldest(looks);
        self.keep_those_there(old, state, table);
    }

    /// Notes those of these hashes again of which the owner still has an entry.
    fn keep_those_there(
        &self,
        old: SmallVec<[First; LOOKS]>,
        state: MutexGuard<'_, OwnerState>,
        table: &Table,
    ) {
        let mut state = Some(state);
        // L16: not held while a key is looked for.
        obey(Rule::OwnerLast, || state = None);
        for old in old.into_iter().filter(|&old| has_one_of(table, old, self.number)) {
            state.get_or_insert_with(|| lock(&self.state)).hashes.keep(old);
            obey(Rule::OwnerLast, || state = None);
        }
    }

    fn ends_put(&self) {
        let mut state = lock(&self.state);
        state.puts -= 1;
        if state.puts == 0 && state.stage.is_on_its_way() {
            self.changed.notify_all();
        }
    }
}

/// Whether a key with this hash has an entry of this owner. Also `true` if that cannot be seen now.
fn has_one_of(table: &Table, hash: First, owner: u16) -> bool {
    table
        .look_at(hash, |at| at.lives_of(hash))
        .is_none_or(|lives| lives.iter().any(|(_, life)| life.owner == owner))
}

impl OwnersInCommon {
    /// Queues an owner that is away, or hidden.
    fn goes(&self, owner: &Arc<OneOwner>) {
        if std::mem::replace(&mut lock(&owner.state).is_going, true) {
            return;
        }
        let mut going = lock(&self.going);
        going.push_back(Arc::clone(owner));
        self.going_count.store(going.len() as u64, Relaxed);
    }
}

/// How far an owner is who is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerGoes {
    /// Its entries are not hidden yet. `is_new`: until now nobody was at it.
    Closes { is_new: bool },
    /// It has none that is not hidden. `is_new`: this call has hidden them.
    IsHidden { is_new: bool },
}

/// The right to hide an owner's entries. One thread at a time has it, for all that is done then: the record of a log, the
/// bit, the telling (O9). Dropped before, the owner stays.
#[derive(Debug)]
struct HidesOwner {
    table: Arc<Table>,
    shared: Arc<OwnersInCommon>,
    owner: Option<Arc<OneOwner>>,
}

impl HidesOwner {
    /// Takes the right, if the owner closes, no put of it is under way (O1), and nobody has it (O9).
    fn take(table: &Arc<Table>, shared: &Arc<OwnersInCommon>, owner: &Arc<OneOwner>) -> Option<HidesOwner> {
        let mut state = lock(&owner.state);
        let may_be_taken = match state.stage {
            Stage::Closing => state.puts == 0 || broken(Rule::OwnerPuts),
            Stage::Going => broken(Rule::OwnerOnce),
            Stage::Here | Stage::Hidden { .. } => false,
        };
        if !may_be_taken {
            return None;
        }
        state.stage = Stage::Going;
        drop(state);
        Some(HidesOwner {
            table: Arc::clone(table),
            shared: Arc::clone(shared),
            owner: Some(Arc::clone(owner)),
        })
    }

    /// Hides them, and tells that the owner has gone.
    fn hide(mut self) {
        let Some(owner) = self.owner.take() else { return };
        let (table, shared) = (&self.table, &self.shared);
        let (region, word) = (table.region(), table.geometry().owner_word(owner.number));
        table.observers().feed().tell_owner(owner.number, || {
            let _all = lock(&shared.all);
            region.store(word, region.load(word) | bit(owner.number));
        });
        // Before the number may be used again (K8).
        if let Some(log) = table.observers().log() {
            log.owner_has_gone(owner.number);
        }
        // D7
        obey(Rule::HidesCounted, || {
            shared.hides.fetch_add(1, Relaxed);
        });
        owner.set_stage(Stage::Hidden { clear_at_ns: None });
        shared.goes(&owner);
    }
}

impl WaitsForDisk for HidesOwner {
    fn is_there(self: Box<Self>, at: InBatch) {
        let table = Arc::clone(&self.table);
        self.hide();
        if at == InBatch::Last {
            table.news().tell();
        }
    }
}

impl Drop for HidesOwner {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.set_stage(Stage::Here);
            self.table.news().tell();
        }
    }
}

impl Owners {
    /// The owners of a new table.
    pub fn make(clock: &Clock) -> Owners {
        let awake = AwakeTime { clock: clock.clone(), last_and_awake_ns: Mutex::new((clock.now_ns(), 0)) };
        let (all, going, going_count, tidying, hides, is_over) = Default::default();
        Owners(Arc::new(OwnersInCommon { all, going, going_count, tidying, awake, hides, is_over }))
    }

    /// The owners of a table that another server had. An owner with a session or with entries counts as away from now
    /// on. If an owner's entries were hidden, their removal goes on. Also returns the hashes of keys with entries that
    /// are not committed.
    pub fn open(table: &Table, clock: &Clock) -> (Owners, Vec<First>) {
        let mut not_committed = Vec::new();
        let owners = Owners::make(clock);
        let (region, geometry) = (table.region(), table.geometry());
        table.show_lives(&mut |hash, life: Option<Life>| {
            let Some(life) = life else { return };
            if (1..=OWNER_MAX).contains(&life.owner) {
                let owner = owners.found(region, geometry, life.owner);
                lock(&owner.state).hashes.keep(hash);
            } else if life.owner == NOT_COMMITTED {
                not_committed.push(hash);
            }
        });
        for owner in 1..=OWNER_MAX {
            if region.load(geometry.owner_tenure_word(owner)) != 0 {
                owners.found(region, geometry, owner);
            }
        }
        for word in 0..MASK_WORDS as u16 {
            let first = word * u64::BITS as u16;
            let hidden = region.load(geometry.owner_word(first));
            for owner in
                (0..u64::BITS as u16).map(|nth| first + nth).filter(|&owner| hidden & bit(owner) != 0)
            {
                if (1..=OWNER_MAX).contains(&owner) {
                    let owner = owners.found(region, geometry, owner);
                    lock(&owner.state).stage = Stage::Hidden { clear_at_ns: None };
                }
            }
        }
        (owners, not_committed)
    }

    /// The owner with this number, which has no session. Adds it if it is new.
    fn found(&self, region: &Region, geometry: &Geometry, number: u16) -> Arc<OneOwner> {
        let mut all = lock(&self.0.all);
        let mut is_new = false;
        let owner = Arc::clone(all.entry(number).or_insert_with(|| {
            is_new = true;
            let absent_for = time_in(region.load(geometry.owner_time_word(number)), number);
            let tenure = tenure_in(region, geometry, number);
            OneOwner::new(number, tenure, absent_for.unwrap_or(ABSENT_FOR), self.0.awake.now_ns())
        }));
        if is_new {
            self.0.goes(&owner);
        }
        owner
    }

    /// Begins a session of an owner, who may be away for this long between two sessions.
    ///
    /// # Errors
    /// [`PutError::OwnerNumber`]. [`PutError::OwnerGone`] while the owner's entries are being removed, and if the claim
    /// names another tenure.
    pub fn session(
        &self,
        region: &Region,
        geometry: &Geometry,
        number: u16,
        claim: OwnerClaim,
        absent_for: Duration,
    ) -> Result<OwnerSession, PutError> {
        if !(1..=OWNER_MAX).contains(&number) {
            return Err(PutError::OwnerNumber { given: number });
        }
        let gone = || PutError::OwnerGone { owner: number };
        let mut all = lock(&self.0.all);
        let owner = match claim {
            OwnerClaim::Tenure(tenure) if !broken(Rule::OwnerTenure) => {
                all.get(&number).filter(|owner| owner.tenure == tenure).ok_or_else(gone)?
            }
            OwnerClaim::Tenure(_) | OwnerClaim::Any => all
                .entry(number)
                .or_insert_with(|| OneOwner::new(number, tenure_in(region, geometry, number), absent_for, 0)),
        };
        let mut state = lock(&owner.state);
        if state.stage != Stage::Here {
            return Err(gone());
        }
        // For the next server: the longest time that a session has said.
        let longest = if state.sessions > 0 { state.absent_for.max(absent_for) } else { absent_for };
        (state.absent_for, state.sessions) = (longest, state.sessions + 1);
        drop(state);
        let owner = Arc::clone(owner);
        let word = geometry.owner_time_word(number);
        region.store(word, with_time(region.load(word), number, Some(longest)));
        Ok(OwnerSession { shared: Arc::clone(&self.0), owner, absent_for })
    }

    /// A session for an entry of a snapshot. The owner may not be there. `None` if its entries are being removed.
    pub fn session_of_entry(
        &self,
        region: &Region,
        geometry: &Geometry,
        number: u16,
    ) -> Option<OwnerSession> {
        let number = Some(number).filter(|number| (1..=OWNER_MAX).contains(number))?;
        let owner = self.found(region, geometry, number);
        let mut state = lock(&owner.state);
        if state.stage != Stage::Here {
            return None;
        }
        state.sessions += 1;
        let absent_for = state.absent_for;
        drop(state);
        Some(OwnerSession { shared: Arc::clone(&self.0), owner, absent_for })
    }

    /// Hides all entries of an owner; tidying then removes them. Returns whether this call has begun it. Sleeps until they
    /// are hidden: until the owner's puts under way have ended, the log has the record, and another call that is at it has
    /// ended (O7).
    ///
    /// # Errors
    /// [`PutError::Withdrawn`]: the log's disk has failed, and the owner stays.
    pub fn remove(&self, table: &Arc<Table>, number: u16) -> Result<bool, PutError> {
        let Some(owner) = lock(&self.0.all).get(&number).map(Arc::clone) else { return Ok(false) };
        let is_first = match self.close(&owner, |_| true) {
            None | Some(Stage::Hidden { .. }) => return Ok(false),
            Some(Stage::Here) => true,
            Some(Stage::Closing | Stage::Going) if broken(Rule::OwnerTwice) => return Ok(false),
            Some(Stage::Closing | Stage::Going) => false,
        };
        // O1
        obey(Rule::OwnerPuts, || {
            owner.sleep_until(|state| state.stage != Stage::Closing || state.puts == 0);
        });
        self.hide(table, &owner)?;
        match owner.sleep_until(|state| !state.stage.is_on_its_way()) {
            Stage::Hidden { .. } => Ok(is_first),
            Stage::Here | Stage::Closing | Stage::Going => Err(PutError::Withdrawn),
        }
    }

    /// Likewise, for a thread that has others to serve: it does not wait. To be called until they are hidden.
    ///
    /// # Errors
    /// As [`Owners::remove`].
    pub fn try_remove(&self, table: &Arc<Table>, number: u16) -> Result<OwnerGoes, PutError> {
        let Some(owner) = lock(&self.0.all).get(&number).map(Arc::clone) else {
            return Ok(OwnerGoes::IsHidden { is_new: false });
        };
        let is_new = match self.close(&owner, |_| true) {
            None | Some(Stage::Hidden { .. }) => return Ok(OwnerGoes::IsHidden { is_new: false }),
            Some(Stage::Here) => true,
            Some(Stage::Closing | Stage::Going) => false,
        };
        // Whoever asked may go away before it is hidden: tidying goes on with it.
        self.0.goes(&owner);
        self.hide(table, &owner)?;
        match owner.stage() {
            Stage::Hidden { .. } => Ok(OwnerGoes::IsHidden { is_new }),
            Stage::Here | Stage::Closing | Stage::Going => Ok(OwnerGoes::Closes { is_new }),
        }
    }

    /// O1: from now on the owner puts nothing, if it is here, and may go. Returns where it was before. `None`: it stays.
    fn close(&self, owner: &OneOwner, may_go: impl FnOnce(&OwnerState) -> bool) -> Option<Stage> {
        let mut state = lock(&owner.state);
        let before = state.stage;
        if before == Stage::Here {
            if !may_go(&state) {
                return None;
            }
            state.stage = Stage::Closing;
        }
        Some(before)
    }

    /// Hides the entries of an owner who is closing, if no put of it is under way any more, and nobody else is at it: now,
    /// or when the log has the record (K8). Does not wait.
    ///
    /// # Errors
    /// [`PutError::Withdrawn`]: the log's disk has failed, and the owner stays.
    fn hide(&self, table: &Arc<Table>, owner: &Arc<OneOwner>) -> Result<(), PutError> {
        let Some(hides) = HidesOwner::take(table, &self.0, owner) else { return Ok(()) };
        match table.observers().log().filter(|_| !broken(Rule::LogOwner)) {
            None => hides.hide(),
            Some(log) => {
                let logged = log.owner_goes(owner.number).map_err(|_| PutError::Withdrawn)?;
                log.when_there(logged, Box::new(hides));
            }
        }
        Ok(())
    }

    /// Removes all entries of an owner by `remove`, while nobody reads the table. The owner stays.
    pub fn remove_entries(&self, table: &Table, number: u16, mut remove: impl FnMut(&Key, u16) -> bool) {
        let Some(owner) = lock(&self.0.all).get(&number).map(Arc::clone) else { return };
        while let Some(hash) = { lock(&owner.state).hashes.take() } {
            remove_all_of(table, hash, number, &mut remove);
        }
    }

    /// How often the entries of an owner were hidden, since the server began.
    pub fn hides(&self) -> u64 {
        self.0.hides.load(Relaxed)
    }

    /// The number of noted entries, of all owners.
    pub fn noted(&self) -> u64 {
        let all: Vec<_> = lock(&self.0.all).values().map(Arc::clone).collect();
        all.iter().map(|owner| lock(&owner.state).hashes.all.len() as u64).sum()
    }

    /// The server ends, and with it all sessions. From now on no owner is removed for being away (O6).
    pub fn end(&self) {
        self.0.is_over.store(true, Relaxed);
    }

    /// Forgets notes of entries that have left one by one. Looks at up to `max` old hashes of their owners, at twice as
    /// many as have left. Returns whether there is more to do.
    pub fn forget_left(&self, table: &Table, max: usize) -> bool {
        let (left, mut looks) = (table.observers().owned_left(), max);
        while looks > 0 {
            let Some((number, gone)) = left.take() else { return false };
            let Some(owner) = lock(&self.0.all).get(&number).map(Arc::clone) else { continue };
            // The hiding of the owner's entries waits for this as for a put (O1). So it does not miss hashes that this
            // thread has taken out.
            let Ok(put) = owner.begin_put() else { continue };
            let now = (gone as usize).saturating_mul(LOOKS).min(looks);
            put.0.forget(now, table);
            looks -= now;
            let rest = gone - (now / LOOKS) as u64;
            if rest > 0 {
                left.add(number, rest);
            }
        }
        true
    }

    /// Works on owners that are away or hidden. Passes up to `max` entries to `remove`, which returns whether they are
    /// gone. Returns how long until there is more to do.
    pub fn tidy(
        &self,
        table: &Arc<Table>,
        mut max: usize,
        mut remove: impl FnMut(&Key, u16) -> bool,
    ) -> Option<Duration> {
        if self.0.going_count.load(Relaxed) == 0 {
            return None;
        }
        // The thread that tidies returns when there is more, and this thread looks again (L15).
        let _turn = try_lock(&self.0.tidying)?;
        let mut next = None;
        let mut later =
            |within: Duration| next = Some(next.map_or(within, |next: Duration| next.min(within)));
        let turns = lock(&self.0.going).len();
        for _ in 0..turns.min(OWNERS_AT_ONCE) {
            let owner = {
                let mut going = lock(&self.0.going);
                let owner = going.pop_front();
                self.0.going_count.store(going.len() as u64, Relaxed);
                owner
            };
            let Some(owner) = owner else { break };
            lock(&owner.state).is_going = false;
            if let Some(within) = self.take_on(table, &owner, &mut max, &mut remove) {
                later(within);
                self.0.goes(&owner);
            }
        }
        if turns > OWNERS_AT_ONCE {
            later(Duration::from_millis(1));
        }
        next
    }

    /// Works on one owner. Returns when its next turn is; `None` if it is here, or gone for good.
    fn take_on(
        &self,
        table: &Arc<Table>,
        owner: &Arc<OneOwner>,
        max: &mut usize,
        remove: &mut impl FnMut(&Key, u16) -> bool,
    ) -> Option<Duration> {
        let mut state = lock(&owner.state);
        match state.stage {
            Stage::Closing | Stage::Going => {
                drop(state);
                self.goes_on_closing(table, owner)
            }
            Stage::Here => {
                let left = state.left(self.0.awake.now_ns())?;
                if !left.is_zero() || self.0.is_over.load(Relaxed) {
                    return Some(left.clamp(Duration::from_millis(1), LOOK_EVERY));
                }
                drop(state);
                // O8
                let awake_ns = self.0.awake.now_ns();
                let is_away = |state: &OwnerState| state.left(awake_ns) == Some(Duration::ZERO);
                self.close(owner, |state| kept(Rule::OwnerBack, || is_away(state)))?;
                self.goes_on_closing(table, owner)
            }
            Stage::Hidden { clear_at_ns } => {
                while let Some(hash) = (*max > 0).then(|| state.hashes.take()).flatten() {
                    drop(state);
                    *max -= 1;
                    let are_gone = remove_all_of(table, hash, owner.number, remove);
                    state = lock(&owner.state);
                    if !are_gone {
                        state.hashes.keep(hash);
                        return Some(Duration::from_millis(1));
                    }
                }
                if !state.hashes.all.is_empty() {
                    return Some(Duration::ZERO);
                }
                let now_ns = table.clock().now_ns();
                let grace_ns = 2 * table.geometry().grace().as_nanos() as u64;
                let at_ns = clear_at_ns.unwrap_or_else(|| now_ns + wait_ns(Rule::OwnerGrace, grace_ns));
                state.stage = Stage::Hidden { clear_at_ns: Some(at_ns) };
                if now_ns < at_ns {
                    return Some(Duration::from_nanos(at_ns - now_ns));
                }
                drop(state);
                self.clear(table, owner.number);
                None
            }
        }
    }

    /// Goes on with an owner who is closing. Returns when its next turn is. `None`: it stays.
    fn goes_on_closing(&self, table: &Arc<Table>, owner: &Arc<OneOwner>) -> Option<Duration> {
        // K2: nothing is changed any more. Whoever has its last session end gives it a turn again.
        self.hide(table, owner).ok()?;
        match owner.stage() {
            Stage::Here => None,
            Stage::Closing | Stage::Going => Some(Duration::from_millis(1)),
            Stage::Hidden { .. } => Some(Duration::ZERO),
        }
    }

    /// O4: clears the number, which may be used again.
    fn clear(&self, table: &Table, number: u16) {
        let (region, geometry) = (table.region(), table.geometry());
        let mut all = lock(&self.0.all);
        table.count_all_moves(Rule::OwnerCount);
        let (word, time) = (geometry.owner_word(number), geometry.owner_time_word(number));
        region.store(time, with_time(region.load(time), number, None));
        region.store(geometry.owner_tenure_word(number), 0);
        region.store(word, region.load(word) & !bit(number));
        all.remove(&number);
    }
}

impl Stage {
    /// Whether the owner is about to go, and its entries are not hidden yet.
    fn is_on_its_way(self) -> bool {
        match self {
            Stage::Closing | Stage::Going => true,
            Stage::Here | Stage::Hidden { .. } => false,
        }
    }
}

impl OwnerState {
    /// How much longer the owner may be away. `None` if it is not away.
    fn left(&self, awake_ns: u64) -> Option<Duration> {
        let away_ns = awake_ns.saturating_sub(self.absent_since_ns);
        let is_away = self.stage == Stage::Here && self.sessions == 0;
        is_away.then(|| self.absent_for.saturating_sub(Duration::from_nanos(away_ns)))
    }
}

impl OneOwner {
    fn stage(&self) -> Stage {
        lock(&self.state).stage
    }

    fn set_stage(&self, stage: Stage) {
        lock(&self.state).stage = stage;
        self.changed.notify_all();
    }

    /// Sleeps until this is so. Returns the stage then.
    fn sleep_until(&self, is_so: impl Fn(&OwnerState) -> bool) -> Stage {
        wait_until((&self.state, &self.changed), lock(&self.state), is_so).stage
    }

    /// Begins a put, if the owner may put.
    fn begin_put(self: &Arc<OneOwner>) -> Result<OwnerPut<'_>, PutError> {
        let mut state = lock(&self.state);
        if state.stage != Stage::Here && !broken(Rule::OwnerPuts) {
            return Err(PutError::OwnerGone { owner: self.number });
        }
        state.puts += 1;
        Ok(OwnerPut(self))
    }

    fn new(number: u16, tenure: u64, absent_for: Duration, absent_since_ns: u64) -> Arc<OneOwner> {
        let (is_going, sessions, puts, hashes) = Default::default();
        let stage = Stage::Here;
        let state = OwnerState { stage, is_going, sessions, puts, absent_for, absent_since_ns, hashes };
        Arc::new(OneOwner { number, tenure, state: Mutex::new(state), changed: Condvar::new() })
    }
}

/// The tenure of an owner that becomes known: the one that the region has, or a new one.
fn tenure_in(region: &Region, geometry: &Geometry, number: u16) -> u64 {
    let word = geometry.owner_tenure_word(number);
    if region.load(word) == 0 {
        region.store(word, random::needed());
    }
    region.load(word)
}

/// Removes the entries of this owner whose keys have this hash. Returns whether all of them are gone.
fn remove_all_of(table: &Table, hash: First, owner: u16, remove: &mut impl FnMut(&Key, u16) -> bool) -> bool {
    let Some(lives) = table.look_at(hash, |at| at.lives_of(hash)) else { return false };
    lives.iter().filter(|(_, life)| life.owner == owner).all(|(key, _)| remove(key, owner))
}
