//! `oneread.EventStream`: the events that an engine publishes of its blocks.

use super::placement::{Holder, PlacementIndex};
use crate::calls;
use crate::error::{Raise, error_of};
use crate::fork;
use crate::turn::Turn;
use oneread_prefix::{Digests, EventStream as Stream, Key, KvEvent, PrefixError};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::types::{PyListMethods, PyString, PyTuple, PyTupleMethods};

/// The events of one engine, in the order in which it numbers its batches. One thread at a time takes them in.
#[pyo3::pyclass(frozen, module = "oneread", weakref)]
pub(crate) struct EventStream {
    process: u64,
    index: Py<PlacementIndex>,
    /// There, unless a thread has it.
    stream: Turn<Option<Stream>>,
}

/// An event: what has happened, and of which blocks.
enum Event {
    Stored(Vec<Key>),
    Removed(Vec<Key>),
    Cleared,
}

impl EventStream {
    /// Does work with it and its index, after other threads.
    ///
    /// # Errors
    /// Those of the work. `Closed` in a child made by `fork`. `Busy` in a handler of a signal within such work.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut Stream, &mut oneread_prefix::PlacementIndex) -> Result<R, PrefixError> + Send,
    ) -> PyResult<R> {
        fork::check(py, self.process, "stream", "make another one")?;
        let mut taken = self.stream.take(py)?;
        let Some(stream) = taken.as_deref_mut().and_then(Option::as_mut) else {
            return Err(error_of(py, "Closed", "this stream was closed".into())); // Nobody closes it.
        };
        self.index.get().ask(py, |index| work(stream, index))
    }

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
        let stream = index.get().with(py, |handle| Stream::new(handle, holder.inner().clone()))?.raise(py)?;
        Ok(EventStream { process: fork::process(), index, stream: Turn::new(Some(stream)) })
    }

    /// The holder. It is another one after `cleared`.
    #[getter]
    fn holder(&self, py: Python<'_>) -> PyResult<Holder> {
        Ok(Holder::of(self.with(py, |stream, _| Ok(stream.holder().clone()))?))
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
        for (nth, event) in calls::list(events)?.iter().enumerate() {
            all.push(self.event(&event, width).inspect_err(|error: &PyErr| {
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
        let outcome = self.with(py, |stream, index| stream.take(index, number, &events))?;
        calls::made(py, "EventOutcome", (outcome.added, outcome.removed, outcome.is_late, outcome.missed))
    }

    /// Drops the holder, and registers another one with its name: it has no blocks. Batches go on with their numbers.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |stream, index| stream.clear(index))
    }

    /// The engine was started again: as `clear`, and its next batch may have any number. It may be repeated after an
    /// error. What the engine published before must not be taken in afterwards.
    fn restarted(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |stream, index| stream.restarted(index))
    }
}
