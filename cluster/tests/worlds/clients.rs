//! Clients, and the NIC that READs for them.

use crate::history::{Event, Kind, NEVER, due_of, value_with_due};
use crate::machine::{Stored, key_of, number_of, value_of};
use crate::world::{CLIENTS, ETCD, MACHINES, Message, Moment, Plot, SKEW, TICK, World};
use oneread_cluster::core::etcd::EtcdCall;
use oneread_cluster::core::message::{Kind as Asked, NotDone, Outcome, Reply, Request, RequestId, Wanted};
use oneread_cluster::core::sending::Sending;
use oneread_cluster::core::state::{NodeId, Page, ShardIx, Time, Timing, Word};
use oneread_cluster::core::view::View;

/// A READ under way. The NIC goes on with it whatever the client's process does.
#[derive(Clone)]
pub struct Reading {
    node: NodeId,
    /// By true time, and by the client's clock.
    asked: u32,
    issued: Time,
    lands: u32,
    /// When each cell is sampled: `asked`, `held`, the words; or the value.
    cells: Vec<(u32, usize)>,
    page: Page,
    value: Option<(ShardIx, u8, u64)>,
    has_failed: bool,
    /// Waits for a store to that cell.
    lurks: bool,
}

pub struct Operation {
    event: usize,
    pub id: Option<RequestId>,
    pub shard: ShardIx,
    key: u8,
    pub kind: Kind,
    pub value: u64,
    wanted: Wanted,
    sending: Sending,
    /// Of a GET by request.
    copy: u64,
    /// When the last one was sent, by true time and by the client's clock.
    asked: u32,
    issued: Time,
}

pub struct Client {
    view: View,
    reading: Option<Reading>,
    pub operation: Option<Operation>,
    number: u64,
}

impl Client {
    pub fn new(shards: ShardIx, timing: Timing) -> Client {
        Client { view: View::new(shards, timing), reading: None, operation: None, number: 0 }
    }

    /// Who serves a shard, as it knows.
    pub fn primary(&self, shard: ShardIx) -> Option<NodeId> {
        self.view.shard(shard).primary
    }
}

impl World {
    fn read_map(&mut self, client: usize) {
        let from = MACHINES + client;
        self.send(from, ETCD, Message::Call { from, process: 0, call: 0, what: EtcdCall::Read });
    }

    pub fn client_steps(&mut self, client: usize) {
        if let Some(reading) = &self.clients[client].reading {
            if reading.lands <= self.time {
                let reading = self.clients[client].reading.take().unwrap();
                self.read_landed(client, reading);
            }
            return;
        }
        let Some(operation) = &self.clients[client].operation else { return self.begin_operation(client) };
        let (kind, shard, key) = (operation.kind, operation.shard, operation.key);
        if kind != Kind::Get || operation.copy != 0 {
            return self.wait_on(client);
        }
        let Some(node) = self.clients[client].view.shard(shard).primary else { return self.read_map(client) };
        let now = self.clock(MACHINES + client);
        if self.random.chance(0.05) {
            self.read_map(client);
        } else if self.random.chance(0.03) {
            self.ends(client);
        } else if self.random.chance(self.nature.by_request) {
            self.send_copy(client);
        } else if !self.clients[client].view.is_leased(shard, node, now) || self.random.chance(0.1) {
            self.issue(client, node, None);
        } else {
            self.issue(client, node, Some((shard, key)));
        }
    }

    fn begin_operation(&mut self, client: usize) {
        let watches = client == 0;
        if self.random.chance(if watches { 0.1 } else { 0.005 }) {
            return self.read_map(client);
        }
        if !self.random.chance(if self.is_calm() { 0.2 } else { 0.7 }) {
            return;
        }
        let shard = self.random.below(self.nature.shards) as ShardIx;
        let key = self.random.below(usize::from(self.nature.keys)) as u8;
        let gets = if self.is_calm() || self.reader == Some(client) { 1.0 } else { self.nature.gets };
        let is_of_key = |event: &&Event| (event.shard, event.key) == (shard, key);
        let is_known = |event: &&Event| event.end != NEVER && event.outcome == Outcome::Done;
        let mut events = self.history.iter().rev().filter(is_of_key);
        // Where many swaps are meant to succeed.
        let known = if self.nature.swaps > 0.0 { events.find(is_known) } else { events.next() };
        let known = known.map_or(0, |event| event.value);
        let kind = match self.random.part() {
            x if x < gets => Kind::Get,
            x if x < gets + self.nature.removes * (1.0 - gets) => Kind::Remove,
            _ if self.plot == Plot::Deposed && client + 1 == CLIENTS => {
                self.random.one(&[Kind::Insert, Kind::Swap(known)])
            }
            _ if self.apart.chance(self.nature.swaps) => Kind::Swap(known),
            _ => self.random.one(&[Kind::Put, Kind::Put, Kind::Insert, Kind::Swap(known)]),
        };
        self.value += 1;
        let lives = if self.apart.chance(self.nature.lives) { self.apart.one(&[60, 150, 400]) } else { 0 };
        let (mut value, ttl) = match kind {
            Kind::Get | Kind::Remove | Kind::Expire | Kind::OwnerGone => (0, None),
            // It ends with what it is swapped for.
            Kind::Swap(expected) => (value_with_due(due_of(expected).unwrap_or(0), self.value), None),
            _ if lives == 0 => (self.value, None),
            // By the time of day of some machine.
            _ => {
                (value_with_due(self.time + lives - SKEW, self.value), Some(Time::from(lives) * TICK as Time))
            }
        };
        let mut id = None;
        if kind != Kind::Get && self.random.chance(self.nature.ids) {
            self.clients[client].number += 1;
            id = Some(RequestId { lane: client as u64, number: self.clients[client].number });
        }
        let wanted = Wanted::new(ttl, self.puts_as(client, shard, kind, &mut value));
        let event = self.history.len();
        let (start, outcome) = (self.time, Outcome::Done);
        self.history.push(Event { shard, key, start, end: NEVER, kind, value, outcome, is_void: false });
        let issued = self.clock(MACHINES + client);
        let sending = Sending::new(id.is_some());
        let asked = self.time;
        let operation =
            Operation { event, id, shard, key, kind, value, wanted, sending, copy: 0, asked, issued };
        self.clients[client].operation = Some(operation);
        if kind != Kind::Get {
            self.send_copy(client);
        }
    }

    fn send_copy(&mut self, client: usize) {
        let (time, issued) = (self.time, self.clock(MACHINES + client));
        let operation = self.clients[client].operation.as_mut().unwrap();
        let (shard, key, value) = (operation.shard, operation.key, operation.value);
        let kind = match operation.kind {
            Kind::Get | Kind::Expire | Kind::OwnerGone => None,
            Kind::Put => Some(Asked::Put(value_of(value))),
            Kind::Insert => Some(Asked::Insert(value_of(value))),
            Kind::Swap(expected) => Some(Asked::Swap { expected: value_of(expected), new: value_of(value) }),
            Kind::Remove => Some(Asked::Remove),
        };
        let (id, wanted) = (operation.id, operation.wanted);
        (operation.asked, operation.issued) = (time, issued);
        let Some(to) = self.clients[client].view.shard(shard).primary else { return self.read_map(client) };
        self.copy += 1;
        let copy = self.copy;
        let operation = self.clients[client].operation.as_mut().unwrap();
        let message = match kind {
            None => {
                operation.copy = copy;
                Message::Get { to, client, copy, shard, key }
            }
            Some(kind) => {
                operation.sending.sends(copy);
                let key = key_of(shard, key);
                Message::Request { to, client, request: Request { copy, id, shard, key, kind, wanted } }
            }
        };
        self.tell(MACHINES + client, to, message);
        self.moment(Moment::Issued, MACHINES + client);
    }

    /// A request is under way.
    fn wait_on(&mut self, client: usize) {
        let operation = self.clients[client].operation.as_ref().unwrap();
        let is_open = !operation.sending.is_not_done();
        let may_repeat = operation.kind != Kind::Get && operation.sending.may_send();
        if self.random.chance(0.3) {
            self.read_map(client);
        } else if self.random.chance(self.nature.gives_up) {
            self.ends(client);
        } else if may_repeat && self.random.chance(if is_open { self.nature.repeat } else { 0.3 }) {
            self.send_copy(client);
        }
    }

    /// Without an outcome.
    pub fn ends(&mut self, client: usize) {
        let Some(operation) = self.clients[client].operation.take() else { return };
        let is_open = !operation.sending.is_not_done();
        let event = &mut self.history[operation.event];
        event.is_void = event.kind == Kind::Get || !is_open;
        match (event.kind, is_open) {
            (Kind::Get, _) => {}
            (_, true) => self.count("unknown"),
            (_, false) => self.count("not done"),
        }
    }

    pub fn client_receives(&mut self, client: usize, message: Message) {
        match message {
            Message::Answer { answer, .. } => {
                self.clients[client].view.learn(&answer);
            }
            Message::Reply { reply } if self.owner_replied(client, reply) => {}
            Message::Reply { reply } => self.replied(client, reply),
            Message::Value { copy, node, value, page } => {
                let Some(operation) = self.clients[client].operation.as_mut() else { return };
                if operation.copy != copy {
                    return;
                }
                operation.copy = 0;
                let (asked, issued, shard) = (operation.asked, operation.issued, operation.shard);
                let now = self.clock(MACHINES + client);
                if self.clients[client].view.counts(shard, node, now, true) {
                    self.count("GETs by request");
                    self.got(client, value, asked);
                }
                self.clients[client].view.page_landed(node, issued, now, &page);
                self.count("pages");
            }
            _ => unreachable!(),
        }
    }

    fn replied(&mut self, client: usize, reply: Reply) {
        let Some(operation) = self.clients[client].operation.as_mut() else { return };
        if !operation.sending.waits_for(reply.copy) {
            return;
        }
        let Some(outcome) = operation.sending.replied(reply) else {
            let (is_open, why) = (!operation.sending.is_not_done(), operation.sending.why());
            if why == Some(NotDone::NotServed) && self.random.chance(0.7) {
                self.read_map(client);
            }
            if !is_open && self.random.chance(0.2) {
                self.ends(client);
            }
            return;
        };
        let (value, start) = (operation.value, self.history[operation.event].start);
        if outcome == Outcome::Done {
            self.look_whether_gone(value, start, "was put");
        }
        let operation = self.clients[client].operation.as_ref().unwrap();
        let event = &mut self.history[operation.event];
        (event.end, event.outcome, event.is_void) = (self.time, outcome, outcome == Outcome::Full);
        self.clients[client].operation = None;
        self.count(match outcome {
            Outcome::Done => "done",
            Outcome::Exists => "exists",
            Outcome::Differs => "differs",
            Outcome::Absent => "absent",
            Outcome::Full => "full",
            Outcome::Is(_) => unreachable!("no owner was asked for"),
        });
    }

    fn got(&mut self, client: usize, value: u64, asked: u32) {
        self.look_whether_gone(value, asked, "was got");
        let operation = self.clients[client].operation.take().unwrap();
        let event = &mut self.history[operation.event];
        (event.start, event.end, event.value) = (asked, self.time, value);
        self.count("GETs");
    }

    /// A READ of the page, or of a value.
    fn issue(&mut self, client: usize, node: NodeId, value: Option<(ShardIx, u8)>) {
        let issued = self.clock(MACHINES + client);
        let hangs = !self.is_calm() && self.random.chance(self.nature.hang);
        let takes = if hangs && value.is_none() {
            self.random.one(&[60, 90, 120])
        } else if hangs {
            self.random.one(&[60, 200, 400, 600])
        } else {
            self.random.one(&[1, 1, 2, 5])
        };
        let lurks = hangs && self.random.chance(self.nature.lurk);
        let lands = self.time + takes;
        let together = self.time + 1 + self.random.below(takes as usize) as u32;
        let is_torn = self.random.chance(self.nature.torn);
        let cells = if value.is_some() { 1 } else { 2 + self.nature.shards };
        let cells = (0..cells)
            .map(|cell| {
                let at = self.time + 1 + self.random.below(takes as usize) as u32;
                // Who lurks has seen the words first.
                let at = if lurks && cell >= 2 { self.time + 1 } else { at };
                (if is_torn || lurks { at } else { together }, cell)
            })
            .collect();
        let value = value.map(|(shard, key)| (shard, key, 0));
        let page = Page { words: vec![Word::default(); self.nature.shards], ..Page::default() };
        let asked = self.time;
        self.clients[client].reading =
            Some(Reading { node, asked, issued, lands, cells, page, value, has_failed: false, lurks });
        self.moment(Moment::Issued, MACHINES + client);
    }

    /// The client's process has no part in it, nor has the node's.
    pub fn nic_samples(&mut self, client: usize) {
        let Some(mut reading) = self.clients[client].reading.take() else { return };
        let machine = self.machine_of(reading.node);
        for &(_, cell) in reading.cells.iter().filter(|&&(at, _)| at == self.time) {
            let there = machine.filter(|&machine| {
                self.machines[machine].node.is_some() && !self.is_cut(MACHINES + client, machine)
            });
            let Some(machine) = there else {
                reading.has_failed = true;
                continue;
            };
            let memory = self.machines[machine].memory.borrow();
            match &mut reading.value {
                Some((shard, key, value)) => *value = number_of(memory.entries.get(&key_of(*shard, *key))),
                None => match cell {
                    0 => reading.page.asked = memory.page.asked,
                    1 => reading.page.held = memory.page.held,
                    word => {
                        reading.page.words[word - 2] =
                            memory.page.words.get(word - 2).copied().unwrap_or_default()
                    }
                },
            }
        }
        self.clients[client].reading = Some(reading);
    }

    /// READs that wait for that store sample it.
    pub fn seen_by_lurkers(&mut self, node: NodeId, stored: &Stored) {
        for client in 0..CLIENTS {
            let Some(reading) = self.clients[client].reading.as_mut() else { continue };
            let is_meant = match (stored, reading.value) {
                (Stored::Life, None) => true,
                (Stored::Entry(stored), Some((shard, key, _))) => *stored == key_of(shard, key),
                _ => false,
            };
            if reading.lurks && reading.node == node && is_meant && self.random.chance(0.5) {
                reading.lurks = false;
                let time = self.time;
                reading.cells.iter_mut().filter(|cell| cell.1 < 2).for_each(|cell| cell.0 = time);
                reading.lands = time + 1;
            }
        }
    }

    fn read_landed(&mut self, client: usize, reading: Reading) {
        let Reading { node, asked, issued, page, value, has_failed, .. } = reading;
        let now = self.clock(MACHINES + client);
        if has_failed {
            self.clients[client].view.read_failed(node);
            return self.read_map(client);
        }
        let Some((shard, _, value)) = value else {
            let view = &mut self.clients[client].view;
            view.page_landed(node, issued, now, &page);
            let shard = self.clients[client].operation.as_ref().map_or(0, |operation| operation.shard);
            let view = &self.clients[client].view;
            let word = page.words[usize::from(shard)];
            let is_stale = !word.is_open || word.epoch != view.shard(shard).epoch;
            self.count("pages");
            if is_stale {
                self.read_map(client);
            }
            return;
        };
        // CL4
        if self.clients[client].view.counts(shard, node, now, false) {
            self.got(client, value, asked);
        } else {
            self.count("READs after the lease");
        }
    }
}
