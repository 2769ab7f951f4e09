//! Options whose values have names. Completions offer the names; other values are taken as before.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use oneread::internals::families::presets;
use oneread::layout::Layout;
use std::ffi::OsStr;

/// A layout: a preset by its name, or a family with numbers.
pub fn layout() -> impl TypedValueParser<Value = Layout> {
    let inner = StringValueParser::new().try_map(|text| text.parse::<Layout>());
    Named::new(inner, || presets().map(|preset| preset.name.into()).collect())
}

/// A parser whose values have names. It takes what the inner one does.
#[derive(Clone)]
pub struct Named<P> {
    inner: P,
    names: fn() -> Vec<String>,
}

impl<P> Named<P> {
    /// Takes what `inner` takes, and offers what `names` returns.
    pub fn new(inner: P, names: fn() -> Vec<String>) -> Named<P> {
        Named { inner, names }
    }
}

impl<P: TypedValueParser> TypedValueParser for Named<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<P::Value, Error> {
        self.inner.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        // A shell splits a list of words at white space.
        let names = (self.names)().into_iter().filter(|name| !name.contains(' '));
        Some(Box::new(names.map(PossibleValue::new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed<P: TypedValueParser>(parser: &P, text: &str) -> Result<P::Value, Error> {
        parser.parse_ref(&Command::new("a"), None, OsStr::new(text))
    }

    fn names(parser: &impl TypedValueParser) -> Vec<String> {
        parser.possible_values().unwrap().map(|value| value.get_name().into()).collect()
    }

    /// Each name that is offered is taken, and so are the other forms of a layout.
    #[test]
    fn names_are_offered_and_other_values_taken() {
        let layouts = names(&layout());
        assert!(layouts.contains(&"windowed:8".into()));
        for name in layouts.iter().map(String::as_str).chain(["hopscotch", "cuckoo:d=2,b=3,w=4"]) {
            assert_eq!(parsed(&layout(), name).unwrap(), name.parse().unwrap(), "{name}");
        }
        let error = parsed(&layout(), "window").unwrap_err().to_string();
        assert!(error.contains("window") && error.contains("windowed:8"), "{error}");
    }
}
