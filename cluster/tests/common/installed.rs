//! What tests need that is not everywhere.

use std::process::{Command, Stdio};

/// Whether the tests can have an etcd. Without one they are skipped, which CI does not allow.
pub fn has_etcd() -> bool {
    let has =
        Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    assert!(
        has || std::env::var_os("ONEREAD_NO_SKIP").is_none(),
        "etcd is not installed (apt-get install etcd-server)"
    );
    if !has {
        eprintln!("SKIPPED: etcd is not installed; on Debian: apt-get install etcd-server");
    }
    has
}
