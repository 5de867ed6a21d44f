//! Settings that exclude each other, in one table.

use crate::config::{BranchAxes, ModelConfig, ModelError};
use unitgain_init::Scheme;
use unitgain_mup::Parametrization;
use unitgain_residual::{Branch, Placement, Position, ScaleConfig};

/// What happens to a model that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not built.
    Refuse,
    /// It is built, with a warning.
    Warn,
}

/// One combination, the reason against it and what to do instead.
#[derive(Debug)]
pub struct Rule {
    /// The settings.
    pub pair: &'static str,
    /// What happens.
    pub verdict: Verdict,
    /// Why.
    pub reason: &'static str,
    /// What to do instead.
    pub fix: &'static str,
    applies: fn(&ModelConfig) -> bool,
}

/// Every combination that is refused or warned of.
pub static RULES: &[Rule] = &[
    Rule {
        pair: "placement = \"deep_norm\" and init = \"gpt2\"",
        verdict: Verdict::Refuse,
        reason: "DeepNorm's beta is the gain of Xavier-normal weights and already sets the size of a branch by depth; \
                 gpt2's 1/sqrt(2L) would do so a second time",
        fix: "Leave init out, or set init = \"xavier\"",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm) && scheme(c).counts_depth(),
    },
    Rule {
        pair: "placement = \"deep_norm\" and scale = \"depth\"",
        verdict: Verdict::Refuse,
        reason: "DeepNorm's alpha and beta already set the size of a branch by depth; 1/sqrt(2L) would do so a second time",
        fix: "Set scale = \"one\"",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm && b.scale.counts_depth()),
    },
    Rule {
        pair: "placement = \"scaled_pre_norm\" or \"sub_norm\" and init = \"gpt2\" or scale = \"depth\"",
        verdict: Verdict::Warn,
        reason: "these placements already set the size of a branch by depth; the authors of LayerNorm Scaling say not \
                 to combine it with 1/sqrt(2L), and Sub-LN's gain is that of Xavier weights",
        fix: "Leave init and scale out",
        applies: |c| {
            any(c, |b| {
                matches!(b.placement, Placement::ScaledPreNorm | Placement::SubNorm)
                    && (b.scale.counts_depth() || scheme(c).counts_depth())
            })
        },
    },
    Rule {
        pair: "scale = \"depth\" and init = \"gpt2\"",
        verdict: Verdict::Refuse,
        reason: "both divide what a branch writes by sqrt(2L), so depth is counted twice",
        fix: "Set init = \"xavier\" or \"lecun\", or scale = \"one\"",
        applies: |c| any(c, |b| b.scale.counts_depth()) && scheme(c).counts_depth(),
    },
    Rule {
        pair: "placement = \"deep_norm\" and norm = \"none\"",
        verdict: Verdict::Refuse,
        reason: "without its norm, alpha > 1 multiplies the stream in every branch and it overflows",
        fix: "Set norm = \"layer_norm\", or placement = \"pre_norm\" for a norm-free stream",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm && b.norm.is_none()),
    },
    Rule {
        pair: "a parallel placement of one branch and another placement of the other",
        verdict: Verdict::Refuse,
        reason: "side by side is an arrangement of both branches of a block",
        fix: "Leave mlp_placement out",
        applies: |c| {
            (0..c.n_layers)
                .map(|l| [Branch::Attention, Branch::Mlp].map(|b| c.axes(l, b).placement))
                .any(|[a, m]| (a.is_parallel() || m.is_parallel()) && a != m)
        },
    },
    Rule {
        pair: "zero_writers = true and a scale that starts at 0",
        verdict: Verdict::Refuse,
        reason: "of two zero factors in a product neither ever gets a gradient, so the branch never writes",
        fix: "Leave zero_writers out, or set scale = \"one\"",
        applies: |c| c.zero_writers && any(c, |b| b.scale.starts_at_zero()),
    },
    Rule {
        pair: "placement = \"peri_norm\" and embedding_norm = \"none\"",
        verdict: Verdict::Refuse,
        reason: "Peri-LN is the sandwich with a norm of the embedding",
        fix: "Leave embedding_norm out, or set placement = \"sandwich\"",
        applies: |c| {
            let asks = any(c, |b| b.placement.embedding_norm() && !b.norm.is_none());
            asks && c.embedding_norm.is_none_or(|norm| norm.is_none())
        },
    },
    Rule {
        pair: "final_norm = true and a placement that normalizes the stream",
        verdict: Verdict::Refuse,
        reason: "the last block already ends in a norm, and a second one right after it normalizes twice",
        fix: "Leave final_norm out",
        applies: |c| c.final_norm == Some(true) && last(c).has_norm_at(Position::OnStream),
    },
    Rule {
        pair: "final_norm = true and norm = \"none\"",
        verdict: Verdict::Refuse,
        reason: "the final norm is of the kind norm, which is none",
        fix: "Leave final_norm out, or set norm and give the blocks norm = \"none\"",
        applies: |c| c.final_norm == Some(true) && c.norm.is_none(),
    },
    Rule {
        pair: "final_norm = false and a placement that leaves the stream unnormalized",
        verdict: Verdict::Warn,
        reason: "the stream's rms grows with depth, and so do the logits",
        fix: "Leave final_norm out",
        applies: |c| c.final_norm == Some(false) && last(c).placement.final_norm() && !c.norm.is_none(),
    },
    Rule {
        pair: "placement = \"deep_norm\" and init other than \"xavier\"",
        verdict: Verdict::Warn,
        reason: "the paper derives beta as the gain of Xavier-normal weights",
        fix: "Leave init out",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm) && !matches!(scheme(c), Scheme::Xavier { .. }),
    },
    Rule {
        pair: "scale = \"re_zero\" and a norm",
        verdict: Verdict::Warn,
        reason: "ReZero (arXiv:2003.04887) replaces the norms",
        fix: "Set placement = \"none\" for ReZero as published",
        applies: |c| any(c, |b| matches!(b.scale, ScaleConfig::ReZero { .. }) && b.has_norms()),
    },
    Rule {
        pair: "a placement with a norm behind the branch (sandwich, peri_norm, output_norm) and a scale other than \"one\"",
        verdict: Verdict::Warn,
        reason: "the norm behind the branch divides by the branch's size and so undoes its scale",
        fix: "Set scale = \"one\"",
        applies: |c| {
            any(c, |b| {
                b.has_norm_at(Position::AfterBranch) && b.norm.divides_by_size() && b.scale != (ScaleConfig::One {})
            })
        },
    },
    Rule {
        pair: "norm = \"none\" and a placement that is not \"none\" or \"pre_norm\"",
        verdict: Verdict::Warn,
        reason: "without its norms the placement is little more than x + f(x), and its name promises something else",
        fix: "Set placement = \"none\"",
        applies: |c| any(c, |b| b.norm.is_none() && !matches!(b.placement, Placement::PreNorm | Placement::None)),
    },
    Rule {
        pair: "parametrization = \"mup\" and base_width = d_model",
        verdict: Verdict::Warn,
        reason: "at the base width muP is the standard parametrization",
        fix: "Set base_width to the width that was tuned",
        applies: |c| matches!(c.parametrization, Parametrization::Mup { base_width, .. } if base_width == c.d_model),
    },
];

/// The first rule that refuses a resolved model.
pub(crate) fn refused(config: &ModelConfig) -> Result<(), ModelError> {
    match RULES.iter().find(|rule| rule.verdict == Verdict::Refuse && (rule.applies)(config)) {
        Some(rule) => Err(ModelError::Combination { pair: rule.pair, reason: rule.reason, fix: rule.fix }),
        None => Ok(()),
    }
}

/// The rules that warn of a resolved model.
pub(crate) fn warned(config: &ModelConfig) -> Vec<&'static Rule> {
    RULES.iter().filter(|rule| rule.verdict == Verdict::Warn && (rule.applies)(config)).collect()
}

fn any(c: &ModelConfig, test: impl Fn(BranchAxes) -> bool) -> bool {
    c.branches().any(test)
}

/// The branch whose output the final norm reads.
fn last(c: &ModelConfig) -> BranchAxes {
    c.axes(c.n_layers - 1, Branch::Mlp)
}

/// The scheme of a resolved model.
fn scheme(c: &ModelConfig) -> Scheme {
    c.init.unwrap_or_else(Scheme::gpt2)
}
