use serde::{Deserialize, Serialize};
use unitgain_init::gain::{Function, moments};
use unitgain_kernels::kinks;
use unitgain_norms::weight::activation_gain;
use unitgain_variant::{About, Variant};

/// The activation of the MLP; gated kinds multiply it by a second projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (arXiv:2109.08668, section 3).
    ReluSquared,
    /// `x Phi(x)`, exact (arXiv:1606.08415, eq. 1).
    Gelu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` (arXiv:1606.08415, eq. 2).
    GeluTanh,
    /// `x sigmoid(x)`.
    Silu,
    /// `silu(gate) * up` (arXiv:2002.05202, eq. 5).
    SwiGlu,
    /// `gelu(gate) * up` (arXiv:2002.05202, eq. 6).
    GeGlu,
    /// `gelu_tanh(gate) * up` (arXiv:2403.08295).
    GeGluTanh,
}

impl Variant for Activation {
    fn about(&self) -> About {
        About::of(match self {
            Self::Relu => ("relu", "W2 max(W1 x, 0)", "arXiv:1706.03762 eq. 2"),
            Self::ReluSquared => ("relu_squared", "W2 max(W1 x, 0)^2", "arXiv:2109.08668 section 3"),
            Self::Gelu => ("gelu", "W2 gelu(W1 x), gelu(z) = z Phi(z)", "arXiv:1606.08415 eq. 1"),
            Self::GeluTanh => ("gelu_tanh", "W2 gelu(W1 x), tanh approximation", "arXiv:1606.08415 eq. 2"),
            Self::Silu => ("silu", "W2 silu(W1 x), silu(z) = z sigmoid(z)", "arXiv:1606.08415 section 4"),
            Self::SwiGlu => ("swi_glu", "W2 (silu(Wg x) * W1 x)", "arXiv:2002.05202 eq. 5"),
            Self::GeGlu => ("ge_glu", "W2 (gelu(Wg x) * W1 x)", "arXiv:2002.05202 eq. 6"),
            Self::GeGluTanh => ("ge_glu_tanh", "W2 (gelu_tanh(Wg x) * W1 x)", "arXiv:2403.08295"),
        })
    }
}

impl Activation {
    /// Whether the MLP has a gate projection.
    pub fn is_gated(self) -> bool {
        match self {
            Self::SwiGlu | Self::GeGlu | Self::GeGluTanh => true,
            Self::Relu | Self::ReluSquared | Self::Gelu | Self::GeluTanh | Self::Silu => false,
        }
    }

    /// Whether the activation has a kink and [`kinks`] records or replays choices, so that it cannot be fused.
    pub(crate) fn is_watched(self) -> bool {
        let has_kink = match self {
            Self::Relu | Self::ReluSquared => true,
            Self::Gelu | Self::GeluTanh | Self::Silu | Self::SwiGlu | Self::GeGlu | Self::GeGluTanh => false,
        };
        has_kink && kinks::are_watched()
    }

    /// The factor that restores variance 1 behind the activation, for Scaled Weight Standardization: `1 / std(phi(z))`; for
    /// gated kinds, whose output has mean 0, `1 / sqrt(E[phi(z)^2])`.
    pub fn gain(self) -> f64 {
        let of = |name| activation_gain(name).unwrap_or(1.0);
        match self {
            Self::Relu => of("relu"),
            // The variance of max(z, 0)^2 is 3/2 - 1/4.
            Self::ReluSquared => 1.25f64.powf(-0.5),
            Self::Gelu | Self::GeluTanh => of("gelu"),
            Self::Silu => of("silu"),
            Self::SwiGlu => 1.676532,
            Self::GeGlu => 1.533530,
            Self::GeGluTanh => 1.533581,
        }
    }

    /// The factor that brings `phi(factor z)` to a mean square of 1 for standard normal z; also right for gated kinds, which
    /// multiply by another standard normal variable.
    pub fn unit_gain(self, factor: f64) -> f64 {
        let phi = |z: f64| match self {
            Self::Relu => Function::Relu {}.at(z),
            Self::ReluSquared => Function::Relu {}.at(z).powi(2),
            Self::Gelu | Self::GeGlu => Function::Gelu {}.at(z),
            Self::GeluTanh | Self::GeGluTanh => Function::GeluTanh {}.at(z),
            Self::Silu | Self::SwiGlu => Function::Silu {}.at(z),
        };
        moments(|z| phi(factor * z)).second.powf(-0.5)
    }
}
