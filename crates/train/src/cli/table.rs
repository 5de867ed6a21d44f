//! Plain text tables.

use std::io::{Result, Write, stdout};

/// Prints rows under a header, each column as wide as its widest cell; those of `right` (by index)
/// are aligned to the right.
pub(crate) fn print(header: &[&str], rows: &[Vec<String>], right: &[usize]) -> Result<()> {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .enumerate()
            .map(|(i, cell)| match right.contains(&i) {
                true => format!("{cell:>width$}", width = widths[i]),
                false => format!("{cell:<width$}", width = widths[i]),
            })
            .collect();
        padded.join("  ").trim_end().to_string()
    };
    let mut out = stdout().lock();
    writeln!(out, "{}", line(&mut header.iter().copied()))?;
    for row in rows {
        writeln!(out, "{}", line(&mut row.iter().map(String::as_str)))?;
    }
    Ok(())
}

/// A number with three or four digits that count.
pub(crate) fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        size if (1e-2..1e4).contains(&size) => format!("{x:.3}"),
        _ => format!("{x:.1e}"),
    }
}
