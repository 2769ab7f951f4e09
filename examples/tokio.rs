//! A client in a tokio program: `cargo run --example tokio --features tokio`.
//!
//! A GET on shm is a few loads from memory, so each task does its GETs itself, with a handle of the pool.
//! To hand one over to another thread and back would cost more than the GET. A change waits for the
//! server, up to the deadline: [`ClientPool::run`] makes it on a thread that may block.

use oneread::{Address, ClientOptions, ClientPool, Config, Limits, Server, ServerConfig, TableSize};
use std::error::Error;
use std::time::Duration;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Puts a key and gets it.
async fn work(pool: ClientPool, number: u32) -> Outcome {
    let key = number.to_le_bytes();
    pool.run(move |client| client.put(&key, b"value")).await??;
    // The handle goes back before the task waits for anything again.
    let found = pool.try_get().ok_or("all handles are in use")?.get(&key)?;
    assert_eq!(found.as_deref(), Some(&b"value"[..]));
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let dir = tempfile::tempdir()?;
    let address = Address::Shm(dir.path().join("socket"));
    let config = ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(10_000)));
    // Starting a server makes files and threads, and may take over a large table.
    let server = tokio::task::spawn_blocking(|| Server::start(config)).await??;

    // A GET that meets a slot being written tries again, and sleeps between later attempts. A task
    // should do so only for a short time.
    let soon = Limits::new().deadline(Duration::from_millis(1));
    let options = ClientOptions::new().limits(soon);
    let pool = tokio::task::spawn_blocking(move || ClientPool::connect_with(&address, options)).await??;
    // As many as may be in use at once: by the threads that block, and by those that run tasks.
    let pool = pool.handles_max(1024);

    let tasks: Vec<_> = (0..100).map(|number| tokio::spawn(work(pool.clone(), number))).collect();
    for task in tasks {
        task.await??;
    }
    let error = pool.run(|client| client.put(&[0; 300], b"")).await?.expect_err("too long a key");
    assert!(error.to_string().contains("300 bytes"), "{error}");
    println!("{} keys, {} GETs", server.stats().keys, pool.stats().get.gets);
    // Waits for the server's threads.
    tokio::task::spawn_blocking(|| server.stop()).await?;
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
