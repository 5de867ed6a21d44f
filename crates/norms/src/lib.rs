//! Norms of activations, over the last axis, and of the weights of linear layers ([`weight`]).
//!
//! A [`NormConfig`] is read from TOML; [`NormConfig::build`] makes the [`Norm`]. One file per kind holds its formula,
//! defaults and source. A new kind touches two files: its own, and this one, where the compiler lists the missing arms.
//!
//! # Numerics
//!
//! Statistics are computed in f32 for every type of activations, in two passes, with `eps` inside the root; the result is
//! rounded once, to the type of the input. They are computed on `x 2^-32`, with `eps` scaled alike: a power of two changes no
//! digit, and squares stay finite up to |x| = 1e28 instead of 1e19. A mean is subtracted in two steps, the second being the
//! mean of the differences, so that rows with a large mean lose no digit. A row with larger entries becomes 0 (x / inf), a
//! row with a NaN becomes NaN; other rows are affected only by norms over the batch or the sequence. `eps` must be at least
//! 1e-18 (1e-9 where it bounds a length), so that the scaled eps does not underflow.

mod batch_norm;
mod dynamic;
mod fused;
mod group_norm;
mod layer_norm;
mod rms_norm;
mod scale_norm;
pub mod weight;

use burn::module::{Module, Param, ParamId};
use burn::nn::Identity;
use burn::tensor::{Device, FloatDType, Tensor};
use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, fraction, require};

pub use batch_norm::{BatchNorm, Moments, SingleRow};
pub use dynamic::Dynamic;
pub use group_norm::GroupNorm;
pub use layer_norm::LayerNorm;
pub use rms_norm::RmsNorm;
pub use scale_norm::ScaleNorm;

/// Which norm to build, and its settings.
///
/// ```toml
/// norm = { kind = "rms_norm", eps = 1e-6 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum NormConfig {
    /// `y = gamma * (x - mean(x)) / sqrt(var(x) + eps) + beta`, with the biased variance
    /// (arXiv:1607.06450, eq. 4).
    LayerNorm {
        /// Added to the variance under the root. Default 1e-5.
        #[serde(default = "layer_norm::default_eps")]
        eps: f64,
        /// Whether there is a `gamma`. Default true.
        #[serde(default = "yes")]
        gain: bool,
        /// Whether there is a `beta`. Default true.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// `y = gamma * x / sqrt(mean(x^2) + eps)` (arXiv:1910.07467, eq. 4).
    RmsNorm {
        /// Added to the mean square under the root. Default 1e-6.
        #[serde(default = "rms_norm::default_eps")]
        eps: f64,
        /// Whether there is a `gamma`. Default true.
        #[serde(default = "yes")]
        gain: bool,
        /// Whether the gain is `1 + gamma`, with `gamma` 0 at the start, as in Gemma
        /// (arXiv:2403.08295). Default false.
        #[serde(default)]
        unit_offset: bool,
    },
    /// RMSNorm with the mean square of only the first entries (arXiv:1910.07467, section 4).
    PartialRmsNorm {
        /// Added to the mean square under the root. Default 1e-8.
        #[serde(default = "rms_norm::default_partial_eps")]
        eps: f64,
        /// Fraction of the entries in the mean square. Default 0.0625.
        #[serde(default = "rms_norm::default_fraction")]
        fraction: f64,
    },
    /// `y = g x / max(|x|, eps)`, g a learned scalar, `sqrt(width)` at init (arXiv:1910.05895, eq. 4).
    ScaleNorm {
        /// Least length to divide by. Default 1e-5.
        #[serde(default = "scale_norm::default_eps")]
        eps: f64,
    },
    /// `y = x / max(|x|, eps)`.
    L2Norm {
        /// Least length to divide by. Default 1e-5.
        #[serde(default = "scale_norm::default_eps")]
        eps: f64,
    },
    /// Normalization of each channel over all rows of the batch (arXiv:1502.03167, algorithm 1). It breaks causality: the
    /// statistics include later tokens.
    BatchNorm {
        /// Added to the variance under the root. Default 1e-5.
        #[serde(default = "batch_norm::default_eps")]
        eps: f64,
        /// Weight of the newest batch in the running averages. Default 0.1.
        #[serde(default = "batch_norm::default_momentum")]
        momentum: f64,
    },
    /// LayerNorm of each group of entries of a row (arXiv:1803.08494, eq. 7).
    GroupNorm {
        /// Added to the variance under the root. Default 1e-5.
        #[serde(default = "group_norm::default_eps")]
        eps: f64,
        /// Number of groups, a divisor of the width. Default 4.
        #[serde(default = "group_norm::default_groups")]
        groups: usize,
        /// Whether statistics are also over the sequence, as over the pixels of an image, which breaks causality. Default
        /// false.
        #[serde(default)]
        over_time: bool,
    },
    /// Normalization of each channel over its sequence (arXiv:1607.08022), which breaks causality.
    InstanceNorm {
        /// Added to the variance under the root. Default 1e-5.
        #[serde(default = "group_norm::default_eps")]
        eps: f64,
        /// Whether there are a `gamma` and a `beta`. Default true.
        #[serde(default = "yes")]
        affine: bool,
    },
    /// `y = gamma * tanh(alpha x) + beta` (arXiv:2503.10622, eq. 1).
    Dyt {
        /// Initial alpha. Default by width and position, as the authors give it for language models.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alpha: Option<f64>,
        /// Whether there is a `beta`. Default true.
        #[serde(default = "dynamic::default_bias")]
        bias: bool,
    },
    /// `y = gamma * erf(alpha x + s) + beta` (arXiv:2512.10938, eq. 10).
    Derf {
        /// Initial alpha. Default 0.5.
        #[serde(default = "dynamic::default_derf_alpha")]
        alpha: f64,
        /// Whether there is a `beta`. Default true.
        #[serde(default = "dynamic::default_bias")]
        bias: bool,
    },
    /// `y = x`.
    None {},
}

fn yes() -> bool {
    true
}

/// The place that a norm is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormSite {
    /// Number of entries of a row.
    pub width: usize,
    /// Width of the residual stream; of the base model's where there is one.
    pub stream: usize,
    /// Whether the norm directly precedes attention.
    pub before_attention: bool,
}

impl NormSite {
    /// A norm of the stream that does not precede attention.
    pub fn of(width: usize) -> Self {
        Self { width, stream: width, before_attention: false }
    }

    /// A norm of rows of `width` entries in a model whose stream has width `stream`.
    pub fn inside(width: usize, stream: usize) -> Self {
        Self { width, stream, before_attention: false }
    }
}

impl Variant for NormConfig {
    fn about(&self) -> About {
        match self {
            Self::LayerNorm { .. } => layer_norm::ABOUT,
            Self::RmsNorm { .. } => rms_norm::ABOUT,
            Self::PartialRmsNorm { .. } => rms_norm::ABOUT_PARTIAL,
            Self::ScaleNorm { .. } => scale_norm::ABOUT,
            Self::L2Norm { .. } => scale_norm::ABOUT_L2,
            Self::BatchNorm { .. } => batch_norm::ABOUT,
            Self::GroupNorm { .. } => group_norm::ABOUT,
            Self::InstanceNorm { .. } => group_norm::ABOUT_INSTANCE,
            Self::Dyt { .. } => dynamic::ABOUT_DYT,
            Self::Derf { .. } => dynamic::ABOUT_DERF,
            Self::None {} => About::of(("none", "y = x", "norm-free networks")),
        }
    }

    fn check(&self) -> Result<(), Fault> {
        let eps = |eps: f64, least: f64| {
            let problem = format!("must be a number of at least {least:e}");
            require(eps >= least && eps.is_finite(), "eps", eps, problem)
        };
        let alpha = |alpha: f64| {
            let problem = "must be a number other than 0, at which nothing would pass";
            require(alpha.is_finite() && alpha != 0.0, "alpha", alpha, problem)
        };
        match *self {
            Self::LayerNorm { eps: e, .. } | Self::InstanceNorm { eps: e, .. } => eps(e, 1e-18),
            Self::RmsNorm { eps: e, gain, unit_offset } => {
                require(gain || !unit_offset, "unit_offset", true, "needs gain = true, of which it is the offset")?;
                eps(e, 1e-18)
            }
            Self::PartialRmsNorm { eps: e, fraction: x } => fraction("fraction", x).and(eps(e, 1e-18)),
            Self::BatchNorm { eps: e, momentum } => fraction("momentum", momentum).and(eps(e, 1e-18)),
            Self::GroupNorm { eps: e, groups, .. } => {
                require(groups > 0, "groups", groups, "must be at least 1")?;
                eps(e, 1e-18)
            }
            Self::ScaleNorm { eps: e } | Self::L2Norm { eps: e } => eps(e, 1e-9),
            Self::Dyt { alpha: a, .. } => a.map_or(Ok(()), alpha),
            Self::Derf { alpha: a, .. } => alpha(a),
            Self::None {} => Ok(()),
        }
    }
}

impl NormConfig {
    /// LayerNorm with its defaults.
    pub fn layer_norm() -> Self {
        Self::LayerNorm { eps: layer_norm::default_eps(), gain: true, bias: true }
    }

    /// RMSNorm with its defaults.
    pub fn rms_norm() -> Self {
        Self::RmsNorm { eps: rms_norm::default_eps(), gain: true, unit_offset: false }
    }

    /// Checks whether the norm can normalize `width` entries.
    ///
    /// # Errors
    /// The fault, its key relative to the norm.
    pub fn check_width(&self, width: usize) -> Result<(), Fault> {
        let Self::GroupNorm { groups, over_time, .. } = *self else { return Ok(()) };
        let problem = format!("must divide the width {width} of what is normalized");
        require(width.is_multiple_of(groups), "groups", groups, problem)?;
        let problem = format!("must leave more than one entry of the width {width} to a group");
        require(over_time || width != groups, "groups", groups, problem)
    }

    /// Builds the norm of a last axis of `site.width` entries on `device`, with the initial values of its paper.
    pub fn build(&self, site: NormSite, device: &Device) -> Norm {
        let width = site.width;
        match *self {
            Self::LayerNorm { eps, gain, bias } => Norm::LayerNorm(LayerNorm::new(width, eps, gain, bias, device)),
            Self::RmsNorm { eps, gain, unit_offset } => {
                Norm::RmsNorm(RmsNorm::new(width, eps, gain, unit_offset, device))
            }
            Self::PartialRmsNorm { eps, fraction } => {
                Norm::PartialRmsNorm(RmsNorm::partial(width, eps, fraction, device))
            }
            Self::ScaleNorm { eps } => Norm::ScaleNorm(ScaleNorm::new(width, eps, true, device)),
            Self::L2Norm { eps } => Norm::L2Norm(ScaleNorm::new(width, eps, false, device)),
            Self::BatchNorm { eps, momentum } => Norm::BatchNorm(BatchNorm::new(width, eps, momentum, device)),
            Self::GroupNorm { eps, groups, over_time } => {
                Norm::GroupNorm(GroupNorm::new(width, groups, over_time, eps, true, device))
            }
            Self::InstanceNorm { eps, affine } => {
                Norm::InstanceNorm(GroupNorm::new(width, width, true, eps, affine, device))
            }
            Self::Dyt { alpha, bias } => {
                let alpha = alpha.unwrap_or_else(|| dynamic::dyt_alpha(site));
                Norm::Dyt(Dynamic::tanh(width, alpha, bias, device))
            }
            Self::Derf { alpha, bias } => Norm::Derf(Dynamic::erf(width, alpha, bias, device)),
            Self::None {} => Norm::none(),
        }
    }

    /// Whether the norm has a learned gain.
    pub fn has_gain(&self) -> bool {
        match *self {
            Self::LayerNorm { gain, .. } | Self::RmsNorm { gain, .. } => gain,
            Self::InstanceNorm { affine, .. } => affine,
            Self::PartialRmsNorm { .. } | Self::ScaleNorm { .. } | Self::BatchNorm { .. } => true,
            Self::GroupNorm { .. } | Self::Dyt { .. } | Self::Derf { .. } => true,
            Self::L2Norm { .. } | Self::None {} => false,
        }
    }

    /// Whether the norm divides by the size of a row, so that a factor before the norm has no effect.
    pub fn divides_by_size(&self) -> bool {
        match self {
            Self::LayerNorm { .. } | Self::RmsNorm { .. } | Self::PartialRmsNorm { .. } => true,
            Self::ScaleNorm { .. } | Self::L2Norm { .. } => true,
            Self::BatchNorm { .. } | Self::GroupNorm { .. } | Self::InstanceNorm { .. } => true,
            Self::Dyt { .. } | Self::Derf { .. } | Self::None {} => false,
        }
    }

    /// Whether the result of a token depends on later tokens of its sequence.
    pub fn sees_the_future(&self) -> bool {
        // A test compares this with every kind.
        matches!(self, Self::BatchNorm { .. } | Self::InstanceNorm { .. } | Self::GroupNorm { over_time: true, .. })
    }

    /// Whether the norm needs the whole sequence in evaluation too, so that tokens cannot be added one by one.
    pub fn needs_the_sequence(&self) -> bool {
        self.sees_the_future() && !matches!(self, Self::BatchNorm { .. })
    }

    /// Whether a language model with this norm scales the embedding by a learned factor, as its authors' models do.
    pub fn learns_embedding_scale(&self) -> bool {
        matches!(self, Self::Dyt { .. })
    }

    /// Whether the norm is [`NormConfig::None`].
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None {})
    }
}

/// A built norm. The names of the variants are part of the paths of parameters.
#[derive(Module, Debug)]
pub enum Norm {
    /// See [`NormConfig::LayerNorm`].
    LayerNorm(LayerNorm),
    /// See [`NormConfig::RmsNorm`].
    RmsNorm(RmsNorm),
    /// See [`NormConfig::PartialRmsNorm`].
    PartialRmsNorm(RmsNorm),
    /// See [`NormConfig::ScaleNorm`].
    ScaleNorm(ScaleNorm),
    /// See [`NormConfig::L2Norm`].
    L2Norm(ScaleNorm),
    /// See [`NormConfig::BatchNorm`].
    BatchNorm(BatchNorm),
    /// See [`NormConfig::GroupNorm`].
    GroupNorm(GroupNorm),
    /// See [`NormConfig::InstanceNorm`].
    InstanceNorm(GroupNorm),
    /// See [`NormConfig::Dyt`].
    Dyt(Dynamic),
    /// See [`NormConfig::Derf`].
    Derf(Dynamic),
    /// See [`NormConfig::None`].
    None(Identity),
}

impl Norm {
    /// The identity.
    pub fn none() -> Self {
        Self::None(Identity::new())
    }

    /// Normalizes the last axis and keeps shape and element type. For statistics over a sequence, the second last axis is
    /// time.
    ///
    /// # Panics
    /// BatchNorm panics if there is a single row and the device is an autodiff device.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let sequences = x.dims()[..D - 1].iter().rev().skip(1).product();
        self.forward_rows(x, sequences)
    }

    /// [`Norm::forward`] of the rows of `sequences` sequences in order.
    ///
    /// # Panics
    /// As [`Norm::forward`].
    pub fn forward_rows<const D: usize>(&self, x: Tensor<D>, sequences: usize) -> Tensor<D> {
        match self {
            Self::LayerNorm(norm) => norm.forward(x),
            Self::RmsNorm(norm) | Self::PartialRmsNorm(norm) => norm.forward(x),
            Self::ScaleNorm(norm) | Self::L2Norm(norm) => norm.forward(x),
            Self::BatchNorm(norm) => norm.forward(x),
            Self::GroupNorm(norm) | Self::InstanceNorm(norm) => norm.forward(x, sequences),
            Self::Dyt(norm) | Self::Derf(norm) => norm.forward(x),
            Self::None(_) => x,
        }
    }

    /// Sets the gain to 0, so that the output is the bias; returns whether the norm has a gain.
    pub fn zero_gain(&mut self) -> bool {
        let zero = match self {
            Self::RmsNorm(norm) => norm.zero(),
            _ => 0.0,
        };
        let gain = match self {
            Self::LayerNorm(norm) => norm.gain(),
            Self::RmsNorm(norm) | Self::PartialRmsNorm(norm) => norm.gain(),
            Self::ScaleNorm(norm) | Self::L2Norm(norm) => norm.gain(),
            Self::BatchNorm(norm) => Some(norm.gain()),
            Self::GroupNorm(norm) | Self::InstanceNorm(norm) => norm.gain(),
            Self::Dyt(norm) | Self::Derf(norm) => Some(norm.gain()),
            Self::None(_) => None,
        };
        let Some(gain) = gain else { return false };
        *gain = Param::from_tensor(gain.val().full_like(zero).detach());
        true
    }

    /// The ids of the running statistics, which no optimizer updates.
    pub fn statistics(&self) -> Vec<ParamId> {
        match self {
            Self::BatchNorm(norm) => norm.statistics(),
            _ => Vec::new(),
        }
    }
}

/// `gamma * y + beta` along the last axis; gain 1 and bias 0 where they are None.
fn affine<const D: usize>(
    y: Tensor<D>,
    gamma: Option<&Param<Tensor<1>>>,
    beta: Option<&Param<Tensor<1>>>,
) -> Tensor<D> {
    let y = match gamma {
        Some(gamma) => y * gamma.val().unsqueeze(),
        None => y,
    };
    match beta {
        Some(beta) => y + beta.val().unsqueeze(),
        None => y,
    }
}

/// `x` minus its `mean`, which keeps the averaged axes with size 1.
///
/// The rounding error of a mean is relative to the numbers, not to their differences: 5e-4 for rows around 1e4. Subtracting
/// the mean of the differences corrects it; that mean is 0 but for rounding, so no gradient flows through it.
fn centred<const D: usize>(x: Tensor<D>, mean: impl Fn(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let x = x.clone() - mean(x);
    let rest = mean(x.clone().detach());
    x - rest
}

/// Factor of a row before its statistics are computed.
const SCALE: f64 = 1.0 / (1u64 << 32) as f64;

/// `eps` of the mean square of a scaled row.
fn scaled_eps(eps: f64) -> f64 {
    eps * SCALE * SCALE
}

/// Applies a norm that is scale-invariant but for its eps, in f32, to the scaled row.
fn in_f32<const D: usize>(x: Tensor<D>, f: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    widened(x, |x| f(x * SCALE))
}

/// Applies `f` in f32 and casts back to the type of `x`: means in bf16 or f16 are too coarse for a norm, and a sum of f16
/// squares overflows from |x| = 256.
fn widened<const D: usize>(x: Tensor<D>, f: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let dtype: FloatDType = x.dtype().into();
    match dtype {
        FloatDType::F32 => f(x),
        _ => f(x.cast(FloatDType::F32)).cast(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unitgain_variant::assert_listed;

    #[test]
    fn every_norm_is_listed_under_its_own_name() {
        assert_listed::<NormConfig>();
    }

    #[test]
    fn dyt_starts_from_the_authors_alpha() {
        for (width, attention, other) in
            [(768, 1.0, 1.0), (2048, 1.0, 0.5), (4096, 0.8, 0.2), (5120, 0.6, 0.15), (8192, 0.2, 0.05)]
        {
            assert_eq!(dynamic::dyt_alpha(NormSite { before_attention: true, ..NormSite::of(width) }), attention);
            assert_eq!(dynamic::dyt_alpha(NormSite::of(width)), other);
        }
    }
}
