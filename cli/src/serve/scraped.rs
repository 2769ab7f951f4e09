//! `serve --metrics`: answers scrapes of Prometheus.
//!
//! What is counted is read when it is asked for. Between scrapes nothing is done.

#[cfg(feature = "cluster")]
use super::of_node;
#[cfg(feature = "cluster")]
use super::serving::Serving;
use super::serving::Watched;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use oneread_kit::show;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
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

/// Scrapes at the same time. More are hung up on.
const AT_ONCE: usize = 8;
/// Time for a scrape to say what it wants, and to take each part of the answer.
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
    pub fn answer(self, server: Watched) -> io::Result<()> {
        let exporter = Arc::new(Exporter::new(server));
        let named = || std::thread::Builder::new().name("oneread-metrics".into());
        let answer = move || {
            let under_way = Arc::new(AtomicUsize::new(0));
            for stream in self.listener.incoming() {
                let Ok(stream) = stream else {
                    // No file descriptor is left, say.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                };
                // Relaxed: only this thread counts up, and it is but a bound.
                if under_way.load(Ordering::Relaxed) >= AT_ONCE {
                    continue;
                }
                under_way.fetch_add(1, Ordering::Relaxed);
                let (exporter, counted) = (exporter.clone(), under_way.clone());
                let one = named().spawn(move || {
                    // Who hangs up early gets no answer.
                    let _ = exporter.converse(stream);
                    counted.fetch_sub(1, Ordering::Relaxed);
                });
                if let Err(error) = one {
                    under_way.fetch_sub(1, Ordering::Relaxed);
                    show::complain(format_args!("oneread: a scrape is not answered: {error}"));
                }
            }
        };
        named().spawn(answer).map(drop)
    }
}

/// The metrics as text.
struct Exporter {
    recorder: PrometheusRecorder,
    text: PrometheusHandle,
    server: Watched,
}

impl Exporter {
    fn new(server: Watched) -> Exporter {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            oneread::metrics::describe();
            #[cfg(feature = "cluster")]
            of_node::describe();
        });
        Exporter { text: recorder.handle(), recorder, server }
    }

    /// What the server counts at present. `None` if it stops.
    fn scrape(&self) -> Option<String> {
        let serving = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let serving = serving.as_ref()?;
        let server = serving.server();
        metrics::with_local_recorder(&self.recorder, || {
            oneread::metrics::record(server, &[]);
            #[cfg(feature = "cluster")]
            if let Serving::Node(node) = serving {
                of_node::record(node.status().as_ref());
            }
        });
        Some(self.text.render() + &oneread::metrics::prometheus_histograms(server, &[]))
    }

    /// Answers one request, and hangs up.
    fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let (status, body) = match asked(&mut stream, Instant::now() + PATIENCE)? {
            Asked::Metrics => match self.scrape() {
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
        stream.write_all((head + &body).as_bytes())
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
fn asked(stream: &mut TcpStream, until: Instant) -> io::Result<Asked> {
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
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
