//! Following a table in a tokio program: `cargo run --example feed --features tokio`.
//!
//! A [`ChangeFeed`] waits for the server, so a thread of its own follows, and hands on what it hears through a
//! channel. A task keeps a copy of the table by it: it begins with all keys, and empties its copy after a gap.

use oneread::{
    Address, ChangeFeed, Client, Config, FeedFrom, FeedItem, FeedOptions, Server, ServerConfig, TableSize,
};
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;
use tokio::sync::mpsc;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Follows until nobody takes what it hears.
fn follow(mut changes: ChangeFeed, heard: &mpsc::Sender<FeedItem>) {
    while !heard.is_closed() {
        match changes.next(Duration::from_millis(100)) {
            Ok(Some(item)) => {
                let is_gap = matches!(item, FeedItem::Gap { .. });
                if heard.blocking_send(item).is_err() {
                    return;
                }
                // Asked again, if the server is not there.
                while is_gap && !heard.is_closed() && changes.resync().is_err() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            Ok(None) => {}
            // It is tried again: the server may come back, and then what was missed is a gap.
            Err(error) => {
                eprintln!("{error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// A copy of the table.
#[derive(Default)]
struct Copy {
    keys: HashMap<Vec<u8>, Vec<u8>>,
    is_whole: bool,
}

impl Copy {
    fn hear(&mut self, item: FeedItem) {
        match item {
            FeedItem::Key { key, value, .. }
            | FeedItem::Came { key, value, .. }
            | FeedItem::Replaced { key, value, .. } => {
                self.keys.insert(key, value.unwrap_or_default());
            }
            FeedItem::Left { key, .. } => drop(self.keys.remove(&key)),
            FeedItem::Joined => self.is_whole = true,
            // All keys come again.
            FeedItem::Gap { .. } => *self = Copy::default(),
            _ => {}
        }
    }
}

#[tokio::main]
async fn main() -> Outcome {
    let dir = tempfile::tempdir()?;
    let address = Address::Shm(dir.path().join("socket"));
    let config = ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(10_000)));
    let server = tokio::task::spawn_blocking(|| Server::start(config)).await??;

    let (heard, mut hears) = mpsc::channel(1024);
    let followed = address.clone();
    let client = tokio::task::spawn_blocking(move || Client::connect(&followed)).await??;
    let options = FeedOptions::new().from(FeedFrom::Keys).prefix(b"user:").values(true);
    let follows = std::thread::spawn(move || -> Outcome {
        follow(client.changes(options)?, &heard);
        Ok(())
    });

    tokio::task::spawn_blocking(move || -> Outcome {
        let mut client = Client::connect(&address)?;
        for n in 0..1_000u32 {
            client.put(format!("user:{n}").as_bytes(), &n.to_le_bytes())?;
            client.put(format!("other:{n}").as_bytes(), b"")?;
        }
        (0..500u32).try_for_each(|n| client.remove(format!("user:{n}").as_bytes()).map(drop))?;
        Ok(())
    })
    .await??;

    let mut copy = Copy::default();
    // There may be times at which it has as many.
    while !(copy.is_whole && copy.keys.len() == 500 && copy.keys.contains_key(&b"user:999"[..])) {
        copy.hear(hears.recv().await.ok_or("nobody follows")?);
    }
    println!("{} keys are in the copy", copy.keys.len());
    drop(hears);
    tokio::task::spawn_blocking(move || follows.join().expect("it does not panic")).await??;
    tokio::task::spawn_blocking(|| server.stop()).await?;
    Ok(())
}

#[test]
fn it_runs() {
    main().unwrap();
}
