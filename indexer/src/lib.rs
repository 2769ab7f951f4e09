//! Who has how long a prefix, over HTTP: an indexer that hears LLM engines' KV events, and keeps what it knows in a table of
//! `oneread` (docs/KV-CACHE.md).
//!
//! ```text
//! engines ── KV events, ZeroMQ ──► listen ──► publisher ──► store ──► table (PlacementIndex, links, numbers)
//! routers ── HTTP ──► http ──► api ──► lookup ───────────────────────►
//! local routers ─────────────────────────────────── READs ──────────►
//! ```
//!
//! The table is all that it has: workers, their blocks, their last numbers. So it answers from its first request on with
//! what the one before knew, and asks publishers for the rest. Several may stand over one table ([`lease`]).
//!
//! | module | what it decides | what it must not know |
//! |---|---|---|
//! | [`msgpack`], [`events`] | what a batch says, from its bytes | who sent it |
//! | [`zmtp`], [`endpoint`] | how bytes come from a publisher | what they say |
//! | [`numbers`] | which batch is next, what is a gap, when a publisher has begun again | connections |
//! | [`chain`] | from tokens to hashes | the table |
//! | [`worker`], [`store`], [`links`] | what stands in the table | publishers, HTTP |
//! | [`run`] | what batches leave behind, of blocks and links | in which order it is written |
//! | [`publisher`], [`listen`] | what becomes of a batch; when one is asked for again | HTTP |
//! | [`lease`], [`registry`] | who takes events in; who is registered | what they say |
//! | [`lookup`], [`trust`], [`api`] | what is answered, and to whom | how it travels |
//! | [`http`] | requests and answers as bytes, and their bounds | what is asked |

mod answer;
pub mod api;
pub mod chain;
pub mod counts;
pub mod endpoint;
pub mod events;
mod faults;
pub mod http;
pub mod lease;
pub mod links;
pub mod listen;
pub mod lookup;
pub mod msgpack;
pub mod numbers;
#[doc(hidden)]
pub mod packed;
pub mod publisher;
pub mod registry;
pub mod run;
#[doc(hidden)]
pub mod source;
pub mod store;
#[cfg(test)]
mod tests;
pub mod trust;
pub mod worker;
pub mod zmtp;

use crate::api::Api;
use crate::counts::Counts;
use crate::http::{Listener, Serving};
use crate::lease::{Lease, TERM};
use crate::listen::{Shared, Stores};
use crate::registry::{RegisterError, Registry, Which};
use crate::store::{Store, StoreError};
use crate::trust::{Allowed, Trust, TrustError};
use crate::worker::Worker;
use oneread::Client;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest message of a publisher, where nothing else is said.
pub const MESSAGE_MAX: usize = 4 << 20;
/// Handles for lookups, so many at a time.
const LOOKUPS: usize = 8;
/// Handles for events.
const EVENTS: usize = 4;
/// Handles for what requests change.
const CHANGES: usize = 1;
const STACK: usize = 512 << 10;
/// So long an indexer that ends waits for its threads.
const GONE: Duration = Duration::from_secs(1);

/// What an indexer is asked to be.
#[derive(Clone, Debug)]
pub struct IndexerConfig {
    /// Where it answers.
    pub listen: SocketAddr,
    /// The token that is to be shown.
    pub token: Option<Vec<u8>>,
    /// Endpoints that may be registered without a token.
    pub allowed: Vec<Allowed>,
    /// Workers from the start on.
    pub workers: Vec<Worker>,
    /// The seed of hashes ([`chain::SEED`]).
    pub base: u64,
    /// The longest message of a publisher.
    pub message_max: usize,
    /// For so long a lease is another's that was not renewed.
    pub term: Duration,
}

impl IndexerConfig {
    /// Of one that answers there.
    pub fn new(listen: SocketAddr) -> IndexerConfig {
        let (token, allowed, workers) = (None, Vec::new(), Vec::new());
        IndexerConfig {
            listen,
            token,
            allowed,
            workers,
            base: chain::SEED,
            message_max: MESSAGE_MAX,
            term: TERM,
        }
    }
}

/// Why an indexer does not start.
#[derive(Debug, thiserror::Error)]
pub enum IndexerError {
    /// It would be reached by anybody.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The table.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A worker that was named cannot be registered.
    #[error(transparent)]
    Worker(#[from] RegisterError),
    /// The address.
    #[error("requests cannot be answered at {address}: {source}; give another address or port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system has no thread.
    #[error("the system has no thread for it: {0}; raise the limit on processes (ulimit -u)")]
    Thread(io::Error),
}

/// An indexer. It ends when it is dropped.
#[derive(Debug)]
pub struct Indexer {
    address: SocketAddr,
    registry: Arc<Registry>,
    serving: Option<Serving>,
    tends: Option<JoinHandle<()>>,
    /// Goes last.
    _gone: Gone,
}

/// Waits until threads have given back their handles on the table, which then may go, too. One that connects to a publisher
/// is not waited for.
#[derive(Debug)]
struct Gone(mpsc::Receiver<Infallible>);

impl Drop for Gone {
    fn drop(&mut self) {
        // Nobody sends: it ends when all that could are gone.
        let _ = self.0.recv_timeout(GONE);
    }
}

impl Indexer {
    /// Starts one over the table of a client.
    ///
    /// # Errors
    /// [`IndexerError`].
    pub fn start(client: Client, config: IndexerConfig) -> Result<Indexer, IndexerError> {
        let bind = |source| IndexerError::Bind { address: config.listen, source };
        let listener = Listener::bind(config.listen).map_err(bind)?;
        let address = listener.address();
        let trust = Trust::new(address, config.token, config.allowed)?;
        let mut store = Store::new(client)?;
        let (there, gone) = mpsc::channel();
        let shared = Shared {
            stores: Stores::new(&store, EVENTS, &there),
            registering: Arc::default(),
            counts: Arc::new(Counts::default()),
            base: config.base,
            message_max: config.message_max,
            sweep: AtomicBool::new(false),
            left: AtomicUsize::new(0),
            has_tiers: AtomicBool::new(false),
        };
        let registry = Arc::new(Registry::new(shared, &mut store)?);
        let changes = Arc::new(Stores::new(&store, CHANGES, &there));
        for worker in config.workers {
            let (instance, model, tenant) =
                (worker.instance.clone(), worker.model.clone(), worker.tenant.clone());
            let which =
                Which { instance: &instance, model: &model, tenant: Some(&tenant), rank: Some(worker.rank) };
            match registry.register(&changes, worker.clone()) {
                // Who starts it has the last word.
                Err(RegisterError::Taken { .. }) => {
                    registry.unregister(&changes, &which)?;
                    registry.register(&changes, worker)?;
                }
                registered => drop(registered?),
            }
        }
        let lookups = Arc::new(Stores::new(&store, LOOKUPS, &there));
        let (lease, tended) = (Lease::new(rand::random(), config.term), registry.clone());
        let thread = std::thread::Builder::new().name("oneread-kv-tends".into()).stack_size(STACK);
        let tends = thread.spawn(move || tended.tend(store, lease)).map_err(IndexerError::Thread)?;
        let api = Api { registry: registry.clone(), lookups, changes, trust, peers: Mutex::default() };
        let mut indexer = Indexer { address, registry, serving: None, tends: Some(tends), _gone: Gone(gone) };
        indexer.serving = Some(listener.serve(Arc::new(api)).map_err(IndexerError::Thread)?);
        Ok(indexer)
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it takes events in, and no other one does.
    pub fn is_active(&self) -> bool {
        self.registry.is_active()
    }

    /// What it has counted.
    pub fn counts(&self) -> &Counts {
        self.registry.counts()
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.stop();
        }
        self.registry.stop();
        if let Some(tends) = self.tends.take() {
            // What it could not do is in the log.
            let _ = tends.join();
        }
    }
}
