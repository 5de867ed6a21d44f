use crate::{About, in_f32};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

pub(crate) const ABOUT: About =
    ("layer_norm", "gamma * (x - mean(x)) / sqrt(var(x) + eps) + beta", "arXiv:1607.06450 eq. 4");

pub(crate) fn default_eps() -> f64 {
    1e-5
}

pub(crate) fn default_bias() -> bool {
    true
}

/// LayerNorm (arXiv:1607.06450, eq. 4), with the biased variance in two passes.
#[derive(Module, Debug)]
pub struct LayerNorm {
    gamma: Param<Tensor<1>>,
    beta: Option<Param<Tensor<1>>>,
    eps: f64,
}

impl LayerNorm {
    /// `gamma` = 1 and, with `bias`, `beta` = 0, both of shape `[width]`.
    pub fn new(width: usize, eps: f64, bias: bool, device: &Device) -> Self {
        Self {
            gamma: Param::from_tensor(Tensor::ones([width], device)),
            beta: bias.then(|| Param::from_tensor(Tensor::zeros([width], device))),
            eps,
        }
    }

    /// `gamma * (x - mean(x)) / sqrt(var(x) + eps) + beta` over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        in_f32(x, |x| {
            let centred = x.clone() - x.mean_dim(D - 1);
            let var = centred.clone().square().mean_dim(D - 1);
            let y = centred / (var + self.eps).sqrt() * self.gamma.val().unsqueeze();
            match &self.beta {
                Some(beta) => y + beta.val().unsqueeze(),
                None => y,
            }
        })
    }
}
