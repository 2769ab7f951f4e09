//! The server's side of the index: every change to the table.
//!
//! ```text
//! put     lock the key's windows -> present: rewrite its slot
//!                                -> a free slot in the primary window: write it
//!                                -> neither: search a path, lock it, check it again, move along it
//! remove  erase the live slot -> let a displaced key come home into it
//! ```
//!
//! Comments cite rules by id (M4). docs/PROTOCOL.md has all rules and their proofs. `src/faults.rs`
//! has one line for each rule that a test can break. Its switches (`kept`, `obey`, `disobey`,
//! `by_rule`, `in_order`) are constants in a real build, which keeps every rule.
//!
//! * `writer` changes one slot so that no torn read of it is accepted.
//! * `stripes` keeps server threads apart; `locks` chooses the stripes that an operation locks.
//! * `search` finds the cheapest path of moves; `moves` walks it.
//! * `chains` links and unlinks overflow blocks.
//! * `homing` brings displaced keys home after a delete.
//! * `traces` maintains filters. It takes traces away when `grace` says that no remote reader can
//!   depend on them.
//! * `recover` takes a region over from a server that is gone.

mod chains;
mod grace;
mod homing;
mod locks;
#[cfg(all(test, loom))]
pub(crate) mod loom_access;
mod moves;
mod recover;
mod search;
mod stripes;
#[cfg(all(test, feature = "sim", not(loom)))]
mod tests;
mod traces;
mod writer;

pub use recover::{RecoverError, Recovered};

use crate::clock::Clock;
use crate::fabric::shm::Shm;
use crate::families;
use crate::faults::{AtOnce, Rule, by_rule, disobey, in_order, kept, obey};
use crate::layout::chain;
use crate::layout::control::{Phase, STATE_WORD, State, move_counter_word};
use crate::layout::geometry::{Geometry, SlotIx, Window};
use crate::layout::hash::Hashed;
use crate::layout::slot::Content;
use crate::layout::superblock::Superblock;
use crate::outcome::{IndexCounts, PutError, PutMode, PutOutcome};
use crate::reader::{Limits, Reader};
use crate::region::{Region, RegionError};
use crate::sync::{AtomicU64, Ordering, fence};
use chains::Blocks;
use grace::{Grace, Trace};
use moves::has_room_for_ghost;
use search::{MovePath, find_path};
use smallvec::SmallVec;
use stripes::{Displaced, DisplacedAt, Locked, Stripe, StripeSet, Stripes};
use writer::{Owned, SlotWriter};

/// Paths of one put that other threads may change before the put gives up.
const ROUNDS_MAX: u32 = 1_000;
/// Times that a put without room waits for grace periods before the table counts as full.
pub(crate) const WAITS_MAX: u32 = 3;
/// Traces that a mutation takes away in passing.
const REAP_MAX: usize = 8;

#[derive(Debug, Default)]
struct IndexCounters {
    keys: AtomicU64,
    inserts: AtomicU64,
    updates: AtomicU64,
    removes: AtomicU64,
    moves: AtomicU64,
    homings: AtomicU64,
    waits: AtomicU64,
}

fn count(counter: &AtomicU64) {
    // Relaxed: a statistic.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The server's side of a table: it makes every change.
///
/// `Send + Sync`: all operations take `&self`, and several threads may call them at once.
#[derive(Debug)]
pub struct Index {
    region: Region,
    geometry: Geometry,
    incarnation: u64,
    stripes: Stripes,
    grace: Grace,
    blocks: Blocks,
    counters: IndexCounters,
}

impl Index {
    /// Makes an empty table in `region`, which must be zero and at least
    /// [`Geometry::region_bytes`] long.
    ///
    /// Writes every main slot once, so that each is valid.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough memory for the main slots.
    ///
    /// # Panics
    /// When the region is too short.
    pub fn create(region: Region, geometry: Geometry, clock: Clock) -> Result<Index, RegionError> {
        assert!(region.bytes() >= geometry.region_bytes(), "the region is too short for the table");
        region.back(0..geometry.slot_offset(SlotIx(geometry.main_slots())))?;
        let index = Index::over(region, geometry, clock, 1);
        index.publish_state(Phase::Starting);
        index.publish_superblock();
        for slot in 0..index.geometry.main_slots() {
            index.write(&index.stripes.alone(), SlotIx(slot), &Content::default());
        }
        index.publish_state(Phase::Serving);
        Ok(index)
    }

    fn over(region: Region, geometry: Geometry, clock: Clock, incarnation: u64) -> Index {
        Index {
            stripes: Stripes::new(geometry.main_slots()),
            grace: Grace::new(clock, geometry.grace()),
            blocks: Blocks::new(geometry.overflow_blocks()),
            region,
            geometry,
            incarnation,
            counters: IndexCounters::default(),
        }
    }

    /// Writes the superblock, once, into a region that nobody reads yet.
    fn publish_superblock(&self) {
        let created = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let words = Superblock::new(&self.geometry, created).to_words();
        words.iter().enumerate().for_each(|(w, &word)| self.region.store(w, word));
    }

    /// Writes the state word, with one store.
    fn publish_state(&self, phase: Phase) {
        // Pairs with the acquire fences of a GET that follows a load of the state.
        fence(Ordering::Release);
        self.region.store(STATE_WORD, State { incarnation: self.incarnation, phase }.to_word());
    }

    /// Tells clients that this table is given up and that they must connect again.
    pub fn retire(&self) {
        self.publish_state(Phase::Retired);
    }

    /// The table's region.
    pub fn region(&self) -> &Region {
        &self.region
    }
    /// The table's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// Which server process of this region this is, counted from 1.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
    /// The number of keys.
    pub fn len(&self) -> u64 {
        self.counters.keys.load(Ordering::Relaxed)
    }
    /// Whether the table has no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The number of displaced keys. Locks every stripe in turn.
    pub fn displaced(&self) -> usize {
        self.stripes.displaced()
    }
    /// Keys divided by all slots allocated, overflow included.
    pub fn load_true(&self) -> f64 {
        let counts = self.counts();
        counts.keys as f64 / counts.slots as f64
    }

    /// What was done so far. Each counter is exact, but they may be read at different instants.
    pub fn counts(&self) -> IndexCounts {
        let c = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IndexCounts {
            keys: load(&c.keys),
            inserts: load(&c.inserts),
            updates: load(&c.updates),
            removes: load(&c.removes),
            moves: load(&c.moves),
            homings: load(&c.homings),
            waits: load(&c.waits),
            slots: self.geometry.main_slots()
                + self.blocks.ever_used() * u64::from(self.geometry.layout().block_slots),
            main_slots: self.geometry.main_slots(),
        }
    }

    /// A reader of this table in this process. It does the same GET as clients.
    pub fn reader(&self) -> Reader<'_, Shm<'_>> {
        let fabric = Shm::new(&self.region, &self.geometry);
        Reader::new(fabric, &self.geometry, self.grace.clock().clone(), Limits::default())
    }

    fn slots(&self) -> SlotWriter<'_> {
        SlotWriter { region: &self.region, geometry: &self.geometry }
    }

    /// Puts `key` with `value`, as `mode` allows. Every GET that starts after the return sees it.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    pub fn put(&self, key: &[u8], value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        self.check_lengths(key, value)?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        let mut locked = self.lock_key(key);
        if let Some(answer) = self.put_present(&mut locked, key, value, mode) {
            return Ok(answer);
        }
        if let Some(slot) = self.free_slot(self.geometry.primary(key)) {
            self.place(&mut locked, slot, key, value);
            return Ok(PutOutcome::Inserted);
        }
        drop(locked);
        self.put_by_moving(key, value, mode)
    }

    /// The rest of a put that found neither the key nor a free slot in its primary window.
    #[cold]
    fn put_by_moving(&self, key: Hashed<'_>, value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        let mut waits = 0;
        for _ in 0..ROUNDS_MAX {
            let Some(path) = find_path(self.slots(), key) else {
                if let Some(answer) = self.put_into_chain(key, value, mode) {
                    return Ok(answer);
                }
                if waits < WAITS_MAX && self.wait_for_grace() {
                    waits += 1;
                    continue;
                }
                // L6: another thread may have put the same key meanwhile.
                let mut locked = self.stripes.lock(self.stripes_of_key(key));
                let answer = obey(Rule::LastLook, || self.put_present(&mut locked, key, value, mode));
                return answer.ok_or_else(|| {
                    let counts = self.counts();
                    PutError::Full { keys: counts.keys, slots: counts.slots }
                });
            };
            if let Some(answer) = self.put_along(&path, key, value, mode) {
                return Ok(answer);
            }
        }
        Err(PutError::Busy { rounds: ROUNDS_MAX })
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// [`PutError::KeyLength`].
    pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
        self.check_lengths(key, &[])?;
        self.reap(REAP_MAX);
        let key = self.geometry.hashed(key);
        let mut locked = self.lock_key(key);
        let Some(slot) = self.find(key) else { return Ok(false) };
        self.erase(&mut locked, slot, key);
        drop(locked);
        self.counters.keys.fetch_sub(1, Ordering::Relaxed);
        count(&self.counters.removes);
        self.bring_home(slot);
        Ok(true)
    }

    /// Takes away every trace that is due. Mutations do this in passing; a server also does it when
    /// idle. Returns how long until the next trace is due.
    pub fn tidy(&self) -> Option<std::time::Duration> {
        self.reap(usize::MAX);
        self.grace.until_next()
    }

    fn check_lengths(&self, key: &[u8], value: &[u8]) -> Result<(), PutError> {
        let (key_max, value_max) = (self.geometry.key_max(), self.geometry.value_max());
        if key.is_empty() || key.len() > key_max {
            return Err(PutError::KeyLength { given: key.len(), max: key_max });
        }
        if value.len() > value_max {
            return Err(PutError::ValueLength { given: value.len(), max: value_max });
        }
        Ok(())
    }

    fn may_be_displaced(&self, key: Hashed<'_>) -> bool {
        families::may_be_displaced(&self.geometry, key, self.slots().header(self.home_slot(key)).aux)
    }

    fn home_slot(&self, key: Hashed<'_>) -> SlotIx {
        self.geometry.primary(key).first
    }

    /// The slot that holds `key`. The caller holds the key's locks.
    fn find(&self, key: Hashed<'_>) -> Option<SlotIx> {
        let holds = |window: Window| window.iter().find(|&slot| self.slots().holds(slot, key.key()));
        if let Some(slot) = holds(self.geometry.primary(key)) {
            return Some(slot);
        }
        if !self.may_be_displaced(key) {
            return None;
        }
        let mut last = self.geometry.primary(key);
        (1..)
            .map_while(|read| {
                let head_aux = self.slots().header(last.first).aux;
                last = families::after(&self.geometry, key, read, head_aux)?;
                Some(last)
            })
            .find_map(holds)
    }

    fn free_slot(&self, window: Window) -> Option<SlotIx> {
        window.iter().find(|&slot| self.slots().header(slot).is_free())
    }

    /// Finishes a put whose key is present, or whose mode needs the key present. `None` otherwise.
    fn put_present(
        &self,
        locked: &mut Locked<'_>,
        key: Hashed<'_>,
        value: &[u8],
        mode: PutMode,
    ) -> Option<PutOutcome> {
        debug_assert!(self.may_change(locked, key), "L2");
        let Some(slot) = self.find(key) else {
            return (mode == PutMode::Update).then_some(PutOutcome::Missing);
        };
        if mode == PutMode::Insert {
            return Some(PutOutcome::Exists);
        }
        self.rewrite(locked, slot, self.slots().header(slot), key.key(), value);
        count(&self.counters.updates);
        Some(PutOutcome::Updated)
    }
}
