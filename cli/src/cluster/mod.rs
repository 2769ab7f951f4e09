//! `cluster`: tables on many nodes. And the options of `serve` that make a table a node.

mod calls;
mod roll;
mod status;
mod watch;

use crate::serve::{advise, serving::Serving};
use crate::users::UserId;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use oneread::internals::files;
use oneread::{Server, ServerConfig};
use oneread_cluster::client::{ClusterClient, ClusterOptions};
use oneread_cluster::core::hash::ShardHash;
use oneread_cluster::core::placement::Wishes;
use oneread_cluster::core::state::{ClusterConfig, NodeAbout, NodeId, Notes, ShardIx, Timing};
use oneread_cluster::etcd::{ClusterName, EtcdError, EtcdOptions, EtcdStore, EtcdTls};
use oneread_cluster::node::{ClusterNode, NodeConfig, NodeError};
use oneread_cluster::wire::{Bounds, Identity, NodeConnection, Question, Said, Secret, WireError};
use oneread_kit::units::{Period, length, some_time};
use oneread_kit::{TlsArgs, show};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use zeroize::Zeroizing;

/// Longest time for a node to answer a question.
const ASK: Duration = Duration::from_secs(3);

/// Longest time for a node to be good, until it is said to serve nothing yet.
const GOOD_WITHIN: Duration = Duration::from_secs(10);

/// How to reach a cluster.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
    /// Members of the cluster's etcd, with commas [default: http://127.0.0.1:2379]
    #[arg(long, value_name = "URL", env = "ONEREAD_ETCD", value_delimiter = ',', global = true)]
    etcd: Vec<String>,
    /// The user for etcd; its password is in the variable ONEREAD_ETCD_PASSWORD
    #[arg(long, value_name = "USER", env = "ONEREAD_ETCD_USER", global = true)]
    etcd_user: Option<String>,
    /// Who has signed etcd's certificate (PEM), for https
    #[arg(long, value_name = "FILE", global = true)]
    etcd_ca: Option<PathBuf>,
    /// The certificate to show to etcd (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"], global = true)]
    etcd_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "etcd_cert", global = true)]
    etcd_key: Option<PathBuf>,
    /// The file with the cluster's secret, which all its nodes and clients have; without one, nodes
    /// are reached from their own host only
    #[arg(long, value_name = "FILE", env = "ONEREAD_SECRET_FILE", global = true)]
    secret_file: Option<PathBuf>,
}

impl ClusterArgs {
    fn etcd(&self) -> EtcdOptions {
        let mut options = match self.etcd.is_empty() {
            true => EtcdOptions::new(["http://127.0.0.1:2379"]),
            false => EtcdOptions::new(self.etcd.iter().cloned()),
        };
        let password = || Zeroizing::new(std::env::var("ONEREAD_ETCD_PASSWORD").unwrap_or_default());
        options.user = self.etcd_user.clone().map(|user| (user, password()));
        let certificate = self.etcd_cert.clone().zip(self.etcd_key.clone());
        options.tls = self.etcd_ca.clone().map(|ca| EtcdTls { ca, certificate });
        options
    }

    fn secret(&self) -> Result<Secret> {
        let Some(path) = &self.secret_file else { return Ok(Secret::default()) };
        let name = path.display();
        let bytes = files::read_secret(path);
        let bytes = bytes.with_context(|| format!("reading the cluster's secret in {name}"))?;
        let bytes = Zeroizing::new(bytes);
        let secret = bytes.trim_ascii();
        ensure!(
            !secret.is_empty(),
            "{name} is empty; put a secret into it: (umask 077; openssl rand -hex 32 > {name})"
        );
        Ok(Secret::new(secret)?)
    }

    fn client(&self, name: &ClusterName, tables: &Tables) -> Result<ClusterClient> {
        let mut options = ClusterOptions::default();
        options.secret = self.secret()?;
        let trusted: Vec<u32> = tables.server_user.iter().map(|user| user.0).collect();
        options.tables = options.tables.server_uids(trusted).tls(tables.tls.tls()?);
        Ok(ClusterClient::connect(name.clone(), self.etcd(), options)?)
    }
}

/// How nodes' tables are READ.
#[derive(Clone, Debug, Args)]
struct Tables {
    /// A user whose nodes are trusted, beside this user's and root's, by name or number (shm only;
    /// repeatable)
    #[arg(long, value_name = "USER")]
    server_user: Vec<UserId>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Options that make a table a node of a cluster.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Serve the table as a node of this cluster (`oneread cluster init` makes one)
    #[arg(long, value_name = "NAME")]
    cluster: Option<ClusterName>,
    /// What people call this node [default: the host's name]
    #[arg(long, value_name = "NAME", requires = "cluster")]
    node_name: Option<String>,
    /// Where clients send changes, and other nodes copies of them [default: 127.0.0.1, any free port]
    #[arg(long, value_name = "HOST:PORT", requires = "cluster")]
    node_listen: Vec<String>,
    /// What other hosts call that, if it differs
    #[arg(long, value_name = "HOST:PORT", requires = "node_listen")]
    node_advertise: Vec<String>,
    /// What other hosts call the table's address, if it differs, as in tcp://10.0.0.1:7471
    #[arg(long, value_name = "ADDRESS", requires = "cluster")]
    table_advertise: Vec<oneread::Address>,
    #[command(flatten)]
    reach: ClusterArgs,
}

impl NodeArgs {
    /// Whether the table is to be a node's: its token follows from the cluster's secret.
    pub fn is_node(&self) -> bool {
        self.cluster.is_some()
    }

    /// Starts the server, as a node if it is to be one. Of that one `is_quiet` says nothing.
    pub fn start(&self, server: ServerConfig, has_tcp: bool, is_quiet: bool) -> Result<Serving> {
        let (at, cancel) = (server.address.clone(), server.cancel.clone());
        let Some(cluster) = &self.cluster else {
            return Server::start(server).map(Serving::Table).map_err(|error| advise(error, &at));
        };
        let is_far = |at: &String| {
            !at.starts_with("127.") && !at.starts_with("localhost:") && !at.starts_with("[::1]")
        };
        let is_on_shm = matches!(server.address, oneread::Address::Shm(_));
        if self.node_listen.iter().any(is_far) && is_on_shm && !has_tcp {
            show::complain(
                "oneread: clients on other hosts cannot READ this table: serve it over verbs (--at), or over TCP, too (--listen)",
            );
        }
        let mut config = NodeConfig::new(cluster.clone(), self.reach.etcd(), server);
        config.name = self.node_name.clone().unwrap_or_else(host_name);
        config.secret = self.reach.secret()?;
        if !self.node_listen.is_empty() {
            config.listen = self.node_listen.clone();
        }
        config.advertise = self.node_advertise.clone();
        config.advertise_table = self.table_advertise.iter().map(ToString::to_string).collect();
        let node = ClusterNode::start(config).map_err(|error| match error {
            NodeError::Serve(error) => advise(error, &at),
            error => error.into(),
        })?;
        if !is_quiet {
            show::complain(format_args!(
                "oneread: node {} of cluster {cluster}, at {}",
                node.id(),
                node.requests().join(", ")
            ));
        }
        if let Some(standing) = wait_until_good(&node, cancel.as_deref()) {
            show::complain(format_args!(
                "oneread: this node is not good yet: {standing}; it goes on trying (`oneread cluster status {cluster}` tells)"
            ));
        }
        Ok(Serving::Node(node))
    }
}

/// Waits until a node is good, for as long as a start may take. Else how it stands.
fn wait_until_good(node: &ClusterNode, cancel: Option<&AtomicBool>) -> Option<String> {
    let until = Instant::now() + GOOD_WITHIN;
    loop {
        let standing = match node.status() {
            Some(status) if status.is_good() => return None,
            Some(status) => status.standing,
            None => "its thread does not answer".into(),
        };
        if Instant::now() >= until || cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Some(standing);
        }
        std::thread::sleep(GOOD_WITHIN / 100);
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Make a cluster of tables over etcd, look at it, and move its shards
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  etcd &                              its default address is the default here
  oneread cluster init demo           a cluster of 64 shards, 2 copies each
  oneread serve --cluster demo --at shm:/tmp/a.sock --daemonize      a node
  oneread serve --cluster demo --at shm:/tmp/b.sock --daemonize      another one
  oneread cluster put demo greeting hello
  oneread cluster get demo greeting     one READ at the key's primary
  oneread cluster scan demo             all keys
  oneread cluster watch demo            changes as they come
  oneread cluster status demo --watch   who serves what
  oneread cluster roll demo --exec 'ssh {} systemctl restart oneread'
  oneread cluster drain demo NODE       before a node is taken away for good
  oneread cluster forget demo NODE      when it is gone for good
  oneread cluster move demo 7 NODE      shard 7 is to have this primary
  oneread cluster renew demo            shards that nobody has any more, if any

A node is named by its number, the beginning of that, or the name that
`serve --node-name` gave it (by default the host's name).
The etcd of more than one host is named by --etcd, or the variable ONEREAD_ETCD.
docs/CLUSTER.md says what a cluster promises, and what to do when it fails.")]
pub struct Cluster {
    #[command(flatten)]
    reach: ClusterArgs,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a cluster: etcd has its configuration from then on
    Init(Init),
    /// How a cluster is: its nodes, and who serves what
    Status(status::Status),
    /// The nodes of a cluster
    Nodes(status::Nodes),
    /// The shards of a cluster
    Shards(status::Shards),
    /// Have a node serve a shard, wherever the ranking would put it
    Move(Move),
    /// Have a node give up its shards, and be given none
    Drain(Drain),
    /// Start all nodes again, one after the other, by a command
    Roll(roll::Roll),
    /// Forget drained nodes and moves: all goes where the ranking puts it
    Rebalance(Rebalance),
    /// Forget a node that is gone for good
    Forget(Forget),
    /// Begin lost shards anew, empty: those whose copies are all gone
    Renew(Renew),
    /// Go on with an etcd that was restored from a backup
    Adopt(Adopt),
    /// Have a node compact the cluster's etcd, which has nothing else: as `init --compact-etcd` does
    CompactEtcd(CompactEtcd),
    /// Print a key's value
    Get(calls::Get),
    /// Give a key a value
    Put(calls::Put),
    /// Remove a key
    Del(calls::Del),
    /// Have all entries of an owner go; status 1 if there was no such owner
    RemoveOwner(calls::RemoveOwner),
    /// Print all keys, or those that match
    Scan(calls::Scan),
    /// Print changes as they come
    Watch(watch::Watch),
}

#[derive(Debug, Args)]
struct Init {
    /// The cluster's name
    name: ClusterName,
    /// How many parts the keys are in. Never changes
    #[arg(long, value_name = "N", default_value_t = 64)]
    shards: ShardIx,
    /// How many nodes have a copy of each
    #[arg(long, value_name = "N", default_value_t = 2)]
    replicas: u8,
    /// Longest key in bytes, up to 255. Never changes
    #[arg(long, value_name = "BYTES", default_value_t = 255)]
    key_max: u16,
    /// Longest value, as in 78, 1MiB; up to 64MiB. Never changes
    #[arg(long, value_name = "SIZE", value_parser = length, default_value = "1MiB")]
    value_max: usize,
    /// How long a node may be silent until others take over
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "2s")]
    ttl: Period,
    /// Have a node compact this etcd: it forgets the history of all its keys, so it should have nothing
    /// else. Without this, start etcd with --auto-compaction-retention=1h
    #[arg(long)]
    compact_etcd: bool,
}

#[derive(Debug, Args)]
struct CompactEtcd {
    /// The cluster
    name: ClusterName,
    /// Have nodes do it no longer
    #[arg(long)]
    undo: bool,
}

#[derive(Debug, Args)]
struct Move {
    /// The cluster
    name: ClusterName,
    /// The shard's number
    shard: ShardIx,
    /// The node that is to serve it
    node: String,
}

#[derive(Debug, Args)]
struct Drain {
    /// The cluster
    name: ClusterName,
    /// The node
    node: String,
    /// Have it take shards again
    #[arg(long)]
    undo: bool,
}

#[derive(Debug, Args)]
struct Rebalance {
    /// The cluster
    name: ClusterName,
}

#[derive(Debug, Args)]
struct Forget {
    /// The cluster
    name: ClusterName,
    /// The node, which has no shards and does not run
    #[arg(required_unless_present = "dead")]
    node: Option<String>,
    /// All nodes that do not run, and that no shard names
    #[arg(long, conflicts_with = "node")]
    dead: bool,
}

#[derive(Debug, Args)]
struct Renew {
    /// The cluster
    name: ClusterName,
    /// Only these shards [default: all that are lost]
    shards: Vec<ShardIx>,
    /// Do it. Without this, say which shards are lost, and who had them
    #[arg(long)]
    lose_entries: bool,
}

#[derive(Debug, Args)]
struct Adopt {
    /// The cluster
    name: ClusterName,
    /// Go on without nodes that do not answer: what only they knew is lost
    #[arg(long)]
    without_missing: bool,
    /// Where etcd has nothing of the cluster any more: a node that has run since before (its --node-listen).
    /// It says what the cluster is, and who its nodes are
    #[arg(long, value_name = "HOST:PORT")]
    from: Option<String>,
}

impl Cluster {
    pub fn run(self) -> Result<ExitCode> {
        let Cluster { reach, what } = self;
        match what {
            What::Get(get) => return get.run(&reach),
            What::Put(put) => return put.run(&reach),
            What::Del(del) => return del.run(&reach),
            What::RemoveOwner(remove) => return remove.run(&reach),
            What::Scan(scan) => return scan.run(&reach),
            What::Watch(watch) => return watch.run(&reach),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            match what {
                What::Init(init) => init.run(&reach).await?,
                What::Status(status) => status.run(&reach).await?,
                What::Nodes(nodes) => nodes.run(&reach).await?,
                What::Shards(shards) => shards.run(&reach).await?,
                What::Move(Move { name, shard, node }) => {
                    let store = store(&reach, &name).await?;
                    let (config, _) = store.read_config().await?;
                    ensure!(shard < config.shards, "the cluster has the shards 0 to {}", config.shards - 1);
                    let node = status::node_called(&store, &node).await?;
                    let pin = |wishes: &mut Wishes| {
                        wishes.pinned.insert(shard, node);
                    };
                    store.change_wishes(pin).await?;
                    show::say(format_args!("shard {shard} goes to node {node}; `oneread cluster shards {name}` shows when it is there"))?;
                }
                What::Drain(Drain { name, node, undo }) => {
                    let store = store(&reach, &name).await?;
                    let node = status::node_called(&store, &node).await?;
                    store
                        .change_wishes(|wishes| {
                            let drained = std::mem::take(&mut wishes.drained);
                            wishes.drained = if undo { drained.without(node) } else { drained.with(node) };
                            if !undo {
                                wishes.pinned.retain(|_, pinned| *pinned != node);
                            }
                        })
                        .await?;
                    show::say(match undo {
                        true => format!("node {node} takes shards again"),
                        false => format!("node {node} gives up its shards; stop it when `oneread cluster nodes {name}` shows none"),
                    })?;
                }
                What::Rebalance(Rebalance { name }) => {
                    let store = store(&reach, &name).await?;
                    store.change_wishes(|wishes| *wishes = Default::default()).await?;
                    show::say("drained nodes and moves are forgotten: all goes where the ranking puts it")?;
                }
                What::Forget(Forget { name, node, .. }) => {
                    let store = store(&reach, &name).await?;
                    let nodes = match node {
                        Some(node) => {
                            let node = status::gone_node_called(&store, &node).await?;
                            store.forget(node).await?;
                            vec![node]
                        }
                        None => store.forget_dead().await?,
                    };
                    for node in &nodes {
                        show::say(format_args!("node {node} is forgotten"))?;
                    }
                    if nodes.is_empty() {
                        show::say("no node is dead that no shard names")?;
                    }
                }
                What::Renew(renew) => renew.run(&reach).await?,
                What::Adopt(adopt) => adopt.run(&reach).await?,
                What::Roll(roll) => roll.run(&reach).await?,
                What::CompactEtcd(CompactEtcd { name, undo }) => {
                    store(&reach, &name).await?.let_nodes_compact(!undo).await?;
                    show::say(match undo {
                        true => "no node compacts this etcd any more: start its members with --auto-compaction-retention=1h",
                        false => "a node compacts this etcd from now on: its whole key space",
                    })?;
                }
                What::Get(_) | What::Put(_) | What::Del(_) | What::RemoveOwner(_) => {}
                What::Scan(_) | What::Watch(_) => {}
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// What is wrong with a cluster, the most pressing first.
pub fn problems(reach: &ClusterArgs, name: &ClusterName) -> Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(match runtime.block_on(status::look_with_space(reach, name)) {
        Ok(seen) => seen.etcd_advice().into_iter().chain(seen.lacks()).collect(),
        Err(error) => vec![format!("{error:#}")],
    })
}

async fn store(reach: &ClusterArgs, name: &ClusterName) -> Result<EtcdStore> {
    Ok(EtcdStore::connect(name.clone(), reach.etcd()).await?)
}

impl Init {
    async fn run(self, reach: &ClusterArgs) -> Result<()> {
        let timing = Timing::of(self.ttl.0.as_micros() as u64);
        let config = ClusterConfig {
            shards: self.shards,
            replicas: self.replicas,
            hash: ShardHash::new(rand::random()),
            key_max: self.key_max,
            value_max: u32::try_from(self.value_max).context("so long a value")?,
            timing,
        };
        let store = store(reach, &self.name).await?;
        store.init(&config).await?;
        if self.compact_etcd {
            store.let_nodes_compact(true).await?;
        }
        show::say(format_args!(
            "cluster {}: {} with {} each; a node: oneread serve --cluster {}",
            self.name,
            show::counted(self.shards.into(), "shard"),
            if self.replicas == 1 { "1 copy".into() } else { format!("{} copies", self.replicas) },
            self.name
        ))?;
        Ok(())
    }
}

/// Asks a node something.
async fn ask(
    reach: &ClusterArgs,
    name: &ClusterName,
    config: &ClusterConfig,
    node: NodeId,
    addresses: &[String],
    question: Question,
) -> Result<Said> {
    let who = Identity::new(name.clone(), None, reach.secret()?, Bounds::of(config));
    let answer = async {
        let mut connection = NodeConnection::connect(addresses, who, node).await?;
        connection.send(&Said::Ask(question)).await?;
        connection.next().await
    };
    match tokio::time::timeout(ASK, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => bail!("node {node} did not answer for {}", show::time(ASK)),
    }
}

impl Renew {
    async fn run(self, reach: &ClusterArgs) -> Result<()> {
        let store = store(reach, &self.name).await?;
        let mut lost = store.lost().await?;
        if let Some(shard) = self.shards.iter().find(|shard| !lost.shards.contains_key(shard)) {
            return Err(EtcdError::NotLost { shard: *shard }.into());
        }
        lost.shards.retain(|shard, _| self.shards.is_empty() || self.shards.contains(shard));
        let count = show::counted(lost.shards.len() as u64, "shard");
        if lost.shards.is_empty() {
            return Ok(show::say("no shard is lost: of each a node lives that has a copy")?);
        }
        if self.lose_entries {
            store.begin_anew(&lost).await?;
            return Ok(show::say(format_args!("{count} begin anew, empty"))?);
        }
        let mut shards_of: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
        for (shard, state) in &lost.shards {
            for node in state.in_sync.iter() {
                shards_of.entry(node).or_default().push(shard.to_string());
            }
        }
        let names: BTreeMap<_, _> = status::nodes(&store).await?.into_iter().collect();
        for (node, shards) in shards_of {
            let name = show::name(names.get(&node).map_or("", |key| &key.about.name));
            show::say(format_args!("node {node} ({name}) had {}", shards.join(", ")))?;
        }
        bail!(
            "{count} lost: if one of these nodes can start with its region file, start it, and nothing is lost; else \
             give up these entries: oneread cluster renew {} --lose-entries",
            self.name
        )
    }
}

impl Adopt {
    async fn run(self, reach: &ClusterArgs) -> Result<()> {
        let store = store(reach, &self.name).await?;
        let (config, nodes) = match (store.read_config().await, &self.from) {
            (Ok((config, read)), None) => {
                let nodes = read.nodes().map(|(id, key)| (id, key.about.clone())).collect();
                (config, nodes)
            }
            (Ok(_), Some(_)) => bail!(
                "this etcd has the cluster {}: adopt it without --from; what etcd and nodes say is put together",
                self.name
            ),
            (Err(EtcdError::NotThere { .. }), Some(from)) => self.ask_who(reach, from).await?,
            (Err(error @ EtcdError::NotThere { .. }), None) => {
                return Err(error).context(
                    "if this etcd has lost what it had, and nodes still run, stop none of them, and name one: --from HOST:PORT",
                );
            }
            (Err(error), _) => return Err(error.into()),
        };
        let mut notes: Vec<Notes> = Vec::new();
        let mut missing = Vec::new();
        for (node, about) in nodes {
            match ask(reach, &self.name, &config, node, &about.requests, Question::Notes).await {
                Ok(Said::Notes(of_node)) => notes.push(of_node),
                Ok(_) => missing.push((node, "it gave another answer".to_owned())),
                Err(error) => missing.push((node, format!("{error:#}"))),
            }
        }
        for (node, why) in &missing {
            show::complain(format_args!("oneread: node {node} did not say what it knows: {why}"));
        }
        ensure!(
            missing.is_empty() || self.without_missing,
            "{} did not answer: start them, or go on without what only they know (--without-missing)",
            show::counted(missing.len() as u64, "node")
        );
        ensure!(
            !notes.is_empty(),
            "no node answers: what this etcd has may be old, and only nodes know better"
        );
        let seconds =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let adoption = match self.from {
            None => store.adopt(&notes, seconds).await?,
            Some(_) => store.adopt_from(&config, &notes, seconds).await?,
        };
        show::say(format_args!("cluster {}: this etcd is adopted (number {})", self.name, adoption.number))?;
        Ok(())
    }

    /// Asks a node what the cluster is, and who its nodes are.
    async fn ask_who(
        &self,
        reach: &ClusterArgs,
        from: &str,
    ) -> Result<(ClusterConfig, Vec<(NodeId, NodeAbout)>)> {
        let who = Identity::new(self.name.clone(), None, reach.secret()?, Bounds::any());
        let asked = async {
            let (mut connection, node) = NodeConnection::connect_any(from, who).await?;
            connection.send(&Said::Ask(Question::Config)).await?;
            let config = connection.next().await?;
            connection.send(&Said::Ask(Question::Map)).await?;
            Ok::<_, WireError>((node, config, connection.next().await?))
        };
        let asked = tokio::time::timeout(ASK, asked).await;
        let asked = asked.with_context(|| format!("{from} did not answer for {}", show::time(ASK)))?;
        match asked.with_context(|| format!("asking {from} what the cluster is"))? {
            (node, Said::Config(config), Said::Map(map)) => {
                let mut nodes = map.nodes;
                if nodes.iter().all(|(id, _)| *id != node) {
                    let about = NodeAbout { requests: vec![from.to_owned()], ..NodeAbout::default() };
                    nodes.push((node, about));
                }
                Ok((config, nodes))
            }
            _ => bail!("{from} gave another answer: is it of an earlier version?"),
        }
    }
}
