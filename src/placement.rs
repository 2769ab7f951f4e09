//! What the families' answers are made of.

use crate::layout::geometry::{Layout, Window};

/// A layout with a name, as published or as recommended.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name, as the command line takes it.
    pub name: &'static str,
    /// The layout.
    pub layout: Layout,
    /// Load, in percent of the main slots, for which a table of this preset is sized when a capacity in
    /// keys is asked for: inserts are still quick there, and READs per GET near their best.
    pub design_load: u32,
    /// What it is, in one line.
    pub summary: &'static str,
}

/// A window that a key may be put into.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The window.
    pub window: Window,
    /// Would the key be newly displaced there?
    pub displaces: bool,
}
