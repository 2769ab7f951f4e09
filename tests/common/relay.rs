//! Servers and clients over TCP, and a relay between them.

#![allow(dead_code, reason = "each test binary uses its part of this")]

use crate::common::{SOON, patient, start};
use oneread::{Address, Client, ClientOptions, Config, Server, ServerConfig, TableSize, TcpAddress, Token};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;

pub const TOKEN: &str = "a token for tests";

pub fn here() -> Address {
    Address::Tcp(TcpAddress::new("127.0.0.1", 0))
}

pub fn with_token(token: &str) -> ClientOptions {
    patient().token(Token::new(token))
}

pub fn served(address: &Address, table: Config) -> ServerConfig {
    ServerConfig::new(address.clone(), table).token(Token::new(TOKEN))
}

pub fn serve(table: Config) -> Server {
    start(served(&here(), table))
}

pub fn small() -> Config {
    Config::new().size(TableSize::Keys(10_000)).key_max(16).value_max(100)
}

pub fn connect(server: &Server) -> Client {
    Client::connect_with(server.address(), with_token(TOKEN)).unwrap()
}

pub fn port_of(server: &Server) -> u16 {
    server.tcp_address().expect("it is served over TCP").port()
}

/// A stream to the server, of somebody who has said nothing yet.
pub fn dial(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port_of(server))).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Hands one frame on. Returns whether there was one.
pub fn pass(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    let mut bytes = vec![0; 16];
    if from.read_exact(&mut bytes).is_err() {
        return false;
    }
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes.resize(16 + len, 0);
    from.read_exact(&mut bytes[16..]).unwrap();
    to.write_all(&bytes).is_ok()
}

/// What `act` does with a client that connects through a relay. That hands on one request and its reply after
/// the other, and calls `before` with the number of each request, from 0 on, until the client hangs up or
/// `before` says that it was enough. Returns the relay's connection to the server, too.
pub fn relayed<R>(
    server: &Server,
    before: impl FnMut(usize) -> ControlFlow<()> + Send,
    act: impl FnOnce(Client) -> R,
) -> (R, TcpStream) {
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(TcpAddress::new("127.0.0.1", relay.local_addr().unwrap().port()));
    let mut theirs = dial(server);
    std::thread::scope(|scope| {
        let relaying = scope.spawn(move || {
            let (mut client, _) = relay.accept().unwrap();
            let mut numbers = (0..).map(before);
            while numbers.next().unwrap().is_continue()
                && pass(&mut client, &mut theirs)
                && pass(&mut theirs, &mut client)
            {}
            theirs
        });
        let done = act(Client::connect_with(&address, with_token(TOKEN)).unwrap());
        (done, relaying.join().unwrap())
    })
}
