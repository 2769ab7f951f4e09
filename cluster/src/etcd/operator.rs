//! The operator's changes of a cluster's keys.

use super::error::EtcdError;
use super::{EtcdStore, OPS_MAX};
use crate::core::adopt;
use crate::core::etcd::{At, EtcdAnswer, EtcdKey, EtcdValue};
use crate::core::placement::Wishes;
use crate::core::state::{Adoption, ClusterConfig, NodeId, NodeIds, NodeKey, Notes, ShardIx, ShardState};
use etcd_client::{DeleteOptions, TxnOp};
use std::collections::BTreeMap;
use std::time::Duration;

/// The most tries of an operator's change, if another one is faster.
const TRIES: usize = 20;

/// Shards without a primary, and without a node that could become one, as [`EtcdStore::lost`] has found them.
#[derive(Clone, Debug)]
pub struct LostShards {
    /// Their states.
    pub shards: BTreeMap<ShardIx, ShardState>,
    read: EtcdAnswer,
}

impl EtcdStore {
    /// Makes a cluster. If this is interrupted, it can be repeated: the configuration comes last.
    ///
    /// # Errors
    /// [`EtcdError::Exists`], [`EtcdError::Config`], and others.
    pub async fn init(&self, config: &ClusterConfig) -> Result<Adoption, EtcdError> {
        config.check()?;
        let adoption = Adoption { number: 1, etcd: self.id().await? };
        let state = |_| EtcdValue::Shard(ShardState { revision: 1, ..ShardState::default() });
        self.write_all(config, adoption, state).await?;
        Ok(adoption)
    }

    /// Writes all keys of a cluster that has none: shards, then the adoption and the configuration together.
    async fn write_all(
        &self,
        config: &ClusterConfig,
        adoption: Adoption,
        state: impl Fn(ShardIx) -> EtcdValue,
    ) -> Result<(), EtcdError> {
        // Keys of an interrupted call, with other shards.
        let left_over =
            TxnOp::delete(format!("{}shards/", self.prefix()), Some(DeleteOptions::new().with_prefix()));
        if !self
            .transact(0, vec![self.is_of(EtcdKey::Config, 0)], vec![left_over], &[EtcdKey::Config])
            .await?
            .is_done
        {
            return Err(self.exists().await);
        }
        // If several do this at once, the one continues that first writes the first shard after the last has removed
        // the old keys.
        let mut ours = 0;
        let shards: Vec<ShardIx> = (0..config.shards).collect();
        for some in shards.chunks(OPS_MAX) {
            let puts =
                some.iter().flat_map(|shard| self.put(EtcdKey::Shard(*shard), &state(*shard))).collect();
            let when = vec![self.is_of(EtcdKey::Config, 0), self.is_of(EtcdKey::Shard(0), ours)];
            let answer = self.transact(0, when, puts, &[EtcdKey::Shard(0)]).await?;
            if !answer.is_done {
                return Err(self.exists().await);
            }
            ours = answer.shard(0).map_or(ours, |(_, at)| at);
        }
        let mut puts = self.put(EtcdKey::Adoption, &EtcdValue::Adoption(adoption));
        puts.extend(self.put(EtcdKey::Config, &EtcdValue::Config(config.clone())));
        let when = vec![self.is_of(EtcdKey::Config, 0), self.is_of(EtcdKey::Shard(0), ours)];
        match self.transact(0, when, puts.into_vec(), &[EtcdKey::Config]).await?.is_done {
            true => Ok(()),
            false => Err(self.exists().await),
        }
    }

    async fn exists(&self) -> EtcdError {
        match self.read_config().await {
            Ok((config, _)) => EtcdError::Exists { name: self.name.clone(), config: Box::new(config) },
            // Another operator makes it, and has not finished yet.
            Err(EtcdError::NotThere { name }) => EtcdError::Busy { name },
            Err(error) => error,
        }
    }

    /// The adoption that nodes believe. Fails if it is not of this etcd (CL17).
    pub(super) fn adopted(&self, read: &EtcdAnswer) -> Result<Adoption, EtcdError> {
        let adoption = read.adoption().unwrap_or_default();
        match adoption.etcd == read.etcd {
            true => Ok(adoption),
            false => Err(EtcdError::Foreign { name: self.name.clone() }),
        }
    }

    /// Reads etcd twice, two TTLs apart. Nodes that live have beaten in between.
    async fn listen(&self) -> Result<(EtcdAnswer, EtcdAnswer), EtcdError> {
        let (config, before) = self.read_config().await?;
        tokio::time::sleep(Duration::from_micros(2 * config.timing.ttl)).await;
        Ok((before, self.read_config().await?.1))
    }

    /// Changes the operator's wishes.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn change_wishes(&self, change: impl Fn(&mut Wishes)) -> Result<Wishes, EtcdError> {
        for _ in 0..TRIES {
            let (_, read) = self.read_config().await?;
            let adoption = self.adopted(&read)?;
            let mut wishes = read.wishes().cloned().unwrap_or_default();
            change(&mut wishes);
            let when =
                vec![self.is_adopted(&adoption), self.is_of(EtcdKey::Wishes, read.at(EtcdKey::Wishes))];
            let put = self.put(EtcdKey::Wishes, &EtcdValue::Wishes(wishes.clone()));
            if self.transact(0, when, put.into_vec(), &[EtcdKey::Wishes]).await?.is_done {
                return Ok(wishes);
            }
        }
        Err(EtcdError::Busy { name: self.name.clone() })
    }

    /// Shards that no node will ever serve, unless a node with a copy starts again: all those nodes are silent. Takes
    /// two TTLs, in which it listens for them.
    ///
    /// # Errors
    /// As [`EtcdStore::read_config`].
    pub async fn lost(&self) -> Result<LostShards, EtcdError> {
        let (before, read) = self.listen().await?;
        let is_silent = |node: NodeId| !read.beats(node, &before);
        let are_silent = |(_, state): &(ShardIx, &ShardState)| {
            state.primary.is_some_and(is_silent) && state.in_sync.iter().all(is_silent)
        };
        let shards = read.shards().filter(are_silent).map(|(shard, state)| (shard, state.clone())).collect();
        Ok(LostShards { shards, read })
    }

    /// Restarts lost shards, empty. Their nodes are dead from then on, and give up their copies when they start again.
    ///
    /// # Errors
    /// [`EtcdError::NotLost`] if one of those nodes was heard since, and others. Shards before it have been restarted.
    pub async fn begin_anew(&self, lost: &LostShards) -> Result<(), EtcdError> {
        let adoption = self.adopted(&lost.read)?;
        let mut nodes: BTreeMap<NodeId, (NodeKey, At)> = BTreeMap::new();
        let learn = |answer: &EtcdAnswer, nodes: &mut BTreeMap<NodeId, (NodeKey, At)>| {
            nodes.extend(answer.nodes().map(|(id, key)| (id, (key.clone(), answer.at(EtcdKey::Node(id))))));
        };
        learn(&lost.read, &mut nodes);
        for (shard, state) in &lost.shards {
            let name = EtcdKey::Shard(*shard);
            let (revision, epoch) = (state.revision + 1, state.epoch + 1);
            let new = ShardState { revision, epoch, primary: None, in_sync: NodeIds::default(), waits: true };
            let mut when = vec![self.is_adopted(&adoption), self.is_of(name, lost.read.at(name))];
            let mut then = self.put(name, &EtcdValue::Shard(new)).into_vec();
            let mut keys = vec![name];
            // As when a standby takes over (CL8): these nodes were silent for a TTL, and are dead from now on.
            for id in state.in_sync.clone().and(&state.primary.into_iter().collect()).iter() {
                let node = EtcdKey::Node(id);
                when.push(self.is_of(node, nodes.get(&id).map_or(0, |(_, at)| *at)));
                if let Some((key, _)) = nodes.get(&id).filter(|(key, _)| key.alive) {
                    then.extend(self.put(node, &EtcdValue::Node(NodeKey { alive: false, ..key.clone() })));
                }
                keys.push(node);
            }
            let answer = self.transact(0, when, then, &keys).await?;
            if !answer.is_done {
                return Err(EtcdError::NotLost { shard: *shard });
            }
            learn(&answer, &mut nodes);
        }
        Ok(())
    }

    /// Forgets a node that is gone for good. If it comes back, it is a new one.
    ///
    /// # Errors
    /// [`EtcdError::InUse`]; [`EtcdError::Runs`] if it has written its key within a second; and others.
    pub async fn forget(&self, node: NodeId) -> Result<(), EtcdError> {
        let (_, read) = self.read_config().await?;
        let shards = named_by(&read, node);
        if shards > 0 {
            return Err(EtcdError::InUse { node, shards });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        match self.forget_as_read(&read, node).await? {
            true => Ok(()),
            false => Err(EtcdError::Runs { node }),
        }
    }

    /// Forgets all nodes that are gone: they have not beaten for two TTLs, in which this listens for them, and no shard
    /// names them. Returns them.
    ///
    /// # Errors
    /// [`EtcdError`]. Some may be forgotten.
    pub async fn forget_dead(&self) -> Result<Vec<NodeId>, EtcdError> {
        let (before, read) = self.listen().await?;
        let is_dead = |node: &NodeId| !read.beats(*node, &before) && named_by(&read, *node) == 0;
        let mut forgotten = Vec::new();
        for node in read.nodes().map(|(id, _)| id).filter(is_dead) {
            // A node that has just come back stays.
            if self.forget_as_read(&read, node).await? {
                forgotten.push(node);
            }
        }
        Ok(forgotten)
    }

    /// Forgets a node if its key is as it was read. Returns whether it was.
    async fn forget_as_read(&self, read: &EtcdAnswer, node: NodeId) -> Result<bool, EtcdError> {
        let adoption = read.adoption().unwrap_or_default();
        let when =
            vec![self.is_adopted(&adoption), self.is_of(EtcdKey::Node(node), read.at(EtcdKey::Node(node)))];
        let parts = [self.key(EtcdKey::Node(node)), self.about_key(node)];
        let gone = parts.into_iter().map(|key| TxnOp::delete(key, None)).collect();
        Ok(self.transact(0, when, gone, &[EtcdKey::Node(node)]).await?.is_done)
    }

    /// Continues with an etcd that was restored from a backup (CL17). `notes` are those of *all* nodes that will
    /// continue: what only another node knew is lost. `seconds` is the time since 1970.
    ///
    /// # Errors
    /// [`EtcdError::NothingToAdopt`], [`EtcdError::RestoredAlike`], and others. If this is interrupted, it can be
    /// repeated: the adoption comes last.
    pub async fn adopt(&self, notes: &[Notes], seconds: u64) -> Result<Adoption, EtcdError> {
        let (_, read) = self.read_config().await?;
        let before = read.adoption().unwrap_or_default();
        if before.etcd == read.etcd {
            let is_newer = |known: &Notes| {
                let newest = (0..).zip(&known.newest);
                let has = |shard| read.shard(shard).map_or(0, |(state, _)| state.revision);
                known.adoption == before
                    && newest.into_iter().any(|(shard, state)| state.revision > has(shard))
            };
            let name = self.name.clone();
            return Err(match notes.iter().any(is_newer) {
                true => EtcdError::RestoredAlike { name },
                false => EtcdError::NothingToAdopt { name },
            });
        }
        let shards = read.shards().flat_map(|(shard, state)| {
            self.put(EtcdKey::Shard(shard), &EtcdValue::Shard(adopt::shard(state, shard, notes)))
        });
        let nodes = read.nodes().flat_map(|(id, key)| {
            self.put(EtcdKey::Node(id), &EtcdValue::Node(NodeKey { alive: false, ..key.clone() }))
        });
        let mut puts: Vec<TxnOp> = shards.chain(nodes).collect();
        let adoption = adopt::adoption(before, read.etcd, seconds, notes);
        puts.extend(self.put(EtcdKey::Adoption, &EtcdValue::Adoption(adoption)));
        for some in puts.chunks(OPS_MAX) {
            let when = vec![self.is_adopted(&before)];
            if !self.transact(0, when, some.to_vec(), &[EtcdKey::Adoption]).await?.is_done {
                return Err(EtcdError::Busy { name: self.name.clone() });
            }
        }
        Ok(adoption)
    }

    /// Continues with an etcd that has no keys of the cluster. Nodes that have run since before supply its
    /// configuration and everything else. `notes` and `seconds` are as in [`EtcdStore::adopt`].
    ///
    /// # Errors
    /// [`EtcdError::Exists`]; [`EtcdError::RestoredAlike`] if nodes could not tell it from the former one; and others.
    pub async fn adopt_from(
        &self,
        config: &ClusterConfig,
        notes: &[Notes],
        seconds: u64,
    ) -> Result<Adoption, EtcdError> {
        config.check()?;
        let etcd = self.id().await?;
        let knows_it = |notes: &Notes| notes.adoption.etcd == etcd || notes.past.contains(&etcd);
        if notes.iter().any(knows_it) {
            return Err(EtcdError::RestoredAlike { name: self.name.clone() });
        }
        let adoption = adopt::adoption(Adoption::default(), etcd, seconds, notes);
        let state = |shard| EtcdValue::Shard(adopt::shard(&ShardState::default(), shard, notes));
        self.write_all(config, adoption, state).await?;
        Ok(adoption)
    }
}

/// The number of shards that name a node.
fn named_by(read: &EtcdAnswer, node: NodeId) -> usize {
    let names = |state: &ShardState| state.primary == Some(node) || state.in_sync.has(node);
    read.shards().filter(|(_, state)| names(state)).count()
}
