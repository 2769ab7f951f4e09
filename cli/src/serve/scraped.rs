//! `serve --metrics`: answers scrapes of Prometheus.
//!
//! What is counted is read when it is asked for. Between scrapes nothing is done.

#[cfg(feature = "cluster")]
use super::of_node;
#[cfg(feature = "cluster")]
use super::serving::Serving;
use super::serving::Watched;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use oneread::Server;
use oneread::internals::conversations::{Conversation, Conversations, left, write_by};
use oneread_kit::show;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// No socket can have this address.
    #[error(
        "no address to answer scrapes at; give IP:PORT, as 127.0.0.1:9464, [::1]:9464, or 0.0.0.0:9464 for every network"
    )]
    Address,
    /// The socket cannot be bound.
    #[error("scrapes cannot be answered at {address}{}", match source.kind() {
        io::ErrorKind::AddrInUse => "; give another port by --metrics, or port 0 for any that is free",
        io::ErrorKind::AddrNotAvailable => "; give an address of this host by --metrics",
        io::ErrorKind::PermissionDenied => "; give a port from 1024 on by --metrics",
        _ => "",
    })]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// The address of `--metrics`.
pub fn address(given: &str) -> Result<SocketAddr, MetricsError> {
    given.parse().map_err(|_| MetricsError::Address)
}

/// Where scrapes come to. Nobody answers them yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// Scrapes at the same time. For one more, another gives way that waits for its client.
const AT_ONCE: usize = 8;
/// Time for a scrape to say all that it wants, and time to take all of the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request, in bytes.
const REQUEST_MAX: usize = 8 << 10;

impl Listener {
    /// Takes the address.
    pub fn bind(address: SocketAddr) -> Result<Listener, MetricsError> {
        let bind = || {
            let listener = TcpListener::bind(address)?;
            let address = listener.local_addr()?;
            Ok(Listener { listener, address })
        };
        bind().map_err(|source| MetricsError::Bind { address, source })
    }

    /// Where Prometheus finds the metrics.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Answers from now on, by a thread of its own that ends with the process.
    pub fn answer(self, scraped: impl Scraped) -> io::Result<()> {
        let exporter = Arc::new(Exporter::new(scraped));
        let named = || std::thread::Builder::new().name("oneread-metrics".into());
        let answer = move || {
            let under_way = Conversations::new(AT_ONCE);
            loop {
                let Ok((stream, peer)) = self.listener.accept() else {
                    // No file descriptor is left, say.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                };
                let Some(one) = under_way.begin(stream, peer.ip().to_canonical()) else { continue };
                let exporter = exporter.clone();
                let one = named().spawn(move || {
                    // Who hangs up early gets no answer.
                    let _ = exporter.converse(&one);
                });
                if let Err(error) = one {
                    show::complain(format_args!("oneread: a scrape is not answered: {error}"));
                }
            }
        };
        named().spawn(answer).map(drop)
    }
}

/// What is scraped.
pub trait Scraped: Send + Sync + 'static {
    /// Gives all that is counted at present to the recorder that is in force here, and returns the histograms. `None` if the
    /// server stops.
    fn scrape(&self) -> Option<String>;
}

impl Scraped for Watched {
    fn scrape(&self) -> Option<String> {
        let serving = self.lock().unwrap_or_else(PoisonError::into_inner);
        let serving = serving.as_ref()?;
        #[cfg(feature = "cluster")]
        if let Serving::Node(node) = serving {
            of_node::record(node.status().as_ref());
        }
        Some(record(serving.server()))
    }
}

/// A server of another program.
impl Scraped for Arc<Mutex<Option<Server>>> {
    fn scrape(&self) -> Option<String> {
        let server = self.lock().unwrap_or_else(PoisonError::into_inner);
        server.as_ref().map(record)
    }
}

fn record(server: &Server) -> String {
    oneread::metrics::record(server, &[]);
    oneread::metrics::prometheus_histograms(server, &[])
}

/// Answers scrapes of this server at an address, as in 127.0.0.1:9464, until the process ends. Returns where.
///
/// # Errors
/// With what to do about it.
pub fn answer_scrapes(address: &str, server: Arc<Mutex<Option<Server>>>) -> anyhow::Result<String> {
    let listener = Listener::bind(self::address(address)?)?;
    let url = listener.url();
    listener.answer(server)?;
    Ok(url)
}

/// The metrics as text.
struct Exporter<S> {
    recorder: PrometheusRecorder,
    text: PrometheusHandle,
    scraped: S,
}

impl<S: Scraped> Exporter<S> {
    fn new(scraped: S) -> Exporter<S> {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            oneread::metrics::describe();
            #[cfg(feature = "cluster")]
            of_node::describe();
        });
        Exporter { text: recorder.handle(), recorder, scraped }
    }

    /// What the server counts at present. `None` if it stops.
    fn scrape(&self) -> Option<String> {
        let histograms = metrics::with_local_recorder(&self.recorder, || self.scraped.scrape())?;
        Some(self.text.render() + &histograms)
    }

    /// Answers one request, and hangs up.
    fn converse(&self, one: &Conversation) -> io::Result<()> {
        let (status, body) = match asked(one.stream(), Instant::now() + PATIENCE)? {
            Asked::Metrics => match one.work(|| self.scrape())? {
                Some(text) => ("200 OK", text),
                None => ("503 Service Unavailable", "the server stops\n".into()),
            },
            Asked::Other => ("404 Not Found", "the metrics are at /metrics\n".into()),
            Asked::Method => ("405 Method Not Allowed\r\nAllow: GET", "the metrics are to be read\n".into()),
            Asked::Garbage => ("400 Bad Request", "this is no request that HTTP/1.1 has\n".into()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        write_by(one.stream(), (head + &body).as_bytes(), Instant::now() + PATIENCE)
    }
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Metrics,
    /// Another page.
    Other,
    /// Another method than GET.
    Method,
    Garbage,
}

/// Reads a request's head.
fn asked(mut stream: &TcpStream, until: Instant) -> io::Result<Asked> {
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        let got = stream.read(&mut bytes)?;
        head.extend_from_slice(&bytes[..got]);
        if let Some(asked) = understood(&head) {
            return Ok(asked);
        }
        if got == 0 || head.len() > REQUEST_MAX {
            return Ok(Asked::Garbage);
        }
    }
}

/// What a head asks for. `None` if there must be more of it.
fn understood(head: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(parsed) if parsed.is_partial() => None,
        Err(_) => Some(Asked::Garbage),
        Ok(_) if request.method != Some("GET") => Some(Asked::Method),
        Ok(_) => match request.path.and_then(|path| path.split('?').next()) {
            Some("/metrics") => Some(Asked::Metrics),
            _ => Some(Asked::Other),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    /// A request is understood when its head is whole, and no sooner.
    #[test]
    fn requests_are_understood() {
        let whole = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(understood(&whole[..end]), None, "{end}");
        }
        for (head, asks) in [
            (&whole[..], Asked::Metrics),
            (b"GET /metrics?name=oneread_keys HTTP/1.0\r\n\r\n", Asked::Metrics),
            (b"GET / HTTP/1.1\r\n\r\n", Asked::Other),
            (b"GET /metricsx HTTP/1.1\r\n\r\n", Asked::Other),
            (b"POST /metrics HTTP/1.1\r\n\r\n", Asked::Method),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Asked::Garbage),
            (b"GET /metrics HTTP/9\r\n\r\n", Asked::Garbage),
        ] {
            assert_eq!(understood(head), Some(asks), "{}", head.escape_ascii());
        }
    }

    /// For one scrape too many, the oldest gives way that waits for its client, and is hung up on; none does that is at work.
    #[test]
    fn who_waits_for_his_client_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let pair = || (TcpStream::connect(at).unwrap(), listener.accept().unwrap().0);
        let (under_way, host) = (Conversations::new(AT_ONCE), IpAddr::from([127, 0, 0, 1]));
        let begin = || {
            let (client, stream) = pair();
            (client, under_way.begin(stream, host))
        };
        let all: Vec<_> = (0..AT_ONCE).map(|_| begin()).collect();
        let one = |nth: usize| all[nth].1.as_ref().unwrap();
        let (newest, mut of_second) = (Mutex::new(None), all[1].0.try_clone().unwrap());
        one(0).work(|| *newest.lock().unwrap() = begin().1).unwrap();
        assert!(newest.lock().unwrap().is_some(), "the second has given way");
        assert_eq!(of_second.read(&mut [0]).unwrap(), 0, "it is hung up on");
        assert_eq!(one(1).work(|| ()).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        // The first one waits again, and gives way.
        let tenth = begin().1.unwrap();
        assert!(one(0).work(|| ()).is_err());
        // All are at work: the next one is not taken, and none is hung up on.
        let late = tenth.work(|| {
            let newest = newest.lock().unwrap();
            let others = all[2..].iter().filter_map(|(_, one)| one.as_ref()).chain(newest.as_ref());
            let mut inside: Box<dyn FnOnce() -> bool + '_> = Box::new(|| begin().1.is_none());
            for one in others {
                inside = Box::new(move || one.work(inside).unwrap());
            }
            inside()
        });
        assert!(late.unwrap());
        drop((all, tenth, newest));
        assert!(under_way.count() == 0);
    }

    /// Who takes an answer byte by byte, or not at all, is waited for no longer than for the whole of it.
    #[test]
    fn an_answer_has_a_time_in_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let more_than_buffers = vec![0; 64 << 20];
        let late =
            write_by(&stream, &more_than_buffers, Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert!(matches!(late.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{late}");
        assert!(
            write_by(&stream, b"", Instant::now()).is_ok()
                && write_by(&stream, b"a", Instant::now()).is_err()
        );
        assert!(asked(&stream, Instant::now() + Duration::from_millis(10)).is_err());
    }

    /// A wrong address, and one that is taken, are told apart, each with what to do.
    #[test]
    fn addresses_that_cannot_be_are_told() {
        for wrong in ["", "9464", ":9464", "localhost:9464", "127.0.0.1", "127.0.0.1:99999", "http://[::1]:1"]
        {
            let told = address(wrong).unwrap_err().to_string();
            assert!(told.contains("give IP:PORT"), "{wrong}: {told}");
        }
        let first = Listener::bind(address("127.0.0.1:0").unwrap()).unwrap();
        assert_ne!(first.address.port(), 0);
        let taken = Listener::bind(first.address).unwrap_err();
        assert!(matches!(taken, MetricsError::Bind { address, .. } if address == first.address));
        assert!(taken.to_string().contains("another port"), "{taken}");
        // TEST-NET-1 is no host's.
        let elsewhere = Listener::bind("192.0.2.1:0".parse().unwrap()).unwrap_err();
        assert!(elsewhere.to_string().contains("an address of this host"), "{elsewhere}");
    }
}
