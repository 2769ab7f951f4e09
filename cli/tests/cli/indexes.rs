//! `serve --index`: tables for indexes of blocks.

use crate::served::{Served, expect, region_in, run, stderr};
use oneread::{Address, Client};
use oneread_prefix::{Digests, LocationIndex, PlacementIndex};

fn client(served: &Served) -> Client {
    Client::connect(&served.at.parse::<Address>().unwrap()).unwrap()
}

/// Each index opens the table that was made for it, and says of another one which flags make it. The next server takes the
/// table over as it is, and no other one.
#[test]
fn tables_of_indexes_are_served() {
    for (flags, holders, is_grouped) in [
        (&["--index", "placement"][..], 1_024, false),
        (&["--index", "grouped", "--holders", "96"], 96, true),
        (&["--index", "placement", "--holders", "4096", "--capacity", "3000"], 4_096, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let region = region_in(dir.path());
        let start = |dir| Served::start_in(dir, &[flags, &["--region", &region]].concat());
        let mut served = start(dir);
        let mut index = PlacementIndex::new(client(&served)).unwrap();
        assert_eq!((index.holders_max(), index.is_grouped()), (holders, is_grouped));
        let holder = index.holder("worker").unwrap();
        index.add(&holder, &Digests::numbers(&[1, 2, 3]), 0).unwrap();
        let refused = LocationIndex::new(client(&served)).unwrap_err().to_string();
        assert!(refused.contains("make one with `LocationIndex::config`"), "{refused}");
        let dir = served.kill();
        let at = served.at.clone();
        for other in [&["--index", "location"][..], &["--index", "placement", "--holders", "97"]] {
            let refused = expect(run(&[&["serve", "--at", &at, "--region", &region][..], other].concat()), 1);
            let why = stderr(&refused);
            assert!(why.contains("another table") || why.contains("is of other holders"), "{why}");
        }
        let again = start(dir);
        let mut index = PlacementIndex::new(client(&again)).unwrap();
        let mut found = Vec::new();
        assert_eq!(index.match_prefix(&Digests::numbers(&[1, 2, 3, 4]), &mut found).unwrap(), 3);
        assert_eq!(index.holder("worker").unwrap(), holder);
    }
    let served = Served::start(&["--index", "location", "--anonymous"]);
    let mut index = LocationIndex::new(client(&served)).unwrap();
    assert_eq!(index.endpoint_name(1).unwrap(), None);
    let refused = PlacementIndex::new(client(&served)).unwrap_err();
    let said =
        oneread::internals::words::said(oneread::internals::words::Door::Command, &refused.to_string());
    assert!(said.contains("make one with `oneread serve --index placement`"), "{said}");
}

/// What no index has is refused, with what to do.
#[test]
fn wrong_indexes_are_refused() {
    for (flags, status, why) in [
        (&["--index", "holders"][..], 2, "possible values: placement, grouped, location"),
        (&["--holders", "7"], 2, "--index"),
        (&["--index", "placement", "--value-max", "9"], 2, "cannot be used with"),
        (&["--index", "placement", "--holders", "0"], 1, "a table has 1 to 4096 holders"),
        (&["--index", "grouped", "--holders", "5000"], 1, "a table has 1 to 4096 holders"),
        (&["--index", "location", "--holders", "5"], 1, "leave --holders out"),
    ] {
        let refused = expect(run(&[&["serve", "--anonymous"][..], flags].concat()), status);
        assert!(stderr(&refused).contains(why), "{flags:?}: {}", stderr(&refused));
    }
}
