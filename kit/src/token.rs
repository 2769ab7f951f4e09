//! The token for verbs and TCP, from a file or the environment.

use anyhow::{Context, Result, ensure};
use clap::Args;
use oneread::Token;
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

/// The token in a file. White space around it is ignored.
///
/// # Errors
/// The file cannot be read, or is empty.
pub fn token_in(path: &Path) -> Result<Token> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("reading the token in {name}"))?;
    let token = bytes.trim_ascii();
    ensure!(!token.is_empty(), "{name} is empty; put a token into it: openssl rand -hex 32 > {name}");
    Ok(Token::new(token))
}
