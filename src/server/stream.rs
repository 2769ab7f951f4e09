//! A client's stream: a Unix socket, or TCP.

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

/// A client's stream. A worker does not care which.
#[derive(Debug)]
pub(super) enum ClientStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl ClientStream {
    /// Hangs up.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            ClientStream::Unix(stream) => stream.shutdown(Shutdown::Both),
            ClientStream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    /// Has a worker told of what comes.
    pub fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            ClientStream::Unix(stream) => stream.register(registry, token, interest),
            ClientStream::Tcp(stream) => stream.register(registry, token, interest),
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
        ClientStream::Tcp(stream)
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ClientStream::Unix(stream) => stream.as_fd(),
            ClientStream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientStream::Unix(stream) => stream.write(bytes),
            ClientStream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
