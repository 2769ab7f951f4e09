//! `oneread.block_hashes`: hashes of blocks from their tokens.

use super::Out;
use crate::calls::made;
use crate::error::error_of;
use oneread_prefix::{HashScheme, block_hashes as hashes_of};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult};
use pyo3::types::PyList;

/// The hashes of a prompt's blocks, as others compute them: rolling ones, which are digests, or those of each block alone
/// (`local`). Tokens behind the last whole block have none.
///
/// `scheme`: `"dynamo"`, with the names of adapter and salt; or `"rfc1403"`, Mooncake's, with a `seed`.
#[pyo3::pyfunction]
#[pyo3(signature = (tokens, block_size, salt=None, lora=None, scheme="dynamo", *, seed=None, local=false))]
pub(crate) fn block_hashes<'py>(
    tokens: &Bound<'py, PyAny>,
    block_size: usize,
    salt: Option<&str>,
    lora: Option<&str>,
    scheme: &str,
    seed: Option<u64>,
    local: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tokens.py();
    let invalid = |text: String| Err(error_of(py, "Invalid", text));
    let scheme = match (scheme, seed) {
        ("dynamo", None) => {
            HashScheme::Dynamo { lora: lora.unwrap_or_default(), salt: salt.unwrap_or_default() }
        }
        ("dynamo", Some(_)) => {
            return invalid(
                "the scheme dynamo has a seed of its own; leave seed out, or give rfc1403".into(),
            );
        }
        ("rfc1403", Some(seed)) if salt.is_none() && lora.is_none() => HashScheme::Rfc1403 { seed },
        ("rfc1403", Some(_)) => {
            return invalid(
                "hashes of the scheme rfc1403 have no salt and no lora; give each a seed, or a table, of its own".into(),
            );
        }
        ("rfc1403", None) => {
            return invalid(
                "the scheme rfc1403 needs the seed that all who take part have agreed on; give seed".into(),
            );
        }
        (other, _) => return invalid(format!("scheme is {other:?}; there are: dynamo, rfc1403")),
    };
    let tokens = tokens_of(tokens)?;
    let hashes = match py.detach(|| hashes_of(&tokens, block_size, scheme)) {
        Ok(hashes) if local => hashes.local,
        Ok(hashes) => hashes.rolling,
        Err(error) => return invalid(format!("block_size: {error}")),
    };
    let mut out = Out::of::<u64>(None, hashes.len(), || made(py, "found_hashes", (hashes.len(),)))?;
    out.items::<u64>().copy_from_slice(&hashes);
    Ok(out.object)
}

/// Tokens of a list, or of an array of any width.
fn tokens_of(tokens: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let listed = match tokens.is_instance_of::<PyList>() || !tokens.hasattr("tolist")? {
        true => tokens.clone(),
        false => tokens.call_method0("tolist")?,
    };
    listed
        .try_iter()?
        .enumerate()
        .map(|(nth, token)| {
            let token = token?;
            token.extract::<u32>().inspect_err(|error| {
                let note = format!("token {nth}: tokens are numbers of 32 bits without a sign");
                let _ = error.value(token.py()).call_method1("add_note", (note,));
            })
        })
        .collect()
}
