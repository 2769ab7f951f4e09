//! What comes from nodes, in any order: two tell the same, one answers too late, or for another one, or tells that it has nothing.

use super::super::tests::{Scene, nodes};
use super::*;
use crate::core::hash::ShardHash;
use crate::core::state::Timing;
use crate::wire::{Bounds, Secret};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

fn at(epoch: u64, number: u64) -> FeedAt {
    FeedAt { epoch, number }
}

/// A part behind this change, with those of these numbers.
fn part(from: FeedAt, numbers: std::ops::RangeInclusive<u64>) -> FeedPart {
    let told = |number| Told {
        at: at(from.epoch, number),
        effect: Effect::Came,
        key: Bytes::from_static(b"key"),
        value: None,
    };
    FeedPart { from, changes: numbers.map(told).collect() }
}

/// A task that was asked nothing yet, and what it hears.
fn task(shards: &[Option<FeedAt>]) -> (Task, Receiver<News>, Arc<Between>) {
    let config = ClusterConfig {
        shards: 2,
        replicas: 2,
        hash: ShardHash::new(1),
        key_max: 64,
        value_max: 64,
        timing: Timing::default(),
    };
    let name = "a-test".parse().unwrap();
    let who = Identity::new(name, None, Secret::default(), Bounds::of(&config));
    let (send, heard) = sync_channel(WAITING_MAX);
    let between = Arc::new(Between::default());
    let ((_, learned), (_, ended)) = (watch::channel(()), oneshot::channel());
    let task = Task {
        shared: Weak::new(),
        between: Arc::downgrade(&between),
        who,
        shards: shards.iter().map(|at| Followed { at: *at, refused: None }).collect(),
        values: false,
        nodes: FxHashMap::default(),
        asks: 0,
        news: Arc::new(send),
        learned,
        ended,
    };
    (task, heard, between)
}

impl Task {
    /// A node was asked for these shards.
    fn asked(&mut self, node: NodeId, shards: &[ShardIx]) -> u64 {
        self.asks += 1;
        let wanted = shards.iter().map(|shard| (*shard, (self.shards[usize::from(*shard)].at, (node, 1))));
        let last = Some((self.asks, wanted.collect()));
        self.nodes.insert(node, Ok(Asked { follows: mpsc::unbounded_channel().0, last }));
        self.asks
    }
}

/// What was heard, by shard: behind which change, and the numbers.
fn all(news: &Receiver<News>) -> Vec<(ShardIx, Option<FeedAt>, Vec<u64>)> {
    let numbers = |part: &FeedPart| part.changes.iter().map(|told| told.at.number).collect();
    news.try_iter()
        .map(|news| match news {
            News::Heard(heard) => (heard.shard, heard.after, numbers(&heard.part)),
            News::Interrupt => panic!("nobody has interrupted"),
        })
        .collect()
}

/// Two nodes were asked for what follows one change, and both tell it: it counts once, whoever comes first.
#[tokio::test]
async fn what_two_nodes_tell_counts_once() {
    for (first, second) in [(A, B), (B, A)] {
        let (mut task, heard, _between) = task(&[Some(at(1, 10)), None]);
        let asks = [(A, task.asked(A, &[0])), (B, task.asked(B, &[0]))];
        for (node, told) in [(first, 11..=13), (second, 11..=15)] {
            let ask = asks.iter().find(|(of, _)| *of == node).unwrap().1;
            let shards = vec![(0, Some(part(at(1, 10), told)))];
            task.comes(node, Ok(Changes { ask, shards })).await;
        }
        assert_eq!(all(&heard), [(0, Some(at(1, 10)), vec![11, 12, 13])]);
        assert_eq!(task.shards[0].at, Some(at(1, 13)));
        // The rest of it comes with the next answer.
        let ask = task.asked(second, &[0]);
        let shards = vec![(0, Some(part(at(1, 13), 14..=15)))];
        task.comes(second, Ok(Changes { ask, shards })).await;
        assert_eq!(all(&heard), [(0, Some(at(1, 13)), vec![14, 15])]);
    }
}

/// An answer counts once, and only the one to the last ask. Shards that were not asked for are nobody's.
#[tokio::test]
async fn late_answers_count_for_nothing() {
    let (mut task, heard, _between) = task(&[Some(at(1, 10)), Some(at(1, 0))]);
    let answer = |ask, shard| Ok(Changes { ask, shards: vec![(shard, Some(part(at(1, 10), 11..=11)))] });
    let old = task.asked(A, &[0]);
    let new = task.asked(A, &[0]);
    task.comes(A, answer(old, 0)).await;
    task.comes(A, answer(new, 1)).await;
    task.comes(A, answer(new, 0)).await;
    assert!(
        all(&heard).is_empty(),
        "the answer to an earlier ask; another shard; and an ask is answered once"
    );
    let ask = task.asked(A, &[0]);
    task.comes(B, answer(ask, 0)).await;
    assert!(all(&heard).is_empty(), "another node's ask");
    task.comes(A, answer(ask, 0)).await;
    task.comes(A, answer(ask, 9)).await;
    assert_eq!(all(&heard), [(0, Some(at(1, 10)), vec![11])]);
}

/// A node that tells nothing of a shard is not asked for it again at once, longer each time; what it tells of others counts.
/// With the first word of it the pause begins anew.
#[tokio::test]
async fn who_tells_nothing_is_asked_later() {
    let (mut task, heard, _between) = task(&[Some(at(1, 10)), Some(at(1, 20))]);
    let mut pauses = Vec::new();
    for number in 21..=29 {
        let ask = task.asked(A, &[0, 1]);
        let other = part(at(1, number - 1), number..=number);
        task.comes(A, Ok(Changes { ask, shards: vec![(0, None), (1, Some(other))] })).await;
        let (by, pause) = task.shards[0].refused.expect("it is asked later");
        assert_eq!(by, (A, 1));
        pauses.push(pause.length);
        assert_eq!(all(&heard), [(1, Some(at(1, number - 1)), vec![number])]);
        assert!(task.shards[1].refused.is_none());
    }
    assert!(pauses.windows(2).all(|pair| pair[1] == (2 * pair[0]).min(PAUSE_MAX)), "{pauses:?}");
    assert_eq!((pauses[0], pauses[8]), (AGAIN, PAUSE_MAX));
    // Another one has its own.
    let ask = task.asked(B, &[0]);
    task.comes(B, Ok(Changes { ask, shards: vec![(0, None)] })).await;
    assert_eq!(task.shards[0].refused.map(|(by, pause)| (by, pause.length)), Some(((B, 1), AGAIN)));
    let ask = task.asked(A, &[0]);
    task.comes(A, Ok(Changes { ask, shards: vec![(0, Some(part(at(1, 10), 11..=11)))] })).await;
    assert!(task.shards[0].refused.is_none());
    assert_eq!(all(&heard).len(), 1);
}

/// A connection that has failed is made again a little later, and why is noted. What it was asked is answered by nobody.
#[tokio::test]
async fn a_failed_connection_is_noted() {
    let (mut task, heard, between) = task(&[Some(at(1, 10)), None]);
    let ask = task.asked(A, &[0]);
    let error = WireError::NoSecret { address: "nowhere".into() };
    task.comes(A, Err(error)).await;
    assert!(matches!(task.nodes.get(&A), Some(Err(until)) if *until > Instant::now() - NODE_AGAIN));
    assert!(lock(&between.why).as_ref().is_some_and(|why| why.contains("nowhere")));
    task.comes(A, Ok(Changes { ask, shards: vec![(0, Some(part(at(1, 10), 11..=11)))] })).await;
    assert!(all(&heard).is_empty() && task.shards[0].at == Some(at(1, 10)));
}

/// An empty part moves a follower that has no place yet, and is told.
#[tokio::test]
async fn an_empty_part_says_where_it_begins() {
    let (mut task, heard, _between) = task(&[None, None]);
    let ask = task.asked(A, &[0]);
    let shards = vec![(0, Some(FeedPart { from: at(3, 7), changes: Vec::new() }))];
    task.comes(A, Ok(Changes { ask, shards })).await;
    assert_eq!(task.shards[0].at, Some(at(3, 7)));
    assert_eq!(all(&heard), [(0, None, vec![])]);
}

/// A feed that hears what the test sends, and has a client of the scene's.
fn feed(scene: &Scene, shards: &[Option<FeedAt>]) -> (ClusterFeed, Arc<SyncSender<News>>) {
    let (send, news) = sync_channel(WAITING_MAX);
    let (send, _ends) = (Arc::new(send), oneshot::channel().0);
    let interrupter = ClusterInterrupter { news: Arc::downgrade(&send) };
    let client = ClusterClient { deadline: SHOWN_WITHIN, ..scene.client.clone() };
    let position = ClusterPosition { cluster: client.config().hash.seed(), shards: shards.to_vec() };
    let (ready, scans, between) = (VecDeque::new(), VecDeque::new(), Arc::default());
    let (prefix, values, stuck) = (Vec::new(), false, None);
    let feed = ClusterFeed {
        news,
        interrupter,
        position,
        prefix,
        ready,
        client,
        values,
        scans,
        stuck,
        between,
        _ends,
    };
    (feed, send)
}

/// A feed of two shards: what is heard is behind what was heard before, or a gap is told, of the one shard alone. What is taken
/// waits no more.
#[test]
fn a_gap_is_of_its_shard() {
    let (scene, _asks) = Scene::new([A, B], Duration::from_secs(60));
    let (mut feed, send) = feed(&scene, &[Some(at(1, 10)), Some(at(1, 20))]);
    let tell = |feed: &ClusterFeed, shard, after, part: FeedPart| {
        let bytes = bytes_of(&part);
        feed.between.waiting.fetch_add(bytes, Ordering::Relaxed);
        send.send(News::Heard(Heard { shard, after: Some(after), part, bytes })).unwrap();
    };
    tell(&feed, 0, at(1, 10), part(at(1, 10), 11..=11));
    tell(&feed, 1, at(1, 20), part(at(2, 30), 31..=32));
    tell(&feed, 0, at(1, 11), part(at(1, 11), 12..=12));
    tell(&feed, 0, at(1, 12), FeedPart { from: at(1, 40), changes: Vec::new() });
    assert!(feed.between.waiting.load(Ordering::Relaxed) > 0);
    let mut next = || match feed.next(Duration::ZERO).unwrap() {
        Some(ClusterFeedItem::Came { shard, at, .. }) => Some((shard, None, at)),
        Some(ClusterFeedItem::Gap { shard, from, to }) => Some((shard, from, to)),
        None => None,
        other => panic!("{other:?}"),
    };
    let told: Vec<_> = std::iter::from_fn(&mut next).collect();
    assert_eq!(
        told,
        [
            (0, None, at(1, 11)),
            (1, Some(at(1, 20)), at(2, 30)),
            (1, None, at(2, 31)),
            (1, None, at(2, 32)),
            (0, None, at(1, 12)),
            (0, Some(at(1, 12)), at(1, 40)),
        ]
    );
    assert_eq!(feed.between.waiting.load(Ordering::Relaxed), 0, "all of it was taken");
    assert_eq!((feed.position().of(0), feed.position().of(1)), (Some(at(1, 40)), Some(at(2, 32))));
}

/// While as many parts wait as may, the next one waits with its node; when all are taken, nothing counts as waiting.
#[tokio::test]
async fn what_found_no_room_waits_once() {
    let (task, heard, between) = task(&[Some(at(1, 0)), None]);
    let heard_of = |number: u64| {
        let part = part(at(1, number), number + 1..=number + 1);
        Heard { shard: 0, after: Some(at(1, number)), bytes: 10, part }
    };
    for number in 0..WAITING_MAX as u64 {
        task.deliver(heard_of(number)).await;
    }
    let last = WAITING_MAX as u64;
    let late = tokio::spawn(async move { task.deliver(heard_of(last)).await });
    // It finds no room, some times.
    sleep(2 * AGAIN).await;
    assert!(!late.is_finished());
    let (mut taken, begun) = (0, Instant::now());
    while taken <= WAITING_MAX {
        assert!(begun.elapsed() < Duration::from_secs(60), "{taken}");
        match heard.try_recv() {
            Ok(News::Interrupt) => panic!("nobody has interrupted"),
            Ok(News::Heard(heard)) => {
                assert_eq!(heard.after, Some(at(1, taken as u64)), "in order");
                taken += 1;
                between.waiting.fetch_sub(heard.bytes, Ordering::Relaxed);
            }
            Err(_) => sleep(AGAIN / 4).await,
        }
    }
    late.await.unwrap();
    assert_eq!(between.waiting.load(Ordering::Relaxed), 0);
}

/// A walk over one shard that is begun again takes the place of the one under way, and of no other; a walk over all takes the
/// place of all. What a walk before has shown is void, and so is its end.
#[test]
fn a_walk_takes_the_place_of_the_one_before() {
    let (scene, _asks) = Scene::new([A, B], Duration::from_secs(60));
    let (mut feed, _send) = feed(&scene, &[Some(at(1, 10)), Some(at(1, 20))]);
    let of = |feed: &ClusterFeed| feed.scans.iter().map(|(of, _)| *of).collect::<Vec<_>>();
    feed.resync(Some(0));
    feed.resync(Some(1));
    assert_eq!(of(&feed), [Some(0), Some(1)]);
    let key =
        |shard| (None, Some(ClusterFeedItem::Key { shard, key: Bytes::from_static(b"key"), value: None }));
    let joined = |shard| (None, Some(ClusterFeedItem::Joined { shard }));
    let change =
        || (Some((0, at(1, 11))), Some(ClusterFeedItem::Gap { shard: 0, from: None, to: at(1, 11) }));
    feed.ready.extend([key(0), key(1), joined(Some(0)), joined(Some(1)), change(), joined(None)]);
    feed.resync(Some(0));
    assert_eq!(of(&feed), [Some(1), Some(0)]);
    assert!(feed.ready.iter().eq(&[key(1), joined(Some(1)), change(), joined(None)]), "{:?}", feed.ready);
    feed.resync(None);
    assert_eq!(of(&feed), [None]);
    assert!(feed.ready.iter().eq(&[change()]), "{:?}", feed.ready);
}

/// A walk over a shard that nobody serves does not hold up the one over another shard.
#[test]
fn a_walk_that_is_stuck_holds_up_no_other_one() {
    let config = Scene::new([A, B], Duration::from_secs(1)).0.client.config().clone();
    let nodes = nodes(&config);
    let mut scene = nodes.scene();
    scene.lease(nodes.ids[0], &[1]);
    let (mut feed, _send) = feed(&scene, &[Some(at(1, 10)), Some(at(1, 20))]);
    feed.resync(Some(0));
    feed.resync(Some(1));
    let mut until = |shard| {
        let (mut shown, begun) = (0, Instant::now());
        loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "shard {shard} is not shown");
            match feed.next(Duration::ZERO).unwrap() {
                Some(ClusterFeedItem::Key { shard: of, .. }) if of == shard => shown += 1,
                Some(ClusterFeedItem::Joined { shard: Some(of) }) if of == shard => return shown,
                None => {}
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(until(1), nodes.keys[&1].len());
    scene.lease(nodes.ids[0], &[0, 1, 2, 3]);
    assert_eq!(until(0), nodes.keys[&0].len());
}

/// Another thread ends a wait, or the next one.
#[test]
fn a_wait_is_interrupted() {
    let (scene, _asks) = Scene::new([A, B], Duration::from_secs(60));
    let (mut feed, _send) = feed(&scene, &[Some(at(1, 10)), Some(at(1, 20))]);
    let interrupter = feed.interrupter();
    interrupter.interrupt();
    assert_eq!(feed.next(Duration::MAX).unwrap(), None);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| feed.next(Duration::MAX).unwrap());
        interrupter.interrupt();
        assert_eq!(waiting.join().unwrap(), None);
    });
}

/// A task sleeps until the first of those that were not to be asked may be asked again. What was to be asked by now does not
/// wake it: it was.
#[test]
fn a_task_sleeps_until_it_is_to_ask() {
    let (mut task, _heard, _between) = task(&[Some(at(1, 10)), None]);
    assert_eq!(task.pause(), SLEEPS_MAX);
    let (now, minute) = (Instant::now(), Duration::from_secs(60));
    task.nodes.insert(A, Err(now));
    assert_eq!(task.pause(), SLEEPS_MAX);
    task.nodes.insert(B, Err(now + 2 * minute));
    assert!(task.pause() > minute && task.pause() <= 2 * minute);
    task.shards[1].refused = Some(((A, 1), Pause { length: AGAIN, until: now + minute }));
    assert!(!task.pause().is_zero() && task.pause() <= minute);
}
