//! What time it is for a table: how long ago it was made, by words of its control page (V4, V5).

use crate::base::clock::Clock;
use crate::base::sync::{Ordering, fence};
use crate::faults::{Rule, by_rule, kept};
use crate::layout::control::{EPOCH_WORD, MADE_WORD};
use crate::region::Region;
use crate::snapshot::since_1970;
use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

/// A start of the machine whose clock nobody has.
const UNKNOWN: u64 = 0;

/// What this process knows of the host's clock: the one that counts in the control page, whatever time namespace a process
/// is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostClock {
    /// Tells one start of the machine from another; not [`UNKNOWN`].
    boot: u64,
    /// So far is this process's own clock ahead of the host's.
    ahead_ns: i64,
}

/// Which boot of this machine it is; 0: the system does not say.
pub(crate) fn boot_of_host() -> u64 {
    HostClock::of(&Clock::System).map_or(0, |clock| clock.boot)
}

impl HostClock {
    /// As it is seen with this clock. `None`: the system does not say.
    fn of(clock: &Clock) -> Option<HostClock> {
        match clock {
            // A process does not change its namespace, but by `setns`, which is not noticed behind the first look.
            Clock::System => {
                static KNOWN: OnceLock<Option<HostClock>> = OnceLock::new();
                *KNOWN.get_or_init(|| HostClock::told_in(Path::new("/proc")))
            }
            // All that have such a clock have the same one.
            Clock::Manual(_) => Some(HostClock { boot: u64::MAX, ahead_ns: 0 }),
        }
    }

    /// As the files of this folder say it, which is the kernel's `/proc`.
    fn told_in(proc: &Path) -> Option<HostClock> {
        let id = std::fs::read(proc.join("sys/kernel/random/boot_id")).ok().filter(|id| !id.is_empty())?;
        let boot = id.iter().fold(0, |all, &byte| crate::layout::hash::mix(all ^ u64::from(byte))).max(1);
        let own = proc.join("self/ns");
        let ahead_ns = match std::fs::read_link(own.join("time")) {
            Ok(mine) => {
                // The file tells the offsets of the namespace in which children of this process begin.
                let of_children = std::fs::read_link(own.join("time_for_children")).ok()?;
                let offsets = std::fs::read_to_string(proc.join("self/timens_offsets")).ok();
                offsets.filter(|_| mine == of_children).and_then(|offsets| boottime_offset_ns(&offsets))?
            }
            // A kernel without time namespaces.
            Err(_) if own.is_dir() => 0,
            Err(_) => return None,
        };
        Some(HostClock { boot, ahead_ns })
    }
}

/// The offset of `CLOCK_BOOTTIME` in what `/proc/self/timens_offsets` says.
fn boottime_offset_ns(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.trim_start().strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, rest) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(rest)
}

/// When the table was made, by this clock; before 0, if the machine has started since.
pub(crate) fn epoch_ns(region: &Region, clock: &Clock) -> i64 {
    epoch_by(HostClock::of(clock), region, clock)
}

fn epoch_by(host: Option<HostClock>, region: &Region, clock: &Clock) -> i64 {
    let boot = region.load(EPOCH_WORD + 1);
    // Pairs with the second fence in `begin_by`: the time by the clock of this start is there.
    fence(Ordering::Acquire);
    let epoch_ns = region.load(EPOCH_WORD) as i64;
    // V6: pairs with the first one. Who has seen the time of the next server sees that the start is another.
    fence(Ordering::Acquire);
    let is_its = kept(Rule::StartAround, || region.load(EPOCH_WORD + 1) == boot);
    match host.filter(|host| host.boot == boot && is_its) {
        // V5
        Some(host) => epoch_ns.saturating_add(by_rule(Rule::TimeNamespace, host.ahead_ns, 0)),
        // The clock has begun again, or nobody says whose it is. What entries have left goes by the time of day.
        None => {
            let since_made_ns = since_1970(SystemTime::now()).saturating_sub(region.load(MADE_WORD));
            clock.now_ns() as i64 - since_made_ns as i64
        }
    }
}

/// Says in the control page when the table was made.
pub(crate) fn begin(region: &Region, clock: &Clock, epoch_ns: i64) {
    begin_by(HostClock::of(clock), region, clock, epoch_ns);
}

fn begin_by(host: Option<HostClock>, region: &Region, clock: &Clock, epoch_ns: i64) {
    let HostClock { boot, ahead_ns } = host.unwrap_or(HostClock { boot: UNKNOWN, ahead_ns: 0 });
    let ahead_ns = by_rule(Rule::TimeNamespace, ahead_ns, 0);
    // V6: both fences pair with those in `epoch_by`.
    region.store(EPOCH_WORD + 1, UNKNOWN);
    fence(Ordering::Release);
    region.store(EPOCH_WORD, epoch_ns.saturating_sub(ahead_ns) as u64);
    fence(Ordering::Release);
    region.store(EPOCH_WORD + 1, boot);
    region.store(MADE_WORD, since_1970(SystemTime::now()).saturating_sub(since_ns(epoch_ns, clock)));
}

/// Nanoseconds since the table was made.
pub(crate) fn since_ns(epoch_ns: i64, clock: &Clock) -> u64 {
    (clock.now_ns() as i64).saturating_sub(epoch_ns).max(0) as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::PAGE;
    use std::time::Duration;

    const SECOND_NS: i64 = 1_000_000_000;

    fn region() -> Region {
        Region::private(4 * PAGE as u64)
    }

    fn host(boot: u64, ahead: i64) -> Option<HostClock> {
        Some(HostClock { boot, ahead_ns: ahead * SECOND_NS })
    }

    /// How old the next server takes a table for, in seconds, that was made 50 s ago: it sees the clock of another
    /// namespace, in which so many seconds more or fewer have gone by.
    fn age_in_another(mine: Option<HostClock>, other: Option<HostClock>, ahead_by: i64) -> i64 {
        let (region, clock) = (region(), Clock::manual());
        clock.advance(Duration::from_secs(1_000));
        begin_by(mine, &region, &clock, 950 * SECOND_NS);
        let of_other = Clock::manual();
        of_other.advance(Duration::from_secs((1_000 + ahead_by) as u64));
        since_ns(epoch_by(other, &region, &of_other), &of_other) as i64 / SECOND_NS
    }

    /// V5: a table is as old in each time namespace. Where nobody can tell, or the machine has started again, it is so by
    /// the time of day.
    #[test]
    fn a_table_is_as_old_in_each_time_namespace() {
        for (mine, other) in [(0, 0), (0, 500), (500, 0), (-900, 4_000), (4_000, -900)] {
            assert_eq!(age_in_another(host(7, mine), host(7, other), other - mine), 50, "{mine}, {other}");
        }
        for (mine, other) in [(host(7, 0), None), (None, host(7, 0)), (None, None), (host(7, 0), host(8, 3))]
        {
            assert!((50..=51).contains(&age_in_another(mine, other, 300)), "{mine:?}, {other:?}");
        }
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_clock_of_another_namespace_is_noticed() {
        let _broken = crate::faults::Broken::rule(Rule::TimeNamespace);
        assert_eq!(age_in_another(host(7, 0), host(7, 500), 500), 550, "all ends at once");
        assert_eq!(age_in_another(host(7, 500), host(7, 0), -500), 0, "nothing ends");
    }

    /// The next server begins, and one of the two does not know the start of the machine. Meanwhile a reader asks how old the
    /// table is. Returns an age that is wrong.
    #[cfg(feature = "sim")]
    fn torn(seed: u64) -> Option<String> {
        use crate::sim::{Recorder, turns};
        use std::sync::Arc;
        let [mine, of_other] = [1_000, 2_000].map(|seconds| {
            let clock = Clock::manual();
            clock.advance(Duration::from_secs(seconds));
            clock
        });
        let region = Arc::new(Recorder::new(Clock::manual(), Duration::ZERO)).region(4 * PAGE as u64);
        begin_by(host(7, 0), &region, &mine, 950 * SECOND_NS);
        let unknown = || begin_by(None, &region, &of_other, epoch_by(None, &region, &of_other));
        let is_known = seed.is_multiple_of(2);
        if is_known {
            unknown();
        }
        let begin = || {
            match is_known {
                true => begin_by(host(7, 0), &region, &mine, 950 * SECOND_NS),
                false => unknown(),
            }
            None
        };
        let reads = || {
            let ages =
                (0..4).map(|_| since_ns(epoch_by(host(7, 0), &region, &mine), &mine) as i64 / SECOND_NS);
            // By the time of day it is as old as the test, and rounded.
            ages.into_iter().find(|age| !(49..500).contains(age)).map(|age| format!("{age} s of 50"))
        };
        let works: Vec<Box<dyn FnOnce() -> Option<String> + Send + '_>> =
            vec![Box::new(begin), Box::new(reads)];
        turns::run(seed, works).into_iter().flatten().next()
    }

    /// V6: a reader sees the time of one server with the start of the same one.
    #[cfg(feature = "sim")]
    #[test]
    fn a_reader_sees_the_time_of_one_server() {
        for seed in 0..300 {
            assert_eq!(torn(seed), None, "seed {seed}");
        }
    }

    #[cfg(all(feature = "sim", feature = "faults"))]
    #[test]
    fn the_times_of_two_servers_are_noticed() {
        let _broken = crate::faults::Broken::rule(Rule::StartAround);
        let found = (0..3_000).find_map(|seed| Some((seed, torn(seed)?)));
        let (seed, wrong) = found.expect("case lost");
        println!("seed {seed}: {wrong}");
    }

    /// What the kernel's files say is taken only if it is of this process, and whole.
    #[test]
    fn the_kernel_says_how_far_a_namespace_is_ahead() {
        use std::fs;
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let told = || HostClock::told_in(dir.path()).map(|host| host.ahead_ns);
        assert_eq!(told(), None, "nothing is there");
        fs::create_dir_all(dir.path().join("sys/kernel/random")).unwrap();
        fs::write(dir.path().join("sys/kernel/random/boot_id"), "an id\n").unwrap();
        assert_eq!(told(), None, "nothing of this process");
        fs::create_dir_all(dir.path().join("self/ns")).unwrap();
        assert_eq!(told(), Some(0), "no namespaces");
        let link = |name: &str, to: &str| {
            let path = dir.path().join("self/ns").join(name);
            let _ = fs::remove_file(&path);
            symlink(to, path).unwrap();
        };
        link("time", "time:[1]");
        link("time_for_children", "time:[1]");
        assert_eq!(told(), None, "no offsets");
        let offsets = |text: &str| fs::write(dir.path().join("self/timens_offsets"), text).unwrap();
        offsets("monotonic           5         0\nboottime         -1000         250\n");
        assert_eq!(told(), Some(-1_000 * SECOND_NS + 250));
        link("time_for_children", "time:[2]");
        assert_eq!(told(), None, "these are of its children");
        link("time_for_children", "time:[1]");
        for text in
            ["", "monotonic 0 0\n", "boottime\n", "boottime 1\n", "boottime x 0\n", "boottime 99999999999 0"]
        {
            offsets(text);
            assert_eq!(told(), None, "{text:?}");
        }
    }
}
