//! The process that makes a run, as it is written beside the run's numbers.

use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// Where, how and when a process made steps of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its command line, as a shell takes it.
    pub command: String,
    /// Name of the processor.
    pub processor: String,
    /// Threads that it computed with.
    pub threads: usize,
    /// Steps that the run had when it started.
    pub from_step: usize,
    /// When it started, RFC 3339 in UTC.
    pub started: String,
    /// When it ended; None while it goes on, or where it was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl Process {
    /// This one, from now on.
    pub(crate) fn this(threads: usize, from_step: usize) -> Self {
        Self { command: command_line(), processor: processor(), threads, from_step, started: now(), ended: None }
    }
}

/// The time, RFC 3339 in UTC, to the second.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The command line of this process, as a shell takes it, without the end of a very long one.
pub(crate) fn command_line() -> String {
    const MOST: usize = 10_000;
    let line = words(|_| true);
    if line.chars().count() <= MOST { line } else { line.chars().take(MOST).chain(" ..".chars()).collect() }
}

/// The command line of this process without its `--force`: what goes on with what it made.
pub fn command_that_goes_on() -> String {
    words(|word| word != "--force")
}

/// The words of this command line that are wanted, as a shell takes them.
fn words(is_wanted: impl Fn(&str) -> bool) -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).filter(|word| is_wanted(word));
    words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

/// A word of a command line, in quotes where a shell needs them.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Name of the processor, or of its architecture where the system does not say.
pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        for (word, expected) in [
            ("runs/a-b_1.toml", "runs/a-b_1.toml"),
            ("optimizer.lr=1e-3", "optimizer.lr=1e-3"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("$HOME;x", "'$HOME;x'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn the_time_is_that_of_the_system() {
        assert!(humantime::parse_rfc3339(&now()).unwrap().elapsed().unwrap().as_secs() < 5);
    }
}
