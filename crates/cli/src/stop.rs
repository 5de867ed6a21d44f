//! Signals that ask the command to stop. The first lets what goes on come to an end that it can go on from, the second ends
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

/// Whether something asked to stop.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    /// The signal that did, or 0.
    signal: Arc<AtomicUsize>,
    is_installed: Arc<AtomicBool>,
}

impl Stop {
    /// Takes the signals from the first call on, without those that whoever started the command had ignored, as `nohup` does.
    pub(crate) fn install(&self) {
        if self.is_installed.swap(true, Ordering::Relaxed) {
            return;
        }
        let armed = Arc::new(AtomicBool::new(false));
        let ignored = ignored();
        for signal in SIGNALS.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0) {
            // In this order: the signal that arms the shutdown is not the one that it is for.
            let taken = flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&armed))
                .and_then(|_| flag::register(signal, Arc::clone(&armed)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&self.signal), signal as usize));
            if let Err(e) = taken {
                tracing::warn!("signal {signal} cannot be caught, and ends the command at once: {e}");
            }
        }
    }

    /// Takes the end of standard input for a signal: that of whoever started the command.
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

    /// What a callback answers.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.was_asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether something did.
    pub(crate) fn was_asked(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// 128 and the number of the signal, as shells have it.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(128 + self.signal.load(Ordering::Relaxed) as u8)
    }
}

/// The signals that this process was started to ignore, as bits.
fn ignored() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether the process of this number, which started this one, is no more.
#[cfg(unix)]
pub(crate) fn is_orphan_of(parent: u32) -> bool {
    std::os::unix::process::parent_id() != parent
}

/// The end of its input says it there.
#[cfg(not(unix))]
pub(crate) fn is_orphan_of(_: u32) -> bool {
    false
}
