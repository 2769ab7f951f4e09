//! How the process of a command begins, and what it does and says when Ctrl-C, or another signal, ends it.
//!
//! A process inherits which signals it ignores and which are blocked. The first process of a container (number 1) gets no
//! signal that it has no handler for. [`begin`] makes all processes of the command alike: a signal that ends a program
//! ends it. From then on, one of these has the signals:
//!
//! * nobody: the process ends at once;
//! * hooks ([`hook`]): they are run, then the process ends;
//! * the command ([`leave_signals`]).

use crate::show;
use anyhow::Result;
use nix::sys::signal::SigSet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The signals that end a command: without SIGHUP if whoever started it has it ignore that, as `nohup` does.
pub fn heeded() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let outlives_terminal = ignored >> (SIGHUP - 1) & 1 == 1;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !outlives_terminal).collect()
}

/// Whether the kernel keeps from this process each signal that it has no handler for.
fn is_first() -> bool {
    std::process::id() == 1
}

/// Whether nobody has the signals yet. Looked at by handlers of the first process.
static NOBODYS: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Begins the process of a command: no signal is blocked, and those that end a program end this one, also if it is the
/// first one of a container. To be called before there are other threads: they inherit what is blocked.
pub fn begin() {
    // Setting it cannot fail: the set is one.
    let _ = SigSet::empty().thread_set_mask();
    if is_first() {
        for signal in heeded().into_iter().chain([SIGQUIT]) {
            // It fails for signals that no program may handle: these are none.
            let _ = flag::register_conditional_shutdown(signal, 128 + signal, NOBODYS.clone());
        }
    }
}

/// Does what a signal does to a program that has no handler for it.
pub fn do_default(signal: i32) {
    if is_first() && [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal) {
        std::process::exit(128 + signal);
    }
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// Does what is to be done, and returns whether it has told the user how far the command came.
type Hook = Box<dyn FnOnce() -> bool + Send>;

struct Hooks {
    is_watched: bool,
    /// Whether keys end no more than what runs in the foreground.
    are_keys_left: bool,
    last: u64,
    hooks: Vec<(u64, Hook)>,
}

static HOOKS: Mutex<Hooks> =
    Mutex::new(Hooks { is_watched: false, are_keys_left: false, last: 0, hooks: Vec::new() });

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
        let mut signals = heeded();
        signals.retain(|&signal| signal != SIGINT || !hooks.are_keys_left);
        for &signal in &signals {
            flag::register_conditional_shutdown(signal, 128 + signal, is_second.clone())?;
            flag::register(signal, is_second.clone())?;
        }
        let signals = Signals::new(signals)?;
        NOBODYS.store(false, Ordering::SeqCst);
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
    NOBODYS.store(false, Ordering::SeqCst);
    lock().is_watched = true;
}

/// Leaves the signals that keys make (Ctrl-C, Ctrl-\) to programs that this one runs in the foreground. They do not end
/// this one, and no hook is run. To be called before there is a hook.
///
/// # Errors
/// The system's.
pub fn leave_keys() -> Result<()> {
    for signal in [SIGINT, SIGQUIT] {
        flag::register(signal, Arc::default())?;
    }
    lock().are_keys_left = true;
    Ok(())
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
