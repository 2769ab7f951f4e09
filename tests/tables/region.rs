//! The region's bytes. Golden tests pin the format, so that it does not change by accident. Servers
//! and readers of a damaged region end in a typed error. A server takes over the region that a dead
//! server left.
//!
//! `docs/FORMAT.md` describes what the golden tests here pin.

use crate::common::*;
use oneread::error::ReadError;
use oneread::fabric::Fabric;
use oneread::internals::fabric::shm::Shm;
use oneread::internals::index::{RecoverError, Recovered};
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::chain;
use oneread::internals::layout::geometry::Geometry;
use oneread::internals::layout::geometry::{Family, SlotIx};
use oneread::internals::layout::hash::Seeds;
use oneread::internals::layout::slot::{Content, Header, Identity, SlotShape, Torn, check, encode};
use oneread::internals::layout::superblock::{FORMAT_VERSION, Superblock, SuperblockError};
use oneread::internals::placement::Preset;
use oneread::internals::reader::{Limits, Reader};
use oneread::internals::region::{Backing, Region};
use oneread::{
    Address, Config, PutMode, ServeError, Server, ServerConfig, StartMode, TableSize,
    embedded::{Clock, Index},
};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(16).map(|row| row.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n").collect()
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

// ---- golden bytes -------------------------------------------------------------------------------

/// The table of the golden bytes. Everything in it is fixed.
fn golden_config() -> Config {
    Config::new()
        .layout("windowed:8".parse().unwrap())
        .size(TableSize::Slots(100))
        .key_max(16)
        .value_max(32)
        .grace(Duration::from_millis(2))
        .seeds(Seeds::from_number(1))
}

/// A region written by one build is read by every later build of this format version. A change of a
/// byte here changes the format: raise `FORMAT_VERSION` and say so in `docs/FORMAT.md`.
#[test]
fn superblock_is_pinned() {
    // Drawn for each table (I1).
    let geometry = golden_config().geometry().unwrap().with_generation(0xdb09_af55_6d2a_b023);
    let superblock = Superblock::new(&geometry, 1_700_000_000);
    let bytes = bytes_of(&superblock.to_words());
    assert_eq!(hex(&bytes), GOLDEN_SUPERBLOCK);
    assert_eq!(superblock.geometry(geometry.region_bytes()), Ok(geometry));
    // As in docs/FORMAT.md: the CRC-32C of the bytes before it, with a stamp of zero.
    assert_eq!(superblock.crc, crc32c::crc32c(&bytes[..252]));
    assert_eq!(FORMAT_VERSION, 9);
}

/// The three pictures of a slot in `docs/FORMAT.md`, in bytes.
#[test]
fn slots_are_pinned() {
    let identity = Identity { generation: 1, index: 5 };
    let golden = |bytes: usize, key: &[u8], value: &[u8]| {
        let shape = SlotShape::from_bytes(bytes).unwrap();
        let content = Content { key, value: value.into(), ghost: 0x67, aux: 0x8000_0001 };
        let words = encode(shape, identity, 0x0001_0002, &content);
        assert!(check(shape, identity, &words).is_ok());
        let slot = bytes_of(&words);
        // As in docs/FORMAT.md: generation, index, stamp as u64, bytes 8..16, key, value.
        let mut covered = [1u64.to_le_bytes(), 5u64.to_le_bytes(), 0x0001_0002u64.to_le_bytes()].concat();
        covered.extend_from_slice(&slot[8..16]);
        covered.extend_from_slice(key);
        covered.extend_from_slice(value);
        assert_eq!(slot[4..8], crc32c::crc32c(&covered).to_le_bytes(), "{bytes} bytes");
        hex(&slot)
    };
    assert_eq!(golden(32, b"key", b"a value"), GOLDEN_HALF_LINE);
    assert_eq!(golden(64, b"one line's key", b"and its value of 31 bytes here."), GOLDEN_LINE);
    let value: Vec<u8> = (0..78).collect();
    assert_eq!(golden(128, b"the key of a slot of two lines!!", &value), GOLDEN_TWO_LINES);
}

/// A server puts what the functions above encode into a region, at the right places.
#[test]
fn a_server_writes_the_pinned_bytes() {
    let dir = tempfile::tempdir().unwrap();
    on_every_preset(|preset| {
        for (key_max, value_max, slot_bytes) in [(8, 8, 32u64), (16, 32, 64), (32, 78, 128)] {
            let path = dir.path().join("region");
            let _ = std::fs::remove_file(&path);
            let config = config(preset, 100, key_max, value_max, 1);
            let geometry = config.geometry().unwrap();
            let region = Region::create(&Backing::File(path.clone()), geometry.region_bytes()).unwrap();
            let index = Index::create(region, geometry.clone(), Clock::manual()).unwrap();
            index.put(b"key", b"a value", PutMode::Upsert).unwrap();

            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, geometry.region_bytes());
            // As in docs/FORMAT.md: 64 undo lines, each for a word and a slot.
            let table = 8192 + 64 * (8 + slot_bytes).next_multiple_of(64);
            assert_eq!(bytes.len() as u64, table + geometry.slots() * slot_bytes);
            let (_, superblock) = Inspector::superblock(index.region()).unwrap();
            let mut expected = Superblock::new(&geometry, superblock.created);
            expected.stamp = superblock.stamp;
            assert_eq!(bytes[..256], bytes_of(&expected.to_words()));
            assert!(bytes[256..4096].iter().all(|&b| b == 0), "the rest of the superblock's page");
            // The state word: incarnation 1, serving. No move was begun.
            assert_eq!(bytes[4096..4104], [1, 1, 0, 0, 0, 0, 0, 0]);
            assert!(bytes[4104..8192].iter().all(|&b| b == 0), "the rest of the control page");
            assert!(bytes[8192..table as usize].iter().all(|&b| b == 0), "no slot was written over");

            let home = geometry.primary(geometry.hashed(b"key")).first;
            for slot in (0..geometry.slots()).map(SlotIx) {
                let at = (table + slot.0 * slot_bytes) as usize;
                let is_home = slot == home;
                let content = Content {
                    key: if is_home { b"key" } else { b"" },
                    value: (if is_home { &b"a value"[..] } else { b"" }).into(),
                    ..Content::default()
                };
                let identity = Identity { generation: geometry.generation(), index: slot.0 };
                // Written once when the table was made, and once by the put.
                let stamp = if is_home { 4 } else { 2 };
                let words = encode(geometry.shape(), identity, stamp, &content);
                let found = &bytes[at..at + slot_bytes as usize];
                // Overflow slots may be zero until they are needed.
                let unused = slot.0 >= geometry.main_slots() && found.iter().all(|&b| b == 0);
                assert!(unused || found == bytes_of(&words), "{slot:?}:\n{}", hex(found));
            }
        }
    });
}

/// Seeds, hashes and windows are also part of the format: a reader of another build must look in
/// the same places.
#[test]
fn hashes_are_pinned() {
    let seeds = Seeds::from_number(1);
    let first = seeds.first(b"key");
    assert_eq!(
        [first.0, seeds.second(first), seeds.shard(b"key")].map(|hash| format!("{hash:016x}")),
        GOLDEN_HASHES
    );
    assert_eq!((first.ghost(), first.filter_bit(32), first.filter_bit(8)), GOLDEN_TAGS);
    // A layout with two choices, and one with three.
    for (layout, golden) in [("windowed:8", &GOLDEN_WINDOWS[..]), ("pilaf", &GOLDEN_WINDOWS_PILAF)] {
        let table = Table::new(&golden_config().layout(layout.parse().unwrap()));
        let (windows, _) = table.inspector().windows(b"key");
        assert_eq!(windows.iter().map(|window| window.first.0).collect::<Vec<_>>(), golden);
    }
    let families = [Family::Cuckoo as u32, Family::Hopscotch as u32, Family::Chained as u32];
    assert_eq!(families, [1, 2, 3]);
}

const GOLDEN_SUPERBLOCK: &str = "\
    4f4e4552454144000900000000000000\n\
    23b02a6d55af09db0000000000000000\n\
    01000000020000000100000008000000\n\
    00000000400000001000000020000000\n\
    5d000000000000000000000000000000\n\
    00400000000000000059000000000000\n\
    80841e000000000000f1536500000000\n\
    b5918b2d34e4de1dd24536a1402417a1\n\
    d82024311bce60e053b07d8d19e8072f\n\
    05b1b2cf73ff9bbcbe137a1d4dbba6fc\n\
    e4a0d8dfb480bedfb34490ce8a5ecd52\n\
    67ec8e65a18debbe5e5532fbeea293f8\n\
    0bc942ee9086c171b9b501d1d854bb71\n\
    80021590ff0b4dc30000000000000000\n\
    00000000000000000000000000000000\n\
    000000000000000000001000a4733588\n\
";
const GOLDEN_HALF_LINE: &str = "\
    020001000855f2ca0367070001000080\n\
    6b6579612076616c7565000000000000\n\
";
const GOLDEN_LINE: &str = "\
    020001001dfffb3c0e671f0001000080\n\
    6f6e65206c696e652773206b6579616e\n\
    64206974732076616c7565206f662033\n\
    3120627974657320686572652e000000\n\
";
const GOLDEN_TWO_LINES: &str = "\
    02000100ce4cfdd320674e0001000080\n\
    746865206b6579206f66206120736c6f\n\
    74206f662074776f206c696e65732121\n\
    000102030405060708090a0b0c0d0e0f\n\
    101112131415161718191a1b1c1d1e1f\n\
    202122232425262728292a2b2c2d2e2f\n\
    303132333435363738393a3b3c3d3e3f\n\
    404142434445464748494a4b4c4d0200\n\
";
const GOLDEN_HASHES: [&str; 3] = ["5482ba8ea33e130e", "c79fb55d6e7c6e5e", "7e75db67b949d92a"];
const GOLDEN_TAGS: (u8, u32, u32) = (138, 0x4000, 0x40);
const GOLDEN_WINDOWS_PILAF: [u64; 3] = [33, 77, 80];
const GOLDEN_WINDOWS: [u64; 2] = [30, 72];

// ---- damaged regions ----------------------------------------------------------------------------

/// A region file with some keys, whose server is gone.
struct Left {
    _dir: tempfile::TempDir,
    path: PathBuf,
    geometry: Geometry,
}

impl Left {
    /// A file with `keys` keys, numbered, in a table of this preset.
    fn with_keys(preset: &Preset, slots: u64, keys: u32) -> Left {
        Left::of(config(preset, slots, 16, 32, 1), keys)
    }

    /// A file with `keys` keys, numbered, in such a table.
    fn of(config: Config, keys: u32) -> Left {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let geometry = config.geometry().unwrap();
        let region = Region::create(&Backing::File(path.clone()), geometry.region_bytes()).unwrap();
        let index = Index::create(region, geometry.clone(), Clock::manual()).unwrap();
        for n in 0..keys {
            // Tiny tables may not take all keys. The tests look at what is there.
            let _ = index.put(&key(n, 16), &value(n.into(), 20), PutMode::Upsert);
        }
        Left { _dir: dir, path, geometry }
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).unwrap()
    }

    fn open(&self) -> Result<(Index, Recovered), RecoverError> {
        Index::open(Region::open(&self.path).unwrap(), Clock::manual())
    }

    fn take_over(&self) -> (Table, Recovered) {
        let clock = Clock::manual();
        let (index, recovered) = Index::open(Region::open(&self.path).unwrap(), clock.clone()).unwrap();
        (Table { index, clock }, recovered)
    }

    /// What the slots hold: a model of the table, and the slot of each key.
    fn look(&self) -> (Model, Vec<(SlotIx, Vec<u8>)>) {
        let region = Region::open(&self.path).unwrap();
        let (geometry, _) = Inspector::superblock(&region).unwrap();
        let mut model = Model::default();
        let mut places = Vec::new();
        for report in Inspector::new(&region, &geometry).slots().filter(|report| !report.key.is_empty()) {
            places.push((report.slot, report.key.clone()));
            model.keys.insert(report.key, report.value);
        }
        (model, places)
    }

    fn offset(&self, slot: SlotIx) -> u64 {
        self.geometry.slot_offset(slot)
    }

    fn header(&self, slot: SlotIx) -> Header {
        let mut bytes = [0; 16];
        self.file().read_exact_at(&mut bytes, self.offset(slot)).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Header::from_words([word(0), word(8)])
    }

    /// Leaves `slot` like a writer that died before it stored its first byte.
    fn mark(&self, slot: SlotIx) {
        let stamp = self.header(slot).stamp | 1;
        self.file().write_all_at(&stamp.to_le_bytes(), self.offset(slot)).unwrap();
    }

    /// Leaves `slot` like a writer that died in the middle.
    fn tear(&self, slot: SlotIx) {
        self.mark(slot);
        // The first of the bytes that a writer stores: the ghost is another one.
        let mut byte = [0];
        self.file().read_exact_at(&mut byte, self.offset(slot) + 9).unwrap();
        self.file().write_all_at(&[!byte[0]], self.offset(slot) + 9).unwrap();
    }

    /// Writes a slot as a server does.
    fn write(&self, slot: SlotIx, content: &Content<'_>) {
        let geometry = self.geometry.clone();
        let identity = Identity { generation: geometry.generation(), index: slot.0 };
        let stamp = self.header(slot).stamp + 2;
        let words = encode(geometry.shape(), identity, stamp, content);
        self.file().write_all_at(&bytes_of(&words), self.offset(slot)).unwrap();
    }
}

/// A wrong byte in the superblock makes servers and clients refuse the region, with an error that
/// says why. Only the stamp is not covered: it must be even, and nothing more.
#[test]
fn any_wrong_byte_of_the_superblock_is_noticed() {
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 40, 20);
        let good = std::fs::read(&left.path).unwrap();
        for (at, flip) in (0..256).flat_map(|at| [1u8, 0x80, 0xff].map(|flip| (at, flip))) {
            left.file().write_all_at(&[good[at] ^ flip], at as u64).unwrap();
            let region = Region::open(&left.path).unwrap();
            let found = Inspector::superblock(&region).map(|_| ());
            let Err(error) = found else {
                assert!((12..16).contains(&at) && (at > 12 || flip == 0x80), "byte {at} ^ {flip}: {found:?}");
                left.file().write_all_at(&good[..256], 0).unwrap();
                continue;
            };
            let expected = match at {
                0..8 => matches!(error, SuperblockError::Magic { .. }),
                8..12 => matches!(error, SuperblockError::Version { .. }),
                12..16 => matches!(error, SuperblockError::Writing { .. }),
                _ => matches!(error, SuperblockError::Checksum { .. }),
            };
            assert!(expected && !error.to_string().is_empty(), "byte {at} ^ {flip}: {error}");
            drop(region);
            assert_eq!(left.open().err(), Some(RecoverError::Superblock(error)), "byte {at} ^ {flip}");
            left.file().write_all_at(&good[..256], 0).unwrap();
        }
        assert_eq!(std::fs::read(&left.path).unwrap(), good, "refused regions are left as they are");
    });
}

/// A matching checksum is not enough. Each field must make sense, or a client would read outside
/// the region. Every field takes extreme values, under a right checksum.
#[test]
fn impossible_fields_are_noticed() {
    on_every_preset(|preset| {
        let geometry = config(preset, 40, 16, 32, 1).geometry().unwrap();
        let good = Superblock::new(&geometry, 1);
        let sealed = |mut bytes: Vec<u8>| {
            let crc = crc32c::crc32c(&bytes[..252]);
            bytes[252..256].copy_from_slice(&crc.to_le_bytes());
            let words: Vec<u64> =
                bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            Superblock::from_words(words.try_into().unwrap())
        };
        // Fields of 4 bytes, then fields of 8. Seeds, generation and created may have any value.
        let long = (64..104).chain(216..248).step_by(8).map(|at| (at, 8));
        let fields = (32..64).step_by(4).map(|at| (at, 4)).chain(long);
        for (at, width) in fields {
            for extreme in [0, 1, 2, 3, 64, 65, 1 << 20, u64::from(u32::MAX), 1 << 40, u64::MAX] {
                let mut bytes = bytes_of(&good.to_words());
                bytes[at..at + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
                let superblock = sealed(bytes);
                // Either the region would have to be longer than it is, or the value is refused, or
                // it is harmless: then every slot lies inside the region.
                match superblock.geometry(geometry.region_bytes()) {
                    Ok(other) => assert!(other.region_bytes() <= geometry.region_bytes(), "{at}: {extreme}"),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
        for have in [0, 8192, geometry.region_bytes() - 8] {
            let need = geometry.region_bytes();
            assert_eq!(good.geometry(have), Err(SuperblockError::Truncated { have, need }));
        }
        let mut newer = bytes_of(&good.to_words());
        newer[8] = FORMAT_VERSION as u8 + 1;
        assert_eq!(
            sealed(newer).geometry(u64::MAX),
            Err(SuperblockError::Version { found: FORMAT_VERSION + 1 })
        );
        // Each value is allowed by itself, but not with another. Offsets as in docs/FORMAT.md.
        let changed = |changes: &[(usize, u32)]| {
            let mut bytes = bytes_of(&good.to_words());
            changes.iter().for_each(|&(at, to)| bytes[at..at + 4].copy_from_slice(&to.to_le_bytes()));
            sealed(bytes).geometry(u64::MAX)
        };
        let refused = |field, changes: &[(usize, u32)]| match changed(changes) {
            Err(SuperblockError::Field { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{changes:?}: {other:?}"),
        };
        let payload = geometry.shape().payload_max() as u32;
        assert!(changed(&[(60, payload - 16)]).is_ok());
        refused("value_max", &[(60, payload - 15)]);
        let chained = preset.layout.family == Family::Chained;
        let window = if chained { "window_buckets" } else { "bucket_slots * window_buckets" };
        refused(window, &[(40, 16), (44, 16)]);
        refused("table_offset", &[(80, 8000)]);
        refused("table_offset", &[(80, 2)]);
        // Chains without blocks, or blocks that no chain uses.
        refused("overflow_blocks", &[(72, u32::from(good.block_slots == 0))]);
        refused("block_slots", &[(48, u32::from(good.block_slots == 0))]);
        for (field, change) in [
            ("choices", (36, 4)),
            ("bucket_slots", (40, 65)),
            ("window_buckets", (44, 65)),
            ("block_slots", (48, 65)),
            ("slot_bytes", (52, 96)),
            ("key_max", (56, 0)),
            ("key_inline", (248, 17 << 16)),
            ("homes", (64, 0)),
            ("homes", (68, 1 << 9)),
            ("overflow_blocks", (72, 1 << 24)),
            ("region_bytes", (88, 8)),
            ("grace_ns", (100, 14)),
        ] {
            refused(field, &[change]);
        }
        let mut unknown = bytes_of(&good.to_words());
        unknown[32] = 9;
        assert_eq!(sealed(unknown).geometry(u64::MAX), Err(SuperblockError::Layout { family: 9 }));
    });
}

/// Files that are no region, or only part of one. Each is refused with the right reason, and left
/// unchanged.
#[test]
fn files_that_are_no_region_are_refused() {
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 40, 20);
        let good = std::fs::read(&left.path).unwrap();
        let attempt = |content: &[u8]| {
            std::fs::write(&left.path, content).unwrap();
            let error = left.open().expect_err("no region");
            assert_eq!(std::fs::read(&left.path).unwrap(), content, "{error}");
            error
        };
        for have in [1u64, 7, 8, 256, 4096, 8191] {
            assert_eq!(
                attempt(&good[..have as usize]),
                RecoverError::Superblock(SuperblockError::TooShort { have })
            );
        }
        let text = b"#!/bin/sh\necho 'no region, but long enough for one'\n".repeat(300);
        let magic = matches!(attempt(&text), RecoverError::Superblock(SuperblockError::Magic { .. }));
        assert!(magic, "a text file");
        // Not of zeros alone, or not of the first server's.
        for (at, byte) in [(8, 4), (256, 1), (4097, 2), (4104, 1), (9000, 1), (good.len() - 1, 1)] {
            let mut zeros = vec![0; good.len()];
            zeros[at] = byte;
            assert_eq!(attempt(&zeros), RecoverError::Superblock(SuperblockError::Magic { found: 0 }));
        }
        let need = good.len() as u64;
        for have in [8192, need - 8, need - 4, need - 1] {
            let short = RecoverError::Superblock(SuperblockError::Truncated { have, need });
            assert_eq!(attempt(&good[..have as usize]), short);
        }
        // What no server has finished is known before it is mapped. (Where the first server had ended, a state
        // of none is damage.)
        let mut unfinished = good.clone();
        unfinished[4096] = 0;
        let mut begun = vec![0; good.len()];
        begun[4097] = 1;
        for content in [&[][..], &vec![0; good.len()], &begun, &unfinished] {
            std::fs::write(&left.path, content).unwrap();
            for opened in [Region::open(&left.path), Region::open_to_read(&left.path)] {
                assert!(matches!(opened, Err(oneread::error::RegionError::Unfinished { .. })), "{opened:?}");
            }
            assert_eq!(std::fs::read(&left.path).unwrap(), content);
        }
        unfinished[4097] = 2;
        assert_eq!(attempt(&unfinished), RecoverError::Unfinished);
        std::fs::write(&left.path, &good).unwrap();
        assert_eq!(left.open().unwrap().1.torn, 0, "the good one still opens");
    });
}

/// A file with all of its slots, but not all of its heap, is refused and left unchanged. Whoever
/// looked at a value there would be killed.
#[test]
fn a_file_whose_heap_was_cut_off_is_refused() {
    on_every_preset(|preset| {
        let left = Left::of(config(preset, 40, 16, 1_000, 1).heap_bytes(1 << 20), 20);
        let (model, _) = left.look();
        let good = std::fs::read(&left.path).unwrap();
        let need = good.len() as u64;
        for have in [need - (1 << 19), need - 4096, need - 1] {
            left.file().set_len(have).unwrap();
            let short = SuperblockError::Truncated { have, need };
            let found = Inspector::superblock(&Region::open(&left.path).unwrap()).err();
            assert_eq!(found, Some(short.clone()));
            assert_eq!(left.open().err(), Some(RecoverError::Superblock(short)));
            assert!(std::fs::read(&left.path).unwrap() == good[..have as usize], "{have}");
            std::fs::write(&left.path, &good).unwrap();
        }
        left.take_over();
        assert_eq!(left.look().0.keys, model.keys, "the good one still opens");
    });
}

/// An inspector reports what is in a region. Each figure is worked out here from what was put into
/// the file.
#[test]
fn an_inspector_reports_what_is_there() {
    let mut all = oneread::internals::inspect::Occupancy::default();
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 100, 92);
        let geometry = left.geometry.clone();
        let (_, places) = left.look();
        let u64_at = |at: u64| {
            let mut bytes = [0; 8];
            left.file().read_exact_at(&mut bytes, at).unwrap();
            u64::from_le_bytes(bytes)
        };
        // The state, and the moves. Each counter has a number of its own.
        left.file().write_all_at(&(5u64 << 8 | 2).to_le_bytes(), 4096).unwrap();
        let mut moves = 0;
        for k in 1..=32u64 {
            left.file().write_all_at(&(k * k).to_le_bytes(), 4096 + 64 * k).unwrap();
            moves += k * k;
        }
        // Ghosts in two main slots, and a slot that is being written.
        let free = (0..geometry.main_slots()).map(SlotIx).filter(|&slot| left.header(slot).klen == 0);
        let ghosts: Vec<_> = free.take(2).collect();
        for &slot in &ghosts {
            let Header { aux, .. } = left.header(slot);
            left.write(slot, &Content { ghost: 9, aux, ..Content::default() });
        }
        let torn = places.iter().find(|(slot, _)| left.header(*slot).aux == 0).unwrap().clone();
        left.tear(torn.0);
        let mask = u32::MAX >> (32 - oneread::internals::families::filter_bits(&geometry));

        let region = Region::open(&left.path).unwrap();
        let inspector = Inspector::new(&region, &geometry);
        let state = inspector.state();
        assert_eq!(
            (state.incarnation, state.phase),
            (5, oneread::internals::layout::control::Phase::Retired)
        );
        assert_eq!(inspector.moves_begun(), moves);
        let blocks = u64_at(4096 + 64 * 33);
        let used = geometry.main_slots() + blocks * u64::from(preset.layout.block_slots);
        assert_eq!(inspector.slots_used(), used);
        let report = inspector.slot(torn.0);
        assert_eq!((report.slot, report.verdict), (torn.0, Err(Torn::Writing)));
        assert_eq!((report.key.len(), report.value.len(), report.header.stamp % 2), (0, 0, 1));
        let mut expected = oneread::internals::inspect::Occupancy { torn: 1, ..Default::default() };
        for (slot, key) in places.iter().filter(|(slot, _)| *slot != torn.0) {
            let report = inspector.slot(*slot);
            assert_eq!((report.slot, &report.key, report.verdict), (*slot, key, Ok(())));
            assert_eq!((report.header, report.value.len()), (left.header(*slot), 20));
            let is_main = slot.0 < geometry.main_slots();
            *if is_main { &mut expected.live_main } else { &mut expected.live_overflow } += 1;
            let primary = geometry.primary(geometry.hashed(key));
            expected.displaced += u64::from(!primary.contains(*slot));
        }
        for slot in (0..geometry.main_slots()).map(SlotIx).filter(|slot| *slot != torn.0) {
            expected.filters += u64::from(left.header(slot).aux & mask != 0);
        }
        let others = (0..used).map(SlotIx).filter(|slot| *slot != torn.0);
        expected.ghosts = others.filter(|slot| left.header(*slot).ghost != 0).count() as u64;
        assert!(expected.ghosts >= 2);
        all.displaced += expected.displaced;
        all.filters += expected.filters;
        all.live_overflow += expected.live_overflow;
        let mut seen = Vec::new();
        assert_eq!(inspector.occupancy(|slot| seen.push(slot)), expected);
        assert_eq!(seen, (0..used).collect::<Vec<_>>(), "torn ones, too");
        assert_eq!(inspector.slots().map(|report| report.slot.0).collect::<Vec<_>>(), seen);
        drop(region);
        // Blocks beyond those of the table do not exist, whatever the count says.
        left.file().write_all_at(&u64::MAX.to_le_bytes(), 4096 + 64 * 33).unwrap();
        let region = Region::open(&left.path).unwrap();
        assert_eq!(Inspector::new(&region, &geometry).slots_used(), geometry.slots());
    });
    assert!(all.displaced > 0 && all.filters > 0 && all.live_overflow > 0, "{all:?}");
}

/// A server started on such a file reports the error and serves nothing.
#[test]
fn a_server_refuses_what_is_no_region() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let address = Address::Shm(dir.path().join("socket"));
    let config = |start| {
        ServerConfig::new(address.clone(), golden_config()).backing(Backing::File(path.clone())).start(start)
    };
    write_own(&path, b"no region");
    for start in [StartMode::Open, StartMode::OpenOrCreate] {
        let error = Server::start(config(start)).expect_err("no region");
        assert!(
            matches!(
                error,
                ServeError::Recover {
                    source: RecoverError::Superblock(SuperblockError::TooShort { .. }),
                    ..
                }
            ),
            "{error}"
        );
    }
    assert!(matches!(Server::start(config(StartMode::Create)), Err(ServeError::Region(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"no region");
    assert!(!address.socket().unwrap().exists());
    let anonymous = ServerConfig::new(address, golden_config()).start(StartMode::Open);
    assert!(matches!(Server::start(anonymous), Err(ServeError::NothingToOpen)));
}

// ---- garbage in the slots -----------------------------------------------------------------------

/// A reader cannot trust the memory it reads. With garbage in every slot, a GET or a batch still
/// ends within its bounds, in an answer or a typed error. In half of the slots the stamps are even,
/// so that readers also look at the garbage (lengths beyond the slot, links out of the table,
/// circular chains).
#[test]
fn a_reader_of_garbage_comes_to_an_end() {
    let limits = Limits::new().retries_max(20).deadline(Duration::from_millis(50));
    on_every_preset(|preset| {
        for (seed, (key_max, value_max)) in [(8, 8), (16, 32), (32, 78), (255, 300)].into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("region");
            let geometry = config(preset, 200, key_max, value_max, 1).geometry().unwrap();
            let region = Region::create(&Backing::File(path.clone()), geometry.region_bytes()).unwrap();
            drop(Index::create(region, geometry.clone(), Clock::manual()).unwrap());
            scribble(&path, &geometry, seed as u64);

            let region = Region::open(&path).unwrap();
            let inspector = Inspector::new(&region, &geometry);
            let shm = Shm::new(&region, &geometry);
            let keys: Vec<_> = (0..200).map(|n| key(n, key_max)).collect();
            let errors = errors_in_garbage(shm.clone(), &geometry, limits, &keys);
            let by_machine = errors_in_garbage(ByMachine(shm), &geometry, limits, &keys);
            assert!(by_machine > 0 && errors <= by_machine, "{errors} errors, the machine {by_machine}");
            keys.iter().for_each(|key| drop(inspector.windows(key)));
            let is_torn = |n: &u64| inspector.slot(SlotIx(*n)).verdict.is_err();
            let torn = (0..geometry.main_slots()).filter(is_torn).count() as u64;
            assert!(torn > geometry.main_slots() * 9 / 10, "{torn} of {}", geometry.main_slots());
            drop(region);

            // A server that takes this over frees the invalid slots and has a working, empty table.
            let clock = Clock::manual();
            let (index, recovered) = Index::open(Region::open(&path).unwrap(), clock.clone()).unwrap();
            assert!(recovered.torn >= torn && recovered.keys == 0, "{recovered:?}");
            let mut table = Table { index, clock };
            let mut model = Model::default();
            for (n, key) in keys.iter().enumerate().take(100) {
                model.apply(&mut table, &Op::Put(key.clone(), crate::common::value(n as u64, value_max)));
            }
            check_structure(&table, &model);
        }
    });
}

/// Looks for keys, one by one and in batches. Returns how many GETs ended in an error.
fn errors_in_garbage<F: Fabric<Error = ReadError>>(
    fabric: F,
    geometry: &Geometry,
    limits: Limits,
    keys: &[Vec<u8>],
) -> usize {
    let mut reader = Reader::new(fabric, geometry, Clock::System, limits);
    let mut value = Vec::new();
    let mut errors = 0;
    for key in keys {
        match reader.get_into(key, &mut value) {
            Ok(_) => {}
            Err(ReadError::Contended { retries, .. } | ReadError::Deadline { retries, .. }) => {
                assert!(retries <= limits.retries_max, "{retries}");
                errors += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(value.len() <= geometry.shape().payload_max());
    }
    let _ = reader.get_many(keys, |_, _| {});
    for batch in keys.chunks(3) {
        let _ = reader.get_many(batch, |_, _| {});
    }
    errors
}

/// Writes random bytes over all slots. In every second slot the stamps are even and equal.
fn scribble(path: &Path, geometry: &oneread::layout::Geometry, seed: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mut numbers = Numbers(seed);
    for slot in 0..geometry.slots() {
        let mut bytes: Vec<u8> =
            (0..geometry.shape().words()).flat_map(|_| numbers.next().to_le_bytes()).collect();
        if slot % 2 == 0 {
            bytes[0] &= !1;
            let low = [bytes[0], bytes[1]];
            bytes.chunks_mut(64).skip(1).for_each(|line| line[62..].copy_from_slice(&low));
            // Some keys of lengths that are looked for, and some small links that lead into the
            // table.
            bytes[8] = numbers.below(geometry.key_max() as u64 + 2) as u8;
            bytes[14] = 0;
            bytes[15] = 0;
        }
        file.write_all_at(&bytes, geometry.slot_offset(SlotIx(slot))).unwrap();
    }
}

/// Chains that lead in a circle. A GET gives up after a bounded number of READs.
#[test]
fn a_get_in_a_circular_chain_ends() {
    on_every_preset(|preset| {
        let geometry = config(preset, 40, 16, 32, 1).geometry().unwrap();
        if geometry.overflow_blocks() == 0 {
            return;
        }
        let left = Left::with_keys(preset, 40, 0);
        let blocks = geometry.overflow_blocks() as u32;
        for home in 0..geometry.homes() {
            // All bits of the filter are set, so every key is looked for in the chain.
            let aux = chain::with_link(&geometry, 0xff, Some(chain::Block(home as u32 % blocks)));
            left.write(geometry.window(home).first, &Content { aux, ..Content::default() });
        }
        for block in 0..blocks {
            let aux = chain::with_link(&geometry, 0, Some(chain::Block((block + 1) % blocks)));
            left.write(
                chain::window(&geometry, chain::Block(block)).first,
                &Content { aux, ..Content::default() },
            );
        }
        let region = Region::open(&left.path).unwrap();
        let limits = Limits::new().retries_max(5).deadline(SOON);
        let mut reader = Reader::new(Shm::new(&region, &geometry), &geometry, Clock::System, limits);
        let looked = reader.get_into(b"key", &mut Vec::new());
        assert!(matches!(looked, Err(ReadError::Contended { .. })), "{looked:?}");
        assert_eq!(reader.stats().retries_chain, 5);
        drop(region);
        let (mut table, recovered) = left.take_over();
        assert!(recovered.cut > 0 && recovered.keys == 0, "{recovered:?}");
        let mut model = Model::default();
        (0..30).for_each(|n| {
            model.apply(&mut table, &Op::Put(key(n, 16), vec![1; 20]));
        });
        table.settle();
        check_structure(&table, &model);
        check_settled(&table);
    });
}

// ---- taking over --------------------------------------------------------------------------------

/// What is found in a region with this many keys.
fn found(keys: u64, change: impl FnOnce(&mut Recovered)) -> Recovered {
    let mut found = Recovered::default();
    found.keys = keys;
    change(&mut found);
    found
}

/// A server that stopped between two puts leaves everything. The next server has all keys, and
/// knows which are displaced.
#[test]
fn all_keys_are_taken_over() {
    on_every_preset(|preset| {
        for (slots, keys) in [(1, 1), (16, 40), (400, 380)] {
            let left = Left::with_keys(preset, slots, keys);
            let (mut model, _) = left.look();
            let (mut table, recovered) = left.take_over();
            let keys = model.keys.len() as u64;
            assert_eq!(recovered, found(keys, |_| {}));
            assert_eq!(table.index.incarnation(), 2);
            check_structure(&table, &model);
            table.settle();
            check_settled(&table);
            // It goes on where the last server stopped.
            for n in 0..keys as u32 {
                model.apply(&mut table, &Op::Remove(key(n, 16)));
                if model.apply(&mut table, &Op::Put(key(n + 1000, 16), vec![1; 9])).is_some() {
                    break;
                }
            }
            check_structure(&table, &model);
        }
    });
}

/// A half-written slot with a key, and no undo line, is found only in a damaged region. It costs the
/// key in it, is reported, and is free again. Until the takeover, readers end in `Contended` at this
/// slot only.
#[test]
fn a_torn_slot_is_reported_and_freed() {
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 100, 70);
        let (mut model, places) = left.look();
        // A slot without `aux`, so that only its key can be lost.
        let (slot, lost) = places.iter().find(|(slot, _)| left.header(*slot).aux == 0).unwrap().clone();
        left.tear(slot);

        let region = Region::open(&left.path).unwrap();
        let (geometry, _) = Inspector::superblock(&region).unwrap();
        let inspector = Inspector::new(&region, &geometry);
        assert_eq!(inspector.slot(slot).verdict, Err(Torn::Writing));
        assert_eq!(inspector.occupancy(|_| {}).torn, 1);
        let limits = Limits::new().retries_max(50).deadline(SOON);
        let mut reader = Reader::new(Shm::new(&region, &geometry), &geometry, Clock::System, limits);
        let mut got = Vec::new();
        for (key, value) in &model.keys {
            match reader.get_into(key, &mut got) {
                Ok(found) => assert!(found && got == *value && *key != lost, "{key:02x?}"),
                Err(ReadError::Contended { retries: 50, .. }) => {
                    let (windows, _) = inspector.windows(key);
                    assert!(windows.iter().any(|window| window.contains(slot)), "{key:02x?}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop(region);

        model.keys.remove(&lost);
        let (mut table, recovered) = left.take_over();
        assert_eq!(
            recovered,
            found(model.keys.len() as u64, |found| {
                found.torn = 1;
            })
        );
        check_structure(&table, &model);
        table.settle();
        check_settled(&table);
        assert_eq!(model.apply(&mut table, &Op::Insert(lost, vec![3])), None, "its room is free again");
        check_structure(&table, &model);
    });
}

/// In a damaged region keys may stand where no GET looks. Their slots are freed, and counted.
#[test]
fn misplaced_keys_are_freed() {
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 100, 30);
        let (model, places) = left.look();
        let stray = key(1000, 16);
        let region = Region::open(&left.path).unwrap();
        let (geometry, _) = Inspector::superblock(&region).unwrap();
        let (windows, _) = Inspector::new(&region, &geometry).windows(&stray);
        let elsewhere = |slot: &SlotIx| {
            let taken = places.iter().any(|(place, _)| place == slot);
            !taken && !windows.iter().any(|window| window.contains(*slot))
        };
        let slots: Vec<_> = (0..geometry.main_slots()).map(SlotIx).filter(elsewhere).take(2).collect();
        for slot in &slots {
            let aux = left.header(*slot).aux;
            left.write(*slot, &Content { key: &stray, value: b"stray".into(), aux, ..Content::default() });
        }
        drop(region);
        let (table, recovered) = left.take_over();
        let keys = model.keys.len() as u64;
        assert_eq!(
            recovered,
            found(keys, |found| {
                found.misplaced = 2;
            })
        );
        check_structure(&table, &model);
    });
}

/// A server dies while it writes over a key. The undo line of the slot brings the key back. Nothing
/// else in an undo line does: not the image of another write or slot, or a damaged one, and not the
/// number of a slot that the table has not. The slot is then freed, and the line is free.
#[test]
fn an_undo_line_brings_a_key_back() {
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 60, 40);
        let (model, places) = left.look();
        let good = std::fs::read(&left.path).unwrap();
        let (slot, key) = places.into_iter().find(|(slot, _)| left.header(*slot).aux == 0).expect("a key");
        let start = left.offset(slot) as usize;
        let image = &good[start..start + 64];
        let stamp = left.header(slot).stamp;
        let line = |n: u64| 8192 + n * 128;
        let name = (slot.0 + 1).to_le_bytes();
        let mut flipped = image.to_vec();
        flipped[20] ^= 1;
        let ways = [
            (0, name, image, stamp + 1, true),
            (63, name, image, stamp + 1, true),
            (0, name, image, stamp + 3, false),
            (0, name, image, stamp - 1, false),
            (0, name, &flipped[..], stamp + 1, false),
            (0, (slot.0 + 2).to_le_bytes(), image, stamp + 1, false),
            (0, u64::MAX.to_le_bytes(), image, stamp + 1, false),
            (0, [0; 8], image, stamp + 1, false),
            (0, name, &[0; 64][..], stamp + 1, false),
        ];
        for (n, name, image, odd, comes_back) in ways {
            std::fs::write(&left.path, &good).unwrap();
            left.tear(slot);
            left.file().write_all_at(&odd.to_le_bytes(), left.offset(slot)).unwrap();
            left.file().write_all_at(&[&name, image].concat(), line(n)).unwrap();
            let mut model = model.clone();
            if !comes_back {
                model.keys.remove(&key);
            }
            let (table, recovered) = left.take_over();
            let expected = found(model.keys.len() as u64, |found| found.torn = 1);
            assert_eq!(recovered, expected, "line {n}, {name:?}, stamp {stamp} and {odd}");
            check_structure(&table, &model);
            drop(table);
            let after = std::fs::read(&left.path).unwrap();
            assert_eq!(after[line(n) as usize..][..8], [0; 8], "the line is free");
            // Further lines may show the stamp that the torn write would have had.
            assert_eq!(left.header(slot).stamp, odd + 3);
        }
    });
}

/// A slot left odd without an undo line costs its own key, and no other key. This also holds for a
/// home slot, whose header has the filter and the link.
#[test]
fn a_torn_home_costs_its_own_key_only() {
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 200, 220);
        let (model, places) = left.look();
        let homes: Vec<_> = places
            .into_iter()
            .filter(|(slot, _)| left.header(*slot).aux != 0)
            .map(|(slot, _)| slot)
            .collect();
        // Some layouts fill a table this small without displacing a key.
        assert!(!homes.is_empty() || left.geometry.layout().window_slots() > 8);
        let good = std::fs::read(&left.path).unwrap();
        for slot in homes.into_iter().take(12) {
            std::fs::write(&left.path, &good).unwrap();
            left.tear(slot);
            let (kept, _) = left.look();
            let (table, recovered) = left.take_over();
            let (keys, before) = (kept.keys.len() as u64, model.keys.len() as u64);
            assert_eq!(keys, before - 1);
            assert_eq!(
                recovered,
                found(keys, |found| {
                    found.torn = 1;
                }),
                "torn {slot:?}"
            );
            check_structure(&table, &kept);
            table.settle();
            check_settled(&table);
        }
    });
}

/// A server that dies in the middle of a move leaves the key in two slots. One copy is freed,
/// whichever is met first. The key stays, and nothing is left of the other copy.
#[test]
fn a_doubled_key_is_kept_once() {
    on_every_preset(|preset| {
        for ghost in [0, 1] {
            let left = Left::with_keys(preset, 100, 60);
            let (model, places) = left.look();
            let geometry = left.geometry.clone();
            let mut doubled = 0;
            for (slot, key) in places {
                // A free slot in the primary window, for a move inside it or a homing.
                let window = geometry.primary(geometry.hashed(&key));
                let Some(to) = window.iter().find(|&to| left.header(to).klen == 0) else { continue };
                // The original has no ghost (M3). The copy may have one, of a key that left its
                // slot before.
                let Header { aux, .. } = left.header(to);
                if to == slot || left.header(slot).ghost != 0 {
                    continue;
                }
                let ghost = if ghost == 0 { 0 } else { 1 + to.0 as u8 };
                left.write(to, &Content { key: &key, value: (&model.keys[&key]).into(), ghost, aux });
                doubled += 1;
                if doubled == 5 {
                    break;
                }
            }
            let (table, recovered) = left.take_over();
            let keys = model.keys.len() as u64;
            assert_eq!(
                recovered,
                found(keys, |found| {
                    found.doubled = doubled;
                })
            );
            // `pilaf` and `list` have no second slot in a primary window.
            assert!(doubled > 0 || geometry.layout().window_slots() == 1);
            check_structure(&table, &model);
            table.settle();
            check_structure(&table, &model);
            check_settled(&table);
        }
    });
}

/// A copy outside the primary window is kept once: the key was going there, or coming back.
#[test]
fn a_key_doubled_across_windows_is_kept_once() {
    on_every_preset(|preset| {
        let left = Left::with_keys(preset, 100, 50);
        let (model, places) = left.look();
        let geometry = left.geometry.clone();
        if geometry.layout().family != Family::Cuckoo {
            return;
        }
        let mut doubled = 0;
        for (slot, key) in places {
            let windows = {
                let region = Region::open(&left.path).unwrap();
                Inspector::new(&region, &geometry).windows(&key).0
            };
            let mut beyond = windows[1..].iter().flat_map(|window| window.iter());
            let to = beyond.find(|&to| !windows[0].contains(to) && left.header(to).klen == 0);
            let (Some(to), true) = (to, windows[0].contains(slot)) else { continue };
            // M5: the filter comes first.
            let home = windows[0].first;
            if left.header(home).klen == 0 || doubled == 5 {
                continue;
            }
            let occupant = {
                let region = Region::open(&left.path).unwrap();
                Inspector::new(&region, &geometry).slot(home)
            };
            let aux = occupant.header.aux
                | oneread::internals::families::filter_bit(&geometry, geometry.hashed(&key));
            left.write(home, &Content { key: &occupant.key, value: (&occupant.value).into(), ghost: 0, aux });
            left.write(
                to,
                &Content { key: &key, value: (&model.keys[&key]).into(), ghost: 0, aux: left.header(to).aux },
            );
            doubled += 1;
        }
        let (table, recovered) = left.take_over();
        assert_eq!(
            recovered,
            found(model.keys.len() as u64, |found| {
                found.doubled = doubled;
            })
        );
        assert!(doubled > 0);
        check_structure(&table, &model);
        table.settle();
        check_structure(&table, &model);
        check_settled(&table);
    });
}

/// A file cannot be served twice. A table too large for its file is refused.
#[test]
fn one_server_for_each_file() {
    let left = Left::with_keys(oneread::internals::families::presets().next().unwrap(), 40, 20);
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str| {
        ServerConfig::new(Address::Shm(dir.path().join(name)), golden_config())
            .backing(Backing::File(left.path.clone()))
            .start(StartMode::Open)
    };
    let first = Server::start(config("a")).unwrap();
    assert_eq!(first.recovered(), Some(found(20, |_| {})));
    let second = Server::start(config("b")).expect_err("in use");
    assert!(
        matches!(second, ServeError::Region(oneread::internals::region::RegionError::InUse { .. })),
        "{second}"
    );
    let same_place = ServerConfig::new(Address::Shm(dir.path().join("a")), golden_config());
    assert!(matches!(Server::start(same_place), Err(ServeError::AddressInUse { .. })));
    first.stop();
    assert_eq!(Server::start(config("b")).unwrap().index().incarnation(), 3);
}

/// Servers start at one address at the same time, where a killed server has left its socket. One of
/// them serves there, and clients find it.
#[test]
fn one_server_for_each_address() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    for _ in 0..50 {
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let barrier = std::sync::Barrier::new(4);
        let start = || {
            barrier.wait();
            Server::start(ServerConfig::new(Address::Shm(path.clone()), golden_config()))
        };
        let started: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let refused = started.iter().filter_map(|server| server.as_ref().err());
        assert_eq!(refused.filter(|e| matches!(e, ServeError::AddressInUse { .. })).count(), 3);
        std::os::unix::net::UnixStream::connect(&path).expect("the one that serves is found");
        drop(started);
        assert!(!path.exists());
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no lock is left");
    // Another process that keeps the lock keeps no server from serving.
    let _kept = oneread::internals::files::LockFile::take(&path, Duration::ZERO).unwrap().unwrap();
    Server::start(ServerConfig::new(Address::Shm(path.clone()), golden_config())).unwrap().stop();
    let nowhere = ServerConfig::new(Address::Shm(path.join("socket")), golden_config());
    assert!(matches!(Server::start(nowhere), Err(ServeError::NoFolder { .. })));
}
