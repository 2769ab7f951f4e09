//! The indexes for caches of LLM engines, of `oneread-prefix`, over a Python client.

mod digests;
mod events;
mod hashes;
mod location;
mod placement;
mod shelf;

pub(crate) use events::EventStream;
pub(crate) use hashes::block_hashes;
pub(crate) use location::LocationIndex;
pub(crate) use placement::{Holder, PlacementIndex};

use crate::convert::{Held, bytes_of};
use crate::error::error_of;
use bytemuck::Pod;
use digests::keys_of;
use oneread_prefix::{HOLDERS, HOLDERS_MAX, IndexTable, PlacementTable};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::{Bound, PyAny, PyResult, Python};

/// Names of tables.
const LOCATION: &str = "location";
const PLACEMENT: &str = "placement";
const GROUPED: &str = "grouped";

/// The table of an index of this name.
pub(crate) fn table_of(
    py: Python<'_>,
    index: &str,
    holders: Option<usize>,
    owners: bool,
) -> PyResult<IndexTable> {
    let invalid = |text: String| error_of(py, "Invalid", text);
    let most = holders.unwrap_or(HOLDERS);
    let placement = match index {
        LOCATION if holders.is_some() => {
            return Err(invalid("an index of locations has no holders; leave them out".into()));
        }
        LOCATION => return Ok(IndexTable::Location),
        PLACEMENT => PlacementTable::single(most),
        GROUPED => PlacementTable::grouped(most),
        _ => {
            let known = format!("{LOCATION}, {PLACEMENT}, {GROUPED}");
            return Err(invalid(format!("index is {index:?}; there are: {known}")));
        }
    };
    let wrong = |_| invalid(format!("holders is {most}; give 1 to {HOLDERS_MAX}"));
    placement.map(|table| IndexTable::Placement(table.owners(owners))).map_err(wrong)
}

/// What texts are hashed with: 16 bytes, all 0 if nothing is given.
fn secret_of(py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<[u8; 16]> {
    let Some(given) = given else { return Ok([0; 16]) };
    let bytes = bytes_of(given, "secret")?;
    <[u8; 16]>::try_from(&*bytes).map_err(|_| {
        let text = format!("secret is {} bytes long, and has to be 16, at random", bytes.len());
        error_of(py, "Invalid", text)
    })
}

/// Memory that answers land in: what the caller gave, or new memory.
struct Out<'py> {
    object: Bound<'py, PyAny>,
    held: Held,
}

impl<'py> Out<'py> {
    /// The caller's memory for answers, or new memory if it gave none.
    ///
    /// # Errors
    /// `ValueError` for memory that does not have `count` items of this type, or begins in the middle of one.
    fn of<T: Pod>(
        given: Option<Bound<'py, PyAny>>,
        count: usize,
        make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Out<'py>> {
        let object = given.map_or_else(make, Ok)?;
        let held = Held::writable(&object, "out")?;
        let needed = count * size_of::<T>();
        if held.len() != needed {
            let text = format!("out has {} bytes, and {needed} are needed; give as many", held.len());
            return Err(PyValueError::new_err(text));
        }
        if !held.start().cast::<T>().is_aligned() {
            let text =
                format!("out does not begin at a multiple of {} bytes; give another one", align_of::<T>());
            return Err(PyValueError::new_err(text));
        }
        Ok(Out { object, held })
    }

    /// Its items.
    #[allow(unsafe_code)]
    fn items<T: Pod>(&mut self) -> &mut [T] {
        let count = self.held.len() / size_of::<T>();
        let start = self.held.start().cast::<T>();
        if count == 0 || !start.is_aligned() {
            return &mut [];
        }
        // SAFETY: so many items are there, any bytes are one, and they can be written to until the buffer is released.
        // The caller of the package has said that nobody else uses them meanwhile; keys and records were copied.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }
}

/// Items of a buffer, copied.
fn copied<T: Pod>(py: Python<'_>, object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<T>> {
    let held = Held::new(object, what)?;
    let bytes = held.bytes(py);
    if !bytes.len().is_multiple_of(size_of::<T>()) {
        let text = format!("{what} have {} bytes, no multiple of {}", bytes.len(), size_of::<T>());
        return Err(PyValueError::new_err(text));
    }
    Ok(bytemuck::pod_collect_to_vec(bytes))
}
