//! Owners one after the other with one number (I4), and owners that are quiet (I5).

use crate::common::patient;
use crate::identity::until;
use oneread::error::MutateError;
use oneread::{
    Address, Backing, Client, Config, OwnerOptions, PutOutcome, Server, ServerConfig, StartMode, TableSize,
    TcpAddress,
};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const OWNER: u16 = 7;
const KEY: &[u8] = b"key";

/// A folder with a table, and where it is served.
struct Place {
    dir: tempfile::TempDir,
    address: Address,
}

impl Place {
    fn new(is_far: bool) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let address = match is_far {
            true => Address::Tcp(TcpAddress::new("127.0.0.1", 0)),
            false => Address::Shm(dir.path().join("table")),
        };
        Place { dir, address }
    }

    /// Serves the table here: the last server's, if there was one.
    fn serve(&mut self) -> Server {
        let server = self.serve_at(self.address.clone());
        self.address = server.address().clone();
        server
    }

    /// Serves the table where the clients do not look.
    fn serve_elsewhere(&self) -> Server {
        self.serve_at(Address::Shm(self.dir.path().join("elsewhere")))
    }

    fn serve_at(&self, address: Address) -> Server {
        let file = Backing::File(self.dir.path().join("region"));
        let config = ServerConfig::new(address, table()).backing(file).start(StartMode::OpenOrCreate);
        Server::start(config).unwrap()
    }

    fn client(&self) -> Client {
        Client::connect_with(&self.address, patient()).unwrap()
    }
}

fn table() -> Config {
    Config::new().size(TableSize::Keys(1_000)).life(true).owners(true)
}

fn owner(absent_for: Duration) -> OwnerOptions {
    OwnerOptions::new(OWNER).absent_for(absent_for)
}

/// Whether a put is made; if not, it must be refused because the owner is gone.
fn puts(client: &mut Client, key: &[u8]) -> bool {
    match client.put(key, b"") {
        Ok(outcome) => {
            assert_eq!(outcome, PutOutcome::Inserted);
            true
        }
        Err(error) => {
            assert!(matches!(error, MutateError::OwnerGone { owner: OWNER }), "{error:?}");
            false
        }
    }
}

/// Who puts that had the number.
#[derive(Clone, Copy, Debug)]
enum Late {
    /// A clone that has had no connection yet.
    Clone,
    /// The handle itself, with the next server of the table.
    Reconnected,
}

const ALL: [Late; 2] = [Late::Clone, Late::Reconnected];

/// Whether a client that was removed puts under the number when that was given to another program.
fn puts_as_the_next_one(is_far: bool, late: Late) -> bool {
    let mut place = Place::new(is_far);
    let mut server = place.serve();
    let mut other = place.client();
    let mut client = other.owner(owner(HOUR)).unwrap();
    let mut clone = client.clone();
    client.put(KEY, b"").unwrap();
    assert!(other.remove_owner(OWNER).unwrap());
    let mut next = until("the number is free", || other.owner(owner(HOUR)).ok());
    next.put(b"next", b"").unwrap();
    assert!(!puts(&mut client, b"late"), "its session is another one");
    if matches!(late, Late::Reconnected) {
        server.stop();
        server = place.serve();
    }
    let has_put = match late {
        Late::Clone => puts(&mut clone, b"late"),
        Late::Reconnected => puts(&mut client, b"late"),
    };
    // The next one goes on, and reads are nobody's.
    next.put(b"more", b"").unwrap();
    assert_eq!(next.life(b"more").unwrap().unwrap().owner, OWNER);
    assert!(other.contains(b"next").unwrap() && clone.contains(b"next").unwrap());
    assert_eq!(client.contains(b"late").unwrap(), has_put);
    drop(server);
    has_put
}

/// An owner that was removed, its clone, and itself with the next server, put nothing under the number that another program
/// has by then.
#[test]
fn who_has_been_an_owner_is_not_the_next_one() {
    for is_far in [false, true] {
        for late in ALL {
            assert!(!puts_as_the_next_one(is_far, late), "far: {is_far}, {late:?}");
        }
    }
}

/// Two programs may be one owner, and a program that begins again is the owner that is there: with its first claim, each
/// gets the tenure that there is.
#[test]
fn a_first_claim_takes_the_owner_that_is_there() {
    for is_far in [false, true] {
        let mut place = Place::new(is_far);
        let server = place.serve();
        let other = place.client();
        let (mut one, mut two) = (other.owner(owner(HOUR)).unwrap(), other.owner(owner(HOUR)).unwrap());
        one.put(KEY, b"").unwrap();
        drop(one);
        server.stop();
        let server = place.serve();
        assert!(puts(&mut two, b"two"));
        let mut again = other.owner(owner(HOUR)).unwrap();
        assert!(puts(&mut again, b"again"));
        assert_eq!(server.stats().keys, 3);
        assert!(again.remove_owner(OWNER).unwrap());
        assert!(!puts(&mut two, b"late") && !puts(&mut again, b"late"));
    }
}

/// Whether a client puts whose entries have gone while it could not come back: with `has_next`, another program has its
/// number by then. As one that was suspended across a restart, or cut off.
fn puts_after_its_entries_went(is_far: bool, has_next: bool) -> bool {
    let mut place = Place::new(is_far);
    let server = place.serve();
    let mut client = place.client().owner(owner(SECOND / 10)).unwrap();
    client.put(KEY, b"").unwrap();
    server.stop();
    let server = place.serve_elsewhere();
    until("its entry goes", || (server.stats().keys == 0).then_some(()));
    let other = Client::connect_with(server.address(), patient()).unwrap();
    let next = has_next.then(|| {
        let mut next = until("the number is free", || other.owner(owner(HOUR)).ok());
        next.put(b"next", b"").unwrap();
        next
    });
    until("it is forgotten", || (has_next || other.owner(owner(SECOND / 10)).is_ok()).then_some(()));
    server.stop();
    let server = place.serve();
    let has_put = puts(&mut client, KEY);
    assert_eq!(client.contains(KEY).unwrap(), has_put, "it reads as before");
    drop((next, server));
    has_put
}

/// A quiet client that comes back too late is told that it is no owner any more: not that its next put is new.
#[test]
fn who_comes_too_late_is_told() {
    for is_far in [false, true] {
        for has_next in [false, true] {
            assert!(!puts_after_its_entries_went(is_far, has_next), "far: {is_far}, {has_next}");
        }
    }
}

/// In another table nobody is an owner that was one before: its client is told, and begins again.
#[test]
fn another_table_has_no_owner() {
    for is_far in [false, true] {
        let mut place = Place::new(is_far);
        let start = |address: Address| Server::start(ServerConfig::new(address, table())).unwrap();
        let server = start(place.address.clone());
        place.address = server.address().clone();
        let mut client = place.client().owner(owner(HOUR)).unwrap();
        client.put(KEY, b"").unwrap();
        drop(server);
        let _server = start(place.address.clone());
        assert!(!puts(&mut client, KEY));
        assert!(!client.contains(KEY).unwrap(), "it reads what is there now");
        let mut again = client.owner(owner(HOUR)).unwrap();
        assert!(puts(&mut again, KEY));
    }
}

/// Whether the entries of a quiet client go when its server is replaced.
fn goes_while_it_is_quiet(is_far: bool) -> bool {
    let mut place = Place::new(is_far);
    let server = place.serve();
    let mut client = place.client().owner(owner(SECOND)).unwrap();
    client.put(KEY, b"").unwrap();
    server.stop();
    let server = place.serve();
    // It asks for nothing. What is to come takes two times that long, for its time is rounded up.
    let begun = Instant::now();
    while begun.elapsed() < 4 * SECOND && server.stats().keys == 1 {
        std::thread::sleep(SECOND / 50);
    }
    let has_gone = server.stats().keys == 0;
    assert_eq!(puts(&mut client, b"later"), !has_gone);
    drop(client);
    until("they go with it", || (server.stats().keys == 0).then_some(()));
    has_gone
}

/// A client that asks for nothing stays an owner when the server is replaced; with its last handle it goes, all the same.
#[test]
fn quiet_owners_stay() {
    for is_far in [false, true] {
        assert!(!goes_while_it_is_quiet(is_far), "far: {is_far}");
    }
}

/// The thread that keeps an owner there ends with the client's last handle, also while it looks for a server.
#[test]
fn nothing_keeps_an_owner_without_handles() {
    let mut place = Place::new(true);
    let server = place.serve();
    let other = place.client();
    let client = other.owner(owner(SECOND / 10)).unwrap();
    let clone = client.clone();
    until("it is kept", || (server.stats().clients == 3).then_some(()));
    drop(client);
    until("the clone, which has no connection, is kept", || (server.stats().clients == 2).then_some(()));
    drop(clone);
    until("nobody is left", || (server.stats().clients == 1).then_some(()));
    let mut client = other.owner(owner(SECOND / 10)).unwrap();
    client.put(KEY, b"").unwrap();
    server.stop();
    drop(client);
    let server = place.serve();
    until("its entry goes", || (server.stats().keys == 0).then_some(()));
    assert_eq!(server.stats().clients, 0);
}

#[cfg(feature = "faults")]
mod broken {
    use super::*;
    use oneread::internals::faults::{Broken, Rule};

    #[test]
    fn broken_rules_are_noticed() {
        type Wrong = fn() -> bool;
        let cases: [(Rule, Wrong); 9] = [
            (Rule::OwnerTenure, || puts_as_the_next_one(false, Late::Clone)),
            (Rule::OwnerTenure, || puts_as_the_next_one(true, Late::Clone)),
            (Rule::OwnerTenure, || puts_as_the_next_one(false, Late::Reconnected)),
            (Rule::OwnerTenure, || puts_as_the_next_one(true, Late::Reconnected)),
            (Rule::OwnerTenure, || puts_after_its_entries_went(false, false)),
            (Rule::OwnerTenure, || puts_after_its_entries_went(true, false)),
            (Rule::OwnerTenure, || puts_after_its_entries_went(false, true)),
            (Rule::OwnerTenure, || puts_after_its_entries_went(true, true)),
            (Rule::OwnerStays, || goes_while_it_is_quiet(true)),
        ];
        for (nth, (rule, is_wrong)) in cases.into_iter().enumerate() {
            assert!(!is_wrong(), "{nth}: {rule:?}");
            let _broken = Broken::rule(rule);
            assert!(is_wrong(), "{nth}: {rule:?} broken");
        }
    }
}
