use crate::fused;
use crate::mlp::Activation;
use crate::precision::like;
use crate::probe::Probe;
use burn::module::{Module, Param};
use burn::tensor::{Tensor, module};
use unitgain_norms::weight::WeightNorm;
use unitgain_residual::two_way;

/// `y = multiplier (x N(W)) + b`, with W of shape `[fan_in, fan_out]`.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Param<Tensor<2>>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    /// What the weight becomes before it is used.
    pub(crate) norm: WeightNorm,
    /// The parametrization's factor of the weight, and that of it which the gradient of the input sees.
    pub(crate) multiplier: f64,
    pub(crate) backward: f64,
}

impl Linear {
    /// `x` is `[rows, fan_in]`.
    pub(crate) fn forward(&self, x: Tensor<2>, probe: &dyn Probe) -> Tensor<2> {
        self.forward_with(x, None, probe)
    }

    /// `phi(y)`.
    pub(crate) fn forward_with(&self, x: Tensor<2>, activation: Option<Activation>, probe: &dyn Probe) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        let (x, w) = (two_way(x, self.multiplier, self.backward), self.norm.forward(self.weight.val()));
        if !probe.sees_layers() {
            return linear(x, w, bias, activation);
        }
        let y = probe.linear(self.weight.id, linear(x, w, bias, None));
        match activation {
            Some(activation) => activation.forward(y),
            None => y,
        }
    }
}

/// `phi(x W + b)`, in the type of `x`.
pub(crate) fn linear(x: Tensor<2>, w: Tensor<2>, bias: Option<Tensor<1>>, activation: Option<Activation>) -> Tensor<2> {
    if let Some(apart) = activation.filter(|activation| activation.is_watched()) {
        return apart.forward(linear(x, w, bias, None));
    }
    let (w, bias) = (like(w, &x), bias.map(|bias| like(bias, &x)));
    if let Some(y) = fused::linear(&x, &w, bias.as_ref(), activation) {
        return y;
    }
    let y = module::linear(x, w, bias);
    match activation {
        Some(activation) => activation.forward(y),
        None => y,
    }
}

/// Fixup's learned scalars, each added to what a layer or an activation of a branch reads; none in other
/// branches.
#[derive(Module, Debug)]
pub(crate) struct ScalarBiases {
    pub(crate) values: Vec<Param<Tensor<1>>>,
}

impl ScalarBiases {
    /// `x` with the bias of this index.
    pub(crate) fn add(&self, index: usize, x: Tensor<2>) -> Tensor<2> {
        match self.values.get(index) {
            Some(bias) => {
                let bias = like(bias.val(), &x);
                x + bias.unsqueeze()
            }
            None => x,
        }
    }
}
