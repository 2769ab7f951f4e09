//! Layouts by name, and by their numbers; policies, and when a log is synced, by name.

use super::error::ConfigError;
use super::evict::Evict;
use crate::layout::geometry::{Family, Layout};
use crate::log::Fsync;
use crate::placement::Preset;
use crate::placement::families::presets;
use std::fmt;
use std::str::FromStr;

impl Layout {
    /// The preset with exactly this layout, if any.
    pub fn preset(self) -> Option<&'static Preset> {
        presets().find(|p| p.layout == self)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.preset() {
            Some(preset) => write!(f, "{}:{}", self.family.name(), preset.name),
            None => {
                let Layout { family, choices, bucket_slots, window_buckets, block_slots } = self;
                write!(f, "{}:d={choices},b={bucket_slots},w={window_buckets}", family.name())?;
                if *block_slots > 0 { write!(f, ",o={block_slots}") } else { Ok(()) }
            }
        }
    }
}

impl FromStr for Layout {
    type Err = ConfigError;

    /// Parses `preset`, `preset:n`, `family:preset` or `family:preset:n`. A family alone means its
    /// first preset. A preset without its number means the first preset of that name.
    ///
    /// `family:d=2,b=3,w=4,o=5` gives the numbers themselves: choices, slots per bucket, buckets
    /// per window, slots per overflow block. `o` is omitted where there are no overflow blocks.
    /// Numbers are not checked here: [`Config::geometry`](crate::Config::geometry) refuses impossible ones.
    fn from_str(text: &str) -> Result<Layout, ConfigError> {
        let (family, rest) = match text.split_once(':') {
            Some((f, rest)) if Family::ALL.iter().any(|x| x.1 == f) => (Some(f), rest),
            None if Family::ALL.iter().any(|x| x.1 == text) => (Some(text), ""),
            _ => (None, text),
        };
        presets()
            .filter(|p| family.is_none_or(|f| p.layout.family.name() == f))
            .find(|p| rest.is_empty() || p.name == rest || p.name.split(':').next() == Some(rest))
            .filter(|_| !text.is_empty())
            .map(|p| p.layout)
            .or_else(|| by_numbers(family?, rest))
            .ok_or_else(|| ConfigError::UnknownLayout { given: text.into() })
    }
}

/// The layout of a family with the numbers in `text`.
fn by_numbers(family: &str, text: &str) -> Option<Layout> {
    let family = Family::ALL.iter().find(|x| x.1 == family)?.0;
    let mut parts = text.split(',');
    let mut number = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    let (choices, bucket_slots, window_buckets) = (number("d")?, number("b")?, number("w")?);
    let block_slots = if text.contains(",o=") { number("o")? } else { 0 };
    let layout = Layout { family, choices, bucket_slots, window_buckets, block_slots };
    parts.next().is_none().then_some(layout)
}

impl FromStr for Evict {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Evict, ConfigError> {
        let found = Evict::ALL.iter().find(|(_, name)| *name == text);
        found.map(|&(policy, _)| policy).ok_or_else(|| ConfigError::UnknownPolicy { given: text.into() })
    }
}

impl FromStr for Fsync {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Fsync, ConfigError> {
        match text {
            "always" => Ok(Fsync::Always),
            "1s" => Ok(Fsync::EverySecond),
            "never" => Ok(Fsync::Never),
            _ => Err(ConfigError::UnknownFsync { given: text.into() }),
        }
    }
}
