use super::*;
use crate::address::Address;
use crate::client::{ChangeCounts, FailureCounts, RequestCounts};
use crate::config::{Config, TableSize};
use crate::outcome::PutMode;
use crate::reader::{GetStats, HintCounts, ReadCounts};
use crate::server::ServerConfig;
use ::metrics::{Counter, Gauge, Histogram, KeyName, SharedString, with_local_recorder};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The figures of rows that are whole numbers as counted, in the order of their values.
fn sorted<T>(rows: &[Row<T>], of: &T) -> Vec<u64> {
    let mut all = Vec::new();
    visit_rows(rows, of, &mut |_, figure| {
        all.push(match figure {
            Figure::Counter(count) => count,
            Figure::Gauge(value) => value as u64,
            Figure::Times(_) => unreachable!("no row has any"),
        });
    });
    all.sort_unstable();
    all
}

/// Each count has one metric: a field more does not compile here, one that is told twice or never is noticed.
#[test]
fn each_count_has_its_metric() {
    let client = ClientStats {
        get: GetStats {
            gets: 1,
            hits: 2,
            retries_torn: 3,
            retries_moved: 4,
            retries_late: 5,
            retries_chain: 6,
            retries_replaced: 7,
            retries_other_key: 27,
        },
        read: ReadCounts { reads: 8, bytes: 9, doorbells: 10 },
        hints: HintCounts { hinted: 11, hits: 12, reads: 13 },
        requests: RequestCounts {
            message: 14,
            mailbox: 15,
            gets: 28,
            #[cfg(feature = "verbs")]
            extension: 29,
        },
        changes: ChangeCounts { puts: 16, swaps: 17, removes: 18, parts: 26, rejected: 19 },
        failures: FailureCounts { deadlines: 20, contended: 21, gone: 22, refused: 23, undecrypted: 24 },
        reattached: 25,
    };
    let last = if cfg!(feature = "verbs") { 29 } else { 28 };
    assert_eq!(sorted(OF_CLIENT, &client), Vec::from_iter(1..=last));

    let counts = IndexCounts {
        keys: 30,
        inserts: 2,
        updates: 3,
        removes: 4,
        moves: 5,
        homings: 6,
        waits: 7,
        slots: 15,
        main_slots: 9,
    };
    let table = TableFigures { counts, incarnation: 11, backed_bytes: 11, bytes_max: 12 };
    // Among them 2 for the load, 10 for the takeovers.
    assert_eq!(sorted(OF_TABLE, &table), [2, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 15, 30]);

    const PPM: u64 = 1_000_000;
    let growth = GrowthCounts {
        segments: 1,
        segments_max: 2,
        depth: 3,
        load_min_ppm: 4 * PPM,
        load_max_ppm: 5 * PPM,
        splitting: 6,
        merging: 7,
        splits: 8,
        merges: 9,
        given_up: 10,
        moved: 11,
        refused: 12,
        // Those of the region stand for them.
        bytes_backed: 99,
        bytes_max: 99,
        bytes_returned: 13,
    };
    assert_eq!(sorted(OF_GROWTH, &growth), Vec::from_iter(1..=13));

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
    assert_eq!(sorted(OF_HEAP, &heap), Vec::from_iter(1..=11));

    let server = ServerFigures {
        clients: 1,
        clients_max: 2,
        refused: RefusedCounts {
            full: 3,
            heap_full: 4,
            heap_busy: 5,
            no_memory: 6,
            length: 7,
            part: 18,
            busy: 8,
            withdrawn: 9,
            life: 10,
            owner: 19,
            pinned: 24,
            started: 25,
            read_only: 11,
        },
        mailboxes: MailboxCounts { requests: 12, sweeps: 13, rests: 14, rings: 15, refused: 16, bytes: 17 },
        memory: {
            let mut memory = ClientMemoryCounts::default();
            (memory.bytes, memory.bytes_max, memory.ended) = (26, 27, 28);
            memory
        },
        parked: 29,
        parked_max: 30,
        times: {
            let mut times = ServerTimes { expired: 20, expiry_lag_ns: 21_000_000_000, ..Default::default() };
            (times.feed_lag, times.feed_gaps) = (22, 23);
            times
        },
        gets: GetCounts { gets: 31 + 32, hits: 31 },
    };
    assert_eq!(sorted(OF_SERVER, &server), Vec::from_iter(1..=32));

    let starts =
        StartCounts { started: 1, slots_max: 2, heap_bytes: 3, heap_bytes_max: 4, late: 5, refused: 6 };
    assert_eq!(sorted(OF_STARTS, &starts), Vec::from_iter(1..=6));

    let evicted = EvictCounts { ahead: 1, at_put: 2, for_heap: 3, pinned: 4, ..EvictCounts::default() };
    assert_eq!(sorted(OF_EVICTION, &evicted), Vec::from_iter(1..=4));

    let notes = NoteCounts { ends: 1, owned: 2, records: 3 };
    assert_eq!(sorted(OF_NOTES, &notes), Vec::from_iter(1..=3));

    let mut snapshots =
        SnapshotStatus { every_ms: 1_000, saved_ms: 2_000, took_us: 3_000_000, ..Default::default() };
    (snapshots.keys, snapshots.bytes, snapshots.failed_ms) = (4, 5, 6_000);
    assert_eq!(sorted(OF_SNAPSHOTS, &snapshots), Vec::from_iter(1..=6));
    snapshots.every_ms = u64::MAX;
    assert_eq!(sorted(OF_SNAPSHOTS, &snapshots)[0], 0, "only on request");

    let log = LogStatus { next: 6, written: 5, durable: 4, bytes: 2, syncs: 6, has_failed: true };
    // Of the numbers of records those of the last ones: 5, 4, 3.
    assert_eq!(sorted(OF_LOG, &log), Vec::from_iter(1..=6));
    assert_eq!(sorted(OF_LOG, &LogStatus::default()), [0; 6]);
}

/// The docs say how many series there are: as many as there are rows, and the histogram of puts.
#[test]
fn the_docs_count_the_series() {
    const SUM_AND_COUNT: usize = 2;
    let of_table = OF_TABLE.len() + OF_GROWTH.len() + OF_HEAP.len() + OF_EVICTION.len() + OF_NOTES.len();
    let of_server = OF_STARTS.len() + OF_SERVER.len() + OF_CERTIFICATE.len();
    let of_disks = OF_SNAPSHOTS.len() + OF_LOG.len();
    let said = format!("at most {} series", of_table + of_server + of_disks + TIME_RANGES + SUM_AND_COUNT);
    for page in ["src/metrics.rs", "docs/OPERATIONS.md"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&said), "{page}: not {said:?}");
    }
}

/// What a recorder was told.
#[derive(Default)]
struct Notebook {
    described: RefCell<BTreeSet<String>>,
    units: RefCell<BTreeMap<String, Unit>>,
    recorded: RefCell<BTreeSet<String>>,
}

impl Notebook {
    fn describe(&self, kind: &str, name: KeyName, unit: Option<Unit>, help: SharedString) {
        assert!(!help.is_empty());
        self.described.borrow_mut().insert(format!("{kind} {}", name.as_str()));
        self.units.borrow_mut().insert(name.as_str().into(), unit.unwrap());
    }

    fn record(&self, kind: &str, key: &Key) {
        assert!(self.described.borrow().contains(&format!("{kind} {}", key.name())), "{key:?}");
        assert!(self.recorded.borrow_mut().insert(key.to_string()), "twice: {key:?}");
    }
}

impl Recorder for Notebook {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe("counter", name, unit, help);
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe("gauge", name, unit, help);
    }
    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("{name:?}");
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.record("counter", key);
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.record("gauge", key);
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("{key:?}");
    }
}

/// A histogram is told as Prometheus reads it: what each bucket has, those before it have, too.
#[test]
fn histograms_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("sock"));
    let config = ServerConfig::new(address.clone(), Config::new().size(TableSize::Keys(100)));
    let server = Server::start(config.timed(true)).unwrap();
    let mut client = Client::connect(&address).unwrap();
    for n in 0..10u32 {
        client.put(&n.to_le_bytes(), b"value").unwrap();
    }
    let text = prometheus_histograms(&server, &[("table", "a \"b\"")]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "# TYPE oneread_put_seconds histogram");
    assert!(
        lines[2].starts_with(r#"oneread_put_seconds_bucket{table="a \"b\"",le="0.000001024"} "#),
        "{text}"
    );
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
    let buckets = &lines[2..2 + TIME_RANGES];
    assert!(buckets.is_sorted_by(|a, b| count(a) <= count(b)), "{text}");
    assert!(buckets[TIME_RANGES - 1].contains(r#"le="+Inf"} 10"#), "{text}");
    let [sum, all] = lines[2 + TIME_RANGES..] else { panic!("{text}") };
    assert!(sum.starts_with("oneread_put_seconds_sum{table=") && count(sum) > 0.0, "{text}");
    assert!(all.starts_with("oneread_put_seconds_count{table=") && count(all) == 10.0, "{text}");
    // Who takes no times has none.
    assert_eq!(prometheus_histograms(&client, &[]), "");
    let mut timed = Client::connect_with(&address, crate::ClientOptions::new().timed(true)).unwrap();
    timed.get(b"key").unwrap();
    let text = prometheus_histograms(&timed, &[]);
    assert!(text.contains("oneread_client_get_seconds_bucket{le=\"+Inf\"} 1\n"), "{text}");
    assert!(text.contains("\noneread_client_get_seconds_count 1\n"), "{text}");
}

/// Everything is described as what it is recorded as, has the labels that were given, and its own.
#[test]
fn recorders_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("sock"));
    let table = Config::new().size(TableSize::up_to(64 << 20));
    let server = Server::start(ServerConfig::new(address, table)).unwrap();
    server.index().put(b"key", b"value", PutMode::Upsert).unwrap();
    let told = Notebook::default();
    with_local_recorder(&told, || {
        describe();
        record(&server, &[("table", "prices")]);
        record(&ClientStats::default(), &[("table", "prices"), ("zone", "b")]);
    });
    let recorded = told.recorded.take();
    for key in [
        "Key(oneread_keys, [table = prices])",
        "Key(oneread_changes_refused_total, [table = prices, cause = full])",
        "Key(oneread_client_retries_total, [table = prices, zone = b, cause = torn])",
    ] {
        assert!(recorded.contains(key), "no {key} in {recorded:#?}");
    }
    assert!(recorded.iter().all(|key| key.contains("table = prices")), "{recorded:#?}");
    assert!(recorded.len() > 70, "{}", recorded.len());
    let units = told.units.take();
    assert_eq!(units["oneread_memory_bytes"], Unit::Bytes);
    assert_eq!(units["oneread_client_read_bytes_total"], Unit::Bytes);
    assert_eq!(units["oneread_snapshot_interval_seconds"], Unit::Seconds);
    assert_eq!(units["oneread_keys"], Unit::Count);
    let mut keys = None;
    server.visit(|metric, figure| match figure {
        Figure::Gauge(value) if metric.name == "oneread_keys" => keys = Some(value),
        _ => {}
    });
    assert_eq!(keys, Some(1.0));
}
