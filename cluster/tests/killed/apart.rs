//! A cluster under failures, with each process on a host of its own: three members of etcd, four nodes, two clients,
//! and this test.
//!
//! Hosts are network namespaces of [`net`](super::net): packets come late, some are lost, and each link can be cut, also in
//! one direction. Tables are READ over TCP, by messages that the server answers: a stopped node answers none, but
//! one that is cut off from all others answers the client that is cut off with it. Clocks of nodes and clients
//! go at rates of their own, within what is configured.
//!
//! It takes root and Linux, and is a long run:
//!
//! ```sh
//! W="cargo test --profile checked -p oneread-cluster --features net,faults --test killed"
//! ONEREAD_LONG=1 ONEREAD_SECONDS=600 $W histories_have_an_order_apart -- --nocapture
//! ```

use super::net::{self, Net, Quality};
use super::*;

const ETCDS: usize = 3;
const NODES: usize = 4;
const HOSTS: usize = ETCDS + NODES + CLIENTS + 1;
/// Of the last host: this test.
const TEST: usize = HOSTS - 1;
/// Ports of a node: of its table, and for requests.
const TABLE: u16 = 7471;
pub const REQUESTS: u16 = 7480;
/// Rates of clocks, in millionths: as far from true time as they may be, or not at all.
pub const CLOCKS: [i32; 3] = [-999, 0, 999];
/// Of each member of etcd: its file has room for so much.
const QUOTA: u64 = 16 << 20;
/// Of each direction of a link, at worst.
const WORST: Quality =
    Quality { delay: Duration::from_micros(1_000), jitter: Duration::from_micros(1_000), loss: 10_000 };
/// More of a million that are lost while very many are.
const VERY_MANY: u32 = 150_000;

const FAULTS_APART: [Fault; 20] = [
    Fault::KillNode,
    Fault::KillNodes,
    Fault::LoseNode,
    Fault::LeaveNode,
    Fault::StopNode,
    Fault::CutNode,
    Fault::StopEtcd,
    Fault::KillEtcd,
    Fault::StopClient,
    Fault::CutClient,
    Fault::CutNodeAndClient,
    Fault::CutNodes,
    Fault::CutNodeFromMember,
    Fault::CutClientFromNode,
    Fault::CutEtcd,
    Fault::LoseQuorum,
    Fault::CompactEtcd,
    Fault::LosePackets,
    Fault::MoveShard,
    Fault::DrainNode,
];

/// Where it runs.
pub fn host(whom: Whom) -> usize {
    match whom {
        Whom::Etcd(member) => member,
        Whom::Node(node) => ETCDS + node,
        Whom::Client(client) => ETCDS + NODES + client,
    }
}

/// Where a node's table is READ.
pub fn table(host: &str) -> Address {
    format!("tcp://{host}:{TABLE}").parse().unwrap()
}

impl Cluster {
    fn start_apart(seed: u64, rule: Option<String>) -> Cluster {
        take_pace(1);
        let net = Net::new(HOSTS, WORST, Random(seed ^ 0x5157_17c4));
        let folder = tempfile::tempdir().unwrap();
        let hosts: Vec<String> = (0..ETCDS).map(|member| net::address(host(Whom::Etcd(member)))).collect();
        let start = |member| {
            let program = net.program(host(Whom::Etcd(member)), "etcd");
            Etcd::start_member(
                folder.path(),
                &hosts,
                member,
                program,
                &[&format!("--quota-backend-bytes={QUOTA}")],
            )
        };
        let etcds: Vec<Etcd> = (0..ETCDS).map(start).collect();
        until("etcd has a leader", || etcds.iter().any(|etcd| etcd.leads() == Some(true)));
        let cluster = Cluster::start_at(Place::Apart(net), folder, etcds, NODES, seed, rule);
        // An hour's beats would fill the quota.
        cluster.runtime.block_on(cluster.store.let_nodes_compact(true)).unwrap();
        cluster
    }

    fn net(&self) -> &Net {
        match &self.place {
            Place::Apart(net) => net,
            Place::Here { .. } => panic!("that is for hosts apart"),
        }
    }

    /// The member of etcd that leads, if it is one of those that nothing is wrong with. Counts changes.
    pub fn see_leader(&mut self) -> Option<usize> {
        if self.etcds.len() == 1 {
            return None;
        }
        let well: Vec<usize> = (0..ETCDS).filter(|member| self.is_well(Whom::Etcd(*member))).collect();
        let leader = well.into_iter().find(|member| self.etcds[*member].leads() == Some(true));
        if let Some(new) = leader.filter(|_| leader != self.leader) {
            self.tell(format!("etcd {new} leads"));
            self.count("leader changes", u64::from(self.leader.is_some()));
            self.leader = Some(new);
        }
        leader
    }

    /// Cuts links for some time.
    fn cut_links(&mut self, links: Vec<(usize, usize)>, whom: Whom, time: Duration) {
        links.iter().for_each(|(from, to)| self.net().cut(*from, *to, true));
        self.mend_in(time, Mend::Join(self.cuts.len(), whom));
        self.cuts.push(links);
    }

    /// Both directions of a link, or any one of them.
    fn both_or_one(&mut self, one: usize, other: usize) -> Vec<(usize, usize)> {
        match self.random.below(4) {
            0 => vec![(one, other)],
            1 => vec![(other, one)],
            _ => vec![(one, other), (other, one)],
        }
    }

    pub fn fault_apart(&mut self, fault: Fault, long: Duration) -> Option<()> {
        match fault {
            Fault::CutNodeAndClient => {
                // Others have time to take over.
                let long = long.max(paced(TTL * 3 / 2));
                let (node, client) = (self.any_primary()?, self.any_client()?);
                self.tell(format!("node {node} and client {client} reach each other only, for {long:?}"));
                let (aside, whom) = ([host(Whom::Node(node)), host(Whom::Client(client))], Whom::Node(node));
                let others: Vec<usize> = (0..TEST).filter(|other| !aside.contains(other)).collect();
                let both = |one| others.iter().flat_map(move |other| [(one, *other), (*other, one)]);
                let links = aside.into_iter().flat_map(both).collect();
                self.cut_links(links, whom, long);
            }
            Fault::CutNodes => {
                let one = self.any_primary()?;
                let other = (one + 1 + self.random.below(NODES - 1)) % NODES;
                let links = self.both_or_one(host(Whom::Node(one)), host(Whom::Node(other)));
                self.tell(format!("nodes {one} and {other}: {links:?} are cut for {long:?}"));
                self.cut_links(links, Whom::Node(one), long);
            }
            Fault::CutNodeFromMember => {
                let node = self.any_primary()?;
                let member = self.see_leader().filter(|_| self.random.below(2) == 0);
                let member = member.unwrap_or(self.random.below(ETCDS));
                let links = self.both_or_one(host(Whom::Node(node)), host(Whom::Etcd(member)));
                self.tell(format!("node {node} and etcd {member}: {links:?} are cut for {long:?}"));
                self.cut_links(links, Whom::Node(node), long);
            }
            Fault::CutClientFromNode => {
                let (node, client) = (self.any_primary()?, self.any_client()?);
                let links = self.both_or_one(host(Whom::Client(client)), host(Whom::Node(node)));
                self.tell(format!("client {client} and node {node}: {links:?} are cut for {long:?}"));
                self.cut_links(links, Whom::Client(client), long);
            }
            Fault::CutEtcd => {
                let member = self.any_etcd()?;
                self.tell(format!("etcd {member} does not reach others for {long:?}"));
                let others = (0..ETCDS).filter(|other| *other != member);
                let links = others.flat_map(|other| [(member, other), (other, member)]).collect();
                self.cut_links(links, Whom::Etcd(member), long);
            }
            Fault::LoseQuorum => {
                let first = self.any_etcd()?;
                let second = (first + 1 + self.random.below(ETCDS - 1)) % ETCDS;
                if !self.is_well(Whom::Etcd(second)) {
                    return None;
                }
                let is_killed = self.random.below(2) == 0;
                self.stop_etcd(first, is_killed, long);
                let time = self.random.between(200, 4_000);
                self.stop_etcd(second, is_killed, time);
            }
            Fault::CompactEtcd => {
                let (_, read) = self.runtime.block_on(self.store.read_config()).ok()?;
                let endpoints: Vec<String> = self.etcds.iter().map(Etcd::endpoint).collect();
                let compaction = Command::new("etcdctl")
                    .env("ETCDCTL_API", "3")
                    .args(["--command-timeout=2s", "--endpoints", &endpoints.join(",")])
                    .args(["compaction", &read.revision.to_string()])
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status();
                compaction.ok().filter(ExitStatus::success)?;
                self.tell(format!("etcd forgets what was before {}", read.revision));
            }
            Fault::LosePackets => {
                let host = self.random.below(TEST);
                self.tell(format!("host {host} loses very many packets for {long:?}"));
                self.net().lose(host, VERY_MANY);
                self.mend_in(long, Mend::LoseFewer(host));
            }
            other => panic!("{other:?} is not for hosts apart"),
        }
        Some(())
    }

    pub fn mend_apart(&mut self, mend: Mend) {
        match mend {
            Mend::Join(cut, _) => {
                self.cuts[cut].iter().for_each(|(from, to)| self.net().cut(*from, *to, false));
            }
            Mend::LoseFewer(host) => self.net().lose(host, 0),
            other => panic!("{other:?} is not for hosts apart"),
        }
    }
}

/// Whether this is to run, and can.
fn is_wanted() -> bool {
    let why = if std::env::var_os("ONEREAD_LONG").is_none() {
        Some("this is a long run (ONEREAD_LONG=1)".to_owned())
    } else {
        net::missing()
    };
    if let Some(why) = &why {
        eprintln!("not run: {why}");
    }
    why.is_none() && has_etcd()
}

/// As `histories_have_an_order`, between hosts.
#[test]
fn histories_have_an_order_apart() {
    if !is_wanted() {
        return;
    }
    let _one = one_at_a_time();
    let time = Duration::from_secs(given("ONEREAD_SECONDS").unwrap_or(60));
    let seed = given("ONEREAD_SEED").unwrap_or_else(now);
    println!("ONEREAD_SEED={seed}");
    let mut cluster = Cluster::start_apart(seed, given("ONEREAD_RULE"));
    cluster.run(time, &FAULTS_APART, true);
    let changes = cluster.counts.get("leader changes").copied().unwrap_or(0);
    assert!(changes > 0, "etcd had one leader all the time");
    let space = cluster.runtime.block_on(cluster.store.space()).unwrap();
    println!("etcd: {space:?}");
    assert!(space.alarms.is_empty() && space.quota_bytes == Some(QUOTA) && space.oldest > 1, "{space:?}");
}

/// A broken rule is noticed, between hosts, too.
#[cfg(feature = "faults")]
#[test]
fn a_broken_rule_is_found_apart() {
    if !is_wanted() {
        return;
    }
    let _one = one_at_a_time();
    let (seed, rule) = broken_rule();
    let is_any = given::<String>("ONEREAD_FAULTS").is_some();
    let faults: &[Fault] = if is_any { &FAULTS_APART } else { &[Fault::CutNodeAndClient] };
    Cluster::start_apart(seed, Some(rule)).run_until_wrong(faults, 5 * common::SOON);
}
