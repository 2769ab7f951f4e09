//! TLS for clients over TCP: whom they trust, and what they show.

use anyhow::{Result, ensure};
use clap::Args;
use oneread::ClientTls;
use std::path::PathBuf;

/// How to speak TLS with a server over TCP.
#[derive(Clone, Debug, Args)]
pub struct TlsArgs {
    /// Speak TLS with a server over TCP, and trust it if its certificate comes from one of those in this
    /// file (PEM)
    #[arg(long, value_name = "FILE", env = "ONEREAD_TLS_CA", hide_env_values = true)]
    tls_ca: Option<PathBuf>,
    /// The name in the server's certificate, if it is not its host's
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
    /// The certificate that this client shows (PEM), for servers with --tls-client-ca
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// How to speak it. `None` without an authority.
    ///
    /// # Errors
    /// A file cannot be read, or does not hold what it should.
    pub fn tls(&self) -> Result<Option<ClientTls>> {
        let own = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let Some(authorities) = &self.tls_ca else {
            ensure!(own.is_none(), "--tls-cert is for TLS; name whom to trust, too: --tls-ca FILE");
            return Ok(None);
        };
        let tls = ClientTls::new(authorities, own)?;
        Ok(Some(match &self.tls_name {
            Some(name) => tls.server_name(name)?,
            None => tls,
        }))
    }
}
