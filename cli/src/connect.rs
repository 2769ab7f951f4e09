//! The server that a command uses, and how it is reached.

use crate::region_file::region_file;
use crate::users;
use clap::Args;
#[cfg(feature = "verbs")]
use oneread::error::SetupError;
use oneread::internals::tries::{Backoff, RETRY_MAX};
use oneread::{
    Address, Client, ClientOptions, ConnectError, Encryption,
    error::{LinkError, Refusal},
};
use oneread_kit::units::Period;
use oneread_kit::{TlsArgs, TokenArgs, show, units};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The address of the server.
#[derive(Clone, Debug, Args)]
pub struct At {
    /// The server's address, as in shm:/run/user/1000/oneread.sock [default: this user's] or
    /// verbs://HOST:7471 or tcp://HOST:7471
    #[arg(long, value_name = "ADDRESS", env = "ONEREAD_AT", hide_env_values = true)]
    at: Option<Address>,
}

impl At {
    pub fn address(&self) -> Address {
        self.at.clone().unwrap_or_else(Address::default_of_user)
    }
}

/// The server to use, and how long to wait for it.
#[derive(Clone, Debug, Args)]
pub struct Server {
    #[command(flatten)]
    at: At,
    /// Longest wait for the server's answer, as in 500ms, 5s
    #[arg(long, value_name = "TIME", default_value = "5s")]
    deadline: Period,
    /// A user whose server is trusted, beside this user's and root's, by name or number (shm only;
    /// repeatable)
    #[arg(long, value_name = "USER")]
    server_user: Vec<users::UserId>,
    /// Memory for hints: where keys were last seen; 0 for none [default: 16MiB over verbs, none on shm]
    #[arg(long, value_name = "SIZE", value_parser = units::length)]
    hint_memory: Option<usize>,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    token: TokenArgs,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Whether to wait for a server that is not there yet.
#[derive(Clone, Debug, Args)]
pub struct Waiting {
    /// Wait so long for the server to come up, as in 5s; an attempt under way then ends by itself
    /// [default: not at all]
    #[arg(long, value_name = "TIME")]
    wait: Option<Period>,
}

impl Waiting {
    /// Connects, again and again while no server is there. Any other error ends it at once.
    pub fn connect(&self, connect: impl Fn() -> Result<Client, ConnectError>) -> anyhow::Result<Client> {
        let Some(Period(wait)) = self.wait else { return Ok(connect()?) };
        let begun = Instant::now();
        let until = begun + wait;
        let mut backoff = Backoff::new(Duration::from_millis(2), RETRY_MAX);
        loop {
            let error = match connect() {
                Err(error) if is_not_there(&error) => error,
                done => return Ok(done?),
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited = format!("waited {} for a server", show::time(begun.elapsed()));
                return Err(anyhow::Error::from(error).context(waited));
            }
            std::thread::sleep(backoff.take().min(left));
        }
    }
}

/// Whether no server is there: it has not started, or is just ending.
pub fn is_not_there(error: &ConnectError) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, TimedOut};
    // A name that is nobody's does not become somebody's.
    let may_come =
        |e: &io::Error| matches!(e.kind(), NotFound | ConnectionRefused | ConnectionReset | TimedOut);
    match error {
        ConnectError::NotThere { source, .. } => may_come(source),
        ConnectError::Link { source: LinkError::HungUp, .. } => true,
        ConnectError::TurnedAway { source, .. } => matches!(source, Refusal::Stopping),
        #[cfg(feature = "verbs")]
        ConnectError::Verbs(SetupError::NotThere { source, .. }) => may_come(source),
        _ => false,
    }
}

impl Server {
    pub fn connect(&self) -> anyhow::Result<Client> {
        self.connect_with(None)
    }

    /// Connects for a command that carries values.
    pub fn connect_with(&self, encryption: Option<Encryption>) -> anyhow::Result<Client> {
        let options = self.options()?.encryption(encryption);
        self.waiting.connect(|| Client::connect_with(&self.at.address(), options.clone()))
    }

    /// Connects for a command that only reads: if no server answers, it reads the region file, and
    /// says so.
    pub fn connect_or_read(
        &self,
        region: Option<PathBuf>,
        encryption: Option<Encryption>,
    ) -> anyhow::Result<Client> {
        let address = self.at.address();
        let region = region.unwrap_or_else(|| region_file(&address));
        let options = self.options()?.encryption(encryption);
        let open = options.clone().region(region.clone());
        let client = match self.waiting.wait {
            None => Client::connect_with(&address, open)?,
            Some(_) => self
                .waiting
                .connect(|| Client::connect_with(&address, options.clone()))
                .or_else(|waited| Client::connect_with(&address, open).map_err(|_| waited))?,
        };
        if !client.is_served() {
            show::complain(format_args!(
                "oneread: no server answers at {address}; reading {}",
                region.display()
            ));
        }
        Ok(client)
    }

    pub fn options(&self) -> anyhow::Result<ClientOptions> {
        let trusted: Vec<u32> = self.server_user.iter().map(|user| user.0).collect();
        let options = ClientOptions::new().deadline(self.deadline.0).server_uids(trusted);
        let options = options.token(self.token.token()?).tls(self.tls.tls()?);
        Ok(match self.hint_memory {
            Some(bytes) => options.hint_bytes(bytes),
            None => options,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use oneread::Token;
    use std::os::unix::fs::PermissionsExt;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        server: Server,
    }

    /// Each option of a client reaches it, in its unit.
    #[test]
    fn options_reach_the_client() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, " a token\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let path = path.display().to_string();
        let options = |given: &[&str]| {
            let all = ["oneread", "--at", "shm:/tmp/sock"].iter().chain(given);
            Arguments::parse_from(all).server.options()
        };
        let usual = options(&[]).unwrap();
        let own = ClientOptions::new();
        assert_eq!((usual.deadline, &usual.server_uids), (own.deadline, &own.server_uids));
        assert_eq!((usual.hint_bytes, usual.limits), (own.hint_bytes, own.limits));
        let given = ["--deadline", "250ms", "--server-user", "5", "--server-user", "root"];
        let given = options(&[&given[..], &["--hint-memory", "0", "--token-file", &path]].concat()).unwrap();
        assert_eq!((given.deadline, given.server_uids), (Duration::from_millis(250), vec![5, 0]));
        assert_eq!((given.hint_bytes, given.token), (Some(0), Token::new("a token")));
        std::fs::write(&path, " \n").unwrap();
        let error = options(&["--token-file", &path]).unwrap_err().to_string();
        assert!(error.contains("is empty; put a token into it"), "{error}");
        let error = options(&["--token-file", "/nowhere/token"]).unwrap_err().to_string();
        assert!(error.contains("reading the token in /nowhere/token"), "{error}");
    }
}
