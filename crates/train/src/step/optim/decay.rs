use serde::{Deserialize, Serialize};

/// Decoupled weight decay of AdamW and Lion.
///
/// ```toml
/// weight_decay = 0.1
/// weight_decay = { kind = "independent", value = 1e-4 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WeightDecay {
    /// `w -= lr value w`, with lr the weight's own learning rate and value times the weight's decay factor. A
    /// parametrization that divides a learning rate by the width multiplies the decay by it, so that lr value is
    /// independent of the width (PyTorch's form, microsoft/mup 1.0.0's rule). A plain number means this.
    Coupled {
        /// Decay coefficient. Default 0.1.
        #[serde(default = "coupled")]
        value: f64,
    },
    /// `w -= s(t) value w`, with s(t) the schedule's factor; independent of the learning rate (arXiv:1711.05101,
    /// algorithm 2; as in u-muP, arXiv:2407.17465).
    Independent {
        /// Fraction of the weight removed per step at the peak of the schedule. Default 1e-4.
        #[serde(default = "independent")]
        value: f64,
    },
}

impl From<f64> for WeightDecay {
    fn from(value: f64) -> Self {
        Self::Coupled { value }
    }
}

impl WeightDecay {
    /// The coefficient.
    pub fn value(self) -> f64 {
        match self {
            Self::Coupled { value } | Self::Independent { value } => value,
        }
    }
}

impl Default for WeightDecay {
    fn default() -> Self {
        Self::Coupled { value: coupled() }
    }
}

const fn coupled() -> f64 {
    0.1
}
const fn independent() -> f64 {
    1e-4
}
