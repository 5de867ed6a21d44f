//! Integration tests, by crate: one binary, because each one links all of burn.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
mod examples;
mod init;
mod leaves;
mod model;
mod mup;
mod norms;
mod study;
mod train;
