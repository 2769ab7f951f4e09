//! Which entries go where room is needed.

use std::fmt;

/// By what a server, or an embedded [`Index`](crate::embedded::Index), chooses the entries that make room for others.
///
/// With any of them a put that finds the table, or its memory for long values, at its limit goes through: others
/// leave. No key that is pinned does ([`Client::pin`](crate::Client::pin)). The server sees no GET; on shm clients
/// note what they read in memory that it looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Evict {
    /// s3-fifo (Yang et al., SOSP'23): who is not read soon leaves soon; who comes back soon stays. For most tables.
    S3Fifo,
    /// SIEVE (Zhang et al., NSDI'24): one queue, and a hand that goes through it.
    Sieve,
    /// CLOCK: one queue; who was read goes round again.
    Clock,
}

impl Evict {
    /// All of them, with their names.
    pub const ALL: [(Evict, &'static str); 3] =
        [(Evict::S3Fifo, "s3-fifo"), (Evict::Sieve, "sieve"), (Evict::Clock, "clock")];
}

impl fmt::Display for Evict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Evict::ALL.iter().find(|(policy, _)| policy == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}
