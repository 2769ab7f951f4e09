//! The `oneread` command: its arguments and subcommands. A library, because the Python package has the command, too.

mod again;
#[cfg(feature = "cluster")]
mod cluster;
mod columns;
mod completions;
mod connect;
mod data;
mod demo;
mod dict_key;
mod doctor;
mod entries;
mod habits;
#[cfg(feature = "kv-indexer")]
mod kv_indexer;
#[cfg(feature = "man")]
mod man;
mod owner;
mod pages;
mod parts;
mod prompt;
mod records;
mod region_file;
mod regions;
mod scan;
mod screen;
mod secret;
mod serve;
mod shrink;
mod snapshot;
mod source;
mod stat;
mod stop;
mod top;
mod users;
mod watch;

#[cfg(feature = "metrics")]
pub use serve::answer_scrapes;

use clap::{CommandFactory, Parser, Subcommand};
use oneread::internals::words::{self, Door};
use oneread_kit::escape::{self, Form};
use oneread_kit::{advice, interrupt, show};
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Examples of what this build has.
fn examples() -> String {
    let lab = match cfg!(feature = "lab") {
        true => {
            "
  oneread layouts                what a GET costs, layout by layout
  oneread plan --clients 256     which resource would bind, on which hardware"
        }
        false => "",
    };
    format!(
        "EXAMPLES
  oneread demo                   the first minute: watch it work on real data
  oneread serve --daemonize      serve a table at the default address
  oneread put greeting hello     the server executes this
  oneread get greeting           the client alone: the server is not asked
  oneread load words.tsv         many keys from a file
  oneread keys 'user:*'          keys that match
  oneread watch                  changes, as they come{lab}
  oneread doctor                 which fabrics work here, how to mend the others

`oneread` alone, on a terminal, is a prompt for these commands. `oneread COMMAND
--help` has examples for each. RUST_LOG=debug prints more on stderr."
    )
}

/// A hash index in a server's memory that clients search by themselves.
///
/// The server holds the table. Clients map it (or READ it over RDMA) and look keys up without the
/// server's CPU. Only the server changes the table.
#[derive(Debug, Parser)]
#[command(name = "oneread", version, after_help = examples())]
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
    Incr(parts::Incr),
    Add(parts::Add),
    Append(parts::Append),
    Or(parts::Or),
    AndNot(parts::AndNot),
    Touch(parts::Touch),
    Clear(parts::Clear),
    Load(data::Load),
    Dump(data::Dump),
    #[command(visible_alias = "ls")]
    Keys(scan::Keys),
    Scan(scan::Take),
    Snapshot(snapshot::Take),
    Restore(snapshot::Restore),
    #[command(visible_alias = "info")]
    Stat(stat::Stat),
    Top(top::Top),
    Watch(watch::Watch),
    Owner(owner::Owner),
    Shrink(shrink::Shrink),
    Inspect(stat::inspect::Inspect),
    Regions(regions::Regions),
    #[cfg(feature = "cluster")]
    Cluster(cluster::Cluster),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(oneread_lab::Lab),
    #[cfg(feature = "kv-indexer")]
    KvIndexer(Box<kv_indexer::KvIndexer>),
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    #[cfg(feature = "man")]
    Man(man::Man),
}

impl Command {
    /// The log level when RUST_LOG is not set.
    fn log_filter(&self) -> Targets {
        Targets::new().with_default(match self {
            // A client that lives as long as one command reports a lost server as its error.
            Command::Serve(_) => LevelFilter::WARN,
            #[cfg(feature = "kv-indexer")]
            Command::KvIndexer(_) => LevelFilter::WARN,
            _ => LevelFilter::ERROR,
        })
    }
}

/// Runs the command as a program of its own. Returns its status.
pub fn main() -> ExitCode {
    run(Vec::new(), std::env::args_os().skip(1).collect())
}

/// Runs the command with these words. Returns its status, or ends the process with one. `program` and its first words are
/// what runs it once more, if it is no program of its own. To be called once in a process: it takes the log, and signals.
pub fn run(program: Vec<OsString>, arguments: Vec<OsString>) -> ExitCode {
    interrupt::begin();
    again::was_run(program, arguments);
    if prompt::is_wanted() {
        return ended(prompt::run(&Cli::command()));
    }
    let words = std::iter::once(OsString::from("oneread")).chain(again::arguments().iter().cloned());
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| {
        let advice = habits::advice(&error);
        let said = print_usage(&error);
        if let Some(advice) = advice {
            show::complain(format_args!("\n  tip: {advice}"));
        }
        // Help that was asked for is the output.
        if error.exit_code() == 0 && said.is_err() {
            std::process::exit(i32::from(
                ended(said.map(|()| ExitCode::SUCCESS).map_err(Into::into)) != ExitCode::SUCCESS,
            ));
        }
        std::process::exit(error.exit_code());
    });
    let asked = std::env::var("RUST_LOG").ok().and_then(|asked| asked.parse().ok());
    let filter: Targets = asked.unwrap_or_else(|| cli.command.log_filter());
    // Without colors: those of names are not to be told from them.
    let log = tracing_subscriber::fmt::layer().with_writer(|| Log(io::stderr())).with_ansi(false);
    tracing_subscriber::registry().with(log).with(filter).init();
    ended(run_parsed(cli))
}

/// The log, in the command's words: its errors are the library's. An event comes whole, and is a line, whatever names it has
/// in it.
struct Log<W>(W);

impl<W: Write> Write for Log<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = event.strip_suffix(b"\n").unwrap_or(event);
        let shown = match std::str::from_utf8(line) {
            Ok(text) => escape::escaped(&words::said(Door::Command, text), Form::Json, &['\t']),
            Err(_) => escape::escaped_bytes(line, Form::Json, &['\t']),
        };
        self.0.write_all(format!("{shown}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The status of a command that has ended, whose error is told.
fn ended(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    match outcome {
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
fn run_parsed(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Serve(command) => command.run(),
        Command::Stop(command) => command.run(),
        Command::Ping(command) => command.run(),
        Command::Get(command) => command.run(),
        Command::Put(command) => command.run(),
        Command::Del(command) => command.run(),
        Command::Incr(command) => command.run(),
        Command::Add(command) => command.run(),
        Command::Append(command) => command.run(),
        Command::Or(command) => command.run(),
        Command::AndNot(command) => command.run(),
        Command::Touch(command) => command.run(),
        Command::Clear(command) => command.run(),
        Command::Load(command) => command.run(),
        Command::Dump(command) => command.run(),
        Command::Keys(command) => command.run(),
        Command::Scan(command) => command.run(),
        Command::Snapshot(command) => command.run(),
        Command::Restore(command) => command.run(),
        Command::Stat(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Watch(command) => command.run(),
        Command::Owner(command) => command.run(),
        Command::Shrink(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Regions(command) => command.run(),
        #[cfg(feature = "cluster")]
        Command::Cluster(command) => command.run(),
        #[cfg(feature = "lab")]
        Command::Lab(command) => command.run(),
        #[cfg(feature = "kv-indexer")]
        Command::KvIndexer(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Completions(command) => command.run(Cli::command()),
        #[cfg(feature = "man")]
        Command::Man(command) => command.run(Cli::command()),
    }
}

/// Prints what clap says of the words. It repeats them, so a terminal finds no commands in them.
fn print_usage(error: &clap::Error) -> io::Result<()> {
    let plain = error.render().to_string();
    if plain.contains(|c| escape::is_active(c) && c != '\n') {
        show::complain(plain.trim_end());
        return Ok(());
    }
    error.print().and_then(|()| io::stdout().flush()).map_err(show::of_output)
}

/// Whether the reader of our output has closed it.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server logs names flags, as its errors do. What is no text is written out.
    #[test]
    fn the_log_is_in_the_commands_words() {
        let mut log = Log(Vec::new());
        for event in [&b"raise it (`ServerConfig::clients_max`)\n"[..], b"\xff `ServerConfig::clients_max`\n"]
        {
            assert_eq!(log.write(event).unwrap(), event.len());
        }
        assert_eq!(log.0, b"raise it (--clients-max)\n\\xff `ServerConfig::clients_max`\n");
    }

    /// Names of others in an event are no commands for a terminal, and begin no line.
    #[test]
    fn names_in_the_log_are_written_out() {
        #[derive(Clone, Default)]
        struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let name = "a\x1b[2Jb\u{9b}31mc\u{202e}d\ne\x1b[31mf";
        let written = Shared::default();
        let to = written.clone();
        let log = tracing_subscriber::fmt::layer().with_writer(move || Log(to.clone())).with_ansi(false);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log), || {
            let error: &(dyn std::error::Error + 'static) = &io::Error::other(name);
            tracing::error!(path = %name, given = name, seen = ?name, error, "of {name}");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert_eq!(text.matches("d\\ne").count(), 5, "{text:?}");
        assert!(!text.trim_end().contains(escape::is_active), "{text:?}");
    }

    /// The reader of a pipe may go at any time. Other errors of output are errors.
    #[test]
    fn a_closed_pipe_is_no_error() {
        let of = |kind: io::ErrorKind| is_broken_pipe(&anyhow::Error::from(io::Error::from(kind)));
        assert!(of(io::ErrorKind::BrokenPipe) && !of(io::ErrorKind::StorageFull));
    }
}
