//! Integration tests: one binary, because each one links all of burn.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod blocks;
mod calibrate;
mod combinations;
mod common;
mod corpus;
mod devices;
mod examples;
mod golden_extras;
mod golden_init;
mod golden_mup;
mod golden_norms;
mod leaves;
mod model;
mod norms;
mod optimizers;

mod parametrizations;
mod placements;
mod precision;
mod reliability;
mod run;
mod sanity;
mod settings;
mod signal;
mod trajectories;
mod twins;
