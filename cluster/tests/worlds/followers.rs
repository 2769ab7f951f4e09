//! Who follows the changes of a shard, and keeps a copy of what it has heard of (CL18).

use crate::machine::{key_of, number_of};
use crate::world::{Random, World};
use oneread_cluster::core::feed::FeedAt;
use oneread_cluster::core::message::{Effect, Key};
use oneread_cluster::core::own;
use oneread_cluster::core::state::ShardIx;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Follower {
    shard: ShardIx,
    /// How often it asks.
    asks: f64,
    after: Option<FeedAt>,
    /// What it has heard of since the last gap. 0: the key is not there.
    copy: BTreeMap<Key, u64>,
}

/// All followers of a world. They draw from numbers of their own: with them or without, a world is the same.
pub struct Followers {
    all: Vec<Follower>,
    random: Random,
    /// Bytes of changes that nodes keep.
    pub kept: usize,
    /// What was wrong.
    pub wrong: Option<String>,
}

impl Followers {
    /// For each shard one that asks often, and one that does not.
    pub fn new(seed: u64, shards: usize) -> Followers {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        let all = (0..shards as ShardIx).flat_map(|shard| [0.5, 0.01].map(|asks| (shard, asks)));
        let all = all.map(|(shard, asks)| Follower { shard, asks, ..Follower::default() }).collect();
        let kept = random.one(&[300, 1_000, 4_000, 1 << 20]);
        Followers { all, random, kept, wrong: None }
    }
}

impl World {
    /// Each asks whichever node it likes, at times: who serves the shard, or believes so, answers.
    pub fn follow(&mut self) {
        let mut all = std::mem::take(&mut self.followers.all);
        for follower in &mut all {
            if self.followers.random.chance(follower.asks) {
                let machine = self.followers.random.below(self.machines.len());
                if let Err(why) = self.hears(follower, machine) {
                    self.followers.wrong.get_or_insert(format!("{}: {follower:?}: {why}", self.time));
                }
            }
        }
        self.followers.all = all;
    }

    /// Each hears of all that is left, from whoever serves its shard.
    pub fn follow_to_the_end(&mut self) {
        let mut all = std::mem::take(&mut self.followers.all);
        for follower in &mut all {
            let Some(machine) = self.server_of(follower.shard.into()) else { continue };
            let mut told = Ok(());
            for _ in 0..100_000 {
                let node = self.machines[machine].node.as_ref();
                let is_over = node.is_some_and(|node| !node.has_changes(follower.shard, follower.after));
                if is_over || told.is_err() {
                    break;
                }
                told = self.hears(follower, machine);
            }
            let node = self.machines[machine].node.as_ref();
            if told.is_ok() && node.is_none_or(|node| node.has_changes(follower.shard, follower.after)) {
                told = Err("does not hear of all".into());
            }
            if let Err(why) = told {
                self.followers.wrong.get_or_insert(format!("at the end: {follower:?}: {why}"));
            }
        }
        self.followers.all = all;
    }

    fn hears(&mut self, follower: &mut Follower, machine: usize) -> Result<(), String> {
        let Some(node) = self.machines[machine].node.as_ref().filter(|_| self.runs(machine)) else {
            return Ok(());
        };
        let bytes = self.followers.random.one(&[1, 400, 1 << 20]);
        let Some(part) = node.changes(follower.shard, follower.after, bytes) else { return Ok(()) };
        let is_all =
            |at| node.changes(follower.shard, Some(at), 1).is_some_and(|part| part.changes.is_empty());
        let at = part.changes.last().map_or(part.from, |told| told.at);
        let (is_all, told) = (is_all(at), part.changes.len());
        let was = follower.after;
        if let Some(after) = was.filter(|after| part.from != *after) {
            if part.changes.first().is_some_and(|told| told.at.epoch < after.epoch) {
                return Err(format!("goes back to {:?}", part.from));
            }
            follower.copy.clear();
            self.count("gaps");
        }
        let from = part.from;
        let mut last = from;
        for told in part.changes {
            if own::shard_of(&told.key).is_some() {
                return Err(format!("{told:?} is no change of a client's key"));
            }
            if told.at.number != last.number + 1 || told.at.epoch < last.epoch {
                return Err(format!("{:?} after {last:?}", told.at));
            }
            last = told.at;
            let was = follower.copy.get(&told.key).map(|was| *was != 0);
            let fits = match told.effect {
                Effect::Nothing => false,
                Effect::Came => was != Some(true),
                _ => was != Some(false),
            };
            if !fits || told.value.is_some() != matches!(told.effect, Effect::Came | Effect::Replaced) {
                return Err(format!("{told:?}, and it was there: {was:?}"));
            }
            follower.copy.insert(told.key, number_of(told.value.as_ref()));
        }
        follower.after = Some(at);
        if is_all {
            let memory = self.machines[machine].memory.borrow();
            for (key, value) in &follower.copy {
                let is = number_of(memory.entries.get(key));
                if *value != is {
                    return Err(format!("{key:?} is {is} at {:?}", self.machines[machine].id));
                }
            }
        }
        // Who begins, or has missed some, scans the shard.
        if is_all && was.is_none_or(|was| was != from) {
            let memory = self.machines[machine].memory.borrow();
            for key in (0..self.nature.keys).map(|key| key_of(follower.shard, key)) {
                let is = number_of(memory.entries.get(&key));
                follower.copy.insert(key, is);
            }
        }
        *self.counts.entry("told").or_default() += told as u64;
        Ok(())
    }
}
