//! All workers: who is registered, whose events are heard here, and what the table needs now and then.

use crate::counts::Counts;
use crate::lease::{Lease, Role};
use crate::listen::{Control, Shared, Status, Stores, listen};
use crate::store::{Store, StoreError};
use crate::worker::{Partition, PublisherId, Worker};
use oneread::ScanCursor;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most publishers.
pub const PUBLISHERS_MAX: usize = 4_096;
/// Memory of a publisher's thread for its calls.
const STACK: usize = 512 << 10;
/// Entries that are cleaned at a time.
const CLEANED: usize = 4_096;
/// For so long requests of a process that is dead may still be under way to the server.
const LAST_REQUESTS: Duration = Duration::from_millis(300);
/// How often the workers are read where nothing says that they have changed.
const REFRESHED_EVERY: Duration = Duration::from_secs(60);

/// Why a worker is not registered, or not found.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Another one has its place.
    #[error(
        "instance {instance:?} with rank {rank} is registered with other terms ({endpoint}); unregister it first"
    )]
    Taken {
        /// The instance.
        instance: String,
        /// Its rank.
        rank: u32,
        /// Its endpoint.
        endpoint: String,
    },
    /// Blocks of one model and tenant have one size.
    #[error(
        "model {model:?} of tenant {tenant:?} has blocks of {known} tokens here, and {given} were given; register it with another model name or tenant"
    )]
    BlockSize {
        /// The model.
        model: String,
        /// The tenant.
        tenant: String,
        /// The size that is known.
        known: NonZeroU32,
        /// The one given.
        given: NonZeroU32,
    },
    /// There are too many.
    #[error("{max} publishers are registered, which is the most; unregister some")]
    Many {
        /// The most.
        max: usize,
    },
    /// Another indexer over the table has changed it meanwhile.
    #[error("another indexer has just changed this worker; try again")]
    Raced,
    /// Nobody has this name.
    #[error("no such worker is registered")]
    Unknown,
    /// The table did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A worker, and how it does.
#[derive(Clone, Debug)]
pub struct Listed {
    /// As it was registered.
    pub worker: Arc<Worker>,
    /// How its events come in. Of a standby, nothing is known.
    pub status: Option<Status>,
}

#[derive(Debug)]
struct Known {
    worker: Arc<Worker>,
    control: Option<Arc<Control>>,
}

#[derive(Debug, Default)]
struct State {
    /// By what tells them apart, whatever their incarnation.
    workers: BTreeMap<PublisherId, Known>,
    version: Vec<u8>,
    is_active: bool,
    is_stopped: bool,
}

/// All workers of an indexer.
#[derive(Debug)]
pub struct Registry {
    shared: Arc<Shared>,
    state: Mutex<State>,
    is_changed: Condvar,
    /// Held while workers are registered, or read from the table: what is read is not older than what is known.
    changing: Mutex<()>,
}

/// Which workers are meant. What is left out may be any.
#[derive(Clone, Debug, Default)]
pub struct Which<'a> {
    /// The instance.
    pub instance: &'a str,
    /// The model.
    pub model: &'a str,
    /// The tenant.
    pub tenant: Option<&'a str>,
    /// The rank.
    pub rank: Option<u32>,
}

impl Registry {
    /// Of the workers that the table knows.
    ///
    /// # Errors
    /// The table's.
    pub fn new(shared: Shared, store: &mut Store) -> Result<Registry, StoreError> {
        let (shared, state, is_changed) = (Arc::new(shared), Mutex::default(), Condvar::new());
        let registry = Registry { shared, state, is_changed, changing: Mutex::default() };
        registry.shared.has_tiers.store(store.has_tiers()?, Ordering::Relaxed);
        registry.refresh(store)?;
        Ok(registry)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is counted.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// The seed of hashes.
    pub fn base(&self) -> u64 {
        self.shared.base
    }

    /// Whether events are taken in here.
    pub fn is_active(&self) -> bool {
        self.lock().is_active
    }

    /// Whether some worker has blocks elsewhere than in its device.
    pub fn has_tiers(&self) -> bool {
        self.shared.has_tiers.load(Ordering::Relaxed)
    }

    // ---- what is asked for ----------------------------------------------------------------------

    /// Registers a worker. Returns whether it was not registered before, with the same terms.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(&self, stores: &Stores, worker: Worker) -> Result<bool, RegisterError> {
        let _changing = self.changing();
        if self.is_known(&worker)? {
            return Ok(false);
        }
        // Nothing that is left of an earlier registration is of this one.
        let worker = Worker { incarnation: rand::random(), ..worker };
        if !stores.with(|store| store.swap_worker(None, Some(&worker)))? {
            // Another indexer has registered it, a moment ago.
            stores.with(|store| self.read(store))?;
            return if self.is_known(&worker)? { Ok(false) } else { Err(RegisterError::Raced) };
        }
        let identity = worker.identity();
        let mut state = self.lock();
        let control = state.is_active.then(|| self.hear(&worker));
        state.workers.insert(identity, Known { worker: Arc::new(worker), control: control.flatten() });
        Ok(true)
    }

    /// Whether a worker is registered with these terms.
    fn is_known(&self, worker: &Worker) -> Result<bool, RegisterError> {
        let state = self.lock();
        if let Some(known) = state.workers.get(&worker.identity()) {
            let Worker { instance, rank, endpoint, incarnation, next, .. } = &*known.worker;
            if (Worker { incarnation: *incarnation, next: *next, ..worker.clone() }) == *known.worker {
                return Ok(true);
            }
            let (instance, rank, endpoint) = (instance.clone(), *rank, endpoint.to_string());
            return Err(RegisterError::Taken { instance, rank, endpoint });
        }
        if let Some(known) =
            block_size(&state, worker.partition()).filter(|known| *known != worker.block_size)
        {
            let (model, tenant) = (worker.model.clone(), worker.tenant.clone());
            return Err(RegisterError::BlockSize { model, tenant, known, given: worker.block_size });
        }
        if state.workers.len() >= PUBLISHERS_MAX {
            return Err(RegisterError::Many { max: PUBLISHERS_MAX });
        }
        Ok(false)
    }

    /// Unregisters workers: they have no blocks from then on. Returns which.
    ///
    /// # Errors
    /// [`RegisterError::Unknown`] if there are none; the table's. It may be repeated.
    pub fn unregister(&self, stores: &Stores, which: &Which<'_>) -> Result<Vec<Arc<Worker>>, RegisterError> {
        let _changing = self.changing();
        // Another indexer may have registered some, or taken them over.
        stores.with(|store| self.read(store))?;
        let state = self.lock();
        let is_meant = |worker: &Worker| {
            worker.instance == which.instance
                && worker.model == which.model
                && which.tenant.is_none_or(|tenant| worker.tenant == tenant)
                && which.rank.is_none_or(|rank| worker.rank == rank)
        };
        let meant = state.workers.iter().filter(|(_, known)| is_meant(&known.worker));
        let meant: Vec<(PublisherId, Arc<Worker>)> =
            meant.map(|(identity, known)| (*identity, known.worker.clone())).collect();
        drop(state);
        if meant.is_empty() {
            return Err(RegisterError::Unknown);
        }
        let mut gone = Vec::new();
        for (identity, worker) in meant {
            let id = worker.id();
            // Once it is not there, no indexer begins to hear it. If it stays, it is heard again.
            let heard = self.lock().workers.get_mut(&identity).and_then(|known| known.control.take());
            heard.iter().for_each(|control| control.stop());
            if !stores.with(|store| store.swap_worker(Some(&worker), None))? {
                return Err(RegisterError::Raced);
            }
            // Who tends the table may have begun to hear it meanwhile.
            let heard = self.lock().workers.remove(&identity).and_then(|known| known.control);
            heard.iter().for_each(|control| control.stop());
            stores.with(|store| store.hide(id, |_| true).and_then(|_| store.forget(id)))?;
            gone.push(worker);
        }
        self.shared.sweep.store(true, Ordering::Relaxed);
        Ok(gone)
    }

    /// All workers, in an order that stays.
    pub fn list(&self) -> Vec<Listed> {
        let state = self.lock();
        let mut all: Vec<Listed> = state
            .workers
            .values()
            .map(|known| Listed {
                worker: known.worker.clone(),
                status: known.control.as_ref().map(|control| control.status()),
            })
            .collect();
        fn key(it: &Listed) -> (&str, &str, &str, u32) {
            let Worker { model, tenant, instance, rank, .. } = &*it.worker;
            (model, tenant, instance, *rank)
        }
        all.sort_by(|a, b| key(a).cmp(&key(b)));
        all
    }

    /// The instances of a model and tenant, or one of them, and the ranks of each.
    pub fn ranks(&self, model: &str, tenant: &str, only: Option<&str>) -> BTreeMap<String, Vec<u32>> {
        let state = self.lock();
        let is_of = |worker: &&Arc<Worker>| {
            worker.model == model
                && worker.tenant == tenant
                && only.is_none_or(|only| worker.instance == only)
        };
        let mut ranks: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for worker in state.workers.values().map(|known| &known.worker).filter(is_of) {
            ranks.entry(worker.instance.clone()).or_default().push(worker.rank);
        }
        ranks
    }

    /// Tokens of a block, of a model and tenant that somebody has registered.
    pub fn block_size(&self, partition: Partition) -> Option<NonZeroU32> {
        block_size(&self.lock(), partition)
    }

    // ---- what goes on meanwhile -----------------------------------------------------------------

    /// Begins to hear a worker. `None`: the system has no thread; it is tried again.
    fn hear(&self, worker: &Worker) -> Option<Arc<Control>> {
        let control = Arc::new(Control::default());
        let (worker, shared) = (Arc::new(worker.clone()), self.shared.clone());
        let heard = control.clone();
        let thread = std::thread::Builder::new().name("oneread-kv-hears".into()).stack_size(STACK);
        match thread.spawn(move || listen(&worker, &shared, &heard)) {
            Ok(_) => Some(control),
            Err(error) => {
                tracing::error!("a worker is not heard, as there is no thread for it: {error}");
                None
            }
        }
    }

    /// Has the workers be those of the table.
    fn refresh(&self, store: &mut Store) -> Result<(), StoreError> {
        let _changing = self.changing();
        self.read(store)
    }

    /// As [`Registry::refresh`], for who changes workers.
    fn read(&self, store: &mut Store) -> Result<(), StoreError> {
        // What is changed by others meanwhile has another version.
        let version = store.version()?;
        let workers = store.workers()?;
        self.adopt(&mut self.lock(), workers, version);
        Ok(())
    }

    fn registering(&self) -> MutexGuard<'_, ()> {
        self.shared.registering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn adopt(&self, state: &mut State, workers: Vec<Worker>, version: Vec<u8>) {
        let there: HashMap<PublisherId, Worker> =
            workers.into_iter().map(|worker| (worker.identity(), worker)).collect();
        state.workers.retain(|identity, known| {
            let stays = there.get(identity) == Some(&*known.worker);
            if !stays {
                known.control.iter().for_each(|control| control.stop());
            }
            stays
        });
        for (identity, worker) in there {
            state
                .workers
                .entry(identity)
                .or_insert_with(|| Known { worker: Arc::new(worker), control: None });
        }
        state.version = version;
    }

    fn begin_all(&self, state: &mut State) {
        for known in state.workers.values_mut().filter(|known| known.control.is_none()) {
            known.control = self.hear(&known.worker);
        }
    }

    fn end_all(state: &mut State) {
        for known in state.workers.values_mut() {
            if let Some(control) = known.control.take() {
                control.stop();
            }
        }
    }

    /// Tends the table until it is stopped: by a thread of its own.
    pub fn tend(&self, mut store: Store, mut lease: Lease) {
        let mut tending = Tending { sweep: true, ..Tending::default() };
        loop {
            if let Err(error) = self.step(&mut store, &mut lease, &mut tending) {
                self.shared.counts.table_errors.one();
                tracing::warn!("the table does not answer: {error}");
            }
            let state = self.lock();
            let (state, _) = self
                .is_changed
                .wait_timeout_while(state, lease.period(), |state| !state.is_stopped)
                .unwrap_or_else(PoisonError::into_inner);
            if state.is_stopped {
                break;
            }
        }
        Registry::end_all(&mut self.lock());
        if let Err(error) = lease.release(&mut store) {
            tracing::warn!("the lease is not given back, and others wait until it is over: {error}");
        }
    }

    /// Has the thread that tends the table end, and all that hear.
    pub fn stop(&self) {
        self.lock().is_stopped = true;
        self.is_changed.notify_all();
    }

    fn step(&self, store: &mut Store, lease: &mut Lease, tending: &mut Tending) -> Result<(), StoreError> {
        let role = lease.step(store)?;
        match role {
            Role::Standby => {
                let mut state = self.lock();
                if state.is_active {
                    tracing::warn!("another indexer takes events in from now on; this one answers");
                    state.is_active = false;
                    Registry::end_all(&mut state);
                }
                tending.begun = false;
            }
            Role::Adopted | Role::TookOver => {
                self.shared.counts.takeovers.one();
                tending.begun = false;
                tending.is_slow_one_there |= role == Role::TookOver;
            }
            Role::Active => {}
        }
        if store.has_tiers()? {
            self.shared.has_tiers.store(true, Ordering::Relaxed);
        }
        let version = store.version()?;
        let is_known = self.lock().version == version;
        // Who is killed between a change and its second number may have had the first one seen without the change.
        if !is_known || tending.refreshed.is_none_or(|at| at.elapsed() >= REFRESHED_EVERY) {
            self.refresh(store)?;
            tending.refreshed = Some(Instant::now());
        }
        if role == Role::Standby {
            return Ok(());
        }
        if !tending.begun {
            self.begin(store, lease, tending)?;
        }
        let mut state = self.lock();
        // Also those that another indexer has registered meanwhile.
        self.begin_all(&mut state);
        state.is_active = true;
        let known: HashSet<PublisherId> = state.workers.values().map(|known| known.worker.id()).collect();
        drop(state);
        // A laggard may have registered its holder just before it was told.
        store.hide_others(&known)?;
        self.clean(store, tending)
    }

    /// Begins to take events in, after another one has.
    ///
    /// # Errors
    /// [`StoreError::Gone`]: meanwhile another one has taken over.
    fn begin(&self, store: &mut Store, lease: &mut Lease, tending: &mut Tending) -> Result<(), StoreError> {
        let mut renewed = Instant::now();
        let mut may_go_on = |store: &mut Store| {
            if renewed.elapsed() < lease.period() {
                return Ok(());
            }
            renewed = Instant::now();
            match lease.step(store)? {
                Role::Active => Ok(()),
                Role::Standby | Role::Adopted | Role::TookOver => Err(StoreError::Gone),
            }
        };
        if tending.is_slow_one_there {
            let workers = store.workers()?;
            for old in &workers {
                let next = rand::random();
                let marked = Worker { next: Some(next), ..old.clone() };
                let new = Worker { incarnation: next, next: None, ..old.clone() };
                if !store.swap_worker(Some(old), Some(&marked))? {
                    return Err(StoreError::Gone);
                }
                if !store.copy(old, &new, &mut may_go_on)? {
                    store.hide(new.id(), |_| true)?;
                    store.forget(new.id())?;
                }
                store.swap_worker(Some(&marked), Some(&new))?;
                store.hide(old.id(), |_| true)?;
                store.forget(old.id())?;
                may_go_on(store)?;
            }
            tending.is_slow_one_there = false;
        } else {
            std::thread::sleep(LAST_REQUESTS);
        }
        self.refresh(store)?;
        let known: HashSet<PublisherId> =
            self.lock().workers.values().map(|known| known.worker.id()).collect();
        // Of workers that were being unregistered, or taken over, by one that is dead. Nobody has begun to hear yet, so those
        // that are just registered have none.
        store.hide_others(&known)?;
        // The bits of a new table are all unknown.
        let _registering = self.registering();
        while !store.index.clean(CLEANED)?.is_done {
            may_go_on(store)?;
        }
        (tending.begun, tending.sweep) = (true, true);
        Ok(())
    }

    /// A step of what is to be cleaned: bits of holders that are gone, and links of blocks that are.
    fn clean(&self, store: &mut Store, tending: &mut Tending) -> Result<(), StoreError> {
        if self.shared.sweep.swap(false, Ordering::Relaxed) {
            (tending.sweep, tending.clean) = (true, true);
        }
        if tending.clean {
            let _registering = self.registering();
            tending.clean = !store.index.clean(CLEANED)?.is_done;
        }
        // What only those have who are not cleaned yet is not swept.
        if tending.sweep && !tending.clean {
            let (swept, is_done) = store.sweep(&mut tending.cursor, self.shared.base)?;
            self.shared.counts.swept.add(swept as u64);
            if is_done {
                (tending.sweep, tending.cursor) = (false, None);
            }
        }
        Ok(())
    }
}

/// What the thread that tends the table has under way.
#[derive(Debug, Default)]
struct Tending {
    /// When the workers were read last.
    refreshed: Option<Instant>,
    /// Events are taken in.
    begun: bool,
    /// The one before may go on for a while.
    is_slow_one_there: bool,
    clean: bool,
    sweep: bool,
    cursor: Option<ScanCursor>,
}

fn block_size(state: &State, partition: Partition) -> Option<NonZeroU32> {
    let mut workers = state.workers.values().map(|known| &known.worker);
    workers.find(|worker| worker.partition() == partition).map(|worker| worker.block_size)
}
