//! The codec `"plain"`: Python's plain values as bytes, and back. What is read makes values of these types, and runs nothing.
//!
//! A value is a letter and what it needs; lengths are four bytes, the lowest first:
//!
//! ```text
//! N, Y, Z       None, True, False
//! i, I          an int: 8 bytes; a longer one by its bytes
//! f             a float: 8 bytes
//! s, b          text as UTF-8, bytes: a length before
//! l, t, e, z    list, tuple, set, frozenset: how many, and each
//! m             dict: how many, and each key with its value
//! o             another type: its letter (`_codecs.MADE`), a length, bytes
//! S, B          text, bytes that are all of the value: no length
//! ```
//!
//! An int of 64 bits that is all of the value is decimal text: `Client::incr` adds to it.

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyErr, PyResult, Python};
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyBytesMethods, PyDict, PyDictMethods, PyFloat, PyFloatMethods, PyFrozenSet, PyInt,
    PyList, PySet, PyString, PyStringMethods, PyTuple,
};
use pyo3::{IntoPyObject, intern};

/// The longest chain of values within values.
const DEPTH_MAX: usize = 500;

/// The bytes of a value. `other` makes a letter and bytes of a value of another type.
#[pyo3::pyfunction]
#[pyo3(signature = (value, other, /))]
pub(crate) fn plain_dumps<'py>(
    value: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = value.py();
    let mut out = Vec::new();
    if let Ok(text) = value.cast_exact::<PyString>() {
        out.push(b'S');
        out.extend_from_slice(text.to_str()?.as_bytes());
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        out.push(b'B');
        out.extend_from_slice(bytes.as_bytes());
    } else if let (Ok(_), Ok(number)) = (value.cast_exact::<PyInt>(), value.extract::<i64>()) {
        out.extend_from_slice(number.to_string().as_bytes());
    } else {
        write(value, other, DEPTH_MAX, &mut out)?;
    }
    Ok(PyBytes::new(py, &out))
}

/// The value that has these bytes. `made` makes one of a letter and bytes of another type.
#[pyo3::pyfunction]
#[pyo3(signature = (raw, made, /))]
pub(crate) fn plain_loads<'py>(
    raw: &Bound<'py, PyBytes>,
    made: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    loads(raw.py(), raw.as_bytes(), made)
}

fn loads<'py>(py: Python<'py>, raw: &[u8], made: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match raw {
        [b'S', text @ ..] => Ok(PyString::new(py, str::from_utf8(text).map_err(damaged)?).into_any()),
        [b'B', bytes @ ..] => Ok(PyBytes::new(py, bytes).into_any()),
        text @ [b'-' | b'0'..=b'9', ..] => {
            let number = str::from_utf8(text).map_err(damaged)?.parse::<i64>().map_err(damaged)?;
            Ok(number.into_pyobject(py)?.into_any())
        }
        bytes => {
            let mut rest = bytes;
            let value = read(py, &mut rest, made, DEPTH_MAX)?;
            if rest.is_empty() { Ok(value) } else { Err(damaged("bytes follow it")) }
        }
    }
}

/// The value that a codec has written as these bytes. `None`: they are something else, or have something before them.
///
/// # Errors
/// The program is interrupted.
pub(crate) fn usual<'py>(
    raw: &Bound<'py, PyBytes>,
    codec: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, bytes) = (raw.py(), raw.as_bytes());
    let value = match (codec.to_str()?, bytes) {
        (_, [] | [BEFORE, ..]) => return Ok(None),
        ("plain", _) | ("pickle", [b'-' | b'0'..=b'9', ..]) => {
            loads(py, bytes, MADE.import(py, "oneread._codecs", "_made")?)
        }
        ("pickle", [PICKLE, ..]) => LOADS.import(py, "pickle", "loads")?.call1((raw,)),
        _ => return Ok(None),
    };
    match value {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        Err(interrupted) => Err(interrupted),
    }
}

/// The first byte of what stands before a value, as a tag does (`_entries.py`).
const BEFORE: u8 = b'E';
/// The first byte of a pickle.
const PICKLE: u8 = 0x80;
static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static MADE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn damaged(why: impl ToString) -> PyErr {
    PyValueError::new_err(format!("no value of the codec 'plain': {}", why.to_string()))
}

fn too_deep() -> PyErr {
    PyValueError::new_err(format!("values are within values more than {DEPTH_MAX} times; store parts of it"))
}

/// A length, or how many there are.
fn push_len(len: usize, out: &mut Vec<u8>) -> PyResult<()> {
    let len = u32::try_from(len).map_err(|_| PyValueError::new_err("it has 4 GiB or more"))?;
    out.extend_from_slice(&len.to_le_bytes());
    Ok(())
}

fn push_sized(letter: u8, bytes: &[u8], out: &mut Vec<u8>) -> PyResult<()> {
    out.push(letter);
    push_len(bytes.len(), out)?;
    out.extend_from_slice(bytes);
    Ok(())
}

fn write<'py>(
    value: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    depth: usize,
    out: &mut Vec<u8>,
) -> PyResult<()> {
    let py = value.py();
    if value.is_none() {
        out.push(b'N');
    } else if let Ok(truth) = value.cast_exact::<PyBool>() {
        out.push(if truth.is_truthy()? { b'Y' } else { b'Z' });
    } else if let Ok(text) = value.cast_exact::<PyString>() {
        push_sized(b's', text.to_str()?.as_bytes(), out)?;
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        push_sized(b'b', bytes.as_bytes(), out)?;
    } else if value.cast_exact::<PyInt>().is_ok() {
        match value.extract::<i64>() {
            Ok(number) => {
                out.push(b'i');
                out.extend_from_slice(&number.to_le_bytes());
            }
            Err(_) => {
                let bits: usize = value.call_method0(intern!(py, "bit_length"))?.extract()?;
                let signed = PyDict::new(py);
                signed.set_item("signed", true)?;
                let bytes =
                    value.call_method(intern!(py, "to_bytes"), (bits / 8 + 1, "little"), Some(&signed))?;
                push_sized(b'I', bytes.cast::<PyBytes>()?.as_bytes(), out)?;
            }
        }
    } else if let Ok(number) = value.cast_exact::<PyFloat>() {
        out.push(b'f');
        out.extend_from_slice(&number.value().to_le_bytes());
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        // A copy: another thread may change it.
        write_all(b'm', 2, dict.items().into_any(), other, depth, out)?;
    } else if value.cast_exact::<PyList>().is_ok() {
        write_all(b'l', 1, value.clone(), other, depth, out)?;
    } else if value.cast_exact::<PyTuple>().is_ok() {
        write_all(b't', 1, value.clone(), other, depth, out)?;
    } else if value.cast_exact::<PySet>().is_ok() {
        write_all(b'e', 1, value.clone(), other, depth, out)?;
    } else if value.cast_exact::<PyFrozenSet>().is_ok() {
        write_all(b'z', 1, value.clone(), other, depth, out)?;
    } else {
        let made = other.call1((value,))?;
        let (letter, bytes) = made.extract::<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>()?;
        out.push(b'o');
        push_sized(letter.as_bytes()[0], bytes.as_bytes(), out)?;
    }
    Ok(())
}

/// All that `of` iterates over: each is one value, or a pair.
fn write_all<'py>(
    letter: u8,
    values: usize,
    of: Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    depth: usize,
    out: &mut Vec<u8>,
) -> PyResult<()> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    out.push(letter);
    let counted_at = out.len();
    push_len(0, out)?;
    let mut count = 0_u32;
    for item in of.try_iter()? {
        let item = item?;
        match values {
            1 => write(&item, other, depth, out)?,
            _ => {
                write(&item.get_item(0)?, other, depth, out)?;
                write(&item.get_item(1)?, other, depth, out)?;
            }
        }
        count = count.checked_add(1).ok_or_else(|| PyValueError::new_err("it has 2^32 items or more"))?;
    }
    out[counted_at..counted_at + 4].copy_from_slice(&count.to_le_bytes());
    Ok(())
}

/// Takes the next bytes.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> PyResult<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(len).ok_or_else(|| damaged("it is cut off"))?;
    *rest = behind;
    Ok(taken)
}

fn take_8(rest: &mut &[u8]) -> PyResult<[u8; 8]> {
    let (taken, behind) = rest.split_first_chunk().ok_or_else(|| damaged("it is cut off"))?;
    *rest = behind;
    Ok(*taken)
}

fn take_len(rest: &mut &[u8]) -> PyResult<usize> {
    let (taken, behind) = rest.split_first_chunk().ok_or_else(|| damaged("it is cut off"))?;
    *rest = behind;
    Ok(u32::from_le_bytes(*taken) as usize)
}

fn take_sized<'a>(rest: &mut &'a [u8]) -> PyResult<&'a [u8]> {
    let len = take_len(rest)?;
    take(rest, len)
}

fn read<'py>(
    py: Python<'py>,
    rest: &mut &[u8],
    made: &Bound<'py, PyAny>,
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let letter = take(rest, 1)?[0];
    Ok(match letter {
        b'N' => py.None().into_bound(py),
        b'Y' => PyBool::new(py, true).to_owned().into_any(),
        b'Z' => PyBool::new(py, false).to_owned().into_any(),
        b'i' => i64::from_le_bytes(take_8(rest)?).into_pyobject(py)?.into_any(),
        b'I' => {
            let bytes = PyBytes::new(py, take_sized(rest)?);
            let signed = PyDict::new(py);
            signed.set_item("signed", true)?;
            py.get_type::<PyInt>().call_method(intern!(py, "from_bytes"), (bytes, "little"), Some(&signed))?
        }
        b'f' => PyFloat::new(py, f64::from_le_bytes(take_8(rest)?)).into_any(),
        b's' => PyString::new(py, str::from_utf8(take_sized(rest)?).map_err(damaged)?).into_any(),
        b'b' => PyBytes::new(py, take_sized(rest)?).into_any(),
        b'o' => {
            let letter = PyBytes::new(py, take(rest, 1)?);
            made.call1((letter, PyBytes::new(py, take_sized(rest)?)))?
        }
        b'm' => {
            let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
            let dict = PyDict::new(py);
            for _ in 0..take_len(rest)? {
                let key = read(py, rest, made, depth)?;
                dict.set_item(key, read(py, rest, made, depth)?)?;
            }
            dict.into_any()
        }
        b'l' | b't' | b'e' | b'z' => {
            let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
            let count = take_len(rest)?;
            // Each has a byte at least.
            let mut all = Vec::with_capacity(count.min(rest.len()));
            for _ in 0..count {
                all.push(read(py, rest, made, depth)?);
            }
            match letter {
                b'l' => PyList::new(py, all)?.into_any(),
                b't' => PyTuple::new(py, all)?.into_any(),
                b'e' => PySet::new(py, all)?.into_any(),
                _ => PyFrozenSet::new(py, all)?.into_any(),
            }
        }
        _ => return Err(damaged(format!("it begins with byte {letter:#04x}"))),
    })
}
