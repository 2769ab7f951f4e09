//! What is counted, for the facade crate [`metrics`](https://docs.rs/metrics), and so for its exporters: Prometheus
//! and others (cargo feature `metrics`).
//!
//! ```
//! # use oneread::{Address, Client, Config, Server, ServerConfig, TableSize};
//! # let dir = tempfile::tempdir()?;
//! # let address = Address::Shm(dir.path().join("s"));
//! # let table = Config::new().size(TableSize::Keys(100));
//! # let server = Server::start(ServerConfig::new(address.clone(), table))?;
//! # let mut client = Client::connect(&address)?;
//! oneread::metrics::describe(); // once, when the program's recorder is there
//!
//! // At each scrape, or every few seconds:
//! oneread::metrics::record(&server, &[("table", "prices")]);
//! oneread::metrics::record(&client.stats(), &[("reader", "prices")]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`record`] reads the counts that are there anyway. Between two calls nothing is done: no GET and no put takes an
//! instruction more than without the feature. A call of a server takes a look at each of its segments and
//! a system call or two. There are at most 119 series of a server, whatever its table holds: 24 of them are the
//! histogram of puts.
//!
//! Times are taken only on request ([`ServerConfig::timed`](crate::ServerConfig::timed),
//! [`ClientOptions::timed`](crate::ClientOptions::timed)): two looks at the clock are a good part of a GET, and of a
//! put. They are counts by ranges. The facade takes histograms sample by sample, so [`record`] leaves them out;
//! [`prometheus_histograms`] writes them as Prometheus reads them.
//!
//! The names keep [Prometheus' conventions](https://prometheus.io/docs/practices/naming/): a counter ends in
//! `_total`, and what is not just a number names its unit. Counters begin with the server, or the
//! client's handle. Recorders take a counter that falls for one that stands still: so give a server that takes the
//! place of another one in the same process labels of its own.

use crate::base::times::{TIME_RANGES, TimeCounts};
use crate::client::{Client, ClientStats};
use crate::index::Index;
use crate::log::LogStatus;
use crate::outcome::{
    EvictCounts, GetCounts, GrowthCounts, HeapCounts, IndexCounts, NoteCounts, StartCounts,
};
use crate::server::{ClientMemoryCounts, MailboxCounts, RefusedCounts, Server};
use crate::wire::{ServerTimes, SnapshotStatus};
use ::metrics::{Key, Label, Level, Metadata, Recorder, Unit, with_recorder};
use std::fmt::Write;

/// One thing that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name, as `oneread_keys`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// A label that tells it from others of its name, as the cause of a refusal. There are a few of
    /// each, all known at compile time.
    pub label: Option<(&'static str, &'static str)>,
}

impl Metric {
    /// The unit that the name ends in.
    fn unit(&self) -> Unit {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match name.rsplit('_').next() {
            Some("bytes") => Unit::Bytes,
            Some("seconds") => Unit::Seconds,
            _ => Unit::Count,
        }
    }
}

/// What a metric says at present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure<'a> {
    /// It only grows.
    Counter(u64),
    /// It goes up and down.
    Gauge(f64),
    /// A histogram of how long calls took.
    Times(&'a TimeCounts),
}

/// Who counts: a [`Server`], an [`Index`], a [`Client`], and [`ClientStats`].
pub trait Counted {
    /// Calls `each` with all that is counted.
    fn visit(&self, each: impl FnMut(&Metric, Figure<'_>));
}

/// Gives names, units and meaning of all metrics to the recorder that is in force here.
pub fn describe() {
    with_recorder(|recorder| {
        OF_TABLE.iter().for_each(|row| row.describe(recorder));
        OF_GROWTH.iter().for_each(|row| row.describe(recorder));
        OF_HEAP.iter().for_each(|row| row.describe(recorder));
        OF_EVICTION.iter().for_each(|row| row.describe(recorder));
        OF_NOTES.iter().for_each(|row| row.describe(recorder));
        OF_STARTS.iter().for_each(|row| row.describe(recorder));
        OF_SERVER.iter().for_each(|row| row.describe(recorder));
        OF_SNAPSHOTS.iter().for_each(|row| row.describe(recorder));
        OF_LOG.iter().for_each(|row| row.describe(recorder));
        OF_CERTIFICATE.iter().for_each(|row| row.describe(recorder));
        OF_CLIENT.iter().for_each(|row| row.describe(recorder));
    });
}

/// Gives all that `counted` counts to the recorder that is in force here, with these labels, which should tell apart
/// what a program has several of.
pub fn record(counted: &impl Counted, labels: &[(&'static str, &str)]) {
    const METADATA: Metadata<'static> = Metadata::new("oneread", Level::INFO, Some(module_path!()));
    let given: Vec<Label> = labels.iter().map(|&(name, value)| Label::new(name, value.to_owned())).collect();
    with_recorder(|recorder| {
        counted.visit(|metric, figure| {
            let mut labels = given.clone();
            labels.extend(metric.label.map(|(name, value)| Label::from_static_parts(name, value)));
            let key = Key::from_parts(metric.name, labels);
            match figure {
                Figure::Counter(count) => recorder.register_counter(&key, &METADATA).absolute(count),
                Figure::Gauge(value) => recorder.register_gauge(&key, &METADATA).set(value),
                // See the module's documentation.
                Figure::Times(_) => {}
            }
        });
    });
}

/// The histograms of `counted`, as Prometheus' text format has them, with these labels: to be sent behind what an
/// exporter renders. Empty where no times are taken.
pub fn prometheus_histograms(counted: &impl Counted, labels: &[(&'static str, &str)]) -> String {
    let given: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    let given = given.join(",");
    let mut text = String::new();
    counted.visit(|metric, figure| {
        let Figure::Times(times) = figure else { return };
        let Metric { name, help, .. } = metric;
        text += &format!("# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut line = |part: &str, more: &str, value: &dyn std::fmt::Display| {
            let labels = [&given[..], more].into_iter().filter(|label| !label.is_empty());
            let labels = labels.collect::<Vec<_>>().join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            // To a string nothing fails.
            let _ = writeln!(text, "{part}{labels} {value}");
        };
        let mut so_far = 0;
        for range in 0..TIME_RANGES {
            so_far += times.ranges[range];
            let end = TimeCounts::range_end(range).map(|end| end.as_secs_f64().to_string());
            let le = format!("le=\"{}\"", end.as_deref().unwrap_or("+Inf"));
            line(&format!("{name}_bucket"), &le, &so_far);
        }
        line(&format!("{name}_sum"), "", &(times.sum_ns as f64 / 1e9));
        line(&format!("{name}_count"), "", &so_far);
    });
    text
}

/// How a metric's figure is found in what is counted.
enum Finding<T> {
    Counter(fn(&T) -> u64),
    Gauge(fn(&T) -> f64),
}

/// A metric of `T`.
struct Row<T> {
    metric: Metric,
    value: Finding<T>,
}

impl<T> Row<T> {
    const fn counter(name: &'static str, help: &'static str, value: fn(&T) -> u64) -> Row<T> {
        Row { metric: Metric { name, help, label: None }, value: Finding::Counter(value) }
    }

    const fn gauge(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Row<T> {
        Row { metric: Metric { name, help, label: None }, value: Finding::Gauge(value) }
    }

    /// A counter with a label.
    const fn by(
        name: &'static str,
        help: &'static str,
        label: (&'static str, &'static str),
        value: fn(&T) -> u64,
    ) -> Row<T> {
        Row { metric: Metric { name, help, label: Some(label) }, value: Finding::Counter(value) }
    }

    /// A gauge with a label.
    const fn gauge_by(
        name: &'static str,
        help: &'static str,
        label: (&'static str, &'static str),
        value: fn(&T) -> f64,
    ) -> Row<T> {
        Row { metric: Metric { name, help, label: Some(label) }, value: Finding::Gauge(value) }
    }

    fn describe(&self, recorder: &dyn Recorder) {
        let Metric { name, help, .. } = self.metric;
        let unit = Some(self.metric.unit());
        match self.value {
            Finding::Counter(_) => recorder.describe_counter(name.into(), unit, help.into()),
            Finding::Gauge(_) => recorder.describe_gauge(name.into(), unit, help.into()),
        }
    }
}

fn visit_rows<T>(rows: &[Row<T>], of: &T, each: &mut impl FnMut(&Metric, Figure<'_>)) {
    for Row { metric, value } in rows {
        let figure = match value {
            Finding::Counter(count) => Figure::Counter(count(of)),
            Finding::Gauge(value) => Figure::Gauge(value(of)),
        };
        each(metric, figure);
    }
}

/// What each table counts.
struct TableFigures {
    counts: IndexCounts,
    incarnation: u64,
    backed_bytes: u64,
    bytes_max: u64,
}

const OF_TABLE: &[Row<TableFigures>] = &[
    Row::gauge("oneread_keys", "Keys in the table.", |of| of.counts.keys as f64),
    Row::gauge("oneread_slots", "Slots allocated: main slots, and overflow slots ever used.", |of| {
        of.counts.slots as f64
    }),
    Row::gauge("oneread_main_slots", "Main slots.", |of| of.counts.main_slots as f64),
    Row::gauge("oneread_load_ratio", "Keys divided by slots allocated.", |of| {
        of.counts.keys as f64 / of.counts.slots.max(1) as f64
    }),
    Row::counter("oneread_inserts_total", "Keys inserted.", |of| of.counts.inserts),
    Row::counter("oneread_updates_total", "Keys updated.", |of| of.counts.updates),
    Row::counter("oneread_removes_total", "Keys removed.", |of| of.counts.removes),
    Row::counter("oneread_moves_total", "Keys moved from one slot to another.", |of| of.counts.moves),
    Row::counter("oneread_homings_total", "Moves by which deletes brought displaced keys home.", |of| {
        of.counts.homings
    }),
    Row::counter("oneread_put_waits_total", "Waits of puts for grace periods to end.", |of| of.counts.waits),
    Row::gauge(
        "oneread_memory_bytes",
        "Bytes of the table with memory behind them, as the system says.",
        |of| of.backed_bytes as f64,
    ),
    Row::gauge("oneread_memory_limit_bytes", "The most bytes that the table may take.", |of| {
        of.bytes_max as f64
    }),
    Row::counter(
        "oneread_takeovers_total",
        "Times that a server took this table over from the one before.",
        |of| of.incarnation.saturating_sub(1),
    ),
];

const OF_GROWTH: &[Row<GrowthCounts>] = &[
    Row::gauge("oneread_segments", "Segments that have keys.", |of| of.segments as f64),
    Row::gauge("oneread_segments_limit", "The most segments that there may be.", |of| of.segments_max as f64),
    Row::gauge("oneread_segment_depth", "Bits of the hash that tell the deepest segments apart.", |of| {
        of.depth as f64
    }),
    Row::gauge("oneread_segment_load_lowest_ratio", "Keys by slots of the emptiest segment.", |of| {
        of.load_min_ppm as f64 / 1e6
    }),
    Row::gauge("oneread_segment_load_highest_ratio", "Keys by slots of the fullest segment.", |of| {
        of.load_max_ppm as f64 / 1e6
    }),
    Row::gauge("oneread_splitting", "Splits under way.", |of| of.splitting as f64),
    Row::gauge("oneread_merging", "Merges under way.", |of| of.merging as f64),
    Row::counter("oneread_splits_total", "Splits that are complete.", |of| of.splits),
    Row::counter("oneread_merges_total", "Merges that are complete.", |of| of.merges),
    Row::counter("oneread_merges_given_up_total", "Merges given up, because keys came back.", |of| {
        of.given_up
    }),
    Row::counter("oneread_segment_moves_total", "Keys moved from one segment to another.", |of| of.moved),
    Row::counter(
        "oneread_memory_refused_total",
        "Times that the system refused memory for a segment.",
        |of| of.refused,
    ),
    Row::counter(
        "oneread_memory_returned_bytes_total",
        "Bytes of segments given back to the system.",
        |of| of.bytes_returned,
    ),
];

const OF_HEAP: &[Row<HeapCounts>] = &[
    Row::gauge("oneread_heap_values", "Values that do not fit their slots.", |of| of.values as f64),
    Row::gauge("oneread_heap_live_bytes", "Bytes of the heap in use.", |of| of.live_bytes as f64),
    Row::gauge(
        "oneread_heap_waiting_bytes",
        "Bytes that readers may still read, of values that went.",
        |of| of.waiting_bytes as f64,
    ),
    Row::gauge("oneread_heap_gap_bytes", "Bytes free in blocks that have values.", |of| of.gap_bytes as f64),
    Row::gauge("oneread_heap_largest_gap_bytes", "The longest gap in such a block.", |of| {
        of.largest_gap_bytes as f64
    }),
    Row::gauge("oneread_heap_block_bytes", "Bytes of a block.", |of| of.block_bytes as f64),
    Row::gauge("oneread_heap_blocks", "Blocks of the heap.", |of| of.blocks as f64),
    Row::gauge("oneread_heap_open_blocks", "Blocks that have values.", |of| of.open_blocks as f64),
    Row::gauge("oneread_heap_limit_bytes", "Length of the heap.", |of| of.heap_bytes as f64),
    Row::counter("oneread_heap_moved_bytes_total", "Bytes moved, so that blocks become free.", |of| {
        of.moved_bytes
    }),
    Row::counter("oneread_heap_returned_bytes_total", "Bytes of the heap given back to the system.", |of| {
        of.returned_bytes
    }),
];

const EVICTED: &str =
    "Entries that left to make room, by what for: keys, in time or when a put needed it; long values.";

const OF_EVICTION: &[Row<EvictCounts>] = &[
    Row::by("oneread_evictions_total", EVICTED, ("cause", "ahead"), |of| of.ahead),
    Row::by("oneread_evictions_total", EVICTED, ("cause", "put"), |of| of.at_put),
    Row::by("oneread_evictions_total", EVICTED, ("cause", "heap"), |of| of.for_heap),
    Row::gauge("oneread_pinned_keys", "Keys that do not leave to make room.", |of| of.pinned as f64),
];

const NOTES: &str =
    "What the server notes of entries in memory of its own, some dozen bytes each, by what of them.";

const OF_NOTES: &[Row<NoteCounts>] = &[
    Row::gauge_by("oneread_notes", NOTES, ("of", "ends"), |of| of.ends as f64),
    Row::gauge_by("oneread_notes", NOTES, ("of", "owners"), |of| of.owned as f64),
    Row::gauge_by("oneread_notes", NOTES, ("of", "eviction"), |of| of.records as f64),
];

const OF_STARTS: &[Row<StartCounts>] = &[
    Row::gauge("oneread_puts_started", "Puts in two steps that are not committed. They are no keys.", |of| {
        of.started as f64
    }),
    Row::gauge("oneread_puts_started_limit", "Slots that they may hold.", |of| of.slots_max as f64),
    Row::gauge("oneread_puts_started_bytes", "Bytes that they hold for long values.", |of| {
        of.heap_bytes as f64
    }),
    Row::gauge("oneread_puts_started_limit_bytes", "Bytes that they may hold for long values.", |of| {
        of.heap_bytes_max as f64
    }),
    Row::counter("oneread_puts_started_late_total", "Puts given up because their time was over.", |of| {
        of.late
    }),
    Row::counter("oneread_puts_started_refused_total", "Starts refused, because of a bound.", |of| {
        of.refused
    }),
];

/// What a server counts beside its table.
struct ServerFigures {
    clients: u64,
    clients_max: u64,
    refused: RefusedCounts,
    mailboxes: MailboxCounts,
    memory: ClientMemoryCounts,
    parked: u64,
    parked_max: u64,
    times: ServerTimes,
    gets: GetCounts,
}

const GETS: &str = "GETs of clients on this host, and over TCP, by whether they found their key.";

const PUT_SECONDS: Metric =
    Metric { name: "oneread_put_seconds", help: "How long the server took for a put.", label: None };

const REFUSED: &str = "Requests for changes that were refused, by cause.";

const OF_SERVER: &[Row<ServerFigures>] = &[
    Row::gauge("oneread_connections", "Connections of clients.", |of| of.clients as f64),
    Row::gauge("oneread_connections_limit", "The most connections that there may be.", |of| {
        of.clients_max as f64
    }),
    Row::by("oneread_gets_total", GETS, ("result", "hit"), |of| of.gets.hits),
    Row::by("oneread_gets_total", GETS, ("result", "miss"), |of| of.gets.misses()),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "full"), |of| of.refused.full),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "heap_full"), |of| of.refused.heap_full),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "heap_busy"), |of| of.refused.heap_busy),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "no_memory"), |of| of.refused.no_memory),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "length"), |of| of.refused.length),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "part"), |of| of.refused.part),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "busy"), |of| of.refused.busy),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "withdrawn"), |of| of.refused.withdrawn),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "life"), |of| of.refused.life),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "owner"), |of| of.refused.owner),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "pinned"), |of| of.refused.pinned),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "started"), |of| of.refused.started),
    Row::by("oneread_changes_refused_total", REFUSED, ("cause", "read_only"), |of| of.refused.read_only),
    Row::counter("oneread_mailbox_requests_total", "Requests through mailboxes.", |of| of.mailboxes.requests),
    Row::counter("oneread_mailbox_sweeps_total", "Polls of all mailboxes in use.", |of| of.mailboxes.sweeps),
    Row::counter("oneread_mailbox_rests_total", "Times a quiet mailbox was no longer polled.", |of| {
        of.mailboxes.rests
    }),
    Row::counter("oneread_mailbox_rings_total", "Times a sleeping client was woken.", |of| {
        of.mailboxes.rings
    }),
    Row::counter("oneread_mailbox_refused_total", "Mailboxes refused, because there was no room.", |of| {
        of.mailboxes.refused
    }),
    Row::gauge("oneread_mailbox_bytes", "Bytes of all mailboxes.", |of| of.mailboxes.bytes as f64),
    Row::gauge(
        "oneread_client_memory_bytes",
        "Bytes that connections hold: unread replies and the like.",
        |of| of.memory.bytes as f64,
    ),
    Row::gauge("oneread_client_memory_limit_bytes", "Bytes that connections may hold.", |of| {
        of.memory.bytes_max as f64
    }),
    Row::counter(
        "oneread_connections_ended_total",
        "Connections ended because they held most when all held too much.",
        |of| of.memory.ended,
    ),
    Row::gauge("oneread_requests_parked", "Requests that wait at the server.", |of| of.parked as f64),
    Row::gauge("oneread_requests_parked_limit", "Requests that may wait at the server.", |of| {
        of.parked_max as f64
    }),
    Row::counter("oneread_expired_total", "Entries that came to their end, and were removed.", |of| {
        of.times.expired
    }),
    Row::gauge(
        "oneread_expiry_lag_seconds",
        "How long the first entry that has ended, and is still there, has been due.",
        |of| of.times.expiry_lag_ns as f64 / 1e9,
    ),
    Row::gauge("oneread_feed_lag_changes", "Changes that the follower who asked last had not seen.", |of| {
        of.times.feed_lag as f64
    }),
    Row::counter("oneread_feed_gaps_total", "Times that a follower had missed changes.", |of| {
        of.times.feed_gaps
    }),
];

/// Seconds that are left.
const OF_CERTIFICATE: &[Row<i64>] = &[Row::gauge(
    "oneread_certificate_expiry_seconds",
    "Time until the certificate ends that clients over TLS are shown. Below 0: since then.",
    |left| *left as f64,
)];

const OF_SNAPSHOTS: &[Row<SnapshotStatus>] = &[
    Row::gauge("oneread_snapshot_interval_seconds", "Time between snapshots. 0: only on request.", |of| {
        of.every().map_or(0.0, |every| every.as_secs_f64())
    }),
    Row::gauge(
        "oneread_snapshot_last_timestamp_seconds",
        "Time up to which the last snapshot made has every change, since 1970. 0: none was made yet.",
        |of| of.saved_ms as f64 / 1e3,
    ),
    Row::gauge("oneread_snapshot_last_duration_seconds", "How long the last snapshot made took.", |of| {
        of.took_us as f64 / 1e6
    }),
    Row::gauge("oneread_snapshot_last_keys", "Keys in the last snapshot made.", |of| of.keys as f64),
    Row::gauge("oneread_snapshot_last_bytes", "Bytes of the last snapshot made.", |of| of.bytes as f64),
    Row::gauge(
        "oneread_snapshot_failed_timestamp_seconds",
        "Time of the last snapshot that failed, since 1970. 0: none has failed yet.",
        |of| of.failed_ms as f64 / 1e3,
    ),
];

const OF_LOG: &[Row<LogStatus>] = &[
    Row::counter("oneread_log_records_total", "Changes that the log has taken.", |of| {
        of.next.saturating_sub(1)
    }),
    Row::counter("oneread_log_written_records_total", "Of these, those that are in its files.", |of| {
        of.written.saturating_sub(1)
    }),
    Row::counter("oneread_log_durable_records_total", "Of these, those that are on the disk.", |of| {
        of.durable.saturating_sub(1)
    }),
    Row::counter("oneread_log_syncs_total", "Times that the log waited for its disk.", |of| of.syncs),
    Row::gauge("oneread_log_bytes", "Bytes of the log's files.", |of| of.bytes as f64),
    Row::gauge(
        "oneread_log_failed",
        "1: the log's disk has failed, and no change is made any more. 0: it is good.",
        |of| of.has_failed.into(),
    ),
];

const GET_SECONDS: Metric =
    Metric { name: "oneread_client_get_seconds", help: "How long a GET of one key took.", label: None };

const RETRIES: &str = "Looks at a key repeated, by cause.";
const REQUESTS: &str = "Requests sent, by the way they went.";
const CHANGES: &str = "Changes that the server answered, by kind.";
const FAILURES: &str = "Calls that failed, by cause.";

const OF_CLIENT: &[Row<ClientStats>] = &[
    Row::counter("oneread_client_gets_total", "GETs answered.", |of| of.get.gets),
    Row::counter("oneread_client_hits_total", "GETs that found their key.", |of| of.get.hits),
    Row::by("oneread_client_retries_total", RETRIES, ("cause", "torn"), |of| of.get.retries_torn),
    Row::by("oneread_client_retries_total", RETRIES, ("cause", "moved"), |of| of.get.retries_moved),
    Row::by("oneread_client_retries_total", RETRIES, ("cause", "late"), |of| of.get.retries_late),
    Row::by("oneread_client_retries_total", RETRIES, ("cause", "chain"), |of| of.get.retries_chain),
    Row::by("oneread_client_retries_total", RETRIES, ("cause", "replaced"), |of| of.get.retries_replaced),
    Row::by("oneread_client_retries_total", RETRIES, ("cause", "other_key"), |of| of.get.retries_other_key),
    Row::counter("oneread_client_reads_total", "READs.", |of| of.read.reads),
    Row::counter("oneread_client_read_bytes_total", "Bytes that READs asked for.", |of| of.read.bytes),
    Row::counter("oneread_client_doorbells_total", "Doorbells rung, or round trips.", |of| of.read.doorbells),
    Row::counter("oneread_client_hinted_gets_total", "GETs that began with single slots, by hints.", |of| {
        of.hints.hinted
    }),
    Row::counter("oneread_client_hint_hits_total", "GETs that found their key by a hint.", |of| {
        of.hints.hits
    }),
    Row::counter("oneread_client_hint_reads_total", "READs of single slots, by hints.", |of| of.hints.reads),
    Row::by("oneread_client_requests_total", REQUESTS, ("path", "message"), |of| of.requests.message),
    Row::by("oneread_client_requests_total", REQUESTS, ("path", "mailbox"), |of| of.requests.mailbox),
    Row::by("oneread_client_requests_total", REQUESTS, ("path", "gets"), |of| of.requests.gets),
    #[cfg(feature = "verbs")]
    Row::by("oneread_client_requests_total", REQUESTS, ("path", "extension"), |of| of.requests.extension),
    Row::by("oneread_client_changes_total", CHANGES, ("kind", "put"), |of| of.changes.puts),
    Row::by("oneread_client_changes_total", CHANGES, ("kind", "swap"), |of| of.changes.swaps),
    Row::by("oneread_client_changes_total", CHANGES, ("kind", "remove"), |of| of.changes.removes),
    Row::by("oneread_client_changes_total", CHANGES, ("kind", "part"), |of| of.changes.parts),
    Row::counter(
        "oneread_client_changes_refused_total",
        "Of these changes, those that were refused.",
        |of| of.changes.rejected,
    ),
    Row::by("oneread_client_failures_total", FAILURES, ("cause", "deadline"), |of| of.failures.deadlines),
    Row::by("oneread_client_failures_total", FAILURES, ("cause", "contended"), |of| of.failures.contended),
    Row::by("oneread_client_failures_total", FAILURES, ("cause", "gone"), |of| of.failures.gone),
    Row::by("oneread_client_failures_total", FAILURES, ("cause", "refused"), |of| of.failures.refused),
    Row::by("oneread_client_failures_total", FAILURES, ("cause", "undecrypted"), |of| {
        of.failures.undecrypted
    }),
    Row::counter(
        "oneread_client_reattached_total",
        "Times it switched to a new region, or reconnected.",
        |of| of.reattached,
    ),
];

/// All that a table counts. One that does not grow has no metrics of growth, and one without a heap none of that.
impl Counted for Index {
    fn visit(&self, mut each: impl FnMut(&Metric, Figure<'_>)) {
        let geometry = self.geometry();
        let figures = TableFigures {
            counts: self.counts(),
            incarnation: self.incarnation(),
            backed_bytes: self.region().backed_bytes(),
            bytes_max: geometry.bytes_max(),
        };
        visit_rows(OF_TABLE, &figures, &mut each);
        if geometry.grows() {
            visit_rows(OF_GROWTH, &self.growth(), &mut each);
        }
        if geometry.has_heap() {
            visit_rows(OF_HEAP, &self.heap(), &mut each);
        }
        if geometry.has_owners() {
            visit_rows(OF_STARTS, &self.starts(), &mut each);
        }
        if self.evicts() {
            visit_rows(OF_EVICTION, &self.evictions(), &mut each);
        }
        if self.evicts() || geometry.has_life() {
            visit_rows(OF_NOTES, &self.notes(), &mut each);
        }
    }
}

/// What its table counts, connections, refusals, mailboxes, followers and, if it has any, its snapshots and its log; and
/// how long puts took, if it takes the time.
impl Counted for Server {
    fn visit(&self, mut each: impl FnMut(&Metric, Figure<'_>)) {
        self.index().visit(&mut each);
        let figures = ServerFigures {
            clients: self.stats().clients,
            clients_max: self.clients_max(),
            refused: self.refused(),
            mailboxes: self.mailbox_counts(),
            memory: self.client_memory(),
            parked: self.parked(),
            parked_max: self.parked_max(),
            times: self.times(),
            gets: self.get_counts(),
        };
        visit_rows(OF_SERVER, &figures, &mut each);
        if figures.times.is_timed != 0 {
            each(&PUT_SECONDS, Figure::Times(&figures.times.puts));
        }
        if let Some(status) = self.snapshot_status() {
            visit_rows(OF_SNAPSHOTS, &status, &mut each);
        }
        if let Some(log) = self.log() {
            visit_rows(OF_LOG, &log, &mut each);
        }
        if let Some(seconds) = self.certificate_seconds() {
            visit_rows(OF_CERTIFICATE, &seconds, &mut each);
        }
    }
}

impl Counted for ClientStats {
    fn visit(&self, mut each: impl FnMut(&Metric, Figure<'_>)) {
        visit_rows(OF_CLIENT, self, &mut each);
    }
}

/// Its [`ClientStats`], and how long GETs took, if it takes the time.
impl Counted for Client {
    fn visit(&self, mut each: impl FnMut(&Metric, Figure<'_>)) {
        self.stats().visit(&mut each);
        if let Some(times) = self.get_times() {
            each(&GET_SECONDS, Figure::Times(times));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
