//! What the families' ways to make room have in common.

use crate::layout::geometry::Window;

/// A window that a key may be put into.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The window.
    pub window: Window,
    /// Would the key be newly displaced there?
    pub displaces: bool,
}
