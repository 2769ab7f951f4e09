//! The terminal's second screen, for figures that stay in place.

use anyhow::Result;
use oneread_kit::{escape, interrupt, show};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Instant;

/// The terminal's second screen, without a cursor. The first one comes back when this is dropped, or the
/// process ends by a signal.
pub struct Screen {
    sizes: Receiver<()>,
}

const OPEN: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const CLOSE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    pub fn open() -> Result<Screen> {
        let (sender, sizes) = mpsc::channel();
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH])?;
        interrupt::leave_signals();
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if signal == SIGWINCH {
                    let _ = sender.send(());
                    continue;
                }
                // Nobody else writes to the screen meanwhile: the lock is kept.
                let mut out = io::stdout().lock();
                let _ = out.write_all(CLOSE.as_bytes()).and_then(|()| out.flush());
                interrupt::do_default(signal);
                // Ctrl-Z has stopped it, and it goes on.
                let _ = out.write_all(OPEN.as_bytes()).and_then(|()| out.flush());
                let _ = sender.send(());
            }
        });
        show::write(OPEN.as_bytes())?;
        Ok(Screen { sizes })
    }

    /// Writes over what is there, line by line, so that nothing flickers.
    pub fn show(&self, lines: &[String]) -> io::Result<()> {
        let lines: Vec<_> = lines.iter().map(|line| format!("{}\x1b[K", escape::laid_out(line))).collect();
        show::write(format!("\x1b[H{}\x1b[J", lines.join("\r\n")).as_bytes())
    }

    /// Waits. Returns whether the size has changed before the time was over.
    pub fn has_new_size(&self, until: Instant) -> bool {
        match self.sizes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = show::write(CLOSE.as_bytes());
    }
}
