//! What the subcommands of `oneread` share: how they read options and print numbers, tables and progress, how they end
//! at a signal, and how they start a server of their own.
//!
//! Made for `oneread-cli` and `oneread-lab`. It may change with every release.

pub mod advice;
pub mod child;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod escape;
pub mod folder;
pub mod interrupt;
pub mod names;
pub mod progress;
pub mod show;
pub mod threads;
mod tls;
mod token;
pub mod units;

pub use show::status;
pub use tls::TlsArgs;
pub use token::{TokenArgs, token_in, write_secret};
