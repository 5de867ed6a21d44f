use crate::{About, in_f32, scaled_eps};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

pub(crate) const ABOUT: About = About::of((
    "rms_norm",
    "gamma * x / sqrt(mean(x^2) + eps); with unit_offset (1 + gamma) * x / ..",
    "arXiv:1910.07467 eq. 4; unit_offset: arXiv:2403.08295",
));
pub(crate) const ABOUT_PARTIAL: About = About::of((
    "partial_rms_norm",
    "gamma * x / sqrt(mean(x[..k]^2) + eps), k = floor(fraction d)",
    "arXiv:1910.07467 section 4",
));

pub(crate) fn default_eps() -> f64 {
    1e-6
}

pub(crate) fn default_partial_eps() -> f64 {
    1e-8
}

/// p = 6.25 % of the paper.
pub(crate) fn default_fraction() -> f64 {
    0.0625
}

/// RMSNorm (arXiv:1910.07467, eq. 4), whole or partial.
#[derive(Module, Debug)]
pub struct RmsNorm {
    gamma: Option<Param<Tensor<1>>>,
    eps: f64,
    /// The gain is `offset + gamma`.
    offset: f64,
    /// Number of entries of a row in the mean square.
    counted: usize,
}

impl RmsNorm {
    /// Starts with `gamma` = 1, of shape `[width]`, if `gain`; with `unit_offset` the gain is `1 + gamma` and `gamma` = 0.
    pub fn new(width: usize, eps: f64, gain: bool, unit_offset: bool, device: &Device) -> Self {
        let offset = f64::from(u8::from(unit_offset));
        let gamma = gain.then(|| Param::from_tensor(Tensor::full([width], 1.0 - offset, device)));
        Self { gamma, eps, offset, counted: width }
    }

    /// RMSNorm with the mean square of the first `floor(fraction width)` entries, but at least one.
    pub fn partial(width: usize, eps: f64, fraction: f64, device: &Device) -> Self {
        let counted = ((width as f64 * fraction) as usize).clamp(1, width);
        Self { counted, ..Self::new(width, eps, true, false, device) }
    }

    /// The gamma at which the gain is 0.
    pub(crate) fn zero(&self) -> f64 {
        -self.offset
    }

    pub(crate) fn gain(&mut self) -> Option<&mut Param<Tensor<1>>> {
        self.gamma.as_mut()
    }

    /// `gamma * x / sqrt(mean(x^2) + eps)` over the last axis.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if let Some(gamma) = self.gamma.as_ref().filter(|_| self.counted == x.dims()[D - 1]) {
            let gamma = if self.offset == 0.0 { gamma.val() } else { gamma.val() + self.offset };
            if let Some(y) = crate::fused::norm(&x, &gamma, None, self.eps, false) {
                return y;
            }
        }
        in_f32(x, |x| {
            let is_whole = self.counted == x.dims()[D - 1];
            let counted = if is_whole { x.clone() } else { x.clone().narrow(D - 1, 0, self.counted) };
            let y = x / (counted.square().mean_dim(D - 1) + scaled_eps(self.eps)).sqrt();
            match &self.gamma {
                Some(gamma) if self.offset == 0.0 => y * gamma.val().unsqueeze(),
                Some(gamma) => y * (gamma.val() + self.offset).unsqueeze(),
                None => y,
            }
        })
    }
}
