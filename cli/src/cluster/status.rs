//! What etcd and the nodes say of a cluster, in columns.

use super::{ClusterArgs, ask, store};
use crate::columns::{Column, Columns, shortened, width};
use crate::screen::Screen;
use anyhow::{Result, bail};
use clap::Args;
use futures_util::future::join_all;
use oneread_cluster::core::placement::{Wishes, wanted};
use oneread_cluster::core::shard::Role;
use oneread_cluster::core::state::{ClusterConfig, NodeId, NodeKey, ShardIx, ShardState};
use oneread_cluster::etcd::{ClusterName, EtcdError, EtcdSpace, EtcdStore};
use oneread_cluster::wire::{NodeStatus, Question, Said, WireError};
use oneread_kit::{advice, show};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks of `--watch`.
const LOOK: Duration = Duration::from_secs(1);

/// What is looked at, and how it is told.
#[derive(Debug, Args)]
struct Looked {
    /// The cluster
    name: ClusterName,
    /// Print JSON: one object, or one for each
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    at: Looked,
    /// Look again each second, until q or Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

#[derive(Debug, Args)]
pub struct Nodes {
    #[command(flatten)]
    at: Looked,
}

#[derive(Debug, Args)]
pub struct Shards {
    #[command(flatten)]
    at: Looked,
}

/// Each node, and its key in etcd.
pub async fn nodes(store: &EtcdStore) -> Result<Vec<(NodeId, NodeKey)>> {
    let (_, read) = store.read_config().await?;
    Ok(read.nodes().map(|(id, key)| (id, key.clone())).collect())
}

/// The node that people call so, by its number, the beginning of that, or its name: one that lives, if there is one.
pub async fn node_called(store: &EtcdStore, called: &str) -> Result<NodeId> {
    let nodes = nodes(store).await?;
    called_so(nodes.iter().map(|(id, key)| (*id, key)), called, true, ("node", store.name()))
}

/// The node of this name that is to be forgotten: a dead one, if there is one. A node whose memory was lost comes back
/// under the
/// same name, with another number.
pub async fn gone_node_called(store: &EtcdStore, called: &str) -> Result<NodeId> {
    let nodes = nodes(store).await?;
    called_so(nodes.iter().map(|(id, key)| (*id, key)), called, false, ("node", store.name()))
}

/// The node among these that people call so. Of several of one name, those that live, or those that do not, come first.
/// `kind` is what the nodes are.
pub fn called_so<'k>(
    nodes: impl Iterator<Item = (NodeId, &'k NodeKey)> + Clone,
    called: &str,
    lives: bool,
    (kind, cluster): (&str, &ClusterName),
) -> Result<NodeId> {
    let named = |lives: bool| {
        let is_it = move |key: &NodeKey| key.about.name == called && key.alive == lives;
        nodes.clone().filter(move |(_, key)| is_it(key)).map(|(id, _)| id).collect::<Vec<NodeId>>()
    };
    let by_name = Some(named(lives)).filter(|nodes| !nodes.is_empty()).unwrap_or_else(|| named(!lives));
    let numbered = nodes.clone().filter(|(id, _)| id.to_string().starts_with(&called.to_lowercase()));
    let by_number: Vec<NodeId> = numbered.map(|(id, _)| id).collect();
    match (&by_name[..], &by_number[..]) {
        ([node], _) | ([], [node]) => Ok(*node),
        ([], []) => {
            bail!("the cluster has no {kind} {called:?}: `oneread cluster nodes {cluster}` lists them")
        }
        _ => bail!(
            "several nodes are called {called:?}: name one by its number (oneread cluster nodes {cluster})"
        ),
    }
}

/// What is known of a cluster.
pub struct Seen {
    config: ClusterConfig,
    is_adopted: bool,
    /// What etcd says of its space, or why it says nothing. `None`: it was not asked.
    space: Option<Result<EtcdSpace, EtcdError>>,
    nodes: Vec<(NodeId, NodeKey, Result<NodeStatus>)>,
    shards: BTreeMap<ShardIx, ShardState>,
    wishes: Wishes,
}

/// Asks etcd and all nodes.
pub async fn look(reach: &ClusterArgs, name: &ClusterName) -> Result<Seen> {
    look_by(&store(reach, name).await?, reach, name).await
}

/// Like `look`, and asks etcd for its space, which takes some dozens of calls.
pub async fn look_with_space(reach: &ClusterArgs, name: &ClusterName) -> Result<Seen> {
    let store = store(reach, name).await?;
    let seen = look_by(&store, reach, name).await?;
    Ok(Seen { space: Some(store.space().await), ..seen })
}

async fn look_by(store: &EtcdStore, reach: &ClusterArgs, name: &ClusterName) -> Result<Seen> {
    let (config, read) = store.read_config().await?;
    let is_adopted = read.adoption().is_some_and(|adoption| adoption.etcd == read.etcd);
    let nodes: Vec<(NodeId, NodeKey)> = read.nodes().map(|(id, key)| (id, key.clone())).collect();
    let shards = read.shards().map(|(shard, state)| (shard, state.clone())).collect();
    let wishes = read.wishes().cloned().unwrap_or_default();
    let config_here = &config;
    let asks = nodes.into_iter().map(|(id, key)| async move {
        let status = match ask(reach, name, config_here, id, &key.about.requests, Question::Status).await {
            Ok(Said::Status(status)) => Ok(status),
            Ok(_) => Err(anyhow::anyhow!("it gave another answer")),
            Err(error) => Err(error),
        };
        (id, key, status)
    });
    let nodes = join_all(asks).await;
    Ok(Seen { config, is_adopted, space: None, nodes, shards, wishes })
}

impl Seen {
    /// A node's name, if it is the only one that has it, else the beginning of its number.
    pub fn called(&self, id: NodeId) -> String {
        let number = || id.to_string()[..8].to_owned();
        let Some((_, key, _)) = self.nodes.iter().find(|(other, ..)| *other == id) else { return number() };
        let same = self.nodes.iter().filter(|(_, other, _)| other.about.name == key.about.name).count();
        if same == 1 && !key.about.name.is_empty() { key.about.name.clone() } else { number() }
    }

    /// Nodes that may beat.
    pub fn living(&self) -> impl Iterator<Item = (NodeId, &NodeKey)> + Clone {
        self.nodes.iter().filter(|(_, key, _)| key.alive).map(|(id, key, _)| (*id, key))
    }

    /// What keeps all from being well: each node that may beat is good, and each shard has its copies, as etcd and its
    /// primary say. `None`: nothing.
    pub fn lacks(&self) -> Option<String> {
        if !self.is_adopted {
            return Some("this etcd is not adopted".into());
        }
        let silent = self.nodes.iter().find(|(id, key, _)| key.alive && !self.is_good(*id));
        if let Some((id, key, status)) = silent {
            return Some(format!("{} {}", self.called(*id), state_of(key, status)));
        }
        let lacks = self.shards.iter().filter(|(shard, state)| !self.is_whole(**shard, state)).count();
        (lacks > 0).then(|| format!("{} not all copies yet", counted_lack(lacks)))
    }

    /// Whether a shard has all its copies, and its primary says so.
    fn is_whole(&self, shard: ShardIx, state: &ShardState) -> bool {
        let wanted = usize::from(self.config.replicas).min(self.living().count());
        let status = state.primary.and_then(|id| self.status_of(id));
        let of_shard = status.and_then(|status| status.shards.get(usize::from(shard)));
        let says_so = of_shard.is_some_and(|of_shard| {
            let is_primary = of_shard.role == Role::Primary && of_shard.epoch == state.epoch;
            is_primary && of_shard.newcomers.is_empty()
        });
        says_so && self.copies(state) >= wanted && self.copies(state) == state.in_sync.len()
    }

    /// Whether a node answers, and is good.
    pub fn is_good(&self, id: NodeId) -> bool {
        self.status_of(id).is_some_and(NodeStatus::is_good)
    }

    /// Copies of a shard that count: at nodes that are good.
    fn copies(&self, state: &ShardState) -> usize {
        state.in_sync.iter().filter(|id| self.is_good(*id)).count()
    }

    /// What an operator should do about etcd's space, the most pressing first.
    pub fn etcd_advice(&self) -> Vec<String> {
        match &self.space {
            None => Vec::new(),
            Some(Ok(space)) => space.advice(self.beats_per_second()),
            Some(Err(error)) => vec![format!("etcd does not say how much space it has: {error}")],
        }
    }

    /// Beats a second that etcd writes.
    fn beats_per_second(&self) -> f64 {
        let beating = self.nodes.iter().filter(|(_, key, _)| key.alive).count().max(1);
        beating as f64 * 1e6 / self.config.timing.beat as f64
    }

    fn nodes_table(&self) -> Columns<9> {
        let mut columns = Columns::new([
            Column::text("node").least(8),
            Column::text("name").least(6),
            Column::text("state").least(12),
            Column::number("last beat").rank(1),
            Column::number("serves"),
            Column::number("copies"),
            Column::number("entries take").rank(2),
            Column::number("room left").rank(3),
            Column::whole("table"),
        ]);
        for (id, key, status) in &self.nodes {
            let serves = self.shards.values().filter(|state| state.primary == Some(*id)).count();
            let copies = self.shards.values().filter(|state| state.in_sync.has(*id)).count();
            let (used, left) = match status {
                Ok(status) => (show::bytes(status.used), show::bytes(status.room_left)),
                Err(_) => (String::new(), String::new()),
            };
            let drained = if self.wishes.drained.has(*id) { ", drained" } else { "" };
            let beat = status.as_ref().ok().and_then(beat_age).map_or_else(String::new, show::time);
            let cells = [
                id.to_string(),
                key.about.name.clone(),
                format!("{}{drained}", state_of(key, status)),
                beat,
                serves.to_string(),
                copies.to_string(),
                used,
                left,
                key.about.table.join(" "),
            ];
            match status {
                Ok(_) => columns.row(cells),
                Err(_) => columns.styled(cells, "2"),
            }
        }
        columns
    }

    /// Up to `most` shards: those first with which something happens.
    fn shards_table(&self, most: usize) -> Columns<6> {
        let mut columns = Columns::new([
            Column::number("shard"),
            Column::number("epoch"),
            Column::text("primary").least(8),
            Column::text("standbys").least(8),
            Column::number("entries take").rank(2),
            Column::text("").least(10),
        ]);
        let alive: Vec<NodeId> =
            self.nodes.iter().map(|(id, ..)| *id).filter(|id| self.is_good(*id)).collect();
        let mut rows = Vec::new();
        for (&shard, state) in &self.shards {
            let standbys = state.in_sync.iter().filter(|id| Some(*id) != state.primary);
            let standbys: Vec<String> = standbys.map(|id| self.called(id)).collect();
            let of_primary = state.primary.and_then(|id| self.status_of(id));
            let of_shard = of_primary.and_then(|status| status.shards.get(usize::from(shard)));
            let to = wanted(shard, self.config.replicas, alive.iter().copied(), &self.wishes);
            let newcomers: Vec<String> =
                of_shard.iter().flat_map(|shard| &shard.newcomers).map(|id| self.called(*id)).collect();
            let what = match state.primary {
                None => "nobody ever served it".into(),
                Some(primary) if self.status_of(primary).is_none() => "its primary does not answer".into(),
                Some(primary) if !alive.contains(&primary) => "its primary is not good".into(),
                _ if !newcomers.is_empty() => format!("is copied to {}", newcomers.join(", ")),
                Some(primary) if to.first().is_some_and(|first| *first != primary) => {
                    format!("goes to {}", self.called(to[0]))
                }
                _ if self.copies(state) < state.in_sync.len() => "a node with a copy is not good".into(),
                _ if state.in_sync.len() < to.len() => "is to have another copy".into(),
                _ => String::new(),
            };
            rows.push([
                shard.to_string(),
                state.epoch.to_string(),
                state.primary.map_or_else(String::new, |id| self.called(id)),
                standbys.join(" "),
                of_shard.map_or_else(String::new, |shard| show::bytes(shard.used)),
                what,
            ]);
        }
        if rows.len() > most {
            rows.sort_by_key(|[.., what]| what.is_empty());
            rows.truncate(most);
        }
        rows.into_iter().for_each(|row| columns.row(row));
        columns
    }

    fn status_of(&self, id: NodeId) -> Option<&NodeStatus> {
        self.nodes.iter().find(|(other, ..)| *other == id).and_then(|(_, _, status)| status.as_ref().ok())
    }

    /// One line, and what an operator should do.
    fn summary(&self, name: &ClusterName) -> Vec<String> {
        let alive = self.nodes.iter().filter(|(id, ..)| self.is_good(*id)).count();
        let served = self.shards.values().filter(|state| state.primary.is_some_and(|id| self.is_good(id)));
        let copies = usize::from(self.config.replicas);
        let thin = self.shards.values().filter(|state| self.copies(state) < copies).count();
        let mut lines = vec![format!(
            "cluster {name}: {} of {} good, {} of {} served, {}",
            alive,
            show::counted(self.nodes.len() as u64, "node"),
            served.count(),
            show::counted(self.shards.len() as u64, "shard"),
            match thin {
                0 => format!("each with {copies} or more copies"),
                thin => format!("{thin} with fewer than {copies} copies"),
            }
        )];
        if !self.is_adopted {
            lines.push(format!(
                "this etcd was restored or copied: nobody believes it until `oneread cluster adopt {name}`"
            ));
        }
        lines.extend(self.etcd_advice());
        if thin > 0 && alive < copies {
            lines.push(format!("start more nodes: {copies} copies need as many"));
        }
        lines
    }

    fn lines(&self, name: &ClusterName, width: Option<usize>) -> Vec<String> {
        let mut lines = self.head(name, width);
        lines.extend(self.shards_table(usize::MAX).lines(width));
        lines
    }

    /// All but the shards.
    fn head(&self, name: &ClusterName, width: Option<usize>) -> Vec<String> {
        let mut lines = self.summary(name);
        if let Some(width) = width {
            lines.iter_mut().for_each(|line| *line = shortened(line, width));
        }
        if !self.nodes.is_empty() {
            lines.push(String::new());
            lines.extend(self.nodes_table().lines(width));
        }
        lines.push(String::new());
        lines
    }

    /// The lines of a screen. It has all nodes, and the shards for which it has room.
    fn frame(&self, name: &ClusterName, (width, height): (usize, usize)) -> Vec<String> {
        let mut lines = self.head(name, Some(width));
        let room = height.saturating_sub(lines.len());
        let shards = self.shards.len();
        if shards < room {
            lines.extend(self.shards_table(shards).lines(Some(width)));
        } else {
            // A line has the names of the columns, and one says what is missing.
            let most = room.saturating_sub(2);
            lines.extend(self.shards_table(most).lines(Some(width)));
            let more = show::counted((shards - most) as u64, "more shard");
            lines.push(shortened(&format!("{more}: `oneread cluster shards {name}`"), width));
        }
        lines.truncate(height);
        lines
    }

    fn json_of_node(&self, id: NodeId, key: &NodeKey, status: &Result<NodeStatus>) -> serde_json::Value {
        let health = status.as_ref().ok().and_then(|status| status.health.0.as_ref());
        serde_json::json!({
            "node": id.to_string(),
            "name": key.about.name,
            "alive": key.alive,
            "answers": status.is_ok(),
            "standing": status.as_ref().ok().map(|status| status.standing.clone()),
            "good": self.is_good(id),
            "beat_age_seconds": status.as_ref().ok().and_then(beat_age).map(|age| age.as_secs_f64()),
            "etcd_refuses": health.map(|health| health.etcd.clone()),
            "refused_by": health.map(|health| {
                health.refused_by.iter().map(|(id, why)| (id.to_string(), why)).collect::<BTreeMap<_, _>>()
            }),
            "why": status.as_ref().err().map(state_of_silent),
            "drained": self.wishes.drained.has(id),
            "leaves": key.about.leaves,
            "serves": self.shards.values().filter(|state| state.primary == Some(id)).count(),
            "copies": self.shards.values().filter(|state| state.in_sync.has(id)).count(),
            "used_bytes": status.as_ref().ok().map(|status| status.used),
            "room_left_bytes": status.as_ref().ok().map(|status| status.room_left),
            "evicted": status.as_ref().ok().map(|status| status.evicted),
            "expired": status.as_ref().ok().map(|status| status.expired),
            "table": key.about.table,
            "requests": key.about.requests,
        })
    }

    fn json_of_shard(&self, shard: ShardIx, state: &ShardState) -> serde_json::Value {
        let of_primary = state.primary.and_then(|id| self.status_of(id));
        let of_shard = of_primary.and_then(|status| status.shards.get(usize::from(shard)));
        serde_json::json!({
            "shard": shard,
            "epoch": state.epoch,
            "primary": state.primary.map(|id| id.to_string()),
            "copies": self.copies(state),
            "in_sync": state.in_sync.iter().map(|id| id.to_string()).collect::<Vec<_>>(),
            "moved_to": self.wishes.pinned.get(&shard).map(|id| id.to_string()),
            "used_bytes": of_shard.map(|shard| shard.used),
            "changes_under_way": of_shard.map(|shard| shard.under_way),
            "newcomers": of_shard.map(|shard| shard.newcomers.iter().map(|id| id.to_string()).collect::<Vec<_>>()),
        })
    }
}

fn state_of(key: &NodeKey, status: &Result<NodeStatus>) -> String {
    match status {
        Ok(_) if key.about.leaves => "leaves".into(),
        Ok(status) => match status.health.0.as_ref().and_then(|health| health.refused_by.first()) {
            // Some take it, and this one does not.
            Some((node, why)) if status.is_good() => {
                format!("good, but {} says: {why}", &node.to_string()[..8])
            }
            _ => status.standing.clone(),
        },
        Err(error) if key.alive => state_of_silent(error),
        Err(_) => "dead".into(),
    }
}

fn counted_lack(shards: usize) -> String {
    let have = if shards == 1 { "has" } else { "have" };
    format!("{} {have}", show::counted(shards as u64, "shard"))
}

/// Why a node has not answered, in a few words.
fn state_of_silent(error: &anyhow::Error) -> String {
    match error.downcast_ref::<WireError>() {
        Some(WireError::Secret) => "another secret".into(),
        Some(
            error
            @ (WireError::OtherCluster { .. } | WireError::Version { .. } | WireError::OtherNode { .. }),
        ) => error.brief().into(),
        _ => "does not answer".into(),
    }
}

/// How old the last beat is that etcd has taken of a node, as that says.
fn beat_age(status: &NodeStatus) -> Option<Duration> {
    status.health.0.as_ref()?.beat_age.map(Duration::from_micros)
}

/// What etcd says of its space, for scripts.
fn json_of_space(seen: &Seen) -> serde_json::Value {
    let Some(Ok(space)) = &seen.space else { return serde_json::Value::Null };
    let beats = seen.beats_per_second();
    serde_json::json!({
        "revision": space.revision,
        "oldest_revision": space.oldest,
        "file_bytes": space.file_bytes,
        "used_bytes": space.used_bytes,
        "quota_bytes": space.quota_bytes,
        "alarms": space.alarms,
        "compacted": space.is_compacted(beats),
        "compacted_by": space.compaction.map(|compaction| compaction.by.map(|node| node.to_string())),
        "full_in_seconds": space.full_in(beats).map(|time| time.as_secs_f64()),
        "advice": space.advice(beats),
    })
}

impl Status {
    pub async fn run(self, reach: &ClusterArgs) -> Result<()> {
        if !self.watch {
            let seen = look_with_space(reach, &self.at.name).await?;
            let nodes = seen.nodes.iter().map(|(id, key, status)| seen.json_of_node(*id, key, status));
            let shards = seen.shards.iter().map(|(shard, state)| seen.json_of_shard(*shard, state));
            let told = serde_json::json!({
                "cluster": self.at.name.to_string(),
                "adopted": seen.is_adopted,
                "replicas": seen.config.replicas,
                "ttl_seconds": seen.config.timing.ttl as f64 / 1e6,
                "etcd": json_of_space(&seen),
                "nodes": nodes.collect::<Vec<_>>(),
                "shards": shards.collect::<Vec<_>>(),
            });
            return show::outcome(self.at.json, &told, || {
                show::lay_out(seen.lines(&self.at.name, width()).join("\n"))
            });
        }
        let screen = Screen::open()?;
        loop {
            let next = Instant::now() + LOOK;
            let seen = look_with_space(reach, &self.at.name).await;
            let error = |error: &anyhow::Error| advice::in_options(&format_args!("{error:#}; looking again"));
            let Some(screen) = &screen else {
                // Where nothing stays in place, each look is told below the one before.
                let lines = match &seen {
                    Ok(seen) => seen.lines(&self.at.name, width()),
                    Err(why) => vec![error(why)],
                };
                show::lay_out(format_args!("{}\n", lines.join("\n")))?;
                tokio::time::sleep_until(next.into()).await;
                continue;
            };
            let lines = |size: (usize, usize)| match &seen {
                Ok(seen) => seen.frame(&self.at.name, size),
                Err(why) => vec![shortened(&error(why), size.0 * size.1)],
            };
            if !screen.show_until(next, lines)? {
                return Ok(());
            }
        }
    }
}

impl Nodes {
    pub async fn run(self, reach: &ClusterArgs) -> Result<()> {
        let seen = look(reach, &self.at.name).await?;
        if self.at.json {
            for (id, key, status) in &seen.nodes {
                show::say(seen.json_of_node(*id, key, status))?;
            }
        } else if seen.nodes.is_empty() {
            show::say(format_args!("no node was ever started: oneread serve --cluster {}", self.at.name))?;
        } else {
            show::lay_out(seen.nodes_table().text())?;
            for (id, _, status) in &seen.nodes {
                if let Err(error) = status {
                    show::say(format_args!("{id}: {}", show::name(format_args!("{error:#}"))))?;
                }
            }
        }
        Ok(())
    }
}

impl Shards {
    pub async fn run(self, reach: &ClusterArgs) -> Result<()> {
        let seen = look(reach, &self.at.name).await?;
        if self.at.json {
            for (shard, state) in &seen.shards {
                show::say(seen.json_of_shard(*shard, state))?;
            }
        } else {
            show::lay_out(seen.shards_table(usize::MAX).text())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread_cluster::core::hash::ShardHash;
    use oneread_cluster::core::state::{NodeAbout, NodeIds, Timing};
    use unicode_width::UnicodeWidthStr;

    /// A cluster of five nodes, of which none answers, with this number of shards. One of them nobody ever served.
    fn seen(shards: ShardIx) -> Seen {
        let node = |n: u64| {
            let table = vec![format!("tcp://a-host-with-a-long-name-{n}.example.org:7471")];
            let about = NodeAbout { name: format!("node-{n}"), table, ..NodeAbout::default() };
            let key = NodeKey { life: 1, number: 1, alive: true, about };
            (NodeId(n << 32), key, Err(anyhow::anyhow!("silent")))
        };
        let state = |shard| ShardState {
            revision: 1,
            epoch: 1,
            primary: (shard != shards - 1).then_some(NodeId(1 << 32)),
            in_sync: NodeIds::of(NodeId(1 << 32)),
            waits: false,
        };
        Seen {
            config: ClusterConfig {
                shards,
                replicas: 2,
                hash: ShardHash::new(1),
                key_max: 64,
                value_max: 1_024,
                timing: Timing::of(2_000_000),
            },
            is_adopted: false,
            space: Some(Err(EtcdError::NoEndpoint)),
            nodes: (1..=5).map(node).collect(),
            shards: (0..shards).map(|shard| (shard, state(shard))).collect(),
            wishes: Wishes::default(),
        }
    }

    /// A screen has the head, all nodes, and the shards with which something happens. It says how many it leaves out.
    /// No line is wrapped.
    #[test]
    fn a_screen_has_what_matters() {
        let name: ClusterName = "a-cluster-with-a-name-of-some-length".parse().unwrap();
        for (width, height) in [(80, 24), (120, 40), (80, 100)] {
            let frame = seen(64).frame(&name, (width, height));
            assert!(frame.len() <= height, "{frame:#?}");
            assert!(frame.iter().all(|line| without_styles(line).width() <= width), "{frame:#?}");
            let text = frame.join("\n");
            assert!(text.starts_with("cluster a-cluster") && text.contains("node-5"), "{text}");
            let of_shard = |line: &&String| line.contains("nobody ever") || line.contains("its primary");
            let shown = frame.iter().filter(of_shard).count();
            match text.contains("more shard") {
                true => assert!(text.contains(&format!("{} more shards: ", 64 - shown)), "{shown} of {text}"),
                false => assert_eq!(shown, 64, "{text}"),
            }
            assert_eq!(text.contains("more shard"), height < 100, "{text}");
        }
    }

    fn without_styles(line: &str) -> String {
        line.replace("\x1b[2m", "").replace("\x1b[0m", "")
    }
}
