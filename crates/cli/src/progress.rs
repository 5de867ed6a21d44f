//! Progress display. Standard error has a bar on a terminal that can draw one, as decided by indicatif (no pipe, no
//! `TERM=dumb`), and plain counts elsewhere. The results of a command always go to standard output; a bar is hidden
//! while they are written.

use super::printable;
use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};
use std::io::Write;
#[cfg(unix)]
use std::io::stdout;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The bar on the terminal, if any.
static DRAWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// A bar of `length`, hidden where none can be drawn; `after` is the text after its position, e.g. `{eta} left`.
pub(crate) fn bar(length: u64, before: &str, after: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let template = format!("{{bar:30}} {before}{{pos}}/{{len}} {after}");
    bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    *DRAWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.downgrade());
    bar
}

/// As [`bar`], for a command that prints lines meanwhile. It is hidden if standard output is a pipe, which mostly leads
/// to the same terminal (`| tee log`), where the bar would mix with the lines.
pub(crate) fn bar_among_lines(length: u64, before: &str, after: &str) -> ProgressBar {
    match is_pipe() {
        true => ProgressBar::hidden(),
        false => bar(length, before, after),
    }
}

#[cfg(unix)]
fn is_pipe() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let output = stdout().as_fd().try_clone_to_owned().map(std::fs::File::from);
    output.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Pipes cannot be distinguished from files on this system.
#[cfg(not(unix))]
fn is_pipe() -> bool {
    false
}

/// Writes while the bar is hidden, if there is one.
pub(crate) fn aside<R>(write: impl FnOnce() -> R) -> R {
    let drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match drawn.and_then(|bar| bar.upgrade()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Prints a line; a closed pipe is ignored, so that the work continues.
pub(crate) fn line(text: &str) {
    let _ = aside(|| writeln!(printable::out(), "{}", printable::message(text)));
}

/// Progress as a bar, or as about ten plain lines on standard error.
pub(crate) struct Count {
    bar: ProgressBar,
    what: &'static str,
    /// Tenths that were reported.
    told: AtomicU64,
}

impl Count {
    /// A counter up to `length`, for things called `what`.
    pub(crate) fn new(length: u64, what: &'static str) -> Self {
        let bar = bar(length, &format!("{what} "), "{eta} left");
        Self { bar, what, told: AtomicU64::new(0) }
    }

    /// Adds one.
    pub(crate) fn inc(&self) {
        self.set(self.bar.position() + 1);
    }

    /// Sets the number of things done.
    pub(crate) fn set(&self, done: u64) {
        self.bar.set_position(done);
        let length = self.bar.length().unwrap_or(0).max(1);
        let tenths = 10 * done / length;
        if self.bar.is_hidden() && self.told.fetch_max(tenths, Ordering::Relaxed) < tenths {
            let _ = writeln!(printable::err(), "{} {done}/{length}", self.what);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
