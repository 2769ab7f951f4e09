//! The bytes of a snapshot, whole and damaged.

use super::*;
use crate::base::clock::Clock;
use crate::config::{Config, TableSize};
use crate::index::{Index, driven};
use crate::layout::hash::Seeds;
use crate::outcome::PutMode;
use crate::region::Region;
use std::fs;
use std::path::{Path, PathBuf};

fn index(slots: u64) -> Index {
    let config = Config {
        size: TableSize::Slots(slots),
        key_max: 20,
        value_max: 3_000,
        seeds: Some(Seeds::from_number(5)),
        ..Config::default()
    };
    let geometry = config.geometry().unwrap();
    Index::create(Region::private(geometry.region_bytes()), geometry, Clock::manual()).unwrap()
}

fn filled(keys: u32, value_bytes: usize) -> Index {
    let index = index(u64::from(keys) * 5 / 4 + 16);
    for n in 0..keys {
        index.put(&n.to_le_bytes(), &vec![n as u8; value_bytes], PutMode::Insert).unwrap();
    }
    index
}

/// A snapshot of a table in a folder of its own.
fn made(index: &Index) -> (tempfile::TempDir, PathBuf, Saved) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let saved = index.save(&path, &mut |_, _| true).unwrap();
    (dir, path, saved)
}

type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn records(path: &Path) -> Result<Records, SnapshotError> {
    let snapshot = Snapshot::open(path)?;
    let mut blocks = snapshot.blocks();
    let mut all = Vec::new();
    while let Some(block) = blocks.next()? {
        all.extend(block.entries().map(|entry| (entry.key.to_vec(), entry.value.to_vec())));
    }
    all.sort();
    Ok(all)
}

/// The bytes are those of docs/FORMAT.md. Builds of the same version rely on them.
#[test]
fn golden_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let place = SnapshotPath::claim(&dir.path().join("snapshot")).unwrap();
    let began = UNIX_EPOCH + Duration::from_nanos(0x0102_0304_0506_0708);
    let geometry = Config { value_max: 200, seeds: Some(Seeds::from_number(1)), ..Config::short() };
    let geometry = geometry.size(TableSize::Slots(1000)).geometry().unwrap();
    let mut writer = SnapshotWriter::new(&place, SnapshotTerms::of(&geometry, 7, began)).unwrap();
    writer.take((b"key", b"value", None));
    writer.take((b"k", b"", None));
    writer.finish(0).unwrap();
    let bytes = fs::read(dir.path().join("snapshot")).unwrap();
    let id = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let sum = |parts: &[&[u8]]| parts.iter().fold(0, |sum, part| crc::append(sum, part)).to_le_bytes();
    let word = |n: u32| n.to_le_bytes();

    let mut head = Vec::new();
    head.extend(b"ONESNAP\0");
    head.extend(word(5));
    head.extend([0; 4]);
    head.extend(id.to_le_bytes());
    head.extend(geometry.generation().to_le_bytes());
    head.extend(7u64.to_le_bytes());
    head.extend(0x0102_0304_0506_0708u64.to_le_bytes());
    [1, 2, 1, 8, 0, 32, 200, 256].into_iter().for_each(|n| head.extend(word(n)));
    head.extend(1000u64.to_le_bytes());
    head.extend(2_000_000u64.to_le_bytes());
    head.resize(144, 0);
    let crc = sum(&[&head[..12], &head[16..]]);
    head[12..16].copy_from_slice(&crc);

    let block = |mark: &[u8], number: u64, records: u32, payload: &[u8]| {
        let mut block = mark.to_vec();
        block.extend(word(payload.len() as u32));
        block.extend(number.to_le_bytes());
        block.extend(word(records));
        block.extend(crc::append_long(0, payload).to_le_bytes());
        block.extend([0; 4]);
        block.extend(sum(&[&id.to_le_bytes(), &block]));
        [&block[..], payload].concat()
    };
    let payload = b"\x03\0\0\0\x05\0\0\0keyvalue\x01\0\0\0\0\0\0\0k";
    // When it ended is not known.
    let ended = bytes.len() - 24..bytes.len() - 16;
    let ended_ns: [u8; 8] = bytes[ended].try_into().unwrap();
    let counts = [
        &2u64.to_le_bytes(),
        &(payload.len() as u64).to_le_bytes(),
        &ended_ns,
        &0u64.to_le_bytes(),
        &[word(3), word(5)].concat()[..],
    ]
    .concat();
    let expected = [head, block(b"BLCK", 0, 2, payload), block(b"LAST", 1, 0, &counts)].concat();
    assert_eq!(bytes, expected);

    // It is read as it was written; a field out of range is named.
    let path = dir.path().join("snapshot");
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(snapshot.terms(), SnapshotTerms::of(&geometry, 7, began));
    let content = snapshot.check(&mut |_| {}).unwrap();
    assert_eq!((content.keys, content.record_bytes, content.damaged), (2, 25, 0));
    assert_eq!((content.longest_key, content.longest_value), (3, 5));
    for (byte, value, field) in
        [(48, 9, "family"), (52, 7, "choices"), (68, 0, "key_max"), (72, 1 << 30, "value_max")]
    {
        let mut bad = bytes.clone();
        bad[byte..byte + 4].copy_from_slice(&word(value));
        let crc = sum(&[&bad[..12], &bad[16..144]]);
        bad[12..16].copy_from_slice(&crc);
        fs::write(&path, bad).unwrap();
        let error = Snapshot::open(&path).unwrap_err();
        assert!(matches!(error, SnapshotError::Damaged { byte: b, .. } if b == byte as u64), "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    // An older one says nothing of owners, or of a log; a newer one is refused.
    let with_version = |version: u8| {
        let mut other = bytes.clone();
        (other[8], other[120], other[128], other[136]) = (version, 1, 3, 9);
        if version < 5 {
            other.drain(128..144);
        }
        let crc = sum(&[&other[..12], &other[16..if version < 5 { 128 } else { 144 }]]);
        other[12..16].copy_from_slice(&crc);
        fs::write(&path, other).unwrap();
        Snapshot::open(&path)
    };
    let position = Some(LogPosition { id: 3, from: 9 });
    for (version, has_owners, log) in
        [(2, false, None), (3, false, None), (4, true, None), (5, true, position)]
    {
        let snapshot = with_version(version).unwrap();
        let terms = snapshot.terms();
        assert_eq!((terms.has_owners, terms.log), (has_owners, log), "{version}");
        assert_eq!(snapshot.check(&mut |_| {}).unwrap().keys, 2, "{version}");
    }
    for found in [1, 6] {
        let refused = with_version(found as u8);
        assert!(
            matches!(refused, Err(SnapshotError::Version { found: it, .. }) if it == found),
            "{refused:?}"
        );
    }
}

/// An entry is read with the end and the owner that it had, and by whatever time of day.
fn reads_entries_whole() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let place = SnapshotPath::claim(&path).unwrap();
    let geometry = Config::short().owners(true).life(true).size(TableSize::Slots(64)).geometry().unwrap();
    let (second, now) = (Duration::from_secs(1), SystemTime::now());
    let made = now - 100 * second;
    let terms = SnapshotTerms { made: Some(made), ..SnapshotTerms::of(&geometry, 7, now) };
    let mut writer = SnapshotWriter::new(&place, terms).unwrap();
    let all = [(0, 0), (8, 0), (0, 7), (8 * 160, 65_534)];
    for (nth, (expiry, owner)) in all.into_iter().enumerate() {
        writer.take((&[nth as u8 + 1], b"value", Some(Life { number: 1, owner, expiry })));
    }
    writer.finish(0).unwrap();
    let snapshot = Snapshot::open(&path).unwrap();
    assert!(snapshot.terms().has_owners);
    let block = snapshot.blocks().next().unwrap().unwrap();
    let of = |expiry| (expiry > 0).then(|| made + second * expiry / 8);
    block.entries().map(|it| (it.end, it.owner)).eq(all.map(|(expiry, owner)| (of(expiry), owner)))
        && block.entries().map(|it| it.has_ended(now)).eq([false, true, false, false])
        && block.entries().map(|it| it.ttl(now)).eq([None, Some(Duration::ZERO), None, Some(60 * second)])
}

#[test]
fn entries_are_read_whole() {
    assert!(reads_entries_whole());
}

#[cfg(feature = "faults")]
#[test]
fn an_entry_in_part_is_noticed() {
    let _broken = crate::faults::Broken::rule(crate::faults::Rule::EntryWhole);
    assert!(!reads_entries_whole());
}

/// An entry of an owner is the owner's again, in a table with owners; one without refuses all of them. In a table that knows
/// no owners itself the number goes with the entry.
#[test]
fn owners_come_back_or_are_refused() {
    let table = |has_owners| {
        let config = Config { size: TableSize::Slots(64), ..Config::short() }.life(true).owners(has_owners);
        let geometry = config.geometry().unwrap();
        Index::create(Region::private(geometry.region_bytes()), geometry, Clock::manual()).unwrap()
    };
    let snapshot_of = |index: &Index| {
        let (dir, path, _) = made(index);
        (dir, Snapshot::open(&path).unwrap())
    };
    let owner = |index: &Index| index.life(b"key").unwrap().map(|life| life.owner);
    let owned = table(true);
    let session = owned.owner(7, Duration::from_secs(60)).unwrap();
    owned.put_of(&session, b"key", b"value", PutMode::Upsert.into()).unwrap();
    let (_dir, snapshot) = snapshot_of(&owned);
    let plain = table(false);
    let refused = plain.restore_from(&snapshot, &mut |_, _| {});
    assert!(matches!(refused, Err(crate::index::RestoreError::Owners)), "{refused:?}");
    assert!(plain.is_empty());
    let next = table(true);
    assert_eq!(next.restore_from(&snapshot, &mut |_, _| {}).unwrap().keys, 1);
    assert_eq!(owner(&next), Some(7));
    assert!(next.remove_owner(7).unwrap());
    assert_eq!(owner(&next), None);
    // Numbers that mean nothing to the table.
    driven(&plain).put_until(b"key", b"value", None, 9).unwrap();
    let (_dir, snapshot) = snapshot_of(&plain);
    let next = table(false);
    assert_eq!(next.restore_from(&snapshot, &mut |_, _| {}).unwrap().keys, 1);
    assert_eq!(owner(&next), Some(9));
}

/// What is written is read again, with values of any length, in one block and in many.
#[test]
fn a_snapshot_is_read_as_it_was_written() {
    for (keys, value_bytes) in [(0, 0), (1, 0), (1, 3_000), (1_000, 20), (700, 3_000)] {
        let (_dir, path, saved) = made(&filled(keys, value_bytes));
        let expected: Vec<_> =
            (0..keys).map(|n| (n.to_le_bytes().to_vec(), vec![n as u8; value_bytes])).collect();
        let mut found = records(&path).unwrap();
        found.sort_by_key(|(key, _)| u32::from_le_bytes(key[..].try_into().unwrap()));
        assert!(found == expected, "{keys} keys of {value_bytes} bytes");
        assert_eq!((saved.keys, saved.bytes), (keys.into(), fs::metadata(&path).unwrap().len()));
    }
}

/// Any byte changed, and any length cut off, is noticed, and the byte that is named is not behind the
/// damage. A table that was to take it is unchanged.
#[test]
fn any_damage_is_noticed() {
    let (_dir, path, _) = made(&filled(20, 9));
    let good = fs::read(&path).unwrap();
    let target = index(64);
    let refused = |bytes: &[u8], at: usize| {
        fs::write(&path, bytes).unwrap();
        let error = match Snapshot::open(&path) {
            Err(error) => error,
            Ok(snapshot) => match target.restore_from(&snapshot, &mut |_, _| {}) {
                Err(crate::index::RestoreError::Snapshot(error)) => error,
                other => panic!("byte {at}: {other:?}"),
            },
        };
        if let SnapshotError::Damaged { byte, .. } = error {
            // A field is named by its first byte, records and heads by theirs.
            assert!(byte <= at as u64, "byte {at}: {error}");
            assert!(at < 144 || at as u64 - byte < 700, "byte {at}: {error}");
        }
        assert!(target.is_empty());
    };
    for at in 0..good.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            refused(&bad, at);
        }
        refused(&good[..at], at);
    }
    for more in [&b"\0"[..], &good] {
        refused(&[&good[..], more].concat(), good.len());
    }
    fs::write(&path, &good).unwrap();
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(target.restore_from(&snapshot, &mut |_, _| {}).unwrap().keys, 20);
    assert_eq!(target.len(), 20);
}

/// Blocks in another order, twice, left out, or of another snapshot are noticed, though each is whole.
#[test]
fn blocks_belong_to_their_snapshot_and_place() {
    let many = filled(700, 3_000);
    let (_dir, path, _) = made(&many);
    let (_other_dir, other, _) = made(&many);
    let (good, other) = (fs::read(&path).unwrap(), fs::read(other).unwrap());
    let mut starts = vec![144];
    while starts.last().unwrap() + LAST_BYTES as usize != good.len() {
        let at = *starts.last().unwrap();
        starts.push(at + 32 + u32::from_le_bytes(good[at + 4..at + 8].try_into().unwrap()) as usize);
    }
    starts.push(good.len());
    assert!(starts.len() > 6, "{} blocks", starts.len());
    let block = |n: usize| &good[starts[n]..starts[n + 1]];
    let rest = &good[starts[3]..];
    for (what, bytes) in [
        ("swapped", [&good[..144], block(1), block(0), block(2), rest].concat()),
        ("twice", [&good[..starts[3]], block(2), rest].concat()),
        ("left out", [&good[..starts[2]], rest].concat()),
        ("of another", [&good[..starts[2]], &other[starts[2]..starts[3]], rest].concat()),
        ("no last one", good[..good.len() - LAST_BYTES as usize].to_vec()),
    ] {
        fs::write(&path, bytes).unwrap();
        let read = Snapshot::open(&path).and_then(|snapshot| snapshot.check(&mut |_| {}));
        assert!(
            matches!(read, Err(SnapshotError::Damaged { .. } | SnapshotError::Cut { .. })),
            "{what}: {read:?}"
        );
    }
}

/// Of a damaged snapshot, the whole blocks can be had, and the bytes left out are named.
#[test]
fn whole_blocks_of_a_damaged_snapshot() {
    let (_dir, path, _) = made(&filled(700, 3_000));
    let good = fs::read(&path).unwrap();
    let all = records(&path).unwrap();
    for at in [144, 144 + 5, 144 + 40, 600_000, good.len() - 30] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&path, bad).unwrap();
        let snapshot = Snapshot::open_head(&path).unwrap();
        let mut blocks = snapshot.blocks();
        let (mut found, mut gaps) = (Vec::new(), Vec::new());
        loop {
            match blocks.next() {
                Ok(Some(block)) => {
                    found.extend(block.entries().map(|it| (it.key.to_vec(), it.value.to_vec())))
                }
                Ok(None) => break,
                Err(_) => match blocks.resume().unwrap() {
                    Some(gap) => gaps.push(gap),
                    None => break,
                },
            }
        }
        found.sort();
        assert!(found.iter().all(|record| all.binary_search(record).is_ok()));
        let lost = all.len() - found.len();
        if at == good.len() - 30 {
            assert_eq!((lost, gaps.len()), (0, 0), "only the counts");
        } else {
            assert!((1..=100).contains(&lost), "{lost} lost");
            assert!(gaps.len() == 1 && gaps[0].contains(&(at as u64)), "{at}: {gaps:?}");
        }
    }
}

/// A block is found wherever its head lies, also across two of the pieces of 1 MiB in which it is looked for.
#[test]
fn a_head_across_two_pieces_is_found() {
    const PIECE: usize = 1 << 20;
    let config = Config { value_max: 2 * PIECE, heap_bytes: Some(64 << 20), ..Config::short() };
    let geometry = config.size(TableSize::Slots(1000)).geometry().unwrap();
    for within in [0, 1, 16, 31, 32, 33] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snapshot");
        let place = SnapshotPath::claim(&path).unwrap();
        let mut writer = SnapshotWriter::new(&place, SnapshotTerms::of(&geometry, 7, UNIX_EPOCH)).unwrap();
        // The first piece begins behind the first byte of this block, and ends in the next head.
        let long = vec![7; PIECE + 1 - within - (BLOCK_HEAD_BYTES as usize + RECORD_HEAD + 4)];
        writer.take((b"long", &long, None));
        writer.take((b"short", b"value", None));
        writer.finish(0).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        fs::write(&path, bytes).unwrap();
        let snapshot = Snapshot::open_head(&path).unwrap();
        let mut blocks = snapshot.blocks();
        assert!(matches!(blocks.next(), Err(SnapshotError::Damaged { .. })));
        let next = HEAD_BYTES + (PIECE + 1 - within) as u64;
        assert_eq!(blocks.resume().unwrap(), Some(HEAD_BYTES..next), "{within}");
        let block = blocks.next().unwrap().unwrap();
        assert!(
            block.entries().map(|it| (it.key, it.value)).eq([(&b"short"[..], &b"value"[..])]),
            "{within}"
        );
    }
}

/// What is no snapshot is said to be none, and nothing waits.
#[test]
fn other_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it");
    for bytes in [&b""[..], b"text", b"ONESNAQ\0and more", &[0; 4096]] {
        fs::write(&path, bytes).unwrap();
        assert!(matches!(Snapshot::open(&path), Err(SnapshotError::Foreign { .. })), "{bytes:?}");
    }
    fs::write(&path, b"ONESNAP\0").unwrap();
    assert!(matches!(Snapshot::open(&path), Err(SnapshotError::Cut { bytes: 8, .. })));
    assert!(matches!(Snapshot::open(dir.path()), Err(SnapshotError::Kind { .. })));
    assert!(matches!(Snapshot::open(&dir.path().join("none")), Err(SnapshotError::Open { .. })));
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    assert!(matches!(Snapshot::open(&pipe), Err(SnapshotError::Kind { .. })));
}

/// A snapshot replaces a file and nothing else. It fails without a trace: the old one stays.
#[test]
fn the_old_snapshot_stays_until_the_new_one_is_whole() {
    let few = filled(10, 5);
    let (dir, path, _) = made(&few);
    let old = fs::read(&path).unwrap();
    let many = filled(700, 3_000);
    let names = || -> Vec<_> {
        let mut all: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        all.sort();
        all
    };
    let before = names();
    let mut steps = 0;
    let broken_off = many.save(&path, &mut |_, _| {
        steps += 1;
        steps < 2
    });
    assert!(matches!(broken_off, Err(SaveError::BrokenOff)) && steps == 2);
    assert!(fs::read(&path).unwrap() == old && names() == before);
    // What a killed server left is in nobody's way.
    fs::write(dir.path().join("snapshot.partial"), [7; 5000]).unwrap();
    let saved = many.save(&path, &mut |_, _| true).unwrap();
    assert_eq!((records(&path).unwrap().len(), saved.keys, names()), (700, 700, before));

    let claimed = SnapshotPath::claim(&path).unwrap();
    assert!(matches!(few.save(&path, &mut |_, _| true), Err(SaveError::Busy { .. })));
    // As a child has it that is just being started.
    let inherited = claimed.lock.file.try_clone().unwrap();
    drop(claimed);
    drop(SnapshotPath::claim(&path).unwrap());
    drop(inherited);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for bad in [dir.path(), &link, Path::new("/dev/null"), Path::new("/")] {
        assert!(matches!(few.save(bad, &mut |_, _| true), Err(SaveError::File(_))), "{bad:?}");
    }
    // A folder takes the name meanwhile: the renaming fails, and the new file goes.
    let taken = dir.path().join("taken");
    let error = many.save(&taken, &mut |_, _| fs::create_dir_all(&taken).is_ok()).unwrap_err();
    assert!(error.to_string().contains("renaming the file"), "{error}");
    assert!(!dir.path().join("taken.partial").exists());
    let nowhere = few.save(&dir.path().join("none/snapshot"), &mut |_, _| true).unwrap_err();
    assert!(nowhere.to_string().contains("make its folder"), "{nowhere}");
    assert_eq!(records(&path).unwrap().len(), 700);
}

/// A table that is too small, or takes shorter keys or values only, is left alone and says so. One of
/// another layout, or a larger one, takes all.
#[test]
fn a_snapshot_goes_into_another_table() {
    let (_dir, path, _) = made(&filled(700, 100));
    let snapshot = Snapshot::open(&path).unwrap();
    for layout in ["farm", "cluster", "pilaf", "windowed:16"] {
        let config = Config::short().layout(layout.parse().unwrap()).size(TableSize::Keys(700));
        let make = |config: Config| {
            let geometry = config.geometry().unwrap();
            Index::create(Region::private(geometry.region_bytes()), geometry, Clock::manual()).unwrap()
        };
        for cores in [1, 3] {
            let index = make(config.value_max(100));
            let restored =
                index.restore_from_by(&snapshot, crate::base::cores::Cores(cores), &mut |_, _| true).unwrap();
            assert_eq!((restored.keys, index.len()), (700, 700), "{layout}");
            let mut value = Vec::new();
            let is_there = |n: u32| {
                index.reader().get_into(&n.to_le_bytes(), &mut value).unwrap() && value == [n as u8; 100]
            };
            assert!((0..700).all(is_there));
        }
        let small = make(config.value_max(99));
        let answer = small.restore_from(&snapshot, &mut |_, _| {});
        assert!(matches!(
            answer,
            Err(crate::index::RestoreError::TooLong { what: "value", given: 100, max: 99 })
        ));
        let narrow = make(config.value_max(100).key_max(3));
        let answer = narrow.restore_from(&snapshot, &mut |_, _| {});
        assert!(matches!(answer, Err(crate::index::RestoreError::TooLong { what: "key", given: 4, max: 3 })));
        let few = make(config.value_max(100).size(TableSize::Slots(400)));
        let answer = few.restore_from(&snapshot, &mut |_, _| {});
        assert!(matches!(answer, Err(crate::index::RestoreError::TooMany { keys: 700, .. })), "{answer:?}");
        assert!(small.is_empty() && narrow.is_empty() && few.is_empty());
    }
    // How far it is, of all bytes twice: first the check, then the keys.
    let (whole, mut heard) = (index(900), Vec::new());
    let zero = 0u32.to_le_bytes();
    whole.put(&zero, b"another value", PutMode::Insert).unwrap();
    let restored = whole.restore_from(&snapshot, &mut |at, of| heard.push((at, of))).unwrap();
    let mut value = Vec::new();
    assert!(whole.reader().get_into(&zero, &mut value).unwrap() && value == [0; 100], "over what is there");
    let (told, ended) = (snapshot.as_saved(), snapshot.content().ended);
    assert_eq!((told.began, told.began + told.took), (snapshot.terms().began, ended));
    assert!(told.began < ended);
    assert_eq!(restored.began, snapshot.terms().began);
    let bytes = snapshot.bytes();
    assert!(heard.is_sorted() && heard.iter().all(|&(at, of)| at <= of && of == 2 * bytes), "{heard:?}");
    assert!(heard[0].0 <= bytes && heard.last().unwrap().0 > bytes, "{heard:?}");
    // As many slots as keys: it is tried, and full in the end.
    let exact = index(700);
    match exact.restore_from(&snapshot, &mut |_, _| {}) {
        Ok(restored) => assert_eq!(restored.keys, exact.len()),
        Err(crate::index::RestoreError::Full { restored, keys: 700, .. }) => {
            assert_eq!(restored, exact.len())
        }
        other => panic!("{other:?}"),
    }
}

/// A snapshot of a table that grows says how many main slots all its segments had, and how much it could come
/// to take.
#[test]
fn the_terms_of_a_table_that_grows() {
    let size = TableSize::Growing { bytes_max: 1 << 20, segment_slots: Some(256) };
    let geometry = Config { size, seeds: Some(Seeds::from_number(5)), ..Config::short() }.geometry().unwrap();
    let index = Index::create(Region::private(geometry.region_bytes()), geometry, Clock::manual()).unwrap();
    for n in 0..1_000u32 {
        index.put(&n.to_le_bytes(), b"value", PutMode::Insert).unwrap();
    }
    let (_dir, path, _) = made(&index);
    let terms = Snapshot::open(&path).unwrap().terms();
    let (slots, growth) = (index.counts().main_slots, index.growth());
    assert!(slots >= 4 * index.geometry().main_slots(), "{growth:?}");
    assert_eq!((terms.main_slots, terms.bytes_max), (slots, Some(growth.bytes_max)));
    assert_eq!(records(&path).unwrap().len(), 1_000);
}

/// A damaged slot costs what stands in it. The snapshot has the rest, and says how many slots were damaged.
#[test]
fn damaged_slots_are_counted() {
    let index = filled(50, 100);
    let damage = |n: u32| {
        let inspector = crate::inspect::Inspector::new(index.region(), index.geometry());
        let slot = inspector.slots().find(|report| report.key == n.to_le_bytes()).unwrap().slot;
        let word = index.geometry().slot_word(slot) + 4;
        index.region().store(word, !index.region().load(word));
    };
    [7, 20].into_iter().for_each(damage);
    let (_dir, path, saved) = made(&index);
    assert_eq!((saved.keys, saved.damaged), (48, 2));
    let there: Vec<_> = records(&path).unwrap().into_iter().map(|(key, _)| key).collect();
    assert!(there.len() == 48 && [7, 20].iter().all(|n: &u32| !there.contains(&n.to_le_bytes().into())));
    let content = Snapshot::open(&path).unwrap().check(&mut |_| {}).unwrap();
    assert_eq!((content.keys, content.damaged), (48, 2));
}
