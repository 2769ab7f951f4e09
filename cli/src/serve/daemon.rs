//! `serve --daemonize`: a server in the background.
//!
//! This process starts itself once more, as a process without threads of its own would by `fork`, and waits for
//! the line that reports readiness. Until then a Ctrl-C reaches both; after that the server has a session of its own.

use crate::again;
use anyhow::{Context, Result, bail, ensure};
use oneread::Address;
use oneread::error::FileError;
use oneread::internals::files::{self, LockFile};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

/// What the server in the background reports at the end, if it runs and is not good: a node that etcd, or nobody, hears.
const NOT_GOOD: u8 = 0;

/// A server that stops may have the lock for a moment.
const LOCK_WITHIN: Duration = Duration::from_millis(100);

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
            bail!(
                "over verbs and TCP there is no socket to put a log beside; name its file with --log-file FILE"
            )
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
    let mut log = open_log(&path)?;
    let told_before = log.seek(SeekFrom::End(0))?;
    let arguments = again::arguments().iter();
    let mut server = again::command()?
        .args(arguments.map(|given| if given == "--daemonize" { OsStr::new("--detached") } else { given }))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log.try_clone()?)
        .spawn()
        .context("starting the server process")?;
    let mut ready = Vec::new();
    // To the end: the server closes its output when it serves.
    server.stdout.take().context("the server's output")?.read_to_end(&mut ready)?;
    let is_good = ready.pop_if(|last| *last == NOT_GOOD).is_none();
    // The server waits for the word that this was told. Without it, it ends.
    let mut word = server.stdin.take().context("the server's input")?;
    let told = match ready.is_empty() {
        true => None,
        false => Some(is_said(oneread_kit::show::write(&ready))),
    };
    if let Some(Ok(())) = told {
        word.write_all(TOLD).context("the server has ended; its log says why")?;
    }
    drop(word);
    if !matches!(told, Some(Ok(()))) {
        server.wait().context("waiting for the server process")?;
    }
    std::io::stderr().write_all(&said_since(&mut log, told_before)?)?;
    match told {
        None => Ok(ExitCode::FAILURE),
        Some(told) => Ok(told.map(|()| oneread_kit::status(is_good))?),
    }
}

/// Whether it was said. Whoever has closed the output does not want to hear it: that is no failure.
pub fn is_said(said: io::Result<()>) -> io::Result<()> {
    match said {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        said => said,
    }
}

/// What the server process reads when its readiness was told.
const TOLD: &[u8] = b"told";

/// Opens the log. In a folder like /tmp another user may have put a link there, or a file that is his: he could read what
/// the server has to say, and cut it off.
fn open_log(path: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
    // What is written to /dev/null is nobody's, and nothing is read of it. Other devices are no logs: some never end.
    let is_nothing = |path: &Path| {
        const NULL: u64 = 1 << 8 | 3;
        path.symlink_metadata().is_ok_and(|about| about.file_type().is_char_device() && about.rdev() == NULL)
    };
    let opened = match files::open_file(path, flags) {
        Err(FileError::Kind { .. }) if is_nothing(path) => {
            OpenOptions::new().read(true).append(true).open(path).map_err(anyhow::Error::from)
        }
        opened => opened.map_err(anyhow::Error::from),
    };
    opened.with_context(|| format!("opening the log {}; --log-file names another file", path.display()))
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

/// Closes the output, after readiness is reported, and says whether what is served is good. Waits until that was told. What
/// follows goes to the log.
pub fn is_told(is_good: bool) -> Result<()> {
    if !is_good {
        let mut out = io::stdout();
        out.write_all(&[NOT_GOOD]).and_then(|()| out.flush()).context("reporting that it is not good")?;
    }
    rustix::stdio::dup2_stdout(rustix::stdio::stderr()).context("closing the output")?;
    let mut word = Vec::new();
    io::stdin().lock().read_to_end(&mut word).context("hearing that it was told")?;
    ensure!(
        word == TOLD,
        "nobody was told that the server serves, so it ends again: see what became of the output of the command that has started it"
    );
    let nothing = File::open("/dev/null").context("opening /dev/null")?;
    rustix::stdio::dup2_stdin(nothing).context("closing the input")
}

/// The file with a server's process number, while that serves. No second server has it meanwhile. Removed when dropped.
pub struct PidFile {
    path: PathBuf,
    /// The number, once it is written.
    number: Option<File>,
    /// Keeps other servers away. Let go of last.
    _lock: LockFile,
}

impl PidFile {
    /// Takes it for this server, before that starts.
    pub fn take(path: &Path) -> Result<PidFile> {
        let path = std::path::absolute(path)?;
        let name = path.display().to_string();
        let lock =
            LockFile::take(&path, LOCK_WITHIN).with_context(|| format!("locking --pid-file {name}"))?;
        let lock = lock.with_context(|| {
            format!("another server has --pid-file {name}; stop it, or name another file")
        })?;
        Ok(PidFile { path, number: None, _lock: lock })
    }

    /// Writes the number.
    pub fn write(&mut self) -> Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        // Nobody reads half a number. What a killed server has left goes; a link is not followed.
        let make = || OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new);
        let made = make().or_else(|why| match why.kind() {
            io::ErrorKind::AlreadyExists => std::fs::remove_file(&new).and_then(|()| make()),
            _ => Err(why),
        });
        let written = made.and_then(|mut file| {
            let put =
                writeln!(file, "{}", std::process::id()).and_then(|()| std::fs::rename(&new, &self.path));
            if put.is_err() {
                // The cause is told, whatever becomes of this.
                let _ = std::fs::remove_file(&new);
            }
            put.map(|()| file)
        });
        self.number = Some(written.with_context(|| format!("writing --pid-file {}", self.path.display()))?);
        Ok(())
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Others may have put a file of theirs there.
        if let Some(number) = &self.number
            && let (Ok(ours), Ok(there)) = (number.metadata(), self.path.symlink_metadata())
            && (ours.dev(), ours.ino()) == (there.dev(), there.ino())
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
