//! `scan`, `keys`: all keys, or those that match, asked of the server.

use crate::connect::Server;
use crate::dict_key;
use crate::records::{self, Format, Pair};
use crate::secret::SecretArgs;
use anyhow::{Error, Result, bail};
use clap::Args;
use oneread::ScannedKey;
use oneread_kit::show;
use std::io::Write;
use std::process::ExitCode;

/// Print all keys, or those that match, each that is there throughout exactly once
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread scan                          all keys, a line each
  oneread scan --match 'user:*'         * any bytes, ? one, [a-z] one of these,
                                        \\ takes the next one as it is
  oneread scan --values | oneread load - --at shm:/tmp/other.sock
                                        (ends and owners: oneread dump --json)
  oneread scan --json | jq .key
  oneread scan --values --key-file secret     decrypts the values

The server looks at some homes at a time, under their locks, for microseconds.
A key that comes or goes meanwhile may be printed or not, and never twice. Keys
are in no order. What stands before the first * or ? the server looks for.")]
pub struct Take {
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    server: Server,
}

/// Which keys are printed, and what of them.
#[derive(Debug, Args)]
pub struct Printed {
    /// Only keys that match
    #[arg(long = "match", value_name = "GLOB")]
    glob: Option<String>,
    /// Print values, too
    #[arg(long)]
    values: bool,
    /// Print one JSON object for each key: key (or key_hex); value (or value_hex)
    #[arg(long)]
    json: bool,
}

/// Print the keys that match; the same as `scan --match`
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLES
  oneread keys
  oneread keys 'user:*'
  oneread keys --json 'user:???'

Keys are written as `load` and `dump` have them. On a terminal, keys of a dict
of Python's that are no text (tuples, numbers, bytes) are shown as Python writes
them.")]
pub struct Keys {
    /// Only keys that match
    #[arg(value_name = "GLOB")]
    glob: Option<String>,
    /// Print one JSON object for each key: key (or key_hex)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

impl Keys {
    pub fn run(self) -> Result<ExitCode> {
        let Keys { glob, json, server } = self;
        let (printed, mut client) = (Printed { glob, values: false, json }, server.connect()?);
        printed.print(None, |prefix, values| client.scan().prefix(prefix).values(values))
    }
}

impl Take {
    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.server.connect_with(self.secret.encryption()?)?;
        self.printed.print(None, |prefix, values| client.scan().prefix(prefix).values(values))
    }
}

impl Printed {
    /// Prints what a scan shows, or so many keys of it. It is begun with a prefix, and whether it brings values.
    pub fn print<S, E>(self, most: Option<u64>, scan: impl FnOnce(&[u8], bool) -> S) -> Result<ExitCode>
    where
        S: Iterator<Item = Result<ScannedKey, E>>,
        E: Into<Error>,
    {
        let Printed { glob, values, json } = self;
        let glob = glob.as_deref().map(Glob::new).transpose()?;
        let mut out = show::out(Format::of_lines(json).shown_as());
        let is_read = show::is_terminal();
        let shown = |key: &[u8]| if is_read { dict_key::shown(key) } else { None };
        let prefix = glob.as_ref().map_or(&[][..], |glob| &glob.prefix);
        let (mut scan, mut left) = (scan(prefix, values), most.unwrap_or(u64::MAX));
        while left > 0
            && let Some(found) = scan.next()
        {
            let found = found.map_err(Into::into)?;
            if !glob.as_ref().is_none_or(|glob| glob.matches(&found.key)) {
                continue;
            }
            left -= 1;
            match found.value.as_deref() {
                value if json => {
                    writeln!(out, "{}", serde_json::to_string(&Pair::new(&found.key, value))?)?;
                }
                Some(value) => records::write(&mut out, Format::Tsv, &found.key, value)?,
                None => match shown(&found.key) {
                    Some(key) => writeln!(out, "{key}")?,
                    None => records::write_key(&mut out, &found.key)?,
                },
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A pattern of keys.
#[derive(Debug)]
struct Glob {
    /// What all of them begin with.
    prefix: Vec<u8>,
    parts: Vec<Part>,
}

/// What one byte, or any number of them, may be.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Any,
    One,
    Byte(u8),
    /// One of these, or with `true` none of these.
    Set(bool, Vec<(u8, u8)>),
}

impl Part {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Part::Any | Part::One => true,
            Part::Byte(own) => *own == byte,
            Part::Set(is_not, ranges) => {
                ranges.iter().any(|&(low, high)| (low..=high).contains(&byte)) != *is_not
            }
        }
    }
}

impl Glob {
    fn new(text: &str) -> Result<Glob> {
        let (mut parts, mut rest) = (Vec::new(), text.bytes());
        while let Some(byte) = rest.next() {
            parts.push(match byte {
                b'*' => Part::Any,
                b'?' => Part::One,
                b'\\' => match rest.next() {
                    Some(byte) => Part::Byte(byte),
                    None => bail!("the pattern {text:?} ends in a backslash; write \\\\ for one"),
                },
                b'[' => match Glob::set(&mut rest) {
                    Some(set) => set,
                    None => bail!("the pattern {text:?} has a [ without a ]; write \\[ for one"),
                },
                byte => Part::Byte(byte),
            });
        }
        let prefix = parts.iter().map_while(|part| match part {
            Part::Byte(byte) => Some(*byte),
            _ => None,
        });
        Ok(Glob { prefix: prefix.collect(), parts })
    }

    fn set(rest: &mut std::str::Bytes<'_>) -> Option<Part> {
        let mut bytes = Vec::new();
        loop {
            match rest.next()? {
                // The first one is one of these.
                b']' if !matches!(bytes[..], [] | [b'^' | b'!']) => break,
                byte => bytes.push(byte),
            }
        }
        let is_not = matches!(bytes[0], b'^' | b'!');
        let (mut left, mut ranges) = (&bytes[usize::from(is_not)..], Vec::new());
        while let [low, after @ ..] = left {
            (left, _) = match after {
                [b'-', high, after @ ..] => (after, ranges.push((*low, *high))),
                after => (after, ranges.push((*low, *low))),
            };
        }
        Some(Part::Set(is_not, ranges))
    }

    fn matches(&self, key: &[u8]) -> bool {
        let (mut part, mut at, mut again) = (0, 0, None);
        loop {
            match self.parts.get(part) {
                Some(Part::Any) => {
                    part += 1;
                    again = Some((part, at));
                }
                Some(one) if key.get(at).is_some_and(|&byte| one.takes(byte)) => {
                    (part, at) = (part + 1, at + 1)
                }
                None if at == key.len() => return true,
                // The last * takes one byte more.
                _ => match again {
                    Some((behind, begun)) if begun < key.len() => {
                        (part, at) = (behind, begun + 1);
                        again = Some((behind, begun + 1));
                    }
                    _ => return false,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_they_say() {
        for (pattern, prefix, matches, others) in [
            ("", "", &[""][..], &["a"][..]),
            ("*", "", &["", "a", "ab"], &[]),
            ("user:*", "user:", &["user:", "user:1"], &["user", "1user:"]),
            ("a*b*c", "a", &["abc", "aXbYbc", "abbc"], &["ab", "abcd", "acb"]),
            ("a?c", "a", &["abc", "a?c"], &["ac", "abbc"]),
            ("[a-c][^x-z]", "", &["aa", "c!"], &["ax", "da", "a"]),
            ("[]-]x", "", &["]x", "-x"], &["x", "ax"]),
            (r"\*\[x", "*[x", &["*[x"], &["a[x"]),
            ("*a", "", &["a", "aaa", "ba"], &["", "ab"]),
        ] {
            let glob = Glob::new(pattern).unwrap();
            assert_eq!(glob.prefix, prefix.as_bytes(), "{pattern}");
            assert!(matches.iter().all(|key| glob.matches(key.as_bytes())), "{pattern}");
            assert!(!others.iter().any(|key| glob.matches(key.as_bytes())), "{pattern}");
        }
        for (pattern, why) in [("a\\", "backslash"), ("[a", "without a ]"), ("[^]", "without a ]")] {
            let error = Glob::new(pattern).unwrap_err().to_string();
            assert!(error.contains(why), "{pattern}: {error}");
        }
    }
}
