//! Where a key can be: `d` windows.

use crate::layout::geometry::{Geometry, Window};
use crate::layout::hash::{Hashed, mix};

/// The window to READ when `read` windows (at least 1) did not show the key. `None` after the last.
#[inline]
pub fn after(geometry: &Geometry, key: Hashed<'_>, read: u32) -> Option<Window> {
    (read < geometry.layout().choices).then(|| choice(geometry, key, read))
}

/// The key's window number `n`; 0 is the primary one.
#[inline]
pub fn choice(geometry: &Geometry, key: Hashed<'_>, n: u32) -> Window {
    if n == 0 {
        return geometry.primary(key);
    }
    let second = geometry.seeds().second(key.first());
    // The third choice uses both hashes: for a fixed second hash it can still take any value.
    let hash = if n == 1 { second } else { mix(second ^ key.first().0.rotate_left(32)) };
    geometry.window(geometry.home(hash))
}

/// The key's windows, the primary one first.
pub fn choices<'a>(geometry: &'a Geometry, key: Hashed<'a>) -> impl Iterator<Item = Window> {
    (0..geometry.layout().choices).map(move |n| choice(geometry, key, n))
}
