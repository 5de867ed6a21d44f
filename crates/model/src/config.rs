use crate::axes::BlockConfig;
use crate::combinations::{self, Rule};
use crate::embedding::EmbeddingScale;
use crate::mlp::Activation;
use crate::position::Position;
use crate::qk_norm::{AttentionScale, QkNormOver};
use crate::shorthand;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use unitgain_init::Scheme;
use unitgain_mup::Parametrization;
use unitgain_norms::NormConfig;
use unitgain_norms::weight::WeightNormConfig;
use unitgain_residual::{Branch, Placement, Position as NormPosition, ScaleConfig};

/// What is wrong with a model's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// One value is out of range, or two values do not fit.
    #[error("model.{key} = {value}: {problem}")]
    Value {
        /// The key below `model`.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed, and how to fix it.
        problem: String,
    },
    /// Two settings exclude each other (one of [`RULES`](crate::RULES)).
    #[error("model: {pair} cannot be combined: {reason}. {fix}")]
    Combination {
        /// The settings.
        pair: &'static str,
        /// Why not.
        reason: &'static str,
        /// What to do instead.
        fix: &'static str,
    },
}

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

impl ModelConfig {
    /// Checks every value and writes out every default but those that each block takes from its placement.
    ///
    /// # Errors
    /// [`ModelError::Value`] names the key, its value, what is allowed and the fix;
    /// [`ModelError::Combination`] is a rule of [`RULES`](crate::RULES) that refuses.
    pub fn resolved(&self) -> Result<Self, ModelError> {
        let mut c = self.clone();
        c.check_sizes()?;
        // A head size that is written down is that of every width; one that is left out grows.
        if let Some(head_dim) = c.head_dim {
            c.parametrization = c.parametrization.with_constant_head_dim(head_dim);
        }
        let head_dim = *c.head_dim.get_or_insert(c.d_model / c.n_heads);
        c.n_kv_heads.get_or_insert(c.n_heads);
        c.d_ff.get_or_insert(match c.activation.is_gated() {
            true => (8 * c.d_model).div_ceil(3).next_multiple_of(8),
            false => 4 * c.d_model,
        });
        c.attention_bias.get_or_insert(c.bias);
        c.check_values(head_dim)?;
        c.check_parameters()?;
        c.check_blocks()?;
        // Depth is not to be counted a second time.
        let depth = c.parametrization.base_depth(c.n_layers);
        c.scale = c.scale.resolved(depth);
        for block in &mut c.block {
            block.scale = block.scale.map(|scale| scale.resolved(depth));
        }
        c.parametrization = c.parametrization.resolved(c.shape());
        let asking = c.branches().find(|b| b.placement.embedding_norm()).map(|b| b.norm);
        c.embedding_norm.get_or_insert(asking.unwrap_or(NormConfig::None {}));
        let counts_depth = c.branches().any(|b| b.placement.counts_depth() || b.scale.counts_depth());
        let scheme = *c.init.get_or_insert(match c.parametrization.default_std() {
            Some(std) => Scheme::Normal { std },
            None if counts_depth => Scheme::xavier(),
            None => Scheme::gpt2(),
        });
        let is_normalized = c.embedding_norm.is_some_and(|norm| !norm.is_none());
        let scale = match c.branches().any(|b| b.has_norms() && b.norm.learns_embedding_scale()) {
            true => EmbeddingScale::Learned { init: None },
            false if scheme.scales_embedding() && !is_normalized => {
                EmbeddingScale::Constant { value: (c.parametrization.base_width(c.d_model) as f64).sqrt() }
            }
            false => EmbeddingScale::Constant { value: 1.0 },
        };
        c.embedding_scale = Some(c.embedding_scale.unwrap_or(scale).resolved(c.parametrization.base_width(c.d_model)));
        let (qk_norm, per_head_dim) = (c.effective_qk_norm(), c.parametrization.attention_scale(c.shape()));
        let scale = c.attention_scale.unwrap_or_else(|| AttentionScale::of(&qk_norm));
        c.attention_scale = Some(scale.resolved(&qk_norm, c.context, per_head_dim));
        let last = [Branch::Attention, Branch::Mlp].map(|branch| c.axes(c.n_layers - 1, branch));
        let is_closed = last[1].has_norm_at(NormPosition::OnStream) && !last[1].placement.is_dual();
        let is_open = last.iter().any(|b| b.placement != Placement::None {}) && !is_closed;
        c.final_norm.get_or_insert(is_open && !c.norm.is_none());
        c.check_widths()?;
        combinations::refused(&c)?;
        Ok(c)
    }

    /// Combinations that are allowed but rarely what is meant.
    ///
    /// # Errors
    /// As [`ModelConfig::resolved`].
    pub fn warnings(&self) -> Result<Vec<&'static Rule>, ModelError> {
        Ok(combinations::warned(&self.resolved()?))
    }
}

pub(crate) fn value(key: &str, value: impl Display, problem: impl Into<String>) -> ModelError {
    ModelError::Value { key: key.into(), value: short(&value.to_string()), problem: problem.into() }
}

/// Digits of the largest whole number.
const LONGEST_NUMBER: usize = 20;

/// A value as a message shows it: a number with more digits than the largest whole number in exponent form (1e300 has 301
/// digits), anything else as it is.
pub fn short(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(x) if value.len() > LONGEST_NUMBER => format!("{x:e}"),
        Ok(_) | Err(_) => value.into(),
    }
}
