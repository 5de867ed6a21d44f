use crate::combinations::{self, Rule};
use crate::mlp::Activation;
use crate::position::Position;
use crate::shorthand;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use unitgain_init::Scheme;
use unitgain_mup::{Parametrization, Shape};
use unitgain_norms::NormConfig;
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
    /// Size of a head. Default `d_model / n_heads`.
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
    /// Whether linear layers have biases (the head never has). Default false.
    pub bias: bool,
    /// Whether attention's linear layers have biases. Default `bias`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_bias: Option<bool>,
    /// Whether the head is the transposed token embedding. Default true.
    pub tie_embeddings: bool,
    /// Probability of zeroing, of the embedding and of what each branch writes. Default 0.
    pub dropout: f64,
    /// Factor of the token embedding. Default 1.
    pub embedding_scale: f64,
    /// Norm of the embedding, positions included. Default `none`, and `norm` with `peri_norm`, which
    /// asks for one.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub embedding_norm: Option<NormConfig>,
    /// Norm of each query and key head, before RoPE. Default `none`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub qk_norm: NormConfig,
    /// c in `c tanh(z / c)` of the attention logits (arXiv:2408.00118). Default 0: none.
    pub attention_softcap: f64,
    /// c in `c tanh(z / c)` of the output logits. Default 0: none.
    pub logit_softcap: f64,
    /// Norm of the stream and the branches. Default `layer_norm`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub norm: NormConfig,
    /// Where the norms sit. Default `pre_norm`.
    pub placement: Placement,
    /// Where the norms of the MLP's branch sit. Default: as those of attention, `placement`.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// `scaled_pre_norm`, and `scale = "depth"`.
    #[serde(deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub init: Option<Scheme>,
    /// Whether the weights that write the stream start at 0, so that every block starts as the identity
    /// of its placement (arXiv:1706.02677 for the last norm gain; here the weight itself). Default false.
    pub zero_writers: bool,
    /// How init, multipliers and learning rates depend on width. Default `standard`.
    #[serde(deserialize_with = "shorthand::kind_or_table")]
    pub parametrization: Parametrization,
    /// Blocks that differ from the rest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub block: Vec<BlockConfig>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Default: `placement` of this range if it is given, else that of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlp_placement: Option<Placement>,
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub norm: Option<NormConfig>,
    /// Default: that of the model.
    #[serde(default, deserialize_with = "shorthand::optional", skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleConfig>,
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
            tie_embeddings: true,
            dropout: 0.0,
            embedding_scale: 1.0,
            embedding_norm: None,
            qk_norm: NormConfig::None {},
            attention_softcap: 0.0,
            logit_softcap: 0.0,
            norm: NormConfig::layer_norm(),
            placement: Placement::PreNorm,
            mlp_placement: None,
            scale: ScaleConfig::One {},
            final_norm: None,
            init: None,
            zero_writers: false,
            parametrization: Parametrization::Standard {},
            block: Vec::new(),
        }
    }
}

/// Largest size of anything: far above what can be trained, far below what overflows.
const MOST: usize = 1 << 20;
/// Most parameters: 64 GB of weights, before gradients and optimizer.
const MOST_PARAMETERS: f64 = 1.6e10;

/// The axes of one branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BranchAxes {
    pub(crate) branch: Branch,
    pub(crate) placement: Placement,
    pub(crate) norm: NormConfig,
    pub(crate) scale: ScaleConfig,
}

impl BranchAxes {
    /// Whether there are norms around the branch.
    pub(crate) fn has_norms(self) -> bool {
        !self.norm.is_none() && !self.placement.norms(self.branch).is_empty()
    }

    /// Whether a norm stands there.
    pub(crate) fn has_norm_at(self, position: NormPosition) -> bool {
        !self.norm.is_none() && self.placement.norms(self.branch).contains(&position)
    }
}

impl ModelConfig {
    /// Checks every value and writes out every default.
    ///
    /// # Errors
    /// [`ModelError::Value`] names the key, its value, what is allowed and the fix;
    /// [`ModelError::Combination`] is a rule of [`RULES`](crate::RULES) that refuses.
    pub fn resolved(&self) -> Result<Self, ModelError> {
        let mut c = self.clone();
        c.check_sizes()?;
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
        c.scale = c.scale.resolved(c.n_layers);
        for block in &mut c.block {
            block.scale = block.scale.map(|scale| scale.resolved(c.n_layers));
        }
        c.parametrization = c.parametrization.resolved(Shape { width: c.d_model, head_dim });
        let asking = c.branches().find(|b| b.placement.embedding_norm()).map(|b| b.norm);
        c.embedding_norm.get_or_insert(asking.unwrap_or(NormConfig::None {}));
        let last = c.axes(c.n_layers - 1, Branch::Mlp);
        let is_open = last.placement != Placement::None && !last.has_norm_at(NormPosition::OnStream);
        c.final_norm.get_or_insert(is_open && !c.norm.is_none());
        let counts_depth = c.branches().any(|b| b.placement.counts_depth() || b.scale.counts_depth());
        c.init.get_or_insert(if counts_depth { Scheme::xavier() } else { Scheme::gpt2() });
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

    /// Width and head size.
    pub(crate) fn shape(&self) -> Shape {
        Shape { width: self.d_model, head_dim: self.head_dim.unwrap_or(self.d_model / self.n_heads) }
    }

    /// The axes of a branch of block `layer`, overrides applied.
    pub(crate) fn axes(&self, layer: usize, branch: Branch) -> BranchAxes {
        let own = self.block.iter().find(|b| (b.range[0]..b.range[1]).contains(&layer));
        let both = own.and_then(|b| b.placement);
        let of_mlp = own.and_then(|b| b.mlp_placement).or(both).or(self.mlp_placement);
        let placement = match branch {
            Branch::Attention => both,
            Branch::Mlp => of_mlp,
        };
        BranchAxes {
            branch,
            placement: placement.unwrap_or(self.placement),
            norm: own.and_then(|b| b.norm).unwrap_or(self.norm),
            scale: own.and_then(|b| b.scale).unwrap_or(self.scale),
        }
    }

    /// The axes of every branch, from the first to the last.
    pub(crate) fn branches(&self) -> impl Iterator<Item = BranchAxes> {
        let of = |layer| [Branch::Attention, Branch::Mlp].map(|branch| self.axes(layer, branch));
        (0..self.n_layers).flat_map(of)
    }

    fn check_sizes(&self) -> Result<(), ModelError> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("context", Some(self.context)),
            ("d_model", Some(self.d_model)),
            ("n_layers", Some(self.n_layers)),
            ("n_heads", Some(self.n_heads)),
            ("n_kv_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("d_ff", self.d_ff),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == Some(0)) {
            return Err(value(key, 0, "must be at least 1"));
        }
        if let Some((key, Some(size))) = sizes.iter().find(|(_, size)| size.is_some_and(|n| n > MOST)) {
            return Err(value(key, size, format!("must be at most {MOST}")));
        }
        if self.head_dim.is_none() && !self.d_model.is_multiple_of(self.n_heads) {
            let problem = format!("must be a multiple of n_heads = {}, or set head_dim", self.n_heads);
            return Err(value("d_model", self.d_model, problem));
        }
        Ok(())
    }

    fn check_values(&self, head_dim: usize) -> Result<(), ModelError> {
        let kv_heads = self.n_kv_heads.unwrap_or(self.n_heads);
        if !self.n_heads.is_multiple_of(kv_heads) {
            return Err(value("n_kv_heads", kv_heads, format!("must divide n_heads = {}", self.n_heads)));
        }
        if let Position::Rope { theta } = self.position {
            if !head_dim.is_multiple_of(2) {
                let problem = "must be even with position = \"rope\", which turns pairs; change n_heads or head_dim";
                return Err(value("head_dim", head_dim, problem));
            }
            if !(theta > 0.0 && theta.is_finite()) {
                return Err(value("position.theta", theta, "must be a positive number"));
            }
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(value("dropout", self.dropout, "must be a probability from 0 up to, but without, 1"));
        }
        if !self.embedding_scale.is_finite() {
            return Err(value("embedding_scale", self.embedding_scale, "must be a finite number"));
        }
        for (key, cap) in [("attention_softcap", self.attention_softcap), ("logit_softcap", self.logit_softcap)] {
            if !(cap >= 0.0 && cap.is_finite()) {
                return Err(value(key, cap, "must be a positive number, or 0 for none"));
            }
        }
        let kinds = [
            ("norm", self.norm.check()),
            ("embedding_norm", self.embedding_norm.map_or(Ok(()), |norm| norm.check())),
            ("qk_norm", self.qk_norm.check()),
            ("scale", self.scale.check()),
            ("init", self.init.map_or(Ok(()), Scheme::check)),
            ("parametrization", self.parametrization.check()),
        ];
        kinds.into_iter().try_for_each(|(key, checked)| checked.map_err(|problem| setting(key, problem)))
    }

    /// The matrices alone, by the formula, before any memory is asked for.
    fn check_parameters(&self) -> Result<(), ModelError> {
        let size = |n: Option<usize>| n.unwrap_or(0) as f64;
        let (d, head_dim) = (self.d_model as f64, size(self.head_dim));
        let attention = 2.0 * d * head_dim * (self.n_heads as f64 + size(self.n_kv_heads));
        let mlp = d * size(self.d_ff) * if self.activation.is_gated() { 3.0 } else { 2.0 };
        let tables = d * (2.0 * size(self.vocab_size) + self.context as f64);
        let parameters = self.n_layers as f64 * (attention + mlp) + tables;
        match parameters <= MOST_PARAMETERS {
            true => Ok(()),
            false => {
                let problem = format!("makes a model of {parameters:.1e} parameters, more than {MOST_PARAMETERS:.0e}");
                Err(value("d_model", self.d_model, problem))
            }
        }
    }

    fn check_blocks(&self) -> Result<(), ModelError> {
        let mut taken = vec![false; self.n_layers];
        for (i, block) in self.block.iter().enumerate() {
            let [start, end] = block.range;
            let shown = format!("[{start}, {end}]");
            let key = format!("block.{i}.range");
            if start >= end || end > self.n_layers {
                let problem = format!(
                    "must be [first, last + 1] with first < last + 1 <= n_layers = {}; blocks are counted from 0",
                    self.n_layers
                );
                return Err(value(&key, shown, problem));
            }
            if let Some(layer) = (start..end).find(|&layer| std::mem::replace(&mut taken[layer], true)) {
                return Err(value(&key, shown, format!("block {layer} is already in another range")));
            }
            let kinds = [
                ("norm", block.norm.map_or(Ok(()), |norm| norm.check())),
                ("scale", block.scale.map_or(Ok(()), ScaleConfig::check)),
            ];
            for (name, checked) in kinds {
                checked.map_err(|problem| setting(&format!("block.{i}.{name}"), problem))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn value(key: &str, value: impl Display, problem: impl Into<String>) -> ModelError {
    ModelError::Value { key: key.into(), value: value.to_string(), problem: problem.into() }
}

/// An error of a kind's own settings, whose text is `setting = value must ..`.
fn setting(key: &str, problem: String) -> ModelError {
    match problem.split_once(" = ") {
        Some((name, rest)) => {
            let (shown, problem) = rest.split_once(' ').unwrap_or((rest, ""));
            value(&format!("{key}.{name}"), shown, problem)
        }
        None => value(key, "", problem),
    }
}
