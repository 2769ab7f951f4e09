//! Stories in this process that are told again in builds with the switches for broken rules, and have more to tell
//! there. As in `stories`, no test starts another process.

#[path = "../common/churned.rs"]
mod churned;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/meanwhile.rs"]
mod meanwhile;
#[path = "../common/relay.rs"]
mod relay;

mod evict;
mod extents;
mod far;
mod hints;
mod identity;
mod lives;
mod logged;
mod long_model;
mod owners;
mod pieces;
mod tenures;
mod two_of_each;
mod two_steps;
