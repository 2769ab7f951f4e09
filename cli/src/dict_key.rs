//! Keys of a `SharedDict` of Python's that are no text, as Python writes them (docs/PYTHON.md, "Keys as bytes").
//!
//! UTF-8 never begins with a byte of 0xF7 and above, so these keys are no other program's text. They are shown so on a
//! terminal only: elsewhere bytes are input for another command.

use oneread_kit::escape::{self, Form};

const BYTES: u8 = 0xff;
const INT: u8 = 0xfe;
const TUPLE: u8 = 0xfd;
const EMPTY: u8 = 0xfc;
const OTHER: u8 = 0xf9;

/// The longest chain of tuples within tuples: each takes two bytes of a key of 255.
const DEPTH_MAX: usize = 128;

/// The key as Python writes it. `None` where it is none of these, or is text.
pub fn shown(key: &[u8]) -> Option<String> {
    let is_dict_key = matches!(key.first()?, &OTHER | EMPTY..);
    if is_dict_key { part(key, DEPTH_MAX) } else { None }
}

fn part(key: &[u8], depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let (&head, rest) = key.split_first()?;
    Some(match head {
        BYTES => format!("b'{}'", rest.escape_ascii()),
        INT => {
            let text = std::str::from_utf8(rest).ok()?;
            let digits = text.strip_prefix('-').unwrap_or(text);
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.to_owned())?
        }
        TUPLE => tuple(&parts(rest, depth, |rest| {
            let (&len, behind) = rest.split_first()?;
            behind.split_at_checked(len.into())
        })?),
        OTHER => other(rest, depth)?,
        EMPTY if rest.is_empty() => "''".into(),
        _ => {
            let text = std::str::from_utf8(key).ok()?;
            let text = text.replace('\\', "\\\\").replace('\'', "\\'");
            format!("'{}'", escape::escaped(&text, Form::Json, &[]))
        }
    })
}

/// Parts that stand one behind the other.
fn parts<'a>(
    mut rest: &'a [u8],
    depth: usize,
    split: impl Fn(&'a [u8]) -> Option<(&'a [u8], &'a [u8])>,
) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (one, behind) = split(rest)?;
        parts.push(part(one, depth)?);
        rest = behind;
    }
    Some(parts)
}

fn tuple(parts: &[String]) -> String {
    match parts {
        [one] => format!("({one},)"),
        parts => format!("({})", parts.join(", ")),
    }
}

/// A key of another type: a letter, and what it is.
fn other(key: &[u8], depth: usize) -> Option<String> {
    let (letter, rest) = key.split_first()?;
    let sized = |rest: &'_ [u8]| {
        parts(rest, depth, |rest| {
            let (len, behind) = rest.split_first_chunk()?;
            behind.split_at_checked(u32::from_le_bytes(*len) as usize)
        })
    };
    let text =
        || std::str::from_utf8(rest).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    Some(match letter {
        b'n' if rest.is_empty() => "None".into(),
        b'f' => text()?.into(),
        b'd' => format!("Decimal('{}')", text()?),
        b's' => format!("frozenset({{{}}})", sized(rest)?.join(", ")),
        b't' => tuple(&sized(rest)?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of key is as Python writes it, within tuples, too. What is text, of `memoize`, or cut is none.
    #[test]
    fn keys_are_as_python_writes_them() {
        for (key, python) in [
            (&b"\xfd\x04user\x03\xfe42"[..], "('user', 42)"),
            (b"\xfd\x02\xfe7", "(7,)"),
            (b"\xfd", "()"),
            (b"\xfd\x05\xfd\x03\xfe-1\x01\xfc", "((-1,), '')"),
            (b"\xff\x00a'", "b'\\x00a\\''"),
            (b"\xfe-12", "-12"),
            (b"\xfc", "''"),
            (b"\xf9n", "None"),
            (b"\xf9f1.5", "1.5"),
            (b"\xfd\x05\xf9f1.5\x02\xf9n", "(1.5, None)"),
            (b"\xf9d0.1", "Decimal('0.1')"),
            (b"\xf9s\x03\0\0\0\xfe-1\x02\0\0\0\xfe7", "frozenset({-1, 7})"),
            (b"\xf9t\x02\0\0\0\xfe7", "(7,)"),
            (b"\xf9t\x09\0\0\0\xfe7", ""),
            (b"\xf9nx", ""),
            (b"\xf9f\x1b", ""),
            (b"\xf9", ""),
            (b"\xf8hash", ""),
            ("\u{fd}".as_bytes(), ""),
            (b"\xfd\x04it's", "('it\\'s',)"),
            (b"\xfd\x03a\x1bb", "('a\\u001bb',)"),
            (b"plain", ""),
            (b"", ""),
            (b"\xfe1x", ""),
            (b"\xfe", ""),
            (b"\xfe-", ""),
            (b"\xfcx", ""),
            (b"\xfd\x05user", ""),
            (b"\xfd\x00", ""),
            (b"\xfb\x01", ""),
            (b"\xfa", ""),
        ] {
            assert_eq!(shown(key).unwrap_or_default(), python, "{key:?}");
        }
        let mut nested = vec![0xfd];
        for _ in 0..126 {
            nested = [&[0xfd, nested.len() as u8][..], &nested].concat();
        }
        assert!(shown(&nested).unwrap().starts_with("(((("));
        assert_eq!(shown(&[0xfd; 300]), None);
    }
}
