//! Four engines and a router over one index, driven by a trace, while everything is killed and started again:
//! `cargo run -p oneread-prefix --example kv_cache [TRACE.jsonl]`.
//!
//! Each is a process of its own. An engine keeps blocks in a pool, a file that the others read. The index of
//! locations tells where a block is, the index of holders which engine has the longest prefix. Then the driver
//! kills engines, the router, and the server of both indexes (SIGKILL), each in the middle of its work.
//!
//! The order of an engine's steps is what keeps locations right:
//!
//! * A block's bytes are in the pool before its location is in the index.
//! * A location is out of the index before its place in the pool is used again.
//! * An engine that begins with an empty pool first has its owner removed, so nothing of before is found any more.
//!
//! A reader fetches by a location, then asks whether it still was the same entry. If so, the bytes are the block's.

use oneread::{
    Address, Backing, Client, ClientOptions, OwnerOptions, PutOptions, Server, ServerConfig, StartMode,
    TableSize,
};
use oneread_prefix::{
    Digests, Found, Key, Location, LocationIndex, PlacementIndex, PlacementTable, PrefixError,
};
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ENGINES: usize = 4;
/// Blocks in an engine's pool, and bytes of one.
const POOL: usize = 120;
const BLOCK: usize = 4_096;
/// Names a child's part, and the folder of all.
const ROLE: &str = "ONEREAD_KV_ROLE";
const FOLDER: &str = "ONEREAD_KV_FOLDER";
/// Nothing here takes as long, unless it hangs.
const SOON: Duration = Duration::from_secs(60);

// ---- the trace ------------------------------------------------------------------------------------

#[derive(serde::Deserialize)]
struct Request {
    hash_ids: Vec<u64>,
}

/// The prompts of a trace, as digests of blocks: no more of one than a pool has room for.
fn prompts(trace: &Path) -> Outcome<Vec<Vec<Key>>> {
    let mut prompts = Vec::new();
    for (number, line) in std::fs::read_to_string(trace)?.lines().enumerate() {
        let request: Request = serde_json::from_str(line)
            .map_err(|error| format!("line {} of {} is no request: {error}", number + 1, trace.display()))?;
        let key = |id: u64| {
            u128::from(id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes()
        };
        prompts.push(request.hash_ids.into_iter().take(POOL).map(key).collect());
    }
    Ok(prompts)
}

/// A small trace of the shape that Mooncake publishes: conversations that grow, behind one of three system prompts.
fn small_trace() -> String {
    let (mut lines, mut chats, mut next) = (String::new(), vec![Vec::new(); 24], 100u64);
    for n in 0..400usize {
        let chat: &mut Vec<u64> = &mut chats[n * 7 % 24];
        if chat.is_empty() || chat.len() > 24 {
            *chat = (0..6).map(|block| (n as u64 % 3) * 6 + block).collect();
        }
        chat.extend(next..next + 2);
        next += 2;
        let line = format!(
            "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": 200, \"hash_ids\": {chat:?}}}\n",
            n * 100,
            chat.len() * 512
        );
        lines.push_str(&line);
    }
    lines
}

// ---- the server -----------------------------------------------------------------------------------

fn address(folder: &Path, table: &str) -> Address {
    Address::Shm(folder.join(format!("{table}.sock")))
}

/// Serves both tables. A server that was killed left them in their files; this one takes them over.
fn serve(folder: &Path) -> Outcome<()> {
    let size = TableSize::Keys(10_000);
    let placements = PlacementTable::default();
    let tables = [("locations", LocationIndex::config(size)), ("holders", placements.config(size))];
    let mut servers = Vec::new();
    for (name, table) in tables {
        let backing = Backing::File(folder.join(format!("{name}.region")));
        let config = ServerConfig::new(address(folder, name), table).backing(backing);
        let server = Server::start(config.start(StartMode::OpenOrCreate))?;
        if name == "holders" {
            placements.mark(&server)?;
        }
        servers.push(server);
    }
    loop {
        std::thread::park();
    }
}

/// Tries again while the server is away.
fn until_served<T>(mut what: impl FnMut() -> Result<T, PrefixError>) -> Result<T, PrefixError> {
    let begun = Instant::now();
    loop {
        match what() {
            Err(
                PrefixError::Change(_) | PrefixError::Connect(_) | PrefixError::Get(_) | PrefixError::Scan(_),
            ) if begun.elapsed() < SOON => std::thread::sleep(Duration::from_millis(5)),
            done => return done,
        }
    }
}

fn client(folder: &Path, table: &str) -> Result<Client, PrefixError> {
    // No longer than the router waits for an engine, many times over.
    let options = ClientOptions::new().deadline(Duration::from_secs(5));
    until_served(|| Ok(Client::connect_with(&address(folder, table), options.clone())?))
}

// ---- an engine ------------------------------------------------------------------------------------

struct Engine {
    folder: PathBuf,
    pool: File,
    pools: HashMap<u32, File>,
    blocks: LocationIndex,
    holders: PlacementIndex,
    holder: oneread_prefix::Holder,
    endpoint: u32,
    /// Blocks in the pool, and their places. The oldest leaves first.
    places: HashMap<Key, usize>,
    order: VecDeque<Key>,
    free: Vec<usize>,
}

/// What a block's place in a pool has.
fn bytes_of(key: &Key) -> Vec<u8> {
    key.iter().copied().cycle().take(BLOCK).collect()
}

impl Engine {
    fn start(folder: &Path, number: usize) -> Outcome<Engine> {
        let name = format!("engine-{number}");
        let mut all = LocationIndex::new(client(folder, "locations")?)?;
        let endpoint = until_served(|| all.endpoint(&name))?;
        // What it had before is gone for all readers, before the pool is used for anything else.
        let owner = number as u16 + 1;
        until_served(|| all.remove_owner(owner))?;
        let options = OwnerOptions::new(owner).absent_for(Duration::from_secs(10));
        let blocks = until_served(|| all.as_owner(options))?;
        let mut holders = PlacementIndex::create(client(folder, "holders")?, PlacementTable::default())?;
        until_served(|| holders.drop_holder(&name))?;
        let holder = until_served(|| holders.holder(&name))?;
        let path = folder.join(&name);
        let pool = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        pool.set_len((POOL * BLOCK) as u64)?;
        Ok(Engine {
            folder: folder.into(),
            pool,
            pools: HashMap::new(),
            blocks,
            holders,
            holder,
            endpoint,
            places: HashMap::new(),
            order: VecDeque::new(),
            free: (0..POOL).collect(),
        })
    }

    fn location(&self, place: usize) -> Location {
        let address = (place * BLOCK) as u64;
        Location { endpoint: self.endpoint, tier: 1, address, length: BLOCK as u32 }
    }

    /// Fetches what others have of a prompt, and stores all of it. Returns how many blocks were fetched and were
    /// still in the index afterwards, and how many of these were other bytes.
    fn answer(&mut self, prompt: &[Key]) -> Outcome<(usize, usize)> {
        let digests = Digests::from(prompt);
        let mut found = vec![Found::default(); prompt.len()];
        let there = until_served(|| self.blocks.locate_prefix(&digests, &mut found))?;
        let mut fetched = Vec::new();
        for found in &found[..there] {
            let mut bytes = vec![0; BLOCK];
            if let Some(location) = found.location()
                && let Some(pool) = self.pool_of(location.endpoint)?
            {
                pool.read_exact_at(&mut bytes, location.address)?;
            }
            fetched.push(bytes);
        }
        let mut same = vec![false; there];
        let digests = Digests::from(&prompt[..there]);
        until_served(|| self.blocks.revalidate(&digests, &found[..there], &mut same))?;
        let right = |n: &usize| fetched[*n] == bytes_of(&prompt[*n]);
        let valid: Vec<usize> = (0..there).filter(|&n| same[n]).collect();
        let wrong = valid.iter().filter(|n| !right(n)).count();
        let new: Vec<Key> = prompt.iter().filter(|key| !self.places.contains_key(*key)).copied().collect();
        self.store(&new)?;
        Ok((valid.len(), wrong))
    }

    fn pool_of(&mut self, endpoint: u32) -> Outcome<Option<&File>> {
        if !self.pools.contains_key(&endpoint) {
            let Some(name) = self.blocks.endpoint_name(endpoint)? else { return Ok(None) };
            let pool = File::open(self.folder.join(name))?;
            self.pools.insert(endpoint, pool);
        }
        Ok(self.pools.get(&endpoint))
    }

    fn store(&mut self, new: &[Key]) -> Outcome<()> {
        let short = new.len().saturating_sub(self.free.len());
        let gone: Vec<Key> = self.order.drain(..short.min(self.order.len())).collect();
        let places: Vec<usize> = gone.iter().filter_map(|key| self.places.remove(key)).collect();
        let at: Vec<Location> = places.iter().map(|&place| self.location(place)).collect();
        let digests = Digests::from(&gone[..]);
        until_served(|| self.blocks.remove(&digests, &at))?;
        until_served(|| self.holders.remove(&self.holder, &digests, 0))?;
        // Now, and no sooner, these places may be used again.
        self.free.extend(places);
        let mut at = Vec::new();
        for key in new {
            let place = self.free.pop().ok_or("a prompt is longer than the pool")?;
            self.pool.write_all_at(&bytes_of(key), (place * BLOCK) as u64)?;
            self.places.insert(*key, place);
            self.order.push_back(*key);
            at.push(self.location(place));
        }
        let digests = Digests::from(new);
        for put in until_served(|| self.blocks.put(&digests, &at, PutOptions::new()))? {
            put?;
        }
        until_served(|| self.holders.add(&self.holder, &digests, 0))?;
        Ok(())
    }
}

fn engine(folder: &Path, number: usize) -> Outcome<()> {
    let prompts = prompts(&folder.join("trace.jsonl"))?;
    let mut engine = Engine::start(folder, number)?;
    let mut log = OpenOptions::new().create(true).append(true).open(folder.join(format!("log-{number}")))?;
    let path = folder.join(format!("{number}.sock"));
    let _ = std::fs::remove_file(&path);
    let socket = UnixDatagram::bind(path)?;
    let mut bytes = [0; 8];
    loop {
        socket.recv(&mut bytes)?;
        let (valid, wrong) = engine.answer(&prompts[u64::from_le_bytes(bytes) as usize])?;
        log.write_all(format!("{valid} {wrong}\n").as_bytes())?;
        // A router that is gone asks again.
        let _ = socket.send_to(&bytes, folder.join("router.sock"));
    }
}

// ---- the router -----------------------------------------------------------------------------------

/// Sends each prompt to the engine with the longest prefix, and to another one if that does not answer.
fn router(folder: &Path) -> Outcome<()> {
    let prompts = prompts(&folder.join("trace.jsonl"))?;
    let at = folder.join("router.at");
    let mut next: usize = std::fs::read_to_string(&at).ok().and_then(|at| at.parse().ok()).unwrap_or(0);
    // It has no state but its place in the trace: who has what is in the index.
    let mut index = PlacementIndex::create(client(folder, "holders")?, PlacementTable::default())?;
    let path = folder.join("router.sock");
    let _ = std::fs::remove_file(&path);
    let socket = UnixDatagram::bind(path)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut found = Vec::new();
    while next < prompts.len() {
        let prompt = Digests::from(&prompts[next][..]);
        until_served(|| index.match_prefix(&prompt, &mut found))?;
        let chosen =
            found.first().and_then(|best| best.holder.name().strip_prefix("engine-")?.parse::<usize>().ok());
        let begun = Instant::now();
        let mut engine = chosen.unwrap_or(next % ENGINES);
        while !ask(folder, &socket, engine, next)? {
            engine = (engine + 1) % ENGINES;
            if begun.elapsed() > SOON {
                return Err(format!("no engine has answered request {next}").into());
            }
        }
        next += 1;
        std::fs::write(&at, next.to_string())?;
        if next.is_multiple_of(20) {
            until_served(|| index.clean(500))?;
        }
    }
    Ok(())
}

/// Whether the engine has answered.
fn ask(folder: &Path, socket: &UnixDatagram, engine: usize, request: usize) -> Outcome<bool> {
    let number = (request as u64).to_le_bytes();
    if socket.send_to(&number, folder.join(format!("{engine}.sock"))).is_err() {
        std::thread::sleep(Duration::from_millis(5));
        return Ok(false);
    }
    let mut answer = [0; 8];
    while socket.recv(&mut answer).is_ok() {
        if answer == number {
            return Ok(true);
        }
    }
    Ok(false)
}

// ---- the driver -----------------------------------------------------------------------------------

/// A process of this example. It is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path, role: &str) -> Outcome<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    if cfg!(test) {
        command.args(["child", "--exact", "--nocapture"]).stdout(std::process::Stdio::null());
    }
    Ok(Process(command.env(ROLE, role).env(FOLDER, folder).spawn()?))
}

/// What a child of this example does.
fn role(role: &str, folder: &Path) -> Outcome<()> {
    match role.split_once(' ') {
        None if role == "server" => serve(folder),
        None => router(folder),
        Some((_, number)) => engine(folder, number.parse()?),
    }
}

/// What came of a trace.
#[derive(Debug, Default)]
struct Told {
    answered: usize,
    /// Blocks that were fetched, and were still the same entry afterwards.
    valid: usize,
    /// Of these, other bytes than the block's.
    wrong: usize,
    kills: usize,
}

fn drive(folder: &Path, requests: usize) -> Outcome<Told> {
    let mut told = Told::default();
    let mut server = start(folder, "server")?;
    let name = |number: usize| format!("engine {number}");
    let mut engines: Vec<Process> = Vec::new();
    for number in 0..ENGINES {
        engines.push(start(folder, &name(number))?);
    }
    let mut router = start(folder, "router")?;
    // Who is killed when so many tenths of the requests are answered.
    let kills = ["engine", "server", "router", "engine", "server", "engine", "router", "engine", "server"];
    let begun = Instant::now();
    for (tenth, who) in (1..).zip(kills) {
        let due = requests * tenth / 10;
        while std::fs::read_to_string(folder.join("router.at"))
            .map_or(true, |at| at.parse::<usize>().map_or(true, |at| at < due))
        {
            std::thread::sleep(Duration::from_millis(2));
            if let Some(status) = router.0.try_wait()? {
                return Err(format!("the router ended too early: {status}").into());
            }
            if begun.elapsed() > 3 * SOON {
                return Err("the trace takes too long".into());
            }
        }
        told.kills += 1;
        match who {
            "server" => {
                drop(server);
                server = start(folder, "server")?;
            }
            "router" => {
                drop(router);
                router = start(folder, "router")?;
            }
            _ => {
                let number = tenth % ENGINES;
                drop(engines.remove(number));
                engines.insert(number, start(folder, &name(number))?);
            }
        }
    }
    let status = router.0.wait()?;
    if !status.success() {
        return Err(format!("the router failed: {status}").into());
    }
    for number in 0..ENGINES {
        let log = std::fs::read_to_string(folder.join(format!("log-{number}"))).unwrap_or_default();
        // The last line of an engine that was killed may be half a line.
        for (valid, wrong) in log.lines().filter_map(|line| line.split_once(' ')) {
            told.answered += 1;
            told.valid += valid.parse::<usize>().unwrap_or(0);
            told.wrong += wrong.parse::<usize>().unwrap_or(0);
        }
    }
    Ok(told)
}

fn run(trace: Option<&Path>) -> Outcome<Told> {
    let folder = tempfile::tempdir()?;
    let text = match trace {
        Some(path) => std::fs::read_to_string(path)?,
        None => small_trace(),
    };
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, text)?;
    let requests = prompts(&path)?.len();
    drive(folder.path(), requests)
}

fn main() -> Outcome<()> {
    if let (Ok(name), Ok(folder)) = (std::env::var(ROLE), std::env::var(FOLDER)) {
        return role(&name, Path::new(&folder));
    }
    let told = run(std::env::args().nth(1).as_deref().map(Path::new))?;
    println!("{} requests were answered, while {} processes were killed", told.answered, told.kills);
    println!("{} blocks were fetched and valid afterwards; {} of them wrong", told.valid, told.wrong);
    if told.wrong == 0 { Ok(()) } else { Err("wrong blocks".into()) }
}

/// What a child does in the tests. By itself it does nothing.
#[test]
fn child() {
    if let (Ok(name), Ok(folder)) = (std::env::var(ROLE), std::env::var(FOLDER)) {
        role(&name, Path::new(&folder)).unwrap();
    }
}

/// Engines, router and server are killed and started again. Every request is answered, blocks are shared, and none
/// that was valid is wrong.
#[test]
fn nothing_is_wrong_when_everything_is_killed() {
    let told = run(None).unwrap();
    assert_eq!((told.wrong, told.kills), (0, 9), "{told:?}");
    assert!(told.answered >= 390 && told.valid > 2_000, "{told:?}");
}
