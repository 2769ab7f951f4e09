//! Where publishers are, and which of them may be connected to.

use crate::zmtp::Stream;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The longest endpoint, in bytes.
const LONGEST: usize = 256;

/// The endpoint of a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `tcp://HOST:PORT`.
    Tcp {
        /// A name, or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// `ipc://PATH`, a Unix socket.
    Ipc(PathBuf),
}

/// What is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no endpoint to connect to; give tcp://HOST:PORT, or ipc://PATH")]
pub struct EndpointError {
    given: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(given: &str) -> Result<Endpoint, EndpointError> {
        let error = || EndpointError { given: given.chars().take(LONGEST).collect() };
        if given.len() > LONGEST || given.chars().any(char::is_control) {
            return Err(error());
        }
        if let Some(path) = given.strip_prefix("ipc://").filter(|path| path.starts_with('/')) {
            return Ok(Endpoint::Ipc(path.into()));
        }
        let (host, port) =
            given.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(error)?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match inner {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().map(|_| inner).map_err(|_| error())?,
            None => host,
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(error)?;
        if host.is_empty() || (inner.is_none() && !host.chars().all(is_name)) {
            return Err(error());
        }
        Ok(Endpoint::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Endpoint::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

/// Where a connection may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Reach {
    /// To this host by its loopback addresses only, whatever a name says by then.
    Loopback,
    /// To anywhere: somebody who may say so has named it.
    Anywhere,
}

impl Endpoint {
    /// Whether it is on this host by what it says: a loopback address, or `localhost`.
    pub fn is_loopback(&self) -> bool {
        match self {
            Endpoint::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
            }
            // Any file of this user: who names it makes this process talk to whoever listens there.
            Endpoint::Ipc(_) => false,
        }
    }

    /// Connects, within a time for each address.
    ///
    /// # Errors
    /// Nobody listens, or not where the connection may go.
    pub fn connect(&self, reach: Reach, within: Duration) -> io::Result<Stream> {
        let (host, port) = match self {
            Endpoint::Ipc(path) => return UnixStream::connect(path).map(Stream::Unix),
            Endpoint::Tcp { host, port } => (host.as_str(), *port),
        };
        let all: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
        let may = |at: &&SocketAddr| match reach {
            Reach::Loopback => at.ip().to_canonical().is_loopback(),
            Reach::Anywhere => true,
        };
        let mut last = io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{host} is not on this host; name it by --allow-endpoint, or have a token asked for"),
        );
        for at in all.iter().filter(may) {
            match TcpStream::connect_timeout(at, within) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint is written as it was given; what cannot be connected to is none.
    #[test]
    fn endpoints_are_parsed() {
        for given in
            ["tcp://10.0.0.7:5557", "tcp://worker-1.pool_a:1", "tcp://[::1]:5557", "ipc:///run/a.sock"]
        {
            assert_eq!(given.parse::<Endpoint>().unwrap().to_string(), given);
        }
        for wrong in [
            "",
            "tcp://",
            "tcp://a",
            "tcp://:5557",
            "tcp://*:5557",
            "tcp://a:0",
            "tcp://a:65536",
            "http://a:1",
            "tcp://a b:1",
            "tcp://[::g]:1",
            "ipc://a",
            "ipc://",
            "inproc://a",
            "tcp://a/b:1",
            "ipc:///a\nb",
        ] {
            let told = wrong.parse::<Endpoint>().unwrap_err().to_string();
            assert!(told.contains("tcp://HOST:PORT"), "{wrong}: {told}");
        }
        assert!(format!("tcp://{}:1", "a".repeat(300)).parse::<Endpoint>().is_err());
    }

    /// Loopback is what says so, and a connection that may only go there goes nowhere else, whatever its name says.
    #[test]
    fn loopback_is_this_host() {
        for (given, is) in [
            ("tcp://127.0.0.1:1", true),
            ("tcp://127.9.9.9:1", true),
            ("tcp://localhost:1", true),
            ("tcp://[::1]:1", true),
            ("tcp://[::ffff:127.0.0.1]:1", true),
            ("tcp://0.0.0.0:1", false),
            ("tcp://localhost.example:1", false),
            ("tcp://192.0.2.1:1", false),
            ("ipc:///run/a.sock", false),
        ] {
            assert_eq!(given.parse::<Endpoint>().unwrap().is_loopback(), is, "{given}");
        }
        let elsewhere: Endpoint = "tcp://192.0.2.1:1".parse().unwrap();
        let error = elsewhere.connect(Reach::Loopback, Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here: Endpoint =
            format!("tcp://localhost:{}", listener.local_addr().unwrap().port()).parse().unwrap();
        here.connect(Reach::Loopback, Duration::from_secs(60)).unwrap();
    }
}
