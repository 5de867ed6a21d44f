//! Parametrizations: one table from the role of a weight to the factors of its init, forward pass, learning rate, weight decay
//! and Adam eps.
//!
//! All but u-muP are relative to a base model: at its width and depth they equal the standard parametrization bit for bit
//! (except the default init of depth-muP and CompleteP, which must not depend on depth).

mod operations;
mod table;
mod unit;

use serde::{Deserialize, Serialize};
use unitgain_init::Spec;
use unitgain_variant::{About, Fault, Variant, from_one, within};

pub use operations::{BranchFactors, Positions};
pub use table::Factors;
pub use unit::{UnitScaling, u_mup_tau};

/// The dependence of init, multipliers and learning rates on width and depth.
///
/// ```toml
/// parametrization = { kind = "mup", base_width = 64 }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Parametrization {
    /// Every factor is 1; attention logits are `q.k / sqrt(head_dim)`.
    Standard {},
    /// muP (arXiv:2203.03466): with m = width / base_width, hidden matrices have init std x 1/sqrt(m) and Adam learning
    /// rate x 1/m, logits are multiplied by 1/m, and attention logits are `q.k sqrt(base_head_dim) / head_dim`.
    Mup {
        /// Width at which this equals the standard parametrization. Required.
        base_width: usize,
        /// Head size of the base model, for the scale of attention. Default: `head_dim` if the model sets it, so that the
        /// head size is constant over widths; else `head_dim * base_width / width`, so that the number of heads is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_head_dim: Option<f64>,
        /// alpha_output: factor of the logits at every width, before the bias of the head and beside the factor of the table.
        /// It is tuned on the base model, as the learning rate is (arXiv:2203.03466, table 2; `output_mult` of microsoft/mup).
        /// Default 1.
        #[serde(default = "one")]
        output_multiplier: f64,
        /// One of the three equivalent tables of the paper. Default `table_8`, which supports tied embeddings.
        #[serde(default)]
        form: Form,
    },
    /// The spectral condition (arXiv:2310.17813, eq. 6 and 7): the spectral norm of each matrix and of each of its updates is
    /// proportional to sqrt(fan_out / fan_in). Relative to the base model, init std ~ `sqrt(1/fan_in) min(1,
    /// sqrt(fan_out/fan_in))` and learning rate ~ `1/fan_in` (Adam) or `fan_out/fan_in` (SGD); no multipliers. An embedding has
    /// fan_in 1. Wide models approach table 3 of muP; a head whose vocabulary exceeds the width is drawn larger than there.
    Spectral {
        /// Width at which this equals the standard parametrization. Required.
        base_width: usize,
        /// Head size of the base model, as for muP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_head_dim: Option<f64>,
        /// Factor of the logits, as for muP. Default 1.
        #[serde(default = "one")]
        output_multiplier: f64,
    },
    /// depth-muP (arXiv:2310.02244): muP, and with r = blocks / base_depth, branches x 1/sqrt(r) and the Adam learning rate of
    /// their weights x 1/sqrt(r), that of SGD unchanged. The paper derives it for branches of one layer, and recommends to
    /// subtract the mean of the branch output, which is not done here.
    DepthMup {
        /// Width of the base model, as for muP. Required.
        base_width: usize,
        /// Number of blocks of the base model. Required.
        base_depth: usize,
        /// Head size of the base model, as for muP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_head_dim: Option<f64>,
        /// Factor of the logits, as for muP. Default 1.
        #[serde(default = "one")]
        output_multiplier: f64,
    },
    /// CompleteP (arXiv:2505.01618, table 1): muP, and with r = blocks / base_depth, branches x `r^-alpha`, the Adam learning
    /// rate of their weights x `r^(alpha-1)` and their Adam eps x `r^-alpha / m`. The learning rate of SGD, which the paper
    /// lacks, is x `r^(2 alpha - 1)`: the same step for gradients x `r^-alpha`.
    CompleteP {
        /// Width of the base model, as for muP. Required.
        base_width: usize,
        /// Number of blocks of the base model. Required.
        base_depth: usize,
        /// Head size of the base model, as for muP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_head_dim: Option<f64>,
        /// Factor of the logits, as for muP. Default 1.
        #[serde(default = "one")]
        output_multiplier: f64,
        /// The exponent alpha, from 0.5 to 1. Default 1, at which learning rates do not depend on depth.
        #[serde(default = "one")]
        alpha: f64,
    },
    /// u-muP (arXiv:2407.17465): every weight is drawn from N(0, 1), and every operation is scaled so that activations and
    /// their gradients have size 1 at init. Learning rates are of order 1.
    UMup(UnitScaling),
}

const fn one() -> f64 {
    1.0
}

/// The equivalent tables of muP (arXiv:2203.03466, tables 8, 3 and 9; lemma J.1): a weight can be theta times larger, with
/// steps theta times larger, if its output is divided by theta. Norm gains, biases and scalars are always as in table 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// Logits x 1/m, output weights as in the base model: the table of microsoft/mup.
    #[default]
    #[serde(rename = "table_8")]
    Table8,
    /// No multiplier; output weights x 1/m.
    #[serde(rename = "table_3")]
    Table3,
    /// Embeddings x sqrt(m), logits x 1/sqrt(m), all weights x 1/sqrt(m): SGD has one learning rate for all matrices.
    #[serde(rename = "table_9")]
    Table9,
}

/// The sizes of a model on which a parametrization depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of the stream.
    pub width: usize,
    /// Size of one attention head.
    pub head_dim: usize,
    /// Number of blocks.
    pub blocks: usize,
}

/// The dependence of an optimizer step on the size of the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The step is proportional to the gradient (SGD).
    Proportional,
    /// The step does not depend on the size of the gradient (Adam, AdamW, Lion).
    Normalized,
}

impl Variant for Parametrization {
    fn about(&self) -> About {
        About::of(match self {
            Self::Standard {} => ("standard", "all factors 1; attention q.k / sqrt(head_dim)", "common practice"),
            Self::Mup { .. } => (
                "mup",
                "m = width / base_width: hidden std / sqrt(m), hidden Adam lr / m, logits / m, attention ~ 1 / head_dim",
                "arXiv:2203.03466 table 8",
            ),
            Self::Spectral { .. } => (
                "spectral",
                "std ~ sqrt(1/fan_in) min(1, sqrt(fan_out/fan_in)), Adam lr ~ 1/fan_in, SGD lr ~ fan_out/fan_in",
                "arXiv:2310.17813 eq. 6, 7",
            ),
            Self::DepthMup { .. } => (
                "depth_mup",
                "mup, r = blocks / base_depth: branches / sqrt(r), Adam lr of their weights / sqrt(r)",
                "arXiv:2310.02244",
            ),
            Self::CompleteP { .. } => (
                "complete_p",
                "mup, r = blocks / base_depth: branches r^-alpha, Adam lr of their weights r^(alpha-1), eps r^-alpha / m",
                "arXiv:2505.01618 table 1",
            ),
            Self::UMup(_) => (
                "u_mup",
                "weights N(0, 1), hidden / sqrt(fan_in), logits / fan_in, x <- (x + tau f) / sqrt(1 + tau^2)",
                "arXiv:2407.17465 table 2, appendix F",
            ),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        let size = |key: &str, n: usize| from_one(key, n, 1 << 20);
        let factor = |key: &str, x: f64| within(key, x, 1e-9, 1e9);
        if let Some(base) = self.base() {
            size("base_width", base.width)?;
            base.depth.map_or(Ok(()), |depth| size("base_depth", depth))?;
            base.head_dim.map_or(Ok(()), |head_dim| factor("base_head_dim", head_dim))?;
        }
        factor("output_multiplier", self.output_multiplier())?;
        match self {
            Self::CompleteP { alpha, .. } => within("alpha", *alpha, 0.5, 1.0),
            Self::UMup(unit) => unit.each().into_iter().try_for_each(|(key, x)| factor(key, x)),
            Self::Standard {} | Self::Mup { .. } | Self::Spectral { .. } | Self::DepthMup { .. } => Ok(()),
        }
    }

    fn examples() -> Vec<Self> {
        let (base_width, base_depth, base_head_dim, output_multiplier) = (64, 2, None, 1.0);
        vec![
            Self::mup(base_width),
            Self::Spectral { base_width, base_head_dim, output_multiplier },
            Self::DepthMup { base_width, base_depth, base_head_dim, output_multiplier },
            Self::CompleteP { base_width, base_depth, base_head_dim, output_multiplier, alpha: 1.0 },
        ]
    }
}

impl Parametrization {
    /// muP by table 8, with the same number of heads at every width.
    pub const fn mup(base_width: usize) -> Self {
        Self::Mup { base_width, base_head_dim: None, output_multiplier: 1.0, form: Form::Table8 }
    }

    /// u-muP with every multiplier 1.
    pub const fn u_mup() -> Self {
        Self::UMup(UnitScaling::ONE)
    }

    /// Default standard deviation of the weights: 1 for u-muP, 0.02 where GPT-2's 1/sqrt(2L) would count depth a second time;
    /// None if the parametrization does not constrain the default.
    pub fn default_std(self) -> Option<f64> {
        match self {
            Self::UMup(_) => Some(1.0),
            Self::DepthMup { .. } | Self::CompleteP { .. } => Some(0.02),
            Self::Standard {} | Self::Mup { .. } | Self::Spectral { .. } => None,
        }
    }

    /// Whether embedding and head can share one matrix, because both have the same init and learning rate.
    pub fn ties_embeddings(self) -> bool {
        match self {
            Self::Mup { form, .. } => form == Form::Table8,
            Self::Standard {} | Self::DepthMup { .. } | Self::CompleteP { .. } => true,
            Self::Spectral { .. } | Self::UMup(_) => false,
        }
    }

    /// This parametrization with a head size that is constant over widths, unless `base_head_dim` is given.
    #[must_use]
    pub fn with_constant_head_dim(mut self, head_dim: usize) -> Self {
        if let Some(base) = self.base_head_dim_mut() {
            base.get_or_insert(head_dim as f64);
        }
        self
    }

    /// Width of the base model; `width`, the width of the model, if there is none.
    pub fn base_width(self, width: usize) -> usize {
        self.base().map_or(width, |base| base.width)
    }

    /// Number of blocks of the base model; `blocks`, those of the model, if depth has no effect.
    pub fn base_depth(self, blocks: usize) -> usize {
        self.base().and_then(|base| base.depth).unwrap_or(blocks)
    }

    /// Whether the size of a branch depends on the number of blocks relative to the base model.
    pub fn counts_depth(self) -> bool {
        self.depth(1).is_some()
    }

    /// Whether a model of `shape` is the base model.
    pub fn is_base(self, shape: Shape) -> bool {
        self.base().is_some_and(|base| {
            let same_heads = base.head_dim.is_none_or(|head_dim| head_dim == shape.head_dim as f64);
            base.width == shape.width && same_heads && base.depth.is_none_or(|depth| depth == shape.blocks)
        })
    }

    /// Fills in the defaults that depend on the shape of the model.
    pub fn resolved(mut self, shape: Shape) -> Self {
        let base_width = self.base_width(shape.width);
        if let Some(head_dim) = self.base_head_dim_mut() {
            head_dim.get_or_insert(shape.head_dim as f64 * base_width as f64 / shape.width as f64);
        }
        self
    }

    /// The same weight in the base model, with the dimensions that grow with the width scaled down.
    pub fn base_spec(self, spec: &Spec, width: usize) -> Spec {
        table::base_spec(self.base_width(width), spec, width)
    }

    /// The factors of a weight in a model of `shape`. Only `lr` and `decay` depend on `update`.
    pub fn factors(self, spec: &Spec, shape: Shape, update: Update) -> Factors {
        table::factors(self, spec, shape, update)
    }

    /// Factor of the logits at every width, beside the factor of the head; 1 if the parametrization has no such setting (u-muP
    /// has [`UnitScaling::loss`] instead).
    pub fn output_multiplier(self) -> f64 {
        match self {
            Self::Standard {} | Self::UMup(_) => 1.0,
            Self::Mup { output_multiplier, .. } | Self::Spectral { output_multiplier, .. } => output_multiplier,
            Self::DepthMup { output_multiplier, .. } | Self::CompleteP { output_multiplier, .. } => output_multiplier,
        }
    }

    /// Multiplier of a residual branch in a model of `blocks` blocks; u-muP has [`UnitScaling::tau`] instead.
    pub(crate) fn branch_multiplier(self, blocks: usize) -> f64 {
        self.depth(blocks).map_or(1.0, |(r, alpha)| r.powf(-alpha))
    }

    /// The multipliers of u-muP, if the parametrization is u-muP.
    pub(crate) fn unit_scaling(self) -> Option<UnitScaling> {
        match self {
            Self::UMup(unit) => Some(unit),
            Self::Standard {} | Self::Mup { .. } | Self::Spectral { .. } => None,
            Self::DepthMup { .. } | Self::CompleteP { .. } => None,
        }
    }

    /// Number of blocks relative to the base model, and alpha.
    fn depth(self, blocks: usize) -> Option<(f64, f64)> {
        let r = |base_depth: usize| blocks as f64 / base_depth as f64;
        match self {
            Self::DepthMup { base_depth, .. } => Some((r(base_depth), 0.5)),
            Self::CompleteP { base_depth, alpha, .. } => Some((r(base_depth), alpha)),
            Self::Standard {} | Self::Mup { .. } | Self::Spectral { .. } | Self::UMup(_) => None,
        }
    }

    fn base(self) -> Option<Base> {
        match self {
            Self::Standard {} | Self::UMup(_) => None,
            Self::Mup { base_width, base_head_dim, .. } | Self::Spectral { base_width, base_head_dim, .. } => {
                Some(Base { width: base_width, head_dim: base_head_dim, depth: None })
            }
            Self::DepthMup { base_width, base_depth, base_head_dim, .. }
            | Self::CompleteP { base_width, base_depth, base_head_dim, .. } => {
                Some(Base { width: base_width, head_dim: base_head_dim, depth: Some(base_depth) })
            }
        }
    }

    fn base_head_dim_mut(&mut self) -> Option<&mut Option<f64>> {
        match self {
            Self::Standard {} | Self::UMup(_) => None,
            Self::Mup { base_head_dim, .. } | Self::Spectral { base_head_dim, .. } => Some(base_head_dim),
            Self::DepthMup { base_head_dim, .. } | Self::CompleteP { base_head_dim, .. } => Some(base_head_dim),
        }
    }
}

/// Sizes of the base model.
#[derive(Clone, Copy)]
struct Base {
    width: usize,
    head_dim: Option<f64>,
    depth: Option<usize>,
}
