//! The client's path over TCP: every GET is a request, over the same connection as changes. A handle has one
//! connection. If it fails, another one replaces it, and GETs under way are asked again.

mod connection;
mod gets;
mod keeper;
mod shared;

use super::error::{AskError, ConnectError, GetError, LinkError};
use super::handle::{Deadline, Handle, Posted, broke_off, connected};
use super::link::link_failed;
use super::options::ClientOptions;
use super::owning::OwnOwner;
use super::send::send_fitting;
use super::stats::ClientStats;
use super::tries::{Failed, Repeatable, Tries};
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

/// One thread's path to the server.
#[derive(Debug)]
pub(super) struct TcpHandle {
    shared: Arc<TcpShared>,
    connection: Option<TcpConnection>,
    /// The geometry of the last connection, of this handle or of the one that it was cloned from.
    geometry: Arc<Geometry>,
    /// How long GETs of one key took, if the client takes the time.
    times: Option<Box<TimeCounts>>,
    /// The number of connections that it had.
    connected: u64,
    /// The keeper ends with the last handle. `None` of a client without an owner.
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

    /// The owner as which the client puts.
    pub fn owner(&self) -> Option<&OwnOwner> {
        self.shared.owner.as_ref()
    }

    /// The socket to the server, while there is a connection.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(TcpConnection::socket)
    }

    // ---- GETs -----------------------------------------------------------------------------------

    /// (Out of line, so that a GET on shm has no more registers to save.)
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
        let (within, limits) = (self.shared.options.deadline, self.shared.options.limits);
        // A callback that panicked may have left replies under way: they are not for this call.
        self.connection.take_if(|connection| connection.is_owed());
        let tell = |error: &LinkError| tracing::debug!(error = error as &dyn Error, "reconnecting");
        let read = Tries::of_gets(within).run(tell, |tries| {
            let ends = tries.ends();
            let connection = self.connected(ends).map_err(|error| Failed::ForGood(GetError::from(error)))?;
            let deadline = Deadline::until(ends, within);
            match get(&mut Requester { connection, deadline, stats, limits }) {
                Ok(result) => Ok(result),
                Err(Unanswered::Read(error)) => Err(Failed::ForGood(error.into())),
                Err(Unanswered::Link(error)) => {
                    self.disconnect();
                    match error {
                        LinkError::Deadline(_) => Err(Failed::ForGood(self.lost_get(error))),
                        error => Err(Failed::ForNow(error, Repeatable::READ)),
                    }
                }
            }
        });
        read.map_err(|failed| failed.or(|error| self.lost_get(error)))
    }

    fn lost_get(&self, error: LinkError) -> GetError {
        let address = self.shared.address.clone();
        match error {
            LinkError::Deadline(_) => GetError::Deadline { address, deadline: self.shared.options.deadline },
            source => GetError::ServerGone { address, source },
        }
    }

    // ---- connections ----------------------------------------------------------------------------

    /// The connection. Connects if there is none, with attempts until the deadline.
    fn connected(&mut self, deadline: Instant) -> Result<&mut TcpConnection, ConnectError> {
        if self.connection.is_none() {
            let connection = connected(deadline, may_pass, |within| self.shared.open(within))?;
            self.geometry = connection.geometry().clone();
            self.connection = Some(connection);
            self.connected += 1;
        }
        Ok(self.connection.as_mut().expect("connected above"))
    }

    /// Sends requests over one connection.
    fn converse_once(
        &mut self,
        requests: &[Request<'_>],
        deadline: &mut Deadline,
        replies: &mut Vec<Reply>,
        stats: &mut ClientStats,
    ) -> Result<(), Failed<LinkError, AskError>> {
        self.ready_to_ask(deadline.at).map_err(Failed::ForGood)?;
        let Some(connection) = &mut self.connection else {
            return Err(Failed::ForGood(self.lost(LinkError::HungUp)));
        };
        let (geometry, level) = (connection.geometry().clone(), connection.level());
        let (counts, mut has_sent) = (&mut stats.requests, false);
        let (server, pieces) = ((&*geometry, level), Some(SOCKET_PIECE_MAX));
        let sent = send_fitting(requests, server, pieces, replies, &mut has_sent, |some, replies| {
            counts.message += some.len() as u64;
            connection.converse(some, deadline, replies)
        });
        sent.map_err(|error| {
            self.disconnect();
            broke_off(has_sent, error, |error| self.lost(error))
        })
    }

    /// Makes sure that there is a connection over which nothing is owed, until the deadline.
    fn ready_to_ask(&mut self, deadline: Instant) -> Result<(), AskError> {
        self.connection.take_if(|connection| connection.is_owed() || connection.is_hung_up());
        if let Err(error) = self.connected(deadline) {
            return Err(match error {
                ConnectError::Link { source: source @ LinkError::Deadline(_), .. } => self.lost(source),
                error => error.into(),
            });
        }
        let (connection, shared) = (self.connection.as_ref(), &self.shared);
        let checked = connection.map(|it| it.check_owner(shared.owner.as_ref(), &shared.address));
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
        let mut tries = Tries::of_requests(deadline.at);
        let asked = tries.run(|_| {}, |_| self.converse_once(requests, deadline, replies, stats));
        asked.map_err(|failed| failed.or(|error| self.lost(error)))
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
