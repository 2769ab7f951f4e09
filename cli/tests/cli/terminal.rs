//! What is printed: it fits the terminal, names the cause and the remedy, and a shell completes what is typed.

use crate::command::{alone, oneread};
use crate::installed::has_etcd;
use crate::served::{
    SOON, Served, begin_on_a_terminal_with, doctor_on_server, expect, json, on_a_terminal, region_in, run,
    stderr, stdout, wait_for, without_escapes,
};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Whether this build has a subcommand. Only one with the laboratory has what measures and predicts.
fn is_built(subcommand: &str) -> bool {
    let is_of = |names: &[&str]| names.contains(&subcommand);
    (cfg!(feature = "lab") || !is_of(&["bench", "layouts", "plan"]))
        && (cfg!(feature = "man") || !is_of(&["man"]))
}

/// The help lists what this build has. For the rest it is told which build does.
#[test]
fn what_a_feature_brings_is_there_or_named() {
    let help = stdout(&expect(run(&["--help"]), 0));
    for command in ["bench", "layouts", "man", "plan", "serve"] {
        let is_listed = help.lines().any(|line| line.split_whitespace().next() == Some(command));
        assert_eq!(is_listed, is_built(command), "{help}");
        let refused = stderr(&expect(run(&[command, "--frobnicate"]), 2));
        assert_eq!(refused.contains("the cargo feature `"), !is_built(command), "{refused}");
    }
    let scraped = stderr(&expect(run(&["serve", "--metrics", "127.0.0.1:0", "--frobnicate"]), 2));
    assert_eq!(scraped.contains("the cargo feature `metrics`"), !cfg!(feature = "metrics"), "{scraped}");
    for example in ["oneread layouts", "oneread plan"] {
        assert_eq!(help.contains(example), is_built("layouts"), "{help}");
    }
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
        vec!["plan", "--nodes", "100", "--clients", "10000", "--copy-rate", "1GiB"],
        [&["top", "--once"][..], &at].concat(),
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
        "top",
        "inspect",
        "regions",
        "layouts",
        "plan",
        "bench",
        "demo",
        "doctor",
        "completions",
        "man",
    ] {
        all.push(vec![command, "--help"]);
    }
    all.retain(|arguments| is_built(arguments[0]));
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
        // Elvish and PowerShell complete no values.
        if ["bash", "zsh", "fish"].contains(&shell) {
            assert!(script.contains("bucketized"), "{shell}: {script}");
            assert!(script.contains("cx6-200g") || !is_built("plan"), "{shell}: {script}");
        }
    }
    if !is_built("man") {
        return;
    }
    let page = stdout(&expect(run(&["man"]), 0));
    assert!(page.contains(".TH oneread") && page.contains("EXAMPLES"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man1");
    expect(run(&["man", &folder.display().to_string()]), 0);
    let mut pages = vec![("oneread", "demo"), ("oneread-put", "if\\-value")];
    pages.extend(is_built("bench").then_some(("oneread-bench-rpc", "pairs")));
    for (name, flag) in pages {
        let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(flag), "{name}: {page}");
    }
}

/// Bash completes the names of layouts, profiles and designs, also behind a colon, at which it breaks words.
#[test]
fn bash_completes_names() {
    // In a file, as bash reads it: one argument of a program has 128 KiB at most.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), stdout(&expect(run(&["completions", "bash"]), 0))).unwrap();
    // As bash calls the function that is registered: with the command, the word, and the one before.
    let completed = |breaks: &str, words: &[&str]| {
        let call = r#"
            source "$1"; shift
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
        bash.args(["--norc", "-c", call, "bash"]).arg(file.path()).arg(breaks).args(words);
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
        if is_built(words[1]) && is_built(found[0]) {
            assert_eq!(completed(" :", words), found, "{words:?}");
        }
    }
    // Where a colon breaks no words, nothing is taken off.
    assert_eq!(completed(" ", &["oneread", "serve", "--layout", "windowed:1"]), ["windowed:16"]);
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
    if !cfg!(feature = "cluster") || !has_etcd() {
        assert!(out["cluster"].is_null(), "{out}");
        return;
    }
    let cluster = |name: &str| out["cluster"][name].as_f64().unwrap_or_else(|| panic!("{name}: {out}"));
    assert_eq!(["lost", "missed", "stale", "wrong", "failed"].map(cluster), [0.0; 5], "{out}");
    assert_eq!(["nodes", "shards", "ttl_ms"].map(cluster), [3.0, 64.0, 1000.0], "{out}");
    // Of three nodes one serves a third or more, and not all.
    assert!((22.0..64.0).contains(&cluster("shards_killed")), "{out}");
    // Each key was put once before the node was killed, and then some again.
    assert!(cluster("keys") > 4_000.0 && cluster("acknowledged") > cluster("keys"), "{out}");
    // A dead primary is missed for a TTL, less the time since its last beat.
    assert!(cluster("put_pause_ms") > 500.0 && cluster("gets") > 1_000.0, "{out}");
}

/// A demo that can have no etcd says what is missing, and is no failure.
#[test]
fn demo_does_without_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let demo = ["demo", "--rounds", "1", "--seconds", "0.05"];
    let out = expect(oneread().args(demo).env("PATH", folder.path()).output().unwrap(), 0);
    let told = match cfg!(feature = "cluster") {
        true => "A cluster that loses a node: needs etcd (apt-get install etcd-server).",
        false => "A cluster that loses a node: needs etcd, and a build with --features cluster.",
    };
    assert!(stdout(&out).lines().any(|line| line == told), "{out:?}");
}

/// Over TCP the server answers each GET: a killed one answers none, and the next one all.
#[test]
fn demo_asks_a_server_over_tcp() {
    let run = |more: &[&str]| {
        let demo = ["demo", "--fabric", "tcp", "--rounds", "1", "--seconds", "0.3"];
        expect(run(&[&demo[..], more].concat()), 0)
    };
    let out = json(&run(&["--json"]));
    let n = |name: &str| out[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {out}"));
    assert_eq!(
        (n("found"), n("missed"), n("wrong"), n("reads_per_get")),
        (n("keys"), 0.0, 0.0, 0.0),
        "{out}"
    );
    assert!(n("server_cpu_ms") > 0.0 && n("batched_gets_per_s") > 0.0 && n("updates") > 0.0, "{out}");
    assert!(out["get_while_killed"].as_str().unwrap().contains("no server at tcp://"), "{out}");
    assert!(out["put_while_stopped"].is_null(), "{out}");
    let story = stdout(&run(&[]));
    for told in ["each GET is a request", "killed (SIGKILL)", "takes the table over", "GETs by 64"] {
        assert!(story.contains(told), "{told}: {story}");
    }
    assert!(!story.contains("READ"), "there is none: {story}");
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
    ]
    .into_iter()
    .filter(|command| is_built(command))
    {
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

/// `oneread` alone is a prompt on a terminal, and prints its help on a pipe. The prompt runs commands as a shell does,
/// completes commands and keys, goes on after errors and Ctrl-C, and remembers what was typed.
#[test]
fn a_prompt_is_there_for_people() {
    let on_a_pipe = expect(run(&[]), 2);
    assert!(stderr(&on_a_pipe).contains("Usage: oneread"), "{on_a_pipe:?}");

    let served = Served::start(&["--anonymous", "--slots", "640"]);
    let state = served.dir.path().join("state");
    let environment = [("ONEREAD_AT", served.at.as_str()), ("XDG_STATE_HOME", state.to_str().unwrap())];
    let mut prompt = Prompt::open(&environment);
    prompt.answer("0 keys");
    // Each: what is typed, and what then is there before the next prompt.
    for (typed, shown) in [
        ("put 'user 1' \"a b\"\r", "inserted"),
        ("insert user:2 x\r", "inserted"),
        ("insert user:2 y\r", "exists"),
        ("get user:2\r", "\r\nx\r\n"),
        // The rest of the words is completed.
        ("ge\tuser:\t\r", "\r\nx\r\n"),
        ("get \"user 1\"\r", "a b"),
        ("keys user*\r", "user:2"),
        ("scan\r", "user:2"),
        ("add n 5\r", "\r\n5\r\n"),
        // Two lines at once: none is lost.
        ("add n 1\radd n 1\r", "\r\n7\r\n"),
        ("get none\r", "no key \"none\""),
        ("frobnicate\r", "unrecognized subcommand"),
        ("get 'a\r", "a quote"),
        ("remove user:2\r", "removed"),
        ("help\r", "Only here:"),
        // A line that is given up, and a command that is.
        ("get some\x03", "get some"),
        ("history\r", "insert user:2 y"),
    ] {
        prompt.type_in(typed);
        prompt.answer(shown);
    }
    prompt.type_in("watch\r");
    // It may have begun to follow after that put.
    wait_for("a change that is seen", || {
        expect(served.run(&["put", "new", "value"]), 0);
        prompt.shows("new").then_some(())
    });
    prompt.type_in("\x03");
    prompt.answer("^C");
    prompt.type_in(" get hidden\r");
    prompt.answer("no key \"hidden\"");
    prompt.type_in("\x04");
    assert!(prompt.ends().success());

    let kept = std::fs::read_to_string(state.join("oneread/history")).unwrap();
    assert!(kept.contains("get user:2\n") && !kept.contains("hidden"), "{kept}");
    let mut again = Prompt::open(&environment);
    again.answer("keys");
    // The line before the last.
    again.type_in("\x1b[A\x1b[A\r");
    again.answer("get user:2");
}

/// A prompt on a terminal of its own, and somebody who sits there.
struct Prompt {
    child: std::process::Child,
    terminal: std::fs::File,
    /// What the terminal has shown since it was looked at.
    shown: String,
    bytes: std::sync::mpsc::Receiver<Vec<u8>>,
}

impl Prompt {
    fn open(environment: &[(&str, &str)]) -> Prompt {
        use std::io::Read;
        let (child, terminal) = begin_on_a_terminal_with(&[], environment);
        let (sender, bytes) = std::sync::mpsc::channel();
        let mut side = terminal.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            // It ends with EIO when the command has.
            while let Ok(len @ 1..) = side.read(&mut some) {
                if sender.send(some[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Prompt { child, terminal, shown: String::new(), bytes }
    }

    fn type_in(&mut self, text: &str) {
        use std::io::Write;
        self.shown.clear();
        self.terminal.write_all(text.as_bytes()).unwrap();
    }

    /// Whether it shows this by now.
    fn shows(&mut self, text: &str) -> bool {
        self.shown.extend(self.bytes.try_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
        without_escapes(&self.shown).contains(text)
    }

    /// What it shows, this text among it, when it waits for the next line.
    #[track_caller]
    fn answer(&mut self, text: &str) -> String {
        let give_up = std::time::Instant::now() + SOON;
        loop {
            let has_text = self.shows(text);
            let plain = without_escapes(&self.shown);
            // The cursor is then set behind it.
            if has_text && plain.trim_end_matches('\r').ends_with("oneread> ") {
                return plain;
            }
            assert!(std::time::Instant::now() < give_up, "no {text:?} in {plain:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn ends(&mut self) -> std::process::ExitStatus {
        wait_for("the end of the prompt", || self.child.try_wait().unwrap())
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
