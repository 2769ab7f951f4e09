//! HTTP/1.1, as much of it as an indexer's clients need: a thread for each connection, and a bound for everything.
//!
//! | what | most | then |
//! |---|---|---|
//! | connections | [`CONNECTIONS_MAX`] | one gives way that waits for its client, of the host that has most |
//! | the head of a request | [`HEAD_MAX`] bytes | 431 |
//! | its body | [`BODY_MAX`] bytes | 413 |
//! | bodies and answers under way | [`BYTES_MAX`] bytes | 503 |
//! | an answer in the system's memory, of one that does not take it | [`SENT_MAX`] bytes | it waits |
//! | the time of a request, from its first byte to its last | [`REQUEST`] | the connection ends |
//! | the time for an answer, or each part of a long one, to be taken | [`ANSWER`] | the connection ends |
//! | the time between requests | [`IDLE`] | the connection ends |
//!
//! A connection that ends because its client does not take an answer is reset: what the system still has of it goes.
//!
//! Why no framework: what a request costs here are lookups, which block, and each has a thread then anyway. `hyper` and
//! what it needs are some twenty crates, and wants a runtime; `httparse` is one, which `serve --metrics` has already.

use oneread::internals::conversations::{Conversation, Conversations, left, write_by};
use rustix::net::sockopt;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most connections.
pub const CONNECTIONS_MAX: usize = 512;
/// The longest head, in bytes.
pub const HEAD_MAX: usize = 16 << 10;
/// The longest body: a million tokens fit.
pub const BODY_MAX: usize = 16 << 20;
/// Bytes of all bodies and answers that are under way, those of [`FREE`] bytes and less aside.
pub const BYTES_MAX: usize = 256 << 20;
/// A body or an answer of so many bytes is always taken.
const FREE: usize = 64 << 10;
/// Bytes of an answer that the system keeps for a client that does not take them. It sets as many aside for itself.
pub const SENT_MAX: usize = 128 << 10;
/// From the first byte of a request to its last.
pub const REQUEST: Duration = Duration::from_secs(10);
/// For an answer to be taken, or each part of a long one.
pub const ANSWER: Duration = Duration::from_secs(10);
/// Between requests.
pub const IDLE: Duration = Duration::from_secs(120);
const STACK: usize = 512 << 10;

/// What bounds conversations. Tests have other bounds.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    connections: usize,
    bytes: usize,
    request: Duration,
    answer: Duration,
    idle: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: CONNECTIONS_MAX,
            bytes: BYTES_MAX,
            request: REQUEST,
            answer: ANSWER,
            idle: IDLE,
        }
    }
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// GET, POST.
    pub method: String,
    /// The path, without what is behind `?`.
    pub path: String,
    /// What is behind `?`.
    pub query: String,
    /// What `Authorization` says.
    pub authorization: Option<String>,
    /// What `Content-Type` says.
    pub content_type: Option<String>,
    /// What `Host` says.
    pub host: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// Writes the parts of a long answer.
pub type Parts = Box<dyn FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> + Send>;

/// What an answer has.
pub enum Body {
    /// All of it.
    Whole(Vec<u8>),
    /// What is written part by part.
    Parts(Parts),
}

impl Body {
    /// Bytes that are there at once.
    fn bytes(&self) -> usize {
        match self {
            Body::Whole(bytes) => bytes.len(),
            Body::Parts(_) => 0,
        }
    }
}

/// An answer.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Body,
}

impl Answer {
    /// Of JSON.
    pub fn json(status: u16, value: &impl serde::Serialize) -> Answer {
        // What is answered has a form in JSON.
        let body = Body::Whole(serde_json::to_vec(value).unwrap_or_default());
        Answer { status, content_type: "application/json", body }
    }

    /// Of an error, as an indexer's clients know it.
    pub fn error(status: u16, error: &dyn std::fmt::Display) -> Answer {
        Answer::json(status, &serde_json::json!({ "error": error.to_string() }))
    }

    /// Of text.
    pub fn text(text: String) -> Answer {
        let content_type = "text/plain; version=0.0.4; charset=utf-8";
        Answer { status: 200, content_type, body: Body::Whole(text.into_bytes()) }
    }
}

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one.
    fn answer(&self, request: &Request) -> Answer;
}

fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Unknown",
    }
}

// ---- connections ------------------------------------------------------------------------------------

/// Where requests come to.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// Answers requests until it is stopped.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    connections: Conversations,
}

impl Listener {
    /// Takes an address.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        Ok(Listener { listener, address })
    }

    /// The address, with the port that it got.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn serve(self, handler: Arc<dyn Handler>) -> io::Result<Serving> {
        self.serve_within(Bounds::default(), handler).map(|(serving, _)| serving)
    }

    fn serve_within(self, bounds: Bounds, handler: Arc<dyn Handler>) -> io::Result<(Serving, Arc<UnderWay>)> {
        let (is_stopped, connections) =
            (Arc::new(AtomicBool::new(false)), Conversations::new(bounds.connections));
        let under_way = Arc::new(UnderWay { bytes: AtomicUsize::new(0), max: bounds.bytes });
        let serving = Serving {
            address: self.address,
            is_stopped: is_stopped.clone(),
            connections: connections.clone(),
        };
        let counted = under_way.clone();
        let named = || std::thread::Builder::new().name("oneread-kv-http".into()).stack_size(STACK);
        let accept = move || {
            while !is_stopped.load(Ordering::Relaxed) {
                let Ok((stream, peer)) = self.listener.accept() else {
                    // No file descriptor is left, say.
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                };
                if is_stopped.load(Ordering::Relaxed) {
                    break;
                }
                let _ = stream.set_nodelay(true);
                // Otherwise the system keeps some MB of an answer that its client does not take.
                let _ = sockopt::set_socket_send_buffer_size(&stream, SENT_MAX);
                let Some(one) = connections.begin(stream, peer.ip().to_canonical()) else { continue };
                let (handler, under_way) = (handler.clone(), under_way.clone());
                // Without a thread the connection ends.
                let _ = named().spawn(move || {
                    // Who hangs up, or says what is no request, gets no more answers.
                    let _ = converse(&one, &*handler, &under_way, bounds);
                });
            }
        };
        named().spawn(accept)?;
        Ok((serving, counted))
    }
}

impl Serving {
    /// Answers no more: all connections end.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Wakes who waits for the next connection.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        self.connections.hang_up();
    }
}

/// Answers the requests of a connection, until it ends.
fn converse(
    one: &Conversation,
    handler: &dyn Handler,
    under_way: &UnderWay,
    bounds: Bounds,
) -> io::Result<()> {
    const MANY: &str = "too many long answers are under way; try again";
    let mut reading = Reading { stream: one.stream(), buffer: Vec::new(), used: 0, bounds };
    loop {
        let (head, until) = match reading.head()? {
            HeadRead::Whole(head, until) => (head, until),
            HeadRead::Refused(status, why) => return refuse(one.stream(), status, why, bounds.answer),
            HeadRead::End => return Ok(()),
        };
        let mut taken = Taken { of: under_way, bytes: 0 };
        let body = match reading.body(&head, &mut taken, until)? {
            Ok(body) => body,
            Err((status, why)) => return refuse(one.stream(), status, why, bounds.answer),
        };
        let is_last = head.is_last;
        let request = Request { body, ..head.request };
        let mut answer = one.work(|| handler.answer(&request))?;
        one.waits_anew()?;
        drop(request);
        if !taken.take(answer.body.bytes()) {
            answer = Answer::error(503, &MANY);
        }
        say(one.stream(), answer, is_last, bounds.answer)?;
        if is_last {
            return Ok(());
        }
    }
}

fn refuse(stream: &TcpStream, status: u16, why: &'static str, within: Duration) -> io::Result<()> {
    say(stream, Answer::error(status, &why), true, within)
}

/// Bytes of bodies and answers, beyond [`FREE`] of each.
#[derive(Debug)]
struct UnderWay {
    bytes: AtomicUsize,
    max: usize,
}

/// Bytes of a body, then of the answer to it, which count until this is dropped.
struct Taken<'a> {
    of: &'a UnderWay,
    bytes: usize,
}

impl Taken<'_> {
    /// Takes so many bytes in all from now on. Returns whether it may; otherwise it takes those of before.
    fn take(&mut self, bytes: usize) -> bool {
        let (before, bytes) = (self.bytes, bytes.saturating_sub(FREE));
        let next =
            |all: usize| Some(all - before + bytes).filter(|all| bytes <= before || *all <= self.of.max);
        let may = self.of.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok();
        if may {
            self.bytes = bytes;
        }
        may
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// ---- reading ----------------------------------------------------------------------------------------

/// A head, and how its body is sent.
#[derive(Debug)]
struct Head {
    request: Request,
    /// Bytes of the body. `None`: it comes in chunks.
    length: Option<usize>,
    /// The client waits to be told that it may send the body.
    is_asked: bool,
    is_last: bool,
}

enum HeadRead {
    /// A head, and until when the whole request is to be there.
    Whole(Head, Instant),
    Refused(u16, &'static str),
    End,
}

struct Reading<'a> {
    stream: &'a TcpStream,
    buffer: Vec<u8>,
    used: usize,
    bounds: Bounds,
}

impl Reading<'_> {
    /// Reads some more. Returns whether there was any.
    fn more(&mut self, until: Instant) -> io::Result<bool> {
        self.buffer.drain(..std::mem::take(&mut self.used));
        let mut bytes = [0; 16 << 10];
        let read = self.read(&mut bytes, until)?;
        self.buffer.extend_from_slice(&bytes[..read]);
        Ok(read > 0)
    }

    fn read(&self, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(left(until)?))?;
            match (&mut &*self.stream).read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.used..]
    }

    fn head(&mut self) -> io::Result<HeadRead> {
        if self.rest().is_empty() {
            self.buffer = Vec::new();
            self.used = 0;
            match self.more(Instant::now() + self.bounds.idle) {
                Ok(true) => {}
                Ok(false) | Err(_) => return Ok(HeadRead::End),
            }
        }
        let until = Instant::now() + self.bounds.request;
        loop {
            match understood(self.rest()) {
                Understood::Whole(head, bytes) => {
                    self.used += bytes;
                    return Ok(HeadRead::Whole(head, until));
                }
                Understood::Refused(status, why) => return Ok(HeadRead::Refused(status, why)),
                Understood::Partly if self.rest().len() > HEAD_MAX => {
                    return Ok(HeadRead::Refused(431, "the head of the request is too long"));
                }
                Understood::Partly => {}
            }
            if !self.more(until)? {
                return Ok(HeadRead::End);
            }
        }
    }

    fn body(
        &mut self,
        head: &Head,
        taken: &mut Taken<'_>,
        until: Instant,
    ) -> io::Result<Result<Vec<u8>, (u16, &'static str)>> {
        const LONG: (u16, &str) = (413, "the body has more than 16 MiB; ask for less at a time");
        const MANY: (u16, &str) = (503, "too many long requests are under way; try again");
        if head.length.is_some_and(|length| length > BODY_MAX) {
            return Ok(Err(LONG));
        }
        if head.is_asked {
            let continues: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
            write_by(self.stream, continues, Instant::now() + self.bounds.answer)?;
        }
        let mut body = Vec::new();
        if let Some(length) = head.length {
            while body.len() < length {
                if !self.fill(length, &mut body, taken, until)? {
                    return Ok(Err(MANY));
                }
            }
            return Ok(Ok(body));
        }
        loop {
            let chunk = loop {
                match httparse::parse_chunk_size(self.rest()) {
                    Ok(httparse::Status::Complete((bytes, length))) => {
                        self.used += bytes;
                        break length;
                    }
                    Ok(httparse::Status::Partial) if self.rest().len() < 1024 => {}
                    Ok(httparse::Status::Partial) | Err(_) => return Ok(Err((400, "a chunk has no length"))),
                }
                if !self.more(until)? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            };
            let end = usize::try_from(chunk).ok().and_then(|chunk| chunk.checked_add(body.len()));
            let Some(end) = end.filter(|end| *end <= BODY_MAX) else { return Ok(Err(LONG)) };
            while body.len() < end {
                if !self.fill(end, &mut body, taken, until)? {
                    return Ok(Err(MANY));
                }
            }
            // Behind the last chunk there may be headers, which nobody here wants.
            loop {
                let Some(line) = self.rest().windows(2).position(|two| two == b"\r\n") else {
                    if self.rest().len() > HEAD_MAX {
                        return Ok(Err((400, "a chunk does not end")));
                    }
                    if !self.more(until)? {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    continue;
                };
                self.used += line + 2;
                if line == 0 {
                    break;
                }
                if chunk > 0 {
                    return Ok(Err((400, "a chunk does not end where it should")));
                }
            }
            if chunk == 0 {
                return Ok(Ok(body));
            }
        }
    }

    /// Brings more of a body, up to its end: what is there, or what comes next. Returns whether there is memory for it.
    fn fill(
        &mut self,
        end: usize,
        body: &mut Vec<u8>,
        taken: &mut Taken<'_>,
        until: Instant,
    ) -> io::Result<bool> {
        let (has, there) = (body.len(), self.rest().len());
        let some = (end - has).min(if there > 0 { there } else { FREE });
        if !taken.take(has + some) {
            return Ok(false);
        }
        if there > 0 {
            body.extend_from_slice(&self.buffer[self.used..self.used + some]);
            self.used += some;
            return Ok(true);
        }
        body.resize(has + some, 0);
        let read = self.read(&mut body[has..], until)?;
        body.truncate(has + read);
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(true) }
    }
}

enum Understood {
    Whole(Head, usize),
    Partly,
    Refused(u16, &'static str),
}

/// What a head says. A length that is told twice, or in two ways, is refused: others may read it otherwise.
fn understood(bytes: &[u8]) -> Understood {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Understood::Partly,
        Err(httparse::Error::TooManyHeaders) => {
            return Understood::Refused(431, "the request has too many headers");
        }
        Err(_) => return Understood::Refused(400, "this is no request that HTTP/1.1 has"),
    };
    let (path, query) = parsed.path.map_or(("", ""), |path| path.split_once('?').unwrap_or((path, "")));
    let mut head = Head {
        request: Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            ..Request::default()
        },
        length: Some(0),
        is_asked: false,
        is_last: parsed.version == Some(0),
    };
    let (mut has_length, mut is_chunked) = (false, false);
    for header in parsed.headers.iter() {
        let Ok(value) = std::str::from_utf8(header.value).map(str::trim) else { continue };
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                match value.parse().ok().filter(|_| is_number && !has_length) {
                    Some(length) => head.length = Some(length),
                    None => return Understood::Refused(400, "the length of the body is none"),
                }
                has_length = true;
            }
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") && !is_chunked => is_chunked = true,
            "transfer-encoding" => return Understood::Refused(400, "bodies come whole, or in chunks"),
            "connection" => {
                head.is_last |= value.split(',').any(|word| word.trim().eq_ignore_ascii_case("close"));
            }
            "expect" => head.is_asked = value.eq_ignore_ascii_case("100-continue"),
            "authorization" => head.request.authorization = Some(value.to_owned()),
            "content-type" => head.request.content_type = Some(value.to_owned()),
            "host" => head.request.host = Some(value.to_owned()),
            _ => {}
        }
    }
    if is_chunked {
        if has_length {
            return Understood::Refused(400, "the body has a length, and comes in chunks");
        }
        head.length = None;
    }
    Understood::Whole(head, length)
}

// ---- writing ----------------------------------------------------------------------------------------

fn say(stream: &TcpStream, answer: Answer, is_last: bool, within: Duration) -> io::Result<()> {
    let Answer { status, content_type, body } = answer;
    let ends = if is_last { "Connection: close\r\n" } else { "" };
    let head = format!("HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\n{ends}", reason(status));
    match body {
        Body::Whole(body) => {
            let mut bytes = format!("{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
            bytes.extend(body);
            write_by(stream, &bytes, Instant::now() + within)
        }
        Body::Parts(parts) => {
            write_by(
                stream,
                format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes(),
                Instant::now() + within,
            )?;
            let mut part = |bytes: &[u8]| match bytes {
                [] => Ok(()),
                bytes => {
                    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
                    chunk.extend(bytes);
                    chunk.extend(b"\r\n");
                    write_by(stream, &chunk, Instant::now() + within)
                }
            };
            // Where it breaks off, the last chunk is missing, so a client sees that.
            parts(&mut part)?;
            write_by(stream, b"0\r\n\r\n", Instant::now() + within)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{IpAddr, Shutdown};

    /// Says what it was asked.
    struct Echo;

    impl Handler for Echo {
        fn answer(&self, request: &Request) -> Answer {
            let Request { method, path, query, body, .. } = request;
            if path == "/parts" {
                let parts: Parts =
                    Box::new(|part| (0..3).try_for_each(|n| part(format!("part {n} ").as_bytes())));
                return Answer { status: 200, content_type: "text/plain", body: Body::Parts(parts) };
            }
            Answer::text(format!("{method} {path} {query} {}", String::from_utf8_lossy(body)))
        }
    }

    /// What a client that says these bytes hears, until the server hangs up.
    fn heard(said: &[u8]) -> String {
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = listener.address();
        let serving = listener.serve(Arc::new(Echo)).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(said).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        // It may hang up on what it has not read.
        let _ = stream.read_to_end(&mut heard);
        serving.stop();
        String::from_utf8(heard).unwrap()
    }

    /// Requests behind each other over one connection, with bodies that come whole, in chunks, and after a question.
    #[test]
    fn requests_are_answered() {
        let said = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n\
            POST /b HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello\
            POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n\
            GET /parts HTTP/1.1\r\n\r\n\
            GET /d HTTP/1.1\r\nConnection: close\r\n\r\nGET /e HTTP/1.1\r\n\r\n";
        let heard = heard(said);
        for expected in [
            "\r\n\r\nGET /a b=c ",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "POST /b  hello",
            "POST /c  abc0123456789",
            "Connection: close",
            "GET /d",
        ] {
            assert!(heard.contains(expected), "{expected}: {heard}");
        }
        assert!(
            heard.contains("\r\n\r\n7\r\npart 0 \r\n7\r\npart 1 \r\n7\r\npart 2 \r\n0\r\n\r\n"),
            "{heard}"
        );
        assert!(!heard.contains("/e"), "it had said that it is the last one: {heard}");
    }

    /// What is no request, or too long, or of two lengths, is refused, and the connection ends.
    #[test]
    fn wrong_requests_are_refused() {
        let long = [&b"GET / HTTP/1.1\r\n"[..], b"A: ", &[b'a'; HEAD_MAX], b"\r\n"].concat();
        let many = [&b"GET / HTTP/1.1\r\n"[..], &b"A: b\r\n".repeat(65), b"\r\n"].concat();
        for (said, status) in [
            (&b"\x16\x03\x01\x02\x00\r\n\r\n"[..], 400),
            (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
            (b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\na", 400),
            (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na", 400),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\na", 400),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
            (b"POST / HTTP/1.1\r\nContent-Length: 16777217\r\n\r\n", 413),
            (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
            (&long, 431),
            (&many, 431),
        ] {
            let heard = heard(said);
            assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {heard}");
            assert!(heard.contains("Connection: close") && heard.contains("{\"error\":"), "{heard}");
        }
        assert_eq!(heard(b"GET / HTTP/1.1\r\n"), "", "the client has hung up");
    }

    /// Long bodies and answers count as long as they are there; short ones are always taken.
    #[test]
    fn bytes_have_a_limit_together() {
        let under_way = UnderWay { bytes: AtomicUsize::new(0), max: 1_000 };
        let count = || under_way.bytes.load(Ordering::Relaxed);
        let mut one = Taken { of: &under_way, bytes: 0 };
        assert!(one.take(FREE) && count() == 0);
        assert!(one.take(FREE + 10) && one.take(FREE + 30) && count() == 30);
        let mut other = Taken { of: &under_way, bytes: 0 };
        assert!(!other.take(FREE + 971) && count() == 30, "what is refused does not count");
        assert!(other.take(FREE + 970) && !one.take(FREE + 31) && one.take(FREE + 20));
        drop(other);
        assert_eq!(count(), 20, "the answer is shorter than the body was");
        drop(one);
        assert_eq!(count(), 0);
    }

    const MINUTE: Duration = Duration::from_secs(60);
    /// More than the system takes of an answer that nobody reads.
    const LONG: usize = 2 << 20;

    /// Has answers that are long: at once, or part by part without end.
    struct Long;

    impl Handler for Long {
        fn answer(&self, request: &Request) -> Answer {
            let body = match request.path.as_str() {
                "/whole" => Body::Whole(vec![b'a'; LONG]),
                "/parts" => Body::Parts(Box::new(|part| {
                    loop {
                        part(&[b'a'; 16 << 10])?;
                    }
                })),
                _ => Body::Whole(request.body.clone()),
            };
            Answer { status: 200, content_type: "text/plain", body }
        }
    }

    fn serve_long(bounds: Bounds) -> (Serving, Arc<UnderWay>) {
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listener.serve_within(bounds, Arc::new(Long)).unwrap()
    }

    /// A client that has said some bytes, and takes little at a time.
    fn slow(serving: &Serving, said: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(serving.address).unwrap();
        sockopt::set_socket_recv_buffer_size(&stream, 4 << 10).unwrap();
        stream.set_read_timeout(Some(MINUTE)).unwrap();
        stream.write_all(said).unwrap();
        stream
    }

    /// What is in the head of an answer behind `HTTP/1.1`.
    fn status(stream: &mut TcpStream) -> String {
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8(head[9..].to_vec()).unwrap()
    }

    /// Answers that nobody takes have a limit together: behind it others are told to try again, until one has gone.
    #[test]
    fn answers_that_nobody_takes_have_a_limit() {
        let bounds = Bounds { bytes: 4 * LONG, answer: 10 * MINUTE, ..Bounds::default() };
        let (serving, _) = serve_long(bounds);
        let ask = || {
            let mut stream = slow(&serving, b"GET /whole HTTP/1.1\r\n\r\n");
            (status(&mut stream), stream)
        };
        let mut all: Vec<(String, TcpStream)> = (0..4).map(|_| ask()).collect();
        assert!(all.iter().all(|(status, _)| status == "200"));
        assert_eq!(ask().0, "503");
        drop(all.pop());
        let until = Instant::now() + MINUTE;
        let taken = std::iter::repeat_with(ask).find(|(status, _)| status == "200" || Instant::now() > until);
        assert_eq!(taken.map(|(status, _)| status).as_deref(), Some("200"));
        serving.stop();
    }

    /// Clients that take a long answer byte by byte, and such that send a request byte by byte, are hung up on when their
    /// time is over. Others are answered meanwhile.
    #[test]
    fn slow_clients_are_hung_up_on() {
        const EACH: usize = 50;
        let second = Duration::from_secs(1);
        let (serving, under_way) =
            serve_long(Bounds { request: second, answer: second, ..Bounds::default() });
        let said = [
            &b"GET /whole HTTP/1.1\r\n\r\n"[..],
            b"GET /parts HTTP/1.1\r\n\r\n",
            b"G",
            b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n",
        ];
        let mut all: Vec<TcpStream> = (0..EACH).flat_map(|_| said).map(|said| slow(&serving, said)).collect();
        let until = Instant::now() + MINUTE;
        let mut most = 0;
        while serving.connections.count() > 0 {
            assert!(Instant::now() < until, "{} are still there", serving.connections.count());
            most = most.max(serving.connections.count());
            let mut quick =
                slow(&serving, b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
            let mut answer = String::new();
            quick.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
            for (nth, stream) in all.iter_mut().enumerate() {
                // Who was hung up on may have an error of it.
                let _ = match nth % said.len() {
                    0 | 1 => stream.read(&mut [0]).map(drop),
                    _ => stream.write(b"a").map(drop),
                };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(most > EACH, "{most} were there at once");
        for stream in all.iter_mut().skip(1).step_by(said.len()) {
            // What the system still had for it is gone.
            let rest = stream.read_to_end(&mut Vec::new());
            assert_eq!(rest.map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionReset));
        }
        assert_eq!(under_way.bytes.load(Ordering::Relaxed), 0);
        serving.stop();
    }

    /// Does something while all of these are at work.
    fn at_work(all: &[&Conversation], then: &mut dyn FnMut()) {
        match all.split_first() {
            Some((one, rest)) => one.work(|| at_work(rest, then)).unwrap(),
            None => then(),
        }
    }

    /// For one connection too many, one that waits gives way, and it is hung up on.
    #[test]
    fn a_connection_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let pair = || (TcpStream::connect(at).unwrap(), listener.accept().unwrap().0);
        let (connections, host) = (Conversations::new(CONNECTIONS_MAX), IpAddr::from([127, 0, 0, 1]));
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let (client, stream) = pair();
            all.push((client, connections.begin(stream, host).unwrap()));
        }
        let (_client, stream) = pair();
        let newest = all[0].1.work(|| connections.begin(stream, host).unwrap()).unwrap();
        all[1].0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(all[1].0.read(&mut [0]).unwrap(), 0, "the oldest that waits is hung up on");
        assert_eq!(connections.count(), CONNECTIONS_MAX);
        let others: Vec<&Conversation> = all
            .iter()
            .enumerate()
            .filter(|(nth, _)| *nth != 1)
            .map(|(_, (_, one))| one)
            .chain([&newest])
            .collect();
        at_work(&others, &mut || assert!(connections.begin(pair().1, host).is_none(), "all are at work"));
    }
}
