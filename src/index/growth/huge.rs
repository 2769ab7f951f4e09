//! Segments in huge pages, which are longer than most segments.

use super::Growth;
use crate::base::sync::lock;
use std::ops::Range;

impl Growth {
    /// Has the kernel put the memory of a segment into huge pages, together with neighbouring memory, if none of it is
    /// in use. To be called before the memory is registered or used.
    ///
    /// A huge page takes memory that no segment needs yet. So the table does this only while it has taken no more than
    /// an eighth beyond what its segments and values have. Small pages remain for the first 16 MiB of a table, and more
    /// often for one that grows again after it has given memory back in places.
    pub(super) fn make_huge(&self, bytes: Range<u64>) -> u64 {
        const HUGE: u64 = 2 << 20;
        let (backed, taken) = (self.region.backed_bytes(), lock(&self.memory).bytes_taken());
        if 8 * (backed + HUGE) > 9 * taken {
            return 0;
        }
        self.region.make_huge(bytes, self.geometry.bytes_of_slots())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::base::clock::Clock;
    use crate::config::{Config, TableSize};
    use crate::index::Index;
    use crate::outcome::{PutMode, PutOutcome};
    use crate::region::tests::until_huge;
    use crate::region::{Backing, Region};

    /// A table of short segments is in huge pages but for its beginning, takes an eighth more memory than they have,
    /// at most, and gives back what it does not need.
    #[test]
    fn segments_share_huge_pages() {
        until_huge(short_segments);
    }

    /// `None` if they are not in huge pages.
    fn short_segments() -> Option<()> {
        let config = Config { size: TableSize::up_to(256 << 20), ..Config::short() };
        let geometry = config.geometry().unwrap();
        let segment_bytes = geometry.slots() * geometry.shape().bytes() as u64;
        let region = Region::create_sparse(&Backing::Anonymous, geometry.region_bytes(), 0).unwrap();
        let index = Index::create(region, geometry, Clock::System).unwrap();
        let key = |n: u64| n.to_le_bytes();
        let taken = || index.growth().segments * segment_bytes;
        let backed = || index.region().backed_bytes();
        let mut n = 0;
        while taken() < 28 << 20 {
            for _ in 0..4_096 {
                assert_eq!(index.put(&key(n), b"value", PutMode::Upsert), Ok(PutOutcome::Inserted));
                n += 1;
            }
            assert!(backed() <= taken() * 9 / 8 + (2 << 20), "{} of {}", backed(), taken());
        }
        let huge = index.region().huge_bytes();
        // Of a huge page, the part comes back that no segment needs any more.
        let full = backed();
        (0..n).for_each(|n| assert_eq!(index.remove(&key(n)), Ok(true)));
        let returned = || index.growth().bytes_returned;
        while returned() < 4 << 20 {
            index.shrink();
            index.tidy();
        }
        assert!(backed() <= full - returned(), "{} of {full}, {} came back", backed(), returned());
        (huge >= 6 << 20).then_some(())
    }
}
