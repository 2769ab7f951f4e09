//! The secret key that values are encrypted with, in a file.

use anyhow::{Context, Result, bail};
use clap::Args;
use oneread::{Encryption, error::FileError, internals::files};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;

/// How values are encrypted, if they are.
#[derive(Clone, Debug, Args)]
pub struct SecretArgs {
    /// Values are encrypted with the secret key in this file: 32 bytes, or 64 hex digits. In the
    /// table they are 41 bytes longer
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The namespace of encrypted values. They are read in the one that they were put in
    /// [default: the empty one]
    #[arg(long, value_name = "TEXT", requires = "key_file")]
    namespace: Option<String>,
}

impl SecretArgs {
    pub fn encryption(&self) -> Result<Option<Encryption>> {
        let Some(path) = &self.key_file else { return Ok(None) };
        let secret = key_in(path)?;
        Ok(Some(Encryption::new(&secret, self.namespace.as_deref().unwrap_or_default())))
    }
}

/// The secret key in a file. No message shows any of it.
fn key_in(path: &Path) -> Result<Zeroizing<[u8; KEY_BYTES]>> {
    let name = path.display();
    let made = || format!("make one: (umask 077; openssl rand -hex 32 > {name})");
    let mut file = match files::open_secret(path) {
        Err(FileError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            bail!("there is no secret key in {name}; {}", made())
        }
        opened => opened?,
    };
    // Read into one place, which is overwritten when it is dropped. Longer files are no keys.
    let mut bytes = Zeroizing::new([0; 4 * KEY_BYTES]);
    let mut length = 0;
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(|| format!("reading the secret key in {name}")),
        }
    }
    let bytes = &bytes[..length];
    let is_text = bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    match from_hex(bytes.trim_ascii()) {
        Some(key) => Ok(key),
        None if length == KEY_BYTES && !is_text => {
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            key.copy_from_slice(bytes);
            Ok(key)
        }
        None => {
            let held = match (length, is_text) {
                (0, _) => "nothing".into(),
                (_, true) if length < 4 * KEY_BYTES => format!("text of {length} characters"),
                (_, false) if length < 4 * KEY_BYTES => format!("{length} bytes"),
                _ => format!("{} bytes or more", 4 * KEY_BYTES),
            };
            bail!("{name} holds {held}; a secret key is 32 random bytes, or 64 hex digits; {}", made())
        }
    }
}

fn from_hex(digits: &[u8]) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != KEY_BYTES || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    for (byte, &[high, low]) in key.iter_mut().zip(pairs) {
        *byte = (digit(high)? << 4 | digit(low)?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A key as bytes or hex digits, with white space around the digits. All else is refused, and no
    /// message shows what the file holds.
    #[test]
    fn keys_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            key_in(&path).map_err(|error| error.to_string())
        };
        let key: [u8; 32] = std::array::from_fn(|n| 0xe0 ^ n as u8);
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        for content in [
            &key[..],
            hex.as_bytes(),
            hex.to_uppercase().as_bytes(),
            format!("{hex}\n").as_bytes(),
            format!("\t {hex}\r\n\n").as_bytes(),
        ] {
            assert_eq!(read(content).unwrap()[..], key, "{content:?}");
        }
        for (content, held) in [
            (&b""[..], "nothing"),
            (&hex.as_bytes()[..63], "text of 63 characters"),
            (&hex.as_bytes()[..32], "text of 32 characters"),
            (format!("{hex}0").as_bytes(), "text of 65 characters"),
            (format!("{}g", &hex[..63]).as_bytes(), "text of 64 characters"),
            (b"correct horse battery staple 123", "text of 32 characters"),
            (&key[..31], "31 bytes"),
            (&[&key[..], &[0]].concat(), "33 bytes"),
            (&[0xff; 128], "128 bytes or more"),
            (&[0xff; 5000], "128 bytes or more"),
            (&[b' '; 5000], "128 bytes or more"),
        ] {
            let error = read(content).unwrap_err();
            assert!(error.contains(&format!("holds {held}; ")), "{error}");
            assert!(error.contains("openssl rand -hex 32") && !error.contains("horse"), "{error}");
            assert!(!error.contains(&hex[..8]), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(key_in(&path).unwrap_err().to_string().contains("there is no secret key in "));
    }
}
