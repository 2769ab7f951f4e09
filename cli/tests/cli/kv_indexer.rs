//! `kv-indexer`, from outside: killed under load, and in turns.

use crate::command::oneread;
use oneread_indexer::source::{Source, removed, stored};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// An indexer, which ends with this.
struct Running {
    child: Child,
    at: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(flags: &[&str]) -> Running {
        let mut command = oneread();
        command.args(["kv-indexer", "--listen", "127.0.0.1:0", "--json"]).args(flags);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{flags:?} said {line:?}"));
        let at = ready["url"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
        Running { child, at }
    }

    fn try_ask(&self, request: &str, body: &Value) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(self.at)?;
        stream.set_read_timeout(Some(MINUTE))?;
        let body = body.to_string();
        let head = format!(
            "{request} HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(body).map_err(std::io::Error::other)
    }

    fn tokens(&self, prompt: &[u32]) -> u64 {
        let query = json!({ "model_name": "m", "token_ids": prompt });
        self.try_ask("POST /query", &query).unwrap()["scores"]["1"]["0"].as_u64().unwrap_or_default()
    }
}

/// Tokens of a path of a tree: block `depth` of path `path`.
fn tokens(path: u32, depth: u32) -> [u32; 4] {
    [path, depth, path ^ depth, 9]
}

fn name(path: u32, depth: u32) -> u64 {
    u64::from(path) << 32 | u64::from(depth) | 1 << 60
}

fn prompt(path: u32) -> Vec<u32> {
    (0..DEPTH).flat_map(|depth| tokens(path, depth)).collect()
}

const DEPTH: u32 = 16;
const PATHS: u32 = 20;

/// An engine that grows and cuts paths, but for path 0, which stays. Returns what it has at the end.
fn engine(source: &Source, has: &Mutex<BTreeSet<(u32, u32)>>, is_over: &AtomicBool) {
    let mut seed = 1_u64;
    let mut roll = |sides: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) as u32) % sides
    };
    while !is_over.load(Ordering::Relaxed) {
        let path = 1 + roll(PATHS - 1);
        let mut has = has.lock().unwrap();
        let length = (0..DEPTH).take_while(|depth| has.contains(&(path, *depth))).count() as u32;
        let event = if length == DEPTH || (length > 0 && roll(3) == 0) {
            let cut = roll(length);
            let gone: Vec<u64> = (cut..length).map(|depth| name(path, depth)).collect();
            has.retain(|(of, depth)| *of != path || !(cut..length).contains(depth));
            removed(&gone)
        } else {
            has.insert((path, length));
            let parent = length.checked_sub(1).map(|before| name(path, before));
            stored(parent, &[name(path, length)], &tokens(path, length), 4)
        };
        source.publish(vec![event]);
        drop(has);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Killed under load, again and again: it answers from its first request on with what it knew, and when it has heard what
/// was told meanwhile, all is as an engine has it. Two over one table are killed in turns.
#[test]
fn it_is_killed_under_load() {
    let kills = if std::env::var_os("ONEREAD_LONG").is_some() { 200 } else { 6 };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let source = Arc::new(Source::new(1_000_000).unwrap());
    let (table, region) = (format!("shm:{}", path("kv.sock")), path("kv.region"));
    let workers = format!("1={}", source.endpoint());
    let replay = format!("1={}", source.replay_endpoint());
    let of = ["--workers", &workers, "--replay", &replay, "--block-size", "4", "--model-name", "m"];
    let own = || {
        Running::start(
            &[&["--table", &table, "--region", &region, "--max-memory", "64MiB"][..], &of].concat(),
        )
    };
    let mut one = own();
    source.wait_for(1);
    let names: Vec<u64> = (0..DEPTH).map(|depth| name(0, depth)).collect();
    source.publish(vec![stored(None, &names, &prompt(0), 4)]);
    let whole = u64::from(DEPTH * 4);
    let soon = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        let until = Instant::now() + MINUTE;
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    soon("the path that stays", &mut || one.tokens(&prompt(0)) == whole);
    let (has, is_over) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
    let told = {
        let (source, has, is_over) = (source.clone(), has.clone(), is_over.clone());
        std::thread::spawn(move || engine(&source, &has, &is_over))
    };
    for kill in 0..kills {
        let heard = one.try_ask("GET /workers", &json!({})).unwrap()[0]["state"]["0"]["last_batch"].as_u64();
        one.child.kill().unwrap();
        drop(one);
        one = own();
        assert_eq!(one.tokens(&prompt(0)), whole, "kill {kill}: what it knew, in its first answer");
        soon("it goes on", &mut || {
            let now =
                one.try_ask("GET /workers", &json!({})).unwrap()[0]["state"]["0"]["last_batch"].as_u64();
            now > heard && now.is_some()
        });
    }
    is_over.store(true, Ordering::Relaxed);
    told.join().unwrap();
    let agrees = |one: &Running| {
        let has = has.lock().unwrap();
        (1..PATHS).all(|path| {
            let length = (0..DEPTH).take_while(|depth| has.contains(&(path, *depth))).count() as u64;
            one.tokens(&prompt(path)) == length * 4
        })
    };
    soon("all is as the engine has it", &mut || agrees(&one));
    let metrics = scrape(&one);
    for (count, most) in [
        ("oneread_kv_workers_cleared_total", 0),
        ("oneread_kv_batches_lost_total", 0),
        ("oneread_kv_restarts_total", 0),
    ] {
        assert!(metrics.contains(&format!("\n{count} {most}\n")), "{metrics}");
    }
    let alerts =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kv-alerts.yml")).unwrap();
    let words = alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("oneread_kv_")).collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        assert!(metrics.contains(&format!("# TYPE {name} ")), "no alert is about {name}: it is not counted");
    }
}

fn scrape(one: &Running) -> String {
    let mut stream = TcpStream::connect(one.at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Whoever stops one that serves its own table hears nothing of a table that is gone.
#[test]
fn it_ends_in_silence() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let table = format!("shm:{}", path("kv.sock"));
    for _ in 0..5 {
        let source = Source::new(10).unwrap();
        let workers = format!("1={}", source.endpoint());
        let mut command = oneread();
        command.args([
            "kv-indexer",
            "--listen",
            "127.0.0.1:0",
            "--table",
            &table,
            "--region",
            &path("kv.region"),
        ]);
        command.args(["--max-memory", "16MiB", "--workers", &workers, "--block-size", "4"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("answering at "), "{line}");
        source.wait_for(1);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

/// For how long the long run of [`two_are_killed_in_turns`] goes on.
fn long_run() -> Option<Duration> {
    let seconds = || std::env::var("ONEREAD_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    std::env::var_os("ONEREAD_LONG").map(|_| Duration::from_secs(seconds().unwrap_or(600)))
}

/// Two over a table that a server of its own has, killed in turns under load. Before each kill both tell what the engine has,
/// and whoever is started knows at once what was known.
#[test]
fn two_are_killed_in_turns() {
    let served = crate::served::Served::start(&["--index", "placement", "--holders", "256", "--anonymous"]);
    let source = Arc::new(Source::new(1_000_000).unwrap());
    let start = || Running::start(&["--at", &served.at]);
    let mut two = [start(), start()];
    let worker = json!({
        "instance_id": 1, "endpoint": source.endpoint(), "replay_endpoint": source.replay_endpoint(),
        "model_name": "m", "block_size": 4,
    });
    assert_eq!(two[1].try_ask("POST /register", &worker).unwrap(), json!({ "status": "ok" }));
    source.wait_for(1);
    let names: Vec<u64> = (0..DEPTH).map(|depth| name(0, depth)).collect();
    let mut told = source.publish(vec![stored(None, &names, &prompt(0), 4)]);
    let whole = u64::from(DEPTH * 4);
    let (has, is_over) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
    let telling = {
        let (source, has, is_over) = (source.clone(), has.clone(), is_over.clone());
        std::thread::spawn(move || engine(&source, &has, &is_over))
    };
    let takes = |one: &Running| one.try_ask("GET /health", &json!({})).unwrap()["takes_events"] == true;
    // While it is held, the engine changes nothing.
    let agree = |two: &[Running], has: &BTreeSet<(u32, u32)>, kill: u32| {
        let until = Instant::now() + MINUTE;
        for (nth, one) in two.iter().enumerate() {
            let wrong = || {
                (0..PATHS).find(|path| {
                    let length = (0..DEPTH).take_while(|depth| has.contains(&(*path, *depth))).count() as u64;
                    one.tokens(&prompt(*path)) != if *path == 0 { whole } else { length * 4 }
                })
            };
            while let Some(path) = wrong() {
                assert!(Instant::now() < until, "kill {kill}, indexer {nth}, path {path}: {}", scrape(one));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    let (begun, mut kills) = (Instant::now(), 0);
    while long_run().map_or(kills < 4, |long| begun.elapsed() < long) {
        let until = Instant::now() + MINUTE;
        let active = loop {
            match two.iter().position(takes) {
                Some(active) => break active,
                None => assert!(Instant::now() < until, "kill {kills}: nobody takes events in"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let held = has.lock().unwrap();
        agree(&two, &held, kills);
        drop(held);
        // It is killed under load.
        let batches = source.told();
        crate::served::wait_for("some batches", || (source.told() > batches + 20).then_some(()));
        two[active].child.kill().unwrap();
        assert_eq!(two[1 - active].tokens(&prompt(0)), whole, "kill {kills}: the other one knows it");
        two[active] = start();
        assert_eq!(
            two[active].tokens(&prompt(0)),
            whole,
            "kill {kills}: what was known, in its first answer"
        );
        kills += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    telling.join().unwrap();
    agree(&two, &has.lock().unwrap(), kills);
    told = source.told() - told;
    println!("{kills} kills, {told} batches");
}

/// Asks an indexer for others, and forges some of its answers. It ends with the test.
#[cfg(feature = "lab")]
fn forger(of: Running) -> (SocketAddr, u32) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, pid) = (listener.local_addr().unwrap(), of.child.id());
    let serve = move |stream: TcpStream| -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?);
        for turn in 0.. {
            let (mut request, mut length) = (String::new(), 0);
            lines.read_line(&mut request)?;
            loop {
                let mut line = String::new();
                if lines.read_line(&mut line)? <= 2 {
                    break;
                }
                if let Some(told) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = told.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            lines.read_exact(&mut body)?;
            let body: Value = serde_json::from_slice(&body).map_err(std::io::Error::other)?;
            let request = request.rsplit_once(' ').unwrap_or_default().0;
            let is_long = body["token_ids"].as_array().is_some_and(|tokens| tokens.len() > 16);
            let answer = match is_long && turn % 5 == 0 {
                true => json!({ "scores": { "1": { "0": 16_000 } } }),
                false => of.try_ask(request, &body)?,
            };
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
            (&stream).write_all((head + &answer).as_bytes())?;
        }
        Ok(())
    };
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            // Who asks hangs up.
            let _ = serve(stream);
        }
    });
    (at, pid)
}

/// The bench has all figures and finds nothing wrong, beside another indexer too. If that one's answers are forged, it says
/// how many.
#[cfg(feature = "lab")]
#[test]
fn the_bench_counts_wrong_answers() {
    let dir = tempfile::tempdir().unwrap();
    let other = |name: &str| {
        let path = |file: &str| dir.path().join(format!("{name}.{file}")).display().to_string();
        let table = format!("shm:{}", path("sock"));
        let own = ["--table", &table, "--region", &path("region"), "--max-memory", "64MiB"];
        Running::start(&[&own[..], &["--die-with-parent"]].concat())
    };
    let bench = |beside: &str, pid: u32, hashes: &[&str]| {
        let small = ["--workers", "1,3", "--blocks", "600", "--prompts", "60", "--longest", "24"];
        let more = ["--rate", "2000", "--seconds", "0.3", "--json", "--beside", beside];
        let pid = pid.to_string();
        let words = [&["bench", "kv-indexer", "--beside-pid", &pid][..], &small, &more, hashes].concat();
        let found = crate::served::json(&crate::served::expect(crate::served::run(&words), 0));
        let rows = found["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 4, "{found}");
        rows
    };
    let honest = other("honest");
    for row in bench(&format!("http://{}", honest.at), honest.child.id(), &["--own-hashes"]) {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        for name in ["events_per_second", "query_p50_ns", "query_p99_ns", "memory_bytes", "behind_ms"] {
            assert!(number(name) > 0.0, "{name}: {row}");
        }
        assert!(number("blocks") >= 600.0 && number("checked") >= 120.0, "{row}");
        assert!(number("query_p99_ns") >= number("query_p50_ns"), "{row}");
        assert_eq!((&row["wrong"], &row["differing"]), (&json!(0), &json!(0)), "{row}");
        match row["indexer"].as_str() {
            Some("oneread") => assert!(number("right_after_ms") >= number("answers_after_ms"), "{row}"),
            _ => assert!(row["right_after_ms"].is_null(), "nobody kills that one: {row}"),
        }
    }
    let (forger, pid) = forger(other("forged"));
    for row in bench(&format!("http://{forger}"), pid, &[]) {
        let [wrong, differing] = ["wrong", "differing"].map(|name| row[name].as_u64().unwrap());
        let is_own = row["indexer"] == "oneread";
        assert!(differing > 0 && if is_own { wrong == 0 } else { wrong >= differing }, "{row}");
    }
    let refused = crate::served::run(&["bench", "kv-indexer", "--beside", "127.0.0.1:1"]);
    assert!(crate::served::stderr(&refused).contains("give one as in http://"), "{refused:?}");
}

/// What is wrong with its flags is told, with what to do.
#[test]
fn wrong_flags_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let open = |mode: u32| {
        std::fs::set_permissions(Path::new(&token), std::os::unix::fs::PermissionsExt::from_mode(mode))
            .unwrap();
    };
    let token = token.display().to_string();
    let table = format!("shm:{}", dir.path().join("kv.sock").display());
    let region = dir.path().join("kv.region").display().to_string();
    open(0o644);
    for (flags, why) in [
        (vec!["--listen", "0.0.0.0:0"], "--token-file"),
        (vec!["--token-file", &token], "may be read by other users"),
        (vec!["--workers", "1=host:1", "--block-size", "16"], "tcp://HOST:PORT"),
        (vec!["--workers", "1=tcp://host:1"], "--block-size"),
        (
            vec!["--workers", "1=tcp://a:1", "--block-size", "16", "--replay", "2=tcp://a:2"],
            "--workers does not",
        ),
        (vec!["--at", "shm:/nowhere/sock", "--fresh"], "cannot be used with"),
    ] {
        let mut command = oneread();
        command.arg("kv-indexer").args(&flags);
        if flags[0] != "--at" {
            command.args(["--table", &table, "--region", &region, "--max-memory", "16MiB"]);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{flags:?}: {said}");
    }
}
