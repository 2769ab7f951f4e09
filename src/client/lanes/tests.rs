use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// A NIC that lands the number of a window's first slot. It completes some READs with each poll
/// and checks its use.
#[derive(Debug)]
struct Nic {
    credits: usize,
    /// READs that complete per poll.
    pace: usize,
    /// READs that succeed before one fails.
    succeed: usize,
    queue: VecDeque<(u32, u64, TestMemory, usize, bool)>,
    /// READs at the front of the queue that have completed but are not reported yet.
    hidden: usize,
    log: Arc<std::sync::Mutex<Vec<u64>>>,
    /// The logged READs whose completions are reported.
    shown: Arc<std::sync::Mutex<Vec<u64>>>,
    armed: bool,
    /// The pace after the bell was armed, if different.
    pace_armed: Option<usize>,
    counts: NicCounts,
}

/// A NIC's reference to a lane's memory. Like a raw pointer, it does not keep the lane's
/// memory.
#[derive(Clone, Debug)]
struct TestMemory {
    slots: Arc<[AtomicU64]>,
    freed: Arc<AtomicBool>,
}

/// A lane's memory.
#[derive(Debug)]
struct Landing(TestMemory);

impl Landing {
    fn new(slots: usize) -> Landing {
        let slots = (0..slots).map(|_| AtomicU64::new(u64::MAX)).collect();
        Landing(TestMemory { slots, freed: Arc::default() })
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.0.freed.store(true, Ordering::SeqCst);
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct NicCounts {
    doorbells: u64,
    reads: u64,
}

impl AddAssign for NicCounts {
    fn add_assign(&mut self, other: NicCounts) {
        self.doorbells += other.doorbells;
        self.reads += other.reads;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneBug {
    Read,
    Late,
    Gone,
}

impl Nic {
    fn new(credits: usize, pace: usize) -> Nic {
        let (log, shown, counts) = (Arc::default(), Arc::default(), NicCounts::default());
        let (queue, succeed, armed, pace_armed) = (VecDeque::new(), usize::MAX, false, None);
        Nic { credits, pace, succeed, queue, hidden: 0, log, shown, armed, pace_armed, counts }
    }
}

impl ReadQueue for Nic {
    type Landing = Landing;
    type Bell = ();
    type Counts = NicCounts;
    type Error = LaneBug;

    fn room(&self) -> usize {
        self.credits - self.queue.len()
    }

    unsafe fn post<'a>(&mut self, reads: impl Iterator<Item = Posting<'a, Landing>>) -> Result<(), LaneBug> {
        let before = self.queue.len();
        for Posting { seat, wanted, landing, slot, signalled } in reads {
            let number = number_of(wanted);
            let busy = |(_, _, memory, other, _): &(_, _, TestMemory, _, _)| {
                Arc::ptr_eq(&memory.slots, &landing.0.slots) && *other == slot
            };
            assert!(!self.queue.iter().any(busy), "a slot posted twice");
            self.log.lock().unwrap().push(number);
            if signalled {
                self.shown.lock().unwrap().push(number);
            }
            self.queue.push_back((seat, number, landing.0.clone(), slot, signalled));
        }
        assert!(self.queue.len() <= self.credits, "more READs than the queue pair holds");
        assert!(self.queue.len() > before, "an empty doorbell");
        self.counts += NicCounts { doorbells: 1, reads: (self.queue.len() - before) as u64 };
        Ok(())
    }

    fn poll(&mut self, mut done: impl FnMut(u32)) -> Result<(), LaneBug> {
        for _ in 0..self.pace.min(self.queue.len() - self.hidden) {
            if self.succeed == 0 {
                return Err(LaneBug::Read);
            }
            self.succeed -= 1;
            let (_, number, memory, slot, signalled) = &self.queue[self.hidden];
            assert!(!memory.freed.load(Ordering::SeqCst), "a READ landed in memory that was given back");
            memory.slots[*slot].store(*number, Ordering::Relaxed);
            self.hidden += 1;
            if *signalled {
                self.queue.drain(..self.hidden).for_each(|(seat, ..)| done(seat));
                self.hidden = 0;
            }
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<(), LaneBug> {
        self.armed = true;
        self.pace = self.pace_armed.unwrap_or(self.pace);
        Ok(())
    }

    fn sleep((): &(), at_most: Duration) {
        std::thread::sleep(at_most / 10);
    }

    fn check(&mut self) -> Result<(), LaneBug> {
        if self.succeed == 0 { Err(LaneBug::Gone) } else { Ok(()) }
    }

    fn late(_: Duration) -> LaneBug {
        LaneBug::Late
    }

    fn take_counts(&mut self) -> NicCounts {
        std::mem::take(&mut self.counts)
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        for (_, _, memory, ..) in &self.queue {
            assert!(!memory.freed.load(Ordering::SeqCst), "memory given back before the queue pair");
        }
    }
}

const LONG: Duration = Duration::from_secs(20);

/// Every third READ is of bytes.
fn wanted(number: u64) -> ReadWanted {
    let (low, high) = (number as u32 ^ 7, number as u32 ^ 9);
    match number % 3 {
        0 => ReadWanted::Bytes { offset: number, len: low, at: high },
        _ => ReadWanted::Window(Window { first: SlotIx(number), slots: low, incarnation: high }),
    }
}

/// The number of what is wanted, all of which has arrived.
fn number_of(arrived: ReadWanted) -> u64 {
    let number = match arrived {
        ReadWanted::Window(window) => window.first.0,
        ReadWanted::Bytes { offset, .. } => offset,
    };
    assert_eq!(arrived, wanted(number));
    number
}

fn lane(link: &Arc<Mux<Nic>>, slots: usize) -> Lane<Nic> {
    link.join(Landing::new(slots), slots)
}

/// Hands out the completed READs, checks the bytes of each, and returns their number.
fn take(lane: &mut Lane<Nic>) -> usize {
    let mut taken = 0;
    lane.hand_out(|token, wanted, landing, slot| {
        let (landed, number) = (landing.0.slots[slot].load(Ordering::Relaxed), number_of(wanted));
        assert_eq!(landed, number, "another READ's bytes, or those of an earlier one");
        assert_eq!(u64::from(token), number % 1000);
        taken += 1;
    });
    taken
}

fn submit(lane: &mut Lane<Nic>, numbers: impl Iterator<Item = u64>) {
    let reads: Vec<_> = numbers.map(|number| ((number % 1000) as ReadId, wanted(number))).collect();
    lane.submit(reads.into_iter());
}

/// Two threads, one place on the queue pair, every interleaving.
#[cfg(loom)]
#[test]
fn loom_two_lanes_over_one_place() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    let tried = Arc::new(AtomicUsize::new(0));
    let counted = tried.clone();
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let link = Mux::new(Nic::new(1, 1), None);
        let lanes = [lane(&link, 1), lane(&link, 1)];
        let run = |mut lane: Lane<Nic>, numbers: std::ops::Range<u64>| {
            for number in numbers {
                submit(&mut lane, number..number + 1);
                let mut counts = NicCounts::default();
                while take(&mut lane) == 0 {
                    lane.wait(LONG, &mut counts).expect("it does not fail");
                }
            }
        };
        let [one, other] = lanes;
        let thread = loom::thread::spawn(move || run(other, 10..12));
        run(one, 20..21);
        thread.join().expect("it ends");
    });
    println!("{tried:?} executions");
}

#[cfg(not(loom))]
mod with_threads {
    use super::*;

    #[test]
    fn every_read_comes_back_in_order() {
        let link = Mux::new(Nic::new(3, 2), None);
        let mut lane = lane(&link, 8);
        let (mut counts, mut next) = (NicCounts::default(), 0);
        for _ in 0..50 {
            submit(&mut lane, next..next + 8);
            next += 8;
            let mut taken = 0;
            while taken < 8 {
                lane.wait(LONG, &mut counts).expect("it does not fail");
                taken += take(&mut lane);
            }
            assert_eq!((taken, lane.in_flight()), (8, 0));
        }
        assert_eq!(counts.reads, 400);
        assert!(counts.doorbells < 400, "READs of one lane share doorbells: {counts:?}");
        lane.wait(Duration::ZERO, &mut counts).expect("nothing to wait for");
    }

    #[test]
    #[should_panic(expected = "more READs than credits")]
    fn a_lane_cannot_overflow() {
        let link = Mux::new(Nic::new(4, 1), None);
        let mut lane = lane(&link, 2);
        submit(&mut lane, 0..2);
        submit(&mut lane, 2..3);
    }

    #[test]
    fn places_are_dealt_in_turn() {
        let nic = Nic::new(4, 1);
        let log = nic.log.clone();
        let link = Mux::new(nic, None);
        let mut lanes: Vec<_> = (0..3).map(|_| lane(&link, 16)).collect();
        submit(&mut lanes[0], 0..16);
        submit(&mut lanes[1], 100..103);
        submit(&mut lanes[2], 200..202);
        let mut counts = NicCounts::default();
        for (number, wanted) in [(0, 16), (1, 3), (2, 2)] {
            let mut taken = 0;
            while taken < wanted {
                lanes[number].wait(LONG, &mut counts).expect("it does not fail");
                taken += take(&mut lanes[number]);
            }
        }
        let posted = log.lock().unwrap().clone();
        // One READ of each lane while all have some, then one of each of the two left, then the
        // rest.
        for (turn, numbers) in posted[..6].chunks(3).enumerate() {
            let mut lanes: Vec<_> = numbers.iter().map(|number| number / 100).collect();
            lanes.sort_unstable();
            assert_eq!(lanes, [0, 1, 2], "turn {turn}: {posted:?}");
        }
        assert!(posted[6..8].contains(&102), "{posted:?}");
        assert_eq!(posted[8..], (3..16).collect::<Vec<_>>(), "{posted:?}");
    }

    /// While all lanes have READs to post, all get the same share, whatever they ask for at a
    /// time.
    #[test]
    fn shares_are_equal() {
        for credits in [1, 3, 8, 20] {
            let link = Mux::new(Nic::new(credits, credits), None);
            let mut lanes: Vec<_> = (0..8).map(|slots| lane(&link, 8 + slots)).collect();
            let mut done = [0; 8];
            for number in 0..10_000 {
                for lane in &mut lanes {
                    let free = lane.credits() - lane.in_flight();
                    submit(lane, number * 20..number * 20 + free as u64);
                }
                link.pump.try_lock().expect("nobody pumps").round(&link).expect("it does not fail");
                for (lane, done) in lanes.iter_mut().zip(&mut done) {
                    *done += take(lane);
                }
            }
            let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
            assert!(*least > 1000 && most - least <= 1, "{credits} places: {done:?}");
        }
    }

    #[test]
    fn memory_outlives_what_is_in_flight() {
        let link = Mux::new(Nic::new(4, 1), None);
        let (mut gone, mut stays) = (lane(&link, 4), lane(&link, 1));
        let memory = gone.landing().0.clone();
        let mut counts = NicCounts::default();
        submit(&mut gone, 0..4);
        link.pump.try_lock().expect("nobody pumps").round(&link).expect("it does not fail");
        drop(gone);
        assert!(!memory.freed.load(Ordering::SeqCst), "four READs are in flight");
        // The NIC checks that the memory it lands in is there.
        submit(&mut stays, 4..5);
        while take(&mut stays) == 0 {
            stays.wait(LONG, &mut counts).expect("it does not fail");
        }
        submit(&mut stays, 5..6);
        stays.wait(LONG, &mut counts).expect("it does not fail");
        assert!(memory.freed.load(Ordering::SeqCst), "nothing is in flight, and nobody has it");
        assert_eq!(counts.reads, 6);
    }

    #[test]
    fn what_a_lane_leaves_behind_unposted_is_dropped() {
        let link = Mux::new(Nic::new(1, 1), None);
        let (mut gone, mut stays) = (lane(&link, 4), lane(&link, 1));
        submit(&mut gone, 0..4);
        drop(gone);
        let mut counts = NicCounts::default();
        submit(&mut stays, 9..10);
        while take(&mut stays) == 0 {
            stays.wait(LONG, &mut counts).expect("it does not fail");
        }
        assert_eq!(counts.reads, 1);
        // The seat is free again.
        let mut next = lane(&link, 1);
        submit(&mut next, 10..11);
        next.wait(LONG, &mut counts).expect("it does not fail");
        assert_eq!(take(&mut next), 1);
        assert_eq!(link.pump.try_lock().expect("nobody pumps").seats.len(), 2);
    }

    #[test]
    fn a_failure_reaches_every_lane_and_frees_the_queue_pair_first() {
        let mut nic = Nic::new(8, 1);
        nic.succeed = 7;
        let link = Mux::new(nic, None);
        let (mut one, mut other) = (lane(&link, 4), lane(&link, 4));
        let mut counts = NicCounts::default();
        submit(&mut one, 0..4);
        submit(&mut other, 4..8);
        let mut taken = 0;
        let error = loop {
            match one.wait(LONG, &mut counts) {
                Ok(()) => taken += take(&mut one),
                Err(error) => break error,
            }
        };
        assert_eq!((error, counts.reads), (LaneBug::Read, 8));
        taken += take(&mut other);
        assert_eq!(taken, 7, "what had come before is good");
        submit(&mut other, 8..9);
        assert_eq!(other.wait(LONG, &mut counts), Err(LaneBug::Read));
        assert!(one.has_failed() && other.has_failed());
        let mut late = lane(&link, 1);
        submit(&mut late, 9..10);
        assert_eq!(late.wait(LONG, &mut counts), Err(LaneBug::Read));
        // The NIC has been dropped, and has checked that the memory was there.
        let memory = one.ring.landing.0.clone();
        drop(one);
        assert!(memory.freed.load(Ordering::SeqCst));
    }

    #[test]
    fn a_link_dropped_with_reads_in_flight_drops_the_queue_pair_first() {
        let link = Mux::new(Nic::new(8, 1), None);
        let mut lane = lane(&link, 4);
        submit(&mut lane, 0..4);
        lane.wait(LONG, &mut NicCounts::default()).expect("it does not fail");
        drop((link, lane)); // the NIC checks
    }

    #[test]
    fn a_link_whose_pump_stands_still_is_given_up() {
        let link = Mux::new(Nic::new(8, 1), None);
        let (mut one, other) = (lane(&link, 1), lane(&link, 1));
        submit(&mut one, 0..1);
        let stuck = link.pump.try_lock().expect("nobody pumps");
        let begun = Instant::now();
        assert_eq!(one.wait(Duration::from_millis(30), &mut NicCounts::default()), Err(LaneBug::Late));
        assert!(begun.elapsed() >= Duration::from_millis(30));
        assert!(other.has_failed());
        assert!(stuck.queue.is_some());
        drop(stuck);
        // The next thread that pumps closes the queue pair.
        assert_eq!(link.pump(false, &mut NicCounts::default(), || true), Err(LaneBug::Late));
        assert!(link.pump.try_lock().expect("nobody pumps").queue.is_none());
    }

    #[test]
    fn a_queue_pair_that_is_gone_is_noticed() {
        let mut nic = Nic::new(8, 0);
        nic.succeed = 0;
        let link = Mux::new(nic, None);
        let mut lane = lane(&link, 1);
        submit(&mut lane, 0..1);
        assert_eq!(lane.wait(LONG, &mut NicCounts::default()), Err(LaneBug::Gone));
    }

    /// Of one doorbell's READs, every sixteenth completion and the last one are reported.
    #[test]
    fn every_sixteenth_completion_is_reported() {
        let nic = Nic::new(64, 64);
        let shown = nic.shown.clone();
        let link = Mux::new(nic, None);
        let mut lane = lane(&link, 40);
        submit(&mut lane, 0..40);
        lane.wait(LONG, &mut NicCounts::default()).expect("it does not fail");
        assert_eq!(*shown.lock().unwrap(), [15, 31, 39]);
    }

    fn pump(link: &Arc<Mux<Nic>>) {
        let pumped = link.pump(false, &mut NicCounts::default(), || false);
        assert_eq!(pumped, Ok(Pumped::Yes));
    }

    /// Returns whether the bell was armed, and resets that.
    fn was_armed(link: &Arc<Mux<Nic>>) -> bool {
        let mut pump = link.pump.try_lock().expect("nobody pumps");
        std::mem::take(&mut pump.queue.as_mut().expect("it has not failed").armed)
    }

    /// A pump that leaves READs in flight arms the bell and polls once more. With no READs in
    /// flight, it does not arm the bell.
    #[test]
    fn a_pump_that_leaves_reads_arms_the_bell() {
        let mut nic = Nic::new(8, 0);
        nic.pace_armed = Some(2);
        let link = Mux::new(nic, Some(()));
        let mut lane = lane(&link, 2);
        pump(&link);
        assert!(!was_armed(&link), "nothing was asked for");
        submit(&mut lane, 0..2);
        // Both complete as soon as the bell is armed, and not before.
        pump(&link);
        assert_eq!((was_armed(&link), take(&mut lane)), (true, 2));
        pump(&link);
        assert!(!was_armed(&link), "all has come");
        let link = Mux::new(Nic::new(8, 0), None);
        let mut lane = super::lane(&link, 1);
        submit(&mut lane, 0..1);
        pump(&link);
        assert!(!was_armed(&link), "nobody sleeps");
    }

    /// A lane that declares the link failed closes the queue pair, if there is no pump.
    /// Otherwise the pump closes it. Operations before the failure are counted.
    #[test]
    fn a_declared_failure_closes_the_queue_pair() {
        let is_closed = |link: &Arc<Mux<Nic>>| link.pump.try_lock().unwrap().queue.is_none();
        let link = Mux::new(Nic::new(8, 0), None);
        let (mut gone, one) = (lane(&link, 4), lane(&link, 1));
        let memory = gone.ring.landing.0.clone();
        submit(&mut gone, 0..4);
        pump(&link);
        drop(gone);
        // The NIC checks that this memory is there until the NIC itself is dropped.
        one.fail(LaneBug::Gone, &mut NicCounts::default());
        assert!(is_closed(&link) && memory.freed.load(Ordering::SeqCst));
        let link = Mux::new(Nic::new(8, 0), None);
        let pumped = link.pump(false, &mut NicCounts::default(), || {
            let _ = link.failed.set(LaneBug::Late);
            true
        });
        assert_eq!((pumped, is_closed(&link)), (Err(LaneBug::Late), true));
        let mut nic = Nic::new(8, 1);
        nic.succeed = 0;
        let link = Mux::new(nic, None);
        let mut lane = lane(&link, 3);
        submit(&mut lane, 0..3);
        let mut counts = NicCounts::default();
        assert_eq!(lane.wait(LONG, &mut counts), Err(LaneBug::Read));
        assert_eq!((counts.doorbells, counts.reads, is_closed(&link)), (1, 3, true));
    }

    /// READs that the pump has seen but not posted are dropped with their lane.
    #[test]
    fn what_was_seen_and_not_posted_is_dropped() {
        let nic = Nic::new(2, 0);
        let log = nic.log.clone();
        let link = Mux::new(nic, None);
        let mut gone = lane(&link, 4);
        // A doorbell for each READ, so that the first one completes alone and makes room.
        submit(&mut gone, 0..1);
        pump(&link);
        submit(&mut gone, 1..4);
        pump(&link);
        drop(gone);
        link.pump.try_lock().unwrap().queue.as_mut().unwrap().pace = 1;
        pump(&link);
        assert_eq!(*log.lock().unwrap(), [0, 1]);
    }

    /// Many threads over few places, with lanes that come and go. Every READ brings its own
    /// bytes, nothing overflows (the NIC checks), and every thread makes progress.
    fn stress(bell: Option<()>, credits: usize) {
        const THREADS: usize = 8;
        let link = Mux::new(Nic::new(credits, 2), bell);
        let stop = AtomicBool::new(false);
        let dropped = AtomicUsize::new(0);
        let done: [AtomicUsize; THREADS] = Default::default();
        let least = || done.iter().map(|done| done.load(Ordering::Relaxed)).min().unwrap();
        std::thread::scope(|scope| {
            for (thread, done) in done.iter().enumerate() {
                let (link, stop, dropped) = (&link, &stop, &dropped);
                scope.spawn(move || {
                    let (mut lane, mut next) = (lane(link, 4), thread as u64 * 1_000_000);
                    let mut counts = NicCounts::default();
                    while !stop.load(Ordering::Relaxed) {
                        // One thread is greedy.
                        let reads = if thread == 0 { 4 } else { 1 };
                        submit(&mut lane, next..next + reads);
                        next += reads;
                        if next % 1000 == 999 {
                            lane = super::lane(link, 4);
                            dropped.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        while lane.in_flight() > 0 {
                            lane.wait(LONG, &mut counts).expect("it does not fail");
                            done.fetch_add(take(&mut lane), Ordering::Relaxed);
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(500));
            // The scheduler decides how often each thread runs, on a busy machine hardly ever
            // (`shares_are_equal` tests fairness). Every thread must have made some progress.
            let begun = Instant::now();
            while least() < 100 && begun.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(10));
            }
            stop.store(true, Ordering::Relaxed);
        });
        println!("{credits} places: {done:?}, {dropped:?} lanes dropped with READs in flight");
        assert!(least() >= 100, "{done:?}");
    }

    #[test]
    fn stress_awake() {
        stress(None, 2);
        stress(None, 16);
    }

    #[test]
    fn stress_asleep() {
        stress(Some(()), 2);
    }
}
