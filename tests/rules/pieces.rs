//! Values that come over TCP in pieces, and are replaced meanwhile.

use crate::relay::{connect, relayed, serve};
use oneread::{Client, Config, TableSize};
use std::ops::ControlFlow;

const PIECE: usize = 60 << 10;
const REPLACED_LEN: usize = 5 * PIECE + 17;

fn whole(number: u8) -> Vec<u8> {
    vec![number; REPLACED_LEN]
}

/// What a GET finds whose value is replaced by another one as long, after its first piece has come.
fn found_while_it_is_replaced() -> Vec<u8> {
    let table = Config::new().size(TableSize::Slots(256)).key_max(16).value_max(1 << 20).inline_max(40);
    let server = serve(table.heap_bytes(32 << 20));
    let mut writer = connect(&server);
    writer.put(b"key", &whole(1)).unwrap();
    // The client says hello, joins, and asks for the first piece. The next request is for another one.
    let replace = |number| {
        if number == 3 {
            writer.put(b"key", &whole(2)).unwrap();
        }
        ControlFlow::Continue(())
    };
    let get = |mut client: Client| {
        let found = client.get(b"key").unwrap().expect("the key is always there");
        let is_told = client.stats().get.retries_replaced == 1;
        assert!(is_told || found.iter().any(|&byte| byte != found[0]), "it is looked at again, and counted");
        found
    };
    relayed(&server, replace, get).0
}

/// X11: pieces of two values are not taken for one. The GET begins again.
#[test]
fn a_value_that_is_replaced_is_asked_for_again() {
    assert!(found_while_it_is_replaced() == whole(2));
}

/// X11, broken: the first piece is of the one value, and the others are of the other.
#[cfg(feature = "faults")]
#[test]
fn pieces_of_two_values_are_noticed() {
    use oneread::internals::faults::{Broken, Rule};
    let _broken = Broken::rule(Rule::PieceNumber);
    let found = found_while_it_is_replaced();
    assert!(found[..PIECE] == whole(1)[..PIECE] && found[PIECE..] == whole(2)[PIECE..]);
}
