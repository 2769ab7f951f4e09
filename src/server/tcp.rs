//! How clients over TCP join: the port, and their proofs.

use super::caller::{Role, Tokens};
use super::error::ServeError;
use super::shared::ServerState;
use crate::address::{Address, TcpAddress};
use crate::tls::ServerTls;
use crate::wire::proof::{Nonce, Statement, Token, TokenProof};
use crate::wire::{LEVEL, PROTOCOL_VERSION, Reply};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

/// The roles in proofs.
pub(crate) const CLIENT: &[u8] = b"oneread tcp client";
pub(crate) const SERVER: &[u8] = b"oneread tcp server";

/// The host's addresses.
///
/// # Errors
/// If there are none, or if other hosts could connect without a token or a certificate.
pub(super) fn places(at: &TcpAddress, tokens: &Tokens) -> Result<Vec<SocketAddr>, ServeError> {
    let address = || Address::Tcp(at.clone());
    let places = (at.host(), at.port()).to_socket_addrs();
    let places: Vec<_> =
        places.map_err(|source| ServeError::ListenTcp { address: address(), source })?.collect();
    let is_open = tokens.change.is_empty() && !tokens.tls.as_ref().is_some_and(ServerTls::asks_clients);
    if is_open && places.iter().any(|place| !place.ip().to_canonical().is_loopback()) {
        return Err(ServeError::NoToken { address: address() });
    }
    Ok(places)
}

/// Listens at the first of the host's addresses ([`places`]) that is free. Returns the address with its port, too.
///
/// # Errors
/// If none is free.
pub(super) fn listen(
    places: &[SocketAddr],
    at: &TcpAddress,
) -> Result<(TcpListener, TcpAddress), ServeError> {
    let address = || Address::Tcp(at.clone());
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::AddressInUse { address: address() },
        _ => ServeError::ListenTcp { address: address(), source },
    };
    let listener = TcpListener::bind(places).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, at.with_port(port)))
}

/// The statement that a client proves. It has only the client's number.
fn joins<'a>(server: &'a Nonce, client: &'a Nonce) -> Statement<'a> {
    Statement { role: CLIENT, server, client, message: &PROTOCOL_VERSION_BYTES }
}

const PROTOCOL_VERSION_BYTES: [u8; 4] = PROTOCOL_VERSION.to_le_bytes();

/// The client's proof.
pub(crate) fn prove_client(token: &Token, server: &Nonce, client: &Nonce) -> TokenProof {
    joins(server, client).prove(token)
}

/// The rights of a client that has proven to know a token, and the server's reply. `None` if it has not.
pub(super) fn admit(
    shared: &ServerState,
    server: &Nonce,
    client: &Nonce,
    proof: &TokenProof,
) -> Option<(Role, Reply)> {
    let Tokens { change, read, .. } = &shared.tokens;
    let said = joins(server, client);
    let (role, token) = Role::proven(change, read, |token| said.is_proven(token, proof))?;
    let about = Box::new(about(shared));
    let proof = Statement { role: SERVER, server, client, message: &about[..] }.prove(token);
    Some((role, Reply::Table { proof, about }))
}

/// The server's level, and the superblock.
fn about(shared: &ServerState) -> crate::wire::TableBytes {
    let mut about = [0; size_of::<crate::wire::TableBytes>()];
    let words = std::iter::once(u64::from(LEVEL));
    let words = words.chain((0..).map(|word| shared.index.region().load(word)));
    for (place, word) in about.chunks_exact_mut(size_of::<u64>()).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    about
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Others than this host need a token.
    #[test]
    fn nobody_listens_beyond_this_host_without_a_token() {
        let (none, some) = (Tokens::default(), Tokens { change: Token::new("secret"), ..Tokens::default() });
        let listen = |at: &TcpAddress, tokens: &Tokens| listen(&places(at, tokens)?, at);
        for host in ["0.0.0.0", "::", "[::ffff:0.0.0.0]"] {
            let refused = listen(&TcpAddress::new(host, 0), &none).unwrap_err();
            assert!(matches!(refused, ServeError::NoToken { .. }), "{host}: {refused}");
        }
        // Whoever comes may change the table, whatever readers must know.
        let readers = Tokens { read: Token::new("for readers"), ..Tokens::default() };
        let refused = listen(&TcpAddress::new("0.0.0.0", 0), &readers).unwrap_err();
        assert!(matches!(refused, ServeError::NoToken { .. }), "{refused}");
        assert!(listen(&TcpAddress::new("127.0.0.1", 0), &readers).is_ok());
        let (listener, at) = listen(&TcpAddress::new("127.0.0.1", 0), &none).unwrap();
        assert_eq!(at.port(), listener.local_addr().unwrap().port());
        listen(&TcpAddress::new("0.0.0.0", 0), &some).unwrap();
        let taken = listen(&at, &none).unwrap_err();
        assert!(matches!(taken, ServeError::AddressInUse { .. }), "{taken}");
        let nowhere = listen(&TcpAddress::new("192.0.2.1", 0), &some).unwrap_err();
        assert!(matches!(nowhere, ServeError::ListenTcp { .. }), "{nowhere}");
    }
}
