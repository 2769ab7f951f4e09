//! A client's stream: a Unix socket, or TCP, with TLS or without. It never waits.

use crate::tls::TlsSession;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

/// A client's stream. A worker does not care which.
#[derive(Debug)]
pub(super) enum ClientStream {
    Unix(UnixStream),
    Tcp(TcpStream, Option<Box<TlsSession>>),
}

impl ClientStream {
    /// Hangs up.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            ClientStream::Unix(stream) => stream.shutdown(Shutdown::Both),
            ClientStream::Tcp(stream, _) => stream.shutdown(Shutdown::Both),
        }
    }

    /// Has a worker wake when something comes.
    pub fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            ClientStream::Unix(stream) => stream.register(registry, token, interest),
            ClientStream::Tcp(stream, _) => stream.register(registry, token, interest),
        }
    }

    /// Bytes that it may hold in this process's memory, beside those of its owner.
    pub fn held_bytes(&self) -> usize {
        match self {
            ClientStream::Tcp(_, Some(tls)) => tls.held_bytes(),
            ClientStream::Unix(_) | ClientStream::Tcp(_, None) => 0,
        }
    }

    /// Moves received bytes into the spare room of `input`, or with TLS beyond that. Returns how many, and 0 when the
    /// client has closed its end.
    pub fn take(&mut self, input: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            ClientStream::Tcp(stream, Some(tls)) => tls.take(stream, input),
            stream => Ok(rustix::io::read(stream, spare_capacity(input))?),
        }
    }
}

impl From<UnixStream> for ClientStream {
    fn from(stream: UnixStream) -> ClientStream {
        ClientStream::Unix(stream)
    }
}

impl From<TcpStream> for ClientStream {
    fn from(stream: TcpStream) -> ClientStream {
        ClientStream::Tcp(stream, None)
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ClientStream::Unix(stream) => stream.as_fd(),
            ClientStream::Tcp(stream, _) => stream.as_fd(),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientStream::Unix(stream) => stream.write(bytes),
            ClientStream::Tcp(stream, None) => stream.write(bytes),
            ClientStream::Tcp(stream, Some(tls)) => tls.send(stream, bytes),
        }
    }

    /// Sends the bytes that TLS has taken and not sent.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            ClientStream::Tcp(stream, Some(tls)) => tls.flush(stream),
            _ => Ok(()),
        }
    }
}
