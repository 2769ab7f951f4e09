//! A Redis to compare with, and its protocol as far as that needs it.

use crate::measure::KEY_BYTES;
use anyhow::{Context, Result, ensure};
use oneread_kit::child::ServerChild;
use oneread_kit::show;
use rustix::process::Pid;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NO_REDIS: &str = "Redis was not measured: there is no redis-server (apt-get install redis-server)";

/// Says which version was measured, or why none was.
pub fn say_which(version: Option<&str>) -> Result<()> {
    match version {
        Some(version) => show::say(format_args!("Redis {version}"))?,
        None => show::say(NO_REDIS)?,
    }
    Ok(())
}

/// How it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    UnixSocket,
    Tcp,
}

/// A stream's both ends.
type Streams = (Box<dyn Write>, Box<dyn Read>);

/// A Redis in a process of its own, and a connection to it. Killed when dropped.
pub struct Redis {
    child: Child,
    to: Box<dyn Write>,
    from: BufReader<Box<dyn Read>>,
    /// The line of a reply.
    line: Vec<u8>,
    pub version: String,
}

impl Redis {
    /// `None` if there is no `redis-server`. Its socket is in the server's folder, or its port is one of this host's own.
    pub fn start(server: &ServerChild, over: Over) -> Result<Option<Redis>> {
        /// It begins to listen within this time.
        const PATIENCE: Duration = Duration::from_secs(10);
        let folder = server.folder();
        let socket = folder.join("redis");
        // Redis takes no port that the system chooses. This one was free just now.
        let port = match over {
            Over::UnixSocket => 0,
            Over::Tcp => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port(),
        };
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args([Path::new("--dir"), folder.path(), Path::new("--unixsocket"), &socket])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("starting redis-server"),
        };
        folder.began(&child);
        let until = Instant::now() + PATIENCE;
        let connect = || -> std::io::Result<Streams> {
            match over {
                Over::UnixSocket => {
                    let stream = UnixStream::connect(&socket)?;
                    Ok((Box::new(stream.try_clone()?), Box::new(stream)))
                }
                Over::Tcp => {
                    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
                    stream.set_nodelay(true)?;
                    Ok((Box::new(stream.try_clone()?), Box::new(stream)))
                }
            }
        };
        let streams = loop {
            match connect() {
                Ok(streams) => break streams,
                Err(_) if Instant::now() < until && child.try_wait()?.is_none() => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(error).context("redis-server did not begin to listen within 10 s; start it by hand to see why, or run the bench without it in PATH");
                }
            }
        };
        Redis::over(child, streams).map(Some)
    }

    /// The number of its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Asks which version answers.
    fn over(child: Child, (to, from): Streams) -> Result<Redis> {
        let from = BufReader::with_capacity(64 << 10, from);
        let mut redis = Redis { child, to, from, line: Vec::new(), version: String::new() };
        let mut about = Vec::new();
        redis.ask(&[b"INFO", b"server"])?;
        redis.bulk(&mut about)?;
        let about = String::from_utf8_lossy(&about);
        let version = about.lines().find_map(|line| line.strip_prefix("redis_version:"));
        redis.version = version.unwrap_or("unknown").trim().to_owned();
        Ok(redis)
    }

    /// Sends a command.
    fn ask(&mut self, words: &[&[u8]]) -> Result<()> {
        let mut frame = Vec::new();
        command(words, &mut frame);
        self.to.write_all(&frame).context("asking Redis")
    }

    /// Reads a line of a reply, without its end.
    fn line(&mut self) -> Result<&str> {
        self.line.clear();
        self.from.read_until(b'\n', &mut self.line).context("reading Redis's reply")?;
        let line = self.line.strip_suffix(b"\r\n").context(
            "Redis has ended in the middle of a reply: the system may have killed it for its memory; run the bench again with less to hold",
        )?;
        std::str::from_utf8(line).context("reading Redis's reply")
    }

    /// Reads a reply that is a bulk string.
    fn bulk(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let len: usize = self.head('$', "a value")?;
        out.resize(len + 2, 0);
        self.from.read_exact(out).context("reading Redis's reply")?;
        out.truncate(len);
        Ok(())
    }

    /// Reads the head of a reply of this kind: a length.
    fn head(&mut self, kind: char, what: &str) -> Result<usize> {
        let line = self.line()?;
        let len = line.strip_prefix(kind).and_then(|len| len.parse().ok());
        len.with_context(|| {
            format!("Redis answers {line:?} in place of {what}: see what its version says of it, or run the bench without `redis-server` in PATH")
        })
    }

    /// Puts all of these, in one go.
    pub fn set<V: AsRef<[u8]>>(&mut self, pairs: &[([u8; KEY_BYTES], V)]) -> Result<()> {
        let mut frame = Vec::new();
        for (key, value) in pairs {
            command(&[b"SET", key, value.as_ref()], &mut frame);
        }
        self.to.write_all(&frame).context("asking Redis")?;
        for _ in pairs {
            let line = self.line()?;
            ensure!(
                line == "+OK",
                "Redis answers {line:?} to a SET: see what its version says of it, or run the bench without `redis-server` in PATH"
            );
        }
        Ok(())
    }

    /// Gets one.
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.ask(&[b"GET", key])?;
        self.bulk(out)
    }

    /// Gets all of these by a command each, in one go. Tells each value.
    pub fn get_each(
        &mut self,
        keys: &[[u8; KEY_BYTES]],
        out: &mut Vec<u8>,
        mut tell: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let mut frame = Vec::new();
        keys.iter().for_each(|key| command(&[b"GET", key], &mut frame));
        self.to.write_all(&frame).context("asking Redis")?;
        for number in 0..keys.len() {
            self.bulk(out)?;
            tell(number, out);
        }
        Ok(())
    }

    /// GETs these keys by one command.
    pub fn mget(
        &mut self,
        keys: &[[u8; KEY_BYTES]],
        out: &mut Vec<u8>,
        mut tell: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let words: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(keys.iter().map(|key| &key[..])).collect();
        self.ask(&words)?;
        let found = self.head('*', "values")?;
        ensure!(
            found == keys.len(),
            "Redis answers {found} values to an MGET of {}: see what its version says of it, or run the bench without `redis-server` in PATH",
            keys.len()
        );
        for number in 0..found {
            self.bulk(out)?;
            tell(number, out);
        }
        Ok(())
    }
}

/// Appends a command, as an array of bulk strings.
fn command(words: &[&[u8]], frame: &mut Vec<u8>) {
    frame.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        frame.extend_from_slice(word);
        frame.extend_from_slice(b"\r\n");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Redis that expects these bytes and answers with those, one pair after the other, and then ends.
    fn scripted(script: &'static [(&'static str, &'static str)]) -> Result<Redis> {
        let (here, mut there) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            for (asked, answer) in script {
                let mut got = vec![0; asked.len()];
                there.read_exact(&mut got).unwrap();
                // A wrong command ends the connection, and the test fails.
                if got != asked.as_bytes() {
                    return;
                }
                there.write_all(answer.as_bytes()).unwrap();
            }
        });
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Redis::over(child, (Box::new(here.try_clone().unwrap()), Box::new(here)))
    }

    const INFO: &str = "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n";

    /// Commands and replies are framed as Redis does. A reply that is none is an error.
    #[test]
    fn redis_is_asked_in_its_own_way() {
        const SET: &str = "*3\r\n$3\r\nSET\r\n$16\r\nkkkkkkkkkkkkkkkk\r\n$2\r\nab\r\n";
        const PAIR: &str =
            "*2\r\n$3\r\nGET\r\n$16\r\nkkkkkkkkkkkkkkkk\r\n*2\r\n$3\r\nGET\r\n$16\r\nkkkkkkkkkkkkkkkk\r\n";
        const MGET: &str = "*3\r\n$4\r\nMGET\r\n$16\r\nkkkkkkkkkkkkkkkk\r\n$16\r\nkkkkkkkkkkkkkkkk\r\n";
        const GET: &str = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        let script = &[
            (INFO, "$37\r\n# Server\r\nredis_version:7.2.4\r\nx:12\r\n\r\n"),
            (SET, ""),
            (SET, "+OK\r\n+OK\r\n"),
            (SET, "-OOM\r\n"),
            (GET, "$5\r\na\r\nbc\r\n"),
            (GET, "$0\r\n\r\n"),
            (GET, "$-1\r\n"),
            (PAIR, "$1\r\na\r\n$2\r\nbb\r\n"),
            (MGET, "*2\r\n$1\r\na\r\n$2\r\nbb\r\n"),
            (MGET, "*1\r\n$1\r\na\r\n"),
            (GET, "$5\r\nabc"),
        ];
        let mut redis = scripted(script).unwrap();
        assert_eq!(redis.version, "7.2.4");
        let pair = ([b'k'; KEY_BYTES], b"ab".to_vec());
        redis.set(&[pair.clone(), pair.clone()]).unwrap();
        let refused = redis.set(&[pair]).unwrap_err().to_string();
        assert!(refused.starts_with("Redis answers \"-OOM\" to a SET: "), "{refused}");
        let mut out = b"longer than the value".to_vec();
        for value in ["a\r\nbc", ""] {
            redis.get(b"k", &mut out).unwrap();
            assert_eq!(out, value.as_bytes());
        }
        let none = redis.get(b"k", &mut out).unwrap_err().to_string();
        assert!(none.starts_with("Redis answers \"$-1\" in place of a value: "), "{none}");
        let mut told = Vec::new();
        redis.get_each(&[[b'k'; KEY_BYTES]; 2], &mut out, |n, value| told.push((n, value.to_vec()))).unwrap();
        assert_eq!(told, [(0, b"a".to_vec()), (1, b"bb".to_vec())]);
        redis.mget(&[[b'k'; KEY_BYTES]; 2], &mut out, |n, value| told.push((n, value.to_vec()))).unwrap();
        assert_eq!(told[2..], told[..2]);
        let fewer = redis.mget(&[[b'k'; KEY_BYTES]; 2], &mut out, |_, _| {}).unwrap_err().to_string();
        assert!(fewer.starts_with("Redis answers 1 values to an MGET of 2: "), "{fewer}");
        redis.bulk(&mut out).unwrap();
        assert_eq!(redis.get(b"k", &mut out).unwrap_err().to_string(), "reading Redis's reply");
        assert!(redis.line().unwrap_err().to_string().contains("in the middle of a reply"));
    }

    /// Without a version, that is said. A Redis that is no longer needed is killed.
    #[test]
    fn redis_is_killed() {
        let redis = scripted(&[(INFO, "$3\r\nx:1\r\n")]).unwrap();
        assert_eq!(redis.version, "unknown");
        let process = std::path::PathBuf::from(format!("/proc/{}", redis.child.id()));
        assert!(process.exists());
        drop(redis);
        assert!(!process.exists());
    }
}
