//! Both indexes, beside maps that do the same.

mod location;
mod placement;
mod scene;
