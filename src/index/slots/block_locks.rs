//! Whose lock guards each overflow block (L1), for assertions.

use crate::layout::chain::Block;
#[cfg(debug_assertions)]
use rustc_hash::FxHashMap;

/// The home whose lock guards each block, from when it takes the block until it gives it back.
/// Kept only for assertions (L1), apart from the code that writes.
#[derive(Debug, Default)]
pub(crate) struct BlockLocks {
    // Neither the adversary nor the model checker sees this lock. It must not change what they try.
    #[cfg(debug_assertions)]
    homes: std::sync::Mutex<FxHashMap<Block, u64>>,
}

impl BlockLocks {
    /// The block is taken by a home, or given back.
    pub fn set(&self, block: Block, home: Option<u64>) {
        #[cfg(debug_assertions)]
        {
            let mut homes = self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let before = match home {
                Some(home) => homes.insert(block, home),
                None => homes.remove(&block),
            };
            assert_eq!(before.is_some(), home.is_none(), "{block:?} is taken, or given back, twice");
        }
        #[cfg(not(debug_assertions))]
        let _ = (block, home);
    }

    /// The home whose lock guards a block in use. `None` in builds without assertions.
    pub fn home(&self, block: Block) -> Option<u64> {
        #[cfg(debug_assertions)]
        return self.homes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(&block).copied();
        #[cfg(not(debug_assertions))]
        {
            let _ = block;
            None
        }
    }
}
