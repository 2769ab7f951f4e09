//! The adversarial fabric: a NIC that may do anything hardware may do.
//!
//! Clients of a one-sided index do not influence the server. So the server runs first, unmodified,
//! over a [recorded](Recorder) region. Each store goes into a [`History`] with its time. Then GETs
//! run against that history, driven by the same machine as on every fabric. A READ is posted at `p`
//! and completes at `c`. It returns each *unit* of memory as it was at some instant of `[p, c]`. An
//! [`Adversary`] picks the instants. It may take units in any order and interleave the READs of one
//! doorbell in any way.
//!
//! * [`Unit::Line`] is assumption H1: a 64-byte line is sampled at one instant.
//! * [`Unit::Word`] is H0: only an 8-byte word is.
//!
//! Time is that of a manual [`Clock`](crate::embedded::Clock), which each store advances. A server that stops
//! for ever at some store is a history that ends there ([`History::until`]).
//!
//! | module | what it is |
//! | --- | --- |
//! | `history` | every store of a server, with its time |
//! | `choices` | decides what hardware leaves open |
//! | `nic` | the fabric: READs torn as chosen |
//! | `turns` | server threads that run one at a time, as chosen |
//! | `keys` | keys by number |
//! | `stores` | what the stores of a history did: moves, homings, blocks |
//! | `scene`, `world` | the parameters of a server, and a server over a recorded region |
//! | `oracle` | every value that each key had, and from when to when: what answers are right |
//! | `past`, `clients` | what a server did, and the GETs of clients that are run against it |
//! | `decided` | how many GETs each rule decided |
//!
//! The core reaches the simulator only through `observe.rs`.

mod choices;
mod clients;
mod decided;
mod history;
mod keys;
mod nic;
mod oracle;
mod past;
mod scene;
mod stores;
pub(crate) mod turns;
mod world;

pub use crate::index::growth::pace::Pace;
pub use choices::{Adversary, Bytes, Every, Random};
pub use decided::{By, Decided};
pub use history::{History, Instant, Recorder, Stalls};
pub use keys::{KeyNumber, key, mixed};
pub use nic::{Aim, Hardware, Met, Pass, Sim, SimGetError, Unit, Witness};
pub use oracle::{Change, GetAnswer, Violation};
pub use past::{Past, PlannedGet, PlannedGets};
pub use scene::Scene;
pub use stores::{Incident, IncidentKind, Move};
pub use turns::{StopAt, accesses_of, interrupt, run as take_turns};
pub use world::World;
