//! Overflow chains: how the headers of homes and blocks link to further blocks.
//!
//! In layouts with chains, `aux` of a home slot, and of the first slot of each block, is
//!
//! ```text
//! bits 0..8    filter of displaced keys (home slots only)
//! bits 8..32   link: number of the next overflow block plus 1; 0 at the end of the chain
//! ```
//!
//! In a table that grows, the link is bits 8..26 (`segment`).
//!
//! A block is `block_slots` consecutive slots in the overflow part of the table.

use super::family::FILTER_BITS_BESIDE_LINK;
use super::geometry::{Geometry, SlotIx, Window};
use super::segment;

const LINK_SHIFT: u32 = FILTER_BITS_BESIDE_LINK;

/// The bits of `aux` that are the link.
#[inline]
fn link_mask(geometry: &Geometry) -> u32 {
    let free = if geometry.grows() { segment::STATE_MASK } else { 0 };
    u32::MAX << LINK_SHIFT & !free
}

/// Windows that a GET reads, the home's included, before it gives up the pass. So the server links
/// one block less. Chains of sound tables are far shorter (a `list` at 130 % of its main slots:
/// 12). The bound is for readers of damaged memory.
pub const CHAIN_MAX: u32 = 64;

/// Number of an overflow block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block(pub u32);

/// The block that `aux` links to; `None` at the end of the chain.
#[inline]
pub fn link(geometry: &Geometry, aux: u32) -> Option<Block> {
    ((aux & link_mask(geometry)) >> LINK_SHIFT).checked_sub(1).map(Block)
}

/// `aux` with another link.
pub fn with_link(geometry: &Geometry, aux: u32, block: Option<Block>) -> u32 {
    aux & !link_mask(geometry) | block.map_or(0, |b| b.0 + 1) << LINK_SHIFT
}

/// The slots of a block.
#[inline]
pub fn window(geometry: &Geometry, block: Block) -> Window {
    let slots = geometry.layout().block_slots;
    let first = SlotIx(geometry.main_slots() + u64::from(block.0) * u64::from(slots));
    Window { first, slots, incarnation: geometry.incarnation() }
}

/// The block that contains `slot`; `None` for a main slot.
#[inline]
pub fn block_of(geometry: &Geometry, slot: SlotIx) -> Option<Block> {
    let number = slot.0.checked_sub(geometry.main_slots())?;
    Some(Block((number / u64::from(geometry.layout().block_slots.max(1))) as u32))
}

/// The slots of the block that `aux` links to. `None` at the end of the chain, and for a link that
/// leads out of the table (damaged memory).
#[inline]
pub fn next(geometry: &Geometry, aux: u32) -> Option<Window> {
    link(geometry, aux).filter(|b| u64::from(b.0) < geometry.overflow_blocks()).map(|b| window(geometry, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TableSize};

    /// A link stands beside the filter. It leads to each block of the table, and to nothing else:
    /// the memory behind the last block is not the table's.
    #[test]
    fn links_lead_to_blocks() {
        let layout = "farm".parse().unwrap();
        let config = Config { layout, size: TableSize::Slots(1_000), ..Config::short() };
        let geometry = config.geometry().unwrap();
        let (blocks, slots) = (geometry.overflow_blocks() as u32, geometry.slots());
        assert_eq!((blocks, slots), (125, 1_500));
        for (number, first) in [(0, 1_000), (1, 1_004), (blocks - 1, 1_496)] {
            for filter in [0, 0x5a, 0xff] {
                let aux = with_link(&geometry, 0xabcd_ef00 | filter, Some(Block(number)));
                assert_eq!(aux, filter | (number + 1) << 8);
                assert_eq!(link(&geometry, aux), Some(Block(number)));
                let window = Window { first: SlotIx(first), slots: 4, incarnation: 0 };
                assert_eq!(next(&geometry, aux), Some(window));
                assert_eq!(with_link(&geometry, aux, None), filter);
            }
            for slot in first..first + 4 {
                assert_eq!(block_of(&geometry, SlotIx(slot)), Some(Block(number)));
            }
        }
        assert_eq!((block_of(&geometry, SlotIx(0)), block_of(&geometry, SlotIx(999))), (None, None));
        assert_eq!((link(&geometry, 0xff), next(&geometry, 0xff)), (None, None));
        for damaged in [blocks, blocks + 1, 0x00ff_fffe] {
            let aux = with_link(&geometry, 0, Some(Block(damaged)));
            assert_eq!((link(&geometry, aux), next(&geometry, aux)), (Some(Block(damaged)), None));
        }
    }
}
