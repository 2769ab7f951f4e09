//! The client's path over TCP: every GET is a request, and goes over the same connection as changes do. A handle
//! has one connection. One that failed is replaced, and GETs that were under way are asked again.

mod connection;
mod gets;
mod keeper;
mod shared;

use super::error::{AskError, ConnectError, GetError, LinkError};
use super::handle::{Deadline, Handle, Posted, RETRY_FIRST, RETRY_MAX, retried};
use super::link::link_failed;
use super::options::ClientOptions;
use super::owning::OwnOwner;
use super::send::send_fitting;
use super::stats::ClientStats;
use crate::address::{Address, TcpAddress};
use crate::faults::{Rule, broken};
use crate::layout::geometry::Geometry;

use crate::base::process::Process;
use crate::base::times::TimeCounts;
use crate::reader::Answers;
use crate::sink::AnySink;
use crate::wire::{Refusal, Reply, Request, SOCKET_PIECE_MAX};
use connection::TcpConnection;
use gets::{Batch, Requester, Unanswered};
use keeper::OwnerKeeper;
use shared::TcpShared;
use std::error::Error;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// Most connections that one call may lose.
const FAILURES_MAX: u32 = 8;

/// One thread's path to the server.
#[derive(Debug)]
pub(super) struct TcpHandle {
    shared: Arc<TcpShared>,
    connection: Option<TcpConnection>,
    /// The geometry of the last connection, of this handle or of the one that it was cloned from.
    geometry: Arc<Geometry>,
    /// How long GETs of one key took, if that is asked for.
    times: Option<Box<TimeCounts>>,
    /// Times it got a connection.
    connected: u64,
    /// Ends with the last handle. `None` of a client that puts as nobody.
    keeper: Option<Arc<OwnerKeeper>>,
}

impl TcpHandle {
    pub fn connect(at: &TcpAddress, options: &ClientOptions) -> Result<TcpHandle, ConnectError> {
        let (address, options) = (Address::Tcp(at.clone()), options.clone());
        let owner = OwnOwner::of(&options);
        let shared = TcpShared { process: Process::this(), at: at.clone(), address, options, owner };
        let connection = shared.open(shared.options.deadline)?;
        connection.check_owner(shared.owner.as_ref(), &shared.address)?;
        let shared = Arc::new(shared);
        // I5
        let keeper = shared.owner.as_ref().filter(|_| !broken(Rule::OwnerStays));
        let keeper = keeper.map(|_| OwnerKeeper::start(&shared)).transpose();
        let keeper = keeper.map_err(|e| link_failed(&shared.address, LinkError::Os(e)))?.map(Arc::new);
        Ok(TcpHandle {
            geometry: connection.geometry().clone(),
            connection: Some(connection),
            times: shared.options.timed.then(Box::default),
            connected: 1,
            shared,
            keeper,
        })
    }

    /// As which owner it puts.
    pub fn owner(&self) -> Option<&OwnOwner> {
        self.shared.owner.as_ref()
    }

    /// The socket to the server, while there is a connection.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(TcpConnection::socket)
    }

    // ---- GETs -----------------------------------------------------------------------------------

    /// (Apart, so that a GET on shm has no more registers to save.)
    #[inline(never)]
    pub fn get_into(
        &mut self,
        stats: &mut ClientStats,
        key: &[u8],
        value: &mut AnySink<'_>,
    ) -> Result<bool, GetError> {
        let begun = self.times.is_some().then(Instant::now);
        let outcome = self.read(stats, |requester| requester.get_into(key, value));
        if let (Some(times), Some(begun)) = (&mut self.times, begun) {
            times.add(begun.elapsed());
        }
        outcome
    }

    /// Runs GETs. If the connection fails, runs them again on a new one, until the deadline.
    pub fn read<R>(
        &mut self,
        stats: &mut ClientStats,
        mut get: impl FnMut(&mut Requester<'_>) -> Result<R, Unanswered>,
    ) -> Result<R, GetError> {
        if !self.shared.process.is_this() {
            return Err(ConnectError::Forked { address: self.shared.address.clone() }.into());
        }
        let within = self.shared.options.deadline;
        // A callback that panicked may have left replies on their way: they are not for this call.
        self.connection.take_if(|connection| connection.is_owed());
        let mut failures = 0;
        // Set at the first failure, because a batch may take longer than the deadline.
        let mut deadline = None;
        loop {
            let until = deadline.unwrap_or_else(|| Instant::now() + within);
            self.connect_until(until)?;
            let Some(connection) = &mut self.connection else { continue };
            let deadline_now = Deadline { at: until, allowed: within };
            let limits = self.shared.options.limits;
            match get(&mut Requester { connection, deadline: deadline_now, stats, limits }) {
                Ok(result) => return Ok(result),
                Err(Unanswered::Read(error)) => return Err(error.into()),
                Err(Unanswered::Link(error)) => {
                    self.connection = None;
                    failures += 1;
                    let address = self.shared.address.clone();
                    if let LinkError::Deadline(_) = error {
                        return Err(GetError::Deadline { address, deadline: within });
                    }
                    let until = *deadline.get_or_insert_with(|| Instant::now() + within);
                    if Instant::now() >= until || failures > FAILURES_MAX {
                        return Err(GetError::ServerGone { address, source: error });
                    }
                    tracing::debug!(error = &error as &dyn Error, "reconnecting");
                    if failures > 1 {
                        std::thread::sleep((RETRY_FIRST * (1 << failures)).min(RETRY_MAX));
                    }
                }
            }
        }
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Makes sure that there is a connection, with attempts until the deadline.
    fn connect_until(&mut self, deadline: Instant) -> Result<(), ConnectError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let connection = retried(deadline, may_pass, |within| self.shared.open(within))?;
        self.geometry = connection.geometry().clone();
        self.connection = Some(connection);
        self.connected += 1;
        Ok(())
    }

    /// Makes sure that there is a connection over which nothing is owed, until the deadline.
    fn ready_to_ask(&mut self, deadline: Instant) -> Result<(), AskError> {
        self.connection.take_if(|connection| connection.is_owed() || connection.is_hung_up());
        if let Err(error) = self.connect_until(deadline) {
            return Err(match error {
                ConnectError::Link { source: source @ LinkError::Deadline(_), .. } => self.lost(source),
                error => error.into(),
            });
        }
        let connection = self.connection.as_ref();
        let checked = connection.map(|it| it.check_owner(self.shared.owner.as_ref(), &self.shared.address));
        Ok(checked.transpose().map(drop)?)
    }

    /// Does something with the connection. One that is not there was lost.
    fn over_link<R>(
        &mut self,
        act: impl FnOnce(&mut TcpConnection) -> Result<R, LinkError>,
    ) -> Result<R, AskError> {
        let done = self.connection.as_mut().map_or(Err(LinkError::HungUp), act);
        done.map_err(|error| self.lost(error))
    }

    fn lost(&mut self, error: LinkError) -> AskError {
        self.disconnect();
        AskError::lost(&self.shared.address, self.shared.options.deadline, error)
    }
}

/// Whether the next attempt to connect may end in another way.
fn may_pass(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::NotThere { .. }
            | ConnectError::Link { .. }
            | ConnectError::TurnedAway { source: Refusal::Stopping, .. }
    )
}

impl Handle for TcpHandle {
    fn process(&self) -> Process {
        self.shared.process
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn reattached(&self) -> u64 {
        self.connected.saturating_sub(1)
    }

    fn times(&self) -> Option<&TimeCounts> {
        self.times.as_deref()
    }

    fn get_many<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        answers: &mut impl Answers,
        stats: &mut ClientStats,
    ) -> Result<ControlFlow<()>, GetError> {
        let mut batch = Batch::new(keys.len());
        self.read(stats, |requester| requester.answer_each(keys, &mut batch, answers))
    }

    fn converse(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), AskError> {
        loop {
            self.ready_to_ask(deadline.at)?;
            let Some(connection) = &mut self.connection else { continue };
            let (geometry, level) = (connection.geometry().clone(), connection.level());
            let mut has_sent = false;
            let pieces = Some(SOCKET_PIECE_MAX);
            let counts = &mut stats.requests;
            let sent = send_fitting(
                requests,
                (&geometry, level),
                pieces,
                replies,
                &mut has_sent,
                |some, replies| {
                    counts.message += some.len() as u64;
                    connection.converse(some, deadline, replies)
                },
            );
            match sent {
                // It was another server that would not have taken them.
                Err(LinkError::HungUp) if !has_sent && Instant::now() < deadline.at => self.disconnect(),
                result => return result.map_err(|error| self.lost(error)),
            }
        }
    }

    fn post(
        &mut self,
        request: &Request<'_>,
        deadline: Instant,
        stats: &mut ClientStats,
    ) -> Result<Posted, AskError> {
        self.ready_to_ask(deadline)?;
        if request.level() > self.connection.as_ref().map_or(0, TcpConnection::level) {
            return Ok(Posted::OldServer);
        }
        stats.requests.message += 1;
        self.over_link(|connection| connection.post(request, deadline)).map(|()| Posted::Sent)
    }

    fn late_reply(&mut self, until: Instant) -> Result<Option<Reply>, AskError> {
        self.over_link(|connection| connection.late_reply(until))
    }

    fn hurry(&mut self, deadline: Instant) -> Result<(), AskError> {
        self.over_link(|connection| connection.hurry(deadline))
    }

    fn disconnect(&mut self) {
        self.connection = None;
    }
}

impl Clone for TcpHandle {
    /// The clone has no connection yet.
    fn clone(&self) -> TcpHandle {
        TcpHandle {
            shared: self.shared.clone(),
            connection: None,
            geometry: self.geometry.clone(),
            times: self.times.as_ref().map(|_| Box::default()),
            connected: 0,
            keeper: self.keeper.clone(),
        }
    }
}
