//! Handling of steps whose loss or gradients are not finite.

use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, fraction, require};

/// What to do when the loss or a gradient of a step is not finite. Each divergence is listed in `summary.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OnDivergence {
    /// The run ends.
    Stop {},
    /// The step makes no update, and the run continues with the next batch; the last step cannot be skipped. Each step
    /// is read from the device before the next one, and both the old and the new weights are in memory until then.
    Skip {
        /// Maximum number of skipped steps; one more ends the run. Default 10.
        #[serde(default = "most_skipped")]
        at_most: usize,
    },
    /// The run returns to its newest checkpoint and continues at a lower learning rate. A checkpoint is also written
    /// before the first step.
    Rewind {
        /// Factor on the learning rate of all later steps, applied at each rewind. Default 0.5.
        #[serde(default = "rewind_factor")]
        factor: f64,
        /// Maximum number of rewinds; one more divergence ends the run. Default 3.
        #[serde(default = "most_rewinds")]
        at_most: usize,
    },
}

/// Maximum of both `at_most` settings.
const MOST: usize = 1000;

const fn most_skipped() -> usize {
    10
}
const fn rewind_factor() -> f64 {
    0.5
}
const fn most_rewinds() -> usize {
    3
}

impl Default for OnDivergence {
    fn default() -> Self {
        Self::Stop {}
    }
}

impl Variant for OnDivergence {
    fn about(&self) -> About {
        About::of(match self {
            Self::Stop {} => ("stop", "the run ends", "this project"),
            Self::Skip { .. } => {
                ("skip", "w stays, the next batch follows; at most n times", "arXiv:1710.03740 section 3.2")
            }
            Self::Rewind { .. } => (
                "rewind",
                "back to the newest checkpoint, lr *= factor; at most n times",
                "arXiv:2205.01068 section 2.5",
            ),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::Stop {} => Ok(()),
            Self::Skip { at_most } | Self::Rewind { at_most, .. } => {
                require(at_most > 0, "at_most", at_most, "must be at least 1; \"stop\" ends the run at once")?;
                let problem = format!("must be at most {MOST}: each divergence is kept in summary.json");
                require(at_most <= MOST, "at_most", at_most, problem)?;
                if let Self::Rewind { factor, .. } = *self { fraction("factor", factor) } else { Ok(()) }
            }
        }
    }
}

/// A step whose loss or gradients were not finite, and how it was handled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// The step.
    pub step: usize,
    /// What was not finite.
    pub message: String,
    /// How it was handled.
    #[serde(flatten)]
    pub action: Action,
}

/// How a divergence was handled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// The run ended.
    Stopped {},
    /// The step made no update.
    Skipped {},
    /// The run went back to a checkpoint.
    Rewound {
        /// Step of the checkpoint.
        to: usize,
        /// Factor on the configured learning rate from then on.
        rate: f64,
    },
}

impl Divergence {
    /// Whether the step was skipped.
    pub fn is_skipped(&self) -> bool {
        matches!(self.action, Action::Skipped {})
    }

    /// The step to which the run went back.
    pub fn went_to(&self) -> Option<usize> {
        match self.action {
            Action::Rewound { to, .. } => Some(to),
            Action::Stopped {} | Action::Skipped {} => None,
        }
    }

    /// A description in one line.
    pub fn describe(&self) -> String {
        let done = match self.action {
            Action::Stopped {} => String::new(),
            Action::Skipped {} => "; the step is skipped".into(),
            Action::Rewound { to, rate } => format!("; goes on from step {to} at {rate} of the learning rate"),
        };
        format!("diverged at step {}: {}{done}", self.step, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_named() {
        for (policy, key) in [
            (OnDivergence::Skip { at_most: 0 }, "at_most"),
            (OnDivergence::Skip { at_most: MOST + 1 }, "at_most"),
            (OnDivergence::Rewind { factor: 0.5, at_most: 0 }, "at_most"),
            (OnDivergence::Rewind { factor: 0.0, at_most: 1 }, "factor"),
            (OnDivergence::Rewind { factor: 1.5, at_most: 1 }, "factor"),
            (OnDivergence::Rewind { factor: f64::NAN, at_most: 1 }, "factor"),
        ] {
            assert_eq!(policy.check().unwrap_err().key, key);
        }
    }
}
