//! The subcommands.

mod bench;
mod calibrate;
mod frontier;
mod layouts;
mod plan;

use crate::plan::PlanError;
use anyhow::{Error, Result, anyhow};
use clap::Subcommand;
use std::process::ExitCode;

/// The subcommands of `oneread` that measure and predict.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "a text here would take the place of the subcommand's help")]
pub enum Lab {
    Layouts(layouts::Layouts),
    Plan(Box<plan::Plan>),
    Bench(bench::Bench),
}

impl Lab {
    /// Runs the subcommand, which prints what it found.
    ///
    /// # Errors
    /// Whatever it met: that there is no room, that a server did not start, that a number is out of range. The
    /// text names the option that mends it.
    pub fn run(self) -> Result<ExitCode> {
        let done = match self {
            Lab::Layouts(command) => command.run(),
            Lab::Plan(command) => command.run(),
            Lab::Bench(command) => command.run(),
        };
        done.map_err(advised)
    }
}

/// An error, with the option that mends it if there is one.
fn advised(error: Error) -> Error {
    let advice = match error.chain().find_map(|cause| cause.downcast_ref()) {
        Some(PlanError::UnknownProfile { .. }) => "--nic takes a TOML file, too",
        Some(PlanError::Profile { .. } | PlanError::Figure { .. }) => {
            "`oneread plan --show-profile cx6-200g` prints one that is whole"
        }
        _ => return error,
    };
    anyhow!("{error:#}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    /// The option that mends an error is told behind it, wherever in the chain the error stands.
    #[test]
    fn errors_name_what_mends_them() {
        let unknown = || PlanError::UnknownProfile { given: "cx9".into() };
        let told = advised(Err::<(), _>(unknown()).context("planning").unwrap_err());
        assert_eq!(told.to_string(), format!("planning: {}; --nic takes a TOML file, too", unknown()));
        assert_eq!(advised(anyhow!("plain")).to_string(), "plain");
    }
}
