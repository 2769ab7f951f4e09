//! A publisher as engines have one, for tests and measurements: PUB, and ROUTER for what is asked for again.

use crate::events::EngineHash;
use crate::packed::{Value, pack};
use crate::zmtp::{Kind, Socket, Stream};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const MESSAGE_MAX: usize = 1 << 20;

/// What both sockets have in common.
#[derive(Debug, Default)]
struct State {
    subscribers: Vec<Socket>,
    /// Connections of those who may ask for batches again.
    asking: Vec<Stream>,
    buffer: VecDeque<(u64, Vec<u8>)>,
    kept: usize,
    next: u64,
    asked: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    has_changed: Condvar,
    is_over: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A publisher. It ends when it is dropped.
#[derive(Debug)]
pub struct Source {
    shared: Arc<Shared>,
    published: SocketAddr,
    replayed: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

fn accepts(
    address: SocketAddr,
    shared: &Arc<Shared>,
    kind: Kind,
    mut each: impl FnMut(Socket, &Arc<Shared>) + Send + 'static,
) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let shared = shared.clone();
    let thread = std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            if shared.is_over.load(Ordering::Relaxed) {
                break;
            }
            if let Ok(socket) = Socket::begin(Stream::Tcp(stream), kind, MESSAGE_MAX, MINUTE) {
                each(socket, &shared);
            }
        }
    });
    Ok((address, thread))
}

/// Answers who asks for batches again, each time, until the connection ends. Some connect long before they ask.
fn answer(socket: &mut Socket, shared: &Shared) -> Option<()> {
    loop {
        let Some(frames) = socket.receive(MINUTE).ok()? else { continue };
        let [_, from] = &frames[..] else { return None };
        let from = u64::from_be_bytes(from.as_slice().try_into().ok()?);
        let mut state = shared.lock();
        state.asked += 1;
        let all: Vec<(u64, Vec<u8>)> =
            state.buffer.iter().filter(|(number, _)| *number >= from).cloned().collect();
        drop(state);
        for (number, payload) in all {
            socket.send(&[b"", &number.to_be_bytes(), &payload], MINUTE).ok()?;
        }
        socket.send(&[b"", &u64::MAX.to_be_bytes(), b""], MINUTE).ok()?;
    }
}

impl Source {
    /// Publishes at ports that are free, and keeps so many batches to be asked for again.
    ///
    /// # Errors
    /// The system's.
    pub fn new(kept: usize) -> io::Result<Source> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Source::at(any, any, kept)
    }

    /// Publishes at these addresses.
    ///
    /// # Errors
    /// The system's.
    pub fn at(published: SocketAddr, replayed: SocketAddr, kept: usize) -> io::Result<Source> {
        let shared = Arc::new(Shared::default());
        shared.lock().kept = kept;
        let (published, hears) = accepts(published, &shared, Kind::Pub, |mut socket, shared| {
            // It subscribes to all.
            if socket.receive(MINUTE).is_ok_and(|said| said.is_some_and(|frames| frames == [[1]])) {
                shared.lock().subscribers.push(socket);
                shared.has_changed.notify_all();
            }
        })?;
        let (replayed, answers) = accepts(replayed, &shared, Kind::Router, |mut socket, shared| {
            // Without it nobody could end the conversation.
            let Ok(stream) = socket.stream().try_clone() else { return };
            shared.lock().asking.push(stream);
            let shared = shared.clone();
            std::thread::spawn(move || {
                // Who hangs up asks again.
                let _ = answer(&mut socket, &shared);
                socket.stream().shutdown();
            });
        })?;
        Ok(Source { shared, published, replayed, threads: vec![hears, answers] })
    }

    /// Where it publishes.
    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.published)
    }

    /// Where it sends batches again.
    pub fn replay_endpoint(&self) -> String {
        format!("tcp://{}", self.replayed)
    }

    /// Both addresses.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.published, self.replayed)
    }

    /// Waits until so many hear it, for a minute at most. Returns whether they do.
    pub fn is_heard_by(&self, subscribers: usize) -> bool {
        let state = self.shared.lock();
        let wait = self
            .shared
            .has_changed
            .wait_timeout_while(state, MINUTE, |state| state.subscribers.len() < subscribers);
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        state.subscribers.len() >= subscribers
    }

    /// As [`Source::is_heard_by`], for tests.
    ///
    /// # Panics
    /// Fewer hear it.
    pub fn wait_for(&self, subscribers: usize) {
        assert!(self.is_heard_by(subscribers), "nobody hears {}", self.published);
    }

    /// How many batches it has told.
    pub fn told(&self) -> u64 {
        self.shared.lock().next
    }

    /// How often batches were asked for again.
    pub fn asked(&self) -> u64 {
        self.shared.lock().asked
    }

    /// Publishes a batch of events. Returns its number.
    pub fn publish(&self, events: Vec<Value>) -> u64 {
        let payload = batch(self.shared.lock().next, events);
        self.publish_bytes(payload, true)
    }

    /// Loses a batch: it can be asked for, and nobody hears it.
    pub fn lose(&self, events: Vec<Value>) -> u64 {
        let payload = batch(self.shared.lock().next, events);
        self.publish_bytes(payload, false)
    }

    /// Publishes any bytes as a batch.
    pub fn publish_bytes(&self, payload: Vec<u8>, is_heard: bool) -> u64 {
        let mut state = self.shared.lock();
        let number = state.next;
        state.next += 1;
        if is_heard {
            let frames = [&b""[..], &number.to_be_bytes(), &payload];
            state.subscribers.retain_mut(|one| one.send(&frames, MINUTE).is_ok());
        }
        state.buffer.push_back((number, payload));
        while state.buffer.len() > state.kept {
            state.buffer.pop_front();
        }
        number
    }

    /// Sends frames as they are.
    pub fn send(&self, frames: &[&[u8]]) {
        self.shared.lock().subscribers.retain_mut(|one| one.send(frames, MINUTE).is_ok());
    }

    /// Hangs up on all who hear it, or may ask it.
    pub fn hang_up(&self) {
        let mut state = self.shared.lock();
        state.subscribers.clear();
        state.asking.drain(..).for_each(|stream| stream.shutdown());
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.hang_up();
        for address in [self.published, self.replayed] {
            // Wakes who waits for the next connection.
            let _ = std::net::TcpStream::connect(address);
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The bytes of a batch, with a time that no other one has.
pub fn batch(time: u64, events: Vec<Value>) -> Vec<u8> {
    pack(&Value::List(vec![
        Value::Float(time as f64 + f64::from(std::process::id())),
        Value::List(events),
        Value::Number(0),
    ]))
}

/// An event: blocks were stored, of these tokens. Blocks are called by hashes that no query knows.
pub fn stored(parent: Option<u64>, hashes: &[u64], tokens: &[u32], block_size: u32) -> Value {
    Value::List(vec![
        Value::text("BlockStored"),
        Value::numbers(hashes.iter().copied()),
        parent.map_or(Value::Nil, Value::Number),
        Value::numbers(tokens.iter().map(|token| u64::from(*token))),
        Value::Number(block_size.into()),
        Value::Nil,
        Value::text("GPU"),
    ])
}

/// An event: blocks were removed.
pub fn removed(hashes: &[u64]) -> Value {
    Value::List(vec![Value::text("BlockRemoved"), Value::numbers(hashes.iter().copied()), Value::text("GPU")])
}

/// An event: all blocks are gone.
pub fn cleared() -> Value {
    Value::List(vec![Value::text("AllBlocksCleared")])
}

/// What an engine calls a block that it was told of by a number.
pub fn hash(number: u64) -> EngineHash {
    EngineHash::number(number)
}
