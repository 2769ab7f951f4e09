//! Who may do what. `/register` makes this process connect to an address that somebody else names.
//!
//! | | no token, which is on loopback only | with the token |
//! |---|---|---|
//! | queries, workers, counts | everybody on this host | who shows it |
//! | `/register` | publishers on loopback, and what `--allow-endpoint` names | any publisher |
//! | `/dump` | nobody | who shows it |
//!
//! Without a token a page in a browser on this host could ask, too: the type of the body, and `Host`, tell it.

use crate::endpoint::{Endpoint, Reach};
use crate::http::Request;
use std::net::{IpAddr, SocketAddr};

/// What a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// It came over loopback, where no token is asked for.
    Local,
    /// It has shown the token.
    Token,
}

/// Why an address cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} is reached from other hosts, and whoever reaches it could have this process connect anywhere; give a token (--token-file FILE), or listen at 127.0.0.1"
)]
pub struct TrustError {
    address: SocketAddr,
}

/// Who may do what.
#[derive(Clone, Debug)]
pub struct Trust {
    token: Option<Vec<u8>>,
    /// Endpoints that may be registered without a token: whole ones, or hosts.
    allowed: Vec<Allowed>,
}

/// What `--allow-endpoint` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// One endpoint.
    One(Endpoint),
    /// A host, with any port.
    Host(String),
}

impl std::str::FromStr for Allowed {
    type Err = crate::endpoint::EndpointError;

    fn from_str(given: &str) -> Result<Allowed, Self::Err> {
        if given.contains("://") {
            return given.parse().map(Allowed::One);
        }
        let host = given.trim_start_matches('[').trim_end_matches(']');
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("tcp://{bracketed}:1").parse::<Endpoint>().map(|_| Allowed::Host(host.to_owned()))
    }
}

impl Allowed {
    fn has(&self, endpoint: &Endpoint) -> bool {
        match (self, endpoint) {
            (Allowed::One(one), endpoint) => one == endpoint,
            (Allowed::Host(name), Endpoint::Tcp { host, .. }) => host.eq_ignore_ascii_case(name),
            (Allowed::Host(_), Endpoint::Ipc(_)) => false,
        }
    }
}

impl Trust {
    /// Of who listens at an address.
    ///
    /// # Errors
    /// Others than this host's reach it, and there is no token.
    pub fn new(
        address: SocketAddr,
        token: Option<Vec<u8>>,
        allowed: Vec<Allowed>,
    ) -> Result<Trust, TrustError> {
        if token.is_none() && !address.ip().to_canonical().is_loopback() {
            return Err(TrustError { address });
        }
        Ok(Trust { token, allowed })
    }

    /// What a request may ask for.
    ///
    /// # Errors
    /// The status, and why.
    pub fn rights(&self, request: &Request) -> Result<Rights, (u16, &'static str)> {
        let Some(token) = &self.token else {
            return match request.host.as_deref().is_none_or(is_local) {
                true => Ok(Rights::Local),
                false => Err((403, "the header Host names another host than this one")),
            };
        };
        let shown = request.authorization.as_deref().and_then(|shown| {
            let (kind, shown) = shown.split_once(' ')?;
            kind.eq_ignore_ascii_case("bearer").then_some(shown.trim())
        });
        match shown {
            Some(shown) if is_same(shown.as_bytes(), token) => Ok(Rights::Token),
            Some(_) => Err((401, "the token is another one")),
            None => Err((401, "show the token, with the header Authorization: Bearer TOKEN")),
        }
    }

    /// Where connections to a publisher may go that a request has named.
    ///
    /// # Errors
    /// The status, and why it is not connected to.
    pub fn reach(&self, endpoint: &Endpoint, rights: Rights) -> Result<Reach, (u16, &'static str)> {
        match rights {
            Rights::Token => Ok(Reach::Anywhere),
            Rights::Local if self.allowed.iter().any(|allowed| allowed.has(endpoint)) => Ok(Reach::Anywhere),
            Rights::Local if endpoint.is_loopback() => Ok(Reach::Loopback),
            Rights::Local => Err((
                403,
                "without a token only publishers on loopback are registered; start the indexer with --allow-endpoint HOST, or with --token-file",
            )),
        }
    }
}

/// Whether two are the same, in a time that does not tell where they differ.
fn is_same(shown: &[u8], token: &[u8]) -> bool {
    shown.len() == token.len() && shown.iter().zip(token).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Whether `Host` names this host: an address, or `localhost`. Other names may be anybody's.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    fn request(authorization: Option<&str>, host: Option<&str>) -> Request {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Request { authorization: owned(authorization), host: owned(host), ..Request::default() }
    }

    /// Without a token only loopback is listened at; with one it is to be shown, whole.
    #[test]
    fn a_token_is_to_be_shown() {
        for address in ["127.0.0.1:1", "[::1]:1", "127.4.5.6:1"] {
            let trust = Trust::new(at(address), None, vec![]).unwrap();
            assert_eq!(trust.rights(&request(None, None)), Ok(Rights::Local));
        }
        for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let told = Trust::new(at(address), None, vec![]).unwrap_err().to_string();
            assert!(told.contains("--token-file"), "{told}");
        }
        let trust = Trust::new(at("0.0.0.0:1"), Some(b"secret".to_vec()), vec![]).unwrap();
        assert_eq!(trust.rights(&request(Some("Bearer secret"), Some("anywhere"))), Ok(Rights::Token));
        assert_eq!(trust.rights(&request(Some("bearer  secret "), None)), Ok(Rights::Token));
        for wrong in [
            None,
            Some("secret"),
            Some("Basic secret"),
            Some("Bearer secre"),
            Some("Bearer secret1"),
            Some("Bearer "),
        ] {
            assert_eq!(trust.rights(&request(wrong, None)).unwrap_err().0, 401, "{wrong:?}");
        }
    }

    /// A page whose name leads here is not this host's.
    #[test]
    fn other_hosts_names_are_refused() {
        let trust = Trust::new(at("127.0.0.1:1"), None, vec![]).unwrap();
        for host in ["127.0.0.1:8090", "localhost", "localhost:8090", "[::1]:8090", "[::1]"] {
            assert_eq!(trust.rights(&request(None, Some(host))), Ok(Rights::Local), "{host}");
        }
        for host in ["evil.example", "evil.example:8090", "localhost.evil.example", ""] {
            assert_eq!(trust.rights(&request(None, Some(host))).unwrap_err().0, 403, "{host}");
        }
    }

    /// Where a request may have this process connect to.
    #[test]
    fn endpoints_are_loopbacks_or_allowed() {
        let allowed = ["pool-1", "tcp://10.0.0.7:5557", "2001:db8::1"].map(|text| text.parse().unwrap());
        let trust = Trust::new(at("127.0.0.1:1"), None, allowed.to_vec()).unwrap();
        let reach = |endpoint: &str, rights| trust.reach(&endpoint.parse().unwrap(), rights).ok();
        for (endpoint, expected) in [
            ("tcp://127.0.0.1:5557", Some(Reach::Loopback)),
            ("tcp://localhost:5557", Some(Reach::Loopback)),
            ("tcp://pool-1:9", Some(Reach::Anywhere)),
            ("tcp://POOL-1:9", Some(Reach::Anywhere)),
            ("tcp://[2001:db8::1]:9", Some(Reach::Anywhere)),
            ("tcp://10.0.0.7:5557", Some(Reach::Anywhere)),
            ("tcp://10.0.0.7:5558", None),
            ("tcp://169.254.169.254:80", None),
            ("ipc:///run/docker.sock", None),
        ] {
            assert_eq!(reach(endpoint, Rights::Local), expected, "{endpoint}");
            assert_eq!(reach(endpoint, Rights::Token), Some(Reach::Anywhere));
        }
        for wrong in ["", "a b", "tcp://", "http://a:1"] {
            assert!(wrong.parse::<Allowed>().is_err(), "{wrong}");
        }
    }
}
