//! Values that clients encrypt, on shm and over TCP. `tests/verbs/faked/` has the same over verbs, and the format
//! is tested beside it, in `src/encryption/xchacha/tests.rs`.

use crate::common::*;
use crate::encrypted::{STORED_MAX, assert_gets, check_parts, encrypted_values, ours};
use oneread::internals::placement::Preset;
use oneread::internals::region::Backing;
use oneread::internals::wire::{self, FRAME_VALUE_MAX, Request};
use oneread::{
    Address, Client, ClientOptions, Config, ConnectError, Encryption, GetError, MutateError, PutOutcome,
    RequestPath, Server, ServerConfig, SwapOutcome, TableSize,
    error::{DecryptError, KeyError, PutError},
};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

over_shm_and_tcp! {
    values_are_encrypted,
    answers_are_those_of_any_client,
    long_values_are_encrypted,
    a_client_is_a_map,
    tables_without_room_for_the_overhead,
    a_part_that_cannot_be_read_is_empty,
}

impl Place {
    fn serve(&self, preset: &Preset, value_max: usize) -> Server {
        let table = config(preset, 2048, 16, value_max, 11);
        Server::start(ServerConfig::new(self.address.clone(), table)).unwrap()
    }

    fn client(&self, options: ClientOptions) -> Client {
        Client::connect_with(&self.address, options).unwrap()
    }
}

/// Every call encrypts and decrypts; what does not decrypt is an error of its own; nothing that was
/// altered is taken.
fn values_are_encrypted(over: Over) {
    let place = over.place();
    let _server = place.serve(default_preset(), STORED_MAX);
    for path in over.paths() {
        encrypted_values(&|encryption| place.client(patient().requests(path).encryption(encryption)));
    }
}

/// With hints, too: the first READ may be of a single slot.
#[test]
fn hinted_values_are_decrypted() {
    let place = Place::new();
    let _server = place.serve(default_preset(), STORED_MAX);
    encrypted_values(&|encryption| place.client(patient().hint_bytes(1 << 16).encryption(encryption)));
}

/// A client that encrypts answers as one that does not: batches, swaps, wrong lengths.
fn answers_are_those_of_any_client(over: Over) {
    let place = over.place();
    let _server = place.serve(default_preset(), STORED_MAX);
    for path in over.paths() {
        let mut client = place.client(patient().requests(path).encryption(ours()));
        batches_and_swaps(&mut client);
        bad_pairs_in_batches(&mut client);
    }
}

/// A client that encrypts is a map, on every preset.
fn a_client_is_a_map(over: Over) {
    on_every_preset(|preset| {
        let place = over.place();
        let server = place.serve(preset, 32 + Encryption::OVERHEAD);
        let mut client = place.client(patient().encryption(ours()));
        let (mut model, mut numbers) = (Model::default(), Numbers(5));
        for _ in 0..1000 {
            let n = numbers.below(600) as u32;
            let op = some_op(&mut numbers, n, 12);
            assert_eq!(model.apply(&mut client, &op), None, "{op:?}");
        }
        assert_eq!(client.server_stats().unwrap().keys, model.keys.len() as u64);
        server.stop();
    });
}

/// Values that fit no slot, and no frame, are read whole, in parts and in batches, and swapped. What was
/// altered or cut anywhere is an error, also of a part that is whole, and so is a wrong secret.
fn long_values_are_encrypted(over: Over) {
    const LONGEST: usize = 1 << 20;
    const FITS: usize = FRAME_VALUE_MAX - Encryption::OVERHEAD;
    let place = over.place();
    let table = Config::new()
        .size(TableSize::Slots(256))
        .key_max(16)
        .value_max(LONGEST + Encryption::OVERHEAD)
        .inline_max(100)
        .heap_bytes(128 << 20)
        .grace(Duration::from_micros(100));
    let _server = Server::start(ServerConfig::new(place.address.clone(), table)).unwrap();
    for path in over.paths() {
        let connect = |encryption| place.client(patient().requests(path).encryption(encryption));
        let (mut ours, mut plain) = (connect(Some(ours())), connect(None));
        let mut wrong = connect(Some(Encryption::new(&[8; 32], "tests")));
        assert_eq!(ours.value_max(), LONGEST);
        let key: &[u8] = b"key";
        let lengths = [0, 59, 60, 500, FITS - 1, FITS, FITS + 1, 65_536, 100_003, LONGEST];
        let value_of = |seed, len| value(seed, len);
        for (n, len) in (0..).zip(lengths) {
            let (value, other) = (value_of(n, len), value_of(n + 100, len / 2 + 1));
            ours.put(key, &value).unwrap();
            let stored = plain.get(key).unwrap().expect("it is there");
            assert_eq!(stored.len(), len + Encryption::OVERHEAD);
            assert_eq!(plain.value_len(key).unwrap(), Some(stored.len()));
            assert!(ours.get(key).unwrap().as_ref() == Some(&value), "{len} by {path:?}");
            check_parts(&mut ours, key, &value);
            let batch = ours.get_many(&[key, b"absent", key]).unwrap();
            assert!(batch == [Ok(Some(value.clone())), Ok(None), Ok(Some(value.clone()))], "{len}");
            // Another secret.
            let mut part = b"before".to_vec();
            assert_gets(wrong.get(key), DecryptError::Altered);
            assert_gets(wrong.get_range(key, 0..1, &mut part), DecryptError::Altered);
            assert_eq!(part, b"");
            let undecrypted = Err(KeyError::Decrypt(DecryptError::Altered));
            assert_eq!(wrong.get_many(&[key]).unwrap(), [undecrypted]);
            assert!(matches!(wrong.compare_and_swap(key, &value, b""), Err(MutateError::Decrypt(_))));
            // A flipped bit anywhere, and a cut.
            for byte in [0, 1, 24, 25, stored.len() / 2, stored.len() - 17, stored.len() - 1] {
                let mut altered = stored.clone();
                altered[byte] ^= 0x10;
                plain.put(key, &altered).unwrap();
                let expected = match byte {
                    0 => DecryptError::Version { version: altered[0] },
                    _ => DecryptError::Altered,
                };
                assert_gets(ours.get(key), expected);
                assert_gets(ours.get_range(key, 0..1, &mut part), expected);
                assert_gets(ours.get_range(key, len..usize::MAX, &mut part), expected);
            }
            for cut in [0, Encryption::OVERHEAD - 1, stored.len() - 1] {
                plain.put(key, &stored[..cut]).unwrap();
                let is_short = cut < Encryption::OVERHEAD;
                let expected =
                    if is_short { DecryptError::Length { given: cut } } else { DecryptError::Altered };
                assert_gets(ours.get(key), expected);
                assert_gets(ours.get_range(key, 0..1, &mut part), expected);
                assert_eq!(ours.value_len(key).is_err(), is_short, "{len}, cut to {cut}");
            }
            // The value of another key.
            plain.put(b"other", &stored).unwrap();
            assert_gets(ours.get(b"other"), DecryptError::Altered);
            plain.put(key, &stored).unwrap();
            for (expected, new, outcome) in [
                (&other, &value, SwapOutcome::Differs),
                (&value, &other, SwapOutcome::Swapped),
                (&other, &value, SwapOutcome::Swapped),
            ] {
                assert_eq!(ours.compare_and_swap(key, expected, new).unwrap(), outcome, "{len} by {path:?}");
            }
            // To absence, and from it.
            for (expected, new, outcome) in [
                (Some(&other), None, SwapOutcome::Differs),
                (Some(&value), None, SwapOutcome::Swapped),
                (Some(&value), None, SwapOutcome::Absent),
                (None, Some(&value), SwapOutcome::Swapped),
                (None, Some(&other), SwapOutcome::Differs),
            ] {
                let (expected, new) =
                    (expected.map(|value| &value[..]), new.map(|value: &Vec<u8>| &value[..]));
                assert_eq!(ours.compare_exchange(key, expected, new).unwrap(), outcome, "{len} by {path:?}");
            }
            assert!(ours.get(key).unwrap() == Some(value));
            // The server cannot change a part of what it cannot read, and is not asked.
            let before = ours.stats();
            let refused = [
                ours.add(key, 1, Some(0)).map(drop),
                ours.or(key, b"\x01").map(drop),
                ours.and_not(key, b"\x01").map(drop),
                ours.append(key, b"+", usize::MAX).map(drop),
                ours.add_many(&[(key, 1)], None).map(drop),
            ];
            assert!(refused.iter().all(|error| matches!(error, Err(MutateError::Encrypted))), "{refused:?}");
            assert_eq!(ours.stats().requests, before.requests);
        }
        let pairs =
            [(&b"one"[..], value_of(1, 50_000)), (b"two", value_of(2, 9)), (b"six", value_of(6, FITS))];
        assert!(ours.put_many(&pairs).unwrap().iter().all(Result::is_ok));
        let keys = pairs.each_ref().map(|(key, _)| *key);
        let values = pairs.map(|(_, value)| Ok(Some(value)));
        assert!(ours.get_many(&keys).unwrap() == values);
        let long = vec![1; LONGEST + 1];
        let (stored, stored_max) = (long.len() + Encryption::OVERHEAD, LONGEST + Encryption::OVERHEAD);
        let refused = PutError::EncryptedLength { given: long.len(), stored, stored_max };
        assert_eq!(ours.put(key, &long).unwrap_err().rejection(), Some(refused.clone()));
        assert_eq!(ours.compare_and_swap(key, &long, b"").unwrap_err().rejection(), Some(refused));
        ours.remove_many(&[key, b"other", b"one", b"two", b"six"]).unwrap();
    }
}

/// A table whose values are too short for any encrypted one says so, and takes none. One that is just
/// long enough takes empty values.
fn tables_without_room_for_the_overhead(over: Over) {
    for (value_max, is_ok) in [(0, false), (Encryption::OVERHEAD - 1, false), (Encryption::OVERHEAD, true)] {
        let place = over.place();
        let _server = place.serve(default_preset(), value_max);
        let mut client = place.client(patient().encryption(ours()));
        assert_eq!(client.value_max(), 0);
        let wrong =
            PutError::EncryptedLength { given: 0, stored: Encryption::OVERHEAD, stored_max: value_max };
        match client.put(b"key", b"") {
            Ok(outcome) => assert_eq!((outcome, is_ok), (PutOutcome::Inserted, true)),
            Err(error) => assert_eq!((error.rejection(), is_ok), (Some(wrong.clone()), false), "{error}"),
        }
        assert_eq!(client.get(b"key").unwrap(), is_ok.then(Vec::new));
        if !is_ok {
            let error = client.compare_and_swap(b"key", b"", b"").unwrap_err();
            assert_eq!(error.rejection(), Some(wrong));
        }
    }
}

/// Passes on what one client and the server say, and calls `at_swap` before each swap.
fn pass_on(listener: &UnixListener, server: &Address, mut at_swap: impl FnMut()) {
    fn frame(stream: &mut UnixStream) -> Option<Vec<u8>> {
        let (mut bytes, mut chunk) = (Vec::new(), [0; 512]);
        while wire::decode(&bytes).unwrap().is_none() {
            match stream.read(&mut chunk).unwrap() {
                0 => return None,
                more => bytes.extend_from_slice(&chunk[..more]),
            }
        }
        Some(bytes)
    }
    let (mut client, _) = listener.accept().unwrap();
    let mut server = UnixStream::connect(server.socket().unwrap()).unwrap();
    let hello = frame(&mut client).unwrap();
    let id = wire::decode(&hello).unwrap().unwrap().id;
    server.write_all(&hello).unwrap();
    let (welcome, region) = receive(&server);
    let mut bytes = Vec::new();
    welcome.encode(id, &mut bytes);
    send_with(&client, &bytes, &region.unwrap());
    while let Some(request) = frame(&mut client) {
        let decoded = wire::decode(&request).unwrap().unwrap();
        if matches!(Request::decode(&decoded), Ok(Request::Swap { .. })) {
            at_swap();
        }
        server.write_all(&request).unwrap();
        client.write_all(&frame(&mut server).unwrap()).unwrap();
    }
}

/// The key is put again between the look at its value and the swap: with the same value, which the
/// client does not tell from no change, or with another one, which it tells. If that happens each
/// time, the swap ends at its bound.
#[test]
fn swaps_that_are_overtaken() {
    let place = Place::new();
    let _server = place.serve(default_preset(), STORED_MAX);
    let relayed = Place::new();
    let listener = UnixListener::bind(relayed.address.socket().unwrap()).unwrap();
    let mut putting = place.client(patient().encryption(ours()));
    for (then, times, expected) in [
        (Some(&b"value"[..]), 3, Ok(SwapOutcome::Swapped)),
        (Some(b"other"), 1, Ok(SwapOutcome::Differs)),
        (None, 1, Ok(SwapOutcome::Absent)),
        (Some(b"value"), u32::MAX, Err(())),
    ] {
        putting.put(b"key", b"value").unwrap();
        let mut overtaken = 0;
        std::thread::scope(|scope| {
            let relay = scope.spawn(|| {
                pass_on(&listener, &place.address, || {
                    if overtaken < times {
                        overtaken += 1;
                        match then {
                            Some(value) => drop(putting.put(b"key", value).unwrap()),
                            None => drop(putting.remove(b"key").unwrap()),
                        }
                    }
                });
            });
            let options = patient().requests(RequestPath::Message).encryption(ours());
            let mut client = relayed.client(options);
            match (client.compare_and_swap(b"key", b"value", b"new"), expected) {
                (Ok(outcome), expected) => assert_eq!(Ok(outcome), expected),
                (Err(MutateError::Busy { rounds }), Err(())) => assert_eq!(rounds, 1000),
                (Err(error), _) => panic!("{error}"),
            }
            drop(client);
            relay.join().unwrap();
        });
        assert!(overtaken == times || times == u32::MAX, "{overtaken} of {times}");
        let left = match expected {
            Ok(SwapOutcome::Swapped) => Some(&b"new"[..]),
            _ => then,
        };
        assert_eq!(putting.get(b"key").unwrap().as_deref(), left);
    }
}

/// A server that is gone leaves its region. What was encrypted is decrypted from there, also by a
/// client that comes later and reads the file; without the secret there is only ciphertext.
#[test]
fn regions_hold_ciphertext() {
    const VALUE: &[u8] = b"a value that nobody else may read";
    let place = Place::new();
    let file = place.dir.path().join("region");
    let table = config(default_preset(), 2048, 16, STORED_MAX, 11);
    let server =
        Server::start(ServerConfig::new(place.address.clone(), table).backing(Backing::File(file.clone())))
            .unwrap();
    let mut client = place.client(patient().encryption(ours()));
    for n in 0..500u32 {
        client.put(&n.to_le_bytes(), VALUE).unwrap();
    }
    server.stop();
    let region = std::fs::read(&file).unwrap();
    assert!(
        !region.windows(8).any(|part| VALUE.windows(8).any(|of| part == of)),
        "plain bytes are in the file"
    );
    let mut late = place.client(patient().region(file.clone()).encryption(ours()));
    assert!(!late.is_served());
    for n in 0..500u32 {
        assert_eq!(late.get(&n.to_le_bytes()).unwrap().as_deref(), Some(VALUE));
    }
    let mut wrong = place.client(patient().region(file).encryption(Encryption::new(&[8; 32], "tests")));
    assert!(matches!(wrong.get(&0u32.to_le_bytes()), Err(GetError::Decrypt(_))));
    assert!(matches!(late.put(b"key", b"value"), Err(MutateError::Connect(ConnectError::NotThere { .. }))));
}

/// A part of a value that cannot be had is empty, whatever the error is.
fn a_part_that_cannot_be_read_is_empty(over: Over) {
    let place = over.place();
    let server = place.serve(default_preset(), STORED_MAX);
    let mut client = place.client(patient().encryption(ours()));
    client.put(b"key", b"value").unwrap();
    let hasty = patient().deadline(Duration::from_millis(200)).encryption(ours());
    let mut hasty = wait_for("a connection", || Client::connect_with(&place.address, hasty.clone()).ok());
    let mut part = Vec::new();
    let mut read = |key: &[u8], client: &mut Client| {
        part = b"before".to_vec();
        let result = client.get_range(key, 1..4, &mut part);
        (result, part.clone())
    };
    assert!(matches!(read(b"key", &mut client), (Ok(Some(5)), part) if part == b"alu"));
    assert!(matches!(read(b"none", &mut client), (Ok(None), part) if part == b""));
    assert!(matches!(read(b"", &mut client), (Err(GetError::KeyLength { .. }), part) if part == b""));
    server.stop();
    let (error, part) = read(b"key", &mut hasty);
    assert!(matches!(error, Err(GetError::ServerGone { .. } | GetError::Connect(_))), "{error:?}");
    assert_eq!(part, b"");
}
