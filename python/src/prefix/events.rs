//! `oneread.EventStream`: the events that an engine publishes of its blocks.

use super::placement::{Holder, PlacementIndex};
use crate::error::{Raise, error_of, typed};
use oneread_prefix::{Digests, Key, KvEvent};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::types::{PyString, PyTuple, PyTupleMethods};
use std::sync::{Mutex, PoisonError};

/// The events of one engine, in the order in which it numbers its batches. One thread at a time takes them in.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct EventStream {
    index: Py<PlacementIndex>,
    stream: Mutex<oneread_prefix::EventStream>,
}

/// An event: what has happened, and of which blocks.
enum Event {
    Stored(Vec<Key>),
    Removed(Vec<Key>),
    Cleared,
}

impl EventStream {
    fn event(&self, event: &Bound<'_, PyAny>, width: Option<usize>) -> PyResult<Event> {
        let py = event.py();
        let event = event.cast::<PyTuple>().map_err(|_| PyTypeError::new_err("an event is a tuple"))?;
        let kind = event.get_item(0)?;
        let kind = kind.cast::<PyString>()?.to_string();
        let keys = || self.index.get().keys(&event.get_item(1)?, width);
        match &*kind {
            "stored" => Ok(Event::Stored(keys()?)),
            "removed" => Ok(Event::Removed(keys()?)),
            "cleared" => Ok(Event::Cleared),
            _ => {
                let text = format!("an event is {kind:?}; there are: stored, removed, cleared");
                Err(error_of(py, "Invalid", text))
            }
        }
    }
}

#[pyo3::pymethods]
impl EventStream {
    #[new]
    #[pyo3(signature = (index, holder, /))]
    fn new(py: Python<'_>, index: Py<PlacementIndex>, holder: &Holder) -> PyResult<EventStream> {
        let stream = index
            .get()
            .with(py, |handle| oneread_prefix::EventStream::new(handle, holder.inner().clone()))?;
        Ok(EventStream { stream: Mutex::new(stream.raise(py)?), index })
    }

    /// The holder. It is another one after `cleared`.
    #[getter]
    fn holder(&self, py: Python<'_>) -> Holder {
        // Who takes events in waits for the interpreter's lock now and then.
        let holder =
            py.detach(|| self.stream.lock().unwrap_or_else(PoisonError::into_inner).holder().clone());
        Holder::of(holder)
    }

    /// Takes a batch of events in: `("stored", digests)`, `("removed", digests)`, `("cleared",)`. One with a number that
    /// was heard, or a lower one, is left out. After an error the same batch may be taken in again.
    #[pyo3(signature = (number, events, /, *, width=None))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        number: u64,
        events: &Bound<'py, PyAny>,
        width: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut all = Vec::new();
        for (nth, event) in events.try_iter()?.enumerate() {
            all.push(self.event(&event?, width).inspect_err(|error: &PyErr| {
                let _ = error.value(py).call_method1("add_note", (format!("event {nth}"),));
            })?);
        }
        let events: Vec<KvEvent<'_>> = all
            .iter()
            .map(|event| match event {
                Event::Stored(keys) => KvEvent::Stored { digests: Digests::from(&keys[..]) },
                Event::Removed(keys) => KvEvent::Removed { digests: Digests::from(&keys[..]) },
                Event::Cleared => KvEvent::Cleared,
            })
            .collect();
        let outcome = self.index.get().ask(py, |index| {
            let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            stream.take(index, number, &events)
        })?;
        typed(py, "EventOutcome")?.call1((outcome.added, outcome.removed, outcome.is_late, outcome.missed))
    }

    /// Drops the holder, and registers another one with its name: it has no blocks.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.index
            .get()
            .ask(py, |index| self.stream.lock().unwrap_or_else(PoisonError::into_inner).clear(index))
    }
}
