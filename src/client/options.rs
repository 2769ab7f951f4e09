//! Bounds on a client's operations, and the paths it uses.

#[cfg(feature = "verbs")]
use super::verbs::extension::RequestExtension;
use crate::base::setters::setters;
use crate::encryption::Encryption;
use crate::reader::Limits;
use crate::tls::ClientTls;
use crate::verbs::VerbsOptions;
use crate::wire::proof::Token;
use std::path::PathBuf;
use std::time::Duration;

/// Bounds on a client's operations, and the paths it uses. A time of more than a hundred years is
/// cut to that.
///
/// ```
/// use oneread::{ClientOptions, Limits};
/// use std::time::Duration;
/// let soon = Duration::from_millis(100);
/// let limits = Limits::new().deadline(soon);
/// let options = ClientOptions::new().limits(limits).deadline(soon);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Bounds of a GET that has to be repeated.
    pub limits: Limits,
    /// Longest time of a connect or a change. In a batch of changes, and in the pieces of a long value, it
    /// is the longest time without an answer. Over verbs it also bounds a READ, including the attempts to
    /// reconnect if the READ fails.
    pub deadline: Duration,
    /// How long GETs still answer after the server is gone: it was killed, or it stopped and its
    /// region is a file. Other memory is given up by [`Server::stop`](crate::Server::stop): GETs
    /// then end at once. Only for shm: over verbs there is nothing left to read.
    pub lease: Duration,
    /// How requests to the server (changes, [`Client::get_two_sided`](crate::Client::get_two_sided),
    /// [`Client::server_stats`](crate::Client::server_stats)) travel.
    pub requests: RequestPath,
    /// The most bytes of memory for *hints*: where the client has last seen keys, one byte for each
    /// main slot, or for some of them if that is more. A GET of a key that the client has seen READs
    /// that one slot instead of a window. All clones share the memory. 0 turns hints off. `None` is
    /// 16 MiB over verbs, and 0 on shm, where a window costs hardly more than a slot.
    ///
    /// Hints change no answer. They cost a READ where they are wrong: keys that were moved, and one
    /// in eight keys that are absent.
    pub hint_bytes: Option<usize>,
    /// On shm: users whose servers the client trusts, beside its own user, root, and the user to whom root has given
    /// the socket's folder (as `/run/oneread` is given to a service's user). A server learns the values that clients
    /// put, decides what they read, and can kill them by shortening a region file.
    pub server_uids: Vec<u32>,
    /// On shm: the server's region file, to be read if no server answers when the client connects.
    /// The client then only reads ([`Client::is_served`](crate::Client::is_served)), without a lease, until a
    /// server comes. The file must belong to this user or root.
    pub region: Option<PathBuf>,
    /// Over verbs and TCP: the server's token ([`ServerConfig::token`](crate::ServerConfig::token)).
    pub token: Token,
    /// Over TCP: how to speak TLS with the server, which must speak it
    /// ([`ServerConfig::tls`](crate::ServerConfig::tls)). `None` speaks none.
    pub tls: Option<ClientTls>,
    /// Options for verbs. Other fabrics ignore them.
    pub verbs: VerbsOptions,
    /// A key to encrypt values with before they are sent, and to decrypt them with after they were read. The server and
    /// other readers then see ciphertext. Every call that carries a value uses it. A value that does not decrypt is an
    /// error, even if it was put without encryption. All clones have the same key. `None` stores and reads values as
    /// they are.
    ///
    /// Readers without a `Client` see stored values: [`Client::region`](crate::Client::region), an
    /// [`Index`](crate::embedded::Index), a [`Reader`](crate::embedded::Reader). `Encryption::decrypt` is for them.
    pub encryption: Option<Encryption>,
    /// The owner as which the client puts. All its connections are sessions of the owner
    /// ([`Client::owner`](crate::Client::owner)).
    pub owner: Option<OwnerOptions>,
    /// On shm: whether GETs check by themselves whether an entry has come to its end
    /// ([`PutOptions::ttl`](crate::PutOptions::ttl)), by the time in its slot and this host's clock. Without it, a GET
    /// may find an entry until the server has removed it: at most a second after its end as long as the server runs,
    /// and all the time that it is suspended or away. With it, no GET finds an entry that had ended when the GET began.
    /// It costs a look at the clock for each GET, and a batch looks for one key after the other.
    /// [`Client::get_two_sided`](crate::Client::get_two_sided), scans, and changes see the server's state.
    ///
    /// Over verbs and TCP a client does not have the server's clock: it cannot connect with this
    /// ([`ConnectError::ExactExpiry`](crate::ConnectError::ExactExpiry)). Client and server may be in several time
    /// namespaces of the kernel. If `/proc` does not show how far these are apart, the time of day counts.
    pub exact_expiry: bool,
    /// Whether the time of each GET of one key is taken ([`Client::get_times`](crate::Client::get_times)). That costs
    /// two looks at the clock, some tens of nanoseconds, and a GET on shm does not take its quickest path. Without it,
    /// a GET pays nothing for that.
    pub timed: bool,
}

/// The owner as which a client puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerOptions {
    /// The owner's number, 1 to [`OWNER_MAX`](crate::layout::OWNER_MAX). The clients of a table agree on the numbers.
    pub number: u16,
    /// How long the owner may be away. When it has had no session for this long, its entries go.
    pub absent_for: Duration,
    /// The owner's tenure, as [`Client::tenure`](crate::Client::tenure) tells it: the client continues as the owner with this tenure, or is
    /// refused. `None`: the present owner with the number, or a new one.
    pub tenure: Option<u64>,
}

setters!(OwnerOptions {
    number: u16,
    absent_for: Duration,
    tenure: impl Into<Option<u64>>,
});

impl OwnerOptions {
    /// The owner with this number, who may be away for 10 s.
    pub fn new(number: u16) -> OwnerOptions {
        OwnerOptions { number, absent_for: Duration::from_secs(10), tenure: None }
    }
}

/// How requests to the server (changes, [`Client::get_two_sided`](crate::Client::get_two_sided),
/// [`Client::server_stats`](crate::Client::server_stats)) travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestPath {
    /// The fastest way that the server offers. On shm, requests go through a
    /// [mailbox](RequestPath::Mailbox), and batches of more than 32 as one
    /// [message](RequestPath::Message). If the server has no mailboxes, or no room for another one
    /// ([`ServerConfig::mailbox_bytes_max`](crate::ServerConfig::mailbox_bytes_max)), all go as
    /// messages; after a second without room the handle asks for one again. Over verbs, all go as
    /// messages. [`ClientStats::requests`](crate::stats::ClientStats::requests) tells which way requests went.
    #[default]
    Auto,
    /// As messages: over the server's Unix socket, or over verbs by SEND and RECV on a queue pair.
    /// Over verbs it is the queue pair that carries the READs, or one more where handles share
    /// queue pairs. The server may sleep.
    Message,
    /// Only on shm: requests through a mailbox, memory that one handle and the server share. If the
    /// server gives none, the connection fails
    /// ([`ConnectError::RequestPath`](crate::ConnectError::RequestPath)). What has a value too long for its
    /// slot goes as a message, and so does [`Client::get_two_sided`](crate::Client::get_two_sided) of a table
    /// that has such values.
    ///
    /// A mailbox takes 40 KiB with the default lengths, and up to 772 KiB with the longest slots. The
    /// handle that connects has one, and each clone from its first request on. There is no system call
    /// while both sides are busy. A client polls for its reply for up to 20 microseconds (200 if the server slept), a server
    /// for requests for up to 50. Each polls for less time where that found nothing. Then it sleeps,
    /// and the other side wakes it over the socket.
    Mailbox,
    /// Only over verbs: a way that the server offers beside messages.
    #[cfg(feature = "verbs")]
    #[doc(hidden)]
    Extension(RequestExtension),
}

impl RequestPath {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            RequestPath::Auto => "auto",
            RequestPath::Message => "message",
            RequestPath::Mailbox => "mailbox",
            #[cfg(feature = "verbs")]
            RequestPath::Extension(extension) => extension.name(),
        }
    }
}

impl Default for ClientOptions {
    /// Deadline 5 s, lease 10 s, requests the fastest way that the server offers.
    fn default() -> ClientOptions {
        ClientOptions {
            limits: Limits::default(),
            deadline: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            requests: RequestPath::Auto,
            hint_bytes: None,
            server_uids: Vec::new(),
            region: None,
            token: Token::default(),
            tls: None,
            verbs: VerbsOptions::default(),
            encryption: None,
            owner: None,
            exact_expiry: false,
            timed: false,
        }
    }
}

setters!(ClientOptions {
    limits: Limits,
    deadline: Duration,
    lease: Duration,
    requests: RequestPath,
    hint_bytes: usize,
    server_uids: impl Into<Vec<u32>>,
    region: PathBuf,
    token: Token,
    tls: impl Into<Option<ClientTls>>,
    verbs: VerbsOptions,
    encryption: impl Into<Option<Encryption>>,
    owner: impl Into<Option<OwnerOptions>>,
    exact_expiry: bool,
    timed: bool,
});

impl ClientOptions {
    /// As [`ClientOptions::default`].
    pub fn new() -> ClientOptions {
        ClientOptions::default()
    }

    /// Shortens every time so that it can be added to a clock's time.
    pub(super) fn bounded(mut self) -> ClientOptions {
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        for time in [&mut self.limits.deadline, &mut self.deadline, &mut self.lease] {
            *time = LONGEST.min(*time);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each time that is too long for a clock is cut by itself; the others stay as they are.
    #[test]
    fn long_times_are_cut() {
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        let second = Duration::from_secs(1);
        let options = |[limit, deadline, lease]: [Duration; 3]| ClientOptions {
            limits: Limits { retries_max: 7, deadline: limit },
            deadline,
            lease,
            requests: RequestPath::Mailbox,
            ..ClientOptions::default()
        };
        for which in 0..3 {
            for (time, bounded) in [
                (Duration::ZERO, Duration::ZERO),
                (century - second, century - second),
                (century, century),
                (century + second, century),
                (Duration::MAX, century),
            ] {
                let (mut given, mut expected) = ([second; 3], [second; 3]);
                (given[which], expected[which]) = (time, bounded);
                assert_eq!(options(given).bounded(), options(expected), "time {which} of {time:?}");
            }
        }
    }

    /// The defaults are those that the documentation names.
    #[test]
    fn defaults_are_as_documented() {
        let expected = ClientOptions {
            limits: Limits::default(),
            deadline: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            requests: RequestPath::Auto,
            hint_bytes: None,
            server_uids: Vec::new(),
            region: None,
            token: Token::default(),
            tls: None,
            verbs: VerbsOptions::default(),
            encryption: None,
            owner: None,
            exact_expiry: false,
            timed: false,
        };
        assert_eq!(ClientOptions::default(), expected);
    }
}
