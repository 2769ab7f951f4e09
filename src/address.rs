//! Addresses of servers: `shm:/path/to/socket`, `verbs://host:port` or `tcp://host:port`.

use crate::files;
use crate::verbs::{DeviceChoice, host_and_port, is_mtu};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server's address. It names the fabric; the client never falls back to another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A server on this host, by the path of its Unix socket.
    Shm(PathBuf),
    /// A server that an RDMA device reaches. Connecting needs the cargo feature `verbs`.
    Verbs(VerbsAddress),
    /// A server that is reached over TCP, where there is no RDMA. Every GET is a request to it.
    Tcp(TcpAddress),
}

/// What the text of no address was meant to be.
fn meant(given: &str) -> String {
    let port = given.rsplit(':').next().unwrap_or(given);
    if port.parse::<u16>().is_ok() {
        "; a server on this host has no port, but a socket: its own message names it".into()
    } else if given.contains('/') && !given.contains("://") {
        format!("; perhaps shm:{given}")
    } else {
        String::new()
    }
}

/// Why text is not an address.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// The text does not begin with a known fabric.
    #[error(
        "{given:?} is no address; give shm:PATH, the path of a server's socket, as in shm:/run/user/1000/oneread.sock, verbs://HOST:PORT, or tcp://HOST:PORT{}",
        meant(given)
    )]
    Unknown {
        /// What was given.
        given: String,
    },
    /// A malformed `verbs:` address.
    #[error("{given:?}: {why}; a verbs address is verbs://HOST:PORT?dev=DEVICE&port=N&gid=INDEX&mtu=BYTES")]
    Verbs {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// A malformed `tcp:` address.
    #[error("{given:?}: {why}; a tcp address is tcp://HOST:PORT")]
    Tcp {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// A fabric that exists only in tests.
    #[error("{given:?} names the fabric {fabric}, which has no addresses; there are: shm, verbs, tcp")]
    Fabric {
        /// What was given.
        given: String,
        /// The fabric.
        fabric: String,
    },
    /// A path too long for a Unix socket.
    #[error("the socket path is {length} bytes long, the operating system allows {SOCKET_PATH_MAX}; name a shorter one than {}", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
}

/// Longest path of a Unix socket on Linux: `sun_path` without its final zero byte.
const SOCKET_PATH_MAX: usize = 107;

impl Address {
    /// The path of the socket, for an shm address.
    pub fn socket(&self) -> Option<&std::path::Path> {
        match self {
            Address::Shm(path) => Some(path),
            Address::Verbs(_) | Address::Tcp(_) => None,
        }
    }

    /// Looks whether a socket can have this address.
    ///
    /// # Errors
    /// When no socket can have this address.
    pub(crate) fn check(&self) -> Result<(), AddressError> {
        match self.socket().map(|path| (path, path.as_os_str().len())) {
            Some((path, length)) if length > SOCKET_PATH_MAX => {
                Err(AddressError::TooLong { path: path.into(), length })
            }
            _ => Ok(()),
        }
    }

    /// The default address of this user: `oneread.sock` in `$XDG_RUNTIME_DIR`, else in
    /// `/run/user/UID`, if that folder belongs to this user alone; else in `/run/oneread` for root,
    /// and in `/tmp/oneread-UID` for others. A server makes the last two, for its user alone. If there is
    /// a socket in any of these folders, it is the first such one: a server that was started before this
    /// user had a session is found later, too.
    pub fn default_of_user() -> Address {
        Address::Shm(files::socket())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Shm(path) => write!(f, "shm:{}", path.display()),
            Address::Verbs(address) => address.fmt(f),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses `shm:PATH`, a path that begins with `/` or `.`, `verbs://HOST:PORT`, or `tcp://HOST:PORT`.
    ///
    /// The displayed form of an address parses to the same address, unless its path is not UTF-8.
    fn from_str(given: &str) -> Result<Address, AddressError> {
        if given.starts_with("verbs://") {
            return given.parse().map(Address::Verbs);
        }
        if given.starts_with("tcp://") {
            return given.parse().map(Address::Tcp);
        }
        let path = match given.split_once(':') {
            Some(("shm", path)) if !path.is_empty() => path,
            _ if given.starts_with(['/', '.']) => given,
            Some(("verbs", _)) => {
                return Err(AddressError::Verbs { given: given.into(), why: "// is missing".into() });
            }
            Some(("tcp", _)) => {
                return Err(AddressError::Tcp { given: given.into(), why: "// is missing".into() });
            }
            Some((fabric @ "sim", _)) => {
                return Err(AddressError::Fabric { given: given.into(), fabric: fabric.into() });
            }
            _ => return Err(AddressError::Unknown { given: given.into() }),
        };
        let address = Address::Shm(path.into());
        address.check()?;
        Ok(address)
    }
}

/// The address of a server with an RDMA device: `verbs://host:port?dev=&port=&gid=&mtu=`.
///
/// Host and port are those of the TCP conversation that comes first. The part after `?` is about
/// this side's device, and may differ between server and client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VerbsAddress {
    host: String,
    port: u16,
    /// Boxed, so that errors that hold an address stay small.
    device: Box<DeviceChoice>,
}

/// The port when none is named.
pub const DEFAULT_PORT: u16 = 7471;

impl VerbsAddress {
    /// The address of the server at this host and port. An IPv6 address may be in brackets.
    pub fn new(host: impl Into<String>, port: u16, device: DeviceChoice) -> VerbsAddress {
        let host = host.into();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).map(str::to_owned);
        VerbsAddress { host: bare.unwrap_or(host), port, device: Box::new(device) }
    }

    /// The host's name or IP address. For a server, that of the interface to listen at.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port; 0 lets the operating system choose one for a server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Which device to use on this side.
    pub fn device(&self) -> &DeviceChoice {
        &self.device
    }

    /// This address with another port.
    #[must_use]
    pub fn with_port(&self, port: u16) -> VerbsAddress {
        VerbsAddress { port, ..self.clone() }
    }
}

impl fmt::Display for VerbsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verbs://{}", host_and_port(&self.host, self.port))?;
        let DeviceChoice { device, port, gid, mtu } = &*self.device;
        let parts = [
            device.as_ref().map(|device| format!("dev={device}")),
            port.map(|port| format!("port={port}")),
            gid.map(|gid| format!("gid={gid}")),
            mtu.map(|mtu| format!("mtu={mtu}")),
        ];
        let mut separator = '?';
        for part in parts.into_iter().flatten() {
            write!(f, "{separator}{part}")?;
            separator = '&';
        }
        Ok(())
    }
}

impl FromStr for VerbsAddress {
    type Err = AddressError;

    /// Parses `verbs://HOST:PORT?dev=DEVICE&port=N&gid=INDEX&mtu=BYTES`. Only the host is required.
    fn from_str(given: &str) -> Result<VerbsAddress, AddressError> {
        let rest = given.strip_prefix("verbs://").ok_or_else(|| "it does not begin with verbs://".into());
        rest.and_then(VerbsAddress::parse).map_err(|why| AddressError::Verbs { given: given.into(), why })
    }
}

impl VerbsAddress {
    /// Parses what follows `verbs://`. The error says what is wrong with it.
    fn parse(rest: &str) -> Result<VerbsAddress, String> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, port) = host_and_port_of("verbs", place)?;
        let mut device = DeviceChoice::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let wrong = |wants: &str| format!("{name}={value}: {wants}");
            match name {
                "dev" if !value.is_empty() => device.device = Some(value.into()),
                "dev" => return Err(wrong("name a device, as in dev=mlx5_0")),
                "port" => {
                    device.port = Some(value.parse().map_err(|_| wrong("a device's ports are 1 to 255"))?);
                }
                "gid" => {
                    let gid = value
                        .parse::<u8>()
                        .map_err(|_| wrong("an index in the port's GID table, 0 to 255"))?;
                    device.gid = Some(gid.into());
                }
                "mtu" => {
                    let mtu = value.parse().ok().filter(|mtu: &u32| is_mtu(*mtu));
                    device.mtu =
                        Some(mtu.ok_or_else(|| wrong("a path MTU is 256, 512, 1024, 2048 or 4096"))?);
                }
                _ => return Err(format!("{name:?} is none of dev, port, gid and mtu")),
            }
        }
        Ok(VerbsAddress::new(host, port, device))
    }
}

/// Host and port in what follows `scheme://`. The error says what is wrong with it.
fn host_and_port_of<'a>(scheme: &str, place: &'a str) -> Result<(&'a str, u16), String> {
    let place = place.trim_end_matches('/');
    let (host, port) = match place.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed.split_once(']').ok_or("the bracket after [ is missing")?;
            match port.strip_prefix(':') {
                None if !port.is_empty() => return Err(format!("{port:?} after the bracket is no port")),
                port => (host, port),
            }
        }
        None => match place.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(format!(
                    "an IPv6 address goes in brackets, as in {scheme}://[{place}]:{DEFAULT_PORT}"
                ));
            }
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    if host.is_empty() {
        return Err(format!("the host is missing, as in {scheme}://server.example:7471"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port.parse().map_err(|_| format!("{port:?} is no TCP port (0 to 65535)"))?,
    };
    Ok((host, port))
}

/// The address of a server over TCP: `tcp://host:port`.
///
/// A client tries all addresses that the host's name has, each time that it connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TcpAddress {
    /// Boxed, so that errors that hold an address stay small.
    host: Box<str>,
    port: u16,
}

impl TcpAddress {
    /// The address of the server at this host and port. An IPv6 address may be in brackets.
    pub fn new(host: impl AsRef<str>, port: u16) -> TcpAddress {
        let host = host.as_ref();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        TcpAddress { host: bare.unwrap_or(host).into(), port }
    }

    /// The host's name or IP address. For a server, that of the interface to listen at.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port; 0 lets the operating system choose one for a server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// This address with another port.
    #[must_use]
    pub fn with_port(&self, port: u16) -> TcpAddress {
        TcpAddress { port, ..self.clone() }
    }
}

impl fmt::Display for TcpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}", host_and_port(&self.host, self.port))
    }
}

impl FromStr for TcpAddress {
    type Err = AddressError;

    /// Parses `tcp://HOST:PORT`. Without a port it is 7471.
    fn from_str(given: &str) -> Result<TcpAddress, AddressError> {
        let rest = given.strip_prefix("tcp://").ok_or_else(|| "it does not begin with tcp://".into());
        let parsed = rest.and_then(|place| match place.contains('?') {
            true => Err("it has no options after a ?".into()),
            false => host_and_port_of("tcp", place),
        });
        match parsed {
            Ok((host, port)) => Ok(TcpAddress::new(host, port)),
            Err(why) => Err(AddressError::Tcp { given: given.into(), why }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was meant is named, where it can be told.
    #[test]
    fn what_was_meant_is_told() {
        let told = |given: &str| given.parse::<Address>().unwrap_err().to_string();
        for given in ["localhost:7471", "127.0.0.1:6379", "7471"] {
            assert!(told(given).contains("has no port, but a socket"), "{}", told(given));
        }
        assert!(told("run/sock").ends_with("; perhaps shm:run/sock"));
        for given in ["here", "redis://a/b"] {
            assert!(told(given).ends_with("or tcp://HOST:PORT"), "{}", told(given));
        }
    }
    use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest};
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    #[test]
    fn text_is_parsed_to_addresses() {
        let shm = |path: &str| Ok(Address::Shm(path.into()));
        assert_eq!("shm:/a/b".parse(), shm("/a/b"));
        assert_eq!("/a:b".parse(), shm("/a:b"));
        assert_eq!("./b".parse(), shm("./b"));
        assert_eq!("shm:/a".parse::<Address>().unwrap().to_string(), "shm:/a");
        for bad in ["", "shm:", "host:1", "oneread.sock"] {
            assert!(matches!(bad.parse::<Address>(), Err(AddressError::Unknown { .. })), "{bad}");
        }
        assert_eq!("verbs://h:1".parse::<Address>().unwrap().to_string(), "verbs://h:1");
        for bad in ["verbs:h:1", "verbs://", "verbs://h:1?mtu=7"] {
            assert!(matches!(bad.parse::<Address>(), Err(AddressError::Verbs { .. })), "{bad}");
        }
        assert_eq!("shm:a/b".parse(), shm("a/b"));
        assert_eq!("shm:shm:a".parse(), shm("shm:a"));
        assert_eq!("verbs://h:1".parse::<Address>().unwrap().socket(), None);
        assert_eq!("shm:/a".parse::<Address>().unwrap().socket(), Some(std::path::Path::new("/a")));
    }

    /// Every address is parsed back from its displayed form, whatever text it came from.
    #[test]
    fn addresses_are_parsed_as_they_are_displayed() {
        let path = "[^\\x00]{1,26}".prop_map(|path| Address::Shm(path.into()));
        let host = "[a-z0-9./\\[\\] -]{0,8}|[0-9a-f:]{0,8}|\\PC{1,8}";
        let part = "&|dev=\\PC{0,6}|port=[0-9]{0,3}|gid=[0-9]{0,3}|mtu=(256|1024|4096)|\\PC{0,3}";
        let parts = proptest::collection::vec(part, 0..4).prop_map(|parts| parts.join("&"));
        let port = "|:|:[0-9]{0,5}|:7/";
        let verbs = (host, port, parts, any::<bool>()).prop_map(|(host, port, parts, is_bracketed)| {
            let host = if is_bracketed { format!("[{host}]") } else { host };
            format!("verbs://{host}{port}?{parts}")
        });
        let text = prop_oneof!["\\PC*", "(shm:|verbs:|verbs://|/|\\.)\\PC{0,12}", verbs];
        // Enough of it are addresses. (The environment may set how many cases the checks below try.)
        let mut runner = TestRunner::deterministic();
        let mut is_address = || text.new_tree(&mut runner).unwrap().current().parse::<Address>().is_ok();
        let parsed = (0..4096).filter(|_| is_address()).count();
        assert!(parsed > 1000, "of 4096 only {parsed} are addresses");
        proptest!(ProptestConfig::with_cases(4096), |(text in text)| {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        });
        proptest!(|(path in path)| prop_assert_eq!(path.to_string().parse(), Ok(path)));
        let device = (
            proptest::option::of("[a-z0-9_=?:/]{1,12}"),
            proptest::option::of(any::<std::num::NonZeroU8>()),
            proptest::option::of(0..256u32),
            proptest::option::of((8..13).prop_map(|bits| 1u32 << bits)),
        );
        let host = "[a-z0-9][a-z0-9.-]{0,20}|[0-9a-f]{0,4}::[0-9a-f:]{0,20}|\\[::[0-9a-f]{1,4}\\]|\\[";
        proptest!(|(host in host, port: u16, (device, device_port, gid, mtu) in device)| {
            let device = DeviceChoice { device, port: device_port, gid, mtu };
            let address = VerbsAddress::new(host, port, device);
            prop_assert_eq!(address.to_string().parse(), Ok(address.clone()));
            prop_assert_eq!(address.to_string().parse(), Ok(Address::Verbs(address)));
        });
    }

    #[test]
    fn verbs_addresses_are_parsed() {
        for (given, shown) in [
            ("h", "verbs://h:7471"),
            ("h:1/", "verbs://h:1"),
            ("10.0.0.1:0", "verbs://10.0.0.1:0"),
            ("[fe80::1]", "verbs://[fe80::1]:7471"),
            ("[::1]:9?mtu=1024&dev=mlx5_0", "verbs://[::1]:9?dev=mlx5_0&mtu=1024"),
            ("h?dev=&", ""),
            ("h?dev=rxe0&port=2&gid=3&mtu=4096", "verbs://h:7471?dev=rxe0&port=2&gid=3&mtu=4096"),
            ("", ""),
            (":7", ""),
            ("h:x", ""),
            ("h:70000", ""),
            ("::1", ""),
            ("[::1", ""),
            ("[::1]7", ""),
            ("[h]:9", "verbs://h:9"),
            ("h?mtu=1000", ""),
            ("h?port=0", ""),
            ("h?gid=-1", ""),
            ("h?gid=256", ""),
            ("h?colour=red", ""),
        ] {
            assert!(given.parse::<VerbsAddress>().is_err(), "{given}: nothing in front");
            match format!("verbs://{given}").parse::<VerbsAddress>() {
                Ok(address) => assert_eq!(address.to_string(), shown, "{given}"),
                Err(AddressError::Verbs { why, .. }) => {
                    assert!(shown.is_empty() && !why.is_empty(), "{given}: {why}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Each error carries the text that was given and says what is wrong with it.
    #[test]
    fn errors_say_what_is_wrong() {
        let error = |given: &str| given.parse::<Address>().unwrap_err();
        for given in ["", "shm:", "host:1", "redis://host:1"] {
            assert_eq!(error(given), AddressError::Unknown { given: given.into() });
        }
        let given = "sim:1".to_string();
        assert_eq!(error("sim:1"), AddressError::Fabric { given, fabric: "sim".into() });
        let (given, why) = ("verbs:h:1".to_string(), "// is missing".to_string());
        assert_eq!(error("verbs:h:1"), AddressError::Verbs { given, why });
        let AddressError::Verbs { given, .. } = error("verbs://h:x") else { panic!("no port") };
        assert_eq!(given, "verbs://h:x");
        let (given, why) = ("tcp:h:1".to_string(), "// is missing".to_string());
        assert_eq!(error("tcp:h:1"), AddressError::Tcp { given, why });
    }

    #[test]
    fn tcp_addresses_are_parsed() {
        for (given, host, port) in [
            ("h", "h", 7471),
            ("h:1/", "h", 1),
            ("10.0.0.1:0", "10.0.0.1", 0),
            ("[::1]", "::1", 7471),
            ("[fe80::1%eth0]:9", "fe80::1%eth0", 9),
        ] {
            let address: Address = format!("tcp://{given}").parse().unwrap();
            assert_eq!(address, Address::Tcp(TcpAddress::new(host, port)), "{given}");
            assert_eq!(address.to_string().parse(), Ok(address), "{given}");
        }
        for given in ["", ":7", "h:x", "h:70000", "::1", "[::1", "[::1]7", "h?mtu=1024"] {
            let given = format!("tcp://{given}");
            match given.parse::<Address>() {
                Err(AddressError::Tcp { given: named, why }) => assert!(named == given && !why.is_empty()),
                other => panic!("{given}: {other:?}"),
            }
        }
    }

    /// The longest path accepted is the longest that the system can bind.
    #[test]
    fn the_longest_path_can_be_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = |length: usize| {
            let begin = dir.path().join("").display().to_string();
            let rest = "x".repeat(length - begin.len());
            begin + &rest
        };
        for given in [path(107), format!("shm:{}", path(107))] {
            assert_eq!(given.parse(), Ok(Address::Shm(path(107).into())));
        }
        drop(std::os::unix::net::UnixListener::bind(path(107)).unwrap());
        assert!(std::os::unix::net::UnixListener::bind(path(108)).is_err());
        for length in [108, 200] {
            for given in [path(length), format!("shm:{}", path(length))] {
                let expected = AddressError::TooLong { path: path(length).into(), length };
                assert_eq!(given.parse::<Address>(), Err(expected));
            }
        }
    }
}
