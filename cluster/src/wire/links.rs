//! A node's connections to other nodes. It sends over them, and receives only signs of life.

use super::connection::reach;
use super::frame::{Said, next, send_in_time, weight};
use super::handshake::Identity;
use super::{Frames, PING, SILENCE, WireError};
use crate::core::message::Message;
use crate::core::state::NodeId;
use futures_util::StreamExt;
use oneread::internals::tries::Backoff;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout};

/// Bytes that wait for a link. Further messages are dropped, and their senders repeat them later.
const WAITING_MAX: usize = 16 << 20;
/// Pauses between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time between two warnings about one link: that it is too slow, and that it is refused.
const TOLD_EVERY: Duration = Duration::from_secs(10);
const REFUSAL_TOLD_EVERY: Duration = Duration::from_secs(60);

/// The result of the last attempt to reach a node. `None`: none has ended yet.
type Reached = Arc<Mutex<Option<Result<(), &'static str>>>>;

fn reached(of: &Reached) -> MutexGuard<'_, Option<Result<(), &'static str>>> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Links to other nodes. Sending never waits.
#[derive(Debug)]
pub struct Links {
    who: Identity,
    runtime: Handle,
    links: FxHashMap<NodeId, Link>,
}

#[derive(Debug)]
struct Link {
    addresses: watch::Sender<Vec<String>>,
    messages: mpsc::UnboundedSender<Message>,
    waiting: Arc<AtomicUsize>,
    reached: Reached,
    /// How many messages were dropped, and when that was last logged.
    left_out: u64,
    told: Option<Instant>,
}

impl Links {
    /// Links to no node yet. Their tasks run on this runtime.
    pub fn new(who: Identity, runtime: Handle) -> Links {
        Links { who, runtime, links: FxHashMap::default() }
    }

    /// Sets a node's addresses.
    pub fn know(&mut self, node: NodeId, addresses: &[String]) {
        if let Some(link) = self.links.get(&node) {
            link.addresses.send_if_modified(|known| {
                let is_new = known[..] != *addresses;
                if is_new {
                    *known = addresses.to_vec();
                }
                is_new
            });
            return;
        }
        let (addresses, known) = watch::channel(addresses.to_vec());
        let (messages, queue) = mpsc::unbounded_channel();
        let (waiting, reached) = (Arc::new(AtomicUsize::new(0)), Reached::default());
        let ways = (queue, waiting.clone(), reached.clone());
        self.runtime.spawn(run(self.who.clone(), node, known, ways));
        self.links.insert(node, Link { addresses, messages, waiting, reached, left_out: 0, told: None });
    }

    /// Whether a node takes this one's hello, or why not. `None`: it was not tried yet, or the node is not known.
    pub fn takes_hello(&self, node: NodeId) -> Option<Result<(), &'static str>> {
        *reached(&self.links.get(&node)?.reached)
    }

    /// Sends a message to a node, unless the node is not known, or too much waits for it already.
    pub fn send(&mut self, to: NodeId, message: Message) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let bytes = weight(&message);
        let waiting = link.waiting.load(Ordering::Relaxed);
        // A longest value goes by itself.
        if waiting > 0 && waiting + bytes > WAITING_MAX.max(2 * self.who.bounds.frame_max) {
            link.left_out += 1;
            if link.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
                link.told = Some(Instant::now());
                tracing::warn!(node = %to, left_out = link.left_out, "a node takes less than is sent to it");
            }
            return;
        }
        link.waiting.fetch_add(bytes, Ordering::Relaxed);
        let _ = link.messages.send(message);
    }
}

/// Keeps one link, until [`Links`] are dropped.
async fn run(
    who: Identity,
    node: NodeId,
    mut known: watch::Receiver<Vec<String>>,
    (mut queue, waiting, last): (mpsc::UnboundedReceiver<Message>, Arc<AtomicUsize>, Reached),
) {
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    let mut refusal: Option<Instant> = None;
    loop {
        let addresses = known.borrow_and_update().clone();
        match reach(&addresses, &who, Some(node)).await {
            Ok((frames, _)) => {
                backoff.reset();
                *reached(&last) = Some(Ok(()));
                match pump(frames, &who, &mut queue, &waiting).await {
                    Ok(()) => return,
                    // A node with another secret hangs up after the proof.
                    Err(error) => {
                        *reached(&last) = Some(Err(error.brief()));
                        tracing::debug!(%node, %error, "a link has broken");
                    }
                }
            }
            Err(error) => {
                *reached(&last) = Some(Err(error.brief()));
                let is_refusal = matches!(
                    error,
                    WireError::Secret
                        | WireError::OtherCluster { .. }
                        | WireError::Version { .. }
                        | WireError::Refused(_)
                );
                if is_refusal && refusal.is_none_or(|told| told.elapsed() >= REFUSAL_TOLD_EVERY) {
                    refusal = Some(Instant::now());
                    tracing::warn!(%node, %error, "a node does not take this one's hello");
                } else {
                    tracing::debug!(%node, %error, "a node cannot be reached");
                }
            }
        }
        // Waiting messages are old by now: their senders repeat them.
        while let Ok(message) = queue.try_recv() {
            waiting.fetch_sub(weight(&message), Ordering::Relaxed);
        }
        if queue.is_closed() {
            return;
        }
        tokio::select! {
            () = sleep(backoff.peek()) => { backoff.take(); }
            changed = known.changed() => if changed.is_err() { return },
        }
    }
}

/// Sends waiting messages, several together. `Ok`: the links were dropped.
async fn pump(
    mut frames: Frames,
    who: &Identity,
    queue: &mut mpsc::UnboundedReceiver<Message>,
    waiting: &AtomicUsize,
) -> Result<(), WireError> {
    let mut heard = tokio::time::Instant::now();
    let mut spoke = heard;
    loop {
        let first = tokio::select! {
            first = queue.recv() => match first {
                Some(first) => Some(first),
                None => return Ok(()),
            },
            frame = next(&mut frames) => {
                frame?;
                heard = tokio::time::Instant::now();
                continue;
            }
            () = sleep_until(spoke + PING) => None,
        };
        spoke = tokio::time::Instant::now();
        let said = match first {
            None => Said::Ping,
            Some(first) => {
                let (mut bytes, mut messages) = (weight(&first), vec![first]);
                while bytes < who.bounds.enough()
                    && let Ok(message) = queue.try_recv()
                {
                    bytes += weight(&message);
                    messages.push(message);
                }
                waiting.fetch_sub(bytes, Ordering::Relaxed);
                Said::Messages(messages)
            }
        };
        send_in_time(&mut frames, &said).await?;
        // A busy link receives signs of life, too, but takes them only when it has time. So it looks for them before it
        // gives up.
        if heard.elapsed() > SILENCE {
            match timeout(Duration::from_millis(1), frames.next()).await {
                Ok(Some(Ok(_))) => heard = tokio::time::Instant::now(),
                Ok(_) => return Err(WireError::Ended),
                Err(_) => return Err(WireError::Silent(SILENCE)),
            }
        }
    }
}
