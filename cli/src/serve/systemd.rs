//! What systemd is told (sd_notify(3)), and how often it wants to hear (sd_watchdog_enabled(3)).
//!
//! The socket never waits: a service manager that does not read holds up no server. Only the message that the server is
//! ready is worth waiting for, and for a limited time.

use oneread_kit::show;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// What the server tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Ready,
    Stopping,
    /// Its threads turn.
    Lives,
}

/// Longest wait for room in the manager's queue.
const READY_WITHIN: Duration = Duration::from_secs(5);

impl Said {
    fn text(self) -> String {
        match self {
            Said::Ready => format!("READY=1\nMAINPID={}\n", std::process::id()),
            Said::Stopping => "STOPPING=1\n".into(),
            Said::Lives => "WATCHDOG=1\n".into(),
        }
    }

    /// How long it may wait. `None`: not at all.
    fn patience(self) -> Option<Duration> {
        match self {
            Said::Ready => Some(READY_WITHIN),
            // It ends in any case, and lives still when it is asked again.
            Said::Stopping | Said::Lives => None,
        }
    }
}

/// Tells systemd, if it started this server as a unit of `Type=notify`.
pub fn notify(said: Said) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = tell(&name, said) {
        show::complain(format_args!(
            "oneread: telling systemd (NOTIFY_SOCKET={}) failed: {error}",
            show::path(name.as_ref())
        ));
    }
}

fn tell(name: &OsStr, said: Said) -> io::Result<()> {
    let to = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no path, nor @ and a name")),
    };
    let socket = UnixDatagram::unbound()?;
    match said.patience() {
        Some(time) => socket.set_write_timeout(Some(time))?,
        None => socket.set_nonblocking(true)?,
    }
    match socket.send_to_addr(said.text().as_bytes(), &to) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "its queue is full"))
        }
        Err(error) => Err(error),
    }
}

/// How long systemd waits for word of this process, if it waits at all.
pub fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    watchdog_of(number("WATCHDOG_USEC"), std::env::var_os("WATCHDOG_PID").map(|_| number("WATCHDOG_PID")))
}

/// `process`: whom systemd waits for, if it says so.
fn watchdog_of(micros: Option<u64>, process: Option<Option<u64>>) -> Option<Duration> {
    let is_this = process.is_none_or(|process| process == Some(std::process::id().into()));
    micros.filter(|&micros| micros > 0 && is_this).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An abstract name is a socket's, as a path is. Other names are none, and each error says so.
    #[test]
    fn sockets_have_names_of_two_kinds() {
        let name = format!("oneread-test-{}", std::process::id());
        let hears = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        tell(format!("@{name}").as_ref(), Said::Stopping).unwrap();
        let mut bytes = [0; 64];
        let length = hears.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"STOPPING=1\n");
        let refused = tell("name".as_ref(), Said::Stopping).unwrap_err();
        assert!(refused.to_string().contains("no path"), "{refused}");
    }

    /// A queue that nobody reads holds up nothing: what finds no room is not told.
    #[test]
    fn a_full_queue_holds_up_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _deaf = UnixDatagram::bind(&path).unwrap();
        let refused = (0..100_000).find_map(|_| tell(path.as_os_str(), Said::Lives).err());
        let refused = refused.expect("a queue has an end").to_string();
        assert_eq!(refused, "its queue is full");
        assert!(tell(path.as_os_str(), Said::Stopping).is_err());
        let ready = tell(path.as_os_str(), Said::Ready).unwrap_err();
        assert_eq!(ready.to_string(), "its queue is full", "it is waited for, and not for ever");
    }

    /// No time, and another process's, are no watchdog.
    #[test]
    fn a_watchdog_has_a_time() {
        let own = Some(Some(u64::from(std::process::id())));
        assert_eq!(watchdog_of(Some(30), own), Some(Duration::from_micros(30)));
        assert_eq!(watchdog_of(Some(30), None), Some(Duration::from_micros(30)));
        for (micros, process) in
            [(None, own), (Some(0), own), (Some(0), None), (Some(30), Some(Some(1 << 40)))]
        {
            assert_eq!(watchdog_of(micros, process), None, "{micros:?} {process:?}");
        }
        assert_eq!(watchdog_of(Some(30), Some(None)), None);
    }
}
