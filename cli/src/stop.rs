//! `stop` and `ping`: ends a server, and asks whether one is there.

use crate::connect::{At, Server};
use crate::region_file::what_stays;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use oneread::internals::layout::control::{LastSnapshot, SAVED_WORD, STATE_WORD, State};
use oneread::internals::peer::{NoProcess, PeerProcess, SocketPeer, connect};
use oneread::{Address, Client, ClientOptions, ConnectError, error::LinkError};
use oneread_kit::folder::bytes_taken;
use oneread_kit::show;
use oneread_kit::units::{Period, some_time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::Signal;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Stop a server of this host, and wait until it is gone
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread serve --daemonize
  oneread stop
  oneread stop --at shm:/run/oneread/oneread.sock --deadline 5m
  oneread stop --deadline 10s --force   kills it if it is not gone by then

The same as SIGTERM to its process: what is under way is answered, and a server
with --snapshot makes a last one. A program that holds a server of its own gets
the signal, too. It says what stays of the table.

A process that does not answer gets no signal, unless it is suspended (SIGSTOP):
it may be a program that is busy with something else, or a server that ends
already, which is waited for. With --force it gets one all the same.

Exit status 1 if no server is there, or it is not gone in time: it goes on
stopping then. With --force it is killed (SIGKILL) then, without a last
snapshot. The next server takes its region file over, as after a crash of the
server. Exit status 3 if the server is gone, and its last snapshot was not made.

A server over verbs is stopped on its own host, by a signal or by systemd.")]
pub struct Stop {
    #[command(flatten)]
    at: At,
    /// Longest wait until it is gone, as in 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = some_time)]
    deadline: Period,
    /// Stop it also if it does not answer, and kill it if it is not gone by then
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Longest wait for the end of a process that was killed: the system frees its memory.
const KILLED_WITHIN: Duration = Duration::from_secs(60);

/// The exit status where the server is gone, and its last snapshot was not made.
const NOT_SAVED: u8 = 3;

impl Stop {
    pub fn run(self) -> Result<ExitCode> {
        let begun = Instant::now();
        let address = self.at.address();
        let Address::Shm(path) = &address else {
            bail!("a server over verbs or TCP is stopped on its own host: systemctl stop, or kill PID there");
        };
        let not_there = |e: Errno| ConnectError::NotThere { address: address.clone(), source: e.into() };
        let socket = connect(path, self.deadline.0).map_err(|e| match e {
            Errno::ACCESS => ConnectError::NoAccess { address: address.clone(), source: e.into() },
            e => not_there(e),
        })?;
        let SocketPeer { uid, .. } = SocketPeer::of(&socket).context("asking for the server's user")?;
        let process = PeerProcess::listening(&socket, path);
        // Who is turned away was told so: a server is there.
        if is_hung_up(&socket)? && !was_told(&socket) {
            return Err(not_there(Errno::CONNREFUSED).into());
        }
        let process = process.map_err(|why| unknown(why, &address))?;
        let pid = process.pid().as_raw_nonzero();
        let hello = hello(&address, uid);
        if self.may_signal(&hello, pid, uid, &address)? {
            for signal in [Signal::TERM, Signal::CONT] {
                // The second one is for a suspended server.
                match process.signal(signal) {
                    Err(Errno::PERM) => bail!(
                        "the server at {address}, process {pid}, runs as user {uid}; stop it as that user, or as root (sudo)"
                    ),
                    Err(Errno::SRCH) => break,
                    sent => sent.context("sending the signal")?,
                }
            }
        } else {
            show::complain(format_args!(
                "oneread: process {pid}, which listens at {address}, does not answer, and gets no signal: it is waited for, in case that it is a server that is ending; --force stops it"
            ));
        }
        let Period(deadline) = self.deadline;
        let is_gone = is_ready(&process, PollFlags::IN, deadline)?;
        if !is_gone {
            let why = match (&hello, hears(pid)) {
                (Hello::Silent, _) if !self.force => {
                    "it does not answer, and got no signal: --force stops it"
                }
                (_, true) => {
                    "it goes on stopping, perhaps with a last snapshot: --deadline waits longer, and --force kills it"
                }
                (_, false) => {
                    "it does not hear SIGTERM, because its process ignores or blocks that: --force kills it"
                }
            };
            let waited = show::time(deadline);
            ensure!(self.force, "the server at {address}, process {pid}, is not gone after {waited}; {why}");
            match process.signal(Signal::KILL) {
                Err(Errno::SRCH) => {}
                sent => sent.context("killing the server's process")?,
            }
            ensure!(
                is_ready(&process, PollFlags::IN, KILLED_WITHIN)?,
                "process {pid} was killed, and is not gone after {}: the system holds it, perhaps for a disk that does not answer; it ends when the disk does",
                show::time(KILLED_WITHIN)
            );
        }
        let (region, saved) = match &hello {
            Hello::Server(Some(there)) => (there.file.clone(), there.saved()),
            Hello::Server(None) | Hello::Silent | Hello::Foreign => (None, Saved::Unknown),
        };
        let is_lost = is_gone && saved == Saved::Failed;
        let status = if is_lost { ExitCode::from(NOT_SAVED) } else { ExitCode::SUCCESS };
        let stays = region.and_then(|path| Some((bytes_taken(&std::fs::metadata(&path).ok()?), path)));
        let told = serde_json::json!({
            "pid": pid.get(),
            "killed": !is_gone,
            "seconds": begun.elapsed().as_secs_f64(),
            "region": stays.as_ref().map(|(_, path)| path.display().to_string()),
            "region_bytes": stays.as_ref().map(|(bytes, _)| bytes),
            "last_snapshot": saved.word(),
        });
        show::outcome(self.json, &told, || {
            let how = if is_gone { "stopped" } else { "killed" };
            show::say(format_args!("{how} the server at {}, process {pid}", show::name(&address)))?;
            stays.map_or(Ok(()), |(bytes, path)| show::say(what_stays(&path, bytes, &address)))?;
            match saved {
                Saved::Failed if is_gone => show::complain(
                    "oneread: its last snapshot was not made: the file that is there, if any, lacks the last changes; its log says why",
                ),
                Saved::Unknown if is_gone => show::complain(
                    "oneread: it told nothing of its table: what stays, and whether a last snapshot was made, is in its log",
                ),
                _ => {}
            }
            anyhow::Ok(())
        })?;
        Ok(status)
    }

    /// Whether the process gets a signal. Whoever listens for another user, or for the whole system, is to show that it is a
    /// server first.
    ///
    /// # Errors
    /// Where it is no server, as far as is known, and none that is just ending.
    fn may_signal(&self, hello: &Hello, pid: NonZeroI32, uid: u32, address: &Address) -> Result<bool> {
        let is_own = uid == rustix::process::geteuid().as_raw() && pid.get() != 1;
        match hello {
            Hello::Server(_) => Ok(true),
            Hello::Silent if is_own => Ok(self.force || is_suspended(pid)),
            Hello::Silent | Hello::Foreign => bail!(
                "what listens at {address}, process {pid}, does not answer as a server of oneread does: it got no signal; if it is a server that is suspended or just ending, kill {pid} stops it"
            ),
        }
    }
}

/// Whether SIGTERM reaches a process: whether a thread of it takes the signal, and it is not ignored. Where that is not to
/// be seen, it does.
fn hears(pid: NonZeroI32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let statuses =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    let mut statuses = statuses.peekable();
    statuses.peek().is_none() || statuses.any(|status| takes_term(&status))
}

/// Whether the thread of this `/proc/PID/task/TID/status` takes SIGTERM.
fn takes_term(status: &str) -> bool {
    let has = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask >> (Signal::TERM.as_raw() - 1) & 1 == 1
    };
    // The first process of a container gets what it has a handler for.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let is_first = numbers.split_whitespace().last() == Some("1");
    !has("SigBlk:") && !has("SigIgn:") && (has("SigCgt:") || !is_first)
}

fn is_ready(fd: &impl AsFd, what: PollFlags, within: Duration) -> Result<bool> {
    let until = Instant::now() + within;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(fd, what)], Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

fn is_hung_up(socket: &OwnedFd) -> Result<bool> {
    is_ready(socket, PollFlags::RDHUP, Duration::ZERO)
}

/// Whether something was said before it hung up.
fn was_told(socket: &OwnedFd) -> bool {
    recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(_, length)| length > 0)
}

/// Why the process that listens at the address gets no signal.
fn unknown(why: NoProcess, address: &Address) -> anyhow::Error {
    match why {
        NoProcess::Unseen => anyhow!(
            "the server's process is not seen from here: it is in a container; stop it there, or stop the container"
        ),
        NoProcess::Ended(pid) => anyhow!(
            "the process that began to listen at {address}, {pid}, has ended, and another one keeps its socket: no server is there, and nobody got a signal; `fuser` and the socket's path name that process"
        ),
        NoProcess::Unproved(pid) => anyhow!(
            "process {pid} began to listen at {address}, and this system does not prove that this number is still the same process's (Linux 6.5 does): nobody got a signal; if it is the server, kill {pid} stops it"
        ),
        NoProcess::Os(why) => anyhow::Error::from(why).context("asking for the server's process"),
    }
}

/// Whether a process is suspended, as by SIGSTOP.
fn is_suspended(pid: NonZeroI32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| state_in(&stat) == Some('T'))
}

/// The state in this `/proc/PID/stat`. The name before it may be anything.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// What answers a client there.
#[derive(Debug)]
enum Hello {
    /// A server. `None` where it turned the client away.
    Server(Option<There>),
    /// Nobody, in time.
    Silent,
    /// Something else.
    Foreign,
}

/// What a server has told. Its region stays mapped, and says how the server ended.
#[derive(Debug)]
struct There {
    client: Box<Client>,
    /// The file that holds the table, if it is a file.
    file: Option<PathBuf>,
    /// Which server of its region it is.
    incarnation: u64,
    /// Whether it makes snapshots, if it says so.
    makes_snapshots: Option<bool>,
}

/// What became of a server's last snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    /// The server makes none.
    Never,
    Made,
    Failed,
    Unknown,
}

impl Saved {
    fn word(self) -> Option<&'static str> {
        match self {
            Saved::Never => Some("none"),
            Saved::Made => Some("made"),
            Saved::Failed => Some("failed"),
            Saved::Unknown => None,
        }
    }
}

impl There {
    fn of(mut client: Client) -> There {
        let incarnation =
            client.region().map_or(0, |region| State::from_word(region.load(STATE_WORD)).incarnation);
        let makes_snapshots = client.snapshot_status().ok().map(|status| status.is_on());
        There { file: file_of(&client), incarnation, makes_snapshots, client: Box::new(client) }
    }

    /// What the region says, when the server has gone.
    fn saved(&self) -> Saved {
        let Some(region) = self.client.region() else { return Saved::Unknown };
        match (LastSnapshot::from_word(region.load(SAVED_WORD), self.incarnation), self.makes_snapshots) {
            (Some(LastSnapshot::Made), _) => Saved::Made,
            (Some(LastSnapshot::Failed), _) => Saved::Failed,
            // It ended before.
            (None, Some(true)) => Saved::Failed,
            (None, Some(false)) => Saved::Never,
            (None, None) => Saved::Unknown,
        }
    }
}

fn hello(address: &Address, uid: u32) -> Hello {
    let options = ClientOptions::new().deadline(Duration::from_secs(1)).server_uids(vec![uid]);
    match Client::connect_with(address, options) {
        Ok(client) => Hello::Server(Some(There::of(client))),
        Err(ConnectError::Link { source: LinkError::Deadline(_) | LinkError::Os(_), .. }) => Hello::Silent,
        Err(ConnectError::Link { .. }) => Hello::Foreign,
        // Its words are a server's.
        Err(_) => Hello::Server(None),
    }
}

/// The file that holds the table, if it is a file.
fn file_of(client: &Client) -> Option<PathBuf> {
    let shared = client.region()?.share().ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", shared.as_raw_fd())).ok()?;
    path.is_file().then_some(path)
}

/// Ask whether a server is there and answers
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread ping
  oneread serve & oneread ping --wait 10s   returns when it serves
  oneread ping --json | jq .get_us

Prints how long a request to the server takes, and a GET, which the server does
not see (but over TCP): medians of 11. Exit status 1 if no server answers.")]
pub struct Ping {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Ping {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect()?;
        let request = median(|| client.server_stats().map(drop).map_err(Into::into))?;
        let get = median(|| client.get(b"p").map(drop).map_err(Into::into))?;
        let address = client.address();
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        let told = serde_json::json!({
            "address": address.to_string(), "request_us": us(request), "get_us": us(get),
        });
        show::outcome(self.json, &told, || {
            let [request, get] = [request, get].map(show::time);
            // Over TCP it answers these, too.
            let how = if matches!(address, Address::Tcp(_)) { "a GET" } else { "a GET without the server" };
            let address = show::name(address);
            show::say(format_args!("{address} answers: a request takes {request}, {how} {get}"))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The median time of what is done some times, after once more.
fn median(mut what: impl FnMut() -> Result<()>) -> Result<Duration> {
    what()?;
    let mut times = [Duration::ZERO; 11];
    for time in &mut times {
        let begun = Instant::now();
        what()?;
        *time = begun.elapsed();
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a process is behind its name, which may look like one.
    #[test]
    fn states_of_processes() {
        assert_eq!(state_in("7 (a) T (b)) S 1 7"), Some('S'));
        assert_eq!(state_in("7 (oneread) T 1 7"), Some('T'));
        assert_eq!(state_in(""), None);
        assert!(!is_suspended(NonZeroI32::new(std::process::id() as i32).unwrap()));
    }

    /// A thread hears SIGTERM unless it blocks it, or its process ignores it, or is a container's first one that has no
    /// handler for it.
    #[test]
    fn who_hears_a_signal() {
        const TERM: u64 = 1 << 14;
        let takes = |blocked: u64, ignored: u64, caught: u64, numbers: &str| {
            takes_term(&format!(
                "Name:\toneread\nNSpid:\t{numbers}\nSigPnd:\t{TERM:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            ))
        };
        let others = !TERM;
        assert!(takes(others, others, 0, "77") && takes(0, 0, TERM, "77\t1") && takes(0, 0, 0, "1\t77"));
        assert!(!takes(TERM, 0, TERM, "77") && !takes(0, TERM, 0, "77") && !takes(0, 0, others, "77\t1"));
        assert!(takes_term(""), "nothing is known");
        assert!(hears(NonZeroI32::new(std::process::id() as i32).unwrap()));
    }
}
