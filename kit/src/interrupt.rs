//! What a command does and says when Ctrl-C, or another signal, ends it.

use crate::show;
use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The signals that end a command: without SIGHUP if whoever started it has it ignore that, as `nohup` does.
pub fn heeded() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let outlives_terminal = ignored >> (SIGHUP - 1) & 1 == 1;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !outlives_terminal).collect()
}

/// Does what is to be done, and returns whether it has told the user how far the command came.
type Hook = Box<dyn FnOnce() -> bool + Send>;

struct Hooks {
    is_watched: bool,
    last: u64,
    hooks: Vec<(u64, Hook)>,
}

static HOOKS: Mutex<Hooks> = Mutex::new(Hooks { is_watched: false, last: 0, hooks: Vec::new() });

fn lock() -> MutexGuard<'static, Hooks> {
    HOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that a signal has done before the process ends. Dropped, it is not done any more.
#[derive(Debug)]
#[must_use]
pub struct Hooked(u64);

/// Has a signal do this, and then end the process with status 128 + signal. What came last is done first.
/// While it is done, other threads go on, until they drop a [`Hooked`].
pub fn hook(what: impl FnOnce() -> bool + Send + 'static) -> Result<Hooked> {
    let mut hooks = lock();
    if !hooks.is_watched {
        // The second one ends the process at once, whatever the first one waits for.
        let is_second = Arc::new(AtomicBool::new(false));
        let signals = heeded();
        for &signal in &signals {
            flag::register_conditional_shutdown(signal, 128 + signal, is_second.clone())?;
            flag::register(signal, is_second.clone())?;
        }
        let signals = Signals::new(signals)?;
        std::thread::spawn(|| watch(signals));
        hooks.is_watched = true;
    }
    hooks.last += 1;
    let number = hooks.last;
    hooks.hooks.push((number, Box::new(what)));
    Ok(Hooked(number))
}

/// Leaves signals to the command, which ends by itself: no [`hook`] is ever run.
pub fn leave_signals() {
    lock().is_watched = true;
}

fn watch(mut signals: Signals) {
    if let Some(signal) = signals.forever().next() {
        // Locked to the end: of what the other threads make of it, none tells.
        let mut hooks = lock();
        let mut has_told = false;
        while let Some((_, hook)) = hooks.hooks.pop() {
            has_told |= hook();
        }
        if !has_told {
            show::complain("oneread: interrupted");
        }
        std::process::exit(128 + signal);
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        lock().hooks.retain(|(number, _)| *number != self.0);
    }
}
