//! Operations on tensors. Each first tries a single node of the CPU backend ([`fused`]); the composed form below defines the
//! operation and runs on other backends and types.

mod attention;
mod cross_entropy;
#[cfg(feature = "flex")]
mod fused;
mod linear;
mod precision;
mod rotary;

pub use cross_entropy::cross_entropy;
pub use precision::Precision;

pub(crate) use attention::attention;
pub(crate) use linear::{activate, gated, linear};
pub(crate) use precision::like;
pub(crate) use rotary::{Rotary, sinusoids};
