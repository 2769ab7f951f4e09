//! The format of numbers and tables. Results go to stdout; errors go to stderr.

use crate::escape::{self, Form};
use comfy_table::{Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
pub use oneread::internals::units::{bytes, nanos, time};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

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

/// Like `counted`, of a noun in its plural: 1 kill, 2 kills; of what has no singular, as it is.
pub fn counted_as(n: u64, nouns: &str) -> String {
    match nouns.strip_suffix('s') {
        Some(noun) => counted(n, noun),
        None => format!("{} {nouns}", count(n)),
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

/// A narrow table with these column heads and a row for each item.
pub fn rows<T, const N: usize>(
    heads: [&str; N],
    items: impl IntoIterator<Item = T>,
    cells: impl FnMut(T) -> [Cell; N],
) -> Table {
    let mut table = narrow_table(heads);
    table.add_rows(items.into_iter().map(cells));
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

/// A row of facts: a name, and a value on the right.
pub fn fact(name: impl Display, value: impl Display) -> [Cell; 2] {
    [Cell::new(name), number(value)]
}

/// A cell that heads its row.
pub fn head(value: impl Display) -> Cell {
    Cell::new(value).add_attribute(Attribute::Bold)
}

/// The name of a file. Others may have given it.
pub fn path(path: &Path) -> String {
    text(path.as_os_str().as_encoded_bytes(), usize::MAX)
}

/// Bytes as text of at most `max` characters. Bytes that are not printable are escaped.
pub fn text(bytes: &[u8], max: usize) -> String {
    let text = escape::escaped_bytes(bytes, Form::Json, &[]);
    match text.char_indices().nth(max) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

/// A name that came from outside, or has such a name in it, as an address and an error do: on one line.
pub fn name(name: impl Display) -> String {
    text(name.to_string().as_bytes(), usize::MAX)
}

/// The answer of [`is_terminal`].
static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());

/// Whether somebody reads the output on a terminal.
pub fn is_terminal() -> bool {
    *IS_TERMINAL
}

/// An error of stdout, by its name: of others a command names what it wrote to.
pub fn of_output(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("writing the output: {error}"))
}

/// Buffered stdout. Flush it at the end, to see a broken pipe. A terminal is shown no commands; a pipe or a file gets the
/// bytes as they are.
#[derive(Debug)]
pub struct Out {
    to: io::BufWriter<io::Stdout>,
    /// For a terminal.
    shown: Option<escape::Stream>,
}

/// Buffered stdout, for text of which a terminal is shown commands in this form.
pub fn out(form: Form) -> Out {
    let to = io::BufWriter::with_capacity(1 << 16, io::stdout());
    Out { to, shown: IS_TERMINAL.then(|| escape::Stream::new(form)) }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.shown {
            None => self.to.write(bytes).map_err(of_output),
            Some(shown) => {
                self.to.write_all(shown.take(bytes).as_bytes()).map_err(of_output)?;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let rest = self.shown.as_mut().map(escape::Stream::end).unwrap_or_default();
        self.to.write_all(rest.as_bytes()).and_then(|()| self.to.flush()).map_err(of_output)
    }
}

/// Prints a line on stdout and flushes it. A terminal is shown no commands.
pub fn say(line: impl Display) -> io::Result<()> {
    say_by(line, |line| escape::escaped(line, Form::Json, &['\n', '\t']))
}

/// Prints what this program has laid out, as tables, whose cells and names were escaped before ([`text`], [`name`]): a
/// terminal is shown colors and weight, and no other command.
pub fn lay_out(text: impl Display) -> io::Result<()> {
    say_by(text, escape::laid_out)
}

fn say_by(line: impl Display, shown: impl Fn(&str) -> String) -> io::Result<()> {
    let line = format!("{line}\n");
    let line = if *IS_TERMINAL { shown(&line) } else { line };
    write(line.as_bytes())
}

/// Prints what came of a command: a line of JSON for a script, or what `tell` prints for people.
pub fn outcome<E: Into<anyhow::Error>>(
    json: bool,
    what: &impl Serialize,
    tell: impl FnOnce() -> Result<(), E>,
) -> anyhow::Result<()> {
    match json {
        true => Ok(say(serde_json::to_string(what)?)?),
        false => tell().map_err(Into::into),
    }
}

/// Like `outcome`, with JSON of many lines.
pub fn pretty<E: Into<anyhow::Error>>(
    json: bool,
    what: &impl Serialize,
    tell: impl FnOnce() -> Result<(), E>,
) -> anyhow::Result<()> {
    match json {
        true => Ok(say(serde_json::to_string_pretty(what)?)?),
        false => tell().map_err(Into::into),
    }
}

/// Prints bytes on stdout as they are: what this program has made itself.
pub fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(of_output)
}

/// Prints a line on stderr. It may name what others have made, so what a terminal takes for commands is escaped. Errors
/// of writing are ignored.
pub fn complain(line: impl Display) {
    let line = escape::escaped(&line.to_string(), Form::Json, &['\n', '\t']);
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether the terminal has no styles, and no places to write to (`TERM=dumb`).
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Whether stdout is a terminal, and no dumb one.
pub fn is_screen() -> bool {
    io::stdout().is_terminal() && !is_dumb()
}

/// Bold text on a terminal, plain text otherwise.
pub fn bold(text: &str) -> String {
    if is_screen() { format!("\x1b[1m{text}\x1b[0m") } else { text.into() }
}

/// What stands in a table, row by row. Tests look at it.
pub fn cells(table: &Table) -> Vec<Vec<String>> {
    table.row_iter().map(|row| row.cell_iter().map(Cell::content).collect()).collect()
}

/// The exit status: 1 if the command worked, but not for every key or line.
pub fn status(all_well: bool) -> ExitCode {
    if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
        assert_eq!([7.0, 1_500.0, 2_340_000.0].map(rate), ["7 /s", "2 k/s", "2.34 M/s"]);
    }

    /// Bytes are shown so that a terminal takes none of them for a command, and no longer than asked.
    #[test]
    fn bytes_are_shown_as_text() {
        assert_eq!(text(b"plain", 5), "plain");
        assert_eq!(text("\u{3a9}mega".as_bytes(), 3), "\u{3a9}me\u{2026}");
        assert_eq!(text(b"\x1b[2J\n", 40), "\\u001b[2J\\n");
        assert_eq!(text(b"\xff\x00\xe2\x80", 40), "\\xff\\u0000\\xe2\\x80");
        assert_eq!(name(format_args!("shm:{}", "\x1b[1m\n")), "shm:\\u001b[1m\\n");
        assert_eq!(path(Path::new("/a/\u{1b}[2J\nb")), "/a/\\u001b[2J\\nb");
    }
}
