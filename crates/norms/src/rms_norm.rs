use crate::{About, in_f32};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

pub(crate) const ABOUT: About = ("rms_norm", "gamma * x / sqrt(mean(x^2) + eps)", "arXiv:1910.07467 eq. 4");

pub(crate) fn default_eps() -> f64 {
    1e-6
}

/// RMSNorm (arXiv:1910.07467, eq. 4).
#[derive(Module, Debug)]
pub struct RmsNorm {
    gamma: Param<Tensor<1>>,
    eps: f64,
}

impl RmsNorm {
    /// `gamma` = 1, of shape `[width]`.
    pub fn new(width: usize, eps: f64, device: &Device) -> Self {
        Self { gamma: Param::from_tensor(Tensor::ones([width], device)), eps }
    }

    /// `gamma * x / sqrt(mean(x^2) + eps)` over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        in_f32(x, |x| {
            let mean_square = x.clone().square().mean_dim(D - 1);
            x / (mean_square + self.eps).sqrt() * self.gamma.val().unsqueeze()
        })
    }
}
