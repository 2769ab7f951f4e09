//! Requests to nodes, and following etcd: a runtime on a thread of its own, for all handles of a client.

use super::{ClusterError, ClusterOptions, Shared};
use crate::core::etcd::{EtcdAnswer, EtcdCall};
use crate::core::message::{Kind, Reply, Request};
use crate::core::state::{ClusterConfig, NodeId};
use crate::etcd::{ClusterName, EtcdError, EtcdOptions, EtcdStore};
use crate::wire::{Bounds, Identity, NodeConnection, Question, Said};
use oneread::internals::breaking;
use oneread::internals::tries::Backoff;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Weak, mpsc as std_mpsc};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// The pause between two attempts to read etcd.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Time between two checks whether the connecting thread still wants to wait.
const LOOK: Duration = Duration::from_millis(50);
/// The longest time for a node to answer a question.
const ASK: Duration = Duration::from_secs(2);

/// The end of a copy of a request.
#[derive(Debug)]
pub enum Ended {
    /// It was answered.
    Replied(Reply),
    /// It was certainly not sent, for this reason.
    NotSent(u64, String),
    /// Its connection has broken: it may have been done.
    Lost(u64),
}

/// Requests for one node, and the channel for their ends.
#[derive(Debug)]
struct Sent {
    requests: Vec<Request>,
    ends: std_mpsc::Sender<Ended>,
}

/// A task for the client's runtime.
#[derive(Debug)]
struct Ask(NodeId, Sent);

/// The runtime. It ends with the last handle.
#[derive(Debug)]
pub struct Runtime {
    runtime: Option<tokio::runtime::Runtime>,
    who: Identity,
    asks: mpsc::UnboundedSender<Ask>,
}

/// The state of the cluster when a client begins.
#[derive(Debug)]
pub struct Start {
    pub config: ClusterConfig,
    pub read: EtcdAnswer,
    store: EtcdStore,
    asked: mpsc::UnboundedReceiver<Ask>,
}

impl Runtime {
    /// Starts the runtime, and reads etcd.
    pub fn start(
        name: ClusterName,
        etcd: EtcdOptions,
        options: &ClusterOptions,
    ) -> Result<(Runtime, Start), ClusterError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("oneread-cluster")
            .enable_all()
            .build()
            .map_err(ClusterError::Threads)?;
        let endpoints = etcd.endpoints.join(", ");
        let begun = Instant::now();
        let of = name.clone();
        let mut read = Box::pin(async move {
            let store = EtcdStore::connect(of, etcd).await?;
            let (config, read) = store.read_config().await?;
            Ok::<_, ClusterError>((store, config, read))
        });
        // Whether this thread still wants to wait is asked outside of the runtime, because the callback may use another
        // client.
        let (store, config, read) = loop {
            match runtime.block_on(async { timeout(LOOK, &mut read).await }) {
                Ok(read) => break read?,
                Err(_) if breaking::is_wanted() => {}
                Err(_) => return Err(EtcdError::Late { endpoints, waited: begun.elapsed() }.into()),
            }
        };
        let who = Identity::new(name, None, options.secret.clone(), Bounds::of(&config));
        let (asks, asked) = mpsc::unbounded_channel();
        Ok((Runtime { runtime: Some(runtime), who, asks }, Start { config, read, store, asked }))
    }

    /// Follows etcd from now on, and sends requests.
    pub fn follow(&self, shared: &Arc<Shared>, start: Start) {
        let Start { read, store, asked, .. } = start;
        let Some(runtime) = &self.runtime else { return };
        runtime.spawn(follow(Arc::downgrade(shared), store, read, self.who.clone()));
        runtime.spawn(dispatch(Arc::downgrade(shared), self.who.clone(), asked));
    }

    /// Runs a task until it ends, at the latest with the last handle.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Runs something that may wait, on a thread for that.
    pub fn spawn_blocking(&self, task: impl FnOnce() + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn_blocking(task);
        }
    }

    /// The identity for connections to nodes.
    pub fn who(&self) -> &Identity {
        &self.who
    }

    /// Sends requests to a node. Each of them ends, at the latest with its connection.
    pub fn send(&self, node: NodeId, requests: Vec<Request>, ends: std_mpsc::Sender<Ended>) {
        let _ = self.asks.send(Ask(node, Sent { requests, ends }));
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // The last handle may be dropped within a runtime of the user's, where nothing may block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Reads etcd, and watches it. While it does not answer, nodes are asked.
async fn follow(shared: Weak<Shared>, store: EtcdStore, first: EtcdAnswer, who: Identity) {
    let (mut read, mut backoff, mut call) = (Ok(first), Backoff::new(PAUSE_MIN, PAUSE_MAX), 0);
    loop {
        match &read {
            Ok(answer) => {
                backoff.reset();
                let learn = |answer: EtcdAnswer| match shared.upgrade() {
                    Some(shared) => {
                        shared.learn(|known| known.learn(&answer));
                        true
                    }
                    None => false,
                };
                if !learn(answer.clone()) {
                    return;
                }
                let error = store.watch(answer, learn).await;
                tracing::debug!(%error, "a watch of etcd has ended, and begins anew");
            }
            Err(error) => {
                tracing::debug!(%error, "etcd does not answer: nodes are asked");
                ask_nodes(&shared, &who).await;
            }
        }
        sleep(backoff.take()).await;
        if shared.strong_count() == 0 {
            return;
        }
        call += 1;
        read = store.call(call, EtcdCall::Read).await;
    }
}

/// Asks a node why it gives no lease, and stores the reason. A node that is good gives none.
pub fn ask_why(shared: &Arc<Shared>, node: NodeId) {
    let Some(addresses) = super::lock(&shared.known).about(node).map(|about| about.requests.clone()) else {
        return;
    };
    let (who, asked) = (shared.runtime.who().clone(), Arc::downgrade(shared));
    shared.runtime.spawn(async move {
        let status = timeout(ASK, async {
            let mut connection = NodeConnection::connect(&addresses, who, node).await?;
            connection.send(&Said::Ask(Question::Status)).await?;
            connection.next().await
        });
        let why = match status.await {
            Ok(Ok(Said::Status(status))) if status.is_good() => String::new(),
            Ok(Ok(Said::Status(status))) => status.standing,
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) | Err(_) => String::new(),
        };
        if let Some(shared) = asked.upgrade()
            && let Some((_, known)) = super::lock(&shared.reasons).get_mut(&node)
        {
            *known = why;
        }
    });
}

/// Takes the map of any node that answers: newer states replace older ones.
async fn ask_nodes(shared: &Weak<Shared>, who: &Identity) {
    let Some(nodes) = shared.upgrade().map(|shared| {
        let known = super::lock(&shared.known);
        known.nodes().map(|(id, about)| (id, about.requests.clone())).collect::<Vec<_>>()
    }) else {
        return;
    };
    for (node, addresses) in nodes {
        let asked = timeout(ASK, async {
            let mut connection = NodeConnection::connect(&addresses, who.clone(), node).await?;
            connection.send(&Said::Ask(Question::Map)).await?;
            connection.next().await
        });
        if let Ok(Ok(Said::Map(map))) = asked.await
            && let Some(shared) = shared.upgrade()
        {
            shared.learn(|known| known.learn_map(&map));
        }
    }
}

/// Sends each request on its node's connection.
async fn dispatch(shared: Weak<Shared>, who: Identity, mut asked: mpsc::UnboundedReceiver<Ask>) {
    let mut nodes: FxHashMap<NodeId, mpsc::UnboundedSender<Sent>> = FxHashMap::default();
    while let Some(Ask(node, sent)) = asked.recv().await {
        nodes.retain(|_, queue| !queue.is_closed());
        let queue = nodes.entry(node).or_insert_with(|| {
            let (queue, sent) = mpsc::unbounded_channel();
            let addresses = shared.upgrade().and_then(|shared| {
                super::lock(&shared.known).about(node).map(|about| about.requests.clone())
            });
            tokio::spawn(converse(addresses.unwrap_or_default(), who.clone(), node, sent));
            queue
        });
        if let Err(mpsc::error::SendError(sent)) = queue.send(sent) {
            not_sent(sent, "its connection has just ended");
        }
    }
}

fn not_sent(sent: Sent, why: &str) {
    for request in sent.requests {
        let _ = sent.ends.send(Ended::NotSent(request.copy, why.to_owned()));
    }
}

/// Groups requests into frames of about this many bytes. A frame with all of them may be too long.
fn in_frames(requests: Vec<Request>, enough: usize) -> Vec<Vec<Request>> {
    // Bytes of a request beside its key and values.
    const REST: usize = 48;
    let (mut frames, mut bytes) = (Vec::<Vec<Request>>::new(), 0);
    for request in requests {
        let values = match &request.kind {
            Kind::Put(value) | Kind::Insert(value) | Kind::Update(value) => value.len(),
            Kind::Swap { expected, new } => expected.len() + new.len(),
            _ => 0,
        };
        let weight = REST + request.key.len() + values;
        match frames.last_mut().filter(|_| bytes + weight <= enough) {
            Some(frame) => frame.push(request),
            None => {
                bytes = 0;
                frames.push(vec![request]);
            }
        }
        bytes += weight;
    }
    frames
}

/// One connection to a node, from the first request until it breaks. Requests under way are lost then.
async fn converse(
    addresses: Vec<String>,
    who: Identity,
    node: NodeId,
    mut queue: mpsc::UnboundedReceiver<Sent>,
) {
    let enough = who.bounds.enough();
    let mut connection = match NodeConnection::connect(&addresses, who, node).await {
        Ok(connection) => connection,
        Err(error) => {
            queue.close();
            while let Some(sent) = queue.recv().await {
                not_sent(sent, &format!("node {node}: {error}"));
            }
            return;
        }
    };
    let mut under_way: FxHashMap<u64, std_mpsc::Sender<Ended>> = FxHashMap::default();
    // Frames to send. Replies are read between two of them: the node hangs up on a client that leaves too many unread.
    let mut frames = VecDeque::new();
    let broken = loop {
        tokio::select! {
            said = connection.next() => match said {
                Ok(Said::Replies(replies)) => {
                    for reply in replies {
                        if let Some(ends) = under_way.remove(&reply.copy) {
                            let _ = ends.send(Ended::Replied(reply));
                        }
                    }
                }
                Ok(_) => {}
                Err(error) => break error,
            },
            frame = async { frames.pop_front() }, if !frames.is_empty() => {
                if let Some(requests) = frame
                    && let Err(error) = connection.send(&Said::Requests(requests)).await
                {
                    break error;
                }
            }
            sent = queue.recv(), if frames.is_empty() => match sent {
                Some(Sent { requests, ends }) => {
                    under_way.extend(requests.iter().map(|request| (request.copy, ends.clone())));
                    frames.extend(in_frames(requests, enough));
                }
                None => return,
            },
        }
    };
    tracing::debug!(%node, error = %broken, "a connection to a node has broken");
    queue.close();
    for request in frames.into_iter().flatten() {
        if let Some(ends) = under_way.remove(&request.copy) {
            let _ = ends.send(Ended::NotSent(request.copy, format!("node {node}: {broken}")));
        }
    }
    for (copy, ends) in under_way {
        let _ = ends.send(Ended::Lost(copy));
    }
    while let Some(sent) = queue.recv().await {
        not_sent(sent, &format!("node {node}: {broken}"));
    }
}

/// The requests of a client, for a test that answers them instead of nodes.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct AsksOfTest(mpsc::UnboundedReceiver<Ask>);

#[cfg(test)]
impl AsksOfTest {
    /// The next requests, their node, and the channel for their ends. `None`: none yet, or none any more.
    pub fn next(&mut self) -> Option<(NodeId, Vec<Request>, std_mpsc::Sender<Ended>)> {
        let Ask(node, Sent { requests, ends }) = self.0.try_recv().ok()?;
        Some((node, requests, ends))
    }
}

#[cfg(test)]
impl Runtime {
    /// A runtime that runs nothing: a test answers.
    pub(super) fn of_test(who: Identity) -> (Runtime, AsksOfTest) {
        let (asks, asked) = mpsc::unbounded_channel();
        (Runtime { runtime: None, who, asks }, AsksOfTest(asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::hash::ShardHash;
    use crate::core::message::Wanted;
    use crate::core::state::{ClusterConfig, Timing};
    use bytes::Bytes;

    /// However many requests there are, and however long: each frame is short enough, none is missing, in order.
    #[test]
    fn many_requests_are_several_frames() {
        let timing = Timing::default();
        let config = ClusterConfig {
            shards: 4,
            replicas: 1,
            hash: ShardHash::new(0),
            key_max: 64,
            value_max: 1 << 20,
            timing,
        };
        let bounds = Bounds::of(&config);
        let lens = [0, 1, 4_096, 1 << 20, 300_000, 17];
        let request = |copy: u64| {
            let value = Bytes::from(vec![7; lens[copy as usize % lens.len()]]);
            let kind = match copy % 3 {
                0 => Kind::Put(value),
                1 => Kind::Swap { expected: value.clone(), new: value },
                _ => Kind::Remove,
            };
            Request {
                copy,
                id: None,
                shard: 3,
                key: Bytes::from_static(&[1; 64]),
                kind,
                wanted: Wanted::Usual,
            }
        };
        let all: Vec<Request> = (0..20_000)
            .map(|copy| if copy < 60 { request(copy) } else { request(4 * 3 * copy + 2) })
            .collect();
        let frames = in_frames(all.clone(), bounds.enough());
        assert!(frames.len() > 20);
        for frame in &frames {
            let bytes = postcard::to_stdvec(&Said::Requests(frame.clone())).unwrap();
            assert!(bytes.len() <= bounds.frame_max, "{} requests in {} bytes", frame.len(), bytes.len());
            assert!(matches!(bounds.decode(&bytes), Ok(Said::Requests(_))));
        }
        assert_eq!(frames.concat(), all);
        assert!(in_frames(Vec::new(), bounds.enough()).is_empty());
    }
}
