//! What an indexer counts, and how Prometheus is told.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[doc = $help:literal])* $name:ident => $metric:literal),* $(,)?) => {
        /// Counts since the start.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[doc = $help])* pub $name: Count,)*
        }

        impl Counts {
            /// The names, meanings and values.
            fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($metric, concat!($($help),*), self.$name.get())),*]
            }

            /// So much more of each.
            pub fn add_all(&self, more: &Counts) {
                $(self.$name.add(more.$name.get());)*
            }
        }
    };
}

counts! {
    /// Batches of events that were taken in.
    batches => "oneread_kv_batches_total",
    /// Times that batches were written to the table: all that have come, together.
    runs => "oneread_kv_runs_total",
    /// Blocks that workers told they have stored, and had not before. What is removed in the same run is left out.
    stored => "oneread_kv_blocks_stored_total",
    /// Blocks that workers told they have removed, and had. What was stored in the same run is left out.
    removed => "oneread_kv_blocks_removed_total",
    /// Batches that were heard before.
    late => "oneread_kv_batches_late_total",
    /// Gaps between numbers of batches.
    gaps => "oneread_kv_gaps_total",
    /// Batches that were asked for again, and came.
    replayed => "oneread_kv_batches_replayed_total",
    /// Batches that could not be had again.
    lost => "oneread_kv_batches_lost_total",
    /// Times that publishers began again with their numbers.
    restarts => "oneread_kv_restarts_total",
    /// Times that a worker was cleared, because what it has was not known any more.
    cleared => "oneread_kv_workers_cleared_total",
    /// Messages that are no batch of events, and events that may have removed blocks and cannot be read.
    garbage => "oneread_kv_garbage_total",
    /// Events of blocks that are not indexed: of an unknown name or form, or of layers that keep no whole prefix.
    ignored => "oneread_kv_events_ignored_total",
    /// Events of blocks of another size than the worker was registered with.
    wrong_block_size => "oneread_kv_events_wrong_block_size_total",
    /// Events of blocks whose parent is not known, and who waited for it in vain.
    orphans => "oneread_kv_orphans_dropped_total",
    /// Removed blocks of which nothing was known.
    unknown => "oneread_kv_removed_unknown_total",
    /// Blocks that the table had no room for.
    refused => "oneread_kv_blocks_refused_total",
    /// Entries of blocks that workers have no more, which were taken away.
    swept => "oneread_kv_links_swept_total",
    /// Connections to publishers.
    connections => "oneread_kv_connections_total",
    /// Failed attempts to connect, and connections that ended.
    disconnections => "oneread_kv_disconnections_total",
    /// Errors of the table.
    table_errors => "oneread_kv_table_errors_total",
    /// Times that this indexer took over.
    takeovers => "oneread_kv_takeovers_total",
    /// Requests over HTTP.
    requests => "oneread_kv_http_requests_total",
    /// Requests over HTTP that were refused.
    refusals => "oneread_kv_http_refusals_total",
    /// Lookups.
    lookups => "oneread_kv_lookups_total",
    /// Nanoseconds that lookups took, without HTTP.
    lookup_nanoseconds => "oneread_kv_lookup_nanoseconds_total",
}

/// A count.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    pub fn one(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    /// The text of a scrape, with values of the moment behind.
    pub fn text(&self, now: &[(&str, &str, u64)]) -> String {
        let mut text = String::new();
        let kinds = [("counter", self.all()), ("gauge", now.to_vec())];
        for (kind, all) in kinds {
            for (name, help, value) in all {
                let help = help.trim();
                // A `String` takes all of it.
                let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each count has a name of its own, with its meaning and its kind.
    #[test]
    fn counts_are_told() {
        let counts = Counts::default();
        counts.gaps.one();
        counts.stored.add(20);
        let text = counts.text(&[("oneread_kv_workers", "Workers.", 3)]);
        assert!(text.contains("# HELP oneread_kv_gaps_total Gaps between numbers of batches.\n"), "{text}");
        assert!(text.contains("# TYPE oneread_kv_gaps_total counter\noneread_kv_gaps_total 1\n"));
        assert!(text.contains("\noneread_kv_blocks_stored_total 20\n"));
        assert!(text.contains("# TYPE oneread_kv_workers gauge\noneread_kv_workers 3\n"));
        let names: std::collections::HashSet<_> = counts.all().into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), counts.all().len());
    }
}
