//! `bench tcp`: requests over TCP, beside Redis and bare bytes.

use super::loops::timed;
use super::redis::{self, Over, Redis};
use super::runner::{Timed, Turn, fill, pick, serve, take_turns};
use crate::measure::{
    KEY_BYTES, VALUE_BYTES, cpus, key, machine, median, pin, quantile, told, told_ns, value,
};
use anyhow::{Context, Result};
use clap::Args;
use comfy_table::Cell;
use oneread::{Client, ClientOptions, ClientTls, Values};
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::folder::Folder;
use oneread_kit::show;
use rustix::process::Pid;
use serde::Serialize;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time requests over TCP, also through TLS, beside Redis and bare bytes
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench tcp
  oneread bench tcp --keys 100000 --rounds 5 --json

One thread and one connection over the loopback, keys of 16 bytes, values of 32:
  get         one key
  get x64     64 keys: `get_many_into`; in Redis, 64 GETs in one go
  put x64     64 pairs: `put_many`; in Redis, 64 SETs in one go
  get x1000   1,000 keys: `get_many_into`; in Redis, an MGET
  get 1 MiB   a value of 1 MiB, into memory that is used again; and as many
              bytes of a thread that does nothing else (`bare bytes`)
All servers run on one CPU, the last that this process may use, and the client
on the first. `with TLS` is oneread again, with a certificate made for this run
(ECDSA P-256). Redis is there if there is a `redis-server` (PATH); it is started
for this, without persistence, and stopped again. Rounds alternate.

`each` is the median round's time for a key. `server` is the CPU time that the
server took for it: its inverse is what one of its CPUs can do. `ratio` is the
median of the rounds' ratios of `each` to Redis': below 1 is quicker. Every
value is checked.")]
pub struct Tcp {
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=1 << 28))]
    keys: u64,
    /// Number of rounds; the result is their median
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const LONG_BYTES: usize = 1 << 20;
/// Values of that length, in each server.
const LONG_VALUES: u64 = 16;

/// What is done. The names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum What {
    Get,
    Get64,
    Put64,
    Get1000,
    GetLong,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Get => "get",
            What::Get64 => "get x64",
            What::Put64 => "put x64",
            What::Get1000 => "get x1000",
            What::GetLong => "get 1 MiB",
        }
    }

    /// Keys of a request, and requests of a round: some milliseconds.
    fn counts(self) -> (u64, u64) {
        match self {
            What::Get => (1, 2_000),
            What::Get64 | What::Put64 => (64, 200),
            What::Get1000 => (1_000, 20),
            What::GetLong => (1, 40),
        }
    }

    /// The length of a value.
    fn len(self) -> usize {
        match self {
            What::Get | What::Get64 | What::Put64 | What::Get1000 => VALUE_BYTES,
            What::GetLong => LONG_BYTES,
        }
    }

    /// The value of a key.
    fn value(self, n: u64) -> Vec<u8> {
        let mut all = vec![n as u8; self.len()];
        all[self.len() - VALUE_BYTES..].copy_from_slice(&value(n));
        all
    }

    /// Whether these bytes are the value of a key. Of a long one the length, the beginning and the end are looked at.
    fn is_value(self, n: u64, found: &[u8]) -> bool {
        let begins = self.len() == VALUE_BYTES || found.first() == Some(&(n as u8));
        found.len() == self.len() && begins && found.ends_with(&value(n))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Oneread,
    Tls,
    Redis,
    Bare,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Oneread => "oneread",
            Way::Tls => "with TLS",
            Way::Redis => "redis",
            Way::Bare => "bare bytes",
        }
    }
}

#[derive(Debug, Serialize)]
struct Line {
    what: What,
    way: Way,
    /// Of a key, in the median round.
    ns_per_op: f64,
    /// CPU time of the server for it. Null for a thread that is none.
    server_ns_per_op: Option<f64>,
    /// Of a request, over all rounds.
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    /// The median of the rounds' ratios of times to those of Redis. Null without it.
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    machine: String,
    keys: u64,
    rounds: u32,
    /// Null if there is none.
    redis: Option<String>,
    lines: Vec<Line>,
}

impl Tcp {
    pub fn run(self) -> Result<ExitCode> {
        let outcome = self.measure()?;
        show::outcome(self.json, &outcome, || outcome.show())?;
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self) -> Result<Outcome> {
        // Before this process has one CPU.
        let machine = machine();
        let (places, certificate) = (places()?, Certificate::new()?);
        let (mut lines, mut redis) = (Vec::new(), None);
        let short = [What::Get, What::Get64, What::Put64, What::Get1000];
        for (whats, keys) in [(&short[..], self.keys), (&[What::GetLong], LONG_VALUES)] {
            let mut servers = Servers::start(places, &certificate, whats[0], keys)?;
            redis = servers.redis.as_ref().map(|redis| redis.version.clone());
            for &what in whats {
                let (batch, requests) = what.counts();
                let turns = servers.turns(what, keys);
                let timed = take_turns(self.rounds, batch * requests, what.name(), turns)?;
                let base =
                    timed.iter().find(|timed| timed.way == Way::Redis).map(|timed| timed.rounds.clone());
                lines.extend(timed.into_iter().map(|timed| Line::of(what, timed, base.as_deref())));
            }
        }
        Ok(Outcome { machine, keys: self.keys, rounds: self.rounds, redis, lines })
    }
}

/// All that is asked, filled alike. What is first here ends first.
struct Servers {
    client: Client,
    client_by_tls: Client,
    redis: Option<Redis>,
    bare: Bare,
    plain: ServerChild,
    sealed: ServerChild,
}

impl Servers {
    /// With so many keys, and values as of `what`.
    fn start(places: [usize; 2], certificate: &Certificate, what: What, keys: u64) -> Result<Servers> {
        let heap = (what.len() > VALUE_BYTES).then(|| format!("--heap={}", 4 * keys * what.len() as u64));
        let (plain, sealed, mut redis, bare) = placed(places, || {
            let plain = serve(Fabric::Tcp, keys, what.len(), heap.as_slice())?;
            let by_tls = [heap.as_slice(), &certificate.arguments()].concat();
            let sealed = serve(Fabric::Tcp, keys, what.len(), &by_tls)?;
            let redis = Redis::start(&plain, Over::Tcp)?;
            Ok((plain, sealed, redis, Bare::start()?))
        })?;
        let mut client = plain.connect()?;
        let mut client_by_tls = sealed.connect_with(certificate.options()?)?;
        let pair = |n| (key(n), what.value(n));
        fill(&mut client, keys, 1_000, pair, |pairs| {
            redis.as_mut().map_or(Ok(()), |redis| redis.set(pairs))
        })?;
        fill(&mut client_by_tls, keys, 1_000, pair, |_| Ok(()))?;
        Ok(Servers { client, client_by_tls, redis, bare, plain, sealed })
    }

    fn turns(&mut self, what: What, keys: u64) -> Vec<Turn<'_, Way>> {
        let Servers { client, client_by_tls, redis, bare, plain, sealed } = self;
        let mut turns = vec![
            asking(Way::Oneread, Some(plain.pid()), what, keys, by_client(client, what)),
            asking(Way::Tls, Some(sealed.pid()), what, keys, by_client(client_by_tls, what)),
        ];
        if let Some(redis) = redis {
            turns.push(asking(Way::Redis, Some(redis.pid()), what, keys, by_redis(redis, what)));
        }
        if what == What::GetLong {
            let mut out = vec![0; LONG_BYTES];
            turns.push(asking(Way::Bare, None, what, keys, move |_| bare.bring(&mut out)));
        }
        turns
    }
}

/// A turn of requests, each for keys at random. `ask` makes one, and says whether all was right.
fn asking<'a>(
    way: Way,
    process: Option<Pid>,
    what: What,
    keys: u64,
    mut ask: impl FnMut(&[u64]) -> Result<bool> + 'a,
) -> Turn<'a, Way> {
    let (batch, requests) = what.counts();
    let mut numbers = Vec::new();
    Turn::asking(way, process, move |round, times| {
        timed(requests, |request| {
            numbers.clear();
            numbers.extend((request * batch..).take(batch as usize).map(|i| pick(round, i, keys)));
            let asked = Instant::now();
            let is_right = ask(&numbers)?;
            times.saturating_record(asked.elapsed().as_nanos() as u64);
            Ok(is_right)
        })
    })
}

fn keys_of(numbers: &[u64]) -> Vec<[u8; KEY_BYTES]> {
    numbers.iter().map(|&n| key(n)).collect()
}

fn pairs_of(numbers: &[u64]) -> Vec<([u8; KEY_BYTES], [u8; VALUE_BYTES])> {
    numbers.iter().map(|&n| (key(n), value(n))).collect()
}

fn by_client(client: &mut Client, what: What) -> impl FnMut(&[u64]) -> Result<bool> {
    let (mut out, mut values) = (Vec::new(), Values::default());
    move |numbers| match what {
        What::Get | What::GetLong => {
            Ok(client.get_into(&key(numbers[0]), &mut out)? && what.is_value(numbers[0], &out))
        }
        What::Get64 | What::Get1000 => {
            client.get_many_into(&keys_of(numbers), &mut values)?;
            let is_right = |found: Option<&[u8]>, n| found.is_some_and(|found| what.is_value(n, found));
            Ok(values.iter().zip(numbers).all(|(found, &n)| is_right(found, n)))
        }
        What::Put64 => Ok(client.put_many(&pairs_of(numbers))?.iter().all(Result::is_ok)),
    }
}

fn by_redis(redis: &mut Redis, what: What) -> impl FnMut(&[u64]) -> Result<bool> {
    let mut out = Vec::new();
    move |numbers| {
        let mut right = 0;
        let mut is_right =
            |nth: usize, found: &[u8]| right += usize::from(what.is_value(numbers[nth], found));
        match what {
            What::Put64 => return redis.set(&pairs_of(numbers)).map(|()| true),
            What::Get | What::GetLong => {
                redis.get(&key(numbers[0]), &mut out)?;
                is_right(0, &out);
            }
            What::Get64 => redis.get_each(&keys_of(numbers), &mut out, is_right)?,
            What::Get1000 => redis.mget(&keys_of(numbers), &mut out, is_right)?,
        }
        Ok(right == numbers.len())
    }
}

impl Line {
    fn of(what: What, timed: Timed<Way>, base: Option<&[f64]>) -> Line {
        Line {
            what,
            way: timed.way,
            ratio: base.map(|base| median(timed.ratios(base))),
            server_ns_per_op: (!timed.server.is_empty()).then(|| median(timed.server)),
            ns_per_op: median(timed.rounds),
            p50_ns: quantile(&timed.requests, 0.5),
            p99_ns: quantile(&timed.requests, 0.99),
        }
    }
}

/// A certificate for servers of this run, in a folder that goes with it.
struct Certificate(Folder);

impl Certificate {
    fn new() -> Result<Certificate> {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
        let own = own.context("making a certificate for this run")?;
        let folder = Folder::new()?;
        std::fs::write(folder.join("certificate"), own.cert.pem()).context("keeping the certificate")?;
        let key = own.signing_key.serialize_pem();
        oneread_kit::write_secret(&folder.join("key"), key.as_bytes()).context("keeping its key")?;
        Ok(Certificate(folder))
    }

    /// A server's arguments.
    fn arguments(&self) -> [String; 2] {
        [("cert", "certificate"), ("key", "key")]
            .map(|(option, file)| format!("--tls-{option}={}", self.0.join(file).display()))
    }

    fn options(&self) -> Result<ClientOptions> {
        const PATIENT: Duration = Duration::from_secs(30);
        let tls = ClientTls::new(self.0.join("certificate"), None).context("trusting the certificate")?;
        Ok(ClientOptions::new().deadline(PATIENT).tls(tls))
    }
}

/// The CPUs of the client, and of servers: the first and the last that this process may use.
fn places() -> Result<[usize; 2]> {
    let all = cpus()?;
    Ok([*all.first().context("there is no CPU")?, *all.last().context("there is no CPU")?])
}

/// Starts servers on their CPU, and goes on with the client's.
fn placed<R>([ours, theirs]: [usize; 2], start: impl FnOnce() -> Result<R>) -> Result<R> {
    pin(&[theirs])?;
    let started = start();
    pin(&[ours])?;
    started
}

/// A thread that answers each byte with as many as a long value has. It ends with its connection.
struct Bare(TcpStream);

impl Bare {
    fn start() -> Result<Bare> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut there, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        there.set_nodelay(true)?;
        std::thread::spawn(move || {
            let (bytes, mut asked) = (vec![7; LONG_BYTES], [0]);
            while there.read_exact(&mut asked).is_ok() && there.write_all(&bytes).is_ok() {}
        });
        Ok(Bare(stream))
    }

    fn bring(&mut self, out: &mut [u8]) -> Result<bool> {
        self.0.write_all(&[0]).context("asking for bare bytes")?;
        self.0.read_exact(out).context("reading bare bytes")?;
        Ok(out.last() == Some(&7))
    }
}

impl Outcome {
    fn show(&self) -> Result<()> {
        let rounds = show::counted(self.rounds.into(), "round");
        show::say(format_args!(
            "{}, one connection over the loopback, one CPU for servers, median of {rounds}\n{}",
            show::counted(self.keys, "key"),
            show::machine(&self.machine)
        ))?;
        redis::say_which(self.redis.as_deref())?;
        Ok(show::lay_out(self.table())?)
    }

    fn table(&self) -> comfy_table::Table {
        show::rows(["", "by", "each", "server", "p50", "p99", "ratio"], &self.lines, |line| {
            [
                Cell::new(line.what.name()),
                show::head(line.way.name()),
                show::number(show::nanos(line.ns_per_op)),
                show::number(told(line.server_ns_per_op, show::nanos)),
                show::number(told_ns(line.p50_ns)),
                show::number(told_ns(line.p99_ns)),
                show::number(told(line.ratio, |ratio| format!("{ratio:.2}"))),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(way: Way, rounds: &[f64], server: &[f64]) -> Timed<Way> {
        let mut requests = hdrhistogram::Histogram::new(3).unwrap();
        requests.record(1_000).unwrap();
        Timed { way, rounds: rounds.into(), server: server.into(), requests }
    }

    /// A value is known by its length, its beginning and its end.
    #[test]
    fn values_are_told_apart() {
        for what in [What::Get, What::GetLong] {
            let value = what.value(7);
            assert!(what.is_value(7, &value) && !what.is_value(8, &value) && !what.is_value(7, &value[1..]));
            let mut other = value.clone();
            other[0] ^= 1;
            assert!(!what.is_value(7, &other), "{what:?}");
        }
    }

    /// A line has the median round, and the median of the rounds' ratios to Redis. What was not measured is no 0.
    #[test]
    fn lines_are_of_the_median_round() {
        let base = [200.0, 100.0, 400.0];
        let ours = Line::of(What::Get64, timed(Way::Oneread, &[100.0, 150.0, 100.0], &[30.0]), Some(&base));
        assert_eq!((ours.ns_per_op, ours.ratio, ours.server_ns_per_op), (100.0, Some(0.5), Some(30.0)));
        let bare = Line::of(What::GetLong, timed(Way::Bare, &[100.0], &[]), None);
        let outcome =
            Outcome { machine: String::new(), keys: 1, rounds: 3, redis: None, lines: vec![ours, bare] };
        let shown = show::cells(&outcome.table());
        assert_eq!(shown[0], ["get x64", "oneread", "100 ns", "30 ns", "1 µs", "1 µs", "0.50"]);
        assert_eq!(shown[1], ["get 1 MiB", "bare bytes", "100 ns", "-", "1 µs", "1 µs", "-"]);
    }

    /// Bytes come when they are asked for, as often as that.
    #[test]
    fn bare_bytes_come_when_asked_for() {
        let mut bare = Bare::start().unwrap();
        let mut out = vec![0; LONG_BYTES];
        for _ in 0..3 {
            out.fill(0);
            assert!(bare.bring(&mut out).unwrap() && out.iter().all(|&byte| byte == 7));
        }
    }

    /// Client and servers have a CPU each where there are two. What a server starts on its own stays there.
    #[test]
    fn servers_have_a_cpu_of_their_own() {
        let (all, [ours, theirs]) = (cpus().unwrap(), places().unwrap());
        assert_eq!(ours != theirs, all.len() > 1);
        // Of this thread alone.
        let there = placed([ours, theirs], cpus).unwrap();
        assert_eq!((there, cpus().unwrap()), (vec![theirs], vec![ours]));
        pin(&all).unwrap();
    }
}
