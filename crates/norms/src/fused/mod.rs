//! LayerNorm and RMSNorm as one operation, on the CPU backend and on GPU backends.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;

use burn::tensor::Tensor;

/// LayerNorm, or RMSNorm unless `centred`, over the last axis; None where it has to be composed.
#[allow(unused_variables)]
pub(crate) fn norm<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    beta: Option<&Tensor<1>>,
    eps: f64,
    centred: bool,
) -> Option<Tensor<D>> {
    #[cfg(feature = "flex")]
    if let Some(y) = flex::norm(x, gamma, beta, eps, centred) {
        return Some(y);
    }
    #[cfg(feature = "cube")]
    if let Some(y) = cube::norm(x, gamma, beta, eps, centred) {
        return Some(y);
    }
    None
}
