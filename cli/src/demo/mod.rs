//! `demo`: a first demonstration. A server process loads real data and is stopped; the client still
//! reads the data. Then another server's table grows while it is read. In the end a node of a cluster is killed.

#[cfg(feature = "cluster")]
mod failover;
mod growth;
mod names;

use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{Attribute, Cell};
#[cfg(feature = "cluster")]
use failover::FailoverOutcome;
use growth::GrowthOutcome;
use hdrhistogram::Histogram;
use names::{Named, Tell, Versioned, character_names, put_all, readers};
use oneread::{Client, ClientOptions, MutateError, Values};
use oneread_kit::child::{Fabric, ServerChild};
use oneread_kit::progress::Progress;
use oneread_kit::threads::at_once_beside;
use oneread_kit::{show, status};
use serde::Serialize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Load the names of all Unicode characters, stop the server, and still read them all; read a table
/// while it grows tenfold; kill a node of a cluster
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread demo
  oneread demo --json | jq .reads_per_get
  oneread demo --fabric verbs
      the same over an RDMA device (built with --features verbs)
  oneread demo --fabric tcp
      where there is no RDMA: each GET is a request, so a killed server answers
      none, and the next one takes its table over

The cluster needs etcd in PATH (apt-get install etcd-server), and --features
cluster when this was built. Without either, or over verbs and TCP, that act is
left out.

Takes some seconds, and stops everything that it starts. Exit status 1 if any
key was missed, any value was wrong or old, any GET failed while the table grew
or the node was killed, or any put was acknowledged and lost.")]
pub struct Demo {
    /// How often every key is read with each GET timed, and then again without timing [default: 20;
    /// over verbs and TCP 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds of reading while the server updates values
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// What carries the READs, or over TCP the requests
    #[arg(long, value_enum, default_value = "shm")]
    fabric: Carrier,
    /// Print no story, only one JSON object at the end
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Carrier {
    /// The memory of this host
    Shm,
    /// An RDMA device
    Verbs,
    /// Any network: each GET is a request to the server
    Tcp,
}

impl Carrier {
    fn fabric(self) -> (&'static str, Fabric) {
        match self {
            Carrier::Shm => ("shm", Fabric::Shm),
            Carrier::Verbs => ("verbs", Fabric::Verbs),
            Carrier::Tcp => ("tcp", Fabric::Tcp),
        }
    }
}

/// The results. The names are those of the JSON output.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    fabric: &'static str,
    keys: u64,
    rounds: u32,
    found: u64,
    missed: u64,
    wrong: u64,
    reads_per_get: f64,
    trips_per_get: f64,
    bytes_per_get: f64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    gets_per_s: f64,
    server_cpu_ms: f64,
    /// Over TCP there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    put_while_stopped: String,
    /// Over TCP: what a GET came to without a server, and GETs by 64 of the next one.
    #[serde(skip_serializing_if = "String::is_empty")]
    get_while_killed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    batched_gets_per_s: Option<f64>,
    updates: u64,
    gets_while_updating: u64,
    torn_retries: u64,
    moved_retries: u64,
    growth: GrowthOutcome,
    /// If there was an etcd.
    #[cfg(feature = "cluster")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<FailoverOutcome>,
}

/// How long a put waits for the stopped server, if connecting takes much less.
const PUT_DEADLINE: Duration = Duration::from_secs(1);

impl Demo {
    pub fn run(self) -> Result<ExitCode> {
        let tell = |line: &str| if self.json { Ok(()) } else { show::lay_out(line) };
        let rounds = self.rounds.unwrap_or(if self.fabric == Carrier::Shm { 20 } else { 1 });
        let (name, fabric) = self.fabric.fabric();
        let mut outcome = Outcome { fabric: name, rounds, ..Outcome::default() };

        let names = character_names();
        outcome.keys = names.len() as u64;
        tell(&format!("The data: {} Unicode characters and their names,", show::count(outcome.keys)))?;
        let (key, name) = &names[names.len() / 2];
        tell(&format!("  as in {} -> {name}", String::from_utf8_lossy(key)))?;

        let longest = names.iter().map(|(_, name)| name.len()).max().unwrap_or(0);
        let mut table = vec![
            format!("--capacity={}", names.len()),
            "--key-max=8".into(),
            format!("--value-max={}", longest + Versioned::EXTRA),
        ];
        if fabric == Fabric::Verbs {
            // An emulated device may need milliseconds for a READ when the machine is busy.
            table.push("--grace=100ms".into());
        }
        let mut server = match fabric {
            Fabric::Tcp => ServerChild::spawn_on_file(fabric, &table)?,
            _ => ServerChild::spawn(fabric, &table)?,
        };
        tell(&format!("A server process ({}) holds the table; this process connects to it.", server.pid()))?;
        let began = Instant::now();
        let mut client = server.connect()?;
        // One deadline covers connecting, too.
        let deadline = PUT_DEADLINE.max(Duration::from_secs((4 * began.elapsed()).as_secs()));
        let options = ClientOptions::new().deadline(deadline);
        let mut hasty = server.connect_with(options)?;
        // Opens the connection for changes while the server can answer.
        hasty.server_stats()?;
        load(&mut client, &names)?;
        tell(&format!("Loaded: {} put requests, done by the server.\n", show::count(outcome.keys)))?;

        if fabric == Fabric::Tcp {
            read_by_request(&mut server, &mut client, &mut hasty, &names, &mut outcome, &tell)?;
            tell(&show::bold("It updates all keys while we read."))?;
        } else {
            read_stopped(&server, &mut client, &mut hasty, &names, &mut outcome, &tell)?;
            tell(&show::bold("The server goes on (SIGCONT), and updates all keys while we read."))?;
        }
        update_and_read(&mut client, &names, Duration::from_secs_f64(self.seconds.max(0.05)), &mut outcome)?;
        let met =
            (show::counted(outcome.updates, "update"), show::counted(outcome.gets_while_updating, "GET"));
        let met = format!("  {} met {}.\n", met.0, met.1);
        tell(&match fabric {
            // Whoever looks again is the server there.
            Fabric::Tcp => met,
            _ => format!(
                "{met}  {} caught a slot half written, noticed, and looked again.\n",
                show::counted(outcome.torn_retries, "GET")
            ),
        })?;
        // Its folder is the next server's.
        drop((client, hasty, server));

        tell(&show::bold("Another server begins small, and its table grows tenfold while we read it."))?;
        outcome.growth = growth::run(fabric, &names)?;
        let growth = &outcome.growth;
        tell(&growth.picture())?;
        tell(&format!(
            "  {} keys became {} in {:.1} s, by {}. {} meanwhile:\n  \
             {} failed, {} missed, {} with a wrong value.{}\n",
            show::count(growth.keys_before),
            show::count(growth.keys),
            growth.seconds,
            show::counted(growth.splits, "split"),
            show::counted(growth.gets, "GET"),
            growth.failed,
            growth.missed,
            growth.wrong,
            match fabric {
                Fabric::Tcp => String::new(),
                _ => format!(" READs per GET: {:.3}.", growth.reads_per_get),
            },
        ))?;
        if self.fabric == Carrier::Shm {
            lose_a_node(&names, &mut outcome, &tell)?;
        }
        show::outcome(self.json, &outcome, || {
            show::lay_out(outcome.table())?;
            show::say("Next: `oneread serve`, `oneread put KEY VALUE`, `oneread get KEY`.")
        })?;
        Ok(status(outcome.is_well()))
    }
}

/// One of three nodes is killed, if this can have a cluster.
#[cfg(feature = "cluster")]
fn lose_a_node(names: &[Named], outcome: &mut Outcome, tell: &Tell<'_>) -> Result<()> {
    if !oneread_kit::cluster::Cluster::has_etcd() {
        tell("A cluster that loses a node: needs etcd (apt-get install etcd-server).\n")?;
        return Ok(());
    }
    let lost = failover::run(names, tell)?;
    tell(&lost.story())?;
    outcome.cluster = Some(lost);
    Ok(())
}

#[cfg(not(feature = "cluster"))]
fn lose_a_node(_: &[Named], _: &mut Outcome, tell: &Tell<'_>) -> Result<()> {
    Ok(tell("A cluster that loses a node: needs etcd, and a build with --features cluster.\n")?)
}

impl Outcome {
    fn is_well(&self) -> bool {
        #[cfg(feature = "cluster")]
        if self.cluster.as_ref().is_some_and(|cluster| !cluster.is_well()) {
            return false;
        }
        self.missed == 0 && self.wrong == 0 && self.growth.is_well()
    }

    fn table(&self) -> comfy_table::Table {
        let mut table = show::facts();
        let mut row = |name: &str, value: String, why: &str| {
            table.add_row(vec![
                Cell::new(name),
                show::number(value).add_attribute(Attribute::Bold),
                Cell::new(why),
            ]);
        };
        let n = show::count;
        let ns = |ns: u64| show::nanos(ns as f64);
        row("keys", n(self.keys), "");
        row("missed", n(self.missed), "keys that were there and not found");
        row("wrong or torn values", n(self.wrong), "");
        let by_request = self.fabric == "tcp";
        if !by_request {
            row("READs per GET", format!("{:.4}", self.reads_per_get), "");
            row(
                "round trips per GET",
                format!("{:.4}", self.trips_per_get),
                "on a network; two READs may share one",
            );
            row("bytes per GET", format!("{:.0}", self.bytes_per_get), "");
        }
        let how = match self.fabric {
            "shm" => "from another process's memory, value compared",
            "tcp" => "a request to the server, value compared",
            _ => "by the RDMA device, value compared",
        };
        row("GET, median", ns(self.p50_ns), how);
        row("GET, 99 %", ns(self.p99_ns), "");
        row("GET, 99.9 %", ns(self.p999_ns), "");
        row("GETs", show::rate(self.gets_per_s), "one thread");
        if let Some(rate) = self.batched_gets_per_s {
            row("GETs by 64", show::rate(rate), "64 keys in a request");
        }
        let how = if by_request { "from /proc, for these GETs" } else { "from /proc, the server stopped" };
        row("server CPU meanwhile", format!("{:.1} ms", self.server_cpu_ms), how);
        if !by_request {
            row("torn reads noticed", n(self.torn_retries), "looked again, while the server updated");
        }
        let growth = &self.growth;
        row("GET while it grew, median", ns(growth.p50_ns), "beside the thread that puts");
        row("GET while it grew, 99 %", ns(growth.p99_ns), "");
        #[cfg(feature = "cluster")]
        if let Some(cluster) = &self.cluster {
            row("puts lost with a node", n(cluster.lost), "acknowledged puts that are gone");
            row("stale GETs meanwhile", n(cluster.stale), "GETs that found an older value");
            row(
                "its puts waited",
                format!("{:.0} ms", cluster.put_pause_ms),
                "until standbys had taken over",
            );
        }
        table
    }
}

/// The server is stopped, and its table is read all the same.
fn read_stopped(
    server: &ServerChild,
    client: &mut Client,
    hasty: &mut Client,
    names: &[Named],
    outcome: &mut Outcome,
    tell: &Tell<'_>,
) -> Result<()> {
    server.stop()?;
    tell(&show::bold("Now the server process is stopped (SIGSTOP): it gets no CPU at all."))?;
    let cpu = server.cpu_time()?;
    read_all(client, names, outcome)?;
    outcome.put_while_stopped = put_to_stopped(hasty)?;
    ensure!(
        server.has_stopped()?,
        "somebody let the stopped server go on: a debugger, or a supervisor of processes; run the demo where none does"
    );
    outcome.server_cpu_ms = server.cpu_time()?.ms_since(cpu);
    tell(&format!(
        "  All names were read {} times and compared, straight from its memory.\n  \
         It used {} ms of CPU meanwhile.\n  \
         A put needs it, and ends as it should: {}\n",
        2 * outcome.rounds,
        outcome.server_cpu_ms,
        outcome.put_while_stopped
    ))?;
    server.resume()
}

/// Over TCP the server answers each GET. When it is killed nobody does, until the next one takes its table over.
fn read_by_request(
    server: &mut ServerChild,
    client: &mut Client,
    hasty: &mut Client,
    names: &[Named],
    outcome: &mut Outcome,
    tell: &Tell<'_>,
) -> Result<()> {
    tell(&show::bold("Over TCP each GET is a request, which the server answers from its memory."))?;
    let cpu = server.cpu_time()?;
    read_all(client, names, outcome)?;
    outcome.server_cpu_ms = server.cpu_time()?.ms_since(cpu);
    let gets = 2 * u64::from(outcome.rounds) * outcome.keys;
    tell(&format!(
        "  All names were read {} times and compared. The server used {:.0} ms of CPU: {} for a GET.\n",
        2 * outcome.rounds,
        outcome.server_cpu_ms,
        show::nanos(outcome.server_cpu_ms * 1e6 / gets as f64)
    ))?;
    server.kill()?;
    tell(&show::bold("Now the server process is killed (SIGKILL)."))?;
    outcome.get_while_killed = match hasty.get(&names[0].0) {
        Err(error) => format!("{:#}", anyhow::Error::from(error)),
        Ok(_) => anyhow::bail!("a GET was answered although the server was killed: please report this"),
    };
    tell(&format!("  Without a server there is no GET over TCP: {}\n", outcome.get_while_killed))?;
    server.restart()?;
    tell(&show::bold("Another server takes the table over. The same client finds it by itself."))?;
    let begun = Instant::now();
    let mut found = Values::default();
    for some in names.chunks(64) {
        let keys: Vec<_> = some.iter().map(|(key, _)| key).collect();
        client.get_many_into(&keys, &mut found)?;
        for ((_, name), value) in some.iter().zip(found.iter()) {
            match value {
                None => outcome.missed += 1,
                Some(value) => outcome.wrong += u64::from(value != name.as_bytes()),
            }
        }
    }
    let rate = outcome.keys as f64 / begun.elapsed().as_secs_f64();
    outcome.batched_gets_per_s = Some(rate);
    let told = format!(
        "  All names are there: {} missed, {} wrong. 64 to a request, it read {} of them.\n",
        outcome.missed,
        outcome.wrong,
        show::rate(rate)
    );
    Ok(tell(&told)?)
}

fn load(client: &mut Client, names: &[Named]) -> Result<()> {
    let bar = Progress::of(names.len() as u64, "  loading", "keys");
    for chunk in names.chunks(1024) {
        put_all(client, chunk)?;
        bar.inc(chunk.len() as u64);
    }
    bar.finish();
    Ok(())
}

/// Reads every key `rounds` times with each GET timed and its value compared, then as often without
/// timing.
fn read_all(client: &mut Client, names: &[Named], outcome: &mut Outcome) -> Result<()> {
    let rounds = outcome.rounds;
    // Up to 1 s, with 3 digits.
    let mut times = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3)?;
    let gets = names.len() as u64 * u64::from(rounds);
    let bar = Progress::of(2 * gets, "  reading", "GETs");
    let before = client.stats();
    let mut value = Vec::new();
    for _ in 0..rounds {
        for (key, name) in names {
            let begun = Instant::now();
            let found = client.get_into(key, &mut value)?;
            times.saturating_record(begun.elapsed().as_nanos() as u64);
            match found {
                false => outcome.missed += 1,
                true if value != name.as_bytes() => outcome.wrong += 1,
                true => outcome.found += 1,
            }
        }
        bar.inc(names.len() as u64);
    }
    let after = client.stats();
    outcome.reads_per_get = (after.read.reads - before.read.reads) as f64 / gets as f64;
    outcome.trips_per_get = (after.read.doorbells - before.read.doorbells) as f64 / gets as f64;
    outcome.bytes_per_get = (after.read.bytes - before.read.bytes) as f64 / gets as f64;
    (outcome.p50_ns, outcome.p99_ns, outcome.p999_ns) =
        (times.value_at_quantile(0.5), times.value_at_quantile(0.99), times.value_at_quantile(0.999));

    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        let begun = Instant::now();
        for (key, _) in names {
            if !client.get_into(key, &mut value)? {
                outcome.missed += 1;
            }
        }
        spent += begun.elapsed();
        bar.inc(names.len() as u64);
    }
    outcome.gets_per_s = gets as f64 / spent.as_secs_f64();
    bar.finish();
    Ok(())
}

/// Tries a put while the server is stopped. The request waits in the server's socket, and the
/// server may execute it at any time after it goes on. The put therefore uses a key that nothing
/// else reads.
fn put_to_stopped(client: &mut Client) -> Result<String> {
    match client.put(b"stopped", b"done late") {
        Err(MutateError::Deadline { deadline, .. }) => Ok(format!("no answer within {deadline:?}")),
        Err(error) => Err(error).context("a put to the stopped server should have ended in a deadline"),
        Ok(_) => anyhow::bail!(
            "a put to the stopped server was answered: somebody let it go on; run the demo where no debugger or supervisor does"
        ),
    }
}

/// A writer updates all keys, round after round. Readers check that each value was written for its
/// key, and that no reader sees an older value than before.
fn update_and_read(
    client: &mut Client,
    names: &[Named],
    how_long: Duration,
    outcome: &mut Outcome,
) -> Result<()> {
    let newest = AtomicU16::new(0);
    let done = AtomicBool::new(false);
    let bar = Progress::of(how_long.as_millis() as u64, "  updating and reading", "ms");
    let until = Instant::now() + how_long;
    let readers: Vec<_> = (0..readers()).map(|number| (client.clone(), number)).collect();
    let check = |(client, number)| check_while(client, names, number, &newest, &done);
    let (written, all) = at_once_beside(readers, check, || {
        let written = write_until(client, names, &newest, until, |left| {
            bar.set_position((how_long - left).as_millis() as u64);
        });
        done.store(true, Ordering::Relaxed);
        written
    })?;
    bar.finish();
    outcome.updates = written?;
    for seen in all {
        outcome.gets_while_updating += seen.gets;
        outcome.missed += seen.missed;
        outcome.wrong += seen.wrong;
        outcome.torn_retries += seen.torn_retries;
        outcome.moved_retries += seen.moved_retries;
    }
    Ok(())
}

fn write_until(
    client: &mut Client,
    names: &[Named],
    newest: &AtomicU16,
    until: Instant,
    mut progress: impl FnMut(Duration),
) -> Result<u64> {
    let mut updates = 0;
    for version in 1..=u16::MAX {
        newest.store(version, Ordering::SeqCst);
        for chunk in names.chunks(256) {
            let pairs: Vec<_> =
                chunk.iter().map(|(key, name)| (key, Versioned::value(name, version))).collect();
            put_all(client, &pairs)?;
            updates += chunk.len() as u64;
            let left = until.saturating_duration_since(Instant::now());
            progress(left);
            if left.is_zero() {
                return Ok(updates);
            }
        }
    }
    Ok(updates)
}

#[derive(Default)]
struct Seen {
    gets: u64,
    missed: u64,
    wrong: u64,
    torn_retries: u64,
    moved_retries: u64,
}

fn check_while(
    mut client: Client,
    names: &[Named],
    number: usize,
    newest: &AtomicU16,
    done: &AtomicBool,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut last = vec![0u16; names.len()];
    let mut value = Vec::new();
    // Each reader starts at another key.
    let mut at = number * names.len() / 7 % names.len();
    while !done.load(Ordering::Relaxed) {
        let (key, name) = &names[at];
        seen.gets += 1;
        if !client.get_into(key, &mut value)? {
            seen.missed += 1;
        } else {
            match Versioned::parse(&value, name) {
                Some(version) if version >= last[at] && version <= newest.load(Ordering::SeqCst) => {
                    last[at] = version;
                }
                _ => seen.wrong += 1,
            }
        }
        at = (at + 1) % names.len();
    }
    seen.torn_retries = client.stats().get.retries_torn;
    seen.moved_retries = client.stats().get.retries_moved;
    Ok(seen)
}
