//! Both indexes, beside maps that do the same.

mod between;
mod jumps;
mod location;
mod placement;
mod presence;
mod scene;
