use crate::{About, SCALE, in_f32};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use unitgain_kernels::kinks::at_least;

pub(crate) const ABOUT: About =
    About::of(("scale_norm", "g x / max(|x|, eps), g a learned scalar, sqrt(d) at init", "arXiv:1910.05895 eq. 4"));
pub(crate) const ABOUT_L2: About = About::of(("l2_norm", "x / max(|x|, eps)", "arXiv:2010.04245"));

pub(crate) fn default_eps() -> f64 {
    1e-5
}

/// ScaleNorm (arXiv:1910.05895, eq. 4); without its scalar, division by the L2 norm.
#[derive(Module, Debug)]
pub struct ScaleNorm {
    g: Option<Param<Tensor<1>>>,
    eps: f64,
}

impl ScaleNorm {
    /// Starts with `g` = `sqrt(width)`, of shape `[1]`, if `gain`.
    pub fn new(width: usize, eps: f64, gain: bool, device: &Device) -> Self {
        let g = gain.then(|| Param::from_tensor(Tensor::full([1], (width as f64).sqrt(), device)));
        Self { g, eps }
    }

    pub(crate) fn gain(&mut self) -> Option<&mut Param<Tensor<1>>> {
        self.g.as_mut()
    }

    /// `g x / max(|x|, eps)` over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        in_f32(x, |x| {
            // Bounded inside the root, whose gradient at 0 is infinite.
            let square = at_least(x.clone().square().sum_dim(D - 1), (self.eps * SCALE).powi(2));
            let y = x / square.sqrt();
            match &self.g {
                Some(g) => y * g.val().unsqueeze(),
                None => y,
            }
        })
    }
}
