//! Values that clients encrypt, over any fabric.

use oneread::{
    Client, Encryption, GetError, MutateError, PutOutcome, SwapOutcome, Values,
    error::{DecryptError, KeyError, PutError},
};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Clients of one table, whose values may be 46 bytes long encrypted: with encryption or without.
pub type Connect<'a> = &'a dyn Fn(Option<Encryption>) -> Client;

/// The `value_max` of such a table.
pub const STORED_MAX: usize = 46 + Encryption::OVERHEAD;

const SECRET: [u8; 32] = [7; 32];

/// The encryption of these tests.
pub fn ours() -> Encryption {
    Encryption::new(&SECRET, "tests")
}

/// Everything that is tested over each fabric.
pub fn encrypted_values(connect: Connect<'_>) {
    every_call_encrypts(connect);
    wrong_secrets_and_namespaces(connect);
    batches_with_one_bad_value(connect);
    values_that_were_tampered_with(connect);
    values_that_are_too_long(connect);
    swaps_of_what_is_put_again(connect);
}

/// A story on an empty table.
fn emptied(client: &mut Client, keys: &[&[u8]]) {
    client.remove_many(keys).unwrap();
}

/// Each way to put a value puts it encrypted, and each way to read it gives it back. A client without
/// the secret sees ciphertext, each time another one.
fn every_call_encrypts(connect: Connect<'_>) {
    let mut plain = connect(None);
    let mut ours = connect(Some(ours()));
    assert_eq!((plain.value_max(), ours.value_max()), (STORED_MAX, 46));
    let key: &[u8] = b"key";
    let mut seen = Vec::new();
    // After each change.
    let mut check = |ours: &mut Client, value: &[u8]| {
        let stored = plain.get(key).unwrap().expect("the key is there");
        assert_eq!(stored.len(), value.len() + Encryption::OVERHEAD);
        assert!(
            !stored.windows(4).any(|part| value.windows(4).any(|of| part == of)),
            "plain bytes are stored"
        );
        assert!(!seen.contains(&stored), "a ciphertext came twice");
        seen.push(stored.clone());
        assert_eq!(self::ours().decrypt(key, &stored).as_deref(), Ok(value));
        check_parts(ours, key, value);
        let value = Some(value);
        assert_eq!(ours.get(key).unwrap().as_deref(), value);
        let mut into = b"what was there before, and is longer than the value that replaces it".to_vec();
        assert!(ours.get_into(key, &mut into).unwrap());
        assert_eq!(Some(&into[..]), value);
        assert_eq!(ours.get_two_sided(key).unwrap().as_deref(), value);
        let keys = [key, b"absent", key];
        let owned = value.map(<[u8]>::to_vec);
        assert_eq!(ours.get_many(&keys).unwrap(), [Ok(owned.clone()), Ok(None), Ok(owned)]);
        let mut values = Values::new();
        ours.get_many_into(&keys, &mut values).unwrap();
        assert!(values.iter().eq([value, None, value]) && values.refused().is_empty());
        let told = ours
            .get_many_with(&[key], |n, answer| ControlFlow::Break((n, answer.unwrap().map(<[u8]>::to_vec))));
        let ControlFlow::Break((0, Some(found))) = told.unwrap() else { panic!("nothing was told") };
        assert_eq!(Some(&found[..]), value);
        let mut present = Vec::new();
        ours.contains_many(&keys, &mut present).unwrap();
        assert!(present == [0b101] && ours.contains(key).unwrap() && !ours.contains(b"absent").unwrap());
        assert_eq!(ours.get(b"absent").unwrap(), None);
        assert!(!ours.get_into(b"absent", &mut into).unwrap());
        assert_eq!(ours.get_range(b"absent", 0..9, &mut into).unwrap(), None);
        assert_eq!(ours.value_len(b"absent").unwrap(), None);
        assert_eq!(ours.get_two_sided(b"absent").unwrap(), None);
    };
    use PutOutcome::{Exists, Inserted, Missing, Updated};
    assert_eq!(ours.put(key, b"by put").unwrap(), Inserted);
    check(&mut ours, b"by put");
    assert_eq!(ours.put(key, b"by put").unwrap(), Updated);
    check(&mut ours, b"by put");
    assert_eq!(ours.update(key, b"by update").unwrap(), Updated);
    check(&mut ours, b"by update");
    assert_eq!(ours.compare_and_swap(key, b"by update", b"by swap").unwrap(), SwapOutcome::Swapped);
    check(&mut ours, b"by swap");
    assert_eq!(ours.insert(key, b"never").unwrap(), Exists);
    assert!(ours.remove(key).unwrap());
    assert_eq!(ours.update(key, b"never").unwrap(), Missing);
    assert_eq!(ours.insert(key, b"by insert").unwrap(), Inserted);
    check(&mut ours, b"by insert");
    assert_eq!(ours.put_many(&[(key, b"by put_many")]).unwrap(), [Ok(Updated)]);
    check(&mut ours, b"by put_many");
    assert_eq!(ours.update_many(&[(key, b"by update_many")]).unwrap(), [Ok(Updated)]);
    check(&mut ours, b"by update_many");
    assert_eq!(ours.remove_many(&[key]).unwrap(), [Ok(true)]);
    assert_eq!(
        ours.insert_many(&[(key, &b"by insert_many"[..]), (key, b"never")]).unwrap(),
        [Ok(Inserted), Ok(Exists)]
    );
    check(&mut ours, b"by insert_many");
    // A clone has the same secret, before and after its first request.
    let mut cloned = ours.clone();
    assert_eq!(cloned.get(key).unwrap().as_deref(), Some(&b"by insert_many"[..]));
    assert_eq!(cloned.put(key, b"by a clone").unwrap(), Updated);
    check(&mut cloned, b"by a clone");
    assert_eq!(cloned.put(key, b"").unwrap(), Updated);
    check(&mut ours, b"");
    assert_eq!(ours.stats().failures.undecrypted, 0);
    emptied(&mut ours, &[key]);
}

/// Parts of a value are those of what was put, and its length is, too.
pub fn check_parts(ours: &mut Client, key: &[u8], value: &[u8]) {
    let len = value.len();
    assert_eq!(ours.value_len(key).unwrap(), Some(len));
    let mut part = b"before".to_vec();
    for range in [0..len, 0..1, len / 3..len / 2, len.saturating_sub(1)..usize::MAX, len..len + 9] {
        assert_eq!(ours.get_range(key, range.clone(), &mut part).unwrap(), Some(len));
        assert!(part == value[range.start.min(len)..range.end.min(len)], "{range:?} of {len}");
    }
}

#[track_caller]
pub fn assert_gets(result: Result<impl fmt::Debug, GetError>, expected: DecryptError) {
    match result {
        Err(GetError::Decrypt(error)) => assert_eq!(error, expected),
        other => panic!("it should not decrypt: {other:?}"),
    }
}

#[track_caller]
fn assert_asks(result: Result<impl fmt::Debug, MutateError>, expected: DecryptError) {
    match result {
        Err(error @ MutateError::Decrypt(why)) => assert_eq!((why, error.rejection()), (expected, None)),
        other => panic!("it should not decrypt: {other:?}"),
    }
}

/// Every call that needs the value ends in this error, and gives nothing of it away. The others work.
fn refuses(client: &mut Client, key: &[u8], expected: DecryptError) {
    let before = client.stats().failures;
    assert_gets(client.get(key), expected);
    let mut into = b"before".to_vec();
    assert_gets(client.get_into(key, &mut into), expected);
    assert_eq!(into, b"");
    let mut part = b"before".to_vec();
    assert_gets(client.get_range(key, 0..1, &mut part), expected);
    assert_eq!(part, b"");
    assert_gets(client.get_two_sided(key), expected);
    assert_asks(client.compare_and_swap(key, b"value", b"new"), expected);
    let failed = || KeyError::Decrypt(expected);
    assert_eq!(client.get_many(&[key, b"absent"]).unwrap(), [Err(failed()), Ok(None)]);
    let mut values = Values::new();
    client.get_many_into(&[b"absent", key], &mut values).unwrap();
    assert_eq!((values.get(1), values.refused()), (None, &[(1, failed())][..]));
    assert!(client.contains(key).unwrap(), "the key is there");
    let mut present = Vec::new();
    client.contains_many(&[key], &mut present).unwrap();
    assert_eq!(present, [1]);
    let failures = client.stats().failures;
    assert_eq!(failures.undecrypted - before.undecrypted, 7);
    assert_eq!(client.counters().stats().failures, failures, "each is published");
    assert_eq!((failures.gone, failures.refused), (before.gone, before.refused));
    // Nothing is decrypted for it.
    match client.value_len(key) {
        Ok(Some(_)) => {}
        other => assert!(matches!(other, Err(GetError::Decrypt(DecryptError::Length { .. }))), "{other:?}"),
    }
}

/// A client with another secret or namespace reads nothing of a value, nor does one that encrypts read
/// a value that was put without encryption. Each may replace or remove it.
fn wrong_secrets_and_namespaces(connect: Connect<'_>) {
    let key: &[u8] = b"key";
    let mut ours = connect(Some(ours()));
    ours.put(key, b"value").unwrap();
    let mut secret = SECRET;
    secret[31] ^= 0x80;
    for wrong in
        [Encryption::new(&secret, "tests"), Encryption::new(&SECRET, "test"), Encryption::new(&SECRET, "")]
    {
        refuses(&mut connect(Some(wrong)), key, DecryptError::Altered);
    }
    assert_eq!(ours.get(key).unwrap().as_deref(), Some(&b"value"[..]), "nobody has changed it");
    let mut plain = connect(None);
    for (value, expected) in [
        (&b""[..], DecryptError::Length { given: 0 }),
        (b"value", DecryptError::Version { version: b'v' }),
        (b"\x01value", DecryptError::Length { given: 6 }),
        (b"\x01 a plain value that begins as if it were encrypted", DecryptError::Altered),
    ] {
        plain.put(key, value).unwrap();
        refuses(&mut ours, key, expected);
    }
    assert_eq!(ours.put(key, b"again").unwrap(), PutOutcome::Updated);
    assert_eq!(ours.get(key).unwrap().as_deref(), Some(&b"again"[..]));
    emptied(&mut ours, &[key]);
}

/// One value of a batch does not decrypt, in each place: that key has an error, the others their
/// values.
fn batches_with_one_bad_value(connect: Connect<'_>) {
    let (mut ours, mut plain) = (connect(Some(ours())), connect(None));
    let keys: Vec<_> = (0..40u32).map(|n| n.to_le_bytes()).collect();
    let pairs: Vec<_> = keys.iter().map(|key| (key, key)).collect();
    assert!(ours.put_many(&pairs).unwrap().iter().all(Result::is_ok));
    for bad in 0..keys.len() {
        plain.put(&keys[bad], b"plain").unwrap();
        let expected = DecryptError::Version { version: b'p' };
        for (n, answer) in ours.get_many(&keys).unwrap().into_iter().enumerate() {
            let right = if n == bad { Err(expected.into()) } else { Ok(Some(keys[n].to_vec())) };
            assert_eq!(answer, right, "key {n}, {bad} is bad");
        }
        let mut answered = 0;
        let broken_off = ours.get_many_with(&keys, |n, answer| {
            answered += 1;
            if answer.is_err() { ControlFlow::Break(n) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(broken_off.unwrap(), ControlFlow::Break(bad));
        assert!((1..=keys.len()).contains(&answered));
        ours.put(&keys[bad], &keys[bad]).unwrap();
    }
    assert_eq!(ours.stats().failures.undecrypted, 2 * keys.len() as u64);
    ours.remove_many(&keys).unwrap();
}

/// What whoever can write to the table can do. Values of other keys, flipped bits and cut values are
/// noticed. An older value of the same key is not.
fn values_that_were_tampered_with(connect: Connect<'_>) {
    let (one, other): (&[u8], &[u8]) = (b"one", b"other");
    let (mut ours, mut plain) = (connect(Some(ours())), connect(None));
    ours.put(one, b"old").unwrap();
    let old = plain.get(one).unwrap().unwrap();
    ours.put(one, b"new").unwrap();
    ours.put(other, b"value").unwrap();
    let stored = [one, other].map(|key| plain.get(key).unwrap().unwrap());
    plain.put(one, &stored[1]).unwrap();
    plain.put(other, &stored[0]).unwrap();
    refuses(&mut ours, one, DecryptError::Altered);
    refuses(&mut ours, other, DecryptError::Altered);
    for bit in 0..8 * stored[1].len() {
        let mut altered = stored[1].clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            0 => DecryptError::Version { version: altered[0] },
            _ => DecryptError::Altered,
        };
        plain.put(other, &altered).unwrap();
        assert_gets(ours.get(other), expected);
    }
    for length in 0..stored[1].len() {
        plain.put(other, &stored[1][..length]).unwrap();
        let cut = if length < Encryption::OVERHEAD {
            DecryptError::Length { given: length }
        } else {
            DecryptError::Altered
        };
        assert_gets(ours.get(other), cut);
    }
    plain.put(other, &stored[1]).unwrap();
    assert_eq!(ours.get(other).unwrap().as_deref(), Some(&b"value"[..]));
    plain.put(one, &old).unwrap();
    assert_eq!(ours.get(one).unwrap().as_deref(), Some(&b"old"[..]), "as documented");
    emptied(&mut ours, &[one, other]);
}

/// A value that is too long when it is encrypted is refused with all three lengths, whatever the call.
fn values_that_are_too_long(connect: Connect<'_>) {
    let key: &[u8] = b"key";
    let mut ours = connect(Some(ours()));
    let (longest, long) = (vec![1; 46], vec![1; 47]);
    let wrong =
        || PutError::EncryptedLength { given: 47, stored: 47 + Encryption::OVERHEAD, stored_max: STORED_MAX };
    let rejected = |result: Result<PutOutcome, MutateError>| result.unwrap_err().rejection();
    for there in [false, true] {
        assert_eq!(rejected(ours.put(key, &long)), Some(wrong()));
        assert_eq!(rejected(ours.insert(key, &long)), Some(wrong()));
        assert_eq!(rejected(ours.update(key, &long)), Some(wrong()));
        let swapped = ours.compare_and_swap(key, b"", &long).unwrap_err().rejection();
        assert_eq!(swapped, Some(wrong()));
        let swapped = ours.compare_and_swap(key, &long, b"").unwrap_err().rejection();
        assert_eq!(swapped, Some(wrong()));
        assert_eq!(ours.get(key).unwrap(), there.then(|| longest.clone()));
        let answers = ours.put_many(&[(key, &long), (key, &longest)]).unwrap();
        assert!(answers[0] == Err(wrong()) && answers[1].is_ok());
    }
    let told = ours.put(key, &long).unwrap_err().to_string();
    assert!(
        told.starts_with("the value is 47 bytes long, 88 when encrypted, and this table takes 0 to 87; "),
        "{told}"
    );
    assert!(told.ends_with("a new table, with a `Config::value_max` of at least 88"), "{told}");
    emptied(&mut ours, &[key]);
}

/// While one client puts the same value again and again, each time as other bytes, another one expects
/// that value: it never hears that the value differs.
fn swaps_of_what_is_put_again(connect: Connect<'_>) {
    let key: &[u8] = b"key";
    let mut ours = connect(Some(ours()));
    ours.put(key, b"same").unwrap();
    let stop = AtomicBool::new(false);
    let mut putting = ours.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                putting.update(key, b"same").unwrap();
            }
        });
        // The putting thread has to end before the first wrong answer is told.
        let told: Vec<_> = (0..30).map(|_| ours.compare_and_swap(key, b"same", b"same")).collect();
        let other = ours.compare_and_swap(key, b"other", b"");
        stop.store(true, Ordering::Relaxed);
        for outcome in told {
            // Overtaken too often, it says so.
            let is_right = matches!(outcome, Ok(SwapOutcome::Swapped) | Err(MutateError::Busy { .. }));
            assert!(is_right, "{outcome:?}");
        }
        assert_eq!(other.unwrap(), SwapOutcome::Differs);
    });
    assert_eq!(ours.compare_and_swap(key, b"same", b"last").unwrap(), SwapOutcome::Swapped);
    emptied(&mut ours, &[key]);
    assert_eq!(ours.compare_and_swap(key, b"same", b"").unwrap(), SwapOutcome::Absent);
}
