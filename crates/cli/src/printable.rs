//! Text for a terminal. Keys, paths, names and messages come from files, and control characters in them could move the
//! cursor, change text or set the title.

use std::borrow::Cow;
use std::io::{Result, Stderr, Stdout, Write, stderr, stdout};

/// Maximum lines of a message: the at most 50 reported faults of a file, and surrounding text.
const LINES: usize = 60;
/// Maximum characters per line of a message, and per table cell: more than the list of all keys of a table.
const CHARACTERS: usize = 1000;
/// Maximum characters per line of a log, which may list all settings of a run.
const CHARACTERS_OF_LOG: usize = 4000;

/// Escapes characters that a terminal does not show as themselves, like `\u{1b}`: control characters except line breaks
/// and tabs, line and paragraph separators, and characters that change the text direction.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    match text.chars().all(is_printable) {
        true => text.into(),
        false => {
            let mut escaped = String::with_capacity(text.len() + 8);
            for c in text.chars() {
                if is_printable(c) { escaped.push(c) } else { escaped.extend(c.escape_unicode()) }
            }
            escaped.into()
        }
    }
}

/// Whether a character may be printed unchanged.
pub(crate) fn is_printable(c: char) -> bool {
    let changes_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks_lines = matches!(c, '\u{2028}' | '\u{2029}');
    matches!(c, '\n' | '\t') || !(c.is_control() || changes_direction || breaks_lines)
}

/// A [`printable`] message of bounded length: a limited number of lines, each shortened if too long.
pub(crate) fn message(text: &str) -> String {
    bounded(text, CHARACTERS)
}

/// As [`message`], for a log.
pub(crate) fn logged(text: &str) -> String {
    bounded(text, CHARACTERS_OF_LOG)
}

fn bounded(text: &str, characters: usize) -> String {
    let lines: Vec<&str> = text.trim_end_matches('\n').split('\n').collect();
    let mut shown: Vec<String> = lines.iter().take(LINES).map(|line| shortened(&printable(line), characters)).collect();
    if lines.len() > LINES {
        shown.push(format!(".. and {} more lines", lines.len() - LINES));
    }
    shown.join("\n")
}

/// Text of a table cell, in one line.
pub(crate) fn cell(text: &str) -> String {
    shortened(&printable(text).replace('\n', r"\u{a}").replace('\t', r"\u{9}"), CHARACTERS)
}

/// Start and end of a long line with an ellipsis between: a key is at the start, and the problem at the end.
fn shortened(line: &str, characters: usize) -> String {
    let length = line.chars().count();
    if length <= characters {
        return line.into();
    }
    let end = characters / 3;
    line.chars().take(characters - end - 2).chain("..".chars()).chain(line.chars().skip(length - end)).collect()
}

/// Writes [`printable`] text.
pub(crate) struct Printable<W>(W);

/// Standard output for people. Machine-readable output goes to [`raw`].
pub(crate) fn out() -> Printable<Stdout> {
    Printable(stdout())
}

/// Standard error.
pub(crate) fn err() -> Printable<Stderr> {
    Printable(stderr())
}

/// Standard output for unchanged text: JSON, scripts, raw generated text.
pub(crate) fn raw() -> Stdout {
    stdout()
}

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, text: &[u8]) -> Result<usize> {
        self.0.write_all(printable(&String::from_utf8_lossy(text)).as_bytes())?;
        Ok(text.len())
    }
    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        for (text, shown) in [
            ("\x1b[31mred", r"\u{1b}[31mred"),
            ("over\rwritten\x07\x08\x7f", r"over\u{d}written\u{7}\u{8}\u{7f}"),
            ("\u{85}\u{9b}2J", r"\u{85}\u{9b}2J"),
            ("a\u{202e}b\u{2066}c\u{200f}d\u{61c}", r"a\u{202e}b\u{2066}c\u{200f}d\u{61c}"),
            ("a\u{2028}b\u{2029}", r"a\u{2028}b\u{2029}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        for text in ["", "two\nlines\tand a tab", "Größe ∞ 数 \u{fffd}"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn every_character_is_written_or_escaped() {
        for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let shown = printable(c.encode_utf8(&mut [0; 4])).into_owned();
            assert!(shown.chars().all(is_printable), "{c:?}");
            assert!(shown.len() == c.len_utf8() || shown == c.escape_unicode().to_string(), "{c:?}");
            assert!(!c.is_control() || c == '\n' || c == '\t' || shown.starts_with(r"\u{"), "{c:?}");
        }
    }

    #[test]
    fn a_message_is_bounded() {
        let long = message(&format!("key: {}, expected a number", "é".repeat(10_000)));
        assert_eq!(long.chars().count(), CHARACTERS);
        assert!(long.starts_with("key: é") && long.contains("é..é") && long.ends_with(", expected a number"), "{long}");
        let exact = "x".repeat(CHARACTERS);
        assert_eq!(message(&exact), exact);
        let many = message(&"line\n".repeat(1000));
        assert_eq!((many.lines().count(), many.lines().last()), (LINES + 1, Some(".. and 940 more lines")));
        let escaped = message(&"\x1b".repeat(CHARACTERS));
        assert!(escaped.chars().count() <= CHARACTERS, "an escape is longer than its character");
        assert_eq!(message("one\n"), "one");
        assert_eq!(cell("two\nlines\tand a tab"), r"two\u{a}lines\u{9}and a tab");
    }

    /// A command that wrote to standard output itself would not escape its text.
    #[test]
    fn commands_write_through_here() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().is_some_and(|name| name == "printable.rs") {
                continue;
            }
            seen += 1;
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let asks = [".is_terminal()", "Term::stdout()", "as_fd()", "use_stderr()"];
                let asks = asks.iter().any(|call| line.contains(call));
                let writes = ["stdout()", "stderr()", "print!", "println!"].iter().any(|call| line.contains(call));
                assert!(asks || !writes, "{}: {line}", path.display());
            }
        }
        assert!(seen > 10, "{seen}");
    }
}
