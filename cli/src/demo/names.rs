//! What the demo puts, the names of all characters, and how it says what it does.

use anyhow::Result;
use oneread::Client;

/// A key and its value.
pub type Named = (Vec<u8>, String);

/// `U+0041` and `LATIN CAPITAL LETTER A`, for every character that has a name of its own.
/// Ideographs and Hangul syllables are left out: their names are made from their numbers by rule.
pub fn character_names() -> Vec<Named> {
    ('\0'..=char::MAX)
        .filter_map(|c| Some((c, unicode_names2::name(c)?.to_string())))
        .filter(|(c, name)| {
            let by_rule =
                name.starts_with("HANGUL SYLLABLE ") || name.ends_with(&format!("-{:04X}", *c as u32));
            !by_rule
        })
        .map(|(c, name)| (format!("U+{:04X}", c as u32).into_bytes(), name))
        .collect()
}

/// A value that names its update's version at its start and at its end. A mixture of two updates,
/// or of two keys, does not parse.
pub struct Versioned;

impl Versioned {
    /// Bytes in addition to the name.
    pub const EXTRA: usize = 10;

    /// The value of an update.
    pub fn value(name: &str, version: u16) -> String {
        format!("{version:04x} {name} {version:04x}")
    }

    /// The version in `value` if an update of this key wrote it; 0 if it is the name alone.
    pub fn parse(value: &[u8], name: &str) -> Option<u16> {
        if value == name.as_bytes() {
            return Some(0);
        }
        let text = std::str::from_utf8(value).ok()?;
        let (head, rest) = text.split_once(' ')?;
        let (middle, tail) = rest.rsplit_once(' ')?;
        (head == tail && middle == name && head.len() == 4).then(|| u16::from_str_radix(head, 16).ok())?
    }
}

/// Says a line of the story, or nothing.
pub type Tell<'a> = dyn Fn(&str) -> std::io::Result<()> + 'a;

/// Threads that read while another one writes.
pub fn readers() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).clamp(1, 4))
}

/// Puts all of these.
pub fn put_all<K: AsRef<[u8]>, V: AsRef<[u8]>>(client: &mut Client, pairs: &[(K, V)]) -> Result<()> {
    client.put_many(pairs)?.into_iter().try_for_each(|answer| Ok(answer.map(drop)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test of the check itself: it finds torn values.
    #[test]
    fn versioned_values() {
        let (a, b) = (Versioned::value("TWO WORDS", 7), Versioned::value("TWO WORDS", 8));
        assert_eq!(Versioned::parse(a.as_bytes(), "TWO WORDS"), Some(7));
        assert_eq!(Versioned::parse(b"TWO WORDS", "TWO WORDS"), Some(0));
        let torn = format!("{}{}", &a[..8], &b[8..]);
        assert_eq!(Versioned::parse(torn.as_bytes(), "TWO WORDS"), None);
        assert_eq!(Versioned::parse(a.as_bytes(), "OTHER"), None);
        assert_eq!(a.len(), "TWO WORDS".len() + Versioned::EXTRA);
    }
}
