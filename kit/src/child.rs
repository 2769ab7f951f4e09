//! A server in a process of its own, for `demo` and `bench`. The process ends when its guard is
//! dropped.

use crate::folder::Folder;
use anyhow::{Context, Result, ensure};
use oneread::internals::reader::Limits;
use oneread::internals::region::Region;
use oneread::{Address, Client, ClientOptions, DeviceChoice, TcpAddress, Token, VerbsAddress};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server in a child process. Killed when dropped, even if it is stopped.
pub struct ServerChild {
    child: Child,
    folder: Folder,
    arguments: Vec<String>,
    address: Address,
    token: String,
}

/// The region file in a server's folder.
fn region_in(dir: &Path) -> PathBuf {
    dir.join("region")
}

/// Starts `oneread serve` with these arguments, in a process that ends with this one.
fn start(arguments: &[String], token: &str) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program's own file")?;
    Command::new(program)
        .args(["serve", "--die-with-parent", "--json"])
        .args(arguments)
        .env("ONEREAD_TOKEN", token)
        // A bench's etcd is its own, and knows no users.
        .env_remove("ONEREAD_ETCD_USER")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a server process")
}

/// What carries the READs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fabric {
    /// The memory of this host
    Shm,
    /// An RDMA device
    Verbs,
    /// No device: requests to the server
    #[value(skip)]
    Tcp,
}

/// The CPU time that a process has used.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    /// User and system time in clock ticks, from /proc/PID/stat.
    pub ticks: u64,
    /// Time on a CPU in nanoseconds, of all threads, from /proc/PID/task/*/schedstat.
    pub run_ns: u64,
}

impl CpuTime {
    /// What a process has used so far.
    pub fn of(pid: Pid) -> Result<CpuTime> {
        let mut run_ns = 0;
        for task in tasks(pid)? {
            // Kernels without scheduler statistics have no such file. The ticks are used then.
            let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            run_ns += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(CpuTime { ticks: stat(&proc(pid).join("stat"))?.1, run_ns })
    }

    /// Time used since `earlier`, in milliseconds: by the scheduler's clock, where the kernel has it. Threads that
    /// have ended since do not count in it.
    pub fn ms_since(self, earlier: CpuTime) -> f64 {
        let tick_ms = 1e3 / rustix::param::clock_ticks_per_second() as f64;
        match self.run_ns {
            0 => (self.ticks - earlier.ticks) as f64 * tick_ms,
            ns => ns.saturating_sub(earlier.run_ns) as f64 / 1e6,
        }
    }
}

impl ServerChild {
    /// Starts `oneread serve --anonymous` with these further arguments. Returns when it serves.
    pub fn spawn(fabric: Fabric, arguments: &[String]) -> Result<ServerChild> {
        ServerChild::spawn_with(fabric, |_| "--anonymous".into(), arguments)
    }

    /// Starts `oneread serve` on a region file that other servers can take over
    /// ([`ServerChild::restart`]).
    pub fn spawn_on_file(fabric: Fabric, arguments: &[String]) -> Result<ServerChild> {
        let region = |dir: &Path| format!("--region={}", region_in(dir).display());
        ServerChild::spawn_with(fabric, region, arguments)
    }

    /// Like `spawn_on_file`, over shared memory, in a folder that the caller chooses.
    pub fn spawn_on_file_in(folder: Folder, arguments: &[String]) -> Result<ServerChild> {
        let region = |dir: &Path| format!("--region={}", region_in(dir).display());
        ServerChild::spawn_in(folder, Fabric::Shm, region, arguments)
    }

    fn spawn_with(
        fabric: Fabric,
        memory: impl Fn(&Path) -> String,
        arguments: &[String],
    ) -> Result<ServerChild> {
        ServerChild::spawn_in(Folder::new()?, fabric, memory, arguments)
    }

    fn spawn_in(
        folder: Folder,
        fabric: Fabric,
        memory: impl Fn(&Path) -> String,
        arguments: &[String],
    ) -> Result<ServerChild> {
        let at = match fabric {
            Fabric::Shm => Address::Shm(folder.join("sock")),
            // The operating system chooses a port; other programs do not know the token.
            Fabric::Verbs => Address::Verbs(VerbsAddress::new("127.0.0.1", 0, DeviceChoice::default())),
            Fabric::Tcp => Address::Tcp(TcpAddress::new("127.0.0.1", 0)),
        };
        let token = format!("{:032x}", rand::random::<u128>());
        let mut all = vec![format!("--at={at}"), memory(folder.path())];
        all.extend_from_slice(arguments);
        let child = start(&all, &token)?;
        folder.began(&child);
        let mut server = ServerChild { child, folder, arguments: all, address: at, token };
        let ready = server.ready()?;
        let address = ready["address"].as_str().context("the server's first line names no address")?;
        server.address = address.parse()?;
        // The next one has the same port.
        server.arguments[0] = format!("--at={}", server.address);
        Ok(server)
    }

    /// Waits until it serves. Returns what it says then.
    fn ready(&mut self) -> Result<serde_json::Value> {
        let stdout = self.child.stdout.take().context("the server's output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("waiting for the server")?;
        ensure!(line.contains("\"ready\""), "the server process did not start; it says why above");
        serde_json::from_str(&line).context("the server's first line")
    }

    /// Kills the process. Returns when it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("killing the server process")?;
        self.child.wait().context("waiting for the server process")?;
        Ok(())
    }

    /// Tells the process to stop serving. Returns when it is gone.
    pub fn end(&mut self) -> Result<()> {
        kill_process(self.pid(), Signal::TERM).context("ending the server process")?;
        let status = self.child.wait().context("waiting for the server process")?;
        ensure!(status.success(), "the server process ended by {status}");
        Ok(())
    }

    /// Starts another server in place of one that was killed, or has ended. Returns, when it serves, what
    /// it says.
    pub fn restart(&mut self) -> Result<serde_json::Value> {
        self.folder.ended(&self.child);
        self.child = start(&self.arguments, &self.token)?;
        self.folder.began(&self.child);
        self.ready()
    }

    /// The region of a server that has it in a file.
    pub fn map_region(&self) -> Result<Region> {
        Ok(Region::map_shared(File::open(region_in(self.folder.path()))?.into())?)
    }

    /// Its folder, which is removed with it.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Connects a client to it.
    pub fn connect(&self) -> Result<Client> {
        // The server is there, so a long wait ends with an answer.
        const PATIENT: Duration = Duration::from_secs(30);
        let limits = Limits::new().deadline(PATIENT);
        self.connect_with(ClientOptions::new().limits(limits).deadline(PATIENT))
    }

    /// Connects a client to it, with these options and its token.
    pub fn connect_with(&self, options: ClientOptions) -> Result<Client> {
        Ok(Client::connect_with(&self.address, options.token(Token::new(&self.token)))?)
    }

    /// The number of the process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops the process: it gets no CPU until [`ServerChild::resume`]. Returns when all its
    /// threads have stopped.
    pub fn stop(&self) -> Result<()> {
        kill_process(self.pid(), Signal::STOP).context("stopping the server process")?;
        for _ in 0..60_000 {
            if self.has_stopped()? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        anyhow::bail!("the server process did not stop within a minute")
    }

    /// Lets the process run again.
    pub fn resume(&self) -> Result<()> {
        kill_process(self.pid(), Signal::CONT).context("resuming the server process")
    }

    /// Whether every thread has stopped. They stop one after the other.
    pub fn has_stopped(&self) -> Result<bool> {
        tasks(self.pid())?.iter().try_fold(true, |all, task| Ok(all && stat(&task.join("stat"))?.0 == 'T'))
    }

    /// The CPU time used so far.
    pub fn cpu_time(&self) -> Result<CpuTime> {
        CpuTime::of(self.pid())
    }
}

fn proc(pid: Pid) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

fn tasks(pid: Pid) -> Result<Vec<PathBuf>> {
    let path = proc(pid).join("task");
    let entries = std::fs::read_dir(&path).with_context(|| format!("reading {}", path.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// The state and CPU ticks in a `stat` file of a process or thread; see proc(5).
fn stat(path: &Path) -> Result<(char, u64)> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
    // The second field, the name, may contain spaces. The fields after its closing bracket do not.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok());
    match (fields.first().and_then(|f| f.chars().next()), ticks(11), ticks(12)) {
        (Some(state), Some(user), Some(system)) => Ok((state, user + system)),
        _ => anyhow::bail!("{name} reads unlike proc(5) says"),
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // KILL also ends a stopped process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that does not come up again is an error. Here it is this test program, which knows no `serve`.
    #[test]
    fn a_server_that_does_not_come_up_is_an_error() {
        let child = Command::new("true").spawn().unwrap();
        let folder = Folder::new().unwrap();
        let address = Address::Shm(folder.join("sock"));
        let mut server = ServerChild { child, folder, arguments: vec![], address, token: String::new() };
        server.kill().unwrap();
        let error = server.restart().unwrap_err();
        assert_eq!(error.to_string(), "the server process did not start; it says why above");
    }
}
