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
use std::sync::atomic::{AtomicBool, Ordering};
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
            && shards.iter().all(|shard| shard["copies"] == 2)
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

/// Nodes in the background, with region files, that a script starts again. They are stopped when this is dropped.
struct Background<'e> {
    etcd: &'e Etcd,
    folder: &'e Path,
    names: &'e [&'e str],
}

impl Background<'_> {
    /// Writes the script `again NAME`, which stops a node if it runs, and starts it.
    fn script(&self, stop: bool) -> String {
        let program = oneread().get_program().to_str().unwrap().to_owned();
        let (folder, etcd) = (self.folder.display(), self.etcd.endpoint());
        let stops = format!("{program} stop --at shm:{folder}/$1.sock || exit 1");
        let path = self.folder.join(if stop { "again" } else { "start" });
        let script = format!(
            "{}\nexec {program} serve --cluster demo --etcd {etcd} --node-name $1 --at shm:{folder}/$1.sock --region \
             {folder}/$1.region --max-memory 64MiB --pid-file {folder}/$1.pid --daemonize\n",
            if stop { &stops } else { "" }
        );
        std::fs::write(&path, script).unwrap();
        format!("sh {}", path.display())
    }

    fn start(&self, name: &str) {
        let started =
            Command::new("sh").args(["-c", &format!("{} {name}", self.script(false))]).output().unwrap();
        assert!(started.status.success(), "{started:?}");
    }

    fn pid(&self, name: &str) -> Option<String> {
        let pid = std::fs::read_to_string(self.folder.join(format!("{name}.pid"))).ok()?;
        Some(pid.trim().to_owned())
    }

    fn kill(&self, name: &str) {
        let pid = self.pid(name).unwrap();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }
}

impl Drop for Background<'_> {
    fn drop(&mut self) {
        for pid in self.names.iter().filter_map(|name| self.pid(name)) {
            let _ = Command::new("kill").args(["-9", &pid]).stderr(Stdio::null()).status();
        }
    }
}

/// Has threads stop, also where a test fails.
struct Stops<'s>(&'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All nodes are started again under load, one after the other. When one is killed in between, no other one is started
/// again, and that is said; when it is back, the rest of the round is made. Nothing that was acknowledged is missing.
#[test]
fn a_round_of_restarts() {
    if !has_etcd() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    ends(&etcd, &["cluster", "init", "demo", "--shards", "8", "--ttl", "1s", "--compact-etcd"], 0);
    let names = ["n0", "n1", "n2"];
    let nodes = Background { etcd: &etcd, folder: folder.path(), names: &names };
    names.iter().for_each(|name| nodes.start(name));
    let again = format!("{} {{}}", nodes.script(true));
    let pids = || names.map(|name| nodes.pid(name).unwrap());

    let mut options = ClusterOptions::default();
    options.deadline = common::SOON;
    let mut client = ClusterClient::connect("demo".parse().unwrap(), etcd.options(), options).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Stops(&stop);
        let mut putting = client.clone().exactly_once(true);
        let stop = &stop;
        let load = scope.spawn(move || {
            let mut last = 0u64;
            while !stop.load(Ordering::Relaxed) {
                last += 1;
                putting.put(format!("key:{}", last % 100).as_bytes(), &last.to_le_bytes()).unwrap();
            }
            last
        });
        let before = pids();
        let (said, _) = ends(&etcd, &["cluster", "roll", "demo", "--exec", &again], 0);
        let order: Vec<&str> = said.lines().filter(|line| line.contains("starts again")).collect();
        assert_eq!(
            order,
            names.map(|name| format!("{name}: starts again ({} of 3)", 1 + &name[1..].parse().unwrap()))
        );
        assert!(said.contains("3 nodes started again"), "{said}");
        assert!(pids().iter().zip(&before).all(|(now, before)| now != before));

        // One is killed while another one is started.
        let before = pids();
        let kills = nodes.folder.join("kills");
        std::fs::write(&kills, format!("kill -9 {}\nexec {} $1\n", before[2], nodes.script(true))).unwrap();
        let kills = format!("sh {} {{}}", kills.display());
        let round = ["cluster", "roll", "demo", "--exec", &kills, "--within", "10s"];
        let (said, complained) = ends(&etcd, &round, 1);
        assert!(said.contains("n0: starts again") && !said.contains("n1: starts"), "{said}");
        assert!(complained.contains("no other node is started again"), "{complained}");
        assert!(complained.contains("n2"), "{complained}");
        assert_eq!(pids()[1], before[1], "it was left alone");
        nodes.start("n2");
        ends(&etcd, &["cluster", "roll", "demo", "n1", "n2", "--exec", &again], 0);
        assert!(pids().iter().zip(&before).all(|(now, before)| now != before));
        // A command that fails, and one that does not say which node.
        let (_, complained) = ends(&etcd, &["cluster", "roll", "demo", "--exec", "exit 3 # {}"], 1);
        assert!(complained.contains("exit status: 3"), "{complained}");
        let (_, complained) = ends(&etcd, &["cluster", "roll", "demo", "--exec", "true"], 1);
        assert!(complained.contains("which node"), "{complained}");
        drop(stopping);
        let last = load.join().unwrap();
        for number in (1..=last).rev().take(100) {
            let value = client.get(format!("key:{}", number % 100).as_bytes()).unwrap();
            assert_eq!(value.as_deref(), Some(&number.to_le_bytes()[..]), "{number} of {last}");
        }
    });
    // A node that is gone for good is forgotten with all such.
    nodes.kill("n1");
    until("no shard names it", || {
        let (said, _) = ends(&etcd, &["cluster", "forget", "demo", "--dead"], 0);
        said.contains("is forgotten")
    });
    let told: Value =
        serde_json::from_str(&ends(&etcd, &["cluster", "status", "demo", "--json"], 0).0).unwrap();
    assert_eq!(told["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(told["etcd"]["alarms"], serde_json::json!([]));
}

/// What is told of a cluster is so: a node whose secret is another one is not good, and does not count, wherever it is looked
/// at.
#[test]
fn a_node_that_nobody_hears_is_not_good() {
    if !has_etcd() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(folder.path());
    let secret = |name: &str| {
        let path = folder.path().join(name);
        oneread_kit::write_secret(&path, name.as_bytes()).unwrap();
        path.display().to_string()
    };
    let (ours, other) = (secret("ours"), secret("other"));
    ends(&etcd, &["cluster", "init", "demo", "--shards", "4", "--ttl", "1s"], 0);
    let start = |name: &str, secret: &str| {
        let at = format!("shm:{}/{name}.sock", folder.path().display());
        let mut serve = on(&etcd, &["serve", "--cluster", "demo", "--anonymous", "--max-memory", "64MiB"]);
        serve.args(["--node-name", name, "--at", &at, "--secret-file", secret]).stdout(Stdio::null());
        Node(serve.stderr(Stdio::piped()).spawn().unwrap())
    };
    let (_first, second) = (start("a", &ours), start("b", &ours));
    let look = || -> Value {
        let status = ["cluster", "status", "demo", "--json", "--secret-file", &ours];
        serde_json::from_str(&ends(&etcd, &status, 0).0).unwrap()
    };
    let copies = |told: &Value, copies: u64| {
        told["shards"].as_array().unwrap().iter().all(|shard| shard["copies"].as_u64() == Some(copies))
    };
    until("each shard has two copies", || copies(&look(), 2));
    let mut third = start("c", &other);
    let mut lines = BufReader::new(third.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.find(|line| line.contains("not good yet")).expect("it says so");
    assert!(told.contains("another secret") && told.contains("oneread cluster status demo"), "{told}");
    until("it is not good", || {
        let told = look();
        let nodes = told["nodes"].as_array().unwrap();
        let of = |name: &str| nodes.iter().find(|node| node["name"] == name).unwrap();
        of("c")["good"] == false && of("c")["why"] == "another secret" && of("a")["good"] == true
    });
    let (said, _) = ends(&etcd, &["cluster", "nodes", "demo", "--secret-file", &ours], 0);
    let line = said.lines().find(|line| line.contains(" c ")).unwrap();
    assert!(line.contains("another secret"), "{said}");
    // No copy counts whose node does not answer. One whose only peer refuses it is not good, either.
    assert!(copies(&look(), 2));
    drop(third);
    drop(second);
    until("no copy of a lost node counts", || copies(&look(), 1));
    // The etcd of this test keeps all history.
    let told = look();
    assert!(told["etcd"]["advice"][0].as_str().unwrap().contains("--auto-compaction-retention"), "{told}");
    assert_eq!(told["etcd"]["compacted"], false);
    let (said, _) = ends(&etcd, &["doctor", "--cluster", "demo", "--json", "--secret-file", &ours], 0);
    assert!(said.contains("cluster demo") && said.contains("--auto-compaction-retention"), "{said}");
    assert!(told["etcd"]["full_in_seconds"].as_f64().unwrap() > 0.0);
}
