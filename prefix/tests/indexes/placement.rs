//! The index of holders, in both of its forms, beside a map that does the same.

use crate::scene::Scene;
use oneread::{Address, Client, Config, Evict, Server, ServerConfig, TableSize};
use oneread_prefix::{
    Digests, EventStream, Holder, Key, KvEvent, PlacementIndex, PlacementTable, PrefixError,
};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use std::collections::{BTreeMap, BTreeSet};

const HOLDERS: usize = 160;
const SIZE: TableSize = TableSize::Keys(4_000);

/// The digest of a block: of its tokens, and all those before it.
fn chain(tokens: &[u8]) -> Vec<Key> {
    let mut before = 1u128;
    let next = |&token: &u8| {
        before = (before ^ u128::from(token) ^ before >> 61)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        before.to_le_bytes()
    };
    tokens.iter().map(next).collect()
}

/// A prompt of a family whose members part at many places.
fn prompt(branch: [u8; 3], length: usize) -> Vec<Key> {
    let token = |n: usize| match n {
        0..5 => 0,
        5..11 => branch[0],
        11..20 => branch[1] * u8::from(n >= 13),
        _ => branch[2],
    };
    chain(&(0..length).map(token).collect::<Vec<_>>())
}

fn served(table: PlacementTable, evict: Option<Evict>) -> Scene<PlacementIndex> {
    served_with(table, table.config(SIZE), evict)
}

fn served_with(table: PlacementTable, config: Config, evict: Option<Evict>) -> Scene<PlacementIndex> {
    let scene = Scene::new(PlacementIndex::new, config, evict);
    table.mark(scene.server.as_ref().unwrap()).unwrap();
    scene
}

/// Both forms of a table.
fn forms() -> [PlacementTable; 2] {
    of_holders(HOLDERS)
}

fn of_holders(holders: usize) -> [PlacementTable; 2] {
    [PlacementTable::single(holders).unwrap(), PlacementTable::grouped(holders).unwrap()]
}

/// The length of each holder's prefix, by name. The longest comes first, and is what the lookup returns.
fn told(index: &mut PlacementIndex, keys: &[Key]) -> BTreeMap<String, usize> {
    let mut found = Vec::new();
    let longest = index.match_prefix(&Digests::from(keys), &mut found).unwrap();
    assert!(found.is_sorted_by_key(|one| std::cmp::Reverse(one.blocks)));
    assert_eq!(found.first().map_or(0, |first| first.blocks), longest);
    let told: BTreeMap<_, _> = found.iter().map(|one| (one.holder.name().into(), one.blocks)).collect();
    assert_eq!(told.len(), found.len(), "each name once");
    told
}

fn longest(index: &mut PlacementIndex, keys: &[Key]) -> usize {
    told(index, keys).into_values().max().unwrap_or(0)
}

fn length(index: &mut PlacementIndex, keys: &[Key], name: &str) -> usize {
    told(index, keys).remove(name).unwrap_or(0)
}

/// Has the index clean until nothing is left.
fn clean(index: &mut PlacementIndex, entries: usize) -> usize {
    let mut freed = 0;
    loop {
        let step = index.clean(entries).unwrap();
        freed += step.freed;
        if step.is_done {
            return freed;
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add {
        by: usize,
        holder: usize,
        branch: [u8; 3],
        length: usize,
        from: usize,
    },
    Drop {
        by: usize,
        holder: usize,
        branch: [u8; 3],
        length: usize,
        from: usize,
    },
    /// And it registers again.
    DropHolder {
        by: usize,
        holder: usize,
    },
    CleanSome {
        by: usize,
        entries: usize,
    },
    CleanAll,
}

fn op() -> impl Strategy<Value = Op> {
    let branch = (0..7u8, 0..6u8, 0..3u8).prop_map(|(a, b, c)| [a, b, c]);
    let range = (0..2usize, 0..3usize, branch, 1..30usize, 0..30usize);
    prop_oneof![
        8 => range.clone().prop_map(|(by, holder, branch, length, from)| {
            Op::Add { by, holder, branch, length, from: if from > 15 { 0 } else { from } }
        }),
        4 => range.prop_map(|(by, holder, branch, length, from)| Op::Drop { by, holder, branch, length, from }),
        1 => (0..2usize, 0..3usize).prop_map(|(by, holder)| Op::DropHolder { by, holder }),
        2 => (0..2usize, 1..50usize).prop_map(|(by, entries)| Op::CleanSome { by, entries }),
        1 => Just(Op::CleanAll),
    ]
}

/// Blocks by the holder that has them.
type Model = BTreeMap<usize, BTreeSet<Key>>;

/// Asks for all prompts of the family.
fn compare(index: &mut PlacementIndex, holders: &[Holder], model: &Model) {
    for branch in (0..7).flat_map(|a| (0..6).flat_map(move |b| (0..3).map(move |c| [a, b, c]))) {
        let keys = prompt(branch, 29);
        let mut expected = BTreeMap::new();
        for (n, holder) in holders.iter().enumerate() {
            let has = |key: &&Key| model.get(&n).is_some_and(|of_it| of_it.contains(*key));
            match keys.iter().take_while(has).count() {
                0 => {}
                blocks => drop(expected.insert(holder.name().to_owned(), blocks)),
            }
        }
        assert_eq!(told(index, &keys), expected, "{branch:?}");
    }
}

fn story(table: PlacementTable, ops: Vec<Op>) {
    let scene = served(table, None);
    let mut indexes = [scene.index(), scene.index()];
    let mut reader = scene.index();
    let mut holders: Vec<Holder> =
        (0..3).map(|n| indexes[n % 2].holder(&format!("worker {n}")).unwrap()).collect();
    let mut model = Model::new();
    for op in ops {
        match op {
            Op::Add { by, holder, branch, length, from } => {
                let keys = prompt(branch, length);
                indexes[by].add(&holders[holder], &Digests::from(&keys[..]), from).unwrap();
                model.entry(holder).or_default().extend(keys.iter().skip(from));
            }
            Op::Drop { by, holder, branch, length, from } => {
                let keys = prompt(branch, length);
                indexes[by].remove(&holders[holder], &Digests::from(&keys[..]), from).unwrap();
                let of_it = model.entry(holder).or_default();
                of_it.retain(|key| !keys[from.min(keys.len())..].contains(key));
            }
            Op::DropHolder { by, holder } => {
                let gone = holders[holder].clone();
                assert!(indexes[by].drop_holder(gone.name()).unwrap());
                assert!(!indexes[1 - by].drop_holder(gone.name()).unwrap(), "once is enough");
                model.remove(&holder);
                let late = indexes[1 - by].add(&gone, &Digests::from(&prompt([0; 3], 3)[..]), 0).unwrap_err();
                assert!(matches!(late, PrefixError::HolderGone { .. }), "{late}");
                compare(&mut reader, &holders, &model);
                holders[holder] = indexes[by].holder(gone.name()).unwrap();
                assert_ne!(holders[holder], gone);
                assert_eq!(holders[holder].number(), gone.number(), "a name's number is for ever");
            }
            Op::CleanSome { by, entries } => drop(indexes[by].clean(entries).unwrap()),
            Op::CleanAll => {
                clean(&mut indexes[0], 100);
            }
        }
    }
    compare(&mut reader, &holders, &model);
    // When all is taken out, nothing is left but names and what marks branches.
    clean(&mut indexes[1], 1_000);
    compare(&mut reader, &holders, &model);
    for holder in &holders {
        assert!(indexes[0].drop_holder(holder.name()).unwrap());
    }
    assert_eq!(clean(&mut indexes[0], 7), 3);
    let entries = reader.client().scan().map(|entry| entry.unwrap().key).filter(|key| key.len() == 16);
    assert!(reader_is_grouped(&scene) || entries.count() == 0);
    // The bits are given again.
    indexes[0].holder("another").unwrap();
    assert_eq!(live_bits(&mut indexes[0]), [0]);
}

fn reader_is_grouped(scene: &Scene<PlacementIndex>) -> bool {
    scene.index().is_grouped()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Adds, drops and ends of holders by two clients, with prompts that part at many places, repeated and out of
    /// order: another client is told what the model has.
    #[test]
    fn it_does_what_a_map_does(is_grouped in any::<bool>(), ops in vec(op(), 1..60)) {
        story(forms()[usize::from(is_grouped)], ops);
    }
}

/// One group with more blocks than an entry has room for, as a system prompt has that all requests begin with: every
/// branch is found, by one READ more, and is taken out again.
#[test]
fn groups_branch() {
    let scene = served(forms()[1], None);
    let mut index = scene.index();
    let holder = index.holder("worker").unwrap();
    let prompts: Vec<Vec<Key>> = (0..100).map(|n| chain(&[&[0; 3][..], &[n; 13]].concat())).collect();
    for keys in &prompts {
        index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
    }
    // The first lookup READs who has each bit.
    longest(&mut index, &prompts[0]);
    let before = index.stats().read.reads;
    for keys in &prompts {
        assert_eq!(length(&mut index, keys, holder.name()), 16);
    }
    let reads = index.stats().read.reads - before;
    // The mask, two groups, the branch, and the epoch; a few keys stand outside their primary windows.
    assert!((400..=550).contains(&reads), "{reads} READs for 100 prompts of 16 blocks");
    for keys in &prompts {
        index.remove(&holder, &Digests::from(&keys[..]), 3).unwrap();
        assert_eq!(longest(&mut index, keys), 3);
    }
}

/// Where a block stands is decided once: a holder that has it, and not those before it, is found again when it gets
/// them, whatever came and went meanwhile.
#[test]
fn blocks_stay_where_they_stand() {
    let scene = served(forms()[1], None);
    let mut index = scene.index();
    let [late, early] = ["late", "early"].map(|name| index.holder(name).unwrap());
    let of = |branch: u8| chain(&[[0; 4], [branch; 4]].concat());
    for branch in 0..10 {
        index.add(&early, &Digests::from(&of(branch)[..]), 0).unwrap();
    }
    for branch in 0..10 {
        let keys = of(branch);
        index.add(&late, &Digests::from(&keys[..]), 5).unwrap();
    }
    // All entries have room.
    for branch in 0..10 {
        index.remove(&early, &Digests::from(&of(branch)[..]), 0).unwrap();
    }
    for branch in (0..10).rev() {
        let keys = of(branch);
        index.add(&early, &Digests::from(&keys[..]), 0).unwrap();
        index.add(&late, &Digests::from(&keys[..5]), 0).unwrap();
    }
    for branch in 0..10 {
        let told = told(&mut index, &of(branch));
        assert_eq!(["late", "early"].map(|name| told[name]), [8, 8], "{branch}");
    }
}

/// A lookup READs no more than a batch behind the longest prefix, and in a grouped table one entry for eight blocks.
#[test]
fn lookups_cost_what_they_say() {
    for (table, per_block) in forms().into_iter().zip([1.0, 0.125]) {
        let scene = served(table, None);
        let mut index = scene.index();
        let (one, other) = (index.holder("one").unwrap(), index.holder("other").unwrap());
        let keys = chain(&[7; 2_000]);
        index.add(&one, &Digests::from(&keys[..1_600]), 0).unwrap();
        index.add(&other, &Digests::from(&keys[..800]), 0).unwrap();
        let reads_of = |index: &mut PlacementIndex| {
            let before = index.stats().read.reads;
            let told = told(index, &keys);
            assert_eq!((told["one"], told["other"]), (1_600, 800));
            index.stats().read.reads - before
        };
        let (first, reads) = (reads_of(&mut index), reads_of(&mut index) as f64);
        let pages = index.holders_max().div_ceil(64) as u64;
        assert!(first >= reads as u64 + 2 * pages, "the first one READs who has each bit");
        assert!(reads <= 1_728.0 * per_block * 1.1 + 4.0 && reads >= 1_600.0 * per_block, "{reads} READs");
        let before = index.stats().read.reads;
        let absent = chain(&[8; 2_000]);
        assert_eq!(longest(&mut index, &absent), 0);
        assert!(index.stats().read.reads - before <= 140);
    }
}

/// How many lines of 64 bytes a slot has, and how many bytes an entry that the highest holder is in.
#[test]
fn entries_have_the_bytes_they_say() {
    for (holders, lines, bytes) in [
        (4, [1, 3], [64, 192]),
        (64, [1, 3], [64, 192]),
        (160, [1, 5], [64, 320]),
        (256, [1, 6], [64, 384]),
        (1_024, [1, 3], [224, 1_312]),
    ] {
        for (n, table) in of_holders(holders).into_iter().enumerate() {
            let geometry = table.config(SIZE).geometry().unwrap();
            let slot = geometry.shape().bytes();
            assert_eq!(slot / 64, lines[n], "{holders}");
            let set = holders.div_ceil(64) * 8;
            let value = if n == 0 { set } else { 8 + 8 * (8 + set) };
            assert_eq!(slot as u64 + geometry.extent_bytes(&[0; 16], value), bytes[n], "{holders}");
            let owned = table.owners(true).config(SIZE).geometry().unwrap();
            let with_life = if n == 0 { 2 } else { lines[n] };
            assert_eq!(owned.shape().bytes() / 64, with_life, "{holders} with owners");
        }
    }
    let with_life = PlacementTable::default().config(SIZE).life(true);
    assert_eq!(with_life.geometry().unwrap().shape().bytes(), 128);
}

/// The server is started again over the same region, and holders and blocks are still there; over a new table
/// nobody is live, and lookups are empty until holders register again.
#[test]
fn holders_outlive_their_server() {
    for table in forms() {
        let mut scene = served(table, None);
        let mut index = scene.index();
        let holder = index.holder("worker").unwrap();
        let keys = prompt([1, 2, 1], 29);
        index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        drop(scene.server.take());
        scene.serve(table.config(SIZE), None);
        let mut router = scene.index();
        assert_eq!(longest(&mut router, &keys), 29);
        assert_eq!(router.holders().unwrap(), std::slice::from_ref(&holder));
        assert_eq!(router.holder("worker").unwrap(), holder);
        drop((router, index));
        drop(scene.server.take());
        std::fs::remove_file(scene.dir.path().join("region")).unwrap();
        scene.serve(table.config(SIZE), None);
        let unmarked =
            PlacementIndex::new(Client::connect(&scene.address()).unwrap()).unwrap_err().to_string();
        assert!(unmarked.contains("is not marked"), "{unmarked}");
        // The first one marks it, and another one may do so, too.
        let create = |table| PlacementIndex::create(Client::connect(&scene.address()).unwrap(), table);
        let _first = create(table).unwrap();
        let mut router = create(table).unwrap();
        let other = of_holders(HOLDERS + 1)[usize::from(table.is_grouped())];
        let refused = create(other).unwrap_err().to_string();
        assert!(refused.contains("is of other holders"), "{refused}");
        assert_eq!(longest(&mut router, &keys), 0);
        let gone = router.add(&holder, &Digests::from(&keys[..]), 0).unwrap_err();
        assert!(gone.to_string().contains("register it again"), "{gone}");
    }
}

/// A server whose entries make room for others: lengths may be shorter than what was added, and never longer;
/// holders stay, because they are pinned.
#[test]
fn what_leaves_only_shortens() {
    for (table, keys) in [
        (PlacementTable::single(HOLDERS).unwrap(), 2_000),
        (PlacementTable::grouped(8).unwrap(), 300),
        (PlacementTable::single(1_024).unwrap(), 2_000),
    ] {
        let scene = served_with(table, table.config(TableSize::Keys(keys)), Some(Evict::ALL[0].0));
        let (mut index, mut router) = (scene.index(), scene.index());
        let holders = ["a", "b"].map(|name| index.holder(name).unwrap());
        let prompts: Vec<Vec<Key>> = (0..200u8).map(|n| chain(&[n; 40])).collect();
        let mut found = 0;
        for (n, keys) in prompts.iter().enumerate() {
            index.add(&holders[n % 2], &Digests::from(&keys[..n % 41]), 0).unwrap();
            for (n, keys) in prompts[..=n].iter().enumerate().rev().take(20) {
                let told = told(&mut router, keys);
                let [has, other] = [n % 2, 1 - n % 2].map(|n| told.get(["a", "b"][n]).copied().unwrap_or(0));
                assert!(has <= n % 41 && other == 0, "{n}: {has} {other}");
                found += has;
            }
        }
        assert!(found > 1_000, "{found} blocks were found");
        assert_eq!(router.holders().unwrap().len(), 2);
    }
}

/// The keys of the index's own entries: mask, records, names.
fn own_keys(client: &mut Client) -> Vec<Vec<u8>> {
    client.scan().map(|entry| entry.unwrap().key).filter(|key| key.len() < 16).collect()
}

fn record_key(bit: u8) -> [u8; 6] {
    [b'#', b'h', bit, 0, 0, 0]
}

/// The bits of live holders.
fn live_bits(index: &mut PlacementIndex) -> Vec<u16> {
    let mask = index.client().get(b"#m").unwrap().unwrap();
    let bits = mask.len() as u16 * 8;
    (0..bits).filter(|n| mask[usize::from(n / 8)] >> (n % 8) & 1 == 1).collect()
}

/// Records, the mask, or all of it had to make room for other entries, before and after a drop: who registers then
/// is told nothing of what those before had, also where he has their bits after cleaning.
#[test]
fn bits_are_not_inherited() {
    for (table, is_dropped, goes) in forms()
        .into_iter()
        .flat_map(|table| [(table, false), (table, true)])
        .flat_map(|(table, is_dropped)| [0, 1, 2, 3].map(|goes| (table, is_dropped, goes)))
    {
        let scene = served(table, None);
        let (mut old, mut index) = (scene.index(), scene.index());
        let dead = old.holder("dead").unwrap();
        assert_eq!(live_bits(&mut old), [0]);
        let keys = prompt([1, 2, 1], 29);
        old.add(&dead, &Digests::from(&keys[..]), 0).unwrap();
        if is_dropped {
            assert!(old.drop_holder("dead").unwrap());
        }
        let client = old.client();
        let gone = match goes {
            0 => vec![record_key(0).to_vec()],
            1 => vec![b"#m".to_vec()],
            2 => vec![b"#m".to_vec(), record_key(0).to_vec()],
            _ => own_keys(client),
        };
        for key in gone {
            client.remove(&key).unwrap();
        }
        let knows_dead = goes == 1 && !is_dropped;
        let alive = index.holder("alive").unwrap();
        // What is known of other pages is still known.
        let (mine, freed) = match goes {
            1 => (1, usize::from(is_dropped)),
            0 | 2 => (64, 64),
            _ => (0, 0),
        };
        assert_eq!(live_bits(&mut index), if knows_dead { vec![0, 1] } else { vec![mine] });
        let told = told(&mut index, &keys);
        let dead_has = told.get("dead").copied().unwrap_or(0);
        assert_eq!(dead_has, if knows_dead { 29 } else { 0 }, "{is_dropped} {goes}: the mask is mended");
        assert!(!told.contains_key("alive"), "{is_dropped} {goes}");
        assert_eq!(index.holders().unwrap().len(), if knows_dead { 2 } else { 1 });
        if !knows_dead {
            assert!(!old.drop_holder("dead").unwrap());
            let late = old.add(&dead, &Digests::from(&keys[..]), 0).unwrap_err();
            assert!(matches!(late, PrefixError::HolderGone { .. }), "{late}");
        }
        index.add(&alive, &Digests::from(&keys[..9]), 0).unwrap();
        assert_eq!(clean(&mut index, 10), freed);
        index.holder("next").unwrap();
        assert_eq!(length(&mut index, &keys, "alive"), 9);
        assert_eq!(length(&mut index, &keys, "next"), 0, "{is_dropped} {goes}");
    }
}

/// Somebody was killed between a record and the mask's bit, in either direction: registrations and cleaning mend it.
#[test]
fn the_mask_is_mended() {
    let scene = served(forms()[0], None);
    let (mut index, mut router) = (scene.index(), scene.index());
    let (one, two) = (index.holder("one").unwrap(), index.holder("two").unwrap());
    let keys = prompt([1, 2, 1], 29);
    let told = |router: &mut PlacementIndex| {
        let told = told(router, &keys);
        ["one", "two"].map(|name| told.get(name).copied().unwrap_or(0))
    };
    assert_eq!(live_bits(&mut index), [0, 1]);
    for holder in [&one, &two] {
        index.add(holder, &Digests::from(&keys[..]), 0).unwrap();
    }
    for by_cleaning in [false, true] {
        index.client().and_not(b"#m", &[1 << 0]).unwrap();
        assert_eq!(told(&mut router), [0, 29]);
        match by_cleaning {
            true => assert!(router.clean(1).unwrap().is_done),
            false => drop(router.holder("two").unwrap()),
        }
        assert_eq!(told(&mut router), [29, 29]);
    }
    assert!(index.drop_holder("two").unwrap());
    for n in 0..3 {
        index.client().or(b"#m", &[1 << 1]).unwrap();
        // Its bit has no name any more for who looks at the records, and `two` for who did before.
        assert_eq!(told(&mut router)[0], 29);
        match n {
            0 => drop(router.holder("one").unwrap()),
            // Whoever hears of the drop a second time does the rest of it.
            1 => assert!(!router.drop_holder("two").unwrap()),
            _ => drop(router.clean(1).unwrap()),
        }
        assert_eq!(told(&mut router), [29, 0], "{n}");
    }
}

/// Clients that register, drop and clean the same names at the same time: when all is quiet, the holders that may add
/// are those that lookups see, and no two have the same bit or name.
#[test]
fn the_mask_agrees_when_all_is_quiet() {
    let scene = served(forms()[0], None);
    let key = &prompt([0; 3], 1)[..];
    let work = |n: usize| {
        let mut index = scene.index();
        for round in 0..60 {
            let holder = index.holder(["a", "b"][(n + round) % 2]).unwrap();
            // Others may have dropped it.
            let _ = index.add(&holder, &Digests::from(key), 0);
            if round % 3 != 2 {
                index.drop_holder(holder.name()).unwrap();
            }
            if n == 0 {
                index.clean(1_000).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for n in 0..3 {
            scope.spawn(move || work(n));
        }
    });
    let mut index = scene.index();
    let holders = index.holders().unwrap();
    assert_eq!(holders.len(), live_bits(&mut index).len());
    for holder in &holders {
        index.add(holder, &Digests::from(key), 0).unwrap();
    }
    let names: BTreeMap<String, usize> = holders.iter().map(|holder| (holder.name().into(), 1)).collect();
    assert_eq!(names.len(), holders.len(), "a name is live once");
    assert_eq!(told(&mut index, key), names);
}

/// The entry with which a group begins had to make room, and comes again: a block that stands in its own entry is
/// taken out of there all the same, and is not told when the group is branched again.
#[test]
fn what_is_removed_stays_removed_without_its_head() {
    let branches = |range: std::ops::Range<u8>| -> Vec<Vec<Key>> {
        range.map(|n| chain(&[&[0; 3][..], &[n; 5]].concat())).collect()
    };
    for comes_again in [0, 1, 4] {
        let scene = served(forms()[1], None);
        let mut index = scene.index();
        let holder = index.holder("worker").unwrap();
        let (early, later) = (branches(0..20), branches(20..40));
        for keys in &early {
            index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        }
        assert!(index.client().remove(&early[0][0]).unwrap());
        for keys in &early[..comes_again] {
            index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        }
        for keys in &early {
            index.remove(&holder, &Digests::from(&keys[..]), 3).unwrap();
        }
        for keys in &later {
            index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        }
        for keys in &early {
            assert_eq!(longest(&mut index, keys), 3);
        }
        for keys in &later {
            assert_eq!(longest(&mut index, keys), 8);
        }
    }
}

/// Events as engines publish them: a parent that comes after its child, batches that repeat, come late or are
/// missing, an engine that clears its blocks.
#[test]
fn events_are_taken_in() {
    let [single, grouped] = forms();
    let scene = served(single, None);
    let mut index = scene.index();
    let holder = index.holder("engine").unwrap();
    let mut stream = EventStream::new(&index, holder.clone()).unwrap();
    let keys = chain(&[3; 8]);
    let stored = |blocks: std::ops::Range<usize>| KvEvent::Stored { digests: Digests::from(&keys[blocks]) };
    let length = |index: &mut PlacementIndex| longest(index, &keys);
    let outcome = stream.take(&mut index, 7, &[stored(4..8)]).unwrap();
    assert_eq!((outcome.added, outcome.missed, length(&mut index)), (4, 0, 0), "its parent is unknown");
    let outcome = stream.take(&mut index, 8, &[stored(0..4), stored(2..6)]).unwrap();
    assert_eq!((outcome.added, length(&mut index)), (4, 8), "it came late");
    let removed = || KvEvent::Removed { digests: Digests::from(&keys[6..]) };
    let outcome = stream.take(&mut index, 10, &[removed(), removed()]).unwrap();
    assert_eq!((outcome.removed, outcome.missed, length(&mut index)), (2, 1, 6));
    for late in [7, 8, 9, 10] {
        let outcome = stream.take(&mut index, late, &[stored(0..8)]).unwrap();
        assert!(outcome.is_late && outcome.added == 0);
        assert_eq!(length(&mut index), 6, "{late} is late");
    }
    stream.take(&mut index, 11, &[stored(6..8), KvEvent::Cleared, stored(0..1)]).unwrap();
    assert_eq!(length(&mut index), 1);
    assert_eq!(stream.holder().number(), holder.number(), "a name's number is for ever");
    assert_ne!(stream.holder(), &holder);
    // Somebody takes the engine for dead.
    assert!(index.drop_holder(stream.holder().name()).unwrap());
    let gone = stream.take(&mut index, 12, &[stored(1..2)]).unwrap_err();
    assert!(matches!(gone, PrefixError::HolderGone { .. }), "{gone}");
    stream.clear(&mut index).unwrap();
    assert_eq!(stream.take(&mut index, 12, &[stored(0..2)]).unwrap().added, 2);
    assert_eq!(length(&mut index), 2);
    // The engine begins again with its numbers.
    assert!(stream.take(&mut index, 0, &[stored(0..3)]).unwrap().is_late);
    stream.restarted(&mut index).unwrap();
    assert_eq!(length(&mut index), 0);
    let outcome = stream.take(&mut index, 0, &[stored(0..3)]).unwrap();
    assert_eq!((outcome.added, outcome.missed, outcome.is_late, length(&mut index)), (3, 0, false, 3));
    let scene = served(grouped, None);
    let mut index = scene.index();
    let holder = index.holder("engine").unwrap();
    assert!(matches!(EventStream::new(&index, holder), Err(PrefixError::Grouped)));
}

/// All numbers taken, none known, wrong tables, lists of other lengths: an error that names it.
#[test]
fn bad_input_is_named() {
    let scene = served(PlacementTable::grouped(8).unwrap(), None);
    let mut index = scene.index();
    assert_eq!(index.holders_max(), 8);
    for holders in [0, 4_097, 70_000, usize::MAX] {
        for refused in [PlacementTable::single(holders), PlacementTable::grouped(holders)] {
            let refused = refused.unwrap_err().to_string();
            assert_eq!(
                refused,
                format!(
                    "a table has 1 to 4096 holders, and {holders} were asked for; give a number in between"
                )
            );
        }
    }
    let refused = index.drop_holder("").unwrap_err();
    assert!(matches!(refused, PrefixError::Name { given: 0, max: 200 }), "{refused}");
    let address = Address::Shm(scene.dir.path().join("other"));
    let other = Config::new().size(TableSize::Keys(100)).value_max(64);
    let server = Server::start(ServerConfig::new(address.clone(), other)).unwrap();
    let connect = || Client::connect(&address).unwrap();
    let (table, lengths) = (PlacementTable::default(), "has other lengths of keys and values");
    for (refused, why) in [
        (PlacementIndex::new(connect()).map(drop), "is not marked as one of holders"),
        (PlacementIndex::create(connect(), table).map(drop), lengths),
        (table.mark(&server), lengths),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(why) && refused.contains("`PlacementTable::config`"), "{refused}");
    }
    drop(index);
    let scene = served(PlacementTable::single(160).unwrap(), None);
    let mut index = scene.index();
    let holders: Vec<Holder> = (0..160).map(|n| index.holder(&format!("{n}")).unwrap()).collect();
    let refused = index.holder("one more").unwrap_err();
    assert!(matches!(refused, PrefixError::Holders { max: 160 }), "{refused}");
    assert_eq!(index.holders().unwrap(), holders);
    assert!(index.drop_holder("77").unwrap());
    index.holder("one more").unwrap();
    assert_eq!(live_bits(&mut index).len(), 160, "it cleans first");
    assert_eq!(clean(&mut index, 100), 0);
    assert!(!index.drop_holder("77").unwrap());
}

/// Another process knows a worker only by what it was told. The worker is cleared, and the bit that it had is given to
/// another one: that process tells each name what it has, asks nobody for names, and drops the worker by its name.
#[test]
fn names_outlive_bits() {
    for table in forms() {
        let scene = served(table, None);
        let (mut index, mut router) = (scene.index(), scene.index());
        let (keys, mine) = (chain(&[1; 80]), chain(&[2; 80]));
        let digests = Digests::from(&keys[..]);
        let first = index.holder("a").unwrap();
        index.add(&first, &digests, 0).unwrap();
        assert_eq!(told(&mut router, &keys), BTreeMap::from([("a".into(), 80)]));
        // Cleared: another bit, and the same name and number.
        assert!(index.drop_holder("a").unwrap());
        let again = index.holder("a").unwrap();
        index.add(&again, &Digests::from(&mine[..]), 0).unwrap();
        clean(&mut index, 1_000);
        // Its first bit is another one's now.
        let next = index.holder("b").unwrap();
        index.add(&next, &digests, 0).unwrap();
        assert_eq!(live_bits(&mut index), [0, 1], "the first bit was given again");
        assert_eq!(told(&mut router, &keys), BTreeMap::from([("b".into(), 80)]));
        assert_eq!(told(&mut router, &mine), BTreeMap::from([("a".into(), 80)]));
        if !router.is_grouped() {
            let mut held = Vec::new();
            router
                .holders_of(&Digests::from(&[keys[0], mine[0]][..]), |block, holder| {
                    held.push((block, holder.name().to_owned()));
                })
                .unwrap();
            assert_eq!(held, [(0, "b".into()), (1, "a".into())]);
        }
        // Who has the first registration is told that it is no more, and drops the second one all the same.
        let late = router.add(&first, &digests, 0).unwrap_err();
        assert!(matches!(late, PrefixError::HolderGone { .. }), "{late}");
        assert!(router.drop_holder(first.name()).unwrap());
        assert_eq!(told(&mut index, &mine), BTreeMap::new());
        assert_eq!(first.number(), again.number());
        assert_ne!(first.number(), next.number());
    }
}

/// Who registered died when the bit was claimed, and not live yet: the next one of the name goes on, and cleaning gives a
/// bit that nobody goes on with to others.
#[test]
fn a_claim_of_the_dead_is_nobody_s() {
    const CLAIMED: u8 = 4;
    for goes_on in [false, true] {
        let scene = served(forms()[0], None);
        let (mut index, mut router) = (scene.index(), scene.index());
        let keys = chain(&[1; 8]);
        let holder = index.holder("a").unwrap();
        index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        assert_eq!(longest(&mut router, &keys), 8);
        let client = index.client();
        let mut record = client.get(&record_key(0)).unwrap().unwrap();
        record[0] = CLAIMED;
        client.put(&record_key(0), &record).unwrap();
        client.and_not(b"#m", &[1]).unwrap();
        assert_eq!(longest(&mut router, &keys), 0);
        let gone = index.add(&holder, &Digests::from(&keys[..]), 0).unwrap_err();
        assert!(matches!(gone, PrefixError::HolderGone { .. }), "{gone}");
        if goes_on {
            let holder = router.holder("a").unwrap();
            router.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
            assert_eq!(live_bits(&mut index), [0]);
        } else {
            assert_eq!(clean(&mut index, 1_000), 1);
            assert_eq!(index.client().get(&record_key(0)).unwrap().unwrap()[0], 3, "it is free");
        }
        assert_eq!(longest(&mut router, &keys), if goes_on { 8 } else { 0 });
    }
}

/// A table for a thousand holders and more: each has its blocks, an entry is as wide as its highest bit needs, in whichever
/// order they come and go, and a registration READs a page of 64 holders, not each of them.
#[test]
fn thousands_of_holders() {
    for table in of_holders(1_024) {
        let scene = served(table, None);
        let (mut index, mut router) = (scene.index(), scene.index());
        let keys = chain(&[3; 20]);
        let digests = Digests::from(&keys[..]);
        let mut holders = Vec::new();
        for n in 0..300 {
            let before = index.stats().read.reads;
            holders.push(index.holder(&format!("worker {n}")).unwrap());
            let reads = index.stats().read.reads - before;
            // Pages are READ four times at most; the table is new before the first one.
            assert!(n == 0 || reads <= 4 * 2 * 16 + 20, "{reads} READs for holder {n}");
        }
        assert_eq!(live_bits(&mut index), (0..300).collect::<Vec<_>>());
        let width = |index: &mut PlacementIndex| {
            let value = index.client().get(&keys[0]).unwrap().unwrap().len();
            if table.is_grouped() { (value - 8) / 8 - 8 } else { value }
        };
        // Narrow, wide, and narrow ones again.
        for (n, wide) in [(5, 8), (290, 40), (70, 40), (250, 40), (64, 40)] {
            index.add(&holders[n], &digests, 0).unwrap();
            assert_eq!(width(&mut index), wide, "{n}");
        }
        let of = |n: usize, blocks| (format!("worker {n}"), blocks);
        let all = [5, 290, 70, 250, 64].map(|n| of(n, 20));
        assert_eq!(told(&mut router, &keys), BTreeMap::from(all));
        index.remove(&holders[290], &digests, 10).unwrap();
        // Its bit is beyond the set of a block that it never had.
        let narrow = chain(&[4; 8]);
        index.add(&holders[7], &Digests::from(&narrow[..]), 0).unwrap();
        assert_eq!(index.remove(&holders[290], &Digests::from(&narrow[..]), 0).unwrap(), 0);
        assert_eq!(told(&mut router, &narrow), BTreeMap::from([of(7, 8)]));
        assert_eq!(told(&mut router, &keys)["worker 290"], 10);
        // One of each width goes, and the bits are given again.
        for n in [5, 290] {
            assert!(index.drop_holder(&format!("worker {n}")).unwrap());
        }
        assert_eq!(told(&mut router, &keys), BTreeMap::from([70, 250, 64].map(|n| of(n, 20))));
        assert_eq!(clean(&mut index, 1_000), 2);
        index.holder("next").unwrap();
        index.holder("last").unwrap();
        assert_eq!(live_bits(&mut index), (0..300).collect::<Vec<_>>());
        assert_eq!(told(&mut router, &keys), BTreeMap::from([70, 250, 64].map(|n| of(n, 20))));
        for n in [70, 250, 64, 7] {
            index.drop_holder(&format!("worker {n}")).unwrap();
        }
        clean(&mut index, 1_000);
        let blocks = index.client().scan().filter(|entry| entry.as_ref().unwrap().key.len() == 16);
        assert_eq!(blocks.count(), 0, "blocks that nobody has go, however wide their sets are");
    }
}

/// The most holders that a table can have, registered by one handle in a table that evicts: a connection has fewer pins, and
/// each holder is told all the same.
#[test]
fn more_holders_than_pins() {
    let table = PlacementTable::single(4_096).unwrap();
    let scene = served_with(table, table.config(TableSize::Keys(20_000)), Some(Evict::ALL[0].0));
    let (mut index, mut router) = (scene.index(), scene.index());
    let key = &chain(&[1])[..];
    let name = |n: usize| format!("a name that takes more than one entry: worker {n}");
    // Three pins each for the name.
    for n in 0..1_400 {
        let holder = index.holder(&name(n)).unwrap();
        if n % 100 == 99 {
            index.add(&holder, &Digests::from(key), 0).unwrap();
        }
    }
    let expected: BTreeMap<_, _> = (0..1_400).skip(99).step_by(100).map(|n| (name(n), 1)).collect();
    assert_eq!(told(&mut router, key), expected);
    assert_eq!(router.holders().unwrap().len(), 1_400);
}
