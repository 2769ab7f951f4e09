//! Changes that wait at a worker, step by step: for readers, for memory, and, when they are made, for a split (Q12 to Q15).
//! The clock is a test's: readers are gone when it says so.

use super::tests::Second;
use super::*;
use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::index::{ChangeWait, ChangeWaits, Index};
use crate::layout::hash::Seeds;
use crate::mailbox::memory::Mailbox;
use crate::mailbox::{glance, load, store};
use crate::outcome::{PutError, PutMode, PutOutcome};
use crate::region::{Backing, Region};
use crate::server::park_room::ParkRoom;
use crate::server::tests::{reply, shared, table};
use crate::wire::{self, Reply, Request};
use std::io::Write;
use std::os::unix::net::UnixStream as Stream;

const LONG: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_millis(1);

/// A server's state, whose table has this clock.
struct WaitingTable {
    state: ServerState,
    clock: Clock,
}

impl WaitingTable {
    fn of(config: Config, seed: u64) -> WaitingTable {
        let config = Config { grace: GRACE, seeds: Some(Seeds::from_number(seed)), ..config };
        let (geometry, clock) = (config.geometry().unwrap(), Clock::manual());
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        WaitingTable { state: ServerState { index, ..shared() }, clock }
    }

    /// One that is full of keys and ghosts, and a key that has to wait for the ghosts.
    fn full() -> (WaitingTable, Vec<u8>) {
        let config = Config { size: TableSize::Keys(200), ..table() };
        for seed in 0..100 {
            let table = WaitingTable::of(config, seed);
            for n in 0..1_000 {
                let (key, waits) = (name(n), ChangeWaits::default());
                let put = table.state.index.try_put(&key, b"value", PutMode::Insert.into(), None, &waits);
                match waits.now() {
                    None if put.is_ok() => {}
                    None => break,
                    Some(wait) => {
                        assert!(matches!(wait, ChangeWait::Readers { .. }), "{wait:?}");
                        return (table, key);
                    }
                }
            }
        }
        panic!("no put waits");
    }

    /// One that grows, so many inserts before one that is made and waits for its split.
    fn growing() -> (WaitingTable, usize) {
        for (segment_slots, seed) in
            [64, 256, 1024].into_iter().flat_map(|slots| (0..20).map(move |n| (slots, n)))
        {
            let size = TableSize::Growing { bytes_max: 16 << 20, segment_slots: Some(segment_slots) };
            let make = || WaitingTable::of(Config { size, ..table() }, seed);
            let probe = make();
            for n in 0..10_000 {
                let waits = ChangeWaits::default();
                let put = probe.state.index.try_put(&name(n), b"value", PutMode::Insert.into(), None, &waits);
                match (put, waits.now()) {
                    (Ok(_), None) => {}
                    (Ok(_), Some(_)) => {
                        let table = make();
                        (0..n).for_each(|n| table.fill(n));
                        return (table, n);
                    }
                    (Err(_), _) => break,
                }
            }
        }
        panic!("no split is late");
    }

    fn fill(&self, n: usize) {
        let put = self.state.index.try_put(
            &name(n),
            b"value",
            PutMode::Insert.into(),
            None,
            &ChangeWaits::default(),
        );
        assert_eq!(put, Ok(PutOutcome::Inserted));
    }

    /// One whose memory for long values was just removed: readers may still read it.
    fn without_memory() -> WaitingTable {
        let table = WaitingTable::of(
            Config { value_max: LONG_VALUE, inline_max: Some(40), heap_bytes: Some(1 << 20), ..table() },
            1,
        );
        let mut keys = Vec::new();
        while table.state.index.put_at_once(&name(keys.len()), &VALUE, PutMode::Insert.into(), None).is_ok() {
            keys.push(name(keys.len()));
        }
        assert!(!keys.is_empty());
        keys.iter().for_each(|key| assert_eq!(table.state.index.remove(key), Ok(true)));
        // The reserve is left.
        for key in &keys {
            let put = table.state.index.put_at_once(key, &VALUE, PutMode::Insert.into(), None);
            if let Err(error) = put {
                assert!(matches!(error, PutError::HeapBusy { .. }), "{error}");
                return table;
            }
        }
        panic!("there is memory");
    }
}

const LONG_VALUE: usize = 60_000;
static VALUE: [u8; LONG_VALUE] = [7; LONG_VALUE];

fn name(n: usize) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Put { options: PutMode::Insert.into(), key, value }
}

/// A request that may wait so long for memory.
fn patient(id: u64, request: &Request<'_>, patience: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode_patient(id, patience, &mut bytes);
    bytes
}

fn send(second: &mut Second, stream: &mut Stream, token: Token, requests: &[Request<'_>]) {
    let frames: Vec<u8> = requests.iter().flat_map(|request| patient(1, request, LONG)).collect();
    stream.write_all(&frames).unwrap();
    second.worker.serve(token);
}

/// Takes the worker's turns until no request waits.
fn until_none_waits(second: &mut Second) {
    let begun = Instant::now();
    while second.worker.shared.parking.taken() > 0 {
        assert!(begun.elapsed() < LONG, "it waits for ever");
        second.worker.look_at_parked();
    }
    assert!(second.worker.parking.is_empty());
}

/// Makes room in a full table: all but the first key leave, and readers are gone.
fn make_room(state: &ServerState, clock: &Clock) {
    (1..1_000).for_each(|n| {
        state.index.remove(&name(n)).unwrap();
    });
    clock.advance(100 * GRACE);
}

const INSERTED: Option<Reply> = Some(Reply::Put(Ok(PutOutcome::Inserted)));
const EXISTS: Option<Reply> = Some(Reply::Put(Ok(PutOutcome::Exists)));

/// A put waits for readers. Other clients of its worker are served meanwhile; what its own client has asked behind it waits,
/// and is answered in order. It is tried when it is due; that readers are not gone yet does no harm.
#[test]
fn a_put_that_waits_holds_up_its_client_only() {
    let (WaitingTable { state, clock }, key) = WaitingTable::full();
    let mut second = Second::new(state);
    let state = second.worker.shared.clone();
    let (mut waiting, token) = second.greeted();
    send(&mut second, &mut waiting, token, &[put(&key, b"new"), Request::Get { key: &name(0) }]);
    assert_eq!(state.parking.taken(), 1, "it waits");
    let (mut other, other_token) = second.greeted();
    for n in 0..100 {
        send(&mut second, &mut other, other_token, &[put(&name(0), b"other"), Request::Get { key: &key }]);
        assert_eq!((reply(&mut other), reply(&mut other)), (EXISTS, Some(Reply::Value(None))), "{n}");
        second.worker.look_at_parked();
    }
    // It asks for more meanwhile, and is not answered.
    send(&mut second, &mut waiting, token, &[Request::Get { key: &key }]);
    assert_eq!(state.parking.taken(), 1);
    make_room(&state, &clock);
    until_none_waits(&mut second);
    assert_eq!(reply(&mut waiting), INSERTED);
    assert_eq!(reply(&mut waiting), Some(Reply::Value(Some(b"value".to_vec()))));
    assert_eq!(reply(&mut waiting), Some(Reply::Value(Some(b"new".to_vec()))));
}

/// Where nothing makes room, the table is full after some waits, as for an embedder.
#[test]
fn a_put_waits_only_so_often() {
    let (WaitingTable { state, clock }, key) = WaitingTable::full();
    let mut second = Second::new(state);
    let state = second.worker.shared.clone();
    let (mut waiting, token) = second.greeted();
    send(&mut second, &mut waiting, token, &[put(&key, b"new")]);
    // Nobody is gone: tries that come too early do not count.
    for _ in 0..10 {
        state.index.news().tell();
        second.worker.look_at_parked();
    }
    assert_eq!(state.parking.taken(), 1);
    let begun = Instant::now();
    while state.parking.taken() > 0 {
        assert!(begun.elapsed() < LONG, "it waits for ever");
        clock.advance(100 * GRACE);
        second.worker.look_at_parked();
    }
    match reply(&mut waiting) {
        INSERTED | Some(Reply::Put(Err(PutError::Full { .. }))) => {}
        other => panic!("{other:?}"),
    }
}

/// A put over a mailbox waits. Its cells are not polled meanwhile, and are polled again afterwards.
#[test]
fn a_put_in_a_mailbox_waits() {
    let (WaitingTable { state, clock }, key) = WaitingTable::full();
    let mut second = Second::new(state);
    let state = second.worker.shared.clone();
    let (_stream, _, mailbox) = second.served();
    let ask = |mailbox: &Mailbox, id: u64, request: &Request<'_>| {
        assert!(store(mailbox.request(id), id, &patient(id, request, LONG)));
    };
    let answer = |mailbox: &Mailbox, id: u64| {
        let mut copy = Vec::new();
        let frame = load(mailbox.reply(id), id, &mut copy)?;
        wire::replies(frame, id).unwrap().pop()
    };
    ask(&mailbox, 1, &put(&key, b"new"));
    ask(&mailbox, 2, &Request::Get { key: &key });
    second.worker.sweep();
    assert_eq!((state.parking.taken(), second.worker.awake.len()), (1, 0), "it waits, and is not polled");
    second.worker.sweep();
    assert!([1, 2].iter().all(|&id| glance(mailbox.reply(id)).sequence == 0), "nothing is answered");
    make_room(&state, &clock);
    until_none_waits(&mut second);
    assert_eq!(answer(&mailbox, 1), INSERTED);
    assert_eq!(second.worker.awake.len(), 1, "it is polled again");
    second.worker.sweep();
    assert_eq!(answer(&mailbox, 2), Some(Reply::Value(Some(b"new".to_vec()))));
    ask(&mailbox, 3, &Request::Get { key: b"none" });
    second.worker.sweep();
    assert_eq!(answer(&mailbox, 3), Some(Reply::Value(None)));
}

/// A put waits for memory as long as its client says; a client that says nothing is told at once, and asks again.
#[test]
fn a_put_waits_for_memory_if_its_client_says_so() {
    let WaitingTable { state, clock } = WaitingTable::without_memory();
    let mut second = Second::new(state);
    let state = second.worker.shared.clone();
    let (mut stream, token) = second.greeted();
    for patience in [Duration::ZERO, Duration::from_millis(1)] {
        stream.write_all(&patient(1, &put(b"key", &VALUE), patience)).unwrap();
        second.worker.serve(token);
        assert_eq!(state.parking.taken(), u64::from(!patience.is_zero()));
        until_none_waits(&mut second);
        let told = reply(&mut stream);
        let is_busy = matches!(told, Some(Reply::Put(Err(PutError::HeapBusy { given: LONG_VALUE, .. }))));
        assert!(is_busy, "{told:?}");
    }
    assert_eq!(state.refused.read().heap_busy, 2);
    send(&mut second, &mut stream, token, &[put(b"key", &VALUE), put(b"key", b"short")]);
    let upload = Request::UploadBegin { key: b"long", len: LONG_VALUE as u32 };
    let (mut other, other_token) = second.greeted();
    send(&mut second, &mut other, other_token, &[upload]);
    assert_eq!(state.parking.taken(), 2);
    clock.advance(Duration::from_secs(1));
    until_none_waits(&mut second);
    assert_eq!((reply(&mut stream), reply(&mut stream)), (INSERTED, EXISTS));
    assert_eq!(reply(&mut other), Some(Reply::Taken));
    assert_eq!(state.refused.read().heap_busy, 2, "who waits is not refused");
}

/// An uploaded value stays uploaded while its put waits, and its client is not halfway. If the put is refused, its memory
/// is free.
#[test]
fn an_uploaded_value_waits_with_its_put() {
    for has_time in [true, false] {
        let (table, key) = {
            let config =
                Config { size: TableSize::Keys(200), value_max: 4_000, inline_max: Some(8), ..table() };
            let table = WaitingTable::of(config, 3);
            let key = (0..1_000).map(name).find(|key| {
                let waits = ChangeWaits::default();
                let put = table.state.index.try_put(key, b"v", PutMode::Insert.into(), None, &waits);
                assert!(put.is_ok() || waits.now().is_some(), "{put:?}: choose another seed");
                put.is_err()
            });
            (table, key.expect("one waits"))
        };
        let mut second = Second::new(table.state);
        let state = second.worker.shared.clone();
        let (mut stream, token) = second.greeted();
        let value = [5; 3_000];
        let requests = [
            Request::UploadBegin { key: &key, len: 3_000 },
            Request::UploadPiece { bytes: &value },
            Request::UploadPut { options: PutMode::Insert.into(), key: &key },
        ];
        send(&mut second, &mut stream, token, &requests);
        assert_eq!((reply(&mut stream), reply(&mut stream)), (Some(Reply::Taken), Some(Reply::Taken)));
        assert_eq!(state.parking.taken(), 1);
        let session = &second.worker.sessions[&token];
        assert!(!session.is_halfway(), "it is the server that is to go on");
        let live = || state.index.heap().live_bytes;
        assert!(live() >= 3_000, "it is uploaded");
        if has_time {
            make_room(&state, &table.clock);
            until_none_waits(&mut second);
            assert_eq!(reply(&mut stream), INSERTED);
            assert!(live() >= 3_000);
        } else {
            // It hangs up: it is tried a last time.
            drop(stream);
            while second.worker.sessions.contains_key(&token) {
                second.worker.serve(token);
            }
            assert_eq!((state.parking.taken(), live()), (0, 0));
        }
    }
}

/// What ends a wait: the client's end, and the server's. Its place is free then. Without a place nobody waits.
#[test]
fn the_end_of_a_client_ends_its_wait() {
    let (WaitingTable { state, .. }, key) = WaitingTable::full();
    let mut second = Second::new(ServerState { parking: ParkRoom::of(1), ..state });
    let state = second.worker.shared.clone();
    let (mut gone, token) = second.greeted();
    send(&mut second, &mut gone, token, &[put(&key, b"new"), put(&name(0), b"other")]);
    assert_eq!(state.parking.taken(), 1);
    let (mut other, other_token) = second.greeted();
    send(&mut second, &mut other, other_token, &[put(&key, b"new"), put(&name(0), b"other")]);
    let Some(Reply::Put(Err(PutError::Busy { .. }))) = reply(&mut other) else { panic!("it has no place") };
    assert_eq!(reply(&mut other), EXISTS);
    drop(gone);
    while second.worker.sessions.contains_key(&token) {
        second.worker.serve(token);
    }
    assert_eq!(state.parking.taken(), 0);
    send(&mut second, &mut other, other_token, &[put(&key, b"new")]);
    assert_eq!(state.parking.taken(), 1);
    second.run(|| {});
    assert_eq!((reply(&mut other), state.parking.taken()), (None, 0), "the server hung up");
}

/// A client whose insert is made, and waits until the split of its segment has caught up.
fn made() -> (Second, Clock, Stream) {
    let (WaitingTable { state, clock }, nth) = WaitingTable::growing();
    let mut second = Second::new(state);
    let (mut stream, token) = second.greeted();
    send(&mut second, &mut stream, token, &[put(&name(nth), b"value")]);
    let state = second.worker.shared.clone();
    assert_eq!(state.parking.taken(), 1);
    assert!(state.index.reader().get_into(&name(nth), &mut Vec::new()).unwrap(), "it is made");
    (second, clock, stream)
}

/// An insert that is made waits before it is answered, and is not made again: its answer is what it was.
#[test]
fn a_change_that_is_made_waits_for_a_split() {
    let (mut second, clock, mut stream) = made();
    clock.advance(100 * GRACE);
    until_none_waits(&mut second);
    assert_eq!(reply(&mut stream), INSERTED);
}

/// Whether the worker's bell rings when a thread tells something while the worker sleeps. If it does, who waits is tried.
fn rings_for(tell: impl FnOnce(&ServerState)) -> bool {
    let (WaitingTable { state, clock }, key) = WaitingTable::full();
    // The worker's time does not come: readers are gone in an hour, by the clock of this machine.
    let mut second = Second::new(state);
    let state = second.worker.shared.clone();
    let (mut waiting, token) = second.greeted();
    send(&mut second, &mut waiting, token, &[put(&key, b"new")]);
    second.worker.parking.wait_on(token, Instant::now() + LONG);
    make_room(&state, &clock);
    // Else the worker would wake for them.
    second.miss_events();
    let mut rings = false;
    second.run(|| {
        let begun = Instant::now();
        while !state.index.news().has_sleepers() {
            assert!(begun.elapsed() < LONG, "it does not sleep");
            std::thread::yield_now();
        }
        tell(&state);
        rings = !state.index.news().has_sleepers();
        if rings {
            assert_eq!(reply(&mut waiting), INSERTED);
        }
    });
    rings
}

/// What changes may wait for wakes a worker that sleeps.
#[test]
fn news_wake_who_sleeps() {
    assert!(rings_for(|state| state.index.news().tell()));
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use crate::faults::{Broken, Rule};

    /// Woken never: who tells does not ring. Woken too late: something is told behind the worker's last turn, and in front of
    /// its sleep; or a change is not tried when it is due.
    #[test]
    fn a_change_that_is_forgotten_is_noticed() {
        let rings = rings_for(|state| {
            let _broken = Broken::rule(Rule::WaitBell);
            state.index.news().tell();
        });
        assert!(!rings, "case lost: WaitBell");

        for is_broken in [false, true] {
            let (WaitingTable { state, .. }, key) = WaitingTable::full();
            let mut second = Second::new(state);
            let state = second.worker.shared.clone();
            let (mut waiting, token) = second.greeted();
            send(&mut second, &mut waiting, token, &[put(&key, b"new")]);
            second.worker.parking.wait_on(token, Instant::now() + LONG);
            state.index.news().tell();
            let _broken = is_broken.then(|| Broken::rule(Rule::WaitLook));
            let sleeps = second.worker.parking.sleeps(&state.index, None);
            assert_eq!(sleeps != Some(Duration::ZERO), is_broken, "case lost: WaitLook");
        }

        for is_broken in [false, true] {
            let (WaitingTable { state, clock }, key) = WaitingTable::full();
            let mut second = Second::new(state);
            let state = second.worker.shared.clone();
            let (mut waiting, token) = second.greeted();
            send(&mut second, &mut waiting, token, &[put(&key, b"new")]);
            make_room(&state, &clock);
            let _broken = is_broken.then(|| Broken::rule(Rule::WaitWake));
            second.worker.parking.wait_on(token, Instant::now());
            second.worker.look_at_parked();
            assert_eq!(state.parking.taken() > 0, is_broken, "case lost: WaitWake");
        }
    }

    /// A request that overtakes a change that waits.
    #[test]
    fn a_change_that_is_overtaken_is_noticed() {
        let (WaitingTable { state, .. }, key) = WaitingTable::full();
        let mut second = Second::new(state);
        let (mut stream, token) = second.greeted();
        let _broken = Broken::rule(Rule::WaitOrder);
        send(&mut second, &mut stream, token, &[put(&key, b"new"), Request::Get { key: b"none" }]);
        assert_eq!(reply(&mut stream), Some(Reply::Value(None)), "case lost: WaitOrder");
    }

    /// A change that is made again when it is to be answered.
    #[test]
    fn a_change_that_is_made_twice_is_noticed() {
        let _broken = Broken::rule(Rule::WaitOnce);
        let (mut second, clock, mut stream) = made();
        clock.advance(100 * GRACE);
        until_none_waits(&mut second);
        assert_eq!(reply(&mut stream), EXISTS, "case lost: WaitOnce");
    }
}
