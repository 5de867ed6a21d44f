//! The parts of a block.

mod attention;
mod block;
mod mlp;
mod pass;
mod qk_norm;
mod scalar_biases;

pub use attention::Attention;
pub use block::Block;
pub use mlp::Mlp;
pub use pass::{BlockCache, Cache, Pass};
pub use qk_norm::QkNorm;
