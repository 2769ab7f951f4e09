//! A plain server: `cargo run --example server -- shm:/tmp/example.sock /dev/shm/example-table`.
//!
//! It serves a table from a file until its input ends or Enter is pressed. Started again, it takes
//! the table over. `examples/client.rs` is a client for it.

use oneread::{Address, Backing, Config, PutMode, ServeError, Server, ServerConfig, StartMode, TableSize};
use std::error::Error;
use std::path::PathBuf;

/// Takes the table in the file over, or makes a new one. Returns once clients can connect.
fn serve(address: Address, file: PathBuf) -> Result<Server, ServeError> {
    // Sizes are fixed when a table is made. A table that is taken over keeps its own.
    let table = Config::new().size(TableSize::Keys(100_000)).key_max(32).value_max(100);
    let config = ServerConfig::new(address, table)
        .backing(Backing::File(file))
        .start(StartMode::OpenOrCreate)
        .workers(2);
    Server::start(config)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(address), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: server ADDRESS FILE".into());
    };
    let address = address.into_string().map_err(|_| "the address is not UTF-8")?.parse()?;
    let server = serve(address, file.into())?;
    match server.recovered() {
        Some(found) => println!("took over {} keys", found.keys),
        None => println!("made a new table"),
    }
    // The server's own process changes the table without a request.
    let by = format!("by process {}", std::process::id());
    server.index().put(b"started", by.as_bytes(), PutMode::Upsert)?;
    println!("serving at {}; press Enter to stop", server.address());
    std::io::stdin().read_line(&mut String::new())?;
    // Hangs up on the clients. The file stays.
    server.stop();
    Ok(())
}

/// The second server has what the first one left. While one is there, no other starts.
#[test]
fn it_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("socket"));
    let start = || serve(address.clone(), dir.path().join("table"));
    let first = start().unwrap();
    assert_eq!(first.recovered(), None);
    first.index().put(b"key", b"value", PutMode::Insert).unwrap();
    assert!(matches!(start(), Err(ServeError::Region(_))));
    first.stop();
    let second = start().unwrap();
    assert_eq!(second.recovered().map(|found| found.keys), Some(1));
    let mut client = oneread::Client::connect(second.address()).unwrap();
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}
