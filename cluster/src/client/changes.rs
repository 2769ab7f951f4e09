//! Changes: sending them to primaries, repeating them, and their outcomes.

use super::requests::Ended;
use super::{AGAIN, ClusterClient, ClusterError, lock};
use crate::core::message::{Kind, NotDone, Outcome, Reply, Request, RequestId, TTL_MAX, Wanted};
use crate::core::owners;
use crate::core::sending::Sending;
use crate::core::state::{NodeId, ShardIx};
use bytes::Bytes;
use oneread::{PutMode, PutOptions, SwapOutcome};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After another node is known as primary, a reply may still come from the old one for at least this long: until it has
/// asked etcd, it may not know.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// With less time left than this, a change that was certainly not done is not repeated. A node that refuses it does so
/// within a round trip or two.
const LATE: Duration = Duration::from_millis(100);

impl ClusterClient {
    /// Puts a value. When this returns, it is visible, and at all standbys in sync.
    ///
    /// # Errors
    /// [`ClusterError::Invalid`], [`Full`](ClusterError::Full), [`NotDone`](ClusterError::NotDone),
    /// [`Unknown`](ClusterError::Unknown).
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), ClusterError> {
        self.change(key, Kind::Put(Bytes::copy_from_slice(value))).map(drop)
    }

    /// Puts a value with these options: whether the key may be there ([`PutMode`]), and how long the entry lives.
    /// Returns whether the key was as the mode demands, and now has the value.
    ///
    /// An entry with a time to live leaves when its primary sees that it has ended, usually some milliseconds later.
    /// That is a change like others, and GETs find the entry until then. The primary's clock decides, and after a
    /// failover another node's. Swaps keep an entry's end, puts do not.
    ///
    /// # Errors
    /// As [`ClusterClient::put`]; [`TimeToLive`](ClusterError::TimeToLive); [`NoLife`](ClusterError::NoLife) for a time
    /// to live if entries have no ends.
    pub fn put_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: impl Into<PutOptions>,
    ) -> Result<bool, ClusterError> {
        let asked = Asked::put(value, options.into())?;
        Ok(self.change(key, asked)? == Outcome::Done)
    }

    /// Puts a value, if the key is absent. Returns whether it was.
    ///
    /// # Errors
    /// As [`ClusterClient::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, ClusterError> {
        Ok(self.change(key, Kind::Insert(Bytes::copy_from_slice(value)))? == Outcome::Done)
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// As [`ClusterClient::put`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, ClusterError> {
        Ok(self.change(key, Kind::Remove)? == Outcome::Done)
    }

    /// Puts the value `new`, if the key has the value `expected`.
    ///
    /// # Errors
    /// As [`ClusterClient::put`].
    pub fn compare_and_swap(
        &mut self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<SwapOutcome, ClusterError> {
        let (expected, new) = (Bytes::copy_from_slice(expected), Bytes::copy_from_slice(new));
        Ok(match self.change(key, Kind::Swap { expected, new })? {
            Outcome::Absent => SwapOutcome::Absent,
            Outcome::Differs => SwapOutcome::Differs,
            _ => SwapOutcome::Swapped,
        })
    }

    /// Makes many puts at once, each by itself. Returns their outcomes, in order.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        entries: &[(K, V)],
    ) -> Vec<Result<(), ClusterError>> {
        let changes = entries.iter().map(|(key, value)| {
            let value = Bytes::copy_from_slice(value.as_ref());
            (key.as_ref(), Kind::Put(value).into())
        });
        self.change_all(changes).into_iter().map(|ended| ended.map(drop)).collect()
    }

    /// Makes many puts at once, each as [`ClusterClient::put_with`].
    pub fn put_many_with<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        entries: &[(K, V)],
        options: impl Into<PutOptions>,
    ) -> Result<Vec<Result<bool, ClusterError>>, ClusterError> {
        let options = options.into();
        let changes =
            entries.iter().map(|(key, value)| Ok((key.as_ref(), Asked::put(value.as_ref(), options)?)));
        let changes = changes.collect::<Result<Vec<_>, ClusterError>>()?;
        Ok(self
            .change_all(changes)
            .into_iter()
            .map(|ended| ended.map(|ended| ended == Outcome::Done))
            .collect())
    }

    fn change(&mut self, key: &[u8], asked: impl Into<Asked>) -> Result<Outcome, ClusterError> {
        match self.change_all([(key, asked.into())]).pop() {
            Some(ended) => ended,
            None => Err(ClusterError::Unknown { shard: 0, waited: Duration::ZERO }),
        }
    }

    fn change_all<'k>(
        &mut self,
        changes: impl IntoIterator<Item = (&'k [u8], Asked)>,
    ) -> Vec<Result<Outcome, ClusterError>> {
        let all = changes.into_iter().map(|(key, asked)| self.begin(key, asked)).collect();
        self.carry_out(all)
    }

    /// Sends all changes. Repeats each that may be repeated (CL15), until all have ended or the time is over.
    pub(super) fn carry_out(
        &mut self,
        mut all: Vec<Result<Change, ClusterError>>,
    ) -> Vec<Result<Outcome, ClusterError>> {
        let begun = Instant::now();
        // Copies under way, by number, each with the index of its change.
        let mut copies = FxHashMap::default();
        // Discards replies to changes that were given up before.
        while self.replies.1.try_recv().is_ok() {}
        let mut is_sent_again = true;
        loop {
            let version = self.shared.version();
            let left = self.left(begun);
            if let Some(left) = left
                && std::mem::take(&mut is_sent_again)
            {
                self.send(&mut all, &mut copies, left);
            }
            if !all.iter().flatten().any(Change::is_under_way) {
                break;
            }
            let Some(left) = left else { break };
            // A change that is certainly not done waits until something is learned; the others wait for replies.
            let has_open =
                all.iter().flatten().any(|change| change.is_under_way() && !change.sending.is_not_done());
            if !has_open {
                self.shared.wait(version, left.min(AGAIN));
                is_sent_again = true;
                continue;
            }
            match self.replies.1.recv_timeout(left.min(AGAIN)) {
                Ok(ended) => {
                    for ended in std::iter::once(ended).chain(self.replies.1.try_iter()) {
                        is_sent_again |= settle(&mut all, &mut copies, ended);
                    }
                }
                Err(_) => is_sent_again = true,
            }
        }
        let waited = begun.elapsed();
        let ended: Vec<_> =
            all.into_iter().map(|change| change.and_then(|change| change.end(waited))).collect();
        if let Some(owner) = &self.owner {
            owner.see(&ended);
        }
        ended
    }

    fn begin(&mut self, key: &[u8], mut asked: Asked) -> Result<Change, ClusterError> {
        let shard = self.check(key, asked.kind.value_len())?;
        if let Some(owner) = &self.owner {
            asked.wanted = owner.wants(&asked)?;
        }
        let id = self.lane.as_mut().map(|last| {
            last.number += 1;
            *last
        });
        let key = Bytes::copy_from_slice(key);
        Ok(Change { id, ..Change::new(shard, key, asked, Sending::new(id.is_some())) })
    }

    /// Sends changes that are not under way, or that may have been lost with their connection. With little time left, a
    /// change that was certainly not done is not repeated: its reply would hardly come, and then its outcome would be
    /// unknown.
    fn send(
        &mut self,
        all: &mut [Result<Change, ClusterError>],
        copies: &mut FxHashMap<u64, usize>,
        left: Duration,
    ) {
        let is_late = left < LATE.min(self.deadline / 10);
        let mut requests: FxHashMap<NodeId, Vec<Request>> = FxHashMap::default();
        let known = lock(&self.shared.known);
        let now = Instant::now();
        let last_words = LAST_WORDS.max(2 * Duration::from_micros(self.shared.config.timing.call));
        // Requests of one lane come one after the other in each shard: only the last outcome is stored.
        let mut lanes = FxHashSet::default();
        for (index, change) in all.iter_mut().enumerate() {
            let Ok(change) = change else { continue };
            if !change.is_under_way() {
                continue;
            }
            if change.id.is_some() && !lanes.insert(change.shard) {
                change
                    .lost
                    .get_or_insert_with(|| "changes of the same handle before it have not ended".into());
                continue;
            }
            let primary = known.served_by(change.shard);
            change.hears_of(primary, now, last_words);
            let Some(primary) = primary else { continue };
            // It is under way at the right node.
            let is_there = !change.sending.is_not_done() && change.at == Some(primary);
            let is_over = is_late && change.sending.is_not_done();
            let waits = is_over || change.not_before.is_some_and(|time| now < time);
            if is_there || waits || !change.sending.may_send() {
                continue;
            }
            let copy = self.shared.copies.fetch_add(1, Ordering::Relaxed);
            change.sending.sends(copy);
            // A node that does not know owners would not understand it.
            let version = known.about(primary.0).map_or(0, |about| about.version);
            if change.asked.has_owner() && version < owners::SINCE_VERSION {
                change.replied(Reply { copy, ended: Err(NotDone::NoOwners) });
                continue;
            }
            change.at = Some(primary);
            copies.insert(copy, index);
            let (id, shard, key) = (change.id, change.shard, change.key.clone());
            let Asked { kind, wanted } = change.asked.clone();
            requests.entry(primary.0).or_default().push(Request { copy, id, shard, key, kind, wanted });
        }
        drop(known);
        for (node, requests) in requests {
            self.shared.runtime.send(node, requests, self.replies.0.clone());
        }
    }
}

/// A request for a key, and the life of the entry that it makes.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) kind: Kind,
    pub(super) wanted: Wanted,
}

impl From<Kind> for Asked {
    fn from(kind: Kind) -> Asked {
        Asked { kind, wanted: Wanted::Usual }
    }
}

impl Asked {
    fn put(value: &[u8], options: PutOptions) -> Result<Asked, ClusterError> {
        let value = Bytes::copy_from_slice(value);
        let kind = match options.mode {
            PutMode::Upsert => Kind::Put(value),
            PutMode::Insert => Kind::Insert(value),
            PutMode::Update => Kind::Update(value),
        };
        let micros = |given: Duration| {
            let micros = given.as_nanos().div_ceil(1_000).try_into().ok();
            micros.filter(|ttl| (1..=TTL_MAX).contains(ttl)).ok_or(ClusterError::TimeToLive { given })
        };
        Ok(Asked { kind, wanted: Wanted::new(options.ttl.map(micros).transpose()?, None) })
    }

    /// Whether only nodes understand it that know owners.
    fn has_owner(&self) -> bool {
        self.wanted.session().is_some() || self.kind.is_of_owner()
    }
}

/// A change under way.
#[derive(Debug)]
pub(super) struct Change {
    shard: ShardIx,
    key: Bytes,
    asked: Asked,
    id: Option<RequestId>,
    sending: Sending,
    outcome: Option<Outcome>,
    /// The node to which its last copy was sent, and the epoch.
    at: Option<(NodeId, u64)>,
    /// Why it is not known whether its last copy was done.
    lost: Option<String>,
    /// Whether no reply can come any more, and it must not be repeated.
    is_lost: bool,
    /// When it was first seen that its node is not the primary any more, or has another epoch.
    moved: Option<Instant>,
    /// It was certainly not done, and is not repeated before this time.
    not_before: Option<Instant>,
}

impl Change {
    pub(super) fn new(shard: ShardIx, key: Bytes, asked: Asked, sending: Sending) -> Change {
        Change {
            shard,
            key,
            asked,
            id: None,
            sending,
            outcome: None,
            at: None,
            lost: None,
            is_lost: false,
            moved: None,
            not_before: None,
        }
    }

    /// Takes the present primary and its epoch. If that is another one, gives up a copy at the old one after a while:
    /// that node may be stopped.
    fn hears_of(&mut self, primary: Option<(NodeId, u64)>, now: Instant, last_words: Duration) {
        if self.at.is_none() || self.at == primary || self.sending.may_send() {
            self.moved = None;
        } else {
            self.is_lost = now >= *self.moved.get_or_insert(now) + last_words;
        }
    }

    fn is_under_way(&self) -> bool {
        self.outcome.is_none() && !self.is_lost
    }

    fn replied(&mut self, reply: Reply) {
        self.outcome = self.outcome.or(self.sending.replied(reply));
        // The next copy would end so, too.
        let is_lasting = matches!(reply.ended, Err(NotDone::NoLife | NotDone::NoOwners | NotDone::OwnerGone));
        self.is_lost |= is_lasting && self.sending.is_not_done();
    }

    fn end(self, waited: Duration) -> Result<Outcome, ClusterError> {
        let Change { shard, sending, outcome, lost, asked, .. } = self;
        match outcome {
            Some(Outcome::Full) => Err(ClusterError::Full { shard }),
            Some(outcome) => Ok(outcome),
            None if !sending.is_not_done() => Err(ClusterError::Unknown { shard, waited }),
            None => {
                let why = match (lost, sending.why()) {
                    (_, Some(NotDone::NoLife)) => return Err(ClusterError::NoLife { shard }),
                    (_, Some(NotDone::NoOwners)) => return Err(ClusterError::NoOwners { shard }),
                    (_, Some(NotDone::OwnerGone)) => {
                        let owner = asked.wanted.session().map_or(0, |session| session.owner);
                        return Err(ClusterError::OwnerGone { owner });
                    }
                    (Some(lost), _) => lost,
                    (None, Some(NotDone::NoRoomForResult)) => {
                        "there is no room to remember its outcome".into()
                    }
                    (None, Some(NotDone::Invalid)) => {
                        "its node knows another configuration of the cluster".into()
                    }
                    (None, Some(NotDone::NotServed)) => "its primary has changed, or is about to".into(),
                    (None, None) => "nobody serves it, as far as etcd says".into(),
                };
                Err(ClusterError::NotDone { shard, waited, why })
            }
        }
    }
}

/// Takes the end of a copy. Returns whether there is something to send.
fn settle(
    all: &mut [Result<Change, ClusterError>],
    copies: &mut FxHashMap<u64, usize>,
    ended: Ended,
) -> bool {
    let copy = match &ended {
        Ended::Replied(reply) => reply.copy,
        Ended::NotSent(copy, _) | Ended::Lost(copy) => *copy,
    };
    let Some(Ok(change)) = copies.remove(&copy).and_then(|index| all.get_mut(index)) else { return false };
    match ended {
        Ended::Replied(reply) => {
            change.replied(reply);
            (change.lost, change.not_before) = (None, Some(Instant::now() + AGAIN));
        }
        Ended::NotSent(_, why) => {
            change.sending.replied(Reply { copy, ended: Err(NotDone::NotServed) });
            (change.lost, change.not_before) = (Some(why), Some(Instant::now() + AGAIN));
        }
        // It may have been done. If it has an id, another copy may be sent.
        Ended::Lost(_) => change.is_lost = !change.sending.may_send(),
    }
    change.at = None;
    // The next request of its lane may go.
    change.outcome.is_none() || change.id.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With little time left, what was certainly not done so far is not sent: its end would hardly be heard. What may have been
    /// done is sent again, with its id. A client with less time for a call sends for longer.
    #[test]
    fn what_would_be_heard_too_late_is_not_sent() {
        use super::super::tests::Scene;
        let (one, other) = (NodeId(1), NodeId(2));
        let second = Duration::from_secs(1);
        for (deadline, late) in [(60 * second, LATE), (second / 10, second / 100)] {
            for (left, is_lost, is_sent) in
                [(late, false, true), (late - AGAIN / 20, false, false), (AGAIN / 20, true, true)]
            {
                let (mut scene, mut asks) = Scene::new([one, other], deadline);
                let client = &mut scene.client;
                let mut change = client.begin(b"key", Kind::Remove.into()).unwrap();
                if is_lost {
                    // A copy was sent, of which nothing is known.
                    change = Change { sending: Sending::new(true), ..change };
                    change.sending.sends(1_000);
                }
                let mut all = vec![Ok(change)];
                client.send(&mut all, &mut FxHashMap::default(), left);
                assert_eq!(asks.next().is_some(), is_sent, "{deadline:?}, {left:?}, {is_lost}");
            }
        }
    }

    /// A change without an id whose node is primary no more is waited for a little longer, and not until the deadline.
    #[test]
    fn a_change_at_a_deposed_primary_ends() {
        let (node, other) = (Some((NodeId(1), 1)), Some((NodeId(2), 2)));
        let under_way = |has_id| {
            let mut sending = Sending::new(has_id);
            sending.sends(1);
            Change { at: node, ..Change::new(0, Bytes::new(), Kind::Remove.into(), sending) }
        };
        let (mut change, now) = (under_way(false), Instant::now());
        let mut hears = |primary, after| {
            change.hears_of(primary, now + after, LAST_WORDS);
            change.is_under_way()
        };
        assert!(hears(node, LAST_WORDS) && hears(other, LAST_WORDS) && hears(other, 2 * LAST_WORDS - AGAIN));
        // What was heard before was old: what is under way may yet be answered.
        assert!(hears(node, 2 * LAST_WORDS) && hears(None, 3 * LAST_WORDS));
        // In its next epoch, the node has forgotten it.
        assert!(!hears(Some((NodeId(1), 3)), 4 * LAST_WORDS));
        assert!(matches!(change.end(LAST_WORDS), Err(ClusterError::Unknown { .. })));
        // With an id it is sent again.
        let mut change = under_way(true);
        change.hears_of(other, now, LAST_WORDS);
        change.hears_of(other, now + 2 * LAST_WORDS, LAST_WORDS);
        assert!(change.is_under_way());
    }
}
