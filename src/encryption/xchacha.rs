//! The cipher.

use super::stored::{DecryptError, EncryptError, HEAD_BYTES, NONCE_BYTES, OVERHEAD, TAG_BYTES, VERSION};
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The associated data begins with it, so that nothing else that is encrypted with the same key is taken
/// for a value.
const LABEL: &[u8] = b"oneread value";

/// Encrypts values, and decrypts them: a secret key and a namespace. Set it as
/// [`ClientOptions::encryption`](crate::ClientOptions::encryption). Needs the feature `encryption`.
///
/// A value decrypts only with the key, in the namespace and under the table's key that it was put
/// with. Choose a namespace for each use of a secret key (an application, a table): the values of
/// one do not pass for those of another. The namespace is no secret. It does not depend on the
/// server: a table that was dumped and loaded elsewhere can be read.
///
/// An older value of the same key is *not* detected: a server can put it back. Keys of the table,
/// lengths of values, and when they are read and changed, are not hidden.
///
/// Encrypting and decrypting take a microsecond or so for values of a slot's size, and no memory but
/// the result. Encrypting asks the system for 24 random bytes.
///
/// Cloning is cheap: clones share the secret key. It is overwritten when the last of them is dropped,
/// and never printed. `Send` and `Sync`.
///
/// ```
/// # use oneread::{Address, Client, ClientOptions, Config, Encryption, Server, ServerConfig, TableSize};
/// # let dir = tempfile::tempdir()?;
/// # let address = Address::Shm(dir.path().join("s"));
/// # let secret = [7; 32];
/// // The table's values hold the encrypted ones.
/// let value_max = 100 + Encryption::OVERHEAD;
/// let config = Config::new().size(TableSize::Keys(100)).value_max(value_max);
/// let server = Server::start(ServerConfig::new(address.clone(), config))?;
/// let encryption = Encryption::new(&secret, "prices");
/// let options = ClientOptions::new().encryption(encryption);
/// let mut client = Client::connect_with(&address, options)?;
/// client.put(b"key", b"value")?;
/// assert_eq!(client.get(b"key")?.as_deref(), Some(&b"value"[..]));
/// let stored = Client::connect(&address)?.get(b"key")?.unwrap();
/// assert_eq!(stored.len(), 5 + Encryption::OVERHEAD); // ciphertext
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Encryption(Arc<EncryptionSecret>);

struct EncryptionSecret {
    key: Zeroizing<[u8; 32]>,
    /// Label, version, the namespace's length, namespace: what the associated data begins with.
    context: Box<[u8]>,
}

impl Encryption {
    /// How many bytes longer a value is encrypted: version, nonce and tag. A table whose `value_max`
    /// is `n` takes values of up to `n - OVERHEAD` bytes.
    pub const OVERHEAD: usize = OVERHEAD;

    /// Encryption with this secret key, in this namespace. The key has to be random
    /// (`openssl rand 32`), not a password. The namespace may be anything, also empty.
    pub fn new(key: &[u8; 32], namespace: impl AsRef<[u8]>) -> Encryption {
        let namespace = namespace.as_ref();
        let length = (namespace.len() as u64).to_le_bytes();
        let context = [LABEL, &[VERSION], &length, namespace].concat().into();
        let mut secret = Arc::new(EncryptionSecret { key: Zeroizing::new([0; 32]), context });
        // In its last place, so that no copy is left behind on the stack.
        Arc::get_mut(&mut secret).expect("not shared yet").key.copy_from_slice(key);
        Encryption(secret)
    }

    /// The namespace.
    pub fn namespace(&self) -> &[u8] {
        &self.0.context[LABEL.len() + 1 + size_of::<u64>()..]
    }

    /// The value as a client stores it under this key of the table: [`Encryption::OVERHEAD`] bytes
    /// longer. Each call gives other bytes.
    ///
    /// # Errors
    /// [`EncryptError`].
    pub fn encrypt(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, EncryptError> {
        let mut stored = Vec::with_capacity(value.len() + Encryption::OVERHEAD);
        self.encrypt_onto(key, value, &mut stored)?;
        Ok(stored)
    }

    /// The value that a client stored under this key of the table.
    ///
    /// # Errors
    /// [`DecryptError`].
    pub fn decrypt(&self, key: &[u8], stored: &[u8]) -> Result<Vec<u8>, DecryptError> {
        let mut value = stored.to_vec();
        self.decrypt_in_place(key, &mut value)?;
        Ok(value)
    }

    /// Appends the encrypted value to `out`, which is unchanged after an error.
    pub(crate) fn encrypt_onto(
        &self,
        key: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EncryptError> {
        let mut nonce = [0; NONCE_BYTES];
        let mut filled = 0;
        while filled < NONCE_BYTES {
            let flags = rustix::rand::GetRandomFlags::empty();
            match rustix::rand::getrandom(&mut nonce[filled..], flags) {
                Ok(more) => filled += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(EncryptError::Nonce { source: e.into() }),
            }
        }
        self.encrypt_with(nonce, key, value, out)
    }

    /// Like `encrypt_onto`, with a nonce that is not random. For tests and fuzzing only: two values with the same
    /// nonce give each other away.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)]
    pub fn encrypt_with_nonce(&self, nonce: [u8; NONCE_BYTES], key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut stored = Vec::new();
        self.encrypt_with(nonce, key, value, &mut stored).expect("a short value");
        stored
    }

    fn encrypt_with(
        &self,
        nonce: [u8; NONCE_BYTES],
        key: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EncryptError> {
        let start = out.len();
        out.push(VERSION);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(value);
        let text = &mut out[start + HEAD_BYTES..];
        match seal(&self.0.key, &nonce, &self.associated(key), text) {
            Some(tag) => out.extend_from_slice(&tag),
            None => {
                out.truncate(start);
                return Err(EncryptError::Length { given: value.len() });
            }
        }
        Ok(())
    }

    /// Replaces a stored value by the value itself. After an error, `value` is empty.
    pub(crate) fn decrypt_in_place(&self, key: &[u8], value: &mut Vec<u8>) -> Result<(), DecryptError> {
        let opened = self.open(key, value);
        match opened {
            Ok(()) => {
                value.truncate(value.len() - TAG_BYTES);
                value.drain(..HEAD_BYTES);
            }
            Err(_) => value.clear(),
        }
        opened
    }

    /// Decrypts where the ciphertext stands.
    fn open(&self, key: &[u8], stored: &mut [u8]) -> Result<(), DecryptError> {
        let given = stored.len();
        match stored.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(DecryptError::Version { version }),
            None => return Err(DecryptError::Length { given }),
        }
        let Some((head, rest)) = stored.split_first_chunk_mut::<HEAD_BYTES>() else {
            return Err(DecryptError::Length { given });
        };
        let Some((text, tag)) = rest.split_last_chunk_mut::<TAG_BYTES>() else {
            return Err(DecryptError::Length { given });
        };
        let nonce = head.last_chunk().expect("a version and a nonce");
        match unseal(&self.0.key, nonce, &self.associated(key), text, tag) {
            true => Ok(()),
            false => Err(DecryptError::Altered),
        }
    }

    /// What a value is bound to: that it is one, its version, the namespace, and the table's key. The
    /// only part without a length is the last one, so no two of these have the same bytes.
    fn associated(&self, key: &[u8]) -> SmallVec<[u8; 320]> {
        let mut bound = SmallVec::from_slice(&self.0.context);
        bound.extend_from_slice(key);
        bound
    }
}

impl PartialEq for Encryption {
    /// Takes the same time whatever the secret keys are.
    fn eq(&self, other: &Encryption) -> bool {
        let pairs = self.0.key.iter().zip(other.0.key.iter());
        let differing = pairs.fold(0, |bits, (a, b)| std::hint::black_box(bits | (a ^ b)));
        differing == 0 && self.0.context == other.0.context
    }
}

impl Eq for Encryption {}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encryption(namespace {:?}, key ...)", self.namespace().escape_ascii().to_string())
    }
}

/// Encrypts in place, and returns the tag. `None` where the text is too long for the cipher.
fn seal(
    key: &[u8; 32],
    nonce: &[u8; NONCE_BYTES],
    associated: &[u8],
    text: &mut [u8],
) -> Option<[u8; TAG_BYTES]> {
    let cipher = XChaCha20Poly1305::new(key.into());
    cipher.encrypt_inout_detached(nonce.into(), associated, text.into()).ok().map(Into::into)
}

/// Decrypts in place if the tag is right, and returns whether it is. Else `text` is unchanged.
fn unseal(
    key: &[u8; 32],
    nonce: &[u8; NONCE_BYTES],
    associated: &[u8],
    text: &mut [u8],
    tag: &[u8; TAG_BYTES],
) -> bool {
    let cipher = XChaCha20Poly1305::new(key.into());
    cipher.decrypt_inout_detached(nonce.into(), associated, text.into(), tag.into()).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests;
