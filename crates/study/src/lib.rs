//! What is measured of models and runs: the signal at init, the coordinate check, sanity checks against the literature, speed,
//! comparisons, sweeps, differences and replays of runs, and their plots.
//!
//! It stands on `unitgain-train` and never prints: it reports to its caller and uses `tracing`.

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
