//! Handles that share queue pairs.

use super::*;

stories! {
    free_places_are_used_again,
    costs_over_a_shared_pair,
}

/// A handle reads over the pair with the fewest readers. Dropped handles do not count: the next
/// handle gets their place, and no further connection is made.
fn free_places_are_used_again(fake: &Fake) {
    let server = serve(1024);
    let verbs = options().verbs.pairs(3);
    let mut first = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
    fill(&mut first, 50);
    let before = fake.count("live_qps");
    for _ in 0..5 {
        check_all(&mut first.clone(), 50);
        // One end of the pair is the server's.
        assert_eq!(fake.count("live_qps"), before + 2, "one pair more, each time the same");
    }
    let mut others: Vec<_> = (0..5).map(|_| first.clone()).collect();
    for (other, pairs) in others.iter_mut().zip([1, 2, 2, 2, 2]) {
        check_all(other, 50);
        assert_eq!(fake.count("live_qps"), before + 2 * pairs);
        assert_eq!(other.stats().reattached, 0);
    }
}

/// The counts of handles that share a pair add up to the device's count, whichever handle did the
/// work for the others. All their changes go over one connection, which stays.
fn costs_over_a_shared_pair(fake: &Fake) {
    for wait in [Wait::Poll, Wait::Block] {
        let server = serve(2000);
        let verbs = options().verbs.pairs(1).wait(wait);
        let one = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
        let mut clients = [one.clone(), one];
        fill(&mut clients[0], 200);
        check_all(&mut clients[1], 200);
        let device = || ["reads", "doorbells"].map(|name| fake.count(name));
        let asked = |clients: &[Client; 2]| {
            let counts = clients.each_ref().map(|client| client.queue_counts().unwrap());
            let sum = |of: fn(&oneread::internals::verbs::QueueCounts) -> u64| {
                counts.iter().map(of).sum::<u64>() as i64
            };
            [sum(|counts| counts.reads), sum(|counts| counts.doorbells), sum(|counts| counts.messages)]
        };
        let (before, asked_before) = (device(), asked(&clients));
        for client in &mut clients {
            check_all(client, 200);
        }
        let (after, asked_after) = (device(), asked(&clients));
        let [reads, doorbells, messages] = [0, 1, 2].map(|n| asked_after[n] - asked_before[n]);
        assert_eq!([reads, doorbells], [0, 1].map(|n| after[n] - before[n]), "{wait:?}");
        assert!(reads >= 2 * (200 + 29 + 1) && doorbells < reads && messages == 0, "{reads}, {doorbells}");
        let pairs = fake.count("live_qps");
        for n in 0..20 {
            clients[n % 2].put(b"key", b"value").unwrap();
            assert_eq!(fake.count("live_qps"), pairs, "the connection for changes is kept");
        }
        assert_eq!(asked(&clients)[2] - asked_after[2], 20);
    }
}
