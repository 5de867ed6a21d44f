//! The operations of a block, for blocks of one's own too. Each is a single node of the graph on the CPU backend; the composed
//! form defines it and runs on other backends and types.

mod attention;
mod cross_entropy;
mod dropout;
#[cfg(feature = "flex")]
mod fused;
mod linear;
mod precision;
mod rotary;

pub use attention::{attention, unseen};
pub use cross_entropy::cross_entropy;
pub use dropout::{dropout, with_masks};
pub use linear::{activate, gated, linear};
pub use precision::Precision;
pub use rotary::{Rotary, sinusoids};

pub(crate) use precision::like;
