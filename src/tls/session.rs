//! TLS by rustls: who trusts whom, and one connection's session, which stands between frames and a socket that never
//! waits.

use super::error::TlsError;
use super::failed::HandshakeEnded;
use super::lifetime::Lifetime;
use crate::base::sync::lock_std;
use crate::files;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::error::Error;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Bytes that are taken from a socket at once.
const CHUNK: usize = 1 << 14;
/// Most bytes that a session takes to send before it has sent those that it took: what it keeps of them in memory.
const OWED_MAX: usize = 1 << 16;

/// How a client speaks TLS over TCP ([`ClientOptions::tls`](crate::ClientOptions::tls)): whom it trusts, and what it shows.
///
/// Clones share what was read. Equal are clones of one.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// The name in the server's certificate, where it is not the address's.
    name: Option<ServerName<'static>>,
}

/// How a server speaks TLS over TCP ([`ServerConfig::tls`](crate::ServerConfig::tls)): what it shows, and whether it
/// asks clients for a certificate. Clones share what was read, and what is read again ([`ServerTls::read_again`]).
#[derive(Clone, Debug)]
pub struct ServerTls {
    files: Arc<ServerFiles>,
    read: Arc<Mutex<ReadFiles>>,
}

/// What the files held when they were read.
#[derive(Debug)]
struct ReadFiles {
    config: Arc<ServerConfig>,
    lifetime: Lifetime,
}

/// Where a server's certificate, its key, and those stand that clients' certificates come from.
#[derive(Debug)]
struct ServerFiles {
    certificate: PathBuf,
    key: PathBuf,
    client_authorities: Option<PathBuf>,
}

/// A connection's TLS, which goes on as its socket does. Between calls it keeps no byte for the side that it serves.
#[derive(Debug)]
pub(crate) struct TlsSession(Connection);

impl ClientTls {
    /// Trusts servers with a certificate that comes from one of the authorities in this file, or is one of these
    /// certificates itself where it may be. All files are in PEM's format, and are read now.
    ///
    /// `own` are the files of the client's own certificate, which those come after that it comes from, and of its
    /// key: for servers that ask for one.
    ///
    /// # Errors
    /// [`TlsError`]: a file, a certificate or a key cannot be used.
    ///
    /// ```no_run
    /// use oneread::{Address, Client, ClientOptions, ClientTls};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = ClientOptions::new().tls(ClientTls::new("ca.pem", None)?);
    /// let client = Client::connect_with(&"tcp://db.example:7471".parse::<Address>()?, options)?;
    /// # Ok(()) }
    /// ```
    pub fn new(authorities: impl AsRef<Path>, own: Option<(&Path, &Path)>) -> Result<ClientTls, TlsError> {
        let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
        let builder = builder.with_protocol_versions(&[&TLS13]).expect("the provider has it");
        let builder = builder.with_root_certificates(roots(authorities.as_ref())?);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(certificates(chain)?, private_key(key)?)
                .map_err(|error| unusable(chain, error))?,
        };
        Ok(ClientTls { config: config.into(), name: None })
    }

    /// These options, for servers whose certificate is for this name, and not for the host that the address names.
    ///
    /// # Errors
    /// [`TlsError::Name`].
    pub fn server_name(self, name: &str) -> Result<ClientTls, TlsError> {
        let named = ServerName::try_from(name.to_owned());
        let named = named.map_err(|_| TlsError::Name { name: name.into() })?;
        Ok(ClientTls { name: Some(named), ..self })
    }

    /// Begins to speak TLS with a server at this host.
    pub(crate) fn session(&self, host: &str) -> io::Result<TlsSession> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        let connection = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        Ok(TlsSession::of(connection.into()))
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &ClientTls) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

impl Eq for ClientTls {}

impl ServerTls {
    /// Shows the certificate in this file, which those come after that it comes from, and has its key in another one.
    /// All files are in PEM's format, and are read now, and when [`ServerTls::read_again`] is called.
    ///
    /// With `client_authorities`, only clients come in that show a certificate of one of the authorities in that file.
    ///
    /// # Errors
    /// [`TlsError`]: a file, a certificate or a key cannot be used.
    pub fn new(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
        client_authorities: Option<&Path>,
    ) -> Result<ServerTls, TlsError> {
        let files = ServerFiles {
            certificate: certificate.as_ref().into(),
            key: key.as_ref().into(),
            client_authorities: client_authorities.map(Path::to_owned),
        };
        let read = Arc::new(Mutex::new(files.read()?));
        Ok(ServerTls { files: Arc::new(files), read })
    }

    /// Reads the files again, for certificates that were renewed. A running server shows the new one to clients that
    /// connect from then on, and asks them for one of the new authorities; who is connected stays. It waits for the disk, and
    /// no client waits for it.
    ///
    /// # Errors
    /// [`TlsError`]: a file, a certificate or a key cannot be used. Then what was read before stays in use.
    pub fn read_again(&self) -> Result<(), TlsError> {
        let read = self.files.read()?;
        *lock_std(&self.read) = read;
        Ok(())
    }

    /// Looks at the time of what is shown: warns a week before the certificate ends, and when it has ended. To be called now
    /// and then.
    pub(crate) fn look(&self) {
        lock_std(&self.read).lifetime.look(UnixTime::now());
    }

    /// Seconds until the certificate ends that clients are shown; below 0, since then.
    pub(crate) fn left_seconds(&self) -> Option<i64> {
        lock_std(&self.read).lifetime.left_seconds(UnixTime::now())
    }

    /// Whether clients come in with a certificate only.
    pub(crate) fn asks_clients(&self) -> bool {
        self.files.client_authorities.is_some()
    }

    /// Begins to speak TLS with a client.
    pub(crate) fn session(&self) -> io::Result<TlsSession> {
        let config = lock_std(&self.read).config.clone();
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(TlsSession::of(connection.into()))
    }
}

impl ServerFiles {
    fn read(&self) -> Result<ReadFiles, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(&[&TLS13]).expect("the provider has it");
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let roots = Arc::new(roots(authorities)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| unusable(authorities, error))?)
            }
        };
        let shown = certificates(&self.certificate)?;
        let config = builder
            .with_single_cert(shown.clone(), private_key(&self.key)?)
            .map_err(|error| unusable(&self.certificate, error))?;
        let lifetime = Lifetime::of(&self.certificate, &shown, UnixTime::now());
        Ok(ReadFiles { config: config.into(), lifetime })
    }
}

impl TlsSession {
    fn of(mut connection: Connection) -> TlsSession {
        connection.set_buffer_limit(Some(OWED_MAX));
        TlsSession(connection)
    }

    /// Takes what has come and adds the peer's bytes to `into`. Returns how many, and 0 at the end. Sends, too, what
    /// the handshake says in turn.
    pub fn take(&mut self, mut socket: impl Read + Write, into: &mut Vec<u8>) -> io::Result<usize> {
        let mut sealed = [0; CHUNK];
        let before = into.len();
        loop {
            let came = match socket.read(&mut sealed) {
                Ok(0) if self.0.is_handshaking() => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, HandshakeEnded));
                }
                Ok(0) => return Ok(0),
                Ok(came) => came,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let mut rest = &sealed[..came];
            let mut is_over = false;
            while !rest.is_empty() && !is_over {
                self.0.read_tls(&mut rest)?;
                let state = self.0.process_new_packets().map_err(|error| {
                    // The peer is told why, if it still listens.
                    let _ = self.0.write_tls(&mut socket);
                    io::Error::new(io::ErrorKind::InvalidData, error)
                })?;
                is_over = state.peer_has_closed();
                let (at, plain) = (into.len(), state.plaintext_bytes_to_read());
                into.resize(at + plain, 0);
                self.0.reader().read_exact(&mut into[at..])?;
            }
            match self.flush(&mut socket) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                flushed => flushed?,
            }
            if into.len() > before || is_over {
                return Ok(into.len() - before);
            }
        }
    }

    /// Takes some of these bytes, and sends them as far as the socket takes them. None, with the error that the
    /// socket would block, before all that was taken earlier is sent.
    pub fn send(&mut self, mut socket: impl Write, bytes: &[u8]) -> io::Result<usize> {
        self.flush(&mut socket)?;
        let taken = self.0.writer().write(&bytes[..bytes.len().min(OWED_MAX)])?;
        match self.flush(&mut socket) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ if taken == 0 && !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(taken),
        }
    }

    /// Sends what was taken. The error that the socket would block means that some is left.
    pub fn flush(&mut self, mut socket: impl Write) -> io::Result<()> {
        while self.0.wants_write() {
            match self.0.write_tls(&mut socket) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                sent => {
                    sent?;
                }
            }
        }
        Ok(())
    }

    /// Bytes that it may have in memory: its keys and state, a record that has not come whole, and what it took to send.
    pub fn held_bytes(&self) -> usize {
        /// Measured: a session after its handshake, with the room of a record.
        const STATE: usize = 24 << 10;
        STATE + if self.is_owing() { OWED_MAX } else { 0 }
    }

    /// Whether some is left to be sent.
    pub fn is_owing(&self) -> bool {
        self.0.wants_write()
    }
}

// ---- files --------------------------------------------------------------------------------------------

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| unusable(path, error))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    const WHAT: &str = "certificate";
    let text = files::read(path).map_err(|error| unreadable(WHAT, path, error))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| unreadable(WHAT, path, error))?;
    if all.is_empty() { Err(TlsError::Empty { what: WHAT, path: path.into() }) } else { Ok(all) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    use rustls::pki_types::pem::Error::NoItemsFound;
    const WHAT: &str = "private key";
    let text = files::read_secret(path).map_err(|error| unreadable(WHAT, path, error))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        NoItemsFound => TlsError::Empty { what: WHAT, path: path.into() },
        error => unreadable(WHAT, path, error),
    })
}

fn unreadable(what: &'static str, path: &Path, error: impl Error + Send + Sync + 'static) -> TlsError {
    TlsError::File { what, path: path.into(), source: Box::new(error) }
}

fn unusable(path: &Path, error: impl Error + Send + Sync + 'static) -> TlsError {
    TlsError::Certificate { path: path.into(), source: Box::new(error) }
}
