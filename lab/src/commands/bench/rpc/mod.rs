//! `bench rpc`: compares GETs by READ with GETs and PUTs by the server, on one table and one
//! fabric.

mod plot;

use crate::measure::{KEY_BYTES, VALUE_BYTES, key, machine, median, quantile, told, told_ns, value};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use comfy_table::{Attribute, Cell};
use hdrhistogram::Histogram;
use oneread::layout::hash::{mix, reduce};
use oneread::verbs::{VerbsOptions, Wait};
use oneread::{Address, Client, ClientOptions, ConnectError, Layout, PutOutcome, RequestPath};
use oneread_kit::child::{CpuTime, Fabric, ServerChild};
use oneread_kit::progress::Progress;
use oneread_kit::{TokenArgs, advice, interrupt, names, show};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Compare GETs by READ with GETs and PUTs by the server
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread bench rpc                                on this host, on shm
  oneread bench rpc --fabric verbs --plot rpc.svg  over the first RDMA device
  oneread bench rpc --at verbs://10.0.0.1:7471
      a running server; this bench's keys are removed at the end

The paths:
  one-sided  the client READs
  message    SEND and RECV; over shm, the server's socket
  mailbox    shm only: through memory that client and server share
             (with --at, the server must have room: `serve --mailbox-max`)
  HERD       verbs only: the request is WRITTEN into memory that the server
             polls, the reply is a datagram (with --at: `serve --herd`)

Each connection is a thread that asks for one random key after the other. Every
value is compared with the values that were put. PUTs are also made in batches;
their latency is that of a batch. Rounds of all paths alternate. CPU is that of
all threads of the server's process; HERD polls as long as it has clients. The
kernel's work for a software device is not counted anywhere.")]
pub struct Rpc {
    /// A running server [default: a new one in a child process]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["fabric", "layout", "workers"])]
    at: Option<Address>,
    /// How to reach the child process
    #[arg(long, default_value = "shm")]
    fabric: Fabric,
    /// Numbers of connections, one after the other
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16,64", value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: Vec<u32>,
    /// Seconds for each path and number of connections, for all rounds together
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Number of rounds; the result is their median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Puts in a batch
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Number of keys
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..1 << 32))]
    keys: u64,
    /// The child's layout
    #[arg(long, value_name = "NAME", default_value = "windowed:8", value_parser = names::layout(), hide_possible_values = true)]
    layout: Layout,
    /// The child's threads that answer, of each kind
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Clients sleep while they wait, which is best with more connections than CPUs; otherwise they
    /// poll (verbs only)
    #[arg(long)]
    block: bool,
    /// The clients share N queue pairs for their READs [default: one each] (verbs only)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pairs: Option<u16>,
    #[command(flatten)]
    token: TokenArgs,
    /// Draw the results into this SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = crate::plot::svg_file, value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "a time in seconds, 0.01 to 3600".into())
}

/// The operation that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Get,
    Put,
    /// A batch of PUTs.
    PutMany,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Operation::Get => "GET",
            Operation::Put => "PUT",
            Operation::PutMany => "PUTs",
        }
    }
}

/// How an operation reaches the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    OneSided,
    Message,
    Mailbox,
    Herd,
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Path::OneSided => "one-sided",
            Path::Message => "message",
            Path::Mailbox => "mailbox",
            Path::Herd => "HERD",
        }
    }
}

/// The contestants in their order in each round. The first is the reference for the others.
const CONTESTANTS: [(Operation, Path); 10] = [
    (Operation::Get, Path::OneSided),
    (Operation::Get, Path::Message),
    (Operation::Get, Path::Mailbox),
    (Operation::Get, Path::Herd),
    (Operation::Put, Path::Message),
    (Operation::Put, Path::Mailbox),
    (Operation::Put, Path::Herd),
    (Operation::PutMany, Path::Message),
    (Operation::PutMany, Path::Mailbox),
    (Operation::PutMany, Path::Herd),
];

/// One path at one number of connections. The names are those of the JSON output.
#[derive(Debug, Serialize)]
pub struct Line {
    pub operation: Operation,
    pub path: Path,
    pub connections: u32,
    /// Median over the rounds.
    pub ops_per_s: f64,
    /// The best round.
    pub best_ops_per_s: f64,
    /// The ratio to one-sided GETs in the same rounds.
    pub ratio: Option<f64>,
    /// The ratio to the same operation by message: the median of the ratios round by round.
    pub of_message: Option<f64>,
    /// Over all rounds; null if no operation ended. For batches, the latency of a batch.
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    /// CPU time of the server's process per million operations; null if the server is not a child
    /// of this process.
    pub server_cpu_ms: Option<f64>,
    pub reads_per_op: Option<f64>,
    /// Requests that HERD's client wrote again, in all rounds together.
    pub repeats: u64,
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    machine: String,
    fabric: &'static str,
    layout: String,
    keys: u64,
    rounds: u32,
    seconds: f64,
    block: bool,
    /// Queue pairs that the clients share.
    pairs: Option<u16>,
    batch: u32,
    workers: Option<usize>,
    pub lines: Vec<Line>,
}

impl Outcome {
    /// What was measured, in one line.
    pub fn about(&self) -> String {
        format!(
            "{} of {KEY_BYTES} bytes with values of {VALUE_BYTES}, {}{}{}; layout {}, median of {}",
            show::counted(self.keys, "key"),
            self.fabric,
            match (self.fabric, self.block) {
                ("shm", _) => "",
                (_, true) => ", clients that sleep",
                (_, false) => ", clients that poll",
            },
            match (self.fabric, self.pairs) {
                ("shm", _) | (_, None) => String::new(),
                (_, Some(1)) => ", one queue pair for all READs".into(),
                (_, Some(pairs)) => format!(", {pairs} queue pairs for all READs"),
            },
            self.layout,
            show::counted(self.rounds.into(), "round")
        )
    }
}

/// The results of one or several rounds.
struct Tally {
    operations: u64,
    /// The rate of each round.
    rates: Vec<f64>,
    latencies: Histogram<u64>,
    cpu_ms: Option<f64>,
    reads: u64,
    repeats: u64,
}

impl Tally {
    fn new() -> Result<Tally> {
        // From 1 ns to 1 min, with three digits.
        let latencies = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        Ok(Tally { operations: 0, rates: Vec::new(), latencies, cpu_ms: None, reads: 0, repeats: 0 })
    }

    fn add(&mut self, other: &Tally) -> Result<()> {
        self.operations += other.operations;
        self.rates.extend(&other.rates);
        self.latencies.add(&other.latencies)?;
        self.cpu_ms = match (self.cpu_ms, other.cpu_ms) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.reads += other.reads;
        self.repeats += other.repeats;
        Ok(())
    }

    fn rate(&self) -> f64 {
        median(self.rates.clone())
    }

    fn line(
        &self,
        (operation, path): (Operation, Path),
        connections: u32,
        base: f64,
        message: Option<&Tally>,
    ) -> Line {
        let per = |n: f64| (self.operations > 0).then(|| n / self.operations as f64);
        Line {
            operation,
            path,
            connections,
            ops_per_s: self.rate(),
            best_ops_per_s: self.rates.iter().copied().fold(0.0, f64::max),
            ratio: (base > 0.0).then(|| self.rate() / base),
            of_message: message
                .filter(|m| m.rates.iter().all(|rate| *rate > 0.0))
                .map(|m| median(self.rates.iter().zip(&m.rates).map(|(a, b)| a / b).collect())),
            p50_ns: quantile(&self.latencies, 0.5),
            p99_ns: quantile(&self.latencies, 0.99),
            server_cpu_ms: self.cpu_ms.and_then(|ms| per(1e6 * ms)),
            reads_per_op: per(self.reads as f64),
            repeats: self.repeats,
        }
    }
}

impl Rpc {
    pub fn run(self) -> Result<ExitCode> {
        let outcome = self.measure()?;
        if self.json {
            show::say(serde_json::to_string(&outcome)?)?;
        } else {
            show::say(outcome.about().replace("; ", "\n"))?;
            show::say(show::machine(&outcome.machine))?;
            show::say(table(&outcome.lines))?;
            show::say(show::paragraph("", HEADS))?;
        }
        if let Some(path) = &self.plot {
            crate::plot::write(path, plot::draw(&outcome))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self) -> Result<Outcome> {
        let server = if self.at.is_none() { Some(self.spawn()?) } else { None };
        let connect = |requests| {
            let wait = if self.block { Wait::Block } else { Wait::Poll };
            let (token, pairs) = (self.token.token()?, self.pairs.map(usize::from));
            let verbs = VerbsOptions::new().token(token).wait(wait).pairs(pairs);
            // With many threads on few cores, a late answer counts as latency and not as a failure.
            let deadline = Duration::from_secs(30);
            let options = ClientOptions::new().deadline(deadline).requests(requests).verbs(verbs);
            match (&server, &self.at) {
                (Some(server), _) => server.connect_with(options),
                (None, Some(address)) => Ok(Client::connect_with(address, options)?),
                (None, None) => bail!("there is no server to ask: give its address with --at"),
            }
        };
        // Over keys that others have put, nothing is written.
        let first = if server.is_some() { 0 } else { rand::random() };
        let stop = Arc::new(AtomicBool::new(false));
        if server.is_none() {
            // The first signal ends the bench, which then removes its keys. The second one ends that, too.
            interrupt::leave_signals();
            for signal in [SIGHUP, SIGINT, SIGTERM] {
                signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())?;
                signal_hook::flag::register(signal, stop.clone())?;
            }
        }
        let mut client = connect(RequestPath::Message)?;
        let is_shm = matches!(client.address(), Address::Shm(_));
        let polled = match is_shm {
            true => self.polled(Path::Mailbox, connect(RequestPath::Mailbox))?,
            #[cfg(feature = "verbs")]
            false => self.polled(Path::Herd, connect(RequestPath::Herd))?,
            #[cfg(not(feature = "verbs"))]
            false => None,
        };
        let table = Table { first, keys: self.keys, batch: self.batch, client: client.clone(), polled, stop };
        if server.is_none() {
            table.check_absent(&mut client)?;
        }
        let lines =
            table.fill(&mut client).and_then(|()| self.alternate(&table, &mut client, server.as_ref()));
        // Also after an error: the server is somebody else's.
        let cleared = if server.is_some() { Ok(()) } else { table.clear(&mut client) };
        let lines = lines?;
        cleared?;
        let layout = client.geometry().layout().to_string();
        Ok(Outcome {
            machine: machine(),
            fabric: if is_shm { "shm" } else { "verbs" },
            layout,
            keys: self.keys,
            rounds: self.rounds,
            seconds: self.seconds,
            block: self.block,
            pairs: self.pairs,
            batch: self.batch,
            workers: server.map(|_| self.workers),
            lines,
        })
    }

    fn spawn(&self) -> Result<ServerChild> {
        let arguments = [
            format!("--layout={}", self.layout),
            format!("--capacity={}", self.keys),
            format!("--key-max={KEY_BYTES}"),
            format!("--value-max={VALUE_BYTES}"),
            format!("--workers={}", self.workers),
        ];
        let herd = (self.fabric == Fabric::Verbs).then(|| "--herd".into());
        ServerChild::spawn(self.fabric, &[&arguments[..], herd.as_slice()].concat())
    }

    /// A client whose requests the server polls for, with its path. `None` if the server does not
    /// offer that.
    fn polled(&self, path: Path, connected: Result<Client>) -> Result<Option<(Path, Client)>> {
        match connected {
            // A clone starts without a connection. HERD's workers poll only while a clone asks.
            Ok(client) => Ok(Some((path, client.clone()))),
            Err(error) => match error.downcast_ref() {
                Some(why) if self.at.is_some() && is_not_taken(why) => {
                    let why = advice::told(&error);
                    show::complain(format_args!("oneread: without {}: {why}", path.name()));
                    Ok(None)
                }
                _ => Err(error),
            },
        }
    }

    /// Runs all paths round after round, so that other load on the machine affects all of them
    /// alike.
    fn alternate(
        &self,
        table: &Table,
        visitor: &mut Client,
        server: Option<&ServerChild>,
    ) -> Result<Vec<Line>> {
        let visitors = visitor.server_stats()?.clients;
        // Where values may be too long for cells, what may carry one goes as a message.
        let is_message =
            |contestant| visitor.geometry().has_heap() && contestant == (Operation::Get, Path::Mailbox);
        let contestants: Vec<_> = CONTESTANTS
            .into_iter()
            .filter(|&(operation, path)| table.client_for(path).is_some() && !is_message((operation, path)))
            .collect();
        let runs = self.connections.len() as u64 * u64::from(self.rounds) * contestants.len() as u64;
        let bar = Progress::of(runs, "timing", "runs");
        let time = Duration::from_secs_f64(self.seconds / f64::from(self.rounds));
        // Each PUT round writes values of its own.
        let mut version = 0;
        let mut lines = Vec::new();
        for &connections in &self.connections {
            let mut tallies = Vec::new();
            for _ in &contestants {
                tallies.push(Tally::new()?);
            }
            for _ in 0..self.rounds {
                for (&(operation, path), tally) in contestants.iter().zip(&mut tallies) {
                    table.ensure_goes_on()?;
                    version += u64::from(operation != Operation::Get);
                    wait_for_quiet(visitor, visitors)?;
                    let round = Round { table, operation, path, connections, version };
                    tally.add(&round.run(time, server).with_context(|| {
                        format!("{operation:?} by {} over {connections} connections", path.name())
                    })?)?;
                    bar.inc(1);
                }
            }
            let base = tallies.first().map_or(0.0, Tally::rate);
            let message = |operation| contestants.iter().position(|what| *what == (operation, Path::Message));
            lines.extend(contestants.iter().zip(&tallies).map(|(&what, tally)| {
                tally.line(what, connections, base, message(what.0).map(|at| &tallies[at]))
            }));
        }
        bar.finish();
        Ok(lines)
    }
}

/// Whether the error says that the server does not take requests that way.
fn is_not_taken(error: &ConnectError) -> bool {
    #[cfg(feature = "verbs")]
    if matches!(error, ConnectError::Verbs(oneread::verbs::SetupError::Herd { .. })) {
        return true;
    }
    matches!(error, ConnectError::RequestPath { .. })
}

/// The value number `version` of key number `n`. It contains its version.
fn stamped(n: u64, version: u64) -> [u8; VALUE_BYTES] {
    let mut out = value(n ^ version << 32);
    out[..8].copy_from_slice(&version.to_le_bytes());
    out
}

/// Whether these bytes are a value that was put for this key, up to this version.
fn is_value_of(n: u64, bytes: &[u8], version: u64) -> bool {
    let Some((stamp, _)) = bytes.split_first_chunk::<8>() else { return false };
    let stamp = u64::from_le_bytes(*stamp);
    stamp <= version && bytes == stamped(n, stamp)
}

/// The table that is measured, and how to reach it.
struct Table {
    /// The number of the first key.
    first: u64,
    keys: u64,
    batch: u32,
    client: Client,
    /// The client whose requests the server polls for, and its path.
    polled: Option<(Path, Client)>,
    /// A signal has come.
    stop: Arc<AtomicBool>,
}

impl Table {
    fn key(&self, n: u64) -> [u8; KEY_BYTES] {
        key(self.first.wrapping_add(n))
    }

    /// The numbers of all keys, some at a time.
    fn batches(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let keys = self.keys;
        (0..keys).step_by(256).map(move |first| first..(first + 256).min(keys))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn ensure_goes_on(&self) -> Result<()> {
        ensure!(!self.is_stopped(), "a signal has ended the bench");
        Ok(())
    }

    /// No key is there that this bench would write over.
    fn check_absent(&self, client: &mut Client) -> Result<()> {
        for numbers in self.batches() {
            let keys: Vec<_> = numbers.map(|n| self.key(n)).collect();
            for found in client.get_many(&keys)? {
                ensure!(
                    found?.is_none(),
                    "the table has a key that this bench was about to put; run it again, which takes other keys"
                );
            }
        }
        Ok(())
    }

    fn fill(&self, client: &mut Client) -> Result<()> {
        let bar = Progress::of(self.keys, "filling", "keys");
        for numbers in self.batches() {
            self.ensure_goes_on()?;
            let pairs: Vec<_> = numbers.map(|n| (self.key(n), stamped(n, 0))).collect();
            client.put_many(&pairs)?.into_iter().collect::<Result<Vec<_>, _>>()?;
            bar.inc(pairs.len() as u64);
        }
        bar.finish();
        Ok(())
    }

    /// Removes all keys, also those of a batch that was put in part.
    fn clear(&self, client: &mut Client) -> Result<()> {
        let mut removed = 0;
        let mut remove = || -> Result<()> {
            let bar = Progress::of(self.keys, "removing", "keys");
            for numbers in self.batches() {
                let keys: Vec<_> = numbers.map(|n| self.key(n)).collect();
                for was_there in client.remove_many(&keys)? {
                    removed += u64::from(was_there?);
                }
                bar.inc(keys.len() as u64);
            }
            bar.finish();
            Ok(())
        };
        let done = remove();
        if let Err(error) = &done {
            show::complain(format_args!(
                "oneread: up to {} of this bench stay in the table: {error:#}",
                show::counted(self.keys - removed, "key")
            ));
        }
        done.context("removing the bench's keys")
    }

    /// A client for this path, if the server offers it.
    fn client_for(&self, path: Path) -> Option<Client> {
        match path {
            Path::OneSided | Path::Message => Some(self.client.clone()),
            Path::Mailbox | Path::Herd => {
                self.polled.as_ref().filter(|(polled, _)| *polled == path).map(|(_, client)| client.clone())
            }
        }
    }
}

/// Waits until the server has closed all connections but the permanent ones. Its work for the
/// others must not count as work for operations. Another user's server may have other clients, so
/// the wait is short.
fn wait_for_quiet(visitor: &mut Client, visitors: u64) -> Result<()> {
    let begun = Instant::now();
    while visitor.server_stats()?.clients > visitors && begun.elapsed() < QUIET_MAX {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

const QUIET_MAX: Duration = Duration::from_secs(5);
/// The pause between connecting and asking.
const SETTLE: Duration = Duration::from_millis(100);
/// A signal is noticed within this time.
const SIGNAL: Duration = Duration::from_millis(50);

/// One round: all connections do the same for some time.
struct Round<'a> {
    table: &'a Table,
    operation: Operation,
    path: Path,
    connections: u32,
    version: u64,
}

impl Round<'_> {
    fn run(&self, time: Duration, server: Option<&ServerChild>) -> Result<Tally> {
        let (ready, stop) = (Barrier::new(self.connections as usize + 1), AtomicBool::new(false));
        let cpu = || server.map(ServerChild::cpu_time).transpose();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|number| {
                    scope.spawn({
                        let (ready, stop) = (&ready, &stop);
                        move || self.ask(number, ready, stop)
                    })
                })
                .collect();
            ready.wait();
            // The server's remaining work for a new connection does not count.
            std::thread::sleep(SETTLE);
            ready.wait();
            let before: Option<CpuTime> = cpu()?;
            let begun = Instant::now();
            while begun.elapsed() < time && !self.table.is_stopped() {
                std::thread::sleep(time.saturating_sub(begun.elapsed()).min(SIGNAL));
            }
            stop.store(true, Ordering::Relaxed);
            let mut all = Tally::new()?;
            let mut failed = None;
            for thread in threads {
                match thread.join() {
                    Ok(Ok(tally)) => all.add(&tally)?,
                    Ok(Err(error)) => failed = Some(error),
                    Err(_) => bail!(
                        "a connection's thread panicked: this is an error of oneread; please report what it printed above"
                    ),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            // The time ends with the last answer: all counted operations happened in it.
            all.rates = vec![all.operations as f64 / begun.elapsed().as_secs_f64()];
            all.cpu_ms = before.zip(cpu()?).map(|(before, after)| after.ms_since(before));
            Ok(all)
        })
    }

    /// One connection: asks until it is told to stop.
    fn ask(&self, number: u32, ready: &Barrier, stop: &AtomicBool) -> Result<Tally> {
        let mut client = self.table.client_for(self.path).context("a path that is no contestant")?;
        let mut tally = Tally::new()?;
        let mut buffer = Vec::new();
        let stream = mix(u64::from(number) << 32 ^ self.version << 2 ^ self.path as u64);
        let mut operation = |i: u64, client: &mut Client| match self.operation {
            Operation::PutMany => {
                let batch = u64::from(self.table.batch);
                let numbers = i * batch..(i + 1) * batch;
                let numbers = numbers.map(|i| reduce(mix(stream ^ i), self.table.keys));
                let pairs: Vec<_> = numbers.map(|n| (self.table.key(n), stamped(n, self.version))).collect();
                let answers = client.put_many(&pairs)?;
                ensure!(
                    answers.iter().all(|answer| *answer == Ok(PutOutcome::Updated)),
                    "a key of this bench is gone, or was never put: somebody else removed it; let nobody remove keys meanwhile"
                );
                Ok(batch)
            }
            _ => self.once(client, reduce(mix(stream ^ i), self.table.keys), &mut buffer).map(|()| 1),
        };
        // Connecting and the first answers are not timed. An error here is reported later, for all.
        let warm = (0..8).try_for_each(|i| operation(i, &mut client).map(drop));
        ready.wait();
        ready.wait();
        warm?;
        let reads = client.stats().read.reads;
        let repeats = repeats(&client);
        for i in 8.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            let done = operation(i, &mut client)?;
            tally.latencies.saturating_record(begun.elapsed().as_nanos() as u64);
            tally.operations += done;
        }
        tally.reads = client.stats().read.reads - reads;
        tally.repeats = self::repeats(&client) - repeats;
        Ok(tally)
    }

    fn once(&self, client: &mut Client, n: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let is_right = match (self.operation, self.path) {
            (Operation::Get, Path::OneSided) => {
                client.get_into(&self.table.key(n), buffer)? && is_value_of(n, buffer, self.version)
            }
            (Operation::Get, _) => client
                .get_two_sided(&self.table.key(n))?
                .is_some_and(|value| is_value_of(n, &value, self.version)),
            (Operation::Put | Operation::PutMany, _) => {
                client.put(&self.table.key(n), &stamped(n, self.version))? == PutOutcome::Updated
            }
        };
        ensure!(
            is_right,
            "key number {n} of this bench is gone, or has another value than was put: somebody else changed it, or the table was emptied; let nobody change it meanwhile"
        );
        Ok(())
    }
}

fn repeats(client: &Client) -> u64 {
    #[cfg(feature = "verbs")]
    return client.queue_counts().map_or(0, |counts| counts.repeats);
    #[cfg(not(feature = "verbs"))]
    return {
        let _ = client;
        0
    };
}

fn table(lines: &[Line]) -> comfy_table::Table {
    // Heads of some lines, so that it fits into 80 columns.
    let mut table = show::narrow_table([
        "conn.",
        "opera-\ntion",
        "by",
        "opera-\ntions",
        "to GET\nby READ",
        "to\nmsg.",
        "latency\np50",
        "latency\np99",
        "server\nCPU\nper op.",
        "READs\nper\nop.",
    ]);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 1));
    });
    let mut last = 0;
    for line in lines {
        let connections = if line.connections == last { String::new() } else { line.connections.to_string() };
        last = line.connections;
        table.add_row(vec![
            show::number(connections),
            Cell::new(line.operation.name()),
            Cell::new(line.path.name()).add_attribute(Attribute::Bold),
            show::number(show::rate(line.ops_per_s)),
            show::number(told(line.ratio, |ratio| format!("{ratio:.2}"))),
            show::number(told(line.of_message, |ratio| format!("{ratio:.2}"))),
            show::number(told_ns(line.p50_ns)),
            show::number(told_ns(line.p99_ns)),
            // Milliseconds per million are nanoseconds each.
            show::number(told(line.server_cpu_ms, show::nanos)),
            show::number(told(line.reads_per_op, |reads| format!("{reads:.3}"))),
        ]);
    }
    table
}

/// What the heads of the table mean.
const HEADS: &str = "conn.: connections, each of which asks for one thing after the other. to GET by READ, to msg.: \
the rate, as a multiple of that of one-sided GETs, and of the same operation by message. PUTs: batches; their \
latency is that of a batch. -: not measured.";

#[cfg(test)]
mod tests {
    use super::*;

    pub fn line(operation: Operation, path: Path, connections: u32) -> Line {
        let mut tally = Tally::new().unwrap();
        tally.add(&round(2_000.0, Some(3.0))).unwrap();
        tally.line((operation, path), connections, 1_000.0, None)
    }

    pub fn outcome(lines: Vec<Line>) -> Outcome {
        Outcome {
            machine: "a machine".into(),
            fabric: "verbs",
            layout: "cuckoo:pilaf".into(),
            keys: 5_000,
            rounds: 3,
            seconds: 1.0,
            block: false,
            pairs: None,
            batch: 8,
            workers: None,
            lines,
        }
    }

    /// A round of 10 operations, five of 1 us and five of 2 ms.
    fn round(rate: f64, cpu_ms: Option<f64>) -> Tally {
        let mut tally = Tally::new().unwrap();
        (tally.operations, tally.rates, tally.cpu_ms) = (10, vec![rate], cpu_ms);
        (tally.reads, tally.repeats) = (11, 2);
        tally.latencies.record_n(1_000, 5).unwrap();
        tally.latencies.record_n(2_000_000, 5).unwrap();
        tally
    }

    /// Counts of rounds add up. Rates are those of the median and of the best round, and ratios are those
    /// of the median round, or the median of the rounds' own.
    #[test]
    fn rounds_add_up() {
        let [mut tally, mut message] = [(); 2].map(|()| Tally::new().unwrap());
        for (rate, of_message, cpu) in
            [(200.0, 100.0, None), (800.0, 100.0, Some(0.5)), (600.0, 50.0, Some(1.0))]
        {
            tally.add(&round(rate, cpu)).unwrap();
            message.add(&round(of_message, None)).unwrap();
        }
        let line = tally.line((Operation::Get, Path::Herd), 4, 300.0, Some(&message));
        assert_eq!((line.ops_per_s, line.best_ops_per_s, line.ratio), (600.0, 800.0, Some(2.0)));
        assert_eq!((line.of_message, line.server_cpu_ms), (Some(8.0), Some(50_000.0)));
        assert_eq!((line.reads_per_op, line.repeats), (Some(1.1), 6));
        assert_eq!((line.p50_ns, line.p99_ns.map(|ns| ns / 10_000)), (Some(1_000), Some(200)));
        let shown =
            show::cells(&table(&[line, message.line((Operation::PutMany, Path::Message), 4, 100.0, None)]));
        let head = ["4", "GET", "HERD", "600 /s", "2.00", "8.00", "1 µs", "2.00 ms", "50 µs", "1.100"];
        assert_eq!(shown[0], head);
        assert_eq!(shown[1], ["", "PUTs", "message", "100 /s", "1.00", "-", "1 µs", "2.00 ms", "-", "1.100"]);
    }

    /// Where no operation ended, nothing is told of latencies.
    #[test]
    fn rounds_without_an_operation_have_no_figures() {
        let mut tally = Tally::new().unwrap();
        (tally.rates, tally.cpu_ms) = (vec![0.0], Some(3.0));
        let line = tally.line((Operation::Put, Path::Message), 1, 0.0, Some(&tally));
        let shown = show::cells(&table(&[line]));
        assert_eq!(shown[0][4..], ["-"; 6]);
    }

    /// The line above the results names what makes a difference, and nothing that makes none.
    #[test]
    fn what_was_measured_is_told() {
        let mut found = outcome(Vec::new());
        let mut told = |fabric, block, pairs| {
            (found.fabric, found.block, found.pairs) = (fabric, block, pairs);
            found.about()
        };
        let sizes = format!("5,000 keys of {KEY_BYTES} bytes with values of {VALUE_BYTES}, ");
        for (fabric, block, pairs, middle) in [
            ("shm", true, Some(2), "shm"),
            ("verbs", false, None, "verbs, clients that poll"),
            ("verbs", true, Some(1), "verbs, clients that sleep, one queue pair for all READs"),
            ("verbs", true, Some(2), "verbs, clients that sleep, 2 queue pairs for all READs"),
        ] {
            let all = format!("{sizes}{middle}; layout cuckoo:pilaf, median of 3 rounds");
            assert_eq!(told(fabric, block, pairs), all);
        }
    }

    /// A server that somebody else has started may refuse a path. Any other error is one.
    #[test]
    fn a_path_may_be_refused() {
        let address: Address = "shm:/a".parse().unwrap();
        let source = std::io::ErrorKind::NotFound.into();
        let (path, why) = (RequestPath::Mailbox, "it has none".into());
        assert!(is_not_taken(&ConnectError::RequestPath { path, address: address.clone(), why }));
        assert!(!is_not_taken(&ConnectError::NotThere { address, source }));
        #[cfg(feature = "verbs")]
        {
            use oneread::verbs::SetupError;
            let (peer, why) = ("127.0.0.1:7471".parse().unwrap(), "it takes none".into());
            assert!(is_not_taken(&ConnectError::Verbs(SetupError::Herd { why, source: None })));
            assert!(!is_not_taken(&ConnectError::Verbs(SetupError::Token { peer })));
        }
    }
}
