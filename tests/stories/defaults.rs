//! The lengths that a table takes if nobody says any: ordinary data fits, and short values cost what they cost in a
//! table for short values alone.

use crate::common::{patient, value};
use oneread::{
    Address, Client, Config, GetError, MutateError, PutOutcome, Server, ServerConfig, TableSize,
    error::PutError, layout::Seeds,
};
use tempfile::TempDir;

/// How many of the names of Unicode 14 have each length, from 2 bytes on. Two in a thousand of them are longer
/// than 60 bytes, six than 86.
const NAME_LENGTHS: [u32; 87] = [
    1, 33, 65, 109, 107, 103, 112, 198, 173, 186, 231, 299, 595, 1257, 1415, 1340, 1821, 2571, 5443, 5778,
    3443, 1476, 1877, 1925, 28756, 66404, 1162, 1026, 1030, 885, 1291, 1217, 678, 955, 506, 412, 408, 323,
    314, 245, 304, 267, 200, 188, 135, 141, 147, 133, 96, 105, 106, 76, 65, 42, 56, 34, 46, 43, 37, 22, 12,
    18, 7, 22, 12, 7, 13, 14, 4, 6, 10, 1, 2, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 4, 2,
];

/// As many keys as there are names, of the same lengths, and each another one.
fn names() -> Vec<Vec<u8>> {
    let lengths = (2..).zip(NAME_LENGTHS).flat_map(|(length, times)| (0..times).map(move |_| length));
    lengths
        .zip(0u32..)
        .map(|(length, n)| {
            let number = n.to_be_bytes();
            // Of short names there are few.
            let number = if length < 4 { &number[2..] } else { &number[..] };
            number.iter().copied().chain(std::iter::repeat(b'N')).take(length).collect()
        })
        .collect()
}

fn served(table: Config) -> (TempDir, Server, Client) {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("sock"));
    let server =
        Server::start(ServerConfig::new(address.clone(), table.seeds(Seeds::from_number(5)))).unwrap();
    let client = Client::connect_with(&address, patient()).unwrap();
    (dir, server, client)
}

/// What tables of both kinds were before any value could be longer.
fn short() -> Config {
    Config::new().key_max(32).value_max(78)
}

const SIZES: [TableSize; 2] = [TableSize::Keys(160_000), TableSize::up_to(256 << 20)];

/// Keys as long as Unicode's names are taken. With the lengths of before, one in twenty is refused, one by one, with
/// what would take it.
#[test]
fn names_fit() {
    let names = names();
    assert_eq!(names.len(), 138_552);
    for size in SIZES {
        for (table, key_max, refused) in [(Config::new(), 255, 0), (short(), 32, 7_440)] {
            if key_max == 32 && size != SIZES[0] {
                continue;
            }
            let (_dir, _server, mut client) = served(table.size(size));
            let pairs: Vec<_> = names.iter().map(|name| (name, &name[..2])).collect();
            let answers = client.put_many(&pairs).unwrap();
            let wrong: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
            assert_eq!(wrong.len(), refused);
            let is_length =
                |error: &&PutError| matches!(error, PutError::KeyLength { max, .. } if *max == key_max);
            assert!(wrong.iter().all(is_length), "{wrong:?}");
            let told = wrong.last().map(ToString::to_string);
            assert!(told.is_none_or(|told| told.contains("`Config::key_max` of at least 88")), "{wrong:?}");
            let inserted = answers.iter().filter(|answer| **answer == Ok(PutOutcome::Inserted)).count();
            assert_eq!(inserted, names.len() - refused);
        }
    }
}

/// Hits and misses of short values cost the READs and bytes that they cost in a table for short values
/// alone, and the tables take the same memory. A long value costs the READ of its bytes more.
#[test]
fn short_values_cost_what_they_did() {
    let names: Vec<_> = names().into_iter().filter(|name| name.len() <= 32).collect();
    let (there, absent) = names.split_at(names.len() * 9 / 10);
    for size in SIZES {
        let cost = |table: Config| {
            let (_dir, server, mut client) = served(table.size(size));
            let pairs: Vec<_> =
                there.iter().zip(0..).map(|(name, n)| (name, value(n, n as usize % 79))).collect();
            assert!(client.put_many(&pairs).unwrap().iter().all(|put| *put == Ok(PutOutcome::Inserted)));
            let mut found = Vec::new();
            for (key, expected) in &pairs {
                assert!(client.get_into(key, &mut found).unwrap() && found == *expected);
            }
            let hits = client.stats().read;
            for key in absent {
                assert!(!client.get_into(key, &mut found).unwrap());
            }
            let all = client.stats().read;
            let backed = server.index().region().backed_bytes();
            let misses = (all.reads - hits.reads, all.bytes - hits.bytes);
            (server, client, backed, [(hits.reads, hits.bytes), misses])
        };
        let (short_server, _client, short_bytes, short_reads) = cost(short());
        let (server, mut client, bytes, reads) = cost(Config::new());
        let per = |n: u64, of: usize| n as f64 / of as f64;
        println!(
            "{size}: {:.1} and {:.1} bytes a key; READs a hit {:.4}, a miss {:.4}",
            per(short_bytes, there.len()),
            per(bytes, there.len()),
            per(reads[0].0, there.len()),
            per(reads[1].0, absent.len()),
        );
        // Which keys move depends on when traces go; in a table that grows also on how far splits are.
        let part = if matches!(size, TableSize::Keys(_)) { 1 } else { 200 };
        for (new, old) in
            reads.into_iter().zip(short_reads).flat_map(|(new, old)| [(new.0, old.0), (new.1, old.1)])
        {
            assert!(new.abs_diff(old) * 1_000 <= part * old, "{size}: {reads:?}, {short_reads:?}");
        }
        // Nothing was put into the heap, so there is none yet. On a busy machine one that grows may be a step further, or have
        // memory for the next segment already.
        let segments = [&server, &short_server].map(|server| server.index().growth().segments.max(1));
        let [bytes, short_bytes] = [bytes / segments[0], short_bytes / segments[1]];
        assert!(
            bytes.abs_diff(short_bytes) * 1_000 <= part.max(10) * short_bytes,
            "{size}: {bytes}, {short_bytes}"
        );

        // One key, with a value that its slot has room for, and with longer ones.
        let key = &there[there.len() / 2];
        let reads_of = |client: &mut Client, length: usize| {
            client.put(key, &vec![7; length]).unwrap();
            let before = client.stats().read.reads;
            assert_eq!(client.get(key).unwrap(), Some(vec![7; length]));
            client.stats().read.reads - before
        };
        let room = 110 - key.len();
        let one = reads_of(&mut client, room);
        assert!(one == 1 || one == 2, "{one}");
        for length in [room + 1, 200, 4_081, 1 << 20] {
            // On this host the slot is looked at twice more: before the bytes are copied, and after.
            let reads = reads_of(&mut client, length);
            // Where a split is under way, a look may be at two windows.
            assert!(reads == one + 3 || size != SIZES[0] && reads > one, "{length}: {reads} READs, {one}");
        }
        let longer = client.put(key, &vec![7; (1 << 20) + 1]).unwrap_err();
        assert!(matches!(longer, MutateError::ValueLength { max: 1_048_576, .. }), "{longer}");
        assert!(longer.to_string().contains("`Config::value_max` of at least 1048577"), "{longer}");
        let long_key = client.get(&[b'k'; 256]).unwrap_err();
        assert!(matches!(long_key, GetError::KeyLength { given: 256, max: 255 }), "{long_key}");
        assert_eq!(server.index().heap().values, 1);
    }
}
