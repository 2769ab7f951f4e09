//! Runs beside batches one by one: what they leave behind, with failures anywhere, and what they cost.

use super::{DEPTH, Dice, PROMPTS, Steps, Table, block, tokens};
use crate::counts::Counts;
use crate::packed::Value;
use crate::publisher::Publisher;
use crate::source::{batch, cleared, removed, stored};
use crate::store::Store;
use crate::worker::{Progress, Worker};
use oneread_prefix::Digests;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A worker that may be asked for batches again.
pub fn worker(instance: &str) -> Worker {
    Worker {
        instance: instance.into(),
        rank: 0,
        model: "m".into(),
        tenant: "default".into(),
        block_size: 4.try_into().unwrap(),
        lora: String::new(),
        salt: String::new(),
        endpoint: "tcp://127.0.0.1:5557".parse().unwrap(),
        replay: Some("tcp://127.0.0.1:5558".parse().unwrap()),
        reach: crate::endpoint::Reach::Loopback,
        incarnation: 0,
        next: None,
    }
}

pub fn publisher(store: &mut Store, worker: &Worker) -> Publisher {
    let worker = Arc::new(worker.clone());
    Publisher::load(store, worker, crate::chain::SEED, Arc::default(), Arc::default()).unwrap()
}

/// A table in which some workers are registered.
pub fn table_of(workers: &[Worker]) -> (Table, Store) {
    let table = Table::new();
    let mut store = table.store();
    for worker in workers {
        assert!(store.swap_worker(None, Some(worker)).unwrap());
    }
    (table, store)
}

/// What is in the table: who has each block, how far batches were taken in, and what there is to name blocks by.
#[derive(Debug, PartialEq)]
pub struct Contents {
    pub blocks: BTreeMap<Vec<u8>, BTreeSet<String>>,
    pub links: BTreeMap<Vec<u8>, Vec<u8>>,
    last: Vec<Option<(u64, u64)>>,
}

impl Contents {
    pub fn of(store: &mut Store, workers: &[Worker]) -> Contents {
        while !store.index.clean(usize::MAX).unwrap().is_done {}
        let mut cursor = None;
        while !store.sweep(&mut cursor, crate::chain::SEED).unwrap().1 {}
        let (mut keys, mut links) = (Vec::new(), BTreeMap::new());
        let mut scan = store.client.scan().values(true);
        while let Some(batch) = scan.next_batch().unwrap() {
            for entry in batch {
                if let Ok(key) = <[u8; 16]>::try_from(entry.key.as_slice()) {
                    keys.push(key);
                } else if entry.key.starts_with(b"#x") {
                    // But for the stamp.
                    links.insert(entry.key, entry.value.unwrap()[..28].to_vec());
                } else if entry.key.starts_with(b"#y") {
                    links.insert(entry.key, entry.value.unwrap()[7..].to_vec());
                }
            }
        }
        let mut blocks: BTreeMap<Vec<u8>, BTreeSet<String>> = BTreeMap::new();
        store
            .index
            .holders_of(&Digests::from(&keys[..]), |nth, holder| {
                blocks.entry(keys[nth].to_vec()).or_default().insert(holder.name().to_owned());
            })
            .unwrap();
        let last = workers.iter().map(|worker| store.progress(worker.id()).unwrap()?.last).collect();
        Contents { blocks, links, last }
    }
}

/// An engine that tells what it does, as batches. Either it calls some blocks by two hashes, or it is odd: with both, a block
/// that waits for its parent may come back when another name of it has gone.
pub struct Engine {
    pub has: BTreeSet<u64>,
    /// It also tells blocks before their parents, and in one batch of parents that go and of their children.
    is_odd: bool,
    /// It calls some blocks by two hashes.
    has_two: bool,
    late: Vec<Value>,
    pub told: Vec<Vec<u8>>,
    /// Engines with different numbers call some blocks as the others call other blocks.
    number: u32,
}

impl Engine {
    pub fn new(is_odd: bool, has_two: bool, number: u32) -> Engine {
        Engine { has: BTreeSet::new(), is_odd, has_two, late: Vec::new(), told: Vec::new(), number }
    }

    fn name(&self, block: u32, alias: u32) -> u64 {
        let block = match block % 7 {
            1 => block + self.number,
            2 => block - self.number,
            _ => block,
        };
        u64::from(block) * 2 + u64::from(alias) + 7
    }

    pub fn tells(&mut self, dice: &mut Dice) {
        let (mut events, mut has_stored) = (Vec::new(), false);
        for _ in 0..1 + dice.roll(3) {
            let (prompt, from) = (dice.roll(PROMPTS), dice.roll(DEPTH));
            let path: Vec<u32> = (0..DEPTH).map(|depth| block(prompt, depth)).collect();
            let name = |block: &u32| self.name(*block, u32::from(self.has_two) * dice_of(*block, prompt));
            let names: Vec<u64> = path.iter().map(name).collect();
            match dice.roll(24) {
                0 => {
                    self.has.clear();
                    self.late.clear();
                    (events, has_stored) = (vec![cleared()], false);
                }
                1..9 => {
                    let name = names[from as usize];
                    // Also one that it does not have. What goes in the batch of its child is not known when that comes again.
                    let is_wanted = self.is_odd || !has_stored;
                    if is_wanted && (self.has.remove(&name) || dice.roll(4) == 0) {
                        events.push(removed(&[name, 1_000_000 + name]));
                    }
                }
                _ => {
                    let has = names.iter().take_while(|name| self.has.contains(name)).count();
                    let at = has.min(from as usize);
                    let end = (at + 1 + dice.roll(5) as usize).min(path.len());
                    let all: Vec<u32> = path[at..end].iter().flat_map(|block| tokens(*block)).collect();
                    let parent = at.checked_sub(1).map(|before| names[before]);
                    self.has.extend(&names[at..end]);
                    let event = stored(parent, &names[at..end], &all, 4);
                    if self.is_odd && dice.roll(6) == 0 {
                        self.late.push(event);
                    } else {
                        events.push(event);
                        has_stored = true;
                    }
                }
            }
        }
        if self.is_odd && dice.roll(3) == 0 {
            events.append(&mut self.late);
        }
        let bytes = match dice.roll(60) {
            0 => {
                self.has.clear();
                self.late.clear();
                vec![0xc1]
            }
            _ => batch(self.told.len() as u64, events),
        };
        self.told.push(bytes);
    }
}

/// Prompts that share a block call it by other hashes.
fn dice_of(block: u32, prompt: u32) -> u32 {
    if block.is_multiple_of(3) { prompt % 2 } else { 0 }
}

/// Whatever is told, and however it is cut: a table that took it in by runs has what one has that took it in one by one. A
/// change fails half way now and then: the run is written again, or the process is killed, and the batches behind the last
/// number come again, in other cuts.
#[test]
fn runs_leave_what_batches_leave() {
    let (mut kills, mut errors) = (0, 0);
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let is_odd = seed % 3 == 2;
        let mut engine = Engine::new(is_odd, !is_odd, 0);
        (0..40).for_each(|_| engine.tells(&mut dice));
        let one = worker("one");
        let workers = [one.clone()];
        let (_table, mut expected) = table_of(&workers);
        let mut by_one = publisher(&mut expected, &one);
        for (number, bytes) in engine.told.iter().enumerate() {
            by_one.hear(number as u64, bytes);
            by_one.write(&mut expected).unwrap();
        }
        let (_other, mut store) = table_of(&workers);
        let steps: Steps = store.steps.clone();
        let mut by_runs = publisher(&mut store, &one);
        let (mut next, mut killed, mut failed) = (0, false, false);
        while next < engine.told.len() {
            let end = (next + 1 + dice.roll(12) as usize).min(engine.told.len());
            for (number, bytes) in (next..).zip(&engine.told[next..end]) {
                by_runs.hear(number as u64, bytes);
            }
            next = end;
            if dice.roll(3) > 0 {
                steps.fail(dice.roll(6) as usize, dice.roll(9) as usize);
            }
            while by_runs.write(&mut store).is_err() {
                failed = true;
                if dice.roll(2) == 0 {
                    errors += 1;
                    continue;
                }
                (kills, killed) = (kills + 1, true);
                by_runs = publisher(&mut store, &one);
                next = by_runs.last().map_or(0, |(number, _)| number as usize + 1);
                break;
            }
        }
        steps.nothing_else();
        let (expected, found) = (Contents::of(&mut expected, &workers), Contents::of(&mut store, &workers));
        assert_eq!(found.blocks, expected.blocks, "seed {seed}");
        if !is_odd {
            assert_eq!(found.last, expected.last, "seed {seed}");
        }
        // Who is killed behind the number leaves links of blocks that are gone. They stay if the block has another name.
        let kept: BTreeMap<_, _> =
            found.links.iter().filter(|(key, _)| !killed || expected.links.contains_key(*key)).collect();
        assert_eq!(kept, expected.links.iter().collect::<BTreeMap<_, _>>(), "seed {seed}");
        // What a change did that was not answered is not counted.
        if !failed {
            assert_eq!(by_runs.blocks(), by_one.blocks(), "seed {seed}");
        }
    }
    assert!(kills > 100 && errors > 100, "{kills} kills, {errors} errors");
}

/// A run is written by as many changes, however many batches it has.
#[test]
fn a_run_is_three_changes() {
    let one = worker("one");
    let (_table, mut store) = table_of(std::slice::from_ref(&one));
    let mut publisher = publisher(&mut store, &one);
    let parts = |number: u64| {
        let from = number as u32 * 8;
        let some: Vec<u32> = (from..from + 8).collect();
        let parent = number.checked_sub(1).map(|before| before * 2 + 1);
        stored(parent, &[number * 2, number * 2 + 1], &some, 4)
    };
    // The first run of a worker makes room for its number.
    publisher.hear(0, &batch(0, vec![parts(0)]));
    publisher.write(&mut store).unwrap();
    assert_eq!(store.steps.made(), 4);
    for number in 1..100 {
        publisher.hear(number, &batch(number, vec![parts(number)]));
    }
    publisher.write(&mut store).unwrap();
    assert_eq!(store.steps.made(), 3, "blocks, links, the number");
    assert_eq!(publisher.blocks(), 200);
    // What is stored again, and what is removed from the end on, as engines do.
    for number in 100..200 {
        let last = 199 - (number - 100) * 2;
        publisher.hear(number, &batch(number, vec![removed(&[last, last - 1])]));
    }
    publisher.write(&mut store).unwrap();
    assert_eq!(store.steps.made(), 3, "blocks, the number, links");
    assert_eq!(publisher.blocks(), 0);
    assert_eq!(store.progress(one.id()).unwrap(), Some(Progress { blocks: 0, last: publisher.last() }));
}

/// A parent that goes in a later batch stays until its child's number is written: it begins another run.
#[test]
fn a_parent_stays_for_its_run() {
    let one = worker("one");
    let (_table, mut store) = table_of(std::slice::from_ref(&one));
    let tokens: Vec<u32> = (1..=8).collect();
    let told = [
        batch(0, vec![stored(None, &[1], &tokens[..4], 4)]),
        batch(1, vec![stored(Some(1), &[2], &tokens[4..], 4)]),
        batch(2, vec![removed(&[1])]),
    ];
    let mut first = publisher(&mut store, &one);
    first.hear(0, &told[0]);
    first.write(&mut store).unwrap();
    for behind in 0.. {
        let mut publisher = publisher(&mut store, &one);
        let next = publisher.last().map_or(0, |(number, _)| number as usize + 1);
        (next..3).for_each(|number| publisher.hear(number as u64, &told[number]));
        store.steps.fail(behind, 8);
        if publisher.write(&mut store).is_ok() {
            break;
        }
    }
    let contents = Contents::of(&mut store, std::slice::from_ref(&one));
    assert_eq!(contents.blocks.len(), 1);
    assert_eq!(contents.last[0].map(|(number, _)| number), Some(2), "nothing waits for its parent");
}

/// What has no room is left out, and the rest of the run is not. Its links are not there either.
#[test]
fn a_full_table_takes_what_fits() {
    use oneread::{Address, Client, Server, ServerConfig, TableSize};
    let dir = tempfile::tempdir().unwrap();
    let table = oneread_prefix::PlacementTable::single(64).unwrap();
    let address = Address::Shm(dir.path().join("table.sock"));
    let server = Server::start(ServerConfig::new(address, table.config(TableSize::Keys(1_000)))).unwrap();
    table.mark(&server).unwrap();
    let mut store = Store::new(Client::connect(server.address()).unwrap()).unwrap();
    let one = worker("one");
    assert!(store.swap_worker(None, Some(&one)).unwrap());
    let counts = Arc::new(Counts::default());
    let mut publisher =
        Publisher::load(&mut store, Arc::new(one.clone()), 1337, counts.clone(), Arc::default()).unwrap();
    let tokens: Vec<u32> = (0..4 * 3_000).collect();
    for number in 0..30_u64 {
        let (from, names) = (number as usize * 100, number * 100..number * 100 + 100);
        let parent = number.checked_sub(1).map(|_| number * 100 - 1);
        let names: Vec<u64> = names.collect();
        let event = stored(parent, &names, &tokens[from * 4..][..400], 4);
        publisher.hear(number, &batch(number, vec![event]));
    }
    publisher.write(&mut store).unwrap();
    let contents = Contents::of(&mut store, std::slice::from_ref(&one));
    assert!(contents.blocks.len() > 100 && counts.refused.get() > 100, "{}", contents.blocks.len());
    assert_eq!(contents.blocks.len() as u64 + counts.refused.get(), 3_000);
    assert_eq!(contents.blocks.len() as u64, publisher.blocks());
    assert_eq!(contents.links.len(), contents.blocks.len(), "each can be removed");
}
