use super::*;

/// A published encryption, in hex.
struct Vector {
    name: &'static str,
    key: &'static str,
    nonce: &'static str,
    associated: &'static str,
    text: &'static str,
    encrypted: &'static str,
    tag: &'static str,
    is_valid: bool,
}

/// Of the draft, and of Project Wycheproof (testvectors_v1/xchacha20_poly1305_test.json).
const PUBLISHED: &[Vector] = &[
    Vector {
        name: "draft-irtf-cfrg-xchacha-03, A.3.1",
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "404142434445464748494a4b4c4d4e4f5051525354555657",
        associated: "50515253c0c1c2c3c4c5c6c7",
        text: "4c616469657320616e642047656e746c656d656e206f662074686520636c617373206f6620273939\
               3a204966204920636f756c64206f6666657220796f75206f6e6c79206f6e652074697020666f7220\
               746865206675747572652c2073756e73637265656e20776f756c642062652069742e",
        encrypted: "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa644\
                    0bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e\
                    3f3fac2bc369488f76b2383565d3fff921f9664c97637da9768812f615c68b13b52e",
        tag: "c0875924c1c7987947deafd8780acf49",
        is_valid: true,
    },
    Vector {
        name: "Wycheproof 2, nothing at all",
        key: "ab1562faea9f47af3ae1c3d6d030e3af230255dff3df583ced6fbbcbf9d606a9",
        nonce: "6a5e0c4617e07091b605a4de2c02dde117de2ebd53b23497",
        associated: "",
        text: "",
        encrypted: "",
        tag: "e2697ea6877aba39d9555a00e14db041",
        is_valid: true,
    },
    Vector {
        name: "Wycheproof 3, no text",
        key: "d821dce9b890ea37ae1c89e7cb6aeae9371b8179add0d08f5494718322ae0071",
        nonce: "3ec3f7c45e687d75a895bf5e71809e7cdac32158bb48ec0d",
        associated: "8780fb400f94c55d",
        text: "",
        encrypted: "",
        tag: "966c22d655b9e56326024f028cf887ad",
        is_valid: true,
    },
    Vector {
        name: "Wycheproof 5, one byte",
        key: "697c197c9e0023c8eee42ddf08c12c46718a436561b0c66d998c81879f7cb74c",
        nonce: "cd78f4533c94648feacd5aef0291b00b454ee3dcdb76dcc8",
        associated: "6384f4714ff18c18",
        text: "e1",
        encrypted: "b0",
        tag: "e5e35f5332f91bdd2d28e59d68a0b141",
        is_valid: true,
    },
    Vector {
        name: "Wycheproof 19",
        key: "d447796ed4ceb2e43942700e7759e335f67afa8653748db95f924c94488195db",
        nonce: "cc4781134455e89c836f7433bd0426776f945d82f6358276",
        associated: "06947c3afa797e99",
        text: "77c46ada19c81849",
        encrypted: "80c8e9ac2cec97ce",
        tag: "9b62dcc8076098affcb6e7995aaa99a6",
        is_valid: true,
    },
    Vector {
        name: "Wycheproof 122, special ciphertext",
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "000102030405060708090a0b0c0d0e0f1011121314151617",
        associated: "00000000000000000000000000000000",
        text: "60e28a8f89adf230daab792c94dfebe766eda542d7c092d97ccb7501486fc6a3",
        encrypted: "0000000000000000000000000000000000000000000000000000000000000000",
        tag: "52ca5edfb3c4fca83d5776154188a08d",
        is_valid: true,
    },
    Vector {
        name: "Wycheproof 216, special tag",
        key: "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f",
        nonce: "000102030405060708090a0b0c0d0e0f1011121314151617",
        associated: "abffffffffffffffffffffffffffffff5a20e89e14ed5af85da66b5e4bdbe002",
        text: "660336ffb732a4dcda556c2539d3d2de6cdaed0d7d9104593f8ed69bf0db8aa33c0e746482b7dc53\
               d40b8a5331ca33b874639cdc7a787badd436bcd56e798af3",
        encrypted: "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff\
                    ffffffffffffffffffffffffffffffffffffffffffffffff",
        tag: "000102030405060708090a0b0c0d0e0f",
        is_valid: true,
    },
    Vector {
        name: "Wycheproof 146, bit 0 of the tag flipped",
        key: "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f",
        nonce: "000102030405060708090a0b0c0d0e0f1011121314151617",
        associated: "000102",
        text: "",
        encrypted: "",
        tag: "0418b3e73e52c3be2eaba76807b784e1",
        is_valid: false,
    },
];

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn array<const N: usize>(hex: &str) -> [u8; N] {
    bytes(hex).try_into().unwrap()
}

/// The cipher as it is called here makes of the published texts what was published.
#[test]
fn published_vectors() {
    for Vector { name, key, nonce, associated, text, encrypted, tag, is_valid } in PUBLISHED {
        let (key, nonce, tag) = (array(key), array(nonce), array(tag));
        let associated = bytes(associated);
        let mut at_work = bytes(text);
        let made = seal(&key, &nonce, &associated, &mut at_work).unwrap();
        assert_eq!((&at_work, made == tag), (&bytes(encrypted), *is_valid), "{name}");
        let is_right = unseal(&key, &nonce, &associated, &mut at_work, &tag);
        let expected = if *is_valid { text } else { encrypted };
        assert_eq!((is_right, at_work), (*is_valid, bytes(expected)), "{name}");
    }
}

const SECRET: [u8; 32] = [7; 32];

fn encryption() -> Encryption {
    Encryption::new(&SECRET, "prices")
}

/// Stored values never change: these were made by another implementation (libsodium), after
/// docs/FORMAT.md.
#[test]
fn stored_bytes_are_as_documented() {
    let secret = std::array::from_fn(|n| 0x80 + n as u8);
    let nonce = std::array::from_fn(|n| 0x40 + n as u8);
    let head = "01404142434445464748494a4b4c4d4e4f5051525354555657";
    for (namespace, key, value, rest) in [
        ("prices", "key", "value", "876d1f813e12d959d041ec0f6f4c201592c749d0c3"),
        ("", "k", "", "fe30bfc86688ee065cf4082528c976ab"),
    ] {
        let encryption = Encryption::new(&secret, namespace);
        let stored = encryption.encrypt_with_nonce(nonce, key.as_bytes(), value.as_bytes());
        assert_eq!(stored, bytes(&[head, rest].concat()));
        assert_eq!(stored.len(), value.len() + Encryption::OVERHEAD);
        assert_eq!(encryption.decrypt(key.as_bytes(), &stored).as_deref(), Ok(value.as_bytes()));
    }
    assert_eq!(Encryption::OVERHEAD, 41);
}

/// Values of every length come back, and no two encryptions are the same.
#[test]
fn values_come_back() {
    let encryption = encryption();
    for length in (0..200).chain([1000, 3954]) {
        let value: Vec<u8> = (0..length).map(|n| n as u8).collect();
        let (one, other) =
            (encryption.encrypt(b"k", &value).unwrap(), encryption.encrypt(b"k", &value).unwrap());
        assert_ne!(one[1..HEAD_BYTES], other[1..HEAD_BYTES], "a nonce came twice");
        for stored in [one, other] {
            assert_eq!(stored.len(), length + Encryption::OVERHEAD);
            assert_eq!(encryption.decrypt(b"k", &stored).as_ref(), Ok(&value));
        }
    }
}

/// A value is bound to the secret key, the namespace and the table's key, each by itself and at
/// its length.
#[test]
fn values_are_bound() {
    let stored = encryption().encrypt(b"key", b"value").unwrap();
    assert_eq!(encryption().decrypt(b"key", &stored).as_deref(), Ok(&b"value"[..]));
    for bit in 0..256 {
        let mut secret = SECRET;
        secret[bit / 8] ^= 1 << (bit % 8);
        let other = Encryption::new(&secret, "prices");
        assert_eq!(other.decrypt(b"key", &stored), Err(DecryptError::Altered), "bit {bit}");
    }
    for (namespace, key) in [
        ("Prices", "key"),
        ("price", "key"),
        ("pricesk", "ey"),
        ("price", "skey"),
        ("", "priceskey"),
        ("priceskey", ""),
        ("prices", "kez"),
        ("prices", "ke"),
        ("prices", "keyy"),
        ("prices", ""),
    ] {
        let other = Encryption::new(&SECRET, namespace);
        let wrong = other.decrypt(key.as_bytes(), &stored);
        assert_eq!(wrong, Err(DecryptError::Altered), "{namespace} {key}");
    }
}

/// A value with any bit flipped, or of any other length, is refused. Nothing is left of it.
#[test]
fn altered_values_are_refused() {
    let encryption = encryption();
    for value in
        ["", "v", "a value that is longer than the block of sixty-four bytes that the cipher works on"]
    {
        let stored = encryption.encrypt(b"key", value.as_bytes()).unwrap();
        for bit in 0..8 * stored.len() {
            let mut altered = stored.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0 => DecryptError::Version { version: altered[0] },
                _ => DecryptError::Altered,
            };
            assert_eq!(encryption.decrypt_in_place(b"key", &mut altered), Err(expected), "bit {bit}");
            assert_eq!(altered, b"");
        }
        for length in 0..stored.len() {
            let expected = match length {
                given @ 0..Encryption::OVERHEAD => DecryptError::Length { given },
                _ => DecryptError::Altered,
            };
            assert_eq!(encryption.decrypt(b"key", &stored[..length]), Err(expected), "{length} bytes");
        }
        let longer = [&stored[..], &[0]].concat();
        assert_eq!(encryption.decrypt(b"key", &longer), Err(DecryptError::Altered));
    }
}

/// Values that were put without encryption say so, whatever they are.
#[test]
fn plain_values_are_refused() {
    for (plain, said) in [
        ("", "put without encryption"),
        ("short", "put without"),
        ("a value as long as any that was put without encryption", "put without"),
        ("\u{1}, and so long that it could be one that was encrypted", "without encryption"),
    ] {
        let error = encryption().decrypt(b"key", plain.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(said), "{plain:?}: {error}");
    }
}

/// What is printed has no byte of the secret key, and equality is that of key and namespace.
#[test]
fn secrets_are_not_printed() {
    let secret: [u8; 32] = *b"Secrets are not to be printed...";
    let encryption = Encryption::new(&secret, b"caf\xe9");
    let options = crate::ClientOptions::new().encryption(encryption.clone());
    let shown = format!("{options:?} {options:#?} {encryption:?}");
    assert!(shown.contains("caf") && !shown.contains("Secret") && !shown.contains("83, 101"), "{shown}");
    assert_eq!(encryption.namespace(), b"caf\xe9");
    assert_eq!(encryption, Encryption::new(&secret, b"caf\xe9"));
    assert_ne!(encryption, Encryption::new(&secret, "cafe"));
    assert_ne!(encryption, Encryption::new(&SECRET, b"caf\xe9"));
}

/// The auto traits that the documentation promises.
#[test]
fn encryption_goes_to_other_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Encryption>();
}
