//! Holders that go by themselves, beside a model that knows who is there.

use crate::jumps::{Random, forms, served};
use crate::scene::Scene;
use oneread_prefix::{
    Digests, EventStream, Holder, HolderOptions, Keeps, Key, KvEvent, PlacementIndex, PlacementTable,
    PrefixError,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// As short as can be: who is there is never away.
const SHORT: Duration = Duration::from_millis(5);
const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// Tables whose holders may go by themselves.
fn with_owners() -> [PlacementTable; 2] {
    forms(160).map(|table| table.owners(true))
}

fn going(absent_for: Duration) -> HolderOptions {
    HolderOptions::new().absent_for(absent_for)
}

fn keys(blocks: usize) -> Vec<Key> {
    (1..=blocks as u128)
        .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes())
        .collect()
}

/// What a lookup tells.
fn told(index: &mut PlacementIndex, keys: &[Key]) -> BTreeMap<String, usize> {
    let mut found = Vec::new();
    index.match_prefix(&Digests::from(keys), &mut found).unwrap();
    found.iter().map(|one| (one.holder.name().into(), one.blocks)).collect()
}

fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > MINUTE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Waits until the server has seen that a holder is gone.
fn is_gone(index: &mut PlacementIndex, name: &str) -> bool {
    until(|| index.holders().unwrap().iter().all(|holder| holder.name() != name))
}

/// Workers come, store, drop, join, die, are dropped, in any order, while others clean or not. Returns whether lookups told
/// what those have that are there.
fn model(table: PlacementTable, seed: u64) -> bool {
    let scene = served(table, 2_000);
    let (mut index, mut router) = (scene.index(), scene.index());
    let (keys, mut random, mut is_right) = (keys(40), Random(seed), true);
    // Who is there for each name, and how many blocks it has.
    let mut there: BTreeMap<String, (Vec<Holder>, usize)> = BTreeMap::new();
    for step in 0..30 {
        let name = format!("worker {}", random.pick(4));
        let length = 1 + random.pick(keys.len());
        match random.pick(6) {
            0 | 1 => {
                let (holders, _) = there.entry(name.clone()).or_default();
                holders.push(index.holder_with(&name, going(SHORT)).unwrap());
                assert!(holders[0] == holders[holders.len() - 1], "who joins has the same registration");
            }
            2 | 3 => {
                if let Some((holders, blocks)) = there.get_mut(&name) {
                    index.add(&holders[0], &Digests::from(&keys[..length]), 0).unwrap();
                    *blocks = length.max(*blocks);
                }
            }
            4 => {
                if let Some((mut holders, _)) = there.remove(&name) {
                    let seen =
                        router.holders().unwrap().into_iter().find(|seen| *seen == holders[0]).unwrap();
                    assert!(seen.goes_by_itself() && !seen.is_present() && holders[0].is_present());
                    // It is there as long as one of them is.
                    holders.truncate(1);
                    assert!(router.holders().unwrap().contains(&seen));
                    drop(holders);
                    assert!(is_gone(&mut index, &name));
                }
            }
            _ => {
                assert_eq!(index.drop_holder(&name).unwrap(), there.remove(&name).is_some());
                if random.pick(2) == 0 {
                    scene.index().clean(usize::MAX).unwrap();
                }
            }
        }
        let expected: BTreeMap<String, usize> =
            there.iter().filter(|(_, of)| of.1 > 0).map(|(name, of)| (name.clone(), of.1)).collect();
        let told_now = told(&mut scene.index(), &keys);
        if told_now != expected {
            println!("{table:?}, seed {seed}, step {step}: told {told_now:?}, not {expected:?}");
            is_right = false;
        }
        // A handle that has looked before looks again.
        is_right = is_right && until(|| told(&mut router, &keys) == expected);
    }
    is_right
}

#[test]
fn who_is_there_is_told_and_nobody_else() {
    for table in with_owners() {
        for seed in 0..4 {
            assert!(model(table, seed), "{table:?}, seed {seed}");
        }
    }
}

/// Somebody is gone, and nobody has dropped it; others are there and silent. Returns what the first lookup of a handle tells.
fn after_a_death(scene: &Scene<PlacementIndex>) -> BTreeMap<String, usize> {
    let (mut index, keys) = (scene.index(), keys(20));
    let dead = index.holder_with("dead", going(SHORT)).unwrap();
    let silent = index.holder_with("silent", going(SHORT)).unwrap();
    let lasting = index.holder("lasting").unwrap();
    for holder in [&dead, &silent, &lasting] {
        index.add(holder, &Digests::from(&keys[..]), 0).unwrap();
    }
    drop(dead);
    assert!(is_gone(&mut index, "dead"));
    let told = told(&mut scene.index(), &keys);
    assert!(silent.is_present() && !lasting.goes_by_itself());
    told
}

/// Returns whether lookups leave out who is gone.
fn the_dead_are_left_out() -> bool {
    with_owners().into_iter().all(|table| {
        let scene = served(table, 2_000);
        after_a_death(&scene) == BTreeMap::from([("silent".into(), 20), ("lasting".into(), 20)])
    })
}

#[test]
fn who_is_gone_is_left_out_and_who_is_silent_is_not() {
    assert!(the_dead_are_left_out());
}

/// Whoever comes next takes the bit and the name of one that is gone, and none of its blocks.
#[test]
fn bits_of_the_dead_are_given_again() {
    for table in with_owners() {
        let scene = served(table, 2_000);
        let keys = keys(20);
        after_a_death(&scene);
        let mut index = scene.index();
        assert!(is_gone(&mut index, "silent"), "nobody is there for it any more");
        assert_eq!((index.drop_absent().unwrap(), index.drop_absent().unwrap()), (2, 0));
        while !index.clean(usize::MAX).unwrap().is_done {}
        let next = index.holder_with("next", going(HOUR)).unwrap();
        index.add(&next, &Digests::from(&keys[..3]), 0).unwrap();
        let expected = BTreeMap::from([("lasting".into(), 20), ("next".into(), 3)]);
        assert_eq!(told(&mut scene.index(), &keys), expected);
        // In a table that is full of them, a registration makes room.
        let few = forms(1)[usize::from(table.is_grouped())].owners(true);
        let scene = served(few, 2_000);
        let mut index = scene.index();
        drop(index.holder_with("first", going(SHORT)).unwrap());
        assert!(is_gone(&mut index, "first"));
        let second = index.holder_with("second", going(HOUR)).unwrap();
        let refused = scene.index().holder("third").unwrap_err();
        assert!(matches!(refused, PrefixError::Holders { max: 1 }), "{refused}");
        assert!(second.is_present());
    }
}

/// Holders come while somebody drops who is not there. Returns whether none of them was dropped: with `times` 0 within a
/// minute.
fn nobody_is_live_before_it_is_present(times: usize) -> bool {
    let [single, _] = with_owners();
    let scene = served(single, 1_000);
    let (is_over, has_dropped) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut other = scene.index();
        let (is_over, has_dropped) = (&is_over, &has_dropped);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if other.drop_absent().unwrap() > 0 {
                    has_dropped.store(true, Ordering::Relaxed);
                }
            }
        });
        let (mut index, begun) = (scene.index(), Instant::now());
        for n in 0.. {
            let is_enough = if times > 0 { n == times } else { begun.elapsed() > MINUTE };
            if is_enough || has_dropped.load(Ordering::Relaxed) {
                break;
            }
            let holder = index.holder_with("worker", going(HOUR)).unwrap();
            index.drop_holder(holder.name()).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    !has_dropped.into_inner()
}

#[test]
fn who_registers_is_present_first() {
    assert!(nobody_is_live_before_it_is_present(30));
}

/// Returns whether blocks of a holder that is gone are refused, though nobody has dropped it.
fn the_dead_get_no_blocks() -> bool {
    with_owners().into_iter().all(|table| {
        let scene = served(table, 2_000);
        let (mut index, mut other, keys) = (scene.index(), scene.index(), keys(20));
        let holder = index.holder_with("worker", going(SHORT)).unwrap();
        let [seen] = &other.holders().unwrap()[..] else { panic!("it is there") };
        assert!(other.add(seen, &Digests::from(&keys[..10]), 0).unwrap() > 0);
        drop(holder);
        assert!(is_gone(&mut index, "worker"));
        let added = other.add(seen, &Digests::from(&keys[..]), 0);
        matches!(added, Err(PrefixError::HolderGone { .. }))
    })
}

#[test]
fn who_is_gone_gets_no_blocks() {
    assert!(the_dead_get_no_blocks());
}

/// A table without owners says so, and how one is made. A holder that did not go by itself does from when somebody says so.
#[test]
fn a_table_says_whether_holders_may_go() {
    for (plain, owned) in forms(64).into_iter().zip(forms(64).map(|table| table.owners(true))) {
        let scene = served(plain, 1_000);
        let refused = scene.index().holder_with("worker", going(HOUR)).unwrap_err();
        assert!(refused.to_string().contains("keeps no owners"), "{refused}");
        assert!(refused.to_string().contains("`PlacementTable::owners`"), "{refused}");
        let refused = PlacementIndex::create(scene.index().client().clone(), owned).unwrap_err();
        assert!(refused.to_string().contains("keeps no owners"), "{refused}");

        let scene = served(owned, 1_000);
        let (mut index, keys) = (scene.index(), keys(9));
        let seen = index.holder_with("worker", Keeps::PrefixClosed).unwrap();
        index.add(&seen, &Digests::from(&keys[..]), 0).unwrap();
        let mut router = scene.index();
        assert_eq!(told(&mut router, &keys)["worker"], 9);
        let holder = index.holder_with("worker", going(SHORT).keeps(Keeps::PrefixClosed)).unwrap();
        assert_eq!((&holder, holder.goes_by_itself(), seen.goes_by_itself()), (&seen, true, false));
        assert_eq!(told(&mut router, &keys)["worker"], 9, "it has its blocks");
        drop(holder);
        assert!(until(|| told(&mut router, &keys).is_empty()));
    }
}

/// Several register one name at once, with and without: they have one holder, which is there as long as one of them is.
#[test]
fn several_register_one_name() {
    for table in with_owners() {
        for _ in 0..8 {
            let scene = served(table, 1_000);
            let holders: Vec<Holder> = std::thread::scope(|scope| {
                let begun: Vec<_> = (0..4)
                    .map(|n| {
                        let mut index = scene.index();
                        let options = if n < 3 { going(HOUR) } else { HolderOptions::new() };
                        scope.spawn(move || index.holder_with("worker", options).unwrap())
                    })
                    .collect();
                begun.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(holders.iter().all(|holder| *holder == holders[0]));
            let present: Vec<bool> = holders.iter().map(Holder::is_present).collect();
            assert_eq!(present, [true, true, true, false]);
            assert_eq!(scene.index().holders().unwrap().len(), 1);
            assert_eq!(scene.index().drop_absent().unwrap(), 0);
        }
    }
}

/// The next server of the table knows who goes by itself, and a worker that is silent comes back to it.
#[test]
fn holders_stay_where_the_server_is_started_again() {
    for table in with_owners() {
        let mut scene = served(table, 1_000);
        let (mut index, keys) = (scene.index(), keys(9));
        let holder = index.holder_with("worker", going(MINUTE)).unwrap();
        index.add(&holder, &Digests::from(&keys[..]), 0).unwrap();
        scene.server = None;
        scene.serve(table.config(oneread::TableSize::Keys(2_000)), None);
        let mut router = scene.index();
        assert_eq!(told(&mut router, &keys)["worker"], 9);
        assert_eq!(router.drop_absent().unwrap(), 0);
        assert!(until(|| index.add(&holder, &Digests::from(&keys[..]), 0).is_ok()));
        assert_eq!(router.holders().unwrap(), [holder]);
    }
}

/// An engine that is cleared goes by itself as before.
#[test]
fn a_cleared_engine_goes_by_itself() {
    let [single, _] = with_owners();
    let scene = served(single, 1_000);
    let (mut index, keys) = (scene.index(), keys(9));
    let holder = index.holder_with("engine", going(SHORT)).unwrap();
    let mut stream = EventStream::new(&index, holder).unwrap();
    let stored = || KvEvent::Stored { digests: Digests::from(&keys[..]) };
    stream.take(&mut index, 1, &[stored(), KvEvent::Cleared, stored()]).unwrap();
    assert!(stream.holder().is_present());
    assert_eq!(told(&mut scene.index(), &keys)["engine"], 9);
    drop(stream);
    assert!(is_gone(&mut index, "engine"));
    assert!(told(&mut scene.index(), &keys).is_empty());
}

/// Each rule is broken, and a test above notices.
#[cfg(feature = "faults")]
#[test]
fn broken_rules_of_presence_are_noticed() {
    use oneread_prefix::faults::{Rule, breaks};
    let is_kept = |rule, scenario: &dyn Fn() -> bool| {
        breaks(Some(rule));
        let is_kept = scenario();
        breaks(None);
        is_kept
    };
    assert!(!is_kept(Rule::AbsentGoes, &the_dead_are_left_out));
    assert!(!is_kept(Rule::PresenceFirst, &|| nobody_is_live_before_it_is_present(0)));
    assert!(!is_kept(Rule::AbsentAdds, &the_dead_get_no_blocks));
}
