//! A plain client: `cargo run --example client -- shm:/tmp/example.sock`, with a server there
//! (`examples/server.rs`, or the command `oneread serve`).
//!
//! It puts, gets and removes some keys, and shows what each error means for the caller.

use oneread::{Address, Client, ConnectError, GetError, MutateError, PutOutcome, error::PutError};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: client ADDRESS")?.parse()?;
    run(&address)
}

fn run(address: &Address) -> Result<(), Box<dyn Error>> {
    let mut client = match Client::connect(address) {
        Err(ConnectError::NotThere { .. }) => return Err(format!("start a server at {address}").into()),
        connected => connected?,
    };

    // Changes are requests to the server.
    client.put(b"apple", b"red")?;
    assert_eq!(client.insert(b"apple", b"green")?, PutOutcome::Exists);
    // A batch takes fewer round trips, and each key has an outcome of its own.
    for (name, outcome) in ["pear", "plum"].iter().zip(client.put_many(&[("pear", "2"), ("plum", "3")])?) {
        match outcome {
            Ok(_) => {}
            Err(PutError::Full { keys, slots, .. }) => {
                println!("no room for {name}: {keys} keys in {slots} slots")
            }
            Err(error) => return Err(error.into()),
        }
    }

    // GETs read the server's memory, without the server. Absence is no error.
    assert_eq!(client.get(b"apple")?.as_deref(), Some(&b"red"[..]));
    assert_eq!(client.get(b"grape")?, None);
    let values = client.get_many(&["pear", "plum", "grape"])?;
    println!(
        "{} of {} are there",
        values.iter().filter(|value| matches!(value, Ok(Some(_)))).count(),
        values.len()
    );
    // No allocation: the buffer is used again.
    let mut value = Vec::new();
    for key in ["apple", "pear"] {
        match client.get_into(key.as_bytes(), &mut value) {
            Ok(true) => println!("{key}: {}", String::from_utf8_lossy(&value)),
            Ok(false) => println!("{key}: absent"),
            // The handle stays good: it connects again by itself.
            Err(GetError::ServerGone { .. } | GetError::Connect(_)) => println!("{key}: try again later"),
            Err(error) => return Err(error.into()),
        }
    }

    match client.remove(b"apple") {
        Ok(was_there) => println!("removed: {was_there}"),
        // Whether the change has happened is not known. A GET may tell.
        Err(MutateError::Deadline { .. } | MutateError::ServerGone { .. }) => println!("removed: perhaps"),
        Err(error) => return Err(error.into()),
    }
    // What the table cannot hold is refused before it is sent.
    let too_long = client.put(&[b'k'; 256], b"value").expect_err("too long a key");
    assert!(matches!(too_long, MutateError::KeyLength { given: 256, .. }));
    println!("refused: {too_long}");

    let stats = client.stats();
    println!("{} GETs took {} READs", stats.get.gets, stats.read.reads);
    Ok(())
}

/// With a server, it runs to its end. Without, it says so.
#[test]
fn it_runs() {
    use oneread::{Config, Server, ServerConfig, TableSize};
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("socket"));
    let table = Config::new().size(TableSize::Keys(100));
    let server = Server::start(ServerConfig::new(address.clone(), table)).unwrap();
    run(&address).unwrap();
    assert_eq!(server.stats().keys, 2);
    server.stop();
    assert!(run(&address).unwrap_err().to_string().starts_with("start a server at shm:"));
}
