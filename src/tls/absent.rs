//! What stands for TLS in a build without the feature `tls`.

use std::convert::Infallible;
use std::io;

/// How a client speaks TLS. This build has none, so there is no such thing to be had: the cargo feature `tls` adds
/// `ClientTls::new`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls(Infallible);

/// How a server speaks TLS. This build has none, so there is no such thing to be had: the cargo feature `tls` adds
/// `ServerTls::new`.
#[derive(Clone, Debug)]
pub struct ServerTls(Infallible);

#[derive(Debug)]
pub(crate) struct TlsSession(Infallible);

impl ClientTls {
    pub(crate) fn session(&self, _: &str) -> io::Result<TlsSession> {
        match self.0 {}
    }
}

impl ServerTls {
    pub(crate) fn look(&self) {
        match self.0 {}
    }

    pub(crate) fn left_seconds(&self) -> Option<i64> {
        match self.0 {}
    }

    pub(crate) fn asks_clients(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn session(&self) -> io::Result<TlsSession> {
        match self.0 {}
    }
}

impl TlsSession {
    pub fn take<S>(&mut self, _: S, _: &mut Vec<u8>) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn send<S>(&mut self, _: S, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn flush<S>(&mut self, _: S) -> io::Result<()> {
        match self.0 {}
    }

    pub fn held_bytes(&self) -> usize {
        match self.0 {}
    }

    pub fn is_owing(&self) -> bool {
        match self.0 {}
    }
}

/// What to do where TLS fails.
pub(crate) fn mend(_: &io::Error) -> &'static str {
    "build it with the cargo feature `tls`"
}

/// Nobody speaks TLS here.
pub(crate) fn is_of_tls(_: &io::Error) -> bool {
    false
}
