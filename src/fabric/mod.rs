//! Fabrics: what carries READs.
//!
//! A fabric takes READs in doorbells and gives them back as they complete. It neither knows keys nor
//! interprets bytes; it says how its samples may be believed ([`Fabric::EXACT`], [`Fabric::proof`]).

pub(crate) mod direct;
pub(crate) mod landed;
pub(crate) mod shm;

pub use crate::get::{Landed, Look, Proof};
pub use crate::layout::geometry::Window;
pub use direct::BegunLook;
pub use landed::LandedWindow;
pub use shm::Shm;

use crate::layout::hash::Hashed;
use crate::outcome::ReadError;
use crate::sink::Sink;
use std::time::Duration;

/// Which GET of a batch a READ belongs to.
pub type ReadId = u32;

/// Some bytes of a region, anywhere in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: usize,
}

/// What was asked of the fabric. Add them up with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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

/// What a fabric may do whose READs are loads: look for a key without the GET machine. No other fabric can:
/// for it, `impl Direct for MyFabric {}` is all.
pub trait Direct {
    /// Whether [`Direct::get_directly`] ever has an answer.
    #[inline(always)]
    fn is_direct(&self) -> bool {
        false
    }

    /// Begins a direct look for `key`, and asks for the window in which it goes on.
    #[inline(always)]
    fn expect(&self, key: &[u8]) -> BegunLook {
        let _ = key;
        BegunLook::NOTHING
    }

    /// What nearly every GET needs, where READs are loads: whether the key is in its primary
    /// window, and its value in `value`. `None` says nothing, not even that the key's length may be.
    #[inline(always)]
    fn glance(&mut self, key: &[u8], value: &mut impl Sink) -> Option<bool> {
        let _ = (key, value);
        None
    }

    /// Like `glance`, for a key whose look has begun ([`Direct::expect`]).
    #[inline(always)]
    fn glance_expected(&mut self, key: &[u8], expected: &BegunLook, value: &mut impl Sink) -> Option<bool> {
        let _ = expected;
        self.glance(key, value)
    }

    /// Looks for a key without the GET machine, on a fabric whose READs are loads. Returns whether
    /// it was there, and its value in `value`; `None` when only the machine can tell. Counts in
    /// `reads`, but for the first window of a look that ended in an answer.
    #[inline(always)]
    fn get_directly(
        &mut self,
        key: Hashed<'_>,
        value: &mut impl Sink,
        reads: &mut ReadCounts,
    ) -> Option<bool> {
        let _ = (key, value, reads);
        None
    }

    /// Like `get_directly`, in a table whose entries may have owners: a hidden entry is not there (O2). The look has begun.
    #[inline(always)]
    fn get_unhidden(
        &mut self,
        key: &[u8],
        expected: &BegunLook,
        value: &mut impl Sink,
        reads: &mut ReadCounts,
    ) -> Option<bool> {
        let _ = (key, expected, value, reads);
        None
    }
}

/// Carries READs of windows. One per thread: `&mut self` throughout.
pub trait Fabric: Direct {
    /// A window as this fabric lands it.
    type Landed<'a>: Landed
    where
        Self: 'a;
    /// Is what [`Landed::look`] accepts consistent by itself, whatever time it took? True where the
    /// reader checks the full stamp around its loads (shm). That stamp is a u32: it is wrong only
    /// after exactly 2^31 writes of the slot between the two loads.
    const EXACT: bool;
    /// Taken at the start of a pass, handed back for its proof.
    type Mark: Copy;
    /// Why a GET over it gives no answer: what can happen on every fabric, and what can go wrong
    /// underneath this one. [`ReadError`] itself where nothing can.
    type Error: From<ReadError>;

    /// READs that may be in flight at once. At least 1.
    fn credits(&self) -> usize;

    /// Posts READs, all with one doorbell. At most [`credits`](Fabric::credits) less those in flight.
    ///
    /// # Errors
    /// The fabric failed; whether some of them were posted is not known, and no READ in flight counts any more.
    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), Self::Error>;

    /// Waits for at least one READ, if any is in flight, and hands each completed one to `take`.
    ///
    /// # Errors
    /// When the fabric failed; what was in flight is lost.
    fn poll(&mut self, take: impl FnMut(ReadId, &mut Self::Landed<'_>)) -> Result<(), Self::Error>;

    /// Checks, without a READ, that what is read is still served. Called before a key is refused for
    /// its length: the next server's table may take it.
    ///
    /// # Errors
    /// When it is not, as far as is known.
    fn check(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether misses rest on the counters of begun moves, not on time.
    #[inline(always)]
    fn is_by_counter(&self) -> bool {
        Self::EXACT
    }

    /// The beginning of a pass for a key with this home.
    fn mark(&mut self, home: u64) -> Self::Mark;

    /// What can be said, at the end of a pass, about moves since `mark` of keys with this home.
    fn proof(&mut self, home: u64, mark: Self::Mark) -> Proof;

    /// Whether less than `allowance` has passed since `mark`, by a clock that bytes may be believed by (X4).
    /// Never on shm.
    fn took_less(&mut self, mark: Self::Mark, allowance: Duration) -> bool;

    /// READs these bytes, there and back: a READ of each stretch, all in flight at once. One after the other,
    /// they are put into `out`, where the value has begun; they prove nothing. Only while no READ is under way.
    ///
    /// # Errors
    /// As [`post`](Fabric::post) and [`poll`](Fabric::poll).
    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), Self::Error>;

    /// One READ, there and back. A fabric that need not queue may do better than post and poll.
    ///
    /// # Errors
    /// As [`post`](Fabric::post) and [`poll`](Fabric::poll).
    #[inline]
    fn read<R>(
        &mut self,
        window: Window,
        take: impl FnOnce(&mut Self::Landed<'_>) -> R,
    ) -> Result<R, Self::Error> {
        self.post(&[(0, window)])?;
        let mut take = Some(take);
        let mut result = None;
        while result.is_none() {
            self.poll(|_, landed| result = take.take().map(|take| take(landed)))?;
        }
        Ok(result.expect("the loop ends with a result"))
    }
}
