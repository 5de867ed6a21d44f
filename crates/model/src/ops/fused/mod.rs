//! The model's operations on the CPU backend as one node each. What each computes is said by its composed twin
//! in the module that calls it; here are the loops. `None` means: compose it.

mod activation;
mod attention;
mod cross_entropy;
mod linear;
mod rotary;

pub(crate) use activation::{activation, gated};
pub(crate) use attention::attention;
pub(crate) use cross_entropy::cross_entropy;
pub(crate) use linear::linear;
pub(crate) use rotary::rotary;
