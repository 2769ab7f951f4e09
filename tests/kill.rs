//! A real server is killed between any two stores of a change, and another takes its region over.
//!
//! `oneread bench kill` kills servers at random instants under load. Here a switch of the feature
//! `faults` kills the server after so many stores. The simulator tries more layouts and more kinds of
//! changes (`tests/adversary/every.rs`), but no process ends there.
//!
//! A program of its own: only builds with that feature have these tests.

#![cfg(feature = "faults")]

mod common;

use common::*;
use oneread::internals::faults::kill_after_stores;
use oneread::internals::region::{Backing, Region};
use oneread::{
    Client, Config, PutMode, ServerConfig, StartMode, TableSize,
    embedded::{Clock, Index},
    layout::Layout,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Serves the region file. Each line of input is a number of stores after which to be killed. Stops at
/// the end of the input. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn killed_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let config = ServerConfig::new(address.parse().unwrap(), Config::default())
        .backing(Backing::File(told("ONEREAD_TEST_FILE").unwrap().into()))
        .start(StartMode::Open);
    let _server = start(config);
    for line in std::io::stdin().lines() {
        kill_after_stores(line.unwrap().parse().unwrap());
        println!("armed");
    }
}

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

/// A table without a free slot in some windows, in a file; and a new key whose put moves another.
fn prepared(file: &Path, layout: Layout) -> (Keys, Vec<u8>) {
    let config = Config::new().layout(layout).size(TableSize::Slots(48)).key_max(16).value_max(32);
    for seed in 0.. {
        let config = config.seeds(oneread::layout::Seeds::from_number(seed));
        let mut keys = Keys::new();
        for n in 0..48 {
            let clock = Clock::manual();
            let geometry = config.geometry().unwrap();
            let region = Region::private(geometry.region_bytes());
            let index = Index::create(region, geometry, clock).unwrap();
            keys.iter().for_each(|(key, value)| assert!(index.put(key, value, PutMode::Insert).is_ok()));
            let before = index.counts().moves;
            let newcomer = key(n, 16);
            if index.put(&newcomer, b"", PutMode::Insert).is_err() {
                break;
            }
            if index.counts().moves == before + 1 && before == 0 && keys.len() > 20 {
                let _ = std::fs::remove_file(file);
                let geometry = config.geometry().unwrap();
                let region = Region::create(&Backing::File(file.into()), geometry.region_bytes()).unwrap();
                let index = Index::create(region, geometry, Clock::System).unwrap();
                keys.iter().for_each(|(key, value)| assert!(index.put(key, value, PutMode::Insert).is_ok()));
                return (keys, newcomer);
            }
            if index.counts().moves > 0 {
                break;
            }
            keys.insert(newcomer, value(n.into(), 20));
        }
    }
    unreachable!("some seed makes such a table")
}

/// A change: made by a client, with what the keys are after it.
struct Change<'a> {
    name: &'a str,
    /// Made before the server is to be killed.
    first: Option<(&'a [u8], Option<&'a [u8]>)>,
    /// What is made then: nothing, for traces that are taken away.
    then: Option<(&'a [u8], Option<&'a [u8]>)>,
    /// Whether the server is then to stop.
    stops: bool,
}

fn ask(client: &mut Client, (key, value): (&[u8], Option<&[u8]>)) -> bool {
    match value {
        Some(value) => client.put(key, value).is_ok(),
        None => client.remove(key).is_ok(),
    }
}

fn note(keys: &mut Keys, (key, value): (&[u8], Option<&[u8]>)) {
    match value {
        Some(value) => drop(keys.insert(key.into(), value.into())),
        None => drop(keys.remove(key)),
    }
}

/// A server is killed before each store of a put, an update, a remove, a put that moves a key, of
/// taking its traces away, and of a stop. The next server has every key with its value. Only the
/// change that was under way may have been made or not.
#[test]
fn killed_between_any_two_stores() {
    for layout in ["windowed:8", "farm"] {
        let place = Place::new();
        let (good, file) = (place.dir.path().join("good"), place.dir.path().join("region"));
        let (keys, newcomer) = prepared(&good, layout.parse().unwrap());
        let there = keys.keys().nth(7).unwrap().clone();
        let changes = [
            Change {
                name: "update",
                first: None,
                then: Some((&there, Some(b"another value"))),
                stops: false,
            },
            Change { name: "remove", first: None, then: Some((&there, None)), stops: false },
            Change {
                name: "put",
                first: Some((&there, None)),
                then: Some((&there, Some(b"again"))),
                stops: false,
            },
            Change { name: "move", first: None, then: Some((&newcomer, Some(b"new"))), stops: false },
            Change { name: "reaping", first: Some((&newcomer, Some(b"new"))), then: None, stops: false },
            Change { name: "stop", first: Some((&newcomer, Some(b"new"))), then: None, stops: true },
        ];
        for change in changes {
            let (mut torn, mut kills) = (0, 0);
            let (mut stores, mut late) = (0, 0);
            loop {
                assert!(stores < 500 && late < 100, "{}: never done", change.name);
                std::fs::copy(&good, &file).unwrap();
                let _ = std::fs::remove_file(place.address.socket().unwrap());
                let mut process = Process::start(
                    "killed_child",
                    &[
                        ("ONEREAD_TEST_ADDRESS", place.address.to_string()),
                        ("ONEREAD_TEST_FILE", file.display().to_string()),
                    ],
                );
                wait_for("the server", || UnixStream::connect(place.address.socket().unwrap()).ok());
                let mut client = Client::connect_with(&place.address, patient()).unwrap();
                let mut before = keys.clone();
                if let Some(first) = change.first {
                    assert!(ask(&mut client, first));
                    note(&mut before, first);
                }
                let mut input = process.0.stdin.take().unwrap();
                writeln!(input, "{stores}").unwrap();
                let mut output = BufReader::new(process.0.stdout.take().unwrap()).lines();
                assert!(output.any(|line| line.unwrap().ends_with("armed")));
                let mut after = before.clone();
                let mut is_done = false;
                if change.stops {
                    drop(client);
                    drop(input);
                    is_done = process.0.wait().unwrap().success();
                } else if let Some(then) = change.then {
                    is_done = ask(&mut client, then);
                    note(&mut after, then);
                } else {
                    std::thread::sleep(Duration::from_millis(40));
                    is_done |= process.0.try_wait().unwrap().is_none();
                }
                process.kill();
                kills += 1;
                let (index, found) = Index::open(Region::open(&file).unwrap(), Clock::System).unwrap();
                torn += found.torn;
                assert_eq!(found.handed_over, change.stops && is_done, "{} in {layout}", change.name);
                let mut got = Vec::new();
                let mut now = Keys::new();
                for key in before.keys().chain(after.keys()) {
                    if index.reader().get_into(key, &mut got).unwrap() {
                        now.insert(key.clone(), got.clone());
                    }
                }
                let is_right = now == after || now == before && !is_done;
                assert!(is_right, "{} in {layout}, killed after {stores} stores: {found:?}", change.name);
                assert_eq!(index.len(), now.len() as u64);
                if is_done && change.then.is_none() && !change.stops && stores < 10 {
                    // The traces were taken away before the server was to be killed.
                    late += 1;
                    continue;
                }
                if is_done {
                    break;
                }
                stores += 1;
            }
            println!("{layout}: {}: {kills} kills, {torn} slots half written", change.name);
            // A ghost is taken away by three stores, between which the slot is half written.
            assert!(
                if change.stops { kills > 5 } else { kills > 8 && torn > 1 },
                "{layout}: {}: {kills} kills, {torn} torn",
                change.name
            );
        }
    }
}
