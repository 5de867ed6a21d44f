//! Settings that exclude each other, in one table.

use crate::axes::BranchAxes;
use crate::config::{ModelConfig, ModelError};
use crate::embedding::EmbeddingScale;
use crate::position;
use crate::qk_norm::{AttentionScale, QkNormOver};
use unitgain_init::{Role, Scheme, Spec};
use unitgain_mup::Parametrization;
use unitgain_norms::NormConfig;
use unitgain_norms::weight::WeightNormConfig;
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
        pair: "placement = \"deep_norm\" and an init that counts depth (gpt2, llama_depth, wang, spike_no_more, fixup, t_fixup)",
        verdict: Verdict::Refuse,
        reason: "DeepNorm's beta is the gain of Xavier-normal weights and already sets the size of a branch by depth; \
                 such an init does so a second time",
        fix: "Leave init out, or set init = \"xavier\"",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {}) && scheme(c).counts_depth(),
    },
    Rule {
        pair: "placement = \"deep_norm\" and scale = \"depth\"",
        verdict: Verdict::Refuse,
        reason: "DeepNorm's alpha and beta already set the size of a branch by depth; 1/sqrt(2L) would do so a second time",
        fix: "Set scale = \"one\"",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {} && b.scale.counts_depth()),
    },
    Rule {
        pair: "placement = \"scaled_pre_norm\" or \"sub_norm\" and an init that counts depth, or scale = \"depth\"",
        verdict: Verdict::Warn,
        reason: "these placements already set the size of a branch by depth; the authors of LayerNorm Scaling say not \
                 to combine it with 1/sqrt(2L), and Sub-LN's gain is that of Xavier weights",
        fix: "Leave init and scale out",
        applies: |c| {
            any(c, |b| {
                matches!(b.placement, Placement::ScaledPreNorm {} | Placement::SubNorm {})
                    && (b.scale.counts_depth() || scheme(c).counts_depth())
            })
        },
    },
    Rule {
        pair: "scale = \"depth\" and an init that counts depth (gpt2, llama_depth, wang, spike_no_more, fixup, t_fixup)",
        verdict: Verdict::Refuse,
        reason: "both make what a branch writes smaller by the number of blocks, so depth is counted twice",
        fix: "Set init = \"xavier\" or \"lecun\", or scale = \"one\"",
        applies: |c| any(c, |b| b.scale.counts_depth()) && scheme(c).counts_depth(),
    },
    Rule {
        pair: "placement = \"deep_norm\" and norm = \"none\"",
        verdict: Verdict::Refuse,
        reason: "without its norm, alpha > 1 multiplies the stream in every branch and it overflows",
        fix: "Set norm = \"layer_norm\", or placement = \"pre_norm\" for a norm-free stream",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {} && b.norm.is_none()),
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
        pair: "zero_writers = true, or init = \"fixup\" or \"zero\", and a scale that starts at 0",
        verdict: Verdict::Refuse,
        reason: "of two zero factors in a product neither ever gets a gradient, so the branch never writes",
        fix: "Leave zero_writers out and take another init, or set scale = \"one\"",
        applies: |c| zeroes(c) && any(c, |b| b.scale.starts_at_zero()),
    },
    Rule {
        pair: "init = \"fixup\" or \"zero\" and a norm behind the branch",
        verdict: Verdict::Refuse,
        reason: "a norm of nothing but zeros divides by sqrt(eps): the first gradient is some hundred times too large",
        fix: "Take another init with zero_writers = true, which starts the gain of that norm at 0",
        applies: |c| scheme(c).zeroes_writers() && any(c, |b| b.has_norm_at(Position::AfterBranch)),
    },
    Rule {
        pair: "init = \"fixup\" or \"t_fixup\" and a norm",
        verdict: Verdict::Refuse,
        reason: "both are ways to train without norms, and a norm undoes the sizes that they set",
        fix: "Set placement = \"none\", and leave qk_norm, embedding_norm and final_norm out",
        applies: |c| scheme(c).is_norm_free() && has_any_norm(c),
    },
    Rule {
        pair: "init = \"mimetic\" and parametrization other than \"standard\"",
        verdict: Verdict::Refuse,
        reason: "the sizes of attention's weights follow from a singular value decomposition, and muP's from the width",
        fix: "Set parametrization = \"standard\"",
        applies: |c| is_mimetic(c) && !matches!(c.parametrization, Parametrization::Standard {}),
    },
    Rule {
        pair: "init = \"mimetic\" and n_kv_heads other than n_heads",
        verdict: Verdict::Refuse,
        reason: "it draws the product of the query and the key of each head, and the value and output of all",
        fix: "Leave n_kv_heads out",
        applies: |c| is_mimetic(c) && c.n_kv_heads.is_some_and(|n| n != c.n_heads),
    },
    Rule {
        pair: "init = \"mimetic\" and qk_norm or position = \"rope\"",
        verdict: Verdict::Warn,
        reason: "it makes a token attend to what is like it, by the product of query and key; a norm between changes the \
                 product, and a rotation all of it but at distance 0",
        fix: "Set qk_norm = \"none\" and position = \"learned\"",
        applies: |c| {
            let turns = matches!(c.position, position::Position::Rope { .. });
            is_mimetic(c) && (turns || !c.effective_qk_norm().is_none())
        },
    },
    Rule {
        pair: "zero_writers = true and a norm behind the branch that has no gain",
        verdict: Verdict::Refuse,
        reason: "there the last factor of the branch is the norm, and l2_norm and norms with gain = false have nothing \
                 that could start at 0",
        fix: "Leave zero_writers out, or take a norm with a gain",
        applies: |c| c.zero_writers && any(c, |b| b.has_norm_at(Position::AfterBranch) && !b.norm.has_gain()),
    },
    Rule {
        pair: "zero_writers = true, or init = \"fixup\" or \"zero\", and weight_norm = \"weight_norm\"",
        verdict: Verdict::Refuse,
        reason: "a weight of length 0 has no direction, so that neither of them ever gets a gradient",
        fix: "Leave zero_writers out and take another init, or set weight_norm = \"scaled_weight_standardization\", whose \
              gain can start at 0",
        applies: |c| {
            let writes = any(c, |b| !b.has_norm_at(Position::AfterBranch));
            zeroes(c) && writes && matches!(c.weight_norm, WeightNormConfig::WeightNorm { .. })
        },
    },
    Rule {
        pair: "weight_norm and parametrization other than \"standard\"",
        verdict: Verdict::Refuse,
        reason: "muP's table scales the init and the learning rate of a weight, and says nothing of one that is split \
                 into a length and a direction or whose size is divided out",
        fix: "Set weight_norm = \"none\", or parametrization = \"standard\"",
        applies: |c| {
            c.weight_norm != (WeightNormConfig::None {}) && c.parametrization != (Parametrization::Standard {})
        },
    },
    Rule {
        pair: "placement = \"hybrid_norm\" or \"hybrid_norm_star\" and qk_norm",
        verdict: Verdict::Refuse,
        reason: "HybridNorm already normalizes queries, keys and values, with the norm of the block",
        fix: "Leave qk_norm and qk_norm_over out",
        applies: |c| {
            let is_given = !c.qk_norm.is_none() || c.qk_norm_over == QkNormOver::Width;
            is_given && any(c, BranchAxes::qkv_norm)
        },
    },
    Rule {
        pair: "placement = \"res_dual\" in some branches and another placement in others",
        verdict: Verdict::Refuse,
        reason: "the second stream is the sum of all branches, and the head reads it",
        fix: "Set res_dual for the whole model",
        applies: |c| any(c, |b| b.placement.is_dual()) && any(c, |b| !b.placement.is_dual()),
    },
    Rule {
        pair: "qk_norm = \"instance_norm\", or \"group_norm\" with over_time",
        verdict: Verdict::Refuse,
        reason: "a head is normalized token by token",
        fix: "Set qk_norm to a norm of one token",
        applies: |c| c.qk_norm.needs_the_sequence(),
    },
    Rule {
        pair: "placement = \"hybrid_norm\" or \"hybrid_norm_star\" and norm = \"instance_norm\", or \"group_norm\" with over_time",
        verdict: Verdict::Refuse,
        reason: "HybridNorm normalizes each head of a token with the norm of the block",
        fix: "Set norm to a norm of one token",
        applies: |c| any(c, |b| b.qkv_norm() && b.norm.needs_the_sequence()),
    },
    Rule {
        pair: "weight_norm = \"scaled_weight_standardization\" and a linear layer of a single input",
        verdict: Verdict::Refuse,
        reason: "a single weight is its own mean, so that nothing is left of it",
        fix: "Set a larger d_model, n_heads, head_dim or d_ff",
        applies: |c| {
            let widths = [c.d_model, c.n_heads * c.shape().head_dim, c.d_ff.unwrap_or(c.d_model)];
            c.weight_norm.divides_by_size() && widths.contains(&1)
        },
    },
    Rule {
        pair: "placement = \"hybrid_norm_star\" of blocks without the first",
        verdict: Verdict::Warn,
        reason: "only the first block of the model differs from hybrid_norm",
        fix: "Set placement = \"hybrid_norm\" there",
        applies: |c| c.placements().any(|(p, layers)| p == (Placement::HybridNormStar {}) && layers.start > 0),
    },
    Rule {
        pair: "scale = \"fixup\" and a norm",
        verdict: Verdict::Refuse,
        reason: "Fixup (arXiv:1901.09321) is a way to train without norms",
        fix: "Set placement = \"none\", and leave qk_norm, embedding_norm and final_norm out",
        applies: |c| any(c, |b| b.scale.has_scalar_biases()) && has_any_norm(c),
    },
    Rule {
        pair: "scale = \"fixup\" and an init that does not start every branch at 0",
        verdict: Verdict::Warn,
        reason: "Fixup starts every branch at 0",
        fix: "Set init = \"fixup\", or zero_writers = true",
        applies: |c| !zeroes(c) && any(c, |b| b.scale.has_scalar_biases()),
    },
    Rule {
        pair: "scale = \"nfnet\" and an embedding that is not of size 1",
        verdict: Verdict::Warn,
        reason: "beta is the rms of a stream that starts at 1; the embedding is drawn much smaller, so that branches read \
                 next to nothing",
        fix: "Set embedding_norm, or an embedding_std of 0.7 (token and position add up) with tie_embeddings = false",
        applies: |c| {
            let width = c.d_model as f64;
            let spec =
                Spec { role: Role::Embedding, fan_in: 1.0, fan_out: width, layers: c.n_layers, layer: None, width };
            let scale = match c.embedding_scale {
                Some(EmbeddingScale::Constant { value }) => value,
                Some(EmbeddingScale::Learned { init }) => init.unwrap_or(1.0),
                None => 1.0,
            };
            let is_normalized = c.embedding_norm.is_some_and(|norm| norm.divides_by_size());
            let is_near = (0.5..=2.0).contains(&(scheme(c).std(&spec).unwrap_or(1.0) * scale));
            !is_near && !is_normalized && any(c, |b| matches!(b.scale, ScaleConfig::Nfnet { .. }))
        },
    },
    Rule {
        pair: "qk_norm_over = \"width\" and qk_norm = \"none\"",
        verdict: Verdict::Refuse,
        reason: "there is no norm that could be over the width",
        fix: "Set qk_norm, or leave qk_norm_over out",
        applies: |c| c.qk_norm_over == QkNormOver::Width && c.qk_norm.is_none() && !any(c, BranchAxes::qkv_norm),
    },
    Rule {
        pair: "a norm over the sequence (instance_norm, group_norm with over_time) and context = 1",
        verdict: Verdict::Refuse,
        reason: "a channel over a sequence of one token is its own mean",
        fix: "Set a longer context",
        applies: |c| c.context == 1 && c.norms().any(|norm| norm.needs_the_sequence()),
    },
    Rule {
        pair: "embedding_scale and an embedding_norm that divides by the size of what it reads",
        verdict: Verdict::Warn,
        reason: "where nothing is added to the token embedding (position = \"rope\" or \"none\") the norm undoes the scale",
        fix: "Set embedding_scale = 1, or leave embedding_norm out",
        applies: |c| {
            let adds = matches!(c.position, position::Position::Learned {} | position::Position::Sinusoidal {});
            let divides = c.embedding_norm.is_some_and(|norm| norm.divides_by_size());
            !adds && divides && c.embedding_scale != Some(EmbeddingScale::Constant { value: 1.0 })
        },
    },
    Rule {
        pair: "scale = \"fixup\" and weight_norm = \"scaled_weight_standardization\"",
        verdict: Verdict::Refuse,
        reason: "the weights of a standardized unit sum to 0, so that a scalar bias in front of it changes nothing, and \
                 Fixup's init has no effect",
        fix: "Set weight_norm = \"none\", or scale = \"nfnet\"",
        applies: |c| {
            let standardized = matches!(c.weight_norm, WeightNormConfig::ScaledWeightStandardization { .. });
            standardized && any(c, |b| b.scale.has_scalar_biases())
        },
    },
    Rule {
        pair: "scale = \"nfnet\" and a norm",
        verdict: Verdict::Warn,
        reason: "beta is the rms of a stream that no norm touches; in front of a normalized input it only shrinks the \
                 branch with depth",
        fix: "Set placement = \"none\", and weight_norm = \"scaled_weight_standardization\" as in NFNets",
        applies: |c| any(c, |b| matches!(b.scale, ScaleConfig::Nfnet { .. }) && b.has_norms()),
    },
    Rule {
        pair: "a norm over the batch or the sequence (batch_norm, instance_norm, group_norm with over_time)",
        verdict: Verdict::Warn,
        reason: "its statistics are also those of later tokens, so that a causal model sees what it is to predict: its \
                 loss is no language model's loss",
        fix: "Take a norm of one token, or read the loss as that of a model that may look ahead",
        applies: |c| c.norms().any(|norm| norm.sees_the_future()),
    },
    Rule {
        pair: "norm = \"dyt\" and an embedding that has no learned scale",
        verdict: Verdict::Warn,
        reason: "DyT does not divide by the size of what it reads; its authors' language models scale the embedding by a \
                 learned number, sqrt(d_model) at the start, and others report divergence without (arXiv:2503.10622)",
        fix: "Leave embedding_scale out",
        applies: |c| {
            let learned = matches!(c.embedding_scale, Some(EmbeddingScale::Learned { .. }));
            !learned && any(c, |b| b.has_norms() && b.norm.learns_embedding_scale())
        },
    },
    Rule {
        pair: "placement = \"mix_norm\" of blocks none of which is a post_norm block",
        verdict: Verdict::Warn,
        reason: "fraction of all blocks is rounded down to none, or to blocks before these, and what is left is pre_norm",
        fix: "Set placement = { kind = \"mix_norm\", fraction = .. } to at least 1 / n_layers",
        applies: |c| {
            c.placements().any(|(placement, mut layers)| {
                let is_pre = |layer| placement.at(layer, c.n_layers) == Placement::PreNorm {};
                matches!(placement, Placement::MixNorm { .. }) && layers.all(is_pre)
            })
        },
    },
    Rule {
        pair: "queries and keys normalized by \"l2_norm\" and attention_scale = \"head_dim\"",
        verdict: Verdict::Warn,
        reason: "the product of two unit vectors is at most 1, and divided by sqrt(head_dim) attention is uniform",
        fix: "Leave attention_scale out, or set it to a number such as 10",
        applies: |c| {
            let is_l2 = matches!(c.effective_qk_norm(), NormConfig::L2Norm { .. });
            is_l2 && c.attention_scale == Some(AttentionScale::HeadDim {})
        },
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
        applies: |c| {
            let closes = last(c).has_norm_at(Position::OnStream) && !last(c).placement.is_dual();
            c.final_norm == Some(true) && closes
        },
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
        applies: |c| {
            let open = !last(c).has_norm_at(Position::OnStream) || last(c).placement.is_dual();
            let asks =
                [Branch::Attention, Branch::Mlp].map(|branch| c.axes(c.n_layers - 1, branch).placement.final_norm());
            c.final_norm == Some(false) && open && asks.contains(&true) && !c.norm.is_none()
        },
    },
    Rule {
        pair: "placement = \"deep_norm\" and init other than \"xavier\"",
        verdict: Verdict::Warn,
        reason: "the paper derives beta as the gain of Xavier-normal weights",
        fix: "Leave init out",
        applies: |c| any(c, |b| b.placement == Placement::DeepNorm {}) && !matches!(scheme(c), Scheme::Xavier { .. }),
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
        applies: |c| any(c, |b| b.norm.is_none() && !matches!(b.placement, Placement::PreNorm {} | Placement::None {})),
    },
    Rule {
        pair: "tie_embeddings = true and parametrization = \"spectral\", \"u_mup\", or \"mup\" with form = \"table_3\" or \"table_9\"",
        verdict: Verdict::Refuse,
        reason: "there embedding and head are drawn or stepped differently, and one matrix cannot be both",
        fix: "Set tie_embeddings = false, or parametrization = \"mup\" with form = \"table_8\"",
        applies: |c| c.tie_embeddings && !c.parametrization.ties_embeddings(),
    },
    Rule {
        pair: "parametrization = \"depth_mup\" or \"complete_p\" and a placement, a scale or an init that counts depth",
        verdict: Verdict::Refuse,
        reason: "the parametrization already sets the size of a branch by depth; deep_norm, scaled_pre_norm, sub_norm, scale = \
                 \"depth\" and gpt2, llama_depth, wang, spike_no_more, fixup and t_fixup would do so a second time",
        fix: "Set placement = \"pre_norm\", scale = \"one\", and leave init out",
        applies: |c| {
            let counted = any(c, |b| b.placement.counts_depth() || b.scale.counts_depth()) || scheme(c).counts_depth();
            c.parametrization.counts_depth() && counted
        },
    },
    Rule {
        pair: "parametrization = \"u_mup\" and init other than \"normal\" with std = 1",
        verdict: Verdict::Refuse,
        reason: "u-muP draws every weight from N(0, 1) and scales the operations instead",
        fix: "Leave init out",
        applies: |c| is_unit(c) && scheme(c) != Scheme::Normal { std: 1.0 },
    },
    Rule {
        pair: "parametrization = \"u_mup\" and a placement other than \"pre_norm\" or \"none\", or a scale other than \"one\"",
        verdict: Verdict::Refuse,
        reason: "u-muP has its own residual connection, (x + tau f(n(x))) / sqrt(1 + tau^2)",
        fix: "Set placement = \"pre_norm\" and scale = \"one\"",
        applies: |c| {
            let fits = |b: BranchAxes| {
                matches!(b.placement, Placement::PreNorm {} | Placement::None {}) && b.scale == (ScaleConfig::One {})
            };
            is_unit(c) && any(c, |b| !fits(b))
        },
    },
    Rule {
        pair: "zero_query = true and qk_norm or weight_norm",
        verdict: Verdict::Refuse,
        reason: "both divide by the size of what is 0",
        fix: "Leave zero_query out",
        applies: |c| {
            let normalized = !c.effective_qk_norm().is_none() || c.weight_norm != (WeightNormConfig::None {});
            c.zero_query && normalized
        },
    },
    Rule {
        pair: "zero_readout = true and tie_embeddings = true",
        verdict: Verdict::Refuse,
        reason: "the head is the embedding, which cannot start at 0",
        fix: "Set tie_embeddings = false",
        applies: |c| c.zero_readout && c.tie_embeddings,
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

/// Whether the weights that write the stream start at 0.
fn zeroes(c: &ModelConfig) -> bool {
    c.zero_writers || scheme(c).zeroes_writers()
}

fn is_unit(c: &ModelConfig) -> bool {
    c.parametrization.unit_scaling().is_some()
}

fn is_mimetic(c: &ModelConfig) -> bool {
    matches!(scheme(c), Scheme::Mimetic { .. })
}

/// Whether anything at all is normalized.
fn has_any_norm(c: &ModelConfig) -> bool {
    let elsewhere = !c.qk_norm.is_none() || c.embedding_norm.is_some_and(|norm| !norm.is_none());
    elsewhere || c.final_norm == Some(true) || any(c, BranchAxes::has_norms)
}
