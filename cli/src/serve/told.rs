//! What a server says of its table when it begins and ends, and on the way.

use oneread::{
    embedded::Recovered,
    layout::Geometry,
    stats::{StartProgress, StartStep},
};
use oneread_kit::progress::Progress;
use oneread_kit::show;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What was found in a table that was taken over.
pub fn taken_over(found: Recovered) -> String {
    let mut text = format!("taken over with {}", show::counted(found.keys, "key"));
    if found.handed_over {
        return text + " from a server that stopped";
    }
    if found.torn > 0 {
        text += &format!(", {} mended", show::counted(found.torn, "half-written slot"));
    }
    if found.doubled > 0 {
        text += &format!(", {} undone", show::counted(found.doubled, "unfinished move"));
    }
    text
}

/// How large a table is and may become.
pub fn size_now(geometry: &Geometry, bytes_backed: u64, part: Option<&str>) -> String {
    let bytes = show::bytes(geometry.bytes_max());
    if geometry.grows() {
        let part = part.map_or(String::new(), |part| format!(" ({part})"));
        format!("grows up to {bytes}{part}, {} so far", show::bytes(bytes_backed))
    } else {
        let most = if geometry.has_heap() { "up to " } else { "" };
        format!("{} slots, {most}{bytes}", show::count(geometry.slots()))
    }
}

pub fn recovered_json(found: Recovered) -> serde_json::Value {
    let Recovered { keys, torn, doubled, handed_over, .. } = found;
    serde_json::json!({ "keys": keys, "torn": torn, "doubled": doubled, "handed_over": handed_over })
}

/// How large a table is, as it was asked for.
pub fn size_of(geometry: &Geometry) -> String {
    if geometry.grows() {
        let (bytes, segments) = (geometry.bytes_max(), geometry.segments_max());
        format!("up to {} ({})", show::bytes(bytes), show::counted(segments, "segment"))
    } else {
        format!("{} main slots", geometry.main_slots())
    }
}

/// Shows the progress of steps that take long enough to be seen.
pub fn show_start(at: StartProgress) {
    static BAR: Mutex<Option<Progress>> = Mutex::new(None);
    let mut shown = BAR.lock().unwrap_or_else(PoisonError::into_inner);
    let (doing, has_done) = match at.step {
        StartStep::Make => ("making the table", "made"),
        StartStep::Survey => ("taking over", "looked through"),
        StartStep::Replay => ("making changes of the log again", "made"),
        StartStep::Register => ("registering", "registered"),
        StartStep::Restore => ("restoring", "checked and restored, reading"),
        _ => return,
    };
    let bar = shown.get_or_insert_with(|| Progress::of_bytes(at.total, doing));
    bar.set_position(at.ready);
    if at.done {
        bar.finish();
        if bar.elapsed() > Duration::from_secs(1) {
            show::complain(format_args!(
                "{has_done} {} in {:.1} s",
                show::bytes(at.total),
                bar.elapsed().as_secs_f64()
            ));
        }
        *shown = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneread::{Config, TableSize};

    /// Each thing that a server found in the table is told, and nothing that it did not find.
    #[test]
    fn what_was_taken_over_is_told() {
        let told = |keys, torn, doubled, handed_over| {
            let mut found = Recovered::default();
            (found.keys, found.torn, found.doubled, found.handed_over) = (keys, torn, doubled, handed_over);
            taken_over(found)
        };
        assert_eq!(told(1, 0, 0, true), "taken over with 1 key from a server that stopped");
        assert_eq!(told(2_000, 0, 0, false), "taken over with 2,000 keys");
        assert_eq!(told(2, 1, 0, false), "taken over with 2 keys, 1 half-written slot mended");
        assert_eq!(
            told(2, 3, 1, false),
            "taken over with 2 keys, 3 half-written slots mended, 1 unfinished move undone"
        );
    }

    /// The size that a table may have is told with its reason, and how much it takes.
    #[test]
    fn sizes_are_told() {
        let config = Config::new().size(TableSize::up_to(64 << 20));
        let geometry = config.value_max(20).geometry().unwrap();
        let most = show::bytes(geometry.bytes_max());
        assert_eq!(size_now(&geometry, 3 << 20, None), format!("grows up to {most}, 3 MiB so far"));
        let told = size_now(&geometry, 3 << 20, Some("half of it"));
        assert_eq!(told, format!("grows up to {most} (half of it), 3 MiB so far"));
        // Long values take of the same memory, and have addresses of their own.
        let long = config.geometry().unwrap();
        assert!(long.region_bytes() > 100 << 20);
        let told = [size_now(&long, 0, None), size_of(&long)];
        assert!(told.iter().all(|told| told.contains("up to 6") && told.contains(" MiB")), "{told:?}");
        let geometry = Config::new().size(TableSize::Slots(5_000)).geometry().unwrap();
        let [slots, bytes] = [show::count(geometry.slots()), show::bytes(geometry.region_bytes())];
        assert_eq!(size_now(&geometry, 7, None), format!("{slots} slots, up to {bytes}"));
        let geometry =
            Config::new().size(TableSize::Slots(5_000)).key_max(16).value_max(20).geometry().unwrap();
        let bytes = show::bytes(geometry.region_bytes());
        assert_eq!(size_now(&geometry, 7, None), format!("{slots} slots, {bytes}"));
    }

    /// What a takeover found is told under the names of its counts.
    #[test]
    fn a_takeover_is_told() {
        let mut found = Recovered::default();
        (found.keys, found.torn, found.doubled, found.handed_over) = (5, 3, 2, true);
        let told = serde_json::json!({ "keys": 5, "torn": 3, "doubled": 2, "handed_over": true });
        assert_eq!(recovered_json(found), told);
    }
}
