use serde::{Deserialize, Serialize};
use unitgain_norms::NormConfig;
use unitgain_variant::{Fault, positive_factor};

/// The axis that `qk_norm` normalizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNormOver {
    /// Each head separately (arXiv:2302.05442, Qwen 3, Gemma 3).
    #[default]
    Head,
    /// All heads of a token together, before they are split (arXiv:2501.00656).
    Width,
}

/// The factor of the attention logits `q.k`.
///
/// ```toml
/// attention_scale = { kind = "learned", init = 10.0 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AttentionScale {
    /// `1 / sqrt(head_dim)` (arXiv:1706.03762, eq. 1), or the scale of the parametrization.
    HeadDim {},
    /// A constant, also written as a number alone.
    Constant {
        /// The factor. Required.
        value: f64,
    },
    /// A learned inverse temperature, one per block (arXiv:2010.04245, eq. 4) or per query head (arXiv:2111.09883, section
    /// 3.2).
    Learned {
        /// Initial value. Default with `l2_norm` `log2(T^2 - T)`, T the context, the authors' value for sequences of that
        /// length; with other norms the value of `head_dim`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        init: Option<f64>,
        /// Whether each query head has its own factor. Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        per_head: bool,
    },
}

impl From<f64> for AttentionScale {
    fn from(value: f64) -> Self {
        Self::Constant { value }
    }
}

impl AttentionScale {
    /// The default for a norm of queries and keys.
    pub(crate) fn of(qk_norm: &NormConfig) -> Self {
        match qk_norm {
            NormConfig::L2Norm { .. } => Self::Learned { init: None, per_head: false },
            _ => Self::HeadDim {},
        }
    }

    /// Default initial value of a learned scale, given the norm of queries and keys and the value of `head_dim`.
    pub(crate) fn start(qk_norm: &NormConfig, context: usize, of_head_dim: f64) -> f64 {
        // Below 3 tokens the logarithm is at most 1.
        let t = context.max(3) as f64;
        match qk_norm {
            NormConfig::L2Norm { .. } => (t * t - t).log2(),
            _ => of_head_dim,
        }
    }

    /// Checks that the settings are in range.
    pub(crate) fn check(self) -> Result<(), Fault> {
        match self {
            Self::Constant { value } => positive_factor("value", value),
            Self::Learned { init, .. } => init.map_or(Ok(()), |init| positive_factor("init", init)),
            Self::HeadDim {} => Ok(()),
        }
    }
}
