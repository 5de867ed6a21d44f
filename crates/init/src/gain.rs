//! What makes up for an activation: the weight gain g in `std = g / sqrt(fan_in)`.
//!
//! Three conventions share the name and differ for most functions; [`Gain`] names the one that is meant.

use serde::{Deserialize, Serialize};

/// A gain, by number or by convention.
///
/// ```toml
/// gain = 1.5
/// gain = { kind = "second_moment", activation = "gelu" }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Gain {
    /// A number. A number alone stands for it.
    Constant {
        /// Required.
        value: f64,
    },
    /// PyTorch's `calculate_gain`: sqrt(2 / (1 + slope^2)) for the ReLU family, 5/3 for tanh, 1 for sigmoid,
    /// 3/4 for selu.
    Torch {
        /// Required; one that PyTorch's table has.
        activation: Function,
    },
    /// `1 / sqrt(E[f(z)^2])`, z standard normal, by quadrature: a second moment of 1 stays 1 from layer to layer.
    SecondMoment {
        /// Required.
        activation: Function,
    },
    /// `1 / std(f(z))`, z standard normal, by quadrature: NFNet's (arXiv:2101.08692, section 3), for weights that
    /// sum to 0 per unit.
    Nfnet {
        /// Required.
        activation: Function,
    },
}

impl From<f64> for Gain {
    fn from(value: f64) -> Self {
        Self::Constant { value }
    }
}

impl Gain {
    /// The number; None where PyTorch's table lacks the function.
    pub fn value(self) -> Option<f64> {
        match self {
            Self::Constant { value } => Some(value),
            Self::Torch { activation } => activation.torch_gain(),
            Self::SecondMoment { activation } => Some(activation.moments().second.powf(-0.5)),
            Self::Nfnet { activation } => Some(activation.moments().variance().powf(-0.5)),
        }
    }
}

/// For serde: a number, or a table with a `kind`.
pub(crate) fn number_or_table<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Gain, D::Error> {
    struct Either;
    impl<'de> serde::de::Visitor<'de> for Either {
        type Value = Gain;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("gain as a number, or as a table with kind = constant, torch, second_moment or nfnet")
        }
        fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Gain, E> {
            Ok(Gain::Constant { value })
        }
        fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Gain, E> {
            Ok(Gain::Constant { value: value as f64 })
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Gain, A::Error> {
            Gain::deserialize(serde::de::value::MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_any(Either)
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// `z`.
    Linear,
    /// `1 / (1 + exp(-z))`.
    Sigmoid,
    /// `tanh(z)`.
    Tanh,
    /// `max(z, 0)`.
    Relu,
    /// `z` above 0, `0.01 z` below. Another slope: [`leaky_gain`].
    LeakyRelu,
    /// `z Phi(z)`.
    Gelu,
    /// The tanh approximation of `gelu`.
    GeluTanh,
    /// `z sigmoid(z)`.
    Silu,
    /// `z` above 0, `exp(z) - 1` below.
    Elu,
    /// `1.0507 z` above 0, `1.0507 1.6733 (exp(z) - 1)` below (arXiv:1706.02515). Its second moment is 1 by design:
    /// with `lecun` weights it keeps mean 0 and variance 1.
    Selu,
    /// `z tanh(ln(1 + exp(z)))`.
    Mish,
    /// `ln(1 + exp(z))`.
    Softplus,
    /// `max(z, 0)^2`.
    ReluSquared,
    /// `sin(z)`.
    Sin,
}

impl Function {
    /// Every function.
    pub const ALL: [Self; 14] = [
        Self::Linear,
        Self::Sigmoid,
        Self::Tanh,
        Self::Relu,
        Self::LeakyRelu,
        Self::Gelu,
        Self::GeluTanh,
        Self::Silu,
        Self::Elu,
        Self::Selu,
        Self::Mish,
        Self::Softplus,
        Self::ReluSquared,
        Self::Sin,
    ];

    /// f(z).
    pub fn at(self, z: f64) -> f64 {
        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
        let softplus = |z: f64| z.max(0.0) + (-z.abs()).exp().ln_1p();
        match self {
            Self::Linear => z,
            Self::Sigmoid => sigmoid(z),
            Self::Tanh => z.tanh(),
            Self::Relu => z.max(0.0),
            Self::LeakyRelu => z.max(0.01 * z),
            Self::Gelu => 0.5 * z * (1.0 + erf(z / std::f64::consts::SQRT_2)),
            Self::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z.powi(3));
                0.5 * z * (1.0 + inner.tanh())
            }
            Self::Silu => z * sigmoid(z),
            Self::Elu => {
                if z > 0.0 {
                    z
                } else {
                    z.exp_m1()
                }
            }
            Self::Selu => SELU_LAMBDA * if z > 0.0 { z } else { SELU_ALPHA * z.exp_m1() },
            Self::Mish => z * softplus(z).tanh(),
            Self::Softplus => softplus(z),
            Self::ReluSquared => z.max(0.0).powi(2),
            Self::Sin => z.sin(),
        }
    }

    /// Mean and mean square under a standard normal input.
    pub fn moments(self) -> Moments {
        moments(|z| self.at(z))
    }

    /// What PyTorch 2.9's `calculate_gain` says; None where it raises an error.
    pub fn torch_gain(self) -> Option<f64> {
        match self {
            Self::Linear | Self::Sigmoid => Some(1.0),
            Self::Tanh => Some(5.0 / 3.0),
            Self::Relu => Some(leaky_gain(0.0)),
            Self::LeakyRelu => Some(leaky_gain(0.01)),
            Self::Selu => Some(0.75),
            Self::Gelu | Self::GeluTanh | Self::Silu | Self::Elu | Self::Mish | Self::Softplus => None,
            Self::ReluSquared | Self::Sin => None,
        }
    }
}

const SELU_LAMBDA: f64 = 1.050_700_987_355_480_5;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

/// `sqrt(2 / (1 + slope^2))`, of ReLU (slope 0) and LeakyReLU (arXiv:1502.01852, eq. 15).
pub fn leaky_gain(slope: f64) -> f64 {
    (2.0 / (1.0 + slope * slope)).sqrt()
}

/// Mean and mean square of a function of a standard normal number.
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

/// The moments of any function, by Gauss-Legendre quadrature of 16 points on each of 96 pieces of
/// [-12, 12], split at 0, where activations have their kink. Relative error below 1e-12 for functions that are
/// smooth on either side and grow no faster than a polynomial.
pub fn moments(f: impl Fn(f64) -> f64) -> Moments {
    const REACH: f64 = 12.0;
    const PIECES: usize = 96;
    let half = REACH / PIECES as f64;
    let nodes = legendre_nodes();
    let mut sums = Moments { mean: 0.0, second: 0.0 };
    for piece in 0..PIECES {
        let centre = -REACH + half * (2 * piece + 1) as f64;
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

/// Nodes and weights of Gauss-Legendre quadrature of 16 points on [-1, 1]: roots of P_16, by Newton's method.
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

/// The error function, to 1e-15: its series near 0, a continued fraction beyond.
pub fn erf(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 3.0 {
        // erf(x) = 2/sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (2n+1)!!, whose terms are all positive.
        let (mut term, mut sum, mut n) = (size, size, 1.0);
        while term > sum * 1e-17 {
            term *= 2.0 * size * size / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-size * size).exp() * sum
    } else if size < 6.0 {
        // erfc(x) = exp(-x^2) / sqrt(pi) / (x + 1/2 / (x + 2/2 / (x + 3/2 / ..))).
        let fraction = (1..=60).rev().fold(size, |rest, k| size + 0.5 * f64::from(k) / rest);
        1.0 - (-size * size).exp() / std::f64::consts::PI.sqrt() / fraction
    } else {
        1.0
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_is_the_table() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.5, 0.999_593_047_982_555),
            (3.5, 0.999_999_256_901_627_7),
            (-1.0, -0.842_700_792_949_714_9),
            (9.0, 1.0),
        ] {
            assert!((erf(x) - want).abs() < 1e-15, "erf({x}) = {} is not {want}", erf(x));
        }
    }

    #[test]
    fn a_convention_is_not_another() {
        let tanh = |gain: fn(Function) -> Gain| gain(Function::Tanh).value().unwrap();
        assert_eq!(tanh(|activation| Gain::Torch { activation }), 5.0 / 3.0);
        assert!((tanh(|activation| Gain::SecondMoment { activation }) - 1.592_537_419_72).abs() < 1e-10);
        let sigmoid = Gain::Nfnet { activation: Function::Sigmoid }.value().unwrap();
        assert!((sigmoid - 4.801_313_372_04).abs() < 1e-9);
        assert_eq!(Gain::Torch { activation: Function::Gelu }.value(), None);
        assert_eq!(Gain::from(2.0).value(), Some(2.0));
    }
}
