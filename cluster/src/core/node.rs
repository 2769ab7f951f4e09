//! A node: its life in etcd, its words, and its part in each shard.
//!
//! A `Node` has no clock, socket, thread or etcd. It is told what comes ([`Node::answered`], [`Node::received`],
//! [`Node::requested`]) and what time it is by its own clock, and says what it wants done ([`Node::outputs`]). What it
//! stores in its [`Table`] is stored before any of that. [`Node::tick`] does what is due.

use crate::core::etcd::{At, CallId, Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use crate::core::feed::{Feed, FeedAt, FeedPart};
use crate::core::intent::Intent;
use crate::core::message::{ChannelId, Effect, Life, Message, NotDone, Output, Peer, Reply, Request, Store};
use crate::core::owners::{self, Owners};
use crate::core::placement::{Wishes, wanted};
use crate::core::results;
use crate::core::shard::{Replica, Role, evicting};
use crate::core::state::{
    Lived, NodeAbout, NodeId, NodeIds, NodeKey, Notes, Page, ShardIx, ShardState, Time, Timing, Word,
};
use crate::core::table::{NoMemory, OwnedKey, Table};
use crate::faults::{Rule, broken};
use rustc_hash::FxHashMap;

/// A node's standing with etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It lives, and knows what etcd said after its birth.
    Good,
    /// It asks for a new life.
    Unborn,
    /// It lives, and asks who serves what.
    Looking(CallId),
    /// etcd is another one: it waits for the operator (CL17).
    Foreign,
    /// Its table has refused a change that others have. It beats no more, so that they take over.
    Failed,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Pending {
    pub call: CallId,
    pub since: Time,
}

/// Another node's key, and since when it is so by this node's clock.
#[derive(Debug)]
pub(in crate::core) struct Seen {
    pub key: NodeKey,
    pub at: At,
    pub since: Time,
}

/// What all shards of a node share.
#[derive(Debug)]
pub(in crate::core) struct Shared<T> {
    pub id: NodeId,
    pub timing: Timing,
    pub table: T,
    pub page: Page,
    pub standing: Standing,
    pub seen: FxHashMap<NodeId, Seen>,
    pub outputs: Vec<Output>,
    pub notes: Notes,
    /// Room that no shard has set aside.
    pub room_left: u64,
    pub feed: Feed,
    /// Whether entries leave so that others find room; how many have.
    pub evicts: bool,
    pub evicted: u64,
    /// Entries that have left at their end, or with their owner, since it began; how long they live that are put without a
    /// time.
    pub expired: u64,
    pub ttl: Option<Time>,
    pub owners: Owners,
    /// The last copy of a request of its own.
    pub last_own: u64,
    /// Room that a shard takes at most, where entries leave, beyond what it is copied with.
    pub share: u64,
    last_call: CallId,
    last_channel: u64,
    notes_due: bool,
    /// Old copies that may be worked on before the next tick.
    pub frees_left: u32,
    /// Walks for entries that may leave, before the next tick: each takes a millisecond at worst, and beats must go on.
    pub walks_left: u32,
}

impl<T: Table> Shared<T> {
    pub fn call(&mut self, call: EtcdCall) -> CallId {
        self.last_call += 1;
        self.outputs.push(Output::Etcd(self.last_call, call));
        self.last_call
    }

    pub fn transact(&mut self, compare: Vec<(EtcdKey, At)>, put: Vec<(EtcdKey, EtcdValue)>) -> CallId {
        let adoption = self.notes.adoption;
        self.call(EtcdCall::Transaction { adoption, compare, put })
    }

    pub fn new_channel(&mut self, epoch: u64) -> ChannelId {
        self.last_channel += 1;
        ChannelId { epoch, count: self.last_channel }
    }

    pub fn tell(&mut self, node: NodeId, message: Message) {
        self.outputs.push(Output::Node(node, message));
    }

    pub fn reply(&mut self, peer: Peer, reply: Reply) {
        self.outputs.push(Output::Reply(peer, reply));
    }

    pub fn not_done(&mut self, peer: Peer, request: &Request, why: NotDone) {
        self.reply(peer, Reply { copy: request.copy, ended: Err(why) });
    }

    /// Changes the page. False: there is no memory for that, and the page is as it was.
    pub fn change_page(&mut self, change: impl FnOnce(&mut Page)) -> bool {
        let mut page = self.page.clone();
        change(&mut page);
        let is_stored = self.table.store_page(&page).is_ok();
        if is_stored {
            self.page = page;
        }
        is_stored
    }

    fn close_words(&mut self) -> bool {
        self.change_page(|page| page.words.iter_mut().for_each(|word| word.is_open = false))
    }

    /// The room that an entry takes with this value; 0 without one.
    pub fn cost(&self, key: &[u8], value_len: Option<usize>) -> u64 {
        value_len.map_or(0, |len| self.table.cost(key, len))
    }

    /// The room that a key's entry takes now.
    pub fn cost_now(&mut self, key: &[u8]) -> u64 {
        let len = self.table.value_len(key);
        self.cost(key, len)
    }

    /// Room that a shard is given beyond what it needs, so that it need not ask for each entry. Where entries leave it may
    /// need no more.
    pub fn growth_of(&self, room: u64) -> u64 {
        if self.evicts { (room / 8).min(self.share.saturating_sub(room)) } else { room / 8 }
    }

    /// Why the entry of a key is to leave by itself, if it is there.
    pub fn is_over(&mut self, shard: ShardIx, key: &[u8]) -> Option<Effect> {
        let life = self.table.life(key)?;
        if life.end().is_some_and(|end| end <= self.table.now()) {
            return Some(Effect::Expired);
        }
        life.owner().filter(|owner| self.owners.leaves(shard, *owner)).map(|_| Effect::OwnerGone)
    }

    /// Whether a node knows owners.
    pub fn knows_owners(&self, node: NodeId) -> bool {
        let version = self.seen.get(&node).map(|seen| seen.key.about.version);
        version.is_some_and(|version| version >= owners::SINCE_VERSION)
    }

    /// Makes a change visible, and remembers its outcome: both, also if the process is killed meanwhile (CL15).
    ///
    /// If one of two cannot be stored, the intent stays, and the node must store nothing more: it fails.
    pub fn store_all(&mut self, stores: &[Store]) -> Result<(), NoMemory> {
        let intent = Intent::of(self.page.asked.number, stores);
        if intent.is_some() {
            self.table.store_intent(intent.as_ref())?;
        }
        stores.iter().try_for_each(|store| self.store(store))?;
        if intent.is_some() { self.table.store_intent(None) } else { Ok(()) }
    }

    /// Goes on with what a process before this one was killed at (CL15).
    fn finish(&mut self) -> Result<(), NoMemory> {
        let Some(intent) = self.table.intent() else { return Ok(()) };
        // A version that knows no intents may have gone on meanwhile.
        if intent.beat != self.page.asked.number || broken(Rule::HalfDone) {
            return self.table.store_intent(None);
        }
        let now = self.table.get(&intent.key);
        intent.rest(now).iter().try_for_each(|store| self.store(store))?;
        self.table.store_intent(None)
    }

    /// Stores one entry of a change, or what a walk brings.
    pub fn store(&mut self, store: &Store) -> Result<(), NoMemory> {
        let (key, entry) = store;
        match entry {
            // Each copy counts the day by its own clock: no two need agree for that (CL15).
            Some(entry) if results::is_result(key) => {
                let life = Life::new(self.table.end_after(results::KEPT), None);
                self.table.put(key, &entry.value, life)
            }
            Some(entry) => self.table.put(key, &entry.value, entry.life),
            None => self.table.remove(key),
        }?;
        self.owners.see(store);
        Ok(())
    }

    /// The table refuses what it must take: the node serves nothing any more, and others take over.
    pub fn fails(&mut self, shard: ShardIx) {
        tracing::error!(shard, "the table takes no more, though room was set aside: others take over");
        self.standing = Standing::Failed;
    }

    /// The newest state of a shard is known from now on.
    pub fn note(&mut self, shard: ShardIx, state: &ShardState) {
        self.notes.newest[usize::from(shard)] = state.clone();
        self.notes_due = true;
    }
}

/// Bytes of changes that are kept for followers, unless it is told otherwise.
const FEED_BYTES: usize = 8 << 20;
/// Beats under way that are remembered.
const BEATS_MAX: usize = 64;
/// Entries that are looked at in one turn, because they have come to their end.
const EXPIRED_AT_ONCE: usize = 4_096;
/// Most shards that are copied to newcomers at once.
const JOINS_MAX: usize = 4;

/// A node of a cluster. See the [module](self).
#[derive(Debug)]
pub struct Node<T: Table> {
    shared: Shared<T>,
    about: NodeAbout,
    /// Number of the last beat, and the life.
    number: u64,
    life: u64,
    /// When its own key was changed last, as far as it knows.
    at: At,
    revision: i64,
    /// Calls up to this one were made before an etcd was adopted.
    asked_before: CallId,
    /// When it beat last, and when etcd was asked for everything last.
    beaten: Option<Time>,
    looked: Option<Time>,
    /// When it saw to it last who has copies, and by which wishes.
    placed: Option<Time>,
    /// With which shard it begins: else some that find no room at others would be tried for ever, and the rest never.
    placed_from: usize,
    /// When it did what was due last, and when it looked for owners that are absent.
    ticked: Option<Time>,
    looked_for_absent: Option<Time>,
    copies: u8,
    wishes: Wishes,
    birth: Option<Pending>,
    /// Beats under way: the call, the life and the number.
    beats: Vec<(CallId, Lived)>,
    /// Words are still to be closed, before it asks for a life.
    to_close: bool,
    replicas: Vec<Replica<T::Cursor>>,
    /// The pass over the table that looks for entries of owners that leave, and how many passes have begun.
    pass: Option<Pass<T::Cursor>>,
    passes: u64,
}

/// A pass over the whole table: where it goes on.
#[derive(Debug)]
struct Pass<C> {
    from: Option<C>,
}

impl<T: Table> Node<T> {
    /// A node begins, or begins again with what its table has: `page` and `notes` as they were stored last (the
    /// default for a table that is new).
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
        let room_left = table.memory();
        let mut replicas: Vec<_> = (0..shards).map(Replica::new).collect();
        let number = page.asked.number;
        let mut shared = Shared {
            id,
            timing,
            table,
            page,
            standing: Standing::Unborn,
            seen: FxHashMap::default(),
            outputs: Vec::new(),
            notes,
            room_left,
            feed: Feed::new(shards, FEED_BYTES),
            evicts: false,
            evicted: 0,
            expired: 0,
            ttl: None,
            owners: Owners::new(shards),
            last_own: 0,
            share: u64::MAX,
            last_call: 0,
            last_channel: 0,
            notes_due: false,
            frees_left: 1,
            walks_left: evicting::WALKS_A_TICK,
        };
        if shared.finish().is_err() {
            shared.fails(0);
        }
        let stock = shared.table.stock(shards);
        replicas.iter_mut().zip(stock).for_each(|(replica, stock)| replica.take_stock(&mut shared, stock));
        Node {
            shared,
            about,
            number,
            life: 0,
            at: 0,
            revision: 0,
            asked_before: 0,
            beaten: None,
            looked: None,
            placed: None,
            placed_from: 0,
            ticked: None,
            looked_for_absent: None,
            copies: 0,
            wishes: Wishes::default(),
            birth: None,
            beats: Vec::new(),
            to_close: !broken(Rule::OpenAtStart),
            replicas,
            pass: None,
            passes: 0,
        }
    }

    /// The same, where entries leave so that others find room, or not: those of the shards that it is primary of. What
    /// other nodes of the cluster do is theirs.
    pub fn evicting(mut self, evicts: bool) -> Node<T> {
        self.shared.evicts = evicts;
        self
    }

    /// The same, where an entry that is put without a time lives so long, or until it is removed.
    pub fn with_ttl(mut self, ttl: Option<Time>) -> Node<T> {
        self.shared.ttl = ttl;
        self
    }

    /// Its number.
    pub fn id(&self) -> NodeId {
        self.shared.id
    }

    /// Its standing with etcd.
    pub fn standing(&self) -> Standing {
        self.shared.standing
    }

    /// What it has learned of etcd.
    pub fn notes(&self) -> &Notes {
        &self.shared.notes
    }

    /// Its page.
    pub fn page(&self) -> &Page {
        &self.shared.page
    }

    /// Nodes that etcd names, and what it says of them.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeAbout)> {
        self.shared.seen.iter().map(|(id, seen)| (*id, &seen.key.about))
    }

    /// Room that no shard has set aside, in bytes.
    pub fn room_left(&self) -> u64 {
        self.shared.room_left
    }

    /// Entries that it has removed so that others find room (CL13), since it began.
    pub fn evicted(&self) -> u64 {
        self.shared.evicted
    }

    /// Entries that it has removed at their end (CL13), or with their owner (CL19), since it began.
    pub fn expired(&self) -> u64 {
        self.shared.expired
    }

    /// Whether answers to a call may be used: it was made after the last adoption (CL17).
    pub fn is_current(&self, call: CallId) -> bool {
        call > self.asked_before
    }

    /// It is about to stop: from its next beat on the others know. It hands its shards over to standbys, and is given
    /// none.
    pub fn leave(&mut self) {
        self.about.leaves = true;
    }

    /// Shards of which it is primary, and others have a copy.
    pub fn to_hand_over(&self) -> usize {
        let has_standby = |replica: &&Replica<T::Cursor>| replica.state().in_sync.len() > 1;
        self.replicas.iter().filter(|replica| replica.role() == Role::Primary).filter(has_standby).count()
    }

    /// Its part in a shard.
    pub fn replica(&self, shard: ShardIx) -> &Replica<T::Cursor> {
        &self.replicas[usize::from(shard)]
    }

    /// Keeps changes of so many bytes for followers. 8 MiB, if this is not called.
    pub fn keep_changes(&mut self, bytes: usize) {
        self.shared.feed.set_bytes_max(bytes);
    }

    /// Goes up with each change that followers may be told of.
    pub fn changes_made(&self) -> u64 {
        self.shared.feed.pushed()
    }

    /// Changes of a shard after a place, or from the next one on: of so many bytes, and one at least. `None`: it does not
    /// serve the shard, or has not heard of what its follower has (CL18).
    pub fn changes(&self, shard: ShardIx, after: Option<FeedAt>, bytes: usize) -> Option<FeedPart> {
        if !self.is_told(shard) {
            return None;
        }
        let (epoch, last) = (self.replica(shard).state().epoch, self.shared.feed.last(shard)?);
        let is_ahead =
            |after: FeedAt| after.epoch > epoch || after.epoch == epoch && after.number > last.number;
        if after.is_some_and(is_ahead) {
            return None;
        }
        self.shared.feed.read(shard, after, bytes)
    }

    /// Whether changes of a shard are told here.
    fn is_told(&self, shard: ShardIx) -> bool {
        let replica = self.replicas.get(usize::from(shard));
        let leads = replica.is_some_and(|replica| replica.role() == Role::Primary);
        // CL17: what is not noted, nobody acts on.
        leads && self.shared.standing == Standing::Good && !self.shared.notes_due
    }

    /// Whether [`Node::changes`] has more to say than that there is nothing new.
    pub fn has_changes(&self, shard: ShardIx, after: Option<FeedAt>) -> bool {
        after.is_none() || !self.is_told(shard) || self.shared.feed.last(shard) != after
    }

    /// What it wants done since this was asked last, in this order.
    pub fn outputs(&mut self) -> Vec<Output> {
        for replica in &mut self.replicas {
            replica.answer(&mut self.shared);
        }
        // CL17: what is not noted, nobody acts on. Again next time, if there is no memory for it.
        if self.shared.notes_due && self.shared.table.store_notes(&self.shared.notes).is_err() {
            return Vec::new();
        }
        self.shared.notes_due = false;
        std::mem::take(&mut self.shared.outputs)
    }

    // ---- its life ----

    /// Beats: tells etcd that it lives (CL1).
    fn beat(&mut self, now: Time) {
        let beat = Lived { life: self.life, number: self.number + 1 };
        if !broken(Rule::AskedAfterwards) && !self.store_asked(beat) {
            return;
        }
        (self.number, self.beaten) = (beat.number, Some(now));
        let call = self.write_key(beat);
        // While etcd is away none is answered.
        if self.beats.len() == BEATS_MAX {
            self.beats.remove(0);
        }
        self.beats.push((call, beat));
    }

    /// CL1: before the beat is sent.
    fn store_asked(&mut self, beat: Lived) -> bool {
        self.shared.change_page(|page| page.asked = beat)
    }

    fn write_key(&mut self, beat: Lived) -> CallId {
        let (life, number) = (beat.life, beat.number);
        let key = NodeKey { life, number, alive: true, about: self.about.clone() };
        let name = EtcdKey::Node(self.shared.id);
        let at = self.at;
        self.shared.transact(vec![(name, at)], vec![(name, EtcdValue::Node(key))])
    }

    /// CL10: words are closed before it asks for a new life.
    fn ask_for_life(&mut self, now: Time) {
        self.shared.standing = Standing::Unborn;
        self.beats.clear();
        self.birth = None;
        if self.to_close && !self.shared.close_words() {
            return;
        }
        self.to_close = false;
        let number = self.number + 1;
        if !self.store_asked(Lived { life: number, number }) {
            return;
        }
        (self.number, self.life) = (number, number);
        let call = self.write_key(Lived { life: number, number });
        self.birth = Some(Pending { call, since: now });
    }

    /// Closes its words, and asks for another life.
    fn begin_life(&mut self, now: Time, closes: bool) {
        self.to_close |= closes;
        self.ask_for_life(now);
    }

    /// Asks etcd for everything.
    fn look(&mut self, now: Time) -> CallId {
        self.looked = Some(now);
        let call = self.shared.call(EtcdCall::Read);
        if let Standing::Looking(_) = self.shared.standing {
            self.shared.standing = Standing::Looking(call);
        }
        call
    }

    /// CL17: whether an answer of etcd may be used.
    fn trusts(&mut self, now: Time, answer: &EtcdAnswer) -> bool {
        // It was asked before another etcd was adopted.
        if !self.is_current(answer.call) {
            return false;
        }
        let known = self.shared.notes.adoption;
        if known.number > 0 && broken(Rule::AnyEtcd) {
            return true;
        }
        if known.number > 0 && broken(Rule::RevisionOnly) {
            if answer.etcd != known.etcd && answer.revision >= self.revision {
                self.shared.notes.adoption.etcd = answer.etcd;
            }
            let is_so = answer.etcd == self.shared.notes.adoption.etcd;
            if is_so {
                self.revision = self.revision.max(answer.revision);
            }
            return is_so;
        }
        if answer.etcd == known.etcd && self.shared.standing != Standing::Foreign {
            return true;
        }
        if self.shared.notes.past.contains(&answer.etcd) || answer.etcd == known.etcd {
            return false;
        }
        let new = answer.adoption().filter(|new| new.etcd == answer.etcd && new.number > known.number);
        if let Some(new) = new {
            let notes = &mut self.shared.notes;
            notes.past.extend((known.number > 0).then_some(known.etcd));
            notes.adoption = new;
            self.shared.notes_due = true;
            self.shared.seen.clear();
            self.asked_before = self.shared.last_call;
            self.at = answer.node(self.shared.id).map_or(0, |(_, at)| at);
            self.begin_life(now, true);
        } else if known.number > 0 {
            self.to_close = !self.shared.close_words();
            self.shared.standing = Standing::Foreign;
            self.birth = None;
            self.beats.clear();
        }
        false
    }

    /// etcd has answered, or a watch has brought something.
    pub fn answered(&mut self, now: Time, answer: EtcdAnswer) {
        if self.shared.standing == Standing::Failed || !self.trusts(now, &answer) {
            return;
        }
        self.see_keys(now, &answer.entries);
        for entry in &answer.entries {
            match &entry.value {
                Some(EtcdValue::Config(config)) => self.copies = config.replicas,
                Some(EtcdValue::Wishes(wishes)) => self.wishes = wishes.clone(),
                _ => {}
            }
        }
        if let Some(pending) = self.birth
            && answer.is_of(pending.call)
        {
            self.birth_answered(now, &answer);
        }
        if let Some(index) = self.beats.iter().position(|(call, _)| answer.is_of(*call)) {
            let (_, beat) = self.beats.remove(index);
            self.beat_answered(now, beat, &answer);
        }
        for replica in &mut self.replicas {
            replica.answered(&answer);
        }
        match self.shared.standing {
            Standing::Good => {
                for entry in &answer.entries {
                    self.learn(now, entry);
                }
            }
            // The life is new, and etcd says after that who serves what (CL10).
            Standing::Looking(call) if answer.is_of(call) => {
                self.shared.standing = Standing::Good;
                for entry in &answer.entries {
                    self.learn(now, entry);
                }
                for replica in &mut self.replicas {
                    replica.resume(&mut self.shared, now);
                }
            }
            _ => {}
        }
    }

    fn birth_answered(&mut self, now: Time, answer: &EtcdAnswer) {
        if let Some((_, at)) = answer.node(self.shared.id) {
            self.at = at;
        }
        if !answer.is_done {
            return self.ask_for_life(now);
        }
        self.birth = None;
        if self.store_held(Lived { life: self.life, number: self.life }) {
            self.shared.standing = Standing::Looking(0);
            self.look(now);
        }
    }

    fn store_held(&mut self, beat: Lived) -> bool {
        self.shared.change_page(|page| {
            page.held = beat;
            if broken(Rule::AskedAfterwards) && page.asked.number < beat.number {
                page.asked = beat;
            }
        })
    }

    fn beat_answered(&mut self, now: Time, beat: Lived, answer: &EtcdAnswer) {
        // Of an earlier life.
        if beat.life != self.life || self.shared.standing == Standing::Unborn {
            return;
        }
        let own = answer.node(self.shared.id);
        if let Some((_, at)) = own {
            self.at = at;
        }
        // The answer to an earlier beat was lost.
        let lives = own.and_then(|(key, _)| key).is_some_and(|key| key.alive && key.life == self.life);
        if answer.is_done {
            if beat.number > self.shared.page.held.number {
                self.store_held(beat);
            }
        } else if broken(Rule::BeatAfterDeposed) {
            self.store_held(beat);
        } else if !lives {
            // CL10, for a node that was stopped for too long.
            self.begin_life(now, !broken(Rule::OpenWhenRefused));
        }
    }

    fn see_keys(&mut self, now: Time, entries: &[Entry]) {
        for entry in entries {
            let EtcdKey::Node(id) = entry.key else { continue };
            let Some(EtcdValue::Node(key)) = &entry.value else { continue };
            if self.shared.seen.get(&id).is_none_or(|seen| seen.at < entry.at) {
                self.shared.seen.insert(id, Seen { key: key.clone(), at: entry.at, since: now });
            }
        }
    }

    fn learn(&mut self, now: Time, entry: &Entry) {
        if let (EtcdKey::Shard(shard), Some(EtcdValue::Shard(state))) = (entry.key, &entry.value)
            && let Some(replica) = self.replicas.get_mut(usize::from(shard))
        {
            replica.learn(&mut self.shared, now, state, entry.at);
        }
    }

    // ---- what comes ----

    /// A message of another node has come.
    pub fn received(&mut self, now: Time, from: NodeId, message: Message) {
        let shard = match &message {
            Message::Item { shard, .. } | Message::Answer { shard, .. } | Message::GivenUp { shard, .. } => {
                *shard
            }
        };
        let Some(replica) = self.replicas.get_mut(usize::from(shard)) else { return };
        match message {
            Message::Item { channel, number, item, .. } => {
                replica.item_comes(&mut self.shared, now, from, channel, number, item);
            }
            Message::Answer { channel, number, room, is_refused, .. } => {
                replica.answer_comes(&mut self.shared, now, from, channel, number, room, is_refused);
            }
            Message::GivenUp { channel, .. } => replica.given_up(channel),
        }
    }

    /// A request has come.
    pub fn requested(&mut self, now: Time, peer: Peer, request: Request) {
        match self.replicas.get_mut(usize::from(request.shard)) {
            Some(replica) => replica.request_comes(&mut self.shared, now, peer, request),
            None => self.shared.not_done(peer, &request, NotDone::NotServed),
        }
    }

    /// Does what is due: calls of etcd, items to be sent again, who is late, who is silent, walks.
    pub fn tick(&mut self, now: Time) {
        let Timing { beat, call, late, .. } = self.shared.timing;
        // It stood still: what others have answered meanwhile may not have been heard yet, so nobody is late.
        let passed = self.ticked.replace(now).map_or(0, |ticked| now.saturating_sub(ticked));
        if passed > late / 2 {
            self.replicas.iter_mut().for_each(|replica| replica.forgive(now));
            self.shared.owners.forgive(now, passed - late / 2);
        }
        (self.shared.frees_left, self.shared.walks_left) = (1, evicting::WALKS_A_TICK);
        let is_due = |since: Option<Time>, after: Time| since.is_none_or(|since| now >= since + after);
        match self.shared.standing {
            // Which etcd is it?
            Standing::Unborn if self.shared.notes.adoption.number == 0 => {
                if is_due(self.looked, call) {
                    self.look(now);
                }
            }
            Standing::Unborn => {
                if is_due(self.birth.map(|birth| birth.since), call) {
                    self.ask_for_life(now);
                }
            }
            Standing::Looking(_) | Standing::Foreign => {
                if is_due(self.looked, call) {
                    self.look(now);
                }
            }
            // Watches bring what is new. They may have stopped to.
            Standing::Good => {
                if is_due(self.looked, 4 * call) {
                    self.look(now);
                }
            }
            Standing::Failed => {
                self.shared.close_words();
            }
        }
        if matches!(self.shared.standing, Standing::Good | Standing::Looking(_)) && is_due(self.beaten, beat)
        {
            self.beat(now);
        }
        for shard in 0..self.replicas.len() {
            self.replicas[shard].tick(&mut self.shared, now);
        }
        self.expire(now);
        self.remove_owned(now);
        if self.shared.standing == Standing::Good && is_due(self.looked_for_absent, beat) {
            self.looked_for_absent = Some(now);
            let replicas = self.replicas.iter_mut().filter(|replica| replica.role() == Role::Primary);
            replicas.for_each(|replica| replica.look_for_absent(&mut self.shared, now));
        }
        let place = self.shared.timing.place;
        if place > 0 && self.shared.standing == Standing::Good && is_due(self.placed, place) {
            self.placed = Some(now);
            self.place(now);
        }
    }

    /// CL13: what has come to its end leaves, where it is primary.
    fn expire(&mut self, now: Time) {
        // Where it is primary of nothing, too: the table forgets the times of what has left.
        for (shard, key) in self.shared.table.ended(EXPIRED_AT_ONCE) {
            if let Some(replica) = self.replicas.get_mut(usize::from(shard)) {
                replica.expire(&mut self.shared, now, key, Effect::Expired);
            }
        }
    }

    /// CL19: removes some entries of owners that leave, and those owners of which a whole pass has found none. Whether there is
    /// more to do, now.
    pub fn remove_owned(&mut self, now: Time) -> bool {
        let Node { shared, replicas, pass, passes, .. } = self;
        if pass.is_none() {
            if !shared.owners.any_leaves() {
                return false;
            }
            *passes += 1;
            for replica in replicas.iter() {
                if !shared.owners.has_any(replica.shard()) || !replica.may_change(shared, now) {
                    continue;
                }
                for (_, known) in shared.owners.of_mut(replica.shard()) {
                    if known.owner.leaves {
                        known.pass = Some((*passes, false));
                        *pass = Some(Pass { from: None });
                    }
                }
            }
        }
        let Some(Pass { from }) = pass else { return false };
        let (keys, next) = shared.table.walk_owned(from.take());
        for OwnedKey { shard, key, owner } in keys {
            if shared.owners.leaves(shard, owner)
                && let Some(replica) = replicas.get_mut(usize::from(shard))
            {
                shared.owners.found(shard, owner);
                replica.expire(shared, now, key, Effect::OwnerGone);
            }
        }
        if next.is_some() {
            *from = next;
            return true;
        }
        *pass = None;
        for replica in replicas {
            replica.remove_owners(shared, now, *passes);
        }
        false
    }

    /// Sees to it that its shards have the copies that they should have, where they should be.
    fn place(&mut self, now: Time) {
        let (me, ttl, leave) = (self.shared.id, self.shared.timing.ttl, self.about.leaves);
        let lives = |seen: &Seen| seen.key.alive && now < seen.since + ttl;
        let seen = self.shared.seen.iter();
        let nodes: Vec<NodeId> =
            seen.filter(|(id, seen)| **id == me || lives(seen)).map(|(id, _)| *id).collect();
        let leaving = self.shared.seen.iter().filter(|(_, seen)| seen.key.about.leaves).map(|(id, _)| *id);
        let leaving: NodeIds = leaving.chain(leave.then_some(me)).collect();
        let shards = self.replicas.iter().map(Replica::shard);
        let ranked: Vec<_> =
            shards.map(|shard| wanted(shard, self.copies, nodes.iter().copied(), &self.wishes)).collect();
        if self.shared.evicts {
            let mine = ranked.iter().filter(|wanted| wanted.contains(&me)).count();
            self.shared.share = evicting::share(self.shared.table.memory(), mine, nodes.len(), self.copies);
        }
        let mut joins_left = JOINS_MAX.saturating_sub(self.replicas.iter().map(Replica::newcomers).sum());
        self.placed_from = (self.placed_from + 1) % self.replicas.len().max(1);
        let (before, from) = self.replicas.split_at_mut(self.placed_from);
        for replica in from.iter_mut().chain(before) {
            let wanted = &ranked[usize::from(replica.shard())];
            let in_sync = replica.state().in_sync.clone();
            // Who leaves keeps its copy, for when it starts again, and serves nothing.
            let stays = |node: &NodeId| !leaving.has(*node);
            let first = wanted.iter().copied().find(stays);
            match replica.role() {
                Role::None if first == Some(me) => {
                    replica.claim(&mut self.shared, now);
                }
                Role::Primary => {
                    let may_join =
                        |node: &NodeId| !in_sync.has(*node) && replica.may_have(&self.shared, *node);
                    let missing = wanted.iter().find(|node| may_join(node) && stays(node));
                    let needless = in_sync.iter().find(|node| *node != me && !wanted.contains(node));
                    let next = if leave { in_sync.iter().find(stays) } else { first };
                    if let Some(next) = next.filter(|_| leave) {
                        replica.hand_over(&mut self.shared, now, next);
                    } else if let Some(newcomer) = missing {
                        if joins_left > 0 && replica.begin_join(&mut self.shared, now, *newcomer) {
                            joins_left -= 1;
                        }
                    } else if let Some(standby) = needless {
                        replica.leave_out(&mut self.shared, now, NodeIds::of(standby));
                    } else if let Some(next) = next.filter(|next| *next != me) {
                        replica.hand_over(&mut self.shared, now, next);
                    }
                }
                _ => {}
            }
        }
    }

    /// Hands a shard over to a standby in sync (CL9). False: not now, for nothing is asked of etcd.
    pub fn hand_over(&mut self, now: Time, shard: ShardIx, to: NodeId) -> bool {
        self.replicas[usize::from(shard)].hand_over(&mut self.shared, now, to)
    }

    /// Begins to copy a shard to a node that is out (CL11). False: not now.
    pub fn join(&mut self, now: Time, shard: ShardIx, to: NodeId) -> bool {
        self.replicas[usize::from(shard)].begin_join(&mut self.shared, now, to)
    }

    /// Goes on without a newcomer that was not named yet.
    pub fn give_up(&mut self, shard: ShardIx, to: NodeId) {
        self.replicas[usize::from(shard)].give_up(&mut self.shared, to);
    }

    /// Leaves a standby out (CL7). False: not now.
    pub fn leave_out(&mut self, now: Time, shard: ShardIx, standby: NodeId) -> bool {
        self.replicas[usize::from(shard)].leave_out(&mut self.shared, now, NodeIds::of(standby))
    }

    /// Becomes primary of a shard that nobody ever served.
    pub fn claim(&mut self, now: Time, shard: ShardIx) -> bool {
        self.replicas[usize::from(shard)].claim(&mut self.shared, now)
    }
}
