//! Tests of `oneread plan` from outside.

use crate::command::oneread;
use serde_json::Value;
use std::process::Output;

fn plan(arguments: &[&str]) -> Output {
    let mut command = oneread();
    command.arg("plan").args(arguments);
    if !arguments.contains(&"--sample-slots") {
        command.args(["--sample-slots", "4096"]);
    }
    command.output().unwrap()
}

#[track_caller]
fn text(arguments: &[&str]) -> String {
    let output = plan(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let text = text(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn best(planned: &Value) -> &str {
    let best = planned["choice"]["best"].as_u64().unwrap() as usize;
    planned["predictions"][best]["name"].as_str().unwrap()
}

/// The example: a row for each design, one of them marked, and three sentences.
#[test]
fn designs_stand_side_by_side() {
    let asked = ["--keys", "1e9", "--key", "16", "--value", "100", "--get", "0.95", "--zipf", "0.99"];
    let told = text(&[&asked[..], &["--nic", "cx6-200g", "--servers", "4", "--clients", "64"]].concat());
    for name in ["windowed:8", "cluster", "Pilaf", "RACE", "HERD", "eRPC", "local map"] {
        assert!(told.contains(name), "no {name}:\n{told}");
    }
    assert_eq!(told.matches('►').count(), 1, "{told}");
    let table = told.lines().filter(|line| line.starts_with(['│', '┌', '╞', '└']));
    assert!(table.clone().count() > 15 && { table }.all(|line| line.chars().count() <= 80), "{told}");
    assert!(told.contains("not possible: local map"), "{told}");
}

/// The best choice follows the question: RPC, one-sided, or a copy.
#[test]
fn the_choice_follows_the_question() {
    // Little data, hardly a PUT: each machine keeps a copy.
    let copy = json(&["--keys", "1e6", "--get", "0.999"]);
    assert_eq!(best(&copy), "local map");
    assert!(copy["choice"]["reasons"][0].as_str().unwrap().starts_with("Use a local map"));
    // Servers with half a core to spare: clients have to look themselves.
    let one_sided = json(&["--server-cores", "0.5", "--clients", "512", "--get", "0.99"]);
    let number = one_sided["choice"]["best"].as_u64().unwrap() as usize;
    assert_ne!(one_sided["predictions"][number]["side"], "two-sided", "{one_sided}");
    // Many cores, long values: a window costs eight of them on the wire.
    let rpc = json(&["--value", "1000", "--server-cores", "32", "--clients", "512"]);
    assert_eq!(best(&rpc), "HERD");
    assert!(rpc["choice"]["reasons"][0].as_str().unwrap().starts_with("Use RPC"));
    // Too many keys for any memory.
    let told = text(&["--keys", "1e13"]);
    assert!(told.contains("None of these is possible here"), "{told}");
}

/// What hints buy stands below each layout: an eighth of the bytes, for memory at each client. None
/// where there is no network.
#[test]
fn hints_stand_below_their_layout() {
    let told = text(&["--design", "windowed:8", "--design", "list"]);
    let rows: Vec<&str> =
        told.lines().filter(|line| line.contains("windowed:8  ") || line.contains("with hints")).collect();
    assert!(rows.len() == 2 && rows[1].contains("with hints"), "{told}");
    let planned = json(&["--design", "windowed:8", "--zipf", "0", "--get", "1", "--clients", "512"]);
    let [plain, hinted] = &planned["predictions"].as_array().unwrap()[..] else { panic!("{planned}") };
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap();
    assert_eq!(hinted["name"], "windowed:8, hints");
    assert!(number(plain, "fetched_bytes") > 512.0 && number(hinted, "fetched_bytes") < 80.0, "{planned}");
    assert!(number(hinted, "ops_per_s") > 2.0 * number(plain, "ops_per_s"), "{planned}");
    // A byte for each slot, of which nine tenths are taken.
    assert!((number(hinted, "client_bytes") / 1e8 - 1.11).abs() < 0.01, "{planned}");
    let shm = json(&["--design", "windowed:8", "--nic", "shm"]);
    assert_eq!(shm["predictions"].as_array().unwrap().len(), 1);
}

/// Tables that grow: the samples are of growth, PUTs cost more, and the table takes more memory.
#[test]
fn growth_has_its_costs() {
    let asked =
        ["--design", "windowed:8", "--zipf", "0", "--get", "0.5", "--inserts", "1", "--clients", "512"];
    let (still, grows) = (json(&asked), json(&[&asked[..], &["--growing"]].concat()));
    let number = |of: &Value, name: &str| of["predictions"][0][name].as_f64().unwrap();
    assert!(number(&grows, "server_bytes") > 1.1 * number(&still, "server_bytes"), "{grows}");
    let put = |of: &Value| of["designs"][0]["put"]["server_lines"].as_f64().unwrap();
    assert!(put(&grows) > put(&still) && grows["designs"][0]["pause"]["ns"] == 1e6, "{grows}");
    assert!(grows["samples"][0]["split_moves"].as_f64().unwrap() > 0.4, "{grows}");
    assert_eq!(
        (grows["workload"]["grows"].as_bool(), grows["predictions"].as_array().unwrap().len()),
        (Some(true), 2)
    );
    assert!(
        text(&[&asked[..], &["--growing", "--simulate", "20000"]].concat())
            .contains("growing by 100 % of the PUTs")
    );
    let refused = |arguments: &[&str]| String::from_utf8(plan(arguments).stderr).unwrap();
    assert!(refused(&["--growing"]).contains("--inserts"));
    assert!(refused(&["--growing", "--inserts", "0"]).contains("inserts by which tables grow: 0"));
    assert!(refused(&["--growing", "--inserts", "1", "--get", "1"]).contains("GETs beside growth: 1"));
}

/// A cluster's memory, load and times, and what is too much of it. Nothing of that is told otherwise.
#[test]
fn clusters_are_planned() {
    let plan_of =
        |arguments: &[&str]| plan_whole(&[&["--keys", "1e8", "--value", "100"], arguments].concat());
    let out = plan_of(&["--nodes", "10", "--clients", "100", "--json"]);
    let ten: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let of = |name: &str| ten["cluster"][name].as_f64().unwrap_or_else(|| panic!("{name}: {ten}"));
    assert_eq!((of("etcd_writes_per_s"), of("etcd_messages_per_s")), (40.0, 4_400.0), "{ten}");
    assert_eq!((of("failover_s_max"), of("client_connections"), of("node_connections")), (3.5, 21.0, 219.0));
    assert_eq!((of("entries_per_shard"), of("node_copies_mean")), (1e8 / 64.0, 12.8));
    assert!(of("node_bytes_one_lost") > of("node_bytes") && of("node_bytes") > 2e7 * 116.0, "{ten}");
    assert!(ten["cluster"]["shard_copy_s"].is_null() && ten["cluster"]["etcd_is_overloaded"] == false);
    assert_eq!(ten["workload"]["copies"], 2);

    let many = plan_of(&["--nodes", "100", "--clients", "10000", "--shards", "1024"]);
    for told in ["4,040,000 /s", "etcd is asked for too much", "Have a TTL of 89 s", "4,096 connections"] {
        assert!(many.contains(told), "no {told}: {many}");
    }
    let longer = plan_of(&["--nodes", "100", "--clients", "100", "--ttl", "20s", "--copy-rate", "100MB"]);
    for told in ["8,000 /s", "26.0 s", "to copy a shard"] {
        assert!(longer.contains(told), "no {told}: {longer}");
    }
    assert!(!longer.contains("too much"), "{longer}");

    let refused = |arguments: &[&str]| {
        let output = oneread().arg("plan").args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--copies", "3"]).contains("--nodes"));
    assert!(refused(&["--nodes", "3", "--servers", "2"]).contains("cannot be used with"));
    assert!(refused(&["--nodes", "3", "--shards", "5000"]).contains("1 to 1,024"));
    assert!(refused(&["--nodes", "0"]).contains("nodes: 0 is not within"));
}

/// `plan` without options of its samples.
#[track_caller]
fn plan_whole(arguments: &[&str]) -> String {
    let output = oneread().arg("plan").args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Layouts that cannot hold the values are left out by name; the others remain.
#[test]
fn what_does_not_fit_is_left_out() {
    let told = text(&["--keys", "1e6", "--value", "100000", "--design", "windowed:8", "--design", "HERD"]);
    assert!(told.contains("not possible: windowed:8") && told.contains("► HERD"), "{told}");
}

/// Whatever is wrong is said in one line, with what is known.
#[test]
fn bad_input_is_refused() {
    let refused = |arguments: &[&str]| {
        let output = plan(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--keys", "0"]).contains("keys: 0 is not within 1"));
    assert!(refused(&["--keys", "1.5"]).contains("a whole number"));
    assert!(refused(&["--get", "nan"]).contains("the share of GETs: NaN"));
    assert!(refused(&["--zipf", "9"]).contains("zipf: 9 is not within 0 to 2"));
    assert!(refused(&["--nic", "cx9"]).contains("there are: cx6-200g"));
    assert!(refused(&["--nic", "/nowhere/mine.toml"]).contains("/nowhere/mine.toml"));
    assert!(refused(&["--design", "nothing"]).contains("there are: Pilaf"));
    assert!(refused(&["--server-cores", "0"]).contains("--server-cores 0 is not within"));
    assert!(refused(&["--load", "200"]).contains("load: 2 is not within"));
    assert!(refused(&["--sample-slots", "1e12"]).contains("sample slots"));
}

/// A printed profile is one that can be changed and given back.
#[test]
fn profiles_go_round() {
    let shown = text(&["--show-profile", "cx6-200g"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    let path = path.to_str().unwrap();
    std::fs::write(path, shown.replace("wire_gbit_per_s = { value = 200", "wire_gbit_per_s = { value = 20"))
        .unwrap();
    let asked = |nic| json(&["--design", "windowed:8", "--clients", "1000", "--nic", nic]);
    let rate = |planned: &Value| planned["predictions"][0]["ops_per_s"].as_f64().unwrap();
    let (fast, slow) = (asked("cx6-200g"), asked(path));
    assert!((rate(&slow) / rate(&fast) - 0.1).abs() < 0.01, "{} {}", rate(&slow), rate(&fast));
    std::fs::write(path, shown.replace("mtu", "mtv")).unwrap();
    let output = plan(&["--nic", path]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("mtv") && told.contains(path), "{told}");
}

/// The published figures are told with the model's.
#[test]
fn published_figures_are_told() {
    let told = text(&["--published"]);
    assert!(told.contains("FaRM, look-ups") && told.contains("167 M/s") && told.contains("+11 %"), "{told}");
    let held: Value = serde_json::from_str(&text(&["--published", "--json"])).unwrap();
    assert!(held.as_array().unwrap().len() >= 10);
}

/// A run has tails; the same seed gives the same ones.
#[test]
fn runs_have_tails() {
    let asked = ["--simulate", "20000", "--zipf", "0", "--design", "windowed:8", "--design", "eRPC"];
    let run = || json(&asked)["simulated"].clone();
    let runs = run();
    assert_eq!(runs, run());
    // The two, and the one with hints.
    assert_eq!(runs.as_array().unwrap().len(), 3);
    for run in runs.as_array().unwrap() {
        let number = |name: &str| run[name].as_f64().unwrap();
        assert!(number("p50_s") <= number("p99_s") && number("p99_s") <= number("p999_s"), "{run}");
        assert!((number("ops_per_s") / number("laws_ops_per_s") - 1.0).abs() < 0.25, "{run}");
    }
    assert!(text(&asked).contains("p99.9"));
    let refused = plan(&["--simulate", "1e5", "--clients", "20000", "--design", "HERD"]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("clients of a simulation: 20000"));
}

/// The page is one file that needs no other, with a picture of each kind, and names on every line.
#[test]
fn the_page_stands_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan.html");
    text(&["--design", "windowed:8", "--design", "HERD", "--depth", "1", "--plot", path.to_str().unwrap()]);
    let page = std::fs::read_to_string(path).unwrap();
    assert_eq!(page.matches("<svg").count(), 2 + 1 + 2);
    for part in ["server wire out", "binds", "clients", "asked for", "p99.9", "windowed:8", "HERD"] {
        assert!(page.contains(part), "no {part}");
    }
    assert!(!page.contains("NaN") && !page.contains("<script") && !page.contains("src="));
}

/// This machine's own profile can be used, and the model's GETs stand beside real ones.
#[test]
fn this_machine_is_a_profile() {
    let told = text(&["--calibrate"]);
    assert!(told.contains("1 client(s): ") && told.contains("M/s measured"), "{told}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    std::fs::write(&path, told).unwrap();
    let path = path.to_str().unwrap();
    let planned =
        json(&["--nic", path, "--design", "windowed:8", "--clients", "2", "--keys", "1e6", "--get", "1"]);
    assert_eq!(planned["profile"]["name"], "this-machine");
    let bounds = planned["predictions"][0]["bounds"].as_array().unwrap().clone();
    // There is no NIC, so none binds.
    assert!(
        bounds
            .iter()
            .all(|bound| ["client-cpu", "server-memory"].contains(&bound["resource"].as_str().unwrap()))
    );
}

/// Each number that is given is the one that is reckoned with.
#[test]
fn every_number_reaches_the_model() {
    let given = [
        ("--keys", "keys", 5e6),
        ("--key", "key_bytes", 20.0),
        ("--value", "value_bytes", 40.0),
        ("--get", "gets", 0.75),
        ("--hits", "hits", 0.5),
        ("--inserts", "inserts", 0.25),
        ("--zipf", "zipf", 0.5),
        ("--servers", "servers", 3.0),
        ("--clients", "clients", 48.0),
        ("--per-machine", "clients_per_machine", 12.0),
        ("--depth", "depth", 4.0),
        ("--copy-gib", "copy_bytes", 0.5 * (1u64 << 30) as f64),
    ];
    let numbers = given.map(|(_, _, number)| number.to_string());
    let mut asked = vec!["--design", "windowed:8", "--copy-gib", "0.5"];
    for ((flag, _, _), number) in given.iter().zip(&numbers).take(given.len() - 1) {
        asked.extend([flag, &**number]);
    }
    let planned = json(&asked);
    for (flag, name, number) in given {
        assert_eq!(planned["workload"][name].as_f64(), Some(number), "{flag}");
    }
    let of = |name: &str| planned["samples"][0][name].clone();
    assert!(planned["samples"].as_array().unwrap().len() == 1, "{planned}");
    let loaded = json(&[&asked[..], &["--load", "50"]].concat());
    let (usual, half) =
        (of("load_true").as_f64().unwrap(), loaded["samples"][0]["load_true"].as_f64().unwrap());
    assert!(usual > 0.85 && (half - 0.5).abs() < 0.01, "{usual}, {half}");
    let cores = json(&[&asked[..], &["--server-cores", "2.5"]].concat());
    assert_eq!(cores["profile"]["host"]["cores"]["value"], 2.5);
    // Another seed is another run.
    let run = |seed| json(&["--design", "HERD", "--simulate", "5000", "--seed", seed])["simulated"].clone();
    assert_ne!(run("1"), run("2"));
    let refused = plan(&["--copy-gib=-1"]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("--copy-gib -1 is not within"));
}
