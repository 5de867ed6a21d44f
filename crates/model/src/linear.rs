use burn::module::{Module, Param};
use burn::tensor::{Tensor, module};

/// `y = multiplier (x W) + b`, with W of shape `[fan_in, fan_out]`.
#[derive(Module, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: Param<Tensor<2>>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    /// The parametrization's factor of the weight.
    pub(crate) multiplier: f64,
}

impl Linear {
    /// `x` is `[rows, fan_in]`.
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        module::linear(scaled(x, self.multiplier), self.weight.val(), bias)
    }
}

/// `x * factor`, free where the factor is 1.
pub(crate) fn scaled<const D: usize>(x: Tensor<D>, factor: f64) -> Tensor<D> {
    if factor == 1.0 { x } else { x * factor }
}
