//! GETs of random present keys, by one thread, from what people use for that now: oneread and iceoryx2's blackboard
//! in memory of another process, LMDB on /dev/shm, Redis and memcached over Unix sockets, DashMap in this process.
//!
//! Each answer's bytes are checked. Rounds alternate; figures are medians of the rounds' own.

use dashmap::DashMap;
use oneread::{Address, Client, Config, PutMode, Server, ServerConfig, TableSize};
use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;
type Key = [u8; 16];
type Value = [u8; 32];

const ROUNDS: usize = 9;
/// GETs of a round, for those that take less than a microsecond or some, and for those that take a system call.
const QUICK: u64 = 1_000_000;
const SLOW: u64 = 20_000;
/// Entries of the blackboard. It looks an entry up by comparing all keys.
const BOARD: u64 = 1_000;

/// SplitMix64's mixer (Steele et al., OOPSLA'14).
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

fn key(n: u64) -> Key {
    // Text, since memcached and Redis' users have it.
    let mut key = *b"0000000000000000";
    for (i, at) in key.iter_mut().enumerate() {
        *at = b"0123456789abcdef"[(mix(n + 1) >> (4 * i) & 15) as usize];
    }
    key
}

fn value(n: u64) -> Value {
    let mut value = [n as u8; 32];
    value[..16].copy_from_slice(&key(n));
    value
}

/// One way to GET. It panics if the key's value is not found.
struct Way {
    name: String,
    gets: u64,
    get: Box<dyn FnMut(u64)>,
}

fn way(name: impl Into<String>, gets: u64, get: impl FnMut(u64) + 'static) -> Way {
    Way { name: name.into(), gets, get: Box::new(get) }
}

/// Ends a server with this program.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket(path: &Path) -> Outcome<UnixStream> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// This program again, as the server of `what` (see [`serve`]).
fn child(what: &str, folder: &Path, keys: u64) -> Outcome<Running> {
    let keys = keys.to_string();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--serve", what, &folder.to_string_lossy(), &keys])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    if line.trim() != "ready" {
        return Err(format!("the server of {what} has not started").into());
    }
    Ok(Running(child))
}

fn wait_for_the_end() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

fn at(folder: &Path) -> Outcome<Address> {
    Ok(format!("shm:{}", folder.join("oneread.sock").display()).parse()?)
}

/// The child's part.
fn serve(what: &str, folder: &Path, keys: u64) -> Outcome<()> {
    match what {
        "oneread" => {
            let config = Config::new().size(TableSize::up_to(4 << 30));
            let server = Server::start(ServerConfig::new(at(folder)?, config))?;
            for n in 0..keys {
                server.index().put(&key(n), &value(n), PutMode::Upsert)?;
            }
            wait_for_the_end();
            server.stop();
        }
        "iceoryx2" => {
            use iceoryx2::prelude::*;
            let node = NodeBuilder::new().create::<ipc::Service>()?;
            let name = folder.to_string_lossy();
            let mut creator = node.service_builder(&name.as_ref().try_into()?).blackboard_creator::<Key>();
            for n in 0..keys.min(BOARD) {
                creator = creator.add::<Value>(key(n), value(n));
            }
            let _blackboard = creator.create()?;
            wait_for_the_end();
        }
        _ => return Err("no such server".into()),
    }
    Ok(())
}

fn oneread(folder: &Path) -> Outcome<Vec<Way>> {
    let mut client = Client::connect(&at(folder)?)?;
    let mut batches = client.clone();
    let mut found = Vec::new();
    let get = move |n| {
        assert!(client.get_into(&key(n), &mut found).expect("a GET"));
        assert_eq!(found, value(n));
    };
    let mut keys = Vec::new();
    let get_many = move |n| {
        keys.push(n);
        if keys.len() == 128 {
            let texts: Vec<Key> = keys.iter().map(|&n| key(n)).collect();
            for (n, found) in keys.drain(..).zip(batches.get_many(&texts).expect("GETs")) {
                assert_eq!(found.expect("a GET").as_deref(), Some(&value(n)[..]));
            }
        }
    };
    Ok(vec![
        way("oneread, another process's table", QUICK, get),
        way("oneread, the same, 128 keys a call", QUICK, get_many),
    ])
}

fn dashmap(keys: u64) -> Way {
    let map: DashMap<Key, Value, rustc_hash::FxBuildHasher> = (0..keys).map(|n| (key(n), value(n))).collect();
    way("DashMap, in this process", QUICK, move |n| {
        assert_eq!(*map.get(&key(n)).expect("present"), value(n));
    })
}

fn lmdb(folder: &Path, keys: u64) -> Outcome<Way> {
    use heed::types::Bytes;
    let folder = folder.join("lmdb");
    std::fs::create_dir(&folder)?;
    // SAFETY: nobody else opens or changes the files of this folder, which was made for this run.
    let env = unsafe { heed::EnvOpenOptions::new().map_size(2 << 30).open(&folder)? };
    let mut txn = env.write_txn()?;
    let database: heed::Database<Bytes, Bytes> = env.create_database(&mut txn, None)?;
    for n in 0..keys {
        database.put(&mut txn, &key(n), &value(n))?;
    }
    txn.commit()?;
    // A transaction for each GET, so that it sees the newest value, as the others do.
    Ok(way("LMDB on /dev/shm", QUICK / 4, move |n| {
        let txn = env.read_txn().expect("a transaction");
        assert_eq!(database.get(&txn, &key(n)).expect("a GET"), Some(&value(n)[..]));
    }))
}

/// A reader looks an entry up once and keeps it: the keys are those that the blackboard was made with.
fn iceoryx2(folder: &Path, keys: u64) -> Outcome<Way> {
    use iceoryx2::prelude::*;
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let name = folder.to_string_lossy();
    let board = node.service_builder(&name.as_ref().try_into()?).blackboard_opener::<Key>().open()?;
    let reader = board.reader_builder().create()?;
    let board_keys = keys.min(BOARD);
    let entries: Vec<_> =
        (0..board_keys).map(|n| reader.entry::<Value>(&key(n))).collect::<Result<_, _>>()?;
    Ok(way(format!("iceoryx2's blackboard, {board_keys} entries held"), QUICK, move |n| {
        let _ = (&node, &board, &reader);
        let n = n % board_keys;
        assert_eq!(*entries[n as usize].get(), value(n));
    }))
}

/// Fills by `set`, and checks the answer that `expect` gives.
fn over_a_socket(
    name: &str,
    path: &Path,
    keys: u64,
    set: fn(u64) -> Vec<u8>,
    ok: &'static [u8],
    request: fn(u64) -> Vec<u8>,
    expect: fn(u64) -> Vec<u8>,
    server: Running,
) -> Outcome<Way> {
    let mut stream = socket(path)?;
    for chunk in (0..keys).collect::<Vec<_>>().chunks(100) {
        let all: Vec<u8> = chunk.iter().flat_map(|&n| set(n)).collect();
        stream.write_all(&all)?;
        let mut answers = vec![0; ok.len() * chunk.len()];
        stream.read_exact(&mut answers)?;
        assert_eq!(answers, ok.repeat(chunk.len()));
    }
    let mut answer = Vec::new();
    Ok(way(name, SLOW, move |n| {
        let _ = &server;
        stream.write_all(&request(n)).expect("a request");
        let expected = expect(n);
        answer.resize(expected.len(), 0);
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, expected);
    }))
}

fn bulk(part: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat()
}

fn redis(folder: &Path, keys: u64) -> Outcome<Way> {
    let path = folder.join("redis.sock");
    let options = ["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"];
    let server = Command::new("redis-server").args(options).arg(&path).stdout(Stdio::null()).spawn()?;
    over_a_socket(
        "Redis, Unix socket",
        &path,
        keys,
        |n| [b"*3\r\n".as_slice(), &bulk(b"SET"), &bulk(&key(n)), &bulk(&value(n))].concat(),
        b"+OK\r\n",
        |n| [b"*2\r\n".as_slice(), &bulk(b"GET"), &bulk(&key(n))].concat(),
        |n| bulk(&value(n)),
        Running(server),
    )
}

fn memcached(folder: &Path, keys: u64) -> Outcome<Way> {
    let path = folder.join("memcached.sock");
    let server = Command::new("memcached").args(["-u", "root", "-m", "1024", "-s"]).arg(&path).spawn()?;
    over_a_socket(
        "memcached, Unix socket",
        &path,
        keys,
        |n| [b"set ".as_slice(), &key(n), b" 0 0 32\r\n", &value(n), b"\r\n"].concat(),
        b"STORED\r\n",
        |n| [b"get ".as_slice(), &key(n), b"\r\n"].concat(),
        |n| [b"VALUE ".as_slice(), &key(n), b" 0 32\r\n", &value(n), b"\r\nEND\r\n"].concat(),
        Running(server),
    )
}

fn main() -> Outcome<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, what, folder, keys] = &given[..]
        && flag == "--serve"
    {
        return serve(what, &PathBuf::from(folder), keys.parse()?);
    }
    let keys: u64 = given.first().map_or(Ok(1_000_000), |keys| keys.parse())?;
    let folder = tempfile::Builder::new().prefix("oneread-beside").tempdir_in("/dev/shm")?;
    let folder = folder.path();
    let _servers = [child("oneread", folder, keys)?, child("iceoryx2", folder, keys)?];
    let mut ways = oneread(folder)?;
    // What is in every figure.
    ways.push(way("keys and checks alone", QUICK, |n| {
        assert_eq!(black_box(value(n))[..16], black_box(key(n)));
    }));
    ways.push(dashmap(keys));
    for made in [iceoryx2(folder, keys), lmdb(folder, keys), redis(folder, keys), memcached(folder, keys)] {
        match made {
            Ok(way) => ways.push(way),
            Err(error) => eprintln!("left out: {error}"),
        }
    }
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..=ROUNDS {
        for (at, way) in ways.iter_mut().enumerate() {
            let first = mix((round << 32 | at) as u64);
            let start = Instant::now();
            for i in 0..way.gets {
                (way.get)((u128::from(mix(first + i)) * u128::from(keys) >> 64) as u64);
            }
            // The first round touches pages.
            if round > 0 {
                times[at].push(start.elapsed().as_nanos() as f64 / way.gets as f64);
            }
        }
    }
    println!(
        "{keys} keys of 16 bytes with values of 32; ns a GET: median (lowest, highest) of {ROUNDS} rounds"
    );
    for (way, times) in ways.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{:40} {:9.0} ({:.0}, {:.0})", way.name, times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
    }
    Ok(())
}
