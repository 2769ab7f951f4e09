//! What is wrong with certificates and keys.

use std::error::Error;
use std::path::PathBuf;

/// Why TLS could not be set up from these files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file could not be read, or what is in it is no PEM.
    #[error("reading the {what} in {}", path.display())]
    File {
        /// What it should have: a certificate, a key, an authority's certificate.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file has none.
    #[error("{} holds no {what}; name a file in PEM's format that does", path.display())]
    Empty {
        /// What it should have.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The key is not the certificate's, or either is of a kind that cannot be used.
    #[error("the certificate in {} does not go with its key, or cannot be used", path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Certificates are for names of hosts and addresses, and this is neither.
    #[error("{name:?} is neither a host's name nor an address, so that no certificate can be for it")]
    Name {
        /// What was given.
        name: String,
    },
}
