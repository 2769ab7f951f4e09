//! Batches have an outcome for each key.

use super::*;

stories! {
    bad_pairs_in_a_batch,
    batches_with_outcomes,
    #[cfg(feature = "encryption")]
    values_are_encrypted,
    full_tables_in_a_batch,
    parts_of_values,
    batches_in_a_table_with_owners,
    batches_of_long_values_with_owners,
}

/// Batches have an outcome for each key, and may end early. Values are swapped.
fn batches_with_outcomes(_: &Fake) {
    for options in ways() {
        let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
        batches_and_swaps(&mut Client::connect_with(server.address(), options).unwrap());
    }
}

/// Values that clients encrypt: the same as on shm. A READ that fails in a batch changes no answer.
#[cfg(feature = "encryption")]
fn values_are_encrypted(fake: &Fake) {
    for options in ways() {
        let table =
            config(default_preset(), 2000, 16, encrypted::STORED_MAX, 7).grace(Duration::from_millis(500));
        let server = serve_ways(at("127.0.0.1:0"), table);
        let connect = |encryption| {
            Client::connect_with(server.address(), options.clone().encryption(encryption)).unwrap()
        };
        encrypted::encrypted_values(&connect);
        let mut client = connect(Some(encrypted::ours()));
        batches_and_swaps(&mut client);
        fill(&mut client, 200);
        fake.set("FAKE_FAIL_STATUS", 12);
        fake.set("FAKE_FAIL_NTH_READ", 100);
        check_all(&mut client, 200);
        assert_eq!(client.stats().failures.undecrypted, 0);
    }
}

/// Parts of values are changed, one by one and in batches, also where each answer is as long as the longest value. Swaps
/// begin and end with absence. All keys are removed.
fn parts_of_values(_: &Fake) {
    for options in ways() {
        let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
        let mut client = Client::connect_with(server.address(), options).unwrap();
        assert_eq!(client.add(b"n", 5, Some(7)).unwrap(), Some(12));
        let range = PartError::CounterRange { value: 12, delta: -13 };
        assert_eq!(client.add(b"n", -13, None).unwrap_err().rejection(), Some(range.into()));
        assert_eq!(client.append(b"log", &[7; 46], 46).unwrap(), PartEffect::Inserted);
        let too_long = PutError::ValueLength { given: 47, max: 46 };
        assert_eq!(client.append(b"log", b"+", 99).unwrap_err().rejection(), Some(too_long));
        assert_eq!(client.and_not(b"log", &[1; 46]).unwrap(), PartEffect::Updated);
        let deltas: Vec<_> = (0..900i64).map(|n| ([n as u8 % 3], n)).collect();
        let sums: Vec<_> =
            client.add_many(&deltas, Some(0)).unwrap().into_iter().map(Result::unwrap).collect();
        let expected = (0..900u64).map(|n| Some((0..=n).filter(|m| m % 256 % 3 == n % 256 % 3).sum()));
        assert_eq!(sums, expected.collect::<Vec<_>>());
        let told = client.change_parts(&[(b"log", PartChange::Or { bits: b"" }); 300], Tell::After).unwrap();
        let log = PartOutcome::clone(told[0].as_ref().unwrap());
        assert_eq!((log.effect, log.value), (PartEffect::Unchanged, Some(vec![6; 46])));
        assert!(told.iter().all(|same| *same == told[0]));
        let swaps = [
            (&b"log"[..], Some(vec![6; 46]), None),
            (b"log", Some(vec![6; 46]), None),
            (b"log", None, Some(vec![5; 46])),
            (b"log", None, Some(vec![4; 46])),
            (b"log", Some(vec![5; 46]), Some(vec![3; 46])),
        ];
        let swapped: Vec<_> =
            client.compare_exchange_many(&swaps).unwrap().into_iter().map(Result::unwrap).collect();
        use SwapOutcome::{Absent, Differs, Swapped};
        assert_eq!(swapped, [Swapped, Absent, Swapped, Differs, Swapped]);
        assert_eq!(client.get(b"log").unwrap(), Some(vec![3; 46]));
        assert_eq!(client.clear().unwrap(), 5);
        assert_eq!(server.stats().keys, 0);
    }
}

/// Some pairs of a batch are wrong. Each answer belongs to its own pair.
fn bad_pairs_in_a_batch(_: &Fake) {
    for options in ways() {
        let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
        bad_pairs_in_batches(&mut Client::connect_with(server.address(), options).unwrap());
    }
}

/// Answers may be longer than their requests. No message asks for more answers than one message
/// holds.
fn full_tables_in_a_batch(_: &Fake) {
    for options in ways() {
        let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 64, 16, 46, 7));
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let pairs: Vec<_> = (0..3000u16).map(|n| (n.to_le_bytes(), b"")).collect();
        let answers = client.put_many(&pairs).unwrap();
        let mut there = 0;
        for ((key, _), answer) in pairs.iter().zip(answers) {
            let found = client.get_two_sided(key).unwrap().is_some();
            match answer {
                Ok(PutOutcome::Inserted) => assert!(found, "{key:?}"),
                Err(PutError::Full { .. }) => assert!(!found, "{key:?}"),
                other => panic!("{key:?}: {other:?}"),
            }
            there += u64::from(found);
        }
        assert!(there >= 32 && there == server.index().len(), "{there} keys");
        assert_eq!(client.stats().reattached, 0);
    }
}

/// A batch in a table with owners has its READs under way at the same time, and one more for the bits of the owners of
/// so many keys. So has a look whether entries are still the same.
fn batches_in_a_table_with_owners(fake: &Fake) {
    const KEYS: u32 = 200;
    /// Keys before a READ of bits.
    const TOGETHER: u32 = 128;
    let table = config(default_preset(), 2000, 16, 46, 7).grace(CALM).life(true).owners(true);
    let server = serve_ways(at("127.0.0.1:0"), table);
    for (nth, options) in both_paths(16).into_iter().enumerate() {
        let mut client = Client::connect_with(server.address(), options).unwrap();
        // One whose bit is in the first word, and one whose bit is in the last.
        let [one, other] = [1 + nth as u16, 65_534 - nth as u16];
        let [mut of_one, mut of_other] =
            [one, other].map(|owner| client.owner(OwnerOptions::new(owner)).unwrap());
        for n in 0..KEYS {
            let (key, value) = ours(n);
            [&mut client, &mut of_one, &mut of_other][n as usize % 3].put(&key, &value).unwrap();
        }
        let reads = |act: &mut dyn FnMut()| {
            let before = fake.count("reads");
            act();
            fake.count("reads") - before
        };
        // Some keys are displaced.
        let most = i64::from(KEYS + KEYS / 8 + KEYS.div_ceil(TOGETHER));
        let took = reads(&mut || {
            for (n, found) in client.get_many(&keys(KEYS)).unwrap().into_iter().enumerate() {
                assert_eq!(found, Ok(Some(ours(n as u32).1)), "key {n}");
            }
        });
        assert!((i64::from(KEYS)..=most).contains(&took), "{took} READs of {KEYS} keys");
        let numbers: Vec<u64> =
            keys(KEYS).iter().map(|key| client.life(key).unwrap().unwrap().number).collect();
        let took = reads(&mut || {
            assert_eq!(client.revalidate(&keys(KEYS), &numbers).unwrap(), [true; KEYS as usize]);
        });
        assert!((i64::from(KEYS)..=most).contains(&took), "{took} READs of {KEYS} keys");
        client.put(&ours(0).0, b"").unwrap();
        assert!(client.remove_owner(one).unwrap());
        let there = |n: usize| n % 3 != 1;
        for (n, found) in client.get_many(&keys(KEYS)).unwrap().into_iter().enumerate() {
            assert_eq!(found.unwrap().is_some(), there(n), "key {n}");
        }
        for (n, same) in client.revalidate(&keys(KEYS), &numbers).unwrap().into_iter().enumerate() {
            assert_eq!(same, n > 0 && there(n), "key {n}");
        }
        let counted = client.stats().get;
        assert_eq!(counted.gets - counted.hits, 2 * u64::from(KEYS / 3 + 1), "hidden ones are absent");
    }
}

/// Values of any length come in a batch, whose entries have owners or none. Who wants no bytes of them causes no READ of
/// any, but of keys that do not fit their slots.
fn batches_of_long_values_with_owners(fake: &Fake) {
    const KEYS: u32 = 24;
    let table = config(default_preset(), 256, 16, 300_000, 7).inline_max(40).heap_bytes(32 << 20).grace(CALM);
    let table = table.key_max(200).life(true).owners(true);
    let server = Server::start(ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN))).unwrap();
    for (nth, options) in (7..).zip(both_paths(16)) {
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let mut owned = client.owner(OwnerOptions::new(nth)).unwrap();
        let long = |n: u32| value(n.into(), [20, 4_000, 250_000, 299_999][n as usize % 4]);
        // Each third key does not fit its slot.
        let keys: Vec<_> = (0..KEYS).map(|n| key(n, if n % 3 == 0 { 100 } else { 16 })).collect();
        for (n, key) in (0..KEYS).zip(&keys) {
            [&mut client, &mut owned][n as usize % 2].put(key, &long(n)).unwrap();
        }
        for (n, found) in (0..KEYS).zip(client.get_many(&keys).unwrap()) {
            assert_eq!(found, Ok(Some(long(n))), "key {n}");
        }
        let numbers: Vec<u64> = keys.iter().map(|key| client.life(key).unwrap().unwrap().number).collect();
        fake.set("counts", 0);
        assert_eq!(client.revalidate(&keys, &numbers).unwrap(), [true; KEYS as usize]);
        let (mut present, all) = (Vec::new(), (1 << KEYS) - 1);
        client.contains_many(&keys, &mut present).unwrap();
        assert_eq!(present, [all]);
        let bytes = fake.count("bytes");
        assert!(bytes < 200_000, "{bytes} bytes: no value was READ");
        assert!(client.remove_owner(nth).unwrap());
        for (n, found) in (0..KEYS).zip(client.get_many(&keys).unwrap()) {
            assert_eq!(found, Ok((n % 2 == 0).then(|| long(n))), "key {n}");
        }
        client.clear().unwrap();
    }
}
