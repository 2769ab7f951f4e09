//! A table outlives its server in a file, which is found, served again, listed and removed.

use crate::command::{alone, oneread};
use crate::served::{
    Served, doctor_on_server, ends, expect, json, patient, region_in, run, stderr, stdout, wait_for,
};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Root sees whose tables there are. What goes with `--all` is of the user who says so.
#[test]
fn all_regions_are_those_of_the_user() {
    if !rustix::process::getuid().is_root() {
        return eprintln!("skipped: only root sees others' region files");
    }
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let here = |arguments: &[&str]| {
        let mut command = oneread();
        command.env("ONEREAD_SHM", shm.path()).args(arguments);
        command.output().unwrap()
    };
    let [own, others] = [0, 4_711].map(|user| {
        let folder = shm.path().join(format!("oneread-{user}"));
        std::fs::create_dir(&folder).unwrap();
        let region = folder.join("table.region").display().to_string();
        let mut served = Served::start(&["--slots", "64", "--region", &region]);
        let _dir = served.kill();
        for file in std::fs::read_dir(&folder).unwrap() {
            std::os::unix::fs::chown(file.unwrap().path(), Some(user), None).unwrap();
        }
        region
    });
    let listed = stdout(&expect(here(&["regions", "--json"]), 0));
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(listed.len(), 2, "{listed:?}");
    // What is another user's is not opened: he could make it shorter meanwhile.
    let told = listed.iter().map(|one| (one["owner"].as_u64().unwrap(), one["keys"].as_u64()));
    assert_eq!(told.collect::<Vec<_>>(), [(0, Some(0)), (4_711, None)]);
    let refused = expect(here(&["regions", "--remove", &others]), 1);
    assert!(stderr(&refused).contains("stays: ") && stderr(&refused).contains("user 4711"), "{refused:?}");
    expect(here(&["regions", "--remove", "--all"]), 0);
    assert!(!Path::new(&own).exists() && Path::new(&others).exists());
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

/// A table is as old in the next server's time namespace as in the last one's, whose clock was days ahead: what was to end
/// ends, and nothing else.
#[test]
fn entries_end_in_another_time_namespace() {
    fn ahead() -> Command {
        let mut command = alone(Command::new("unshare"));
        command.args(["-r", "--time", "--boottime", "500000", "--monotonic", "500000"]);
        command.args(["--fork", "--kill-child"]);
        command
    }
    fn there() -> Command {
        let mut command = ahead();
        command.arg(env!("CARGO_BIN_EXE_oneread"));
        command
    }
    if !ahead().arg("true").output().is_ok_and(|out| out.status.success()) {
        assert!(std::env::var_os("ONEREAD_NO_SKIP").is_none(), "no time namespaces here");
        eprintln!("skipped: no time namespace can be made here (unshare --time)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let region = region_in(dir.path());
    let flags = ["--region", &*region, "--slots", "1024", "--life"];
    let mut dir = Some(dir);
    for (nth, begin) in [there as fn() -> Command, oneread, there].into_iter().enumerate() {
        let mut served = Served::start_by(begin(), dir.take().unwrap(), &flags);
        if nth == 0 {
            expect(served.run(&["put", "long", "v", "--ttl", "1h"]), 0);
        }
        // What the last one has left ends here, and no sooner than it was to.
        if nth > 0 {
            wait_for("an end", || (served.run(&["get", "short"]).status.code() == Some(1)).then_some(()));
        }
        assert_eq!(stdout(&expect(served.run(&["get", "long"]), 0)), "v\n", "server {nth}");
        let dump = stdout(&expect(served.run(&["dump", "--json"]), 0));
        assert!(dump.contains("ends_ms"), "{dump}");
        expect(served.run(&["put", "short", "v", "--ttl", "1s"]), 0);
        expect(served.run(&["stop"]), 0);
        served.child.wait().unwrap();
        dir = Some(std::mem::replace(&mut served.dir, tempfile::tempdir().unwrap()));
    }
}
