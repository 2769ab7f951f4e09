//! Following the changes of all shards (CL18).
//!
//! For each node that is a primary, a task asks for changes, over a connection of its own. When another node serves a
//! shard, that node is asked for the changes after the last one received. Both may send the same changes: a part counts
//! only if it begins at the shard's present place.

use super::{AGAIN, ClusterClient, ClusterError, ScanState, Shared, lock};
use crate::core::feed::{FeedAt, FeedPart, Told};
use crate::core::message::Effect;
use crate::core::state::{ClusterConfig, NodeId, ShardIx};
use crate::wire::{Changes, Follow, Identity, NodeConnection, Said, WireError};
use bytes::Bytes;
use oneread::LeftCause;
use oneread::internals::breaking;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

/// Parts that wait for the program, and bytes of them. At these bounds no node is asked.
const WAITING_MAX: usize = 64;
const WAITING_BYTES: usize = 8 << 20;
/// The longest pause before a node is asked again that has not told of a shard.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The longest wait for keys of a shard without a primary. Then changes of other shards have their turn.
const SHOWN_WITHIN: Duration = Duration::from_millis(200);
/// Longer than that nobody waits.
const WITHIN_MAX: Duration = Duration::from_secs(1 << 30);
/// While nothing is known that would have it ask, a task sleeps so long.
const SLEEPS_MAX: Duration = Duration::from_secs(3600);
/// The time before the next try, for a node that could not be asked.
const NODE_AGAIN: Duration = Duration::from_millis(200);

/// A follower's place in the changes of a cluster: the last change received of each shard.
///
/// It can be stored, in any form that `serde` knows, and used by another process later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPosition {
    /// The cluster's seed.
    cluster: u64,
    /// By shard. `None`: none was received.
    shards: Vec<Option<FeedAt>>,
}

impl ClusterPosition {
    fn begin(config: &ClusterConfig) -> ClusterPosition {
        ClusterPosition { cluster: config.hash.seed(), shards: vec![None; usize::from(config.shards)] }
    }

    /// The last change received of a shard: its epoch, and its number.
    pub fn of(&self, shard: ShardIx) -> Option<FeedAt> {
        self.shards.get(usize::from(shard)).copied().flatten()
    }

    /// Moves behind this item: for a program that keeps items for a while before it counts them as received. To be
    /// called in the order of the feed.
    pub fn pass(&mut self, item: &ClusterFeedItem) {
        let (shard, at) = match item {
            ClusterFeedItem::Key { .. } | ClusterFeedItem::Joined { .. } => return,
            ClusterFeedItem::Came { shard, at, .. }
            | ClusterFeedItem::Replaced { shard, at, .. }
            | ClusterFeedItem::Left { shard, at, .. }
            | ClusterFeedItem::Gap { shard, to: at, .. } => (*shard, *at),
        };
        if let Some(passed) = self.shards.get_mut(usize::from(shard)) {
            *passed = Some(at);
        }
    }
}

/// What a program follows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ClusterFeedOptions {
    /// Where it begins; `None`: with the next change.
    pub from: Option<ClusterPosition>,
    /// Whether all present keys come first ([`ClusterFeed::resync`]).
    pub keys: bool,
    /// Only keys that begin with this are shown.
    pub prefix: Vec<u8>,
    /// Whether values are shown.
    pub values: bool,
}

impl ClusterFeedOptions {
    /// From the next change of any key on, without values.
    pub fn new() -> ClusterFeedOptions {
        ClusterFeedOptions::default()
    }

    /// Begins where another follower stopped ([`ClusterFeed::position`]). Changes that nodes do not have any more are a
    /// gap.
    #[must_use]
    pub fn from(self, position: ClusterPosition) -> ClusterFeedOptions {
        ClusterFeedOptions { from: Some(position), ..self }
    }

    /// Shows all present keys first, with their changes.
    #[must_use]
    pub fn keys(self, keys: bool) -> ClusterFeedOptions {
        ClusterFeedOptions { keys, ..self }
    }

    /// Shows only keys that begin with this. All changes come over the wire; others are left out here.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<Vec<u8>>) -> ClusterFeedOptions {
        ClusterFeedOptions { prefix: prefix.into(), ..self }
    }

    /// Whether values are shown.
    #[must_use]
    pub fn values(self, values: bool) -> ClusterFeedOptions {
        ClusterFeedOptions { values, ..self }
    }
}

/// What a follower shows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterFeedItem {
    /// A scan shows a key. Changes that are shown later may be from before the scan: the last item of a key is right in
    /// the end.
    Key {
        /// Its shard.
        shard: ShardIx,
        /// The key.
        key: Bytes,
        /// Its value, if values are wanted.
        value: Option<Bytes>,
    },
    /// The scan has shown all keys: a key without an item is not there. From now on a position can be used.
    Joined {
        /// Its shard; `None`: all shards.
        shard: Option<ShardIx>,
    },
    /// A key came.
    Came {
        /// Its shard.
        shard: ShardIx,
        /// The place of the change.
        at: FeedAt,
        /// The key.
        key: Bytes,
        /// Its new value, if values are wanted.
        value: Option<Bytes>,
    },
    /// A key has another value.
    Replaced {
        /// Its shard.
        shard: ShardIx,
        /// The place of the change.
        at: FeedAt,
        /// The key.
        key: Bytes,
        /// Its new value, if values are wanted.
        value: Option<Bytes>,
    },
    /// A key left.
    Left {
        /// Its shard.
        shard: ShardIx,
        /// The place of the change.
        at: FeedAt,
        /// The key.
        key: Bytes,
        /// Why.
        cause: LeftCause,
    },
    /// Changes of a shard are missing. The next items are the changes after them. [`ClusterFeed::resync`] shows what is
    /// there.
    Gap {
        /// The shard.
        shard: ShardIx,
        /// The last change that was shown; `None`: none was.
        from: Option<FeedAt>,
        /// The place before the next change that is shown.
        to: FeedAt,
    },
}

impl ClusterFeedItem {
    /// Whether this item is superseded when [`ClusterFeed::resync`] is called with this shard before the item was
    /// taken: it comes from an earlier scan.
    pub fn is_void_after(&self, resync: Option<ShardIx>) -> bool {
        match self {
            ClusterFeedItem::Key { shard, .. } => resync.is_none_or(|resync| resync == *shard),
            ClusterFeedItem::Joined { shard } => resync.is_none() || resync == *shard,
            _ => false,
        }
    }
}

/// Changes of one shard.
#[derive(Debug)]
struct Heard {
    shard: ShardIx,
    /// The place behind which the node was asked to follow.
    after: Option<FeedAt>,
    part: FeedPart,
    bytes: usize,
}

/// What a feed is told by others.
#[derive(Debug)]
enum News {
    /// By its task.
    Heard(Heard),
    /// The wait that is under way is to end.
    Interrupt,
}

/// Ends waits of a [`ClusterFeed`] from any thread. [`ClusterFeed::interrupter`] makes it.
#[derive(Clone, Debug)]
pub struct ClusterInterrupter {
    news: Weak<SyncSender<News>>,
}

impl ClusterInterrupter {
    /// Ends the wait for a change that is under way, or else the next one, as if its time were over.
    pub fn interrupt(&self) {
        // Where there is no room, it does not wait.
        let _ = self.news.upgrade().map(|news| news.try_send(News::Interrupt));
    }
}

/// The next item, and the place behind it. `None` instead of an item: its key is not wanted.
type Ready = (Option<(ShardIx, FeedAt)>, Option<ClusterFeedItem>);

/// Follows the changes of a cluster. [`ClusterClient::changes`] begins it.
#[derive(Debug)]
pub struct ClusterFeed {
    news: Receiver<News>,
    /// For who interrupts it. Its task has the sender: so it is told when that has ended.
    interrupter: ClusterInterrupter,
    /// The place of the items that were taken.
    position: ClusterPosition,
    prefix: Vec<u8>,
    /// Items that were received, and not taken yet.
    ready: VecDeque<Ready>,
    client: ClusterClient,
    values: bool,
    /// Scans that have not ended, each with its shard, or of all shards.
    scans: VecDeque<(Option<ShardIx>, ScanState)>,
    /// Since when they make no progress.
    stuck: Option<Instant>,
    /// When this is dropped, the task ends.
    between: Arc<Between>,
    /// The task is told of the end.
    _ends: oneshot::Sender<()>,
}

impl ClusterClient {
    /// Follows the changes of all shards, from now on or from where `options` says: which keys came, were replaced and
    /// left. Every change after this returns is shown, once, in order for each shard (and so for each key), across
    /// failovers and moves. Changes of two shards come in any order.
    ///
    /// Each node keeps the last changes of its shards in memory ([`feed_bytes`](oneread::ServerConfig::feed_bytes)),
    /// and does not wait for followers. A follower that falls further behind gets a [`Gap`](ClusterFeedItem::Gap). So
    /// does every follower when all nodes that had copies of a shard were started again, or its entries were lost.
    ///
    /// Costs a connection to each node, over which it is asked about twice a minute while nothing changes, and a
    /// round trip for up to 256 KiB of changes.
    ///
    /// # Errors
    /// [`ClusterError::Unavailable`], if a shard has no primary until the deadline, and the feed begins now;
    /// [`ClusterError::Position`], if the position is of another cluster.
    pub fn changes(&self, options: ClusterFeedOptions) -> Result<ClusterFeed, ClusterError> {
        let ClusterFeedOptions { from, keys, prefix, values } = options;
        let begin = ClusterPosition::begin(self.config());
        let position = from.unwrap_or_else(|| begin.clone());
        if (position.cluster, position.shards.len()) != (begin.cluster, begin.shards.len()) {
            return Err(ClusterError::Position);
        }
        let (send, news) = sync_channel(WAITING_MAX);
        let send = Arc::new(send);
        let interrupter = ClusterInterrupter { news: Arc::downgrade(&send) };
        let (ends, ended) = oneshot::channel();
        let between = Arc::new(Between::default());
        let now = Instant::now();
        let task = Task {
            shared: Arc::downgrade(&self.shared),
            between: Arc::downgrade(&between),
            who: self.shared.runtime.who().clone(),
            shards: position.shards.iter().map(|at| Followed { at: *at, refused: None }).collect(),
            values,
            nodes: FxHashMap::default(),
            asks: 0,
            news: send,
            learned: self.shared.learned.subscribe(),
            ended,
        };
        self.shared.runtime.spawn(task.run());
        let mut client = self.clone();
        client.deadline = SHOWN_WITHIN.min(client.deadline);
        let (ready, scans) = (VecDeque::new(), VecDeque::new());
        let mut feed = ClusterFeed {
            news,
            interrupter,
            position,
            prefix,
            ready,
            client,
            values,
            scans,
            stuck: None,
            between,
            _ends: ends,
        };
        while let Some(shard) = feed.position.shards.iter().position(Option::is_none) {
            let Some(left) = self.left(now) else {
                let why = lock(&feed.between.why).take();
                let why = why.unwrap_or_else(|| "no node says where its changes are".into());
                let shard = ShardIx::try_from(shard).unwrap_or_default();
                return Err(ClusterError::Unavailable { shard, waited: now.elapsed(), why });
            };
            if let Ok(News::Heard(heard)) = feed.news.recv_timeout(left.min(AGAIN)) {
                feed.hear(heard);
            }
        }
        if keys {
            feed.resync(None);
        }
        Ok(feed)
    }
}

impl ClusterFeed {
    /// The next item. `None` if none has come within this time. While keys are shown, a request to a node may take
    /// longer.
    ///
    /// A shard that no node serves for a while is silent. Its changes are shown later.
    ///
    /// # Errors
    /// [`ClusterError::Unavailable`], while keys are shown. The next call continues.
    pub fn next(&mut self, within: Duration) -> Result<Option<ClusterFeedItem>, ClusterError> {
        let begun = Instant::now();
        loop {
            while let Some((place, item)) = self.ready.pop_front() {
                if let Some((shard, at)) = place {
                    self.position.shards[usize::from(shard)] = Some(at);
                }
                if item.is_some() {
                    return Ok(item);
                }
            }
            // Changes of other keys may come without a pause.
            if begun.elapsed() > within.saturating_add(AGAIN) || !breaking::is_wanted() {
                return Ok(None);
            }
            // Received changes are taken before more keys are shown, because nodes do not wait.
            match self.news.try_recv() {
                Ok(News::Heard(heard)) => {
                    self.hear(heard);
                    continue;
                }
                Ok(News::Interrupt) => return Ok(None),
                Err(_) => {}
            }
            if !self.scans.is_empty() {
                self.show()?;
                continue;
            }
            let left = within.saturating_sub(begun.elapsed());
            let until = Instant::now() + left.min(WITHIN_MAX);
            let Some(until) = breaking::sleeps_until(until) else { return Ok(None) };
            match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(News::Heard(heard)) => self.hear(heard),
                Ok(News::Interrupt) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    let why = "the client's runtime has ended".into();
                    return Err(ClusterError::Unavailable { shard: 0, waited: begun.elapsed(), why });
                }
            }
        }
    }

    /// Shows all present keys, of one shard or of all, beside their changes, and then [`ClusterFeedItem::Joined`]. A
    /// program that keeps a copy removes the shard's keys first ([`ClusterFeed::shard_of`]). Call it after a gap.
    pub fn resync(&mut self, shard: Option<ShardIx>) {
        let scan = ScanState::new(self.client.config(), &self.prefix, self.values);
        self.ready.retain(|(_, item)| !item.as_ref().is_some_and(|item| item.is_void_after(shard)));
        match shard {
            Some(one) => {
                // A scan under way has shown keys that may have gone in the gap.
                self.scans.retain(|(of, _)| *of != shard);
                self.scans.push_back((shard, scan.shard(one)));
            }
            None => self.scans = VecDeque::from([(None, scan)]),
        }
    }

    /// What ends waits of this feed from another thread.
    pub fn interrupter(&self) -> ClusterInterrupter {
        self.interrupter.clone()
    }

    /// Where another follower continues after the items of this one.
    pub fn position(&self) -> &ClusterPosition {
        &self.position
    }

    /// The shard of a key.
    pub fn shard_of(&self, key: &[u8]) -> ShardIx {
        self.client.config().shard_of(key)
    }

    /// Shows some more keys.
    fn show(&mut self) -> Result<(), ClusterError> {
        let Some((of, scan)) = self.scans.front_mut() else { return Ok(()) };
        let of = *of;
        match scan.next_batch(&mut self.client) {
            Ok(Some(keys)) => {
                let config = self.client.config();
                self.ready.extend(keys.into_iter().map(|found| {
                    let shard = config.shard_of(&found.key);
                    let (key, value) = (found.key.into(), found.value.map(Bytes::from));
                    (None, Some(ClusterFeedItem::Key { shard, key, value }))
                }));
            }
            Ok(None) => {
                self.scans.pop_front();
                self.ready.push_back((None, Some(ClusterFeedItem::Joined { shard: of })));
            }
            // Other scans may make progress.
            Err(ClusterError::Unavailable { shard, why, .. }) => {
                self.scans.rotate_left(1);
                let waited = self.stuck.get_or_insert_with(Instant::now).elapsed();
                if waited < self.client.shared.options.deadline {
                    return Ok(());
                }
                self.stuck = None;
                return Err(ClusterError::Unavailable { shard, waited, why });
            }
            Err(error) => return Err(error),
        }
        self.stuck = None;
        Ok(())
    }

    fn hear(&mut self, heard: Heard) {
        let Heard { shard, after, part: FeedPart { from, changes }, bytes } = heard;
        self.between.waiting.fetch_sub(bytes, Ordering::Relaxed);
        match after {
            None => self.position.shards[usize::from(shard)] = Some(from),
            Some(last) if last != from => {
                let gap = ClusterFeedItem::Gap { shard, from: after, to: from };
                self.ready.push_back((Some((shard, from)), Some(gap)));
            }
            Some(_) => {}
        }
        let ClusterFeed { ready, prefix, .. } = self;
        ready.extend(changes.into_iter().map(|told| {
            let is_wanted = told.key.starts_with(prefix);
            (Some((shard, told.at)), is_wanted.then(|| item(shard, told)).flatten())
        }));
    }
}

/// The item for a change. `None`: the change is not shown.
fn item(shard: ShardIx, Told { at, effect, key, value }: Told) -> Option<ClusterFeedItem> {
    let left = |key, cause| Some(ClusterFeedItem::Left { shard, at, key, cause });
    match effect {
        Effect::Nothing => None,
        Effect::Came => Some(ClusterFeedItem::Came { shard, at, key, value }),
        Effect::Replaced => Some(ClusterFeedItem::Replaced { shard, at, key, value }),
        Effect::Removed => left(key, LeftCause::Removed),
        Effect::Evicted => left(key, LeftCause::Evicted),
        Effect::Expired => left(key, LeftCause::Expired),
        Effect::OwnerGone => left(key, LeftCause::OwnerGone),
    }
}

/// The state of a shard.
#[derive(Debug)]
struct Followed {
    at: Option<FeedAt>,
    /// A primary that did not tell of the shard. It is asked again after a while, another one at once.
    refused: Option<((NodeId, u64), Pause)>,
}

/// A pause that doubles.
#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    until: Instant,
}

impl Pause {
    fn begin(before: Option<Pause>) -> Pause {
        let length = before.map_or(AGAIN, |before| (2 * before.length).min(PAUSE_MAX));
        Pause { length, until: Instant::now() + length }
    }
}

/// The questions to a node, by a task of its own.
#[derive(Debug)]
struct Asked {
    follows: mpsc::UnboundedSender<Follow>,
    /// The last question without an answer yet: its number and its shards, each with its primary at that time.
    last: Option<(u64, FxHashMap<ShardIx, Wanted>)>,
}

/// What is wanted of a shard: the changes after this one, from its primary in this epoch.
type Wanted = (Option<FeedAt>, (NodeId, u64));

/// What came from a node: an answer, or the end of its connection.
type Came = (NodeId, Result<Changes, WireError>);

/// What a feed and its task share.
#[derive(Debug, Default)]
struct Between {
    /// Bytes of changes that wait for the program.
    waiting: AtomicUsize,
    /// Why a node could not be asked, most recently.
    why: Mutex<Option<String>>,
}

/// Asks nodes on behalf of a feed.
#[derive(Debug)]
struct Task {
    shared: Weak<Shared>,
    between: Weak<Between>,
    who: Identity,
    shards: Vec<Followed>,
    values: bool,
    /// `Err`: the node is not asked before this time.
    nodes: FxHashMap<NodeId, Result<Asked, Instant>>,
    asks: u64,
    news: Arc<SyncSender<News>>,
    /// Told when something was learned of the cluster.
    learned: watch::Receiver<()>,
    /// Told when the feed has ended.
    ended: oneshot::Receiver<()>,
}

impl Task {
    async fn run(mut self) {
        let (came, mut coming) = mpsc::channel(16);
        while self.between.strong_count() > 0 {
            let Some(shared) = self.shared.upgrade() else { return };
            // What is learned from now on has it ask again.
            self.learned.borrow_and_update();
            self.ask(&shared, &came);
            drop(shared);
            let pause = self.pause();
            tokio::select! {
                Some((node, answer)) = coming.recv() => self.comes(node, answer).await,
                learned = self.learned.changed() => if learned.is_err() { return },
                _ = &mut self.ended => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// How long until a node is to be asked that was not to be so far.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let refused = self.shards.iter().filter_map(|followed| Some(followed.refused?.1.until));
        let nodes = self.nodes.values().filter_map(|asked| asked.as_ref().err().copied());
        let left = refused.chain(nodes).map(|until| until.saturating_duration_since(now));
        left.filter(|left| !left.is_zero()).min().unwrap_or(SLEEPS_MAX)
    }

    /// Asks each node for the shards that it serves, unless it was asked already.
    fn ask(&mut self, shared: &Shared, came: &mpsc::Sender<Came>) {
        let now = Instant::now();
        let mut wanted: FxHashMap<NodeId, Vec<(ShardIx, Wanted)>> = FxHashMap::default();
        let known = lock(&shared.known);
        // An answer may be full before the last shards have their turn: so each question begins with another shard.
        let (count, from) = (self.shards.len(), self.asks.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        for index in (0..count).map(|index| (index + from as usize) % count) {
            let (shard, followed) = (index as ShardIx, &self.shards[index]);
            let Some(served) = known.served_by(shard) else { continue };
            if !followed.refused.is_some_and(|(by, pause)| by == served && now < pause.until) {
                wanted.entry(served.0).or_default().push((shard, (followed.at, served)));
            }
        }
        let addresses: FxHashMap<NodeId, Vec<String>> = wanted
            .keys()
            .filter(|node| !matches!(self.nodes.get(node), Some(Ok(_))))
            .filter_map(|node| Some((*node, known.about(*node)?.requests.clone())))
            .collect();
        drop(known);
        for (node, addresses) in addresses {
            if matches!(self.nodes.get(&node), Some(Err(not_before)) if now < *not_before) {
                continue;
            }
            let (follows, queue) = mpsc::unbounded_channel();
            tokio::spawn(converse(addresses, self.who.clone(), node, queue, came.clone()));
            self.nodes.insert(node, Ok(Asked { follows, last: None }));
        }
        for (node, wanted) in wanted {
            let Some(Ok(asked)) = self.nodes.get_mut(&node) else { continue };
            let is_asked = |(shard, wanted): &(ShardIx, Wanted)| {
                asked.last.as_ref().is_some_and(|(_, last)| last.get(shard) == Some(wanted))
            };
            if wanted.iter().all(is_asked) {
                continue;
            }
            self.asks += 1;
            let shards = wanted.iter().map(|(shard, (at, _))| (*shard, *at)).collect();
            let _ = asked.follows.send(Follow { ask: self.asks, shards, values: self.values });
            asked.last = Some((self.asks, wanted.into_iter().collect()));
        }
    }

    async fn comes(&mut self, node: NodeId, answer: Result<Changes, WireError>) {
        let Changes { ask, shards } = match answer {
            Ok(changes) => changes,
            Err(error) => {
                tracing::debug!(%node, %error, "changes cannot be heard from a node");
                if let Some(between) = self.between.upgrade() {
                    *lock(&between.why) = Some(format!("node {node}: {error}"));
                }
                self.nodes.insert(node, Err(Instant::now() + NODE_AGAIN));
                return;
            }
        };
        let Some(Ok(asked)) = self.nodes.get_mut(&node) else { return };
        // The next answer has the changes of an answer that came too late.
        let Some((_, asked)) = asked.last.take_if(|(last, _)| *last == ask) else { return };
        for (shard, part) in shards {
            let (Some((after, served)), Some(followed)) =
                (asked.get(&shard), self.shards.get_mut(usize::from(shard)))
            else {
                continue;
            };
            let Some(part) = part else {
                let before = followed.refused.filter(|(by, _)| by == served).map(|(_, pause)| pause);
                followed.refused = Some((*served, Pause::begin(before)));
                continue;
            };
            followed.refused = None;
            // Another node may have sent the changes meanwhile.
            if followed.at == *after {
                followed.at = Some(part.changes.last().map_or(part.from, |told| told.at));
                let heard = Heard { shard, after: *after, bytes: bytes_of(&part), part };
                self.deliver(heard).await;
            }
        }
    }

    /// Waits while the program takes nothing. Ends when the program is gone.
    async fn deliver(&self, mut heard: Heard) {
        while let Some(between) = self.between.upgrade() {
            let waiting = between.waiting.load(Ordering::Relaxed);
            if waiting == 0 || waiting + heard.bytes <= WAITING_BYTES {
                let bytes = heard.bytes;
                // Subtracted by the reader: so it is added before.
                between.waiting.fetch_add(bytes, Ordering::Relaxed);
                match self.news.try_send(News::Heard(heard)) {
                    Err(TrySendError::Full(News::Heard(back))) => {
                        between.waiting.fetch_sub(bytes, Ordering::Relaxed);
                        heard = back;
                    }
                    _ => return,
                }
            }
            drop(between);
            sleep(AGAIN / 4).await;
        }
    }
}

/// Bytes of keys and values.
fn bytes_of(part: &FeedPart) -> usize {
    part.changes.iter().map(|told| told.key.len() + told.value.as_ref().map_or(0, Bytes::len)).sum()
}

/// A connection to a node, until it breaks, or nobody asks any more.
async fn converse(
    addresses: Vec<String>,
    who: Identity,
    node: NodeId,
    mut follows: mpsc::UnboundedReceiver<Follow>,
    came: mpsc::Sender<Came>,
) {
    let ended = async {
        let mut connection = NodeConnection::connect(&addresses, who, node).await?;
        loop {
            tokio::select! {
                said = connection.next() => {
                    if let Said::Changes(changes) = said?
                        && came.send((node, Ok(changes))).await.is_err()
                    {
                        return Ok(());
                    }
                }
                follow = follows.recv() => match follow {
                    Some(follow) => connection.send(&Said::Follow(follow)).await?,
                    None => return Ok(()),
                },
            }
        }
    };
    if let Err(error) = ended.await {
        let _ = came.send((node, Err(error))).await;
    }
}

#[cfg(test)]
mod tests;
