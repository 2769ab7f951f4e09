//! Links in common: what workers do to each other's, and what they cost.

use super::runs::{Contents, Engine, publisher, table_of, worker};
use super::{Dice, Table};
use crate::faults::{Rule, breaks};
use crate::packed::Value;
use crate::publisher::Publisher;
use crate::source::{batch, removed, stored};
use crate::store::Store;
use crate::worker::Worker;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

type Hears = Arc<Mutex<(Publisher, Store)>>;

fn with<R>(one: &Hears, act: impl FnOnce(&mut Publisher, &mut Store) -> R) -> R {
    let mut one = one.lock().unwrap_or_else(PoisonError::into_inner);
    let (publisher, store) = &mut *one;
    act(publisher, store)
}

/// What a worker has.
fn blocks_of(contents: &Contents, worker: &Worker) -> BTreeSet<Vec<u8>> {
    let suffix = format!("/{}", worker.instance);
    let is_its = |holders: &BTreeSet<String>| holders.iter().any(|name| name.ends_with(&suffix));
    contents.blocks.iter().filter(|(_, holders)| is_its(holders)).map(|(key, _)| key.clone()).collect()
}

/// Two workers over one table, whose runs come between each other's changes, and who mean different things by some hashes.
/// Tells where one of them has not what it has in a table of its own, and what is left when both have removed all.
fn two_workers(seed: u64) -> Result<(), String> {
    let mut dice = Dice(seed);
    let workers = [worker("one"), worker("two")];
    let mut engines = [Engine::new(false, false, 0), Engine::new(false, false, 1)];
    for _ in 0..30 {
        engines.iter_mut().for_each(|engine| engine.tells(&mut dice));
    }
    let alone = [0, 1].map(|nth: usize| {
        let (_table, mut store) = table_of(&workers[nth..=nth]);
        let mut publisher = publisher(&mut store, &workers[nth]);
        for (number, bytes) in engines[nth].told.iter().enumerate() {
            publisher.hear(number as u64, bytes);
            publisher.write(&mut store).unwrap();
        }
        blocks_of(&Contents::of(&mut store, &workers[nth..=nth]), &workers[nth])
    });
    let (table, mut store) = table_of(&workers);
    let hears = [0, 1].map(|nth: usize| {
        let mut store = table.store();
        Arc::new(Mutex::new((publisher(&mut store, &workers[nth]), store)))
    });
    let mut told = [0, 0];
    let mut hear = |nth: usize, batches: usize| {
        let end = (told[nth] + batches).min(engines[nth].told.len());
        with(&hears[nth], |publisher, _| {
            (told[nth]..end).for_each(|number| publisher.hear(number as u64, &engines[nth].told[number]));
        });
        told[nth] = end;
        end < engines[nth].told.len()
    };
    loop {
        let (turn, more) = (dice.roll(2) as usize, 1 + dice.roll(4) as usize);
        let goes_on = hear(turn, more) | hear(1 - turn, dice.roll(4) as usize);
        let other = hears[1 - turn].clone();
        let between = move || with(&other, |publisher, store| publisher.write(store).unwrap());
        with(&hears[turn], |publisher, store| {
            store.steps.then(dice.roll(6) as usize, Box::new(between));
            publisher.write(store).unwrap();
            store.steps.nothing_else();
        });
        with(&hears[1 - turn], |publisher, store| publisher.write(store).unwrap());
        if !goes_on {
            break;
        }
    }
    let contents = Contents::of(&mut store, &workers);
    for (worker, alone) in workers.iter().zip(&alone) {
        if blocks_of(&contents, worker) != *alone {
            return Err(format!("seed {seed}: {} has other blocks than alone", worker.instance));
        }
    }
    for (nth, engine) in engines.iter().enumerate() {
        let all: Vec<u64> = engine.has.iter().copied().collect();
        with(&hears[nth], |publisher, store| {
            publisher.hear(told[nth] as u64, &batch(told[nth] as u64, vec![removed(&all)]));
            publisher.write(store).unwrap();
        });
    }
    let contents = Contents::of(&mut store, &workers);
    let (blocks, links) = (contents.blocks.len(), contents.links.len());
    if blocks + links > 0 {
        Err(format!("seed {seed}: {blocks} blocks and {links} links are left"))
    } else {
        Ok(())
    }
}

/// Workers whose runs meet at any two changes have what they have alone, and can remove it.
#[test]
fn workers_leave_each_others_links() {
    for seed in 0..30 {
        two_workers(seed).unwrap();
    }
}

/// Two workers over one table.
struct Two {
    _table: Table,
    workers: [Worker; 2],
    hears: [Hears; 2],
    told: [u64; 2],
}

impl Two {
    fn new() -> Two {
        let workers = [worker("one"), worker("two")];
        let (table, _) = table_of(&workers);
        let hears = [0, 1].map(|nth: usize| {
            let mut store = table.store();
            Arc::new(Mutex::new((publisher(&mut store, &workers[nth]), store)))
        });
        Two { _table: table, workers, hears, told: [0, 0] }
    }

    /// One of them tells a batch; the other one may come between, behind so many changes.
    fn tells(&mut self, nth: usize, event: Value, between: Option<(usize, Value)>) {
        let other = self.hears[1 - nth].clone();
        let mut hear = |nth: usize, event: Value| {
            let number = self.told[nth];
            with(&self.hears[nth], |publisher, _| publisher.hear(number, &batch(number, vec![event])));
            self.told[nth] += 1;
        };
        hear(nth, event);
        if let Some((behind, event)) = between {
            hear(1 - nth, event);
            let comes = move || with(&other, |publisher, store| publisher.write(store).unwrap());
            with(&self.hears[nth], |_, store| store.steps.then(behind, Box::new(comes)));
        }
        for nth in [nth, 1 - nth] {
            with(&self.hears[nth], |publisher, store| publisher.write(store).unwrap());
        }
    }

    /// How many blocks one of them has. It sweeps.
    fn has(&self, nth: usize) -> usize {
        let contents = with(&self.hears[nth], |_, store| Contents::of(store, &self.workers));
        blocks_of(&contents, &self.workers[nth]).len()
    }
}

const TOKENS: [u32; 4] = [1, 2, 3, 4];
const OTHERS: [u32; 4] = [5, 6, 7, 8];

/// One removes its block while the other one stores it: that can remove it, too.
fn a_store_between_changes_of_a_removal() -> bool {
    (0..8).all(|behind| {
        let mut two = Two::new();
        two.tells(0, stored(None, &[1], &TOKENS, 4), None);
        two.tells(0, removed(&[1]), Some((behind, stored(None, &[1], &TOKENS, 4))));
        assert_eq!((two.has(0), two.has(1)), (0, 1));
        two.tells(1, removed(&[1]), None);
        two.has(1) == 0
    })
}

/// Blocks behind one that only the other worker has wait for it.
fn a_parent_of_others_is_not_known() -> bool {
    let mut two = Two::new();
    two.tells(0, stored(None, &[1], &TOKENS, 4), None);
    two.tells(1, stored(None, &[9], &OTHERS, 4), None);
    two.tells(1, stored(Some(1), &[2], &OTHERS, 4), None);
    two.has(1) == 1
}

/// A hash means two things, and both workers remove what they mean.
fn each_removes_what_it_means() -> bool {
    let mut two = Two::new();
    two.tells(0, stored(None, &[1], &TOKENS, 4), None);
    two.tells(1, stored(None, &[1], &OTHERS, 4), None);
    two.tells(0, removed(&[1]), None);
    assert_eq!(two.has(1), 1);
    two.tells(1, removed(&[1]), None);
    (two.has(0), two.has(1)) == (0, 0)
}

/// A worker that means what others mean, by and by, removes that.
fn the_last_meaning_counts() -> bool {
    let mut two = Two::new();
    two.tells(0, stored(None, &[1], &TOKENS, 4), None);
    two.tells(1, stored(None, &[1], &OTHERS, 4), None);
    // It removes that by another name, and means what the other worker means.
    two.tells(1, stored(None, &[3], &OTHERS, 4), None);
    two.tells(1, removed(&[3]), None);
    two.tells(1, stored(None, &[1], &TOKENS, 4), None);
    two.tells(1, removed(&[1]), None);
    two.has(1) == 0
}

/// One of two who have a block removes it, and the other one can.
fn a_removal_leaves_others_links() -> bool {
    let mut two = Two::new();
    two.tells(0, stored(None, &[1], &TOKENS, 4), None);
    two.tells(1, stored(None, &[1], &TOKENS, 4), None);
    two.tells(0, removed(&[1]), None);
    two.tells(1, removed(&[1]), None);
    (two.has(0), two.has(1)) == (0, 0)
}

/// Each rule of links is needed.
#[test]
fn broken_rules_of_links_are_noticed() {
    let all: [(Rule, fn() -> bool); 5] = [
        (Rule::StampStays, a_store_between_changes_of_a_removal),
        (Rule::HasByLink, a_parent_of_others_is_not_known),
        (Rule::OneMeaning, each_removes_what_it_means),
        (Rule::OwnStays, the_last_meaning_counts),
        (Rule::TakeUsed, a_removal_leaves_others_links),
    ];
    for (rule, holds) in all {
        assert!(holds(), "{rule:?}");
        breaks(Some(rule));
        let is_noticed = !holds();
        breaks(None);
        assert!(is_noticed, "{rule:?} is not noticed");
    }
}

/// A worker is copied to another incarnation while a laggard removes its blocks, between any two changes. The new one is
/// told the same, and then has none of them. Returns whether that is so.
fn copied_beside_a_laggard(behind: usize, names: &[u64]) -> bool {
    let (old, other) = (worker("one"), worker("two"));
    let new = Worker { incarnation: 1, ..old.clone() };
    let tokens: Vec<u32> = (1..=12).collect();
    let (table, mut store) = table_of(&[old.clone(), other.clone()]);
    let mut others = publisher(&mut store, &other);
    others.hear(0, &batch(0, vec![stored(None, &[2], &tokens[8..], 4)]));
    others.write(&mut store).unwrap();
    let mut slow = (publisher(&mut store, &old), table.store());
    // One has the link in common, and one another meaning than the other worker's.
    slow.0.hear(0, &batch(0, vec![stored(None, names, &tokens[..names.len() * 4], 4)]));
    slow.0.write(&mut slow.1).unwrap();
    let gone = batch(1, vec![removed(names)]);
    let told = gone.clone();
    let between = move || {
        slow.0.hear(1, &told);
        slow.0.write(&mut slow.1).unwrap();
    };
    store.steps.then(behind, Box::new(between));
    assert!(store.copy(&old, &new, &mut |_| Ok(())).unwrap());
    store.steps.nothing_else();
    assert!(store.swap_worker(Some(&old), Some(&new)).unwrap());
    store.hide(old.id(), |_| true).unwrap();
    let mut next = publisher(&mut store, &new);
    match next.last() {
        Some((1, _)) => {}
        before => {
            assert_eq!(before.map(|(number, _)| number), Some(0));
            next.hear(1, &gone);
            next.write(&mut store).unwrap();
        }
    }
    let contents = Contents::of(&mut store, &[new.clone(), other]);
    blocks_of(&contents, &new).is_empty() && contents.links.len() == 1
}

/// A takeover copies what can be removed, whatever the one before still does.
#[test]
fn a_copy_can_be_removed() {
    let all = || (0..8).flat_map(|behind| [&[1][..], &[2], &[1, 2]].map(|names| (behind, names)));
    for (behind, names) in all() {
        assert!(copied_beside_a_laggard(behind, names), "{names:?} behind {behind}");
    }
    for rule in [Rule::CopyBlind, Rule::BlocksFirst] {
        breaks(Some(rule));
        let noticed = all().any(|(behind, names)| !copied_beside_a_laggard(behind, names));
        breaks(None);
        assert!(noticed, "{rule:?} is not noticed");
    }
}

/// Eight workers, of whom four have each block: an entry for the block, and one for all their links.
#[test]
fn a_block_has_two_entries() {
    const WORKERS: u64 = 8;
    const BLOCKS: u64 = 1_000;
    let workers: Vec<Worker> = (0..WORKERS).map(|nth| worker(&format!("w{nth}"))).collect();
    let (_table, mut store): (Table, Store) = table_of(&workers);
    for (nth, worker) in (0..).zip(&workers) {
        let mut publisher = publisher(&mut store, worker);
        let has = (0..BLOCKS).filter(|block| (block + nth) % WORKERS < WORKERS / 2);
        let events = has.map(|block| stored(None, &[block], &[block as u32; 4], 4)).collect();
        publisher.hear(0, &batch(0, events));
        publisher.write(&mut store).unwrap();
        assert_eq!(publisher.blocks(), BLOCKS / 2);
    }
    let contents = Contents::of(&mut store, &workers);
    assert!(contents.blocks.values().all(|holders| holders.len() as u64 == WORKERS / 2));
    assert_eq!((contents.blocks.len() as u64, contents.links.len() as u64), (BLOCKS, BLOCKS));
}
