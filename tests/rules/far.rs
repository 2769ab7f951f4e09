//! Over TCP: what a call leaves behind that a panic has broken off, whoever calls next; keys that a server refused which is not
//! there any more; tokens, none of which is known by default.

use crate::common::*;
use crate::relay::*;
use oneread::{
    Address, Client, Config, ConnectError, ServeError, Server, ServerConfig, TableSize, TcpAddress, Token,
};
use std::io::Read;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn key(n: u32) -> [u8; 16] {
    std::array::from_fn(|i| if i < 4 { n.to_le_bytes()[i] } else { 1 })
}

fn value(n: u32) -> Vec<u8> {
    n.to_le_bytes().repeat(1 + n as usize % 20)
}

/// A callback panics while replies are on their way. Whatever is called next gets its own answer: no call before it heals
/// the connection.
#[test]
fn no_call_takes_the_replies_of_one_that_panicked() {
    const KEYS: u32 = 3_000;
    let server = serve(small());
    let mut writer = connect(&server);
    for n in 0..KEYS {
        writer.put(&key(n), &value(n)).unwrap();
    }
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    type Next = fn(&mut Client);
    let calls: [(&str, Next); 8] = [
        ("get", |client| assert_eq!(client.get(&key(2_900)).unwrap(), Some(value(2_900)))),
        ("get of none", |client| assert_eq!(client.get(b"absent").unwrap(), None)),
        ("value_len", |client| assert_eq!(client.value_len(&key(2_919)).unwrap(), Some(80))),
        ("get_range", |client| {
            let mut part = Vec::new();
            assert_eq!(client.get_range(&key(2_919), 4..8, &mut part).unwrap(), Some(80));
            assert_eq!(part, 2_919u32.to_le_bytes());
        }),
        ("get_many", |client| {
            // Others than those that are on their way.
            let keys: Vec<_> = (1_500..2_900).rev().map(key).collect();
            for (n, got) in (1_500..2_900).rev().zip(client.get_many(&keys).unwrap()) {
                assert_eq!(got.unwrap(), Some(value(n)), "{n}");
            }
        }),
        ("put", |client| assert!(client.put(b"key", b"value").is_ok())),
        ("add", |client| assert_eq!(client.add(b"count", 1, Some(0)).unwrap(), Some(1))),
        ("scan", |client| assert!(client.scan().next().unwrap().is_ok())),
    ];
    for (what, call) in calls {
        let mut client = connect(&server);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = client.get_many_with::<_, ()>(&keys, |_, _| panic!("a callback's own"));
        }));
        assert!(panicked.is_err());
        call(&mut client);
        assert_eq!(client.get(&key(1)).unwrap(), Some(value(1)), "after {what}");
    }
}

/// Keys of a batch are refused because the server's table takes none as long, but by then there is another server, whose
/// table does: they are asked for there. Each key has one answer.
#[test]
fn keys_that_were_refused_are_asked_for_again() {
    let table = |key_max| Config::new().size(TableSize::Keys(1_000)).key_max(key_max).value_max(100);
    let mut first = Some(serve(table(8)));
    let port = port_of(first.as_ref().unwrap());
    let keys: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n + 1; if n % 3 == 0 { 16 } else { 8 }]).collect();
    let mut client = connect(first.as_ref().unwrap());
    let (mut answers, mut next) = (vec![0; keys.len()], None);
    let flow = client.get_many_with::<_, ()>(&keys, |number, got| {
        // The first answer is to a key that both take.
        if let Some(server) = first.take() {
            drop(server);
            let address = Address::Tcp(TcpAddress::new("127.0.0.1", port));
            let server = start(served(&address, table(16)));
            let mut other = connect(&server);
            keys.iter().for_each(|key| assert!(other.put(key, b"there").is_ok()));
            next = Some(server);
        }
        answers[number] += 1;
        assert!(got.is_ok(), "{number}: {got:?}");
        if keys[number].len() == 16 {
            assert_eq!(got.unwrap(), Some(&b"there"[..]), "{number}");
        }
        ControlFlow::Continue(())
    });
    assert!(flow.unwrap().is_continue());
    assert_eq!(answers, vec![1; keys.len()]);
}

/// Who knows no token is let in nowhere where one is asked for: with the empty one, with a part of it, with one that is longer,
/// whether there is a token for readers or none. And where none is asked for, no other one is good.
#[test]
fn no_token_is_known_by_default() {
    let is_refused =
        |server: &Server, token: &str| match Client::connect_with(server.address(), with_token(token)) {
            Ok(_) => false,
            Err(error) => {
                assert!(matches!(error, ConnectError::Token { .. }), "{token:?}: {error}");
                true
            }
        };
    for readers in ["", "for readers"] {
        let server = start(served(&here(), small()).read_token(Token::new(readers)));
        connect(&server).put(b"key", b"value").unwrap();
        for wrong in ["", "\0", "a token for test", "a token for tests.", "A token for tests", "for reader"] {
            assert!(is_refused(&server, wrong), "{readers:?}: {wrong:?}");
        }
        assert_eq!(is_refused(&server, "for readers"), readers.is_empty());
    }
    // Zero bytes are no token to a proof: whoever asks for one so is told that it is none.
    let zeros =
        ServerConfig::new(Address::Tcp(TcpAddress::new("0.0.0.0", 0)), small()).token(Token::new([0; 9]));
    let refused = Server::start(zeros).unwrap_err();
    assert!(matches!(refused, ServeError::NoToken { .. }), "{refused}");
    let open = start(ServerConfig::new(here(), small()));
    assert!(is_refused(&open, "a token") && !is_refused(&open, ""));
}

/// A call is refused by the limits of a table that is not served any more, and the next one's are wider: what is asked for is
/// done there, at once. One that the next one refuses, too, is refused by its limits.
#[test]
fn limits_of_a_server_that_is_gone_refuse_nothing() {
    let table =
        |key_max, value_max| Config::new().size(TableSize::Keys(1_000)).key_max(key_max).value_max(value_max);
    type Call = fn(&mut Client);
    let calls: [(&str, Call); 5] = [
        ("get", |client| assert_eq!(client.get(&[1; 16]).unwrap(), Some(vec![5; 50]))),
        ("value_len", |client| assert_eq!(client.value_len(&[1; 16]).unwrap(), Some(50))),
        ("get_many", |client| {
            let got = client.get_many(&[&[1u8; 16][..], &[2; 16]]).unwrap();
            assert_eq!(got, [Ok(Some(vec![5; 50])), Ok(None)]);
        }),
        ("put of a longer key", |client| assert!(client.put(&[3; 16], b"").is_ok())),
        ("put of a longer value", |client| assert!(client.put(b"key", &[1; 80]).is_ok())),
    ];
    for (what, call) in calls {
        let server = serve(table(8, 20));
        let address = Address::Tcp(TcpAddress::new("127.0.0.1", port_of(&server)));
        let mut client = connect(&server);
        client.put(b"key", b"value").unwrap();
        drop(server);
        let server = start(served(&address, table(16, 100)));
        connect(&server).put(&[1; 16], &[5; 50]).unwrap();
        call(&mut client);
        let refused = client.get(&[1; 17]).unwrap_err().to_string();
        assert!(refused.contains("17") && refused.contains("16"), "after {what}: {refused}");
    }
}

/// The server has made a change, and the connection breaks before its reply comes: the change may be made, which is told; it is
/// not made again. The next call goes over the next connection.
#[test]
fn a_change_that_may_be_made_is_not_repeated() {
    type Change = fn(&mut Client) -> bool;
    let changes: [(&str, Change, &[u8]); 2] = [
        ("add", |client| client.add(b"key", 1, Some(0)).is_err(), &1u64.to_le_bytes()),
        ("append", |client| client.append(b"key", b"once", 100).is_err(), b"once"),
    ];
    for (what, change, expected) in changes {
        let server = serve(small());
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(TcpAddress::new("127.0.0.1", relay.local_addr().unwrap().port()));
        std::thread::scope(|scope| {
            let server = &server;
            scope.spawn(move || {
                for is_first in [true, false] {
                    let (mut client, _) = relay.accept().unwrap();
                    let mut theirs = dial(server);
                    let mut asked = 0;
                    while pass(&mut client, &mut theirs) {
                        asked += 1;
                        // It has said hello, and joined.
                        if is_first && asked == 3 {
                            theirs.read_exact(&mut [0]).unwrap();
                            break;
                        }
                        assert!(pass(&mut theirs, &mut client));
                    }
                }
            });
            let mut client = Client::connect_with(&address, with_token(TOKEN)).unwrap();
            assert!(change(&mut client), "{what}: it may be made");
            assert_eq!(client.get(b"key").unwrap().as_deref(), Some(expected), "{what}: once");
        });
    }
}

/// A batch that breaks off, a value that is not there behind a long one, or that is shorter than the last: each leaves nothing on
/// its way, and the connection goes on. Nobody need connect again for it.
#[test]
fn what_ends_early_costs_no_connection() {
    const LONG: usize = 600_000;
    let size = TableSize::Growing { bytes_max: 64 << 20, segment_slots: None };
    let server = serve(Config::new().size(size).key_max(16).value_max(LONG));
    let mut client = connect(&server);
    client.put(b"long", &[7; LONG]).unwrap();
    for n in 0..3_000 {
        client.put(&key(n), &value(n)).unwrap();
    }
    let keys: Vec<_> = (0..3_000).map(key).collect();
    let clients = server.stats().clients;
    for _ in 0..3 {
        assert_eq!(client.get(b"long").unwrap().map(|value| value.len()), Some(LONG));
        assert_eq!(client.get(b"absent").unwrap(), None);
        client.put(b"key", b"value").unwrap();
        assert_eq!(client.get(b"long").unwrap().map(|value| value.len()), Some(LONG));
        assert_eq!(client.get(&key(1)).unwrap(), Some(value(1)));
        client.put(b"key", b"value").unwrap();
        assert_eq!(client.value_len(b"long").unwrap(), Some(LONG));
        let flow = client.get_many_with(&keys, |n, _| ControlFlow::Break(n)).unwrap();
        assert!(flow.is_break());
        client.put(b"key", b"value").unwrap();
    }
    assert_eq!((client.stats().reattached, server.stats().clients), (0, clients));
}
