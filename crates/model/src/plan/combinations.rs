//! The table of combinations of settings that are refused or warned of.

use super::{BranchPlan, LogitScale, Plan, TokenScale};
use crate::config::{Position, QkNormOver};
use crate::error::ModelError;
use unitgain_init::{Role, Scheme, Spec};
use unitgain_mup::Parametrization;
use unitgain_norms::NormConfig;
use unitgain_norms::weight::WeightNormConfig;
use unitgain_residual::{NormPosition, Placement, ScaleConfig};

/// The consequence of a combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The model is not built.
    Refuse,
    /// The model is built, with a warning.
    Warn,
}

/// A combination of settings that is refused or warned of.
#[derive(Debug)]
pub struct Combination {
    /// The two settings.
    pub pair: &'static str,
    /// Refusal or warning.
    pub severity: Severity,
    /// Reason against the combination.
    pub reason: &'static str,
    /// Settings to use instead.
    pub fix: &'static str,
    applies: fn(&Plan) -> bool,
}

/// Every combination that is refused or warned of.
pub static COMBINATIONS: &[Combination] = &[
    Combination {
        pair: "placement = \"deep_norm\" and an init that counts depth (gpt2, llama_depth, wang, spike_no_more, fixup, t_fixup)",
        severity: Severity::Refuse,
        reason: "DeepNorm's beta is the gain of Xavier-normal weights and already sets the size of a branch by depth; \
                 such an init does so a second time",
        fix: "Leave init out, or set init = \"xavier\"",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {}) && c.init.counts_depth(),
    },
    Combination {
        pair: "placement = \"deep_norm\" and scale = \"depth\"",
        severity: Severity::Refuse,
        reason: "DeepNorm's alpha and beta already set the size of a branch by depth; 1/sqrt(2L) would do so a second time",
        fix: "Set scale = \"one\"",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {} && b.scale.counts_depth()),
    },
    Combination {
        pair: "placement = \"scaled_pre_norm\" or \"sub_norm\" and an init that counts depth, or scale = \"depth\"",
        severity: Severity::Warn,
        reason: "these placements already set the size of a branch by depth; the authors of LayerNorm Scaling say not \
                 to combine it with 1/sqrt(2L), and Sub-LN's gain is that of Xavier weights",
        fix: "Leave init and scale out",
        applies: |c| {
            any(c, |b| {
                matches!(b.placement, Placement::ScaledPreNorm {} | Placement::SubNorm {})
                    && (b.scale.counts_depth() || c.init.counts_depth())
            })
        },
    },
    Combination {
        pair: "scale = \"depth\" and an init that counts depth (gpt2, llama_depth, wang, spike_no_more, fixup, t_fixup)",
        severity: Severity::Refuse,
        reason: "both scale a branch down by the number of blocks, so depth is counted twice",
        fix: "Set init = \"xavier\" or \"lecun\", or scale = \"one\"",
        applies: |c| any(c, |b| b.scale.counts_depth()) && c.init.counts_depth(),
    },
    Combination {
        pair: "placement = \"deep_norm\" and norm = \"none\"",
        severity: Severity::Refuse,
        reason: "without its norm, alpha > 1 multiplies the stream in every branch and it overflows",
        fix: "Set norm = \"layer_norm\", or placement = \"pre_norm\" for a norm-free stream",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {} && b.norm.is_none()),
    },
    Combination {
        pair: "a parallel placement of one branch and another placement of the other",
        severity: Severity::Refuse,
        reason: "parallel branches have one equation for the whole block",
        fix: "Leave mlp_placement out",
        applies: |c| {
            c.blocks
                .iter()
                .map(|block| [block.attention.branch.placement, block.mlp.branch.placement])
                .any(|[a, m]| (a.is_parallel() || m.is_parallel()) && a != m)
        },
    },
    Combination {
        pair: "zero_writers = true, or init = \"fixup\" or \"zero\", and a scale that starts at 0",
        severity: Severity::Refuse,
        reason: "two zero factors in a product never get a gradient, so the branch stays 0",
        fix: "Leave zero_writers out and take another init, or set scale = \"one\"",
        applies: |c| zeroes(c) && any(c, |b| b.scale.starts_at_zero()),
    },
    Combination {
        pair: "init = \"fixup\" or \"zero\" and a norm behind the branch",
        severity: Severity::Refuse,
        reason: "a norm of zeros divides by sqrt(eps), so the first gradient is some hundred times too large",
        fix: "Take another init with zero_writers = true, which starts the gain of that norm at 0",
        applies: |c| c.init.zeroes_writers() && any(c, |b| b.has_norm_at(NormPosition::AfterBranch)),
    },
    Combination {
        pair: "init = \"fixup\" or \"t_fixup\" and a norm",
        severity: Severity::Refuse,
        reason: "both replace norms, and a norm undoes the sizes that they set",
        fix: "Set placement = \"none\", and leave qk_norm, embedding_norm and final_norm out",
        applies: |c| c.init.is_norm_free() && has_any_norm(c),
    },
    Combination {
        pair: "init = \"mimetic\" and parametrization other than \"standard\"",
        severity: Severity::Refuse,
        reason: "mimetic takes the sizes of attention's weights from a singular value decomposition, the parametrization from \
                 the width",
        fix: "Set parametrization = \"standard\"",
        applies: |c| is_mimetic(c) && !matches!(c.parametrization, Parametrization::Standard {}),
    },
    Combination {
        pair: "init = \"mimetic\" and n_kv_heads other than n_heads",
        severity: Severity::Refuse,
        reason: "mimetic draws the product of query and key for each head, which needs as many key heads as query heads",
        fix: "Leave n_kv_heads out",
        applies: |c| is_mimetic(c) && c.blocks[0].attention.kv_heads != c.blocks[0].attention.heads,
    },
    Combination {
        pair: "init = \"mimetic\" and qk_norm or position = \"rope\"",
        severity: Severity::Warn,
        reason: "mimetic makes tokens attend to similar tokens through the product of query and key; a norm changes the \
                 product, and a rotation changes it except at distance 0",
        fix: "Set qk_norm = \"none\" and position = \"learned\"",
        applies: |c| {
            let rotates = c.blocks.iter().any(|block| matches!(block.attention.position, Position::Rope { .. }));
            is_mimetic(c) && (rotates || normalizes_qk(c))
        },
    },
    Combination {
        pair: "zero_writers = true and a norm behind the branch that has no gain",
        severity: Severity::Refuse,
        reason: "the last factor of the branch is the norm, and l2_norm and norms with gain = false have no gain that could \
                 start at 0",
        fix: "Leave zero_writers out, or take a norm with a gain",
        applies: |c| c.zero_writers && any(c, |b| b.has_norm_at(NormPosition::AfterBranch) && !b.norm.has_gain()),
    },
    Combination {
        pair: "zero_writers = true, or init = \"fixup\" or \"zero\", and weight_norm = \"weight_norm\"",
        severity: Severity::Refuse,
        reason: "a weight of length 0 has no direction, so that length and direction never get a gradient",
        fix: "Leave zero_writers out and take another init, or set weight_norm = \"scaled_weight_standardization\", whose \
              gain can start at 0",
        applies: |c| {
            let writes = any(c, |b| !b.has_norm_at(NormPosition::AfterBranch));
            zeroes(c) && writes && matches!(c.weight_norm, WeightNormConfig::WeightNorm { .. })
        },
    },
    Combination {
        pair: "weight_norm and parametrization other than \"standard\"",
        severity: Severity::Refuse,
        reason: "the parametrizations have no rule for a weight that is split into length and direction, or whose size is \
                 divided out",
        fix: "Set weight_norm = \"none\", or parametrization = \"standard\"",
        applies: |c| {
            c.weight_norm != (WeightNormConfig::None {}) && c.parametrization != (Parametrization::Standard {})
        },
    },
    Combination {
        pair: "placement = \"hybrid_norm\" or \"hybrid_norm_star\" and qk_norm",
        severity: Severity::Refuse,
        reason: "HybridNorm already normalizes queries, keys and values, with the norm of the block",
        fix: "Leave qk_norm and qk_norm_over out",
        applies: |c| {
            let is_given = !c.qk_norm.is_none() || c.qk_norm_over == QkNormOver::Width;
            is_given && any(c, BranchPlan::qkv_norm)
        },
    },
    Combination {
        pair: "placement = \"res_dual\" in some branches and another placement in others",
        severity: Severity::Refuse,
        reason: "the second stream is the sum of all branches, and the head reads it",
        fix: "Set res_dual for the whole model",
        applies: |c| any(c, |b| b.placement.is_dual()) && any(c, |b| !b.placement.is_dual()),
    },
    Combination {
        pair: "qk_norm = \"instance_norm\", or \"group_norm\" with over_time",
        severity: Severity::Refuse,
        reason: "a head is normalized token by token",
        fix: "Set qk_norm to a norm of one token",
        applies: |c| c.qk_norm.needs_the_sequence(),
    },
    Combination {
        pair: "placement = \"hybrid_norm\" or \"hybrid_norm_star\" and norm = \"instance_norm\", or \"group_norm\" with over_time",
        severity: Severity::Refuse,
        reason: "HybridNorm normalizes each head of a token with the norm of the block",
        fix: "Set norm to a norm of one token",
        applies: |c| any(c, |b| b.qkv_norm() && b.norm.needs_the_sequence()),
    },
    Combination {
        pair: "weight_norm = \"scaled_weight_standardization\" and a linear layer of a single input",
        severity: Severity::Refuse,
        reason: "a single weight equals its mean, so that subtracting the mean leaves 0",
        fix: "Set a larger d_model, n_heads, head_dim or d_ff",
        applies: |c| {
            let block = &c.blocks[0];
            let widths = [c.shape.width, block.attention.heads * block.attention.head_dim, block.mlp.d_ff];
            c.weight_norm.divides_by_size() && widths.contains(&1)
        },
    },
    Combination {
        pair: "placement = \"hybrid_norm_star\" of blocks without the first",
        severity: Severity::Warn,
        reason: "only the first block of the model differs from hybrid_norm",
        fix: "Set placement = \"hybrid_norm\" there",
        applies: |c| {
            let is_star = |b: &BranchPlan| b.written == Placement::HybridNormStar {};
            any(c, is_star) && !any(c, |b| is_star(b) && b.site.block == 0)
        },
    },
    Combination {
        pair: "scale = \"fixup\" and a norm",
        severity: Severity::Refuse,
        reason: "Fixup (arXiv:1901.09321) replaces norms",
        fix: "Set placement = \"none\", and leave qk_norm, embedding_norm and final_norm out",
        applies: |c| any(c, |b| b.scale.has_scalar_biases()) && has_any_norm(c),
    },
    Combination {
        pair: "scale = \"fixup\" and an init that does not start every branch at 0",
        severity: Severity::Warn,
        reason: "Fixup starts every branch at 0",
        fix: "Set init = \"fixup\", or zero_writers = true",
        applies: |c| !zeroes(c) && any(c, |b| b.scale.has_scalar_biases()),
    },
    Combination {
        pair: "scale = \"nfnet\" and an embedding that is not of size 1",
        severity: Severity::Warn,
        reason: "beta is the rms of a stream that starts at 1; with a much smaller embedding the inputs of the branches are \
                 close to 0",
        fix: "Set embedding_norm, or an embedding_std of 0.7 (token and position add up) with tie_embeddings = false",
        applies: |c| {
            let (width, blocks) = (c.shape.width as f64, c.shape.blocks);
            let spec = Spec { role: Role::Embedding, fan_in: 1.0, fan_out: width, blocks, block: None, width };
            let (TokenScale::Fixed(scale) | TokenScale::Learned(scale)) = c.embedding_scale;
            let is_normalized = c.embedding_norm.divides_by_size();
            let is_near = (0.5..=2.0).contains(&(c.init.std(&spec).unwrap_or(1.0) * scale));
            !is_near && !is_normalized && any(c, |b| matches!(b.scale, ScaleConfig::Nfnet { .. }))
        },
    },
    Combination {
        pair: "qk_norm_over = \"width\" and qk_norm = \"none\"",
        severity: Severity::Refuse,
        reason: "there is no norm to apply over the width",
        fix: "Set qk_norm, or leave qk_norm_over out",
        applies: |c| c.qk_norm_over == QkNormOver::Width && c.qk_norm.is_none() && !any(c, BranchPlan::qkv_norm),
    },
    Combination {
        pair: "a norm over the sequence (instance_norm, group_norm with over_time) and context = 1",
        severity: Severity::Refuse,
        reason: "a channel of one token equals its mean, so that subtracting the mean leaves 0",
        fix: "Set a longer context",
        applies: |c| c.context == 1 && c.norms().any(|norm| norm.needs_the_sequence()),
    },
    Combination {
        pair: "embedding_scale and an embedding_norm that divides by the size of what it reads",
        severity: Severity::Warn,
        reason: "the norm undoes the scale if no position is added to the token embedding (position = \"rope\" or \"none\")",
        fix: "Set embedding_scale = 1, or leave embedding_norm out",
        applies: |c| {
            let adds = matches!(c.position, Position::Learned {} | Position::Sinusoidal {});
            !adds && c.embedding_norm.divides_by_size() && c.embedding_scale != TokenScale::Fixed(1.0)
        },
    },
    Combination {
        pair: "scale = \"fixup\" and weight_norm = \"scaled_weight_standardization\"",
        severity: Severity::Refuse,
        reason: "the weights of a standardized unit sum to 0, so that a scalar bias before it has no effect, as Fixup's init has \
                 none",
        fix: "Set weight_norm = \"none\", or scale = \"nfnet\"",
        applies: |c| {
            let standardized = matches!(c.weight_norm, WeightNormConfig::ScaledWeightStandardization { .. });
            standardized && any(c, |b| b.scale.has_scalar_biases())
        },
    },
    Combination {
        pair: "scale = \"nfnet\" and a norm",
        severity: Severity::Warn,
        reason: "beta is the rms of a stream without norms; dividing a normalized input by it only shrinks the branch with depth",
        fix: "Set placement = \"none\", and weight_norm = \"scaled_weight_standardization\" as in NFNets",
        applies: |c| any(c, |b| matches!(b.scale, ScaleConfig::Nfnet { .. }) && b.has_norms()),
    },
    Combination {
        pair: "a norm over the batch or the sequence (batch_norm, instance_norm, group_norm with over_time)",
        severity: Severity::Warn,
        reason: "its statistics include later tokens, so that the model sees the tokens it has to predict, and its loss is not \
                 that of a causal language model",
        fix: "Take a norm of one token, or read the loss as that of a model that may look ahead",
        applies: |c| c.norms().any(|norm| norm.sees_the_future()),
    },
    Combination {
        pair: "norm = \"dyt\" and an embedding that has no learned scale",
        severity: Severity::Warn,
        reason: "DyT does not divide by the size of its input; its authors' language models scale the embedding by a learned \
                 factor, sqrt(d_model) at init, and others report divergence without it (arXiv:2503.10622)",
        fix: "Leave embedding_scale out",
        applies: |c| {
            let learned = matches!(c.embedding_scale, TokenScale::Learned(_));
            !learned && any(c, |b| b.has_norms() && b.norm.learns_embedding_scale())
        },
    },
    Combination {
        pair: "placement = \"mix_norm\" of blocks none of which is a post_norm block",
        severity: Severity::Warn,
        reason: "fraction of all blocks is rounded down to none, or to blocks before these, and the other blocks are pre_norm",
        fix: "Set placement = { kind = \"mix_norm\", fraction = .. } to at least 1 / n_layers",
        applies: |c| {
            let is_mix = |b: &BranchPlan| matches!(b.written, Placement::MixNorm { .. });
            any(c, is_mix) && !any(c, |b| is_mix(b) && b.placement == Placement::PostNorm {})
        },
    },
    Combination {
        pair: "queries and keys normalized by \"l2_norm\" and attention_scale = \"head_dim\"",
        severity: Severity::Warn,
        reason: "the product of two unit vectors is at most 1, and divided by sqrt(head_dim) attention is uniform",
        fix: "Leave attention_scale out, or set it to a number such as 10",
        applies: |c| {
            c.blocks.iter().map(|block| &block.attention).any(|attention| {
                let is_l2 = matches!(attention.qk_norm, NormConfig::L2Norm { .. });
                is_l2 && matches!(attention.logit_scale, LogitScale::HeadDim(_))
            })
        },
    },
    Combination {
        pair: "placement = \"peri_norm\" and embedding_norm = \"none\"",
        severity: Severity::Refuse,
        reason: "Peri-LN is the sandwich with a norm of the embedding",
        fix: "Leave embedding_norm out, or set placement = \"sandwich\"",
        applies: |c| {
            let asks = any(c, |b| b.placement.embedding_norm() && !b.norm.is_none());
            asks && c.embedding_norm.is_none()
        },
    },
    Combination {
        pair: "final_norm = true and a placement that normalizes the stream",
        severity: Severity::Refuse,
        reason: "the last block already ends in a norm, and a second one right after it normalizes twice",
        fix: "Leave final_norm out",
        applies: |c| {
            let closes = last(c).has_norm_at(NormPosition::OnStream) && !last(c).placement.is_dual();
            c.final_norm && closes
        },
    },
    Combination {
        pair: "final_norm = true and norm = \"none\"",
        severity: Severity::Refuse,
        reason: "the final norm has the kind of norm, which is none",
        fix: "Leave final_norm out, or set norm and give the blocks norm = \"none\"",
        applies: |c| c.final_norm && c.norm.is_none(),
    },
    Combination {
        pair: "final_norm = false and a placement that leaves the stream unnormalized",
        severity: Severity::Warn,
        reason: "the stream's rms grows with depth, and so do the logits",
        fix: "Leave final_norm out",
        applies: |c| {
            let open = !last(c).has_norm_at(NormPosition::OnStream) || last(c).placement.is_dual();
            let asks = c.branches().filter(|b| b.site.block + 1 == c.shape.blocks).any(|b| b.placement.final_norm());
            !c.final_norm && open && asks && !c.norm.is_none()
        },
    },
    Combination {
        pair: "placement = \"deep_norm\" and init other than \"xavier\"",
        severity: Severity::Warn,
        reason: "the paper derives beta as the gain of Xavier-normal weights",
        fix: "Leave init out",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {}) && !matches!(c.init, Scheme::Xavier { .. }),
    },
    Combination {
        pair: "scale = \"re_zero\" and a norm",
        severity: Severity::Warn,
        reason: "ReZero (arXiv:2003.04887) replaces the norms",
        fix: "Set placement = \"none\" for ReZero as published",
        applies: |c| any(c, |b| matches!(b.scale, ScaleConfig::ReZero { .. }) && b.has_norms()),
    },
    Combination {
        pair: "a placement with a norm behind the branch (sandwich, peri_norm, output_norm) and a scale other than \"one\"",
        severity: Severity::Warn,
        reason: "the norm behind the branch divides by the size of the branch and so undoes the scale",
        fix: "Set scale = \"one\"",
        applies: |c| {
            any(c, |b| {
                b.has_norm_at(NormPosition::AfterBranch) && b.norm.divides_by_size() && b.scale != (ScaleConfig::One {})
            })
        },
    },
    Combination {
        pair: "norm = \"none\" and a placement that is not \"none\" or \"pre_norm\"",
        severity: Severity::Warn,
        reason: "without its norms the placement is little more than x + f(x), and its name promises something else",
        fix: "Set placement = \"none\"",
        applies: |c| any(c, |b| b.norm.is_none() && !matches!(b.placement, Placement::PreNorm {} | Placement::None {})),
    },
    Combination {
        pair: "tie_embeddings = true and parametrization = \"spectral\", \"u_mup\", or \"mup\" with form = \"table_3\" or \"table_9\"",
        severity: Severity::Refuse,
        reason: "embedding and head have different inits or learning rates there, so one matrix cannot be both",
        fix: "Set tie_embeddings = false, or parametrization = \"mup\" with form = \"table_8\"",
        applies: |c| c.tie_embeddings && !c.parametrization.ties_embeddings(),
    },
    Combination {
        pair: "parametrization = \"depth_mup\" or \"complete_p\" and a placement, a scale or an init that counts depth",
        severity: Severity::Refuse,
        reason: "the parametrization already sets the size of a branch by depth; deep_norm, scaled_pre_norm, sub_norm, scale = \
                 \"depth\" and gpt2, llama_depth, wang, spike_no_more, fixup and t_fixup would do so a second time",
        fix: "Set placement = \"pre_norm\", scale = \"one\", and leave init out",
        applies: |c| {
            let counted = any(c, |b| b.placement.counts_depth() || b.scale.counts_depth()) || c.init.counts_depth();
            c.parametrization.counts_depth() && counted
        },
    },
    Combination {
        pair: "parametrization = \"u_mup\" and init other than \"normal\" with std = 1",
        severity: Severity::Refuse,
        reason: "u-muP draws every weight from N(0, 1) and scales the operations instead",
        fix: "Leave init out",
        applies: |c| c.parametrization.is_unit_scaled() && c.init != Scheme::Normal { std: 1.0 },
    },
    Combination {
        pair: "parametrization = \"u_mup\" and a placement other than \"pre_norm\" or \"none\", or a scale other than \"one\"",
        severity: Severity::Refuse,
        reason: "u-muP has its own residual connection, (x + tau f(n(x))) / sqrt(1 + tau^2)",
        fix: "Set placement = \"pre_norm\" and scale = \"one\"",
        applies: |c| {
            let fits = |b: &BranchPlan| {
                matches!(b.placement, Placement::PreNorm {} | Placement::None {}) && b.scale == (ScaleConfig::One {})
            };
            c.parametrization.is_unit_scaled() && any(c, |b| !fits(b))
        },
    },
    Combination {
        pair: "zero_query = true and qk_norm or weight_norm",
        severity: Severity::Refuse,
        reason: "both would divide by the size of queries or weights that are 0",
        fix: "Leave zero_query out",
        applies: |c| {
            let normalized = normalizes_qk(c) || c.weight_norm != (WeightNormConfig::None {});
            c.zero_query && normalized
        },
    },
    Combination {
        pair: "zero_readout = true and tie_embeddings = true",
        severity: Severity::Refuse,
        reason: "the head is the embedding, which cannot start at 0",
        fix: "Set tie_embeddings = false",
        applies: |c| c.zero_readout && c.tie_embeddings,
    },
];

impl Plan {
    /// Fails with the first combination that is refused.
    pub(super) fn refuse(&self) -> Result<(), ModelError> {
        match self.found(Severity::Refuse).next() {
            Some(Combination { pair, reason, fix, .. }) => Err(ModelError::Combination { pair, reason, fix }),
            None => Ok(()),
        }
    }

    /// The combinations of this model that are allowed but rarely intended.
    pub fn warnings(&self) -> Vec<&'static Combination> {
        self.found(Severity::Warn).collect()
    }

    fn found(&self, severity: Severity) -> impl Iterator<Item = &'static Combination> {
        COMBINATIONS.iter().filter(move |combination| combination.severity == severity && (combination.applies)(self))
    }
}

fn any(c: &Plan, test: impl Fn(&BranchPlan) -> bool) -> bool {
    c.branches().any(test)
}

/// The last branch of the model.
fn last(c: &Plan) -> &BranchPlan {
    &c.blocks[c.blocks.len() - 1].mlp.branch
}

/// Whether the weights that write the stream start at 0.
fn zeroes(c: &Plan) -> bool {
    c.zero_writers || c.init.zeroes_writers()
}

fn is_mimetic(c: &Plan) -> bool {
    matches!(c.init, Scheme::Mimetic { .. })
}

/// Whether queries and keys of any block are normalized.
fn normalizes_qk(c: &Plan) -> bool {
    c.blocks.iter().any(|block| !block.attention.qk_norm.is_none())
}

/// Whether anything at all is normalized.
fn has_any_norm(c: &Plan) -> bool {
    !c.qk_norm.is_none() || !c.embedding_norm.is_none() || c.final_norm || any(c, BranchPlan::has_norms)
}
