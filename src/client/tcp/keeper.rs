//! Keeps a session of an owner over TCP while its client makes no requests (I5): a thread with a connection of its own,
//! which is a session as any other. When the server hangs up, the thread connects again.
//!
//! | there is | it waits for | then |
//! |---|---|---|
//! | a connection | the server to hang up | an attempt |
//! | none | the end of a pause | an attempt: it connects, or fails; or the server says that the owner is gone, and the thread ends |
//!
//! It ends with the client's last handle. Nobody waits for its end.

use super::connection::TcpConnection;
use super::shared::TcpShared;
use crate::base::process::Process;
use crate::client::error::ConnectError;
use crate::client::tries::{ATTEMPT_MAX, Backoff};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The thread, until this is dropped.
#[derive(Debug)]
pub(super) struct OwnerKeeper {
    /// The thread has the other end. It is shut down when the thread is to end.
    end: UnixStream,
    /// A child made by `fork` has copies of both ends, and leaves the thread to its parent.
    process: Process,
}

impl OwnerKeeper {
    /// Starts the thread for a client that a server has taken as its owner.
    ///
    /// # Errors
    /// When the process has no descriptor, thread or memory left.
    pub fn start(shared: &Arc<TcpShared>) -> io::Result<OwnerKeeper> {
        let (end, its) = UnixStream::pair()?;
        let shared = Arc::downgrade(shared);
        std::thread::Builder::new().name("oneread-owner".into()).spawn(move || keep(&shared, &its))?;
        Ok(OwnerKeeper { end, process: Process::this() })
    }
}

impl Drop for OwnerKeeper {
    fn drop(&mut self) {
        if self.process.is_this() {
            let _ = self.end.shutdown(Shutdown::Both);
        }
    }
}

/// Keeps the session of a client's owner, until `end` is shut down.
fn keep(shared: &Weak<TcpShared>, end: &UnixStream) {
    let (mut connection, mut backoff) = (None::<TcpConnection>, Backoff::of_connecting());
    loop {
        if let Some(there) = &connection {
            if !has_ended(end, Some(there), None) {
                connection = None;
                continue;
            }
            return;
        }
        let Some(shared) = shared.upgrade() else { return };
        match shared.open(ATTEMPT_MAX) {
            Ok(opened) => {
                if let Err(error) = opened.check_owner(shared.owner.as_ref(), &shared.address) {
                    return tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "it is no owner any more"
                    );
                }
                backoff.reset();
                connection = Some(opened);
            }
            Err(error) => {
                tell(&error);
                drop(shared);
                if has_ended(end, None, Some(backoff.take())) {
                    return;
                }
            }
        }
    }
}

fn tell(error: &ConnectError) {
    tracing::debug!(error = error as &dyn std::error::Error, "not yet");
}

/// Waits until the client ends, the server hangs up, or the time is over. Returns whether the client has ended.
fn has_ended(end: &UnixStream, connection: Option<&TcpConnection>, within: Option<Duration>) -> bool {
    let timeout = within
        .map(|within| Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() });
    let socket = connection.map(TcpConnection::socket);
    loop {
        let mut watched = vec![PollFd::new(end, PollFlags::IN)];
        watched.extend(socket.iter().map(|socket| PollFd::new(socket, PollFlags::RDHUP)));
        match rustix::event::poll(&mut watched, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return !watched[0].revents().is_empty(),
            // No memory: as if the server had hung up.
            Err(_) => return false,
        }
    }
}
