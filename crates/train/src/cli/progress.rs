//! Progress bars.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};

/// A bar of `length` on a terminal, a hidden one elsewhere; `after` is what stands behind its position, as `{eta} left`.
pub(crate) fn bar(length: u64, before: &str, after: &str) -> ProgressBar {
    let bar = if stderr().is_terminal() { ProgressBar::new(length) } else { ProgressBar::hidden() };
    let template = format!("{{bar:30}} {before}{{pos}}/{{len}} {after}");
    bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
