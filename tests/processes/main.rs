//! Clients and servers in processes of their own, and beside them. While a test starts a process, that has copies
//! of all descriptors for a moment. So whoever serves again where an earlier server was waits for what that had
//! (`start`). Tests that start no process are in `stories` and `rules`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/relay.rs"]
mod relay;

mod long_values;
mod mailbox;
mod server;
mod snapshots;
mod strangers;
mod tcp;
mod tcp_wire;
mod unread;
