use super::Extents;
use crate::base::clock::Clock;
use crate::config::{Config, Evict, TableSize};
use crate::index::Index;
use crate::index::budget::Registrar;
use crate::layout::hash::First;
use crate::outcome::{PutError, PutMode, PutOutcome};
use crate::region::{Region, RegionError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Refuses memory as often as it says.
struct RefusingBlocks(AtomicU64);

impl Registrar for RefusingBlocks {
    fn before_use(&self, _memory: u32) -> Result<(), RegionError> {
        unreachable!("the table has one size")
    }

    fn before_use_of_block(&self, _block: u64) -> Result<(), RegionError> {
        let fewer = |times: u64| times.checked_sub(1);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
            Ok(_) => Err(RegionError::NoRoom { need: 1, left: 0, of: "the device".into() }),
            Err(_) => Ok(()),
        }
    }
}

/// Memory that the system does not take back counts as before, and is used again. The next server, for which
/// no device has pinned it yet, gives it back.
#[test]
fn memory_that_is_kept_counts() {
    const BYTES_MAX: u64 = 8 << 20;
    // (Some file systems back neighbours, too.)
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = folder.path().join("region");
    let size = TableSize::Growing { bytes_max: BYTES_MAX, segment_slots: Some(256) };
    let config = Config { size, value_max: 16 << 10, ..Config::short() }.inline_max(30);
    let geometry = config.geometry().unwrap();
    let backing = crate::region::Backing::File(path.clone());
    let region = Region::create_sparse(&backing, geometry.region_bytes(), geometry.bytes_at_first()).unwrap();
    region.touch(0..4096, |_| {});
    let clock = Clock::manual();
    let index = Index::create(region, geometry, clock.clone()).unwrap();
    let at_first = index.growth().bytes_backed;
    let fill = |kind: u64, value: &[u8]| {
        let put = |n: &u64| {
            clock.advance(Duration::from_micros(5));
            index.put(&(kind << 32 | n).to_le_bytes(), value, PutMode::Insert).is_ok()
        };
        let put = (0..).take_while(put).count() as u64;
        let backed = index.growth().bytes_backed;
        assert!(backed <= BYTES_MAX + at_first, "{put} of {} bytes: {backed}", value.len());
        put
    };
    let remove = |kind: u64, many: u64| {
        (0..many).for_each(|n| assert!(index.remove(&(kind << 32 | n).to_le_bytes()).unwrap()));
        for _ in 0..1_000 {
            clock.advance(Duration::from_millis(1));
            index.tidy();
        }
    };
    let long = fill(1, &[7; 16_000]);
    remove(1, long);
    assert_eq!((index.heap().live_bytes, index.heap().returned_bytes), (0, 0));
    let backed = index.growth().bytes_backed;
    let short = fill(2, b"short");
    assert!(short < 2_000, "{short} keys beside memory for {long} long values");
    remove(2, short);
    assert_eq!(fill(3, &[7; 16_000]), long, "the memory that was kept");
    remove(3, long);
    assert!(index.growth().bytes_backed >= backed);
    drop(index);
    let (index, _) = Index::open(Region::open(&path).unwrap(), clock).unwrap();
    assert!(index.growth().bytes_backed < BYTES_MAX / 4, "{:?}", index.growth());
}

/// Memory that was refused was not taken: however often that happens, there is as much as before.
#[test]
fn refused_memory_does_not_count() {
    const TIMES: u64 = 100;
    let config = Config { size: TableSize::Slots(64), value_max: 1_000, ..Config::short() };
    let geometry = config.inline_max(30).heap_bytes(64 << 10).geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    let index = Index::create(region, geometry, Clock::manual()).unwrap();
    let refusing: Arc<dyn Registrar> = Arc::new(RefusingBlocks(TIMES.into()));
    index.table().extents().unwrap().register_with(Arc::downgrade(&refusing));
    for _ in 0..TIMES {
        let refused = index.put(b"key", &[1; 1_000], PutMode::Insert);
        assert_eq!(refused, Err(PutError::HeapMemory { given: 1_000 }));
        assert_eq!((index.heap().live_bytes, index.heap().values), (0, 0));
    }
    assert_eq!(index.put(b"key", &[1; 1_000], PutMode::Insert), Ok(PutOutcome::Inserted));
}

/// Takes memory of a block while another thread has it made ready, and counts how often that is done.
struct MeanwhileAnother {
    extents: OnceLock<Weak<Extents>>,
    made_ready: AtomicU64,
}

impl Registrar for MeanwhileAnother {
    fn before_use(&self, _memory: u32) -> Result<(), RegionError> {
        unreachable!("the table has one size")
    }

    fn before_use_of_block(&self, block: u64) -> Result<(), RegionError> {
        if self.made_ready.fetch_add(1, Ordering::Relaxed) == 0 {
            let extents = self.extents.get().and_then(Weak::upgrade).unwrap();
            assert!(extents.blocks_used().is_empty(), "no slot may name memory in it yet");
            let draft = extents.draft(First(1), 1_000).map_err(|_| "refused").unwrap();
            assert_eq!(self.made_ready.load(Ordering::Relaxed), 2, "it is not ready: another one sees to it");
            assert_eq!(extents.blocks_used(), [block]);
            drop(draft);
        }
        Ok(())
    }
}

/// E0: a thread that takes memory of a block while another one has it made ready does not go on before it is.
#[test]
fn a_block_is_ready_for_each_thread_that_uses_it() {
    let config = Config { size: TableSize::Slots(64), value_max: 1_000, ..Config::short() };
    let geometry = config.inline_max(30).heap_bytes(64 << 10).geometry().unwrap();
    let region = Region::private(geometry.region_bytes());
    let index = Index::create(region, geometry, Clock::manual()).unwrap();
    let extents = index.table().extents().unwrap();
    let another = MeanwhileAnother { extents: OnceLock::new(), made_ready: AtomicU64::new(0) };
    another.extents.set(Arc::downgrade(extents)).unwrap();
    let another = Arc::new(another);
    let registrar: Arc<dyn Registrar> = another.clone();
    extents.register_with(Arc::downgrade(&registrar));
    assert_eq!(index.put(b"key", &[1; 1_000], PutMode::Insert), Ok(PutOutcome::Inserted));
    assert_eq!(another.made_ready.load(Ordering::Relaxed), 2);
}

/// Gives memory for so many blocks, and refuses more. Counts how often it was asked.
struct SomeBlocks {
    blocks: AtomicU64,
    asked: AtomicU64,
}

impl Registrar for SomeBlocks {
    fn before_use(&self, _memory: u32) -> Result<(), RegionError> {
        Ok(())
    }

    fn before_use_of_block(&self, _block: u64) -> Result<(), RegionError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let fewer = |blocks: u64| blocks.checked_sub(1);
        match self.blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer) {
            Ok(_) => Ok(()),
            Err(_) => Err(RegionError::NoRoom { need: 1, left: 0, of: "the system".into() }),
        }
    }
}

/// A table that grows, to whose heap the system gives this number of blocks.
fn with_some_blocks(blocks: u64) -> (Index, Clock, Arc<SomeBlocks>) {
    let size = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(256) };
    let config = Config { size, value_max: 16 << 10, ..Config::short() }.inline_max(30);
    let geometry = config.geometry().unwrap();
    let clock = Clock::manual();
    let index = Index::create(Region::private(geometry.region_bytes()), geometry, clock.clone()).unwrap();
    let some = Arc::new(SomeBlocks { blocks: blocks.into(), asked: 0.into() });
    let registrar: Arc<dyn Registrar> = some.clone();
    index.table().extents().unwrap().register_with(Arc::downgrade(&registrar));
    (index, clock, some)
}

/// The system refuses memory long before the table has all that it may have. In one that evicts, others leave for a value, as if
/// it were full.
#[test]
fn values_make_room_where_the_system_refuses_memory() {
    const PUTS: u64 = 2_000;
    let value = [7; 16_000];
    for (policy, _) in Evict::ALL {
        let (index, clock, some) = with_some_blocks(4);
        let index = index.with_eviction(policy).unwrap();
        for n in 0..PUTS {
            clock.advance(Duration::from_micros(5));
            assert_eq!(
                index.put(&n.to_le_bytes(), &value, PutMode::Insert),
                Ok(PutOutcome::Inserted),
                "{policy} {n}"
            );
        }
        let (gone, heap) = (index.evictions(), index.heap());
        assert!(gone.for_heap > PUTS / 2, "{policy}: {gone:?}");
        assert!(heap.values > 8 && heap.values < PUTS / 2, "{policy}: {heap:?}");
        let last = index.reader().get_into(&(PUTS - 1).to_le_bytes(), &mut Vec::new());
        assert_eq!(last, Ok(true), "{policy}");
        // Each time takes a put a millisecond.
        let (asked, seconds) = (some.asked.load(Ordering::Relaxed), clock.now_ns() / 1_000_000_000);
        assert!(asked <= 4 + seconds + 1, "{policy}: asked {asked} times in {seconds} s");
    }
    // Nothing may leave: the put says who refused, and the next one asks again.
    let (index, _, some) = with_some_blocks(4);
    let refused =
        (0..PUTS).map(|n| index.put(&n.to_le_bytes(), &value, PutMode::Insert)).find_map(Result::err);
    assert_eq!(refused, Some(PutError::HeapMemory { given: 16_000 }));
    some.blocks.store(1, Ordering::Relaxed);
    assert_eq!(index.put(b"next", &value, PutMode::Insert), Ok(PutOutcome::Inserted));
}
