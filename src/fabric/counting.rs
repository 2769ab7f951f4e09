//! A fabric around another one, which counts what is asked of it.

use super::{Fabric, Token};
use crate::get::Proof;
use crate::layout::geometry::{Geometry, Window};

/// What has been asked of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// READs posted.
    pub reads: u64,
    /// Bytes those READs asked for.
    pub bytes: u64,
    /// Doorbells rung.
    pub doorbells: u64,
}

impl std::ops::AddAssign for ReadCounts {
    fn add_assign(&mut self, other: ReadCounts) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.doorbells += other.doorbells;
    }
}

/// Counts the READs that go through it.
#[derive(Debug)]
pub struct Counting<'a, F> {
    inner: F,
    geometry: &'a Geometry,
    counts: ReadCounts,
}

impl<'a, F> Counting<'a, F> {
    /// Counts what is asked of `inner`.
    pub fn new(inner: F, geometry: &'a Geometry) -> Counting<'a, F> {
        Counting { inner, geometry, counts: ReadCounts::default() }
    }

    /// The counts so far.
    pub fn counts(&self) -> ReadCounts {
        self.counts
    }

    #[inline]
    fn count(&mut self, window: Window) {
        self.counts.reads += 1;
        self.counts.bytes += self.geometry.window_bytes(window);
    }
}

impl<F: Fabric> Fabric for Counting<'_, F> {
    type Landed<'a>
        = F::Landed<'a>
    where
        Self: 'a;
    const EXACT: bool = F::EXACT;
    type Mark = F::Mark;
    type Error = F::Error;

    fn credits(&self) -> usize {
        self.inner.credits()
    }

    #[inline]
    fn post(&mut self, reads: &[(Token, Window)]) -> Result<(), F::Error> {
        self.inner.post(reads)?;
        self.counts.doorbells += 1;
        reads.iter().for_each(|&(_, window)| self.count(window));
        Ok(())
    }

    #[inline]
    fn poll(&mut self, sink: impl FnMut(Token, &mut F::Landed<'_>)) -> Result<(), F::Error> {
        self.inner.poll(sink)
    }

    #[inline]
    fn mark(&mut self, home: u64) -> F::Mark {
        self.inner.mark(home)
    }

    #[inline]
    fn proof(&mut self, home: u64, mark: F::Mark) -> Proof {
        self.inner.proof(home, mark)
    }

    #[inline]
    fn read<R>(&mut self, window: Window, take: impl FnOnce(&mut F::Landed<'_>) -> R) -> Result<R, F::Error> {
        self.counts.doorbells += 1;
        self.count(window);
        self.inner.read(window, take)
    }
}
