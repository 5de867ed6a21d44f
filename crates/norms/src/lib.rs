//! Norms of the last axis.
//!
//! A [`NormConfig`] is what a TOML file asks for; [`NormConfig::build`] turns it into a [`Norm`].
//! One file per kind holds its formula, defaults and source. Adding a kind touches two files: its own
//! and this one, where the compiler lists the arms that are missing.
//!
//! Statistics are computed in f32 whatever the type of the activations is, and `eps` is inside the
//! root.

mod layer_norm;
mod rms_norm;

use burn::module::Module;
use burn::nn::Identity;
use burn::tensor::{Device, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

pub use layer_norm::LayerNorm;
pub use rms_norm::RmsNorm;

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
        /// Whether there is a `beta`. Default true.
        #[serde(default = "layer_norm::default_bias")]
        bias: bool,
    },
    /// `y = gamma * x / sqrt(mean(x^2) + eps)` (arXiv:1910.07467, eq. 4).
    RmsNorm {
        /// Added to the mean square under the root. Default 1e-6.
        #[serde(default = "rms_norm::default_eps")]
        eps: f64,
    },
    /// `y = x`.
    None {},
}

/// Name, formula and source of one variant, as `unitgain configs` prints them.
pub type About = (&'static str, &'static str, &'static str);

impl NormConfig {
    /// One value of each kind, with its defaults.
    pub fn all() -> Vec<Self> {
        vec![Self::layer_norm(), Self::rms_norm(), Self::None {}]
    }

    /// LayerNorm with its defaults.
    pub fn layer_norm() -> Self {
        Self::LayerNorm { eps: layer_norm::default_eps(), bias: layer_norm::default_bias() }
    }

    /// RMSNorm with its defaults.
    pub fn rms_norm() -> Self {
        Self::RmsNorm { eps: rms_norm::default_eps() }
    }

    /// Name, formula and source.
    pub fn about(&self) -> About {
        match self {
            Self::LayerNorm { .. } => layer_norm::ABOUT,
            Self::RmsNorm { .. } => rms_norm::ABOUT,
            Self::None {} => ("none", "y = x", "norm-free networks"),
        }
    }

    /// What is wrong with the settings, if anything.
    pub fn check(&self) -> Result<(), String> {
        match *self {
            Self::LayerNorm { eps, .. } | Self::RmsNorm { eps }
                if !(eps >= f64::from(f32::MIN_POSITIVE) && eps.is_finite()) =>
            {
                Err(format!("eps = {eps} must be a positive number that f32 can hold"))
            }
            Self::LayerNorm { .. } | Self::RmsNorm { .. } | Self::None {} => Ok(()),
        }
    }

    /// Builds the norm of a last axis of `width` entries on `device`, gains at 1 and biases at 0.
    pub fn build(&self, width: usize, device: &Device) -> Norm {
        match *self {
            Self::LayerNorm { eps, bias } => Norm::LayerNorm(LayerNorm::new(width, eps, bias, device)),
            Self::RmsNorm { eps } => Norm::RmsNorm(RmsNorm::new(width, eps, device)),
            Self::None {} => Norm::none(),
        }
    }

    /// Whether this is [`NormConfig::None`].
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None {})
    }
}

/// A built norm. The name of a variant is part of the path of its parameters.
#[derive(Module, Debug)]
pub enum Norm {
    /// See [`NormConfig::LayerNorm`].
    LayerNorm(LayerNorm),
    /// See [`NormConfig::RmsNorm`].
    RmsNorm(RmsNorm),
    /// See [`NormConfig::None`].
    None(Identity),
}

impl Norm {
    /// The norm that does nothing.
    pub fn none() -> Self {
        Self::None(Identity::new())
    }

    /// Normalizes the last axis; the shape and the element type stay.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::LayerNorm(norm) => norm.forward(x),
            Self::RmsNorm(norm) => norm.forward(x),
            Self::None(_) => x,
        }
    }
}

/// Applies `f` in f32 and returns to the type of `x`: a mean over a bf16 or f16 row loses the digits
/// that a norm lives on, and a sum of f16 squares overflows from |x| = 256.
fn in_f32<const D: usize>(x: Tensor<D>, f: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let dtype: FloatDType = x.dtype().into();
    match dtype {
        FloatDType::F32 => f(x),
        _ => f(x.cast(FloatDType::F32)).cast(dtype),
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_under_its_own_name() {
        for config in NormConfig::all() {
            let json = format!("{{\"kind\":\"{}\"}}", config.about().0);
            assert_eq!(serde_json::from_str::<NormConfig>(&json).unwrap(), config);
        }
    }
}
