//! One node of a cluster compacts etcd, if an operator lets nodes do that ([`EtcdStore::let_nodes_compact`]). Each node
//! logs what in etcd's space needs an operator.
//!
//! A transaction decides which node does it. It compacts only up to what each beating node says it has read: otherwise
//! a watch that is behind would have to read everything again. It never disarms an alarm: an operator has to find its
//! cause first.

use crate::core::state::NodeId;
use crate::etcd::{Compaction, CompactionKey, EtcdError, EtcdStore, KEPT};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Time between two checks of the compaction, and between two checks of etcd's space.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_AT_SPACE: Duration = Duration::from_secs(600);

/// Compacts etcd while that is this node's job, for as long as this is polled.
pub async fn run(store: EtcdStore, me: NodeId, ttl: Duration, beat: Duration) {
    let (mut looked, mut told) = (None::<Instant>, Vec::new());
    loop {
        let pause = match turn(&store, me, ttl).await {
            Ok(true) => LOOK.max(ttl / 2),
            // Nodes do not compact it.
            Ok(false) => 10 * LOOK,
            Err(error) => {
                tracing::debug!(%error, "etcd could not be compacted");
                10 * LOOK
            }
        };
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK_AT_SPACE) {
            looked = Some(Instant::now());
            match advice(&store, beat).await {
                Ok(advice) => {
                    for advice in advice.iter().filter(|advice| !told.contains(*advice)) {
                        tracing::warn!("{advice}");
                    }
                    told = advice;
                }
                Err(error) => tracing::debug!(%error, "etcd does not say how much space it has"),
            }
        }
        sleep(pause).await;
    }
}

/// Advice for the operator about etcd's space.
async fn advice(store: &EtcdStore, beat: Duration) -> Result<Vec<String>, EtcdError> {
    let nodes = store.beats().await?.len().max(1);
    Ok(store.space().await?.advice(nodes as f64 / beat.as_secs_f64()))
}

/// Does what is due. Returns whether nodes compact this etcd.
async fn turn(store: &EtcdStore, me: NodeId, ttl: Duration) -> Result<bool, EtcdError> {
    let Some(read) = store.compaction().await? else { return Ok(false) };
    let CompactionKey { compaction: Compaction { by, to }, revision, .. } = read;
    let (kept, is_mine) = (revision - to, by == Some(me));
    // Other nodes get time to do it.
    if kept < KEPT || !is_mine && by.is_some() && kept < 2 * KEPT {
        return Ok(true);
    }
    // Two readings, a TTL apart, show which nodes beat.
    let before = store.beats().await?;
    sleep(ttl).await;
    let mut beats = store.beats().await?;
    beats.retain(|node, beat| before.get(node).is_none_or(|before| before.at != beat.at));
    if !is_mine {
        if by.is_none_or(|by| !beats.contains_key(&by)) && beats.contains_key(&me) {
            store.change_compaction(&read, Compaction { by: Some(me), to }).await?;
        }
        return Ok(true);
    }
    let seen = beats.values().map(|beat| beat.seen).min().unwrap_or(0);
    // It is still this node's job: that is written first.
    if seen > to && store.change_compaction(&read, Compaction { by, to: seen }).await? {
        store.compact(seen).await?;
        tracing::debug!(revision = seen, "etcd was compacted");
    }
    Ok(true)
}
