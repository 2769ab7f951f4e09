//! The client's path to a server on this host: the mapped region, and a Unix socket for requests.

mod attachment;
mod connection;
mod handle;
mod link;
mod mailbox;
mod shared;
mod watch;

pub(super) use handle::ShmHandle;
