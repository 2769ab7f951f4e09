//! GETs and changes by the server over a real device, as messages and HERD's way. Server and client
//! are two processes. Without a device these tests say so and do nothing, as in `tests/verbs/device.rs`.

use crate::common::{SOON, is_there_a_device, patient, wait_for};
use oneread::internals::verbs::SetupError;
use oneread::{Address, Client, ConnectError, GetError, PutOutcome, RequestPath};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server in a process of its own.
struct Server {
    child: Child,
    address: Address,
}

impl Server {
    fn start(at: &str, arguments: &[&str]) -> Server {
        let mut child = crate::command::oneread()
            .args(["serve", "--anonymous", "--no-token", "--die-with-parent", "--json", "--capacity=5000"])
            .args(["--key-max=40", "--value-max=100", "--at", at])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect("a server that is ready");
        Server { child, address: ready["address"].as_str().unwrap().parse().unwrap() }
    }

    /// The server's address by another of this machine's devices.
    fn by(&self, device: &str) -> Address {
        let place = self.address.to_string();
        let place = place.split('?').next().unwrap();
        format!("{place}?dev={device}").parse().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn try_connect(address: &Address, requests: RequestPath) -> Result<Client, ConnectError> {
    let options = patient().requests(requests);
    Client::connect_with(address, options)
}

fn connect(address: &Address, requests: RequestPath) -> Client {
    try_connect(address, requests).unwrap()
}

/// One-sided GETs, messages and HERD's way give the same answers: for present, absent and removed
/// keys, and for the longest keys and values. For longer ones they give the same errors.
#[test]
fn all_ways_agree() {
    if !is_there_a_device("all_ways_agree") {
        return;
    }
    let server = Server::start("verbs://127.0.0.1:0", &["--herd"]);
    let mut message = connect(&server.address, RequestPath::Message);
    let mut herd = connect(&server.address, RequestPath::HERD);
    let keys: Vec<Vec<u8>> = (0u8..60).map(|n| vec![n + 1; 1 + usize::from(n) % 40]).collect();
    for (n, key) in keys.iter().enumerate() {
        let writer = if n % 2 == 0 { &mut message } else { &mut herd };
        match n % 3 {
            0 => {}
            _ => assert_eq!(writer.put(key, &vec![n as u8; n * 100 / 59]).unwrap(), PutOutcome::Inserted),
        }
    }
    assert!(herd.remove(&keys[1]).unwrap() && message.remove(&keys[2]).unwrap());
    assert!(!herd.remove(&keys[2]).unwrap());
    let mut found = 0;
    for key in &keys {
        let one_sided = message.get(key).unwrap();
        found += u32::from(one_sided.is_some());
        assert_eq!(message.get_two_sided(key).unwrap(), one_sided, "as a message: {key:?}");
        assert_eq!(herd.get_two_sided(key).unwrap(), one_sided, "HERD's way: {key:?}");
    }
    assert_eq!(found, 38);
    assert_eq!(herd.stats().read.reads, 0, "the server looks up, nobody READs");
    assert_eq!(herd.server_stats().unwrap().keys, 38);
    for client in [&mut message, &mut herd] {
        let error = client.get_two_sided(&[1; 41]).unwrap_err();
        assert!(matches!(error, GetError::KeyLength { given: 41, max: 40 }), "{error}");
    }
}

/// Four requests are in flight. Answers come in the order of the requests, and of two puts of one
/// key the later one stays.
#[test]
fn many_at_once() {
    if !is_there_a_device("many_at_once") {
        return;
    }
    let server = Server::start("verbs://127.0.0.1:0", &["--herd", "--workers=2"]);
    let mut herd = connect(&server.address, RequestPath::HERD);
    let pairs: Vec<_> = (0..1200u32).map(|n| ((n / 3).to_le_bytes(), n.to_le_bytes())).collect();
    for (n, answer) in herd.put_many(&pairs).unwrap().into_iter().enumerate() {
        assert_eq!(answer.unwrap(), if n % 3 == 0 { PutOutcome::Inserted } else { PutOutcome::Updated });
    }
    for n in 0..400u32 {
        assert_eq!(herd.get_two_sided(&n.to_le_bytes()).unwrap().unwrap(), (3 * n + 2).to_le_bytes());
        assert_eq!(herd.get(&n.to_le_bytes()).unwrap().unwrap(), (3 * n + 2).to_le_bytes());
    }
}

/// Makes both ends of the guest's pair of devices lose one packet in ten until it is dropped.
struct Loss;

impl Loss {
    fn begin() -> Loss {
        let _ = Command::new("modprobe").arg("sch_netem").status();
        for end in ["veth1", "veth2"] {
            assert!(
                tc(&format!("qdisc add dev {end} root netem loss 10%")),
                "no packets can be lost at {end}"
            );
        }
        Loss
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        for end in ["veth1", "veth2"] {
            tc(&format!("qdisc del dev {end} root"));
        }
    }
}

fn tc(arguments: &str) -> bool {
    Command::new("tc").args(arguments.split(' ')).status().is_ok_and(|done| done.success())
}

/// The network loses one packet in ten, requests and replies alike. An insert that was executed
/// twice would report that the key exists.
#[test]
fn lost_packets() {
    if !is_there_a_device("lost_packets") {
        return;
    }
    if !std::path::Path::new("/sys/class/infiniband/rxe2").exists() {
        return eprintln!("skipped lost_packets: it needs the two devices of tests/soft-roce-guest");
    }
    let server = Server::start("verbs://192.168.78.2:0?dev=rxe2", &["--herd", "--workers=2"]);
    let mut herd = connect(&server.by("rxe1"), RequestPath::HERD);
    let loss = Loss::begin();
    let mut inserts = 0;
    for n in 0..150u32 {
        assert_eq!(herd.insert(&n.to_le_bytes(), &[n as u8; 50]).unwrap(), PutOutcome::Inserted, "key {n}");
        assert_eq!(herd.get_two_sided(&n.to_le_bytes()).unwrap().unwrap(), [n as u8; 50]);
        inserts += 1;
    }
    drop(loss);
    let repeats = herd.queue_counts().unwrap().repeats;
    assert!(repeats >= 10, "only {repeats} repeats: was anything lost?");
    assert_eq!(herd.stats().reattached, 0, "what was lost was repeated on the same connection");
    let stats = herd.server_stats().unwrap();
    assert_eq!((stats.inserts, stats.keys), (inserts, inserts));
}

/// The server is killed: the client soon gets a typed error. It comes back: the client goes on. It
/// comes back without HERD: the error says so.
#[test]
fn server_gone_and_back() {
    if !is_there_a_device("server_gone_and_back") {
        return;
    }
    let mut server = Server::start("verbs://127.0.0.1:0", &["--herd"]);
    let address = server.address.clone();
    let options = patient().deadline(Duration::from_secs(8)).requests(RequestPath::HERD);
    let mut herd = Client::connect_with(&address, options).unwrap();
    herd.put(b"key", b"before").unwrap();
    server.kill();
    let begun = Instant::now();
    let error = herd.get_two_sided(b"key").unwrap_err();
    let is_typed = matches!(
        error,
        GetError::ServerGone { .. } | GetError::Connect(ConnectError::Verbs(SetupError::NotThere { .. }))
    );
    assert!(is_typed, "{error:?}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());

    let mut server = Server::start(&address.to_string(), &["--herd"]);
    assert_eq!(herd.get_two_sided(b"key").unwrap(), None, "a new server has a new table");
    herd.put(b"key", b"after").unwrap();
    assert_eq!(herd.get_two_sided(b"key").unwrap().unwrap(), b"after");
    server.kill();

    let _server = Server::start(&address.to_string(), &[]);
    let mut ended = herd.get_two_sided(b"key");
    if matches!(ended, Err(GetError::ServerGone { .. })) {
        ended = herd.get_two_sided(b"key");
    }
    let error = ended.unwrap_err();
    let is_herd = matches!(error, GetError::Connect(ConnectError::Verbs(SetupError::Extension { .. })));
    assert!(is_herd && error.to_string().contains("ServerConfig::herd"), "{error}");
    let error = try_connect(&address, RequestPath::HERD).unwrap_err();
    assert!(matches!(error, ConnectError::Verbs(SetupError::Extension { .. })), "{error}");
    assert_eq!(connect(&address, RequestPath::Message).get_two_sided(b"key").unwrap(), None);
}

/// Clients come and go, several at a time. The areas of those that are gone do not disturb the
/// others.
#[test]
fn clients_come_and_go() {
    if !is_there_a_device("clients_come_and_go") {
        return;
    }
    let server = Server::start("verbs://127.0.0.1:0", &["--herd"]);
    let first = connect(&server.address, RequestPath::HERD);
    for round in 0..5u32 {
        std::thread::scope(|scope| {
            for number in 0..4u32 {
                let mut client = first.clone();
                scope.spawn(move || {
                    for n in 0..20u32 {
                        let (key, value) = ([number, n].map(u32::to_le_bytes).concat(), round.to_le_bytes());
                        client.put(&key, &value).unwrap();
                        assert_eq!(client.get_two_sided(&key).unwrap().unwrap(), value);
                    }
                });
            }
        });
    }
    let mut last = connect(&server.address, RequestPath::Message);
    let are_gone = |last: &mut Client| last.server_stats().unwrap().clients <= 2;
    wait_for("those that are gone to be forgotten", || are_gone(&mut last).then_some(()));
    assert_eq!(last.server_stats().unwrap().keys, 80);
}
