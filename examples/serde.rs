//! Values in a format of serde, JSON here: `cargo run --example serde`.
//!
//! Any format does that writes bytes. A shorter one keeps more values in their slots.

use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::error::Error;

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct User {
    name: String,
    groups: Vec<String>,
    /// Absent in values of an older program.
    #[serde(default)]
    disabled: bool,
}

/// A client whose values are JSON. Its buffer is used again.
struct JsonClient {
    client: Client,
    bytes: Vec<u8>,
}

impl JsonClient {
    fn put<T: Serialize>(&mut self, key: &str, value: &T) -> Result<(), Box<dyn Error>> {
        self.bytes.clear();
        serde_json::to_writer(&mut self.bytes, value)?;
        self.client.put(key.as_bytes(), &self.bytes)?;
        Ok(())
    }

    fn get<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>, Box<dyn Error>> {
        if !self.client.get_into(key.as_bytes(), &mut self.bytes)? {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&self.bytes)?))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let address = Address::Shm(dir.path().join("socket"));
    // Values of up to 4 KiB. Those that do not fit a slot are one READ more.
    let table = Config::new().size(TableSize::up_to(64 << 20)).value_max(4096);
    let _server = Server::start(ServerConfig::new(address.clone(), table))?;
    let mut users = JsonClient { client: Client::connect(&address)?, bytes: Vec::new() };

    let ada = User { name: "Ada".into(), groups: vec!["admin".into()], disabled: false };
    let many = User { name: "Bob".into(), groups: vec!["a group".into(); 100], disabled: true };
    users.put("user:1", &ada)?;
    users.put("user:2", &many)?;
    assert_eq!(users.get("user:1")?, Some(ada));
    assert_eq!(users.get("user:2")?, Some(many));
    assert_eq!(users.get::<User>("user:3")?, None);

    users.client.put(b"user:4", br#"{"name":"Cy","groups":[]}"#)?; // by an older program
    let cy: User = users.get("user:4")?.ok_or("user:4 is there")?;
    assert!(!cy.disabled);
    users.client.put(b"user:5", b"no JSON")?;
    let error = users.get::<User>("user:5").expect_err("no JSON");
    println!("user:5 is no user: {error}");
    println!("{cy:?}");
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
