//! The gain g in `std = g / sqrt(fan_in)`, which compensates for an activation.
//!
//! Several conventions share the name and differ for most functions; [`Gain`] names the convention.

use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, shorthand, within};

/// A gain, by number or by convention.
///
/// ```toml
/// gain = 1.5
/// gain = { kind = "second_moment", activation = "gelu" }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Gain {
    /// A constant, also written as a number alone.
    Constant {
        /// The gain. Required.
        value: f64,
    },
    /// PyTorch's `calculate_gain`: sqrt(2 / (1 + slope^2)) for ReLU and LeakyReLU, 5/3 for tanh, 1 for sigmoid,
    /// 3/4 for selu.
    Torch {
        /// An activation in PyTorch's table. Required.
        #[serde(deserialize_with = "shorthand::kind_or_table")]
        activation: Function,
    },
    /// `1 / sqrt(E[f(z)^2])`, z standard normal, by quadrature: keeps a second moment of 1 from layer to layer.
    SecondMoment {
        /// The activation. Required.
        #[serde(deserialize_with = "shorthand::kind_or_table")]
        activation: Function,
    },
    /// `1 / sqrt(E[f'(z)^2])`, z standard normal, by quadrature: keeps the second moment of the gradient through the
    /// activation and weights of `std = g / sqrt(fan_out)` (arXiv:1502.01852, eq. 14; for ReLU it equals the forward gain).
    Backward {
        /// The activation. Required.
        #[serde(deserialize_with = "shorthand::kind_or_table")]
        activation: Function,
    },
    /// `1 / std(f(z))`, z standard normal, by quadrature: the gain of NFNets (arXiv:2101.08692, section 3), for weights that
    /// sum to 0 per unit.
    Nfnet {
        /// The activation. Required.
        #[serde(deserialize_with = "shorthand::kind_or_table")]
        activation: Function,
    },
}

impl From<f64> for Gain {
    fn from(value: f64) -> Self {
        Self::Constant { value }
    }
}

impl Gain {
    /// Checks that the settings are in range.
    pub(crate) fn check(self) -> Result<(), Fault> {
        match self {
            Self::Constant { .. } => Ok(()),
            Self::Torch { activation }
            | Self::SecondMoment { activation }
            | Self::Backward { activation }
            | Self::Nfnet { activation } => activation.check().map_err(|fault| fault.below("gain.activation")),
        }
    }

    /// The gain; None if PyTorch's table lacks the activation.
    pub fn value(self) -> Option<f64> {
        match self {
            Self::Constant { value } => Some(value),
            Self::Torch { activation } => activation.torch_gain(),
            Self::SecondMoment { activation } => Some(activation.moments().second.powf(-0.5)),
            Self::Backward { activation } => Some(activation.second_moment_of_slope().powf(-0.5)),
            Self::Nfnet { activation } => Some(activation.moments().variance().powf(-0.5)),
        }
    }
}

/// A scalar function.
///
/// ```toml
/// activation = "tanh"
/// activation = { kind = "leaky_relu", slope = 0.2 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Function {
    /// `z`.
    Linear {},
    /// `1 / (1 + exp(-z))`.
    Sigmoid {},
    /// `tanh(z)`.
    Tanh {},
    /// `max(z, 0)`.
    Relu {},
    /// `min(max(z, 0), 6)`.
    Relu6 {},
    /// `z` above 0, `slope z` below (PReLU's start is 0.25).
    LeakyRelu {
        /// Slope below 0. Default 0.01.
        #[serde(default = "default_slope")]
        slope: f64,
    },
    /// `z Phi(z)`.
    Gelu {},
    /// The tanh approximation of `gelu`.
    GeluTanh {},
    /// `z sigmoid(1.702 z)` (arXiv:1606.08415, section 2).
    QuickGelu {},
    /// `z sigmoid(z)`.
    Silu {},
    /// `z min(max(z + 3, 0), 6) / 6` (arXiv:1905.02244, section 5.2).
    Hardswish {},
    /// `z` above 0, `alpha (exp(z) - 1)` below (arXiv:1511.07289, eq. 15).
    Elu {
        /// The limit at -infinity is -alpha. Default 1.
        #[serde(default = "one")]
        alpha: f64,
    },
    /// `1.0507 z` above 0, `1.0507 1.6733 (exp(z) - 1)` below (arXiv:1706.02515). Its second moment is 1: with `lecun` weights
    /// it keeps mean 0 and variance 1.
    Selu {},
    /// `z tanh(ln(1 + exp(z)))`.
    Mish {},
    /// `ln(1 + exp(z))`.
    Softplus {},
    /// `z / (1 + |z|)`.
    Softsign {},
    /// `max(z, 0)^2`.
    ReluSquared {},
    /// `sin(z)`.
    Sin {},
    /// `tanh(alpha z)`: DyT before its learned gain and bias (arXiv:2503.10622, eq. 1).
    Dyt {
        /// Factor of the input. Default 0.5, the initial value of its authors.
        #[serde(default = "half")]
        alpha: f64,
    },
}

const fn default_slope() -> f64 {
    0.01
}
const fn one() -> f64 {
    1.0
}
const fn half() -> f64 {
    0.5
}

impl Variant for Function {
    fn about(&self) -> About {
        About::of(match self {
            Self::Linear {} => ("linear", "z", "common practice"),
            Self::Sigmoid {} => ("sigmoid", "1 / (1 + exp(-z))", "common practice"),
            Self::Tanh {} => ("tanh", "tanh(z)", "common practice"),
            Self::Relu {} => ("relu", "max(z, 0)", "common practice"),
            Self::Relu6 {} => ("relu6", "min(max(z, 0), 6)", "common practice"),
            Self::LeakyRelu { .. } => ("leaky_relu", "z above 0, slope z below", "Maas et al. 2013"),
            Self::Gelu {} => ("gelu", "z Phi(z)", "arXiv:1606.08415"),
            Self::GeluTanh {} => ("gelu_tanh", "gelu, tanh approximation", "arXiv:1606.08415"),
            Self::QuickGelu {} => ("quick_gelu", "z sigmoid(1.702 z)", "arXiv:1606.08415 section 2"),
            Self::Silu {} => ("silu", "z sigmoid(z)", "arXiv:1606.08415 section 4"),
            Self::Hardswish {} => ("hardswish", "z min(max(z + 3, 0), 6) / 6", "arXiv:1905.02244 section 5.2"),
            Self::Elu { .. } => ("elu", "z above 0, alpha (exp(z) - 1) below", "arXiv:1511.07289 eq. 15"),
            Self::Selu {} => ("selu", "1.0507 elu, alpha = 1.6733", "arXiv:1706.02515"),
            Self::Mish {} => ("mish", "z tanh(ln(1 + exp(z)))", "arXiv:1908.08681"),
            Self::Softplus {} => ("softplus", "ln(1 + exp(z))", "common practice"),
            Self::Softsign {} => ("softsign", "z / (1 + |z|)", "common practice"),
            Self::ReluSquared {} => ("relu_squared", "max(z, 0)^2", "arXiv:2109.08668"),
            Self::Sin {} => ("sin", "sin(z)", "arXiv:2006.09661"),
            Self::Dyt { .. } => ("dyt", "tanh(alpha z)", "arXiv:2503.10622 eq. 1"),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::LeakyRelu { slope } => within("slope", slope, -1e6, 1e6),
            Self::Elu { alpha } => within("alpha", alpha, 0.0, 1e6),
            Self::Dyt { alpha } => within("alpha", alpha, 1e-6, 1e6),
            Self::Linear {}
            | Self::Sigmoid {}
            | Self::Tanh {}
            | Self::Relu {}
            | Self::Relu6 {}
            | Self::Gelu {}
            | Self::GeluTanh {} => Ok(()),
            Self::QuickGelu {}
            | Self::Silu {}
            | Self::Hardswish {}
            | Self::Selu {}
            | Self::Mish {}
            | Self::Softplus {} => Ok(()),
            Self::Softsign {} | Self::ReluSquared {} | Self::Sin {} => Ok(()),
        }
    }
}

impl Function {
    /// f(z).
    pub fn at(self, z: f64) -> f64 {
        let softplus = |z: f64| z.max(0.0) + (-z.abs()).exp().ln_1p();
        match self {
            Self::Linear {} => z,
            Self::Sigmoid {} => sigmoid(z),
            Self::Tanh {} => z.tanh(),
            Self::Relu {} => z.max(0.0),
            Self::Relu6 {} => z.clamp(0.0, 6.0),
            Self::LeakyRelu { slope } => {
                if z > 0.0 {
                    z
                } else {
                    slope * z
                }
            }
            Self::Gelu {} => 0.5 * z * (1.0 + libm::erf(z / std::f64::consts::SQRT_2)),
            Self::GeluTanh {} => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z.powi(3));
                0.5 * z * (1.0 + inner.tanh())
            }
            Self::QuickGelu {} => z * sigmoid(QUICK_GELU * z),
            Self::Silu {} => z * sigmoid(z),
            Self::Hardswish {} => z * (z + 3.0).clamp(0.0, 6.0) / 6.0,
            Self::Elu { alpha } => {
                if z > 0.0 {
                    z
                } else {
                    alpha * z.exp_m1()
                }
            }
            Self::Selu {} => SELU_LAMBDA * if z > 0.0 { z } else { SELU_ALPHA * z.exp_m1() },
            Self::Mish {} => z * softplus(z).tanh(),
            Self::Softplus {} => softplus(z),
            Self::Softsign {} => z / (1.0 + z.abs()),
            Self::ReluSquared {} => z.max(0.0).powi(2),
            Self::Sin {} => z.sin(),
            Self::Dyt { alpha } => (alpha * z).tanh(),
        }
    }

    /// f'(z); at a kink the left derivative.
    pub fn slope(self, z: f64) -> f64 {
        let above = |z: f64, low: f64| if z > 0.0 { 1.0 } else { low };
        // The slope of z sigmoid(k z).
        let of_swish = |k: f64| {
            let s = sigmoid(k * z);
            s + k * z * s * (1.0 - s)
        };
        match self {
            Self::Linear {} => 1.0,
            Self::Sigmoid {} => sigmoid(z) * sigmoid(-z),
            Self::Tanh {} => 1.0 - z.tanh().powi(2),
            Self::Relu {} => above(z, 0.0),
            Self::Relu6 {} => above(z, 0.0) * above(6.0 - z, 0.0),
            Self::LeakyRelu { slope } => above(z, slope),
            Self::Gelu {} => {
                let density = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
                0.5 * (1.0 + libm::erf(z / std::f64::consts::SQRT_2)) + z * density
            }
            Self::GeluTanh {} => {
                let k = (2.0 / std::f64::consts::PI).sqrt();
                let t = (k * (z + 0.044715 * z.powi(3))).tanh();
                0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * z * z)
            }
            Self::QuickGelu {} => of_swish(QUICK_GELU),
            Self::Silu {} => of_swish(1.0),
            Self::Hardswish {} => match z {
                z if z <= -3.0 => 0.0,
                z if z <= 3.0 => (2.0 * z + 3.0) / 6.0,
                _ => 1.0,
            },
            Self::Elu { alpha } => above(z, alpha * z.min(0.0).exp()),
            Self::Selu {} => SELU_LAMBDA * above(z, SELU_ALPHA * z.min(0.0).exp()),
            Self::Mish {} => {
                let t = (z.max(0.0) + (-z.abs()).exp().ln_1p()).tanh();
                t + z * (1.0 - t * t) * sigmoid(z)
            }
            Self::Softplus {} => sigmoid(z),
            Self::Softsign {} => (1.0 + z.abs()).powi(-2),
            Self::ReluSquared {} => 2.0 * z.max(0.0),
            Self::Sin {} => z.cos(),
            Self::Dyt { alpha } => alpha * (1.0 - (alpha * z).tanh().powi(2)),
        }
    }

    /// Mean and mean square for a standard normal input.
    pub fn moments(self) -> Moments {
        self.moments_of(|z| self.at(z))
    }

    /// `E[f'(z)^2]` for a standard normal input.
    pub fn second_moment_of_slope(self) -> f64 {
        self.moments_of(|z| self.slope(z)).second
    }

    fn moments_of(self, f: impl Fn(f64) -> f64) -> Moments {
        match self {
            // A large alpha makes it steep at 0.
            Self::Dyt { .. } => sum_over(steep_at_zero(), f),
            Self::Linear {}
            | Self::Sigmoid {}
            | Self::Tanh {}
            | Self::Relu {}
            | Self::Relu6 {}
            | Self::LeakyRelu { .. } => moments(f),
            Self::Gelu {} | Self::GeluTanh {} | Self::QuickGelu {} | Self::Silu {} | Self::Hardswish {} => moments(f),
            Self::Elu { .. } | Self::Selu {} | Self::Mish {} | Self::Softplus {} | Self::Softsign {} => moments(f),
            Self::ReluSquared {} | Self::Sin {} => moments(f),
        }
    }

    /// `calculate_gain` of PyTorch 2.9; None if that raises an error.
    pub fn torch_gain(self) -> Option<f64> {
        match self {
            Self::Linear {} | Self::Sigmoid {} => Some(1.0),
            Self::Tanh {} => Some(5.0 / 3.0),
            Self::Relu {} => Some(leaky_gain(0.0)),
            Self::LeakyRelu { slope } => Some(leaky_gain(slope)),
            Self::Selu {} => Some(0.75),
            Self::Relu6 {}
            | Self::Gelu {}
            | Self::GeluTanh {}
            | Self::QuickGelu {}
            | Self::Silu {}
            | Self::Hardswish {} => None,
            Self::Elu { .. } | Self::Mish {} | Self::Softplus {} | Self::Softsign {} | Self::Dyt { .. } => None,
            Self::ReluSquared {} | Self::Sin {} => None,
        }
    }
}

const QUICK_GELU: f64 = 1.702;
const SELU_LAMBDA: f64 = 1.050_700_987_355_480_5;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// `sqrt(2 / (1 + slope^2))`, the gain of LeakyReLU, and of ReLU with slope 0 (arXiv:1502.01852, eq. 15).
pub fn leaky_gain(slope: f64) -> f64 {
    (2.0 / (1.0 + slope * slope)).sqrt()
}

/// Mean and mean square of a function of a standard normal variable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// E[f(z)].
    pub mean: f64,
    /// E[f(z)^2].
    pub second: f64,
}

impl Moments {
    /// `E[f^2] - E[f]^2`.
    pub fn variance(self) -> f64 {
        self.second - self.mean * self.mean
    }
}

const REACH: f64 = 12.0;
const PIECES: usize = 96;

/// The moments of `f`, by Gauss-Legendre quadrature with 16 points on each of 96 equal pieces of [-12, 12], whose ends include
/// 0, 3 and 6, the kinks of activations. The relative error is below 1e-12 if `f` is smooth within the pieces, varies on
/// lengths of at least a quarter, and grows at most polynomially.
pub fn moments(f: impl Fn(f64) -> f64) -> Moments {
    let half = REACH / PIECES as f64;
    sum_over((0..PIECES).map(|piece| (-REACH + half * (2 * piece + 1) as f64, half)), f)
}

/// The pieces of [`moments`], with the two at 0 bisected towards 0 until the rest is negligible.
fn steep_at_zero() -> impl Iterator<Item = (f64, f64)> {
    let half = REACH / PIECES as f64;
    let uniform = (1..PIECES / 2).map(move |piece| (half * (2 * piece + 1) as f64, half));
    let graded = (0..60).map(move |k| half * 0.5f64.powi(k)).map(|half| (1.5 * half, half / 2.0));
    uniform.chain(graded).flat_map(|(centre, half)| [(centre, half), (-centre, half)])
}

/// The moments over pieces, given by centre and half length.
fn sum_over(pieces: impl Iterator<Item = (f64, f64)>, f: impl Fn(f64) -> f64) -> Moments {
    let nodes = legendre_nodes();
    let mut sums = Moments { mean: 0.0, second: 0.0 };
    for (centre, half) in pieces {
        for (x, weight) in nodes {
            let z = centre + half * x;
            let share = weight * half * (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
            let y = f(z);
            sums.mean += share * y;
            sums.second += share * y * y;
        }
    }
    sums
}

/// Nodes and weights of 16-point Gauss-Legendre quadrature on [-1, 1]: the roots of P_16, by Newton's method.
fn legendre_nodes() -> [(f64, f64); 16] {
    const N: usize = 16;
    let value_and_slope = |x: f64| {
        let (mut before, mut p) = (1.0, x);
        for k in 2..=N {
            let next = ((2 * k - 1) as f64 * x * p - (k - 1) as f64 * before) / k as f64;
            (before, p) = (p, next);
        }
        (p, N as f64 * (x * p - before) / (x * x - 1.0))
    };
    std::array::from_fn(|i| {
        let mut x = (std::f64::consts::PI * (i as f64 + 0.75) / (N as f64 + 0.5)).cos();
        for _ in 0..20 {
            let (p, slope) = value_and_slope(x);
            x -= p / slope;
        }
        let (_, slope) = value_and_slope(x);
        (x, 2.0 / ((1.0 - x * x) * slope * slope))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_listed_under_its_own_name() {
        unitgain_variant::assert_listed::<Function>();
    }

    #[test]
    fn a_convention_is_not_another() {
        let tanh = |gain: fn(Function) -> Gain| gain(Function::Tanh {}).value().unwrap();
        assert_eq!(tanh(|activation| Gain::Torch { activation }), 5.0 / 3.0);
        assert!((tanh(|activation| Gain::SecondMoment { activation }) - 1.592_537_419_72).abs() < 1e-10);
        let sigmoid = Gain::Nfnet { activation: Function::Sigmoid {} }.value().unwrap();
        assert!((sigmoid - 4.801_313_372_04).abs() < 1e-9);
        assert_eq!(Gain::Torch { activation: Function::Gelu {} }.value(), None);
        assert_eq!(Gain::from(2.0).value(), Some(2.0));
    }
}
