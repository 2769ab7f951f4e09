//! A server that says what its test says.

use super::raw::Raw;
use super::table;
use crate::common::*;
use oneread::internals::wire::{self, Reply};
use oneread::{Address, Client, ClientOptions, GetError, MutateError, Server, ServerConfig};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Has the region and the mailboxes of a true server. The test decides what clients are told, and
/// when.
pub struct Fake {
    pub listener: UnixListener,
    pub address: Address,
    pub streams: Mutex<Vec<UnixStream>>,
    pub is_over: AtomicBool,
    pub server: Server,
    pub place: Place,
}

impl Fake {
    pub fn new() -> Fake {
        let place = Place::new();
        let config = ServerConfig::new(place.address.clone(), table(default_preset()));
        let server = start(config);
        let path = place.dir.path().join("fake");
        let listener = UnixListener::bind(&path).unwrap();
        let (address, is_over) = (Address::Shm(path), AtomicBool::new(false));
        Fake { listener, address, streams: Mutex::default(), is_over, server, place }
    }

    /// A client with this deadline. Its connections are made within it.
    pub fn client(&self, options: &ClientOptions) -> Client {
        wait_for("a connection", || Client::connect_with(&self.address, options.clone()).ok())
    }

    /// The next connection.
    pub fn accept(&self) -> UnixStream {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let soon = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        let there = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&soon));
        assert_eq!(there, Ok(1), "nobody connects");
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// Answers a hello as the true server does. Returns the server's end of the connection, or
    /// `None` if the client is gone.
    pub fn welcome(&self, stream: &mut UnixStream) -> Option<Raw> {
        self.welcome_as(stream, |welcome| welcome)
    }

    /// As [`Self::welcome`], but the client is told something else.
    pub fn welcome_as(&self, stream: &mut UnixStream, told: impl Fn(Reply) -> Reply) -> Option<Raw> {
        let mut hello = [0; 32];
        stream.read_exact(&mut hello).ok()?;
        let mut raw = Raw::connect(&self.place.address);
        raw.stream.write_all(&hello).unwrap();
        let (welcome, memory) = receive(&raw.stream);
        let mut bytes = Vec::new();
        told(welcome).encode(0, &mut bytes);
        send_with(stream, &bytes, &memory.expect("a region"));
        Some(raw)
    }

    pub fn welcomed(&self) -> UnixStream {
        let mut stream = self.accept();
        self.welcome(&mut stream).expect("a hello");
        stream
    }

    /// Calls `each` with every connection, on a thread of its own, while `then` runs.
    pub fn during(&self, each: impl Fn(UnixStream) + Sync, then: impl FnOnce()) {
        /// Ends all threads, also when a check fails, because the scope waits for them.
        struct Over<'a>(&'a Fake);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.is_over.store(true, Ordering::SeqCst);
                let _ = UnixStream::connect(self.0.address.socket().unwrap());
                self.0.hang_up();
            }
        }
        std::thread::scope(|scope| {
            let each = &each;
            scope.spawn(move || {
                for stream in self.listener.incoming() {
                    let stream = stream.unwrap();
                    let mut streams = self.streams.lock().unwrap();
                    if self.is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    stream.set_read_timeout(Some(SOON)).unwrap();
                    streams.push(stream.try_clone().unwrap());
                    scope.spawn(move || each(stream));
                }
            });
            let _over = Over(self);
            then();
        });
    }

    /// Closes all connections.
    pub fn hang_up(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Reads until there are `n` requests, or the client hangs up. Returns their numbers, and whether
/// there is more.
pub fn requests_of(stream: &mut UnixStream, n: usize) -> (Vec<u64>, bool) {
    let (mut input, mut ids, mut taken) = (Vec::new(), Vec::new(), 0);
    while ids.len() < n {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(read @ 1..) => input.extend_from_slice(&chunk[..read]),
            _ => break,
        }
        while let Some(frame) = wire::decode(&input[taken..]).unwrap().filter(|_| ids.len() < n) {
            ids.push(frame.id);
            taken += frame.length;
        }
    }
    (ids, taken < input.len())
}

/// The error that a change would have had that failed as this GET by the server did.
pub fn as_change(error: GetError) -> MutateError {
    match error {
        GetError::Deadline { address, deadline } => MutateError::Deadline { address, deadline },
        GetError::ServerGone { address, source } => MutateError::ServerGone { address, source },
        GetError::Connect(error) => error.into(),
        other => panic!("no change fails so: {other}"),
    }
}
