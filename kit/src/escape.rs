//! What a terminal shows of text that came from outside: keys, values, names, messages.
//!
//! A terminal takes some characters for commands, and some change the order or the look of those beside them. This module
//! decides which these are, and how they are written instead. All that the command prints passes it, but for what goes
//! into a pipe or a file: there bytes stay as they are.

use std::fmt::Write;

/// How a character is written that a terminal is not to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `\u009b`, as in JSON.
    Json,
    /// `\xc2\x9b`: its bytes, as `load` reads them in TSV.
    Bytes,
}

/// Whether a terminal takes this for more than a sign to show: controls, marks of direction, invisible characters. The
/// joiners of emoji and of scripts are none of these.
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' // marks of direction, a space without width
            | '\u{2028}'..='\u{202e}' // separators of lines, and what turns the direction
            | '\u{2060}'..='\u{206f}' // invisible operators, isolates
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Adds text in which a terminal finds no commands, but for the characters in `but`.
pub fn escape_into(out: &mut String, text: &str, form: Form, but: &[char]) {
    for c in text.chars() {
        if !is_active(c) || but.contains(&c) {
            out.push(c);
            continue;
        }
        // A string takes everything.
        let _ = match (c, form) {
            ('\n', _) => write!(out, "\\n"),
            ('\r', _) => write!(out, "\\r"),
            ('\t', _) => write!(out, "\\t"),
            (c, Form::Json) => {
                c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
            }
            (c, Form::Bytes) => {
                c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(out, "\\x{byte:02x}"))
            }
        };
    }
}

/// Adds bytes in which a terminal finds no commands, but for the characters in `but`. Those that are no UTF-8 are written as
/// `\xff`. Returns how many bytes at the end are the beginning of a character, which were not added.
pub fn escape_bytes_into(out: &mut String, bytes: &[u8], form: Form, but: &[char]) -> usize {
    let mut rest = bytes;
    loop {
        let (valid, invalid) = match std::str::from_utf8(rest) {
            Ok(text) => (text, None),
            Err(error) => {
                let valid = &rest[..error.valid_up_to()];
                (std::str::from_utf8(valid).unwrap_or_default(), Some(error.error_len()))
            }
        };
        escape_into(out, valid, form, but);
        rest = &rest[valid.len()..];
        let Some(invalid) = invalid else { return 0 };
        let Some(invalid) = invalid else { return rest.len() };
        escape_invalid(out, &rest[..invalid]);
        rest = &rest[invalid..];
    }
}

fn escape_invalid(out: &mut String, bytes: &[u8]) {
    // A string takes everything.
    let _ = bytes.iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"));
}

/// Bytes of which no more come, as [`escape_bytes_into`] writes them.
pub fn escaped_bytes(bytes: &[u8], form: Form, but: &[char]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let cut = escape_bytes_into(&mut out, bytes, form, but);
    escape_invalid(&mut out, &bytes[bytes.len() - cut..]);
    out
}

/// Text in which a terminal finds no commands, but for the characters in `but`.
pub fn escaped(text: &str, form: Form, but: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    escape_into(&mut out, text, form, but);
    out
}

/// The length of a command for colors and weight, as tables of this program have them, if the text begins with one.
fn style_len(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\x1b[")?;
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    numbers[end..].starts_with('m').then_some("\x1b[".len() + end + 1)
}

/// Text of several lines that this program has put together: colors and weight stay. All other commands are escaped. In
/// cells of tables, what came from outside was escaped before (`show::text`).
pub fn laid_out(text: &str) -> String {
    let but = &['\n', '\t'];
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\x1b') {
        escape_into(&mut out, &rest[..at], Form::Json, but);
        rest = &rest[at..];
        let style = style_len(rest);
        let (own, after) = rest.split_at(style.unwrap_or(1));
        match style {
            Some(_) => out.push_str(own),
            None => escape_into(&mut out, own, Form::Json, &[]),
        }
        rest = after;
    }
    escape_into(&mut out, rest, Form::Json, but);
    out
}

/// Bytes that come piece by piece, as text for a terminal. Lines and tabs stay. Bytes that are no UTF-8 are escaped.
#[derive(Debug)]
pub struct Stream {
    form: Form,
    /// The beginning of a character whose other bytes have not come.
    cut: Vec<u8>,
}

impl Stream {
    /// Nothing has come yet.
    pub fn new(form: Form) -> Stream {
        Stream { form, cut: Vec::new() }
    }

    /// What is to be shown after these bytes.
    pub fn take(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.cut);
        all.extend_from_slice(bytes);
        let mut out = String::with_capacity(all.len());
        let cut = escape_bytes_into(&mut out, &all, self.form, &['\n', '\t']);
        self.cut = all.split_off(all.len() - cut);
        out
    }

    /// What is left of a character that has no end.
    pub fn end(&mut self) -> String {
        let mut out = String::new();
        escape_invalid(&mut out, &std::mem::take(&mut self.cut));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Controls of one byte and of two, and marks of direction, are written out. Signs of any script stay, and emoji.
    #[test]
    fn a_terminal_sees_no_commands() {
        for (text, json, bytes) in [
            ("plain \u{3a9}", "plain \u{3a9}", "plain \u{3a9}"),
            ("\x1b[2J", "\\u001b[2J", "\\x1b[2J"),
            ("\u{9b}2J", "\\u009b2J", "\\xc2\\x9b2J"),
            ("a\u{202e}b", "a\\u202eb", "a\\xe2\\x80\\xaeb"),
            ("\u{2066}\x7f\0", "\\u2066\\u007f\\u0000", "\\xe2\\x81\\xa6\\x7f\\x00"),
            ("\u{e0041}", "\\udb40\\udc41", "\\xf3\\xa0\\x81\\x81"),
            ("\r\n\t", "\\r\\n\\t", "\\r\\n\\t"),
            ("\u{1f468}\u{200d}\u{1f467}", "\u{1f468}\u{200d}\u{1f467}", "\u{1f468}\u{200d}\u{1f467}"),
        ] {
            assert_eq!(escaped(text, Form::Json, &[]), json);
            assert_eq!(escaped(text, Form::Bytes, &[]), bytes);
        }
        assert_eq!(escaped("a\nb\tc", Form::Json, &['\n', '\t']), "a\nb\tc");
    }

    /// Heads of tables stay bold, and cells green. All other commands beside them are written out.
    #[test]
    fn tables_keep_their_looks() {
        let looks = "\x1b[1mhead\x1b[0m\n\x1b[38;5;10mcell";
        let text = format!("{looks}\x1b[2J\x1b]0;title\x07\x1b[1\x1b");
        assert_eq!(laid_out(&text), format!("{looks}\\u001b[2J\\u001b]0;title\\u0007\\u001b[1\\u001b"));
    }

    /// However bytes come, the same is shown.
    #[test]
    fn pieces_are_put_together() {
        let bytes = b"a\xe2\x80\xaeb\xff\xc3\xa9\n\xe2\x80";
        let whole = "a\\xe2\\x80\\xaeb\\xff\u{e9}\n\\xe2\\x80";
        for length in 1..=bytes.len() {
            let mut stream = Stream::new(Form::Bytes);
            let mut shown: String = bytes.chunks(length).map(|piece| stream.take(piece)).collect();
            shown += &stream.end();
            assert_eq!(shown, whole, "in pieces of {length}");
        }
    }
}
