//! The program `oneread`.

use std::process::ExitCode;

fn main() -> ExitCode {
    oneread_cli::main()
}
