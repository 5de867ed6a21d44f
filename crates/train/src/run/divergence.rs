//! What is done about a step whose loss or gradients are not finite.

use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, fraction, require};

/// What a run does when the loss or a gradient of a step is not finite. Each divergence is written into `summary.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OnDivergence {
    /// The run ends.
    Stop {},
    /// The step makes no update, and the run goes on with the next batch; the last step cannot be skipped. Every step is read from the device before
    /// the next, and the weights from before it are kept beside the new ones until then.
    Skip {
        /// Most steps that are skipped; one more ends the run. Default 10.
        #[serde(default = "most_skipped")]
        at_most: usize,
    },
    /// The run goes back to its newest checkpoint and on from there at a lower learning rate. A checkpoint is also
    /// written before the first step.
    Rewind {
        /// What the learning rate of all later steps is multiplied by, each time. Default 0.5.
        #[serde(default = "rewind_factor")]
        factor: f64,
        /// Most times that the run goes back; one divergence more ends it. Default 3.
        #[serde(default = "most_rewinds")]
        at_most: usize,
    },
}

/// Most divergences of a run.
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

/// A step whose loss or gradients were not finite, and what was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// The step.
    pub step: usize,
    /// What was not finite.
    pub message: String,
    /// What was done.
    #[serde(flatten)]
    pub action: Action,
}

/// What was done about a divergence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// The run ended.
    Stopped {},
    /// The step made no update.
    Skipped {},
    /// The run went back.
    Rewound {
        /// The step of the checkpoint that it went on from.
        to: usize,
        /// What the learning rate of the configuration is multiplied by from then on.
        rate: f64,
    },
}

impl Divergence {
    /// Whether the step was left out.
    pub fn is_skipped(&self) -> bool {
        matches!(self.action, Action::Skipped {})
    }

    /// The step that the run went back to.
    pub fn went_to(&self) -> Option<usize> {
        match self.action {
            Action::Rewound { to, .. } => Some(to),
            Action::Stopped {} | Action::Skipped {} => None,
        }
    }

    /// In one line.
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
