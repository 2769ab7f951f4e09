//! `bench rpc`: compares GETs by READ with GETs and PUTs by the server, on one table and one
//! fabric.

mod outcome;
mod plot;
mod round;

use super::runner::serve;
use crate::measure::{VALUE_BYTES, machine};
use anyhow::{Context, Result, bail};
use clap::Args;
use oneread::internals::verbs::{VerbsOptions, Wait};
use oneread::{Address, Client, ClientOptions, ConnectError, RequestPath, layout::Layout};
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::progress::Progress;
use oneread_kit::{TokenArgs, advice, interrupt, names, show};
use outcome::{HEADS, Line, Operation, Outcome, Path, Tally, table};
use round::{Round, Table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
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

impl Rpc {
    pub fn run(self) -> Result<ExitCode> {
        let outcome = self.measure()?;
        show::outcome(self.json, &outcome, || {
            show::say(outcome.about().replace("; ", "\n"))?;
            show::say(show::machine(&outcome.machine))?;
            show::lay_out(table(&outcome.lines))?;
            show::say(show::paragraph("", HEADS))
        })?;
        crate::plot::write(self.plot.as_deref(), || plot::draw(&outcome))?;
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self) -> Result<Outcome> {
        let server = if self.at.is_none() { Some(self.spawn()?) } else { None };
        let connect = |requests| {
            let wait = if self.block { Wait::Block } else { Wait::Poll };
            let (token, pairs) = (self.token.token()?, self.pairs.map(usize::from));
            let verbs = VerbsOptions::new().wait(wait).pairs(pairs);
            // With many threads on few cores, a late answer counts as latency and not as a failure.
            let deadline = Duration::from_secs(30);
            let options =
                ClientOptions::new().deadline(deadline).requests(requests).token(token).verbs(verbs);
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
            false => self.polled(Path::Herd, connect(RequestPath::HERD))?,
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
        let own = [format!("--layout={}", self.layout), format!("--workers={}", self.workers)];
        let herd = (self.fabric == Fabric::Verbs).then(|| "--herd".into());
        serve(self.fabric, self.keys, VALUE_BYTES, &[&own[..], herd.as_slice()].concat())
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
    if matches!(error, ConnectError::Verbs(oneread::internals::verbs::SetupError::Extension { .. })) {
        return true;
    }
    matches!(error, ConnectError::RequestPath { .. })
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

#[cfg(test)]
mod tests {
    use super::*;

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
            use oneread::internals::verbs::SetupError;
            let (peer, why) = ("127.0.0.1:7471".parse().unwrap(), "it takes none".into());
            assert!(is_not_taken(&ConnectError::Verbs(SetupError::Extension {
                name: "HERD",
                why,
                source: None
            })));
            assert!(!is_not_taken(&ConnectError::Verbs(SetupError::Token { peer })));
        }
    }
}
