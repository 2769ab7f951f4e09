//! The calls of [`core::etcd`](crate::core::etcd), made to a real etcd.
//!
//! The keys are `/oneread/<cluster>/config`, `adoption`, `wishes`, `compaction`, `nodes/<node>` (beats),
//! `abouts/<node>` and `shards/<shard>`, the values JSON.

mod error;
mod members;
mod name;
mod operator;
mod seen;
mod space;

use crate::core::etcd::{At, CallId, Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use crate::core::state::{Adoption, ClusterConfig, NodeAbout, NodeId, NodeKey, ShardIx};
pub use error::EtcdError;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, EventType, GetOptions, GetResponse, Identity,
    KeyValue, ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use members::{Again, Members, told};
use name::FORM;
pub use name::{ClusterName, ClusterNameError};
use oneread::internals::files;
pub use operator::LostShards;
use rustc_hash::FxHashMap;
use seen::Seen;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
pub use space::{Compaction, CompactionKey, EtcdSpace, KEPT, SeenBeat};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// The most operations of a transaction. etcd takes 128 by default.
const OPS_MAX: usize = 100;
/// When a watch was silent for this long, it asks etcd for its progress. It may then be silent for as long again.
const WATCH_SILENCE: Duration = Duration::from_secs(3);
/// Time between two checks whether a connection lives. etcd hangs up on a client that checks more often than every 5 s,
/// or while no call is under way (`--grpc-keepalive-min-time`).
const KEEP_ALIVE: Duration = Duration::from_secs(6);

/// The form of a configuration.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    form: u32,
}

/// A configuration, as it is stored.
#[derive(Serialize, Deserialize)]
struct Formed<C> {
    form: u32,
    #[serde(flatten)]
    config: C,
}

/// A node's key, as it is stored eight times a TTL, with how far its watch is. The part that others need to know of the
/// node changes rarely, and has a key of its own. No node has etcd forget later revisions (docs/CLUSTER.md, "etcd's
/// space").
#[derive(Serialize, Deserialize)]
struct Beat {
    life: u64,
    number: u64,
    alive: bool,
    #[serde(default)]
    seen: i64,
}

/// The last known second parts of nodes' keys.
type Abouts = Mutex<FxHashMap<NodeId, NodeAbout>>;

/// A key, or the second part of a node's key.
enum Part {
    Key(EtcdKey),
    About(NodeId),
}

/// How to reach an etcd.
#[derive(Clone)]
#[non_exhaustive]
pub struct EtcdOptions {
    /// URLs of its members, as `http://host:2379`. One that answers is enough.
    pub endpoints: Vec<String>,
    /// A user and its password, if etcd asks for one.
    pub user: Option<(String, Zeroizing<String>)>,
    /// For `https`: files in PEM.
    pub tls: Option<EtcdTls>,
    /// Longest time for one call.
    pub timeout: Duration,
}

/// Files for TLS with an etcd, in PEM.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The authority that has signed etcd's certificate.
    pub ca: PathBuf,
    /// The certificate to show, with its key, if etcd asks for one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("user", &user)
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl EtcdOptions {
    /// An etcd with these members, without a user or TLS.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdOptions {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        EtcdOptions { endpoints, user: None, tls: None, timeout: Duration::from_secs(2) }
    }
}

/// A cluster's keys in an etcd. Clones share its connections.
#[derive(Clone)]
pub struct EtcdStore {
    members: Arc<Members>,
    name: ClusterName,
    /// How far its watch is. The node's own beats say so.
    seen: Arc<Seen>,
    abouts: Arc<Abouts>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({} at {})", self.name, self.members.names())
    }
}

impl EtcdStore {
    /// Opens a cluster's keys. The first call shows whether etcd answers.
    ///
    /// # Errors
    /// [`EtcdError`]: the options are wrong, or the user is.
    pub async fn connect(name: ClusterName, options: EtcdOptions) -> Result<EtcdStore, EtcdError> {
        let EtcdOptions { endpoints, user, tls, timeout: within } = options;
        // Lists as people write them: with spaces, and a comma at the end.
        let named = endpoints.iter().map(|endpoint| endpoint.trim());
        let endpoints: Vec<String> = named.filter(|named| !named.is_empty()).map(str::to_owned).collect();
        if endpoints.is_empty() {
            return Err(EtcdError::NoEndpoint);
        }
        for endpoint in &endpoints {
            check_endpoint(endpoint, tls.is_some())
                .map_err(|why| EtcdError::Endpoint { endpoint: endpoint.clone(), why })?;
        }
        // A call may take its time, but dead connections are noticed.
        let mut how = ConnectOptions::new()
            .with_keep_alive(KEEP_ALIVE, WATCH_SILENCE)
            .with_keep_alive_while_idle(false)
            // A member that is cut off from the others then refuses calls, and is not silent.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let has_user = user.is_some();
        if let Some((user, password)) = user {
            how = how.with_user(user, password.as_str());
        }
        if let Some(tls) = tls {
            how = how.with_tls(tls_options(&tls)?);
        }
        let members = Arc::new(Members::new(endpoints, how, within));
        if has_user {
            // Checks that the user is let in.
            members.ask(Again::Always, |_| async { Ok(()) }).await?;
        }
        Ok(EtcdStore { members, name, seen: Arc::default(), abouts: Arc::default() })
    }

    /// The cluster.
    pub fn name(&self) -> &ClusterName {
        &self.name
    }

    fn prefix(&self) -> String {
        format!("/oneread/{}/", self.name)
    }

    fn key(&self, key: EtcdKey) -> String {
        let prefix = self.prefix();
        match key {
            EtcdKey::Config => format!("{prefix}config"),
            EtcdKey::Adoption => format!("{prefix}adoption"),
            EtcdKey::Wishes => format!("{prefix}wishes"),
            EtcdKey::Node(node) => format!("{prefix}nodes/{node}"),
            EtcdKey::Shard(shard) => format!("{prefix}shards/{shard}"),
        }
    }

    fn about_key(&self, node: NodeId) -> String {
        format!("{}abouts/{node}", self.prefix())
    }

    fn abouts(&self) -> MutexGuard<'_, FxHashMap<NodeId, NodeAbout>> {
        self.abouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: it is a later version's key, or another program's.
    fn part(&self, key: &[u8]) -> Option<Part> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix())?;
        match rest.split_once('/') {
            Some(("abouts", node)) => NodeId::try_from(node.to_owned()).ok().map(Part::About),
            _ => self.parse(key).map(Part::Key),
        }
    }

    /// Parses a key. `None`: it is a later version's, another program's, or the second part of a node's.
    fn parse(&self, key: &[u8]) -> Option<EtcdKey> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix())?;
        match rest.split_once('/') {
            None if rest == "config" => Some(EtcdKey::Config),
            None if rest == "adoption" => Some(EtcdKey::Adoption),
            None if rest == "wishes" => Some(EtcdKey::Wishes),
            Some(("nodes", node)) => NodeId::try_from(node.to_owned()).ok().map(EtcdKey::Node),
            // Only the spelling of this version: no sign, no leading zeros.
            Some(("shards", shard)) => {
                let number = shard.parse::<ShardIx>().ok().filter(|number| number.to_string() == shard);
                number.map(EtcdKey::Shard)
            }
            _ => None,
        }
    }

    /// Takes the second parts of nodes' keys. To be called before the beats that come with them.
    fn learn_abouts<'k>(&self, kvs: impl IntoIterator<Item = &'k KeyValue>) {
        for kv in kvs {
            let Some(Part::About(node)) = self.part(kv.key()) else { continue };
            match self.value(kv) {
                Ok(about) => drop(self.abouts().insert(node, about)),
                // If it is this node's, it is written again.
                Err(error) => {
                    tracing::warn!(%error, "what a node says of itself is left out");
                    self.abouts().remove(&node);
                }
            }
        }
    }

    /// An entry. `None`: its key is not known.
    fn entry(&self, kv: &KeyValue) -> Result<Option<Entry>, EtcdError> {
        let Some(Part::Key(key)) = self.part(kv.key()) else { return Ok(None) };
        let value = match key {
            EtcdKey::Config => EtcdValue::Config(self.config(kv)?),
            EtcdKey::Adoption => EtcdValue::Adoption(self.value(kv)?),
            EtcdKey::Wishes => EtcdValue::Wishes(self.value(kv)?),
            EtcdKey::Node(node) => {
                let Beat { life, number, alive, .. } = self.value(kv)?;
                let about = self.abouts().get(&node).cloned().unwrap_or_default();
                EtcdValue::Node(NodeKey { life, number, alive, about })
            }
            EtcdKey::Shard(_) => EtcdValue::Shard(self.value(kv)?),
        };
        Ok(Some(Entry { key, value: Some(value), at: kv.mod_revision() }))
    }

    fn config(&self, kv: &KeyValue) -> Result<ClusterConfig, EtcdError> {
        match self.value(kv)? {
            Form { form: FORM } => Ok(self.value::<Formed<ClusterConfig>>(kv)?.config),
            Form { form } => Err(EtcdError::Form { name: self.name.clone(), form }),
        }
    }

    fn value<V: DeserializeOwned>(&self, kv: &KeyValue) -> Result<V, EtcdError> {
        serde_json::from_slice(kv.value()).map_err(|error| EtcdError::Value {
            key: String::from_utf8_lossy(kv.key()).into_owned(),
            why: error.to_string(),
        })
    }

    /// Makes a call once. An error does not say whether a transaction was made.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn call(&self, call: CallId, what: EtcdCall) -> Result<EtcdAnswer, EtcdError> {
        match what {
            EtcdCall::Read => self.read(call).await,
            EtcdCall::Transaction { adoption, compare, put } => {
                let mut keys: Vec<EtcdKey> = compare.iter().map(|(key, _)| *key).collect();
                keys.push(EtcdKey::Adoption);
                let mut when = vec![self.is_adopted(&adoption)];
                when.extend(compare.iter().map(|(key, at)| self.is_of(*key, *at)));
                let puts = put.iter().flat_map(|(key, value)| self.put(*key, value));
                self.transact(call, when, puts.collect(), &keys).await
            }
        }
    }

    /// The value is compared, and not its revision: see [`EtcdCall::Transaction`].
    fn is_adopted(&self, adoption: &Adoption) -> Compare {
        Compare::value(self.key(EtcdKey::Adoption), CompareOp::Equal, json(adoption))
    }

    fn is_of(&self, key: EtcdKey, at: At) -> Compare {
        Compare::mod_revision(self.key(key), CompareOp::Equal, at)
    }

    /// The operations that put a value. The second part of a node's key is put only if etcd has another one.
    fn put(&self, key: EtcdKey, value: &EtcdValue) -> SmallVec<[TxnOp; 2]> {
        let mut ops = SmallVec::new();
        if let (EtcdKey::Node(node), EtcdValue::Node(NodeKey { about, .. })) = (key, value)
            && self.abouts().get(&node) != Some(about)
        {
            ops.push(TxnOp::put(self.about_key(node), json(about), None));
        }
        let json = match value {
            EtcdValue::Config(config) => json(&Formed { form: FORM, config }),
            EtcdValue::Adoption(adoption) => json(adoption),
            EtcdValue::Wishes(wishes) => json(wishes),
            EtcdValue::Node(NodeKey { life, number, alive, .. }) => {
                json(&Beat { life: *life, number: *number, alive: *alive, seen: self.seen.revision() })
            }
            EtcdValue::Shard(state) => json(state),
        };
        ops.push(TxnOp::put(self.key(key), json, None));
        ops
    }

    /// A transaction, whose answer has these keys as they are afterwards.
    async fn transact(
        &self,
        call: CallId,
        when: Vec<Compare>,
        mut then: Vec<TxnOp>,
        keys: &[EtcdKey],
    ) -> Result<EtcdAnswer, EtcdError> {
        // The second parts of nodes' keys come behind all keys.
        let abouts = keys.iter().filter_map(|key| match key {
            EtcdKey::Node(node) => Some(self.about_key(*node)),
            _ => None,
        });
        let all = keys.iter().map(|key| self.key(*key)).chain(abouts);
        let gets: Vec<TxnOp> = all.map(|key| TxnOp::get(key, None)).collect();
        let puts = then.len();
        then.extend(gets.iter().cloned());
        let txn = Txn::new().when(when).and_then(then).or_else(gets);
        let txn = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        };
        let (_, answer) = self.members.ask(Again::IfNotMade, txn).await?;
        let is_done = answer.succeeded();
        let (etcd, revision) = self.header(answer.header())?;
        let mut entries = Vec::with_capacity(keys.len());
        let got = answer.op_responses().into_iter().skip(if is_done { puts } else { 0 });
        let got = got.map(|got| match got {
            TxnOpResponse::Get(got) => got.kvs().first().cloned(),
            _ => None,
        });
        let got: Vec<Option<KeyValue>> = got.collect();
        self.learn_abouts(got.iter().flatten());
        for (key, kv) in keys.iter().zip(&got) {
            let entry = kv.as_ref().map(|kv| self.entry(kv)).transpose()?.flatten();
            entries.push(entry.unwrap_or(Entry { key: *key, value: None, at: 0 }));
        }
        Ok(EtcdAnswer { call, is_watched: false, etcd, revision, is_done, entries })
    }

    async fn get(&self, key: String, options: GetOptions) -> Result<GetResponse, EtcdError> {
        let get = |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().get(key, Some(options)).await }
        };
        Ok(self.members.ask(Again::Always, get).await?.1)
    }

    /// etcd's cluster id.
    async fn id(&self) -> Result<u64, EtcdError> {
        let answer = self.get(self.key(EtcdKey::Config), GetOptions::new()).await?;
        Ok(self.header(answer.header())?.0)
    }

    /// Reads all keys. Never from a member that may be behind.
    async fn read(&self, call: CallId) -> Result<EtcdAnswer, EtcdError> {
        let answer = self.get(self.prefix(), GetOptions::new().with_prefix()).await?;
        let (etcd, revision) = self.header(answer.header())?;
        let mut entries = Vec::with_capacity(answer.kvs().len());
        // Parts that are not there any more are forgotten.
        self.abouts().clear();
        self.learn_abouts(answer.kvs());
        for kv in answer.kvs() {
            match self.entry(kv) {
                Ok(Some(entry)) => entries.push(entry),
                // A bad node must not keep all others from knowing of each other.
                Err(error) if matches!(self.parse(kv.key()), Some(EtcdKey::Node(_))) => {
                    tracing::warn!(%error, "a node is left out");
                }
                Err(error) => return Err(error),
                Ok(None) if matches!(self.part(kv.key()), Some(Part::About(_))) => {}
                Ok(None) => {
                    tracing::debug!(key = %String::from_utf8_lossy(kv.key()), "a key of another version")
                }
            }
        }
        Ok(EtcdAnswer { call, is_watched: false, etcd, revision, is_done: true, entries })
    }

    fn header(&self, header: Option<&ResponseHeader>) -> Result<(u64, i64), EtcdError> {
        header.map(|header| (header.cluster_id(), header.revision())).ok_or_else(|| EtcdError::Call {
            endpoints: self.members.names(),
            why: "its answer does not say which etcd it is".into(),
        })
    }

    /// Delivers each change after a reading, until `deliver` refuses one, or the watch ends. Then everything has to be
    /// read again.
    pub async fn watch(
        &self,
        read: &EtcdAnswer,
        mut deliver: impl FnMut(EtcdAnswer) -> bool + Send,
    ) -> EtcdError {
        match self.watch_on(read, &mut deliver).await {
            Ok(()) => EtcdError::Watch("nobody takes what it brings".into()),
            Err(error) => error,
        }
    }

    async fn watch_on(
        &self,
        read: &EtcdAnswer,
        deliver: &mut (impl FnMut(EtcdAnswer) -> bool + Send),
    ) -> Result<(), EtcdError> {
        let options = WatchOptions::new().with_prefix().with_start_revision(read.revision + 1);
        let watch = |client: Client| {
            let (options, prefix) = (options.clone(), self.prefix());
            async move { client.watch_client().watch(prefix, Some(options)).await }
        };
        let (at, mut stream) = self.members.ask(Again::Always, watch).await?;
        self.seen.begin(read.etcd, read.revision);
        let mut is_asked = false;
        loop {
            let message = match timeout(WATCH_SILENCE, stream.message()).await {
                Ok(message) => message.map_err(|error| EtcdError::Watch(told(&error)))?,
                Err(_) if is_asked => {
                    self.members.leave(at);
                    return Err(EtcdError::Watch("it is silent".into()));
                }
                Err(_) => {
                    is_asked = true;
                    self.members.in_time(stream.request_progress()).await?;
                    continue;
                }
            };
            is_asked = false;
            let Some(message) = message else { return Err(EtcdError::Watch("the stream has ended".into())) };
            let (etcd, revision) = self.header(message.header())?;
            // A restored etcd counts from its backup on, and would deliver nothing until it has caught up.
            if etcd != read.etcd {
                return Err(EtcdError::Watch("etcd is another one".into()));
            }
            if message.compact_revision() > 0 {
                return Err(EtcdError::Compacted);
            }
            if message.canceled() {
                return Err(EtcdError::Watch(format!("etcd has ended it: {}", message.cancel_reason())));
            }
            let mut entries = Vec::new();
            // Second parts come with the beat that has brought them.
            let puts = message.events().iter().filter(|event| event.event_type() == EventType::Put);
            self.learn_abouts(puts.filter_map(|event| event.kv()));
            for event in message.events() {
                let Some(kv) = event.kv() else { continue };
                if let (EventType::Delete, Some(Part::About(node))) =
                    (event.event_type(), self.part(kv.key()))
                {
                    self.abouts().remove(&node);
                    continue;
                }
                let entry = match event.event_type() {
                    EventType::Put => self.entry(kv)?,
                    EventType::Delete => {
                        self.parse(kv.key()).map(|key| Entry { key, value: None, at: kv.mod_revision() })
                    }
                };
                entries.extend(entry);
            }
            let seen =
                message.events().iter().filter_map(|event| event.kv()).map(KeyValue::mod_revision).max();
            if entries.is_empty() {
                // Keys of others; or a report of progress, which does not count at the beginning.
                let told = if message.created() { 0 } else { revision };
                self.seen.went_on(etcd, seen.unwrap_or(told));
                continue;
            }
            let answer =
                EtcdAnswer { call: read.call, is_watched: true, etcd, revision, is_done: true, entries };
            if !deliver(answer) {
                return Ok(());
            }
            self.seen.went_on(etcd, seen.unwrap_or(0));
        }
    }

    /// Reads the cluster's configuration, and everything else that etcd has of the cluster.
    ///
    /// # Errors
    /// [`EtcdError::NotThere`], and others.
    pub async fn read_config(&self) -> Result<(ClusterConfig, EtcdAnswer), EtcdError> {
        let read = self.read(0).await?;
        match read.config().cloned() {
            Some(config) => Ok((config, read)),
            None => Err(EtcdError::NotThere { name: self.name.clone() }),
        }
    }
}

fn tls_options(tls: &EtcdTls) -> Result<TlsOptions, EtcdError> {
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(files::read(&tls.ca)?));
    if let Some((certificate, key)) = &tls.certificate {
        let key = Zeroizing::new(files::read_secret(key)?);
        options = options.identity(Identity::from_pem(files::read(certificate)?, key));
    }
    Ok(options)
}

/// The bytes of a value in etcd: always the same for the same value.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("these types have string keys only")
}

/// Whether it can be a member's URL. The error says what to do.
fn check_endpoint(endpoint: &str, has_tls: bool) -> Result<(), &'static str> {
    let rest = match (endpoint.strip_prefix("http://"), endpoint.strip_prefix("https://")) {
        (Some(_), _) if has_tls => return Err("files for TLS are given, so it must begin with https://"),
        (_, Some(_)) if !has_tls => {
            return Err("it is reached by TLS: give the file with the certificate of who has signed etcd's");
        }
        (Some(rest), _) | (_, Some(rest)) => rest,
        _ => return Err("it must begin with http:// or https://, as http://host:2379"),
    };
    let place = rest.strip_suffix('/').unwrap_or(rest);
    let host = match place.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((host, port)) if !port.ends_with(']') => {
            if port.parse::<u16>().is_err() {
                return Err("its port is none: it must be as http://host:2379");
            }
            host
        }
        _ => place,
    };
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    let is_host = !host.is_empty() && host.chars().all(is_fit);
    if is_host {
        Ok(())
    } else {
        Err("it has no host, or more than a host and a port: it must be as http://host:2379")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_members() {
        for fit in [
            "http://host:2379",
            "http://127.0.0.1:2379/",
            "http://[::1]:2379",
            "http://etcd.example.org",
            "http://[::1]",
        ] {
            assert_eq!(check_endpoint(fit, false), Ok(()), "{fit}");
            let tls = fit.replace("http:", "https:");
            assert_eq!(check_endpoint(&tls, true), Ok(()), "{tls}");
            check_endpoint(fit, true).unwrap_err();
            check_endpoint(&tls, false).unwrap_err();
        }
        let unfit = [
            "",
            "host:2379",
            "http://",
            "http://:2379",
            "http://host:",
            "http://host:port",
            "http://host:99999",
        ];
        for unfit in unfit.iter().chain(&[
            "http://ho st:2379",
            "http://host:2379/v3",
            "ftp://host",
            "http://one:2379,two:2379",
        ]) {
            check_endpoint(unfit, false).unwrap_err();
        }
    }

    #[test]
    fn names_of_clusters_have_few_letters() {
        for fit in ["a", "A.b_c-9", &"n".repeat(64)] {
            assert_eq!(fit.parse::<ClusterName>().unwrap().to_string(), fit);
        }
        for unfit in ["", "a/b", "a b", "\u{e4}", "a\n", &"n".repeat(65)] {
            unfit.parse::<ClusterName>().unwrap_err();
        }
    }
}
