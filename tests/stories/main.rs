//! Indexes, servers and clients in this process. No test here starts another process: that would have copies of all
//! descriptors for a moment, also of locks and sockets of servers that have ended (`processes` is for these).

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "encryption")]
#[path = "../common/encrypted.rs"]
mod encrypted;

mod defaults;
#[cfg(feature = "encryption")]
mod encryption;
mod feed;
mod growth;
mod long_keys;
mod pool;
#[cfg(feature = "tls")]
mod tls;
mod waits;
