//! `oneread cluster`: an etcd, and nodes that are processes.

mod command;
#[path = "../../cluster/tests/common/mod.rs"]
mod common;

use command::oneread;
use common::{Etcd, free_port, has_etcd, until};
use oneread::OwnerOptions;
use oneread_cluster::client::{ClusterClient, ClusterOptions};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

/// A node's process. It is killed when this is dropped.
struct Node(Child);

impl Node {
    fn start(etcd: &Etcd, folder: &Path, name: &str, metrics: u16) -> Node {
        let at = format!("shm:{}/{name}.sock", folder.display());
        let mut serve =
            on(etcd, &["serve", "--cluster", "demo", "--anonymous", "--max-memory", "64MiB", "--life"]);
        serve.args(["--node-name", name, "--at", &at]).stdout(Stdio::null()).stderr(Stdio::null());
        serve.args(["--metrics", &format!("127.0.0.1:{metrics}")]);
        Node(serve.spawn().unwrap())
    }
}

/// What a command prints, line by line, until this is dropped.
struct Lines {
    lines: mpsc::Receiver<String>,
    _process: Node,
}

impl Lines {
    fn of(mut command: Command) -> Lines {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Lines { lines, _process: Node(child) }
    }

    #[track_caller]
    fn next(&mut self) -> String {
        self.lines.recv_timeout(common::SOON).expect("a line is printed")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn on(etcd: &Etcd, words: &[&str]) -> Command {
    let mut command = oneread();
    command.args(words).args(["--etcd", &etcd.endpoint()]).stdin(Stdio::null());
    command
}

/// What a command prints, which ends with this status.
#[track_caller]
fn ends(etcd: &Etcd, words: &[&str], status: i32) -> (String, String) {
    let Output { status: with, stdout, stderr } = on(etcd, words).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!(with.code(), Some(status), "{words:?}: {stdout}\n{stderr}");
    (stdout, stderr)
}

/// All keys of a prefix, and then their changes, as text; every change as JSON.
fn watched(etcd: &Etcd, users: &[(String, String)]) {
    let mut texts = Lines::of(on(etcd, &["cluster", "watch", "demo", "user:", "--keys", "--values"]));
    let (mut shown, mut line) = (BTreeSet::new(), texts.next());
    // Some perhaps twice, where a shard moves meanwhile.
    while line != "-\tjoined" {
        let (place, rest) = line.split_once('\t').unwrap();
        assert!(place.ends_with("/-/-"), "{line}");
        shown.insert(rest.to_owned());
        line = texts.next();
    }
    assert_eq!(shown, users.iter().map(|(key, value)| format!("key\t{key}\t{value}")).collect());
    let mut objects = Lines::of(on(etcd, &["cluster", "watch", "demo", "--json"]));
    let mut changes = Vec::new();
    // It follows from some moment on.
    until("a change is told", || {
        ends(etcd, &["cluster", "put", "demo", "first", "value"], 0);
        changes.extend(objects.lines.try_iter());
        !changes.is_empty()
    });
    assert_eq!(ends(etcd, &["cluster", "put", "demo", "user:0", "another"], 0).0, "put\n");
    assert_eq!(ends(etcd, &["cluster", "del", "demo", "user:0"], 0).0, "removed 1\n");
    let (said, complained) = ends(etcd, &["cluster", "del", "demo", "user:0"], 1);
    assert!(said == "removed 0\n" && complained.contains("there is no key"), "{said}{complained}");
    ends(etcd, &["cluster", "put", "demo", "user:9", "new"], 0);
    let mut told = || loop {
        let object: Value = serde_json::from_str(&objects.next()).unwrap();
        if object["key"] != "first" {
            assert!(object["shard"].as_u64().unwrap() < 4 && object["epoch"].as_u64().unwrap() > 0);
            return (object["change"].clone(), object["key"].clone(), object["cause"].clone());
        }
    };
    // Of two keys, in any order.
    let mut all = [told(), told(), told()].map(|(change, key, cause)| format!("{change} {key} {cause}"));
    all.sort_by_key(|line| line.contains("came"));
    assert_eq!(
        all,
        [r#""replaced" "user:0" null"#, r#""left" "user:0" "removed""#, r#""came" "user:9" null"#]
    );
    let mut lines = [texts.next(), texts.next(), texts.next()].map(|line| {
        let (place, rest) = line.split_once('\t').unwrap();
        assert_eq!(place.split('/').filter(|part| part.parse::<u64>().is_ok()).count(), 3, "{line}");
        rest.to_owned()
    });
    lines.sort_by_key(|line| line.contains("came"));
    assert_eq!(lines, ["replaced\tuser:0\tanother", "left\tremoved\tuser:0", "came\tuser:9\tnew"]);
    // It ends by itself. Only as it is asked.
    for (mode, ttl, says, status) in
        [("--update", "1h", "missing\n", 1), ("--insert", "200ms", "inserted\n", 0)]
    {
        let words = ["cluster", "put", "demo", "user:10", "soon", mode, "--ttl", ttl];
        assert_eq!(ends(etcd, &words, status).0, says);
    }
    let lines = [texts.next(), texts.next()].map(|line| line.split_once('\t').unwrap().1.to_owned());
    assert_eq!(lines, ["came\tuser:10\tsoon", "left\texpired\tuser:10"]);
    let told: Value =
        serde_json::from_str(&ends(etcd, &["cluster", "status", "demo", "--json"], 0).0).unwrap();
    let expired = told["nodes"].as_array().unwrap().iter().map(|node| node["expired"].as_u64().unwrap());
    assert_eq!(expired.sum::<u64>(), 1);
    assert_eq!(ends(etcd, &["cluster", "remove-owner", "demo", "7"], 1).0, "absent\n");
    let client =
        ClusterClient::connect("demo".parse().unwrap(), etcd.options(), ClusterOptions::default()).unwrap();
    let mut owner = client.owner(OwnerOptions::new(7)).unwrap();
    owner.put(b"owned", b"7's").unwrap();
    assert_eq!(ends(etcd, &["cluster", "remove-owner", "demo", "7"], 0).0, "removed\n");
    for key in ["first", "user:9"] {
        ends(etcd, &["cluster", "del", "demo", key], 0);
    }
}

/// What Prometheus hears of nodes, and that the alerts are about it.
fn scraped(ports: &[u16]) {
    let scrape = |port: u16| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let texts: Vec<String> = ports.iter().map(|port| scrape(*port)).collect();
    let value = |text: &String, name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    };
    let sum = |name: &str| texts.iter().map(|text| value(text, name)).sum::<f64>();
    let shards = [r#"{role="primary"}"#, r#"{role="standby"}"#];
    assert_eq!(shards.map(|role| sum(&format!("oneread_cluster_shards{role}"))), [4.0, 4.0]);
    assert_eq!(["good", "missing_copies"].map(|name| sum(&format!("oneread_cluster_{name}"))), [2.0, 0.0]);
    assert_eq!(["expired", "evicted"].map(|name| sum(&format!("oneread_cluster_{name}_total"))), [2.0, 0.0]);
    assert!(sum("oneread_cluster_used_bytes") > 0.0 && sum("oneread_cluster_room_left_bytes") > 1e6);
    let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/alerts.yml");
    let alerts = std::fs::read_to_string(alerts).unwrap();
    let words = alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("oneread_cluster_")).collect();
    assert!(named.len() >= 4, "{named:?}");
    for name in named {
        let is_there = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        assert!(texts[0].lines().any(is_there), "{name}: {}", texts[0]);
    }
}

/// Each key of all shards once, and not again from its other copy: all, those that match, some; with values; as text, as
/// JSON. With the nodes gone, the error says what is missing, and what to look at.
#[test]
fn scan_and_watch() {
    if !has_etcd() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    ends(&etcd, &["cluster", "init", "demo", "--shards", "4", "--ttl", "1s"], 0);
    let ports = [free_port(), free_port()];
    let nodes = [("a", ports[0]), ("b", ports[1])];
    let nodes = nodes.map(|(name, metrics)| Node::start(&etcd, folder.path(), name, metrics));
    let has_copies = || {
        let told: Value =
            serde_json::from_str(&ends(&etcd, &["cluster", "status", "demo", "--json"], 0).0).unwrap();
        let shards = told["shards"].as_array().unwrap();
        shards.len() == 4
            && shards.iter().all(|shard| shard["in_sync"].as_array().is_some_and(|of| of.len() == 2))
    };
    until("each shard has two copies", has_copies);
    let users: Vec<_> = (0..8).map(|n| (format!("user:{n}"), format!("value {n}"))).collect();
    let odd = ("a\tb".to_owned(), "two\nlines".to_owned());
    for (key, value) in users.iter().chain([&odd]) {
        ends(&etcd, &["cluster", "put", "demo", key, value], 0);
    }

    let printed = |options: &[&str]| {
        let (out, told) = ends(&etcd, &[&["cluster", "scan", "demo"], options].concat(), 0);
        assert_eq!(told, "", "{options:?}");
        (out.lines().map(str::to_owned).collect::<BTreeSet<_>>(), out.lines().count())
    };
    // Perhaps again where a shard goes to the node that is first for it, and not for its other copy.
    until("each key is shown once", || printed(&[]).1 == users.len() + 1);
    let scanned = |options: &[&str]| printed(options).0;
    let all: BTreeSet<_> = users.iter().map(|(key, _)| key.clone()).chain([r"a\tb".into()]).collect();
    assert_eq!(scanned(&[]), all);
    let is_user: BTreeSet<_> = users.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(scanned(&["--prefix", "user:"]), is_user);
    assert_eq!(scanned(&["--match", "user:[1-3]"]), ["user:1", "user:2", "user:3"].map(str::to_owned).into());
    assert_eq!(scanned(&["--match", "*:2", "--values"]), ["user:2\tvalue 2".to_owned()].into());
    assert_eq!(scanned(&["--prefix", "a", "--values"]), [r"a\tb	two\nlines".to_owned()].into());
    // No pattern: nothing begins so.
    assert!(
        scanned(&["--prefix", "user:*"]).is_empty() && scanned(&["--prefix", &"x".repeat(300)]).is_empty()
    );
    let (some, count) = printed(&["--prefix", "user:", "--limit", "3"]);
    assert!(count == 3 && some.is_subset(&is_user), "{some:?}");
    assert!(scanned(&["--limit", "0"]).is_empty());
    let object = scanned(&["--prefix", "a", "--json", "--values"]).pop_first().unwrap();
    let object: Value = serde_json::from_str(&object).unwrap();
    assert_eq!(object, serde_json::json!({"key": odd.0, "value": odd.1}));
    assert_eq!(scanned(&["--match", "a*", "--json"]), [r#"{"key":"a\tb"}"#.to_owned()].into());

    let (_, told) = ends(&etcd, &["cluster", "scan", "demo", "--match", "a["], 1);
    assert!(told.contains("without a ]"), "{told}");
    let (_, told) = ends(&etcd, &["cluster", "scan", "demo", "--prefix", "a", "--match", "b"], 2);
    assert!(told.contains("cannot be used with"), "{told}");
    let (_, told) = ends(&etcd, &["cluster", "scan", "nobody"], 1);
    assert!(told.contains("oneread cluster init nobody"), "{told}");
    watched(&etcd, &users);
    scraped(&ports);
    drop(nodes);
    let (out, told) = ends(&etcd, &["cluster", "scan", "demo"], 1);
    assert_eq!(out, "");
    for part in ["could not be read", "not all keys were printed", "`oneread cluster status demo`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}
