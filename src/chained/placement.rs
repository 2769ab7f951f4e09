//! Where a key can be: its bucket, then the bucket's chain.

use crate::layout::chain;
use crate::layout::geometry::{Geometry, Window};

/// The window to READ when a window whose first slot has this `aux` did not show the key.
#[inline]
pub fn after(geometry: &Geometry, head_aux: u32) -> Option<Window> {
    chain::next(geometry, head_aux)
}
