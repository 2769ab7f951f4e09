//! The verbs fabric on a real verbs device. Without a device these tests say so and do nothing,
//! unless ONEREAD_REQUIRE_VERBS is set. `./test` runs them in a guest with Soft-RoCE
//! (tests/soft-roce-guest).

use crate::churned;
use crate::common::*;
use crate::forged::{forged_welcomes, number_in, relay, with_field};
use crate::{TOKEN, at, options, refused};
use oneread::Token;
use oneread::internals::client::LinkError;
use oneread::internals::hints::Hints;
use oneread::internals::placement::Preset;
use oneread::internals::region::{Backing, Region};
use oneread::internals::verbs::{SetupError, VerbsError, Wait};
use oneread::{
    Address, Client, GetError, MutateError, PutMode, ServeError, Server, ServerConfig, StartMode,
    embedded::Clock, error::GidError, stats::ReadCounts,
};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::process::Command;
use std::time::{Duration, Instant};

macro_rules! needs_device {
    ($test:expr) => {
        if !is_there_a_device($test) {
            return;
        }
    };
}

/// A port at which nobody listens.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connect(address: &Address) -> Client {
    Client::connect_with(address, options()).unwrap()
}

fn table(preset: &Preset, slots: u64) -> oneread::Config {
    // Under emulation a READ takes some 100 us, and much longer when the machine is busy.
    config(preset, slots, 16, 46, 7).grace(Duration::from_millis(250))
}

fn server_config(address: &Address, preset: &Preset, slots: u64) -> ServerConfig {
    ServerConfig::new(address.clone(), table(preset, slots)).token(Token::new(TOKEN))
}

/// Starts a server in this process.
fn serve(preset: &Preset, slots: u64) -> Server {
    Server::start(server_config(&at("127.0.0.1:0"), preset, slots)).unwrap()
}

fn ours(n: u32) -> (Vec<u8>, Vec<u8>) {
    (key(n, 16), value(u64::from(n), n as usize % 47))
}

fn fill(client: &mut Client, n: u32) {
    let pairs: Vec<_> = (0..n).map(ours).collect();
    for answer in client.put_many(&pairs).unwrap() {
        answer.unwrap();
    }
}

/// Checks that every key is there with its value, one by one and in a batch.
fn check_all(client: &mut Client, n: u32) {
    let keys: Vec<_> = (0..n).map(|n| ours(n).0).collect();
    for (n, found) in client.get_many(&keys).unwrap().into_iter().enumerate() {
        assert_eq!(found, Ok(Some(ours(n as u32).1)), "key {n} in a batch");
    }
    for n in (0..n).step_by(7) {
        assert_eq!(client.get(&keys[n as usize]).unwrap(), Some(ours(n).1), "key {n}");
    }
    assert_eq!(client.get(b"nobody put this").unwrap(), None);
}

// ---- processes --------------------------------------------------------------------------------------

/// Serves as its parent says, until its input ends. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn server_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let server = Server::start(server_config(&address.parse().unwrap(), default_preset(), 4096)).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    server.stop();
}

/// Connects and GETs for ever. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn client_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let mut client = connect(&address.parse().unwrap());
    loop {
        client.get(b"key").unwrap();
    }
}

/// Starts a server in a process of its own.
fn serve_apart(port: u16) -> (Process, Address) {
    let address = at(&format!("127.0.0.1:{port}"));
    let process = Process::start("device::server_child", &[("ONEREAD_TEST_ADDRESS", address.to_string())]);
    wait_for("the server to come up", || TcpStream::connect(("127.0.0.1", port)).ok());
    (process, address)
}

// ---- what it does -----------------------------------------------------------------------------------

/// The model suite: on every preset, a served table answers as a map does.
#[test]
fn every_preset_is_a_map() {
    needs_device!("every_preset_is_a_map");
    on_every_preset(|preset| {
        let server = serve(preset, 64);
        is_a_map(&mut connect(server.address()));
    });
}

/// Both ways of waiting, and batches that need more READs than there are credits.
#[test]
fn large_batches() {
    needs_device!("large_batches");
    let server = serve(default_preset(), 20_000);
    const KEYS: u32 = 10_000;
    fill(&mut connect(server.address()), KEYS);
    for (wait, credits) in [(Wait::Poll, 1), (Wait::Poll, 7), (Wait::Block, 64), (Wait::Poll, 1 << 30)] {
        let mut options = options();
        options.verbs = options.verbs.wait(wait).credits(credits);
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let n = if credits == 1 { 500 } else { KEYS };
        check_all(&mut client, n);
        let read = client.stats().read;
        assert!(read.reads >= u64::from(n), "{read:?}");
        assert!(credits == 1 || read.doorbells * 2 < read.reads, "READs share doorbells: {read:?}");
        let queues = client.queue_counts().expect("a verbs client");
        assert_eq!((queues.reads, queues.doorbells), (read.reads, read.doorbells + queues.messages));
        assert!(queues.completions <= queues.reads + 2 * queues.messages, "{queues:?}");
        println!("{wait:?}, {credits} credits: {read:?}, {queues:?}");
    }
}

/// The main promise: clients go on reading a stopped server's table. A change ends in its deadline,
/// and is executed when the server goes on.
#[test]
fn a_stopped_server_is_read() {
    needs_device!("a_stopped_server_is_read");
    let (process, address) = serve_apart(free_port());
    let mut client = connect(&address);
    fill(&mut client, 500);
    let mut hasty = options();
    hasty.deadline = Duration::from_secs(1);
    let mut hasty = Client::connect_with(&address, hasty).unwrap();
    hasty.server_stats().unwrap();

    process.stop();
    check_all(&mut client, 500);
    // More changes than there are receives posted. None of them blocks the GETs.
    for n in 0..10 {
        let began = Instant::now();
        match hasty.put(b"late", &[n]) {
            Err(MutateError::Deadline { .. }) => {}
            other => panic!("a put to a stopped server: {other:?}"),
        }
        assert!(began.elapsed() < SOON, "its deadline was 1 s");
        check_all(&mut hasty, 50);
    }
    process.signal(Signal::CONT);
    // The changes that were sent were executed, in order. Answers that nobody waits for any more
    // are dropped.
    wait_for("the puts to be done", || client.get(b"late").unwrap());
    let put = || wait_for("the server to answer", || hasty.put(b"late", b"now").ok());
    let mut put = put;
    put();
    assert_eq!(client.get(b"late").unwrap(), Some(b"now".to_vec()));
    assert_eq!(client.stats().reattached, 0, "the connection was never lost");
}

/// A killed server is noticed in time. The same handle finds a new server at its place.
#[test]
fn a_killed_server_and_its_successor() {
    needs_device!("a_killed_server_and_its_successor");
    let port = free_port();
    let (process, address) = serve_apart(port);
    let mut bounded = options();
    bounded.deadline = Duration::from_secs(8);
    let mut client = Client::connect_with(&address, bounded).unwrap();
    fill(&mut client, 300);
    check_all(&mut client, 300);
    process.kill();
    let began = Instant::now();
    let error = client.get(&ours(1).0).expect_err("there is nobody to read from");
    assert!(matches!(error, GetError::Connect(_)), "{error}");
    assert!(error.to_string().contains("no server at 127.0.0.1"), "{error}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());

    let (_process, _) = serve_apart(port);
    assert_eq!(client.get(&ours(1).0).unwrap(), None, "a new table");
    fill(&mut client, 200);
    check_all(&mut client, 200);
    assert!(client.stats().reattached >= 1);
}

/// A server goes away in the middle of a batch. Its successor answers the rest of the batch, and no
/// key is answered twice.
#[test]
fn a_batch_survives_its_server() {
    needs_device!("a_batch_survives_its_server");
    let address = at(&format!("127.0.0.1:{}", free_port()));
    let server = Server::start(server_config(&address, default_preset(), 4096)).unwrap();
    let mut client = connect(&address);
    fill(&mut client, 2000);
    let keys: Vec<_> = (0..2000).map(|n| ours(n).0).collect();
    let mut server = Some(server);
    let mut answered = vec![0; keys.len()];
    let mut absent = 0;
    let _ = client
        .get_many_with(&keys, |n, value| {
            answered[n] += 1;
            match value.unwrap() {
                Some(value) => assert_eq!(value, ours(n as u32).1),
                None => absent += 1,
            }
            if answered.iter().sum::<i32>() == 500
                && let Some(old) = server.take()
            {
                old.stop();
                server = Some(Server::start(server_config(&address, default_preset(), 4096)).unwrap());
            }
            ControlFlow::<()>::Continue(())
        })
        .unwrap();
    assert!(answered.iter().all(|&n| n == 1), "each key once");
    assert!((100..=1500).contains(&absent), "{absent} keys were asked of the new, empty table");
    assert_eq!(client.stats().reattached, 1);
}

/// The server frees the resources of a killed client.
#[test]
fn a_killed_client_is_forgotten() {
    needs_device!("a_killed_client_is_forgotten");
    let server = serve(default_preset(), 256);
    let env = [("ONEREAD_TEST_ADDRESS", server.address().to_string())];
    let clients: Vec<_> = (0..3).map(|_| Process::start("device::client_child", &env)).collect();
    wait_for("the clients to join", || (server.stats().clients == 3).then_some(()));
    clients.into_iter().for_each(Process::kill);
    wait_for("the server to notice", || (server.stats().clients == 0).then_some(()));
    let mut client = connect(server.address());
    fill(&mut client, 50);
    check_all(&mut client, 50);
}

/// A dropped server releases everything: its port is free, and its device is closed.
#[test]
fn clients_come_and_go() {
    needs_device!("clients_come_and_go");
    let server = serve(default_preset(), 256);
    for round in 0..30 {
        let mut client = connect(server.address());
        client.put(b"round", &[round]).unwrap();
        assert_eq!(client.get(b"round").unwrap(), Some(vec![round]));
    }
    wait_for("all to be gone", || (server.stats().clients == 0).then_some(()));
}

// ---- what goes wrong --------------------------------------------------------------------------------

#[test]
fn impossible_choices_are_refused() {
    needs_device!("impossible_choices_are_refused");
    let server = serve(default_preset(), 64);
    let Address::Verbs(place) = server.address() else { panic!("not verbs") };
    let with = |query: &str| at(&format!("{}:{}?{query}", place.host(), place.port()));
    let error = refused(&with("dev=mlx9_0"), options());
    assert!(
        matches!(&error, SetupError::UnknownDevice { have, .. } if have.contains(&"rxe0".into())),
        "{error}"
    );
    assert!(matches!(refused(&with("dev=rxe0&port=2"), options()), SetupError::UnknownPort { ports: 1, .. }));
    let error = refused(&with("dev=rxe0&gid=200"), options());
    assert!(
        matches!(&error, SetupError::Gid { source: GidError::NoSuchIndex { asked: 200, exist }, .. }
            if exist.contains(&0)),
        "{error:?}"
    );
    let mut client = connect(&with("dev=rxe0&gid=1&mtu=256"));
    fill(&mut client, 30);
    check_all(&mut client, 30);
    // IPv4 here, IPv6 there.
    let error = refused(&with("dev=rxe0&gid=0"), options());
    assert!(error.to_string().contains("IPv4"), "{error}");
    let mut other = options();
    other.token = Token::new("another");
    assert!(matches!(refused(server.address(), other), SetupError::Token { .. }));
    let error = refused(&at(&format!("127.0.0.1:{}", free_port())), options());
    assert!(matches!(error, SetupError::NotThere { .. }), "{error}");
    let taken = Server::start(server_config(server.address(), default_preset(), 64)).expect_err("taken");
    assert!(matches!(taken, ServeError::Verbs(SetupError::Listen { .. })), "{taken}");
}

/// Anything may answer at the port. The client gets an error in time that names the peer.
#[test]
fn peers_that_are_no_servers() {
    needs_device!("peers_that_are_no_servers");
    let mut short = options();
    short.deadline = Duration::from_millis(700);
    let version_9 = br#"{"oneread":"verbs","version":9,"nonce":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}"#;
    let framed = |body: &[u8]| [&(body.len() as u32).to_le_bytes()[..], body].concat();
    let cases: [(&str, Vec<u8>, bool, &str); 6] = [
        ("silence", vec![], true, "did not answer within"),
        ("a hang-up", vec![], false, "hung up"),
        ("another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), true, "another service's port"),
        ("half a message", framed(version_9)[..40].to_vec(), true, "did not answer within"),
        ("half a message and a hang-up", framed(version_9)[..40].to_vec(), false, "hung up"),
        ("another version", framed(version_9), true, "version 9"),
    ];
    for (what, says, stays, expected) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = at(&listener.local_addr().unwrap().to_string());
        std::thread::scope(|scope| {
            let peer = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&says).unwrap();
                if stays {
                    let _ = stream.read(&mut [0; 4096]);
                }
            });
            let began = Instant::now();
            let error = refused(&address, short.clone());
            assert!(error.to_string().contains(expected), "{what}: {error}");
            assert!(began.elapsed() < SOON, "{what}: took {:?}", began.elapsed());
            peer.join().unwrap();
        });
    }
}

/// Clients that send garbage, or stop in the middle, cost the server only their own connection.
#[test]
fn peers_that_are_no_clients() {
    needs_device!("peers_that_are_no_clients");
    let server = serve(default_preset(), 256);
    let Address::Verbs(place) = server.address() else { panic!("not verbs") };
    let open = || TcpStream::connect((place.host(), place.port())).unwrap();
    let mut stayers = Vec::new();
    for garbage in [
        &b""[..],
        b"\xff\xff\xff\xff",
        b"\x10\0\0\0{\"version\":1",
        b"\x02\0\0\0{}",
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = open();
        stream.write_all(garbage).unwrap();
        stayers.push(stream);
    }
    let mut client = connect(server.address());
    fill(&mut client, 50);
    check_all(&mut client, 50);
    assert_eq!(server.stats().clients, 1);
    // After garbage, the server closes the connection at once or after the allowed time.
    for mut stream in stayers {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the server hangs up");
    }
}

/// A READ with a key that the server's device does not know, or beyond its region, fails by name.
/// It is never taken for an answer.
#[test]
fn a_wrong_remote_key() {
    needs_device!("a_wrong_remote_key");
    let server = serve(default_preset(), 64);
    let Address::Verbs(place) = server.address() else { panic!("not verbs") };
    for (field, by) in [("key", 0x1234_5600u64), ("address", 1 << 40)] {
        let address = relay(place, true, move |welcome| {
            let other = number_in(&welcome, field) ^ by;
            with_field(&welcome, field, &other.to_string())
        });
        let mut client = connect(&address);
        match client.get(b"key") {
            Err(GetError::ServerGone {
                source: LinkError::Verbs(VerbsError::Completion { what: "READ", status, .. }),
                ..
            }) => assert_eq!(status, "IBV_WC_REM_ACCESS_ERR", "{field}"),
            other => panic!("{field}: {other:?}"),
        }
    }
    forged_welcomes(place);
    let address = relay(place, true, |welcome| welcome);
    fill(&mut connect(&address), 5);
    let mut client = connect(server.address());
    fill(&mut client, 20);
    check_all(&mut client, 20);
}

/// A region in huge pages is read like any other.
#[test]
fn huge_pages() {
    needs_device!("huge_pages");
    let pages = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(pages).unwrap();
    if std::fs::write(pages, "16").is_err() {
        eprintln!("skipped: no huge pages can be reserved here");
        assert!(std::env::var_os("ONEREAD_REQUIRE_VERBS").is_none(), "they were required");
        return;
    }
    let config = server_config(&at("127.0.0.1:0"), default_preset(), 4096);
    let server = Server::start(config.backing(Backing::HugePages)).unwrap();
    let mut client = connect(server.address());
    fill(&mut client, 500);
    check_all(&mut client, 500);
    drop(server);
    let _ = std::fs::write(pages, before);
}

// ---- a network between two devices ------------------------------------------------------------------

fn run(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

/// Runs a command when dropped, also after a panic.
struct Undo(&'static str);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Command::new("sh").args(["-c", self.0]).status();
    }
}

/// Server on one device, client on the other. The packets cross a link.
fn across() -> Option<(Server, Address)> {
    across_with(|at| server_config(at, default_preset(), 1024))
}

/// As [`across`], for a server that is made for its address.
fn across_with(config: impl FnOnce(&Address) -> ServerConfig) -> Option<(Server, Address)> {
    if !std::path::Path::new("/sys/class/infiniband/rxe2").exists() {
        eprintln!("skipped: no second pair of devices here");
        assert!(std::env::var_os("ONEREAD_REQUIRE_VERBS").is_none(), "they were required");
        return None;
    }
    let server = Server::start(config(&at("192.168.78.1:0?dev=rxe1"))).unwrap();
    let Address::Verbs(place) = server.address() else { panic!("not verbs") };
    let address = at(&format!("{}:{}?dev=rxe2", place.host(), place.port()));
    Some((server, address))
}

/// When packets are lost, GETs take longer and are right.
#[test]
fn lost_packets() {
    needs_device!("lost_packets");
    let Some((_server, address)) = across() else { return };
    let mut client = connect(&address);
    fill(&mut client, 300);
    let _undo = Undo("tc qdisc del dev veth1 root; tc qdisc del dev veth2 root");
    run("tc qdisc add dev veth1 root netem loss 2% && tc qdisc add dev veth2 root netem loss 2%");
    check_all(&mut client, 300);
    client.put(b"through", b"the loss").unwrap();
    assert_eq!(client.get(b"through").unwrap(), Some(b"the loss".to_vec()));
    let dropped = Command::new("tc").args(["-s", "qdisc", "show", "dev", "veth1"]).output().unwrap();
    let dropped = String::from_utf8_lossy(&dropped.stdout).into_owned();
    assert!(!dropped.contains("dropped 0,"), "nothing was lost, so nothing was shown: {dropped}");
}

/// A network goes down and comes up again: an error within the deadline, then all works again.
#[test]
fn a_link_that_goes_down() {
    needs_device!("a_link_that_goes_down");
    let Some((_server, address)) = across() else { return };
    let mut bounded = options();
    bounded.deadline = Duration::from_secs(8);
    let mut client = Client::connect_with(&address, bounded).unwrap();
    fill(&mut client, 100);
    check_all(&mut client, 100);
    {
        let _undo = Undo("ip link set veth1 up");
        run("ip link set veth1 down");
        let began = Instant::now();
        let error = client.get(&ours(1).0).expect_err("the network is down");
        assert!(began.elapsed() < SOON, "{:?}: {error}", began.elapsed());
        println!("while the link is down: {error} (after {:?})", began.elapsed());
    }
    // The guest's routes disappear with the link.
    run("ip route replace 192.168.78.2 dev veth1 src 192.168.78.1 table 12");
    run("ip route replace 192.168.78.1 dev veth2 src 192.168.78.2 table 21");
    let found = wait_for("the network to come back", || client.get(&ours(1).0).ok());
    assert_eq!(found, Some(ours(1).1));
    check_all(&mut client, 100);
    assert_eq!(client.put(b"after", b"all").unwrap(), oneread::PutOutcome::Inserted);
}

/// Bytes that the server's end of the link has sent, Ethernet headers included.
fn bytes_sent() -> u64 {
    let sent = std::fs::read_to_string("/sys/class/net/veth1/statistics/tx_bytes").unwrap();
    sent.trim().parse().unwrap()
}

/// At 90 % after 2N replacements, with hints that know the keys: a hit takes at most 1.01 READs and
/// 80 bytes. In each round, the device has as much to do as a reader in this process with hints of
/// its own counts for the same table, and that number of bytes crosses the link.
#[test]
fn hits_by_hints_take_one_slot() {
    needs_device!("hits_by_hints_take_one_slot");
    let dir = tempfile::tempdir().unwrap();
    let config = churned::config(default_preset().layout, 1 << 12);
    let (backing, geometry) = (Backing::File(dir.path().join("region")), config.geometry().unwrap());
    let region = Region::create(&backing, geometry.region_bytes()).unwrap();
    let table = churned::Table::churned(region, geometry, Clock::manual(), 90);
    // The server, which takes over, finds no traces that it would write to slots for.
    table.clock.advance(Duration::from_secs(1));
    assert_eq!(table.index.tidy(), None);
    let churned::Table { index, live, .. } = table;
    drop(index);
    let start = |at: &Address| {
        let server = ServerConfig::new(at.clone(), config).token(Token::new(TOKEN));
        server.backing(backing.clone()).start(StartMode::Open)
    };
    let Some((server, address)) = across_with(start) else { return };
    let mut unhinted = options();
    unhinted.hint_bytes = Some(0);
    let [hinted, plain] =
        [options(), unhinted].map(|options| Client::connect_with(&address, options).unwrap());
    let near = Hints::new(server.index().geometry(), usize::MAX).unwrap();

    // What these READs send, with the bytes that they bring: Ethernet, IP, UDP, BTH, AETH and ICRC of each answer.
    let on_the_link = |counts: ReadCounts| counts.reads * (14 + 20 + 8 + 12 + 4 + 4) + counts.bytes;
    // Each round is one clone's, which counts from 0 and shares the hints.
    let round = |client: &Client| {
        let (mut client, mut value) = (client.clone(), Vec::new());
        let before = bytes_sent();
        for &n in &live {
            assert!(client.get_into(&churned::key(n), &mut value).unwrap() && value == [7; 32], "key {n}");
        }
        let (sent, stats) = (bytes_sent() - before, client.stats());
        assert_eq!((stats.get.gets, stats.get.hits), (live.len() as u64, live.len() as u64));
        assert!(sent >= on_the_link(stats.read), "{sent} bytes sent: {stats:?}");
        let took = churned::Took { gets: live.len() as f64, reads: stats.read, hints: stats.hints };
        (took, sent as f64 / live.len() as f64)
    };
    let tell = |what: &str, took: &churned::Took, sent: f64| {
        println!(
            "{what}: {:.4} READs, {:.2} bytes, {:.4} doorbells, {sent:.1} bytes on the link",
            took.reads(),
            took.bytes(),
            took.trips()
        );
    };
    let (took, sent) = round(&plain);
    tell("without hints", &took, sent);
    let loaded = churned::hits(&mut churned::reader(server.index(), None), &live);
    assert_eq!((took.reads, took.hints), (loaded.reads, loaded.hints));
    let mut learned = Vec::new();
    for _ in 0..6 {
        let (took, sent) = round(&hinted);
        tell("with hints", &took, sent);
        let loaded = churned::hits(&mut churned::reader(server.index(), Some(&near)), &live);
        assert_eq!((took.reads, took.hints), (loaded.reads, loaded.hints));
        learned.push((took, sent));
    }
    let learned = &learned[4..];
    assert!(learned.iter().all(|(took, _)| took.reads() <= 1.01 && took.bytes() <= 80.0), "{learned:?}");
    assert_eq!(hinted.hint_bytes(), 1 << 12, "a byte for each slot");
    // A busy machine sends packets again, and now and then something else crosses the link.
    let (took, sent) = learned.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let counted = on_the_link(took.reads) as f64 / took.gets;
    assert!(*sent <= 1.02 * counted, "{sent} bytes a hit crossed the link, of which {counted} are READs'");

    // A batch reads the same slots, and its READs share doorbells.
    let (mut client, keys) = (hinted.clone(), live.iter().map(|&n| churned::key(n)).collect::<Vec<_>>());
    let found = client.get_many(&keys).unwrap();
    assert!(found.iter().all(|value| matches!(value, Ok(Some(value)) if value[..] == [7; 32])));
    let read = client.stats().read;
    println!("a batch of them all: {read:?}");
    assert!(read.reads as f64 <= 1.01 * took.gets && read.bytes as f64 <= 80.0 * took.gets, "{read:?}");
    assert!(read.doorbells * 2 < read.reads, "{read:?}");
}

/// The mode of a put reaches the server, and a full table says so.
#[test]
fn put_modes_and_full_tables() {
    needs_device!("put_modes_and_full_tables");
    let server = serve(default_preset(), 16);
    let mut client = connect(server.address());
    let mut full = false;
    for n in 0..64 {
        let (k, v) = ours(n);
        full |= Target::put(&mut client, &k, &v, PutMode::Insert).is_err();
    }
    assert!(full, "a table of 16 slots took 64 keys");
    let error = client.put(&[7; 17], b"v").expect_err("too long a key");
    assert!(matches!(error, MutateError::KeyLength { given: 17, max: 16 }), "{error}");
}
