//! This command, to be run once more: by the prompt, or as a server in the background.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;

/// The program and the words before the command's own, where it is not a program of its own.
static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();
/// The command's own words, without its name.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Says how the command was run. `program` is empty where that is a program of its own.
pub fn was_run(program: Vec<OsString>, arguments: Vec<OsString>) {
    let _ = (PROGRAM.set(program), ARGUMENTS.set(arguments));
}

/// The command's own words.
pub fn arguments() -> &'static [OsString] {
    ARGUMENTS.get().map_or(&[], Vec::as_slice)
}

/// The command, without words of its own.
pub fn command() -> Result<Command> {
    match PROGRAM.get().and_then(|program| program.split_first()) {
        Some((program, words)) => {
            let mut command = Command::new(program);
            command.args(words);
            Ok(command)
        }
        None => {
            let program = std::env::current_exe().context("finding this program's own file")?;
            Ok(Command::new(program))
        }
    }
}
