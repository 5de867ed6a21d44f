//! Operations of the CPU backend as one node of the graph each. The composed form in the calling module defines each
//! operation; the functions here return None where it has to be used.

mod activation;
mod attention;
mod cross_entropy;
mod dropout;
mod linear;
mod rotary;

pub(crate) use activation::{activation, gated};
pub(crate) use attention::attention;
pub(crate) use cross_entropy::cross_entropy;
pub(crate) use dropout::dropout;
pub(crate) use linear::linear;
pub(crate) use rotary::rotary;
