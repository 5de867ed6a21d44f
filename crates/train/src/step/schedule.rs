//! Learning rate schedules. A schedule gives a factor per step; a weight's rate is that factor times the optimizer's
//! `lr` times the weight's own factor, so the ratios between weights are constant.

use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, require, within};

/// Linear warm-up, followed by one of four shapes. All lengths are in steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleConfig {
    /// Constant at 1.
    Constant {
        /// Steps of linear warm-up. Default 0.
        #[serde(default)]
        warmup: usize,
    },
    /// Half a cosine from 1 down to `min_ratio` at the end of the run (arXiv:1608.03983, eq. 5).
    Cosine {
        /// Steps of linear warm-up. Default 0.
        #[serde(default)]
        warmup: usize,
        /// Factor at the end. Default 0.1.
        #[serde(default = "min_ratio")]
        min_ratio: f64,
    },
    /// Linear from 1 down to `min_ratio` at the end of the run.
    Linear {
        /// Steps of linear warm-up. Default 0.
        #[serde(default)]
        warmup: usize,
        /// Factor at the end. Default 0.1.
        #[serde(default = "min_ratio")]
        min_ratio: f64,
    },
    /// Constant at 1, then linear down to `min_ratio` over the last `decay` steps (arXiv:2404.06395).
    WarmupStableDecay {
        /// Steps of linear warm-up. Default 0.
        #[serde(default)]
        warmup: usize,
        /// Steps of decay at the end. Required.
        decay: usize,
        /// Factor at the end. Default 0.1.
        #[serde(default = "min_ratio")]
        min_ratio: f64,
    },
}

fn min_ratio() -> f64 {
    0.1
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self::Cosine { warmup: 0, min_ratio: min_ratio() }
    }
}

impl Variant for ScheduleConfig {
    fn about(&self) -> About {
        About::of(match self {
            Self::Constant { .. } => ("constant", "1", "arXiv:1706.03762 (warm-up)"),
            Self::Cosine { .. } => {
                ("cosine", "min + (1 - min) (1 + cos(pi p)) / 2, p from 0 to 1", "arXiv:1608.03983 eq. 5")
            }
            Self::Linear { .. } => ("linear", "1 - (1 - min) p, p from 0 to 1", "arXiv:1810.04805"),
            Self::WarmupStableDecay { .. } => {
                ("warmup_stable_decay", "1, then linear over the last `decay` steps", "arXiv:2404.06395")
            }
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::Constant { .. } => Ok(()),
            Self::Cosine { min_ratio, .. }
            | Self::Linear { min_ratio, .. }
            | Self::WarmupStableDecay { min_ratio, .. } => within("min_ratio", min_ratio, 0.0, 1.0),
        }
    }

    fn examples() -> Vec<Self> {
        vec![Self::WarmupStableDecay { warmup: 0, decay: 100, min_ratio: min_ratio() }]
    }
}

impl ScheduleConfig {
    /// Steps of warm-up.
    pub fn warmup(self) -> usize {
        match self {
            Self::Constant { warmup }
            | Self::Cosine { warmup, .. }
            | Self::Linear { warmup, .. }
            | Self::WarmupStableDecay { warmup, .. } => warmup,
        }
    }

    /// Steps of decay at the end of the run; 0 for the other schedules.
    pub(crate) fn decay(self) -> usize {
        match self {
            Self::WarmupStableDecay { decay, .. } => decay,
            Self::Constant { .. } | Self::Cosine { .. } | Self::Linear { .. } => 0,
        }
    }

    /// Whether the factor at a step depends on the length of the run.
    pub fn depends_on_length(self) -> bool {
        match self {
            Self::Constant { .. } => false,
            Self::Cosine { .. } | Self::Linear { .. } | Self::WarmupStableDecay { .. } => true,
        }
    }

    /// Checks that warm-up and decay fit into a run of `steps`.
    pub(crate) fn check_length(self, steps: usize) -> Result<(), Fault> {
        let (warmup, decay) = (self.warmup(), self.decay());
        let problem = format!("is longer than the run of train.steps = {steps}; shorten it or train longer");
        require(warmup <= steps, "warmup", warmup, problem)?;
        let problem = format!("and warmup = {warmup} are longer than the run of train.steps = {steps}");
        require(warmup + decay <= steps, "decay", decay, problem)
    }

    /// The factor at step `t` of `steps`, counted from 0.
    ///
    /// Warm-up is `(t + 1) / warmup`; then `p = (t - warmup) / (steps - warmup)` rises from 0 towards 1, which it would
    /// reach one step after the last.
    pub fn factor(self, t: usize, steps: usize) -> f64 {
        let warmup = self.warmup();
        if t < warmup {
            return (t + 1) as f64 / warmup as f64;
        }
        let progress = |start: usize| (t - start) as f64 / (steps - start).max(1) as f64;
        match self {
            Self::Constant { .. } => 1.0,
            Self::Cosine { min_ratio, .. } => {
                min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + (std::f64::consts::PI * progress(warmup)).cos())
            }
            Self::Linear { min_ratio, .. } => 1.0 - (1.0 - min_ratio) * progress(warmup),
            Self::WarmupStableDecay { decay, min_ratio, .. } => {
                let start = steps - decay;
                if t < start { 1.0 } else { 1.0 - (1.0 - min_ratio) * progress(start) }
            }
        }
    }
}
