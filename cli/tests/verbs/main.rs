//! The command over verbs.

#[path = "../command/mod.rs"]
mod command;
#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/fake_ibverbs.rs"]
mod fake_ibverbs;

mod rpc;
mod serving;
