//! The memory that a table may take, and the device that has to know of it.

use super::news::News;
use crate::base::sync::Ordering;
use crate::region::RegionError;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How long a table takes no more memory than it had when the system refused some. To ask again takes a put a
/// millisecond.
const REFUSED_NS: u64 = 1_000_000_000;
/// The system gives what is asked for.
const NOTHING_REFUSED: u64 = u64::MAX;

/// How much memory segments and extents have together, and may have.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    /// What they had when the system refused more, and until when that is the most.
    refused_at: AtomicU64,
    refused_until_ns: AtomicU64,
    taken: AtomicU64,
    /// Bytes that segments leave free for waiting values, and until when.
    wanted: AtomicU64,
    wanted_until_ns: AtomicU64,
    /// What changes wait for, and is there now.
    news: Arc<News>,
}

impl Budget {
    pub fn new(bytes_max: u64) -> Arc<Budget> {
        let (taken, wanted, refused_at) = (0.into(), 0.into(), NOTHING_REFUSED.into());
        let (wanted_until_ns, refused_until_ns, news) = (0.into(), 0.into(), Arc::default());
        Arc::new(Budget { bytes_max, refused_at, refused_until_ns, taken, wanted, wanted_until_ns, news })
    }

    /// Notes that the system has refused memory: for a while, the table has all that it may have.
    pub fn refuse(&self, now_ns: u64) {
        // What is given back meanwhile is there.
        if self.was_refused(now_ns) {
            return;
        }
        self.refused_until_ns.store(now_ns + REFUSED_NS, Ordering::Relaxed);
        self.refused_at.store(self.taken(), Ordering::Relaxed);
    }

    /// Whether the system has refused memory a moment ago. Later it is asked again.
    pub fn was_refused(&self, now_ns: u64) -> bool {
        if self.refused_at.load(Ordering::Relaxed) == NOTHING_REFUSED {
            return false;
        }
        let is_over = self.refused_until_ns.load(Ordering::Relaxed) <= now_ns;
        if is_over {
            self.refused_at.store(NOTHING_REFUSED, Ordering::Relaxed);
        }
        !is_over
    }

    /// The most that the table may have now.
    fn bytes_max(&self) -> u64 {
        self.bytes_max.min(self.refused_at.load(Ordering::Relaxed))
    }

    /// What changes wait for, and is there now.
    pub fn news(&self) -> &Arc<News> {
        &self.news
    }

    /// Bytes taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether segments may take these bytes, too. They may be gone a moment later.
    pub fn has(&self, bytes: u64) -> bool {
        self.has_for_values(bytes + self.wanted())
    }

    /// Whether values may take these bytes, too.
    pub fn has_for_values(&self, bytes: u64) -> bool {
        self.taken() + bytes <= self.bytes_max()
    }

    /// Takes these bytes for a segment, if they may be taken. Relaxed: it guards no memory, it only counts.
    pub fn take(&self, bytes: u64) -> bool {
        self.take_up_to(bytes, self.bytes_max().saturating_sub(self.wanted()))
    }

    /// Takes these bytes for values, if they may be taken. After that, no value waits.
    pub fn take_for_values(&self, bytes: u64) -> bool {
        let is_taken = self.take_up_to(bytes, self.bytes_max());
        if is_taken {
            self.wanted.store(0, Ordering::Relaxed);
        }
        is_taken
    }

    fn take_up_to(&self, bytes: u64, most: u64) -> bool {
        let more = |taken| Some(taken + bytes).filter(|&taken| taken <= most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Notes that values wait for these bytes until this time. Segments leave them free, and give some back if there
    /// are too few.
    pub fn want(&self, bytes: u64, until_ns: u64) {
        self.wanted_until_ns.store(until_ns, Ordering::Relaxed);
        self.wanted.store(bytes, Ordering::Relaxed);
    }

    /// Whether values wait for memory. A value whose time is over does not wait any more.
    pub fn wants(&self, now_ns: u64) -> bool {
        if self.wanted() > 0 && self.wanted_until_ns.load(Ordering::Relaxed) <= now_ns {
            self.wanted.store(0, Ordering::Relaxed);
        }
        self.wanted() > 0
    }

    /// Whether there is less memory than values wait for.
    pub fn is_short(&self) -> bool {
        let wanted = self.wanted();
        wanted > 0 && !self.has_for_values(wanted)
    }

    fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Gives these bytes back.
    pub fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts the bytes that the last server had taken.
    pub fn have(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Registers memory with a device.
pub(crate) trait Registrar: Send + Sync {
    /// Registers this memory of a segment, and tells clients its key (E0).
    fn before_use(&self, memory: u32) -> Result<(), RegionError>;

    /// Registers this block of the heap, and tells clients its key (E0).
    fn before_use_of_block(&self, block: u64) -> Result<(), RegionError>;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What values wait for is kept from segments, until the values have it, or their time is over.
    #[test]
    fn segments_leave_what_values_wait_for() {
        let budget = Budget::new(1_000);
        assert!(budget.take(600) && !budget.wants(0) && !budget.is_short());
        budget.want(300, 10);
        assert!(budget.wants(9) && !budget.is_short());
        assert!(!budget.has(101) && budget.has(100) && !budget.take(101), "300 are kept");
        assert!(budget.has_for_values(400) && !budget.has_for_values(401));
        assert!(!budget.take_for_values(401) && budget.wants(9), "they have nothing yet");
        assert!(budget.take_for_values(300));
        assert!(!budget.wants(9) && budget.take(100) && !budget.take(1), "they want no more");
        budget.want(300, 20);
        assert!(budget.is_short() && budget.wants(19));
        budget.give(1_000);
        assert!(!budget.is_short() && !budget.take(701) && budget.wants(19));
        assert!(!budget.wants(20) && budget.take(1_000), "their time is over");
        assert_eq!(budget.taken(), 1_000);
    }
    /// What the system refuses is no memory of the table, for a while; what is given back meanwhile is there again.
    #[test]
    fn what_was_refused_is_asked_for_again() {
        let budget = Budget::new(1_000);
        assert!(budget.take_for_values(600) && !budget.was_refused(0));
        budget.refuse(5);
        assert!(budget.was_refused(5) && budget.was_refused(4 + REFUSED_NS));
        assert!(!budget.has(1) && !budget.take(1) && !budget.take_for_values(1));
        budget.give(100);
        budget.refuse(6);
        assert!(budget.has(100) && !budget.has(101) && budget.take_for_values(100));
        assert!(!budget.was_refused(5 + REFUSED_NS) && budget.has(400) && !budget.has(401));
    }
}
