//! What a user writes: serde and nothing else. What it means is a [`Plan`](crate::Plan).

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
pub use position::Position;

/// A model. Every axis is one value; keys that are left out take the defaults given here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Number of token ids. Default: that of the run's task; the library needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
    /// Most tokens in a sequence. Default 64.
    pub context: usize,
    /// Width of the stream. Default 128.
    pub d_model: usize,
    /// Number of blocks, each attention and MLP. Default 4.
    pub n_layers: usize,
    /// Number of query heads. Default 4.
    pub n_heads: usize,
    /// Number of key/value heads, a divisor of `n_heads`. Default `n_heads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_kv_heads: Option<usize>,
    /// Size of a head. Default `d_model / n_heads`. Where it is set, a parametrization takes it for the base model's too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Width of the MLP. Default `4 d_model`; for gated activations `8/3 d_model`, rounded up to a
    /// multiple of 8, which has as many weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub d_ff: Option<usize>,
    /// Default `gelu`.
    pub activation: Activation,
    /// Default `learned`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub position: Position,
    /// Whether linear layers other than the head have biases. Default false.
    pub bias: bool,
    /// Whether attention's linear layers have biases. Default `bias`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_bias: Option<bool>,
    /// Whether the head has a bias, one number a token, tied or not: it is added behind the head's multiplier, and no factor
    /// of a parametrization counts it but u-muP's. Starts as the biases of `init`, and at 0 with `zero_readout`. Default false.
    pub head_bias: bool,
    /// Whether the head is the transposed token embedding. Default true.
    pub tie_embeddings: bool,
    /// Probability of zeroing, of the embedding and of what each branch writes. Default 0.
    pub dropout: f64,
    /// Factor of the token embedding. Default 1; `learned` where the norm of the stream is `dyt`, whose
    /// authors' models do not train without; `sqrt(d_model)` (under muP of the base model) where `init` is
    /// `spike_no_more` or `t_fixup` and there is no `embedding_norm`.
    #[serde(deserialize_with = "shorthand::optional_number", skip_serializing_if = "Option::is_none")]
    pub embedding_scale: Option<EmbeddingScale>,
    /// Norm of the embedding, positions included. Default `none`, and `norm` with `peri_norm`, which
    /// asks for one.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub embedding_norm: Option<NormConfig>,
    /// Norm of queries and keys, before RoPE. Default `none`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub qk_norm: NormConfig,
    /// What `qk_norm` normalizes. Default `head`.
    pub qk_norm_over: QkNormOver,
    /// What `q.k` is multiplied by. Default `head_dim`, and `learned` where `qk_norm` is `l2_norm`, which
    /// bounds `q.k` by 1.
    #[serde(deserialize_with = "shorthand::optional_number", skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<AttentionScale>,
    /// c in `c tanh(z / c)` of the attention logits (arXiv:2408.00118). Default 0: none.
    pub attention_softcap: f64,
    /// c in `c tanh(z / c)` of the output logits. Default 0: none.
    pub logit_softcap: f64,
    /// Norm of the stream and the branches. Default `layer_norm`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub norm: NormConfig,
    /// Norm of the weights of the blocks' linear layers. Default `none`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub weight_norm: WeightNormConfig,
    /// Where the norms sit. Default `pre_norm`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub placement: Placement,
    /// Where the norms of the MLP's branch sit. Default: as those of attention, `placement`.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub mlp_placement: Option<Placement>,
    /// How strongly a branch writes. Default `one`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub scale: ScaleConfig,
    /// Whether a norm, of the kind `norm`, precedes the head. Default: what the placement of the last
    /// block needs, unless `norm` is `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_norm: Option<bool>,
    /// How the matrices are drawn. Default `gpt2`; `xavier` where gpt2's 1/sqrt(2L) would count depth a
    /// second time: with `deep_norm` and `sub_norm` (whose gains are those of xavier),
    /// `scaled_pre_norm`, and `scale = "depth"`; `normal` under `depth_mup` and `complete_p`, and with a standard deviation
    /// of 1 under `u_mup`.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub init: Option<Scheme>,
    /// Whether each head's output has a learned scale, 1 at the start (arXiv:2110.09456). Default: with
    /// `normformer` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_scale: Option<bool>,
    /// Whether the last factor of each branch starts at 0, so that every block starts as what its placement
    /// makes of nothing: the gain of a norm behind the branch where there is one (arXiv:1706.02677, section
    /// 5.1), else the gain of a standardized weight, else the weight that writes the stream. Default false.
    pub zero_writers: bool,
    /// Whether queries start at 0, so that attention starts uniform at every width (arXiv:2203.03466, appendix D.2). Default
    /// false.
    pub zero_query: bool,
    /// Whether an untied head starts at 0, so that the first logits are 0 at every width (arXiv:2203.03466, appendix D.2).
    /// Default false.
    pub zero_readout: bool,
    /// How init, multipliers and learning rates depend on width and depth. Default `standard`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub parametrization: Parametrization,
    /// Blocks that differ from the rest.
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
            head_bias: false,
            tie_embeddings: true,
            dropout: 0.0,
            embedding_scale: None,
            embedding_norm: None,
            qk_norm: NormConfig::None {},
            qk_norm_over: QkNormOver::Head,
            attention_scale: None,
            attention_softcap: 0.0,
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

/// Placement, norm or scale of some blocks.
///
/// ```toml
/// [[model.block]]
/// range = [0, 4]
/// placement = "post_norm"
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockConfig {
    /// First block, counted from 0, and the one after the last.
    pub range: [usize; 2],
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Default: `placement` of this range if it is given, else that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub mlp_placement: Option<Placement>,
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub norm: Option<NormConfig>,
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleConfig>,
}
