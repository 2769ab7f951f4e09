//! The types that the families' answers consist of.

pub(crate) mod families;

use crate::layout::geometry::{Layout, Window};

/// A named layout, as published or as recommended.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name, as the command line takes it.
    pub name: &'static str,
    /// The layout.
    pub layout: Layout,
    /// The load for which a table of this preset is sized when a capacity in keys is asked for, in
    /// percent of the main slots. At this load inserts are still quick, and READs per GET near
    /// their best.
    pub design_load: u32,
    /// The layout in one line of text.
    pub summary: &'static str,
}

/// Where keys of a layout may go, from a slot in their primary window.
#[derive(Clone, Copy, Debug)]
pub struct GivesWay {
    /// To another slot of that window.
    pub at_home: bool,
    /// To another window, which displaces them.
    pub displaced: bool,
}

/// A window that a key may be put into.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// The window.
    pub window: Window,
    /// Whether the key would be newly displaced there.
    pub displaces: bool,
}
