//! Tables without servers: what cargo-mutants runs of the tests of this folder (`.cargo/mutants.toml`).

#[path = "../common/mod.rs"]
mod common;

mod model;
mod region;
