//! Integration tests: one binary, because each one links all of burn.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod blocks;
mod common;
mod examples;
mod model;
mod norms;
mod optimizers;
mod run;
mod trajectories;
