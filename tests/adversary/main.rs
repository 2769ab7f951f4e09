//! GETs against a NIC that may do anything hardware may do.
//!
//! First every way there is, on small scenes; then random schedules on larger ones; then, with the feature
//! `faults`, the same again for each rule of the protocol broken on purpose: the adversary must find a
//! counterexample.
//!
//! A random run that fails prints its seed, the stores meanwhile, what each READ sampled, and the verdict.
//! `ONEREAD_SEED=n ./test --adversary` runs it again.
#![cfg(feature = "sim")]

#[cfg(feature = "faults")]
mod broken;
mod cases;
mod every;
mod random;

use oneread::sim::KeyNumber;
use oneread::sim::{Hardware, Unit, Witness};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static GRACE_NS: Cell<u64> = const { Cell::new(400) };
}

/// The grace time of tables that are made now. A store takes 1 ns.
fn grace() -> Duration {
    Duration::from_nanos(GRACE_NS.get())
}

fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// Has tables made with a longer grace time, next to which what a write takes does not count.
#[cfg(feature = "faults")]
fn with_grace<R>(ns: u64, then: impl FnOnce() -> R) -> R {
    let before = GRACE_NS.replace(ns);
    let result = then();
    GRACE_NS.set(before);
    result
}

/// H1, going by the clock.
const LINES: Hardware = Hardware {
    unit: Unit::Line,
    witness: Witness::Clock,
    read_stores_max: usize::MAX >> 1,
    error_one_in: 0,
    client_ns: 1,
    passes_max: 2,
};
/// The same, and the client's clock runs at half the rate of the server's.
const SLOW: Hardware = Hardware { client_ns: 2, ..LINES };
/// H0, going by the clock.
const WORDS: Hardware = Hardware { unit: Unit::Word, ..LINES };
/// H1, going by the counters of begun moves.
const COUNTED: Hardware = Hardware { witness: Witness::Counter, ..LINES };
