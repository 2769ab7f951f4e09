//! How these tests run the command, and a server in a folder of its own.

use crate::command::{alone, oneread};
use rustix::event::{PollFd, PollFlags};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time allowed for anything that ends by itself, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Polls until there is an answer. Fails the test when that takes too long.
#[track_caller]
pub fn wait_for<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + SOON;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < give_up, "waited {SOON:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// These arguments. Who asks a server waits long for a busy one, unless a deadline is among them.
pub fn patient<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    const ASKING: [&str; 8] = ["get", "put", "del", "load", "stat", "snapshot", "restore", "shrink"];
    let is_asking = arguments.first().is_some_and(|command| ASKING.contains(command));
    let is_given = arguments.contains(&"--deadline");
    let deadline: &[&str] = if is_asking && !is_given { &["--deadline", "60s"] } else { &[] };
    [arguments, deadline].concat()
}

/// Runs a command that ends. A server that starts although it should not is killed, and the test fails.
#[track_caller]
pub fn run(arguments: &[&str]) -> Output {
    let mut command = oneread();
    command.args(patient(arguments)).stdin(Stdio::null());
    if arguments.first() == Some(&"serve") { ends(command) } else { command.output().unwrap() }
}

/// The output of a command that is to end within a minute.
#[track_caller]
pub fn ends(mut command: Command) -> Output {
    let [out, err] = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    let file = |file: &tempfile::NamedTempFile| Stdio::from(file.reopen().unwrap());
    let mut child = command.stdout(file(&out)).stderr(file(&err)).spawn().unwrap();
    let until = Instant::now() + SOON;
    let read = |file: &tempfile::NamedTempFile| std::fs::read(file.path()).unwrap();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Output { status, stdout: read(&out), stderr: read(&err) };
        }
        if Instant::now() > until {
            let _ = child.kill();
            let status = child.wait().unwrap();
            let printed = Output { status, stdout: read(&out), stderr: read(&err) };
            panic!("{command:?} does not end: stdout {}\nstderr {}", stdout(&printed), stderr(&printed));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes to a command. It may end before it has read everything; its status says why.
pub fn feed(child: &mut Child, input: &[u8]) {
    match child.stdin.take().unwrap().write_all(input) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => panic!("{error}"),
        _ => {}
    }
}

#[track_caller]
pub fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = oneread()
        .args(patient(arguments))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    feed(&mut child, input);
    child.wait_with_output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[track_caller]
pub fn expect(output: Output, status: i32) -> Output {
    assert_eq!(output.status.code(), Some(status), "stdout {}\nstderr {}", stdout(&output), stderr(&output));
    output
}

/// A server in a folder of its own.
pub struct Served {
    pub child: Child,
    pub ready: Value,
    pub at: String,
    pub dir: TempDir,
}

impl Served {
    pub fn start(more: &[&str]) -> Served {
        Served::start_in(tempfile::tempdir().unwrap(), more)
    }

    pub fn start_in(dir: TempDir, more: &[&str]) -> Served {
        Served::start_by(oneread(), dir, more)
    }

    pub fn start_by(mut command: Command, dir: TempDir, more: &[&str]) -> Served {
        let at = format!("shm:{}", dir.path().join("sock").display());
        let mut child =
            command.args(["serve", "--json", "--at", &at]).args(more).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not ready: {line:?}: {e}"));
        Served { child, ready, at, dir }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Suspends it. Returns when each of its threads has stopped.
    pub fn suspend(&self) {
        use rustix::process::{Pid, Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        let told = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap();
        assert!(told.is_some_and(|(_, status)| status.stopped()), "{told:?}");
    }

    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--at", &self.at]);
        run(&all)
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command on a terminal of 80 columns. Returns what the terminal shows, bars and all, without
/// escape sequences.
#[track_caller]
pub fn on_a_terminal(arguments: &[&str]) -> String {
    use std::io::Read;
    let (mut child, mut terminal) = begin_on_a_terminal(arguments);
    let mut shown = Vec::new();
    // It ends with EIO when the command has.
    let _ = terminal.read_to_end(&mut shown);
    child.wait().unwrap();
    without_escapes(&String::from_utf8(shown).unwrap())
}

/// Begins a command on a terminal of 80 columns and 24 lines, and returns the terminal's other side.
#[track_caller]
pub fn begin_on_a_terminal(arguments: &[&str]) -> (Child, std::fs::File) {
    begin_on_a_terminal_with(arguments, &[])
}

/// As [`begin_on_a_terminal`], with these variables in the command's environment.
#[track_caller]
pub fn begin_on_a_terminal_with(arguments: &[&str], environment: &[(&str, &str)]) -> (Child, std::fs::File) {
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let side = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&side, size).unwrap();
    let [stdin, stdout, stderr] = [(); 3].map(|()| Stdio::from(side.try_clone().unwrap()));
    // A session of its own has no other terminal.
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_oneread")]).args(arguments);
    let mut command = alone(command);
    command.env("TERM", "xterm").envs(environment.iter().copied());
    let child = command.stdin(stdin).stdout(stdout).stderr(stderr).spawn().expect("setsid");
    (child, terminal.into())
}

pub fn without_escapes(shown: &str) -> String {
    let mut plain = String::new();
    let mut chars = shown.chars();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            plain.push(c);
        } else if chars.next() == Some('[') {
            // Parameters, up to a letter.
            let _ = chars.find(|c| ('@'..='~').contains(c));
        }
    }
    plain
}

/// Makes a file that nobody else may read, as a secret has to be in.
pub fn write_secret(path: impl AsRef<Path>, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// The end of a pipe, for a process that is to write into it: nothing more finds room there, until the other end is read.
pub fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut own = writer.try_clone().unwrap();
    // As much as no pipe holds. The thread ends when it is read, or nobody is there to read.
    std::thread::spawn(move || own.write_all(&vec![b'\n'; 4 << 20]));
    wait_for("a full pipe", || (!is_ready(&writer, PollFlags::OUT, Duration::ZERO)).then_some(()));
    (reader, writer)
}

/// Whether a descriptor can be read from, or written to, within this time.
pub fn is_ready(fd: impl std::os::fd::AsFd, what: PollFlags, within: Duration) -> bool {
    let within = rustix::event::Timespec::try_from(within).unwrap();
    rustix::event::poll(&mut [PollFd::new(&fd, what)], Some(&within)).unwrap() > 0
}

pub fn region_in(dir: &Path) -> String {
    dir.join("table.region").display().to_string()
}

/// Lines for `load`.
pub fn lines_of(keys: std::ops::Range<u32>) -> String {
    keys.map(|n| format!("key{n}\tvalue{n}\n")).collect()
}

impl Served {
    pub fn load(&self, keys: std::ops::Range<u32>) {
        expect(run_with_input(&["load", "-", "--at", &self.at], lines_of(keys).as_bytes()), 0);
    }

    pub fn stat(&self) -> Value {
        json(&expect(self.run(&["stat", "--json"]), 0))
    }

    pub fn kill(&mut self) -> TempDir {
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

/// What the doctor finds out about the server.
#[track_caller]
pub fn doctor_on_server(command: &mut Command) -> Value {
    let report = json(&expect(command.args(["doctor", "--fabric", "shm", "--json"]).output().unwrap(), 0));
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["what"] == "server").unwrap().clone()
}
