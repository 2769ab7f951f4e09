//! What the library logs, as Python's `logging` has it: the logger `oneread`.
//!
//! It logs on threads that know nothing of Python, and calls that do not hold the interpreter's lock. So what it says
//! waits for a thread that hands it on. That thread begins with the first event, and ends when nothing waits.
//!
//! An interpreter that ends unwinds threads that want its lock again, as a handler does that writes. Frames of Rust are
//! not to be unwound like that: the process would be aborted. So before it ends, it waits until that thread has.

use crate::fork;
use oneread::internals::words::{self, Door};
use pyo3::prelude::{Bound, PyAnyMethods, PyModule, PyResult, Python};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// So many events wait. Further ones are left out, and counted.
const WAITING: usize = 1024;

/// Levels as Python numbers them, from this one on.
static LEVEL: AtomicU8 = AtomicU8::new(30);

/// What waits to be handed on.
struct Waiting {
    events: VecDeque<(u8, String)>,
    left_out: u64,
    /// The process in which a thread hands it on.
    handed_on: Option<u64>,
    /// The interpreter ends: nothing is handed on any more.
    is_over: bool,
}

static WAIT: Mutex<Waiting> =
    Mutex::new(Waiting { events: VecDeque::new(), left_out: 0, handed_on: None, is_over: false });
/// Told when nothing is handed on any more.
static HANDED_ON: Condvar = Condvar::new();

fn waiting() -> MutexGuard<'static, Waiting> {
    WAIT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like `waiting`. `None` in a child made by `fork`, where a thread may have the lock that is not there.
fn waiting_if_there() -> Option<MutexGuard<'static, Waiting>> {
    match WAIT.try_lock() {
        Ok(waiting) => Some(waiting),
        Err(TryLockError::Poisoned(waiting)) => Some(waiting.into_inner()),
        Err(TryLockError::WouldBlock) if fork::process() > 0 => None,
        Err(TryLockError::WouldBlock) => Some(waiting()),
    }
}

/// Python's number of a level.
fn number(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// The message of an event, and its fields behind it.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        let _ = match field.name() {
            "message" => {
                self.0.insert_str(0, space);
                let mut text = String::new();
                let _ = write!(text, "{value:?}");
                self.0.insert_str(0, &text);
                Ok(())
            }
            name => write!(self.0, "{space}{name}={value:?}"),
        };
    }
}

struct Handing;

impl Subscriber for Handing {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Relaxed: nothing else hangs on it.
        metadata.is_event() && number(metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let Some(mut waiting) = waiting_if_there() else { return };
        if waiting.is_over {
            return;
        }
        if waiting.events.len() >= WAITING {
            waiting.left_out += 1;
            return;
        }
        let text = words::said(Door::Python, &text.0);
        waiting.events.push_back((number(event.metadata().level()), text));
        if waiting.handed_on != Some(fork::process()) {
            let begun = std::thread::Builder::new().name("oneread-log".into()).spawn(hand_on);
            waiting.handed_on = begun.is_ok().then(fork::process);
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Hands on what waits, until nothing does.
fn hand_on() {
    // `None`: the interpreter ends. What is left nobody reads.
    let handed = Python::try_attach(|py| {
        let logger = py.import("logging")?.call_method1("getLogger", ("oneread",))?;
        loop {
            let (events, left_out) = {
                let mut waiting = waiting();
                if waiting.events.is_empty() {
                    end_handing_on(&mut waiting);
                    return PyResult::Ok(());
                }
                (std::mem::take(&mut waiting.events), std::mem::take(&mut waiting.left_out))
            };
            for (level, text) in events {
                logger.call_method1("log", (level, "%s", text))?;
            }
            if left_out > 0 {
                logger.call_method1("log", (30, "%s", format!("{left_out} messages were left out")))?;
            }
        }
    });
    if !matches!(handed, Some(Ok(()))) {
        end_handing_on(&mut waiting());
    }
}

/// Nobody hands on what waits, until there is something again.
fn end_handing_on(waiting: &mut Waiting) {
    waiting.handed_on = None;
    HANDED_ON.notify_all();
}

/// From now on nothing is handed on. Waits until the thread is done that hands on: it still has the interpreter's lock
/// then, which this one wants again.
#[pyo3::pyfunction]
fn end(py: Python<'_>) -> PyResult<()> {
    let is_handing_on = || {
        let Some(mut waiting) = waiting_if_there() else { return false };
        waiting.is_over = true;
        if waiting.handed_on != Some(fork::process()) {
            return false;
        }
        drop(HANDED_ON.wait_timeout(waiting, Duration::from_millis(50)));
        true
    };
    while py.detach(is_handing_on) {
        py.check_signals()?;
    }
    Ok(())
}

/// From now on what the library logs is handed on, unless the program has its own way.
pub(crate) fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A program of Rust that has embedded Python may have one. Then that hears it.
        let _ = tracing::subscriber::set_global_default(Handing);
    });
}

/// Sees to it that the interpreter ends no sooner than what is handed on. What is registered later is called sooner: so
/// handlers of `logging`, which registers itself, are still open then.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    py.import("logging")?;
    py.import("atexit")?.call_method1("register", (pyo3::wrap_pyfunction!(end, module)?,))?;
    Ok(())
}

/// Events of a lower level than this are not handed on to Python's `logging`. At first it is `logging.WARNING`.
#[pyo3::pyfunction]
pub(crate) fn log_level(level: u8) {
    LEVEL.store(level, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    begin();
}
