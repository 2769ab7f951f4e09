//! Indexes, servers and clients in this process. No test here starts another process: that would have copies of all
//! descriptors for a moment, also of locks and sockets of servers that have ended (`processes` is for these).

#[path = "../common/churned.rs"]
mod churned;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "encryption")]
#[path = "../common/encrypted.rs"]
mod encrypted;

mod defaults;
#[cfg(feature = "encryption")]
mod encryption;
mod evict;
mod extents;
mod feed;
mod growth;
mod hints;
mod lives;
mod long_keys;
mod long_model;
mod owners;
mod pool;
#[cfg(feature = "tls")]
mod tls;
mod two_steps;
