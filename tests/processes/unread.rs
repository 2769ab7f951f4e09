//! Clients that ask and read nothing, many of them: the server keeps no more for all of them than it may (Q6, Q7).

use crate::common::*;
use crate::relay::*;
use oneread::internals::wire::{PROTOCOL_VERSION, Request};
use oneread::{Address, Client, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;

const MIB: u64 = 1 << 20;
/// Bytes that all connections may hold, and how many ask. Each by itself may leave a MiB unread.
const MOST: u64 = 8 * MIB;
const PEERS: usize = 80;

over_shm_and_tcp! {
    who_holds_most_ends,
}

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(0, &mut bytes);
    bytes
}

/// A client that asks and reads nothing.
struct Peer {
    stream: Stream,
    /// How far it has come in what it asks.
    at: usize,
}

enum Stream {
    Near(UnixStream),
    Far(TcpStream),
}

impl Peer {
    /// One that the server has let in.
    fn new(server: &Server) -> Peer {
        let stream = match server.address() {
            Address::Shm(path) => {
                let mut stream = UnixStream::connect(path).unwrap();
                stream.write_all(&frame(&Request::Hello { version: PROTOCOL_VERSION })).unwrap();
                stream.read_exact(&mut [0; 20]).unwrap();
                stream.set_nonblocking(true).unwrap();
                Stream::Near(stream)
            }
            _ => {
                let joins = |n| if n < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
                let stream = relayed(server, joins, drop).1;
                stream.set_nonblocking(true).unwrap();
                Stream::Far(stream)
            }
        };
        Peer { stream, at: 0 }
    }

    /// Asks on, until its socket takes no more. `false` if it was hung up on.
    fn ask(&mut self, asked: &[u8]) -> bool {
        loop {
            let said = match &mut self.stream {
                Stream::Near(stream) => stream.write(&asked[self.at..]),
                Stream::Far(stream) => stream.write(&asked[self.at..]),
            };
            match said {
                Ok(said) => self.at = (self.at + said) % asked.len(),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }
}

/// The sum stays below its bound, those that hold most are hung up on, and who reads is served meanwhile. When all are
/// gone, nothing is held.
fn who_holds_most_ends(over: Over) {
    let place = over.place();
    // Whoever is halfway through a request would be hung up on for that, over TCP.
    let config = served(&place.address, small()).client_bytes_max(MOST).workers(2).half_open(10 * SOON);
    let server = start(config.clients_max(1_000));
    let mut client = Client::connect_with(server.address(), with_token(TOKEN)).unwrap();
    client.put(b"key", b"value").unwrap();
    let (begun, asked) = (server.client_memory(), frame(&Request::Stat).repeat(4_096));
    assert_eq!((begun.bytes_max, begun.ended), (MOST, 0));
    let mut peers: Vec<_> = (0..PEERS).map(|_| Peer::new(&server)).collect();
    let (mut most, mut hung_up) = (0, 0);
    wait_for("those that hold most to be hung up on", || {
        peers.retain_mut(|peer| {
            let stays = peer.ask(&asked);
            hung_up += u64::from(!stays);
            stays
        });
        let now = server.client_memory();
        most = most.max(now.bytes);
        assert!(now.bytes <= MOST, "{now:?}");
        assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        client.put(b"key", b"value").unwrap();
        (now.ended > 3 && hung_up > 3).then_some(())
    });
    assert!(most > MOST / 2 && !peers.is_empty());
    let told = client.held().unwrap().expect("it is of this version");
    assert!(told.clients_ended > 3 && told.client_bytes_max == MOST, "{told:?}");
    drop(peers);
    // But for what the client who reads has.
    wait_for("nothing to be held", || {
        (server.client_memory().bytes < MIB && server.stats().clients <= 1).then_some(())
    });
    assert_eq!(client.stats().reattached, 0);
}
