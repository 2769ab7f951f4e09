//! A connection without a client.

use crate::common::*;
use oneread::Address;
use oneread::internals::wire::{self, PROTOCOL_VERSION, Reply, Request};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// A connection without a client. It sends whatever the test wants.
pub struct Raw {
    pub stream: UnixStream,
    pub input: Vec<u8>,
}

impl Raw {
    pub fn connect(address: &Address) -> Raw {
        let stream = UnixStream::connect(address.socket().unwrap()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Raw { stream, input: Vec::new() }
    }

    pub fn greeted(address: &Address) -> Raw {
        let mut raw = Raw::connect(address);
        raw.send(&Request::Hello { version: PROTOCOL_VERSION });
        assert_eq!(raw.reply(), Some(Reply::WELCOME));
        raw
    }

    pub fn send(&mut self, request: &Request<'_>) {
        let mut bytes = Vec::new();
        request.encode(1, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next reply; `None` when the server closes the connection instead.
    pub fn reply(&mut self) -> Option<Reply> {
        loop {
            if let Some(frame) = wire::decode(&self.input).unwrap() {
                let reply = Reply::decode(&frame).unwrap();
                self.input.drain(..frame.length);
                return Some(reply);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply and no end: {error}"),
            }
        }
    }
}
