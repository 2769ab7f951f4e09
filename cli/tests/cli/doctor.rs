//! Tests of `oneread doctor` from outside: its exit status, its report, and a device that it may
//! not open.

use crate::command::{alone, oneread};
use oneread::{Address, Config, Server, ServerConfig, TableSize, TcpAddress, Token};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

fn doctor(arguments: &[&str]) -> Output {
    doctor_at("shm:/nonexistent/sock", arguments)
}

fn doctor_at(at: &str, arguments: &[&str]) -> Output {
    oneread().arg("doctor").args(arguments).args(["--at", at]).output().unwrap()
}

#[track_caller]
fn expect(output: Output, status: i32) -> String {
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!((output.status.code(), err.as_str()), (Some(status), ""), "{out}");
    out
}

#[track_caller]
fn json(output: Output, status: i32) -> Value {
    serde_json::from_str(&expect(output, status)).unwrap()
}

fn finding<'a>(report: &'a Value, what: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["what"] == what).unwrap_or_else(|| panic!("{what}: {report:#}"))
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A device in software with one GID.
fn soft_roce(root: &Path) {
    let device = "sys/class/infiniband/rxe0";
    for (path, text) in [
        ("node_type", "1: CA\n"),
        ("parent", "eth0\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/phys_state", "5: LinkUp\n"),
        ("ports/1/link_layer", "Ethernet\n"),
        ("ports/1/rate", "2.5 Gb/sec (1X SDR)\n"),
        ("ports/1/gids/7", "::ffff:192.168.77.1\n"),
        ("ports/1/gid_attrs/types/7", "RoCE v2\n"),
        ("ports/1/gid_attrs/ndevs/7", "eth0\n"),
    ] {
        write(root, &format!("{device}/{path}"), text);
    }
    write(root, "sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
    write(root, "dev/infiniband/uverbs0", "");
    write(root, "usr/lib64/libibverbs.so.1", "");
}

/// On any machine, shm works, and each fault comes with a remedy.
#[test]
fn this_machine() {
    let report = json(doctor(&["--json"]), 0);
    assert_eq!(report["fabrics"]["shm"]["works"], true, "{report:#}");
    for finding in report["findings"].as_array().unwrap() {
        if ["warning", "problem"].contains(&finding["level"].as_str().unwrap()) {
            let mend = ["advice", "command"].iter().any(|mend| finding[mend].is_string());
            let doubtful_gid = finding["what"].as_str().unwrap().starts_with("GID of");
            assert!(mend || doubtful_gid, "no mend: {finding}");
        }
    }
    let interfaces = report["facts"]["interfaces"].as_array().unwrap();
    let mut addresses = interfaces.iter().flat_map(|interface| interface["addresses"].as_array().unwrap());
    assert!(addresses.any(|at| at["address"] == "127.0.0.1" && at["prefix"] == 8), "{interfaces:?}");
    let text = expect(doctor(&[]), 0);
    assert!(text.starts_with("shm: yes, "), "{text}");
    assert!(text.contains("\nverbs: ") && text.contains("\ntcp: yes, "), "{text}");
    expect(doctor(&["--fabric", "shm"]), 0);
    expect(doctor(&["--fabric", "tcp"]), 0);
    let verbs = report["fabrics"]["verbs"]["works"].as_bool().unwrap();
    expect(doctor(&["--fabric", "verbs"]), if verbs { 0 } else { 1 });
}

/// Whether a server over TCP lets this client in, and where it is to be started.
#[test]
fn servers_over_tcp() {
    let table = Config::new().size(TableSize::Keys(10));
    let config = ServerConfig::new(Address::Tcp(TcpAddress::new("127.0.0.1", 0)), table);
    let server = Server::start(config.token(Token::new("a token"))).unwrap();
    let at = server.address().to_string();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    crate::served::write_secret(&token, "a token\n");
    let found = |args: &[&str]| {
        let report = json(doctor_at(&at, &[&["--json"], args].concat()), 0);
        let finding = report["findings"].as_array().unwrap()[0].clone();
        assert_eq!(finding["what"], "server");
        (finding["level"].as_str().unwrap().to_string(), finding.to_string())
    };
    let (level, told) = found(&[]);
    assert!(level == "warning" && told.contains("token"), "{told}");
    let (level, told) = found(&["--token-file", token.to_str().unwrap()]);
    assert!(level == "ok" && told.contains(&at), "{told}");
    server.stop();
    let (level, told) = found(&[]);
    assert!(level == "warning" && told.contains(&format!("oneread serve --listen {at}")), "{told}");
}

#[test]
fn nothing_there() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().to_str().unwrap();
    let text = expect(doctor(&["--root", root]), 0);
    let mut left = text.as_str();
    for part in [
        "shm: yes, ",
        "\ntcp: yes, ",
        "\nverbs: no, because",
        "none at shm:/nonexistent/sock",
        "RDMA device",
        "What to do, the most pressing first:",
        "/dev/shm (",
        "\nFor RDMA, if you want it:",
        "RDMA device (problem)",
    ] {
        // In this order: what every machine has comes first.
        let Some((_, rest)) = left.split_once(part) else {
            panic!("{part:?} is missing in {left}, of {text}")
        };
        left = rest;
    }
    assert!(!text.contains("GIDs of"), "{text}");
    let asked = expect(doctor(&["--root", root, "--fabric", "verbs"]), 1);
    assert!(!asked.contains("For RDMA, if"), "who asks for it is told of it first: {asked}");
    let report = json(doctor(&["--root", root, "--fabric", "verbs", "--json"]), 1);
    assert_eq!(report["fabrics"]["verbs"]["works"], false);
    assert_eq!(report["facts"]["devices"], serde_json::json!([]));
}

#[test]
fn gids_ranked() {
    let root = tempfile::tempdir().unwrap();
    soft_roce(root.path());
    let root = root.path().to_str().unwrap();
    let text = expect(doctor(&["--root", root, "--peer", "192.168.77.2"]), 0);
    assert!(text.contains("GIDs of rxe0 port 1 towards 192.168.77.2, the best first:"), "{text}");
    let report = json(doctor(&["--root", root, "--json"]), 0);
    let port = &report["ports"][0];
    assert_eq!((&port["device"], &port["port"], &port["index"]), (&"rxe0".into(), &1.into(), &7.into()));
    assert_eq!(port["why"], "chose index 7: RoCE v2, IPv4");
    assert_eq!(port["gids"][0]["gid"], "::ffff:192.168.77.1");
    assert_eq!(finding(&report, "permission for rxe0")["level"], "ok");
    let usage = doctor(&["--peer", "somewhere"]);
    assert_eq!(usage.status.code(), Some(2));
}

/// Permission to read a device file is not enough. The kernel itself refuses here, because a test
/// that runs as root may open anything.
#[test]
fn no_permission() {
    const NOBODY: u32 = 65534;
    let root = tempfile::tempdir().unwrap();
    soft_roce(root.path());
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(root.path().join("dev/infiniband/uverbs0"), Permissions::from_mode(0o444)).unwrap();
    // Other users may have no access to the folder where the command was built. Another process copies it: a
    // child that another test starts meanwhile would inherit a file that is open for writing, and such a
    // program cannot be started ("text file busy").
    let program = root.path().join("oneread");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_oneread")).arg(&program).status().unwrap().success());
    let mut command = alone(Command::new(&program));
    command.args(["doctor", "--json", "--at", "shm:/nonexistent/sock", "--root"]).arg(root.path());
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    let report = json(command.output().unwrap(), 0);
    let refused = finding(&report, "permission for rxe0");
    assert_eq!(refused["level"], "problem", "{refused}");
    assert!(refused["found"].as_str().unwrap().contains("may not read and write /dev/infiniband/uverbs0"));
    assert!(refused["command"].as_str().unwrap().ends_with("chmod a+rw /dev/infiniband/uverbs0"));
    assert_eq!(report["fabrics"]["verbs"]["works"], false);
}
