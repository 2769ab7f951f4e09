//! READs over a connection, as GETs see them.

use super::connection::Connection;
use super::error::VerbsError;
use crate::clock::Clock;
use crate::fabric::landed::LandedWindow;
use crate::fabric::{Fabric, Token};
use crate::get::Proof;
use crate::layout::geometry::Window;
use std::time::Duration;

/// A connection for the time of one call.
#[derive(Debug)]
pub(crate) struct Verbs<'a> {
    pub connection: &'a mut Connection,
    pub clock: &'a Clock,
    /// The grace time T of the table.
    pub grace: Duration,
    /// How long READs may take before the connection is taken for dead.
    pub within: Duration,
}

impl Fabric for Verbs<'_> {
    type Landed<'a>
        = LandedWindow<'a>
    where
        Self: 'a;
    /// A NIC copies lines at any instants in any order: only stamps, CRC and time tell.
    const EXACT: bool = false;
    /// When the pass began, before its first READ was posted.
    type Mark = u64;
    type Error = VerbsError;

    fn credits(&self) -> usize {
        self.connection.credits()
    }

    fn post(&mut self, reads: &[(Token, Window)]) -> Result<(), VerbsError> {
        self.connection.post(reads)
    }

    fn poll(&mut self, sink: impl FnMut(Token, &mut LandedWindow<'_>)) -> Result<(), VerbsError> {
        self.connection.poll(self.within, sink)
    }

    fn mark(&mut self, _home: u64) -> u64 {
        self.clock.now_ns()
    }

    fn proof(&mut self, _home: u64, mark: u64) -> Proof {
        // The completion has been seen: what was sampled was sampled before now.
        let took = self.clock.now_ns().saturating_sub(mark);
        if u128::from(took) < self.grace.as_nanos() { Proof::InGrace } else { Proof::None }
    }
}
