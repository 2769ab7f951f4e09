//! Which overflow blocks any home may take.
//!
//! Overflow memory is address space until a block is first used. Then memory is put behind the
//! block, and its slots are written. So a table's chains cost only the memory that they used.

use crate::base::sync::{Mutex, lock};
use crate::layout::chain::{self, Block};
use crate::layout::control::BLOCKS_WORD;
use crate::layout::geometry::Geometry;
use crate::region::Region;

/// Which overflow blocks are in use.
#[derive(Debug)]
pub(super) struct Blocks {
    reserved: u64,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// Blocks that were given back.
    free: Vec<Block>,
    /// The number of blocks ever used. Their numbers are below this one.
    ever_used: u64,
    /// The number of blocks that have memory behind them.
    backed: u64,
}

/// Memory is put behind overflow blocks in steps of this many bytes.
const BACKING_STEP: u64 = 1 << 20;

impl Blocks {
    pub fn new(reserved: u64) -> Blocks {
        Blocks { reserved, pool: Mutex::default() }
    }

    /// All blocks have memory behind them, and any home may take them.
    pub fn all_free(reserved: u64) -> Blocks {
        let free = (0..reserved as u32).rev().map(Block).collect();
        let pool = Pool { free, ever_used: reserved, backed: reserved };
        Blocks { reserved, pool: Mutex::new(pool) }
    }

    /// Takes an unused block. `None` when there is none, or no memory for it.
    pub fn take(&self, region: &Region, geometry: &Geometry) -> Option<Block> {
        let pool = &mut *lock(&self.pool);
        if let Some(block) = pool.free.pop() {
            return Some(block);
        }
        if pool.ever_used == self.reserved {
            return None;
        }
        if pool.ever_used == pool.backed {
            let block_bytes = geometry.shape().bytes() as u64 * u64::from(geometry.layout().block_slots);
            // `back` cuts the last step off where the region ends.
            let more = BACKING_STEP.div_ceil(block_bytes);
            let start = geometry.slot_offset(chain::window(geometry, Block(pool.backed as u32)).first);
            if let Err(error) = region.back_more(start..start + more * block_bytes) {
                tracing::error!(error = &error as &dyn std::error::Error, "no memory for overflow blocks");
                return None;
            }
            pool.backed += more;
        }
        pool.ever_used += 1;
        region.store(BLOCKS_WORD, pool.ever_used);
        Some(Block(pool.ever_used as u32 - 1))
    }

    /// Lets any home take the block.
    pub fn give_back(&self, block: Block) {
        lock(&self.pool).free.push(block);
    }

    /// The blocks that any home may take.
    pub fn free(&self) -> Vec<Block> {
        lock(&self.pool).free.clone()
    }

    /// The number of blocks used now or before. They have memory behind them.
    pub fn ever_used(&self) -> u64 {
        lock(&self.pool).ever_used
    }

    /// Takes over the state of a server that is gone: the blocks that any home may take, among the
    /// first `ever_used`.
    pub fn take_over(&self, ever_used: u64, free: Vec<Block>) {
        *lock(&self.pool) = Pool { free, ever_used, backed: ever_used };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};
    use crate::region::Backing;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    /// A table of large blocks, its region, and the file that tells how much memory is behind it.
    fn sparse() -> (Geometry, Region, File) {
        let config = Config {
            layout: "cluster".parse().unwrap(),
            size: TableSize::Slots(2000),
            value_max: 3900,
            ..Config::short()
        };
        let geometry = config.geometry().unwrap();
        let region = Region::create(&Backing::Anonymous, geometry.region_bytes()).unwrap();
        let memory = File::from(region.share().unwrap());
        (geometry, region, memory)
    }

    /// A block has memory behind it when it is handed out, and little more has been taken. When all
    /// blocks are in use, there is none until one is given back.
    #[test]
    fn memory_is_put_behind_blocks_in_steps() {
        let (geometry, region, memory) = sparse();
        let blocks = Blocks::new(geometry.overflow_blocks());
        let block_bytes = geometry.window_bytes(chain::window(&geometry, Block(0)));
        assert!(geometry.overflow_blocks() * block_bytes > 3 * BACKING_STEP, "several steps");
        for n in 0..geometry.overflow_blocks() {
            assert_eq!(blocks.take(&region, &geometry), Some(Block(n as u32)));
            assert_eq!((blocks.ever_used(), region.load(BLOCKS_WORD)), (n + 1, n + 1));
            let backed = memory.metadata().unwrap().blocks() * 512;
            assert!(backed >= (n + 1) * block_bytes, "{backed} bytes for {} blocks", n + 1);
            // A huge page more where the system has them.
            assert!(
                backed <= (n + 1) * block_bytes + BACKING_STEP + (2 << 20),
                "{backed} bytes for {n} blocks"
            );
        }
        assert_eq!(blocks.take(&region, &geometry), None);
        blocks.give_back(Block(7));
        assert_eq!(blocks.take(&region, &geometry), Some(Block(7)));
        assert_eq!(blocks.take(&region, &geometry), None);
    }

    /// Blocks used by an earlier server have memory behind them. The first new block gets its own
    /// at once.
    #[test]
    fn memory_is_put_behind_blocks_beyond_those_taken_over() {
        let (geometry, region, memory) = sparse();
        region.store(BLOCKS_WORD, 3);
        let before = memory.metadata().unwrap().blocks();
        let backed = || (memory.metadata().unwrap().blocks() - before) * 512;
        let blocks = Blocks::new(geometry.overflow_blocks());
        blocks.take_over(3, vec![Block(0), Block(2)]);
        assert_eq!(blocks.ever_used(), 3);
        let taken: std::collections::BTreeSet<_> =
            (0..2).map(|_| blocks.take(&region, &geometry).unwrap().0).collect();
        assert!(taken.iter().eq(&[0, 2]) && backed() == 0, "{taken:?}, {} bytes", backed());
        assert_eq!(blocks.take(&region, &geometry), Some(Block(3)));
        assert_eq!((blocks.ever_used(), region.load(BLOCKS_WORD)), (4, 4));
        assert!(backed() >= geometry.window_bytes(chain::window(&geometry, Block(3))), "{} bytes", backed());
    }
}
