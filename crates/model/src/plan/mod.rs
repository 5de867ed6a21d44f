//! The meaning of a configuration, block by block. A [`Plan`] has all defaults filled in; everything that builds, measures or
//! checks a model reads it.

mod check;
mod combinations;
mod cost;
mod idle;
mod resolve;

use crate::config::{Activation, Position, QkNormOver};
use unitgain_init::Scheme;
use unitgain_mup::{Parametrization, Shape};
use unitgain_norms::NormConfig;
use unitgain_norms::weight::WeightNormConfig;
use unitgain_residual::{NormPosition, Placement, ScaleConfig, Site};

pub use combinations::{COMBINATIONS, Combination, Severity};
pub use cost::Compute;
pub use idle::Idle;

/// A model as it will be built, from [`ModelConfig::plan`](crate::ModelConfig::plan).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Number of token ids.
    pub vocabulary: usize,
    /// Largest number of tokens in a sequence.
    pub context: usize,
    /// Width of the stream, size of a head and number of blocks.
    pub shape: Shape,
    /// Initialization of the matrices.
    pub init: Scheme,
    /// Dependence of init, multipliers and learning rates on width and depth, with the head size of the base model filled in.
    pub parametrization: Parametrization,
    /// Norm of the stream, except in blocks that have their own.
    pub norm: NormConfig,
    /// Norm of queries and keys, except in blocks whose placement normalizes them.
    pub qk_norm: NormConfig,
    /// Axis that `qk_norm` normalizes.
    pub qk_norm_over: QkNormOver,
    /// Norm of the weights of the blocks' linear layers.
    pub weight_norm: WeightNormConfig,
    /// Position encoding.
    pub position: Position,
    /// Norm of the embedding, positions included.
    pub embedding_norm: NormConfig,
    /// Factor of the token embedding.
    pub embedding_scale: TokenScale,
    /// Whether a norm of the kind `norm` precedes the head.
    pub final_norm: bool,
    /// Whether the head is the transposed token embedding.
    pub tie_embeddings: bool,
    /// Whether the head has a bias.
    pub head_bias: bool,
    /// Whether an untied head starts at 0.
    pub zero_readout: bool,
    /// Whether queries start at 0.
    pub zero_query: bool,
    /// Whether the last factor of each branch starts at 0.
    pub zero_writers: bool,
    /// Factor of the output logits, before their softcap.
    pub logit_scale: f64,
    /// c in `c tanh(z / c)` of the output logits; 0 for none.
    pub logit_softcap: f64,
    /// Dropout probability of the embedding and of the output of each branch.
    pub dropout: f64,
    /// The blocks, from the first to the last.
    pub blocks: Vec<BlockPlan>,
}

/// One block: attention and an MLP, each with its residual connection.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockPlan {
    /// Attention branch.
    pub attention: AttentionPlan,
    /// MLP branch.
    pub mlp: MlpPlan,
    /// Whether both branches share one learned scalar factor.
    pub shares_scale: bool,
    /// Dropout probability of the output of a branch.
    pub dropout: f64,
}

/// The residual connection of a branch, and the init of its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchPlan {
    /// Place of the branch in the stack, and the factors of the parametrization.
    pub site: Site,
    /// Placement as configured, possibly one that depends on depth.
    pub written: Placement,
    /// Placement in force in this block.
    pub placement: Placement,
    /// Norm of the branch.
    pub norm: NormConfig,
    /// Factor of the branch.
    pub scale: ScaleConfig,
    /// Norm of the weights of the linear layers.
    pub weight_norm: WeightNormConfig,
    /// Factor of the standard deviation of the value, output and MLP weights.
    pub gain: f64,
    /// Factor of the standard deviation of the last weight: `gain`, or 0 if the branch starts at 0 by this weight.
    pub writer_gain: f64,
    /// Whether the gain of the norm after the branch starts at 0.
    pub zero_last_gain: bool,
}

/// Causal self-attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPlan {
    /// Residual connection and init.
    pub branch: BranchPlan,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Whether the linear layers of queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the linear layer of the output has a bias.
    pub bias: bool,
    /// Factor of the standard deviation of the query weights: 1, or 0 with `zero_query`.
    pub query_gain: f64,
    /// Norm of queries and keys, before rotation.
    pub qk_norm: NormConfig,
    /// Axis that `qk_norm` normalizes.
    pub qk_norm_over: QkNormOver,
    /// Norm of each head's values.
    pub value_norm: NormConfig,
    /// Factor of `q.k`.
    pub logit_scale: LogitScale,
    /// c in `c tanh(z / c)` of the attention logits; 0 for none.
    pub softcap: f64,
    /// Factor of the weighted average of values.
    pub output_factor: f64,
    /// Whether each head's output has a learned scale, 1 at init.
    pub head_scale: bool,
    /// Number of tokens that a token attends to, the last ones up to itself; None for all.
    pub window: Option<usize>,
    /// Position encoding; attention itself has that of RoPE.
    pub position: Position,
    /// Largest number of tokens in a sequence.
    pub context: usize,
}

/// A multilayer perceptron of two layers, or three if gated.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpPlan {
    /// Residual connection and init.
    pub branch: BranchPlan,
    /// Width of the hidden layer.
    pub d_ff: usize,
    /// Activation of the hidden layer.
    pub activation: Activation,
    /// Whether the linear layers have biases.
    pub bias: bool,
    /// Factors of the input and the output of the activation.
    pub factors: [f64; 2],
}

/// The factor of the token embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenScale {
    /// A constant.
    Fixed(f64),
    /// A learned scalar with this initial value.
    Learned(f64),
}

/// The factor of the attention logits `q.k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogitScale {
    /// The factor of the parametrization, by default `1 / sqrt(head_dim)`.
    HeadDim(f64),
    /// A constant.
    Constant(f64),
    /// A learned scalar.
    Learned {
        /// Initial value.
        start: f64,
        /// Whether each query head has its own.
        per_head: bool,
    },
}

impl Plan {
    /// Both branches of every block, from the first to the last.
    pub fn branches(&self) -> impl Iterator<Item = &BranchPlan> {
        self.blocks.iter().flat_map(|block| [&block.attention.branch, &block.mlp.branch])
    }

    /// The norms of activations: around the branches, of the embedding, of queries and keys, and before the head.
    pub fn norms(&self) -> impl Iterator<Item = NormConfig> {
        let around = self.branches().filter(|branch| branch.has_norms()).map(|branch| branch.norm);
        let last = self.final_norm.then_some(self.norm);
        around.chain([self.embedding_norm, self.qk_norm]).chain(last).filter(|norm| !norm.is_none())
    }

    /// Whether the model has a second stream.
    pub fn is_dual(&self) -> bool {
        self.branches().any(|branch| branch.placement.is_dual())
    }
}

impl BranchPlan {
    /// Whether attention normalizes its queries, keys and values.
    pub fn qkv_norm(&self) -> bool {
        self.placement.qkv_norm() && self.site.branch == unitgain_residual::Branch::Attention
    }

    /// Whether the placement needs a norm inside the branch, before the weight that writes the stream.
    pub fn asks_for_inner_norm(&self) -> bool {
        self.placement.inner_norm(self.site.branch)
    }

    /// The norm inside the branch, before the weight that writes the stream.
    pub fn inner_norm(&self) -> NormConfig {
        if self.asks_for_inner_norm() { self.norm } else { NormConfig::None {} }
    }

    /// Whether the placement needs a norm around or inside the branch, even if its kind is `none`.
    pub fn asks_for_norm(&self) -> bool {
        self.qkv_norm() || self.asks_for_inner_norm() || !self.placement.norms(self.site.branch).is_empty()
    }

    /// Whether there are norms around or inside the branch.
    pub fn has_norms(&self) -> bool {
        !self.norm.is_none() && self.asks_for_norm()
    }

    /// Whether there is a norm at `position`.
    pub fn has_norm_at(&self, position: NormPosition) -> bool {
        !self.norm.is_none() && self.placement.norms(self.site.branch).contains(&position)
    }
}
