//! Distributions of independent entries.

use crate::sample;
use serde::{Deserialize, Serialize};

/// The distribution of the independent entries of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Every entry equals this value.
    Constant(f64),
    /// N(0, std^2).
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// U(-bound, bound), whose standard deviation is bound / sqrt(3).
    Uniform {
        /// Largest magnitude.
        bound: f64,
    },
    /// N(0, sigma^2) truncated at `cut` sigma. Its standard deviation is `sigma` [`truncated_std`]`(cut)`, 0.8796 sigma for
    /// `cut` = 2.
    ///
    /// The bounds are in sigmas, as in JAX and timm's `trunc_normal_tf_`. PyTorch's `trunc_normal_` has absolute bounds, by
    /// default -2 and 2, which do not truncate a sigma of 0.02 at all.
    TruncatedNormal {
        /// Standard deviation before truncation.
        sigma: f64,
        /// Bound in sigmas.
        cut: f64,
    },
    /// N(0, std^2) in `ceil(nonzero * fan_in)` of the inputs of each output unit, 0 elsewhere (Martens 2010).
    ///
    /// PyTorch's `sparse_` takes the fraction of zeros, `1 - nonzero`, and applies it to each column of `[out, in]`: per
    /// input instead of per output.
    Sparse {
        /// Fraction of the inputs that a unit reads.
        nonzero: f64,
        /// Standard deviation of the nonzero entries.
        std: f64,
    },
}

/// The family of a distribution with given standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// N(0, std^2).
    #[default]
    Normal,
    /// U(-sqrt(3) std, sqrt(3) std).
    Uniform,
    /// Normal, truncated at 2 sigma, with sigma = std / 0.8796, so that the standard deviation is std (JAX, Flax).
    TruncatedNormal,
}

impl Form {
    /// The distribution with standard deviation `std`.
    pub fn of(self, std: f64) -> Distribution {
        match self {
            Self::Normal => Distribution::Normal { std },
            Self::Uniform => Distribution::Uniform { bound: 3f64.sqrt() * std },
            Self::TruncatedNormal => Distribution::TruncatedNormal { sigma: std / truncated_std(2.0), cut: 2.0 },
        }
    }
}

impl Distribution {
    /// Bounds of the uniform distribution with this mean and standard deviation: `mean -+ sqrt(3) std`.
    pub fn uniform_bounds(mean: f64, std: f64) -> [f64; 2] {
        let half = 3f64.sqrt() * std;
        [mean - half, mean + half]
    }

    /// Root mean square of the entries of a matrix with this fan_in.
    pub fn rms(self, fan_in: f64) -> f64 {
        match self {
            Self::Constant(value) => value.abs(),
            Self::Normal { std } => std,
            Self::Uniform { bound } => bound / 3f64.sqrt(),
            Self::TruncatedNormal { sigma, cut } => sigma * truncated_std(cut),
            Self::Sparse { nonzero, std } => std * ((nonzero * fan_in).ceil().min(fan_in) / fan_in).sqrt(),
        }
    }

    /// The distribution of the entries times `factor`.
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Constant(value) => Self::Constant(value * factor),
            Self::Normal { std } => Self::Normal { std: std * factor },
            Self::Uniform { bound } => Self::Uniform { bound: bound * factor },
            Self::TruncatedNormal { sigma, cut } => Self::TruncatedNormal { sigma: sigma * factor, cut },
            Self::Sparse { nonzero, std } => Self::Sparse { nonzero, std: std * factor },
        }
    }

    /// Draws a matrix `[fan_in, fan_out]`, row by row, from the stream of (`seed`, `path`).
    pub fn draw(self, seed: u64, path: &str, fan_in: usize, fan_out: usize) -> Vec<f32> {
        let n = fan_in * fan_out;
        match self {
            Self::Constant(value) => vec![value as f32; n],
            Self::Normal { std } => sample::normal(seed, path, n, std),
            Self::Uniform { bound } => sample::uniform(seed, path, n, bound),
            Self::TruncatedNormal { sigma, cut } => sample::truncated_normal(seed, path, n, sigma, cut),
            Self::Sparse { nonzero, std } => {
                let zeros = fan_in - (nonzero * fan_in as f64).ceil().min(fan_in as f64) as usize;
                let mut values = sample::normal(seed, path, n, std);
                for unit in 0..fan_out {
                    let inputs = sample::some_of(seed, &format!("{path}/zeros/{unit}"), zeros, fan_in);
                    inputs.into_iter().for_each(|input| values[input * fan_out + unit] = 0.0);
                }
                values
            }
        }
    }
}

/// Standard deviation of the standard normal distribution truncated to [-cut, cut]:
/// `sqrt(1 - 2 cut phi(cut) / (2 Phi(cut) - 1))`.
pub fn truncated_std(cut: f64) -> f64 {
    let density = (-cut * cut / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let kept = libm::erf(cut / std::f64::consts::SQRT_2);
    (1.0 - 2.0 * cut * density / kept).sqrt()
}

/// Mean and standard deviation of the standard normal distribution truncated to [low, high].
pub fn truncated_moments(low: f64, high: f64) -> [f64; 2] {
    let density = |z: f64| (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let below = |z: f64| 0.5 * (1.0 + libm::erf(z / std::f64::consts::SQRT_2));
    let kept = below(high) - below(low);
    let mean = (density(low) - density(high)) / kept;
    let variance = 1.0 + (low * density(low) - high * density(high)) / kept - mean * mean;
    [mean, variance.sqrt()]
}
