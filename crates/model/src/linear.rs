use crate::config::Activation;
use crate::ops::{activate, linear};
use crate::probe::Probe;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use unitgain_norms::weight::WeightNorm;
use unitgain_residual::two_way;

/// `y = multiplier (x N(W)) + b`, with W of shape `[fan_in, fan_out]` and N its weight norm. Made by
/// [`Builder::linear`](crate::weights::Builder::linear).
#[derive(Module, Debug)]
pub struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
    norm: WeightNorm,
    multiplier: f64,
    /// Multiplier in the gradient of the input.
    backward: f64,
}

impl Linear {
    /// A layer with the multipliers of the parametrization in the forward pass and in the gradient of the input.
    pub(crate) fn new(
        weight: Param<Tensor<2>>,
        bias: Option<Param<Tensor<1>>>,
        norm: WeightNorm,
        [multiplier, backward]: [f64; 2],
    ) -> Self {
        Self { weight, bias, norm, multiplier, backward }
    }

    /// The output, `[rows, fan_out]`, for the input `x`, `[rows, fan_in]`.
    ///
    /// # Panics
    /// If `x` has another width.
    pub fn forward(&self, x: Tensor<2>, probe: &dyn Probe) -> Tensor<2> {
        self.forward_with(x, None, probe)
    }

    /// `phi(y)`, phi the activation, if any.
    pub(crate) fn forward_with(&self, x: Tensor<2>, activation: Option<Activation>, probe: &dyn Probe) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        let ([_, width], [fan_in, _]) = (x.dims(), self.weight.dims());
        assert!(width == fan_in, "a linear layer of fan_in {fan_in} read rows of {width} entries");
        let (x, w) = (two_way(x, self.multiplier, self.backward), self.norm.forward(self.weight.val()));
        if !probe.sees_layers() {
            return linear(x, w, bias, activation);
        }
        let y = probe.linear(self.weight.id, linear(x, w, bias, None));
        match activation {
            Some(activation) => activate(y, activation),
            None => y,
        }
    }
}
