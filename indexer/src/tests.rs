//! What tests of several modules have in common, and the whole of an indexer.

use crate::endpoint::Reach;
use crate::events::Tier;
use crate::packed::Value as Packed;
use crate::source::{Source, cleared, removed, stored};
use crate::store::{Store, StoreError};
use crate::worker::{Place, Worker as Registered};
use crate::{Indexer, IndexerConfig};
use oneread::{Address, Client, Evict, Server, ServerConfig, TableSize};
use oneread_prefix::{HashScheme, PlacementTable, block_hashes};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod links;
mod runs;

/// Changes of the table: how many were made, and which one fails, half way.
#[derive(Clone, Debug, Default)]
pub struct Steps(Arc<Mutex<StepsState>>);

#[derive(Default)]
struct StepsState {
    made: usize,
    /// How many are made before one that fails, and what part of its keys is changed, in eighths.
    fails: Option<(usize, usize)>,
    /// How many are made before somebody else comes between, and who.
    then: Option<(usize, Box<dyn FnOnce() + Send>)>,
}

impl std::fmt::Debug for StepsState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} changes", self.made)
    }
}

impl Steps {
    /// A change is about to be made: how many of its keys, and what is told.
    pub fn next(&self, keys: usize) -> (usize, Result<(), StoreError>) {
        let mut state = self.0.lock().unwrap();
        state.made += 1;
        if let Some((left, then)) = state.then.take() {
            match left.checked_sub(1) {
                Some(left) => state.then = Some((left, then)),
                None => {
                    drop(state);
                    then();
                    state = self.0.lock().unwrap();
                }
            }
        }
        match &mut state.fails {
            Some((0, eighths)) => {
                let some = keys * *eighths / 8;
                state.fails = None;
                (some, Err(StoreError::Gone))
            }
            Some((left, _)) => {
                *left -= 1;
                (keys, Ok(()))
            }
            None => (keys, Ok(())),
        }
    }

    /// Has one fail, behind so many.
    fn fail(&self, behind: usize, eighths: usize) {
        self.0.lock().unwrap().fails = Some((behind, eighths));
    }

    /// Has somebody come between, behind so many.
    fn then(&self, behind: usize, who: Box<dyn FnOnce() + Send>) {
        self.0.lock().unwrap().then = Some((behind, who));
    }

    /// Nobody comes between any more, and nothing fails.
    fn nothing_else(&self) {
        let mut state = self.0.lock().unwrap();
        (state.then, state.fails) = (None, None);
    }

    /// How many were made since this was asked before.
    fn made(&self) -> usize {
        std::mem::take(&mut self.0.lock().unwrap().made)
    }
}

/// A table of holders, with its server.
pub struct Table {
    server: Server,
    _dir: tempfile::TempDir,
}

impl Table {
    /// A new one.
    pub fn new() -> Table {
        Table::of(256)
    }

    /// A new one, for so many holders.
    pub fn of(holders: usize) -> Table {
        let dir = tempfile::tempdir().unwrap();
        let table = PlacementTable::single(holders).unwrap();
        let address = Address::Shm(dir.path().join("table.sock"));
        let server =
            Server::start(ServerConfig::new(address, table.config(TableSize::Keys(100_000)))).unwrap();
        table.mark(&server).unwrap();
        Table { server, _dir: dir }
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::connect(self.server.address()).unwrap()
    }

    /// A handle on it.
    pub fn store(&self) -> Store {
        Store::new(self.client()).unwrap()
    }
}

// ---- requests ---------------------------------------------------------------------------------------

const MINUTE: Duration = Duration::from_secs(60);

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// An indexer over a table.
fn indexer(table: &Table, config: impl FnOnce(IndexerConfig) -> IndexerConfig) -> Indexer {
    Indexer::start(table.client(), config(IndexerConfig::new(at(0)))).unwrap()
}

/// What is answered to a request: its status, and its body.
fn ask_with(indexer: &Indexer, request: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(indexer.address()).unwrap();
    stream.set_read_timeout(Some(MINUTE)).unwrap();
    let length = body.len();
    let head =
        format!("{request} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn ask(indexer: &Indexer, request: &str, body: &Value) -> (u16, Value) {
    let (status, body) = ask_with(indexer, request, "Content-Type: application/json\r\n", &body.to_string());
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// Waits until something is so, for a minute at most.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + MINUTE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn register(indexer: &Indexer, instance: u64, source: &Source) {
    let body = json!({
        "instance_id": instance,
        "endpoint": source.endpoint(),
        "replay_endpoint": source.replay_endpoint(),
        "model_name": "m",
        "block_size": 4,
    });
    assert_eq!(ask(indexer, "POST /register", &body), (201, json!({ "status": "ok" })));
    source.wait_for(1);
}

/// The tokens that instances have of a prompt, as the indexer tells.
fn scores(indexer: &Indexer, tokens: &[u32]) -> BTreeMap<String, u64> {
    let (status, answer) = ask(indexer, "POST /query", &json!({ "model_name": "m", "token_ids": tokens }));
    assert_eq!(status, 200, "{answer}");
    let of = |(instance, ranks): (&String, &Value)| (instance.clone(), ranks["0"].as_u64().unwrap());
    answer["scores"].as_object().unwrap().iter().map(of).collect()
}

fn expected(of: &[(u64, u64)]) -> BTreeMap<String, u64> {
    of.iter().map(|(instance, tokens)| (instance.to_string(), *tokens)).collect()
}

// ---- both forms -------------------------------------------------------------------------------------

/// The requests of Dynamo's indexer and their answers, with their statuses.
#[test]
fn dynamos_requests_are_answered() {
    let (table, source) = (Table::new(), Source::new(100).unwrap());
    let indexer = indexer(&table, |config| config);
    assert_eq!(ask(&indexer, "GET /health", &json!({})).0, 200);
    let prompt: Vec<u32> = (1..=18).collect();
    let query = json!({ "model_name": "m", "token_ids": prompt });
    assert_eq!(ask(&indexer, "POST /query", &query).0, 404, "nobody has registered the model");
    wait_for("it takes events in", || indexer.is_active());
    register(&indexer, 1, &source);
    source
        .publish(vec![stored(None, &[51, 52], &prompt[..8], 4), stored(Some(52), &[53], &prompt[8..12], 4)]);
    wait_for("three blocks", || scores(&indexer, &prompt) == expected(&[(1, 12)]));
    // A batch's number is written behind its blocks.
    let is_written = || ask(&indexer, "GET /workers", &json!({})).1[0]["state"]["0"]["last_batch"] == 0;
    wait_for("the batch's number", is_written);
    let (status, answer) = ask(&indexer, "POST /query", &query);
    assert_eq!(status, 200);
    assert_eq!(answer["frequencies"], json!([1, 1, 1]));
    assert_eq!(answer["tree_sizes"], json!({ "1": { "0": 3 } }));
    let instances =
        json!({ "1": { "longest_matched": 12, "gpu": 12, "dp": { "0": 12 }, "cpu": 0, "disk": 0 } });
    assert_eq!(answer["instances"], instances);
    // Local hashes, signed or not.
    let locals = block_hashes(&prompt, 4, HashScheme::Dynamo { lora: "", salt: "" }).unwrap().local;
    for hashes in [json!(locals), json!(locals.iter().map(|hash| hash.cast_signed()).collect::<Vec<_>>())] {
        let by_hash = json!({ "model_name": "m", "block_hashes": hashes });
        assert_eq!(ask(&indexer, "POST /query_by_hash", &by_hash).1["scores"], json!({ "1": { "0": 12 } }));
    }
    let salted = json!({ "model_name": "m", "block_hashes": locals, "cache_salt": "a" });
    assert_eq!(ask(&indexer, "POST /query_by_hash", &salted).0, 400);
    let lora = json!({ "model_name": "m", "token_ids": prompt, "lora_name": "sql" });
    assert_eq!(ask(&indexer, "POST /query", &lora).1["scores"], json!({}));
    let (_, workers) = ask(&indexer, "GET /workers?model_name=m", &json!({}));
    assert_eq!(workers[0]["instance_id"], 1);
    assert_eq!(workers[0]["endpoints"], json!({ "0": source.endpoint() }));
    assert_eq!(workers[0]["state"]["0"]["blocks"], 3);
    assert_eq!(ask(&indexer, "GET /workers?model_name=other", &json!({})).1, json!([]));
    for (query, count) in [
        ("model_name=%6d&routing_group=default", 1),
        ("tenant_id=default", 1),
        ("routing_group=other", 0),
        ("routing_group=other&tenant_id=default", 0),
    ] {
        let (_, workers) = ask(&indexer, &format!("GET /workers?{query}"), &json!({}));
        assert_eq!(workers.as_array().unwrap().len(), count, "{query}");
        assert!(workers.as_array().unwrap().iter().all(|worker| worker["routing_group"] == "default"));
    }

    let worker = |more: Value| {
        let mut body = json!({
            "instance_id": 1, "endpoint": source.endpoint(), "replay_endpoint": source.replay_endpoint(),
            "model_name": "m", "block_size": 4,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (request, body, status) in [
        ("POST /register", worker(json!({})), 201),
        ("POST /register", worker(json!({ "endpoint": "tcp://127.0.0.1:1" })), 409),
        ("POST /register", worker(json!({ "instance_id": 2, "block_size": 16 })), 409),
        ("POST /register", worker(json!({ "instance_id": 2, "block_size": 0 })), 400),
        ("POST /register", worker(json!({ "instance_id": "a\u{7}" })), 400),
        ("POST /register", worker(json!({ "instance_id": 2, "endpoint": "tcp://*:5557" })), 400),
        ("POST /register", worker(json!({ "instance_id": 2, "endpoint": "tcp://10.0.0.7:5557" })), 403),
        (
            "POST /register",
            worker(json!({ "instance_id": 2, "replay_endpoint": "tcp://10.0.0.7:5557" })),
            403,
        ),
        ("POST /register", json!({ "instance_id": 2, "model_name": "m" }), 422),
        ("POST /register", json!({ "instance_id": [], "model_name": "m" }), 422),
        ("POST /query", json!({ "model_name": "m" }), 422),
        ("POST /query", json!({ "model_name": "m", "token_ids": [-1] }), 422),
        ("POST /query", json!({ "token_ids": [1] }), 422),
        ("POST /query", json!({ "model_name": "m", "tenant_id": "b", "token_ids": [1] }), 404),
        ("POST /query", json!({ "model_name": "m", "routing_group": "b", "token_ids": [1] }), 404),
        ("POST /query", json!({ "model_name": "m", "routing_group": "default", "token_ids": [1] }), 200),
        ("POST /unregister", json!({ "instance_id": 1, "model_name": "m", "routing_group": "b" }), 404),
        ("POST /unregister", json!({ "instance_id": 9, "model_name": "m" }), 404),
        ("GET /query", json!({}), 405),
        ("POST /workers", json!({}), 405),
        ("GET /dump", json!({}), 403),
        ("GET /nothing", json!({}), 404),
        ("POST /register_peer", json!({ "url": "http://peer:8091" }), 201),
        ("POST /deregister_peer", json!({ "url": "http://other:8091" }), 404),
    ] {
        let (told, answer) = ask(&indexer, request, &body);
        assert_eq!(told, status, "{request} {body}: {answer}");
        assert!(status < 400 || answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{answer}");
    }
    assert_eq!(ask(&indexer, "GET /peers", &json!({})).1, json!(["http://peer:8091"]));
    assert_eq!(ask_with(&indexer, "POST /query", "", "{}").0, 415, "a page in a browser could send it");
    assert_eq!(ask_with(&indexer, "POST /query", "Content-Type: application/json\r\n", "{").0, 400);
    let (_, metrics) = ask_with(&indexer, "GET /metrics", "", "");
    assert!(metrics.contains("\noneread_kv_blocks_stored_total 3\n"), "{metrics}");
    assert!(metrics.contains("\noneread_kv_workers_connected 1\n"), "{metrics}");

    assert_eq!(ask(&indexer, "POST /unregister", &json!({ "instance_id": 1, "model_name": "m" })).0, 200);
    assert_eq!(ask(&indexer, "POST /query", &query).0, 404);
    // Registered again, it has what the publisher still tells.
    register(&indexer, 1, &source);
    wait_for("three blocks again", || scores(&indexer, &prompt) == expected(&[(1, 12)]));
}

/// The examples of Mooncake's document, with tiers, ranks, an adapter and a salt; and events as its master has them.
#[test]
fn the_rfcs_requests_are_answered() {
    let (table, source) = (Table::new(), Source::new(100).unwrap());
    let indexer = indexer(&table, |config| config);
    let worker = json!({
        "endpoint": source.endpoint(), "replay_endpoint": source.replay_endpoint(), "type": "vLLM",
        "modelname": "deepseek", "tenant_id": "default", "instance_id": "vllm-prefill-node1",
        "block_size": 4, "dp_rank": 0, "additionalsalt": "w8a8",
    });
    let registered = json!({ "status": "registered successfully", "instance_id": "vllm-prefill-node1" });
    assert_eq!(ask(&indexer, "POST /register", &worker), (200, registered));
    source.wait_for(1);
    let prompt: Vec<u32> = (1..=24).collect();
    let on = |medium: &str, lora: Packed, mut event: Packed| {
        if let Packed::List(fields) = &mut event {
            fields.truncate(6);
            fields.extend([Packed::text(medium), lora]);
        }
        event
    };
    source.publish(vec![
        on("GPU", Packed::Nil, stored(None, &[1, 2], &prompt[..8], 4)),
        on("CPU_PINNED", Packed::Nil, stored(Some(2), &[3, 4], &prompt[8..16], 4)),
        on("GPU", Packed::text("sql"), stored(None, &[11], &prompt[..4], 4)),
    ]);
    let seq: Vec<u64> = vec![1234567890, 9876543210];
    source.publish(vec![Packed::Map(vec![
        ("event_type", Packed::text("stored")),
        ("seq_hashes", Packed::numbers(seq.iter().copied())),
        ("additional_salt", Packed::text("pool")),
        ("medium", Packed::text("disk")),
    ])]);
    let query = |path: &str, more: Value| {
        let mut body = json!({ "model": "deepseek", "tenant_id": "default", "block_size": 4 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = ask(&indexer, path, &body);
        assert_eq!(status, 200, "{answer}");
        answer["default"]["vllm-prefill-node1"].clone()
    };
    let by_hash = || query("POST /query_by_hash", json!({ "seq_hashes": seq, "cache_salt": "pool" }));
    wait_for("the last batch", || by_hash()["DISK"] == 8);
    assert_eq!(by_hash(), json!({ "longest_matched": 8, "GPU": 0, "DP": { "0": 8 }, "CPU": 0, "DISK": 8 }));
    assert_eq!(query("POST /query_by_hash", json!({ "block_hash": seq }))["longest_matched"], 0);
    let tokens = query("POST /query", json!({ "token_ids": prompt, "cache_salt": "w8a8" }));
    assert_eq!(tokens, json!({ "longest_matched": 16, "GPU": 8, "DP": { "0": 16 }, "CPU": 0, "DISK": 0 }));
    assert_eq!(query("POST /query", json!({ "token_ids": prompt }))["longest_matched"], 0, "another salt");
    let lora = json!({ "token_ids": prompt, "cache_salt": "w8a8", "lora_name": "sql" });
    assert_eq!(query("POST /query", lora)["longest_matched"], 4);
    for (body, status) in [
        (json!({ "model": "deepseek" }), 400),
        (json!({ "model": "deepseek", "block_size": 64, "token_ids": [] }), 400),
        (json!({ "model": "other", "block_size": 4, "token_ids": [] }), 404),
    ] {
        assert_eq!(ask(&indexer, "POST /query", &body).0, status, "{body}");
    }
    let (status, gone) = ask(&indexer, "POST /unregister", &worker);
    assert_eq!((status, &gone["removed_instances"]), (200, &json!(["vllm-prefill-node1|default|0"])));
}

/// With a token, all but the health is for who shows it: other endpoints, and the dump, too.
#[test]
fn a_token_lets_in() {
    let (table, source) = (Table::new(), Source::new(100).unwrap());
    let indexer = indexer(&table, |config| IndexerConfig { token: Some(b"secret".to_vec()), ..config });
    let json_type = "Content-Type: application/json\r\n";
    let shown = format!("{json_type}Authorization: Bearer secret\r\n");
    let far =
        json!({ "instance_id": 2, "endpoint": "tcp://192.0.2.1:5557", "model_name": "m", "block_size": 4 });
    for (request, body) in [
        ("POST /query", "{}".to_owned()),
        ("POST /register", far.to_string()),
        ("GET /dump", String::new()),
        ("GET /metrics", String::new()),
    ] {
        assert_eq!(ask_with(&indexer, request, json_type, &body).0, 401, "{request}");
    }
    assert_eq!(ask_with(&indexer, "GET /health", "", "").0, 200);
    assert_eq!(ask_with(&indexer, "POST /register", &shown, &far.to_string()).0, 201);
    let near = json!({ "instance_id": 1, "endpoint": source.endpoint(), "model_name": "m", "block_size": 4 });
    assert_eq!(ask_with(&indexer, "POST /register", &shown, &near.to_string()).0, 201);
    source.wait_for(1);
    source.publish(vec![stored(None, &[1, 2], &[1, 2, 3, 4, 5, 6, 7, 8], 4)]);
    let dump = || ask_with(&indexer, "GET /dump", &shown, "").1;
    wait_for("two blocks", || dump().matches("seq_hash").count() == 2);
    let hashes = block_hashes(&[1, 2, 3, 4, 5, 6, 7, 8], 4, HashScheme::Rfc1403 { seed: 1337 }).unwrap();
    for hash in hashes.rolling {
        assert!(
            dump().contains(&format!("\"seq_hash\":{hash},\"workers\":[[\"1\",0,\"GPU\"]]")),
            "{}",
            dump()
        );
    }
    let elsewhere = IndexerConfig::new(SocketAddr::from(([0, 0, 0, 0], 0)));
    let refused = Indexer::start(table.client(), elsewhere).unwrap_err().to_string();
    assert!(refused.contains("--token-file"), "{refused}");
}

// ---- against a model --------------------------------------------------------------------------------

/// Prompts that part from each other, as paths of a tree; and which of its blocks a worker has.
struct Worker {
    number: u64,
    source: Option<Source>,
    has: BTreeSet<u32>,
}

const DEPTH: u32 = 12;
const PROMPTS: u32 = 6;

/// Block `depth` of a prompt: the first ones are those of its neighbours, too.
fn block(prompt: u32, depth: u32) -> u32 {
    let shared = match depth {
        0..4 => 0,
        4..8 => prompt / 2,
        _ => prompt,
    };
    shared * DEPTH + depth
}

fn tokens(block: u32) -> [u32; 4] {
    [block * 4 + 1, block * 4 + 2, block * 4 + 3, block]
}

fn prompt(number: u32) -> Vec<u32> {
    (0..DEPTH).flat_map(|depth| tokens(block(number, depth))).collect()
}

/// Numbers of no pattern that come again with the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as u32) % sides
    }
}

impl Worker {
    fn new(number: u64, kept: usize) -> Worker {
        Worker { number, source: Some(Source::new(kept).unwrap()), has: BTreeSet::new() }
    }

    fn source(&self) -> &Source {
        self.source.as_ref().unwrap()
    }

    /// What the engine calls a block: another thing than others call it.
    fn name(&self, block: u32) -> u64 {
        u64::from(block) + self.number * 1_000_000 + 7
    }

    /// Some changes, as events.
    fn change(&mut self, dice: &mut Dice) -> Vec<Packed> {
        let mut events = Vec::new();
        for _ in 0..1 + dice.roll(3) {
            let (prompt, from) = (dice.roll(PROMPTS), dice.roll(DEPTH));
            let path: Vec<u32> = (0..DEPTH).map(|depth| block(prompt, depth)).collect();
            match dice.roll(10) {
                0 => {
                    self.has.clear();
                    events.push(cleared());
                }
                // One in the middle, or one that it does not have, too.
                1..4 => {
                    self.has.remove(&path[from as usize]);
                    events.push(removed(&[self.name(path[from as usize])]));
                }
                _ => {
                    let has = path.iter().take_while(|block| self.has.contains(block)).count();
                    let some = &path[has.min(from as usize)..];
                    let some = &some[..some.len().min(1 + dice.roll(5) as usize)];
                    let at = has.min(from as usize);
                    let parent = at.checked_sub(1).map(|before| self.name(path[before]));
                    let names: Vec<u64> = some.iter().map(|block| self.name(*block)).collect();
                    let all: Vec<u32> = some.iter().flat_map(|block| tokens(*block)).collect();
                    self.has.extend(some);
                    events.push(stored(parent, &names, &all, 4));
                }
            }
        }
        events
    }

    fn length(&self, prompt: u32) -> u64 {
        4 * (0..DEPTH).take_while(|depth| self.has.contains(&block(prompt, *depth))).count() as u64
    }

    /// The engine is started again, at the same addresses.
    fn restart(&mut self, kept: usize) {
        let (published, replayed) = self.source().addresses();
        self.source = None;
        self.source = Some(Source::at(published, replayed, kept).unwrap());
        self.has.clear();
    }
}

/// Waits until all answers are the model's.
fn agrees(indexer: &Indexer, workers: &[Worker], what: &str) {
    let all = |number: u32| -> BTreeMap<String, u64> {
        let of = workers.iter().map(|worker| (worker.number.to_string(), worker.length(number)));
        of.filter(|(_, length)| *length > 0).collect()
    };
    let until = Instant::now() + MINUTE;
    loop {
        let wrong = (0..PROMPTS).find(|number| scores(indexer, &prompt(*number)) != all(*number));
        let Some(wrong) = wrong else { return };
        let told = scores(indexer, &prompt(wrong));
        assert!(
            Instant::now() < until,
            "{what}: prompt {wrong}: {told:?}, and the model has {:?}",
            all(wrong)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Batches are lost, connections end, engines and the indexer are started again, in any order: where a publisher sends
/// again what was missed, all answers are those of a model when all is heard.
#[test]
fn answers_are_a_models() {
    let table = Table::new();
    let mut dice = Dice(7);
    let mut workers: Vec<Worker> = (1..=3).map(|number| Worker::new(number, 10_000)).collect();
    let mut one = Some(indexer(&table, |config| config));
    workers.iter().for_each(|worker| register(one.as_ref().unwrap(), worker.number, worker.source()));
    let (mut gaps, mut restarts) = (0, 0);
    for round in 0..60 {
        for worker in &mut workers {
            for _ in 0..1 + dice.roll(4) {
                let events = worker.change(&mut dice);
                match dice.roll(4) {
                    0 => drop(worker.source().lose(events)),
                    _ => drop(worker.source().publish(events)),
                }
            }
            match dice.roll(12) {
                0 => worker.source().hang_up(),
                1 => worker.restart(10_000),
                _ => {}
            }
        }
        if dice.roll(6) == 0 {
            let before = one.take().unwrap();
            gaps += before.counts().gaps.get();
            restarts += before.counts().restarts.get();
            drop(before);
            // What is told meanwhile is heard later.
            let worker = &mut workers[0];
            let events = worker.change(&mut dice);
            worker.source().publish(events);
            one = Some(indexer(&table, |config| config));
        }
        for worker in &mut workers {
            // Behind it, what was lost is missed.
            worker.source().wait_for(1);
            let events = worker.change(&mut dice);
            worker.source().publish(events);
        }
        agrees(one.as_ref().unwrap(), &workers, &format!("round {round}"));
    }
    let counts = one.as_ref().unwrap().counts();
    gaps += counts.gaps.get();
    restarts += counts.restarts.get();
    assert!(gaps > 10 && restarts > 2, "{gaps} gaps, {restarts} restarts");
    assert!(counts.orphans.get() == 0 && counts.garbage.get() == 0 && counts.ignored.get() == 0);
}

/// Batches that are there when the first one is taken in are written with it.
#[test]
fn what_has_come_is_one_run() {
    let (table, source) = (Table::new(), Source::new(1_000).unwrap());
    let prompt: Vec<u32> = (1..=4_000).collect();
    for number in 0..1_000_u64 {
        let some = &prompt[number as usize * 4..][..4];
        source.publish(vec![stored(number.checked_sub(1), &[number], some, 4)]);
    }
    let indexer = indexer(&table, |config| config);
    register(&indexer, 1, &source);
    wait_for("all blocks", || scores(&indexer, &prompt) == expected(&[(1, 4_000)]));
    wait_for("all batches", || indexer.counts().batches.get() == 1_000);
    let runs = indexer.counts().runs.get();
    assert!(runs < 500, "{runs} runs");
}

/// Where nobody sends batches again, or not those that were missed, the worker is cleared, and what was lost is counted.
#[test]
fn what_is_lost_clears_the_worker() {
    for replays in [false, true] {
        let (table, source) = (Table::new(), Source::new(2).unwrap());
        let indexer = indexer(&table, |config| config);
        let mut body =
            json!({ "instance_id": 1, "endpoint": source.endpoint(), "model_name": "m", "block_size": 4 });
        if replays {
            body["replay_endpoint"] = json!(source.replay_endpoint());
        }
        assert_eq!(ask(&indexer, "POST /register", &body).0, 201);
        source.wait_for(1);
        let prompt: Vec<u32> = (1..=12).collect();
        source.publish(vec![stored(None, &[1, 2], &prompt[..8], 4)]);
        wait_for("two blocks", || scores(&indexer, &prompt) == expected(&[(1, 8)]));
        source.lose(vec![removed(&[1])]);
        for _ in 0..3 {
            source.lose(vec![]);
        }
        source.publish(vec![stored(None, &[1], &prompt[..4], 4)]);
        wait_for("one block", || scores(&indexer, &prompt) == expected(&[(1, 4)]));
        let counts = indexer.counts();
        assert_eq!((counts.gaps.get(), counts.cleared.get()), (1, 1), "{replays}");
        assert!(counts.lost.get() >= 3, "{}", counts.lost.get());
        // Its links are swept, and no others.
        wait_for("the link of the block that is gone is swept", || counts.swept.get() >= 1);
        source.publish(vec![removed(&[1])]);
        wait_for("none", || scores(&indexer, &prompt).is_empty());
        assert_eq!(counts.unknown.get(), 0);
    }
}

/// What is no batch, and what cannot be read, clears its worker and nobody else; a message that is too long ends the
/// connection. Blocks of another size are left out, and told.
#[test]
fn garbage_is_its_workers_own() {
    let table = Table::new();
    let (good, bad) = (Source::new(100).unwrap(), Source::new(100).unwrap());
    let indexer = indexer(&table, |config| IndexerConfig { message_max: 10_000, ..config });
    register(&indexer, 1, &good);
    register(&indexer, 2, &bad);
    let prompt: Vec<u32> = (1..=8).collect();
    let both = vec![stored(None, &[1, 2], &prompt, 4)];
    good.publish(both.clone());
    bad.publish(both.clone());
    let all = expected(&[(1, 8), (2, 8)]);
    wait_for("both", || scores(&indexer, &prompt) == all);
    let counts = indexer.counts();
    bad.publish(vec![stored(None, &[9], &(1..=16).collect::<Vec<u32>>(), 16)]);
    wait_for("blocks of another size", || counts.wrong_block_size.get() == 1);
    for garbage in [vec![0xc1], vec![], vec![0x92, 1, 2]] {
        bad.publish_bytes(garbage, true);
        wait_for("it is cleared", || scores(&indexer, &prompt) == expected(&[(1, 8)]));
        bad.publish(both.clone());
        wait_for("it tells again", || scores(&indexer, &prompt) == all);
    }
    assert_eq!(counts.garbage.get(), 3);
    // Frames that are no batch have no number, so nothing is missed.
    bad.send(&[b"topic"]);
    bad.send(&[b"", b"short", b"x"]);
    wait_for("five", || counts.garbage.get() == 5);
    let before = counts.connections.get();
    bad.send(&[b"", &[0; 8], &[0; 20_000]]);
    wait_for("it is connected to again", || counts.connections.get() > before);
    bad.publish(vec![removed(&[2])]);
    wait_for("the next batch is heard", || scores(&indexer, &prompt) == expected(&[(1, 8), (2, 4)]));
    assert!(counts.cleared.get() >= 3 && counts.restarts.get() == 0);
}

/// Blocks wait for their parent. Those that were removed meanwhile do not come.
#[test]
fn blocks_wait_for_their_parent() {
    let (table, source) = (Table::new(), Source::new(100).unwrap());
    let indexer = indexer(&table, |config| config);
    register(&indexer, 1, &source);
    let prompt: Vec<u32> = (1..=20).collect();
    source
        .publish(vec![stored(Some(2), &[3, 4], &prompt[8..16], 4), stored(Some(4), &[5], &prompt[16..], 4)]);
    source.publish(vec![stored(Some(1), &[2], &prompt[4..8], 4), removed(&[5])]);
    source.publish(vec![stored(None, &[1], &prompt[..4], 4)]);
    wait_for("four blocks", || scores(&indexer, &prompt) == expected(&[(1, 16)]));
    // Of parents that never come, the last ones wait.
    for number in 0..300 {
        source.publish(vec![stored(Some(1_000), &[2_000 + number], &prompt[..4], 4)]);
    }
    wait_for("some are dropped", || indexer.counts().orphans.get() == 300 - 256);
}

// ---- several over one table -------------------------------------------------------------------------

/// Two over one table: one takes events in, both answer, and the other one takes over at once when the first ends. Each
/// registers workers, and the one that takes events in hears them.
#[test]
fn one_of_two_takes_events_in() {
    let (table, source, other) = (Table::new(), Source::new(100).unwrap(), Source::new(100).unwrap());
    let long = |config| IndexerConfig { term: Duration::from_secs(3_600), ..config };
    let first = indexer(&table, long);
    wait_for("the first one takes events in", || first.is_active());
    let second = indexer(&table, long);
    register(&first, 1, &source);
    register(&second, 2, &other);
    let prompt: Vec<u32> = (1..=8).collect();
    source.publish(vec![stored(None, &[1, 2], &prompt, 4)]);
    other.publish(vec![stored(None, &[1], &prompt[..4], 4)]);
    for one in [&first, &second] {
        wait_for("both answer", || scores(one, &prompt) == expected(&[(1, 8), (2, 4)]));
    }
    assert!(first.is_active() && !second.is_active());
    drop(first);
    assert_eq!(scores(&second, &prompt), expected(&[(1, 8), (2, 4)]), "it has all from the first request on");
    wait_for("the second one takes events in", || second.is_active());
    source.publish(vec![removed(&[2])]);
    wait_for("what is told from then on", || scores(&second, &prompt) == expected(&[(1, 4), (2, 4)]));
}

/// A lease is taken from one that is there still, and goes on until its next renewal: its late words harm nobody.
#[test]
fn a_laggard_harms_nobody() {
    for seed in [11, 12, 13] {
        let (table, mut dice) = (Table::new(), Dice(seed));
        let mut workers: Vec<Worker> = (1..=2).map(|number| Worker::new(number, 10_000)).collect();
        let first = indexer(&table, |config| config);
        wait_for("the first one takes events in", || first.is_active());
        workers.iter().for_each(|worker| register(&first, worker.number, worker.source()));
        let tell = |workers: &mut Vec<Worker>, dice: &mut Dice| {
            for worker in workers {
                let events = worker.change(dice);
                worker.source().publish(events);
            }
        };
        (0..50).for_each(|_| tell(&mut workers, &mut dice));
        // Its term is over as soon as it has seen the lease twice between two renewals.
        let second = indexer(&table, |config| IndexerConfig { term: Duration::ZERO, ..config });
        wait_for("it takes over", || {
            tell(&mut workers, &mut dice);
            second.is_active()
        });
        (0..50).for_each(|_| tell(&mut workers, &mut dice));
        wait_for("the first one is told so", || !first.is_active());
        tell(&mut workers, &mut dice);
        // Both tell what the second one knows.
        for one in [&first, &second] {
            agrees(one, &workers, &format!("seed {seed}"));
        }
        let took = |one: &Indexer| one.counts().takeovers.get();
        assert_eq!((took(&first), took(&second)), (1, 1));
        assert_eq!(second.counts().lost.get() + second.counts().restarts.get(), 0, "nothing was lost");
    }
}

/// A thousand publishers, each on a connection of its own.
#[test]
fn a_thousand_publishers_are_heard() {
    let (table, source) = (Table::of(1_024), Source::new(10).unwrap());
    let indexer = indexer(&table, |config| config);
    for instance in 0..1_000 {
        let body = json!({
            "instance_id": instance, "endpoint": source.endpoint(), "model_name": "m", "block_size": 4,
        });
        assert_eq!(ask(&indexer, "POST /register", &body).0, 201);
    }
    source.wait_for(1_000);
    let prompt: Vec<u32> = (1..=8).collect();
    source.publish(vec![stored(None, &[1, 2], &prompt, 4)]);
    wait_for("all have two blocks", || {
        let scores = scores(&indexer, &prompt);
        scores.len() == 1_000 && scores.values().all(|tokens| *tokens == 8)
    });
}

/// Where the table evicts, a worker that removes a block of which nothing is known any more is cleared; elsewhere it is only
/// counted.
#[test]
fn what_was_evicted_is_not_told_for_ever() {
    for evicts in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let table = PlacementTable::single(64).unwrap();
        let address = Address::Shm(dir.path().join("table.sock"));
        let how = ServerConfig::new(address, table.config(TableSize::Keys(1_000)));
        let how = if evicts { how.evict(Evict::Clock) } else { how };
        let server = Server::start(how).unwrap();
        table.mark(&server).unwrap();
        let one =
            Indexer::start(Client::connect(server.address()).unwrap(), IndexerConfig::new(at(0))).unwrap();
        let source = Source::new(100).unwrap();
        register(&one, 1, &source);
        let prompt: Vec<u32> = (1..=8).collect();
        source.publish(vec![stored(None, &[1, 2], &prompt, 4)]);
        wait_for("two blocks", || scores(&one, &prompt) == expected(&[(1, 8)]));
        source.publish(vec![removed(&[99])]);
        let left = if evicts { expected(&[]) } else { expected(&[(1, 8)]) };
        wait_for("the batch", || one.counts().unknown.get() == 1 && one.counts().batches.get() == 2);
        assert_eq!((scores(&one, &prompt), one.counts().cleared.get()), (left, u64::from(evicts)));
    }
}

/// Whoever believes that it takes events in hides no block of a worker that another indexer has registered, or is taking
/// over.
#[test]
fn an_old_look_hides_no_worker() {
    let (table, nobody) = (Table::new(), HashSet::new());
    let mut store = table.store();
    let one = Registered {
        instance: "1".into(),
        rank: 0,
        model: "m".into(),
        tenant: "default".into(),
        block_size: NonZeroU32::new(4).unwrap(),
        lora: String::new(),
        salt: String::new(),
        endpoint: "tcp://127.0.0.1:1".parse().unwrap(),
        replay: None,
        reach: Reach::Loopback,
        incarnation: 1,
        next: None,
    };
    let marked = Registered { next: Some(2), ..one.clone() };
    let new = Registered { incarnation: 2, ..one.clone() };
    let place = Place { rank: 0, tier: Tier::Gpu };
    let left = |store: &mut Store| {
        store.hide_others(&nobody).unwrap();
        store.index.holders().unwrap().iter().map(|holder| holder.name().to_owned()).collect::<BTreeSet<_>>()
    };
    let names = |all: &[&Registered]| all.iter().map(|one| place.holder_name(one)).collect::<BTreeSet<_>>();
    assert!(store.swap_worker(None, Some(&one)).unwrap());
    store.index.holder(&place.holder_name(&one)).unwrap();
    assert_eq!(left(&mut store), names(&[&one]));
    assert!(store.swap_worker(Some(&one), Some(&marked)).unwrap());
    store.index.holder(&place.holder_name(&new)).unwrap();
    assert_eq!(left(&mut store), names(&[&one, &new]));
    assert!(store.swap_worker(Some(&marked), Some(&new)).unwrap());
    assert_eq!(left(&mut store), names(&[&new]));
    assert!(store.swap_worker(Some(&new), None).unwrap());
    assert_eq!(left(&mut store), names(&[]));
}

/// The only entry of a kind.
fn entry(table: &Table, kind: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut client, mut found) = (table.client(), None);
    let mut scan = client.scan().prefix(kind).values(true);
    while let Some(batch) = scan.next_batch().unwrap() {
        for entry in batch {
            assert!(found.replace((entry.key, entry.value.unwrap())).is_none());
        }
    }
    found.expect("an entry")
}

/// A worker that could not be unregistered is heard on.
#[test]
fn who_stays_is_heard() {
    let (table, source) = (Table::new(), Source::new(100).unwrap());
    let indexer = indexer(&table, |config| config);
    wait_for("it takes events in", || indexer.is_active());
    register(&indexer, 1, &source);
    let (mut client, (key, value)) = (table.client(), entry(&table, b"#r"));
    // As another version might write it: nobody here knows these bytes.
    client.put(&key, &[&value[..], b" "].concat()).unwrap();
    let who = json!({ "instance_id": 1, "model_name": "m" });
    assert_eq!(ask(&indexer, "POST /unregister", &who).0, 503);
    source.publish(vec![stored(None, &[1], &[1, 2, 3, 4], 4)]);
    wait_for("a block", || scores(&indexer, &[1, 2, 3, 4]) == expected(&[(1, 4)]));
}

/// What was left of a registration is nothing of the next one.
#[test]
fn a_registration_begins_with_nothing() {
    let (table, source) = (Table::new(), Source::new(100).unwrap());
    let indexer = indexer(&table, |config| config);
    wait_for("it takes events in", || indexer.is_active());
    register(&indexer, 1, &source);
    source.publish(vec![stored(None, &[1], &[1, 2, 3, 4], 4)]);
    wait_for("a block", || scores(&indexer, &[1, 2, 3, 4]) == expected(&[(1, 4)]));
    let (key, value) = entry(&table, b"#n");
    assert_eq!(ask(&indexer, "POST /unregister", &json!({ "instance_id": 1, "model_name": "m" })).0, 200);
    // As if the indexer had been killed before it forgot that.
    table.client().put(&key, &value).unwrap();
    register(&indexer, 1, &source);
    source.publish(vec![stored(None, &[2], &[5, 6, 7, 8], 4)]);
    wait_for("another block", || scores(&indexer, &[5, 6, 7, 8]) == expected(&[(1, 4)]));
    // What it told before, it is asked for again.
    assert_eq!(scores(&indexer, &[1, 2, 3, 4]), expected(&[(1, 4)]));
}
