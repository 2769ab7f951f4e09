//! systemd's watchdog (`WatchdogSec=`): it is told that the server lives, for as long as each thread that serves
//! clients takes a turn when it is asked to.

use super::serving::Watched;
use super::systemd::{self, Said, notify};
use oneread_kit::show;
use std::io;
use std::sync::PoisonError;

/// Begins to tell systemd, if it wants to hear, by a thread of its own that ends with the server. That thread has
/// no proof of its own to offer: it asks the others.
pub fn begin(server: Watched) -> io::Result<()> {
    let Some(patience) = systemd::watchdog() else { return Ok(()) };
    // Twice in that time, as systemd's manual asks for.
    let (pause, within) = (patience / 4, patience / 4);
    let watch = move || {
        let mut is_told = false;
        loop {
            let stuck = match &*server.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(serving) => serving.stuck_threads(within),
                None => return,
            };
            if stuck.is_empty() {
                is_told = false;
                notify(Said::Lives);
            } else if !std::mem::replace(&mut is_told, true) {
                show::complain(format_args!(
                    "oneread: {} hangs: no turn within {}; systemd is not told that this server lives (WatchdogSec=)",
                    stuck.join(", "),
                    show::time(within),
                ));
            }
            std::thread::sleep(pause);
        }
    };
    std::thread::Builder::new().name("oneread-watchdog".into()).spawn(watch).map(drop)
}
