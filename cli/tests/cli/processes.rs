//! How a process of the command begins and ends, whoever started it, and whatever it waits for.

use crate::command::{alone, oneread};
use crate::served::{
    SOON, Served, begin_on_a_terminal_with, ends, expect, full_pipe, is_ready, json, run, stderr, stdout,
    wait_for, write_secret,
};
use crate::servers::hold_worker;
use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_oneread");

/// The end of a process, within a minute.
#[track_caller]
fn end_of(child: &mut Child) -> std::process::ExitStatus {
    wait_for("the end of the process", || child.try_wait().unwrap())
}

fn is_there(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// A program that has blocked the signals that end a process starts a server. They end that server all the same, in the
/// foreground and in the background.
#[test]
fn a_server_that_was_started_with_signals_blocked_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let blocking = |arguments: &[&str]| {
        let mut command = alone(Command::new("env"));
        command.args(["--block-signal=TERM", "--block-signal=INT", PROGRAM]).args(arguments);
        command
    };
    if !blocking(&["--version"]).output().unwrap().status.success() {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "env blocks no signals here");
        return eprintln!("skipped: env of this host blocks no signals (coreutils 8.31)");
    }
    let at = format!("shm:{}", path("sock"));
    let serve = ["serve", "--at", &at, "--anonymous", "--slots", "64"];
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = blocking(&serve).stdout(Stdio::null()).spawn().unwrap();
        expect(run(&["ping", "--wait", "60s", "--at", &at]), 0);
        kill_process(Pid::from_child(&server), signal).unwrap();
        assert!(end_of(&mut server).success());
    }
    expect(ends(blocking(&[&serve[..], &["--daemonize"]].concat())), 0);
    let stopped = json(&expect(run(&["stop", "--json", "--at", &at]), 0));
    assert_eq!(stopped["killed"], false, "{stopped}");
}

/// The first process of a container gets only signals that it has handlers for. Those that end a program end it, whatever
/// it waits for.
#[test]
fn the_first_process_of_a_container_ends() {
    let first = |arguments: &[&str]| {
        let mut command = alone(Command::new("unshare"));
        command.args(["-rp", "--fork", "--kill-child", PROGRAM]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    if !first(&["--version"]).status().is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no namespaces here");
        return eprintln!("skipped: no namespace of processes can be made here (unshare)");
    }
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    let dir = tempfile::tempdir().unwrap();
    let none = format!("shm:{}", dir.path().join("none").display());
    for (arguments, at) in [
        (&["watch"][..], &served.at),
        (&["stat", "--watch", "1h"], &served.at),
        (&["load", "-"], &served.at),
        (&["ping", "--wait", "1h"], &none),
    ] {
        for signal in [Signal::TERM, Signal::INT] {
            let mut command = first(&[arguments, &["--at", at]].concat());
            // Nothing ever comes there.
            let mut parent = command.stdin(Stdio::piped()).spawn().unwrap();
            let child = wait_for("the first process", || {
                let children = format!("/proc/{0}/task/{0}/children", parent.id());
                let child: i32 = std::fs::read_to_string(children).ok()?.trim().parse().ok()?;
                let name = std::fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
                // It has handlers for what ends it.
                let status = std::fs::read_to_string(format!("/proc/{child}/status")).ok()?;
                let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
                let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
                (name.trim() == "oneread" && caught >> (signal.as_raw() - 1) & 1 == 1).then_some(child)
            });
            kill_process(Pid::from_raw(child).unwrap(), signal).unwrap();
            wait_for("the end of the first process", || (!is_there(child)).then_some(()));
            let _ = end_of(&mut parent);
        }
    }
}

/// A start that waits for what never comes (here: for whoever reads its output) ends at a signal.
#[test]
fn a_start_that_hangs_ends_at_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    let (_unread, full) = full_pipe();
    let said = dir.path().join("said");
    let made = dir.path().join("made");
    std::fs::create_dir(&made).unwrap();
    let [region, pid_file] = ["region", "pid"].map(|name| made.join(name).display().to_string());
    let mut command = oneread();
    command.args(["serve", "--region", &region, "--pid-file", &pid_file, "--slots", "64", "--at", &at]);
    command.stdout(full);
    let mut server = command.stderr(std::fs::File::create(&said).unwrap()).spawn().unwrap();
    // It answers clients by now, and tries to say so.
    expect(run(&["ping", "--wait", "60s", "--at", &at]), 0);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(end_of(&mut server).code(), Some(128 + 15));
    let said = std::fs::read_to_string(said).unwrap();
    assert!(said.contains("the start did not end within 10 s"), "{said}");
    let stays: Vec<_> = std::fs::read_dir(&made).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(stays.is_empty() && !dir.path().join("sock").exists(), "{stays:?}");
}

/// Nothing stays of a start whose last steps fail: no region, socket, lock or file with a number. A table that was there
/// stays.
#[test]
fn a_start_that_fails_at_last_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(path("a folder")).unwrap();
    let (at, region, folder) = (format!("shm:{}", path("sock")), path("region"), path("a folder"));
    let serve = ["serve", "--at", &at, "--region", &region, "--slots", "64"];
    let stays = || {
        let files = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
        let mut files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
        files.retain(|name| !["sock.log", "a folder"].contains(&name.as_str()));
        files.sort();
        files
    };
    let fails = |more: &[&str], says: &str| {
        let mut command = oneread();
        command.args(serve).args(more).stdin(Stdio::null()).stderr(Stdio::piped());
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut child = command.stdout(full).spawn().unwrap();
        let status = end_of(&mut child);
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(status.code() == Some(1) && told.contains(says), "{more:?}: {told}");
    };
    let each = |before: &[&str]| {
        fails(&[], "writing the output: No space left");
        assert_eq!(stays(), before);
        fails(&["--daemonize"], "writing the output: No space left");
        assert_eq!(stays(), before);
        for more in [&["--pid-file", &folder][..], &["--pid-file", &folder, "--daemonize"]] {
            fails(more, "writing --pid-file");
            assert_eq!(stays(), before, "{more:?}");
        }
    };
    each(&[]);
    expect(run(&[&serve[..], &["--daemonize"]].concat()), 0);
    expect(run(&["put", "k", "v", "--at", &at]), 0);
    expect(run(&["stop", "--at", &at]), 0);
    each(&["region"]);
    // Whoever reads nothing of what a server says has it serve all the same.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = oneread();
    command.args([&serve[..], &["--daemonize"]].concat()).stdout(writer);
    assert!(end_of(&mut command.spawn().unwrap()).success());
    assert_eq!(stdout(&expect(run(&["get", "k", "--at", &at]), 0)), "v\n");
    expect(run(&["stop", "--at", &at]), 0);
}

/// A server that does not end in time is named, with what to do. `--force` kills it.
#[test]
fn a_server_that_does_not_end_is_killed_if_asked() {
    use nix::sys::wait::{WaitPidFlag, waitpid};
    let mut served = Served::start(&["--anonymous", "--slots", "64"]);
    // A worker is held, so the server cannot end.
    let Some(worker) = hold_worker(served.child.id(), "oneread-0") else { return };
    let late = stderr(&expect(served.run(&["stop", "--deadline", "100ms"]), 1));
    assert!(late.contains("is not gone after 100 ms") && late.contains("--force kills it"), "{late}");
    assert!(is_there(served.child.id() as i32));
    let mut force = oneread();
    force.args(["stop", "--deadline", "100ms", "--force", "--at", &served.at]).stdout(Stdio::piped());
    let force = force.spawn().unwrap();
    // Who traces a thread is told of its end first.
    waitpid(worker, Some(WaitPidFlag::__WALL)).unwrap();
    let killed = expect(force.wait_with_output().unwrap(), 0);
    assert!(stdout(&killed).starts_with("killed the server at "), "{killed:?}");
    assert!(!end_of(&mut served.child).success());
}

/// A server that has as many clients as it may is stopped all the same: it says so to whoever it turns away.
#[test]
fn a_full_server_is_stopped() {
    let mut served = Served::start(&["--anonymous", "--slots", "64", "--clients-max", "2"]);
    let socket = served.at.strip_prefix("shm:").unwrap().to_owned();
    // Who says nothing is turned away soon: so there are others at each try.
    let mut held = Vec::new();
    wait_for("a full server", || {
        held.clear();
        held.extend([(); 2].map(|()| std::os::unix::net::UnixStream::connect(&socket).unwrap()));
        let told = served.run(&["ping"]);
        stderr(&told).contains("turned this client away").then_some(())
    });
    let stopped = stdout(&expect(served.run(&["stop"]), 0));
    assert!(stopped.starts_with("stopped the server at "), "{stopped}");
    assert!(end_of(&mut served.child).success());
    drop(held);
}

/// A process that listens and does not answer may be a program that is busy: it gets no signal, and is not killed. (Here it
/// is this one.)
#[test]
fn who_does_not_answer_gets_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let at = format!("shm:{}", path.display());
    let told = stderr(&expect(run(&["stop", "--deadline", "100ms", "--at", &at]), 1));
    let own = format!("process {}", std::process::id());
    assert!(told.contains(&own) && told.contains("gets no signal"), "{told}");
    assert!(told.contains("is not gone after 100 ms; it does not answer"), "{told}");
}

/// Who stops a server learns whether its last snapshot was made.
#[test]
fn a_last_snapshot_that_fails_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("snapshots");
    let file = folder.join("snapshot").display().to_string();
    for (more, failed, told) in [
        (&["--snapshot", &file][..], true, "failed"),
        (&["--snapshot", &file], false, "made"),
        (&[], false, "none"),
    ] {
        for as_json in [false, true] {
            std::fs::create_dir(&folder).unwrap();
            let options = [&["--anonymous", "--slots", "64"][..], more].concat();
            let mut served = Served::start(&options);
            expect(served.run(&["put", "k", "v"]), 0);
            if failed {
                std::fs::remove_dir_all(&folder).unwrap();
            }
            let how: &[&str] = if as_json { &["stop", "--json"] } else { &["stop"] };
            let stopped = expect(served.run(how), if failed { 3 } else { 0 });
            if as_json {
                assert_eq!(json(&stopped)["last_snapshot"], told);
            } else {
                let says = stderr(&stopped).contains("its last snapshot was not made");
                assert_eq!(says, failed, "{stopped:?}");
            }
            end_of(&mut served.child);
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

/// A terminal is as it was when a signal has ended the prompt, and bytes that are no text end no prompt.
#[test]
fn the_prompt_gives_the_terminal_back() {
    use rustix::termios::{LocalModes, tcgetattr};
    use std::io::Write;
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    let state = served.dir.path().join("state");
    let environment = [("ONEREAD_AT", served.at.as_str()), ("XDG_STATE_HOME", state.to_str().unwrap())];
    let (mut child, mut terminal) = begin_on_a_terminal_with(&[], &environment);
    let before = |terminal: &std::fs::File| tcgetattr(terminal).unwrap().local_modes;
    let (mut shown, mut side) = (Vec::new(), terminal.try_clone().unwrap());
    let mut until = |text: &str| {
        while !String::from_utf8_lossy(&shown).contains(text) {
            assert!(is_ready(&side, PollFlags::IN, SOON), "no {text:?} in {shown:?}");
            let mut some = [0; 4096];
            let length = side.read(&mut some).unwrap_or_else(|why| panic!("{why}: no {text:?} in {shown:?}"));
            shown.extend_from_slice(&some[..length]);
        }
        shown.clear();
    };
    until("oneread> ");
    wait_for("a line to be typed", || (!before(&terminal).contains(LocalModes::ICANON)).then_some(()));
    // What follows the byte is of the same line: it is not run.
    terminal.write_all(b"get \xff").unwrap();
    until("no text in UTF-8");
    wait_for("the rest to be typed", || (!before(&terminal).contains(LocalModes::ICANON)).then_some(()));
    terminal.write_all(b" put k v\r").unwrap();
    until("oneread> ");
    wait_for("a line to be typed", || (!before(&terminal).contains(LocalModes::ICANON)).then_some(()));
    terminal.write_all(b"put here it-is\r").unwrap();
    until("inserted");
    assert_eq!(stdout(&expect(served.run(&["keys"]), 0)), "here\n");
    wait_for("a line to be typed", || (!before(&terminal).contains(LocalModes::ICANON)).then_some(()));
    // `setsid` has become the prompt, or waits for it.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let prompt = std::fs::read_to_string(children).unwrap().trim().parse().ok().and_then(Pid::from_raw);
    kill_process(prompt.unwrap_or(Pid::from_child(&child)), Signal::TERM).unwrap();
    assert_eq!(end_of(&mut child).code(), Some(128 + 15));
    assert!(before(&terminal).contains(LocalModes::ICANON | LocalModes::ECHO), "the terminal is raw");
}

/// Files with numbers of processes are their server's alone to write. A second server with the same one is refused before
/// it makes anything, and leaves it.
#[test]
fn a_pid_file_is_one_servers() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let options = ["--anonymous", "--slots", "64", "--pid-file", pid_file.to_str().unwrap()];
    let mut command = alone(Command::new("sh"));
    command.args(["-c", r#"umask 0; exec "$0" "$@""#, PROGRAM]);
    let served = Served::start_by(command, tempfile::tempdir().unwrap(), &options);
    let number = || std::fs::read_to_string(&pid_file).unwrap();
    assert_eq!(number(), format!("{}\n", served.child.id()));
    assert_eq!(pid_file.metadata().unwrap().mode() & 0o7777, 0o644);
    let second = format!("shm:{}", dir.path().join("second").display());
    let refused = expect(run(&[&["serve", "--at", &second], &options[..]].concat()), 1);
    assert!(stderr(&refused).contains("another server has --pid-file"), "{refused:?}");
    assert!(!dir.path().join("second").exists());
    assert_eq!(number(), format!("{}\n", served.child.id()));
    expect(served.run(&["stop"]), 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    // What a killed server has left is in nobody's way.
    std::fs::write(&pid_file, "1\n").unwrap();
    std::fs::write(dir.path().join("pid.new"), "1\n").unwrap();
    let served = Served::start(&options);
    assert_eq!(number(), format!("{}\n", served.child.id()));
}

/// A log that another user could read or cut off is not written into.
#[test]
fn a_strangers_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let at = format!("shm:{}", dir.path().join("sock").display());
    let serve = ["serve", "--daemonize", "--anonymous", "--slots", "64", "--at", &at, "--log-file"];
    let serve = |log: &Path| run(&[&serve[..], &[log.to_str().unwrap()]].concat());
    std::fs::write(&log, "").unwrap();
    std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o622)).unwrap();
    let refused = stderr(&expect(serve(&log), 1));
    assert!(refused.contains("--log-file names another file") && refused.contains("chmod go-w"), "{refused}");
    if rustix::process::getuid().is_root() {
        std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&log, Some(7), None).unwrap();
        let refused = stderr(&expect(serve(&log), 1));
        assert!(refused.contains("belongs to user 7"), "{refused}");
    }
    // Some devices never end.
    for device in ["/dev/zero", "/dev/full", "/dev/urandom"] {
        let refused = stderr(&expect(serve(Path::new(device)), 1));
        assert!(refused.contains("--log-file names another file"), "{refused}");
    }
    expect(serve(Path::new("/dev/null")), 0);
    expect(run(&["stop", "--at", &at]), 0);
}

/// Secrets are read from files that nobody else may read: tokens and keys of certificates as the keys of values.
#[test]
fn secrets_that_others_may_read_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret").display().to_string();
    write_secret(&secret, "a token\n");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for option in ["--token-file", "--read-token-file"] {
        let refused = stderr(&expect(run(&["serve", "--anonymous", "--at", &at, option, &secret]), 1));
        assert!(refused.contains("may be read by other users") && refused.contains("chmod go="), "{refused}");
    }
    let refused = stderr(&expect(run(&["get", "k", "--at", &at, "--token-file", &secret]), 1));
    assert!(refused.contains("may be read by other users"), "{refused}");
    let [_, cert, key] = crate::servers::certificates(dir.path());
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let tls = ["--listen", "tcp://localhost:0", "--tls-cert", &cert, "--tls-key", &key];
    let refused = stderr(&expect(run(&[&["serve", "--anonymous", "--at", &at][..], &tls].concat()), 1));
    assert!(refused.contains("may be read by other users") && refused.contains("key.pem"), "{refused}");
}

/// Pipes and devices are no files: nobody waits for them.
#[test]
fn nobody_waits_for_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe").display().to_string();
    let made = Command::new("mkfifo").args(["-m", "600", &pipe]).status().unwrap();
    assert!(made.success());
    let at = format!("shm:{}", dir.path().join("sock").display());
    let tls = ["serve", "--anonymous", "--at", &at, "--listen", "tcp://localhost:0", "--tls-key", &pipe];
    for arguments in [
        vec!["dump", "--region", &pipe],
        vec!["dump", "--region", "/dev/zero"],
        vec!["inspect", "--region", &pipe],
        vec!["get", "k", "--at", &at, "--region", &pipe],
        vec!["get", "k", "--at", &at, "--token-file", &pipe],
        vec!["get", "k", "--at", &at, "--key-file", &pipe],
        vec!["get", "k", "--at", "tcp://localhost:1", "--tls-ca", &pipe],
        vec!["serve", "--anonymous", "--at", &at, "--read-token-file", &pipe],
        vec!["serve", "--anonymous", "--at", &at, "--restore", &pipe],
        [&tls[..], &["--tls-cert", &pipe]].concat(),
    ] {
        let mut command = oneread();
        command.args(&arguments);
        let told = stderr(&expect(ends(command), 1));
        assert!(told.contains("is no file"), "{arguments:?}: {told}");
    }
}

/// Output that finds no room is named as such.
#[test]
fn a_full_output_is_named() {
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    expect(served.run(&["put", "k", "v"]), 0);
    let dir = tempfile::tempdir().unwrap();
    let at = format!("shm:{}", dir.path().join("sock").display());
    for arguments in [
        vec!["get", "k", "--at", &served.at],
        vec!["keys", "--at", &served.at],
        vec!["stat", "--at", &served.at],
        vec!["serve", "--anonymous", "--slots", "64", "--at", &at],
    ] {
        let mut command = oneread();
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut child = command.args(&arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let status = end_of(&mut child);
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}: {told}");
        assert!(told.contains("writing the output: No space left"), "{arguments:?}: {told}");
    }
}

/// Help that finds no room is an error, too. A reader who has enough of it is none.
#[test]
fn help_that_is_not_written_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["stop", "--help"]] {
        let mut command = oneread();
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut child = command.args(arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(end_of(&mut child).code(), Some(1), "{arguments:?}");
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(told.contains("writing the output: No space left"), "{arguments:?}: {told}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = oneread().args(arguments).stdout(writer).spawn().unwrap();
        assert_eq!(end_of(&mut child).code(), Some(0), "{arguments:?}");
    }
}

/// A pipe that nobody writes into is waited for with a word. What is written then is loaded.
#[test]
fn a_pipe_is_waited_for_with_a_word() {
    use std::io::{BufRead, BufReader, Write};
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    let pipe = served.dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = oneread();
    command.args(["load", pipe.to_str().unwrap(), "--at", &served.at]).stdout(Stdio::null());
    let mut load = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(load.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("is a pipe, and nobody has written into it"), "{said}");
    std::fs::File::options().write(true).open(&pipe).unwrap().write_all(b"k\tv\n").unwrap();
    assert!(end_of(&mut load).success());
    assert_eq!(stdout(&expect(served.run(&["get", "k"]), 0)), "v\n");
}

/// A service manager that reads nothing holds up no server. Its socket may have a name that is no path, or none.
#[test]
fn a_deaf_service_manager_holds_up_nothing() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = oneread();
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "0");
    let mut served = Served::start_by(command, dir, &["--anonymous", "--slots", "64"]);
    let mut message = [0; 256];
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.recv(&mut message).unwrap();
    let fills = UnixDatagram::unbound().unwrap();
    fills.set_nonblocking(true).unwrap();
    while fills.send_to(b"full", &path).is_ok() {}
    served.signal(Signal::TERM);
    assert!(end_of(&mut served.child).success());

    let name = format!("oneread-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut command = oneread();
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let served = Served::start_by(command, tempfile::tempdir().unwrap(), &["--anonymous", "--slots", "64"]);
    let length = socket.recv(&mut message).unwrap();
    assert!(message[..length].starts_with(b"READY=1\n"));
    drop(served);
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut command = oneread();
    command.env("NOTIFY_SOCKET", "").stderr(said.reopen().unwrap());
    let served = Served::start_by(command, tempfile::tempdir().unwrap(), &["--anonymous", "--slots", "64"]);
    expect(served.run(&["stop"]), 0);
    let said = std::fs::read_to_string(said.path()).unwrap();
    assert!(!said.contains("NOTIFY_SOCKET"), "{said}");
}

/// Values, keys and messages with commands for a terminal are written out on one, and as they are into a pipe.
#[test]
fn a_terminal_is_given_no_commands() {
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    // A clear, the same by one character, and one that turns the direction of text.
    let active = "\x1b[2Ja\u{9b}2Jb\u{202e}c";
    expect(served.run(&["put", active, active]), 0);
    let escaped = "\\x1b[2Ja\\xc2\\x9b2Jb\\xe2\\x80\\xaec";
    for (arguments, shown) in [
        (&["get", active][..], escaped),
        (&["keys"], escaped),
        (&["scan", "--values"], escaped),
        (&["dump"], escaped),
        (&["dump", "--format", "csv"], escaped),
        (&["get", "--json", active], "\\u001b[2Ja\\u009b2Jb\\u202ec"),
        (&["scan", "--json"], "\\u001b[2Ja\\u009b2Jb\\u202ec"),
        (&["dump", "--json"], "\\u001b[2Ja\\u009b2Jb\\u202ec"),
        (&["inspect", active], "u009b2Jb"),
        (&["get", "none\u{9b}2J"], "none"),
        (&["frob\u{9b}2J"], "frob\\u009b2J"),
    ] {
        let arguments = [arguments, &["--at", &served.at]].concat();
        let terminal = bytes_on_a_terminal(&arguments);
        for command in ["\x1b[2J", "\u{9b}", "\u{202e}"] {
            assert!(!terminal.contains(command), "{arguments:?}: {terminal:?}");
        }
        assert!(terminal.contains(shown), "{arguments:?}: {terminal:?}");
    }
    assert_eq!(stdout(&expect(served.run(&["get", active]), 0)), format!("{active}\n"));
    let piped = stdout(&expect(served.run(&["get", "--json", active]), 0));
    assert!(piped.contains("\u{9b}2Jb\u{202e}"), "{piped}");
    // What a terminal shows of TSV `load` reads.
    let shown = bytes_on_a_terminal(&["dump", "--at", &served.at]).replace("\r\n", "\n");
    let other = Served::start(&["--anonymous", "--slots", "64"]);
    expect(crate::served::run_with_input(&["load", "-", "--at", &other.at], shown.as_bytes()), 0);
    assert_eq!(stdout(&expect(other.run(&["get", active]), 0)), format!("{active}\n"));
}

/// Names have no colors, and are on one line, whatever they are: of regions, sockets and servers. Each is written out once.
#[test]
fn names_on_a_terminal_are_on_one_line() {
    let dir = tempfile::Builder::new().prefix("a\x1b[31mb\nc").tempdir().unwrap();
    let folder = dir.path().display().to_string();
    let region = format!("{folder}/table");
    let at = format!("shm:{folder}/other");
    let serve = ["serve", "--daemonize", "--slots", "64", "--at", &at, "--region", &region];
    // (What is in the background would keep a terminal of this test's.)
    let told = stdout(&expect(run(&serve), 0));
    assert!(told.matches("\\u001b[31mb\\nc").count() == 3 && told.lines().count() == 2, "{told:?}");
    for arguments in [
        &["ping", "--at", &at][..],
        &["stat", "--at", &at],
        &["inspect", "--key", "k\x1b[31m", "--at", &at],
        &["regions", &region],
        &["stop", "--at", &at],
    ] {
        let shown = bytes_on_a_terminal(arguments);
        assert!(!shown.contains("\x1b[31m") && !shown.contains("b\r\nc"), "{arguments:?}: {shown:?}");
        assert!(shown.contains("\\u001b[31m") && !shown.contains("\\\\u001b"), "{arguments:?}: {shown:?}");
    }
}

/// Keys of Python's that are no text are shown as Python writes them on a terminal, and as bytes elsewhere.
#[test]
fn keys_of_python_are_shown_as_python_writes_them() {
    let served = Served::start(&["--anonymous", "--slots", "64"]);
    // ("user", 42)
    expect(served.run(&["put", "--hex", "fd047573657203fe3432", "76"]), 0);
    expect(served.run(&["put", "plain", "v"]), 0);
    let shown = bytes_on_a_terminal(&["keys", "--at", &served.at]);
    assert!(shown.contains("('user', 42)\r\n") && shown.contains("plain\r\n"), "{shown:?}");
    let piped = stdout(&expect(served.run(&["keys"]), 0));
    assert!(piped.contains("\\xfd\\x04user\\x03\\xfe42\n"), "{piped}");
}

/// What a command writes to a terminal.
fn bytes_on_a_terminal(arguments: &[&str]) -> String {
    let (mut child, mut terminal) = begin_on_a_terminal_with(arguments, &[]);
    let mut shown = Vec::new();
    // It ends with EIO when the command has.
    let _ = terminal.read_to_end(&mut shown);
    let _ = end_of(&mut child);
    String::from_utf8(shown).unwrap()
}

/// A server says that its certificate has expired when it starts. A client that refuses it is told so, and not to trust
/// another authority.
#[test]
fn an_expired_certificate_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (cert_file, key_file) = (path("cert"), path("key"));
    std::fs::write(&cert_file, params.self_signed(&key).unwrap().pem()).unwrap();
    write_secret(&key_file, &key.serialize_pem());
    let (served, said, far) = crate::servers::served_by_tls(oneread(), &cert_file, &key_file);
    wait_for("a warning", || said().contains("the certificate expired").then_some(()));
    let refused = stderr(&expect(run(&["ping", "--at", &far, "--tls-ca", &cert_file]), 1));
    assert!(refused.contains("its certificate has expired") && !refused.contains("authority"), "{refused}");
    drop(served);
}

/// The longest wait of this test for what may not come.
const NOT_FOR_LONG: Duration = Duration::from_millis(50);

/// `stop` says of a server that is at it that it goes on.
#[test]
fn a_second_signal_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    let mut command = oneread();
    command.stderr(std::fs::File::create(&said).unwrap());
    let served = Served::start_by(command, dir, &["--anonymous", "--slots", "64"]);
    let Some(worker) = hold_worker(served.child.id(), "oneread-0") else { return };
    wait_for("an answer to another signal", || {
        served.signal(Signal::INT);
        std::thread::sleep(NOT_FOR_LONG);
        std::fs::read_to_string(&said).unwrap().contains("it is ending already").then_some(())
    });
    nix::sys::ptrace::detach(worker, None).unwrap();
}
