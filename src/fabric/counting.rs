//! A fabric around another one, which counts what is asked of it.

use super::{Fabric, ReadId};
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
    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), F::Error> {
        self.inner.post(reads)?;
        self.counts.doorbells += 1;
        reads.iter().for_each(|&(_, window)| self.count(window));
        Ok(())
    }

    #[inline]
    fn poll(&mut self, sink: impl FnMut(ReadId, &mut F::Landed<'_>)) -> Result<(), F::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::fabric::landed::LandedWindow;

    /// READs of zeros, of which a doorbell takes two.
    struct Zeros<'g> {
        geometry: &'g Geometry,
        words: Vec<u64>,
        posted: Vec<(ReadId, Window)>,
    }

    impl Fabric for Zeros<'_> {
        type Landed<'a>
            = LandedWindow<'a>
        where
            Self: 'a;
        const EXACT: bool = false;
        type Mark = u64;
        type Error = &'static str;

        fn credits(&self) -> usize {
            5
        }

        fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), &'static str> {
            self.posted.extend_from_slice(reads);
            if reads.len() > 2 { Err("too many") } else { Ok(()) }
        }

        fn poll(&mut self, mut sink: impl FnMut(ReadId, &mut LandedWindow<'_>)) -> Result<(), &'static str> {
            for (token, window) in self.posted.drain(..) {
                sink(token, &mut LandedWindow::new(self.geometry, window, &self.words));
            }
            Ok(())
        }

        fn mark(&mut self, home: u64) -> u64 {
            home + 1
        }

        fn proof(&mut self, home: u64, mark: u64) -> Proof {
            Proof::by_counter(home + 1, mark)
        }
    }

    /// A doorbell counts once for all its READs, each READ for all its bytes; what failed is not counted.
    /// Everything else is the inner fabric's.
    #[test]
    fn what_is_counted() {
        let config = Config { size: TableSize::Slots(64), key_max: 8, value_max: 100, ..Config::default() };
        // (A READ of its own lands something that lives for ever, for all that the compiler can say.)
        let geometry: &Geometry = Box::leak(Box::new(config.geometry().unwrap()));
        let large = geometry.window(3);
        let small = Window { slots: 1, ..large };
        assert_eq!((large.slots, geometry.shape().bytes()), (8, 128));
        let zeros = Zeros { geometry, words: vec![0; 8 * 16], posted: Vec::new() };
        let mut fabric = Counting::new(zeros, geometry);
        assert_eq!(fabric.counts(), ReadCounts::default());
        fabric.post(&[(7, large), (8, small)]).unwrap();
        let doorbell = ReadCounts { reads: 2, bytes: 9 * 128, doorbells: 1 };
        assert_eq!(fabric.counts(), doorbell);
        let mut tokens = Vec::new();
        fabric.poll(|token, _| tokens.push(token)).unwrap();
        assert_eq!((tokens, fabric.counts()), (vec![7, 8], doorbell));
        assert_eq!(fabric.post(&[(1, small); 3]), Err("too many"));
        assert_eq!(fabric.counts(), doorbell);
        fabric.poll(|_, _| {}).unwrap();
        assert_eq!(fabric.read(small, |_| 5), Ok(5));
        assert_eq!(fabric.counts(), ReadCounts { reads: 3, bytes: 10 * 128, doorbells: 2 });
        assert_eq!((fabric.credits(), fabric.mark(9)), (5, 10));
        assert_eq!((fabric.proof(9, 10), fabric.proof(9, 9)), (Proof::NoMove, Proof::None));

        let mut sum = ReadCounts { reads: 1, bytes: 20, doorbells: 300 };
        sum += ReadCounts { reads: 4_000, bytes: 50_000, doorbells: 600_000 };
        assert_eq!(sum, ReadCounts { reads: 4_001, bytes: 50_020, doorbells: 600_300 });
    }
}
