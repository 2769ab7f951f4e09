//! A node's part in one shard.
//!
//! `base` is the state of any part; then come a channel, a change, and the further state of a primary (`primary`).
//! Above them are the tasks of a primary: requests (`changes`, `deciding`), room (`evicting`), copies (`channels`),
//! owners (`owned`); and the tasks of a copy (`standby`). On top, `replica` is how etcd changes the part.

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
