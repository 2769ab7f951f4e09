//! What a client of a table and a client of a cluster do in one way: puts, and changes of many keys.

use crate::convert::bytes_of;
use crate::error::{Classed, error_at, told};
use crate::keys::{Items, Pair, kept_pairs, pairs_of};
use crate::options;
use oneread::{PutMode, PutOptions};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyErr, PyResult, Python};

/// After so many changes of a batch, some milliseconds, it is looked whether the program is to be interrupted. Each such
/// part has the client's time for itself.
const PART: usize = 4096;

/// Keys, or values, as Python gives them, and how long each is.
pub(crate) type Given<'a, 'py> = (&'a Bound<'py, PyAny>, Option<usize>);

/// Is told of each change of a part of a batch what became of it.
pub(crate) type Note<'a, E> = &'a mut dyn FnMut(usize, Result<bool, E>);

/// What became of the changes of a batch.
pub(crate) struct Outcomes<E> {
    /// How many changes there are.
    count: usize,
    /// How many were made, or had nothing to do.
    made: usize,
    /// How many keys are new, or were there.
    counted: usize,
    /// The keys whose changes were certainly not made.
    rejected: Vec<usize>,
    /// The keys of which nobody knows.
    unknown: Vec<usize>,
    /// The first key that failed, and why; the first of which nobody knows, if there is one.
    why: Option<(usize, E)>,
    /// Whether nobody answers any more.
    is_over: bool,
}

impl<E: Classed> Outcomes<E> {
    pub fn of(count: usize) -> Outcomes<E> {
        let (rejected, unknown) = (Vec::new(), Vec::new());
        Outcomes { count, made: 0, counted: 0, rejected, unknown, why: None, is_over: false }
    }

    pub fn note(&mut self, number: usize, outcome: Result<bool, E>) {
        let error = match outcome {
            Ok(counts) => {
                self.made += 1;
                self.counted += usize::from(counts);
                return;
            }
            Err(error) => error,
        };
        self.is_over |= error.ends_batch();
        let (is_first, numbers) = match error.is_unknown() {
            true => (self.unknown.is_empty(), &mut self.unknown),
            false => (self.why.is_none(), &mut self.rejected),
        };
        numbers.push(number);
        if is_first {
            self.why = Some((number, error));
        }
    }

    /// Of how many changes it is known what became of them.
    pub fn noted(&self) -> usize {
        self.made + self.rejected.len() + self.unknown.len()
    }

    /// What the caller is told at the end: how many keys are new, or were there.
    pub fn end(mut self, py: Python<'_>) -> PyResult<usize> {
        let noted = self.noted();
        let Some((first, error)) = self.why else { return Ok(self.counted) };
        self.rejected.extend(noted..self.count);
        let perhaps = match self.unknown.len() {
            0 => String::new(),
            unknown => format!(", and {unknown} more may have been"),
        };
        let (told, made, count) = (told(&error), self.made, self.count);
        let text = format!("key {first}: {told}; {made} of {count} changes were made{perhaps}");
        let raised = error_at(py, error.class(), text, first);
        raised.value(py).setattr("rejected", self.rejected)?;
        raised.value(py).setattr("unknown", self.unknown)?;
        Err(raised)
    }

    /// What the caller is told after an error that has ended all.
    #[cold]
    pub fn broken_off(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let note = format!("{} of {} changes were made before; more may have been", self.made, self.count);
        let _ = error.value(py).call_method1("add_note", (note,));
        error
    }
}

/// How a client of the library puts a key.
pub(crate) type Puts<C, R, E> = fn(&mut C, &[u8], &[u8], PutOptions) -> Result<R, E>;

/// A client of a table, or of a cluster.
pub(crate) trait Verbs {
    /// The library's client.
    type Handle;
    /// Why a change of a batch was not made.
    type Refusal: Classed + Send;
    /// What a put answers, and why it was not made.
    type Put: Send;
    type PutError: Classed + Send;
    /// Puts a key.
    const PUT: Puts<Self::Handle, Self::Put, Self::PutError>;

    /// Something that may wait, without the interpreter's lock. It may be done more than once.
    fn ask<R: Send, E: Classed + Send>(
        &self,
        py: Python<'_>,
        work: impl FnMut(&mut Self::Handle) -> Result<R, E> + Send,
    ) -> PyResult<R>;

    /// Makes some of many changes. They may be made again where none of them was. An error that breaks them off says how
    /// many were made.
    fn change_part<E: Classed + Send>(
        &self,
        py: Python<'_>,
        outcomes: &mut Outcomes<Self::Refusal>,
        work: impl FnMut(&mut Self::Handle, &mut Outcomes<Self::Refusal>) -> Result<(), E> + Send,
    ) -> PyResult<()>;

    /// Refuses lengths that cannot be, before anything is put.
    fn check_pairs(&self, py: Python<'_>, pairs: &[Pair<'_>]) -> PyResult<()>;

    /// Puts a key as `mode` says.
    fn put_one(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        (mode, ttl): (PutMode, Option<f64>),
    ) -> PyResult<Self::Put> {
        let (key, value) = (bytes_of(key, "a key")?, bytes_of(value, "a value")?);
        let options = PutOptions::new().mode(mode).ttl(options::ttl(py, ttl)?);
        self.ask(py, |client| (Self::PUT)(client, &key, &value, options))
    }

    /// Makes changes of many, in parts. `change` makes those of a part, and tells what became of each. Returns how many
    /// keys are new, or were there.
    fn change_all<T: Sync, E: Classed + Send>(
        &self,
        py: Python<'_>,
        all: &[T],
        mut change: impl FnMut(&mut Self::Handle, &[T], Note<'_, Self::Refusal>) -> Result<(), E> + Send,
    ) -> PyResult<usize> {
        let mut outcomes = Outcomes::of(all.len());
        for (nth, part) in all.chunks(PART).enumerate() {
            self.change_part(py, &mut outcomes, |client, outcomes| {
                change(client, part, &mut |number, outcome| outcomes.note(nth * PART + number, outcome))
            })?;
            if outcomes.is_over {
                break;
            }
            if all.len() > PART {
                py.check_signals().map_err(|error| outcomes.broken_off(py, error))?;
            }
        }
        outcomes.end(py)
    }

    /// As [`change_all`](Verbs::change_all), with keys and their values.
    fn put_all<E: Classed + Send>(
        &self,
        py: Python<'_>,
        (keys, width): Given<'_, '_>,
        (values, value_width): Given<'_, '_>,
        put: impl FnMut(&mut Self::Handle, &[Pair<'_>], Note<'_, Self::Refusal>) -> Result<(), E> + Send,
    ) -> PyResult<usize> {
        let kept =
            kept_pairs(py, &Items::of(keys, width, "keys")?, &Items::of(values, value_width, "values")?)?;
        let pairs = pairs_of(&kept)?;
        self.check_pairs(py, &pairs)?;
        self.change_all(py, &pairs, put)
    }
}
