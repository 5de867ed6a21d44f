//! Integration tests by crate, in one binary, because each binary links all of burn.

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
