//! How a server ends: who hears the signals, and what ends a start that does not end by itself.
//!
//! A thread of its own hears them, and waits for nothing else. Until the server is in service, a signal has the start
//! cancelled. If the start waits for what never comes (a file system that does not answer, an output that nobody reads),
//! the thread ends the process. In service, the signal is passed on: then the server ends in its order, with a last
//! snapshot, for as long as that takes.

use anyhow::{Context, Result};
use oneread_kit::{interrupt, show};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a start may take to end after a signal, before the process is ended.
const START_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// How long the end of what was made, and the last words, may take.
const SAID_WITHIN: Duration = Duration::from_secs(2);

/// What SIGHUP is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It ends the server.
    Ends,
    /// It has the certificates read again, unless a terminal is gone.
    ReadsAgain,
}

/// Whether this process has a terminal that is still there.
fn is_there_a_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// How far the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starts,
    Serves,
    Ends,
}

/// What a signal asks for, once the server is in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    End,
    ReadAgain,
}

/// The signals of a server, from its start to its end.
pub struct Ending {
    asked: Receiver<Asked>,
    cancel: Arc<AtomicBool>,
    stage: Arc<Mutex<Stage>>,
    undo: Undo,
}

/// What ends a server whose start hangs in its last steps.
type Undo = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ending {
    /// Hears signals from now on.
    pub fn begin(hangup: Hangup) -> Result<Ending> {
        let (sender, asked) = mpsc::channel();
        let (cancel, stage) = (Arc::<AtomicBool>::default(), Arc::new(Mutex::new(Stage::Starts)));
        // Before the table is ready there is nothing to read certificates again for.
        for signal in
            interrupt::heeded().into_iter().filter(|&signal| signal != SIGHUP || hangup == Hangup::Ends)
        {
            signal_hook::flag::register(signal, cancel.clone())?;
        }
        let signals = Signals::new(interrupt::heeded())?;
        interrupt::leave_signals();
        let undo = Undo::default();
        let ending = Ending { asked, cancel, stage: Arc::clone(&stage), undo: undo.clone() };
        let hear = move || hear(signals, hangup, &sender, &stage, &undo);
        std::thread::Builder::new()
            .name("oneread-signals".into())
            .spawn(hear)
            .context("starting the thread that hears signals")?;
        Ok(ending)
    }

    /// What has the start cancelled.
    pub fn cancel(&self) -> Arc<AtomicBool> {
        self.cancel.clone()
    }

    /// What ends the server, if the rest of its start hangs.
    pub fn ends_by(&self, undo: impl FnOnce() + Send + 'static) {
        *self.undo.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(undo));
    }

    /// The server is in service. What a signal asks for is passed on, also what one asked for before.
    pub fn serves(&self) {
        *lock(&self.stage) = Stage::Serves;
    }

    /// Waits for the next thing that a signal asks for.
    pub fn next(&self) -> Asked {
        let asked = self.asked.recv().unwrap_or(Asked::End);
        if asked == Asked::End {
            *lock(&self.stage) = Stage::Ends;
        }
        asked
    }
}

fn hear(
    mut signals: Signals,
    hangup: Hangup,
    sender: &Sender<Asked>,
    stage: &Arc<Mutex<Stage>>,
    undo: &Undo,
) {
    let had_terminal = is_there_a_terminal();
    let mut is_overseen = false;
    for signal in signals.forever() {
        // A terminal that is gone ends the server, with TLS as without.
        if signal == SIGHUP && hangup == Hangup::ReadsAgain && (!had_terminal || is_there_a_terminal()) {
            let _ = sender.send(Asked::ReadAgain);
            continue;
        }
        let now = *lock(stage);
        match now {
            Stage::Starts => {
                if !std::mem::replace(&mut is_overseen, true) {
                    let (stage, undo) = (stage.clone(), undo.clone());
                    std::thread::spawn(move || oversee(&stage, &undo, signal));
                }
            }
            Stage::Serves => {}
            Stage::Ends => {
                show::complain(
                    "oneread: it is ending already, perhaps with a last snapshot; `oneread stop --force`, or SIGKILL, ends it at once",
                );
            }
        }
        let _ = sender.send(Asked::End);
    }
}

/// Ends the process if the start does not end.
fn oversee(stage: &Mutex<Stage>, undo: &Undo, signal: i32) {
    std::thread::sleep(START_ENDS_WITHIN);
    // Locked to the end: from here on it does not come into service.
    let stage = lock(stage);
    if *stage == Stage::Starts {
        // A disk, or whoever reads what is said, may not answer either.
        let (told, is_told) = mpsc::channel();
        let undo = undo.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::thread::spawn(move || {
            if let Some(undo) = undo {
                undo();
            }
            show::complain(format_args!(
                "oneread: the start did not end within {} of the signal, so the process ends; a file or the output does not answer: look at the disk, and at what reads the output",
                show::time(START_ENDS_WITHIN)
            ));
            let _ = told.send(());
        });
        let _ = is_told.recv_timeout(SAID_WITHIN);
        std::process::exit(128 + signal);
    }
}
