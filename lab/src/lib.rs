//! The laboratory of [`oneread`]: what measures it, and what predicts it.
//!
//! [`plan`] is the arithmetic behind `oneread plan`. [`Lab`] has the subcommands that the command `oneread` takes
//! over. Like the rest of that command, it may change with every release.

mod arguments;
mod commands;
mod measure;
mod page;
pub mod plan;
mod plot;

pub use commands::Lab;
