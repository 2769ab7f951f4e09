//! Tests of the `oneread` command from outside, as a shell or a script uses it.

#[path = "../command/mod.rs"]
mod command;
mod disks;
mod dist;
mod doctor;
mod feed;
mod growth;
mod indexes;
#[path = "../../../cluster/tests/common/installed.rs"]
mod installed;
#[cfg(feature = "kv-indexer")]
mod kv_indexer;
#[cfg(feature = "lab")]
mod lab;
mod logs;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "lab")]
mod plan;
mod processes;
mod region_files;
mod served;
mod servers;
mod snapshots;
mod stat;
mod terminal;
mod users;
mod values;
