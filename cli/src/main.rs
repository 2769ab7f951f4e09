//! The `oneread` command: its arguments and subcommands.

mod columns;
mod daemon;
mod data;
mod demo;
mod doctor;
mod growth_act;
mod habits;
mod manual;
mod records;
mod regions;
mod secret;
mod serve;
mod shrink;
mod snapshot;
mod stat;
mod stop;
mod users;
mod watch;

use clap::{Args, Parser, Subcommand};
#[cfg(feature = "verbs")]
use oneread::SetupError;
use oneread::verbs::VerbsOptions;
use oneread::{Address, Client, ClientOptions, ConnectError, Encryption, LinkError, Refusal};
use oneread_kit::units::Period;
use oneread_kit::{TokenArgs, advice, show, units};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A hash index in a server's memory that clients search by themselves.
///
/// The server holds the table. Clients map it (or READ it over RDMA) and look keys up without the
/// server's CPU. Only the server changes the table.
#[derive(Debug, Parser)]
#[command(
    name = "oneread",
    version,
    after_help = "EXAMPLES
  oneread demo                   the first minute: watch it work on real data
  oneread serve --daemonize      serve a table at the default address
  oneread put greeting hello     the server executes this
  oneread get greeting           the client alone: the server is not asked
  oneread load words.tsv         many keys from a file
  oneread layouts                what a GET costs, layout by layout
  oneread plan --clients 256      which resource would bind, on which hardware
  oneread doctor                 which fabrics work here, how to mend the others

`oneread COMMAND --help` has examples for each command. RUST_LOG=debug prints
more on stderr."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    Stop(stop::Stop),
    Ping(stop::Ping),
    Get(data::Get),
    #[command(visible_alias = "set")]
    Put(data::Put),
    #[command(visible_aliases = ["delete", "rm"])]
    Del(data::Del),
    Load(data::Load),
    Dump(data::Dump),
    Snapshot(snapshot::Take),
    Restore(snapshot::Restore),
    #[command(visible_alias = "info")]
    Stat(stat::Stat),
    Shrink(shrink::Shrink),
    Inspect(stat::Inspect),
    Regions(regions::Regions),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(oneread_lab::Lab),
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Completions(manual::Completions),
    Man(manual::Man),
}

impl Command {
    /// The log level when RUST_LOG is not set.
    fn log_filter(&self) -> tracing_subscriber::EnvFilter {
        tracing_subscriber::EnvFilter::new(match self {
            // A client that lives as long as one command reports a lost server as its error.
            Command::Serve(_) => "warn",
            _ => "error",
        })
    }
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        let advice = habits::advice(&error);
        let _ = error.print();
        if let Some(advice) = advice {
            show::complain(format_args!("\n  tip: {advice}"));
        }
        std::process::exit(error.exit_code());
    });
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| cli.command.log_filter());
    // Colors are for people, not for files.
    let ansi = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.with_ansi(ansi).init();
    match run(cli) {
        Ok(status) => status,
        // The reader of the pipe has closed it (`oneread dump | head`).
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            show::complain(format_args!("oneread: error: {}", advice::told(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Runs the command. Errors of usage have already ended the process with status 2.
fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Serve(command) => command.run(),
        Command::Stop(command) => command.run(),
        Command::Ping(command) => command.run(),
        Command::Get(command) => command.run(),
        Command::Put(command) => command.run(),
        Command::Del(command) => command.run(),
        Command::Load(command) => command.run(),
        Command::Dump(command) => command.run(),
        Command::Snapshot(command) => command.run(),
        Command::Restore(command) => command.run(),
        Command::Stat(command) => command.run(),
        Command::Shrink(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Regions(command) => command.run(),
        #[cfg(feature = "lab")]
        Command::Lab(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    }
}

/// The address of the server.
#[derive(Clone, Debug, Args)]
struct At {
    /// The server's address, as in shm:/run/user/1000/oneread.sock [default: this user's] or
    /// verbs://HOST:7471
    #[arg(long, value_name = "ADDRESS", env = "ONEREAD_AT", hide_env_values = true)]
    at: Option<Address>,
}

impl At {
    fn address(&self) -> Address {
        self.at.clone().unwrap_or_else(Address::default_of_user)
    }
}

/// The server to use, and how long to wait for it.
#[derive(Clone, Debug, Args)]
struct Server {
    #[command(flatten)]
    at: At,
    /// Longest wait for the server's answer, as in 500ms, 5s
    #[arg(long, value_name = "TIME", default_value = "5s")]
    deadline: Period,
    /// A user whose server is trusted, beside this user's and root's, by name or number (shm only;
    /// repeatable)
    #[arg(long, value_name = "USER")]
    server_user: Vec<users::UserId>,
    /// Memory for hints: where keys were last seen; 0 for none [default: 16MiB over verbs, none on shm]
    #[arg(long, value_name = "SIZE", value_parser = units::length)]
    hint_memory: Option<usize>,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    token: TokenArgs,
}

/// Whether to wait for a server that is not there yet.
#[derive(Clone, Debug, Args)]
struct Waiting {
    /// Wait so long for the server to come up, as in 5s; an attempt under way then ends by itself
    /// [default: not at all]
    #[arg(long, value_name = "TIME")]
    wait: Option<Period>,
}

impl Waiting {
    /// Connects, again and again while no server is there. Any other error ends it at once.
    fn connect(&self, connect: impl Fn() -> Result<Client, ConnectError>) -> anyhow::Result<Client> {
        const PAUSE_MAX: Duration = Duration::from_millis(100);
        let Some(Period(wait)) = self.wait else { return Ok(connect()?) };
        let begun = Instant::now();
        let until = begun + wait;
        let mut pause = Duration::from_millis(2);
        loop {
            let error = match connect() {
                Err(error) if is_not_there(&error) => error,
                done => return Ok(done?),
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited = format!("waited {} for a server", show::time(begun.elapsed()));
                return Err(anyhow::Error::from(error).context(waited));
            }
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

/// Whether no server is there: it has not started, or is just ending.
fn is_not_there(error: &ConnectError) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, TimedOut};
    // A name that is nobody's does not become somebody's.
    let may_come =
        |e: &io::Error| matches!(e.kind(), NotFound | ConnectionRefused | ConnectionReset | TimedOut);
    match error {
        ConnectError::NotThere { source, .. } => may_come(source),
        ConnectError::Link { source: LinkError::HungUp, .. } => true,
        ConnectError::TurnedAway { source, .. } => matches!(source, Refusal::Stopping),
        #[cfg(feature = "verbs")]
        ConnectError::Verbs(SetupError::NotThere { source, .. }) => may_come(source),
        _ => false,
    }
}

impl Server {
    fn connect(&self) -> anyhow::Result<Client> {
        self.connect_with(None)
    }

    /// The same for a command that carries values.
    fn connect_with(&self, encryption: Option<Encryption>) -> anyhow::Result<Client> {
        let options = self.options()?.encryption(encryption);
        self.waiting.connect(|| Client::connect_with(&self.at.address(), options.clone()))
    }

    /// The same for a command that only reads: if no server answers, it reads the region file, and
    /// says so.
    fn connect_or_read(
        &self,
        region: Option<PathBuf>,
        encryption: Option<Encryption>,
    ) -> anyhow::Result<Client> {
        let address = self.at.address();
        let region = region.unwrap_or_else(|| serve::region_file(&address));
        let options = self.options()?.encryption(encryption);
        let open = options.clone().region(region.clone());
        let client = match self.waiting.wait {
            None => Client::connect_with(&address, open)?,
            Some(_) => self
                .waiting
                .connect(|| Client::connect_with(&address, options.clone()))
                .or_else(|waited| Client::connect_with(&address, open).map_err(|_| waited))?,
        };
        if !client.is_served() {
            show::complain(format_args!(
                "oneread: no server answers at {address}; reading {}",
                region.display()
            ));
        }
        Ok(client)
    }

    fn options(&self) -> anyhow::Result<ClientOptions> {
        let verbs = VerbsOptions::new().token(self.token.token()?);
        let trusted: Vec<u32> = self.server_user.iter().map(|user| user.0).collect();
        let options = ClientOptions::new().deadline(self.deadline.0).server_uids(trusted).verbs(verbs);
        Ok(match self.hint_memory {
            Some(bytes) => options.hint_bytes(bytes),
            None => options,
        })
    }
}

/// Whether the reader of our output has closed it.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread::Token;
    use std::os::unix::fs::PermissionsExt;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        server: Server,
    }

    /// Each option of a client reaches it, in its unit.
    #[test]
    fn options_reach_the_client() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, " a token\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let path = path.display().to_string();
        let options = |given: &[&str]| {
            let all = ["oneread", "--at", "shm:/tmp/sock"].iter().chain(given);
            Arguments::parse_from(all).server.options()
        };
        let usual = options(&[]).unwrap();
        let own = ClientOptions::new();
        assert_eq!((usual.deadline, &usual.server_uids), (own.deadline, &own.server_uids));
        assert_eq!((usual.hint_bytes, usual.limits), (own.hint_bytes, own.limits));
        let given = ["--deadline", "250ms", "--server-user", "5", "--server-user", "root"];
        let given = options(&[&given[..], &["--hint-memory", "0", "--token-file", &path]].concat()).unwrap();
        assert_eq!((given.deadline, given.server_uids), (Duration::from_millis(250), vec![5, 0]));
        assert_eq!((given.hint_bytes, given.verbs.token), (Some(0), Token::new("a token")));
        std::fs::write(&path, " \n").unwrap();
        let error = options(&["--token-file", &path]).unwrap_err().to_string();
        assert!(error.contains("is empty; put a token into it"), "{error}");
        let error = options(&["--token-file", "/nowhere/token"]).unwrap_err().to_string();
        assert!(error.contains("reading the token in /nowhere/token"), "{error}");
    }

    /// The reader of a pipe may go at any time. Other errors of output are errors.
    #[test]
    fn a_closed_pipe_is_no_error() {
        let of = |kind: io::ErrorKind| is_broken_pipe(&anyhow::Error::from(io::Error::from(kind)));
        assert!(of(io::ErrorKind::BrokenPipe) && !of(io::ErrorKind::StorageFull));
    }
}
