//! `serve --daemonize`: a server in the background.
//!
//! This process starts itself once more, as a process without threads of its own would by `fork`, and waits for
//! the line that reports readiness. Until then a Ctrl-C reaches both; after that the server has a session of its own.

use crate::again;
use anyhow::{Context, Result, bail};
use oneread::{Address, internals::files};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

/// The file for what a server in the background has to say: beside its socket, if none is named.
pub fn log_file(address: &Address, named: Option<&Path>) -> Result<PathBuf> {
    let path = match (named, address) {
        (Some(path), _) => path.to_owned(),
        (None, Address::Shm(socket)) => {
            let mut path = socket.clone().into_os_string();
            path.push(".log");
            path.into()
        }
        (None, _) => {
            bail!("over verbs and TCP there is no socket to put a log beside; name its file with --log FILE")
        }
    };
    Ok(std::path::absolute(path)?)
}

/// Starts this command once more, as the server. Returns when it serves, or has failed.
pub fn start(address: &Address, log: Option<&Path>) -> Result<ExitCode> {
    let path = log_file(address, log)?;
    if let Address::Shm(socket) = address {
        files::prepare(socket)?;
    }
    let name = path.display();
    let mut options = OpenOptions::new();
    let options = options.create(true).append(true).read(true).mode(0o600);
    // In a folder like /tmp, another user may have put a link there.
    let options = options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let mut log = options.open(&path).with_context(|| format!("opening the log {name}"))?;
    let told_before = log.seek(SeekFrom::End(0))?;
    let arguments = again::arguments().iter();
    let mut server = again::command()?
        .args(arguments.map(|given| if given == "--daemonize" { OsStr::new("--detached") } else { given }))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.try_clone()?)
        .spawn()
        .context("starting the server process")?;
    let mut ready = Vec::new();
    // To the end: the server closes its output when it serves.
    server.stdout.take().context("the server's output")?.read_to_end(&mut ready)?;
    std::io::stderr().write_all(&said_since(&mut log, told_before)?)?;
    if ready.is_empty() {
        server.wait().context("waiting for the server process")?;
        return Ok(ExitCode::FAILURE);
    }
    oneread_kit::show::write(&ready)?;
    Ok(ExitCode::SUCCESS)
}

fn said_since(log: &mut File, offset: u64) -> Result<Vec<u8>> {
    let mut said = Vec::new();
    log.seek(SeekFrom::Start(offset))?;
    log.read_to_end(&mut said)?;
    Ok(said)
}

/// Leaves the terminal, before readiness is reported.
pub fn leave_terminal() -> Result<()> {
    rustix::process::setsid().context("leaving the terminal")?;
    Ok(())
}

/// Closes the output, after readiness is reported. What follows goes to the log.
pub fn close_output() -> Result<()> {
    rustix::stdio::dup2_stdout(rustix::stdio::stderr()).context("closing the output")
}

/// The file with a server's process number. Removed when dropped.
pub struct PidFile(PathBuf);

impl PidFile {
    pub fn new(path: &Path) -> Result<PidFile> {
        let name = path.display();
        let mut new = path.to_owned().into_os_string();
        new.push(".new");
        // Nobody reads half a number.
        std::fs::write(&new, format!("{}\n", std::process::id()))
            .and_then(|()| std::fs::rename(&new, path))
            .with_context(|| format!("writing {name}"))?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server may have started since, and written its own.
        if std::fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == std::process::id().to_string()) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}
