//! The verbs fabric against tests/fake_ibverbs.c: devices that fail, refuse, delay and reorder on
//! request, and that count the calls.
//!
//! The fake's settings apply to its whole process. Each story therefore runs in a process of its
//! own, with server and client in it. At the end of each story, every opened object is closed, no
//! queue has overflowed, and the library was not misused.

#![allow(unsafe_code, reason = "the fake is loaded, and called, as C")]

#[macro_use]
mod fake;
mod batches;
mod devices;
mod growing;
#[cfg(feature = "herd")]
mod herd;
mod joining;
mod long_values;
mod messages;
mod reads;
mod shared;

use crate::common::*;
#[cfg(feature = "encryption")]
use crate::encrypted;
use crate::fake_ibverbs::{compile, folder, is_guest};
use crate::{TOKEN, at, forged, options, refused};
use fake::Fake;
use oneread::Token;
use oneread::internals::client::LinkError;
use oneread::internals::families::presets;
use oneread::internals::get::Retry;
use oneread::internals::layout::geometry::{Family, SlotIx};
use oneread::internals::placement::Preset;
use oneread::internals::region::Backing;
use oneread::internals::server::StartMode;
use oneread::internals::verbs::{SetupError, VerbsError, Wait};
use oneread::{
    Address, BatchAnswer, Client, ClientOptions, ConnectError, GetError, MutateError, OwnerOptions,
    PartChange, PartEffect, PartOutcome, PutMode, PutOutcome, RequestPath, ServeError, Server, SwapOutcome,
    Tell,
    error::{PartError, PutError},
};
use oneread::{Config, ServerConfig, TableSize, VerbsAddress, error::WireError};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn story(name: &str) -> fn(&Fake) {
    let all = [
        batches::STORIES,
        devices::STORIES,
        growing::STORIES,
        #[cfg(feature = "herd")]
        herd::STORIES,
        joining::STORIES,
        long_values::STORIES,
        messages::STORIES,
        reads::STORIES,
        shared::STORIES,
    ];
    let found = all.iter().copied().flatten().find(|(story, _)| *story == name);
    found.unwrap_or_else(|| panic!("no story {name}")).1
}

/// Runs one story. Not a test by itself.
#[test]
#[ignore = "started by the other tests, in a process of its own"]
fn teller() {
    let (Some(name), Some(library)) = (told("ONEREAD_TEST_STORY"), told("ONEREAD_TEST_LIBRARY")) else {
        return;
    };
    let fake = Fake::load(&library);
    story(&name)(&fake);
    fake.check();
    fake.check_closed();
}

/// Runs a story in a process of its own. Returns its output.
fn tell(name: &str, more: &[(&str, &str)]) -> String {
    let library = folder().join("libibverbs.so.1").display().to_string();
    let mut env = vec![("ONEREAD_TEST_STORY", name.to_owned()), ("ONEREAD_TEST_LIBRARY", library)];
    env.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    Process::start("faked::teller", &env).finish()
}

/// Runs the fake's own test.
#[test]
fn the_fake_passes_its_own_test() {
    if is_guest("the_fake_passes_its_own_test") {
        return;
    }
    let made = tempfile::tempdir().unwrap();
    let program = made.path().join("selftest");
    compile(&["-DFAKE_SELFTEST"], &program);
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn with_credits(credits: usize) -> ClientOptions {
    let verbs = options().verbs.credits(credits);
    options().verbs(verbs)
}

fn try_to_serve(place: &str, preset: &Preset, slots: u64) -> Result<Server, ServeError> {
    // On a busy machine a GET may take long, and its answer must still be valid.
    let table = config(preset, slots, 16, 46, 7).grace(Duration::from_millis(500));
    Server::start(ServerConfig::new(at(place), table).token(Token::new(TOKEN)))
}

fn serve(slots: u64) -> Server {
    try_to_serve("127.0.0.1:0", default_preset(), slots).unwrap()
}

fn place(server: &Server) -> &VerbsAddress {
    let Address::Verbs(place) = server.address() else { panic!("not verbs") };
    place
}

fn connect(server: &Server) -> Client {
    Client::connect_with(server.address(), options()).unwrap()
}

fn ours(n: u32) -> (Vec<u8>, Vec<u8>) {
    (key(n, 16), value(u64::from(n), n as usize % 47))
}

fn keys(n: u32) -> Vec<Vec<u8>> {
    (0..n).map(|n| ours(n).0).collect()
}

fn fill(client: &mut Client, n: u32) {
    let pairs: Vec<_> = (0..n).map(ours).collect();
    for answer in client.put_many(&pairs).unwrap() {
        answer.unwrap();
    }
}

/// For batches that fail before any key is answered.
fn unanswered(n: usize, _: BatchAnswer<'_>) -> ControlFlow<()> {
    panic!("{n} is answered")
}

fn check_all(client: &mut Client, n: u32) {
    for (n, found) in client.get_many(&keys(n)).unwrap().into_iter().enumerate() {
        assert_eq!(found, Ok(Some(ours(n as u32).1)), "key {n} in a batch");
    }
    for n in (0..n).step_by(7) {
        assert_eq!(client.get(&ours(n).0).unwrap(), Some(ours(n).1), "key {n}");
    }
    assert_eq!(client.get(b"nobody put this").unwrap(), None);
}

/// A relay to the server. As soon as the server has welcomed the client, the relay calls `welcomed`
/// with its two connections.
pub fn relay(server: &Server, welcomed: impl FnOnce([&TcpStream; 2]) + Send + 'static) -> Address {
    fn message(from: &mut TcpStream) -> Vec<u8> {
        let mut length = [0; 4];
        from.read_exact(&mut length).unwrap();
        let mut message = length.to_vec();
        from.take(u32::from_le_bytes(length).into()).read_to_end(&mut message).unwrap();
        message
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = at(&listener.local_addr().unwrap().to_string());
    let to = (place(server).host().to_owned(), place(server).port());
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect((to.0.as_str(), to.1)).unwrap();
        client.write_all(&message(&mut server)).unwrap();
        server.write_all(&message(&mut client)).unwrap();
        let welcome = message(&mut server);
        welcomed([&client, &server]);
        client.write_all(&welcome).unwrap();
        let _ = client.read(&mut [0]);
    });
    address
}

/// Options of clients for each way to ask: by messages or HERD's way, over queue pairs of their own
/// or shared ones.
pub fn ways() -> impl Iterator<Item = ClientOptions> {
    let requests = [
        RequestPath::Message,
        #[cfg(feature = "herd")]
        RequestPath::HERD,
    ];
    let ways = requests.into_iter().flat_map(|requests| [None, Some(1), Some(2)].map(|n| (requests, n)));
    ways.flat_map(|(requests, pairs)| {
        [Wait::Poll, Wait::Block].map(|wait| {
            let verbs = options().verbs.pairs(pairs).wait(wait);
            options().requests(requests).verbs(verbs)
        })
    })
}

/// Starts a server that takes requests in each of these ways.
pub fn serve_ways(place: Address, table: Config) -> Server {
    let config = ServerConfig::new(place, table).token(Token::new(TOKEN));
    #[cfg(feature = "herd")]
    let config = config.herd(true);
    Server::start(config).unwrap()
}

/// Stops a thread, also when the code beside it panicked, because the scope waits for it.
pub struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Time in which a READ is done, on a busy machine.
const CALM: Duration = Duration::from_millis(500);

/// Options of clients without hints, one with a queue pair of its own, one with a shared one.
fn both_paths(credits: usize) -> [ClientOptions; 2] {
    [None, Some(1)].map(|pairs| options().hint_bytes(0).verbs(options().verbs.credits(credits).pairs(pairs)))
}
