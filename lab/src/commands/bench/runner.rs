//! How benches run: a table is filled, and those that are compared take turns, round after round.
//!
//! A bench states its workload, as [`Turn`]s, and the lines that it makes of their times.

use crate::measure::{KEY_BYTES, latencies};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use oneread::Client;
use oneread::internals::layout::hash::{mix, reduce};
use oneread_kit::child::{CpuTime, Fabric, ServerChild};
use oneread_kit::progress::Progress;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

/// The number below `n` of operation number `i` of a round. All contestants have the same order; each round has another.
pub fn pick(round: u32, i: u64, n: u64) -> u64 {
    reduce(mix(i ^ u64::from(round) << 40), n)
}

/// Has this process open as many files as it may: many connections are made. Where it may not, one of them says so.
pub fn more_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Starts a server in a process of its own, whose table has room for so many keys.
pub fn serve(fabric: Fabric, keys: u64, value_max: usize, more: &[String]) -> Result<ServerChild> {
    let table =
        [format!("--capacity={keys}"), format!("--key-max={KEY_BYTES}"), format!("--value-max={value_max}")];
    ServerChild::spawn(fabric, &[&table[..], more].concat())
}

/// Puts so many pairs, a batch at a time. `each` gets each batch that was put.
pub fn fill<P: AsRef<[u8]>, V: AsRef<[u8]>>(
    client: &mut Client,
    n: u64,
    batch: u64,
    pair: impl Fn(u64) -> (P, V),
    mut each: impl FnMut(&[(P, V)]) -> Result<()>,
) -> Result<()> {
    let bar = Progress::of(n, "filling", "keys");
    for first in (0..n).step_by(batch as usize) {
        let pairs: Vec<_> = (first..n.min(first + batch)).map(&pair).collect();
        for outcome in client.put_many(&pairs).context("putting keys")? {
            outcome?;
        }
        each(&pairs)?;
        bar.inc(pairs.len() as u64);
    }
    bar.finish();
    Ok(())
}

/// Runs a round of the number given, and returns its nanoseconds. It may record single requests.
type Round<'a> = Box<dyn FnMut(u32, &mut Histogram<u64>) -> Result<u64> + 'a>;

/// One of those that take turns.
pub struct Turn<'a, W> {
    way: W,
    /// The process whose CPU time counts, if it is another one.
    process: Option<Pid>,
    run: Round<'a>,
}

impl<'a, W> Turn<'a, W> {
    /// Of what has no server, or one whose CPU time nobody asks for.
    pub fn of(way: W, mut run: impl FnMut(u32) -> Result<u64> + 'a) -> Turn<'a, W> {
        Turn { way, process: None, run: Box::new(move |round, _| run(round)) }
    }

    /// Of a server in this process, if it is one, that is asked request by request.
    pub fn asking(
        way: W,
        process: Option<Pid>,
        run: impl FnMut(u32, &mut Histogram<u64>) -> Result<u64> + 'a,
    ) -> Turn<'a, W> {
        Turn { way, process, run: Box::new(run) }
    }
}

/// What the rounds of one came to.
pub struct Timed<W> {
    pub way: W,
    /// Nanoseconds of an operation, round by round.
    pub rounds: Vec<f64>,
    /// The server's CPU time for it. Empty without a server.
    pub server: Vec<f64>,
    /// The requests of all rounds.
    pub requests: Histogram<u64>,
}

impl<W> Timed<W> {
    /// The rounds' ratios to those of another one.
    pub fn ratios(&self, base: &[f64]) -> Vec<f64> {
        self.rounds.iter().zip(base).map(|(ns, base)| ns / base).collect()
    }
}

/// Has all take turns, so that other load on the machine affects them alike. A round makes `ops` operations. There is
/// one round more, which warms up.
pub fn take_turns<W: Copy>(
    rounds: u32,
    ops: u64,
    what: &'static str,
    mut turns: Vec<Turn<'_, W>>,
) -> Result<Vec<Timed<W>>> {
    let none = |turn: &Turn<'_, W>| {
        Ok(Timed { way: turn.way, rounds: Vec::new(), server: Vec::new(), requests: latencies()? })
    };
    let mut timed = turns.iter().map(none).collect::<Result<Vec<_>>>()?;
    let bar = Progress::of(rounds.into(), what, "rounds");
    for round in 0..=rounds {
        let mut order: Vec<_> = turns.iter_mut().zip(&mut timed).collect();
        // None is always the one behind the same other one.
        if round % 2 == 1 {
            order.reverse();
        }
        for (turn, timed) in order {
            let cpu = || turn.process.map(CpuTime::of).transpose();
            let before = cpu()?;
            let ns = (turn.run)(round, &mut timed.requests)?;
            if round == 0 {
                timed.requests.reset();
                continue;
            }
            timed.rounds.push(ns as f64 / ops as f64);
            let server = before.zip(cpu()?).map(|(before, after)| after.ms_since(before) * 1e6 / ops as f64);
            timed.server.extend(server);
        }
        bar.inc(1);
    }
    bar.finish();
    Ok(timed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All take as many turns, in either order. The first round is not counted, and times are those of an operation.
    #[test]
    fn all_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let turn = |way: char, ns: u64| {
            let order = &order;
            Turn::asking(way, None, move |round, requests| {
                order.borrow_mut().push(way);
                requests.record(ns)?;
                Ok(ns * u64::from(round))
            })
        };
        let timed = take_turns(2, 10, "timing", vec![turn('a', 100), turn('b', 400)]).unwrap();
        assert_eq!(order.borrow().iter().collect::<String>(), "abbaab");
        let told: Vec<_> = timed.iter().map(|it| (it.way, &it.rounds[..], it.requests.len())).collect();
        assert_eq!(told, [('a', &[10.0, 20.0][..], 2), ('b', &[40.0, 80.0], 2)]);
        assert_eq!(timed[1].ratios(&timed[0].rounds), [4.0, 4.0]);
        assert!(timed.iter().all(|it| it.server.is_empty()));
    }
}
