//! etcd's space: how much of its quota it uses, which node compacts it, and how far nodes have read it.
//!
//! Each beat is a revision, which etcd keeps until it is compacted. etcd compacts its whole key space, and not a
//! cluster's part of it. So nodes do that only if an operator has said that this etcd has nothing else (`oneread
//! cluster init --compact-etcd`). Then there is the key `compaction`, which names the node that does it, and how far it
//! has come.

use super::error::EtcdError;
use super::members::{Again, told};
use super::{Beat, EtcdStore, json};
use crate::core::etcd::{At, EtcdKey};
use crate::core::state::{Adoption, NodeId};
use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Revisions that are kept at least: a node that was away for fewer need not read everything again.
pub const KEPT: i64 = 5_000;
/// etcd's quota by default (`--quota-backend-bytes`).
const QUOTA: u64 = 2 << 30;
/// Bytes of a beat in etcd, roughly, if there is no history to measure (three idle nodes, etcd 3.4).
const BEAT_BYTES: f64 = 130.0;
/// An etcd that has kept the beats of this time is not compacted by itself: a day, and some delay.
const KEPT_FOR: Duration = Duration::from_secs(26 * 3_600);
/// Longest page of metrics that is looked at.
const METRICS_MAX: u64 = 4 << 20;

/// Which node compacts etcd, and how far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// The node that does it. `None`: no node yet.
    pub by: Option<NodeId>,
    /// Revisions before this one are compacted, or are about to be.
    pub to: i64,
}

/// The key `compaction`, as it was when etcd was asked.
#[derive(Clone, Copy, Debug)]
pub struct CompactionKey {
    /// Its value.
    pub compaction: Compaction,
    /// The revision of its last change.
    pub at: At,
    /// etcd's revision.
    pub revision: i64,
    adoption: Adoption,
}

/// A node's beat, for deciding what etcd may forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenBeat {
    /// The revision at which it was written.
    pub at: At,
    /// The last revision that the node's watch has delivered. 0: it does not say.
    pub seen: i64,
}

/// An etcd's space, as it reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdSpace {
    /// Its revision.
    pub revision: i64,
    /// The oldest revision that it has. 1: it was never compacted.
    pub oldest: i64,
    /// The length of its file, in bytes, which counts for the quota. It never shrinks by itself.
    pub file_bytes: u64,
    /// The part of that in use. The rest is used before the file grows.
    pub used_bytes: u64,
    /// Its quota, in bytes. `None`: it does not say; 2 GiB by default.
    pub quota_bytes: Option<u64>,
    /// Its alarms, as it reports them. With NOSPACE it takes no change.
    pub alarms: Vec<String>,
    /// The cluster's compaction. `None`: no node compacts it, because it may have other keys.
    pub compaction: Option<Compaction>,
}

impl EtcdSpace {
    /// The time until its quota is reached, if nobody compacts it, with this many beats a second, and nothing else.
    /// `None`: it is compacted.
    pub fn full_in(&self, beats_per_second: f64) -> Option<Duration> {
        if self.is_compacted(beats_per_second) {
            return None;
        }
        let history = self.revision - self.oldest;
        let each = if history < KEPT { BEAT_BYTES } else { self.used_bytes as f64 / history as f64 };
        let left = self.quota_bytes.unwrap_or(QUOTA).saturating_sub(self.used_bytes) as f64;
        // A thousand years are as good as never.
        Some(Duration::from_secs_f64((left / (each * beats_per_second).max(1e-9)).min(3e10)))
    }

    /// Whether it is compacted, by nodes or by its own setting.
    pub fn is_compacted(&self, beats_per_second: f64) -> bool {
        let history = (self.revision - self.oldest) as f64;
        let kept = beats_per_second * KEPT_FOR.as_secs_f64();
        match self.compaction {
            // Nodes compact far more often than etcd does by itself.
            Some(_) => history <= 20.0 * KEPT as f64,
            None => self.oldest > 1 && history <= kept.max(KEPT as f64),
        }
    }

    /// Advice for the operator, the most pressing first. Empty: all is well.
    pub fn advice(&self, beats_per_second: f64) -> Vec<String> {
        let mut told = Vec::new();
        if !self.alarms.is_empty() {
            told.push(format!(
                "etcd has an alarm ({}): with NOSPACE it takes no change, so no GET has a lease, and nothing is taken over. \
                 Compact it, defragment each member, then disarm the alarm (docs/CLUSTER.md has the commands)",
                self.alarms.join(", ")
            ));
        }
        let Some(full_in) = self.full_in(beats_per_second) else { return told };
        let days = full_in.as_secs_f64() / 86_400.0;
        told.push(match self.compaction {
            Some(Compaction { by: Some(node), .. }) => format!(
                "etcd keeps {} revisions, though node {node} is to compact it: see what that node logs, and whether a node has \
                 seen nothing of etcd for long",
                self.revision - self.oldest
            ),
            Some(Compaction { by: None, .. }) => {
                "etcd is not compacted yet: no node runs that could do it".to_owned()
            }
            None => format!(
                "nobody compacts this etcd, as far as it shows: beats alone reach its quota in {days:.1} days, and then it takes \
                 no change. Start each member with --auto-compaction-retention=1h; or, if it has nothing but this cluster, let \
                 nodes do it (`oneread cluster compact-etcd`)"
            ),
        });
        told
    }
}

impl EtcdStore {
    fn compaction_key(&self) -> String {
        format!("{}compaction", self.prefix())
    }

    /// Lets nodes of the cluster compact this etcd from now on, or stops that. They compact its *whole* key space,
    /// including keys of other programs.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn let_nodes_compact(&self, is_so: bool) -> Result<(), EtcdError> {
        let (_, read) = self.read_config().await?;
        let adoption = self.adopted(&read)?;
        let key = self.compaction_key();
        let (when, then) = match is_so {
            true => (
                vec![self.is_adopted(&adoption), Compare::mod_revision(key.clone(), CompareOp::Equal, 0)],
                TxnOp::put(key, json(&Compaction::default()), None),
            ),
            false => (vec![self.is_adopted(&adoption)], TxnOp::delete(key, None)),
        };
        // Refused: it is so already.
        self.transact(0, when, vec![then], &[EtcdKey::Config]).await.map(drop)
    }

    /// The compaction key. `None`: no node compacts it, or the keys are not valid for this etcd (CL17).
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn compaction(&self) -> Result<Option<CompactionKey>, EtcdError> {
        let txn = Txn::new().and_then(vec![
            TxnOp::get(self.compaction_key(), None),
            TxnOp::get(self.key(EtcdKey::Adoption), None),
        ]);
        let ask = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        };
        // The call changes nothing.
        let (_, answer) = self.members.ask(Again::Always, ask).await?;
        let (etcd, revision) = self.header(answer.header())?;
        let mut found = Vec::new();
        for answer in answer.op_responses() {
            let TxnOpResponse::Get(got) = answer else { continue };
            found.push(got.kvs().first().cloned());
        }
        let [Some(compaction), Some(adoption)] = &found[..] else { return Ok(None) };
        let (at, adoption) = (compaction.mod_revision(), self.value::<Adoption>(adoption)?);
        let compaction = self.value(compaction)?;
        Ok((adoption.etcd == etcd).then_some(CompactionKey { compaction, at, revision, adoption }))
    }

    /// Writes which node compacts, and how far it has come, unless another node was faster. Returns whether it was
    /// written.
    ///
    /// # Errors
    /// [`EtcdError`]: whether it was written is not known.
    pub async fn change_compaction(
        &self,
        read: &CompactionKey,
        compaction: Compaction,
    ) -> Result<bool, EtcdError> {
        let key = self.compaction_key();
        let when = vec![
            self.is_adopted(&read.adoption),
            Compare::mod_revision(key.clone(), CompareOp::Equal, read.at),
        ];
        let then = vec![TxnOp::put(key, json(&compaction), None)];
        Ok(self.transact(0, when, then, &[EtcdKey::Config]).await?.is_done)
    }

    /// Compacts etcd before a revision.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn compact(&self, revision: i64) -> Result<(), EtcdError> {
        let compact = |client: Client| async move {
            match client.kv_client().compact(revision, None).await {
                // It was done already.
                Err(error) if is_compacted(&error) => Ok(()),
                done => done.map(drop),
            }
        };
        // Repeating it does no harm.
        self.members.ask(Again::Always, compact).await.map(drop)
    }

    /// The beats of all nodes that may beat.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn beats(&self) -> Result<BTreeMap<NodeId, SeenBeat>, EtcdError> {
        let nodes = format!("{}nodes/", self.prefix());
        let answer = self.get(nodes, GetOptions::new().with_prefix()).await?;
        let mut beats = BTreeMap::new();
        for kv in answer.kvs() {
            // A value that is not a beat does not count.
            if let (Some(EtcdKey::Node(node)), Ok(Beat { alive: true, seen, .. })) =
                (self.parse(kv.key()), self.value(kv))
            {
                beats.insert(node, SeenBeat { at: kv.mod_revision(), seen });
            }
        }
        Ok(beats)
    }

    /// Asks etcd about its space.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn space(&self) -> Result<EtcdSpace, EtcdError> {
        let ask = |client: Client| async move { client.maintenance_client().status().await };
        let (_, status) = self.members.ask(Again::Always, ask).await?;
        let answer = self.get(self.compaction_key(), GetOptions::new()).await?;
        let (_, revision) = self.header(answer.header())?;
        let compaction = answer.kvs().first().map(|kv| self.value(kv)).transpose()?;
        let quota = match u64::try_from(status.db_size_quota()) {
            Ok(quota) if quota > 0 => Some(quota),
            _ => self.quota_of_metrics().await,
        };
        let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        Ok(EtcdSpace {
            revision,
            oldest: self.oldest(revision).await?,
            file_bytes: bytes(status.db_size()),
            used_bytes: bytes(status.raft_used_db_size()),
            quota_bytes: quota,
            alarms: status.errors().iter().filter(|error| error.contains("alarm")).cloned().collect(),
            compaction,
        })
    }

    /// The oldest revision that etcd has: it refuses to read older ones. It says so nowhere else.
    async fn oldest(&self, revision: i64) -> Result<i64, EtcdError> {
        let (mut forgotten, mut known) = (0, revision.max(1));
        while forgotten + 1 < known {
            let middle = forgotten + (known - forgotten) / 2;
            match self.knows(middle).await? {
                true => known = middle,
                false => forgotten = middle,
            }
        }
        Ok(known)
    }

    async fn knows(&self, revision: i64) -> Result<bool, EtcdError> {
        let key = self.key(EtcdKey::Config);
        let ask = |client: Client| {
            let (key, options) = (key.clone(), GetOptions::new().with_revision(revision).with_count_only());
            async move {
                match client.kv_client().get(key, Some(options)).await {
                    Err(error) if is_compacted(&error) => Ok(false),
                    got => got.map(|_| true),
                }
            }
        };
        Ok(self.members.ask(Again::Always, ask).await?.1)
    }

    /// Before etcd 3.6 only its metrics have the quota. Over TLS they are not asked for.
    async fn quota_of_metrics(&self) -> Option<u64> {
        let place = self.members.endpoint().strip_prefix("http://")?.trim_end_matches('/').to_owned();
        let place = if place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            place
        } else {
            format!("{place}:80")
        };
        let ask = async {
            let mut stream = TcpStream::connect(&place).await.ok()?;
            let request = format!("GET /metrics HTTP/1.0\r\nHost: {place}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut told = Vec::new();
            stream.take(METRICS_MAX).read_to_end(&mut told).await.ok()?;
            let told = String::from_utf8_lossy(&told).into_owned();
            let quota =
                told.lines().find_map(|line| line.strip_prefix("etcd_server_quota_backend_bytes "))?;
            // As in 2.147483648e+09.
            Some(quota.trim().parse::<f64>().ok()? as u64)
        };
        timeout(self.members.attempt(), ask).await.ok().flatten().filter(|quota| *quota > 0)
    }
}

fn is_compacted(error: &Error) -> bool {
    told(error).contains("has been compacted")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(revision: i64, oldest: i64, compaction: Option<Compaction>) -> EtcdSpace {
        let used_bytes = 100 * (revision - oldest) as u64;
        EtcdSpace {
            revision,
            oldest,
            file_bytes: used_bytes,
            used_bytes,
            quota_bytes: Some(1 << 30),
            alarms: Vec::new(),
            compaction,
        }
    }

    /// One that was never compacted, or not for long, will be full: in how much time is told, and which setting is missing.
    /// Of one that somebody compacts nothing is said.
    #[test]
    fn an_etcd_that_nobody_compacts_is_told_of() {
        let by_nodes = Some(Compaction { by: Some(NodeId(7)), to: 1 });
        let of = |revision, oldest, compaction| space(revision, oldest, compaction).advice(10.0);
        let never = space(1_000_000, 1, None);
        let left = (1u64 << 30) - never.used_bytes;
        let full_in = never.full_in(10.0).unwrap().as_secs_f64();
        assert!((full_in / (left as f64 / 1_000.0) - 1.0).abs() < 1e-3, "{full_in}");
        let told = never.advice(10.0);
        assert!(told.len() == 1 && told[0].contains("--auto-compaction-retention=1h"), "{told:?}");
        assert!(told[0].contains("in 11.3 days"), "{told:?}");
        assert_eq!(of(1_000_000, 990_000, None), Vec::<String>::new());
        assert_eq!(of(1_000_000, 990_000, by_nodes), Vec::<String>::new());
        // A day of beats is 864,000. More were not forgotten in time.
        assert_eq!(of(3_000_000, 2_200_000, None), Vec::<String>::new());
        assert_eq!(of(3_000_000, 2_000, None).len(), 1);
        let late = of(1_000_000, 500_000, by_nodes);
        assert!(late.len() == 1 && late[0].contains("0000000000000007"), "{late:?}");
        let alarmed = EtcdSpace { alarms: vec!["alarm:NOSPACE".into()], ..space(1_000_000, 990_000, None) };
        let told = alarmed.advice(10.0);
        assert!(told.len() == 1 && told[0].contains("disarm"), "{told:?}");
    }
}
