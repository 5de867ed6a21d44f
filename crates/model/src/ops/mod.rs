//! Operations on tensors. Where the CPU backend has one as a single node ([`fused`]) it is tried first; what stands below the
//! attempt composes the same from tensors, for other backends and types, and is its specification.

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
