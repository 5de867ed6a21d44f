use serde::{Deserialize, Serialize};
use unitgain_variant::{Fault, factor};

/// What the token embedding is multiplied by.
///
/// ```toml
/// embedding_scale = 11.3
/// embedding_scale = { kind = "learned" }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EmbeddingScale {
    /// A number, as sqrt(d) in arXiv:1706.03762, section 3.4. A number alone stands for it.
    Constant {
        /// Required.
        value: f64,
    },
    /// A learned scalar, as DyT's language models have (arXiv:2503.10622, section 5).
    Learned {
        /// Its first value. Default `sqrt(d_model)`, of the base model where there is one.
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
    /// Refuses settings that are out of range.
    pub(crate) fn check(self) -> Result<(), Fault> {
        match self {
            Self::Constant { value } => factor("value", value),
            Self::Learned { init } => init.map_or(Ok(()), |init| factor("init", init)),
        }
    }
}
