//! Rows of figures in columns that fit a terminal. Nothing is broken over lines, and no digit is cut:
//! where there is little room, texts become shorter, and the columns that matter least are left out.

use oneread_kit::show;
use std::io::{self, IsTerminal};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between two columns.
const GAP: usize = 2;

/// A column's head, and what may become of it where there is little room.
#[derive(Clone, Copy)]
pub struct Column {
    head: &'static str,
    is_number: bool,
    /// How short its texts may become.
    least: Option<usize>,
    /// 0 stays; of the others the one with the highest rank goes first.
    rank: u8,
    /// Stands on a line of its own where it does not fit.
    is_whole: bool,
}

impl Column {
    /// Figures, on the right side.
    pub const fn number(head: &'static str) -> Column {
        Column { head, is_number: true, least: None, rank: 0, is_whole: false }
    }

    pub const fn text(head: &'static str) -> Column {
        Column { is_number: false, ..Column::number(head) }
    }

    /// Its texts may be cut down to so many characters.
    pub const fn least(self, characters: usize) -> Column {
        Column { least: Some(characters), ..self }
    }

    /// It may be left out; those with higher ranks first.
    pub const fn rank(self, rank: u8) -> Column {
        Column { rank, ..self }
    }

    /// The last column, of paths: each stands on a line of its own where it does not fit.
    pub const fn whole(head: &'static str) -> Column {
        Column { is_whole: true, ..Column::text(head) }
    }
}

pub struct Columns<const N: usize> {
    columns: [Column; N],
    rows: Vec<([String; N], &'static str)>,
}

impl<const N: usize> Columns<N> {
    pub fn new(columns: [Column; N]) -> Columns<N> {
        Columns { columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: [String; N]) {
        self.styled(cells, "");
    }

    /// A row in a style of the terminal, as in `1;32` for bold and green.
    pub fn styled(&mut self, cells: [String; N], style: &'static str) {
        // Others may have given it, as they give names.
        let cells = cells.map(|cell| show::text(cell.as_bytes(), usize::MAX));
        self.rows.push((cells, style));
    }

    /// The lines for a terminal of this width, or of any width. A column without content is left out.
    pub fn lines(&self, width: Option<usize>) -> Vec<String> {
        let mut widths: [Option<usize>; N] = std::array::from_fn(|n| {
            let content = self.rows.iter().map(|(cells, _)| cells[n].width()).max().unwrap_or(0);
            (content > 0).then(|| content.max(self.columns[n].head.width()))
        });
        let room = width.unwrap_or(usize::MAX);
        let mut below = None;
        loop {
            let shown = || (0..N).filter(|&n| below != Some(n)).filter_map(|n| Some((n, widths[n]?)));
            let over = (shown().map(|(_, width)| width + GAP).sum::<usize>())
                .saturating_sub(GAP + room.min(1 << 20));
            if over == 0 {
                break;
            }
            let to_cut = |n: usize, width: usize| {
                width.saturating_sub(
                    self.columns[n].least.map_or(width, |least| least.max(self.columns[n].head.width())),
                )
            };
            let cut = shown().map(|(n, width)| (to_cut(n, width), n)).max().filter(|(most, _)| *most > 0);
            let whole = shown().find(|(n, _)| self.columns[*n].is_whole);
            let dropped = shown().map(|(n, _)| (self.columns[n].rank, n)).max().filter(|(rank, _)| *rank > 0);
            if let Some((most, n)) = cut {
                widths[n] = widths[n].map(|width| width - over.min(most));
            } else if let Some((n, _)) = whole {
                below = Some(n);
            } else if let Some((_, n)) = dropped {
                widths[n] = None;
            } else {
                break;
            }
        }
        let mut lines = vec![self.line(&self.columns.map(|column| column.head.to_owned()), &widths, below)];
        let has_styles = width.is_some() && !show::is_dumb();
        for (cells, style) in &self.rows {
            let line = self.line(cells, &widths, below);
            let ends = if has_styles && !style.is_empty() {
                (format!("\x1b[{style}m"), "\x1b[0m")
            } else {
                Default::default()
            };
            lines.push(format!("{}{line}{}", ends.0, ends.1));
            lines.extend(below.map(|n| format!("{:GAP$}{}", "", cells[n])));
        }
        lines
    }

    fn line(&self, cells: &[String; N], widths: &[Option<usize>; N], below: Option<usize>) -> String {
        let mut line = String::new();
        for (n, cell) in cells.iter().enumerate().filter(|(n, _)| below != Some(*n)) {
            let Some(width) = widths[n] else { continue };
            let cell = shortened(cell, width);
            let free = " ".repeat(width - cell.width().min(width));
            let gap = if line.is_empty() { "" } else { "  " };
            line += &if self.columns[n].is_number {
                format!("{gap}{free}{cell}")
            } else {
                format!("{gap}{cell}{free}")
            };
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// All lines, for the terminal that stdout is, or as they are.
    pub fn text(&self) -> String {
        self.lines(width()).join("\n")
    }
}

/// The first of a text's characters, with a sign that there are more.
pub fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut out = String::new();
    for c in text.chars() {
        if out.width() + c.width().unwrap_or(0) >= width {
            break;
        }
        out.push(c);
    }
    out + "…"
}

/// The width of the terminal that stdout is.
pub fn width() -> Option<usize> {
    size().map(|(width, _)| width)
}

/// Columns and lines of the terminal that stdout is.
pub fn size() -> Option<(usize, usize)> {
    let stdout = io::stdout();
    let (width, height) = stdout.is_terminal().then(|| terminal_size::terminal_size_of(stdout)).flatten()?;
    Some((width.0.into(), height.0.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Columns<5> {
        let mut table = Columns::new([
            Column::number("size"),
            Column::text("name").least(4),
            Column::number("rare").rank(2),
            Column::number("seldom").rank(1),
            Column::text("never"),
        ]);
        table.row(["1,234,567".into(), "a long name".into(), "8".into(), "99".into(), String::new()]);
        table.styled(["8".into(), "näme".into(), "1".into(), "100".into(), String::new()], "1;32");
        table
    }

    /// Where there is room, all stands in columns. A pipe gets no styles.
    #[test]
    fn columns_stand_below_each_other() {
        let all = [
            "     size  name         rare  seldom",
            "1,234,567  a long name     8      99",
            "        8  näme            1     100",
        ];
        assert_eq!(table().lines(None), all);
        let styled = table().lines(Some(80));
        assert_eq!((&styled[1][..], &styled[2]), (all[1], &format!("\x1b[1;32m{}\x1b[0m", all[2])));
    }

    /// Texts become shorter first. Then columns are left out, by their rank. Figures stay as they are.
    #[test]
    fn little_room_cuts_no_digit() {
        let lines = |width| table().lines(Some(width)).join("\n");
        assert!(lines(34).contains("1,234,567  a long n…     8      99"), "{}", lines(34));
        assert!(lines(29).contains("1,234,567  a l…     8      99"), "{}", lines(29));
        assert!(lines(28).contains("1,234,567  a l…      99"), "{}", lines(28));
        assert!(lines(20).ends_with("        8  näme\x1b[0m"), "{}", lines(20));
        assert!(lines(3).contains("1,234,567  a l…"), "{}", lines(3));
    }

    /// A path that does not fit has a line of its own.
    #[test]
    fn paths_stay_whole() {
        let mut table = Columns::new([Column::number("size"), Column::whole("file")]);
        table.row(["12 B".into(), "/a/long/path/of/a/file".into()]);
        assert_eq!(table.lines(Some(40))[1], "12 B  /a/long/path/of/a/file");
        assert_eq!(table.lines(Some(20)), ["size", "12 B", "  /a/long/path/of/a/file"]);
    }
}
