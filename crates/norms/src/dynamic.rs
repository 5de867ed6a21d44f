use crate::{About, NormSite, widened};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

pub(crate) const ABOUT_DYT: About =
    About::of(("dyt", "gamma * tanh(alpha x) + beta, alpha a learned scalar", "arXiv:2503.10622 eq. 1"));
pub(crate) const ABOUT_DERF: About =
    About::of(("derf", "gamma * erf(alpha x + s) + beta, alpha and s learned scalars", "arXiv:2512.10938 eq. 10"));

pub(crate) fn default_bias() -> bool {
    true
}

/// Derf's initial alpha.
pub(crate) fn default_derf_alpha() -> f64 {
    0.5
}

/// DyT's initial alpha in a language model, by the width of the stream and by whether attention reads the norm
/// (arXiv:2503.10622 and its repository, up to width 8192; a width between two entries takes the larger one).
pub(crate) fn dyt_alpha(site: NormSite) -> f64 {
    let (attention, other) = match site.stream {
        0..=1024 => (1.0, 1.0),
        1025..=2048 => (1.0, 0.5),
        2049..=4096 => (0.8, 0.2),
        4097..=5120 => (0.6, 0.15),
        5121.. => (0.2, 0.05),
    };
    if site.before_attention { attention } else { other }
}

/// An elementwise squashing function in place of a norm: DyT (arXiv:2503.10622, eq. 1) and Derf (arXiv:2512.10938, eq. 10).
/// It has no statistics and does not divide by the size of a row.
#[derive(Module, Debug)]
pub struct Dynamic {
    alpha: Param<Tensor<1>>,
    /// s of Derf; None for DyT.
    shift: Option<Param<Tensor<1>>>,
    gamma: Param<Tensor<1>>,
    beta: Option<Param<Tensor<1>>>,
}

impl Dynamic {
    /// DyT: `alpha` of shape `[1]`, `gamma` = 1 and, with `bias`, `beta` = 0, of shape `[width]`.
    pub fn tanh(width: usize, alpha: f64, bias: bool, device: &Device) -> Self {
        Self {
            alpha: Param::from_tensor(Tensor::full([1], alpha, device)),
            shift: None,
            gamma: Param::from_tensor(Tensor::ones([width], device)),
            beta: bias.then(|| Param::from_tensor(Tensor::zeros([width], device))),
        }
    }

    /// Derf: as [`Dynamic::tanh`], with `s` = 0 of shape `[1]`.
    pub fn erf(width: usize, alpha: f64, bias: bool, device: &Device) -> Self {
        let shift = Some(Param::from_tensor(Tensor::zeros([1], device)));
        Self { shift, ..Self::tanh(width, alpha, bias, device) }
    }

    pub(crate) fn gain(&mut self) -> &mut Param<Tensor<1>> {
        &mut self.gamma
    }

    /// `gamma * tanh(alpha x) + beta` or `gamma * erf(alpha x + s) + beta`, gain and bias along the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        widened(x, |x| {
            let z = x * self.alpha.val().unsqueeze();
            let y = match &self.shift {
                Some(shift) => (z + shift.val().unsqueeze()).erf(),
                None => z.tanh(),
            };
            let y = y * self.gamma.val().unsqueeze();
            match &self.beta {
                Some(beta) => y + beta.val().unsqueeze(),
                None => y,
            }
        })
    }
}
