//! The configuration of a model as a user writes it, read by serde; a [`Plan`](crate::Plan) is its meaning.

mod activation;
mod attention;
mod embedding;
mod position;

use serde::{Deserialize, Serialize};
use unitgain_init::Scheme;
use unitgain_mup::Parametrization;
use unitgain_norms::NormConfig;
use unitgain_norms::weight::WeightNormConfig;
use unitgain_residual::{Placement, ScaleConfig};
use unitgain_variant::shorthand;

pub use activation::Activation;
pub use attention::{AttentionScale, QkNormOver};
pub use embedding::EmbeddingScale;
pub use position::{Position, RopeScaling};

/// The configuration of a model. Every axis is one value; missing keys take the defaults given here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Number of token ids. Default: the number of the task; required in the library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Largest number of tokens in a sequence. Default 64.
    pub context: usize,
    /// Width of the stream. Default 128.
    pub d_model: usize,
    /// Number of blocks, each with attention and MLP. Default 4.
    pub n_layers: usize,
    /// Number of query heads. Default 4.
    pub n_heads: usize,
    /// Number of key/value heads, a divisor of `n_heads`. Default `n_heads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_kv_heads: Option<usize>,
    /// Size of a head. Default `d_model / n_heads`. If set, it is also the head size of a parametrization's base model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Width of the MLP. Default `4 d_model`; for gated activations `8/3 d_model`, which has the same number of weights,
    /// rounded up to a multiple of 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub d_ff: Option<usize>,
    /// Activation of the MLP. Default `gelu`.
    pub activation: Activation,
    /// Position encoding. Default `learned`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub position: Position,
    /// Whether linear layers other than the head have biases. Default false.
    pub bias: bool,
    /// Whether the linear layers of attention have biases; with `qkv_bias` that of its output only. Default `bias`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_bias: Option<bool>,
    /// Whether the linear layers of queries, keys and values have biases (arXiv:2309.16609, section 2.3). Default
    /// `attention_bias`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Whether the head, tied or not, has a bias, added after the multiplier of the head. Of the parametrizations only u-muP
    /// has a factor for it. It starts as the biases of `init`, or at 0 with `zero_readout`. Default false.
    pub head_bias: bool,
    /// Whether the head is the transposed token embedding. Default true.
    pub tie_embeddings: bool,
    /// Dropout probability of the embedding and of the output of each branch. Default 0.
    pub dropout: f64,
    /// Factor of the token embedding. Default 1; `learned` if the norm of the stream is `dyt`, whose authors' models need it;
    /// `sqrt(d_model)` (under muP of the base model) if `init` is `spike_no_more` or `t_fixup` and there is no
    /// `embedding_norm`.
    #[serde(deserialize_with = "shorthand::optional_number", skip_serializing_if = "Option::is_none")]
    pub embedding_scale: Option<EmbeddingScale>,
    /// Norm of the embedding, positions included. Default `none`; `norm` with `peri_norm`.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub embedding_norm: Option<NormConfig>,
    /// Norm of queries and keys, before RoPE. Default `none`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub qk_norm: NormConfig,
    /// Axis that `qk_norm` normalizes. Default `head`.
    pub qk_norm_over: QkNormOver,
    /// Factor of `q.k`. Default `head_dim`; `learned` if `qk_norm` is `l2_norm`, which bounds `q.k` by 1.
    #[serde(deserialize_with = "shorthand::optional_number", skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<AttentionScale>,
    /// c in `c tanh(z / c)` of the attention logits (arXiv:2408.00118). Default 0: none.
    pub attention_softcap: f64,
    /// Number of tokens that a token attends to, the last ones up to itself (arXiv:2004.05150, section 3.1). Default 0: all.
    pub window: usize,
    /// Factor of the output logits, before their softcap. Default 1.
    pub logit_scale: f64,
    /// c in `c tanh(z / c)` of the output logits. Default 0: none.
    pub logit_softcap: f64,
    /// Norm of the stream and the branches. Default `layer_norm`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub norm: NormConfig,
    /// Norm of the weights of the blocks' linear layers. Default `none`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub weight_norm: WeightNormConfig,
    /// Position of the norms of attention and MLP. Default `pre_norm`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub placement: Placement,
    /// Position of the norms of the MLP. Default `placement`.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub mlp_placement: Option<Placement>,
    /// Factor of a branch. Default `one`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub scale: ScaleConfig,
    /// Whether a norm of the kind `norm` precedes the head. Default: whether the placement of the last block needs it, unless
    /// `norm` is `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_norm: Option<bool>,
    /// Initialization of the matrices. Default `gpt2`; `xavier` where the 1/sqrt(2L) of gpt2 would count depth a second time:
    /// with `deep_norm`, `sub_norm`, `scaled_pre_norm` and `scale = "depth"`; `normal` under `depth_mup` and `complete_p`, and
    /// with standard deviation 1 under `u_mup`.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub init: Option<Scheme>,
    /// Whether each head's output has a learned scale, 1 at init (arXiv:2110.09456). Default: only with `normformer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_scale: Option<bool>,
    /// Whether branches start at 0 through their last factor: the gain of a norm after the branch, if any (arXiv:1706.02677,
    /// section 5.1), else the gain of a standardized weight, else the weight that writes the stream. Default false.
    pub zero_writers: bool,
    /// Whether queries start at 0, so that attention starts uniform at every width (arXiv:2203.03466, appendix D.2). Default
    /// false.
    pub zero_query: bool,
    /// Whether an untied head starts at 0, so that the first logits are 0 at every width (arXiv:2203.03466, appendix D.2).
    /// Default false.
    pub zero_readout: bool,
    /// Dependence of init, multipliers and learning rates on width and depth. Default `standard`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub parametrization: Parametrization,
    /// Settings of ranges of blocks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub block: Vec<BlockConfig>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            vocab_size: None,
            context: 64,
            d_model: 128,
            n_layers: 4,
            n_heads: 4,
            n_kv_heads: None,
            head_dim: None,
            d_ff: None,
            activation: Activation::Gelu,
            position: Position::Learned {},
            bias: false,
            attention_bias: None,
            qkv_bias: None,
            head_bias: false,
            tie_embeddings: true,
            dropout: 0.0,
            embedding_scale: None,
            embedding_norm: None,
            qk_norm: NormConfig::None {},
            qk_norm_over: QkNormOver::Head,
            attention_scale: None,
            attention_softcap: 0.0,
            window: 0,
            logit_scale: 1.0,
            logit_softcap: 0.0,
            norm: NormConfig::layer_norm(),
            weight_norm: WeightNormConfig::None {},
            placement: Placement::PreNorm {},
            mlp_placement: None,
            scale: ScaleConfig::One {},
            final_norm: None,
            init: None,
            head_scale: None,
            zero_writers: false,
            zero_query: false,
            zero_readout: false,
            parametrization: Parametrization::Standard {},
            block: Vec::new(),
        }
    }
}

/// Placement, norm, scale, window and position encoding of a range of blocks.
///
/// ```toml
/// [[model.block]]
/// range = [0, 4]
/// placement = "post_norm"
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockConfig {
    /// `[first, last + 1]`, counted from 0.
    pub range: [usize; 2],
    /// Position of the norms of attention and MLP. Default: `placement` of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Position of the norms of the MLP. Default: `placement` of this range, else `mlp_placement` of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub mlp_placement: Option<Placement>,
    /// Norm of the branches. Default: `norm` of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub norm: Option<NormConfig>,
    /// Factor of a branch. Default: `scale` of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleConfig>,
    /// Number of tokens that a token attends to, 0 for all. Default: `window` of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Position encoding, `rope` or `none`: the others are added to the embedding. Default: `position` of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
}
