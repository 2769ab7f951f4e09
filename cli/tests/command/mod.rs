//! How tests start the `oneread` command: in an environment of its own, where they see no server, region
//! or token but those that they name.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use std::path::Path;
use std::process::Command;

/// The command.
pub fn oneread() -> Command {
    alone(Command::new(env!("CARGO_BIN_EXE_oneread")))
}

/// Another command that starts it, or a copy of it.
pub fn alone(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"ONEREAD_") {
            command.env_remove(name);
        }
    }
    let nowhere = Path::new("/nonexistent");
    command.env("ONEREAD_AT", nowhere.join("oneread.sock")).env("ONEREAD_SHM", nowhere);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("RUST_LOG").env_remove("NO_COLOR");
    command
}
