//! The choices a table is made from: layout, size, longest key, longest value, grace time.
//!
//! [`crate::layout::geometry`] derives the bytes of a table from them.

mod choices;
mod error;
mod evict;
mod names;
mod sizes;
mod starts;
#[cfg(test)]
mod tests;

pub use choices::{Config, TableSize};
pub use error::ConfigError;
pub use evict::Evict;
pub use starts::StartLimits;
