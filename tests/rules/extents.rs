//! Values that do not fit their slots, in one process.

use oneread::internals::hints::Hints;
use oneread::internals::inspect::Inspector;
use oneread::internals::layout::extent::VALUE_MAX;
use oneread::internals::region::{Backing, Region};
use oneread::{
    Config, PutMode, PutOutcome, SwapOutcome, TableSize,
    embedded::{Clock, Index},
    error::{ConfigError, PutError},
    layout::Seeds,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

const GRACE: Duration = Duration::from_micros(100);

fn config(heap_bytes: u64, value_max: usize) -> Config {
    Config::new()
        .size(TableSize::Slots(256))
        .key_max(16)
        .value_max(value_max)
        .heap_bytes(heap_bytes)
        .grace(GRACE)
        .seeds(Seeds::from_number(3))
}

fn table(config: Config) -> (Index, Clock) {
    let geometry = config.geometry().unwrap();
    let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
    let clock = Clock::manual();
    (Index::create(region, geometry, clock.clone()).unwrap(), clock)
}

/// A value of so many bytes.
fn value(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (number.wrapping_mul(31).wrapping_add(n.wrapping_mul(7)) >> 3) as u8).collect()
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// Values of each length about where words, lines, slots and granules end come back, whole, in parts, and as
/// a length.
#[test]
fn values_of_any_length() {
    let (index, _) = table(config(64 << 20, 1 << 20));
    assert_eq!(index.geometry().shape().bytes(), 128, "two lines where nothing is said");
    let mut reader = index.reader();
    let (mut got, mut part) = (Vec::new(), Vec::new());
    let lengths = (0..300).chain([1_000, 4_095, 4_096, 4_097, 65_535, 100_003, 1 << 20]);
    for (n, len) in (0..).zip(lengths) {
        let (key, value) = (key(n % 100), value(n, len));
        index.put(&key, &value, PutMode::Upsert).unwrap();
        assert_eq!(reader.get_into(&key, &mut got), Ok(true));
        assert!(got == value, "{len}");
        let before = reader.stats();
        assert_eq!(reader.value_len(&key), Ok(Some(len)));
        let now = reader.stats();
        assert_eq!((now.gets, now.hits), (before.gets + 1, before.hits + 1));
        // The last one ends before it begins: it has no bytes.
        for range in [
            0..len,
            0..1,
            len / 2..len / 2 + 9,
            3..len,
            len..len + 5,
            7..usize::MAX,
            len + 1..len + 2,
            Range { start: 9, end: 3 },
        ] {
            let is_there =
                value.get(range.start.min(len)..range.end.clamp(range.start.min(len), len)).unwrap();
            assert_eq!(reader.get_range(&key, range.clone(), &mut part), Ok(Some(len)));
            assert!(part == is_there, "{range:?} of {len}");
        }
    }
    assert_eq!(reader.get_into(b"nobody", &mut got), Ok(false));
    assert_eq!(reader.get_range(b"nobody", 0..9, &mut got), Ok(None));
    assert_eq!(reader.value_len(b"nobody"), Ok(None));
    let too_long = index.put(&key(1), &vec![0; (1 << 20) + 1], PutMode::Upsert);
    assert_eq!(too_long, Err(PutError::ValueLength { given: (1 << 20) + 1, max: 1 << 20 }));
    assert!(index.heap().values > 10 && index.heap().live_bytes > 1 << 20, "{:?}", index.heap());
}

/// What a GET costs: a value in its slot is one READ, another is two, and no byte more than the value has.
#[test]
fn two_reads() {
    let (index, _) = table(config(64 << 20, 1 << 20));
    index.put(b"short", &value(1, 20), PutMode::Insert).unwrap();
    index.put(b"long", &value(2, 5_000), PutMode::Insert).unwrap();
    let mut reader = index.reader();
    let mut got = Vec::new();
    assert_eq!(reader.get_into(b"short", &mut got), Ok(true));
    let window = reader.read_counts();
    assert_eq!(window.reads, 1);
    assert_eq!(reader.get_into(b"long", &mut got), Ok(true));
    let counts = reader.read_counts();
    // On this host the key is looked up twice besides the direct look: before the bytes, and after.
    assert_eq!(counts.reads, 1 + 3 + 1);
    assert_eq!(counts.bytes, 4 * window.bytes + 5_000);
}

/// Batches bring short and long values, and what is absent.
#[test]
fn batches() {
    let (index, _) = table(config(64 << 20, 1 << 20));
    let values: Vec<_> = (0..100).map(|n| value(n, (n as usize * 37) % 2_000)).collect();
    (0..100).for_each(|n| assert!(index.put(&key(n), &values[n as usize], PutMode::Insert).is_ok()));
    let keys: Vec<_> = (0..120).map(key).collect();
    let mut seen = BTreeMap::new();
    let mut reader = index.reader();
    reader.get_many(&keys, |n, value| drop(seen.insert(n, value.map(<[u8]>::to_vec)))).unwrap();
    assert_eq!(seen.len(), 120);
    for (n, got) in seen {
        assert_eq!(got.as_ref(), values.get(n), "{n}");
    }
    assert_eq!((reader.stats().gets, reader.stats().hits), (120, 100));

    // By hints, too, which know the slots after some rounds.
    let hints = Hints::new(index.geometry(), usize::MAX).unwrap();
    let mut reader = index.reader().with_hints(&hints);
    for round in 0..4 {
        let mut answers = 0;
        let each = |n: usize, got: Option<&[u8]>| {
            assert_eq!(got, values.get(n).map(Vec::as_slice), "{n} in round {round}");
            answers += 1;
        };
        reader.get_many(&keys, each).unwrap();
        assert_eq!(answers, 120);
    }
    assert!(reader.hint_counts().hits > 200, "{:?}", reader.hint_counts());
    // A long value that a hint leads to is a hit, alone and in a batch, and each of its READs counts once.
    let long = [key(50)];
    assert!(values[50].len() > 1_000);
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut reader = index.reader().with_hints(&hints);
        match counts.len() {
            0 => assert_eq!(reader.get_into(&long[0], &mut Vec::new()), Ok(true)),
            _ => reader.get_many(&long, |_, got| assert_eq!(got, Some(&values[50][..]))).unwrap(),
        }
        let (hinted, reads) = (reader.hint_counts(), reader.read_counts());
        assert_eq!((hinted.hinted, hinted.hits, reader.stats().hits), (1, 1, 1));
        assert!(reads.doorbells == reads.reads - (hinted.reads - 1) && hinted.reads >= 1, "{reads:?}");
        counts.push(reads);
    }
    assert_eq!(counts[0], counts[1]);
}

/// Puts of each mode, swaps and removes; the memory of what goes comes back.
#[test]
fn changes_and_their_memory() {
    let (index, clock) = table(config(64 << 20, 1 << 20));
    let [long, other, third] = [1, 2, 3].map(|n| value(n, 9_000));
    let mut got = Vec::new();
    let mut get = |key: &[u8]| index.reader().get_into(key, &mut got).unwrap().then(|| got.clone());
    assert_eq!(index.put(b"key", &long, PutMode::Update), Ok(PutOutcome::Missing));
    assert_eq!(index.heap().live_bytes, 0, "what was refused leaves nothing");
    assert_eq!(index.put(b"key", &long, PutMode::Insert), Ok(PutOutcome::Inserted));
    assert_eq!(index.put(b"key", &other, PutMode::Insert), Ok(PutOutcome::Exists));
    assert_eq!(get(b"key"), Some(long.clone()));
    assert_eq!(index.compare_and_swap(b"key", &other, &third), Ok(SwapOutcome::Differs));
    assert_eq!(index.compare_and_swap(b"key", &long, &third), Ok(SwapOutcome::Swapped));
    assert_eq!(index.compare_and_swap(b"none", &long, &third), Ok(SwapOutcome::Absent));
    assert_eq!(get(b"key"), Some(third.clone()));
    assert_eq!(index.compare_and_swap(b"key", &third, b"short"), Ok(SwapOutcome::Swapped));
    assert_eq!(get(b"key"), Some(b"short".to_vec()));
    assert_eq!(index.compare_and_swap(b"key", b"short", &long), Ok(SwapOutcome::Swapped));
    assert_eq!(index.put(b"key", &other, PutMode::Upsert), Ok(PutOutcome::Updated));
    assert_eq!(get(b"key"), Some(other.clone()));
    let heap = index.heap();
    assert_eq!((heap.values, heap.live_bytes), (1, 9_024), "{heap:?}");
    assert_eq!(heap.waiting_bytes, 3 * 9_024, "{heap:?}");
    assert_eq!(index.remove(b"key"), Ok(true));
    assert_eq!(get(b"key"), None);
    assert_eq!(index.heap().values, 0);
    for _ in 0..10 {
        clock.advance(Duration::from_millis(1));
        index.tidy();
    }
    let heap = index.heap();
    assert_eq!((heap.live_bytes, heap.waiting_bytes), (0, 0), "{heap:?}");
}

/// A heap that is full says so, changes nothing, and takes values again when others have gone.
#[test]
fn a_full_heap() {
    let (index, _) = table(config(1 << 20, 64 << 10));
    let mut put = 0;
    let error = loop {
        match index.put(&key(put), &value(put, 60_000), PutMode::Insert) {
            Ok(_) => put += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PutError::HeapFull { heap_bytes, .. } if heap_bytes <= 1 << 20), "{error}");
    assert!(put >= 8, "{put}");
    assert_eq!(index.len(), put);
    let mut got = Vec::new();
    for n in 0..put {
        assert_eq!(index.reader().get_into(&key(n), &mut got), Ok(true));
        assert!(got == value(n, 60_000));
    }
    // Over the old values: each put needs memory of its own, and what it replaces waits.
    assert_eq!(index.remove(&key(0)), Ok(true));
    for n in 1..put {
        let outcome = index.put(&key(n), &value(n + 100, 60_000), PutMode::Update);
        assert_eq!(outcome, Ok(PutOutcome::Updated), "{n}: {:?}", index.heap());
    }
}

/// Bad sizes are refused by name.
#[test]
fn bad_sizes() {
    let error = |config: Config| config.geometry().unwrap_err();
    let longest = error(config(1 << 30, VALUE_MAX + 1));
    assert!(matches!(longest, ConfigError::LongestValue { given } if given == VALUE_MAX + 1), "{longest}");
    let heap = error(config(1 << 20, 1 << 20));
    assert!(matches!(heap, ConfigError::HeapBytes { given: 1_048_576, .. }), "{heap}");
    let inline = error(Config::new().inline_max(1 << 20));
    assert!(inline.to_string().contains("lower `Config::inline_max`"), "{inline}");
}

/// Churn of values of all lengths: nothing is lost, nothing wrong, and what is not in use comes back.
#[test]
fn churn() {
    let (index, clock) = table(config(8 << 20, 64 << 10));
    let mut model: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut random = 7u64;
    let mut next = |below: u64| {
        random = oneread::internals::layout::hash::mix(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
        random % below
    };
    let mut got = Vec::new();
    for round in 0..20_000u64 {
        let number = next(150);
        match next(10) {
            0..6 => {
                let len = [next(50), next(1_000), next(5_000), next(64 << 10)][next(4) as usize] as usize;
                match index.put(&key(number), &value(round, len), PutMode::Upsert) {
                    Ok(_) => drop(model.insert(number, (round, len))),
                    Err(PutError::HeapFull { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            6..8 => assert_eq!(index.remove(&key(number)), Ok(model.remove(&number).is_some())),
            _ => {
                let found = index.reader().get_into(&key(number), &mut got).unwrap();
                let expected = model.get(&number).map(|&(round, len)| value(round, len));
                assert!(found.then_some(&got) == expected.as_ref(), "{round}");
            }
        }
        clock.advance(Duration::from_micros(next(100)));
        if round.is_multiple_of(16) {
            index.tidy();
        }
    }
    for number in 0..150 {
        let found = index.reader().get_into(&key(number), &mut got).unwrap();
        let expected = model.get(&number).map(|&(round, len)| value(round, len));
        assert!(found.then_some(&got) == expected.as_ref());
    }
    let heap = index.heap();
    assert!(heap.moved_bytes > 0, "{heap:?}");
    for number in 0..150 {
        index.remove(&key(number)).unwrap();
    }
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(1));
        index.tidy();
    }
    let heap = index.heap();
    assert_eq!((heap.values, heap.live_bytes, heap.waiting_bytes, heap.gap_bytes), (0, 0, 0, 0), "{heap:?}");
    assert!(heap.returned_bytes > 0, "{heap:?}");
}

/// Puts values until no memory is left for another one; returns how many. Each is where it was put.
fn fill(index: &Index, first: u64, len: usize) -> u64 {
    for n in 0.. {
        match index.put(&key(first + n), &value(n, len), PutMode::Insert) {
            Ok(_) => {}
            Err(PutError::HeapFull { .. }) => return n,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

/// Memory that was given back to the system is taken again, as often as that happens: a table takes as many
/// values after the third time as after the first.
#[test]
fn memory_given_back_is_taken_again() {
    let growing = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(256) };
    for config in [config(8 << 20, 64 << 10), config(8 << 20, 64 << 10).size(growing).heap_bytes(None)] {
        let (index, clock) = table(config);
        let (mut put, mut returned) = (0, 0);
        for round in 0..3 {
            let now = fill(&index, 0, 60_000);
            assert!(round == 0 || now == put, "round {round}: {now} values, first {put}");
            put = now;
            (0..put).for_each(|n| assert_eq!(index.remove(&key(n)), Ok(true)));
            for _ in 0..1_000 {
                clock.advance(Duration::from_millis(1));
                index.tidy();
            }
            let heap = index.heap();
            assert!(heap.returned_bytes > returned && heap.live_bytes == 0, "{heap:?}");
            returned = heap.returned_bytes;
        }
    }
}

/// Segments and values of a table that grows take no more than its bytes together, whichever come first.
#[test]
fn segments_and_values_share_the_bytes() {
    for keys_first in [true, false] {
        let size = TableSize::Growing { bytes_max: 4 << 20, segment_slots: Some(256) };
        let (index, clock) = table(config(0, 64 << 10).size(size).heap_bytes(None));
        let put_keys = |most: u64| {
            let put = |n: &u64| {
                clock.advance(Duration::from_micros(5));
                index.put(&key(*n), b"short", PutMode::Insert).is_ok()
            };
            (0..most).take_while(put).count() as u64
        };
        let (keys, values) = match keys_first {
            true => (put_keys(8_000), fill(&index, 100_000, 60_000)),
            false => {
                let values = fill(&index, 100_000, 60_000);
                (put_keys(8_000), values)
            }
        };
        let (growth, heap, geometry) = (index.growth(), index.heap(), index.geometry());
        let segments = growth.segments * geometry.slots() * geometry.shape().bytes() as u64;
        let taken = segments + heap.open_blocks * heap.block_bytes;
        assert!(taken <= 4 << 20, "{keys} keys, {values} values: {growth:?}, {heap:?}");
        // What the ones have left, the others take.
        let is_shared = taken > 3 << 20 && (keys == 8_000) == keys_first;
        assert!(is_shared, "{keys} keys, {values} values: {taken} bytes");
    }
}

/// A table that grows takes no more than its bytes, also when another server has it: what it had taken before
/// counts, whether for segments or for values.
#[test]
fn a_takeover_takes_no_more_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(256) };
    let geometry = config(0, 64 << 10).size(size).heap_bytes(None).geometry().unwrap();
    let (bytes, first) = (geometry.region_bytes(), geometry.bytes_at_first());
    let region = Region::create_sparse(&Backing::File(path.clone()), bytes, first).unwrap();
    let clock = Clock::manual();
    let index = Index::create(region, geometry, clock.clone()).unwrap();
    for n in 0..15_000 {
        index.put(&key(n), &value(n, 30), PutMode::Insert).unwrap();
        clock.advance(Duration::from_micros(5));
    }
    let put = fill(&index, 100_000, 60_000);
    assert!(put > 20, "{put}");
    drop(index);
    let (index, _) = Index::open(Region::open(&path).unwrap(), clock.clone()).unwrap();
    clock.advance(Duration::from_secs(60));
    let more = fill(&index, 200_000, 60_000);
    assert!(more < put / 4, "{more} values more than {put}: {:?}", index.heap());
}

/// A table that has shrunk keeps memory for its next segments. The next server does not count what is behind
/// its last segment, so it gives that back. Full of values, the table then has no more than a new one.
#[test]
fn a_takeover_gives_back_what_it_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let size = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(32_768) };
    let geometry = config(0, 64 << 10).size(size).heap_bytes(None).geometry().unwrap();
    let segment = geometry.slots() * geometry.shape().bytes() as u64;
    let path = |name: &str| folder.path().join(name);
    let begin = |name: &str, clock: &Clock| {
        let (bytes, first) = (geometry.region_bytes(), geometry.bytes_at_first());
        let region = Region::create_sparse(&Backing::File(path(name)), bytes, first).unwrap();
        Index::create(region, geometry.clone(), clock.clone()).unwrap()
    };
    let new = begin("new", &Clock::manual());
    let empty = new.growth().bytes_backed;
    let in_new = (fill(&new, 200_000, 60_000), new.growth().bytes_backed);
    for is_stopped in [false, true] {
        let (name, clock) = (format!("stopped-{is_stopped}"), Clock::manual());
        let index = begin(&name, &clock);
        let mut keys = 0;
        while index.growth().segments < 6 {
            index.put(&key(keys), &value(keys, 30), PutMode::Insert).unwrap();
            clock.advance(Duration::from_micros(5));
            keys += 1;
        }
        (0..keys).for_each(|n| assert_eq!(index.remove(&key(n)), Ok(true)));
        // (Memory comes back when no thread looks at it any more, and other tests have threads, too.)
        let give_up = Instant::now() + Duration::from_secs(60);
        let mut shrunk = index.growth();
        while shrunk.segments > 1 || shrunk.bytes_returned == 0 {
            assert!(Instant::now() < give_up, "{shrunk:?}");
            index.shrink();
            index.tidy();
            clock.advance(GRACE);
            shrunk = index.growth();
        }
        assert!(shrunk.bytes_backed >= empty + segment, "{empty}, {shrunk:?}");
        #[cfg(feature = "sim")]
        assert!(!is_stopped || index.stop());
        drop(index);
        let (index, found) = Index::open(Region::open(&path(&name)).unwrap(), clock.clone()).unwrap();
        assert_eq!(found.handed_over, is_stopped && cfg!(feature = "sim"));
        let taken_over = index.growth().bytes_backed;
        // (Some file systems back neighbours, too.)
        assert!(taken_over < empty + segment / 2, "{empty}, {shrunk:?}, {taken_over}");
        // (X5: values wait.)
        clock.advance(Duration::from_secs(60));
        let put = fill(&index, 200_000, 60_000);
        let in_this = (put, index.growth().bytes_backed);
        assert!(put == in_new.0 && in_this.1 < in_new.1 + segment / 2, "{in_this:?}, {in_new:?}");
        assert_eq!(index.put(&key(0), &value(0, 30), PutMode::Insert), Ok(PutOutcome::Inserted));
    }
}

/// A table has shrunk to its last segment, which lies far behind memory that the system has back. The next server
/// counts what is there: values and segments take all that the table may take, and no more.
#[test]
fn a_takeover_counts_no_memory_that_is_gone() {
    const BYTES_MAX: u64 = 8 << 20;
    // (Some file systems back neighbours, too.)
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let size = TableSize::Growing { bytes_max: BYTES_MAX, segment_slots: Some(256) };
    let geometry = config(0, 16 << 10).size(size).heap_bytes(None).geometry().unwrap();
    let segment = geometry.slots() * geometry.shape().bytes() as u64;
    let first = geometry.segment_first(0).0;
    for is_stopped in [false, true] {
        let (path, clock) = (folder.path().join(format!("{is_stopped}")), Clock::manual());
        let (bytes, at_first) = (geometry.region_bytes(), geometry.bytes_at_first());
        let region = Region::create_sparse(&Backing::File(path.clone()), bytes, at_first).unwrap();
        let index = Index::create(region, geometry.clone(), clock.clone()).unwrap();
        let in_front = index.growth().bytes_backed - segment;
        let mut keys = 0;
        while index.growth().segments * segment < BYTES_MAX / 2 {
            index.put(&key(keys), b"short", PutMode::Insert).unwrap();
            clock.advance(Duration::from_micros(5));
            keys += 1;
        }
        while index.growth().splitting > 0 {
            index.tidy();
            clock.advance(GRACE);
        }
        // All keys, and the memory of their segments.
        let all_keys = || -> Vec<(u64, Vec<u8>)> {
            let all = Inspector::new(index.region(), &geometry).slots();
            let all = all.filter(|it| it.key.len() == 16 && it.slot.0 >= first);
            all.map(|it| ((it.slot.0 - first) / geometry.slots(), it.key)).collect()
        };
        // The keys of the last segment stay, and those of its sibling: too many for one segment.
        let all = all_keys();
        let far = all.iter().map(|it| it.0).max().unwrap();
        let place = |key: &[u8]| geometry.hashed(key).first().directory();
        let of_last: Vec<u32> = all.iter().filter(|it| it.0 == far).map(|it| place(&it.1)).collect();
        let depth = of_last.iter().map(|it| (it ^ of_last[0]).trailing_zeros()).min().unwrap();
        let both = (1 << (depth - 1)) - 1;
        let goes = (0..keys).map(key).filter(|key| (place(key) ^ of_last[0]) & both != 0);
        goes.for_each(|key| assert_eq!(index.remove(&key), Ok(true)));
        let give_up = Instant::now() + Duration::from_secs(60);
        let is_shrunk = || {
            let growth = index.growth();
            growth.segments <= 12 && growth.bytes_backed < in_front + (growth.segments + 4) * segment
        };
        while !is_shrunk() {
            assert!(Instant::now() < give_up, "{:?}", index.growth());
            index.shrink();
            index.tidy();
            clock.advance(GRACE);
        }
        assert!(
            far > 50 && all_keys().iter().any(|it| it.0 == far),
            "the last segment is not far behind: {far}"
        );
        #[cfg(feature = "sim")]
        assert!(!is_stopped || index.stop());
        drop(index);
        let (index, _) = Index::open(Region::open(&path).unwrap(), clock.clone()).unwrap();
        // (X5: values wait.)
        clock.advance(Duration::from_secs(60));
        let values = fill(&index, 1 << 32, 16_000);
        let (heap, growth) = (index.heap(), index.growth());
        let unused = BYTES_MAX - heap.open_blocks * heap.block_bytes - growth.segments * segment;
        assert!(unused < 16 * segment, "{values} values leave {unused}: {growth:?}, {heap:?}");
        let is_removed = |n| index.remove(&key((1 << 32) + n)) == Ok(true);
        assert!((0..values).all(is_removed));
        (0..1_000).for_each(|_| {
            clock.advance(Duration::from_millis(1));
            index.tidy();
        });
        let put = |n: &u64| {
            clock.advance(Duration::from_micros(5));
            index.put(&key((1 << 33) + n), b"short", PutMode::Insert).is_ok()
        };
        let shorts = (0..1 << 20).take_while(put).count();
        let backed = index.growth().bytes_backed;
        assert!(backed > BYTES_MAX * 9 / 10, "{shorts} short keys, {backed} bytes");
        assert!(backed <= BYTES_MAX + in_front, "{shorts} short keys, {backed} bytes");
    }
}

/// A takeover after a stop, and after a kill: all values are there, and what no slot names is free.
#[test]
fn takeovers() {
    let folder = tempfile::tempdir().unwrap();
    for is_stopped in [false, true] {
        let path = folder.path().join(format!("region-{is_stopped}"));
        let geometry = config(8 << 20, 64 << 10).geometry().unwrap();
        let region = Region::create(&Backing::File(path.clone()), geometry.region_bytes()).unwrap();
        let clock = Clock::manual();
        let index = Index::create(region, geometry, clock.clone()).unwrap();
        for n in 0..100 {
            index.put(&key(n), &value(n, 20_000), PutMode::Insert).unwrap();
        }
        (0..50).for_each(|n| assert_eq!(index.remove(&key(n)), Ok(true)));
        (50..75).for_each(|n| assert!(index.put(&key(n), &value(n + 7, 30_000), PutMode::Update).is_ok()));
        let before = index.heap();
        #[cfg(feature = "sim")]
        assert!(!is_stopped || index.stop());
        drop(index);
        let (index, found) = Index::open(Region::open(&path).unwrap(), clock.clone()).unwrap();
        assert_eq!(
            (found.keys, found.misplaced, found.handed_over),
            (50, 0, is_stopped && cfg!(feature = "sim")),
            "{found:?}"
        );
        let heap = index.heap();
        assert_eq!((heap.values, heap.live_bytes), (50, before.live_bytes), "{heap:?}");
        let mut got = Vec::new();
        for n in 50..100 {
            assert_eq!(index.reader().get_into(&key(n), &mut got), Ok(true));
            assert!(got == if n < 75 { value(n + 7, 30_000) } else { value(n, 20_000) });
        }
        for n in 100..300 {
            index.put(&key(n % 150), &value(n, 25_000), PutMode::Upsert).unwrap();
            assert_eq!(index.reader().get_into(&key(n % 150), &mut got), Ok(true));
            assert!(got == value(n, 25_000));
        }
    }
}

/// A table that grows: segments and values share its memory; splits, merges and takeovers keep every value.
#[test]
fn a_table_that_grows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let size = TableSize::Growing { bytes_max: 8 << 20, segment_slots: Some(256) };
    let config = Config::new().size(size).key_max(16).value_max(32 << 10).inline_max(64).grace(GRACE);
    let geometry = config.seeds(Seeds::from_number(5)).geometry().unwrap();
    assert!(geometry.has_heap());
    let region = Region::create_sparse(
        &Backing::File(path.clone()),
        geometry.region_bytes(),
        geometry.bytes_at_first(),
    );
    let clock = Clock::manual();
    let mut index = Index::create(region.unwrap(), geometry, clock.clone()).unwrap();
    let len = |n: u64| if n.is_multiple_of(3) { 2_000 } else { 30 };
    let mut got = Vec::new();
    for n in 0..3_000 {
        assert_eq!(index.put(&key(n), &value(n, len(n)), PutMode::Insert), Ok(PutOutcome::Inserted), "{n}");
        clock.advance(Duration::from_micros(5));
        if n % 700 == 699 {
            drop(index);
            let (taken_over, found) = Index::open(Region::open(&path).unwrap(), clock.clone()).unwrap();
            assert_eq!((found.keys, found.misplaced), (n + 1, 0));
            index = taken_over;
        }
    }
    assert!(index.growth().segments > 4 && index.heap().values == 1_000, "{:?}", index.growth());
    let all_there = |index: &Index, got: &mut Vec<u8>, from: u64| {
        for n in 0..3_000 {
            assert_eq!(index.reader().get_into(&key(n), got), Ok(n >= from), "{n}");
            assert!(n < from || *got == value(n, len(n)), "{n}");
        }
    };
    all_there(&index, &mut got, 0);
    // Values take what segments leave.
    let refused = (10_000..).find_map(|n| index.put(&key(n), &value(n, 30_000), PutMode::Insert).err());
    assert!(matches!(refused, Some(PutError::HeapFull { .. })), "{refused:?}");
    for n in 0..2_500 {
        assert_eq!(index.remove(&key(n)), Ok(true));
        clock.advance(Duration::from_micros(20));
        index.tidy();
    }
    all_there(&index, &mut got, 2_500);
    assert!(index.growth().merges > 0, "{:?}", index.growth());
}

/// A snapshot has long values, and puts them into a table with other slots and another heap.
#[test]
fn snapshots_have_long_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    let (index, _) = table(config(64 << 20, 1 << 20));
    let len = |n: u64| [20, 300, 70_000, 900_000][n as usize % 4];
    (0..60).for_each(|n| assert!(index.put(&key(n), &value(n, len(n)), PutMode::Insert).is_ok()));
    let saved = index.save(&path, &mut |_, _| true).unwrap();
    assert_eq!((saved.keys, saved.damaged), (60, 0));
    let snapshot = oneread::snapshot::Snapshot::open(&path).unwrap();
    let (other, _) = table(config(128 << 20, 2 << 20).inline_max(400).layout("farm".parse().unwrap()));
    assert_eq!(other.restore_from(&snapshot, &mut |_, _| {}).unwrap().keys, 60);
    let mut got = Vec::new();
    for n in 0..60 {
        assert_eq!(other.reader().get_into(&key(n), &mut got), Ok(true));
        assert!(got == value(n, len(n)));
    }
    let (small, _) = table(config(8 << 20, 100_000));
    let error = small.restore_from(&snapshot, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("value"), "{error}");
}

/// A long value whose bytes are damaged is not shown for what it was.
#[test]
fn a_damaged_value_is_not_shown() {
    let (index, _) = table(config(8 << 20, 64 << 10));
    index.put(b"key", &value(1, 9_000), PutMode::Insert).unwrap();
    let inspector = oneread::internals::inspect::Inspector::new(index.region(), index.geometry());
    let report = inspector.slots().find(|report| report.key == b"key").unwrap();
    assert_eq!(inspector.value(&report), Some(value(1, 9_000)));
    let word = report.reference().unwrap().offset as usize / 8 + 100;
    index.region().store(word, !index.region().load(word));
    assert_eq!(inspector.value(&report), None);
}
