//! Builds tests/fake_ibverbs.c, the verbs library whose devices fail on request.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Whether this is the guest with real devices. Tests with the fake would show nothing new there.
pub fn is_guest(test: &str) -> bool {
    let there = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    if there {
        eprintln!("skipped {test}: this machine has an RDMA device; tests/verbs/device.rs is for it");
    }
    there
}

/// Compiles the fake to this file, with these additional arguments.
pub fn compile(more: &[&str], output: &Path) {
    let mut gcc = Command::new("gcc")
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(more)
        .arg("-o")
        .arg(output)
        .args(["-x", "c", "-", "-lpthread"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting gcc");
    gcc.stdin.take().unwrap().write_all(include_bytes!("../fake_ibverbs.c")).unwrap();
    let gcc = gcc.wait_with_output().unwrap();
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
}

/// The folder of the compiled fake. It is built once for each run.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake_ibverbs");
        std::fs::create_dir_all(&folder).unwrap();
        let made = tempfile::tempdir_in(&folder).unwrap();
        let (new, library) = (made.path().join("new"), folder.join("libibverbs.so.1"));
        compile(&["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1"], &new);
        // Renamed in one step, because another run may be using the file.
        std::fs::rename(new, library).unwrap();
        folder
    })
}
