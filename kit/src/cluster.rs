//! A cluster for `demo` or one bench: an etcd, and nodes, each in a process of its own. All end when their guard is
//! dropped.

use crate::child::ServerChild;
use crate::folder::Folder;
use crate::show;
use anyhow::{Context, Result, ensure};
use oneread_cluster::client::{ClusterClient, ClusterOptions};
use oneread_cluster::core::etcd::EtcdAnswer;
use oneread_cluster::core::placement::{Wishes, wanted};
use oneread_cluster::core::state::{ClusterConfig, NodeId, NodeKey, ShardIx, ShardState};
use oneread_cluster::etcd::{ClusterName, EtcdError, EtcdOptions, EtcdStore};
use oneread_cluster::wire::Secret;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Most memory of a node's table.
const MEMORY: &str = "256MiB";
/// Between two looks at what etcd has.
const LOOK: Duration = Duration::from_millis(20);
/// etcd answers, and a node is known, within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a cluster is made of.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The cluster's name.
    pub name: &'static str,
    /// Nodes.
    pub nodes: usize,
    /// Shards.
    pub shards: ShardIx,
    /// Copies of each.
    pub copies: u8,
    /// How long a node may be silent until others take over.
    pub ttl: Duration,
}

/// Ended when dropped, with all its processes.
pub struct Cluster {
    /// What it is.
    pub config: ClusterConfig,
    /// Its nodes, n0 and on.
    pub nodes: Vec<NodeProcess>,
    name: ClusterName,
    secret: Secret,
    store: EtcdStore,
    runtime: Runtime,
    etcd: Etcd,
    /// The last one to go: the others' files are in it.
    _folder: Folder,
}

/// A node's process, and the node.
pub struct NodeProcess {
    /// The process.
    pub process: ServerChild,
    /// The node.
    pub id: NodeId,
}

/// What etcd has of a cluster.
#[derive(Debug)]
pub struct Seen {
    /// All nodes that were ever there.
    pub nodes: BTreeMap<NodeId, NodeKey>,
    /// All shards, in order.
    pub shards: Vec<ShardState>,
    wishes: Wishes,
}

impl Seen {
    fn of(read: &EtcdAnswer) -> Seen {
        let shards: BTreeMap<ShardIx, &ShardState> = read.shards().collect();
        Seen {
            nodes: read.nodes().map(|(id, key)| (id, key.clone())).collect(),
            shards: shards.into_values().cloned().collect(),
            wishes: read.wishes().cloned().unwrap_or_default(),
        }
    }

    /// Shards that are not where they should be, with all their copies, if these many nodes live. All, if fewer do.
    pub fn unsettled(&self, nodes: usize, copies: u8) -> usize {
        let alive: Vec<NodeId> = self.nodes.iter().filter(|(_, key)| key.alive).map(|(id, _)| *id).collect();
        if alive.len() < nodes {
            return self.shards.len();
        }
        let is_settled = |(shard, state): &(ShardIx, &ShardState)| {
            let wanted = wanted(*shard, copies, alive.iter().copied(), &self.wishes);
            !state.waits
                && state.primary == wanted.first().copied()
                && state.in_sync.len() == wanted.len()
                && wanted.iter().all(|node| state.in_sync.has(*node))
        };
        (0..).zip(&self.shards).filter(|at| !is_settled(at)).count()
    }

    /// The shards of which a node is the primary, and their epochs.
    pub fn served_by(&self, node: NodeId) -> Vec<(ShardIx, u64)> {
        let served = (0..).zip(&self.shards).filter(|(_, state)| state.primary == Some(node));
        served.map(|(shard, state)| (shard, state.epoch)).collect()
    }

    /// Whether each of these shards has a primary of another epoch by now.
    pub fn are_taken_over(&self, shards: &[(ShardIx, u64)]) -> bool {
        let is_newer = |(shard, epoch): &(ShardIx, u64)| {
            self.shards.get(usize::from(*shard)).is_some_and(|state| state.epoch > *epoch)
        };
        shards.iter().all(is_newer)
    }
}

/// An etcd of one member, with its data in memory. Killed when dropped.
struct Etcd {
    child: Child,
    endpoint: String,
}

impl Etcd {
    fn start(folder: &Folder) -> Result<Etcd> {
        // These were free just now.
        let port =
            || Ok::<_, std::io::Error>(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port());
        let endpoint = format!("http://127.0.0.1:{}", port()?);
        let peer = format!("http://127.0.0.1:{}", port()?);
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.join("etcd"))
            .args(["--name", "e", "--initial-cluster", &format!("e={peer}")])
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Err(error) if error.kind() == ErrorKind::NotFound => anyhow::bail!(
                "there is no program `etcd` in PATH, which says who serves what: install it (apt-get install etcd-server), and run this again"
            ),
            child => child.context("starting etcd")?,
        };
        folder.began(&child);
        Ok(Etcd { child, endpoint })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cluster {
    /// Whether there is an etcd that [`Cluster::start`] can start: the program is in PATH.
    pub fn has_etcd() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join("etcd").is_file())
    }

    /// Starts all, and returns when each shard has its copies where they should be. `began` is called for each node that
    /// serves its table.
    ///
    /// # Errors
    /// A process did not start, or the cluster did not come to rest within a minute or so. Nothing is left running.
    pub fn start(size: Size, mut began: impl FnMut()) -> Result<Cluster> {
        let folder = Folder::in_memory()?;
        let mut etcd = Etcd::start(&folder)?;
        let name: ClusterName = size.name.parse()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("starting a thread")?;
        let store = connect(&runtime, &name, &mut etcd)?;
        let secret = format!("{:032x}", rand::random::<u128>());
        let secret_file = folder.join("secret");
        crate::write_secret(&secret_file, secret.as_bytes()).context("writing the cluster's secret")?;
        let reach = [format!("--etcd={}", etcd.endpoint), format!("--secret-file={}", secret_file.display())];
        let made = Command::new(std::env::current_exe().context("finding this program's own file")?)
            .args(["cluster", "init", size.name, "--compact-etcd"])
            .args(&reach)
            .arg(format!("--shards={}", size.shards))
            .arg(format!("--replicas={}", size.copies))
            .arg(format!("--ttl={}us", size.ttl.as_micros()))
            .env_remove("ONEREAD_ETCD_USER")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .context("making the cluster")?;
        ensure!(made.success(), "`oneread cluster init` failed; it says why above");
        let (config, _) = runtime.block_on(store.read_config())?;
        let mut processes = Vec::new();
        for number in 0..size.nodes {
            let mut arguments = vec![
                format!("--cluster={name}"),
                format!("--node-name=n{number}"),
                format!("--max-memory={MEMORY}"),
            ];
            arguments.extend_from_slice(&reach);
            processes.push(ServerChild::spawn_on_file_in(Folder::in_memory()?, &arguments)?);
            began();
        }
        let secret = Secret::new(secret.as_bytes())?;
        let mut cluster =
            Cluster { config, nodes: Vec::new(), name, secret, store, runtime, etcd, _folder: folder };
        let known = |seen: &Seen| seen.nodes.len() == size.nodes;
        let seen = cluster.until(PATIENCE, known, |seen| {
            format!("{} of {} nodes are in etcd", seen.nodes.len(), size.nodes)
        })?;
        for (number, process) in processes.into_iter().enumerate() {
            let called = format!("n{number}");
            let id = seen.nodes.iter().find(|(_, key)| key.about.name == called).map(|(id, _)| *id);
            cluster.nodes.push(NodeProcess { process, id: id.context("a node has another name in etcd")? });
        }
        cluster.until_settled(|| Ok(()))?;
        Ok(cluster)
    }

    /// A client of its own, with leases of its own.
    ///
    /// # Errors
    /// etcd does not answer, or the client's threads cannot be started.
    pub fn client(&self) -> Result<ClusterClient> {
        let mut options = ClusterOptions::default();
        options.secret = self.secret.clone();
        options.deadline = options.deadline.max(5 * self.ttl());
        Ok(ClusterClient::connect(self.name.clone(), EtcdOptions::new([&self.etcd.endpoint]), options)?)
    }

    /// A client of one node's table, with the options that a client of the cluster READs it with.
    ///
    /// # Errors
    /// etcd does not know the node, or it does not answer.
    pub fn table(&self, node: NodeId) -> Result<oneread::Client> {
        let seen = self.look()?;
        let about = &seen.nodes.get(&node).context("the node is not in etcd")?.about;
        let address = about.table.first().context("the node names no address of its table")?.parse()?;
        let options = ClusterOptions::default().tables.token(self.secret.token());
        Ok(oneread::Client::connect_with(&address, options)?)
    }

    /// How long a node may be silent until others take over.
    pub fn ttl(&self) -> Duration {
        Duration::from_micros(self.config.timing.ttl)
    }

    /// What etcd has.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn look(&self) -> Result<Seen> {
        let (_, read) = self.runtime.block_on(self.store.read_config())?;
        Ok(Seen::of(&read))
    }

    /// Changes what an operator wants.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn wish(&self, change: impl Fn(&mut Wishes)) -> Result<()> {
        self.runtime.block_on(self.store.change_wishes(change))?;
        Ok(())
    }

    /// Waits until something is so. `tell` says what is missing.
    ///
    /// # Errors
    /// It was not so for so long, or etcd does not answer.
    pub fn until(
        &self,
        longest: Duration,
        is_so: impl Fn(&Seen) -> bool,
        tell: impl Fn(&Seen) -> String,
    ) -> Result<Seen> {
        let begun = Instant::now();
        loop {
            let seen = self.look()?;
            if is_so(&seen) {
                return Ok(seen);
            }
            ensure!(
                begun.elapsed() < longest,
                "the cluster did not come to rest within {}: {}; RUST_LOG=debug makes its nodes say why",
                show::time(longest),
                tell(&seen)
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until all nodes live, and each shard is where it should be with all its copies, and stays so for as long as a
    /// primary waits for a standby's answer. Returns since when it was so. `check` ends the wait by an error.
    ///
    /// # Errors
    /// `check`'s, or it was not so within a minute and some TTLs, or etcd does not answer.
    pub fn until_settled(&self, check: impl Fn() -> Result<()>) -> Result<Instant> {
        let (nodes, copies) = (self.nodes.len(), self.config.replicas);
        let longest = PATIENCE + 15 * self.ttl();
        let begun = Instant::now();
        let mut since = None;
        loop {
            check()?;
            let unsettled = self.look()?.unsettled(nodes, copies);
            if unsettled > 0 {
                since = None;
                ensure!(
                    begun.elapsed() < longest,
                    "{} did not get all copies where they should be within {}; RUST_LOG=debug makes the nodes say why",
                    show::counted(unsettled as u64, "shard"),
                    show::time(longest)
                );
            } else {
                let now = Instant::now();
                let since = *since.get_or_insert(now);
                if now - since > Duration::from_micros(self.config.timing.late) {
                    return Ok(since);
                }
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Connects once etcd answers.
fn connect(runtime: &Runtime, name: &ClusterName, etcd: &mut Etcd) -> Result<EtcdStore> {
    let begun = Instant::now();
    loop {
        let answered = runtime.block_on(async {
            let store = EtcdStore::connect(name.clone(), EtcdOptions::new([&etcd.endpoint])).await?;
            match store.read_config().await {
                Ok(_) | Err(EtcdError::NotThere { .. }) => Ok(store),
                Err(error) => Err(error),
            }
        });
        match answered {
            Ok(store) => return Ok(store),
            Err(error) => {
                let has_ended = etcd.child.try_wait()?.is_some();
                ensure!(
                    !has_ended && begun.elapsed() < PATIENCE,
                    "etcd did not begin to answer ({error}); start it by hand to see why"
                );
                std::thread::sleep(LOOK);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread_cluster::core::state::NodeIds;

    /// A shard is where it should be only with the primary and all the copies that the ranking wants, of nodes that live.
    #[test]
    fn shards_settle() {
        let key = |alive| NodeKey { life: 1, number: 1, alive, about: Default::default() };
        let (a, b, c) = (NodeId(1), NodeId(2), NodeId(3));
        let nodes = BTreeMap::from([(a, key(true)), (b, key(true)), (c, key(true))]);
        let wishes = Wishes { drained: NodeIds::of(c), pinned: BTreeMap::from([(0, b)]) };
        let both = NodeIds::of(a).with(b);
        let state = |primary, in_sync: &NodeIds| ShardState {
            revision: 3,
            epoch: 2,
            primary: Some(primary),
            in_sync: in_sync.clone(),
            waits: false,
        };
        let seen = |state| Seen { nodes: nodes.clone(), shards: vec![state], wishes: wishes.clone() };
        assert_eq!(seen(state(b, &both)).unsettled(3, 2), 0);
        for wrong in [state(a, &both), state(b, &NodeIds::of(b)), state(b, &both.clone().with(c))] {
            assert_eq!(seen(wrong.clone()).unsettled(3, 2), 1, "{wrong:?}");
        }
        let mut one_is_dead = seen(state(b, &both));
        one_is_dead.nodes.insert(c, key(false));
        assert_eq!(one_is_dead.unsettled(3, 2), 1);
        let it = seen(state(b, &both));
        assert_eq!((it.served_by(b), it.served_by(a)), (vec![(0, 2)], vec![]));
        assert!(it.are_taken_over(&[(0, 1)]) && !it.are_taken_over(&[(0, 2)]));
    }
}
