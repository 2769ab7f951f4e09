//! The verbs fabric against tests/fake_ibverbs.c: devices that fail, refuse, delay and reorder on
//! request, and that count the calls.
//!
//! The fake's settings apply to its whole process. Each story therefore runs in a process of its
//! own, with server and client in it. At the end of each story, every opened object is closed, no
//! queue has overflowed, and the library was not misused.

#![allow(unsafe_code, reason = "the fake is loaded, and called, as C")]

mod common;
#[cfg(feature = "encryption")]
#[path = "common/encrypted.rs"]
mod encrypted;
#[path = "common/fake_ibverbs.rs"]
mod fake_ibverbs;
#[path = "common/forged.rs"]
mod forged;

use common::*;
use fake_ibverbs::{compile, folder, is_guest};
use oneread::client::LinkError;
use oneread::families::presets;
use oneread::get::Retry;
use oneread::layout::geometry::{Family, SlotIx};
use oneread::placement::Preset;
use oneread::region::Backing;
use oneread::server::StartMode;
use oneread::verbs::{SetupError, Token, VerbsError, VerbsOptions, Wait};
use oneread::{
    Address, BatchAnswer, Client, ClientOptions, ConnectError, GetError, MutateError, PutError, PutMode,
    PutOutcome, RequestPath, ServeError, Server,
};
use oneread::{Config, ServerConfig, TableSize, VerbsAddress, WireError};
use std::ffi::{CString, c_char, c_int, c_long};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

// ---- the fake ---------------------------------------------------------------------------------------

/// The fake, loaded.
struct Fake(libloading::Library);

impl Fake {
    fn load(path: &str) -> Fake {
        // SAFETY: its initialisers do nothing.
        Fake(unsafe { libloading::Library::new(path) }.unwrap())
    }

    fn set(&self, name: &str, value: i64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the signature in fake_ibverbs.c.
        let result = unsafe {
            let set = self.0.get::<unsafe extern "C" fn(*const c_char, c_long) -> c_int>(b"fake_set\0");
            set.unwrap()(name.as_ptr(), value)
        };
        assert_eq!(result, 0, "the fake has no setting {name:?}");
    }

    fn count(&self, name: &str) -> i64 {
        let name = CString::new(name).unwrap();
        // SAFETY: the signature in fake_ibverbs.c.
        let count = unsafe {
            let count = self.0.get::<unsafe extern "C" fn(*const c_char) -> c_long>(b"fake_count\0");
            count.unwrap()(name.as_ptr())
        };
        assert!(count >= 0, "the fake counts {count} of {name:?}");
        count
    }

    /// Checks that nothing overflowed and nothing was misused.
    fn check(&self) {
        for name in ["misuse", "queue_full", "cq_overflows", "rnr_waits", "lost_receives"] {
            assert_eq!(self.count(name), 0, "{name}");
        }
    }

    /// Checks that every object is closed.
    fn check_closed(&self) {
        for kind in ["lists", "contexts", "pds", "mrs", "channels", "cqs", "srqs", "qps", "ahs"] {
            assert_eq!(self.count(&format!("live_{kind}")), 0, "{kind} are left");
        }
    }
}

fn story(name: &str) -> fn(&Fake) {
    STORIES.iter().find(|(story, _)| *story == name).unwrap_or_else(|| panic!("no story {name}")).1
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
    Process::start("teller", &env).finish()
}

/// Each story is a test, or is run by one.
macro_rules! stories {
    (tests: [$($(#[$only:meta])* $test:ident,)*] told: [$($told:ident,)*]) => {
        mod stories {
            $($(#[$only])*
            #[test]
            fn $test() {
                if !super::is_guest(stringify!($test)) {
                    super::tell(stringify!($test), &[]);
                }
            })*
        }

        const STORIES: &[(&str, fn(&Fake))] =
            &[$($(#[$only])* (stringify!($test), $test),)* $((stringify!($told), $told),)*];
    };
}

stories! {
    tests: [
        a_read_that_fails,
        reads_that_all_fail,
        short_posts,
        devices_that_vanish,
        memory_that_may_not_be_registered,
        reordered_words_and_writers,
        tiny_devices,
        servers_that_are_full,
        failed_handshakes,
        clients_that_never_join,
        readers_change_nothing,
        each_host_has_a_limit,
        welcomes_that_are_changed,
        joins_that_are_changed,
        clients_that_go_on_talking,
        errors_that_are_final,
        hanging_up_while_asking,
        a_callback_that_panics,
        costs_of_a_batch,
        answers_that_come_first,
        answers_that_fit_into_a_message,
        answers_that_do_not_fit,
        messages_beyond_the_bound,
        answers_before_the_hang_up,
        answers_that_wait_for_a_slot,
        completions_without_an_event,
        devices_that_differ,
        clients_that_join_at_once,
        receives_that_come_back_late,
        receives_of_clients_that_leave,
        #[cfg(feature = "herd")]
        herd_over_uc_and_rc,
        #[cfg(feature = "herd")]
        herd_areas_are_apart,
        duplicate_answers,
        misnumbered_answers,
        bad_pairs_in_a_batch,
        batches_with_outcomes,
        #[cfg(feature = "encryption")]
        values_are_encrypted,
        full_tables_in_a_batch,
        limits_are_those_of_the_present_server,
        late_answers,
        reads_left_in_flight,
        free_places_are_used_again,
        a_server_that_is_away,
        costs_over_a_shared_pair,
        costs_of_long_values,
        long_values_that_fail,
        long_values_without_memory,
        long_values_that_are_replaced,
        heaps_that_may_not_be_registered,
        #[cfg(feature = "herd")]
        herd_clients_that_leave,
        #[cfg(feature = "herd")]
        herd_keeps_the_order_of_a_key,
        #[cfg(feature = "herd")]
        herd_welcomes_that_are_changed,
        #[cfg(feature = "herd")]
        datagrams_of_strangers,
        #[cfg(feature = "herd")]
        herd_replies_that_complete_late,
        #[cfg(feature = "herd")]
        herd_cells_that_are_being_sent,
        answers_beyond_the_bound,
        chunks_without_a_key,
        entries_of_the_server_before,
        reads_that_never_come,
        connections_are_kept_alive,
        #[cfg(feature = "herd")]
        herd_replies_fit_a_packet,
    ]
    told: [choice,]
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

// ---- server and client ------------------------------------------------------------------------------

const TOKEN: &str = "a token for tests";

fn at(place: &str) -> Address {
    format!("verbs://{place}").parse().unwrap()
}

fn options() -> ClientOptions {
    let verbs = VerbsOptions::new().token(Token::new(TOKEN));
    patient().verbs(verbs)
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

fn refused(address: &Address, options: ClientOptions) -> SetupError {
    match Client::connect_with(address, options) {
        Err(ConnectError::Verbs(error)) => error,
        other => panic!("expected no connection: {other:?}"),
    }
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

// ---- READs that fail --------------------------------------------------------------------------------

/// Each READ may fail with any status. The same request is then made again on a new connection.
fn a_read_that_fails(fake: &Fake) {
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 200);
    let mut failures = 0;
    for status in 1..=23 {
        for (nth, delay) in [(1, 0), (30, 3), (200, 0), (215, 0)] {
            fake.set("FAKE_DELAY_READS", delay);
            fake.set("FAKE_FAIL_STATUS", status);
            fake.set("FAKE_FAIL_NTH_READ", nth);
            check_all(&mut client, 200);
            failures += 1;
            assert_eq!(client.stats().reattached, failures, "status {status} of READ {nth}");
        }
    }
    assert_eq!(fake.count("errors") - fake.count("flushes"), failures as i64 - 4, "one of them is a flush");
    // What was answered before is not answered again.
    fake.set("FAKE_FAIL_NTH_READ", 150);
    let mut answers = [0; 200];
    let told = client.get_many_with(&keys(200), |n, answer| {
        assert_eq!(answer.unwrap(), Some(&ours(n as u32).1[..]));
        answers[n] += 1;
        ControlFlow::<()>::Continue(())
    });
    assert!(told.unwrap().is_continue());
    assert_eq!((answers, client.stats().reattached), ([1; 200], failures + 1));
}

/// When all READs fail, the client gives up, and the error names the status.
fn reads_that_all_fail(fake: &Fake) {
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 100);
    let mut reattached = 0;
    let statuses = [
        (1, "IBV_WC_LOC_LEN_ERR"),
        (4, "IBV_WC_LOC_PROT_ERR"),
        (5, "IBV_WC_WR_FLUSH_ERR"),
        (10, "IBV_WC_REM_ACCESS_ERR"),
        (12, "IBV_WC_RETRY_EXC_ERR"),
        (21, "IBV_WC_GENERAL_ERR"),
        (99, "an unknown status"),
    ];
    for (number, name) in statuses {
        fake.set("FAKE_FAIL_STATUS", number);
        fake.set("FAKE_FAIL_NTH_READ", -1);
        fake.set("counts", 0);
        let began = Instant::now();
        let error = client.get(&ours(1).0).expect_err("no READ arrives");
        let GetError::ServerGone {
            source: LinkError::Verbs(VerbsError::Completion { what: "READ", status, vendor, .. }),
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!((*status, i64::from(*vendor)), (name, 0x80 + number));
        assert!(with_causes(&error).contains(name), "{error:?}");
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert_eq!(fake.count("reads"), 9, "one, and eight more");
        client.get_many_with(&keys(100), unanswered).expect_err("no READ arrives");
        assert_eq!(fake.count("reads"), 18, "of a chain only the first is tried");
        fake.check();

        fake.set("FAKE_FAIL_NTH_READ", 0);
        check_all(&mut client, 100);
        reattached += 8 + 9 + 1;
        assert_eq!(client.stats().reattached, reattached);
    }
}

/// Only the first requests of a chain are posted. The rest, and those in flight, are made again.
fn short_posts(fake: &Fake) {
    let post = |result| match result {
        Err(GetError::ServerGone { source: LinkError::Verbs(error), .. }) => {
            assert!(matches!(error, VerbsError::Post { errno: 12 }), "{error}");
        }
        other => panic!("nothing can be posted: {other:?}"),
    };
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 200);
    for taken in [0, 1, 3, 15, 63] {
        for delay in [0, 3] {
            fake.set("FAKE_DELAY_READS", delay);
            // After a chain that is cut short, the device takes whole chains again.
            fake.set("FAKE_SHORT_POST", taken);
            let (before, reattached) = (fake.count("doorbells"), client.stats().reattached);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    wait_for("a doorbell", || (fake.count("doorbells") > before).then_some(()));
                    fake.set("FAKE_SHORT_POST", -1);
                });
                for (n, found) in client.get_many(&keys(200)).unwrap().into_iter().enumerate() {
                    assert_eq!(found, Ok(Some(ours(n as u32).1)), "key {n}, of a chain {taken} taken");
                }
            });
            assert!(client.stats().reattached > reattached, "of a chain {taken} taken: no failure");
        }
    }
    // Now the device cuts every chain short.
    fake.set("FAKE_SHORT_POST", 3);
    post(client.get_many(&keys(200)).map(|_| ()));
    assert_eq!(client.get(&ours(1).0).unwrap(), Some(ours(1).1), "a chain of one");
    fake.set("FAKE_SHORT_POST", 0);
    post(client.get(&ours(1).0).map(|_| ()));
    // The server cannot send anything either, and survives that.
    for _ in 0..2 {
        let error = client.put(b"key", b"value").expect_err("nothing can be posted");
        let MutateError::ServerGone { source: LinkError::Verbs(error), .. } = error else {
            panic!("{error}");
        };
        assert!(matches!(error, VerbsError::Post { errno: 12 }), "{error}");
    }
    fake.set("FAKE_SHORT_POST", -1);
    client.put(b"key", b"value").unwrap();
    check_all(&mut client, 200);
}

/// No READ comes back, and nothing fails: the GET ends at its deadline, over a queue pair of its own or a shared
/// one. The next one is made over another connection. (Arming a queue ends the delay, so this client polls.)
fn reads_that_never_come(fake: &Fake) {
    const WITHIN: Duration = Duration::from_millis(150);
    let server = serve(1024);
    fill(&mut connect(&server), 30);
    for options in ways().filter(|way| way.requests == RequestPath::Message && way.verbs.wait == Wait::Poll) {
        let connect = || Client::connect_with(server.address(), options.clone().deadline(WITHIN)).ok();
        let mut client = wait_for("a connection in time", connect);
        for is_batch in [false, true] {
            fake.set("FAKE_DELAY_READS", i32::MAX.into());
            let answer = match is_batch {
                true => client.get_many_with(&keys(30), unanswered).map(|_| None),
                false => client.get(&ours(1).0),
            };
            fake.set("FAKE_DELAY_READS", 0);
            let is_late = matches!(&answer, Err(GetError::Deadline { deadline: WITHIN, address }) if address == server.address());
            assert!(is_late, "{options:?}: {answer:?}");
            let before = client.stats().reattached;
            let found = wait_for("a READ in time", || client.get(&ours(2).0).ok());
            assert_eq!(found, Some(ours(2).1), "{options:?}");
            assert!(client.stats().reattached > before, "{options:?}");
        }
    }
}

/// Both ends of a connection notice a host that has vanished, and neither waits for more to send.
fn connections_are_kept_alive(_: &Fake) {
    use rustix::net::sockopt;
    let server = serve(128);
    let mut client = connect(&server);
    fill(&mut client, 30);
    let mut ends = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        if !std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")) {
            continue;
        }
        let number = entry.file_name().to_string_lossy().parse().unwrap();
        // SAFETY: nobody closes a socket meanwhile: server and client stay.
        let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let is_tcp = sockopt::socket_domain(socket) == Ok(rustix::net::AddressFamily::INET);
        if !is_tcp || sockopt::socket_acceptconn(socket) == Ok(true) {
            continue;
        }
        ends += 1;
        assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
        assert!(sockopt::tcp_keepidle(socket).unwrap() <= Duration::from_secs(60));
        assert_eq!(sockopt::tcp_nodelay(socket), Ok(true));
    }
    assert_eq!(ends, 2);
}

/// A reply is one packet. A table whose replies may be longer is not served HERD's way, and the error says what to
/// do.
#[cfg(feature = "herd")]
fn herd_replies_fit_a_packet(fake: &Fake) {
    fake.set("FAKE_MTU", 1024);
    let start = |value_max| {
        let table = config(default_preset(), 128, 16, value_max, 7);
        Server::start(ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN)).herd(true))
    };
    match start(1100) {
        Err(ServeError::Verbs(SetupError::Extension { why, .. })) => {
            assert!(why.contains("a datagram 1024 (the MTU): serve a table with shorter values"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    fake.check_closed();
    let server = start(900).unwrap();
    let herd = options().requests(RequestPath::HERD);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    client.put(b"key", &[7; 900]).unwrap();
    assert_eq!(client.get_two_sided(b"key").unwrap().as_deref(), Some(&[7; 900][..]));
}

// ---- choosing ---------------------------------------------------------------------------------------

/// Serves and connects as the arguments say. Returns what was chosen, or the error.
fn choice(_: &Fake) {
    tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::INFO).init();
    match try_to_serve(&format!("127.0.0.1:0{}", told("ONEREAD_TEST_QUERY").unwrap()), default_preset(), 128)
    {
        Err(ServeError::Verbs(error)) => println!("not served: {}", with_causes(&error)),
        Err(error) => panic!("{error}"),
        Ok(server) => {
            let mut client = connect(&server);
            fill(&mut client, 30);
            check_all(&mut client, 30);
            println!("served");
        }
    }
}

/// The fake's settings, the address's query, and the expected words.
type Case = (&'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);

#[test]
fn what_is_chosen() {
    if is_guest("what_is_chosen") {
        return;
    }
    const NO_GID: (&str, &str) = ("FAKE_GIDS", "");
    const TWO_PORTS: [(&str, &str); 2] = [("FAKE_PORTS", "2"), ("FAKE_PORT_STATE", "down,active")];
    const DOWN: [(&str, &str); 2] = [("FAKE_PORTS", "2"), ("FAKE_PORT_STATE", "down")];
    const INFINIBAND: (&str, &str) = ("FAKE_LINK_LAYER", "infiniband");
    const SPARSE: (&str, &str) =
        ("FAKE_GIDS", "7=v1:192.0.2.1 9=v2:fe80::1 90=v2:2001:db8::1 200=v2:192.0.2.1");
    const V1: (&str, &str) = ("FAKE_GIDS", "3=v1:192.0.2.1 4=v1:fe80::1");
    const LINK_LOCAL: (&str, &str) = ("FAKE_GIDS", "0=v1:fe80::1 5=v2:fe80::1");
    let served: &[Case] = &[
        (&[], "", &["device fake0, port 1: chose index 3: RoCE v2, IPv4, MTU 1024"]),
        (&[SPARSE], "", &["chose index 200: RoCE v2, IPv4, MTU"]),
        (&[SPARSE], "?gid=90", &["took index 90, as asked for: RoCE v2, IPv6; index 200 would suit better"]),
        (&[V1], "", &["chose index 3: RoCE v1, IPv4; warning", "v1 on both sides"]),
        (
            &[LINK_LOCAL],
            "",
            &["chose index 5: RoCE v2, IPv6 link-local; warning", "give its interface an address"],
        ),
        (&TWO_PORTS, "", &["device fake0, port 2: chose index 3"]),
        (&TWO_PORTS, "?port=2", &["device fake0, port 2: chose index 3"]),
        (&[], "?port=1", &["device fake0, port 1: chose index 3"]),
        (&[("FAKE_DEVICES", "2")], "?dev=fake1", &["device fake1, port 1: chose index 3"]),
        (&[INFINIBAND], "", &["no GID needed: InfiniBand by LID 1"]),
        (&[INFINIBAND, NO_GID], "", &["no GID needed: InfiniBand by LID 1"]),
        (&[INFINIBAND], "?gid=0", &["took index 0, as asked for: InfiniBand"]),
        (&[("FAKE_MTU", "256")], "", &["MTU 256"]),
        (&[("FAKE_MTU", "512")], "", &["MTU 512"]),
        (&[("FAKE_MTU", "2048")], "?mtu=2048", &["MTU 2048"]),
        (&[("FAKE_MTU", "4096")], "", &["MTU 4096"]),
        (&[("FAKE_MTU", "4096")], "?mtu=256", &["MTU 256"]),
    ];
    let not_served: &[Case] = &[
        (
            &[NO_GID],
            "",
            &["device fake0, port 1, has no GID to use: the port has no GID", "ip link set eth0 up"],
        ),
        (
            &[("FAKE_GIDS", "2=v2:::")],
            "",
            &["device fake0, port 1, has no GID to use: all 1 GIDs", "ip addr add"],
        ),
        (&[], "?gid=9", &["the port has no GID at index 9; it has some at 0, 1, 2, 3"]),
        (&TWO_PORTS, "?port=1", &["port 1 of device fake0 is down; bring its link up"]),
        (&TWO_PORTS, "?port=3", &["device fake0 has no port 3; it has ports 1 to 2"]),
        (&DOWN, "", &["no port of device fake0 is up; bring its link up", "?dev=DEVICE&port=N"]),
        (&[("FAKE_DEVICES", "2")], "?dev=mlx5_0", &["no RDMA device \"mlx5_0\"; there are: fake0, fake1"]),
        (&[], "?mtu=2048", &["an MTU of 2048 bytes", "device fake0, whose port carries up to 1024"]),
    ];
    for (cases, outcome) in [(served, "\nserved"), (not_served, "not served: ")] {
        for (env, query, expected) in cases {
            let said = tell("choice", &[env, &[("ONEREAD_TEST_QUERY", *query)][..]].concat());
            for expected in expected.iter().chain([&outcome]) {
                assert!(said.contains(expected), "{env:?}, {query:?}: {expected:?} is not in\n{said}");
            }
        }
    }
}

// ---- devices that vanish ----------------------------------------------------------------------------

/// A client whose device is gone says so, although the server still has its own. When the device is
/// back, the same handle works.
fn devices_that_vanish(fake: &Fake) {
    let server = serve(128);
    let mut client = connect(&server);
    fill(&mut client, 30);
    fake.set("FAKE_DEVICES", 0);
    let error = refused(server.address(), options());
    assert!(matches!(error, SetupError::NoDevice { no_module: false }), "{error}");
    fake.set("FAKE_DEVICES", -38);
    let error = refused(server.address(), options());
    assert!(matches!(error, SetupError::NoDevice { no_module: true }), "{error}");
    fake.set("FAKE_DEVICES", 1);
    fake.set("FAKE_PORT_STATE", 1);
    let error = refused(server.address(), options());
    assert!(matches!(&error, SetupError::PortDown { device, port: None } if device == "fake0"), "{error}");
    let mut hasty = Client::clone(&client);
    client.get(&ours(1).0).expect_err("the port is down");
    hasty.get(&ours(1).0).expect_err("the port is down");
    fake.set("FAKE_PORT_STATE", 4);
    check_all(&mut client, 30);
    check_all(&mut hasty, 30);
}

/// A relay to the server. As soon as the server has welcomed the client, the relay calls `welcomed`
/// with its two connections.
fn relay(server: &Server, welcomed: impl FnOnce([&TcpStream; 2]) + Send + 'static) -> Address {
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

/// The device does not take the memory. The error names the limit on locked memory and its remedy.
fn memory_that_may_not_be_registered(fake: &Fake) {
    const ENOMEM: i32 = 12;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    let limit = rustix::process::Rlimit { current: Some(49152), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).unwrap();
    let mends = |why: &str| why.contains("lock only 49152 bytes") && why.contains("ulimit -l unlimited");
    fake.set("FAKE_REG_ERRNO", ENOMEM.into());
    match try_to_serve("127.0.0.1:0", default_preset(), 128) {
        Err(ServeError::Verbs(error)) => {
            assert!(matches!(error, SetupError::Register { errno: ENOMEM, limit: Some(49152), .. }));
            assert!(mends(&error.to_string()), "{error}");
        }
        other => panic!("{other:?}"),
    }
    fake.set("FAKE_REG_ERRNO", 0);
    let server = serve(128);
    fake.set("FAKE_REG_ERRNO", ENOMEM.into());
    // The server cannot register its memory.
    match refused(server.address(), options()) {
        SetupError::Refused { why, .. } => assert!(mends(&why), "{why}"),
        error => panic!("{error}"),
    }
    fake.set("FAKE_REG_ERRNO", 0);
    // The client cannot. The library is named here because the relay's thread may not borrow the
    // fake.
    let library = told("ONEREAD_TEST_LIBRARY").unwrap();
    let address = relay(&server, move |_| Fake::load(&library).set("FAKE_REG_ERRNO", ENOMEM.into()));
    let error = refused(&address, options());
    assert!(matches!(error, SetupError::Register { errno: ENOMEM, .. }), "{error}");
    assert!(mends(&error.to_string()), "{error}");
    fake.set("FAKE_REG_ERRNO", 0);
    wait_for("the server to notice", || (server.stats().clients == 0).then_some(()));
    let mut client = connect(&server);
    fill(&mut client, 30);
    check_all(&mut client, 30);
}

// ---- reordered READs --------------------------------------------------------------------------------

/// READs take long and copy their words in random order while the table changes. All answers are
/// right.
fn reordered_words_and_writers(fake: &Fake) {
    for family in [Family::Cuckoo, Family::Hopscotch, Family::Chained] {
        let preset = presets().find(|preset| preset.layout.family == family).unwrap();
        let server = try_to_serve("127.0.0.1:0", preset, 256).unwrap();
        churn(fake, &server);
        println!("{}", preset.layout);
    }
}

/// Keys that stay, each with a growing version. The others come and go.
const STAY: u32 = 24;
const COME: std::ops::Range<u32> = STAY..260;

fn version(n: u32, version: u64) -> Vec<u8> {
    let rest = value(version << 8 | u64::from(n), version as usize % 38);
    [&version.to_le_bytes()[..], &rest].concat()
}

/// The version of a value. Fails if the value mixes versions.
fn version_of(n: u32, found: Option<Vec<u8>>) -> u64 {
    let found = found.unwrap_or_else(|| panic!("key {n} is missing"));
    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert_eq!(found, version(n, number), "a value that nobody wrote, of key {n}");
    number
}

fn churn(fake: &Fake, server: &Server) {
    let (begun, done): (Vec<_>, Vec<_>) = (0..STAY).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).unzip();
    // With few READs at a time, each batch gives way to the writers many times.
    let mut client = Client::connect_with(server.address(), with_credits(8)).unwrap();
    for n in 0..STAY {
        client.put(&ours(n).0, &version(n, 0)).unwrap();
    }
    fake.set("FAKE_REORDER_UNITS", 1);
    fake.set("FAKE_DELAY_READS", 20);
    let over = AtomicBool::new(false);
    let write = |first: u32| {
        let mut options = options();
        options.verbs.wait = Wait::Block;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let mut numbers = Numbers(first.into());
        for number in 1.. {
            for n in (first..STAY).step_by(2) {
                begun[n as usize].store(number, Ordering::SeqCst);
                client.put(&ours(n).0, &version(n, number)).unwrap();
                done[n as usize].store(number, Ordering::SeqCst);
                let come =
                    COME.start + 2 * numbers.below(u64::from(COME.end - COME.start) / 2) as u32 + first;
                match numbers.below(2) {
                    // The table may be full.
                    0 => drop(client.put(&ours(come).0, &version(come, number))),
                    _ => drop(client.remove(&ours(come).0).unwrap()),
                }
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        /// Stops the threads, also when a check fails.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _over = Over(&over);
        scope.spawn(|| write(0));
        scope.spawn(|| write(1));
        let all = keys(COME.end);
        let began = Instant::now();
        let mut rounds = 0;
        while began.elapsed() < Duration::from_millis(1500) || client.stats().get.retries_torn == 0 {
            assert!(began.elapsed() < SOON, "no READ is torn: {:?}", client.stats());
            let numbers = |of: &[AtomicU64]| of.iter().map(|n| n.load(Ordering::SeqCst)).collect::<Vec<_>>();
            let oldest = numbers(&done);
            let found = client.get_many(&all).unwrap();
            let newest = numbers(&begun);
            for (n, found) in (0..).zip(found.into_iter().map(Result::unwrap)) {
                if n >= STAY {
                    found.map(|found| version_of(n, Some(found)));
                    continue;
                }
                let number = version_of(n, found);
                let may_be = oldest[n as usize]..=newest[n as usize];
                assert!(may_be.contains(&number), "key {n}: version {number}, not of {may_be:?}");
            }
            let n = rounds % STAY;
            let oldest = done[n as usize].load(Ordering::SeqCst);
            assert!(version_of(n, client.get(&ours(n).0).unwrap()) >= oldest);
            assert_eq!(client.get(&ours(1000 + n).0).unwrap(), None);
            rounds += 1;
        }
        println!("{rounds} rounds, {:?}", client.stats().get);
    });
    assert_eq!(client.stats().reattached, 0);
    fake.set("FAKE_REORDER_UNITS", 0);
    fake.set("FAKE_DELAY_READS", 0);
}

// ---- small devices ----------------------------------------------------------------------------------

/// Queues as short as possible. The client's work fits into them, even when all of it fails at
/// once.
fn tiny_devices(fake: &Fake) {
    for (setting, value) in [
        ("FAKE_MAX_RD_ATOMIC", 1),
        ("FAKE_MAX_QP_WR", 17),
        ("FAKE_MAX_QP_WR", 40),
        ("FAKE_MAX_CQE", 33),
        ("FAKE_MAX_CQE", 64),
        ("FAKE_MAX_SRQ_WR", 8),
    ] {
        let normal = [("FAKE_MAX_RD_ATOMIC", 16), ("FAKE_MAX_QP_WR", 16384), ("FAKE_MAX_CQE", 65536)];
        fake.set(setting, value);
        let server = serve(1024);
        let mut client = connect(&server);
        fill(&mut client, 200);
        for (nth, delay) in [(0, 0), (0, 5), (1, 5), (20, 5), (100, 0)] {
            fake.set("FAKE_DELAY_READS", delay);
            fake.set("FAKE_FAIL_NTH_READ", nth);
            check_all(&mut client, 200);
            fill(&mut client, 200);
        }
        for name in ["queue_full", "cq_overflows", "misuse"] {
            assert_eq!(fake.count(name), 0, "{name} with {setting}={value}");
        }
        for (setting, value) in normal.into_iter().chain([("FAKE_MAX_SRQ_WR", 16384)]) {
            fake.set(setting, value);
        }
    }
    // Too short for one READ and the messages.
    for (setting, value, normal) in [("FAKE_MAX_QP_WR", 16, 16384), ("FAKE_MAX_CQE", 32, 65536)] {
        let server = serve(128);
        fake.set(setting, value);
        let error = refused(server.address(), options());
        assert!(matches!(error, SetupError::Call { errno: 22, .. }), "{error}");
        fake.set(setting, normal);
    }
}

/// Each side keeps to what both devices can do: READs in flight, and the length of packets.
fn devices_that_differ(fake: &Fake) {
    let set = |reads: i64, mtu: i64| {
        fake.set("FAKE_MAX_RD_ATOMIC", reads);
        fake.set("FAKE_MTU", mtu);
    };
    for (of_the_server, of_the_client) in [((16, 4096), (1, 1024)), ((1, 1024), (16, 4096))] {
        set(of_the_server.0, of_the_server.1);
        let server = serve(1024);
        set(of_the_client.0, of_the_client.1);
        let mut client = connect(&server);
        fill(&mut client, 200);
        fake.set("FAKE_DELAY_READS", 3);
        check_all(&mut client, 200);
        fake.set("FAKE_DELAY_READS", 0);
        assert_eq!(client.stats().reattached, 0);
    }
}

/// A server admits as many clients as its queues have room for. The next one is told so.
fn servers_that_are_full(fake: &Fake) {
    // The room of each of the two workers.
    for (setting, value, room) in [("FAKE_MAX_CQE", 64, 4), ("FAKE_MAX_SRQ_WR", 31, 3)] {
        fake.set(setting, value);
        let server = serve(1024);
        // One that could not be taken in takes no room: the server's memory for its answers is
        // registered, that for its messages is not.
        fake.set("FAKE_REG_SPARED", 1);
        fake.set("FAKE_REG_ERRNO", 12);
        Client::connect_with(server.address(), options()).expect_err("no memory");
        fake.set("FAKE_REG_ERRNO", 0);
        let mut clients: Vec<_> = (0..2 * room).map(|_| connect(&server)).collect();
        fill(&mut clients[0], 100);
        for round in 0..3 {
            match refused(server.address(), options()) {
                SetupError::Refused { why, .. } => assert!(why.contains("as many clients as it can take")),
                error => panic!("{error}"),
            }
            // All clients at once, each with the most messages it may have.
            std::thread::scope(|scope| {
                for client in &mut clients {
                    scope.spawn(|| {
                        fill(client, 300);
                        check_all(client, 300);
                    });
                }
            });
            fake.check();
            clients.remove(round);
            let again = wait_for("room", || Client::connect_with(server.address(), options()).ok());
            clients.push(again);
        }
        fake.set("FAKE_MAX_CQE", 65536);
    }
}

// ---- nothing is left --------------------------------------------------------------------------------

/// A handshake may end in any way. Nothing is left of it on either side.
fn failed_handshakes(fake: &Fake) {
    let server = serve(128);
    let of_the_server: Vec<_> = ["qps", "mrs"].map(|kind| fake.count(&format!("live_{kind}"))).into();
    let mut stranger = options();
    for token in [Token::new("another"), Token::default()] {
        stranger.verbs.token = token;
        assert!(matches!(refused(server.address(), stranger.clone()), SetupError::Token { .. }));
    }
    let mut stayers = Vec::new();
    for garbage in [&b""[..], b"\xff\xff\xff\xff", b"\x02\0\0\0{}", b"\x10\0\0\0{\"version\":1"] {
        let mut stream = TcpStream::connect((place(&server).host(), place(&server).port())).unwrap();
        stream.write_all(garbage).unwrap();
        stayers.push(stream);
    }
    // The server welcomes a client that is gone before it reads the welcome.
    let library = told("ONEREAD_TEST_LIBRARY").unwrap();
    let address = relay(&server, move |_| Fake::load(&library).set("FAKE_REG_ERRNO", 14));
    let error = refused(&address, options());
    assert!(matches!(error, SetupError::Register { errno: 14, .. }), "{error}");
    fake.set("FAKE_REG_ERRNO", 0);
    wait_for("the server to notice", || (server.stats().clients == 0).then_some(()));
    let left: Vec<_> = ["qps", "mrs"].map(|kind| fake.count(&format!("live_{kind}"))).into();
    // One client's receives are kept for the next one.
    assert_eq!((left[0], left[1]), (of_the_server[0], of_the_server[1] + 1));
    let options = options().deadline(Duration::from_secs(10));
    let mut client = Client::connect_with(server.address(), options).unwrap();
    fill(&mut client, 30);
    // One client is dropped before its server, the other after it.
    let mut other = client.clone();
    check_all(&mut other, 30);
    drop(client);
    server.stop();
    let GetError::Connect(_) = other.get(&ours(1).0).expect_err("no server") else { panic!() };
}

/// A client that does not join is hung up on after some time, even if nothing else happens.
fn clients_that_never_join(_: &Fake) {
    let server = serve(128);
    let mut stream = TcpStream::connect((place(&server).host(), place(&server).port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let begun = Instant::now();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("the server hangs up");
    assert!(said.len() > 4, "its challenge");
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}: too early", begun.elapsed());
}

/// A client with the token of readers READs and asks, and changes nothing, whichever way requests
/// go. A server with a token for readers alone would let everybody change the table: it does not
/// start.
fn readers_change_nothing(_: &Fake) {
    let table = config(default_preset(), 2000, 16, 46, 7);
    let reading = Token::new("a token for readers");
    for options in ways() {
        let how = ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN));
        #[cfg(feature = "herd")]
        let how = how.herd(true);
        let server = Server::start(how.read_token(reading.clone())).unwrap();
        fill(&mut Client::connect_with(server.address(), options.clone()).unwrap(), 30);
        let verbs = options.verbs.clone().token(reading.clone());
        let mut reader = Client::connect_with(server.address(), options.verbs(verbs)).unwrap();
        check_all(&mut reader, 30);
        let (key, value) = ours(1);
        assert_eq!(reader.get_two_sided(&key).unwrap(), Some(value));
        for denied in [
            reader.put(&key, b"other").map(drop),
            reader.remove(&key).map(drop),
            reader.compare_and_swap(&key, b"", b"other").map(drop),
            reader.remove_many(&[&key]).map(drop),
            reader.put_many(&[(b"new", b"other"); 100]).map(drop),
        ] {
            assert!(matches!(denied, Err(MutateError::ReadOnly { .. })), "{denied:?}");
        }
        check_all(&mut reader, 30);
        assert_eq!(server.stats().inserts, 30);
    }
    for token in [Token::default(), reading.clone()] {
        let how = ServerConfig::new(at("127.0.0.1:0"), table).token(token).read_token(reading.clone());
        assert!(matches!(Server::start(how), Err(ServeError::ReadToken)));
    }
}

/// A host that has as many connections as one may have is told so.
fn each_host_has_a_limit(_: &Fake) {
    let how = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 128, 16, 46, 7));
    let server = Server::start(how.token(Token::new(TOKEN)).clients_per_peer(2)).unwrap();
    let clients = [connect(&server), connect(&server)];
    match refused(server.address(), options()) {
        SetupError::Refused { why, .. } => assert!(why.contains("this peer has 2 connections"), "{why}"),
        error => panic!("{error}"),
    }
    drop(clients);
    wait_for("room", || Client::connect_with(server.address(), options()).ok());
}

/// As many clients may be joining at the same time as one turn accepts. For one more the oldest gives way,
/// so that many who never join keep no client out.
fn clients_that_join_at_once(_: &Fake) {
    const JOINING_MAX: usize = 256;
    let server = serve(128);
    let join = || {
        let mut stream = TcpStream::connect((place(&server).host(), place(&server).port())).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert!(stream.read(&mut [0; 4]).unwrap() > 0, "it is challenged");
        stream
    };
    let mut all: Vec<_> = (0..JOINING_MAX + 1).map(|_| join()).collect();
    all[0].read_to_end(&mut Vec::new()).expect("the first is hung up on");
    fill(&mut connect(&server), 30);
}

/// The client rejects welcomes that were changed on the way, and accepts the same ones unchanged.
fn welcomes_that_are_changed(_: &Fake) {
    let server = serve(128);
    forged::forged_welcomes(place(&server));
    let address = forged::relay(place(&server), true, |welcome| welcome);
    let mut client = Client::connect_with(&address, options()).unwrap();
    fill(&mut client, 30);
    check_all(&mut client, 30);
}

/// The server checks what a client says of itself, and names what is wrong. A relay that does not
/// know the token can change nothing.
fn joins_that_are_changed(_: &Fake) {
    let server = serve(128);
    for (field, value, expected) in [
        ("version", "2", "it speaks version 2, the server 1"),
        ("mtu", "1000", "1000 bytes is no path MTU"),
        ("infiniband", "true", "being the server's"),
    ] {
        let change = move |join: String| forged::with_field(&join, field, value);
        let address = forged::forge(place(&server), true, change, |welcome| welcome);
        match refused(&address, options()) {
            SetupError::Refused { why, .. } => assert!(why.contains(expected), "{field}: {why}"),
            error => panic!("{field}: {error}"),
        }
    }
    let change = |join: String| forged::with_field(&join, "mtu", "256");
    let address = forged::forge(place(&server), false, change, |welcome| welcome);
    assert!(matches!(refused(&address, options()), SetupError::Token { .. }));
    assert_eq!(server.stats().clients, 0);
    fill(&mut connect(&server), 30);
}

/// After the handshake, a client says nothing more over TCP. One that does is hung up on.
fn clients_that_go_on_talking(_: &Fake) {
    let server = serve(128);
    let (sender, streams) = std::sync::mpsc::channel();
    let address = relay(&server, move |streams| {
        sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
    });
    let client = Client::connect_with(&address, options()).unwrap();
    let [_to_client, mut to_server] = streams.recv().unwrap();
    to_server.write_all(b"more").unwrap();
    wait_for("the server to hang up", || (server.stats().clients == 0).then_some(()));
    drop(client);
}

/// A client that finds a server with another token in its server's place does not try again until
/// its deadline: the next attempt would end in the same way.
fn errors_that_are_final(_: &Fake) {
    for pairs in [None, Some(1)] {
        let server = serve(128);
        let address = server.address().clone();
        let verbs = options().verbs.pairs(pairs);
        let mut client = Client::connect_with(&address, options().verbs(verbs)).unwrap();
        fill(&mut client, 30);
        server.stop();
        let table = config(default_preset(), 128, 16, 46, 7);
        let _other = Server::start(ServerConfig::new(address, table).token(Token::new("another"))).unwrap();
        let began = Instant::now();
        let is_token = |error: &ConnectError| matches!(error, ConnectError::Verbs(SetupError::Token { .. }));
        let error = client.get(&ours(1).0).unwrap_err();
        assert!(matches!(&error, GetError::Connect(error) if is_token(error)), "{error}");
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
        let error = client.put(b"key", b"value").unwrap_err();
        assert!(matches!(&error, MutateError::Connect(error) if is_token(error)), "{error}");
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    }
}

/// A client may hang up at any time, even when its message has just arrived and the server has not
/// looked yet. The receive that the message took is posted again for the next client.
fn hanging_up_while_asking(fake: &Fake) {
    let server = serve(128);
    for n in 0..200 {
        let (sender, streams) = std::sync::mpsc::channel();
        let address = relay(&server, move |streams| {
            sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
        });
        let verbs = options().verbs.wait(if n % 2 == 0 { Wait::Poll } else { Wait::Block });
        let deadline = Duration::from_secs(10);
        let mut client = Client::connect_with(&address, options().verbs(verbs).deadline(deadline)).unwrap();
        let [to_client, to_server] = streams.recv().unwrap();
        let began = Instant::now();
        let put = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                to_client.shutdown(Shutdown::Both).unwrap();
            });
            to_server.shutdown(Shutdown::Both).unwrap();
            // There is usually no answer any more, unless the server was very quick.
            client.put(b"key", b"value")
        });
        // A client that noticed before it asked tries the relay, which is gone, until its deadline.
        let is_late = matches!(put, Err(MutateError::Connect(_)));
        assert!(is_late || began.elapsed() < deadline, "the client notices before its deadline");
        fake.check();
    }
    let mut client = connect(&server);
    fill(&mut client, 60);
    check_all(&mut client, 60);
}

/// A callback that panics leaves READs in flight. They are not taken for the answers to the next
/// requests.
fn a_callback_that_panics(fake: &Fake) {
    std::panic::set_hook(Box::new(|_| {}));
    let server = serve(1024);
    let mut client = connect(&server);
    fill(&mut client, 200);
    for delay in [0, 200] {
        fake.set("FAKE_DELAY_READS", delay);
        for answers in [0u32, 1, 20] {
            let mut left = answers;
            let panics = |n: usize, found: BatchAnswer<'_>| {
                assert_eq!(found, Ok(Some(&ours(n as u32).1[..])));
                left = left.checked_sub(1).expect("that is enough");
                ControlFlow::<()>::Continue(())
            };
            catch_unwind(AssertUnwindSafe(|| client.get_many_with(&keys(200), panics))).expect_err("a panic");
            // Keys that the last batch did not ask for.
            for n in (0..200).rev().step_by(9) {
                assert_eq!(client.get(&ours(n).0).unwrap(), Some(ours(n).1), "key {n}");
            }
            check_all(&mut client, 200);
        }
    }
    // A client that is dropped with READs in flight.
    let panics = |_: usize, _: BatchAnswer<'_>| -> ControlFlow<()> { panic!("at once") };
    catch_unwind(AssertUnwindSafe(|| client.get_many_with(&keys(200), panics))).expect_err("a panic");
    drop(client);
    fake.check();
}

// ---- what it costs ----------------------------------------------------------------------------------

/// The work that a batch gives the device, by the device's count and by the client's.
fn costs_of_a_batch(fake: &Fake) {
    const KEYS: u32 = 1000;
    let server = serve(20_000);
    for (wait, credits, doorbells, completions) in [
        // 15 times 64 READs and 40 more. One completion in 16 is signalled, and the last of each
        // doorbell.
        (Wait::Poll, 64, 16, 15 * 4 + 3),
        (Wait::Block, 64, 16, 15 * 4 + 3),
        (Wait::Poll, 7, 143, 143),
        (Wait::Poll, 1, 1000, 1000),
    ] {
        let mut options = with_credits(credits);
        options.verbs.wait = wait;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        fill(&mut client, KEYS);
        // The server's SENDs may not have completed yet.
        std::thread::sleep(Duration::from_millis(20));
        let before = client.queue_counts().unwrap();
        fake.set("counts", 0);
        for (n, found) in client.get_many(&keys(KEYS)).unwrap().into_iter().enumerate() {
            assert_eq!(found, Ok(Some(ours(n as u32).1)));
        }
        let counted = ["doorbells", "reads", "completions", "wrs"].map(|name| fake.count(name));
        assert_eq!(
            counted,
            [doorbells, KEYS.into(), completions, KEYS.into()],
            "{wait:?}, {credits} credits"
        );
        let after = client.queue_counts().unwrap();
        let asked = [
            after.doorbells - before.doorbells,
            after.reads - before.reads,
            after.completions - before.completions,
        ];
        assert_eq!(asked.map(|n| n as i64), [doorbells, KEYS.into(), completions]);
        assert_eq!(after.messages, before.messages, "the server is not asked");
        let read = client.stats().read;
        assert_eq!((read.reads as i64, read.doorbells as i64), (KEYS.into(), doorbells));
    }
}

// ---- messages ---------------------------------------------------------------------------------------

/// The answer to a message may come before the completion of the message itself. No client waits
/// for an answer that it already has, and none overwrites a message that the device may still be
/// sending.
fn answers_that_come_first(fake: &Fake) {
    const KEYS: u32 = 2000;
    let server = serve(20_000);
    for wait in [Wait::Poll, Wait::Block] {
        let mut options = options();
        options.verbs.wait = wait;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        for polls in [1, 10, 1000, 100_000] {
            fake.set("FAKE_DELAY_SENDS", polls);
            let before = client.queue_counts().unwrap().messages;
            fill(&mut client, KEYS);
            let messages = client.queue_counts().unwrap().messages - before;
            assert!(messages > 16, "{messages} messages: more than may be under way");
            for n in 0..20 {
                client.put(&ours(n).0, &ours(n).1).unwrap();
            }
            fake.set("FAKE_DELAY_SENDS", 0);
        }
        check_all(&mut client, KEYS);
        assert_eq!(client.stats().reattached, 0);
    }
}

/// The length of a message; the length of the longest reply, its head included; how many of these
/// fit into one message.
const MESSAGE: usize = 4096;
const REPLY: usize = 16 + size_of::<oneread::ServerStats>();
const FRAMES: usize = MESSAGE / REPLY;

/// A message holds as many requests as have room for their longest replies in one message.
fn answers_that_fit_into_a_message(_: &Fake) {
    let frames = FRAMES;
    let server = serve(2000);
    let mut client = connect(&server);
    for (pairs, messages) in [(1, 1), (frames, 1), (frames + 1, 2), (3 * frames, 3), (3 * frames + 1, 4)] {
        let pairs: Vec<_> = (0..pairs as u32).map(|n| (key(n, 16), b"value")).collect();
        let counts =
            |client: &mut Client| [client.queue_counts().unwrap().messages, client.stats().requests.message];
        let [messages_before, requests_before] = counts(&mut client);
        assert!(client.put_many(&pairs).unwrap().iter().all(Result::is_ok));
        let [messages_after, requests_after] = counts(&mut client);
        assert_eq!(messages_after - messages_before, messages, "{} pairs", pairs.len());
        assert_eq!(requests_after - requests_before, pairs.len() as u64);
    }
}

/// A client believes that messages are longer than they are. The server hangs up on it when an
/// answer does not fit, or when the message itself does not. Nobody else is affected.
fn answers_that_do_not_fit(fake: &Fake) {
    // A refusal takes 48 bytes, a put of such a pair 20.
    const PAIRS: usize = MESSAGE / 48;
    let server = serve(64);
    let pairs = |n: usize| (0..n as u16).map(|n| (n.to_le_bytes(), [])).collect::<Vec<_>>();
    // A key in each slot. Some keys find no place any more before that.
    let mut others = (0u32..).map(|n| [&b"full"[..], &n.to_le_bytes()].concat());
    while server.index().len() < server.index().geometry().main_slots() {
        let _ = server.index().put(&others.next().expect("one more"), b"", PutMode::Upsert);
    }
    for (key, value) in pairs(MESSAGE / 20 + 1) {
        let refused = server.index().put(&key, &value, PutMode::Upsert);
        assert!(matches!(refused, Err(PutError::Full { .. })), "{refused:?}");
    }
    let mut other = connect(&server);
    for (asked, fits) in [(PAIRS, true), (PAIRS + 1, false), (MESSAGE / 20, false), (MESSAGE / 20 + 1, false)]
    {
        let address = forged::relay(place(&server), true, move |welcome| {
            forged::with_field(&welcome, "message_bytes", &(asked * REPLY).to_string())
        });
        let mut client = Client::connect_with(&address, options()).unwrap();
        match client.put_many(&pairs(asked)) {
            Ok(answers) if fits => {
                assert!(answers.iter().all(|answer| matches!(answer, Err(PutError::Full { .. }))));
            }
            Err(MutateError::ServerGone { .. }) if !fits => {}
            answer => panic!("{asked} puts in one message: {answer:?}"),
        }
        assert_eq!(client.queue_counts().unwrap().messages, 1, "{asked} puts");
        drop(client);
        wait_for("the server to notice", || (server.stats().clients == 1).then_some(()));
        for (key, _) in pairs(10) {
            assert_eq!(other.get_two_sided(&key).unwrap(), None);
        }
        fake.check();
    }
}

/// A client may have eight messages unanswered. The server hangs up on one that sends more. The
/// receives that its messages took are posted again, whether its messages came before that or
/// after.
fn messages_beyond_the_bound(fake: &Fake) {
    const BOUND: usize = 8;
    let one = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 4000, 16, 46, 7)).workers(1);
    let server = Server::start(one.token(Token::new(TOKEN))).unwrap();
    // Each client asks for so many messages while the server sees none of them. As many are sent
    // as `sent` says, and not one more.
    let ask = |clients: &mut [&mut Client], messages: usize, sent: usize| {
        let pairs: Vec<_> = (0..(messages * FRAMES) as u32).map(ours).collect();
        let before = fake.count("sends");
        fake.set("FAKE_HOLD_SHARED", 1);
        std::thread::scope(|scope| {
            let asked: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    let pairs = &pairs;
                    scope.spawn(move || {
                        client.put_many(pairs).map(|answers| answers.iter().all(Result::is_ok))
                    })
                })
                .collect();
            let sent_so_far = || fake.count("sends") - before;
            let is_sent = || (sent_so_far() >= sent as i64 || fake.count("rnr_waits") > 0).then_some(());
            wait_for("the messages", is_sent);
            // A client that could send another one would poll a few times before that.
            let polls = fake.count("polls");
            wait_for("clients that wait", || (fake.count("polls") > polls + 1000).then_some(()));
            let sent_now = sent_so_far();
            fake.set("FAKE_HOLD_SHARED", 0);
            assert_eq!((sent_now, fake.count("rnr_waits")), (sent as i64, 0));
            asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let mut one = connect(&server);
    let is_all_right = |answers: &[Result<bool, _>]| answers.iter().all(|answer| matches!(answer, Ok(true)));
    assert!(is_all_right(&ask(&mut [&mut one], BOUND + 1, BOUND)));
    let mut other = connect(&server);
    // (A batch has room for 14 messages.)
    for messages in [BOUND + 1, 14] {
        let address = forged::relay(place(&server), true, move |welcome| {
            forged::with_field(&welcome, "messages", &messages.to_string())
        });
        let mut greedy = Client::connect_with(&address, options()).unwrap();
        let answers = ask(&mut [&mut greedy], messages, messages);
        assert!(matches!(answers[..], [Err(MutateError::ServerGone { .. })]), "{messages}: {answers:?}");
        drop(greedy);
        wait_for("it to be gone", || (server.stats().clients == 2).then_some(()));
        // There are as many receives as three clients may have messages.
        let mut third = connect(&server);
        let answers = ask(&mut [&mut one, &mut other, &mut third], BOUND, 3 * BOUND);
        assert!(is_all_right(&answers), "{answers:?}");
        fake.check();
        drop(third);
        wait_for("it to be gone", || (server.stats().clients == 2).then_some(()));
    }
}

/// A server may answer and hang up at once, when it stops. A client that finds both has its answer.
fn answers_before_the_hang_up(fake: &Fake) {
    let server = serve(128);
    let verbs = options().verbs.wait(Wait::Block);
    for n in 0..20 {
        let (sender, streams) = std::sync::mpsc::channel();
        let address = relay(&server, move |streams| {
            sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
        });
        let mut client = Client::connect_with(&address, options().verbs(verbs.clone())).unwrap();
        let [mut to_client, _to_server] = streams.recv().unwrap();
        fake.set("FAKE_HANG_UP", to_client.as_raw_fd().into());
        assert_eq!(client.put(&ours(n).0, b"value").unwrap(), PutOutcome::Inserted);
        assert_eq!(to_client.read(&mut [0]).unwrap(), 0, "the connection is shut down");
        drop(client);
    }
}

/// All of the server's slots for answers wait for the completions of their SENDs. An answer that
/// finds none is sent when the first of them has come.
fn answers_that_wait_for_a_slot(fake: &Fake) {
    let polling = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
    let server = Server::start(polling.wait(Wait::Poll).token(Token::new(TOKEN))).unwrap();
    // This client arms its queue, which ends the delay on its side only.
    let verbs = options().verbs.wait(Wait::Block);
    let mut client = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
    fake.set("FAKE_DELAY_SENDS", 100_000);
    for n in 0..30 {
        client.put(&ours(n).0, &ours(n).1).unwrap();
    }
    fake.set("FAKE_DELAY_SENDS", 0);
    assert_eq!(client.stats().reattached, 0);
}

/// A completion that comes just before a queue is armed raises no event. Neither side sleeps over
/// it: the client until its deadline, a worker for a second each time.
fn completions_without_an_event(fake: &Fake) {
    let server = serve(2000);
    let verbs = options().verbs.wait(Wait::Block);
    let mut client = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
    fake.set("FAKE_LATE_RECEIVES", 1);
    let began = Instant::now();
    for n in 0..5 * SOON.as_secs() as u32 {
        client.put(&ours(n).0, &ours(n).1).unwrap();
        assert!(began.elapsed() < SOON, "{n} puts");
    }
    fake.set("FAKE_LATE_RECEIVES", 0);
    assert_eq!(client.stats().reattached, 0);
}

/// A queue pair that has failed may still take a receive from the queue that it shares with others.
/// No receive is lost, however many clients come and go.
fn receives_that_come_back_late(fake: &Fake) {
    for wait in [Wait::Block, Wait::Poll] {
        let table = config(default_preset(), 2000, 16, 46, 7);
        let at = at("127.0.0.1:0");
        let one = ServerConfig::new(at, table).workers(1).wait(wait);
        let server = Server::start(one.token(Token::new(TOKEN))).unwrap();
        fake.set("FAKE_LATE_FLUSH", 50);
        let before = fake.count("flushes");
        for n in 0..40 {
            let mut client = connect(&server);
            client.put(&ours(n).0, &ours(n).1).unwrap();
        }
        // The server learns of it by the device's event, or after some time.
        wait_for("all to be gone", || (server.stats().clients == 0).then_some(()));
        let flushed = fake.count("flushes") - before;
        assert!(flushed >= 40, "{wait:?}: each of them took a receive along: {flushed}");
        fake.set("FAKE_LATE_FLUSH", 0);
        let mut client = connect(&server);
        fill(&mut client, 1000);
        check_all(&mut client, 1000);
        drop(client);
        wait_for("the last to be gone", || (server.stats().clients == 0).then_some(()));
    }
}

/// A client that leaves has messages that its worker has not polled yet, more than one poll brings.
/// All of their receives come back. While they are out, a newcomer has receives of its own.
fn receives_of_clients_that_leave(fake: &Fake) {
    const BOUND: usize = 8;
    const STAYING: usize = 4;
    // For so long a worker waits until the device says which receive was the last.
    const EVENT_WITHIN: Duration = Duration::from_millis(100);
    let pairs: Vec<_> = (0..(BOUND * FRAMES) as u32).map(ours).collect();
    let put = |client: &mut Client| client.put_many(&pairs).map(|all| all.iter().all(Result::is_ok));
    let wait_for_messages = |clients: usize, before: i64| {
        let are_sent = || fake.count("sends") - before >= (clients * BOUND) as i64;
        wait_for("the messages", || (are_sent() || fake.count("rnr_waits") > 0).then_some(()));
    };
    // Returns whether the device was quick enough.
    let leave = |with_newcomer: bool| {
        let table = config(default_preset(), 4000, 16, 46, 7);
        let one = ServerConfig::new(at("127.0.0.1:0"), table).workers(1).wait(Wait::Block);
        let server = Server::start(one.token(Token::new(TOKEN))).unwrap();
        let mut staying: Vec<_> = (0..STAYING).map(|_| connect(&server)).collect();
        let (sender, streams) = std::sync::mpsc::channel();
        let address = relay(&server, move |streams| {
            sender.send(streams.map(|stream| stream.try_clone().unwrap())).unwrap();
        });
        let mut leaver = Client::connect_with(&address, options()).unwrap();
        let [to_client, to_server] = streams.recv().unwrap();
        let (sends, failures) = (fake.count("sends"), fake.count("failures"));
        fake.set("FAKE_HOLD_SHARED", 1);
        let (waits, took, answers) = std::thread::scope(|scope| {
            let mut asked: Vec<_> =
                staying.iter_mut().map(|client| scope.spawn(move || put(client))).collect();
            wait_for_messages(STAYING, sends);
            let left = scope.spawn(move || put(&mut leaver));
            wait_for_messages(STAYING + 1, sends);
            let began = Instant::now();
            to_server.shutdown(Shutdown::Both).unwrap();
            wait_for("the server", || (fake.count("failures") > failures).then_some(()));
            if with_newcomer {
                let mut newcomer = connect(&server);
                asked.push(scope.spawn(move || put(&mut newcomer)));
                wait_for_messages(STAYING + 2, sends);
            }
            let waits = fake.count("rnr_waits");
            fake.set("FAKE_HOLD_SHARED", -1);
            let took = began.elapsed();
            to_client.shutdown(Shutdown::Both).unwrap();
            left.join().unwrap().expect_err("it has left");
            (waits, took, asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>())
        });
        if took >= EVENT_WITHIN {
            // The worker did not wait for the receives.
            fake.set("counts", 0);
            return false;
        }
        assert!(answers.iter().all(|answer| matches!(answer, Ok(true))), "{answers:?}");
        assert_eq!(waits, 0, "the newcomer's messages find receives");
        wait_for("all to be gone", || (server.stats().clients == STAYING as u64).then_some(()));
        let mut fifth = connect(&server);
        let sends = fake.count("sends");
        fake.set("FAKE_HOLD_SHARED", 1);
        let (waits, answers) = std::thread::scope(|scope| {
            let all = staying.iter_mut().chain([&mut fifth]);
            let asked: Vec<_> = all.map(|client| scope.spawn(move || put(client))).collect();
            wait_for_messages(STAYING + 1, sends);
            let waits = fake.count("rnr_waits");
            fake.set("FAKE_HOLD_SHARED", 0);
            (waits, asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>())
        });
        assert!(answers.iter().all(|answer| matches!(answer, Ok(true))), "{answers:?}");
        assert_eq!(waits, 0, "all receives have come back");
        fake.check();
        true
    };
    for with_newcomer in [false, true] {
        wait_for("a device that is quick enough", || leave(with_newcomer).then_some(()));
    }
}

/// The server gives each client of HERD a protection domain of its own: its queue pair, which may WRITE,
/// reaches no other client's requests. (A client has one, too.)
#[cfg(feature = "herd")]
fn herd_areas_are_apart(fake: &Fake) {
    let table = config(default_preset(), 2000, 16, 46, 7);
    let herd = ServerConfig::new(at("127.0.0.1:0"), table).herd(true);
    let server = Server::start(herd.token(Token::new(TOKEN))).unwrap();
    let mut options = options();
    options.requests = RequestPath::HERD;
    let before = fake.count("live_pds");
    let mut clients: Vec<_> =
        (0..3).map(|_| Client::connect_with(server.address(), options.clone()).unwrap()).collect();
    fill(&mut clients[2], 30);
    check_all(&mut clients[0], 30);
    assert_eq!(fake.count("live_pds") - before, 6);
    drop(clients);
    wait_for("their domains to go", || (fake.count("live_pds") == before).then_some(()));
}

/// HERD's WRITEs go over UC if both sides have it, else over RC. Lost requests are repeated.
#[cfg(feature = "herd")]
fn herd_over_uc_and_rc(fake: &Fake) {
    const KEYS: u32 = 300;
    for (server_lacks_uc, client_lacks_uc) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        fake.set("FAKE_NO_UC", server_lacks_uc);
        let table = config(default_preset(), 2000, 16, 46, 7);
        let herd = ServerConfig::new(at("127.0.0.1:0"), table).herd(true);
        let server = Server::start(herd.token(Token::new(TOKEN))).unwrap();
        fake.set("FAKE_NO_UC", client_lacks_uc);
        let mut options = options();
        options.requests = RequestPath::HERD;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        fill(&mut client, KEYS);
        // From here on, the n-th WRITE or datagram is lost. RC loses none.
        for lost in 1..=8i64 {
            fake.set("FAKE_DROP_NTH", lost);
            for n in 0..8 {
                let (key, value) = ours(KEYS + 8 * lost as u32 + n);
                assert_eq!(
                    client.insert(&key, &value).unwrap(),
                    PutOutcome::Inserted,
                    "once, though asked twice"
                );
                assert_eq!(client.get_two_sided(&key).unwrap(), Some(value));
            }
        }
        fake.set("FAKE_DROP_NTH", 0);
        let repeats = client.queue_counts().unwrap().repeats;
        assert!(repeats >= 8, "{repeats} repeats for 8 that were lost");
        check_all(&mut client, KEYS);
        assert_eq!(client.stats().reattached, 0);
    }
}

/// The server answers twice, or executes twice what was asked once. Only that connection is given
/// up.
fn duplicate_answers(fake: &Fake) {
    let server = serve(2000);
    let mut client = connect(&server);
    let mut given_up = 0;
    // A message arrives twice, or its answer does.
    for nth in 1..=8 {
        fake.set("FAKE_TWICE_NTH", nth);
        for n in 0..20 {
            let (key, value) = ours(n);
            match client.put(&key, &value) {
                Ok(_) => {}
                Err(MutateError::ServerGone { source, .. }) => {
                    assert!(source.to_string().contains("nothing that was asked"), "{source}");
                    given_up += 1;
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(client.get(&key).unwrap(), Some(value), "key {n}");
        }
        fake.set("FAKE_TWICE_NTH", 0);
        fill(&mut client, 500);
        check_all(&mut client, 500);
    }
    assert!((1..=8).contains(&given_up), "{given_up} times given up");
}

/// Options of clients for each way to ask: by messages or HERD's way, over queue pairs of their own
/// or shared ones.
fn ways() -> impl Iterator<Item = ClientOptions> {
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
fn serve_ways(place: Address, table: Config) -> Server {
    let config = ServerConfig::new(place, table).token(Token::new(TOKEN));
    #[cfg(feature = "herd")]
    let config = config.herd(true);
    Server::start(config).unwrap()
}

/// A reply with another number is not taken for the expected one. The server may misnumber it, or
/// the request may have arrived under another number. By messages, only that connection is given
/// up. HERD's requests are repeated.
fn misnumbered_answers(fake: &Fake) {
    let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
    for options in ways() {
        let is_herd = options.requests != RequestPath::Message;
        let mut client = Client::connect_with(server.address(), options).unwrap();
        client.put(b"there", b"value").unwrap();
        for batch in [1u32, 2, 300] {
            for nth in [1, 2] {
                // The first SEND is the request, if the request is a SEND. The second is its reply.
                fake.set("FAKE_RENUMBER_NTH", nth);
                let pairs: Vec<_> = (0..batch).map(ours).collect();
                match client.put_many(&pairs) {
                    Ok(answers) => {
                        assert!(is_herd, "an answer to something else");
                        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
                    }
                    Err(MutateError::ServerGone { source, .. }) if !is_herd => {
                        let LinkError::Verbs(VerbsError::Wire(error)) = source else { panic!("{source}") };
                        assert!(matches!(error, WireError::Order { .. }), "{error}");
                    }
                    Err(error) => panic!("{error:?}"),
                }
                fake.set("FAKE_RENUMBER_NTH", 0);
                assert_eq!(client.get_two_sided(b"there").unwrap().as_deref(), Some(&b"value"[..]));
                assert_eq!(client.get_two_sided(b"not there").unwrap(), None);
            }
        }
        if is_herd {
            // (A batch of one has one SEND.)
            #[cfg(feature = "herd")]
            assert!(client.queue_counts().unwrap().repeats >= 5, "{:?}", client.queue_counts());
        }
    }
}

/// Batches have an outcome for each key, and may end early. Values are swapped.
fn batches_with_outcomes(_: &Fake) {
    for options in ways() {
        let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
        batches_and_swaps(&mut Client::connect_with(server.address(), options).unwrap());
    }
}

/// Values that clients encrypt: the same as on shm. A READ that fails in a batch changes no answer.
#[cfg(feature = "encryption")]
fn values_are_encrypted(fake: &Fake) {
    for options in ways() {
        let table =
            config(default_preset(), 2000, 16, encrypted::STORED_MAX, 7).grace(Duration::from_millis(500));
        let server = serve_ways(at("127.0.0.1:0"), table);
        let connect = |encryption| {
            Client::connect_with(server.address(), options.clone().encryption(encryption)).unwrap()
        };
        encrypted::encrypted_values(&connect);
        let mut client = connect(Some(encrypted::ours()));
        batches_and_swaps(&mut client);
        fill(&mut client, 200);
        fake.set("FAKE_FAIL_STATUS", 12);
        fake.set("FAKE_FAIL_NTH_READ", 100);
        check_all(&mut client, 200);
        assert_eq!(client.stats().failures.undecrypted, 0);
    }
}

/// Some pairs of a batch are wrong. Each answer belongs to its own pair.
fn bad_pairs_in_a_batch(_: &Fake) {
    for options in ways() {
        let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
        bad_pairs_in_batches(&mut Client::connect_with(server.address(), options).unwrap());
    }
}

/// Answers may be longer than their requests. No message asks for more answers than one message
/// holds.
fn full_tables_in_a_batch(_: &Fake) {
    for options in ways() {
        let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 64, 16, 46, 7));
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let pairs: Vec<_> = (0..3000u16).map(|n| (n.to_le_bytes(), b"")).collect();
        let answers = client.put_many(&pairs).unwrap();
        let mut there = 0;
        for ((key, _), answer) in pairs.iter().zip(answers) {
            let found = client.get_two_sided(key).unwrap().is_some();
            match answer {
                Ok(PutOutcome::Inserted) => assert!(found, "{key:?}"),
                Err(PutError::Full { .. }) => assert!(!found, "{key:?}"),
                other => panic!("{key:?}: {other:?}"),
            }
            there += u64::from(found);
        }
        assert!(there >= 32 && there == server.index().len(), "{there} keys");
        assert_eq!(client.stats().reattached, 0);
    }
}

/// A client applies the limits of the present server, not those of the one before, in both
/// directions.
fn limits_are_those_of_the_present_server(_: &Fake) {
    for options in ways() {
        lengths_of_the_next_server(&options, |address, table| {
            let address = address.cloned().unwrap_or_else(|| at("127.0.0.1:0"));
            serve_ways(address, table.grace(Duration::from_millis(500)))
        });
    }
}

/// Late answers to changes still arrive, several of them one after the other. None is taken for the
/// answer to the next request, and the connection stays good.
fn late_answers(_: &Fake) {
    for options in ways() {
        let table = config(default_preset(), 64, 16, 46, 7);
        let server = serve_ways(at("127.0.0.1:0"), table.grace(Duration::from_millis(50)));
        let hasty = options.clone().deadline(Duration::from_millis(20));
        let connect = || Client::connect_with(server.address(), hasty.clone()).ok();
        let mut client = wait_for("a connection within 20 ms", connect);
        server.index().put(b"there", b"value", PutMode::Upsert).unwrap();
        let (mut late, mut oldest, mut next) = (0, 0, 0);
        let began = Instant::now();
        while late < 4 {
            assert!(began.elapsed() < SOON, "{options:?}: {late} were late");
            // Where keys come and go, slots wait until traces are removed. A put that needs such a
            // slot waits, too.
            for (n, is_late) in (next..).zip((0..).map(|n| n % 2 == 1)).take(12) {
                match client.put(&ours(n).0, &ours(n).1) {
                    Ok(_) => {}
                    Err(MutateError::Full { .. }) => {}
                    // By messages, a connection's requests are answered in order. After a late
                    // answer, the next ones are late, too.
                    Err(MutateError::Deadline { .. }) => late += 1,
                    Err(error) => panic!("{options:?}: {error}"),
                }
                let (key, value) =
                    if is_late { (&b"there"[..], Some(&b"value"[..])) } else { (&b"not"[..], None) };
                match client.get_two_sided(key) {
                    Ok(found) => assert_eq!(found.as_deref(), value, "{options:?}"),
                    Err(GetError::Deadline { .. }) => late += 1,
                    Err(error) => panic!("{options:?}: {error}"),
                }
            }
            next += 12;
            while server.index().len() > 50 {
                server.index().remove(&ours(oldest).0).unwrap();
                oldest += 1;
            }
        }
        // (Puts that are still under way are executed before this one.)
        wait_for("an answer in time", || client.put(b"there", b"last").ok());
        let found = wait_for("an answer in time", || client.get_two_sided(b"there").ok());
        assert_eq!(found.as_deref(), Some(&b"last"[..]), "{options:?}");
        assert_eq!(client.stats().reattached, 0, "{options:?}");
    }
}

/// A batch that ends in an error leaves READs in flight. The client waits for them, since the
/// connection is good. Their data is not taken for the answers to the next requests.
fn reads_left_in_flight(fake: &Fake) {
    for pairs in [None, Some(1)] {
        // No pass is ever fast enough to prove that a key is absent. A slot of one line proves
        // itself.
        let table = config(default_preset(), 1024, 16, 32, 7);
        let server = serve_ways(at("127.0.0.1:0"), table.grace(Duration::from_nanos(1)));
        let verbs = options().verbs.pairs(pairs).credits(64);
        let limits = options().limits.retries_max(3);
        let mut client =
            Client::connect_with(server.address(), options().verbs(verbs).limits(limits)).unwrap();
        let pairs: Vec<_> = (0..100).map(|n| (key(n, 16), value(u64::from(n), 32))).collect();
        client
            .put_many(&pairs)
            .unwrap()
            .into_iter()
            .for_each(|answer| assert_eq!(answer, Ok(PutOutcome::Inserted)));
        for delay in [0, 200] {
            fake.set("FAKE_DELAY_READS", delay);
            for _ in 0..3 {
                let absent: Vec<_> = (1_000..1_100).map(|n| key(n, 16)).collect();
                match client.get_many_with(&absent, unanswered) {
                    Err(GetError::Contended { retries: 3, last: Retry::Late }) => {}
                    other => panic!("{other:?}"),
                }
                for (key, value) in &pairs {
                    assert_eq!(client.get(key).unwrap().as_ref(), Some(value));
                }
            }
        }
        assert_eq!(client.stats().reattached, 0);
        fake.set("FAKE_DELAY_READS", 0);
    }
}

/// A handle reads over the pair with the fewest readers. Dropped handles do not count: the next
/// handle gets their place, and no further connection is made.
fn free_places_are_used_again(fake: &Fake) {
    let server = serve(1024);
    let verbs = options().verbs.pairs(3);
    let mut first = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
    fill(&mut first, 50);
    let before = fake.count("live_qps");
    for _ in 0..5 {
        check_all(&mut first.clone(), 50);
        // One end of the pair is the server's.
        assert_eq!(fake.count("live_qps"), before + 2, "one pair more, each time the same");
    }
    let mut others: Vec<_> = (0..5).map(|_| first.clone()).collect();
    for (other, pairs) in others.iter_mut().zip([1, 2, 2, 2, 2]) {
        check_all(other, 50);
        assert_eq!(fake.count("live_qps"), before + 2 * pairs);
        assert_eq!(other.stats().reattached, 0);
    }
}

/// While a server is away, each call looks for it until its deadline. When another server is at its
/// place, the handles find it, and each reconnects once.
fn a_server_that_is_away(_: &Fake) {
    for options in ways().filter(|way| way.requests == RequestPath::Message && way.verbs.wait == Wait::Poll) {
        let table = config(default_preset(), 1024, 16, 46, 7).grace(Duration::from_millis(500));
        let server = serve_ways(at("127.0.0.1:0"), table);
        let address = server.address().clone();
        let brief = options.clone().deadline(Duration::from_millis(300));
        let connect = || Client::connect_with(&address, brief.clone()).ok();
        let mut client = wait_for("a connection within 300 ms", connect);
        wait_for("a put", || client.put(b"key", b"one").ok());
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"one"[..]));
        let before = client.stats().reattached;
        server.stop();
        assert!(matches!(client.get(b"key"), Err(GetError::Connect(_))), "{options:?}");
        match client.put(b"key", b"two") {
            Err(MutateError::ServerGone { .. } | MutateError::Connect(_) | MutateError::Deadline { .. }) => {}
            other => panic!("{options:?}: {other:?}"),
        }
        let server = serve_ways(address.clone(), table);
        assert_eq!(wait_for("a GET", || client.get(b"key").ok()), None, "another table, {options:?}");
        wait_for("a put", || client.put(b"key", b"three").ok());
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"three"[..]));
        assert_eq!(client.stats().reattached - before, 1, "{options:?}");
        server.stop();
    }
}

/// The counts of handles that share a pair add up to the device's count, whichever handle did the
/// work for the others. All their changes go over one connection, which stays.
fn costs_over_a_shared_pair(fake: &Fake) {
    for wait in [Wait::Poll, Wait::Block] {
        let server = serve(2000);
        let verbs = options().verbs.pairs(1).wait(wait);
        let one = Client::connect_with(server.address(), options().verbs(verbs)).unwrap();
        let mut clients = [one.clone(), one];
        fill(&mut clients[0], 200);
        check_all(&mut clients[1], 200);
        let device = || ["reads", "doorbells"].map(|name| fake.count(name));
        let asked = |clients: &[Client; 2]| {
            let counts = clients.each_ref().map(|client| client.queue_counts().unwrap());
            let sum = |of: fn(&oneread::verbs::QueueCounts) -> u64| counts.iter().map(of).sum::<u64>() as i64;
            [sum(|counts| counts.reads), sum(|counts| counts.doorbells), sum(|counts| counts.messages)]
        };
        let (before, asked_before) = (device(), asked(&clients));
        for client in &mut clients {
            check_all(client, 200);
        }
        let (after, asked_after) = (device(), asked(&clients));
        let [reads, doorbells, messages] = [0, 1, 2].map(|n| asked_after[n] - asked_before[n]);
        assert_eq!([reads, doorbells], [0, 1].map(|n| after[n] - before[n]), "{wait:?}");
        assert!(reads >= 2 * (200 + 29 + 1) && doorbells < reads && messages == 0, "{reads}, {doorbells}");
        let pairs = fake.count("live_qps");
        for n in 0..20 {
            clients[n % 2].put(b"key", b"value").unwrap();
            assert_eq!(fake.count("live_qps"), pairs, "the connection for changes is kept");
        }
        assert_eq!(asked(&clients)[2] - asked_after[2], 20);
    }
}

/// When a client that used HERD's way is gone, the workers free its place, even if others stay.
/// Nothing of it is left on the server's side.
#[cfg(feature = "herd")]
fn herd_clients_that_leave(fake: &Fake) {
    let server = serve_ways(at("127.0.0.1:0"), config(default_preset(), 2000, 16, 46, 7));
    let herd = options().requests(RequestPath::HERD);
    let mut stays = Client::connect_with(server.address(), herd.clone()).unwrap();
    let ask = |client: &mut Client| {
        client.put(b"key", b"value").unwrap();
        assert_eq!(client.get_two_sided(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    };
    let kinds = ["live_qps", "live_ahs"];
    ask(&mut stays);
    let before = kinds.map(|kind| fake.count(kind));
    for _ in 0..5 {
        let mut goes = Client::connect_with(server.address(), herd.clone()).unwrap();
        ask(&mut goes);
        assert!(kinds.map(|kind| fake.count(kind)).into_iter().zip(before).all(|(now, then)| now > then));
        drop(goes);
        wait_for("its place to be given up", || (kinds.map(|kind| fake.count(kind)) == before).then_some(()));
        ask(&mut stays);
    }
}

/// Serves requests HERD's way, by so many workers.
#[cfg(feature = "herd")]
fn serve_herd(workers: usize) -> (Server, ClientOptions) {
    let table = config(default_preset(), 4000, 16, 46, 7);
    let herd = ServerConfig::new(at("127.0.0.1:0"), table).herd(true).workers(workers);
    (Server::start(herd.token(Token::new(TOKEN))).unwrap(), options().requests(RequestPath::HERD))
}

/// Q4: requests for one key are done in their order, also when the first of them is lost and comes again
/// later. Those for other keys do not wait.
#[cfg(feature = "herd")]
fn herd_keeps_the_order_of_a_key(fake: &Fake) {
    let (server, herd) = serve_herd(1);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    let mut repeats = 0;
    for lost in 1..=5 {
        let one = ours(lost).0;
        let (values, other) = ([b"first", b"again", b"third"], key(1_000 + lost, 16));
        let pairs: Vec<(&[u8], &[u8])> =
            vec![(&one, values[0]), (&one, values[1]), (&other, values[0]), (&one, values[2])];
        // A WRITE of these, or a reply.
        fake.set("FAKE_DROP_NTH", lost.into());
        let answers: Vec<_> = client.put_many(&pairs).unwrap().into_iter().map(Result::unwrap).collect();
        fake.set("FAKE_DROP_NTH", 0);
        let (inserted, updated) = (PutOutcome::Inserted, PutOutcome::Updated);
        assert_eq!(answers, [inserted, updated, inserted, updated], "message {lost} was lost");
        assert_eq!(client.get(&one).unwrap().as_deref(), Some(&values[2][..]), "message {lost} was lost");
        // It is there once, for the first of these.
        fake.set("FAKE_DROP_NTH", lost.into());
        let answers: Vec<_> = client.remove_many(&[&one, &other, &one]).unwrap();
        fake.set("FAKE_DROP_NTH", 0);
        let there: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(there, [true, true, false], "message {lost} was lost");
        let before = std::mem::replace(&mut repeats, client.queue_counts().unwrap().repeats);
        assert!(repeats > before, "message {lost} came again");
    }
}

#[cfg(feature = "herd")]
fn less_by_one(text: &str, field: &str) -> String {
    forged::with_field(text, field, &(forged::number_in(text, field) - 1).to_string())
}

/// The client checks the place that a server has for its requests before it WRITEs there.
#[cfg(feature = "herd")]
fn herd_welcomes_that_are_changed(_: &Fake) {
    let (server, herd) = serve_herd(2);
    // What is changed stands behind the rest of the welcome.
    type WelcomeChange = fn(&str) -> String;
    let relay = |change: WelcomeChange| {
        forged::relay(place(&server), true, move |welcome| {
            let at = welcome.find("\"extension\":").expect("an extension");
            format!("{}{}", &welcome[..at], change(&welcome[at..]))
        })
    };
    let changes: [(WelcomeChange, &str); 5] = [
        (|text| forged::with_field(text, "workers", "[]"), "too small a place"),
        (|text| forged::with_field(text, "workers", "[5,6,7]"), "too small a place"),
        (|text| less_by_one(text, "bytes"), "too small a place"),
        (|text| less_by_one(text, "cell_bytes"), "too small a place"),
        (|text| forged::with_field(text, "mtu", "1000"), "MTU is none"),
    ];
    for (n, (change, expected)) in changes.into_iter().enumerate() {
        let error = refused(&relay(change), herd.clone());
        let is_refused = matches!(&error, SetupError::Extension { why, .. } if why.contains(expected));
        assert!(is_refused, "{n}: {error}");
    }
    let mut client = Client::connect_with(&relay(str::to_owned), herd.clone()).unwrap();
    fill(&mut client, 30);
    check_all(&mut client, 30);
}

/// Q5: a datagram of a queue pair that is no worker's is no reply, whatever it says.
#[cfg(feature = "herd")]
fn datagrams_of_strangers(fake: &Fake) {
    let (server, herd) = serve_herd(2);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    fill(&mut client, 30);
    let strays = fake.count("strays");
    // More of them than there are receives.
    for n in 0..30 {
        let (key, value) = ours(n);
        fake.set("FAKE_STRAY_NTH", 1);
        assert_eq!(client.get_two_sided(&key).unwrap(), Some(value), "{n}");
    }
    assert_eq!(fake.count("strays") - strays, 30);
    assert_eq!(client.stats().reattached, 0);
}

/// The replies of a worker complete late: it sends no more than its queue has room for, and those of a
/// client that leaves complete before its address is given up.
#[cfg(feature = "herd")]
fn herd_replies_that_complete_late(fake: &Fake) {
    const REPLIES: u32 = 128;
    let (server, herd) = serve_herd(1);
    let mut stays = Client::connect_with(server.address(), herd.clone()).unwrap();
    fake.set("FAKE_DELAY_SENDS", 300);
    let ahs = fake.count("live_ahs");
    for round in 1..=3 {
        let mut leaves = Client::connect_with(server.address(), herd.clone()).unwrap();
        fill(&mut leaves, 3 * REPLIES + 7);
        drop(leaves);
        wait_for("its place to be given up", || (fake.count("live_ahs") == ahs).then_some(()));
        assert_eq!((fake.count("misuse"), fake.count("queue_full")), (0, 0), "round {round}");
        fill(&mut stays, REPLIES + 1);
    }
    fake.set("FAKE_DELAY_SENDS", 0);
    assert_eq!(stays.stats().reattached, 0);
}

/// A WRITE has arrived, but it is not known to be over. Its cell is not written until it is: not by the
/// next request, and not by the same one, whose reply was lost.
#[cfg(feature = "herd")]
fn herd_cells_that_are_being_sent(fake: &Fake) {
    let (server, herd) = serve_herd(1);
    let mut client = Client::connect_with(server.address(), herd).unwrap();
    fill(&mut client, 30);
    let (before, drops) = (client.queue_counts().unwrap().repeats, fake.count("drops"));
    // The WRITE is the first message, the reply the second. It is repeated after 10 ms.
    fake.set("FAKE_DELAY_SENDS", i32::MAX.into());
    fake.set("FAKE_DROP_NTH", 2);
    let found = std::thread::scope(|scope| {
        let got = scope.spawn(|| client.get_two_sided(&ours(0).0));
        wait_for("the reply to be lost", || (fake.count("drops") > drops).then_some(()));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!got.is_finished());
        // The worker, which had one reply to send, and the client learn of it now.
        fake.set("FAKE_DELAY_SENDS", 0);
        got.join().unwrap()
    });
    assert_eq!(found.unwrap(), Some(ours(0).1));
    assert!(client.queue_counts().unwrap().repeats > before);
    // Of a batch, as many requests are under way as there are cells, whether they are answered or not.
    const CELLS: u64 = 4;
    let before = server.index().counts().inserts;
    let done = || server.index().counts().inserts - before;
    fake.set("FAKE_DELAY_SENDS", i32::MAX.into());
    let answers = std::thread::scope(|scope| {
        let pairs: Vec<_> = (100..120).map(ours).collect();
        let client = &mut client;
        let put = scope.spawn(move || client.put_many(&pairs));
        wait_for("the first requests", || (done() >= CELLS).then_some(()));
        std::thread::sleep(Duration::from_millis(100));
        let now = done();
        fake.set("FAKE_DELAY_SENDS", 0);
        assert_eq!(now, CELLS);
        put.join().unwrap()
    });
    answers.unwrap().into_iter().for_each(|answer| assert_eq!(answer, Ok(PutOutcome::Inserted)));
}

/// A message whose answer waits for a slot is unanswered, too: a client may have eight of these, and is hung
/// up on if it sends more. The server keeps no answers without end.
fn answers_beyond_the_bound(fake: &Fake) {
    const BOUND: u32 = 8;
    let polling = ServerConfig::new(at("127.0.0.1:0"), config(default_preset(), 4000, 16, 46, 7)).workers(1);
    let server = Server::start(polling.wait(Wait::Poll).token(Token::new(TOKEN))).unwrap();
    let mut next = 0;
    for messages in [BOUND, BOUND + 1, 14] {
        let address = forged::relay(place(&server), true, move |welcome| {
            forged::with_field(&welcome, "messages", &messages.to_string())
        });
        // This client arms its queue, which ends the delay on its side only.
        let verbs = options().verbs.wait(Wait::Block);
        let hasty = options().verbs(verbs).deadline(Duration::from_millis(50));
        let mut client =
            wait_for("a connection within 50 ms", || Client::connect_with(&address, hasty.clone()).ok());
        wait_for("those before to be gone", || (server.stats().clients == 1).then_some(()));
        let before = server.index().counts().inserts;
        let done = || server.index().counts().inserts - before;
        fake.set("FAKE_DELAY_SENDS", i32::MAX.into());
        // Asks for something more. Returns how many messages have been sent.
        let mut put = || {
            next += 1;
            let answer = client.put(&ours(next).0, &ours(next).1);
            (answer, client.queue_counts().unwrap().messages)
        };
        // The answers to the first eight take all slots, and those to the others wait for one.
        let mut sent = 0;
        while sent < 2 * u64::from(BOUND) {
            let (answer, now) = put();
            let may_come = now <= BOUND.into() && answer.is_ok();
            assert!(may_come || matches!(answer, Err(MutateError::Deadline { .. })), "{now}: {answer:?}");
            wait_for("the put", || (done() == now).then_some(()));
            sent = now;
        }
        let is_greedy = messages > BOUND;
        if is_greedy {
            wait_for("one message more", || (put().1 > sent).then_some(()));
        } else {
            let (answer, now) = put();
            assert!(matches!(answer, Err(MutateError::Deadline { .. })) && now == sent, "{answer:?}");
        }
        if is_greedy {
            let is_over = || server.stats().clients == 0 || done() > 2 * u64::from(BOUND);
            wait_for("the server to hang up", || is_over().then_some(()));
        }
        assert_eq!((server.stats().clients, done()), (u64::from(!is_greedy), 2 * u64::from(BOUND)));
        fake.set("FAKE_DELAY_SENDS", 0);
        if !is_greedy {
            wait_for("an answer", || put().0.ok());
            assert_eq!(client.stats().reattached, 0);
        }
    }
    fill(&mut connect(&server), 300);
}

// ---- chunks -----------------------------------------------------------------------------------------

/// A slot names memory of a chunk whose key the server never tells. The client asks for the key a number of
/// times, then for another connection, and then it gives up.
fn chunks_without_a_key(fake: &Fake) {
    /// The first chunk of the heap.
    const OF_HEAP: u64 = 192;
    /// A slot of a chunk is READ so often, and so many connections are lost.
    const ASKED: i64 = 101;
    const LOST: i64 = 9;
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(1024) };
    let table = config(default_preset(), 0, 16, 300_000, 7).size(size).inline_max(40).heap_bytes(16 << 20);
    let config = ServerConfig::new(at("127.0.0.1:0"), table.grace(CALM)).token(Token::new(TOKEN));
    let server = Server::start(config).unwrap();
    let (index, region) = (server.index(), server.index().region());
    index.put(&key(0, 16), &value(0, 1_000), PutMode::Insert).unwrap();
    let words = index.geometry().shape().bytes() / 8;
    // READs of one connection: the entry and the keys that it needs, and of the heap a window before.
    for (chunk, reads) in [(0, 1 + ASKED), (OF_HEAP, 1 + 1 + 1 + ASKED)] {
        let slot = SlotIx(index.geometry().directory_slots() + chunk);
        let first = index.geometry().slot_offset(slot) as usize / 8;
        let told: Vec<u64> = (first..first + words).map(|word| region.load(word)).collect();
        for options in both_paths(64) {
            let is_shared = options.verbs.pairs.is_some();
            let mut client = Client::connect_with(server.address(), options).unwrap();
            let tell =
                |words: &[u64]| (first..).zip(words).for_each(|(word, bits)| region.store(word, *bits));
            tell(&vec![0; words]);
            let before = fake.count("reads");
            let asked = || fake.count("reads") - before;
            let answer = std::thread::scope(|scope| {
                let gets = scope.spawn(|| client.get(&key(0, 16)));
                wait_for("an answer", || (gets.is_finished() || asked() > 2 * LOST * reads).then_some(()));
                let (is_finished, asked) = (gets.is_finished(), asked());
                tell(&told);
                assert!(is_finished, "chunk {chunk}: asked for {asked} times, and no end");
                gets.join().unwrap()
            });
            let Err(GetError::ServerGone { source: LinkError::Verbs(error), .. }) = answer else {
                panic!("chunk {chunk}: {answer:?}");
            };
            assert!(error.to_string().contains(&format!("chunk {chunk}, which has no key")), "{error}");
            // A connection that others may use, too, stays, and knows the key of the window's chunk.
            let known = if is_shared && chunk == OF_HEAP { LOST - 1 } else { 0 };
            assert_eq!(asked(), LOST * reads - known, "chunk {chunk}");
            assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 1_000)));
        }
    }
}

/// A client remembers where a table has grown to. The next server of the table has not registered that
/// memory: the table has shrunk. The client forgets what it remembered when it finds that server.
fn entries_of_the_server_before(_: &Fake) {
    /// So many segments take more than two chunks.
    const SEGMENTS: u64 = 32;
    const CHUNK: u64 = 16 << 20;
    const KEEP: u32 = 300;
    let folder = tempfile::tempdir().unwrap();
    let size = TableSize::Growing { bytes_max: 256 << 20, segment_slots: Some(1024) };
    let table = config(default_preset(), 0, 16, 1_000, 7).size(size).grace(Duration::from_millis(20));
    let serve = |address: Address| {
        let backing = Backing::File(folder.path().join("region"));
        let config = ServerConfig::new(address, table).backing(backing).start(StartMode::OpenOrCreate);
        Server::start(config.token(Token::new(TOKEN))).unwrap()
    };
    let mut server = serve(at("127.0.0.1:0"));
    let address = server.address().clone();
    for (round, options) in both_paths(64).into_iter().enumerate() {
        let index = server.index();
        let of = |n: u32| value(n.into(), 900);
        let mut last = 0;
        while index.growth().segments < SEGMENTS || index.growth().splitting > 0 {
            index.put(&key(last, 16), &of(last), PutMode::Upsert).unwrap();
            last += 1;
        }
        let bytes = index.geometry().slots() * index.geometry().shape().bytes() as u64;
        assert!(SEGMENTS * bytes > 2 * CHUNK, "{bytes} bytes each");
        let mut client = Client::connect_with(&address, options).unwrap();
        let check = |client: &mut Client| {
            for n in 0..KEEP {
                assert_eq!(client.get(&key(n, 16)).unwrap(), Some(of(n)), "round {round}: {n}");
            }
        };
        check(&mut client);
        (KEEP..last).for_each(|n| assert_eq!(index.remove(&key(n, 16)), Ok(true)));
        wait_for("the table to shrink", || {
            index.shrink();
            index.tidy();
            let growth = index.growth();
            (growth.segments == 1 && growth.merging == 0).then_some(())
        });
        server.stop();
        server = serve(address.clone());
        check(&mut client);
        assert_eq!(client.stats().reattached, 1, "round {round}");
    }
}

// ---- long values ------------------------------------------------------------------------------------

/// Time in which a READ is done, on a busy machine.
const CALM: Duration = Duration::from_millis(500);

/// Serves long values: number `n` has `lengths[n]` bytes.
fn serve_long(lengths: &[usize], grace: Duration) -> Server {
    let table =
        config(default_preset(), 256, 16, 300_000, 7).inline_max(40).heap_bytes(16 << 20).grace(grace);
    let server = Server::start(ServerConfig::new(at("127.0.0.1:0"), table).token(Token::new(TOKEN))).unwrap();
    for (n, &length) in (0..).zip(lengths) {
        server.index().put(&key(n, 16), &value(n.into(), length), PutMode::Insert).unwrap();
    }
    server
}

/// Options of clients without hints, one with a queue pair of its own, one with a shared one.
fn both_paths(credits: usize) -> [ClientOptions; 2] {
    [None, Some(1)].map(|pairs| options().hint_bytes(0).verbs(options().verbs.credits(credits).pairs(pairs)))
}

/// A long value is one more READ, of its bytes and no others. Of a device that carries less at a time, it is
/// several, with one doorbell as far as there are credits.
fn costs_of_long_values(fake: &Fake) {
    let lengths = [20, 100, 4_000, 65_536, 65_537, 299_999];
    let server = serve_long(&lengths, CALM);
    for (message_max, credits) in [(1 << 30, 64), (65_536, 64), (4096, 64), (65_536, 2), (4096, 1)] {
        fake.set("FAKE_MAX_MESSAGE", message_max);
        for options in both_paths(credits) {
            let mut client = Client::connect_with(server.address(), options).unwrap();
            let mut window = 0;
            for (n, &length) in (0..).zip(&lengths) {
                // The server's SENDs are far away: nobody has asked it for anything.
                fake.set("counts", 0);
                let (before, asked_before) = (client.stats().read, client.queue_counts().unwrap());
                assert_eq!(client.get(&key(n, 16)).unwrap(), Some(value(n.into(), length)), "{length}");
                let (after, asked) = (client.stats().read, client.queue_counts().unwrap());
                let counted = ["reads", "doorbells", "bytes"].map(|name| fake.count(name));
                if n == 0 {
                    assert_eq!((counted[0], counted[1]), (1, 1), "it is in its slot");
                    window = counted[2];
                    continue;
                }
                let pieces = (length as i64 + message_max - 1) / message_max;
                let doorbells = (pieces + credits as i64 - 1) / credits as i64;
                let bytes = window + length as i64;
                assert_eq!(counted, [1 + pieces, 1 + doorbells, bytes], "{length}, {message_max}, {credits}");
                assert_eq!((asked.reads - asked_before.reads) as i64, 1 + pieces);
                assert_eq!((after.reads - before.reads, after.bytes - before.bytes), (2, bytes as u64));
            }
            let keys: Vec<_> = (0..8).map(|n| key(n, 16)).collect();
            let before = client.stats().read;
            fake.set("counts", 0);
            for (n, found) in (0..).zip(client.get_many(&keys).unwrap()) {
                let expected = lengths.get(n as usize).map(|&length| value(n, length));
                assert_eq!(found.unwrap(), expected, "{n}");
            }
            assert_eq!(client.stats().reattached, 0);
            if (message_max, credits) == (1 << 30, 64) {
                // Windows, the values up to 256 KiB together, the longest alone.
                let after = client.stats().read;
                assert_eq!((fake.count("doorbells"), after.doorbells - before.doorbells), (3, 3));
                assert_eq!((fake.count("reads"), after.reads - before.reads), (8 + 5, 8 + 5));
            }
        }
    }
}

/// The READ of a long value, or a part of it, fails. The value is read again over a new connection.
fn long_values_that_fail(fake: &Fake) {
    fake.set("FAKE_MAX_MESSAGE", 65_536);
    let server = serve_long(&[300_000], CALM);
    for options in both_paths(3) {
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let mut failures = 0;
        for (nth, delay) in (1..=6).flat_map(|nth| [(nth, 0), (nth, 3)]) {
            fake.set("FAKE_DELAY_READS", delay);
            fake.set("FAKE_FAIL_NTH_READ", nth);
            assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 300_000)), "{nth}");
            failures += 1;
            assert_eq!(client.stats().reattached, failures, "READ {nth}");
        }
        fake.set("FAKE_DELAY_READS", 0);
    }
}

/// There is no memory for a long value to land in: the error names the limit, and all else goes on.
fn long_values_without_memory(fake: &Fake) {
    const ENOMEM: i32 = 12;
    let server = serve_long(&[20, 300_000, 1_000], CALM);
    for options in both_paths(64) {
        let mut client = Client::connect_with(server.address(), options).unwrap();
        let mut get = |n: u32| client.get(&key(n, 16));
        assert_eq!(get(2).unwrap(), Some(value(2, 1_000)));
        fake.set("FAKE_REG_ERRNO", ENOMEM.into());
        match get(1) {
            Err(GetError::Connect(ConnectError::Verbs(error))) => {
                assert!(
                    matches!(error, SetupError::Register { bytes: 524_288, errno: ENOMEM, .. }),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(get(0).unwrap(), Some(value(0, 20)));
        fake.set("FAKE_REG_ERRNO", 0);
        assert_eq!(get(2).unwrap(), Some(value(2, 1_000)));
        assert_eq!(get(1).unwrap(), Some(value(1, 300_000)));
        assert_eq!(client.stats().reattached, 0);
    }
}

/// READs take longer than a value is certain to be kept, and the value is replaced all the while: the error
/// has a name, and no answer is wrong.
fn long_values_that_are_replaced(fake: &Fake) {
    let server = serve_long(&[5_000], Duration::from_millis(20));
    // A value names its version.
    let of = |version: u64| {
        let value = value(version, 1_000 + version as usize % 7_000);
        [&version.to_le_bytes()[..], &value].concat()
    };
    for options in both_paths(64) {
        let limits = options.limits.retries_max(0);
        let mut client = Client::connect_with(server.address(), options.limits(limits)).unwrap();
        let stop = AtomicBool::new(false);
        server.index().put(&key(0, 16), &of(0), PutMode::Upsert).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in (1..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let put = server.index().put(&key(0, 16), &of(version), PutMode::Upsert);
                    assert!(matches!(put, Ok(_) | Err(PutError::HeapFull { .. })), "{put:?}");
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            let _stopping = Stop(&stop);
            // Two READs are to take longer than the grace time, and one of them less.
            let mut delay = 10_000;
            wait_for("a value that is replaced while it is read", || {
                fake.set("FAKE_DELAY_READS", delay);
                match client.get(&key(0, 16)) {
                    Err(GetError::Replaced { len, times }) => {
                        assert!((1_008..8_008).contains(&len) && times == 1, "{len}, {times}");
                        return Some(());
                    }
                    Ok(Some(found)) => {
                        let version = u64::from_le_bytes(found[..8].try_into().unwrap());
                        assert!(found == of(version), "no value that it had");
                        delay += 1 + delay / 4;
                    }
                    Err(GetError::Contended { .. }) => delay -= delay / 4,
                    other => panic!("{other:?}"),
                }
                None
            });
            fake.set("FAKE_DELAY_READS", 0);
        });
        assert!(client.stats().get.retries_replaced > 0);
        assert_eq!(server.index().put(&key(0, 16), b"short", PutMode::Update), Ok(PutOutcome::Updated));
        assert_eq!(client.get(&key(0, 16)).unwrap().as_deref(), Some(&b"short"[..]));
    }
}

/// In a table that grows, memory for long values is registered before they are put. Where it cannot be, the put
/// says so, and all else goes on.
fn heaps_that_may_not_be_registered(fake: &Fake) {
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(1024) };
    let table = config(default_preset(), 0, 16, 300_000, 7).size(size).inline_max(40).heap_bytes(16 << 20);
    let config = ServerConfig::new(at("127.0.0.1:0"), table.grace(CALM)).token(Token::new(TOKEN));
    let server = Server::start(config).unwrap();
    let mut clients = both_paths(64).map(|options| Client::connect_with(server.address(), options).unwrap());
    let put = |n: u32, length| server.index().put(&key(n, 16), &value(n.into(), length), PutMode::Insert);
    fake.set("FAKE_REG_ERRNO", 12);
    assert_eq!(put(0, 1_000), Err(PutError::HeapMemory { given: 1_000 }));
    assert_eq!(put(1, 20), Ok(PutOutcome::Inserted));
    fake.set("FAKE_REG_ERRNO", 0);
    assert_eq!(put(0, 1_000), Ok(PutOutcome::Inserted));
    for client in &mut clients {
        assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 1_000)));
        // The entry of the directory, the keys of both chunks, the window and the value.
        let reads = client.queue_counts().unwrap().reads;
        assert_eq!(client.get(&key(1, 16)).unwrap(), Some(value(1, 20)));
        assert_eq!(client.get(&key(0, 16)).unwrap(), Some(value(0, 1_000)));
        assert_eq!((reads, client.queue_counts().unwrap().reads), (5, 5 + 1 + 2), "keys are READ once");
        assert_eq!(client.stats().reattached, 0);
    }
}

/// Stops a thread, also when the code beside it panicked, because the scope waits for it.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
