//! Changes of the placement index that somebody comes between: before each request of one handle, in turn, another one does
//! something, and only then is the request handed on.

use oneread::{Address, Client, Server, ServerConfig, TableSize, TcpAddress};
use oneread_prefix::{Digests, Holder, Keeps, Key, PlacementIndex, PlacementTable, PrefixError};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const HOLDERS: usize = 160;
const SIZE: TableSize = TableSize::Keys(1_000);
/// Some groups, and a part of one.
const BLOCKS: usize = 29;
/// The number of the request for keys of a scan.
const SCAN: u16 = 40;

fn forms() -> [PlacementTable; 2] {
    [PlacementTable::single(HOLDERS).unwrap(), PlacementTable::grouped(HOLDERS).unwrap()]
}

fn prompt() -> Vec<Key> {
    chain(BLOCKS)
}

fn chain(blocks: usize) -> Vec<Key> {
    let key = |n: u128| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes();
    (1..=blocks as u128).map(key).collect()
}

fn serve(table: PlacementTable) -> Server {
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", 0));
    let server = Server::start(ServerConfig::new(address, table.config(SIZE))).unwrap();
    table.mark(&server).unwrap();
    server
}

fn open(address: &Address) -> PlacementIndex {
    PlacementIndex::new(Client::connect(address).unwrap()).unwrap()
}

/// A frame, if one comes.
fn frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 16];
    from.read_exact(&mut bytes).ok()?;
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes.resize(16 + len, 0);
    from.read_exact(&mut bytes[16..]).ok()?;
    Some(bytes)
}

/// Hands on what both say. Tells of the operation of each of the client's frames, and waits until it may go on.
fn relay(listener: &TcpListener, port: u16, asks: &mpsc::Sender<u16>, goes_on: &mpsc::Receiver<()>) {
    let (mut client, _) = listener.accept().unwrap();
    let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let returning = std::thread::spawn(move || {
        let (mut from, mut to) = back;
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    while let Some(bytes) = frame(&mut client) {
        if asks.send(u16::from_le_bytes([bytes[4], bytes[5]])).is_ok() {
            let _ = goes_on.recv();
        }
        if server.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
    returning.join().unwrap();
}

/// What `act` does with an index, where `before` runs before each of its requests, with the request's operation.
fn relayed<R: Send>(
    server: &Server,
    act: impl FnOnce(&mut PlacementIndex) -> R + Send,
    mut before: impl FnMut(u16),
) -> R {
    let (listener, port) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.tcp_address().unwrap().port());
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", listener.local_addr().unwrap().port()));
    let ((asks, asked), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
    let ((connected, is_connected), (begin, begins)) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(move || relay(&listener, port, &asks, &goes_on));
        let acting = scope.spawn(move || {
            let mut index = open(&address);
            connected.send(()).unwrap();
            begins.recv().unwrap();
            act(&mut index)
        });
        // What connects goes on at once.
        while is_connected.try_recv().is_err() {
            if asked.recv_timeout(Duration::from_millis(1)).is_ok() {
                go_on.send(()).unwrap();
            }
        }
        begin.send(()).unwrap();
        while let Ok(op) = asked.recv() {
            before(op);
            go_on.send(()).unwrap();
        }
        acting.join().unwrap()
    })
}

/// The length of the prefix that a holder has.
fn length(index: &mut PlacementIndex, keys: &[Key], holder: &Holder) -> usize {
    let mut found = Vec::new();
    index.match_prefix(&Digests::from(keys), &mut found).unwrap();
    found.iter().find(|one| one.holder.name() == holder.name()).map_or(0, |one| one.blocks)
}

fn add(index: &mut PlacementIndex, holder: &Holder, keys: &[Key]) {
    index.add(holder, &Digests::from(keys), 0).unwrap();
}

/// The holder goes, and the next one has its bit.
fn given_again(index: &mut PlacementIndex, holder: &Holder) -> Holder {
    assert_eq!(mask(index), 1);
    assert!(index.drop_holder(holder.name()).unwrap());
    while !index.clean(usize::MAX).unwrap().is_done {}
    let next = index.holder("next").unwrap();
    assert_eq!(mask(index), 1, "the bit is given again");
    next
}

/// The bits of the first eight holders.
fn mask(index: &mut PlacementIndex) -> u8 {
    index.client().get(b"#m").unwrap().unwrap()[0]
}

/// Entries of blocks.
fn entries(index: &mut PlacementIndex) -> usize {
    index.client().scan().filter(|entry| entry.as_ref().unwrap().key.len() == 16).count()
}

/// Runs a story with 0, 1, 2 and so on requests before somebody comes between, until there are fewer: then it returns `true`.
fn at_each_request(least: usize, story: impl Fn(PlacementTable, usize) -> bool) {
    for table in forms() {
        let count = (0..100).find(|&before| story(table, before)).expect("it takes some requests");
        assert!(count >= least, "{count} requests");
    }
}

/// Before any request of an add its holder is dropped, cleaned, and the bit given to the next one: who adds is told so, and
/// the next one has nothing of it, neither at once nor when it adds a block itself.
#[test]
fn the_next_holder_has_nothing_of_a_late_add() {
    at_each_request(3, |table, before| {
        let (server, keys) = (serve(table), prompt());
        let mut index = open(server.address());
        let holder = index.holder("dead").unwrap();
        let (mut count, mut next) = (0, None);
        let late = |late: &mut PlacementIndex| late.add(&holder, &Digests::from(&keys[..]), 0);
        let added = relayed(&server, late, |_| {
            if count == before {
                next = Some(given_again(&mut index, &holder));
            }
            count += 1;
        });
        let Some(next) = next else {
            added.unwrap();
            assert_eq!(length(&mut index, &keys, &holder), BLOCKS);
            return true;
        };
        assert!(matches!(added, Err(PrefixError::HolderGone { .. })), "{before}: {added:?}");
        assert_eq!(length(&mut index, &keys, &next), 0, "{before}");
        assert_eq!(entries(&mut index), 0, "{before}: nothing is left of it");
        add(&mut index, &next, &keys[..1]);
        assert_eq!(length(&mut index, &keys, &next), 1, "{before}");
        false
    });
}

/// Before any request of a removal another holder adds the same blocks: it has them all.
#[test]
fn a_removal_leaves_what_others_add() {
    at_each_request(2, |table, before| {
        let (server, keys) = (serve(table), prompt());
        let mut index = open(server.address());
        let [goes, stays] = ["goes", "stays"].map(|name| index.holder(name).unwrap());
        add(&mut index, &goes, &keys);
        let (mut count, mut is_between) = (0, false);
        let late = |late: &mut PlacementIndex| late.remove(&goes, &Digests::from(&keys[..]), 0);
        let removed = relayed(&server, late, |_| {
            if count == before {
                add(&mut index, &stays, &keys);
                is_between = true;
            }
            count += 1;
        });
        removed.unwrap();
        let expected = if is_between { BLOCKS } else { 0 };
        assert_eq!(length(&mut index, &keys, &goes), 0, "{before}");
        assert_eq!(length(&mut index, &keys, &stays), expected, "{before}");
        assert!(is_between || entries(&mut index) == 0, "blocks without a holder go");
        !is_between
    });
}

/// Before any request of a cleaning another holder adds the same blocks: it has them all, and nothing is left of the one that
/// was cleaned.
#[test]
fn cleaning_leaves_what_others_add() {
    at_each_request(5, |table, before| {
        let (server, keys) = (serve(table), prompt());
        let mut index = open(server.address());
        let [goes, stays] = ["goes", "stays"].map(|name| index.holder(name).unwrap());
        add(&mut index, &goes, &keys);
        assert!(index.drop_holder("goes").unwrap());
        let (mut count, mut is_between) = (0, false);
        let late = |late: &mut PlacementIndex| {
            let mut freed = 0;
            loop {
                let cleaned = late.clean(usize::MAX).unwrap();
                freed += cleaned.freed;
                if cleaned.is_done {
                    return freed;
                }
            }
        };
        let freed = relayed(&server, late, |_| {
            if count == before {
                add(&mut index, &stays, &keys);
                is_between = true;
            }
            count += 1;
        });
        assert_eq!(freed, 1, "{before}");
        let next = index.holder("next").unwrap();
        assert_eq!(mask(&mut index), 0b11, "the bit is given again");
        assert_eq!(length(&mut index, &keys, &next), 0, "{before}");
        assert_eq!(length(&mut index, &keys, &stays), if is_between { BLOCKS } else { 0 }, "{before}");
        !is_between
    });
}

/// Another one has cleaned the same holder, and the next one has the bit and adds blocks, before who cleans looks again at
/// what he cleans: he takes nothing of the next one's.
#[test]
fn a_late_cleaning_takes_nothing_of_the_next_holder() {
    for table in forms() {
        for before in 0.. {
            let (server, keys) = (serve(table), prompt());
            let mut index = open(server.address());
            let holder = index.holder("dead").unwrap();
            add(&mut index, &holder, &keys);
            assert!(index.drop_holder("dead").unwrap());
            let (mut count, mut next, mut has_looked) = (0, None, None);
            let late = |late: &mut PlacementIndex| late.clean(usize::MAX).map(drop);
            let cleaned = relayed(&server, late, |op| {
                if count == before {
                    while !index.clean(usize::MAX).unwrap().is_done {}
                    let holder = index.holder("next").unwrap();
                    add(&mut index, &holder, &keys);
                    next = Some(holder);
                }
                // The request behind the one for keys is that look.
                if op == SCAN {
                    has_looked.get_or_insert(count + 1);
                }
                count += 1;
            });
            cleaned.unwrap();
            let (next, has_looked) = (next.unwrap(), has_looked.unwrap_or(usize::MAX));
            assert_eq!(length(&mut index, &keys, &next), BLOCKS, "before request {before}");
            if before >= has_looked {
                break;
            }
        }
    }
}

/// A name whose parts are another's is nobody's: its holder is not told, rather than with a wrong name.
#[test]
fn a_name_of_other_parts_is_none() {
    let (server, name) = (serve(forms()[0]), "a name of more than twenty bytes");
    let mut index = open(server.address());
    let holder = index.holder(name).unwrap();
    assert_eq!(index.holders().unwrap(), [holder]);
    let parts = index.client().scan().prefix(b"#p").map(|entry| entry.unwrap().key).collect::<Vec<_>>();
    assert_eq!(parts.len(), 2);
    for part in parts {
        let before = index.client().get(&part).unwrap().unwrap();
        index.client().put(&part, &vec![b'x'; before.len()]).unwrap();
        assert!(index.holders().unwrap().is_empty());
        index.client().put(&part, &before).unwrap();
        assert_eq!(index.holders().unwrap().len(), 1);
    }
}

/// Before any request of a lookup the holder that has the prompt is dropped and cleaned, and the next one gets its bit and the
/// same prompt: each lookup tells no name what another one has. The next lookup tells it.
#[test]
fn a_lookup_tells_no_name_what_another_has() {
    at_each_request(4, |table, before| {
        let (server, keys) = (serve(table), prompt());
        let mut index = open(server.address());
        let holder = index.holder("dead").unwrap();
        add(&mut index, &holder, &keys[..9]);
        let (mut count, mut is_between) = (0, false);
        // This one knows who has the bit; its next lookup is the one that somebody comes between.
        let told = relayed(
            &server,
            |router: &mut PlacementIndex| {
                let mut found = Vec::new();
                router.match_prefix(&Digests::from(&keys[..]), &mut found).unwrap();
                let first: Vec<_> =
                    found.iter().map(|one| (one.holder.name().to_owned(), one.blocks)).collect();
                router.match_prefix(&Digests::from(&keys[..]), &mut found).unwrap();
                let second: Vec<_> =
                    found.iter().map(|one| (one.holder.name().to_owned(), one.blocks)).collect();
                [first, second]
            },
            |_| {
                if count == before {
                    let next = given_again(&mut index, &holder);
                    add(&mut index, &next, &keys);
                    is_between = true;
                }
                count += 1;
            },
        );
        for told in &told {
            for (name, blocks) in told {
                let has = if name == "dead" { 9 } else { BLOCKS };
                assert_eq!(*blocks, has, "{before}: {name}");
            }
        }
        assert!(!told[1].is_empty(), "{before}: one of both has the prompt");
        !is_between
    });
}

/// Before any request of a registration another client registers the same name: both have one holder.
#[test]
fn a_name_is_live_once() {
    at_each_request(5, |table, before| {
        let (server, keys) = (serve(table), prompt());
        let mut index = open(server.address());
        // Its bit is free only after a walk, and comes before those that are free now.
        let dead = index.holder("dead").unwrap();
        assert!(index.drop_holder(dead.name()).unwrap());
        let (mut count, mut other) = (0, None);
        let mine = relayed(
            &server,
            |late: &mut PlacementIndex| late.holder("worker").unwrap(),
            |_| {
                if count == before {
                    while !index.clean(usize::MAX).unwrap().is_done {}
                    other = Some(index.holder("worker").unwrap());
                }
                count += 1;
            },
        );
        assert_eq!(index.holders().unwrap(), std::slice::from_ref(&mine), "{before}");
        add(&mut index, &mine, &keys);
        assert!(other.as_ref().is_none_or(|other| *other == mine), "{before}");
        other.is_none()
    });
}

/// A closed holder loses its last blocks before any request of a lookup that is made block by block, too: nobody takes it for
/// one that is not closed. Returns whether that is so before each request.
fn what_is_under_way_is_no_lie(before_lookup: impl Fn() + Sync) -> bool {
    const LONG: usize = 600;
    let mut is_right = true;
    for table in forms() {
        let mut count = 0;
        for before in 0.. {
            let (server, keys) = (serve(table), chain(LONG));
            let mut index = open(server.address());
            let holder = index.holder_with("worker", Keeps::PrefixClosed).unwrap();
            add(&mut index, &holder, &keys);
            let is_last = AtomicBool::new(false);
            count = 0;
            relayed(
                &server,
                |router: &mut PlacementIndex| {
                    before_lookup();
                    let mut found = Vec::new();
                    for n in 0..64 {
                        is_last.store(n == 63, Ordering::SeqCst);
                        router.match_prefix(&Digests::from(&keys[..]), &mut found).unwrap();
                    }
                },
                |_| {
                    if is_last.load(Ordering::SeqCst) {
                        if count == before {
                            index.remove(&holder, &Digests::from(&keys[..]), 70).unwrap();
                        }
                        count += 1;
                    }
                },
            );
            is_right &= index.holders().unwrap()[0].keeps() == Keeps::PrefixClosed;
            if before >= count {
                break;
            }
        }
        assert!(count >= 4, "{count} requests");
    }
    is_right
}

#[test]
fn events_under_way_do_not_end_jumps() {
    assert!(what_is_under_way_is_no_lie(|| {}));
}

/// A difference at the first look is enough: then events under way end jumps.
#[cfg(feature = "faults")]
#[test]
fn one_look_is_not_enough() {
    use oneread_prefix::faults::{Rule, breaks};
    assert!(!what_is_under_way_is_no_lie(|| breaks(Some(Rule::LookTwice))));
}
