//! A client in a tokio program: `cargo run --example tokio`.
//!
//! A GET on shm is a few loads from memory, so each task does its GETs itself, with its own handle.
//! A hand-over to another thread and back would cost more than the GET. A change waits for the
//! server, up to the deadline. One thread makes the changes of all tasks and sends the waiting ones
//! as a batch.

use oneread::{Address, Client, ClientOptions, Config, Limits, Server, ServerConfig, TableSize};
use std::error::Error;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

type Outcome = Result<(), String>;

/// A change, and the channel for its outcome.
struct Change {
    key: Vec<u8>,
    value: Vec<u8>,
    done: oneshot::Sender<Outcome>,
}

/// Sends changes to the thread that makes them. Each task has its own clone; cloning is cheap.
#[derive(Clone)]
struct Writer(mpsc::Sender<Change>);

impl Writer {
    /// Starts the thread. It ends when the last `Writer` is dropped.
    fn start(mut client: Client) -> Writer {
        /// Changes that may be queued. Further tasks wait.
        const QUEUE: usize = 256;
        let (sender, mut receiver) = mpsc::channel::<Change>(QUEUE);
        tokio::task::spawn_blocking(move || {
            let mut changes = Vec::with_capacity(QUEUE);
            while receiver.blocking_recv_many(&mut changes, QUEUE) > 0 {
                let pairs: Vec<_> = changes.iter().map(|change| (&change.key, &change.value)).collect();
                let outcomes = match client.put_many(&pairs) {
                    Ok(each) => {
                        each.into_iter().map(|put| put.map(drop).map_err(|e| e.to_string())).collect()
                    }
                    Err(error) => vec![Err(error.to_string()); changes.len()],
                };
                for (change, outcome) in changes.drain(..).zip(outcomes) {
                    // The task may have given up waiting.
                    let _ = change.done.send(outcome);
                }
            }
        });
        Writer(sender)
    }

    /// Puts a key without blocking the thread of the task.
    async fn put(&self, key: &[u8], value: &[u8]) -> Outcome {
        let (done, outcome) = oneshot::channel();
        let change = Change { key: key.into(), value: value.into(), done };
        self.0.send(change).await.map_err(|_| "the writer has ended")?;
        outcome.await.map_err(|_| "the writer has ended")?
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let address = Address::Shm(dir.path().join("socket"));
    let config = ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(10_000)));
    // Starting a server makes files and threads, and may take over a large table.
    let server = tokio::task::spawn_blocking(|| Server::start(config)).await??;

    // A GET that meets a slot being written tries again, and sleeps between later attempts. A task
    // should do so only for a short time.
    let soon = Limits::new().deadline(Duration::from_millis(1));
    let options = ClientOptions::new().limits(soon);
    let client = tokio::task::spawn_blocking(move || Client::connect_with(&address, options)).await??;
    let writer = Writer::start(client.clone());

    let tasks: Vec<_> = (0..100u32)
        .map(|number| {
            // Cheap: the handles share one mapping.
            let (mut client, writer) = (client.clone(), writer.clone());
            tokio::spawn(async move {
                let key = number.to_le_bytes();
                writer.put(&key, b"value").await?;
                let found = client.get(&key).map_err(|error| error.to_string())?;
                assert_eq!(found.as_deref(), Some(&b"value"[..]));
                Outcome::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let error = writer.put(&[0; 100], b"").await.expect_err("too long a key");
    assert!(error.contains("100 bytes"), "{error}");
    println!("{} keys", server.stats().keys);
    // Waits for the server's threads.
    tokio::task::spawn_blocking(|| server.stop()).await?;
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
