//! Stopping by signals. The first signal ends the command in a state from which it can be resumed, the second ends it
//! at once.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::Read;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(unix)]
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// A shared flag that a stop was requested.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    /// The signal received, or 0.
    signal: Arc<AtomicUsize>,
    is_installed: Arc<AtomicBool>,
}

impl Stop {
    /// Catches signals from the first call on, except those that are ignored since the start, as under `nohup`.
    pub(crate) fn install(&self) {
        if self.is_installed.swap(true, Ordering::Relaxed) {
            return;
        }
        let armed = Arc::new(AtomicBool::new(false));
        let ignored = ignored();
        for signal in SIGNALS.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0) {
            // In this order, so that the signal that arms the shutdown does not trigger it.
            let taken = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&armed))
                .and_then(|_| flag::register(signal, Arc::clone(&armed)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&self.signal), signal as usize));
            if let Err(e) = taken {
                tracing::warn!("signal {signal} cannot be caught, and ends the command at once: {e}");
            }
        }
    }

    /// Treats the end of standard input, held by the parent process, as a signal.
    pub(crate) fn with_input(&self) {
        let signal = Arc::clone(&self.signal);
        let watch = move || {
            let mut input = std::io::stdin().lock();
            let mut bytes = [0; 64];
            while input.read(&mut bytes).is_ok_and(|n| n > 0) {}
            let _ = signal.compare_exchange(0, SIGTERM as usize, Ordering::Relaxed, Ordering::Relaxed);
        };
        if let Err(e) = std::thread::Builder::new().name("input".into()).spawn(watch) {
            tracing::warn!("the run will not stop with the command that started it: {e}");
        }
    }

    /// The return value for callbacks: break after a request.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.was_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether a stop was requested.
    pub(crate) fn was_asked(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// 128 plus the number of the signal, as shells do.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(128 + self.signal.load(Ordering::Relaxed) as u8)
    }
}

/// Bit mask of the signals ignored since the start of this process.
fn ignored() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether the process `parent`, which started this one, has exited.
#[cfg(unix)]
pub(crate) fn is_orphan_of(parent: u32) -> bool {
    std::os::unix::process::parent_id() != parent
}

/// On this system the end of standard input tells.
#[cfg(not(unix))]
pub(crate) fn is_orphan_of(_: u32) -> bool {
    false
}
