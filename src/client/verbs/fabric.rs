//! READs over a connection, as GETs see them.

use super::chunk_keys::ChunkKeys;
use super::connection::Connection;
use super::long;
use super::pairs::LaneReader;
use crate::base::clock::Clock;
use crate::client::lanes::ReadWanted;
use crate::fabric::landed::LandedWindow;
use crate::fabric::{Direct, Fabric, ReadId, Stretch};
use crate::get::{Landed, Proof};
use crate::layout::chunk::{chunk_slot, chunk_window, remote_key};
use crate::layout::geometry::{Geometry, Window};
use crate::outcome::ReadError;
use crate::sink::Sink;
use crate::verbs::error::{SetupError, VerbsError};
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
    /// There is no memory for a long value to land in.
    #[error(transparent)]
    Memory(SetupError),
}

/// The fabric for the time of one call.
#[derive(Debug)]
pub(crate) struct Verbs<'a> {
    pub way: ReadPath<'a>,
    pub geometry: &'a Geometry,
    /// READs that wait until the key of their chunk has been READ.
    pub keyless: Vec<Keyless>,
    pub clock: &'a Clock,
    /// The grace time T of the table.
    pub grace: Duration,
    /// Longest time of READs before the connection is considered dead.
    pub within: Duration,
}

/// A READ whose chunk's key is not known yet.
#[derive(Debug)]
pub(crate) struct Keyless {
    id: ReadId,
    window: Window,
    chunk: u32,
    /// How often the chunk's slot was READ and showed no key.
    misses: u32,
}

/// The most READs of a chunk slot that shows no key. A slot that is being written shows none for a moment.
const MISSES_MAX: u32 = 100;

impl ReadPath<'_> {
    fn keys(&self) -> &ChunkKeys {
        match self {
            ReadPath::Own(connection) => connection.keys(),
            ReadPath::Shared(seat) => seat.keys(),
        }
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), VerbsError> {
        match self {
            ReadPath::Own(connection) => connection.post(reads),
            ReadPath::Shared(seat) => {
                seat.post(reads);
                Ok(())
            }
        }
    }

    fn make_room(&mut self, bytes: usize) -> Result<(), SetupError> {
        match self {
            ReadPath::Own(connection) => connection.make_room(bytes),
            ReadPath::Shared(seat) => seat.make_room(bytes),
        }
    }

    fn message_max(&self) -> usize {
        match self {
            ReadPath::Own(connection) => connection.message_max(),
            ReadPath::Shared(seat) => seat.message_max(),
        }
    }

    fn credits(&self) -> usize {
        match self {
            ReadPath::Own(connection) => connection.credits(),
            ReadPath::Shared(seat) => seat.credits(),
        }
    }

    fn post_pieces(&mut self, pieces: &[ReadWanted]) -> Result<(), VerbsError> {
        match self {
            ReadPath::Own(connection) => connection.post_pieces(pieces),
            ReadPath::Shared(seat) => {
                seat.post_pieces(pieces);
                Ok(())
            }
        }
    }

    fn drain(&mut self, within: Duration) -> Result<(), VerbsError> {
        match self {
            ReadPath::Own(connection) => connection.drain(within),
            ReadPath::Shared(seat) => seat.drain(within),
        }
    }

    fn copy_long(&self, bytes: usize, out: &mut impl Sink) {
        match self {
            ReadPath::Own(connection) => connection.copy_long(bytes, out),
            ReadPath::Shared(seat) => seat.copy_long(bytes, out),
        }
    }

    fn poll(
        &mut self,
        within: Duration,
        take: impl FnMut(ReadId, &mut LandedWindow<'_>),
    ) -> Result<(), VerbsError> {
        match self {
            ReadPath::Own(connection) => connection.poll(within, take),
            ReadPath::Shared(seat) => seat.poll(within, take),
        }
    }
}

impl Verbs<'_> {
    /// Posts READs in a table that grows, or READs of the keys that they need.
    fn post_with_keys(&mut self, reads: &[(ReadId, Window)]) -> Result<(), VerbsError> {
        let Verbs { way, geometry, keyless, .. } = self;
        let keyed = |&(id, window): &(ReadId, Window)| match way.keys().unknown(geometry, window) {
            None => (id, window),
            Some(chunk) => {
                keyless.push(Keyless { id, window, chunk, misses: 0 });
                (id, chunk_window(geometry, chunk))
            }
        };
        let reads: Vec<_> = reads.iter().map(keyed).collect();
        way.post(&reads)
    }

    /// READs the key of a chunk, while no READ is under way.
    #[cold]
    fn learn(&mut self, chunk: u32) -> Result<(), VerbsError> {
        let Verbs { way, geometry, within, .. } = self;
        for _ in 0..=MISSES_MAX {
            let mut told = None;
            way.post(&[(0, chunk_window(geometry, chunk))])?;
            while told.is_none() {
                way.poll(*within, |_, landed| told = Some(landed.entry(chunk_slot(geometry, chunk))))?;
            }
            if let Some(key) = told.flatten().and_then(|words| remote_key(chunk, words)) {
                way.keys().learn(chunk, key);
                return Ok(());
            }
        }
        Err(no_key(chunk))
    }

    /// Takes completions, until one is not a key's.
    fn poll_with_keys(
        &mut self,
        mut take: impl FnMut(ReadId, &mut LandedWindow<'_>),
    ) -> Result<(), VerbsError> {
        loop {
            let Verbs { way, geometry, keyless, within, .. } = self;
            let (mut landed_keys, mut others) = (Vec::new(), 0);
            way.poll(*within, |id, landed| match keyless.iter().position(|read| read.id == id) {
                None => {
                    others += 1;
                    take(id, landed);
                }
                Some(at) => {
                    let read = keyless.swap_remove(at);
                    let told = landed.entry(chunk_slot(geometry, read.chunk));
                    landed_keys.push((told.and_then(|words| remote_key(read.chunk, words)), read));
                }
            })?;
            if landed_keys.is_empty() {
                return Ok(());
            }
            let mut reads = Vec::new();
            for (key, mut read) in landed_keys {
                match key {
                    Some(key) => {
                        way.keys().learn(read.chunk, key);
                        reads.push((read.id, read.window));
                    }
                    None if read.misses == MISSES_MAX => return Err(no_key(read.chunk)),
                    None => {
                        read.misses += 1;
                        reads.push((read.id, chunk_window(geometry, read.chunk)));
                        keyless.push(read);
                    }
                }
            }
            way.post(&reads)?;
            if others > 0 {
                return Ok(());
            }
        }
    }
}

/// The error if the region names memory that has no key.
fn no_key(chunk: u32) -> VerbsError {
    let what = format!("an entry or a slot that names memory of chunk {chunk}, which has no key");
    VerbsError::Garbage { what }
}

impl Direct for Verbs<'_> {}

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
        self.way.credits()
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), VerbsGetError> {
        match self.geometry.grows() {
            false => self.way.post(reads)?,
            true => self.post_with_keys(reads)?,
        }
        Ok(())
    }

    fn poll(&mut self, take: impl FnMut(ReadId, &mut LandedWindow<'_>)) -> Result<(), VerbsGetError> {
        match self.keyless.is_empty() {
            true => self.way.poll(self.within, take)?,
            false => self.poll_with_keys(take)?,
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

    fn took_less(&mut self, mark: u64, allowance: Duration) -> bool {
        u128::from(self.clock.now_ns().saturating_sub(mark)) < allowance.as_nanos()
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), VerbsGetError> {
        for bytes in stretches {
            if let Some(chunk) = self.way.keys().unknown_to(self.geometry, bytes.offset) {
                self.learn(chunk)?;
            }
        }
        let bytes = stretches.iter().map(|bytes| bytes.len).sum();
        self.way.make_room(bytes).map_err(VerbsGetError::Memory)?;
        for some in long::pieces(stretches, self.way.message_max()).chunks(self.way.credits()) {
            self.way.post_pieces(some)?;
            self.way.drain(self.within)?;
        }
        self.way.copy_long(bytes, out);
        Ok(())
    }

    fn proof(&mut self, _home: u64, mark: u64) -> Proof {
        // The completion has been seen, so all lines were read before now.
        Proof::by_clock(self.clock.now_ns().saturating_sub(mark), self.grace)
    }
}
