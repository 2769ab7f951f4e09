//! `bench tcp`: requests over TCP, beside Redis and bare bytes.

use super::redis::{self, Over, Redis};
use crate::measure::{KEY_BYTES, VALUE_BYTES, key, machine, median, quantile, told, told_ns, value};
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{Attribute, Cell};
use hdrhistogram::Histogram;
use oneread::internals::layout::hash::{mix, reduce};
use oneread::{Client, ClientOptions, ClientTls, Values};
use oneread_kit::child::{CpuTime, Fabric, ServerChild};
use oneread_kit::folder::Folder;
use oneread_kit::progress::Progress;
use oneread_kit::show;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
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

/// What a contestant's rounds came to.
struct Timed {
    way: Way,
    process: Option<Pid>,
    rounds: Vec<f64>,
    server: Vec<f64>,
    requests: Histogram<u64>,
}

/// Does a request for these numbers of keys. Whether all was right.
type Ask<'a> = dyn FnMut(&[u64]) -> Result<bool> + 'a;

impl Tcp {
    pub fn run(self) -> Result<ExitCode> {
        let outcome = self.measure()?;
        if self.json {
            show::say(serde_json::to_string(&outcome)?)?;
        } else {
            outcome.show()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self) -> Result<Outcome> {
        // Before this process has one CPU.
        let machine = machine();
        let (ours, theirs) = places()?;
        let mut lines = Vec::new();
        let short = vec![
            format!("--capacity={}", self.keys),
            format!("--key-max={KEY_BYTES}"),
            format!("--value-max={VALUE_BYTES}"),
        ];
        let certificate = Certificate::new()?;
        let (server, sealed, mut redis) = placed(&theirs, &ours, || {
            let server = ServerChild::spawn(Fabric::Tcp, &short)?;
            let sealed = ServerChild::spawn(Fabric::Tcp, &[&short[..], &certificate.arguments()].concat())?;
            let redis = Redis::start(&server, Over::Tcp)?;
            Ok((server, sealed, redis))
        })?;
        let version = redis.as_ref().map(|redis| redis.version.clone());
        let mut client = server.connect()?;
        let mut client_by_tls = sealed.connect_with(certificate.options()?)?;
        self.fill(&mut client, redis.as_mut())?;
        self.fill(&mut client_by_tls, None)?;
        for what in [What::Get, What::Get64, What::Put64, What::Get1000] {
            let ours = [(&server, &mut client), (&sealed, &mut client_by_tls)];
            lines.extend(self.short(what, ours, redis.as_mut())?);
        }
        drop((client, client_by_tls, redis, server, sealed));
        lines.extend(self.long(&ours, &theirs, &certificate)?);
        Ok(Outcome { machine, keys: self.keys, rounds: self.rounds, redis: version, lines })
    }

    /// Puts all keys.
    fn fill(&self, client: &mut Client, mut redis: Option<&mut Redis>) -> Result<()> {
        let bar = Progress::of(self.keys, "filling", "keys");
        for first in (0..self.keys).step_by(1_000) {
            let pairs: Vec<_> = (first..self.keys.min(first + 1_000)).map(|n| (key(n), value(n))).collect();
            for outcome in client.put_many(&pairs).context("putting keys")? {
                outcome?;
            }
            redis.as_mut().map(|redis| redis.set(&pairs)).transpose()?;
            bar.inc(pairs.len() as u64);
        }
        bar.finish();
        Ok(())
    }

    fn short(
        &self,
        what: What,
        [(server, client), (sealed, client_by_tls)]: [(&ServerChild, &mut Client); 2],
        redis: Option<&mut Redis>,
    ) -> Result<Vec<Line>> {
        let keys_of = |numbers: &[u64]| numbers.iter().map(|&n| key(n)).collect::<Vec<_>>();
        let pairs_of = |numbers: &[u64]| numbers.iter().map(|&n| (key(n), value(n))).collect::<Vec<_>>();
        let ask = |client: &mut Client, out: &mut Vec<u8>, values: &mut Values, numbers: &[u64]| match what {
            What::Put64 => Ok(client.put_many(&pairs_of(numbers))?.iter().all(Result::is_ok)),
            What::Get => Ok(client.get_into(&key(numbers[0]), out)? && *out == value(numbers[0])),
            _ => {
                client.get_many_into(&keys_of(numbers), values)?;
                let wanted = numbers.iter().map(|&n| value(n));
                Ok(values.iter().zip(wanted).all(|(found, wanted)| found == Some(&wanted[..])))
            }
        };
        let (mut out, mut values) = (Vec::new(), Values::default());
        let mut ours = |numbers: &[u64]| ask(client, &mut out, &mut values, numbers);
        let (mut out, mut values) = (Vec::new(), Values::default());
        let mut by_tls = |numbers: &[u64]| ask(client_by_tls, &mut out, &mut values, numbers);
        let process = redis.as_ref().map(|redis| redis.pid());
        let mut theirs = redis.map(|redis| {
            let mut out = Vec::new();
            move |numbers: &[u64]| {
                let mut right = 0;
                let mut is_right = |n: usize, found: &[u8]| right += u64::from(found == value(numbers[n]));
                match what {
                    What::Put64 => return redis.set(&pairs_of(numbers)).map(|()| true),
                    What::Get => {
                        redis.get(&key(numbers[0]), &mut out)?;
                        is_right(0, &out);
                    }
                    What::Get1000 => redis.mget(&keys_of(numbers), &mut out, is_right)?,
                    _ => redis.get_each(&keys_of(numbers), &mut out, is_right)?,
                }
                Ok(right == numbers.len() as u64)
            }
        });
        let mut contestants: Vec<(Way, Option<Pid>, &mut Ask<'_>)> =
            vec![(Way::Oneread, Some(server.pid()), &mut ours), (Way::Tls, Some(sealed.pid()), &mut by_tls)];
        contestants.extend(theirs.as_mut().map(|ask| (Way::Redis, process, ask as &mut Ask<'_>)));
        self.alternate(what, self.keys, contestants)
    }

    fn long(&self, ours: &CpuSet, theirs: &CpuSet, certificate: &Certificate) -> Result<Vec<Line>> {
        let arguments = [
            format!("--capacity={LONG_VALUES}"),
            format!("--key-max={KEY_BYTES}"),
            format!("--value-max={LONG_BYTES}"),
            format!("--heap={}", 4 * LONG_VALUES * LONG_BYTES as u64),
        ];
        let (server, sealed, mut redis, mut bare) = placed(theirs, ours, || {
            let server = ServerChild::spawn(Fabric::Tcp, &arguments)?;
            let sealed =
                ServerChild::spawn(Fabric::Tcp, &[&arguments[..], &certificate.arguments()].concat())?;
            let redis = Redis::start(&server, Over::Tcp)?;
            Ok((server, sealed, redis, Bare::start()?))
        })?;
        let mut client = server.connect()?;
        let mut client_by_tls = sealed.connect_with(certificate.options()?)?;
        let long = |n: u64| {
            let mut long = vec![n as u8; LONG_BYTES];
            long[LONG_BYTES - VALUE_BYTES..].copy_from_slice(&value(n));
            long
        };
        let pairs: Vec<_> = (0..LONG_VALUES).map(|n| (key(n), long(n))).collect();
        for client in [&mut client, &mut client_by_tls] {
            for outcome in client.put_many(&pairs).context("putting long values")? {
                outcome?;
            }
        }
        redis.as_mut().map(|redis| redis.set(&pairs)).transpose()?;
        let is_right =
            |out: &[u8], n: u64| out.len() == LONG_BYTES && out.ends_with(&value(n)) && out[0] == n as u8;
        let (mut mine, mut mine_by_tls) = (Vec::new(), Vec::new());
        let (mut other, mut third) = (Vec::new(), vec![0; LONG_BYTES]);
        let mut ours = |n: &[u64]| Ok(client.get_into(&key(n[0]), &mut mine)? && is_right(&mine, n[0]));
        let mut by_tls = |n: &[u64]| {
            Ok(client_by_tls.get_into(&key(n[0]), &mut mine_by_tls)? && is_right(&mine_by_tls, n[0]))
        };
        let process = redis.as_ref().map(|redis| redis.pid());
        let mut theirs = redis.as_mut().map(|redis| {
            move |n: &[u64]| {
                redis.get(&key(n[0]), &mut other)?;
                Ok(is_right(&other, n[0]))
            }
        });
        let mut bytes = |_: &[u64]| bare.bring(&mut third);
        let mut contestants: Vec<(Way, Option<Pid>, &mut Ask<'_>)> =
            vec![(Way::Oneread, Some(server.pid()), &mut ours), (Way::Tls, Some(sealed.pid()), &mut by_tls)];
        contestants.extend(theirs.as_mut().map(|ask| (Way::Redis, process, ask as &mut Ask<'_>)));
        contestants.push((Way::Bare, None, &mut bytes));
        self.alternate(What::GetLong, LONG_VALUES, contestants)
    }

    fn alternate(
        &self,
        what: What,
        keys: u64,
        mut contestants: Vec<(Way, Option<Pid>, &mut Ask<'_>)>,
    ) -> Result<Vec<Line>> {
        let (batch, requests) = what.counts();
        let mut timed = Vec::new();
        for (way, process, _) in &contestants {
            let requests = Histogram::new(3)?;
            timed.push(Timed { way: *way, process: *process, rounds: vec![], server: vec![], requests });
        }
        let bar = Progress::of(u64::from(self.rounds), what.name(), "rounds");
        // One round more, which warms up.
        for round in 0..=self.rounds {
            // None is always the one behind the same other one.
            contestants.reverse();
            timed.reverse();
            for ((_, _, ask), timed) in contestants.iter_mut().zip(&mut timed) {
                let cpu = || timed.process.map(CpuTime::of).transpose();
                let (before, begun) = (cpu()?, Instant::now());
                let mut numbers = Vec::new();
                for request in 0..requests {
                    numbers.clear();
                    let picks = (request * batch..).take(batch as usize);
                    numbers.extend(picks.map(|i| reduce(mix(i ^ u64::from(round) << 40), keys)));
                    let asked = Instant::now();
                    let is_right = ask(&numbers)?;
                    ensure!(
                        is_right,
                        "{} brought another value than was put: please report the command that you ran",
                        timed.way.name()
                    );
                    if round > 0 {
                        timed.requests.record(asked.elapsed().as_nanos() as u64)?;
                    }
                }
                let spent = begun.elapsed().as_nanos() as f64;
                if round > 0 {
                    let ops = (batch * requests) as f64;
                    timed.rounds.push(spent / ops);
                    if let (Some(before), Some(after)) = (before, cpu()?) {
                        timed.server.push(after.ms_since(before) * 1e6 / ops);
                    }
                }
            }
            bar.inc(1);
        }
        bar.finish();
        // As at first: the number of rounds may be odd.
        timed.sort_by_key(|timed| timed.way as u8);
        let base = timed.iter().find(|timed| timed.way == Way::Redis).map(|timed| timed.rounds.clone());
        Ok(timed.into_iter().map(|timed| Line::of(what, timed, base.as_deref())).collect())
    }
}

impl Line {
    fn of(what: What, timed: Timed, base: Option<&[f64]>) -> Line {
        let ratios = base.map(|base| timed.rounds.iter().zip(base).map(|(ns, base)| ns / base).collect());
        Line {
            what,
            way: timed.way,
            ns_per_op: median(timed.rounds),
            server_ns_per_op: (!timed.server.is_empty()).then(|| median(timed.server)),
            p50_ns: quantile(&timed.requests, 0.5),
            p99_ns: quantile(&timed.requests, 0.99),
            ratio: ratios.map(median),
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
fn places() -> Result<(CpuSet, CpuSet)> {
    let all = sched_getaffinity(None).context("asking which CPUs there are")?;
    let mut there = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu));
    let first = there.next().context("there is no CPU")?;
    let (mut ours, mut theirs) = (CpuSet::new(), CpuSet::new());
    ours.set(first);
    theirs.set(there.next_back().unwrap_or(first));
    Ok((ours, theirs))
}

/// Starts servers on their CPU: processes and threads inherit where they may run.
fn placed<R>(theirs: &CpuSet, ours: &CpuSet, start: impl FnOnce() -> Result<R>) -> Result<R> {
    sched_setaffinity(None, theirs).context("choosing the servers' CPU")?;
    let started = start();
    sched_setaffinity(None, ours).context("choosing the client's CPU")?;
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
        Ok(show::say(self.table())?)
    }

    fn table(&self) -> comfy_table::Table {
        let mut table = show::narrow_table(["", "by", "each", "server", "p50", "p99", "ratio"]);
        for line in &self.lines {
            table.add_row(vec![
                Cell::new(line.what.name()),
                Cell::new(line.way.name()).add_attribute(Attribute::Bold),
                show::number(show::nanos(line.ns_per_op)),
                show::number(told(line.server_ns_per_op, show::nanos)),
                show::number(told_ns(line.p50_ns)),
                show::number(told_ns(line.p99_ns)),
                show::number(told(line.ratio, |ratio| format!("{ratio:.2}"))),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(way: Way, rounds: &[f64], server: &[f64]) -> Timed {
        let mut requests = Histogram::new(3).unwrap();
        requests.record(1_000).unwrap();
        Timed { way, process: None, rounds: rounds.into(), server: server.into(), requests }
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
        let (ours, theirs) = places().unwrap();
        assert_eq!((ours.count(), theirs.count()), (1, 1));
        let all = sched_getaffinity(None).unwrap();
        assert_eq!(ours != theirs, all.count() > 1);
        // Of this thread alone.
        let there = placed(&theirs, &ours, || Ok(sched_getaffinity(None)?)).unwrap();
        assert_eq!((there, sched_getaffinity(None).unwrap()), (theirs, ours));
        sched_setaffinity(None, &all).unwrap();
    }
}
