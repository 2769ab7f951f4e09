//! A server starts, is waited for and stops as it was told to.

use crate::command::{alone, oneread};
use crate::served::{
    SOON, Served, ends, expect, json, run, run_with_input, stderr, stdout, wait_for, write_secret,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// A server listens to TCP beside its socket. The commands that read and change keys, watch, scan and tell of the server
/// do what they do on shm, and one without the token is told so.
#[test]
fn a_server_over_tcp_beside_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let token = file("token");
    write_secret(&token, "a token\n");
    let options = ["--anonymous", "--slots", "64", "--listen", "tcp://127.0.0.1:0", "--token-file", &token];
    let served = Served::start(&options);
    let far = served.ready["tcp"].as_str().expect("its address").to_string();
    assert!(far.starts_with("tcp://127.0.0.1:") && !far.ends_with(":0"), "{far}");
    let at_far = |arguments: &[&str]| run(&[arguments, &["--at", &far, "--token-file", &token]].concat());
    assert_eq!(stdout(&expect(at_far(&["put", "k", "v"]), 0)), "inserted\n");
    assert_eq!(stdout(&expect(served.run(&["get", "k"]), 0)), "v\n");
    expect(served.run(&["put", "k", "near"]), 0);
    assert_eq!(stdout(&expect(at_far(&["get", "k"]), 0)), "near\n");
    assert!(stdout(&expect(at_far(&["scan"]), 0)).contains('k'));
    let told = stdout(&expect(at_far(&["ping"]), 0));
    assert!(told.contains(&far) && told.contains(", a GET ") && !told.contains("without"), "{told}");
    expect(at_far(&["stat"]), 0);
    expect(at_far(&["del", "k"]), 0);
    expect(served.run(&["get", "k"]), 1);
    let stranger = run(&["get", "k", "--at", &far]);
    let told = stderr(&stranger);
    assert!(
        stranger.status.code() == Some(1) && told.contains("token") && told.contains("--token-file"),
        "{told}"
    );
    // Where others could connect, no server listens without a token.
    let open =
        run(&["serve", "--anonymous", "--slots", "64", "--at", &served.at, "--listen", "tcp://0.0.0.0:0"]);
    let told = stderr(&open);
    assert!(open.status.code() == Some(1) && told.contains("token"), "{told}");
}

/// The files of an authority's certificate, of one for this host that comes from it, and of its key.
pub fn certificates(dir: &std::path::Path) -> [String; 3] {
    use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| dir.join(name).display().to_string());
    let own = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    std::fs::write(&ca, authority.pem()).unwrap();
    std::fs::write(&cert, params.signed_by(&own, &authority).unwrap().pem()).unwrap();
    write_secret(&key, &own.serialize_pem());
    [ca, cert, key]
}

/// A server that speaks TLS, started by this command, what it says, and its address.
pub fn served_by_tls(mut command: Command, cert: &str, key: &str) -> (Served, impl Fn() -> String, String) {
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    command.stderr(std::fs::File::create(&said).unwrap());
    let options = ["--anonymous", "--slots", "64", "--listen", "tcp://localhost:0", "--workers", "1"];
    let tls = ["--tls-cert", cert, "--tls-key", key];
    let served = Served::start_by(command, dir, &[&options[..], &tls].concat());
    let far = served.ready["tcp"].as_str().expect("its address").to_string();
    (served, move || std::fs::read_to_string(&said).unwrap(), far)
}

/// SIGHUP has renewed certificates read again. While they cannot be read, the old ones stay, and the server says so.
#[test]
fn renewed_certificates_are_read_again() {
    let [old, new] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let ([ca, cert, key], [next_ca, next_cert, next_key]) =
        (certificates(old.path()), certificates(new.path()));
    // Whoever runs the tests under nohup has them ignore the signal, and their children, too.
    let mut command = alone(Command::new("env"));
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_oneread")]);
    let (served, said, far) = served_by_tls(command, &cert, &key);
    let ping = |ca: &str| run(&["ping", "--at", &far, "--tls-ca", ca]).status.code();
    assert_eq!((ping(&ca), ping(&next_ca)), (Some(0), Some(1)));
    std::fs::write(&cert, "no certificate").unwrap();
    served.signal(rustix::process::Signal::HUP);
    wait_for("a warning", || said().contains("the old ones stay in use").then_some(()));
    assert!(said().contains("cert.pem holds no certificate"), "{}", said());
    assert_eq!((ping(&ca), ping(&next_ca)), (Some(0), Some(1)));
    std::fs::copy(next_cert, &cert).unwrap();
    std::fs::copy(next_key, &key).unwrap();
    served.signal(rustix::process::Signal::HUP);
    wait_for("the new ones", || said().contains("were read again").then_some(()));
    assert_eq!((ping(&ca), ping(&next_ca)), (Some(1), Some(0)));
    expect(served.run(&["ping"]), 0);
}

/// A server that speaks TLS and is out of file descriptors says so, serves those whom it has, and lets others in when
/// some are free again.
#[test]
fn a_server_with_tls_and_without_descriptors() {
    use oneread::{Client, ClientOptions, ClientTls};
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let mut command = alone(Command::new("sh"));
    command.args(["-c", r#"ulimit -n 64; exec "$0" "$@""#, env!("CARGO_BIN_EXE_oneread")]);
    let (served, said, far) = served_by_tls(command, &cert, &key);
    let connect = || {
        let options = ClientOptions::new().deadline(SOON).tls(ClientTls::new(&ca, None).unwrap());
        Client::connect_with(&far.parse().unwrap(), options)
    };
    let mut client = connect().unwrap();
    client.put(b"key", b"value").unwrap();
    let port = far.rsplit(':').next().unwrap();
    let crowd: Vec<_> =
        (0..100).map(|_| std::net::TcpStream::connect(format!("localhost:{port}")).unwrap()).collect();
    // Of those who prove nothing, only some are there at a time.
    wait_for("a warning", || said().contains("too many are joining").then_some(()));
    connect().unwrap().put(b"key", b"value").unwrap();
    expect(served.run(&["get", "key"]), 0);
    drop(crowd);
    let crowd: Vec<_> = (0..100).map_while(|_| connect().ok()).collect();
    assert!((10..40).contains(&crowd.len()), "{} clients", crowd.len());
    // Of several warnings in a second, one is told.
    wait_for("a warning", || {
        drop(connect());
        said().contains("out of file descriptors").then_some(())
    });
    assert!(said().contains("turned a client away") && said().contains("RLIMIT_NOFILE"), "{}", said());
    assert!(said().lines().count() < 20, "one a second: {}", said());
    let refused = connect().expect_err("there is no descriptor for it");
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]), "{refused}");
    assert!(stderr(&expect(served.run(&["get", "key"]), 1)).contains("out of file descriptors"));
    drop(crowd);
    wait_for("room", || connect().ok()).put(b"key", b"other").unwrap();
}

/// With certificates, client and server over TCP know each other. A command without them is told what it lacks.
#[test]
fn a_server_that_speaks_tls() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let options = ["--anonymous", "--slots", "64", "--listen", "tcp://localhost:0"];
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let served = Served::start(&[&options[..], &tls].concat());
    let far = served.ready["tcp"].as_str().expect("its address").to_string();
    let at_far = |arguments: &[&str], tls: &[&str]| run(&[arguments, &["--at", &far], tls].concat());
    let whole = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    assert_eq!(stdout(&expect(at_far(&["put", "k", "v"], &whole), 0)), "inserted\n");
    assert_eq!(stdout(&expect(served.run(&["get", "k"]), 0)), "v\n");
    let by_variable = {
        let mut command = oneread();
        command.args(["get", "k", "--at", &far]).args(&whole[2..]).env("ONEREAD_TLS_CA", &ca);
        command.output().unwrap()
    };
    assert_eq!(stdout(&expect(by_variable, 0)), "v\n");
    let doctor = stdout(&expect(at_far(&["doctor", "--fabric", "tcp"], &whole), 0));
    for told in [&format!("one answers at {far}")[..], "round trip", "MTU of the path", "off (TCP_NODELAY)"] {
        assert!(doctor.contains(told), "{told}: {doctor}");
    }
    for (without, lacks) in
        [(&whole[..0], "--tls-ca"), (&whole[..2], "certificate"), (&whole[2..], "--tls-ca")]
    {
        let told = stderr(&expect(at_far(&["get", "k"], without), 1));
        assert!(told.to_lowercase().contains(lacks), "{without:?}: {told}");
    }
    let named = [&whole[..], &["--tls-name", "elsewhere"]].concat();
    let told = stderr(&expect(at_far(&["get", "k"], &named), 1));
    assert!(told.contains("not valid for name"), "{told}");
    let alone =
        ["serve", "--anonymous", "--slots", "64", "--at", &served.at, "--tls-cert", &cert, "--tls-key", &key];
    let told = stderr(&expect(run(&alone), 1));
    assert!(told.contains("--tls-cert") && told.contains("TCP"), "{told}");
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
    let why = stderr(&expect(run(&serve), 1));
    assert!(why.contains("another server has --pid-file"), "{why}");
    let refused = expect(run(&serve[..serve.len() - 2]), 1);
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
    let ready = json(&expect(run(&[&serve[..], &["--json", "--log-file", &log]].concat()), 0));
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

/// A server that hangs ends nothing. Exact readers find no entry after its end all the same; usual ones still do, and
/// that is what they are told. When it goes on, the entries are gone within a second.
#[test]
fn exact_readers_need_no_server_that_runs() {
    use oneread::{Client, ClientOptions, PutOptions};
    const KEYS: u32 = 500;
    /// An end is rounded up to the next one.
    const TICK: Duration = Duration::from_millis(125);
    let hangs = Duration::from_secs(if std::env::var_os("ONEREAD_LONG").is_some() { 15 } else { 3 });
    let served = Served::start(&["--anonymous", "--slots", "6400", "--life"]);
    let address = served.at.parse().unwrap();
    let mut usual = Client::connect(&address).unwrap();
    let mut exact = Client::connect_with(&address, ClientOptions::new().exact_expiry(true)).unwrap();
    let begun = Instant::now();
    // A tenth of them ends after each tenth of the time. Of each key, when its time began, at the soonest and the latest.
    let time = |n: u32| hangs * (n % 10 + 1) / 10;
    let put: Vec<[Duration; 2]> = (0..KEYS)
        .map(|n| {
            let before = begun.elapsed();
            usual.put_with(&n.to_le_bytes(), b"value", PutOptions::new().ttl(time(n))).unwrap();
            [before, begun.elapsed()]
        })
        .collect();
    served.suspend();
    let hung = begun.elapsed();
    // Of these the server has removed none.
    let left: Vec<u32> = (0..KEYS).filter(|&n| put[n as usize][0] + time(n) > hung).collect();
    assert!(left.len() >= KEYS as usize / 10, "{hung:?} for {KEYS} puts");
    let (mut found, mut ended) = (0, 0);
    while begun.elapsed() < hung + hangs + Duration::from_millis(500) {
        for n in 0..KEYS {
            let [soonest, latest] = put[n as usize].map(|begun| begun + time(n));
            let before = begun.elapsed();
            let is_there = exact.contains(&n.to_le_bytes()).unwrap();
            let after = begun.elapsed();
            if is_there {
                assert!(before < latest + TICK, "{n} is found at {before:?}, and ends at {latest:?}");
                found += 1;
            } else {
                assert!(after >= soonest, "{n} is lost at {after:?}, and ends at {soonest:?}");
                ended += 1;
            }
        }
    }
    assert!(found > 0 && ended >= KEYS, "{found}, {ended}");
    let keys: Vec<[u8; 4]> = left.iter().map(|n| n.to_le_bytes()).collect();
    let values = usual.get_many(&keys).unwrap();
    assert!(values.iter().all(|value| matches!(value, Ok(Some(_)))), "it is not exact");
    assert!(exact.get_many(&keys).unwrap().iter().all(|value| matches!(value, Ok(None))));
    served.signal(rustix::process::Signal::CONT);
    wait_for("the end of all", || (usual.server_stats().ok()?.keys == 0).then_some(()));
}

/// A server that was stopped for longer than its owners may be away does not take that for their absence. Who has a
/// session stays; who left while it was stopped goes, but not before the server was awake for as long as he may be away.
/// What had come to its end meanwhile is removed.
#[test]
fn a_server_that_was_stopped_does_not_take_its_absence_for_its_owners() {
    use oneread::{Client, OwnerOptions, PutOptions};
    /// The most of the time in which it was stopped that counts.
    const COUNTS: Duration = Duration::from_millis(200);
    let is_long = std::env::var_os("ONEREAD_LONG").is_some();
    let [stopped, away] = if is_long { [15, 8] } else { [3, 2] }.map(Duration::from_secs);
    let served = Served::start(&["--anonymous", "--slots", "640", "--owners"]);
    let mut reader = Client::connect(&served.at.parse().unwrap()).unwrap();
    let [mut bound, mut leaves] =
        [1, 2].map(|number| reader.owner(OwnerOptions::new(number).absent_for(away)).unwrap());
    bound.put(b"bound", b"").unwrap();
    leaves.put(b"leaves", b"").unwrap();
    let ends = PutOptions::new().ttl(stopped / 2);
    for n in 0..100u32 {
        reader.put_with(&n.to_le_bytes(), b"", ends).unwrap();
    }
    served.suspend();
    drop(leaves);
    let begun = Instant::now();
    while begun.elapsed() < stopped {
        let there: [&[u8]; 2] = [b"bound", b"leaves"];
        assert!(there.iter().all(|key| reader.contains(key).unwrap()));
        std::thread::sleep(Duration::from_millis(20));
    }
    let goes_on = Instant::now();
    served.signal(rustix::process::Signal::CONT);
    wait_for("the end of what was due", || (reader.server_stats().ok()?.keys <= 2).then_some(()));
    wait_for("the end of who has left", || (!reader.contains(b"leaves").unwrap()).then_some(()));
    let took = goes_on.elapsed();
    assert!(took + COUNTS >= away, "he goes after {took:?}, and may be away for {away:?}");
    assert!(reader.contains(b"bound").unwrap());
    bound.put(b"bound", b"again").unwrap();
    assert_eq!(reader.server_stats().unwrap().keys, 1);
}

/// The thread of a process that has this name.
fn thread_of(process: u32, name: &str) -> Option<nix::unistd::Pid> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let is_named = |folder: &Path| {
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    let thread = threads.map(|thread| thread.unwrap().path()).find(|folder| is_named(folder))?;
    thread.file_name()?.to_str()?.parse().ok().map(nix::unistd::Pid::from_raw)
}

/// Holds a worker of a server, and nothing else of its process. `None` where no process may trace another: it is said.
pub fn hold_worker(server: u32, name: &str) -> Option<nix::unistd::Pid> {
    use nix::sys::ptrace;
    use nix::sys::wait::{WaitPidFlag, waitpid};
    let worker = wait_for("a worker", || thread_of(server, name));
    if let Err(why) = ptrace::seize(worker, ptrace::Options::empty()) {
        eprintln!("skipped: no process may trace another here ({why})");
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "a thread cannot be held here: {why}");
        return None;
    }
    ptrace::interrupt(worker).unwrap();
    waitpid(worker, Some(WaitPidFlag::__WALL)).unwrap();
    Some(worker)
}

/// systemd's watchdog hears of the server only while each of its workers turns. One worker is held, and nothing
/// else of the process: the thread that tells systemd goes on, and does not.
#[test]
fn the_watchdog_hears_of_workers_that_turn() {
    let dir = tempfile::tempdir().unwrap();
    let socket = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let said = dir.path().join("said");
    let mut command = oneread();
    // It is asked four times a second.
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "1000000");
    command.stderr(std::fs::File::create(&said).unwrap());
    let served = Served::start_by(command, dir, &["--anonymous", "--slots", "64", "--workers", "2"]);
    let hears_within = |time| {
        socket.set_read_timeout(Some(time)).unwrap();
        let mut message = [0; 256];
        socket.recv(&mut message).ok().map(|len| String::from_utf8(message[..len].to_vec()).unwrap())
    };
    assert!(hears_within(SOON).unwrap().starts_with("READY=1\n"));
    for _ in 0..3 {
        assert_eq!(hears_within(SOON).as_deref(), Some("WATCHDOG=1\n"));
    }

    let Some(worker) = hold_worker(served.child.id(), "oneread-1") else { return };
    wait_for("word of the thread that hangs", || {
        std::fs::read_to_string(&said).unwrap().contains("oneread-1 hangs").then_some(())
    });
    // What was told before.
    while hears_within(Duration::from_millis(1)).is_some() {}
    assert_eq!(hears_within(Duration::from_secs(2)), None, "one of its workers hangs");

    nix::sys::ptrace::detach(worker, None).unwrap();
    assert_eq!(hears_within(SOON).as_deref(), Some("WATCHDOG=1\n"));
}
