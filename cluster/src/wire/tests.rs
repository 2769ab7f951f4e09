//! Connections between nodes and clients, over TCP on this host. Times are shorter than usual: see `SILENCE`.

use super::handshake::{self, CONNECTS, Hello, LEAST, VERSION, Welcome, accept, connect, parts, short};
use super::port::UNREAD_MAX;
use super::*;
use crate::core::feed::{FeedAt, FeedPart, Told};
use crate::core::hash::ShardHash;
use crate::core::message::{
    ChannelId, Effect, End, Entry, Item, Kind, Life, Message, NotDone, Outcome, Reply, Request, RequestId,
    Session, Value, Wanted,
};
use crate::core::shard::Role;
use crate::core::state::{Adoption, ClusterConfig, NodeAbout, NodeIds, Notes, ShardState, Timing};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long a test waits for what must happen.
const SOON: Duration = Duration::from_secs(60);
const NODE: NodeId = NodeId(7);

fn bounds() -> Bounds {
    let timing = Timing::default();
    Bounds::of(&ClusterConfig {
        shards: 8,
        replicas: 2,
        hash: ShardHash::new(1),
        key_max: 64,
        value_max: 4_096,
        timing,
    })
}

fn who(id: Option<u64>, secret: &str) -> Identity {
    let secret = Secret::new(secret.as_bytes()).unwrap();
    Identity::new("test".parse().unwrap(), id.map(NodeId), secret, bounds())
}

async fn soon<R>(what: &str, f: impl Future<Output = R>) -> R {
    timeout(SOON, f).await.unwrap_or_else(|_| panic!("{what} is not so after {SOON:?}"))
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    soon(what, async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Two ends of a connection: who connects, who listens.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connects = TcpStream::connect(listener.local_addr().unwrap());
    let (one, other) = tokio::join!(connects, listener.accept());
    (one.unwrap(), other.unwrap().0)
}

/// A node's port, with what arrives there. It ends when this is dropped.
struct Port {
    address: String,
    replies: Replies,
    arrived: mpsc::Receiver<Arrived>,
    task: JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Port {
    async fn at(address: &str, connections_max: usize) -> Port {
        Port::with(address, connections_max, usize::MAX).await
    }

    /// As [`Port::at`], for at most this many strangers.
    async fn with(address: &str, connections_max: usize, strangers_max: usize) -> Port {
        let mut port =
            NodePort::bind(&[address.into()], who(Some(NODE.0), "secret"), connections_max).await.unwrap();
        port.strangers_max = strangers_max.min(port.strangers_max);
        let (address, replies) = (port.addresses().remove(0), port.replies());
        let (arrivals, arrived) = mpsc::channel(64);
        Port { address, replies, arrived, task: tokio::spawn(port.run(arrivals)) }
    }

    async fn start() -> Port {
        Port::at("127.0.0.1:0", 100).await
    }

    async fn client(&self) -> Result<NodeConnection, WireError> {
        NodeConnection::connect(std::slice::from_ref(&self.address), who(None, "secret"), NODE).await
    }

    async fn next(&mut self) -> Arrived {
        soon("something arrives", self.arrived.recv()).await.unwrap()
    }
}

/// A question comes through: the connection is good.
async fn is_good(client: &mut NodeConnection, port: &mut Port) {
    client.send(&Said::Ask(Question::Map)).await.unwrap();
    let Arrived::Asked(peer, Question::Map) = port.next().await else { panic!("it asked for a map") };
    port.replies.send(peer, &Said::Map(ClusterMap::default()));
    let said = soon("a reply comes", client.next()).await.unwrap();
    assert_eq!(said, Said::Map(ClusterMap::default()));
}

// ---- the handshake ----

async fn shake(
    ours: Identity,
    wanted: NodeId,
    theirs: Identity,
) -> (Option<WireError>, Result<Option<NodeId>, WireError>) {
    let (one, other) = pair().await;
    let (connected, accepted) =
        tokio::join!(async { connect(one, &ours, Some(wanted)).await.err() }, async {
            accept(other, &theirs).await.map(|(_, node, _)| node)
        });
    (connected, accepted)
}

#[tokio::test]
async fn who_knows_the_secret_comes_in() {
    for secret in ["", "secret", &"s".repeat(SECRET_MAX)] {
        for id in [None, Some(3)] {
            let (failed, node) = shake(who(id, secret), NODE, who(Some(NODE.0), secret)).await;
            assert!(failed.is_none(), "{failed:?}");
            assert_eq!(node.unwrap(), id.map(NodeId));
        }
    }
    assert!(Secret::new(&[0; SECRET_MAX + 1]).is_err());
}

#[tokio::test]
async fn who_does_not_know_it_stays_out() {
    for (ours, theirs) in [("secret", "other"), ("", "secret"), ("secret", "")] {
        let (failed, accepted) = shake(who(None, ours), NODE, who(Some(NODE.0), theirs)).await;
        assert!(matches!(failed, Some(WireError::Secret)), "{failed:?}");
        accepted.unwrap_err();
    }
}

/// Says hello as somebody who need not keep to anything. Returns both hellos as bytes, and the other end's proof.
async fn hello(frames: &mut Frames, ours: &Hello) -> (Bytes, Vec<u8>, [u8; 32]) {
    let ours = frame::encode(ours).unwrap();
    frames.send(ours.clone()).await.unwrap();
    let Welcome::Hello(theirs, proof) = frame::decode(&frame::next(frames).await.unwrap()).unwrap() else {
        panic!("it is not welcome")
    };
    (ours, theirs, proof)
}

/// Who does not know the secret can only send proofs that he has seen.
#[tokio::test]
async fn seen_proofs_are_worth_nothing() {
    let (knows, node) = (who(None, "secret"), who(Some(NODE.0), "secret"));
    // One that was good, with the hellos that it was for.
    let (one, other) = pair().await;
    let mut frames = short(one);
    let good = async {
        let (ours, theirs, _) = hello(&mut frames, &Hello::of(&knows)).await;
        let proof = knows.secret.proof(&parts([&ours, &theirs], CONNECTS));
        frame::send(&mut frames, &proof).await.unwrap();
        (ours, proof)
    };
    let ((said, seen), accepted) = tokio::join!(good, accept(other, &node));
    assert_eq!(accepted.unwrap().1, None);

    #[derive(Debug)]
    enum Forged {
        Reflected,
        Seen,
        Nothing,
    }
    for forged in [Forged::Reflected, Forged::Seen, Forged::Nothing] {
        let (one, other) = pair().await;
        let mut frames = short(one);
        let liar = async {
            let again: Hello = frame::decode(&said).unwrap();
            let (_, _, theirs) = hello(&mut frames, &again).await;
            let proof = match forged {
                Forged::Reflected => theirs,
                Forged::Seen => seen,
                Forged::Nothing => [0; 32],
            };
            frame::send(&mut frames, &proof).await.unwrap();
        };
        let ((), accepted) = tokio::join!(liar, accept(other, &node));
        let accepted = accepted.map(|(_, node, _)| node);
        assert!(matches!(accepted, Err(WireError::Secret)), "{forged:?}: {accepted:?}");
    }
}

/// A later version says more in its hello. The proofs cover that, too.
#[tokio::test]
async fn a_longer_hello_of_a_later_version_is_welcome() {
    let node = who(Some(NODE.0), "secret");
    let (one, other) = pair().await;
    let mut frames = short(one);
    let later = async {
        let mut ours = frame::encode(&Hello::of(&who(Some(3), "secret"))).unwrap().to_vec();
        ours.extend_from_slice(b"what this version does not know");
        frames.send(Bytes::from(ours.clone())).await.unwrap();
        let welcome = frame::next(&mut frames).await.unwrap();
        let Welcome::Hello(theirs, _) = frame::decode(&welcome).unwrap() else { panic!("it is not welcome") };
        let proof = node.secret.proof(&parts([&ours, &theirs], CONNECTS));
        frame::send(&mut frames, &proof).await.unwrap();
    };
    let ((), accepted) = tokio::join!(later, accept(other, &node));
    assert_eq!(accepted.unwrap().1, Some(NodeId(3)));
}

#[tokio::test]
async fn another_cluster_is_told_apart() {
    let mut other = who(None, "secret");
    other.cluster = "other".parse().unwrap();
    let (failed, accepted) = shake(other, NODE, who(Some(NODE.0), "secret")).await;
    let accepted = accepted.unwrap_err();
    assert!(matches!(accepted, WireError::OtherCluster { .. }), "{accepted}");
    let Some(WireError::Refused(why)) = failed else { panic!("{failed:?}") };
    assert!(why.contains("\"other\"") && why.contains("\"test\""), "{why}");
    // The longest names that there are find their place in a refusal.
    let mut other = who(None, "secret");
    other.cluster = "a".repeat(64).parse().unwrap();
    let mut node = who(Some(NODE.0), "secret");
    node.cluster = "b".repeat(64).parse().unwrap();
    assert!(matches!(shake(other, NODE, node).await.0, Some(WireError::Refused(_))));
}

#[tokio::test]
async fn another_node_at_the_address_is_told_apart() {
    let (failed, _) = shake(who(None, "secret"), NodeId(8), who(Some(NODE.0), "secret")).await;
    assert!(matches!(failed, Some(WireError::OtherNode { found: NODE, wanted: NodeId(8) })), "{failed:?}");
    // A client that listens is no node.
    let (failed, _) = shake(who(None, "secret"), NODE, who(None, "secret")).await;
    assert!(matches!(failed, Some(WireError::Rubbish(_))), "{failed:?}");
}

#[tokio::test]
async fn versions_too_far_apart_are_refused_at_both_ends() {
    let node = who(Some(NODE.0), "secret");
    for (least, newest) in [(VERSION + 1, VERSION + 2), (0, LEAST - 1)] {
        // Who listens.
        let (one, other) = pair().await;
        let mut frames = short(one);
        let stranger = async {
            let hello = Hello { least, newest, ..Hello::of(&who(None, "secret")) };
            frame::send(&mut frames, &hello).await.unwrap();
            match frame::decode(&frame::next(&mut frames).await.unwrap()).unwrap() {
                Welcome::Refused(why) => why,
                Welcome::Hello(..) => panic!("it is welcome"),
            }
        };
        let (why, accepted) = tokio::join!(stranger, accept(other, &node));
        let accepted = accepted.map(|_| ()).unwrap_err();
        assert!(matches!(accepted, WireError::Version { .. }), "{accepted}");
        assert!(
            why.contains(&format!("{least} to {newest}")) && why.contains("update the older one"),
            "{why}"
        );
        // Who connects.
        let (one, other) = pair().await;
        let mut frames = short(other);
        let stranger = async {
            frame::next(&mut frames).await.unwrap();
            let hello = Hello { least, newest, ..Hello::of(&node) };
            let welcome = Welcome::Hello(frame::encode(&hello).unwrap().to_vec(), [0; 32]);
            frame::send(&mut frames, &welcome).await.unwrap();
        };
        let client = who(None, "secret");
        let (connected, ()) = tokio::join!(connect(one, &client, Some(NODE)), stranger);
        let connected = connected.map(|_| ());
        assert!(matches!(connected, Err(WireError::Version { .. })), "{connected:?}");
    }
    // One that speaks more than this one does is welcome.
    let (one, other) = pair().await;
    let mut frames = short(one);
    let newer = async {
        let ours = Hello { least: LEAST, newest: VERSION + 5, ..Hello::of(&who(None, "secret")) };
        let (ours, theirs, _) = hello(&mut frames, &ours).await;
        frame::send(&mut frames, &node.secret.proof(&parts([&ours, &theirs], CONNECTS))).await.unwrap();
    };
    let ((), accepted) = tokio::join!(newer, accept(other, &node));
    accepted.unwrap();
}

#[tokio::test]
async fn an_empty_secret_is_for_this_host_only() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let refused = NodePort::bind(&[address.into()], who(Some(7), ""), 10).await.unwrap_err();
        assert!(matches!(refused, WireError::NoSecret { .. }), "{refused}");
        assert!(refused.to_string().contains("NodeConfig::secret"), "{refused}");
    }
    NodePort::bind(&["0.0.0.0:0".into()], who(Some(7), "secret"), 10).await.unwrap();
    let port = NodePort::bind(&["127.0.0.1:0".into()], who(Some(7), ""), 10).await.unwrap();
    let taken = port.addresses();
    let refused = NodePort::bind(&taken, who(Some(7), ""), 10).await.unwrap_err();
    assert!(matches!(&refused, WireError::Listen { address, .. } if *address == taken[0]), "{refused}");
}

// ---- what is wrong with one connection is its own matter ----

#[tokio::test]
async fn rubbish_ends_its_own_connection_only() {
    let mut port = Port::start().await;
    let mut good = port.client().await.unwrap();
    is_good(&mut good, &mut port).await;
    let mut rng = StdRng::seed_from_u64(1);
    let mut rubbish: Vec<Vec<u8>> = (0..50)
        .map(|_| {
            let mut bytes = vec![0; rng.random_range(1..2_000)];
            rng.fill_bytes(&mut bytes);
            bytes
        })
        .collect();
    // A frame that is longer than any of a handshake, one that says nothing, and what other servers hear.
    rubbish.extend([vec![0xff; 4], vec![0; 4], b"GET / HTTP/1.1\r\n\r\n".to_vec()]);
    for bytes in rubbish {
        let mut stream = TcpStream::connect(&port.address).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        // It ends, and not before the other end did it.
        soon("it is hung up on", async {
            while !matches!(stream.read(&mut [0; 64]).await, Ok(0) | Err(_)) {}
        })
        .await;
    }
    // After a good handshake: too long a frame, rubbish in one, and what only others may say.
    let wrong = [
        Bytes::from(vec![1; bounds().frame_max + 1]),
        Bytes::from(vec![0xff; 100]),
        frame::encode(&Said::Messages(Vec::new())).unwrap(),
        frame::encode(&Said::Replies(Vec::new())).unwrap(),
    ];
    for wrong in wrong {
        let stream = TcpStream::connect(&port.address).await.unwrap();
        let (mut frames, _) = connect(stream, &who(None, "secret"), Some(NODE)).await.unwrap();
        frames.codec_mut().set_max_frame_length(usize::MAX >> 8);
        let _ = frames.send(wrong).await;
        soon("it is hung up on", async { while let Some(Ok(_)) = frames.next().await {} }).await;
    }
    is_good(&mut good, &mut port).await;
    let mut other = port.client().await.unwrap();
    is_good(&mut other, &mut port).await;
}

/// Who connects and says nothing has no connection for long.
#[tokio::test]
async fn a_handshake_has_its_time() {
    let port = Port::start().await;
    let mut stream = TcpStream::connect(&port.address).await.unwrap();
    soon("it is hung up on", async { while !matches!(stream.read(&mut [0; 64]).await, Ok(0) | Err(_)) {} })
        .await;
    // And nobody waits for ever for a listener that says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let refused =
        soon("it gives up", NodeConnection::connect(&[address], who(None, ""), NODE)).await.unwrap_err();
    assert!(matches!(refused, WireError::Silent(handshake) if handshake == HANDSHAKE), "{refused}");
}

/// What nobody reads is kept up to a bound, also for one that gives signs of life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_is_hung_up_on() {
    let mut port = Port::start().await;
    let stream = TcpStream::connect(&port.address).await.unwrap();
    let (mut frames, _) = connect(stream, &who(None, "secret"), Some(NODE)).await.unwrap();
    frame::send(&mut frames, &Said::Ask(Question::Status)).await.unwrap();
    let Arrived::Asked(peer, _) = port.next().await else { panic!("it asks") };
    let (ping, reply) = (frame::encode(&Said::Ping).unwrap(), Said::Replies(vec![reply_of(1); 10_000]));
    let len = frame::encode(&reply).unwrap().len();
    let (mut most, mut sent) = (0, 0);
    soon("it is hung up on", async {
        while let Some(unread) = port.replies.unread(peer) {
            (most, sent) = (most.max(unread), sent + len);
            port.replies.send(peer, &reply);
            let _ = frames.send(ping.clone()).await;
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(most > 0 && most <= UNREAD_MAX + len, "{most} bytes are unread");
    assert!(sent > UNREAD_MAX, "it was hung up on after {sent} bytes");
    // Not only the way back: the connection, though it lives and its buffers are full.
    let begun = Instant::now();
    soon("it has ended", async {
        while frames.send(ping.clone()).await.is_ok() {
            sleep(PING).await
        }
    })
    .await;
    assert!(begun.elapsed() < SILENCE, "it waited for the client to read");
    // Nobody is there any more.
    port.replies.send(peer, &reply);
    assert_eq!(port.replies.unread(peer), None);
}

/// One that is slower than what is sent to it, but reads, keeps its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_is_not_hung_up_on() {
    let mut port = Port::start().await;
    let mut client = port.client().await.unwrap();
    is_good(&mut client, &mut port).await;
    client.send(&Said::Ask(Question::Status)).await.unwrap();
    let Arrived::Asked(peer, _) = port.next().await else { panic!("it asks") };
    let reply = Said::Replies(vec![reply_of(1); 10_000]);
    for _ in 0..20 {
        for _ in 0..10 {
            port.replies.send(peer, &reply);
        }
        for _ in 0..10 {
            assert_eq!(soon("a reply comes", client.next()).await.unwrap(), reply);
        }
    }
    until("all is read", || port.replies.unread(peer) == Some(0)).await;
}

#[tokio::test]
async fn there_are_no_more_connections_than_allowed() {
    let mut port = Port::at("127.0.0.1:0", 2).await;
    let mut first = port.client().await.unwrap();
    let mut second = port.client().await.unwrap();
    // Who has not proven yet that he knows the secret gives way.
    is_good(&mut first, &mut port).await;
    is_good(&mut second, &mut port).await;
    for _ in 0..5 {
        let refused = port.client().await.unwrap_err();
        assert!(matches!(refused, WireError::Ended | WireError::Broken(_)), "{refused}");
    }
    is_good(&mut first, &mut port).await;
    is_good(&mut second, &mut port).await;
    drop(first);
    let mut third = soon("there is a place again", async {
        loop {
            match port.client().await {
                Ok(client) => return client,
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    is_good(&mut third, &mut port).await;
    is_good(&mut second, &mut port).await;
}

/// Those who do not know the secret keep out nobody who does, however many they are: for each newcomer one of them is hung
/// up on.
#[tokio::test]
async fn strangers_give_way() {
    let mut port = Port::at("127.0.0.1:0", 3).await;
    let mut first = port.client().await.unwrap();
    is_good(&mut first, &mut port).await;
    let mut strangers = Vec::new();
    for _ in 0..10 {
        strangers.push(TcpStream::connect(&port.address).await.unwrap());
    }
    let mut second = soon("there is a place", port.client()).await.unwrap();
    is_good(&mut second, &mut port).await;
    let mut third = soon("there is another place", port.client()).await.unwrap();
    is_good(&mut third, &mut port).await;
    is_good(&mut first, &mut port).await;
    // All places are taken by those who know it. No stranger takes one of them.
    let mut late = TcpStream::connect(&port.address).await.unwrap();
    let ended = soon("a stranger is hung up on", late.read(&mut [0; 1])).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    is_good(&mut second, &mut port).await;
}

/// Strangers have a share of the descriptors, however many connections there may be.
#[tokio::test]
async fn strangers_have_a_share() {
    let mut port = Port::with("127.0.0.1:0", 100, 2).await;
    let mut client = port.client().await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..10 {
        strangers.push(TcpStream::connect(&port.address).await.unwrap());
    }
    for old in &mut strangers[..8] {
        // The server speaks first, to some of them.
        let ends = async { while old.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {} };
        soon("an older stranger is hung up on", ends).await;
    }
    is_good(&mut client, &mut port).await;
}

// ---- those who are gone and say nothing ----

#[tokio::test]
async fn a_silent_node_is_noticed_by_its_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let silent = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // Kept open; nothing is read or said.
        let kept = accept(stream, &who(Some(NODE.0), "secret")).await.unwrap();
        sleep(SOON).await;
        drop(kept);
    });
    let mut client = NodeConnection::connect(&[address], who(None, "secret"), NODE).await.unwrap();
    let begun = Instant::now();
    let gone = soon("it is noticed", client.next()).await.unwrap_err();
    assert!(matches!(gone, WireError::Silent(SILENCE)), "{gone}");
    assert!(begun.elapsed() >= SILENCE - PING);
    silent.abort();
}

/// Both ends only give signs of life, for longer than a silence. A client that was stopped for as long finds what came
/// meanwhile, and not a silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signs_of_life_are_enough() {
    let mut port = Port::start().await;
    let mut client = port.client().await.unwrap();
    assert!(timeout(2 * SILENCE, client.next()).await.is_err(), "the connection has ended");
    is_good(&mut client, &mut port).await;
    // It is not polled for most of a silence: what has come is looked at before the clock is.
    client.send(&Said::Ask(Question::Map)).await.unwrap();
    let Arrived::Asked(peer, _) = port.next().await else { panic!("it asks") };
    port.replies.send(peer, &Said::Map(ClusterMap::default()));
    sleep(SILENCE * 3 / 4).await;
    assert_eq!(client.next().await.unwrap(), Said::Map(ClusterMap::default()));
}

#[tokio::test]
async fn what_has_come_counts_before_the_clock_does() {
    let node = who(Some(NODE.0), "secret");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = [listener.local_addr().unwrap().to_string()];
    let (client, frames) =
        tokio::join!(NodeConnection::connect(&addresses, who(None, "secret"), NODE), async {
            let (stream, _) = listener.accept().await.unwrap();
            accept(stream, &node).await.unwrap().0
        });
    let (mut client, mut frames) = (client.unwrap(), frames);
    for number in 0..20 {
        frame::send(&mut frames, &Said::Replies(vec![reply_of(number)])).await.unwrap();
    }
    // Longer than a silence, as after a stop of the process.
    sleep(SILENCE + PING).await;
    for number in 0..20 {
        assert_eq!(client.next().await.unwrap(), Said::Replies(vec![reply_of(number)]));
    }
}

#[tokio::test]
async fn a_silent_node_is_noticed_by_a_link() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut links = Links::new(who(Some(1), "secret"), tokio::runtime::Handle::current());
    links.know(NODE, &[address]);
    let node = who(Some(NODE.0), "secret");
    let (stream, _) = soon("it connects", listener.accept()).await.unwrap();
    let first = accept(stream, &node).await.unwrap();
    assert_eq!(first.1, Some(NodeId(1)));
    links.send(NODE, message_of(1));
    // The first one stays open, and says nothing. A busy link notices, too.
    let begun = Instant::now();
    let again = soon("it connects again", async {
        loop {
            tokio::select! {
                accepted = listener.accept() => return accepted.unwrap().0,
                () = sleep(Duration::from_millis(20)) => links.send(NODE, message_of(2)),
            }
        }
    })
    .await;
    assert!(begun.elapsed() >= SILENCE - PING);
    let mut second = accept(again, &node).await.unwrap().0;
    links.send(NODE, message_of(3));
    soon("it goes on", async {
        loop {
            let said = bounds().decode(&frame::next(&mut second).await.unwrap()).unwrap();
            if matches!(said, Said::Messages(messages) if messages.contains(&message_of(3))) {
                return;
            }
            frame::send(&mut second, &Said::Ping).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_silent_client_is_noticed_by_the_port() {
    let port = Port::start().await;
    let stream = TcpStream::connect(&port.address).await.unwrap();
    let (mut frames, _) = connect(stream, &who(None, "secret"), Some(NODE)).await.unwrap();
    let begun = Instant::now();
    // It reads, and says nothing.
    let mut pings = 0;
    soon("it is hung up on", async {
        while let Some(Ok(_)) = frames.next().await {
            pings += 1
        }
    })
    .await;
    assert!(begun.elapsed() >= SILENCE - PING && pings > 0, "{pings} signs of life in {:?}", begun.elapsed());
}

// ---- links ----

async fn numbers(port: &mut Port) -> Vec<u64> {
    match port.next().await {
        Arrived::Messages(NodeId(1), messages) => messages.iter().map(number_of).collect(),
        arrived => panic!("{arrived:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_connects_again_when_its_node_comes_back() {
    let mut port = Port::start().await;
    let mut links = Links::new(who(Some(1), "secret"), tokio::runtime::Handle::current());
    // Nobody knows where it is yet: nothing is sent, nothing waits.
    links.send(NODE, message_of(0));
    links.know(NODE, &["127.0.0.1:1".into(), port.address.clone()]);
    for round in 1..=3 {
        let mut number = 1_000 * round;
        soon("a message arrives", async {
            loop {
                number += 1;
                links.send(NODE, message_of(number));
                if let Ok(Some(arrived)) = timeout(Duration::from_millis(50), port.arrived.recv()).await {
                    let Arrived::Messages(NodeId(1), messages) = arrived else { panic!("{arrived:?}") };
                    // Perhaps of this round, perhaps of the one before: never in another order.
                    assert!(messages.is_sorted_by_key(number_of));
                    if messages.iter().any(|message| number_of(message) > 1_000 * round) {
                        return;
                    }
                }
            }
        })
        .await;
        let address = port.address.clone();
        drop(port);
        port = soon("its port is free again", async {
            loop {
                let bound =
                    NodePort::bind(std::slice::from_ref(&address), who(Some(NODE.0), "secret"), 10).await;
                if bound.is_ok() {
                    drop(bound);
                    return Port::at(&address, 10).await;
                }
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
    // It has moved.
    let mut moved = Port::start().await;
    drop(port);
    links.know(NODE, &[moved.address.clone()]);
    soon("a message arrives where it is now", async {
        loop {
            links.send(NODE, message_of(9_999));
            if timeout(Duration::from_millis(50), moved.arrived.recv()).await.is_ok() {
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_keeps_the_order() {
    const ALL: u64 = 100_000;
    let mut port = Port::start().await;
    let mut links = Links::new(who(Some(1), "secret"), tokio::runtime::Handle::current());
    links.know(NODE, &[port.address.clone()]);
    for number in 1..=ALL {
        links.send(NODE, message_of(number));
    }
    let mut next = 1;
    while next <= ALL {
        for number in numbers(&mut port).await {
            assert_eq!(number, next);
            next += 1;
        }
    }
}

/// What waits for a node that takes nothing is bounded, and once it takes something all goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_leaves_out_what_is_too_much() {
    let mut port = Port::start().await;
    let mut links = Links::new(who(Some(1), "secret"), tokio::runtime::Handle::current());
    links.know(NODE, &[port.address.clone()]);
    let long = |number| Message::Item {
        shard: 1,
        channel: ChannelId { epoch: 1, count: 1 },
        number,
        item: Item::Walked(Bytes::from_static(b"key"), lasting(Bytes::from(vec![1; 4_096]))),
    };
    // 400 MB at once.
    const ALL: u64 = 100_000;
    (1..=ALL).for_each(|number| links.send(NODE, long(number)));
    let (mut got, mut last) = (0u64, 0);
    soon("it goes on", async {
        loop {
            for number in numbers(&mut port).await {
                assert!(number > last);
                (got, last) = (got + 1, number);
            }
            if last > ALL {
                return;
            }
            links.send(NODE, long(ALL + last + 1));
        }
    })
    .await;
    assert!(got < ALL / 2, "{got} messages were kept");
}

// ---- frames ----

fn number_of(message: &Message) -> u64 {
    match message {
        Message::Item { number, .. } | Message::Answer { number, .. } => *number,
        Message::GivenUp { .. } | Message::Hello { .. } => 0,
    }
}

fn lasting(value: Bytes) -> Entry {
    Entry { value, life: Life::Owned(u16::MAX, Some(End(u64::MAX))) }
}

fn message_of(number: u64) -> Message {
    let item = Item::Walked(Bytes::from_static(b"key"), lasting(Bytes::from_static(b"value")));
    Message::Item { shard: 1, channel: ChannelId { epoch: 1, count: 1 }, number, item }
}

fn reply_of(copy: u64) -> Reply {
    Reply { copy, ended: Ok(Outcome::Done) }
}

/// Random contents of what is said.
struct Any(StdRng);

impl Any {
    fn bytes(&mut self, max: usize) -> Bytes {
        let len = if self.0.random_range(0..10) == 0 { max } else { self.0.random_range(0..=max.min(100)) };
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes.into()
    }

    fn number(&mut self) -> u64 {
        self.0.random::<u64>() >> self.0.random_range(0..64)
    }

    fn text(&mut self) -> String {
        (0..self.0.random_range(0..20)).map(|_| self.0.random::<char>()).collect()
    }

    fn some<T>(&mut self, most: usize, mut one: impl FnMut(&mut Any) -> T) -> Vec<T> {
        (0..self.0.random_range(0..=most)).map(|_| one(self)).collect()
    }

    fn maybe<T>(&mut self, one: impl FnOnce(&mut Any) -> T) -> Option<T> {
        if self.0.random() { Some(one(self)) } else { None }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.random_range(0..all.len())]
    }

    fn config(&mut self) -> ClusterConfig {
        let timing = Timing { ttl: self.number(), call: self.number(), ..Timing::default() };
        let hash = ShardHash::new(self.number());
        let (shards, value_max) = (self.shard(), self.0.random());
        ClusterConfig { shards, replicas: self.0.random(), hash, key_max: self.0.random(), value_max, timing }
    }

    fn shard(&mut self) -> u16 {
        self.0.random()
    }

    fn id(&mut self) -> NodeId {
        NodeId(self.number())
    }

    fn channel(&mut self) -> ChannelId {
        ChannelId { epoch: self.number(), count: self.number() }
    }

    fn feed_at(&mut self) -> FeedAt {
        FeedAt { epoch: self.number(), number: self.number() }
    }

    fn effect(&mut self) -> Effect {
        use Effect::{Came, Evicted, Expired, Nothing, OwnerGone, Removed, Replaced};
        self.one_of(&[Nothing, Came, Replaced, Removed, Evicted, Expired, OwnerGone])
    }

    fn entry(&mut self) -> Entry {
        let end = self.maybe(|any| End(any.number()));
        let owner = self.maybe(|any| any.0.random());
        Entry { value: self.bytes(4_096), life: Life::new(end, owner) }
    }

    fn session(&mut self) -> Session {
        Session { owner: self.0.random(), number: self.number() }
    }

    fn message(&mut self) -> Message {
        let (shard, channel, number) = (self.shard(), self.channel(), self.number());
        let item = match self.0.random_range(0..8) {
            0 => Item::Begin { after: self.feed_at() },
            1 => Item::Join { room: self.number(), after: self.feed_at() },
            2 => {
                Item::Change(self.effect(), self.some(3, |any| (any.bytes(64), any.maybe(Any::entry))).into())
            }
            3 => Item::Walked(self.bytes(64), self.entry()),
            4 => Item::Room(self.number()),
            5 => return Message::Answer { shard, channel, number, room: self.number(), is_refused: false },
            6 => return Message::GivenUp { shard, channel },
            _ => return Message::Hello { asks: self.0.random() },
        };
        Message::Item { shard, channel, number, item }
    }

    fn request(&mut self) -> Request {
        let kind = match self.0.random_range(0..9) {
            0 => Kind::Put(self.bytes(4_096)),
            1 => Kind::Insert(self.bytes(4_096)),
            2 => Kind::Swap { expected: self.bytes(4_096), new: self.bytes(4_096) },
            3 => Kind::Update(self.bytes(4_096)),
            4 => Kind::Own(self.session(), self.number()),
            5 => Kind::Stay(self.session()),
            6 => Kind::RemoveOwner(self.session()),
            7 => Kind::Who,
            _ => Kind::Remove,
        };
        let id = self.maybe(|any| RequestId { lane: any.number(), number: any.number() });
        let wanted = Wanted::new(self.maybe(Any::number), self.maybe(Any::session));
        Request { copy: self.number(), id, shard: self.shard(), key: self.bytes(64), kind, wanted }
    }

    fn reply(&mut self) -> Reply {
        use Outcome::{Absent, Differs, Done, Exists, Full, Is};
        let is = Is(self.number());
        let outcome = self.one_of(&[Done, Absent, Exists, Differs, Full, is]);
        use NotDone::{Invalid, NoLife, NoOwners, NoRoomForResult, NotServed, OwnerGone};
        let not_done = self.one_of(&[NotServed, NoRoomForResult, Invalid, NoLife, NoOwners, OwnerGone]);
        Reply { copy: self.number(), ended: if self.0.random() { Ok(outcome) } else { Err(not_done) } }
    }

    fn state(&mut self) -> ShardState {
        ShardState {
            revision: self.number(),
            epoch: self.number(),
            primary: self.maybe(Any::id),
            in_sync: NodeIds::from(self.some(8, Any::id)),
            waits: self.0.random(),
        }
    }

    fn adoption(&mut self) -> Adoption {
        Adoption { number: self.number(), etcd: self.number() }
    }

    fn about(&mut self) -> NodeAbout {
        NodeAbout {
            name: self.text(),
            table: self.some(3, Any::text),
            requests: self.some(3, Any::text),
            version: self.0.random(),
            leaves: self.0.random(),
            slots: self.text(),
        }
    }

    fn shard_status(&mut self) -> ShardStatus {
        ShardStatus {
            shard: self.shard(),
            role: self.one_of(&[Role::None, Role::Standby, Role::Primary, Role::Again]),
            epoch: self.number(),
            used: self.number(),
            under_way: self.number(),
            newcomers: self.some(3, Any::id),
        }
    }

    /// The variant of this number. Each must be here: see `variant_of`.
    fn said(&mut self, variant: usize) -> Said {
        match variant {
            0 => Said::Ping,
            1 => Said::Messages(self.some(20, Any::message)),
            2 => Said::Requests(self.some(20, Any::request)),
            3 => Said::Replies(self.some(20, Any::reply)),
            4 => {
                let all = [Question::Map, Question::Notes, Question::Status, Question::Config];
                Said::Ask(self.one_of(&all))
            }
            5 => Said::Map(ClusterMap {
                adoption: self.adoption(),
                shards: self.some(20, Any::state),
                nodes: self.some(5, |any| (any.id(), any.about())),
            }),
            6 => Said::Notes(Notes {
                adoption: self.adoption(),
                past: self.some(3, Any::number),
                newest: self.some(20, Any::state),
            }),
            8 => Said::Follow(Follow {
                ask: self.number(),
                shards: self.some(9, |any| (any.shard(), any.maybe(Any::feed_at))),
                values: self.0.random(),
            }),
            9 => {
                let told = |any: &mut Any| {
                    let (at, effect, key) = (any.feed_at(), any.effect(), any.bytes(64));
                    Told { at, effect, key, value: any.maybe(|any| any.bytes(4_096)) }
                };
                let part = |any: &mut Any| FeedPart { from: any.feed_at(), changes: any.some(3, told) };
                let shards = self.some(3, |any| (any.shard(), any.maybe(part)));
                Said::Changes(Changes { ask: self.number(), shards })
            }
            10 => Said::Config(self.config()),
            _ => Said::Status(NodeStatus {
                id: self.id(),
                standing: self.text(),
                used: self.number(),
                room_left: self.number(),
                evicted: self.number(),
                expired: self.number(),
                missing: self.number(),
                shards: self.some(20, Any::shard_status),
                health: Later(Some(NodeHealth {
                    beat_age: self.maybe(Any::number),
                    etcd: self.text(),
                    refused_by: self.some(3, |any| (any.id(), any.text())),
                    namesake: self.maybe(Any::id),
                })),
            }),
        }
    }
}

const VARIANTS: usize = 11;

/// A new variant does not compile until it has its place in [`Any::said`], too.
fn variant_of(said: &Said) -> usize {
    match said {
        Said::Ping => 0,
        Said::Messages(_) => 1,
        Said::Requests(_) => 2,
        Said::Replies(_) => 3,
        Said::Ask(_) => 4,
        Said::Map(_) => 5,
        Said::Notes(_) => 6,
        Said::Status(_) => 7,
        Said::Follow(_) => 8,
        Said::Changes(_) => 9,
        Said::Config(_) => 10,
    }
}

#[test]
fn what_is_said_is_what_is_heard() {
    let mut any = Any(StdRng::seed_from_u64(2));
    for round in 0..2_000 {
        let said = any.said(round % VARIANTS);
        assert_eq!(variant_of(&said), round % VARIANTS);
        let mut frame = frame::encode(&said).unwrap().to_vec();
        assert_eq!(bounds().decode(&frame).unwrap(), said);
        // A later version may say more behind it.
        frame.extend_from_slice(&any.bytes(20));
        assert_eq!(bounds().decode(&frame).unwrap(), said);
    }
}

/// An earlier version ends its status before this one's health: that is heard, too.
#[test]
fn a_status_of_an_earlier_version_is_heard() {
    let mut any = Any(StdRng::seed_from_u64(5));
    let mut heard = 0;
    while heard < 50 {
        let Said::Status(status) = any.said(7) else { continue };
        let now = frame::encode(&Said::Status(status.clone())).unwrap();
        let before = NodeStatus { health: Later(None), ..status };
        let frame = frame::encode(&Said::Status(before.clone())).unwrap();
        assert!(now.starts_with(&frame) && frame.len() < now.len(), "it only says less");
        assert_eq!(bounds().decode(&frame).unwrap(), Said::Status(before));
        heard += 1;
    }
}

/// Memory of this process at its peak, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Frames of rubbish, cut ones, changed ones, and ones that claim to hold more than they do.
#[test]
fn rubbish_in_a_frame_is_an_error() {
    let mut any = Any(StdRng::seed_from_u64(3));
    let before = peak();
    let (mut good, mut bad) = (0, 0);
    let mut look = |frame: &[u8]| match bounds().decode(frame) {
        Ok(_) => good += 1,
        Err(WireError::Rubbish(_)) => bad += 1,
        Err(error) => panic!("{error}"),
    };
    for round in 0..50_000 {
        let mut frame = match round % 3 {
            0 => {
                let mut bytes = vec![0; any.0.random_range(0..300)];
                any.0.fill_bytes(&mut bytes);
                // Most variants there are, and some that there are not.
                if let Some(first) = bytes.first_mut() {
                    *first %= VARIANTS as u8 + 2;
                }
                bytes
            }
            _ => frame::encode(&any.said(round % VARIANTS)).unwrap().to_vec(),
        };
        if round % 3 == 1 && !frame.is_empty() {
            frame.truncate(any.0.random_range(0..frame.len()));
        }
        if round % 3 == 2 {
            for _ in 0..any.0.random_range(1..5) {
                let at = any.0.random_range(0..frame.len());
                frame[at] = any.0.random();
            }
        }
        look(&frame);
    }
    // Lengths that nobody has, in front of as many bytes as a frame may have.
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let far = [0xff, 0xff, 0x3f];
    for length in [&huge[..], &far[..]] {
        for variant in 1..VARIANTS as u8 {
            let mut frame = vec![variant];
            frame.extend_from_slice(length);
            look(&frame);
            frame.resize(bounds().frame_max, 0);
            look(&frame);
        }
        // Of a change: one message, of a shard, a channel and a number.
        let mut frame = vec![1, 1, 0, 1, 1, 1, 1, 2];
        frame.extend_from_slice(length);
        look(&frame);
        frame.resize(bounds().frame_max, 0xfe);
        look(&frame);
    }
    assert!(good > 1_000 && bad > 10_000, "{good} good ones, {bad} bad ones");
    let grown = peak() - before;
    assert!(grown < 512 << 20, "{grown} bytes were taken");
}

/// What version 2 has for what has changed since.
mod version_2 {
    use super::{End, Value};
    use crate::core::message::{Key, RequestId};
    use serde::Serialize;

    #[derive(Serialize)]
    pub struct Entry {
        pub value: Value,
        pub end: Option<End>,
    }

    #[derive(Serialize)]
    pub enum Kind {
        Put(Value),
    }

    #[derive(Serialize)]
    pub struct Request {
        pub copy: u64,
        pub id: Option<RequestId>,
        pub shard: u16,
        pub key: Key,
        pub kind: Kind,
        pub ttl: Option<u64>,
    }
}

/// Where there are no owners, nodes and clients say what they said before there could be.
#[test]
fn version_2_understands_what_has_no_owner() {
    let mut any = Any(StdRng::seed_from_u64(3));
    for _ in 0..1_000 {
        let (value, end) = (any.bytes(4_096), any.maybe(|any| End(any.number())));
        let before = version_2::Entry { value: value.clone(), end };
        let now = Entry { value: value.clone(), life: Life::new(end, None) };
        assert_eq!(postcard::to_stdvec(&before).unwrap(), postcard::to_stdvec(&now).unwrap());
        let Request { copy, id, shard, key, .. } = any.request();
        let ttl = any.maybe(Any::number);
        let kind = version_2::Kind::Put(value.clone());
        let before = version_2::Request { copy, id, shard, key: key.clone(), kind, ttl };
        let wanted = Wanted::new(ttl, None);
        let now = Request { copy, id, shard, key, kind: Kind::Put(value), wanted };
        assert_eq!(postcard::to_stdvec(&before).unwrap(), postcard::to_stdvec(&now).unwrap());
    }
}

#[test]
fn what_is_too_long_is_refused() {
    let long = |len: usize| Bytes::from(vec![1; len]);
    let item = |item| {
        let channel = ChannelId { epoch: 1, count: 1 };
        Said::Messages(vec![Message::Item { shard: 1, channel, number: 1, item }])
    };
    let request = |key: usize, kind| {
        Said::Requests(vec![Request {
            copy: 1,
            id: None,
            shard: 1,
            key: long(key),
            kind,
            wanted: Wanted::For(7),
        }])
    };
    let change = |key, value: Option<usize>| {
        item(Item::Change(
            Effect::Came,
            vec![(long(1), None), (long(key), value.map(long).map(lasting))].into(),
        ))
    };
    let told = |key, value: Option<usize>| {
        let at = FeedAt { epoch: 1, number: 2 };
        let told = Told { at, effect: Effect::Came, key: long(key), value: value.map(long) };
        let part = FeedPart { from: at, changes: vec![told] };
        Said::Changes(Changes { ask: 1, shards: vec![(0, None), (1, Some(part))] })
    };
    let (key, value) = (bounds().key_max, bounds().value_max);
    let fit = [
        item(Item::Walked(long(key), lasting(long(value)))),
        change(key, Some(value)),
        change(key, None),
        request(key, Kind::Put(long(value))),
        request(key, Kind::Swap { expected: long(value), new: long(value) }),
        request(key, Kind::Remove),
        told(key, Some(value)),
        told(key, None),
    ];
    for said in fit {
        let frame = frame::encode(&said).unwrap();
        assert!(frame.len() <= bounds().frame_max);
        assert_eq!(bounds().decode(&frame).unwrap(), said);
    }
    let unfit = [
        item(Item::Walked(long(key + 1), lasting(long(value)))),
        item(Item::Walked(long(key), lasting(long(value + 1)))),
        change(key + 1, Some(value)),
        change(key, Some(value + 1)),
        change(key + 1, None),
        request(key + 1, Kind::Put(long(value))),
        request(key, Kind::Put(long(value + 1))),
        request(key, Kind::Insert(long(value + 1))),
        request(key, Kind::Update(long(value + 1))),
        request(key, Kind::Swap { expected: long(value + 1), new: long(1) }),
        request(key, Kind::Swap { expected: long(1), new: long(value + 1) }),
        request(key + 1, Kind::Remove),
        told(key + 1, None),
        told(key, Some(value + 1)),
    ];
    for said in unfit {
        let refused = bounds().decode(&frame::encode(&said).unwrap());
        assert!(matches!(refused, Err(WireError::Rubbish(_))), "{said:?}");
    }
}

/// What the longest configuration says of itself finds its place in the shortest frames.
#[test]
fn a_map_of_the_largest_cluster_fits() {
    let config = ClusterConfig {
        shards: 1_024,
        replicas: 8,
        hash: ShardHash::new(1),
        key_max: 1,
        value_max: 1,
        timing: Timing::default(),
    };
    let state = ShardState {
        revision: u64::MAX,
        epoch: u64::MAX,
        primary: Some(NodeId(u64::MAX)),
        in_sync: (0..16).map(|low| NodeId(u64::MAX - low)).collect(),
        waits: true,
    };
    let about = NodeAbout {
        name: "n".repeat(100),
        table: vec!["a".repeat(200); 2],
        requests: vec!["a".repeat(100); 2],
        version: u32::MAX,
        leaves: true,
        slots: "s".repeat(100),
    };
    let nodes = (0..512).map(|id| (NodeId(id), about.clone())).collect();
    let map = ClusterMap { adoption: Adoption::default(), shards: vec![state; 1_024], nodes };
    let frame = frame::encode(&Said::Map(map)).unwrap();
    assert!(frame.len() <= Bounds::of(&config).frame_max, "{} bytes", frame.len());
    // The handshake has shorter ones.
    let hello = Hello { cluster: "c".repeat(64), ..Hello::of(&who(Some(u64::MAX), "")) };
    let hello = frame::encode(&hello).unwrap().to_vec();
    assert!(frame::encode(&Welcome::Hello(hello, [0xff; 32])).unwrap().len() < handshake::FRAME_MAX);
}
