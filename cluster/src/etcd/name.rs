//! A cluster's name, and what its configuration means.

use std::fmt;
use std::str::FromStr;

/// The version of a configuration's meaning. Under another one, a key may be in another shard. Configurations without
/// one have 0.
pub(super) const FORM: u32 = 1;

/// A cluster's name: 1 to 64 letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterName(String);

/// Not a cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a cluster: that has 1 to 64 letters, digits, dots, underscores and hyphens")]
pub struct ClusterNameError(String);

impl FromStr for ClusterName {
    type Err = ClusterNameError;

    fn from_str(name: &str) -> Result<ClusterName, ClusterNameError> {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if (1..=64).contains(&name.len()) && name.chars().all(is_fit) {
            return Ok(ClusterName(name.into()));
        }
        Err(ClusterNameError(name.into()))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
