//! Tests of the unit and the image: with folders of their own in place of the system's, they start this
//! program as they say.

use crate::command::alone;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_oneread");
/// Where unit and image have it.
const INSTALLED: &str = "/usr/local/bin/oneread";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

/// Waits up to a minute.
#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A machine that has the folders which unit and image name.
struct Machine {
    dir: TempDir,
    /// Variables that all commands there see.
    env: Vec<(String, String)>,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["run", "state", "shm"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Machine { dir, env: Vec::new() }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The text with the paths of this machine.
    fn here(&self, text: &str) -> String {
        text.replace("/run/oneread", &self.path("run")).replace("/var/lib/oneread", &self.path("state"))
    }

    /// `NAME=VALUE`.
    fn set(&mut self, variable: &str) {
        let (name, value) = variable.split_once('=').unwrap();
        self.env.push((name.into(), self.here(value)));
    }

    /// The command of these words, the first of which is the program.
    fn command(&self, words: &[String]) -> Command {
        let program = &words[0];
        assert!(program == INSTALLED || INSTALLED.ends_with(&format!("/{program}")), "{program}");
        let mut command = alone(Command::new(PROGRAM));
        command.args(words[1..].iter().map(|word| self.here(word)));
        command.env("ONEREAD_SHM", self.path("shm")).envs(self.env.iter().cloned()).stdin(Stdio::null());
        command
    }

    fn oneread(&self, arguments: &[&str]) -> Command {
        let words = ["oneread"].iter().chain(arguments).map(|word| word.to_string());
        self.command(&words.collect::<Vec<_>>())
    }

    /// The server answers, stops when it is told to, and leaves a snapshot.
    fn try_out(&self, mut server: Running) {
        assert!(self.oneread(&["put", "greeting", "hello"]).status().unwrap().success());
        let out = self.oneread(&["get", "greeting"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "hello\n");
        assert!(Path::new(&self.path("run")).join("oneread.sock").exists());
        kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
        assert!(server.0.wait().unwrap().success());
        assert!(Path::new(&self.path("state")).join("t.snap").exists());
    }
}

/// The values of a unit's setting.
fn settings<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

#[test]
fn the_unit_starts_a_server_that_says_when_it_is_ready() {
    let unit = read("dist/oneread.service");
    let mut machine = Machine::new();
    for variable in settings(&unit, "Environment") {
        machine.set(variable);
    }
    for folder in ["RuntimeDirectory", "StateDirectory"] {
        assert_eq!(settings(&unit, folder), ["oneread"]);
    }
    assert_eq!(settings(&unit, "Type"), ["notify"]);
    let notified = UnixDatagram::bind(machine.path("notify")).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(60))).unwrap();

    let [start] = settings(&unit, "ExecStart")[..] else { panic!("one command") };
    // No more options than are there.
    let words = shlex::split(start.strip_suffix(" $ONEREAD_OPTIONS").unwrap()).unwrap();
    assert_eq!(words[0], INSTALLED);
    let mut server = machine.command(&words);
    let server = Running(server.env("NOTIFY_SOCKET", machine.path("notify")).spawn().unwrap());
    let is_ready = || {
        let mut message = [0; 4096];
        let length = notified.recv(&mut message).expect("a message within a minute");
        String::from_utf8_lossy(&message[..length]).lines().any(|line| line == "READY=1")
    };
    while !is_ready() {}
    machine.try_out(server);
}

/// The unit takes from the server what it needs not, and systemd counts what is left.
#[test]
fn the_unit_has_few_rights() {
    let unit = read("dist/oneread.service");
    assert_eq!(settings(&unit, "UMask"), ["0077"]);
    assert_eq!(settings(&unit, "ProtectProc"), ["invisible"]);
    assert_eq!(settings(&unit, "SystemCallFilter"), ["@system-service", "~@privileged @resources"]);
    assert_eq!(settings(&unit, "SystemCallErrorNumber"), ["EPERM"]);
    let machine = Machine::new();
    let path = machine.path("oneread.service");
    std::fs::write(&path, unit.replace(INSTALLED, PROGRAM)).unwrap();
    let judged = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20", &path])
        .output();
    let Ok(judged) = judged else {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no systemd-analyze here");
        return eprintln!("skipped: no systemd-analyze here (on Debian: apt-get install systemd)");
    };
    let said = String::from_utf8_lossy(&judged.stdout);
    assert!(judged.status.success(), "{said}\n{}", String::from_utf8_lossy(&judged.stderr));
}

/// systemd knows each line of the units.
#[test]
fn the_units_are_valid() {
    for name in ["oneread.service", "oneread-kv-indexer.service"] {
        let machine = Machine::new();
        let unit = machine.path(name);
        std::fs::write(&unit, read(&format!("dist/{name}")).replace(INSTALLED, PROGRAM)).unwrap();
        let verified = Command::new("systemd-analyze").args(["verify", "--man=no", &unit]).output();
        let Ok(verified) = verified else {
            assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no systemd-analyze here");
            eprintln!("skipped: no systemd-analyze here (on Debian: apt-get install systemd)");
            return;
        };
        // What it says of other units is about this machine.
        let said = String::from_utf8_lossy(&verified.stderr);
        let said: Vec<&str> = said.lines().filter(|line| line.contains(name)).collect();
        assert!(verified.status.success() && said.is_empty(), "{said:#?}");
    }
}

/// The instructions of the Dockerfile: name and arguments.
fn instructions(text: &str) -> Vec<(String, String)> {
    let text = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let text = text.replace("\\\n", "");
    let words = text.lines().filter_map(|line| line.split_once(' '));
    words.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
}

/// All but the building of the image itself: each file and command in it is there, and a server started its
/// way becomes healthy.
#[test]
fn the_image_starts_a_server_that_becomes_healthy() {
    let instructions = instructions(&read("Dockerfile"));
    let of = |wanted: &str| -> Vec<&str> {
        instructions.iter().filter(|(name, _)| name == wanted).map(|(_, rest)| rest.as_str()).collect()
    };
    let words = |json: &str| serde_json::from_str::<Vec<String>>(json).unwrap();

    let rust = concat!("docker.io/library/rust:", env!("CARGO_PKG_RUST_VERSION"), "-");
    assert!(of("FROM")[0].starts_with(rust), "the oldest Rust that does");
    let build = concat!("cargo build --release --locked -p ", env!("CARGO_PKG_NAME"), " ");
    assert!(of("RUN")[0].starts_with(build));
    assert_eq!(of("COPY"), [". .", &format!("--from=build /src/target/release/oneread {INSTALLED}")]);
    for left_out in read(".dockerignore").lines().filter(|line| !line.starts_with("target")) {
        let tracked =
            ["Cargo.toml", "Cargo.lock", "src", "cli", "kit", "lab", "benches", "examples", "README.md"];
        assert!(!tracked.contains(&left_out), "the build needs {left_out}");
    }
    let [user] = of("USER")[..] else { panic!("one user") };
    assert!(of("RUN")[1].contains(&format!(" {user} ")) && user != "root");

    let mut machine = Machine::new();
    of("ENV").into_iter().for_each(|variable| machine.set(variable));
    assert_eq!(words(of("VOLUME")[0]), ["/run/oneread", "/var/lib/oneread"]);
    let start = [words(of("ENTRYPOINT")[0]), words(of("CMD")[0])].concat();
    let (_, health) = of("HEALTHCHECK")[0].split_once("CMD ").unwrap();
    let is_healthy =
        |machine: &Machine| machine.command(&words(health)).stderr(Stdio::null()).status().unwrap().success();
    assert!(!is_healthy(&machine), "nobody serves");
    let server = Running(machine.command(&start).spawn().unwrap());
    wait_for("the server is healthy", || is_healthy(&machine));
    machine.try_out(server);
}

/// Processes do not see each other's numbers, whichever of them is in the container.
#[test]
fn clients_and_servers_of_different_containers_work_together() {
    let elsewhere = |program: &Command| {
        let mut command = alone(Command::new("unshare"));
        command.args(["-rp", "--fork", "--kill-child"]).arg(program.get_program()).args(program.get_args());
        let set = program.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(set).stdin(Stdio::null());
        command
    };
    if !elsewhere(&Command::new("true")).output().is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no namespaces here");
        eprintln!("skipped: no namespace of processes can be made here (unshare)");
        return;
    }
    for is_server_elsewhere in [false, true] {
        let mut machine = Machine::new();
        machine.set("ONEREAD_AT=shm:/run/oneread/oneread.sock");
        let there = |command: Command, is_so| if is_so { elsewhere(&command) } else { command };
        let serve = machine.oneread(&["serve", "--max-memory", "64MiB"]);
        let server = Running(there(serve, is_server_elsewhere).spawn().unwrap());
        wait_for("a put", || {
            let put = machine.oneread(&["put", "greeting", "hello"]);
            there(put, !is_server_elsewhere).output().unwrap().status.success()
        });
        let get = machine.oneread(&["get", "greeting"]);
        let out = there(get, !is_server_elsewhere).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "hello\n");
        drop(server);
    }
}

/// `ONEREAD_IMAGE_BUILDER=podman cargo test -p oneread-cli --test cli -- --ignored the_image_is_built`
#[test]
#[ignore = "builds the image: needs docker or podman, its base images, the network, and some minutes"]
fn the_image_is_built() {
    let builder = std::env::var("ONEREAD_IMAGE_BUILDER").unwrap_or("docker".into());
    let run = |arguments: &[&str]| {
        Command::new(&builder).args(arguments).current_dir(repository()).output().unwrap()
    };
    let expect = |arguments: &[&str]| {
        let out = run(arguments);
        assert!(out.status.success(), "{builder} {arguments:?}\n{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    expect(&["build", "--tag", "oneread-test", "."]);
    let container = expect(&["run", "--detach", "--shm-size", "256m", "oneread-test"]);
    wait_for("the server answers", || run(&["exec", &container, "oneread", "ping"]).status.success());
    expect(&["exec", &container, "oneread", "put", "greeting", "hello"]);
    assert_eq!(expect(&["exec", &container, "oneread", "get", "greeting"]), "hello");
    assert_eq!(expect(&["exec", &container, "id", "-un"]), "oneread");
    expect(&["stop", &container]);
    // With the same snapshot, the next one begins.
    expect(&["start", &container]);
    wait_for("the server answers", || run(&["exec", &container, "oneread", "ping"]).status.success());
    assert_eq!(expect(&["exec", &container, "oneread", "get", "greeting"]), "hello");
    expect(&["rm", "--force", "--volumes", &container]);
}
