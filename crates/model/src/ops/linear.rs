#[cfg(feature = "flex")]
use super::fused;
use super::precision::like;
use crate::config::Activation;
use burn::tensor::{Tensor, activation, module};
use unitgain_kernels::kinks;

/// `phi(x W + b)` for `x`, `[rows, fan_in]`, and `w`, `[fan_in, fan_out]`, in the type of `x`.
pub fn linear(x: Tensor<2>, w: Tensor<2>, bias: Option<Tensor<1>>, phi: Option<Activation>) -> Tensor<2> {
    if let Some(phi) = phi.filter(|phi| phi.is_watched()) {
        return activate(linear(x, w, bias, None), phi);
    }
    let (w, bias) = (like(w, &x), bias.map(|bias| like(bias, &x)));
    #[cfg(feature = "flex")]
    if let Some(y) = fused::linear(&x, &w, bias.as_ref(), phi) {
        return y;
    }
    let y = module::linear(x, w, bias);
    match phi {
        Some(phi) => activate(y, phi),
        None => y,
    }
}

/// `phi(x)`; of a gated activation its gate.
pub fn activate(x: Tensor<2>, phi: Activation) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if let Some(y) = fused::activation(&x, phi) {
        return y;
    }
    match phi {
        Activation::Relu => kinks::relu(x),
        Activation::ReluSquared => kinks::relu(x).square(),
        // From erf, because the backward pass of burn's gelu is the tanh approximation on some backends.
        Activation::Gelu | Activation::GeGlu => x.clone() * ((x / std::f64::consts::SQRT_2).erf() + 1.0) * 0.5,
        Activation::GeluTanh | Activation::GeGluTanh => activation::gelu_approximate(x),
        Activation::Silu | Activation::SwiGlu => activation::silu(x),
    }
}

/// `phi(gate) * up`.
pub fn gated(gate: Tensor<2>, up: Tensor<2>, phi: Activation) -> Tensor<2> {
    #[cfg(feature = "flex")]
    if let Some(y) = fused::gated(&gate, &up, phi) {
        return y;
    }
    activate(gate, phi) * up
}
