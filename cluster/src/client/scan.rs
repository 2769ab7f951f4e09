//! Scans over all shards. They go through the nodes' tables, one after the other. At each node they show only keys of
//! shards of which the node is primary.

use super::routes::Route;
use super::{ClusterClient, ClusterError};
use crate::core::state::{ClusterConfig, NodeId, ShardIx};
use oneread::{ScanCursor, ScannedKey};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A scan of all keys of a cluster, in no order. [`ClusterClient::scan`] begins it.
#[derive(Debug)]
pub struct ClusterScan<'c> {
    client: &'c mut ClusterClient,
    state: ScanState,
    /// Keys of the last reply that were not shown yet.
    ready: VecDeque<ScannedKey>,
}

/// The state of a scan, for a program that has the client only for one batch at a time, as threads do that share
/// handles. The guarantees are those of [`ClusterClient::scan`]. `Send` and `Sync`.
#[derive(Debug)]
pub struct ScanState {
    prefix: Vec<u8>,
    values: bool,
    /// Shards that were not shown to their end.
    left: Vec<ShardIx>,
    pass: Option<Pass>,
}

/// A pass over one node's table.
#[derive(Debug)]
struct Pass {
    node: NodeId,
    /// `None`: it is at its beginning.
    cursor: Option<ScanCursor>,
    /// Shards that the pass has shown from its beginning, with their epochs.
    shards: FxHashMap<ShardIx, u64>,
}

impl ClusterClient {
    /// Begins a scan of all keys.
    ///
    /// A key that is there throughout is shown, with a value that it has at an instant of the scan: once, and perhaps
    /// again each time that its shard is moved or its primary fails meanwhile. A key that comes or goes meanwhile may
    /// be shown.
    ///
    /// The nodes' tables are scanned one after the other, as [`Client::scan`](oneread::Client::scan) does, by requests.
    /// A table has copies of other nodes' shards, too: they are sent, and are not shown. So with two copies of each
    /// shard, twice the bytes come.
    pub fn scan(&mut self) -> ClusterScan<'_> {
        let state = ScanState::new(self.config(), &[], false);
        ClusterScan { client: self, state, ready: VecDeque::new() }
    }
}

impl ClusterScan<'_> {
    /// Shows only keys that begin with this.
    #[must_use]
    pub fn prefix(mut self, prefix: &[u8]) -> Self {
        self.state.set_prefix(self.client.config(), prefix);
        self
    }

    /// Brings values, too.
    #[must_use]
    pub fn values(mut self, values: bool) -> Self {
        self.state.values = values;
        self
    }
}

impl ScanState {
    /// A scan of the keys of a cluster that begin with this, with their values or without.
    pub fn new(config: &ClusterConfig, prefix: &[u8], values: bool) -> ScanState {
        let left = (0..config.shards).rev().collect();
        let mut state = ScanState { prefix: Vec::new(), values, left, pass: None };
        state.set_prefix(config, prefix);
        state
    }

    /// Shows only keys of this shard.
    #[must_use]
    pub fn shard(mut self, shard: ShardIx) -> ScanState {
        self.left.retain(|other| *other == shard);
        self
    }

    fn set_prefix(&mut self, config: &ClusterConfig, prefix: &[u8]) {
        // No key begins with a prefix that is longer than any key.
        if prefix.len() > config.key_max.into() {
            self.left.clear();
        }
        self.prefix = prefix.to_vec();
    }

    /// The keys of the next reply, which may be none: one request to one node. `None` when no key is left. `client` may
    /// be any handle of a client of the cluster, and another one each time.
    ///
    /// # Errors
    /// [`ClusterError::Unavailable`] after [`ClusterOptions::deadline`](super::ClusterOptions::deadline). The scan can
    /// continue.
    pub fn next_batch(
        &mut self,
        client: &mut ClusterClient,
    ) -> Result<Option<VecDeque<ScannedKey>>, ClusterError> {
        let ScanState { prefix, values, left, pass } = self;
        let Some(&first) = left.last() else { return Ok(None) };
        let config = client.shared.config.clone();
        // A node that is not primary any more, or has another epoch, has shown its shards, and that does not count.
        let routes = client.routes.load();
        if let Some(Pass { node, shards, .. }) = pass {
            shards.retain(|shard, epoch| {
                routes.of(*shard).is_some_and(|route| route.node == *node && route.epoch == *epoch)
            });
        }
        let is_leased = |shard: &&ShardIx| routes.of(**shard).is_some_and(|route| route.lease.is_some());
        let going_on = pass.as_ref().and_then(|pass| {
            let leased = pass.shards.keys().find(is_leased);
            leased.or_else(|| pass.shards.keys().next()).copied()
        });
        let mut shown = VecDeque::new();
        let mut tries = client.tries();
        client.until_found(going_on.unwrap_or(first), &mut tries, |tables, routes, route| {
            // A shard that has moved, or is closed, does not hold up the others of its pass.
            if let (Some(Pass { node, shards, .. }), Some(shard)) = (&*pass, going_on) {
                let is_moved = route.node != *node || shards.get(&shard) != Some(&route.epoch);
                let is_leased = |other: &Route| other.node == *node && other.lease.is_some();
                let mut others = shards.keys().filter(|other| **other != shard);
                let goes_on = match is_moved {
                    true => others.next().is_some(),
                    false => {
                        route.lease.is_none() && others.any(|other| routes.of(*other).is_some_and(is_leased))
                    }
                };
                if goes_on {
                    return Ok(());
                }
            }
            if pass.as_ref().is_none_or(|pass| pass.node != route.node || pass.shards.is_empty()) {
                let here = left.iter().filter_map(|shard| Some((*shard, routes.of(*shard)?)));
                let here = here
                    .filter(|(_, other)| other.site == route.site)
                    .map(|(shard, other)| (shard, other.epoch));
                *pass = Some(Pass { node: route.node, cursor: None, shards: here.collect() });
            }
            let Some(Pass { cursor, shards, .. }) = pass else { return Ok(()) };
            let mut came = None;
            tables.read(route, |client| {
                let scan = client.scan().prefix(prefix).values(*values);
                let mut scan = match cursor.clone() {
                    Some(cursor) => scan.from(cursor),
                    None => scan,
                };
                let keys = scan.next_batch().map_err(|error| error.to_string())?;
                came = keys.map(|keys| (keys, scan.cursor()));
                Ok::<_, String>(())
            })?;
            // The lease also covers those other shards of the pass that it names.
            shards.retain(|shard, epoch| {
                routes.of(*shard).is_some_and(|other| other.site == route.site && other.epoch == *epoch)
            });
            let Some((keys, next)) = came else {
                left.retain(|shard| !shards.contains_key(shard));
                *pass = None;
                return Ok(());
            };
            *cursor = Some(next);
            shown.extend(keys.into_iter().filter(|found| {
                config.may_hold(&found.key, 0) && shards.contains_key(&config.shard_of(&found.key))
            }));
            Ok(())
        })?;
        Ok(Some(shown))
    }
}

impl Iterator for ClusterScan<'_> {
    type Item = Result<ScannedKey, ClusterError>;

    fn next(&mut self) -> Option<Result<ScannedKey, ClusterError>> {
        while self.ready.is_empty() {
            match self.state.next_batch(self.client) {
                Ok(Some(keys)) => self.ready = keys,
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        self.ready.pop_front().map(Ok)
    }
}
