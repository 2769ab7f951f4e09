//! The face of the index: [`Index`], with which an embedder, or a server, makes every change.

#[cfg(feature = "verbs")]
use super::budget::Registrar;
use super::decide::{Alive, Becomes, Decides, Swap};
use super::evict::Evictor;
use super::evicting;
use super::extents::{ExtentDraft, NoMemory, Upload};
use super::feed::Feed;
use super::growth::Ahead;
#[cfg(any(feature = "verbs", feature = "sim"))]
use super::growth::Growth;
#[cfg(feature = "sim")]
use super::growth::{handover_end, pace::Pace};
use super::homes::NotHandedOver;
use super::lives::Lives;
use super::owners::{OwnerPut, OwnerSession, Owners};
use super::recovered::{RecoverError, Recovered};
use super::seams::{Changed, Hearing, Nobody, Seams, Turn};
#[cfg(feature = "sim")]
use super::segment::WAITS_MAX;
use super::segment::{Which, check_lengths, check_stored};
use super::shifts::TidyShifts;
use super::started::StartedPuts;
use super::whole::{KeyCursor, ScanPoint, Table, TakeKey};
use crate::breaking::is_wanted;
use crate::clock::Clock;
use crate::fabric::shm::Shm;
use crate::faults::{Rule, by_rule, in_order};
use crate::layout::control::Phase;
use crate::layout::extent::Expected;
use crate::layout::geometry::Geometry;
use crate::layout::slot::{Key, Stored};
use crate::outcome::{
    GrowthCounts, HeapCounts, IndexCounts, NoteCounts, PutError, PutMode, PutOptions, PutOutcome, SwapOutcome,
};
use crate::random;
use crate::reader::Reader;
use crate::region::{Region, RegionError};
use crate::start::Start;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times that a put waits for grace periods at the most.
#[cfg(feature = "sim")]
pub(crate) fn waits_max(geometry: &Geometry, pace: &Pace) -> u32 {
    // Beside those for a split, it may wait as any put does, to press one on.
    WAITS_MAX + if geometry.grows() { pace.split_waits_max } else { 0 }
}

/// The server's side of a table: it makes every change.
///
/// `Send + Sync`: all operations take `&self`, and several threads may call them at once.
#[derive(Debug)]
pub struct Index {
    table: Table,
    /// The lives of its entries, if they have any.
    pub(super) lives: Option<Box<Lives>>,
    /// Whose they are, if they may have owners.
    owners: Option<Owners>,
    /// Who hears of its changes, if anybody does.
    hearing: Option<Box<Hearing>>,
    /// Whether entries make room for others.
    evicts: bool,
    /// Which server this is, of all (I3).
    launch: u64,
    /// Who does what the table has to do by itself.
    shifts: TidyShifts,
}

/// What a thread does that finds memory for a long value waiting for readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeapPatience {
    /// It has others to serve.
    None,
    /// It waits.
    Waits,
}

/// The number of one more server (I3).
fn draw_launch() -> u64 {
    by_rule(Rule::LaunchNumber, random::needed(), 1)
}

impl Index {
    /// Makes an empty table in `region`, which must be zero and at least
    /// [`Geometry::region_bytes`] long.
    ///
    /// Writes every main slot once, so that each is valid: of a table that grows, those of the first
    /// segment. All cores work at it.
    ///
    /// # Errors
    /// [`RegionError`] when there is not enough memory for the main slots.
    ///
    /// # Panics
    /// When the region is too short.
    pub fn create(region: Region, geometry: Geometry, clock: Clock) -> Result<Index, RegionError> {
        Index::create_by(region, geometry, clock, &Start::default())
    }

    pub(crate) fn create_by(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
    ) -> Result<Index, RegionError> {
        let index = Index::create_filled(region, geometry, clock, start, |_| Ok::<_, RegionError>(()))?;
        index.region().keep();
        Ok(index)
    }

    /// The same, and `fill` puts keys into the table before it is in service: if the server is killed
    /// meanwhile, no other takes the table over. A new file is still to be kept ([`Region::keep`]).
    pub(crate) fn create_filled<E: From<RegionError>>(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        start: &Start,
        fill: impl FnOnce(&Index) -> Result<(), E>,
    ) -> Result<Index, E> {
        let table = Table::create_unready(region, geometry, clock.clone(), start)?;
        let has_life = table.geometry().has_life();
        let lives = has_life.then(|| Box::new(Lives::make(&table, &clock)));
        start.evict.map(|policy| evicting::begin(&table, policy)).transpose()?;
        let has_owners = table.geometry().has_owners();
        let owners = has_owners.then(|| Owners::make(&clock));
        let launch = draw_launch();
        if has_owners {
            let started = StartedPuts::new(table.region(), table.geometry(), launch, Vec::new());
            table.told().set_started(started);
        }
        let (evicts, shifts) = (start.evict.is_some(), TidyShifts::default());
        let index = Index { table, lives, owners, hearing: None, evicts, launch, shifts };
        fill(&index)?;
        index.table.publish_state(Phase::Serving);
        Ok(index)
    }

    /// Takes over the table in `region`. If its last server had stopped
    /// ([`Server::stop`](crate::Server::stop)), this takes no time. If it was killed, this waits for
    /// twice the grace time, gives half-written slots the content that they had before, frees second
    /// copies, takes leftover ghosts and filter bits away, and rebuilds the register of displaced
    /// keys. All cores work at it, and the time grows with the size of the table. Clients that have
    /// the region mapped go on reading.
    ///
    /// # Errors
    /// [`RecoverError`]; the region has then lost nothing. Slots that were half written may have their content back.
    pub fn open(region: Region, clock: Clock) -> Result<(Index, Recovered), RecoverError> {
        Index::open_by(region, clock, &Start::default())
    }

    pub(crate) fn open_by(
        region: Region,
        clock: Clock,
        start: &Start,
    ) -> Result<(Index, Recovered), RecoverError> {
        let (table, found) = Table::open(region, clock.clone(), start)?;
        let lives = table.geometry().has_life().then(|| Box::new(Lives::open(&table, &clock)));
        let owners = table.geometry().has_owners().then(|| Owners::open(&table, &clock));
        let ((owners, left_over), launch) = (owners.unzip(), draw_launch());
        if let Some(keys) = left_over {
            table.told().set_started(StartedPuts::new(table.region(), table.geometry(), launch, keys));
        }
        let shifts = TidyShifts::default();
        Ok((Index { table, lives, owners, hearing: None, evicts: false, launch, shifts }, found))
    }

    /// Whether entries make room for others.
    pub fn evicts(&self) -> bool {
        self.evicts
    }

    /// The same table, which has begun to evict.
    pub(super) fn evicting(self) -> Index {
        Index { evicts: true, ..self }
    }

    /// The same table, where an entry that is put without a time of its own lives so long. It does not go with the table to
    /// the next server.
    ///
    /// # Errors
    /// [`PutError::NoLife`] of a table whose entries have none, [`PutError::TimeToLive`] for a time of 0, or one that ends later
    /// than the table can say.
    pub fn with_ttl(mut self, ttl: Option<Duration>) -> Result<Index, PutError> {
        if let Some(given) = ttl {
            let lives = self.lives.take().ok_or(PutError::NoLife)?.with_ttl(ttl);
            lives.check(given)?;
            self.lives = Some(Box::new(lives));
        }
        Ok(self)
    }

    /// The same table, of whose changes `seams` hears from now on. They may have to wait for it.
    #[doc(hidden)]
    pub fn with_seams(self, seams: Arc<dyn Seams>) -> Index {
        Index { hearing: Some(Box::new(Hearing::new(seams))), ..self }
    }

    /// Makes a change of a key when it is the key's turn (L10).
    #[cold]
    #[inline(never)]
    fn in_turn<R>(
        &self,
        hearing: &Hearing,
        key: &[u8],
        change: impl FnOnce(&Turn<'_>) -> Result<R, PutError>,
    ) -> Result<R, PutError> {
        check_lengths(self.geometry(), key, &[])?;
        hearing.in_turn(self.geometry().hashed(key).first().0, change)
    }

    /// Tells clients that this table is given up and that they must connect again.
    pub fn retire(&self) {
        self.table.publish_state(Phase::Retired);
    }

    /// The table's region.
    #[inline]
    pub fn region(&self) -> &Region {
        self.table.region()
    }
    /// The table's geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        self.table.geometry()
    }
    /// Which server process of this region this is, counted from 1.
    pub fn incarnation(&self) -> u64 {
        self.table.incarnation()
    }
    /// Which server this is, of all servers of all tables: a random number, drawn when the table was made or taken over. It
    /// names what lives in this process (I3).
    pub fn launch(&self) -> u64 {
        self.launch
    }
    /// The number of keys.
    pub fn len(&self) -> u64 {
        let entries = match &self.table {
            Table::One(one) => one.segment().len(),
            Table::Many(growth) => growth.counts().keys,
        };
        entries.saturating_sub(self.uncommitted())
    }
    /// Whether the table has no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The number of displaced keys. Locks every stripe in turn.
    pub fn displaced(&self) -> usize {
        match &self.table {
            Table::One(one) => one.segment().homes().displaced(),
            Table::Many(growth) => growth.displaced(),
        }
    }
    /// Keys divided by all slots allocated, overflow included.
    pub fn load_true(&self) -> f64 {
        let counts = self.counts();
        counts.keys as f64 / counts.slots as f64
    }

    /// What was done so far. Each counter is exact, but they may be read at different instants.
    pub fn counts(&self) -> IndexCounts {
        let counts = self.table.counts();
        IndexCounts { keys: counts.keys.saturating_sub(self.uncommitted()), ..counts }
    }

    /// Entries that are not committed: they have slots, and are no keys.
    fn uncommitted(&self) -> u64 {
        self.started().map_or(0, StartedPuts::uncommitted)
    }

    /// How many changes were made so far of what a walk shows (D7): of keys, and of all entries of an owner at once. Each is
    /// counted behind it.
    pub(crate) fn changes_made(&self) -> u64 {
        let IndexCounts { inserts, updates, removes, .. } = self.counts();
        inserts + updates + removes + self.owners.as_ref().map_or(0, Owners::hides)
    }

    /// What a table that grows did so far to grow and shrink, and what it is made of; all zero for a
    /// table of one size.
    pub fn growth(&self) -> GrowthCounts {
        match &self.table {
            Table::One(_) => GrowthCounts::default(),
            Table::Many(growth) => growth.growth_counts(),
        }
    }

    /// From now on, memory of a table that grows is registered here before it is used (E0).
    #[cfg(feature = "verbs")]
    pub(crate) fn register_with(&self, registrar: std::sync::Weak<dyn Registrar>) {
        self.growing().register_with(registrar);
    }

    /// Which blocks of a growing table's heap have been used.
    #[cfg(feature = "verbs")]
    pub(crate) fn blocks_used(&self) -> Vec<u64> {
        self.growing().blocks_used()
    }

    /// Tells clients over a network the remote key of a chunk (E0).
    #[cfg(feature = "verbs")]
    pub(crate) fn tell_key(&self, chunk: u32, remote_key: u32) -> Result<(), RegionError> {
        self.growing().tell_key(chunk, remote_key)
    }

    /// The pieces of memory that have segments of a table that grows.
    #[cfg(feature = "verbs")]
    pub(crate) fn memories(&self) -> Vec<u32> {
        self.growing().memories()
    }

    #[cfg(any(feature = "verbs", feature = "sim"))]
    fn growing(&self) -> &Growth {
        match &self.table {
            Table::One(_) => unreachable!("asked of tables that grow"),
            Table::Many(growth) => growth,
        }
    }

    /// A reader of this table in this process. It does the same GET as clients.
    pub fn reader(&self) -> Reader<'_, Shm<'_>> {
        self.table.reader()
    }

    /// Puts `key` with `value`, as `mode` allows. Every GET that starts after the return sees it.
    ///
    /// A value that does not fit its slot is written to memory of its own first. If there is none, the put
    /// waits for what was removed or replaced a moment ago ([`PutError::HeapBusy`]).
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    pub fn put(&self, key: &[u8], value: &[u8], mode: PutMode) -> Result<PutOutcome, PutError> {
        self.put_by(key, value, mode.into(), None, HeapPatience::Waits)
    }

    /// The same, of an entry that may end by itself. It is gone at most a second after its time, where somebody
    /// calls [`Index::tidy`] that often, or changes keys.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    pub fn put_with(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<PutOutcome, PutError> {
        self.put_by(key, value, options, None, HeapPatience::Waits)
    }

    /// The same for a thread that may not wait: if memory becomes free only later, the error is
    /// [`PutError::HeapBusy`] at once.
    pub(crate) fn put_at_once(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        self.put_by(key, value, options, owner, HeapPatience::None)
    }

    #[inline(always)]
    pub(super) fn put_by(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
        owner: Option<&OwnerSession>,
        patience: HeapPatience,
    ) -> Result<PutOutcome, PutError> {
        if self.geometry().is_inline(key, value.len()) {
            return self.put_stored(key, value.into(), options, owner);
        }
        let mut draft = self.draft(key, value.len(), patience)?;
        let mut outcome = Ok(PutOutcome::Missing);
        // X2
        in_order(
            Rule::ExtentFirst,
            &mut draft,
            |draft| draft.write(value),
            |draft| {
                let named = self.geometry().slot_reference(key, draft.finish());
                outcome = self.put_stored(key, named.stored(), options, owner);
            },
        );
        draft.after(outcome)
    }

    #[inline(always)]
    pub(super) fn put_stored(
        &self,
        key: &[u8],
        value: Stored<'_>,
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        match self.evicts {
            false => self.put_lived(key, value, options, owner),
            true => {
                self.make_evicting(key, value.is_reference(), || self.put_lived(key, value, options, owner))
            }
        }
    }

    #[inline(always)]
    fn put_lived(
        &self,
        key: &[u8],
        value: Stored<'_>,
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        match &self.lives {
            None if options.ttl.is_some() => Err(PutError::NoLife),
            None => self.put_told(key, value, options.mode),
            Some(lives) => self.put_alive(lives, key, value, options, owner),
        }
    }

    /// Puts an entry that has a life.
    #[cold]
    fn put_alive(
        &self,
        lives: &Lives,
        key: &[u8],
        value: Stored<'_>,
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        let outcome = self.put_living(key, value, options, owner);
        self.after_change(lives);
        outcome
    }

    /// The same. Nothing else is done in passing.
    pub(super) fn put_living(
        &self,
        key: &[u8],
        value: Stored<'_>,
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        let Some(lives) = self.lives() else { return Err(PutError::NoLife) };
        let put = owner.map(OwnerSession::begin_put).transpose()?;
        let owner = put.as_ref().map_or(options.owner, OwnerPut::owner);
        let life = lives.life(self.region(), options.ttl, owner)?;
        let outcome = self.put_told(key, value.with_life(Some(&life)), options.mode);
        if let (Some(put), Ok(PutOutcome::Inserted | PutOutcome::Updated)) = (put, &outcome) {
            put.note(self.geometry().hashed(key).first(), &self.table);
        }
        outcome
    }

    /// Ends what has ended, where no server does.
    fn after_change(&self, lives: &Lives) {
        const IN_PASSING: usize = 64;
        if lives.looks_now() {
            let _shift = self.shifts.begin();
            self.expire(lives, IN_PASSING);
        }
    }

    /// Removes up to so many entries that have ended. Returns how long until there is more to do.
    fn expire(&self, lives: &Lives, max: usize) -> Option<Duration> {
        if lives.keeps_ended() {
            return None;
        }
        lives.expire(&self.table, max, |key, now| self.remove_by(key, Which::Ended(now)) == Ok(true))
    }

    #[inline(always)]
    pub(super) fn put_told(
        &self,
        key: &[u8],
        value: Stored<'_>,
        mode: PutMode,
    ) -> Result<PutOutcome, PutError> {
        match &self.hearing {
            None => self.table.put(key, value, mode, Nobody),
            Some(hearing) => self.in_turn(hearing, key, move |turn| self.table.put(key, value, mode, turn)),
        }
    }

    /// Memory for a value of `len` bytes, which does not fit its slot; behind its key, if that does not.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    #[cold]
    pub(crate) fn draft(
        &self,
        key: &[u8],
        len: usize,
        patience: HeapPatience,
    ) -> Result<ExtentDraft, PutError> {
        let geometry = self.geometry();
        check_lengths(geometry, key, &[])?;
        let extents = self.table.extents().filter(|_| len <= geometry.value_max());
        let Some(extents) = extents else {
            return Err(PutError::ValueLength { given: len, max: geometry.value_max() });
        };
        let (hash, clock) = (geometry.hashed(key).first(), self.table.clock());
        let before = &key[..geometry.bytes_before_value(key)];
        // Each put takes on what is to be done.
        extents.tidy(&self.table);
        let begun_ns = clock.now_ns();
        let patience = match patience {
            HeapPatience::None => Duration::ZERO,
            HeapPatience::Waits => {
                let longest = geometry.heap().kept_for(geometry.grace(), geometry.extent_max() as u32);
                4 * longest + Duration::from_secs(1)
            }
        };
        loop {
            let wait = match extents.draft(hash, before.len() + len) {
                Ok(mut draft) => {
                    draft.write(before);
                    return Ok(draft);
                }
                Err(NoMemory::Refused(full @ PutError::HeapFull { .. })) => {
                    self.evict_for_extent(before.len() + len, full)?
                }
                Err(NoMemory::Refused(error)) => return Err(error),
                // Without memory for a reserve no extent moves: those that go make the room.
                Err(NoMemory::Busy(wait)) if self.evicts && extents.is_at_bound() => {
                    self.evict_for_extent(before.len() + len, PutError::Pinned).unwrap_or(wait)
                }
                Err(NoMemory::Busy(wait)) => wait,
            };
            let waited = Duration::from_nanos(clock.now_ns() - begun_ns);
            if waited >= patience {
                return Err(PutError::HeapBusy { given: len, waited });
            }
            if !extents.tidy(&self.table) {
                let wait = wait.clamp(Duration::from_micros(1), Duration::from_millis(1));
                clock.sleep_until(clock.now_ns() + wait.as_nanos() as u64);
            }
        }
    }

    /// Begins a value of `len` bytes that comes in pieces, if there is memory now. `None` if it fits its slot.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    pub(crate) fn upload(&self, key: &[u8], len: usize) -> Result<Option<Upload>, PutError> {
        Ok(self.draft_at_once(key, len)?.map(Upload::new))
    }

    /// Memory for a value of `len` bytes, if there is some now. `None` if the value fits its slot.
    ///
    /// # Errors
    /// [`PutError`]; the table is unchanged.
    pub(crate) fn draft_at_once(&self, key: &[u8], len: usize) -> Result<Option<ExtentDraft>, PutError> {
        check_lengths(self.geometry(), key, &[])?;
        if self.geometry().is_inline(key, len) {
            return Ok(None);
        }
        self.draft(key, len, HeapPatience::None).map(Some)
    }

    /// Puts `key` with a value that is written whole, as `mode` allows (X2).
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    pub(crate) fn put_draft(
        &self,
        key: &[u8],
        mut draft: ExtentDraft,
        options: PutOptions,
        owner: Option<&OwnerSession>,
    ) -> Result<PutOutcome, PutError> {
        let named = self.geometry().slot_reference(key, draft.finish());
        let outcome = self.put_stored(key, named.stored(), options, owner);
        draft.after(outcome)
    }

    /// What the memory of values is used for that do not fit their slots.
    pub fn heap(&self) -> HeapCounts {
        self.table.extents().map_or_else(HeapCounts::default, |extents| extents.counts())
    }

    /// Puts `value` if the key's value is `expected`. The key's lock is held from the look to the
    /// write (L2), so no other change of the key comes between.
    ///
    /// # Errors
    /// [`PutError::KeyLength`], or [`PutError::ValueLength`] for either value.
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
    ) -> Result<SwapOutcome, PutError> {
        self.swap_by(key, Expected::Value(expected), value, HeapPatience::Waits)
    }

    /// The same for a thread that may not wait ([`Index::put_at_once`]).
    pub(crate) fn swap_at_once(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
    ) -> Result<SwapOutcome, PutError> {
        self.swap_by(key, expected, value, HeapPatience::None)
    }

    /// Removes `key` if its value is `expected`: a compare-and-swap to absence.
    ///
    /// # Errors
    /// As [`Index::compare_and_swap`].
    pub fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<SwapOutcome, PutError> {
        self.remove_expected(key, Expected::Value(expected))
    }

    pub(crate) fn remove_expected(
        &self,
        key: &[u8],
        expected: Expected<'_>,
    ) -> Result<SwapOutcome, PutError> {
        self.swap_stored(key, expected, Becomes::Leaves)
    }

    #[inline(always)]
    pub(super) fn swap_by(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        patience: HeapPatience,
    ) -> Result<SwapOutcome, PutError> {
        if self.geometry().is_inline(key, value.len()) {
            return self.swap_stored(key, expected, Becomes::Has(value.into()));
        }
        let mut draft = self.draft(key, value.len(), patience)?;
        draft.write(value);
        self.swap_draft(key, expected, draft)
    }

    /// Puts a value that is written whole if the key's value is the expected one.
    ///
    /// # Errors
    /// As [`Index::compare_and_swap`].
    pub(crate) fn swap_draft(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        mut draft: ExtentDraft,
    ) -> Result<SwapOutcome, PutError> {
        let named = self.geometry().slot_reference(key, draft.finish());
        let outcome = self.swap_stored(key, expected, Becomes::Has(named.stored()))?;
        if outcome == SwapOutcome::Swapped {
            draft.named();
        }
        Ok(outcome)
    }

    pub(super) fn swap_stored(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        becomes: Becomes<'_>,
    ) -> Result<SwapOutcome, PutError> {
        check_lengths(self.geometry(), key, expected.bytes())?;
        if let Becomes::Has(value) = becomes {
            check_stored(self.geometry(), key, value)?;
        }
        let mut swap = Swap::new(key, expected, becomes, self.table.extents().map(|extents| &**extents));
        self.changed(key, &mut swap, None)?;
        Ok(swap.outcome())
    }

    /// Makes a change that depends on what the key has. A key that comes is this owner's.
    pub(super) fn changed(
        &self,
        key: &[u8],
        change: &mut impl Decides,
        owner: Option<&OwnerSession>,
    ) -> Result<(), PutError> {
        match self.evicts {
            false => self.changed_lived(key, change, owner),
            true => self.make_evicting(key, false, || self.changed_lived(key, change, owner)),
        }
    }

    fn changed_lived(
        &self,
        key: &[u8],
        change: &mut impl Decides,
        owner: Option<&OwnerSession>,
    ) -> Result<(), PutError> {
        match &self.lives {
            None => self.changed_told(key, change).map(drop),
            Some(lives) => {
                let put = owner.map(OwnerSession::begin_put).transpose()?;
                let life = lives.life(self.region(), None, put.as_ref().map_or(0, OwnerPut::owner))?;
                let changed = self.changed_told(key, &mut Alive::new(change, life))?;
                if let (Some(put), Some(Changed::Came)) = (put, changed) {
                    put.note(self.geometry().hashed(key).first(), &self.table);
                }
                self.after_change(lives);
                Ok(())
            }
        }
    }

    pub(super) fn changed_told(
        &self,
        key: &[u8],
        change: &mut impl Decides,
    ) -> Result<Option<Changed>, PutError> {
        match &self.hearing {
            None => self.table.change(key, change, Nobody),
            Some(hearing) => self.in_turn(hearing, key, |turn| self.table.change(key, change, turn)),
        }
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// [`PutError::KeyLength`].
    pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
        self.remove_by(key, Which::Any)
    }

    /// The same, if the entry is such a one.
    #[inline(always)]
    pub(super) fn remove_by(&self, key: &[u8], which: Which) -> Result<bool, PutError> {
        match &self.hearing {
            None => self.table.remove(key, which, Nobody),
            Some(hearing) => self.in_turn(hearing, key, move |turn| self.table.remove(key, which, turn)),
        }
    }

    /// Takes away every trace that is due, removes entries that have come to their end or whose owner has gone, and takes the splits and
    /// merges that are under way a step on. Mutations do this in passing; a server also does it when idle. Returns
    /// how long until there is more to do. `None`: nothing is left, and nobody has anything of it in hand. It does not
    /// wait for another thread that is at it; then it returns a millisecond at most.
    pub fn tidy(&self) -> Option<Duration> {
        let shift = self.shifts.begin();
        let next = self.tidy_all();
        /// Until a thread looks again that has met another one.
        const AGAIN: Duration = Duration::from_millis(1);
        // L15
        if shift.is_alone() { next } else { Some(next.map_or(AGAIN, |next| next.min(AGAIN))) }
    }

    fn tidy_all(&self) -> Option<Duration> {
        /// Entries that end at a time: some tenths of a millisecond.
        const AT_ONCE: usize = 100;
        let next = match &self.table {
            Table::One(one) => one.tidy(),
            Table::Many(growth) => growth.tidy(),
        };
        let of_lives = self.lives.as_ref().and_then(|lives| {
            let next = self.expire(lives, AT_ONCE);
            if next == Some(Duration::ZERO) {
                lives.call_ender();
            }
            next
        });
        let remove = |key: &Key, owner| self.remove_by(key, Which::Of(owner)).is_ok();
        let of_owners = self.owners.as_ref().and_then(|owners| {
            let has_more = owners.forget_left(&self.table, AT_ONCE).then_some(Duration::ZERO);
            has_more.or(owners.tidy(&self.table, AT_ONCE, remove))
        });
        let of_started = self.started().and_then(|started| self.tidy_started(started));
        let extents = self.table.extents();
        let of_extents = extents.and_then(|extents| {
            if extents.tidy(&self.table) { Some(Duration::ZERO) } else { extents.until_next() }
        });
        let of_evicting = (self.evicts && self.tidy_evicting()).then_some(Duration::ZERO);
        [next, of_lives, of_owners, of_started, of_extents, of_evicting].into_iter().flatten().min()
    }

    /// Ends up to some thousand entries that have come to their end. Returns whether there may be more. [`Index::tidy`] ends
    /// a hundred each time; when many end together, that is not enough to have each gone within a second. A server has
    /// a thread for this. A program that embeds an index may have one, too.
    pub fn end_due(&self) -> bool {
        /// Some milliseconds, after which the thread sees whether it is to stop.
        const AT_ONCE: usize = 4_096;
        let next = self.lives.as_ref().and_then(|lives| self.expire(lives, AT_ONCE));
        next == Some(Duration::ZERO)
    }

    /// The thread that calls [`Index::end_due`] from now on. It is unparked when there is something to do.
    pub(crate) fn set_ender(&self, thread: std::thread::Thread) {
        self.lives.iter().for_each(|lives| lives.set_ender(thread.clone()));
    }

    /// Entries that came to their end and were removed, since the server began; 0 where entries have no life.
    pub fn expired(&self) -> u64 {
        self.lives.as_ref().map_or(0, |lives| lives.expired())
    }

    /// What is noted of entries at present, in memory of this process.
    pub fn notes(&self) -> NoteCounts {
        NoteCounts {
            ends: self.lives().map_or(0, Lives::noted),
            owned: self.owners().map_or(0, Owners::noted),
            records: self.table.told().evictor().map_or(0, Evictor::records),
        }
    }

    /// How long the first of the entries that have ended and are still there has been due; zero if there is none.
    /// It is a second at most where somebody calls [`Index::tidy`] that often.
    pub fn expiry_lag(&self) -> Duration {
        self.lives.as_ref().map_or(Duration::ZERO, |lives| lives.lag())
    }

    /// Makes a segment that may be needed soon, of a table that grows: then no put makes it, which would take
    /// milliseconds. Returns whether there may be more to do. At most four segments are made ahead, and less in a
    /// small table. A server has a thread for this. A program that embeds an index may have one, too; without it, a
    /// put that begins a split makes the segment. Takes milliseconds if there is something to do, else some
    /// microseconds. Memory that the system refuses is counted ([`GrowthCounts::refused`]); the put that needs it
    /// is told.
    ///
    /// [`GrowthCounts::refused`]: crate::stats::GrowthCounts::refused
    pub fn make_ahead(&self) -> bool {
        match &self.table {
            Table::One(_) => false,
            Table::Many(growth) => growth.make_ahead(),
        }
    }

    /// Makes a table that grows as large as it becomes with this many keys in all, before they come: then no put
    /// splits a segment, and no key is copied. Returns when that is done, or when there is no memory for more; a
    /// put that needs more is told; or when a split or merge that is under way has not ended for a second: then
    /// [`Index::make_ahead`] goes on. Takes some 3 ms for each segment. Where a thread makes segments beside the puts
    /// ([`Index::make_ahead`]), one thread that then puts them all gains nothing by it; several do.
    /// Keys that do not come leave the table larger than it need be: [`Index::shrink`] merges segments again.
    /// A table of one size stays as it is.
    ///
    /// [`Index::restore_from`] does this by itself.
    pub fn grow_for(&self, keys: u64) {
        const UNDER_WAY_MAX: Duration = Duration::from_secs(1);
        self.foresee(keys);
        let Table::Many(growth) = &self.table else { return };
        let mut went_on = Instant::now();
        while is_wanted() {
            match growth.grow_as_foreseen() {
                Ahead::On => went_on = Instant::now(),
                Ahead::Waits if went_on.elapsed() < UNDER_WAY_MAX => {
                    self.tidy();
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ahead::Waits | Ahead::Done => return,
            }
        }
    }

    /// Whether more keys are foreseen than the table has grown for yet.
    pub(crate) fn foresees(&self) -> bool {
        match &self.table {
            Table::One(_) => false,
            Table::Many(growth) => growth.foresees(),
        }
    }

    /// The same, which [`Index::make_ahead`] does later.
    pub(crate) fn foresee(&self, keys: u64) {
        if let Table::Many(growth) = &self.table {
            growth.foresee(keys);
        }
    }

    /// The thread that calls [`Index::make_ahead`] from now on. It is unparked when there may be something to do.
    pub(crate) fn set_maker(&self, thread: std::thread::Thread) {
        if let Table::Many(growth) = &self.table {
            growth.set_maker(thread);
        }
    }

    /// Begins every merge of two segments that leaves at most 85 % of what a segment is meant for.
    /// [`Index::tidy`], changes and a server's idle time take them on. Returns how many were begun; 0 for a
    /// table of one size.
    ///
    /// A remove begins a merge by itself where both together have less than 52 to 62 %.
    pub fn shrink(&self) -> u64 {
        match &self.table {
            Table::One(_) => 0,
            Table::Many(growth) => growth.shrink(),
        }
    }

    pub(super) fn started(&self) -> Option<&StartedPuts> {
        self.table.told().started()
    }

    pub(super) fn lives(&self) -> Option<&Lives> {
        self.lives.as_deref()
    }

    /// The owners of its entries, if these may have any.
    pub(super) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref()
    }

    /// Who is told of the table's changes.
    pub(crate) fn feed(&self) -> &Feed {
        self.table.told().feed()
    }

    /// Shows the next keys of a scan to `see`, those of one part of the table, and moves the cursor behind them. Returns
    /// whether there are more. Each key that is there from the first of these calls to the last is shown; one that
    /// comes or goes meanwhile may be.
    ///
    /// A call looks at one part of the table, some dozen keys, or none. Takes no lock that a change waits for.
    ///
    /// ```
    /// # use oneread::embedded::{Clock, Index, KeyCursor, Region};
    /// # use oneread::{Backing, Config, PutMode, TableSize};
    /// # let geometry = Config::new().size(TableSize::Keys(1_000)).geometry()?;
    /// # let region = Region::create(&Backing::Anonymous, geometry.region_bytes())?;
    /// # let index = Index::create(region, geometry, Clock::System)?;
    /// for key in 0..500u32 {
    ///     index.put(&key.to_le_bytes(), b"value", PutMode::Insert)?;
    /// }
    /// let (mut cursor, mut keys) = (KeyCursor::default(), 0);
    /// while index.scan_keys(&mut cursor, |_| keys += 1) {}
    /// assert_eq!(keys, 500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan_keys(&self, cursor: &mut KeyCursor, mut see: impl FnMut(&[u8])) -> bool {
        self.scan_with_owners(cursor, |key, _| see(key))
    }

    /// The same, with the number of each entry's owner.
    pub(super) fn scan_with_owners(&self, cursor: &mut KeyCursor, mut see: impl FnMut(&[u8], u16)) -> bool {
        let more = self.table.scan(&mut cursor.0, &mut |key, _, owner| {
            see(key, owner);
            true
        });
        more.is_some() && !cursor.0.is_at_end()
    }

    /// As [`Table::scan`].
    pub(crate) fn scan(&self, point: &mut ScanPoint, take: &mut TakeKey<'_>) -> Option<u64> {
        self.table.scan(point, take)
    }

    /// As [`Table::hand_over`].
    pub(crate) fn hand_over(&self, within: Duration) -> Result<(), NotHandedOver> {
        self.table.hand_over(within)
    }

    /// How many keys are being changed, where somebody hears of it.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub(super) fn keys_under_way(&self) -> usize {
        self.hearing.as_ref().map_or(0, |hearing| hearing.under_way())
    }

    /// The table behind the face.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// As [`Index::create`], at another pace.
    ///
    /// # Errors
    /// As [`Index::create`].
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn create_at_pace(
        region: Region,
        geometry: Geometry,
        clock: Clock,
        pace: Pace,
    ) -> Result<Index, RegionError> {
        Index::create_by(region, geometry, clock, &Start { pace, ..Start::default() })
    }

    /// As [`Index::open`], at another pace.
    ///
    /// # Errors
    /// As [`Index::open`].
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn open_at_pace(
        region: Region,
        clock: Clock,
        pace: Pace,
    ) -> Result<(Index, Recovered), RecoverError> {
        Index::open_by(region, clock, &Start { pace, ..Start::default() })
    }

    /// Hands the table over to the next server, as a server that stops does. Returns whether it did.
    /// Nobody may change the table later.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn stop(&self) -> bool {
        self.hand_over(Duration::from_secs(1)).is_ok()
    }

    /// The length of a region with room for the longest handover.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn bytes_with_handover(geometry: &Geometry) -> u64 {
        handover_end(geometry)
    }

    /// Begins to split the segment that has this key.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn split(&self, key: &[u8]) {
        self.growing().split(key);
    }

    /// Begins to merge the segment that has this key, and its sibling.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn merge(&self, key: &[u8]) {
        self.growing().merge(key);
    }

    /// Begins to split the segment that has this key, or to merge it and its sibling, if that is possible now.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn pair_up(&self, key: &[u8], is_merge: bool) -> bool {
        self.growing().pair_up(key, is_merge)
    }

    /// Takes the split or merge of the segment that has this key on by `homes` homes.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn drive_at(&self, key: &[u8], homes: u32) {
        self.growing().drive_at(key, homes);
    }

    /// Has one extent move if one is to (X6). Returns whether there is more to do at once.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn move_extent(&self) -> bool {
        self.table.extents().is_some_and(|extents| extents.tidy(&self.table))
    }

    /// Shows every key with its value, as a snapshot does. Returns how many slots were damaged.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn show_all(&self, see: &mut dyn FnMut(&[u8], &[u8])) -> u64 {
        let mut walk = super::whole::Walk::default();
        while self.table.walk(&mut walk, &mut |key, value, _| see(key, value)) {}
        walk.damaged
    }

    /// Takes the oldest split or merge under way on by `homes` homes.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn drive(&self, homes: u32) {
        self.growing().drive_on(homes);
    }

    /// Gives up every merge under way.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn give_up_merges(&self) {
        if let Table::Many(growth) = &self.table {
            growth.give_up_merges();
        }
    }
}
