//! GETs against a NIC that may do anything that hardware may do.
//!
//! First every possible schedule runs, on small scenes. Then random schedules run on larger ones.
//! With the feature `faults`, each rule of the protocol is then broken on purpose, and the
//! adversary must find a counterexample.
//!
//! A random run that fails prints its seed, the stores during the GET, what each READ sampled, and
//! the verdict. `ONEREAD_SEED=n ./test --adversary` repeats it.
#![cfg(feature = "sim")]

#[cfg(feature = "faults")]
mod broken;
mod cases;
mod every;
mod every_extents;
mod every_growth;
mod every_owners;
mod extents;
mod growth;
mod killed_extents;
mod killed_growth;
mod killed_lives;
mod killed_owners;
mod matrix;
mod owners;
mod random;

use oneread::internals::sim::KeyNumber;
use oneread::internals::sim::{Hardware, Unit, Witness};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static GRACE_NS: Cell<u64> = const { Cell::new(400) };
}

/// The grace time of new tables. A store takes 1 ns.
fn grace() -> Duration {
    Duration::from_nanos(GRACE_NS.get())
}

fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// Makes tables with a longer grace time, so that the duration of a write does not matter.
#[cfg(feature = "faults")]
fn with_grace<R>(ns: u64, then: impl FnOnce() -> R) -> R {
    let before = GRACE_NS.replace(ns);
    let result = then();
    GRACE_NS.set(before);
    result
}

/// H1, by the clock.
const LINES: Hardware = Hardware {
    unit: Unit::Line,
    witness: Witness::Clock,
    read_stores_max: usize::MAX >> 1,
    error_one_in: 0,
    client_ns: 1,
    passes_max: 2,
    hints: false,
};
/// H1, by the clock, with hints. Their hits in slots of several lines take a pass.
const HINTED: Hardware = Hardware { hints: true, ..LINES };
/// H1, by a client's clock that runs at half the rate of the server's.
const SLOW: Hardware = Hardware { client_ns: 2, ..LINES };
/// H0, by the clock.
const WORDS: Hardware = Hardware { unit: Unit::Word, ..LINES };
/// H1, by the counters of begun moves.
const COUNTED: Hardware = Hardware { witness: Witness::Counter, ..LINES };
/// H1, by the counters, after a direct look.
const LOADS: Hardware = Hardware { witness: Witness::Loads, ..LINES };
/// What clients of random runs have, in turn.
const EACH: [Hardware; 6] = [LINES, SLOW, WORDS, COUNTED, LOADS, HINTED];

/// This hardware, with a client that looks several times.
fn several(hardware: Hardware) -> Hardware {
    Hardware { passes_max: 8, ..hardware }
}

/// So many passes are decided. Later ones see memory as it is at the end.
fn passes(passes_max: usize, hardware: Hardware) -> Hardware {
    Hardware { passes_max, ..hardware }
}
