//! Who is who (I): what a client has kept of an entry, or of a server's process, is shown again when another table, or another
//! server, is at the address.

use crate::common::{SOON, patient};
use oneread::error::MutateError;
use oneread::layout::Seeds;
use oneread::{
    Address, Backing, Client, Config, FeedFrom, FeedItem, FeedOptions, GapCause, PutOutcome, Server,
    ServerConfig, Snapshots, StartMode, TableSize, TcpAddress,
};
use std::time::{Duration, Instant};

const KEY: &[u8] = b"block";
/// Values in their slots, and one in an extent.
const LENGTHS: [usize; 2] = [4, 50_000];

/// What the next server at an address begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// A new table.
    New,
    /// A new table with the keys of a snapshot.
    Restored,
    /// The last server's table.
    TakenOver,
}

const ALL: [Begins; 3] = [Begins::New, Begins::Restored, Begins::TakenOver];

/// An address on shm or over TCP, in a folder of its own, and what servers there begin with.
struct Place {
    dir: tempfile::TempDir,
    address: Address,
    begins: Begins,
}

impl Place {
    fn new(is_far: bool, begins: Begins) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let address = match is_far {
            true => Address::Tcp(TcpAddress::new("127.0.0.1", 0)),
            false => Address::Shm(dir.path().join("table")),
        };
        Place { dir, address, begins }
    }

    /// Starts a server. Its seeds are those of every other one here, so its numbers are all that differs.
    fn serve(&mut self) -> Server {
        let table = Config::new().size(TableSize::Keys(1_000)).life(true).owners(true);
        let config = ServerConfig::new(self.address.clone(), table.seeds(Seeds::from_number(5)));
        let config = match self.begins {
            Begins::New => config,
            Begins::Restored => config.snapshots(Snapshots::new(self.dir.path().join("saved"))),
            Begins::TakenOver => {
                let file = Backing::File(self.dir.path().join("region"));
                config.backing(file).start(StartMode::OpenOrCreate)
            }
        };
        let server = Server::start(config).unwrap();
        self.address = server.address().clone();
        server
    }
}

fn everywhere() -> impl Iterator<Item = (bool, Begins)> {
    [false, true].into_iter().flat_map(|is_far| ALL.map(|begins| (is_far, begins)))
}

/// What `act` comes to, as soon as it comes to something.
pub(crate) fn until<T>(what: &str, mut act: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(done) = act() {
            return done;
        }
        assert!(begun.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the client has a connection to the server that is there now.
fn until_it_is_back(client: &mut Client) {
    until("the client is back", || client.put(b"back", b"").ok());
}

/// Whether an entry is said to be the same when another server is there, and when, with one more server, another program
/// has put another value.
fn revalidated(is_far: bool, begins: Begins, len: usize) -> (bool, bool) {
    let mut place = Place::new(is_far, begins);
    let server = place.serve();
    let mut client = Client::connect_with(&place.address, patient()).unwrap();
    client.put(KEY, &vec![1; len]).unwrap();
    let number = client.life(KEY).unwrap().unwrap().number;
    let mut told = Vec::new();
    let batch = client.get_many_with_life(&[KEY], |_, answer| {
        told.extend(answer.unwrap().unwrap().1);
        std::ops::ControlFlow::Continue(())
    });
    batch.unwrap();
    assert_eq!(told[0].number, number, "alone and in a batch");
    assert_eq!(client.revalidate(&[KEY], &[number]).unwrap(), [true]);
    drop(server);
    let server = place.serve();
    until_it_is_back(&mut client);
    let same = client.revalidate(&[KEY], &[number]).unwrap()[0];
    assert_eq!(client.contains(KEY).unwrap(), begins != Begins::New);
    drop(server);
    let _server = place.serve();
    // In a new table the first number is given again.
    let mut other = Client::connect_with(&place.address, patient()).unwrap();
    other.put(KEY, &vec![2; len]).unwrap();
    until_it_is_back(&mut client);
    assert_eq!(client.get(KEY).unwrap(), Some(vec![2; len]));
    (same, client.revalidate(&[KEY], &[number]).unwrap()[0])
}

/// An entry is the same only in the table in which it was found: a takeover keeps that. In a new table, and in one with the
/// keys of a snapshot, another program's entry has the same number of 48 bits, and is not the same.
#[test]
fn another_tables_entry_is_not_the_same() {
    for (is_far, begins) in everywhere() {
        for len in LENGTHS {
            let same = revalidated(is_far, begins, len);
            assert_eq!(same, (begins == Begins::TakenOver, false), "far: {is_far}, {begins:?}, {len}");
        }
    }
}

/// Whether a ticket of the server before commits what was started since.
fn a_late_ticket_commits(is_far: bool, begins: Begins) -> bool {
    let mut place = Place::new(is_far, begins);
    let server = place.serve();
    let mut client = Client::connect_with(&place.address, patient()).unwrap();
    let late = client.put_start(KEY, 4, SOON).unwrap();
    drop(server);
    let _server = place.serve();
    until_it_is_back(&mut client);
    // Another part of the program, with the same handle.
    let next = client.put_start(KEY, 4, SOON).unwrap();
    let commits = client.put_commit(late, b"late");
    if commits.is_ok() {
        return true;
    }
    assert!(matches!(commits, Err(MutateError::NotStarted)), "{commits:?}");
    assert_eq!(
        client.put_commit(next, b"next").unwrap(),
        PutOutcome::Inserted,
        "it was not given up with it"
    );
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"next"[..]));
    false
}

/// A ticket is of one server. It neither commits nor gives up what was started with the next one.
#[test]
fn tickets_are_of_one_server() {
    for (is_far, begins) in everywhere() {
        assert!(!a_late_ticket_commits(is_far, begins), "far: {is_far}, {begins:?}");
    }
}

/// Whether the next server says that a snapshot has ended for which the one before was asked.
fn a_late_request_has_ended(is_far: bool) -> Option<bool> {
    let mut place = Place::new(is_far, Begins::Restored);
    let server = place.serve();
    let mut client = Client::connect_with(&place.address, patient()).unwrap();
    let asked = client.ask_for_snapshot().unwrap();
    let made = until("a snapshot", || {
        Some(client.snapshot_status().unwrap()).filter(|now| now.has_ended(&asked) == Some(true))
    });
    assert_eq!((made.launch, made.saved), (server.stats().launch, asked.asked));
    drop(server);
    let server = place.serve();
    until_it_is_back(&mut client);
    // One that has nothing to do with it.
    let other = server.ask_for_snapshot().unwrap();
    until("another snapshot", || server.snapshot_status().filter(|now| now.has_ended(&other) == Some(true)));
    client.snapshot_status().unwrap().has_ended(&asked)
}

/// Who waits for a snapshot is told that its server has gone, not that it was made.
#[test]
fn requests_for_snapshots_are_of_one_server() {
    for is_far in [false, true] {
        assert_eq!(a_late_request_has_ended(is_far), None, "far: {is_far}");
    }
}

/// Whether a follower that has kept its place is told of a gap when it goes on with another server.
fn is_told_of_the_gap(is_far: bool, begins: Begins) -> bool {
    let mut place = Place::new(is_far, begins);
    let server = place.serve();
    let mut client = Client::connect_with(&place.address, patient()).unwrap();
    let mut changes = client.changes(FeedOptions::new()).unwrap();
    client.put(KEY, b"1").unwrap();
    let heard = changes.next(SOON).unwrap();
    assert!(matches!(heard, Some(FeedItem::Came { .. })), "{heard:?}");
    let kept = changes.position();
    drop((changes, server));
    let _server = place.serve();
    until_it_is_back(&mut client);
    let mut other = client.changes(FeedOptions::new()).unwrap();
    for n in 0..3u8 {
        client.put(&[n], b"").unwrap();
    }
    until("they are heard", || other.next(Duration::ZERO).unwrap().filter(|_| other.position().number > 3));
    let mut again = match client.changes(FeedOptions::new().from(FeedFrom::Position(kept))) {
        Ok(changes) => changes,
        Err(_) => return true,
    };
    match again.next(SOON).unwrap() {
        Some(FeedItem::Gap { cause, .. }) => {
            assert_eq!((cause, begins), (GapCause::OtherServer, Begins::TakenOver));
            true
        }
        _ => false,
    }
}

/// A follower's place is of one table and of one server of it.
#[test]
fn places_in_a_feed_are_of_one_server() {
    for (is_far, begins) in everywhere() {
        assert!(is_told_of_the_gap(is_far, begins), "far: {is_far}, {begins:?}");
    }
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    #[test]
    fn broken_rules_are_noticed() {
        type Wrong = fn(bool) -> bool;
        let cases: [(Rule, Wrong); 7] = [
            (Rule::TableNumber, |is_far| revalidated(is_far, Begins::New, 4).1),
            (Rule::TableNumber, |is_far| revalidated(is_far, Begins::Restored, 50_000).0),
            (Rule::EntryTable, |is_far| revalidated(is_far, Begins::New, 50_000).1),
            (Rule::EntryTable, |is_far| revalidated(is_far, Begins::Restored, 4).0),
            (Rule::LaunchNumber, |is_far| a_late_ticket_commits(is_far, Begins::TakenOver)),
            (Rule::LaunchNumber, |is_far| a_late_request_has_ended(is_far) == Some(true)),
            (Rule::LaunchNumber, |is_far| !is_told_of_the_gap(is_far, Begins::TakenOver)),
        ];
        for (nth, (rule, is_wrong)) in cases.into_iter().enumerate() {
            for is_far in [false, true] {
                assert!(!is_wrong(is_far), "{nth}: {rule:?}, far: {is_far}");
                let _broken = Broken::rule(rule);
                assert!(is_wrong(is_far), "{nth}: {rule:?} broken, far: {is_far}");
            }
        }
    }
}
