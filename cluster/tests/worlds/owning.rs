//! Owners of entries (CL19): clients that begin as one, say that they are there, put, forget it, and remove owners.

use crate::Broken;
use crate::history::{Kind, OWNED};
use crate::machine::{key_of, number_of};
use crate::world::{CALM, CLIENTS, MACHINES, Message, Random, TICK, TICKS, WARM, World};
use oneread_cluster::core::message::{Kind as Asked, Outcome, Reply, Request, Session, Wanted};
use oneread_cluster::core::owners;
use oneread_cluster::core::sending::Sending;
use oneread_cluster::core::state::{ShardIx, Time};
use std::collections::{BTreeSet, HashMap};

/// Numbers of owners, each of them in every shard.
const OWNERS: usize = 2;
/// Ticks after which a session is gone that is not heard.
const ABSENT: [u32; 3] = [60, 200, 400];
/// Ticks of the calm after which all owners are removed.
const STAY: u32 = 150;

/// Asked of an owner, and not answered yet.
struct Ask {
    shard: ShardIx,
    owner: u16,
    kind: Asked,
    sending: Sending,
    began: u32,
}

/// What a client has to do with owners.
#[derive(Default)]
struct Agent {
    session: Option<(ShardIx, Session)>,
    /// Which session it removes, and when it began to.
    removing: Option<(ShardIx, Session, u32)>,
    ask: Option<Ask>,
}

/// All that has to do with owners. It draws from numbers of its own.
pub struct Owning {
    pub are_there: bool,
    random: Random,
    agents: [Agent; CLIENTS],
    sessions: u64,
    /// Sessions that have begun: where, whose, and when that was known.
    begun: HashMap<u64, (ShardIx, u16, u32)>,
    /// When a session was known to be gone.
    gone: HashMap<u64, u32>,
    /// Which session a value is of.
    pub owned: HashMap<u64, u64>,
}

impl Owning {
    pub fn new(seed: u64) -> Owning {
        let mut random = Random(seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ 0x0113);
        Owning {
            are_there: random.chance(0.25),
            random,
            agents: Default::default(),
            sessions: 0,
            begun: HashMap::new(),
            gone: HashMap::new(),
            owned: HashMap::new(),
        }
    }
}

impl World {
    /// Which session a client puts with. A value that is swapped in is whose the other one was.
    pub fn puts_as(&mut self, client: usize, shard: ShardIx, kind: Kind, value: &mut u64) -> Option<Session> {
        let owning = &mut self.owning;
        let (number, session) = match kind {
            Kind::Swap(expected) => (*owning.owned.get(&expected)?, None),
            Kind::Put | Kind::Insert => {
                // All put with what they know, as threads of a process do.
                let next = owning.agents.iter().cycle().skip(client).take(CLIENTS);
                let mut sessions = next.filter_map(|agent| agent.session).filter(|(at, _)| *at == shard);
                let session = sessions.next().filter(|_| owning.random.chance(0.9))?.1;
                (session.number, Some(session))
            }
            _ => return None,
        };
        *value |= OWNED;
        owning.owned.insert(*value, number);
        session
    }

    /// What was known to be gone is not READ, and is not put, by what began after that.
    pub fn look_whether_gone(&mut self, value: u64, start: u32, was: &str) {
        let gone = self.owning.owned.get(&value).and_then(|session| self.owning.gone.get(session));
        if let Some(gone) = gone.filter(|gone| **gone < start) {
            let why = format!("{value} {was} at {} by what began at {start}: gone at {gone}", self.time);
            self.wrong.get_or_insert(why);
        }
    }

    pub fn owner_steps(&mut self, client: usize) {
        if !self.owning.are_there || self.time <= WARM || !self.runs(MACHINES + client) {
            return;
        }
        let (is_calm, is_over) = (self.is_calm(), self.time > TICKS - CALM + STAY);
        let agent = &mut self.owning.agents[client];
        let random = &mut self.owning.random;
        if let Some(ask) = &agent.ask {
            if self.time > ask.began + 60 && random.chance(0.02) {
                agent.ask = None;
            } else if ask.sending.may_send() && random.chance(0.05) {
                self.ask_owner(client);
            }
            return;
        }
        let shard = random.below(self.nature.shards) as ShardIx;
        let owner = 1 + random.below(OWNERS) as u16;
        let session = agent.session.filter(|_| !is_over);
        let (shard, owner, kind) = match (session, agent.removing) {
            (_, Some((shard, session, _))) if random.chance(0.1) => {
                (shard, session.owner, Asked::RemoveOwner(session))
            }
            (_, None) if is_over && random.chance(0.1) => (shard, owner, Asked::Who),
            (None, _) if !is_calm && random.chance(0.2) => {
                self.owning.sessions += 1;
                let session = Session { owner, number: self.owning.sessions };
                let absent_for = Time::from(random.one(&ABSENT)) * TICK as Time;
                (shard, owner, Asked::Own(session, absent_for))
            }
            (Some((shard, session)), _) if random.chance(0.05) => {
                (shard, session.owner, Asked::Stay(session))
            }
            (Some(_), _) if !is_calm && random.chance(0.004) => return agent.session = None,
            (Some((shard, session)), None) if !is_calm && random.chance(0.02) => {
                (shard, session.owner, Asked::Who)
            }
            (None, None) if !is_calm && random.chance(0.003) => (shard, owner, Asked::Who),
            _ => return,
        };
        // What begins a session is sent again only if it was certainly not done.
        let may_repeat = !matches!(kind, Asked::Own(..)) || self.broken == Broken::OwnersAskedTwice;
        let sending = Sending::new(may_repeat);
        agent.ask = Some(Ask { shard, owner, kind, sending, began: self.time });
        self.ask_owner(client);
    }

    fn ask_owner(&mut self, client: usize) {
        self.copy += 1;
        let copy = self.copy;
        let Some(ask) = &mut self.owning.agents[client].ask else { return };
        let Some(to) = self.clients[client].primary(ask.shard) else { return };
        ask.sending.sends(copy);
        let (shard, key, kind) = (ask.shard, owners::key(ask.shard, ask.owner), ask.kind.clone());
        let request = Request { copy, id: None, shard, key, kind, wanted: Wanted::Usual };
        self.tell(MACHINES + client, to, Message::Request { to, client, request });
    }

    /// Whether it is a reply to what was asked of an owner.
    pub fn owner_replied(&mut self, client: usize, reply: Reply) -> bool {
        let agent = &mut self.owning.agents[client];
        let Some(ask) = agent.ask.as_mut().filter(|ask| ask.sending.waits_for(reply.copy)) else {
            return false;
        };
        let Some(outcome) = ask.sending.replied(reply) else {
            // Nobody is heard for long where the map is old.
            if ask.sending.is_not_done() {
                agent.ask = None;
            }
            return true;
        };
        let Some(Ask { shard, owner, kind, began, .. }) = agent.ask.take() else { return true };
        match (kind, outcome) {
            (Asked::Own(session, _), Outcome::Done) => {
                agent.session = Some((shard, session));
                self.owning.begun.insert(session.number, (shard, owner, self.time));
                self.count("sessions");
            }
            (Asked::Stay(_), Outcome::Absent) => agent.session = None,
            (Asked::Who, Outcome::Is(number)) => {
                agent.removing = Some((shard, Session { owner, number }, began));
            }
            (Asked::RemoveOwner(_) | Asked::Who, Outcome::Absent) => {
                // Another session may be there, which began after that.
                let began = agent.removing.take().map_or(began, |(_, _, began)| began);
                let owning = &mut self.owning;
                let is_it =
                    |(at, whose, known): (ShardIx, u16, u32)| (at, whose) == (shard, owner) && known < began;
                let gone: BTreeSet<u64> =
                    owning.begun.iter().filter(|(_, of)| is_it(**of)).map(|(session, _)| *session).collect();
                for session in gone {
                    owning.gone.entry(session).or_insert(self.time);
                }
                self.count("owners gone");
            }
            _ => {}
        }
        true
    }

    /// An owner that is there, and where the shard is served.
    fn owner_left(&self, shard: usize) -> Option<(u16, usize)> {
        // A standby that is gone is left out first; in some worlds not before their end, and no change is made.
        let is_soon = self.nature.timing.late < (CALM as f64 * TICK) as Time * 2;
        let machine = self.server_of(shard).filter(|_| is_soon)?;
        let memory = self.machines[machine].memory.borrow();
        let mut left = memory.entries.keys().filter_map(|key| owners::parts(key));
        left.find(|(of, _)| usize::from(*of) == shard).map(|(_, owner)| (owner, machine))
    }

    pub fn owners_have_left(&self) -> bool {
        (0..self.nature.shards).all(|shard| self.owner_left(shard).is_none())
    }

    /// In each copy that counts, an entry has an owner if it was put by one, and the shard knows that owner; and in the calm
    /// all owners were removed.
    pub fn look_at_owners(&mut self) {
        for shard in 0..self.nature.shards {
            let state = self.etcd.shard(shard).clone();
            let machines = state.in_sync.iter().filter_map(|node| self.machine_of(node));
            for machine in machines.collect::<Vec<_>>() {
                let memory = self.machines[machine].memory.borrow();
                for key in (0..self.nature.keys).map(|key| key_of(shard as ShardIx, key)) {
                    let Some(value) = memory.entries.get(&key) else { continue };
                    let owner = memory.lives.get(&key).and_then(|life| life.owner());
                    let is_owned = self.owning.owned.contains_key(&number_of(Some(value)));
                    let is_known = owner.is_none_or(|owner| {
                        memory.entries.contains_key(&owners::key(shard as ShardIx, owner))
                    });
                    if is_owned != owner.is_some() || !is_known {
                        let why = format!("{key:?} at {machine} has owner {owner:?}, known: {is_known}");
                        self.wrong.get_or_insert(why);
                    }
                }
            }
            if let Some((owner, machine)) = self.owner_left(shard) {
                self.wrong.get_or_insert(format!("owner {owner} of shard {shard} stays at {machine}"));
            }
        }
    }
}
