//! Stories of two nodes over an etcd that answers at once, and a network that loses nothing.

use crate::machine::{Machine, Memory, value_of};
use bytes::Bytes;
use oneread_cluster::core::etcd::{At, Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use oneread_cluster::core::message::{
    Key, Kind, Message, NotDone, Outcome, Peer, Reply, Request, Session, Wanted,
};
use oneread_cluster::core::node::{Node, Standing};
use oneread_cluster::core::outbox::Output;
use oneread_cluster::core::owners;
use oneread_cluster::core::shard::Role;
use oneread_cluster::core::state::{Adoption, NodeAbout, NodeId, NodeIds, NodeKey, ShardState, Time, Timing};
use oneread_cluster::faults::{Rule, breaks};
use std::collections::{BTreeMap, VecDeque};

const MS: Time = 1_000;
const ABSENT: Time = 2_000 * MS;
const ADOPTION: Adoption = Adoption { number: 1, etcd: 7 };
/// Items that are unanswered at most, beside 512 that a node sends by itself.
const ITEMS_MAX: usize = 4_096;

/// Two nodes, of which the first is primary of the only shard.
struct TwoNodes {
    now: Time,
    machines: Vec<Machine>,
    etcd: BTreeMap<EtcdKey, (EtcdValue, At)>,
    revision: At,
    etcd_answers: bool,
    calls: VecDeque<(usize, u64, EtcdCall)>,
    /// Who watches, from which of its READs on.
    watches: BTreeMap<usize, u64>,
    /// Messages that come with the next step, and whether there are steps for them.
    messages: Vec<(NodeId, NodeId, Message)>,
    is_still: bool,
    replies: Vec<(Peer, Reply)>,
    copy: u64,
}

fn id(machine: usize) -> NodeId {
    NodeId(machine as u64 + 1)
}

impl TwoNodes {
    fn new() -> TwoNodes {
        let state = ShardState {
            revision: 1,
            epoch: 1,
            primary: Some(id(0)),
            in_sync: NodeIds::of(id(0)),
            waits: false,
        };
        let etcd = BTreeMap::from([
            (EtcdKey::Adoption, (EtcdValue::Adoption(ADOPTION), 1)),
            (EtcdKey::Shard(0), (EtcdValue::Shard(state), 1)),
        ]);
        let mut few = TwoNodes {
            now: 1_000_000 * MS,
            machines: (0..2).map(|machine| Machine::new(id(machine), 1 << 40)).collect(),
            etcd,
            revision: 1,
            etcd_answers: true,
            calls: VecDeque::new(),
            watches: BTreeMap::new(),
            messages: Vec::new(),
            is_still: false,
            replies: Vec::new(),
            copy: 0,
        };
        (0..2).for_each(|machine| few.start(machine));
        few.steps(2_000);
        let now = few.now;
        assert!(few.node(0).join(now, 0, id(1)));
        few.steps(3_000);
        assert_eq!(few.node(0).replica(0).state().in_sync.len(), 2);
        few
    }

    /// A process begins, with what the memory has.
    fn start(&mut self, machine: usize) {
        let timing = Timing { place: 0, ..Timing::of(2_000 * MS) };
        self.calls.retain(|(from, ..)| *from != machine);
        self.watches.remove(&machine);
        self.machines[machine].start(1, timing, 1 << 20);
    }

    /// The process is killed, and another one begins with a copy of the memory.
    fn put_back(&mut self, machine: usize, copy: Memory) {
        *self.machines[machine].memory.borrow_mut() = copy;
        self.start(machine);
    }

    fn node(&mut self, machine: usize) -> &mut Node<crate::machine::SimTable> {
        self.machines[machine].node.as_mut().unwrap()
    }

    fn steps(&mut self, steps: u64) {
        (0..steps).for_each(|_| self.step());
    }

    /// A millisecond.
    fn step(&mut self) {
        self.now += MS;
        let now = self.now;
        if !self.is_still {
            for (to, from, message) in std::mem::take(&mut self.messages) {
                if let Some(at) = (0..self.machines.len()).find(|machine| id(*machine) == to) {
                    self.node(at).received(now, from, message);
                }
            }
            (0..self.machines.len()).for_each(|machine| self.carry_out(machine));
        }
        for machine in 0..self.machines.len() {
            self.node(machine).tick(now);
            self.carry_out(machine);
        }
        // What is asked because of an answer is answered in the next step.
        for _ in 0..self.calls.len() {
            if !self.etcd_answers {
                break;
            }
            let Some((machine, call, what)) = self.calls.pop_front() else { break };
            let put = match &what {
                EtcdCall::Read => Vec::new(),
                EtcdCall::Transaction { put, .. } => put.iter().map(|put| put.0).collect(),
            };
            if what == EtcdCall::Read {
                self.watches.insert(machine, call);
            }
            let answer = self.answer(call, what);
            let is_done = answer.is_done;
            self.node(machine).answered(now, answer);
            self.carry_out(machine);
            for (machine, call) in self.watches.clone().into_iter().filter(|_| is_done && !put.is_empty()) {
                let answer = EtcdAnswer { is_watched: true, ..self.told(call, true, &put) };
                self.node(machine).answered(now, answer);
                self.carry_out(machine);
            }
        }
    }

    fn carry_out(&mut self, machine: usize) {
        // After each turn, as a node does.
        let now = self.now;
        self.node(machine).remove_owned(now);
        for output in self.node(machine).outputs() {
            match output {
                Output::Etcd(call, what) => self.calls.push_back((machine, call, what)),
                Output::Node(to, message) => self.messages.push((to, id(machine), message)),
                Output::Reply(Peer::SELF, _) | Output::Removes { .. } => {}
                Output::Reply(peer, reply) => self.replies.push((peer, reply)),
            }
        }
    }

    fn answer(&mut self, call: u64, what: EtcdCall) -> EtcdAnswer {
        let (mut is_done, mut names) = (true, Vec::new());
        match what {
            EtcdCall::Read => names.extend(self.etcd.keys().copied()),
            EtcdCall::Transaction { compare, put, .. } => {
                let at = |key: &EtcdKey| self.etcd.get(key).map_or(0, |(_, at)| *at);
                is_done = compare.iter().all(|(key, was)| at(key) == *was);
                if is_done {
                    self.revision += 1;
                    put.into_iter().for_each(|(key, value)| {
                        self.etcd.insert(key, (value, self.revision));
                    });
                }
                names.extend(compare.into_iter().map(|(key, _)| key).chain([EtcdKey::Adoption]));
            }
        }
        self.told(call, is_done, &names)
    }

    /// Keys, as they are.
    fn told(&self, call: u64, is_done: bool, names: &[EtcdKey]) -> EtcdAnswer {
        let entry = |key: EtcdKey| {
            let found = self.etcd.get(&key).cloned();
            Entry { key, at: found.as_ref().map_or(0, |(_, at)| *at), value: found.map(|(value, _)| value) }
        };
        let entries = names.iter().copied().map(entry).collect();
        let (etcd, revision) = (ADOPTION.etcd, self.revision);
        EtcdAnswer { call, is_watched: false, etcd, revision, is_done, entries }
    }

    fn ask(&mut self, peer: u64, key: Key, kind: Kind, wanted: Wanted) {
        self.copy += 1;
        let request = Request { copy: self.copy, id: None, shard: 0, key, kind, wanted };
        let now = self.now;
        self.node(0).requested(now, Peer(peer), request);
        self.carry_out(0);
    }

    /// Asks, and waits for the reply.
    fn asked(&mut self, peer: u64, key: Key, kind: Kind, wanted: Wanted) -> Result<Outcome, NotDone> {
        self.ask(peer, key, kind, wanted);
        let copy = self.copy;
        for _ in 0..5_000 {
            if let Some(at) = self.replies.iter().position(|(_, reply)| reply.copy == copy) {
                return self.replies.remove(at).1.ended;
            }
            self.step();
        }
        panic!("{copy} is not answered");
    }

    fn own(&mut self, number: u16) -> Session {
        let session = Session { owner: number, number: 70_000 + u64::from(number) };
        let own = Kind::Own(session, ABSENT);
        assert_eq!(self.asked(1, owners::key(0, number), own, Wanted::Usual), Ok(Outcome::Done));
        session
    }

    fn put_as(&mut self, session: Session, keys: u16) {
        for key in 0..keys {
            let put = Kind::Put(value_of(1));
            let key = [&[0, 200][..], &key.to_be_bytes()].concat().into();
            assert_eq!(self.asked(1, key, put, Wanted::Owned(session, None)), Ok(Outcome::Done));
        }
    }

    fn has_owner(&self, number: u16) -> bool {
        self.machines[0].memory.borrow().entries.contains_key(&owners::key(0, number))
    }

    /// Steps until an owner is gone.
    fn goes(&mut self, number: u16, steps: u32, mut meanwhile: impl FnMut(&mut TwoNodes)) -> bool {
        for _ in 0..steps {
            meanwhile(self);
            self.step();
            if !self.has_owner(number) {
                return true;
            }
        }
        false
    }
}

#[test]
fn an_owner_that_is_removed_goes() {
    let mut few = TwoNodes::new();
    let session = few.own(3);
    few.put_as(session, 5);
    let removed = few.asked(1, owners::key(0, 3), Kind::RemoveOwner(session), Wanted::Usual);
    assert_eq!(removed, Ok(Outcome::Done));
    assert!(few.goes(3, 500, |_| {}));
}

/// Some ask all the time whether it has gone: each question holds its key while it is under way.
#[test]
fn an_owner_that_is_asked_for_all_the_time_goes() {
    let mut few = TwoNodes::new();
    let session = few.own(3);
    few.put_as(session, 5);
    let removed = few.asked(1, owners::key(0, 3), Kind::RemoveOwner(session), Wanted::Usual);
    assert_eq!(removed, Ok(Outcome::Done));
    few.replies.clear();
    for peer in 10..13 {
        few.ask(peer, owners::key(0, 3), Kind::Who, Wanted::Usual);
    }
    let is_gone = few.goes(3, 2_500, |few| {
        for (peer, _) in std::mem::take(&mut few.replies) {
            few.ask(peer.0, owners::key(0, 3), Kind::Who, Wanted::Usual);
        }
    });
    assert!(is_gone, "it stays for as long as it is asked for");
}

/// An absent owner leaves, although others want to begin as this owner.
#[test]
fn an_owner_that_others_want_to_be_leaves_when_it_is_absent() {
    let mut few = TwoNodes::new();
    few.own(3);
    few.replies.clear();
    let begin = |peer: u64| Kind::Own(Session { owner: 3, number: peer }, ABSENT);
    (10..13).for_each(|peer| few.ask(peer, owners::key(0, 3), begin(peer), Wanted::Usual));
    let is_gone = few.goes(3, 2_500, |few| {
        for (peer, _) in std::mem::take(&mut few.replies) {
            few.ask(peer.0, owners::key(0, 3), begin(peer.0), Wanted::Usual);
        }
    });
    assert!(is_gone, "it was not heard for longer than it may be away, and is still there");
}

/// More is asked for than a channel takes.
#[test]
fn an_owner_goes_while_a_channel_is_full() {
    let mut few = TwoNodes::new();
    let session = few.own(3);
    few.put_as(session, 5);
    few.replies.clear();
    let key = |peer: u64| Bytes::from([&[0, 100][..], &(peer as u16).to_be_bytes()].concat());
    let put = |few: &mut TwoNodes, peer: u64| few.ask(peer, key(peer), Kind::Put(value_of(2)), Wanted::Usual);
    (10..10_000).for_each(|peer| put(&mut few, peer));
    let mut puts = 0;
    let mut again = |few: &mut TwoNodes| {
        for (peer, _) in std::mem::take(&mut few.replies) {
            if peer.0 >= 10 {
                puts += 1;
                put(few, peer.0);
            }
        }
    };
    // At first it waits for room.
    for _ in 0..400 {
        again(&mut few);
        few.step();
    }
    few.ask(1, owners::key(0, 3), Kind::RemoveOwner(session), Wanted::Usual);
    let is_gone = few.goes(3, 500, again);
    assert!(is_gone, "it stays while {puts} puts are made");
}

/// CL19: who does not know owners gets no copy of a shard that has one, or is about to.
#[test]
fn a_shard_that_is_about_to_have_an_owner_is_copied_to_nobody_who_knows_none() {
    let mut few = TwoNodes::new();
    let about = NodeAbout { version: owners::SINCE_VERSION - 1, ..NodeAbout::default() };
    let old = NodeKey { life: 1, number: 1, alive: true, about };
    few.revision += 1;
    few.etcd.insert(EtcdKey::Node(NodeId(9)), (EtcdValue::Node(old), few.revision));
    few.steps(3_000);
    few.is_still = true;
    let session = Session { owner: 3, number: 1 };
    few.ask(1, owners::key(0, 3), Kind::Own(session, ABSENT), Wanted::Usual);
    let now = few.now;
    let joins = few.node(0).join(now, 0, NodeId(9));
    few.is_still = false;
    few.steps(20);
    assert!(!(joins && few.has_owner(3)), "a node that knows no owners gets a copy with one");
}

/// While a primary has no life, it takes no requests: that nobody was heard then tells nothing.
#[test]
fn who_is_refused_by_a_primary_without_a_life_is_not_absent() {
    let mut few = TwoNodes::new();
    few.own(3);
    let stay = |few: &mut TwoNodes| {
        let session = Session { owner: 3, number: 70_003 };
        few.ask(1, owners::key(0, 3), Kind::Stay(session), Wanted::Usual);
    };
    // Another node has taken another shard over from it.
    few.etcd_answers = false;
    few.revision += 1;
    let revision = few.revision;
    let Some((EtcdValue::Node(key), at)) = few.etcd.get_mut(&EtcdKey::Node(id(0))) else { panic!() };
    (key.alive, *at) = (false, revision);
    few.steps(10);
    few.etcd_answers = true;
    for _ in 0..1_000 {
        few.step();
        if few.node(0).standing() != Standing::Good {
            break;
        }
        stay(&mut few);
    }
    assert_ne!(few.node(0).standing(), Standing::Good);
    few.etcd_answers = false;
    for _ in 0..10 {
        few.steps(300);
        stay(&mut few);
    }
    few.etcd_answers = true;
    few.steps(100);
    assert_eq!(few.node(0).standing(), Standing::Good);
    few.replies.clear();
    let session = Session { owner: 3, number: 70_003 };
    let stays = few.asked(2, owners::key(0, 3), Kind::Stay(session), Wanted::Usual);
    assert_eq!(stays, Ok(Outcome::Done), "it has said that it is there all the time");
}

/// What a node begins by itself is no more than a channel takes.
#[test]
fn many_owners_that_are_absent_leave_one_after_the_other() {
    let mut few = TwoNodes::new();
    for number in 1..=2 * ITEMS_MAX as u16 {
        let session = Session { owner: number, number: number.into() };
        few.ask(1, owners::key(0, number), Kind::Own(session, ABSENT), Wanted::Usual);
        if number % 1_000 == 0 {
            few.steps(5);
        }
    }
    few.steps(500);
    // A new primary begins to count for all of them at the same time.
    let now = few.now;
    assert!(few.node(0).hand_over(now, 0, id(1)));
    let mut most = 0;
    for _ in 0..8_000 {
        few.step();
        most = most.max(few.node(1).replica(0).under_way());
    }
    assert!(most > 0);
    assert!(most <= ITEMS_MAX + 512, "{most} changes are under way");
}

/// CL11: somebody puts at every moment, so that a newcomer has never answered all. It is named in the end, unless that rule is
/// broken.
#[test]
fn a_newcomer_is_named_while_others_put_all_the_time() {
    let is_named = |few: &mut TwoNodes| {
        let (now, standby) = (few.now, id(1));
        assert!(few.node(0).leave_out(now, 0, standby));
        few.steps(2_000);
        let now = few.now;
        assert!(few.node(0).join(now, 0, standby));
        (0..3_000).any(|number: u16| {
            let key = Bytes::from([&[0][..], &number.to_be_bytes()].concat());
            few.ask(1, key, Kind::Put(value_of(1)), Wanted::Usual);
            few.step();
            few.node(0).replica(0).state().in_sync.len() == 2
        })
    };
    let mut few = TwoNodes::new();
    assert!(is_named(&mut few));
    breaks(Some(Rule::NewcomerStarved));
    assert!(!is_named(&mut few));
    breaks(None);
}

/// CL21: what a standby has answered it has, also when its process begins again. It is in sync as soon as it has the rest.
#[test]
fn a_standby_that_starts_again_is_not_copied_to_again() {
    let mut few = TwoNodes::new();
    let key = |number: u8| Bytes::from(vec![0, number]);
    for number in 0..5 {
        assert_eq!(few.asked(1, key(number), Kind::Put(value_of(1)), Wanted::Usual), Ok(Outcome::Done));
    }
    let before = few.node(0).replica(0).state().revision;
    // Nothing comes to it any more: what is put now waits for it.
    few.is_still = true;
    for number in 3..8 {
        few.ask(1, key(number), Kind::Put(value_of(2)), Wanted::Usual);
    }
    few.messages.clear();
    few.start(1);
    assert_eq!(few.node(1).replica(0).role(), Role::None, "it does not count before its primary has said so");
    few.is_still = false;
    few.steps(800);
    assert_eq!(few.node(1).replica(0).role(), Role::Standby);
    assert_eq!(few.replies.iter().filter(|(_, reply)| reply.ended == Ok(Outcome::Done)).count(), 5);
    let state = few.node(0).replica(0).state().clone();
    assert_eq!((state.revision, state.in_sync.len()), (before, 2), "it was in sync all the time");
    for number in 0..8 {
        let value = few.machines[1].memory.borrow().entries.get(&key(number)).cloned();
        assert_eq!(value, Some(value_of(if number < 3 { 1 } else { 2 })), "{number}");
    }
}

/// CL22: a memory that was copied lacks what was put since.
#[test]
fn an_old_copy_of_a_memory_is_refused() {
    let mut few = TwoNodes::new();
    let copy = few.machines[0].memory.borrow().clone();
    few.steps(1_000);
    few.put_back(0, copy);
    few.steps(1_000);
    assert_eq!(few.node(0).standing(), Standing::Outdated);
    assert!(few.node(0).page().words.iter().all(|word| !word.is_open));
    few.steps(3_000);
    let state = few.node(1).replica(0).state().clone();
    assert_eq!(state.primary, Some(id(1)), "the other one takes over");
}

/// CL22: of two processes that begin with the same memory, one lives.
#[test]
fn of_two_equal_copies_one_is_refused() {
    let mut few = TwoNodes::new();
    let copy = few.machines[0].memory.borrow().clone();
    few.put_back(0, copy.clone());
    few.machines.push(Machine::new(id(0), 1 << 40));
    few.put_back(2, copy);
    few.steps(3_000);
    let standings = [few.node(0).standing(), few.node(2).standing()];
    let outdated = standings.iter().filter(|standing| **standing == Standing::Outdated).count();
    assert_eq!(outdated, 1, "{standings:?}");
    assert!(standings.contains(&Standing::Good), "{standings:?}");
}
