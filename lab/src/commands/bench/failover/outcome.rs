//! What came of it: pauses, from when operations began and ended.

use super::load::Put;
use hdrhistogram::Histogram;
use oneread_cluster::core::state::ShardIx;
use oneread_kit::show;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What came of it. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    pub nodes: u64,
    /// Nodes that were killed and started again.
    pub kills: u64,
    /// Nodes that were stopped for longer than the TTL.
    pub stops: u64,
    /// Shards that were handed over because somebody wished it.
    pub moves: u64,
    /// Acknowledged puts.
    pub acknowledged: u64,
    /// Keys whose last acknowledged put is gone.
    pub lost: u64,
    /// GETs that returned less than had been acknowledged or read before.
    pub stale: u64,
    pub failed_gets: u64,
    /// Between two GETs of one client's that returned something.
    pub get_gap_ms_p999: f64,
    pub get_gap_ms_max: f64,
    /// Longest time for which a shard took no put around a kill or a stop.
    pub unavailable_ms_max: f64,
    /// Longest time for which a shard that was moved took no put.
    pub handover_ms_max: f64,
    /// Before anything was killed: a GET by a client of the cluster, and by one of the table.
    pub get_us_p50: f64,
    pub table_get_us_p50: f64,
    pub put_us_p50: f64,
    /// One call of `put_many` with 64 keys.
    pub put_many_64_us_p50: f64,
    /// Keys of which a copy died with a node, and how many of them a second were copied again.
    pub keys_copied: u64,
    pub keys_copied_per_s: f64,
    /// A GET before that, and while copies were made.
    pub get_us_p99: f64,
    pub get_copying_us_p99: f64,
}

impl Outcome {
    pub fn is_well(&self) -> bool {
        self.lost + self.stale == 0
    }
}

/// What was done to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Moved,
    Killed,
    /// Killed, and started again before others could take over.
    Restarted,
    Stopped,
}

impl What {
    pub fn told(self) -> &'static str {
        match self {
            What::Moved => "shards moved",
            What::Killed => "killed, started after the takeover",
            What::Restarted => "killed, started at once",
            What::Stopped => "stopped for 1.5 TTL",
        }
    }
}

/// Something that was done.
#[derive(Debug)]
pub struct Fault {
    pub what: What,
    pub begun: Instant,
    /// When the shards that it was about had been taken over, or were where they should be.
    pub over: Instant,
    /// When all had come to rest, and each shard had taken a put since.
    pub rest: Instant,
    /// Shards that were moved, or were the node's.
    pub shards: Vec<ShardIx>,
}

/// Times for which a shard took no put: from when one began that was not acknowledged, or was at last, until one was. Puts
/// of a shard are in order, one behind the other.
fn pauses(puts: &[Put]) -> impl Iterator<Item = (Instant, Instant)> {
    let mut begun = None;
    puts.iter().enumerate().filter_map(move |(at, put)| {
        let since = *begun.get_or_insert(put.begun);
        let is_end = put.is_acknowledged || at + 1 == puts.len();
        is_end.then(|| {
            begun = None;
            (since, put.ended)
        })
    })
}

/// The longest pause of these shards of which a part lies between two instants.
pub fn longest_pause(
    puts: &[Vec<Put>],
    shards: impl IntoIterator<Item = usize>,
    from: Instant,
    until: Instant,
) -> Duration {
    let of_shards = shards.into_iter().filter_map(|shard| puts.get(shard));
    let within =
        of_shards.flat_map(|puts| pauses(puts)).filter(|(begun, ended)| *begun <= until && *ended >= from);
    within.map(|(begun, ended)| ended - begun).max().unwrap_or_default()
}

impl Fault {
    /// The longest time for which a shard took no put: a shard that was moved, or any around a kill or a stop.
    pub fn pause(&self, puts: &[Vec<Put>]) -> Duration {
        match self.what {
            What::Moved => longest_pause(
                puts,
                self.shards.iter().map(|shard| usize::from(*shard)),
                self.begun,
                self.over,
            ),
            _ => longest_pause(puts, 0..puts.len(), self.begun, self.over),
        }
    }

    /// The longest time between two GETs of a client's, of which a part lies before all had come to rest.
    pub fn get_gap(&self, gets: &[Vec<Instant>]) -> Duration {
        let gaps = gets.iter().flat_map(|ended| ended.windows(2)).map(|two| (two[0], two[1]));
        let within = gaps.filter(|(begun, ended)| *begun <= self.rest && *ended >= self.begun);
        within.map(|(begun, ended)| ended - begun).max().unwrap_or_default()
    }
}

/// Times between two GETs of a client's, in microseconds.
pub fn get_gaps(gets: &[Vec<Instant>]) -> anyhow::Result<Histogram<u64>> {
    let mut gaps = Histogram::new(3)?;
    for two in gets.iter().flat_map(|ended| ended.windows(2)) {
        gaps.record((two[1] - two[0]).as_micros() as u64)?;
    }
    Ok(gaps)
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What was done, one after the other.
pub fn faults_table(faults: &[Fault], puts: &[Vec<Put>], gets: &[Vec<Instant>]) -> impl std::fmt::Display {
    let mut table =
        show::table(["what", "shards", "over after", "no put for", "no GET for", "at rest after"]);
    for fault in faults {
        let time = |time: Duration| show::number(format!("{:.0} ms", ms(time)));
        table.add_row([
            comfy_table::Cell::new(fault.what.told()),
            show::number(fault.shards.len()),
            time(fault.over - fault.begun),
            time(fault.pause(puts)),
            time(fault.get_gap(gets)),
            time(fault.rest - fault.begun),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause lasts from the first put that was not acknowledged until one is, and counts where it touches.
    #[test]
    fn pauses_are_found() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let put = |begun, ended, is_acknowledged| Put { begun: at(begun), ended: at(ended), is_acknowledged };
        let one = vec![put(0, 1, true), put(10, 100, false), put(110, 150, true), put(160, 162, true)];
        let other = vec![put(0, 200, true), put(300, 400, false)];
        assert_eq!(pauses(&one).collect::<Vec<_>>(), [(at(0), at(1)), (at(10), at(150)), (at(160), at(162))]);
        let puts = [one, other];
        let longest = |shards: &[usize], from, until| {
            longest_pause(&puts, shards.iter().copied(), at(from), at(until)).as_millis()
        };
        assert_eq!(longest(&[0], 50, 60), 140);
        assert_eq!(longest(&[0], 151, 500), 2);
        assert_eq!(longest(&[0], 163, 500), 0);
        assert_eq!(longest(&[0, 1], 0, 60), 200);
        assert_eq!(longest(&[1], 350, 360), 100, "a put that was never acknowledged");
        let fault = |what| Fault { what, begun: at(20), over: at(30), rest: at(40), shards: vec![0] };
        assert_eq!(fault(What::Moved).pause(&puts).as_millis(), 140);
        assert_eq!(fault(What::Killed).pause(&puts).as_millis(), 200);
        let gets = [vec![at(0), at(10), at(35), at(90)], vec![at(0), at(15), at(39), at(41), at(300)]];
        assert_eq!(fault(What::Killed).get_gap(&gets).as_millis(), 55);
        assert_eq!(get_gaps(&gets).unwrap().len(), 7);
    }

    #[test]
    fn what_is_lost_or_stale_is_not_well() {
        assert!(Outcome { failed_gets: 3, ..Outcome::default() }.is_well());
        assert!(!Outcome { lost: 1, ..Outcome::default() }.is_well());
        assert!(!Outcome { stale: 1, ..Outcome::default() }.is_well());
    }
}
