//! Requests that wait at a worker, step by step: what ends each, and that nothing else waits with it (Q9 to Q12).

use super::tests::Second;
use super::*;
use crate::outcome::PutMode;
use crate::server::park_room::ParkRoom;
use crate::server::tests::{frame, reply, shared};
use crate::wire::{ChangedBody, FeedReply, FeedRequest, Reply, Request};
use std::io::Write;
use std::os::unix::net::UnixStream as Stream;

const LONG: Duration = Duration::from_secs(60);
const GET: Request<'_> = Request::Get { key: b"key" };

/// A request for what follows all that has come so far.
fn wanted(shared: &ServerState, prefix: &'static [u8], within: Duration) -> Request<'static> {
    let from = shared.index.feed().start(shared.feed_bytes).unwrap();
    let (table, launch) = (shared.index.geometry().generation(), shared.index.launch());
    let (end, values, passed, within) = (u64::MAX, false, None, Some(within));
    Request::Feed(FeedRequest::Changes { table, launch, from, end, values, prefix, passed, within })
}

/// A client whose request waits.
fn parked(second: &mut Second, prefix: &'static [u8], within: Duration) -> (Stream, Token) {
    let (mut stream, token) = second.greeted();
    let before = second.worker.shared.parking.taken();
    stream.write_all(&frame(&wanted(&second.worker.shared, prefix, within))).unwrap();
    second.worker.serve(token);
    assert_eq!(second.worker.shared.parking.taken(), before + 1, "it waits");
    (stream, token)
}

/// The keys that the next reply tells, and the numbers that it is about.
fn told(stream: &mut Stream) -> (Vec<Vec<u8>>, std::ops::Range<u64>) {
    let Some(Reply::Feed(FeedReply::Changed(body))) = reply(stream) else { panic!("changes") };
    let mut body = ChangedBody::of(&body).unwrap();
    let mut keys = Vec::new();
    while let Some(change) = body.next().unwrap() {
        keys.push(change.key.key.to_vec());
    }
    (keys, body.numbers)
}

fn put(shared: &ServerState, key: &[u8]) {
    shared.index.put(key, b"value", PutMode::Upsert).unwrap();
}

/// A request that waits is answered after a change that is wanted, and not after another one. What it is told begins where
/// it has asked to begin: so no change is taken for missing that was not wanted. Who has no room is answered at once.
#[test]
fn a_change_that_is_wanted_ends_the_wait() {
    let mut second = Second::new(ServerState { parking: ParkRoom::of(2), ..shared() });
    let state = second.worker.shared.clone();
    let (mut any, _) = parked(&mut second, b"", LONG);
    let (mut some, _) = parked(&mut second, b"some", LONG);
    let (mut third, token) = second.greeted();
    third.write_all(&frame(&wanted(&state, b"", LONG))).unwrap();
    second.worker.serve(token);
    assert_eq!(told(&mut third), (vec![], 1..1), "no room: at once");
    second.worker.look_at_parked();
    assert_eq!(state.parking.taken(), 2, "nothing has come");
    for (key, waiting) in [(&b"other"[..], 1), (b"something", 0)] {
        put(&state, key);
        second.worker.look_at_parked();
        assert_eq!(state.parking.taken(), waiting);
    }
    assert_eq!(told(&mut any), (vec![b"other".to_vec()], 1..2));
    assert_eq!(told(&mut some), (vec![b"something".to_vec()], 1..3));
    assert!(second.worker.parking.is_empty());
}

/// Its time is over, or its client asks for more: it is answered, in its turn.
#[test]
fn a_wait_ends_with_its_time_and_with_the_next_request() {
    let mut second = Second::new(shared());
    let state = second.worker.shared.clone();
    let (mut short, _) = parked(&mut second, b"", Duration::ZERO);
    let (mut other, token) = parked(&mut second, b"", LONG);
    assert_eq!(second.worker.parking.sleeps(&state.index, None), Some(Duration::ZERO));
    second.worker.look_at_parked();
    assert_eq!(told(&mut short), (vec![], 1..1));
    let sleeps = second.worker.parking.sleeps(&state.index, None).unwrap();
    assert!(!sleeps.is_zero() && sleeps <= 2 * LONG, "{sleeps:?}: until the other one's time is over");
    second.worker.parking.wakes(&state.index);
    other.write_all(&frame(&GET)).unwrap();
    second.worker.serve(token);
    assert_eq!(told(&mut other), (vec![], 1..1));
    assert_eq!(reply(&mut other), Some(Reply::Value(None)));
    assert!(second.worker.parking.is_empty() && state.parking.taken() == 0);
}

/// A client that hangs up, and a server that stops, take the requests that wait with them.
#[test]
fn a_wait_ends_with_its_connection() {
    let mut second = Second::new(shared());
    let state = second.worker.shared.clone();
    let (gone, token) = parked(&mut second, b"", LONG);
    drop(gone);
    second.worker.serve(token);
    assert!(second.worker.parking.is_empty() && state.parking.taken() == 0);
    let (mut left, _) = parked(&mut second, b"", LONG);
    second.run(|| {});
    assert_eq!(reply(&mut left), None, "the server hung up");
    assert_eq!(state.parking.taken(), 0);
}

/// Whether the worker's bell rings for a change that another thread makes while the worker sleeps. If it does, who waits
/// hears of the change.
fn rings_for(change: impl FnOnce(&ServerState)) -> bool {
    let mut second = Second::new(shared());
    let state = second.worker.shared.clone();
    let (mut stream, _) = parked(&mut second, b"", LONG);
    // Else the worker would wake for them.
    second.miss_events();
    let mut rings = false;
    second.run(|| {
        let begun = Instant::now();
        while !state.index.feed().has_sleepers() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not sleep");
            std::thread::yield_now();
        }
        change(&state);
        rings = !state.index.feed().has_sleepers();
        if rings {
            assert_eq!(told(&mut stream), (vec![b"key".to_vec()], 1..2));
        }
    });
    rings
}

/// A change wakes a worker that sleeps.
#[test]
fn a_change_wakes_who_sleeps() {
    assert!(rings_for(|state| put(state, b"key")));
}

/// Some hundred that wait are told of a change in turns: other connections are served in between, and each is told once.
#[test]
fn many_that_wait_hold_up_nobody() {
    const MANY: usize = 300;
    let mut second = Second::new(ServerState { clients_max: 1_000, ..shared() });
    let state = second.worker.shared.clone();
    let mut waiting: Vec<_> = (0..MANY).map(|_| parked(&mut second, b"", LONG)).collect();
    let (mut other, _) = second.greeted();
    second.miss_events();
    second.run(|| {
        put(&state, b"key");
        other.write_all(&frame(&GET)).unwrap();
        assert!(matches!(reply(&mut other), Some(Reply::Value(Some(_)))));
        for (stream, _) in &mut waiting {
            assert_eq!(told(stream), (vec![b"key".to_vec()], 1..2));
        }
    });
    assert_eq!(state.parking.taken(), 0);
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use crate::faults::{Broken, Rule};

    /// Woken never: the change does not ring. Woken too late: a change comes behind the worker's last turn, and in front of
    /// its sleep; or it is looked for only when the time is over.
    #[test]
    fn a_wait_that_is_forgotten_is_noticed() {
        let rings = rings_for(|state| {
            let _broken = Broken::rule(Rule::ParkBell);
            put(state, b"key");
        });
        assert!(!rings, "case lost: ParkBell");

        for is_broken in [false, true] {
            let mut second = Second::new(shared());
            let state = second.worker.shared.clone();
            let (_stream, _) = parked(&mut second, b"", LONG);
            second.worker.look_at_parked();
            put(&state, b"key");
            let _broken = is_broken.then(|| Broken::rule(Rule::ParkLook));
            let sleeps = second.worker.parking.sleeps(&state.index, None);
            assert_eq!(sleeps != Some(Duration::ZERO), is_broken, "case lost: ParkLook");
        }

        for is_broken in [false, true] {
            let mut second = Second::new(shared());
            let state = second.worker.shared.clone();
            let (_stream, _) = parked(&mut second, b"", LONG);
            put(&state, b"key");
            let _broken = is_broken.then(|| Broken::rule(Rule::ParkWake));
            second.worker.look_at_parked();
            assert_eq!(state.parking.taken() > 0, is_broken, "case lost: ParkWake");
        }
    }

    /// A reply that overtakes the one of a request that waits.
    #[test]
    fn a_wait_that_is_overtaken_is_noticed() {
        let mut second = Second::new(shared());
        let (mut stream, token) = parked(&mut second, b"", LONG);
        let _broken = Broken::rule(Rule::ParkNext);
        stream.write_all(&frame(&GET)).unwrap();
        second.worker.serve(token);
        assert_eq!(reply(&mut stream), Some(Reply::Value(None)), "case lost: ParkNext");
    }

    /// Forgotten at a close: the places of those who are gone are missing.
    #[test]
    fn a_place_that_is_kept_is_noticed() {
        for is_broken in [false, true] {
            let _broken = is_broken.then(|| Broken::rule(Rule::ParkPlace));
            let mut second = Second::new(ServerState { parking: ParkRoom::of(1), ..shared() });
            let (gone, token) = parked(&mut second, b"", LONG);
            drop(gone);
            second.worker.serve(token);
            assert_eq!(second.worker.shared.parking.taken() > 0, is_broken, "case lost: ParkPlace");
        }
    }
}
