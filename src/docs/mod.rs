//! The texts of `docs/`, so that links to them lead somewhere outside the repository, too.
//!
//! The texts link by reference (`[FORMAT.md]`) and end with where that is in the repository. Here `links.md` comes
//! before each of them, and a label's first definition counts.

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/COOKBOOK.md")]
pub mod cookbook {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/PYTHON.md")]
pub mod python {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/KV-CACHE.md")]
pub mod kv_cache {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/OPERATIONS.md")]
pub mod operations {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/ARCHITECTURE.md")]
pub mod architecture {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/PROTOCOL.md")]
pub mod protocol {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/FORMAT.md")]
pub mod format {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/LAYOUTS.md")]
pub mod layouts {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/VERBS.md")]
pub mod verbs {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/SECURITY.md")]
pub mod security {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/HARDWARE.md")]
pub mod hardware {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/MODEL.md")]
pub mod model {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/TESTING.md")]
pub mod testing {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/BENCHMARKS.md")]
pub mod benchmarks {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../docs/FINDINGS.md")]
pub mod findings {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../../CHANGELOG.md")]
pub mod changes {}
