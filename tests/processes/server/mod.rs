//! Server and clients over real sockets, in real processes. No client disturbs another. A client
//! survives a server that is stopped, ends, or dies.

mod clients;
mod fake;
mod misbehaving;
mod parts;
mod raw;
mod scripted;
mod stopped;

use crate::common::*;
use oneread::internals::families::presets;
use oneread::internals::placement::Preset;
use oneread::internals::region::Backing;
use oneread::{Client, ClientOptions, Config, Server, ServerConfig, StartMode};
use std::path::PathBuf;
use std::time::Duration;

const SLOTS: u64 = 2048;

fn table(preset: &Preset) -> Config {
    config(preset, SLOTS, 16, 32, 11)
}

impl Place {
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    /// Starts a server in this process.
    pub fn serve(&self, preset: &Preset) -> Server {
        start(ServerConfig::new(self.address.clone(), table(preset)))
    }

    /// Starts a server in a process of its own: on the region file, or in anonymous memory.
    pub fn serve_apart(&self, preset: &Preset, file: bool) -> Process {
        let file = if file { self.file().display().to_string() } else { String::new() };
        self.serve_in_a_process(preset, ("ONEREAD_TEST_FILE", file))
    }

    /// Starts a server in a process of its own, in anonymous memory, for this many connections.
    pub fn serve_apart_for(&self, preset: &Preset, clients_max: usize) -> Process {
        self.serve_in_a_process(preset, ("ONEREAD_TEST_CLIENTS", clients_max.to_string()))
    }

    pub fn serve_in_a_process(&self, preset: &Preset, more: (&str, String)) -> Process {
        let (address, layout) = (self.address.to_string(), preset.layout.to_string());
        let env = [("ONEREAD_TEST_ADDRESS", address), ("ONEREAD_TEST_PRESET", layout), more];
        let process = Process::start("server::server_child", &env);
        wait_for("the server to come up", || self.has_a_server().then_some(()));
        process
    }

    pub fn client(&self) -> Client {
        Client::connect_with(&self.address, patient()).unwrap()
    }

    /// A client whose GETs go on for so long without a server.
    pub fn client_with(&self, lease: Duration) -> Client {
        Client::connect_with(&self.address, patient().lease(lease)).unwrap()
    }

    /// A client that gives up so soon. It has made a change.
    pub fn hasty(&self, options: ClientOptions, deadline: Duration) -> Client {
        let options = options.deadline(deadline);
        let connect = || Client::connect_with(&self.address, options.clone()).ok();
        let mut client = wait_for("a connection", connect);
        wait_for("a change", || client.put(b"before", b"1").ok());
        client
    }
}

/// Runs a test on the default preset of each family: for tests of the server, not of the layout.
fn on_every_family(mut story: impl FnMut(&'static Preset)) {
    let mut seen = Vec::new();
    on_every_preset(|preset| {
        if !seen.contains(&preset.layout.family) {
            seen.push(preset.layout.family);
            story(preset);
        }
    });
}

// ---- processes that tests start ---------------------------------------------------------------------

/// Serves as its parent says, until the parent is gone or closes its input. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn server_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let layout = told("ONEREAD_TEST_PRESET").unwrap();
    let preset = presets().find(|preset| preset.layout.to_string() == layout).unwrap();
    let mut config = ServerConfig::new(address.parse().unwrap(), table(preset));
    if let Some(file) = told("ONEREAD_TEST_FILE").filter(|file| !file.is_empty()) {
        config.backing = Backing::File(file.into());
        config.start = StartMode::OpenOrCreate;
    }
    if let Some(most) = told("ONEREAD_TEST_CLIENTS") {
        config.clients_max = most.parse().unwrap();
    }
    serve_until_told(config);
}

/// Puts, updates and removes its own keys in a loop, alone and in batches, until it is killed.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn putting_child() {
    let Some(address) = told("ONEREAD_TEST_ADDRESS") else { return };
    let mut client = Client::connect_with(&address.parse().unwrap(), patient()).unwrap();
    put_for_ever(&mut client, |client, key| drop(client.remove(key)));
}
