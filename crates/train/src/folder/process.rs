//! The process behind a run, as recorded in its summary.

use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// Where, how and when a process trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Command line, quoted for a shell.
    pub command: String,
    /// Name of the processor.
    pub processor: String,
    /// Number of compute threads.
    pub threads: usize,
    /// Steps that were done when it started.
    pub from_step: usize,
    /// Start time, RFC 3339 in UTC.
    pub started: String,
    /// End time; None while it runs or if it was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl Process {
    /// This process, starting now.
    pub(crate) fn this(threads: usize, from_step: usize) -> Self {
        Self { command: command_line(), processor: processor(), threads, from_step, started: now(), ended: None }
    }
}

/// The current time, RFC 3339 in UTC, in seconds.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Command line of this process, quoted for a shell; very long ones are cut.
pub(crate) fn command_line() -> String {
    const MOST: usize = 10_000;
    let line = words(|_| true);
    if line.chars().count() <= MOST { line } else { line.chars().take(MOST).chain(" ..".chars()).collect() }
}

/// Command line of this process without `--force`: the command that resumes its work.
pub fn command_that_goes_on() -> String {
    words(|word| word != "--force")
}

/// The accepted words of this command line, quoted for a shell.
fn words(is_wanted: impl Fn(&str) -> bool) -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).filter(|word| is_wanted(word));
    words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
}

/// A word of a command line, in quotes if a shell needs them.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Name of the processor; its architecture where the system does not tell.
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
