//! Tests of steps, runs and run folders.

pub(crate) mod calibrate;
pub(crate) mod config;
pub(crate) mod corpus;
pub(crate) mod devices;
pub(crate) mod idle_keys;
pub(crate) mod optimizers;
pub(crate) mod reliability;
pub(crate) mod replicas;
pub(crate) mod run;
pub(crate) mod trajectories;
