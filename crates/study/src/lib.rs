//! Studies of models and runs: signal at init, coordinate check, sanity checks against the literature, speed,
//! comparisons, sweeps, differences and replays of runs, and plots.
//!
//! Built on `unitgain-train`. It never prints: it reports to its caller and uses `tracing`.

pub mod bench;
pub mod compare;
pub mod coord_check;
pub mod diff;
pub mod plot;
pub mod replay;
pub mod sanity;
pub mod self_test;
pub mod signal;
pub mod sweep;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Library;
