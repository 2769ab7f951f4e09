//! A worker whose changes a log has: it sleeps on no disk, and no reply comes before the disk has what it says (K1, Q15).

use super::tests::Second;
use super::*;
use crate::address::Address;
use crate::config::{Config, TableSize};
use crate::index::{ChangeWaits, Index};
use crate::log::{Fsync, SimDisk, log_on};
use crate::mailbox::{glance, store};
use crate::outcome::{PutError, PutMode, PutOutcome};
use crate::part::{PartChange, Tell};
use crate::server::ServerConfig;
use crate::server::table::index_for;
use crate::server::tests::{frame, reply, shared};
use crate::wire::{self, Reply, Request};
use std::io::Write;
use std::os::unix::net::UnixStream as Stream;

const INSERTED: Reply = Reply::Put(Ok(PutOutcome::Inserted));
const UPDATED: Reply = Reply::Put(Ok(PutOutcome::Updated));
const WITHDRAWN: Reply = Reply::Put(Err(PutError::Withdrawn));

/// A worker, and the disk of its table's log.
fn logged(size: TableSize) -> (Second, Arc<ServerState>, SimDisk) {
    let disk = SimDisk::default();
    let config = Config { size, ..Config::short() };
    let index = index_for(&ServerConfig::new(Address::Shm("nowhere".into()), config)).unwrap().index;
    let index = index.with_log(log_on(&disk, Fsync::Always));
    let second = Second::new(ServerState { index, clients_max: 100, clients_per_peer: 100, ..shared() });
    let state = second.worker.shared.clone();
    (second, state, disk)
}

fn put(key: &[u8]) -> Vec<u8> {
    frame(&Request::Put { options: PutMode::Upsert.into(), key, value: b"value" })
}

fn has(index: &Index, key: &[u8]) -> bool {
    index.reader().get_into(key, &mut Vec::new()).unwrap()
}

/// Asks for this, in one piece.
fn ask(second: &mut Second, (stream, token): (&mut Stream, Token), requests: &[u8]) {
    stream.write_all(requests).unwrap();
    second.worker.serve(token);
}

/// Whether nothing has come for a client.
fn hears_nothing(stream: &Stream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = rustix::net::recv(stream, &mut [0u8; 1][..], rustix::net::RecvFlags::PEEK);
    let is_empty = matches!(peeked, Err(rustix::io::Errno::AGAIN));
    stream.set_nonblocking(false).unwrap();
    is_empty
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::yield_now();
    }
}

/// Looks at what waits until none does.
fn look_until_none_waits(second: &mut Second) {
    until("none waits", || {
        second.worker.look_at_parked();
        second.worker.parking.is_empty()
    });
}

/// Sixty-four writers of one worker share two syncs: of the first record, and of all that came meanwhile. Others are served all
/// the while.
#[test]
fn one_worker_and_many_writers_share_a_sync() {
    const WRITERS: u64 = 64;
    for size in [TableSize::Slots(1_000), TableSize::Growing { bytes_max: 16 << 20, segment_slots: Some(64) }]
    {
        let (mut second, state, disk) = logged(size);
        let mut writers: Vec<_> = (0..WRITERS).map(|_| second.greeted()).collect();
        let (mut other, other_token) = second.greeted();
        let syncs = disk.syncs();
        disk.hold(true);
        for (n, (stream, token)) in writers.iter_mut().enumerate() {
            ask(&mut second, (stream, *token), &put(&n.to_le_bytes()));
        }
        assert_eq!(state.parking.taken(), WRITERS);
        ask(&mut second, (&mut other, other_token), &frame(&Request::Get { key: &0u64.to_le_bytes() }));
        assert_eq!(reply(&mut other), Some(Reply::Value(None)), "it is not there yet");
        second.worker.look_at_parked();
        assert!(writers.iter().all(|(stream, _)| hears_nothing(stream)) && state.index.is_empty());
        disk.hold(false);
        look_until_none_waits(&mut second);
        for (stream, _) in &mut writers {
            assert_eq!(reply(stream), Some(INSERTED));
        }
        assert_eq!((state.index.len(), state.parking.taken()), (WRITERS, 0));
        // Where it grows, some find room only when a segment is split.
        let most = if matches!(size, TableSize::Slots(_)) { 2 } else { WRITERS / 4 };
        assert!(disk.syncs() - syncs <= most, "{} syncs", disk.syncs() - syncs);
    }
}

/// The changes of a batch wait together. Their replies come in the order of the requests, also of those that had nothing to
/// wait for. A change of the same key waits for the first one.
#[test]
fn a_batch_waits_as_one() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let (mut stream, token) = second.greeted();
    let (syncs, all) = (disk.syncs(), (0..20u64).flat_map(|n| put(&n.to_le_bytes())));
    let all: Vec<u8> = all.chain(frame(&Request::Remove { key: b"none" })).collect();
    let append = Request::Part {
        key: &0u64.to_le_bytes(),
        part: PartChange::Append { bytes: b"+", len_max: 10 },
        tell: Tell::After,
    };
    disk.hold(true);
    let get = frame(&Request::Get { key: &0u64.to_le_bytes() });
    ask(&mut second, (&mut stream, token), &[all, frame(&append), get].concat());
    assert!(hears_nothing(&stream) && state.parking.taken() == 1);
    disk.hold(false);
    look_until_none_waits(&mut second);
    (0..20).for_each(|_| assert_eq!(reply(&mut stream), Some(INSERTED)));
    assert_eq!(reply(&mut stream), Some(Reply::Removed(Ok(false))));
    let Some(Reply::Part(Ok(appended))) = reply(&mut stream) else { panic!("it was appended to") };
    assert_eq!(appended.value.as_deref(), Some(&b"value+"[..]));
    assert_eq!(reply(&mut stream), Some(Reply::Value(Some(b"value+".to_vec()))));
    assert!(disk.syncs() - syncs <= 3, "{} syncs", disk.syncs() - syncs);
}

/// Two clients change one key: the second one's change waits for the first one's, and nobody else does.
#[test]
fn changes_of_a_key_by_two_clients_come_one_after_the_other() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let [mut one, mut two, mut three] = [(); 3].map(|()| second.greeted());
    disk.hold(true);
    ask(&mut second, (&mut one.0, one.1), &put(b"key"));
    ask(&mut second, (&mut two.0, two.1), &put(b"key"));
    ask(&mut second, (&mut three.0, three.1), &put(b"other"));
    assert_eq!(state.parking.taken(), 3);
    assert_eq!(state.index.log().unwrap().status().next, 3, "the second change is not decided");
    disk.hold(false);
    look_until_none_waits(&mut second);
    let replies = [&mut one.0, &mut two.0, &mut three.0].map(|stream| reply(stream).unwrap());
    assert_eq!(replies, [INSERTED, UPDATED, INSERTED]);
}

/// A client that hangs up: all that it has asked for is done, in order, also what has to wait for its own changes.
#[test]
fn what_was_asked_for_is_done_without_its_client() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let (mut stream, token) = second.greeted();
    let append = |bytes: &'static [u8]| {
        frame(&Request::Part {
            key: b"key",
            part: PartChange::Append { bytes, len_max: 10 },
            tell: Tell::Nothing,
        })
    };
    disk.hold(true);
    let get = frame(&Request::Get { key: b"key" });
    stream
        .write_all(&[put(b"one"), append(b"a"), get, append(b"b"), append(b"c"), put(b"two")].concat())
        .unwrap();
    drop(stream);
    second.worker.serve(token);
    assert!(state.index.is_empty() && state.parking.taken() == 1);
    disk.hold(false);
    look_until_none_waits(&mut second);
    let mut value = Vec::new();
    assert!(state.index.reader().get_into(b"key", &mut value).unwrap() && value == b"abc");
    assert!(has(&state.index, b"one") && has(&state.index, b"two"));
    assert!(second.worker.sessions.is_empty() && state.parking.taken() == 0);
}

/// A put of a batch finds the room that removals of the batch make.
#[test]
fn a_batch_makes_room_for_itself() {
    let (mut second, state, disk) = logged(TableSize::Slots(64));
    let mut there = Vec::new();
    let refused = (0u64..).find(|n| {
        let is_in = state.index.put(&n.to_le_bytes(), b"", PutMode::Insert).is_ok();
        there.extend(is_in.then_some(*n));
        !is_in
    });
    let removes = there.iter().flat_map(|n| frame(&Request::Remove { key: &n.to_le_bytes() }));
    let all: Vec<u8> = removes.chain(put(&refused.unwrap().to_le_bytes())).collect();
    let (mut stream, token) = second.greeted();
    disk.hold(true);
    ask(&mut second, (&mut stream, token), &all);
    disk.hold(false);
    look_until_none_waits(&mut second);
    there.iter().for_each(|_| assert_eq!(reply(&mut stream), Some(Reply::Removed(Ok(true)))));
    assert_eq!((reply(&mut stream), state.index.len()), (Some(INSERTED), 1));
}

/// Of those who wait for one key, who has waited longest is next.
#[test]
fn who_has_waited_longest_is_next() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let mut clients: Vec<_> = (0..4).map(|_| second.greeted()).collect();
    // The last one to connect is the first to ask.
    clients.reverse();
    let append = |nth: u8| {
        frame(&Request::Part {
            key: b"key",
            part: PartChange::Append { bytes: &[b'a' + nth], len_max: 1_000 },
            tell: Tell::After,
        })
    };
    disk.hold(true);
    for (nth, (stream, token)) in (0..).zip(&mut clients) {
        ask(&mut second, (stream, *token), &append(nth));
    }
    assert_eq!(state.parking.taken(), 4);
    for (decided, made) in (2..).zip([&b"a"[..], b"ab", b"abc", b"abcd"]) {
        until("it is decided", || {
            second.worker.look_at_parked();
            state.index.log().unwrap().status().next == decided
        });
        disk.hold(false);
        until("its turn has ended", || state.index.keys_under_way() == 0);
        disk.hold(true);
        let mut value = Vec::new();
        assert!(state.index.reader().get_into(b"key", &mut value).unwrap() && value == made);
    }
    disk.hold(false);
    look_until_none_waits(&mut second);
    clients.iter_mut().for_each(|(stream, _)| assert!(matches!(reply(stream), Some(Reply::Part(Ok(_))))));
}

/// An owner who is removed while a put of it waits goes, also if nobody asks again.
#[test]
fn an_owner_goes_behind_its_puts() {
    let (index, disk) = with_an_owner();
    let session = index.owner(7, Duration::from_secs(60)).unwrap();
    disk.hold(true);
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| index.put_of(&session, b"two", b"", PutMode::Insert.into()));
        while index.log().unwrap().status().next < 3 {
            std::thread::yield_now();
        }
        let waits = ChangeWaits::default();
        assert!(index.try_remove_owner(7, &waits).is_err() && waits.now().is_some());
        assert!(has(&index, b"one"));
        disk.hold(false);
        assert!(putting.join().unwrap().is_ok());
    });
    let begun = Instant::now();
    while !index.is_empty() || has(&index, b"one") || has(&index, b"two") {
        assert!(begun.elapsed() < Duration::from_secs(60), "its entries stay");
        index.tidy();
    }
}

/// A table whose owner 7 has an entry, and the disk of its log. It has had two records.
fn with_an_owner() -> (Index, SimDisk) {
    let disk = SimDisk::default();
    let config = Config { size: TableSize::Slots(1_000), owners: true, life: true, ..Config::short() };
    let index = index_for(&ServerConfig::new(Address::Shm("nowhere".into()), config)).unwrap().index;
    let index = index.with_log(log_on(&disk, Fsync::Always));
    let session = index.owner(7, Duration::from_secs(60)).unwrap();
    index.put_of(&session, b"one", b"", PutMode::Insert.into()).unwrap();
    (index, disk)
}

/// A thread of an embedder removes an owner, and sleeps until the log has the record. Meanwhile others tidy, and a client asks
/// for it, too. Returns how many records said it, how often it was hidden, and how many records the log cannot forget.
fn removed_by_three() -> (u64, u64, u64) {
    let (index, disk) = with_an_owner();
    let (log, hidden) = (index.log().unwrap(), index.changes_made());
    let before = log.status().next;
    disk.hold(true);
    std::thread::scope(|scope| {
        let removes = scope.spawn(|| index.remove_owner(7));
        while log.status().next == before {
            std::thread::yield_now();
        }
        let waits = ChangeWaits::default();
        assert!(index.try_remove_owner(7, &waits).is_err() && waits.now().is_some());
        assert!(index.tidy().is_some() && has(&index, b"one"));
        disk.hold(false);
        assert_eq!(removes.join().unwrap(), Ok(true));
    });
    assert!(!has(&index, b"one"));
    log.drain();
    let hidden = index.changes_made() - hidden;
    (log.status().next - before, hidden, log.status().next - log.applied())
}

#[test]
fn an_owner_is_hidden_once() {
    assert_eq!(removed_by_three(), (1, 1, 0));
    let _broken = crate::faults::Broken::rule(crate::faults::Rule::OwnerOnce);
    assert_ne!(removed_by_three(), (1, 1, 0), "nobody noticed");
}

/// An owner whose record the disk refuses stays, whoever has asked, and whoever asks later: it has its entries, and its sessions
/// go on. No thread looks at it again and again.
#[test]
fn an_owner_stays_when_the_disk_fails() {
    let (index, disk) = with_an_owner();
    disk.hold(true);
    std::thread::scope(|scope| {
        let removes = scope.spawn(|| index.remove_owner(7));
        while index.log().unwrap().status().next < 3 {
            std::thread::yield_now();
        }
        disk.fail_in(0);
        disk.hold(false);
        assert_eq!(removes.join().unwrap(), Err(PutError::Withdrawn));
    });
    assert!(index.log().unwrap().status().has_failed);
    assert_eq!(index.remove_owner(7), Err(PutError::Withdrawn));
    let waits = ChangeWaits::default();
    assert_eq!(index.try_remove_owner(7, &waits), Err(PutError::Withdrawn));
    assert!(waits.now().is_none() && has(&index, b"one"));
    let session = index.owner(7, Duration::ZERO).unwrap();
    let put = index.put_of(&session, b"two", b"", PutMode::Insert.into());
    assert_eq!(put, Err(PutError::Withdrawn), "the owner is there, and nothing is changed any more");
    // One that is away stays, too.
    drop(session);
    let begun = Instant::now();
    while index.tidy().is_some() {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is always more to do");
        std::thread::yield_now();
    }
    assert!(has(&index, b"one"));
}

/// A disk that fails: whoever waits is told so, nothing is made, and room and turns are free again.
#[test]
fn a_disk_that_fails_refuses_all_that_wait() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let mut clients = [(); 3].map(|()| second.greeted());
    assert!(state.index.put(b"one", b"old", PutMode::Insert).is_ok());
    disk.hold(true);
    ask(&mut second, (&mut clients[0].0, clients[0].1), &[put(b"one"), put(b"two")].concat());
    ask(&mut second, (&mut clients[1].0, clients[1].1), &put(b"one"));
    let remove = frame(&Request::Remove { key: b"one" });
    ask(&mut second, (&mut clients[2].0, clients[2].1), &[put(b"three"), remove].concat());
    disk.fail_in(0);
    disk.hold(false);
    look_until_none_waits(&mut second);
    assert_eq!(reply(&mut clients[0].0), Some(WITHDRAWN));
    assert_eq!(reply(&mut clients[0].0), Some(WITHDRAWN));
    assert_eq!(reply(&mut clients[1].0), Some(WITHDRAWN));
    assert_eq!(reply(&mut clients[2].0), Some(WITHDRAWN));
    assert_eq!(reply(&mut clients[2].0), Some(WITHDRAWN), "the removal");
    assert!(has(&state.index, b"one") && state.index.len() == 1);
    assert_eq!(state.index.keys_under_way(), 0);
    ask(&mut second, (&mut clients[0].0, clients[0].1), &put(b"one"));
    assert_eq!(reply(&mut clients[0].0), Some(WITHDRAWN), "nothing is changed any more");
}

/// Requests in a mailbox wait as those on a socket: their replies are in its cells afterwards, and the client is woken.
#[test]
fn replies_in_a_mailbox_wait() {
    const MANY: u64 = 6;
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let (stream, token, mailbox) = second.served();
    let (key, syncs) = (|n: u64| n.to_le_bytes(), disk.syncs());
    for n in 1..=MANY {
        let mut asked = Vec::new();
        Request::Put { options: PutMode::Upsert.into(), key: &key(n), value: b"value" }.encode(n, &mut asked);
        assert!(store(mailbox.request(n), n, &asked));
    }
    mailbox.client().announce(MANY);
    disk.hold(true);
    second.worker.sweep();
    assert_eq!((state.parking.taken(), state.index.log().unwrap().status().next), (1, MANY + 1));
    assert!((1..=MANY).all(|n| glance(mailbox.reply(n)).sequence != n) && hears_nothing(&stream));
    disk.hold(false);
    look_until_none_waits(&mut second);
    assert!((1..=MANY).all(|n| glance(mailbox.reply(n)).sequence == n));
    assert!(!hears_nothing(&stream), "it is woken");
    assert!(disk.syncs() - syncs <= 2, "{} syncs", disk.syncs() - syncs);
    // It goes on.
    let mut asked = Vec::new();
    Request::Remove { key: &key(1) }.encode(MANY + 1, &mut asked);
    assert!(store(mailbox.request(MANY + 1), MANY + 1, &asked));
    let session = second.worker.sessions.get_mut(&token).unwrap();
    session.visit(&state, Instant::now()).unwrap();
    second.worker.parking.note(token, second.worker.sessions[&token].parked());
    look_until_none_waits(&mut second);
    let mut copy = Vec::new();
    let got = crate::mailbox::load(mailbox.reply(MANY + 1), MANY + 1, &mut copy).unwrap();
    assert_eq!(wire::replies(got, MANY + 1).unwrap(), [Reply::Removed(Ok(true))]);
}

/// A client of which a change in its mailbox has to wait, because another client changes the key.
fn waits_in_a_mailbox(
    second: &mut Second,
    disk: &SimDisk,
    behind: &[&[u8]],
) -> (Stream, Token, crate::mailbox::memory::Mailbox) {
    let (mut other, other_token) = second.greeted();
    let (stream, token, mailbox) = second.served();
    disk.hold(true);
    ask(second, (&mut other, other_token), &put(b"key"));
    for (n, key) in (1..).zip([&b"key"[..]].into_iter().chain(behind.iter().copied())) {
        let mut asked = Vec::new();
        Request::Put { options: PutMode::Upsert.into(), key, value: b"mine" }.encode(n, &mut asked);
        assert!(store(mailbox.request(n), n, &asked));
    }
    mailbox.client().announce(1);
    second.worker.sweep();
    assert_eq!(second.worker.shared.parking.taken(), 2);
    (stream, token, mailbox)
}

/// Of a client that is gone, nothing behind a change that has to wait is made.
#[test]
fn nothing_in_a_mailbox_is_made_behind_what_waits() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let (stream, token, _mailbox) = waits_in_a_mailbox(&mut second, &disk, &[b"behind"]);
    drop(stream);
    second.worker.serve(token);
    disk.hold(false);
    look_until_none_waits(&mut second);
    let mut value = Vec::new();
    assert!(state.index.reader().get_into(b"key", &mut value).unwrap() && value == b"value");
    assert!(!has(&state.index, b"behind") && !second.worker.sessions.contains_key(&token));
    assert_eq!(state.parking.taken(), 0);
}

/// A client that takes back a change which waits has no place among those that wait any more.
#[test]
fn what_waits_in_a_mailbox_is_not_taken_back() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    let (_stream, token, mailbox) = waits_in_a_mailbox(&mut second, &disk, &[]);
    assert!(store(mailbox.request(1), 100, &put(b"other")));
    disk.hold(false);
    look_until_none_waits(&mut second);
    assert!(!second.worker.sessions.contains_key(&token) && !has(&state.index, b"other"));
    assert_eq!(state.parking.taken(), 0);
}

/// A removal of all keys waits for the disk once a step, not once a key.
#[test]
fn a_removal_of_all_keys_shares_syncs() {
    let (mut second, state, disk) = logged(TableSize::Slots(1_000));
    for n in 0..300u64 {
        state.index.put(&n.to_le_bytes(), b"", PutMode::Insert).unwrap();
    }
    let (mut stream, token) = second.greeted();
    let (mut place, mut removed, mut steps, syncs) = ([0, 0], 0, 0, disk.syncs());
    loop {
        ask(&mut second, (&mut stream, token), &frame(&Request::Clear { place }));
        look_until_none_waits(&mut second);
        let Some(Reply::Cleared { removed: some, progress_ppm, place: next }) = reply(&mut stream) else {
            panic!("a step")
        };
        (removed, steps, place) = (removed + some, steps + 1, next);
        if progress_ppm == 1_000_000 {
            break;
        }
    }
    assert_eq!((removed, state.index.len()), (300, 0));
    assert!(disk.syncs() - syncs < 300, "{} syncs in {steps} steps", disk.syncs() - syncs);
}
