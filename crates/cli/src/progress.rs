//! What is seen of a command while it works. Standard error has a bar where it is a terminal that can draw one, which
//! indicatif decides (no pipe, no `TERM=dumb`), and plain counts elsewhere. Lines that are a command's result are on
//! standard output always, and a bar stands aside for them.

use super::printable;
use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};
use std::io::Write;
#[cfg(unix)]
use std::io::stdout;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The bar that is on the terminal.
static DRAWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// A bar of `length`, hidden where none can be drawn; `after` is what stands behind its position, as `{eta} left`.
pub(crate) fn bar(length: u64, before: &str, after: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let template = format!("{{bar:30}} {before}{{pos}}/{{len}} {after}");
    bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    *DRAWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.downgrade());
    bar
}

/// As [`bar`], for a command whose lines come while the bar is there: what reads a pipe mostly writes to the same
/// terminal (`| tee log`), and a bar would be in the midst of its lines.
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

/// Pipes cannot be told from files there.
#[cfg(not(unix))]
fn is_pipe() -> bool {
    false
}

/// Writes past the bar that is on the terminal, if one is.
pub(crate) fn aside<R>(write: impl FnOnce() -> R) -> R {
    let drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match drawn.and_then(|bar| bar.upgrade()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// A line on standard output, which a closed pipe may swallow: the work goes on.
pub(crate) fn line(text: &str) {
    let _ = aside(|| writeln!(printable::out(), "{}", printable::message(text)));
}

/// Counts what is done: by a bar, or by about ten plain lines on standard error.
pub(crate) struct Count {
    bar: ProgressBar,
    what: &'static str,
    /// Tenths that were told.
    told: AtomicU64,
}

impl Count {
    /// A count up to `length`, whose plain lines call each thing a `what`.
    pub(crate) fn new(length: u64, what: &'static str) -> Self {
        let bar = bar(length, &format!("{what} "), "{eta} left");
        Self { bar, what, told: AtomicU64::new(0) }
    }

    /// One more is done.
    pub(crate) fn inc(&self) {
        self.set(self.bar.position() + 1);
    }

    /// `done` things are done, in all.
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
