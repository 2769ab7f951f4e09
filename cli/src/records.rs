//! Keys and values as text: TSV, CSV, and JSON lines. What `dump` writes, `load` reads.
//!
//! * TSV: `key TAB value`. In both, `\t`, `\n`, `\r` and `\\` have their usual meaning, and `\xHH`
//!   stands for any byte.
//! * CSV: the usual quoting; any bytes.
//! * JSON lines: `{"key": "...", "value": "..."}`. Bytes that are not UTF-8 are in `key_hex` and
//!   `value_hex`.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Key, tab, value; `\t \n \r \\ \xHH` in them
    Tsv,
    /// Key, comma, value; quoted as usual
    Csv,
    /// {"key": "...", "value": "..."} on each line
    Jsonl,
}

impl Format {
    /// The format by the extension of a file's name; TSV if the extension is none of these.
    pub fn of(path: &Path) -> Format {
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Format::Csv,
            Some("jsonl" | "ndjson" | "json") => Format::Jsonl,
            _ => Format::Tsv,
        }
    }
}

/// A key and its value in JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_hex: Option<String>,
}

impl Pair {
    pub fn new(key: &[u8], value: Option<&[u8]>) -> Pair {
        let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(to_hex(bytes))),
        };
        let (key, key_hex) = text(key);
        let (value, value_hex) = value.map(text).unwrap_or_default();
        Pair { key, key_hex, value, value_hex }
    }

    fn into_bytes(self) -> Result<Record, String> {
        let one = |name, text: Option<String>, hex: Option<String>| match (text, hex) {
            (Some(text), None) => Ok(text.into_bytes()),
            (None, Some(hex)) => from_hex(&hex),
            (None, None) => Err(format!("no {name:?} (a string), nor {name}_hex")),
            (Some(_), Some(_)) => Err(format!("both {name:?} and {name}_hex")),
        };
        Ok((one("key", self.key, self.key_hex)?, one("value", self.value, self.value_hex)?))
    }
}

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// A line's number, from 1, and its record, or what is wrong with it.
pub type Line = (u64, Result<Record, String>);

/// Reads records from any input.
pub enum Records<R: Read> {
    Lines { input: io::BufReader<R>, json: bool, line: u64, bytes: u64 },
    Csv { input: Box<csv::Reader<R>> },
}

impl<R: Read> Records<R> {
    pub fn new(input: R, format: Format) -> Records<R> {
        let json = match format {
            Format::Csv => {
                let input = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(input);
                return Records::Csv { input: Box::new(input) };
            }
            Format::Tsv => false,
            Format::Jsonl => true,
        };
        Records::Lines { input: io::BufReader::with_capacity(1 << 16, input), json, line: 0, bytes: 0 }
    }

    /// The number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        match self {
            Records::Lines { bytes, .. } => *bytes,
            Records::Csv { input } => input.position().byte(),
        }
    }

    /// The next record. Empty lines are skipped.
    pub fn next(&mut self) -> Result<Option<Line>> {
        match self {
            Records::Lines { input, json, line, bytes } => loop {
                let mut text = Vec::new();
                let read = input.read_until(b'\n', &mut text).context("reading the input")?;
                if read == 0 {
                    return Ok(None);
                }
                *line += 1;
                *bytes += read as u64;
                let text = text.strip_suffix(b"\n").unwrap_or(&text);
                let text = text.strip_suffix(b"\r").unwrap_or(text);
                if !text.is_empty() {
                    return Ok(Some((*line, if *json { from_json(text) } else { from_tsv(text) })));
                }
            },
            Records::Csv { input } => {
                let mut record = csv::ByteRecord::new();
                if !input.read_byte_record(&mut record).context("reading the input")? {
                    return Ok(None);
                }
                let line = record.position().map_or(0, csv::Position::line);
                let pair = match (record.get(0), record.get(1)) {
                    (Some(key), Some(value)) => Ok((key.to_vec(), value.to_vec())),
                    _ => Err("one column only; key and value are two".into()),
                };
                Ok(Some((line, pair)))
            }
        }
    }
}

fn from_json(line: &[u8]) -> Result<Record, String> {
    serde_json::from_slice::<Pair>(line).map_err(|e| e.to_string())?.into_bytes()
}

fn from_tsv(line: &[u8]) -> Result<Record, String> {
    let mut columns = line.split(|&b| b == b'\t');
    match (columns.next(), columns.next()) {
        (Some(key), Some(value)) => Ok((unescape(key)?, unescape(value)?)),
        _ => Err("no tab between key and value".into()),
    }
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (byte, taken) = match rest {
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', high, low, ..] => (hex_byte(*high, *low)?, 3),
            _ => return Err(r"a backslash that begins none of \t \n \r \\ \xHH".into()),
        };
        out.push(byte);
        rest = &rest[taken..];
    }
    Ok(out)
}

fn escape(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    // Text stays readable: only bytes that are not UTF-8 are escaped.
    for chunk in bytes.utf8_chunks() {
        let mut plain = 0;
        let text = chunk.valid().as_bytes();
        for (at, &byte) in text.iter().enumerate() {
            if byte < b' ' || byte == b'\\' || byte == 0x7f {
                out.write_all(&text[plain..at])?;
                plain = at + 1;
                match byte {
                    b'\t' => out.write_all(br"\t")?,
                    b'\n' => out.write_all(br"\n")?,
                    b'\r' => out.write_all(br"\r")?,
                    b'\\' => out.write_all(br"\\")?,
                    _ => write!(out, r"\x{byte:02x}")?,
                }
            }
        }
        out.write_all(&text[plain..])?;
        for byte in chunk.invalid() {
            write!(out, r"\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// Writes one record.
pub fn write(out: &mut impl Write, format: Format, key: &[u8], value: &[u8]) -> io::Result<()> {
    match format {
        Format::Tsv => {
            escape(key, out)?;
            out.write_all(b"\t")?;
            escape(value, out)?;
            out.write_all(b"\n")
        }
        Format::Csv => {
            quote(key, out)?;
            out.write_all(b",")?;
            quote(value, out)?;
            out.write_all(b"\n")
        }
        Format::Jsonl => {
            let line = serde_json::to_string(&Pair::new(key, Some(value))).map_err(io::Error::other)?;
            writeln!(out, "{line}")
        }
    }
}

fn quote(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    if !bytes.is_empty() && !bytes.iter().any(|b| b",\"\r\n".contains(b)) {
        return out.write_all(bytes);
    }
    out.write_all(b"\"")?;
    for part in bytes.split_inclusive(|&b| b == b'"') {
        out.write_all(part)?;
        if part.ends_with(b"\"") {
            out.write_all(b"\"")?;
        }
    }
    out.write_all(b"\"")
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    if !text.len().is_multiple_of(2) {
        return Err(format!("{text:?} is no hex: an odd number of digits"));
    }
    text.as_bytes().chunks(2).map(|pair| hex_byte(pair[0], pair[1])).collect()
}

fn hex_byte(high: u8, low: u8) -> Result<u8, String> {
    let digit = |c: u8| {
        (c as char).to_digit(16).ok_or_else(|| format!("{:?} is no hex digit", c.escape_ascii().to_string()))
    };
    Ok((digit(high)? << 4 | digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any bytes that are dumped load again, in every format.
    #[test]
    fn round_trip() {
        let nasty: [&[u8]; 7] = [
            b"plain",
            b"tab\tnewline\nreturn\rback\\slash",
            b"quote\"comma,",
            "Omega \u{3a9} \u{1f600}".as_bytes(),
            b"\xff\x00\x80 not text",
            b"\\x41",
            b" ",
        ];
        for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
            let mut text = Vec::new();
            for key in nasty {
                for value in nasty.into_iter().chain([&b""[..]]) {
                    write(&mut text, format, key, value).unwrap();
                }
            }
            let mut records = Records::new(text.as_slice(), format);
            for key in nasty {
                for value in nasty.into_iter().chain([&b""[..]]) {
                    let (_, record) = records.next().unwrap().unwrap();
                    assert_eq!(record, Ok((key.to_vec(), value.to_vec())), "{format:?}");
                }
            }
            assert!(records.next().unwrap().is_none());
            assert_eq!(records.bytes(), text.len() as u64, "{format:?}");
        }
    }

    #[test]
    fn bad_lines_say_why() {
        let reason = |format, text: &str| {
            let (line, record) = Records::new(text.as_bytes(), format).next().unwrap().unwrap();
            (line, record.unwrap_err())
        };
        assert_eq!(reason(Format::Tsv, "\n\nno tab"), (3, "no tab between key and value".into()));
        assert!(reason(Format::Tsv, "a\\q\tb").1.contains("backslash"));
        assert!(reason(Format::Csv, "alone\n").1.contains("one column"));
        assert!(reason(Format::Jsonl, "{\"key\": \"a\"}").1.contains("no \"value\""));
        assert!(reason(Format::Jsonl, "{\"key\": \"a\", \"value\": 1}").1.contains("invalid type"));
        let both = "{\"key\": \"a\", \"value\": \"\", \"value_hex\": \"00\"}";
        assert_eq!(reason(Format::Jsonl, both).1, "both \"value\" and value_hex");
        assert!(reason(Format::Jsonl, "{\"key_hex\": \"4\", \"value\": \"\"}").1.contains("odd number"));
    }

    /// A carriage return is a part of its value, also alone, and at either end.
    #[test]
    fn carriage_returns_come_back() {
        for value in ["\r", "a\rb", "\ra", "a\r"] {
            for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
                let mut out = Vec::new();
                super::write(&mut out, format, b"key", value.as_bytes()).unwrap();
                super::write(&mut out, format, b"next", b"value").unwrap();
                let mut records = Records::new(&out[..], format);
                let mut next = || records.next().unwrap().unwrap().1.unwrap();
                assert_eq!(next(), (b"key".to_vec(), value.as_bytes().to_vec()), "{format:?}");
                assert_eq!(next(), (b"next".to_vec(), b"value".to_vec()), "{format:?}");
            }
        }
    }
}
