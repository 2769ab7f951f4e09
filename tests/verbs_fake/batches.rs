//! Batches have an outcome for each key.

use super::*;

stories! {
    bad_pairs_in_a_batch,
    batches_with_outcomes,
    #[cfg(feature = "encryption")]
    values_are_encrypted,
    full_tables_in_a_batch,
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
