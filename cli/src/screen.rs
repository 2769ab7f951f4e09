//! The terminal's second screen, for figures that stay in place.

use crate::columns::size;
use anyhow::Result;
use oneread_kit::{escape, interrupt, show};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::iterator::Signals;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// The terminal's second screen, without a cursor. The first one comes back when this is dropped, or the
/// process ends by a signal.
pub struct Screen {
    /// Readable when the size has changed.
    sizes: UnixStream,
    keys: Keys,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woke {
    /// The time is over.
    Due,
    /// The terminal has another size, or shows what others have written.
    Resized,
    /// The user has pressed `q`.
    Quit,
}

const OPEN: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const CLOSE: &str = "\x1b[?25h\x1b[?1049l";

/// How the terminal gave keys before: `None` where it gives this process none.
#[derive(Clone)]
struct Keys(Option<Termios>);

impl Keys {
    /// From now on keys come one by one, and are not shown.
    fn begin() -> Keys {
        let stdin = rustix::stdio::stdin();
        // A process in the background would be stopped.
        let is_ours = tcgetpgrp(stdin).is_ok_and(|group| group == rustix::process::getpgrp());
        let keys = Keys(tcgetattr(stdin).ok().filter(|_| is_ours));
        keys.take();
        keys
    }

    fn take(&self) {
        if let Some(before) = &self.0 {
            let mut one_by_one = before.clone();
            one_by_one.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &one_by_one);
        }
    }

    fn give_back(&self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before);
        }
    }
}

impl Screen {
    /// `None` where figures cannot stay in place: stdout is no terminal, or a dumb one.
    pub fn open() -> Result<Option<Screen>> {
        if !show::is_screen() {
            return Ok(None);
        }
        let (mut sender, sizes) = UnixStream::pair()?;
        sizes.set_nonblocking(true)?;
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH])?;
        interrupt::leave_signals();
        let keys = Keys::begin();
        let keys_there = keys.clone();
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if signal == SIGWINCH {
                    let _ = sender.write_all(&[0]);
                    continue;
                }
                // Nobody else writes to the screen meanwhile: the lock is kept.
                let mut out = io::stdout().lock();
                keys_there.give_back();
                let _ = out.write_all(CLOSE.as_bytes()).and_then(|()| out.flush());
                interrupt::do_default(signal);
                // Ctrl-Z has stopped it, and it goes on.
                keys_there.take();
                let _ = out.write_all(OPEN.as_bytes()).and_then(|()| out.flush());
                let _ = sender.write_all(&[0]);
            }
        });
        show::write(OPEN.as_bytes())?;
        Ok(Some(Screen { sizes, keys }))
    }

    /// Writes over what is there, line by line, so that nothing flickers.
    fn show(&self, lines: &[String]) -> io::Result<()> {
        let lines: Vec<_> = lines.iter().map(|line| format!("{}\x1b[K", escape::laid_out(line))).collect();
        show::write(format!("\x1b[H{}\x1b[J", lines.join("\r\n")).as_bytes())
    }

    /// Shows the lines that a screen of so many columns and lines is to have, until this time, and again where its size
    /// changes. `false`: the user wants no more.
    pub fn show_until(
        &self,
        due: Instant,
        lines: impl Fn((usize, usize)) -> Vec<String>,
    ) -> io::Result<bool> {
        loop {
            self.show(&lines(size().unwrap_or((80, 24))))?;
            match self.wait(due) {
                Woke::Due => return Ok(true),
                Woke::Resized => {}
                Woke::Quit => return Ok(false),
            }
        }
    }

    /// Waits until this time, or for the user.
    fn wait(&self, until: Instant) -> Woke {
        let stdin = rustix::stdio::stdin();
        let mut has_keys = self.keys.0.is_some();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            let both = &mut [PollFd::new(&self.sizes, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            let waited = if has_keys { &mut both[..] } else { &mut both[..1] };
            if matches!(poll(waited, Some(&left)), Ok(0)) {
                return Woke::Due;
            }
            let mut some = [0; 64];
            if !both[0].revents().is_empty() {
                let _ = (&self.sizes).read(&mut some);
                return Woke::Resized;
            }
            if has_keys && !both[1].revents().is_empty() {
                match rustix::io::read(stdin, &mut some) {
                    Ok(0) | Err(_) => has_keys = false,
                    Ok(read) if some[..read].iter().any(|key| b"qQ".contains(key)) => return Woke::Quit,
                    Ok(_) => {}
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = show::write(CLOSE.as_bytes());
        self.keys.give_back();
    }
}
