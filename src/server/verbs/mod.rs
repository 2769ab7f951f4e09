//! The server over verbs: a registered region, an acceptor (TCP) where clients join, and workers
//! that answer their messages. GETs involve none of these threads.
//!
//! Each worker has one completion queue and one shared receive queue for all its clients. A client
//! may have [`MESSAGES`](receives::MESSAGES) unanswered messages, and that number of receives is posted
//! for it when it joins. So every message finds a receive in the queue, however much other clients send.

mod acceptor;
mod chunks;
pub(crate) mod extension;
mod host;
mod receives;
mod session;
mod worker;

use crate::address::VerbsAddress;
use crate::index::start::{Start, StartProgress, StartStep};
use crate::layout::geometry::Geometry;
use crate::layout::superblock::SUPERBLOCK_WORDS;
use crate::server::end::Thread;
use crate::server::shared::ServerState;
use crate::verbs::Wait;
use crate::verbs::device::RegisteredRegion;
use crate::verbs::error::SetupError;
use crate::verbs::station::Station;
use crate::wire;
use crate::wire::proof::Token;
use acceptor::Acceptor;
use chunks::{RegisteredChunks, StartedChunks};
use extension::ServerExtension;
use host::VerbsServer;
use mio::net::TcpListener;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use worker::VerbsWorker;

/// Options of a verbs server.
pub(in crate::server) struct VerbsServing {
    pub token: Token,
    pub read_token: Token,
    pub wait: Wait,
    pub extension: Option<ServerExtension>,
    pub workers: usize,
    pub progress: Option<fn(StartProgress)>,
}

/// Registers the region, listens, and starts the acceptor and the workers. Returns the address with
/// the port that clients connect to. `all` receives the started threads, also after an error.
pub(in crate::server) fn start(
    shared: Arc<ServerState>,
    address: &VerbsAddress,
    how: VerbsServing,
    all: &mut Vec<Thread>,
) -> Result<VerbsAddress, SetupError> {
    let listen = |source: io::Error| SetupError::Listen {
        address: crate::verbs::host_and_port(address.host(), address.port()),
        source: Arc::new(source),
    };
    let mut places = (address.host(), address.port()).to_socket_addrs().map_err(listen)?;
    let place = places.next().ok_or_else(|| listen(io::Error::other("the name has no address")))?;
    let listener = TcpListener::bind(place).map_err(listen)?;
    let port = listener.local_addr().map_err(listen)?.port();

    let near = Some(place.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
    let station = Station::open(address.device(), near)?;
    tracing::info!(device = station.domain().context().name(), why = station.why(), "verbs");
    let geometry = shared.index.geometry();
    let message_bytes = message_bytes(geometry);
    let (region, chunks) = register(&station, &shared, how.progress)?;
    let (chunks, chunk_thread) = chunks.unzip();
    let superblock = (0..SUPERBLOCK_WORDS).map(|word| shared.index.region().load(word)).collect();
    let VerbsServing { token, read_token, wait, extension, workers, progress: _ } = how;
    let open = |extension: ServerExtension| (extension.open)(&shared, &station, workers);
    let (extension, extension_threads) = extension.map(open).transpose()?.unzip();
    let host = Arc::new(VerbsServer {
        shared,
        station,
        region,
        _chunks: chunks,
        superblock,
        token,
        read_token,
        message_bytes,
        wait,
        extension,
    });

    let threads =
        |e: io::Error| SetupError::Call { call: "starting threads", errno: e.raw_os_error().unwrap_or(0) };
    let mut inboxes = Vec::new();
    for number in 0..workers.max(1) {
        let (worker, inbox) = VerbsWorker::new(host.clone())?;
        let thread = std::thread::Builder::new()
            .name(format!("oneread-{number}"))
            .spawn(move || worker.run())
            .map_err(threads)?;
        all.push((Some(inbox.event_loop().clone()), thread));
        inboxes.push(inbox);
    }
    let (acceptor, event_loop) = Acceptor::new(host, listener, inboxes).map_err(threads)?;
    let thread = std::thread::Builder::new()
        .name("oneread-acceptor".into())
        .spawn(move || acceptor.run())
        .map_err(threads)?;
    all.push((Some(event_loop), thread));
    // These threads end with the last of the threads above: nobody asks them for anything any more.
    all.extend(chunk_thread.map(|thread| (None, thread)));
    all.extend(extension_threads.into_iter().flatten().map(|thread| (None, thread)));
    Ok(address.with_port(port))
}

/// Registers the region, or what is used of it if the table grows, and reports the progress.
fn register(
    station: &Arc<Station>,
    shared: &Arc<ServerState>,
    progress: Option<fn(StartProgress)>,
) -> Result<(RegisteredRegion, Option<StartedChunks>), SetupError> {
    let geometry = shared.index.geometry();
    let start = Start { tell: progress, ..Start::default() };
    let front = if geometry.grows() {
        geometry.slot_offset(geometry.segment_first(0))
    } else {
        shared.index.region().bytes()
    };
    let region =
        start.step(StartStep::Register, front, |done| chunks::register(station, shared, 0..front, done))?;
    if !geometry.grows() {
        return Ok((region, None));
    }
    let bytes = chunks::bytes_in_use(shared);
    let step = |done: &mut dyn FnMut(u64)| RegisteredChunks::start(station, shared, done);
    let chunks = start.step(StartStep::Register, bytes, step)?;
    Ok((region, Some(chunks)))
}

/// Size of a message: room for the largest request, the largest answer, and dozens of small ones.
fn message_bytes(geometry: &Geometry) -> usize {
    const USUAL: usize = 4096;
    wire::request_bytes_max(geometry).max(wire::reply_bytes_max(geometry)).max(USUAL)
}
