//! A node: its life in etcd, its page, and its part in each shard.
//!
//! A `Node` has no clock, socket, thread or etcd. Its caller passes what comes ([`Node::answered`], [`Node::received`],
//! [`Node::requested`]) and the time of the node's own clock, and does what [`Node::outputs`] returns. Whatever an
//! output depends on was stored in the [`Table`] before. [`Node::tick`] does what is due.

mod leaving;
mod life;
mod placing;

pub use crate::core::context::Standing;
use crate::core::context::{Context, Room};
use crate::core::etcd::{CallId, Entry, EtcdAnswer, EtcdKey, EtcdValue};
use crate::core::feed::{Feed, FeedPart};
use crate::core::ids::{NodeId, NodeIds, ShardIx, Time};
use crate::core::memory::Memory;
use crate::core::message::{FeedAt, Message, NotDone, Peer, Request};
use crate::core::outbox::{Outbox, Output};
use crate::core::owners::Owners;
use crate::core::shard::{Primary, Replica, WALKS_A_TICK};
use crate::core::state::{NodeAbout, Notes, Page, ShardState, Timing, Word};
use crate::core::table::Table;
use leaving::Leaving;
use life::Beating;
use placing::Placing;
use rustc_hash::FxHashMap;

/// Bytes of changes that are kept for followers, by default.
const FEED_BYTES: usize = 8 << 20;

/// A node of a cluster. See the [module](self).
#[derive(Debug)]
pub struct Node<T: Table> {
    cx: Context<T>,
    life: Beating,
    replicas: Vec<Replica<T>>,
    placing: Placing,
    leaving: Leaving<T::Cursor>,
    /// The time of the last tick.
    ticked: Option<Time>,
}

impl<T: Table> Node<T> {
    /// A node that starts, or starts again with the content of its table. `page` and `notes` are those that were stored
    /// last (the default for a new table).
    ///
    /// It does nothing until [`Node::tick`].
    pub fn new(
        id: NodeId,
        about: NodeAbout,
        shards: ShardIx,
        timing: Timing,
        table: T,
        mut page: Page,
        mut notes: Notes,
    ) -> Node<T> {
        page.words.resize(usize::from(shards), Word::default());
        notes.newest.resize(usize::from(shards), ShardState::default());
        let life = Beating::new(about, page.asked.number);
        let room = Room { left: table.memory(), evicts: false, share: u64::MAX };
        let mut cx = Context {
            me: id,
            timing,
            now: 0,
            standing: Standing::Unborn,
            seen: FxHashMap::default(),
            etcd: None,
            memory: Memory { table, page, notes, notes_due: false, owners: Owners::new(shards), ttl: None },
            outbox: Outbox::default(),
            room,
            feed: Feed::new(shards, FEED_BYTES),
            evicted: 0,
            expired: 0,
            frees_left: 1,
            walks_left: WALKS_A_TICK,
        };
        if cx.memory.finish().is_err() {
            cx.fails(0);
        }
        let stock = cx.memory.table.stock(shards);
        let replicas =
            (0..shards).zip(stock).map(|(shard, stock)| Replica::new(&mut cx, shard, stock)).collect();
        let (placing, leaving) = (Placing::default(), Leaving::new());
        Node { cx, life, replicas, placing, leaving, ticked: None }
    }

    /// The node, which evicts entries, or does not: entries of the shards of which it is primary. Other nodes decide
    /// for themselves.
    pub fn evicting(mut self, evicts: bool) -> Node<T> {
        self.cx.room.evicts = evicts;
        self
    }

    /// The node, where an entry that is put without a time lives this long; `None`: until it is removed.
    pub fn with_ttl(mut self, ttl: Option<Time>) -> Node<T> {
        self.cx.memory.ttl = ttl;
        self
    }

    /// The node's number.
    pub fn id(&self) -> NodeId {
        self.cx.me
    }

    /// Its standing with etcd.
    pub fn standing(&self) -> Standing {
        self.cx.standing
    }

    /// What it has noted of etcd.
    pub fn notes(&self) -> &Notes {
        &self.cx.memory.notes
    }

    /// Its page.
    pub fn page(&self) -> &Page {
        &self.cx.memory.page
    }

    /// The nodes in etcd, with what others need to know of them.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeAbout)> {
        self.cx.seen.iter().map(|(id, seen)| (*id, &seen.key.about))
    }

    /// Room that no shard has set aside, in bytes.
    pub fn room_left(&self) -> u64 {
        self.cx.room.left
    }

    /// Entries that it has evicted (CL13), since it began.
    pub fn evicted(&self) -> u64 {
        self.cx.evicted
    }

    /// Entries that it has removed at their end (CL13), or with their owner (CL19), since it began.
    pub fn expired(&self) -> u64 {
        self.cx.expired
    }

    /// Whether answers to a call may be used: it was made after the last adoption (CL17).
    pub fn is_current(&self, call: CallId) -> bool {
        self.life.is_current(call)
    }

    /// The node is about to stop. Its next beat tells the others. It hands its shards over to standbys, and gets no
    /// more.
    pub fn leave(&mut self) {
        self.life.about.leaves = true;
    }

    /// The number of shards of which it is primary, and of which others have a copy.
    pub fn to_hand_over(&self) -> usize {
        let has_standby = |primary: &&Primary<T>| primary.state().in_sync.len() > 1;
        self.replicas.iter().filter_map(Replica::primary).filter(has_standby).count()
    }

    /// Its part in a shard.
    pub fn replica(&self, shard: ShardIx) -> &Replica<T> {
        &self.replicas[usize::from(shard)]
    }

    /// Keeps this many bytes of changes for followers. 8 MiB by default.
    pub fn keep_changes(&mut self, bytes: usize) {
        self.cx.feed.set_bytes_max(bytes);
    }

    /// Goes up with each change that followers may be told of.
    pub fn changes_made(&self) -> u64 {
        self.cx.feed.pushed()
    }

    /// Changes of a shard after a place, or from the next one on: about this many bytes, and at least one change.
    /// `None`: it does not serve the shard, or does not have the follower's place (CL18).
    pub fn changes(&self, shard: ShardIx, after: Option<FeedAt>, bytes: usize) -> Option<FeedPart> {
        if !self.is_told(shard) {
            return None;
        }
        let (epoch, last) = (self.replica(shard).state().epoch, self.cx.feed.last(shard)?);
        let is_ahead =
            |after: FeedAt| after.epoch > epoch || after.epoch == epoch && after.number > last.number;
        if after.is_some_and(is_ahead) {
            return None;
        }
        self.cx.feed.read(shard, after, bytes)
    }

    /// Whether followers may have changes of a shard from this node.
    fn is_told(&self, shard: ShardIx) -> bool {
        let replica = self.replicas.get(usize::from(shard));
        // CL17: nobody acts on a state that is not noted.
        replica.is_some_and(|replica| replica.primary().is_some())
            && self.cx.is_good()
            && !self.cx.memory.notes_due
    }

    /// Whether [`Node::changes`] has any changes to tell.
    pub fn has_changes(&self, shard: ShardIx, after: Option<FeedAt>) -> bool {
        after.is_none() || !self.is_told(shard) || self.cx.feed.last(shard) != after
    }

    /// The outputs since the last call, in this order.
    pub fn outputs(&mut self) -> Vec<Output> {
        for replica in &mut self.replicas {
            replica.answer(&mut self.cx);
        }
        // If there is no memory for the notes, the outputs wait for the next call.
        if self.cx.memory.store_notes() { self.cx.outbox.take() } else { Vec::new() }
    }

    // ---- what comes ----

    /// etcd has answered, or a watch has delivered changes.
    pub fn answered(&mut self, now: Time, answer: EtcdAnswer) {
        let Node { cx, life, replicas, placing, .. } = self;
        cx.now = now;
        if matches!(cx.standing, Standing::Failed | Standing::Outdated) || !life.trusts(cx, &answer) {
            return;
        }
        cx.see(&answer);
        placing.learn(&answer);
        life.answered(cx, &answer);
        replicas.iter_mut().for_each(|replica| replica.answered(&answer));
        // The life is new, and the node has read etcd after that (CL10).
        let begins = matches!(cx.standing, Standing::Looking(call) if answer.is_of(call));
        if begins {
            cx.standing = Standing::Good;
        }
        if !cx.is_good() {
            return;
        }
        for Entry { key, value, at } in &answer.entries {
            if let (EtcdKey::Shard(shard), Some(EtcdValue::Shard(state))) = (key, value)
                && let Some(replica) = replicas.get_mut(usize::from(*shard))
            {
                replica.learn(cx, state, *at);
            }
        }
        if begins {
            replicas.iter_mut().for_each(|replica| replica.resume(cx));
        }
    }

    /// A message of another node has come.
    pub fn received(&mut self, now: Time, from: NodeId, message: Message) {
        let Node { cx, replicas, .. } = self;
        cx.now = now;
        match message {
            Message::Item { shard, channel, number, item } => {
                if let Some(replica) = replicas.get_mut(usize::from(shard)) {
                    replica.item_comes(cx, from, channel, number, item);
                }
            }
            Message::Answer { shard, channel, number, room, is_refused } => {
                let Some(replica) = replicas.get_mut(usize::from(shard)) else { return };
                cx.hears(from);
                if let Some(primary) = replica.primary_mut().filter(|_| cx.is_good()) {
                    primary.answer_comes(cx, from, channel, number, room, is_refused);
                }
            }
            Message::GivenUp { shard, channel } => {
                if let Some(replica) = replicas.get_mut(usize::from(shard)) {
                    replica.given_up(channel);
                }
            }
            // A node that serves nothing now does not answer.
            Message::Hello { asks: true } if cx.is_good() => {
                cx.outbox.tell(from, Message::Hello { asks: false });
            }
            Message::Hello { asks: true } => {}
            Message::Hello { asks: false } => cx.hears(from),
        }
    }

    /// A request has come.
    pub fn requested(&mut self, now: Time, peer: Peer, request: Request) {
        self.cx.now = now;
        match self.replicas.get_mut(usize::from(request.shard)) {
            Some(replica) => replica.request_comes(&mut self.cx, peer, request),
            None => self.cx.outbox.not_done(peer, &request, NotDone::NotServed),
        }
    }

    // ---- what is due ----

    /// Does what is due: calls of etcd, repeated items, late standbys, silent primaries, walks.
    pub fn tick(&mut self, now: Time) {
        let Node { cx, life, replicas, placing, leaving, ticked } = self;
        cx.now = now;
        // The node stood still. Answers may have come meanwhile that it has not read yet, so no standby is late.
        let passed = ticked.replace(now).map_or(0, |ticked| now.saturating_sub(ticked));
        let late = cx.timing.late;
        if passed > late / 2 {
            replicas.iter_mut().filter_map(Replica::primary_mut).for_each(|primary| primary.forgive(now));
            cx.memory.owners.forgive(now, passed - late / 2);
        }
        (cx.frees_left, cx.walks_left) = (1, WALKS_A_TICK);
        life.tick(cx);
        replicas.iter_mut().for_each(|replica| replica.tick(cx));
        leaving.tick(cx, replicas);
        placing.tick(cx, replicas, life.about.leaves);
    }

    /// CL19: removes some entries of owners that leave, and those owners of which a whole pass has found none. Returns
    /// whether there is more to do now.
    pub fn remove_owned(&mut self, now: Time) -> bool {
        self.cx.now = now;
        self.leaving.remove_owned(&mut self.cx, &mut self.replicas)
    }

    // ---- what others want ----

    /// Hands a shard over to a standby in sync (CL9). `false`: not possible now; etcd is not asked.
    pub fn hand_over(&mut self, now: Time, shard: ShardIx, to: NodeId) -> bool {
        self.leading(now, shard).is_some_and(|(primary, cx)| primary.hand_over(cx, to))
    }

    /// Begins to copy a shard to a node without a copy (CL11). `false`: not possible now.
    pub fn join(&mut self, now: Time, shard: ShardIx, to: NodeId) -> bool {
        self.leading(now, shard).is_some_and(|(primary, cx)| primary.begin_join(cx, to))
    }

    /// Gives up a newcomer that was not named yet.
    pub fn give_up(&mut self, shard: ShardIx, to: NodeId) {
        if let Some((primary, cx)) = self.leading(self.cx.now, shard) {
            primary.give_up(cx, to);
        }
    }

    /// Leaves a standby out (CL7). `false`: not possible now.
    pub fn leave_out(&mut self, now: Time, shard: ShardIx, standby: NodeId) -> bool {
        self.leading(now, shard).is_some_and(|(primary, cx)| primary.leave_out(cx, NodeIds::of(standby)))
    }

    /// Becomes primary of a shard that no node ever served.
    pub fn claim(&mut self, now: Time, shard: ShardIx) -> bool {
        self.cx.now = now;
        self.replicas[usize::from(shard)].claim(&mut self.cx)
    }

    /// Its part in a shard of which it is primary.
    fn leading(&mut self, now: Time, shard: ShardIx) -> Option<(&mut Primary<T>, &mut Context<T>)> {
        self.cx.now = now;
        let primary = self.replicas[usize::from(shard)].primary_mut()?;
        Some((primary, &mut self.cx))
    }
}
