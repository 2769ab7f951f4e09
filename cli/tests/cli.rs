//! Tests of the `oneread` command from outside, as a shell or a script uses it.

mod command;

use command::{alone, oneread};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time allowed for anything that ends by itself, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Polls until there is an answer. Fails the test when that takes too long.
#[track_caller]
fn wait_for<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
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
fn patient<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    const ASKING: [&str; 8] = ["get", "put", "del", "load", "stat", "snapshot", "restore", "shrink"];
    let is_asking = arguments.first().is_some_and(|command| ASKING.contains(command));
    let is_given = arguments.contains(&"--deadline");
    let deadline: &[&str] = if is_asking && !is_given { &["--deadline", "60s"] } else { &[] };
    [arguments, deadline].concat()
}

/// Runs a command that ends. A server that starts although it should not is killed, and the test fails.
#[track_caller]
fn run(arguments: &[&str]) -> Output {
    let mut command = oneread();
    command.args(patient(arguments)).stdin(Stdio::null());
    if arguments.first() == Some(&"serve") { ends(command) } else { command.output().unwrap() }
}

/// The output of a command that is to end within a minute.
#[track_caller]
fn ends(mut command: Command) -> Output {
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
fn feed(child: &mut Child, input: &[u8]) {
    match child.stdin.take().unwrap().write_all(input) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => panic!("{error}"),
        _ => {}
    }
}

#[track_caller]
fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
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

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[track_caller]
fn expect(output: Output, status: i32) -> Output {
    assert_eq!(output.status.code(), Some(status), "stdout {}\nstderr {}", stdout(&output), stderr(&output));
    output
}

/// A server in a folder of its own.
struct Served {
    child: Child,
    ready: Value,
    at: String,
    dir: TempDir,
}

impl Served {
    fn start(more: &[&str]) -> Served {
        Served::start_in(tempfile::tempdir().unwrap(), more)
    }

    fn start_in(dir: TempDir, more: &[&str]) -> Served {
        Served::start_by(oneread(), dir, more)
    }

    fn start_by(mut command: Command, dir: TempDir, more: &[&str]) -> Served {
        let at = format!("shm:{}", dir.path().join("sock").display());
        let mut child =
            command.args(["serve", "--json", "--at", &at]).args(more).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not ready: {line:?}: {e}"));
        Served { child, ready, at, dir }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Suspends it. Returns when each of its threads has stopped.
    fn suspend(&self) {
        use rustix::process::{Pid, Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        let told = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap();
        assert!(told.is_some_and(|(_, status)| status.stopped()), "{told:?}");
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--at", &self.at]);
        run(&all)
    }

    fn file(&self, name: &str, text: &str) -> String {
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
fn on_a_terminal(arguments: &[&str]) -> String {
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
fn begin_on_a_terminal(arguments: &[&str]) -> (Child, std::fs::File) {
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
    let child =
        command.env("TERM", "xterm").stdin(stdin).stdout(stdout).stderr(stderr).spawn().expect("setsid");
    (child, terminal.into())
}

fn without_escapes(shown: &str) -> String {
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

/// Tables, bars, help and messages fit a terminal of 80 columns.
#[test]
fn output_fits_the_terminal() {
    let served = Served::start(&["--anonymous", "--capacity", "300000"]);
    let lines: String = (0..40_000).map(|n| format!("key {n}\t{n}\n")).collect();
    let file = served.file("in.tsv", &lines);
    let region = region_in(served.dir.path());
    drop(Served::start(&["--region", &region, "--capacity", "10"]));
    let at = ["--at", &served.at];
    let mut all: Vec<Vec<&str>> = vec![
        [&["load", &file][..], &at].concat(),
        [&["stat"][..], &at].concat(),
        [&["inspect", "--key", "key 7"][..], &at].concat(),
        [&["get", "key 7"][..], &at].concat(),
        vec!["regions", &region],
        vec!["inspect", "--region", &region],
        vec!["layouts", "--list"],
        vec!["layouts", "--slots", "1024", "--load", "90,max", "--keys", "both"],
        vec!["doctor"],
        vec!["demo", "--rounds", "1", "--seconds", "0.1"],
        vec!["bench", "get", "--keys", "2000", "--rounds", "1"],
        vec!["bench", "insert", "--keys", "2000", "--rounds", "1"],
        vec!["bench", "rpc", "--connections", "1,4", "--keys", "2000", "--rounds", "1", "--seconds", "0.05"],
        vec!["bench", "curve", "--from", "1000", "--to", "1000", "--rounds", "1"],
        vec!["bench", "kill", "--kills", "1", "--keys", "10", "--value-bytes", "8"],
        vec!["bench", "grow", "--from", "1000", "--keys", "4000", "--segment-slots", "256"],
        vec!["bench", "hints", "--from", "1000", "--keys", "4000", "--segment-slots", "256", "--parts", "2"],
        vec!["bench", "tiered", "--scale", "0.00001"],
        vec!["bench", "tiered", "--help"],
        vec!["bench", "long", "--sizes", "64,65536", "--mib", "2", "--rounds", "1"],
        vec!["bench", "long", "--help"],
        vec!["plan", "--sample-slots", "4096", "--design", "windowed:8", "--simulate", "1000"],
        vec!["--help"],
    ];
    for command in [
        "serve",
        "get",
        "put",
        "del",
        "load",
        "dump",
        "stat",
        "inspect",
        "regions",
        "layouts",
        "bench",
        "demo",
        "doctor",
        "completions",
        "man",
    ] {
        all.push(vec![command, "--help"]);
    }
    for arguments in all {
        let shown = on_a_terminal(&arguments);
        assert!(!shown.is_empty(), "{arguments:?}");
        // Names of files are as long as they are.
        let mine = served.dir.path().display().to_string();
        let fits = |line: &&str| line.chars().count() > 80 && !line.contains(&mine);
        assert_eq!(shown.split(['\n', '\r']).find(fits), None, "{arguments:?}");
    }
}

/// A log has colors on a terminal, and no escape codes in a file.
#[test]
fn logs_in_files_have_no_escape_codes() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let mut command = oneread();
    command.env("RUST_LOG", "trace").args([
        "serve",
        "--anonymous",
        "--capacity",
        "10",
        "--json",
        "--at",
        &at,
    ]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    let log = stderr(&child.wait_with_output().unwrap());
    assert!(log.contains("serving"), "{log}");
    assert!(!log.contains('\x1b'), "{log:?}");
}

/// Each message names the true cause, and what to do.
#[test]
fn messages_name_the_cause() {
    // Something else is in the socket's place, or there is no place.
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(in_dir("file"), "").unwrap();
    std::fs::create_dir(in_dir("folder")).unwrap();
    std::os::unix::fs::symlink(in_dir("nowhere"), in_dir("link")).unwrap();
    for kind in ["file", "folder", "link"] {
        let at = format!("shm:{}", in_dir(kind));
        let refused = stderr(&expect(run(&["serve", "--anonymous", "--capacity", "10", "--at", &at]), 1));
        assert!(refused.contains(&format!("there is a {kind} at {}", in_dir(kind))), "{refused}");
    }
    let at = format!("shm:{}", in_dir("no/socket"));
    let refused = stderr(&expect(run(&["serve", "--anonymous", "--capacity", "10", "--at", &at]), 1));
    assert!(
        refused.starts_with(&format!("oneread: error: there is no folder {}", in_dir("no"))),
        "{refused}"
    );
    assert_eq!(refused.lines().count(), 1, "{refused}");

    // A file that lost its end: by how much is said to the byte.
    let region = region_in(dir.path());
    let served = Served::start(&["--region", &region, "--capacity", "10"]);
    drop(served);
    let whole = std::fs::metadata(&region).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&region).unwrap().set_len(whole - 1).unwrap();
    let refused = stderr(&expect(run(&["inspect", "--region", &region]), 1));
    assert!(
        refused.contains(&format!("it has {} bytes, its superblock says {whole}", whole - 1)),
        "{refused}"
    );

    // A client without address space for the region.
    let served = Served::start(&["--anonymous", "--capacity", "1000000"]);
    let limited =
        format!("ulimit -v 100000; exec {} get k --at {}", env!("CARGO_BIN_EXE_oneread"), served.at);
    let out = alone(Command::new("sh")).args(["-c", &limited]).output().unwrap();
    let refused = stderr(&expect(out, 1));
    assert!(refused.contains("no address space left") && refused.contains("ulimit -v"), "{refused}");
    // A server without addresses for its table: huge pages are not to blame.
    let limited = format!(
        "ulimit -v 400000; exec {} serve --anonymous --capacity 4000000 --at shm:{}",
        env!("CARGO_BIN_EXE_oneread"),
        dir.path().join("other").display()
    );
    let refused = stderr(&expect(
        alone(Command::new("timeout")).args(["60", "sh", "-c", &limited]).output().unwrap(),
        1,
    ));
    assert!(refused.contains("no address space left") && !refused.contains("huge"), "{refused}");
}

/// A region of another version is named as such, with what keeps its keys, and what removes it.
#[test]
fn other_versions_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let at = format!("shm:{}", dir.path().join("sock").display());
    let dir = Served::start_in(dir, &["--region", &region, "--slots", "64"]).kill();
    let age = || {
        let mut bytes = std::fs::read(&region).unwrap();
        bytes[8..12].copy_from_slice(&4u32.to_le_bytes());
        std::fs::write(&region, bytes).unwrap();
    };
    age();
    let refused = stderr(&expect(run(&["serve", "--region", &region, "--at", &at]), 1));
    for part in
        ["region format version 4, this build reads version", "`oneread dump` with that release", "--fresh"]
    {
        assert!(refused.contains(part), "{refused}");
    }
    let mut served = Served::start_in(dir, &["--region", &region, "--slots", "64", "--fresh"]);
    assert_eq!(served.ready["recovered"], Value::Null);
    let _dir = served.kill();
    age();
    expect(run(&["regions", "--remove", &region]), 0);
    assert!(!Path::new(&region).exists());
    // What is no region stays.
    std::fs::write(&region, vec![b'x'; 100_000]).unwrap();
    std::fs::set_permissions(&region, std::fs::Permissions::from_mode(0o600)).unwrap();
    expect(run(&["regions", "--remove", &region]), 1);
    expect(run(&["serve", "--fresh", "--region", &region, "--at", &at]), 1);
    assert!(Path::new(&region).exists());
}

/// Options are named in the command's words, with what they have to be, and what is advised is taken.
#[test]
fn advice_on_sizes_is_taken() {
    let refused = |options: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let at = format!("shm:{}", dir.path().join("sock").display());
        stderr(&expect(run(&[&["serve", "--anonymous", "--at", &at], options].concat()), 1))
    };
    let long = refused(&["--max-memory", "100MiB", "--value-max", "64MiB"]);
    let advised = long.trim_end().rsplit_once("; as by --max-memory ").unwrap_or_else(|| panic!("{long}")).1;
    Served::start(&["--anonymous", "--max-memory", advised, "--value-max", "64MiB"]);
    let told = refused(&["--capacity", "100", "--inline-max", "10KiB"]);
    assert!(told.contains("lower --inline-max to "), "{told}");
    let told = refused(&["--capacity", "100", "--value-max", "10KiB", "--heap", "10KiB"]);
    assert!(told.contains("--heap is 10240; "), "{told}");
}

/// One is singular.
#[test]
fn one_is_singular() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let at = format!("shm:{}", dir.path().join("sock").display());
    let serve = || {
        let mut child = oneread()
            .args(["serve", "--at", &at, "--region", &region])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line)
    };
    for (key, taken_over) in
        [("a", "new"), ("b", "taken over with 1 key\n"), ("c", "taken over with 2 keys\n")]
    {
        let (mut child, line) = serve();
        assert!(line.trim_end().ends_with(taken_over.trim_end()), "{line}");
        expect(run(&["put", key, "", "--at", &at]), 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Completions and manual pages know every command and flag.
#[test]
fn completions_and_manual() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&expect(run(&["completions", shell]), 0));
        assert!(script.contains("doctor") && script.contains("if-value"), "{shell}: {script}");
        let names: &[&str] = &["bucketized", "cx6-200g"];
        // Elvish and PowerShell complete no values.
        if ["bash", "zsh", "fish"].contains(&shell) {
            assert!(names.iter().all(|name| script.contains(name)), "{shell}: {script}");
        }
    }
    let page = stdout(&expect(run(&["man"]), 0));
    assert!(page.contains(".TH oneread") && page.contains("EXAMPLES"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man1");
    expect(run(&["man", &folder.display().to_string()]), 0);
    for (name, flag) in [("oneread", "demo"), ("oneread-put", "if\\-value"), ("oneread-bench-rpc", "pairs")] {
        let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(flag), "{name}: {page}");
    }
}

/// Bash completes the names of layouts, profiles and designs, also behind a colon, at which it breaks words.
#[test]
fn bash_completes_names() {
    let script = stdout(&expect(run(&["completions", "bash"]), 0));
    // As bash calls the function that is registered: with the command, the word, and the one before.
    let completed = |breaks: &str, words: &[&str]| {
        let call = r#"
            shopt -s extdebug
            COMP_WORDBREAKS=$1; shift
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            read -ra registered <<< "$(complete -p oneread)"
            for ((n = 0; n < ${#registered[@]}; n++)); do
                [[ ${registered[n]} == -F ]] && function=${registered[n + 1]}
            done
            "$function" oneread "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
            printf '%s\n' "${COMPREPLY[@]}"
        "#;
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &format!("{script}\n{call}"), "bash", breaks]).args(words);
        stdout(&expect(bash.output().expect("bash"), 0)).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (words, found) in [
        (&["oneread", "layouts", "--preset", "wind"][..], &["windowed:8", "windowed:16"][..]),
        (&["oneread", "layouts", "--preset", "windowed", ":"], &["8", "16"]),
        (&["oneread", "serve", "--layout", "windowed", ":", "1"], &["16"]),
        (&["oneread", "bench", "rpc", "--layout", "farm"], &["farm"]),
        (&["oneread", "plan", "--nic", "cx6"], &["cx6-200g"]),
        (&["oneread", "plan", "--design", "HER"], &["HERD"]),
        (&["oneread", "lay"], &["layouts"]),
    ] {
        assert_eq!(completed(" :", words), found, "{words:?}");
    }
    // Where a colon breaks no words, nothing is taken off.
    assert_eq!(completed(" ", &["oneread", "layouts", "--preset", "windowed:1"]), ["windowed:16"]);
}

fn region_in(dir: &Path) -> String {
    dir.join("table.region").display().to_string()
}

/// Valgrind finds no invalid access and no leak, in the server or in a client.
#[test]
fn valgrind_finds_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    let checked = || {
        let mut command = Command::new("valgrind");
        command.args(["-q", "--error-exitcode=99", "--leak-check=full"]);
        command.args(["--errors-for-leak-kinds=definite,indirect", env!("CARGO_BIN_EXE_oneread")]);
        alone(command)
    };
    let options = ["--anonymous", "--capacity", "1000"];
    let mut served = Served::start_by(checked(), tempfile::tempdir().unwrap(), &options);
    for (arguments, expected) in [(&["put", "k", "v"][..], "inserted\n"), (&["get", "k"], "v\n")] {
        let patient = ["--deadline", "60s", "--at", &served.at];
        let out = checked().args(arguments).args(patient).output().unwrap();
        assert_eq!(stdout(&expect(out, 0)), expected);
    }
    served.signal(rustix::process::Signal::TERM);
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
}

/// A short run of the demo.
#[test]
fn demo_reads_a_stopped_server() {
    let out = json(&expect(run(&["demo", "--json", "--rounds", "2", "--seconds", "0.3"]), 0));
    let n = |name: &str| out[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {out}"));
    assert!(n("keys") > 30_000.0);
    assert_eq!(n("found"), 2.0 * n("keys"));
    assert_eq!((n("missed"), n("wrong"), n("server_cpu_ms")), (0.0, 0.0, 0.0), "{out}");
    assert!((1.0..1.1).contains(&n("reads_per_get")), "{out}");
    assert!((1.0..=n("reads_per_get")).contains(&n("trips_per_get")), "{out}");
    assert!(n("bytes_per_get") >= 1024.0 && n("gets_per_s") > 0.0 && n("torn_retries") >= 0.0);
    assert!(n("p50_ns") > 0.0 && n("p50_ns") <= n("p99_ns") && n("p99_ns") <= n("p999_ns"));
    assert!(out["put_while_stopped"].as_str().unwrap().starts_with("no answer within "));
    assert!(n("updates") > 0.0 && n("gets_while_updating") > 0.0);
    let growth = |name: &str| out["growth"][name].as_f64().unwrap_or_else(|| panic!("{name}: {out}"));
    assert_eq!(growth("keys"), 10.0 * growth("keys_before"));
    assert!(growth("segments") > 5.0 * growth("segments_before") && growth("gets") > 1_000.0, "{out}");
    // A split that was under way before counts, too: its segment was there. The first segment is of no split.
    assert!(growth("splits") > 0.0 && growth("splits") < growth("segments"), "{out}");
    assert_eq!(growth("failed") + growth("missed") + growth("wrong"), 0.0, "{out}");
    assert!((1.0..1.3).contains(&growth("reads_per_get")), "{out}");
}

/// Values that fit no slot: from stdin to stdout, over a stop of the server, and what `stat` says of them.
#[test]
fn long_values() {
    let value: Vec<u8> = (0..700_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let sized = &["--capacity", "1000", "--value-max", "1MiB", "--heap", "64MiB", "--inline-max", "40"][..];
    for options in [sized, &["--max-memory", "1GiB", "--value-max", "1MiB"]] {
        let dir = tempfile::tempdir().unwrap();
        let region = dir.path().join("region").display().to_string();
        let options = [options, &["--region", &region]].concat();
        let mut served = Served::start_in(dir, &options);
        assert_eq!(served.ready["value_max"], 1 << 20);
        assert!(served.ready["heap_bytes"].as_u64().unwrap() >= 60 << 20, "{}", served.ready);
        let at = ["--at", &served.at];
        let out = run_with_input(&["put", "long", "-", at[0], at[1]], &value);
        assert_eq!(stdout(&expect(out, 0)), "inserted\n");
        assert!(expect(served.run(&["get", "-n", "long"]), 0).stdout == value);
        let out = run_with_input(&["put", "longer", "-", at[0], at[1]], &vec![0; (1 << 20) + 1]);
        assert!(stderr(&expect(out, 1)).contains("1048577 bytes long"));
        let heap = json(&expect(served.run(&["stat", "--json"]), 0))["heap"].clone();
        assert_eq!((&heap["values"], &heap["live_bytes"]), (&1.into(), &700_032.into()), "{heap}");
        assert_eq!(heap["heap_bytes"], served.ready["heap_bytes"]);
        let shown = stdout(&expect(served.run(&["stat"]), 0));
        assert!(shown.contains("values in it"), "{shown}");
        served.signal(rustix::process::Signal::TERM);
        assert_eq!(served.child.wait().unwrap().code(), Some(0));
        let dir = std::mem::replace(&mut served.dir, tempfile::tempdir().unwrap());
        let served = Served::start_in(dir, &options);
        assert!(expect(served.run(&["get", "-n", "long"]), 0).stdout == value);
    }
    // Another heap than the one that is there is not served in silence.
    let dir = tempfile::tempdir().unwrap();
    let (region, unused) = (region_in(dir.path()), dir.path().join("unused").display().to_string());
    let options = [sized, &["--region", &region]].concat();
    drop(Served::start(&options));
    let more: Vec<_> =
        options.iter().map(|&option| if option == "64MiB" { "128MiB" } else { option }).collect();
    let out = expect(run(&[&["serve", "--at", &unused], &more[..]].concat()), 1);
    assert!(stderr(&out).contains("it has heap ") && stderr(&out).contains("--fresh"), "{out:?}");
    let served = Served::start(&["--anonymous", "--capacity", "1000", "--value-max", "78"]);
    assert_eq!(json(&expect(served.run(&["stat", "--json"]), 0))["heap"], Value::Null);
}

#[test]
fn put_get_del() {
    let served = Served::start(&["--anonymous", "--capacity", "1000"]);
    assert_eq!(stdout(&expect(served.run(&["put", "k", "v"]), 0)), "inserted\n");
    assert_eq!(stdout(&expect(served.run(&["put", "k", "w"]), 0)), "updated\n");
    assert_eq!(stdout(&expect(served.run(&["put", "--insert", "k", "x"]), 1)), "exists\n");
    assert_eq!(stdout(&expect(served.run(&["put", "--update", "other", "x"]), 1)), "missing\n");
    assert_eq!(stdout(&expect(served.run(&["get", "k"]), 0)), "w\n");
    assert_eq!(stdout(&expect(served.run(&["get", "-n", "k"]), 0)), "w");

    // One of two keys is absent: the other is printed, and the message names the absent one.
    let out = expect(served.run(&["get", "k", "nope"]), 1);
    assert_eq!(stdout(&out), "w\n");
    assert!(stderr(&out).contains("no key \"nope\""), "{out:?}");
    let out = expect(served.run(&["get", "--json", "nope"]), 1);
    assert_eq!(json(&out), serde_json::json!({ "key": "nope", "found": false }));

    expect(served.run(&["put", "--hex", "00ff", "fe00"]), 0);
    assert_eq!(stdout(&expect(served.run(&["get", "--hex", "00ff"]), 0)), "fe00\n");
    for (expected, value, outcome, status) in [
        ("x", "y", "differs", 1),
        ("w", "w", "updated", 0),
        ("w", "z", "updated", 0),
        ("w", "w", "differs", 1),
    ] {
        let put = ["put", "--if-value", expected, "k", value];
        assert_eq!(stdout(&expect(served.run(&put), status)), format!("{outcome}\n"));
    }
    assert_eq!(stdout(&expect(served.run(&["put", "--if-value", "", "other", "x"]), 1)), "missing\n");
    let put = ["put", "--json", "--hex", "--if-value", "7a", "6b", "77"];
    assert_eq!(json(&expect(served.run(&put), 0))["outcome"], "updated");
    expect(served.run(&["put", "--if-value", "w", "--insert", "k", "x"]), 2);

    // A key that the table cannot hold fails no other one.
    let long = "l".repeat(87);
    let out = expect(served.run(&["get", &long, "k", ""]), 1);
    assert_eq!(stdout(&out), "w\n");
    assert!(stderr(&out).contains("87 bytes long") && stderr(&out).contains("0 bytes long"), "{out:?}");
    let out = expect(served.run(&["del", "--json", &long, "nope"]), 1);
    assert_eq!(json(&out), serde_json::json!({ "removed": 0, "absent": 1, "refused": 1 }));
    assert!(stderr(&out).contains("87 bytes long"), "{out:?}");

    let out = run_with_input(&["put", "piped", "-", "--at", &served.at], b"two\nlines\n");
    expect(out, 0);
    assert_eq!(stdout(&expect(served.run(&["get", "-n", "piped"]), 0)), "two\nlines\n");

    let out = expect(served.run(&["del", "k", "nope"]), 1);
    assert_eq!(stdout(&out), "removed 1\n");
    assert!(stderr(&out).contains("no key \"nope\""));
    let stat = json(&expect(served.run(&["stat", "--json"]), 0));
    assert_eq!((&stat["server"]["keys"], &stat["server"]["removes"]), (&2.into(), &1.into()), "{stat}");
    assert!(stdout(&expect(served.run(&["stat"]), 0)).contains("windowed:8"));
    // What is too long is said with the option that allows it.
    let key = stderr(&expect(served.run(&["put", &"k".repeat(87), "v"]), 1));
    assert!(key.contains("87 bytes long") && key.contains("`serve --key-max` of at least 87"), "{key}");
    let key = stderr(&expect(served.run(&["get", &"k".repeat(256)]), 1));
    assert!(key.contains("no table takes more than 255"), "{key}");
    let long = served.file("long", &format!("k\t{}\nshort\tv\n", "v".repeat((1 << 20) + 1)));
    let value = stderr(&expect(served.run(&["load", &long]), 1));
    let mend = "1048577 bytes long, this table takes 0 to 1048576; longer ones need a new table, with a `serve --value-max` of at least 1048577";
    assert!(value.contains("line 1") && value.contains(mend), "{value}");
    assert_eq!(stdout(&expect(served.run(&["get", "-n", "short"]), 0)), "v");
}

/// A dump loads again. Bad lines are named, and the others load.
#[test]
fn load_and_dump() {
    let served = Served::start(&["--anonymous", "--capacity", "1000", "--key-max", "8"]);
    let text = "a\t1\nb\ttab\\there\n\nno tab here\nkey too long\tx\nc\t\\xff\\x00\na\t2\n";
    let out = expect(served.run(&["load", "--json", &served.file("in.tsv", text)]), 1);
    let complaints = stderr(&out);
    assert!(complaints.contains("line 4: no tab"), "{complaints}");
    assert!(complaints.contains("line 5: the key is 12 bytes long"), "{complaints}");
    let sum = json(&out);
    let n = |name: &str| sum[name].as_u64().unwrap();
    assert_eq!((n("lines"), n("inserted"), n("updated"), n("failed")), (6, 3, 1, 2), "{sum}");

    let [by_format, by_flag] = [&["dump", "--format", "jsonl"][..], &["dump", "--json"]];
    assert_eq!(stdout(&expect(served.run(by_format), 0)), stdout(&expect(served.run(by_flag), 0)));
    for format in ["tsv", "csv", "jsonl"] {
        let dumped = expect(served.run(&["dump", "--format", format]), 0);
        let other = Served::start(&["--anonymous", "--capacity", "1000", "--key-max", "8"]);
        let loaded =
            expect(run_with_input(&["load", "-", "--format", format, "--at", &other.at], &dumped.stdout), 0);
        assert!(stdout(&loaded).contains("3 inserted, 0 updated, 0 failed"), "{loaded:?}");
        assert_eq!(stdout(&expect(other.run(&["get", "-n", "a"]), 0)), "2");
        assert_eq!(stdout(&expect(other.run(&["get", "-n", "b"]), 0)), "tab\there");
        assert_eq!(stdout(&expect(other.run(&["get", "--hex", "63"]), 0)), "ff00\n");
    }

    // What `get --json` prints loads, too, but for keys that it has not found.
    let found = expect(served.run(&["get", "--json", "a", "b", "c", "nope"]), 1);
    let other = Served::start(&["--anonymous", "--capacity", "1000"]);
    let load = ["load", "--format", "jsonl", "-", "--at", &other.at];
    let out = expect(run_with_input(&load, &found.stdout), 1);
    assert_eq!(stderr(&out), "oneread: line 4: `get` did not find this key, so there is no value to put\n");
    let [one, other] = [&served, &other].map(|served| {
        let dumped = stdout(&expect(served.run(&["dump"]), 0));
        dumped.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(one, other);

    let modes = served.file("modes.tsv", "a\t3\nnew\t4\n");
    let sum = json(&expect(served.run(&["load", "--json", "--insert", &modes]), 0));
    assert_eq!((&sum["inserted"], &sum["updated"], &sum["skipped"]), (&1.into(), &0.into(), &1.into()));
    expect(served.run(&["del", "new"]), 0);
    let out = expect(served.run(&["load", "--update", &modes]), 0);
    assert!(stdout(&out).ends_with("0 inserted, 1 updated, 1 skipped, 0 failed\n"), "{out:?}");
    let one = expect(served.run(&["load", &served.file("one", "a\t3\n")]), 0);
    assert!(stdout(&one).starts_with("1 line in"), "{one:?}");

    // Errors beyond a limit are counted and not listed.
    let bad = "no tab\n".repeat(30);
    let out = expect(served.run(&["load", &served.file("bad", &bad)]), 1);
    let told = stderr(&out);
    assert_eq!(told.lines().count(), 22, "{out:?}");
    assert!(told.contains("30 bad lines in all:\n  30, first line 1: no tab"), "{told}");
    // Of different kinds, each is counted, whatever its numbers are.
    let long = |n: usize| format!("{}\tv\n", "k".repeat(256 + n));
    let kinds = [bad, (0..10).map(long).collect(), "k\\q\tv\n".repeat(5)].concat();
    let told = stderr(&expect(served.run(&["load", &served.file("kinds", &kinds)]), 1)).to_owned();
    let (_, kinds) = told.split_once("45 bad lines in all:\n").unwrap_or_else(|| panic!("{told}"));
    let firsts = [
        "  30, first line 1: no tab",
        "  10, first line 31: the key is 256 bytes",
        "  5, first line 41: a backslash",
    ];
    let lines: Vec<_> = kinds.lines().collect();
    assert!(
        lines.len() == 3 && lines.iter().zip(firsts).all(|(line, first)| line.starts_with(first)),
        "{told}"
    );

    // A file that is of another format than its name says: nothing is put. Who names the format gets the few.
    let csv = "a,1\n".repeat(950) + &"few\tt\n".repeat(500);
    let file = served.file("csv", &csv);
    let told = stderr(&expect(served.run(&["load", &file]), 1)).to_owned();
    assert!(
        told.contains("950 of the first 1,000 lines are bad, and nothing was put; --format names"),
        "{told}"
    );
    expect(served.run(&["get", "few"]), 1);
    expect(served.run(&["get", "few"]), 1);
    expect(served.run(&["load", "--format", "tsv", &file]), 1);
    expect(served.run(&["get", "few"]), 0);

    // Bad lines behind good ones say nothing of the format.
    let late: String = (0..1_100).map(|n| format!("late{n}\tv\n")).collect::<String>() + &"a,1\n".repeat(950);
    let out = expect(served.run(&["load", &served.file("late", &(late + &"late0\tv\n".repeat(100)))]), 1);
    assert!(stdout(&out).ends_with("1,100 inserted, 100 updated, 950 failed\n"), "{out:?}");

    // What is compressed is named with the format that its name says.
    let zipped = served.file("x.csv.gz", "");
    std::fs::write(&zipped, [0x1f, 0x8b, 8, 0]).unwrap();
    let told = stderr(&expect(served.run(&["load", &zipped]), 1)).to_owned();
    assert!(told.contains("oneread load --format csv -"), "{told}");
    let told = run_with_input(&["load", "-"], &[0x1f, 0x8b, 8, 0]);
    assert!(stderr(&expect(told, 1)).contains("put zcat before this in the pipe"));

    // A quote that nothing closes takes other lines with it, and is told with where it is.
    for (csv, wrong) in [
        (
            "k1,v\nk2,\"open\nk3,v\n",
            "line 2: a quoted field does not end; is a quote missing, or one too many, in lines 2 to 3?",
        ),
        ("k1,\"one\" more\n", "line 1: something follows the quote that ends a field"),
        (
            "\n\nk1,\"a\nb\"\nk2,\"x\ny\"z\n",
            "line 5: something follows the quote that ends a field; is a quote missing, or one too many, in lines 5 to 6?",
        ),
    ] {
        let out = expect(served.run(&["load", &served.file("quotes.csv", csv)]), 1);
        assert!(stderr(&out).contains(wrong), "{out:?}");
    }
    let fine = "q1,\"a \"\"b\"\"\"\r\nq2,5\" pipe\nq3,\"\"\n";
    expect(served.run(&["load", &served.file("fine.csv", fine)]), 0);
    assert_eq!(stdout(&expect(served.run(&["get", "q1"]), 0)), "a \"b\"\n");
}

/// When the table is full, each refused line is named, and the table keeps what it has.
#[test]
fn load_until_full() {
    let served = Served::start(&["--anonymous", "--slots", "64", "--grace", "100us"]);
    let text: String = (0..100).map(|n| format!("k{n}\tv{n}\n")).collect();
    let out = expect(served.run(&["load", "--json", &served.file("in.tsv", &text)]), 1);
    let sum = json(&out);
    let (inserted, failed) = (sum["inserted"].as_u64().unwrap(), sum["failed"].as_u64().unwrap());
    assert!(inserted > 55 && inserted + failed == 100, "{sum}");
    assert!(stderr(&out).contains("the table is full"), "{out:?}");
    assert_eq!(stdout(&expect(served.run(&["dump"]), 0)).lines().count() as u64, inserted);
}

/// At Ctrl-C, `load` says what it has loaded. So it does when the server is gone, beside the lines of which it
/// knows nothing.
#[test]
fn load_says_what_it_has_loaded() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::time::{Duration, Instant};
    let served = Served::start(&["--anonymous", "--slots", "65536"]);
    let rounds = [(Signal::INT, false), (Signal::TERM, false), (Signal::INT, true)];
    for (round, (signal, server_too)) in (1..).zip(rounds) {
        let mut load = oneread();
        load.args(["load", "--json", "-", "--at", &served.at, "--deadline", "60s"]);
        let mut load =
            load.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = load.stdin.take().unwrap();
        // A batch, and more lines that are read and not yet sent.
        input.write_all(lines_of(0..1_100).as_bytes()).unwrap();
        input.flush().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let has_loaded = || {
            let server = &json(&expect(served.run(&["stat", "--json"]), 0))["server"];
            server["inserts"].as_u64().unwrap() + server["updates"].as_u64().unwrap() == 1_024 * round
        };
        while !has_loaded() {
            assert!(Instant::now() < until, "nothing is loaded");
        }
        let ends = if server_too {
            served.signal(Signal::KILL);
            drop(input);
            None
        } else {
            kill_process(Pid::from_child(&load), signal).unwrap();
            Some(input)
        };
        let out = load.wait_with_output().unwrap();
        drop(ends);
        let sum: Value = serde_json::from_str(&stdout(&out)).unwrap_or_else(|e| panic!("{out:?}: {e}"));
        assert_eq!((&sum["lines"], &sum["failed"]), (&1_024.into(), &0.into()), "{out:?}");
        if server_too {
            assert!(stderr(&out).contains("loading lines 1025 to 1100"), "{out:?}");
            assert_eq!(out.status.code(), Some(1), "{out:?}");
        } else {
            assert_eq!(out.status.code(), Some(128 + signal.as_raw()), "{out:?}");
        }
    }
}

/// The table outlives its server. A server that is asked for another table says what is there.
#[test]
fn region_file_survives() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let flags = ["--region", &region, "--slots", "1024"];
    let mut served = Served::start_in(dir, &flags);
    assert_eq!(served.ready["recovered"], Value::Null);
    expect(served.run(&["put", "k", "v"]), 0);

    // The region of a stopped server can be inspected; a running server locks out others.
    let unused = served.dir.path().join("unused").display().to_string();
    let again = expect(run(&["serve", "--region", &region, "--fresh", "--at", &unused]), 1);
    assert!(stderr(&again).contains("in use by another server"), "{again:?}");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    assert!(!served.dir.path().join("sock").exists(), "the socket stays behind");
    let out = json(&expect(run(&["inspect", "--region", &region, "--key", "k", "--json"]), 0));
    assert_eq!((&out["key"]["found_in_window"], &out["key"]["reads"]), (&0.into(), &1.into()), "{out}");
    assert_eq!(out["occupancy"]["live_main"], 1);
    // What was asked for comes first.
    let shown = stdout(&expect(run(&["inspect", "--region", &region, "--key", "k"]), 0));
    assert!(shown.starts_with("key \"k\": found in its first window, 1 READ\n"), "{shown}");
    assert!(shown.contains("match") && shown.contains(&format!("table at {region}\n")), "{shown}");
    assert_eq!(stdout(&expect(run(&["dump", "--region", &region]), 0)), "k\tv\n");

    let out = expect(served.run(&["get", "k", "--region", &region]), 0);
    assert_eq!(stdout(&out), "v\n");
    assert!(
        stderr(&out).contains(&format!("no server answers at {}; reading {region}", served.at)),
        "{out:?}"
    );
    expect(served.run(&["put", "k", "w"]), 1);

    let at = served.at.clone();
    let out = expect(
        run(&["serve", "--at", &at, "--region", &region, "--layout", "pilaf", "--value-max", "40"]),
        1,
    );
    let message = stderr(&out);
    for part in ["layout cuckoo:windowed:8", "asked for was cuckoo:pilaf", "value-max 1048576", "--fresh"] {
        assert!(message.contains(part), "{part:?} is missing in {message}");
    }

    let dir = std::mem::replace(&mut served.dir, tempfile::tempdir().unwrap());
    let mut served = Served::start_in(dir, &flags);
    let recovered = &served.ready["recovered"];
    assert_eq!((&recovered["keys"], &recovered["handed_over"]), (&1.into(), &true.into()));
    let out = expect(served.run(&["get", "k", "--region", &region]), 0);
    assert_eq!((stdout(&out), stderr(&out)), ("v\n".into(), String::new()));
    served.signal(rustix::process::Signal::KILL);
    served.child.wait().unwrap();
    let dir = std::mem::replace(&mut served.dir, tempfile::tempdir().unwrap());
    let served = Served::start_in(dir, &flags);
    assert_eq!(served.ready["recovered"]["handed_over"], false);
}

/// Lines for `load`.
fn lines_of(keys: std::ops::Range<u32>) -> String {
    keys.map(|n| format!("key{n}\tvalue{n}\n")).collect()
}

impl Served {
    fn load(&self, keys: std::ops::Range<u32>) {
        expect(run_with_input(&["load", "-", "--at", &self.at], lines_of(keys).as_bytes()), 0);
    }

    fn stat(&self) -> Value {
        json(&expect(self.run(&["stat", "--json"]), 0))
    }

    fn kill(&mut self) -> TempDir {
        self.signal(rustix::process::Signal::KILL);
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

/// A server needs no size: its table begins small, grows with its keys, and gives memory back when it
/// is told to. Another process reads it meanwhile, and `stat` shows it from outside.
#[test]
fn a_table_without_a_size_grows_and_shrinks() {
    // A disk's file system may keep blocks beside a hole.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = region_in(dir.path());
    let served = Served::start_in(dir, &["--region", &region]);
    let n = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    let ready = &served.ready;
    assert!(n(&ready["segments_max"]) > 8 && n(&ready["bytes_backed"]) < 4 << 20, "{ready}");
    let part = served.ready["max_memory_is"].as_str().unwrap();
    assert!(part.starts_with("half of") || part.starts_with("nine tenths of"), "{part}");
    served.load(0..60_000);
    let out = expect(served.run(&["get", "key0", "key30000", "key59999"]), 0);
    assert_eq!(stdout(&out), "value0\nvalue30000\nvalue59999\n");
    // What is under way ends by itself: nobody asks the server for a change.
    let stat = wait_for("the splits", || {
        let stat = served.stat();
        (stat["growth"]["splitting"] == 0 && stat["growth"]["merging"] == 0).then_some(stat)
    });
    let full = stat["growth"].clone();
    assert_eq!(stat["server"]["keys"], 60_000);
    assert!(n(&full["segments"]) > 8 && n(&full["depth"]) > 2 && n(&full["splits"]) >= 8, "{full}");
    assert!(n(&full["bytes_backed"]) > n(&full["segments"]) << 20 && n(&full["keys_moved"]) > 10_000);
    let load = |name: &str| full[name].as_f64().unwrap();
    assert!(load("load_min") > 0.1 && load("load_min") <= load("load_mean"), "{full}");
    assert!(load("load_mean") <= load("load_max") && load("load_max") <= 1.0, "{full}");
    let shown = stdout(&expect(served.run(&["stat"]), 0));
    for part in ["segments", "load, lowest and highest", "splits since it started", "memory"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    // The key is where a GET looks for it, also for who reads the file alone.
    let key = json(&expect(run(&["inspect", "--region", &region, "--key", "key77", "--json"]), 0));
    assert_eq!(key["segments"], full["segments"]);
    assert!(key["key"]["found_in_window"].is_u64() && key["occupancy"]["live_main"] == 60_000, "{key}");

    let gone: Vec<String> = (0..58_000).map(|n| format!("key{n}")).collect();
    for some in gone.chunks(5_000) {
        let mut all = vec!["del"];
        all.extend(some.iter().map(|key| &**key));
        expect(served.run(&all), 0);
    }
    let shrunk = json(&expect(served.run(&["shrink", "--json"]), 0));
    assert_eq!((n(&shrunk["segments"]), n(&shrunk["merging"])), (1, 0), "{shrunk}");
    assert!(n(&shrunk["bytes_backed"]) < 6 << 20, "{shrunk}");
    let growth = served.stat()["growth"].clone();
    assert!(n(&growth["bytes_returned"]) > 4 << 20 && n(&growth["merges"]) >= 8, "{growth}");
    assert_eq!(stdout(&expect(served.run(&["get", "key58000"]), 0)), "value58000\n");
    expect(served.run(&["get", "key57999"]), 1);
    assert!(stdout(&expect(served.run(&["shrink"]), 0)).starts_with("1 segment now, 1 before"));

    let fixed = Served::start(&["--anonymous", "--slots", "1024"]);
    assert!(stderr(&expect(fixed.run(&["shrink"]), 1)).contains("has one size"));
    assert_eq!(fixed.stat()["growth"], Value::Null);
}

/// Servers that are killed while the table grows lose nothing that they acknowledged, and the next one
/// goes on.
#[test]
fn a_growing_table_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let flags = ["--region", &region, "--max-memory", "64MiB", "--grace", "500us"];
    let mut served = Served::start_in(dir, &flags);
    let mut loaded = 0;
    for (life, keys) in [3_000, 9_000, 25_000, 60_000].into_iter().enumerate() {
        served.load(loaded..keys);
        loaded = keys;
        // More keys are on their way when it dies.
        let input = lines_of(100_000..130_000);
        let at = served.at.clone();
        let loader = std::thread::spawn(move || {
            let mut load = oneread();
            load.args(["load", "-", "--at", &at, "--deadline", "500ms"]).stdin(Stdio::piped());
            let mut load = load.stderr(Stdio::null()).spawn().unwrap();
            // It gives up when the server is gone.
            feed(&mut load, input.as_bytes());
            load.wait()
        });
        std::thread::sleep(Duration::from_millis(3 + 5 * life as u64));
        let dir = served.kill();
        loader.join().unwrap().unwrap();
        // Nothing else is asked of a table that is there.
        let flags: &[&str] = if life % 2 == 0 { &["--region", &region] } else { &flags };
        served = Served::start_in(dir, flags);
        assert!(served.ready["recovered"]["keys"].as_u64().unwrap() >= u64::from(keys), "{}", served.ready);
        // While splits go on, a dump may name a key twice. A GET finds it once.
        let numbers: Vec<u32> = (0..keys).collect();
        for some in numbers.chunks(4_000) {
            let names: Vec<String> = some.iter().map(|n| format!("key{n}")).collect();
            let mut all = vec!["get"];
            all.extend(names.iter().map(|name| &**name));
            let found = stdout(&expect(served.run(&all), 0));
            let expected: String = some.iter().map(|n| format!("value{n}\n")).collect();
            assert!(found == expected, "after {life} kills");
        }
    }
    assert!(served.stat()["growth"]["segments"].as_u64().unwrap() > 8);
    served.load(0..60_000);
}

/// A flag that makes no sense, or not with another one, or not for the table that is there: what is
/// wrong, and what to do.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    for with in [["--capacity", "10"], ["--slots", "64"]] {
        let out = expect(run(&[&["serve", "--max-memory", "8GiB"][..], &with].concat()), 2);
        assert!(stderr(&out).contains("cannot be used with"), "{out:?}");
    }
    for bad in ["", "0", "8 giga", "many", "1.5", "99999999999TiB"] {
        let out = expect(run(&["serve", "--max-memory", bad]), 2);
        assert!(stderr(&out).contains("as in 512MiB"), "{bad}: {out:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let region = region_in(dir.path());
    let serve = |more: &[&str]| {
        stderr(&expect(run(&[&["serve", "--at", &at, "--region", &region][..], more].concat()), 1))
    };
    let small = serve(&["--max-memory", "100KiB"]);
    assert!(small.contains("too few for a table that grows") && small.contains("allow that much"), "{small}");

    let dir = Served::start_in(dir, &["--region", &region, "--max-memory", "16MiB"]).kill();
    for (asked, named) in [
        (["--max-memory", "32MiB"], "asked for was up to 3"),
        (["--capacity", "1000"], "main slots"),
        (["--slots", "1024"], "asked for was 1024 main slots"),
    ] {
        let refused = serve(&asked);
        assert!(refused.contains("it has size up to 1") && refused.contains(named), "{refused}");
        assert!(refused.contains("--fresh"), "{refused}");
    }
    let dir = Served::start_in(dir, &["--region", &region, "--max-memory", "16MiB"]).kill();
    // A table of one size keeps it.
    let dir = Served::start_in(dir, &["--region", &region, "--fresh", "--slots", "1024"]).kill();
    let refused = serve(&["--max-memory", "16MiB"]);
    assert!(refused.contains("it has size 1024 main slots, asked for was up to"), "{refused}");
    let again = Served::start_in(dir, &["--region", &region]);
    assert_eq!((&again.ready["main_slots"], &again.ready["segments_max"]), (&1024.into(), &0.into()));
}

/// Where the system has no more memory, puts that need some fail with an error that says so. All else
/// goes on, and the table grows again when there is room.
#[test]
fn memory_that_is_refused_costs_puts_only() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let region = disk.join("region").display().to_string();
    let at = format!("shm:{}", dir.path().join("sock").display());
    // More room is made when a line comes.
    let script = "mount -t tmpfs -o size=6m none \"$1\" || exit 77; disk=$1; shift; \"$@\" & pid=$!
        read line; mount -o remount,size=64m \"$disk\"; read line; kill $pid; wait $pid";
    let in_namespace = |arguments: &[&str]| {
        let mut command = alone(Command::new("unshare"));
        command.args(["-rm", "sh", "-c", script, "sh"]).arg(&disk).args(arguments);
        command
    };
    let probe = in_namespace(&["true"]).stdin(Stdio::null()).output();
    if !probe.is_ok_and(|out| out.status.code() != Some(77)) {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no namespaces here");
        eprintln!("skipped: no disk can be made small here (unshare, mount)");
        return;
    }
    let program = env!("CARGO_BIN_EXE_oneread");
    let mut command = in_namespace(&[program, "serve", "--json", "--at", &at, "--region", &region]);
    command
        .args(["--max-memory", "1GiB"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    let stat = || json(&expect(run(&["stat", "--json", "--at", &at]), 0));
    let load = |keys, status| {
        let out = run_with_input(&["load", "-", "--at", &at], lines_of(keys).as_bytes());
        expect(out, status)
    };
    // More than there are slots of 128 bytes in 6 MiB.
    let out = load(0..50_000, 1);
    assert!(stderr(&out).contains("the system has refused"), "{out:?}");
    let full = stat();
    let (keys, refused) = (full["server"]["keys"].as_u64().unwrap(), &full["growth"]["memory_refused"]);
    assert!(keys > 20_000 && refused.as_u64().unwrap() > 0, "{full}");
    assert!(full["growth"]["bytes_backed"].as_u64().unwrap() <= 6 << 20, "{full}");
    assert_eq!(stdout(&expect(run(&["dump", "--at", &at]), 0)).lines().count() as u64, keys);
    assert_eq!(stdout(&expect(run(&["put", "key7", "new", "--at", &at]), 0)), "updated\n");
    assert_eq!(stdout(&expect(run(&["get", "key7", "--at", &at]), 0)), "new\n");
    expect(run(&["del", "key7", "--at", &at]), 0);

    let mut stdin = server.stdin.take().unwrap();
    stdin.write_all(b"more\n").unwrap();
    // What was refused is asked for again a moment later.
    wait_for("the table to grow", || {
        let out = run_with_input(&["load", "-", "--at", &at], lines_of(0..50_000).as_bytes());
        out.status.success().then_some(())
    });
    assert_eq!(stat()["server"]["keys"], 50_000);
    stdin.write_all(b"end\n").unwrap();
    let out = server.wait_with_output().unwrap();
    assert!(stderr(&out).contains("no memory for another segment"), "{out:?}");
}

/// `stat --watch` goes on until somebody ends it.
#[test]
fn stat_is_watched() {
    let served = Served::start(&["--anonymous", "--max-memory", "16MiB"]);
    let mut command = oneread();
    command.args(["stat", "--json", "--watch", "20ms", "--at", &served.at]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!(
        (&first["server"]["keys"], &first["watch"]["per_second"]["inserts"]),
        (&0.into(), &Value::Null)
    );
    served.load(0..1_000);
    let mut most = 0.0f64;
    assert!((0..10_000).any(|_| {
        let about = next();
        most = most.max(about["watch"]["per_second"]["inserts"].as_f64().unwrap());
        about["server"]["keys"] == 1_000
    }));
    assert!(most > 0.0);
    watch.kill().unwrap();
    watch.wait().unwrap();
    // Without JSON, a line each time.
    let mut command = oneread();
    command.args(["stat", "--watch", "20ms", "--at", &served.at]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for rate in ["changes - (", "changes 0"] {
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains("1,000 keys, ") && line.contains(rate), "{line}");
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// On a terminal, `stat --watch` writes over what it wrote before, follows the terminal's size, and gives it
/// back as it was.
#[test]
fn a_watched_terminal_is_given_back() {
    use std::io::Read;
    let served = Served::start(&["--anonymous", "--max-memory", "16MiB"]);
    let (mut child, mut terminal) =
        begin_on_a_terminal(&["stat", "--watch", "20ms", "--deadline", "60s", "--at", &served.at]);
    let mut shown = String::new();
    // Whole frames of so many columns and lines, until one has, or has not, what is wide.
    let mut frame = |terminal: &mut std::fs::File, (width, height): (usize, usize), is_wide: bool| loop {
        let mut bytes = [0; 4096];
        let read = terminal.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {shown}"));
        shown += std::str::from_utf8(&bytes[..read]).unwrap();
        let whole = shown.split("\x1b[H").skip(1).filter_map(|frame| Some(frame.split_once("\x1b[J")?.0));
        let found = whole.map(without_escapes).find(|frame| frame.contains("since watching") == is_wide);
        let Some(found) = found else { continue };
        let lines: Vec<_> = found.lines().map(|line| line.trim_end_matches('\r')).collect();
        assert!(lines.len() <= height, "{found}");
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{found}");
        for part in ["keys", "GETs do not ask the server", "Ctrl-C ends."] {
            assert!(found.contains(part), "{found}");
        }
        return shown.clone();
    };
    let begun = frame(&mut terminal, (80, 24), true);
    assert!(begun.starts_with("\x1b[?1049h\x1b[?25l\x1b[2J"), "{begun:?}");
    assert_eq!(begun.matches("\x1b[2J").count(), 1, "it blinks");
    let small = rustix::termios::Winsize { ws_row: 12, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, small).unwrap();
    frame(&mut terminal, (60, 12), false);
    terminal.write_all(b"\x03").unwrap();
    let mut rest = Vec::new();
    let _ = terminal.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.ends_with("\x1b[?25h\x1b[?1049l"), "{rest:?}");
    assert!(!child.wait().unwrap().success());
}

/// Who stops a server learns that its table stays, and how to be rid of it. A table that is served
/// is not removed.
#[test]
fn what_stays_is_said_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (region, at) = (region_in(dir.path()), format!("shm:{}", dir.path().join("sock").display()));
    let mut serve = oneread();
    serve.args(["serve", "--at", &at, "--region", &region, "--slots", "1024"]);
    let mut server = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("serving"), "{line}");
    expect(run(&["put", "--at", &at, "k", "v"]), 0);
    let listed = |served: bool| {
        let out = json(&expect(run(&["regions", "--json", &region]), 0));
        assert_eq!((&out["keys"], &out["served"]), (&1.into(), &served.into()), "{out}");
        assert_eq!(out["path"], *region);
    };
    listed(true);
    let busy = expect(run(&["regions", "--remove", &region]), 1);
    assert!(stderr(&busy).contains("a server uses it") && Path::new(&region).exists(), "{busy:?}");
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let out = server.wait_with_output().unwrap();
    let message = stderr(&out);
    for part in [&*region, "KiB", "oneread serve --at", "oneread regions --remove"] {
        assert!(message.contains(part), "{part:?} is missing in {message}");
    }
    listed(false);
    let out = stdout(&expect(run(&["regions", "--remove", &region]), 0));
    assert!(out.contains("removed") && !Path::new(&region).exists(), "{out}");
    expect(run(&["regions", "--remove", &region]), 1);
}

/// What others put into folders of the default places keeps nobody from the list, and no name of theirs
/// reaches a terminal as it is. A name that is no text is listed, too.
#[test]
fn what_others_put_among_regions_is_skipped() {
    use std::os::unix::ffi::OsStrExt;
    // In a folder that stands for /dev/shm.
    let shm = tempfile::tempdir().unwrap();
    let dir = tempfile::Builder::new().prefix("oneread-").tempdir_in(shm.path()).unwrap();
    let path = |name: &[u8]| dir.path().join(std::ffi::OsStr::from_bytes(name));
    std::os::unix::fs::symlink("/etc/passwd", path(b"link\x1b[2J.region")).unwrap();
    std::fs::create_dir(path(b"folder\nremoved all.region")).unwrap();
    let pipe = path(b"pipe.region");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    std::fs::write(path(b"\xff\x1b[2J.region"), "no region").unwrap();
    let begins = format!("skipped: {}/", dir.path().display());
    for arguments in [&["regions"][..], &["regions", "--json"]] {
        let out = expect(oneread().args(arguments).env("ONEREAD_SHM", shm.path()).output().unwrap(), 0);
        let shown = stdout(&out) + &stderr(&out);
        assert!(!shown.contains('\x1b') && !shown.contains("\nremoved all"), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.starts_with(&begins)).count(), 3, "{shown}");
    }
    expect(run(&["regions", pipe.to_str().unwrap()]), 1);
}

/// Who stops a server whose region file was removed, or replaced by another, is not told that the table stays.
#[test]
fn what_does_not_stay_is_said() {
    for replaces in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (region, at) = (region_in(dir.path()), format!("shm:{}", dir.path().join("sock").display()));
        let mut serve = oneread();
        serve.args(["serve", "--at", &at, "--region", &region, "--slots", "64"]);
        let mut server = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        std::fs::remove_file(&region).unwrap();
        if replaces {
            std::fs::write(&region, "another's").unwrap();
        }
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let message = stderr(&server.wait_with_output().unwrap());
        assert!(message.contains("the table is gone") && !message.contains("stays in"), "{message}");
        let _ = std::fs::remove_file(&region);
    }
}

/// A dump of a table with a damaged slot has the other keys. It says that it left something out, and so does its
/// exit status.
#[test]
fn a_dump_tells_what_it_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let mut served = Served::start(&["--region", &region, "--slots", "64"]);
    for (key, value) in [("one", "value of one"), ("two", "value of two"), ("three", "value of three")] {
        expect(served.run(&["put", key, value]), 0);
    }
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    expect(run(&["dump", "--region", &region]), 0);
    let mut bytes = std::fs::read(&region).unwrap();
    let at = bytes.windows(12).position(|bytes| bytes == b"value of two").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&region, &bytes).unwrap();
    let out = expect(run(&["dump", "--region", &region]), 1);
    let shown = stdout(&out);
    assert!(shown.contains("one\t") && shown.contains("three\t") && !shown.contains("two\t"), "{shown}");
    assert!(stderr(&out).contains("1 slot being written or damaged"), "{out:?}");
}

/// Users are given by name or number.
#[test]
fn users_have_names() {
    let served =
        Served::start(&["--anonymous", "--slots", "64", "--allow-uid", "root", "--allow-read-uid", "7"]);
    expect(served.run(&["put", "--server-user", "root", "k", "v"]), 0);
    let out = expect(run(&["serve", "--allow-uid", "nobody at all"]), 2);
    assert!(stderr(&out).contains("there is no such user"), "{out:?}");
    // Who cannot enter the socket's folder is let in for nothing.
    for (mode, is_told) in [(0o700, true), (0o711, false)] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let at = format!("shm:{}", dir.path().join("sock").display());
        let mut serve = oneread();
        serve.args(["serve", "--at", &at, "--anonymous", "--slots", "64", "--allow-uid", "7"]);
        let mut server = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        server.kill().unwrap();
        let message = stderr(&server.wait_with_output().unwrap());
        assert_eq!(message.contains("do not reach the socket"), is_told, "{message}");
    }
}

#[test]
fn not_a_region() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("letter.txt");
    let text = "dear reader, ".repeat(1000);
    std::fs::write(&path, &text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let name = path.display().to_string();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for command in [
        vec!["inspect", "--region", &name],
        vec!["dump", "--region", &name],
        vec!["serve", "--at", &at, "--region", &name],
        vec!["serve", "--at", &at, "--region", &name, "--fresh"],
    ] {
        let out = expect(run(&command), 1);
        assert!(stderr(&out).contains("this is no oneread region"), "{command:?}: {out:?}");
        assert!(stderr(&out).contains(&name), "{command:?}: {out:?}");
    }
    // It is listed with the reason. Asked to remove it, the command says that it stays.
    let listed = stdout(&expect(run(&["regions", &name]), 0));
    assert!(listed.contains("this is no oneread region"), "{listed}");
    let listed = json(&expect(run(&["regions", "--json", &name]), 0));
    assert_eq!((&listed["path"], &listed["served"]), (&(*name).into(), &Value::Null), "{listed}");
    assert_eq!((&listed["keys"], listed["bytes"].as_u64() > Some(0)), (&Value::Null, true), "{listed}");
    let out = expect(run(&["regions", "--remove", &name]), 1);
    assert!(
        stderr(&out).contains(&format!("{name} stays: ")) && stderr(&out).ends_with("freed 0 B\n"),
        "{out:?}"
    );
    assert_eq!(stdout(&out), "");
    // A file that is no region is not removed, not even with --fresh.
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn errors_of_use() {
    let out = expect(run(&["serve", "--layout", "nonsense"]), 2);
    for name in ["unknown layout \"nonsense\"", "windowed:8", "pilaf", "hopscotch:farm", "chained:cluster"] {
        assert!(stderr(&out).contains(name), "{name} is missing in {out:?}");
    }
    assert!(stderr(&expect(run(&["get", "k", "--at", "nowhere"]), 2)).contains("shm:PATH"));
    expect(run(&["serve", "--capacity", "1", "--slots", "1"]), 2);
    expect(run(&["frobnicate"]), 2);
    for command in [
        "serve", "get", "put", "del", "load", "dump", "stat", "inspect", "layouts", "plan", "bench", "demo",
        "doctor",
    ] {
        let help = stdout(&expect(run(&[command, "--help"]), 0));
        assert!(help.contains("EXAMPLES") && help.contains(&format!("oneread {command}")), "{help}");
    }
}

#[test]
fn no_server() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for command in [vec!["get", "k"], vec!["put", "k", "v"], vec!["stat"], vec!["inspect"], vec!["dump"]] {
        let mut command = command.clone();
        command.extend(["--at", &at]);
        let out = expect(run(&command), 1);
        let message = stderr(&out);
        assert!(message.starts_with(&format!("oneread: error: no server at {at}: ")), "{message}");
        assert!(message.contains(&format!("oneread serve --at {at}")), "{message}");
        assert_eq!(message.matches("No such file").count(), 1, "a cause told twice: {message}");
    }
}

/// The default address is in the user's runtime folder, if that is the user's alone. Otherwise it is
/// in a folder that the server makes.
#[test]
fn default_address() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let uid = rustix::process::getuid().as_raw();
    let run_user = PathBuf::from(format!("/run/user/{uid}"));
    let elsewhere = match run_user.is_dir() {
        true => run_user.join("oneread.sock"),
        false if uid == 0 => "/run/oneread/oneread.sock".into(),
        false => format!("/tmp/oneread-{uid}/oneread.sock").into(),
    };
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let own = dir.path().join("oneread.sock");
    for (runtime, expected) in [
        (dir.path(), &own),
        (&dir.path().join("none"), &elsewhere),
        (&file, &elsewhere),
        (&open, &elsewhere),
        (Path::new(""), &elsewhere),
    ] {
        // (Whether a server is there is no matter.)
        let mut command = oneread();
        command.env_remove("ONEREAD_AT").env("XDG_RUNTIME_DIR", runtime);
        let found = doctor_on_server(&mut command)["found"].to_string();
        assert!(found.contains(&format!(" at shm:{}", expected.display())), "{found}");
    }
}

/// What the doctor finds out about the server.
#[track_caller]
fn doctor_on_server(command: &mut Command) -> Value {
    let report = json(&expect(command.args(["doctor", "--fabric", "shm", "--json"]).output().unwrap(), 0));
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["what"] == "server").unwrap().clone()
}

/// `oneread dump | head -1` ends without an error message.
#[test]
fn broken_pipe_is_quiet() {
    let served = Served::start(&["--anonymous", "--capacity", "20000"]);
    let text: String = (0..20000).map(|n| format!("key {n}\t{}\n", "v".repeat(70))).collect();
    expect(served.run(&["load", &served.file("in.tsv", &text)]), 0);
    let mut child = oneread()
        .args(["dump", "--at", &served.at])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("key "), "{line}");
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(0), ""));
}

/// The numbers by which layouts are chosen, on a table small enough for a test.
#[test]
fn layouts_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let svg: PathBuf = dir.path().join("l.svg");
    let out = expect(
        run(&[
            "layouts",
            "--slots",
            "16384",
            "--load",
            "50,90",
            "--json",
            "--plot",
            svg.to_str().unwrap(),
            "--preset",
            "windowed:16",
            "--preset",
            "windowed:8",
            "--preset",
            "pilaf",
            "--preset",
            "farm",
        ]),
        0,
    );
    let rows = json(&out);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 4 * 2 * 2);
    for row in rows {
        for name in [
            "family",
            "preset",
            "phase",
            "keys",
            "load_asked",
            "load_true",
            "load_main",
            "reads_hit",
            "reads_miss",
            "bytes_hit",
            "bytes_miss",
            "trips_hit",
            "trips_miss",
            "moves_per_insert",
            "displaced",
            "window_bytes",
            "live_keys",
            "main_slots",
            "all_slots",
        ] {
            assert!(!row[name].is_null(), "{name} is missing in {row}");
        }
        let n = |name: &str| row[name].as_f64().unwrap();
        assert!(n("reads_hit") >= 1.0 && n("reads_miss") >= 1.0 && n("trips_hit") >= 1.0, "{row}");
        assert!(n("load_true") <= n("load_main") + 1e-9, "{row}");
        assert!(n("bytes_hit") >= n("window_bytes") - 1e-9, "{row}");
    }
    let hit = |preset: &str, phase: &str, load: f64| {
        let row =
            rows.iter().find(|r| r["preset"] == preset && r["phase"] == phase && r["load_asked"] == load);
        row.unwrap_or_else(|| panic!("no row for {preset} {phase} {load}"))["reads_hit"].as_f64().unwrap()
    };
    assert!(hit("windowed:16", "steady", 0.9) <= 1.02);
    assert!(hit("windowed:8", "steady", 0.9) <= 1.06);
    assert!(hit("windowed:8", "fresh", 0.5) <= 1.002);
    assert!((1.5..2.5).contains(&hit("pilaf", "fresh", 0.9)));
    assert!(hit("farm", "fresh", 0.9) <= 1.1);
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("windowed:16"));
}

/// Small benches come to an end, with every time that they promise.
#[test]
fn benches_are_whole() {
    let times = |what: &[&str]| {
        let found = json(&expect(run(&[&["bench"], what, &["--rounds", "1", "--json"]].concat()), 0));
        let lines = found["lines"].as_array().unwrap().clone();
        assert!(lines.iter().all(|line| line["ns_per_op"].as_f64().unwrap() > 0.0), "{found}");
        // The figures belong together.
        let first = lines[0]["ns_per_op"].as_f64().unwrap();
        for line in &lines {
            let number = |name: &str| line[name].as_f64().unwrap();
            let is_near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            assert!(is_near(number("ns_per_op") * number("ops_per_s"), 1e9), "{line}");
            assert!(is_near(number("ratio"), number("ns_per_op") / first), "{line}");
            assert_eq!([number("ns_min"), number("ns_max")], [number("ns_per_op"); 2], "{line}");
        }
        assert_eq!((&found["what"], &found["rounds"]), (&what[0].into(), &1.into()), "{found}");
        lines.iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let gets = times(&["get", "--keys", "2000"]);
    for name in ["bare, all at once", "oneread get", "dashmap", "papaya", "scc"] {
        assert!(gets.iter().any(|there| there == name), "{name}: {gets:?}");
    }
    assert_eq!(times(&["insert", "--keys", "2000"]).len(), 4);

    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("curve.svg");
    let svg = svg.to_str().unwrap();
    let ends = ["--from", "1000", "--to", "3e3"];
    let curve = [&["bench", "curve", "--rounds", "1", "--json", "--plot", svg], &ends[..]].concat();
    let found = json(&expect(run(&curve), 0));
    let sizes = found["sizes"].as_array().unwrap();
    assert_eq!(sizes.iter().map(|at| at["keys"].as_u64().unwrap()).collect::<Vec<_>>(), [1000, 2000, 3000]);
    for at in sizes {
        let times = at.as_object().unwrap().iter().filter(|(name, _)| name.ends_with("_ns"));
        assert_eq!(times.filter(|(_, ns)| ns.as_f64().unwrap() > 0.0).count(), 7, "{at}");
    }
    assert!(std::fs::read_to_string(svg).unwrap().contains("dashmap miss"));
    expect(run(&["bench", "curve", "--from", "1e6", "--to", "1e5"]), 1);
    expect(run(&["bench", "curve", "--to", "1.5"]), 2);
}

/// The figures of `bench rpc` belong together, and are drawn. A server that somebody else has started may lack
/// mailboxes; then the other paths are measured.
#[test]
fn rpc_figures_belong_together() {
    let served = Served::start(&["--capacity", "3000", "--mailbox-max", "0", "--anonymous"]);
    expect(served.run(&["put", "mine", "stays"]), 0);
    let svg = served.file("rpc.svg", "");
    let small = ["--connections", "1,2", "--keys", "2000", "--rounds", "1", "--seconds", "0.05", "--json"];
    let bench = [&["bench", "rpc", "--plot", &svg], &small[..]].concat();
    for paths in [7, 4] {
        let out = expect(if paths == 7 { run(&bench) } else { served.run(&bench) }, 0);
        let found = json(&out);
        assert_eq!(
            (&found["fabric"], &found["keys"], &found["seconds"]),
            (&"shm".into(), &2000.into(), &0.05.into())
        );
        let lines = found["lines"].as_array().unwrap();
        assert_eq!(lines.len(), 2 * paths, "{found}");
        for (n, line) in lines.iter().enumerate() {
            let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
            let is_near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
            let (first, rate) = (&lines[n / paths * paths], number("ops_per_s"));
            assert_eq!(number("connections") as usize, 1 + n / paths, "{line}");
            // On a busy machine, there may be rounds in which nothing was answered.
            if rate == 0.0 {
                assert!(
                    ["p50_ns", "p99_ns", "reads_per_op"].iter().all(|name| line[*name].is_null()),
                    "{line}"
                );
                continue;
            }
            assert_eq!(
                (&first["operation"], &first["path"]),
                (&"get".into(), &"one-sided".into()),
                "{found}"
            );
            assert!(is_near(number("ratio"), rate / first["ops_per_s"].as_f64().unwrap()), "{line}");
            let same = |other: &&Value| {
                [&other["connections"], &other["operation"]] == [&line["connections"], &line["operation"]]
            };
            let by_message = lines.iter().filter(same).find(|other| other["path"] == "message").unwrap();
            match by_message["ops_per_s"].as_f64().unwrap() {
                0.0 => assert!(line["of_message"].is_null(), "{found}"),
                message => assert!(is_near(number("of_message"), rate / message), "{found}"),
            }
            assert!(number("p50_ns") > 0.0 && number("p50_ns") <= number("p99_ns"), "{line}");
            // A GET by READ takes one at least, and a request to the server none.
            let reads = number("reads_per_op");
            assert!(if line["path"] == "one-sided" { reads >= 1.0 } else { reads == 0.0 }, "{line}");
            assert_eq!(line["server_cpu_ms"].is_null(), paths == 4, "{line}");
        }
        assert_eq!(stderr(&out).contains("oneread: without mailbox: "), paths == 4, "{out:?}");
        assert!(stderr(&out).contains(&format!("oneread: wrote {svg}")), "{out:?}");
        assert!(std::fs::read_to_string(&svg).unwrap().contains("operations per second"));
        std::fs::remove_file(&svg).unwrap();
    }
    // Its keys are gone, and nobody else's.
    let keys = || json(&expect(served.run(&["stat", "--json"]), 0))["server"]["keys"].as_u64().unwrap();
    assert_eq!(keys(), 1);
    let mut command = oneread();
    command.args([
        "bench",
        "rpc",
        "--keys",
        "2000",
        "--seconds",
        "3600",
        "--rounds",
        "1",
        "--at",
        &served.at,
    ]);
    let bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("its keys", || (keys() == 2001).then_some(()));
    rustix::process::kill_process(rustix::process::Pid::from_child(&bench), rustix::process::Signal::INT)
        .unwrap();
    let ended = expect(bench.wait_with_output().unwrap(), 1);
    assert!(stderr(&ended).contains("a signal has ended the bench"), "{ended:?}");
    assert_eq!((keys(), stdout(&expect(served.run(&["get", "mine"]), 0)).trim_end()), (1, "stays"));
    // An error in the middle of it leaves none, either: the table takes no 2^20 keys.
    expect(served.run(&["bench", "rpc", "--keys", "1048576", "--connections", "1"]), 1);
    assert_eq!(keys(), 1);
}

/// The figures of `bench long` belong together: rates are bytes by times, and memcpy is what others are compared
/// with.
#[test]
fn long_figures_belong_together() {
    let small = ["--sizes", "64,65536", "--mib", "1", "--rounds", "1", "--json"];
    let found = json(&expect(run(&[&["bench", "long"], &small[..]].concat()), 0));
    let ways = if found["redis"].is_null() { 2 } else { 3 };
    let lines = found["lines"].as_array().unwrap();
    let kinds: Vec<_> = lines.iter().step_by(ways).collect();
    let [bytes, values] =
        ["value_bytes", "values"].map(|name| kinds.iter().map(move |line| line[name].as_u64().unwrap()));
    assert_eq!(bytes.collect::<Vec<_>>(), [64, 64, 65536, 65536], "{found}");
    assert_eq!(values.collect::<Vec<_>>(), [1 << 14, 1 << 12, 16, 4], "{found}");
    for (n, line) in lines.iter().enumerate() {
        let number = |name: &str| line[name].as_f64().unwrap();
        let first = &lines[n / ways * ways];
        assert_eq!(
            (&first["way"], &line["cached"]),
            (&"memcpy".into(), &(n / ways % 2 == 1).into()),
            "{found}"
        );
        let ratio = number("ns_per_op") / first["ns_per_op"].as_f64().unwrap();
        let bytes_per_s = number("value_bytes") / number("ns_per_op") * 1e9;
        assert!((number("ratio") / ratio - 1.0).abs() < 1e-9, "{line}");
        assert!((number("bytes_per_s") / bytes_per_s - 1.0).abs() < 1e-9, "{line}");
    }
}

/// What hints save under a table that grows and shrinks is counted, drawn, and the same in every run.
#[test]
fn hints_are_counted_while_a_table_grows() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("hints.svg");
    let svg = svg.to_str().unwrap();
    let sizes = ["--from", "1e3", "--keys", "4e3", "--segment-slots", "256", "--parts", "3"];
    let count = || expect(run(&[&["bench", "hints", "--json", "--plot", svg], &sizes[..]].concat()), 0);
    let found = json(&count());
    let parts = found["parts"].as_array().unwrap();
    assert_eq!((parts.len(), &parts[3]["course"], &parts[3]["keys"]), (15, &"grow".into(), &2_000.into()));
    let bytes = |of: &str| parts.iter().map(|part| part[of]["bytes"].as_f64().unwrap()).sum::<f64>();
    assert!(bytes("hinted_hit") < 0.4 * bytes("hit") && parts[14]["merges"].as_u64() > Some(3), "{found}");
    assert_eq!((json(&count()), &found["run"]["layout"]), (found.clone(), &"cuckoo:windowed:8".into()));
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("bytes of a GET") && drawn.contains("hit, without") && !drawn.contains("NaN"));
    // Without replacements, and with little memory.
    let other =
        ["--gets", "2", "--replaced", "0", "--zipf", "0.5", "--hint-memory", "512", "--layout", "farm"];
    let other = json(&expect(run(&[&["bench", "hints", "--json"], &sizes[..], &other].concat()), 0));
    let given =
        [("gets", 2.0), ("replaced", 0.0), ("zipf", 0.5), ("hint_bytes", 512.0), ("segment_slots", 256.0)];
    for (name, number) in given {
        assert_eq!(other["run"][name].as_f64(), Some(number), "{}", other["run"]);
    }
    assert_eq!(other["run"]["layout"], "hopscotch:farm");
    let refused = |arguments: &[&str]| stderr(&expect(run(&[&["bench", "hints"], arguments].concat()), 1));
    assert!(refused(&["--from", "5e3", "--keys", "4e3"]).contains("keys: 4000 is not within 5001"));
    assert!(refused(&["--gets", "0"]).contains("GETs of a step: 0"));
    assert!(refused(&[&["--layout", "list"], &sizes[..]].concat()).contains("hints save nothing"));
}

/// A table grows and shrinks under the eyes of two processes. No answer is wrong, memory comes back, and
/// all that was promised is told and drawn.
#[test]
fn a_table_grows_and_shrinks_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("grow.svg");
    let svg = svg.to_str().unwrap();
    for layout in ["windowed:8", "hopscotch:farm", "chained:cluster"] {
        let sizes = ["--from", "4e3", "--keys", "6e4", "--segment-slots", "1024"];
        let all = [&["bench", "grow", "--json", "--layout", layout, "--plot", svg], &sizes[..]].concat();
        let found = json(&expect(run(&all), 0));
        let number_if = |name: &str| found[name].as_f64();
        let number = |name: &str| number_if(name).unwrap_or_else(|| panic!("no {name} in {found}"));
        assert_eq!(["failed", "wrong", "missed"].map(number), [0.0; 3], "{found}");
        assert_eq!((number("keys"), found["parts"].as_array().unwrap().len()), (60_000.0, 126));
        // 60,000 keys need at least 58 segments, 4,000 of them not many.
        assert!(number("splits") > 55.0 && number("merges") > 40.0, "{found}");
        assert!(number("segments_max") > 58.0 && number("segments_end") < 20.0, "{found}");
        assert!(number("gets") > 10_000.0, "{found}");
        // Where no ghost holds a split up, all may be over before a reader looks.
        let has_ratios = number_if("p99_ratio").is_some_and(|ratio| ratio > 0.0);
        assert!(has_ratios || (layout == "chained:cluster" && number_if("p99_ratio").is_none()), "{found}");
        assert_eq!(number_if("p999_ratio").is_some(), has_ratios, "{found}");
        assert!(number("reads_per_get") >= 1.0 && number("put_max_ms") > 0.0, "{found}");
        // Each split moves half of the keys of a segment.
        assert!((0.3..5.0).contains(&number("moves_per_insert")), "{found}");
        let (low, mean) = (number("load_min"), number("load_mean"));
        assert!(0.2 < low && low < mean && mean < 1.0, "{found}");
        let drawn = std::fs::read_to_string(svg).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("true load") && drawn.contains("p99.9, fixed"));
    }
    let refused = stderr(&expect(run(&["bench", "grow", "--from", "5e3", "--keys", "4e3"]), 1));
    assert!(refused.contains("--from 5000 is not less than --keys 4000"), "{refused}");
    expect(run(&["bench", "grow", "--keys", "12"]), 2);
    let sizes = ["--keys", "1e4", "--from", "1e3", "--segment-slots", "1000000000"];
    let refused = stderr(&expect(run(&[&["bench", "grow"], &sizes[..]].concat()), 1));
    assert!(refused.contains("slots of a segment are more than"), "{refused}");
    // The readers' command is for this bench alone.
    let at = "shm:/nowhere";
    let refused = stderr(&expect(run(&["bench", "grow-reader", "--growing", at, "--fixed", at]), 1));
    assert!(refused.contains("this command is for `bench grow` alone"), "{refused}");
}

/// The storage contest's workload at a tiny scale, with values in slots and all in the heap: every operation is
/// made and answered rightly. A workload that does not fit is refused, with a scale that fits.
#[test]
fn the_tiered_workload_is_whole() {
    for (inline_max, seed) in [("128", "1"), ("0", "2")] {
        let tiny =
            ["bench", "tiered", "--scale", "2e-5", "--json", "--inline-max", inline_max, "--seed", seed];
        let found = json(&expect(run(&tiny), 0));
        let phases = found.as_array().unwrap();
        let told: Vec<_> = phases
            .iter()
            .map(|phase| {
                let count = |name: &str| phase[name].as_u64().unwrap_or_else(|| panic!("no {name}: {found}"));
                assert!(phase["seconds"].as_f64().unwrap() > 0.0 && count("memory_bytes") > 0, "{found}");
                assert!(phase["returned_bytes"].is_u64() && phase.as_object().unwrap().len() == 6, "{found}");
                (phase["phase"].as_str().unwrap(), count("ops"), count("wrong"))
            })
            .collect();
        let expected =
            [("insert", 3_840, 0), ("remove", 3_200, 0), ("insert-again", 3_200, 0), ("mixed", 1_280, 0)];
        assert_eq!(told, expected, "{found}");
    }
    let refused = stderr(&expect(run(&["bench", "tiered", "--max-memory", "96MiB"]), 1));
    let fitting = refused.split("take a --scale of ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(refused.contains("1,920,000 keys at scale 0.01 take up to"), "{refused}");
    assert!(refused.contains("the table may take 96 MiB, by --max-memory"), "{refused}");
    expect(run(&["bench", "tiered", "--max-memory", "96MiB", "--scale", fitting]), 0);
    let refused = stderr(&expect(run(&["bench", "tiered", "--max-memory", "1MiB"]), 1));
    assert!(refused.ends_with("allow more by --max-memory\n") && !refused.contains("take a"), "{refused}");
    for bad in ["0", "1.1", "-1", "much", "nan"] {
        expect(run(&["bench", "tiered", &format!("--scale={bad}")]), 2);
    }
}

/// GETs of long values beside memcpy, and beside Redis where there is one. Without, the bench says so.
#[test]
fn long_values_are_timed() {
    let small = ["bench", "long", "--sizes", "64,4096,65536", "--mib", "1", "--rounds", "1"];
    let found = json(&expect(run(&[&small[..], &["--json"]].concat()), 0));
    let ways = if found["redis"].is_null() { 2 } else { 3 };
    let lines = found["lines"].as_array().unwrap();
    // Each length out of the caches, and in them.
    assert_eq!(lines.len(), 3 * 2 * ways, "{found}");
    for (line, nth) in lines.iter().zip(0..) {
        assert_eq!(line["way"], ["memcpy", "oneread", "redis"][nth % ways], "{found}");
        assert_eq!(line["cached"], nth / ways % 2 == 1, "{found}");
        assert!(line["ns_per_op"].as_f64().unwrap() > 0.0 && line["ratio"].as_f64().unwrap() > 0.0);
    }
    assert_eq!([0, 2 * ways, 4 * ways].map(|n| lines[n]["values"].as_u64().unwrap()), [16_384, 256, 16]);

    let nowhere = expect(oneread().args(small).env("PATH", "/nowhere").output().unwrap(), 0);
    let told = stdout(&nowhere);
    assert!(told.contains("Redis was not measured") && !told.contains("redis GET"), "{told}");
    expect(run(&["bench", "long", "--sizes", "8"]), 2);
}

/// Servers are killed at random instants under load, and others take over. Everything acknowledged
/// is there, once.
#[test]
fn kills_lose_nothing() {
    let kills = if std::env::var_os("ONEREAD_LONG").is_some() { 1000 } else { 50 };
    let found = json(&expect(run(&["bench", "kill", "--json", "--kills", &kills.to_string()]), 0));
    println!("{found}");
    let count = |name: &str| found[name].as_u64().unwrap();
    assert_eq!(["lost", "wrong", "doubled", "leaked"].map(count), [0; 4], "{found}");
    assert!(count("kills") == kills && count("acknowledged") > kills, "{found}");
    assert!(count("stops") == kills / 4 && count("handed_over") == kills / 4, "{found}");
    // Kills that leave no slot half written show nothing.
    assert!(count("torn") >= kills / 2, "{found}");
    assert!(found["takeover_ms_p50"].as_f64().unwrap() <= found["takeover_ms_max"].as_f64().unwrap());
}

/// A server with snapshots, from the command line: on request, at the end, and after the region is
/// gone. `restore` puts them into any server; a damaged one puts nothing.
#[test]
fn snapshots_are_made_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (snap, copy) = (path("table.snap"), path("copy.snap"));
    let flags = ["--region", &*region, "--slots", "4096", "--snapshot", &snap, "--snapshot-every", "1h"];
    let served_dir = tempfile::tempdir().unwrap();
    let mut served = Served::start_in(served_dir, &flags);
    let words: String = (0..500).map(|n| format!("key{n}\tvalue{n}\n")).collect();
    expect(served.run(&["load", &served.file("words.tsv", &words)]), 0);
    let out = expect(served.run(&["snapshot"]), 0);
    assert!(stdout(&out).contains("snapshot of 500 keys"), "{out:?}");
    let stat = json(&expect(served.run(&["stat", "--json"]), 0));
    let last = &stat["snapshots"]["last"];
    assert_eq!((&last["keys"], &stat["snapshots"]["every_ms"]), (&500.into(), &3_600_000.into()), "{stat}");
    let shown = stdout(&expect(served.run(&["stat"]), 0));
    assert!(shown.contains("every 60 min") && shown.contains("last snapshot"), "{shown}");
    std::fs::copy(&snap, &copy).unwrap();
    let about = json(&expect(run(&["restore", &copy, "--check", "--json"]), 0));
    assert_eq!(
        (&about["keys"], &about["main_slots"], &about["longest_value"]),
        (&500.into(), &4096.into(), &8.into())
    );
    assert!(stdout(&expect(run(&["restore", &copy, "--check"]), 0)).contains("all whole"));

    // At the end, one more. Then the region is thrown away, as by a crash of the machine.
    expect(served.run(&["put", "late", "one"]), 0);
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().unwrap().success());
    std::fs::remove_file(&region).unwrap();
    let flags = ["--region", &*region, "--snapshot", &snap];
    let served = Served::start(&flags);
    assert_eq!(served.ready["restored"]["keys"], 501, "{}", served.ready);
    assert_eq!(served.ready["main_slots"], 4096, "of the snapshot's size");
    assert_eq!(stdout(&expect(served.run(&["get", "late"]), 0)), "one\n");

    // Into a running server, of another layout; over its keys, or beside them.
    let other = Served::start(&["--anonymous", "--layout", "cluster", "--capacity", "1000"]);
    expect(other.run(&["put", "key7", "mine"]), 0);
    let none = expect(other.run(&["snapshot"]), 1);
    assert!(stderr(&none).contains("--snapshot FILE"), "{none:?}");
    let out = json(&expect(other.run(&["restore", &copy, "--insert", "--json"]), 0));
    assert_eq!((&out["inserted"], &out["skipped"]), (&499.into(), &1.into()), "{out}");
    let out = json(&expect(other.run(&["restore", &copy, "--json"]), 0));
    assert_eq!((&out["inserted"], &out["updated"]), (&0.into(), &500.into()), "{out}");
    assert_eq!(stdout(&expect(other.run(&["get", "key7"]), 0)), "value7\n");

    // A damaged one: as a whole nothing, in parts what is whole.
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes[200] ^= 1;
    let bad = path("bad.snap");
    std::fs::write(&bad, &bytes).unwrap();
    let empty = Served::start(&["--anonymous", "--capacity", "1000"]);
    for arguments in [&["restore", &bad][..], &["restore", &bad, "--check"]] {
        let out = expect(empty.run(arguments), 1);
        assert!(
            stderr(&out).contains("damaged at byte 160") && stderr(&out).contains("--damaged"),
            "{out:?}"
        );
    }
    assert_eq!(json(&expect(empty.run(&["stat", "--json"]), 0))["server"]["keys"], 0);
    let out = expect(empty.run(&["restore", &bad, "--damaged"]), 1);
    assert!(stderr(&out).contains("left out"), "{out:?}");
    let unused = path("unused");
    let out = expect(run(&["serve", "--anonymous", "--at", &unused, "--restore", &bad]), 1);
    assert!(stderr(&out).contains("damaged at byte 160"), "{out:?}");
    // A table with keys of its own is not replaced.
    let out = expect(run(&["serve", "--at", &unused, "--region", &region, "--restore", &copy]), 1);
    assert!(stderr(&out).contains("`oneread restore`"), "{out:?}");
    // Longer values than the table takes: nothing is put.
    let short = Served::start(&["--anonymous", "--value-max", "5"]);
    let out = expect(short.run(&["restore", &copy]), 1);
    assert!(stderr(&out).contains("--value-max 8") && stderr(&out).contains("nothing was put"), "{out:?}");
    let out = expect(run(&["restore", &path("none")]), 1);
    assert!(stderr(&out).contains("opening the snapshot"), "{out:?}");
}

/// A table that grows begins with one segment, and takes a snapshot of more keys than that holds. One that has
/// no room for all of them is left as it is.
#[test]
fn a_table_that_grows_takes_a_snapshot_of_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let snap = dir.path().join("table.snap").display().to_string();
    let served = Served::start(&["--anonymous", "--max-memory", "64MiB", "--snapshot", &snap]);
    let words: String = (0..20_000).map(|n| format!("key{n}\tvalue{n}\n")).collect();
    expect(served.run(&["load", &served.file("words.tsv", &words)]), 0);
    expect(served.run(&["snapshot"]), 0);
    let other = Served::start(&["--anonymous", "--max-memory", "64MiB"]);
    assert!(other.ready["slots"].as_u64().unwrap() < 20_000, "in one segment: {}", other.ready);
    let out = json(&expect(other.run(&["restore", &snap, "--json"]), 0));
    assert_eq!((&out["inserted"], &out["failed"]), (&20_000.into(), &0.into()), "{out}");
    let small = Served::start(&["--anonymous", "--slots", "16384"]);
    let out = expect(small.run(&["restore", &snap]), 1);
    assert!(stderr(&out).contains("16,384 slots; nothing was put"), "{out:?}");
    assert_eq!(json(&expect(small.run(&["stat", "--json"]), 0))["server"]["keys"], 0);
}

/// On a full disk, the old snapshot stays, the table is served on, and `stat` says what is wrong.
#[test]
fn a_full_disk_costs_no_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=256k none \"$1\" || exit 77; shift; exec \"$@\"";
    // In a mount namespace of its own, so that the disk goes with the server.
    let in_namespace = |arguments: &[&str]| {
        let mut command = alone(Command::new("unshare"));
        command.args(["-rm", "sh", "-c", script, "sh"]).arg(&disk).args(arguments);
        command
    };
    if !in_namespace(&["true"]).output().is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no namespaces here");
        eprintln!("skipped: no disk can be made small here (unshare, mount)");
        return;
    }
    let at = format!("shm:{}", dir.path().join("sock").display());
    let snap = disk.join("table.snap").display().to_string();
    let mut command = in_namespace(&[env!("CARGO_BIN_EXE_oneread"), "serve", "--json", "--at", &at]);
    command.args(["--anonymous", "--capacity", "10000", "--snapshot", &snap]);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    let load = |keys: u32| {
        let words: String = (0..keys).map(|n| format!("key{n}\tvalue{n:060}\n")).collect();
        expect(run_with_input(&["load", "-", "--at", &at], words.as_bytes()), 0);
    };
    load(500);
    assert!(stdout(&expect(run(&["snapshot", "--at", &at]), 0)).contains("500 keys"));
    load(5000);
    let out = expect(run(&["snapshot", "--at", &at]), 1);
    let message = stderr(&out);
    assert!(message.contains("No space left") && message.contains("still there"), "{message}");
    let stat = json(&expect(run(&["stat", "--json", "--at", &at]), 0));
    let snapshots = &stat["snapshots"];
    assert_eq!((&snapshots["saved"], &snapshots["finished"]), (&1.into(), &2.into()), "{stat}");
    assert!(snapshots["last_failure"]["error"].as_str().unwrap().contains("No space left"), "{stat}");
    assert_eq!(snapshots["last"]["keys"], 500);
    assert!(stdout(&expect(run(&["stat", "--at", &at]), 0)).contains("THE LAST ONE FAILED"));
    // The table is served, and is smaller now: there is room for it, beside the old one.
    let gone: Vec<String> = (400..5000).map(|n| format!("key{n}")).collect();
    for some in gone.chunks(1000) {
        let mut all = vec!["del", "--at", &*at];
        all.extend(some.iter().map(|key| &**key));
        expect(run(&all), 0);
    }
    assert!(stdout(&expect(run(&["snapshot", "--at", &at]), 0)).contains("400 keys"));
    // And at the end on a full disk the exit status says so.
    load(5000);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let out = server.wait_with_output().unwrap();
    assert!(!out.status.success() && stderr(&out).contains("the last snapshot was not made"), "{out:?}");
}

/// A file with a secret key, for its owner only.
fn key_file(served: &Served, name: &str, digit: char) -> String {
    let path = served.file(name, &digit.to_string().repeat(64));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// Values are encrypted and decrypted with a key file, and the table holds ciphertext. Another key file
/// or namespace decrypts nothing.
#[test]
fn values_are_encrypted() {
    let served = Served::start(&["--anonymous", "--capacity", "1000", "--value-max", "78"]);
    let key = key_file(&served, "key", 'a');
    let with =
        |arguments: &[&str]| served.run(&[arguments, &["--key-file", &key, "--namespace", "n"]].concat());
    let outcome = |arguments: &[&str], status| stdout(&expect(with(arguments), status));
    assert_eq!(outcome(&["put", "greeting", "hello"], 0), "inserted\n");
    assert_eq!(outcome(&["get", "greeting"], 0), "hello\n");
    assert_eq!(outcome(&["put", "--if-value", "other", "greeting", "no"], 1), "differs\n");
    assert_eq!(outcome(&["put", "--if-value", "hello", "greeting", "hi"], 0), "updated\n");
    assert_eq!(outcome(&["put", "--insert", "greeting", "no"], 1), "exists\n");
    assert_eq!(outcome(&["get", "-n", "greeting"], 0), "hi");
    let stored = stdout(&expect(served.run(&["get", "--json", "greeting"]), 0));
    assert!(stored.contains("value_hex\":\"01") && !stored.contains("hi\""), "{stored}");
    expect(served.run(&["put", "plain", "text"]), 0);
    let out = expect(with(&["get", "plain"]), 1);
    assert!(
        stderr(&out).contains("key \"plain\": the value was put without encryption, or by a later"),
        "{out:?}"
    );
    expect(served.run(&["del", "plain"]), 0);
    let other = key_file(&served, "other", 'b');
    for wrong in [vec!["--key-file", &other, "--namespace", "n"], vec!["--key-file", &key]] {
        let out = expect(served.run(&[&["get", "greeting", "absent"], &wrong[..]].concat()), 1);
        assert!(stderr(&out).contains("key \"greeting\": the value does not decrypt: "), "{out:?}");
        assert!(stderr(&out).contains("no key \"absent\"") && stdout(&out).is_empty(), "{out:?}");
        let swap = [&["put", "--if-value", "hi", "greeting", "no"], &wrong[..]].concat();
        assert!(stderr(&expect(served.run(&swap), 1)).contains("error: the value does not decrypt: "));
    }
    let long = "x".repeat(38);
    let out = expect(with(&["put", "long", &long]), 1);
    assert!(
        stderr(&out).contains("38 bytes long, 79 when encrypted, and this table takes 0 to 78; "),
        "{out:?}"
    );
    assert_eq!(outcome(&["put", "long", &long[1..]], 0), "inserted\n");
    expect(served.run(&["del", "long"]), 0);

    // As ciphertext, and decrypted: both dumps load into another table.
    expect(with(&["load", &served.file("in.tsv", "a\t1\nb\ttab\\there\n")]), 0);
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let plain = ["a\t1", "b\ttab\\there", "greeting\thi"].map(str::to_owned).into();
    assert_eq!(sorted(&outcome(&["dump"], 0)), plain);
    let raw = expect(served.run(&["dump"]), 0);
    assert!(!raw.stdout.windows(3).any(|part| part == b"tab"), "plain bytes in {raw:?}");
    let other = Served::start(&["--anonymous", "--capacity", "1000"]);
    expect(run_with_input(&["load", "-", "--at", &other.at], &raw.stdout), 0);
    let with_key = ["--key-file", &key, "--namespace", "n", "--at", &other.at];
    assert_eq!(sorted(&stdout(&expect(run(&[&["dump"], &with_key[..]].concat()), 0))), plain);
    expect(run(&["put", "plain", "text", "--at", &other.at]), 0);
    let out = expect(run(&[&["dump"], &with_key[..]].concat()), 1);
    assert_eq!(sorted(&stdout(&out)), plain);
    assert!(stderr(&out).contains("key \"plain\" is left out: the value was put without encryption, or by a later oneread: it begins with byte 116, "), "{out:?}");
    let many: String = (0..30).map(|n| format!("plain {n}\ttext\n")).collect();
    expect(run_with_input(&["load", "-", "--at", &other.at], many.as_bytes()), 0);
    let out = expect(run(&[&["dump", "--json"], &with_key[..]].concat()), 1);
    assert_eq!((stdout(&out).lines().count(), stderr(&out).lines().count()), (3, 21));
    assert!(stderr(&out).ends_with("and 11 more keys whose values do not decrypt\n"), "{out:?}");
}

/// A key file that others may read or change, or that holds no key, is refused before anything else
/// happens. No message shows what it holds.
#[test]
fn key_files_are_checked() {
    let served = Served::start(&["--anonymous", "--capacity", "10"]);
    let path = key_file(&served, "key", 'c');
    let permit = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    for (mode, said) in [(0o644, "may be read by other users (mode 644); chmod go= "), (0o620, "chmod go-w ")]
    {
        permit(mode);
        for command in [vec!["put", "k", "v"], vec!["get", "k"], vec!["dump"], vec!["load", "/dev/null"]] {
            let out = expect(served.run(&[&command[..], &["--key-file", &path]].concat()), 1);
            assert!(stderr(&out).contains(said), "{out:?}");
        }
    }
    permit(0o600);
    std::fs::write(&path, "my password").unwrap();
    let out = expect(served.run(&["put", "k", "v", "--key-file", &path]), 1);
    assert!(
        stderr(&out).contains("holds text of 11 characters; ") && !stderr(&out).contains("password"),
        "{out:?}"
    );
    let missing = format!("{path}.none");
    let out = expect(served.run(&["get", "k", "--key-file", &missing]), 1);
    assert!(stderr(&out).contains("(umask 077; openssl rand -hex 32 > "), "{out:?}");
    let out = expect(served.run(&["get", "k"]), 1);
    assert!(stderr(&out).contains("no key \"k\""), "nothing was put: {out:?}");
    expect(served.run(&["get", "k", "--namespace", "n"]), 2);
}

/// Keys in hex are the same keys to every command. What is no hex is named.
#[test]
fn keys_are_given_in_hex() {
    let served = Served::start(&["--anonymous", "--capacity", "1000"]);
    expect(served.run(&["put", "kk", "v"]), 0);
    expect(served.run(&["put", "--hex", "00ff", "fe"]), 0);
    let lines = stdout(&expect(served.run(&["get", "--json", "--hex", "6b6b", "00ff"]), 0));
    let found: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found[0], serde_json::json!({ "key": "kk", "found": true, "value": "v" }));
    assert_eq!(found[1], serde_json::json!({ "key_hex": "00ff", "found": true, "value_hex": "fe" }));
    let looked = json(&expect(served.run(&["inspect", "--json", "--quick", "--hex", "--key", "6b6b"]), 0));
    assert_eq!((&looked["key"]["key"], &looked["key"]["reads"]), (&"kk".into(), &1.into()), "{looked}");
    assert_eq!(looked["occupancy"], Value::Null, "the table was not read");
    assert!(json(&expect(served.run(&["inspect", "--json"]), 0))["occupancy"].is_object());
    let out = expect(served.run(&["inspect", "--key", &"k".repeat(87)]), 1);
    assert!(stderr(&out).contains("87 bytes long, this table takes 1 to 86"), "{out:?}");
    expect(served.run(&["inspect", "--hex"]), 2);
    for command in [&["get", "--hex", "0"][..], &["del", "--hex", "0g"], &["put", "--hex", "6b6b", "1"]] {
        assert!(stderr(&expect(served.run(command), 1)).contains("is no hex"), "{command:?}");
    }
    let out = json(&expect(served.run(&["del", "--json", "--hex", "6b6b", "00ff"]), 0));
    assert_eq!(out, serde_json::json!({ "removed": 2, "absent": 0, "refused": 0 }));
    expect(served.run(&["get", "kk"]), 1);
}

/// The format is that of the file's name, unless --format says another. A first line that names the columns is
/// left out, and lines are counted with it.
#[test]
fn files_are_loaded_by_their_names() {
    let served = Served::start(&["--anonymous", "--capacity", "1000"]);
    let load = |arguments: &[&str], status| expect(served.run(&[&["load"], arguments].concat()), status);
    let get = |key: &str| stdout(&expect(served.run(&["get", "-n", key]), 0));
    load(&[&served.file("a.csv", "csv,\"a,b\"\n")], 0);
    load(&[&served.file("a.jsonl", "{\"key\": \"jsonl\", \"value\": \"c\"}\n")], 0);
    load(&[&served.file("a.txt", "tsv\td\n")], 0);
    load(&["--format", "tsv", &served.file("b.csv", "other\te,f\n")], 0);
    assert_eq!(["csv", "jsonl", "tsv", "other"].map(get), ["a,b", "c", "d", "e,f"]);
    for (name, text) in [("c.tsv", "name\tprice\nx\t1\nbad\n"), ("c.csv", "name,price\ny,2\nbad\n")] {
        let out = load(&["--header", "--json", &served.file(name, text)], 1);
        assert!(stderr(&out).contains("line 3: "), "{name}: {out:?}");
        let sum = json(&out);
        let counts = ["lines", "inserted", "failed"].map(|count| sum[count].as_u64().unwrap());
        assert_eq!(counts, [2, 1, 1], "{name}: {sum}");
    }
    expect(served.run(&["get", "name"]), 1);
    assert_eq!(["x", "y"].map(get), ["1", "2"]);
    let folder = served.dir.path().display().to_string();
    assert!(stderr(&load(&[&folder], 1)).contains("is a folder; name a file"));
    let none = format!("{folder}/none");
    assert!(stderr(&load(&[&none], 1)).contains(&format!("opening {none}")));
}

/// What `stat` counts, it counts under the right name.
#[test]
fn stat_counts_each_change() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let lengths = ["--key-max", "16", "--value-max", "78"];
    let flags = [&["--region", &*region, "--slots", "1000", "--grace", "700us"][..], &lengths].concat();
    let mut served = Served::start_in(dir, &flags);
    served.load(0..6);
    served.load(0..4);
    expect(served.run(&["del", "key0"]), 0);
    let stat = served.stat();
    let server = &stat["server"];
    let counts = ["keys", "inserts", "updates", "removes", "incarnation", "clients", "slots"];
    assert_eq!(counts.map(|name| server[name].as_u64().unwrap()), [5, 6, 4, 1, 1, 1, 1000], "{stat}");
    assert_eq!((&server["pid"], &server["load"]), (&served.child.id().into(), &0.005.into()), "{stat}");
    assert!(stat["region"]["phase"] == "serving" && stat["address"] == *served.at, "{stat}");
    let looked = json(&expect(served.run(&["inspect", "--json"]), 0));
    let facts = [
        ("main_slots", 1000),
        ("slots", 1000),
        ("slot_bytes", 128),
        ("window_slots", 8),
        ("window_bytes", 1024),
        ("key_max", 16),
        ("value_max", 78),
        ("grace_us", 700),
        ("segments_max", 0),
        ("heap_bytes", 0),
    ];
    for (name, expected) in facts {
        assert_eq!(
            (&stat["geometry"][name], &looked["superblock"][name]),
            (&expected.into(), &expected.into())
        );
    }
    for name in ["main_slots", "slots", "slot_bytes", "key_max", "value_max", "grace_us", "region_bytes"] {
        assert_eq!(stat["geometry"][name], served.ready[name], "{name}");
    }
    let shown = stdout(&expect(served.run(&["stat"]), 0));
    for (name, expected) in [("inserts since", "6"), ("updates", "4"), ("removes", "1"), ("load", "0.5 %")] {
        let line = shown.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{shown}"));
        assert!(
            line.split_whitespace().rev().nth(1) == expected.split(' ').next() || line.contains(expected)
        );
    }
    let dir = served.kill();
    let served = Served::start_in(dir, &flags);
    assert_eq!(served.stat()["server"]["incarnation"], 2);
}

/// A table without a name for its file has one that its address tells. It is listed, read when its server is
/// gone, made again, and removed.
#[test]
fn a_table_has_a_default_file() {
    // In a folder that stands for /dev/shm.
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let here = || {
        let mut command = oneread();
        command.env("ONEREAD_SHM", shm.path());
        command
    };
    let run = |arguments: &[&str]| here().args(patient(arguments)).output().unwrap();
    let mut served = Served::start_by(here(), tempfile::tempdir().unwrap(), &["--slots", "64"]);
    let own = shm.path().join(format!("oneread-{}/", rustix::process::geteuid().as_raw()));
    let region = served.ready["region"].as_str().unwrap().to_owned();
    let begins = region.find(own.to_str().unwrap()).unwrap_or_else(|| panic!("{region}"));
    let region = region[begins..].to_owned();
    expect(served.run(&["put", "k", "v"]), 0);
    let listed = || {
        let all = stdout(&expect(run(&["regions", "--json"]), 0));
        let mut all = all.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let listed = all.next().inspect(|one| assert_eq!(one["path"], *region));
        assert!(all.next().is_none(), "it is the only one");
        listed.map(|one| one["served"] == true)
    };
    assert_eq!(listed(), Some(true));
    let at = served.at.clone();
    let dir = served.kill();
    assert_eq!(listed(), Some(false));
    for (command, shown, told) in [
        (&["get", "k"][..], "v\n", format!("no server answers at {at}; reading {region}")),
        (&["dump"], "k\tv\n", format!("no server answers at {at}; reading the file {region}")),
    ] {
        let out = expect(run(&[command, &["--at", &at]].concat()), 0);
        assert_eq!(stdout(&out), shown);
        assert!(stderr(&out).contains(&told), "{out:?}");
    }
    // The log says when.
    let out = here().args(["get", "k", "--at", &at]).env("RUST_LOG", "warn").output().unwrap();
    let log = stderr(&out);
    let (time, rest) = log.split_once('Z').unwrap_or_else(|| panic!("{log}"));
    assert!(time.len() > 18 && time.as_bytes()[10] == b'T' && rest.starts_with("  WARN "), "{log}");
    let mut served = Served::start_by(here(), dir, &[]);
    assert_eq!(served.ready["recovered"]["keys"], 1);
    let dir = served.kill();
    let mut served = Served::start_by(here(), dir, &["--fresh", "--slots", "64"]);
    assert_eq!(served.ready["recovered"], Value::Null);
    let _dir = served.kill();
    let out = expect(run(&["regions", "--remove", &region]), 0);
    assert!(stdout(&out).starts_with(&format!("removed {region} (")) && listed().is_none(), "{out:?}");
    assert!(stderr(&out).starts_with("freed ") && !stderr(&out).contains("freed 0"), "{out:?}");
}

/// The server's address may be in the environment. A flag says more.
#[test]
fn the_address_may_be_in_the_environment() {
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    let other = Served::start(&["--anonymous", "--slots", "64"]);
    let with = |arguments: &[&str]| oneread().args(arguments).env("ONEREAD_AT", &served.at).output().unwrap();
    expect(with(&["put", "k", "v"]), 0);
    assert_eq!(stdout(&expect(with(&["get", "k"]), 0)), "v\n");
    expect(with(&["get", "k", "--at", &other.at]), 1);
}

/// A stopped server is waited for as long as --deadline says, and no request of it is done twice.
#[test]
fn a_stopped_server_is_waited_for_until_the_deadline() {
    use rustix::process::Signal;
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    served.suspend();
    for command in
        [&["put", "k", "v"][..], &["del", "k"], &["stat"], &["snapshot"], &["shrink"], &["load", "-"]]
    {
        let arguments = [command, &["--deadline", "120ms", "--at", &served.at]].concat();
        let out = expect(run_with_input(&arguments, b"k\tv\n"), 1);
        assert!(stderr(&out).contains("120 ms"), "{command:?}: {out:?}");
    }
    served.signal(Signal::CONT);
    expect(served.run(&["get", "k"]), 1);
}

/// Options that differ from the table that is there are named, each with both numbers. Those that say what is
/// there are none.
#[test]
fn each_option_is_held_against_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let made = ["--slots", "64", "--key-max", "20", "--value-max", "300", "--heap", "64MiB"];
    let made = [&made[..], &["--inline-max", "40", "--grace", "900us", "--layout", "farm"]].concat();
    let dir = Served::start_in(dir, &[&["--region", &*region][..], &made].concat()).kill();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for (option, named) in [
        (["--key-max", "21"], "it has key-max 20, asked for was 21"),
        (["--value-max", "301"], "it has value-max 300, asked for was 301"),
        (["--inline-max", "200"], "it has bytes in a slot 128, asked for was 256"),
        (["--heap", "32MiB"], "it has heap 67108864, asked for was 33554432"),
        (["--slots", "128"], "it has size 64 main slots, asked for was 128 main slots"),
        (["--grace", "901us"], "it has grace 900 µs, asked for was 901 µs"),
        (["--layout", "cluster"], "it has layout hopscotch:farm, asked for was chained:cluster"),
    ] {
        let out = expect(run(&[&["serve", "--at", &at, "--region", &region][..], &option].concat()), 1);
        assert!(stderr(&out).contains(named), "{option:?}: {out:?}");
    }
    let served = Served::start_in(dir, &[&["--region", &*region][..], &made].concat());
    assert_eq!(served.ready["recovered"]["keys"], 0);
}

/// A table is served again by the command that its server printed, by the same command as before, and by any part of
/// its options. Values of another length are those of another table, whatever would make room for them.
#[test]
fn a_table_is_served_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("a socket").display());
    let region = dir.path().join("a table's region").display().to_string();
    let oneread = env!("CARGO_BIN_EXE_oneread");
    // Serves until it is told to stop. Returns the first line, and what was printed for the next one.
    let serve = |mut command: Command| {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let told = stderr(&child.wait_with_output().unwrap());
        let printed = told.split_once("serve it again: ").and_then(|(_, it)| it.split_once("; or free"));
        let printed = printed.unwrap_or_else(|| panic!("{line}{told}")).0.replacen("oneread", oneread, 1);
        (line, printed)
    };
    let with = |options: &[&str]| {
        let mut command = alone(Command::new(oneread));
        command.args(["serve", "--at", &at, "--region", &region]).args(options);
        command
    };
    for options in [
        // A heap that is no whole number of the blocks that its own length asks for.
        &["--max-memory", "32772KiB", "--value-max", "5000"][..],
        &["--value-max", "1MiB"],
        &["--capacity", "5000", "--value-max", "5000", "--heap", "32772KiB", "--inline-max", "100"],
        &["--slots", "1001", "--layout", "farm", "--key-max", "9"],
        &[],
    ] {
        let (new, printed) = serve(with(options));
        assert!(new.trim_end().ends_with(", new"), "{options:?}: {new}");
        let mut as_printed = alone(Command::new("sh"));
        as_printed.args(["-c", &format!("exec {printed}")]);
        let parts = options.chunks(2).map(with);
        for command in [as_printed, with(options)].into_iter().chain(parts) {
            let what = format!("{command:?}");
            let (line, again) = serve(command);
            assert!(line.contains("taken over with 0 keys") && again == printed, "{what}: {line}");
        }
        let out = expect(ends(with(&["--value-max", "60000"])), 1);
        assert!(
            stderr(&out).contains("another table") && stderr(&out).contains("asked for was 60000"),
            "{out:?}"
        );
        assert!(!stderr(&out).contains("heap_bytes"), "{out:?}");
        expect(run(&["regions", "--remove", &region]), 0);
    }
}

/// A server that was killed while it began a table with the keys of a snapshot leaves a table that nobody has
/// been served from. The next one begins anew.
#[test]
fn a_table_that_was_half_restored_is_begun_again() {
    use oneread::layout::control::{Phase, STATE_WORD, State};
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let snap = dir.path().join("table.snap").display().to_string();
    let flags = ["--region", &*region, "--slots", "64"];
    let saving = [&flags[..], &["--snapshot", &*snap]].concat();
    let served = Served::start(&saving);
    served.load(0..10);
    expect(served.run(&["snapshot"]), 0);
    expect(served.run(&["del", "key3"]), 0);
    drop(served);
    let begin = |phase| {
        let mut bytes = std::fs::read(&region).unwrap();
        let word = State { incarnation: 1, phase }.to_word();
        bytes[8 * STATE_WORD..][..8].copy_from_slice(&word.to_le_bytes());
        std::fs::write(&region, bytes).unwrap();
    };
    begin(Phase::Serving);
    assert_eq!(Served::start(&saving).ready["recovered"]["keys"], 9);
    let restoring = [&flags[..], &["--restore", &*snap]].concat();
    for flags in [&restoring, &saving] {
        begin(Phase::Starting);
        let ready = Served::start(flags).ready.clone();
        assert_eq!((&ready["restored"]["keys"], &ready["recovered"]), (&10.into(), &Value::Null), "{ready}");
    }
}

/// What is whole of a damaged snapshot is put, and what is not is counted to the byte. Keys that the table does
/// not take are counted, too. The exit status tells of both.
#[test]
fn what_a_restore_leaves_out_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (whole, damaged) = (path("whole.snap"), path("damaged.snap"));
    let served = Served::start(&["--anonymous", "--capacity", "20000", "--snapshot", &whole]);
    // Four blocks of 256 KiB.
    let lines: String = (0..10_000).map(|n| format!("key{n:07}\t{n:078}\n")).collect();
    expect(run_with_input(&["load", "-", "--at", &served.at], lines.as_bytes()), 0);
    expect(served.run(&["put", &"k".repeat(32), ""]), 0);
    expect(served.run(&["snapshot"]), 0);
    let mut bytes = std::fs::read(&whole).unwrap();
    let second = bytes.windows(4).enumerate().filter(|(_, bytes)| bytes == b"BLCK").nth(1).unwrap().0;
    let third = bytes.windows(4).enumerate().filter(|(_, bytes)| bytes == b"BLCK").nth(2).unwrap().0;
    bytes[second + 1000] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let restore = |into: &Served, file: &str, more: &[&str], status| {
        expect(into.run(&[&["restore", file, "--json"], more].concat()), status)
    };
    let counts = |out: &Output| {
        let sum = json(out);
        ["keys", "inserted", "updated", "skipped", "failed", "left_out_bytes"]
            .map(|n| sum[n].as_u64().unwrap())
    };
    let other = Served::start(&["--anonymous", "--capacity", "20000"]);
    let out = restore(&other, &damaged, &["--damaged"], 1);
    let [keys, inserted, updated, skipped, failed, left_out] = counts(&out);
    assert_eq!((updated, skipped, failed, left_out), (0, 0, 0, (third - second) as u64));
    assert!(keys == inserted && (6_000..9_000).contains(&keys), "{keys}");
    assert!(stderr(&out).contains(&format!("bytes {second} to {} are left out", third - 1)), "{out:?}");
    assert_eq!(other.stat()["server"]["keys"], keys);
    // All is whole now: what was there is left, or put again.
    let out = restore(&other, &whole, &["--damaged", "--insert"], 0);
    assert_eq!(counts(&out), [10_001, 10_001 - keys, 0, keys, 0, 0]);
    assert_eq!(counts(&restore(&other, &whole, &["--damaged"], 0)), [10_001, 0, 10_001, 0, 0, 0]);
    // One key is too long.
    let narrow = Served::start(&["--anonymous", "--capacity", "20000", "--key-max", "16"]);
    let out = restore(&narrow, &whole, &["--damaged"], 1);
    assert_eq!(counts(&out), [10_001, 10_000, 0, 0, 1, 0]);
    assert!(stderr(&out).contains("32 bytes long"), "{out:?}");
    let refused = stderr(&restore(&narrow, &whole, &[], 1));
    assert!(refused.contains("has a key of 32 bytes") && refused.contains("--key-max 32"), "{refused}");
    // A table that is full ends it.
    let small = Served::start(&["--anonymous", "--slots", "64", "--grace", "100us"]);
    let out = restore(&small, &whole, &["--damaged"], 1);
    assert!(
        stderr(&out).contains("the table is full") && stderr(&out).contains("of the snapshot"),
        "{out:?}"
    );
}

/// A snapshot, and a table that shrinks, need not be waited for. Each says so, and `--json` tells how far it is.
#[test]
fn who_asks_need_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let snap = dir.path().join("table.snap").display().to_string();
    let served = Served::start(&["--anonymous", "--max-memory", "64MiB", "--snapshot", &snap]);
    served.load(0..100);
    let made = json(&expect(served.run(&["snapshot", "--json"]), 0));
    assert_eq!(["asked", "begun", "finished", "saved"].map(|name| made[name].as_u64().unwrap()), [1; 4]);
    assert_eq!((&made["last"]["keys"], &made["last_failure"]), (&100.into(), &Value::Null), "{made}");
    assert_eq!(made["last"]["bytes"], std::fs::metadata(&snap).unwrap().len());
    assert_eq!((&made["every_ms"], &made["under_way"]), (&Value::Null, &false.into()), "{made}");
    let told = stdout(&expect(served.run(&["snapshot", "--no-wait"]), 0));
    assert_eq!(told, "the server writes a snapshot; `oneread stat` shows what comes of it\n");
    wait_for("a snapshot", || (served.stat()["snapshots"]["saved"] == 2).then_some(()));
    let told = stdout(&expect(served.run(&["shrink", "--no-wait"]), 0));
    assert_eq!(told, "0 merges under way; `oneread stat` shows what comes of it\n");
    let told = json(&expect(served.run(&["shrink", "--no-wait", "--json"]), 0));
    assert_eq!((&told["segments_before"], &told["segments"]), (&1.into(), &1.into()), "{told}");
}

/// Where no huge pages are reserved, a table that must have them is not served.
#[test]
fn huge_pages_are_had_or_said_to_be_missing() {
    let pages = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if pages.is_ok_and(|free| free.trim() != "0") {
        return eprintln!("skipped: there are huge pages");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for (size, said) in [(&["--slots", "64"][..], "huge pages"), (&[], "vm.nr_hugepages")] {
        let out = expect(run(&[&["serve", "--huge-pages", "--at", &at][..], size].concat()), 1);
        assert!(stderr(&out).contains(said), "{out:?}");
    }
    for with in ["--anonymous", "--fresh", "--region=a"] {
        expect(run(&["serve", "--huge-pages", with, "--at", &at]), 2);
    }
}

/// Other users read and change what they are let to, and a server of another user is trusted if it is named.
#[test]
fn other_users_are_let_in_by_name() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if !rustix::process::getuid().is_root() {
        return eprintln!("skipped: only root can act as another user");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Other users may have no access to the folder where the command was built.
    let program = dir.path().join("oneread");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_oneread")).arg(&program).status().unwrap().success());
    let as_nobody = || {
        let mut command = alone(Command::new(&program));
        command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null());
        command
    };
    let open = || {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        dir
    };
    let number = NOBODY.to_string();
    for (option, may_read, may_change) in
        [("--allow-uid", true, true), ("--allow-read-uid", true, false), ("--half-open", false, false)]
    {
        let served = Served::start_in(open(), &["--anonymous", "--slots", "64", option, &number]);
        expect(served.run(&["put", "k", "v"]), 0);
        let ask = |arguments: &[&str], is_allowed: bool| {
            let out = as_nobody().args(arguments).args(["--at", &served.at]).output().unwrap();
            expect(out, if is_allowed { 0 } else { 1 });
        };
        ask(&["get", "k"], may_read);
        ask(&["put", "k", "w"], may_change);
        ask(&["del", "k"], may_change);
    }
    let served = Served::start_by(as_nobody(), open(), &["--anonymous", "--slots", "64"]);
    for command in [&["put", "k", "v"][..], &["get", "k"], &["stat"]] {
        let out = expect(served.run(command), 1);
        assert!(stderr(&out).ends_with("; as by --server-user 65534\n"), "{out:?}");
        expect(served.run(&[command, &["--server-user", &number]].concat()), 0);
    }
}

/// What is asked for is measured, and nothing else: phases, keys, hints, and one layout as often as it is named.
#[test]
fn layouts_are_measured_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("frontier.svg");
    let svg = svg.to_str().unwrap();
    let small = ["layouts", "--slots", "1024", "--preset", "windowed:8", "--load", "90", "--json"];
    let rows =
        |more: &[&str]| json(&expect(run(&[&small[..], more].concat()), 0)).as_array().unwrap().clone();
    let told = |more: &[&str]| {
        let of = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        rows(more).iter().map(|row| (of(row, "phase"), of(row, "keys"))).collect::<Vec<_>>()
    };
    let pair = |phase: &str, keys: &str| (phase.to_owned(), keys.to_owned());
    assert_eq!(told(&["--phase", "fresh"]), [pair("fresh", "uniform")]);
    assert_eq!(told(&["--phase", "steady", "--keys", "zipf"]), [pair("steady", "zipf")]);
    assert_eq!(told(&["--phase", "both"]), [pair("fresh", "uniform"), pair("steady", "uniform")]);
    let rows = rows(&["--phase", "steady", "--hints", "--plot", svg]);
    assert!(rows[0]["hinted"].is_object(), "{rows:?}");
    assert!(std::fs::read_to_string(svg).unwrap().contains("RACE"));
    let refused = stderr(&expect(run(&["layouts", "--plot", "l.png"]), 2));
    assert!(refused.contains("name a file that ends in .svg"), "{refused}");
    let listed = stdout(&expect(run(&["layouts", "--list"]), 0));
    assert!(listed.contains("windowed:8") && listed.contains("slotwise"), "{listed}");
    for bad in ["0", "101", "most"] {
        expect(run(&["layouts", "--load", bad]), 2);
    }
}

/// The doctor finds the server that is there, and says how to start one where there is none.
#[test]
fn the_doctor_looks_for_the_server() {
    let mut served = Served::start(&["--anonymous", "--slots", "64"]);
    let found = |at: &str| {
        let found = doctor_on_server(oneread().env("ONEREAD_AT", at));
        ["level", "found", "command"].map(|name| found[name].as_str().unwrap_or_default().to_owned())
    };
    let at = served.at.clone();
    let answers = ["ok".to_owned(), format!("one answers at {at}"), String::new()];
    // (The doctor does not wait long for a busy one.)
    wait_for("an answer", || (found(&at) == answers).then_some(()));
    let _dir = served.kill();
    assert_eq!(
        found(&at),
        ["note".to_owned(), format!("none at {at}"), format!("oneread serve --at {at} &")]
    );
    let [level, told, command] = found("shm:/nowhere/at/all");
    assert_eq!(level, "warning");
    assert!(
        told.contains("this user cannot start one there") && command.contains("shm:/tmp/oneread-"),
        "{told}"
    );
}

/// A bench or demo that is ended from outside leaves no server and no folder, and says by its status what ended
/// it. So does one that comes to its end.
#[test]
fn a_bench_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let bench = |kills: &str| {
        let small = ["bench", "kill", "--json", "--threads", "3", "--keys", "20", "--value-bytes", "3000"];
        let mut command = oneread();
        command.args(small).args(["--layout", "pilaf", "--kills", kills]).env("TMPDIR", dir.path());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let found = json(&expect(bench("1").wait_with_output().unwrap(), 0));
    let numbers = ["kills", "keys", "value_bytes"].map(|name| found[name].as_u64().unwrap());
    assert_eq!((numbers, &found["layout"], files()), ([1, 60, 3000], &"cuckoo:pilaf".into(), 0), "{found}");
    for (signal, status) in [(rustix::process::Signal::TERM, 143), (rustix::process::Signal::INT, 130)] {
        let mut child = bench("100000");
        let pid = rustix::process::Pid::from_child(&child);
        let socket = dir.path().join(format!("oneread-{pid}/sock"));
        wait_for("a server", || socket.exists().then_some(()));
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(status));
        let is_gone = |server: &str| !Path::new("/proc").join(server).join("exe").exists();
        wait_for("the server to be gone", || children.split_whitespace().all(is_gone).then_some(()));
        assert!(files() == 0, "{children}: {} files are left", files());
    }
}

/// A server that `nohup` starts outlives its terminal.
#[test]
fn what_is_to_outlive_its_terminal_does() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let mut command = alone(Command::new("env"));
    command.args(["--ignore-signal=HUP", env!("CARGO_BIN_EXE_oneread"), "serve", "--anonymous", "--at", &at]);
    let mut server = command.args(["--slots", "64"]).stdout(Stdio::null()).spawn().unwrap();
    expect(run(&["ping", "--wait", "60s", "--at", &at]), 0);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    expect(run(&["ping", "--at", &at]), 0);
    expect(run(&["stop", "--at", &at]), 0);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// Scripts need no pauses: a server in the background is there when the command returns, and gone when `stop`
/// returns. Between these it answers.
#[test]
fn a_server_in_the_background_is_there_and_gone() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (at, region, pid_file) = (format!("shm:{}", file("sock")), file("region"), file("pid"));
    let serve = ["serve", "--daemonize", "--at", &at, "--region", &region, "--slots", "64"];
    let serve = [&serve[..], &["--pid-file", &pid_file]].concat();
    let told = stdout(&expect(run(&serve), 0));
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    let pid: i32 = pid.trim().parse().unwrap();
    assert!(told.starts_with("serving ") && told.contains(&format!("process {pid}; its log is ")), "{told}");
    assert!(told.contains(&file("sock.log")), "{told}");
    assert_eq!(stdout(&expect(run(&["set", "k", "v", "--at", &at]), 0)), "inserted\n");
    assert!(stdout(&expect(run(&["ping", "--at", &at]), 0)).contains(" answers: a request takes "));
    // It has a session of its own, and nothing of the terminal.
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    assert_eq!(rustix::process::getsid(Some(process)).unwrap(), process);
    let open = |fd: u32| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
    let log = PathBuf::from(file("sock.log"));
    assert_eq!([open(0), open(1), open(2)], ["/dev/null".into(), log.clone(), log]);
    // A second one says why it does not start.
    let refused = expect(run(&serve), 1);
    let why = stderr(&refused);
    assert!(why.contains("a server is there already") && why.contains("in use by another server"), "{why}");
    assert_eq!(stdout(&refused), "");

    let stopped = stdout(&expect(run(&["stop", "--at", &at]), 0));
    assert!(stopped.starts_with(&format!("stopped the server at {at}, process {pid}\n")), "{stopped}");
    assert!(stopped.contains(&format!("the table stays in {region} (")), "{stopped}");
    assert!(!Path::new(&pid_file).exists() && !Path::new(&file("sock")).exists());
    let none = stderr(&expect(run(&["stop", "--at", &at]), 1));
    assert!(none.contains("no server at"), "{none}");

    let log = file("other.log");
    let ready = json(&expect(run(&[&serve[..], &["--json", "--log", &log]].concat()), 0));
    assert_eq!((&ready["event"], &ready["log"]), (&"ready".into(), &log.into()));
    assert_eq!(stdout(&expect(run(&["get", "k", "--at", &at]), 0)), "v\n");
    let stopped = json(&expect(run(&["stop", "--json", "--at", &at]), 0));
    assert_eq!((&stopped["pid"], &stopped["region"]), (&ready["pid"], &region.into()));
}

/// Also a suspended server is stopped, and one that is not gone in time is named.
#[test]
fn a_suspended_server_is_stopped() {
    let mut served = Served::start(&["--anonymous", "--slots", "64"]);
    served.suspend();
    let stopped = stdout(&expect(served.run(&["stop"]), 0));
    assert_eq!(stopped.lines().count(), 1, "nothing stays of anonymous memory: {stopped}");
    assert!(served.child.wait().unwrap().success());
    let over_verbs = stderr(&expect(run(&["stop", "--at", "verbs://localhost:1"]), 1));
    assert!(over_verbs.contains("on its own host"), "{over_verbs}");
}

/// `--wait` waits for a server that is not there yet, and says so if none comes. Other errors it does not wait for.
#[test]
fn a_server_that_comes_up_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let waiting = oneread()
        .args(["put", "k", "v", "--wait", "60s", "--at", &at])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pinging =
        oneread().args(["ping", "--wait", "60s", "--at", &at]).stdout(Stdio::piped()).spawn().unwrap();
    let served = Served::start_in(dir, &["--anonymous", "--slots", "64"]);
    assert_eq!(stdout(&expect(waiting.wait_with_output().unwrap(), 0)), "inserted\n");
    expect(pinging.wait_with_output().unwrap(), 0);
    expect(served.run(&["dump", "--wait", "60s"]), 0);
    let dir = tempfile::tempdir().unwrap();
    let none = format!("shm:{}", dir.path().join("none").display());
    for command in [&["put", "k", "v"][..], &["get", "k"], &["ping"], &["dump"]] {
        let out = expect(run(&[command, &["--wait", "20ms", "--at", &none]].concat()), 1);
        assert!(
            stderr(&out).contains("waited 2") && stderr(&out).contains(" ms for a server: no server at"),
            "{out:?}"
        );
    }
    let mut never = oneread();
    never.args(["put", "k", "v", "--wait", "1h", "--at", "verbs://256.256.256.256:1"]);
    expect(ends(never), 1);
}

/// systemd is told when the server is ready, and when it stops.
#[test]
fn systemd_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let socket = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut command = oneread();
    command.env("NOTIFY_SOCKET", dir.path().join("notify"));
    let served = Served::start_by(command, dir, &["--anonymous", "--slots", "64"]);
    let hear = || {
        let mut message = [0; 256];
        let len = socket.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    };
    assert_eq!(hear(), format!("READY=1\nMAINPID={}\n", served.child.id()));
    served.signal(rustix::process::Signal::TERM);
    assert_eq!(hear(), "STOPPING=1\n");
}

/// What is no table of keys and values is named before anything of it is put, or with it.
#[test]
fn files_that_are_no_lines_are_named() {
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    let path = served.file("words.tsv.gz", "");
    std::fs::write(&path, b"\x1f\x8b\x08\x00 and so on\n").unwrap();
    let refused = stderr(&expect(served.run(&["load", &path]), 1));
    assert!(refused.contains(&format!("is compressed; zcat {path} | oneread load -")), "{refused}");
    let path = served.file("names.csv", "Key,Value\na,1\n");
    let loaded = expect(served.run(&["load", &path]), 0);
    assert!(stderr(&loaded).contains("--header skips it"), "{loaded:?}");
    let skipped = expect(served.run(&["load", "--header", &path]), 0);
    assert_eq!(stderr(&skipped), "");
}

/// Ctrl-C in the middle says how far the command came, in one line, and the status tells of it.
#[test]
fn who_is_interrupted_is_told() {
    let mut child = oneread()
        .args(["layouts", "--slots", "1048576", "--preset", "windowed:8", "--load", "50"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Until the thread is there that waits for the signal.
    let caught = || std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let catches = |status: String| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
        (u64::from_str_radix(&mask, 16).unwrap() & 1 << 1 != 0).then_some(())
    };
    wait_for("the handler", || catches(caught()));
    wait_for("threads", || {
        (std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() > 2).then_some(())
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let mut told = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(told.starts_with("oneread: interrupted; measuring: ") && told.lines().count() == 1, "{told}");
    assert!(told.trim_end().ends_with(" operations"), "{told}");
}
