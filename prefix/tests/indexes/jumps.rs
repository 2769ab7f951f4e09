//! Lookups that jump over blocks, beside a model that looks at all of them.

use crate::scene::Scene;
use oneread::{Config, TableSize};
use oneread_prefix::{Digests, EventStream, Holder, Keeps, Key, KvEvent, PlacementIndex, PlacementTable};
use std::collections::{BTreeMap, BTreeSet};

pub fn served(table: PlacementTable, blocks: u64) -> Scene<PlacementIndex> {
    let config: Config = table.config(TableSize::Keys(blocks + 1_000));
    let scene = Scene::new(PlacementIndex::new, config, None);
    table.mark(scene.server.as_ref().unwrap()).unwrap();
    scene
}

pub fn forms(holders: usize) -> [PlacementTable; 2] {
    [PlacementTable::single(holders).unwrap(), PlacementTable::grouped(holders).unwrap()]
}

/// Numbers that follow from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn pick(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// The digest of a block: of its tokens, and all those before it.
fn chain(tokens: impl IntoIterator<Item = u8>) -> Vec<Key> {
    let mut before = 0x0123_4567_89ab_cdef_1032_5476_98ba_dcfe_u128;
    let next = |token: u8| {
        before = (before ^ u128::from(token) ^ before >> 61)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        before.to_le_bytes()
    };
    tokens.into_iter().map(next).collect()
}

/// A prompt of a family: another one behind the first `part` blocks.
fn prompt(branch: u8, part: usize, length: usize) -> Vec<Key> {
    chain((0..length).map(|block| if block < part { 0 } else { branch }))
}

fn told(index: &mut PlacementIndex, keys: &[Key]) -> BTreeMap<String, usize> {
    let mut found = Vec::new();
    index.match_prefix(&Digests::from(keys), &mut found).unwrap();
    found.iter().map(|one| (one.holder.name().into(), one.blocks)).collect()
}

/// Holders of both kinds, with prompts that part at many places: closed ones have prefixes, and lose the last blocks first;
/// others have any blocks. Returns whether each lookup told what a model has, and how many of them jumped.
fn model(table: PlacementTable, seed: u64) -> (bool, u64) {
    let scene = served(table, 20_000);
    let (mut index, mut router) = (scene.index(), scene.index());
    let mut random = Random(seed);
    let parts = [0, 5, 64, 130, 131, 600];
    let holders: Vec<Holder> = (0..6)
        .map(|n| {
            let keeps = if n < 4 { Keeps::PrefixClosed } else { Keeps::Any };
            index.holder_with(&format!("worker {n}"), keeps).unwrap()
        })
        .collect();
    let mut has = vec![BTreeSet::<Key>::new(); holders.len()];
    let mut is_right = true;
    for step in 0..40 {
        let which = random.pick(holders.len());
        let holder = &holders[which];
        let keys = prompt(random.pick(3) as u8 + 1, parts[random.pick(parts.len())], 700);
        let length = [random.pick(700), 700, 64 * (1 + random.pick(10)), random.pick(20)][random.pick(4)];
        let prefix = Digests::from(&keys[..length]);
        match (holder.keeps(), random.pick(3)) {
            (_, 0) | (Keeps::PrefixClosed, 1) => {
                index.add(holder, &prefix, 0).unwrap();
                has[which].extend(&keys[..length]);
            }
            (Keeps::Any, 1) => {
                let from = random.pick(length + 1);
                index.add(holder, &prefix, from).unwrap();
                has[which].extend(&keys[from..length]);
            }
            (Keeps::Any, _) => {
                let from = random.pick(length + 1);
                index.remove(holder, &prefix, from).unwrap();
                has[which].retain(|key| !keys[from..length].contains(key));
            }
            // The last ones first; what others of the family have behind a block goes before it.
            (Keeps::PrefixClosed, _) => {
                for branch in 1..4 {
                    for part in parts {
                        let all = prompt(branch, part, 700);
                        let shared = all.iter().zip(&keys).take_while(|(one, other)| one == other).count();
                        let from = length.min(700);
                        if shared >= length && all[from..].iter().any(|key| has[which].contains(key)) {
                            index.remove(holder, &Digests::from(&all[..]), from).unwrap();
                            has[which].retain(|key| !all[from..].contains(key));
                        }
                    }
                }
            }
        }
        let keys =
            prompt(random.pick(3) as u8 + 1, parts[random.pick(parts.len())], [700, 513, 690, 600][step % 4]);
        let expected: BTreeMap<String, usize> = holders
            .iter()
            .zip(&has)
            .map(|(holder, has)| {
                (holder.name().into(), keys.iter().take_while(|key| has.contains(*key)).count())
            })
            .filter(|(_, blocks)| *blocks > 0)
            .collect();
        let told = told(&mut router, &keys);
        if told != expected {
            println!(
                "{table:?}, seed {seed}, step {step}, {} blocks: told {told:?}, not {expected:?}",
                keys.len()
            );
            is_right = false;
        }
    }
    (is_right, router.jumps().lookups)
}

/// Whatever holders have, and whichever of them may be jumped over: a lookup tells what looking at each block would.
#[test]
fn jumps_tell_what_is_there() {
    for table in forms(64).into_iter().chain(forms(64).map(|table| table.owners(true))) {
        for seed in 0..12 {
            let (is_right, jumped) = model(table, seed);
            assert!(is_right, "{table:?}, seed {seed}");
            assert_eq!(jumped, 40, "all prompts are long enough, and somebody is closed");
        }
    }
}

/// Short prompts are looked at block by block, which is quicker.
#[test]
fn short_prompts_are_not_jumped_over() {
    for (table, most) in forms(64).into_iter().zip([384, 512]) {
        let scene = served(table, 2_000);
        let (mut index, mut router) = (scene.index(), scene.index());
        let keys = chain((0..600).map(|block| block as u8));
        let holder = index.holder_with("closed", Keeps::PrefixClosed).unwrap();
        index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        for (blocks, jumped) in [(65, 0), (most, 0), (most + 1, 1)] {
            assert_eq!(told(&mut router, &keys[..blocks])["closed"], blocks);
            assert_eq!(router.jumps().lookups, jumped, "{table:?}, {blocks} blocks");
        }
    }
}

/// A lookup of 10,000 blocks that eight workers share to some depth takes 200 READs at most, in either form; block by block
/// it takes each of them.
#[test]
fn a_long_prompt_takes_200_reads() {
    const BLOCKS: usize = 10_000;
    let keys = chain((0..BLOCKS).map(|block| block as u8));
    for table in forms(1_024) {
        let entries = if table.is_grouped() { BLOCKS / 8 } else { BLOCKS };
        let scene = served(table, entries as u64 * 2);
        let (mut index, mut router) = (scene.index(), scene.index());
        let depths = [1, 127, 2_500, 4_999, 7_777, 9_871, 9_999, BLOCKS];
        let mut expected = BTreeMap::new();
        for (n, depth) in depths.into_iter().enumerate() {
            let holder = index.holder_with(&format!("worker {n}"), Keeps::PrefixClosed).unwrap();
            index.add(&holder, &Digests::from(&keys[..depth]), 0).unwrap();
            expected.insert(holder.name().to_owned(), depth);
        }
        let reads = |router: &mut PlacementIndex| {
            let before = router.stats().read.reads;
            assert_eq!(told(router, &keys), expected);
            router.stats().read.reads - before
        };
        // The first one READs who has each bit.
        reads(&mut router);
        for _ in 0..10 {
            let jumped = reads(&mut router);
            assert!(jumped <= 200, "{jumped} READs");
        }
        // Somebody who may have any blocks is looked for block by block, as far as he has them.
        let open = index.holder("any").unwrap();
        reads(&mut router);
        let few = reads(&mut router);
        assert!(few <= 200, "{few} READs: he has nothing, so nothing is looked at for him");
        index.add(&open, &Digests::from(&keys[..1_000]), 0).unwrap();
        expected_any(&mut router, &keys, 1_000);
        // Nobody is jumped over.
        for n in 0..depths.len() {
            index.holder(&format!("worker {n}")).unwrap();
        }
        told(&mut router, &keys);
        let before = router.stats().read.reads;
        assert_eq!(told(&mut router, &keys).len(), 9);
        let walked = (router.stats().read.reads - before) as usize;
        assert!(walked >= entries, "{walked} READs for {entries} entries");
    }
}

fn expected_any(router: &mut PlacementIndex, keys: &[Key], blocks: usize) {
    assert_eq!(told(router, keys)["any"], blocks);
}

/// Who says that he is closed, and is not: one lookup in 64 shows it, and from then on he is looked for block by block, by
/// all. Returns whether that is so.
fn liars_are_found() -> bool {
    let mut is_right = true;
    for table in forms(64) {
        let scene = served(table, 5_000);
        let (mut index, mut router, mut other) = (scene.index(), scene.index(), scene.index());
        let keys = chain((0..640).map(|block| block as u8));
        let holder = index.holder_with("liar", Keeps::PrefixClosed).unwrap();
        index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        // Blocks in the middle of a stretch.
        index.remove(&holder, &Digests::from(&keys[..202]), 200).unwrap();
        let lengths: Vec<usize> = (0..70).map(|_| told(&mut router, &keys)["liar"]).collect();
        is_right &= lengths[..63].iter().all(|length| *length == 640)
            && lengths[63..].iter().all(|length| *length == 200);
        is_right &= (router.jumps().lookups, router.jumps().walked, router.jumps().stopped) == (64, 1, 1);
        is_right &= told(&mut other, &keys)["liar"] == 200 && other.jumps().lookups == 0;
        // He is what he was said to be when he is registered again.
        index.drop_holder("liar").unwrap();
        assert_eq!(index.holder_with("liar", Keeps::PrefixClosed).unwrap().keeps(), Keeps::PrefixClosed);
    }
    is_right
}

#[test]
fn a_holder_that_is_not_closed_is_found_out() {
    assert!(liars_are_found());
}

/// After events that were not heard nobody jumps over the engine's blocks, until it is cleared. Returns whether that is so.
fn gaps_end_jumps() -> bool {
    let [single, _] = forms(64);
    let scene = served(single, 5_000);
    let (mut index, mut router) = (scene.index(), scene.index());
    let keys = chain((0..600).map(|block| block as u8));
    let holder = index.holder_with("engine", Keeps::PrefixClosed).unwrap();
    let mut stream = EventStream::new(&index, holder).unwrap();
    let all = || KvEvent::Stored { digests: Digests::from(&keys[..]) };
    stream.take(&mut index, 1, &[all()]).unwrap();
    let keeps = |router: &mut PlacementIndex| router.holders().unwrap()[0].keeps();
    assert_eq!((keeps(&mut router), told(&mut router, &keys)["engine"]), (Keeps::PrefixClosed, 600));
    // In a batch that was not heard all went, and in this one some came again.
    let removed = KvEvent::Removed { digests: Digests::from(&keys[10..100]) };
    assert_eq!(stream.take(&mut index, 3, &[removed]).unwrap().missed, 1);
    let is_right = keeps(&mut router) == Keeps::Any && told(&mut router, &keys)["engine"] == 10;
    stream.take(&mut index, 4, &[KvEvent::Cleared, all()]).unwrap();
    assert_eq!((keeps(&mut router), told(&mut router, &keys)["engine"]), (Keeps::PrefixClosed, 600));
    // Another gap; who publishes is started again after it, and the engine is cleared by him.
    stream.take(&mut index, 9, &[]).unwrap();
    let holder = index.holder_with("engine", Keeps::PrefixClosed).unwrap();
    EventStream::new(&index, holder).unwrap().restarted(&mut index).unwrap();
    assert_eq!(keeps(&mut router), Keeps::PrefixClosed);
    is_right
}

#[test]
fn a_gap_ends_jumps_until_it_is_cleared() {
    assert!(gaps_end_jumps());
}

/// Each rule of jumps is broken, and a test above notices.
#[cfg(feature = "faults")]
#[test]
fn broken_rules_of_jumps_are_noticed() {
    use oneread_prefix::faults::{Rule, breaks};
    let is_kept = |rule, scenario: &dyn Fn() -> bool| {
        breaks(Some(rule));
        let is_kept = scenario();
        breaks(None);
        is_kept
    };
    for rule in [Rule::JumpClosed, Rule::HalveStretch] {
        for table in forms(64) {
            assert!(!is_kept(rule, &|| (0..12).all(|seed| model(table, seed).0)), "{rule:?}: {table:?}");
        }
    }
    assert!(!is_kept(Rule::WalkSome, &liars_are_found));
    assert!(!is_kept(Rule::GapStops, &gaps_end_jumps));
}
