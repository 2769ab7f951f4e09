//! The face of the index: [`Index`], with which an embedder, or a server, makes every change.

use super::change::{NewEnd, SwapFrom, SwapTo};
use super::evict::Evictor;
use super::extents::ExtentDraft;
use super::feed::Feed;
use super::homes::NotHandedOver;
use super::lives::Lives;
use super::owners::{OwnerSession, Owners};
use super::recovered::{RecoverError, Recovered};
use super::seams::{SeamTurns, Seams};
use super::segment::Which;
use super::shifts::TidyShifts;
use super::started::StartedPuts;
use super::waits::ChangeWaits;
use super::wanted::{Patience, WantedChange};
use super::whole::{KeyCursor, ScanPoint, Table, TakeKey};
use crate::base::clock::Clock;
use crate::base::random;
use crate::fabric::shm::Shm;
use crate::faults::{Rule, by_rule};
use crate::index::start::Start;
use crate::layout::control::{LastSnapshot, Phase, SAVED_WORD};
use crate::layout::extent::Expected;
use crate::layout::geometry::Geometry;
use crate::outcome::{
    HeapCounts, IndexCounts, NoteCounts, PutError, PutMode, PutOptions, PutOutcome, SwapOutcome,
};
use crate::reader::Reader;
use crate::region::{Region, RegionError};
use std::sync::Arc;
use std::time::Duration;

/// The server's side of a table: it makes every change.
///
/// `Send + Sync`: all operations take `&self`, and several threads may call them at once.
#[derive(Debug)]
pub struct Index {
    /// Shared with changes that were decided, and wait.
    table: Arc<Table>,
    /// The table's: each change asks it several times.
    geometry: Geometry,
    /// The lives of the table's entries, if entries have lives.
    pub(super) lives: Option<Box<Lives>>,
    /// The owners of entries, if entries may have owners.
    owners: Option<Owners>,
    /// The listeners of changes, if there are any.
    seams: Option<Box<SeamTurns>>,
    /// Whether the table evicts entries.
    pub(super) evicts: bool,
    /// The number of this server, among all servers (I3).
    launch: u64,
    /// Which thread does the table's own work.
    pub(super) shifts: TidyShifts,
}

/// Draws the number of one more server (I3).
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

    /// Makes a table, and has `fill` put keys into it before it is in service. If the server is killed meanwhile, no
    /// other server takes the table over. A new file is still to be kept ([`Region::keep`]).
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
        start.evict.map(|policy| table.begin_evicting(policy)).transpose()?;
        let has_owners = table.geometry().has_owners();
        let owners = has_owners.then(|| Owners::make(&clock));
        let launch = draw_launch();
        if has_owners {
            let started = StartedPuts::new(table.region(), table.geometry(), launch, Vec::new());
            table.observers().set_started(started);
        }
        let (evicts, shifts) = (start.evict.is_some(), TidyShifts::default());
        let (geometry, table) = (table.geometry().clone(), Arc::new(table));
        let index = Index { table, geometry, lives, owners, seams: None, evicts, launch, shifts };
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
            table.observers().set_started(StartedPuts::new(table.region(), table.geometry(), launch, keys));
        }
        let (geometry, table, shifts) = (table.geometry().clone(), Arc::new(table), TidyShifts::default());
        Ok((Index { table, geometry, lives, owners, seams: None, evicts: false, launch, shifts }, found))
    }

    /// Whether the table evicts entries.
    #[inline]
    pub fn evicts(&self) -> bool {
        self.evicts
    }

    /// The table, where an entry that is put without a time of its own lives this long from now on. The next server of
    /// the table does not have this time.
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

    /// The table. From now on `seams` hears of its changes, and may delay them.
    #[doc(hidden)]
    pub fn with_seams(self, seams: Arc<dyn Seams>) -> Index {
        Index { seams: Some(Box::new(SeamTurns::new(seams))), ..self }
    }

    /// Tells clients that this table is given up, and that they must reconnect.
    pub fn retire(&self) {
        self.table.publish_state(Phase::Retired);
    }

    /// Writes into the region what became of the last snapshot. To be called before the table is given up or handed
    /// over.
    pub(crate) fn tell_last_snapshot(&self, what: LastSnapshot) {
        self.region().store(SAVED_WORD, what.to_word(self.incarnation()));
    }

    /// The table's region.
    #[inline]
    pub fn region(&self) -> &Region {
        self.table.region()
    }
    /// The table's geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
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
        let entries = match self.table() {
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
        match self.table() {
            Table::One(one) => one.segment().homes().displaced(),
            Table::Many(growth) => growth.displaced(),
        }
    }
    /// Keys divided by all slots allocated, overflow included.
    pub fn load_true(&self) -> f64 {
        let counts = self.counts();
        counts.keys as f64 / counts.slots as f64
    }

    /// Counts of operations so far. Each counter is exact, but they may be read at different instants.
    pub fn counts(&self) -> IndexCounts {
        let counts = self.table.counts();
        IndexCounts { keys: counts.keys.saturating_sub(self.uncommitted()), ..counts }
    }

    /// Entries that are not committed: they have slots, but are not keys.
    fn uncommitted(&self) -> u64 {
        self.started().map_or(0, StartedPuts::uncommitted)
    }

    /// How many changes were made so far of what a walk shows (D7). The removal of an owner's entries is one change.
    /// Each change is counted after it is made.
    pub(crate) fn changes_made(&self) -> u64 {
        let IndexCounts { inserts, updates, removes, .. } = self.counts();
        inserts + updates + removes + self.owners.as_ref().map_or(0, Owners::hides)
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
        self.make(WantedChange::put(key, mode.into()).value(value))
    }

    /// Puts an entry that may end by itself. It is gone at most a second after its time, where somebody
    /// calls [`Index::tidy`] that often, or changes keys.
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged.
    pub fn put_with(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<PutOutcome, PutError> {
        self.make(WantedChange::put(key, options).value(value))
    }

    /// As [`Index::put_with`], for a thread that has others to serve: a put that has to wait returns an error at once, and
    /// `waits` says what it waits for ([`ChangeWaits`]).
    pub(crate) fn try_put(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
        owner: Option<&OwnerSession>,
        waits: &ChangeWaits,
    ) -> Result<PutOutcome, PutError> {
        self.make(WantedChange::put(key, options).value(value).by(owner).patience(Patience::Tries(waits)))
    }

    /// Puts `key` with a value that is already in the heap, as `mode` allows (X2); as [`Index::try_put`].
    ///
    /// # Errors
    /// [`PutError`]; the table is then unchanged, and the draft is as it was.
    pub(crate) fn try_put_draft(
        &self,
        key: &[u8],
        draft: &mut ExtentDraft,
        options: PutOptions,
        owner: Option<&OwnerSession>,
        waits: &ChangeWaits,
    ) -> Result<PutOutcome, PutError> {
        let put = WantedChange::put(key, options).by(owner);
        self.make_named(put.patience(Patience::Tries(waits)), draft, waits)
    }

    /// Counts of the memory of values that do not fit their slots.
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
        let swap = WantedChange::new(key, SwapFrom(Expected::Value(expected), SwapTo::Value)).value(value);
        self.make(swap).map(|(outcome, _)| outcome)
    }

    /// As [`Index::compare_and_swap`], for a thread that has others to serve ([`Index::try_put`]).
    pub(crate) fn try_swap(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        value: &[u8],
        waits: &ChangeWaits,
    ) -> Result<SwapOutcome, PutError> {
        let swap = WantedChange::new(key, SwapFrom(expected, SwapTo::Value)).value(value);
        self.make(swap.patience(Patience::Tries(waits))).map(|(outcome, _)| outcome)
    }

    /// As [`Index::try_swap`], with a value that is already in the heap.
    ///
    /// # Errors
    /// As [`Index::try_put_draft`].
    pub(crate) fn try_swap_draft(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        draft: &mut ExtentDraft,
        waits: &ChangeWaits,
    ) -> Result<SwapOutcome, PutError> {
        let swap = WantedChange::new(key, SwapFrom(expected, SwapTo::Value));
        self.make_named(swap.patience(Patience::Tries(waits)), draft, waits).map(|(outcome, _)| outcome)
    }

    /// Gives an entry another end: it lives for `ttl` from now on, or without one as an entry that is put without a time.
    /// Its value and its number stay. Returns whether it is there. One that has ended is not.
    ///
    /// # Errors
    /// [`PutError::NoLife`] of a table whose entries have none, [`PutError::TimeToLive`], [`PutError::KeyLength`].
    pub fn touch(&self, key: &[u8], ttl: Option<Duration>) -> Result<bool, PutError> {
        self.touch_by(key, ttl, Patience::Sleeps)
    }

    /// As [`Index::touch`], for a thread that has others to serve ([`Index::try_put`]).
    pub(crate) fn touch_by(
        &self,
        key: &[u8],
        ttl: Option<Duration>,
        patience: Patience<'_>,
    ) -> Result<bool, PutError> {
        let lives = self.lives().ok_or(PutError::NoLife)?;
        let end = NewEnd { now: lives.now(), expiry: lives.expiry(ttl)? };
        Ok(self.make(WantedChange::new(key, end).patience(patience))?.0)
    }

    /// Removes `key` if its value is `expected`: a compare-and-swap to absence.
    ///
    /// # Errors
    /// As [`Index::compare_and_swap`].
    pub fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<SwapOutcome, PutError> {
        self.remove_expected(key, Expected::Value(expected), Patience::Sleeps)
    }

    pub(crate) fn remove_expected(
        &self,
        key: &[u8],
        expected: Expected<'_>,
        patience: Patience<'_>,
    ) -> Result<SwapOutcome, PutError> {
        let swap = WantedChange::new(key, SwapFrom(expected, SwapTo::Absent));
        self.make(swap.patience(patience)).map(|(outcome, _)| outcome)
    }

    /// Removes `key`. Returns whether it was there.
    ///
    /// # Errors
    /// [`PutError::KeyLength`].
    pub fn remove(&self, key: &[u8]) -> Result<bool, PutError> {
        self.remove_by(key, Which::Any)
    }

    /// As [`Index::remove`], for a thread that has others to serve ([`Index::try_put`]).
    pub(crate) fn try_remove(&self, key: &[u8], waits: &ChangeWaits) -> Result<bool, PutError> {
        self.make(WantedChange::new(key, Which::Any).patience(Patience::Tries(waits)))
    }

    /// Counts of the notes on entries, which are in memory of this process.
    pub fn notes(&self) -> NoteCounts {
        NoteCounts {
            ends: self.lives().map_or(0, Lives::noted),
            owned: self.owners().map_or(0, Owners::noted),
            records: self.table.observers().evictor().map_or(0, Evictor::records),
        }
    }

    #[inline(always)]
    pub(super) fn started(&self) -> Option<&StartedPuts> {
        self.table.observers().started()
    }

    #[inline(always)]
    pub(super) fn lives(&self) -> Option<&Lives> {
        self.lives.as_deref()
    }

    /// The owners of entries, if entries may have owners.
    #[inline(always)]
    pub(super) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref()
    }

    /// The listeners of changes, if there are any.
    #[inline(always)]
    pub(super) fn seams(&self) -> Option<&SeamTurns> {
        self.seams.as_deref()
    }

    /// The feed of the table's changes.
    pub(crate) fn feed(&self) -> &Feed {
        self.table.observers().feed()
    }

    /// Shows the next keys of a scan to `see`, those of one part of the table, and moves the cursor behind them.
    /// Returns whether there are more. A scan shows every key that is there from its first call to its last. It may
    /// show a key that comes or goes meanwhile.
    ///
    /// A call looks at one part of the table. It shows some dozen keys, or none. Takes no lock that a change waits for.
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

    /// Scans as [`Index::scan_keys`] does. Shows the number of each entry's owner, too.
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

    /// How many keys are being changed, in a table with listeners.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub(crate) fn keys_under_way(&self) -> usize {
        self.seams.as_ref().map_or(0, |seams| seams.under_way())
    }

    /// The index's table.
    #[inline(always)]
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// The index's table, for what goes on without the index.
    pub(super) fn shared_table(&self) -> &Arc<Table> {
        &self.table
    }
}
