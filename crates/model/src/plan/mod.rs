//! What a configuration means, block by block. A [`Plan`] holds no default that is still to be filled in: everything that
//! builds, counts or checks a model reads it.

mod check;
mod cost;
mod idle;
mod resolve;
mod rules;

use crate::config::{Activation, Position, QkNormOver};
use unitgain_init::Scheme;
use unitgain_mup::{Parametrization, Shape};
use unitgain_norms::NormConfig;
use unitgain_norms::weight::WeightNormConfig;
use unitgain_residual::{NormPosition, Placement, ScaleConfig, Site};

pub use cost::Compute;
pub use idle::Idle;
pub use rules::{COMBINATIONS, Combination, Severity};

/// A model as it will be built, from [`ModelConfig::plan`](crate::ModelConfig::plan).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Number of token ids.
    pub vocabulary: usize,
    /// Most tokens in a sequence.
    pub context: usize,
    /// Width of the stream, size of a head and number of blocks.
    pub shape: Shape,
    /// How the matrices are drawn.
    pub init: Scheme,
    /// How init, multipliers and learning rates depend on width and depth, the base model's head size written out.
    pub parametrization: Parametrization,
    /// Norm of the stream, but for blocks that have their own.
    pub norm: NormConfig,
    /// Norm of queries and keys, but for blocks whose placement normalizes them.
    pub qk_norm: NormConfig,
    /// What `qk_norm` normalizes.
    pub qk_norm_over: QkNormOver,
    /// Norm of the weights of the blocks' linear layers.
    pub weight_norm: WeightNormConfig,
    /// How a token's position reaches the model.
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
    /// c in `c tanh(z / c)` of the output logits; 0 is none.
    pub logit_softcap: f64,
    /// Probability of zeroing, of the embedding and of what each branch writes.
    pub dropout: f64,
    /// The blocks, from the first to the last.
    pub blocks: Vec<BlockPlan>,
}

/// One block: attention and an MLP, each with its residual connection.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockPlan {
    /// Attention.
    pub attention: AttentionPlan,
    /// The MLP.
    pub mlp: MlpPlan,
    /// Whether both branches are multiplied by one learned scalar.
    pub shares_scale: bool,
    /// Probability of zeroing what a branch writes.
    pub dropout: f64,
}

/// How a branch is joined to the stream, and how its weights start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchPlan {
    /// Where the branch stands, and how the parametrization joins it.
    pub site: Site,
    /// The placement as it was written.
    pub written: Placement,
    /// The placement in this block: one that changes with depth is looked up.
    pub placement: Placement,
    /// Norm of the branch.
    pub norm: NormConfig,
    /// How strongly the branch writes.
    pub scale: ScaleConfig,
    /// Norm of the weights of its linear layers.
    pub weight_norm: WeightNormConfig,
    /// Factor of the standard deviation of the weights that set the size of the branch: value, output and MLP weights.
    pub gain: f64,
    /// That of the weight that writes the stream: `gain`, or 0 where the branch starts at 0 by this weight.
    pub writer_gain: f64,
    /// Whether the gain of the norm behind the branch starts at 0.
    pub zero_last_gain: bool,
}

/// Causal self-attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionPlan {
    /// How it is joined to the stream.
    pub branch: BranchPlan,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Whether its linear layers have biases.
    pub bias: bool,
    /// Factor of the standard deviation of the query weights: 1, or 0 with `zero_query`.
    pub query_gain: f64,
    /// Norm of queries and keys, before they are rotated.
    pub qk_norm: NormConfig,
    /// What `qk_norm` normalizes.
    pub qk_norm_over: QkNormOver,
    /// Norm of each head's values.
    pub value_norm: NormConfig,
    /// What `q.k` is multiplied by.
    pub logit_scale: LogitScale,
    /// c in `c tanh(z / c)` of the attention logits; 0 is none.
    pub softcap: f64,
    /// What the average of the values is multiplied by.
    pub output_factor: f64,
    /// Whether each head's output has a learned scale, 1 at the start.
    pub head_scale: bool,
    /// Base of the frequencies of rotary positions, where there are any.
    pub rope_theta: Option<f64>,
    /// Most tokens in a sequence.
    pub context: usize,
}

/// A multilayer perceptron of two layers, or three where it is gated.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpPlan {
    /// How it is joined to the stream.
    pub branch: BranchPlan,
    /// Width of its hidden layer.
    pub d_ff: usize,
    /// Its nonlinearity.
    pub activation: Activation,
    /// Whether its linear layers have biases.
    pub bias: bool,
    /// What the activation reads and what it writes is multiplied by.
    pub factors: [f64; 2],
}

/// What the token embedding is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenScale {
    /// A number.
    Fixed(f64),
    /// A learned scalar that starts here.
    Learned(f64),
}

/// What the attention logits `q.k` are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogitScale {
    /// The parametrization's factor: `1 / sqrt(head_dim)`, or what it has in its place.
    HeadDim(f64),
    /// A number.
    Constant(f64),
    /// A learned scalar.
    Learned {
        /// Its first value.
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

    /// The norms of the activations, wherever they stand.
    pub fn norms(&self) -> impl Iterator<Item = NormConfig> {
        let around = self.branches().filter(|branch| branch.has_norms()).map(|branch| branch.norm);
        let last = self.final_norm.then_some(self.norm);
        around.chain([self.embedding_norm, self.qk_norm]).chain(last).filter(|norm| !norm.is_none())
    }

    /// Whether a second stream runs beside the first.
    pub fn is_dual(&self) -> bool {
        self.branches().any(|branch| branch.placement.is_dual())
    }
}

impl BranchPlan {
    /// Whether attention normalizes its queries, keys and values.
    pub fn qkv_norm(&self) -> bool {
        self.placement.qkv_norm() && self.site.branch == unitgain_residual::Branch::Attention
    }

    /// Whether the placement asks for a norm inside the branch, before the weight that writes the stream.
    pub fn asks_for_inner_norm(&self) -> bool {
        self.placement.inner_norm(self.site.branch)
    }

    /// The norm inside the branch, before the weight that writes the stream.
    pub fn inner_norm(&self) -> NormConfig {
        if self.asks_for_inner_norm() { self.norm } else { NormConfig::None {} }
    }

    /// Whether the placement asks for a norm around the branch or in it, whatever its kind.
    pub fn asks_for_norm(&self) -> bool {
        self.qkv_norm() || self.asks_for_inner_norm() || !self.placement.norms(self.site.branch).is_empty()
    }

    /// Whether there are norms around the branch or in it.
    pub fn has_norms(&self) -> bool {
        !self.norm.is_none() && self.asks_for_norm()
    }

    /// Whether a norm stands there.
    pub fn has_norm_at(&self, position: NormPosition) -> bool {
        !self.norm.is_none() && self.placement.norms(self.site.branch).contains(&position)
    }
}
