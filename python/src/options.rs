//! Keyword arguments as the library's options, by the same names.

use crate::calls;
use crate::convert::{bytes_of, extracted, optional_seconds};
use crate::error::{Raise, error_of};
use crate::mend::Mender;
use crate::prefix as index;
use oneread::{
    Address, Backing, ClientOptions, ClientTls, Config, Encryption, Evict, Limits, LogConfig, OwnerOptions,
    RequestPath, ServerConfig, ServerTls, Snapshots, StartMode, TableSize, Token,
};
use oneread_cluster::client::ClusterOptions;
use oneread_cluster::etcd::{ClusterName, EtcdOptions, EtcdTls};
use oneread_cluster::wire::Secret;
use oneread_prefix::IndexTable;
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods, PyString, PyStringMethods};
use std::borrow::Cow;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The time that a GET may take at once, before it is looked whether the program is to be interrupted.
pub(crate) const SLICE: Duration = Duration::from_millis(10);

/// An address: text as on the command line, or a path. `None`: the user's default one.
pub(crate) fn address(py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<Address> {
    let Some(given) = given.filter(|given| !given.is_none()) else { return Ok(Address::default_of_user()) };
    match given.cast::<PyString>() {
        Ok(text) => {
            let text = text.to_str()?;
            text.parse::<Address>().map_err(|error| error_of(py, "Invalid", error.to_string()))
        }
        Err(_) => Ok(Address::Shm(path(given)?)),
    }
}

/// URLs of etcd's members: some, or one text with commas between them. `None`: this host's.
fn endpoints(given: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(given) = given.filter(|given| !given.is_none()) else {
        return Ok(vec!["http://127.0.0.1:2379".into()]);
    };
    match given.cast::<PyString>() {
        Ok(text) => Ok(text.to_str()?.split(',').map(|url| url.trim().to_owned()).collect()),
        Err(_) => extracted(calls::list(given)?.as_any(), "etcd"),
    }
}

/// A path, text or not.
fn path(given: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let text = calls::call(&given.py().import("os")?.getattr("fspath")?, (given,))?;
    text.extract()
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(py: Python<'_>, text: &str) -> PyResult<T> {
    text.parse::<T>().map_err(|error| error_of(py, "Invalid", error.to_string()))
}

fn unknown<T>(py: Python<'_>, name: &str, given: &str, known: &str) -> PyResult<T> {
    Err(error_of(py, "Invalid", format!("{name} is {given:?}; there are: {known}")))
}

/// Two that go together.
fn both<A, B>(
    py: Python<'_>,
    (first, a): (&str, Option<A>),
    (second, b): (&str, Option<B>),
) -> PyResult<Option<(A, B)>> {
    match (a, b) {
        (Some(a), Some(b)) => Ok(Some((a, b))),
        (None, None) => Ok(None),
        _ => Err(error_of(py, "Invalid", format!("{first} and {second} go together; give both"))),
    }
}

/// What a client of a cluster is told.
#[derive(Clone)]
pub(crate) struct ClusterArguments {
    pub name: ClusterName,
    pub etcd: EtcdOptions,
    pub options: ClusterOptions,
    pub exactly_once: bool,
}

/// The options of a client.
pub(crate) struct ClientArguments {
    pub options: ClientOptions,
    /// How long a GET may take in all.
    pub get_timeout: Duration,
}

/// Takes each keyword argument by its name; what is left is none of ours.
pub(crate) struct Arguments<'py> {
    left: Bound<'py, PyDict>,
}

impl<'py> Arguments<'py> {
    pub fn new(py: Python<'py>, given: Option<&Bound<'py, PyDict>>) -> PyResult<Arguments<'py>> {
        let left = match given {
            Some(given) => given.copy()?,
            None => PyDict::new(py),
        };
        Ok(Arguments { left })
    }

    /// An argument that is there, and is not `None`.
    fn any(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.left.get_item(name)?;
        if found.is_some() {
            self.left.del_item(name)?;
        }
        Ok(found.filter(|found| !found.is_none()))
    }

    fn take<T>(&self, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> pyo3::FromPyObject<'a, 'py, Error: Into<pyo3::PyErr>>,
    {
        self.any(name)?.map(|found| extracted(&found, name)).transpose()
    }

    fn path(&self, name: &str) -> PyResult<Option<PathBuf>> {
        self.any(name)?.map(|given| path(&given)).transpose()
    }

    /// A token.
    fn token(&self, name: &str) -> PyResult<Token> {
        Ok(self.secret(name, |bytes| Token::new(bytes))?.unwrap_or_default())
    }

    /// A secret, as text or bytes.
    fn secret<T>(&self, name: &str, make: impl FnOnce(&[u8]) -> T) -> PyResult<Option<T>> {
        let Some(given) = self.any(name)? else { return Ok(None) };
        let bytes = match given.cast::<PyString>() {
            Ok(text) => Cow::Borrowed(text.to_str()?.as_bytes()),
            Err(_) => bytes_of(&given, name)?,
        };
        if bytes.is_empty() {
            return Err(self.invalid(format!("{name} is empty; give a secret, or leave it out")));
        }
        Ok(Some(make(&bytes)))
    }

    fn invalid(&self, text: impl Into<String>) -> PyErr {
        error_of(self.left.py(), "Invalid", text.into())
    }

    /// The files of a certificate and of its key.
    fn certificate(&self, cert: &str, key: &str) -> PyResult<Option<(PathBuf, PathBuf)>> {
        both(self.left.py(), (cert, self.path(cert)?), (key, self.path(key)?))
    }

    fn client_tls(&self) -> PyResult<Option<ClientTls>> {
        let py = self.left.py();
        let (own, name) = (self.certificate("tls_cert", "tls_key")?, self.take::<String>("tls_name")?);
        let Some(authorities) = self.path("tls_ca")? else {
            return match own.is_some() || name.is_some() {
                true => Err(error_of(py, "Invalid", "for TLS, name whom to trust: tls_ca, a file".into())),
                false => Ok(None),
            };
        };
        let own = own.as_ref().map(|(certificate, key)| (&**certificate, &**key));
        let tls = ClientTls::new(authorities, own).raise(py)?;
        Ok(Some(match name {
            Some(name) => tls.server_name(&name).raise(py)?,
            None => tls,
        }))
    }

    fn server_tls(&self) -> PyResult<Option<ServerTls>> {
        let py = self.left.py();
        match (self.certificate("tls_cert", "tls_key")?, self.path("tls_client_ca")?) {
            (Some((certificate, key)), authorities) => {
                ServerTls::new(certificate, key, authorities.as_deref()).raise(py).map(Some)
            }
            (None, Some(_)) => Err(error_of(
                py,
                "Invalid",
                "tls_client_ca needs the server's own tls_cert and tls_key".into(),
            )),
            (None, None) => Ok(None),
        }
    }

    fn time(&self, name: &str) -> PyResult<Option<Duration>> {
        optional_seconds(self.left.py(), self.take::<f64>(name)?, name)
    }

    fn ttl(&self) -> PyResult<Option<Duration>> {
        ttl(self.left.py(), self.take("ttl")?)
    }

    /// Refuses what nobody has taken.
    pub fn end(self, what: &str) -> PyResult<()> {
        match self.left.keys().get_item(0) {
            Err(_) => Ok(()),
            Ok(name) => Err(pyo3::exceptions::PyTypeError::new_err(format!("{what} has no argument {name}"))),
        }
    }

    pub fn client(&self, timeout: Option<f64>) -> PyResult<ClientArguments> {
        let py = self.left.py();
        let mut options = ClientOptions::new();
        let mut get_timeout = Limits::new().deadline;
        if let Some(timeout) = optional_seconds(py, timeout, "timeout")? {
            options.deadline = timeout;
            get_timeout = get_timeout.min(timeout);
        }
        if let Some(time) = self.time("get_timeout")? {
            get_timeout = time;
        }
        options.limits = Limits::new().deadline(get_timeout.min(SLICE));
        if let Some(lease) = self.time("lease")? {
            options.lease = lease;
        }
        if let Some(path) = self.take::<String>("requests")? {
            options.requests = match &*path {
                "auto" => RequestPath::Auto,
                "message" => RequestPath::Message,
                "mailbox" => RequestPath::Mailbox,
                _ => return unknown(py, "requests", &path, "auto, message, mailbox"),
            };
        }
        options.hint_bytes = self.take("hint_bytes")?;
        options.server_uids = self.take("server_uids")?.unwrap_or_default();
        options.region = self.take("region")?;
        options.exact_expiry = self.take("exact_expiry")?.unwrap_or_default();
        options.timed = self.take("timed")?.unwrap_or_default();
        options.token = self.token("token")?;
        options.tls = self.client_tls()?;
        let namespace = self.any("encryption_namespace")?;
        if let Some(key) = self.any("encryption_key")? {
            let key = bytes_of(&key, "encryption_key")?;
            let Ok(key) = <&[u8; 32]>::try_from(&*key) else {
                let text = format!("encryption_key is {} bytes long, and has to be 32, at random", key.len());
                return Err(error_of(py, "Invalid", text));
            };
            let namespace = match &namespace {
                Some(namespace) => bytes_of(namespace, "encryption_namespace")?.into_owned(),
                None => Vec::new(),
            };
            options.encryption = Some(Encryption::new(key, namespace));
        }
        if let Some(number) = self.take::<u16>("owner")? {
            let owner = OwnerOptions::new(number);
            options.owner = Some(match self.time("absent_for")? {
                Some(time) => owner.absent_for(time),
                None => owner,
            });
        }
        Ok(ClientArguments { options, get_timeout })
    }

    /// What starts a server where none is there. Only the package itself gives one.
    pub fn mender(&self) -> PyResult<Option<Mender>> {
        Ok(self.any("_mender")?.map(Mender::new))
    }

    pub fn cluster(
        &self,
        name: &str,
        etcd: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<ClusterArguments> {
        let py = self.left.py();
        let name = parsed(py, name)?;
        let mut etcd = EtcdOptions::new(endpoints(etcd)?);
        etcd.user = both(
            py,
            ("etcd_user", self.take::<String>("etcd_user")?),
            ("etcd_password", self.take::<String>("etcd_password")?),
        )?
        .map(|(user, password)| (user, password.into()));
        etcd.tls = match (self.path("etcd_ca")?, self.certificate("etcd_cert", "etcd_key")?) {
            (Some(ca), certificate) => Some(EtcdTls { ca, certificate }),
            (None, Some(_)) => {
                return Err(self.invalid("for TLS with etcd, name whom to trust: etcd_ca, a file"));
            }
            (None, None) => None,
        };
        if let Some(time) = self.time("etcd_timeout")? {
            etcd.timeout = time;
        }
        let mut options = ClusterOptions::default();
        if let Some(secret) = self.secret("secret", Secret::new)? {
            options.secret = secret.map_err(|error| self.invalid(error.to_string()))?;
        }
        if let Some(timeout) = optional_seconds(py, timeout, "timeout")? {
            options.deadline = timeout;
            options.tables.deadline = options.tables.deadline.min(timeout);
        }
        options.tables.server_uids = self.take("server_uids")?.unwrap_or_default();
        options.tables.tls = self.client_tls()?;
        let exactly_once = self.take("exactly_once")?.unwrap_or_default();
        Ok(ClusterArguments { name, etcd, options, exactly_once })
    }

    /// Which index a table is for; of holders, with or without owners.
    fn index_table(&self, owners: bool) -> PyResult<Option<IndexTable>> {
        let py = self.left.py();
        let holders = self.take::<usize>("holders")?;
        let Some(index) = self.take::<String>("index")? else {
            return match holders {
                Some(_) => Err(self.invalid("holders are an index'; give index, too")),
                None => Ok(None),
            };
        };
        index::table_of(py, &index, holders, owners).map(Some)
    }

    /// What a table is made from.
    fn table(&self, index: Option<IndexTable>, owners: Option<bool>) -> PyResult<Config> {
        let py = self.left.py();
        let sizes = [
            self.take("keys")?.map(TableSize::Keys),
            self.take("slots")?.map(TableSize::Slots),
            match (self.take("bytes_max")?, self.take("segment_slots")?) {
                (Some(bytes_max), segment_slots) => Some(TableSize::Growing { bytes_max, segment_slots }),
                (None, Some(_)) => {
                    return Err(error_of(py, "Invalid", "segment_slots needs bytes_max; give both".into()));
                }
                (None, None) => None,
            },
        ];
        let mut given = sizes.into_iter().flatten();
        let size = given.next().unwrap_or(Config::new().size);
        let mut config = match index {
            Some(index) => index.config(size),
            None => Config::new().size(size),
        };
        if let Some(layout) = self.take::<String>("layout")? {
            config.layout = parsed(py, &layout)?;
        }
        if given.next().is_some() {
            let text = "a table has one size; give one of keys, slots and bytes_max".into();
            return Err(error_of(py, "Invalid", text));
        }
        if let Some(key_max) = self.take("key_max")? {
            config.key_max = key_max;
        }
        if let Some(value_max) = self.take("value_max")? {
            config.value_max = value_max;
        }
        config.inline_max = self.take("inline_max")?.or(config.inline_max);
        config.heap_bytes = self.take("heap_bytes")?.or(config.heap_bytes);
        config.life = self.take("life")?.unwrap_or(config.life);
        config.owners = owners.unwrap_or(config.owners);
        if let Some(grace) = self.time("grace")? {
            config.grace = grace;
        }
        Ok(config)
    }

    /// Where memory comes from.
    pub fn backing(&self) -> PyResult<Backing> {
        let Some(given) = self.any("backing")? else { return Ok(Backing::Anonymous) };
        if let Ok(text) = given.cast::<PyString>() {
            match text.to_str()? {
                "anonymous" => return Ok(Backing::Anonymous),
                "huge" => return Ok(Backing::HugePages),
                _ => {}
            }
        }
        path(&given).map(Backing::File)
    }

    /// What an index without a server is made from.
    pub fn index(&self) -> PyResult<(Config, Backing, Option<Duration>, Option<Evict>)> {
        let (mut config, ttl) = (self.table(None, self.take("owners")?)?, self.ttl()?);
        config.life |= ttl.is_some();
        Ok((config, self.backing()?, ttl, self.evict()?))
    }

    fn evict(&self) -> PyResult<Option<Evict>> {
        let policy = self.take::<String>("evict")?;
        policy.map(|policy| parsed::<Evict>(self.left.py(), &policy)).transpose()
    }

    /// Where a server's log is.
    fn log(&self) -> PyResult<Option<LogConfig>> {
        let py = self.left.py();
        let (fsync, cut) = (self.take::<String>("fsync")?, self.take::<u64>("log_truncate_at")?);
        let Some(path) = self.path("log")? else {
            if fsync.is_some() || cut.is_some() {
                let text = "fsync and log_truncate_at need log, the path of a folder".into();
                return Err(error_of(py, "Invalid", text));
            }
            return Ok(None);
        };
        let mut log = LogConfig::new(path).truncate_at(cut);
        if let Some(fsync) = fsync {
            log.fsync = parsed(py, &fsync)?;
        }
        Ok(Some(log))
    }

    /// What a server is told, and which index its table is for.
    pub fn server(&self, address: Address) -> PyResult<(ServerConfig, Option<IndexTable>)> {
        let py = self.left.py();
        let owners = self.take("owners")?;
        let index = self.index_table(owners.unwrap_or_default())?;
        let table = self.table(index, owners)?;
        let mut config = ServerConfig::new(address, table).backing(self.backing()?);
        config.small_pages = self.take("small_pages")?.unwrap_or_default();
        config.ttl = self.ttl()?;
        config.table.life |= config.ttl.is_some();
        if let Some(start) = self.take::<String>("start")? {
            config.start = match &*start {
                "create" => StartMode::Create,
                "open" => StartMode::Open,
                "open_or_create" => StartMode::OpenOrCreate,
                _ => return unknown(py, "start", &start, "create, open, open_or_create"),
            };
        }
        macro_rules! numbers {
            ($($name:ident),*) => {$(
                if let Some(number) = self.take(stringify!($name))? {
                    config.$name = number;
                }
            )*};
        }
        numbers!(
            workers,
            allow_uids,
            allow_read_uids,
            clients_max,
            clients_per_peer,
            unread_bytes_max,
            client_bytes_max,
            mailbox_bytes_max,
            feed_bytes,
            timed
        );
        if let Some(time) = self.time("half_open")? {
            config.half_open = time;
        }
        if let Some(percent) = self.take("starts_percent")? {
            config.starts.percent = percent;
        }
        if let Some(time) = self.time("start_within_max")? {
            config.starts.within_max = time;
        }
        config.tcp = match self.take::<String>("tcp")? {
            Some(at) => Some(parsed(py, &at)?),
            None => None,
        };
        config.token = self.token("token")?;
        config.read_token = self.token("read_token")?;
        config.tls = self.server_tls()?;
        config.evict = self.evict()?;
        let every = self.time("snapshots_every")?;
        match (self.path("snapshots")?, every) {
            (Some(path), every) => config.snapshots = Some(Snapshots::new(path).every(every)),
            (None, Some(_)) => {
                return Err(error_of(
                    py,
                    "Invalid",
                    "snapshots_every needs snapshots, the file's path".into(),
                ));
            }
            (None, None) => {}
        }
        config.restore = self.path("restore")?;
        config.log = self.log()?;
        Ok((config, index))
    }
}

/// The longest time to live, in seconds: ten years, as in a cluster. A table counts 17, from when it was made.
const TTL_MAX: f64 = 3_650.0 * 86_400.0;

/// A time to live. With one of 0, nothing would ever be there.
pub(crate) fn ttl(py: Python<'_>, given: Option<f64>) -> PyResult<Option<Duration>> {
    given.map(|given| live_for(py, "ttl", given)).transpose()
}

/// A time to live, of an argument that is called so.
fn live_for(py: Python<'_>, what: &str, given: f64) -> PyResult<Duration> {
    let is_one = given > 0.0 && given <= TTL_MAX;
    Duration::try_from_secs_f64(given).ok().filter(|_| is_one).ok_or_else(|| {
        let text = format!(
            "{what} is {given}; give seconds, more than 0 and at most {TTL_MAX} (ten years), or leave it out"
        );
        error_of(py, "Invalid", text)
    })
}

/// Like `live_for`, for what is written in Python: the seconds, if they are a time to live.
#[pyo3::pyfunction]
pub(crate) fn time_to_live(what: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<f64>> {
    let Some(given) = given else { return Ok(None) };
    let Ok(seconds) = given.extract::<f64>() else {
        let text = format!("{what} is {}; give seconds, a number, or leave it out", given.repr()?);
        return Err(pyo3::exceptions::PyTypeError::new_err(text));
    };
    live_for(given.py(), what, seconds).map(|_| Some(seconds))
}
