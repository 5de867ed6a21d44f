//! Runs: one TOML file in, one folder out.
//!
//! A [`RunConfig`] names the model, the data, the optimizer and the schedule; [`train`] turns it into
//! a run folder that holds the resolved configuration, one JSON record per logged step, checkpoints
//! and a summary. The parts work alone too: [`Trainer`] is the step, [`Task`] the data,
//! [`Optimizer`] the update.
//!
//! This is the only crate that knows files, clocks and devices. It never prints: it reports
//! [`Event`]s to its caller and uses `tracing`.

pub mod calibrate;
pub mod config;
pub mod data;
pub mod device;
mod error;
pub mod folder;
pub mod generate;
pub mod run;
pub mod step;

pub use calibrate::{Calibrate, Measured, calibrate};
pub use config::RunConfig;
pub use data::{Batch, DataConfig, EvalTokens, HeldOut, Task};
pub use error::Error;
pub use folder::files::Digest;
pub use folder::metrics::{Record, Summary};
pub use run::divergence::{Divergence, OnDivergence};
pub use run::{Event, OnEvent, Start, train};
pub use step::clip::ClipConfig;
pub use step::gradients::Gradients;
pub use step::optim::{Optimizer, OptimizerConfig, WeightDecay};
pub use step::schedule::ScheduleConfig;
pub use step::{HostRow, Measurement, Row, Trainer, loss, read_rows};

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Version of burn that it is built on, which a test compares with that of Cargo.
pub const BURN_VERSION: &str = "0.22.1";
