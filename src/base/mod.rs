//! What every room stands on, and what knows none of them: locks and atomics, clocks, processes, random numbers, units.

pub(crate) mod clock;
pub(crate) mod conversations;
pub(crate) mod cores;
pub(crate) mod observe;
pub(crate) mod peer;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod setters;
pub(crate) mod sync;
pub(crate) mod times;
pub(crate) mod units;
