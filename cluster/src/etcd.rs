//! Calls of [`core::etcd`](crate::core::etcd), made to an etcd.
//!
//! The keys are `/oneread/<cluster>/config`, `adoption`, `wishes`, `nodes/<node>` and `shards/<shard>`, the values JSON.

use crate::core::adopt;
use crate::core::etcd::{At, CallId, Entry, EtcdAnswer, EtcdCall, EtcdKey, EtcdValue};
use crate::core::placement::Wishes;
use crate::core::state::{
    Adoption, ClusterConfig, ConfigError, NodeId, NodeIds, NodeKey, Notes, ShardIx, ShardState,
};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, EventType, GetOptions,
    Identity, KeyValue, ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use oneread::error::FileError;
use oneread::internals::files;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

/// Operations of a transaction, of which etcd takes 128 unless it is told otherwise.
const OPS_MAX: usize = 100;
/// Times that an operator's change is tried again when another one was faster.
const TRIES: usize = 20;
/// A watch that brings nothing asks whether it still lives. Then it may be silent for as long again.
const WATCH_SILENCE: Duration = Duration::from_secs(3);
/// Times that a call is made again which could not be sent, and between two of them.
const MEMBER_TRIES: usize = 40;
const MEMBER_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks whether a connection lives. etcd hangs up on who looks more often than each 5 s, or while nothing is
/// asked (`--grpc-keepalive-min-time`).
const KEEP_ALIVE: Duration = Duration::from_secs(6);

/// What a cluster's configuration means: others would say that a key is in another shard. 0 was before it was written.
const FORM: u32 = 1;

/// The form of a configuration.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    form: u32,
}

/// A configuration, as it is written.
#[derive(Serialize, Deserialize)]
struct Formed<C> {
    form: u32,
    #[serde(flatten)]
    config: C,
}

/// A cluster's name: 1 to 64 letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterName(String);

/// Not a cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a cluster: that has 1 to 64 letters, digits, dots, underscores and hyphens")]
pub struct ClusterNameError(String);

impl FromStr for ClusterName {
    type Err = ClusterNameError;

    fn from_str(name: &str) -> Result<ClusterName, ClusterNameError> {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if (1..=64).contains(&name.len()) && name.chars().all(is_fit) {
            return Ok(ClusterName(name.into()));
        }
        Err(ClusterNameError(name.into()))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How to reach an etcd.
#[derive(Clone)]
#[non_exhaustive]
pub struct EtcdOptions {
    /// URLs of its members, as `http://host:2379`. One that answers is enough.
    pub endpoints: Vec<String>,
    /// A user and its password, where etcd asks for one.
    pub user: Option<(String, Zeroizing<String>)>,
    /// For `https`: files in PEM.
    pub tls: Option<EtcdTls>,
    /// Longest time for one call.
    pub timeout: Duration,
}

/// Files for TLS with an etcd, in PEM.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// Who has signed etcd's certificate.
    pub ca: PathBuf,
    /// The certificate to show, with its key, where etcd asks for one.
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

/// Why etcd could not be asked, or what is wrong with what it has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No member is named.
    #[error("no endpoint of etcd is given: name one as http://host:2379")]
    NoEndpoint,
    /// It cannot be the URL of a member.
    #[error("{endpoint:?} is no endpoint of etcd: {why}")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// What is wrong, and what to do.
        why: &'static str,
    },
    /// It asks for a user, or for another one.
    #[error(
        "etcd at {endpoints} does not let this user in ({why}): give a user with its password who may read and write keys \
         that begin with /oneread/, and none where etcd asks for none (`etcdctl auth status`)"
    )]
    Denied {
        /// All members that are named.
        endpoints: String,
        /// What it says.
        why: String,
    },
    /// A file for TLS.
    #[error("a file for TLS with etcd cannot be read: {why}{}", because(why))]
    File {
        /// What is wrong with it.
        #[from]
        why: FileError,
    },
    /// It does not answer, or refuses.
    #[error("etcd at {endpoints} could not be asked: {why}")]
    Call {
        /// All members that are named.
        endpoints: String,
        /// What is wrong.
        why: String,
    },
    /// It did not answer in time.
    #[error(
        "etcd at {endpoints} did not answer for {waited:?}: see whether most of its members run (`etcdctl endpoint status`)"
    )]
    Late {
        /// All members that are named.
        endpoints: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A watch was told that what it wants to begin with is gone.
    #[error("etcd has compacted what the watch wanted to begin with: read everything again")]
    Compacted,
    /// A watch has ended.
    #[error("the watch of etcd has ended: {0}")]
    Watch(String),
    /// A value that nobody of a cluster writes.
    #[error(
        "etcd's key {key} has a value that is none of a cluster's ({why}): remove what somebody else has put there"
    )]
    Value {
        /// The key.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nodes and clients of this version would look for its keys elsewhere.
    #[error(
        "the cluster {name} is of form {form}, and this version knows form {FORM}: go on with the version that made it, or \
         stop its nodes, remove it (`etcdctl del --prefix /oneread/{name}/`), make it again by `oneread cluster init {name}`, \
         and start its nodes by `oneread serve --fresh`"
    )]
    Form {
        /// The name.
        name: ClusterName,
        /// Its form.
        form: u32,
    },
    /// There is no such cluster.
    #[error(
        "etcd has no cluster {name}: make it by `oneread cluster init {name}`, or see whether that is its name"
    )]
    NotThere {
        /// The name.
        name: ClusterName,
    },
    /// There is one.
    #[error("etcd has a cluster {name} already: it has {} shards with {} copies each", config.shards, config.replicas)]
    Exists {
        /// The name.
        name: ClusterName,
        /// What it is.
        config: Box<ClusterConfig>,
    },
    /// It cannot be as is asked for.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Others change the same.
    #[error(
        "another operator changes the cluster {name} at the same time: see what it is by now, and try again"
    )]
    Busy {
        /// The name.
        name: ClusterName,
    },
    /// Shards name the node.
    #[error(
        "node {node} is to have {shards} shards: drain it (`oneread cluster drain`), and see that it has none before it is \
         forgotten"
    )]
    InUse {
        /// The node.
        node: NodeId,
        /// How many name it.
        shards: usize,
    },
    /// A shard is not lost.
    #[error(
        "shard {shard} is not lost: a node that has a copy of it lives, or nobody has served it yet; `oneread cluster shards` \
         shows who"
    )]
    NotLost {
        /// The shard.
        shard: ShardIx,
    },
    /// The node beats.
    #[error("node {node} runs: stop it before it is forgotten")]
    Runs {
        /// The node.
        node: NodeId,
    },
    /// The keys are good for another etcd.
    #[error(
        "this etcd was restored from a backup, or copied: what it has of the cluster {name} is good for another one; adopt \
         it by `oneread cluster adopt {name}`, when all nodes that are to go on run"
    )]
    Foreign {
        /// The name.
        name: ClusterName,
    },
    /// The keys are good for this etcd.
    #[error("there is nothing to adopt: what this etcd has of the cluster {name} is good for it")]
    NothingToAdopt {
        /// The name.
        name: ClusterName,
    },
}

/// Shards that nobody serves, and nobody will, as [`EtcdStore::lost`] has found them.
#[derive(Clone, Debug)]
pub struct LostShards {
    /// What they were.
    pub shards: BTreeMap<ShardIx, ShardState>,
    read: EtcdAnswer,
}

/// A cluster's keys in an etcd. Clones share its connections.
#[derive(Clone)]
pub struct EtcdStore {
    client: Client,
    name: ClusterName,
    endpoints: String,
    /// How many of them are named.
    members: usize,
    timeout: Duration,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({} at {})", self.name, self.endpoints)
    }
}

impl EtcdStore {
    /// A cluster's keys. Whether etcd answers, the first call shows.
    ///
    /// # Errors
    /// [`EtcdError`]: the options are wrong, or the user is.
    pub async fn connect(name: ClusterName, options: EtcdOptions) -> Result<EtcdStore, EtcdError> {
        let EtcdOptions { endpoints, user, tls, timeout: within } = options;
        if endpoints.is_empty() {
            return Err(EtcdError::NoEndpoint);
        }
        for endpoint in &endpoints {
            check_endpoint(endpoint, tls.is_some())
                .map_err(|why| EtcdError::Endpoint { endpoint: endpoint.clone(), why })?;
        }
        // A call may take its time; connections that are dead are noticed.
        let mut how = ConnectOptions::new()
            .with_connect_timeout(within)
            .with_keep_alive(KEEP_ALIVE, WATCH_SILENCE)
            .with_keep_alive_while_idle(false)
            // A member that is cut off from the others refuses, and is silent to nobody.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((user, password)) = user {
            how = how.with_user(user, password.as_str());
        }
        if let Some(tls) = tls {
            how = how.with_tls(tls_options(&tls)?);
        }
        let joined = endpoints.join(", ");
        let late = || EtcdError::Late { endpoints: joined.clone(), waited: within };
        let connect = again(endpoints.len(), || Client::connect(&endpoints, Some(how.clone())));
        let client = timeout(within, connect).await.map_err(|_| late())?;
        let client = client.map_err(|error| failed(&joined, &error))?;
        Ok(EtcdStore { client, name, endpoints: joined, members: endpoints.len(), timeout: within })
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

    /// `None`: a later version's, or somebody else's.
    fn parse(&self, key: &[u8]) -> Option<EtcdKey> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix())?;
        match rest.split_once('/') {
            None if rest == "config" => Some(EtcdKey::Config),
            None if rest == "adoption" => Some(EtcdKey::Adoption),
            None if rest == "wishes" => Some(EtcdKey::Wishes),
            Some(("nodes", node)) => NodeId::try_from(node.to_owned()).ok().map(EtcdKey::Node),
            // Written as it is here: no sign, no zeros before it.
            Some(("shards", shard)) => {
                let number = shard.parse::<ShardIx>().ok().filter(|number| number.to_string() == shard);
                number.map(EtcdKey::Shard)
            }
            _ => None,
        }
    }

    /// An entry. `None`: its key is not known.
    fn entry(&self, kv: &KeyValue) -> Result<Option<Entry>, EtcdError> {
        let Some(key) = self.parse(kv.key()) else { return Ok(None) };
        let value = match key {
            EtcdKey::Config => EtcdValue::Config(self.config(kv)?),
            EtcdKey::Adoption => EtcdValue::Adoption(self.value(kv)?),
            EtcdKey::Wishes => EtcdValue::Wishes(self.value(kv)?),
            EtcdKey::Node(_) => EtcdValue::Node(self.value(kv)?),
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

    /// Makes a call, at another member if it was certainly not sent.
    async fn ask<R, F>(&self, call: impl FnMut() -> F) -> Result<R, EtcdError>
    where
        F: Future<Output = Result<R, Error>>,
    {
        self.in_time(again(self.members, call)).await
    }

    async fn in_time<R>(&self, call: impl Future<Output = Result<R, Error>>) -> Result<R, EtcdError> {
        let endpoints = self.endpoints.clone();
        match timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(failed(&endpoints, &error)),
            Err(_) => Err(EtcdError::Late { endpoints, waited: self.timeout }),
        }
    }

    /// Makes a call, once. An error says nothing of whether a transaction was made.
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
                let puts = put.iter().map(|(key, value)| self.put(*key, value));
                self.transact(call, when, puts.collect(), &keys).await
            }
        }
    }

    /// The value is compared, not when it was written: see [`EtcdCall::Transaction`].
    fn is_adopted(&self, adoption: &Adoption) -> Compare {
        Compare::value(self.key(EtcdKey::Adoption), CompareOp::Equal, json(adoption))
    }

    fn is_of(&self, key: EtcdKey, at: At) -> Compare {
        Compare::mod_revision(self.key(key), CompareOp::Equal, at)
    }

    fn put(&self, key: EtcdKey, value: &EtcdValue) -> TxnOp {
        let json = match value {
            EtcdValue::Config(config) => json(&Formed { form: FORM, config }),
            EtcdValue::Adoption(adoption) => json(adoption),
            EtcdValue::Wishes(wishes) => json(wishes),
            EtcdValue::Node(node) => json(node),
            EtcdValue::Shard(state) => json(state),
        };
        TxnOp::put(self.key(key), json, None)
    }

    /// A transaction, which answers with these keys as they are afterwards.
    async fn transact(
        &self,
        call: CallId,
        when: Vec<Compare>,
        mut then: Vec<TxnOp>,
        keys: &[EtcdKey],
    ) -> Result<EtcdAnswer, EtcdError> {
        let gets: Vec<TxnOp> = keys.iter().map(|key| TxnOp::get(self.key(*key), None)).collect();
        let puts = then.len();
        then.extend(gets.iter().cloned());
        let txn = Txn::new().when(when).and_then(then).or_else(gets);
        let client = self.client.kv_client();
        let txn = || {
            let (mut client, txn) = (client.clone(), txn.clone());
            async move { client.txn(txn).await }
        };
        let answer = self.ask(txn).await?;
        let is_done = answer.succeeded();
        let (etcd, revision) = self.header(answer.header())?;
        let mut entries = Vec::with_capacity(keys.len());
        let got = answer.op_responses().into_iter().skip(if is_done { puts } else { 0 });
        for (key, got) in keys.iter().zip(got) {
            let TxnOpResponse::Get(got) = got else { continue };
            let entry = got.kvs().first().map(|kv| self.entry(kv)).transpose()?.flatten();
            entries.push(entry.unwrap_or(Entry { key: *key, value: None, at: 0 }));
        }
        Ok(EtcdAnswer { call, is_watched: false, etcd, revision, is_done, entries })
    }

    /// Never from a member that may be behind.
    async fn read(&self, call: CallId) -> Result<EtcdAnswer, EtcdError> {
        let options = GetOptions::new().with_prefix();
        let client = self.client.kv_client();
        let get = || {
            let (mut client, options, prefix) = (client.clone(), options.clone(), self.prefix());
            async move { client.get(prefix, Some(options)).await }
        };
        let answer = self.ask(get).await?;
        let (etcd, revision) = self.header(answer.header())?;
        let mut entries = Vec::with_capacity(answer.kvs().len());
        for kv in answer.kvs() {
            match self.entry(kv) {
                Ok(Some(entry)) => entries.push(entry),
                // One bad node must not keep all others from knowing of each other.
                Err(error) if matches!(self.parse(kv.key()), Some(EtcdKey::Node(_))) => {
                    tracing::warn!(%error, "a node is left out");
                }
                Err(error) => return Err(error),
                Ok(None) => {
                    tracing::debug!(key = %String::from_utf8_lossy(kv.key()), "a key of another version")
                }
            }
        }
        Ok(EtcdAnswer { call, is_watched: false, etcd, revision, is_done: true, entries })
    }

    fn header(&self, header: Option<&ResponseHeader>) -> Result<(u64, i64), EtcdError> {
        header.map(|header| (header.cluster_id(), header.revision())).ok_or_else(|| EtcdError::Call {
            endpoints: self.endpoints.clone(),
            why: "its answer does not say which etcd it is".into(),
        })
    }

    /// Delivers each change behind what was read, until that is refused, or the watch ends. Then everything is to be
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
        let client = self.client.watch_client();
        let watch = || {
            let (mut client, options, prefix) = (client.clone(), options.clone(), self.prefix());
            async move { client.watch(prefix, Some(options)).await }
        };
        let mut stream = self.ask(watch).await?;
        let mut is_asked = false;
        loop {
            let message = match timeout(WATCH_SILENCE, stream.message()).await {
                Ok(message) => message.map_err(|error| EtcdError::Watch(told(&error)))?,
                Err(_) if is_asked => return Err(EtcdError::Watch("it is silent".into())),
                Err(_) => {
                    is_asked = true;
                    self.in_time(stream.request_progress()).await?;
                    continue;
                }
            };
            is_asked = false;
            let Some(message) = message else { return Err(EtcdError::Watch("the stream has ended".into())) };
            let (etcd, revision) = self.header(message.header())?;
            // A restored one counts from where its backup was, and would bring nothing until it is as far.
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
            for event in message.events() {
                let Some(kv) = event.kv() else { continue };
                let entry = match event.event_type() {
                    EventType::Put => self.entry(kv)?,
                    EventType::Delete => {
                        self.parse(kv.key()).map(|key| Entry { key, value: None, at: kv.mod_revision() })
                    }
                };
                entries.extend(entry);
            }
            if entries.is_empty() {
                continue;
            }
            let answer =
                EtcdAnswer { call: read.call, is_watched: true, etcd, revision, is_done: true, entries };
            if !deliver(answer) {
                return Ok(());
            }
        }
    }

    /// What the cluster is, and everything else that etcd has of it.
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

    /// Makes a cluster. If this is cut short, it can be made again: the configuration comes last.
    ///
    /// # Errors
    /// [`EtcdError::Exists`], [`EtcdError::Config`], and others.
    pub async fn init(&self, config: &ClusterConfig) -> Result<Adoption, EtcdError> {
        config.check()?;
        // Of one that was cut short, with other shards.
        let left_over =
            TxnOp::delete(format!("{}shards/", self.prefix()), Some(DeleteOptions::new().with_prefix()));
        if !self
            .transact(0, vec![self.is_of(EtcdKey::Config, 0)], vec![left_over], &[EtcdKey::Config])
            .await?
            .is_done
        {
            return Err(self.exists().await);
        }
        // If several do this at once, the one goes on that is first to write the first shard after the last has removed
        // what was there.
        let mut ours = 0;
        let shards: Vec<ShardIx> = (0..config.shards).collect();
        for some in shards.chunks(OPS_MAX) {
            let state = EtcdValue::Shard(ShardState { revision: 1, ..ShardState::default() });
            let puts = some.iter().map(|shard| self.put(EtcdKey::Shard(*shard), &state)).collect();
            let when = vec![self.is_of(EtcdKey::Config, 0), self.is_of(EtcdKey::Shard(0), ours)];
            let answer = self.transact(0, when, puts, &[EtcdKey::Shard(0)]).await?;
            if !answer.is_done {
                return Err(self.exists().await);
            }
            ours = answer.shard(0).map_or(ours, |(_, at)| at);
        }
        let etcd = self.read(0).await?.etcd;
        let adoption = Adoption { number: 1, etcd };
        let puts = vec![
            self.put(EtcdKey::Adoption, &EtcdValue::Adoption(adoption)),
            self.put(EtcdKey::Config, &EtcdValue::Config(config.clone())),
        ];
        let when = vec![self.is_of(EtcdKey::Config, 0), self.is_of(EtcdKey::Shard(0), ours)];
        match self.transact(0, when, puts, &[EtcdKey::Config]).await?.is_done {
            true => Ok(adoption),
            false => Err(self.exists().await),
        }
    }

    async fn exists(&self) -> EtcdError {
        match self.read_config().await {
            Ok((config, _)) => EtcdError::Exists { name: self.name.clone(), config: Box::new(config) },
            // Another one makes it, and has not ended yet.
            Err(EtcdError::NotThere { name }) => EtcdError::Busy { name },
            Err(error) => error,
        }
    }

    /// Changes what an operator wants.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub async fn change_wishes(&self, change: impl Fn(&mut Wishes)) -> Result<Wishes, EtcdError> {
        for _ in 0..TRIES {
            let (_, read) = self.read_config().await?;
            let adoption = read.adoption().unwrap_or_default();
            if adoption.etcd != read.etcd {
                return Err(EtcdError::Foreign { name: self.name.clone() });
            }
            let mut wishes = read.wishes().cloned().unwrap_or_default();
            change(&mut wishes);
            let when =
                vec![self.is_adopted(&adoption), self.is_of(EtcdKey::Wishes, read.at(EtcdKey::Wishes))];
            let put = vec![self.put(EtcdKey::Wishes, &EtcdValue::Wishes(wishes.clone()))];
            if self.transact(0, when, put, &[EtcdKey::Wishes]).await?.is_done {
                return Ok(wishes);
            }
        }
        Err(EtcdError::Busy { name: self.name.clone() })
    }

    /// Shards that nobody will ever serve, unless a node that has a copy starts again: all those nodes are silent. Takes two
    /// TTLs, in which they are listened for.
    ///
    /// # Errors
    /// As [`EtcdStore::read_config`].
    pub async fn lost(&self) -> Result<LostShards, EtcdError> {
        let (config, before) = self.read_config().await?;
        tokio::time::sleep(Duration::from_micros(2 * config.timing.ttl)).await;
        let (_, read) = self.read_config().await?;
        let is_silent = |node: NodeId| !read.beats(node, &before);
        let are_silent = |(_, state): &(ShardIx, &ShardState)| {
            state.primary.is_some_and(is_silent) && state.in_sync.iter().all(is_silent)
        };
        let shards = read.shards().filter(are_silent).map(|(shard, state)| (shard, state.clone())).collect();
        Ok(LostShards { shards, read })
    }

    /// Has lost shards begin anew, empty. Their nodes are dead from then on, and give their copies up when they start again.
    ///
    /// # Errors
    /// [`EtcdError::NotLost`], for one of those nodes has been heard since, and others. Shards before it have begun anew.
    pub async fn begin_anew(&self, lost: &LostShards) -> Result<(), EtcdError> {
        let adoption = lost.read.adoption().unwrap_or_default();
        if adoption.etcd != lost.read.etcd {
            return Err(EtcdError::Foreign { name: self.name.clone() });
        }
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
            let mut then = vec![self.put(name, &EtcdValue::Shard(new))];
            let mut keys = vec![name];
            // As when a standby takes over (CL8): nobody has heard of them for a TTL, and they are dead from then on.
            for id in state.in_sync.clone().and(&state.primary.into_iter().collect()).iter() {
                let node = EtcdKey::Node(id);
                when.push(self.is_of(node, nodes.get(&id).map_or(0, |(_, at)| *at)));
                if let Some((key, _)) = nodes.get(&id).filter(|(key, _)| key.alive) {
                    then.push(self.put(node, &EtcdValue::Node(NodeKey { alive: false, ..key.clone() })));
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
    /// [`EtcdError::InUse`]; [`EtcdError::Runs`], for it has written its key within a second; and others.
    pub async fn forget(&self, node: NodeId) -> Result<(), EtcdError> {
        let (_, read) = self.read_config().await?;
        let adoption = read.adoption().unwrap_or_default();
        let names = |state: &ShardState| state.primary == Some(node) || state.in_sync.has(node);
        let shards = read.shards().filter(|(_, state)| names(state)).count();
        if shards > 0 {
            return Err(EtcdError::InUse { node, shards });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let at = read.at(EtcdKey::Node(node));
        let when = vec![self.is_adopted(&adoption), self.is_of(EtcdKey::Node(node), at)];
        let gone = vec![TxnOp::delete(self.key(EtcdKey::Node(node)), None)];
        match self.transact(0, when, gone, &[EtcdKey::Node(node)]).await?.is_done {
            true => Ok(()),
            false => Err(EtcdError::Runs { node }),
        }
    }

    /// Goes on with an etcd that was restored from a backup (CL17). `notes` are those of *all* nodes that are to go on:
    /// what only another one knew is lost. `seconds` is the time since 1970.
    ///
    /// # Errors
    /// [`EtcdError::NothingToAdopt`], and others. If it is cut short, it can be made again: the adoption comes last.
    pub async fn adopt(&self, notes: &[Notes], seconds: u64) -> Result<Adoption, EtcdError> {
        let (_, read) = self.read_config().await?;
        let before = read.adoption().unwrap_or_default();
        if before.etcd == read.etcd {
            return Err(EtcdError::NothingToAdopt { name: self.name.clone() });
        }
        let shards = read.shards().map(|(shard, state)| {
            self.put(EtcdKey::Shard(shard), &EtcdValue::Shard(adopt::shard(state, shard, notes)))
        });
        let nodes = read.nodes().map(|(id, key)| {
            self.put(EtcdKey::Node(id), &EtcdValue::Node(NodeKey { alive: false, ..key.clone() }))
        });
        let mut puts: Vec<TxnOp> = shards.chain(nodes).collect();
        let adoption = adopt::adoption(before, read.etcd, seconds, notes);
        puts.push(self.put(EtcdKey::Adoption, &EtcdValue::Adoption(adoption)));
        for some in puts.chunks(OPS_MAX) {
            let when = vec![self.is_adopted(&before)];
            if !self.transact(0, when, some.to_vec(), &[EtcdKey::Adoption]).await?.is_done {
                return Err(EtcdError::Busy { name: self.name.clone() });
            }
        }
        Ok(adoption)
    }
}

/// What the system said.
fn because(why: &FileError) -> String {
    std::error::Error::source(why).map_or_else(String::new, |source| format!(": {source}"))
}

fn tls_options(tls: &EtcdTls) -> Result<TlsOptions, EtcdError> {
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(files::read(&tls.ca)?));
    if let Some((certificate, key)) = &tls.certificate {
        let key = Zeroizing::new(files::read_secret(key)?);
        options = options.identity(Identity::from_pem(files::read(certificate)?, key));
    }
    Ok(options)
}

/// As a value in etcd: always the same bytes for the same value.
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

/// Makes a call, and again while it was certainly not sent: where one member of several is down, connections of others are
/// chosen by how busy they are, and one that is refused at once is never busy.
async fn again<R, F>(members: usize, mut call: impl FnMut() -> F) -> Result<R, Error>
where
    F: Future<Output = Result<R, Error>>,
{
    let mut tries_left = if members > 1 { MEMBER_TRIES } else { 0 };
    loop {
        match call().await {
            Err(error) if tries_left > 0 && was_not_sent(&error) => {
                tries_left -= 1;
                sleep(MEMBER_PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// There was no connection that it could be sent over.
fn was_not_sent(error: &Error) -> bool {
    let told = told(error);
    ["tcp connect error", "dns error"].iter().any(|unsent| told.contains(unsent))
}

/// A call has failed.
fn failed(endpoints: &str, error: &Error) -> EtcdError {
    let (endpoints, why) = (endpoints.to_owned(), told(error));
    // etcd has several codes for this, and the same ones for other things.
    let denials = ["auth", "permission denied", "user name"];
    let is_denied =
        matches!(error, Error::GRpcStatus(_)) && denials.iter().any(|denial| why.contains(denial));
    if is_denied { EtcdError::Denied { endpoints, why } } else { EtcdError::Call { endpoints, why } }
}

/// An error of the client, in words that people know, with what it comes from.
fn told(error: &Error) -> String {
    use std::error::Error as StdError;
    let (mut told, mut source): (String, Option<&dyn StdError>) = match error {
        Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        Error::TransportError(error) => (error.to_string(), error.source()),
        error => (error.to_string(), error.source()),
    };
    while let Some(error) = source {
        let next = error.to_string();
        if !told.contains(&next) {
            told = if told.is_empty() { next } else { format!("{told}: {next}") };
        }
        source = error.source();
    }
    told
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
