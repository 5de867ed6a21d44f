use crate::Site;
use crate::constants::nfnet_betas;
use serde::{Deserialize, Serialize};
use unitgain_variant::{About, Fault, Variant, factor, positive_factor};

/// The factor of a branch. It belongs to the branch `f`, so it combines with every placement; a norm after the branch
/// (sandwich) undoes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScaleConfig {
    /// `f(x)`.
    One {},
    /// `f(x) / sqrt(2L)`: the variances of the 2L branches of L blocks add up to the variance of one branch (GPT-2's rule as a multiplier).
    Depth {},
    /// `value f(x)`.
    Constant {
        /// The factor. Required.
        value: f64,
    },
    /// `lambda * f(x)`, lambda learned per channel (arXiv:2103.17239, eq. 4).
    LayerScale {
        /// Initial lambda. Default by depth as in the paper: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 above.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        init: Option<f64>,
    },
    /// `alpha f(x)`, alpha a learned scalar per branch, 0 at init (arXiv:2003.04887, eq. 2).
    ReZero {
        /// Whether both branches of a block share one alpha, as in the authors' code; the paper has one per branch. Default
        /// false.
        #[serde(default)]
        shared: bool,
    },
    /// `alpha f(x)`, alpha a learned scalar per branch (arXiv:2002.10444, section 3).
    SkipInit {
        /// Initial alpha. Default 0.
        #[serde(default)]
        init: f64,
    },
    /// `alpha f(x / beta)`, beta the rms of a stream to which every branch adds variance alpha^2:
    /// `beta_i = sqrt(1 + i alpha^2)` for branch i = 0, 1, .. (arXiv:2102.06171, section 2).
    Nfnet {
        /// The factor alpha. Default 0.2, as in the paper.
        #[serde(default = "default_alpha")]
        alpha: f64,
    },
    /// `s f(x) + b`, s a learned scalar, 1 at init, with scalar biases, 0 at init: b, and one before each linear layer and each
    /// activation of the branch (arXiv:1901.09321, section 3). With `zero_writers` a block starts as the identity, as
    /// published.
    Fixup {},
}

const fn default_alpha() -> f64 {
    0.2
}

impl Variant for ScaleConfig {
    fn about(&self) -> About {
        About::of(match self {
            Self::One {} => ("one", "f(x)", "arXiv:1706.03762"),
            Self::Depth {} => ("depth", "f(x) / sqrt(2L)", "GPT-2's 1/sqrt(2L), as a multiplier"),
            Self::Constant { .. } => ("constant", "value f(x)", "this project"),
            Self::SkipInit { .. } => (
                "skip_init",
                "alpha f(x), alpha a learned scalar, 0 at init unless given",
                "arXiv:2002.10444 section 3",
            ),
            Self::Nfnet { .. } => (
                "nfnet",
                "alpha f(x / beta), beta = sqrt(1 + i alpha^2) the stream's analytic rms before branch i",
                "arXiv:2102.06171 section 2",
            ),
            Self::Fixup {} => (
                "fixup",
                "s f(x) + b, s a learned scalar, 1 at init; scalar biases before each linear layer and activation",
                "arXiv:1901.09321 section 3",
            ),
            Self::LayerScale { .. } => {
                ("layer_scale", "lambda * f(x), lambda learned per channel, small at init", "arXiv:2103.17239 eq. 4")
            }
            Self::ReZero { .. } => {
                ("re_zero", "alpha f(x), alpha a learned scalar, 0 at init", "arXiv:2003.04887 eq. 2")
            }
        })
    }

    fn check(&self) -> Result<(), Fault> {
        match *self {
            Self::LayerScale { init: Some(init) } | Self::SkipInit { init } if init != 0.0 => {
                factor("init", init).map_err(|fault| Fault { problem: format!("{}, or 0", fault.problem), ..fault })
            }
            Self::Constant { value } => factor("value", value),
            Self::Nfnet { alpha } => positive_factor("alpha", alpha),
            Self::LayerScale { .. } | Self::One {} | Self::Depth {} | Self::ReZero { .. } => Ok(()),
            Self::SkipInit { .. } | Self::Fixup {} => Ok(()),
        }
    }

    fn examples() -> Vec<Self> {
        vec![Self::Constant { value: 0.5 }]
    }
}

impl ScaleConfig {
    /// Fills in the defaults that depend on the number of blocks.
    pub fn resolved(self, blocks: usize) -> Self {
        match self {
            Self::LayerScale { init: None } => Self::LayerScale { init: Some(layer_scale_init(blocks)) },
            Self::LayerScale { .. } | Self::One {} | Self::Depth {} | Self::ReZero { .. } => self,
            Self::Constant { .. } | Self::SkipInit { .. } | Self::Nfnet { .. } | Self::Fixup {} => self,
        }
    }

    /// Whether both branches of a block share one learned scalar, which the block holds.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::ReZero { shared: true })
    }

    /// Whether the scaled branch is 0 at init.
    pub fn starts_at_zero(self) -> bool {
        match self {
            Self::ReZero { .. } => true,
            Self::SkipInit { init } | Self::LayerScale { init: Some(init) } => init == 0.0,
            Self::One {} | Self::Depth {} | Self::Constant { .. } | Self::LayerScale { init: None } => false,
            Self::Nfnet { .. } | Self::Fixup {} => false,
        }
    }

    /// Whether the scale depends on the number of blocks.
    pub fn counts_depth(self) -> bool {
        match self {
            Self::Depth {} => true,
            Self::One {} | Self::LayerScale { .. } | Self::ReZero { .. } => false,
            Self::Constant { .. } | Self::SkipInit { .. } | Self::Nfnet { .. } | Self::Fixup {} => false,
        }
    }

    /// Whether the branch has a scalar bias before each linear layer and each activation.
    pub fn has_scalar_biases(self) -> bool {
        matches!(self, Self::Fixup {})
    }

    /// Factor of the learning rate of the learned scale: 1/10 for Fixup's scalars (arXiv:1901.09321, section 4), otherwise 1.
    pub fn lr_factor(self) -> f64 {
        match self {
            Self::Fixup {} => 0.1,
            Self::One {} | Self::Depth {} | Self::Constant { .. } | Self::LayerScale { .. } => 1.0,
            Self::ReZero { .. } | Self::SkipInit { .. } | Self::Nfnet { .. } => 1.0,
        }
    }

    /// The fixed factor of the branch.
    pub(crate) fn multiplier(self, site: Site) -> f64 {
        match self {
            Self::Depth {} => (2.0 * site.blocks as f64).powf(-0.5),
            Self::Constant { value } => value,
            Self::Nfnet { alpha } => alpha,
            Self::One {} | Self::LayerScale { .. } | Self::ReZero { .. } | Self::SkipInit { .. } => 1.0,
            Self::Fixup {} => 1.0,
        }
    }

    /// Divisor of the input of the branch.
    pub(crate) fn divisor(self, site: Site) -> f64 {
        match self {
            Self::Nfnet { alpha } => {
                let branch = 2 * site.block + site.branch as usize;
                nfnet_betas(alpha, &[branch + 1])[branch]
            }
            _ => 1.0,
        }
    }

    /// Initial values of the learned factor, if any.
    pub(crate) fn initial(self, site: Site) -> Option<Vec<f32>> {
        match self {
            Self::LayerScale { init } => {
                let init = init.unwrap_or_else(|| layer_scale_init(site.blocks));
                Some(vec![init as f32; site.width])
            }
            Self::ReZero { shared: false } => Some(vec![0.0]),
            // The block holds it.
            Self::ReZero { shared: true } => None,
            Self::SkipInit { init } => Some(vec![init as f32]),
            Self::Fixup {} => Some(vec![1.0]),
            Self::One {} | Self::Depth {} | Self::Constant { .. } | Self::Nfnet { .. } => None,
        }
    }
}

/// The rule of CaiT (arXiv:2103.17239, section 2.2), which counts blocks as here.
fn layer_scale_init(blocks: usize) -> f64 {
    match blocks {
        0..=18 => 0.1,
        19..=24 => 1e-5,
        25.. => 1e-6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_is_listed_under_its_own_name() {
        unitgain_variant::assert_listed::<ScaleConfig>();
    }

    #[test]
    fn layer_scale_starts_by_depth() {
        for (blocks, init) in [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)] {
            let resolved = ScaleConfig::LayerScale { init: None }.resolved(blocks);
            assert_eq!(resolved, ScaleConfig::LayerScale { init: Some(init) });
        }
        let given = ScaleConfig::LayerScale { init: Some(0.5) };
        assert_eq!(given.resolved(30), given);
    }
}
