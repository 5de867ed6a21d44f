use serde::{Deserialize, Serialize};

/// What a step of AdamW or Lion takes away from a weight, beside its update.
///
/// ```toml
/// weight_decay = 0.1
/// weight_decay = { kind = "independent", value = 1e-4 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WeightDecay {
    /// `lr value w`, lr the scheduled learning rate times the weight's factor, value times the weight's decay factor: under a
    /// parametrization that divides a learning rate by the width, decay is multiplied by it, so that what is taken away
    /// does not depend on the width (PyTorch's form, microsoft/mup 1.0.0's rule). A number alone stands for it.
    Coupled {
        /// Default 0.1.
        #[serde(default = "coupled")]
        value: f64,
    },
    /// `s(t) value w`, s(t) the schedule's factor: whatever the learning rate is (arXiv:1711.05101, algorithm 2; the form of
    /// u-muP, arXiv:2407.17465).
    Independent {
        /// Part of the weight that a step takes away at the peak of the schedule. Default 1e-4.
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
    /// The number.
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
