//! Over TLS a client does what it does over TCP, nobody on the way reads or changes it, and each side knows the other.

use crate::common::{Numbers, SOON, is_a_map, key, on_every_preset, patient, value, with_causes};
use oneread::internals::wire::{PROTOCOL_VERSION, Request};
use oneread::{
    Address, Client, ClientOptions, ClientTls, Config, ConnectError, ErrorKind, GetError, ServeError, Server,
    ServerConfig, ServerTls, TableSize, TcpAddress, Token, error::TlsError,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "a token for tests";

/// An authority, and certificates that come from it.
struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { dir, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn root(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// The files of a certificate for these names, and of its key.
    fn certify(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (PathBuf, PathBuf) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let file = if names.is_empty() { "nobody".into() } else { names.join("+") };
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (self.path(&format!("{file}.pem")), self.path(&format!("{file}.key")));
        std::fs::write(&paths.0, certificate.pem()).unwrap();
        // Nobody else may read a key.
        let mut file = OpenOptions::new();
        let file = file.write(true).create(true).truncate(true).mode(0o600).open(&paths.1);
        file.unwrap().write_all(key.serialize_pem().as_bytes()).unwrap();
        paths
    }

    /// For servers of this host.
    fn server(&self) -> ServerTls {
        let (certificate, key) = self.certify(&["localhost", "127.0.0.1", "::1"], |_| {});
        ServerTls::new(certificate, key, None).unwrap()
    }

    fn client(&self) -> ClientTls {
        ClientTls::new(self.root(), None).unwrap()
    }
}

fn small() -> Config {
    Config::new().size(TableSize::Keys(10_000)).key_max(16).value_max(3 << 20)
}

fn served(tls: impl Into<Option<ServerTls>>) -> ServerConfig {
    ServerConfig::new(Address::Tcp(TcpAddress::new("127.0.0.1", 0)), small())
        .token(Token::new(TOKEN))
        .tls(tls)
}

fn options(tls: impl Into<Option<ClientTls>>) -> ClientOptions {
    patient().token(Token::new(TOKEN)).tls(tls)
}

fn port_of(server: &Server) -> u16 {
    server.tcp_address().unwrap().port()
}

fn pair(n: u32) -> (Vec<u8>, Vec<u8>) {
    (key(n, 16), value(u64::from(n), n as usize % 101))
}

/// On every preset, one key at a time and in batches, over connections that begin anew.
#[test]
fn a_client_is_a_map() {
    let authority = Authority::new("ours");
    let (server_tls, client_tls) = (authority.server(), authority.client());
    on_every_preset(|preset| {
        let table = crate::common::config(preset, 64, 16, 46, 7);
        let server = Server::start(served(server_tls.clone()).table(table)).unwrap();
        is_a_map(&mut Client::connect_with(server.address(), options(client_tls.clone())).unwrap());
    });
}

/// Long values come in pieces, many requests are under way at once, and a server that waits until its client reads
/// goes on when it does.
#[test]
fn long_values_and_long_batches() {
    let authority = Authority::new("ours");
    let server = Server::start(served(authority.server()).unread_bytes_max(1 << 12)).unwrap();
    let mut client = Client::connect_with(server.address(), options(authority.client())).unwrap();
    for len in [0, 1, (60 << 10) - 1, (60 << 10) + 1, 1 << 20, 3 << 20] {
        let put = value(len as u64, len);
        client.put(b"long", &put).unwrap();
        assert_eq!(client.get(b"long").unwrap(), Some(put), "{len} bytes");
    }
    let pairs: Vec<_> = (0..5_000).map(pair).collect();
    assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
    let keys: Vec<_> = pairs.iter().map(|(key, _)| key).collect();
    let found = client.get_many(&keys).unwrap();
    assert!(found.into_iter().zip(&pairs).all(|(found, (_, put))| found.unwrap().as_ref() == Some(put)));
    assert_eq!(client.stats().reattached, 0);
}

/// Certificates that were renewed are read again: clients that come then are shown the new ones, and those that are
/// there stay. What cannot be read changes nothing.
#[test]
fn certificates_are_read_again() {
    let (ours, next) = (Authority::new("ours"), Authority::new("next"));
    let names = ["localhost", "127.0.0.1"];
    let (certificate, key) = ours.certify(&names, |_| {});
    let tls = ServerTls::new(&certificate, &key, None).unwrap();
    let server = Server::start(served(tls.clone())).unwrap();
    let connect = |authority: &Authority| Client::connect_with(server.address(), options(authority.client()));
    let mut client = connect(&ours).unwrap();
    client.put(b"key", b"value").unwrap();
    let (next_certificate, next_key) = next.certify(&names, |_| {});
    // Only half of it is there yet.
    std::fs::copy(next_certificate, &certificate).unwrap();
    assert!(matches!(tls.read_again(), Err(TlsError::Certificate { .. })));
    std::fs::write(&key, "no key").unwrap();
    assert!(matches!(tls.read_again(), Err(TlsError::Empty { what: "private key", .. })));
    assert!(connect(&ours).is_ok() && connect(&next).is_err());
    std::fs::copy(next_key, &key).unwrap();
    tls.read_again().unwrap();
    assert!(connect(&ours).is_err());
    assert_eq!(connect(&next).unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.stats().reattached, 0);
}

/// Lets `act` work with a client whose bytes, and those of the server, go through `see`. One connection is passed on.
fn relayed(
    server: &Server,
    options: ClientOptions,
    see: impl Fn(Side, &mut [u8]) + Sync,
    act: impl FnOnce(Client),
) {
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", relay.local_addr().unwrap().port()));
    let (to, see) = (port_of(server), &see);
    let pass = move |side, mut from: TcpStream, mut to: TcpStream| {
        let mut bytes = [0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            see(side, &mut bytes[..n]);
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    };
    std::thread::scope(|scope| {
        let relay = &relay;
        scope.spawn(move || {
            let (client, _) = relay.accept().unwrap();
            let there = TcpStream::connect(("127.0.0.1", to)).unwrap();
            let (from, onto) = (client.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::scope(|scope| {
                scope.spawn(move || pass(Side::Client, from, onto));
                pass(Side::Server, there, client);
            });
        });
        act(Client::connect_with(&address, options).unwrap());
    });
}

/// Whose bytes they are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// Whoever passes the bytes on sees no key and no value. Without TLS they see both.
#[test]
fn nobody_reads_on_the_way() {
    const KEY: &[u8] = b"what it is about";
    const VALUE: &[u8] = b"a value that nobody else is to know";
    let authority = Authority::new("ours");
    let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    for is_sealed in [true, false] {
        let server = Server::start(served(is_sealed.then(|| authority.server()))).unwrap();
        let heard = Mutex::new(Vec::new());
        let hear = |_, bytes: &mut [u8]| heard.lock().unwrap().extend_from_slice(bytes);
        relayed(&server, options(is_sealed.then(|| authority.client())), hear, |mut client| {
            client.put(KEY, VALUE).unwrap();
            assert_eq!(client.get(KEY).unwrap().as_deref(), Some(VALUE));
        });
        let heard = heard.into_inner().unwrap();
        assert!(heard.len() > 2 * VALUE.len());
        assert_eq!([contains(&heard, KEY), contains(&heard, VALUE)], [!is_sealed; 2]);
    }
}

/// A byte that is changed on the way ends the connection, and no call returns it.
#[test]
fn nobody_changes_it_on_the_way() {
    let authority = Authority::new("ours");
    let server = Server::start(served(authority.server())).unwrap();
    let put = value(7, 5_000);
    Client::connect_with(server.address(), options(authority.client())).unwrap().put(b"key", &put).unwrap();
    let spoils = AtomicBool::new(false);
    let spoil = |side, bytes: &mut [u8]| {
        if side == Side::Server && spoils.load(Ordering::Relaxed) {
            bytes[bytes.len() / 2] ^= 1;
        }
    };
    let soon = Duration::from_millis(500);
    relayed(&server, options(authority.client()).deadline(soon), spoil, |mut client| {
        assert_eq!(client.get(b"key").unwrap().as_ref(), Some(&put));
        spoils.store(true, Ordering::Relaxed);
        let error = client.get(b"key").unwrap_err();
        // Nobody takes another connection at the relay.
        assert!(matches!(
            error,
            GetError::ServerGone { .. } | GetError::Connect(_) | GetError::Deadline { .. }
        ));
    });
}

/// Whether a client comes in, and if not, why.
fn connects(server: &Server, host: &str, tls: impl Into<Option<ClientTls>>) -> Result<(), ConnectError> {
    let address = Address::Tcp(TcpAddress::new(host, port_of(server)));
    let mut client = Client::connect_with(&address, options(tls))?;
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    Ok(())
}

/// A client speaks to nobody else than to whom its certificate names, and says why not.
#[test]
fn servers_are_who_they_say() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let server = Server::start(served(authority.server())).unwrap();
    for host in ["localhost", "127.0.0.1"] {
        connects(&server, host, authority.client()).unwrap();
    }
    let refused = |server: &Server, tls: ClientTls, why: &str| {
        let error = connects(server, "127.0.0.1", tls).unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
        assert!(with_causes(&error).contains(why), "{}", with_causes(&error));
        assert_eq!(error.kind(), ErrorKind::Refused);
        // What mends one reason is no advice on another one.
        let mend = ["UnknownIssuer", "not valid for name", "expired"];
        let mends = ["give the client its authority", "`ClientTls::server_name`", "have it renewed"];
        let advised = mends.map(|mend| error.to_string().contains(mend));
        assert_eq!(advised, mend.map(|of| of == why), "{error}");
    };
    refused(&server, other.client(), "UnknownIssuer");
    refused(&server, authority.client().server_name("another.example").unwrap(), "not valid for name");
    let (certificate, key) = authority.certify(&["db.example"], |_| {});
    let elsewhere = Server::start(served(ServerTls::new(certificate, key, None).unwrap())).unwrap();
    refused(&elsewhere, authority.client(), "not valid for name");
    connects(&elsewhere, "127.0.0.1", authority.client().server_name("db.example").unwrap()).unwrap();
    let (certificate, key) = authority.certify(&["127.0.0.1"], |params| {
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2001, 1, 1), rcgen::date_time_ymd(2002, 1, 1));
    });
    let old = Server::start(served(ServerTls::new(certificate, key, None).unwrap())).unwrap();
    refused(&old, authority.client(), "expired");
}

/// Where clients must show a certificate, none comes in without one that is trusted. The token is asked for as well.
#[test]
fn clients_are_who_they_say() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let (certificate, key) = authority.certify(&["127.0.0.1"], |_| {});
    let tls = ServerTls::new(certificate, key, Some(&authority.root())).unwrap();
    let server = Server::start(served(tls.clone())).unwrap();
    let with = |of: &Authority| {
        let (certificate, key) = of.certify(&["a client"], |_| {});
        ClientTls::new(authority.root(), Some((&certificate, &key))).unwrap()
    };
    connects(&server, "127.0.0.1", with(&authority)).unwrap();
    for (tls, mend) in [
        (authority.client(), "asks for a certificate"),
        (with(&other), "does not trust this client's certificate"),
    ] {
        let error = connects(&server, "127.0.0.1", tls).unwrap_err();
        assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
        assert!(error.to_string().contains(mend), "{error}");
    }
    let error =
        Client::connect_with(server.address(), options(with(&authority)).token(Token::new("another")));
    assert!(matches!(error.unwrap_err(), ConnectError::Token { .. }));
    // Then a port for other hosts needs no token. With the server's certificate alone it does.
    let everywhere = || Address::Tcp(TcpAddress::new("0.0.0.0", 0));
    let start = |tls| Server::start(ServerConfig::new(everywhere(), small()).tls(tls));
    start(tls).unwrap();
    let refused = start(authority.server()).unwrap_err();
    assert!(matches!(refused, ServeError::NoToken { .. }), "{refused}");
}

/// Whoever does not speak TLS where the other does is told so.
#[test]
fn one_side_alone_is_told() {
    let authority = Authority::new("ours");
    let sealed = Server::start(served(authority.server())).unwrap();
    let error = connects(&sealed, "127.0.0.1", None).unwrap_err();
    assert!(matches!(error, ConnectError::WantsTls { .. }), "{error:?}");
    let open = Server::start(served(None)).unwrap();
    let error = connects(&open, "127.0.0.1", authority.client()).unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
    assert!(with_causes(&error).contains("may speak no TLS"), "{}", with_causes(&error));
    let dir = tempfile::tempdir().unwrap();
    let on_shm = ServerConfig::new(Address::Shm(dir.path().join("s")), small()).tls(authority.server());
    let refused = Server::start(on_shm).unwrap_err();
    assert!(matches!(refused, ServeError::Elsewhere { option: "tls", .. }), "{refused}");
}

/// Bytes that are no TLS, half a handshake, silence: each is hung up on, and nobody else notices.
#[test]
fn strangers_are_hung_up_on() {
    let authority = Authority::new("ours");
    let half_open = Duration::from_millis(200);
    let server = Server::start(served(authority.server()).half_open(half_open)).unwrap();
    let mut client = Client::connect_with(server.address(), options(authority.client())).unwrap();
    client.put(b"key", b"value").unwrap();
    let dial = || {
        let stream = TcpStream::connect(("127.0.0.1", port_of(&server))).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    };
    // The beginning of a real handshake.
    let hello = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(TcpAddress::new("127.0.0.1", listener.local_addr().unwrap().port()));
        let tls = authority.client();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let soon = options(tls).deadline(Duration::from_millis(100));
                Client::connect_with(&address, soon).unwrap_err()
            });
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = vec![0; 5];
            stream.read_exact(&mut hello).unwrap();
            let len = usize::from(u16::from_be_bytes([hello[3], hello[4]]));
            hello.resize(5 + len, 0);
            stream.read_exact(&mut hello[5..]).unwrap();
            hello
        })
    };
    let mut plain = Vec::new();
    Request::Hello { version: PROTOCOL_VERSION }.encode(0, &mut plain);
    let mut numbers = Numbers(1);
    let mut garbage = || (0..3_000).map(|_| numbers.next() as u8).collect::<Vec<u8>>();
    let mut said = vec![Vec::new(), plain, hello[..hello.len() / 2].to_vec(), hello.clone()];
    said.extend((0..20).map(|_| garbage()));
    // A record that says that it is long, and a handshake whose parts are garbage.
    said.push([&[22, 3, 3, 0xff, 0xff][..], &garbage()].concat());
    said.push([&hello, &garbage()[..]].concat());
    said.extend((0..hello.len()).step_by(7).map(|at| {
        let mut spoiled = hello.clone();
        spoiled[at] ^= 0x55;
        spoiled
    }));
    for bytes in said {
        let mut stream = dial();
        stream.write_all(&bytes).unwrap();
        // What it is told is an alert, or the server's part of the handshake: no frame.
        let begun = Instant::now();
        let mut told = Vec::new();
        match stream.read_to_end(&mut told) {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "after {:?}", begun.elapsed())
            }
        }
        assert!(told.is_empty() || matches!(told[..2], [20..=23, 3]), "{told:?}");
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    }
    assert_eq!(client.stats().reattached, 0);
}

/// A server that is killed and started again is found by the same client, and it has its keys.
#[test]
fn the_next_server_is_found() {
    let authority = Authority::new("ours");
    let region = authority.path("region");
    let start = |port| {
        let config = served(authority.server()).start(oneread::StartMode::OpenOrCreate);
        let backing = oneread::Backing::File(region.clone());
        let mut config = config.backing(backing);
        config.address = Address::Tcp(TcpAddress::new("127.0.0.1", port));
        Server::start(config).unwrap()
    };
    let first = start(0);
    let port = port_of(&first);
    let mut client = Client::connect_with(first.address(), options(authority.client())).unwrap();
    client.put(b"key", b"value").unwrap();
    first.stop();
    let _second = start(port);
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(client.put(b"key", b"other").unwrap(), oneread::PutOutcome::Updated);
}

/// A file that is not what it should be is named.
#[test]
fn files_are_named() {
    let authority = Authority::new("ours");
    let (certificate, key) = authority.certify(&["localhost"], |_| {});
    let (_, another) = authority.certify(&["other"], |_| {});
    let [empty, garbage, nowhere] = ["empty", "garbage", "nowhere"].map(|name| authority.path(name));
    std::fs::write(&empty, "no certificate\n").unwrap();
    std::fs::write(&garbage, "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n").unwrap();
    // As files with keys are to be.
    for path in [&empty, &garbage] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    let server = |certificate: &Path, key: &Path| ServerTls::new(certificate, key, None).unwrap_err();
    let client = |authority: &Path| ClientTls::new(authority, None).unwrap_err();
    let told = |error: TlsError, file: &Path, what: &str| {
        let text = with_causes(&error);
        assert!(text.contains(&file.display().to_string()) && text.contains(what), "{text}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    };
    told(server(&nowhere, &key), &nowhere, "reading the certificate");
    told(server(&certificate, &nowhere), &nowhere, "reading the private key");
    told(server(&empty, &key), &empty, "holds no certificate");
    told(server(&certificate, &empty), &empty, "holds no private key");
    told(server(&key, &key), &key, "holds no certificate");
    told(server(&garbage, &key), &garbage, "reading the certificate");
    told(server(&certificate, &another), &certificate, "does not go with its key");
    told(client(&nowhere), &nowhere, "reading the certificate");
    told(client(&empty), &empty, "holds no certificate");
    let error = authority.client().server_name("no name!").unwrap_err();
    assert!(matches!(error, TlsError::Name { .. }), "{error}");
}

/// A client that speaks TLS 1.2 and no newer version is told so, in words of TLS: whatever another crate of the program
/// turns on in rustls, as the processes of a cluster do for etcd.
#[test]
fn older_versions_are_refused() {
    let authority = Authority::new("ours");
    let server = Server::start(served(authority.server())).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port_of(&server))).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // Its hello (RFC 5246, 7.4.1.2): suites of ECDHE with AES-GCM, curve x25519 and P-256, signatures by ECDSA and RSA. There
    // is no extension that names versions, which only TLS 1.3 has.
    let extensions = [
        &[0x00, 0x0a, 0x00, 0x06, 0x00, 0x04, 0x00, 0x1d, 0x00, 0x17][..],
        &[0x00, 0x0b, 0x00, 0x02, 0x01, 0x00],
        &[0x00, 0x0d, 0x00, 0x08, 0x00, 0x06, 0x04, 0x03, 0x08, 0x04, 0x04, 0x01],
        &[0x00, 0x17, 0x00, 0x00],
    ]
    .concat();
    let mut body = vec![0x03, 0x03];
    body.extend([7; 32]);
    body.extend([0x00, 0x00, 0x04, 0xc0, 0x2b, 0xc0, 0x2f, 0x01, 0x00, 0x00, extensions.len() as u8]);
    body.extend(&extensions);
    let message = [&[0x01, 0x00, 0x00, body.len() as u8][..], &body].concat();
    let record = [&[0x16, 0x03, 0x01, 0x00, message.len() as u8][..], &message].concat();
    stream.write_all(&record).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    // An alert, fatal: the version of the protocol (70).
    assert_eq!((answer.first(), answer.get(5..7)), (Some(&0x15), Some(&[0x02, 0x46][..])), "{answer:02x?}");
}
