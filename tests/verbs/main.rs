//! The verbs fabric, on real devices and on those that fail on demand. The tests of real devices run in the guest
//! (`./test`), one after the other: some spoil packets, or take a link down.

#[path = "../common/churned.rs"]
mod churned;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "encryption")]
#[path = "../common/encrypted.rs"]
mod encrypted;
#[path = "../common/fake_ibverbs.rs"]
mod fake_ibverbs;
#[path = "../common/forged.rs"]
mod forged;

mod device;
mod extents;
mod faked;
mod growth;
mod shared;

use common::patient;
use oneread::Token;
use oneread::internals::server::ServerConfig;
use oneread::internals::verbs::SetupError;
use oneread::{Address, Client, ClientOptions, ConnectError, ServeError, Server};

const TOKEN: &str = "a token for tests";

fn at(place: &str) -> Address {
    format!("verbs://{place}").parse().unwrap()
}

fn options() -> ClientOptions {
    patient().token(Token::new(TOKEN))
}

/// A server, on whatever device there is. `None`: there is none, and that is told.
fn started(config: ServerConfig) -> Option<Server> {
    match Server::start(config) {
        Ok(server) => Some(server),
        Err(ServeError::Verbs(why @ (SetupError::Library { .. } | SetupError::NoDevice { .. })))
            if std::env::var_os("ONEREAD_REQUIRE_VERBS").is_none() =>
        {
            eprintln!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn refused(address: &Address, options: ClientOptions) -> SetupError {
    match Client::connect_with(address, options) {
        Err(ConnectError::Verbs(error)) => error,
        other => panic!("expected no connection: {other:?}"),
    }
}
