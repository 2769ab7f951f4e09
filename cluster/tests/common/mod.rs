//! An etcd for a test, and nodes of a cluster.
#![allow(dead_code)]

mod installed;

pub use installed::has_etcd;

use oneread::{Address, Backing, Config, ServerConfig, StartMode, TableSize};
use oneread_cluster::core::hash::ShardHash;
use oneread_cluster::core::state::{ClusterConfig, Timing};
use oneread_cluster::etcd::{ClusterName, EtcdOptions};
use oneread_cluster::node::NodeConfig;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits for what must happen, at the usual pace.
pub const SOON: Duration = Duration::from_secs(60);

/// How many times as long everything may take as on a machine that is not emulated.
static PACE: AtomicU32 = AtomicU32::new(1);

/// Chooses the pace of this process.
pub fn set_pace(times: u32) {
    PACE.store(times.max(1), Ordering::Relaxed);
}

/// The pace of this process, for those that it starts.
pub fn pace() -> u32 {
    PACE.load(Ordering::Relaxed)
}

/// A time at the pace of this process.
pub fn paced(time: Duration) -> Duration {
    time * pace()
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (begun, soon) = (Instant::now(), paced(SOON));
    while !is_so() {
        assert!(begun.elapsed() < soon, "{what} is not so after {soon:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A port that nobody has: below those that the system gives to whoever asks for any.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = std::process::id().wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (next % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// One etcd of one member, or a member of one. It is killed when this is dropped.
pub struct Etcd {
    child: Option<Child>,
    /// How the program is called where it runs.
    program: Vec<String>,
    name: String,
    data: PathBuf,
    host: String,
    client: u16,
    peer: u16,
    /// All members, if there are others.
    members: Option<String>,
    token: &'static str,
    /// Options besides.
    with: Vec<String>,
}

impl Etcd {
    /// A new one, with its data in this folder.
    pub fn start(folder: &Path) -> Etcd {
        Etcd::start_with(folder, &[])
    }

    /// As [`Etcd::start`], with further options.
    pub fn start_with(folder: &Path, with: &[&str]) -> Etcd {
        let mut etcd = Etcd {
            child: None,
            program: vec!["etcd".into()],
            name: "e".into(),
            data: folder.join("etcd"),
            host: "127.0.0.1".into(),
            client: free_port(),
            peer: free_port(),
            members: None,
            token: "one",
            with: with.iter().map(|&option| option.to_owned()).collect(),
        };
        etcd.run();
        etcd
    }

    /// A member of a new one on these hosts, one each. It is not waited for: it takes most of them.
    pub fn start_member(
        folder: &Path,
        hosts: &[String],
        number: usize,
        program: Vec<String>,
        with: &[&str],
    ) -> Etcd {
        let members = hosts.iter().enumerate().map(|(n, host)| format!("e{n}=http://{host}:2380"));
        let mut etcd = Etcd {
            child: None,
            program,
            name: format!("e{number}"),
            data: folder.join(format!("etcd{number}")),
            host: hosts[number].clone(),
            client: 2379,
            peer: 2380,
            members: Some(members.collect::<Vec<_>>().join(",")),
            token: "one",
            with: with.iter().map(|&option| option.to_owned()).collect(),
        };
        etcd.launch();
        etcd
    }

    /// What it is called.
    pub fn endpoint(&self) -> String {
        format!("http://{}:{}", self.host, self.client)
    }

    /// A client's options.
    pub fn options(&self) -> EtcdOptions {
        EtcdOptions::new([self.endpoint()])
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Kills it. Its data stays.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts it again with its data, and waits until it listens.
    pub fn run(&mut self) {
        self.launch();
        until("etcd listens", || std::net::TcpStream::connect((&*self.host, self.client)).is_ok());
    }

    /// Starts it again with its data.
    pub fn launch(&mut self) {
        let client = self.endpoint();
        let child = Command::new(&self.program[0])
            .args(&self.program[1..])
            .args(self.member())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &self.peer()])
            .args(["--unsafe-no-fsync", "--log-level", "error"])
            .args(&self.with)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Sends its process a signal, as in `-STOP`.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Whether it leads. `None`: it does not say so in time.
    pub fn leads(&self) -> Option<bool> {
        let at = format!("{}:{}", self.host, self.client).parse().ok()?;
        let soon = paced(Duration::from_millis(500));
        let mut stream = std::net::TcpStream::connect_timeout(&at, soon).ok()?;
        stream.set_read_timeout(Some(soon)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
        let mut told = String::new();
        stream.read_to_string(&mut told).ok()?;
        let leads = told.lines().find_map(|line| line.strip_prefix("etcd_server_is_leader "))?;
        Some(leads == "1")
    }

    /// Puts a backup that was made by [`Etcd::back_up`] in the place of its data: an etcd with another id.
    pub fn restore(&mut self, backup: &Path) {
        self.token = "two";
        self.restore_alike(backup);
    }

    /// Loses all data: another etcd, with nothing in it.
    pub fn forget_all(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.data).unwrap();
        self.token = "two";
        self.run();
    }

    /// As [`Etcd::restore`], under the id that it has.
    pub fn restore_alike(&mut self, backup: &Path) {
        self.kill();
        std::fs::remove_dir_all(&self.data).unwrap();
        ctl(|command| command.args(["snapshot", "restore"]).arg(backup).args(self.member()));
        self.run();
    }

    /// Makes a backup.
    pub fn back_up(&self, to: &Path) {
        ctl(|command| command.args(["--endpoints", &self.endpoint(), "snapshot", "save"]).arg(to));
    }

    fn peer(&self) -> String {
        format!("http://{}:{}", self.host, self.peer)
    }

    /// What it is told of itself as a member, at each start and when its data is restored.
    fn member(&self) -> Vec<OsString> {
        let peer = self.peer();
        let (name, alone) = (&self.name, format!("{}={peer}", self.name));
        let words = [
            format!("--name={name}"),
            format!("--initial-cluster={}", self.members.as_ref().unwrap_or(&alone)),
            format!("--initial-cluster-token={}", self.token),
            format!("--initial-advertise-peer-urls={peer}"),
        ];
        let data = ["--data-dir".into(), self.data.clone().into_os_string()];
        words.map(OsString::from).into_iter().chain(data).collect()
    }
}

/// Runs `etcdctl`, which must succeed. Returns what it prints.
pub fn ctl(add: impl FnOnce(&mut Command) -> &mut Command) -> String {
    let mut command = Command::new("etcdctl");
    let done = add(command.env("ETCDCTL_API", "3")).output().unwrap();
    assert!(done.status.success(), "{command:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The name of the tests' cluster.
pub fn name() -> ClusterName {
    "test".parse().unwrap()
}

/// A cluster of few shards whose nodes are given up soon.
pub fn config(shards: u16, replicas: u8, ttl: Duration) -> ClusterConfig {
    let timing = Timing::of(ttl.as_micros() as u64);
    let timing = Timing { place: timing.place / 2, ..timing };
    ClusterConfig { shards, replicas, hash: ShardHash::new(1), key_max: 64, value_max: 4_096, timing }
}

/// A node with a region file in this folder: it is the same one when it starts again.
pub fn node(folder: &Path, number: usize, etcd: EtcdOptions) -> NodeConfig {
    node_at(Address::Shm(folder.join(format!("n{number}.sock"))), folder, number, etcd)
}

/// As [`node`], with the table at this address.
pub fn node_at(address: Address, folder: &Path, number: usize, etcd: EtcdOptions) -> NodeConfig {
    let table = Config::new().size(TableSize::up_to(32 << 20));
    let server = ServerConfig::new(address, table)
        .backing(Backing::File(folder.join(format!("n{number}.region"))))
        .start(StartMode::OpenOrCreate);
    let mut config = NodeConfig::new(name(), etcd, server);
    config.name = format!("n{number}");
    config
}
