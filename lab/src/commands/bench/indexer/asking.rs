//! An indexer that is asked over HTTP, by one connection that stays.

use super::engines::{BLOCK_TOKENS, Lengths};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// The longest answer that is believed.
const ANSWER_MAX: usize = 256 << 20;

/// The answers of an indexer.
#[derive(Debug)]
pub struct Asked {
    /// Its host and port.
    at: String,
    stream: Option<TcpStream>,
}

impl Asked {
    /// Of the one at a URL.
    ///
    /// # Errors
    /// It is no URL of an indexer.
    pub fn at(url: &str) -> Result<Asked> {
        let at = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let at = at.filter(|at| !at.is_empty() && !at.contains('/') && !at.chars().any(char::is_whitespace));
        let at = at.with_context(|| {
            format!("{url:?} is no URL of an indexer; give one as in http://127.0.0.1:8090")
        })?;
        let at = if at.contains(':') { at.to_owned() } else { format!("{at}:80") };
        Ok(Asked { at, stream: None })
    }

    /// Registers a publisher.
    pub fn register(&mut self, worker: &Value) -> Result<()> {
        let (status, answer) = self.ask("POST /register", &worker.to_string())?;
        ensure!(
            (200..300).contains(&status),
            "http://{} does not register a publisher: {status} {}",
            self.at,
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }

    /// Unregisters an engine.
    pub fn unregister(&mut self, engine: u64, model: &str) -> Result<()> {
        let body = json!({ "instance_id": engine, "model_name": model });
        self.ask("POST /unregister", &body.to_string()).map(drop)
    }

    /// The answer to a query, as bytes.
    pub fn query(&mut self, query: &Query) -> Result<Vec<u8>> {
        let (status, answer) = self.ask("POST /query", &query.0)?;
        ensure!(status == 200, "http://{} answers {status} {}", self.at, String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    /// The status and the body of an answer.
    fn ask(&mut self, request: &str, body: &str) -> Result<(u16, Vec<u8>)> {
        let asked = self.converse(request, body);
        if asked.is_err() {
            self.stream = None;
        }
        asked.with_context(|| format!("asking http://{}", self.at))
    }

    fn converse(&mut self, request: &str, body: &str) -> Result<(u16, Vec<u8>)> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&self.at)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(MINUTE))?;
                self.stream.insert(stream)
            }
        };
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.at,
            body.len()
        );
        stream.write_all((head + body).as_bytes())?;
        answer(stream)
    }
}

/// The status and the body of the next answer.
fn answer(stream: &mut impl Read) -> Result<(u16, Vec<u8>)> {
    let (mut bytes, mut some) = (Vec::new(), [0; 16 << 10]);
    let mut more = |bytes: &mut Vec<u8>| -> Result<()> {
        let read = stream.read(&mut some)?;
        ensure!(read > 0, "it hangs up in the middle of an answer");
        bytes.extend_from_slice(&some[..read]);
        ensure!(bytes.len() <= ANSWER_MAX, "its answer has more than {ANSWER_MAX} bytes");
        Ok(())
    };
    let end = loop {
        match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(end) => break end + 4,
            None => more(&mut bytes)?,
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let Some(status) = status.filter(|_| head.starts_with("http/1.")) else {
        bail!("it does not speak HTTP")
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length
        .and_then(|length| length.trim().parse().ok())
        .filter(|length| *length <= ANSWER_MAX)
        .context("its answer has no length that could be")?;
    while bytes.len() < end + length {
        more(&mut bytes)?;
    }
    bytes.drain(..end);
    Ok((status, bytes))
}

/// A query of tokens, as it is sent.
#[derive(Debug)]
pub struct Query(String);

impl Query {
    pub fn new(model: &str, tokens: &[u32]) -> Query {
        Query(json!({ "model_name": model, "token_ids": tokens }).to_string())
    }
}

/// What an answer tells: blocks of each engine.
pub fn told(answer: &[u8]) -> Result<Lengths> {
    let answer: Value = serde_json::from_slice(answer).context("an answer is no JSON")?;
    let scores = answer["scores"].as_object().context("an answer has no scores")?;
    let mut lengths = Lengths::new();
    for (engine, ranks) in scores {
        let tokens = ranks.as_object().into_iter().flatten().filter_map(|(_, tokens)| tokens.as_u64()).max();
        let tokens = tokens.with_context(|| format!("a score of engine {engine} is no number"))?;
        let engine = engine.parse().with_context(|| format!("an engine is called {engine:?}"))?;
        let blocks = u32::try_from(tokens / u64::from(BLOCK_TOKENS)).context("a score is too high")?;
        if blocks > 0 {
            lengths.insert(engine, blocks);
        }
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some bytes at a time.
    struct Pieces<'a>(&'a [u8]);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let some = self.0.len().min(3).min(into.len());
            into[..some].copy_from_slice(&self.0[..some]);
            self.0 = &self.0[some..];
            Ok(some)
        }
    }

    /// Answers come in pieces, and what is none is an error.
    #[test]
    fn answers_are_read() {
        let read = |bytes: &[u8]| answer(&mut Pieces(bytes)).map_err(|error| error.to_string());
        assert_eq!(
            read(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nX: y\r\n\r\nhello"),
            Ok((404, b"hello".to_vec()))
        );
        for (bytes, why) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell"[..], "hangs up"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "no length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "no length"),
            (b"220 smtp ready\r\n\r\n", "does not speak HTTP"),
            (b"", "hangs up"),
        ] {
            let told = read(bytes).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }

    /// Scores are blocks of engines; engines without any are left out.
    #[test]
    fn answers_tell_lengths() {
        let answer = br#"{"scores": {"3": {"0": 32}, "12": {"0": 0}}, "frequencies": [1, 1]}"#;
        assert_eq!(told(answer).unwrap(), Lengths::from([(3, 2)]));
        for wrong in [&b"{}"[..], b"[", br#"{"scores": {"a": {"0": 16}}}"#, br#"{"scores": {"1": 5}}"#] {
            assert!(told(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    /// A URL has a host, and a port or none.
    #[test]
    fn urls_are_of_indexers() {
        assert_eq!(Asked::at("http://127.0.0.1:8090/").unwrap().at, "127.0.0.1:8090");
        assert_eq!(Asked::at("http://indexer").unwrap().at, "indexer:80");
        for wrong in ["", "127.0.0.1:8090", "https://a:1", "http://a/b", "http://", "http://a b"] {
            let told = Asked::at(wrong).unwrap_err().to_string();
            assert!(told.contains("http://127.0.0.1:8090"), "{told}");
        }
    }
}
