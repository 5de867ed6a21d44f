//! Runs: one TOML file in, one folder out.
//!
//! A [`RunConfig`] names the model, the data, the optimizer and the schedule; [`train`] turns it into
//! a run folder that holds the resolved configuration, one JSON record per logged step, checkpoints
//! and a summary. The parts work alone too: [`Trainer`] is the step, [`Task`] the data,
//! [`Optimizer`] the update.
//!
//! This is the only crate that knows files, clocks and devices. It never prints: it reports
//! [`Event`]s to its caller and uses `tracing`.

pub mod bench;
pub mod calibrate;
pub mod checkpoint;
pub mod clip;
pub mod compare;
pub mod config;
pub mod coord_check;
pub mod data;
pub mod device;
pub mod diff;
pub mod divergence;
mod error;
mod files;
mod folder;
#[cfg(feature = "flex")]
mod fused;
pub mod generate;
mod gradients;
pub mod memory;
pub mod metrics;
pub mod optim;
pub mod plot;
pub mod process;
mod read;
pub mod replay;
mod run;
pub mod sanity;
pub mod schedule;
pub mod self_test;
pub mod signal;
mod step;
pub mod sweep;

pub use calibrate::{Calibrate, Measured, calibrate};
pub use clip::ClipConfig;
pub use config::RunConfig;
pub use data::{Batch, DataConfig, EvalTokens, HeldOut, Task};
pub use divergence::{Divergence, OnDivergence};
pub use error::Error;
pub use files::Digest;
pub use gradients::Gradients;
pub use metrics::{Record, Summary};
pub use optim::{Optimizer, OptimizerConfig, WeightDecay};
pub use run::{Event, OnEvent, Start, train};
pub use schedule::ScheduleConfig;
pub use step::{HostRow, Measurement, Row, Trainer, loss, read_rows};

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Version of burn that it is built on.
pub const BURN_VERSION: &str = "0.22.1";
