//! From a configuration to its plan.

use super::{AttentionPlan, BlockPlan, BranchPlan, LogitScale, MlpPlan, Plan, TokenScale};
use crate::config::{Activation, AttentionScale, BlockConfig, EmbeddingScale, ModelConfig};
use crate::error::ModelError;
use unitgain_init::Scheme;
use unitgain_mup::{BranchFactors, Parametrization, Shape};
use unitgain_norms::NormConfig;
use unitgain_residual::{Branch, Joint, NormPosition, Placement, Site};

impl ModelConfig {
    /// Checks every value and fills in every default, for a vocabulary of `vocabulary` token ids, which is `vocab_size` if
    /// that is set.
    ///
    /// # Errors
    /// [`ModelError::Value`] names the key, its value, what is allowed and the fix; [`ModelError::Combination`] is one of
    /// [`COMBINATIONS`](crate::COMBINATIONS).
    pub fn plan(&self, vocabulary: usize) -> Result<Plan, ModelError> {
        self.check_sizes(vocabulary)?;
        let head_dim = self.head_dim.unwrap_or(self.d_model / self.n_heads);
        self.check_values(head_dim)?;
        self.check_blocks(head_dim)?;
        let shape = Shape { width: self.d_model, head_dim, blocks: self.n_layers };
        // A configured head size is constant over widths; otherwise it grows with the width.
        let parametrization = match self.head_dim {
            Some(head_dim) => self.parametrization.with_constant_head_dim(head_dim),
            None => self.parametrization,
        }
        .resolved(shape);
        let mut branches: Vec<[BranchPlan; 2]> = (0..self.n_layers)
            .map(|block| [Branch::Attention, Branch::Mlp].map(|branch| self.branch(block, branch, parametrization)))
            .collect();
        let every = || branches.iter().flatten();

        let asks = every().find(|branch| branch.placement.embedding_norm()).map(|branch| branch.norm);
        let embedding_norm = self.embedding_norm.or(asks).unwrap_or(NormConfig::None {});
        let counts_depth = every().any(|branch| branch.placement.counts_depth() || branch.scale.counts_depth());
        let init = self.init.unwrap_or(match parametrization.default_std() {
            Some(std) => Scheme::Normal { std },
            None if counts_depth => Scheme::xavier(),
            None => Scheme::gpt2(),
        });
        let root = (parametrization.base_width(self.d_model) as f64).sqrt();
        let learns_scale = every().any(|branch| branch.has_norms() && branch.norm.learns_embedding_scale());
        let embedding_scale = match self.embedding_scale {
            Some(EmbeddingScale::Constant { value }) => TokenScale::Fixed(value),
            Some(EmbeddingScale::Learned { init }) => TokenScale::Learned(init.unwrap_or(root)),
            None if learns_scale => TokenScale::Learned(root),
            None if init.scales_embedding() && embedding_norm.is_none() => TokenScale::Fixed(root),
            None => TokenScale::Fixed(1.0),
        };
        let last = &branches[self.n_layers - 1];
        let is_closed = last[1].has_norm_at(NormPosition::OnStream) && !last[1].placement.is_dual();
        let is_open = last.iter().any(|branch| branch.placement != Placement::None {}) && !is_closed;

        let qk_norm = every().find(|branch| branch.qkv_norm()).map_or(self.qk_norm, |branch| branch.norm);
        // A standardized weight cannot start at 0; its gain does instead.
        let starts_at_zero = self.zero_writers || init.zeroes_writers() && self.weight_norm.divides_by_size();
        for branch in branches.iter_mut().flatten() {
            if starts_at_zero && !branch.has_norm_at(NormPosition::AfterBranch) {
                branch.writer_gain = 0.0;
            }
        }
        let factors = parametrization.activation(|factor| self.activation.unit_gain(factor));
        let of_block = |[attention, mlp]: [BranchPlan; 2]| BlockPlan {
            attention: self.attention(attention, shape, parametrization, &qk_norm),
            mlp: MlpPlan {
                branch: mlp,
                d_ff: self.d_ff.unwrap_or(default_d_ff(self.activation, self.d_model)),
                activation: self.activation,
                bias: self.bias,
                factors,
            },
            shares_scale: attention.scale.is_shared(),
            dropout: self.dropout,
        };
        let plan = Plan {
            vocabulary,
            context: self.context,
            shape,
            init,
            parametrization,
            norm: self.norm,
            qk_norm: self.qk_norm,
            qk_norm_over: self.qk_norm_over,
            weight_norm: self.weight_norm,
            position: self.position,
            embedding_norm,
            embedding_scale,
            final_norm: self.final_norm.unwrap_or(is_open && !self.norm.is_none()),
            tie_embeddings: self.tie_embeddings,
            head_bias: self.head_bias,
            zero_readout: self.zero_readout,
            zero_query: self.zero_query,
            zero_writers: self.zero_writers,
            logit_scale: self.logit_scale,
            logit_softcap: self.logit_softcap,
            dropout: self.dropout,
            blocks: branches.into_iter().map(of_block).collect(),
        };
        plan.check_parameters()?;
        self.check_widths(&plan)?;
        plan.refuse()?;
        Ok(plan)
    }

    /// This configuration with the defaults of its `plan` filled in, except those that each block takes from its placement.
    pub fn written_out(&self, plan: &Plan) -> Self {
        let first = &plan.blocks[0];
        let depth = plan.parametrization.base_depth(self.n_layers);
        let of_block = |block: &BlockConfig| BlockConfig {
            scale: block.scale.map(|scale| scale.resolved(depth)),
            ..block.clone()
        };
        Self {
            vocab_size: Some(plan.vocabulary),
            n_kv_heads: Some(first.attention.kv_heads),
            head_dim: Some(plan.shape.head_dim),
            d_ff: Some(first.mlp.d_ff),
            attention_bias: Some(first.attention.bias),
            embedding_scale: Some(match plan.embedding_scale {
                TokenScale::Fixed(value) => EmbeddingScale::Constant { value },
                TokenScale::Learned(init) => EmbeddingScale::Learned { init: Some(init) },
            }),
            embedding_norm: Some(plan.embedding_norm),
            attention_scale: Some(match first.attention.logit_scale {
                LogitScale::HeadDim(_) => AttentionScale::HeadDim {},
                LogitScale::Constant(value) => AttentionScale::Constant { value },
                LogitScale::Learned { start, per_head } => AttentionScale::Learned { init: Some(start), per_head },
            }),
            scale: self.scale.resolved(depth),
            final_norm: Some(plan.final_norm),
            init: Some(plan.init),
            parametrization: plan.parametrization,
            block: self.block.iter().map(of_block).collect(),
            ..self.clone()
        }
    }

    /// The settings of `[[model.block]]` for a block.
    pub(super) fn of_block(&self, block: usize) -> Option<&BlockConfig> {
        self.block.iter().find(|own| (own.range[0]..own.range[1]).contains(&block))
    }

    /// The plan of a branch; settings of `[[model.block]]` take precedence over those of the model.
    fn branch(&self, block: usize, branch: Branch, parametrization: Parametrization) -> BranchPlan {
        let own = self.of_block(block);
        let both = own.and_then(|b| b.placement);
        let written = match branch {
            Branch::Attention => both,
            Branch::Mlp => own.and_then(|b| b.mlp_placement).or(both).or(self.mlp_placement),
        }
        .unwrap_or(self.placement);
        let blocks = self.n_layers;
        let BranchFactors { gain, after, delayed } = parametrization.branch(2 * block + branch as usize, blocks);
        let branch_gain = written.at(block, blocks).branch_gain(blocks);
        BranchPlan {
            site: Site {
                block,
                blocks,
                width: self.d_model,
                base_width: parametrization.base_width(self.d_model),
                joint: Joint { gain, after, delayed },
                branch,
            },
            written,
            placement: written.at(block, blocks),
            norm: own.and_then(|b| b.norm).unwrap_or(self.norm),
            // Relative to the base model, because the parametrization scales with depth already.
            scale: own.and_then(|b| b.scale).unwrap_or(self.scale).resolved(parametrization.base_depth(blocks)),
            weight_norm: self.weight_norm,
            gain: branch_gain,
            writer_gain: branch_gain,
            zero_last_gain: self.zero_writers,
        }
    }

    /// The attention of a block. `qk_norm` is the norm of queries and keys of any block, since all blocks have one scale.
    fn attention(
        &self,
        branch: BranchPlan,
        shape: Shape,
        parametrization: Parametrization,
        qk_norm: &NormConfig,
    ) -> AttentionPlan {
        let normalizes = branch.qkv_norm();
        let own = self.of_block(branch.site.block);
        let window = Some(own.and_then(|b| b.window).unwrap_or(self.window)).filter(|window| *window > 0);
        let position = own.and_then(|b| b.position).unwrap_or(self.position);
        let bias = self.attention_bias.unwrap_or(self.bias);
        let of_head_dim = parametrization.attention_logits(shape);
        let logit_scale = match self.attention_scale.unwrap_or_else(|| AttentionScale::of(qk_norm)) {
            AttentionScale::HeadDim {} => LogitScale::HeadDim(of_head_dim),
            AttentionScale::Constant { value } => LogitScale::Constant(value),
            AttentionScale::Learned { init, per_head } => {
                let start = init.unwrap_or_else(|| AttentionScale::start(qk_norm, self.context, of_head_dim));
                LogitScale::Learned { start, per_head }
            }
        };
        AttentionPlan {
            branch,
            heads: self.n_heads,
            kv_heads: self.n_kv_heads.unwrap_or(self.n_heads),
            head_dim: shape.head_dim,
            qkv_bias: self.qkv_bias.unwrap_or(bias),
            bias,
            query_gain: if self.zero_query { 0.0 } else { 1.0 },
            qk_norm: if normalizes { branch.norm } else { self.qk_norm },
            qk_norm_over: self.qk_norm_over,
            value_norm: if normalizes { branch.norm } else { NormConfig::None {} },
            logit_scale,
            softcap: self.attention_softcap,
            output_factor: parametrization
                .attention_output(shape, window.map_or(self.context, |w| w.min(self.context))),
            head_scale: self.head_scale.unwrap_or(branch.placement.head_scale()),
            window,
            position,
            context: self.context,
        }
    }
}

/// `4 d_model`, or `8/3 d_model` rounded up to a multiple of 8 for a gated activation, which has the same number of weights.
fn default_d_ff(activation: Activation, d_model: usize) -> usize {
    if activation.is_gated() { (8 * d_model).div_ceil(3).next_multiple_of(8) } else { 4 * d_model }
}
