use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, require};

/// The position encoding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Position {
    /// A learned table, added to the token embedding.
    Learned {},
    /// `sin(t / 10000^(2i/d))`, `cos(t / 10000^(2i/d))`, added to the token embedding
    /// (arXiv:1706.03762, section 3.5).
    Sinusoidal {},
    /// Rotation of queries and keys by `t theta^(-2i/head_dim)` (arXiv:2104.09864, eq. 34), in the half-split layout of LLaMA:
    /// entry i is paired with entry i + head_dim/2.
    Rope {
        /// Base of the frequencies. Default 10000.
        #[serde(default = "default_theta")]
        theta: f64,
    },
    /// No encoding beside the causal mask.
    None {},
}

fn default_theta() -> f64 {
    10_000.0
}

impl Variant for Position {
    fn about(&self) -> About {
        About::of(match self {
            Self::Learned {} => ("learned", "x + P[t], P learned", "arXiv:1706.03762"),
            Self::Sinusoidal {} => ("sinusoidal", "x + (sin, cos)(t / 10000^(2i/d))", "arXiv:1706.03762 section 3.5"),
            Self::Rope { .. } => {
                ("rope", "q, k turned by t theta^(-2i/head_dim), half-split layout", "arXiv:2104.09864 eq. 34")
            }
            Self::None {} => ("none", "x", "arXiv:2203.16634"),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::Rope { theta } => {
                require(theta > 0.0 && theta.is_finite(), "theta", theta, "must be a positive number")
            }
            Self::Learned {} | Self::Sinusoidal {} | Self::None {} => Ok(()),
        }
    }
}
