//! What time it is for a table: how long ago it was made, by words of its control page (V4).

use crate::clock::Clock;
use crate::layout::control::{EPOCH_WORD, MADE_WORD};
use crate::region::Region;
use crate::snapshot::since_1970;
use crate::sync::{Ordering, fence};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Tells one start of the machine from another. 0 if the system does not say.
fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.iter().fold(0, |all, &byte| crate::layout::hash::mix(all ^ u64::from(byte)))
    })
}

/// When the table was made, by the clock of this start of the machine; before 0, if the machine has started since.
pub(crate) fn epoch_ns(region: &Region, clock: &Clock) -> i64 {
    let is_same_boot = region.load(EPOCH_WORD + 1) == boot() || matches!(clock, Clock::Manual(_));
    // Pairs with the fence in `begin`: the time by the clock of this start is there.
    fence(Ordering::Acquire);
    if is_same_boot {
        return region.load(EPOCH_WORD) as i64;
    }
    // The clock has begun again. What entries have left goes by the time of day.
    let since_made_ns = since_1970(SystemTime::now()).saturating_sub(region.load(MADE_WORD));
    clock.now_ns() as i64 - since_made_ns as i64
}

/// Says in the control page when the table was made.
pub(crate) fn begin(region: &Region, clock: &Clock, epoch_ns: i64) {
    region.store(EPOCH_WORD, epoch_ns as u64);
    // Pairs with the fence in `epoch_ns`.
    fence(Ordering::Release);
    region.store(EPOCH_WORD + 1, boot());
    region.store(MADE_WORD, since_1970(SystemTime::now()).saturating_sub(since_ns(epoch_ns, clock)));
}

/// Nanoseconds since the table was made.
pub(crate) fn since_ns(epoch_ns: i64, clock: &Clock) -> u64 {
    (clock.now_ns() as i64 - epoch_ns).max(0) as u64
}
