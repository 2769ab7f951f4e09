//! Keys and values as text: TSV, CSV, and JSON lines. What `dump` writes, `load` reads.
//!
//! * TSV: `key TAB value`. In both, `\t`, `\n`, `\r` and `\\` have their usual meaning, and `\xHH`
//!   stands for any byte.
//! * CSV: the usual quoting; any bytes.
//! * JSON lines: `{"key": "...", "value": "..."}`. Bytes that are not UTF-8 are in `key_hex` and
//!   `value_hex`. What `get --json` prints is read, too. Only here there is room for when an entry ends
//!   (`ends_ms`, by the time of day) and whose it is (`owner`).
//!
//! Columns behind the second are skipped, and so are other members in JSON.
//!
//! A byte order mark (BOM) at the beginning of the input is none of the first key's. So `dump` escapes or
//! quotes one with which a key begins.

use anyhow::{Context, Result};
use oneread_kit::escape::Form;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    /// Whether a record has room for more than a key and a value.
    pub fn has_all(self) -> bool {
        self == Format::Jsonl
    }

    /// What is printed line by line: JSON if that is asked for, else TSV.
    pub fn of_lines(json: bool) -> Format {
        if json { Format::Jsonl } else { Format::Tsv }
    }

    /// How a terminal is shown what it would take for a command: so that `load` reads it, where it can be.
    pub fn shown_as(self) -> Form {
        match self {
            Format::Tsv | Format::Csv => Form::Bytes,
            Format::Jsonl => Form::Json,
        }
    }

    /// The format by the extension of a file's name; TSV if the extension is none of these.
    pub fn of(path: &Path) -> Format {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        match &*extension.to_ascii_lowercase() {
            "csv" => Format::Csv,
            "jsonl" | "ndjson" | "json" => Format::Jsonl,
            _ => Format::Tsv,
        }
    }
}

/// A key and its value in JSON, where text is a string. Other members are skipped, as further columns are.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Pair {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<Value>,
    /// Whether `get` found the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<bool>,
    /// When the entry ends, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_ms: Option<u64>,
    /// Whose the entry is, if it is anybody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<u16>,
}

impl Pair {
    pub fn new(key: &[u8], value: Option<&[u8]>) -> Pair {
        let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => (Some(text.into()), None),
            Err(_) => (None, Some(to_hex(bytes).into())),
        };
        let (key, key_hex) = text(key);
        let (value, value_hex) = value.map(text).unwrap_or_default();
        Pair { key, key_hex, value, value_hex, ..Pair::default() }
    }

    /// What `get` tells of a key.
    pub fn found(key: &[u8], value: Option<&[u8]>) -> Pair {
        Pair { found: Some(value.is_some()), ..Pair::new(key, value) }
    }

    fn into_bytes(self) -> Result<Record, String> {
        let text = |name: &str, json| match json {
            Value::String(text) => Ok(text),
            // A number has several texts: 1e2 and 100.
            other => Err(format!("{name:?} is {other}, which is no string; put it in quotes")),
        };
        let one = |name: &str, plain, hex| match (plain, hex) {
            (Some(plain), None) => text(name, plain).map(String::into_bytes),
            (None, Some(hex)) => from_hex(&text(&format!("{name}_hex"), hex)?),
            (None, None) => Err(format!("no {name:?} (a string), nor {name}_hex")),
            (Some(_), Some(_)) => Err(format!("both {name:?} and {name}_hex; leave one out")),
        };
        let key = one("key", self.key, self.key_hex)?;
        if self.found == Some(false) {
            return Err("`get` did not find this key, so there is no value to put".into());
        }
        let value = one("value", self.value, self.value_hex)?;
        let end = self.ends_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
        Ok(Record { end, owner: self.owner.unwrap_or(0), ..Record::new(key, value) })
    }
}

/// A key and its value, and what its entry is beside these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// When the entry ends, by the time of day, which is written in whole milliseconds, rounded up.
    pub end: Option<SystemTime>,
    /// Whose the entry is; 0: nobody's.
    pub owner: u16,
}

impl Record {
    fn new(key: Vec<u8>, value: Vec<u8>) -> Record {
        Record { key, value, end: None, owner: 0 }
    }
}

/// What some programs begin a text with.
const BOM: &[u8] = "\u{feff}".as_bytes();

/// A line's number, from 1, and its record, or what is wrong with it.
pub type Line = (u64, Result<Record, String>);

/// Lines of an input, with their numbers. To the reader of CSV it is one text, of which each read brings a
/// part of one line: so no more has been read than the record that was asked for.
pub struct Lines<R: Read> {
    from: io::BufReader<R>,
    text: Vec<u8>,
    /// How much of `text` has been read.
    at: usize,
    number: u64,
    bytes: u64,
    /// Most bytes of a record, and how many more this one may have.
    record_max: u64,
    left: u64,
    /// The lines of a record of CSV, as they stand in the input.
    record: Vec<u8>,
}

impl<R: Read> Lines<R> {
    fn new(input: R, record_max: u64) -> Lines<R> {
        let from = io::BufReader::with_capacity(1 << 16, input);
        Lines {
            from,
            text: Vec::new(),
            at: 0,
            number: 0,
            bytes: 0,
            record_max,
            left: record_max,
            record: Vec::new(),
        }
    }

    /// What is read from now on is of the next record.
    fn begin_record(&mut self) {
        self.left = self.record_max;
        self.record.clear();
    }

    /// Goes to the next line, or as much of it as the record may have. `false` at the end of the input.
    fn advance(&mut self) -> io::Result<bool> {
        self.text.clear();
        self.at = 0;
        let read = (&mut self.from).take(self.left).read_until(b'\n', &mut self.text)?;
        self.left -= read as u64;
        self.number += u64::from(read > 0);
        if self.number == 1 && self.text.starts_with(BOM) {
            self.text.drain(..BOM.len());
        }
        self.bytes += read as u64;
        Ok(read > 0)
    }

    /// Skips what the record may not have of the line. Returns whether that was anything.
    fn skip_rest(&mut self) -> io::Result<bool> {
        if self.left > 0 || self.text.ends_with(b"\n") {
            return Ok(false);
        }
        let rest = self.from.skip_until(b'\n')? as u64;
        self.bytes += rest;
        Ok(rest > 0)
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.text.len() {
            if self.left == 0 {
                let why = too_long(self.record_max);
                return Err(io::Error::other(format!("{why}; is a quote missing?")));
            }
            self.advance()?;
        }
        // The reader of CSV skips a BOM, too, if its first read brings one.
        let most = if self.number == 1 && self.at == 0 { 1 } else { buffer.len() };
        let read = (&self.text[self.at..]).take(most as u64).read(buffer)?;
        self.record.extend_from_slice(&self.text[self.at..self.at + read]);
        self.at += read;
        Ok(read)
    }
}

/// Reads records from any input.
pub enum Records<R: Read> {
    Lines { input: Lines<R>, json: bool },
    Csv { input: Box<csv::Reader<Lines<R>>> },
}

fn too_long(record_max: u64) -> String {
    format!("a record of more than {record_max} bytes: no key and value of this table are so long")
}

impl<R: Read> Records<R> {
    /// No more than about `record_max` bytes of a record are kept.
    pub fn new(input: R, format: Format, record_max: u64) -> Records<R> {
        let input = Lines::new(input, record_max);
        match format {
            Format::Csv => {
                let input = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(input);
                Records::Csv { input: Box::new(input) }
            }
            Format::Tsv => Records::Lines { input, json: false },
            Format::Jsonl => Records::Lines { input, json: true },
        }
    }

    /// The number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        match self {
            Records::Lines { input, .. } => input.bytes,
            Records::Csv { input } => input.get_ref().bytes,
        }
    }

    /// The next record. Empty lines are skipped.
    pub fn next(&mut self) -> Result<Option<Line>> {
        match self {
            Records::Lines { input, json } => loop {
                input.begin_record();
                if !input.advance().context("reading the input")? {
                    return Ok(None);
                }
                if input.skip_rest().context("reading the input")? {
                    return Ok(Some((input.number, Err(too_long(input.record_max)))));
                }
                let text = input.text.strip_suffix(b"\n").unwrap_or(&input.text);
                let text = text.strip_suffix(b"\r").unwrap_or(text);
                if !text.is_empty() {
                    return Ok(Some((input.number, if *json { from_json(text) } else { from_tsv(text) })));
                }
            },
            Records::Csv { input } => {
                input.get_mut().begin_record();
                let before = input.get_ref().number;
                let mut record = csv::ByteRecord::new();
                let read = input.read_byte_record(&mut record);
                let Lines { number: last, record: text, .. } = input.get_ref();
                let empty = text
                    .split_inclusive(|&byte| byte == b'\n')
                    .take_while(|line| line.trim_ascii().is_empty());
                let first = (before + 1 + empty.count() as u64).min(*last);
                if !read.with_context(|| format!("reading the record that begins in line {first}"))? {
                    return Ok(None);
                }
                let lines =
                    if first == *last { format!("line {last}") } else { format!("lines {first} to {last}") };
                let pair = match (misquoted(text), record.get(0), record.get(1)) {
                    (Some(what), ..) => {
                        Err(format!("{what}; is a quote missing, or one too many, in {lines}?"))
                    }
                    (None, Some(key), Some(value)) => Ok(Record::new(key.to_vec(), value.to_vec())),
                    _ => Err("one column only; key and value are two, with a comma between them".into()),
                };
                Ok(Some((first, pair)))
            }
        }
    }
}

/// What is wrong with the quotes of a record. The reader of CSV takes any.
fn misquoted(text: &[u8]) -> Option<&'static str> {
    let text = text.trim_ascii_start();
    let mut rest = text;
    while !rest.is_empty() && !rest.starts_with(b"\n") && !rest.starts_with(b"\r") {
        let end = |rest: &[u8], is_end: fn(&u8) -> bool| rest.iter().position(is_end).unwrap_or(rest.len());
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            rest = quoted;
            loop {
                rest = &rest[end(rest, |&byte| byte == b'"')..];
                match rest {
                    [] => return Some("a quoted field does not end"),
                    [b'"', b'"', more @ ..] => rest = more,
                    [_, more @ ..] => {
                        rest = more;
                        break;
                    }
                }
            }
            if !matches!(rest.first(), None | Some(b',' | b'\n' | b'\r')) {
                return Some("something follows the quote that ends a field");
            }
        } else {
            rest = &rest[end(rest, |byte| b",\n\r".contains(byte))..];
        }
        rest = rest.strip_prefix(b",").unwrap_or(rest);
    }
    None
}

fn from_json(line: &[u8]) -> Result<Record, String> {
    // The parser takes an array of all members, too.
    if !line.trim_ascii_start().starts_with(b"{") {
        return Err("no object; a record is {\"key\": \"...\", \"value\": \"...\"}".into());
    }
    let pair = serde_json::from_slice::<Pair>(line).map_err(|error| {
        // Each record is a text of its own to the parser. The line is told where all lines are.
        let (text, column) = (error.to_string(), error.column());
        match text.strip_suffix(&format!(" at line {} column {column}", error.line())) {
            Some(text) => format!("{text}, at column {column}"),
            None => text,
        }
    })?;
    pair.into_bytes()
}

fn from_tsv(line: &[u8]) -> Result<Record, String> {
    let mut columns = line.split(|&b| b == b'\t');
    match (columns.next(), columns.next()) {
        (Some(key), Some(value)) => Ok(Record::new(unescape(key)?, unescape(value)?)),
        _ if line.starts_with(b"{") => Err("no tab between key and value; JSON takes --format jsonl".into()),
        _ => Err("no tab between key and value; --format names another format".into()),
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
            escape_key(key, out)?;
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

/// Writes one record, with the end and the owner of its entry where the format has room for them.
pub fn write_whole(out: &mut impl Write, format: Format, record: &Record) -> io::Result<()> {
    let Record { key, value, end, owner } = record;
    if format.has_all() {
        let ends_ms = end.map(|end| {
            let since = end.duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
        });
        let owner = Some(*owner).filter(|&owner| owner != 0);
        let pair = Pair { ends_ms, owner, ..Pair::new(key, Some(value)) };
        return writeln!(out, "{}", serde_json::to_string(&pair).map_err(io::Error::other)?);
    }
    write(out, format, key, value)
}

/// Writes a key on a line of its own, as a record of [`Format::Tsv`] has it.
pub fn write_key(out: &mut impl Write, key: &[u8]) -> io::Result<()> {
    escape_key(key, out)?;
    out.write_all(b"\n")
}

fn escape_key(key: &[u8], out: &mut impl Write) -> io::Result<()> {
    let plain = key.strip_prefix(BOM);
    out.write_all(if plain.is_some() { br"\xef\xbb\xbf" } else { b"" })?;
    escape(plain.unwrap_or(key), out)
}

fn quote(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    let is_plain = !bytes.starts_with(BOM) && !bytes.iter().any(|b| b",\"\r\n".contains(b));
    if is_plain && !bytes.is_empty() {
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
        return Err(format!("{text:?} is no hex: an odd number of digits; give two for each byte"));
    }
    text.as_bytes().chunks(2).map(|pair| hex_byte(pair[0], pair[1])).collect()
}

fn hex_byte(high: u8, low: u8) -> Result<u8, String> {
    let digit = |c: u8| {
        (c as char).to_digit(16).ok_or_else(|| {
            format!("{:?} is no hex digit; these are 0 to 9 and a to f", c.escape_ascii().to_string())
        })
    };
    Ok((digit(high)? << 4 | digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{SizeRange, vec};
    use proptest::prelude::*;
    use proptest::sample::select;

    const LINE_MAX: u64 = 1 << 20;

    /// Of a line without an end, no more is kept than a key and a value may take. The lines after it are read.
    #[test]
    fn long_lines_are_not_kept() {
        for format in [Format::Tsv, Format::Jsonl] {
            // The longest line that there may be; with and without its end; one byte more.
            let mut longest = Vec::new();
            write(&mut longest, format, b"key", &[b'v'; 100]).unwrap();
            let (last, max) = (&longest[..longest.len() - 1], longest.len() as u64);
            let input = [&longest[..], &[b'x'; 1_000], b"\n", &longest, b"\n", last].concat();
            for line_max in [max, max - 1] {
                let mut records = Records::new(&input[..], format, line_max);
                let mut next = || records.next().unwrap().map(|(line, record)| (line, record.is_ok()));
                let fits = line_max == max;
                let expected = [Some((1, fits)), Some((2, false)), Some((3, fits)), Some((5, true)), None];
                assert_eq!(std::array::from_fn::<_, 5, _>(|_| next()), expected, "{format:?}");
                assert_eq!(records.bytes(), input.len() as u64);
            }
        }
        // Without an end, a quoted field goes on to the end of the input.
        let mut csv = Records::new(io::repeat(b'"').chain(&b"\n"[..]), Format::Csv, LINE_MAX);
        let error = format!("{:#}", csv.next().unwrap_err());
        assert!(error.contains("more than 1048576 bytes") && error.contains("quote"), "{error}");
        let line = b"key,value\n".repeat(1_000);
        let mut csv = Records::new(&line[..], Format::Csv, 20);
        (1..=1_000).for_each(|number| assert_eq!(csv.next().unwrap().unwrap().0, number));
    }

    /// JSON lines keep when an entry ends, never sooner than it does, and whose it is. The other formats have no room.
    #[test]
    fn ends_and_owners_come_back() {
        let second = UNIX_EPOCH + Duration::from_millis(1_234);
        for (end, read) in [
            (None, None),
            (Some(second), Some(second)),
            (Some(second - Duration::from_nanos(1)), Some(second)),
        ] {
            for owner in [0, 7, u16::MAX] {
                let record = Record { end, owner, ..Record::new(b"key".into(), b"value".into()) };
                for format in FORMATS {
                    let mut text = Vec::new();
                    write_whole(&mut text, format, &record).unwrap();
                    let (_, back) = Records::new(&text[..], format, LINE_MAX).next().unwrap().unwrap();
                    let expected = match format.has_all() {
                        true => Record { end: read, ..record.clone() },
                        false => Record { end: None, owner: 0, ..record.clone() },
                    };
                    assert_eq!(back.unwrap(), expected, "{format:?}");
                }
            }
        }
    }

    const FORMATS: [Format; 3] = [Format::Tsv, Format::Csv, Format::Jsonl];

    /// A reader that brings one byte at a time, as a pipe may.
    struct Bytewise<'a>(&'a [u8]);

    impl Read for Bytewise<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }

    fn all(input: impl Read, format: Format) -> Vec<Line> {
        let mut records = Records::new(input, format, LINE_MAX);
        std::iter::from_fn(|| records.next().unwrap()).collect()
    }

    /// Bytes with a meaning of their own in some format, beside any others.
    fn bytes(length: impl Into<SizeRange>) -> impl Strategy<Value = Vec<u8>> {
        let special = prop_oneof![
            Just(BOM.to_vec()),
            select(&b"\t\n\r\\\",x{} '\0\x7f#;"[..]).prop_map(|byte| vec![byte]),
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            any::<u8>().prop_map(|byte| vec![byte]),
        ];
        vec(special, length).prop_map(|parts| parts.concat())
    }

    proptest! {
        /// What `dump` writes `load` reads, whatever the keys and values are, however the input comes, and
        /// with a BOM before it or not.
        #[test]
        fn dumped_is_loaded(pairs in vec((bytes(1..6), bytes(0..6)), 0..8)) {
            for format in FORMATS {
                let mut text = Vec::new();
                for (key, value) in &pairs {
                    write(&mut text, format, key, value).unwrap();
                }
                for text in [text.clone(), [BOM, &text].concat()] {
                    for lines in [all(&text[..], format), all(Bytewise(&text), format)] {
                        let lines = lines.into_iter().map(|(_, record)| record.unwrap());
                        let lines: Vec<_> = lines.map(|Record { key, value, .. }| (key, value)).collect();
                        prop_assert_eq!(&lines, &pairs, "{:?}: {:?}", format, text.escape_ascii().to_string());
                    }
                    let mut records = Records::new(&text[..], format, LINE_MAX);
                    while records.next().unwrap().is_some() {}
                    prop_assert_eq!(records.bytes(), text.len() as u64);
                }
            }
            // What `get --json` prints is read as well.
            for (key, value) in &pairs {
                let line = serde_json::to_string(&Pair::found(key, Some(value))).unwrap();
                prop_assert_eq!(from_json(line.as_bytes()), Ok(Record::new(key.clone(), value.clone())));
            }
        }
    }

    /// One BOM goes, at the beginning of the input and nowhere else.
    #[test]
    fn one_byte_order_mark_goes() {
        for (format, line) in [
            (Format::Tsv, "a\tb\n"),
            (Format::Csv, "a,b\n"),
            (Format::Csv, "\"a\",b\n"),
            (Format::Jsonl, "{\"key\": \"a\", \"value\": \"b\"}\n"),
        ] {
            let text = format!("\u{feff}{line}");
            assert_eq!(
                all(text.as_bytes(), format),
                [(1, Ok(Record::new(b"a".into(), b"b".into())))],
                "{format:?}"
            );
        }
        for (format, text) in [
            (Format::Tsv, "\u{feff}\u{feff}a\tb\n\u{feff}c\td\n"),
            (Format::Csv, "\u{feff}\u{feff}a,b\n\u{feff}c,d\n"),
        ] {
            let pair = |key: &str, value: &str| Ok(Record::new(key.into(), value.into()));
            let expected = [(1, pair("\u{feff}a", "b")), (2, pair("\u{feff}c", "d"))];
            assert_eq!(all(text.as_bytes(), format), expected, "{format:?}");
        }
        assert!(all(BOM, Format::Tsv).is_empty() && all(BOM, Format::Csv).is_empty());
    }

    /// Lines are counted from 1, whatever ends them, and a record is at the line that it begins in.
    #[test]
    fn lines_have_their_numbers() {
        for end in ["\n", "\r\n"] {
            let text = ["a,b", "", "\"c\n\",\"d\r\n\"", "e,f", "", "g", "h,i"].join(end);
            let found: Vec<_> = all(text.as_bytes(), Format::Csv).into_iter().map(|(line, _)| line).collect();
            assert_eq!(found, [1, 3, 6, 8, 9], "{end:?}");
            let text = ["a\tb", "", "c", "d\te"].join(end);
            let found: Vec<_> = all(text.as_bytes(), Format::Tsv).into_iter().map(|(line, _)| line).collect();
            assert_eq!(found, [1, 3, 4], "{end:?}");
        }
    }

    #[test]
    fn bad_lines_say_why() {
        let reason = |format, text: &str| {
            let (line, record) = Records::new(text.as_bytes(), format, LINE_MAX).next().unwrap().unwrap();
            (line, record.unwrap_err())
        };
        for (format, text, expected) in [
            (Format::Tsv, "\n\nno tab", (3, "no tab between key and value; --format names another format")),
            (Format::Tsv, "{\"key\": 1}", (1, "no tab between key and value; JSON takes --format jsonl")),
            (
                Format::Csv,
                "\n\nalone\n",
                (3, "one column only; key and value are two, with a comma between them"),
            ),
            (Format::Jsonl, "{\"key\": \"a\"}", (1, "no \"value\" (a string), nor value_hex")),
            (
                Format::Jsonl,
                "\n{\"key\": 1, \"value\": \"\"}",
                (2, "\"key\" is 1, which is no string; put it in quotes"),
            ),
            (
                Format::Jsonl,
                "{\"key\": \"a\", \"value\": 1.50}",
                (1, "\"value\" is 1.5, which is no string; put it in quotes"),
            ),
            (
                Format::Jsonl,
                "{\"key\": \"a\", \"value_hex\": true}",
                (1, "\"value_hex\" is true, which is no string; put it in quotes"),
            ),
            (
                Format::Jsonl,
                "{\"key\": \"a\", \"value\": \"\", \"value_hex\": \"00\"}",
                (1, "both \"value\" and value_hex; leave one out"),
            ),
            (
                Format::Jsonl,
                "{\"key\": \"a\", \"found\": false}",
                (1, "`get` did not find this key, so there is no value to put"),
            ),
            (Format::Jsonl, "\n\n{\"key\": \"a\"", (3, "EOF while parsing an object, at column 11")),
        ] {
            let (line, reason) = reason(format, text);
            assert_eq!((line, &reason[..]), expected, "{text}");
        }
        assert!(reason(Format::Tsv, "a\\q\tb").1.contains("backslash"));
        assert!(reason(Format::Jsonl, "{\"key_hex\": \"4\", \"value\": \"\"}").1.contains("odd number"));
        for text in ["[\"a\", null, \"b\", null]", "7", "\"a\"", " [\"a\", null, \"b\"]"] {
            assert_eq!(
                reason(Format::Jsonl, text).1,
                "no object; a record is {\"key\": \"...\", \"value\": \"...\"}"
            );
        }
        assert_eq!(reason(Format::Jsonl, "{\"kay\": \"a\"}").1, "no \"key\" (a string), nor key_hex");
    }

    /// What a record has beside its key and value is skipped in each format.
    #[test]
    fn what_is_more_is_skipped() {
        for (format, text) in [
            (Format::Tsv, "a\tb\tc\td\n"),
            (Format::Csv, "a,b,c,d\n"),
            (Format::Jsonl, "{\"key\": \"a\", \"rank\": [1, {}], \"value\": \"b\", \"change\": \"came\"}\n"),
        ] {
            assert_eq!(
                all(text.as_bytes(), format),
                [(1, Ok(Record::new(b"a".into(), b"b".into())))],
                "{format:?}"
            );
        }
    }

    /// The case of an extension does not matter.
    #[test]
    fn extensions_name_formats() {
        for (name, format) in [
            ("a.csv", Format::Csv),
            ("A.CSV", Format::Csv),
            ("a.Jsonl", Format::Jsonl),
            ("a.NDJSON", Format::Jsonl),
            ("a.json", Format::Jsonl),
            ("a.tsv", Format::Tsv),
            ("csv", Format::Tsv),
        ] {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }

    /// A carriage return is a part of its value, also alone, and at either end.
    #[test]
    fn carriage_returns_come_back() {
        for value in ["\r", "a\rb", "\ra", "a\r"] {
            for format in [Format::Tsv, Format::Csv, Format::Jsonl] {
                let mut out = Vec::new();
                super::write(&mut out, format, b"key", value.as_bytes()).unwrap();
                super::write(&mut out, format, b"next", b"value").unwrap();
                let mut records = Records::new(&out[..], format, LINE_MAX);
                let mut next = || records.next().unwrap().unwrap().1.unwrap();
                assert_eq!(next(), Record::new(b"key".into(), value.as_bytes().into()), "{format:?}");
                assert_eq!(next(), Record::new(b"next".into(), b"value".into()), "{format:?}");
            }
        }
    }
}
