//! Tests of `oneread serve` on file systems that give out: full ones, and limits on the length of files.
//! What mounts something does so in a namespace of its own.

use crate::served::full_pipe;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_oneread");

fn alone(mut command: Command) -> Command {
    command.env_remove("ONEREAD_AT").env_remove("RUST_LOG").env_remove("ONEREAD_TOKEN");
    command
}

fn run(arguments: &[&str]) -> Output {
    alone(Command::new(PROGRAM)).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(out: &[u8]) -> String {
    String::from_utf8_lossy(out).into_owned()
}

#[track_caller]
fn expect(out: Output, status: i32) -> Output {
    assert_eq!(out.status.code(), Some(status), "stdout {}\nstderr {}", text(&out.stdout), text(&out.stderr));
    out
}

/// Waits up to a minute.
#[track_caller]
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A shell in a mount namespace, where one file system is mounted. It ends when this is dropped.
struct Mounted {
    shell: Child,
    dir: TempDir,
    /// Where the shell's namespace has its files, as seen from outside.
    disk: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Mounted {
    /// `None` if this may not be mounted here: then the test is skipped, and says why.
    fn new(mount: &str) -> Option<Mounted> {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let script = format!("cd {} && {mount} && echo mounted && read end", dir.path().display());
        // Root may mount everything. Others are root of a namespace, and may mount tmpfs.
        let flags = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
        let mut command = alone(Command::new("unshare"));
        command.args([flags, "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut line = String::new();
        let shell =
            command.spawn().inspect_err(|why| eprintln!("unshare: {why}")).ok().and_then(|mut shell| {
                BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
                if line == "mounted\n" {
                    return Some(shell);
                }
                let _ = shell.wait();
                None
            });
        let Some(shell) = shell else {
            assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "this cannot be mounted here: {mount}");
            eprintln!("skipped: this cannot be mounted here: {mount}");
            return None;
        };
        let disk = Path::new("/proc")
            .join(shell.id().to_string())
            .join("root")
            .join(disk.strip_prefix("/").unwrap());
        Some(Mounted { shell, dir, disk })
    }

    fn at(&self) -> String {
        format!("shm:{}", self.dir.path().join("sock").display())
    }

    fn region(&self) -> String {
        self.disk.join("region").display().to_string()
    }

    fn serve(&self, more: &[&str]) -> Command {
        let mut command = alone(Command::new(PROGRAM));
        command.args(["serve", "--json", "--at", &self.at(), "--region", &self.region()]).args(more);
        command
    }

    fn started(&self, more: &[&str]) -> Server {
        Server::start(self.serve(more))
    }

    /// Loads keys with values of so many bytes until the server does not take some, or all are there. Returns
    /// whether it took all.
    fn load(&self, mut keys: std::ops::Range<u32>, bytes: usize) -> bool {
        let mut command = alone(Command::new(PROGRAM));
        command.args(["load", "-", "--at", &self.at()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        loop {
            let some: Vec<u8> =
                keys.by_ref().take(500).flat_map(|n| format!("key{n}\t{n:0bytes$}\n").into_bytes()).collect();
            if some.is_empty() {
                return true;
            }
            let mut child = command.spawn().unwrap();
            // It may end before it has read all.
            let _ = child.stdin.take().unwrap().write_all(&some);
            let out = child.wait_with_output().unwrap();
            assert!(!text(&out.stderr).contains("went away"), "{}", text(&out.stderr));
            if !out.status.success() {
                return false;
            }
        }
    }

    /// Fills the disk to the last block.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.disk.join("filler")).unwrap();
        for piece in [1 << 16, 1 << 12, 512] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
        let _ = file.sync_all();
    }
}

/// A server, and what it said when it was ready.
struct Server {
    child: Child,
    ready: Value,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    #[track_caller]
    fn start(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|why| panic!("not ready: {line:?}: {why}"));
        Server { child, ready }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit status of a server that stops. A signal's is none.
    #[track_caller]
    fn stop(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code()
    }
}

const EXT4: &str = "truncate -s 16M image && mkfs.ext4 -q -F image && mount -o loop image disk";
const TMPFS: &str = "mount -t tmpfs -o size=12m none disk";

/// Whatever a table that grows takes from a disk, in its segments, in its heap, for what it hands over: where
/// the disk has no more, puts are refused, and no access ends the server. So it is with a disk that fills while
/// it has holes, and with the holes filled again.
#[test]
fn a_full_disk_ends_no_server() {
    for mount in [EXT4, TMPFS] {
        let Some(disk) = Mounted::new(mount) else { continue };
        for value_max in ["78", "4096"] {
            let options = ["--fresh", "--max-memory", "256MiB", "--value-max", value_max];
            let server = disk.started(&options);
            let long: usize = if value_max == "78" { 60 } else { 3000 };
            let keys = if long == 60 { 100_000 } else { 8_000 };
            assert!(!disk.load(0..keys, long), "{mount}, {value_max}: the disk is not full");
            // Holes beside what stays, and then no room for them.
            let gone: Vec<String> = (0..keys).filter(|n| n % 16 != 0).map(|n| format!("key{n}")).collect();
            for some in gone.chunks(4_000) {
                let at = disk.at();
                let mut all = vec!["del", "--at", &*at];
                all.extend(some.iter().map(|key| &**key));
                let code = run(&all).status.code();
                assert!(code.is_some_and(|code| code <= 1), "{mount}, {value_max}: {code:?}");
            }
            expect(run(&["shrink", "--at", &disk.at()]), 0);
            disk.fill();
            disk.load(0..keys, long);
            let stat = run(&["stat", "--json", "--at", &disk.at()]);
            let stat: Value = serde_json::from_slice(&expect(stat, 0).stdout).unwrap();
            let there = stat["server"]["keys"].as_u64().unwrap();
            assert_eq!(server.stop(), Some(0), "{mount}, {value_max}: it stops by itself");
            let again = disk.started(&[]);
            assert_eq!(again.ready["recovered"]["keys"], there, "{mount}, {value_max}");
            assert_eq!(again.stop(), Some(0), "{mount}, {value_max}");
            std::fs::remove_file(disk.disk.join("filler")).unwrap();
        }
    }
}

/// A first start that finds no room leaves nothing. What a server left that was killed at it is made again, and
/// whoever looks at it on a full disk is told what it is.
#[test]
fn a_start_without_room_leaves_nothing() {
    let Some(disk) = Mounted::new("mount -t tmpfs -o size=64k none disk") else { return };
    let region = disk.region();
    let (at, table) = (disk.at(), ["--slots", "1024"]);
    for more in [&table[..], &["--max-memory", "64MiB"]] {
        let out = disk.serve(more).output().unwrap();
        assert!(text(&expect(out, 1).stderr).contains("is full"));
        assert!(!Path::new(&region).exists());
    }
    // As one has been killed: before it had any memory, or later.
    std::fs::File::create(&region).unwrap().set_len(16 << 20).unwrap();
    std::fs::set_permissions(&region, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    disk.fill();
    for command in [
        &["get", "key", "--at", &at, "--region", &region][..],
        &["dump", "--at", &at, "--region", &region],
        &["inspect", "--region", &region],
        &["regions", &region],
    ] {
        let out = run(command);
        assert!(out.status.code().is_some(), "{command:?}: a signal has ended it");
    }
    let out = expect(run(&["inspect", "--region", &region]), 1);
    assert!(text(&out.stderr).contains("was never finished"), "{}", text(&out.stderr));
    let out = expect(run(&["regions", "--json", &region]), 0);
    let about: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&about["served"], &about["keys"]), (&false.into(), &Value::Null));
    std::fs::remove_file(disk.disk.join("filler")).unwrap();
    for more in [&["--slots", "64"][..], &["--slots", "64", "--fresh"]] {
        std::fs::write(&region, vec![0; 8 << 10]).unwrap();
        let server = disk.started(more);
        assert_eq!(server.ready["recovered"], Value::Null);
        assert_eq!(server.stop(), Some(0));
    }
    std::fs::write(&region, vec![0; 8 << 10]).unwrap();
    expect(run(&["regions", "--remove", &region]), 0);
    assert!(!Path::new(&region).exists());
}

/// Waits until a process has a handler for a signal.
fn wait_for_handler(process: u32, signal: Signal) {
    wait_for("it has its handlers", || {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
    });
}

/// Whoever is asked to stop while a table is made stops, and nothing is left of the table.
#[test]
fn a_start_that_is_stopped_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        // It has something to say, for which nobody has room, when it already listens to signals.
        let (mut said, full) = full_pipe();
        let mut command = alone(Command::new("env"));
        command.args(["--default-signal=HUP", PROGRAM]);
        command.args(["serve", "--at", &format!("shm:{}", path("sock")), "--region", &path("region")]);
        command.args(["--slots", "100000", "--clients-max", "1000000000"]);
        let server = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
        drop(command);
        wait_for_handler(server.id(), signal);
        kill_process(Pid::from_child(&server), signal).unwrap();
        let mut told = String::new();
        said.read_to_string(&mut told).unwrap();
        let out = expect(server.wait_with_output().unwrap(), 0);
        assert!(told.contains("fewer than --clients-max"), "{told}");
        assert!(out.stdout.is_empty() && told.contains("stopped before"), "{out:?}\n{told}");
        assert!(!Path::new(&path("region")).exists() && !Path::new(&path("sock")).exists());
    }
}

/// Signals that come while memory is taken are no refusal of it.
#[test]
fn signals_do_not_refuse_memory() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let mut command = alone(Command::new(PROGRAM));
    command.args(["serve", "--json", "--anonymous", "--slots", "1000000", "--at", &at]);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    let pid = Pid::from_child(&server);
    // It listens to signals before anything else; this one has a handler and no effect.
    wait_for_handler(server.id(), Signal::XFSZ);
    let is_ready = std::sync::atomic::AtomicBool::new(false);
    let line = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_ready.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = kill_process(pid, Signal::XFSZ);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        is_ready.store(true, std::sync::atomic::Ordering::Relaxed);
        line
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(line.contains("ready"), "{line:?}");
}

/// A limit on the length of files is an error of the snapshot, and of what is handed over, and ends no server.
#[test]
fn a_limit_on_lengths_ends_no_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let at = format!("shm:{}", path("sock"));
    let mut command = alone(Command::new(PROGRAM));
    command.args(["serve", "--json", "--at", &at, "--region", &path("region"), "--slots", "1024"]);
    command.args(["--snapshot", &path("snap")]);
    let server = Server::start(command);
    expect(run(&["put", "key", "value", "--at", &at]), 0);
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    prlimit(Some(Pid::from_child(&server.child)), Resource::Fsize, limit).unwrap();
    let out = expect(run(&["snapshot", "--at", &at]), 1);
    assert!(text(&out.stderr).contains("File too large"), "{}", text(&out.stderr));
    assert_eq!(text(&expect(run(&["get", "key", "--at", &at]), 0).stdout), "value\n");
    expect(run(&["put", "key", "other", "--at", &at]), 0);
    assert_eq!(server.stop(), Some(1), "the last snapshot was not made");
}
