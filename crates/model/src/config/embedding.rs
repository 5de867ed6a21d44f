use serde::{Deserialize, Serialize};
use unitgain_variant::{Fault, factor};

/// The factor of the token embedding.
///
/// ```toml
/// embedding_scale = 11.3
/// embedding_scale = { kind = "learned" }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EmbeddingScale {
    /// A constant such as sqrt(d) (arXiv:1706.03762, section 3.4), also written as a number alone.
    Constant {
        /// The factor. Required.
        value: f64,
    },
    /// A learned scalar, as in the language models of DyT (arXiv:2503.10622, section 5).
    Learned {
        /// Initial value. Default `sqrt(d_model)`, of the base model if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        init: Option<f64>,
    },
}

impl From<f64> for EmbeddingScale {
    fn from(value: f64) -> Self {
        Self::Constant { value }
    }
}

impl EmbeddingScale {
    /// Checks that the settings are in range.
    pub(crate) fn check(self) -> Result<(), Fault> {
        match self {
            Self::Constant { value } => factor("value", value),
            Self::Learned { init } => init.map_or(Ok(()), |init| factor("init", init)),
        }
    }
}
