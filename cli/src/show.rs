//! The format of numbers, tables and progress. Results go to stdout; progress and errors go to
//! stderr.

use comfy_table::{Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// Formats 1234567 as 1,234,567.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number and its noun: 1 key, 2 keys.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Formats bytes in units of 1024, with three significant digits.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{n} B"),
        (_, v) if v < 10.0 => format!("{v:.2} {}", UNITS[unit]),
        (_, v) if v < 100.0 => format!("{v:.1} {}", UNITS[unit]),
        (_, v) => format!("{v:.0} {}", UNITS[unit]),
    }
}

/// Formats nanoseconds in a suitable unit.
pub fn nanos(ns: f64) -> String {
    match ns {
        n if n < 1_000.0 => format!("{n:.0} ns"),
        n if n < 1_000_000.0 => format!("{:.2} us", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}

/// Formats events per second.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 1e6 => format!("{:.2} M/s", r / 1e6),
        r if r >= 1e3 => format!("{:.0} k/s", r / 1e3),
        r => format!("{r:.0} /s"),
    }
}

/// A table with these column heads.
pub fn table<const N: usize>(heads: [&str; N]) -> Table {
    let mut table = plain_table();
    table.set_header(heads.map(|head| Cell::new(head).add_attribute(Attribute::Bold)));
    table
}

/// What `measure::machine` has said, in lines that fit a terminal.
pub fn machine(said: &str) -> String {
    said.replace("; ", "\n")
}

/// A table with these column heads and many columns. It has no lines.
pub fn narrow_table<const N: usize>(heads: [&str; N]) -> Table {
    let mut table = table(heads);
    table.load_style(presets::NOTHING);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table
}

/// A table without heads: names on the left, values on the right.
pub fn facts() -> Table {
    plain_table()
}

/// Text wrapped at the width of the terminal. Further lines start below the end of `head`.
pub fn paragraph(head: &str, text: &str) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.add_row([head, text]);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, u16::from(at == 0)));
        if at == 0 {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

/// A cell with a number, aligned right.
pub fn number(value: impl Display) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}

/// The name of a file. Others may have given it.
pub fn path(path: &Path) -> String {
    text(path.as_os_str().as_encoded_bytes(), usize::MAX)
}

/// Text in which a terminal finds no commands: control characters are escaped, but for those named.
fn escaped(text: &str, but: &[char]) -> String {
    let escape =
        |c: char| if c.is_control() && !but.contains(&c) { c.escape_default().collect() } else { vec![c] };
    text.chars().flat_map(escape).collect()
}

/// Bytes as text of at most `max` characters. Bytes that are not printable are escaped.
pub fn text(bytes: &[u8], max: usize) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => escaped(text, &[]),
        Err(_) => bytes.escape_ascii().to_string(),
    };
    match text.char_indices().nth(max) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

/// Buffered stdout. Flush it at the end, to see a broken pipe.
pub fn out() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::new(io::stdout().lock())
}

/// Prints a line on stdout and flushes it.
pub fn say(line: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Prints bytes on stdout as they are.
pub fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Prints a line on stderr. It may name what others have made, so control characters are escaped. Errors of
/// writing are ignored.
pub fn complain(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", escaped(&line.to_string(), &['\n', '\t']));
}

/// A progress bar on stderr, hidden when stderr is no terminal. `unit` is what is counted.
pub fn bar(length: u64, what: &'static str, unit: &str) -> ProgressBar {
    let template =
        format!("{{prefix}} {{wide_bar:.cyan/blue}} {{human_pos}}/{{human_len}} {unit}  {{eta}} left");
    styled(ProgressBar::new(length), what, &template)
}

/// A progress bar over the bytes of a file.
pub fn byte_bar(length: u64, what: &'static str) -> ProgressBar {
    let template = "{prefix} {wide_bar:.cyan/blue} {bytes}/{total_bytes}  {msg}  {eta} left";
    styled(ProgressBar::new(length), what, template)
}

/// A progress display for work of unknown length.
pub fn spinner(what: &'static str, unit: &str) -> ProgressBar {
    let template = format!("{{prefix}} {{spinner}} {{human_pos}} {unit}  {{msg}}");
    styled(ProgressBar::new_spinner(), what, &template)
}

fn styled(bar: ProgressBar, what: &'static str, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("━╸─")).with_prefix(what)
}

/// Bold text on a terminal, plain text otherwise.
pub fn bold(text: &str) -> String {
    if io::stdout().is_terminal() { format!("\x1b[1m{text}\x1b[0m") } else { text.into() }
}

/// What stands in a table, row by row.
#[cfg(test)]
pub fn cells(table: &Table) -> Vec<Vec<String>> {
    table.row_iter().map(|row| row.cell_iter().map(Cell::content).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number has three digits or so, and the unit that it is in.
    #[test]
    fn numbers_have_their_units() {
        let counts = [0, 7, 999, 1_000, 12_345, 1_234_567].map(count);
        assert_eq!(counts, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
        let keys = [0, 1, 2, 1_000].map(|n| counted(n, "key"));
        assert_eq!(keys, ["0 keys", "1 key", "2 keys", "1,000 keys"]);
        let sizes = [0, 1023, 1024, 10 << 10, 100 << 10, 5 << 20, 3 << 30, 2 << 40, 5 << 50].map(bytes);
        let expected = [
            "0 B", "1023 B", "1.00 KiB", "10.0 KiB", "100 KiB", "5.00 MiB", "3.00 GiB", "2.00 TiB",
            "5120 TiB",
        ];
        assert_eq!(sizes, expected);
        let times = [0.0, 999.0, 1_000.0, 2_345_000.0, 5e9].map(nanos);
        assert_eq!(times, ["0 ns", "999 ns", "1.00 us", "2.35 ms", "5000.00 ms"]);
        assert_eq!([7.0, 1_500.0, 2_340_000.0].map(rate), ["7 /s", "2 k/s", "2.34 M/s"]);
    }

    /// Bytes are shown so that a terminal takes none of them for a command, and no longer than asked.
    #[test]
    fn bytes_are_shown_as_text() {
        assert_eq!(text(b"plain", 5), "plain");
        assert_eq!(text("\u{3a9}mega".as_bytes(), 3), "\u{3a9}me\u{2026}");
        assert_eq!(text(b"\x1b[2J\n", 40), "\\u{1b}[2J\\n");
        assert_eq!(text(b"\xff\x00", 40), "\\xff\\x00");
        assert_eq!(path(Path::new("/a/\u{1b}[2J\nb")), "/a/\\u{1b}[2J\\nb");
        assert_eq!(escaped("two\nlines\u{9b}2J", &['\n']), "two\nlines\\u{9b}2J");
    }
}
