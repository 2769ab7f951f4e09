//! Other users are let in by name or number, and nobody else.

use crate::command::{alone, oneread};
use crate::served::{Served, expect, run, stderr};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Users are given by name or number.
#[test]
fn users_have_names() {
    let served =
        Served::start(&["--anonymous", "--slots", "64", "--allow-uid", "root", "--allow-read-uid", "7"]);
    expect(served.run(&["put", "--server-user", "root", "k", "v"]), 0);
    let out = expect(run(&["serve", "--allow-uid", "nobody at all"]), 2);
    assert!(stderr(&out).contains("there is no such user"), "{out:?}");
    // What the kernel means nobody by.
    for option in ["--allow-uid", "--allow-read-uid"] {
        let out = expect(run(&["serve", option, "4294967295"]), 2);
        assert!(stderr(&out).contains("this number is no user's"), "{out:?}");
    }
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
