use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, require, shorthand, within};

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
        /// Part of a head that turns, its first entries (GPT-NeoX, arXiv:2204.06745, section 2.1). Default 1.
        #[serde(default = "whole")]
        fraction: f64,
        /// Change of the frequencies for a longer context. Default `none`.
        #[serde(default, deserialize_with = "shorthand::kind_or_table")]
        scaling: RopeScaling,
    },
    /// No encoding beside the causal mask.
    None {},
}

fn default_theta() -> f64 {
    10_000.0
}

fn whole() -> f64 {
    1.0
}

/// How the frequencies of RoPE are changed, so that a model can read longer sequences than it was trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Unchanged.
    None {},
    /// All frequencies divided by `factor`, as positions would be (arXiv:2306.15595, eq. 4).
    Linear {
        /// Divisor, at least 1.
        factor: f64,
    },
    /// With wavelength `l = 2 pi / frequency` and `s = (original_context / l - low_freq_factor) / (high_freq_factor -
    /// low_freq_factor)`, within 0 and 1, a frequency f becomes `s f + (1 - s) f / factor` (the code of Llama 3.1,
    /// arXiv:2407.21783).
    Llama3 {
        /// Divisor of the low frequencies, at least 1.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` have the whole factor. Default 1.
        #[serde(default = "default_low")]
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are unchanged. Default 4.
        #[serde(default = "default_high")]
        high_freq_factor: f64,
        /// Largest number of tokens of a sequence in training.
        original_context: usize,
    },
}

fn default_low() -> f64 {
    1.0
}

fn default_high() -> f64 {
    4.0
}

impl Default for RopeScaling {
    fn default() -> Self {
        Self::None {}
    }
}

impl Variant for RopeScaling {
    fn about(&self) -> About {
        About::of(match self {
            Self::None {} => ("none", "f", "arXiv:2104.09864"),
            Self::Linear { .. } => ("linear", "f / factor", "arXiv:2306.15595 eq. 4"),
            Self::Llama3 { .. } => ("llama3", "f / factor for long wavelengths, f for short ones", "arXiv:2407.21783"),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::None {} => Ok(()),
            Self::Linear { factor } => within("factor", factor, 1.0, 1e6),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                within("factor", factor, 1.0, 1e6)?;
                within("low_freq_factor", low_freq_factor, 1e-6, 1e6)?;
                within("high_freq_factor", high_freq_factor, 1e-6, 1e6)?;
                let problem = format!("must be above low_freq_factor = {low_freq_factor}");
                require(high_freq_factor > low_freq_factor, "high_freq_factor", high_freq_factor, problem)?;
                require(original_context > 0, "original_context", original_context, "must be at least 1")
            }
        }
    }

    fn examples() -> Vec<Self> {
        let (low_freq_factor, high_freq_factor) = (default_low(), default_high());
        let llama3 = Self::Llama3 { factor: 8.0, low_freq_factor, high_freq_factor, original_context: 8192 };
        vec![Self::Linear { factor: 2.0 }, llama3]
    }
}

impl RopeScaling {
    fn of(self, frequency: f64) -> f64 {
        match self {
            Self::None {} => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let turns = original_context as f64 * frequency / std::f64::consts::TAU;
                let s = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                s * frequency + (1.0 - s) * frequency / factor
            }
        }
    }
}

impl Position {
    /// RoPE of whole heads with this base.
    pub fn rope(theta: f64) -> Self {
        Self::Rope { theta, fraction: 1.0, scaling: RopeScaling::None {} }
    }

    /// Number of entries of a head that turn.
    pub(crate) fn turning(&self, head_dim: usize) -> usize {
        match self {
            Self::Rope { fraction, .. } => (head_dim as f64 * fraction) as usize,
            Self::Learned {} | Self::Sinusoidal {} | Self::None {} => 0,
        }
    }

    /// Angles by which the pairs of a head turn from one position to the next; none without RoPE.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let turning = self.turning(head_dim);
        match *self {
            Self::Rope { theta, scaling, .. } => {
                (0..turning / 2).map(|i| scaling.of(theta.powf(-((2 * i) as f64) / turning as f64))).collect()
            }
            Self::Learned {} | Self::Sinusoidal {} | Self::None {} => Vec::new(),
        }
    }
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
            Self::Rope { theta, fraction, scaling } => {
                require(theta > 0.0 && theta.is_finite(), "theta", theta, "must be a positive number")?;
                let problem = "must be above 0 and at most 1: the part of a head that turns";
                require(fraction > 0.0 && fraction <= 1.0, "fraction", fraction, problem)?;
                scaling.check().map_err(|fault| fault.below("scaling"))
            }
            Self::Learned {} | Self::Sinusoidal {} | Self::None {} => Ok(()),
        }
    }
}
