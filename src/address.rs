//! Where a server is: `shm:/path/to/socket`, or `verbs://host:port`.

use crate::verbs::VerbsAddress;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server's address. The fabric is part of it: there is no falling back from one to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// On this host: the path of the server's Unix socket.
    Shm(PathBuf),
    /// Anywhere an RDMA device reaches. Connecting needs the cargo feature `verbs`.
    Verbs(VerbsAddress),
}

/// Why text is no address.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// No known fabric in front.
    #[error(
        "{given:?} is no address; give shm:PATH, the path of a server's socket, as in shm:/run/user/1000/oneread.sock, or verbs://HOST:PORT"
    )]
    Unknown {
        /// What was given.
        given: String,
    },
    /// A `verbs:` address that makes no sense.
    #[error("{given:?}: {why}; a verbs address is verbs://HOST:PORT?dev=DEVICE&port=N&gid=INDEX&mtu=BYTES")]
    Verbs {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// A fabric that only exists in tests.
    #[error("{given:?} names the fabric {fabric}, which has no addresses; there are: shm, verbs")]
    Fabric {
        /// What was given.
        given: String,
        /// The fabric.
        fabric: String,
    },
    /// A path too long for a socket.
    #[error("the socket path is {length} bytes long, the operating system allows 107: {}", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
}

/// Longest path of a Unix socket on Linux (`sun_path` less its final zero byte).
const SOCKET_PATH_MAX: usize = 107;

impl Address {
    /// The socket's path, on shm.
    pub fn socket(&self) -> Option<&std::path::Path> {
        match self {
            Address::Shm(path) => Some(path),
            Address::Verbs(_) => None,
        }
    }

    /// Where a server of this user is when nobody says otherwise: `$XDG_RUNTIME_DIR/oneread.sock`, else
    /// `/run/user/UID/oneread.sock`, else `/tmp/oneread-UID.sock`.
    pub fn default_of_user() -> Address {
        let uid = rustix::process::getuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_dir());
        let run_user = || Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|dir| dir.is_dir());
        Address::Shm(match runtime.or_else(run_user) {
            Some(dir) => dir.join("oneread.sock"),
            None => PathBuf::from(format!("/tmp/oneread-{uid}.sock")),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Shm(path) => write!(f, "shm:{}", path.display()),
            Address::Verbs(address) => address.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// `shm:PATH`, or a path that begins with `/` or `.`, or `verbs://HOST:PORT`.
    fn from_str(given: &str) -> Result<Address, AddressError> {
        if let Some(rest) = given.strip_prefix("verbs://") {
            let wrong = |why| AddressError::Verbs { given: given.into(), why };
            return rest.parse().map(Address::Verbs).map_err(wrong);
        }
        let path = match given.split_once(':') {
            Some(("shm", path)) if !path.is_empty() => path,
            _ if given.starts_with(['/', '.']) => given,
            Some(("verbs", _)) => {
                return Err(AddressError::Verbs { given: given.into(), why: "// is missing".into() });
            }
            Some((fabric @ "sim", _)) => {
                return Err(AddressError::Fabric { given: given.into(), fabric: fabric.into() });
            }
            _ => return Err(AddressError::Unknown { given: given.into() }),
        };
        if path.len() > SOCKET_PATH_MAX {
            return Err(AddressError::TooLong { path: path.into(), length: path.len() });
        }
        Ok(Address::Shm(path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
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

    /// What is wrong is said with what was given.
    #[test]
    fn no_addresses() {
        let error = |given: &str| given.parse::<Address>().unwrap_err();
        for given in ["", "shm:", "host:1", "tcp://host:1"] {
            assert_eq!(error(given), AddressError::Unknown { given: given.into() });
        }
        let given = "sim:1".to_string();
        assert_eq!(error("sim:1"), AddressError::Fabric { given, fabric: "sim".into() });
        let (given, why) = ("verbs:h:1".to_string(), "// is missing".to_string());
        assert_eq!(error("verbs:h:1"), AddressError::Verbs { given, why });
        let AddressError::Verbs { given, .. } = error("verbs://h:x") else { panic!("no port") };
        assert_eq!(given, "verbs://h:x");
    }

    /// As long as the system takes: a socket can be bound there.
    #[test]
    fn the_longest_path() {
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
