//! What each fuzz target does with its input. `fuzz_targets/` runs these under libFuzzer, and
//! `tests/fuzz_corpus.rs` runs them over the committed corpus.
//!
//! An input is read from its front, and reads as zero after its end. So every input means
//! something, and a shorter input is a simpler one.
#![forbid(unsafe_code)]

use oneread::Encryption;
use oneread::error::ReadError;
use oneread::fabric::{Direct, Fabric, ReadId, Stretch};
use oneread::internals::fabric::landed::LandedWindow;
use oneread::internals::fabric::shm::Shm;
use oneread::internals::families::presets;
use oneread::internals::faults::{Broken, Rule};
use oneread::internals::get::Proof;
use oneread::internals::hints::Hints;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::chain::{self, Block, CHAIN_MAX};
use oneread::internals::layout::control::{DIRECTORY_WORD, Phase, STATE_WORD, State};
use oneread::internals::layout::extent::{Reference, extent_bytes};
use oneread::internals::layout::geometry::{SlotIx, Window};
use oneread::internals::layout::hash::Seeds;
use oneread::internals::layout::slot::{Content, Identity, Stored, View, check, encode};
use oneread::internals::layout::superblock::{
    FORMAT_VERSION, MAGIC, SUPERBLOCK_WORDS, Superblock, SuperblockError,
};
use oneread::internals::reader::{Limits, Reader};
use oneread::internals::region::{Backing, Region};
use oneread::internals::sim::{Bytes, Hardware, Instant, Recorder, Unit, Witness};
use oneread::internals::sim::{KeyNumber, PlannedGet, Scene, Violation, World};
use oneread::internals::wire::{self, Found, GotReply, KeysWriter, Reply, Request, Wants, split_entry};
use oneread::layout::WORD;
#[cfg(feature = "encryption")]
use oneread::sink::Sink;
use oneread::{
    Config, PutMode, PutOutcome, SwapOutcome, TableSize,
    embedded::{Clock, Index},
    error::{PutError, RecoverError, RestoreError},
    layout::{Geometry, Layout},
    snapshot::Snapshot,
};
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

// ---- input --------------------------------------------------------------------------------------

/// Reads an input from its front. Gives zeros after its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn layout(&mut self) -> Layout {
        let n = self.below(presets().count());
        presets().nth(n).expect("below the count").layout
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The longest key and value for slots of half a line, one line, two and seven.
const SHAPES: [(usize, usize); 4] = [(8, 8), (16, 32), (32, 78), (255, 120)];
const GRACE: Duration = Duration::from_nanos(400);

fn config(input: &mut Input<'_>) -> Config {
    let layout = input.layout();
    let (key_max, value_max) = SHAPES[input.below(SHAPES.len())];
    Config::new()
        .layout(layout)
        .size(TableSize::Slots(1 + input.below(32) as u64))
        .key_max(key_max)
        .key_inline(key_max)
        .value_max(value_max)
        .grace(GRACE)
        .seeds(Seeds::from_number(u64::from(input.byte())))
}

/// Key number `n`. Lengths are 1 to `key_max`, and each key is different.
fn key(n: u8, key_max: usize) -> Vec<u8> {
    let length = 1 + usize::from(n) * 37 % key_max;
    let mut key = vec![n; length];
    key[length / 2] ^= 0x55;
    key[0] = n;
    key
}

fn value(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| seed.wrapping_mul(31).wrapping_add(i as u8)).collect()
}

// ---- regions ------------------------------------------------------------------------------------

/// A file of this user alone, in memory if possible. It is removed when this is dropped.
struct Scratch {
    file: File,
    path: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Scratch {
    fn new() -> Scratch {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("oneread-fuzz-{}-{number}", std::process::id()));
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        Scratch { file: options.open(&path).expect("a scratch file"), path }
    }

    fn holding(words: &[u64]) -> Scratch {
        let scratch = Scratch::new();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        (&scratch.file).write_all(&bytes).expect("room for a small region");
        scratch
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn open(&self) -> Region {
        Region::open(&self.path()).expect("a region of the scratch file")
    }

    fn map_shared(&self) -> Region {
        let reader = File::open(self.path()).expect("the scratch file");
        Region::map_shared(reader.into()).expect("a mapping")
    }
}

fn words_of(region: &Region, geometry: &Geometry) -> Vec<u64> {
    (0..geometry.region_bytes() as usize / WORD).map(|word| region.load(word)).collect()
}

/// READs from a copy of a region, validated like those of a NIC. Counts them.
struct Memory<'a> {
    geometry: &'a Geometry,
    words: &'a [u64],
    proofs: &'a [Proof],
    posted: Vec<(ReadId, Window)>,
    reads: u64,
}

impl<'a> Memory<'a> {
    /// `flags` says what passes over it prove.
    fn new(geometry: &'a Geometry, words: &'a [u64], flags: u8) -> Memory<'a> {
        let proofs: &[Proof] = match flags % 4 {
            0 => &[Proof::InGrace],
            1 => &[Proof::NoMove],
            2 => &[Proof::Late],
            _ => &[Proof::InGrace, Proof::Late, Proof::NoMove, Proof::Moved],
        };
        Memory { geometry, words, proofs, posted: Vec::new(), reads: 0 }
    }
}

impl Direct for Memory<'_> {}

impl Fabric for Memory<'_> {
    type Landed<'l>
        = LandedWindow<'l>
    where
        Self: 'l;
    const EXACT: bool = false;
    type Mark = ();
    type Error = ReadError;

    fn credits(&self) -> usize {
        3
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        self.posted.extend_from_slice(reads);
        Ok(())
    }

    fn poll(&mut self, mut sink: impl FnMut(ReadId, &mut LandedWindow<'_>)) -> Result<(), ReadError> {
        for (token, window) in self.posted.drain(..) {
            self.reads += 1;
            let slot = self.geometry.slot_offset(window.first) as usize / WORD;
            let words = self.geometry.window_bytes(window) as usize / WORD;
            sink(token, &mut LandedWindow::new(self.geometry, window, &self.words[slot..slot + words]));
        }
        Ok(())
    }

    fn mark(&mut self, _home: u64) {}

    fn proof(&mut self, _home: u64, (): ()) -> Proof {
        self.proofs[self.reads as usize % self.proofs.len()]
    }

    fn took_less(&mut self, (): (), _allowance: Duration) -> bool {
        self.proofs[self.reads as usize % self.proofs.len()] != Proof::Late
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), ReadError> {
        let heap = self.geometry.heap();
        let bytes: &[u8] = bytemuck::cast_slice(self.words);
        for &Stretch { offset, len } in stretches {
            self.reads += 1;
            let is_inside = heap.offset <= offset && offset + len as u64 <= heap.offset + heap.bytes;
            let longest = self.geometry.value_max() + self.geometry.key_max();
            assert!(is_inside && len <= longest, "a READ of {len} bytes at {offset}");
            out.put(&bytes[offset as usize..][..len]);
        }
        Ok(())
    }
}

/// Few retries, so that a GET ends soon whatever the bytes are.
const LIMITS: Limits = Limits::new().retries_max(3).deadline(Duration::from_secs(1));

/// Checks that a GET in a damaged region failed with one of the allowed errors.
fn inconclusive(error: &ReadError) {
    let is_known = matches!(
        error,
        ReadError::Contended { .. }
            | ReadError::Deadline { .. }
            | ReadError::Replaced { .. }
            | ReadError::Damaged { .. }
    );
    assert!(is_known, "{error}");
}

// ---- snapshot_bytes -----------------------------------------------------------------------------

/// A CRC of 32 bits, reflected, bit by bit.
fn crc(polynomial: u32, parts: &[&[u8]]) -> [u8; 4] {
    let bytes = parts.iter().flat_map(|part| part.iter());
    let sum = bytes.fold(!0u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (polynomial * (sum & 1)))
    });
    (!sum).to_le_bytes()
}

/// CRC-32C, of slots and heads.
fn crc32c(parts: &[&[u8]]) -> [u8; 4] {
    crc(0x82f6_3b78, parts)
}

/// CRC-32, of long values and records.
fn crc32(bytes: &[u8]) -> [u8; 4] {
    crc(0xedb8_8320, &[bytes])
}

/// A snapshot whose fields follow from the input: mostly possible ones, with checksums put right.
fn forged_snapshot(input: &mut Input<'_>) -> Vec<u8> {
    let mut file = b"ONESNAP\0".to_vec();
    let mut fields = [2, 0, 7, 0, 1, 0, 1, 0, 1, 0, 1, 2, 1, 8, 0, 16, 40, 0, 32, 0, 2_000_000, 0];
    let other = input.byte();
    if other & 0x80 != 0 {
        let value = if other & 0x40 == 0 { u32::from(input.byte()) } else { input.u32() };
        fields[usize::from(other & 0x3f) % fields.len()] = value;
    }
    fields.iter().for_each(|field: &u32| file.extend(field.to_le_bytes()));
    file.resize(128, 0);
    let sum = crc32c(&[&file[..12], &file[16..]]);
    file[12..16].copy_from_slice(&sum);
    let id: [u8; 8] = file[16..24].try_into().expect("8 bytes");
    let (mut all, mut all_bytes, mut longest) = (0u64, 0u64, [0u32; 2]);
    let blocks = input.below(4) as u64;
    for number in 0..=blocks {
        let is_last = number == blocks;
        let mut payload = Vec::new();
        let records = if is_last { 0 } else { input.below(6) };
        for _ in 0..records {
            let (mode, key, vlen) = (input.byte(), key(input.byte(), 16), input.below(41));
            let (klen, vlen) = (key.len() as u32, vlen as u32);
            longest = [longest[0].max(klen), longest[1].max(vlen)];
            let (said_klen, said_vlen) = match mode {
                0..230 => (klen, vlen),
                230..240 => (input.u32(), vlen),
                _ => (klen, input.u32()),
            };
            payload.extend(said_klen.to_le_bytes());
            payload.extend(said_vlen.to_le_bytes());
            payload.extend(key);
            payload.extend(value(mode, vlen as usize));
        }
        if is_last {
            payload.extend(all.to_le_bytes());
            payload.extend(all_bytes.to_le_bytes());
            payload.extend([0; 16]);
            payload.extend(longest.iter().flat_map(|length| length.to_le_bytes()));
        }
        let mode = input.byte();
        let mut head = if is_last { b"LAST".to_vec() } else { b"BLCK".to_vec() };
        let said = if mode & 0xf0 == 0xf0 { input.u32() } else { payload.len() as u32 };
        head.extend(said.to_le_bytes());
        head.extend(if mode & 0xf0 == 0xe0 { input.u64() } else { number }.to_le_bytes());
        head.extend(records.wrapping_add(usize::from(mode & 0xf0 == 0xd0)).to_le_bytes()[..4].iter());
        head.extend(crc32(&payload));
        head.extend([0; 4]);
        let sum = crc32c(&[&id, &head]);
        file.extend(head);
        file.extend(sum);
        file.extend(&payload);
        all += records as u64;
        all_bytes += payload.len() as u64;
    }
    file
}

/// Arbitrary bytes as a snapshot. They are an error, or all their keys are put; what is whole can be
/// had in any case; nothing goes on without end, or takes memory for bytes that are not there. Returns
/// whether the snapshot was whole.
pub fn snapshot_bytes(data: &[u8]) -> bool {
    let input = &mut Input(data);
    let mode = input.byte();
    let mut file = if mode % 4 == 0 { input.0.to_vec() } else { forged_snapshot(input) };
    match mode >> 6 {
        1 => {
            let at = usize::from(input.u16()) % file.len().max(1);
            if let Some(byte) = file.get_mut(at) {
                *byte ^= input.byte();
            }
        }
        2 => file.truncate(usize::from(input.u16()) % (file.len() + 1)),
        3 => file.extend(input.0),
        _ => {}
    }
    let scratch = Scratch::new();
    (&scratch.file).write_all(&file).expect("room for a small file");
    let config = Config::new().size(TableSize::Slots(24)).key_max(16).value_max(40).grace(GRACE);
    let geometry = config.seeds(Seeds::from_number(1)).geometry().expect("possible");
    let region = Region::private(geometry.region_bytes());
    let index = Index::create(region, geometry, Clock::manual()).expect("memory");
    let mut there = HashMap::new();
    let whole = Snapshot::open(&scratch.path()).and_then(|snapshot| {
        let content = snapshot.check(&mut |_| {})?;
        let mut blocks = snapshot.blocks();
        let mut keys = 0;
        while let Some(block) = blocks.next()? {
            keys += block.entries().count() as u64;
            there.extend(block.entries().map(|entry| (entry.key.to_vec(), entry.value.to_vec())));
        }
        assert_eq!(keys, content.keys, "what it says and what it has");
        Ok(snapshot)
    });
    if let Ok(snapshot) = &whole {
        match index.restore_from(snapshot, &mut |_, _| {}) {
            Ok(restored) => {
                assert!(restored.keys >= index.len() && index.len() == there.len() as u64);
                let mut got = Vec::new();
                let mut reader = index.reader();
                assert!(there.keys().all(|key| reader.get_into(key, &mut got) == Ok(true)));
            }
            Err(RestoreError::Full { .. }) => {}
            Err(
                RestoreError::TooLong { .. }
                | RestoreError::TooMany { .. }
                | RestoreError::Life
                | RestoreError::Owners,
            ) => assert!(index.is_empty()),
            Err(error) => panic!("it was whole: {error}"),
        }
    }
    let Ok(snapshot) = Snapshot::open_head(&scratch.path()) else {
        assert!(whole.is_err());
        return false;
    };
    let mut blocks = snapshot.blocks();
    let (mut records, mut gaps) = (0, 0);
    loop {
        let before = blocks.at();
        match blocks.next() {
            Ok(Some(block)) => records += block.entries().count(),
            Ok(None) => break,
            Err(_) => {
                gaps += 1;
                match blocks.resume().expect("the file can be read") {
                    Some(gap) => {
                        assert!(gap.start == before && gap.end > before && gap.end < file.len() as u64)
                    }
                    None => break,
                }
            }
        }
        assert!(blocks.at() > before && blocks.at() <= file.len() as u64);
    }
    assert_eq!(whole.is_ok(), gaps == 0, "{records} records, {gaps} gaps, {whole:?}");
    whole.is_ok()
}

// ---- slot_bytes ---------------------------------------------------------------------------------

/// The keys in slots and in GETs have numbers below this.
const KEYS: u8 = 12;

/// A region whose slots follow from the input: raw bytes, valid slots of any content, damaged ones.
fn damaged_region(input: &mut Input<'_>, geometry: &Geometry) -> Vec<u64> {
    let shape = geometry.shape();
    let mut words = vec![0; geometry.region_bytes() as usize / WORD];
    words[..SUPERBLOCK_WORDS].copy_from_slice(&Superblock::new(geometry, 1).to_words());
    words[STATE_WORD] = State { incarnation: 1, phase: Phase::Serving }.to_word();
    for number in 0..geometry.slots() {
        let identity = Identity { generation: geometry.generation(), index: number };
        let mode = input.byte();
        let image = match mode % 8 {
            0 => encode(shape, identity, 2, &Content::default()),
            1 => (0..shape.words()).map(|_| input.u64()).collect(),
            2 => (0..shape.words()).map(|_| 0).collect(),
            kind => {
                let of = input.byte();
                let key = if kind == 3 { Vec::new() } else { key(of % KEYS, geometry.key_max()) };
                let room = shape.payload_max() - key.len();
                let value = value(of, if of.is_multiple_of(5) { room } else { usize::from(of) % (room + 1) });
                let (ghost, blocks) = (geometry.hashed(&key).ghost(), geometry.overflow_blocks());
                let link = Block((u64::from(input.byte()) % (blocks + 2)) as u32);
                let filter = if mode & 0x80 == 0 { 0 } else { !0 };
                let (ghost, aux) = match kind {
                    4 => (0, 0),
                    5 => (ghost, chain::with_link(geometry, filter, Some(link))),
                    _ => {
                        (input.byte(), chain::with_link(geometry, filter, (mode & 0x40 != 0).then_some(link)))
                    }
                };
                let stamp = if mode & 0x20 == 0 { 2 } else { input.u32() & !1 };
                let content = Content { key: &key, value: (&value).into(), ghost, aux };
                let mut image = encode(shape, identity, stamp, &content);
                if kind == 7 {
                    let word = usize::from(input.byte()) % image.len();
                    image[word] ^= u64::from(input.byte()) << (input.byte() & 0x38);
                }
                image
            }
        };
        let at = geometry.slot_offset(SlotIx(number)) as usize / WORD;
        words[at..at + shape.words()].copy_from_slice(&image);
    }
    words
}

/// Arbitrary bytes as slots. Readers of any kind, and a server that takes the region over, do not
/// panic, do not leave the region, and come to an end.
pub fn slot_bytes(data: &[u8]) {
    let input = &mut Input(data);
    let geometry = config(input).geometry().expect("a possible configuration");
    let flags = input.byte();
    let words = damaged_region(input, &geometry);
    let keys: Vec<_> = (0..KEYS + 2).map(|n| key(n, geometry.key_max())).collect();
    landed(&geometry, &words, &keys, flags);
    let scratch = Scratch::holding(&words);
    mapped(&scratch.map_shared(), &geometry, &keys, flags);
    taken_over(scratch.open(), &geometry, &keys, input);
}

fn landed(geometry: &Geometry, words: &[u64], keys: &[Vec<u8>], flags: u8) {
    let memory = Memory::new(geometry, words, flags);
    let mut reader = Reader::new(memory, geometry, Clock::manual(), LIMITS);
    let mut out = Vec::new();
    for key in keys {
        let before = reader.fabric().reads;
        match reader.get_into(key, &mut out) {
            Ok(true) => assert!(stands_in(geometry, words, key, &out), "found what is not there: {key:?}"),
            Ok(false) => assert!(out.is_empty()),
            Err(error) => inconclusive(&error),
        }
        let reads = reader.fabric().reads - before;
        assert!(reads <= u64::from(LIMITS.retries_max * (CHAIN_MAX + 1)), "{reads} READs");
    }
    let each = |n: usize, value: Option<&[u8]>| {
        assert!(value.is_none_or(|value| stands_in(geometry, words, &keys[n], value)));
    };
    if let Err(error) = reader.get_many(keys, each) {
        inconclusive(&error);
    }
}

/// Whether a valid slot holds this key and value.
fn stands_in(geometry: &Geometry, words: &[u64], key: &[u8], value: &[u8]) -> bool {
    let shape = geometry.shape();
    (0..geometry.slots()).any(|number| {
        let at = geometry.slot_offset(SlotIx(number)) as usize / WORD;
        let identity = Identity { generation: geometry.generation(), index: number };
        check(shape, identity, &words[at..at + shape.words()]).is_ok_and(|view| {
            let mut there = Vec::new();
            view.value_into(&mut there);
            view.holds(key) && there == value
        })
    })
}

fn mapped(region: &Region, geometry: &Geometry, keys: &[Vec<u8>], flags: u8) {
    let (same, _) = Inspector::superblock(region).expect("a good superblock");
    assert_eq!(same, *geometry);
    let mut reader = Reader::new(Shm::new(region, geometry), geometry, Clock::manual(), LIMITS);
    let mut out = Vec::new();
    for key in keys {
        match reader.get_into(key, &mut out) {
            Ok(true) => assert!(out.len() + key.len() <= geometry.shape().payload_max()),
            Ok(false) => assert!(out.is_empty()),
            Err(error) => inconclusive(&error),
        }
    }
    if let Err(error) = reader.get_many(keys, |_, _| ()) {
        inconclusive(&error);
    }
    let inspector = Inspector::new(region, geometry);
    inspector.state();
    inspector.moves_begun();
    // It looks at a torn slot 100 times and yields in between. So this is done rarely.
    if flags & 0xf0 == 0xf0 {
        inspector.occupancy(|_| ());
        for key in keys {
            let (windows, _) = inspector.windows(key);
            assert!(windows.iter().all(|w| w.first.0 + u64::from(w.slots) <= geometry.slots()));
        }
    }
}

/// When a server has taken the region over, every GET has an answer again.
fn taken_over(region: Region, geometry: &Geometry, keys: &[Vec<u8>], input: &mut Input<'_>) {
    let clock = Clock::manual();
    let (index, found) = Index::open(region, clock.clone()).expect("a good superblock");
    assert!(found.keys <= geometry.slots() && index.len() == found.keys);
    let get = |key: &[u8]| {
        let mut value = Vec::new();
        let fabric = Shm::new(index.region(), geometry);
        let mut reader = Reader::new(fabric, geometry, Clock::manual(), LIMITS);
        let found = reader.get_into(key, &mut value).expect("a repaired table");
        found.then_some(value)
    };
    for key in keys {
        get(key);
    }
    for n in 0..24 {
        let (op, which) = (input.byte(), input.below(keys.len()));
        let key = &keys[which];
        match op % 4 {
            0 | 1 => {
                let value = value(n, geometry.value_max().min(usize::from(op)));
                match index.put(key, &value, PutMode::Upsert) {
                    Ok(_) => assert_eq!(get(key).as_ref(), Some(&value)),
                    Err(PutError::Full { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            2 => {
                index.remove(key).expect("a key of allowed length");
                get(key);
            }
            _ => {
                clock.advance(GRACE * u32::from(op / 4 % 4));
                index.tidy();
            }
        }
    }
}

// ---- directory_bytes ----------------------------------------------------------------------------

/// A table that grows, and what was done to its region.
struct Forged {
    geometry: Geometry,
    words: Vec<u64>,
    /// The uses of memory that a slot may be bound to.
    uses: HashSet<u32>,
}

impl Forged {
    /// A table of some segments, some of whose entries, headers and slots follow from the input.
    fn new(input: &mut Input<'_>) -> Forged {
        let layout = input.layout();
        let segment_slots = 16.max(2 * u64::from(layout.window_slots()));
        let sized = |bytes_max| {
            let size = TableSize::Growing { bytes_max, segment_slots: Some(segment_slots) };
            let config = Config::new().layout(layout).size(size).key_max(8).value_max(30).grace(GRACE);
            config.seeds(Seeds::from_number(1)).geometry()
        };
        let few = |geometry: &Geometry| geometry.segments_max() == 4;
        let geometry = (8..1 << 12).filter_map(|kib| sized(kib << 10).ok()).find(few).expect("a size");
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry.clone(), Clock::manual()).expect("memory");
        for n in 0..input.byte() % 60 {
            let _ = index.put(&key(n, 8), &value(n, usize::from(n) % 30), PutMode::Upsert);
            if n % 8 == 7 {
                index.tidy();
            }
        }
        let words = words_of(index.region(), &geometry);
        let mut forged = Forged { geometry, words, uses: (0..16).collect() };
        for _ in 0..64 {
            if input.is_empty() {
                break;
            }
            forged.change(input);
        }
        forged
    }

    fn change(&mut self, input: &mut Input<'_>) {
        let segments = self.geometry.segments_max();
        let any_segment = |input: &mut Input<'_>| input.below(segments as usize) as u64;
        match input.byte() % 6 {
            0 => {
                let number = u64::from(input.byte()) % self.geometry.directory_slots();
                // Mostly possible ones.
                let odd = input.byte();
                let depth = if odd & 1 == 0 { input.below(5) as u64 } else { u64::from(input.byte()) & 31 };
                let mut memory = || match odd & 2 {
                    0 => any_segment(input),
                    _ => u64::from(input.u32() & 0xff_ffff),
                };
                let (here, there) = (memory(), memory());
                let place = depth | u64::from(odd >> 2 & 3) << 5 | here << 8 | there << 32;
                let mut used = || if odd & 0x10 == 0 { input.below(8) as u32 } else { input.u32() };
                let uses = [used(), used()];
                self.uses.extend(uses);
                let uses = u64::from(uses[0]) | u64::from(uses[1]) << 32;
                let uses = uses.to_le_bytes();
                let content = Content { key: &place.to_le_bytes(), value: (&uses).into(), ghost: 0, aux: 0 };
                self.set(number, 0, 2 * u32::from(odd), &content);
            }
            1 => {
                self.words[DIRECTORY_WORD] =
                    if input.below(2) == 0 { input.below(6) as u64 } else { input.u64() }
            }
            2 => {
                // The header of a home: another depth, merged or not, another filter and link.
                let home = u64::from(input.byte()) % self.geometry.homes();
                let slot = self.slot_of(any_segment(input), self.geometry.window(home).first.0);
                let aux = input.u32();
                let found = self.uses.iter().find_map(|&used| {
                    let view =
                        check(self.geometry.shape(), self.identity(slot, used), self.image(slot)).ok()?;
                    let mut value = Vec::new();
                    view.value_into(&mut value);
                    Some((used, (0..KEYS).find(|&n| view.holds(&key(n, 8))), value, view.header()))
                });
                if let Some((used, number, value, header)) = found {
                    let key = number.map_or(Vec::new(), |n| key(n, 8));
                    let content = Content { key: &key, value: (&value).into(), ghost: header.ghost, aux };
                    self.set(slot, used, header.stamp.wrapping_add(2), &content);
                }
            }
            3 => {
                let first = self.geometry.table_offset() as usize / WORD;
                let word = first + usize::from(input.u16()) % (self.words.len() - first);
                self.words[word] = input.u64();
            }
            4 => {
                let slot = self.slot_of(any_segment(input), u64::from(input.byte()) % self.geometry.slots());
                let (n, used) = (input.byte() % KEYS, input.below(8) as u32);
                let key = key(n, 8);
                let filled = value(n, 7);
                let content =
                    Content { key: &key, value: (&filled).into(), ghost: input.byte(), aux: input.u32() };
                self.set(slot, used, 2 * u32::from(input.u16()), &content);
            }
            _ => {
                // The bytes of one segment in the memory of another.
                let [from, to] = [any_segment(input), any_segment(input)]
                    .map(|memory| self.geometry.slot_offset(SlotIx(self.slot_of(memory, 0))) as usize / WORD);
                let words = self.geometry.slots() as usize * self.geometry.shape().words();
                self.words.copy_within(from..from + words, to);
            }
        }
    }

    fn slot_of(&self, memory: u64, slot: u64) -> u64 {
        self.geometry.segment_first(0).0 + memory * self.geometry.slots() + slot
    }

    fn identity(&self, index: u64, used: u32) -> Identity {
        Identity { generation: self.geometry.generation() ^ u64::from(used), index }
    }

    fn image(&self, slot: u64) -> &[u64] {
        let at = self.geometry.slot_offset(SlotIx(slot)) as usize / WORD;
        &self.words[at..at + self.geometry.shape().words()]
    }

    fn set(&mut self, slot: u64, used: u32, stamp: u32, content: &Content<'_>) {
        let image = encode(self.geometry.shape(), self.identity(slot, used), stamp, content);
        let at = self.geometry.slot_offset(SlotIx(slot)) as usize / WORD;
        self.words[at..at + image.len()].copy_from_slice(&image);
    }

    /// Whether a slot that is valid in some use of its memory holds this key and value.
    fn has(&self, key: &[u8], value: &[u8]) -> bool {
        let slots = self.slot_of(0, 0)..self.slot_of(self.geometry.segments_max(), 0);
        slots.into_iter().any(|slot| {
            self.uses.iter().any(|&used| {
                check(self.geometry.shape(), self.identity(slot, used), self.image(slot)).is_ok_and(|view| {
                    let mut there = Vec::new();
                    view.value_into(&mut there);
                    view.holds(key) && there == value
                })
            })
        })
    }
}

/// A table that grows whose directory, home states and uses of memory are of any kind. Readers end in a
/// value that stands in a valid slot, in a miss, or in an error, after so many READs. A server that
/// takes the region over refuses it or works with it. Returns how many GETs ended in each way, and
/// whether the server refused.
pub fn directory_bytes(data: &[u8]) -> [u64; 4] {
    /// Entries, windows and chains of two segments in each look, and entries that are deeper each time.
    const READS_MAX: u64 = 2 * (LIMITS.retries_max as u64 + 1) * (CHAIN_MAX as u64 + 4) + 64;
    let input = &mut Input(data);
    let flags = input.byte();
    let forged = Forged::new(input);
    let geometry = &forged.geometry;
    let keys: Vec<_> = (0..KEYS + 2).map(|n| key(n, 8)).collect();
    let memory = Memory::new(geometry, &forged.words, flags);
    let mut reader = Reader::new(memory, geometry, Clock::manual(), LIMITS);
    let (mut out, mut ends) = (Vec::new(), [0; 4]);
    // Twice: the second time by what the client remembers.
    for key in keys.iter().chain(&keys) {
        let before = reader.fabric().reads;
        let found = reader.get_into(key, &mut out);
        match &found {
            Ok(true) => assert!(forged.has(key, &out), "found what is not there: {key:?}"),
            Ok(false) => assert!(out.is_empty()),
            Err(error) => inconclusive(error),
        }
        ends[found.map_or(2, |found| usize::from(!found))] += 1;
        let reads = reader.fabric().reads - before;
        assert!(reads <= READS_MAX, "{reads} READs");
    }
    let each = |n: usize, value: Option<&[u8]>| {
        assert!(value.is_none_or(|value| forged.has(&keys[n], value)));
    };
    if let Err(error) = reader.get_many(&keys, each) {
        inconclusive(&error);
    }
    misled(&forged, &keys, flags, READS_MAX);
    let scratch = Scratch::holding(&forged.words);
    mapped(&scratch.map_shared(), geometry, &keys, flags & 0x0f);
    ends[3] = u64::from(!grown_over(scratch.open(), geometry, &keys, input));
    ends
}

/// GETs with hints: a value stands in a valid slot, and a GET has two READs more at the most. What
/// no hint found is answered as without hints, where no other answer came by one.
fn misled(forged: &Forged, keys: &[Vec<u8>], flags: u8, reads_max: u64) {
    let geometry = &forged.geometry;
    let Some(hints) = Hints::new(geometry, 1 << 12) else { return };
    assert!(hints.bytes() <= 1 << 12);
    let memory = || Memory::new(geometry, &forged.words, flags);
    let mut reader = Reader::new(memory(), geometry, Clock::manual(), LIMITS).with_hints(&hints);
    let mut plain = Reader::new(memory(), geometry, Clock::manual(), LIMITS);
    let (mut out, mut other) = (Vec::new(), Vec::new());
    for key in keys.iter().chain(keys).chain(keys) {
        let before = reader.fabric().reads;
        let found = reader.get_into(key, &mut out);
        match &found {
            Ok(true) => assert!(forged.has(key, &out), "found what is not there: {key:?}"),
            Ok(false) => assert!(out.is_empty()),
            Err(error) => inconclusive(error),
        }
        let reads = reader.fabric().reads - before;
        assert!(reads <= reads_max + 2, "{reads} READs");
        // By several proofs in turn, answers depend on the number of READs.
        if reader.fabric().proofs.len() == 1 && reader.hint_counts().hinted == 0 {
            assert_eq!((found, &out), (plain.get_into(key, &mut other), &other), "{key:?}");
        }
    }
    let each = |n: usize, value: Option<&[u8]>| {
        assert!(value.is_none_or(|value| forged.has(&keys[n], value)));
    };
    if let Err(error) = reader.get_many(keys, each) {
        inconclusive(&error);
    }
}

/// A server takes a table that grows over, or refuses it. It works with what it takes. Returns whether
/// it took it.
fn grown_over(region: Region, geometry: &Geometry, keys: &[Vec<u8>], input: &mut Input<'_>) -> bool {
    let clock = Clock::manual();
    let index = match Index::open(region, clock.clone()) {
        Ok((index, _)) => index,
        Err(error) => {
            assert!(matches!(error, RecoverError::Directory { .. }), "{error}");
            return false;
        }
    };
    let mut reader = Reader::new(Shm::new(index.region(), geometry), geometry, Clock::manual(), LIMITS);
    let mut value = Vec::new();
    for n in 0..24u8 {
        let key = &keys[usize::from(n) % keys.len()];
        if let Err(error) = reader.get_into(key, &mut value) {
            inconclusive(&error);
        }
        let put = [n; 9];
        match index.put(key, &put, PutMode::Upsert) {
            Ok(_) => {
                let found = reader.get_into(key, &mut value);
                assert!(found == Ok(true) && value == put, "{found:?}, {value:?}, {:?}", index.growth());
            }
            Err(PutError::Full { .. } | PutError::Busy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if n % 3 == input.byte() % 3 {
            index.remove(key).expect("a key of allowed length");
            clock.advance(GRACE);
            index.tidy();
        }
    }
    true
}

// ---- reference_bytes ----------------------------------------------------------------------------

/// The table of a configuration, with values that do not fit its slots, nor do the longest keys.
fn with_heap(config: Config, input: &mut Input<'_>) -> Config {
    config
        .key_inline(config.key_max.min(24))
        .value_max(LONG_MAX)
        .inline_max(30)
        .heap_bytes((2 + input.below(2) as u64) * 4096)
}

/// The longest value of such a table.
const LONG_MAX: usize = 240;
/// The longest key, and what a slot has of one that does not fit it: two hashes, and a reference.
const LONG_KEY_MAX: usize = 60;
const LONG_KEY_BYTES: usize = 40;

/// A table whose slots name what follows from the input, and whose heap has any bytes.
struct Hostile {
    geometry: Geometry,
    words: Vec<u64>,
}

impl Hostile {
    fn new(input: &mut Input<'_>, key_max: usize) -> Hostile {
        let size = TableSize::Slots(16 + input.below(16) as u64);
        let config = Config::new().layout(input.layout()).size(size).key_max(key_max).grace(GRACE);
        let config = with_heap(config.seeds(Seeds::from_number(1)), input);
        let geometry = config.geometry().expect("a possible configuration");
        let region = Region::private(geometry.region_bytes());
        let index = Index::create(region, geometry.clone(), Clock::manual()).expect("memory");
        for n in 0..KEYS {
            let _ = index.put(&key(n, key_max), &value(n, input.below(LONG_MAX + 1)), PutMode::Upsert);
        }
        let words = words_of(index.region(), &geometry);
        let mut hostile = Hostile { geometry, words };
        for _ in 0..32 {
            if input.is_empty() {
                break;
            }
            hostile.change(input);
        }
        hostile
    }

    fn change(&mut self, input: &mut Input<'_>) {
        let heap = self.geometry.heap();
        let [table, behind] = [self.geometry.table_offset(), heap.offset].map(|byte| byte as usize / WORD);
        match input.byte() % 4 {
            0 => {
                let word = behind + usize::from(input.u16()) % (self.words.len() - behind);
                self.words[word] = input.u64();
            }
            1 => {
                let word = table + usize::from(input.u16()) % (self.words.len() - table);
                self.words[word] ^= 1 << (input.byte() % 64);
            }
            _ => self.change_reference(input),
        }
    }

    /// A slot with a key names another place, length, number or CRC.
    fn change_reference(&mut self, input: &mut Input<'_>) {
        let name = key(input.byte() % KEYS, self.geometry.key_max());
        let Some(slot) = self.slots_with(&name).next() else { return };
        let view = self.view(slot).expect("it is valid");
        let (header, was) = (view.header(), view.reference());
        let heap = self.geometry.heap();
        let unnamed = Reference { number: 7, offset: heap.offset + 24, len: 40, crc: 0 };
        let mut it = was.unwrap_or(unnamed);
        let what = input.byte();
        it.offset = match what & 3 {
            0 => it.offset,
            1 => it.offset.wrapping_add_signed(32 * i64::from(input.byte() as i8)),
            2 => heap.offset + heap.bytes - u64::from(input.byte()),
            _ => input.u64(),
        };
        it.len = match what >> 2 & 3 {
            0 => it.len,
            1 => u32::from(input.byte()),
            2 => u32::from(input.u16()),
            _ => input.u32(),
        };
        if what & 16 != 0 {
            it.number = input.u64();
        }
        it.crc = match self.bytes_at(&it) {
            Some(bytes) if what & 32 == 0 => u32::from_le_bytes(crc32(bytes)),
            _ if what & 64 == 0 => it.crc,
            _ => input.u32(),
        };
        // Behind the hashes of a key that does not fit its slot.
        let mut bytes = Vec::new();
        view.value_into(&mut bytes);
        bytes.truncate(if header.is_long_key() { bytes.len() - size_of::<Reference>() } else { 0 });
        bytes.extend(it.to_bytes());
        let (ghost, aux) = (header.ghost, header.aux);
        let content = Content { key: &name, value: Stored::in_heap(&bytes), ghost, aux };
        let identity = Identity { generation: self.geometry.generation(), index: slot };
        let image = encode(self.geometry.shape(), identity, header.stamp.wrapping_add(2), &content);
        let at = self.geometry.slot_offset(SlotIx(slot)) as usize / WORD;
        self.words[at..at + image.len()].copy_from_slice(&image);
    }

    fn view(&self, slot: u64) -> Option<View<'_>> {
        let shape = self.geometry.shape();
        let at = self.geometry.slot_offset(SlotIx(slot)) as usize / WORD;
        let identity = Identity { generation: self.geometry.generation(), index: slot };
        check(shape, identity, &self.words[at..at + shape.words()]).ok()
    }

    /// Valid slots that hold a key, or a digest that may be its.
    fn slots_with<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
        let first = self.geometry.hashed(key).first().0.to_le_bytes();
        let is_its = move |view: View<'_>| {
            let (header, mut bytes) = (view.header(), Vec::new());
            view.value_into(&mut bytes);
            let is_long = header.is_long_key() && usize::from(header.klen) == key.len();
            view.holds(key) || is_long && bytes.starts_with(&first)
        };
        (0..self.geometry.slots()).filter(move |&slot| self.view(slot).is_some_and(is_its))
    }

    /// Bytes of the key in front of its value.
    fn before_value(&self, key: &[u8]) -> usize {
        if key.len() > self.geometry.key_inline() { key.len() } else { 0 }
    }

    /// What a reference leads to, if it leads into the heap.
    fn bytes_at(&self, it: &Reference) -> Option<&[u8]> {
        let heap = self.geometry.heap();
        let end = it.offset.checked_add(it.len.into())?;
        let is_inside = heap.offset <= it.offset && end <= heap.offset + heap.bytes;
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        is_inside.then(|| &bytes[it.offset as usize..end as usize])
    }

    fn has_length(&self, key: &[u8], len: usize) -> bool {
        self.slots_with(key).any(|slot| {
            let view = self.view(slot).expect("it is valid");
            let in_heap = |it: Reference| (it.len as usize).wrapping_sub(self.before_value(key));
            view.reference().map_or(usize::from(view.header().vlen), in_heap) == len
        })
    }

    /// Whether a valid slot of the key has a value like this one, or leads to one.
    fn has(&self, key: &[u8], is_it: impl Fn(&[u8]) -> bool) -> bool {
        self.slots_with(key).any(|slot| {
            let view = self.view(slot).expect("it is valid");
            let mut inline = Vec::new();
            view.value_into(&mut inline);
            match view.reference() {
                None => is_it(&inline),
                Some(it) => self.bytes_at(&it).is_some_and(|bytes| {
                    bytes.strip_prefix(&key[..self.before_value(key)]).is_some_and(&is_it)
                }),
            }
        })
    }

    /// GETs of each key, of a part of its value, and of its length, end in what a slot leads to, in a miss,
    /// or in an error, and nothing is allocated that a slot only says. On this host nobody checks a slot's
    /// CRC, so there the value may be any. Returns how many ended in each way.
    fn gets<F: Fabric<Error = ReadError>>(
        &self,
        reader: &mut Reader<'_, F>,
        keys: &[Vec<u8>],
        part: Range<usize>,
    ) -> [u64; 3] {
        let mut ends = [0; 3];
        let has = |key: &[u8], is_it: &dyn Fn(&[u8]) -> bool| F::EXACT || self.has(key, is_it);
        for key in keys {
            let mut out = Vec::new();
            let found = reader.get_into(key, &mut out);
            match &found {
                Ok(true) => assert!(has(key, &|value| value == out), "{key:?} has no such value"),
                Ok(false) => assert!(out.is_empty()),
                Err(error) => inconclusive(error),
            }
            ends[found.map_or(2, |found| usize::from(!found))] += 1;
            let cut = |value: &[u8]| value[part.start.min(value.len())..part.end.min(value.len())].to_vec();
            match reader.get_range(key, part.clone(), &mut out) {
                Ok(Some(len)) => assert!(has(key, &|value| value.len() == len && cut(value) == out)),
                Ok(None) => assert!(out.is_empty()),
                Err(error) => inconclusive(&error),
            }
            assert!(out.capacity() <= 4 * LONG_MAX, "{} bytes allocated", out.capacity());
            match reader.value_len(key) {
                Ok(Some(len)) => assert!(F::EXACT || self.has_length(key, len)),
                Ok(None) => {}
                Err(error) => inconclusive(&error),
            }
        }
        let each = |n: usize, value: Option<&[u8]>| {
            assert!(value.is_none_or(|value| has(&keys[n], &|there| there == value)));
        };
        if let Err(error) = reader.get_many(keys, each) {
            inconclusive(&error);
        }
        ends
    }
}

/// A table whose slots name places, lengths and numbers of any kind, of values or of keys with their values. Readers end in the bytes that a valid
/// slot leads to, in a miss or in an error, and READ only the heap. A server that takes the region over
/// keeps what can be a value, and its books are right. Returns how many GETs ended in each way.
pub fn reference_bytes(data: &[u8]) -> [u64; 3] {
    let input = &mut Input(data);
    let flags = input.byte();
    let part = input.below(LONG_MAX)..usize::from(input.byte()) + LONG_MAX * usize::from(flags >> 7);
    let part = part.start.min(part.end)..part.end;
    let key_max = if flags & 0x40 == 0 { 8 } else { LONG_KEY_MAX };
    let hostile = Hostile::new(input, key_max);
    let geometry = &hostile.geometry;
    let keys: Vec<_> = (0..KEYS + 2).map(|n| key(n, key_max)).collect();
    let memory = Memory::new(geometry, &hostile.words, flags);
    let mut reader = Reader::new(memory, geometry, Clock::manual(), LIMITS);
    let ends = hostile.gets(&mut reader, &keys, part.clone());
    // A pass, a READ of the value, and a second look, in each of four GETs of a key.
    let reads_max = 4 * keys.len() as u64 * u64::from((LIMITS.retries_max + 2) * (CHAIN_MAX + 2)) * 2;
    assert!(reader.fabric().reads <= reads_max, "{} READs", reader.fabric().reads);
    let scratch = Scratch::holding(&hostile.words);
    let shared = scratch.map_shared();
    let mut mapped = Reader::new(Shm::new(&shared, geometry), geometry, Clock::manual(), LIMITS);
    hostile.gets(&mut mapped, &keys, part);
    if flags & 0x30 == 0 {
        heap_taken_over(scratch.open(), &keys);
    }
    ends
}

/// A server takes hostile references over. Values come and go, and all memory comes back.
fn heap_taken_over(region: Region, keys: &[Vec<u8>]) {
    let clock = Clock::manual();
    let (index, _) = Index::open(region, clock.clone()).expect("a good superblock");
    let is_booked = || {
        let inspector = Inspector::new(index.region(), index.geometry());
        let mut named: Vec<Reference> = inspector.slots().filter_map(|report| report.reference()).collect();
        named.sort_by_key(|it| it.offset);
        let ends_before =
            |two: &[Reference]| two[0].offset + extent_bytes(two[0].len as usize) <= two[1].offset;
        assert!(named.iter().all(|it| it.is_sound(index.geometry())) && named.windows(2).all(ends_before));
        let bytes = named.iter().map(|it| extent_bytes(it.len as usize)).sum::<u64>();
        assert_eq!((index.heap().values, index.heap().live_bytes), (named.len() as u64, bytes));
    };
    is_booked();
    let mut out = Vec::new();
    for (n, key) in (0..).zip(keys) {
        index.reader().get_into(key, &mut out).expect("a repaired table");
        let put = value(n, LONG_MAX - usize::from(n));
        match index.put(key, &put, PutMode::Upsert) {
            Ok(_) => {
                assert_eq!(index.reader().get_into(key, &mut out), Ok(true));
                assert_eq!(out, put);
            }
            Err(PutError::Full { .. } | PutError::HeapFull { .. }) => {}
            // A value in a damaged heap may be one that cannot move. Each put would wait for it.
            Err(PutError::HeapBusy { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    is_booked();
    for key in keys {
        index.remove(key).expect("a key of allowed length");
    }
    for _ in 0..100 {
        clock.advance(GRACE);
        index.tidy();
    }
    let heap = index.heap();
    // Keys that the table does not know by these names may be left.
    assert!(
        heap.waiting_bytes == 0 && (heap.values > 0 || heap.live_bytes + heap.open_blocks == 0),
        "{heap:?}"
    );
}

// ---- superblock_bytes ---------------------------------------------------------------------------

/// Arbitrary bytes as superblock. They give an error, or a geometry that stays inside the region.
pub fn superblock_bytes(data: &[u8]) {
    let input = &mut Input(data);
    let flags = input.byte();
    let have = if flags & 1 == 0 { u64::MAX } else { input.u64() };
    let mut words = if flags & 2 == 0 {
        std::array::from_fn(|_| input.u64())
    } else {
        // A good superblock, with some of its 4-byte fields changed.
        let config = config(input);
        let config = if flags & 32 == 0 { config } else { with_heap(config, input) };
        let geometry = config.geometry().expect("a possible configuration");
        let mut words = Superblock::new(&geometry, 1).to_words();
        for _ in 0..input.below(6) {
            let field = input.below(2 * SUPERBLOCK_WORDS);
            let changed = if input.byte() & 1 == 0 { u32::from(input.byte()) } else { input.u32() };
            let word = &mut words[field / 2];
            let shift = field % 2 * 32;
            *word = *word & !(0xffff_ffff << shift) | u64::from(changed) << shift;
        }
        words
    };
    if flags & 4 == 0 {
        words[0] = MAGIC;
        words[1] = words[1] & !(1 << 32 | 0xffff_ffff) | u64::from(FORMAT_VERSION);
    }
    // Corrects what the errors name, so that the later checks are reached.
    let mut superblock = Superblock::from_words(words);
    let mut result = superblock.geometry(have);
    if let (0, Err(SuperblockError::Checksum { computed, .. })) = (flags & 8, &result) {
        superblock.crc = *computed;
        result = superblock.geometry(have);
    }
    if let (0, Err(SuperblockError::Field { field: "region_bytes", allowed, .. })) = (flags & 16, &result) {
        superblock.region_bytes = allowed.split(' ').next().and_then(|n| n.parse().ok()).expect("a range");
        if let Err(SuperblockError::Checksum { computed, .. }) = superblock.geometry(have) {
            superblock.crc = computed;
        }
        result = superblock.geometry(have);
    }
    match result {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(geometry) => {
            stays_inside(&geometry, &superblock, have);
            small_region_opens(&geometry, &superblock, input);
        }
    }
}

fn stays_inside(geometry: &Geometry, superblock: &Superblock, have: u64) {
    let (bytes, slots) = (geometry.region_bytes(), geometry.slots());
    assert_eq!(bytes, superblock.region_bytes);
    assert!(bytes <= have && slots > 0);
    let slot_bytes = geometry.shape().bytes() as u64;
    assert!(geometry.slot_offset(SlotIx(0)) >= 2 * 4096);
    assert!(geometry.slot_offset(SlotIx(slots - 1)).checked_add(slot_bytes).is_some_and(|end| end <= bytes));
    let end = |window: Window| window.first.0 + u64::from(window.slots);
    for home in [0, geometry.homes() / 2, geometry.homes() - 1] {
        assert!(end(geometry.window(home)) <= geometry.main_slots());
    }
    assert_eq!(geometry.home(u64::MAX), geometry.homes() - 1);
    if let Some(last) = geometry.overflow_blocks().checked_sub(1) {
        assert_eq!(end(chain::window(geometry, Block(last as u32))), slots);
        let beyond = chain::with_link(geometry, 0, Some(Block(last as u32)));
        assert!(chain::next(geometry, beyond).is_some());
    }
    let (room, heap) = (geometry.shape().payload_max(), geometry.heap());
    let beside = if heap.bytes > 0 { size_of::<Reference>() } else { geometry.value_max() };
    assert!(geometry.key_inline() + beside <= room, "longest key and value do not fit into a slot");
    let has_long_keys = geometry.key_inline() < geometry.key_max();
    assert!(
        !has_long_keys || heap.bytes > 0 && LONG_KEY_BYTES <= room,
        "nor does what stands for a longer key"
    );
    assert!(heap.bytes == 0 || heap.offset.checked_add(heap.bytes) == Some(bytes));
    let longest = geometry.value_max() + if has_long_keys { geometry.key_max() } else { 0 };
    assert!(heap.bytes == 0 || extent_bytes(longest) <= heap.block_bytes / 4);
    let mut again = Superblock::new(geometry, superblock.created);
    again.stamp = superblock.stamp;
    assert_eq!(again.geometry(have).as_ref(), Ok(geometry));
}

/// A server and a reader can use the region.
fn small_region_opens(geometry: &Geometry, superblock: &Superblock, input: &mut Input<'_>) {
    if geometry.region_bytes() > 1 << 16 {
        return;
    }
    let mut words = vec![0; geometry.region_bytes() as usize / WORD];
    words[..SUPERBLOCK_WORDS].copy_from_slice(&superblock.to_words());
    words[STATE_WORD] = State { incarnation: 1, phase: Phase::Serving }.to_word();
    let (index, _) = Index::open(Scratch::holding(&words).open(), Clock::manual()).expect("a good region");
    for _ in 0..4 {
        let mut key = vec![7; 1 + usize::from(input.byte()) % geometry.key_max()];
        key[0] = input.byte();
        let value = value(1, geometry.value_max());
        if index.put(&key, &value, PutMode::Upsert).is_ok() {
            let mut out = Vec::new();
            assert_eq!(index.reader().get_into(&key, &mut out), Ok(true));
            assert_eq!(out, value);
        }
    }
}

// ---- frame_bytes --------------------------------------------------------------------------------

/// Arbitrary bytes on a socket. They give frames, errors, or a need for more bytes. A decoded frame
/// encodes to the same bytes.
pub fn frame_bytes(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some(frame)) = wire::decode(rest) {
        assert!(frame.length <= rest.len());
        // A part of a frame is not a frame.
        for cut in [0, 1, frame.length / 2, frame.length - 1] {
            assert!(matches!(wire::decode(&rest[..cut]), Ok(None)));
        }
        if let Ok(request) = Request::decode(&frame) {
            let mut again = Vec::new();
            request.encode(frame.id, &mut again);
            let frame_again = wire::decode(&again).expect("our own frame").expect("a whole frame");
            assert_eq!((frame_again.id, frame_again.length), (frame.id, again.len()));
            assert_eq!(Request::decode(&frame_again), Ok(request));
            assert!(Reply::decode(&frame).is_err(), "request and reply at once");
        }
        match Reply::decode(&frame) {
            Ok(reply) => {
                let mut again = Vec::new();
                reply.encode(frame.id, &mut again);
                let frame_again = wire::decode(&again).expect("our own frame").expect("a whole frame");
                assert_eq!((frame_again.id, frame_again.length), (frame.id, again.len()));
                assert_eq!(Reply::decode(&frame_again), Ok(reply));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        rest = &rest[frame.length..];
    }
}

// ---- gets_bytes ---------------------------------------------------------------------------------

/// What a server that nobody trusts may answer to a request for keys, and what a client may ask for. A reply is entries
/// up to some byte, each within its bytes; a request is keys to the last byte, and encodes to itself. Returns how many
/// entries and keys there are.
pub fn gets_bytes(data: &[u8]) -> [u32; 2] {
    let mut input = Input(data);
    let flags = input.byte();
    let (from, most) = (input.u32(), input.u32());
    let (from, most) = if flags & 4 == 0 { (from % 4, most % 64) } else { (from, most) };
    let wants = Wants { lives: flags & 1 != 0, bits: flags & 2 != 0, from, most };
    let body = &input.0[..input.0.len().min(wire::BODY_MAX)];
    let framed = |op: u16, status: u16| {
        let head =
            [&(body.len() as u32).to_le_bytes()[..], &op.to_le_bytes(), &status.to_le_bytes()].concat();
        [&head, &7_u64.to_le_bytes()[..], body].concat()
    };
    let (mut entries_there, mut keys_there) = (0, 0);
    for status in 209..214 {
        let bytes = framed(0x8000, status);
        let frame = wire::decode(&bytes).expect("our own frame").expect("a whole frame");
        match GotReply::decode(&frame) {
            None => assert!(!(210..213).contains(&status)),
            Some(Ok(GotReply::Entries(mut entries))) => loop {
                let left = entries.len();
                let Some((_, found)) = split_entry(&mut entries, &wants) else { break };
                assert!(entries.len() + 8 <= left, "an entry takes bytes");
                if let Found::Value { whole, bytes, .. } = found {
                    assert_eq!(bytes.len(), wants.range_of(whole).len());
                }
                entries_there += 1;
            },
            Some(Ok(GotReply::Bits(bits))) => assert_eq!(bits, body),
            Some(Ok(GotReply::Failed(error))) => assert!(!error.to_string().is_empty()),
            Some(Err(error)) => assert!(!error.to_string().is_empty()),
        }
    }
    let bytes = framed(111, 0);
    let frame = wire::decode(&bytes).expect("our own frame").expect("a whole frame");
    if let Ok(request) = Request::decode(&frame) {
        let Request::Gets(gets) = &request else { panic!("another request: {request:?}") };
        let mut writer = KeysWriter::default();
        assert!(gets.keys().all(|key| writer.push(key)), "they came in one frame");
        let mut again = Vec::new();
        Request::Gets(writer.request(gets.wants)).encode(7, &mut again);
        assert_eq!(again, bytes);
        keys_there += gets.keys().count() as u32;
    }
    [entries_there, keys_there]
}

// ---- stored_bytes -------------------------------------------------------------------------------

/// What a client that encrypts may find in a table: arbitrary bytes, and values that were cut, changed,
/// joined, or put under another key. Exactly the two values that were encrypted for a key decrypt.
#[cfg(feature = "encryption")]
pub fn stored_bytes(data: &[u8]) {
    let encryption = Encryption::new(&[7; 32], "fuzz");
    assert!(encryption.decrypt(b"key", data).is_err(), "nobody knows the secret");
    let mut input = Input(data);
    let mut bytes = |max| (0..input.below(max)).map(|_| input.byte()).collect::<Vec<u8>>();
    // The last one belongs to another key.
    let key = bytes(20);
    let other = [&key[..], b"'"].concat();
    let values = [bytes(80), bytes(80), bytes(80)];
    let mut numbers = 0..;
    let stored = [(&key, &values[0]), (&key, &values[1]), (&other, &values[2])]
        .map(|(key, value)| encryption.encrypt_with_nonce([numbers.next().unwrap_or(0); 24], key, value));
    let mut altered = stored[0].clone();
    for _ in 0..input.below(8) {
        let (from, length) = (input.below(altered.len() + 1), input.below(64));
        let to = altered.len().min(from + length);
        match input.byte() % 6 {
            0 => drop(altered.drain(from..to)),
            1 => altered.truncate(from),
            2 => {
                let bits = input.byte();
                altered[from..to].iter_mut().take(1).for_each(|byte| *byte ^= bits);
            }
            3 => altered.insert(from, input.byte()),
            // A part of another value, in the same place or all of it.
            4 => {
                let of = &stored[input.below(3)];
                let to = to.min(of.len());
                altered[from.min(to)..to].copy_from_slice(&of[from.min(to)..to]);
            }
            _ => altered.clone_from(&stored[input.below(3)]),
        }
    }
    match encryption.decrypt(&key, &altered) {
        Ok(value) => {
            let which =
                stored[..2].iter().position(|stored| *stored == altered).expect("altered, and accepted");
            assert_eq!(value, values[which]);
        }
        Err(error) => {
            assert!(!stored[..2].contains(&altered) && !error.to_string().is_empty(), "{error}");
        }
    }
    assert_eq!(encryption.decrypt(&other, &altered).is_ok(), altered == stored[2]);
    let elsewhere = Encryption::new(&[7; 32], "elsewhere");
    assert!(elsewhere.decrypt(&key, &altered).is_err());
}

// ---- ops ----------------------------------------------------------------------------------------

/// The keys and values that were put and must be found.
type Model = HashMap<Vec<u8>, Vec<u8>>;

fn get(index: &Index, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    index.reader().get_into(key, &mut value).expect("a table at rest").then_some(value)
}

/// Every key is found, in exactly one slot.
fn check_table(index: &Index, model: &Model) {
    assert_eq!(index.len(), model.len() as u64);
    for (key, value) in model {
        assert_eq!(get(index, key).as_ref(), Some(value), "key {key:?}");
    }
    let geometry = index.geometry();
    let inspector = Inspector::new(index.region(), geometry);
    let main = (0..geometry.main_slots()).map(SlotIx);
    // Blocks that no chain links to do not count: they are overwritten when they are used.
    let chained = (0..geometry.homes()).flat_map(|home| {
        let next = |window: &Window| chain::next(geometry, inspector.slot(window.first).header.aux);
        let primary = geometry.window(home);
        std::iter::successors((geometry.overflow_blocks() > 0).then_some(primary), next)
            .skip(1)
            .flat_map(|window| window.iter())
    });
    let mut seen = HashSet::new();
    for slot in main.chain(chained) {
        let report = inspector.slot(slot);
        assert_eq!(report.verdict, Ok(()), "{slot:?}");
        if !report.key.is_empty() {
            assert_eq!(model.get(&report.key), Some(&report.value), "{slot:?}");
            assert!(seen.insert(report.key), "a key in two slots");
        }
    }
    assert_eq!(seen.len(), model.len());
}

/// Operations on a tiny table, compared with a map. Now and then the server stops and another takes
/// over.
pub fn ops(data: &[u8]) {
    const OPS_MAX: usize = 400;
    let input = &mut Input(data);
    let geometry = config(input).geometry().expect("a possible configuration");
    let keys = 1 + input.below(96) as u8;
    let scratch = Scratch::new();
    let region = Region::create(&Backing::File(scratch.path()), geometry.region_bytes()).expect("a region");
    let clock = Clock::manual();
    let mut index = Index::create(region, geometry.clone(), clock.clone()).expect("memory for it");
    let mut model = Model::new();
    for n in 0..OPS_MAX {
        if input.is_empty() {
            break;
        }
        let op = input.byte();
        let key = match op % 16 {
            13..16 => Vec::new(),
            _ => key(input.byte() % keys, geometry.key_max()),
        };
        let value = value(n as u8, (usize::from(op) * 13 + n) % (geometry.value_max() + 1));
        let present = model.contains_key(&key);
        match op % 16 {
            0..5 => put(&index, &mut model, key, value, PutMode::Upsert, present),
            5 => swap(&index, &mut model, key, value, op & 0x10 == 0),
            6 | 7 => put(&index, &mut model, key, value, PutMode::Insert, present),
            8 => put(&index, &mut model, key, value, PutMode::Update, present),
            9..12 => assert_eq!(index.remove(&key), Ok(model.remove(&key).is_some())),
            12 => assert_eq!(get(&index, &key).as_ref(), model.get(&key)),
            13 => clock.advance(GRACE * u32::from(op / 16) / 4),
            14 => {
                index.tidy();
            }
            _ if op < 0x80 => check_table(&index, &model),
            _ => {
                drop(index);
                let (opened, found) = Index::open(scratch.open(), clock.clone()).expect("a sound region");
                assert_eq!((found.keys, found.torn, found.doubled), (model.len() as u64, 0, 0));
                index = opened;
            }
        }
    }
    check_table(&index, &model);
    clock.advance(3 * GRACE);
    while index.tidy().is_some() {
        clock.advance(3 * GRACE);
    }
    check_table(&index, &model);
    for n in 0..keys {
        let key = key(n, geometry.key_max());
        assert_eq!(get(&index, &key).as_ref(), model.get(&key));
    }
}

fn swap(index: &Index, model: &mut Model, key: Vec<u8>, value: Vec<u8>, expects_what_is_there: bool) {
    let mut expected = model.get(&key).cloned().unwrap_or_default();
    if !expects_what_is_there && expected.pop().is_none() {
        expected.push(1);
    }
    let found = match model.get_mut(&key) {
        None => SwapOutcome::Absent,
        Some(_) if !expects_what_is_there => SwapOutcome::Differs,
        Some(there) => {
            there.clone_from(&value);
            SwapOutcome::Swapped
        }
    };
    assert_eq!(index.compare_and_swap(&key, &expected, &value), Ok(found));
}

fn put(index: &Index, model: &mut Model, key: Vec<u8>, value: Vec<u8>, mode: PutMode, present: bool) {
    let expected = match (mode, present) {
        (PutMode::Insert, true) => PutOutcome::Exists,
        (PutMode::Update, false) => PutOutcome::Missing,
        (_, true) => PutOutcome::Updated,
        (_, false) => PutOutcome::Inserted,
    };
    match index.put(&key, &value, mode) {
        Ok(put) => {
            assert_eq!(put, expected);
            if matches!(put, PutOutcome::Inserted | PutOutcome::Updated) {
                model.insert(key, value);
            }
        }
        Err(PutError::Full { keys, .. }) => {
            assert_eq!((expected, keys), (PutOutcome::Inserted, model.len() as u64));
            assert_eq!(get(index, &key), None);
        }
        Err(error) => panic!("{error}"),
    }
}

// ---- crash --------------------------------------------------------------------------------------

/// A server dies at some store, and another takes over. All keys are as before or after the
/// operation under way, except one in a half-written slot.
pub fn crash(data: &[u8]) {
    const OPS_MAX: usize = 120;
    let input = &mut Input(data);
    let geometry = config(input).geometry().expect("a possible configuration");
    let when = input.u16();
    let keys = 1 + input.below(64) as u8;
    let clock = Clock::manual();
    let recorder = Arc::new(Recorder::new(clock.clone(), Duration::from_nanos(1)));
    let region = recorder.region(geometry.region_bytes());
    let index = Index::create(region, geometry.clone(), clock.clone()).expect("memory for it");
    let begin = recorder.now();
    let mut model = Model::new();
    // The content of the table before and after each operation that stored something.
    let mut states = vec![(begin, model.clone())];
    for n in 0..OPS_MAX {
        if input.is_empty() {
            break;
        }
        let op = input.byte();
        let key = key(input.byte() % keys, geometry.key_max());
        match op % 8 {
            0..5 => {
                let value = value(n as u8, (usize::from(op) + n) % (geometry.value_max() + 1));
                if index.put(&key, &value, PutMode::Upsert).is_ok() {
                    model.insert(key, value);
                }
            }
            5 | 6 => {
                index.remove(&key).expect("a key of allowed length");
                model.remove(&key);
            }
            _ => {
                clock.advance(GRACE * u32::from(op / 8) / 8);
                index.tidy();
            }
        }
        states.push((recorder.now(), model.clone()));
    }
    let end = recorder.now();
    let history = recorder.history(geometry.region_bytes());
    let at = Instant(begin.0 + usize::from(when) % (end.0 - begin.0 + 1));
    let after = states.iter().position(|(until, _)| at <= *until).expect("not after the end");
    let (after, before) = (&states[after].1, &states[after.saturating_sub(1)].1);
    let words: Vec<u64> =
        (0..geometry.region_bytes() as usize / WORD).map(|word| history.word(word, at)).collect();
    let clock = Clock::manual();
    let (index, found) = Index::open(Scratch::holding(&words).open(), clock.clone()).expect("a sound region");
    let mut there = Model::new();
    for n in 0..keys {
        let key = key(n, geometry.key_max());
        let value = get(&index, &key);
        let is_right = value.as_ref() == before.get(&key) || value.as_ref() == after.get(&key);
        assert!(is_right, "{value:?} of {key:02x?}, {found:?}");
        there.extend(value.map(|value| (key, value)));
    }
    check_table(&index, &there);
    clock.advance(3 * GRACE);
    while index.tidy().is_some() {
        clock.advance(3 * GRACE);
    }
    check_table(&index, &there);
}

// ---- schedule and canary ------------------------------------------------------------------------

/// A server's operations, then clients whose READs are torn as the input says. A wrong report by a
/// GET is a [`Violation`].
pub fn schedule(data: &[u8]) -> Result<(), Box<Violation>> {
    const OPS_MAX: usize = 64;
    let input = &mut Input(data);
    let layout = input.layout();
    let slots = 1 + input.below(32) as u64;
    let value_bytes = [8, 16, 60, 120][input.below(4)];
    let seed = u64::from(input.u16());
    let long_keys = seed >> 12 == 6;
    let scene = Scene { layout, slots, segments: 0, value_bytes, long_keys, grace: GRACE, seed };
    let mut world = World::new(scene);
    let keys = slots as KeyNumber + slots as KeyNumber / 8 + 2;
    let number = |byte: u8| scene.number(KeyNumber::from(byte) % keys);
    let filled = input.below(keys as usize + 1) as KeyNumber;
    for n in 0..filled {
        world.put(scene.number(n));
        world.wait(2 * GRACE);
        world.tidy();
    }
    let begin = world.now();
    for _ in 0..input.below(OPS_MAX) {
        let (op, number) = (input.byte(), number(input.byte()));
        match op % 8 {
            0..4 => {
                world.put(number);
            }
            4 | 5 => {
                world.remove(number);
            }
            6 => world.tidy(),
            _ if op == 0xff => {
                // The server is killed at some store since `begin`.
                let since = world.now().0 - begin.0;
                let killed = world.now().0 - usize::from(input.u16()) % (since + 1);
                world = world.taken_over_at(Instant(killed))?;
            }
            _ => world.wait(GRACE * u32::from(op / 8) / 8),
        }
    }
    let past = world.bare_past();
    let flags = input.byte();
    let hardware = Hardware {
        unit: if flags & 1 == 0 { Unit::Line } else { Unit::Word },
        witness: match flags & 0x22 {
            0x02 => Witness::Counter,
            0x22 => Witness::Loads,
            _ => Witness::Clock,
        },
        read_stores_max: [usize::MAX >> 1, 5, 40, 300][usize::from(flags >> 2 & 3)],
        error_one_in: if flags & 0xf0 == 0xf0 { 50 } else { 0 },
        client_ns: 1 + (seed & 1),
        passes_max: 1 + usize::from(flags >> 4 & 3),
        hints: seed >> 11 == 27,
    };
    let clients: Vec<_> = (0..1 + input.below(4))
        .map(|_| {
            let start = begin.0 + usize::from(input.u16()) % (past.history.end().0 - begin.0 + 1);
            let shape = input.byte();
            let mut few: [KeyNumber; 2] = std::array::from_fn(|_| number(input.byte()));
            let (mut start, moves) = (Instant(start), world.moves());
            if flags & 0xc0 == 0x40 && !moves.is_empty() {
                // From the beginning of a move on, for the moved key.
                let moved = moves[start.0 % moves.len()];
                (few[0], start) = (moved.key, moved.began);
            }
            let wanted: Vec<_> = (0..1 + shape % 6).map(|n| few[usize::from(shape >> n & 1)]).collect();
            (start, shape & 0x80 != 0, wanted)
        })
        .collect();
    let mut adversary = Bytes(input.0);
    for (start, batch, wanted) in clients {
        if batch {
            world.batch(&past, hardware, &mut adversary, start, &wanted)?;
        } else {
            world.client(&past, hardware, &mut adversary, &mut PlannedGet::all(start, &wanted), false)?;
        }
    }
    Ok(())
}

/// Rules whose breaking a fuzzer must notice.
pub const CANARIES: [&[Rule]; 11] = [
    &[Rule::Ghost],
    &[Rule::CrcCheck, Rule::StampCheck],
    &[Rule::CopyBeforeErase],
    &[Rule::ClientGhost],
    &[Rule::ClientClock],
    &[Rule::MoveCounter],
    &[Rule::GhostGrace],
    &[Rule::FilterGrace],
    &[Rule::GhostStays],
    &[Rule::FilterBeforeCopy],
    &[Rule::CountBeforeErase],
];

/// [`schedule`] with rules broken on purpose. The first byte chooses the rules.
pub fn canary(data: &[u8]) -> (&'static [Rule], Result<(), Box<Violation>>) {
    let input = &mut Input(data);
    let rules = CANARIES[input.below(CANARIES.len())];
    let _broken: Vec<_> = rules.iter().map(|&rule| Broken::rule(rule)).collect();
    (rules, schedule(input.0))
}
