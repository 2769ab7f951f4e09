use super::error::preset_names;
use super::*;
use crate::layout::extent::{HEAP_BYTES_MAX, HeapSpace, VALUE_MAX, block_bytes, extent_bytes};
use crate::layout::geometry::{Family, Geometry, Layout, SEGMENT_HOMES_MAX};
use crate::layout::hash::Seeds;
use crate::layout::slot::KEY_MAX;
use crate::placement::families::presets;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use std::time::Duration;

/// Two errors are the same if they show the same: an [`io::Error`] cannot be compared.
impl PartialEq for ConfigError {
    fn eq(&self, other: &ConfigError) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

fn parsed(text: &str) -> Layout {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn made(layout: Layout, size: TableSize) -> Result<Geometry, ConfigError> {
    Config { layout, size, seeds: Some(Seeds::from_number(1)), ..Config::short() }.geometry()
}

/// A table that grows is made of as many bytes as its refusal asks for, and of not one less.
#[test]
fn a_growing_table_needs_what_it_says() {
    for layout in ["windowed:8", "farm", "list"] {
        let of =
            |bytes_max| made(parsed(layout), TableSize::Growing { bytes_max, segment_slots: Some(1 << 10) });
        let Err(ConfigError::TooSmall { given: 4096, need }) = of(4096) else { panic!("{layout}") };
        assert_eq!(of(need).unwrap().segments_max(), 1, "{layout}");
        assert_eq!(of(need - 1), Err(ConfigError::TooSmall { given: need - 1, need }), "{layout}");
    }
}

/// A size that a refusal asks for is taken, and not one byte less: with values that need a heap of their
/// own, too, in one budget or with one that was asked for.
#[test]
fn what_a_refusal_asks_for_is_taken() {
    let growing = |bytes_max| TableSize::Growing { bytes_max, segment_slots: None };
    for value_max in [78, 5_000, 10_000, 1 << 20, VALUE_MAX] {
        let of = |bytes_max| Config { size: growing(bytes_max), value_max, ..Config::short() }.geometry();
        let Err(ConfigError::TooSmall { given: 4096, need }) = of(4096) else { panic!("{value_max}") };
        assert!(of(need).is_ok(), "{value_max}: {need}");
        assert_eq!(of(need - 1), Err(ConfigError::TooSmall { given: need - 1, need }), "{value_max}");
        let of = |heap_bytes| {
            let config = Config { value_max, heap_bytes: Some(heap_bytes), ..Config::short() };
            config.geometry()
        };
        let Err(ConfigError::HeapBytes { need, .. }) = of(1) else { panic!("{value_max}") };
        assert!(of(need).is_ok() && of(need - 1).is_err(), "{value_max}: {need}");
    }
    // More than a heap may have: the slots have the rest.
    let most = Config { size: growing(2 * HEAP_BYTES_MAX), value_max: 10_000, ..Config::short() };
    assert!(most.geometry().unwrap().heap().bytes <= HEAP_BYTES_MAX);
    // What is too long is named: here values that are to stand in their slots.
    let inline = Config { inline_max: Some(5_000), ..most }.geometry().unwrap_err();
    let ConfigError::InlineMax { key_inline: 32, inline_max: 5_000, room } = inline else {
        panic!("{inline}")
    };
    assert!(Config { inline_max: Some(room - 32), ..most }.geometry().is_ok());
}

/// What is said of long values is done: how much memory they have, and which of them stand in slots.
#[test]
fn long_values_have_the_memory_that_was_asked_for() {
    let slots = TableSize::Slots(1 << 10);
    let growing = TableSize::Growing { bytes_max: 64 << 20, segment_slots: Some(256) };
    let config = |size| Config { size, value_max: 10_000, ..Config::short() };
    for size in [slots, growing] {
        let given = Config { heap_bytes: Some(8 << 20), ..config(size) };
        let geometry = given.geometry().unwrap();
        // Less what its books take.
        assert!((7 << 20..=8 << 20).contains(&geometry.heap().bytes), "{size:?}: {:?}", geometry.heap());
        assert_eq!(geometry.value_max(), 10_000);
    }
    // A table that grows has one budget for slots and values.
    assert!(config(growing).geometry().unwrap().heap().bytes > 60 << 20);
    // No slot has room for longer values than there are.
    let shape = |value_max, inline_max| {
        let config = Config { value_max, inline_max: Some(inline_max), ..config(growing) };
        config.geometry().unwrap().shape()
    };
    assert_eq!(shape(100, 100_000), shape(100, 100));
    assert!(shape(10_000, 500).bytes() > shape(10_000, 100).bytes());
}

/// The table of any configuration is made again from what it is, and from any part of what it was made from
/// beside that.
#[test]
fn every_table_is_made_again() {
    // Of all lengths as many short ones as long ones.
    let up_to = |bits: u32| (0..bits, any::<u64>()).prop_map(|(bits, n)| n & ((2 << bits) - 1));
    let layouts: Vec<Layout> = presets().map(|preset| preset.layout).collect();
    let own = Layout { bucket_slots: 3, window_buckets: 4, ..parsed("pilaf") };
    let layout = proptest::sample::select([layouts, vec![own]].concat());
    let segment_slots = proptest::option::of(up_to(16).prop_map(|n| n.max(8)));
    let growing = (up_to(44), segment_slots)
        .prop_map(|(bytes_max, segment_slots)| TableSize::Growing { bytes_max, segment_slots });
    let size = prop_oneof![
        up_to(36).prop_map(TableSize::Keys),
        up_to(36).prop_map(TableSize::Slots),
        growing.clone(),
        growing
    ];
    let length = |bits| up_to(bits).prop_map(|n| n as usize);
    let key_inline = proptest::option::of(0..=KEY_MAX);
    let lengths = (1..=KEY_MAX, key_inline, length(26), proptest::option::of(length(13)));
    let heap_bytes = proptest::option::of(up_to(44));
    let made = [const { std::cell::Cell::new(0u32) }; 4];
    let given = (layout, size, lengths, heap_bytes, any::<u64>(), 0..1_000_000u64);
    proptest!(ProptestConfig::with_cases(2_048), |((layout, size, (key_max, key_inline, value_max, inline_max), heap_bytes, seed, ns) in given)| {
        let grace = Duration::from_nanos(ns);
        let seeds = Some(Seeds::from_number(seed));
        let asked =
            Config { layout, size, key_max, key_inline, value_max, inline_max, heap_bytes, life: seed.is_multiple_of(3), owners: seed.is_multiple_of(6), grace, seeds };
        let Ok(table) = asked.geometry() else { return Ok(()) };
        let kind = &made[usize::from(table.grows()) + 2 * usize::from(table.has_heap())];
        kind.set(kind.get() + 1);
        let as_it_is = Config::from(&table);
        for parts in 0..16 {
            let is_given = |part: u32| parts >> part & 1 == 1;
            let again = Config {
                size: if is_given(0) { size } else { as_it_is.size },
                inline_max: inline_max.filter(|_| is_given(1)).or(as_it_is.inline_max),
                heap_bytes: heap_bytes.filter(|_| is_given(2)).or(as_it_is.heap_bytes),
                key_inline: key_inline.filter(|_| is_given(3)).or(as_it_is.key_inline),
                ..as_it_is
            };
            let made = again.geometry().map(|made| made.with_generation(table.generation()));
            prop_assert_eq!(made, Ok(table.clone()), "{:?}", again);
        }
    });
    let made = made.map(std::cell::Cell::into_inner);
    assert!(made.iter().all(|&tables| tables >= 10), "of one size, growing, and each with a heap: {made:?}");
}

/// Without a word about lengths, keys of up to 255 bytes and values of up to 1 MiB fit. Slots have two lines,
/// and no more than a slot's memory is set aside for long keys and values beside it.
#[test]
fn the_default_takes_ordinary_data() {
    let sized = |size| Config::new().size(size).geometry().unwrap();
    for keys in [1, 100, 1_000_000] {
        let it = sized(TableSize::Keys(keys));
        assert_eq!((it.key_max(), it.value_max(), it.shape().bytes()), (255, 1 << 20, 128));
        assert_eq!(it.key_inline(), 86);
        let slots = it.main_slots() * 128;
        let need = 2 * block_bytes(0, extent_bytes(255 + (1 << 20)));
        let heap = it.heap();
        assert!(heap.bytes <= slots.max(need) && heap.bytes + 2 * heap.block_bytes > slots, "{heap:?}");
        assert!(heap.bytes >= 2 * heap.block_bytes, "{heap:?}");
        // The empty table takes memory for its slots alone.
        assert!(it.bytes_at_first() < slots + (64 << 10));
    }
    let growing = sized(TableSize::up_to(1 << 30));
    assert_eq!((growing.key_max(), growing.value_max(), growing.shape().bytes()), (255, 1 << 20, 128));
    assert!(growing.has_heap() && growing.bytes_max() <= 1 << 30);
    // With what is inline, and what is not.
    let it = sized(TableSize::Keys(100));
    for (key, value, inline) in
        [(1, 109, true), (86, 24, true), (32, 78, true), (86, 25, false), (1, 110, false), (87, 0, false)]
    {
        assert_eq!(it.is_inline(&vec![0; key], value), inline, "{key}, {value}");
    }
}

/// What is said of lengths means the same for a table of one size and for one that grows: values that slots
/// can hold stand in slots, all others have a heap.
#[test]
fn lengths_mean_the_same_in_both_sizes() {
    for size in [TableSize::Slots(1 << 10), TableSize::up_to(64 << 20)] {
        let of = |config: Config| {
            let geometry = config.size(size).geometry().unwrap();
            (geometry.shape().bytes(), geometry.has_heap())
        };
        let it = Config::short();
        assert_eq!(of(it), (128, false));
        assert_eq!(of(it.value_max(200)), (256, false));
        assert_eq!(of(it.value_max(3_900)), (4_096, false));
        assert_eq!(of(it.value_max(4_000)), (128, true));
        assert_eq!(of(it.value_max(200).inline_max(200)), (256, false));
        assert_eq!(of(it.value_max(200).inline_max(100)), (192, true));
        assert_eq!(of(it.value_max(200).heap_bytes(1 << 20)), (128, true));
        assert_eq!(of(Config::new()), (128, true));
        assert_eq!(of(Config::new().key_inline(255)), (320, true));
        assert_eq!(of(Config::new().key_max(86)), (128, true));
        assert_eq!(of(Config::new().life(true)), (128, true));
        // In slots of one line, whose entries have no life, there is room for what a slot has of a long key.
        assert_eq!(of(Config::new().key_inline(0).inline_max(0)), (64, true));
        assert_eq!(of(Config::new().key_inline(24).inline_max(0)), (64, true));
        assert_eq!(of(Config::new().key_inline(25).inline_max(0)), (128, true));
        assert_eq!(of(Config::new().key_inline(0).inline_max(0).life(true)), (128, true));
        assert_eq!(of(it.key_inline(31)), (128, true));
        assert_eq!(of(Config::new().inline_max(200)), (320, true));
        assert_eq!(of(Config::new().inline_max(0)), (128, true));
        assert_eq!(of(Config::new().key_max(16).inline_max(24)), (64, true));
        assert_eq!(of(Config::new().value_max(32)), (192, true));
        assert_eq!(of(Config::new().value_max(200)), (320, true));
        assert_eq!(of(Config::new().key_max(86).value_max(32)), (192, false));
    }
}

/// A heap is shorter than what was asked for by less than two of its blocks. Asked for with its own length, it
/// is the same.
#[test]
fn heaps_are_rounded_down_a_little() {
    for longest in [100, 5_000, 1 << 20, VALUE_MAX] {
        let more = |bits: u32| [0, 1, 4_096, 1 << (bits - 1), (1 << (bits - 8)) - 1];
        for given in (16..46).flat_map(|bits| more(bits).map(|more| (1u64 << bits) + more)) {
            let Some(heap) = HeapSpace::behind(0, given, longest) else { continue };
            let (lost, part) = (given - heap.bytes, heap.bytes / heap.block_bytes);
            assert!(lost < 2 * heap.block_bytes, "{lost} of {given}, {longest}");
            assert!(part > 500 || heap.block_bytes < 4 * extent_bytes(longest) + 4_096, "{part}");
            assert_eq!(HeapSpace::behind(0, heap.bytes, longest), Some(heap), "{given}");
        }
    }
}

#[test]
fn layouts_are_found_by_name() {
    let names: Vec<_> = presets().map(|p| p.layout.to_string()).collect();
    assert_eq!(names.len(), 11);
    assert_eq!(preset_names(), names.join(", "));
    for preset in presets() {
        assert_eq!(preset.layout.preset().map(|p| p.name), Some(preset.name));
        assert_eq!(parsed(preset.name), preset.layout);
        assert_eq!(parsed(&preset.layout.to_string()), preset.layout);
    }
    for (short, long) in [
        ("cuckoo", "cuckoo:windowed:8"),
        ("hopscotch", "hopscotch:farm"),
        ("chained", "chained:cluster"),
        ("windowed", "windowed:8"),
        ("hopscotch:slotwise", "slotwise:8"),
    ] {
        assert_eq!(parsed(short), parsed(long), "{short}");
    }
    for given in ["", ":", "windowed:9", "windowed:", "Pilaf", "cuckoo:farm", "farm:cuckoo", "windowed:8:1"] {
        let unknown = ConfigError::UnknownLayout { given: given.into() };
        assert!(unknown.to_string().ends_with(&preset_names()));
        assert_eq!(given.parse::<Layout>(), Err(unknown));
    }
    let own = Layout { bucket_slots: 3, ..parsed("bucketized:4") };
    assert_eq!((own.preset().map(|p| p.name), own.to_string()), (None, "cuckoo:d=2,b=3,w=1".into()));
}

/// Every layout is parsed back from its displayed form.
#[test]
fn layouts_are_parsed_as_they_are_displayed() {
    let family = prop_oneof![Just(Family::Cuckoo), Just(Family::Hopscotch), Just(Family::Chained)];
    let numbers = (0..4u32, any::<u32>(), 0..70u32, prop_oneof![Just(0), Just(4), any::<u32>()]);
    proptest!(|((choices, bucket_slots, window_buckets, block_slots) in numbers, family in family)| {
        let layout = Layout { family, choices, bucket_slots, window_buckets, block_slots };
        prop_assert_eq!(layout.to_string().parse(), Ok(layout));
    });
    for given in [
        "cuckoo:d=2,b=3",
        "cuckoo:d=2,b=3,w=4,o=",
        "cuckoo:d=2,b=3,w=4,",
        "d=2,b=3,w=4",
        "cuckoo:b=3,d=2,w=4",
        "cuckoo:d=2,b=3,w=4,o=1,x=1",
        "cuckoo:d=-2,b=3,w=4",
        "cuckoo:d=2,b=99999999999,w=4",
    ] {
        assert!(given.parse::<Layout>().is_err(), "{given}");
    }
}

/// Each row: layout, size, then homes, main slots, overflow blocks and all slots.
#[test]
fn sizes_are_rounded_to_whole_buckets() {
    let own = Layout { bucket_slots: 3, window_buckets: 4, ..parsed("pilaf") };
    for (layout, size, expected) in [
        (parsed("windowed:8"), TableSize::Keys(1_000_000), [1_111_112, 1_111_119, 0, 1_111_119]),
        (parsed("windowed:8"), TableSize::Slots(1_000), [993, 1_000, 0, 1_000]),
        (parsed("windowed:8"), TableSize::Slots(1), [1, 8, 0, 8]),
        (parsed("windowed:8"), TableSize::Keys(1), [2, 9, 0, 9]),
        (parsed("bucketized:4"), TableSize::Slots(1_003), [250, 1_000, 0, 1_000]),
        (parsed("bucketized:4"), TableSize::Keys(850), [250, 1_000, 0, 1_000]),
        (parsed("bucketized:4"), TableSize::Keys(851), [251, 1_004, 0, 1_004]),
        (parsed("pilaf"), TableSize::Slots(2), [2, 2, 0, 2]),
        // Two buckets of 4 per window, blocks of 4: half as many overflow slots as main slots.
        (parsed("farm"), TableSize::Slots(1_000), [249, 1_000, 125, 1_500]),
        (parsed("farm"), TableSize::Slots(8), [1, 8, 4, 24]),
        (parsed("cluster"), TableSize::Keys(8_001), [1_251, 10_008, 626, 15_016]),
        (parsed("list"), TableSize::Slots(9), [9, 9, 5, 14]),
        // A layout without a preset is sized for a load of 75 %.
        (own, TableSize::Keys(900), [400, 1_209, 0, 1_209]),
    ] {
        let it = made(layout, size).unwrap();
        let found = [it.homes(), it.main_slots(), it.overflow_blocks(), it.slots()];
        assert_eq!(found, expected, "{layout} {size:?}");
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    let most_links = (1 << 25) - 2;
    for (name, max) in [
        ("windowed:8", 1 << 40),
        ("pilaf", 1 << 40),
        ("farm", 4 * most_links),
        ("list", most_links),
        ("cluster", 8 * most_links),
    ] {
        let layout = parsed(name);
        assert_eq!(made(layout, TableSize::Slots(max)).unwrap().main_slots(), max);
        let bucket = u64::from(layout.bucket_slots);
        for (given, unit, size) in [
            (max + bucket, "slots", TableSize::Slots(max + bucket)),
            (max, "keys", TableSize::Keys(max)),
            (u64::MAX, "slots", TableSize::Slots(u64::MAX)),
            (u64::MAX, "keys", TableSize::Keys(u64::MAX)),
        ] {
            assert_eq!(made(layout, size), Err(ConfigError::TooLarge { given, unit, max }), "{name}");
        }
        for (unit, size) in [("slots", TableSize::Slots(0)), ("keys", TableSize::Keys(0))] {
            assert_eq!(made(layout, size), Err(ConfigError::ZeroCapacity { unit }), "{name}");
        }
        // The largest table with nearly the largest slots: no size overflows, and a link
        // can number each block.
        let config = Config { size: TableSize::Slots(max), layout, value_max: 3_000, ..Config::short() };
        let it = config.geometry().unwrap();
        assert!(
            it.region_bytes() == it.table_offset() + it.slots() * it.shape().bytes() as u64
                && it.overflow_blocks() < 1 << 24
        );
    }
}

#[test]
fn lengths_and_times_out_of_range_are_refused() {
    let made = |key_max, value_max, grace| {
        let seeds = Some(Seeds::from_number(1));
        let config =
            Config { key_max, key_inline: Some(key_max), value_max, grace, seeds, ..Config::default() };
        config.geometry().map(|it| it.shape().bytes())
    };
    // The room of the largest slot, as docs/FORMAT.md counts it.
    let room = 48 + 63 * 62;
    let ms = Duration::from_millis(1);
    assert_eq!(made(1, 0, ms), Ok(32));
    assert_eq!(made(255, room - 255, ms), Ok(4096));
    assert_eq!(made(8, 8, Duration::ZERO), Ok(32));
    assert_eq!(made(8, 8, Duration::from_secs(60)), Ok(32));
    for given in [0, 256, usize::MAX] {
        assert_eq!(made(given, 8, ms), Err(ConfigError::KeyMax { given }));
    }
    // Longer values have a heap, and slots of their own size no more.
    assert_eq!(made(255, room - 254, ms), Ok(320));
    assert_eq!(made(86, VALUE_MAX, ms), Ok(128));
    for given in [VALUE_MAX + 1, usize::MAX] {
        assert_eq!(made(255, given, ms), Err(ConfigError::LongestValue { given }));
    }
    let given = Duration::from_nanos(60_000_000_001);
    assert_eq!(made(8, 8, given), Err(ConfigError::Grace { given }));
}

#[test]
fn impossible_layouts_are_refused() {
    let (cuckoo, hopscotch, chained) = (parsed("cuckoo"), parsed("hopscotch"), parsed("chained"));
    let numbers = |layout, choices, bucket_slots, window_buckets, block_slots| Layout {
        choices,
        bucket_slots,
        window_buckets,
        block_slots,
        ..layout
    };
    for layout in [
        numbers(cuckoo, 2, 1, 1, 0),
        numbers(cuckoo, 3, 64, 1, 0),
        numbers(cuckoo, 3, 1, 64, 0),
        numbers(hopscotch, 1, 1, 64, 64),
        numbers(hopscotch, 1, 8, 8, 1),
        numbers(chained, 1, 64, 1, 64),
    ] {
        assert!(made(layout, TableSize::Slots(1_000)).is_ok(), "{layout:?}");
    }
    let window = "bucket_slots * window_buckets";
    for (layout, field, value, allowed) in [
        (numbers(cuckoo, 1, 4, 2, 0), "choices", 1, "2 to 3"),
        (numbers(cuckoo, 4, 4, 2, 0), "choices", 4, "2 to 3"),
        (numbers(hopscotch, 2, 4, 2, 4), "choices", 2, "1"),
        (numbers(chained, 0, 4, 1, 4), "choices", 0, "1"),
        (numbers(cuckoo, 2, 0, 2, 0), "bucket_slots", 0, "1 to 64"),
        (numbers(chained, 1, 65, 1, 4), "bucket_slots", 65, "1 to 64"),
        (numbers(cuckoo, 2, 4, 0, 0), "window_buckets", 0, "1 to 64"),
        // This times 3 is 1 in 32 bits.
        (numbers(cuckoo, 2, 3, 0xaaaa_aaab, 0), "window_buckets", 0xaaaa_aaab, "1 to 64"),
        (numbers(chained, 1, 4, 2, 4), "window_buckets", 2, "1"),
        (numbers(cuckoo, 2, 13, 5, 0), window, 65, "1 to 64"),
        (numbers(cuckoo, 2, 4, 2, 4), "block_slots", 4, "0"),
        (numbers(hopscotch, 1, 4, 2, 0), "block_slots", 0, "1 to 64"),
        (numbers(chained, 1, 4, 1, 65), "block_slots", 65, "1 to 64"),
    ] {
        let (family, allowed) = (layout.family.name(), allowed.to_string());
        let refused = ConfigError::Impossible { family, field, value, allowed };
        assert_eq!(made(layout, TableSize::Slots(1_000)), Err(refused));
    }
}

/// Segments have a largest size, at which the numbers of their homes fit what a superblock may say.
#[test]
fn segments_have_a_largest_size() {
    let of = |segment_slots| {
        let size = TableSize::Growing { bytes_max: 1 << 40, segment_slots: Some(segment_slots) };
        Config { size, seeds: Some(Seeds::from_number(1)), ..Config::short() }.geometry()
    };
    // Seven slots more than homes: the last windows reach over them.
    assert_eq!(of(SEGMENT_HOMES_MAX + 7).unwrap().homes(), SEGMENT_HOMES_MAX);
    let error = of(SEGMENT_HOMES_MAX + 8).unwrap_err();
    assert!(matches!(error, ConfigError::TooLarge { max: SEGMENT_HOMES_MAX, .. }), "{error}");
}
