//! The systems: how each is started and filled, and what a put and a GET are.

use clap::ValueEnum;
use oneread::{Address, Client, Config, Fsync, LogConfig, PutMode, Server, ServerConfig, TableSize};
use redb::ReadableDatabase;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
/// Puts or gets a key, by its number.
pub type Call = Box<dyn FnMut(u64) + Send>;

pub const KEY_BYTES: usize = 16;
pub const VALUE_BYTES: usize = 100;
/// Commands that are sent to Redis at once to fill it.
const PIPELINE: usize = 1_000;
const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("all");

/// SplitMix64's mixer (Steele et al., OOPSLA'14).
pub fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

pub fn key(n: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mix(n + 1).to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// A value of a key, its `nth`.
pub fn value(n: u64, nth: u64) -> [u8; VALUE_BYTES] {
    let mut value = [n as u8; VALUE_BYTES];
    value[..KEY_BYTES].copy_from_slice(&key(n));
    value[KEY_BYTES..KEY_BYTES + 8].copy_from_slice(&nth.to_le_bytes());
    value
}

/// A system, and when what it was told is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Oneread(Option<Synced>),
    Redis(Option<Synced>),
    Lmdb(Commits),
    Redb(Commits),
}

/// When a server's log is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    EverySecond,
    Always,
}

/// Whether a transaction's end waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    Unsynced,
    Synced,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Product {
    Oneread,
    Redis,
    Lmdb,
    Redb,
}

impl System {
    pub const ALL: [System; 10] = [
        System::Oneread(None),
        System::Oneread(Some(Synced::EverySecond)),
        System::Oneread(Some(Synced::Always)),
        System::Redis(None),
        System::Redis(Some(Synced::EverySecond)),
        System::Redis(Some(Synced::Always)),
        System::Lmdb(Commits::Unsynced),
        System::Lmdb(Commits::Synced),
        System::Redb(Commits::Unsynced),
        System::Redb(Commits::Synced),
    ];

    pub fn name(self) -> &'static str {
        match self {
            System::Oneread(None) => "oneread, no log",
            System::Oneread(Some(Synced::EverySecond)) => "oneread, `--fsync 1s`",
            System::Oneread(Some(Synced::Always)) => "oneread, `--fsync always`",
            System::Redis(None) => "Redis, no AOF",
            System::Redis(Some(Synced::EverySecond)) => "Redis, `appendfsync everysec`",
            System::Redis(Some(Synced::Always)) => "Redis, `appendfsync always`",
            System::Lmdb(Commits::Unsynced) => "LMDB, `MDB_NOSYNC`",
            System::Lmdb(Commits::Synced) => "LMDB, synced",
            System::Redb(Commits::Unsynced) => "redb, `Durability::None`",
            System::Redb(Commits::Synced) => "redb, `Durability::Immediate`",
        }
    }

    pub fn product(self) -> Product {
        match self {
            System::Oneread(_) => Product::Oneread,
            System::Redis(_) => Product::Redis,
            System::Lmdb(_) => Product::Lmdb,
            System::Redb(_) => Product::Redb,
        }
    }

    /// Starts it, with so many keys, and all of its files in this folder, which is on a disk.
    ///
    /// # Errors
    /// What has failed. A program that is not installed is one.
    pub fn start(self, folder: &Path, keys: u64) -> Outcome<Box<dyn Running>> {
        Ok(match self {
            System::Oneread(synced) => Box::new(Oneread::start(synced, folder, keys)?),
            System::Redis(synced) => Box::new(Redis::start(synced, folder, keys)?),
            System::Lmdb(commits) => Box::new(Lmdb::start(commits, folder, keys)?),
            System::Redb(commits) => Box::new(Redb::start(commits, folder, keys)?),
        })
    }
}

/// A system that was started.
pub trait Running {
    /// A writer of its own. Its calls return when the put is made, and on the disk if that is what is asked.
    ///
    /// # Errors
    /// What has failed.
    fn writer(&self) -> Outcome<Call>;

    /// A reader of its own, which checks what it finds.
    ///
    /// # Errors
    /// What has failed.
    fn reader(&self) -> Outcome<Call>;
}

/// Ends a server with its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A socket's path may not be long: it is in memory.
fn for_sockets() -> Outcome<tempfile::TempDir> {
    Ok(tempfile::Builder::new().prefix("oneread-logs").tempdir_in("/dev/shm")?)
}

struct Oneread {
    _server: Process,
    at: Address,
    _socket: tempfile::TempDir,
}

impl Oneread {
    fn start(synced: Option<Synced>, folder: &Path, keys: u64) -> Outcome<Oneread> {
        let socket = for_sockets()?;
        let fsync = match synced {
            None => "none",
            Some(Synced::EverySecond) => "1s",
            Some(Synced::Always) => "always",
        };
        let at: Address = format!("shm:{}", socket.path().join("s").display()).parse()?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--serve", fsync, "--keys", &keys.to_string(), "--at", &at.to_string(), "--folder"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take();
        let server = Process(child);
        let mut line = String::new();
        BufReader::new(out.ok_or("no output")?).read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err("the server of oneread has not started".into());
        }
        Ok(Oneread { _server: server, at, _socket: socket })
    }
}

/// The part of the process that serves oneread, until its input ends.
///
/// # Errors
/// What has failed.
pub fn serve(fsync: &str, at: Address, folder: &Path, keys: u64) -> Outcome<()> {
    let table = || Config::new().size(TableSize::up_to(4 << 30));
    let with =
        |fsync| ServerConfig::new(at.clone(), table()).log(LogConfig::new(folder.join("log")).fsync(fsync));
    let filled = |config| {
        let server = Server::start(config)?;
        for n in 0..keys {
            server.index().put(&key(n), &value(n, 0), PutMode::Upsert)?;
        }
        Outcome::Ok(server)
    };
    let server = match fsync {
        "none" => filled(ServerConfig::new(at.clone(), table()))?,
        synced => {
            // It is filled without a sync for each put, and begins then with what is on the disk.
            filled(with(Fsync::Never))?.stop();
            Server::start(with(synced.parse()?))?
        }
    };
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    server.stop();
    Ok(())
}

impl Running for Oneread {
    fn writer(&self) -> Outcome<Call> {
        let (mut client, mut nth) = (Client::connect(&self.at)?, 0);
        Ok(Box::new(move |n| {
            nth += 1;
            client.put(&key(n), &value(n, nth)).expect("a put");
        }))
    }

    fn reader(&self) -> Outcome<Call> {
        let (mut client, mut found) = (Client::connect(&self.at)?, Vec::new());
        Ok(Box::new(move |n| {
            assert!(client.get_into(&key(n), &mut found).expect("a GET"), "absent");
            assert_eq!(found[..KEY_BYTES], key(n));
        }))
    }
}

struct Redis {
    _server: Process,
    at: PathBuf,
    _socket: tempfile::TempDir,
}

fn bulk(part: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat()
}

fn command(parts: &[&[u8]]) -> Vec<u8> {
    let head = format!("*{}\r\n", parts.len()).into_bytes();
    parts.iter().fold(head, |all, part| [all, bulk(part)].concat())
}

/// Sends this, and takes an answer that must be this one.
fn asks(stream: &mut UnixStream, request: &[u8], answer: &[u8]) -> Outcome<()> {
    let mut given = vec![0; answer.len()];
    stream.write_all(request)?;
    stream.read_exact(&mut given)?;
    if given == answer { Ok(()) } else { Err(String::from_utf8_lossy(&given).into()) }
}

impl Redis {
    fn start(synced: Option<Synced>, folder: &Path, keys: u64) -> Outcome<Redis> {
        let socket = for_sockets()?;
        let at = socket.path().join("s");
        let append = if synced.is_some() { "yes" } else { "no" };
        let mut server = Command::new("redis-server");
        server.args(["--port", "0", "--save", "", "--appendonly", append, "--appendfsync", "everysec"]);
        server.args(["--auto-aof-rewrite-percentage", "0", "--unixsocket"]).arg(&at).arg("--dir").arg(folder);
        let server = Process(server.stdout(Stdio::null()).spawn()?);
        let end = Instant::now() + Duration::from_secs(60);
        let mut stream = loop {
            match UnixStream::connect(&at) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        for chunk in (0..keys).collect::<Vec<_>>().chunks(PIPELINE) {
            let all: Vec<u8> =
                chunk.iter().flat_map(|&n| command(&[b"SET", &key(n), &value(n, 0)])).collect();
            asks(&mut stream, &all, &b"+OK\r\n".repeat(chunk.len()))?;
        }
        if synced == Some(Synced::Always) {
            asks(&mut stream, &command(&[b"CONFIG", b"SET", b"appendfsync", b"always"]), b"+OK\r\n")?;
        }
        Ok(Redis { _server: server, at, _socket: socket })
    }
}

impl Running for Redis {
    fn writer(&self) -> Outcome<Call> {
        let (mut stream, mut nth) = (UnixStream::connect(&self.at)?, 0);
        Ok(Box::new(move |n| {
            nth += 1;
            let request = command(&[b"SET", &key(n), &value(n, nth)]);
            asks(&mut stream, &request, b"+OK\r\n").expect("a put");
        }))
    }

    fn reader(&self) -> Outcome<Call> {
        let mut stream = UnixStream::connect(&self.at)?;
        let head = format!("${VALUE_BYTES}\r\n");
        let mut answer = vec![0; head.len() + VALUE_BYTES + 2];
        Ok(Box::new(move |n| {
            stream.write_all(&command(&[b"GET", &key(n)])).expect("a request");
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer[head.len()..][..KEY_BYTES], key(n));
        }))
    }
}

struct Lmdb {
    env: heed::Env,
    database: heed::Database<heed::types::Bytes, heed::types::Bytes>,
}

impl Lmdb {
    fn start(commits: Commits, folder: &Path, keys: u64) -> Outcome<Lmdb> {
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(2 << 30);
        if commits == Commits::Unsynced {
            // SAFETY: what a crash of the machine leaves of this folder is not read again.
            unsafe { options.flags(heed::EnvFlags::NO_SYNC) };
        }
        // SAFETY: nobody else opens or changes the files of this folder, which was made for this run.
        let env = unsafe { options.open(folder)? };
        let mut all = env.write_txn()?;
        let database = env.create_database(&mut all, None)?;
        for n in 0..keys {
            database.put(&mut all, &key(n)[..], &value(n, 0)[..])?;
        }
        all.commit()?;
        Ok(Lmdb { env, database })
    }
}

impl Running for Lmdb {
    fn writer(&self) -> Outcome<Call> {
        let (env, database, mut nth) = (self.env.clone(), self.database, 0);
        Ok(Box::new(move |n| {
            nth += 1;
            let mut one = env.write_txn().expect("a transaction");
            database.put(&mut one, &key(n), &value(n, nth)).expect("a put");
            one.commit().expect("a commit");
        }))
    }

    fn reader(&self) -> Outcome<Call> {
        let (env, database) = (self.env.clone(), self.database);
        Ok(Box::new(move |n| {
            let one = env.read_txn().expect("a transaction");
            let found = database.get(&one, &key(n)).expect("a GET").expect("present");
            assert_eq!(found[..KEY_BYTES], key(n));
        }))
    }
}

struct Redb {
    database: Arc<redb::Database>,
    commits: redb::Durability,
}

impl Redb {
    fn start(commits: Commits, folder: &Path, keys: u64) -> Outcome<Redb> {
        let database = Arc::new(redb::Database::create(folder.join("redb"))?);
        let all = database.begin_write()?;
        {
            let mut table = all.open_table(TABLE)?;
            for n in 0..keys {
                table.insert(&key(n)[..], &value(n, 0)[..])?;
            }
        }
        all.commit()?;
        let commits = match commits {
            Commits::Unsynced => redb::Durability::None,
            Commits::Synced => redb::Durability::Immediate,
        };
        Ok(Redb { database, commits })
    }
}

impl Running for Redb {
    fn writer(&self) -> Outcome<Call> {
        let (database, commits, mut nth) = (self.database.clone(), self.commits, 0);
        Ok(Box::new(move |n| {
            nth += 1;
            let mut one = database.begin_write().expect("a transaction");
            one.set_durability(commits).expect("a durability");
            one.open_table(TABLE).expect("a table").insert(&key(n)[..], &value(n, nth)[..]).expect("a put");
            one.commit().expect("a commit");
        }))
    }

    fn reader(&self) -> Outcome<Call> {
        let database = self.database.clone();
        Ok(Box::new(move |n| {
            let one = database.begin_read().expect("a transaction");
            let table = one.open_table(TABLE).expect("a table");
            let found = table.get(&key(n)[..]).expect("a GET").expect("present");
            assert_eq!(found.value()[..KEY_BYTES], key(n));
        }))
    }
}
