//! The token for verbs and TCP, from a file or the environment.

use anyhow::{Context, Result, ensure};
use clap::Args;
use oneread::Token;
use oneread::internals::files;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The secret that server and clients share over verbs and TCP.
#[derive(Clone, Debug, Args)]
pub struct TokenArgs {
    /// The file that holds the token, for verbs and TCP [default: the variable ONEREAD_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// The token, or the empty one if none was given. White space around it in the file is ignored.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub fn token(&self) -> Result<Token> {
        let Some(path) = &self.token_file else {
            return Ok(std::env::var_os("ONEREAD_TOKEN")
                .map_or_else(Token::default, |token| Token::new(token.as_encoded_bytes())));
        };
        token_in(path)
    }
}

/// Makes a file with a secret, which nobody else may read.
///
/// # Errors
/// The system's, also where there is a file of that name.
pub fn write_secret(path: &Path, secret: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(secret)
}

/// The token in a file. White space around it is ignored.
///
/// # Errors
/// The file cannot be read, others may read it, or it is empty.
pub fn token_in(path: &Path) -> Result<Token> {
    let name = path.display();
    let bytes = files::read_secret(path).with_context(|| format!("reading the token in {name}"))?;
    let token = bytes.trim_ascii();
    ensure!(
        !token.is_empty(),
        "{name} is empty; put a token into it: (umask 077; openssl rand -hex 32 > {name})"
    );
    Ok(Token::new(token))
}
