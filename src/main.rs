//! The `oneread` command.

mod cli;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| cli.command.log_filter());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    match cli::run(cli) {
        Ok(status) => status,
        // The reader of a pipe has seen enough (`oneread dump | head`).
        Err(error) if cli::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::show::complain(format_args!("oneread: error: {}", cli::show::chain(&error)));
            ExitCode::FAILURE
        }
    }
}
