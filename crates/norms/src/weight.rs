//! Norms of the weights of linear layers, in place of norms of activations: the stored matrix is normalized before it is
//! used. Matrices are `[fan_in, fan_out]`; a unit is a column.

use crate::centred;
use burn::module::{Module, Param};
use burn::nn::Identity;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use unitgain_kernels::kinks::at_least;
use unitgain_variant::{About, Fault, Variant, require};

/// The norm of the weights of linear layers.
///
/// ```toml
/// weight_norm = { kind = "scaled_weight_standardization", flavour = "nfnet" }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WeightNormConfig {
    /// `W`.
    None {},
    /// `g v / |v|` per unit, with `g` = `|v|` at init (arXiv:1602.07868, eq. 2).
    WeightNorm {
        /// Whether each unit or the whole matrix has one length g. Default `unit`.
        #[serde(default, skip_serializing_if = "LengthOver::is_default")]
        over: LengthOver,
    },
    /// `gain gamma (W - mean) / sqrt(fan_in var)` per unit, with the biased variance and `gamma` the gain of
    /// the activation that the layer reads (arXiv:2101.08692, eq. 3).
    ScaledWeightStandardization {
        /// Placement of eps. Default `timm`.
        #[serde(default)]
        flavour: Flavour,
        /// Regularizer of the variance. Default 1e-6 with `timm`, 1e-4 with `nfnet`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        eps: Option<f64>,
    },
}

/// The part of a matrix that has one length under [`WeightNormConfig::WeightNorm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthOver {
    /// Each output unit, as in the paper; PyTorch's `weight_norm` with its default `dim = 0`.
    #[default]
    Unit,
    /// The whole matrix: one g, and |v| its Frobenius norm; PyTorch's `dim = None`.
    Matrix,
}

impl LengthOver {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The squared lengths of a matrix, `[1, fan_out]` or `[1, 1]`.
    fn squares(self, v: Tensor<2>) -> Tensor<2> {
        let squares = v.square().sum_dim(0);
        match self {
            Self::Unit => squares,
            Self::Matrix => squares.sum_dim(1),
        }
    }
}

/// The two published forms of Scaled Weight Standardization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// `gain gamma (W - mean) / (sqrt(fan_in) sqrt(var + eps))`, as in timm.
    #[default]
    Timm,
    /// `gain gamma (W - mean) / sqrt(max(fan_in var, eps))`, as in the authors' code, which multiplies the activation by
    /// gamma instead: the same product.
    Nfnet,
}

impl Variant for WeightNormConfig {
    fn about(&self) -> About {
        About::of(match self {
            Self::None {} => ("none", "W", "common practice"),
            Self::WeightNorm { .. } => (
                "weight_norm",
                "g v / |v| per output unit, or with one g of the whole matrix; g = |v| at init",
                "arXiv:1602.07868 eq. 2",
            ),
            Self::ScaledWeightStandardization { .. } => (
                "scaled_weight_standardization",
                "gain gamma (W - mean) / sqrt(fan_in var) per output unit, gamma by the activation that it reads",
                "arXiv:2101.08692 eq. 3",
            ),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::ScaledWeightStandardization { eps: Some(eps), .. } => {
                require(eps > 0.0 && eps.is_finite(), "eps", eps, "must be a positive number")
            }
            Self::None {} | Self::WeightNorm { .. } | Self::ScaledWeightStandardization { eps: None, .. } => Ok(()),
        }
    }
}

impl WeightNormConfig {
    /// Weight normalization with one length for each output unit.
    pub const fn weight_norm() -> Self {
        Self::WeightNorm { over: LengthOver::Unit }
    }

    /// Whether the norm divides by the size of the weight, so that the size at init has no effect.
    pub fn divides_by_size(self) -> bool {
        matches!(self, Self::ScaledWeightStandardization { .. })
    }

    /// Builds the norm of a matrix whose initial values are `weight`, row by row, with `fan_out` columns. `gamma` is the gain
    /// of the activation that the layer reads ([`activation_gain`]); `gain` is the initial learned gain of Scaled Weight
    /// Standardization: 1, or 0 for a layer whose output starts at 0.
    pub fn build(self, weight: &[f32], fan_out: usize, gamma: f64, gain: f64, device: &Device) -> WeightNorm {
        match self {
            Self::None {} => WeightNorm::None(Identity::new()),
            Self::WeightNorm { over } => {
                let count = match over {
                    LengthOver::Unit => fan_out,
                    LengthOver::Matrix => 1,
                };
                let mut squares = vec![0.0f64; count];
                for (i, w) in weight.iter().enumerate() {
                    squares[i % count] += f64::from(*w).powi(2);
                }
                let lengths: Vec<f32> = squares.into_iter().map(|square| square.sqrt() as f32).collect();
                WeightNorm::WeightNorm(Direction { g: Param::from_data(lengths.as_slice(), device), over })
            }
            Self::ScaledWeightStandardization { flavour, eps } => {
                let eps = eps.unwrap_or(match flavour {
                    Flavour::Timm => 1e-6,
                    Flavour::Nfnet => 1e-4,
                });
                let gain = Param::from_tensor(Tensor::full([fan_out], gain, device));
                WeightNorm::Standardized(Standardized { gain, gamma, eps, flavour })
            }
        }
    }
}

/// A built weight norm.
#[derive(Module, Debug)]
pub enum WeightNorm {
    /// See [`WeightNormConfig::None`].
    None(Identity),
    /// See [`WeightNormConfig::WeightNorm`].
    WeightNorm(Direction),
    /// See [`WeightNormConfig::ScaledWeightStandardization`].
    Standardized(Standardized),
}

impl WeightNorm {
    /// The weight that the layer uses, from the stored one; both are `[fan_in, fan_out]`.
    pub fn forward(&self, weight: Tensor<2>) -> Tensor<2> {
        match self {
            Self::None(_) => weight,
            Self::WeightNorm(norm) => norm.forward(weight),
            Self::Standardized(norm) => norm.forward(weight),
        }
    }
}

/// Weight normalization (arXiv:1602.07868, eq. 2): length and direction of each unit, or of the whole matrix, are learned
/// separately.
#[derive(Module, Debug)]
pub struct Direction {
    /// The lengths, `[fan_out]`, or `[1]` for the whole matrix.
    g: Param<Tensor<1>>,
    #[module(skip)]
    over: LengthOver,
}

impl Direction {
    /// `g v / |v|`, per column or for the whole matrix. A vector of zeros has no direction and stays 0.
    pub fn forward(&self, v: Tensor<2>) -> Tensor<2> {
        direction(v, self.over) * self.g.val().unsqueeze()
    }

    /// Data-dependent init (arXiv:1602.07868, section 3): the length of each unit and the bias, `[fan_out]`, at which the
    /// outputs for the rows `x` have mean 0 and variance 1: `g = 1 / std(t)`, `b = -mean(t) / std(t)`, `t = x v / |v|`.
    pub fn calibrated(v: Tensor<2>, x: Tensor<2>) -> (Self, Tensor<1>) {
        let t = x.matmul(direction(v, LengthOver::Unit));
        let mean = t.clone().mean_dim(0);
        let std = centred(t, |t| t.mean_dim(0)).square().mean_dim(0).sqrt();
        let g = std.clone().recip().squeeze_dim(0);
        (Self { g: Param::from_tensor(g), over: LengthOver::Unit }, (mean / std).neg().squeeze_dim(0))
    }
}

fn direction(v: Tensor<2>, over: LengthOver) -> Tensor<2> {
    v.clone() / at_least(over.squares(v), 1e-30).sqrt()
}

/// Scaled Weight Standardization (arXiv:2101.08692, eq. 3; arXiv:2102.06171, section 2): the weights of a unit have mean 0
/// and variance `(gain gamma)^2 / fan_in`, so that inputs of variance 1 give outputs of variance 1.
#[derive(Module, Debug)]
pub struct Standardized {
    /// Learned gain, `[fan_out]`.
    gain: Param<Tensor<1>>,
    gamma: f64,
    eps: f64,
    #[module(skip)]
    flavour: Flavour,
}

impl Standardized {
    /// The standardized columns of `w`.
    pub fn forward(&self, w: Tensor<2>) -> Tensor<2> {
        let fan_in = w.dims()[0] as f64;
        let centred = centred(w, |w| w.mean_dim(0));
        let var = centred.clone().square().mean_dim(0);
        let size = match self.flavour {
            Flavour::Timm => (var + self.eps).sqrt() * fan_in.sqrt(),
            Flavour::Nfnet => at_least(var * fan_in, self.eps).sqrt(),
        };
        centred / size * (self.gain.val() * self.gamma).unsqueeze()
    }
}

/// `1 / std(f(z))` of activations f, z ~ N(0, 1), which restores variance 1 behind the activation; the values of the authors
/// of NFNets (arXiv:2101.08692, section 4), with the digits of timm.
pub const ACTIVATION_GAINS: [(&str, f64); 15] = [
    ("identity", 1.0),
    ("celu", 1.270926475524902),
    ("elu", 1.2716004848480225),
    ("gelu", 1.7015043497085571),
    ("leaky_relu", 1.70590341091156),
    ("log_sigmoid", 1.9193484783172607),
    ("relu", 1.7139588594436646),
    ("relu6", 1.7131484746932983),
    ("selu", 1.0008515119552612),
    ("sigmoid", 4.803835391998291),
    ("silu", 1.7881293296813965),
    ("softplus", 1.9203323125839233),
    ("softsign", 2.338853120803833),
    ("tanh", 1.5939117670059204),
    ("log_softmax", 1.0002083778381348),
];

/// The gain of an activation by its name in [`ACTIVATION_GAINS`].
pub fn activation_gain(name: &str) -> Option<f64> {
    ACTIVATION_GAINS.iter().find(|(known, _)| *known == name).map(|(_, gain)| *gain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_norm_is_listed_under_its_own_name() {
        unitgain_variant::assert_listed::<WeightNormConfig>();
    }

    /// `1 / std(f(z))` by Simpson's rule over N(0, 1).
    #[test]
    fn gains_are_those_of_the_activations() {
        let gain = |f: &dyn Fn(f64) -> f64| {
            let n = 20_000;
            let moment = |k: i32| {
                let at = |i: i32| {
                    let z = -12.0 + 24.0 * f64::from(i) / f64::from(n);
                    f(z).powi(k) * (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
                };
                let weight = |i: i32| if i == 0 || i == n { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
                (0..=n).map(|i| at(i) * weight(i)).sum::<f64>() * 24.0 / f64::from(n) / 3.0
            };
            (moment(2) - moment(1).powi(2)).powf(-0.5)
        };
        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
        let elu = |z: f64| if z > 0.0 { z } else { z.exp_m1() };
        let cases: [(&str, &dyn Fn(f64) -> f64); 10] = [
            ("identity", &|z| z),
            ("relu", &|z| z.max(0.0)),
            ("relu6", &|z| z.clamp(0.0, 6.0)),
            ("leaky_relu", &|z| if z > 0.0 { z } else { 0.01 * z }),
            ("sigmoid", &sigmoid),
            ("silu", &|z| z * sigmoid(z)),
            ("tanh", &f64::tanh),
            ("elu", &elu),
            ("softsign", &|z| z / (1.0 + z.abs())),
            ("softplus", &|z| z.exp().ln_1p()),
        ];
        for (name, f) in cases {
            let (given, exact) = (activation_gain(name).unwrap(), gain(f));
            // The authors estimated the table from samples.
            assert!((given / exact - 1.0).abs() < 3e-3, "{name}: {given} is not {exact}");
        }
    }
}
