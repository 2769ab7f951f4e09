//! What a server tells Prometheus: true figures, with names, types and meanings as its conventions ask for.

use crate::served::{SOON, Served, expect, feed, json, run, run_with_input, stderr, stdout, wait_for};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The address in what a server says of its metrics.
fn scraped_at(url: &Value) -> SocketAddr {
    let url = url.as_str().unwrap();
    url.strip_prefix("http://").and_then(|url| url.strip_suffix("/metrics")).unwrap().parse().unwrap()
}

/// What is answered to a request: status line with headers, and body.
fn ask(at: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// A scrape, as its series and the lines about them.
#[derive(Debug, Default)]
struct Scrape {
    /// By name and labels, as they stand there.
    series: BTreeMap<String, f64>,
    help: BTreeMap<String, String>,
    types: BTreeMap<String, String>,
}

impl Scrape {
    fn of(at: SocketAddr) -> Scrape {
        let (head, body) = ask(at, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{head}");
        let mut scrape = Scrape::default();
        for line in body.lines().filter(|line| !line.is_empty()) {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                assert!(scrape.help.insert(name.into(), help.into()).is_none(), "twice: {line}");
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            {
                assert!(scrape.types.insert(name.into(), kind.into()).is_none(), "twice: {line}");
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
                assert!(scrape.series.insert(series.into(), value).is_none(), "twice: {line}");
            }
        }
        scrape
    }

    #[track_caller]
    fn get(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("no {series} in {self:#?}"))
    }

    /// Those of series; a histogram has several, which begin with its name.
    fn names(&self) -> BTreeSet<&str> {
        let name = |series: &'_ str| series.split('{').next().unwrap().len();
        let whole = |name: &'_ str| {
            let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            parts.filter(|name| self.types.get(*name).is_some_and(|kind| kind == "histogram")).map(str::len)
        };
        let names = self.series.keys().map(|series| &series[..name(series)]);
        names.map(|name| &name[..whole(name).unwrap_or(name.len())]).collect()
    }

    /// Each has a meaning and a type. Its name begins with the program's, and ends with the unit if it has one, and
    /// with `_total` if it only grows.
    fn keeps_the_conventions(&self) {
        let described: BTreeSet<&str> = self.help.keys().map(String::as_str).collect();
        let typed: BTreeSet<&str> = self.types.keys().map(String::as_str).collect();
        assert_eq!((&self.names(), &self.names()), (&described, &typed));
        for (name, kind) in &self.types {
            assert!(matches!(&kind[..], "counter" | "gauge" | "histogram"), "{name}: {kind}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}: {kind}");
            let is_lower = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.starts_with("oneread_") && name.chars().all(is_lower), "{name}");
            let help = self.help[name].to_lowercase();
            for (word, unit) in [("byte", "bytes"), ("time between", "seconds"), ("how long", "seconds")] {
                let unit_stands = name.trim_end_matches("_total").ends_with(unit);
                assert!(!help.starts_with(word) || unit_stands, "{name}: {help}");
            }
            assert!(!name.contains("_ms") && !name.contains("_ppm") && !name.contains("percent"), "{name}");
            assert!(help.ends_with('.'), "{name}: {help}");
        }
        assert!(self.series.len() < 110, "{} series", self.series.len());
    }
}

/// Figures are those that the server's own counters have, after each change.
#[test]
fn metrics_are_true() {
    let served = Served::start(&["--metrics", "127.0.0.1:0", "--anonymous", "--max-memory", "64MiB"]);
    let at = scraped_at(&served.ready["metrics"]);
    assert_eq!(at.ip().to_string(), "127.0.0.1");
    let empty = Scrape::of(at);
    empty.keeps_the_conventions();
    for series in ["oneread_keys", "oneread_inserts_total", "oneread_takeovers_total", "oneread_connections"]
    {
        assert_eq!(empty.get(series), 0.0, "{series}");
    }

    let records: String = (0..30_000).map(|n| format!("key{n}\t{n}\n")).collect();
    let arguments = ["load", "-", "--at", &served.at];
    expect(run_with_input(&arguments, records.as_bytes()), 0);
    for n in ["key1", "key2", "key3"] {
        expect(served.run(&["del", n]), 0);
    }
    expect(served.run(&["put", "key4", "other"]), 0);
    expect(run_with_input(&["put", "long", "-", "--at", &served.at], &[b'v'; 100_000]), 0);
    // None of these changes anything.
    for _ in 0..2 {
        expect(served.run(&["put", &"k".repeat(256), "v"]), 1);
    }

    let told = json(&expect(served.run(&["stat", "--json"]), 0));
    let scrape = Scrape::of(at);
    scrape.keeps_the_conventions();
    assert_eq!(scrape.names(), empty.names());
    assert_eq!(scrape.get("oneread_keys"), 29_998.0);
    assert_eq!(scrape.get("oneread_inserts_total"), 30_001.0);
    assert_eq!(scrape.get("oneread_updates_total"), 1.0);
    assert_eq!(scrape.get("oneread_removes_total"), 3.0);
    assert_eq!(scrape.get("oneread_heap_values"), 1.0);
    assert!((100_000.0..120_000.0).contains(&scrape.get("oneread_heap_live_bytes")));
    assert_eq!(scrape.get("oneread_load_ratio"), scrape.get("oneread_keys") / scrape.get("oneread_slots"));
    let (backed, most) = (scrape.get("oneread_memory_bytes"), scrape.get("oneread_memory_limit_bytes"));
    assert!(backed > 1e6 && backed < most && most <= f64::from(64 << 20), "{backed} of {most}");
    assert!(scrape.get("oneread_segments") > 1.0 && scrape.get("oneread_splits_total") > 0.0);
    for (part, field, series) in [
        ("server", "slots", "oneread_slots"),
        ("server", "keys", "oneread_keys"),
        ("server", "updates", "oneread_updates_total"),
        ("growth", "segments_max", "oneread_segments_limit"),
        ("growth", "memory_refused", "oneread_memory_refused_total"),
        ("growth", "merges", "oneread_merges_total"),
        ("heap", "heap_bytes", "oneread_heap_limit_bytes"),
        ("heap", "live_bytes", "oneread_heap_live_bytes"),
    ] {
        assert_eq!(told[part][field].as_f64(), Some(scrape.get(series)), "{series}");
    }
    assert!(!scrape.names().iter().any(|name| name.contains("snapshot")), "it makes none");
    // Each put by a client counts: 30,000 and two, and the two that were refused before they were sent do not.
    assert_eq!(scrape.get("oneread_put_seconds_count"), 30_002.0);
    assert_eq!(scrape.get("oneread_put_seconds_bucket{le=\"+Inf\"}"), 30_002.0);
    let mean = scrape.get("oneread_put_seconds_sum") / 30_002.0;
    assert!((1e-8..1.0).contains(&mean), "{mean}");
}

/// What ends is counted when it goes; what a follower missed, when it asks.
#[test]
fn ends_and_gaps_are_counted() {
    use oneread::{Client, FeedFrom, FeedItem, FeedOptions, PutOptions};
    let options =
        ["--anonymous", "--slots", "6400", "--life", "--feed-max", "4KiB", "--metrics", "127.0.0.1:0"];
    let served = Served::start(&options);
    let at = scraped_at(&served.ready["metrics"]);
    let mut client = Client::connect(&served.at.parse().unwrap()).unwrap();
    let from = FeedOptions::new().from(FeedFrom::Now);
    let mut changes = client.clone().changes(from).unwrap();
    assert!(changes.next(Duration::ZERO).unwrap().is_none());
    assert_eq!(Scrape::of(at).get("oneread_feed_gaps_total"), 0.0);
    for n in 0..1_000u32 {
        let options = PutOptions::new().ttl(Duration::from_millis(1));
        client.put_with(&n.to_le_bytes(), b"value", options).unwrap();
    }
    let gap = changes.next(SOON).unwrap();
    assert!(matches!(gap, Some(FeedItem::Gap { .. })), "{gap:?}");
    let scrape = Scrape::of(at);
    assert!(scrape.get("oneread_feed_gaps_total") >= 1.0 && scrape.get("oneread_feed_lag_changes") > 100.0);
    wait_for("the end of each", || {
        let scrape = Scrape::of(at);
        let is_quiet = scrape.get("oneread_expiry_lag_seconds") == 0.0;
        (scrape.get("oneread_expired_total") == 1_000.0 && is_quiet).then_some(())
    });
}

/// Refusals have their causes, of a table of one size and without a heap, which has no figures of these.
#[test]
fn refusals_are_counted_by_cause() {
    let options =
        ["--anonymous", "--slots", "64", "--key-max", "16", "--value-max", "20", "--metrics", "[::1]:0"];
    // Some machines have no IPv6.
    let options = match TcpListener::bind("[::1]:0") {
        Ok(_) => options,
        Err(_) => options.map(|option| if option == "[::1]:0" { "127.0.0.1:0" } else { option }),
    };
    let served = Served::start(&options);
    let at = scraped_at(&served.ready["metrics"]);
    let full = "oneread_changes_refused_total{cause=\"full\"}";
    assert_eq!(Scrape::of(at).get(full), 0.0, "a counter is there before it counts");
    let mut refused = 0;
    for n in 0..80 {
        refused += i32::from(!served.run(&["put", &format!("key{n}"), "v"]).status.success());
    }
    let scrape = Scrape::of(at);
    scrape.keeps_the_conventions();
    assert!(refused >= 16, "{refused}");
    assert_eq!(scrape.get(full), f64::from(refused));
    assert_eq!(scrape.get("oneread_keys"), f64::from(80 - refused));
    let causes = scrape.series.iter().filter(|(series, _)| series.starts_with("oneread_changes_refused"));
    assert_eq!(causes.map(|(_, count)| count).sum::<f64>(), f64::from(refused), "none counts twice");
    let others = |name: &&&str| name.starts_with("oneread_heap") || name.starts_with("oneread_segment");
    assert_eq!(scrape.names().iter().find(others), None);
}

/// Takeovers and snapshots are told, and a connection while it is there.
#[test]
fn takeovers_snapshots_and_connections_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (region, snapshot) = (dir.path().join("region"), dir.path().join("snap"));
    let (region, snapshot) = (region.to_str().unwrap(), snapshot.to_str().unwrap());
    let options = ["--region", region, "--slots", "640", "--metrics", "127.0.0.1:0", "--snapshot", snapshot];
    let mut first = Served::start(&options);
    let scrape = Scrape::of(scraped_at(&first.ready["metrics"]));
    assert_eq!(scrape.get("oneread_snapshot_last_timestamp_seconds"), 0.0);
    expect(first.run(&["put", "k", "v"]), 0);
    first.signal(rustix::process::Signal::TERM);
    assert!(first.child.wait().unwrap().success());

    let second = Served::start(&[&options[..], &["--snapshot-every", "90s"]].concat());
    let at = scraped_at(&second.ready["metrics"]);
    expect(second.run(&["snapshot"]), 0);
    let scrape = Scrape::of(at);
    scrape.keeps_the_conventions();
    assert_eq!(scrape.get("oneread_takeovers_total"), 1.0);
    assert_eq!(scrape.get("oneread_keys"), 1.0);
    assert_eq!(scrape.get("oneread_snapshot_interval_seconds"), 90.0);
    assert_eq!(scrape.get("oneread_snapshot_last_keys"), 1.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - scrape.get("oneread_snapshot_last_timestamp_seconds");
    assert!((0.0..600.0).contains(&age), "{age}");
    let _client = oneread::Client::connect(&second.at.parse().unwrap()).unwrap();
    assert_eq!(Scrape::of(at).get("oneread_connections"), 1.0);
    assert_eq!(Scrape::of(at).get("oneread_connections_limit"), 4096.0);
}

/// A log is told by the numbers of its records, which go on with the next server.
#[test]
fn a_log_is_told() {
    let mut dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log").display().to_string();
    for puts in 1..=2 {
        let options = ["--anonymous", "--slots", "64", "--metrics", "127.0.0.1:0", "--log", &log];
        let mut served = Served::start_in(dir, &options);
        expect(served.run(&["put", "key", "value"]), 0);
        let scrape = Scrape::of(scraped_at(&served.ready["metrics"]));
        scrape.keeps_the_conventions();
        for name in ["records", "written_records", "durable_records"] {
            assert_eq!(scrape.get(&format!("oneread_log_{name}_total")), f64::from(puts), "{name}");
        }
        assert_eq!(scrape.get("oneread_log_syncs_total"), 1.0);
        assert_eq!(scrape.get("oneread_log_failed"), 0.0);
        assert!(scrape.get("oneread_log_bytes") > 0.0);
        dir = served.kill();
    }
}

/// What asks for something else, says nothing, or hangs up, gets a fitting answer or none, and hinders no scrape.
#[test]
fn strangers_hinder_no_scrape() {
    let served = Served::start(&["--anonymous", "--slots", "64", "--metrics", "127.0.0.1:0"]);
    let at = scraped_at(&served.ready["metrics"]);
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(at).unwrap()).collect();
    let begun = Instant::now();
    assert_eq!(Scrape::of(at).get("oneread_keys"), 0.0);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("PUT /metrics HTTP/1.1\r\n\r\n", "405"),
        ("hello\r\n\r\n", "400"),
    ] {
        let (head, _) = ask(at, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}");
    }
    // One after the other, more than there may be at the same time.
    for _ in 0..50 {
        drop(TcpStream::connect(at).unwrap());
    }
    // As many as there may be, each of which has begun to ask and goes on later: they give way.
    for _ in 0..3 {
        let idle: Vec<_> = (0..8)
            .map(|_| {
                let mut stream = TcpStream::connect(at).unwrap();
                stream.write_all(b"G").unwrap();
                stream
            })
            .collect();
        assert_eq!(Scrape::of(at).get("oneread_keys"), 0.0);
        drop(idle);
    }
    drop(silent);
    wait_for("a scrape", || {
        let mut stream = TcpStream::connect(at).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    });
}

/// An address that cannot be is an error before anything is made.
#[test]
fn addresses_that_cannot_be_are_told() {
    let wrong = expect(run(&["serve", "--metrics", "localhost"]), 2);
    assert!(stderr(&wrong).contains("give IP:PORT"), "{}", stderr(&wrong));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let (region, at) = (dir.path().join("region"), dir.path().join("sock"));
    let at = format!("shm:{}", at.display());
    let options =
        ["serve", "--at", &at, "--region", region.to_str().unwrap(), "--slots", "64", "--metrics", &taken];
    let refused = expect(run(&options), 1);
    let told = stderr(&refused);
    assert!(told.contains(&format!("at {taken}")) && told.contains("another port"), "{told}");
    assert_eq!(stdout(&refused), "");
    assert!(!region.exists(), "a table was made");
}

/// The alerts of the documentation are about metrics that there are. Where Prometheus' own checker is installed, it
/// finds nothing wrong with them, nor with a scrape.
#[test]
fn alerts_are_about_metrics_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("snap").display().to_string();
    let log = dir.path().join("log").display().to_string();
    let disks = ["--snapshot", &snapshot, "--log", &log];
    let options =
        [&["--anonymous", "--max-memory", "64MiB", "--metrics", "127.0.0.1:0"][..], &disks].concat();
    let served = Served::start(&options);
    let at = scraped_at(&served.ready["metrics"]);
    let scrape = Scrape::of(at);
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/alerts.yml");
    let text = std::fs::read_to_string(&rules).unwrap();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // Those of nodes are in tests/cluster.rs.
    let is_meant = |word: &&str| word.starts_with("oneread_") && !word.starts_with("oneread_cluster_");
    let named: BTreeSet<&str> = words.filter(is_meant).collect();
    assert!(named.len() > 10, "{named:?}");
    let unknown: Vec<_> = named.difference(&scrape.names()).copied().collect();
    assert_eq!(unknown, [""; 0]);
    let causes = text.split("cause=~\"").nth(1).unwrap().split('"').next().unwrap();
    for cause in causes.split('|') {
        scrape.get(&format!("oneread_changes_refused_total{{cause=\"{cause}\"}}"));
    }

    if !is_installed("promtool") {
        return;
    }
    let checked = Command::new("promtool").args(["check", "rules"]).arg(&rules).output().unwrap();
    expect(checked, 0);
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    feed(&mut check, ask(at, "GET /metrics HTTP/1.1\r\n\r\n").1.as_bytes());
    let checked = expect(check.wait_with_output().unwrap(), 0);
    assert_eq!((stdout(&checked), stderr(&checked)), (String::new(), String::new()));
}

/// Whether this program of Prometheus' is there.
fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skipped: {program} is not installed; on Debian: apt-get install prometheus");
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "{program} is not installed");
    }
    is_there
}

/// Prometheus, which ends with the test.
struct Prometheus {
    child: Child,
    at: SocketAddr,
    _dir: TempDir,
}

impl Prometheus {
    /// It scrapes this server, and evaluates the alerts, five times a second.
    fn start(scraped: SocketAddr) -> Prometheus {
        let dir = tempfile::tempdir().unwrap();
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/alerts.yml");
        let config = dir.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs: [{{job_name: oneread, static_configs: [{{targets: ['{scraped}']}}]}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
        command.args(["--web.listen-address=127.0.0.1:0", "--log.format=json"]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let listens = |line: &String| line.contains("\"Listening on\"");
        let line = log.by_ref().map(Result::unwrap).find(listens).expect("it listens");
        let line: Value = serde_json::from_str(&line).unwrap();
        // It would wait if nobody read what it says.
        std::thread::spawn(move || log.for_each(drop));
        Prometheus { child, at: line["address"].as_str().unwrap().parse().unwrap(), _dir: dir }
    }

    /// What its interface answers. `None` until it is there.
    fn ask(&self, path: &str) -> Option<Value> {
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: here\r\n\r\n");
        let (head, body) = ask(self.at, &request);
        head.contains(" 200 ").then(|| serde_json::from_str(&body).unwrap())
    }

    /// The value of an expression that has one series.
    fn value(&self, expression: &str) -> Option<f64> {
        let expression = ["{%7B", "}%7D", "\"%22"].iter().fold(expression.to_owned(), |all, pair| {
            let (plain, encoded) = pair.split_at(1);
            all.replace(plain, encoded)
        });
        let answer = self.ask(&format!("query?query={expression}"))?;
        let [one] = &answer["data"]["result"].as_array()?[..] else { return None };
        one["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prometheus itself reads what the server tells, finds the histogram's quantiles, takes all alerts, and notices that
/// the server is gone.
#[test]
fn prometheus_scrapes_the_server() {
    if !is_installed("prometheus") {
        return;
    }
    let mut served =
        Served::start(&["--metrics", "127.0.0.1:0", "--anonymous", "--max-memory", "64MiB", "--life"]);
    served.load(0..2_000);
    let prometheus = Prometheus::start(scraped_at(&served.ready["metrics"]));
    let wait_until = |expression: &str, is_so: &dyn Fn(f64) -> bool| {
        wait_for(expression, || prometheus.value(expression).filter(|value| is_so(*value)))
    };
    wait_until("up", &|up| up == 1.0);
    wait_until("oneread_keys", &|keys| keys == 2_000.0);
    wait_until("oneread_put_seconds_count", &|puts| puts == 2_000.0);
    let median = wait_until("histogram_quantile(0.5,oneread_put_seconds_bucket)", &|_| true);
    assert!((1e-8..1.0).contains(&median), "{median}");

    // Before the first scrape no server was there.
    let rules = wait_for("all alerts to be quiet", || {
        let answer = prometheus.ask("rules")?;
        let rules = answer["data"]["groups"][0]["rules"].as_array()?.clone();
        rules.iter().all(|rule| rule["health"] == "ok" && rule["state"] == "inactive").then_some(rules)
    });
    assert!(rules.len() >= 10, "{rules:?}");
    served.signal(rustix::process::Signal::KILL);
    served.child.wait().unwrap();
    wait_until("up", &|up| up == 0.0);
    wait_until("ALERTS{alertname=\"OnereadNoServer\"}", &|_| true);
}
