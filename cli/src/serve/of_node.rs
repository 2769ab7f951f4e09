//! `serve --metrics` of a node: what it does for its cluster, beside what its table says.

use metrics::{counter, describe_counter, describe_gauge, gauge};
use oneread_cluster::core::shard::Role;
use oneread_cluster::wire::NodeStatus;

/// Says what each is.
pub fn describe() {
    describe_gauge!(
        "oneread_cluster_good",
        "1 if etcd takes the node's beats, and another node its hello, else 0."
    );
    describe_gauge!(
        "oneread_cluster_beat_age_seconds",
        "Time since the node learned that etcd has taken a beat of its."
    );
    describe_gauge!("oneread_cluster_shards", "Shards that the node serves, or is a standby of.");
    describe_gauge!("oneread_cluster_missing_copies", "Copies that shards lack which the node serves.");
    describe_gauge!("oneread_cluster_newcomers", "Copies of shards that the node makes at others.");
    describe_gauge!("oneread_cluster_used_bytes", "Room that the entries of shards take at most.");
    describe_gauge!("oneread_cluster_room_left_bytes", "Room that no shard has set aside.");
    describe_gauge!("oneread_cluster_changes_under_way", "Changes that standbys have not answered.");
    describe_counter!("oneread_cluster_evicted_total", "Entries that the node removed to make room.");
    describe_counter!(
        "oneread_cluster_expired_total",
        "Entries that the node removed at their end, or with their owner."
    );
}

/// Notes what it says. `None`: its thread does not say.
pub fn record(status: Option<&NodeStatus>) {
    let is_good = status.is_some_and(NodeStatus::is_good);
    gauge!("oneread_cluster_good").set(if is_good { 1.0 } else { 0.0 });
    let Some(status) = status else { return };
    if let Some(age) = status.health.0.as_ref().and_then(|health| health.beat_age) {
        gauge!("oneread_cluster_beat_age_seconds").set(age as f64 / 1e6);
    }
    let shards = |role: Role| status.shards.iter().filter(|shard| shard.role == role).count() as f64;
    for (role, name) in [(Role::Primary, "primary"), (Role::Standby, "standby")] {
        gauge!("oneread_cluster_shards", "role" => name).set(shards(role));
    }
    let newcomers: usize = status.shards.iter().map(|shard| shard.newcomers.len()).sum();
    let under_way: u64 = status.shards.iter().map(|shard| shard.under_way).sum();
    gauge!("oneread_cluster_missing_copies").set(status.missing as f64);
    gauge!("oneread_cluster_newcomers").set(newcomers as f64);
    gauge!("oneread_cluster_used_bytes").set(status.used as f64);
    gauge!("oneread_cluster_room_left_bytes").set(status.room_left as f64);
    gauge!("oneread_cluster_changes_under_way").set(under_way as f64);
    counter!("oneread_cluster_evicted_total").absolute(status.evicted);
    counter!("oneread_cluster_expired_total").absolute(status.expired);
}
