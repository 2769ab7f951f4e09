//! The file that holds a server's table: where it is, what it is, and how it goes.

use anyhow::{Context, Result};
use oneread::internals::files::{self, LockFile};
use oneread::internals::inspect::Inspector;
use oneread::internals::region::{Region, RegionError};
use oneread::{Address, error::SuperblockError, layout::Geometry};
use oneread_kit::show;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default region file of a server at this address. Clients need not know it, since the server
/// hands them the region. It serves to inspect a table whose server is gone.
pub fn region_file(address: &Address) -> PathBuf {
    let name = match address {
        Address::Shm(socket) => {
            std::path::absolute(socket).unwrap_or_else(|_| socket.clone()).into_os_string()
        }
        // The port alone: the device and the host's name do not matter.
        Address::Verbs(at) => format!("verbs:{}", at.port()).into(),
        Address::Tcp(at) => format!("tcp:{}", at.port()).into(),
        other => other.to_string().into(),
    };
    let hash = seahash::hash(name.as_encoded_bytes());
    files::regions().join(format!("{hash:016x}.region"))
}

/// What a server that stopped has left, and what to do with it.
pub fn what_stays(path: &Path, bytes: u64, address: &Address) -> String {
    format!(
        "the table stays in {} ({}); serve it again: oneread serve --at {} --region {path}; or free the memory: oneread regions --remove {path}",
        show::path(path),
        show::bytes(bytes),
        show::name(for_shell(&address.to_string())),
        path = show::name(for_shell(&path.to_string_lossy())),
    )
}

/// The geometry of a region file. `None` if its table was never finished. Any other file is an error and is
/// left alone.
pub fn look_into(path: &Path) -> Result<Option<Geometry>> {
    let region = match Region::open_to_read(path) {
        Err(RegionError::Unfinished { .. }) => return Ok(None),
        region => region?,
    };
    let (geometry, _) = Inspector::superblock(&region).with_context(|| path.display().to_string())?;
    Ok(Some(geometry))
}

/// Whether what cannot be read is a region all the same, of another version or damaged: it may be removed.
pub fn is_of_region(error: &anyhow::Error) -> bool {
    use SuperblockError::{Magic, TooShort};
    let error = error.downcast_ref::<SuperblockError>();
    error.is_some_and(|error| !matches!(error, Magic { .. } | TooShort { .. }))
}

/// Removes a region file, unless a server uses it. Returns whether it did.
pub fn remove(path: &Path) -> Result<bool> {
    let Some(_locked) = LockFile::take(path, Duration::ZERO)? else { return Ok(false) };
    std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    Ok(true)
}

/// A word of a command, as a shell takes it.
pub fn for_shell(word: &str) -> std::borrow::Cow<'_, str> {
    // What has a zero byte is no word of a command.
    shlex::try_quote(word).unwrap_or(word.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an address over verbs, the port alone names the region file; on shm, wherever the path is named from.
    #[test]
    fn region_files_are_named_by_addresses() {
        let of = |address: &str| region_file(&address.parse().unwrap());
        assert_eq!(of("verbs://127.0.0.1:7471"), of("verbs://localhost:7471"));
        assert_ne!(of("verbs://127.0.0.1:7471"), of("verbs://127.0.0.1:7472"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(of("shm:sock"), of(&format!("shm:{}", here.join("sock").display())));
        assert_ne!(of("shm:sock"), of("shm:/sock"));
    }
}
