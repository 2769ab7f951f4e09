//! Options whose values have names, or are large numbers.

use crate::plan::{SHIPPED, Workload, rivals};
use clap::builder::{StringValueParser, TypedValueParser};
use oneread::internals::families::presets;
use oneread_kit::names::Named;

/// A layout, or a rival that `plan` knows.
pub fn design() -> impl TypedValueParser<Value = String> {
    let names = || {
        let layouts = presets().map(|preset| preset.name.to_owned());
        layouts.chain(rivals(&Workload::default()).into_iter().map(|rival| rival.name)).collect()
    };
    Named::new(StringValueParser::new(), names)
}

/// A shipped profile of hardware, or the file of one.
pub fn profile() -> impl TypedValueParser<Value = String> {
    Named::new(StringValueParser::new(), || SHIPPED.iter().map(|(name, _)| (*name).into()).collect())
}

/// Parses 1000000 and 1e6.
pub fn whole(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        // Beyond this, a float is no count any more.
        Ok(n) if (0.0..=9e15).contains(&n) && n.fract() == 0.0 => Ok(n as u64),
        _ => Err("a whole number up to 9e15, as in 1000000 or 1e6".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;
    use std::ffi::OsStr;

    fn names(parser: &impl TypedValueParser) -> Vec<String> {
        parser.possible_values().unwrap().map(|value| value.get_name().into()).collect()
    }

    #[test]
    fn numbers_may_have_an_exponent() {
        assert_eq!((whole("1e9"), whole("16")), (Ok(1_000_000_000), Ok(16)));
        assert!(["-1", "1.5", "nan", "inf", "1e30", "", "x"].iter().all(|text| whole(text).is_err()));
    }

    /// Rivals and shipped profiles are offered by name. The path of a profile is taken, too.
    #[test]
    fn names_are_offered_and_paths_taken() {
        let designs = names(&design());
        assert!(designs.contains(&"windowed:8".into()) && designs.contains(&"HERD".into()), "{designs:?}");
        assert!(names(&profile()).contains(&"cx6-200g".into()));
        let parsed = profile().parse_ref(&Command::new("a"), None, OsStr::new("mine.toml"));
        assert_eq!(parsed.unwrap(), "mine.toml");
    }
}
