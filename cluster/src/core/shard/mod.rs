//! A node's part in one shard.
//!
//! What any part has (`base`), a channel, a change, what a primary has besides (`primary`). Above these, what a primary does:
//! requests (`changes`, `deciding`), room (`evicting`), copies (`channels`), owners (`owned`); and what a copy does (`standby`).
//! Above all of it, how etcd changes the part (`replica`).

mod base;
mod change;
mod changes;
mod channel;
mod channels;
mod deciding;
mod evicting;
mod owned;
mod primary;
mod replica;
mod standby;

pub(in crate::core) use evicting::{WALKS_A_TICK, share};
pub use primary::Primary;
pub use replica::{Replica, Role};
