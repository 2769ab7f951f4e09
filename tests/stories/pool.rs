//! Pools of handles: who gets which, what they count together, and what becomes of them when something goes wrong.

use crate::common::{Over, Place, config, default_preset, over_shm_and_tcp, patient, wait_for};
use oneread::internals::server::StartMode;
use oneread::{Backing, ClientPool, GetError, PutOutcome, Server, ServerConfig};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

over_shm_and_tcp! {
    threads_share_handles,
    the_bound_is_kept,
    a_panic_costs_one_handle,
    a_server_goes_and_comes_back,
    #[cfg(feature = "tokio")]
    tasks_share_handles,
    #[cfg(feature = "tokio")]
    work_leaves_handles_to_gets,
}

fn serve(over: Over) -> (Place, ServerConfig, Server) {
    let place = over.place();
    let backing = Backing::File(place.dir.path().join("region"));
    let table = config(default_preset(), 1 << 10, 16, 32, 3);
    let config =
        ServerConfig::new(place.address.clone(), table).backing(backing).start(StartMode::OpenOrCreate);
    let server = Server::start(config.clone()).unwrap();
    (place, config, server)
}

fn pool(config: &ServerConfig) -> ClientPool {
    ClientPool::connect_with(&config.address, patient()).unwrap()
}

fn is_shared<T: Send + Sync + Clone + 'static>(it: T) -> T {
    it
}

/// More threads than handles: each waits for one, none is lent twice at a time, and what all did is counted in one
/// place.
fn threads_share_handles(over: Over) {
    const THREADS: usize = 8;
    const HANDLES: usize = 3;
    const ROUNDS: u64 = 200;
    let (_place, config, server) = serve(over);
    let pool = is_shared(pool(&config).handles_max(HANDLES));
    let lent = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for thread in 0..THREADS as u64 {
            let (pool, lent) = (&pool, &lent);
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    let mut client = pool.get();
                    assert!(lent.fetch_add(1, Ordering::SeqCst) < HANDLES, "more are lent than there may be");
                    let (key, value) = (thread.to_le_bytes(), round.to_le_bytes());
                    client.put(&key, &value).unwrap();
                    assert_eq!(client.get(&key).unwrap().as_deref(), Some(&value[..]));
                    lent.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    let stats = pool.stats();
    let all = THREADS as u64 * ROUNDS;
    assert_eq!((stats.changes.puts, stats.get.gets, stats.get.hits), (all, all, all), "{stats:?}");
    assert!(server.stats().clients <= HANDLES as u64 + 1, "one watches");
}

/// At the bound, who does not wait gets none, and who waits gets the one that comes back. A handle in use counts,
/// too.
fn the_bound_is_kept(over: Over) {
    let (_place, config, _server) = serve(over);
    let pool = pool(&config).handles_max(2);
    let (mut one, two) = (pool.get(), pool.try_get().unwrap());
    assert!(pool.try_get().is_none() && pool.clone().try_get().is_none());
    one.put(b"key", b"value").unwrap();
    assert_eq!(pool.stats().changes.puts, 1, "it is not back yet");
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.get().get(b"key").unwrap());
        drop(two);
        assert_eq!(waiting.join().unwrap().as_deref(), Some(&b"value"[..]));
    });
    assert_eq!(pool.stats().get.hits, 1);
    // Room for more is used at once, and less when handles come back.
    let pool = pool.handles_max(3);
    let (two, three) = (pool.get(), pool.get());
    assert!(pool.try_get().is_none());
    let pool = pool.handles_max(0);
    drop((two, three));
    assert!(pool.try_get().is_none(), "one is in use, and there may be one");
    drop(one);
    assert!(pool.try_get().is_some());
    let stats = pool.stats();
    assert_eq!((stats.changes.puts, stats.get.hits), (1, 1), "what is gone stays counted: {stats:?}");
}

/// A handle whose thread panicked in the middle of a batch is not lent again. Another takes its place, and its counts
/// stay.
fn a_panic_costs_one_handle(over: Over) {
    let (_place, config, _server) = serve(over);
    let pool = pool(&config).handles_max(1);
    pool.get().put(b"key", b"value").unwrap();
    for round in 1..4 {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut client = pool.get();
            client.put(b"key", b"other").unwrap();
            let _ = client.get_many_with::<_, ()>(&["key"], |_, _| panic!("on purpose"));
        }));
        assert!(panicked.is_err());
        let mut client = pool.get();
        assert_eq!(client.stats().changes.puts, 0, "it is another one");
        assert_eq!(client.put(b"key", b"value").unwrap(), PutOutcome::Updated);
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        drop(client);
        assert_eq!(pool.stats().changes.puts, 1 + 2 * round);
    }
}

/// Handles outlive a server: on shm they read on while it is away, and they reconnect when it is back.
fn a_server_goes_and_comes_back(over: Over) {
    let (_place, config, server) = serve(over);
    let pool = pool(&config).handles_max(2);
    let (mut one, mut two) = (pool.get(), pool.get());
    one.put(b"one", b"1").unwrap();
    two.put(b"two", b"2").unwrap();
    drop(two);
    server.stop();
    // Over TCP they would wait for it.
    if over == Over::Shm {
        match one.get(b"one") {
            Ok(found) => assert_eq!(found.as_deref(), Some(&b"1"[..])),
            Err(error) => assert!(matches!(error, GetError::ServerGone { .. }), "{error}"),
        }
    }
    let _server = Server::start(config).unwrap();
    wait_for("the server to be back", || one.put(b"one", b"3").ok());
    let mut two = pool.get();
    assert_eq!(two.put(b"two", b"4").unwrap(), PutOutcome::Updated);
    assert_eq!(two.get(b"one").unwrap().as_deref(), Some(&b"3"[..]));
}

/// Tasks make changes without blocking their runtime's threads, and a panic there is an error.
#[cfg(feature = "tokio")]
fn tasks_share_handles(over: Over) {
    let (_place, config, _server) = serve(over);
    let pool = pool(&config).handles_max(2);
    // One thread: what blocks it stops all tasks.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let held = [pool.get(), pool.get()];
        let tasks: Vec<_> = (0..20u8)
            .map(|n| {
                let pool = pool.clone();
                tokio::spawn(async move { pool.run(move |client| client.put(&[n], b"value")).await })
            })
            .collect();
        // They wait for handles, and this task goes on.
        tokio::task::yield_now().await;
        drop(held);
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap().unwrap(), PutOutcome::Inserted);
        }
        let panicked: Result<(), _> = pool.run(|_| panic!("on purpose")).await;
        assert!(panicked.unwrap_err().is_panic());
        assert_eq!(
            pool.run(|client| client.get(&[3]).unwrap()).await.unwrap().as_deref(),
            Some(&b"value"[..])
        );
    });
    assert_eq!(pool.stats().changes.puts, 20);
}

/// However much work waits for the server, half of the handles are for GETs.
#[cfg(feature = "tokio")]
fn work_leaves_handles_to_gets(over: Over) {
    use oneread::Client;
    use std::time::Duration;
    let (_place, config, _server) = serve(over);
    let pool = pool(&config).handles_max(4);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (begun, begins) = std::sync::mpsc::channel();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let end = std::sync::Arc::new(std::sync::Mutex::new(end));
        let work: Vec<_> = (0..8)
            .map(|_| {
                let (pool, begun, end) = (pool.clone(), begun.clone(), end.clone());
                let work = move |_: &mut Client| {
                    begun.send(()).unwrap();
                    // Until nobody sends any more.
                    assert!(end.lock().unwrap().recv().is_err());
                };
                tokio::spawn(async move { pool.run(work).await.unwrap() })
            })
            .collect();
        tokio::task::yield_now().await;
        (0..2).for_each(|_| begins.recv().unwrap());
        let others = [pool.try_get(), pool.try_get()];
        assert!(others.iter().all(Option::is_some) && pool.try_get().is_none());
        assert!(pool.get_timeout(Duration::from_millis(1)).is_none());
        // Those that came back are still not for work.
        drop(others);
        assert!(begins.try_recv().is_err());
        drop(ends);
        for work in work {
            work.await.unwrap();
        }
    });
    assert!(pool.get_timeout(Duration::from_secs(60)).is_some());
}
