//! Plain text tables that fit the terminal.

use super::printable::{self, cell};
use console::Term;
use std::io::{IsTerminal, Result, Write, stdout};

/// Width if standard output is not a terminal, or one of unknown width.
const WIDTH: usize = 80;
/// Space between columns.
const GAP: usize = 2;
/// Texts narrower than this are not wrapped.
const TEXT: usize = 16;

/// Prints rows under a header, with the columns of `right` (by index) right-aligned. If the table is too wide for the
/// terminal, texts are wrapped; if that is not enough, the columns are split into groups, which all begin with the
/// first column.
pub(crate) fn print(header: &[&str], rows: &[Vec<String>], right: &[usize]) -> Result<()> {
    let terminal = || Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    let width = stdout().is_terminal().then(terminal).flatten().unwrap_or(WIDTH);
    // Escape first: an escape is wider than its character.
    let header: Vec<String> = header.iter().map(|text| cell(text)).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
    let table = Table { header: &header, rows: &rows, right };
    printable::out().write_all(table.laid_out(width).as_bytes())
}

struct Table<'a> {
    header: &'a [&'a str],
    rows: &'a [Vec<String>],
    right: &'a [usize],
}

impl Table<'_> {
    /// Lays out the table. No line is longer than `width`, unless a number with its row's name is.
    fn laid_out(&self, width: usize) -> String {
        let mut text = String::new();
        for (i, group) in self.groups(width).iter().enumerate() {
            if i > 0 {
                text.push('\n');
            }
            let widths = self.widths(group, width);
            let header: Vec<&str> = group.iter().map(|column| self.header[*column]).collect();
            self.push_row(&mut text, group, &header, &widths);
            for row in self.rows {
                let cells: Vec<&str> = group.iter().map(|column| row[*column].as_str()).collect();
                self.push_row(&mut text, group, &cells, &widths);
            }
        }
        text
    }

    /// The columns that are printed side by side.
    fn groups(&self, width: usize) -> Vec<Vec<usize>> {
        let least = |group: &[usize]| {
            let widths = group[1..].iter().map(|column| self.least(*column)).sum::<usize>();
            // A wrapped name cannot be found by grep, so columns move to another group first.
            let name = self.least(0).max(self.wanted(0).min(width * 5 / 8));
            name + widths + GAP * (group.len() - 1)
        };
        let mut groups = vec![vec![0]];
        for column in 1..self.header.len() {
            let group = groups.last_mut().unwrap_or_else(|| unreachable!("there is a first group"));
            group.push(column);
            if group.len() > 2 && least(group) > width {
                group.pop();
                groups.push(vec![0, column]);
            }
        }
        groups
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().map(move |row| row[column].as_str())
    }

    /// The width of a column without wrapping.
    fn wanted(&self, column: usize) -> usize {
        self.cells(column).chain([self.header[column]]).map(length).max().unwrap_or(0)
    }

    /// The minimum width of a column: numbers and headers are not wrapped.
    fn least(&self, column: usize) -> usize {
        let cells = self.cells(column).map(length).max().unwrap_or(0);
        let cells = if self.right.contains(&column) { cells } else { cells.min(TEXT) };
        cells.max(length(self.header[column]))
    }

    /// Column widths of a group: the wanted widths, reducing the widest columns while the sum exceeds `width`. Names,
    /// which are searched for, are wrapped last.
    fn widths(&self, group: &[usize], width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = group.iter().map(|column| self.wanted(*column)).collect();
        while widths.iter().sum::<usize>() + GAP * (group.len() - 1) > width {
            let shrinks = |i: &usize| widths[*i] > self.least(group[*i]);
            let widest = (1..group.len()).filter(shrinks).max_by_key(|i| widths[*i]);
            match widest.or_else(|| Some(0).filter(shrinks)) {
                Some(i) => widths[i] -= 1,
                None => break,
            }
        }
        widths
    }

    fn push_row(&self, text: &mut String, group: &[usize], cells: &[&str], widths: &[usize]) {
        let cells: Vec<Vec<String>> = cells.iter().zip(widths).map(|(cell, width)| broken(cell, *width)).collect();
        let lines = cells.iter().map(Vec::len).max().unwrap_or(1);
        for line in 0..lines {
            let padded: Vec<String> = cells
                .iter()
                .zip(widths)
                .zip(group)
                .map(|((cell, width), column)| {
                    let part = cell.get(line).map_or("", String::as_str);
                    if self.right.contains(column) { format!("{part:>width$}") } else { format!("{part:<width$}") }
                })
                .collect();
            text.push_str(padded.join(&" ".repeat(GAP)).trim_end());
            text.push('\n');
        }
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// The lines of a cell wrapped at `width`, between words if possible, and within longer words.
fn broken(cell: &str, width: usize) -> Vec<String> {
    if length(cell) <= width {
        return vec![cell.to_string()];
    }
    let mut lines = vec![String::new()];
    for word in cell.split(' ') {
        let line = lines.last_mut().unwrap_or_else(|| unreachable!("there is a first line"));
        if line.is_empty() {
            line.push_str(word);
        } else if length(line) + 1 + length(word) <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_string());
        }
        while let Some((at, _)) = lines.last().and_then(|line| line.char_indices().nth(width.max(1))) {
            let rest = lines.last_mut().map(|line| line.split_off(at)).unwrap_or_default();
            lines.push(rest);
        }
    }
    lines
}

/// A number with three or four significant digits.
pub(crate) fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        size if (1e-2..1e4).contains(&size) => format!("{x:.3}"),
        _ => format!("{x:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid_out(header: &[&str], rows: &[&[&str]], right: &[usize], width: usize) -> String {
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
        Table { header, rows: &rows, right }.laid_out(width)
    }

    #[test]
    fn a_table_that_fits_is_as_wide_as_its_cells() {
        let shown = laid_out(&["name", "loss"], &[&["pre_norm", "1.25"], &["re_zero", "12.5"]], &[1], 80);
        assert_eq!(shown, "name      loss\npre_norm  1.25\nre_zero   12.5\n");
    }

    #[test]
    fn texts_are_broken_and_columns_of_numbers_come_in_groups() {
        let row: &[&str] = &["lsuv", "W / sqrt(Var(W x)), layer by layer", "arXiv:1511.06422"];
        let shown = laid_out(&["init", "formula", "source"], &[row], &[], 44);
        assert_eq!(
            shown,
            "init  formula               source\nlsuv  W / sqrt(Var(W x)),   arXiv:1511.06422\n      layer by layer\n"
        );
        let shown = laid_out(&["of", "first", "second", "third"], &[&["x", "1", "2", "3"]], &[1, 2, 3], 18);
        assert_eq!(shown, "of  first  second\nx       1       2\n\nof  third\nx       3\n");
    }

    #[test]
    fn a_word_that_is_too_long_is_broken_and_nothing_is_lost() {
        assert_eq!(broken("sqrt(x_0+x_1+x_2) / 2", 8), ["sqrt(x_0", "+x_1+x_2", ") / 2"]);
        assert_eq!(broken("", 8), [""]);
    }

    /// All tables of these shapes fit, and contain all cells.
    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for columns in 2..14 {
            for letters in [1, 5, 9, 17, 40] {
                for width in [40, 80, 132] {
                    let name = "n".repeat(letters);
                    let header = vec!["growth exponent"; columns];
                    let mut row = vec![format!("row of {name}")];
                    row.extend((1..columns).map(|i| format!("{i}.25e{i}")));
                    row.push(format!("a text with {name} in it"));
                    let header = [header, vec!["text"]].concat();
                    let right: Vec<usize> = (1..columns).collect();
                    let shown = Table { header: &header, rows: &[row.clone()], right: &right }.laid_out(width);
                    let longest = shown.lines().map(length).max().unwrap_or(0);
                    assert!(longest <= width, "{longest} > {width}\n{shown}");
                    assert!((1..columns).all(|i| shown.contains(&row[i])), "{shown}");
                }
            }
        }
    }
}
