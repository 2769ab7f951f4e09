//! The index of locations, beside a map that does the same.

use crate::scene::Scene;
use oneread::error::{ConnectError, MutateError, PutError};
use oneread::{Address, Client, Config, Evict, OwnerOptions, PutOptions, Server, ServerConfig, TableSize};
use oneread_prefix::{DigestError, Digests, Found, Key, Location, LocationIndex, PrefixError, Search};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
/// Blocks of the model's one prompt.
const BLOCKS: usize = 200;

fn prompt() -> Vec<Key> {
    (0..BLOCKS as u128)
        .map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes())
        .collect()
}

fn at(n: u64) -> Location {
    Location { endpoint: n as u32 % 5, tier: n as u8, address: n << 20, length: n as u32 }
}

fn served(size: TableSize, evict: Option<Evict>) -> Scene<LocationIndex> {
    Scene::new(LocationIndex::new, LocationIndex::config(size), evict)
}

/// An owner's handle. While its entries of before are being removed, the number is not given.
fn owner(index: &LocationIndex, number: u16) -> LocationIndex {
    let begun = Instant::now();
    loop {
        match index.as_owner(OwnerOptions::new(number).absent_for(SOON)) {
            Ok(index) => return index,
            Err(PrefixError::Connect(why))
                if matches!(*why, ConnectError::Owner { .. }) && begun.elapsed() < SOON =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// By a handle: 0 is nobody's, 1 and 2 are owners'.
    Put {
        by: usize,
        first: usize,
        blocks: usize,
        place: u64,
    },
    Remove {
        first: usize,
        blocks: usize,
        place: u64,
    },
    RemoveOwner {
        owner: usize,
    },
    Locate,
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..BLOCKS, 1..60usize, 0..4u64);
    prop_oneof![
        4 => (0..3usize, range.clone()).prop_map(|(by, (first, blocks, place))| Op::Put {
            by, first, blocks: blocks.min(BLOCKS - first), place
        }),
        2 => range.prop_map(|(first, blocks, place)| Op::Remove {
            first, blocks: blocks.min(BLOCKS - first), place
        }),
        1 => (1..3usize).prop_map(|owner| Op::RemoveOwner { owner }),
        3 => Just(Op::Locate),
    ]
}

/// Asks for everything in every way, and compares it with the model: location and owner of each block.
fn compare(index: &mut LocationIndex, prompt: &[Key], model: &HashMap<usize, (Location, u16)>) -> Vec<Found> {
    let (digests, mut found) = (Digests::from(prompt), vec![Found::default(); prompt.len()]);
    assert_eq!(index.locate_many(&digests, &mut found).unwrap(), model.len());
    for (n, found) in found.iter().enumerate() {
        let told = found.location().map(|location| (location, found.owner()));
        assert_eq!(told, model.get(&n).copied(), "block {n}");
    }
    let longest = (0..=prompt.len()).take_while(|&n| n == 0 || model.contains_key(&(n - 1))).last().unwrap();
    assert_eq!(index.longest_prefix(&digests, Search::Exact).unwrap(), longest);
    let trailing = |wanted: usize| {
        (0..=prompt.len()).rev().find(|&n| (n.saturating_sub(wanted)..n).all(|n| model.contains_key(&n)))
    };
    for wanted in [1, 3, 20] {
        assert_eq!(
            index.longest_prefix(&digests, Search::Trailing(wanted)).unwrap(),
            trailing(wanted).unwrap()
        );
    }
    let closed = index.longest_prefix(&digests, Search::PrefixClosed).unwrap();
    assert!(closed == 0 || model.contains_key(&(closed - 1)), "{closed}");
    assert!(!model.contains_key(&closed), "{closed}");
    if model.len() == longest {
        assert_eq!(closed, longest, "it is closed");
    }
    let mut prefix = vec![found[0]; prompt.len()];
    assert_eq!(index.locate_prefix(&digests, &mut prefix).unwrap(), longest);
    assert_eq!(prefix[..longest], found[..longest]);
    assert!(prefix[longest..].iter().all(|found| *found == Found::default()));
    let mut present = Vec::new();
    index.contains_many(&digests, &mut present).unwrap();
    assert!((0..prompt.len()).all(|n| (present[n / 64] >> (n % 64) & 1 == 1) == model.contains_key(&n)));
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Puts, removals and ends of owners by several handles: every lookup of another client tells what the model has,
    /// and what was found before is the same exactly where nothing has changed.
    #[test]
    fn it_does_what_a_map_does(ops in vec(op(), 1..40)) {
        let scene = served(TableSize::Keys(2_000), None);
        let (mut nobody, mut reader, prompt) = (scene.index(), scene.index(), prompt());
        let mut owners = [1, 2].map(|number| owner(&nobody, number));
        let mut model: HashMap<usize, (Location, u16)> = HashMap::new();
        let (mut before, mut changed) = (compare(&mut reader, &prompt, &model), vec![false; BLOCKS]);
        for op in ops {
            match op {
                Op::Put { by, first, blocks, place } => {
                    let digests = Digests::from(&prompt[first..first + blocks]);
                    let locations: Vec<Location> = (0..blocks as u64).map(|n| at(n + place)).collect();
                    let index = if by == 0 { &mut nobody } else { &mut owners[by - 1] };
                    for (n, put) in index.put(&digests, &locations, PutOptions::new()).unwrap().into_iter().enumerate() {
                        put.unwrap();
                        model.insert(first + n, (locations[n], by as u16));
                        changed[first + n] = true;
                    }
                }
                Op::Remove { first, blocks, place } => {
                    let digests = Digests::from(&prompt[first..first + blocks]);
                    let locations: Vec<Location> = (0..blocks as u64).map(|n| at(n + place)).collect();
                    let of = |n: &usize| model.get(&(first + n)).is_some_and(|(there, _)| *there == locations[*n]);
                    let goes: Vec<usize> = (0..blocks).filter(of).collect();
                    assert_eq!(nobody.remove(&digests, &locations).unwrap(), goes.len());
                    for n in goes {
                        model.remove(&(first + n));
                        changed[first + n] = true;
                    }
                }
                Op::RemoveOwner { owner: number } => {
                    assert!(nobody.remove_owner(number as u16).unwrap());
                    for (n, changed) in changed.iter_mut().enumerate() {
                        let is_its = model.get(&n).is_some_and(|(_, owner)| usize::from(*owner) == number);
                        *changed |= is_its && model.remove(&n).is_some();
                    }
                    // At once.
                    compare(&mut reader, &prompt, &model);
                    let late = owners[number - 1].put(
                        &Digests::from(&prompt[..1]), &[at(0)], PutOptions::new(),
                    );
                    let is_refused = match late {
                        Ok(answers) => matches!(answers[0], Err(PutError::OwnerGone { .. })),
                        Err(PrefixError::Change(why)) if matches!(*why, MutateError::OwnerGone { .. }) => true,
                        Err(_) => false,
                    };
                    assert!(is_refused, "a late put of an owner that is gone");
                    owners[number - 1] = owner(&nobody, number as u16);
                }
                Op::Locate => {
                    let mut same = vec![false; BLOCKS];
                    reader.revalidate(&Digests::from(&prompt[..]), &before, &mut same).unwrap();
                    for n in 0..BLOCKS {
                        assert_eq!(same[n], before[n].is_there() && !changed[n], "block {n}");
                    }
                    before = compare(&mut reader, &prompt, &model);
                    changed.fill(false);
                }
            }
        }
    }
}

/// Names stand once: two clients get the same number for a name, others for others, and read them back. So after the
/// server has been restarted.
#[test]
fn endpoints_have_numbers() {
    let mut scene = served(TableSize::Keys(1_000), None);
    let (mut one, mut other) = (scene.index(), scene.index());
    let names: Vec<String> = (0..100).map(|n| format!("host-{n}:{}", "x".repeat(n))).collect();
    let numbers: Vec<u32> = names.iter().map(|name| one.endpoint(name).unwrap()).collect();
    for (name, &number) in names.iter().zip(&numbers) {
        assert_eq!(other.endpoint(name).unwrap(), number);
        assert_eq!(scene.index().endpoint_name(number).unwrap(), Some(&name[..]));
    }
    let different: std::collections::HashSet<_> = numbers.iter().collect();
    assert_eq!(different.len(), names.len());
    for name in ["", &"x".repeat(201)] {
        let error = one.endpoint(name).unwrap_err();
        assert!(matches!(error, PrefixError::Name { max: 200, .. }), "{error}");
    }
    drop(scene.server.take());
    scene.serve(LocationIndex::config(TableSize::Keys(1_000)), None);
    let mut third = scene.index();
    assert_eq!(third.endpoint_name(numbers[3]).unwrap(), Some(&names[3][..]));
    assert_eq!(third.endpoint_name(numbers[3] ^ 1).unwrap(), None);
}

/// A server whose entries make room for others: what is found is always right, and what has left is missing, no more.
#[test]
fn blocks_that_leave_are_missing() {
    let scene = served(TableSize::Keys(1_000), Some(Evict::ALL[0].0));
    let (mut writer, mut reader) = (scene.index(), scene.index());
    let keys: Vec<Key> = (1..=8_000u128)
        .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes())
        .collect();
    let (mut found, mut there) = (vec![Found::default(); 100], 0);
    for (part, keys) in keys.chunks(100).enumerate() {
        let locations: Vec<Location> = (0..100).map(|n| at((part * 100 + n) as u64)).collect();
        let answers = writer.put(&Digests::from(keys), &locations, PutOptions::new()).unwrap();
        assert!(answers.iter().all(Result::is_ok));
        let mut same = [false; 100];
        reader.locate_many(&Digests::from(keys), &mut found).unwrap();
        reader.revalidate(&Digests::from(keys), &found, &mut same).unwrap();
    }
    for (part, keys) in keys.chunks(100).enumerate() {
        there += reader.locate_many(&Digests::from(keys), &mut found).unwrap();
        for (n, found) in found.iter().enumerate() {
            let expected = at((part * 100 + n) as u64);
            assert!(found.location().is_none_or(|location| location == expected), "{found:?}");
        }
    }
    assert!((500..4_000).contains(&there), "{there} are there");
}

/// A prefix is READ up to its end, and hardly further.
#[test]
fn a_prefix_costs_its_length() {
    let scene = served(TableSize::Keys(3_000), None);
    let (mut index, prompt) = (scene.index(), prompt());
    let locations: Vec<Location> = (0..70).map(at).collect();
    index.put(&Digests::from(&prompt[..70]), &locations, PutOptions::new()).unwrap();
    let mut found = vec![Found::default(); BLOCKS];
    let before = index.stats().read.reads;
    assert_eq!(index.locate_prefix(&Digests::from(&prompt[..]), &mut found).unwrap(), 70);
    let reads = index.stats().read.reads - before;
    assert!((71..=80).contains(&reads), "{reads} READs");
}

/// Behind a prefix nothing is left of what stood in the list before, in whichever part of the prompt it ends.
#[test]
fn nothing_stands_behind_a_prefix() {
    let scene = served(TableSize::Keys(3_000), None);
    let (mut index, prompt) = (scene.index(), prompt());
    let (digests, locations) = (Digests::from(&prompt[..]), (0..BLOCKS as u64).map(at).collect::<Vec<_>>());
    index.put(&digests, &locations, PutOptions::new()).unwrap();
    let mut all = vec![Found::default(); BLOCKS];
    assert_eq!(index.locate_prefix(&digests, &mut all).unwrap(), BLOCKS);
    for gone in [BLOCKS - 1, 150, 128, 127, 70, 1, 0] {
        let block = gone..gone + 1;
        let removed = index.remove(&Digests::from(&prompt[block.clone()]), &locations[block]).unwrap();
        assert_eq!(removed, 1);
        let mut found = all.clone();
        assert_eq!(index.locate_prefix(&digests, &mut found).unwrap(), gone);
        assert_eq!(found[..gone], all[..gone]);
        assert!(found[gone..].iter().all(|found| *found == Found::default()), "{gone}");
    }
}

/// Lists of different lengths, wrong widths and wrong tables are refused by name, and nothing is done.
#[test]
fn bad_input_is_named() {
    let scene = served(TableSize::Keys(1_000), None);
    let mut index = scene.index();
    let (prompt, mut found) = (prompt(), [Found::default(); 3]);
    let digests = Digests::from(&prompt[..4]);
    let refused = index.locate_many(&digests, &mut found).unwrap_err();
    assert!(matches!(refused, PrefixError::Count { digests: 4, given: 3 }), "{refused}");
    let refused = index.put(&digests, &[at(0); 5], PutOptions::new()).unwrap_err();
    assert!(matches!(refused, PrefixError::Count { digests: 4, given: 5 }), "{refused}");
    let refused = index.revalidate(&digests, &found, &mut [false; 4]).unwrap_err();
    assert!(matches!(refused, PrefixError::Count { .. }), "{refused}");
    let refused = PrefixError::from(Digests::packed(&[0; 40], 16).unwrap_err());
    assert!(
        matches!(refused, PrefixError::Digest(DigestError::Length { bytes: 40, width: 16 })),
        "{refused}"
    );
    // A table that was made for something else.
    let address = Address::Shm(scene.dir.path().join("other"));
    let table = Config::new().size(TableSize::Keys(100));
    let _server = Server::start(ServerConfig::new(address.clone(), table)).unwrap();
    let refused = LocationIndex::new(Client::connect(&address).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("keeps no lives") && refused.contains("`LocationIndex::config`"), "{refused}");
    // Values of somebody else's are no locations.
    index.client().put(&prompt[0], b"no location").unwrap();
    assert_eq!(index.locate_many(&Digests::from(&prompt[..3]), &mut found).unwrap(), 0);
}
