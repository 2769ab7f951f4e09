//! Tables without servers. cargo-mutants runs these, beside the unit tests and the simulator (`.cargo/mutants.toml`).

#[path = "../common/mod.rs"]
mod common;

mod model;
mod region;
