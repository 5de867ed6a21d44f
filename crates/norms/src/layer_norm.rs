use crate::{About, affine, centred, in_f32, scaled_eps};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

pub(crate) const ABOUT: About =
    About::of(("layer_norm", "gamma * (x - mean(x)) / sqrt(var(x) + eps) + beta", "arXiv:1607.06450 eq. 4"));

pub(crate) fn default_eps() -> f64 {
    1e-5
}

/// LayerNorm (arXiv:1607.06450, eq. 4), with the biased variance.
#[derive(Module, Debug)]
pub struct LayerNorm {
    gamma: Option<Param<Tensor<1>>>,
    beta: Option<Param<Tensor<1>>>,
    eps: f64,
}

impl LayerNorm {
    /// Starts with `gamma` = 1 if `gain` and `beta` = 0 if `bias`, both of shape `[width]`.
    pub fn new(width: usize, eps: f64, gain: bool, bias: bool, device: &Device) -> Self {
        Self {
            gamma: gain.then(|| Param::from_tensor(Tensor::ones([width], device))),
            beta: bias.then(|| Param::from_tensor(Tensor::zeros([width], device))),
            eps,
        }
    }

    pub(crate) fn gain(&mut self) -> Option<&mut Param<Tensor<1>>> {
        self.gamma.as_mut()
    }

    /// `gamma * (x - mean(x)) / sqrt(var(x) + eps) + beta` over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if let Some(gamma) = &self.gamma {
            let beta = self.beta.as_ref().map(Param::val);
            if let Some(y) = crate::fused::norm(&x, &gamma.val(), beta.as_ref(), self.eps, true) {
                return y;
            }
        }
        in_f32(x, |x| {
            let centred = centred(x, |x| x.mean_dim(D - 1));
            let var = centred.clone().square().mean_dim(D - 1);
            let y = centred / (var + scaled_eps(self.eps)).sqrt();
            affine(y, self.gamma.as_ref(), self.beta.as_ref())
        })
    }
}
