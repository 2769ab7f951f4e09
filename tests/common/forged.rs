//! A relay that changes what a verbs server says of itself, for the tests with a real device and
//! with the fake one.

use crate::{TOKEN, at, options, refused};
use oneread::internals::verbs::SetupError;
use oneread::{Address, VerbsAddress};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Relays a conversation and changes the text of the server's welcome. The relay knows the token.
/// With `sign`, it makes the server's proof again, so that the client cannot see the change.
pub fn relay(
    server: &VerbsAddress,
    sign: bool,
    change: impl Fn(String) -> String + Send + 'static,
) -> Address {
    forge(server, sign, |join| join, change)
}

/// Relays a conversation and changes the text of the client's message, the server's welcome, or
/// both.
pub fn forge(
    server: &VerbsAddress,
    sign: bool,
    change_join: impl Fn(String) -> String + Send + 'static,
    change_welcome: impl Fn(String) -> String + Send + 'static,
) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = at(&listener.local_addr().unwrap().to_string());
    let to = (server.host().to_owned(), server.port());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) =
                (client.unwrap(), TcpStream::connect((to.0.as_str(), to.1)).unwrap());
            let message = |from: &mut TcpStream| {
                let mut length = [0; 4];
                from.read_exact(&mut length).ok()?;
                let mut body = vec![0; u32::from_le_bytes(length) as usize];
                from.read_exact(&mut body).ok()?;
                String::from_utf8(body).ok()
            };
            let send = |to: &mut TcpStream, body: &str| {
                to.write_all(&[&(body.len() as u32).to_le_bytes()[..], body.as_bytes()].concat()).unwrap();
            };
            let Some(challenge) = message(&mut server) else { continue };
            send(&mut client, &challenge);
            let Some(join) = message(&mut client) else { continue };
            let nonces = [bytes_of(&challenge, "nonce"), bytes_of(&join, "nonce")];
            let signed = |role: &str, text: String| {
                if !sign {
                    return text;
                }
                let zeros = with_field(&text, "proof", &format!("{:?}", [0u8; 32]).replace(' ', ""));
                let proof = proof(role, &nonces, &zeros);
                with_field(&text, "proof", &format!("{proof:?}").replace(' ', ""))
            };
            send(&mut server, &signed("oneread client", change_join(join)));
            let Some(mut answer) = message(&mut server) else { continue };
            if let Some(welcome) = answer.strip_prefix("{\"Welcome\":") {
                let welcome = change_welcome(welcome.strip_suffix('}').unwrap().to_owned());
                answer = format!("{{\"Welcome\":{}}}", signed("oneread server", welcome));
            }
            send(&mut client, &answer);
            // Nothing more is said. When one side hangs up, so does the other.
            for (mut from, to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                std::thread::spawn(move || {
                    let _ = from.read(&mut [0]);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// The proof of a message whose own proof is zeros, as src/verbs/bootstrap.rs describes it.
fn proof(role: &str, nonces: &[Vec<u8>; 2], message: &str) -> Vec<u8> {
    use hmac::{Hmac, KeyInit, Mac};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(TOKEN.as_bytes()).unwrap();
    let [server, client] = nonces;
    [role.as_bytes(), server, client, message.as_bytes()].iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

fn bytes_of(json: &str, field: &str) -> Vec<u8> {
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    json[field].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect()
}

/// The text with another value in one field. The value is a number, or an array that contains no
/// arrays.
pub fn with_field(json: &str, field: &str, value: &str) -> String {
    let name = format!("\"{field}\":");
    let start = json.find(&name).expect("the field") + name.len();
    let end = if json[start..].starts_with('[') {
        json[start..].find(']').map(|n| n + 1)
    } else {
        json[start..].find([',', '}'])
    };
    format!("{}{value}{}", &json[..start], &json[start + end.expect("its end")..])
}

pub fn number_in(json: &str, field: &str) -> u64 {
    let name = format!("\"{field}\":");
    let rest = &json[json.find(&name).expect("the field") + name.len()..];
    rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
}

/// A client checks a server's welcome before it uses it. A relay that does not know the token can
/// change nothing.
pub fn forged_welcomes(server: &VerbsAddress) {
    // A region too short for its table, messages shorter than its pairs, no READs allowed, other
    // networks.
    for (field, value) in [
        ("bytes", "8192"),
        ("message_bytes", "64"),
        ("messages", "17"),
        ("reads", "0"),
        ("mtu", "1000"),
        ("infiniband", "true"),
        ("kind", "1"),
    ] {
        let address = relay(server, true, move |welcome| with_field(&welcome, field, value));
        let error = refused(&address, options());
        let is_refused = match field {
            "infiniband" | "kind" => matches!(error, SetupError::Mismatch { .. }),
            _ => matches!(error, SetupError::Table { .. }),
        };
        assert!(is_refused, "{field}: {error}");
    }
    for field in ["key", "message_bytes", "first_packet"] {
        let address = relay(server, false, move |welcome| {
            let other = number_in(&welcome, field) ^ 8192;
            with_field(&welcome, field, &other.to_string())
        });
        let error = refused(&address, options());
        assert!(matches!(error, SetupError::Token { .. }), "{field}: {error}");
    }
}
