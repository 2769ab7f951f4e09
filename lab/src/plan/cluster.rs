//! A cluster of nodes over etcd (docs/CLUSTER.md): its memory, its load on etcd, its times.

use super::PlanError;
use oneread::{Config, TableSize};
use oneread_cluster::core::hash::ShardHash;
use oneread_cluster::core::placement::{Wishes, wanted};
use oneread_cluster::core::state::{ClusterConfig, NodeId, ShardIx, Timing};
use oneread_cluster::room::{CONNECTIONS_MAX, entry_bytes, table_room, with_lengths};
use oneread_kit::show;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// CPU of etcd's host for one message to one watcher, in seconds: 44 us were measured, for 2,000 puts of 160 bytes with 40
/// watchers and with none, etcd 3.4 on this project's machine.
const MESSAGE_CPU_S: f64 = 44e-6;
/// Messages that etcd is asked for at most, a second: four cores of its host.
const MESSAGES_PER_S_MAX: f64 = 4.0 / MESSAGE_CPU_S;
/// What a message has beside the key's name and value: the watch's answer, its header, frames.
const MESSAGE_HEAD_BYTES: f64 = 90.0;
/// READs that a client makes of a node's page in the time of a beat.
const PAGE_READS: f64 = 3.0;
/// Beyond the TTL, and two beats in which clients READ its page twice: a standby looks, and takes over by a transaction.
const TAKEOVER_S: f64 = 1.0;
/// Clusters that are drawn: as many sets of nodes' numbers, which are random. The worst of 20 is reckoned with.
const DRAWS: u64 = 20;
/// A node with so many times as many copies as the mean is called out.
const UNEVEN: f64 = 1.5;
/// The longest value that `oneread cluster init` allows for, unless it is told otherwise.
const VALUE_MAX: u32 = 1 << 20;
/// Bytes of the largest table that is tried.
const TABLE_MAX: u64 = 1 << 50;

/// What is asked of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterWorkload {
    /// Entries, each counted once.
    pub entries: u64,
    /// Length of a key.
    pub key_bytes: u64,
    /// Length of a value.
    pub value_bytes: u64,
    /// Nodes.
    pub nodes: u32,
    /// Copies of a shard, the primary's among them.
    pub copies: u8,
    /// Shards.
    pub shards: ShardIx,
    /// Clients: processes, each of which watches etcd once.
    pub clients: u32,
    /// How long a node may be silent until others take over.
    pub ttl_s: f64,
    /// Bytes a second at which a shard is copied, if that is known.
    pub copy_bytes_per_s: Option<u64>,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterPlan {
    /// Of a shard.
    pub entries_per_shard: f64,
    /// What a node sets aside for an entry.
    pub entry_bytes: u64,
    /// Copies at a node, as a mean.
    pub node_copies_mean: f64,
    /// At the fullest one.
    pub node_copies_max: u32,
    /// At the fullest one after another is lost. As before, if there is no other.
    pub node_copies_max_one_lost: u32,
    /// Memory that the fullest node's table needs.
    pub node_bytes: u64,
    /// After another node is lost: what each node is to have.
    pub node_bytes_one_lost: u64,
    /// Beats that etcd writes.
    pub etcd_writes_per_s: f64,
    /// Messages that etcd sends to those who watch.
    pub etcd_messages_per_s: f64,
    /// The length of one.
    pub etcd_message_bytes: f64,
    /// Bytes of all.
    pub etcd_bytes_per_s: f64,
    /// Cores of etcd's host that are busy with that.
    pub etcd_cores: f64,
    /// Whether that is more than an etcd should be asked for.
    pub etcd_is_overloaded: bool,
    /// A TTL with which it would not be, if there is one.
    pub ttl_s_needed: Option<f64>,
    /// Clients with which it would not be.
    pub clients_max: u32,
    /// Connections of a client: to each node's table and for requests, and to etcd. Over verbs and TCP each of its threads
    /// has one more to each table.
    pub client_connections: u64,
    /// Connections of a node: of clients, to and from other nodes, and to etcd.
    pub node_connections: u64,
    /// READs of a node's page by clients, for their leases.
    pub page_reads_per_s: f64,
    /// From a primary's death until a standby serves.
    pub failover_s_max: f64,
    /// Bytes of a shard's entries, as they are sent.
    pub shard_bytes: f64,
    /// For a copy of a shard.
    pub shard_copy_s: Option<f64>,
    /// For all copies of a node that comes with nothing.
    pub node_copy_s: Option<f64>,
    /// What is too much, and what mends it.
    pub advice: Vec<String>,
}

fn refused(what: &'static str, why: impl ToString) -> PlanError {
    PlanError::Cluster { what, why: why.to_string() }
}

/// Numbers of nodes. As good as random: the ranking hashes them.
fn drawn(draw: u64, nodes: u32) -> Vec<NodeId> {
    (1..=u64::from(nodes))
        .map(|node| NodeId((draw << 32 | node).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect()
}

/// The most copies at a node: with all nodes, and with any one lost.
fn fullest(shards: ShardIx, copies: u8, nodes: u32) -> (u32, u32) {
    let wishes = Wishes::default();
    let (mut most, mut most_then) = (0, 0);
    for draw in 0..DRAWS {
        let ids = drawn(draw, nodes);
        let places: FxHashMap<NodeId, usize> = ids.iter().copied().zip(0..).collect();
        let all = ids.len();
        let mut has = vec![0u32; all];
        // By the node that is lost, and the one that then has a copy more.
        let mut more = vec![0u32; all * all];
        for shard in 0..shards {
            let ranked = wanted(shard, copies + 1, ids.iter().copied(), &wishes);
            let ranked: Vec<usize> = ranked.iter().map(|id| places[id]).collect();
            let next = ranked.get(usize::from(copies));
            for &place in ranked.iter().take(copies.into()) {
                has[place] += 1;
                if let Some(next) = next {
                    more[place * all + next] += 1;
                }
            }
        }
        let then = (0..all * all).filter(|at| at / all != at % all).map(|at| has[at % all] + more[at]);
        let now = has.iter().copied().max().unwrap_or(0);
        most = most.max(now);
        most_then = most_then.max(then.max().unwrap_or(now));
    }
    (most, most_then)
}

impl ClusterWorkload {
    fn config(&self) -> Result<ClusterConfig, PlanError> {
        let config = ClusterConfig {
            shards: self.shards,
            replicas: self.copies,
            hash: ShardHash::new(0),
            key_max: 255,
            value_max: VALUE_MAX.max(u32::try_from(self.value_bytes).unwrap_or(u32::MAX)),
            timing: Timing::of((self.ttl_s * 1e6) as u64),
        };
        config.check().map_err(|error| refused("the cluster", error))?;
        let numbers = [
            ("keys", self.entries, 1, 1 << 44),
            ("bytes of a key", self.key_bytes, 1, 255),
            ("nodes", self.nodes.into(), 1, 1_000),
            ("clients", self.clients.into(), 0, 10_000_000),
        ];
        for (what, given, least, most) in numbers {
            if !(least..=most).contains(&given) {
                return Err(refused(what, format_args!("{given} is not within {least} to {most}")));
            }
        }
        Ok(config)
    }

    /// The least table that has room for so many entries, and what one takes in it.
    fn table(&self, cluster: &ClusterConfig, entries: u64) -> Result<(u64, u64), PlanError> {
        let key = vec![b'k'; self.key_bytes as usize];
        let look = |bytes: u64| {
            let geometry =
                with_lengths(Config::new().size(TableSize::up_to(bytes)), cluster).geometry().ok()?;
            Some((entry_bytes(&geometry, &key, self.value_bytes as usize), table_room(&geometry, cluster)))
        };
        // A shard has an eighth more set aside than it needs (CL12).
        let wanted = entries.saturating_add(entries / 8);
        let fits = |bytes| look(bytes).is_some_and(|(cost, room)| cost.saturating_mul(wanted) <= room);
        let mut enough = 1 << 20;
        while !fits(enough) {
            enough *= 2;
            if enough > TABLE_MAX {
                let why = "no table is so large: have more nodes, or fewer or smaller entries";
                return Err(refused("memory of a node", why));
            }
        }
        let mut too_small = enough / 2;
        // To one part in 1,000.
        while enough - too_small > enough / 1_024 {
            let middle = too_small + (enough - too_small) / 2;
            if fits(middle) { enough = middle } else { too_small = middle }
        }
        let (cost, _) = look(enough).ok_or_else(|| refused("memory of a node", "there is no such table"))?;
        Ok((enough, cost))
    }

    /// Does the arithmetic.
    ///
    /// # Errors
    /// [`PlanError::Cluster`]: there can be no such cluster, or no table that is so large.
    pub fn plan(&self) -> Result<ClusterPlan, PlanError> {
        let config = self.config()?;
        let (nodes, clients, shards) =
            (f64::from(self.nodes), f64::from(self.clients), f64::from(self.shards));
        let copies = f64::from(self.copies).min(nodes);
        let entries_per_shard = self.entries as f64 / shards;
        let (most, most_then) = fullest(self.shards, self.copies, self.nodes);
        let entries_of = |copies: u32| (entries_per_shard * f64::from(copies)).ceil() as u64;
        let (node_bytes, _) = self.table(&config, entries_of(most))?;
        let (node_bytes_one_lost, entry_bytes) = self.table(&config, entries_of(most_then))?;

        let beat_s = config.timing.beat as f64 / 1e6;
        let etcd_writes_per_s = nodes / beat_s;
        let etcd_messages_per_s = etcd_writes_per_s * (nodes + clients);
        let etcd_message_bytes = message_bytes();
        let etcd_is_overloaded = etcd_messages_per_s > MESSAGES_PER_S_MAX;
        let ttl_s_needed = (self.ttl_s * etcd_messages_per_s / MESSAGES_PER_S_MAX).ceil();
        let ttl_s_needed = Some(ttl_s_needed).filter(|ttl| etcd_is_overloaded && *ttl <= 600.0);
        let clients_max = (MESSAGES_PER_S_MAX / etcd_writes_per_s - nodes).max(0.0) as u32;

        let shard_bytes = entries_per_shard * (self.key_bytes + self.value_bytes) as f64;
        let at_rate = |bytes: f64| self.copy_bytes_per_s.map(|rate| bytes / rate as f64);
        let mut plan = ClusterPlan {
            entries_per_shard,
            entry_bytes,
            node_copies_mean: shards * copies / nodes,
            node_copies_max: most,
            node_copies_max_one_lost: most_then,
            node_bytes,
            node_bytes_one_lost,
            etcd_writes_per_s,
            etcd_messages_per_s,
            etcd_message_bytes,
            etcd_bytes_per_s: etcd_messages_per_s * etcd_message_bytes,
            etcd_cores: etcd_messages_per_s * MESSAGE_CPU_S,
            etcd_is_overloaded,
            ttl_s_needed,
            clients_max,
            client_connections: 2 * u64::from(self.nodes) + 1,
            node_connections: 2 * u64::from(self.clients) + 2 * u64::from(self.nodes - 1) + 1,
            page_reads_per_s: clients * PAGE_READS / beat_s,
            failover_s_max: self.ttl_s + TAKEOVER_S + 2.0 * beat_s,
            shard_bytes,
            shard_copy_s: at_rate(shard_bytes),
            node_copy_s: at_rate(shard_bytes * f64::from(most)),
            advice: Vec::new(),
        };
        plan.advice = self.advice(&plan);
        Ok(plan)
    }

    fn advice(&self, plan: &ClusterPlan) -> Vec<String> {
        let mut advice = Vec::new();
        let round = |n: f64| show::count(n.round() as u64);
        if plan.etcd_is_overloaded {
            let ttl = match plan.ttl_s_needed {
                Some(ttl) => format!("Have a TTL of {ttl} s (a failover takes as long), or"),
                None => "No TTL is long enough. Have".into(),
            };
            let fewer = match plan.clients_max {
                0 => "fewer nodes".into(),
                most => format!(
                    "at most {} that watch, as proxies that share one",
                    show::counted(most.into(), "client")
                ),
            };
            advice.push(format!(
                "etcd is asked for too much: {} messages a second keep {} cores of its host busy, and four are reckoned \
                 with ({} messages). {ttl} {fewer}.",
                round(plan.etcd_messages_per_s),
                round(plan.etcd_cores),
                round(MESSAGES_PER_S_MAX),
            ));
        }
        let requests = u64::from(self.clients) + u64::from(self.nodes - 1);
        if requests > CONNECTIONS_MAX as u64 {
            advice.push(format!(
                "A node takes {} connections for requests, and is asked for {}: have fewer clients, as proxies that share \
                 one.",
                show::count(CONNECTIONS_MAX as u64),
                show::count(requests)
            ));
        }
        // The mean with one node lost: the others share its copies.
        let unevenness = |most: u32, shards: ShardIx| {
            let left = (self.nodes - 1).max(1);
            let mean = f64::from(shards) * f64::from(u32::from(self.copies).min(left)) / f64::from(left);
            f64::from(most) / mean
        };
        let here = unevenness(plan.node_copies_max_one_lost, self.shards);
        if here > UNEVEN {
            let doubled = std::iter::successors(Some(self.shards), |shards| shards.checked_mul(2));
            let better = doubled.skip(1).take_while(|shards| *shards <= 1_024).map(|shards| {
                let (_, most) = fullest(shards, self.copies, self.nodes);
                (shards, unevenness(most, shards))
            });
            let mut better: Vec<(ShardIx, f64)> = better.collect();
            if let Some(enough) = better.iter().position(|(_, uneven)| *uneven <= UNEVEN) {
                better.truncate(enough + 1);
            }
            let mend = match better.last() {
                Some((shards, uneven)) if *uneven < here => {
                    format!("; with {} {uneven:.1} times", show::counted((*shards).into(), "shard"))
                }
                _ => String::new(),
            };
            advice.push(format!(
                "{} are few for {}: the fullest may have {here:.1} times the mean's copies{mend}. Their number never changes.",
                show::counted(self.shards.into(), "shard"),
                show::counted(self.nodes.into(), "node"),
            ));
        }
        if self.nodes < u32::from(self.copies) {
            advice.push(format!("{} copies need as many nodes: each shard has {}.", self.copies, self.nodes));
        }
        if self.copies == 1 || self.nodes == 1 {
            advice.push("With one copy, what a node has is lost with its memory.".into());
        }
        advice
    }
}

/// The length of a message that tells a watcher of a beat, as etcd has it.
fn message_bytes() -> f64 {
    let key = "/oneread/production/nodes/0123456789abcdef";
    let beat = r#"{"life":1000000,"number":1000000,"alive":true,"seen":10000000}"#;
    (key.len() + beat.len()) as f64 + MESSAGE_HEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: u32, clients: u32) -> ClusterWorkload {
        ClusterWorkload {
            entries: 100_000_000,
            key_bytes: 16,
            value_bytes: 100,
            nodes,
            copies: 2,
            shards: 64,
            clients,
            ttl_s: 2.0,
            copy_bytes_per_s: None,
        }
    }

    /// 4 n (n + c) messages a second with the default TTL, half of that with twice as long a one.
    #[test]
    fn etcds_load_is_as_the_docs_say() {
        let ten = cluster(10, 100).plan().unwrap();
        assert_eq!((ten.etcd_writes_per_s, ten.etcd_messages_per_s), (40.0, 4_400.0));
        assert!(!ten.etcd_is_overloaded && ten.ttl_s_needed.is_none(), "{ten:?}");
        assert!((150.0..400.0).contains(&ten.etcd_message_bytes), "{ten:?}");
        let twice = ClusterWorkload { ttl_s: 4.0, ..cluster(10, 100) }.plan().unwrap();
        assert_eq!((twice.etcd_messages_per_s, twice.failover_s_max), (2_200.0, 6.0));
        let many = cluster(100, 10_000);
        let told = many.plan().unwrap();
        assert_eq!(told.etcd_messages_per_s, 4_040_000.0);
        assert!(told.etcd_is_overloaded && told.advice[0].contains("etcd is asked for too much"), "{told:?}");
        // Each of the mends that it names is one, and hardly more than that.
        let ttl_s = told.ttl_s_needed.unwrap();
        let is_overloaded = |it: ClusterWorkload| it.plan().unwrap().etcd_is_overloaded;
        assert!(!is_overloaded(ClusterWorkload { ttl_s, ..many.clone() }));
        assert!(is_overloaded(ClusterWorkload { ttl_s: ttl_s - 2.0, ..many.clone() }));
        assert!(!is_overloaded(cluster(100, told.clients_max)));
        assert!(is_overloaded(cluster(100, told.clients_max + 2)));
        // Ports have a limit of their own.
        assert!(told.advice.iter().any(|advice| advice.contains("4,096 connections")), "{told:?}");
        let endless = cluster(200, 1_000_000).plan().unwrap();
        assert!(endless.ttl_s_needed.is_none() && endless.advice[0].contains("No TTL is long enough"));
    }

    /// The rule of `fullest` is that of nodes: one lost means what the ranking says without it.
    #[test]
    fn a_lost_nodes_shards_go_where_the_ranking_puts_them() {
        let (shards, copies, nodes) = (64, 2, 5u32);
        let wishes = Wishes::default();
        let (mut most, mut most_then) = (0, 0);
        for draw in 0..DRAWS {
            let ids = drawn(draw, nodes);
            let fullest_of = |lost: Option<NodeId>| {
                let left = || ids.iter().copied().filter(|id| Some(*id) != lost);
                let mut has: FxHashMap<NodeId, u32> = left().map(|id| (id, 0)).collect();
                for shard in 0..shards {
                    for id in wanted(shard, copies, left(), &wishes) {
                        *has.get_mut(&id).unwrap() += 1;
                    }
                }
                has.into_values().max().unwrap()
            };
            most = most.max(fullest_of(None));
            most_then = ids.iter().map(|id| fullest_of(Some(*id))).max().unwrap().max(most_then);
        }
        assert_eq!(fullest(shards, copies, nodes), (most, most_then));
        assert_eq!(fullest(64, 2, 2), (64, 64));
        assert_eq!(fullest(64, 1, 1), (64, 64));
    }

    /// The table that is told has room for what it is to hold, and a smaller one has not.
    #[test]
    fn memory_is_what_a_node_reckons_with() {
        let asked = cluster(3, 10);
        let plan = asked.plan().unwrap();
        let config = asked.config().unwrap();
        let room = |bytes| {
            let geometry =
                with_lengths(Config::new().size(TableSize::up_to(bytes)), &config).geometry().unwrap();
            table_room(&geometry, &config)
        };
        let needed = |copies: u32| {
            let entries = (plan.entries_per_shard * f64::from(copies)) as u64;
            plan.entry_bytes * (entries + entries / 8)
        };
        assert!(room(plan.node_bytes) >= needed(plan.node_copies_max));
        assert!(room(plan.node_bytes / 100 * 99) < needed(plan.node_copies_max));
        assert!(room(plan.node_bytes_one_lost) >= needed(64), "two nodes are left, with all shards each");
        assert_eq!(plan.node_copies_max_one_lost, 64);
        assert!(plan.node_bytes < plan.node_bytes_one_lost);
        // What is set aside is more than what there is, and less than five times that.
        assert!((116..580).contains(&plan.entry_bytes), "{plan:?}");
        assert!(ClusterWorkload { entries: 1 << 44, ..cluster(1, 1) }.plan().is_err());
    }

    #[test]
    fn advice_is_given_where_it_is_due() {
        let has = |asked: &ClusterWorkload, text: &str| {
            asked.plan().unwrap().advice.iter().any(|advice| advice.contains(text))
        };
        let few = "64 shards are few for 100 nodes";
        assert!(has(&cluster(100, 10), few) && !has(&cluster(3, 10), "are few for"));
        let alone = ClusterWorkload { copies: 1, ..cluster(3, 10) };
        assert!(has(&alone, "With one copy") && !has(&cluster(3, 10), "With one copy"));
        assert!(has(&cluster(1, 10), "2 copies need as many nodes"));
        assert_eq!(cluster(3, 10).plan().unwrap().advice, Vec::<String>::new());
    }

    #[test]
    fn copies_take_their_time() {
        let asked = ClusterWorkload { copy_bytes_per_s: Some(100_000_000), ..cluster(3, 10) };
        let plan = asked.plan().unwrap();
        assert!((plan.shard_copy_s.unwrap() - 100e6 * 116.0 / 64.0 / 100e6).abs() < 1e-6, "{plan:?}");
        assert!(plan.node_copy_s > plan.shard_copy_s);
        assert_eq!(cluster(3, 10).plan().unwrap().shard_copy_s, None);
    }

    #[test]
    fn there_can_be_no_such_cluster() {
        let refused = |asked: ClusterWorkload| asked.plan().unwrap_err().to_string();
        assert!(refused(ClusterWorkload { shards: 2_000, ..cluster(3, 1) }).contains("1 to 1,024"));
        assert!(refused(ClusterWorkload { copies: 0, ..cluster(3, 1) }).contains("1 to 8"));
        assert!(refused(ClusterWorkload { key_bytes: 256, ..cluster(3, 1) }).contains("1 to 255"));
        assert!(refused(cluster(0, 1)).contains("1 to 1000"));
        assert!(refused(ClusterWorkload { ttl_s: 0.01, ..cluster(3, 1) }).contains("0.1 s to 600 s"));
    }
}
