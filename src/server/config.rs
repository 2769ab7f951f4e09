//! The options of a server.

use super::snapshots::Snapshots;
#[cfg(feature = "verbs")]
use super::verbs::extension::ServerExtension;
use crate::address::{Address, TcpAddress};
use crate::base::setters::setters;
use crate::config::{Config, Evict, StartLimits};
use crate::index::start::StartProgress;
use crate::log::LogConfig;
use crate::region::Backing;
use crate::tls::ServerTls;
use crate::verbs::Wait;
use crate::wire::proof::Token;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Whether to make a new table or to take over an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartMode {
    /// Makes a new table. The region file must not exist, be empty, or hold a table that was never
    /// finished.
    Create,
    /// Takes over the table in the region file, which must exist, with its own geometry.
    Open,
    /// Takes over the table in the region file if there is a finished one, with its own geometry.
    /// Otherwise makes a new one.
    OpenOrCreate,
}

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The address that clients connect to.
    pub address: Address,
    /// Another address, for clients over TCP, beside one of another fabric. If other hosts can reach it, it needs a
    /// token ([`ServerConfig::token`]). Data over TCP can be read on the way, unless TLS protects it
    /// ([`ServerConfig::tls`]).
    pub tcp: Option<TcpAddress>,
    /// Where the region's memory comes from.
    pub backing: Backing,
    /// Whether memory stays in pages of the system's default size. Otherwise a table on tmpfs or in anonymous memory is
    /// moved into huge pages of 2 MiB as it takes memory, whatever the system's settings are, if the kernel can do that
    /// (Linux 6.1).
    pub small_pages: bool,
    /// What a new table is made from. A table that is taken over keeps its own geometry.
    pub table: Config,
    /// How long entries live that are put without a time of their own ([`PutOptions::ttl`](crate::PutOptions::ttl)), in
    /// a table whose entries have lives ([`Config::life`](crate::Config::life)). The next server of the table does not
    /// have this time. `None`: until they are removed.
    pub ttl: Option<Duration>,
    /// New table or existing one.
    pub start: StartMode,
    /// Threads that serve requests, up to 1,024. With 0, the server starts one.
    pub workers: usize,
    /// On shm: users who may read and change the table, beside the server's own and root.
    pub allow_uids: Vec<u32>,
    /// On shm: users who may read the table, and not change it
    /// ([`MutateError::ReadOnly`](crate::MutateError::ReadOnly)).
    pub allow_read_uids: Vec<u32>,
    /// Most connections at a time. Further ones are refused. On shm there is one for a client and
    /// its clones, and one more for each further handle that sends requests (changes,
    /// [`Client::get_two_sided`](crate::Client::get_two_sided),
    /// [`Client::server_stats`](crate::Client::server_stats)) while another one does. Over verbs each queue pair of a
    /// client is one, and over TCP each handle. Each takes a file descriptor of the server's.
    pub clients_max: usize,
    /// Most connections of one peer: on shm a user other than the server's own, over verbs and TCP a host.
    pub clients_per_peer: usize,
    /// The longest time for a client to join, to complete a request that it has begun to send, to send 64 KiB of a
    /// value that it uploads, or, over TCP, to read anything once more than `unread_bytes_max` is unread. After that,
    /// its connection is closed.
    pub half_open: Duration,
    /// On shm and over TCP: with this many unread bytes of replies, the server stops reading a client's requests until
    /// the client has read. So they bound the requests of one client that are under way as messages. (A mailbox holds
    /// 64, and a queue pair 8 messages.)
    pub unread_bytes_max: usize,
    /// Most bytes of the server's own memory that the connections of all clients hold together, over every fabric:
    /// unread replies, requests that are not answered, what TLS keeps, pins, mailboxes, and over verbs some 200 KiB for
    /// each client. While half of it is in use, the server stops reading a client's requests at 64 KiB that it leaves
    /// unread. If it is exceeded, connections end, those that hold most first; mailboxes, pins, and clients over verbs are
    /// refused. Beside it, each worker has buffers of at most 4 MiB.
    pub client_bytes_max: u64,
    /// What puts in two steps may hold of the table, and for how long.
    pub starts: StartLimits,
    /// Over verbs and TCP: the secret that clients need to read and change the table. With the empty token,
    /// every client that reaches the port may do both: over TCP, only clients on this host.
    pub token: Token,
    /// Over verbs and TCP: the secret of clients that may read the table, and not change it. With the empty
    /// token, there are no such clients.
    pub read_token: Token,
    /// Over TCP: how to speak TLS with clients, all of whom must speak it
    /// ([`ClientOptions::tls`](crate::ClientOptions::tls)). The token is asked for all the same. Where clients must show a
    /// certificate, the server may be reached from other hosts without a token. `None` speaks none.
    pub tls: Option<ServerTls>,
    /// Over verbs: how workers wait for messages.
    pub wait: Wait,
    /// On shm: most bytes that the mailboxes of all clients take together, of `client_bytes_max`
    /// ([`RequestPath::Mailbox`](crate::client::RequestPath::Mailbox)). A mailbox takes 40 KiB with
    /// the default lengths, and up to 772 KiB with the longest slots. Clients without one make their requests
    /// by message. With 0, no client has one. Where a further mailbox would leave the system less than
    /// 16 MiB, it is not made. The workers poll the mailboxes of clients that make requests, and stop at
    /// most 50 microseconds after a client's last request.
    pub mailbox_bytes_max: u64,
    /// Bytes of memory for the last changes, for clients that follow them
    /// ([`Client::changes`](crate::Client::changes)), rounded down to a power of two; where they begin takes a
    /// quarter more. It is taken when the first client follows. A client that falls further behind misses some, and
    /// is told. With 0, there is no feed of changes.
    pub feed_bytes: u64,
    /// Whether the server takes the time of each put that clients ask for ([`Server::times`](crate::Server::times)):
    /// two looks at the clock, some tens of nanoseconds. Without it, a put pays nothing for that.
    pub timed: bool,
    /// The eviction policy for a table that is at its limit, or whose memory for long values is. `None`: no entry is
    /// evicted, and a put without room is refused. It is not part of the table: the next server may have another one.
    pub evict: Option<Evict>,
    /// Over verbs: another way to make requests, beside messages, that the server offers.
    #[cfg(feature = "verbs")]
    #[doc(hidden)]
    pub extension: Option<ServerExtension>,
    /// The snapshots that the server makes ([`Snapshots`]). A new table begins with the keys of the present snapshot,
    /// which must be this user's or root's. (To begin with none, remove the file.) A table that is taken over has newer
    /// keys, and keeps them.
    pub snapshots: Option<Snapshots>,
    /// A new table begins with the keys of this snapshot, and not with those of the one in
    /// `snapshots`. A table that is taken over keeps its own: see [`Server::restored`](crate::Server::restored).
    pub restore: Option<PathBuf>,
    /// The log that has each change before it is answered ([`LogConfig`](crate::LogConfig)): it survives a power cut. A new table
    /// begins with the keys of the snapshot and all that the log has since. Without `snapshots`, the server makes them in the
    /// log's folder, whenever the log has become long.
    pub log: Option<LogConfig>,
    /// Called now and then during steps of the start that take long for a large table.
    pub progress: Option<fn(StartProgress)>,
    /// When this becomes true during the start, the start ends soon with
    /// [`ServeError::Cancelled`](super::ServeError::Cancelled), while it makes, restores or takes over a table. Later
    /// it has no effect.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl ServerConfig {
    /// Serves a new table at `address` from anonymous memory, for this user, with two workers, for up
    /// to 4,096 connections, with up to 64 MiB of mailboxes.
    pub fn new(address: Address, table: Config) -> ServerConfig {
        ServerConfig {
            address,
            tcp: None,
            backing: Backing::Anonymous,
            small_pages: false,
            table,
            ttl: None,
            start: StartMode::Create,
            workers: 2,
            allow_uids: Vec::new(),
            allow_read_uids: Vec::new(),
            clients_max: 4096,
            clients_per_peer: 1024,
            half_open: Duration::from_secs(10),
            unread_bytes_max: 1 << 20,
            client_bytes_max: 256 << 20,
            starts: StartLimits::new(),
            token: Token::default(),
            read_token: Token::default(),
            tls: None,
            wait: Wait::Block,
            mailbox_bytes_max: 64 << 20,
            feed_bytes: 8 << 20,
            timed: false,
            evict: None,
            #[cfg(feature = "verbs")]
            extension: None,
            snapshots: None,
            restore: None,
            log: None,
            progress: None,
            cancel: None,
        }
    }
}

setters!(ServerConfig {
    tcp: impl Into<Option<TcpAddress>>,
    backing: Backing,
    small_pages: bool,
    table: Config,
    ttl: impl Into<Option<Duration>>,
    start: StartMode,
    workers: usize,
    allow_uids: impl Into<Vec<u32>>,
    allow_read_uids: impl Into<Vec<u32>>,
    clients_max: usize,
    clients_per_peer: usize,
    half_open: Duration,
    unread_bytes_max: usize,
    client_bytes_max: u64,
    starts: StartLimits,
    token: Token,
    read_token: Token,
    tls: impl Into<Option<ServerTls>>,
    wait: Wait,
    mailbox_bytes_max: u64,
    feed_bytes: u64,
    timed: bool,
    evict: impl Into<Option<Evict>>,
    snapshots: impl Into<Option<Snapshots>>,
    restore: impl Into<Option<PathBuf>>,
    log: impl Into<Option<LogConfig>>,
    progress: fn(StartProgress),
    cancel: impl Into<Option<Arc<AtomicBool>>>,
});
