use super::frame::HEAD;
use super::*;
use crate::layout::extent::{Expected, Reference};
use crate::log::LogStatus;
use crate::outcome::{
    EvictCounts, GrowthCounts, HeapCounts, IndexCounts, NoteCounts, PutError, PutMode, PutOptions,
    PutOutcome, StartBound, SwapOutcome,
};
use crate::part::{NewNumber, PartChange, PartEffect, PartError, PartOutcome, Tell};
use proptest::prelude::*;

proptest! {
    /// Any bytes give a frame, ask for more, or are an error. A request that decodes encodes to
    /// itself.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), op in prop_oneof![0u16..29, 60u16..63, 110u16..112], len in 0u32..64) {
        let mut framed = bytes.clone();
        if framed.len() >= HEAD {
            framed[..4].copy_from_slice(&len.to_le_bytes());
            framed[4..6].copy_from_slice(&op.to_le_bytes());
        }
        for bytes in [&bytes, &framed] {
            if let Ok(Some(frame)) = decode(bytes) {
                let _ = Reply::decode(&frame);
                if let Ok(request) = Request::decode(&frame) {
                    let mut again = Vec::new();
                    request.encode(frame.id, &mut again);
                    let frame = decode(&again).unwrap().unwrap();
                    prop_assert_eq!(Request::decode(&frame).unwrap(), request);
                }
            }
        }
    }
}

proptest! {
    /// Any bytes in a reply to a request for keys are entries up to some byte. An entry has no more bytes than were
    /// wanted, and no other bytes than those there.
    #[test]
    fn any_entries(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        kinds in proptest::collection::vec((0usize..300, 0u8..4), 0..20),
        from in any::<u32>(), most in any::<u32>(), lives in any::<bool>(), is_short in any::<bool>(),
    ) {
        let mut bytes = bytes;
        // Many of them are entries of a few bytes.
        for (at, byte) in kinds {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        let (from, most) = if is_short { (from % 4, most % 40) } else { (from, most) };
        let wants = Wants { lives, bits: false, from, most };
        for status in [210, 211, 212, 213] {
            let framed = frame(0x8000, status, 1, &bytes);
            let reply = GotReply::decode(&decode(&framed).unwrap().unwrap());
            prop_assert!(reply.is_some() == (status != 213));
        }
        let mut entries = &bytes[..];
        loop {
            let left = entries.len();
            let Some((_, found)) = split_entry(&mut entries, &wants) else { break };
            prop_assert!(entries.len() + 8 <= left);
            if let Found::Value { whole, bytes, .. } = found {
                prop_assert!(bytes.len() == wants.range_of(whole).len() && bytes.len() <= left - 8);
            }
        }
    }
}

#[test]
fn replies_round_trip() {
    let replies = [
        Reply::Welcome { version: 1, level: 2 },
        Reply::Refused { version: 9 },
        Reply::Mailbox { version: 1 },
        Reply::Wake,
        Reply::Put(Ok(PutOutcome::Inserted)),
        Reply::Put(Ok(PutOutcome::Updated)),
        Reply::Put(Ok(PutOutcome::Exists)),
        Reply::Put(Ok(PutOutcome::Missing)),
        Reply::Swapped(Ok(SwapOutcome::Swapped)),
        Reply::Swapped(Ok(SwapOutcome::Differs)),
        Reply::Swapped(Ok(SwapOutcome::Absent)),
        Reply::Removed(Ok(true)),
        Reply::Removed(Ok(false)),
        Reply::Value(Some(b"value".to_vec())),
        Reply::Value(Some(Vec::new())),
        Reply::Value(None),
        Reply::Stat(ServerStats { keys: 1, pid: 2, ..Default::default() }),
        Reply::Snapshot(SnapshotStatus { every_ms: 1, failure: 2, ..Default::default() }),
        Reply::Growth(GrowthCounts { segments: 1, bytes_backed: 2, ..Default::default() }),
        Reply::Heap(HeapCounts { values: 1, returned_bytes: 2, ..Default::default() }),
        Reply::Times(Box::new(ServerTimes { expired: 1, is_timed: 2, ..Default::default() })),
        Reply::Taken,
        Reply::Unfit,
        Reply::Part(Ok(PartOutcome { effect: PartEffect::Inserted, value: None })),
        Reply::Part(Ok(PartOutcome { effect: PartEffect::Updated, value: Some(b"value".to_vec()) })),
        Reply::Part(Ok(PartOutcome { effect: PartEffect::Unchanged, value: Some(Vec::new()) })),
        Reply::Part(Ok(PartOutcome { effect: PartEffect::Absent, value: None })),
        Reply::Cleared { removed: 1, progress_ppm: 2, place: [3, 4] },
        Reply::Put(Err(PutError::Part(PartError::CounterRange { value: 3, delta: -4 }))),
        Reply::Put(Err(PutError::KeyLength { given: 0, max: 255 })),
        Reply::Put(Err(PutError::ValueLength { given: 100, max: 32 })),
        Reply::Put(Err(PutError::Full { keys: 9, slots: 10, bytes_max: 11, heap_bytes: 12 })),
        Reply::Put(Err(PutError::Busy { rounds: 7 })),
        Reply::Put(Err(PutError::Withdrawn)),
        Reply::Put(Err(PutError::NoMemory { keys: 11, bytes: 1 << 20 })),
        Reply::Put(Err(PutError::HeapFull { live_bytes: 5, heap_bytes: 6 })),
        Reply::Put(Err(PutError::HeapBusy { given: 5, waited: std::time::Duration::from_nanos(6) })),
        Reply::Put(Err(PutError::HeapMemory { given: 5 })),
        Reply::Denied,
        Reply::TurnedAway(Refusal::User { uid: 7 }),
        Reply::TurnedAway(Refusal::ServerFull { max: 7 }),
        Reply::TurnedAway(Refusal::PeerFull { max: 7 }),
        Reply::TurnedAway(Refusal::Descriptors),
        Reply::TurnedAway(Refusal::Stopping),
        Reply::TurnedAway(Refusal::Token),
        Reply::TurnedAway(Refusal::Other { code: 99 }),
        Reply::Challenge { nonce: [1; 32] },
        Reply::Table { proof: [2; 32], about: Box::new([3; size_of::<TableBytes>()]) },
    ];
    let mut bytes = Vec::new();
    replies.iter().enumerate().for_each(|(id, reply)| reply.encode(id as u64, &mut bytes));
    let mut rest = bytes.as_slice();
    for (id, reply) in replies.iter().enumerate() {
        let frame = decode(rest).unwrap().unwrap();
        assert_eq!((frame.id, &Reply::decode(&frame).unwrap()), (id as u64, reply));
        rest = &rest[frame.length..];
    }
    assert!(rest.is_empty());
}

/// Builds a frame from its fields.
fn frame(op: u16, status: u16, id: u64, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    [&length[..], &op.to_le_bytes(), &status.to_le_bytes(), &id.to_le_bytes(), body].concat()
}

/// The bytes of each request. Servers and clients of other builds rely on them; a change needs
/// another protocol version.
#[test]
fn golden_requests() {
    assert_eq!((PROTOCOL_VERSION, BODY_MAX, HEAD, FRAME_VALUE_MAX), (2, 65_536, 16, 4_080));
    let put = |mode: PutMode| Request::Put { options: mode.into(), key: b"key", value: b"value" };
    let hello = b"ONEREAD?\x01\x02\x03\x04\0\0\0\0";
    let extent = Reference { number: 1, offset: 2, len: 3, crc: 4 };
    let named = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0";
    let after = |before: &[u8], rest: &[u8]| [before, named, rest].concat();
    let swap_extent = after(b"\x03\0", b"keyvalue");
    let long_swap_extent = after(b"", b"key");
    let long_put = |mode: PutMode| Request::UploadPut { options: mode.into(), key: b"key" };
    let ttl = std::time::Duration::from_nanos(0x0807_0605_0403_0201);
    let options = PutOptions::from(PutMode::Insert).ttl(ttl);
    let put_for = Request::Put { options, key: b"key", value: b"value" };
    let long_swap = |expected| Request::UploadSwap { key: b"key", expected };
    let remove_if = |expected| Request::RemoveIf { key: b"key", expected };
    let part = |part, tell| Request::Part { key: b"key", part, tell };
    let add = |delta, initial| part(PartChange::Add { delta, initial }, Tell::Nothing);
    let increment = |delta, absent| part(PartChange::Increment { delta, absent }, Tell::Nothing);
    let numbers = [1i64, -2].map(i64::to_le_bytes).concat();
    let from = [b"\x07\0\x03\0", &numbers[..], b"key"].concat();
    let from_for = [b"\x08\0\x03\0", &numbers[..], b"\x01\x02\x03\x04\x05\x06\x07\x08key"].concat();
    let append = PartChange::Append { bytes: b"bytes", len_max: 0x0102_0304 };
    let wants = Wants { lives: true, bits: true, from: 0x0102_0304, most: 0x0506_0708 };
    let mut keys = KeysWriter::default();
    assert!(keys.push(b"key") && keys.push(b""));
    for (op, request, body) in [
        (1, Request::Hello { version: 0x0403_0201 }, &hello[..]),
        (2, put(PutMode::Upsert), b"\x03\0keyvalue"),
        (3, put(PutMode::Insert), b"\x03\0keyvalue"),
        (4, put(PutMode::Update), b"\x03\0keyvalue"),
        (5, Request::Remove { key: b"key" }, b"key"),
        (6, Request::Stat, b""),
        (7, Request::Get { key: b"key" }, b"key"),
        (8, Request::Mailbox { version: 0x0403_0201 }, b"\x01\x02\x03\x04"),
        (9, Request::Wake, b""),
        (10, Request::Swap { key: b"key", expected: b"old", value: b"value" }, b"\x03\0\x03\0keyoldvalue"),
        (11, Request::Snapshot { begin: false }, b"\0"),
        (11, Request::Snapshot { begin: true }, b"\x01"),
        (12, Request::Growth { shrink: false }, b"\0"),
        (12, Request::Growth { shrink: true }, b"\x01"),
        (13, Request::SwapExtent { key: b"key", expected: extent, value: b"value" }, &swap_extent),
        (14, Request::UploadBegin { key: b"key", len: 0x0403_0201 }, b"\x01\x02\x03\x04key"),
        (15, Request::UploadPiece { bytes: b"bytes" }, b"bytes"),
        (16, long_put(PutMode::Upsert), b"\x02\0key"),
        (16, long_put(PutMode::Insert), b"\x03\0key"),
        (16, long_put(PutMode::Update), b"\x04\0key"),
        (17, long_swap(Expected::Value(b"old")), b"\x03\0keyold"),
        (18, long_swap(Expected::Extent(extent)), &long_swap_extent),
        (19, Request::UploadDrop, b""),
        (20, Request::Heap, b""),
        (62, Request::Times, b""),
        (125, Request::Notes, b""),
        (126, Request::Evictions, b""),
        (26, Request::Held, b""),
        (27, Request::GetCounts, b""),
        (28, Request::Log, b""),
        (60, put_for, b"\x03\0\x01\x02\x03\x04\x05\x06\x07\x08\x03\0keyvalue"),
        (61, Request::UploadPut { options, key: b"key" }, b"\x03\0\x01\x02\x03\x04\x05\x06\x07\x08key"),
        (21, Request::GrowFor { keys: 0x0807_0605_0403_0201 }, b"\x01\x02\x03\x04\x05\x06\x07\x08"),
        (22, add(-2, None), b"\x01\0\x03\0\xfe\xff\xff\xff\xff\xff\xff\xffkey"),
        (22, add(1, Some(2)), b"\x02\0\x03\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0key"),
        (22, part(PartChange::Or { bits: b"bits" }, Tell::Before), b"\x03\x01\x03\0keybits"),
        (22, part(PartChange::AndNot { bits: b"bits" }, Tell::After), b"\x04\x02\x03\0keybits"),
        (22, part(PartChange::OrPadded { bits: b"bits" }, Tell::Nothing), b"\x09\0\x03\0keybits"),
        (22, part(append, Tell::Nothing), b"\x05\0\x03\0\x04\x03\x02\x01keybytes"),
        (22, increment(-2, None), b"\x06\0\x03\0\xfe\xff\xff\xff\xff\xff\xff\xffkey"),
        (22, increment(1, Some(NewNumber::from(-2))), &from),
        (22, increment(1, Some(NewNumber { value: -2, ttl: Some(ttl) })), &from_for),
        (63, Request::Touch { key: b"key", ttl: None }, b"\0key"),
        (63, Request::Touch { key: b"key", ttl: Some(ttl) }, b"\x01\x01\x02\x03\x04\x05\x06\x07\x08key"),
        (23, remove_if(Expected::Value(b"old")), b"\x03\0keyold"),
        (24, remove_if(Expected::Extent(extent)), &long_swap_extent),
        (25, Request::Clear { place: [1, 2] }, b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"),
        (110, Request::Join { nonce: [1; 32], proof: [2; 32] }, &[[1; 32], [2; 32]].concat()),
        (111, Request::Gets(keys.request(wants)), b"\x03\0\0\0\x04\x03\x02\x01\x08\x07\x06\x05\x03\0key\0\0"),
    ] {
        let id = 0x0102_0304_0506_0708;
        let expected = frame(op, 0, id, body);
        let mut bytes = b"before".to_vec();
        request.encode(id, &mut bytes);
        assert_eq!(bytes, [b"before", &expected[..]].concat(), "{request:?}");
        let decoded = decode(&expected).unwrap().unwrap();
        assert_eq!((decoded.id, decoded.length), (id, expected.len()));
        assert_eq!(Request::decode(&decoded), Ok(request));
    }
}

/// The bytes of each reply.
#[test]
fn golden_replies() {
    let two = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let counts = IndexCounts {
        keys: 1,
        inserts: 2,
        updates: 3,
        removes: 4,
        moves: 5,
        homings: 6,
        waits: 7,
        slots: 8,
        main_slots: 9,
    };
    let pid = u64::from(std::process::id());
    let stats = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, pid, 11, 12].map(u64::to_le_bytes).concat();
    let snapshots = SnapshotStatus {
        every_ms: 1,
        launch: 2,
        asked: 3,
        begun: 4,
        finished: 5,
        saved: 6,
        progress_ppm: 7,
        saved_ms: 8,
        took_us: 9,
        keys: 10,
        bytes: 11,
        failed_ms: 12,
        failure: 13,
    };
    let growth = GrowthCounts {
        segments: 1,
        segments_max: 2,
        splitting: 3,
        merging: 4,
        depth: 5,
        load_min_ppm: 6,
        load_max_ppm: 7,
        splits: 8,
        merges: 9,
        given_up: 10,
        moved: 11,
        refused: 12,
        bytes_backed: 13,
        bytes_max: 14,
        bytes_returned: 15,
    };
    let halves = [1u32, 2, 3, 4, 5, 0, 6, 7].map(u32::to_le_bytes).concat();
    let heap = HeapCounts {
        values: 1,
        live_bytes: 2,
        waiting_bytes: 3,
        gap_bytes: 4,
        largest_gap_bytes: 5,
        block_bytes: 6,
        blocks: 7,
        open_blocks: 8,
        heap_bytes: 9,
        moved_bytes: 10,
        returned_bytes: 11,
    };
    assert_eq!((heap.values, heap.live_bytes, heap.returned_bytes), (1, 2, 11));
    let growth_body = [halves, (8..=15).flat_map(u64::to_le_bytes).collect()].concat();
    let parted = |effect, value: Option<&[u8]>| {
        Reply::Part(Ok(PartOutcome { effect, value: value.map(<[u8]>::to_vec) }))
    };
    let mut times = ServerTimes { expired: 1, expiry_lag_ns: 2, refused: 3, ..Default::default() };
    (times.feed_lag, times.feed_gaps, times.is_timed) = (4, 5, 6);
    (times.puts.ranges, times.puts.sum_ns) = (std::array::from_fn(|range| 7 + range as u64), 29);
    times.slowest[0] = SlowPut::new(b"a key", 30);
    let mut times_body: Vec<u8> = (1..=30).flat_map(u64::to_le_bytes).collect();
    times_body.extend(b"\x05a key");
    times_body.resize(6 * 8 + 23 * 8 + 5 * 40, 0);
    let start_bound = |bound: StartBound| Reply::Put(Err(bound.into()));
    let ns = std::time::Duration::from_nanos;
    let held: HeldCounts = bytemuck::cast([1u64, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!((held.started, held.started_refused, held.clients_ended, held.parked_max), (1, 6, 9, 11));
    let evicted: EvictCounts = bytemuck::cast([1u64, 2, 3, 4, 5, 6]);
    assert_eq!((evicted.ahead, evicted.for_heap, evicted.refused, evicted.pinned), (1, 3, 4, 6));
    let log = LogStatus { next: 5, written: 4, durable: 3, bytes: 2, syncs: 1, has_failed: true };
    let cleared = Reply::Cleared { removed: 1, progress_ppm: 2, place: [3, 4] };
    let range = PartError::CounterRange { value: 14, delta: 15 };
    let about = [3; size_of::<TableBytes>()];
    for (status, reply, body) in [
        (1, Reply::Welcome { version: 0x0304, level: 0x0102 }, vec![4, 3, 2, 1]),
        (2, Reply::Put(Ok(PutOutcome::Inserted)), vec![]),
        (3, Reply::Put(Ok(PutOutcome::Updated)), vec![]),
        (4, Reply::Put(Ok(PutOutcome::Exists)), vec![]),
        (5, Reply::Put(Ok(PutOutcome::Missing)), vec![]),
        (6, Reply::Removed(Ok(false)), vec![0]),
        (6, Reply::Removed(Ok(true)), vec![1]),
        (7, Reply::Stat(ServerStats::new(counts, 10, 11, 12)), stats),
        (8, Reply::Value(Some(b"value".to_vec())), b"value".to_vec()),
        (9, Reply::Value(None), vec![]),
        (10, Reply::Mailbox { version: 0x0102_0304 }, vec![4, 3, 2, 1]),
        (11, Reply::Wake, vec![]),
        (12, Reply::Swapped(Ok(SwapOutcome::Swapped)), vec![]),
        (13, Reply::Swapped(Ok(SwapOutcome::Differs)), vec![]),
        (14, Reply::Swapped(Ok(SwapOutcome::Absent)), vec![]),
        (15, Reply::Snapshot(snapshots), (1..=13).flat_map(u64::to_le_bytes).collect()),
        (16, Reply::Growth(growth), growth_body),
        (17, Reply::Heap(heap), (1..=11).flat_map(u64::to_le_bytes).collect()),
        (
            65,
            Reply::Notes(NoteCounts { ends: 1, owned: 2, records: 3 }),
            (1..=3).flat_map(u64::to_le_bytes).collect(),
        ),
        (66, Reply::Evictions(evicted), (1..=6).flat_map(u64::to_le_bytes).collect()),
        (18, Reply::Taken, vec![]),
        (19, cleared, (1..=4).flat_map(u64::to_le_bytes).collect()),
        (62, Reply::Times(Box::new(times)), times_body),
        (20, Reply::Held(held), (1..=11).flat_map(u64::to_le_bytes).collect()),
        (
            21,
            Reply::GetCounts(bytemuck::cast([5u64, 6])),
            [5u64, 6].iter().flat_map(|n| n.to_le_bytes()).collect(),
        ),
        (22, Reply::Log(None), vec![]),
        (22, Reply::Log(Some(log)), [5u64, 4, 3, 2, 1, 1].iter().flat_map(|n| n.to_le_bytes()).collect()),
        (40, parted(PartEffect::Inserted, None), vec![]),
        (41, parted(PartEffect::Inserted, Some(b"value")), b"value".to_vec()),
        (43, parted(PartEffect::Updated, Some(b"")), vec![]),
        (44, parted(PartEffect::Unchanged, None), vec![]),
        (46, parted(PartEffect::Absent, None), vec![]),
        (113, Reply::Put(Err(PutError::Part(range))), [vec![2], vec![0; 7], two(14, 15)].concat()),
        (111, Reply::Unfit, vec![]),
        (112, Reply::Put(Err(PutError::Withdrawn)), vec![]),
        (160, Reply::Put(Err(PutError::TimeToLive { given: std::time::Duration::from_nanos(9) })), two(9, 0)),
        (161, Reply::Put(Err(PutError::NoLife)), vec![]),
        (162, Reply::Put(Err(PutError::EntryNumbers)), vec![]),
        (70, Reply::Pin(true), vec![1]),
        (193, start_bound(StartBound::Slots { held: 1, max: 2 }), [vec![0; 8], two(1, 2)].concat()),
        (
            193,
            start_bound(StartBound::HeapBytes { held: 1, max: 2 }),
            [vec![1], vec![0; 7], two(1, 2)].concat(),
        ),
        (
            193,
            start_bound(StartBound::Time { given: ns(1), max: ns(2) }),
            [vec![2], vec![0; 7], two(1, 2)].concat(),
        ),
        (170, Reply::Put(Err(PutError::Pinned)), vec![]),
        (171, Reply::Put(Err(PutError::Pins { max: 9 })), two(9, 0)),
        (100, Reply::Put(Err(PutError::KeyLength { given: 300, max: 16 })), two(300, 16)),
        (101, Reply::Put(Err(PutError::ValueLength { given: 301, max: 17 })), two(301, 17)),
        (
            102,
            Reply::Put(Err(PutError::Full { keys: 12, slots: 13, bytes_max: 14, heap_bytes: 15 })),
            (12..=15).flat_map(u64::to_le_bytes).collect(),
        ),
        (103, Reply::Put(Err(PutError::Busy { rounds: 14 })), two(14, 0)),
        (107, Reply::Put(Err(PutError::NoMemory { keys: 15, bytes: 16 })), two(15, 16)),
        (104, Reply::Refused { version: 0x0102_0304 }, vec![4, 3, 2, 1]),
        (105, Reply::Denied, vec![]),
        (106, Reply::TurnedAway(Refusal::User { uid: 14 }), two(1, 14)),
        (106, Reply::TurnedAway(Refusal::ServerFull { max: 14 }), two(2, 14)),
        (106, Reply::TurnedAway(Refusal::PeerFull { max: 14 }), two(3, 14)),
        (106, Reply::TurnedAway(Refusal::Descriptors), two(4, 0)),
        (106, Reply::TurnedAway(Refusal::Stopping), two(5, 0)),
        (106, Reply::TurnedAway(Refusal::Token), two(6, 0)),
        (200, Reply::Challenge { nonce: [1; 32] }, vec![1; 32]),
        (
            201,
            Reply::Table { proof: [2; 32], about: Box::new(about) },
            [vec![2; 32], about.to_vec()].concat(),
        ),
    ] {
        let id = 0x0102_0304_0506_0708;
        let expected = frame(0x8000, status, id, &body);
        let mut bytes = Vec::new();
        reply.encode(id, &mut bytes);
        assert_eq!(bytes, expected, "{reply:?}");
        let decoded = decode(&expected).unwrap().unwrap();
        assert_eq!((decoded.id, decoded.length), (id, expected.len()));
        assert_eq!(Reply::decode(&decoded), Ok(reply));
    }
    // Errors of other changes look like those of puts.
    let (mut removed, mut swapped, mut parted, mut put) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    Reply::Part(Err(PutError::KeyLength { given: 1, max: 2 })).encode(5, &mut parted);
    let error = PutError::KeyLength { given: 1, max: 2 };
    Reply::Removed(Err(error.clone())).encode(5, &mut removed);
    Reply::Swapped(Err(error.clone())).encode(5, &mut swapped);
    Reply::Put(Err(error)).encode(5, &mut put);
    assert_eq!((&removed, &swapped, &parted), (&put, &put, &put));
}

/// A frame decodes only when its last byte is there. A frame that is too long is refused at its
/// head. Bytes after the frame are not part of it.
#[test]
fn frames_decode_when_they_are_whole() {
    for length in [0, 1, 100, BODY_MAX] {
        let mut bytes = frame(5, 0, 9, &vec![7; length]);
        for cut in [0, 1, 4, 15, 16, bytes.len() - 1].into_iter().filter(|cut| *cut < bytes.len()) {
            assert!(decode(&bytes[..cut]).unwrap().is_none(), "{cut} of {length}");
        }
        bytes.extend([1; 20]);
        let decoded = decode(&bytes).unwrap().unwrap();
        assert_eq!((decoded.length, decoded.body()), (HEAD + length, &vec![7; length][..]));
    }
    for given in [BODY_MAX as u32 + 1, u32::MAX] {
        let head = [&given.to_le_bytes()[..], &[0; 12]].concat();
        assert_eq!(decode(&head).unwrap_err(), WireError::TooLong { given });
    }
}

/// Each error names the operation with the length of its body, or with its status.
#[test]
fn invalid_frames_are_refused() {
    let unfitting = |op, len| WireError::Body { op, len };
    let unknown = |op, status| WireError::Unknown { op, status };
    let hello = |magic: &[u8; 8], more: usize| [&magic[..], &vec![0; more]].concat();
    for (op, status, body, expected) in [
        (0, 0, vec![], unknown(0, 0)),
        (99, 3, vec![], unknown(99, 3)),
        (0x8000, 6, vec![1], unknown(0x8000, 6)),
        (1, 0, hello(b"ONEREAD!", 8), unfitting(1, 16)),
        (1, 0, hello(b"ONEREAD?", 7), unfitting(1, 15)),
        (1, 0, hello(b"ONEREAD?", 9), unfitting(1, 17)),
        (2, 0, vec![1], unfitting(2, 1)),
        (3, 0, vec![2, 0, 7], unfitting(3, 3)),
        (4, 0, vec![0, 1, 7], unfitting(4, 3)),
        (6, 0, vec![0], unfitting(6, 1)),
        (8, 0, vec![0; 3], unfitting(8, 3)),
        (8, 0, vec![0; 5], unfitting(8, 5)),
        (9, 0, vec![0; 2], unfitting(9, 2)),
        (10, 0, vec![], unfitting(10, 0)),
        (10, 0, vec![0; 3], unfitting(10, 3)),
        (10, 0, vec![2, 0, 0, 0, 7], unfitting(10, 5)),
        (10, 0, vec![1, 0, 1, 0, 7], unfitting(10, 5)),
        (10, 0, vec![0, 0, 0, 1, 7], unfitting(10, 5)),
        (11, 0, vec![], unfitting(11, 0)),
        (11, 0, vec![2], unfitting(11, 1)),
        (11, 0, vec![1, 0], unfitting(11, 2)),
        (12, 0, vec![], unfitting(12, 0)),
        (12, 0, vec![2], unfitting(12, 1)),
        (13, 0, vec![0; 25], unfitting(13, 25)),
        (13, 0, [&[2, 0][..], &[0; 25]].concat(), unfitting(13, 27)),
        (14, 0, vec![0; 3], unfitting(14, 3)),
        (16, 0, vec![2], unfitting(16, 1)),
        (16, 0, vec![5, 0, 7], unfitting(16, 3)),
        (17, 0, vec![2, 0, 7], unfitting(17, 3)),
        (18, 0, vec![0; 23], unfitting(18, 23)),
        (19, 0, vec![0], unfitting(19, 1)),
        (20, 0, vec![0], unfitting(20, 1)),
        (26, 0, vec![0], unfitting(26, 1)),
        (27, 0, vec![0], unfitting(27, 1)),
        (28, 0, vec![0], unfitting(28, 1)),
        (21, 0, vec![0; 7], unfitting(21, 7)),
        (21, 0, vec![0; 9], unfitting(21, 9)),
        (22, 0, vec![3, 0, 0], unfitting(22, 3)),
        (22, 0, vec![0, 0, 0, 0], unfitting(22, 4)),
        (22, 0, vec![7, 0, 0, 0], unfitting(22, 4)),
        (22, 0, vec![3, 3, 0, 0], unfitting(22, 4)),
        (22, 0, vec![3, 0, 2, 0, 7], unfitting(22, 5)),
        (22, 0, [&[1, 0, 1, 0][..], &[0; 8]].concat(), unfitting(22, 12)),
        (22, 0, [&[1, 0, 0, 0][..], &[0; 9]].concat(), unfitting(22, 13)),
        (22, 0, [&[2, 0, 0, 0][..], &[0; 15]].concat(), unfitting(22, 19)),
        (22, 0, vec![5, 0, 0, 0, 1, 2, 3], unfitting(22, 7)),
        (23, 0, vec![2, 0, 7], unfitting(23, 3)),
        (24, 0, vec![0; 23], unfitting(24, 23)),
        (25, 0, vec![0; 15], unfitting(25, 15)),
        (25, 0, vec![0; 17], unfitting(25, 17)),
        (110, 0, vec![0; 63], unfitting(110, 63)),
        (110, 0, vec![0; 65], unfitting(110, 65)),
        (111, 0, vec![0; 11], unfitting(111, 11)),
        (111, 0, vec![0; 12], unfitting(111, 12)),
        (111, 0, vec![0; 13], unfitting(111, 13)),
        (111, 0, [&[4][..], &[0; 13]].concat(), unfitting(111, 14)),
        (111, 0, [&[0; 12][..], &[2, 0, 7]].concat(), unfitting(111, 15)),
    ] {
        let bytes = frame(op, status, 1, &body);
        let decoded = decode(&bytes).unwrap().unwrap();
        assert_eq!(Request::decode(&decoded), Err(expected), "{op} with {body:?}");
    }
    // A key that fills the body, and an empty key, decode: the table checks lengths.
    for (body, key, value) in [(&b"\x02\0ke"[..], &b"ke"[..], &b""[..]), (b"\0\0v", b"", b"v")] {
        let bytes = frame(2, 0, 1, body);
        let put = Request::decode(&decode(&bytes).unwrap().unwrap());
        assert_eq!(put, Ok(Request::Put { options: PutMode::Upsert.into(), key, value }));
    }
    for (op, status, length, expected) in [
        (5, 6, 1, unknown(5, 6)),
        (0x8001, 6, 1, unknown(0x8001, 6)),
        (0x8000, 0, 0, unknown(0x8000, 0)),
        (0x8000, 15, 95, unfitting(0x8000, 95)),
        (0x8000, 16, 95, unfitting(0x8000, 95)),
        (0x8000, 17, 87, unfitting(0x8000, 87)),
        (0x8000, 19, 31, unfitting(0x8000, 31)),
        (0x8000, 20, 71, unfitting(0x8000, 71)),
        (0x8000, 21, 15, unfitting(0x8000, 15)),
        (0x8000, 22, 47, unfitting(0x8000, 47)),
        (0x8000, 23, 0, unknown(0x8000, 23)),
        (0x8000, 40, 1, unfitting(0x8000, 1)),
        (0x8000, 48, 0, unknown(0x8000, 48)),
        (0x8000, 108, 4, unfitting(0x8000, 4)),
        (0x8000, 113, 4, unfitting(0x8000, 4)),
        (0x8000, 114, 4, unknown(0x8000, 114)),
        (0x8000, 106, 8, unfitting(0x8000, 8)),
        (0x8000, 1, 3, unfitting(0x8000, 3)),
        (0x8000, 104, 5, unfitting(0x8000, 5)),
        (0x8000, 10, 0, unfitting(0x8000, 0)),
        (0x8000, 6, 0, unfitting(0x8000, 0)),
        (0x8000, 7, 95, unfitting(0x8000, 95)),
        (0x8000, 100, 15, unfitting(0x8000, 15)),
        (0x8000, 101, 17, unfitting(0x8000, 17)),
        (0x8000, 102, 8, unfitting(0x8000, 8)),
        (0x8000, 103, 0, unfitting(0x8000, 0)),
        (0x8000, 107, 8, unfitting(0x8000, 8)),
        (0x8000, 193, 23, unfitting(0x8000, 23)),
        (0x8000, 200, 31, unfitting(0x8000, 31)),
        (0x8000, 201, 31 + size_of::<TableBytes>(), unfitting(0x8000, 31 + size_of::<TableBytes>())),
        (0x8000, 210, 0, unknown(0x8000, 210)),
    ] {
        let bytes = frame(op, status, 1, &vec![0; length]);
        let decoded = decode(&bytes).unwrap().unwrap();
        assert_eq!(Reply::decode(&decoded), Err(expected), "{op}, {status} with {length} bytes");
    }
}

/// A log that has neither failed nor not is none that a server tells of.
#[test]
fn a_log_is_good_or_has_failed() {
    let told = |has_failed: u64| {
        let body: Vec<u8> = [1, 1, 1, 0, 0, has_failed].into_iter().flat_map(u64::to_le_bytes).collect();
        Reply::decode(&decode(&frame(0x8000, 22, 1, &body)).unwrap().unwrap())
    };
    let log = |has_failed| LogStatus { next: 1, written: 1, durable: 1, has_failed, ..Default::default() };
    assert_eq!(told(0), Ok(Reply::Log(Some(log(false)))));
    assert_eq!(told(1), Ok(Reply::Log(Some(log(true)))));
    assert_eq!(told(2), Err(WireError::Body { op: 0x8000, len: 48 }));
}

/// The bytes of a reply to a request for keys: an absent key, two values, a key that is none, bits, an error. What they
/// say is read again.
#[test]
fn golden_entries() {
    use crate::layout::life::Life;
    use crate::outcome::ReadError;
    use crate::sink::Sink;
    let (mut out, id) = (b"before".to_vec(), 0x0102_0304_0506_0708);
    let wants = Wants { lives: true, bits: false, from: 1, most: 3 };
    let life = Life { number: 0x0203, ..Life::default() };
    let reference = Reference { number: 1, offset: 2, len: 3, crc: 4 };
    let mut writer = GotWriter::<true>::new(&mut out, id, wants);
    assert!(writer.end_entry(7, None));
    writer.put_life(Some(life));
    writer.put_words::<1>(6, |_| u64::from_le_bytes(*b"value..."));
    assert!(writer.end_entry(0x0102, Some(None)));
    assert!(writer.begin(3));
    // In whatever pieces it is put.
    [&b"l"[..], b"o", b"n"].into_iter().for_each(|piece| writer.put(piece));
    assert!(writer.end_entry(1, Some(Some(reference))));
    assert!(writer.no_key(2, 16));
    writer.finish();
    let lived = life.to_bytes();
    let extent = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0";
    let body = [
        &b"\x07\0\0\0\0\0\0\0"[..],
        b"\x02\x01\x01\x01\x06\0\0\0alu",
        &lived,
        b"\x01\0\x01\x03\x03\0\0\0on",
        &lived,
        extent,
        b"\x02\0\x02\0\x10\0\0\0",
    ]
    .concat();
    let expected = frame(0x8000, 210, id, &body);
    assert_eq!(out, [b"before", &expected[..]].concat());
    let decoded = decode(&expected).unwrap().unwrap();
    let Some(Ok(GotReply::Entries(mut entries))) = GotReply::decode(&decoded) else { panic!("no entries") };
    let value = |whole, bytes, reference| Found::Value { whole, bytes, life: Some(life), reference };
    for found in [
        (7, Found::Absent),
        (0x0102, value(6, b"alu", None)),
        (1, value(3, b"on", Some(reference))),
        (2, Found::NoKey { max: 16 }),
    ] {
        assert_eq!(split_entry(&mut entries, &wants), Some(found));
    }
    assert_eq!((entries, split_entry(&mut entries, &wants)), (&b""[..], None));
    // Cut anywhere, it is no entry, or it is one of those before.
    for cut in 0..body.len() {
        let (mut entries, mut count) = (&body[..cut], 0);
        while split_entry(&mut entries, &wants).is_some() {
            count += 1;
        }
        assert_eq!(count, [8, 31, 77].iter().filter(|&&end| end <= cut).count(), "{cut}");
    }
    let mut bits = Vec::new();
    encode_bits(&mut bits, id, &[5, 1 << 63]);
    assert_eq!(bits, frame(0x8000, 211, id, &[&[5, 0, 0, 0, 0, 0, 0, 0][..], &[0; 7], &[0x80]].concat()));
    let decoded = decode(&bits).unwrap().unwrap();
    assert!(matches!(GotReply::decode(&decoded), Some(Ok(GotReply::Bits(bits))) if bits.len() == 16));
    for (error, words) in [
        (ReadError::KeyLength { given: 9, max: 8 }, [1, 9, 8, 0]),
        (ReadError::Replaced { len: 9, times: 8 }, [3, 9, 8, 0]),
    ] {
        let mut failed = Vec::new();
        GotWriter::<false>::new(&mut failed, id, wants).fail(id, &error);
        assert_eq!(failed, frame(0x8000, 212, id, &words.map(u64::to_le_bytes).concat()));
        let decoded = decode(&failed).unwrap().unwrap();
        assert!(matches!(GotReply::decode(&decoded), Some(Ok(GotReply::Failed(told))) if told == error));
    }
    for (status, body) in [(212, vec![0; 31]), (212, vec![9; 32])] {
        let bytes = frame(0x8000, status, id, &body);
        let refused = GotReply::decode(&decode(&bytes).unwrap().unwrap());
        assert!(matches!(refused, Some(Err(WireError::Body { .. }))), "{body:?}");
    }
}

/// A reply takes entries while it has room, and no more than a frame has. What has no room leaves nothing behind.
#[test]
fn a_reply_is_one_frame() {
    use crate::sink::Sink;
    for len in [0, 1, 40, 1_000, 20_000, SOCKET_PIECE_MAX, 1 << 20] {
        let wants = Wants { lives: false, bits: false, from: 0, most: u32::MAX };
        let (mut out, value) = (Vec::new(), vec![9; len]);
        let mut writer = GotWriter::<false>::new(&mut out, 1, wants);
        let took = (0..10_000).take_while(|&number| {
            if writer.begin(len) {
                value.chunks(4_096).for_each(|piece| writer.put(piece));
            }
            writer.end_entry(number, Some(None))
        });
        let took = took.count();
        writer.finish();
        let reply = decode(&out).unwrap().unwrap();
        assert!(took > 0 && reply.length == out.len() && reply.body().len() <= BODY_MAX, "{len}");
        let Some(Ok(GotReply::Entries(mut entries))) = GotReply::decode(&reply) else { panic!("no entries") };
        for number in 0..took {
            let found = split_entry(&mut entries, &wants);
            let Some((nth, Found::Value { whole, bytes, .. })) = found else { panic!("{found:?}") };
            assert!(nth == number && whole == len && bytes == &value[..len.min(SOCKET_PIECE_MAX)]);
        }
        assert!(entries.is_empty());
    }
}

/// Replies must have the numbers of their requests, in order, and be whole.
#[test]
fn replies_must_match_their_requests() {
    let bytes = |ids: &[u64]| {
        let mut bytes = Vec::new();
        ids.iter().for_each(|id| Reply::Removed(Ok(id % 2 == 0)).encode(*id, &mut bytes));
        bytes
    };
    let removed = |ids: &[u64]| ids.iter().map(|id| Reply::Removed(Ok(id % 2 == 0))).collect();
    for first in [0, 7, 1 << 40] {
        let due = [first, first + 1, first + 2];
        for n in 0..=3 {
            assert_eq!(super::replies(&bytes(&due[..n]), first), Ok(removed(&due[..n])));
        }
        let [a, b, c] = due;
        for wrong in [[b, a, c], [a, c, b], [a, a, b], [a, b, b], [b, c, c + 1], [a, b, 0x100 + c]] {
            let error = super::replies(&bytes(&wrong), first).unwrap_err();
            assert!(matches!(error, WireError::Order { .. }), "{wrong:?}: {error}");
        }
        let whole = bytes(&due);
        for cut in (1..whole.len()).filter(|cut| !cut.is_multiple_of(bytes(&[0]).len())) {
            assert!(super::replies(&whole[..cut], first).is_err(), "cut off at {cut}");
        }
    }
}

/// The longest request and reply are as long as computed. Cells and messages are sized by that.
#[test]
fn the_longest_requests_and_replies() {
    use crate::config::{Config, TableSize};
    for (key_max, value_max) in [
        (1, 0),
        (1, 1),
        (7, 33),
        (8, 8),
        (32, 78),
        (255, 100),
        (255, 3_600),
        (8, 4_080),
        (8, 4_081),
        (255, 1 << 20),
    ] {
        let heap_bytes = (value_max > 3_600).then_some(1 << 30);
        let (size, key_inline) = (TableSize::Slots(8), Some(key_max));
        let config = Config { key_max, key_inline, value_max, heap_bytes, size, ..Config::default() };
        let geometry = config.geometry().unwrap();
        let frame_max = frame_value_max(&geometry);
        assert_eq!(frame_max, geometry.value_max().min(4_080));
        let (key, value) = (vec![1; key_max], vec![2; frame_max]);
        let length = |request: Request<'_>| {
            let mut bytes = Vec::new();
            request.encode(7, &mut bytes);
            bytes.len()
        };
        let put = length(Request::Put { options: PutMode::Upsert.into(), key: &key, value: &value });
        let swap = length(Request::Swap { key: &key, expected: &value, value: &value });
        // Where values are shorter, an addition to a number is the longest.
        assert!(swap == request_bytes_max(&geometry) || value_max < 12, "{key_max}, {value_max}");
        assert!(
            put <= swap.max(request_bytes_max(&geometry)) && length(Request::Remove { key: &key }) <= swap
        );
        let tell = Tell::Before;
        let part = |part| Request::Part { key: &key, part, tell };
        let counter = PartChange::Add { delta: 1, initial: Some(2) };
        let add = part(counter);
        let absent = Some(NewNumber { value: 1, ttl: Some(std::time::Duration::MAX) });
        let increment = part(PartChange::Increment { delta: 1, absent });
        let touch = Request::Touch { key: &key, ttl: Some(std::time::Duration::MAX) };
        for (part, needs) in [
            (increment, 0),
            (touch, 0),
            (add, 8),
            (part(PartChange::Or { bits: &value }), 0),
            (part(PartChange::Append { bytes: &value, len_max: 9 }), 0),
            (Request::RemoveIf { key: &key, expected: Expected::Value(&value) }, 0),
        ] {
            assert!(length(part) <= request_bytes_max(&geometry) || value_max < needs, "{part:?}");
        }
        if geometry.has_heap() {
            let extent = Reference { number: 1, offset: 2, len: 3, crc: 4 };
            for request in [
                Request::SwapExtent { key: &key, expected: extent, value: &value },
                Request::UploadBegin { key: &key, len: 1 },
                Request::UploadPiece { bytes: &value },
                Request::UploadPut { options: PutMode::Upsert.into(), key: &key },
                Request::UploadSwap { key: &key, expected: Expected::Value(&value) },
                Request::UploadSwap { key: &key, expected: Expected::Extent(extent) },
            ] {
                assert!(length(request) <= swap, "{request:?}");
            }
        }
        let mut found = Vec::new();
        Reply::Value(Some(value.clone())).encode(7, &mut found);
        let mut full = Vec::new();
        Reply::Put(Err(PutError::Full { keys: 1, slots: 2, bytes_max: 3, heap_bytes: 4 }))
            .encode(7, &mut full);
        let mut stats = Vec::new();
        Reply::Stat(ServerStats::default()).encode(7, &mut stats);
        assert!(full.len() <= stats.len(), "not the longest");
        assert_eq!(found.len().max(stats.len()), reply_bytes_max(&geometry));
        // What goes through a mailbox fits its cells. Without a heap, that is all.
        let (request_max, reply_max) = cell_frames_max(&geometry);
        let value = vec![2; frame_max.min(geometry.shape().payload_max())];
        let longer = vec![2; value.len() + 1];
        let extent = Reference { number: 1, offset: 2, len: 3, crc: 4 };
        let swap = Request::Swap { key: &key, expected: &value, value: &value };
        assert_eq!(length(swap), request_max);
        for request in [
            swap,
            Request::Put { options: PutMode::Upsert.into(), key: &key, value: &value },
            Request::SwapExtent { key: &key, expected: extent, value: &value },
            Request::Remove { key: &key },
            Request::RemoveIf { key: &key, expected: Expected::Value(&value) },
            Request::Part { key: &key, part: PartChange::Or { bits: &value }, tell: Tell::Nothing },
            Request::UploadDrop,
        ] {
            let is_of_parts = matches!(request, Request::Part { .. });
            if is_of_parts && value.len() < 4 {
                assert!(!fits_cells(&request, &geometry), "an append might not");
                continue;
            }
            let is_of_heaps = matches!(request, Request::SwapExtent { .. }) && !geometry.has_heap();
            assert!(fits_cells(&request, &geometry), "{request:?}");
            assert!(length(request) <= request_max || is_of_heaps, "{request:?}");
        }
        for request in [
            Request::Swap { key: &key, expected: &longer, value: b"" },
            Request::Swap { key: &key, expected: b"", value: &longer },
            Request::SwapExtent { key: &key, expected: extent, value: &longer },
            Request::Put { options: PutMode::Upsert.into(), key: &key, value: &longer },
            Request::RemoveIf { key: &key, expected: Expected::Value(&longer) },
            Request::Part { key: &key, part: PartChange::Or { bits: &longer }, tell: Tell::Nothing },
        ] {
            assert!(!fits_cells(&request, &geometry), "{request:?}");
        }
        assert_eq!(fits_cells(&Request::Get { key: &key }, &geometry), !geometry.has_heap());
        // A counter is short; another value that is told may be as long as any.
        assert_eq!(fits_cells(&add, &geometry), value.len() >= 4);
        assert!(length(add) <= request_max || value.len() < 8);
        for request in [increment, touch] {
            assert!(!fits_cells(&request, &geometry) || length(request) <= request_max, "{request:?}");
        }
        assert_eq!(fits_cells(&increment, &geometry), value.len() >= 12);
        if value.len() >= 4 {
            let append = Request::Part {
                key: &key,
                part: PartChange::Append { bytes: &value, len_max: 9 },
                tell: Tell::Nothing,
            };
            assert!(fits_cells(&append, &geometry) && length(append) <= request_max);
            let told = Request::Part { key: &key, part: PartChange::Or { bits: b"" }, tell };
            assert_eq!(fits_cells(&told, &geometry), !geometry.has_heap());
        }
        let mut found = Vec::new();
        Reply::Value(Some(value)).encode(7, &mut found);
        assert_eq!(found.len().max(stats.len()), reply_max);
    }
}
