//! READs over a connection, as GETs see them.

use super::connection::Connection;
use super::pairs::LaneReader;
use crate::clock::Clock;
use crate::fabric::landed::LandedWindow;
use crate::fabric::{Fabric, ReadId};
use crate::get::Proof;
use crate::layout::geometry::Window;
use crate::outcome::ReadError;
use crate::verbs::error::VerbsError;
use std::time::Duration;

/// The path of READs.
#[derive(Debug)]
pub(crate) enum ReadPath<'a> {
    /// The handle's own connection.
    Own(&'a mut Connection),
    /// A lane of a shared connection.
    Shared(&'a mut LaneReader),
}

/// Why a GET over a connection gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerbsGetError {
    /// An error that can happen on every fabric.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The connection failed.
    #[error(transparent)]
    Link(#[from] VerbsError),
}

/// The fabric for the time of one call.
#[derive(Debug)]
pub(crate) struct Verbs<'a> {
    pub way: ReadPath<'a>,
    pub clock: &'a Clock,
    /// The grace time T of the table.
    pub grace: Duration,
    /// Longest time of READs before the connection is considered dead.
    pub within: Duration,
}

impl Fabric for Verbs<'_> {
    type Landed<'a>
        = LandedWindow<'a>
    where
        Self: 'a;
    /// A NIC copies lines at any time and in any order. Only stamps, CRC and time prove a result.
    const EXACT: bool = false;
    /// When the pass began, before its first READ was posted.
    type Mark = u64;
    type Error = VerbsGetError;

    fn credits(&self) -> usize {
        match &self.way {
            ReadPath::Own(connection) => connection.credits(),
            ReadPath::Shared(seat) => seat.credits(),
        }
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), VerbsGetError> {
        match &mut self.way {
            ReadPath::Own(connection) => connection.post(reads)?,
            ReadPath::Shared(seat) => seat.post(reads),
        }
        Ok(())
    }

    fn poll(&mut self, sink: impl FnMut(ReadId, &mut LandedWindow<'_>)) -> Result<(), VerbsGetError> {
        match &mut self.way {
            ReadPath::Own(connection) => connection.poll(self.within, sink)?,
            ReadPath::Shared(seat) => seat.poll(self.within, sink)?,
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), VerbsGetError> {
        match &mut self.way {
            ReadPath::Own(connection) => connection.check_stream()?,
            ReadPath::Shared(seat) => seat.check()?,
        }
        Ok(())
    }

    fn mark(&mut self, _home: u64) -> u64 {
        self.clock.now_ns()
    }

    fn proof(&mut self, _home: u64, mark: u64) -> Proof {
        // The completion has been seen, so all lines were read before now.
        Proof::by_clock(self.clock.now_ns().saturating_sub(mark), self.grace)
    }
}
