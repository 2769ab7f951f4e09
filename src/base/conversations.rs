//! Conversations with whoever connects, up to a number at a time, each with a thread; and reading and writing by a time.

use super::peer::gives_way;
use super::sync::lock_std;
use rustix::net::sockopt;
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The conversations under way. For one too many, another gives way that waits for its client, of the host that has
/// most of these ([`gives_way`]).
#[derive(Clone, Debug)]
pub struct Conversations {
    there: Arc<Mutex<ConversationsThere>>,
    max: usize,
}

#[derive(Debug, Default)]
struct ConversationsThere {
    all: Vec<ConversationState>,
    /// The number of the next one.
    next: u64,
}

#[derive(Debug)]
struct ConversationState {
    number: u64,
    host: IpAddr,
    since: Instant,
    stream: Arc<TcpStream>,
    /// Whether it waits for its client, who has not asked yet, or does not take the answer.
    waits: bool,
}

/// A conversation. It ends when this is dropped.
#[derive(Debug)]
pub struct Conversation {
    of: Conversations,
    number: u64,
    stream: Arc<TcpStream>,
}

impl Conversations {
    /// Up to so many at a time.
    pub fn new(max: usize) -> Conversations {
        Conversations { there: Arc::default(), max }
    }

    /// Begins one, which waits for its client. For one too many, another is hung up on. `None`: all are at work.
    pub fn begin(&self, stream: TcpStream, host: IpAddr) -> Option<Conversation> {
        let mut there = lock_std(&self.there);
        if there.all.len() >= self.max {
            let waiting = there.all.iter().filter(|it| it.waits);
            let gone = gives_way(waiting.map(|it| (it.number, it.host, it.since)))?;
            there.all.extract_if(.., |it| it.number == gone).for_each(|it| {
                // Its thread reads and writes nothing more, and ends.
                let _ = it.stream.shutdown(Shutdown::Both);
            });
        }
        let (number, stream) = (there.next, Arc::new(stream));
        there.next += 1;
        there.all.push(ConversationState {
            number,
            host,
            since: Instant::now(),
            stream: stream.clone(),
            waits: true,
        });
        Some(Conversation { of: self.clone(), number, stream })
    }

    /// Hangs up on all.
    pub fn hang_up(&self) {
        for one in &lock_std(&self.there).all {
            let _ = one.stream.shutdown(Shutdown::Both);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        lock_std(&self.there).all.len()
    }
}

impl Conversation {
    /// Its connection.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn change(&self, change: impl FnOnce(&mut ConversationState)) -> io::Result<()> {
        let mut there = lock_std(&self.of.there);
        let state = there.all.iter_mut().find(|it| it.number == self.number);
        state.map(change).ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
    }

    /// Does some work that its client need not be waited for: meanwhile it gives way to nobody.
    ///
    /// # Errors
    /// It has given way to another.
    pub fn work<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        self.change(|state| state.waits = false)?;
        let done = work();
        self.change(|state| state.waits = true)?;
        Ok(done)
    }

    /// It waits for its client's next request: who has waited longest gives way.
    ///
    /// # Errors
    /// It has given way to another.
    pub fn waits_anew(&self) -> io::Result<()> {
        self.change(|state| state.since = Instant::now())
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        lock_std(&self.of.there).all.retain(|it| it.number != self.number);
    }
}

/// How long it is until then.
///
/// # Errors
/// It is over.
pub fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Writes all of some bytes by a time. Where that fails, the end of the connection is its end for the client, too: what the
/// system has of the bytes goes. Otherwise a client that takes them one by one had hours for them, and the system their
/// memory.
///
/// # Errors
/// The system's, or the time is over.
pub fn write_by(stream: &TcpStream, bytes: &[u8], until: Instant) -> io::Result<()> {
    write_all_by(stream, bytes, until).inspect_err(|_| {
        // Without it, it ends later.
        let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    })
}

fn write_all_by(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
