//! Training runs: a TOML file in, a run folder out.
//!
//! A [`RunConfig`] gives the model, the data, the optimizer and the schedule; [`train`] writes a run folder with the
//! resolved configuration, one JSON record per logged step, checkpoints and a summary. The parts can be used alone:
//! [`Trainer`] is the step, [`Task`] the data, [`Optimizer`] the update.
//!
//! Files, clocks and devices are used in this crate and its dependents only. It never prints: it reports [`Event`]s to
//! its caller and uses `tracing`.

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
pub use step::replicas::{ReplicaCount, Replicas};
pub use step::schedule::ScheduleConfig;
pub use step::{HostRow, Measurement, Row, Trainer, loss, read_rows};

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Version of burn that it is built on; a test compares it with Cargo.lock.
pub const BURN_VERSION: &str = "0.22.1";
