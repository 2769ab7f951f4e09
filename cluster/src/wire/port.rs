//! The port at which a node takes connections.

use super::frame::{Follow, Question, Said, encode};
use super::handshake::{Identity, accept};
use super::{Frames, PING, SILENCE, WireError};
use crate::core::message::{Message, Peer, Request};
use crate::core::state::NodeId;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use oneread::internals::peer::{DescriptorShare, gives_way};
use rustc_hash::FxHashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Bytes of replies that wait for a client to read them. With more, it is hung up on.
pub(super) const UNREAD_MAX: usize = 4 << 20;
/// Bytes of replies that wait for all clients together. With more, the client for which most bytes wait is hung up on.
const ALL_UNREAD_MAX: usize = 256 << 20;

/// The time between two warnings about refusals of one kind, and the most kinds in that time.
const REFUSAL_TOLD_EVERY: Duration = Duration::from_secs(60);
const REFUSALS_MAX: usize = 256;

/// Something that has arrived.
#[derive(Debug)]
pub enum Arrived {
    /// Messages of a node.
    Messages(NodeId, Vec<Message>),
    /// Requests of a client.
    Requests(Peer, Vec<Request>),
    /// A question of a client or an operator.
    Asked(Peer, Question),
    /// A question for changes of a client, whose connection has this version.
    Follows(Peer, Follow, u32),
}

#[derive(Debug)]
struct Outlet {
    frames: mpsc::UnboundedSender<Bytes>,
    unread: Arc<UnreadBytes>,
    /// Dropped with the outlet: then the connection ends, whatever it waits for.
    _alive: oneshot::Sender<()>,
}

/// Bytes that wait for a client to read them. Relaxed, all of it: only sums are communicated.
#[derive(Debug)]
struct UnreadBytes {
    own: AtomicUsize,
    /// The bytes that wait for all clients.
    all: Arc<AtomicUsize>,
}

impl UnreadBytes {
    fn none(all: &Arc<AtomicUsize>) -> Arc<UnreadBytes> {
        Arc::new(UnreadBytes { own: AtomicUsize::new(0), all: Arc::clone(all) })
    }

    /// Adds waiting bytes. Returns how many waited before, for this client and for all.
    fn add(&self, bytes: usize) -> (usize, usize) {
        let add = |to: &AtomicUsize| to.fetch_add(bytes, Ordering::Relaxed);
        (add(&self.own), add(&self.all))
    }

    /// Subtracts bytes that were written, or that nobody waits for any more.
    fn take(&self, bytes: usize) {
        let less = |own: usize| Some(own.saturating_sub(bytes));
        let before = self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let (Ok(before) | Err(before)) = before;
        self.all.fetch_sub(before.min(bytes), Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.take(usize::MAX);
    }
}

/// The way back to the clients. Each connection has a number, from 1 on, which is never used again.
#[derive(Clone, Debug)]
pub struct Replies {
    outlets: Arc<Mutex<FxHashMap<u64, Outlet>>>,
    /// Bytes that wait for all clients, and the bound.
    unread: Arc<AtomicUsize>,
    unread_max: usize,
}

impl Replies {
    fn new(unread_max: usize) -> Replies {
        Replies { outlets: Arc::default(), unread: Arc::default(), unread_max }
    }

    /// Sends something to a client, if it is still there. Never waits. A client that does not read is hung up on.
    pub fn send(&self, to: Peer, said: &Said) {
        let Ok(frame) = encode(said) else { return };
        let mut outlets = self.outlets();
        let Some(outlet) = outlets.get(&to.0) else { return };
        let (own, all) = outlet.unread.add(frame.len());
        if own > UNREAD_MAX || outlet.frames.send(frame).is_err() {
            // Its task notices that.
            outlets.remove(&to.0);
        } else if all > self.unread_max {
            self.end_worst(&mut outlets);
        }
    }

    /// Hangs up on the client for which most bytes wait.
    fn end_worst(&self, outlets: &mut FxHashMap<u64, Outlet>) {
        let worst = outlets.iter().max_by_key(|(_, outlet)| outlet.unread.get()).map(|(peer, _)| *peer);
        let Some(outlet) = worst.and_then(|peer| outlets.remove(&peer)) else { return };
        let (unread, max) = (outlet.unread.get(), self.unread_max);
        tracing::warn!(
            unread,
            max,
            "a client is hung up on: it reads less than others, and all together read too little"
        );
        // Its bytes do not count any more, so no other client is hung up on in its place.
        outlet.unread.take(usize::MAX);
    }

    /// Bytes that wait for a client to read them. `None`: the client is gone.
    #[cfg(test)]
    pub(super) fn unread(&self, to: Peer) -> Option<usize> {
        self.outlets().get(&to.0).map(|outlet| outlet.unread.get())
    }

    fn add(&self, peer: u64, outlet: Outlet) {
        self.outlets().insert(peer, outlet);
    }

    fn remove(&self, peer: u64) {
        self.outlets().remove(&peer);
    }

    fn outlets(&self) -> MutexGuard<'_, FxHashMap<u64, Outlet>> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that has not yet proven that it knows the secret: its host, its start, its task.
type Stranger = (IpAddr, Instant, AbortHandle);

/// Connections of strangers, by their numbers.
#[derive(Clone, Debug, Default)]
struct Strangers(Arc<Mutex<FxHashMap<u64, Stranger>>>);

impl Strangers {
    fn all(&self) -> MutexGuard<'_, FxHashMap<u64, Stranger>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.all().len()
    }

    /// Hangs up on a stranger, to make room for another connection. Returns whether there was one.
    fn make_way(&self) -> bool {
        let mut all = self.all();
        let gone = gives_way(all.iter().map(|(&peer, &(host, since, _))| (peer, host, since)));
        let gone = gone.and_then(|peer| all.remove(&peer));
        gone.is_some_and(|(.., task)| {
            task.abort();
            true
        })
    }
}

/// Refusals that were logged: for each host and reason, when, and how many came since. A refused client tries again for
/// ever.
#[derive(Clone, Debug, Default)]
struct Refusals(Arc<Mutex<FxHashMap<Refusal, (Instant, u64)>>>);

/// The host, and the reason.
type Refusal = (IpAddr, &'static str);

impl Refusals {
    /// Whether to log this refusal. Returns how many of its kind were not logged since the last one.
    fn tells(&self, host: IpAddr, why: &'static str, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= REFUSAL_TOLD_EVERY;
        if let Some((at, since)) = told.get_mut(&(host, why)) {
            *since += 1;
            if !is_old(at) {
                return None;
            }
            *at = now;
            return Some(std::mem::take(since) - 1);
        }
        // Strangers from everywhere must not take memory for ever.
        told.retain(|_, (at, _)| !is_old(at));
        let has_room = told.len() < REFUSALS_MAX;
        if has_room {
            told.insert((host, why), (now, 0));
        }
        has_room.then_some(0)
    }
}

/// A connection that is served. Dropping this removes everything of it, even if its task is aborted.
#[derive(Debug)]
struct Served {
    peer: u64,
    strangers: Strangers,
    replies: Replies,
    refusals: Refusals,
    host: IpAddr,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.strangers.all().remove(&self.peer);
        self.replies.remove(self.peer);
    }
}

/// A node's port.
#[derive(Debug)]
pub struct NodePort {
    who: Identity,
    listeners: Vec<TcpListener>,
    replies: Replies,
    connections_max: usize,
    /// The most connections that have proven nothing yet. Other descriptors of the process are for the rest.
    pub(super) strangers_max: usize,
}

impl NodePort {
    /// Listens at these addresses: `host:port`. Port 0 is any free port.
    ///
    /// # Errors
    /// [`WireError::Listen`]; [`WireError::NoSecret`].
    pub async fn bind(
        addresses: &[String],
        who: Identity,
        connections_max: usize,
    ) -> Result<NodePort, WireError> {
        let mut listeners = Vec::new();
        for address in addresses {
            let failed = |why| WireError::Listen { address: address.clone(), why };
            let places: Vec<SocketAddr> = lookup_host(address).await.map_err(failed)?.collect();
            let Some(place) = places.first() else {
                return Err(failed(io::ErrorKind::AddrNotAvailable.into()));
            };
            if who.secret.is_empty() && places.iter().any(|place| !place.ip().is_loopback()) {
                return Err(WireError::NoSecret { address: address.clone() });
            }
            listeners.push(TcpListener::bind(place).await.map_err(failed)?);
        }
        let (replies, strangers_max) = (Replies::new(ALL_UNREAD_MAX), DescriptorShare::now(0, 1).strangers);
        Ok(NodePort { who, listeners, replies, connections_max, strangers_max })
    }

    /// The addresses at which it listens, with their ports.
    pub fn addresses(&self) -> Vec<String> {
        let at = self.listeners.iter().filter_map(|listener| listener.local_addr().ok());
        at.map(|at| at.to_string()).collect()
    }

    /// The way back to the clients.
    pub fn replies(&self) -> Replies {
        self.replies.clone()
    }

    /// Takes connections, and their contents, until the receiver is dropped. While the receiver takes nothing, nothing
    /// more is read.
    pub async fn run(self, arrivals: mpsc::Sender<Arrived>) {
        let (accepted, mut streams) = mpsc::channel(16);
        let (mut listening, strangers) = (JoinSet::new(), Strangers::default());
        for listener in self.listeners {
            let (accepted, strangers) = (accepted.clone(), strangers.clone());
            listening.spawn(async move {
                loop {
                    match listener.accept().await {
                        Ok(accepted_now) => {
                            if accepted.send(accepted_now).await.is_err() {
                                return;
                            }
                        }
                        // Out of descriptors, perhaps: a stranger's is the first to be free again.
                        Err(error) => {
                            strangers.make_way();
                            tracing::warn!(%error, "no connection can be taken");
                            sleep(Duration::from_millis(100)).await;
                        }
                    }
                }
            });
        }
        let (mut connections, mut last) = (JoinSet::new(), 0);
        let refusals = Refusals::default();
        loop {
            tokio::select! {
                stream = streams.recv() => {
                    let Some((stream, from)) = stream else { return };
                    // Connections that have ended do not count.
                    while connections.try_join_next().is_some() {}
                    if connections.len() >= self.connections_max && !strangers.make_way() {
                        tracing::warn!(max = self.connections_max, "a connection is refused: there are too many");
                        continue;
                    }
                    if strangers.count() >= self.strangers_max {
                        strangers.make_way();
                    }
                    last += 1;
                    let (who, arrivals) = (self.who.clone(), arrivals.clone());
                    let host = from.ip().to_canonical();
                    let served = Served {
                        peer: last,
                        strangers: strangers.clone(),
                        replies: self.replies.clone(),
                        refusals: refusals.clone(),
                        host,
                    };
                    // It becomes a stranger before it may stop being one.
                    let mut all = strangers.all();
                    let task = connections.spawn(async move {
                        if let Err(error) = serve(stream, &served, &who, &arrivals).await {
                            tracing::debug!(%error, peer = served.peer, "a connection has ended");
                        }
                    });
                    all.insert(last, (host, Instant::now(), task));
                }
                Some(_) = connections.join_next() => {}
                () = arrivals.closed() => return,
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    Served { peer, strangers, replies, refusals, host }: &Served,
    who: &Identity,
    arrivals: &mpsc::Sender<Arrived>,
) -> Result<(), WireError> {
    let peer = *peer;
    let (frames, node, version) = accept(stream, who).await.inspect_err(|error| {
        if matches!(error, WireError::Secret | WireError::OtherCluster { .. } | WireError::Version { .. })
            && let Some(before) = refusals.tells(*host, error.brief(), Instant::now())
        {
            tracing::warn!(%error, %host, before, "a connection is refused");
        }
    })?;
    strangers.all().remove(&peer);
    let (outlet, queue) = mpsc::unbounded_channel();
    let (alive, given_up) = oneshot::channel();
    let unread = UnreadBytes::none(&replies.unread);
    replies.add(peer, Outlet { frames: outlet, unread: unread.clone(), _alive: alive });
    let (mut writes, mut reads) = frames.split();
    tokio::select! {
        wrote = write(&mut writes, queue, &unread) => wrote,
        read = read(&mut reads, Peer(peer), (node, version), who, arrivals) => read,
        // The outlet was dropped: nobody sends over it any more.
        _ = given_up => Err(WireError::Unread(UNREAD_MAX)),
    }
}

type Writes = futures_util::stream::SplitSink<Frames, Bytes>;
type Reads = futures_util::stream::SplitStream<Frames>;

/// Writes replies, and signs of life.
async fn write(
    writes: &mut Writes,
    mut queue: mpsc::UnboundedReceiver<Bytes>,
    unread: &UnreadBytes,
) -> Result<(), WireError> {
    let ping = encode(&Said::Ping)?;
    loop {
        let (frame, counted) = tokio::select! {
            frame = queue.recv() => match frame {
                Some(frame) => (frame, true),
                None => return Err(WireError::Unread(UNREAD_MAX)),
            },
            () = sleep(PING) => (ping.clone(), false),
        };
        let bytes = if counted { frame.len() } else { 0 };
        // Other waiting bytes go with it, or wait for a client that does not read.
        let written = timeout(SILENCE, async {
            writes.feed(frame).await?;
            if queue.is_empty() { writes.flush().await } else { Ok(()) }
        });
        written.await.map_err(|_| WireError::Silent(SILENCE))??;
        unread.take(bytes);
    }
}

async fn read(
    reads: &mut Reads,
    peer: Peer,
    (node, version): (Option<NodeId>, u32),
    who: &Identity,
    arrivals: &mpsc::Sender<Arrived>,
) -> Result<(), WireError> {
    loop {
        let frame = match timeout(SILENCE, reads.next()).await {
            Ok(Some(frame)) => frame?,
            Ok(None) => return Ok(()),
            Err(_) => return Err(WireError::Silent(SILENCE)),
        };
        let arrived = match (who.bounds.decode(&frame)?, node) {
            (Said::Ping, _) => continue,
            (Said::Messages(messages), Some(node)) => Arrived::Messages(node, messages),
            (Said::Requests(requests), None) => Arrived::Requests(peer, requests),
            (Said::Ask(question), None) => Arrived::Asked(peer, question),
            (Said::Follow(follow), None) => Arrived::Follows(peer, follow, version),
            _ => return Err(WireError::Rubbish("it says what only another one may".into())),
        };
        if arrivals.send(arrived).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way back to a client that reads nothing.
    fn silent(replies: &Replies, peer: u64) -> mpsc::UnboundedReceiver<Bytes> {
        let (frames, queue) = mpsc::unbounded_channel();
        let (alive, _) = oneshot::channel();
        replies.add(peer, Outlet { frames, unread: UnreadBytes::none(&replies.unread), _alive: alive });
        queue
    }

    /// A connection that has just proven to know the secret gives way to another one: nothing of it is left.
    #[tokio::test]
    async fn who_gives_way_leaves_nothing() {
        let (strangers, replies) = (Strangers::default(), Replies::new(ALL_UNREAD_MAX));
        let (refusals, host) = (Refusals::default(), IpAddr::from([127, 0, 0, 1]));
        let served =
            Served { peer: 1, strangers: strangers.clone(), replies: replies.clone(), refusals, host };
        let _queue = silent(&replies, 1);
        let task = tokio::spawn(async move {
            let _served = served;
            std::future::pending::<()>().await;
        });
        let stranger = (host, Instant::now(), task.abort_handle());
        strangers.all().insert(1, stranger);
        assert!(strangers.make_way());
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!((replies.unread(Peer(1)), strangers.all().len()), (None, 0));
    }

    /// Of clients that all read too little together, the one goes for whom most waits, and nobody in its place. What
    /// waited for those who have gone is not counted.
    #[test]
    fn all_have_one_bound() {
        let len = encode(&Said::Ping).unwrap().len();
        let replies = Replies::new(5 * len);
        let _queues: Vec<_> = (1..=3).map(|peer| silent(&replies, peer)).collect();
        let send = |peer| replies.send(Peer(peer), &Said::Ping);
        let unread = || [1, 2, 3].map(|peer| replies.unread(Peer(peer)).map(|bytes| bytes / len));
        [1, 2, 2, 2, 3, 3].into_iter().for_each(send);
        assert_eq!(unread(), [Some(1), Some(3), Some(2)], "as much as may wait, and one more");
        send(1);
        assert_eq!(unread(), [Some(2), None, Some(2)]);
        [1, 3].into_iter().for_each(send);
        assert_eq!(unread(), [Some(3), None, Some(3)]);
        [1, 2, 3].into_iter().for_each(|peer| replies.remove(peer));
        assert_eq!(replies.unread.load(Ordering::Relaxed), 0);
    }

    /// Who is refused tries again at once, for ever. It is a line a minute, which says how many there were.
    #[test]
    fn refusals_are_told_once_a_minute() {
        let (refusals, begun) = (Refusals::default(), Instant::now());
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(refusals.tells(one, "another secret", begun), Some(0));
        assert!((0..1_000).all(|_| refusals.tells(one, "another secret", after(59)).is_none()));
        assert_eq!(refusals.tells(other, "another secret", after(59)), Some(0), "another host");
        assert_eq!(refusals.tells(one, "another cluster", after(59)), Some(0), "another reason");
        assert_eq!(refusals.tells(one, "another secret", after(60)), Some(1_000));
        assert_eq!(refusals.tells(one, "another secret", after(119)), None);
        // Strangers from everywhere are neither told of without end, nor remembered.
        let told = (0..=u16::MAX).filter(|host| {
            let host = IpAddr::from([10, 1, (host >> 8) as u8, *host as u8]);
            refusals.tells(host, "another secret", after(200)).is_some()
        });
        assert_eq!(told.count(), REFUSALS_MAX);
    }
}
